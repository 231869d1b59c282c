//! The gradient of attention in kernels of its own beside f64 and beside kernels of its parts.

use nx_vulkan_engine::kernels::attention;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Executable, Value, eager};

use super::attention::{Case, PLAIN, added, in_f64, inputs, least, poison, reals, scaled, target, visible};
use super::{download, engine, gpu, upload};
use crate::common::{self, Rng};

/// How the gradient of a softmax is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Written {
    /// As Nx differentiates a product with the inverse of a sum.
    Inverse,
    /// As Nx differentiates a quotient.
    Quotient,
    /// Of weights, as whoever writes it by hand does.
    Weights,
    /// No gradient: the mean is added.
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Way {
    form: Written,
    /// Heads between the positions and the elements, as Bumblebee has them.
    inner_heads: bool,
    softmax: Option<DType>,
    /// Which weights are dropped, by an operand before the gradient of the results.
    drops: bool,
}

/// Results of attention and its gradients by queries, keys and values, which come after each other, then what is added
/// to them, and the gradient of the results.
fn program(case: &Case, way: Way, dtype: DType) -> Program {
    let b = Builder::new();
    let [batch, heads] = case.heads;
    let lying = |n: u64, heads: u64, elements: u64| match way.inner_heads {
        true => vec![batch, n, heads, elements],
        false => vec![batch, heads, n, elements],
    };
    let few = heads / case.group;
    let (rows, keys) = (case.rows, case.keys);
    let q = b.input(dtype, &lying(rows, heads, case.depth));
    let [k, v] = [case.depth, case.width].map(|elements| b.input(dtype, &lying(keys, few, elements)));
    case.others.iter().for_each(|(own, shape)| {
        b.input(own.unwrap_or(dtype), &shape(case));
    });
    let kept = way.drops.then(|| b.input(DType::U8, &[batch, heads, rows, keys]));
    let given = b.input(dtype, &lying(rows, heads, case.width));
    let axis = if way.inner_heads { 2 } else { 1 };
    let repeated = |x: Operand| {
        let mut shape = b.ty(x).shape;
        if case.group == 1 {
            return x;
        }
        shape.insert(axis + 1, 1);
        let one = b.reshape(x, &shape);
        shape[axis + 1] = case.group;
        let all = b.broadcast(one, &shape);
        shape.remove(axis + 1);
        shape[axis] *= case.group;
        b.reshape(all, &shape)
    };
    let turned = |x: Operand| if way.inner_heads { b.transpose(x, &[0, 2, 1, 3]) } else { x };
    let [q, k, v, given] = [q, repeated(k), repeated(v), given].map(turned);
    let batches: [&[usize]; 2] = [&[0, 1], &[0, 1]];
    let mut scores = (case.scores)(&b, b.dot_axes([q, k], [&[3], &[3]], batches), case, least(dtype));
    let wide = way.softmax.filter(|_| dtype != DType::F64);
    let softened = |x: Operand| wide.map_or(x, |wide| b.as_type(x, wide));
    scores = softened(scores);
    let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[3], true)));
    let total = |x: Operand| b.reduce(Reduction::Sum, x, &[3], true);
    let sum = total(exp);
    let inverse = b.divide(1.0, sum);
    let weights = if way.form == Written::Inverse { b.multiply(inverse, exp) } else { b.divide(exp, sum) };
    // As Axon writes dropout, and Nx its gradient.
    let drop = |x: Operand, zero: DType| match kept {
        Some(kept) => b.select(kept, b.divide(x, 0.875), b.number(zero, 0.0)),
        None => x,
    };
    let narrow = drop(b.as_type(weights, dtype), dtype);
    let results = b.dot_axes([narrow, v], [&[3], &[2]], batches);
    let by_weights = drop(b.dot_axes([given, v], [&[3], &[3]], batches), wide.unwrap_or(dtype));
    let by_weights = softened(b.as_type(by_weights, dtype));
    let by_scores = match way.form {
        Written::Inverse => {
            let of_sum = b.multiply(total(b.multiply(by_weights, exp)), b.negate(b.divide(inverse, sum)));
            b.multiply(b.add(b.divide(by_weights, sum), of_sum), exp)
        }
        Written::Quotient => {
            let of_sum = b.negate(total(b.multiply(by_weights, b.divide(exp, b.multiply(sum, sum)))));
            b.multiply(b.add(of_sum, b.divide(by_weights, sum)), exp)
        }
        Written::Weights => b.multiply(weights, b.subtract(by_weights, total(b.multiply(by_weights, weights)))),
        Written::Other => b.multiply(weights, b.add(by_weights, total(b.multiply(by_weights, weights)))),
    };
    let by_products = b.as_type(scaled(&b, by_scores, case), dtype);
    let by_query = b.dot_axes([by_products, k], [&[3], &[2]], batches);
    let by_key = b.dot_axes([by_products, q], [&[2], &[2]], batches);
    let by_value = b.dot_axes([given, narrow], [&[2], &[2]], batches);
    let by_value = b.transpose(by_value, if way.inner_heads { &[0, 3, 1, 2] } else { &[0, 1, 3, 2] });
    let (by_query, by_key) = (turned(by_query), turned(by_key));
    b.finish(&[results, by_query, by_key, by_value]).unwrap()
}

