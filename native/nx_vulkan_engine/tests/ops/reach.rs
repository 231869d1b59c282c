//! Tensors that one launch does not reach as a whole: with launches that reach little, and on devices with memory for
//! gigabytes.
//!
//! Every op is judged by what must hold of its results, which a device can compute itself.

mod beyond;
mod matrices;

use std::sync::Arc;

use nx_vulkan_engine::kernels::Reach;
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::index::{Gather, IndexedAdd, IndexedPut, Take, TakeAlongAxis};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::{Argsort, Cumulative, Scan, Sort, TopK};
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::ops::window::{Window, WindowScatter};
use nx_vulkan_engine::program::{Builder, Fourier, Linalg, Op, Operand, Reduction, Windows};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Options, Tensor, Type, View, eager};
use smallvec::smallvec;

use crate::common;

/// Indices of one op: more than updates that are sorted.
const INDICES: u64 = 4099;

struct On {
    engine: Arc<Engine>,
    most: u64,
}

/// Element `index` of a pattern.
fn of_index(b: &Builder, index: Operand, dtype: DType) -> Operand {
    b.as_type(b.remainder(b.multiply(index, 7.0), 251.0), dtype)
}

impl On {
    fn new(reach: Reach) -> On {
        On { engine: Engine::open_with(&Options { reach, ..common::options() }).unwrap(), most: reach.far() }
    }

    fn op(&self, op: &Op, operands: &[&Tensor], out: &Type) -> Tensor {
        let operands: Vec<Tensor> = operands.iter().map(|&t| t.clone()).collect();
        eager::run(&self.engine, op, &operands, out, Compile::Allowed).unwrap_or_else(|e| panic!("{op:?} {out}: {e}"))
    }

    /// The one result of a program.
    fn made(&self, inputs: &[&Tensor], make: impl Fn(&Builder, &[Operand]) -> Operand) -> Tensor {
        let b = Builder::new();
        let operands: Vec<Operand> = inputs.iter().map(|t| b.input(t.view().dtype, &t.view().shape)).collect();
        let out = make(&b, &operands);
        let executable = Executable::compile(&self.engine, b.finish(&[out]).unwrap()).unwrap();
        let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
        executable.run(&inputs, Compile::Allowed).unwrap().remove(0)
    }

    fn pattern(&self, dtype: DType, shape: &[u64]) -> Tensor {
        self.made(&[], |b, _| of_index(b, b.iota(DType::S64, shape, None), dtype))
    }

    /// The count of elements for which something holds.
    fn count(&self, inputs: &[&Tensor], make: impl Fn(&Builder, &[Operand]) -> Operand) -> u64 {
        let count = self.made(inputs, |b, inputs| {
            let holds = make(b, inputs);
            let axes: Vec<usize> = (0..b.ty(holds).shape.len()).collect();
            b.as_type(b.sum(b.as_type(holds, DType::S64), &axes), DType::S64)
        });
        count.to_vec::<i64>(&self.engine).unwrap()[0] as u64
    }

    fn number(&self, tensor: &Tensor) -> i64 {
        let ty = Type::new(DType::S64, &[]);
        self.op(&Op::AsType, &[tensor], &ty).to_vec::<i64>(&self.engine).unwrap()[0]
    }

    fn scalar(&self, dtype: DType, value: i64) -> Tensor {
        let number = Tensor::from_slice::<i64>(&self.engine, &[], &[value]).unwrap();
        self.op(&Op::AsType, &[&number], &Type::new(dtype, &[]))
    }

    fn indices(&self, shape: &[u64], index: impl Fn(u64) -> Vec<u64>) -> Tensor {
        let all: Vec<i64> = (0..shape[0]).flat_map(index).map(|i| i as i64).collect();
        Tensor::from_slice(&self.engine, shape, &all).unwrap()
    }

    fn seen(&self, tensor: &Tensor, shape: &[u64]) -> Tensor {
        let view = View::contiguous(tensor.view().dtype, shape);
        Tensor::new(Arc::clone(tensor.buffer()), view).unwrap()
    }

