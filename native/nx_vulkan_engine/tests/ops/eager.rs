//! Eager ops on a device, against values computed here.

use std::slice::from_ref;
use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::{Gather, IndexedAdd, IndexedPut};
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::{Binary, Op, Reduction, Unary};
use nx_vulkan_engine::{Compile, DType, Engine, Tensor, Type, eager};

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::open(None).expect("a Vulkan device"))
}

fn f32s(shape: &[u64], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    Tensor::from_nx_bytes(engine(), &Type::new(DType::F32, shape), &bytes).unwrap()
}

fn s32s(shape: &[u64], values: &[i32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    Tensor::from_nx_bytes(engine(), &Type::new(DType::S32, shape), &bytes).unwrap()
}

fn run(op: Op, operands: &[Tensor], dtype: DType, shape: &[u64]) -> Tensor {
    eager::run(engine(), &op, operands, &Type::new(dtype, shape), Compile::Allowed).unwrap()
}

fn to_f32s(t: &Tensor) -> Vec<f32> {
    assert_eq!(t.view().dtype, DType::F32);
    t.to_nx_bytes(engine(), None).unwrap().chunks(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect()
}

fn to_s32s(t: &Tensor) -> Vec<i32> {
    assert_eq!(t.view().dtype, DType::S32);
    t.to_nx_bytes(engine(), None).unwrap().chunks(4).map(|c| i32::from_ne_bytes(c.try_into().unwrap())).collect()
}

fn axes(a: &[usize]) -> Axes {
    Axes::from_slice(a)
}

fn counted(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn elementwise_of_all_layouts() {
    for n in [1usize, 3, 4, 255, 256, 1023, 4096, 100_003] {
        let a = f32s(&[n as u64], &counted(n));
        let sum = run(Op::Binary(Binary::Add), &[a.clone(), a.clone()], DType::F32, &[n as u64]);
        assert_eq!(to_f32s(&sum), (0..n).map(|i| 2.0 * i as f32).collect::<Vec<_>>(), "{n}");
    }
    let a = f32s(&[3, 5], &counted(15));
    let row = f32s(&[5], &[10., 20., 30., 40., 50.]);
    let sum = run(Op::Binary(Binary::Add), &[a.clone(), row], DType::F32, &[3, 5]);
    let expected: Vec<f32> = (0..15).map(|i| i as f32 + 10. * (i % 5 + 1) as f32).collect();
    assert_eq!(to_f32s(&sum), expected);
    let t = run(Op::Transpose { axes: axes(&[1, 0]) }, from_ref(&a), DType::F32, &[5, 3]);
    let twice = run(Op::Binary(Binary::Multiply), &[t.clone(), t.clone()], DType::F32, &[5, 3]);
    let expected: Vec<f32> = (0..15).map(|i| ((i % 3) * 5 + i / 3) as f32).map(|x| x * x).collect();
    assert_eq!(to_f32s(&twice), expected);
    let reversed = run(Op::from(Reverse { axes: axes(&[0, 1]) }), from_ref(&a), DType::F32, &[3, 5]);
    assert_eq!(to_f32s(&reversed), (0..15).rev().map(|i| i as f32).collect::<Vec<_>>());
    let flat = run(Op::Reshape, &[t], DType::F32, &[15]);
    assert_eq!(to_f32s(&flat)[..4], [0., 5., 10., 1.]);
    let e = run(Op::Unary(Unary::Exp), &[a], DType::F32, &[3, 5]);
    for (i, x) in to_f32s(&e).into_iter().enumerate() {
        let exact = (i as f64).exp();
        assert!((f64::from(x) - exact).abs() <= exact * 1.2e-7, "{i} {x} {exact}");
    }
}

#[test]
fn uniform_tensors_stay_one_element() {
    let one = run(Op::Constant(Scalar::Float(1.5)), &[], DType::F32, &[1000, 1000]);
    assert_eq!(one.buffer().size_bytes(), 4);
    let two = run(Op::Binary(Binary::Add), &[one.clone(), one.clone()], DType::F32, &[1000, 1000]);
    assert_eq!(two.buffer().size_bytes(), 4);
    assert_eq!(two.to_nx_bytes(engine(), None).unwrap().len(), 4_000_000);
    let a = f32s(&[4], &[1., 2., 3., 4.]);
    let scalar = run(Op::Constant(Scalar::Int(3)), &[], DType::S32, &[]);
    let sum = run(Op::Binary(Binary::Multiply), &[a, scalar], DType::F32, &[4]);
    assert_eq!(to_f32s(&sum), [3., 6., 9., 12.]);
}

#[test]
fn comparisons_and_select() {
    let a = f32s(&[4], &[1., f32::NAN, 3., -0.0]);
    let b = f32s(&[4], &[2., f32::NAN, 3., 0.0]);
    let less = run(Op::Binary(Binary::Less), &[a.clone(), b.clone()], DType::U8, &[4]);
    assert_eq!(less.to_nx_bytes(engine(), None).unwrap(), [1, 0, 0, 0]);
    let equal = run(Op::Binary(Binary::Equal), &[a.clone(), b.clone()], DType::U8, &[4]);
    assert_eq!(equal.to_nx_bytes(engine(), None).unwrap(), [0, 0, 1, 1]);
    let chosen = run(Op::Select, &[less, a, b], DType::F32, &[4]);
    assert_eq!(to_f32s(&chosen)[0], 1.0);
    assert_eq!(to_f32s(&chosen)[2], 3.0);
}

#[test]
fn indices_and_scalars() {
    assert_eq!(to_s32s(&run(Op::Iota { axis: None }, &[], DType::S32, &[2, 3])), [0, 1, 2, 3, 4, 5]);
    assert_eq!(to_s32s(&run(Op::Iota { axis: Some(0) }, &[], DType::S32, &[2, 3])), [0, 0, 0, 1, 1, 1]);
    assert_eq!(to_f32s(&run(Op::Eye, &[], DType::F32, &[2, 3])), [1., 0., 0., 0., 1., 0.]);
}

#[test]
fn reductions_over_any_axes() {
    let shape = [7u64, 33, 5];
    let n: usize = 7 * 33 * 5;
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 101) as f32 - 50.0).collect();
    let a = f32s(&shape, &values);
    for reduced in [&[0usize][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]] {
        let kept: Vec<usize> = (0..3).filter(|x| !reduced.contains(x)).collect();
        let out_shape: Vec<u64> = kept.iter().map(|&x| shape[x]).collect();
        let outs: usize = out_shape.iter().product::<u64>() as usize;
        let mut sums = vec![0f64; outs];
        let mut maxs = vec![f64::NEG_INFINITY; outs];
        for (i, &v) in values.iter().enumerate() {
            let index = [i / 165, i / 5 % 33, i % 5];
            let o = kept.iter().fold(0, |o, &axis| o * shape[axis] as usize + index[axis]);
            sums[o] += f64::from(v);
            maxs[o] = maxs[o].max(f64::from(v));
        }
        let reduce = |reduction| Op::Reduce { reduction, axes: axes(reduced), tie_high: false };
        let sum = run(reduce(Reduction::Sum), from_ref(&a), DType::F32, &out_shape);
        assert_eq!(to_f32s(&sum).iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), sums, "{reduced:?}");
        let max = run(reduce(Reduction::Max), from_ref(&a), DType::F32, &out_shape);
        assert_eq!(to_f32s(&max).iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), maxs, "{reduced:?}");
    }
    let argmax = run(
        Op::Reduce { reduction: Reduction::ArgMax, axes: axes(&[1]), tie_high: false },
        from_ref(&a),
        DType::S32,
        &[7, 5],
    );
    for (o, &got) in to_s32s(&argmax).iter().enumerate() {
        let line: Vec<f32> = (0..33).map(|r| values[o / 5 * 165 + r * 5 + o % 5]).collect();
        let best = (0..33).fold(0, |best, r| if line[r] > line[best] { r } else { best });
        assert_eq!(got, best as i32);
    }
    let nan = f32s(&[3], &[1., f32::NAN, 2.]);
    let max = run(Op::Reduce { reduction: Reduction::Max, axes: axes(&[0]), tie_high: false }, &[nan], DType::F32, &[]);
    assert!(to_f32s(&max)[0].is_nan());
}