fn cases() -> Vec<Case> {
    let keys_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[0], 1, 1, case.keys];
    let bias_of: fn(&Case) -> Vec<u64> = |case| vec![case.heads[1], case.rows, case.keys];
    let of_keys: &'static [_] = Box::leak(Box::new([(Some(DType::U8), keys_of)]));
    let of_bias: &'static [_] = Box::leak(Box::new([(None, bias_of)]));
    let causal = |b: &Builder, s: Operand, case: &Case, least: f64| added(b, s, case, visible(b, case), least);
    let mut all = vec![
        PLAIN,
        Case { name: "one head", heads: [1, 1], rows: 160, keys: 96, ..PLAIN },
        Case { name: "many rows", heads: [1, 1], rows: 300, keys: 96, ..PLAIN },
        Case { name: "197 of everything", heads: [1, 1], rows: 197, keys: 197, ..PLAIN },
        Case { name: "few keys", rows: 130, keys: 5, ..PLAIN },
        Case { name: "many heads", heads: [5, 12], rows: 16, keys: 130, depth: 16, width: 8, ..PLAIN },
        Case { name: "large scores", rows: 64, keys: 100, scale: 6.0, ..PLAIN },
        Case { name: "causal", heads: [1, 1], rows: 150, keys: 150, scores: causal, ..PLAIN },
        Case { name: "causal, whole blocks", heads: [1, 1], rows: 256, keys: 256, scores: causal, ..PLAIN },
        Case { name: "causal, fewer keys", heads: [2, 1], rows: 90, keys: 37, scores: causal, ..PLAIN },
        Case { name: "causal, fewer queries", heads: [2, 1], rows: 37, keys: 90, scores: causal, ..PLAIN },
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
            name: "causal, of keys that are masked, some rows wholly",
            heads: [3, 1],
            rows: 150,
            keys: 130,
            others: of_keys,
            scores: |b, s, case, least| added(b, s, case, b.logical_and(Operand::Input(3), visible(b, case)), least),
            ..PLAIN
        },
        Case {
            name: "a bias of heads",
            rows: 45,
            keys: 64,
            others: of_bias,
            scores: |b, s, case, _| b.add(scaled(b, s, case), Operand::Input(3)),
            ..PLAIN
        },
        Case { name: "heads in groups", heads: [2, 6], group: 3, rows: 36, keys: 70, ..PLAIN },
        Case { name: "one head of keys", heads: [1, 4], group: 4, rows: 50, keys: 96, scores: causal, ..PLAIN },
    ];
    for (depth, width) in
        [(8, 8), (16, 24), (40, 64), (64, 32), (56, 48), (80, 80), (96, 72), (128, 128), (64, 128), (128, 40)]
    {
        all.push(Case { name: "other sizes", heads: [1, 1], rows: 50, keys: 45, depth, width, ..PLAIN });
    }
    all
}

/// Every way in turn.
fn ways() -> impl Iterator<Item = Way> {
    let forms = [Written::Inverse, Written::Quotient, Written::Weights];
    let lying = [(true, None), (false, Some(DType::F32)), (true, Some(DType::F32)), (false, None)];
    (0..).map(move |k: usize| Way {
        form: forms[k % forms.len()],
        inner_heads: lying[k % lying.len()].0,
        softmax: lying[k % lying.len()].1,
        drops: k % 5 > 2,
    })
}

/// How many kernels of five products there are, and how many products beside those of attention.
fn joined(program: &Program) -> (usize, usize) {
    let products = |body: &Program| body.instructions.iter().filter(|i| matches!(i.op, Op::Dot { .. })).count();
    let of = |op: &Op| match op {
        Op::Fused(body) => products(body),
        Op::Dot { .. } => 1,
        _ => 0,
    };
    let counts: Vec<usize> = program.instructions.iter().map(|i| of(&i.op)).collect();
    (counts.iter().filter(|&&n| n == 5).count(), counts.iter().filter(|&&n| n == 1).count())
}

