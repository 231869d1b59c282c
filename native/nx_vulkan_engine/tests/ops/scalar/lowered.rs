//! Arithmetic of types that a device lacks: f64 against the host, which rounds once, and all else against the device's
//! own.
//!
//! `NX_VULKAN_LOWERED_CASES=100000000` tries as many random operands of each operation of f64.

use std::collections::HashMap;

use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::{DType, Engine, Options, Result};
use nx_vulkan_ir::program::ops::{Rule, result_dtype};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, ITEMS, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::lower::{Lacks, lower};
use nx_vulkan_spirv::params::{Param, ParamLayout};
use rspirv::dr::Module;
use rspirv::spirv::{Op, Word};

use super::{Runner, storage_bytes};
use crate::common;

/// Operands of one launch.
const BATCH: usize = 1 << 20;

fn lowered() -> Runner {
    let engine = Engine::open_with(&Options { lower: Lacks::ALL, ..common::options() }).unwrap();
    assert_eq!(engine.caps().lacks(), Lacks::ALL);
    Runner { modes: engine.float_modes().unwrap(), engine }
}

fn cases() -> usize {
    std::env::var("NX_VULKAN_LOWERED_CASES").map_or(200_000, |cases| cases.parse().unwrap())
}

/// Zeros, the ends of all ranges, powers of two and what is next to them, halves, infinities and NaN.
fn special() -> Vec<u64> {
    let mut values: Vec<f64> = vec![0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN, f64::EPSILON];
    values.extend([0.5, 1.5, 2.5, 3.0, 0.1, 1e-310, 1e300, 4503599627370495.5, 9007199254740993.0]);
    let powers = [-1074, -1073, -1023, -1022, -1021, -538, -537, -149, -126, -53, -52, -1, 0, 1, 31, 32, 51, 52, 53];
    values.extend(powers.iter().map(|&k| 2f64.powi(k)));
    values.extend([63, 64, 127, 511, 512, 1022, 1023].map(|k| 2f64.powi(k)));
    let bits = values.iter().flat_map(|value| {
        let bits = value.to_bits();
        [bits, bits.wrapping_add(1), bits.saturating_sub(1)]
    });
    let mut bits: Vec<u64> = bits.collect();
    bits.extend(bits.clone().iter().map(|bits| bits ^ 1 << 63));
    bits.sort_unstable();
    bits.dedup();
    bits
}

/// Bits of all kinds, of exponents near each other, and with long runs of equal bits.
fn random(rng: &mut common::Rng) -> u64 {
    let bits = rng.next();
    match rng.below(4) {
        0 => bits,
        1 => bits & !(0x7ff << 52) | (1023 + rng.below(8)) << 52,
        2 => bits & !(0x7ff << 52) | (960 + rng.below(128)) << 52,
        _ => {
            let run = u64::MAX << rng.below(53);
            (if bits & 1 == 0 { bits & run } else { bits | !run }) & !(0x7ff << 52) | (1000 + rng.below(64)) << 52
        }
    }
}

fn bytes(bits: &[u64]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Operands of `N` arguments: all combinations of special ones, then random ones, in batches.
fn batches<const N: usize>(seed: u64, mut check: impl FnMut(&[Vec<u64>; N])) {
    let special = special();
    let mut all: [Vec<u64>; N] = std::array::from_fn(|_| Vec::new());
    // Every third number is enough of triples.
    let thinned: Vec<u64> = if N < 3 { special } else { special.into_iter().step_by(5).collect() };
    let total = thinned.len().pow(N as u32);
    for case in 0..total {
        for (k, list) in all.iter_mut().enumerate() {
            list.push(thinned[case / thinned.len().pow(k as u32) % thinned.len()]);
        }
    }
    check(&all);
    let mut rng = common::Rng(seed);
    let mut left = cases();
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        let mut random: [Vec<u64>; N] = std::array::from_fn(|_| (0..count).map(|_| random(&mut rng)).collect());
        // Operands that differ little, so that digits cancel.
        for i in (0..count).step_by(7) {
            if N == 2 {
                random[1][i] = random[0][i] ^ rng.below(1 << 20) ^ (rng.next() & 1 << 63);
            }
            if N == 3 {
                let product = f64::from_bits(random[0][i]) * f64::from_bits(random[1][i]);
                random[2][i] = product.to_bits() ^ 1 << 63 ^ rng.below(4);
            }
        }
        check(&random);
    }
}

