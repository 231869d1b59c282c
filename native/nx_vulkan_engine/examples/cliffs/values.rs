//! Products, functions of elements, and what goes along rows, by the values of an operand.

use std::slice::from_ref;

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::fourier::Fourier;
use nx_vulkan_engine::program::ops::order::{Argsort, Cumulative, Scan, Sort, TopK};
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::ops::window::Window;
use nx_vulkan_engine::program::window::Windows;
use nx_vulkan_engine::program::{Binary, Elementwise, Op, Reduction, Unary, ops};
use nx_vulkan_engine::{DType, Tensor, Type};

use crate::data::Kind;
use crate::{Bench, Outcome};

fn names() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.name()).collect()
}

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

/// A tensor of each kind.
fn tensors(bench: &Bench, shape: &[u64]) -> Outcome<Vec<Tensor>> {
    Kind::ALL.iter().map(|kind| kind.tensor(&bench.engine, shape)).collect()
}

/// Products of two matrices, of which one or both are of the kind.
pub fn products(bench: &Bench) -> Outcome<()> {
    let table = "products";
    bench.table(table, &names());
    let n = if bench.small { 256 } else { 2048 };
    let op = Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[0]), batch_b: axes(&[]) };
    let given = tensors(bench, &[n, n])?;
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let ty = Type::new(dtype, &[n, n]);
        let cast = |tensor: &Tensor| bench.op(&Op::AsType, from_ref(tensor), &ty);
        let typed: Vec<Tensor> = given.iter().map(cast).collect::<Outcome<_>>()?;
        let Some(other) = typed.first() else { continue };
        let run = |a: &Tensor, b: &Tensor| bench.op(&op, &[a.clone(), b.clone()], &ty).map(|_| ());
        bench.row(table, &format!("{dtype}, first operand"), &typed, |a| run(a, other))?;
        bench.row(table, &format!("{dtype}, second operand"), &typed, |b| run(other, b))?;
        bench.row(table, &format!("{dtype}, both"), &typed, |a| run(a, a))?;
    }
    Ok(())
}

/// Functions of elements.
pub fn elements(bench: &Bench) -> Outcome<()> {
    let table = "elements";
    bench.table(table, &names());
    let n = if bench.small { 1 << 16 } else { 1 << 24 };
    let given = tensors(bench, &[n])?;
    let ty = Type::new(DType::F32, &[n]);
    for &unary in Unary::ALL {
        if ops::result_dtype(Elementwise::Unary(unary), &[DType::F32]) != Some(DType::F32) {
            continue;
        }
        let run = |x: &Tensor| bench.op(&Op::Unary(unary), from_ref(x), &ty).map(|_| ());
        bench.row(table, unary.name(), &given, run)?;
    }
    let Some(other) = given.first() else { return Ok(()) };
    for binary in [Binary::Pow, Binary::Remainder, Binary::Divide, Binary::Atan2, Binary::Max] {
        let run = |x: &Tensor| bench.op(&Op::Binary(binary), &[x.clone(), other.clone()], &ty).map(|_| ());
        bench.row(table, &format!("{}, first operand", binary.name()), &given, run)?;
        let run = |x: &Tensor| bench.op(&Op::Binary(binary), &[other.clone(), x.clone()], &ty).map(|_| ());
        bench.row(table, &format!("{}, second operand", binary.name()), &given, run)?;
    }
    Ok(())
}

