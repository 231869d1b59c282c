//! Panels of QR by one workgroup and by many: residuals, orthogonality, and what they leave where.

use std::sync::Arc;

use nx_vulkan_engine::kernels::linalg::qr::{PANEL, Panel, Workgroups};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Tensor, Value};

use super::orthogonal::{KINDS, Kind, Matrix, allowed, check_qr, fail, matrices, orthogonality, require};
use super::{download, engine, finish, rng, upload};
use crate::compare::epsilon;

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::C64, DType::C128];

/// The matrices after a panel, V and T.
fn factorize(a: &Array, first: u64, positive: bool, workgroups: Workgroups) -> [Array; 3] {
    let a = upload(a);
    let whole = a.view();
    let [rows, columns] = [1, 2].map(|axis| whole.shape[axis]);
    let lengths = [whole.shape[0], rows - first, (rows.min(columns) - first).min(PANEL)];
    let view = whole.slice(&[0, first, first], &lengths, &[1; 3]).unwrap();
    let place = Tensor::new(Arc::clone(a.buffer()), view).unwrap();
    let panel = Panel { columns: &place, positive, reflects_single: rows < columns };
    let [v, t] = panel.factorize(engine(), workgroups, Compile::Allowed).unwrap();
    [&a, &v, &t].map(download)
}

fn part(a: &Matrix, row: usize, column: usize, rows: usize, columns: usize) -> Matrix {
    Matrix::new(rows, columns, |i, j| a.get(row + i, column + j))
}

fn unit(rows: usize, columns: usize) -> Matrix {
    Matrix::new(rows, columns, |i, j| (f64::from(u8::from(i == j)), 0.0))
}

/// Checks one panel of each matrix.
fn check(kind: Kind, a: &Array, first: u64, positive: bool, workgroups: Workgroups) {
    let [after, v, t] = factorize(a, first, positive, workgroups);
    let dtype = a.ty.dtype;
    let start = first as usize;
    let matrices = Matrix::batch(a).into_iter().zip(Matrix::batch(&after));
    let factors = Matrix::batch(&v).into_iter().zip(Matrix::batch(&t));
    for (k, ((a, after), (v, t))) in matrices.zip(factors).enumerate() {
        let what = format!("{workgroups:?} {kind:?} {dtype}[{} {}] from {first} [{k}]", a.rows, a.columns);
        let (height, width) = (v.rows, v.columns);
        assert_eq!((height, width), (a.rows - start, (a.rows.min(a.columns) - start).min(PANEL as usize)), "{what}");
        // Columns of I - V T V^H.
        let top = part(&v, 0, 0, width, width);
        let q = unit(height, width).minus(&v.times(&t.times(&top.adjoint())));
        let panel = part(&after, start, start, height, width);
        let r = part(&panel, 0, 0, width, width);
        let bound = allowed(dtype, height);
        let error = part(&a, start, start, height, width).minus(&q.times(&r)).norm();
        require(&format!("{what} residual"), error, bound * a.norm());
        require(&format!("{what} orthogonality"), orthogonality(&q), bound * (width as f64).sqrt());

        let mut wrong = vec![];
        for i in 0..height {
            for j in 0..width {
                if i > j && panel.get(i, j) != (0.0, 0.0) {
                    wrong.push(format!("R[{i} {j}] = {:?}", panel.get(i, j)));
                }
                if i <= j && v.get(i, j) != (f64::from(u8::from(i == j)), 0.0) {
                    wrong.push(format!("V[{i} {j}] = {:?}", v.get(i, j)));
                }
                if i > j && i < width && t.get(i, j) != (0.0, 0.0) {
                    wrong.push(format!("T[{i} {j}] = {:?}", t.get(i, j)));
                }
                if i == j && positive && r.get(i, j).0 < 0.0 {
                    wrong.push(format!("R[{i} {j}] is negative"));
                }
            }
        }
        let outside = |i: usize, j: usize| i < start || j < start || j >= start + width;
        let changed = (0..a.rows * a.columns).map(|k| (k / a.columns, k % a.columns));
        let changed: Vec<_> = changed.filter(|&(i, j)| outside(i, j) && a.get(i, j) != after.get(i, j)).collect();
        if !wrong.is_empty() || !changed.is_empty() {
            fail(format!("{what}: {wrong:?}, changed {changed:?}"));
        }
    }
}

