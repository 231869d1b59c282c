//! Products of f16 and bf16 whose operands are written in the order of matrices, beside those that find them where they
//! lie.

use nx_vulkan_engine::kernels::dot::{Choice, Epilogue, Feed, MatrixTile, Product, Tiling, product_as};
use nx_vulkan_engine::kernels::map::Operand;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::{CType, Compile, DType, Tensor, Type, View};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::{Given, bytes, dtypes, engine, planes_of_units};
use crate::common;

/// What an epilogue does to a product, whose type is given, with a bias and an operand as large as the results.
fn epilogues(dtype: DType) -> Vec<(DType, Vec<Step>)> {
    let step = |op, args: &[Ref], out| Step { op, args: args.into(), out };
    let [product, bias, other] = [0, 1, 2].map(Ref::Input);
    let add = |a, b, out| step(Elementwise::Binary(Binary::Add), &[a, b], out);
    let erf = |of, out| step(Elementwise::Unary(Unary::Erf), &[of], out);
    let multiply = |a, b, out| step(Elementwise::Binary(Binary::Multiply), &[a, b], out);
    let to_f32 = step(Elementwise::AsType, &[product], DType::F32);
    vec![
        (dtype, vec![add(product, bias, dtype)]),
        (dtype, vec![add(product, bias, dtype), erf(Ref::Result(0), dtype), multiply(Ref::Result(1), other, dtype)]),
        (DType::F32, vec![to_f32.clone(), add(Ref::Result(0), other, DType::F32)]),
        (DType::F32, vec![to_f32, erf(Ref::Result(0), DType::F32), multiply(Ref::Result(1), bias, DType::F32)]),
    ]
}

/// What epilogues make of products has the same bits, whichever tile computes them, and wherever results and operands
/// lie: neighbours, columns that are rows, or parts of larger rows.
#[test]
fn epilogues_have_the_bits_of_other_tiles() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.own_type().is_some()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        for ([batches, rows, depth, columns], along) in [
            ([1, 136, 264, 328], [true, false]),
            ([2, 72, 128, 64], [false, true]),
            ([1, 328, 512, 136], [false, false]),
            ([3, 200, 72, 80], [true, true]),
        ] {
            let a = Given::random(engine, dtype, [batches, rows, depth], along[0], 3);
            let b = Given::random(engine, dtype, [batches, columns, depth], along[1], 4);
            let bias = Given::random(engine, dtype, [1, 1, columns], true, 5);
            let other = Given::random(engine, dtype, [batches, rows, columns], true, 6);
            let shape: SmallVec<[u64; 3]> = smallvec![batches, rows, columns];
            for (out_dtype, steps) in epilogues(dtype) {
                for (room, across) in [(columns, false), (columns + 8, false), (columns + 3, false), (rows, true)] {
                    let lines = if across { columns } else { rows };
                    let whole = Type::new(out_dtype, &[batches, lines, room]);
                    let (line, all) = (room as i64, (lines * room) as i64);
                    let strides = if across { smallvec![all, 1, line] } else { smallvec![all, line, 1] };
                    let bias_view = View {
                        strides: smallvec![0, 0, 1],
                        shape: shape.as_slice().into(),
                        ..bias.tensor.view().clone()
                    };
                    let inputs = [
                        Operand::new(bias.tensor.buffer(), &bias_view, Element::Typed(dtype)),
                        Operand::new(other.tensor.buffer(), other.tensor.view(), Element::Typed(dtype)),
                    ];
                    let mut expected: Option<Vec<u8>> = None;
                    for tile in MatrixTile::all(planes) {
                        let poison = vec![0xff; (batches * lines * room * out_dtype.size_bytes()) as usize];
                        let memory = Tensor::from_nx_bytes(engine, &whole, &poison).unwrap();
                        let view =
                            View { shape: shape.as_slice().into(), strides: strides.clone(), ..memory.view().clone() };
                        let out = Tensor::new(memory.buffer().clone(), view).unwrap();
                        let last = Ref::Result(steps.len() as u16 - 1);
                        let epilogue = Epilogue { dtype, inputs: &inputs, steps: &steps, result: last };
                        let (a, b) = (a.matrix(), b.matrix());
                        let p = Product { a, b, out: &out, prologues: [None, None], epilogue: Some(epilogue) };
                        let way = Choice { tiling: Tiling::Matrix(tile), splits: 1 };
                        product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                        let got = bytes(engine, &memory);
                        assert_ne!(got, poison, "{dtype} {shape:?} {tile:?}");
                        let what = format!("{dtype} to {out_dtype} {shape:?} of {depth} in {room} {across} {tile:?}");
                        assert!(*expected.get_or_insert_with(|| got.clone()) == got, "{what} by {} steps", steps.len());
                    }
                }
            }
        }
        common::assert_valid(engine);
    }
}

/// Products of sizes that are no whole tiles, in splits or not, have the bits of tiles that read operands in place; what
/// lies behind the results stays as it was.
#[test]
fn products_have_the_bits_of_other_tiles() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.own_type().is_some()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        for ([batches, rows, depth, columns], splits) in [
            ([1, 8, 16, 8], 1),
            ([1, 24, 1000, 520], 1),
            ([2, 264, 72, 40], 1),
            ([1, 136, 2048, 136], 3),
            ([1, 128, 1032, 256], 5),
            ([5, 16, 64, 16], 1),
        ] {
            for along in [[true, true], [true, false], [false, true], [false, false]] {
                let a = Given::random(engine, dtype, [batches, rows, depth], along[0], depth);
                let b = Given::random(engine, dtype, [batches, columns, depth], along[1], depth + 1);
                let ty = Type::new(dtype, &[batches * rows * columns + 8]);
                let mut expected: Option<Vec<u8>> = None;
                for tile in MatrixTile::all(planes) {
                    let poison = vec![0xff; ((batches * rows * columns + 8) * dtype.size_bytes()) as usize];
                    let memory = Tensor::from_nx_bytes(engine, &ty, &poison).unwrap();
                    let view = View {
                        shape: smallvec![batches, rows, columns],
                        strides: smallvec![(rows * columns) as i64, columns as i64, 1],
                        ..memory.view().clone()
                    };
                    let out = Tensor::new(memory.buffer().clone(), view).unwrap();
                    let (a, b) = (a.matrix(), b.matrix());
                    let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                    let way = Choice { tiling: Tiling::Matrix(tile), splits };
                    product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                    let got = bytes(engine, &memory);
                    let what =
                        format!("{dtype} {batches} of {rows} x {depth} x {columns} {along:?} in {splits} {tile:?}");
                    assert!(got.ends_with(&[0xff; 16]), "{what}");
                    assert!(tile.feed == Feed::Planes || got[..2] != [0xff; 2], "{what}");
                    assert!(*expected.get_or_insert_with(|| got.clone()) == got, "{what}");
                }
            }
        }
        common::assert_valid(engine);
    }
}
