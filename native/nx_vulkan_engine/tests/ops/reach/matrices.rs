//! Factorizations of matrices that no launch reaches, beside the same on an engine whose launches do.

use std::sync::Arc;

use nx_vulkan_engine::kernels::Reach;
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::{Builder, Linalg, Op, Operand, Transform};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Error, Tensor, Type, View, eager};
use smallvec::smallvec;

use super::{LITTLE, On};
use crate::common::{self, Rng};
use crate::op_table::orthogonal::{Matrix, allowed, orthogonality};

/// 8 KiB: launches of the first reach 4095 elements at most, and 1024 of 8 bytes where they don't reach far.
fn far_and_near() -> [On; 2] {
    [Reach::of_bytes(8 << 10), Reach::default()].map(On::new)
}

/// How a tensor lies in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Plain,
    /// The last two axes exchanged.
    Turned,
    /// The last axis backwards.
    Backwards,
    /// Every other element of the last two axes.
    Gaps,
}

const LAYOUTS: [Layout; 4] = [Layout::Plain, Layout::Turned, Layout::Backwards, Layout::Gaps];

impl Layout {
    /// The type of the memory for a tensor, and the tensor's view of it.
    fn of(self, ty: &Type) -> (Type, View) {
        let rank = ty.shape.len();
        if self == Layout::Plain {
            return (ty.clone(), View::contiguous(ty.dtype, &ty.shape));
        }
        let axes: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        let mut stored = ty.clone();
        match self {
            Layout::Turned => stored.shape = axes.iter().map(|&axis| ty.shape[axis]).collect(),
            Layout::Gaps => stored.shape[rank - 2..].iter_mut().for_each(|n| *n *= 2),
            Layout::Plain | Layout::Backwards => {}
        }
        let whole = View::contiguous(ty.dtype, &stored.shape);
        let view = match self {
            Layout::Plain => whole,
            Layout::Turned => whole.transpose(&axes).unwrap(),
            Layout::Backwards => whole.reverse(&[rank - 1]).unwrap(),
            Layout::Gaps => {
                let mut steps = vec![1; rank];
                steps[rank - 2..].fill(2);
                whole.slice(&vec![0; rank], &stored.shape, &steps).unwrap()
            }
        };
        (stored, view)
    }
}

/// Numbers between -1 and 1.
fn numbers(count: u64, rng: &mut Rng) -> Vec<f64> {
    (0..count).map(|_| rng.below(4001) as f64 / 2000.0 - 1.0).collect()
}

/// A tensor of numbers between -1 and 1.
fn values(on: &On, dtype: DType, shape: &[u64], seed: u64, layout: Layout) -> Tensor {
    let mut rng = Rng(seed);
    let count = shape.iter().product();
    let parts = [numbers(count, &mut rng), numbers(count, &mut rng)];
    stored(on, dtype, shape, &parts, layout)
}

/// Hermitian matrices whose diagonals outweigh the rest.
fn hermitian(on: &On, dtype: DType, shape: &[u64], seed: u64, layout: Layout) -> Tensor {
    let mut rng = Rng(seed);
    let n = shape[shape.len() - 1] as usize;
    let count = shape.iter().product();
    let [mut real, mut imaginary] = [numbers(count, &mut rng), numbers(count, &mut rng)];
    for start in (0..count as usize).step_by(n * n) {
        for i in 0..n {
            for j in 0..i {
                real[start + j * n + i] = real[start + i * n + j];
                imaginary[start + j * n + i] = -imaginary[start + i * n + j];
            }
            (real[start + i * n + i], imaginary[start + i * n + i]) = (n as f64, 0.0);
        }
    }
    stored(on, dtype, shape, &[real, imaginary], layout)
}

