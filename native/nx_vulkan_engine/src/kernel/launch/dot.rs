//! Launches of matrix products.

use super::{Arguments, Compile, KernelSpec, MAX_POSITION, Place, launch, linalg, max_position};
use crate::codegen::dot::{DotSpec, Store, Tiling};
use crate::eager::copy;
use crate::kernel::launch::inner::{Factor, inner};
use crate::kernel::launch::reduce::{Reduce, Target, reduce};
use crate::program::Reduction;
use crate::shape::{Dims, Space, Strides, elements};
use crate::{DType, DeviceKind, Engine, Error, Result, Tensor, Type};

/// Workgroups that fill a large GPU.
const TARGET_GROUPS: u64 = 264;

/// Products up to which sums of 32 bits are kept in f64, as in `Nx.BinaryBackend`: time that no device notices.
const MAX_WIDE_PRODUCTS: u64 = 1 << 16;

/// Contracted elements per split, below which another dispatch costs more than it saves.
const MIN_SPLIT_DEPTH: u64 = 512;

/// Contracted elements per split, above which f32 loses digits, as long as partial sums take no more than so many bytes.
const MAX_SPLIT_DEPTH: u64 = 8192;
const MAX_PARTIAL_BYTES: u64 = 64 << 20;

/// Axes that count as one, outermost first; at least one.
#[derive(Debug, Clone)]
pub struct Group {
    sizes: Dims,
    strides: Strides,
}

impl Group {
    /// Merges what strides allow.
    pub fn new(sizes: &[u64], strides: &[i64]) -> Group {
        let space = Space::new(sizes, &[strides]);
        let strides = space.strides.into_iter().next().unwrap_or_default();
        Group { sizes: space.sizes, strides }
    }

    pub fn elements(&self) -> u64 {
        elements(&self.sizes)
    }

    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    fn last_stride(&self) -> i64 {
        self.strides.last().copied().unwrap_or(0)
    }

    /// Whether groups of four along the last axis are whole.
    fn is_fourfold(&self) -> bool {
        self.last_stride() == 1 && self.sizes.last().is_some_and(|n| n.is_multiple_of(4))
    }

    /// The strides but that of an axis along which loads go.
    fn others(&self, is_loaded: bool) -> &[i64] {
        &self.strides[..self.strides.len() - usize::from(is_loaded)]
    }
}

/// Contracted elements up to which one invocation adds up a result.
const MAX_NARROW_DEPTH: u64 = 1024;

/// An operand: batches of matrices with a free and a contracted axis, with strides in elements.
#[derive(Debug)]
pub struct Matrix {
    pub tensor: Tensor,
    pub batch: Group,
    pub free: Group,
    pub depth: Group,
}

impl Matrix {
    /// Whether groups of four along the contiguous axis are aligned and whole.
    pub fn is_vectorizable(&self) -> bool {
        let fourfold = |strides: &[i64]| strides.iter().all(|s| s.unsigned_abs().is_multiple_of(4));
        let along = |one: &Group, other: &Group| {
            one.is_fourfold() && fourfold(one.others(true)) && fourfold(other.others(false))
        };
        (along(&self.depth, &self.free) || along(&self.free, &self.depth))
            && fourfold(&self.batch.strides)
            && self.tensor.address().is_multiple_of(16)
    }

    /// Sizes and strides of all axes, the contracted ones last, or before the free ones.
    fn axes(&self, depth_last: bool) -> ([u8; 3], Dims, Strides) {
        let groups =
            if depth_last { [&self.batch, &self.free, &self.depth] } else { [&self.batch, &self.depth, &self.free] };
        let sizes = groups.iter().flat_map(|g| g.sizes.iter().copied()).collect();
        (groups.map(|g| g.rank() as u8), sizes, groups.iter().flat_map(|g| g.strides.iter().copied()).collect())
    }
}

/// `out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`; the axes of `out` merge to these three.
#[derive(Debug)]
pub struct Product<'a> {
    pub a: Matrix,
    pub b: Matrix,
    pub out: &'a Tensor,
}

