//! Attention in one kernel beside f64 and beside kernels of its parts.

use nx_vulkan_engine::kernels::attention;
use nx_vulkan_engine::program::ops::Class;
use nx_vulkan_engine::program::passes::{FewQueries, Heads, Target, optimize};
use nx_vulkan_engine::program::{Builder, Instruction, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Options, Tensor, Type, Value, eager};

use super::known::ops;
use super::{download, engine, gpu, upload};
use crate::common::{self, Rng};

/// What is done to scores; the last number is the least finite one of their type.
pub(super) type Masked = fn(&Builder, Operand, &Case, f64) -> Operand;

/// An operand of the steps on scores: its type, if it is not that of the attention, and its shape.
pub(super) type Other = (Option<DType>, fn(&Case) -> Vec<u64>);

pub(super) struct Case {
    pub(super) name: &'static str,
    /// Batches and heads.
    pub(super) heads: [u64; 2],
    /// Heads of queries for each head of keys and values.
    pub(super) group: u64,
    pub(super) rows: u64,
    pub(super) keys: u64,
    pub(super) depth: u64,
    pub(super) width: u64,
    /// How large queries and keys are.
    pub(super) scale: f64,
    /// Operands beside queries, keys and values, with their types; none is that of the attention.
    pub(super) others: &'static [Other],
    pub(super) scores: Masked,
}

pub(super) const PLAIN: Case = Case {
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

pub(super) fn scaled(b: &Builder, s: Operand, case: &Case) -> Operand {
    b.multiply(s, 1.0 / (case.depth as f64).sqrt())
}

/// Masked scores are low.
pub(super) fn lowered(b: &Builder, s: Operand, case: &Case, _: f64) -> Operand {
    b.select(Operand::Input(3), scaled(b, s, case), -30.0)
}

/// A bias, a soft cap and masked keys.
pub(super) fn capped(b: &Builder, s: Operand, case: &Case, least: f64) -> Operand {
    let biased = b.add(scaled(b, s, case), Operand::Input(4));
    b.select(Operand::Input(3), b.multiply(b.tanh(b.divide(biased, 5.0)), 5.0), least)
}

/// Whether a key is no later than the row of a query.
pub(super) fn visible(b: &Builder, case: &Case) -> Operand {
    let shape = [1, 1, case.rows, case.keys];
    b.greater_equal(b.iota(DType::S32, &shape, Some(2)), b.iota(DType::S32, &shape, Some(3)))
}

/// Scores of keys behind the row are -Inf.
fn causal(b: &Builder, s: Operand, case: &Case, _: f64) -> Operand {
    b.select(visible(b, case), scaled(b, s, case), f64::NEG_INFINITY)
}

/// The least number is added to scores that are not `seen`.
pub(super) fn added(b: &Builder, s: Operand, case: &Case, seen: Operand, least: f64) -> Operand {
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
pub(super) struct Way {
    /// Heads between the positions and the elements, as Bumblebee has them.
    pub(super) inner_heads: bool,
    pub(super) softmax: Option<DType>,
    /// Whether sums are inverted first, as Axon does.
    pub(super) inverse: bool,
    /// Whether heads go back between the positions and the elements.
    pub(super) turned: bool,
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
pub(super) fn program(case: &Case, way: Way, dtype: DType, least: f64) -> Program {
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

pub(super) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::Bf16 => -3.3895313892515355e38,
        // Takes in what is added to it, as the others do.
        _ => -1e30,
    }
}

pub(super) fn inputs(program: &Program, case: &Case, rng: &mut Rng) -> Vec<Array> {
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

pub(super) fn in_f64(arrays: &[Array]) -> Vec<Array> {
    let wide = |a: &Array| match a.ty.dtype {
        DType::U8 | DType::S32 => a.clone(),
        _ => Array::new(&Type::new(DType::F64, &a.ty.shape), a.values.iter().copied()),
    };
    arrays.iter().map(wide).collect()
}

pub(super) fn reals(array: &Array) -> Vec<f64> {
    array.values.iter().map(|value| value.real()).collect()
}

/// Fills memory that is free with NaN.
pub(super) fn poison() {
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
pub(super) fn exact(case: &Case, way: Way, inputs: &[Array]) -> [Vec<f64>; 2] {
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

pub(super) fn composed(program: &Program, inputs: &[Array]) -> Vec<f64> {
    reals(&download(&eager::run_program(engine(), program, &upload(inputs)).unwrap())[0])
}

/// The largest error in units of `epsilon` times the sum of what was added up.
pub(super) fn errors(got: &[f64], want: &[f64], size: &[f64], epsilon: f64) -> f64 {
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
        // Without kernels of attention it is kernels of its parts on both sides, which take long to compile.
        let (first, step) = if has_kernel { (0, 1) } else { (usize::from(dtype == DType::F16), 3) };
        for (case, inner_heads) in cases().iter().zip([true, false].into_iter().cycle()).skip(first).step_by(step) {
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
}

pub(super) fn stay_where_they_belong(case: &Case, dtype: DType, run: fn(&Program, &[Array]) -> Vec<f64>) {
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
pub(super) fn is_joined(program: &Program) -> bool {
    let kernels: Vec<_> = program.instructions.iter().filter(|i| i.op.class() == Class::Kernel).collect();
    let others = program.instructions.iter().any(|i| matches!(i.op.class(), Class::Product | Class::Reduction));
    kernels.len() <= 2 && !others && kernels.last().is_some_and(|last| has_two_products(last))
}

/// A device that has all of it.
pub(super) fn target() -> Target {
    let few = FewQueries::default();
    let heads = Heads { f16: true, bf16: true, max_depth: 128, together: 8, min_rows: 16, few };
    Target { heads, ..gpu() }
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
pub(super) fn attend(b: &Builder, [q, k, v]: [Operand; 3]) -> Operand {
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

pub(super) fn inputs_of(program: &Program, rng: &mut Rng) -> Vec<Array> {
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
