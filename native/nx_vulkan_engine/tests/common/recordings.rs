//! Programs that `mix nx_vulkan.record` recorded from Nx, with Nx's own results.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use half::{bf16, f16};
use nx_vulkan_ir::program::file::{Recording, Tolerance};
use nx_vulkan_ir::{DType, Result, Value};

/// The parts of floats and complex numbers; `None` for integers, which are compared as bytes.
fn floats(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn parts<const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|&chunk| decode(chunk)).collect()
    }
    Some(match dtype {
        _ if dtype.is_float8() => parts(bytes, |[b]| Value::from_bits(dtype, b.into()).real()),
        DType::Bf16 => parts(bytes, |b| bf16::from_ne_bytes(b).to_f64()),
        DType::F16 => parts(bytes, |b| f16::from_ne_bytes(b).to_f64()),
        DType::F32 | DType::C64 => parts(bytes, |b| f32::from_ne_bytes(b).into()),
        DType::F64 | DType::C128 => parts(bytes, f64::from_ne_bytes),
        _ => return None,
    })
}

/// What differs more than the tolerance allows.
fn difference(dtype: DType, actual: &[u8], expected: &[u8], tolerance: Tolerance) -> Option<String> {
    let (Some(a), Some(e)) = (floats(dtype, actual), floats(dtype, expected)) else {
        return (actual != expected).then(|| format!("got the bytes {actual:?}, expected {expected:?}"));
    };
    // The error of a complex number is relative to the whole number.
    let step = if dtype.is_complex() { 2 } else { 1 };
    let wrong = a.iter().zip(&e).enumerate().find(|&(i, (a, x))| {
        let first = i - i % step;
        let scale = e[first..first + step].iter().fold(0f64, |m, x| m.max(x.abs()));
        let same = a == x || (a.is_nan() && x.is_nan());
        let close = (a - x).abs() <= tolerance.absolute + tolerance.relative * scale;
        !(same || close)
    });
    wrong.map(|(i, (a, e))| format!("part {i}: got {a:?}, expected {e:?}, allowed {tolerance:?}"))
}

/// Runs every recording through `run`, which gives the outputs as Nx binaries, and lists what differs from Nx.
pub fn replay(run: impl Fn(&Recording) -> Result<Vec<Vec<u8>>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nx_vulkan_engine/tests/vectors");
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no recordings in {}", folder.display());
    let mut failures = vec![];
    for path in &paths {
        let recording = Recording::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let outputs = match run(&recording) {
            Ok(outputs) => outputs,
            Err(e) => {
                failures.push(format!("{}: {e}", recording.name));
                continue;
            }
        };
        assert_eq!(outputs.len(), recording.expected.len());
        for (i, actual) in outputs.iter().enumerate() {
            let ty = recording.program.type_of(recording.program.outputs[i]).unwrap();
            let found = difference(ty.dtype, actual, &recording.expected[i], recording.tolerances[i]);
            failures.extend(found.map(|what| format!("{}, output {i} {ty:?}: {what}", recording.name)));
        }
    }
    assert!(failures.is_empty(), "{} of {} programs:\n{}", failures.len(), paths.len(), failures.join("\n"));
}
