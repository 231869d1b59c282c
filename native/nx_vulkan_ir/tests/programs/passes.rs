//! Passes on what was recorded from Nx.

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::passes::{Heads, Joins, Quick, Recompute, Saving, SmallProducts, Target, optimize};
use nx_vulkan_ir::program::reductions::Repeats;
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::recordings::replay;

const RECOMPUTE: Recompute = Recompute { flops_per_byte: 16, shares: 1, most_per_byte: 6, most_instructions: 96 };

/// A GPU without matrix units.
pub fn target(saving: Saving) -> Target {
    Target {
        rows: RowLimits {
            elements: 1 << 15,
            registers: 32,
            invocations: 1024,
            column_invocations: 32,
            planned_invocations: 1024,
        },
        chooses_parts: true,
        joins_small_ops: false,
        iteration_work: 1 << 20,
        max_work: 1 << 34,
        short_bytes: 64 << 20,
        short_flops: 1 << 28,
        mapped_bytes: 1 << 20,
        matrix_units: false,
        half_units: false,
        heads: Heads::default(),
        paired_vectors: 4,
        derived_vectors: 8,
        reduced_bytes: u64::MAX,
        fusion: true,
        workgroups: false,
        saving,
        recompute: RECOMPUTE,
        joins: Joins {
            dispatch_work: 1 << 14,
            looped_results: 1 << 18,
            loaded_elements: 1 << 18,
            unit_operations: 1 << 31,
            unit_work: 1 << 26,
            unit_bytes: 1 << 30,
            read_bytes: 4 << 20,
        },
        live_words: 40,
        quick: Quick { elements: 1 << 14, long_program: 64, instructions: 48, parts: 4 },
        small_products: SmallProducts { launches: 8, neighbours: 64, most_of_columns: 8, run_bytes: 64 },
        repeats: Repeats { instructions: 16, elements: 1 << 14 },
    }
}

#[test]
fn recorded_programs_give_nx_results_whatever_kernels_save() {
    for saving in [Saving::Nothing, Saving::Order, Saving::Kernels, Saving::Reductions] {
        replay(|recording| {
            let program = optimize(recording.program.clone(), &target(saving))?;
            let types = program.inputs.iter().zip(&recording.inputs);
            let inputs = types.map(|(ty, bytes)| Array::from_nx_bytes(ty, bytes)).collect::<Result<Vec<_>>>()?;
            Ok(reference::run(&program, &inputs)?.iter().map(Array::to_nx_bytes).collect())
        });
    }
}

#[test]
fn slices_of_parts_of_other_types_have_the_type_of_all() {
    for axis in [0, 1] {
        let b = Builder::new();
        let parts = [DType::F32, DType::F64, DType::F32].map(|dtype| b.input(dtype, &[1, 3, 3]));
        let shape: &[u64] = if axis == 0 { &[3, 3, 3] } else { &[1, 9, 3] };
        let whole = b.push(Op::Concatenate { axis }, &parts, &Type::new(DType::F64, shape));
        let slice = b.slice(whole, &[0, 0, 0], &[1, 1, 3]);
        let program = b.finish(&[slice]).unwrap();
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        let values = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| Value::Float(i as f64 + 0.5)));
        let inputs: Vec<Array> = program.inputs.iter().map(values).collect();
        assert_eq!(reference::run(&optimized, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
    }
}

/// Layers of rows of which one kernel stores exponentials, their sum, and what they become where they are multiplied by
/// its inverse: that stands for a row, and no kernel computes it anew for each element. Then their gradients, which
/// read all of it.
fn layers_of_softmax([layers, rows, columns, depth]: [u64; 4]) -> Program {
    let types = [[rows, columns], [rows, 1], [rows, columns]].map(|shape| Type::new(DType::F32, &shape));
    let kernel = {
        let b = Builder::new();
        let grown = b.exp(b.input(DType::F32, &[rows, columns]));
        let sum = b.reduce(Reduction::Sum, grown, &[1], true);
        let weights = b.multiply(b.divide(b.number(DType::F32, 1.0), sum), grown);
        Op::Fused(Box::new(b.finish(&[grown, sum, weights]).unwrap()))
    };
    let b = Builder::new();
    let [x, w] = [b.input(DType::F32, &[rows, depth]), b.input(DType::F32, &[depth, columns])];
    let back = b.input(DType::F32, &[columns, depth]);
    let (mut h, mut kept) = (x, Vec::new());
    for _ in 0..layers {
        let stored = b.push_all(kernel.clone(), &[b.dot(h, w)], &types);
        h = b.dot(stored[2], back);
        kept.push(stored);
    }
    let mut outputs = Vec::new();
    let mut gradient = h;
    for stored in kept.iter().rev() {
        let of_weights = b.dot_axes([gradient, back], [&[1], &[1]], [&[], &[]]);
        outputs.push(b.dot_axes([stored[2], gradient], [&[0], &[0]], [&[], &[]]));
        let of_rows = b.multiply(stored[0], b.add(of_weights, stored[1]));
        gradient = b.dot_axes([of_rows, w], [&[1], &[1]], [&[], &[]]);
    }
    outputs.push(gradient);
    b.finish(&outputs).unwrap()
}

