//! Random programs.

use std::sync::OnceLock;

use nx_vulkan_engine::program::passes::{Saving, Target, optimize};
use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Executable, Value};

use super::{difference, download, engine, gpu, graphs, one_op, run, upload};
use crate::common::{self, Rng};

pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn cases(default: u64, complex: bool, test: impl Fn(u64, &Program, &[Array])) {
    let seed = number("NX_VULKAN_TEST_SEED", 20_261_121);
    let only = number("NX_VULKAN_PROGRAM", u64::MAX);
    for case in 0..number("NX_VULKAN_PROGRAMS", default) {
        if only != u64::MAX && case != only {
            continue;
        }
        let mut rng = Rng(((seed << 1) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..4).for_each(|_| {
            rng.next();
        });
        let length = 4 + rng.below(14) as usize;
        let program = graphs::program(&mut rng, length, complex);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        test(case, &program, &inputs);
    }
}

fn kernels(program: &Program) -> usize {
    program.instructions.iter().filter(|i| !matches!(i.op, Op::Constant(_))).count()
}

#[test]
fn optimized_programs_mean_the_same() {
    cases(500, true, |case, program, inputs| {
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert!(kernels(&optimized) <= kernels(program), "case {case}: {program}");
        let expected = reference::run(program, inputs).unwrap();
        compare(case, program, &optimized, &expected, &reference::run(&optimized, inputs).unwrap());
    });
}

/// As on GPUs, where runs of small ops are one kernel.
#[test]
fn workgroups_give_the_bits_of_single_ops() {
    bits(40, &Target { workgroups: true, ..gpu() });
}

/// Kernels that keep no more alive than single ops do.
#[test]
fn kernels_that_save_memory_give_the_bits_of_single_ops() {
    bits(20, &Target { saving: Saving::Kernels, ..gpu() });
}

fn bits(default: u64, target: &Target) {
    cases(default, false, |case, program, inputs| {
        let optimized = optimize(program.clone(), target).unwrap();
        let expected = run(program, inputs);
        compare(case, program, &optimized, &expected, &run(&optimized, inputs));
    });
    common::assert_valid(engine());
}

/// Whether the device takes denormals of f32 as zeros.
fn flushes() -> bool {
    static FLUSHES: OnceLock<bool> = OnceLock::new();
    *FLUSHES.get_or_init(|| {
        let b = Builder::new();
        let x = b.input(DType::F32, &[1]);
        let half = b.multiply(x, 0.5);
        let program = b.finish(&[half]).unwrap();
        let least = Array::new(&program.inputs[0], [Value::Float(f64::from(f32::MIN_POSITIVE))]);
        run(&program, &[least])[0].values == [Value::Float(0.0)]
    })
}

fn compare(case: u64, program: &Program, optimized: &Program, expected: &[Array], got: &[Array]) {
    assert_eq!(expected.len(), got.len());
    // Which ops of a kernel take denormals as zeros is for the driver's compiler to say.
    let kept = |a: &Array| if flushes() { one_op::flush(a) } else { a.clone() };
    for (k, (a, b)) in expected.iter().zip(got).enumerate() {
        let differs = difference(&kept(a), &kept(b));
        assert!(differs.is_none(), "case {case}, output {k}: {differs:?} of {program}, optimized {optimized}");
    }
}

/// Each op gives what the reference makes of its operands, and the executable of a whole program gives the bits of its
/// ops.
#[test]
fn ops_executables_and_the_reference_agree() {
    cases(60, false, |case, program, inputs| {
        let mut all = program.clone();
        all.outputs = (0..program.results().count() as u32).map(Operand::Result).collect();
        let results = run(&all, inputs);
        let find = |operand: &Operand| match *operand {
            Operand::Input(i) => inputs[i as usize].clone(),
            Operand::Result(r) => results[r as usize].clone(),
        };
        for (instruction, got) in program.instructions.iter().zip(&results) {
            let operands: Vec<Array> = instruction.operands.iter().map(find).collect();
            if let Some(wrong) = one_op::mismatch(&instruction.op, &operands, got) {
                panic!("case {case}, {}: {wrong} in {program}", instruction.op.name());
            }
        }
        let expected: Vec<Array> = program.outputs.iter().map(find).collect();
        let executable = Executable::compile(engine(), program.clone());
        let executable = executable.unwrap_or_else(|e| panic!("case {case}: {e:?} of {program}"));
        let optimized = optimize(program.clone(), &engine().target()).unwrap();
        let got = download(&executable.run(&upload(inputs), Compile::Allowed).unwrap());
        compare(case, program, &optimized, &expected, &got);
        compare(case, program, &optimized, &expected, &run(&optimized, inputs));
        let donating = Executable::compile_donating(engine(), program.clone(), &vec![true; inputs.len()]).unwrap();
        let spent = std::cell::Cell::new(false);
        let donated = donating.run_donating(&upload(inputs), Compile::Allowed, &|| true, &spent).unwrap();
        compare(case, program, &optimized, &expected, &download(&donated));
    });
    common::assert_valid(engine());
}
