//! One op of a random program on the device beside the reference.

use nx_vulkan_engine::program::{Op, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Value};

use crate::compare::{self, Bound, bound, epsilon};

/// What is wrong with a result, beside what the reference makes of the same operands.
pub fn mismatch(op: &Op, operands: &[Array], got: &Array) -> Option<String> {
    let want = reference::evaluate(op, operands, &got.ty).unwrap();
    let dtypes: Vec<DType> = operands.iter().map(|a| a.ty.dtype).collect();
    let (bound, accepted) = match (op, op.elementwise()) {
        (Op::Reduce { reduction: Reduction::Sum, .. }, _) if !got.ty.dtype.is_integer() => {
            return sum(&operands[0], got, &want);
        }
        (_, Some(kind)) if compare::flushes(kind) && !got.ty.dtype.is_integer() => {
            let flushed: Vec<Array> = operands.iter().map(flush).collect();
            let other = flush(&reference::evaluate(op, &flushed, &got.ty).unwrap());
            (bound(kind, &dtypes, got.ty.dtype), vec![want, other])
        }
        (_, Some(kind)) => (bound(kind, &dtypes, got.ty.dtype), vec![want]),
        _ => (Bound::Exact, vec![want]),
    };
    let (at, count) = compare::mismatch(got, &accepted, bound)?;
    let wanted: Vec<Value> = accepted.iter().map(|a| a.values[at]).collect();
    let of: Vec<Value> = operands.iter().filter(|a| a.ty.shape == got.ty.shape).map(|a| a.values[at]).collect();
    Some(format!("{:?}, not {wanted:?}, at {at} of {of:?}, {count} wrong", got.values[at]))
}

/// The array with denormals as zeros.
pub fn flush(a: &Array) -> Array {
    let values = a.values.iter().map(|&v| compare::flush(v, a.ty.dtype)).collect();
    Array { ty: a.ty.clone(), values }
}

/// Sums round at each of at most as many terms as there are elements, and by less than the largest of them.
fn sum(operand: &Array, got: &Array, want: &Array) -> Option<String> {
    let dtype = got.ty.dtype;
    let finite = operand.values.iter().map(|v| v.real().abs()).filter(|x| x.is_finite());
    let (terms, largest) = finite.fold((0.0, 0f64), |(n, largest), x| (n + 1.0, largest.max(x)));
    let size = terms * largest;
    // Where a sum may leave the numbers of the type, its order decides.
    let most = if dtype.ctype().dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
    let limit = if dtype == DType::F16 { 65504.0 } else { most };
    if size.is_infinite() || size >= limit / 2.0 {
        return None;
    }
    let step = epsilon(dtype.ctype().dtype());
    let absolute = terms * step * size + 2f64.powi(-126);
    let bound = Bound::Norm { relative: 2.0 * epsilon(dtype), absolute };
    let (at, count) = compare::mismatch(got, std::slice::from_ref(want), bound)?;
    Some(format!("{:?}, not {:?}, at {at}, {count} wrong of sums of {size}", got.values[at], want.values[at]))
}