#[test]
fn the_gradient_of_attention_is_one_op() {
    for case in cases() {
        for way in ways().take(20) {
            let left = optimize(program(&case, way, DType::Bf16), &target()).unwrap();
            assert_eq!(joined(&left), (1, 0), "{} {way:?}: {left}", case.name);
        }
    }
    let way = ways().next().unwrap();
    let whole = program(&PLAIN, way, DType::Bf16);
    let count = |program: &Program, target: &Target| joined(&optimize(program.clone(), target).unwrap()).0;
    assert_eq!(count(&whole, &gpu()), 0, "a device without such kernels");
    assert_eq!(count(&program(&PLAIN, way, DType::F32), &target()), 0, "f32");
    for case in [Case { rows: 15, ..PLAIN }, Case { depth: 136, ..PLAIN }, Case { width: 63, ..PLAIN }] {
        assert_eq!(count(&program(&case, way, DType::Bf16), &target()), 0, "{} x {}", case.depth, case.width);
    }
    let other = Way { form: Written::Other, ..way };
    assert_eq!(count(&program(&PLAIN, other, DType::Bf16), &target()), 0, "what only looks like a gradient");
    // Gradients of scores are a result, too.
    let mut more = whole.clone();
    let at = more.instructions.iter().rposition(|i| matches!(i.op, Op::Binary(_))).unwrap();
    more.outputs.push(Operand::Result(at as u32));
    assert_eq!(count(&more, &target()), 0);
}

/// The largest error of each result, of its largest number.
fn errors(got: &[Array], want: &[Array]) -> Vec<f64> {
    let error = |(got, want): (&Array, &Array)| {
        let (got, want) = (reals(got), reals(want));
        let largest = want.iter().map(|x| x.abs()).fold(1e-6, f64::max);
        let apart =
            |(a, b): (&f64, &f64)| if a.is_nan() != b.is_nan() { f64::INFINITY } else { (a - b).abs() / largest };
        got.iter().zip(&want).map(apart).fold(0.0, f64::max)
    };
    got.iter().zip(want).map(error).collect()
}

#[test]
fn gradients_are_as_exact_as_those_of_its_parts() {
    let mut rng = Rng(21);
    for dtype in [DType::F16, DType::Bf16] {
        let has_kernel = attention::takes(engine(), dtype, Compile::Allowed).unwrap();
        let epsilon = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        // Without kernels of attention it is kernels of its parts on both sides, which take long to compile.
        let (first, step) = if has_kernel { (0, 1) } else { (usize::from(dtype == DType::F16), 3) };
        for (case, way) in cases().iter().skip(first).step_by(step).zip(ways()) {
            let what = format!("{dtype} {} {way:?} {} x {}", case.name, case.depth, case.width);
            let narrow = program(case, way, dtype);
            let given = inputs(&narrow, case, &mut rng);
            let want = reference::run(&program(case, way, DType::F64), &in_f64(&given)).unwrap();
            let parts = errors(&run_by_op(&narrow, &given), &want);
            let left = optimize(narrow.clone(), &target()).unwrap();
            poison();
            let alone = run_by_op(&left, &given);
            let got = if has_kernel {
                poison();
                let executable = Executable::compile(engine(), narrow.clone()).unwrap();
                let compiled = download(&executable.run(&upload(&given), Compile::Allowed).unwrap());
                assert_eq!(compiled, alone, "{what}: an executable runs something else");
                errors(&compiled, &want)
            } else {
                errors(&alone, &want)
            };
            println!("{what}: {got:?} and {parts:?}");
            for (got, parts) in got.iter().zip(&parts) {
                assert!(*got <= (parts * 1.05).max(4.0 * epsilon), "{what}: {got} and {parts}");
            }
        }
    }
    common::assert_valid(engine());
}

fn run_by_op(program: &Program, given: &[Array]) -> Vec<Array> {
    download(&eager::run_program(engine(), program, &upload(given)).unwrap())
}

#[test]
fn a_nan_and_infinities_of_operands_stay_where_they_belong() {
    let mut rng = Rng(22);
    let way = Way { form: Written::Weights, inner_heads: false, softmax: None, drops: false };
    let case = Case { rows: 24, keys: 40, heads: [1, 2], ..PLAIN };
    let narrow = optimize(program(&case, way, DType::Bf16), &target()).unwrap();
    let plain = inputs(&narrow, &case, &mut rng);
    let exact = program(&case, way, DType::F64);
    // Which operand, and at which element of head 0.
    for (operand, at) in [(0, 5 * 64 + 3), (1, 9 * 64 + 1), (2, 13 * 64 + 7), (3, 7 * 64)] {
        for value in [f64::NAN, f64::INFINITY] {
            let mut given = plain.clone();
            given[operand].values[at] = Value::Float(value);
            let want = reference::run(&exact, &in_f64(&given)).unwrap();
            poison();
            for (k, (got, want)) in run_by_op(&narrow, &given).iter().zip(&want).enumerate() {
                for (i, (got, want)) in reals(got).iter().zip(reals(want)).enumerate() {
                    let same = if want.is_finite() { (got - want).abs() < 0.1 } else { !got.is_finite() };
                    assert!(same, "operand {operand} is {value} at {at}: element {i} of {k} is {got}, not {want}");
                }
            }
        }
    }
}
