//! f16 by the device's conversions and by those of the scalar library, and bf16.

use std::sync::Arc;

use half::{bf16, f16};
use nx_vulkan_engine::DType;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

use super::Runner;

/// Random numbers that are rounded.
const RANDOM: u32 = 1_000_000;

/// Both forms: the device's, if it converts rightly, and the library's.
fn forms() -> Vec<Runner> {
    let own = Runner::new();
    // lavapipe converts rightly, one number after the other.
    let caps = own.engine.caps();
    let is_lavapipe = own.engine.info().name.starts_with("llvmpipe");
    let lavapipe_converts = is_lavapipe && caps.shader_float16 && !caps.lacks().int16;
    let half_round_trips = own.modes.half_round_trips || lavapipe_converts;
    let converted = FloatModes { halves: true, half_round_trips, hidden_round_trips: false, ..own.modes };
    let hidden = FloatModes { halves: true, half_round_trips: false, hidden_round_trips: true, ..own.modes };
    let plain = FloatModes { halves: false, half_round_trips: false, hidden_round_trips: false, ..own.modes };
    let all = if own.modes.halves || lavapipe_converts { &[converted, hidden, plain][..] } else { &[plain] };
    all.iter().map(|&modes| Runner { engine: Arc::clone(&own.engine), modes }).collect()
}

fn bytes<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    values.flatten().collect()
}

/// The bits of an f16 as f32: those of NaN stay, shifted.
fn widened(bits: u16) -> u32 {
    match f16::from_bits(bits) {
        nan if nan.is_nan() => u32::from(bits & 0x8000) << 16 | 0x7f80_0000 | u32::from(bits & 0x3ff) << 13,
        number => number.to_f32().to_bits(),
    }
}

#[test]
fn every_f16_is_loaded_as_the_number_it_is() {
    let halves = bytes((0..=u16::MAX).map(u16::to_ne_bytes));
    let want = bytes((0..=u16::MAX).map(|bits| widened(bits).to_ne_bytes()));
    for runner in forms() {
        for width in [1, 4] {
            let got = runner.run_wide(Elementwise::AsType, &[(DType::F16, &halves)], DType::F32, width);
            let wrong = got.chunks(4).zip(want.chunks(4)).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "f16 of these bits, in vectors of {width}, {:?}", runner.modes);
        }
        runner.assert_valid();
    }
}

/// Where a wider type shows the digits of NaN: of those that are chosen, and of sums.
#[test]
fn chosen_f16_are_the_numbers_they_are() {
    let all = bytes((0..=u16::MAX).map(u16::to_ne_bytes));
    let (chosen, zeros) = (vec![1u8; 1 << 16], vec![0u8; 4 << 16]);
    let step = |op: Elementwise, args: &[Ref], out: DType| Step { op, args: args.into(), out };
    let (pred, x, other) = (Ref::Input(0), Ref::Input(1), Ref::Input(2));
    let select = |of: Ref| step(Elementwise::Select, &[pred, of, other], DType::F32);
    let sum = step(Elementwise::Binary(Binary::Add), &[x, x], DType::F16);
    let own = bytes((0..=u16::MAX).map(|bits| widened(bits).to_ne_bytes()));
    let doubled = (0..=u16::MAX).map(|bits| widened(nearest((2.0 * f16::from_bits(bits).to_f32()).to_bits())));
    let doubled = bytes(doubled.map(u32::to_ne_bytes));
    let inputs = [(DType::U8, &chosen[..]), (DType::F16, &all), (DType::F32, &zeros)];
    for runner in forms() {
        for (steps, want) in [(vec![select(x)], &own), (vec![sum.clone(), select(Ref::Result(0))], &doubled)] {
            let kernel = runner.kernel_of(&steps, &[DType::U8, DType::F16, DType::F32], 4);
            let got = runner.run_kernel(&kernel, &inputs, DType::F32);
            let wrong = got.chunks(4).zip(want.chunks(4)).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "f16 of these bits, {steps:?}, {:?}", runner.modes);
        }
        runner.assert_valid();
    }
}