fn stored(on: &On, dtype: DType, shape: &[u64], parts: &[Vec<f64>; 2], layout: Layout) -> Tensor {
    let [real, imaginary] = parts.each_ref().map(|part| Tensor::from_slice(&on.engine, shape, part).unwrap());
    let made = on.made(&[&real, &imaginary], |b, x| {
        let real = b.as_type(x[0], dtype);
        if !dtype.is_complex() {
            return real;
        }
        b.add(real, b.multiply(b.as_type(x[1], dtype), b.constant(dtype, Scalar::Complex(0.0, 1.0))))
    });
    let (memory, view) = layout.of(&made.view().ty());
    let memory = Tensor::uninitialized(&on.engine, &memory).unwrap();
    let seen = Tensor::new(Arc::clone(memory.buffer()), view).unwrap();
    eager::copy(&on.engine, &made, &seen, Compile::Allowed).unwrap();
    seen
}

/// The bytes of an op's results.
fn results(on: &On, op: &Op, operands: &[Tensor], outs: &[Type]) -> Vec<Vec<u8>> {
    let results = eager::run_all(&on.engine, op, operands, outs, Compile::Allowed)
        .unwrap_or_else(|e| panic!("{op:?} of {:?}: {e}", operands.iter().map(Tensor::view).collect::<Vec<_>>()));
    let bytes = results.iter().map(|t| t.to_nx_bytes(&on.engine, None).unwrap()).collect();
    common::assert_valid(&on.engine);
    bytes
}

/// Both engines' results of an op have the same bits.
fn same(on: &[On; 2], op: &Op, operands: impl Fn(&On) -> Vec<Tensor>, outs: &[Type], what: &str) {
    let [far, near] = on.each_ref().map(|on| results(on, op, &operands(on), outs));
    for (k, (far, near)) in far.iter().zip(&near).enumerate() {
        assert!(far == near, "result {k} of {op:?} of {what}");
    }
}

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::C64, DType::C128];

/// One matrix beyond, several, and several of which one alone is not.
const MATRICES: [&[u64]; 4] = [&[97, 97], &[2, 81, 81], &[1, 3, 47, 47], &[1, 1, 90, 90]];

#[test]
fn cholesky_factors_beyond_a_launch_are_the_same() {
    let on = far_and_near();
    for dtype in TYPES {
        for shape in MATRICES {
            let out = [Type::new(dtype, shape)];
            for layout in LAYOUTS {
                let what = format!("{dtype}{shape:?} {layout:?}");
                same(&on, &Op::from(Linalg::Cholesky), |on| vec![hermitian(on, dtype, shape, 1, layout)], &out, &what);
            }
        }
    }
    let shape = &[90, 90];
    let operands = |on: &On| vec![hermitian(on, DType::S32, shape, 1, Layout::Plain)];
    same(&on, &Op::from(Linalg::Cholesky), operands, &[Type::new(DType::F32, shape)], "s32");
}

/// Matrices, right-hand sides and both beyond.
const SYSTEMS: [(&[u64], &[u64]); 7] = [
    (&[97, 97], &[97]),
    (&[97, 97], &[97, 5]),
    (&[81, 81], &[81, 83]),
    (&[7, 7], &[7, 911]),
    (&[40, 40], &[40, 150]),
    (&[2, 81, 81], &[2, 81]),
    (&[1, 3, 47, 47], &[1, 3, 47, 31]),
];

#[test]
fn triangular_systems_beyond_a_launch_have_the_same_solutions() {
    let on = far_and_near();
    for dtype in [DType::F32, DType::F64, DType::C64] {
        for (k, (a, b)) in SYSTEMS.into_iter().enumerate() {
            for (lower, left_side) in [(true, true), (false, true), (true, false), (false, false)] {
                let transforms = [Transform::None, Transform::Transpose, Transform::Conjugate];
                for (transform, layout) in transforms.into_iter().zip(LAYOUTS.into_iter().cycle().skip(k)) {
                    let mut b = b.to_vec();
                    if !left_side {
                        let rank = b.len();
                        if rank < a.len() {
                            continue;
                        }
                        b.swap(rank - 1, rank - 2);
                    }
                    let of_b = if b.len() < 2 || b.len() < a.len() { Layout::Plain } else { layout };
                    let operands = |on: &On| vec![hermitian(on, dtype, a, 1, layout), values(on, dtype, &b, 2, of_b)];
                    let op = Op::from(Linalg::TriangularSolve { lower, left_side, transform });
                    let what = format!("{dtype}{a:?} and {b:?} {layout:?}");
                    same(&on, &op, operands, &[Type::new(dtype, &b)], &what);
                }
            }
        }
    }
}

