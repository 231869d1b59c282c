//! Elementwise steps on the results of products: the same bits as the product and the steps one after the other.

use nx_vulkan_engine::kernels::dot::{
    Choice, Epilogue, Matrix, MergedAxes, Product, Tile, Tiling, lane_tiles, product, product_as,
};
use nx_vulkan_engine::kernels::map::{Operand, Shapes, map};
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::{CType, Compile, DType, Tensor, Type};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;

use super::values::{Range, operand};
use super::{download, engine, finish, rng, upload};
use crate::compare::{Bound, mismatch};

fn step(op: Elementwise, args: &[Ref], out: DType) -> Step {
    Step { op, args: args.iter().copied().collect(), out }
}

/// Steps with operands of every layout: columns, rows, the shape backwards, one element.
fn steps(dtype: DType) -> Vec<Step> {
    let binary = Elementwise::Binary;
    vec![
        step(binary(Binary::Add), &[Ref::Input(0), Ref::Input(1)], dtype),
        step(binary(Binary::Max), &[Ref::Result(0), Ref::Input(2)], dtype),
        step(binary(Binary::Multiply), &[Ref::Result(1), Ref::Input(3)], dtype),
        step(binary(Binary::Subtract), &[Ref::Input(4), Ref::Result(2)], dtype),
        step(Elementwise::Unary(Unary::Tanh), &[Ref::Result(3)], dtype),
        step(binary(Binary::Less), &[Ref::Result(4), Ref::Input(0)], DType::U8),
        step(Elementwise::Select, &[Ref::Result(5), Ref::Result(4), Ref::Input(0)], dtype),
    ]
}

/// `[batches, rows, depth]` times `[batches, depth, columns]`.
fn check([batches, rows, columns, depth]: [u64; 4], dtype: DType, stored: DType, choice: Option<Choice>, seed: u64) {
    let mut rng = rng(seed);
    let mut filled =
        |dtype: DType, shape: &[u64]| upload(&operand(&Type::new(dtype, shape), Range::Ordinary, 0, &mut rng));
    let (a, b) = (filled(dtype, &[batches, rows, depth]), filled(dtype, &[batches, depth, columns]));
    let group = |t: &Tensor, axis: usize| MergedAxes::new(&t.view().shape[axis..=axis], &t.view().strides[axis..=axis]);
    let matrix = |t: &Tensor, free: usize, depth: usize| Matrix {
        tensor: t.clone(),
        batch: group(t, 0),
        free: group(t, free),
        depth: group(t, depth),
    };
    let shape = [batches, rows, columns];
    let columns_of = filled(dtype, &[columns]);
    let rows_of = filled(DType::F32, &[batches, rows]);
    let whole = filled(DType::Bf16, &shape);
    let one = filled(dtype, &[]);
    let views = [
        columns_of.view().broadcast(&shape, &[2]).unwrap(),
        rows_of.view().broadcast(&shape, &[0, 1]).unwrap(),
        whole.view().reverse(&[1, 2]).unwrap(),
        one.view().broadcast(&shape, &[]).unwrap(),
    ];
    let buffers = [columns_of.buffer(), rows_of.buffer(), whole.buffer(), one.buffer()];
    let inputs: Vec<Operand<'_>> = buffers
        .iter()
        .zip(&views)
        .map(|(buffer, view)| Operand::new(buffer, view, Element::Typed(view.dtype)))
        .collect();
    let mut steps = steps(dtype);
    steps.push(step(Elementwise::AsType, &[Ref::Result(6)], stored));
    let result = Ref::Result(steps.len() as u16 - 1);
    let out = Tensor::uninitialized(engine(), &Type::new(stored, &shape)).unwrap();
    let bare = Tensor::uninitialized(engine(), &Type::new(dtype, &shape)).unwrap();
    let after = Tensor::uninitialized(engine(), &Type::new(stored, &shape)).unwrap();
    let run = |out: &Tensor, epilogue: Option<Epilogue<'_>>| {
        let p = Product { a: matrix(&a, 1, 2), b: matrix(&b, 2, 1), out, prologues: [None, None], epilogue };
        match choice {
            Some(choice) => product_as(engine(), &p, dtype.ctype(), choice, Compile::Allowed).unwrap(),
            None => product(engine(), &p, Compile::Allowed).unwrap(),
        }
    };
    run(&out, Some(Epilogue { dtype, inputs: &inputs, steps: &steps, result }));
    run(&bare, None);
    let product = Operand::new(bare.buffer(), bare.view(), Element::Typed(dtype));
    let all: Vec<Operand<'_>> = std::iter::once(product).chain(inputs.iter().cloned()).collect();
    let output = Operand::new(after.buffer(), after.view(), Element::Typed(stored));
    map(engine(), &shape, &all, steps.iter().cloned().collect(), &[(result, output)], Shapes::Any, Compile::Allowed)
        .unwrap();
    let wrong = mismatch(&download(&out), &[download(&after)], Bound::Exact);
    assert!(wrong.is_none(), "{shape:?} of {depth} as {dtype}, {choice:?}: {wrong:?}");
}

#[test]
fn epilogues_give_the_bits_of_separate_steps() {
    let tiled = |index: usize, splits: u64| {
        let tile = Tile::all(CType::F32)[index % Tile::all(CType::F32).len()];
        Some(Choice { tiling: Tiling::Tiled(tile), splits })
    };
    check([1, 36, 44, 70], DType::F32, DType::F32, tiled(0, 1), 95);
    check([2, 33, 21, 70], DType::F32, DType::Bf16, tiled(1, 1), 96);
    check([2, 20, 24, 300], DType::F32, DType::F32, tiled(2, 3), 97);
    check([1, 17, 9, 900], DType::F16, DType::F32, tiled(3, 10), 98);
    check([1, 17, 12, 40], DType::F16, DType::F16, tiled(4, 1), 99);
    check([1, 20, 24, 30], DType::F32, DType::F32, Some(Choice { tiling: Tiling::Square, splits: 2 }), 100);
    check([3, 5, 7, 11], DType::F32, DType::F32, Some(Choice { tiling: Tiling::Narrow, splits: 1 }), 101);
    let f64_tile = Some(Choice { tiling: Tiling::Tiled(Tile::all(CType::F64)[0]), splits: 1 });
    check([1, 36, 44, 70], DType::F64, DType::F32, f64_tile, 102);
    for (k, &tile) in lane_tiles(engine().model(), CType::F32).iter().enumerate() {
        let lanes = |splits: u64| Some(Choice { tiling: Tiling::Lanes(tile), splits });
        check([2, 37, 21, 70], DType::F32, DType::Bf16, lanes(1), 105 + k as u64);
        check([1, 33, 12, 40], DType::F16, DType::F32, lanes(1 + k as u64), 110 + k as u64);
    }
    // As the engine chooses, and a product with a vector.
    check([1, 40, 24, 80], DType::F32, DType::F32, None, 103);
    check([1, 1, 64, 1500], DType::F32, DType::F32, None, 104);
    finish();
}
