//! Loops that make a row in each iteration: those whose iterations are side by side afterwards, with the same bits, and
//! those that stay because an iteration reads what another one made.

use nx_vulkan_ir::program::attribute::{Axes, Scalar};
use nx_vulkan_ir::program::ops::index::{Gather, IndexedAdd, IndexedPut, TakeAlongAxis};
use nx_vulkan_ir::program::ops::moved::{Pad, Reverse};
use nx_vulkan_ir::program::ops::order::{Argsort, Cumulative, Scan, Searchsorted, Side, Sort, TopK};
use nx_vulkan_ir::program::ops::transform::Fft;
use nx_vulkan_ir::program::ops::window::Window;
use nx_vulkan_ir::program::passes::{Saving, Target, optimize};
use nx_vulkan_ir::program::{Binary, Builder, Fourier, Linalg, Op, Operand, Program, Reduction, Unary, Windows};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};
use smallvec::SmallVec;

use crate::passes::target;

/// What an iteration makes of its number, a row of the state, and three tensors that stay as they are.
type Row = fn(&Builder, Operand, Operand, &[Operand]) -> Operand;

const ROWS: u64 = 29;

/// A matrix, indices beyond its ends too, and as many numbers as it has columns.
fn kept(b: &Builder) -> Vec<Operand> {
    vec![b.input(DType::F32, &[ROWS, 5]), b.input(DType::S32, &[ROWS]), b.input(DType::F32, &[5])]
}

/// Row `i` of a tensor.
fn row(b: &Builder, whole: Operand, i: Operand) -> Operand {
    b.take(whole, i, 0)
}

/// The tensor with another row `i`.
fn put(b: &Builder, whole: Operand, row: Operand, i: Operand) -> Operand {
    let ty = b.ty(whole);
    let shape: Vec<u64> = std::iter::once(1).chain(ty.shape[1..].iter().copied()).collect();
    let starts = std::iter::once(None).chain(ty.shape[1..].iter().map(|_| Some(0))).collect();
    b.push(Op::PutSlice { starts }, &[whole, b.reshape(row, &shape), i], &ty)
}

/// A loop over the rows of an f32 matrix of 4 columns.
fn over_rows(make: Row) -> Program {
    let b = Builder::new();
    let state = b.input(DType::F32, &[ROWS, 4]);
    let kept = kept(&b);
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let last = b.while_loop(
        &[zero, state],
        &kept,
        |b, v| b.less(v[0], ROWS as f64),
        |b, v| {
            let made = make(b, v[0], row(b, v[1], v[0]), &v[2..]);
            vec![b.add(v[0], 1.0), put(b, v[1], made, v[0])]
        },
    );
    b.finish(&last).unwrap()
}

fn count_loops(program: &Program) -> usize {
    program.instructions.iter().map(|i| usize::from(matches!(i.op, Op::While(_)))).sum()
}

/// Numbers with a NaN, infinities and zeros among them.
fn inputs(program: &Program, seed: u64) -> Vec<Array> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut value = move |ty: &Type| match ty.dtype.is_integer() {
        true => Value::Int(i128::from(next() % 17) - 2).cast(ty.dtype),
        false => match next() % 23 {
            0 => Value::Float(f64::NAN),
            1 => Value::Float(f64::INFINITY),
            2 => Value::Float(-0.0),
            _ => Value::Float((next() % 4001) as f64 / 500.0 - 4.0).cast(ty.dtype),
        },
    };
    program.inputs.iter().map(|ty| Array::new(ty, (0..ty.elements()).map(|_| value(ty)).collect::<Vec<_>>())).collect()
}

/// Bits, with one NaN.
fn bits(arrays: &[Array]) -> Vec<Vec<u64>> {
    let of = |value: &Value| match value {
        Value::Int(i) => *i as u64,
        value if value.real().is_nan() => u64::MAX,
        value => value.real().to_bits(),
    };
    arrays.iter().map(|array| array.values.iter().map(of).collect()).collect()
}

fn with_bytes(mapped_bytes: u64) -> Target {
    Target { mapped_bytes, ..target(Saving::Nothing) }
}

