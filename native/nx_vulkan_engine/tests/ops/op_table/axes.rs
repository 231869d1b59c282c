//! Reductions, dot, gather and the indexed ops.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::{Gather, IndexedAdd, IndexedPut, Take, TakeAlongAxis};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::{Op, Reduction};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Tensor, Type, Value};
use nx_vulkan_ir::dtype::{Format, merge};

use super::values::{Range, operand, specials};
use super::{engine, finish, rng, run, upload, verify, verify_on};
use crate::common::Rng;
use crate::compare::{Bound, epsilon};

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

/// The bound of a sum or product whose terms have the sizes that add up to `size`, each rounded in the compute type.
fn summed(out: DType, terms: u64, size: f64) -> Bound {
    if out.is_integer() {
        return Bound::Exact;
    }
    let step = epsilon(out.ctype().dtype());
    // Once more for the rounding to `out`, which has numbers no smaller than this one.
    let least = |format: Format| 2f64.powi(format.least_exponent() - format.mantissa as i32);
    let least = out.format().map_or(0.0, least).max(2f64.powi(-16));
    let narrow = if out.is_canonical() { 0.0 } else { least };
    Bound::Norm { relative: 2.0 * epsilon(out), absolute: terms as f64 * step * size + narrow }
}

fn result_type(reduction: Reduction, a: DType) -> Option<DType> {
    Some(match reduction {
        Reduction::Sum | Reduction::Product if a.is_signed() && a != DType::S64 => DType::S32,
        Reduction::Sum | Reduction::Product if a.is_unsigned() && a != DType::U64 => DType::U32,
        Reduction::Sum | Reduction::Product => a,
        _ if a.is_complex() && !matches!(reduction, Reduction::All | Reduction::Any) => return None,
        Reduction::Max | Reduction::Min => a,
        Reduction::All | Reduction::Any => DType::U8,
        Reduction::ArgMax | Reduction::ArgMin => DType::S32,
    })
}

fn reduce(reduction: Reduction, dtype: DType, shape: &[u64], reduced: &[usize], tie_high: bool, rng: &mut Rng) {
    let Some(out) = result_type(reduction, dtype) else { return };
    let rounds = matches!(reduction, Reduction::Sum | Reduction::Product);
    let range = if rounds { Range::Ordinary } else { Range::All };
    let mut a = operand(&Type::new(dtype, shape), range, 2, rng);
    let terms: u64 = reduced.iter().map(|&axis| shape[axis]).product();
    if reduction == Reduction::Product {
        // Powers of two stay exact, and these stay small: a large product would leave the narrow types.
        a.values.iter_mut().enumerate().for_each(|(i, v)| *v = sign_or_half(i, *v, dtype));
    }
    if reduction == Reduction::Any {
        a.values.iter_mut().enumerate().filter(|(i, _)| i % 97 != 0).for_each(|(_, v)| *v = Value::Int(0).cast(dtype));
    }
    let kept: Vec<u64> = (0..shape.len()).filter(|axis| !reduced.contains(axis)).map(|axis| shape[axis]).collect();
    let bound = if rounds { summed(out, terms, 3.0 * terms as f64) } else { Bound::Exact };
    verify(&Op::Reduce { reduction, axes: axes(reduced), tie_high }, &[a], &Type::new(out, &kept), bound);
}

fn sign_or_half(i: usize, v: Value, dtype: DType) -> Value {
    let x = match i % 11 {
        0 => 2.0,
        5 => 0.5,
        _ if v.real() < 0.0 => -1.0,
        _ => 1.0,
    };
    Value::Float(x).cast(dtype)
}

#[test]
fn reductions_of_all_types() {
    let mut rng = rng(40);
    for &reduction in Reduction::ALL {
        for dtype in DType::ALL {
            reduce(reduction, dtype, &[3, 300, 2], &[1], false, &mut rng);
        }
    }
    finish();
}

#[test]
fn reductions_over_all_axes() {
    let mut rng = rng(41);
    for (reduction, dtype) in [
        (Reduction::Sum, DType::F32),
        (Reduction::Sum, DType::U8),
        (Reduction::Product, DType::C64),
        (Reduction::Max, DType::S64),
        (Reduction::Min, DType::Bf16),
        (Reduction::All, DType::F64),
        (Reduction::ArgMax, DType::F32),
        (Reduction::ArgMin, DType::U64),
    ] {
        for reduced in [&[0usize][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2], &[]] {
            reduce(reduction, dtype, &[7, 33, 5], reduced, false, &mut rng);
        }
        for n in [1, 3, 255, 256, 257, 1023, 4099] {
            reduce(reduction, dtype, &[n], &[0], false, &mut rng);
        }
    }
    finish();
}

