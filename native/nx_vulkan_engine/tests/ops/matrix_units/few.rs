//! A matrix by few vectors of f16 and bf16 on matrix units.

use half::{bf16, f16};
use nx_vulkan_engine::kernels::dot::{
    Choice, Epilogue, Feed, MatrixTile, MergedAxes, Outline, Product, Tiling, choose, product_as,
};
use nx_vulkan_engine::kernels::map::Operand;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::{CType, Compile, DType, Tensor, Type, View};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use super::{Given, Planes, Random, bytes, decode, dtypes, engine, planes_of_units};
use crate::common;

fn own_planes() -> impl Iterator<Item = Planes> {
    planes_of_units().into_iter().filter(|planes| planes.own_type().is_some())
}

/// Every way to multiply a matrix by so many vectors, which are the `first` operand or the second.
fn ways(planes: Planes, vectors: u64, first: bool, depth: u64) -> Vec<Choice> {
    let splits = [1, 3].into_iter().filter(|splits| depth >= 128 * splits);
    splits
        .flat_map(|splits| {
            let tile = MatrixTile::of_few(planes, vectors, first);
            tile.map(move |tile| Choice { tiling: Tiling::Matrix(tile), splits })
        })
        .collect()
}

/// The bits of a product, whose memory holds NaN before.
fn run(planes: Planes, a: &Given, b: &Given, way: Choice) -> Vec<u8> {
    let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
    let shape = [a.sizes[0], a.sizes[1], b.sizes[1]];
    let poison = vec![0xff; (shape.iter().product::<u64>() * dtype.size_bytes()) as usize];
    let out = Tensor::from_nx_bytes(engine, &Type::new(dtype, &shape), &poison).unwrap();
    let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
    product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
    bytes(engine, &out)
}

/// All sums of a product and the sums of their terms' absolute values.
fn sums(a: &Given, b: &Given) -> Vec<(f64, f64)> {
    let [batches, rows, depth] = a.sizes;
    let columns = b.sizes[1];
    let places = (0..batches * rows * columns).map(|at| (at / columns / rows, at / columns % rows, at % columns));
    places
        .map(|(batch, m, n)| {
            let terms = (0..depth).map(|k| a.at(batch, m, k) * b.at(batch, n, k));
            terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
        })
        .collect()
}

fn assert_near(dtype: DType, got: &[f64], expected: &[(f64, f64)], what: &str) {
    let ulp = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
    for (at, (&got, &(sum, size))) in got.iter().zip(expected).enumerate() {
        let limit = 256.0 * size * 2f64.powi(-24) + sum.abs() * ulp;
        assert!((got - sum).abs() <= limit, "{what} at {at}: {got}, not {sum}");
    }
}

/// Batches, rows and contracted elements of matrices.
const MATRICES: [[u64; 3]; 6] = [[1, 192, 1024], [2, 72, 520], [1, 131, 333], [3, 64, 72], [1, 40, 1100], [1, 9, 2051]];

