//! Programs whose kernels are compiled: each way through the engine, at sizes that choose it.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::{IndexedAdd, IndexedPut};
use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::{Argsort, Cumulative, Scan, Sort};
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::ops::window::Window;
use nx_vulkan_engine::program::{
    Binary, Builder, Conv, Elementwise, Fourier, Linalg, Op, Operand, Program, Reduction, Transform, Unary, Windows,
    ops,
};
use nx_vulkan_engine::{DType, Result, Type};

const F32: DType = DType::F32;
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// A program by name.
pub type Named = (String, Result<Program>);

fn named(name: String, build: impl FnOnce(&Builder) -> Vec<Operand>) -> Named {
    let b = Builder::new();
    let outputs = build(&b);
    (name, b.finish(&outputs))
}

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

fn products() -> Vec<Named> {
    // Squares that fill a device and those that don't, long sums, few columns, vectors.
    const SIZES: [[u64; 3]; 8] = [
        [4096, 4096, 4096],
        [1024, 1024, 1024],
        [256, 256, 256],
        [64, 64, 64],
        [128, 65_536, 128],
        [1024, 2048, 10],
        [131, 333, 77],
        [1, 4096, 4096],
    ];
    let mut found = vec![];
    for dtype in FLOATS.into_iter().chain([DType::C64, DType::S32, DType::S64, DType::U8]) {
        for [m, k, n] in SIZES {
            found.push(named(format!("product {dtype} {m}x{k}x{n}"), |b| {
                vec![b.dot(b.input(dtype, &[m, k]), b.input(dtype, &[k, n]))]
            }));
        }
    }
    for transposed in [[true, false], [false, true]] {
        found.push(named(format!("product f32 transposed {transposed:?}"), |b| {
            let [a, w] = [b.input(F32, &[1024, 1024]), b.input(F32, &[1024, 1024])];
            let axis = |t| if t { 0 } else { 1 };
            vec![b.dot_axes([a, w], [&[axis(transposed[0])], &[1 - axis(transposed[1])]], [&[], &[]])]
        }));
    }
    // Weights of four bits, eight in a word, with a scale for 64 of them, and of eight bits with one for 32.
    for vectors in [1, 4] {
        found.push(named(format!("product of 4 bits bf16 {vectors}x4096x4096"), |b| {
            let [x, words] = [b.input(DType::Bf16, &[vectors, 4096]), b.input(DType::U32, &[4096, 512])];
            let scales = b.reshape(b.as_type(b.input(DType::F16, &[4096, 64]), F32), &[4096, 64, 1, 1]);
            let shifts = b.multiply(b.iota(DType::U32, &[1, 1, 1, 8], Some(3)), 4.0);
            let shifted = b.binary(Binary::RightShift, b.reshape(words, &[4096, 64, 8, 1]), shifts);
            let bits = b.as_type(b.binary(Binary::BitwiseAnd, shifted, 15.0), F32);
            let weights = b.as_type(b.reshape(b.multiply(bits, scales), &[4096, 4096]), DType::Bf16);
            vec![b.dot_axes([x, weights], [&[1], &[1]], [&[], &[]])]
        }));
        found.push(named(format!("product of 8 bits bf16 {vectors}x4096x4096"), |b| {
            let [x, bytes] = [b.input(DType::Bf16, &[vectors, 4096]), b.input(DType::S8, &[4096, 128, 32])];
            let scales = b.as_type(b.input(DType::F16, &[4096, 128, 1]), F32);
            let weights = b.reshape(b.multiply(b.as_type(bytes, F32), scales), &[4096, 4096]);
            vec![b.dot_axes([x, b.as_type(weights, DType::Bf16)], [&[1], &[1]], [&[], &[]])]
        }));
    }
    for dtype in FLOATS {
        found.push(named(format!("dense layer {dtype}"), |b| {
            let product = b.dot(b.input(dtype, &[512, 784]), b.input(dtype, &[784, 512]));
            let sum = b.add(product, b.input(dtype, &[512]));
            vec![b.multiply(sum, b.sigmoid(sum))]
        }));
        found.push(named(format!("attention {dtype}"), |b| attention(b, dtype, 512, 512)));
        for queries in [1, 2, 4, 8] {
            let name = format!("attention {dtype} of {queries} queries");
            found.push(named(name, |b| attention(b, dtype, queries, 576)));
        }
    }
    found
}

