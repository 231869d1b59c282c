//! QR, eigenvalues and singular values: residuals and orthogonality, over types, sizes, kinds of matrices and layouts.

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Error, Tensor, Type, Value};
use smallvec::smallvec;

use super::{FAILURES, all_results, download, finish, rng, run, seed, upload};
use crate::common::Rng;
use crate::compare::epsilon;

type Complex = (f64, f64);

/// A matrix on the host.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    at: Vec<Complex>,
}

impl Matrix {
    pub fn new(rows: usize, columns: usize, at: impl Fn(usize, usize) -> Complex) -> Matrix {
        let at = (0..rows * columns).map(|k| at(k / columns, k % columns)).collect();
        Matrix { rows, columns, at }
    }

    /// The matrices of a batch.
    pub fn batch(a: &Array) -> Vec<Matrix> {
        let rank = a.ty.shape.len();
        let (rows, columns) = (a.ty.shape[rank - 2] as usize, a.ty.shape[rank - 1] as usize);
        let number = |v: &Value| match *v {
            Value::Int(i) => (i as f64, 0.0),
            Value::Float(x) => (x, 0.0),
            Value::Complex(re, im) => (re, im),
        };
        a.values.chunks(rows * columns).map(|c| Matrix { rows, columns, at: c.iter().map(number).collect() }).collect()
    }

    pub fn get(&self, i: usize, j: usize) -> Complex {
        self.at[i * self.columns + j]
    }

    pub fn adjoint(&self) -> Matrix {
        Matrix::new(self.columns, self.rows, |i, j| (self.get(j, i).0, -self.get(j, i).1))
    }

    pub fn times(&self, b: &Matrix) -> Matrix {
        let mut out = Matrix::new(self.rows, b.columns, |_, _| (0.0, 0.0));
        for i in 0..self.rows {
            for k in 0..self.columns {
                let x = self.get(i, k);
                for j in 0..b.columns {
                    let (y, sum) = (b.get(k, j), &mut out.at[i * b.columns + j]);
                    *sum = (sum.0 + x.0 * y.0 - x.1 * y.1, sum.1 + x.0 * y.1 + x.1 * y.0);
                }
            }
        }
        out
    }

    pub fn minus(&self, b: &Matrix) -> Matrix {
        Matrix::new(self.rows, self.columns, |i, j| {
            (self.get(i, j).0 - b.get(i, j).0, self.get(i, j).1 - b.get(i, j).1)
        })
    }

    fn identity(n: usize) -> Matrix {
        Matrix::new(n, n, |i, j| (f64::from(u8::from(i == j)), 0.0))
    }

    /// The Frobenius norm, scaled so that squares neither overflow nor vanish; NaN if an element is.
    pub fn norm(&self) -> f64 {
        let largest = self.at.iter().fold(0.0, |m: f64, z| m.max(z.0.abs()).max(z.1.abs()));
        if self.at.iter().any(|z| z.0.is_nan() || z.1.is_nan()) {
            return f64::NAN;
        }
        if largest == 0.0 {
            return 0.0;
        }
        largest * self.at.iter().map(|z| (z.0 / largest).powi(2) + (z.1 / largest).powi(2)).sum::<f64>().sqrt()
    }
}

/// What kind of numbers a matrix has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Random,
    /// Rows and columns fall off over many orders of magnitude.
    Graded,
    /// A product of two thin matrices.
    RankDeficient,
    /// Nearly dependent columns.
    IllConditioned,
    /// Almost the identity.
    Clustered,
    Huge,
    Tiny,
    Identity,
    Zero,
    UpperTriangular,
}

pub const KINDS: [Kind; 10] = [
    Kind::Random,
    Kind::Graded,
    Kind::RankDeficient,
    Kind::IllConditioned,
    Kind::Clustered,
    Kind::Huge,
    Kind::Tiny,
    Kind::Identity,
    Kind::Zero,
    Kind::UpperTriangular,
];

fn number(rng: &mut Rng) -> f64 {
    rng.below(2_000_001) as f64 / 1e6 - 1.0
}