#[test]
fn ties_go_to_the_first_or_the_last() {
    let mut rng = rng(42);
    for dtype in [DType::S8, DType::F32, DType::F64, DType::U64] {
        for reduction in [Reduction::ArgMax, Reduction::ArgMin] {
            for tie_high in [false, true] {
                let few: Vec<Value> = specials(dtype).into_iter().take(5).collect();
                let ty = Type::new(dtype, &[6, 700]);
                let a = Array::new(&ty, (0..ty.elements()).map(|_| few[rng.below(few.len() as u64) as usize]));
                let op = Op::Reduce { reduction, axes: axes(&[1]), tie_high };
                verify(&op, &[a], &Type::new(DType::S32, &[6]), Bound::Exact);
                reduce(reduction, dtype, &[90, 7], &[0], tie_high, &mut rng);
            }
        }
    }
    finish();
}

/// One workgroup per row; a row's sum is 40 (40 i) + 780.
#[test]
fn more_rows_than_65535_workgroups() {
    let rows = 66_000u64;
    let counted = run(&Op::Iota { axis: None }, &[], &Type::new(DType::S32, &[rows, 40])).unwrap();
    let op = Op::Reduce { reduction: Reduction::Sum, axes: axes(&[1]), tie_high: false };
    let sums = run(&op, &[counted], &Type::new(DType::S32, &[rows])).unwrap().to_nx_bytes(engine(), None).unwrap();
    let expected: Vec<u8> = (0..rows as i32).flat_map(|i| (1600 * i + 780).to_ne_bytes()).collect();
    assert!(sums == expected);
    finish();
}

fn dot(dtypes: [DType; 2], shapes: [&[u64]; 2], contract: [&[usize]; 2], batch: [&[usize]; 2], rng: &mut Rng) {
    let out = merge(dtypes[0], dtypes[1]);
    let operands = [0, 1].map(|k| operand(&Type::new(dtypes[k], shapes[k]), Range::Ordinary, k, rng));
    let pick = |k: usize, axes: &[usize]| axes.iter().map(|&axis| shapes[k][axis]).collect::<Vec<_>>();
    let free = |k: usize| {
        let rest = (0..shapes[k].len()).filter(|axis| !contract[k].contains(axis) && !batch[k].contains(axis));
        rest.map(|axis| shapes[k][axis]).collect::<Vec<_>>()
    };
    let shape = [pick(0, batch[0]), free(0), free(1)].concat();
    let depth: u64 = pick(0, contract[0]).iter().product();
    let largest = if dtypes.iter().any(|t| t.is_integer()) { 100.0 } else { 13.0 };
    let op = Op::Dot {
        contract_a: axes(contract[0]),
        batch_a: axes(batch[0]),
        contract_b: axes(contract[1]),
        batch_b: axes(batch[1]),
    };
    verify(&op, &operands, &Type::new(out, &shape), summed(out, depth, largest * depth as f64));
}

#[test]
fn products_of_all_types() {
    let mut rng = rng(43);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        dot([dtype; 2], [&[5, 18], &[18, 7]], [&[1], &[0]], [&[], &[]], &mut rng);
        if i % 2 == 0 {
            let other = DType::ALL[(i * 7 + 3) % 20];
            dot([dtype, other], [&[5, 18], &[18, 7]], [&[1], &[0]], [&[], &[]], &mut rng);
        }
    }
    finish();
}

#[test]
fn products_along_any_axes() {
    let mut rng = rng(44);
    for dtype in [DType::F32, DType::S64, DType::C128, DType::Bf16] {
        for (a, b, contract, batch) in [
            (&[18u64][..], &[18u64][..], [&[0usize][..], &[0]], [&[][..], &[][..]]),
            (&[4], &[5], [&[], &[]], [&[], &[]]),
            (&[], &[3, 2], [&[], &[]], [&[], &[]]),
            (&[18, 5], &[7, 18], [&[0], &[1]], [&[], &[]]),
            (&[3, 5, 18], &[3, 18, 7], [&[2], &[1]], [&[0], &[0]]),
            (&[5, 3, 18], &[18, 7, 3], [&[2], &[0]], [&[1], &[2]]),
            (&[2, 6, 5, 3], &[3, 4, 6], [&[3, 1], &[0, 2]], [&[], &[]]),
            (&[2, 3, 4, 5], &[2, 3, 5, 6], [&[3], &[2]], [&[0, 1], &[0, 1]]),
            (&[66, 129], &[129, 65], [&[1], &[0]], [&[], &[]]),
            (&[1, 300], &[300, 33], [&[1], &[0]], [&[], &[]]),
        ] {
            dot([dtype; 2], [a, b], contract, batch, &mut rng);
        }
    }
    finish();
}

