//! Factorizations of matrices that no launch reaches, beside the same on an engine whose launches do.

use std::sync::Arc;

use nx_vulkan_engine::kernels::Reach;
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::matrix::{Qr, Svd};
use nx_vulkan_engine::program::{Linalg, Op, Transform};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Tensor, Type, View, eager};

use super::On;
use crate::common::{self, Rng};
use crate::op_table::orthogonal::{Matrix, allowed};

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
        [&[97, 97], &[41, 211], &[211, 41], &[1500, 5], &[4001, 2], &[2, 81, 81], &[1, 3, 300, 7]];
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
