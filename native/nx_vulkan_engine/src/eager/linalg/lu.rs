//! LU factors with partial pivoting, and what follows from them: solutions and determinants.

use nx_vulkan_device::device::Caps;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::triangular::{System, by_columns, finish};
use super::{Update, blocks, has_registers, linalg, matrices, near_rows, part, square, swapped, transposed, work_copy};
use crate::eager::call::{Call, Results};
use crate::eager::copies;
use crate::kernels::Compile;
use crate::kernels::linalg::LinalgSpec;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::reach_of;
use crate::kernels::reduce::{Reduce, Target, reduce};
use crate::program::{Binary, Elementwise, Reduction};
use crate::shape::{Dims, Strides};
use crate::{CType, DType, Engine, Result, Tensor, Type, View};

/// `A[rows, :] = L U`.
#[derive(Debug)]
struct Factors {
    /// L without its diagonal and U in one, transposed, as `[batches, n, n]`: element (r, c) of a matrix lies at
    /// `c * n + r`.
    both: Tensor,
    /// The row of A that became row r.
    rows: Tensor,
    /// Row exchanges per matrix.
    exchanges: Tensor,
}

/// The panel kernel for so many rows that are left of n, and what it is specialized with: of a few rows in the registers
/// of each of so many invocations where these hold them, else of about one for each invocation.
fn panel_template(caps: &Caps, compute: CType, n: u64, rows: u64) -> (&'static str, Option<u32>) {
    /// Rows that an invocation holds; fixed in the kernel.
    const ROWS: u64 = 4;
    const LEAST: u64 = 64;
    /// Shared memory that the largest of lu_panel takes.
    const LARGE_BYTES: u32 = 1 << 15;
    if n <= 64 {
        return ("lu_panel_32", None);
    }
    let most = if compute == CType::F32 { 1024 } else { 512 };
    let invocations = rows.div_ceil(ROWS).next_power_of_two().max(LEAST);
    if has_registers(caps) && invocations <= most.min(caps.max_invocations.into()) {
        return ("lu_registers", Some(invocations as u32));
    }
    let is_large = caps.max_invocations >= 1024 && caps.max_shared_memory_bytes >= LARGE_BYTES;
    (if is_large && has_registers(caps) { "lu_panel_1024" } else { "lu_panel_256" }, None)
}

fn factor(call: &Call<'_>, a: &Tensor, dtype: DType) -> Result<Factors> {
    let (n, batches) = square(call, a)?;
    let (engine, compute) = (call.engine, dtype.ctype());
    let int = DType::U32;
    let panel = |rows: u64| {
        let (template, invocations) = panel_template(engine.caps(), compute, n, rows);
        let constants = invocations.as_slice();
        let operands = [dtype, dtype, int, int, int, int];
        linalg::specialized(engine, template, constants, compute, &operands, call.compile)
    };
    let panels = blocks(n, compute).map(|(first, _)| panel(n - first)).collect::<Result<Vec<_>>>()?;
    let move_rows = linalg::kernel(engine, "lu_rows", compute, &[dtype, int, int, dtype, int], call.compile)?;
    let block = LinalgSpec::block(compute);
    let update = if n > block { Some(Update::kernel(engine, dtype, dtype, dtype, call.compile)?) } else { None };
    let both = work_copy(call, a, swapped(&a.view)?, dtype)?;
    let numbers_of = |count: u64| Tensor::uninitialized(engine, &Type::new(int, &[batches, count]));
    let pivot_rows = Tensor::uninitialized(engine, &Type::new(dtype, &[batches, block, block]))?;
    let (pivots, positions, at_position, rows) = (numbers_of(n)?, numbers_of(n)?, numbers_of(n)?, numbers_of(n)?);
    let exchanges = numbers_of(1)?;
    let tile = LinalgSpec::columns(compute);
    for ((first, size), panel) in blocks(n, compute).zip(&panels) {
        let numbers = [size, first, n, batches].map(|x| x as u32);
        let columns = part(&both, first, 0, [size, n])?;
        let operands = [&columns, &pivot_rows, &pivots, &positions, &at_position, &exchanges];
        linalg::run(engine, panel, &operands, 0, &numbers, batches)?;
        for (left, count) in near_rows(engine, &[&both], tile) {
            let columns = part(&both, left, 0, [count, n])?;
            let jobs = count.div_ceil(tile) + u64::from(left + count == n);
            let numbers = [size, first, n, batches, jobs, left, count].map(|x| x as u32);
            let operands = [&pivot_rows, &pivots, &at_position, &columns, &rows];
            linalg::run(engine, &move_rows, &operands, 3, &numbers, jobs * batches)?;
        }
        let (Some(update), rest @ 1..) = (&update, n - first - size) else { continue };
        let next = first + size;
        Update {
            a: &part(&both, next, first, [rest, size])?,
            b: &part(&both, first, next, [size, rest])?,
            c: &part(&both, next, next, [rest, rest])?,
            conjugate_a: false,
            upper: false,
        }
        .run(engine, update)?;
    }
    Ok(Factors { both, rows, exchanges })
}

