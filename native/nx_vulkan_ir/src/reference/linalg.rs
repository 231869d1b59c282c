//! Direct solvers, one matrix after another, with Nx's formulas and roundings.

use super::array::{Array, invalid};
use super::complex::{self, Pair};
use crate::program::Op;
use crate::program::linalg::{EPSILON, Linalg, Transform};
use crate::value::round;
use crate::{DType, Result, Type, Value};

/// A matrix as rows of numbers.
type Matrix = Vec<Vec<Pair>>;

const ZERO: Pair = (0.0, 0.0);
const ONE: Pair = (1.0, 0.0);

pub fn evaluate(op: Linalg, operands: &[Array], outs: &[Type]) -> Result<Vec<Array>> {
    let missing = || invalid(&Op::from(op), "an operand is missing");
    let a = operands.first().ok_or_else(missing)?;
    let n = a.ty.shape.last().copied().unwrap_or(1) as usize;
    let matrices = split(a, n, n);
    let batches = matrices.len();
    let mut results: Vec<Vec<Value>> = vec![vec![]; outs.len()];
    let mut put = |k: usize, matrix: &Matrix| {
        results[k].extend(matrix.iter().flatten().map(|&(re, im)| Value::Complex(re, im)));
    };
    // The type of intermediate results.
    let dtype = outs.get(usize::from(op == Linalg::Lu)).ok_or_else(missing)?.dtype.ctype().dtype();
    match op {
        Linalg::Cholesky => matrices.iter().for_each(|a| put(0, &cholesky(a, dtype))),
        Linalg::Determinant => matrices.iter().for_each(|a| put(0, &vec![vec![determinant(a, dtype)]])),
        Linalg::Lu => {
            for a in &matrices {
                let (p, l, u) = lu(a, dtype);
                [p, l, u].iter().enumerate().for_each(|(k, m)| put(k, m));
            }
        }
        Linalg::TriangularSolve { .. } | Linalg::Solve => {
            let b = operands.get(1).ok_or_else(missing)?;
            let vectors = b.ty.shape.len() < a.ty.shape.len();
            let [rows, columns] = match &b.ty.shape[..] {
                [.., n] if vectors => [*n, 1],
                [.., m, n] => [*m, *n],
                _ => return Err(missing()),
            };
            let right = split(b, rows as usize, columns as usize);
            let mut regular = true;
            for (a, b) in matrices.iter().zip(&right).take(batches) {
                let x = match op {
                    Linalg::TriangularSolve { lower, left_side, transform } => {
                        triangular(a, b, lower, left_side || vectors, left_side, transform)
                    }
                    _ => {
                        let (p, l, u) = lu(a, dtype);
                        regular &= (0..n).all(|i| u[i][i] != ZERO);
                        let moved = product(&transpose(&p), b);
                        let y = rounded(&substitute(&l, &moved), dtype);
                        backward(&u, &y)
                    }
                };
                put(0, &x);
            }
            if let Some(flag) = results.get_mut(1) {
                flag.push(Value::bool(regular));
            }
        }
    }
    Ok(outs.iter().zip(results).map(|(ty, values)| Array::new(ty, values)).collect())
}

fn split(a: &Array, rows: usize, columns: usize) -> Vec<Matrix> {
    let numbers: Vec<Pair> = a.values.iter().map(|v| (v.real(), v.imag())).collect();
    numbers.chunks(rows * columns).map(|m| m.chunks(columns).map(<[Pair]>::to_vec).collect()).collect()
}

fn round_pair(z: Pair, dtype: DType) -> Pair {
    (round(dtype, z.0), round(dtype, z.1))
}

fn rounded(a: &Matrix, dtype: DType) -> Matrix {
    a.iter().map(|row| row.iter().map(|&z| round_pair(z, dtype)).collect()).collect()
}

fn divide(a: Pair, b: Pair) -> Pair {
    if a.1 == 0.0 && b.1 == 0.0 { (a.0 / b.0, 0.0) } else { complex::divide(a, b) }
}

fn conjugate(z: Pair) -> Pair {
    (z.0, -z.1)
}

fn abs(z: Pair, dtype: DType) -> f64 {
    round(dtype, if z.1 == 0.0 { z.0.abs() } else { complex::abs(z) })
}

fn transpose(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
}

fn reverse(a: &Matrix) -> Matrix {
    a.iter().rev().map(|row| row.iter().rev().copied().collect()).collect()
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let entry = |row: &[Pair], j: usize| {
        row.iter().zip(b).fold(ZERO, |sum, (&x, y)| complex::add(sum, complex::multiply(x, y[j])))
    };
    a.iter().map(|row| (0..b[0].len()).map(|j| entry(row, j)).collect()).collect()
}

/// X of `A X = B` for a lower triangular A.
fn substitute(a: &Matrix, b: &Matrix) -> Matrix {
    let mut x: Matrix = vec![];
    for (i, row) in b.iter().enumerate() {
        let entry = |(j, &b): (usize, &Pair)| {
            let sum = (0..i).fold(ZERO, |sum, k| complex::add(sum, complex::multiply(a[i][k], x[k][j])));
            divide(complex::subtract(b, sum), a[i][i])
        };
        let solved = row.iter().enumerate().map(entry).collect();
        x.push(solved);
    }
    x
}