impl Product<'_> {
    fn check_size(&self) -> Result<()> {
        let depth = self.a.depth.elements();
        if depth > MAX_POSITION {
            let size = self.a.tensor.view.dtype.size_bytes();
            let size_bytes = depth.saturating_mul(size);
            return Err(Error::TooLarge { size_bytes, limit_bytes: MAX_POSITION * size });
        }
        for tensor in [&self.a.tensor, &self.b.tensor, self.out] {
            let (low, high) = tensor.view.extent();
            let limit = max_position(tensor.view.dtype.size_bytes());
            if (high - low) as u64 > limit {
                let size = tensor.view.dtype.size_bytes();
                return Err(Error::TooLarge { size_bytes: tensor.view.elements() * size, limit_bytes: limit * size });
            }
        }
        Ok(())
    }
}

/// Whether an invocation per result beats tiles: the results fill less than a sixteenth of them, there are many results for the
/// elements that are contracted, and neighbouring ones read neighbours, or share what they read.
fn is_narrow(p: &Product<'_>, spec: &DotSpec) -> bool {
    let (rows, columns, batches) = (p.a.free.elements(), p.b.free.elements(), p.a.batch.elements());
    let (m, n) = spec.tile();
    let waste = spec.tiles(batches, rows, columns) * m * n / (batches * rows * columns).max(1);
    let is_near = |m: &Matrix| m.free.last_stride() <= m.depth.last_stride();
    let near = if columns >= rows { is_near(&p.b) } else { is_near(&p.a) };
    let depth = p.a.depth.elements();
    waste >= 16 && depth <= MAX_NARROW_DEPTH && (near || rows.max(columns) <= 64) && batches * rows * columns >= depth
}

/// The product of matrices one of which is a vector, if their axes merge alike; answers whether it did.
fn vectors(engine: &Engine, p: &Product<'_>, compile: Compile) -> Result<bool> {
    let alike = p.a.batch.sizes == p.b.batch.sizes && p.a.depth.sizes == p.b.depth.sizes;
    if !alike || !p.out.view.is_contiguous() {
        return Ok(false);
    }
    let (matrix, vector) = if p.b.free.elements() == 1 { (&p.a, &p.b) } else { (&p.b, &p.a) };
    let kept: Dims = matrix.batch.sizes.iter().chain(&matrix.free.sizes).copied().collect();
    let matrix_kept: Strides = matrix.batch.strides.iter().chain(&matrix.free.strides).copied().collect();
    let repeated = std::iter::repeat_n(&0, matrix.free.rank());
    let vector_kept: Strides = vector.batch.strides.iter().chain(repeated).copied().collect();
    let factors = [(matrix, &matrix_kept), (vector, &vector_kept)].map(|(m, kept)| Factor {
        buffer: &m.tensor.buffer,
        address: m.tensor.address(),
        dtype: m.tensor.view.dtype,
        kept,
        summed: &m.depth.strides,
    });
    let target = Target { buffer: &p.out.buffer, offset_bytes: p.out.view.offset_bytes() };
    inner(engine, factors, [&kept, &matrix.depth.sizes], target, p.out.view.dtype, compile)?;
    Ok(true)
}

