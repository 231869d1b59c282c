//! The results of ops that factorize matrices.

use super::Op;
use crate::shape::Dims;
use crate::{DType, Type};

/// The types of what `op` gives for matrices of type `a`, or `None` where it is no factorization or `a` no matrix.
pub fn results(op: &Op, a: &Type) -> Option<Vec<Type>> {
    let lead = a.shape.len().checked_sub(2)?;
    let (batch, rows, columns) = (&a.shape[..lead], a.shape[lead], a.shape[lead + 1]);
    if rows == 0 || columns == 0 {
        return None;
    }
    let dtype = if a.dtype.is_integer() { DType::F32 } else { a.dtype };
    let of = |sizes: &[u64]| {
        let shape: Dims = batch.iter().chain(sizes).copied().collect();
        Type { dtype, shape }
    };
    match op {
        Op::Qr { complete } => {
            let kept = if *complete { rows } else { rows.min(columns) };
            Some(vec![of(&[rows, kept]), of(&[kept, columns])])
        }
        Op::Eigh => (rows == columns).then(|| vec![of(&[rows]), of(&[rows, rows])]),
        Op::Svd { full } => {
            let shorter = rows.min(columns);
            let (left, right) = if *full { (rows, columns) } else { (shorter, shorter) };
            (!dtype.is_complex()).then(|| vec![of(&[rows, left]), of(&[shorter]), of(&[right, columns])])
        }
        _ => None,
    }
}