    fn indices_choose(&self, dtype: DType, n: u64) {
        let k = INDICES.min(n);
        let spread = |i: u64| if i + 1 == k { n - 1 } else { i * (n / k) };
        let x = self.pattern(dtype, &[n]);
        let places = self.indices(&[k], |i| vec![spread(i)]);
        let vectors = self.seen(&places, &[k, 1]);
        let out = Type::new(dtype, &[k]);
        for (op, indices) in [
            (Op::from(Take { axis: 0 }), &places),
            (Op::from(TakeAlongAxis { axis: 0 }), &places),
            (Op::from(Gather { axes: smallvec![0] }), &vectors),
        ] {
            let taken = self.op(&op, &[&x, indices], &out);
            let right = self.count(&[&taken, &places], |b, t| b.equal(t[0], of_index(b, t[1], dtype)));
            assert_eq!(right, k, "{op:?} of {dtype}[{n}]");
        }
        for k in [7, k] {
            let places = self.indices(&[k, 1], |i| vec![if i + 1 == k { n - 1 } else { i * (n / k) }]);
            let updates = self.made(&[], |b, _| b.broadcast(b.number(dtype, 252.0), &[k]));
            let put = self.op(
                &Op::from(IndexedPut { axes: smallvec![0] }),
                &[&x, &places, &updates],
                &Type::new(dtype, &[n]),
            );
            let changed = self.count(&[&put], |b, t| b.equal(t[0], 252.0));
            let same = self.count(&[&put, &x], |b, t| b.equal(t[0], t[1]));
            assert_eq!((changed, same), (k, n - k), "indexed_put of {dtype}[{n}]");
            let ones = self.made(&[], |b, _| b.broadcast(b.number(dtype, 1.0), &[k]));
            let added =
                self.op(&Op::from(IndexedAdd { axes: smallvec![0] }), &[&x, &places, &ones], &Type::new(dtype, &[n]));
            let changed = self.count(&[&added, &x], |b, t| b.equal(b.subtract(t[0], t[1]), 1.0));
            let same = self.count(&[&added, &x], |b, t| b.equal(t[0], t[1]));
            assert_eq!((changed, same), (k, n - k), "indexed_add of {dtype}[{n}]");
        }
        // Rows and vectors of two components.
        let (rows, columns) = (n / 8, 8);
        let y = self.seen(&x, &[rows, columns]);
        let k = 33;
        let row = |i: u64| if i + 1 == k { rows - 1 } else { i * (rows / k) };
        let places = self.indices(&[k], |i| vec![row(i)]);
        let taken = self.op(&Op::from(Take { axis: 0 }), &[&y, &places], &Type::new(dtype, &[k, columns]));
        let right = self.count(&[&taken, &places], |b, t| {
            let index = b.add(b.multiply(b.reshape(t[1], &[k, 1]), 8.0), b.iota(DType::S64, &[k, columns], Some(1)));
            b.equal(t[0], of_index(b, index, dtype))
        });
        assert_eq!(right, k * columns, "take of rows of {dtype}[{n}]");
        let vectors = self.indices(&[k, 2], |i| vec![i % 8, row(i)]);
        let taken = self.op(&Op::from(Gather { axes: smallvec![1, 0] }), &[&y, &vectors], &Type::new(dtype, &[k]));
        let right = self.count(&[&taken, &vectors], |b, t| {
            let part = |k2: u64| b.reshape(b.slice(t[1], &[0, k2], &[k, 1]), &[k]);
            b.equal(t[0], of_index(b, b.add(b.multiply(part(1), 8.0), part(0)), dtype))
        });
        assert_eq!(right, k, "gather of {dtype}[{n}]");
    }

