//! Results in the place of what a kernel reads for the last time: the bits of the ops one by one, in an arena that is
//! as much smaller.

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::eager::run_program;
use nx_vulkan_engine::executable::Summary;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::{Cumulative, Scan};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor, Type, Value};

use crate::common;

pub fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

pub fn random() -> common::Rng {
    let given = std::env::var("NX_VULKAN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = given.unwrap_or_else(now);
    println!("NX_VULKAN_TEST_SEED={seed}");
    common::Rng(seed | 1)
}

/// Small numbers, so that sums of thousands stay finite in all types.
fn input(random: &mut common::Rng, ty: &Type) -> Tensor {
    let value = |x: u64| match ty.dtype.is_float() || ty.dtype.is_complex() {
        true => Value::Float(x as f64 / 64.0 - 0.5),
        false => Value::Int(i128::from(x % 5)),
    };
    let array = Array::new(ty, (0..ty.elements()).map(|_| value(random.below(65))));
    Tensor::from_nx_bytes(engine(), ty, &array.to_nx_bytes()).unwrap()
}

/// A kernel that nothing fuses with.
pub fn sums(b: &Builder, x: Operand) -> Operand {
    let ty = b.ty(x);
    b.push(Op::from(Scan { scan: Cumulative::Sum, axis: ty.shape.len() - 1, reverse: false }), &[x], &ty)
}

fn reversed(b: &Builder, x: Operand) -> Operand {
    let ty = b.ty(x);
    b.push(Op::from(Reverse { axes: Axes::from_slice(&[ty.shape.len() - 1]) }), &[x], &ty)
}

/// Compares an executable's results with those of the ops one by one, and again with other inputs. Answers the bytes of
/// what it does.
pub fn checked(program: &Program) -> Summary {
    let mut random = random();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    for _ in 0..2 {
        let inputs: Vec<Tensor> = program.inputs.iter().map(|ty| input(&mut random, ty)).collect();
        let bits = |tensors: Vec<Tensor>| -> Vec<Vec<u8>> {
            tensors.iter().map(|t| t.to_nx_bytes(engine(), None).unwrap()).collect()
        };
        let before = bits(inputs.clone());
        let expected = bits(run_program(engine(), program, &inputs).unwrap());
        let got = bits(executable.run(&inputs, Compile::Allowed).unwrap());
        for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let at = got.iter().zip(expected).position(|(x, y)| x != y);
            assert!(at.is_none(), "output {k} differs at byte {at:?} of {program}");
        }
        assert_eq!(bits(inputs), before, "inputs of {program}");
    }
    common::assert_valid(engine());
    executable.summary()
}

fn arena(program: &Program) -> u64 {
    checked(program).arena_bytes
}

/// Outputs that `make` makes of sums of each of `n` inputs: where one has the place of a sum, the sum lies in the
/// output's memory.
fn of_sums(n: usize, ty: &Type, make: impl Fn(&Builder, &[Operand]) -> Vec<Operand>) -> Program {
    let b = Builder::new();
    let inputs: Vec<Operand> = (0..n).map(|_| b.input(ty.dtype, &ty.shape)).collect();
    let sums: Vec<Operand> = inputs.into_iter().map(|x| sums(&b, x)).collect();
    let outputs = make(&b, &sums);
    b.finish(&outputs).unwrap()
}

/// How many times the bytes of one result an arena takes.
fn times(arena_bytes: u64, ty: &Type) -> f64 {
    arena_bytes as f64 / ty.size_bytes() as f64
}

#[test]
fn results_lie_where_what_they_are_made_of_lay() {
    let dtypes =
        [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::S64, DType::S32, DType::U16, DType::U8, DType::C64];
    // Vectors, blocks and workgroups, one element more and less, and odd numbers.
    let near = |n: u64| [n - 1, n, n + 1];
    let mut sizes: Vec<u64> =
        [1, 2, 3, 7].into_iter().chain([256, 1024, 4096, 1 << 14, 1 << 16].into_iter().flat_map(near)).collect();
    sizes.extend([100_003, (1 << 17) + 24, (1 << 20) + 5]);
    for (k, &n) in sizes.iter().enumerate() {
        for &dtype in dtypes.iter().skip(k % 3).step_by(if n > 1 << 15 { 3 } else { 1 }) {
            let ty = Type::new(dtype, &[n]);
            let taken = times(arena(&of_sums(1, &ty, |b, x| vec![b.add(x[0], x[0])])), &ty);
            assert!(ty.size_bytes() < 1 << 15 || taken < 0.1, "{taken} times {ty}");
            // In the arena: two sums, of which one becomes their sum.
            let within = |b: &Builder, x: &[Operand]| vec![b.sum(sums(b, b.add(x[0], x[1])), &[0])];
            let taken = times(arena(&of_sums(2, &ty, within)), &ty);
            assert!(ty.size_bytes() < 1 << 15 || taken < 2.1, "{taken} times {ty}");
        }
    }
}