#[test]
fn lu_factors_and_determinants_beyond_a_launch_are_the_same() {
    let on = far_and_near();
    for dtype in TYPES {
        for shape in MATRICES {
            for layout in LAYOUTS {
                let operands = |on: &On| vec![values(on, dtype, shape, 3, layout)];
                let what = format!("{dtype}{shape:?} {layout:?}");
                let [p, l, u] = [dtype; 3].map(|dtype| Type::new(dtype, shape));
                same(&on, &Op::from(Linalg::Lu), operands, &[p, l, u], &what);
                let out = [Type::new(dtype, &shape[..shape.len() - 2])];
                same(&on, &Op::from(Linalg::Determinant), operands, &out, &what);
            }
        }
    }
}

#[test]
fn systems_beyond_a_launch_have_the_same_solutions() {
    let on = far_and_near();
    for dtype in [DType::F32, DType::F64, DType::C64] {
        for (k, (a, b)) in SYSTEMS.into_iter().enumerate() {
            for layout in LAYOUTS.into_iter().cycle().skip(k).take(2) {
                let of_b = if b.len() < a.len() { Layout::Plain } else { layout };
                let operands = |on: &On| vec![values(on, dtype, a, 3, layout), values(on, dtype, b, 2, of_b)];
                let outs = [Type::new(dtype, b), Type::new(DType::U8, &[])];
                same(&on, &Op::from(Linalg::Solve), operands, &outs, &format!("{dtype}{a:?} and {b:?} {layout:?}"));
            }
        }
        // Of two singular matrices, the last row and column of one are zero.
        for singular in [0, 1] {
            let (a, b) = ([2, 81, 81], [2, 81, 2]);
            let operands = |on: &On| {
                let matrices = values(on, dtype, &a, 3, Layout::Plain);
                let zero = |starts: [u64; 3], lengths: [u64; 3]| {
                    let view = matrices.view().slice(&starts, &lengths, &[1; 3]).unwrap();
                    let place = Tensor::new(Arc::clone(matrices.buffer()), view).unwrap();
                    let zeros = on.made(&[], |b, _| b.broadcast(b.number(dtype, 0.0), &lengths));
                    eager::copy(&on.engine, &zeros, &place, Compile::Allowed).unwrap();
                };
                zero([singular, 80, 0], [1, 1, 81]);
                zero([singular, 0, 80], [1, 81, 1]);
                vec![matrices, values(on, dtype, &b, 2, Layout::Plain)]
            };
            let outs = [Type::new(dtype, &b), Type::new(DType::U8, &[])];
            let regular = on.each_ref().map(|on| results(on, &Op::from(Linalg::Solve), &operands(on), &outs).pop());
            assert_eq!(regular, [Some(vec![0]), Some(vec![0])], "matrix {singular} of two is singular");
        }
    }
}

/// Both engines' factors are the same but for some rounding errors: sums of rows are those of parts.
fn alike(on: &[On; 2], op: &Op, operand: impl Fn(&On) -> Tensor, what: &str) {
    let ty = operand(&on[1]).view().ty();
    let outs = op.factors(&ty).unwrap();
    let [far, near] = on.each_ref().map(|on| results(on, op, &[operand(on)], &outs));
    for (k, (out, (far, near))) in outs.iter().zip(far.iter().zip(&near)).enumerate() {
        // Values are rows of a matrix.
        let columns = out.shape[out.shape.len() - 1];
        let rows = [out.elements() / columns, columns];
        let shape = if out.shape.len() < ty.shape.len() { &rows[..] } else { &out.shape[..] };
        let matrices = |bytes| Matrix::batch(&Array::from_nx_bytes(&Type::new(out.dtype, shape), bytes).unwrap());
        for (far, near) in matrices(far).iter().zip(matrices(near)) {
            let size = ty.shape.iter().rev().take(2).max().copied().unwrap();
            let (apart, bound) = (far.minus(&near).norm(), 4.0 * allowed(out.dtype, size as usize) * near.norm());
            assert!(apart < bound, "result {k} of {op:?} of {what}: {apart:e} exceeds {bound:e}");
        }
    }
}