/// A random batch of matrices, rounded to the type.
pub fn matrices(dtype: DType, shape: &[u64], kind: Kind, rng: &mut Rng) -> Array {
    let (rows, columns) = (shape[shape.len() - 2] as usize, shape[shape.len() - 1] as usize);
    let batch: u64 = shape[..shape.len() - 2].iter().product();
    let complex = dtype.is_complex();
    let mut values = vec![];
    for _ in 0..batch {
        let mut draw = || (number(rng), if complex { number(rng) } else { 0.0 });
        let base: Vec<Complex> = (0..rows * columns).map(|_| draw()).collect();
        let random = Matrix { rows, columns, at: base };
        let thin = rows.min(columns).div_ceil(2);
        let matrix = match kind {
            Kind::Random => random,
            Kind::Graded => Matrix::new(rows, columns, |i, j| {
                let s = 10f64.powf(-6.0 * (i as f64 / rows as f64 + j as f64 / columns as f64));
                (random.get(i, j).0 * s, random.get(i, j).1 * s)
            }),
            Kind::RankDeficient => {
                let left = Matrix::new(rows, thin, |i, j| random.get(i, j % columns));
                let right = Matrix::new(thin, columns, |i, j| random.get((i + j) % rows, j));
                left.times(&right)
            }
            Kind::IllConditioned => Matrix::new(rows, columns, |i, j| {
                let (x, y) = (random.get(i, 0), random.get(i, j));
                (x.0 + 1e-5 * y.0, x.1 + 1e-5 * y.1)
            }),
            Kind::Clustered => Matrix::new(rows, columns, |i, j| {
                let x = random.get(i, j);
                (f64::from(u8::from(i == j)) + 1e-6 * x.0, 1e-6 * x.1)
            }),
            Kind::Huge | Kind::Tiny => {
                let s = match (dtype, kind) {
                    (DType::F64 | DType::C128, Kind::Huge) => 1e300,
                    (DType::F64 | DType::C128, _) => 1e-295,
                    (_, Kind::Huge) => 1e36,
                    (_, _) => 1e-33,
                };
                Matrix::new(rows, columns, |i, j| (random.get(i, j).0 * s, random.get(i, j).1 * s))
            }
            Kind::Identity => Matrix::new(rows, columns, |i, j| (f64::from(u8::from(i == j)), 0.0)),
            Kind::Zero => Matrix::new(rows, columns, |_, _| (0.0, 0.0)),
            Kind::UpperTriangular => {
                Matrix::new(rows, columns, |i, j| if i <= j { random.get(i, j) } else { (0.0, 0.0) })
            }
        };
        values.extend(
            matrix.at.into_iter().map(|(re, im)| if complex { Value::Complex(re, im) } else { Value::Float(re) }),
        );
    }
    Array::new(&Type::new(dtype, shape), values)
}

pub fn fail(what: String) {
    FAILURES.with_borrow_mut(|f| f.push(format!("{what}, seed {}", seed())));
}

/// Runs an op of several results.
pub fn run_all(op: &Op, a: &Tensor) -> Vec<Array> {
    let outs = op.factors(&a.view().ty()).unwrap();
    let results =
        all_results(op, std::slice::from_ref(a), &outs).unwrap_or_else(|e| panic!("{op:?} of {:?}: {e}", download(a)));
    results.iter().zip(&outs).for_each(|(result, out)| assert_eq!(result.view().ty(), *out));
    results.iter().map(download).collect()
}

/// Errors of LAPACK's algorithms stay below a small multiple of the size times the rounding error.
pub fn allowed(dtype: DType, size: usize) -> f64 {
    epsilon(dtype) * (size as f64 + 16.0)
}

/// Fails if `error` exceeds `bound`; NaN does.
pub fn require(what: &str, error: f64, bound: f64) {
    if error.is_nan() || error > bound {
        fail(format!("{what}: {error:e} exceeds {bound:e}"));
    }
}

/// Q^H Q - I.
pub fn orthogonality(q: &Matrix) -> f64 {
    q.adjoint().times(q).minus(&Matrix::identity(q.columns)).norm()
}

pub fn check_qr(what: &str, complete: bool, tensor: &Tensor, array: &Array) {
    let results = run_all(&Op::from(Qr { complete }), tensor);
    let dtype = results[0].ty.dtype;
    let matrices = Matrix::batch(array).into_iter().zip(Matrix::batch(&results[0])).zip(Matrix::batch(&results[1]));
    for (k, ((a, q), r)) in matrices.enumerate() {
        let what = format!("qr {complete} {what} {dtype}{:?} [{k}]", &array.ty.shape[..]);
        let bound = allowed(dtype, a.rows.max(a.columns));
        require(&format!("{what} residual"), a.minus(&q.times(&r)).norm(), bound * a.norm());
        require(&format!("{what} orthogonality"), orthogonality(&q), bound * (q.columns as f64).sqrt());
        let below = Matrix::new(r.rows, r.columns, |i, j| if i > j { r.get(i, j) } else { (0.0, 0.0) });
        require(&format!("{what} below the diagonal"), below.norm(), 0.0);
    }
}

