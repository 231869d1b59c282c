//! Optimized programs beside the programs that they were made from: the same bits on the device and in the reference,
//! in fewer kernels.
//!
//! `NX_VULKAN_TEST_SEED` repeats a run, `NX_VULKAN_PROGRAMS` says how many random programs each test takes,
//! `NX_VULKAN_PROGRAM` picks one of them.

mod attention;
mod attention_few;
mod attention_gradient;
mod bits;
mod deferred;
mod graphs;
mod halves;
mod indices;
mod known;
mod long;
mod narrow;
mod numbers;
mod one_op;
mod placements;
mod precisions;
mod products;
mod random;
mod recomputed;
mod statistics;
mod windows;
mod workgroups;

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::program::Program;
use nx_vulkan_engine::program::passes::Target;
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::tuning::target;
use nx_vulkan_engine::{DeviceKind, Engine, Tensor, Value, eager};

use crate::common;

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

/// The device at hand, or a GPU for tests that need none.
fn gpu() -> Target {
    Target { workgroups: false, ..target::of(DeviceKind::Discrete, 1024, false) }
}

fn run(program: &Program, inputs: &[Array]) -> Vec<Array> {
    download(&eager::run_program(engine(), program, &upload(inputs)).unwrap())
}

fn upload(arrays: &[Array]) -> Vec<Tensor> {
    arrays.iter().map(|a| Tensor::from_nx_bytes(engine(), &a.ty, &a.to_nx_bytes()).unwrap()).collect()
}

fn download(tensors: &[Tensor]) -> Vec<Array> {
    let read = |t: &Tensor| Array::from_nx_bytes(&t.view().ty(), &t.to_nx_bytes(engine(), None).unwrap()).unwrap();
    tensors.iter().map(read).collect()
}

/// The first element that differs, all NaN being one.
fn difference(a: &Array, b: &Array) -> Option<(usize, Value, Value)> {
    assert_eq!(a.ty, b.ty);
    let same = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let equal = |x: &Value, y: &Value| match (*x, *y) {
        (Value::Int(x), Value::Int(y)) => x == y,
        (x, y) => same(x.real(), y.real()) && same(x.imag(), y.imag()),
    };
    let at = a.values.iter().zip(&b.values).position(|(x, y)| !equal(x, y))?;
    Some((at, a.values[at], b.values[at]))
}
