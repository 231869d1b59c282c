//! THE table: every op on a device against the reference, over types, layouts, sizes and values.
//!
//! `NX_VULKAN_TEST_SEED` repeats a run. With `NX_VULKAN_BESIDE` results have the bits of another engine, too.

mod accuracy;
mod axes;
mod blocks;
mod control;
mod conv;
mod derived;
mod elementwise;
mod epilogue;
pub mod fold;
mod fourier;
mod layouts;
mod narrow_products;
mod order;
mod orders;
pub mod orthogonal;
mod panels;
mod programs;
mod solvers;
mod structure;
mod tiles;
mod values;
mod window;
mod workgroup;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::program::ops::Class;
use nx_vulkan_engine::program::{Op, Operand};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Engine, Result, Tensor, Type, Value, View, eager};
use nx_vulkan_spirv::modes::FloatModes;

use crate::beside;
use crate::common;
use crate::compare::{self, Bound, mismatch};

/// One device for all tests, whose free memory is full of garbage.
fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let engine = Engine::open(None).expect("a Vulkan device");
        let mut garbage = Vec::new();
        for shift in 4..=18 {
            for _ in 0..(1 << 22 >> shift).min(64) {
                let buffer = engine.alloc(1 << shift).unwrap();
                engine.upload(&buffer, 0, &vec![0xa7; 1 << shift]).unwrap();
                garbage.push(buffer);
            }
        }
        engine
    })
}

fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = std::env::var("NX_VULKAN_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_120);
        println!("NX_VULKAN_TEST_SEED={seed}");
        seed
    })
}

/// A generator of its own for each test.
fn rng(test: u64) -> common::Rng {
    common::Rng((seed() ^ test.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
}

thread_local! {
    /// What the running test found so far, so that one run shows all.
    static FAILURES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Ends a test.
fn finish() {
    let failures = FAILURES.take();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    common::assert_valid(engine());
}

fn upload(a: &Array) -> Tensor {
    Tensor::from_nx_bytes(engine(), &a.ty, &a.to_nx_bytes()).unwrap()
}

fn download(t: &Tensor) -> Array {
    Array::from_nx_bytes(&t.view().ty(), &t.to_nx_bytes(engine(), None).unwrap()).unwrap()
}

fn run(op: &Op, operands: &[Tensor], out: &Type) -> Result<Tensor> {
    Ok(all_results(op, operands, std::slice::from_ref(out))?.remove(0))
}

/// Runs an op, on the engine beside as well where there is one.
fn all_results(op: &Op, operands: &[Tensor], outs: &[Type]) -> Result<Vec<Tensor>> {
    let results = eager::run_all(engine(), op, operands, outs, Compile::Allowed)?.into_vec();
    if let Some(beside) = beside::engine() {
        let modes = [engine(), beside].map(|engine| engine.float_modes().unwrap());
        let operand_types: Vec<_> = operands.iter().map(|t| t.view().dtype).collect();
        if may_differ(op, &operand_types, outs[0].dtype, &modes) {
            return Ok(results);
        }
        let copies = operands.iter().map(|t| copy_to(beside, t)).collect::<Result<Vec<_>>>()?;
        let others = eager::run_all(beside, op, &copies, outs, Compile::Allowed)?;
        beside::check(&format!("{op:?}"), [engine(), beside], &results, &others)?;
    }
    Ok(results)
}

/// Whether two devices may give results other bits: products, transforms and factorizations choose among algorithms,
/// and last digits of functions are others where fma rounds twice.
fn may_differ(op: &Op, operands: &[DType], out: DType, modes: &[FloatModes; 2]) -> bool {
    if let Op::Fused(program) | Op::Workgroup(program) = op {
        return program.instructions.iter().any(|inner| {
            let dtype = |&operand: &Operand| program.type_of(operand).unwrap().dtype;
            may_differ(&inner.op, &inner.operands.iter().map(dtype).collect::<Vec<_>>(), inner.outs[0].dtype, modes)
        });
    }
    match op.class() {
        Class::Product | Class::Transform | Class::Matrix => !out.is_integer(),
        Class::Elementwise => {
            let wide = matches!(out, DType::F64 | DType::C128);
            let [one, other] = modes.each_ref().map(|modes| modes.fused || wide && modes.exact_f64);
            let exact = op.elementwise().is_none_or(|op| compare::bound(op, operands, out) == Bound::Exact);
            one != other && !exact
        }
        _ => false,
    }
}

/// The same memory and view on another engine.
fn copy_to(other: &Engine, tensor: &Tensor) -> Result<Tensor> {
    let mut bytes = vec![0; tensor.buffer().size_bytes() as usize];
    engine().download(tensor.buffer(), 0, &mut bytes)?;
    let buffer = other.alloc(bytes.len() as u64)?;
    other.upload(&buffer, 0, &bytes)?;
    Tensor::new(buffer, View::clone(tensor.view()))
}

/// Runs one op on arrays, on the device and on the host, and compares.
fn verify(op: &Op, operands: &[Array], out: &Type, bound: Bound) {
    let tensors: Vec<Tensor> = operands.iter().map(upload).collect();
    verify_on(op, &tensors, operands, out, bound);
}

/// The same for tensors that hold the arrays in some layout.
fn verify_on(op: &Op, tensors: &[Tensor], operands: &[Array], out: &Type, bound: Bound) {
    let types: Vec<_> = operands.iter().map(|a| format!("{}{:?}", a.ty.dtype, &a.ty.shape[..])).collect();
    let what = format!("{} ({}) -> {}{:?}", op.name(), types.join(", "), out.dtype, &out.shape[..]);
    let result = match run(op, tensors, out) {
        Ok(result) => result,
        Err(e) => return FAILURES.with_borrow_mut(|f| f.push(format!("{what}: {e}"))),
    };
    assert_eq!(result.view().ty(), *out, "{what}");
    let mut accepted = vec![reference::evaluate(op, operands, out).unwrap()];
    if op.elementwise().is_some_and(compare::flushes) && !out.dtype.is_integer() {
        accepted.push(flushed(op, operands, out));
    }
    let got = download(&result);
    if let Some((i, wrong)) = mismatch(&got, &accepted, bound) {
        let want: Vec<_> = accepted.iter().map(|a| a.values[i]).collect();
        let same: Vec<_> = operands.iter().filter(|a| a.ty.shape == out.shape).map(|a| a.values[i]).collect();
        FAILURES.with_borrow_mut(|f| {
            f.push(format!(
                "{what}: {:?}, not {want:?}, at {i} of {same:?}; {wrong} wrong, seed {}",
                got.values[i],
                seed()
            ));
        });
    }
}

/// What a device gives that takes denormals as zeros.
fn flushed(op: &Op, operands: &[Array], out: &Type) -> Array {
    let flush = |a: &Array| Array {
        ty: a.ty.clone(),
        values: a.values.iter().map(|&v: &Value| compare::flush(v, a.ty.dtype)).collect(),
    };
    let operands: Vec<Array> = operands.iter().map(flush).collect();
    flush(&reference::evaluate(op, &operands, out).unwrap())
}