/// That iterations are side by side, all of them or in parts, with the same bits. `inner` loops are left.
fn check(program: &Program, inner: usize) {
    for bytes in [1 << 20, 300, 170] {
        let optimized = optimize(program.clone(), &with_bytes(bytes)).unwrap();
        if bytes == 1 << 20 {
            assert_eq!(count_loops(&optimized), inner, "{program}{optimized}");
        }
        for seed in 1..4 {
            let inputs = inputs(program, seed);
            let [got, want] = [&optimized, program].map(|program| bits(&reference::run(program, &inputs).unwrap()));
            assert_eq!(got, want, "{program}{optimized}");
        }
    }
}

fn stays(program: &Program) {
    let optimized = optimize(program.clone(), &with_bytes(1 << 20)).unwrap();
    let loops = |program: &Program| count_loops(program);
    assert!(loops(&optimized) > 0, "{program}{optimized}");
    let inputs = inputs(program, 7);
    let [got, want] = [&optimized, program].map(|program| bits(&reference::run(program, &inputs).unwrap()));
    assert_eq!(got, want, "{program}{optimized}");
}

fn ty(dtype: DType, shape: &[u64]) -> Type {
    Type::new(dtype, shape)
}

/// A row of as many elements as the state's rows have.
fn four(b: &Builder, row: Operand) -> Operand {
    let count = b.ty(row).elements();
    let flat = b.reshape(row, &[count]);
    match count {
        0..4 => b.concatenate(&[flat, b.broadcast(b.number(DType::F32, 2.0), &[4 - count])], 0),
        _ => b.slice(flat, &[0], &[4]),
    }
}

/// A list as ops have them.
fn list<T, const N: usize>(items: [T; N]) -> SmallVec<[T; 6]> {
    items.into_iter().collect()
}

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

/// The iteration's own index among those that are kept.
fn own_index(b: &Builder, i: Operand, kept: &[Operand]) -> Operand {
    row(b, kept[1], i)
}

