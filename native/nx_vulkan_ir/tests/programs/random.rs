//! Random numbers as `Nx.Random` draws them, of blocks that give two words each, of one key or of several, and what it
//! shuffles and chooses by them.

use nx_vulkan_ir::program::attribute::Scalar;
use nx_vulkan_ir::program::fused::is_view;
use nx_vulkan_ir::program::ops::index::{Indexing, TakeAlongAxis};
use nx_vulkan_ir::program::ops::order::{Argsort, Order};
use nx_vulkan_ir::program::passes::{Saving, optimize};
use nx_vulkan_ir::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::known_comparisons::uniform;
use crate::passes::target;

/// Two words of two counters, of which each takes more steps than kernels compute again.
fn block(b: &Builder, counters: [Operand; 2], key: [Operand; 2]) -> [Operand; 2] {
    let mut words = [b.add(counters[0], key[0]), b.add(counters[1], key[1])];
    let number = |value: i128| b.constant(DType::U32, Scalar::Int(value));
    for turn in [13, 15, 26, 6, 17, 29, 16, 24].into_iter().cycle().take(20) {
        let sum = b.add(words[0], words[1]);
        let left = b.binary(Binary::LeftShift, words[1], number(turn));
        let right = b.binary(Binary::RightShift, words[1], number(32 - turn));
        words = [sum, b.binary(Binary::BitwiseXor, b.binary(Binary::BitwiseOr, left, right), sum)];
    }
    [b.add(words[0], key[1]), b.add(words[1], key[0])]
}

/// Words of each of several keys, an odd count of them without the last one.
fn words(b: &Builder, keys: [Operand; 2], count: u64) -> Operand {
    let lines = b.ty(keys[0]).shape[0];
    let half = count.div_ceil(2);
    let counters = b.iota(DType::U32, &[2, half], None);
    let halves = block(b, [0, 1].map(|at| b.slice(counters, &[at, 0], &[1, half])), keys);
    let both = b.concatenate(&halves, 1);
    if count == 2 * half { both } else { b.slice(both, &[0, 0], &[lines, count]) }
}

fn keys(b: &Builder, lines: u64) -> [Operand; 2] {
    let keys = b.input(DType::U32, &[lines, 2]);
    [0, 1].map(|at| b.slice(keys, &[0, at], &[lines, 1]))
}

/// That optimizing leaves so many ops beside views and numbers, and the bits as they are.
fn check(program: &Program, kernels: usize) {
    let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
    let computes = |op: &Op| !is_view(op) && !matches!(op, Op::Constant(_));
    assert_eq!(optimized.instructions.iter().filter(|i| computes(&i.op)).count(), kernels, "{optimized}");
    let value = |i: u64, dtype| Value::Int(i128::from(i * 0x9e37_79b9 % 77_777)).cast(dtype);
    let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| value(i, ty.dtype)));
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    let results = |program: &Program| reference::run(program, &inputs).unwrap();
    assert!(results(program) == results(&optimized), "{program}{optimized}");
}

#[test]
fn draws_of_several_keys_are_one_kernel() {
    for (count, shape) in [(64, [3, 16, 4]), (33, [3, 3, 11])] {
        let b = Builder::new();
        let drawn = b.reshape(words(&b, keys(&b, 3), count), &shape);
        let drawn = uniform(&b, drawn, DType::F32);
        check(&b.finish(&[drawn]).unwrap(), 1);
    }
}

#[test]
fn draws_of_which_another_number_of_elements_is_left_out_are_stepped_through_apart() {
    let b = Builder::new();
    let keys_of_lines = |lines| {
        let both = b.input(DType::U32, &[lines, 2]);
        [0, 1].map(|at| b.slice(both, &[0, at], &[lines, 1]))
    };
    let [one, three] =
        [(1, 33), (3, 11)].map(|(lines, count)| b.reshape(words(&b, keys_of_lines(lines), count), &[33]));
    let sum = b.add(one, three);
    check(&b.finish(&[sum]).unwrap(), 3);
}