/// Shapes for each kind of kernel: tiles of 64 x 256 and 256 x 64, and products too narrow for tiles.
#[test]
fn products_of_all_shapes() {
    let mut rng = rng(48);
    for (a, b, contract, batch) in [
        (&[40u64, 68][..], &[68u64, 264][..], [&[1usize][..], &[0]], [&[][..], &[][..]]),
        (&[68, 40], &[264, 68], [&[0], &[1]], [&[], &[]]),
        (&[270, 64], &[64, 36], [&[1], &[0]], [&[], &[]]),
        (&[64, 272], &[36, 64], [&[0], &[1]], [&[], &[]]),
        (&[300, 3, 4], &[300, 4, 2], [&[2], &[1]], [&[0], &[0]]),
        (&[3, 4, 300], &[300, 4, 2], [&[1], &[1]], [&[2], &[0]]),
        (&[2, 9], &[9, 700], [&[1], &[0]], [&[], &[]]),
        (&[9, 700], &[1, 9], [&[0], &[1]], [&[], &[]]),
    ] {
        dot([DType::F32; 2], [a, b], contract, batch, &mut rng);
        if a.len() == 3 {
            dot([DType::U8, DType::C128], [a, b], contract, batch, &mut rng);
        }
    }
    finish();
}

/// Index vectors of `components` within `bound`, or a little outside.
fn index_vectors(dtype: DType, count: u64, bounds: &[u64], outside: bool, rng: &mut Rng) -> Array {
    let slack = if outside { 2 } else { 0 };
    let ty = Type::new(dtype, &[count, bounds.len() as u64]);
    let values = (0..ty.elements() as usize).map(|i| {
        let bound = bounds[i % bounds.len()];
        let index = i128::from(rng.below(bound + 2 * slack)) - i128::from(slack);
        Value::Int(if dtype.is_signed() { index } else { index.max(0) })
    });
    Array::new(&ty, values.collect::<Vec<_>>())
}

const INDEX_TYPES: [DType; 6] = [DType::S64, DType::U8, DType::S32, DType::S8, DType::U32, DType::U64];

#[test]
fn gathers() {
    let mut rng = rng(45);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let index = INDEX_TYPES[i % 6];
        let a = operand(&Type::new(dtype, &[9, 4, 7]), Range::All, 2, &mut rng);
        for (axis, bounds, out) in [
            (&[0usize][..], &[9u64][..], &[50u64, 4, 7][..]),
            (&[2, 0], &[7, 9], &[50, 4]),
            (&[0, 1, 2], &[9, 4, 7], &[50]),
        ] {
            let vectors = index_vectors(index, 50, bounds, true, &mut rng);
            verify(&Op::from(Gather { axes: axes(axis) }), &[a.clone(), vectors], &Type::new(dtype, out), Bound::Exact);
        }
    }
    finish();
}

#[test]
fn takes() {
    let mut rng = rng(48);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let index = INDEX_TYPES[i % 6];
        let a = operand(&Type::new(dtype, &[9, 4, 8]), Range::All, 2, &mut rng);
        for (axis, size) in [(0usize, 9u64), (1, 4), (2, 8)] {
            let mut shape = vec![9, 4, 8];
            let mut by = |shape: &[u64]| {
                let vectors = index_vectors(index, shape.iter().product(), &[size], true, &mut rng);
                Array { ty: Type::new(index, shape), ..vectors }
            };
            shape[axis] = 11;
            let along = Op::from(TakeAlongAxis { axis });
            verify(&along, &[a.clone(), by(&shape)], &Type::new(dtype, &shape), Bound::Exact);
            let taken = by(&[5, 3]);
            shape.splice(axis..=axis, [5, 3]);
            verify(&Op::from(Take { axis }), &[a.clone(), taken], &Type::new(dtype, &shape), Bound::Exact);
            let one = by(&[]);
            shape.drain(axis..axis + 2);
            verify(&Op::from(Take { axis }), &[a.clone(), one], &Type::new(dtype, &shape), Bound::Exact);
        }
    }
    finish();
}

