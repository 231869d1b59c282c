//! Elementwise ops: all of them for all types that they take, in one layout.

use nx_vulkan_engine::program::ops::{accepts, result_dtype};
use nx_vulkan_engine::program::{Binary, Elementwise, Op, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Type};

use super::values::{Range, operand};
use super::{finish, rng, verify};
use crate::compare::{Bound, bound};

/// Meets no multiple of a vector or a workgroup, and holds all pairs of special values.
const N: u64 = 1023;

/// The results that are the same for any operands, also for special ones, on every device.
fn range(op: Elementwise, operands: &[DType], out: DType) -> Range {
    let complex = out.is_complex() || operands.iter().any(|t| t.is_complex());
    if complex && bound(op, operands, out) != Bound::Exact { Range::Ordinary } else { Range::All }
}

fn case(op: Elementwise, dtypes: &[DType], out: DType, rng: &mut crate::common::Rng) {
    let out = Type::new(out, &[N]);
    let operands: Vec<Array> = dtypes
        .iter()
        .enumerate()
        .map(|(seat, &dtype)| {
            let shift = matches!(op, Elementwise::Binary(Binary::LeftShift | Binary::RightShift)) && seat == 1;
            let range = if shift { Range::Shift } else { range(op, dtypes, out.dtype) };
            let seat = if dtypes.len() == 1 { 2 } else { seat };
            operand(&Type::new(dtype, &[N]), range, seat, rng)
        })
        .collect();
    let op_word = match op {
        Elementwise::Unary(op) => Op::Unary(op),
        Elementwise::Binary(op) => Op::Binary(op),
        Elementwise::Select => Op::Select,
        Elementwise::Clip => Op::Clip,
        Elementwise::AsType => Op::AsType,
        Elementwise::Bitcast => Op::Bitcast,
    };
    verify(&op_word, &operands, &out, bound(op, dtypes, out.dtype));
}

/// Every unary op for the types that `of` picks. Float functions of integers are casts before a function of f32, and
/// slow to compile: each is met by a third of the integers, in turn.
fn unary(test: u64, of: fn(DType) -> bool) {
    let mut rng = rng(test);
    let mut cases = 0;
    for (i, &op) in Unary::ALL.iter().enumerate() {
        for (j, dtype) in DType::ALL.into_iter().enumerate().filter(|&(_, t)| of(t)) {
            if let Some(out) = result_dtype(Elementwise::Unary(op), &[dtype]) {
                if dtype.is_integer() && out.is_float() && (i + j) % 3 != 0 {
                    continue;
                }
                case(Elementwise::Unary(op), &[dtype], out, &mut rng);
                cases += 1;
            }
        }
    }
    println!("{cases} cases");
    finish();
}

#[test]
fn unary_of_f32_and_f64() {
    unary(1, |t| matches!(t, DType::F32 | DType::F64));
}

#[test]
fn unary_of_narrow_floats() {
    unary(2, |t| t.is_float() && t.bits() <= 16);
}

#[test]
fn unary_of_integers() {
    unary(3, DType::is_integer);
}

#[test]
fn unary_of_complex_numbers() {
    unary(4, DType::is_complex);
}

fn binary(test: u64, of: fn(DType) -> bool) {
    let mut rng = rng(test);
    let mut cases = 0;
    for &op in Binary::ALL {
        for dtype in DType::ALL.into_iter().filter(|&t| of(t)) {
            if let Some(out) = result_dtype(Elementwise::Binary(op), &[dtype, dtype]) {
                case(Elementwise::Binary(op), &[dtype, dtype], out, &mut rng);
                cases += 1;
            }
        }
    }
    println!("{cases} cases");
    finish();
}

#[test]
fn binary_of_floats() {
    binary(5, DType::is_float);
}

#[test]
fn binary_of_integers() {
    binary(6, DType::is_integer);
}

#[test]
fn binary_of_complex_numbers() {
    binary(7, DType::is_complex);
}

/// Each pair of different types in one order, with one of the ops that take it.
#[test]
fn binary_of_mixed_types() {
    let mut rng = rng(8);
    let mut cases = 0;
    for (i, a) in DType::ALL.into_iter().enumerate() {
        for (j, b) in DType::ALL.into_iter().enumerate().filter(|&(j, _)| j != i && (i + j) % 2 == usize::from(i < j)) {
            let ops = Binary::ALL.len();
            let first = i * 7 + j * 11;
            let op = (0..ops).map(|k| Binary::ALL[(first + k) % ops]).find_map(|op| {
                let op = Elementwise::Binary(op);
                result_dtype(op, &[a, b]).map(|out| (op, out))
            });
            let (op, out) = op.unwrap();
            case(op, &[a, b], out, &mut rng);
            cases += 1;
        }
    }
    println!("{cases} cases");
    finish();
}

/// All ops of a u64 and a signed number, in both orders: no type holds both, and the result is an s64.
#[test]
fn binary_of_u64_and_signed_integers() {
    let mut rng = rng(37);
    for &op in Binary::ALL {
        for signed in [DType::S8, DType::S32, DType::S64] {
            for dtypes in [[DType::U64, signed], [signed, DType::U64]] {
                if let Some(out) = result_dtype(Elementwise::Binary(op), &dtypes) {
                    case(Elementwise::Binary(op), &dtypes, out, &mut rng);
                }
            }
        }
    }
    finish();
}

#[test]
fn casts_between_all_types() {
    let mut rng = rng(9);
    for from in DType::ALL {
        for to in DType::ALL {
            case(Elementwise::AsType, &[from], to, &mut rng);
        }
    }
    finish();
}

#[test]
fn select_and_clip() {
    let mut rng = rng(10);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let pred = DType::ALL[(i + 8) % 20];
        case(Elementwise::Select, &[pred, dtype, dtype], dtype, &mut rng);
        if accepts(Elementwise::Clip, &[dtype; 3], dtype) {
            case(Elementwise::Clip, &[dtype; 3], dtype, &mut rng);
        }
    }
    case(Elementwise::Select, &[DType::U8, DType::S32, DType::F32], DType::F32, &mut rng);
    case(Elementwise::Select, &[DType::U8, DType::F64, DType::C64], DType::C128, &mut rng);
    finish();
}
