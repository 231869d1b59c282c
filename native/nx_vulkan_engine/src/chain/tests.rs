//! Runs in parts of any size have the bits of runs in one.

use std::sync::Arc;

use super::log_density::{LogDensityChain, Mass, Start};
use super::transition::Transition;
use super::{Form, Run, device};
use crate::program::ops::order::Sort;
use crate::program::{Binary, Builder, Op, Operand, Program, Reduction};
use crate::{Compile, DType, DeviceKind, Engine, Result, Tensor, Type, View};

fn tensor(engine: &Engine, dtype: DType, shape: &[u64], seed: f64) -> Tensor {
    let values = (1..=shape.iter().product::<u64>()).map(|i| (i as f64 * seed).fract() - 0.5);
    let bytes: Vec<u8> = match dtype {
        DType::F64 => values.flat_map(f64::to_ne_bytes).collect(),
        _ => values.flat_map(|x| (x as f32).to_ne_bytes()).collect(),
    };
    Tensor::from_nx_bytes(engine, &Type::new(dtype, shape), &bytes).unwrap()
}

/// -sum(log(1 + scale q^2)) and its gradient.
fn heavy_tails(dtype: DType, d: u64) -> Program {
    let b = Builder::new();
    let (q, scale) = (b.input(dtype, &[d]), b.input(dtype, &[d]));
    let scaled = b.multiply(scale, q);
    let inner = b.add(b.multiply(scaled, q), 1.0);
    let value = b.negate(b.reduce(Reduction::Sum, b.log(inner), &[0], false));
    let gradient = b.divide(b.multiply(scaled, -2.0), inner);
    b.finish(&[value, gradient]).unwrap()
}

/// x' = sin(x) a + the number of the draw, some times over; sin(x) is given beside it.
fn waves() -> Program {
    let b = Builder::new();
    let (number, x, a) = (b.input(DType::U32, &[]), b.input(DType::F32, &[3]), b.input(DType::F32, &[]));
    let wave = b.sin(x);
    let next = b.add(b.multiply(wave, a), b.multiply(b.as_type(number, DType::F32), 0.25));
    b.finish(&[next, wave]).unwrap()
}

/// x' = y / 2 + sum(x) a, where y begins at sin(x) and becomes sin(y + a sum(y)) as often as the number of the draw,
/// the chain and y say: up to 32 times, and not at all for some; times and y are given beside it.
fn waves_until(dtype: DType, d: u64) -> Program {
    let b = Builder::new();
    let (number, x) = (b.input(DType::U32, &[]), b.input(dtype, &[d]));
    let (a, key) = (b.input(dtype, &[]), b.input(DType::U32, &[]));
    let word = |b: &Builder, value: f64| b.number(DType::U32, value);
    let mixed = b.binary(Binary::Multiply, b.add(number, key), word(&b, 2_654_435_769.0));
    let trips = b.binary(Binary::RightShift, mixed, word(&b, 27.0));
    let goes_on = |b: &Builder, v: &[Operand]| {
        let is_left = b.binary(Binary::Less, v[1], v[2]);
        b.binary(Binary::LogicalAnd, is_left, b.less(v[3], 1e6))
    };
    let next = |b: &Builder, v: &[Operand]| {
        let sum = b.sum(v[0], &[0]);
        let y = b.sin(b.add(v[0], b.multiply(v[4], sum)));
        vec![y, b.binary(Binary::Add, v[1], b.number(DType::U32, 1.0)), v[2], b.add(v[3], sum)]
    };
    let begin = b.sum(x, &[0]);
    let last = b.while_loop(&[b.sin(x), word(&b, 0.0), trips, begin], &[a], goes_on, next);
    let left = b.add(b.multiply(last[0], 0.5), b.multiply(begin, a));
    b.finish(&[left, last[1], last[0], last[3]]).unwrap()
}

/// What a run leaves, as bytes.
fn bytes(engine: &Engine, results: &[Tensor]) -> Vec<Vec<u8>> {
    results.iter().map(|result| result.to_nx_bytes(engine, None).unwrap()).collect()
}