/// Whichever side the vectors stand on, and wherever operands lie, a product is right and has the same bits.
#[test]
fn a_matrix_by_few_vectors() {
    for planes in own_planes() {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        for (vectors, [batches, rows, depth]) in (5..=16).zip(MATRICES.into_iter().cycle()) {
            let given = |n: u64, seed: u64, along_k: bool| {
                let mut random = Random(seed);
                let values: Vec<f64> = (0..batches * n * depth).map(|_| random.normal()).collect();
                // By batch, row and contracted element, however they lie.
                let at = |i: u64| {
                    let (batch, i) = (i / (n * depth), i % (n * depth));
                    let (row, k) = if along_k { (i / depth, i % depth) } else { (i % n, i / n) };
                    values[((batch * n + row) * depth + k) as usize]
                };
                let lying: Vec<f64> = (0..batches * n * depth).map(at).collect();
                Given::new(engine, dtype, [batches, n, depth], along_k, &lying)
            };
            let layouts = [true, false].map(|along_k| (given(rows, 1, along_k), given(vectors, 2, along_k)));
            let expected = sums(&layouts[0].0, &layouts[0].1);
            for way in ways(planes, vectors, false, depth) {
                let Choice { tiling: Tiling::Matrix(tile), splits } = way else { unreachable!("a tile of units") };
                let turned = MatrixTile { rows: tile.columns, columns: tile.rows, ..tile };
                let turned = Choice { tiling: Tiling::Matrix(turned), splits };
                let mut bits: Option<Vec<f64>> = None;
                for (m, v) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                    let what = format!("{dtype} {batches} x {rows} x {depth} by {vectors}, {m} {v}, {way:?}");
                    let (matrix, vector) = (&layouts[m].0, &layouts[v].1);
                    let got = decode(dtype, &run(planes, matrix, vector, way));
                    assert_near(dtype, &got, &expected, &what);
                    assert!(bits.get_or_insert_with(|| got.clone()) == &got, "{what}");
                    let other = decode(dtype, &run(planes, vector, matrix, turned));
                    let turned = |at: u64| {
                        let (batch, row, column) = (at / vectors / rows, at / vectors % rows, at % vectors);
                        other[((batch * vectors + column) * rows + row) as usize]
                    };
                    assert!((0..got.len()).all(|at| got[at] == turned(at as u64)), "{what}, turned");
                }
            }
        }
        common::assert_valid(engine);
    }
}

/// What lies behind the ends of rows, and between them, is not multiplied.
#[test]
fn parts_of_larger_matrices() {
    for planes in own_planes() {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        let [rows, depth, vectors, whole] = [80, 360, 11, 512];
        for (along_k, vectors_along_k) in [(true, true), (false, true), (true, false), (false, false)] {
            let part = |n: u64, of: u64, along_k: bool, seed: u64| {
                let mut random = Random(seed);
                let inside =
                    |i: u64| if along_k { i / whole < n && i % whole < depth } else { i % of < n && i / of < depth };
                let values: Vec<f64> =
                    (0..of * whole).map(|i| if inside(i) { random.normal() } else { f64::NAN }).collect();
                let all = Given::new(engine, dtype, [1, of, whole], along_k, &values);
                let mut part = all.matrix();
                let narrow = |n: u64, stride: i64| MergedAxes::new(&[n], &[stride]);
                let [_, free, k] = all.strides();
                (part.free, part.depth) = (narrow(n, free), narrow(depth, k));
                (all, part)
            };
            let (matrix, m) = part(rows, 96, along_k, 3);
            let (vector, v) = part(vectors, 16, vectors_along_k, 4);
            let expected: Vec<(f64, f64)> = (0..rows * vectors)
                .map(|at| {
                    let terms = (0..depth).map(|k| matrix.at(0, at / vectors, k) * vector.at(0, at % vectors, k));
                    terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
                })
                .collect();
            for way in ways(planes, vectors, false, depth) {
                let out = Tensor::uninitialized(engine, &Type::new(dtype, &[1, rows, vectors])).unwrap();
                let p = Product { a: m.clone(), b: v.clone(), out: &out, prologues: [None, None], epilogue: None };
                product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                let what = format!("{dtype} {along_k} {vectors_along_k} {way:?}");
                assert_near(dtype, &decode(dtype, &bytes(engine, &out)), &expected, &what);
            }
        }
        common::assert_valid(engine);
    }
}