fn attention(b: &Builder, dtype: DType, queries: u64, keys: u64) -> Vec<Operand> {
    let [q, k, v] = [queries, keys, keys].map(|rows| b.input(dtype, &[8, rows, 64]));
    let scores = b.multiply(b.dot_axes([q, k], [&[2], &[2]], [&[0], &[0]]), 0.125);
    let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[2], true)));
    let weights = b.divide(exp, b.reduce(Reduction::Sum, exp, &[2], true));
    vec![b.dot_axes([weights, v], [&[2], &[1]], [&[0], &[0]])]
}

/// Reductions of as many rows as keep any device busy.
pub fn rows() -> Vec<Named> {
    let mut found = vec![];
    for dtype in FLOATS {
        for columns in [10u64, 64, 200, 1000, 4096, 16_384, 100_000] {
            let rows = (1 << 26) / columns;
            found.push(named(format!("softmax {dtype} {columns}"), |b| {
                let x = b.input(dtype, &[rows, columns]);
                let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true)));
                vec![b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true))]
            }));
            found.push(named(format!("layer norm {dtype} {columns}"), |b| {
                let x = b.input(dtype, &[rows, columns]);
                let mean = |a| b.multiply(b.reduce(Reduction::Sum, a, &[1], true), 1.0 / columns as f64);
                let centered = b.subtract(x, mean(x));
                let variance = mean(b.multiply(centered, centered));
                vec![b.multiply(centered, b.rsqrt(b.add(variance, 1e-5)))]
            }));
        }
        found.push(named(format!("softmax along columns {dtype}"), |b| {
            let x = b.input(dtype, &[512, 1024]);
            let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[0], true)));
            vec![b.divide(exp, b.reduce(Reduction::Sum, exp, &[0], true))]
        }));
    }
    found
}

fn reductions() -> Vec<Named> {
    let mut found = vec![];
    let all = [Reduction::Sum, Reduction::Max, Reduction::ArgMax];
    for dtype in FLOATS.into_iter().chain([DType::C64, DType::S64, DType::U8]) {
        for reduction in all.into_iter().filter(|r| !dtype.is_complex() || *r == Reduction::Sum) {
            for (shape, along) in
                [([1u64 << 20, 4], 0usize), ([64, 1 << 16], 1), ([1 << 14, 100], 1), ([100, 1 << 14], 0)]
            {
                found.push(named(format!("{reduction:?} {dtype} {shape:?} along {along}"), |b| {
                    let x = b.input(dtype, &shape);
                    vec![match reduction {
                        Reduction::ArgMax => b.argmax(x, along),
                        reduction => b.reduce(reduction, x, &[along], false),
                    }]
                }));
            }
        }
    }
    found
}

fn elementwise() -> Vec<Named> {
    let mut found = vec![];
    // Others are among the recorded programs.
    for dtype in [DType::F32, DType::S64] {
        for &op in Unary::ALL {
            if let Some(out) = ops::result_dtype(Elementwise::Unary(op), &[dtype]) {
                found.push(named(format!("{} {dtype}", op.name()), |b| {
                    let x = b.input(dtype, &[1 << 20]);
                    vec![b.push(Op::Unary(op), &[x], &Type::new(out, &[1 << 20]))]
                }));
            }
        }
        for &op in Binary::ALL {
            if let Some(out) = ops::result_dtype(Elementwise::Binary(op), &[dtype; 2]) {
                found.push(named(format!("{} {dtype}", op.name()), |b| {
                    let x = [b.input(dtype, &[1 << 20]), b.input(dtype, &[1 << 20])];
                    vec![b.push(Op::Binary(op), &x, &Type::new(out, &[1 << 20]))]
                }));
            }
        }
    }
    for dtype in DType::ALL {
        found.push(named(format!("cast {dtype}"), |b| vec![b.as_type(b.input(F32, &[1 << 20]), dtype)]));
    }
    found.push(named("gelu".into(), |b| {
        let x = b.input(F32, &[4096, 1024]);
        let cdf = b.add(b.erf(b.multiply(x, std::f64::consts::FRAC_1_SQRT_2)), 1.0);
        vec![b.multiply(x, b.multiply(cdf, 0.5))]
    }));
    found
}

