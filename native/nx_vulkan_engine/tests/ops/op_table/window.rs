//! Ops over sliding windows.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::window::{Window, WindowScatter};
use nx_vulkan_engine::program::{Op, Reduction, Windows};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type, Value};
use smallvec::SmallVec;

use super::values::{Range, operand};
use super::{finish, rng, run, upload, verify, verify_on};
use crate::common::Rng;
use crate::compare::{Bound, epsilon};

/// Windows of random sizes, steps, gaps and padding that fit the shape.
pub fn windows(shape: &[u64], dilated: bool, rng: &mut Rng) -> Windows {
    loop {
        let windows = Windows {
            sizes: shape.iter().map(|&n| 1 + rng.below(n.min(4))).collect(),
            padding: shape.iter().map(|_| (rng.below(5) as i64 - 2, rng.below(5) as i64 - 2)).collect(),
            strides: shape.iter().map(|_| 1 + rng.below(3)).collect(),
            dilations: shape.iter().map(|_| if dilated { 1 + rng.below(3) } else { 1 }).collect(),
        };
        if windows.counts(shape).is_ok() {
            return windows;
        }
    }
}

fn reduce(reduction: Reduction, dtype: DType, shape: &[u64], windows: Windows, rng: &mut Rng) {
    let out = Type::new(dtype, &windows.counts(shape).unwrap());
    let rounds = matches!(reduction, Reduction::Sum | Reduction::Product);
    if dtype.is_complex() && !rounds {
        return;
    }
    let range = if rounds { Range::Ordinary } else { Range::All };
    let mut a = operand(&Type::new(dtype, shape), range, 1, rng);
    let terms: u64 = windows.sizes.iter().product();
    if reduction == Reduction::Product {
        let sign = |v: &Value| Value::Float(if v.real() < 0.0 { -1.0 } else { 1.0 }).cast(dtype);
        a.values.iter_mut().for_each(|v| *v = sign(v));
    }
    let bound = match dtype {
        t if t.is_integer() || !rounds || reduction == Reduction::Product => Bound::Exact,
        t => Bound::Norm {
            relative: 2.0 * epsilon(t),
            absolute: 3.0 * terms as f64 * epsilon(t.ctype().dtype())
                + if t.is_canonical() { 0.0 } else { 2f64.powi(-9) },
        },
    };
    verify(&Op::from(Window { reduction, windows }), &[a], &out, bound);
}

#[test]
fn windows_of_all_types() {
    let mut rng = rng(60);
    for reduction in Reduction::WINDOWED {
        for dtype in DType::ALL {
            let windows = windows(&[5, 9], true, &mut rng);
            reduce(reduction, dtype, &[5, 9], windows, &mut rng);
        }
    }
    finish();
}

#[test]
fn windows_of_all_shapes() {
    let mut rng = rng(61);
    for shape in [&[][..], &[1], &[700], &[33, 34], &[2, 3, 17, 18], &[1, 1, 4, 1, 5], &[2, 2, 2, 2, 2, 2, 3]] {
        for reduction in Reduction::WINDOWED {
            for dtype in [DType::F32, DType::S64, DType::U8] {
                let windows = windows(shape, true, &mut rng);
                reduce(reduction, dtype, shape, windows, &mut rng);
            }
        }
    }
    // One window over everything, long ones, and one that lies in the padding.
    let line = |size, low, high, stride, dilation| Windows {
        sizes: SmallVec::from_slice(&[size]),
        padding: SmallVec::from_slice(&[(low, high)]),
        strides: SmallVec::from_slice(&[stride]),
        dilations: SmallVec::from_slice(&[dilation]),
    };
    for windows in [
        line(5000, 0, 0, 1, 1),
        line(4000, 0, 0, 1, 1),
        line(40, 0, 0, 3, 7),
        line(3, 9, 12, 1, 1),
        line(3, -700, 20, 2, 1),
        line(1, 3, -4000, 1, 5),
    ] {
        for reduction in Reduction::WINDOWED {
            reduce(reduction, DType::S32, &[5000], windows.clone(), &mut rng);
        }
    }
    finish();
}

#[test]
fn windows_of_views() {
    let mut rng = rng(62);
    let base = operand(&Type::new(DType::S32, &[6, 8, 10]), Range::Ordinary, 0, &mut rng);
    let turn = Op::Transpose { axes: Axes::from_slice(&[2, 0, 1]) };
    let turned = Type::new(DType::S32, &[10, 6, 8]);
    let reverse = Op::from(Reverse { axes: Axes::from_slice(&[0, 2]) });
    let view: Tensor = run(&reverse, &[run(&turn, &[upload(&base)], &turned).unwrap()], &turned).unwrap();
    let array = reference::evaluate(&reverse, &[reference::evaluate(&turn, &[base], &turned).unwrap()], &turned);
    let array = [array.unwrap()];
    for reduction in Reduction::WINDOWED {
        for _ in 0..4 {
            let windows = windows(&turned.shape, true, &mut rng);
            let out = Type::new(DType::S32, &windows.counts(&turned.shape).unwrap());
            let op = Op::from(Window { reduction, windows });
            verify_on(&op, std::slice::from_ref(&view), &array, &out, Bound::Exact);
        }
    }
    finish();
}

fn scatter(dtypes: [DType; 2], out: DType, shape: &[u64], range: Range, rng: &mut Rng) {
    for max in [false, true] {
        let windows = windows(shape, false, rng);
        let counts = windows.counts(shape).unwrap();
        let a = operand(&Type::new(dtypes[0], shape), range, 2, rng);
        let source = operand(&Type::new(dtypes[1], &counts), Range::Ordinary, 1, rng);
        let initial = Array::new(&Type::new(dtypes[1], &[]), [Value::Int(2)]);
        let bound = match out {
            t if t.is_integer() => Bound::Exact,
            t => Bound::Norm { relative: 2.0 * epsilon(t), absolute: 2f64.powi(-9) * 2f64.min(epsilon(t) * 1e6) },
        };
        let op = Op::from(WindowScatter { max, windows });
        verify(&op, &[a, source, initial], &Type::new(out, shape), bound);
    }
}

#[test]
fn scatters_to_windows() {
    let mut rng = rng(63);
    for dtype in DType::ALL.into_iter().filter(|t| !t.is_complex()) {
        scatter([dtype; 2], dtype, &[6, 7], Range::Ordinary, &mut rng);
        scatter([dtype; 2], dtype, &[6, 7], Range::All, &mut rng);
    }
    scatter([DType::F64, DType::F32], DType::F32, &[9], Range::Ordinary, &mut rng);
    scatter([DType::U8, DType::F32], DType::F32, &[9], Range::Ordinary, &mut rng);
    for shape in [&[][..], &[1], &[300], &[2, 5, 6, 3], &[1, 1, 4, 1, 5]] {
        for dtype in [DType::S32, DType::F32, DType::S64] {
            scatter([dtype; 2], dtype, shape, Range::Ordinary, &mut rng);
        }
    }
    finish();
}
