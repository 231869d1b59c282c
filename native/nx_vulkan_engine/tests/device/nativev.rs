//! Operations on raw buffers: every function and op code with the shaders of priv/shaders, against f64 arithmetic on
//! the host.

use nx_vulkan_engine::nativev::{self, Failure, MAX_BINARY_OP, MAX_UNARY_OP};

use crate::common::Rng;
use crate::raw::{Raw, shader};

/// Distance of f32 results from the f64 reference, in units of the last place of f32: 1 for the functions, 0.5 for the
/// rounding of the reference.
const F32_ULPS: f64 = 1.5;
/// Relative distance of f64 results from the host's, whose own functions are good to about one unit in the last place
/// (2.2e-16).
const F64_RELATIVE: f64 = 1e-15;

fn binary(op: i64, a: f64, b: f64) -> f64 {
    let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
    match op {
        0 => a + b,
        1 => a * b,
        2 => a - b,
        3 => a / b,
        4 => a.powf(b),
        5 => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        6 => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        7 => truth(a == b),
        8 => truth(a < b),
        9 => truth(a > b),
        _ => panic!("op {op}"),
    }
}

/// 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, whose terms all have one sign.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn unary(op: i64, x: f64) -> f64 {
    match op {
        0 => x.exp(),
        1 => x.ln(),
        2 => x.sqrt(),
        3 => x.abs(),
        4 => -x,
        5 => 1.0 / (1.0 + (-x).exp()),
        6 => x.tanh(),
        7 => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        8 => x.ceil(),
        9 => x.floor(),
        // As Nx.BinaryBackend has it.
        10 if x.is_nan() => 1.0,
        10 if x == 0.0 => x,
        10 => x.signum(),
        11 => 1.0 / x,
        12 => x * x,
        13 => erf(x),
        14 => x.exp_m1(),
        _ => panic!("op {op}"),
    }
}

fn close_f32(got: f32, want: f64) -> bool {
    let rounded = want as f32;
    if rounded.is_nan() || rounded.is_infinite() || got.is_infinite() {
        return (got.is_nan() && rounded.is_nan()) || got == rounded || got.abs() == f32::MAX;
    }
    let exponent = rounded.abs().max(f32::MIN_POSITIVE).log2().floor() as i32;
    (f64::from(got) - want).abs() <= F32_ULPS * 2f64.powi(exponent - 23)
}

fn close_f64(got: f64, want: f64, relative: f64) -> bool {
    if want.is_nan() || want.is_infinite() {
        return (got.is_nan() && want.is_nan()) || got == want;
    }
    (got - want).abs() <= relative * want.abs().max(f64::MIN_POSITIVE)
}

fn inputs(seed: u64) -> Vec<(f64, f64)> {
    let mut rng = Rng(seed);
    let mut real = || (rng.below(1 << 40) as f64 / (1u64 << 39) as f64 - 1.0) * 6.0;
    let mut pairs: Vec<(f64, f64)> = (0..1000).map(|_| (f64::from(real() as f32), f64::from(real() as f32))).collect();
    let special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    pairs.extend(special.iter().flat_map(|&a| special.map(|b| (a, b))));
    pairs
}

#[test]
fn every_binary_op_in_f32() {
    let raw = Raw::new();
    let pairs = inputs(1);
    let a: Vec<f32> = pairs.iter().map(|p| p.0 as f32).collect();
    let b: Vec<f32> = pairs.iter().map(|p| p.1 as f32).collect();
    let (da, db, out) = (raw.upload(&a), raw.upload(&b), raw.zeros(a.len() * 4));
    for op in 0..=i64::from(MAX_BINARY_OP) {
        raw.binary("elementwise_binary", [&out, &da, &db], a.len() as u64, op).unwrap();
        for ((&(a, b), got), i) in pairs.iter().zip(raw.download::<f32>(&out)).zip(0..) {
            let want = binary(op, a, b);
            assert!(close_f32(got, want), "op {op} at {i}: ({a}, {b}) gives {got}, not {want}");
        }
    }
    raw.finish();
}