#[test]
fn keys_that_are_split_on_the_way_are_one_kernel_before_the_draws() {
    let b = Builder::new();
    let split = b.reshape(words(&b, keys(&b, 3), 4), &[3, 2, 2]);
    let key = [0, 1].map(|at| b.reshape(b.slice(split, &[0, 1, at], &[3, 1, 1]), &[3, 1]));
    let kept = b.slice(split, &[0, 0, 0], &[3, 1, 2]);
    let drawn = uniform(&b, words(&b, key, 4096), DType::F32);
    check(&b.finish(&[drawn, kept]).unwrap(), 2);
}

#[test]
fn halves_of_what_several_keys_draw_are_the_words_of_a_block() {
    let b = Builder::new();
    let drawn = b.reshape(words(&b, keys(&b, 3), 4096), &[3, 2, 2048]);
    let [high, low] = [0, 1].map(|at| b.slice(drawn, &[0, at, 0], &[3, 1, 2048]));
    let sum = b.add(b.multiply(high, 7.0), low);
    check(&b.finish(&[sum]).unwrap(), 1);
}

/// Words of 64 bits, one for each of two parts of what is drawn, so that each element takes two blocks.
#[test]
fn numbers_of_two_blocks_are_one_kernel() {
    let b = Builder::new();
    let both = b.as_type(b.reshape(words(&b, keys(&b, 1), 8192), &[2, 4096]), DType::U64);
    let row = |of, at| b.reshape(b.slice(of, &[at, 0], &[1, b.ty(of).shape[1]]), &[b.ty(of).shape[1]]);
    let [high, low] = [row(both, 0), row(both, 1)];
    let wide = b.binary(Binary::BitwiseOr, b.binary(Binary::LeftShift, high, 32.0), low);
    let parts = b.reshape(wide, &[2, 2048]);
    let sum = b.add(b.binary(Binary::Remainder, row(parts, 0), 7.0), row(parts, 1));
    check(&b.finish(&[sum]).unwrap(), 1);
}

/// The number is made of two halves, of which the words are seen by way of a cast, and the block's words are stacked.
#[test]
fn numbers_are_folded_into_keys_in_one_kernel() {
    let b = Builder::new();
    let key = b.input(DType::U32, &[2]);
    let key = [0, 1].map(|at| b.at(key, at));
    let halves = [0, 7].map(|value| b.constant(DType::U64, Scalar::Int(value)));
    let halves = b.push(Op::Stack { axis: 0 }, &halves, &Type::new(DType::U64, &[2]));
    let data = b.as_type(b.reshape(halves, &[2, 1]), DType::U32);
    let data = [0, 1].map(|at| b.reshape(b.slice(data, &[at, 0], &[1, 1]), &[1]));
    let folded = b.push(Op::Stack { axis: 1 }, &block(&b, data, key), &Type::new(DType::U32, &[1, 2]));
    check(&b.finish(&[folded]).unwrap(), 1);
}

#[test]
fn slices_of_parts_side_by_side_show_what_they_show_of_the_whole() {
    for axis in 0..3 {
        for sizes in [[1, 2, 1], [4, 4, 4], [3, 0, 1]] {
            let b = Builder::new();
            let parts = sizes.map(|size| {
                let mut shape = [2, 3, 4];
                shape[axis] = size;
                b.input(DType::S32, &shape)
            });
            let whole = b.concatenate(&parts, axis);
            let elements = b.ty(whole).elements();
            let mut shapes = vec![b.ty(whole).shape.to_vec()];
            shapes.extend([1, 2, 3, 4, 6, 8, 12].iter().map(|&rows| vec![rows, elements / rows]));
            shapes.extend([2, 3, 4].iter().map(|&rows| vec![2, elements / (2 * rows), rows]));
            let mut shown = vec![];
            for shape in shapes.iter().filter(|shape| shape.iter().product::<u64>() == elements) {
                let seen = b.reshape(whole, shape);
                for (along, &size) in shape.iter().enumerate() {
                    for start in 0..size.min(5) {
                        for length in 1..=(size - start).min(4) {
                            let (mut starts, mut lengths) = (vec![0; shape.len()], shape.clone());
                            (starts[along], lengths[along]) = (start, length);
                            shown.push(b.add(b.slice(seen, &starts, &lengths), 1.0));
                        }
                    }
                }
            }
            let program = b.finish(&shown).unwrap();
            let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
            let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| Value::Int(i128::from(i * 31 % 257))));
            let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
            let results = |program: &Program| reference::run(program, &inputs).unwrap();
            assert!(results(&program) == results(&optimized), "parts of {sizes:?} along axis {axis}");
        }
    }
}

