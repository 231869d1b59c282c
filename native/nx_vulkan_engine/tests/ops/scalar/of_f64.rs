//! The f64, c64 and c128 scalar libraries on a device, against vectors made with MPFR and MPC.
//!
//! The files `data/scalar_<type>.bin` are sections of: name (16 bytes), numbers per input, numbers per result, records
//! (u32 each), then the records as f64, the results rounded to nearest. `NX_VULKAN_SCALAR_VECTORS` names a folder with
//! other vectors of the same names.

use nx_vulkan_engine::DType;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};

use super::{Runner, f32_values};
use crate::common;
use crate::double;

/// The results of f64 functions stay within this many ulp of the rounded result, half an ulp off the true one.
const MAX_ULP_F64: f64 = 1.0;
/// The same for functions that take the steps of `Nx.BinaryBackend` and of its C library, for some inputs at least.
const MAX_ULP_F64_STEPS: f64 = 2.0;
const STEPS: [&str; 9] = ["sigmoid", "expm1", "log1p", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc"];
/// Largest relative error of the approximation that is erf_inv.
const MAX_ERF_INV: f64 = 4e-7;
/// Largest error of a complex result in ulp of its larger part.
const MAX_ULP_COMPLEX: f64 = 2.0;

struct Section {
    name: String,
    inputs: usize,
    outputs: usize,
    records: Vec<Vec<f64>>,
}

fn sections(file: &str) -> Vec<Section> {
    let folder = std::env::var("NX_VULKAN_SCALAR_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data").to_owned());
    let bytes = std::fs::read(format!("{folder}/{file}")).unwrap();
    let mut rest = bytes.as_slice();
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(28);
        let name = String::from_utf8(head[..16].iter().copied().take_while(|&b| b != 0).collect()).unwrap();
        let word = |k: usize| u32::from_le_bytes(head[16 + 4 * k..20 + 4 * k].try_into().unwrap()) as usize;
        let (inputs, outputs, count) = (word(0), word(1), word(2));
        let width = inputs + outputs;
        let (body, tail) = tail.split_at(count * width * 8);
        let numbers: Vec<f64> = body.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        all.push(Section { name, inputs, outputs, records: numbers.chunks(width).map(<[f64]>::to_vec).collect() });
        rest = tail;
    }
    all
}

fn op(name: &str) -> Elementwise {
    let unary = Unary::ALL.iter().find(|op| op.name() == name).map(|&op| Elementwise::Unary(op));
    unary
        .or_else(|| Binary::ALL.iter().find(|op| op.name() == name).map(|&op| Elementwise::Binary(op)))
        .unwrap_or_else(|| panic!("no op {name}"))
}

/// The numbers `range` of all records as elements of the part type of `dtype`.
fn operand(section: &Section, range: std::ops::Range<usize>, dtype: DType) -> Vec<u8> {
    let numbers = section.records.iter().flat_map(|r| r[range.clone()].iter());
    if dtype == DType::C64 {
        numbers.flat_map(|&x| (x as f32).to_le_bytes()).collect()
    } else {
        numbers.flat_map(|x| x.to_le_bytes()).collect()
    }
}

