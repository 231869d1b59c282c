//! Factorizations and solvers, by the values of the matrix.

use nx_vulkan_engine::program::op::Op;
use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::{Linalg, Transform};
use nx_vulkan_engine::{DType, Tensor, Type};

use crate::data::{Kind, floats};
use crate::{Bench, Outcome};

/// Kinds of elements. The identity, and a diagonal of different numbers, are beside them.
const KINDS: [Kind; 9] = [
    Kind::Random,
    Kind::Zeros,
    Kind::Equal,
    Kind::Denormals,
    Kind::Huge,
    Kind::OneInfinite,
    Kind::Infinite,
    Kind::OneNan,
    Kind::Nan,
];

/// Symmetric matrices of each kind, whose diagonal has `more` on it.
fn symmetric(bench: &Bench, batches: u64, n: u64, more: f32) -> Outcome<Vec<Tensor>> {
    let side = n as usize;
    let mut given = vec![];
    let mut push = |element: &dyn Fn(usize, usize) -> f32| -> Outcome<()> {
        let one = |at: usize| {
            let (i, j) = (at / side, at % side);
            let (low, high) = (i.min(j), i.max(j));
            element(low, high) + if i == j { more } else { 0.0 }
        };
        let matrix: Vec<f32> = (0..side * side).map(one).collect();
        let all: Vec<f32> = (0..batches).flat_map(|_| matrix.iter().copied()).collect();
        given.push(floats(&bench.engine, &[batches, n, n], &all)?);
        Ok(())
    };
    for kind in KINDS {
        let values = kind.values(n * n);
        // The triangle below the diagonal has the element in the middle.
        push(&|low, high| values.get(high * side + low).copied().unwrap_or(0.0))?;
    }
    push(&|i, j| if i == j { 1.0 } else { 0.0 })?;
    push(&|i, j| if i == j { i as f32 } else { 0.0 })?;
    Ok(given)
}

/// One large matrix, and many small ones.
pub fn matrices(bench: &Bench) -> Outcome<()> {
    let table = "matrices";
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name()).chain(["identity", "diagonal"]).collect();
    bench.table(table, &names);
    let sizes: &[(u64, u64)] = if bench.small { &[(1, 64), (16, 16)] } else { &[(1, 512), (256, 32)] };
    for &(batches, n) in sizes {
        let (given, positive) = (symmetric(bench, batches, n, 0.0)?, symmetric(bench, batches, n, 2.0 * n as f32)?);
        let Some(other) = given.first() else { continue };
        let ty = Type::new(DType::F32, &[batches, n, n]);
        let values = Type::new(DType::F32, &[batches, n]);
        let flag = Type::new(DType::U8, &[]);
        let triangular = Linalg::TriangularSolve { lower: true, left_side: true, transform: Transform::None };
        let (one, two, three) = (vec![ty.clone()], vec![ty.clone(); 2], vec![ty.clone(); 3]);
        for (name, op, from, with, outs) in [
            ("cholesky", Op::from(Linalg::Cholesky), &positive, false, one.clone()),
            ("lu", Op::from(Linalg::Lu), &given, false, three),
            ("solve", Op::from(Linalg::Solve), &given, true, vec![ty.clone(), flag]),
            ("triangular_solve", Op::from(triangular), &positive, true, one),
            ("qr", Op::from(Qr { complete: false }), &given, false, two),
            ("eigh", Op::from(Eigh), &given, false, vec![values.clone(), ty.clone()]),
            ("svd", Op::from(Svd { full: false }), &given, false, vec![ty.clone(), values, ty]),
        ] {
            bench.row(table, &format!("{name} of {batches} x {n} x {n}"), from, |a| {
                let operands = [a.clone(), other.clone()];
                bench.all(&op, &operands[..if with { 2 } else { 1 }], &outs)
            })?;
        }
    }
    Ok(())
}
