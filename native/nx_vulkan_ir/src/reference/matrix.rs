//! Factorizations of small matrices, column by column, in pairs of f64.

use super::array::{Array, Given, Values};
use super::complex::{self, Pair};
use super::linalg;
use crate::program::Linalg;
use crate::program::ops::Visitor;
use crate::program::ops::matrix::{Eigh, Qr, Svd};
use crate::value::Value;
use crate::{DType, Type};

const ZERO: Pair = (0.0, 0.0);
const ONE: Pair = (1.0, 0.0);

/// A matrix as its rows.
type Matrix = Vec<Vec<Pair>>;

impl Visitor<Linalg, Values> for Given<'_> {
    fn visit(self, op: &Linalg) -> Values {
        linalg::evaluate(*op, self.operands, self.outs)
    }
}

impl Visitor<Qr, Values> for Given<'_> {
    fn visit(self, op: &Qr) -> Values {
        let a = &self.operands[0];
        Ok(factors(a, self.outs, |matrix| {
            let (q, r) = qr(matrix, a.ty.dtype.is_complex());
            let kept = if op.complete { q.len() } else { q.len().min(matrix[0].len()) };
            vec![left(&q, kept), r.into_iter().take(kept).collect()]
        }))
    }
}

impl Visitor<Eigh, Values> for Given<'_> {
    fn visit(self, _: &Eigh) -> Values {
        Ok(factors(&self.operands[0], self.outs, |matrix| {
            let (values, vectors) = eigh(matrix);
            vec![vec![values], vectors]
        }))
    }
}

impl Visitor<Svd, Values> for Given<'_> {
    fn visit(self, op: &Svd) -> Values {
        Ok(factors(&self.operands[0], self.outs, |matrix| {
            let (u, values, vt) = svd(matrix, op.full);
            vec![u, vec![values], vt]
        }))
    }
}

