//! Elementwise, reduction, transposition and matrix product by a supplied shader. Nothing here waits.

use super::fit::Run;
use super::{Call, Failure, Outcome, Shader};
use crate::Buffer;
use std::sync::Arc;

/// Binary op codes: 0 add, 1 multiply, 2 subtract, 3 divide, 4 pow, 5 max, 6 min, 7 equal, 8 less, 9 greater.
pub const MAX_BINARY_OP: u32 = 9;
/// Unary op codes: 0 exp, 1 log, 2 sqrt, 3 abs, 4 negate, 5 sigmoid, 6 tanh, 7 relu, 8 ceil, 9 floor, 10 sign, 11
/// reciprocal, 12 square, 13 erf, 14 expm1.
pub const MAX_UNARY_OP: u32 = 14;
/// Reduction op codes: 0 sum, 1 max, 2 min, 3 product.
pub const MAX_REDUCE_OP: u32 = 3;

/// Index arithmetic of the shaders is 32-bit.
const MAX_ELEMENTS: u64 = 1 << 32;
/// Launches of one elementwise call begin at multiples of this: 256 bytes of the smallest element, the largest
/// alignment of binding offsets that Vulkan allows a device to ask for.
const CHUNK_ELEMENTS: u64 = 64;
/// The shader whose invocations compute two rows of a matrix product each; nothing in a module tells so, hence by the
/// file's name.
const TWO_ROWS: &str = "matmul_tiled16x2";

/// `out[i] = a[i] op b[i]` for `i < n`. `out` may be `a` or `b`.
///
/// # Errors
/// `BadInput` for an op code that is none; `SizeMismatch` unless all buffers have one size, of n elements or more.
pub fn binary(call: &Call<'_>, out: &Arc<Buffer>, a: &Arc<Buffer>, b: &Arc<Buffer>, n: u64, op: i64) -> Outcome {
    elementwise(call, &[a, b, out], n, op_code(op, MAX_BINARY_OP)?)
}

/// `out[i] = op(a[i])` for `i < n`. `out` may be `a`.
///
/// # Errors
/// As [`binary`].
pub fn unary(call: &Call<'_>, out: &Arc<Buffer>, a: &Arc<Buffer>, n: u64, op: i64) -> Outcome {
    elementwise(call, &[a, out], n, op_code(op, MAX_UNARY_OP)?)
}

/// Reduces the middle axis of `a`, of shape `[outer, reduce, inner]`, into `out`, of shape `[outer, inner]`.
///
/// # Errors
/// `BadInput` for an op code that is none or when `out` is `a`; `SizeMismatch` when a buffer is too small.
pub fn reduce_axis(
    call: &Call<'_>,
    out: &Arc<Buffer>,
    a: &Arc<Buffer>,
    [outer, reduce, inner]: [u64; 3],
    op: i64,
) -> Outcome {
    let op = op_code(op, MAX_REDUCE_OP)?;
    distinct(out, &[a])?;
    let operands = [(a, elements(&[outer, reduce, inner])?), (out, elements(&[outer, inner])?)];
    structured(call, &operands, &[outer, reduce, inner, u64::from(op)], Some(op), |local| {
        [(outer * inner).div_ceil(local[0]), 1, 1]
    })
}

/// `out[j, i] = a[i, j]` for `a` of shape `[m, n]`.
///
/// # Errors
/// `BadInput` when `out` is `a`; `SizeMismatch` when a buffer is too small.
pub fn transpose_2d(call: &Call<'_>, out: &Arc<Buffer>, a: &Arc<Buffer>, [m, n]: [u64; 2]) -> Outcome {
    distinct(out, &[a])?;
    let count = elements(&[m, n])?;
    structured(call, &[(a, count), (out, count)], &[m, n], None, |local| {
        [n.div_ceil(local[0]), m.div_ceil(local[1]), 1]
    })
}

/// `out = a b` for `a` of shape `[m, k]` and `b` of shape `[k, n]`.
///
/// # Errors
/// `BadInput` when `out` is `a` or `b`; `SizeMismatch` when a buffer is too small.
pub fn matmul(call: &Call<'_>, out: &Arc<Buffer>, a: &Arc<Buffer>, b: &Arc<Buffer>, [m, n, k]: [u64; 3]) -> Outcome {
    distinct(out, &[a, b])?;
    let operands = [(a, elements(&[m, k])?), (b, elements(&[k, n])?), (out, elements(&[m, n])?)];
    let rows = match call.path.file_stem().is_some_and(|stem| stem == TWO_ROWS) {
        true => 2,
        false => 1,
    };
    structured(call, &operands, &[m, n, k], None, |local| [n.div_ceil(local[0]), m.div_ceil(local[1] * rows), 1])
}

