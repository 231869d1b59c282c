//! The f32 scalar library on a device, against double precision on the host.
//!
//! `NX_VULKAN_SCALAR_STRIDE` is the step through the 2^32 bit patterns of f32; 1 tests all of them.

use nx_vulkan_engine::DType;
use nx_vulkan_engine::kernels::map::Form;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::reference::real_function;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

use super::{Runner, f32_bytes, f32_values};
use crate::common;

/// Odd, so that a sweep meets all residues; about 65,000 patterns.
const DEFAULT_STRIDE: u64 = 65_537;
const CHUNK: usize = 1 << 22;
/// Largest error in ulp that guides/numerics.md states for f32 functions.
const MAX_ULP: f64 = 0.7;
const MAX_ULP_TANH: f64 = 0.9;
/// Those of exp and erf where fma rounds once.
const MAX_ULP_EXP_FUSED: f64 = 0.91;
const MAX_ULP_ERF_FUSED: f64 = 0.94;

type Reference2 = fn(f64, f64) -> f64;
type Predicate = fn(f32, f32) -> bool;

fn stride() -> u64 {
    std::env::var("NX_VULKAN_SCALAR_STRIDE").map_or(DEFAULT_STRIDE, |s| s.parse().unwrap())
}

/// Error in ulp of an f32 result; infinite where NaN, infinities or the signs of zeros differ.
fn error_ulp(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.is_nan() || rounded.is_nan() {
        return if got.is_nan() && rounded.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got.is_infinite() || rounded.is_infinite() {
        if got == rounded {
            return 0.0;
        }
        // one of both sides of the largest finite number
        let limit = 2f64.powi(128);
        let value = if got.is_infinite() { limit.copysign(f64::from(got)) } else { f64::from(got) };
        return (value - want).abs() / 2f64.powi(104);
    }
    if got == 0.0 && rounded == 0.0 {
        return if got.is_sign_negative() == rounded.is_sign_negative() { 0.0 } else { f64::INFINITY };
    }
    let exponent = ((want.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-126);
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// The largest error and where it is.
fn worst(got: &[f32], want: impl Fn(usize) -> f64 + Sync) -> (f64, usize) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = got.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                let want = &want;
                scope.spawn(move || {
                    let range = (t * part).min(got.len())..((t + 1) * part).min(got.len());
                    range.map(|i| (error_ulp(got[i], want(i)), i)).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
    })
}

#[test]
fn unary_functions_are_within_their_ulp() {
    Runner::of_all_forms().iter().for_each(unary_functions);
}

fn unary_functions(runner: &Runner) {
    let stride = stride();
    let fused = runner.modes.fused;
    let mut failures = Vec::new();
    for (op, reference) in Unary::ALL.iter().filter_map(|&op| Some((op, real_function(op)?))) {
        let (mut most, mut at, mut value) = (0.0, 0f32, 0f32);
        let mut patterns =
            (0..=u64::from(u32::MAX)).step_by(stride as usize).map(|u| f32::from_bits(u as u32)).peekable();
        while patterns.peek().is_some() {
            let x: Vec<f32> = patterns.by_ref().take(CHUNK).collect();
            let y = f32_values(&runner.run(Elementwise::Unary(op), &[(DType::F32, &f32_bytes(&x))], DType::F32));
            let (error, i) = worst(&y, |i| reference(f64::from(x[i])));
            if error > most {
                (most, at, value) = (error, x[i], y[i]);
            }
        }
        println!("{:10} {most:.4} ulp at {at:e} = {:#010x} -> {value:e}", op.name(), at.to_bits());
        // These give some hundredths for a third of the steps: they must run at memory speed.
        let limit = match op {
            Unary::Tanh => MAX_ULP_TANH,
            Unary::Exp if fused => MAX_ULP_EXP_FUSED,
            Unary::Erf if fused => MAX_ULP_ERF_FUSED,
            _ => MAX_ULP,
        };
        if most > limit {
            failures.push(format!("{}({at:e}) = {value:e}: {most} ulp", op.name()));
        }
    }
    runner.assert_valid();
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A function of few elements stands in a kernel in one form.
#[test]
fn functions_of_few_elements_have_the_bits_of_those_of_many() {
    let runner = Runner::new();
    let all: Vec<u8> = (0..=u32::MAX).step_by(65_521).flat_map(u32::to_ne_bytes).collect();
    for op in [Unary::Log, Unary::Log1p, Unary::ErfInv, Unary::Exp, Unary::Erf, Unary::Tanh, Unary::Sigmoid] {
        let steps = [Step { op: Elementwise::Unary(op), args: smallvec![Ref::Input(0)], out: DType::F32 }];
        let [want, single, exact] = [Form::Vectors, Form::Single, Form::Exact].map(|form| {
            let kernel = runner.kernel_in(form, &steps, &[DType::F32], 1);
            runner.run_kernel(&kernel, &[(DType::F32, &all)], DType::F32)
        });
        assert!(want == single, "{}: {:?}", op.name(), Form::Single);
        assert!(want == exact, "{}: {:?}", op.name(), Form::Exact);
    }
    runner.assert_valid();
}

/// The errors of either form are too small to be seen in f16 and bf16.
#[test]
fn erf_of_f16_and_bf16_has_the_same_bits_in_both_forms() {
    let own = Runner::new();
    let plain = Runner { engine: std::sync::Arc::clone(&own.engine), modes: FloatModes { fused: false, ..own.modes } };
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in [DType::F16, DType::Bf16] {
        for width in [1, 4] {
            let erf = |runner: &Runner| runner.run_wide(Elementwise::Unary(Unary::Erf), &[(dtype, &all)], dtype, width);
            let (got, want) = (erf(&own), erf(&plain));
            let different = got.chunks(2).zip(want.chunks(2)).position(|(got, want)| got != want);
            assert_eq!(different, None, "{dtype} of these bits, in vectors of {width}");
        }
    }
    own.assert_valid();
}

/// Functions of bf16, roundings by sums and quotients by constants give the bits that longer forms do. lavapipe has no
/// denormals and rounds fma twice, so bf16 near these and functions that need those are left out there.
#[test]
fn numbers_of_16_bits_have_the_same_bits_where_arithmetic_keeps_denormals() {
    let own = Runner::new();
    let with = |modes| Runner { engine: std::sync::Arc::clone(&own.engine), modes };
    let plain = with(FloatModes { kept: false, fused: false, ..own.modes });
    let kept = with(FloatModes { kept: true, ..own.modes });
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let others: Vec<u8> = (0..=u16::MAX).flat_map(|x| x.wrapping_mul(40_503).to_ne_bytes()).collect();
    // Below 2^-100, but no zeros.
    let is_small = |upper: u16| (1..0x0d80).contains(&(upper & 0x7fff));
    for out in [DType::F16, DType::Bf16] {
        let unary =
            [Unary::Erf, Unary::Tanh, Unary::Exp, Unary::Sigmoid, Unary::Log, Unary::Sqrt].map(Elementwise::Unary);
        let binary = [Binary::Add, Binary::Multiply, Binary::Divide].map(Elementwise::Binary);
        let constant = |x: f32| Ref::Constant(DType::F32, x.to_bits().into());
        let unary = unary.map(|op| Step { op, args: smallvec![Ref::Input(0)], out });
        let binary = binary.map(|op| Step { op, args: smallvec![Ref::Input(0), Ref::Input(1)], out });
        let by_constants = [std::f32::consts::SQRT_2, 8.0, 3.0, 0.1, 768.0, 1e-30].map(|divisor| Step {
            op: Elementwise::Binary(Binary::Divide),
            args: smallvec![Ref::Input(0), constant(divisor)],
            out,
        });
        let fuses = |step: &Step| match step.op {
            Elementwise::Unary(Unary::Exp | Unary::Sigmoid) => out == DType::F16 || own.modes.fused,
            _ => true,
        };
        for step in unary.into_iter().filter(fuses).chain(binary).chain(by_constants) {
            let widened = Step { op: Elementwise::AsType, args: smallvec![Ref::Result(0)], out: DType::F32 };
            // As it is stored, and as what comes after it takes it.
            for steps in [&[step.clone()][..], &[step.clone(), widened]] {
                let last = steps[steps.len() - 1].out;
                let [want, got] = [&plain, &kept].map(|runner| {
                    let kernel = runner.kernel_of(steps, &[out, out], 4);
                    runner.run_kernel(&kernel, &[(out, &all), (out, &others)], last)
                });
                let bytes = want.len() >> 16;
                let upper = |bytes: &[u8]| u16::from_ne_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]]);
                let different = want.chunks(bytes).zip(got.chunks(bytes)).enumerate().position(|(i, (want, got))| {
                    let operands = [&all, &others].map(|operand| upper(&operand[2 * i..2 * i + 2]));
                    let is_seen =
                        own.modes.kept || out == DType::F16 || !operands.into_iter().chain([upper(want)]).any(is_small);
                    is_seen && want != got
                });
                assert_eq!(different, None, "{:?} of {out} with these bits", step);
            }
        }
    }
    own.assert_valid();
}