pub fn product(engine: &Engine, p: &Product<'_>, compile: Compile) -> Result<()> {
    p.check_size()?;
    let (a, b) = (&p.a, &p.b);
    let (rows, columns) = (a.free.elements(), b.free.elements());
    let (depth, batches) = (a.depth.elements(), a.batch.elements());
    let out_dtype = p.out.view.dtype;
    let (a_ranks, a_sizes, a_strides) = a.axes(true);
    let (b_ranks, b_sizes, b_strides) = b.axes(false);
    let target = if engine.caps().kind == DeviceKind::Cpu { 4 } else { TARGET_GROUPS };
    let mut spec = DotSpec {
        a: a.tensor.view.dtype,
        b: b.tensor.view.dtype,
        out: out_dtype,
        sum: out_dtype.ctype(),
        a_ranks,
        b_ranks,
        store: Store::Contiguous,
        tiling: Tiling::Large,
    };
    // Of the shapes of large tiles, that which wastes the least.
    let shapes = [Tiling::Large, Tiling::Wide, Tiling::Tall].map(|tiling| DotSpec { tiling, ..spec });
    let best = shapes.into_iter().min_by_key(|spec| spec.tiles(batches, rows, columns)).unwrap_or(spec);
    let is_large = best.tiles(batches, rows, columns) >= (target / 4).max(1)
        && depth >= 64
        && [spec.a, spec.b, spec.out] == [DType::F32; 3]
        && columns.is_multiple_of(4)
        && a.is_vectorizable()
        && b.is_vectorizable();
    spec.tiling = if is_large { best.tiling } else { Tiling::Square };
    let is_small = depth < MIN_SPLIT_DEPTH && rows * columns * depth * batches <= MAX_WIDE_PRODUCTS;
    if is_small && !is_large {
        spec.sum = linalg::wide(engine, out_dtype);
    }
    if !is_large && is_narrow(p, &spec) {
        spec.tiling = Tiling::Narrow;
    } else if !is_small && (rows == 1 || columns == 1) && vectors(engine, p, compile)? {
        return Ok(());
    }
    let tiles = spec.tiles(batches, rows, columns);
    let partial_bytes = batches * rows * columns * out_dtype.ctype().dtype().size_bytes();
    let accurate = (depth / MAX_SPLIT_DEPTH).min(MAX_PARTIAL_BYTES / partial_bytes.max(1));
    let splits = match spec.tiling {
        Tiling::Narrow => 1,
        _ => (target / tiles.max(1)).min(depth / MIN_SPLIT_DEPTH).max(accurate).max(1),
    };
    // Partial sums keep the compute type until they are added up.
    let partial_dtype = if splits > 1 { out_dtype.ctype().dtype() } else { out_dtype };
    let (is_contiguous, out_axes) = (p.out.view.is_contiguous(), Group::new(&p.out.view.shape, &p.out.view.strides));
    let store = match out_axes.rank() as u8 {
        _ if is_contiguous || splits > 1 => Store::Contiguous,
        rank if out_axes.is_fourfold()
            && out_axes.others(true).iter().all(|s| s.unsigned_abs().is_multiple_of(4))
            && p.out.address().is_multiple_of(16) =>
        {
            Store::StridedByFour { rank }
        }
        rank => Store::Strided { rank },
    };
    let along_k = |m: &Matrix, ties: bool| {
        let (depth, free) = (m.depth.last_stride().unsigned_abs(), m.free.last_stride().unsigned_abs());
        depth < free || (ties && depth == free)
    };
    let spec = KernelSpec::Dot {
        spec: DotSpec { out: partial_dtype, store, ..spec },
        a_along_k: along_k(a, true),
        b_along_k: along_k(b, false),
    };
    let kernel = engine.kernel(&spec, compile)?;
    let results = batches * rows * columns;
    let scratch = if splits > 1 {
        Tensor::uninitialized(engine, &Type::new(partial_dtype, &[splits, results]))?
    } else {
        p.out.clone()
    };
    // The axes of all three, one after the other; a place has no strides along those of the others.
    let b_strides: Strides = std::iter::repeat_n(0, a_sizes.len()).chain(b_strides).collect();
    let out_strides: Strides =
        std::iter::repeat_n(0, b_strides.len()).chain(out_axes.strides.iter().copied()).collect();
    let sizes: Dims = a_sizes.into_iter().chain(b_sizes).chain(out_axes.sizes).collect();
    let places = [
        Place { buffer: &a.tensor.buffer, address: a.tensor.address(), strides: &a_strides, element_bytes: 0 },
        Place { buffer: &b.tensor.buffer, address: b.tensor.address(), strides: &b_strides, element_bytes: 0 },
        Place { buffer: &scratch.buffer, address: scratch.address(), strides: &out_strides, element_bytes: 0 },
    ];
    let chunk = depth.div_ceil(splits).next_multiple_of(16);
    let extra = [rows, columns, depth, batches, chunk, splits].map(|x| x as u32);
    let arguments = Arguments { count: results as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 2, tiles * splits)?;
    if splits > 1 {
        let whole = if is_contiguous { p.out.clone() } else { Tensor::uninitialized(engine, &p.out.view.ty())? };
        let what = Reduce { reduction: Reduction::Sum, tie_high: false, axes: &[0], out: out_dtype };
        let target = Target { buffer: &whole.buffer, offset_bytes: whole.view.offset_bytes() };
        reduce(engine, &scratch.buffer, &scratch.view, what, target, compile)?;
        if !is_contiguous {
            copy(engine, &whole, p.out, compile)?;
        }
    }
    Ok(())
}