#[test]
fn ops_of_rows_are_ops_of_all_rows() {
    let cases: &[Row] = &[
        |b, i, row, _| b.add(b.multiply(row, row), b.as_type(i, DType::F32)),
        |b, _, row, kept| b.add(row, b.slice(kept[2], &[1], &[4])),
        |b, _, row, _| b.select(b.greater(row, 0.5), row, b.reduce_max(row, &[0])),
        |b, _, row, _| b.broadcast(b.sum(row, &[0]), &[4]),
        |b, _, row, _| {
            let square = b.transpose(b.reshape(row, &[2, 2]), &[1, 0]);
            four(b, b.as_type(b.reduce(Reduction::ArgMin, square, &[1], true), DType::F32))
        },
        |b, _, row, _| {
            let op = Op::Broadcast { axes: axes(&[1]) };
            b.sum(b.push(op, &[row], &ty(DType::F32, &[3, 4])), &[0])
        },
        // Slices that all rows have, and those of their own.
        |b, _, row, _| b.concatenate(&[b.slice(row, &[2], &[2]), b.slice(row, &[0], &[2])], 0),
        |b, i, _, kept| {
            let (starts, lengths) = (list([None, Some(0)]), list([2, 2]));
            let op = Op::Slice { starts, strides: list([1, 1]), lengths };
            b.reshape(b.push(op, &[kept[0], own_index(b, i, kept)], &ty(DType::F32, &[2, 2])), &[4])
        },
        |b, i, row, kept| {
            let op = Op::Slice { starts: list([None]), strides: list([2]), lengths: list([3]) };
            four(b, b.push(op, &[row, own_index(b, i, kept)], &ty(DType::F32, &[2])))
        },
        |b, i, _, kept| {
            let own = own_index(b, i, kept);
            let other = b.multiply(own, own);
            let op = Op::Slice { starts: list([None, None]), strides: list([1, 1]), lengths: list([1, 4]) };
            b.reshape(b.push(op, &[kept[0], own, other], &ty(DType::F32, &[1, 4])), &[4])
        },
        |b, i, row, kept| {
            let part = b.slice(kept[2], &[1], &[2]);
            b.push(Op::PutSlice { starts: list([None]) }, &[row, part, own_index(b, i, kept)], &ty(DType::F32, &[4]))
        },
        |b, i, row, kept| {
            let square = b.reshape(row, &[2, 2]);
            let part = b.reshape(b.slice(row, &[2], &[2]), &[2, 1]);
            let op = Op::PutSlice { starts: list([Some(0), None]) };
            b.reshape(b.push(op, &[square, part, own_index(b, i, kept)], &ty(DType::F32, &[2, 2])), &[4])
        },
        |b, _, row, kept| {
            let part = b.slice(row, &[2], &[2]);
            let op = Op::PutSlice { starts: list([Some(1)]) };
            b.push(op, &[b.slice(kept[2], &[0], &[4]), part], &ty(DType::F32, &[4]))
        },
        |b, _, row, _| {
            b.reshape(
                b.push(
                    Op::Stack { axis: 1 },
                    &[b.slice(row, &[0], &[2]), b.slice(row, &[2], &[2])],
                    &ty(DType::F32, &[2, 2]),
                ),
                &[4],
            )
        },
        |b, _, row, _| b.push(Op::from(Reverse { axes: axes(&[0]) }), &[row], &ty(DType::F32, &[4])),
        |b, _, row, _| {
            let op = Op::from(Pad { config: list([(1, -1, 0)]) });
            b.push(op, &[row, b.number(DType::F32, 3.0)], &ty(DType::F32, &[4]))
        },
        |b, _, row, _| b.push(Op::from(Sort { axis: 0, descending: true }), &[row], &ty(DType::F32, &[4])),
        |b, _, row, _| {
            let order = b.push(Op::from(Argsort { axis: 0, descending: false }), &[row], &ty(DType::S32, &[4]));
            b.add(b.take(row, order, 0), b.as_type(order, DType::F32))
        },
        |b, _, row, _| {
            let op = Op::from(Scan { scan: Cumulative::Sum, axis: 0, reverse: true });
            b.push(op, &[row], &ty(DType::F32, &[4]))
        },
        |b, _, row, _| {
            let top = b.push_all(Op::from(TopK { k: 2 }), &[row], &[ty(DType::F32, &[2]), ty(DType::S32, &[2])]);
            b.concatenate(&[top[0], b.as_type(top[1], DType::F32)], 0)
        },
        |b, _, row, kept| {
            let sorted = b.push(Op::from(Sort { axis: 0, descending: false }), &[kept[2]], &ty(DType::F32, &[5]));
            let op = || Op::from(Searchsorted { side: Side::Right });
            let common = b.push(op(), &[sorted, row], &ty(DType::S32, &[4]));
            let own = b.push(Op::from(Sort { axis: 0, descending: false }), &[row], &ty(DType::F32, &[4]));
            let own = b.push(op(), &[own, b.slice(kept[2], &[0], &[4])], &ty(DType::S32, &[4]));
            b.as_type(b.add(common, own), DType::F32)
        },
        // Products.
        |b, _, row, kept| b.slice(b.dot(row, b.slice(kept[0], &[0, 0], &[4, 5])), &[1], &[4]),
        |b, _, row, kept| b.slice(b.dot(b.slice(kept[0], &[0, 1], &[ROWS, 4]), row), &[3], &[4]),
        |b, _, row, kept| {
            let square = b.reshape(row, &[2, 2]);
            let other = b.slice(kept[0], &[2, 1], &[2, 2]);
            b.reshape(b.add(b.dot(square, other), b.dot_axes([other, square], [&[0], &[1]], [&[], &[]])), &[4])
        },
        |b, _, row, kept| {
            let [left, right] = [b.reshape(row, &[2, 2]), b.slice(kept[0], &[2, 1], &[2, 2])];
            let own = b.dot(left, left);
            let batched = b.dot_axes([left, right], [&[1], &[0]], [&[0], &[1]]);
            b.reshape(b.add(own, b.broadcast(b.reshape(batched, &[2, 1]), &[2, 2])), &[4])
        },
        // Factorizations, windows and transforms.
        |b, _, row, _| {
            let [half, other] = [b.slice(row, &[0], &[2]), b.slice(row, &[2], &[2])];
            let square = b.dot_axes([b.reshape(half, &[2, 1]), b.reshape(half, &[2, 1])], [&[1], &[1]], [&[], &[]]);
            let matrix = b.add(square, b.multiply(b.eye(DType::F32, &[2, 2]), b.sum(b.multiply(other, other), &[0])));
            b.reshape(b.push(Op::from(Linalg::Cholesky), &[matrix], &ty(DType::F32, &[2, 2])), &[4])
        },
        |b, _, row, _| {
            let windows =
                Windows { sizes: list([2]), padding: list([(1, 0)]), strides: list([1]), dilations: list([1]) };
            b.push(Op::from(Window { reduction: Reduction::Max, windows }), &[row], &ty(DType::F32, &[4]))
        },
        |b, _, row, _| {
            let fft = Fft { kind: Fourier::Fft, axis: 0, length: 4, eps: Scalar::Float(0.0) };
            let both = b.push(Op::from(fft), &[b.as_type(row, DType::C64)], &ty(DType::C64, &[4]));
            b.add(b.unary(Unary::Real, both), b.unary(Unary::Imag, both))
        },
        // Indices.
        |b, i, _, kept| four(b, b.take(kept[0], own_index(b, i, kept), 0)),
        |b, i, _, kept| four(b, b.take(kept[0], own_index(b, i, kept), 1)),
        |b, i, row, kept| b.broadcast(b.take(row, own_index(b, i, kept), 0), &[4]),
        |b, i, row, kept| {
            let numbers = b.add(b.iota(DType::S64, &[2, 2], None), b.as_type(own_index(b, i, kept), DType::S64));
            let both = b.take(b.reshape(row, &[2, 2]), numbers, 1);
            b.reshape(b.slice(both, &[0, 0, 0], &[1, 2, 2]), &[4])
        },
        |b, i, row, kept| {
            let numbers = b.add(b.iota(DType::S32, &[4], None), own_index(b, i, kept));
            b.push(Op::from(TakeAlongAxis { axis: 0 }), &[row, numbers], &ty(DType::F32, &[4]))
        },
        |b, i, row, kept| {
            let vectors = b.add(b.reshape(b.iota(DType::S32, &[4], None), &[2, 2]), own_index(b, i, kept));
            let op = || Op::from(Gather { axes: axes(&[0, 1]) });
            let common = b.push(op(), &[kept[0], vectors], &ty(DType::F32, &[2]));
            let own = b.push(op(), &[b.reshape(row, &[2, 2]), vectors], &ty(DType::F32, &[2]));
            b.concatenate(&[common, own], 0)
        },
        |b, i, row, kept| {
            let vectors = b.reshape(b.subtract(b.iota(DType::S32, &[3], None), own_index(b, i, kept)), &[3, 1]);
            let updates = b.slice(kept[2], &[0], &[3]);
            b.push(Op::from(IndexedAdd { axes: axes(&[0]) }), &[row, vectors, updates], &ty(DType::F32, &[4]))
        },
        |b, i, row, kept| {
            let vector = b.add(b.iota(DType::S32, &[1, 2], None), own_index(b, i, kept));
            let square = b.reshape(row, &[2, 2]);
            let update = b.slice(row, &[1], &[1]);
            let op = Op::from(IndexedPut { axes: axes(&[1, 0]) });
            b.reshape(b.push(op, &[square, vector, update], &ty(DType::F32, &[2, 2])), &[4])
        },
        |b, i, _, kept| {
            let narrow = b.as_type(own_index(b, i, kept), DType::U8);
            let op = Op::from(IndexedPut { axes: axes(&[0]) });
            let zeros = b.broadcast(b.number(DType::F32, 0.0), &[300]);
            let one = b.broadcast(b.number(DType::F32, 1.0), &[1]);
            let out = ty(DType::F32, &[300]);
            four(b, b.push(op, &[zeros, b.reshape(narrow, &[1, 1]), one], &out))
        },
    ];
    for &case in cases {
        check(&over_rows(case), 0);
    }
}

