//! Attention of few queries, by kernels of its own.

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::kernels::Reach;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::passes::{self, FewQueries, Heads, Target, optimize};
use nx_vulkan_engine::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Engine, Executable, Options, Tensor, eager};

use super::attention::{
    Case, PLAIN, Way, added, attend, capped, composed, errors, exact, inputs, inputs_of, is_joined, least, lowered,
    poison, program, reals, scaled, stay_where_they_belong,
};
use super::{download, engine, gpu, upload};
use crate::common::{self, Rng};

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
            let got = errors(&by_few(&narrow, &given));
            // Narrow types: one rounding of the result, and what f32 adds.
            let most = match dtype {
                DType::F32 => 1.5 * errors(&composed(&narrow, &given)) + 2.0,
                _ => 1.01,
            };
            assert!(got <= most, "{what}: {got} times {epsilon}, and at most {most}");
        }
    }
    common::assert_valid(engine());
}

#[test]
fn a_nan_and_infinities_stay_where_they_belong() {
    // One share of the keys, and several.
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for keys in [40, 300] {
            stay_where_they_belong(&Case { rows: 8, keys, heads: [1, 2], ..PLAIN }, dtype, by_few);
        }
    }
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
                let part = b.push(Op::from(Reverse { axes }), &[part], &b.ty(part));
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
            let few = b.push(Op::from(Reverse { axes }), &[few], &b.ty(few));
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