    fn order_is_kept(&self, dtype: DType, n: u64) {
        let x = self.pattern(dtype, &[n]);
        let ty = Type::new(dtype, &[n]);
        let neighbours = |b: &Builder, t: Operand| (b.slice(t, &[0], &[n - 1]), b.slice(t, &[1], &[n - 1]));
        for descending in [false, true] {
            let sorted = self.op(&Op::from(Sort { axis: 0, descending }), &[&x], &ty);
            let ordered = self.count(&[&sorted], |b, t| {
                let (before, after) = neighbours(b, t[0]);
                if descending { b.greater_equal(before, after) } else { b.less_equal(before, after) }
            });
            assert_eq!(ordered, n - 1, "sort of {ty}");
            // Places of more elements take more memory than a GPU of 80 GB has.
            if n > 2 * self.most {
                continue;
            }
            let places = Type::new(DType::U32, &[n]);
            let places = self.op(&Op::from(Argsort { axis: 0, descending }), &[&x], &places);
            let taken = self.op(&Op::from(Take { axis: 0 }), &[&x, &places], &ty);
            assert_eq!(self.count(&[&taken, &sorted], |b, t| b.equal(t[0], t[1])), n, "argsort of {ty}");
            let kept = self.count(&[&sorted, &places], |b, t| {
                let ((before, after), (place, next)) = (neighbours(b, t[0]), neighbours(b, t[1]));
                b.logical_or(b.not_equal(before, after), b.less(place, next))
            });
            assert_eq!(kept, n - 1, "equal elements keep their order in argsort of {ty}");
            if descending {
                let k = 1000;
                let types = [Type::new(dtype, &[k]), Type::new(DType::U32, &[k])];
                let (op, x) = (Op::from(TopK { k }), std::slice::from_ref(&x));
                let top = eager::run_all(&self.engine, &op, x, &types, Compile::Allowed).unwrap();
                for (part, whole) in top.iter().zip([&sorted, &places]) {
                    let same = self.count(&[part, whole], |b, t| b.equal(t[0], b.slice(t[1], &[0], &[k])));
                    assert_eq!(same, k, "top_k of {ty}");
                }
            }
        }
        for reverse in [false, true] {
            let scan = |scan| self.op(&Op::from(Scan { scan, axis: 0, reverse }), &[&x], &ty);
            let most = scan(Cumulative::Max);
            let right = self.count(&[&most, &x], |b, t| {
                let (before, after) = neighbours(b, t[0]);
                let own = b.slice(t[1], &[u64::from(!reverse)], &[n - 1]);
                let (now, last) = if reverse { (before, after) } else { (after, before) };
                b.equal(now, b.max(last, own))
            });
            assert_eq!(right, n - 1, "cumulative_max of {ty}, reverse: {reverse}");
            if dtype.is_integer() {
                let sums = scan(Cumulative::Sum);
                let right = self.count(&[&sums, &x], |b, t| {
                    let (before, after) = neighbours(b, t[0]);
                    let own = b.slice(t[1], &[u64::from(!reverse)], &[n - 1]);
                    let (now, last) = if reverse { (before, after) } else { (after, before) };
                    b.equal(b.subtract(now, last), own)
                });
                assert_eq!(right, n - 1, "cumulative_sum of {ty}, reverse: {reverse}");
            }
        }
        let first = (0..n).find(|i| i * 7 % 251 == 250).unwrap() as i64;
        let last = (0..n).rev().find(|i| i * 7 % 251 == 0).unwrap() as i64;
        for (reduction, tie_high, expected) in [(Reduction::ArgMax, false, first), (Reduction::ArgMin, true, last)] {
            let op = Op::Reduce { reduction, axes: smallvec![0], tie_high };
            let place = self.op(&op, &[&x], &Type::new(DType::S64, &[]));
            assert_eq!(self.number(&place), expected, "{reduction:?} of {ty}");
        }
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: smallvec![0], tie_high: false };
        let whole: i64 = (0..n % 251).map(|i| (i * 7 % 251) as i64).sum::<i64>() + (n / 251) as i64 * (250 * 251 / 2);
        if dtype.is_integer() {
            let total = self.op(&sum, &[&x], &Type::new(DType::S64, &[]));
            assert_eq!(self.number(&total), whole, "sum of {ty}");
        }
    }

    fn elements_move(&self, dtype: DType, n: u64) {
        let x = self.pattern(dtype, &[n]);
        let rows = n / 8;
        let y = self.seen(&x, &[rows, 8]);
        let turned = self.op(&Op::Transpose { axes: smallvec![1, 0] }, &[&y], &Type::new(dtype, &[8, rows]));
        let flat = self.op(&Op::Reshape, &[&turned], &Type::new(dtype, &[8 * rows]));
        let right = self.count(&[&flat], |b, t| {
            let at = b.iota(DType::S64, &[8, rows], Some(1));
            let index = b.add(b.multiply(at, 8.0), b.iota(DType::S64, &[8, rows], Some(0)));
            b.equal(b.reshape(t[0], &[8, rows]), of_index(b, index, dtype))
        });
        assert_eq!(right, 8 * rows, "transpose of {dtype}[{n}]");
        let op = Op::from(Reverse { axes: smallvec![0] });
        let back = self.op(&op, &[&x], &Type::new(dtype, &[n]));
        let joined = self.op(&Op::Concatenate { axis: 0 }, &[&back, &x], &Type::new(dtype, &[2 * n]));
        let right = self.count(&[&joined], |b, t| {
            let index = b.iota(DType::S64, &[n], None);
            let turned = b.subtract((n - 1) as f64, index);
            let [low, high] = [0, n].map(|start| b.slice(t[0], &[start], &[n]));
            b.multiply(b.equal(low, of_index(b, turned, dtype)), b.equal(high, of_index(b, index, dtype)))
        });
        assert_eq!(right, n, "concatenate of {dtype}[{n}]");
        let start = self.scalar(DType::S64, n as i64 - 9);
        let starts = smallvec![None];
        let op = Op::Slice { starts, strides: smallvec![1], lengths: smallvec![9] };
        let end = self.op(&op, &[&x, &start], &Type::new(dtype, &[9]));
        let right = self.count(&[&end], |b, t| {
            let index = b.add(b.iota(DType::S64, &[9], None), (n - 9) as f64);
            b.equal(t[0], of_index(b, index, dtype))
        });
        assert_eq!(right, 9, "slice of {dtype}[{n}]");
        let ones = self.made(&[], |b, _| b.broadcast(b.number(dtype, 252.0), &[9]));
        let put = self.op(&Op::PutSlice { starts: smallvec![None] }, &[&x, &ones, &start], &Type::new(dtype, &[n]));
        let same = self.count(&[&put, &x], |b, t| b.equal(t[0], t[1]));
        let changed = self.count(&[&put], |b, t| b.equal(b.slice(t[0], &[n - 9], &[9]), 252.0));
        assert_eq!((same, changed), (n - 9, 9), "put_slice of {dtype}[{n}]");
        // Along both axes of rows, past the end.
        let [down, right] = [rows as i64, 2].map(|start| self.scalar(DType::S64, start));
        let op = Op::Slice { starts: smallvec![None, None], strides: smallvec![3, 2], lengths: smallvec![7, 5] };
        let part = self.op(&op, &[&y, &down, &right], &Type::new(dtype, &[3, 3]));
        let held = self.count(&[&part], |b, t| {
            let at = b.add(b.multiply(b.iota(DType::S64, &[3, 3], Some(0)), 24.0), ((rows - 7) * 8 + 2) as f64);
            let index = b.add(at, b.multiply(b.iota(DType::S64, &[3, 3], Some(1)), 2.0));
            b.equal(t[0], of_index(b, index, dtype))
        });
        assert_eq!(held, 9, "slice of rows of {dtype}[{n}]");
        let ones = self.made(&[], |b, _| b.broadcast(b.number(dtype, 252.0), &[7, 5]));
        let op = Op::PutSlice { starts: smallvec![None, Some(1)] };
        let put = self.op(&op, &[&y, &ones, &down], &Type::new(dtype, &[rows, 8]));
        let changed = self.count(&[&put], |b, t| b.equal(t[0], 252.0));
        let same = self.count(&[&put, &y], |b, t| b.equal(t[0], t[1]));
        assert_eq!((changed, same), (35, rows * 8 - 35), "put_slice into rows of {dtype}[{n}]");
        let windows =
            Windows { sizes: smallvec![3], padding: smallvec![(0, 0)], strides: smallvec![1], dilations: smallvec![1] };
        let op = Op::from(Window { reduction: Reduction::Max, windows });
        let most = self.op(&op, &[&x], &Type::new(dtype, &[n - 2]));
        let right = self.count(&[&most, &x], |b, t| {
            let [one, two, three] = [0, 1, 2].map(|start| b.slice(t[1], &[start], &[n - 2]));
            b.equal(t[0], b.max(b.max(one, two), three))
        });
        assert_eq!(right, n - 2, "window_max of {dtype}[{n}]");
    }

    /// Extremes of windows of two rows, of which results of either half of the columns don't depend on each other.
    fn windows_scatter(&self, n: u64) {
        let columns = n / 4;
        let x = self.made(&[], |b, _| b.as_type(b.iota(DType::S32, &[4, columns], Some(0)), DType::S32));
        let source = self.made(&[], |b, _| b.broadcast(b.number(DType::S32, 5.0), &[2, columns]));
        let windows = Windows {
            sizes: smallvec![2, 1],
            padding: smallvec![(0, 0), (0, 0)],
            strides: smallvec![2, 1],
            dilations: smallvec![1, 1],
        };
        let initial = self.scalar(DType::S32, 1);
        let op = Op::from(WindowScatter { max: true, windows });
        let got = self.op(&op, &[&x, &source, &initial], &Type::new(DType::S32, &[4, columns]));
        let right = self.count(&[&got, &x], |b, t| b.equal(t[0], b.add(b.multiply(b.remainder(t[1], 2.0), 5.0), 1.0)));
        assert_eq!(right, 4 * columns, "window_scatter_max of {n}");
    }

    fn matrices(&self, n: u64) {
        let rows = n / 8;
        let y = self.pattern(DType::F32, &[rows, 8]);
        let w = self.made(&[], |b, _| b.iota(DType::F32, &[8, 3], None));
        let dot = |contract_a: usize, contract_b: usize| Op::Dot {
            contract_a: smallvec![contract_a],
            batch_a: smallvec![],
            contract_b: smallvec![contract_b],
            batch_b: smallvec![],
        };
        let product = self.op(&dot(1, 0), &[&y, &w], &Type::new(DType::F32, &[rows, 3]));
        let right = self.count(&[&product, &y], |b, t| {
            let terms = (0..8).map(|k| {
                let factor = b.add(b.iota(DType::F32, &[rows, 3], Some(1)), f64::from(3 * k));
                b.multiply(b.slice(t[1], &[0, k as u64], &[rows, 1]), factor)
            });
            let sum = terms.reduce(|sum, term| b.add(sum, term)).unwrap();
            b.equal(t[0], sum)
        });
        assert_eq!(right, 3 * rows, "dot of {n}");
        // The longest axis is contracted: columns' sums of squares.
        let squares = self.op(&dot(0, 0), &[&y, &y], &Type::new(DType::F32, &[8, 8]));
        let squares = squares.to_vec::<f32>(&self.engine).unwrap();
        let of = |k: u64| move |i: u64| ((8 * i + k) * 7 % 251) as f64;
        for (i, j) in [(0, 0), (3, 5), (7, 7)] {
            let cycle: f64 = (0..251).map(|at| of(i)(at) * of(j)(at)).sum::<f64>() * (rows / 251) as f64;
            let rest: f64 = (rows / 251 * 251..rows).map(|at| of(i)(at) * of(j)(at)).sum();
            let got = f64::from(squares[(8 * i + j) as usize]);
            assert!((got / (cycle + rest) - 1.0).abs() < 1e-5, "dot of {n}: {got}, not {}", cycle + rest);
        }
        let batches = n / 16;
        let batch = self.made(&[], |b, _| {
            let diagonal = b.multiply(b.eye(DType::F32, &[batches, 4, 4]), 4.0);
            b.add(diagonal, b.multiply(b.iota(DType::F32, &[batches, 4, 4], Some(1)), 0.0))
        });
        let op = Op::from(Linalg::Determinant);
        let determinants = self.op(&op, &[&batch], &Type::new(DType::F32, &[batches]));
        assert_eq!(self.count(&[&determinants], |b, t| b.equal(t[0], 256.0)), batches, "determinants of {n}");
        let factors = self.op(&Op::from(Linalg::Cholesky), &[&batch], &Type::new(DType::F32, &[batches, 4, 4]));
        let right = self.count(&[&factors], |b, t| b.equal(t[0], b.multiply(b.eye(DType::F32, &[batches, 4, 4]), 2.0)));
        assert_eq!(right, 16 * batches, "cholesky of {n}");
    }

    fn transforms(&self, n: u64) {
        let length = 1 << n.ilog2();
        let x = self.made(&[], |b, _| {
            let values = of_index(b, b.iota(DType::S64, &[length], None), DType::F32);
            b.as_type(values, DType::C64)
        });
        let ty = Type::new(DType::C64, &[length]);
        let transform =
            |x: &Tensor, kind| self.op(&Op::from(Fft { kind, axis: 0, length, eps: Scalar::Float(0.0) }), &[x], &ty);
        let back = transform(&transform(&x, Fourier::Fft), Fourier::Ifft);
        let near = self.count(&[&back, &x], |b, t| b.less(b.abs(b.subtract(t[0], t[1])), 0.05));
        assert_eq!(near, length, "fft of {n}");
    }

    /// The transform of a 1 among zeros is a root of unity and its powers.
    fn transform_of_one(&self, n: u64) {
        let x = self.made(&[], |b, _| b.equal(b.iota(DType::S64, &[n], None), 3.0));
        let op = Op::from(Fft { kind: Fourier::Fft, axis: 0, length: n, eps: Scalar::Float(0.0) });
        let spectrum = self.op(&op, &[&x], &Type::new(DType::C64, &[n]));
        // Roots of c128 take more than memory has for all of them.
        let part = n / 32;
        let near = (0..32).map(|k| {
            let view = View { offset: k * part, ..View::contiguous(DType::C64, &[part]) };
            let given = Tensor::new(Arc::clone(spectrum.buffer()), view).unwrap();
            let start = self.scalar(DType::S64, (k * part) as i64);
            self.count(&[&given, &start], |b, t| {
                let at = b.add(b.iota(DType::S64, &[part], None), t[1]);
                let turns = b.as_type(b.remainder(b.multiply(at, 3.0), n as f64), DType::F64);
                let angle = b.as_type(b.multiply(turns, -std::f64::consts::TAU / n as f64), DType::C128);
                let root = b.exp(b.multiply(angle, b.constant(DType::C128, Scalar::Complex(0.0, 1.0))));
                b.less(b.abs(b.subtract(t[0], root)), 1e-5)
            })
        });
        let near: u64 = near.sum();
        assert_eq!(near, n, "fft of a 1 among {n}");
    }

    /// Of pairs the larger element is given 1, the second one of equals.
    fn windows_give(&self, n: u64) {
        let x = self.pattern(DType::U8, &[n]);
        let ones = self.made(&[], |b, _| b.broadcast(b.number(DType::U8, 1.0), &[n / 2]));
        let windows =
            Windows { sizes: smallvec![2], padding: smallvec![(0, 0)], strides: smallvec![2], dilations: smallvec![1] };
        let zero = self.scalar(DType::U8, 0);
        let op = Op::from(WindowScatter { max: true, windows });
        let given = self.op(&op, &[&x, &ones, &zero], &Type::new(DType::U8, &[n]));
        let right = self.count(&[&given, &x], |b, t| {
            let of_pairs = |t: Operand, k| b.slice(b.reshape(t, &[n / 2, 2]), &[0, k], &[n / 2, 1]);
            let first = b.greater(of_pairs(t[1], 0), of_pairs(t[1], 1));
            let is = |k, expected| b.equal(of_pairs(t[0], k), expected);
            b.logical_and(is(0, first), is(1, b.equal(first, 0.0)))
        });
        assert_eq!(right, n / 2, "window_scatter_max of {n}");
    }

    fn updates_are_added(&self, n: u64) {
        let zeros = self.made(&[], |b, _| b.broadcast(b.number(DType::U8, 0.0), &[16]));
        let indices = self.made(&[], |b, _| {
            let index = b.remainder(b.iota(DType::S64, &[n, 1], Some(0)), 16.0);
            b.as_type(index, DType::U8)
        });
        let ones = self.made(&[], |b, _| b.broadcast(b.number(DType::U8, 1.0), &[n]));
        let op = Op::from(IndexedAdd { axes: smallvec![0] });
        let sums = self.op(&op, &[&zeros, &indices, &ones], &Type::new(DType::U8, &[16]));
        let expected: Vec<u8> = (0..16).map(|k| ((n + 15 - k) / 16) as u8).collect();
        assert_eq!(sums.to_nx_bytes(&self.engine, None).unwrap(), expected, "indexed_add of {n} updates");
    }

    fn all(&self, dtype: DType, n: u64) {
        self.elements_move(dtype, n);
        self.indices_choose(dtype, n);
        self.order_is_kept(dtype, n);
        common::assert_valid(&self.engine);
    }

    fn floats(&self, n: u64) {
        self.matrices(n);
        self.windows_scatter(n);
        common::assert_valid(&self.engine);
    }
}