#[test]
fn large_sums_keep_their_digits() {
    let n = 5_000_011usize;
    let values: Vec<f32> = (0..n).map(|i| 0.1 + (i % 7) as f32 * 1e-3).collect();
    let exact: f64 = values.iter().map(|&x| f64::from(x)).sum();
    let sum = run(
        Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0]), tie_high: false },
        &[f32s(&[n as u64], &values)],
        DType::F32,
        &[],
    );
    assert_eq!(to_f32s(&sum)[0], exact as f32);
    let rows = 1003u64;
    let columns = 4001u64;
    let values: Vec<f32> = (0..rows * columns).map(|i| (i % 977) as f32).collect();
    let a = f32s(&[rows, columns], &values);
    let sum =
        run(Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0]), tie_high: false }, &[a], DType::F32, &[columns]);
    let expected: Vec<f32> = (0..columns)
        .map(|c| (0..rows).map(|r| f64::from(values[(r * columns + c) as usize])).sum::<f64>() as f32)
        .collect();
    assert_eq!(to_f32s(&sum), expected);
}

#[test]
fn products_of_any_axes() {
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (64, 64, 64), (65, 33, 130), (1, 10, 5000), (128, 10, 64)] {
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
        let mut expected = vec![0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                expected[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
            }
        }
        let ta = f32s(&[m as u64, k as u64], &a);
        let tb = f32s(&[k as u64, n as u64], &b);
        let dot = |ca: usize, cb: usize| Op::Dot {
            contract_a: axes(&[ca]),
            batch_a: axes(&[]),
            contract_b: axes(&[cb]),
            batch_b: axes(&[]),
        };
        let out = run(dot(1, 0), &[ta.clone(), tb.clone()], DType::F32, &[m as u64, n as u64]);
        assert_eq!(to_f32s(&out), expected, "{m} {n} {k}");
        let swapped = |t: &Tensor, r: usize, c: usize| {
            run(Op::Transpose { axes: axes(&[1, 0]) }, from_ref(t), DType::F32, &[c as u64, r as u64])
        };
        let out = run(dot(0, 1), &[swapped(&ta, m, k), swapped(&tb, k, n)], DType::F32, &[m as u64, n as u64]);
        assert_eq!(to_f32s(&out), expected, "{m} {n} {k}");
    }
}