fn structure() -> Vec<Named> {
    let mut found = vec![];
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::S64, DType::U8] {
        for n in [100u64, 1000, 1 << 20] {
            found.push(named(format!("sort {dtype} {n}"), |b| {
                let x = b.input(dtype, &[4, n]);
                let sorted = b.push(Op::from(Sort { axis: 1, descending: false }), &[x], &Type::new(dtype, &[4, n]));
                let order = Op::from(Argsort { axis: 1, descending: true });
                vec![sorted, b.push(order, &[x], &Type::new(DType::S32, &[4, n]))]
            }));
            found.push(named(format!("scans {dtype} {n}"), |b| {
                let x = b.input(dtype, &[4, n]);
                let scan = |scan, axis, reverse| {
                    b.push(Op::from(Scan { scan, axis, reverse }), &[x], &Type::new(dtype, &[4, n]))
                };
                vec![
                    scan(Cumulative::Sum, 1, false),
                    scan(Cumulative::Max, 1, true),
                    scan(Cumulative::Product, 0, false),
                ]
            }));
        }
        found.push(named(format!("movement {dtype}"), |b| {
            let x = b.input(dtype, &[1000, 700]);
            let indices = b.input(DType::S32, &[5000]);
            let (column, updates) = (b.input(DType::S32, &[5000, 1]), b.input(dtype, &[5000, 700]));
            let reversed = b.push(Op::from(Reverse { axes: axes(&[0]) }), &[x], &Type::new(dtype, &[1000, 700]));
            vec![
                b.transpose(x, &[1, 0]),
                b.concatenate(&[x, reversed], 1),
                b.take(x, indices, 0),
                b.push(
                    Op::from(IndexedAdd { axes: axes(&[0]) }),
                    &[x, column, updates],
                    &Type::new(dtype, &[1000, 700]),
                ),
                b.push(
                    Op::from(IndexedPut { axes: axes(&[0]) }),
                    &[x, column, updates],
                    &Type::new(dtype, &[1000, 700]),
                ),
            ]
        }));
    }
    for dtype in [DType::F32, DType::F64] {
        let complex = if dtype == DType::F64 { DType::C128 } else { DType::C64 };
        let few = [60u64, 256, 1000, 1 << 13, 1 << 20, 1009].map(|n| (4, n));
        let many = [64u64, 128, 256, 512, 1000, 1001, 1024, 1536, 2048, 2187, 4096].map(|n| ((1 << 18) / n, n));
        for (rows, n) in few.into_iter().chain(many) {
            found.push(named(format!("fft {dtype} {rows} x {n}"), |b| {
                let x = b.input(complex, &[rows, n]);
                let fft = |kind| Op::from(Fft { kind, axis: 1, length: n, eps: Scalar::Float(1e-10) });
                let [y, z] =
                    [Fourier::Fft, Fourier::Ifft].map(|k| b.push(fft(k), &[x], &Type::new(complex, &[rows, n])));
                let real = b.push(fft(Fourier::Irfft), &[x], &Type::new(dtype, &[rows, n]));
                let half = b.push(fft(Fourier::Rfft), &[real], &Type::new(complex, &[rows, n / 2 + 1]));
                vec![y, z, real, half]
            }));
        }
    }
    found
}

