//! Elementwise ops over operands in all layouts and sizes, some of the ops for some of the types.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::{Binary, Elementwise, Op, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type};
use smallvec::smallvec;

use super::values::{Range, operand};
use super::{engine, finish, rng, run, upload, verify, verify_on};
use crate::common::Rng;
use crate::compare::{Bound, bound};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Contiguous,
    Transposed,
    Sliced,
    Reversed,
    Rows,
    Columns,
    Scalar,
}

const LAYOUTS: [Layout; 7] = [
    Layout::Contiguous,
    Layout::Transposed,
    Layout::Sliced,
    Layout::Reversed,
    Layout::Rows,
    Layout::Columns,
    Layout::Scalar,
];

const SHAPE: [u64; 3] = [5, 17, 12];
/// As many elements as CPU devices take by pairs, and a part of a workgroup's.
const LARGE: [u64; 3] = [9, 33, 60];
/// As many as they take by blocks, and a part of a block.
const HUGE: [u64; 3] = [9, 61, 120];

/// A tensor in some layout, on the device and on the host.
fn laid_out(shape: [u64; 3], layout: Layout, dtype: DType, seat: usize, rng: &mut Rng) -> (Tensor, Array) {
    let [a, b, c] = shape;
    let axes = |axes: &[usize]| Axes::from_slice(axes);
    let (base, op) = match layout {
        Layout::Contiguous => (vec![a, b, c], Op::Reshape),
        Layout::Transposed => (vec![c, a, b], Op::Transpose { axes: axes(&[1, 2, 0]) }),
        Layout::Sliced => (
            vec![a + 2, 2 * b + 1, 3 * c],
            Op::Slice {
                starts: smallvec![Some(1), Some(1), Some(2)],
                strides: smallvec![1, 2, 3],
                lengths: smallvec![a, 2 * b, 3 * c - 2],
            },
        ),
        Layout::Reversed => (vec![a, b, c], Op::from(Reverse { axes: axes(&[0, 2]) })),
        Layout::Rows => (vec![c], Op::Broadcast { axes: axes(&[2]) }),
        Layout::Columns => (vec![a, 1, 1], Op::Broadcast { axes: axes(&[0, 1, 2]) }),
        Layout::Scalar => (vec![], Op::Broadcast { axes: axes(&[]) }),
    };
    let base = operand(&Type::new(dtype, &base), Range::All, seat, rng);
    let out = Type::new(dtype, &shape);
    let view = run(&op, &[upload(&base)], &out).unwrap();
    (view, reference::evaluate(&op, &[base], &out).unwrap())
}

fn check(op: Op, dtypes: &[DType], out: DType, layouts: &[Layout], rng: &mut Rng) {
    check_shape(SHAPE, op, dtypes, out, layouts, rng);
}

fn check_shape(shape: [u64; 3], op: Op, dtypes: &[DType], out: DType, layouts: &[Layout], rng: &mut Rng) {
    let laid_out = |(seat, (&t, &layout)): (usize, (&DType, &Layout))| laid_out(shape, layout, t, seat, rng);
    let (tensors, arrays): (Vec<_>, Vec<_>) = dtypes.iter().zip(layouts).enumerate().map(laid_out).unzip();
    verify_on(&op, &tensors, &arrays, &Type::new(out, &shape), bound(op.elementwise().unwrap(), dtypes, out));
}

#[test]
fn views_read_back_as_they_should() {
    let mut rng = rng(20);
    for layout in LAYOUTS {
        for dtype in [DType::S2, DType::U4, DType::U8, DType::Bf16, DType::F32, DType::S64, DType::C128] {
            let (tensor, array) = laid_out(SHAPE, layout, dtype, 2, &mut rng);
            let got = tensor.to_nx_bytes(engine(), None).unwrap();
            // Bits are moved as they are, those of NaN too; the host only keeps that they are NaN.
            let got = Array::from_nx_bytes(&array.ty, &got).unwrap();
            let moved = crate::compare::mismatch(&got, std::slice::from_ref(&array), Bound::Exact);
            assert_eq!(moved, None, "{layout:?} {dtype}");
        }
    }
    finish();
}

#[test]
fn unary_ops_of_all_layouts() {
    let mut rng = rng(21);
    for layout in LAYOUTS {
        for (op, dtype, out) in [
            (Op::Unary(Unary::Negate), DType::F32, DType::F32),
            (Op::Unary(Unary::Abs), DType::S8, DType::S8),
            (Op::Unary(Unary::Floor), DType::Bf16, DType::Bf16),
            (Op::AsType, DType::S16, DType::F64),
            (Op::AsType, DType::C64, DType::U4),
        ] {
            check(op, &[dtype], out, &[layout], &mut rng);
        }
    }
    finish();
}

#[test]
fn binary_ops_of_all_pairs_of_layouts() {
    let mut rng = rng(22);
    for (i, a) in LAYOUTS.into_iter().enumerate() {
        for (j, b) in LAYOUTS.into_iter().enumerate() {
            check(Op::Binary(Binary::Subtract), &[DType::F32; 2], DType::F32, &[a, b], &mut rng);
            if (i + j) % 3 == 0 {
                check(Op::Binary(Binary::Max), &[DType::U8, DType::S8], DType::S16, &[a, b], &mut rng);
                check(Op::Binary(Binary::Less), &[DType::S64; 2], DType::U8, &[a, b], &mut rng);
            }
        }
    }
    finish();
}