#[test]
fn moving_elements() {
    let a = f32s(&[2, 3], &counted(6));
    let padded = run(
        Op::from(Pad { config: [(1, -1, 0), (0, 2, 1)].into_iter().collect() }),
        &[a.clone(), f32s(&[], &[9.])],
        DType::F32,
        &[2, 7],
    );
    assert_eq!(to_f32s(&padded), [9., 9., 9., 9., 9., 9., 9., 0., 9., 1., 9., 2., 9., 9.]);
    let joined = run(Op::Concatenate { axis: 1 }, &[a.clone(), a.clone()], DType::F32, &[2, 6]);
    assert_eq!(to_f32s(&joined), [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
    let stacked = run(Op::Stack { axis: 1 }, &[a.clone(), a.clone()], DType::F32, &[2, 2, 3]);
    assert_eq!(to_f32s(&stacked), [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
    let put = run(
        Op::PutSlice { starts: [Some(1), None].into_iter().collect() },
        &[a.clone(), f32s(&[1, 2], &[7., 8.]), s32s(&[], &[5])],
        DType::F32,
        &[2, 3],
    );
    assert_eq!(to_f32s(&put), [0., 1., 2., 3., 7., 8.]);
    let part = run(
        Op::Slice {
            starts: [Some(0), Some(1)].into_iter().collect(),
            strides: [1, 1].into_iter().collect(),
            lengths: [2, 2].into_iter().collect(),
        },
        from_ref(&a),
        DType::F32,
        &[2, 2],
    );
    assert_eq!(to_f32s(&part), [1., 2., 4., 5.]);
    let gathered =
        run(Op::from(Gather { axes: axes(&[0]) }), &[a.clone(), s32s(&[3, 1], &[1, 0, 5])], DType::F32, &[3, 3]);
    assert_eq!(to_f32s(&gathered), [3., 4., 5., 0., 1., 2., 3., 4., 5.]);
    let added = run(
        Op::from(IndexedAdd { axes: axes(&[0, 1]) }),
        &[a.clone(), s32s(&[3, 2], &[0, 0, 1, 2, 0, 0]), f32s(&[3], &[10., 20., 30.])],
        DType::F32,
        &[2, 3],
    );
    assert_eq!(to_f32s(&added), [40., 1., 2., 3., 4., 25.]);
    let put = run(
        Op::from(IndexedPut { axes: axes(&[1]) }),
        &[a, s32s(&[3, 1], &[0, 2, 0]), f32s(&[3, 2], &[1., 2., 3., 4., 5., 6.])],
        DType::F32,
        &[2, 3],
    );
    assert_eq!(to_f32s(&put), [5., 1., 3., 6., 4., 4.]);
}

#[test]
fn casts_between_all_types_keep_small_numbers() {
    let a = f32s(&[5], &[0., 1., 2., 3., 1.]);
    for t in DType::ALL {
        if matches!(t, DType::S2) {
            continue;
        }
        let cast = run(Op::AsType, from_ref(&a), t, &[5]);
        let back = run(Op::AsType, from_ref(&cast), DType::F32, &[5]);
        assert_eq!(to_f32s(&back), [0., 1., 2., 3., 1.], "{t}");
        let bytes = cast.to_nx_bytes(engine(), None).unwrap();
        let again = Tensor::from_nx_bytes(engine(), &Type::new(t, &[5]), &bytes).unwrap();
        assert_eq!(to_f32s(&run(Op::AsType, &[again], DType::F32, &[5])), [0., 1., 2., 3., 1.], "{t}");
    }
}

#[test]
fn transposes_of_all_element_sizes() {
    for (shape, order) in [
        (&[37u64, 70][..], &[1usize, 0][..]),
        (&[3, 40, 65], &[2, 1, 0]),
        (&[2, 33, 3, 50], &[3, 1, 2, 0]),
        (&[5, 64, 64], &[0, 2, 1]),
        // Whole blocks of eight by eight, one, two and four of them beside each other.
        (&[24, 200], &[1, 0]),
        (&[3, 48, 72], &[0, 2, 1]),
        (&[16, 5, 2, 64], &[3, 1, 2, 0]),
        (&[32, 7, 24], &[1, 2, 0]),
    ] {
        let n: u64 = shape.iter().product();
        let out_shape: Vec<u64> = order.iter().map(|&a| shape[a]).collect();
        let base = run(Op::Iota { axis: None }, &[], DType::S32, shape);
        let strides = nx_vulkan_engine::shape::contiguous_strides(shape);
        let expected: Vec<i32> = (0..n)
            .map(|linear| {
                let (mut rest, mut at) = (linear, 0);
                for axis in (0..order.len()).rev() {
                    at += (rest % out_shape[axis]) as i64 * strides[order[axis]];
                    rest /= out_shape[axis];
                }
                at as i32
            })
            .collect();
        for dtype in [DType::S32, DType::S16, DType::F64, DType::C128] {
            let typed = run(Op::AsType, from_ref(&base), dtype, shape);
            let turned = run(Op::Transpose { axes: axes(order) }, &[typed], dtype, &out_shape);
            let flat = run(Op::Reshape, &[turned], dtype, &[n]);
            let back = run(Op::AsType, &[flat], DType::S32, &[n]);
            assert_eq!(to_s32s(&back), expected, "{dtype} {shape:?} {order:?}");
        }
    }
}

#[test]
fn reversed_operands_of_every_kernel() {
    let (m, k) = (20usize, 24usize);
    let a = f32s(&[m as u64, k as u64], &counted(m * k));
    let flip =
        |axes_: &[usize]| run(Op::from(Reverse { axes: axes(axes_) }), from_ref(&a), DType::F32, &[m as u64, k as u64]);
    let at = |r: usize, c: usize| (r * k + c) as f32;
    let sum = |axis| Op::Reduce { reduction: Reduction::Sum, axes: axes(&[axis]), tie_high: false };
    let rows = run(sum(1), &[flip(&[0])], DType::F32, &[m as u64]);
    assert_eq!(to_f32s(&rows), (0..m).map(|r| (0..k).map(|c| at(m - 1 - r, c)).sum()).collect::<Vec<f32>>());
    let columns = run(sum(0), &[flip(&[0, 1])], DType::F32, &[k as u64]);
    assert_eq!(to_f32s(&columns), (0..k).map(|c| (0..m).map(|r| at(r, k - 1 - c)).sum()).collect::<Vec<f32>>());
    let turned = run(Op::Transpose { axes: axes(&[1, 0]) }, &[flip(&[1])], DType::F32, &[k as u64, m as u64]);
    let flat = run(Op::Reshape, &[turned], DType::F32, &[(m * k) as u64]);
    let expected: Vec<f32> = (0..m * k).map(|i| at(i % m, k - 1 - i / m)).collect();
    assert_eq!(to_f32s(&flat), expected);
    let gathered =
        run(Op::from(Gather { axes: axes(&[0]) }), &[flip(&[0, 1]), s32s(&[1, 1], &[3])], DType::F32, &[1, k as u64]);
    assert_eq!(to_f32s(&gathered), (0..k).map(|c| at(m - 4, k - 1 - c)).collect::<Vec<_>>());
    let dot = Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[1]), batch_b: axes(&[]) };
    let product = run(dot, &[flip(&[1]), a.clone()], DType::F32, &[m as u64, m as u64]);
    let expected: Vec<f32> = (0..m * m)
        .map(|i| (0..k).map(|l| f64::from(at(i / m, k - 1 - l)) * f64::from(at(i % m, l))).sum::<f64>() as f32)
        .collect();
    for (got, want) in to_f32s(&product).into_iter().zip(expected) {
        assert!((got - want).abs() <= want.abs() * 1e-6, "{got} {want}");
    }
}

/// 5e9 elements: more bytes and more positions than 32 bits count. Needs 16 GB of device memory.
#[test]
#[ignore = "needs 16 GB of device memory"]
fn tensors_above_4_gib() {
    let n = 5_000_000_011u64;
    let rows = 1_000_000_000u64;
    let ones = run(Op::Constant(Scalar::Int(1)), &[], DType::U8, &[1]);
    // 5 x 10^9 counts along the short axis: every element differs from its neighbours.
    let counts = run(Op::Iota { axis: Some(0) }, &[], DType::U8, &[5]);
    let spread = run(Op::Broadcast { axes: axes(&[1]) }, &[counts], DType::U8, &[rows, 5]);
    let one = run(Op::Reshape, from_ref(&ones), DType::U8, &[]);
    let bumped = run(Op::Binary(Binary::Add), &[spread, one.clone()], DType::U8, &[rows, 5]);
    let flat = run(Op::Reshape, from_ref(&bumped), DType::U8, &[rows * 5]);
    let tail = run(
        Op::Slice {
            starts: [Some(rows as i64 * 5 - 6)].into_iter().collect(),
            strides: [1].into_iter().collect(),
            lengths: [6].into_iter().collect(),
        },
        from_ref(&flat),
        DType::U8,
        &[6],
    );
    assert_eq!(tail.to_nx_bytes(engine(), None).unwrap(), [5, 1, 2, 3, 4, 5]);
    let sum = run(
        Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0]), tie_high: false },
        from_ref(&flat),
        DType::U64,
        &[],
    );
    assert_eq!(sum.to_nx_bytes(engine(), None).unwrap(), (rows * 15).to_ne_bytes());
    // An odd number of bytes above 4 GiB, written and read at its end.
    let filled = run(
        Op::from(Pad { config: [(0, (n - rows * 5) as i64, 0)].into_iter().collect() }),
        &[flat, one],
        DType::U8,
        &[n],
    );
    let last = run(
        Op::Slice {
            starts: [Some(n as i64 - 12)].into_iter().collect(),
            strides: [1].into_iter().collect(),
            lengths: [12].into_iter().collect(),
        },
        &[filled],
        DType::U8,
        &[12],
    );
    assert_eq!(last.to_nx_bytes(engine(), None).unwrap(), [5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    // The transpose of a matrix of 6 GB of f32.
    let (m, k) = (30_011u64, 50_021u64);
    let rows = run(Op::Iota { axis: Some(0) }, &[], DType::S32, &[m, 1]);
    let width = run(Op::Constant(Scalar::Int(k.into())), &[], DType::S32, &[]);
    let starts = run(Op::Binary(Binary::Multiply), &[rows, width], DType::S32, &[m, 1]);
    let columns = run(Op::Iota { axis: Some(0) }, &[], DType::S32, &[k]);
    let index = run(Op::Binary(Binary::Add), &[starts, columns], DType::S32, &[m, k]);
    let end = |t: &Tensor, rows: u64, columns: u64| {
        let op = Op::Slice {
            starts: [Some(rows as i64 - 2), Some(columns as i64 - 2)].into_iter().collect(),
            strides: [1, 1].into_iter().collect(),
            lengths: [2, 2].into_iter().collect(),
        };
        to_s32s(&run(op, from_ref(t), DType::S32, &[2, 2]))
    };
    let at = |row: u64, column: u64| (row * k + column) as i32;
    assert_eq!(end(&index, m, k), [at(m - 2, k - 2), at(m - 2, k - 1), at(m - 1, k - 2), at(m - 1, k - 1)]);
    let turned = run(Op::Transpose { axes: axes(&[1, 0]) }, from_ref(&index), DType::S32, &[k, m]);
    let zero = run(Op::Constant(Scalar::Int(0)), &[], DType::S32, &[]);
    let copied = run(Op::Binary(Binary::Add), &[turned, zero], DType::S32, &[k, m]);
    let corner = end(&copied, k, m);
    let expected = [at(m - 2, k - 2), at(m - 1, k - 2), at(m - 2, k - 1), at(m - 1, k - 1)];
    assert_eq!(corner, expected);
}
