//! The same programs in f32, f16 and bf16 take as many launches: what `test/precisions.exs` traced of Bumblebee, Axon
//! and Nx.
//!
//! `NX_VULKAN_PROGRAM` picks those whose names begin so.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::program::file::program_of_header;
use nx_vulkan_engine::program::fused::is_view;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Op, Program};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::tuning::target;
use nx_vulkan_engine::{Compile, DeviceKind, Executable, Type, Value};

use super::{difference, download, engine, run, upload};
use crate::common::{self, Rng};

const TYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// Programs that are computed op by op, too: with casts, and with steps in narrow types on both sides of products and
/// reductions.
const COMPUTED: [&str; 7] =
    ["casts", "chain", "convolution", "layer_norm", "reductions", "train_adam", "train_convolutional"];

/// Programs that may take more launches in narrow types. Of the dense layers, the sum behind the gradient of `silu` has
/// room to compute that gradient again in mixed types, so that its product stores no epilogue; in f32 it happens to
/// have none.
const MORE: [(&str, usize); 1] = [("train_dense", 1)];

/// What takes a launch on a device of the target, where each kernel is one.
fn kernels(program: &Program, target: &Target) -> usize {
    let program = optimize(program.clone(), target).unwrap();
    let is_kernel = |op: &Op| !matches!(op, Op::Constant(_)) && !is_view(op);
    program.instructions.iter().filter(|instruction| is_kernel(&instruction.op)).count()
}

/// A name with the program in each type.
fn traces() -> BTreeMap<String, Vec<Program>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/precisions");
    let only = std::env::var("NX_VULKAN_PROGRAM").unwrap_or_default();
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().trim_end_matches(".jsonl.gz").to_string();
        if !name.starts_with(&only) {
            continue;
        }
        let mut lines = String::new();
        GzDecoder::new(std::fs::File::open(&path).unwrap()).read_to_string(&mut lines).unwrap();
        let programs = lines.lines().map(|line| program_of_header(line.as_bytes()).unwrap()).collect::<Vec<_>>();
        assert_eq!(programs.len(), TYPES.len(), "{name}");
        found.insert(name, programs);
    }
    found
}

/// Counts of one program in each type.
fn listed(counts: &[usize]) -> String {
    TYPES.iter().zip(counts).map(|(name, count)| format!("{count:4} in {name}")).collect::<Vec<_>>().join(", ")
}

/// Narrow types may take fewer, too, where a device has more kernels for them.
fn compare(what: &str, fewer: bool, count: impl Fn(&Program) -> usize) {
    let mut different = Vec::new();
    for (name, programs) in traces() {
        let counts: Vec<usize> = programs.iter().map(&count).collect();
        let line = format!("{name}: {}", listed(&counts));
        println!("{what} {line}");
        let more = MORE.iter().find(|(program, _)| *program == name).map_or(0, |&(_, more)| more);
        let least = if fewer { 0 } else { counts[0] };
        if counts.iter().any(|count| !(least..=counts[0] + more).contains(count)) {
            different.push(line);
        }
    }
    assert!(different.is_empty(), "{what}:\n{}", different.join("\n"));
}

#[test]
fn programs_of_every_precision_have_as_many_kernels() {
    for workgroups in [false, true] {
        let gpu = Target { workgroups, ..target::of(DeviceKind::Discrete, 1024, true) };
        compare("GPU", false, |program| kernels(program, &gpu));
        let plain = Target { matrix_units: false, half_units: false, ..gpu };
        compare("GPU without matrix units", false, |program| kernels(program, &plain));
    }
    compare("CPU", false, |program| kernels(program, &target::of(DeviceKind::Cpu, 1024, false)));
}

#[test]
fn programs_of_every_precision_take_as_many_launches() {
    compare("launches", engine().target().heads.has_tiles(), |program| {
        let parts = Executable::compile(engine(), program.clone()).unwrap().describe();
        assert!(parts.iter().all(|part| matches!(part, Described::Launch(_))));
        parts.len()
    });
}

/// Whatever casts and steps in narrow types are part of.
#[test]
fn programs_of_every_precision_have_the_bits_of_single_ops() {
    let gpu = Target { workgroups: false, ..target::of(DeviceKind::Discrete, 1024, true) };
    for (name, programs) in traces() {
        if !COMPUTED.contains(&name.as_str()) {
            continue;
        }
        for (program, dtype) in programs.iter().zip(TYPES).skip(1) {
            let mut rng = Rng(20_261_126);
            let inputs: Vec<Array> = program.inputs.iter().map(|ty| values(ty, &mut rng)).collect();
            let expected = run(program, &inputs);
            let optimized = optimize(program.clone(), &gpu).unwrap();
            let executable = Executable::compile(engine(), program.clone()).unwrap();
            let compiled = executable.run(&upload(&inputs), Compile::Allowed).unwrap();
            for (how, got) in [("as on GPUs", run(&optimized, &inputs)), ("compiled", download(&compiled))] {
                for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let differs = difference(got, expected);
                    assert_eq!(differs, None, "{name} in {dtype}, {how}, output {at} of {}", expected.ty);
                }
            }
        }
    }
    common::assert_valid(engine());
}

/// Small integers, which are indices too, and floats from -1 to 1.
fn values(ty: &Type, rng: &mut Rng) -> Array {
    let mut value = || match ty.dtype.is_integer() {
        true => Value::Int(rng.below(8).into()),
        false => Value::Float(rng.below(2000) as f64 / 1000.0 - 1.0).cast(ty.dtype),
    };
    let values: Vec<Value> = (0..ty.elements()).map(|_| value()).collect();
    Array::new(ty, values)
}