#[test]
fn costly_functions_that_need_their_long_forms_read_their_elements_again() {
    for n in [1000, (1 << 16) + 40, 1 << 18] {
        let ty = Type::new(DType::F32, &[n]);
        // Beyond what the short forms take now and then.
        let large = |b: &Builder, x: Operand| b.sin(b.multiply(b.multiply(x, x), 1e9));
        let program = of_sums(2, &ty, |b, x| vec![b.add(large(b, x[0]), b.exp(b.multiply(x[1], -1.0)))]);
        let taken = times(arena(&program), &ty);
        assert!(n < 1 << 15 || taken < 1.1, "{taken} times {ty}");
    }
}

#[test]
fn what_is_read_in_two_ways_is_not_written() {
    for n in [9001, 1 << 14, (1 << 16) + 8] {
        let ty = Type::new(DType::F32, &[n]);
        let program = of_sums(1, &ty, |b, x| vec![b.subtract(x[0], reversed(b, x[0]))]);
        let taken = times(arena(&program), &ty);
        assert!(taken > 0.9, "reversed: {taken} times {ty}");
        let program = of_sums(1, &ty, |b, x| {
            let shifted = b.concatenate(&[b.slice(x[0], &[1], &[n - 1]), b.slice(x[0], &[0], &[1])], 0);
            vec![b.subtract(x[0], shifted)]
        });
        arena(&program);
        let program = of_sums(1, &ty, |b, x| {
            let first = b.broadcast(b.reshape(b.slice(x[0], &[0], &[1]), &[]), &[n]);
            vec![b.subtract(x[0], first)]
        });
        let taken = times(arena(&program), &ty);
        assert!(taken > 0.9, "first element: {taken} times {ty}");
        let program = of_sums(1, &ty, |b, x| vec![b.multiply(reversed(b, x[0]), 0.5)]);
        arena(&program);
    }
    for n in [101, 256] {
        let ty = Type::new(DType::F32, &[n, n]);
        let turned = of_sums(1, &ty, |b, x| vec![b.subtract(x[0], b.transpose(x[0], &[1, 0]))]);
        arena(&turned);
        let row = of_sums(1, &ty, |b, x| {
            let row = b.broadcast(b.slice(x[0], &[n / 2, 0], &[1, n]), &[n, n]);
            vec![b.multiply(x[0], row)]
        });
        let taken = times(arena(&row), &ty);
        assert!(taken > 0.9, "a row: {taken} times {ty}");
    }
}

#[test]
fn parts_of_what_is_read_keep_their_place() {
    for n in [9000, 1 << 17] {
        let ty = Type::new(DType::F32, &[n]);
        // From the first element on, and from another.
        let program = of_sums(1, &ty, |b, x| {
            let part = |from: u64| b.multiply(b.slice(x[0], &[from], &[n / 2]), 3.0);
            vec![part(0), part(n / 2 - 3)]
        });
        arena(&program);
        let wider = of_sums(1, &ty, |b, x| vec![b.as_type(x[0], DType::F64)]);
        let taken = times(arena(&wider), &ty);
        assert!(taken > 0.9, "{taken} times {ty}");
        let as_wide = of_sums(1, &ty, |b, x| vec![b.as_type(b.multiply(x[0], 8.0), DType::S32)]);
        let taken = times(arena(&as_wide), &ty);
        assert!(n < 1 << 15 || taken < 0.1, "{taken} times {ty}");
    }
}

fn softmax(b: &Builder, x: Operand, axis: usize) -> Operand {
    let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[axis], true)));
    b.divide(exp, b.reduce(Reduction::Sum, exp, &[axis], true))
}

