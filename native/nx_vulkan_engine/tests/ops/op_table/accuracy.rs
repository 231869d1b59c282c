//! Long sums and products of vectors lose no digits.

use half::{bf16, f16};
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::{Op, Reduction};
use nx_vulkan_engine::{DType, Tensor, Type, Value, View};

use super::{download, engine, finish, rng, run};
use crate::common::Rng;
use crate::compare::epsilon;

/// A sum to twice the digits of f64.
#[derive(Default, Clone, Copy)]
struct Exact {
    high: f64,
    low: f64,
    /// Sum of the magnitudes.
    size: f64,
}

impl Exact {
    fn add(&mut self, x: f64) {
        let sum = self.high + x;
        let part = sum - self.high;
        self.low += (self.high - (sum - part)) + (x - part);
        self.high = sum;
        self.size += x.abs();
    }

    fn add_product(&mut self, a: f64, b: f64) {
        let product = a * b;
        self.add(product);
        self.low += a.mul_add(b, -product);
    }

    fn value(self) -> f64 {
        self.high + self.low
    }
}

/// Numbers of both signs and of sizes that lie 2^24 apart.
fn mixed(rng: &mut Rng) -> f64 {
    let x = 1.0 + (rng.next() >> 12) as f64 * 2f64.powi(-52);
    let scale = 2f64.powi(rng.below(24) as i32 - 12);
    if rng.next() & 1 == 0 { x * scale } else { -x * scale }
}

/// The bytes of a number of a dtype, and the number itself.
fn encode(dtype: DType, x: f64, bytes: &mut Vec<u8>) -> f64 {
    match dtype {
        DType::F16 => {
            let x = f16::from_f64(x / 4096.0);
            bytes.extend(x.to_ne_bytes());
            x.to_f64()
        }
        DType::Bf16 => {
            let x = bf16::from_f64(x);
            bytes.extend(x.to_ne_bytes());
            x.to_f64()
        }
        DType::F64 | DType::C128 => {
            bytes.extend(x.to_ne_bytes());
            x
        }
        _ => {
            bytes.extend((x as f32).to_ne_bytes());
            f64::from(x as f32)
        }
    }
}

/// Parts of an element of a dtype.
fn parts(dtype: DType) -> u64 {
    if dtype.is_complex() { 2 } else { 1 }
}

/// A tensor of random numbers, and the numbers with the parts of complex ones one after the other.
fn numbers(dtype: DType, shape: &[u64], rng: &mut Rng) -> (Tensor, Vec<f64>) {
    let ty = Type::new(dtype, shape);
    let mut bytes = Vec::new();
    let numbers = (0..ty.elements() * parts(dtype)).map(|_| encode(dtype, mixed(rng), &mut bytes)).collect();
    (Tensor::from_nx_bytes(engine(), &ty, &bytes).unwrap(), numbers)
}

/// Checks parts of results against sums: within an ulp, plus what is left of the terms at twice the digits.
fn check(what: &str, dtype: DType, got: &[Value], want: &[Exact], terms: u64) {
    let computed = epsilon(dtype.ctype().dtype());
    let parts: Vec<f64> = match dtype.is_complex() {
        true => got.iter().flat_map(|v| [v.real(), v.imag()]).collect(),
        false => got.iter().map(|v| v.real()).collect(),
    };
    assert_eq!(parts.len(), want.len());
    for (got, want) in parts.iter().zip(want) {
        let limit = 2.0 * epsilon(dtype) * want.value().abs() + terms as f64 * computed * computed * want.size;
        let error = (got - want.high) - want.low;
        assert!(error.abs() <= limit, "{what}: {got:e}, not {:e}, off by {error:e} of {limit:e}", want.value());
    }
}

fn dot() -> Op {
    Op::Dot {
        contract_a: Axes::from_slice(&[1]),
        batch_a: Axes::new(),
        contract_b: Axes::from_slice(&[0]),
        batch_b: Axes::new(),
    }
}

fn sum(axis: usize) -> Op {
    Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[axis]), tie_high: false }
}

