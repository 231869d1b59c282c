//! Attention in one kernel beside f64 and beside kernels of its parts.

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::kernels::{Reach, attention};
use nx_vulkan_engine::program::ops::Class;
use nx_vulkan_engine::program::passes::{self, FewQueries, Heads, Target, optimize};
use nx_vulkan_engine::program::{Builder, Instruction, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Options, Tensor, Type, Value, eager};

use super::known::ops;
use super::{download, engine, gpu, upload};
use crate::common::{self, Rng};

/// What is done to scores; the last number is the least finite one of their type.
type Masked = fn(&Builder, Operand, &Case, f64) -> Operand;

/// An operand of the steps on scores: its type, if it is not that of the attention, and its shape.
type Other = (Option<DType>, fn(&Case) -> Vec<u64>);

struct Case {
    name: &'static str,
    /// Batches and heads.
    heads: [u64; 2],
    /// Heads of queries for each head of keys and values.
    group: u64,
    rows: u64,
    keys: u64,
    depth: u64,
    width: u64,
    /// How large queries and keys are.
    scale: f64,
    /// Operands beside queries, keys and values, with their types; none is that of the attention.
    others: &'static [Other],
    scores: Masked,
}

const PLAIN: Case = Case {
    name: "plain",
    heads: [2, 3],
    group: 1,
    rows: 40,
    keys: 64,
    depth: 64,
    width: 64,
    scale: 1.0,
    others: &[],
    scores: |b, s, case, _| scaled(b, s, case),
};

fn scaled(b: &Builder, s: Operand, case: &Case) -> Operand {
    b.multiply(s, 1.0 / (case.depth as f64).sqrt())
}

/// Masked scores are low.
fn lowered(b: &Builder, s: Operand, case: &Case, _: f64) -> Operand {
    b.select(Operand::Input(3), scaled(b, s, case), -30.0)
}

/// A bias, a soft cap and masked keys.
fn capped(b: &Builder, s: Operand, case: &Case, least: f64) -> Operand {
    let biased = b.add(scaled(b, s, case), Operand::Input(4));
    b.select(Operand::Input(3), b.multiply(b.tanh(b.divide(biased, 5.0)), 5.0), least)
}

/// Whether a key is no later than the row of a query.
fn visible(b: &Builder, case: &Case) -> Operand {
    let shape = [1, 1, case.rows, case.keys];
    b.greater_equal(b.iota(DType::S32, &shape, Some(2)), b.iota(DType::S32, &shape, Some(3)))
}

/// Scores of keys behind the row are -Inf.
fn causal(b: &Builder, s: Operand, case: &Case, _: f64) -> Operand {
    b.select(visible(b, case), scaled(b, s, case), f64::NEG_INFINITY)
}

/// The least number is added to scores that are not `seen`.
fn added(b: &Builder, s: Operand, case: &Case, seen: Operand, least: f64) -> Operand {
    let (zero, least) = (b.number(b.ty(s).dtype, 0.0), b.number(b.ty(s).dtype, least));
    b.add(scaled(b, s, case), b.select(seen, zero, least))
}

