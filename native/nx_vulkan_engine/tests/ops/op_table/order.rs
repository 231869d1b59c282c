//! Ops along one axis whose results depend on the order of its elements.

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::index::{Take, TakeAlongAxis};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::*;
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Engine, Options, Reach, Tensor, Type, Value, eager};

use super::values::{Range, operand};
use super::{all_results, download, engine, finish, rng, run, upload, verify, verify_on};
use crate::common::Rng;
use crate::compare::{Bound, epsilon, mismatch};

/// Running sums of at most `terms` terms of at most 3, rounded in the compute type and once to the type.
fn running(dtype: DType, terms: u64) -> Bound {
    if dtype.is_integer() {
        return Bound::Exact;
    }
    let step = epsilon(dtype.ctype().dtype());
    Bound::Norm { relative: 2.0 * epsilon(dtype), absolute: 3.0 * terms as f64 * step }
}

fn scan(cumulative: Cumulative, dtype: DType, shape: &[u64], axis: usize, reverse: bool, rng: &mut Rng) {
    let extreme = matches!(cumulative, Cumulative::Max | Cumulative::Min);
    if extreme && dtype.is_complex() {
        return;
    }
    let mut a = operand(&Type::new(dtype, shape), if extreme { Range::All } else { Range::Ordinary }, 2, rng);
    let n = shape[axis];
    if !extreme && dtype.bits() <= 16 && !dtype.is_integer() {
        // Few enough small numbers stay far from the largest.
        a.values.iter_mut().enumerate().for_each(|(i, v)| *v = Value::Float(i as f64 % 3.0 - 1.0).cast(dtype));
    }
    if cumulative == Cumulative::Product {
        let sign = |i: usize| [1.0, -1.0, 2.0, 1.0, -0.5, 1.0][i % 6];
        a.values.iter_mut().enumerate().for_each(|(i, v)| *v = Value::Float(sign(i)).cast(dtype));
    }
    let bound = match cumulative {
        Cumulative::Sum => running(dtype, n),
        // The sign of a zero part depends on the order of the products.
        Cumulative::Product if dtype.is_complex() => Bound::Equal,
        _ => Bound::Exact,
    };
    verify(&Op::from(Scan { scan: cumulative, axis, reverse }), &[a], &Type::new(dtype, shape), bound);
}

#[test]
fn scans_of_all_types() {
    let mut rng = rng(80);
    for &cumulative in Cumulative::ALL {
        for dtype in DType::ALL {
            for (axis, reverse) in [(0, false), (1, true), (2, false)] {
                scan(cumulative, dtype, &[6, 40, 9], axis, reverse, &mut rng);
            }
        }
    }
    finish();
}

#[test]
fn scans_of_all_lengths() {
    let mut rng = rng(81);
    for dtype in [DType::F32, DType::S64, DType::U8, DType::C128] {
        for n in [1u64, 2, 7, 8, 9, 12, 255, 260, 1025, 2048, 2049, 2052, 5000] {
            for reverse in [false, true] {
                scan(Cumulative::Sum, dtype, &[2, n], 1, reverse, &mut rng);
            }
        }
        scan(Cumulative::Max, dtype, &[2100], 0, false, &mut rng);
        scan(Cumulative::Min, dtype, &[700, 5], 1, true, &mut rng);
    }
    finish();
}

#[test]
fn scans_of_special_values() {
    for values in [[-0.0, -0.0, 0.0, 1.0], [1.0, f64::INFINITY, 2.0, f64::NEG_INFINITY], [1.0, f64::NAN, 3.0, 0.5]] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let ty = Type::new(dtype, &[4]);
            let a = Array::new(&ty, values.map(Value::Float));
            for &cumulative in Cumulative::ALL {
                for reverse in [false, true] {
                    verify(
                        &Op::from(Scan { scan: cumulative, axis: 0, reverse }),
                        std::slice::from_ref(&a),
                        &ty,
                        Bound::Exact,
                    );
                }
            }
        }
    }
    let ty = Type::new(DType::C64, &[2]);
    let infinite = Array::new(&ty, [Value::Complex(f64::INFINITY, 0.0), Value::Complex(-0.0, 1.0)]);
    let first = Array::new(&Type::new(DType::C64, &[1]), infinite.values[..1].iter().copied());
    let op = Op::from(Scan { scan: Cumulative::Product, axis: 0, reverse: false });
    let one = first.ty.clone();
    verify(&op, &[first], &one, Bound::Exact);
    finish();
}