fn op_code(op: i64, max: u32) -> Outcome<u32> {
    u32::try_from(op).ok().filter(|op| *op <= max).ok_or(Failure::BadInput)
}

fn distinct(out: &Arc<Buffer>, inputs: &[&Arc<Buffer>]) -> Outcome {
    match inputs.iter().any(|input| Arc::ptr_eq(input, out)) {
        true => Err(Failure::BadInput),
        false => Ok(()),
    }
}

/// How many elements a shape has. No buffer holds as many as don't fit.
fn elements(shape: &[u64]) -> Outcome<u64> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or(Failure::SizeMismatch)
}

fn holds(buffer: &Buffer, count: u64, element_bytes: u64) -> Outcome {
    match count.checked_mul(element_bytes).is_some_and(|bytes| bytes <= buffer.size_bytes()) {
        true => Ok(()),
        false => Err(Failure::SizeMismatch),
    }
}

fn local_size(shader: &Shader) -> [u64; 3] {
    shader.reflection().local_size.map(u64::from)
}

/// 8 for a shader that computes in f64 on elements of that size, else 4.
fn element_bytes(shader: &Shader) -> u64 {
    let reflection = shader.reflection();
    let in_8_bytes = reflection.bindings.iter().any(|b| b.stride_bytes.is_some_and(|stride| stride.is_multiple_of(8)));
    if reflection.declares_float64() && in_8_bytes { 8 } else { 4 }
}

/// Inputs first, then the output. What one launch can't take, because of the device's limit of workgroups or of a
/// binding's range, is several.
fn elementwise(call: &Call<'_>, buffers: &[&Arc<Buffer>], n: u64, op: u32) -> Outcome {
    let [first, others @ ..] = buffers else {
        return Err(Failure::BadInput);
    };
    if others.iter().any(|b| b.size_bytes() != first.size_bytes()) {
        return Err(Failure::SizeMismatch);
    }
    holds(first, n, 4)?;
    if n == 0 {
        return Ok(());
    }
    let shader = call.shader()?;
    let element_bytes = element_bytes(&shader);
    holds(first, n, element_bytes)?;
    let local = local_size(&shader)[0];
    let caps = call.engine.caps();
    let range = caps.max_storage_buffer_range_bytes;
    let at_most = (u64::from(caps.max_workgroup_count[0]) * local).min(range / element_bytes).min(MAX_ELEMENTS - 1);
    let chunk = (at_most / CHUNK_ELEMENTS * CHUNK_ELEMENTS).max(CHUNK_ELEMENTS);
    let mut start = 0;
    while start < n {
        let count = chunk.min(n - start);
        let offset = start * element_bytes;
        let bindings: Vec<_> = buffers.iter().map(|&b| (b, offset, range.min(b.size_bytes() - offset))).collect();
        let run = Run {
            groups: [count.div_ceil(local), 1, 1],
            bindings: &bindings,
            inputs: others.len(),
            push: &(count as u32).to_le_bytes(),
            op: Some(op),
        };
        call.run(&shader, &run)?;
        start += count;
    }
    Ok(())
}

/// Buffers with the elements they hold, inputs first, the output last.
fn structured(
    call: &Call<'_>,
    operands: &[(&Arc<Buffer>, u64)],
    push: &[u64],
    op: Option<u32>,
    groups: impl Fn([u64; 3]) -> [u64; 3],
) -> Outcome {
    let check = |element_bytes| operands.iter().try_for_each(|&(b, count)| holds(b, count, element_bytes));
    check(4)?;
    if operands.last().is_none_or(|&(_, count)| count == 0) {
        return Ok(());
    }
    let shader = call.shader()?;
    let element_bytes = element_bytes(&shader);
    check(element_bytes)?;
    if operands.iter().any(|&(_, count)| count >= MAX_ELEMENTS) {
        return Err(Failure::Dispatch(format!("the shaders count fewer than {MAX_ELEMENTS} elements")));
    }
    let mut bytes = Vec::new();
    for &word in push {
        bytes.extend_from_slice(&u32::try_from(word).map_err(|_| Failure::BadInput)?.to_le_bytes());
    }
    let range = call.engine.caps().max_storage_buffer_range_bytes;
    let bindings: Vec<_> =
        operands.iter().map(|&(b, count)| (b, 0, b.size_bytes().min(range.max(count * element_bytes)))).collect();
    let run =
        Run { groups: groups(local_size(&shader)), bindings: &bindings, inputs: operands.len() - 1, push: &bytes, op };
    call.run(&shader, &run)
}