#[test]
fn rows_lie_where_what_they_are_made_of_lay() {
    // Rows that teams share and that one invocation holds, with vectors that rows are no multiple of, and columns.
    let shapes: [(&[u64], usize); 10] = [
        (&[3, 1], 1),
        (&[300, 7], 1),
        (&[2000, 33], 1),
        (&[1001, 64], 1),
        (&[515, 100], 1),
        (&[64, 128], 1),
        (&[127, 1000], 1),
        (&[9, 4096], 1),
        (&[100, 301], 0),
        (&[5, 60, 70], 1),
    ];
    for (k, (shape, axis)) in shapes.into_iter().enumerate() {
        for dtype in [DType::F32, DType::Bf16, DType::F64, DType::F16].into_iter().skip(k % 2).step_by(2) {
            let ty = Type::new(dtype, shape);
            let taken = times(arena(&of_sums(1, &ty, |b, x| vec![softmax(b, x[0], axis)])), &ty);
            assert!(ty.size_bytes() < 1 << 15 || taken < 0.3, "{taken} times {ty}");
            // In the arena, and with a second operand, a result for each row, and one that is read in another order.
            let within = |b: &Builder, x: &[Operand]| {
                let shares = b.multiply(softmax(b, x[0], axis), x[1]);
                vec![b.sum(sums(b, shares), &[0]), b.reduce(Reduction::Sum, shares, &[axis], false)]
            };
            let taken = times(arena(&of_sums(2, &ty, within)), &ty);
            assert!(ty.size_bytes() < 1 << 15 || taken < 2.5, "{taken} times {ty}");
            arena(&of_sums(1, &ty, |b, x| vec![b.multiply(softmax(b, x[0], axis), reversed(b, x[0]))]));
        }
    }
}

#[test]
fn every_result_of_a_kernel_has_a_place_of_its_own() {
    for n in [255, 1 << 14, (1 << 16) + 3] {
        let ty = Type::new(DType::F32, &[n]);
        let one = of_sums(1, &ty, |b, x| vec![b.multiply(x[0], 2.0), b.add(x[0], 1.0), b.negate(x[0])]);
        let taken = times(arena(&one), &ty);
        assert!(n < 1 << 13 || taken < 0.2, "three of one: {taken} times {ty}");
        let two = of_sums(2, &ty, |b, x| vec![b.add(x[0], x[1]), b.subtract(x[1], x[0])]);
        let taken = times(arena(&two), &ty);
        assert!(n < 1 << 13 || taken < 0.2, "two of two: {taken} times {ty}");
        // What a later command reads stays.
        let kept = of_sums(1, &ty, |b, x| {
            let double = b.add(x[0], x[0]);
            vec![b.subtract(sums(b, double), x[0])]
        });
        arena(&kept);
    }
}

#[test]
fn outputs_are_memory_for_what_comes_before_them() {
    let ty = Type::new(DType::F32, &[1 << 15]);
    let b = Builder::new();
    let x = b.input(ty.dtype, &ty.shape);
    let last = (0..6).fold(x, |x, i| sums(&b, b.multiply(x, 0.25 + f64::from(i))));
    let out = b.sin(last);
    let program = b.finish(&[out]).unwrap();
    let taken = times(arena(&program), &ty);
    // One sum is made of another: one lies in the arena.
    assert!(taken < 1.1, "{taken} times {ty}");

    // An output that is read later keeps what it has.
    let b = Builder::new();
    let x = b.input(ty.dtype, &ty.shape);
    let early = b.sin(sums(&b, x));
    let late = b.binary(Binary::Subtract, sums(&b, sums(&b, early)), early);
    let program = b.finish(&[late, early]).unwrap();
    arena(&program);
}

#[test]
fn branches_and_loops_of_the_host_share_places() {
    let ty = Type::new(DType::F32, &[9000]);
    for chosen in [0.0, 1e9] {
        let b = Builder::new();
        let x = b.input(ty.dtype, &ty.shape);
        let start = sums(&b, x);
        let holds = b.less(b.number(DType::F32, chosen), b.add(b.reduce_max(b.multiply(x, x), &[0]), 1.0));
        let branches = b.cond(
            holds,
            &[start],
            |b, v| vec![sums(b, b.multiply(sums(b, b.sin(v[0])), 2.0))],
            |b, v| vec![b.cos(sums(b, b.add(v[0], 1.0)))],
        );
        let out = b.add(branches[0], sums(&b, b.negate(branches[0])));
        arena(&b.finish(&[out]).unwrap());

        let b = Builder::new();
        let x = b.input(ty.dtype, &ty.shape);
        let zero = b.number(DType::F32, 0.0);
        let goes_on = |b: &Builder, v: &[Operand]| b.less(v[0], if chosen > 0.0 { 9.0 } else { -1.0 });
        let next = |b: &Builder, v: &[Operand]| {
            let step = b.add(b.reduce_max(b.cos(v[1]), &[0]), 1.0);
            vec![b.add(v[0], step), b.sin(sums(b, b.multiply(sums(b, v[1]), 0.5)))]
        };
        let looped = b.while_loop(&[zero, sums(&b, x)], &[], goes_on, next);
        let after = sums(&b, b.multiply(sums(&b, looped[1]), 0.25));
        arena(&b.finish(&[after, looped[1]]).unwrap());
    }
}