/// A tensor with turned, reversed and repeated axes, on the device and on the host.
fn view(dtype: DType, rng: &mut Rng) -> (Tensor, Array) {
    let base = operand(&Type::new(dtype, &[70, 1, 9]), Range::All, 2, rng);
    let steps = [
        (Op::Broadcast { axes: Axes::from_slice(&[0, 1, 2]) }, [70, 4, 9]),
        (Op::Transpose { axes: Axes::from_slice(&[2, 0, 1]) }, [9, 70, 4]),
        (Op::from(Reverse { axes: Axes::from_slice(&[0, 1]) }), [9, 70, 4]),
    ];
    let mut tensor = upload(&base);
    let mut array = base;
    for (op, shape) in steps {
        let out = Type::new(dtype, &shape);
        tensor = run(&op, &[tensor], &out).unwrap();
        array = reference::evaluate(&op, &[array], &out).unwrap();
    }
    (tensor, array)
}

#[test]
fn scans_of_views() {
    let mut rng = rng(82);
    for axis in 0..3 {
        let (tensor, array) = view(DType::F32, &mut rng);
        let out = array.ty.clone();
        verify_on(
            &Op::from(Scan { scan: Cumulative::Min, axis, reverse: true }),
            &[tensor],
            &[array],
            &out,
            Bound::Exact,
        );
    }
    finish();
}

/// f32 sums keep what they round off: no digit is lost after many terms.
#[test]
fn long_sums_keep_their_digits() {
    let n = 300_000u64;
    let ty = Type::new(DType::F32, &[n]);
    let mut rng = rng(83);
    let values: Vec<f32> = (0..n).map(|_| rng.below(1 << 24) as f32 / (1 << 24) as f32 + 0.1).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let a = Tensor::from_nx_bytes(engine(), &ty, &bytes).unwrap();
    let op = Op::from(Scan { scan: Cumulative::Sum, axis: 0, reverse: false });
    let sums = run(&op, &[a], &ty).unwrap().to_nx_bytes(engine(), None).unwrap();
    let mut exact = 0.0;
    for (sum, x) in sums.as_chunks::<4>().0.iter().zip(values) {
        exact += f64::from(x);
        let error = (f64::from(f32::from_ne_bytes(*sum)) - exact).abs();
        assert!(error <= exact * f64::from(f32::EPSILON), "{error} of {exact}");
    }
    finish();
}

fn reals() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|t| !t.is_complex())
}

/// Sorts and argsorts in both directions.
fn sorts(tensor: &Tensor, array: &Array, axis: usize, places: DType) {
    let (t, a) = (std::slice::from_ref(tensor), std::slice::from_ref(array));
    for descending in [false, true] {
        verify_on(&Op::from(Sort { axis, descending }), t, a, &array.ty, Bound::Exact);
        let out = Type::new(places, &array.ty.shape);
        verify_on(&Op::from(Argsort { axis, descending }), t, a, &out, Bound::Exact);
    }
}

#[test]
fn sorts_of_all_types() {
    let mut rng = rng(84);
    for dtype in reals() {
        let a = operand(&Type::new(dtype, &[3, 90, 2]), Range::All, 2, &mut rng);
        sorts(&upload(&a), &a, 1, DType::S32);
    }
    finish();
}

#[test]
fn sorts_of_short_rows() {
    let mut rng = rng(85);
    for dtype in [DType::F32, DType::S64] {
        for shape in [&[1u64][..], &[2], &[3, 5], &[1000, 3], &[70, 64], &[9, 1], &[2, 2048], &[3, 1025]] {
            let a = operand(&Type::new(dtype, shape), Range::All, 2, &mut rng);
            sorts(&upload(&a), &a, shape.len() - 1, DType::U32);
        }
    }
    finish();
}

/// Numbers that repeat often, so that their order matters.
fn repeating(ty: &Type, rng: &mut Rng) -> Array {
    let few: Vec<Value> = [0.0, -0.0, 1.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5.5]
        .map(|x| Value::Float(x).cast(ty.dtype))
        .to_vec();
    Array::new(ty, (0..ty.elements()).map(|_| few[rng.below(8) as usize]).collect::<Vec<_>>())
}

#[test]
fn equal_elements_keep_their_order() {
    let mut rng = rng(86);
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F8E4M3Fn, DType::S8, DType::U2] {
        for n in [700, 2100] {
            let a = repeating(&Type::new(dtype, &[2, n]), &mut rng);
            sorts(&upload(&a), &a, 1, DType::S64);
        }
    }
    finish();
}