/// The program with nothing computed again, and with what so many sixteenths of its cost allow.
fn with_shares(program: &Program, shares: u64) -> [Program; 2] {
    [0, shares].map(|shares| {
        let target = Target { recompute: Recompute { shares, ..RECOMPUTE }, ..target(Saving::Nothing) };
        optimize(program.clone(), &target).unwrap()
    })
}

fn products(program: &Program) -> usize {
    program.instructions.iter().filter(|i| matches!(i.op, Op::Dot { .. })).count()
}

#[test]
fn weights_are_computed_again_from_what_is_kept_of_their_rows() {
    let size @ [layers, rows, columns, _] = [6, 2048, 1024, 512];
    let [kept, again] = with_shares(&layers_of_softmax(size), 1);
    let bytes = [&kept, &again].map(Program::evaluated_bytes);
    assert!(bytes[1] + (layers - 3) * rows * columns * 4 <= bytes[0], "{bytes:?} {again}");
    // No product is computed again for it.
    assert_eq!(products(&kept), products(&again));
}

#[test]
fn what_gradients_alone_read_is_computed_again_of_small_products() {
    let size @ [layers, rows, columns, _] = [6, 2048, 1024, 16];
    let [kept, again] = with_shares(&layers_of_softmax(size), 16);
    let bytes = [&kept, &again].map(Program::evaluated_bytes);
    assert!(bytes[1] + (layers - 1) * rows * columns * 4 <= bytes[0], "{bytes:?} {again}");
    assert_eq!(products(&kept) + layers as usize - 1, products(&again), "{again}");
    // Kernels of the forward pass store no exponentials.
    let first = again.instructions.iter().find(|i| matches!(i.op, Op::Fused(_))).unwrap();
    assert_eq!(first.outs.iter().filter(|out| out.elements() == rows * columns).count(), 1, "{again}");
}

#[test]
fn cubes_of_all_numbers_of_16_bits_are_products() {
    for dtype in [DType::F16, DType::Bf16] {
        let b = Builder::new();
        let x = b.input(dtype, &[1 << 16]);
        let program = {
            let cube = b.pow(x, 3.0);
            b.finish(&[cube])
        }
        .unwrap();
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        assert!(!optimized.to_string().contains("pow"), "{optimized}");
        let all = [Array::new(&program.inputs[0], (0..1 << 16).map(|bits| Value::from_bits(dtype, bits)))];
        let [got, want] = [&optimized, &program].map(|program| reference::run(program, &all).unwrap());
        for ((got, want), x) in got[0].values.iter().zip(&want[0].values).zip(&all[0].values) {
            let same = got.real().to_bits() == want.real().to_bits() || got.real().is_nan() && want.real().is_nan();
            assert!(same, "{dtype}: {x:?} gives {got:?}, not {want:?}");
        }
    }
}

/// A device that has attention of f16 and bf16 in one kernel.
fn with_heads() -> Target {
    let heads = Heads { f16: true, bf16: true, max_depth: 128, together: 1, min_rows: 1, ..Heads::default() };
    Target { heads, ..target(Saving::Nothing) }
}