#[test]
fn every_binary_op_in_f64() {
    let raw = Raw::new();
    let pairs = inputs(2);
    let a: Vec<f64> = pairs.iter().map(|p| p.0).collect();
    let b: Vec<f64> = pairs.iter().map(|p| p.1).collect();
    let (da, db, out) = (raw.upload(&a), raw.upload(&b), raw.zeros(a.len() * 8));
    for op in 0..=i64::from(MAX_BINARY_OP) {
        raw.binary("elementwise_binary_f64", [&out, &da, &db], a.len() as u64, op).unwrap();
        for (&(a, b), got) in pairs.iter().zip(raw.download::<f64>(&out)) {
            let want = binary(op, a, b);
            assert!(close_f64(got, want, F64_RELATIVE), "op {op}: ({a}, {b}) gives {got}, not {want}");
        }
    }
    raw.finish();
}

#[test]
fn every_unary_op_in_f32() {
    let raw = Raw::new();
    let values: Vec<f64> = inputs(3).iter().map(|p| p.0).collect();
    let a: Vec<f32> = values.iter().map(|&x| x as f32).collect();
    let (da, out) = (raw.upload(&a), raw.zeros(a.len() * 4));
    for op in 0..=i64::from(MAX_UNARY_OP) {
        raw.unary("elementwise_unary", [&out, &da], a.len() as u64, op).unwrap();
        for (&x, got) in values.iter().zip(raw.download::<f32>(&out)) {
            let want = unary(op, x);
            assert!(close_f32(got, want), "op {op}: {x} gives {got}, not {want}");
        }
    }
    raw.finish();
}

#[test]
fn every_unary_op_in_f64() {
    let raw = Raw::new();
    let values: Vec<f64> = inputs(4).iter().map(|p| p.0).collect();
    let (da, out) = (raw.upload(&values), raw.zeros(values.len() * 8));
    for op in 0..=i64::from(MAX_UNARY_OP) {
        raw.unary("elementwise_unary_f64", [&out, &da], values.len() as u64, op).unwrap();
        for (&x, got) in values.iter().zip(raw.download::<f64>(&out)) {
            let want = unary(op, x);
            // The reference of erf is a sum of up to 200 terms.
            let relative = if op == 13 { 2e-14 } else { F64_RELATIVE };
            assert!(close_f64(got, want, relative), "op {op}: {x} gives {got}, not {want}");
        }
    }
    raw.finish();
}

#[test]
fn the_output_may_be_an_operand_of_an_elementwise_call() {
    let raw = Raw::new();
    let a = raw.upload(&[1f32, 2.0, 3.0]);
    let b = raw.upload(&[10f32, 20.0, 30.0]);
    raw.binary("elementwise_binary", [&a, &a, &b], 3, 0).unwrap();
    raw.binary("elementwise_binary", [&b, &a, &b], 2, 1).unwrap();
    raw.unary("elementwise_unary", [&a, &a], 3, 12).unwrap();
    assert_eq!(raw.download::<f32>(&a), [121.0, 484.0, 1089.0]);
    assert_eq!(raw.download::<f32>(&b), [110.0, 440.0, 30.0]);
    raw.finish();
}

#[test]
fn elementwise_beyond_one_launch_goes_on_in_further_ones() {
    let raw = Raw::new();
    let limit = raw.engine.caps().max_workgroup_count[0] as usize * 256;
    if limit > 1 << 26 {
        println!("skipped: the device takes {limit} elements in one launch");
        return;
    }
    let n = limit + 1000;
    let a: Vec<f32> = (0..n).map(|i| (i % 8191) as f32).collect();
    let (da, out) = (raw.upload(&a), raw.zeros(n * 4));
    raw.binary("elementwise_binary", [&out, &da, &da], n as u64, 0).unwrap();
    let got: Vec<f32> = raw.download(&out);
    assert!(a.iter().zip(&got).all(|(a, got)| a + a == *got));
    let counts = [1, 1, n as u64];
    let small = raw.zeros(4);
    let found = nativev::reduce_axis(&raw.call(&shader("reduce_axis")), &out, &da, counts, 0);
    assert!(matches!(&found, Err(Failure::Dispatch(m)) if m.contains("workgroups")), "{found:?}");
    nativev::reduce_axis(&raw.call(&shader("reduce_axis")), &small, &da, [1, n as u64, 1], 1).unwrap();
    assert_eq!(raw.download::<f32>(&small), [8190.0]);
    raw.finish();
}