fn run(runner: &Runner, section: &Section, dtype: DType) -> Vec<f64> {
    let parts = if dtype.is_complex() { 2 } else { 1 };
    let operands: Vec<Vec<u8>> =
        (0..section.inputs / parts).map(|k| operand(section, k * parts..(k + 1) * parts, dtype)).collect();
    let inputs: Vec<(DType, &[u8])> = operands.iter().map(|bytes| (dtype, bytes.as_slice())).collect();
    let real = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
    let out = if section.outputs == parts { dtype } else { real };
    let bytes = runner.run(op(&section.name), &inputs, out);
    if dtype == DType::C64 {
        f32_values(&bytes).into_iter().map(f64::from).collect()
    } else {
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// |got - want| in ulp of a number of the size of `scale`, with `digits` bits and normal numbers from 2^`least` on.
fn distance_ulp(got: f64, want: f64, scale: f64, digits: i32, least: i32) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    // devices may flush denormal results
    if got == 0.0 && want.abs() < 2f64.powi(least) {
        return 0.0;
    }
    let exponent = ((scale.abs().to_bits() >> 52) as i32 - 1023).max(least);
    let unit = exponent - digits + 1;
    // in two steps: the ulp itself may be denormal
    (got - want).abs() * 2f64.powi(-(unit / 2)) * 2f64.powi(-(unit - unit / 2))
}

/// `1 / b` modulo 2^54, for odd `b`.
fn inverse(b: u64) -> u64 {
    (0..6).fold(b, |x, _| x.wrapping_mul(2u64.wrapping_sub(b.wrapping_mul(x)))) & ((1 << 54) - 1)
}

/// Quotients and roots that are as near to the middle of two numbers as any.
#[test]
fn what_is_next_to_a_tie_is_rounded_rightly() {
    let runner = Runner::new();
    let mut rng = common::Rng(0x2026_1123);
    let (mut a, mut b) = (vec![1.0f64], vec![2.0 - f64::EPSILON]);
    while a.len() < 20_000 {
        let divisor = (1 << 52) | (rng.next() >> 12) | 1;
        // The quotient is the odd number over 2^54, and one over 2^54 times the divisor more or less.
        let more = rng.below(2) == 0;
        let odd = if more { (1 << 54) - inverse(divisor) } else { inverse(divisor) };
        let product = u128::from(odd) * u128::from(divisor);
        let dividend = (if more { product + 1 } else { product - 1 }) >> 54;
        if odd >= 1 << 53 {
            a.push(dividend as f64);
            b.push(divisor as f64);
        }
    }
    let bytes = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let values =
        |bytes: Vec<u8>| bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect::<Vec<f64>>();
    let (dividends, divisors) = (bytes(&a), bytes(&b));
    let divide = Elementwise::Binary(Binary::Divide);
    let got = values(runner.run(divide, &[(DType::F64, &dividends), (DType::F64, &divisors)], DType::F64));
    let wrong = (0..a.len()).filter(|&i| got[i] != a[i] / b[i]).count();
    let roots: Vec<f64> = (0..20_000u64)
        .map(|i| f64::from_bits([1.0f64, 2.0, 4.0][i as usize % 3].to_bits() + i))
        .chain((1..100).map(|i| f64::from_bits(1.0f64.to_bits() - i)))
        .collect();
    let got = values(runner.run(Elementwise::Unary(Unary::Sqrt), &[(DType::F64, &bytes(&roots))], DType::F64));
    let wrong_roots = roots.iter().zip(&got).filter(|(x, got)| **got != x.sqrt()).count();
    assert_eq!([wrong, wrong_roots], [0, 0], "of {} quotients and {} roots", a.len(), roots.len());
    runner.assert_valid();
}

#[test]
fn f64_functions_are_within_their_ulp() {
    let runner = Runner::new();
    let mut failures = Vec::new();
    for section in sections("scalar_f64.bin") {
        let got = run(&runner, &section, DType::F64);
        let (mut most, mut at) = (0.0, 0);
        for (i, record) in section.records.iter().enumerate() {
            let want = record[section.inputs];
            let error = distance_ulp(got[i], want, want, 53, -1022);
            let zero_sign = got[i] == 0.0 && want == 0.0 && got[i].is_sign_negative() != want.is_sign_negative();
            let (error, zero_sign) = match section.name.as_str() {
                // its zero is positive
                "erf_inv" if want == 0.0 => (0.0, got[i].is_sign_negative()),
                "erf_inv" if (got[i] / want - 1.0).abs() < MAX_ERF_INV => (0.0, false),
                _ => (error, zero_sign),
            };
            let limit = if STEPS.contains(&section.name.as_str()) { MAX_ULP_F64_STEPS } else { MAX_ULP_F64 };
            if error > limit || zero_sign {
                let x = &record[..section.inputs];
                failures.push(format!("{} {x:?}: {:e}, not {want:e}", section.name, got[i]));
            }
            if error > most {
                (most, at) = (error, i);
            }
        }
        println!("{:10} {most:.3} ulp at {:?}", section.name, &section.records[at][..section.inputs]);
    }
    runner.assert_valid();
    assert!(failures.is_empty(), "{} of them: {:#?}", failures.len(), &failures[..failures.len().min(60)]);
}

fn complex(runner: &Runner, file: &str, dtype: DType, digits: i32, least: i32) {
    let mut failures = Vec::new();
    for section in sections(file) {
        let got = run(runner, &section, dtype);
        let (mut most, mut at) = (0.0, 0);
        let parts = got.len() / section.records.len();
        for (i, record) in section.records.iter().enumerate() {
            let want = &record[section.inputs..];
            let scale = want.iter().fold(0f64, |a, b| a.max(b.abs()));
            for k in 0..parts {
                let value = got[i * parts + k];
                let error = distance_ulp(value, want[k], scale, digits, least);
                if error > MAX_ULP_COMPLEX {
                    let z = &record[..section.inputs];
                    failures.push(format!("{} {z:?}: part {k} {value:e}, not {want:?}", section.name));
                }
                if error > most {
                    (most, at) = (error, i);
                }
            }
        }
        println!("{:10} {most:.3} ulp at {:?}", section.name, &section.records[at][..section.inputs]);
    }
    runner.assert_valid();
    assert!(failures.is_empty(), "{} of them: {:#?}", failures.len(), &failures[..failures.len().min(60)]);
}

#[test]
fn c64_functions_are_within_their_ulp() {
    Runner::of_all_forms().iter().for_each(|runner| complex(runner, "scalar_c64.bin", DType::C64, 24, -126));
}

#[test]
fn c128_functions_are_within_their_ulp() {
    let runner = Runner::new();
    complex(&runner, "scalar_c128.bin", DType::C128, 53, -1022);
}

/// The host's reference of `examples/ulp_sweep` rounds to MPFR's results.
#[test]
fn double_double_functions_round_to_the_vectors() {
    let sections = sections("scalar_f64.bin");
    for function in &double::FUNCTIONS {
        // the vectors of erf_inv are of the true inverse
        let name = function.op.name();
        let Some(section) = sections.iter().find(|s| s.name == name && name != "erf_inv") else {
            assert_eq!(name, "erf_inv");
            continue;
        };
        let (low, high) = function.domain;
        let mut compared = 0;
        for record in &section.records {
            let (x, want) = (record[0], record[1]);
            if x >= low && x <= high && want.abs() > 1e-290 && want.abs() < 1e300 {
                let error = double::error_ulp(want, (function.reference)(x));
                assert!(error < 0.500_001, "{name}({x:e}): {error} ulp");
                compared += 1;
            }
        }
        assert!(compared > 50, "{name}: {compared} inputs");
    }
}
