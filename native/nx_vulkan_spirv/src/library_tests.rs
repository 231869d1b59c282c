//! Functions of the scalar library, interpreted on the host, where fma rounds once: the twins that devices call whose
//! fma does, too.

use std::collections::HashMap;

use half::{bf16, f16};
use rspirv::dr::Operand;
use rspirv::spirv::{GlslStd450Op as Glsl, Op, Word};

use super::library::{FunctionRef, Library};
use super::modes::FloatModes;

const FUSED: FloatModes = FloatModes { preserve_f32: true, preserve_f64: true, fused: true, ..FloatModes::NONE };

/// Runs functions of one block, of scalars, which are their bits, and of vectors, which are lists of them.
struct Interpreter {
    library: &'static Library,
    /// By module.
    constants: Vec<HashMap<Word, u32>>,
    /// Whether denormal results of arithmetic are zeros, as on some devices.
    flushes: bool,
    /// By how many units of its last place a quotient is off.
    off: i32,
}

impl Interpreter {
    fn new() -> Interpreter {
        let library = Library::builtin().unwrap();
        let constants = library.modules.iter().map(|parsed| {
            let globals = parsed.module.types_global_values.iter().filter(|g| g.class.opcode == Op::Constant);
            globals
                .filter_map(|g| match g.operands[..] {
                    [Operand::LiteralBit32(bits)] => Some((g.result_id?, bits)),
                    _ => None,
                })
                .collect()
        });
        Interpreter { library, constants: constants.collect(), flushes: false, off: 0 }
    }

    fn call(&self, function: FunctionRef, arguments: &[Vec<u32>]) -> Vec<u32> {
        let parsed = &self.library.modules[function.module];
        let body = &parsed.module.functions[parsed.functions[&function.id]];
        let constants = &self.constants[function.module];
        let parameters = body.parameters.iter().map(|p| p.result_id.unwrap());
        let mut values: HashMap<Word, Vec<u32>> = parameters.zip(arguments.iter().cloned()).collect();
        for inst in &body.blocks[0].instructions {
            let ids: Vec<Word> = inst.operands.iter().filter_map(Operand::id_ref_any).collect();
            // The first operand of a call is the function, that of an extended instruction its set.
            let first = usize::from(matches!(inst.class.opcode, Op::FunctionCall | Op::ExtInst));
            let of = |id: &Word| values.get(id).cloned().unwrap_or_else(|| vec![constants[id]]);
            let all: Vec<Vec<u32>> = ids[first..].iter().map(of).collect();
            let made = match inst.class.opcode {
                Op::ReturnValue => return all[0].clone(),
                Op::FunctionCall => {
                    Some(self.call(self.library.twin(FunctionRef { module: function.module, id: ids[0] }, FUSED), &all))
                }
                Op::CompositeConstruct => Some(all.concat()),
                Op::CompositeExtract => match inst.operands[1] {
                    Operand::LiteralBit32(index) => Some(vec![all[0][index as usize]]),
                    _ => panic!("{inst:?}"),
                },
                _ => None,
            };
            if let Some(made) = made {
                values.insert(inst.result_id.unwrap(), made);
                continue;
            }
            let u: Vec<u32> = all.iter().map(|scalar| scalar[0]).collect();
            let f: Vec<f32> = u.iter().map(|&bits| f32::from_bits(bits)).collect();
            let value = match inst.class.opcode {
                Op::ExtInst => match inst.operands[1] {
                    Operand::LiteralExtInstInteger(op) => match Glsl::from_u32(op).unwrap() {
                        Glsl::Fma => f[0].mul_add(f[1], f[2]).to_bits(),
                        Glsl::FAbs => f[0].abs().to_bits(),
                        Glsl::UMin => u[0].min(u[1]),
                        Glsl::UClamp => u[0].clamp(u[1], u[2]),
                        Glsl::SMax => (u[0] as i32).max(u[1] as i32) as u32,
                        Glsl::FMax => f[0].max(f[1]).to_bits(),
                        Glsl::FMin => f[0].min(f[1]).to_bits(),
                        Glsl::InverseSqrt => (1.0 / f[0].sqrt()).to_bits(),
                        other => panic!("{other:?}"),
                    },
                    _ => panic!("{inst:?}"),
                },
                Op::FAdd => (f[0] + f[1]).to_bits(),
                Op::FSub => (f[0] - f[1]).to_bits(),
                Op::FMul => (f[0] * f[1]).to_bits(),
                Op::FDiv => (f[0] / f[1]).to_bits().wrapping_add_signed(self.off),
                Op::FNegate => (-f[0]).to_bits(),
                Op::UGreaterThanEqual => u32::from(u[0] >= u[1]),
                Op::LogicalOr => u32::from(u[0] != 0 || u[1] != 0),
                Op::LogicalNotEqual => u32::from(u[0] != u[1]),
                Op::UGreaterThan => u32::from(u[0] > u[1]),
                Op::ShiftRightLogical => u[0] >> u[1],
                Op::BitwiseOr => u[0] | u[1],
                Op::FOrdGreaterThanEqual => u32::from(f[0] >= f[1]),
                Op::FOrdLessThan => u32::from(f[0] < f[1]),
                Op::FOrdGreaterThan => u32::from(f[0] > f[1]),
                Op::IEqual => u32::from(u[0] == u[1]),
                Op::Bitcast => u[0],
                Op::FOrdEqual => u32::from(f[0] == f[1]),
                Op::ULessThan => u32::from(u[0] < u[1]),
                Op::LogicalNot => u32::from(u[0] == 0),
                Op::ConvertSToF => (u[0] as i32 as f32).to_bits(),
                Op::ShiftRightArithmetic => (u[0] as i32 >> u[1]) as u32,
                Op::ISub => u[0].wrapping_sub(u[1]),
                Op::IAdd => u[0].wrapping_add(u[1]),
                Op::ShiftLeftLogical => u[0] << u[1],
                Op::BitwiseAnd => u[0] & u[1],
                Op::BitwiseXor => u[0] ^ u[1],
                Op::Select => u[if u[0] != 0 { 1 } else { 2 }],
                other => panic!("{other:?}"),
            };
            let is_float = matches!(inst.class.opcode, Op::ExtInst | Op::FAdd | Op::FSub | Op::FMul | Op::FDiv);
            let is_denormal = value & 0x7f80_0000 == 0;
            let value = if self.flushes && is_float && is_denormal { value & 0x8000_0000 } else { value };
            values.insert(inst.result_id.unwrap(), vec![value]);
        }
        panic!("a function of several blocks")
    }

