//! Fourier transforms and convolutions.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::conv::Conv;
use nx_vulkan_engine::program::fourier::Fourier;
use nx_vulkan_engine::program::ops::transform::Fft;
use nx_vulkan_engine::program::{Binary, Op, Unary};
use nx_vulkan_engine::shape::Dims;
use nx_vulkan_engine::{Compile, DType, Tensor, Type, eager};

use crate::{Bench, Outcome};

/// Kind, type of the samples, rows and length.
const TRANSFORMS: [(Fourier, DType, u64, u64); 16] = [
    (Fourier::Fft, DType::C64, 1000, 1000),
    (Fourier::Ifft, DType::C64, 1000, 1000),
    (Fourier::Fft, DType::C64, 1, 1_000_000),
    (Fourier::Fft, DType::C64, 997, 1021),
    (Fourier::Fft, DType::C64, 1, 999_983),
    (Fourier::Fft, DType::C64, 4096, 729),
    (Fourier::Fft, DType::C64, 4096, 2187),
    (Fourier::Fft, DType::C64, 1536, 1536),
    (Fourier::Fft, DType::C64, 4096, 1001),
    (Fourier::Fft, DType::C64, 1 << 16, 60),
    (Fourier::Fft, DType::C64, 1024, 1024),
    (Fourier::Fft, DType::C64, 1, 1 << 20),
    (Fourier::Fft, DType::C128, 1000, 1000),
    (Fourier::Rfft, DType::F32, 4096, 4096),
    (Fourier::Irfft, DType::F32, 4096, 4096),
    (Fourier::Rfft, DType::F32, 1000, 1000),
];
const SMALL_TRANSFORMS: [(Fourier, DType, u64, u64); 3] = [
    (Fourier::Fft, DType::C64, 100, 1000),
    (Fourier::Fft, DType::C64, 97, 1021),
    (Fourier::Rfft, DType::F32, 64, 4096),
];

impl Bench {
    fn typed(&self, op: &Op, operands: &[Tensor], dtype: DType, shape: &[u64]) -> Outcome<Tensor> {
        eager::run(&self.engine, op, operands, &Type::new(dtype, shape), Compile::Allowed)
    }

    /// Values in (-1, 1) without a pattern.
    fn noise(&self, shape: &[u64]) -> Outcome<Tensor> {
        let n: u64 = shape.iter().product();
        let count = self.op(&Op::Iota { axis: None }, &[], &[n])?;
        let scale = self.op(&Op::Constant(Scalar::Float(78.233)), &[], &[])?;
        let angle = self.op(&Op::Binary(Binary::Multiply), &[count, scale], &[n])?;
        let sine = self.op(&Op::Unary(Unary::Sin), &[angle], &[n])?;
        self.op(&Op::Reshape, &[sine], shape)
    }

    fn timed(&self, what: &str, op: &Op, operands: &[Tensor], outs: &[Type], amount: f64, unit: &str) -> Outcome<()> {
        let ms = self.time(|| eager::run_all(&self.engine, op, operands, outs, Compile::Allowed).map(|_| ()))?;
        self.report(what, ms, amount, unit);
        Ok(())
    }

    pub fn transforms(&self, small: bool) -> Outcome<()> {
        let side: u64 = if small { 256 } else { 4096 };
        let rows = [self.typed(&Op::AsType, &[self.noise(&[side, side])?], DType::C64, &[side, side])?];
        let fft = |axis| Op::from(Fft { kind: Fourier::Fft, axis, length: side, eps: Scalar::Float(0.0) });
        let c64s = [Type::new(DType::C64, &[side, side])];
        let cells = (side * side) as f64 * 1e-9;
        self.timed("fft_rows_c64", &fft(1), &rows, &c64s, cells, "G/s")?;
        let ms = self.time(|| {
            let once = eager::run(&self.engine, &fft(1), &rows, &c64s[0], Compile::Allowed)?;
            eager::run(&self.engine, &fft(0), &[once], &c64s[0], Compile::Allowed).map(|_| ())
        })?;
        self.report("fft2_c64", ms, cells, "G/s");
        let sizes = if small { &SMALL_TRANSFORMS[..] } else { &TRANSFORMS };
        for &(kind, dtype, rows, length) in sizes {
            self.transform(kind, dtype, rows, length)?;
        }
        self.convolution(if small { (2, 16) } else { (64, 64) })
    }

    /// Rows along their last axis: `dtype` is that of the samples, or of the spectrum for `ifft`.
    fn transform(&self, kind: Fourier, dtype: DType, rows: u64, length: u64) -> Outcome<()> {
        let (wide, half) = (matches!(dtype, DType::F64 | DType::C128), length / 2 + 1);
        let complex = if wide { DType::C128 } else { DType::C64 };
        let (given, result) = match kind {
            Fourier::Fft | Fourier::Ifft => ((dtype, length), (complex, length)),
            Fourier::Rfft => ((dtype, length), (complex, half)),
            Fourier::Irfft => ((complex, half), (dtype, length)),
        };
        let operand = self.typed(&Op::AsType, &[self.noise(&[rows, given.1])?], given.0, &[rows, given.1])?;
        let op = Op::from(Fft { kind, axis: 1, length, eps: Scalar::Float(0.0) });
        let what = format!("{}_{rows}x{length}_{}", kind.name(), dtype.name());
        let out = [Type::new(result.0, &[rows, result.1])];
        self.timed(&what, &op, &[operand], &out, (rows * length) as f64 * 1e-9, "G/s")
    }

    /// 3 x 3 on 56 x 56, as many filters as channels, the padding that keeps the size.
    fn convolution(&self, (images, channels): (u64, u64)) -> Outcome<()> {
        let side = 56;
        let operands = [self.noise(&[images, channels, side, side])?, self.noise(&[channels, channels, 3, 3])?];
        let axes = Axes::from_slice(&[0, 1, 2, 3]);
        let ones = Dims::from_slice(&[1, 1]);
        let conv = Op::Conv(Box::new(Conv {
            strides: ones.clone(),
            padding: [(1, 1), (1, 1)].into_iter().collect(),
            input_dilation: ones.clone(),
            kernel_dilation: ones,
            feature_groups: 1,
            batch_groups: 1,
            input_axes: axes.clone(),
            kernel_axes: axes.clone(),
            output_axes: axes,
        }));
        let out = [Type::new(DType::F32, &[images, channels, side, side])];
        let work = (images * side * side * channels * channels * 9 * 2) as f64 * 1e-12;
        self.timed("conv_3x3_f32", &conv, &operands, &out, work, "TFLOP/s")
    }
}
