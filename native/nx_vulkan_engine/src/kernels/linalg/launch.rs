//! Launches of matrix kernels.

use std::sync::Arc;

use smallvec::SmallVec;

use super::LinalgSpec;
use crate::kernels::{Arguments, Compile, Kernel, Place, launch};
use crate::{CType, DType, Engine, Result, Tensor, View};

/// The kernel `template` that computes in `compute`, with operands of these types.
pub fn kernel(
    engine: &Engine,
    template: &'static str,
    compute: CType,
    operands: &[DType],
    compile: Compile,
) -> Result<Arc<Kernel>> {
    specialized(engine, template, &[], compute, operands, compile)
}

/// The same of a template that is specialized with `constants`: those of the ids 1 and following.
pub fn specialized(
    engine: &Engine,
    template: &'static str,
    constants: &[u32],
    compute: CType,
    operands: &[DType],
    compile: Compile,
) -> Result<Arc<Kernel>> {
    let (operands, constants) = (SmallVec::from_slice(operands), SmallVec::from_slice(constants));
    engine.kernel(&LinalgSpec { template, compute, operands, constants }, compile)
}

/// The type in which blocks are computed whose results are `dtype`: numbers of 32 bits in f64, as `Nx.BinaryBackend`
/// does.
pub fn wide(dtype: DType) -> CType {
    match dtype.ctype() {
        CType::F32 => CType::F64,
        CType::C64 => CType::C128,
        other => other,
    }
}

/// The strides of `[matrices, rows, columns]` as numbers of a launch.
pub fn strides(matrices: &Tensor) -> [u32; 3] {
    let view = &matrices.view;
    std::array::from_fn(|axis| if view.shape[axis] > 1 { view.strides[axis] as u32 } else { 0 })
}

/// Records one launch. Views tell what it reaches. Operands at and after `first_output` are written. Kernels
/// compute positions from the first element on, with strides that `numbers` tell them, and none may be negative.
pub fn run(
    engine: &Engine,
    kernel: &Arc<Kernel>,
    operands: &[&Tensor],
    first_output: usize,
    numbers: &[u32],
    groups: u64,
) -> Result<()> {
    let views: SmallVec<[&View; 6]> = operands.iter().map(|tensor| &*tensor.view).collect();
    let kernel = kernel.reaching(engine, engine.reach().is_far(&views)?)?;
    let places: SmallVec<[Place<'_>; 6]> = operands
        .iter()
        .map(|t| Place { buffer: &t.buffer, address: t.address(), strides: &[], element_bytes: 0 })
        .collect();
    let arguments = Arguments { count: 0, sizes: &[], places: &places, extra: numbers };
    launch(engine, &kernel, &arguments, first_output, groups)
}
