//! Fourier transforms of all kinds of lengths, against sums term by term.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::{Fourier, Op};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type, Value, View};

use super::values::{Range, operand};
use super::{download, finish, rng, run, upload};
use crate::common::Rng;
use crate::compare::epsilon;

/// Relative error of a row, in halves of an ulp per doubling of the length.
const SLACK: f64 = 2.0;

const DIRECT: [Fourier; 2] = [Fourier::Fft, Fourier::Ifft];

fn fft(kind: Fourier, axis: usize, length: u64) -> Op {
    Op::from(Fft { kind, axis, length, eps: Scalar::Float(0.0) })
}

fn wide(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::C128)
}

fn out_type(kind: Fourier, a: &Type, axis: usize, length: u64) -> Type {
    let dtype = match (kind, wide(a.dtype)) {
        (Fourier::Irfft, true) => DType::F64,
        (Fourier::Irfft, false) => DType::F32,
        (_, true) => DType::C128,
        (_, false) => DType::C64,
    };
    let mut shape = a.shape.clone();
    shape[axis] = kind.kept(length);
    Type { dtype, shape }
}

fn distance(a: Value, b: Value) -> f64 {
    (a.real() - b.real()).hypot(a.imag() - b.imag())
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Compares a result with the reference's: all rows together, and no element off by more than all of them may be.
fn check(what: &str, got: &Array, want: &Array, length: u64) {
    assert_eq!(got.ty, want.ty, "{what}");
    let error = norm(got.values.iter().zip(&want.values).map(|(&a, &b)| distance(a, b)));
    let size = norm(want.values.iter().map(|&v| distance(v, Value::Float(0.0))));
    let limit = SLACK * epsilon(got.ty.dtype) * ((length as f64).log2() + 1.0) * size;
    assert!(error <= limit, "{what}: {error:e} of {size:e}, at most {limit:e}");
}

fn compare(kind: Fourier, a: &Array, tensor: &Tensor, axis: usize, length: u64) {
    let out = out_type(kind, &a.ty, axis, length);
    let op = fft(kind, axis, length);
    let what = format!("{} of {}{:?} along {axis} to {length}", op.name(), a.ty.dtype, &a.ty.shape[..]);
    let result = run(&op, std::slice::from_ref(tensor), &out).unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = reference::evaluate(&op, std::slice::from_ref(a), &out).unwrap();
    check(&what, &download(&result), &want, length);
}

fn random(dtype: DType, shape: &[u64], rng: &mut Rng) -> Array {
    operand(&Type::new(dtype, shape), Range::Ordinary, 2, rng)
}

#[test]
fn fft_of_all_short_lengths() {
    let mut rng = rng(90);
    for length in 1..=70 {
        for dtype in [DType::C64, DType::C128] {
            let a = random(dtype, &[3, length], &mut rng);
            for kind in DIRECT {
                compare(kind, &a, &upload(&a), 1, length);
            }
        }
        let a = random(DType::F32, &[length, 2], &mut rng);
        compare(Fourier::Rfft, &a, &upload(&a), 0, length);
        let a = random(DType::C128, &[2, length / 2 + 1], &mut rng);
        compare(Fourier::Irfft, &a, &upload(&a), 1, length);
    }
    finish();
}

#[test]
fn fft_of_primes_and_products() {
    let mut rng = rng(91);
    for length in [97, 128, 180, 210, 243, 260, 311] {
        for dtype in [DType::C64, DType::C128] {
            let a = random(dtype, &[2, length], &mut rng);
            for kind in [Fourier::Fft, Fourier::Ifft, Fourier::Irfft] {
                compare(kind, &a, &upload(&a), 1, length);
            }
        }
    }
    for length in [1000, 1001, 1009, 1024, 1155, 2 * 1009, 2048, 2187, 2310, 2401, 3072, 3125, 4096, 4099] {
        sampled(DType::C64, &[2, length], 1, length, &mut rng);
        sampled(DType::C128, &[length, 2], 0, length, &mut rng);
    }
    finish();
}

#[test]
fn fft_of_all_types() {
    let mut rng = rng(92);
    // A short and a longer one in turn: CPU devices take long to compile the kernel of any length, of each type anew.
    for (dtype, length) in DType::ALL.into_iter().zip([6, 100].into_iter().cycle()) {
        let a = random(dtype, &[3, 5, 2], &mut rng);
        compare(Fourier::Fft, &a, &upload(&a), 1, length);
        compare(Fourier::Irfft, &a, &upload(&a), 1, length);
        if !dtype.is_complex() {
            compare(Fourier::Rfft, &a, &upload(&a), 1, length);
        }
    }
    finish();
}

#[test]
fn fft_of_views_and_batches() {
    let mut rng = rng(93);
    for dtype in [DType::F32, DType::C64, DType::C128] {
        let whole = random(dtype, &[6, 40, 5], &mut rng);
        let tensor = upload(&whole);
        let views: Vec<View> = vec![
            tensor.view().transpose(&[2, 0, 1]).unwrap(),
            tensor.view().reverse(&[0, 1]).unwrap(),
            tensor.view().slice(&[1, 3, 0], &[4, 36, 5], &[2, 3, 2]).unwrap(),
            tensor
                .view()
                .slice(&[1, 3, 2], &[1, 36, 1], &[1, 1, 1])
                .unwrap()
                .broadcast(&[3, 36, 4], &[0, 1, 2])
                .unwrap(),
        ];
        for view in views {
            let view = Tensor::new(tensor.buffer().clone(), view).unwrap();
            let array = download(&view);
            for axis in 0..3 {
                let size = view.view().shape[axis];
                for length in [size, size.div_ceil(2) + 3] {
                    compare(Fourier::Fft, &array, &view, axis, length);
                    compare(Fourier::Ifft, &array, &view, axis, length);
                }
                compare(Fourier::Irfft, &array, &view, axis, size);
                if dtype == DType::F32 {
                    compare(Fourier::Rfft, &array, &view, axis, size + size % 2);
                }
            }
        }
        // More rows than one workgroup takes, along both axes.
        let many = random(dtype, &[300, 16], &mut rng);
        compare(Fourier::Fft, &many, &upload(&many), 1, 16);
        compare(Fourier::Fft, &many, &upload(&many), 0, 300);
        compare(Fourier::Ifft, &many, &upload(&many), 0, 311);
    }
    finish();
}

/// A sum that keeps what each step rounds off (Knuth).
#[derive(Default)]
struct Sum {
    total: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let total = self.total + x;
        let part = total - self.total;
        self.lost += (self.total - (total - part)) + (x - part);
        self.total = total;
    }

    fn value(&self) -> f64 {
        self.total + self.lost
    }
}