/// `Qr`
#[test]
fn qr_of_all_types_and_kinds() {
    let mut rng = rng(71);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128, DType::F16, DType::Bf16, DType::S32] {
        for (rows, columns) in [(1, 1), (1, 4), (4, 1), (3, 3), (7, 5), (5, 9), (40, 33), (33, 70)] {
            for kind in KINDS {
                if (dtype.size_bytes() < 4 || dtype.is_integer()) && kind != Kind::Random {
                    continue;
                }
                let a = matrices(dtype, &[2, rows, columns], kind, &mut rng);
                check_qr(&format!("{kind:?}"), rng.below(2) == 0, &upload(&a), &a);
            }
        }
    }
    finish();
}

#[test]
fn qr_of_all_sizes() {
    let mut rng = rng(72);
    for size in 1..70 {
        let rows = 1 + rng.below(70);
        for shape in [[size, size], [size, rows]] {
            let a = matrices(DType::F32, &shape, Kind::Random, &mut rng);
            check_qr("Random", rng.below(2) == 0, &upload(&a), &a);
        }
    }
    for (dtype, shape) in
        [(DType::F32, [257, 200]), (DType::F64, [120, 300]), (DType::F32, [3000, 3]), (DType::C64, [600, 34])]
    {
        let a = matrices(dtype, &shape, Kind::Random, &mut rng);
        check_qr("Random", false, &upload(&a), &a);
    }
    finish();
}

/// The reference has the convention of Nx's default implementation: the same signs.
#[test]
fn qr_signs() {
    let mut rng = rng(73);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128] {
        for shape in [[1, 1], [5, 5], [6, 4], [4, 6], [2, 1], [1, 3]] {
            for kind in [Kind::Random, Kind::UpperTriangular, Kind::Identity] {
                for complete in [false, true] {
                    let a = matrices(dtype, &shape, kind, &mut rng);
                    let op = Op::from(Qr { complete });
                    let outs = op.factors(&a.ty).unwrap();
                    let expected = reference::evaluate_all(&op, std::slice::from_ref(&a), &outs).unwrap();
                    for (got, want) in run_all(&op, &upload(&a)).iter().zip(&expected) {
                        let (got, want) = (&Matrix::batch(got)[0], &Matrix::batch(want)[0]);
                        // Small diagonal elements magnify rounding errors.
                        let bound = 2e4 * epsilon(dtype) * (1.0 + want.norm());
                        require(&format!("qr {complete} {kind:?} {dtype}{shape:?}"), got.minus(want).norm(), bound);
                    }
                }
            }
        }
    }
    finish();
}

#[test]
fn qr_of_views_and_batches() {
    let mut rng = rng(74);
    let axes = |axes: &[usize]| Axes::from_slice(axes);
    let (dtype, shape) = (DType::F32, [2u64, 3, 6, 5]);
    let views: [(Vec<u64>, Op); 4] = [
        (vec![5, 2, 6, 3], Op::Transpose { axes: axes(&[1, 3, 2, 0]) }),
        (vec![2, 3, 6, 5], Op::from(Reverse { axes: axes(&[0, 2, 3]) })),
        (vec![3, 1, 5], Op::Broadcast { axes: axes(&[1, 2, 3]) }),
        (
            vec![3, 4, 13, 11],
            Op::Slice {
                starts: smallvec![Some(1), Some(1), Some(1), Some(2)],
                strides: smallvec![1, 1, 2, 2],
                lengths: smallvec![2, 3, 12, 9],
            },
        ),
    ];
    for (base, op) in views {
        let base = matrices(dtype, &base, Kind::Random, &mut rng);
        let out = Type::new(dtype, &shape);
        let view = run(&op, &[upload(&base)], &out).unwrap();
        check_qr(op.name(), true, &view, &reference::evaluate(&op, &[base], &out).unwrap());
    }
    // More matrices than one axis of the grid has workgroups.
    let many = matrices(dtype, &[70_000, 2, 2], Kind::Random, &mut rng);
    check_qr("many", false, &upload(&many), &many);
    finish();
}

