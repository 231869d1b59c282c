//! Triangular systems, Cholesky, LU, solutions and determinants: element by element where the reference fixes every
//! rounding, and by their residuals where it does not.

use std::slice::from_ref;

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::{Linalg, Op, Transform};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type, Value};

use super::values::{Range, operand};
use super::{all_results, download, finish, rng, run, upload};
use crate::common::Rng;
use crate::compare::{Bound, epsilon, mismatch};

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::C64, DType::C128];

/// Residuals may be this many times n epsilon times the norms: LAPACK's own tests allow 30.
const RESIDUAL: f64 = 30.0;

type Pair = (f64, f64);
type Matrix = Vec<Vec<Pair>>;

fn real(dtype: DType) -> bool {
    !dtype.is_complex()
}

fn multiply(a: Pair, b: Pair) -> Pair {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let columns = b[0].len();
    a.iter()
        .map(|row| {
            let mut out = vec![(0.0, 0.0); columns];
            for (&x, b) in row.iter().zip(b).filter(|(x, _)| **x != (0.0, 0.0)) {
                for (sum, &y) in out.iter_mut().zip(b) {
                    let p = multiply(x, y);
                    *sum = (sum.0 + p.0, sum.1 + p.1);
                }
            }
            out
        })
        .collect()
}

fn adjoint(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|j| a.iter().map(|row| (row[j].0, -row[j].1)).collect()).collect()
}

fn transpose(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
}

/// The largest sum of sizes in a row.
fn norm(a: &Matrix) -> f64 {
    a.iter().map(|row| row.iter().map(|z| z.0.hypot(z.1)).sum::<f64>()).fold(0.0, f64::max)
}

fn difference(a: &Matrix, b: &Matrix) -> f64 {
    let rows = a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(x, y)| (x.0 - y.0, x.1 - y.1)).collect());
    norm(&rows.collect())
}

fn matrices(a: &Array) -> Vec<Matrix> {
    let [.., rows, columns] = a.ty.shape[..] else { panic!("{:?}", a.ty) };
    let numbers: Vec<Pair> = a.values.iter().map(|v| (v.real(), v.imag())).collect();
    numbers
        .chunks((rows * columns) as usize)
        .map(|m| m.chunks(columns as usize).map(<[Pair]>::to_vec).collect())
        .collect()
}

fn array(ty: &Type, matrices: &[Matrix]) -> Array {
    Array::new(ty, matrices.iter().flatten().flatten().map(|&(re, im)| Value::Complex(re, im)))
}

fn random(dtype: DType, shape: &[u64], rng: &mut Rng) -> Array {
    operand(&Type::new(dtype, shape), Range::Ordinary, 0, rng)
}

/// Hermitian, with eigenvalues from about 1 to n.
fn positive_definite(dtype: DType, shape: &[u64], rng: &mut Rng) -> Array {
    let a = random(dtype, shape, rng);
    let n = shape[shape.len() - 1] as usize;
    let parts: Vec<Matrix> = matrices(&a)
        .iter()
        .map(|a| {
            let mut square = product(a, &adjoint(a));
            (0..n).for_each(|i| square[i][i] = (square[i][i].0 + n as f64, 0.0));
            square
        })
        .collect();
    array(&a.ty, &parts)
}

fn run_all(op: Linalg, operands: &[Tensor], outs: &[Type]) -> Vec<Array> {
    let results = all_results(&Op::from(op), operands, outs).unwrap();
    assert_eq!(results.len(), outs.len());
    results.iter().map(download).collect()
}

/// Compares an op with the reference; the bound counts from the size of the largest element.
fn check(op: Linalg, operands: &[Array], outs: &[Type], bound: Bound) {
    let tensors: Vec<Tensor> = operands.iter().map(upload).collect();
    check_on(op, &tensors, operands, outs, bound);
}