/// `f_hot` and, where it does not hold, `f` give the bits of `f`.
#[test]
fn hot_twins_are_their_functions() {
    let runner = Runner::new();
    let names: Vec<String> = Library::builtin()
        .unwrap()
        .exports()
        .filter_map(|name| Some(name.strip_prefix("nx_")?.strip_suffix("_f32_hot")?.to_string()))
        .collect();
    assert!(names.contains(&"exp".to_string()), "{names:?}");
    // Neighbours far apart, so that lanes of every kind meet; and as many that are of one kind.
    let far = (0..1u32 << 17).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
    let near = (0..100_003).map(|i| i as f32 * 1e-3 - 50.0);
    let x: Vec<f32> = far.chain(near).collect();
    for name in names {
        let op = Elementwise::Unary(Unary::from_name(&name).unwrap());
        let bytes = f32_bytes(&x);
        let inputs = [(DType::F32, &bytes[..])];
        let (plain, wide) = (runner.run(op, &inputs, DType::F32), runner.run_wide(op, &inputs, DType::F32, 4));
        let different = (0..x.len()).find(|i| plain[i * 4..][..4] != wide[i * 4..][..4]);
        assert_eq!(different.map(|i| (&name, x[i])), None);
    }
    runner.assert_valid();
}

/// Patterns that meet each other in all pairs.
const SPECIAL: [u32; 30] = [
    0,
    0x8000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x4000_0000,
    0xc000_0000,
    0x4040_0000,
    0xc040_0000,
    0x3f00_0000,
    0xbf00_0000,
    0x3f7f_ffff,
    0x3f80_0001,
    0x4b00_0001,
    0x4b7f_ffff,
    0x4b80_0001,
    0xcb80_0001,
    0x4aff_ffff,
    0x4030_0000,
    0x2f80_0000,
    0x0040_0000,
    0x7e80_0000,
];