#[test]
fn qr_of_nan_is_nan() {
    let a = Array::new(&Type::new(DType::F32, &[2, 2]), [f64::NAN, 1.0, 2.0, 3.0].map(Value::Float));
    for result in run_all(&Op::from(Qr { complete: false }), &upload(&a)) {
        assert!(result.values.iter().any(|v| matches!(v, Value::Float(x) if x.is_nan())), "{result:?}");
    }
    finish();
}

/// `Eigh`: with the matrix Hermitian.
pub fn hermitian(a: &Array) -> Array {
    let n = *a.ty.shape.last().unwrap() as usize;
    let conjugate = |v: Value| match v {
        Value::Complex(re, im) => Value::Complex(re, -im),
        other => other,
    };
    let real = |v: Value| match v {
        Value::Complex(re, _) => Value::Complex(re, 0.0),
        other => other,
    };
    let values = a.values.chunks(n * n).flat_map(|m| {
        (0..n * n).map(move |k| match (k / n).cmp(&(k % n)) {
            std::cmp::Ordering::Less => m[k],
            std::cmp::Ordering::Equal => real(m[k]),
            std::cmp::Ordering::Greater => conjugate(m[k % n * n + k / n]),
        })
    });
    Array::new(&a.ty, values)
}

fn check_eigh(what: &str, tensor: &Tensor, array: &Array) {
    let results = run_all(&Op::from(Eigh), tensor);
    let dtype = results[0].ty.dtype;
    let n = *array.ty.shape.last().unwrap() as usize;
    let all = Matrix::batch(array);
    for (k, (a, v)) in all.iter().zip(Matrix::batch(&results[1])).enumerate() {
        let what = format!("eigh {what} {dtype}{:?} [{k}]", &array.ty.shape[..]);
        let values = Array { ty: Type::new(dtype, &[1, n as u64]), values: results[0].values[k * n..][..n].to_vec() };
        let values = &Matrix::batch(&values)[0];
        let bound = allowed(dtype, n);
        let scaled = Matrix::new(n, n, |i, j| (v.get(i, j).0 * values.get(0, j).0, v.get(i, j).1 * values.get(0, j).0));
        require(&format!("{what} residual"), a.times(&v).minus(&scaled).norm(), bound * a.norm());
        require(&format!("{what} orthogonality"), orthogonality(&v), bound * (n as f64).sqrt());
        if (1..n).any(|j| values.get(0, j).0.abs() > values.get(0, j - 1).0.abs()) {
            fail(format!("{what}: not in order"));
        }
    }
}

fn check_svd(what: &str, full: bool, tensor: &Tensor, array: &Array) {
    let results = run_all(&Op::from(Svd { full }), tensor);
    let dtype = results[0].ty.dtype;
    let shorter = *results[1].ty.shape.last().unwrap() as usize;
    let all = Matrix::batch(array).into_iter().zip(Matrix::batch(&results[0])).zip(Matrix::batch(&results[2]));
    for (k, ((a, u), vt)) in all.enumerate() {
        let what = format!("svd {full} {what} {dtype}{:?} [{k}]", &array.ty.shape[..]);
        let s: Vec<f64> = results[1].values[k * shorter..][..shorter]
            .iter()
            .map(|v| if let Value::Float(x) = v { *x } else { f64::NAN })
            .collect();
        let bound = allowed(dtype, a.rows.max(a.columns));
        let scaled =
            Matrix::new(u.rows, vt.rows, |i, j| if j < shorter { (u.get(i, j).0 * s[j], 0.0) } else { (0.0, 0.0) });
        require(&format!("{what} residual"), a.minus(&scaled.times(&vt)).norm(), bound * a.norm());
        require(&format!("{what} orthogonality of u"), orthogonality(&u), bound * (u.columns as f64).sqrt());
        require(&format!("{what} orthogonality of v"), orthogonality(&vt.adjoint()), bound * (vt.rows as f64).sqrt());
        if s.iter().any(|x| *x < 0.0) || s.windows(2).any(|pair| pair[1] > pair[0]) {
            fail(format!("{what}: {s:?} not in order"));
        }
    }
}

#[test]
fn eigh_of_all_types_and_kinds() {
    let mut rng = rng(75);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128, DType::F16, DType::Bf16, DType::S32] {
        for n in [1, 2, 3, 8, 21] {
            for kind in KINDS {
                if (dtype.size_bytes() < 4 || dtype.is_integer()) && kind != Kind::Random {
                    continue;
                }
                let a = hermitian(&matrices(dtype, &[2, n, n], kind, &mut rng));
                check_eigh(&format!("{kind:?}"), &upload(&a), &a);
            }
        }
    }
    finish();
}