fn check_on(op: Linalg, tensors: &[Tensor], operands: &[Array], outs: &[Type], bound: Bound) {
    let want = reference::evaluate_all(&Op::from(op), operands, outs).unwrap();
    let got = run_all(op, tensors, outs);
    for (k, (got, want)) in got.iter().zip(want).enumerate() {
        let largest = want.values.iter().map(|v| v.real().abs().max(v.imag().abs())).fold(0.0, f64::max);
        let bound = match bound {
            Bound::Norm { relative, absolute } => Bound::Norm { relative, absolute: absolute * largest },
            other => other,
        };
        if let Some((i, wrong)) = mismatch(got, from_ref(&want), bound) {
            let shapes: Vec<_> = operands.iter().map(|a| format!("{}{:?}", a.ty.dtype, a.ty.shape)).collect();
            panic!(
                "{op:?} of {shapes:?}, result {k}: {:?}, not {:?}, at {i}; {wrong} of {} wrong, seed {}",
                got.values[i],
                want.values[i],
                got.values.len(),
                super::seed()
            );
        }
    }
}

/// How far parts of an element may be off where complex products are rounded otherwise than in the reference.
fn loose(dtype: DType, n: u64) -> Bound {
    let slack = 64.0 * (n as f64 + 1.0) * epsilon(dtype);
    Bound::Norm { relative: slack, absolute: slack }
}

#[test]
fn lu_takes_the_same_steps_as_the_reference() {
    let mut rng = rng(70);
    for dtype in TYPES {
        for shape in [
            &[1, 1][..],
            &[2, 2],
            &[3, 5, 5],
            &[2, 2, 16, 16],
            &[31, 31],
            &[33, 33],
            &[70, 70],
            &[2, 150, 150],
            &[300, 300],
        ] {
            let a = random(dtype, shape, &mut rng);
            let bound = if real(dtype) { Bound::Exact } else { loose(dtype, shape[shape.len() - 1] * 100) };
            check(Linalg::Lu, from_ref(&a), &[a.ty.clone(), a.ty.clone(), a.ty.clone()], bound);
        }
    }
    finish();
}

/// Panels of more rows than a workgroup holds in registers, then those of fewer.
#[test]
fn lu_of_large_matrices_gives_them_back() {
    let mut rng = rng(79);
    for (dtype, n, epsilon) in [(DType::F32, 1050usize, 2f64.powi(-24)), (DType::F64, 530, 2f64.powi(-53))] {
        let a = random(dtype, &[n as u64, n as u64], &mut rng);
        let factors = run_all(Linalg::Lu, &[upload(&a)], &[a.ty.clone(), a.ty.clone(), a.ty.clone()]);
        let times = |matrix: &Array, x: &[f64], of: fn(f64) -> f64| -> Vec<f64> {
            let sum = |row: &[Value]| row.iter().zip(x).map(|(v, x)| of(v.real()) * x).sum();
            matrix.values.chunks(n).map(sum).collect()
        };
        let [p, l, u] = &factors[..] else { panic!("three results") };
        assert!(l.values.iter().all(|v| v.real().abs() <= 1.0), "{dtype}: pivots are the largest");
        let x: Vec<f64> = (0..n).map(|_| rng.below(2001) as f64 / 1000.0 - 1.0).collect();
        let same = |x| x;
        let got = times(p, &times(l, &times(u, &x, same), same), same);
        let sizes =
            times(p, &times(l, &times(u, &x.iter().map(|x| x.abs()).collect::<Vec<_>>(), f64::abs), f64::abs), same);
        for (i, want) in times(&a, &x, same).into_iter().enumerate() {
            let error = (got[i] - want).abs() / (sizes[i] * epsilon);
            assert!(error < n as f64, "{dtype}: row {i} is off by {error}");
        }
    }
    finish();
}

#[test]
fn lu_of_other_types_and_of_equal_pivots() {
    let mut rng = rng(71);
    for dtype in [DType::U8, DType::S16, DType::S64, DType::F16, DType::Bf16] {
        let a = random(dtype, &[3, 9, 9], &mut rng);
        let out = if dtype.is_integer() { DType::F32 } else { dtype };
        let out = Type::new(out, &[3, 9, 9]);
        check(Linalg::Lu, from_ref(&a), &[a.ty.clone(), out.clone(), out], Bound::Exact);
    }
    // Small integers: many pivots of one size, zero columns, singular matrices.
    for n in [3u64, 8, 40, 100] {
        for _ in 0..10 {
            let ty = Type::new(DType::F32, &[2, n, n]);
            let values = (0..ty.elements()).map(|_| Value::Int(i128::from(rng.below(3)) - 1)).collect::<Vec<_>>();
            check(Linalg::Lu, &[Array::new(&ty, values)], &[ty.clone(), ty.clone(), ty.clone()], Bound::Equal);
        }
    }
    finish();
}