#[test]
fn sums_of_millions_lose_no_digits() {
    let mut rng = rng(120);
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64, DType::C64, DType::C128] {
        let n = 3_000_001;
        let (tensor, numbers) = numbers(dtype, &[n], &mut rng);
        let width = parts(dtype) as usize;
        let mut want = vec![Exact::default(); width];
        numbers.iter().enumerate().for_each(|(i, &x)| want[i % width].add(x));
        let got = download(&run(&sum(0), std::slice::from_ref(&tensor), &Type::new(dtype, &[])).unwrap());
        check(&format!("sum of {n} {dtype}"), dtype, &got.values, &want, n);
    }
    finish();
}

#[test]
fn sums_along_either_axis_lose_no_digits() {
    let mut rng = rng(121);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128] {
        let (rows, columns) = (200_000u64, 5u64);
        let (tensor, numbers) = numbers(dtype, &[rows, columns], &mut rng);
        let width = parts(dtype) as usize;
        let mut want = vec![Exact::default(); columns as usize * width];
        numbers.iter().enumerate().for_each(|(i, &x)| want[i % (columns as usize * width)].add(x));
        let out = Type::new(dtype, &[columns]);
        let got = download(&run(&sum(0), std::slice::from_ref(&tensor), &out).unwrap());
        check(&format!("sum of columns, {dtype}"), dtype, &got.values, &want, rows);
        let view: View = tensor.view().transpose(&[1, 0]).unwrap();
        let turned = Tensor::new(tensor.buffer().clone(), view).unwrap();
        let got = download(&run(&sum(1), &[turned], &out).unwrap());
        check(&format!("sum of turned columns, {dtype}"), dtype, &got.values, &want, rows);
    }
    finish();
}

#[test]
fn products_of_long_vectors_lose_no_digits() {
    let mut rng = rng(122);
    for (dtype, n) in [(DType::F32, 10_000_000), (DType::F64, 500_000), (DType::F16, 300_000), (DType::C64, 300_000)] {
        let (a, x) = numbers(dtype, &[1, n], &mut rng);
        let (b, y) = numbers(dtype, &[n, 1], &mut rng);
        let mut want = vec![Exact::default(); parts(dtype) as usize];
        if dtype.is_complex() {
            for (x, y) in x.chunks(2).zip(y.chunks(2)) {
                want[0].add_product(x[0], y[0]);
                want[0].add_product(-x[1], y[1]);
                want[1].add_product(x[0], y[1]);
                want[1].add_product(x[1], y[0]);
            }
        } else {
            x.iter().zip(&y).for_each(|(&x, &y)| want[0].add_product(x, y));
        }
        let got = download(&run(&dot(), &[a, b], &Type::new(dtype, &[1, 1])).unwrap());
        check(&format!("product of {n} {dtype}"), dtype, &got.values, &want, n);
    }
    finish();
}

#[test]
fn products_of_long_matrices_lose_few_digits() {
    let mut rng = rng(123);
    let (rows, n, columns) = (3usize, 400_000usize, 2usize);
    for dtype in [DType::F32, DType::F64] {
        let (a, x) = numbers(dtype, &[rows as u64, n as u64], &mut rng);
        let (b, y) = numbers(dtype, &[n as u64, columns as u64], &mut rng);
        let got = download(&run(&dot(), &[a, b], &Type::new(dtype, &[rows as u64, columns as u64])).unwrap());
        for (i, value) in got.values.iter().enumerate() {
            let (mut want, mut squares) = (Exact::default(), 0.0);
            for k in 0..n {
                let (x, y) = (x[i / columns * n + k], y[k * columns + i % columns]);
                want.add_product(x, y);
                squares += (x * y) * (x * y);
            }
            let error = (value.real() - want.high) - want.low;
            // One long sum would be off by the root of half a million.
            let limit = 32.0 * epsilon(dtype) * squares.sqrt() + 2.0 * epsilon(dtype) * want.value().abs();
            assert!(error.abs() <= limit, "{dtype} at {i}: off by {error:e} of {limit:e}");
        }
    }
    finish();
}