#[test]
fn sorts_of_long_rows() {
    let mut rng = rng(87);
    for dtype in [DType::F32, DType::U64, DType::F16, DType::S4] {
        for shape in [&[2049u64][..], &[2, 4097]] {
            let a = operand(&Type::new(dtype, shape), Range::All, 2, &mut rng);
            sorts(&upload(&a), &a, shape.len() - 1, DType::S32);
        }
    }
    finish();
}

/// More than 64 tiles, whose counts take two levels.
#[test]
fn sorts_of_many_tiles() {
    let mut rng = rng(90);
    let ty = Type::new(DType::U8, &[280_000]);
    let a = Array::new(&ty, (0..280_000).map(|_| Value::Int(rng.below(256).into())).collect::<Vec<_>>());
    let op = Op::from(Argsort { axis: 0, descending: true });
    verify(&op, &[a], &Type::new(DType::S32, &[280_000]), Bound::Exact);
    finish();
}

#[test]
fn sorts_of_views() {
    let mut rng = rng(88);
    for axis in 0..3 {
        let (tensor, array) = view(DType::F32, &mut rng);
        sorts(&tensor, &array, axis, DType::U8);
    }
    finish();
}

/// What debug builds refuse before anything runs.
#[test]
fn wrong_operands_are_refused() {
    let f32 = |shape: &[u64]| Type::new(DType::F32, shape);
    let zeros = |ty: &Type| Array::new(ty, std::iter::repeat_n(Value::Int(0), ty.elements() as usize));
    let (row, complex) = (f32(&[2, 3]), Type::new(DType::C64, &[3]));
    for (op, operands, out) in [
        (Op::from(Sort { axis: 2, descending: false }), vec![row.clone()], row.clone()),
        (Op::from(Sort { axis: 0, descending: false }), vec![complex.clone()], complex.clone()),
        (Op::from(Argsort { axis: 0, descending: false }), vec![row.clone()], f32(&[3, 2])),
        (Op::from(TopK { k: 1 }), vec![row.clone()], f32(&[2, 1])),
        (Op::from(Scan { scan: Cumulative::Max, axis: 0, reverse: false }), vec![complex.clone()], complex),
        (Op::from(Scan { scan: Cumulative::Sum, axis: 5, reverse: false }), vec![row.clone()], row.clone()),
        (Op::from(Take { axis: 2 }), vec![row.clone(), Type::new(DType::S32, &[1])], f32(&[2, 3, 1])),
        (Op::from(Take { axis: 0 }), vec![row.clone(), row.clone()], f32(&[2, 3, 3])),
        (Op::from(TakeAlongAxis { axis: 1 }), vec![row.clone(), Type::new(DType::S32, &[3, 3])], f32(&[3, 3])),
    ] {
        let tensors: Vec<Tensor> = operands.iter().map(|ty| upload(&zeros(ty))).collect();
        assert!(run(&op, &tensors, &out).is_err(), "{op:?}");
    }
    for k in [0, 4] {
        let outs = [f32(&[2, k]), Type::new(DType::S32, &[2, k])];
        let refused = all_results(&Op::from(TopK { k }), &[upload(&zeros(&row))], &outs);
        assert!(refused.is_err());
    }
    finish();
}

#[test]
fn largest_elements_and_their_places() {
    let mut rng = rng(89);
    for (dtype, shape, k) in [
        (DType::F32, &[4u64, 50][..], 7u64),
        (DType::F32, &[4, 50], 50),
        (DType::Bf16, &[1], 1),
        (DType::S64, &[2, 3, 2000], 3),
        (DType::U8, &[2, 3000], 9),
        (DType::F64, &[9000], 5),
        (DType::U8, &[2, 40_000], 100),
        (DType::F16, &[3, 2049], 512),
        (DType::F32, &[2, 2500], 513),
        (DType::F32, &[2, 2100], 2099),
        (DType::F32, &[2, 17_000], 500),
        (DType::S16, &[40_000], 10),
    ] {
        let ty = Type::new(dtype, shape);
        let mut a = operand(&ty, Range::All, 2, &mut rng);
        // Rows whose largest elements are the last.
        if k == 500 || dtype == DType::S16 {
            let sort = Op::from(Sort { axis: shape.len() - 1, descending: false });
            a = reference::evaluate_all(&sort, &[a], std::slice::from_ref(&ty)).unwrap().remove(0);
        }
        let kept: Vec<u64> = shape[..shape.len() - 1].iter().copied().chain([k]).collect();
        for places in [if k == 7 { DType::S64 } else { DType::S32 }] {
            let outs = [Type::new(dtype, &kept), Type::new(places, &kept)];
            let op = Op::from(TopK { k });
            let expected = reference::evaluate_all(&op, std::slice::from_ref(&a), &outs).unwrap();
            let got = all_results(&op, &[upload(&a)], &outs).unwrap();
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(got.view().ty(), expected.ty);
                assert_eq!(mismatch(&download(got), &[expected], Bound::Exact), None, "{dtype} {shape:?} {k}");
            }
        }
    }
    finish();
}