/// Numbers at which rounding may go wrong, and random ones.
fn singles() -> Vec<u32> {
    let ties = (0..0x7c00u16).flat_map(|bits| {
        let own = f16::from_bits(bits).to_f32();
        let next = if bits == 0x7bff { 65536.0 } else { f16::from_bits(bits + 1).to_f32() };
        let middle = f32::midpoint(own, next).to_bits();
        [own.to_bits(), middle - 1, middle, middle + 1]
    });
    let special = [1, 0x7f_ffff, 0x80_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff];
    // Powers of two, each with what is next to it.
    let powers = (1..255u32).flat_map(|exponent| [(exponent << 23) - 1, exponent << 23, (exponent << 23) + 1]);
    let signed = ties.chain(special).chain(powers).flat_map(|bits| [bits, bits | 0x8000_0000]);
    // Of all sizes, and as many near those of f16.
    let random = (0..RANDOM).map(|i| i.wrapping_mul(0x9e37_79b9));
    let near = random.clone().map(|bits| (bits & 0x8fff_ffff) + 0x3000_0000);
    signed.chain(random).chain(near).collect()
}

/// The f16 nearest to an f32 with these bits.
fn nearest(bits: u32) -> u16 {
    match f32::from_bits(bits) {
        nan if nan.is_nan() => 0x7e00,
        number => f16::from_f32(number).to_bits(),
    }
}

#[test]
fn f32_are_rounded_to_the_nearest_f16() {
    let singles = singles();
    let data = bytes(singles.iter().map(|bits| bits.to_ne_bytes()));
    for runner in forms() {
        for width in [1, 4] {
            let got = runner.run_wide(Elementwise::AsType, &[(DType::F32, &data)], DType::F16, width);
            let got = got.chunks(2).map(|bits| u16::from_ne_bytes([bits[0], bits[1]]));
            for (got, &bits) in got.zip(&singles) {
                assert_eq!(got, nearest(bits), "{bits:#x}, in vectors of {width}, {:?}", runner.modes);
            }
        }
        runner.assert_valid();
    }
}

#[test]
fn what_is_rounded_to_f16_in_between_is_the_nearest_one() {
    let singles = singles();
    let data = bytes(singles.iter().map(|bits| bits.to_ne_bytes()));
    let step = |of: Ref, out: DType| Step { op: Elementwise::AsType, args: smallvec![of], out };
    let steps = [step(Ref::Input(0), DType::F16), step(Ref::Result(0), DType::F32)];
    for runner in forms() {
        let kernel = runner.kernel_of(&steps, &[DType::F32], 4);
        let got = runner.run_kernel(&kernel, &[(DType::F32, &data)], DType::F32);
        let got = got.chunks(4).map(|bits| u32::from_ne_bytes(bits.try_into().unwrap()));
        for (got, &bits) in got.zip(&singles) {
            let want = widened(nearest(bits));
            assert_eq!(got, want, "{got:#x} and not {want:#x} of {bits:#x}, {:?}", runner.modes);
        }
        runner.assert_valid();
    }
}

/// What is rounded in between and stored as it was rounded.
#[test]
fn sums_of_f16_have_the_same_bits_in_both_forms() {
    let a = bytes((0..=u16::MAX).map(u16::to_ne_bytes));
    let b = bytes((0..=u16::MAX).map(|i| i.wrapping_mul(40_503).to_ne_bytes()));
    for op in [Binary::Add, Binary::Multiply, Binary::Max] {
        let of = |runner: &Runner| {
            runner.run_wide(Elementwise::Binary(op), &[(DType::F16, &a), (DType::F16, &b)], DType::F16, 4)
        };
        let got: Vec<Vec<u8>> = forms().iter().map(of).collect();
        assert!(got.iter().all(|bits| *bits == got[0]), "{}", op.name());
    }
}

/// The bits of the bf16 nearest to an f32 with these bits.
fn nearest_bfloat(bits: u32) -> u16 {
    match f32::from_bits(bits) {
        nan if nan.is_nan() => 0x7fc0,
        number => bf16::from_f32(number).to_bits(),
    }
}

#[test]
fn f32_are_rounded_to_the_nearest_bf16_stored_or_in_between() {
    // Each bf16, the middle behind it and what is next to that.
    let edges = |bits: u16| [0, 0x7fff, 0x8000, 0x8001].map(|below| u32::from(bits) << 16 | below);
    let singles: Vec<u32> = (0..=u16::MAX).flat_map(edges).chain(singles()).collect();
    let data = bytes(singles.iter().map(|bits| bits.to_ne_bytes()));
    let step = |of: Ref, out: DType| Step { op: Elementwise::AsType, args: smallvec![of], out };
    let steps = [step(Ref::Input(0), DType::Bf16), step(Ref::Result(0), DType::F32)];
    let runner = Runner::new();
    let stored = runner.run_wide(Elementwise::AsType, &[(DType::F32, &data)], DType::Bf16, 4);
    let between = runner.run_kernel(&runner.kernel_of(&steps, &[DType::F32], 4), &[(DType::F32, &data)], DType::F32);
    for ((stored, between), &bits) in stored.chunks(2).zip(between.chunks(4)).zip(&singles) {
        let want = nearest_bfloat(bits);
        assert_eq!(u16::from_ne_bytes(stored.try_into().unwrap()), want, "{bits:#x}");
        assert_eq!(u32::from_ne_bytes(between.try_into().unwrap()), u32::from(want) << 16, "{bits:#x}");
    }
    runner.assert_valid();
}

