//! Copies of tensors on the device.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use crate::kernels::Compile;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::transpose::transpose;
use crate::program::Elementwise;
use crate::{DType, Engine, Result, Tensor, View};

/// Copies `from` into the place `to`, which has the same shape. A different dtype is cast.
pub fn copy(engine: &Engine, from: &Tensor, to: &Tensor, compile: Compile) -> Result<()> {
    copy_seen(engine, (&from.buffer, &from.view), (&to.buffer, &to.view), compile)
}

/// Copies between views of buffers that have the same shape. A different dtype is cast.
pub(super) fn copy_seen(
    engine: &Engine,
    (from, from_view): (&Arc<Buffer>, &View),
    (to, to_view): (&Arc<Buffer>, &View),
    compile: Compile,
) -> Result<()> {
    let (shape, dtype) = (&to_view.shape, to_view.dtype);
    let same = from_view.dtype == dtype;
    let element = |dtype: DType| if same { Element::raw(dtype) } else { Element::Typed(dtype) };
    let input = Operand::new(from, from_view, element(from_view.dtype));
    let output = Operand::new(to, to_view, element(dtype));
    if same && transpose(engine, shape, &input, &output, compile)? {
        return Ok(());
    }
    let (steps, source): (SmallVec<[Step; 1]>, Ref) = if same {
        (smallvec![], Ref::Input(0))
    } else {
        let cast = Step { op: Elementwise::AsType, args: smallvec![Ref::Input(0)], out: dtype };
        (smallvec![cast], Ref::Result(0))
    };
    map(engine, shape, &[input], steps, &[(source, output)], Shapes::Any, compile)
}

/// The tensor itself if its elements lie in row-major order, else a copy in which they do.
pub fn contiguous(engine: &Engine, tensor: &Tensor, compile: Compile) -> Result<Tensor> {
    if tensor.view.is_contiguous() { Ok(tensor.clone()) } else { copied(engine, tensor, compile) }
}

/// A copy without gaps in memory of its own.
pub fn copied(engine: &Engine, tensor: &Tensor, compile: Compile) -> Result<Tensor> {
    let result = Tensor::uninitialized(engine, &tensor.view.ty())?;
    copy(engine, tensor, &result, compile)?;
    Ok(result)
}