fn windows() -> Vec<Named> {
    let mut found = vec![];
    for dtype in FLOATS {
        found.push(named(format!("pooling {dtype}"), |b| {
            let x = b.input(dtype, &[32, 64, 56, 56]);
            let windows = Windows {
                sizes: [1, 1, 2, 2].into_iter().collect(),
                padding: [(0, 0); 4].into_iter().collect(),
                strides: [1, 1, 2, 2].into_iter().collect(),
                dilations: [1; 4].into_iter().collect(),
            };
            let out = Type::new(dtype, &[32, 64, 28, 28]);
            [Reduction::Sum, Reduction::Max]
                .map(|reduction| b.push(Op::from(Window { reduction, windows: windows.clone() }), &[x], &out))
                .into()
        }));
        for (channels, kernel, groups) in [(64u64, 3u64, 1u64), (3, 7, 1), (64, 1, 1), (64, 3, 64)] {
            found.push(named(format!("convolution {dtype} {channels} {kernel}x{kernel} of {groups}"), |b| {
                let x = b.input(dtype, &[16, channels, 56, 56]);
                let w = b.input(dtype, &[64, channels / groups, kernel, kernel]);
                let pad = (kernel / 2) as i64;
                let conv = Conv {
                    strides: [1, 1].into_iter().collect(),
                    padding: [(pad, pad); 2].into_iter().collect(),
                    input_dilation: [1, 1].into_iter().collect(),
                    kernel_dilation: [1, 1].into_iter().collect(),
                    feature_groups: groups,
                    batch_groups: 1,
                    input_axes: axes(&[0, 1, 2, 3]),
                    kernel_axes: axes(&[0, 1, 2, 3]),
                    output_axes: axes(&[0, 1, 2, 3]),
                };
                vec![b.push(Op::Conv(Box::new(conv)), &[x, w], &Type::new(dtype, &[16, 64, 56, 56]))]
            }));
        }
    }
    found
}

fn linear_algebra() -> Vec<Named> {
    let mut found = vec![];
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128] {
        for (batch, n) in [(1u64, 600u64), (64, 24), (1, 1500), (1000, 3)] {
            let square = Type::new(dtype, &[batch, n, n]);
            let values = Type::new(dtype, &[batch, n]);
            found.push(named(format!("factorizations {dtype} {batch} of {n}"), |b| {
                let a = b.input(dtype, &[batch, n, n]);
                let mut outs =
                    b.push_all(Op::from(Linalg::Lu), &[a], &[square.clone(), square.clone(), square.clone()]);
                outs.push(b.push(Op::from(Linalg::Cholesky), &[a], &square));
                outs.push(b.push(Op::from(Linalg::Determinant), &[a], &Type::new(dtype, &[batch])));
                for (lower, left_side) in [(true, true), (false, false)] {
                    let solve = Linalg::TriangularSolve { lower, left_side, transform: Transform::None };
                    outs.push(b.push(Op::from(solve), &[a, a], &square));
                }
                outs.extend(b.push_all(Op::from(Qr { complete: false }), &[a], &[square.clone(), square.clone()]));
                outs
            }));
            found.push(named(format!("eigh {dtype} {batch} of {n}"), |b| {
                let a = b.input(dtype, &[batch, n, n]);
                b.push_all(Op::from(Eigh), &[a], &[values.clone(), square.clone()])
            }));
            if !dtype.is_complex() {
                found.push(named(format!("svd {dtype} {batch} of {n}"), |b| {
                    let a = b.input(dtype, &[batch, n, n]);
                    b.push_all(Op::from(Svd { full: false }), &[a], &[square.clone(), values.clone(), square.clone()])
                }));
            }
        }
    }
    found
}

/// All of them.
pub fn all() -> Vec<Named> {
    [products(), reductions(), elementwise(), structure(), windows(), linear_algebra()].into_iter().flatten().collect()
}
