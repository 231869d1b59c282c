//! Launches of matrix products.

use super::{Arguments, Compile, KernelSpec, MAX_POSITION, Place, launch};
use crate::codegen::dot::DotSpec;
use crate::kernel::launch::reduce::{Reduce, Target, reduce};
use crate::program::Reduction;
use crate::{DType, DeviceKind, Engine, Error, Result, Tensor, Type};

/// Workgroups that fill a large GPU.
const TARGET_GROUPS: u64 = 264;

/// Contracted elements per split, below which another dispatch costs more than it saves.
const MIN_SPLIT_DEPTH: u64 = 512;

/// An operand: `batches` matrices with a free and a contracted axis, each with one stride in elements.
#[derive(Debug)]
pub struct Matrix {
    pub tensor: Tensor,
    pub batches: u64,
    pub free: u64,
    pub depth: u64,
    pub batch_stride: i64,
    pub free_stride: i64,
    pub depth_stride: i64,
}

impl Matrix {
    /// Whether groups of four along the contiguous axis are aligned and whole.
    fn is_vectorizable(&self) -> bool {
        let fourfold = |stride: i64| stride.unsigned_abs().is_multiple_of(4);
        let along = |size: u64, stride: i64, other: i64| stride == 1 && size.is_multiple_of(4) && fourfold(other);
        let contiguous = along(self.depth, self.depth_stride, self.free_stride)
            || along(self.free, self.free_stride, self.depth_stride);
        contiguous && fourfold(self.batch_stride) && self.tensor.address().is_multiple_of(16)
    }
}

/// `out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`.
#[derive(Debug)]
pub struct Product<'a> {
    pub a: Matrix,
    pub b: Matrix,
    pub out: &'a Tensor,
}

impl Product<'_> {
    fn check_size(&self) -> Result<()> {
        for tensor in [&self.a.tensor, &self.b.tensor, self.out] {
            let (low, high) = tensor.view.extent();
            if (high - low) as u64 > MAX_POSITION {
                let size = tensor.view.dtype.size_bytes();
                return Err(Error::TooLarge {
                    size_bytes: tensor.view.elements() * size,
                    limit_bytes: MAX_POSITION * size,
                });
            }
        }
        Ok(())
    }
}

pub fn product(engine: &Engine, p: &Product<'_>, compile: Compile) -> Result<()> {
    p.check_size()?;
    let (a, b) = (&p.a, &p.b);
    let (rows, columns, depth, batches) = (a.free, b.free, a.depth, a.batches);
    let out_dtype = p.out.view.dtype;
    let target = if engine.caps().kind == DeviceKind::Cpu { 4 } else { TARGET_GROUPS };
    let mut spec = DotSpec { a: a.tensor.view.dtype, b: b.tensor.view.dtype, out: out_dtype, large_f32: true };
    let large_tiles = rows.div_ceil(spec.tile()) * columns.div_ceil(spec.tile()) * batches;
    spec.large_f32 = large_tiles >= (target / 4).max(1)
        && depth >= 64
        && [spec.a, spec.b, spec.out] == [DType::F32; 3]
        && columns.is_multiple_of(4)
        && a.is_vectorizable()
        && b.is_vectorizable();
    let tiles = rows.div_ceil(spec.tile()) * columns.div_ceil(spec.tile()) * batches;
    let splits = (target / tiles.max(1)).min(depth / MIN_SPLIT_DEPTH).max(1);
    // Partial sums keep the compute type until they are added up.
    let partial_dtype = if splits > 1 { out_dtype.ctype().dtype() } else { out_dtype };
    let spec = KernelSpec::Dot {
        spec: DotSpec { out: partial_dtype, ..spec },
        a_along_k: a.depth_stride.unsigned_abs() <= a.free_stride.unsigned_abs(),
        b_along_k: b.depth_stride.unsigned_abs() < b.free_stride.unsigned_abs(),
    };
    let kernel = engine.kernel(&spec, compile)?;
    let results = batches * rows * columns;
    let scratch = if splits > 1 {
        Tensor::uninitialized(engine, &Type::new(partial_dtype, &[splits, results]))?
    } else {
        p.out.clone()
    };
    let a_strides = [a.batch_stride, a.free_stride, a.depth_stride];
    let b_strides = [b.batch_stride, b.depth_stride, b.free_stride];
    let places = [
        Place { buffer: &a.tensor.buffer, address: a.tensor.address(), strides: &a_strides, element_bytes: 0 },
        Place { buffer: &b.tensor.buffer, address: b.tensor.address(), strides: &b_strides, element_bytes: 0 },
        Place { buffer: &scratch.buffer, address: scratch.address(), strides: &[], element_bytes: 0 },
    ];
    let chunk = depth.div_ceil(splits).next_multiple_of(16);
    let extra = [rows, columns, depth, batches, chunk, splits].map(|x| x as u32);
    let arguments = Arguments { count: results as u32, sizes: &[], places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 2, tiles * splits)?;
    if splits > 1 {
        let what = Reduce { reduction: Reduction::Sum, tie_high: false, axes: &[0], out: out_dtype };
        let target = Target { buffer: &p.out.buffer, offset_bytes: p.out.view.offset_bytes() };
        reduce(engine, &scratch.buffer, &scratch.view, what, target, compile)?;
    }
    Ok(())
}