/// A row of each of some shape in order, and values of another, with what its sides give for them.
fn searches(dtype: DType, rows: &[u64], shape: &[u64], rng: &mut Rng, verify: impl Fn(&Op, &[Array; 2], &Type)) {
    let ty = Type::new(dtype, rows);
    let sort = Op::from(Sort { axis: rows.len() - 1, descending: false });
    for make in [|ty: &Type, rng: &mut Rng| operand(ty, Range::All, 2, rng), repeating] {
        let sorted = reference::evaluate(&sort, &[make(&ty, rng)], &ty);
        let operands = [sorted.unwrap(), make(&Type::new(dtype, shape), rng)];
        for &side in Side::ALL {
            verify(&Op::from(Searchsorted { side }), &operands, &Type::new(DType::S32, shape));
        }
    }
}

#[test]
fn values_are_searched_in_sorted_rows() {
    let mut rng = rng(91);
    for dtype in reals() {
        for (rows, shape) in
            [(&[41u64][..], &[3u64, 30][..]), (&[2, 3, 40], &[2, 3, 90]), (&[1], &[]), (&[2, 1], &[2, 1])]
        {
            searches(dtype, rows, shape, &mut rng, |op, operands, out| verify(op, operands, out, Bound::Exact));
        }
    }
    let (sorted, values) = (Type::new(DType::F32, &[4]), view(DType::F32, &mut rng));
    let sorted = Array::new(&sorted, [-0.5, 0.0, 0.5, f64::NAN].map(Value::Float));
    for out in [DType::S32, DType::S64, DType::U8].map(|dtype| Type::new(dtype, &values.1.ty.shape)) {
        let (tensors, op) = ([upload(&sorted), values.0.clone()], Op::from(Searchsorted { side: Side::Left }));
        verify_on(&op, &tensors, &[sorted.clone(), values.1.clone()], &out, Bound::Exact);
    }
    for (sorted, values, out) in [
        (Type::new(DType::F32, &[]), Type::new(DType::F32, &[3]), Type::new(DType::S32, &[3])),
        (Type::new(DType::F32, &[2, 4]), Type::new(DType::F32, &[3, 4]), Type::new(DType::S32, &[3, 4])),
        (Type::new(DType::F32, &[4]), Type::new(DType::F64, &[3]), Type::new(DType::S32, &[3])),
        (Type::new(DType::C64, &[4]), Type::new(DType::C64, &[3]), Type::new(DType::S32, &[3])),
        (Type::new(DType::F32, &[4]), Type::new(DType::F32, &[3]), Type::new(DType::F32, &[3])),
    ] {
        let operands = [&sorted, &values].map(|ty| upload(&operand(ty, Range::Ordinary, 2, &mut rng)));
        assert!(run(&Op::from(Searchsorted { side: Side::Left }), &operands, &out).is_err(), "{sorted} {values}");
    }
    finish();
}

/// Rows that take kernels that reach far, several launches, or parts of their values.
#[test]
fn values_are_searched_where_launches_reach_little() {
    let mut rng = rng(92);
    let little = Options { reach: Reach::of_bytes(2 << 10), ..crate::common::options() };
    let far = Engine::open_with(&little).unwrap();
    for dtype in [DType::F32, DType::S64, DType::U8] {
        for (rows, shape) in
            [(&[900u64][..], &[5u64, 700][..]), (&[40, 300], &[40, 7]), (&[3, 7], &[3, 1700]), (&[2, 3000], &[2, 5])]
        {
            searches(dtype, rows, shape, &mut rng, |op, operands, out| {
                let load = |a: &Array| Tensor::from_nx_bytes(&far, &a.ty, &a.to_nx_bytes()).unwrap();
                let got = eager::run(&far, op, &operands.each_ref().map(load), out, Compile::Allowed).unwrap();
                let got = Array::from_nx_bytes(out, &got.to_nx_bytes(&far, None).unwrap()).unwrap();
                assert_eq!(got, reference::evaluate(op, operands, out).unwrap(), "{op:?} {rows:?} {shape:?}");
            });
        }
    }
    crate::common::assert_valid(&far);
}
