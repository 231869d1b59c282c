//! The results of ops that factorize matrices.

use crate::shape::Dims;
use crate::{DType, Type};

/// Matrices that can be factorized: their batch axes, rows, columns, and the type of the factors.
fn matrices(a: &Type) -> Option<(&[u64], u64, u64, DType)> {
    let [batch @ .., rows, columns] = &a.shape[..] else { return None };
    let dtype = if a.dtype.is_integer() { DType::F32 } else { a.dtype };
    (*rows != 0 && *columns != 0).then_some((batch, *rows, *columns, dtype))
}

/// Factors of these sizes, one for each matrix of the batch.
fn factors(dtype: DType, batch: &[u64], sizes: &[&[u64]]) -> Vec<Type> {
    let shape = |sizes: &&[u64]| batch.iter().chain(*sizes).copied().collect::<Dims>();
    sizes.iter().map(|sizes| Type { dtype, shape: shape(sizes) }).collect()
}

/// The types of q and r of matrices of type `a`, or `None` where these are no matrices.
pub fn qr(a: &Type, complete: bool) -> Option<Vec<Type>> {
    let (batch, rows, columns, dtype) = matrices(a)?;
    let kept = if complete { rows } else { rows.min(columns) };
    Some(factors(dtype, batch, &[&[rows, kept], &[kept, columns]]))
}

/// The types of the eigenvalues and eigenvectors of square matrices of type `a`, or `None` where these are none.
pub fn eigh(a: &Type) -> Option<Vec<Type>> {
    let (batch, rows, columns, dtype) = matrices(a)?;
    (rows == columns).then(|| factors(dtype, batch, &[&[rows], &[rows, rows]]))
}

/// The types of u, s and v transposed of real matrices of type `a`, or `None` where these are none.
pub fn svd(a: &Type, full: bool) -> Option<Vec<Type>> {
    let (batch, rows, columns, dtype) = matrices(a)?;
    let shorter = rows.min(columns);
    let (left, right) = if full { (rows, columns) } else { (shorter, shorter) };
    (!dtype.is_complex()).then(|| factors(dtype, batch, &[&[rows, left], &[shorter], &[right, columns]]))
}