fn pairs() -> (Vec<f32>, Vec<f32>) {
    let mut rng = common::Rng(0x9e37_79b9_7f4a_7c15);
    let mut pairs: Vec<(u32, u32)> = SPECIAL.iter().flat_map(|&a| SPECIAL.map(|b| (a, b))).collect();
    for i in 0..1 << 18 {
        let (r, s) = (rng.next(), rng.next());
        let (a, b) = ((r >> 32) as u32, r as u32);
        pairs.push(match i % 4 {
            0 => (a, b),
            // similar sizes
            1 => (a & 0x00ff_ffff | 0x3f00_0000, b & 0x80ff_ffff | 0x3f00_0000),
            // denormals and the least normal numbers
            2 => (a & 0x80ff_ffff, b),
            // powers that neither overflow nor vanish
            _ => (a & 0x0fff_ffff | 0x3a00_0000, f32::to_bits((s >> 40) as f32 / 65536.0 - 128.0)),
        });
    }
    pairs.into_iter().map(|(a, b)| (f32::from_bits(a), f32::from_bits(b))).unzip()
}

/// C99's pow in double precision, with what Rust's passes to the platform.
fn pow(x: f64, y: f64) -> f64 {
    if x == 1.0 || y == 0.0 { 1.0 } else { x.powf(y) }
}

