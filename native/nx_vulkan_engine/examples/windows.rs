//! Measures convolutions, sliding windows and folds. Prints one JSON object per line: what, milliseconds (median), and
//! the rate that the work implies.
//!
//! `cargo run --release --example windows [-- small]`; `small` fits a CPU device.

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::function::{Function, ScalarStep, Scalars};
use nx_vulkan_engine::program::ops::window::{Window, WindowScatter};
use nx_vulkan_engine::program::{Binary, Conv, Elementwise, Op, Reduction, Windows};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Tensor, Type, eager};

type Outcome<T> = Result<T, Error>;

struct Bench {
    engine: Arc<Engine>,
    small: bool,
}

/// Images, channels, height and width, in the order of memory that `axes` says.
const CHANNELS_FIRST: [usize; 4] = [0, 1, 2, 3];
const CHANNELS_LAST: [usize; 4] = [0, 3, 1, 2];

impl Bench {
    fn op(&self, op: &Op, operands: &[Tensor], shape: &[u64]) -> Outcome<Tensor> {
        eager::run(&self.engine, op, operands, &Type::new(DType::F32, shape), Compile::Allowed)
    }

    fn filled(&self, shape: &[u64]) -> Outcome<Tensor> {
        let count = self.op(&Op::Iota { axis: None }, &[], shape)?;
        let scale = self.op(&Op::Constant(Scalar::Float(1e-9)), &[], &[])?;
        self.op(&Op::Binary(Binary::Multiply), &[count, scale], shape)
    }

    /// Prints the median time of one run, from batches that keep the device busy.
    fn report(&self, what: &str, amount: f64, unit: &str, mut run: impl FnMut() -> Outcome<Tensor>) -> Outcome<()> {
        run()?;
        self.engine.wait()?;
        let start = Instant::now();
        run()?;
        self.engine.wait()?;
        let batch = ((0.05 / start.elapsed().as_secs_f64().max(1e-6)) as usize).clamp(1, 200);
        let mut times = vec![];
        for _ in 0..7 {
            let start = Instant::now();
            for _ in 0..batch {
                run()?;
            }
            self.engine.wait()?;
            times.push(start.elapsed().as_secs_f64() * 1e3 / batch as f64);
        }
        times.sort_by(f64::total_cmp);
        let ms = times[times.len() / 2];
        println!(
            "{{\"what\": \"{what}\", \"ms\": {ms:.5}, \"rate\": {:.2}, \"unit\": \"{unit}\"}}",
            amount / (ms * 1e-3)
        );
        Ok(())
    }

    /// A padded convolution of square images: `[images, channels, size]` to `filters` by kernels of `window`.
    fn conv(
        &self,
        what: &str,
        [images, channels, size]: [u64; 3],
        [filters, window, stride, groups]: [u64; 4],
        layout: [usize; 4],
    ) -> Outcome<()> {
        let images = if self.small { images.div_ceil(32) } else { images };
        let axes = Axes::from_slice(&layout);
        let low = (window as i64 - 1) / 2;
        let op = Conv {
            strides: [stride; 2].into_iter().collect(),
            padding: [(low, low); 2].into_iter().collect(),
            input_dilation: [1; 2].into_iter().collect(),
            kernel_dilation: [1; 2].into_iter().collect(),
            feature_groups: groups,
            batch_groups: 1,
            input_axes: axes.clone(),
            kernel_axes: Axes::from_slice(&CHANNELS_FIRST),
            output_axes: axes,
        };
        let mut input = [0; 4];
        for (&axis, own) in layout.iter().zip([images, channels, size, size]) {
            input[axis] = own;
        }
        let kernel = [filters, channels / groups, window, window];
        let invalid = |reason| Error::InvalidProgram { op: "conv".to_string(), reason };
        let out = op.output(&op.sizes(&input, &kernel).map_err(invalid)?);
        let operands = [self.filled(&input)?, self.filled(&kernel)?];
        let work = 2.0 * out.iter().chain(&kernel[1..]).product::<u64>() as f64;
        let op = Op::Conv(Box::new(op));
        self.report(what, work * 1e-12, "TFLOP/s", || self.op(&op, &operands, &out))
    }

