//! Factorizations and solutions of larger matrices, where panels, blocks and nodes are many: what they are off, by
//! random vectors. `NX_VULKAN_ORDER=2048` takes f32 and f64 matrices of that order instead, which takes lavapipe
//! minutes.

use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::{Linalg, Op};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Tensor, Type, Value};

use super::orthogonal::{Kind, Matrix, allowed, hermitian, matrices, require, run_all};
use super::{all_results, download, finish, rng, upload};
use crate::common::Rng;

/// Vectors of ones and minus ones: the norm of a product with them over the root of their number is that of the matrix,
/// but for chance.
const VECTORS: usize = 8;

/// Residuals of solutions may be this many times n epsilon times the norms: LAPACK's own tests allow 30.
const RESIDUAL: f64 = 30.0;

/// Types and orders, and what kinds of matrices.
fn cases(complex: bool) -> Vec<(DType, u64, Kind)> {
    let kinds = [Kind::Random, Kind::RankDeficient, Kind::IllConditioned, Kind::Graded];
    if let Some(order) = std::env::var("NX_VULKAN_ORDER").ok().and_then(|s| s.parse().ok()) {
        let types = [DType::F32, DType::F64];
        return types.into_iter().flat_map(|t| [kinds[0], kinds[2], kinds[3]].map(|kind| (t, order, kind))).collect();
    }
    let mut cases: Vec<_> = kinds.into_iter().map(|kind| (DType::F64, 129, kind)).collect();
    cases.extend([(DType::F32, 300, Kind::Random), (DType::F32, 150, Kind::RankDeficient)]);
    if complex {
        cases.extend([(DType::C64, 131, Kind::Random), (DType::C128, 100, Kind::IllConditioned)]);
    }
    cases
}

fn vectors(rows: usize, rng: &mut Rng) -> Matrix {
    let ones: Vec<f64> = (0..rows * VECTORS).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    Matrix::new(rows, VECTORS, |i, j| (ones[i * VECTORS + j], 0.0))
}

/// The Frobenius norm of a matrix of which this is the product with `vectors`.
fn estimate(product: &Matrix) -> f64 {
    product.norm() / (VECTORS as f64).sqrt()
}

fn require_orthonormal(what: &str, q: &Matrix, bound: f64, rng: &mut Rng) {
    let x = vectors(q.columns, rng);
    let error = estimate(&q.adjoint().times(&q.times(&x)).minus(&x));
    require(&format!("{what} orthogonality"), error, bound * (q.columns as f64).sqrt());
}

fn diagonal(values: &Array) -> Vec<f64> {
    let real = |v: &Value| match *v {
        Value::Complex(x, _) | Value::Float(x) => x,
        Value::Int(i) => i as f64,
    };
    values.values.iter().map(real).collect()
}

fn scaled(rows: &Matrix, by: &[f64]) -> Matrix {
    Matrix::new(rows.rows, rows.columns, |i, j| (rows.get(i, j).0 * by[i], rows.get(i, j).1 * by[i]))
}

#[test]
fn qr_of_larger_orders() {
    let mut rng = rng(91);
    for (dtype, n, kind) in cases(true) {
        for shape in [[n, n], [n + 17, n - 40]] {
            let array = matrices(dtype, &shape, kind, &mut rng);
            let results = run_all(&Op::from(Qr { complete: false }), &upload(&array));
            let [a, q, r] = [&array, &results[0], &results[1]].map(|m| Matrix::batch(m).remove(0));
            let (what, bound) = (format!("qr {kind:?} {dtype}{shape:?}"), allowed(dtype, a.rows));
            let x = vectors(a.columns, &mut rng);
            let error = estimate(&a.times(&x).minus(&q.times(&r.times(&x))));
            require(&format!("{what} residual"), error, bound * a.norm());
            require_orthonormal(&what, &q, bound, &mut rng);
        }
    }
    finish();
}

#[test]
fn eigh_of_larger_orders() {
    let mut rng = rng(92);
    for (dtype, n, kind) in cases(true) {
        let shape = if n < 150 { vec![2, n, n] } else { vec![n, n] };
        let array = hermitian(&matrices(dtype, &shape, kind, &mut rng));
        let results = run_all(&Op::from(Eigh), &upload(&array));
        let values = diagonal(&results[0]);
        for (k, (a, v)) in Matrix::batch(&array).iter().zip(Matrix::batch(&results[1])).enumerate() {
            let (what, bound) = (format!("eigh {kind:?} {dtype}{shape:?} [{k}]"), allowed(dtype, a.rows));
            let values = &values[k * a.rows..][..a.rows];
            let x = vectors(a.rows, &mut rng);
            let error = estimate(&a.times(&v.times(&x)).minus(&v.times(&scaled(&x, values))));
            require(&format!("{what} residual"), error, bound * a.norm());
            require_orthonormal(&what, &v, bound, &mut rng);
            assert!(values.windows(2).all(|pair| pair[1].abs() <= pair[0].abs()), "{what}: not in order");
        }
    }
    finish();
}