/// Square, wide and tall ones, and tall ones of which no launch reaches a panel of 32 columns.
#[test]
fn qr_beyond_a_launch_is_near_that_within() {
    let on = far_and_near();
    let shapes: [&[u64]; 7] =
        [&[97, 97], &[41, 211], &[211, 41], &[1500, 5], &[3801, 2], &[2, 81, 81], &[1, 3, 300, 7]];
    for dtype in TYPES {
        for (k, shape) in shapes.into_iter().enumerate() {
            for layout in LAYOUTS.into_iter().cycle().skip(k).take(2) {
                let complete = shape[shape.len() - 2] < 100 && layout == Layout::Plain;
                let operand = |on: &On| values(on, dtype, shape, 4, layout);
                alike(&on, &Op::from(Qr { complete }), operand, &format!("{dtype}{shape:?} {layout:?}"));
            }
        }
    }
}

/// 16 KiB, as launches for one column take 64 rows as long as the matrix.
#[test]
fn eigenvectors_beyond_a_launch_are_orthogonal() {
    let on = On::new(Reach::of_bytes(16 << 10));
    let shapes: [&[u64]; 4] = [&[97, 97], &[112, 112], &[1, 1, 127, 127], &[2, 93, 93]];
    for dtype in TYPES {
        for (shape, layout) in shapes.into_iter().zip(LAYOUTS) {
            let a = hermitian(&on, dtype, shape, 6, layout);
            let outs = Op::from(Eigh).factors(&a.view().ty()).unwrap();
            let bytes = results(&on, &Op::from(Eigh), std::slice::from_ref(&a), &outs);
            let n = shape[shape.len() - 1];
            let matrices = |bytes: &[u8], shape: &[u64]| {
                Matrix::batch(&Array::from_nx_bytes(&Type::new(dtype, shape), bytes).unwrap())
            };
            let values = matrices(&bytes[0], &[outs[0].elements() / n, 1, n]);
            let a = matrices(&a.to_nx_bytes(&on.engine, None).unwrap(), shape);
            for ((a, values), vectors) in a.iter().zip(values).zip(matrices(&bytes[1], shape)) {
                let what = format!("{dtype}{shape:?} {layout:?}");
                let scaled = Matrix::new(vectors.rows, vectors.columns, |i, j| {
                    let (re, im) = vectors.get(i, j);
                    (re * values.get(0, j).0, im * values.get(0, j).0)
                });
                let bound = allowed(dtype, vectors.rows);
                assert!(a.times(&vectors).minus(&scaled).norm() < bound * a.norm(), "{what}: residual");
                assert!(orthogonality(&vectors) < bound * (n as f64).sqrt(), "{what}: orthogonality");
            }
        }
    }
}

/// As long as one launch reaches all of R.
#[test]
fn svd_of_tall_matrices_beyond_a_launch_is_near_that_within() {
    let on = far_and_near();
    let shapes: [&[u64]; 4] = [&[900, 7], &[6, 1001], &[150, 40], &[2, 1500, 3]];
    for dtype in [DType::F32, DType::F64] {
        for shape in shapes {
            for layout in [Layout::Plain, Layout::Turned] {
                for full in [false, true] {
                    if full && shape.iter().any(|&n| n > 150) {
                        continue;
                    }
                    let operand = |on: &On| values(on, dtype, shape, 5, layout);
                    alike(&on, &Op::from(Svd { full }), operand, &format!("{dtype}{shape:?} {layout:?}"));
                }
            }
        }
    }
}

