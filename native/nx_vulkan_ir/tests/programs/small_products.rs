//! Small products that become one: as exact as apart, in fewer launches, and only where that pays.

use nx_vulkan_ir::program::passes::{Saving, Target, optimize};
use nx_vulkan_ir::program::{Builder, Instruction, Op, Operand, Program};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Value};

use crate::passes::target;

const STEPS: u64 = 5;
const GATES: usize = 4;
const BATCH: u64 = 3;
const FEATURES: u64 = 7;
const UNITS: u64 = 6;

/// Numbers between -1 and 1 that are unlike each other.
fn numbers(program: &Program) -> Vec<Array> {
    let number = |i: usize| Value::Float((i as f64 * 0.7391).sin());
    let array = |(k, ty)| Array::new(ty, (0..ty.elements() as usize).map(move |i| number(i + 101 * k)));
    program.inputs.iter().enumerate().map(array).collect()
}

fn float(value: Value) -> f64 {
    match value {
        Value::Int(x) => x as f64,
        Value::Float(x) => x,
        Value::Complex(..) => f64::NAN,
    }
}

/// The products of a program, those within kernels too.
fn products(program: &Program) -> usize {
    let count = |op: &Op| match op {
        Op::Dot { .. } => 1,
        Op::Fused(body) => products(body),
        _ => 0,
    };
    program.instructions.iter().map(|instruction| count(&instruction.op)).sum()
}

/// The optimized program, after a look at whether its results are those of the program.
fn checked(program: &Program, target: &Target, tolerance: f64) -> Program {
    let optimized = optimize(program.clone(), target).unwrap();
    let inputs = numbers(program);
    let [expected, got] = [program, &optimized].map(|program| reference::run(program, &inputs).unwrap());
    for (expected, got) in expected.iter().zip(&got) {
        let pairs = expected.values.iter().zip(&got.values);
        let largest = expected.values.iter().map(|value| float(*value).abs()).fold(0.0, f64::max);
        for (a, b) in pairs {
            let (a, b) = (float(*a), float(*b));
            assert!((a - b).abs() <= tolerance * largest, "{a} became {b}, of numbers up to {largest}");
        }
    }
    optimized
}

/// The steps of a cell with gates, and what looks like the gradients by its weights and inputs.
fn recurrent(dtype: DType) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[BATCH, STEPS, FEATURES]);
    let weights = |rows: u64| -> Vec<Operand> { (0..GATES).map(|_| b.input(dtype, &[rows, UNITS])).collect() };
    let (of_input, of_state) = (weights(FEATURES), weights(UNITS));
    let mut state = b.input(dtype, &[BATCH, UNITS]);
    let (mut inputs, mut states, mut gates) = (Vec::<Operand>::new(), Vec::<Operand>::new(), Vec::new());
    for step in 0..STEPS {
        let input = b.reshape(b.slice(x, &[0, step, 0], &[BATCH, 1, FEATURES]), &[BATCH, FEATURES]);
        let gate = |g: usize| b.tanh(b.add(b.dot(input, of_input[g]), b.dot(state, of_state[g])));
        let own: Vec<Operand> = (0..GATES).map(gate).collect();
        inputs.push(input);
        states.push(state);
        state = b.multiply(b.add(own[0], own[1]), b.subtract(own[2], own[3]));
        gates.push(own);
    }
    let by_weights = |from: &[Operand], g: usize| {
        let product = |(&a, own): (&Operand, &Vec<Operand>)| b.dot_axes([a, own[g]], [&[0], &[0]], [&[], &[]]);
        from.iter().zip(&gates).rev().map(product).reduce(|sum, term| b.add(sum, term)).unwrap()
    };
    let by_input = |own: &Vec<Operand>| {
        let product = |g: usize| b.dot_axes([own[g], of_input[g]], [&[1], &[1]], [&[], &[]]);
        let sum = (0..GATES).map(product).reduce(|sum, term| b.add(sum, term)).unwrap();
        b.reshape(b.add(sum, 0.0), &[BATCH, 1, FEATURES])
    };
    let mut outputs: Vec<Operand> = (0..GATES).flat_map(|g| [by_weights(&inputs, g), by_weights(&states, g)]).collect();
    outputs.push(b.concatenate(&gates.iter().map(by_input).collect::<Vec<_>>(), 1));
    outputs.push(state);
    b.finish(&outputs).unwrap()
}