#[test]
fn indexed_updates() {
    let mut rng = rng(46);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let index = INDEX_TYPES[(i + 1) % 6];
        for (axis, bounds, updates) in [
            (&[0usize][..], &[9u64][..], &[70u64, 4, 7][..]),
            (&[2, 0], &[7, 9], &[70, 4]),
            (&[0, 1, 2], &[9, 4, 7], &[70]),
        ] {
            let ty = Type::new(dtype, &[9, 4, 7]);
            let vectors = index_vectors(index, 70, bounds, true, &mut rng);
            let updates = operand(&Type::new(dtype, updates), Range::Ordinary, 0, &mut rng);
            let a = operand(&ty, Range::Ordinary, 0, &mut rng);
            let operands = [a, vectors, updates];
            verify(&Op::from(IndexedPut { axes: axes(axis) }), &operands, &ty, Bound::Exact);
            // At most 70 sums of 2.5, each rounded to the type, as the reference does.
            let bound = match dtype {
                t if t.is_integer() => Bound::Exact,
                t => Bound::Norm { relative: 2.0 * epsilon(t), absolute: epsilon(t) },
            };
            verify(&Op::from(IndexedAdd { axes: axes(axis) }), &operands, &ty, bound);
        }
    }
    finish();
}

/// Index vectors for updates of which many have one target, or none.
fn crowded(index: DType, count: u64, bounds: &[u64], kind: usize, rng: &mut Rng) -> Array {
    let mut vectors = index_vectors(index, count, bounds, true, rng);
    let components = bounds.len();
    for (i, vector) in vectors.values.chunks_mut(components).enumerate() {
        let target = match kind {
            // All the same; all that fit, apart from one another; few; one of half of the updates, and any of the
            // others.
            0 => bounds[0] - 1,
            1 => (i as u64 * 7) % bounds[0],
            2 => i as u64 % 3,
            _ if i % 2 == 0 => 1,
            _ => continue,
        };
        vector.fill(Value::Int(0));
        vector[0] = Value::Int(target.into()).cast(index);
    }
    vectors
}

/// Fewer updates than those whose sums are rounded once are added one after another, whatever the way to their targets.
#[test]
fn indexed_updates_keep_their_order() {
    let mut rng = rng(51);
    let mixed = [
        (DType::Bf16, DType::F32, DType::F32),
        (DType::S64, DType::U8, DType::S64),
        (DType::C64, DType::F32, DType::C64),
        (DType::F32, DType::C64, DType::C64),
        (DType::F32, DType::F16, DType::F32),
        (DType::F16, DType::Bf16, DType::F32),
    ];
    let same = DType::ALL.into_iter().map(|dtype| (dtype, dtype, dtype));
    for (i, (dtype, update, out)) in same.chain(mixed).enumerate() {
        let index = [DType::S64, DType::U16, DType::S32, DType::U32][i % 4];
        for (axis, shape, updates) in [
            (&[0usize][..], &[70u64, 3][..], &[33u64, 3][..]),
            (&[0], &[600], &[500]),
            (&[1, 0], &[9, 50, 2], &[530, 2]),
            (&[1], &[2, 600, 3], &[2001, 2, 3]),
            (&[0], &[700], &[2900]),
            (&[0], &[40, 301], &[260, 301]),
        ] {
            let bounds: Vec<u64> = axis.iter().map(|&axis| shape[axis]).collect();
            let kind = rng.below(4) as usize;
            let vectors = crowded(index, updates[0], &bounds, kind, &mut rng);
            let ty = Type::new(out, shape);
            let updates = operand(&Type::new(update, updates), Range::Ordinary, 0, &mut rng);
            let a = operand(&Type::new(dtype, shape), Range::Ordinary, 0, &mut rng);
            let operands = [a, vectors, updates];
            verify(&Op::from(IndexedPut { axes: axes(axis) }), &operands, &ty, Bound::Exact);
            verify(&Op::from(IndexedAdd { axes: axes(axis) }), &operands, &ty, Bound::Exact);
        }
    }
    finish();
}