#[test]
fn lu_with_nan_and_infinities_ends_with_a_permutation() {
    let mut rng = rng(72);
    for dtype in TYPES {
        for n in [3u64, 20, 50, 90] {
            let a = operand(&Type::new(dtype, &[2, n, n]), Range::All, 2, &mut rng);
            let got = run_all(Linalg::Lu, &[upload(&a)], &[a.ty.clone(), a.ty.clone(), a.ty.clone()]);
            for p in matrices(&got[0]) {
                for lines in [p.clone(), transpose(&p)] {
                    assert!(lines.iter().all(|line| line.iter().map(|z| z.0).sum::<f64>() == 1.0), "{dtype} {n}");
                }
            }
        }
        // The modulus of a complex number with one NaN is infinite.
        if dtype.is_complex() {
            continue;
        }
        let ty = Type::new(dtype, &[3, 3]);
        let nan = [1.0, f64::NAN, 0.0, f64::NAN, 0.0, 1.0, f64::NAN, 2.0, 1.0].map(Value::Float);
        let got = run_all(Linalg::Lu, &[upload(&Array::new(&ty, nan))], &[ty.clone(), ty.clone(), ty.clone()]);
        let p: Vec<f64> = got[0].values.iter().map(|v| v.real()).collect();
        assert_eq!(p, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], "{dtype}");
    }
    finish();
}

#[test]
fn cholesky_takes_the_same_steps_as_the_reference() {
    let mut rng = rng(73);
    for dtype in TYPES {
        for shape in [&[1, 1][..], &[2, 2], &[3, 5, 5], &[2, 2, 16, 16], &[31, 31], &[33, 33], &[70, 70]] {
            let n = shape[shape.len() - 1];
            let a = positive_definite(dtype, shape, &mut rng);
            let bound = if real(dtype) && n < 33 { Bound::Exact } else { loose(dtype, n) };
            check(Linalg::Cholesky, from_ref(&a), from_ref(&a.ty), bound);
        }
    }
    for dtype in [DType::S32, DType::Bf16] {
        let ty = Type::new(dtype, &[2, 2]);
        let a = Array::new(&ty, [20, 17, 17, 16].map(Value::Int));
        let out = Type::new(if dtype.is_integer() { DType::F32 } else { dtype }, &[2, 2]);
        check(Linalg::Cholesky, &[a], &[out], Bound::Exact);
    }
    finish();
}

#[test]
fn cholesky_of_what_is_not_positive_definite() {
    let ty = Type::new(DType::F32, &[3, 3]);
    let f = |values: [f64; 9]| Array::new(&ty, values.map(Value::Float));
    let factor = |a: &Array| download(&run(&Op::from(Linalg::Cholesky), &[upload(a)], &ty).unwrap()).values;
    // A zero pivot over a zero column, as of a semidefinite matrix; the upper triangle is not read.
    let flat = f([1.0, 7.0, 7.0, 1.0, 1.0, 7.0, 1.0, 1.0, 5.0]);
    assert_eq!(factor(&flat), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 2.0].map(Value::Float));
    // A negative pivot: NaN from there on.
    let negative = factor(&f([4.0, 2.0, 2.0, 2.0, -1.0, 1.0, 2.0, 1.0, 5.0]));
    assert_eq!(negative[..4], [2.0, 0.0, 0.0, 1.0].map(Value::Float));
    assert!([4, 7, 8].iter().all(|&i| negative[i].real().is_nan()));
    assert_eq!(negative[6], Value::Float(1.0));
    // What is almost zero becomes zero.
    let tiny = factor(&f([1e-24, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1e-12, 1.0]));
    assert_eq!(tiny, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0].map(Value::Float));
    finish();
}

