//! Cholesky factors.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::{Update, blocks, has_registers, linalg, part, square, swapped, transposed, work_copy};
use crate::eager::call::Call;
use crate::eager::constant::constant;
use crate::kernels::linalg::LinalgSpec;
use crate::kernels::map::{Operand, Shapes, map};
use crate::program::attribute::Scalar;
use crate::program::linalg::EPSILON;
use crate::program::{Binary, Elementwise, Unary};
use crate::tuning::DeviceModel;
use crate::{CType, DType, Result, Tensor, Type, View};

/// Rows below a diagonal block that one workgroup of cholesky_panel takes; fixed in the kernel.
fn panel_rows(compute: CType) -> u64 {
    128 - LinalgSpec::block(compute)
}

/// Workgroups of a matrix that take the rows below a diagonal block in shared memory.
pub(crate) fn tiles(model: &DeviceModel, rest: u64, batches: u64, compute: CType) -> u64 {
    rest.div_ceil(LinalgSpec::columns(compute)).min(model.fill.cholesky_groups / batches).max(1)
}

pub fn cholesky(call: &Call<'_>) -> Result<Tensor> {
    let a = call.operand(0)?;
    let (n, batches) = square(call, a)?;
    let dtype = call.out.dtype.ctype().dtype();
    // A matrix of one block has the roundings of Nx.
    let in_registers = n > LinalgSpec::block(dtype.ctype()) && has_registers(call.engine.caps());
    let compute = if in_registers { dtype.ctype() } else { linalg::wide(dtype) };
    let template = if in_registers { "cholesky_panel" } else { "cholesky_block" };
    let block = linalg::kernel(call.engine, template, compute, &[dtype, dtype], call.compile)?;
    let update = if n > LinalgSpec::block(compute) {
        Some(Update::kernel(call.engine, dtype, dtype, dtype, call.compile)?)
    } else {
        None
    };
    // Transposed, the rows below a block are neighbours in memory.
    let work = work_copy(call, a, swapped(&a.view)?, dtype)?;
    let factor = Tensor::uninitialized(call.engine, &work.view.ty())?;
    for (first, size) in blocks(n, compute) {
        let (rows, rest, next) = (n - first, n - first - size, first + size);
        let tiles = if in_registers {
            rest.div_ceil(panel_rows(compute)).max(1)
        } else {
            tiles(call.engine.model(), rest, batches, compute)
        };
        let numbers = [size, rows, n, batches, tiles].map(|x| x as u32);
        let [from, to] = [part(&work, first, first, [size, rows])?, part(&factor, first, first, [size, rows])?];
        linalg::run(call.engine, &block, &[&from, &to], 1, &numbers, tiles * batches)?;
        let (Some(update), 1..) = (&update, rest) else { continue };
        let below = part(&factor, first, next, [size, rest])?;
        Update {
            a: &transposed(&below)?,
            b: &below,
            c: &part(&work, next, next, [rest, rest])?,
            conjugate_a: true,
            upper: true,
        }
        .run(call.engine, update)?;
    }
    clean(call, &factor)
}

/// The factor with zeros above the diagonal, and in place of what is almost zero.
fn clean(call: &Call<'_>, factor: &Tensor) -> Result<Tensor> {
    let dtype = factor.view.dtype;
    let real = match dtype.ctype() {
        CType::C64 => DType::F32,
        CType::C128 => DType::F64,
        _ => dtype,
    };
    let epsilon = constant(call.engine, Scalar::Float(EPSILON), &Type::new(real, &[]))?;
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let sizes = &factor.view.shape;
    let output = View::contiguous(call.out.dtype, sizes);
    let everywhere = epsilon.view.broadcast_trailing(sizes)?;
    let inputs = [
        Operand::new(&factor.buffer, &factor.view, Element::Typed(dtype)),
        Operand::new(&epsilon.buffer, &everywhere, Element::Typed(real)),
    ];
    let step = |op, args: &[Ref], out| Step { op, args: SmallVec::from_slice(args), out };
    let binary = Elementwise::Binary;
    let (row, column) = (Ref::Coordinate(2), Ref::Coordinate(1));
    let steps = smallvec![
        step(Elementwise::Unary(Unary::Abs), &[Ref::Input(0)], real),
        step(binary(Binary::LessEqual), &[Ref::Result(0), Ref::Input(1)], DType::U8),
        step(binary(Binary::Less), &[row, column], DType::U8),
        step(binary(Binary::LogicalOr), &[Ref::Result(1), Ref::Result(2)], DType::U8),
        step(binary(Binary::Less), &[row, row], DType::U8),
        step(Elementwise::Select, &[Ref::Result(3), Ref::Result(4), Ref::Input(0)], dtype),
        step(Elementwise::AsType, &[Ref::Result(5)], call.out.dtype),
    ];
    let outputs = [(Ref::Result(6), Operand::new(&result.buffer, &output, Element::Typed(call.out.dtype)))];
    map(call.engine, sizes, &inputs, steps, &outputs, Shapes::Any, call.compile)?;
    call.result(transposed(&result)?)
}