/// Sorted random numbers say what is taken from numbers that count, and from what is shuffled; few of it are chosen.
#[test]
fn a_round_of_a_shuffle_is_an_order_and_what_is_taken_by_it() {
    let argsort = || Op::from(Order::Argsort(Argsort { axis: 0, descending: false }));
    for (rounds, chosen, kernels) in [(0, 100, 0), (1, 100, 2), (1, 7, 2)] {
        let b = Builder::new();
        let (keys, x) = (b.input(DType::U32, &[100]), b.input(DType::F32, &[100, 3]));
        let (first, counters) = (b.number(DType::S32, 0.0), b.iota(DType::S32, &[100], Some(0)));
        let order = b.while_loop(
            &[first, counters],
            &[keys],
            |b, v| b.less(v[0], f64::from(rounds)),
            |b, v| {
                let order = b.push(argsort(), &[v[2]], &Type::new(DType::S32, &[100]));
                vec![b.add(v[0], 1.0), b.take(v[1], order, 0)]
            },
        )[1];
        let shuffled = b.slice(b.take(x, order, 0), &[0, 0], &[chosen, 3]);
        check(&b.finish(&[shuffled]).unwrap(), kernels);
    }
}

#[test]
fn what_is_taken_from_numbers_that_count_are_indices_within_bounds() {
    for counted in [DType::S32, DType::U64, DType::U8] {
        for dtype in [DType::S8, DType::U8, DType::S32, DType::S64] {
            let b = Builder::new();
            let (line, table) = (b.input(dtype, &[9]), b.input(dtype, &[2, 9]));
            let taken = b.take(b.iota(counted, &[300], None), line, 0);
            let along = Op::from(Indexing::TakeAlongAxis(TakeAlongAxis { axis: 1 }));
            let out = Type::new(counted, &[2, 9]);
            let along = b.push(along, &[b.iota(counted, &[2, 5], Some(1)), table], &out);
            let program = b.finish(&[taken, along]).unwrap();
            let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
            assert!(!optimized.instructions.iter().any(|i| matches!(i.op, Op::Indexing(_))), "{optimized}");
            let values = [-7, 0, 1, 4, 5, 127, 299, 300, 70_000].map(|i| Value::Int(i).cast(dtype));
            let inputs = [[9].as_slice(), &[2, 9]].map(|shape| {
                Array::new(&Type::new(dtype, shape), values.iter().copied().cycle().take(9 * shape.len()))
            });
            let results = |program: &Program| reference::run(program, &inputs).unwrap();
            assert!(results(&program) == results(&optimized), "{counted} by {dtype}");
        }
    }
}

#[test]
fn slices_of_what_is_taken_take_by_a_slice_of_the_indices() {
    let b = Builder::new();
    let [x, y] = [0; 2].map(|_| b.input(DType::F32, &[6, 5]));
    let (rows, table) = (b.input(DType::S32, &[4, 8]), b.input(DType::S32, &[6, 8]));
    let along = Op::from(Indexing::TakeAlongAxis(TakeAlongAxis { axis: 1 }));
    let shown = [
        b.slice(b.take(x, rows, 0), &[1, 2, 0], &[2, 3, 5]),
        b.slice(b.take(x, rows, 1), &[0, 3, 0], &[6, 1, 8]),
        b.slice(b.push(along.clone(), &[x, table], &Type::new(DType::F32, &[6, 8])), &[0, 5], &[6, 3]),
        // All lines are read where some elements are.
        b.slice(b.push(along, &[y, table], &Type::new(DType::F32, &[6, 8])), &[2, 0], &[4, 8]),
    ];
    let program = b.finish(&shown).unwrap();
    let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
    let mut taken: Vec<u64> = optimized
        .instructions
        .iter()
        .filter(|i| matches!(i.op, Op::Indexing(_)))
        .map(|i| i.outs[0].elements())
        .collect();
    taken.sort_unstable();
    assert_eq!(taken, [18, 30, 48, 48], "{optimized}");
    let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| Value::Int(i128::from(i % 7)).cast(ty.dtype)));
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    let results = |program: &Program| reference::run(program, &inputs).unwrap();
    assert!(results(&program) == results(&optimized), "{optimized}");
}