/// Triangles with a strong diagonal on both sides.
fn triangle(dtype: DType, shape: &[u64], rng: &mut Rng) -> Array {
    let a = random(dtype, shape, rng);
    let n = shape[shape.len() - 1] as usize;
    let mut parts = matrices(&a);
    for matrix in &mut parts {
        for (i, row) in matrix.iter_mut().enumerate() {
            row.iter_mut().for_each(|z| *z = (z.0 / n as f64, z.1 / n as f64));
            row[i] = (1.0 + row[i].0, row[i].1);
        }
    }
    array(&a.ty, &parts)
}

#[test]
fn triangular_systems_with_all_options() {
    let mut rng = rng(74);
    for dtype in TYPES {
        for (batch, n, m) in
            [(&[][..], 1, 1), (&[2][..], 5, 3), (&[2, 2][..], 16, 40), (&[][..], 32, 1), (&[2][..], 77, 35)]
        {
            for lower in [true, false] {
                for left_side in [true, false] {
                    for transform in [Transform::None, Transform::Transpose, Transform::Conjugate] {
                        let op = Linalg::TriangularSolve { lower, left_side, transform };
                        let a = triangle(dtype, &[batch, &[n, n]].concat(), &mut rng);
                        let matrix = if left_side { [n, m] } else { [m, n] };
                        for b in [[batch, &matrix[..]].concat(), [batch, &[n]].concat()] {
                            let b = random(dtype, &b, &mut rng);
                            let bound = if n < 33 && dtype == DType::F32 { Bound::Steps(1) } else { loose(dtype, n) };
                            check(op, &[a.clone(), b.clone()], from_ref(&b.ty), bound);
                        }
                    }
                }
            }
        }
    }
    finish();
}

/// Each matrix with its rows and columns exchanged, as a view.
fn transposed_view(a: &Array) -> (Tensor, Array) {
    let rank = a.ty.shape.len();
    let mut axes: Axes = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    viewed(a, &Op::Transpose { axes }, &a.ty.shape)
}

fn viewed(a: &Array, op: &Op, shape: &[u64]) -> (Tensor, Array) {
    let out = Type::new(a.ty.dtype, shape);
    (run(op, &[upload(a)], &out).unwrap(), reference::evaluate(op, from_ref(a), &out).unwrap())
}

#[test]
fn views_of_all_kinds() {
    let mut rng = rng(75);
    for dtype in [DType::F32, DType::C128, DType::S32] {
        let out = if dtype.is_integer() { DType::F32 } else { dtype };
        let n = 12u64;
        let a = random(dtype, &[3, n, n], &mut rng);
        let reversed = viewed(&a, &Op::from(Reverse { axes: Axes::from_slice(&[0, 2]) }), &[3, n, n]);
        let one = random(dtype, &[n, n], &mut rng);
        let repeated = viewed(&one, &Op::Broadcast { axes: Axes::from_slice(&[1, 2]) }, &[3, n, n]);
        let outer = random(dtype, &[n, 3, n], &mut rng);
        let moved = viewed(&outer, &Op::Transpose { axes: Axes::from_slice(&[1, 0, 2]) }, &[3, n, n]);
        for (tensor, array) in [transposed_view(&a), reversed, repeated, moved] {
            let result = Type::new(out, &[3, n, n]);
            let bound = if dtype.is_complex() { loose(out, 100 * n) } else { Bound::Equal };
            let (tensors, arrays) = (from_ref(&tensor), from_ref(&array));
            check_on(Linalg::Lu, tensors, arrays, &[array.ty.clone(), result.clone(), result.clone()], bound);
            check_on(Linalg::Determinant, tensors, arrays, &[Type::new(out, &[3])], loose(out, 1000));
            let (b_tensor, b) = transposed_view(&random(dtype, &[3, n, n], &mut rng));
            let operands = [array, b];
            let outs = [result, Type::new(DType::U8, &[])];
            check_on(Linalg::Solve, &[tensor, b_tensor], &operands, &outs, loose(out, 10_000 * n));
        }
        let (a, a_array) = transposed_view(&triangle(out, &[3, n, n], &mut rng));
        let (b, b_array) = transposed_view(&random(dtype, &[3, n, n], &mut rng));
        let op = Linalg::TriangularSolve { lower: true, left_side: true, transform: Transform::None };
        check_on(op, &[a, b], &[a_array, b_array], &[Type::new(out, &[3, n, n])], loose(out, n));
    }
    finish();
}