fn cases() -> Vec<Case> {
    let keys_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[0], 1, 1, case.keys];
    let all_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[0], case.heads[1], case.rows, case.keys];
    let pairs_of: fn(&Case) -> Vec<u64> = |case| vec![case.rows, case.keys];
    let bias_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[1], case.rows, case.keys];
    let (mask, float) = (Some(DType::U8), None);
    let of_keys: &'static [_] = Box::leak(Box::new([(mask, keys_of)]));
    let of_pairs: &'static [_] = Box::leak(Box::new([(mask, pairs_of)]));
    let of_all: &'static [_] = Box::leak(Box::new([(mask, all_of)]));
    let of_both: &'static [_] = Box::leak(Box::new([(mask, keys_of), (float, bias_of)]));
    let mut all = vec![
        PLAIN,
        Case { name: "one head", heads: [1, 1], rows: 160, keys: 96, ..PLAIN },
        Case { name: "many rows", heads: [1, 2], rows: 300, keys: 96, ..PLAIN },
        Case { name: "197 of everything", heads: [1, 2], rows: 197, keys: 197, ..PLAIN },
        Case { name: "few keys", rows: 130, keys: 5, ..PLAIN },
        Case { name: "many heads", heads: [24, 12], rows: 16, keys: 130, depth: 16, width: 8, ..PLAIN },
        Case { name: "33 keys", rows: 16, keys: 33, ..PLAIN },
        Case { name: "large scores", rows: 64, keys: 100, scale: 6.0, ..PLAIN },
        Case { name: "unscaled", rows: 20, keys: 40, scale: 3.0, scores: |_, s, _, _| s, ..PLAIN },
        Case { name: "causal", heads: [2, 1], rows: 150, keys: 150, scores: causal, ..PLAIN },
        Case { name: "causal, fewer keys", heads: [2, 1], rows: 90, keys: 37, scores: causal, ..PLAIN },
        Case {
            name: "causal by a sum",
            heads: [2, 1],
            rows: 70,
            keys: 128,
            scores: |b, s, case, least| added(b, s, case, visible(b, case), least),
            ..PLAIN
        },
        Case {
            name: "keys that are masked, some rows wholly",
            heads: [3, 2],
            rows: 33,
            keys: 50,
            others: of_keys,
            scores: |b, s, case, least| added(b, s, case, Operand::Input(3), least),
            ..PLAIN
        },
        Case {
            name: "pairs that are masked by -Inf, some rows wholly",
            rows: 33,
            keys: 50,
            others: of_pairs,
            scores: |b, s, case, _| b.select(Operand::Input(3), scaled(b, s, case), f64::NEG_INFINITY),
            ..PLAIN
        },
        Case {
            name: "causal, of keys that are masked, some rows wholly",
            heads: [3, 1],
            rows: 150,
            keys: 130,
            others: of_keys,
            scores: |b, s, case, least| added(b, s, case, b.logical_and(Operand::Input(3), visible(b, case)), least),
            ..PLAIN
        },
        Case {
            name: "causal, of keys that are masked, too few to be shared out",
            heads: [3, 1],
            rows: 90,
            keys: 100,
            others: of_keys,
            scores: |b, s, case, least| added(b, s, case, b.logical_and(Operand::Input(3), visible(b, case)), least),
            ..PLAIN
        },
        Case {
            name: "many keys and large scores",
            heads: [1, 1],
            rows: 17,
            keys: 8000,
            depth: 8,
            width: 8,
            scale: 14.0,
            ..PLAIN
        },
        Case {
            name: "long elements, keys shared out",
            heads: [1, 2],
            rows: 40,
            keys: 140,
            depth: 96,
            width: 80,
            ..PLAIN
        },
        Case {
            name: "longer elements, keys shared out",
            heads: [1, 2],
            rows: 33,
            keys: 150,
            depth: 128,
            width: 128,
            ..PLAIN
        },
        Case { name: "heads in groups", heads: [2, 6], group: 3, rows: 36, keys: 70, ..PLAIN },
        Case { name: "one head of keys", heads: [1, 4], group: 4, rows: 50, keys: 96, ..PLAIN },
        Case {
            name: "heads in groups that are masked",
            heads: [2, 4],
            group: 2,
            rows: 40,
            keys: 64,
            others: of_all,
            scores: lowered,
            ..PLAIN
        },
        Case { name: "a mask of all scores", rows: 20, keys: 70, others: of_all, scores: lowered, ..PLAIN },
        Case {
            name: "a bias of heads, a soft cap and masked keys",
            rows: 45,
            keys: 64,
            others: of_both,
            scores: capped,
            ..PLAIN
        },
    ];
    for (depth, width) in [(8, 8), (16, 24), (40, 64), (80, 80), (96, 72), (128, 128), (72, 128), (64, 128)] {
        all.push(Case { name: "other sizes", heads: [1, 2], rows: 50, keys: 45, depth, width, ..PLAIN });
    }
    all
}

/// How operands lie, and in which type the softmax is computed.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Heads between the positions and the elements, as Bumblebee has them.
    inner_heads: bool,
    softmax: Option<DType>,
    /// Whether sums are inverted first, as Axon does.
    inverse: bool,
    /// Whether heads go back between the positions and the elements.
    turned: bool,
}

fn shapes(case: &Case, way: Way) -> [Vec<u64>; 3] {
    let [batch, heads] = case.heads;
    let few = heads / case.group;
    let factors = [(heads, case.rows, case.depth), (few, case.keys, case.depth), (few, case.keys, case.width)];
    factors.map(|(heads, n, d)| match way.inner_heads {
        true => vec![batch, n, heads, d],
        false => vec![batch, heads, n, d],
    })
}

/// The program in a type, and what its inputs are.
fn program(case: &Case, way: Way, dtype: DType, least: f64) -> Program {
    let b = Builder::new();
    let mut factors = shapes(case, way).map(|shape| b.input(dtype, &shape));
    case.others.iter().for_each(|(own, shape)| {
        b.input(own.unwrap_or(dtype), &shape(case));
    });
    let axis = if way.inner_heads { 2 } else { 1 };
    for factor in factors.iter_mut().skip(1).filter(|_| case.group > 1) {
        let mut shape = b.ty(*factor).shape;
        shape.insert(axis + 1, 1);
        let one = b.reshape(*factor, &shape);
        shape[axis + 1] = case.group;
        let repeated = b.broadcast(one, &shape);
        shape.remove(axis + 1);
        shape[axis] *= case.group;
        *factor = b.reshape(repeated, &shape);
    }
    if way.inner_heads {
        factors = factors.map(|factor| b.transpose(factor, &[0, 2, 1, 3]));
    }
    let [q, k, v] = factors;
    let products = b.dot_axes([q, k], [&[3], &[3]], [&[0, 1], &[0, 1]]);
    let mut scores = (case.scores)(&b, products, case, least);
    if let Some(wide) = way.softmax.filter(|_| dtype != DType::F64) {
        scores = b.as_type(scores, wide);
    }
    let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[3], true)));
    let sum = b.reduce(Reduction::Sum, exp, &[3], true);
    let weights = if way.inverse { b.multiply(b.divide(1.0, sum), exp) } else { b.divide(exp, sum) };
    let weights = b.as_type(weights, dtype);
    let mut results = b.dot_axes([weights, v], [&[3], &[2]], [&[0, 1], &[0, 1]]);
    if way.turned {
        results = b.transpose(results, &[0, 2, 1, 3]);
    }
    b.finish(&[results]).unwrap()
}

fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::Bf16 => -3.3895313892515355e38,
        // Takes in what is added to it, as the others do.
        _ => -1e30,
    }
}