/// Some results of a long transform, term by term.
fn sampled(dtype: DType, shape: &[u64], axis: usize, length: u64, rng: &mut Rng) {
    let a = random(dtype, shape, rng);
    let tensor = upload(&a);
    let rank = shape.len();
    let outer: u64 = shape[..axis].iter().product();
    let inner: u64 = shape[axis + 1..].iter().product();
    for kind in DIRECT {
        let out = out_type(kind, &a.ty, axis, length);
        let result = run(&fft(kind, axis, length), std::slice::from_ref(&tensor), &out).unwrap();
        let got = download(&result);
        let sign = if kind == Fourier::Ifft { 1.0 } else { -1.0 };
        let scale = if kind == Fourier::Ifft { length as f64 } else { 1.0 };
        for _ in 0..8 {
            let (o, i, k) = (rng.below(outer), rng.below(inner), rng.below(length));
            let (mut re, mut im, mut size) = (Sum::default(), Sum::default(), 0.0);
            for j in 0..length.min(shape[axis]) {
                let x = a.values[((o * shape[axis] + j) * inner + i) as usize];
                let turns = (u128::from(j) * u128::from(k) % u128::from(length)) as f64 / length as f64;
                let (sin, cos) = (sign * std::f64::consts::TAU * turns).sin_cos();
                re.add(x.real() * cos - x.imag() * sin);
                im.add(x.real() * sin + x.imag() * cos);
                size += x.real() * x.real() + x.imag() * x.imag();
            }
            let want = Value::Complex(re.value() / scale, im.value() / scale);
            let value = got.values[((o * length + k) * inner + i) as usize];
            // One of many results may be off by more than their mean.
            let limit = 4.0 * SLACK * epsilon(out.dtype) * ((length as f64).log2() + 1.0) * size.sqrt() / scale;
            assert!(
                distance(value, want) <= limit,
                "{kind:?} of {dtype}{shape:?} along {axis} of {rank} to {length}, at {o}, {k}, {i}: {value:?}, not \
                 {want:?}"
            );
        }
    }
}