fn check(engine: &Engine, what: &str, begin: impl Fn() -> Result<Run>) {
    let dispatches = || engine.stats().dispatches;
    let before = dispatches();
    let whole = bytes(engine, &begin().unwrap().in_parts_of(u64::MAX).finish().unwrap());
    let fewest = dispatches() - before;
    for size in [1, 2, 5, 8, 13, 100] {
        let mut run = begin().unwrap().in_parts_of(size);
        let mut parts = 1;
        while !run.advance().unwrap() {
            parts += 1;
            // Others have their turn.
            let other = tensor(engine, DType::F32, &[3], 0.3);
            engine.fill(&other.buffer, 0, 12, 0).unwrap();
            assert_eq!(bytes(engine, &[other])[0], [0; 12]);
        }
        assert!(size > 10 || parts > 1, "{what}: {size}");
        assert!(bytes(engine, run.results()) == whole, "{what} in parts of {size}");
        check_ended(engine, &mut run);
        assert!(bytes(engine, run.results()) == whole, "{what} after its end");
    }
    assert!(fewest > 0);
}

/// Who goes on with a run that has ended records and submits nothing.
fn check_ended(engine: &Engine, run: &mut Run) {
    let commands = || (engine.stats().dispatches, engine.stats().transfers, engine.stats().submissions);
    let before = commands();
    for _ in 0..4 {
        assert_eq!(run.advance(), Ok(true));
    }
    assert_eq!(commands(), before);
}

#[test]
fn runs_in_parts_have_the_bits_of_runs_in_one() {
    let engine = &Engine::open(None).unwrap();
    for form in [Form::Workgroup, Form::Device] {
        for (dtype, d, chains, steps) in [(DType::F64, 5, 3, 12), (DType::F32, 4, 1, 40), (DType::F32, 33, 2, 11)] {
            let model = heavy_tails(dtype, d);
            let chain = LogDensityChain::compile(engine, &model, Mass::Diagonal, Some(form)).unwrap();
            let [q, p] = [0.618, 0.414].map(|seed| tensor(engine, dtype, &[chains, d], seed));
            let [mass, scale] = [tensor(engine, dtype, &[d], 0.01), tensor(engine, dtype, &[d], 0.7)];
            // The first chain diverges.
            let captured = [scale];
            for step_size in [tensor(engine, dtype, &[chains], 0.501), tensor(engine, dtype, &[chains], 1e300)] {
                let start =
                    Start { q: &q, p: &p, inverse_mass: &mass, step_size: &step_size, captured: &captured, steps };
                let what = format!("{chains} chains of {dtype}[{d}] in the form {form:?}");
                check(engine, &what, || chain.begin(engine, &start, Compile::Allowed));
            }
        }
        let transition = Transition::compile(engine, waves(), 1, &[true, true], Some(form)).unwrap();
        let inputs = [tensor(engine, DType::F32, &[4, 3], 0.618), tensor(engine, DType::F32, &[4], 0.414)];
        let what = format!("draws in the form {form:?}");
        check(engine, &what, || transition.begin(engine, &inputs, 4, 30, Compile::Allowed));
    }
}

/// Chains of 9 and keys that make some of their draws long and others short.
fn waves_until_inputs(engine: &Engine, dtype: DType, d: u64) -> [Tensor; 3] {
    let keys: Vec<u8> = (0..9u32).flat_map(|chain| (chain * chain * 77).to_ne_bytes()).collect();
    let keys = Tensor::from_nx_bytes(engine, &Type::new(DType::U32, &[9]), &keys).unwrap();
    [tensor(engine, dtype, &[9, d], 0.618), tensor(engine, dtype, &[9], 0.414), keys]
}

#[test]
fn draws_that_are_left_off_have_the_bits_of_others() {
    let engine = &Engine::open(None).unwrap();
    // Some of the last states are more than shared memory holds.
    for (dtype, d) in [(DType::F64, 5), (DType::F32, 1), (DType::F32, 70), (DType::F64, 3000)] {
        let program = waves_until(dtype, d);
        let compiled = || Transition::compile(engine, program.clone(), 1, &[true; 3], Some(Form::Workgroup)).unwrap();
        let transition = compiled();
        let inputs = waves_until_inputs(engine, dtype, d);
        let begin = |draws: u32| transition.begin(engine, &inputs, 9, draws, Compile::Allowed);
        check(engine, &format!("draws of {dtype}[{d}]"), || begin(6));

        // Each has done as many iterations as it should, which draws in other forms do, too.
        let times = bytes(engine, begin(6).unwrap().in_parts_of(3).finish().unwrap().get(1..2).unwrap());
        let device = Transition::compile(engine, program.clone(), 1, &[true; 3], Some(Form::Device)).unwrap();
        let wanted = device.run(engine, &inputs, 9, 6, Compile::Allowed).unwrap();
        assert_eq!(times, bytes(engine, &wanted[1..2]));
        let times: Vec<u32> = times[0].chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect();
        assert!(times.iter().any(|&n| n < 3) && times.iter().any(|&n| n > 28), "{times:?}");

        // No dispatch does more than it was asked for, however long a draw is.
        let mut run = begin(1).unwrap().in_parts_of(5);
        let before = engine.stats().dispatches;
        while !run.advance().unwrap() {}
        let (first, most) = (engine.stats().dispatches - before, u64::from(*times.iter().step_by(6).max().unwrap()));
        assert!(first >= most.div_ceil(5), "{first} dispatches for {most} iterations");
    }
}