#[test]
fn vectors_and_numbers_are_no_gradients_of_attention() {
    // Queries and keys are vectors, and what is like the gradient of their scores is multiplied with both.
    let b = Builder::new();
    let [q, k] = [(); 2].map(|()| b.input(DType::Bf16, &[32]));
    let by_weights = b.input(DType::Bf16, &[32, 32]);
    let exp = b.exp(b.dot_axes([b.reshape(q, &[32, 1]), b.reshape(k, &[32, 1])], [&[1], &[1]], [&[], &[]]));
    let by_scores = b.multiply(exp, by_weights);
    let outputs = [
        b.dot_axes([by_scores, k], [&[1], &[0]], [&[], &[]]),
        b.dot_axes([q, by_scores], [&[0], &[0]], [&[], &[]]),
        b.dot_axes([exp, q], [&[0], &[0]], [&[], &[]]),
    ];
    let vectors = b.finish(&outputs).unwrap();
    // The exponential is one of a whole row's sum.
    let b = Builder::new();
    let [q, k] = [1, 32].map(|rows| b.input(DType::Bf16, &[rows, 16]));
    let scores = b.dot_axes([q, k], [&[1], &[1]], [&[], &[]]);
    let by_weights = b.dot_axes([b.input(DType::Bf16, &[1, 16]), k], [&[1], &[1]], [&[], &[]]);
    let whole = b.exp(b.reduce(Reduction::Sum, scores, &[0, 1], false));
    let by_scores = b.multiply(b.multiply(scores, by_weights), whole);
    let outputs =
        [b.dot_axes([by_scores, k], [&[1], &[0]], [&[], &[]]), b.dot_axes([by_scores, q], [&[0], &[0]], [&[], &[]])];
    for program in [vectors, b.finish(&outputs).unwrap()] {
        assert!(products(&optimize(program.clone(), &with_heads()).unwrap()) >= program.outputs.len());
    }
}

/// States that products read, each the one before or something new, by a mask.
fn masked_states(rows: u64) -> Program {
    let b = Builder::new();
    let weights = b.input(DType::F32, &[64, 64]);
    let start = b.input(DType::F32, &[rows, 64]);
    let states = (0..6).scan(start, |state, _| {
        let mask = b.input(DType::U8, &[rows, 64]);
        let new = b.dot(*state, weights);
        *state = b.select(mask, *state, b.multiply(b.tanh(new), b.sigmoid(new)));
        Some(*state)
    });
    let states: Vec<Operand> = states.collect();
    let output = b.dot(*states.last().unwrap(), weights);
    b.finish(&[output]).unwrap()
}

#[test]
fn what_products_read_is_read_by_what_comes_after_it() {
    let selects = |program: &Program| {
        let bodies =
            program.instructions.iter().filter_map(|i| if let Op::Fused(body) = &i.op { Some(body) } else { None });
        let count = |body: &Program| body.instructions.iter().filter(|i| i.op == Op::Select).count();
        bodies.map(|body| count(body)).collect::<Vec<usize>>()
    };
    let optimized = optimize(masked_states(256), &target(Saving::Nothing)).unwrap();
    assert_eq!(selects(&optimized), [1; 6], "{optimized}");
    // Where states are small, kernels compute earlier ones again.
    let optimized = optimize(masked_states(16), &target(Saving::Nothing)).unwrap();
    assert!(selects(&optimized).iter().any(|&count| count > 1), "{optimized}");
}

#[test]
fn gradients_that_free_what_they_read_come_as_soon_as_they_can() {
    // What looks like the gradient of logits is read for a bias and for weights after all else.
    let b = Builder::new();
    let (x, weights, bias) =
        (b.input(DType::F32, &[32, 16]), b.input(DType::F32, &[16, 256]), b.input(DType::F32, &[256]));
    let gradient = b.sin(b.add(b.dot(x, weights), b.broadcast(bias, &[32, 256])));
    let mut state = b.dot_axes([gradient, weights], [&[1], &[1]], [&[], &[]]);
    let layer = b.input(DType::F32, &[16, 16]);
    for _ in 0..6 {
        state = b.tanh(b.dot(state, layer));
    }
    let by_weights = b.dot_axes([x, b.reshape(gradient, &[32, 256])], [&[0], &[0]], [&[], &[]]);
    let by_bias = b.sum(gradient, &[0]);
    let program = b.finish(&[state, by_weights, by_bias]).unwrap();
    let of_all = target(Saving::Nothing);
    let large = Joins { read_bytes: 1 << 12, ..of_all.joins };
    let optimized = optimize(program.clone(), &Target { joins: large, ..of_all }).unwrap();
    let shapes: Vec<&[u64]> =
        optimized.instructions.iter().flat_map(|i| i.outs.iter().map(|out| &out.shape[..])).collect();
    let at = |shape: &[u64]| shapes.iter().position(|other| *other == shape).unwrap();
    let last_layer = shapes.iter().rposition(|shape| *shape == [32, 16]).unwrap();
    assert!(at(&[16, 256]) + 4 < last_layer && at(&[256]) + 4 < last_layer, "{optimized}");
    let number = |i: usize| Value::Float((i as f64 * 0.7391).sin() / 8.0);
    let inputs = program.inputs.iter().map(|ty| Array::new(ty, (0..ty.elements() as usize).map(number)));
    let inputs: Vec<Array> = inputs.collect();
    let [before, after] = [&program, &optimized].map(|program| reference::run(program, &inputs).unwrap());
    assert!(before == after);
}