/// Reductions, sorts, scans, windows and transforms.
pub fn rows(bench: &Bench) -> Outcome<()> {
    let table = "rows";
    bench.table(table, &names());
    let (rows, length): (u64, u64) = if bench.small { (64, 1 << 10) } else { (1 << 14, 1 << 10) };
    let n = rows * length;
    let (long, matrix) = (tensors(bench, &[n])?, tensors(bench, &[rows, length])?);
    let f32 = |shape: &[u64]| Type::new(DType::F32, shape);
    let s32 = |shape: &[u64]| Type::new(DType::S32, shape);
    for (name, reduction) in [
        ("sum", Reduction::Sum),
        ("product", Reduction::Product),
        ("reduce_max", Reduction::Max),
        ("argmax", Reduction::ArgMax),
    ] {
        let dtype = if reduction.finds_place() { DType::S32 } else { DType::F32 };
        let all = Op::Reduce { reduction, axes: axes(&[0]), tie_high: false };
        let ty = Type::new(dtype, &[]);
        bench.row(table, &format!("{name} of all"), &long, |x| bench.all(&all, from_ref(x), from_ref(&ty)))?;
        let op = Op::Reduce { reduction, axes: axes(&[1]), tie_high: false };
        let ty = Type::new(dtype, &[rows]);
        bench.row(table, &format!("{name} of rows"), &matrix, |x| bench.all(&op, from_ref(x), from_ref(&ty)))?;
    }
    let sum = |axis| Op::from(Scan { scan: Cumulative::Sum, axis, reverse: false });
    let max = |axis| Op::from(Scan { scan: Cumulative::Max, axis, reverse: false });
    let both = [rows, length];
    let window = Op::from(Window {
        reduction: Reduction::Max,
        windows: Windows {
            sizes: [3, 3].into_iter().collect(),
            padding: [(1, 1), (1, 1)].into_iter().collect(),
            strides: [1, 1].into_iter().collect(),
            dilations: [1, 1].into_iter().collect(),
        },
    });
    let fft = Op::from(Fft { kind: Fourier::Rfft, axis: 1, length, eps: Scalar::Float(1e-10) });
    for (name, op, given, outs) in [
        ("sort of all", Op::from(Sort { axis: 0, descending: false }), &long, vec![f32(&[n])]),
        ("argsort of all", Op::from(Argsort { axis: 0, descending: false }), &long, vec![s32(&[n])]),
        ("sort of rows", Op::from(Sort { axis: 1, descending: false }), &matrix, vec![f32(&both)]),
        ("argsort of rows", Op::from(Argsort { axis: 1, descending: true }), &matrix, vec![s32(&both)]),
        ("top_k of 10", Op::from(TopK { k: 10 }), &long, vec![f32(&[10]), s32(&[10])]),
        ("top_k of 10 of rows", Op::from(TopK { k: 10 }), &matrix, vec![f32(&[rows, 10]), s32(&[rows, 10])]),
        ("cumulative_sum of all", sum(0), &long, vec![f32(&[n])]),
        ("cumulative_sum of rows", sum(1), &matrix, vec![f32(&both)]),
        ("cumulative_max of all", max(0), &long, vec![f32(&[n])]),
        ("window_max of 3 x 3", window, &matrix, vec![f32(&both)]),
        ("rfft of rows", fft, &matrix, vec![Type::new(DType::C64, &[rows, length / 2 + 1])]),
    ] {
        bench.row(table, name, given, |x| bench.all(&op, from_ref(x), &outs))?;
    }
    let (each, whole) = (f32(&[rows, 1]), f32(&both));
    bench.row(table, "softmax of rows, op by op", &matrix, |x| {
        let reduce = |reduction, x: Tensor| {
            let of_rows =
                bench.op(&Op::Reduce { reduction, axes: axes(&[1]), tie_high: false }, &[x], &f32(&[rows]))?;
            bench.op(&Op::Reshape, &[of_rows], &each)
        };
        let most = reduce(Reduction::Max, x.clone())?;
        let below = bench.op(&Op::Binary(Binary::Subtract), &[x.clone(), most], &whole)?;
        let powers = bench.op(&Op::Unary(Unary::Exp), &[below], &whole)?;
        let sums = reduce(Reduction::Sum, powers.clone())?;
        bench.op(&Op::Binary(Binary::Divide), &[powers, sums], &whole).map(|_| ())
    })
}