/// A matrix with another diagonal: nothing is put where its elements are computed, as for t-SNE's distances.
#[test]
fn diagonals_of_what_is_computed_are_chosen() {
    let with_diagonal = |dtype: DType, shape: [u64; 2], computed: bool, offset: i128| {
        let b = Builder::new();
        let x = b.input(dtype, &shape);
        let count = shape[0].min(shape[1]);
        let updates = b.input(dtype, &[count]);
        let target = if computed { b.multiply(x, x) } else { x };
        let rows = b.iota(DType::S32, &[count, 1], Some(0));
        let columns = b.add(rows, b.constant(DType::S32, Scalar::Int(offset)));
        let indices = b.concatenate(&[rows, columns], 1);
        let op = Op::from(IndexedPut { axes: axes(&[0, 1]) });
        let put = b.push(op, &[target, indices, updates], &ty(dtype, &shape));
        let negated = b.negate(put);
        b.finish(&[negated]).unwrap()
    };
    let is_put = |program: &Program| program.to_string().contains("indexed_put");
    for dtype in [DType::F32, DType::S32, DType::F16] {
        for shape in [[7, 7], [5, 9], [1, 6], [9, 5]] {
            for (computed, offset) in [(true, 0), (true, 2), (false, 0), (true, -1)] {
                let program = with_diagonal(dtype, shape, computed, offset);
                let optimized = optimize(program.clone(), &with_bytes(0)).unwrap();
                // Narrow floats keep which NaN they are; what lies in memory is not read for a few of its elements.
                let is_chosen = computed && dtype != DType::F16 && shape[0] <= shape[1];
                assert!(!is_chosen || !is_put(&optimized), "{optimized}");
                assert!(computed || is_put(&optimized), "{optimized}");
                for seed in 1..3 {
                    let inputs = inputs(&program, seed);
                    let [got, want] = [&optimized, &program].map(|p| bits(&reference::run(p, &inputs).unwrap()));
                    assert_eq!(got, want, "{program}{optimized}");
                }
            }
        }
    }
}

