//! Launches of matrix products.

mod choice;

pub use choice::{candidates, choose, estimate};
use choice::{pays, square};

use super::{Arguments, Compile, KernelSpec, MAX_POSITION, Place, launch, linalg, max_position};
use crate::codegen::dot::{DotSpec, Load, Store, Tiling};
use crate::eager::copy;
use crate::kernel::launch::inner::{Factor, inner};
use crate::kernel::launch::reduce::{Reduce, Target, reduce};
use crate::program::Reduction;
use crate::shape::{Dims, Space, Strides, elements};
use crate::{CType, Engine, Error, Result, Tensor, Type};

/// Products up to which sums of 32 bits are kept in f64, as in `Nx.BinaryBackend`: time that no device notices.
const MAX_WIDE_PRODUCTS: u64 = 1 << 16;
const MAX_WIDE_DEPTH: u64 = 512;

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
        self.loaded_along_k().is_some()
    }

    /// Whether groups of four along the contracted axis are loaded, or along the free one; `None` where neither's are aligned and
    /// whole.
    fn loaded_along_k(&self) -> Option<bool> {
        let fourfold = |strides: &[i64]| strides.iter().all(|s| s.unsigned_abs().is_multiple_of(4));
        let along = |one: &Group, other: &Group| {
            one.is_fourfold() && fourfold(one.others(true)) && fourfold(other.others(false))
        };
        let alignment = (4 * self.tensor.view.dtype.size_bytes()).min(16);
        if !fourfold(&self.batch.strides) || !self.tensor.address().is_multiple_of(alignment) {
            return None;
        }
        match (along(&self.depth, &self.free), along(&self.free, &self.depth)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    /// How it is loaded; `ties` where both axes are equally near.
    fn load(&self, ties: bool) -> Load {
        let (depth, free) = (self.depth.last_stride().unsigned_abs(), self.free.last_stride().unsigned_abs());
        let by_four = self.loaded_along_k();
        Load { along_k: by_four.unwrap_or(depth < free || (ties && depth == free)), by_four: by_four.is_some() }
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

/// How one product is launched: the kernel's tiling, and the splits of the contracted axis, whose partial sums another dispatch
/// adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub tiling: Tiling,
    pub splits: u64,
}

/// The cheapest of all ways to launch a product.
///
/// # Errors
/// `TooLarge` where 32-bit positions don't reach.
pub fn product(engine: &Engine, p: &Product<'_>, compile: Compile) -> Result<()> {
    p.check_size()?;
    let (rows, columns, depth) = (p.a.free.elements(), p.b.free.elements(), p.a.depth.elements());
    let is_small = depth < MAX_WIDE_DEPTH && rows * columns * depth * p.a.batch.elements() <= MAX_WIDE_PRODUCTS;
    let mut spec = spec(p);
    if is_small {
        spec.sum = linalg::wide(engine, spec.out);
    }
    if is_narrow(p, &spec) {
        return product_as(engine, p, spec.sum, Choice { tiling: Tiling::Narrow, splits: 1 }, compile);
    }
    if !is_small && (rows == 1 || columns == 1) && vectors(engine, p, compile)? {
        return Ok(());
    }
    let choice = if is_small || !pays(engine, p) { square(engine, p, spec.sum) } else { choose(engine, p, spec.sum) };
    product_as(engine, p, spec.sum, choice, compile)
}

/// The kernel of a product apart from its tiling.
fn spec(p: &Product<'_>) -> DotSpec {
    let out = p.out.view.dtype;
    DotSpec {
        a: p.a.tensor.view.dtype,
        b: p.b.tensor.view.dtype,
        out,
        sum: out.ctype(),
        a_ranks: p.a.axes(true).0,
        b_ranks: p.b.axes(false).0,
        a_load: p.a.load(true),
        b_load: p.b.load(false),
        store: Store { rank: None, by_four: false },
        tiling: Tiling::Square,
    }
}

/// Launches a product in one way, with sums of the given type. Operands are those that [`product`] takes.
///
/// # Errors
/// As of [`product`]; `InvalidProgram` for no splits.
pub fn product_as(engine: &Engine, p: &Product<'_>, sum: CType, choice: Choice, compile: Compile) -> Result<()> {
    p.check_size()?;
    let Choice { tiling, splits } = choice;
    let (a, b) = (&p.a, &p.b);
    let (rows, columns) = (a.free.elements(), b.free.elements());
    let (depth, batches) = (a.depth.elements(), a.batch.elements());
    let results = batches * rows * columns;
    if splits == 0 || splits * results > MAX_POSITION {
        return Err(Error::InvalidProgram { op: "dot".to_string(), reason: format!("{splits} splits") });
    }
    let out_dtype = p.out.view.dtype;
    let mut spec = DotSpec { sum, tiling, ..spec(p) };
    let (is_contiguous, out_axes) = (p.out.view.is_contiguous(), Group::new(&p.out.view.shape, &p.out.view.strides));
    if splits > 1 {
        // Partial sums keep the compute type until they are added up.
        spec.out = out_dtype.ctype().dtype();
    }
    let scratch = if splits > 1 {
        Tensor::uninitialized(engine, &Type::new(spec.out, &[splits, results]))?
    } else {
        p.out.clone()
    };
    let alignment = (4 * spec.out.size_bytes()).min(16);
    let fourfold = columns.is_multiple_of(4) && scratch.address().is_multiple_of(alignment);
    spec.store = match out_axes.rank() as u8 {
        _ if is_contiguous || splits > 1 => Store { rank: None, by_four: fourfold },
        rank => {
            let others = out_axes.others(true).iter().all(|s| s.unsigned_abs().is_multiple_of(4));
            Store { rank: Some(rank), by_four: fourfold && out_axes.is_fourfold() && others }
        }
    };
    let tiles = spec.tiles(batches, rows, columns);
    let kernel = engine.kernel(&KernelSpec::Dot(spec), compile)?;
    // The axes of all three, one after the other; a place has no strides along those of the others.
    let (_, a_sizes, a_strides) = a.axes(true);
    let (_, b_sizes, b_strides) = b.axes(false);
    let b_strides: Strides = std::iter::repeat_n(0, a_sizes.len()).chain(b_strides).collect();
    let out_strides: Strides =
        std::iter::repeat_n(0, b_strides.len()).chain(out_axes.strides.iter().copied()).collect();
    let sizes: Dims = a_sizes.into_iter().chain(b_sizes).chain(out_axes.sizes).collect();
    let places = [
        Place { buffer: &a.tensor.buffer, address: a.tensor.address(), strides: &a_strides, element_bytes: 0 },
        Place { buffer: &b.tensor.buffer, address: b.tensor.address(), strides: &b_strides, element_bytes: 0 },
        Place { buffer: &scratch.buffer, address: scratch.address(), strides: &out_strides, element_bytes: 0 },
    ];
    let block = match tiling {
        Tiling::Tiled(tile) => tile.block(),
        Tiling::Square | Tiling::Narrow => 16,
    };
    let chunk = depth.div_ceil(splits).next_multiple_of(block);
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
