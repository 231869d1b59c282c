//! What is put together lies where it will be from the beginning on: the bits of the ops one by one, without the
//! copies.

use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::{DType, Type};

use crate::in_place::{checked, random, sums};

fn stacked(b: &Builder, parts: &[Operand], axis: usize) -> Operand {
    let mut ty = b.ty(parts[0]);
    ty.shape.insert(axis, parts.len() as u64);
    b.push(Op::Stack { axis }, parts, &ty)
}

/// Steps of which each makes the next state by a kernel that nothing fuses with.
fn states(b: &Builder, ty: &Type, steps: usize) -> Vec<Operand> {
    let first = b.input(ty.dtype, &ty.shape);
    std::iter::successors(Some(first), |&state| Some(sums(b, state))).skip(1).take(steps).collect()
}

/// The commands of a program of so many steps, by whether nothing is copied besides.
fn commands(ty: &Type, steps: usize, put: impl Fn(&Builder, &[Operand]) -> Vec<Operand>) -> u64 {
    let b = Builder::new();
    let states = states(&b, ty, steps);
    let outputs = put(&b, &states);
    checked(&b.finish(&outputs).unwrap()).commands
}

#[test]
fn steps_write_where_their_states_are_stacked() {
    // Too large for one workgroup to run all of it.
    for dtype in [DType::F32, DType::Bf16, DType::U8, DType::F64] {
        let ty = Type::new(dtype, &[64, 1024]);
        let one = commands(&ty, 1, |_, states| states.to_vec()) * 8;
        // A result of the program, along either axis, and what a kernel reads.
        assert_eq!(commands(&ty, 8, |b, states| vec![stacked(b, states, 0)]), one, "{ty}");
        assert_eq!(commands(&ty, 8, |b, states| vec![b.concatenate(states, 0)]), one, "{ty}");
        let read = |b: &Builder, states: &[Operand]| vec![sums(b, stacked(b, states, 0))];
        assert_eq!(commands(&ty, 8, read), one / 8 * 9, "{ty}");
        // States before and after each step.
        let shifted = |b: &Builder, states: &[Operand]| {
            let [before, after] = [&states[..7], &states[1..]].map(|states| stacked(b, states, 0));
            vec![sums(b, before), sums(b, after)]
        };
        assert_eq!(commands(&ty, 8, shifted), one / 8 * 10, "{ty}");
    }
}

#[test]
fn what_does_not_end_where_others_may_begin_is_copied() {
    let of = |shape: &[u64]| {
        let ty = Type::new(DType::F32, shape);
        let alone = commands(&ty, 1, |_, states| states.to_vec()) * 8;
        commands(&ty, 8, |b, states| vec![stacked(b, states, 0)]) - alone
    };
    assert_eq!([of(&[64, 1024]), of(&[65, 1023]), of(&[63, 1025])], [0, 8, 8]);
}

/// States put together in ways of which some need copies: twice, in several places, and read and given away besides.
#[test]
fn random_programs_have_the_bits_of_their_ops() {
    let mut random = random();
    for _ in 0..60 {
        let b = Builder::new();
        let dtype = [DType::F32, DType::Bf16, DType::U8, DType::S64][random.below(4) as usize];
        let columns = [64, 64, 128, 40][random.below(4) as usize];
        let ty = Type::new(dtype, &[8, columns]);
        let mut values = states(&b, &ty, 2 + random.below(4) as usize);
        let mut outputs = Vec::new();
        for _ in 0..2 + random.below(10) {
            let count = 2 + random.below(5) as usize;
            let any = |random: &mut crate::common::Rng| random.below(values.len() as u64) as usize;
            let parts: Vec<Operand> = (0..count).map(|_| values[any(&mut random)]).collect();
            let whole = match random.below(3) {
                0 => b.concatenate(&parts, 0),
                1 => b.reshape(stacked(&b, &parts, 0), &[8 * count as u64, columns]),
                _ => b.reshape(stacked(&b, &parts, 1), &[8 * count as u64, columns]),
            };
            let from = random.below(count as u64);
            let made = match random.below(4) {
                0 => sums(&b, whole),
                1 => b.add(whole, whole),
                _ => whole,
            };
            let next = b.slice(made, &[8 * from, 0], &[8, columns]);
            values.push(if random.below(2) == 0 { sums(&b, next) } else { next });
            if random.below(3) == 0 {
                outputs.push(if random.below(2) == 0 { made } else { whole });
            }
        }
        outputs.push(values[values.len() - 1]);
        let program: Program = b.finish(&outputs).unwrap();
        checked(&program);
    }
}

/// What is written where a whole lay must not be read there as a part of it: here all rows read one of the first part.
#[test]
fn kernels_that_read_a_part_besides_do_not_write_where_the_whole_lies() {
    for rows in [8, 1 << 10, 1 << 13] {
        for dtype in [DType::F32, DType::Bf16, DType::U8] {
            let b = Builder::new();
            let ty = Type::new(dtype, &[rows, 64]);
            let values = states(&b, &ty, 12);
            let whole = b.concatenate(&values, 0);
            let one = b.reshape(b.slice(values[0], &[rows / 2, 0], &[1, 64]), &[64]);
            let made = b.subtract(b.multiply(whole, whole), b.broadcast(one, &[12 * rows, 64]));
            let made = sums(&b, made);
            checked(&b.finish(&[made]).unwrap());
        }
    }
}