/// Heights are multiples of a workgroup's rows or not, panels narrow and wide, at the start of a row and within it. Of
/// 16,500 rows workgroups take several chunks.
#[test]
fn panels_of_all_types_and_kinds() {
    let mut rng = rng(95);
    for dtype in TYPES {
        for kind in KINDS {
            for (shape, first) in [([2, 130, 7], 0), ([1, 97, 40], 32), ([2, 64, 33], 0)] {
                let a = matrices(dtype, &shape, kind, &mut rng);
                let positive = !dtype.is_complex() && rng.below(2) == 0;
                check(kind, &a, first, positive, Workgroups::Many);
                check(kind, &a, first, positive, Workgroups::One);
            }
        }
        for (shape, first) in [([3, 256, 32], 0), ([1, 1027, 5], 0), ([1, 16_500, 3], 0), ([2, 400, 420], 96)] {
            let a = matrices(dtype, &shape, Kind::Random, &mut rng);
            check(Kind::Random, &a, first, false, Workgroups::Many);
        }
    }
    finish();
}

/// The same reflections, with the same signs, and the same bits each time.
#[test]
fn panels_by_many_workgroups_are_those_by_one() {
    let mut rng = rng(96);
    for dtype in TYPES {
        for kind in [Kind::Random, Kind::Identity, Kind::UpperTriangular] {
            for positive in [false, true] {
                if positive && dtype.is_complex() {
                    continue;
                }
                let a = matrices(dtype, &[2, 150, 32], kind, &mut rng);
                let one = factorize(&a, 0, positive, Workgroups::One);
                let many = factorize(&a, 0, positive, Workgroups::Many);
                assert_eq!(many, factorize(&a, 0, positive, Workgroups::Many), "{kind:?} {dtype}");
                for (what, (one, many)) in ["R", "V", "T"].iter().zip(one.iter().zip(&many)) {
                    for (one, many) in Matrix::batch(one).iter().zip(Matrix::batch(many)) {
                        let bound = 2e4 * epsilon(dtype) * (1.0 + one.norm());
                        require(&format!("{what} {positive} {kind:?} {dtype}"), one.minus(&many).norm(), bound);
                    }
                }
            }
        }
    }
    finish();
}

/// Columns before a NaN or an infinity keep their factors, and the rest is no number, in this matrix and no other.
#[test]
fn panels_with_nan_and_infinity() {
    let mut rng = rng(97);
    for dtype in TYPES {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for row in [0, 3, 4, 99] {
                let mut a = matrices(dtype, &[2, 100, 9], Kind::Random, &mut rng);
                a.values[row * 9 + 4] = if dtype.is_complex() { Value::Complex(1.0, x) } else { Value::Float(x) };
                let [r, v, _] = factorize(&a, 0, false, Workgroups::Many).map(|m| Matrix::batch(&m));
                let is_finite = |z: (f64, f64)| z.0.is_finite() && z.1.is_finite();
                for j in 0..9 {
                    let finite = (0..100).all(|i| is_finite(v[0].get(i, j)) && is_finite(r[0].get(i, j)));
                    let other = (0..100).all(|i| is_finite(v[1].get(i, j)) && is_finite(r[1].get(i, j)));
                    if finite != (j < 4) || !other {
                        fail(format!("{dtype} {x} in row {row}: column {j} finite: {finite}, {other}"));
                    }
                }
            }
        }
    }
    finish();
}

/// Sizes next to those from which on panels are shared out on GPUs.
#[test]
fn qr_of_tall_matrices() {
    let mut rng = rng(98);
    for rows in [127, 128, 129, 257] {
        for dtype in TYPES {
            let a = matrices(dtype, &[2, rows, 34], Kind::Random, &mut rng);
            check_qr("Random", false, &upload(&a), &a);
        }
    }
    finish();
}