/// Does the same for each of some cases, with a number of its own, on a thread of its own: hosts take longer than GPUs.
fn beside_each_other<T: Copy + Send>(first: u64, cases: &[T], check: impl Fn(u64, T) + Sync) {
    std::thread::scope(|scope| {
        for (seed, &case) in (first..).zip(cases) {
            let check = &check;
            scope.spawn(move || check(seed, case));
        }
    });
}

#[test]
fn binary_operations_of_f64_are_rounded_once() {
    let runner = lowered();
    type Host = fn(f64, f64) -> f64;
    let operations: [(Binary, Host); 4] = [
        (Binary::Add, |a, b| a + b),
        (Binary::Subtract, |a, b| a - b),
        (Binary::Multiply, |a, b| a * b),
        (Binary::Divide, |a, b| a / b),
    ];
    beside_each_other(1, &operations, |seed, (op, host)| {
        batches::<2>(seed, |[a, b]| {
            let got =
                runner.run(Elementwise::Binary(op), &[(DType::F64, &bytes(a)), (DType::F64, &bytes(b))], DType::F64);
            for ((&a, &b), got) in a.iter().zip(b).zip(f64s(&got)) {
                let want = host(f64::from_bits(a), f64::from_bits(b));
                assert!(
                    same(got, want),
                    "{op:?} of {a:#x} and {b:#x}: {:#x}, not {:#x}",
                    got.to_bits(),
                    want.to_bits()
                );
            }
        });
    });
    type Compare = fn(f64, f64) -> bool;
    let comparisons: [(Binary, Compare); 4] = [
        (Binary::Less, |a, b| a < b),
        (Binary::LessEqual, |a, b| a <= b),
        (Binary::Equal, |a, b| a == b),
        (Binary::NotEqual, |a, b| a != b),
    ];
    beside_each_other(11, &comparisons, |seed, (op, host)| {
        batches::<2>(seed, |[a, b]| {
            let got =
                runner.run(Elementwise::Binary(op), &[(DType::F64, &bytes(a)), (DType::F64, &bytes(b))], DType::U8);
            for ((&a, &b), got) in a.iter().zip(b).zip(got) {
                assert_eq!(got != 0, host(f64::from_bits(a), f64::from_bits(b)), "{op:?} of {a:#x} and {b:#x}");
            }
        });
    });
    runner.assert_valid();
}

#[test]
fn unary_operations_of_f64_are_exact() {
    let runner = lowered();
    type Host = fn(f64) -> f64;
    let operations: [(Unary, Host); 4] = [
        (Unary::Sqrt, f64::sqrt),
        (Unary::Floor, f64::floor),
        (Unary::Ceil, f64::ceil),
        // No -0.0 comes out.
        (Unary::Round, |x| x.round() + 0.0),
    ];
    beside_each_other(21, &operations, |seed, (op, host)| {
        batches::<1>(seed, |[a]| {
            let got = runner.run(Elementwise::Unary(op), &[(DType::F64, &bytes(a))], DType::F64);
            for (&a, got) in a.iter().zip(f64s(&got)) {
                let want = host(f64::from_bits(a));
                assert!(same(got, want), "{op:?} of {a:#x}: {:#x}, not {:#x}", got.to_bits(), want.to_bits());
            }
        });
    });
    runner.assert_valid();
}