    /// Windows over the last two axes, and the sources scattered back.
    fn windows(&self, what: &str, reduction: Reduction, window: u64, stride: u64, scatters: bool) -> Outcome<()> {
        let shape = [if self.small { 2 } else { 64 }, 64, 112, 112];
        let windows = Windows {
            sizes: [1, 1, window, window].into_iter().collect(),
            padding: [(0, 0); 4].into_iter().collect(),
            strides: [1, 1, stride, stride].into_iter().collect(),
            dilations: [1; 4].into_iter().collect(),
        };
        let invalid = |reason| Error::InvalidProgram { op: "windows".to_string(), reason };
        let counts = windows.counts(&shape).map_err(invalid)?;
        let a = self.filled(&shape)?;
        let moved = (shape.iter().product::<u64>() + counts.iter().product::<u64>()) as f64 * 4e-9;
        if scatters {
            let operands = [a, self.filled(&counts)?, self.filled(&[])?];
            let op = Op::from(WindowScatter { max: true, windows });
            return self.report(what, moved, "GB/s", || self.op(&op, &operands, &shape));
        }
        let op = Op::from(Window { reduction, windows });
        self.report(what, moved, "GB/s", || self.op(&op, std::slice::from_ref(&a), &counts))
    }

    fn folds(&self) -> Outcome<()> {
        let rows = if self.small { 1 << 12 } else { 1 << 20 };
        let add = Scalars::Elementwise(Elementwise::Binary(Binary::Add));
        let step = ScalarStep { op: add, args: [0, 1].into_iter().collect(), out: DType::F32 };
        let function = Box::new(Function { steps: vec![step], result: 2 });
        for (what, shape, axis, out) in [("fold_columns", [64, rows], 0, rows), ("fold_rows", [rows, 64], 1, rows)] {
            let operands = [self.filled(&shape)?, self.filled(&[])?];
            let op = Op::Fold { axes: Axes::from_slice(&[axis]), function: function.clone() };
            self.report(what, 64.0 * rows as f64 * 4e-9, "GB/s", || self.op(&op, &operands, &[out]))?;
        }
        for columns in [1, 4, 30] {
            let a = self.filled(&[16 * rows, columns])?;
            let op = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[0]), tie_high: false };
            let bytes = (16 * rows * columns) as f64 * 4e-9;
            let what = format!("sum_of_{columns}_columns");
            self.report(&what, bytes, "GB/s", || self.op(&op, std::slice::from_ref(&a), &[columns]))?;
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let bench = Bench { engine: Engine::open(None)?, small: std::env::args().any(|a| a == "small") };
    println!("{{\"device\": \"{}\"}}", bench.engine.info());
    for (name, layout) in [("channels_first", CHANNELS_FIRST), ("channels_last", CHANNELS_LAST)] {
        let conv = |what: &str, sizes, kernel| bench.conv(&format!("{what}_{name}"), sizes, kernel, layout);
        conv("conv_3x3_64", [64, 64, 56], [64, 3, 1, 1])?;
        conv("conv_3x3_256", [64, 256, 14], [256, 3, 1, 1])?;
        conv("conv_1x1_256", [64, 256, 56], [64, 1, 1, 1])?;
        conv("conv_7x7_3", [32, 3, 224], [64, 7, 2, 1])?;
        conv("conv_3x3_depthwise", [64, 64, 56], [64, 3, 1, 64])?;
    }
    bench.windows("max_pool_2x2", Reduction::Max, 2, 2, false)?;
    bench.windows("max_pool_3x3_by_2", Reduction::Max, 3, 2, false)?;
    bench.windows("window_sum_3x3", Reduction::Sum, 3, 1, false)?;
    bench.windows("window_scatter_2x2", Reduction::Max, 2, 2, true)?;
    bench.windows("window_scatter_3x3_by_2", Reduction::Max, 3, 2, true)?;
    bench.folds()
}