#[test]
fn determinants() {
    let mut rng = rng(76);
    for dtype in TYPES {
        for n in [1u64, 2, 3, 4, 5, 16] {
            let a = random(dtype, &[5, n, n], &mut rng);
            let bound = if real(dtype) { Bound::Steps(1) } else { loose(dtype, 1000) };
            check(Linalg::Determinant, from_ref(&a), &[Type::new(dtype, &[5])], bound);
        }
        // Permutations and a row of zeros.
        let ty = Type::new(dtype, &[3, 4, 4]);
        let rows = [[1, 0, 3, 2], [1, 2, 3, 0], [0, 1, 2, 2]];
        let values = rows.iter().flatten().flat_map(|&r| (0..4).map(move |c| Value::Int(i128::from(r == c))));
        let a = Array::new(&ty, values);
        let got = run(&Op::from(Linalg::Determinant), &[upload(&a)], &Type::new(dtype, &[3])).unwrap();
        let signs: Vec<f64> = download(&got).values.iter().map(|v| v.real()).collect();
        assert_eq!(signs, [1.0, -1.0, 0.0]);
    }
    finish();
}

#[test]
fn solutions_and_singular_systems() {
    let mut rng = rng(77);
    for dtype in TYPES {
        for (n, m) in [(1u64, 1u64), (4, 3), (32, 2), (70, 20)] {
            let a = random(dtype, &[2, n, n], &mut rng);
            for b in [&[2, n, m][..], &[2, n]] {
                let b = random(dtype, b, &mut rng);
                let got = run_all(Linalg::Solve, &[upload(&a), upload(&b)], &[b.ty.clone(), Type::new(DType::U8, &[])]);
                assert_eq!(got[1].values, [Value::Int(1)]);
                let column = |x: &Array| {
                    let ty = Type::new(dtype, &[2, n, x.ty.elements() / (2 * n)]);
                    matrices(&Array { ty, values: x.values.clone() })
                };
                for ((a, x), b) in matrices(&a).iter().zip(column(&got[0])).zip(column(&b)) {
                    let limit = RESIDUAL * n as f64 * epsilon(dtype) * (norm(a) * norm(&x) + norm(&b));
                    let residual = difference(&product(a, &x), &b);
                    assert!(residual <= limit, "{dtype} {n}: {residual} > {limit}, seed {}", super::seed());
                }
            }
        }
        let ty = Type::new(dtype, &[2, 3, 3]);
        let singular = [2, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 2, 4, 6, 1, 0, 1].map(Value::Int);
        let b = random(dtype, &[2, 3], &mut rng);
        let outs = [b.ty.clone(), Type::new(DType::U8, &[])];
        let got = run_all(Linalg::Solve, &[upload(&Array::new(&ty, singular)), upload(&b)], &outs);
        assert_eq!(got[1].values, [Value::Int(0)]);
    }
    finish();
}

