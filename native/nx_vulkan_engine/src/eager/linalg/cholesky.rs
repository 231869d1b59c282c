//! Cholesky factors.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::{Update, blocks, from, linalg, square, transposed, work_copy};
use crate::eager::call::Call;
use crate::eager::constant::constant;
use crate::kernels::linalg::LinalgSpec;
use crate::kernels::map::{Operand, Shapes, map};
use crate::program::attribute::Scalar;
use crate::program::linalg::EPSILON;
use crate::program::{Binary, Elementwise, Unary};
use crate::tuning::DeviceModel;
use crate::{CType, DType, Result, Tensor, Type, View};

/// Workgroups of a matrix that take the rows below a diagonal block.
pub(crate) fn tiles(model: &DeviceModel, rest: u64, batches: u64, compute: CType) -> u64 {
    rest.div_ceil(LinalgSpec::columns(compute)).min(model.fill.cholesky_groups / batches).max(1)
}

pub fn cholesky(call: &Call<'_>) -> Result<Tensor> {
    let a = call.operand(0)?;
    let (n, batches) = square(call, a)?;
    let dtype = call.out.dtype.ctype().dtype();
    let compute = linalg::wide(dtype);
    let block = linalg::kernel(call.engine, "cholesky_block", compute, &[dtype, dtype], call.compile)?;
    let update = if n > LinalgSpec::block(compute) {
        Some(Update::kernel(call.engine, dtype, dtype, dtype, call.compile)?)
    } else {
        None
    };
    // Transposed, the rows below a block are neighbours in memory.
    let work = work_copy(call, a, transposed(&a.view)?, dtype)?;
    let factor = Tensor::uninitialized(call.engine, &work.view.ty())?;
    for (first, size) in blocks(n, compute) {
        let rest = n - first - size;
        let tiles = tiles(call.engine.model(), rest, batches, compute);
        let numbers = [size, first, n, batches, tiles].map(|x| x as u32);
        linalg::run(call.engine, &block, &[&work, &factor], 1, &numbers, tiles * batches)?;
        let (Some(update), 1..) = (&update, rest) else { continue };
        let panel = from(&factor, first * n + first + size);
        let (matrix, row) = ((n * n) as u32, n as u32);
        Update {
            rows: rest,
            columns: rest,
            depth: size,
            batches,
            a: (&panel, [matrix, 1, row]),
            b: (&panel, [matrix, row, 1]),
            c: (&from(&work, (first + size) * (n + 1)), [matrix, row]),
            conjugate_a: true,
            upper: true,
        }
        .run(call.engine, update)?;
    }
    clean(call, &factor, n, batches)
}

/// The factor with zeros above the diagonal, and in place of what is almost zero.
fn clean(call: &Call<'_>, factor: &Tensor, n: u64, batches: u64) -> Result<Tensor> {
    let dtype = factor.view.dtype;
    let real = match dtype.ctype() {
        CType::C64 => DType::F32,
        CType::C128 => DType::F64,
        _ => dtype,
    };
    let epsilon = constant(call.engine, Scalar::Float(EPSILON), &Type::new(real, &[]))?;
    let result = Tensor::uninitialized(call.engine, &Type::new(call.out.dtype, &factor.view.shape))?;
    let sizes = [batches, n, n];
    let input = View::contiguous(dtype, &sizes);
    let output = View::contiguous(call.out.dtype, &sizes);
    let everywhere = epsilon.view.broadcast_trailing(&sizes)?;
    let inputs = [
        Operand::new(&factor.buffer, &input, Element::Typed(dtype)),
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
    map(call.engine, &sizes, &inputs, steps, &outputs, Shapes::Any, call.compile)?;
    let view = transposed(&result.view)?;
    call.result(result.with_view(view))
}