impl Factors {
    /// The diagonal elements of U, as matrices of one column: where they lie, or in a copy if no launch reaches them
    /// there.
    fn diagonal(&self, engine: &Engine, compile: Compile) -> Result<Tensor> {
        let both = &self.both.view;
        let view = View {
            shape: Dims::from_slice(&[both.shape[0], both.shape[1], 1]),
            strides: Strides::from_slice(&[both.strides[0], both.strides[1] + 1, 1]),
            ..View::clone(both)
        };
        let is_reached = view.shape[0] > 1 || reach_of(&view) <= engine.reach().far();
        let diagonal = self.both.with_view(view);
        if is_reached { Ok(diagonal) } else { copies::copied(engine, &diagonal, compile) }
    }
}

/// P, L and U.
pub fn lu(call: &Call<'_>, outs: &[Type]) -> Result<Results> {
    let [p_type, l_type, u_type] = outs else {
        return Err(call.invalid(format!("has three results, got {}", outs.len())));
    };
    let a = call.operand(0)?;
    for out in outs {
        if out.shape != a.view.shape {
            return Err(call.invalid(format!("{:?} gives {:?}, not {:?}", a.view.shape, a.view.shape, out.shape)));
        }
    }
    let dtype = l_type.dtype.ctype().dtype();
    let factors = factor(call, a, dtype)?;
    let sizes = &factors.both.view.shape[..];
    let step = |op, args: &[Ref], out| Step { op, args: SmallVec::from_slice(args), out };
    let binary = Elementwise::Binary;
    let (first, second) = (Ref::Coordinate(1), Ref::Coordinate(2));

    // L and U are stored transposed: the row is the last axis.
    let (l, u) = (Tensor::uninitialized(call.engine, l_type)?, Tensor::uninitialized(call.engine, u_type)?);
    let steps = smallvec![
        step(binary(Binary::Greater), &[second, first], DType::U8),
        step(binary(Binary::Equal), &[second, first], DType::U8),
        step(binary(Binary::Less), &[first, first], DType::U8),
        step(Elementwise::Select, &[Ref::Result(0), Ref::Input(0), Ref::Result(1)], l_type.dtype),
        step(Elementwise::Select, &[Ref::Result(0), Ref::Result(2), Ref::Input(0)], u_type.dtype),
    ];
    let (l_view, u_view) = (View::contiguous(l_type.dtype, sizes), View::contiguous(u_type.dtype, sizes));
    let inputs = [Operand::new(&factors.both.buffer, &factors.both.view, Element::Typed(dtype))];
    let outputs = [
        (Ref::Result(3), Operand::new(&l.buffer, &l_view, Element::Typed(l_type.dtype))),
        (Ref::Result(4), Operand::new(&u.buffer, &u_view, Element::Typed(u_type.dtype))),
    ];
    map(call.engine, sizes, &inputs, steps, &outputs, Shapes::Any, call.compile)?;

    // P has a one where row i of A became row j.
    let p = Tensor::uninitialized(call.engine, p_type)?;
    let steps = smallvec![
        step(binary(Binary::Equal), &[first, Ref::Input(0)], DType::U8),
        step(Elementwise::AsType, &[Ref::Result(0)], p_type.dtype),
    ];
    let rows = View {
        shape: Dims::from_slice(sizes),
        strides: Strides::from_slice(&[sizes[1] as i64, 0, 1]),
        ..View::clone(&factors.rows.view)
    };
    let p_view = View::contiguous(p_type.dtype, sizes);
    let inputs = [Operand::new(&factors.rows.buffer, &rows, Element::Typed(DType::U32))];
    let outputs = [(Ref::Result(1), Operand::new(&p.buffer, &p_view, Element::Typed(p_type.dtype)))];
    map(call.engine, sizes, &inputs, steps, &outputs, Shapes::Any, call.compile)?;

    Ok(smallvec![p, transposed(&l)?, transposed(&u)?])
}