/// The same of operands that are views.
#[test]
fn indexed_updates_of_views() {
    let mut rng = rng(52);
    for (dtype, count, width) in
        [(DType::F32, 40u64, 5u64), (DType::Bf16, 540, 3), (DType::F64, 1900, 2), (DType::U8, 2800, 1)]
    {
        let turned = |shape: &[u64], array: &Array| {
            let turn = Op::Transpose { axes: axes(&[1, 0]) };
            let ty = Type::new(array.ty.dtype, shape);
            let view = run(&turn, &[upload(array)], &ty).unwrap();
            (view, nx_vulkan_engine::reference::evaluate(&turn, std::slice::from_ref(array), &ty).unwrap())
        };
        for kind in 0..4 {
            let vectors = crowded(DType::S32, count, &[90], kind, &mut rng);
            let rows = Array { ty: Type::new(DType::S32, &[1, count]), ..vectors };
            let (indices, index_array) = turned(&[count, 1], &rows);
            let update = operand(&Type::new(dtype, &[width, count]), Range::Ordinary, 0, &mut rng);
            let (updates, update_array) = turned(&[count, width], &update);
            let a = operand(&Type::new(dtype, &[width, 90]), Range::Ordinary, 0, &mut rng);
            let (target, target_array) = turned(&[90, width], &a);
            let ty = Type::new(dtype, &[90, width]);
            let (tensors, arrays) = ([target, indices, updates], [target_array, index_array, update_array]);
            verify_on(&Op::from(IndexedPut { axes: axes(&[0]) }), &tensors, &arrays, &ty, Bound::Exact);
            verify_on(&Op::from(IndexedAdd { axes: axes(&[0]) }), &tensors, &arrays, &ty, Bound::Exact);
        }
    }
    finish();
}

/// So many updates that sums are rounded once: many for each target, few, or all for one.
#[test]
fn many_indexed_updates() {
    let mut rng = rng(49);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let index = if i % 2 == 0 { DType::S64 } else { DType::U32 };
        for (axis, shape, updates) in [
            (&[0usize][..], &[300u64, 2][..], &[4300u64, 2][..]),
            (&[1, 0], &[40, 30], &[4100]),
            (&[1], &[2, 1, 3], &[4097, 2, 3]),
        ] {
            let bounds: Vec<u64> = axis.iter().map(|&axis| shape[axis]).collect();
            let vectors = index_vectors(index, updates[0], &bounds, true, &mut rng);
            let ty = Type::new(dtype, shape);
            let mut updates = operand(&Type::new(dtype, updates), Range::Ordinary, 0, &mut rng);
            let mut a = operand(&ty, Range::Ordinary, 0, &mut rng);
            let put = [a.clone(), vectors.clone(), updates.clone()];
            verify(&Op::from(IndexedPut { axes: axes(axis) }), &put, &ty, Bound::Exact);
            // Sums of narrow floats are rounded once, those of the reference after every update: few small whole
            // numbers.
            let narrow = !dtype.is_canonical() && !dtype.is_integer();
            if narrow {
                a.values.fill(Value::Float(1.0));
                let few = |i: usize| if i.is_multiple_of(4001) { 1.0 - (i / 4001 % 2) as f64 * 2.0 } else { 0.0 };
                updates.values.iter_mut().enumerate().for_each(|(i, v)| *v = Value::Float(few(i)));
            }
            let bound = if narrow { Bound::Exact } else { summed(dtype, vectors.ty.shape[0], 2.5) };
            verify(&Op::from(IndexedAdd { axes: axes(axis) }), &[a, vectors, updates], &ty, bound);
        }
    }
    finish();
}