#[test]
fn fft_of_long_rows() {
    let mut rng = rng(94);
    for dtype in [DType::C64, DType::C128] {
        sampled(dtype, &[3, 8192], 1, 8192, &mut rng);
        sampled(dtype, &[5000, 3], 0, 5000, &mut rng);
        sampled(dtype, &[2, 10_007], 1, 10_007, &mut rng);
        sampled(dtype, &[2, 9000, 2], 1, 30_030, &mut rng);
        sampled(dtype, &[1 << 18], 0, 1 << 18, &mut rng);
    }
    finish();
}

#[test]
fn fft_of_a_million_and_more() {
    let mut rng = rng(95);
    sampled(DType::C64, &[1 << 20], 0, 1 << 20, &mut rng);
    sampled(DType::C128, &[1 << 20], 0, 1 << 20, &mut rng);
    // Three launches, and a prime.
    sampled(DType::C64, &[1 << 21], 0, 1 << 21, &mut rng);
    sampled(DType::F32, &[100_003], 0, 100_003, &mut rng);
    finish();
}

/// Of many elements, lengths have kernels of their own: of two to four radices, all of which are among these lengths.
#[test]
fn fft_of_many_rows_has_the_bits_of_few() {
    const MANY: u64 = 1 << 20;
    let mut rng = rng(96);
    // All lengths of one type, and some of the others, in one way each: each is a kernel to compile.
    for (dtype, first, step) in [(DType::C64, 0, 1), (DType::F32, 2, 3), (DType::C128, 1, 3)] {
        let all = upload(&random(dtype, &[2 * MANY + (1 << 18)], &mut rng));
        let powers = (6..=12).map(|k| 1 << k).chain([1 << 14]);
        let lengths = powers.chain([1000, 729, 1001, 3000, 2187, 1536, 60, 338, 2401, 3600, 26, 210]);
        let lengths = lengths.zip([0, 1].into_iter().cycle()).skip(first).step_by(step);
        for (turn, (length, axis)) in lengths.enumerate() {
            let kinds = [
                (Fourier::Fft, length),
                (Fourier::Irfft, length / 2 + 1),
                (Fourier::Fft, length - 5),
                (Fourier::Ifft, length),
            ];
            let real = [(Fourier::Rfft, length), (Fourier::Fft, length - 5)];
            let (kind, size) = if dtype == DType::F32 { real[turn / 2 % 2] } else { kinds[turn / 2 % 4] };
            // Half as many pairs are transformed of real numbers.
            let each = if dtype == DType::F32 || kind == Fourier::Irfft { length / 2 } else { size };
            let rows = MANY / each + 3;
            let shape = |rows: u64| if axis == 0 { [size, rows] } else { [rows, size] };
            let many = Tensor::new(all.buffer().clone(), View::contiguous(dtype, &shape(rows))).unwrap();
            let transform = |a: &Tensor| {
                let out = out_type(kind, &a.view().ty(), axis, length);
                run(&fft(kind, axis, length), std::slice::from_ref(a), &out).unwrap()
            };
            let results = transform(&many);
            for first in [0, rows - 2] {
                let part = |a: &Tensor| {
                    let (mut starts, mut lengths) = ([0, 0], [a.view().shape[0], a.view().shape[1]]);
                    (starts[1 - axis], lengths[1 - axis]) = (first, 2);
                    Tensor::new(a.buffer().clone(), a.view().slice(&starts, &lengths, &[1, 1]).unwrap()).unwrap()
                };
                let (got, want) = (download(&part(&results)), download(&transform(&part(&many))));
                let what = format!("{kind:?} of {dtype} {size} along {axis} to {length}, rows from {first}");
                assert!(got.values == want.values, "{what}");
            }
        }
    }
    finish();
}

#[test]
fn bits_of_fft_do_not_depend_on_where_its_operand_lies() {
    let mut rng = rng(97);
    for (dtype, length) in [(DType::C64, 1024), (DType::C64, 4096), (DType::C128, 2048), (DType::F32, 3000)] {
        let across = upload(&random(dtype, &[length, 6], &mut rng));
        let along = upload(&download(
            &Tensor::new(across.buffer().clone(), across.view().transpose(&[1, 0]).unwrap()).unwrap(),
        ));
        let back = Tensor::new(along.buffer().clone(), along.view().transpose(&[1, 0]).unwrap()).unwrap();
        let out = out_type(Fourier::Fft, &across.view().ty(), 0, length);
        let [want, got] = [across, back].map(|a| download(&run(&fft(Fourier::Fft, 0, length), &[a], &out).unwrap()));
        assert!(want.values == got.values, "{dtype} {length}");
    }
    finish();
}