    /// The result of an exported function.
    fn run<const N: usize>(&self, name: &str, x: [f32; N]) -> f32 {
        f32::from_bits(self.call(self.library.find(name).unwrap(), &x.map(|x| vec![x.to_bits()]))[0])
    }

    /// The number that an `f_near` gives, where that is in no doubt.
    fn certain(&self, name: &str, x: f32) -> Option<f32> {
        let call = |name: &str, x: &Vec<u32>| self.call(self.library.find(name).unwrap(), std::slice::from_ref(x));
        let near = call(name, &vec![x.to_bits()]);
        (call("nx_is_doubtful_f32", &near)[0] == 0).then(|| f32::from_bits(call("nx_certain_f32", &near)[0]))
    }
}

/// The distance of `got` from `want` in units of the last place of `want` as f32.
fn error_ulp(got: f32, want: f64) -> f64 {
    if f64::from(got) == want {
        return 0.0;
    }
    let exponent = ((want.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-126);
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// Numbers of all sizes, and twice as many evenly between limits, of both signs.
fn inputs(limit: f32) -> impl Iterator<Item = f32> {
    const COUNT: u32 = 4_000;
    let all = (0..COUNT).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
    let near = (0..COUNT).map(move |i| i as f32 * (limit / COUNT as f32)).flat_map(|x| [x, -x]);
    all.chain(near).filter(|x| !x.is_nan())
}

/// The largest error over all inputs up to a limit, in units of the last place.
fn worst(inputs: impl Iterator<Item = f32>, got: impl Fn(f32) -> f32, want: fn(f64) -> f64) -> f64 {
    inputs.map(|x| error_ulp(got(x), want(f64::from(x)))).fold(0.0, f64::max)
}

#[test]
fn the_fused_tanh_is_within_its_ulp() {
    let interpreter = Interpreter::new();
    let tanh = |x| interpreter.run("nx_tanh_f32_fused", [x]);
    let most = worst([0.3, 1.0, 12.0].into_iter().flat_map(inputs), tanh, f64::tanh);
    assert!((0.8..=0.88).contains(&most), "{most}");
    for same in [0.0, -0.0, 1e-40, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 2.3e-4] {
        assert_eq!(tanh(same).to_bits(), same.to_bits());
    }
    assert_eq!([f32::INFINITY, f32::NEG_INFINITY, 1e30, -9.5].map(&tanh), [1.0, -1.0, 1.0, -1.0]);
    assert!(tanh(f32::NAN).is_nan());
}

#[test]
fn the_fused_exp_is_within_its_ulp() {
    let interpreter = Interpreter::new();
    let inputs = [1.0, 87.0].into_iter().flat_map(inputs).filter(|x| x.abs() < 87.0);
    let most = worst(inputs, |x| interpreter.run("nx_exp_f32_hot_fused", [x]), f64::exp);
    assert!((0.8..=0.91).contains(&most), "{most}");
}

#[test]
fn the_fused_erf_is_within_its_ulp() {
    let interpreter = Interpreter::new();
    let erf = |x| interpreter.run("nx_erf_f32_fused_hot", [x]);
    let inputs = [0.3, 1.0, 5.0].into_iter().flat_map(inputs).filter(|x| x.abs() >= 1e-30 || *x == 0.0);
    let most = worst(inputs, erf, libm::erf);
    assert!((0.8..=0.94).contains(&most), "{most}");
    // Of f16 and bf16, it rounds to the one nearest to the exact value. Beyond 4.5 that is 1.
    let near = |x: f32| (1e-30..4.5).contains(&x);
    let exact = |x: f32| libm::erf(x.into()) as f32;
    for x in (0..=u16::MAX).map(f16::from_bits).filter(|x| near(x.to_f32())) {
        assert_eq!(f16::from_f32(erf(x.to_f32())), f16::from_f32(exact(x.to_f32())), "{x}");
    }
    for x in (0..=u16::MAX).map(bf16::from_bits).filter(|x| near(x.to_f32())) {
        assert_eq!(bf16::from_f32(erf(x.to_f32())), bf16::from_f32(exact(x.to_f32())), "{x}");
    }
    assert_eq!([0.0, -0.0f32].map(|x| erf(x).to_bits()), [0.0, -0.0f32].map(f32::to_bits));
    assert_eq!([f32::INFINITY, f32::NEG_INFINITY, 1e30, -9.5].map(&erf), [1.0, -1.0, 1.0, -1.0]);
}

/// The nearest one, rounded once: by way of the f32 whose last bit says whether bits were lost.
fn nearest_bf16(x: f64) -> bf16 {
    let single = x as f32;
    let beyond = u32::from(f64::from(single).abs() > x.abs());
    let lost = u32::from(f64::from(single) != x && !x.is_nan());
    bf16::from_f32(f32::from_bits((single.to_bits() - beyond) | lost))
}

/// Each of the 65,536.
fn all_bf16() -> impl Iterator<Item = f32> {
    (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32())
}

/// Also if quotients are off by 3 units of the last place.
#[test]
fn functions_of_bf16_give_the_nearest_one_for_every_bf16() {
    type Exact = fn(f64) -> f64;
    let functions: [(&str, Option<&str>, Exact); 4] = [
        ("nx_erf_bf16_hot", Some("nx_erf_bf16_rare"), libm::erf),
        ("nx_tanh_bf16_hot", Some("nx_tanh_bf16_rare"), f64::tanh),
        ("nx_exp_bf16_hot", Some("nx_exp_bf16_rare"), f64::exp),
        ("nx_sigmoid_bf16_hot", Some("nx_sigmoid_bf16_rare"), |x| 1.0 / (1.0 + (-x).exp())),
    ];
    for off in [0, -3, 3] {
        let interpreter = Interpreter { off, flushes: true, ..Interpreter::new() };
        let is_rare = |name: &str, x: f32| {
            interpreter.call(interpreter.library.find(name).unwrap(), &[vec![x.to_bits()]])[0] != 0
        };
        for (name, rare, exact) in functions.into_iter().filter(|(name, ..)| off == 0 || name.contains("sigmoid")) {
            let mut count = 0;
            for x in all_bf16().filter(|&x| !rare.is_some_and(|rare| is_rare(rare, x))) {
                let (got, want) = (interpreter.run(name, [x]), exact(x.into()));
                let [got, want] = [bf16::from_f32(got), nearest_bf16(want)];
                let same = if want.is_nan() { got.is_nan() } else { got.to_bits() == want.to_bits() };
                assert!(same, "{name} of {x:e}: {got:e}, not {want:e}, quotients off by {off}");
                count += 1;
            }
            assert!(count > 33_500, "{name} holds for {count}");
        }
    }
}

#[test]
fn sums_round_to_the_nearest_narrow_float() {
    let interpreter = Interpreter::new();
    let own = |name: &str, x: u32| interpreter.call(interpreter.library.find(name).unwrap(), &[vec![x]])[0];
    // All of 16 bits and the middles between them, what is next to those, and others.
    let bf16s = (0..=u16::MAX).step_by(7).map(|bits| u32::from(bits) << 16);
    let f16s = (0..=u16::MAX).step_by(7).map(|bits| f16::from_bits(bits).to_f32().to_bits());
    let near = bf16s.flat_map(|x| [x, x + 0x7fff, x + 0x8000, x + 0x8001]);
    let near = near.chain(f16s.flat_map(|x| [x, x ^ 0xfff, x ^ 0x1000, x ^ 0x1001]));
    for bits in near.chain((0..5_000u32).map(|i| i.wrapping_mul(0x9e37_79b9))) {
        let x = f32::from_bits(bits);
        let [to_bf16, to_f16] = ["bf16", "f16"].map(|dtype| own(&format!("nx_cast_f32_{dtype}_kept"), bits));
        let stored = own("nx_store_bf16_kept", bits);
        if x.is_nan() {
            assert!([to_bf16, to_f16].into_iter().all(|y| f32::from_bits(y).is_nan()), "{bits:#x}");
            assert_eq!(stored, 0x7fc0, "{bits:#x}");
        } else {
            assert_eq!(to_bf16, bf16::from_f32(x).to_f32().to_bits(), "{bits:#x}");
            assert_eq!(to_f16, f16::from_f32(x).to_f32().to_bits(), "{bits:#x}");
            assert_eq!(stored, u32::from(bf16::from_f32(x).to_bits()), "{bits:#x}");
        }
    }
}

#[test]
fn differences_round_normal_numbers_to_the_nearest_bf16() {
    let interpreter = Interpreter { flushes: true, ..Interpreter::new() };
    let own = |name: &str, x: u32| interpreter.call(interpreter.library.find(name).unwrap(), &[vec![x]])[0];
    let edges = (0..=u16::MAX).step_by(3).map(|bits| u32::from(bits) << 16);
    let near = edges.flat_map(|x| [x, x + 1, x + 0x7fff, x + 0x8000, x + 0x8001]);
    let mut count = 0;
    for bits in near.chain((0..20_000u32).map(|i| i.wrapping_mul(0x9e37_79b9))) {
        let x = f32::from_bits(bits);
        let want = bf16::from_f32(x).to_f32();
        let own_bits = own("nx_cast_f32_bf16", bits);
        assert!(own_bits == want.to_bits() || x.is_nan() && own_bits == 0x7fc0_0000, "{bits:#x}");
        if x == 0.0 || (f32::MIN_POSITIVE..=2f32.powi(111)).contains(&x.abs()) {
            assert_eq!(own("nx_cast_f32_bf16_plain", bits), want.to_bits(), "{bits:#x}");
            count += 1;
        }
        let is_plain = x == 0.0 || (2f32.powi(-40)..=2f32.powi(36)).contains(&x.abs());
        assert_eq!(own("nx_is_extreme_f32", bits) == 0, is_plain, "{bits:#x}");
        let between = [0x3800_0000u32, 0x4700_0000];
        let arguments = [vec![bits], vec![between[0]], vec![between[1]]];
        let is_beyond = interpreter.call(interpreter.library.find("nx_is_beyond_f32").unwrap(), &arguments)[0] != 0;
        assert_eq!(!is_beyond, (between[0]..=between[1]).contains(&(bits & 0x7fff_ffff)), "{bits:#x}");
    }
    assert!(count > 60_000, "{count}");
}

#[test]
fn the_library_tells_which_functions_leave_results_in_doubt() {
    let library = Library::builtin().unwrap();
    let near = |op: &&str| library.has_near(op);
    assert_eq!(
        ["exp", "log", "erf", "erf_inv", "log_f32", "multiply"].iter().copied().filter(near).collect::<Vec<_>>(),
        ["log", "erf_inv"]
    );
}

#[test]
fn what_is_near_enough_is_rounded_rightly() {
    type Exact = fn(f64) -> f64;
    // With as many numbers in a thousand that may be in doubt.
    let functions: [(&str, Exact, f32, u32); 3] = [
        ("nx_erf_inv_f32_fused_near", nx_vulkan_ir::reference::erf_inv, 0.996, 10),
        ("nx_log_f32_fused_near", f64::ln, 4.0, 1),
        ("nx_log_f32_fused_nearby", f64::ln, 4.0, 17),
    ];
    for (flushes, off) in [(false, 0), (true, 0), (true, -2), (true, 2)] {
        let interpreter = Interpreter { flushes, off, ..Interpreter::new() };
        for (name, exact, limit, most) in functions {
            let (mut certain, mut all) = (0, 0);
            for x in inputs(limit).filter(|x| x.is_normal()) {
                let want = exact(x.into());
                let got = interpreter.certain(name, x);
                let is_near = |got: f32| error_ulp(got, want) <= 0.500_001;
                assert!(got.is_none_or(is_near), "{name} of {x:e}: {got:?}, not {want}");
                let counts = x > 1e-15 && x < limit;
                certain += u32::from(counts && got.is_some());
                all += u32::from(counts);
            }
            assert!(certain * 1000 >= all * (1000 - most), "{name} is in doubt of {} numbers in {all}", all - certain);
            for x in [0.0, -0.0, 1e-40, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert_eq!(interpreter.certain(name, x), None, "{name} of {x}");
            }
        }
        let erf_inv = |x| interpreter.certain("nx_erf_inv_f32_fused_near", x);
        assert_eq!([0.997, 1.0, -1.0, 1.5].map(erf_inv), [None; 4]);
        for log in ["nx_log_f32_fused_near", "nx_log_f32_fused_nearby"] {
            assert_eq!([-1.0, 1.0].map(|x| interpreter.certain(log, x)), [None, Some(0.0)], "{log}");
        }
    }
}

#[test]
fn fused_roots_and_quotients_are_rounded_rightly() {
    let between = |least: i32, most: i32| move |x: &f32| (2f32.powi(least)..2f32.powi(most)).contains(&x.abs());
    // Also where they begin and end to hold.
    let at = |powers: [i32; 2]| {
        let near = |power: i32| {
            inputs(4.0).map(move |x| f32::from_bits(x.to_bits() & 0x7f_ffff | ((power + 127) as u32) << 23))
        };
        inputs(4.0).chain(near(powers[0])).chain(near(powers[1] - 1))
    };
    for flushes in [false, true] {
        let interpreter = Interpreter { flushes, ..Interpreter::new() };
        for x in at([-126, 60]).filter(between(-126, 60)).map(f32::abs) {
            assert_eq!(interpreter.run("nx_sqrt_f32_fused_hot", [x]), x.sqrt(), "{x:e}");
        }
        for x in at([-100, 60]).filter(between(-100, 60)).map(f32::abs) {
            let error = error_ulp(interpreter.run("nx_rsqrt_f32_fused_hot", [x]), 1.0 / f64::from(x).sqrt());
            assert!(error < 0.5001, "{x}: {error}");
        }
        for (a, b) in [(0.0, 3.0), (-0.0, 3.0), (0.0, -3.0), (-0.0, -1e-9)] {
            let quotient = interpreter.run("nx_divide_f32_fused_hot", [a, b]);
            assert_eq!(quotient.to_bits(), (a / b).to_bits(), "{a} / {b}");
        }
        let dividends: Vec<f32> = at([-126, 60]).filter(between(-126, 60)).collect();
        let divisors: Vec<f32> = at([-60, 40]).filter(between(-60, 40)).collect();
        for (i, &a) in dividends.iter().enumerate() {
            for b in [777, 5_000].map(|k| divisors[(i * 31 + k) % divisors.len()]) {
                if b.to_bits() & 0x7f_ff00 != 0x7f_ff00 && a.abs() >= b.abs() * 2f32.powi(-125) {
                    assert_eq!(interpreter.run("nx_divide_f32_fused_hot", [a, b]), a / b, "{a:e} / {b:e}");
                }
            }
        }
    }
}

/// Dividends whose quotients by a divisor are as close as they can be to the middle between two floats.
fn hardest_dividends(divisor: u32) -> Vec<f32> {
    let mantissa = u64::from(divisor & 0x7f_ffff | 0x80_0000);
    let even = mantissa.trailing_zeros();
    let odd = mantissa >> even;
    let inverse = (0..6).fold(1u64, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
    let mut dividends = vec![];
    for bits in [24, 25] {
        let modulus = 1u64 << (bits - even);
        for k in (-15i64..=15).step_by(2) {
            // The middles m, of 25 bits, with m * mantissa = k * 2^even modulo 2^bits.
            let first = (1 << 24) + ((k as u64).wrapping_mul(inverse) & (modulus - 1));
            for middle in (first..1 << 25).step_by(modulus as usize).filter(|m| m % 2 == 1).take(2) {
                let product = (middle * mantissa).wrapping_sub((k << even) as u64);
                let dividend = product >> bits;
                if product % (1 << bits) == 0 && (1 << 23..1 << 24).contains(&dividend) {
                    dividends.push(dividend as f32 * 2f32.powi(bits as i32 - 47));
                }
            }
        }
    }
    dividends
}

#[test]
fn quotients_by_shared_divisors_round_rightly() {
    let interpreter = Interpreter { flushes: true, ..Interpreter::new() };
    let mut count = 0;
    for i in 0..4_000u32 {
        let divisor = 0x3f80_0000 | (i.wrapping_mul(0x9e37_79b9) >> 9) >> (i % 4) << (i % 4);
        if divisor & 0x7f_ff00 == 0x7f_ff00 {
            continue;
        }
        let b = f32::from_bits(divisor);
        // The least quotients of all as well.
        let (small, large) = (2f32.powi(-80), 2f32.powi(39));
        for a in hardest_dividends(divisor) {
            for (a, b) in [(a, b), (a * small, b * large)] {
                assert_eq!(interpreter.run("nx_shared_quotient_f32", [a, b]), a / b, "{a:e} / {b:e}");
                assert_eq!(interpreter.run("nx_divide_f32_fused_hot", [a, b]), a / b, "{a:e} / {b:e}");
            }
            let (a, b) = (a * 2f32.powi(-124), b * 0.25);
            assert_eq!(interpreter.run("nx_divide_f32_fused_hot", [a, b]), a / b, "{a:e} / {b:e}");
            count += 1;
        }
    }
    assert!(count > 20_000, "{count}");
}

#[test]
fn quotients_by_constants_round_rightly() {
    for flushes in [false, true] {
        let interpreter = Interpreter { flushes, ..Interpreter::new() };
        let mut count = 0;
        // The least and the largest number, what is next to a power of two, and others.
        let mantissas = (0..500u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> 9);
        for (i, mantissa) in (0i32..).zip([0, 1, 0x7f_ffff, 0x66_6666].into_iter().chain(mantissas)) {
            let divisor = 0x3f80_0000 | mantissa;
            let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
            let b = f32::from_bits(divisor) * sign * 2f32.powi([-40, -1, 0, 39][i as usize % 4]);
            let hardest = hardest_dividends(divisor).into_iter().flat_map(|a| [a, -a * 2f32.powi(59), a * 1e-37]);
            let least = b.abs() * 2f32.powi(-125);
            let ends = [0.0, 1e-45, 1e-38, f32::MIN_POSITIVE, least, 1.1529e18, 1.1530e18, f32::MAX, f32::INFINITY];
            let ends = ends.into_iter().flat_map(|a| [a, -a]).chain([f32::NAN]);
            let others = (0..50u32).map(|k| f32::from_bits(k.wrapping_mul(0x9e37_79b9).rotate_left(i as u32)));
            for a in hardest.chain(ends).chain(others) {
                let arguments = [a, b, 1.0 / b].map(|x| vec![x.to_bits()]);
                let find = |name| interpreter.library.find(name).unwrap();
                let is_rare = interpreter.call(find("nx_divide_by_f32_fused_rare"), &arguments)[0] != 0;
                let size = (a / b).abs();
                let is_plain = a == 0.0 || a.is_normal() && a.abs() < 2f32.powi(60) && size >= 2f32.powi(-124);
                assert!(!(is_plain && is_rare), "{a:e} / {b:e}");
                if !is_rare {
                    let quotient = interpreter.call(find("nx_divide_by_f32_fused_hot"), &arguments)[0];
                    assert_eq!(quotient, (a / b).to_bits(), "{a:e} / {b:e}");
                    count += 1;
                }
            }
        }
        assert!(count > 20_000, "{count}");
    }
}