#[test]
fn conversions_of_f64_are_rounded_once() {
    let runner = lowered();
    batches::<1>(31, |[a]| {
        let got = runner.run(Elementwise::AsType, &[(DType::F64, &bytes(a))], DType::F32);
        for (&a, got) in a.iter().zip(got.chunks_exact(4)) {
            let (got, want) = (f32::from_le_bytes(got.try_into().unwrap()), f64::from_bits(a) as f32);
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "f32 of {a:#x}: {got}, not {want}");
        }
        let singles: Vec<u8> = a.iter().flat_map(|bits| (*bits as u32).to_le_bytes()).collect();
        let got = runner.run(Elementwise::AsType, &[(DType::F32, &singles)], DType::F64);
        for (&a, got) in a.iter().zip(f64s(&got)) {
            let want = f64::from(f32::from_bits(a as u32));
            assert!(same(got, want), "f64 of {:#x}: {got}, not {want}", a as u32);
        }
    });
    beside_each_other(32, &[DType::S32, DType::U32, DType::S64, DType::U64], |seed, integer| {
        batches::<1>(seed, |[a]| {
            let got = runner.run(Elementwise::AsType, &[(DType::F64, &bytes(a))], integer);
            for (&a, got) in a.iter().zip(got.chunks_exact(storage_bytes(integer))) {
                let x = f64::from_bits(a);
                let want = match integer {
                    DType::S32 => (x as i32).to_le_bytes().to_vec(),
                    DType::U32 => (x as i64 as u32).to_le_bytes().to_vec(),
                    DType::S64 => (x as i64).to_le_bytes().to_vec(),
                    _ => (x as u64).to_le_bytes().to_vec(),
                };
                // Numbers that the type does not hold have a rule of their own.
                let holds = match integer {
                    DType::U32 => (0.0..4294967296.0).contains(&x),
                    DType::U64 => (0.0..18446744073709551616.0).contains(&x),
                    _ => true,
                };
                assert!(!holds || got == want, "{integer} of {a:#x}: {got:?}, not {want:?}");
            }
            let got = runner.run(Elementwise::AsType, &[(integer, &integers(a, integer))], DType::F64);
            for (&a, got) in a.iter().zip(f64s(&got)) {
                let want = match integer {
                    DType::S32 => f64::from(a as i32),
                    DType::U32 => f64::from(a as u32),
                    DType::S64 => a as i64 as f64,
                    _ => a as f64,
                };
                assert!(same(got, want), "f64 of {integer} {a:#x}: {got}, not {want}");
            }
        });
    });
    runner.assert_valid();
}

fn integers(bits: &[u64], dtype: DType) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()[..storage_bytes(dtype)].to_vec()).collect()
}

/// A kernel of three operands, which a function makes a result of.
fn of_three(runner: &Runner, made: impl Fn(&mut Code<'_, '_>, [Word; 3]) -> Result<Word>) -> Generated {
    let mut linker = Linker::new(Library::builtin().unwrap(), "elementwise", false, runner.modes).unwrap();
    let mut params = ParamLayout::new(&[Param::Count]);
    linker
        .define("slot_element", |code, args| {
            let (at, element) = (arg(args, 0)?, Element::Typed(DType::F64));
            let addresses = [0, 1, 2, 3].map(|k| params.address(k));
            let mut operands = [0; 3];
            for (operand, &address) in operands.iter_mut().zip(&addresses) {
                *operand = access::load(code, address, element, at)?;
            }
            let result = made(code, operands)?;
            access::store(code, addresses[3], element, at, result)?;
            Ok(None)
        })
        .unwrap();
    Generated { words: linker.finish().unwrap(), params, table: false, elements_per_group: LOCAL_SIZE * ITEMS }
}

/// fma of three operands, whatever may call it.
fn fma(runner: &Runner) -> Generated {
    of_three(runner, |code, operands| code.call("nx_multiply_add_f64", &operands))
}