#[test]
fn real_rows_have_the_same_bits_wherever_pairs_lie() {
    let mut rng = rng(98);
    for (dtype, length) in
        [(DType::F32, 48), (DType::F32, 1000), (DType::F64, 250), (DType::S32, 100), (DType::F16, 128)]
    {
        let whole = upload(&random(dtype, &[7, length + 3], &mut rng));
        // From the first element on, from the second, and backwards.
        let views = [0, 1].map(|first| whole.view().slice(&[0, first], &[7, length], &[1, 1]).unwrap());
        let back = views[0].reverse(&[1]).unwrap();
        for view in views.into_iter().chain([back]) {
            let view = Tensor::new(whole.buffer().clone(), view).unwrap();
            let copy = upload(&download(&view));
            for kind in [Fourier::Rfft, Fourier::Fft] {
                let out = out_type(kind, &view.view().ty(), 1, length);
                let [got, want] = [&view, &copy]
                    .map(|a| download(&run(&fft(kind, 1, length), std::slice::from_ref(a), &out).unwrap()));
                assert!(got.values == want.values, "{kind:?} of {dtype} {length}");
                compare(kind, &download(&view), &view, 1, length);
            }
        }
    }
    // Spectra, whose ends are real whatever is given there, to rows and to columns.
    for (dtype, axis) in [(DType::C64, 0), (DType::C64, 1), (DType::C128, 0), (DType::C128, 1)] {
        for (given, length) in [(61, 120), (50, 120), (70, 120), (501, 1000), (33, 64)] {
            let shape = if axis == 0 { [given, 5] } else { [5, given] };
            let a = random(dtype, &shape, &mut rng);
            compare(Fourier::Irfft, &a, &upload(&a), axis, length);
        }
    }
    finish();
}

#[test]
fn fft_leaves_zeros_and_carries_nan() {
    let complex = |values: &[f64]| {
        let ty = Type::new(DType::C64, &[values.len() as u64]);
        Array::new(&ty, values.iter().map(|&x| Value::Float(x)))
    };
    let transform = |kind, a: &Array, eps: f64| {
        let length = a.ty.shape[0];
        let op = Op::from(Fft { kind, axis: 0, length, eps: Scalar::Float(eps) });
        download(&run(&op, &[upload(a)], &a.ty).unwrap())
    };
    for length in 1..=64 {
        // Of ones: zeros but for the first; of one: ones.
        let ones = transform(Fourier::Fft, &complex(&vec![1.0; length]), 1e-10);
        assert_eq!(ones.values[0], Value::Complex(length as f64, 0.0));
        assert!(ones.values[1..].iter().all(|&v| v == Value::Complex(0.0, 0.0)), "{length}: {ones:?}");
        let mut one = vec![0.0; length];
        one[0] = 1.0;
        let flat = transform(Fourier::Fft, &complex(&one), 1e-10);
        assert!(flat.values.iter().all(|&v| v == Value::Complex(1.0, 0.0)), "{length}: {flat:?}");
        one[0] = length as f64;
        let flat = transform(Fourier::Ifft, &complex(&one), 1e-10);
        assert!(flat.values.iter().all(|&v| v == Value::Complex(1.0, 0.0)), "{length}: {flat:?}");
    }
    let small = transform(Fourier::Fft, &complex(&[1.0, 0.5, 1.25, 0.5]), 0.25);
    assert_eq!(small.values[1..], [(0.0, 0.0), (1.25, 0.0), (0.0, 0.0)].map(|(re, im)| Value::Complex(re, im)));
    for length in [8, 33, 90, 100, 97, 156, 4099] {
        for special in [f64::NAN, f64::INFINITY] {
            let mut values = vec![1.0; length];
            values[length / 3] = special;
            let result = transform(Fourier::Fft, &complex(&values), 1e-10);
            assert!(result.values.iter().all(|v| !(v.real().is_finite() && v.imag().is_finite())), "{length}");
        }
    }
    finish();
}