#[test]
fn rows_that_take_too_much_together_go_in_parts() {
    let program = over_rows(|b, i, row, kept| b.multiply(b.exp(row), b.as_type(own_index(b, i, kept), DType::F32)));
    let trips = |bytes| {
        let optimized = optimize(program.clone(), &with_bytes(bytes)).unwrap();
        let loops = optimized.instructions.iter().filter_map(|i| match &i.op {
            Op::While(op) => op.known_trips(),
            _ => None,
        });
        loops.collect::<Vec<_>>()
    };
    // Rows of 16 bytes: all, 15 and 14, three times 8 and 5, one by one.
    assert_eq!([16 * 29, 16 * 15, 16 * 8, 16 * 7].map(trips), [vec![], vec![], vec![3], vec![29]]);
}

#[test]
fn loops_within_rows_end_when_all_have() {
    // As t-SNE looks for its widths: halves an interval until a sum is near a number.
    let search: Row = |b, _, row, kept| {
        let start = [b.number(DType::F32, 0.0), b.number(DType::F32, 8.0), b.constant(DType::S32, Scalar::Int(0))];
        let found = b.while_loop(
            &start,
            &[row, kept[2]],
            |b, v| {
                let near = b.greater(b.subtract(v[1], v[0]), 0.1);
                b.logical_and(near, b.less(v[2], 20.0))
            },
            |b, v| {
                let middle = b.divide(b.add(v[0], v[1]), 2.0);
                let sum = b.sum(b.tanh(b.multiply(v[3], middle)), &[0]);
                let above = b.greater(sum, 1.0);
                let next = b.cond(above, &[v[0], v[1], middle], |_, v| vec![v[0], v[2]], |_, v| vec![v[2], v[1]]);
                vec![next[0], next[1], b.add(v[2], 1.0)]
            },
        );
        let count = b.as_type(found[2], DType::F32);
        b.concatenate(&[found[0], found[1], count, count].map(|x| b.reshape(x, &[1])), 0)
    };
    check(&over_rows(search), 1);
    // A number of iterations that all rows have, and one of each row's own.
    let counts: Row = |b, i, row, kept| {
        let limit = own_index(b, i, kept);
        let zero = b.constant(DType::S32, Scalar::Int(0));
        let own = b.while_loop(
            &[zero, row],
            &[limit],
            |b, v| b.less(v[0], v[2]),
            |b, v| {
                let inner = b.while_loop(
                    &[b.constant(DType::S32, Scalar::Int(0)), v[1]],
                    &[v[0]],
                    |b, w| b.less(w[0], w[2]),
                    |b, w| vec![b.add(w[0], 2.0), b.add(w[1], 0.25)],
                );
                vec![b.add(v[0], 1.0), inner[1]]
            },
        );
        b.multiply(own[1], b.as_type(own[0], DType::F32))
    };
    check(&over_rows(counts), 1);
}