#[test]
fn a_recurrent_cell_multiplies_once_for_all_steps() {
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-14), (DType::Bf16, 0.05)] {
        let program = recurrent(dtype);
        let steps = STEPS as usize;
        assert_eq!(products(&program), (2 + 2 + 1) * GATES * steps);
        let optimized = checked(&program, &target(Saving::Nothing), tolerance);
        // By all inputs, and by states at each step; gradients by both kinds of weights, and by all inputs.
        assert_eq!(products(&optimized), 1 + steps + 2 + 1, "{dtype}");
    }
}

#[test]
fn other_terms_of_sums_stay_and_orders_of_axes_are_kept_apart() {
    let b = Builder::new();
    let [x, y, z] = [[4, 5], [4, 9], [4, 5]].map(|shape| b.input(DType::F32, &shape));
    let [u, v, w] = [[5, 6], [9, 6], [6, 5]].map(|shape| b.input(DType::F32, &shape));
    let bias = b.input(DType::F32, &[6]);
    let straight = b.add(b.dot(x, u), b.broadcast(bias, &[4, 6]));
    let turned = b.dot_axes([z, w], [&[1], &[1]], [&[], &[]]);
    let turned_twice = b.dot_axes([b.exp(z), w], [&[1], &[1]], [&[], &[]]);
    let sum = b.add(b.add(straight, turned), b.add(b.dot(y, v), b.multiply(turned_twice, 0.5)));
    let program = b.finish(&[sum]).unwrap();
    // Two straight ones of different depths become one.
    assert_eq!(products(&checked(&program, &target(Saving::Nothing), 1e-6)), 3);
}

/// The program's results for inputs that are one number each, optimized.
fn results(program: &Program, numbers: &[f64]) -> Vec<f64> {
    let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
    let inputs = optimized.inputs.iter().zip(numbers);
    let inputs: Vec<Array> =
        inputs.map(|(ty, &number)| Array::new(ty, (0..ty.elements()).map(|_| Value::Float(number)))).collect();
    reference::run(&optimized, &inputs).unwrap().iter().map(|result| float(result.values[0])).collect()
}

#[test]
fn other_terms_are_added_where_they_were() {
    let b = Builder::new();
    let [x, y, p, q] = [0; 4].map(|_| b.input(DType::F32, &[2, 2]));
    let sum = b.add(b.add(x, y), b.add(b.dot(p, q), b.dot(q, p)));
    let program = b.finish(&[sum]).unwrap();
    let found = results(&program, &[1e8, -1e8, 0.3, 0.5]);
    assert!((found[0] - 0.6).abs() < 1e-6, "{found:?}");
}

#[test]
fn sums_of_f16_stay_in_its_range() {
    let b = Builder::new();
    let [x, u, c, y, v] = [0; 5].map(|_| b.input(DType::F16, &[1, 1]));
    let sum = b.add(b.add(b.dot(x, u), c), b.dot(y, v));
    let program = b.finish(&[sum]).unwrap();
    assert_eq!(results(&program, &[225.0, 200.0, -45_000.0, 225.0, 200.0]), [44_992.0]);
}

#[test]
fn nothing_large_is_kept_for_it() {
    let usual = target(Saving::Nothing);
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[4, 40, 1]), b.input(DType::F32, &[1, 1 << 12]));
    let step = |at: u64| {
        let slice = b.reshape(b.slice(x, &[0, at, 0], &[4, 1, 1]), &[4, 1]);
        b.sum(b.tanh(b.dot(slice, w)), &[0, 1])
    };
    let outputs: Vec<Operand> = (0..40).map(step).collect();
    let program = b.finish(&outputs).unwrap();
    let count = |target: &Target| products(&optimize(program.clone(), target).unwrap());
    assert_eq!(count(&usual), 1);
    assert_eq!(count(&Target { short_bytes: 1 << 21, ..usual }), 40);
    // And where memory is short, nothing at all.
    assert_eq!([Saving::Kernels, Saving::Reductions].map(|saving| count(&target(saving))), [40, 40]);
}

#[test]
fn matrices_lie_side_by_side_with_those_of_their_type() {
    let b = Builder::new();
    let states = [DType::F32, DType::Bf16, DType::F32, DType::Bf16].map(|dtype| b.input(dtype, &[4, 8]));
    let weights = [DType::Bf16, DType::F32, DType::Bf16, DType::F32].map(|dtype| b.input(dtype, &[8, 3]));
    let terms = states.iter().zip(weights).map(|(&state, weights)| b.dot(state, weights));
    let sum = terms.reduce(|sum, term| b.add(sum, term)).unwrap();
    let program = b.finish(&[sum]).unwrap();
    assert_eq!(products(&checked(&program, &target(Saving::Nothing), 1e-6)), 2);
}