fn inputs(program: &Program, case: &Case, rng: &mut Rng) -> Vec<Array> {
    let uniform = |rng: &mut Rng| rng.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0;
    let normal = |rng: &mut Rng| (0..6).map(|_| uniform(rng)).sum::<f64>() / 2f64.sqrt();
    let array = |(k, ty): (usize, &Type)| {
        let one = |_| match ty.dtype {
            DType::U8 => Value::Int((rng.below(3) > 0).into()),
            DType::S32 => Value::Int(rng.below(case.keys) as i128),
            _ => Value::Float(normal(rng) * if k < 2 { case.scale } else { 1.0 }),
        };
        let mut values: Vec<Value> = (0..ty.elements()).map(one).collect();
        // One row of the mask is all zeros.
        if ty.dtype == DType::U8 {
            values.iter_mut().take(case.keys as usize).for_each(|value| *value = Value::Int(0));
        }
        Array::new(ty, values)
    };
    program.inputs.iter().enumerate().map(array).collect()
}

fn in_f64(arrays: &[Array]) -> Vec<Array> {
    let wide = |a: &Array| match a.ty.dtype {
        DType::U8 | DType::S32 => a.clone(),
        _ => Array::new(&Type::new(DType::F64, &a.ty.shape), a.values.iter().copied()),
    };
    arrays.iter().map(wide).collect()
}

fn reals(array: &Array) -> Vec<f64> {
    array.values.iter().map(|value| value.real()).collect()
}

/// Fills memory that is free with NaN.
fn poison() {
    let bytes = vec![0xff; 1 << 20];
    drop(Tensor::from_nx_bytes(engine(), &Type::new(DType::U8, &[1 << 20]), &bytes).unwrap());
}

/// Results of a program that runs as the device has it best, in memory that is full of NaN before.
fn compiled(program: &Program, inputs: &[Array]) -> Vec<f64> {
    poison();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    reals(&download(&executable.run(&upload(inputs), Compile::Allowed).unwrap())[0])
}

/// Results in f64, and the same of absolute values, which a row of values has behind its own for that.
fn exact(case: &Case, way: Way, inputs: &[Array]) -> [Vec<f64>; 2] {
    let both = Case { width: 2 * case.width, ..*case };
    let mut inputs = in_f64(inputs);
    let width = case.width as usize;
    let with_sizes = |row: &[Value]| {
        let sizes: Vec<Value> = row.iter().map(|value| Value::Float(value.real().abs())).collect();
        [row, &sizes].concat()
    };
    inputs[2] = Array {
        ty: Type::new(DType::F64, &shapes(&both, way)[2]),
        values: inputs[2].values.chunks(width).flat_map(with_sizes).collect(),
    };
    let results = reals(&reference::run(&program(&both, way, DType::F64, least(DType::F64)), &inputs).unwrap()[0]);
    let half = |from: usize| results.chunks(2 * width).flat_map(|row| row[from..from + width].to_vec()).collect();
    [half(0), half(width)]
}

fn composed(program: &Program, inputs: &[Array]) -> Vec<f64> {
    reals(&download(&eager::run_program(engine(), program, &upload(inputs)).unwrap())[0])
}

/// The largest error in units of `epsilon` times the sum of what was added up.
fn errors(got: &[f64], want: &[f64], size: &[f64], epsilon: f64) -> f64 {
    let error = |((got, want), size): ((&f64, &f64), &f64)| match (got.is_nan(), want.is_nan()) {
        (true, true) => 0.0,
        (false, false) => (got - want).abs() / (epsilon * size.max(1e-3)),
        _ => f64::INFINITY,
    };
    got.iter().zip(want).zip(size).map(error).fold(0.0, f64::max)
}

#[test]
fn attention_is_as_exact_as_one_rounding_of_weights_and_results() {
    let mut rng = Rng(11);
    for dtype in [DType::F16, DType::Bf16] {
        let has_kernel = attention::takes(engine(), dtype, Compile::Allowed).unwrap();
        if !has_kernel {
            eprintln!("no attention of {dtype}: {}", engine().info());
        }
        let epsilon = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        for (case, inner_heads) in cases().iter().zip([true, false].into_iter().cycle()) {
            let way = Way {
                inner_heads,
                softmax: inner_heads.then_some(DType::F32),
                inverse: case.rows % 4 != 0,
                turned: inner_heads,
            };
            let what = format!("{dtype} {} {way:?} {} x {}", case.name, case.depth, case.width);
            let program_of = |dtype| program(case, way, dtype, least(dtype));
            let narrow = program_of(dtype);
            let given = inputs(&narrow, case, &mut rng);
            let [want, size] = exact(case, way, &given);
            let errors = |got: &[f64]| errors(got, &want, &size, epsilon);
            let got = errors(&compiled(&narrow, &given));
            let parts = errors(&composed(&narrow, &given));
            if !has_kernel {
                // Scores are rounded, too. What a kernel would be for runs as its parts.
                let fallback = errors(&composed(&optimize(narrow.clone(), &target()).unwrap(), &given));
                assert!(fallback.is_finite() && fallback <= parts * 1.01, "{what}: {fallback} and {parts}");
                assert!(got.is_finite() && got <= parts * 1.01, "{what}: {got} and {parts}");
                continue;
            }
            let kernels = optimize(narrow.clone(), &engine().target()).unwrap();
            assert!(is_joined(&kernels), "{what}: {kernels}");
            let alone = errors(&composed(&kernels, &given));
            assert_eq!(alone, got, "{what}: an executable runs something else");
            // One for each weight and one for the result, and what exponentials of f32 add.
            assert!(got <= 2.01, "{what}: {got} times {epsilon}, and {parts} by parts");
            assert!(got <= parts.max(1.5), "{what}: {got} and {parts}");
        }
    }
    common::assert_valid(engine());
}