/// Chains whose numbers are known to be normal are rounded in fewer steps, and take the others where one is extreme.
#[test]
fn chains_of_bf16_have_the_same_bits_however_they_are_rounded() {
    let own = Runner::new();
    let other = FloatModes { nearest: false, ..own.modes };
    let other = Runner { engine: Arc::clone(&own.engine), modes: other };
    assert!(own.modes.nearest, "sums and products are rounded to the nearest");
    let out = DType::Bf16;
    let number = |x: f32| Ref::Constant(out, bf16::from_f32(x).to_f32().to_bits().into());
    let of = Ref::Result;
    let unary = |op, a| Step { op: Elementwise::Unary(op), args: smallvec![a], out };
    let binary = |op, a, b| Step { op: Elementwise::Binary(op), args: smallvec![a, b], out };
    let (x, y) = (Ref::Input(0), Ref::Input(1));
    let chains = [
        vec![
            binary(Binary::Divide, x, number(std::f32::consts::SQRT_2)),
            unary(Unary::Erf, of(0)),
            binary(Binary::Add, of(1), number(1.0)),
            binary(Binary::Multiply, x, number(0.5)),
            binary(Binary::Multiply, of(3), of(2)),
        ],
        vec![
            binary(Binary::Multiply, x, y),
            binary(Binary::Add, of(0), x),
            binary(Binary::Multiply, of(1), y),
            binary(Binary::Subtract, of(2), number(3.0)),
            unary(Unary::Abs, of(3)),
            unary(Unary::Sqrt, of(4)),
        ],
        vec![
            unary(Unary::Exp, x),
            unary(Unary::Sigmoid, y),
            binary(Binary::Multiply, of(0), of(1)),
            binary(Binary::Add, of(0), number(1.0)),
            binary(Binary::Divide, of(2), of(3)),
            binary(Binary::Max, of(4), y),
            binary(Binary::Multiply, of(5), number(1.7)),
        ],
        vec![
            binary(Binary::Multiply, x, x),
            binary(Binary::Multiply, of(0), x),
            binary(Binary::Multiply, of(1), number(0.044)),
            binary(Binary::Add, of(2), x),
            unary(Unary::Tanh, of(3)),
            binary(Binary::Multiply, of(1), of(1)),
            binary(Binary::Subtract, of(5), of(4)),
        ],
    ];
    // All of them beside others, and twice as many that are ordinary, beside each other, so that whole vectors are.
    let all = (0..=u16::MAX).chain((0..=u16::MAX).map(|i| bf16::from_f32(f32::from(i) / 8192.0 - 4.0).to_bits()));
    let all: Vec<u16> = all.collect();
    let a = bytes(all.iter().map(|bits| bits.to_ne_bytes()));
    let others = (0..all.len()).map(|i| if i <= 0xffff { all[i].wrapping_mul(40_503) } else { all[i ^ 0x5555] });
    let b = bytes(others.map(|bits| bits.to_ne_bytes()));
    let inputs = [(out, &a[..]), (out, &b[..])];
    for mut steps in chains {
        for stored in [out, DType::F32] {
            if stored != out {
                let last = Ref::Result(steps.len() as u16 - 1);
                steps.push(Step { op: Elementwise::AsType, args: smallvec![last], out: stored });
            }
            let [got, want] = [&own, &other].map(|runner| {
                let kernel = runner.kernel_of(&steps, &[out, out], 4);
                runner.run_kernel(&kernel, &inputs, stored)
            });
            let size = got.len() / all.len();
            let different = got.chunks(size).zip(want.chunks(size)).position(|(got, want)| got != want);
            assert_eq!(different.map(|i| (all[i], i)), None, "{steps:?}");
        }
    }
    own.assert_valid();
}