#[test]
fn branches_that_rows_do_not_take_end_too() {
    // The loop of the branch would never end for rows that don't take it.
    let halves: Row = |b, i, row, kept| {
        let own = own_index(b, i, kept);
        b.cond(
            b.greater(own, 0.0),
            &[row, own],
            |b, v| {
                let zero = b.constant(DType::S32, Scalar::Int(0));
                let last = b.while_loop(
                    &[zero, v[0]],
                    &[v[1]],
                    |b, w| b.not_equal(w[0], w[2]),
                    |b, w| vec![b.add(w[0], 1.0), b.multiply(w[1], 0.5)],
                );
                vec![last[1]]
            },
            |b, v| vec![b.negate(v[0])],
        )[0]
    };
    check(&over_rows(halves), 1);
    // All rows take the same branch.
    let common: Row = |b, i, row, kept| {
        let first = b.reshape(b.slice(kept[1], &[0], &[1]), &[]);
        let both = b.cond(
            b.greater(first, 3.0),
            &[row, i, kept[2]],
            |b, v| vec![b.add(v[0], b.as_type(v[1], DType::F32)), b.at(v[2], 0)],
            |b, v| vec![b.slice(v[2], &[0], &[4]), b.at(v[2], 1)],
        );
        b.add(both[0], both[1])
    };
    check(&over_rows(common), 0);
}

/// What rows that have ended, or take the other branch, would put is put nowhere: nothing chooses among all elements.
#[test]
fn what_some_rows_put_is_written_in_place() {
    let visits: Row = |b, i, _, kept| {
        let place = own_index(b, i, kept);
        let seen = b.broadcast(b.number(DType::F32, 0.0), &[9]);
        let zero = b.constant(DType::S32, Scalar::Int(0));
        let last = b.while_loop(
            &[zero, seen],
            &[place, kept[2]],
            |b, v| b.less(v[0], b.binary(Binary::Remainder, b.multiply(v[2], v[2]), 7.0)),
            |b, v| {
                let put = |b: &Builder, whole: Operand, at: Operand, value: f64| {
                    let op = Op::from(IndexedPut { axes: axes(&[0]) });
                    let value = b.broadcast(b.number(DType::F32, value), &[1]);
                    b.push(op, &[whole, b.reshape(at, &[1, 1]), value], &ty(DType::F32, &[9]))
                };
                let at = b.add(v[0], v[2]);
                let near = b.greater(b.take(v[1], at, 0), 0.5);
                let one = b.cond(near, &[v[1], v[0]], |b, w| vec![put(b, w[0], w[1], 2.0)], |_, w| vec![w[0]])[0];
                let both = b.cond(
                    b.greater(at, 3.0),
                    &[one, at, v[0]],
                    |b, w| vec![put(b, w[0], w[1], 1.0)],
                    |b, w| vec![put(b, w[0], w[2], 3.0)],
                )[0];
                vec![b.add(v[0], 1.0), both]
            },
        );
        b.slice(last[1], &[2], &[4])
    };
    let program = over_rows(visits);
    check(&program, 1);
    let optimized = optimize(program, &Target { fusion: false, short_bytes: 0, ..with_bytes(1 << 20) }).unwrap();
    let Some(Op::While(op)) = optimized.instructions.iter().map(|i| &i.op).find(|op| matches!(op, Op::While(_))) else {
        unreachable!()
    };
    let chooses = |i: &nx_vulkan_ir::program::Instruction| i.op == Op::Select && i.outs[0].elements() == ROWS * 9;
    assert!(!op.body.instructions.iter().any(chooses), "{}", op.body);
    let puts = op.body.instructions.iter().filter(|i| i.op.name() == "indexed_put").count();
    assert_eq!(puts, 3, "{}", op.body);
}