#[test]
fn a_nan_and_infinities_stay_where_they_belong() {
    let tiles = Case { rows: 24, keys: 40, heads: [1, 2], ..PLAIN };
    for dtype in [DType::F16, DType::Bf16] {
        stay_where_they_belong(&tiles, dtype, compiled);
    }
    // One share of the keys, and several.
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for keys in [40, 300] {
            stay_where_they_belong(&Case { rows: 8, keys, ..tiles }, dtype, by_few);
        }
    }
}

fn stay_where_they_belong(case: &Case, dtype: DType, run: fn(&Program, &[Array]) -> Vec<f64>) {
    let mut rng = Rng(12);
    let way = Way { inner_heads: false, softmax: None, inverse: false, turned: false };
    // Which operand, at which element of head 0, and what.
    for (operand, at, value) in [
        (0, 5 * 64 + 3, f64::NAN),
        (0, 7 * 64, f64::INFINITY),
        (1, 9 * 64 + 1, f64::NAN),
        (1, 11 * 64 + 2, f64::NEG_INFINITY),
        (2, 39 * 64 + 5, f64::INFINITY),
        (2, 13 * 64 + 7, f64::NAN),
    ] {
        let narrow = program(case, way, dtype, least(dtype));
        let mut given = inputs(&narrow, case, &mut rng);
        given[operand].values[at] = Value::Float(value);
        let [want, _] = exact(case, way, &given);
        let got = run(&narrow, &given);
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            let same = if want.is_finite() { (got - want).abs() < 0.05 } else { got.to_string() == want.to_string() };
            assert!(same, "{dtype} operand {operand} is {value} at {at}: result {k} is {got}, not {want}");
        }
    }
}

fn has_two_products(instruction: &Instruction) -> bool {
    match &instruction.op {
        Op::Fused(body) => body.instructions.iter().filter(|i| matches!(i.op, Op::Dot { .. })).count() == 2,
        _ => false,
    }
}

/// Whether both products are in one kernel, behind at most one that makes numbers of a mask.
fn is_joined(program: &Program) -> bool {
    let kernels: Vec<_> = program.instructions.iter().filter(|i| i.op.class() == Class::Kernel).collect();
    let others = program.instructions.iter().any(|i| matches!(i.op.class(), Class::Product | Class::Reduction));
    kernels.len() <= 2 && !others && kernels.last().is_some_and(|last| has_two_products(last))
}

/// A device that has all of it.
fn target() -> Target {
    let few = FewQueries::default();
    let heads = Heads { f16: true, bf16: true, max_depth: 128, together: 8, min_rows: 16, few };
    Target { heads, ..gpu() }
}

/// A device that has kernels for few queries, whatever they gain.
fn target_of_few() -> Target {
    let few = FewQueries { max_rows: 8, max_depth: 256, min_keys: 1 };
    Target { heads: Heads { few, ..Heads::default() }, ..gpu() }
}

/// Results of attention by kernels for few queries, in memory that is full of NaN before.
fn by_few(program: &Program, inputs: &[Array]) -> Vec<f64> {
    let kernels = optimize(program.clone(), &target_of_few()).unwrap();
    assert!(is_joined(&kernels), "{kernels}");
    poison();
    composed(&kernels, inputs)
}

/// One query of one head for each of keys.
const ONE: Case = Case { name: "one query", heads: [2, 3], rows: 1, keys: 64, ..PLAIN };

/// Whether a key is no later than the row of a query behind an offset, which is operand 3.
fn visible_from(b: &Builder, case: &Case) -> Operand {
    let shape = [1, 1, case.rows, case.keys];
    let row = b.add(b.iota(DType::S32, &shape, Some(2)), Operand::Input(3));
    b.greater_equal(row, b.iota(DType::S32, &shape, Some(3)))
}

