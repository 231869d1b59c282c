//! Ops on what no launch reaches, beside the same ops on an engine whose launches do.

use nx_vulkan_engine::kernels::Reach;
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::index::{IndexedAdd, IndexedPut};
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::ops::window::WindowScatter;
use nx_vulkan_engine::program::{Binary, Fourier, Op, Windows};
use nx_vulkan_engine::{DType, Tensor, Type, Value};
use smallvec::smallvec;

use super::On;
use crate::common::{self, Rng};
use crate::op_table::fold::Writer;

/// 2 KiB: launches of the first reach 1023 elements at most, and 256 of 8 bytes where they don't reach far.
fn far_and_near() -> [On; 2] {
    [Reach::of_bytes(2 << 10), Reach::default()].map(On::new)
}

/// Whole numbers, of which some are equal, of any type.
fn values(on: &On, dtype: DType, shape: &[u64], seed: u64) -> Tensor {
    let mut rng = Rng(seed);
    let numbers: Vec<i64> = (0..shape.iter().product()).map(|_| rng.below(101) as i64).collect();
    let numbers = Tensor::from_slice(&on.engine, shape, &numbers).unwrap();
    on.made(&[&numbers], |b, x| {
        let x = b.as_type(x[0], dtype);
        if dtype.is_complex() { b.multiply(x, b.constant(dtype, Scalar::Complex(1.0, 0.5))) } else { x }
    })
}

/// Both engines' results of an op on values of these types.
fn results(on: &[On; 2], op: &Op, operands: &[(DType, &[u64])], out: &Type) -> [Vec<u8>; 2] {
    on.each_ref().map(|on| {
        let operands = operands.iter().zip(1..);
        let operands: Vec<Tensor> = operands.map(|(&(dtype, shape), k)| values(on, dtype, shape, k)).collect();
        let result = on.op(op, &operands.iter().collect::<Vec<_>>(), out);
        let bytes = result.to_nx_bytes(&on.engine, None).unwrap();
        common::assert_valid(&on.engine);
        bytes
    })
}

fn have_the_same_bits(on: &[On; 2], op: &Op, operands: &[(DType, &[u64])], out: &Type) {
    let [far, near] = results(on, op, operands, out);
    assert!(far == near, "{op:?} of {operands:?}");
}

/// Lengths with small factors, of other primes, of both, and of which only the working memory is beyond.
#[test]
fn transforms_beyond_a_launch_are_those_of_their_parts() {
    let on = far_and_near();
    let cases: [(&[u64], usize, u64); 5] =
        [(&[1100], 0, 1100), (&[1103], 0, 1103), (&[701, 2], 0, 1402), (&[2, 2048], 1, 2000), (&[2, 1, 701], 2, 701)];
    for (shape, axis, length) in cases {
        for &kind in Fourier::ALL {
            let [narrow, wide] = match kind {
                Fourier::Fft | Fourier::Ifft => [DType::F32, DType::C128],
                Fourier::Rfft => [DType::U8, DType::F64],
                Fourier::Irfft => [DType::C64, DType::C128],
            };
            let dtypes = if length == 2000 { &[narrow, wide][..] } else { &[narrow] };
            for &dtype in dtypes {
                let wide = matches!(dtype, DType::F64 | DType::C128);
                let out = match (kind, wide) {
                    (Fourier::Irfft, false) => DType::F32,
                    (Fourier::Irfft, true) => DType::F64,
                    (_, false) => DType::C64,
                    (_, true) => DType::C128,
                };
                let mut out = Type::new(out, shape);
                out.shape[axis] = kind.kept(length);
                let op = |eps| Op::from(Fft { kind, axis, length, eps: Scalar::Float(eps) });
                let bytes = results(&on, &op(1e-10), &[(dtype, shape)], &out);
                let [far, near] = bytes.map(|bytes| -> Vec<f64> {
                    if wide {
                        bytemuck::pod_collect_to_vec(&bytes)
                    } else {
                        let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
                        numbers.into_iter().map(f64::from).collect()
                    }
                });
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let off = norm(&mut far.iter().zip(&near).map(|(a, b)| a - b)) / norm(&mut near.iter().copied());
                // What guides/numerics.md allows either of them, of a power of two longer than twice the length.
                let eps = 2f64.powi(if wide { -53 } else { -24 });
                let bound = 2.0 * 2.0 * eps * (((4 * length) as f64).log2() + 1.0);
                assert!(off < bound, "{kind:?} of {dtype}{shape:?} to {length}: {off:e}, more than {bound:e}");
                let [far, _] = results(&on, &op(1e9), &[(dtype, shape)], &out);
                assert!(far.iter().all(|&byte| byte & 0x7f == 0), "parts up to eps of {kind:?} to {length}");
            }
        }
    }
}