/// As Nx writes loops over vectorized tensors: each row is taken of all states and put back, those that stay too.
#[test]
fn loops_over_vectorized_tensors_are_loops_of_all_rows() {
    let b = Builder::new();
    let (x, data) = (b.input(DType::F32, &[ROWS]), b.input(DType::F32, &[3, 2]));
    let shared = b.push(Op::Broadcast { axes: axes(&[1, 2]) }, &[data], &ty(DType::F32, &[ROWS, 3, 2]));
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let steps = b.push(Op::Broadcast { axes: axes(&[]) }, &[zero], &ty(DType::S32, &[ROWS]));
    let last = b.while_loop(
        &[zero, x, shared, steps],
        &[],
        |b, v| b.less(v[0], ROWS as f64),
        |b, v| {
            let own = [1, 2, 3].map(|k| row(b, v[k], v[0]));
            let inner = b.while_loop(
                &own,
                &[],
                |b, w| b.less(w[0], 5.0),
                |b, w| {
                    let other = b.take(b.take(w[1], w[2], 0), b.constant(DType::S32, Scalar::Int(1)), 0);
                    vec![b.add(b.add(w[0], 1.5), b.multiply(other, other)), w[1], b.add(w[2], 1.0)]
                },
            );
            let rows = [1, 2, 3].map(|k| put(b, v[k], inner[k - 1], v[0]));
            vec![b.add(v[0], 1.0), rows[0], rows[1], rows[2]]
        },
    );
    let program = b.finish(&[last[1], last[2], last[3]]).unwrap();
    let optimized = optimize(program.clone(), &with_bytes(1 << 20)).unwrap();
    assert_eq!(count_loops(&optimized), 1, "{optimized}");
    // Nothing has the shared tensor once for each row, but for what is given back.
    let is_large = |ty: &Type| ty.elements() >= ROWS * 6;
    let Op::While(inner) = &optimized.instructions.iter().find(|i| matches!(i.op, Op::While(_))).unwrap().op else {
        unreachable!()
    };
    assert!(!inner.body.inputs.iter().chain(inner.body.results()).any(is_large), "{optimized}");
    let program = {
        let ty = program.inputs.clone();
        assert_eq!(ty.len(), 2);
        program
    };
    for seed in 1..5 {
        let mut inputs = inputs(&program, seed);
        // A NaN would go on for ever.
        for value in inputs.iter_mut().flat_map(|array| &mut array.values) {
            if !value.real().is_finite() {
                *value = Value::Float(0.5);
            }
        }
        let [got, want] = [&optimized, &program].map(|program| bits(&reference::run(program, &inputs).unwrap()));
        assert_eq!(got, want);
    }
}

/// A loop over rows from one number up to another, of a state of `rows`; `next` makes the state.
fn loop_of(first: i128, end: f64, rows: u64, next: impl Fn(&Builder, &[Operand]) -> Operand) -> Program {
    let b = Builder::new();
    let (state, other) = (b.input(DType::F32, &[rows]), b.input(DType::F32, &[rows]));
    let first = b.constant(DType::S32, Scalar::Int(first));
    let last =
        b.while_loop(&[first, state], &[other], |b, v| b.less(v[0], end), |b, v| vec![b.add(v[0], 1.0), next(b, v)]);
    b.finish(&last).unwrap()
}

#[test]
fn parts_of_the_rows_leave_the_others() {
    let own = |b: &Builder, v: &[Operand]| {
        let made = b.add(row(b, v[2], v[0]), row(b, v[1], v[0]));
        put(b, v[1], b.tanh(made), v[0])
    };
    check(&loop_of(0, 20.0, 20, own), 0);
    check(&loop_of(0, 11.0, 20, own), 0);
    check(&loop_of(3, 20.0, 20, own), 0);
    check(&loop_of(5, 5.0, 20, own), 0);
    check(&loop_of(7, 5.0, 20, own), 0);
    let indexed = |b: &Builder, v: &[Operand]| {
        let made = b.exp(row(b, v[2], v[0]));
        let op = Op::from(IndexedPut { axes: axes(&[0]) });
        b.push(op, &[v[1], b.reshape(v[0], &[1, 1]), b.reshape(made, &[1])], &b.ty(v[1]))
    };
    check(&loop_of(0, 20.0, 20, indexed), 0);
    check(&loop_of(2, 19.0, 20, indexed), 0);
}