/// The solution of `A X = B`, and whether no pivot was zero.
pub fn solve(call: &Call<'_>, outs: &[Type]) -> Result<Results> {
    let [out, regular_type] = outs else {
        return Err(call.invalid(format!("has two results, got {}", outs.len())));
    };
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let (n, batches) = square(call, a)?;
    let mut view = View::clone(&b.view);
    if b.view.shape.len() + 1 == a.view.shape.len() {
        view.shape.push(1);
        view.strides.push(1);
    }
    match &view.shape[..] {
        [.., rows, columns] if *rows == n && rows * columns * batches == view.elements() => {}
        _ => return Err(call.invalid(format!("{:?} and {:?} are no system", a.view.shape, b.view.shape))),
    }
    let dtype = out.dtype.ctype().dtype();
    let right = b.with_view(view);
    let right_dtype = if right.view.dtype.is_integer() { dtype } else { right.view.dtype };
    let operands = [right_dtype, DType::U32, dtype];
    let gather = linalg::kernel(call.engine, "gather_rows", dtype.ctype(), &operands, call.compile)?;
    let factors = factor(call, a, dtype)?;
    let stored = transposed(&factors.both)?;
    let x = by_columns(call, &right, |right| {
        let is_reached = reach_of(&right.view) <= call.engine.reach().far();
        let right = if is_reached { right.clone() } else { copies::copied(call.engine, right, call.compile)? };
        let right = matrices(call, &right)?;
        let x = Tensor::uninitialized(call.engine, &Type::new(dtype, &right.view.shape))?;
        let mut numbers: SmallVec<[u32; 6]> = [n, right.view.shape[2], batches].iter().map(|&x| x as u32).collect();
        numbers.extend(linalg::strides(&right));
        let groups = x.view.elements().div_ceil(256);
        linalg::run(call.engine, &gather, &[&right, &factors.rows, &x], 2, &numbers, groups)?;
        for backward in [false, true] {
            let system = System { a: stored.clone(), unit: !backward, backward, conjugate: false };
            system.solve(call.engine, &x, call.compile)?;
        }
        Ok(x)
    })?;
    let x = x.with_view(View::contiguous(dtype, &out.shape));
    let regular = Tensor::uninitialized(call.engine, regular_type)?;
    let diagonal = factors.diagonal(call.engine, call.compile)?;
    let what = Reduce { reduction: Reduction::All, tie_high: false, axes: &[0, 1, 2], out: regular_type.dtype };
    let target = Target { buffer: &regular.buffer, offset_bytes: 0 };
    reduce(call.engine, &diagonal.buffer, &diagonal.view, what, target, call.compile)?;
    Ok(smallvec![finish(call, x)?, regular])
}

/// One determinant per matrix.
pub fn determinant(call: &Call<'_>) -> Result<Tensor> {
    let a = call.operand(0)?;
    let (n, batches) = square(call, a)?;
    if call.out.elements() != batches {
        return Err(call.invalid(format!("{batches} determinants for {:?}", call.out.shape)));
    }
    let dtype = call.out.dtype.ctype().dtype();
    let compute = linalg::wide(dtype);
    let result = Tensor::uninitialized(call.engine, &Type::new(dtype, &call.out.shape))?;
    let closed = n == 2 || n == 3;
    let kernel = linalg::kernel(call.engine, "determinant", compute, &[dtype, DType::U32, dtype], call.compile)?;
    let (elements, exchanges) = if closed {
        let a = work_copy(call, a, View::clone(&a.view), dtype)?;
        // Closed formulas read no exchanges.
        (a.clone(), a)
    } else {
        let factors = factor(call, a, dtype)?;
        (factors.diagonal(call.engine, call.compile)?, factors.exchanges)
    };
    let mut numbers: SmallVec<[u32; 6]> = smallvec![n as u32, batches as u32];
    numbers.extend(linalg::strides(&elements));
    numbers.push(u32::from(closed));
    let groups = if closed { batches.div_ceil(256) } else { batches };
    linalg::run(call.engine, &kernel, &[&elements, &exchanges, &result], 2, &numbers, groups)?;
    finish(call, result)
}
