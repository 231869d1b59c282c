//! Elementwise kernels, reductions, transposes, products, casts and random numbers.

use super::Real::{F32, F64};
use super::{SPECIAL, Shader, download, push, upload, values};
use crate::common::{Rng, assert_valid, engine};

fn bool_of(truth: bool) -> f64 {
    if truth { 1.0 } else { 0.0 }
}

fn propagating(a: f64, b: f64, pick: fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { pick(a, b) }
}

fn binary(op: u32, a: f64, b: f64) -> f64 {
    match op {
        0 => a + b,
        1 => a * b,
        2 => a - b,
        3 => a / b,
        4 => a.powf(b),
        5 => propagating(a, b, f64::max),
        6 => propagating(a, b, f64::min),
        7 => bool_of(a == b),
        8 => bool_of(a < b),
        _ => bool_of(a > b),
    }
}

#[test]
fn elementwise_binary_computes_every_op_on_every_pair_of_special_values() {
    let engine = engine();
    for real in [F32, F64] {
        let shader = Shader::load(&real.name("elementwise_binary"));
        let mut a = values(real, 1000, 1);
        let mut b = values(real, 1000, 2);
        for i in 0..256 {
            (a[i], b[i]) = (real.round(SPECIAL[i / 16]), real.round(SPECIAL[i % 16]));
        }
        let (a_buffer, b_buffer) = (real.upload(&engine, &a), real.upload(&engine, &b));
        for op in 0..10 {
            let n = 999;
            let out = real.guarded(&engine, 1000);
            shader.run(&engine, Some(op), &[&a_buffer, &b_buffer, &out], &push(&[n]), shader.groups(n));
            let got = real.download(&engine, &out);
            assert_eq!(got[n], -12345.0, "op {op} wrote beyond n");
            for i in 0..n {
                let what = format!("op {op} of {:e} and {:e}", a[i], b[i]);
                let ulps = if op == 4 { 2.0 } else { 0.0 };
                real.assert_close(&what, got[i], real.round(binary(op, a[i], b[i])), ulps);
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn binary_broadcast_follows_strides() {
    let engine = engine();
    for real in [F32, F64] {
        let shader = Shader::load(&real.name("elementwise_binary_broadcast"));
        // [2, 1, 5] and [3, 1] to [2, 3, 5].
        let a = values(real, 10, 3);
        let b = values(real, 3, 4);
        let (a_buffer, b_buffer) = (real.upload(&engine, &a), real.upload(&engine, &b));
        let out = real.guarded(&engine, 31);
        let words = push(&[30, 3, 2, 3, 5, 0, 5, 0, 1, 0, 0, 1, 0, 0]);
        shader.run(&engine, Some(2), &[&a_buffer, &b_buffer, &out], &words, shader.groups(30));
        let got = real.download(&engine, &out);
        for i in 0..30 {
            let expected = a[i / 15 * 5 + i % 5] - b[i / 5 % 3];
            real.assert_close("broadcast", got[i], real.round(expected), 0.0);
        }
        assert_eq!(got[30], -12345.0);
    }
    assert_valid(&engine);
}

fn unary(op: u32, x: f64) -> f64 {
    match op {
        0 => x.exp(),
        1 => x.ln(),
        2 => x.sqrt(),
        3 => x.abs(),
        4 => -x,
        5 => 1.0 / (1.0 + (-x).exp()),
        6 => x.tanh(),
        7 if x.is_nan() => x,
        7 => x.max(0.0),
        8 => x.ceil(),
        9 => x.floor(),
        // As Nx.BinaryBackend has it.
        10 if x.is_nan() => 1.0,
        10 if x == 0.0 => x,
        10 => x.signum(),
        11 => 1.0 / x,
        12 => x * x,
        13 => erf(x),
        _ => x.exp_m1(),
    }
}

/// By its Taylor series, or 1 where that is what f64 holds.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn elementwise_unary_computes_every_op() {
    let engine = engine();
    for real in [F32, F64] {
        let shader = Shader::load(&real.name("elementwise_unary"));
        let n = 500;
        let x = values(real, n, 5);
        let x_buffer = real.upload(&engine, &x);
        for op in 0..15 {
            let out = real.guarded(&engine, n + 1);
            shader.run(&engine, Some(op), &[&x_buffer, &out], &push(&[n]), shader.groups(n));
            let got = real.download(&engine, &out);
            assert_eq!(got[n], -12345.0, "op {op} wrote beyond n");
            for i in 0..n {
                // The series of erf loses up to e^16 / 4 of precision at |x| = 4.
                let is_series = op == 13 && real == F64;
                let what = format!("op {op} of {:e}", x[i]);
                let expected = real.round(unary(op, x[i]));
                if is_series && (got[i] - expected).abs() < 1e-9 {
                    continue;
                }
                real.assert_close(&what, got[i], expected, 3.0);
            }
        }
    }
    assert_valid(&engine);
}

fn reduced(op: usize, xs: &[f64]) -> f64 {
    match op {
        0 => xs.iter().sum(),
        1 => xs.iter().fold(f64::NEG_INFINITY, |a, &x| propagating(a, x, f64::max)),
        2 => xs.iter().fold(f64::INFINITY, |a, &x| propagating(a, x, f64::min)),
        _ => xs.iter().product(),
    }
}

fn log_sum_exp(xs: &[f64]) -> f64 {
    let maximum = reduced(1, xs);
    if !maximum.is_finite() {
        return maximum;
    }
    maximum + xs.iter().map(|x| (x - maximum).exp()).sum::<f64>().ln()
}

#[test]
fn reductions_along_an_axis() {
    let engine = engine();
    for real in [F32, F64] {
        let reduce = Shader::load(&real.name("reduce_axis"));
        let logsumexp = Shader::load(&real.name("logsumexp"));
        for (outer, size, inner) in [(3, 7, 5), (1, 1000, 1), (300, 2, 1), (1, 1, 300), (2, 0, 3)] {
            let mut x = values(real, (outer * size * inner).max(1), 6);
            let len = x.len();
            x.rotate_left(16.min(len));
            let x_buffer = real.upload(&engine, &x);
            for op in 0..5 {
                let out = real.guarded(&engine, outer * inner + 1);
                let shader = if op == 4 { &logsumexp } else { &reduce };
                let words = push(&[outer, size, inner, op]);
                shader.run(&engine, None, &[&x_buffer, &out], &words, shader.groups(outer * inner));
                let got = real.download(&engine, &out);
                for i in 0..outer * inner {
                    let first = i / inner * size * inner + i % inner;
                    let xs: Vec<f64> = (0..size).map(|r| x[first + r * inner]).collect();
                    let expected = if op == 4 { log_sum_exp(&xs) } else { reduced(op, &xs) };
                    let what = format!("op {op} of [{outer}, {size}, {inner}] at {i}");
                    // The reference itself loses digits by cancellation, and log-sum-exp is a difference of numbers of
                    // order 1.
                    let order = if op == 4 { 4.0 } else { 1e-5 * size as f64 };
                    if matches!(op, 0 | 4) && (got[i] - expected).abs() <= real.tolerance(order, 1.0) {
                        continue;
                    }
                    real.assert_close(&what, got[i], real.round(expected), 2.0 + size as f64);
                }
                assert_eq!(got[outer * inner], -12345.0);
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn a_sum_of_many_small_terms_keeps_its_precision() {
    let engine = engine();
    let shader = Shader::load("reduce_axis");
    let n = 200_000;
    let x_buffer = F32.upload(&engine, &vec![0.1; n]);
    let out = F32.guarded(&engine, 1);
    shader.run(&engine, None, &[&x_buffer, &out], &push(&[1, n, 1, 0]), [1, 1, 1]);
    let expected = f64::from(0.1f32) * n as f64;
    F32.assert_close("sum", F32.download(&engine, &out)[0], expected, 1.0);
}

#[test]
fn transpose_moves_every_bit_pattern() {
    let engine = engine();
    for (name, word) in [("transpose", 4), ("transpose_f64", 8)] {
        let shader = Shader::load(name);
        for (m, n) in [(1, 1), (16, 16), (17, 33), (5, 100)] {
            let input = Rng(7).bytes(m * n * word);
            let (a, out) = (upload(&engine, &input), upload(&engine, &vec![0; m * n * word]));
            // Two workgroups too many in each direction.
            let groups = [n.div_ceil(16) + 2, m.div_ceil(16) + 2, 1].map(|g| g as u32);
            shader.run(&engine, None, &[&a, &out], &push(&[m, n]), groups);
            let got = download(&engine, &out);
            for i in 0..m {
                for j in 0..n {
                    let (from, to) = ((i * n + j) * word, (j * m + i) * word);
                    assert_eq!(got[to..to + word], input[from..from + word], "{name} {m}x{n} at {i}, {j}");
                }
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn all_matmuls_agree_to_the_bit_and_with_f64() {
    let engine = engine();
    let kernels = [
        ("matmul", 16, 16, F32),
        ("matmul_tiled", 16, 16, F32),
        ("matmul_tiled32", 32, 32, F32),
        ("matmul_tiled16x2", 16, 32, F32),
        ("matmul_f64", 16, 16, F64),
    ];
    for (m, n, k) in [(1, 1, 1), (33, 17, 5), (16, 64, 32), (40, 40, 100), (3, 2, 0)] {
        let mut f32_result: Option<Vec<f64>> = None;
        for (name, columns, rows, real) in kernels {
            let shader = Shader::load(name);
            let a = values(real, m * k + 17, 8)[17..].to_vec();
            let b = values(real, k * n + 17, 9)[17..].to_vec();
            let pad = |x: &[f64]| [x, &[0.0]].concat();
            let (a_buffer, b_buffer) = (real.upload(&engine, &pad(&a)), real.upload(&engine, &pad(&b)));
            let out = real.guarded(&engine, m * n + 1);
            let groups = [n.div_ceil(columns) as u32, m.div_ceil(rows) as u32, 1];
            shader.run(&engine, None, &[&a_buffer, &b_buffer, &out], &push(&[m, n, k]), groups);
            let got = real.download(&engine, &out);
            for i in 0..m * n {
                let products = (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]);
                let magnitude: f64 = products.clone().map(f64::abs).sum();
                let error = (got[i] - products.sum::<f64>()).abs();
                let allowed = real.tolerance(magnitude, 1.0 + k as f64);
                assert!(error <= allowed, "{name} {m}x{n}x{k} at {i}: error {error:e}, allowed {allowed:e}");
            }
            assert_eq!(got[m * n], -12345.0);
            if real == F32 {
                assert_eq!(f32_result.get_or_insert(got.clone()), &got, "{name} {m}x{n}x{k}");
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn casts_clamp_truncate_and_wrap() {
    let engine = engine();
    let reals = [0.0, -0.0, 1.9, -1.9, 300.0, -300.0, 3e9, -3e9, 1e30, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let integers =
        [0i64, 1, -1, 127, 255, 256, -129, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 40, i64::MAX, i64::MIN];
    let n = reals.len();
    let encode = |kind: &str, i: usize| -> Vec<u8> {
        match kind {
            "f32" => (reals[i] as f32).to_le_bytes().to_vec(),
            "f64" => reals[i].to_le_bytes().to_vec(),
            "s32" => (integers[i] as i32).to_le_bytes().to_vec(),
            "s64" => integers[i].to_le_bytes().to_vec(),
            _ => vec![integers[i] as u8],
        }
    };
    // Rust's `as` has the rules of Nx: floats saturate, NaN gives 0, integers wrap.
    let convert = |from: &str, to: &str, i: usize| -> Vec<u8> {
        macro_rules! convert {
            ($value:expr) => {
                match to {
                    "f32" => ($value as f32).to_le_bytes().to_vec(),
                    "f64" => ($value as f64).to_le_bytes().to_vec(),
                    "s32" => ($value as i32).to_le_bytes().to_vec(),
                    "s64" => ($value as i64).to_le_bytes().to_vec(),
                    _ => vec![$value as u8],
                }
            };
        }
        match from {
            "f32" => convert!(reals[i] as f32),
            "f64" => convert!(reals[i]),
            "s32" => convert!(integers[i] as i32),
            "s64" => convert!(integers[i]),
            _ => convert!(integers[i] as u8),
        }
    };
    let kinds = ["f32", "f64", "s32", "s64", "u8"];
    for from in kinds {
        for to in kinds.into_iter().filter(|to| *to != from) {
            let shader = Shader::load(&format!("cast_{from}_to_{to}"));
            let input: Vec<u8> = (0..n).flat_map(|i| encode(from, i)).collect();
            let expected: Vec<Vec<u8>> = (0..n).map(|i| convert(from, to, i)).collect();
            let (a, out) = (upload(&engine, &input), upload(&engine, &vec![0xee; n * expected[0].len()]));
            shader.run(&engine, None, &[&a, &out], &push(&[n]), [1, 1, 1]);
            let got = download(&engine, &out);
            for (i, (got, expected)) in got.chunks(expected[0].len()).zip(&expected).enumerate() {
                if to.starts_with('f') && from.starts_with('f') && reals[i].is_nan() {
                    continue;
                }
                assert_eq!(got, expected, "{from} to {to}: {:e} or {}", reals[i], integers[i]);
            }
        }
    }
    assert_valid(&engine);
}

/// Philox4x32-10 as its paper states it.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[test]
fn philox_gives_the_published_numbers() {
    // The known-answer vectors of Random123.
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let engine = engine();
    let shader = Shader::load("random_philox");
    let n = 4099;
    let seed = 1234;
    let drawn = |dist: u32| {
        let out = F32.guarded(&engine, n + 1);
        shader.run(&engine, Some(dist), &[&out], &push(&[n, seed]), shader.groups(n));
        let got = F32.download(&engine, &out);
        assert_eq!(got[n], -12345.0);
        got
    };
    let word = |i: usize| philox([(i / 4) as u32, 0, 0, 0], [seed as u32, 0])[i % 4];
    for (i, &got) in drawn(0).iter().enumerate().take(n) {
        assert_eq!(got, f64::from(word(i) >> 8) / f64::from(1 << 24));
    }
    let normal = drawn(1);
    for i in 0..n {
        let radius_word = f64::from(word(i & !1));
        let angle = f64::from(word(i | 1) >> 8) / f64::from(1 << 24) * std::f64::consts::TAU;
        let radius = (-2.0 * ((radius_word + 1.0) / 4_294_967_296.0).ln()).sqrt();
        let expected = radius * if i % 2 == 0 { angle.cos() } else { angle.sin() };
        // The angle is rounded to f32, which moves the result by up to radius * angle * 2^-24.
        assert!((normal[i] - expected).abs() < 3e-6, "{i}: {} {expected}", normal[i]);
    }
    let mean = normal[..n].iter().sum::<f64>() / n as f64;
    let variance = normal[..n].iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
    assert!(mean.abs() < 0.06 && (variance - 1.0).abs() < 0.08, "{mean} {variance}");
    assert_valid(&engine);
}
