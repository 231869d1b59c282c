//! Factorizations of small matrices, column by column, in pairs of f64.

use super::Array;
use super::complex::{self, Pair};
use crate::program::{Op, factorization};
use crate::value::Value;
use crate::{DType, Type};

const ZERO: Pair = (0.0, 0.0);
const ONE: Pair = (1.0, 0.0);

/// A matrix as its rows.
type Matrix = Vec<Vec<Pair>>;

/// What `op` gives for every matrix of `a`, if it is a factorization.
pub fn factorize(op: &Op, a: &Array, outs: &[Type]) -> Option<Vec<Array>> {
    factorization::results(op, &a.ty)?;
    let lead = a.ty.shape.len().checked_sub(2)?;
    let (rows, columns) = (a.ty.shape[lead] as usize, a.ty.shape[lead + 1] as usize);
    let mut values: Vec<Vec<Value>> = vec![vec![]; outs.len()];
    for elements in a.values.chunks(rows * columns) {
        let matrix: Matrix = elements.chunks(columns).map(|row| row.iter().map(|&v| pair(v)).collect()).collect();
        let results = match op {
            Op::Qr { complete } => {
                let (q, r) = qr(&matrix, a.ty.dtype.is_complex());
                let kept = if *complete { rows } else { rows.min(columns) };
                vec![left(&q, kept), r.into_iter().take(kept).collect()]
            }
            _ => return None,
        };
        for ((list, result), out) in values.iter_mut().zip(results).zip(outs) {
            list.extend(result.into_iter().flatten().map(|z| value(z, out.dtype)));
        }
    }
    Some(outs.iter().zip(values).map(|(out, values)| Array::new(out, values)).collect())
}

fn pair(value: Value) -> Pair {
    match value {
        Value::Int(i) => (i as f64, 0.0),
        Value::Float(x) => (x, 0.0),
        Value::Complex(re, im) => (re, im),
    }
}

fn value(z: Pair, dtype: DType) -> Value {
    if dtype.is_complex() { Value::Complex(z.0, z.1) } else { Value::Float(z.0) }
}

fn left(a: &Matrix, columns: usize) -> Matrix {
    a.iter().map(|row| row.iter().take(columns).copied().collect()).collect()
}

fn conjugate(z: Pair) -> Pair {
    (z.0, -z.1)
}

fn square(z: Pair) -> f64 {
    z.0 * z.0 + z.1 * z.1
}

/// All of Q, and R as high as `a`. A reflection takes a column to its norm; to minus its norm with the phase of the diagonal
/// element where numbers are complex. Columns that are clear below the diagonal stay.
fn qr(a: &Matrix, is_complex: bool) -> (Matrix, Matrix) {
    let (rows, columns) = (a.len(), a[0].len());
    let mut r = a.clone();
    let mut q: Matrix = (0..rows).map(|i| (0..rows).map(|j| if i == j { ONE } else { ZERO }).collect()).collect();
    for j in 0..rows.min(columns) {
        let below: f64 = (j + 1..rows).map(|i| square(r[i][j])).sum();
        let pivot = r[j][j];
        let size = square(pivot).sqrt();
        let norm = (size * size + below).sqrt();
        let single = rows - j == 1 && rows == columns;
        if norm == 0.0 || (is_complex && single) || (!is_complex && below == 0.0) {
            continue;
        }
        let phase = if size == 0.0 { ONE } else { complex::scale(pivot, 1.0 / size) };
        let keeps_sign = if is_complex { 2.0 * norm * (norm + size) < 1e-10 } else { below < 1e-10 };
        let beta = match (is_complex, keeps_sign) {
            (_, true) => complex::scale(phase, norm),
            (true, false) => complex::scale(phase, -norm),
            (false, false) => (norm, 0.0),
        };
        let mut v = vec![ZERO; rows];
        for (i, element) in v.iter_mut().enumerate().skip(j) {
            *element = if i == j { complex::subtract(pivot, beta) } else { r[i][j] };
        }
        let total: f64 = v.iter().map(|&z| square(z)).sum();
        if total == 0.0 {
            continue;
        }
        // v^H R first, then every row of R.
        let mut dots = vec![ZERO; columns];
        for (row, &x) in r.iter().zip(&v) {
            for (dot, &y) in dots.iter_mut().zip(row) {
                *dot = complex::add(*dot, complex::multiply(conjugate(x), y));
            }
        }
        for (row, &x) in r.iter_mut().zip(&v) {
            for (y, &dot) in row.iter_mut().zip(&dots) {
                *y = complex::subtract(*y, complex::multiply(x, complex::scale(dot, 2.0 / total)));
            }
        }
        for row in &mut q {
            let dot = (j..rows).fold(ZERO, |s, i| complex::add(s, complex::multiply(row[i], v[i])));
            let factor = complex::scale(dot, 2.0 / total);
            for i in j..rows {
                row[i] = complex::subtract(row[i], complex::multiply(factor, conjugate(v[i])));
            }
        }
        r[j][j] = beta;
        for row in r.iter_mut().skip(j + 1) {
            row[j] = ZERO;
        }
    }
    (q, r)
}