/// Operands that are views, whose axes do not merge.
#[test]
fn views_as_operands() {
    let mut rng = rng(47);
    let turn = Op::Transpose { axes: axes(&[2, 0, 1]) };
    let base = operand(&Type::new(DType::F32, &[6, 8, 10]), Range::Ordinary, 0, &mut rng);
    let turned = Type::new(DType::F32, &[10, 6, 8]);
    let view: Tensor = run(&turn, &[upload(&base)], &turned).unwrap();
    let array = nx_vulkan_engine::reference::evaluate(&turn, &[base], &turned).unwrap();
    let f32 = |shape: &[u64]| Type::new(DType::F32, shape);
    let (a, t) = (std::slice::from_ref(&array), std::slice::from_ref(&view));
    for reduced in [&[0usize][..], &[1], &[0, 2]] {
        let kept: Vec<u64> = (0..3).filter(|i| !reduced.contains(i)).map(|i| turned.shape[i]).collect();
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: axes(reduced), tie_high: false };
        verify_on(&sum, t, a, &f32(&kept), summed(DType::F32, 80, 240.0));
        let max = Op::Reduce { reduction: Reduction::Max, axes: axes(reduced), tie_high: false };
        verify_on(&max, t, a, &f32(&kept), Bound::Exact);
    }
    let both = [array.clone(), array];
    let views = [view.clone(), view];
    let dot = Op::Dot { contract_a: axes(&[2, 0]), batch_a: axes(&[]), contract_b: axes(&[2, 0]), batch_b: axes(&[]) };
    verify_on(&dot, &views, &both, &f32(&[6, 6]), summed(DType::F32, 80, 1000.0));
    let vectors = index_vectors(DType::S32, 12, &[6], false, &mut rng);
    let gathered = [both[0].clone(), vectors.clone()];
    verify_on(
        &Op::from(Gather { axes: axes(&[1]) }),
        &[views[0].clone(), upload(&vectors)],
        &gathered,
        &f32(&[12, 10, 8]),
        Bound::Exact,
    );
    let flat = Array { ty: Type::new(DType::S32, &[12]), ..vectors };
    for (axis, shape) in [(0, [12, 6, 8]), (1, [10, 12, 8]), (2, [10, 6, 12])] {
        let taken = [both[0].clone(), flat.clone()];
        verify_on(&Op::from(Take { axis }), &[views[0].clone(), upload(&flat)], &taken, &f32(&shape), Bound::Exact);
    }
    // Indices that are a view, and a tensor that runs backwards.
    let back = Op::from(Reverse { axes: axes(&[0, 2]) });
    let backwards = [run(&back, &views[..1], &turned).unwrap()];
    let reversed = [nx_vulkan_engine::reference::evaluate(&back, &both[..1], &turned).unwrap()];
    let counted = Op::Iota { axis: Some(1) };
    let order = Type::new(DType::U8, &[10, 6, 8]);
    let by = run(&counted, &[], &order).unwrap();
    let by_array = nx_vulkan_engine::reference::evaluate(&counted, &[], &order).unwrap();
    let operands = [reversed[0].clone(), by_array];
    let along = Op::from(TakeAlongAxis { axis: 1 });
    verify_on(&along, &[backwards[0].clone(), by], &operands, &turned, Bound::Exact);
    finish();
}

/// Elements of all types that are the same, near and apart, also infinite ones and NaN.
#[test]
fn all_close() {
    let mut rng = rng(99);
    let out = Type::new(DType::U8, &[]);
    let close = |equal_nan, atol| Op::AllClose { equal_nan, rtol: Scalar::Float(1e-5), atol };
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let (other, atol) = match i % 3 {
            0 => (DType::F32, Scalar::Float(0.5)),
            1 => (dtype, Scalar::Int(9)),
            _ => (dtype, Scalar::Float(0.5)),
        };
        for (equal_nan, range) in [(false, Range::Ordinary), (true, Range::All)] {
            let a = operand(&Type::new(dtype, &[2, 64]), range, 2, &mut rng);
            let row = Array::new(&Type::new(other, &[64]), a.values[..64].iter().copied());
            let same = Array::new(&Type::new(other, &[2, 64]), a.values.iter().copied());
            for b in [same, row] {
                verify(&close(equal_nan, atol), &[a.clone(), b], &out, Bound::Exact);
            }
        }
    }
    // One element of many.
    let a = operand(&Type::new(DType::F32, &[300, 701]), Range::Ordinary, 2, &mut rng);
    let mut b = a.clone();
    b.values[123_456] = Value::Float(a.values[123_456].real() + 1e-2).cast(DType::F32);
    for (atol, same) in [(2e-2, 1), (1e-3, 0)] {
        let op = close(false, Scalar::Float(atol));
        let want = nx_vulkan_engine::reference::evaluate(&op, &[a.clone(), b.clone()], &out).unwrap();
        assert_eq!(want.values, [Value::Int(same)]);
        verify(&op, &[a.clone(), b.clone()], &out, Bound::Exact);
    }
    for shape in [&[][..], &[1], &[3000]] {
        let a = operand(&Type::new(DType::F32, shape), Range::Ordinary, 2, &mut rng);
        verify(&close(false, Scalar::Float(1e-8)), &[a.clone(), a], &out, Bound::Exact);
    }
    finish();
}