fn few_cases() -> Vec<Case> {
    let keys_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[0], 1, 1, case.keys];
    let pairs_of: fn(&Case) -> Vec<u64> = |case| vec![case.rows, case.keys];
    let bias_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[1], case.rows, case.keys];
    let all_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[0], case.heads[1], case.rows, case.keys];
    let scalar: fn(&Case) -> Vec<u64> = |_| vec![];
    let (mask, float) = (Some(DType::U8), None);
    let offset: &'static [_] = Box::leak(Box::new([(Some(DType::S32), scalar)]));
    let of_both: &'static [_] = Box::leak(Box::new([(Some(DType::S32), scalar), (mask, keys_of)]));
    let of_keys: &'static [_] = Box::leak(Box::new([(mask, keys_of)]));
    let of_pairs: &'static [_] = Box::leak(Box::new([(mask, pairs_of)]));
    let of_all: &'static [_] = Box::leak(Box::new([(mask, all_of)]));
    let of_bias: &'static [_] = Box::leak(Box::new([(mask, keys_of), (float, bias_of)]));
    let mut all = vec![
        ONE,
        Case { name: "one key", keys: 1, ..ONE },
        Case { name: "7 keys", keys: 7, rows: 2, ..ONE },
        Case { name: "odd sizes", keys: 37, rows: 5, depth: 13, width: 11, ..ONE },
        Case { name: "one head, many keys", heads: [1, 1], keys: 1000, rows: 2, ..ONE },
        Case { name: "many queries", heads: [1, 2], keys: 576, rows: 8, ..ONE },
        Case { name: "more queries than a workgroup has", heads: [1, 8], group: 4, keys: 300, rows: 5, ..ONE },
        Case { name: "many keys", heads: [1, 2], group: 2, keys: 3001, depth: 24, width: 8, ..ONE },
        Case { name: "heads in groups", heads: [1, 8], group: 4, keys: 576, ..ONE },
        Case { name: "three heads in a group", heads: [2, 6], group: 3, keys: 70, rows: 2, ..ONE },
        Case { name: "one head of keys", heads: [3, 4], group: 4, keys: 129, ..ONE },
        Case { name: "large scores", heads: [1, 2], rows: 8, keys: 100, scale: 17.0, scores: |_, s, _, _| s, ..ONE },
        Case { name: "large scores of many keys", heads: [1, 1], keys: 8000, depth: 8, width: 8, scale: 14.0, ..ONE },
        Case {
            name: "causal behind an offset",
            heads: [1, 6],
            group: 2,
            keys: 576,
            others: offset,
            scores: |b, s, case, least| added(b, s, case, visible_from(b, case), least),
            ..ONE
        },
        Case {
            name: "causal behind an offset, by -Inf",
            heads: [1, 2],
            rows: 4,
            keys: 200,
            others: offset,
            scores: |b, s, case, _| b.select(visible_from(b, case), scaled(b, s, case), f64::NEG_INFINITY),
            ..ONE
        },
        Case {
            name: "causal behind an offset, of keys that are masked, some rows wholly",
            heads: [3, 4],
            group: 2,
            rows: 3,
            keys: 300,
            others: of_both,
            scores: |b, s, case, least| {
                added(b, s, case, b.logical_and(Operand::Input(4), visible_from(b, case)), least)
            },
            ..ONE
        },
        Case {
            name: "keys that are masked, some rows wholly",
            heads: [2, 2],
            rows: 2,
            keys: 500,
            others: of_keys,
            scores: |b, s, case, least| added(b, s, case, Operand::Input(3), least),
            ..ONE
        },
        Case {
            name: "keys that are masked by a choice, some rows wholly",
            heads: [2, 1],
            keys: 400,
            others: of_keys,
            scores: |b, s, case, least| b.select(Operand::Input(3), scaled(b, s, case), least),
            ..ONE
        },
        Case {
            name: "pairs that are masked by -Inf, some rows wholly",
            heads: [1, 2],
            rows: 5,
            keys: 300,
            others: of_pairs,
            scores: |b, s, case, _| b.select(Operand::Input(3), scaled(b, s, case), f64::NEG_INFINITY),
            ..ONE
        },
        Case {
            name: "heads in groups that are masked",
            heads: [2, 4],
            group: 2,
            rows: 3,
            others: of_all,
            scores: lowered,
            ..ONE
        },
        Case {
            name: "a bias of heads, a soft cap and masked keys",
            heads: [2, 6],
            group: 3,
            rows: 5,
            others: of_bias,
            scores: capped,
            ..ONE
        },
    ];
    for (depth, width) in [(8, 8), (8, 128), (48, 64), (80, 80), (128, 128), (96, 40), (256, 256), (66, 130)] {
        all.push(Case { name: "other sizes", heads: [1, 2], rows: 2, keys: 150, depth, width, ..ONE });
    }
    all
}

#[test]
fn attention_of_few_queries_is_as_exact_as_its_ops() {
    let mut rng = Rng(15);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let epsilon = match dtype {
            DType::F32 => 2f64.powi(-24),
            DType::F16 => 2f64.powi(-11),
            _ => 2f64.powi(-8),
        };
        for (case, inner_heads) in few_cases().iter().zip([true, false].into_iter().cycle()) {
            let way = Way {
                inner_heads,
                softmax: inner_heads.then_some(DType::F32),
                inverse: case.rows % 4 != 0,
                turned: inner_heads,
            };
            let what = format!("{dtype} {} {way:?} {} x {}", case.name, case.depth, case.width);
            let narrow = program(case, way, dtype, least(dtype));
            let given = inputs(&narrow, case, &mut rng);
            let [want, size] = exact(case, way, &given);
            let errors = |got: &[f64]| errors(got, &want, &size, epsilon);
            let (got, parts) = (errors(&by_few(&narrow, &given)), errors(&composed(&narrow, &given)));
            assert!(got <= 1.5 * parts + 2.0, "{what}: {got} and {parts}");
            // One rounding of the result, and what f32 adds.
            assert!(dtype == DType::F32 || got <= 1.01, "{what}: {got} times {epsilon}, and {parts} by parts");
        }
    }
    common::assert_valid(engine());
}

/// The largest difference between attention of few queries by its own kernels and by its ops.
fn apart(program: &Program, inputs: &[Tensor]) -> f64 {
    let kernels = optimize(program.clone(), &target_of_few()).unwrap();
    assert!(is_joined(&kernels), "{kernels}");
    poison();
    let run = |program| reals(&download(&eager::run_program(engine(), program, inputs).unwrap())[0]);
    let [got, want] = [&kernels, program].map(run);
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max)
}