/// Of sizes past several blocks, graded over many orders of magnitude, and batches of them.
#[test]
fn residuals_of_large_and_ill_conditioned_matrices() {
    let mut rng = rng(78);
    for (dtype, shape) in [
        (DType::F32, &[270u64, 270][..]),
        (DType::F64, &[2, 129, 129]),
        (DType::C64, &[97, 97]),
        (DType::C128, &[65, 65]),
    ] {
        let n = shape[shape.len() - 1];
        let graded = |a: &Array| {
            let scale = |i: usize| 10f64.powi(-(i as i32 * 6 / n as i32));
            let parts: Vec<Matrix> = matrices(a)
                .into_iter()
                .map(|m| {
                    let row = |(i, row): (usize, Vec<Pair>)| {
                        row.into_iter()
                            .enumerate()
                            .map(|(j, z)| (z.0 * scale(i) * scale(j), z.1 * scale(i) * scale(j)))
                            .collect()
                    };
                    m.into_iter().enumerate().map(row).collect()
                })
                .collect();
            array(&a.ty, &parts)
        };
        let general = random(dtype, shape, &mut rng);
        let definite = positive_definite(dtype, shape, &mut rng);
        for a in [general.clone(), graded(&general)] {
            let got = run_all(Linalg::Lu, &[upload(&a)], &[a.ty.clone(), a.ty.clone(), a.ty.clone()]);
            let parts: Vec<Vec<Matrix>> = got.iter().map(matrices).collect();
            for (k, a) in matrices(&a).iter().enumerate() {
                let (p, l, u) = (&parts[0][k], &parts[1][k], &parts[2][k]);
                let limit = RESIDUAL * n as f64 * epsilon(dtype) * norm(a);
                let residual = difference(&product(p, &product(l, u)), a);
                assert!(residual <= limit, "lu {dtype} {n}: {residual} > {limit}, seed {}", super::seed());
                for i in 0..n as usize {
                    assert_eq!(l[i][i], (1.0, 0.0));
                    assert!(l[i][..i].iter().all(|z| z.0.hypot(z.1) <= 1.0 + 4.0 * epsilon(dtype)));
                    assert!(l[i][i + 1..].iter().chain(&u[i][..i]).all(|z| *z == (0.0, 0.0)));
                }
            }
        }
        for a in [definite.clone(), graded(&definite)] {
            let got = download(&run(&Op::from(Linalg::Cholesky), &[upload(&a)], &a.ty).unwrap());
            for (l, a) in matrices(&got).iter().zip(matrices(&a)) {
                let limit = RESIDUAL * n as f64 * epsilon(dtype) * norm(&a);
                let residual = difference(&product(l, &adjoint(l)), &a);
                assert!(residual <= limit, "cholesky {dtype} {n}: {residual} > {limit}, seed {}", super::seed());
                assert!((0..n as usize).all(|i| l[i][i + 1..].iter().all(|z| *z == (0.0, 0.0))));
            }
        }
    }
    finish();
}

#[test]
fn many_small_matrices() {
    let mut rng = rng(79);
    let count = 66_000u64;
    let a = positive_definite(DType::F32, &[count, 2, 2], &mut rng);
    check(Linalg::Cholesky, from_ref(&a), from_ref(&a.ty), Bound::Exact);
    check(Linalg::Determinant, from_ref(&a), &[Type::new(DType::F32, &[count])], Bound::Exact);
    finish();
}

#[test]
fn bad_operands_are_errors() {
    let f = |shape: &[u64]| Type::new(DType::F32, shape);
    let zeros = |ty: &Type| upload(&Array::new(ty, vec![Value::Int(0); ty.elements() as usize]));
    let triangular = Linalg::TriangularSolve { lower: true, left_side: true, transform: Transform::None };
    for (op, operands, outs) in [
        (Linalg::Cholesky, vec![f(&[2, 3])], vec![f(&[2, 3])]),
        (Linalg::Cholesky, vec![f(&[3])], vec![f(&[3])]),
        (Linalg::Cholesky, vec![f(&[3, 3])], vec![Type::new(DType::S32, &[3, 3])]),
        (Linalg::Lu, vec![f(&[3, 3])], vec![f(&[3, 3]), f(&[3, 3])]),
        (Linalg::Determinant, vec![f(&[4, 3, 3])], vec![f(&[3])]),
        (triangular, vec![f(&[3, 3]), f(&[2])], vec![f(&[2])]),
        (triangular, vec![f(&[2, 3, 3]), f(&[3, 3])], vec![f(&[3, 3])]),
        (Linalg::Solve, vec![f(&[3, 3]), f(&[2, 3])], vec![f(&[2, 3]), Type::new(DType::U8, &[])]),
        (Linalg::Solve, vec![f(&[3, 3])], vec![f(&[3, 3]), Type::new(DType::U8, &[])]),
    ] {
        let tensors: Vec<Tensor> = operands.iter().map(zeros).collect();
        let result = all_results(&Op::from(op), &tensors, &outs);
        assert!(result.is_err(), "{op:?} of {operands:?}");
    }
    finish();
}