/// X of `A X = B` for an upper triangular A.
fn backward(a: &Matrix, b: &Matrix) -> Matrix {
    let flipped: Matrix = b.iter().rev().cloned().collect();
    substitute(&reverse(a), &flipped).into_iter().rev().collect()
}

fn triangular(a: &Matrix, b: &Matrix, lower: bool, columns: bool, left_side: bool, transform: Transform) -> Matrix {
    let a: Matrix = match transform {
        Transform::Conjugate => a.iter().map(|row| row.iter().map(|&z| conjugate(z)).collect()).collect(),
        _ => a.clone(),
    };
    // X A = B is A' X' = B'.
    let is_transposed = left_side == (transform == Transform::Transpose);
    let a = if is_transposed { transpose(&a) } else { a };
    let b = if columns { b.clone() } else { transpose(b) };
    let x = if lower == is_transposed { backward(&a, &b) } else { substitute(&a, &b) };
    if columns { x } else { transpose(&x) }
}

fn cholesky(a: &Matrix, dtype: DType) -> Matrix {
    let n = a.len();
    let mut l: Matrix = vec![vec![ZERO; n]; n];
    for i in 0..n {
        for j in 0..=i {
            let sum = (0..j).fold(ZERO, |sum, k| complex::add(sum, complex::multiply(l[i][k], conjugate(l[j][k]))));
            let rest = round_pair(complex::subtract(a[i][j], round_pair(sum, dtype)), dtype);
            let value = if i == j {
                if dtype.is_complex() { complex::sqrt(rest) } else { (rest.0.sqrt(), 0.0) }
            } else {
                divide(rest, if l[j][j] == ZERO { (EPSILON, 0.0) } else { l[j][j] })
            };
            l[i][j] = round_pair(value, dtype);
        }
    }
    for z in l.iter_mut().flatten() {
        if abs(*z, dtype) <= EPSILON {
            *z = ZERO;
        }
    }
    l
}

/// P, L and U.
fn lu(a: &Matrix, dtype: DType) -> (Matrix, Matrix, Matrix) {
    let n = a.len();
    let mut a = rounded(a, dtype);
    let mut rows: Vec<usize> = (0..n).collect();
    for k in 0..n {
        let mut pivot = k;
        for r in k + 1..n {
            let (size, best) = (abs(a[r][k], dtype), abs(a[pivot][k], dtype));
            if size.is_nan() || size > best {
                pivot = r;
            }
        }
        a.swap(k, pivot);
        rows.swap(k, pivot);
        let (top, rest) = a.split_at_mut(k + 1);
        let upper = &top[k];
        for row in rest {
            if upper[k] != ZERO {
                row[k] = round_pair(divide(row[k], upper[k]), dtype);
            }
            let factor = row[k];
            for (z, &u) in row.iter_mut().zip(upper).skip(k + 1) {
                let product = round_pair(complex::multiply(factor, u), dtype);
                *z = round_pair(complex::subtract(*z, product), dtype);
            }
        }
    }
    let entries = |value: &dyn Fn(usize, usize) -> Pair| -> Matrix {
        (0..n).map(|i| (0..n).map(|j| value(i, j)).collect()).collect()
    };
    let p = entries(&|i, j| if rows[j] == i { ONE } else { ZERO });
    let l = entries(&|i, j| match i.cmp(&j) {
        std::cmp::Ordering::Less => ZERO,
        std::cmp::Ordering::Equal => ONE,
        std::cmp::Ordering::Greater => a[i][j],
    });
    let u = entries(&|i, j| if i <= j { a[i][j] } else { ZERO });
    (p, l, u)
}

fn determinant(a: &Matrix, dtype: DType) -> Pair {
    let n = a.len();
    let along = |columns: &[usize]| {
        let product = columns.iter().enumerate().fold(ONE, |p, (i, &j)| complex::multiply(p, a[i][j]));
        round_pair(product, dtype)
    };
    let sum = |terms: &[(f64, &[usize])]| {
        terms.iter().fold(ZERO, |sum, &(sign, columns)| {
            round_pair(complex::add(sum, complex::scale(along(columns), sign)), dtype)
        })
    };
    match n {
        2 => sum(&[(1.0, &[0, 1]), (-1.0, &[1, 0])]),
        3 => sum(&[
            (1.0, &[0, 1, 2]),
            (1.0, &[1, 2, 0]),
            (1.0, &[2, 0, 1]),
            (-1.0, &[2, 1, 0]),
            (-1.0, &[1, 0, 2]),
            (-1.0, &[0, 2, 1]),
        ]),
        _ => {
            let (p, _, u) = lu(a, dtype);
            if (0..n).any(|i| u[i][i] == ZERO) {
                return ZERO;
            }
            let rows: Vec<usize> = (0..n).map(|j| (0..n).find(|&i| p[i][j] == ONE).unwrap_or(0)).collect();
            let exchanged = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).filter(|&(i, j)| rows[i] > rows[j]);
            let sign = if exchanged.count() % 2 == 0 { 1.0 } else { -1.0 };
            let product = (0..n).fold(ONE, |product, i| complex::multiply(product, u[i][i]));
            complex::scale(round_pair(product, dtype), sign)
        }
    }
}