#[test]
fn operands_of_few_queries_lie_anywhere() {
    let mut rng = Rng(16);
    let (rows, keys, width) = (2, 200, 64);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let b = Builder::new();
        let operands = [rows, keys, keys].map(|n| b.input(dtype, &[3, n, width]));
        let result = attend(&b, operands);
        let program = b.finish(&[result]).unwrap();
        // Of larger tensors: rows that begin anywhere, and rows, batches or elements from the last to the first.
        let parts: [(u64, &[usize]); 5] = [(0, &[]), (1, &[]), (8, &[1]), (3, &[0, 1]), (0, &[2])];
        for (before, reversed) in parts {
            let part = |n: u64| {
                let b = Builder::new();
                let whole = b.input(dtype, &[3, n + 2, width + before]);
                let part = b.slice(whole, &[0, 1, before], &[3, n, width]);
                let axes = reversed.iter().copied().collect();
                let part = b.push(Op::Reverse { axes }, &[part], &b.ty(part));
                let views = b.finish(&[part]).unwrap();
                let whole = upload(&inputs_of(&views, &mut rng));
                eager::run_program(engine(), &views, &whole).unwrap().remove(0)
            };
            let given = [rows, keys, keys].map(part);
            let error = apart(&program, &given);
            assert!(error < 0.01, "{dtype} {before} elements before, {reversed:?} reversed: {error}");
        }
    }
}

/// Before heads are repeated, which is part of the kernel's body.
#[test]
fn keys_of_few_queries_may_be_reversed_and_repeated() {
    let mut rng = Rng(19);
    for (dtype, reversed) in [(DType::F32, 2), (DType::Bf16, 2), (DType::F16, 0)] {
        let b = Builder::new();
        let (keys, width) = (200, 64);
        let repeated = |b: &Builder| {
            let few = b.input(dtype, &[2, 1, keys, width]);
            let axes = std::iter::once(reversed).collect();
            let few = b.push(Op::Reverse { axes }, &[few], &b.ty(few));
            b.reshape(b.broadcast(few, &[2, 3, keys, width]), &[6, keys, width])
        };
        let operands = [b.input(dtype, &[6, 1, width]), repeated(&b), repeated(&b)];
        let result = attend(&b, operands);
        let program = b.finish(&[result]).unwrap();
        let error = apart(&program, &upload(&inputs_of(&program, &mut rng)));
        assert!(error < 0.01, "{dtype}, axis {reversed} reversed: {error}");
    }
}

/// More than the kernel that puts shares together has invocations.
#[test]
fn attention_of_few_queries_has_any_number_of_shares() {
    let case = Case { name: "very many keys", heads: [1, 1], rows: 8, keys: 60_000, depth: 8, width: 8, ..ONE };
    let way = Way { inner_heads: false, softmax: None, inverse: false, turned: false };
    let program = program(&case, way, DType::F32, 0.0);
    let error = apart(&program, &upload(&inputs(&program, &case, &mut Rng(17))));
    assert!(error < 1e-6, "{error}");
}

#[test]
fn attention_of_few_queries_that_reaches_too_far_runs_as_its_ops() {
    let near = Engine::open_with(&Options { reach: Reach::of_bytes(1 << 16), ..common::options() }).unwrap();
    let way = Way { inner_heads: false, softmax: None, inverse: false, turned: false };
    let case = Case { heads: [1, 2], keys: 300, ..ONE };
    let program = program(&case, way, DType::F32, 0.0);
    let given = inputs(&program, &case, &mut Rng(18));
    let kernels = optimize(program.clone(), &target_of_few()).unwrap();
    assert!(is_joined(&kernels));
    let upload = |a: &Array| Tensor::from_nx_bytes(&near, &a.ty, &a.to_nx_bytes()).unwrap();
    let tensors: Vec<Tensor> = given.iter().map(upload).collect();
    let run = |program| eager::run_program(&near, program, &tensors).unwrap()[0].to_nx_bytes(&near, None).unwrap();
    let parts = passes::composed(&program, &near.target()).unwrap();
    assert!(run(&kernels) == run(&parts));
}

/// Launches of attention on the device at hand, by kernels for few queries, and others.
fn launches(program: &Program) -> [Vec<String>; 2] {
    let kernels = optimize(program.clone(), &target_of_few()).unwrap();
    let executable = Executable::compile(engine(), kernels).unwrap();
    let kernel = |described| match described {
        Described::Launch(launched) => launched.kernel,
        other => panic!("{other:?}"),
    };
    let (own, others) = executable.describe().into_iter().map(kernel).partition(|k| k.starts_with("attention"));
    [own, others]
}

#[test]
fn attention_of_few_queries_is_one_launch_or_two() {
    let way = Way { inner_heads: true, softmax: Some(DType::F32), inverse: true, turned: true };
    for case in few_cases() {
        for dtype in [DType::F32, DType::Bf16] {
            let [own, others] = launches(&program(&case, way, dtype, least(dtype)));
            // What makes a mask of scores is one more.
            assert!((1..=2).contains(&own.len()) && others.len() <= 1, "{}: {own:?}, {others:?}", case.name);
            let few = case.keys <= 128;
            assert!(!few || own.len() == 1, "{}: {own:?}", case.name);
        }
    }
    // More queries, fewer keys and longer elements than there are kernels for, and a type without.
    let way = Way { inner_heads: true, softmax: None, inverse: false, turned: false };
    let limited = Target {
        heads: Heads { few: FewQueries { min_keys: 32, ..target_of_few().heads.few }, ..Heads::default() },
        ..gpu()
    };
    let joins = |case: &Case, dtype: DType| {
        let program = program(case, way, dtype, 0.0);
        is_joined(&optimize(program, &limited).unwrap())
    };
    assert!(joins(&ONE, DType::F32) && joins(&Case { rows: 8, ..ONE }, DType::F16));
    for case in
        [Case { rows: 9, ..ONE }, Case { keys: 31, ..ONE }, Case { depth: 257, ..ONE }, Case { width: 257, ..ONE }]
    {
        assert!(!joins(&case, DType::Bf16), "{} x {} x {}", case.rows, case.depth, case.width);
    }
    assert!(!joins(&ONE, DType::F64));
}