#[test]
fn iterations_that_read_each_other_stay_one_after_the_other() {
    let at = |b: &Builder, i: Operand, by: f64| b.add(i, by);
    // The row before, the first one, all of them; rows that are put elsewhere, or beyond the end.
    let before =
        |b: &Builder, v: &[Operand]| put(b, v[1], b.add(row(b, v[1], at(b, v[0], -1.0)), row(b, v[2], v[0])), v[0]);
    let first = |b: &Builder, v: &[Operand]| put(b, v[1], b.multiply(b.at(v[1], 0), row(b, v[2], v[0])), v[0]);
    let all = |b: &Builder, v: &[Operand]| put(b, v[1], b.sum(v[1], &[0]), v[0]);
    let elsewhere = |b: &Builder, v: &[Operand]| {
        let place = b.binary(Binary::Remainder, v[0], 2.0);
        put(b, v[1], row(b, v[2], v[0]), place)
    };
    let own = |b: &Builder, v: &[Operand]| put(b, v[1], row(b, v[2], v[0]), v[0]);
    let carried = |b: &Builder, v: &[Operand]| b.add(v[1], row(b, v[2], v[0]));
    let read_after = |b: &Builder, v: &[Operand]| {
        let next = put(b, v[1], row(b, v[2], v[0]), v[0]);
        b.multiply(next, 0.5)
    };
    let by_all = |b: &Builder, v: &[Operand]| {
        let place = b.as_type(b.sum(v[1], &[0]), DType::S32);
        put(b, v[1], b.add(row(b, v[2], v[0]), b.as_type(place, DType::F32)), v[0])
    };
    stays(&loop_of(1, 700.0, 700, before));
    stays(&loop_of(0, 700.0, 700, first));
    stays(&loop_of(0, 700.0, 700, all));
    stays(&loop_of(0, 700.0, 700, elsewhere));
    stays(&loop_of(0, 705.0, 700, own));
    stays(&loop_of(-2, 700.0, 700, own));
    stays(&loop_of(0, 700.0, 700, carried));
    stays(&loop_of(0, 700.0, 700, read_after));
    stays(&loop_of(0, 700.0, 700, by_all));
}

/// Two states, of which one reads rows of the other that were put before.
#[test]
fn states_that_read_rows_of_each_other_stay() {
    let b = Builder::new();
    let (x, y) = (b.input(DType::F32, &[700]), b.input(DType::F32, &[700]));
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let last = b.while_loop(
        &[zero, x, y],
        &[],
        |b, v| b.less(v[0], 700.0),
        |b, v| {
            let made = b.add(row(b, v[1], v[0]), 1.0);
            let other = b.take(v[1], b.divide_whole(v[0]), 0);
            vec![b.add(v[0], 1.0), put(b, v[1], made, v[0]), put(b, v[2], other, v[0])]
        },
    );
    stays(&b.finish(&last).unwrap());
}

trait DivideWhole {
    fn divide_whole(&self, i: Operand) -> Operand;
}

impl DivideWhole for Builder {
    /// Half of a whole number.
    fn divide_whole(&self, i: Operand) -> Operand {
        self.binary(Binary::Quotient, i, 2.0)
    }
}

/// Beyond the last row of what stays as it is, all iterations read the last one, or the last rows that there are.
#[test]
fn rows_beyond_the_end_of_a_shorter_tensor_are_its_last() {
    for (first, shorter) in [(0, 4), (0, ROWS - 1), (3, ROWS - 9), (ROWS - 9, ROWS - 12), (ROWS - 9, ROWS - 2)] {
        for is_slice in [false, true] {
            let b = Builder::new();
            let state = b.input(DType::F32, &[ROWS, 4]);
            let short = b.input(DType::F32, &[shorter, 4]);
            let start = b.constant(DType::S32, Scalar::Int(first.into()));
            let last = b.while_loop(
                &[start, state],
                &[short],
                |b, v| b.less(v[0], ROWS as f64),
                |b, v| {
                    let made = match is_slice {
                        true => {
                            let op = Op::Slice {
                                starts: list([None, Some(0)]),
                                strides: list([1, 1]),
                                lengths: list([1, 4]),
                            };
                            b.push(op, &[v[2], v[0]], &ty(DType::F32, &[1, 4]))
                        }
                        false => row(b, v[2], v[0]),
                    };
                    let made = b.unary(Unary::Exp, b.reshape(made, &[4]));
                    vec![b.add(v[0], 1.0), put(b, v[1], made, v[0])]
                },
            );
            check(&b.finish(&last).unwrap(), 0);
        }
    }
}