/// A bias, a function and a mask behind the product, of results in either layout and of another type.
#[test]
fn epilogues_of_few_vectors() {
    let step = |op, args: &[Ref], out| Step { op, args: args.into(), out };
    for planes in own_planes() {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        let round = |x: f64| match dtype {
            DType::F16 => f16::from_f64(x).to_f64(),
            _ => bf16::from_f64(x).to_f64(),
        };
        for ([matrix_rows, depth, vectors], first, transposed) in [[136, 640, 12], [131, 520, 7], [64, 1032, 16]]
            .into_iter()
            .flat_map(|sizes| [(false, false), (false, true), (true, false), (true, true)].map(|(f, t)| (sizes, f, t)))
        {
            let (rows, columns) = if first { (vectors, matrix_rows) } else { (matrix_rows, vectors) };
            let a = Given::random(engine, dtype, [1, rows, depth], true, 3);
            let b = Given::random(engine, dtype, [1, columns, depth], !first, 4);
            let bias = Given::random(engine, DType::F32, [1, 1, columns], true, 5);
            let mask = Given::random(engine, DType::F32, [1, rows, columns], true, 6);
            let steps = [
                step(Elementwise::AsType, &[Ref::Input(0)], DType::F32),
                step(Elementwise::Binary(Binary::Add), &[Ref::Result(0), Ref::Input(1)], DType::F32),
                step(Elementwise::Unary(Unary::Tanh), &[Ref::Result(1)], DType::F32),
                step(Elementwise::Binary(Binary::Multiply), &[Ref::Result(2), Ref::Input(2)], DType::F32),
            ];
            let shape = if transposed { [1, columns, rows] } else { [1, rows, columns] };
            let whole = Tensor::uninitialized(engine, &Type::new(DType::F32, &shape)).unwrap();
            let (m, n) = (rows as i64, columns as i64);
            let strides = if transposed { smallvec![m * n, 1, m] } else { smallvec![m * n, n, 1] };
            let out_view = View { shape: smallvec![1, rows, columns], strides, ..whole.view().clone() };
            let out = Tensor::new(whole.buffer().clone(), out_view).unwrap();
            let bias_view =
                View { strides: smallvec![0, 0, 1], shape: smallvec![1, rows, columns], ..bias.tensor.view().clone() };
            let inputs = [
                Operand::new(bias.tensor.buffer(), &bias_view, Element::Typed(DType::F32)),
                Operand::new(mask.tensor.buffer(), mask.tensor.view(), Element::Typed(DType::F32)),
            ];
            let expected = sums(&a, &b);
            for way in ways(planes, vectors, first, depth) {
                let epilogue = Epilogue { dtype, inputs: &inputs, steps: &steps, result: Ref::Result(3) };
                let (a, b) = (a.matrix(), b.matrix());
                let p = Product { a, b, out: &out, prologues: [None, None], epilogue: Some(epilogue) };
                product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                let got = decode(DType::F32, &bytes(engine, &whole));
                for (at, &(sum, _)) in (0..rows * columns).zip(&expected) {
                    let (row, column) = (at / columns, at % columns);
                    let want = (round(sum) + bias.at(0, 0, column)).tanh() * mask.at(0, row, column);
                    let place = if transposed { column * rows + row } else { at };
                    // A sum of a thousand terms is rounded to eight bits before it is added to the bias.
                    let limit = (sum.abs() * 2f64.powi(-7) + 1e-2).min(2.0) * mask.at(0, row, column).abs() + 1e-5;
                    let got = got[place as usize];
                    let what = format!("{dtype} {rows} x {depth} x {columns} {transposed} {way:?} at {at}");
                    assert!((got - want).abs() <= limit, "{what}: {got}, not {want}");
                }
            }
        }
        common::assert_valid(engine);
    }
}

#[test]
fn large_matrices_by_few_vectors_are_given_to_the_units() {
    for planes in own_planes() {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        for (vectors, first) in [5, 8, 9, 16].into_iter().flat_map(|n| [(n, false), (n, true)]) {
            let a = Given::new(engine, dtype, [1, 1, 8], true, &[0.0; 8]);
            let out = Tensor::uninitialized(engine, &Type::new(dtype, &[1, 1, 1])).unwrap();
            let p = Product { a: a.matrix(), b: a.matrix(), out: &out, prologues: [None, None], epilogue: None };
            let own = engine.takes_own_numbers(dtype, Compile::Allowed).unwrap();
            let (rows, columns) = if first { (vectors, 14_336) } else { (14_336, vectors) };
            let outline = p.outline(engine.precision(), own);
            let outline = Outline { rows, columns, depth: 4096, ..outline };
            let chosen = choose(engine.model(), &outline, CType::F32).tiling;
            let is_few = matches!(chosen, Tiling::Matrix(tile) if tile.feed == Feed::Few);
            assert!(is_few, "{rows} x {columns}: {chosen:?}");
        }
    }
}