#[test]
fn svd_of_larger_orders() {
    let mut rng = rng(93);
    // One-sided Jacobi rotations take a dispatch per column and sweep.
    for (dtype, n, kind) in cases(false).into_iter().filter(|&(_, n, kind)| n != 300 && kind != Kind::Graded) {
        let array = matrices(dtype, &[n, n - 20], kind, &mut rng);
        let results = run_all(&Op::from(Svd { full: false }), &upload(&array));
        let [a, u, vt] = [&array, &results[0], &results[2]].map(|m| Matrix::batch(m).remove(0));
        let (what, bound) = (format!("svd {kind:?} {dtype}[{n}]"), allowed(dtype, a.rows));
        let x = vectors(a.columns, &mut rng);
        let error = estimate(&a.times(&x).minus(&u.times(&scaled(&vt.times(&x), &diagonal(&results[1])))));
        require(&format!("{what} residual"), error, bound * a.norm());
        require_orthonormal(&format!("{what} u"), &u, bound, &mut rng);
        require_orthonormal(&format!("{what} v"), &vt.adjoint(), bound, &mut rng);
    }
    finish();
}

fn run_linalg(op: Linalg, operands: &[Tensor], outs: &[Type]) -> Vec<Array> {
    let results = all_results(&Op::from(op), operands, outs).unwrap();
    results.iter().map(download).collect()
}

#[test]
fn systems_of_larger_orders() {
    let mut rng = rng(94);
    for (dtype, n, kind) in cases(true) {
        let ty = Type::new(dtype, &[n, n]);
        let array = matrices(dtype, &[n, n], kind, &mut rng);
        let a = Matrix::batch(&array).remove(0);
        let (what, bound) = (format!("{kind:?} {dtype}[{n}]"), allowed(dtype, a.rows));
        let factors = run_linalg(Linalg::Lu, &[upload(&array)], &[ty.clone(), ty.clone(), ty.clone()]);
        let [p, l, u] = [&factors[0], &factors[1], &factors[2]].map(|m| Matrix::batch(m).remove(0));
        let x = vectors(a.rows, &mut rng);
        let error = estimate(&a.times(&x).minus(&p.times(&l.times(&u.times(&x)))));
        require(&format!("lu {what} residual"), error, bound * l.norm() * u.norm());

        // Solutions of singular systems are as large as they like, and their residuals stay small beside that.
        let right = matrices(dtype, &[n, 3], Kind::Random, &mut rng);
        let outs = [Type::new(dtype, &[n, 3]), Type::new(DType::U8, &[])];
        let solution = run_linalg(Linalg::Solve, &[upload(&array), upload(&right)], &outs);
        let [x, b] = [&solution[0], &right].map(|m| Matrix::batch(m).remove(0));
        if kind != Kind::RankDeficient {
            let allowed = RESIDUAL * bound * (a.norm() * x.norm() + b.norm());
            require(&format!("solve {what} residual"), a.times(&x).minus(&b).norm(), allowed);
        }

        // cholesky takes elements up to 1e-10 for zeros, as Nx does.
        if kind == Kind::Graded {
            continue;
        }
        let symmetric = Matrix::batch(&hermitian(&array)).remove(0);
        let definite = Matrix::new(a.rows, a.rows, |i, j| {
            let (re, im) = symmetric.get(i, j);
            if i == j { (re + a.rows as f64, 0.0) } else { (re, im) }
        });
        let numbers = (0..a.rows * a.rows).map(|k| definite.get(k / a.rows, k % a.rows));
        let values = numbers.map(|(re, im)| if dtype.is_complex() { Value::Complex(re, im) } else { Value::Float(re) });
        let array = Array::new(&ty, values);
        let l = Matrix::batch(&run_linalg(Linalg::Cholesky, &[upload(&array)], &[ty])[0]).remove(0);
        let (a, x) = (Matrix::batch(&array).remove(0), vectors(a.rows, &mut rng));
        let error = estimate(&a.times(&x).minus(&l.times(&l.adjoint().times(&x))));
        require(&format!("cholesky {what} residual"), error, bound * a.norm());
    }
    finish();
}