fn reduced(op: i64, values: &[f64], [outer, reduce, inner]: [usize; 3]) -> Vec<f64> {
    let one = |o: usize, i: usize| {
        let column = (0..reduce).map(|r| values[(o * reduce + r) * inner + i]);
        match op {
            0 => column.sum(),
            1 => column.fold(f64::NEG_INFINITY, f64::max),
            2 => column.fold(f64::INFINITY, f64::min),
            _ => column.product(),
        }
    };
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| one(o, i)).collect()
}

#[test]
fn every_reduction_along_every_axis() {
    let raw = Raw::new();
    for shape in [[1, 1000, 1], [1, 7, 300], [300, 7, 1], [5, 33, 65], [2, 0, 3], [1, 1, 1]] {
        let [outer, reduce, inner] = shape;
        let mut rng = Rng(5);
        let values: Vec<f64> = (0..outer * reduce * inner).map(|_| rng.below(9) as f64 / 4.0 - 1.0).collect();
        let narrow: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        let (a32, a64) = (raw.upload(&narrow), raw.upload(&values));
        let (out32, out64) = (raw.zeros(outer * inner * 4), raw.zeros(outer * inner * 8));
        for op in 0..=3 {
            let want = reduced(op, &values, shape);
            let counts = shape.map(|d| d as u64);
            nativev::reduce_axis(&raw.call(&shader("reduce_axis")), &out32, &a32, counts, op).unwrap();
            nativev::reduce_axis(&raw.call(&shader("reduce_axis_f64")), &out64, &a64, counts, op).unwrap();
            for ((want, got32), got64) in want.iter().zip(raw.download::<f32>(&out32)).zip(raw.download::<f64>(&out64))
            {
                // Products of long columns lose a bit at each step.
                let relative = 1e-7 * reduce.max(4) as f64;
                assert!(close_f64(f64::from(got32), *want, relative), "op {op}, {shape:?}: {got32}, not {want}");
                assert!(close_f64(got64, *want, 1e-13), "op {op}, {shape:?}: {got64}, not {want}");
            }
        }
    }
    raw.finish();
}