#[test]
fn folds_beyond_a_launch_take_elements_in_order() {
    let on = far_and_near();
    let function = |x: DType, out: DType| {
        let mut w = Writer::new(&[x, out, DType::S32]);
        let three = w.constant(Value::Int(3), out);
        let product = w.binary(Binary::Multiply, 1, three);
        let sum = w.binary(Binary::Add, product, 0);
        let less = w.binary(Binary::Subtract, sum, 2);
        w.finish(less, out)
    };
    let cases: [(&[u64], &[usize], &[u64]); 5] = [
        (&[5003], &[0], &[]),
        (&[2, 3, 1001], &[0, 1, 2], &[]),
        (&[2, 3, 1001], &[2, 0], &[3]),
        (&[1, 1500, 2], &[1], &[1, 2]),
        (&[700, 2], &[0], &[2]),
    ];
    for (x, out) in [(DType::S32, DType::S32), (DType::U8, DType::S64), (DType::S16, DType::S16)] {
        for (shape, axes, kept) in cases {
            let op = Op::Fold { axes: axes.into(), function: function(x, out) };
            let operands: [(DType, &[u64]); 3] = [(x, shape), (DType::U8, &[]), (DType::S32, &[])];
            have_the_same_bits(&on, &op, &operands, &Type::new(out, kept));
        }
    }
}

#[test]
fn windows_beyond_a_launch_give_to_the_same_elements() {
    type Case<'a> = (&'a [u64], &'a [u64], &'a [u64], &'a [(i64, i64)]);
    let on = far_and_near();
    let cases: [Case<'_>; 6] = [
        (&[4099], &[5], &[2], &[(1, 2)]),
        (&[4099], &[3], &[7], &[(0, 0)]),
        (&[4099], &[300], &[1], &[(-3, 290)]),
        (&[70, 90], &[3, 4], &[2, 1], &[(0, 1), (2, 0)]),
        (&[70, 90], &[3, 4], &[5, 9], &[(-1, -2), (-4, 3)]),
        (&[2, 1500], &[2, 4], &[1, 3], &[(1, 1), (0, 0)]),
    ];
    for (shape, sizes, strides, padding) in cases {
        let windows = Windows {
            sizes: sizes.into(),
            padding: padding.into(),
            strides: strides.into(),
            dilations: smallvec::SmallVec::from_elem(1, sizes.len()),
        };
        let counts = windows.counts(shape).unwrap();
        for max in [false, true] {
            for (dtype, source) in [(DType::F32, DType::Bf16), (DType::S16, DType::U8)] {
                let op = Op::from(WindowScatter { max, windows: windows.clone() });
                let operands: [(DType, &[u64]); 3] =
                    [(dtype, shape), (source, &counts), (DType::U8, &[1; 2][..shape.len()])];
                have_the_same_bits(&on, &op, &operands, &Type::new(dtype, shape));
            }
        }
    }
}

#[test]
fn updates_beyond_a_launch_apply_in_order() {
    let on = far_and_near();
    let cases: [(&[u64], &[u64], &[u64]); 4] = [
        (&[101], &[2500, 1], &[2500]),
        (&[2600], &[3, 900, 1], &[3, 900]),
        (&[40, 3], &[1, 700, 1], &[1, 700, 3]),
        (&[2000, 3], &[5000, 1], &[5000, 3]),
    ];
    for (target, indices, updates) in cases {
        for (dtype, update) in [(DType::F32, DType::F32), (DType::S16, DType::U8), (DType::F64, DType::F32)] {
            let operands = [(dtype, target), (DType::S64, indices), (update, updates)];
            let axes = smallvec![0];
            let out = Type::new(dtype, target);
            have_the_same_bits(&on, &Op::from(IndexedPut { axes: smallvec![0] }), &operands, &out);
            have_the_same_bits(&on, &Op::from(IndexedAdd { axes }), &operands, &out);
        }
    }
}

/// Starts before the first element and after the last one that fits, and slices longer than any part that is put at
/// once.
#[test]
fn slices_are_put_where_tensors_say_beyond_a_launch() {
    type Case<'a> = (&'a [u64], &'a [u64], &'a [Option<i64>]);
    let on = far_and_near();
    let cases: [Case<'_>; 5] = [
        (&[3001], &[7], &[None]),
        (&[3001], &[2999], &[None]),
        (&[3001], &[3001], &[None]),
        (&[900, 5], &[500, 2], &[None, None]),
        (&[2, 1200], &[1, 600], &[Some(1), None]),
    ];
    for (shape, length, starts) in cases {
        for start in [-5i64, 0, 255, 600, 5000] {
            let [a, b] = on.each_ref().map(|on| {
                let x = values(on, DType::U8, shape, 1);
                let slice = values(on, DType::U8, length, 2);
                let start = on.scalar(DType::S64, start);
                let operands: Vec<&Tensor> =
                    [&x, &slice].into_iter().chain(starts.iter().filter(|s| s.is_none()).map(|_| &start)).collect();
                let put = on.op(&Op::PutSlice { starts: starts.into() }, &operands, &Type::new(DType::U8, shape));
                put.to_nx_bytes(&on.engine, None).unwrap()
            });
            assert!(a == b, "{length:?} put into {shape:?} at {start}");
        }
    }
}