#[test]
fn products_that_others_read_large_ones_and_dear_copies_stay_apart() {
    let sum = |is_read: bool| {
        let b = Builder::new();
        let [x, y] = [0, 1].map(|_| b.input(DType::F32, &[8, 16]));
        let [u, v] = [0, 1].map(|_| b.input(DType::F32, &[16, 8]));
        let (first, second) = (b.dot(x, u), b.dot(y, v));
        let sum = b.tanh(b.add(first, second));
        let outputs = if is_read { vec![sum, first] } else { vec![sum] };
        b.finish(&outputs).unwrap()
    };
    let usual = target(Saving::Nothing);
    let count = |program: &Program, target: &Target| products(&checked(program, target, 1e-6));
    assert_eq!(count(&sum(false), &usual), 1);
    assert_eq!(count(&sum(true), &usual), 2);
    assert_eq!(count(&sum(false), &Target { short_flops: 2 * 8 * 8 * 16 - 1, ..usual }), 2);
    assert_eq!(count(&sum(false), &Target { short_bytes: 8, ..usual }), 2);
    assert_eq!(count(&sum(false), &Target { fusion: false, ..usual }), 2);
    // Weights of one step cost more to copy than a launch.
    let b = Builder::new();
    let state = b.input(DType::F32, &[2, 32]);
    let gates = [0, 1, 2].map(|_| b.dot(state, b.input(DType::F32, &[32, 64])));
    let program = b.finish(&gates).unwrap();
    assert_eq!(count(&program, &usual), 1);
    assert_eq!(count(&program, &Target { short_bytes: 64 * 24_575, ..usual }), 3);
}

#[test]
fn weights_that_a_product_makes_are_no_neighbours_of_those_it_takes() {
    let b = Builder::new();
    let [x, w] = [0, 1].map(|_| b.input(DType::F32, &[6, 6]));
    let first = b.dot(x, w);
    let second = b.dot(x, b.tanh(first));
    let program = b.finish(&[second, first]).unwrap();
    assert_eq!(products(&checked(&program, &target(Saving::Nothing), 1e-6)), 2);
}

#[test]
fn integers_and_slices_that_are_not_all_stay_apart() {
    let b = Builder::new();
    let [x, y, u, v] = [0; 4].map(|_| b.input(DType::S32, &[4, 4]));
    let whole = b.add(b.dot(x, u), b.dot(y, v));
    let tensor = b.input(DType::F32, &[4, 3, 4]);
    let matrix = b.input(DType::F32, &[4, 5]);
    let step = |at: u64| b.dot(b.reshape(b.slice(tensor, &[0, at, 0], &[4, 1, 4]), &[4, 4]), matrix);
    let outputs = [whole, step(0), step(1)];
    let program = b.finish(&outputs).unwrap();
    assert_eq!(products(&checked(&program, &target(Saving::Nothing), 1e-6)), 4);
}

/// How many operands what is stacked in a program has, kernels included.
fn stacked(program: &Program) -> Vec<(usize, usize)> {
    let of = |instruction: &Instruction| match &instruction.op {
        Op::Stack { axis } => vec![(*axis, instruction.operands.len())],
        Op::Fused(body) => stacked(body),
        _ => vec![],
    };
    program.instructions.iter().flat_map(of).collect()
}

#[test]
fn states_before_and_after_steps_are_stacked_once() {
    let states = |shape: [u64; 2], put: &dyn Fn(&Builder, &[Operand]) -> Vec<Operand>| {
        let b = Builder::new();
        let (first, w) = (b.input(DType::F32, &shape), b.input(DType::F32, &[shape[1]; 2]));
        let states: Vec<Operand> =
            std::iter::successors(Some(first), |&state| Some(b.tanh(b.dot(state, w)))).take(6).collect();
        let outputs = put(&b, &states);
        stacked(&checked(&b.finish(&outputs).unwrap(), &target(Saving::Nothing), 0.0))
    };
    let stack = |b: &Builder, parts: &[Operand], axis: usize| {
        let mut ty = b.ty(parts[0]);
        ty.shape.insert(axis, parts.len() as u64);
        b.push(Op::Stack { axis }, parts, &ty)
    };
    let read = |b: &Builder, x: Operand| b.sum(x, &[0]);
    let along = |axis: usize| states([4, 64], &|b, states| vec![read(b, stack(b, &states[1..], axis))]);
    // In the order of the steps.
    assert_eq!([along(0), along(1)], [[(0, 5)], [(0, 5)]]);
    // Those after each step as the program's result, then those before it, and the other way round.
    let after_first = |b: &Builder, states: &[Operand]| {
        vec![read(b, stack(b, &states[1..], 1)), read(b, b.concatenate(&states[..5], 0))]
    };
    assert_eq!(states([4, 64], &after_first), [(0, 6)]);
    let before_first = |b: &Builder, states: &[Operand]| {
        vec![read(b, b.concatenate(&states[..5], 0)), read(b, stack(b, &states[1..], 1))]
    };
    assert_eq!(states([4, 64], &before_first), [(0, 6)]);
    // Neighbours that are too few, results of which no other begins where one ends, and results that are too few.
    assert_eq!(states([64, 4], &|b, states| vec![read(b, stack(b, &states[1..], 2))]), [(2, 5)]);
    assert_eq!(states([3, 9], &|b, states| vec![read(b, stack(b, &states[1..], 1))]), [(1, 5)]);
    assert_eq!(states([4, 64], &|b, states| vec![read(b, stack(b, &states[4..], 1))]), [(1, 2)]);
}