fn nan_or(a: f64, b: f64, value: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { value }
}

#[test]
fn binary_functions_are_within_their_ulp() {
    Runner::of_all_forms().iter().for_each(binary_functions);
}

fn binary_functions(runner: &Runner) {
    let (a, b) = pairs();
    let bytes = (f32_bytes(&a), f32_bytes(&b));
    // (op, reference, largest error)
    let table: [(Binary, Reference2, f64); 6] = [
        (Binary::Divide, |a, b| a / b, 0.500_001),
        (Binary::Remainder, |a, b| a % b, 0.0),
        (Binary::Max, |a, b| nan_or(a, b, if a >= b { a } else { b }), 0.0),
        (Binary::Min, |a, b| nan_or(a, b, if a <= b { a } else { b }), 0.0),
        (Binary::Pow, pow, MAX_ULP),
        (Binary::Atan2, f64::atan2, MAX_ULP),
    ];
    for (op, reference, limit) in table {
        let got = f32_values(&runner.run(
            Elementwise::Binary(op),
            &[(DType::F32, &bytes.0), (DType::F32, &bytes.1)],
            DType::F32,
        ));
        let (error, i) = worst(&got, |i| reference(f64::from(a[i]), f64::from(b[i])));
        println!("{:10} {error:.4} ulp at ({:e}, {:e}) -> {:e}", op.name(), a[i], b[i], got[i]);
        assert!(error <= limit, "{}({:e}, {:e}) = {:e}: {error} ulp", op.name(), a[i], b[i], got[i]);
    }
    let comparisons: [(Binary, Predicate); 6] = [
        (Binary::Equal, |a, b| a == b),
        (Binary::NotEqual, |a, b| a != b),
        (Binary::Less, |a, b| a < b),
        (Binary::LessEqual, |a, b| a <= b),
        (Binary::Greater, |a, b| a > b),
        (Binary::GreaterEqual, |a, b| a >= b),
    ];
    for (op, reference) in comparisons {
        let got = runner.run(Elementwise::Binary(op), &[(DType::F32, &bytes.0), (DType::F32, &bytes.1)], DType::U8);
        for i in 0..a.len() {
            assert_eq!(got[i], u8::from(reference(a[i], b[i])), "{}({:e}, {:e})", op.name(), a[i], b[i]);
        }
    }
    runner.assert_valid();
}

/// What rounds, changes signs or sorts out NaN is exact.
#[test]
fn rounding_and_signs_are_exact() {
    let runner = Runner::new();
    let x: Vec<f32> = SPECIAL
        .iter()
        .copied()
        .chain((0..1 << 16).map(|i: u32| i.wrapping_mul(0x0001_0003)))
        .chain((-40..40).map(|i| (i as f32 / 4.0).to_bits()))
        .map(f32::from_bits)
        .collect();
    let round = |x: f32| if x.round() == 0.0 { 0.0 } else { x.round() };
    let sign = |x: f32| match x {
        _ if x == 0.0 => x,
        _ if x.is_nan() => 1.0,
        _ => 1f32.copysign(x),
    };
    let table: [(Unary, &dyn Fn(f32) -> f32); 6] = [
        (Unary::Round, &round),
        (Unary::Sign, &sign),
        (Unary::Abs, &f32::abs),
        (Unary::Negate, &|x| -x),
        (Unary::Floor, &f32::floor),
        (Unary::Ceil, &f32::ceil),
    ];
    for (op, reference) in table {
        let got = f32_values(&runner.run(Elementwise::Unary(op), &[(DType::F32, &f32_bytes(&x))], DType::F32));
        for (i, &x) in x.iter().enumerate() {
            let want = reference(x);
            assert!(
                got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan()),
                "{}({x:e}) = {:e}, not {want:e}",
                op.name(),
                got[i]
            );
        }
    }
    runner.assert_valid();
}