/// Who gives a run up gets its memory back, and the next run is right.
#[test]
fn a_run_that_is_given_up_ends() {
    let engine = &Engine::open(None).unwrap();
    for form in [Form::Workgroup, Form::Device] {
        let transition = Transition::compile(engine, waves(), 1, &[true, true], Some(form)).unwrap();
        let inputs = [tensor(engine, DType::F32, &[4, 3], 0.618), tensor(engine, DType::F32, &[4], 0.414)];
        let begin = || transition.begin(engine, &inputs, 4, 500, Compile::Allowed).unwrap().in_parts_of(100);
        let wanted = bytes(engine, &begin().finish().unwrap());
        let before = (engine.stats().in_use_bytes, Arc::strong_count(engine));
        for parts in 1..4 {
            let mut run = begin();
            (0..parts).for_each(|_| assert!(!run.advance().unwrap()));
        }
        assert_eq!((engine.stats().in_use_bytes, Arc::strong_count(engine)), before);
        assert_eq!(bytes(engine, &begin().finish().unwrap()), wanted);
    }
}

/// Sorts x / 2 + a until its largest element is above a limit, for which the host has to look.
fn sorted_until() -> Program {
    let b = Builder::new();
    let (_, x, a) = (b.input(DType::U32, &[]), b.input(DType::F32, &[40]), b.input(DType::F32, &[]));
    let vector = b.ty(x);
    let sorted = |b: &Builder, x| b.push(Op::from(Sort { axis: 0, descending: true }), &[x], &vector);
    let goes_on = |b: &Builder, v: &[Operand]| b.less(b.at(v[0], 0), 1.5);
    let next = |b: &Builder, v: &[Operand]| vec![sorted(b, b.add(b.multiply(v[0], 0.5), v[1]))];
    let start = b.multiply(b.sin(x), 0.5);
    let last = b.while_loop(&[start], &[a], goes_on, next);
    b.finish(&last).unwrap()
}

#[test]
fn steps_that_wait_for_the_device_give_others_their_turn() {
    let engine = &Engine::open(None).unwrap();
    let transition = Transition::compile(engine, sorted_until(), 1, &[true, true], Some(Form::Device)).unwrap();
    let bytes_of = |value: f32| value.to_ne_bytes();
    let a: Vec<u8> = [1.0, 0.9, 1.2].into_iter().flat_map(bytes_of).collect();
    let a = Tensor::from_nx_bytes(engine, &Type::new(DType::F32, &[3]), &a).unwrap();
    let x = tensor(engine, DType::F32, &[3, 40], 0.618);
    let (chains, draws) = (3, 100);
    let mut run = transition.begin(engine, &[x.clone(), a.clone()], chains, draws, Compile::Allowed).unwrap();
    let mut parts = 1;
    while !run.advance().unwrap() {
        parts += 1;
    }
    let whole = bytes(engine, run.results()).remove(0);
    assert!(parts > 1 || engine.caps().kind != DeviceKind::Cpu, "{parts}");
    let size = whole.len() / chains as usize;
    for chain in 0..chains {
        let own = [&x, &a].map(|tensor| {
            let mut view = View::clone(&device::element(tensor, 0, chain).view);
            view.shape.insert(0, 1);
            view.strides.insert(0, 0);
            tensor.with_view(view)
        });
        let alone = transition.run(engine, &own, 1, draws, Compile::Allowed).unwrap();
        assert_eq!(bytes(engine, &alone)[0], whole[chain as usize * size..][..size], "chain {chain}");
    }
}