/// Steps of a cell whose gates see the state by a product, and inputs and biases by sums; what looks like gradients
/// reads the gates' operands again, after all steps.
fn gated(dtype: DType, other: impl Fn(&Builder, usize, Operand, Operand) -> Operand) -> Program {
    const ROWS: u64 = 48;
    let b = Builder::new();
    let x = b.input(dtype, &[STEPS * ROWS, GATES as u64 * UNITS]);
    let weights: Vec<Operand> = (0..GATES).map(|_| b.input(dtype, &[UNITS, UNITS])).collect();
    let biases: Vec<Operand> = (0..GATES).map(|_| b.input(dtype, &[UNITS])).collect();
    let mut state = b.input(dtype, &[ROWS, UNITS]);
    let mut seen = Vec::new();
    for step in 0..STEPS {
        let gate = |g: usize| {
            let columns = b.slice(x, &[0, g as u64 * UNITS], &[STEPS * ROWS, UNITS]);
            let input = b.slice(columns, &[step * ROWS, 0], &[ROWS, UNITS]);
            let biased = b.add(input, b.broadcast(biases[g], &[ROWS, UNITS]));
            other(&b, g, biased, b.dot(state, weights[g]))
        };
        let own: Vec<Operand> = (0..GATES).map(gate).collect();
        let open = own.iter().map(|&gate| b.tanh(gate)).reduce(|all, gate| b.multiply(all, gate)).unwrap();
        state = b.add(state, open);
        seen.push(own);
    }
    let gradient = |&gate: &Operand| b.multiply(b.exp(b.negate(gate)), state);
    let mut outputs: Vec<Operand> =
        seen.iter().map(|own| own.iter().map(gradient).reduce(|sum, term| b.add(sum, term)).unwrap()).collect();
    outputs.push(state);
    b.finish(&outputs).unwrap()
}

/// Products with steps on their results in one kernel.
fn followed(program: &Program) -> usize {
    let is_followed = |instruction: &Instruction| match &instruction.op {
        Op::Fused(body) => products(body) == 1 && body.instructions.len() > 1,
        _ => false,
    };
    program.instructions.iter().filter(|instruction| is_followed(instruction)).count()
}

#[test]
fn what_is_added_to_all_parts_of_a_product_is_added_by_its_kernel() {
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-14), (DType::F16, 0.01)] {
        let added = gated(dtype, |b, _, input, product| b.add(input, product));
        let optimized = checked(&added, &target(Saving::Nothing), tolerance);
        assert_eq!((products(&optimized), followed(&optimized)), (STEPS as usize, STEPS as usize), "{dtype}");
        // The order of what is subtracted stays.
        let subtracted = gated(dtype, |b, _, input, product| b.subtract(product, b.multiply(input, 0.5)));
        let optimized = checked(&subtracted, &target(Saving::Nothing), tolerance);
        assert_eq!(followed(&optimized), STEPS as usize, "{dtype}");
        // One column for all of a gate's.
        let column = |b: &Builder, tensor: Operand| b.slice(tensor, &[0, 0], &[48, 1]);
        let of_column = gated(dtype, |b, _, input, product| b.add(column(b, input), product));
        assert_eq!(followed(&checked(&of_column, &target(Saving::Nothing), tolerance)), 0, "{dtype}");
        let of_product = gated(dtype, |b, _, input, product| b.add(input, column(b, product)));
        assert_eq!(followed(&checked(&of_product, &target(Saving::Nothing), tolerance)), 0, "{dtype}");
        // One gate does something else.
        let unlike = gated(dtype, |b, g, input, product| match g {
            2 => b.multiply(input, product),
            _ => b.add(input, product),
        });
        assert_eq!(followed(&checked(&unlike, &target(Saving::Nothing), tolerance)), 0, "{dtype}");
    }
}