/// A step of decoding as Bumblebee writes it: a cache of keys and of values that a new one is put into, at an offset.
#[test]
fn a_step_of_decoding_is_attention_of_one_query() {
    let (heads, few, keys, depth) = (32, 8, 576, 64);
    for dtype in [DType::F32, DType::Bf16] {
        let b = Builder::new();
        let query = b.input(dtype, &[1, 1, heads, depth]);
        let added = [(); 2].map(|()| b.input(dtype, &[1, 1, few, depth]));
        let caches = [(); 2].map(|()| b.input(dtype, &[1, keys, few, depth]));
        let offset = b.input(DType::S32, &[]);
        let key_mask = b.input(DType::U8, &[1, keys]);
        let put = Op::PutSlice { starts: [Some(0), None, Some(0), Some(0)].into_iter().collect() };
        let caches = [0, 1].map(|k| b.push(put.clone(), &[caches[k], added[k], offset], &b.ty(caches[k])));
        let head_first = |x: Operand| b.transpose(x, &[0, 2, 1, 3]);
        let repeated = caches.map(|cache| {
            let apart = b.broadcast(b.reshape(cache, &[1, keys, few, 1, depth]), &[1, keys, few, heads / few, depth]);
            head_first(b.reshape(apart, &[1, keys, heads, depth]))
        });
        let scores = b.dot_axes([head_first(query), repeated[0]], [&[3], &[3]], [&[0, 1], &[0, 1]]);
        let scores = b.multiply(scores, 0.125);
        let shape = [1, 1, 1, keys];
        let row = b.add(b.iota(DType::S32, &shape, Some(2)), offset);
        let visible = b.greater_equal(row, b.iota(DType::S32, &shape, Some(3)));
        let visible = b.logical_and(b.reshape(key_mask, &shape), visible);
        let scores = b.add(scores, b.select(visible, b.number(dtype, 0.0), b.number(dtype, least(dtype))));
        let wide = b.as_type(scores, DType::F32);
        let exp = b.exp(b.subtract(wide, b.reduce(Reduction::Max, wide, &[3], true)));
        let weights = b.as_type(b.divide(exp, b.reduce(Reduction::Sum, exp, &[3], true)), dtype);
        let results = b.dot_axes([weights, repeated[1]], [&[3], &[2]], [&[0, 1], &[0, 1]]);
        let results = b.reshape(head_first(results), &[1, 1, heads * depth]);
        let program = b.finish(&[results, caches[0], caches[1]]).unwrap();
        let [own, others] = launches(&program);
        assert!((1..=2).contains(&own.len()), "{own:?}");
        // Both caches, and the mask.
        assert!(others.len() <= 5, "{others:?}");
    }
}

#[test]
fn attention_is_one_kernel_where_nothing_else_reads_its_parts() {
    for case in cases() {
        for inner_heads in [true, false] {
            let softmax = (case.rows % 2 == 0).then_some(DType::F32);
            let way = Way { inner_heads, softmax, inverse: inner_heads, turned: case.rows % 4 != 0 };
            let narrow = program(&case, way, DType::Bf16, least(DType::Bf16));
            let left = optimize(narrow, &target()).unwrap();
            assert!(is_joined(&left), "{}: {left}", case.name);
        }
    }
    let narrow =
        program(&PLAIN, Way { inner_heads: false, softmax: None, inverse: false, turned: false }, DType::Bf16, 0.0);
    let products = |program: &Program, target: &Target| is_joined(&optimize(program.clone(), target).unwrap());
    assert!(products(&narrow, &target()));
    assert!(!products(&narrow, &gpu()), "a device without such kernels");
    // The scores, or the weights, are results too.
    for result in [0, narrow.instructions.len() - 2] {
        let mut program = narrow.clone();
        program.outputs.push(Operand::Result(result as u32));
        assert!(!products(&program, &target()), "{result} is a result");
    }
    for case in [
        Case { rows: 15, ..PLAIN },
        Case { depth: 136, ..PLAIN },
        Case { width: 136, ..PLAIN },
        Case { width: 63, ..PLAIN },
    ] {
        let program =
            program(&case, Way { inner_heads: true, softmax: None, inverse: false, turned: false }, DType::F16, 0.0);
        assert!(!products(&program, &target()), "{} x {} x {}", case.rows, case.depth, case.width);
    }
    // Scores that are the sum of two products.
    let b = Builder::new();
    let [q, k, v, positions] = [(); 4].map(|()| b.input(DType::Bf16, &[3, 40, 64]));
    let [of_keys, of_positions] = [k, positions].map(|k| b.dot_axes([q, k], [&[2], &[2]], [&[0], &[0]]));
    let scores = b.add(of_keys, of_positions);
    let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[2], true)));
    let weights = b.divide(exp, b.reduce(Reduction::Sum, exp, &[2], true));
    let results = b.dot_axes([weights, v], [&[2], &[1]], [&[0], &[0]]);
    let both = b.finish(&[results]).unwrap();
    assert_eq!(ops(&optimize(both, &target()).unwrap()), ["dot", "fused"]);
    let wide =
        program(&PLAIN, Way { inner_heads: false, softmax: None, inverse: false, turned: false }, DType::F32, 0.0);
    assert!(!products(&wide, &target()));
}