/// 16 KiB: kernels reach 4096 elements of four bytes, and those that reach far 8191 of any type.
const LITTLE: u64 = 16 << 10;

#[test]
fn what_one_launch_does_not_reach_is_reached_far_or_in_parts() {
    let on = On::new(Reach::of_bytes(LITTLE));
    for dtype in [DType::S32, DType::U8, DType::F32] {
        for n in [6001, 9001] {
            on.all(dtype, n);
        }
    }
    for n in [6001, 9001] {
        on.floats(n);
    }
    for n in [1024, 4096] {
        on.transforms(n);
    }
    on.transform_of_one(16384);
    on.windows_give(9002);
    on.updates_are_added(9002);
}

/// Orders of rows that halves of halves reach, with elements that compare as equal or not at all.
#[test]
fn rows_that_no_launch_reaches_are_in_the_order_of_others() {
    let (far, near) = (On::new(Reach::of_bytes(2 << 10)), On::new(Reach::default()));
    for shape in [&[6007][..], &[3, 2011], &[2011, 3]] {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i: u64| match i * 7 % 23 {
                0 => f32::NAN,
                k @ 1..4 => f32::INFINITY.copysign(k as f32 - 1.5),
                k @ 4..8 => 0f32.copysign(k as f32 - 5.5),
                k => (k * (i % 5)) as f32 - 30.0,
            })
            .collect();
        for axis in 0..shape.len() {
            for descending in [false, true] {
                let ops = [
                    (Op::from(Sort { axis, descending }), smallvec![Type::new(DType::F32, shape)]),
                    (Op::from(Argsort { axis, descending }), smallvec![Type::new(DType::S32, shape)]),
                    (Op::from(TopK { k: 2 }), {
                        let shape: Vec<u64> = [&shape[..shape.len() - 1], &[2]].concat();
                        [DType::F32, DType::S32].map(|dtype| Type::new(dtype, &shape)).into_iter().collect()
                    }),
                ];
                for (op, outs) in ops {
                    let outs: smallvec::SmallVec<[Type; 2]> = outs;
                    let [a, b] = [&far, &near].map(|on| {
                        let x = Tensor::from_slice(&on.engine, shape, &values).unwrap();
                        let results = eager::run_all(&on.engine, &op, &[x], &outs, Compile::Allowed).unwrap();
                        results.iter().map(|t| t.to_nx_bytes(&on.engine, None).unwrap()).collect::<Vec<_>>()
                    });
                    assert!(a == b, "{op:?} of {shape:?}");
                }
            }
        }
    }
}

/// 6 GB of 4 bytes, and more bytes than 32 bits count: for GPUs with 80 GB, which take minutes.
#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_of_s32_are_reached() {
    On::new(Reach::default()).all(DType::S32, 1_500_000_000);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_of_u8_are_reached() {
    On::new(Reach::default()).all(DType::U8, (1 << 32) + 5);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_are_kept_in_order() {
    On::new(Reach::default()).order_is_kept(DType::U8, (1 << 31) + 5);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_of_floats_are_reached() {
    On::new(Reach::default()).floats(1_500_000_000);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_are_transformed() {
    let on = On::new(Reach::default());
    on.transforms(1 << 30);
    on.transform_of_one(1 << 31);
}

#[test]
#[ignore = "needs a GPU with 80 GB"]
fn gigabytes_are_given_and_updated() {
    let on = On::new(Reach::default());
    on.windows_give((1 << 32) + 6);
    on.updates_are_added((1 << 31) + 6);
    common::assert_valid(&on.engine);
}