/// Sums and products with operands of either sign, some of which come late, in four rounds.
fn sequence(runner: &Runner) -> Generated {
    of_three(runner, |code, [a, b, c]| {
        let double = code.linker.type_float(64);
        let (mut a, mut c) = (a, c);
        for _ in 0..4 {
            let product = code.ids(Op::FMul, double, &[a, b]);
            let rest = code.ids(Op::FSub, double, &[product, c]);
            let turned = code.ids(Op::FNegate, double, &[rest]);
            let square = code.ids(Op::FMul, double, &[turned, product]);
            let [minus_a, minus_b, minus] = [a, b, square].map(|id| code.ids(Op::FNegate, double, &[id]));
            let sum = code.call("nx_multiply_add_f64", &[minus_a, minus_b, minus])?;
            let floor = code.call("nx_floor_f64", &[sum])?;
            let difference = code.ids(Op::FSub, double, &[c, floor]);
            a = code.ids(Op::FAdd, double, &[minus_b, difference]);
            c = code.ids(Op::FSub, double, &[minus, turned]);
        }
        Ok(code.ids(Op::FAdd, double, &[a, c]))
    })
}

fn host_sequence(mut a: f64, b: f64, mut c: f64) -> f64 {
    for _ in 0..4 {
        let product = a * b;
        let turned = -(product - c);
        let minus = -(turned * product);
        let difference = c - (-a).mul_add(-b, minus).floor();
        (a, c) = (-b + difference, minus - turned);
    }
    a + c
}

#[test]
fn sequences_of_f64_are_their_operations() {
    let runner = lowered();
    let kernel = sequence(&runner);
    // One loop over segments, one over steps, and the code of a step once.
    let form = rspirv::dr::load_words(lower(&kernel.words, Lacks::ALL).unwrap()).unwrap();
    let count = |opcode| form.all_inst_iter().filter(|inst| inst.class.opcode == opcode).count();
    assert_eq!((count(Op::LoopMerge), count(Op::Switch)), (2, 1));
    batches::<3>(45, |[a, b, c]| {
        let operands = [bytes(a), bytes(b), bytes(c)];
        let inputs: Vec<(DType, &[u8])> = operands.iter().map(|bytes| (DType::F64, &bytes[..])).collect();
        let got = runner.run_kernel(&kernel, &inputs, DType::F64);
        for (i, got) in f64s(&got).into_iter().enumerate() {
            let [a, b, c] = [a[i], b[i], c[i]].map(f64::from_bits);
            let want = host_sequence(a, b, c);
            assert!(same(got, want), "{a:e}, {b:e}, {c:e}: {:#x}, not {:#x}", got.to_bits(), want.to_bits());
        }
    });
    runner.assert_valid();
}

#[test]
fn functions_of_f64_are_those_of_doubles() {
    let (own, lowered) = (Runner::new(), lowered());
    // Where the device's own fma rounds twice, as lavapipe's, the last bit may differ.
    let most = u64::from(!own.modes.fused);
    // The others have forms of their own where all is rounded once.
    const MOST_OF_FORMS: u64 = 4;
    let all = Unary::ALL.iter().copied().filter(|op| matches!(op.rule(), Rule::Float | Rule::RealFloat));
    for op in all {
        let most = if matches!(op, Unary::Exp | Unary::Log | Unary::Tanh) { most } else { MOST_OF_FORMS };
        batches::<1>(61, |[a]| {
            let run = |runner: &Runner| runner.run(Elementwise::Unary(op), &[(DType::F64, &bytes(a))], DType::F64);
            for ((&a, got), want) in a.iter().zip(f64s(&run(&lowered))).zip(f64s(&run(&own))) {
                let apart = got.to_bits().abs_diff(want.to_bits());
                let close = same(got, want) || apart <= most;
                assert!(close, "{op:?} of {a:#x}: {:#x}, not {:#x}", got.to_bits(), want.to_bits());
            }
        });
    }
    lowered.assert_valid();
}