#[test]
fn select_of_all_layouts() {
    let mut rng = rng(23);
    for i in 0..LAYOUTS.len() {
        let layouts = [LAYOUTS[i], LAYOUTS[(i * 3 + 1) % 7], LAYOUTS[(i * 5 + 2) % 7]];
        check(Op::Select, &[DType::U8, DType::F16, DType::F16], DType::F16, &layouts, &mut rng);
        check(Op::Select, &[DType::F32, DType::C128, DType::C128], DType::C128, &layouts, &mut rng);
    }
    finish();
}

#[test]
fn large_operands_of_all_layouts_and_sizes_of_elements() {
    use DType::{Bf16, C64, F8E5M2, F16, F32, F64, S8, S16, S64, U4, U8, U32};
    let mut rng = rng(25);
    for (i, a) in LAYOUTS.into_iter().enumerate() {
        for b in [LAYOUTS[(i * 3 + 1) % 7], Layout::Contiguous] {
            let binary = |op| (Op::Binary(op), 2);
            for ((op, operands), dtypes, out) in [
                (binary(Binary::Subtract), [F32, F32], F32),
                (binary(Binary::Divide), [F32, F16], F32),
                (binary(Binary::Max), [U8, S8], S16),
                (binary(Binary::Subtract), [Bf16, Bf16], Bf16),
                (binary(Binary::Less), [F16, F32], U8),
                (binary(Binary::Add), [S64, S16], S64),
                (binary(Binary::BitwiseXor), [U4, U4], U4),
                (binary(Binary::Subtract), [F8E5M2, F8E5M2], F8E5M2),
                ((Op::Unary(Unary::Sqrt), 1), [F32, F32], F32),
                ((Op::Unary(Unary::Sqrt), 1), [F64, F64], F64),
                ((Op::Unary(Unary::Sigmoid), 1), [F16, F16], F16),
                ((Op::AsType, 1), [S16, F32], F64),
                ((Op::AsType, 1), [C64, F32], U32),
            ] {
                check_shape(LARGE, op, &dtypes[..operands], out, &[a, b][..operands], &mut rng);
            }
        }
    }
    finish();
}

#[test]
fn blocks_of_operands_of_all_layouts() {
    use DType::{Bf16, F32, F64, U8};
    let mut rng = rng(30);
    for (i, a) in LAYOUTS.into_iter().enumerate() {
        let b = if a == Layout::Contiguous { Layout::Rows } else { LAYOUTS[i * 3 % 7] };
        let (op, dtypes, out) = match i % 3 {
            0 => (Binary::Divide, [F32, Bf16], F32),
            1 => (Binary::Less, [F32, F32], U8),
            _ => (Binary::Subtract, [F64, F64], F64),
        };
        check_shape(HUGE, Op::Binary(op), &dtypes, out, &[a, b], &mut rng);
        if matches!(a, Layout::Rows | Layout::Columns) {
            check_shape(HUGE, Op::Binary(Binary::Divide), &[F32, Bf16], F32, &[Layout::Contiguous, a], &mut rng);
            check_shape(HUGE, Op::Unary(Unary::Exp), &[F32], F32, &[a], &mut rng);
        }
    }
    finish();
}

#[test]
fn sizes_around_vectors_and_workgroups() {
    let mut rng = rng(24);
    for (op, dtypes, out) in [
        (Elementwise::Binary(Binary::Add), &[DType::F32; 2][..], DType::F32),
        (Elementwise::Binary(Binary::Subtract), &[DType::S16; 2], DType::S16),
        (Elementwise::Binary(Binary::BitwiseXor), &[DType::U8; 2], DType::U8),
        (Elementwise::Binary(Binary::Multiply), &[DType::F64; 2], DType::F64),
        (Elementwise::Unary(Unary::Sign), &[DType::Bf16], DType::Bf16),
        (Elementwise::Unary(Unary::Conjugate), &[DType::C128], DType::C128),
        (Elementwise::AsType, &[DType::F32], DType::U8),
    ] {
        let op_word = match op {
            Elementwise::Unary(op) => Op::Unary(op),
            Elementwise::Binary(op) => Op::Binary(op),
            _ => Op::AsType,
        };
        for n in [1, 2, 3, 4, 5, 7, 255, 256, 257, 1023, 1024, 1025, 4099, 16_384, 20_479, 20_513] {
            let operands: Vec<Array> = dtypes
                .iter()
                .enumerate()
                .map(|(seat, &t)| operand(&Type::new(t, &[n]), Range::All, seat, &mut rng))
                .collect();
            verify(&op_word, &operands, &Type::new(out, &[n]), bound(op, dtypes, out));
        }
    }
    finish();
}

/// One dispatch takes at most 65,535 workgroups along an axis, of 1024 elements each.
#[test]
fn more_than_65535_workgroups() {
    let n = 65_536 * 1024 + 4099;
    let pattern: Vec<u8> = (0..=250).collect();
    let bytes: Vec<u8> = pattern.repeat(n / pattern.len() + 1)[..n].to_vec();
    let ty = Type::new(DType::U8, &[n as u64]);
    let a = Tensor::from_nx_bytes(engine(), &ty, &bytes).unwrap();
    drop(bytes);
    let result = run(&Op::Unary(Unary::BitwiseNot), &[a], &ty).unwrap();
    let flipped: Vec<u8> = pattern.iter().map(|b| !b).collect();
    let expected = &flipped.repeat(n / flipped.len() + 1)[..n];
    assert!(result.to_nx_bytes(engine(), None).unwrap() == expected);
    finish();
}