#[test]
fn eigh_of_all_sizes() {
    let mut rng = rng(76);
    for n in (1..45).chain([49, 60, 70]) {
        let a = hermitian(&matrices(DType::F32, &[n, n], Kind::Random, &mut rng));
        check_eigh("Random", &upload(&a), &a);
    }
    for (k, kind) in KINDS.into_iter().enumerate() {
        let types = [(DType::F32, 51), (DType::F64, 64), (DType::C64, 50), (DType::C128, 49)];
        for (dtype, n) in types.into_iter().skip(k % 2).step_by(2) {
            let a = hermitian(&matrices(dtype, &[2, n, n], kind, &mut rng));
            check_eigh(&format!("{kind:?}"), &upload(&a), &a);
        }
    }
    finish();
}

#[test]
fn svd_of_all_types_and_kinds() {
    let mut rng = rng(77);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::S32] {
        for (rows, columns) in [(1, 1), (1, 4), (4, 1), (3, 3), (7, 5), (5, 9), (20, 20)] {
            for kind in KINDS {
                if (dtype.size_bytes() < 4 || dtype.is_integer()) && kind != Kind::Random {
                    continue;
                }
                let a = matrices(dtype, &[2, rows, columns], kind, &mut rng);
                for full in [false, true] {
                    check_svd(&format!("{kind:?}"), full, &upload(&a), &a);
                }
            }
        }
    }
    finish();
}

#[test]
fn svd_of_all_sizes() {
    let mut rng = rng(78);
    for size in 1..40 {
        let other = 1 + rng.below(40);
        let a = matrices(DType::F32, &[size, other], Kind::Random, &mut rng);
        check_svd("Random", rng.below(2) == 0, &upload(&a), &a);
    }
    for kind in KINDS {
        for (dtype, shape) in [(DType::F32, [70, 65]), (DType::F64, [33, 50])] {
            let a = matrices(dtype, &shape, kind, &mut rng);
            check_svd(&format!("{kind:?}"), true, &upload(&a), &a);
        }
    }
    finish();
}

/// Sizes at which products and rounds have many workgroups.
#[test]
fn large_factorizations() {
    let mut rng = rng(79);
    for (dtype, n, kind) in
        [(DType::F32, 192, Kind::Random), (DType::F64, 130, Kind::Graded), (DType::F32, 150, Kind::RankDeficient)]
    {
        let a = matrices(dtype, &[n, n], kind, &mut rng);
        check_qr(&format!("{kind:?}"), true, &upload(&a), &a);
        check_svd(&format!("{kind:?}"), true, &upload(&a), &a);
        let a = hermitian(&a);
        check_eigh(&format!("{kind:?}"), &upload(&a), &a);
    }
    finish();
}

#[test]
fn bad_factorizations_are_errors() {
    let mut rng = rng(80);
    let f = |shape: &[u64]| Type::new(DType::F32, shape);
    let cases = [
        (Op::from(Qr { complete: false }), f(&[3]), vec![f(&[3, 3]), f(&[3, 3])]),
        (Op::from(Qr { complete: true }), f(&[3, 2]), vec![f(&[3, 2]), f(&[2, 2])]),
        (Op::from(Eigh), f(&[3, 2]), vec![f(&[3]), f(&[3, 3])]),
        (Op::from(Eigh), f(&[3, 3]), vec![f(&[3])]),
        (Op::from(Svd { full: false }), f(&[3, 2]), vec![f(&[3, 3]), f(&[2]), f(&[2, 2])]),
        (Op::from(Svd { full: true }), Type::new(DType::C64, &[1, 1]), vec![f(&[1, 1]), f(&[1]), f(&[1, 1])]),
    ];
    for (op, ty, outs) in cases {
        let shape = if ty.shape.len() < 2 { vec![1, ty.shape[0]] } else { ty.shape.to_vec() };
        let a = Array { ty: ty.clone(), ..matrices(ty.dtype, &shape, Kind::Random, &mut rng) };
        let result = all_results(&op, &[upload(&a)], &outs);
        assert!(matches!(result, Err(Error::InvalidProgram { .. })), "{op:?}: {result:?}");
    }
    finish();
}