/// A loop in which values change places, with branches of either length and steps on both sides of each.
fn turns(runner: &Runner) -> Generated {
    of_three(runner, |code, [a, b, c]| {
        let (double, uint, bool) = (code.linker.type_float(64), code.linker.type_uint(32), code.linker.type_bool());
        let [x, y] = [a, c].map(|value| {
            let variable = code.variable(double);
            code.set(variable, value);
            variable
        });
        let k = code.variable(uint);
        let [zero, one, five] = [0, 1, 5].map(|k| code.linker.const_u32(k));
        code.set(k, zero);
        let repeat = code.begin_loop();
        let at = code.get(uint, k);
        let more = code.ids(Op::ULessThan, bool, &[at, five]);
        code.go_on(&repeat, more);
        let (left, right) = (code.get(double, x), code.get(double, y));
        let less = code.ids(Op::FOrdLessThan, bool, &[left, right]);
        let mut branch = code.begin_if(less);
        let mut long = left;
        for _ in 0..20 {
            long = code.call("nx_multiply_add_f64", &[long, b, right])?;
        }
        code.set(x, long);
        code.begin_else(&mut branch);
        let short = code.ids(Op::FSub, double, &[left, right]);
        let short = code.ids(Op::FMul, double, &[short, b]);
        code.set(y, short);
        let inner = code.ids(Op::FOrdLessThan, bool, &[short, b]);
        let branch_inside = code.begin_if(inner);
        let sum = code.ids(Op::FAdd, double, &[left, short]);
        let whole = code.call("nx_floor_f64", &[sum])?;
        code.set(x, whole);
        code.end_if(branch_inside);
        code.end_if(branch);
        let (left, right) = (code.get(double, x), code.get(double, y));
        code.set(x, right);
        code.set(y, left);
        let next = code.ids(Op::IAdd, uint, &[at, one]);
        code.set(k, next);
        code.end_loop(repeat);
        let (left, right) = (code.get(double, x), code.get(double, y));
        Ok(code.ids(Op::FSub, double, &[left, right]))
    })
}

fn host_turns(a: f64, b: f64, c: f64) -> f64 {
    let (mut x, mut y) = (a, c);
    for _ in 0..5 {
        if x < y {
            x = (0..20).fold(x, |x, _| x.mul_add(b, y));
        } else {
            let left = x;
            y = (x - y) * b;
            if y < b {
                x = (left + y).floor();
            }
        }
        (x, y) = (y, x);
    }
    x - y
}

#[test]
fn branches_and_loops_of_f64_go_the_same_way() {
    let runner = lowered();
    let kernel = turns(&runner);
    let form = rspirv::dr::load_words(lower(&kernel.words, Lacks::ALL).unwrap()).unwrap();
    assert_eq!(form.all_inst_iter().filter(|inst| inst.class.opcode == Op::Switch).count(), 1);
    batches::<3>(47, |[a, b, c]| {
        let operands = [bytes(a), bytes(b), bytes(c)];
        let inputs: Vec<(DType, &[u8])> = operands.iter().map(|bytes| (DType::F64, &bytes[..])).collect();
        let got = runner.run_kernel(&kernel, &inputs, DType::F64);
        for (i, got) in f64s(&got).into_iter().enumerate() {
            let [a, b, c] = [a[i], b[i], c[i]].map(f64::from_bits);
            let want = host_turns(a, b, c);
            assert!(same(got, want), "{a:e}, {b:e}, {c:e}: {:#x}, not {:#x}", got.to_bits(), want.to_bits());
        }
    });
    runner.assert_valid();
}

/// Instructions of a function with all that it calls, each call anew.
fn inlined(module: &Module, function: Word, known: &mut HashMap<Word, usize>) -> usize {
    if let Some(&size) = known.get(&function) {
        return size;
    }
    let body = module.functions.iter().find(|body| body.def_id() == Some(function)).unwrap();
    let callees = body.all_inst_iter().filter(|inst| inst.class.opcode == Op::FunctionCall);
    let callees: Vec<Word> = callees.map(|inst| inst.operands[0].unwrap_id_ref()).collect();
    let inner: usize = callees.into_iter().map(|callee| inlined(module, callee, known)).sum();
    let size = inner + body.all_inst_iter().count();
    known.insert(function, size);
    size
}