#[test]
fn svd_of_what_is_neither_tall_nor_wide_is_too_large() {
    let [far, _] = far_and_near();
    for shape in [[97, 97], [99, 97], [97, 200]] {
        let a = values(&far, DType::F32, &shape, 5, Layout::Plain);
        let op = Op::from(Svd { full: false });
        let error = eager::run_all(
            &far.engine,
            &op,
            std::slice::from_ref(&a),
            &op.factors(&a.view().ty()).unwrap(),
            Compile::Allowed,
        );
        assert!(matches!(error, Err(Error::TooLarge { .. })), "svd of {shape:?}");
    }
}

impl On {
    fn factors(&self, op: impl Into<Op>, operands: &[&Tensor], outs: &[Type]) -> Vec<Tensor> {
        let (op, operands): (Op, Vec<Tensor>) = (op.into(), operands.iter().map(|&t| t.clone()).collect());
        let results = eager::run_all(&self.engine, &op, &operands, outs, Compile::Allowed);
        results.unwrap_or_else(|e| panic!("{op:?}: {e}")).into_iter().collect()
    }

    /// Element (i, j) is the smaller of i and j, and one more: the product of a triangle of ones and its transpose.
    /// Rows may be in reverse order.
    fn smaller(&self, n: u64, columns: u64, reversed: bool) -> Tensor {
        self.made(&[], |b, _| {
            let [row, column] = [0, 1].map(|axis| b.iota(DType::F32, &[n, columns], Some(axis)));
            let row = if reversed { b.subtract((n - 1) as f64, row) } else { row };
            // Of fewer columns, the first and the last.
            let step = if columns == n { 1 } else { n - 1 };
            b.add(b.min(row, b.multiply(column, step as f64)), 1.0)
        })
    }

    /// How many elements of a matrix are 1 where something holds of row and column, and 0 elsewhere.
    fn marked(&self, a: &Tensor, holds: impl Fn(&Builder, Operand, Operand) -> Operand) -> u64 {
        self.count(&[a], |b, t| {
            let [row, column] = [0, 1].map(|axis| b.iota(DType::F32, &a.view().shape, Some(axis)));
            b.equal(t[0], b.as_type(holds(b, row, column), DType::F32))
        })
    }

    /// Factors whose elements are all whole numbers.
    fn one_matrix(&self, n: u64) {
        let ty = Type::new(DType::F32, &[n, n]);
        let vectors = Type::new(DType::F32, &[n, 2]);
        let a = self.smaller(n, n, false);
        let l = self.factors(Linalg::Cholesky, &[&a], std::slice::from_ref(&ty)).remove(0);
        let lower = |b: &Builder, row: Operand, column: Operand| b.less_equal(column, row);
        assert_eq!(self.marked(&l, lower), n * n, "cholesky of {n}");
        let right = self.made(&[], |b, _| b.add(b.iota(DType::F32, &[n, 2], Some(0)), 1.0));
        let op = Linalg::TriangularSolve { lower: true, left_side: true, transform: Transform::None };
        let x = self.factors(op, &[&l, &right], std::slice::from_ref(&vectors)).remove(0);
        assert_eq!(self.count(&[&x], |b, t| b.equal(t[0], 1.0)), 2 * n, "triangular_solve of {n}");
        drop(l);
        let factors = self.factors(Linalg::Lu, &[&a], &[ty.clone(), ty.clone(), ty.clone()]);
        assert_eq!(self.marked(&factors[0], |b, row, column| b.equal(row, column)), n * n, "p of {n}");
        assert_eq!(self.marked(&factors[1], lower), n * n, "l of {n}");
        assert_eq!(self.marked(&factors[2], |b, row, column| b.less_equal(row, column)), n * n, "u of {n}");
        drop((a, factors));
        // Columns exchange rows.
        let a = self.smaller(n, n, true);
        let outs = [vectors, Type::new(DType::U8, &[])];
        let solved = self.factors(Linalg::Solve, &[&a, &self.smaller(n, 2, true)], &outs);
        let unit = |b: &Builder, row, column| b.equal(row, b.multiply(column, (n - 1) as f64));
        assert_eq!(self.marked(&solved[0], unit), 2 * n, "solve of {n}");
        assert_eq!(self.number(&solved[1]), 1, "solve of {n}");
        let determinant = self.factors(Linalg::Determinant, &[&a], &[Type::new(DType::F32, &[])]).remove(0);
        assert_eq!(self.number(&determinant), if n % 4 < 2 { 1 } else { -1 }, "determinant of {n}");
    }