/// What a factorization gives for every matrix of `a`.
fn factors(a: &Array, outs: &[Type], factorize: impl Fn(&Matrix) -> Vec<Matrix>) -> Vec<Array> {
    let lead = a.ty.shape.len() - 2;
    let (rows, columns) = (a.ty.shape[lead] as usize, a.ty.shape[lead + 1] as usize);
    let mut values: Vec<Vec<Value>> = vec![vec![]; outs.len()];
    for elements in a.values.chunks(rows * columns) {
        let matrix: Matrix = elements.chunks(columns).map(|row| row.iter().map(|&v| pair(v)).collect()).collect();
        let results = factorize(&matrix);
        for ((list, result), out) in values.iter_mut().zip(results).zip(outs) {
            list.extend(result.into_iter().flatten().map(|z| value(z, out.dtype)));
        }
    }
    outs.iter().zip(values).map(|(out, values)| Array::new(out, values)).collect()
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

fn transpose(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
}

fn identity(n: usize) -> Matrix {
    (0..n).map(|i| (0..n).map(|j| if i == j { ONE } else { ZERO }).collect()).collect()
}

fn conjugate(z: Pair) -> Pair {
    (z.0, -z.1)
}

fn square(z: Pair) -> f64 {
    z.0 * z.0 + z.1 * z.1
}

/// All of Q, and R as high as `a`. A reflection takes a column to its norm; to minus its norm with the phase of the
/// diagonal element where numbers are complex. Columns that are clear below the diagonal stay.
fn qr(a: &Matrix, is_complex: bool) -> (Matrix, Matrix) {
    let (rows, columns) = (a.len(), a[0].len());
    let mut r = a.clone();
    let mut q = identity(rows);
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

/// Cosine and sine of the rotation that clears the element `off` between `upper` and `lower`, or `None` where that is
/// nothing.
fn rotation(upper: f64, off: Pair, lower: f64) -> Option<(f64, Pair)> {
    let size = square(off).sqrt();
    if size <= f64::EPSILON * 0.25 * (upper.abs() * lower.abs()).sqrt() || size < f64::MIN_POSITIVE {
        return None;
    }
    let tau = (lower - upper) / (2.0 * size);
    let t = 1.0 / (tau + (1.0 + tau * tau).sqrt().copysign(if tau >= 0.0 { 1.0 } else { -1.0 }));
    let c = 1.0 / (1.0 + t * t).sqrt();
    Some((c, complex::scale(conjugate(off), t * c / size)))
}

/// `upper * c - lower * conj(s)` and `upper * s + lower * c` in place of two rows.
fn rotate(rows: &mut Matrix, upper: usize, lower: usize, c: f64, s: Pair) {
    for j in 0..rows[upper].len() {
        let (x, y) = (rows[upper][j], rows[lower][j]);
        rows[upper][j] = complex::subtract(complex::scale(x, c), complex::multiply(y, conjugate(s)));
        rows[lower][j] = complex::add(complex::multiply(x, s), complex::scale(y, c));
    }
}

/// Sweeps that any matrix of the tests needs, and more.
const SWEEPS: usize = 60;

/// Eigenvalues, largest first, and eigenvectors as columns, of what lies on and above the diagonal.
fn eigh(a: &Matrix) -> (Vec<Pair>, Matrix) {
    let n = a.len();
    let element = |i: usize, j: usize| match i.cmp(&j) {
        std::cmp::Ordering::Less => a[i][j],
        std::cmp::Ordering::Equal => (a[i][i].0, 0.0),
        std::cmp::Ordering::Greater => conjugate(a[j][i]),
    };
    let mut d: Matrix = (0..n).map(|i| (0..n).map(|j| element(i, j)).collect()).collect();
    let mut v = identity(n);
    for _ in 0..SWEEPS {
        for p in 0..n {
            for q in p + 1..n {
                let Some((c, s)) = rotation(d[p][p].0, d[p][q], d[q][q].0) else { continue };
                rotate(&mut d, p, q, c, s);
                d = transpose(&d);
                rotate(&mut d, p, q, c, conjugate(s));
                d = transpose(&d);
                rotate(&mut v, p, q, c, s);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| d[j][j].0.abs().total_cmp(&d[i][i].0.abs()));
    let values = order.iter().map(|&i| (d[i][i].0, 0.0)).collect();
    let rows: Matrix = order.iter().map(|&i| v[i].iter().map(|&z| conjugate(z)).collect()).collect();
    (values, transpose(&rows))
}

/// U, singular values, largest first, and V transposed, of a real matrix.
fn svd(a: &Matrix, full: bool) -> (Matrix, Vec<Pair>, Matrix) {
    let (rows, columns) = (a.len(), a[0].len());
    if rows < columns {
        let (u, values, vt) = svd(&transpose(a), full);
        return (transpose(&vt), values, transpose(&u));
    }
    // Columns as rows.
    let (mut w, mut v) = (transpose(a), identity(columns));
    let dot = |x: &[Pair], y: &[Pair]| x.iter().zip(y).map(|(x, y)| x.0 * y.0).sum::<f64>();
    for _ in 0..SWEEPS {
        for p in 0..columns {
            for q in p + 1..columns {
                let products = (dot(&w[p], &w[p]), dot(&w[p], &w[q]), dot(&w[q], &w[q]));
                let Some((c, s)) = rotation(products.0, (products.1, 0.0), products.2) else { continue };
                rotate(&mut w, p, q, c, s);
                rotate(&mut v, p, q, c, s);
            }
        }
    }
    let norms: Vec<f64> = w.iter().map(|row| dot(row, row).sqrt()).collect();
    let mut order: Vec<usize> = (0..columns).collect();
    order.sort_by(|&i, &j| norms[j].total_cmp(&norms[i]));
    let unit = |i: usize| -> Vec<Pair> {
        w[i].iter().map(|&z| if norms[i] > 0.0 { complex::scale(z, 1.0 / norms[i]) } else { ZERO }).collect()
    };
    // Q completes what singular values of 0 leave out, up to the signs of R.
    let (q, r) = qr(&transpose(&order.iter().map(|&i| unit(i)).collect()), false);
    let sign = |j: usize| if j < columns && r[j][j].0 < 0.0 { -1.0 } else { 1.0 };
    let kept = if full { rows } else { columns };
    let u = q.iter().map(|row| (0..kept).map(|j| complex::scale(row[j], sign(j))).collect()).collect();
    let values = order.iter().map(|&i| (norms[i], 0.0)).collect();
    (u, values, order.iter().map(|&i| v[i].clone()).collect())
}