#[test]
fn functions_of_f64_stay_small() {
    // The largest is erfc, with 8,217. Where every call is inlined, its sums and products alone are 700,000.
    const MOST: usize = 10_000;
    let runner = lowered();
    let unary = Unary::ALL.iter().filter(|op| matches!(op.rule(), Rule::Float | Rule::RealFloat));
    let binary = [Binary::Pow, Binary::Atan2, Binary::Divide, Binary::Remainder].map(Elementwise::Binary);
    for op in unary.map(|op| Elementwise::Unary(*op)).chain(binary) {
        let kernel = runner.kernel(op, &[DType::F64, DType::F64][..op.arity()], DType::F64, 1);
        let module = rspirv::dr::load_words(lower(&kernel.words, Lacks::ALL).unwrap()).unwrap();
        let entry = module.entry_points[0].operands[1].unwrap_id_ref();
        let size = inlined(&module, entry, &mut HashMap::new());
        assert!(size <= MOST, "{op:?}: {size} instructions");
    }
}

#[test]
fn fma_of_f64_is_rounded_once() {
    let runner = lowered();
    let kernel = fma(&runner);
    batches::<3>(41, |[a, b, c]| {
        let operands = [bytes(a), bytes(b), bytes(c)];
        let inputs: Vec<(DType, &[u8])> = operands.iter().map(|bytes| (DType::F64, &bytes[..])).collect();
        let got = runner.run_kernel(&kernel, &inputs, DType::F64);
        for (i, got) in f64s(&got).into_iter().enumerate() {
            let [a, b, c] = [a[i], b[i], c[i]].map(f64::from_bits);
            let want = a.mul_add(b, c);
            assert!(same(got, want), "fma of {a:e}, {b:e}, {c:e}: {:#x}, not {:#x}", got.to_bits(), want.to_bits());
        }
    });
    runner.assert_valid();
}

#[test]
fn integers_have_the_bits_of_the_device() {
    let (own, lowered) = (Runner::new(), lowered());
    let mut rng = common::Rng(51);
    let mut operands = [special(), special().into_iter().rev().collect::<Vec<_>>()];
    operands.iter_mut().for_each(|list| list.extend([0, 1, 2, 7, u64::MAX, 1 << 63, 63, 64]));
    for _ in 0..50_000 {
        for list in &mut operands {
            let bits = rng.next() >> rng.below(64);
            list.push(if rng.below(4) == 0 { bits.wrapping_neg() } else { bits });
        }
    }
    let integers_of = [DType::S64, DType::U64, DType::S16, DType::U8];
    // Functions of floats take minutes to compile, and are those of the tests above.
    let ops = Elementwise::all().filter(|op| match op {
        Elementwise::Unary(op) => op.rule() != Rule::Float && op.rule() != Rule::RealFloat,
        Elementwise::Binary(op) => *op != Binary::Atan2,
        Elementwise::Select | Elementwise::Clip | Elementwise::AsType | Elementwise::Bitcast => false,
    });
    let ops: Vec<Elementwise> = ops.collect();
    for dtype in integers_of {
        let [a, b] = [0, 1].map(|k| integers(&operands[k], dtype));
        for &op in &ops {
            let inputs = [(dtype, &a[..]), (dtype, &b[..])];
            let inputs = &inputs[..op.arity()];
            let Some(out) = result_dtype(op, &[dtype, dtype][..op.arity()]) else { continue };
            let widest = [dtype, out].map(|dtype| Element::Typed(dtype).max_width() as u8);
            for width in [1, widest[0].min(widest[1])] {
                let [got, want] = [&lowered, &own].map(|runner| runner.run_wide(op, inputs, out, width));
                let at = got.iter().zip(&want).position(|(got, want)| got != want);
                assert_eq!(at, None, "{op:?} of {dtype} by {width}");
            }
        }
        for to in integers_of {
            let [got, want] = [&lowered, &own].map(|runner| runner.run(Elementwise::AsType, &[(dtype, &a)], to));
            assert!(got == want, "{to} of {dtype}");
        }
    }
    lowered.assert_valid();
}