/// Attention of batches of matrices, as whoever writes it by hand does.
fn attend(b: &Builder, [q, k, v]: [Operand; 3]) -> Operand {
    let batches: Vec<usize> = (0..b.ty(q).shape.len() - 2).collect();
    let last = batches.len() + 1;
    let scores = b.multiply(b.dot_axes([q, k], [&[last], &[last]], [&batches, &batches]), 0.125);
    let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[last], true)));
    let weights = b.divide(exp, b.reduce(Reduction::Sum, exp, &[last], true));
    b.dot_axes([weights, v], [&[last], &[last - 1]], [&batches, &batches])
}

/// How many kernels of two products are left.
fn joined(program: &Program) -> usize {
    program.instructions.iter().filter(|i| has_two_products(i)).count()
}

fn input(b: &Builder, batches: &[u64]) -> Operand {
    b.input(DType::Bf16, &[batches, &[48, 64]].concat())
}

fn inputs_of_batches(b: &Builder, batches: &[u64]) -> [Operand; 3] {
    [(); 3].map(|()| input(b, batches))
}

#[test]
fn attention_is_found_wherever_it_stands() {
    type Make = Box<dyn Fn(&Builder) -> Vec<Operand>>;
    let mut programs: Vec<(&str, usize, Make)> = Vec::new();
    for batches in [&[][..], &[5], &[2, 3, 2]] {
        programs.push(("batches of any rank", 1, Box::new(move |b| vec![attend(b, inputs_of_batches(b, batches))])));
    }
    programs.push(("one tensor thrice", 1, Box::new(move |b| vec![attend(b, [input(b, &[2]); 3])])));
    programs.push((
        "two of the same queries and keys",
        2,
        Box::new(move |b| {
            let ([q, k, v], other) = (inputs_of_batches(b, &[2]), input(b, &[2]));
            vec![attend(b, [q, k, v]), attend(b, [k, q, other])]
        }),
    ));
    programs.push((
        "one behind the other",
        2,
        Box::new(move |b| {
            let [q, k, v] = inputs_of_batches(b, &[3]);
            let first = attend(b, [q, k, v]);
            vec![attend(b, [first, k, first])]
        }),
    ));
    programs.push((
        "a result that is turned and read as it is",
        1,
        Box::new(move |b| {
            let result = attend(b, inputs_of_batches(b, &[2, 3]));
            vec![b.transpose(result, &[0, 2, 1, 3]), result]
        }),
    ));
    programs.push((
        "batches that change places",
        1,
        Box::new(move |b| vec![b.transpose(attend(b, inputs_of_batches(b, &[2, 3])), &[2, 1, 0, 3])]),
    ));
    programs.push((
        // The product turns, and takes the weights as its second operand.
        "elements that do not stay last",
        0,
        Box::new(move |b| vec![b.transpose(attend(b, inputs_of_batches(b, &[2])), &[0, 2, 1])]),
    ));
    programs.push((
        "weights along the queries",
        0,
        Box::new(move |b| {
            let [q, k, v] = inputs_of_batches(b, &[2]);
            let scores = b.dot_axes([q, k], [&[2], &[2]], [&[0], &[0]]);
            let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[1], true)));
            let weights = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
            vec![b.dot_axes([weights, v], [&[2], &[1]], [&[0], &[0]])]
        }),
    ));
    let mut rng = Rng(13);
    for (name, count, make) in programs {
        let b = Builder::new();
        let outputs = make(&b);
        let program = b.finish(&outputs).unwrap();
        let optimized = optimize(program.clone(), &target()).unwrap();
        assert_eq!(joined(&optimized), count, "{name}: {optimized}");
        let given = inputs_of(&program, &mut rng);
        let run = |program: &Program| download(&eager::run_program(engine(), program, &upload(&given)).unwrap());
        for (got, want) in run(&optimized).iter().zip(&run(&program)) {
            assert_eq!(got.ty, want.ty, "{name}");
            let far = reals(got).iter().zip(reals(want)).any(|(got, want)| (got - want).abs() > 0.04);
            assert!(!far, "{name}");
        }
    }
}

fn inputs_of(program: &Program, rng: &mut Rng) -> Vec<Array> {
    let mut one = |_| Value::Float(rng.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0);
    program.inputs.iter().map(|ty| Array::new(ty, (0..ty.elements()).map(&mut one).collect::<Vec<_>>())).collect()
}

#[test]
fn exact_attention_has_the_bits_of_its_ops() {
    let exact = Engine::open_with(&Options { exact_attention: true, ..common::options() }).unwrap();
    let b = Builder::new();
    let operands = [(); 3].map(|()| b.input(DType::Bf16, &[2, 48, 64]));
    let result = attend(&b, operands);
    let program = b.finish(&[result]).unwrap();
    let given = inputs_of(&program, &mut Rng(14));
    let tensors = || -> Vec<Tensor> {
        given.iter().map(|a| Tensor::from_nx_bytes(&exact, &a.ty, &a.to_nx_bytes()).unwrap()).collect()
    };
    assert!(!exact.target().heads.any());
    let executable = Executable::compile(&exact, program.clone()).unwrap();
    let got = executable.run(&tensors(), Compile::Allowed).unwrap()[0].to_nx_bytes(&exact, None).unwrap();
    let want = eager::run_program(&exact, &program, &tensors()).unwrap()[0].to_nx_bytes(&exact, None).unwrap();
    assert!(got == want);
}