    fn product(&self, a: &Tensor, b: &Tensor, contract: [usize; 2], shape: &[u64]) -> Tensor {
        let [contract_a, contract_b] = contract.map(|axis| smallvec![axis]);
        let op = Op::Dot { contract_a, batch_a: smallvec![], contract_b, batch_b: smallvec![] };
        self.op(&op, &[a, b], &Type::new(DType::F32, shape))
    }

    /// Orthonormal columns.
    fn are_orthonormal(&self, q: &Tensor, within: f64) {
        let n = q.view().shape[1];
        let squares = self.product(q, q, [0, 0], &[n, n]);
        let near = self.count(&[&squares], |b, t| {
            let off = b.subtract(t[0], b.eye(DType::F32, &[n, n]));
            b.less(b.abs(off), within)
        });
        assert_eq!(near, n * n, "orthonormal columns of {:?}", q.view().shape);
    }

    fn tall(&self, rows: u64) {
        let shape = [rows, 8];
        let a = self.pattern(DType::F32, &shape);
        let outs = Op::from(Qr { complete: false }).factors(&a.view().ty()).unwrap();
        let factors = self.factors(Qr { complete: false }, &[&a], &outs);
        // A product of so many rows in f32 is off by more than that.
        for (i, j) in (0..8).flat_map(|i| (i..8).map(move |j| (i, j))) {
            let product = self.made(&[&factors[0]], |b, t| {
                let column = |k| b.as_type(b.slice(t[0], &[0, k], &[rows, 1]), DType::F64);
                b.sum(b.multiply(column(i), column(j)), &[0, 1])
            });
            let off = product.to_vec::<f64>(&self.engine).unwrap()[0] - f64::from(u8::from(i == j));
            assert!(off.abs() < 1e-3, "columns {i} and {j} of {rows} rows: {off:e}");
        }
        let product = self.product(&factors[0], &factors[1], [1, 0], &shape);
        // The first rows of Q are large, and off by what a sum of so many squares in f32 is off by.
        let near = self.count(&[&a, &product], |b, t| {
            let [a, product] = [t[0], t[1]].map(|t| b.slice(t, &[8, 0], &[rows - 8, 8]));
            b.less(b.abs(b.subtract(a, product)), 0.1)
        });
        assert_eq!(near, 8 * (rows - 8), "qr of {rows} rows");
    }

    /// Of the matrix of [`On::smaller`], whose eigenvalues are known.
    fn eigenvectors(&self, n: u64) {
        let outs = Op::from(Eigh).factors(&Type::new(DType::F32, &[n, n])).unwrap();
        let results = self.factors(Eigh, &[&self.smaller(n, n, false)], &outs);
        let values = results[0].to_vec::<f32>(&self.engine).unwrap();
        for (k, value) in values.iter().enumerate() {
            let angle = (2 * k + 1) as f64 / (2 * n + 1) as f64 * std::f64::consts::PI;
            let exact = 0.5 / (1.0 - angle.cos());
            let off = (f64::from(*value) - exact).abs() / f64::from(values[0]);
            assert!(off < 1e-5, "eigenvalue {k} of {n}: {value}, not {exact}");
        }
        self.are_orthonormal(&results[1], 1e-3);
    }
}

#[test]
fn factors_that_are_known_are_found_beyond_a_launch() {
    let on = On::new(Reach::of_bytes(LITTLE));
    on.one_matrix(97);
    on.tall(1501);
    on.eigenvectors(97);
    common::assert_valid(&on.engine);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_of_one_matrix_are_factorized() {
    On::new(Reach::default()).one_matrix(46_500);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_of_a_tall_matrix_are_factorized() {
    On::new(Reach::default()).tall(270_000_000);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_have_eigenvectors() {
    On::new(Reach::default()).eigenvectors(46_500);
}