#[test]
fn logsumexp_is_a_reduction_too() {
    let raw = Raw::new();
    let a = raw.upload(&[1000f32, 1000.0, -1000.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
    let out = raw.zeros(12);
    nativev::reduce_axis(&raw.call(&shader("logsumexp")), &out, &a, [3, 2, 1], 0).unwrap();
    let got: Vec<f32> = raw.download(&out);
    assert_eq!(got, [1000.0 + std::f32::consts::LN_2, 0.0, f32::NEG_INFINITY]);
    raw.finish();
}

#[test]
fn transposes_of_any_shape() {
    let raw = Raw::new();
    for (m, n) in [(1, 1), (1, 100), (100, 1), (16, 16), (17, 33), (100, 7)] {
        let narrow: Vec<u32> = (0..m * n).map(|i| i as u32 | 0x7fc0_0000).collect();
        let wide: Vec<u64> = narrow.iter().map(|&w| u64::from(w) << 20).collect();
        let (a32, a64) = (raw.upload(&narrow), raw.upload(&wide));
        let (out32, out64) = (raw.zeros(m * n * 4), raw.zeros(m * n * 8));
        let dims = [m as u64, n as u64];
        nativev::transpose_2d(&raw.call(&shader("transpose")), &out32, &a32, dims).unwrap();
        nativev::transpose_2d(&raw.call(&shader("transpose_f64")), &out64, &a64, dims).unwrap();
        let order: Vec<usize> = (0..n).flat_map(|j| (0..m).map(move |i| i * n + j)).collect();
        assert_eq!(raw.download::<u32>(&out32), order.iter().map(|&at| narrow[at]).collect::<Vec<_>>());
        assert_eq!(raw.download::<u64>(&out64), order.iter().map(|&at| wide[at]).collect::<Vec<_>>());
    }
    raw.finish();
}

#[test]
fn every_matmul_shader_gives_the_product() {
    let raw = Raw::new();
    for (m, n, k) in [(1, 1, 1), (16, 16, 16), (33, 17, 5), (40, 70, 100), (65, 1, 64), (31, 33, 0)] {
        let mut rng = Rng(6);
        let mut matrix = |len: usize| -> Vec<f64> { (0..len).map(|_| rng.below(1 << 20) as f64 / 5e5 - 1.0).collect() };
        let (a, b) = (matrix(m * k), matrix(k * n));
        let narrow = |v: &[f64]| v.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let (a32, b32, a64, b64) = (raw.upload(&narrow(&a)), raw.upload(&narrow(&b)), raw.upload(&a), raw.upload(&b));
        let product = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f64>();
        let want: Vec<f64> = (0..m * n).map(|at| product(at / n, at % n)).collect();
        let dims = [m as u64, n as u64, k as u64];
        for name in ["matmul", "matmul_tiled", "matmul_tiled32", "matmul_tiled16x2"] {
            let out = raw.upload(&vec![7f32; m * n]);
            nativev::matmul(&raw.call(&shader(name)), &out, &a32, &b32, dims).unwrap();
            for (want, got) in want.iter().zip(raw.download::<f32>(&out)) {
                assert!((f64::from(got) - want).abs() < 1e-5, "{name} {dims:?}: {got}, not {want}");
            }
        }
        let out = raw.zeros(m * n * 8);
        nativev::matmul(&raw.call(&shader("matmul_f64")), &out, &a64, &b64, dims).unwrap();
        for (want, got) in want.iter().zip(raw.download::<f64>(&out)) {
            assert!((got - want).abs() < 1e-13, "{dims:?}: {got}, not {want}");
        }
    }
    raw.finish();
}

#[test]
fn buffers_hold_bytes() {
    let raw = Raw::new();
    for len in [0usize, 1, 3, 4, 1000, 5 << 20] {
        let bytes = Rng(7).bytes(len);
        let buffer = raw.upload(&bytes);
        assert_eq!(buffer.size_bytes(), len as u64);
        assert_eq!(raw.download::<u8>(&buffer), bytes);
        let zeros = raw.zeros(len);
        assert_eq!(raw.download::<u8>(&zeros), vec![0; len]);
        nativev::upload_into(&raw.engine, &zeros, &bytes).unwrap();
        assert_eq!(raw.download::<u8>(&zeros), bytes);
        let longer = vec![0; len + 1];
        assert_eq!(nativev::upload_into(&raw.engine, &zeros, &longer), Err(Failure::SizeMismatch));
    }
    assert!(matches!(nativev::alloc_zeroed(&raw.engine, u64::MAX), Err(Failure::Upload(_))));
    assert!(matches!(nativev::alloc_zeroed(&raw.engine, 1 << 50), Err(Failure::Upload(_))));
    raw.finish();
}

#[test]
fn many_threads_share_an_engine() {
    let raw = Raw::new();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let raw = &raw;
            scope.spawn(move || {
                for round in 0..20 {
                    let x = (thread * 100 + round) as f32;
                    let (a, out) = (raw.upload(&vec![x; 777]), raw.zeros(777 * 4));
                    raw.binary("elementwise_binary", [&out, &a, &a], 777, 0).unwrap();
                    raw.unary("elementwise_unary", [&out, &out], 777, 4).unwrap();
                    assert_eq!(raw.download::<f32>(&out), vec![-2.0 * x; 777]);
                }
            });
        }
    });
    raw.finish();
}
