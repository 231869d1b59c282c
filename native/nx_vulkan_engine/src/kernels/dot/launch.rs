//! Launches of matrix products.

use nx_vulkan_device::kernel::Waits;
use nx_vulkan_ir::program::epilogue::takes_prologues;
use nx_vulkan_ir::program::step::{Prologue, Ref, Step, stands_in_loop};
use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::params::ParamLayout;
use smallvec::SmallVec;

use super::choice::{has_vectors, lane_tiles, launch_of, shares_results};
use super::generate_matrix::STEP_OF_LINEAR;
use super::{
    Access, Border, Derived, DotSpec, EpilogueSpec, Feed, Image, Load, Store, Tiling, VectorTile, launch_derived,
    matrix,
};
use crate::kernels::launch::record;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::reduce::{Factor, Finish, Reduce, Target, inner, reduce};
use crate::kernels::{Arguments, Compile, Place, linalg};
use crate::program::{Binary, Elementwise, Reduction};
use crate::shape::{Dims, Space, Strides, contiguous_strides, elements};
use crate::{CType, DType, Engine, Error, Precision, Result, Tensor, Type};

/// Products up to which sums of 32 bits are kept in f64, as in `Nx.BinaryBackend`: time that no device notices.
const MAX_WIDE_PRODUCTS: u64 = 1 << 16;
/// Products up to which sums are kept in f64 where that is lowered, and takes tens of times as long.
const MAX_LOWERED_PRODUCTS: u64 = MAX_WIDE_PRODUCTS / 16;
const MAX_WIDE_DEPTH: u64 = 512;

/// Contracted elements per split, above which f32 loses digits, as long as partial sums take no more than so many
/// bytes.
pub(super) const MAX_SPLIT_DEPTH: u64 = 8192;
pub(super) const MAX_PARTIAL_BYTES: u64 = 64 << 20;

/// Axes that count as one, outermost first; at least one.
#[derive(Debug, Clone)]
pub struct MergedAxes {
    sizes: Dims,
    pub(super) strides: Strides,
}

impl MergedAxes {
    /// Merges what strides allow.
    pub fn new(sizes: &[u64], strides: &[i64]) -> MergedAxes {
        let space = Space::new(sizes, &[strides]);
        let strides = space.strides.into_iter().next().unwrap_or_default();
        MergedAxes { sizes: space.sizes, strides }
    }

    /// All of the axes, none merged with another.
    pub fn apart(sizes: &[u64], strides: &[i64]) -> MergedAxes {
        MergedAxes { sizes: sizes.into(), strides: strides.into() }
    }

    pub fn elements(&self) -> u64 {
        elements(&self.sizes)
    }

    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Elements of the innermost axis.
    pub(super) fn inner(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(1)
    }

    pub(super) fn last_stride(&self) -> i64 {
        self.strides.last().copied().unwrap_or(0)
    }

    /// Whether groups of `count` along the last axis are whole.
    fn is_multiple_of(&self, count: u64) -> bool {
        self.last_stride() == 1 && self.sizes.last().is_some_and(|n| n.is_multiple_of(count))
    }

    /// The strides but that of an axis along which loads go.
    fn others(&self, is_loaded: bool) -> &[i64] {
        &self.strides[..self.strides.len() - usize::from(is_loaded)]
    }
}

/// Elements between the first and the last one of a space, however they go.
fn span(sizes: &[u64], strides: &[i64]) -> u64 {
    sizes.iter().zip(strides).map(|(n, stride)| n.saturating_sub(1).saturating_mul(stride.unsigned_abs())).sum()
}

/// Contracted elements up to which one invocation adds up a result.
const MAX_NARROW_DEPTH: u64 = 1024;

/// Contracted elements up to which one invocation adds up a result of a vector and a small matrix, wherever neighbours
/// lie. Beyond, many invocations add up each result. Alike on all devices, since it is an order of sums.
const MAX_SHORT_DEPTH: u64 = 64;

/// An operand: batches of matrices with a free and a contracted axis, with strides in elements.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub tensor: Tensor,
    pub batch: MergedAxes,
    pub free: MergedAxes,
    pub depth: MergedAxes,
}

impl Matrix {
    /// Whether groups of four along the contiguous axis are aligned and whole.
    pub fn is_vectorizable(&self) -> bool {
        self.loaded_along_k(4).is_some()
    }

    /// Whether groups of `count` along the contracted axis are loaded, or along the free one; `None` where neither's
    /// are aligned and whole.
    pub fn loaded_along_k(&self, count: u64) -> Option<bool> {
        let multiples = |strides: &[i64]| strides.iter().all(|s| s.unsigned_abs().is_multiple_of(count));
        let along = |one: &MergedAxes, other: &MergedAxes| {
            one.is_multiple_of(count) && multiples(one.others(true)) && multiples(other.others(false))
        };
        let alignment = (count * self.tensor.view.dtype.size_bytes()).min(16);
        if !multiples(&self.batch.strides) || !self.tensor.address().is_multiple_of(alignment) {
            return None;
        }
        match (along(&self.depth, &self.free), along(&self.free, &self.depth)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    /// Whether it has more elements than lie between its first and its last one.
    fn repeats(&self) -> bool {
        let groups = [&self.batch, &self.free, &self.depth];
        let elements = groups.iter().fold(1u64, |count, g| count.saturating_mul(g.elements()));
        elements > groups.iter().map(|g| span(&g.sizes, &g.strides)).sum::<u64>() + 1
    }

    /// Whether another one lies as this one does, elsewhere.
    fn lies_as(&self, other: &Matrix, ties: bool) -> bool {
        let lines = |m: &Matrix| [&m.batch, &m.free, &m.depth].map(|axes| (axes.sizes.clone(), axes.strides.clone()));
        let is_alike = self.tensor.view.dtype == other.tensor.view.dtype && lines(self) == lines(other);
        is_alike && self.load(ties) == other.load(ties)
    }

    /// How it is loaded; `ties` where both axes are equally near.
    pub(super) fn load(&self, ties: bool) -> Load {
        let (depth, free) = (self.depth.last_stride().unsigned_abs(), self.free.last_stride().unsigned_abs());
        let by_four = self.loaded_along_k(4);
        Load { along_k: by_four.unwrap_or(depth < free || (ties && depth == free)), by_four: by_four.is_some() }
    }

    /// Sizes and strides of all axes, the contracted ones last, or before the free ones. Groups of one element have
    /// none.
    pub(super) fn axes(&self, depth_last: bool) -> ([u8; 3], Dims, Strides) {
        let groups =
            if depth_last { [&self.batch, &self.free, &self.depth] } else { [&self.batch, &self.depth, &self.free] };
        let ranks = groups.map(|g| if g.elements() == 1 { 0 } else { g.rank() as u8 });
        let some = || groups.iter().filter(|g| g.elements() != 1);
        let sizes = some().flat_map(|g| g.sizes.iter().copied()).collect();
        (ranks, sizes, some().flat_map(|g| g.strides.iter().copied()).collect())
    }
}

/// Elementwise steps on the results of a product.
#[derive(Debug)]
pub struct Epilogue<'a> {
    /// The type of the product itself, which is rounded to it first.
    pub dtype: DType,
    /// Operands with a stride for each axis of the results.
    pub inputs: &'a [Operand<'a>],
    /// Input 0 is the product, or inputs 0 and 1 are both, those after it are `inputs`. Positions are not known.
    pub steps: &'a [Step],
    pub result: Ref,
}

/// `out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`; the axes of `out` merge to these three.
#[derive(Debug)]
pub struct Product<'a> {
    pub a: Matrix,
    pub b: Matrix,
    /// Steps on the elements of either operand, only for products that [`takes_prologues`].
    pub prologues: [Option<Prologue>; 2],
    pub out: &'a Tensor,
    pub epilogue: Option<Epilogue<'a>>,
}

/// What decides how a product is launched: where its operands lie does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    pub batches: u64,
    pub rows: u64,
    pub columns: u64,
    pub depth: u64,
    /// The types of both operands, and of the product before its epilogue.
    pub operands: [DType; 2],
    pub product: DType,
    /// Steps of an epilogue that stands in a loop.
    pub looped_steps: usize,
    pub precision: Precision,
    /// Whether matrix units take the numbers of f16, and of bf16, operands as they are; of f64, whether they take bytes
    /// as kernels write them.
    pub own: [bool; 2],
    /// Whether an operand has elements more than once, as windows that overlap have.
    pub repeats: bool,
}

impl Outline {
    pub(super) fn multiplications(&self) -> u64 {
        (self.batches * self.rows * self.columns).saturating_mul(self.depth)
    }
}

impl Product<'_> {
    /// The type of the product before its epilogue.
    pub(super) fn dtype(&self) -> DType {
        self.epilogue.as_ref().map_or(self.out.view.dtype, |e| e.dtype)
    }

    pub(super) fn multiplications(&self) -> u64 {
        let results = self.a.batch.elements() * self.a.free.elements() * self.b.free.elements();
        results.saturating_mul(self.a.depth.elements())
    }

    fn inputs(&self) -> &[Operand<'_>] {
        self.epilogue.as_ref().map_or(&[], |e| e.inputs)
    }

    /// What decides how it is launched.
    pub fn outline(&self, precision: Precision, own: [bool; 2]) -> Outline {
        let looped = self.epilogue.as_ref().filter(|epilogue| stands_in_loop(epilogue.steps));
        Outline {
            batches: self.a.batch.elements(),
            rows: self.a.free.elements(),
            columns: self.b.free.elements(),
            depth: self.a.depth.elements(),
            operands: [self.a.tensor.view.dtype, self.b.tensor.view.dtype],
            product: self.dtype(),
            looped_steps: looped.map_or(0, |epilogue| epilogue.steps.len()),
            precision,
            own,
            repeats: self.a.repeats() || self.b.repeats(),
        }
    }

    /// Whether one launch can index all that the epilogue reads.
    fn reaches_inputs(&self, engine: &Engine) -> bool {
        let shape = &self.out.view.shape;
        self.inputs().iter().all(|o| span(shape, &o.strides) <= engine.reach().near(o.element.size_bytes().into()))
    }

    fn check_steps(&self, engine: &Engine) -> Result<()> {
        let bad = |reason: &str| Error::InvalidProgram { op: "dot".to_string(), reason: reason.to_string() };
        let known = |r: &Ref| !matches!(r, Ref::Coordinate(_) | Ref::Linear);
        let [rows, columns, depth] = [&self.a.free, &self.b.free, &self.a.depth].map(MergedAxes::elements);
        let mut prologues = self.prologues.iter().flatten().peekable();
        let unit_work = engine.model().programs.joins.unit_work;
        let batches = self.a.batch.elements();
        if prologues.peek().is_some() && !takes_prologues(unit_work, batches, rows, columns, depth) {
            return Err(bad("takes no steps on its operands"));
        }
        if !prologues.all(|p| known(&p.result) && p.steps.iter().all(|s| s.args.iter().all(known))) {
            return Err(bad("prologues know no positions"));
        }
        let Some(e) = &self.epilogue else { return Ok(()) };
        if !known(&e.result) || !e.steps.iter().all(|s| s.args.iter().all(known)) {
            return Err(bad("epilogues know no positions"));
        }
        if e.inputs.iter().any(|o| o.strides.len() != self.out.view.shape.len() || input_dtype(o).is_none()) {
            return Err(bad("an operand of the epilogue lies unlike the results"));
        }
        Ok(())
    }

    /// Whether kernels must reach far; `TooLarge` where none does.
    pub(super) fn is_far(&self, engine: &Engine) -> Result<bool> {
        let (depth, most) = (self.a.depth.elements(), engine.reach().far());
        if depth > most {
            let size = self.a.tensor.view.dtype.size_bytes();
            return Err(Error::TooLarge { size_bytes: depth.saturating_mul(size), limit_bytes: most * size });
        }
        engine.reach().is_far(&[&self.a.tensor.view, &self.b.tensor.view, &self.out.view])
    }
}

/// Whether an invocation per result beats tiles: the results fill less than a sixteenth of them, there are many results
/// for the elements that are contracted, and neighbouring ones read neighbours, or share what they read.
fn is_narrow(p: &Product<'_>, spec: &DotSpec) -> bool {
    let (rows, columns, batches) = (p.a.free.elements(), p.b.free.elements(), p.a.batch.elements());
    let (m, n) = spec.tile();
    let waste = spec.tiles(batches, rows, columns) * m * n / (batches * rows * columns).max(1);
    let is_near = |m: &Matrix| m.free.last_stride() <= m.depth.last_stride();
    let near = if columns >= rows { is_near(&p.b) } else { is_near(&p.a) };
    let depth = p.a.depth.elements();
    waste >= 16 && depth <= MAX_NARROW_DEPTH && (near || rows.max(columns) <= 64) && batches * rows * columns >= depth
}

/// The product of matrices one of which is a vector, if their axes merge alike, into `out`, with its epilogue if it is
/// to `finish`; answers whether it did.
fn vectors(engine: &Engine, p: &Product<'_>, out: &Tensor, finish: bool, far: bool, compile: Compile) -> Result<bool> {
    let alike = p.a.batch.sizes == p.b.batch.sizes && p.a.depth.sizes == p.b.depth.sizes;
    if !alike || !out.view.is_contiguous() {
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
    let target = Target { buffer: &out.buffer, offset_bytes: out.view.offset_bytes() };
    let (shape, dtype) = (&out.view.shape[..], out.view.dtype);
    let finish = p.epilogue.as_ref().filter(|_| finish).map(|epilogue| Finish { epilogue, shape, out: dtype });
    inner(engine, factors, [&kept, &matrix.depth.sizes], target, p.dtype(), finish, far, compile)?;
    Ok(true)
}

/// How one product is launched: the kernel's tiling, and the splits of the contracted axis, whose partial sums another
/// dispatch adds up.
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
    let far = p.is_far(engine)?;
    p.check_steps(engine)?;
    let (sum, is_reduced, choice) = way(engine, p, compile)?;
    if is_reduced {
        if p.reaches_inputs(engine) && vectors(engine, p, p.out, true, far, compile)? {
            return Ok(());
        }
        if p.epilogue.is_some() {
            let whole = Tensor::uninitialized(engine, &Type::new(p.dtype(), &p.out.view.shape))?;
            if vectors(engine, p, &whole, false, far, compile)? {
                return finish(engine, p, &parts(&whole, p, 1), compile);
            }
        }
    }
    product_as(engine, p, sum, choice, compile)
}

/// The type of a product's sums, whether it is a reduction if its axes merge alike, and else how it is launched.
pub(super) fn way(engine: &Engine, p: &Product<'_>, compile: Compile) -> Result<(CType, bool, Choice)> {
    let (rows, columns, depth) = (p.a.free.elements(), p.b.free.elements(), p.a.depth.elements());
    let is_small = depth < MAX_WIDE_DEPTH && p.multiplications() <= MAX_WIDE_PRODUCTS;
    let is_vector = rows == 1 || columns == 1;
    let is_short = is_small && is_vector && depth <= MAX_SHORT_DEPTH;
    let mut spec = spec(p);
    if is_small && (engine.caps().shader_float64 || p.multiplications() <= MAX_LOWERED_PRODUCTS) {
        spec.sum = linalg::wide(spec.product);
    }
    // No choice here asks what units the device has.
    let outline = p.outline(engine.precision(), [false; 2]);
    if is_short || (is_narrow(p, &spec) && !shares_results(engine.model(), &outline, spec.sum)) {
        return Ok((spec.sum, false, Choice { tiling: Tiling::Narrow, splits: 1 }));
    }
    // Sums of f32 are to have all digits.
    let is_narrow_type = spec.sum == CType::F32 && spec.product != DType::F32;
    let is_reduced = is_vector && !(is_narrow_type && has_vectors(engine.model(), rows.max(columns)));
    let choose = |own| launch_of(engine.model(), &p.outline(engine.precision(), own), spec.sum, is_small);
    let choice = match spec.product {
        // The answer takes kernels of its own, so that only products ask that units are chosen for.
        DType::F64 => match choose([true, false]) {
            Choice { tiling: Tiling::Residues(_), .. } if !engine.takes_own_numbers(DType::F64, compile)?[0] => {
                choose([false; 2])
            }
            choice => choice,
        },
        product => choose(engine.takes_own_numbers(product, compile)?),
    };
    Ok((spec.sum, is_reduced, choice))
}

/// Few vectors by two matrices: `beside` lies in the place of the operand at `place`, which is the other one. The steps
/// of the epilogue take both products, with the bits that each has alone. Answers whether one kernel does it.
///
/// # Errors
/// As of [`product`].
pub fn product_pair(engine: &Engine, p: &Product<'_>, beside: &Matrix, place: usize, compile: Compile) -> Result<bool> {
    p.is_far(engine)?;
    p.check_steps(engine)?;
    let (sum, is_reduced, choice) = way(engine, p, compile)?;
    let (Tiling::Vectors(tile), 1, false) = (choice.tiling, choice.splits, is_reduced) else { return Ok(false) };
    match tile.of_pair() {
        Some(tile) if sum == CType::F32 => pair_as(engine, p, beside, place, tile, compile),
        _ => Ok(false),
    }
}

/// The product of vectors with two matrices by a tile for pairs.
///
/// # Errors
/// As of [`product_as`].
pub fn pair_as(
    engine: &Engine,
    p: &Product<'_>,
    beside: &Matrix,
    place: usize,
    tile: VectorTile,
    compile: Compile,
) -> Result<bool> {
    let matrix = if place == 0 { &p.a } else { &p.b };
    let is_matrix = tile.first == (place == 1);
    if !is_matrix || !matrix.lies_as(beside, place == 0) || !tile.fits(engine.caps()) || !p.reaches_inputs(engine) {
        return Ok(false);
    }
    let ends_early = ends_within_eights(p);
    let by_eights = takes_by_eights(engine, tile);
    let tiling = Tiling::Vectors(tile);
    let mut spec = DotSpec { tiling, wide: is_wide(engine), ends_early, by_eights, ..spec(p) };
    let space = direct(p, &mut spec, false);
    let results = Results { out: p.out, space, inputs: p.inputs(), splits: 1 };
    launch_plain(engine, p, spec, &results, (&[&beside.tensor], Waits::All), compile)?;
    Ok(true)
}

/// Whether the contracted elements are no whole groups of eight.
fn ends_within_eights(p: &Product<'_>) -> bool {
    !p.a.depth.elements().is_multiple_of(8)
}

/// Whether invocations of a tile may take eight neighbours of a matrix.
fn takes_by_eights(engine: &Engine, tile: VectorTile) -> bool {
    u64::from(tile.count) <= engine.model().products.eights_vectors
}

/// Whether parameters may fill `ParamLayout::WIDE_PUSH_WORDS`.
fn is_wide(engine: &Engine) -> bool {
    u64::from(engine.caps().max_push_bytes) >= 4 * ParamLayout::WIDE_PUSH_WORDS as u64
}

/// Makes a kernel store results where they belong, after its epilogue: the space in which they and its operands lie.
fn direct(p: &Product<'_>, spec: &mut DotSpec, by_four: bool) -> Space {
    let strides: SmallVec<[&[i64]; 4]> =
        std::iter::once(&p.out.view.strides[..]).chain(p.inputs().iter().map(|o| &o.strides[..])).collect();
    let space = Space::new(&p.out.view.shape, &strides);
    let (store, ports) = store(p, &space);
    spec.store = Store { by_four: store.by_four && by_four, ..store };
    spec.epilogue =
        p.epilogue.as_ref().map(|e| EpilogueSpec { inputs: ports, steps: e.steps.into(), result: e.result });
    space
}

/// The kernel of a product apart from its tiling and where results go.
fn spec(p: &Product<'_>) -> DotSpec {
    DotSpec {
        a: p.a.tensor.view.dtype,
        b: p.b.tensor.view.dtype,
        product: p.dtype(),
        out: p.out.view.dtype,
        sum: p.dtype().ctype(),
        a_ranks: p.a.axes(true).0,
        b_ranks: p.b.axes(false).0,
        a_load: p.a.load(true),
        b_load: p.b.load(false),
        prologues: p.prologues.clone(),
        derived: None,
        linear: None,
        store: Store { rank: 0, contiguous: true, by_four: false, by_eight: false },
        tiling: Tiling::Square,
        guarded: false,
        low_b_first: false,
        ends_early: false,
        border: None,
        by_eights: false,
        wide: false,
        epilogue: None,
    }
}

fn input_dtype(operand: &Operand<'_>) -> Option<DType> {
    match operand.element {
        Element::Typed(dtype) => Some(dtype),
        Element::Raw(_) => None,
    }
}

/// How kernels store results of a space, and read operands of the epilogue. The first strides are those of the results.
fn store(p: &Product<'_>, space: &Space) -> (Store, SmallVec<[(DType, Access); 2]>) {
    let fourfold = |strides: &[i64]| strides.iter().all(|s| *s >= 0 && s.unsigned_abs().is_multiple_of(4));
    let aligned = |address: u64, size: u64| address.is_multiple_of((4 * size).min(16));
    let is_whole = space.sizes.last().is_some_and(|n| n.is_multiple_of(4));
    // Whether four neighbours along the last axis are neighbours in memory.
    let by_four = |strides: &[i64], address: u64, size: u64| match strides.split_last() {
        Some((1, others)) => is_whole && fourfold(others) && aligned(address, size),
        _ => false,
    };
    let none = Strides::new();
    let out = space.strides.first().unwrap_or(&none);
    let contiguous = p.out.view.is_contiguous();
    let columns = p.b.free.elements();
    let results_by_four = columns.is_multiple_of(4)
        && if contiguous {
            aligned(p.out.address(), p.out.view.dtype.size_bytes()) && (is_whole || p.inputs().is_empty())
        } else {
            by_four(out, p.out.address(), p.out.view.dtype.size_bytes())
        };
    let mut inputs = SmallVec::new();
    for (operand, strides) in p.inputs().iter().zip(space.strides.iter().skip(1)) {
        let how = match strides.last() {
            _ if strides.iter().all(|&s| s == 0) => Access::Uniform,
            Some(0) if strides.iter().all(|&s| s >= 0) => Access::Repeated,
            _ if by_four(strides, operand.address(), operand.element.size_bytes().into()) => Access::Neighbours,
            _ => Access::Strided,
        };
        inputs.push((input_dtype(operand).unwrap_or(DType::U32), how));
    }
    let needs_rank = !contiguous || inputs.iter().any(|(_, how)| *how != Access::Uniform);
    let rank = if needs_rank { space.rank() as u8 } else { 0 };
    (Store { rank, contiguous, by_four: results_by_four, by_eight: false }, inputs)
}

/// Launches a product in one way, with sums of the given type. Operands are those that [`product`] takes.
///
/// # Errors
/// As of [`product`]; `InvalidProgram` for no splits, and for matrix units that can't take the operands.
pub fn product_as(engine: &Engine, p: &Product<'_>, sum: CType, choice: Choice, compile: Compile) -> Result<()> {
    product_with(engine, p, sum, choice, Instead::Nothing, compile)
}

/// What stands in the place of an operand in memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Instead<'a> {
    Nothing,
    /// Of the first one, or of the second.
    Image(&'a Image<'a>, bool),
    /// Of the first one, or of the second: an image whose windows it is, among zeros that lie nowhere.
    Border(&'a Border, bool),
    /// Of the matrix that vectors multiply.
    Derived(&'a Derived),
}

/// The product of f32 on matrix units, which read one operand in place: the first one or, if it is `second`, the other
/// one, whose memory is given the elements of the image only where units can't take them.
///
/// # Errors
/// As of [`product_as`].
pub fn product_of_image(
    engine: &Engine,
    p: &Product<'_>,
    choice: Choice,
    image: &Image<'_>,
    second: bool,
    compile: Compile,
) -> Result<()> {
    product_with(engine, p, CType::F32, choice, Instead::Image(image, second), compile)
}

pub(super) fn product_with(
    engine: &Engine,
    p: &Product<'_>,
    sum: CType,
    choice: Choice,
    instead: Instead<'_>,
    compile: Compile,
) -> Result<()> {
    p.check_steps(engine)?;
    let Choice { tiling, splits } = choice;
    let columns = p.b.free.elements();
    let results = p.a.batch.elements() * p.a.free.elements() * columns;
    if splits == 0 || splits * results > engine.reach().far() {
        return Err(Error::InvalidProgram { op: "dot".to_string(), reason: format!("{splits} splits") });
    }
    let mut spec = DotSpec { sum, tiling, wide: is_wide(engine), ..spec(p) };
    if let Tiling::Vectors(tile) = tiling {
        let vectors = if tile.first { p.a.free.elements() } else { columns };
        if sum != CType::F32 || vectors > tile.count.into() || !tile.fits(engine.caps()) {
            let reason = format!("{vectors} vectors with sums of {} for {tile:?}", sum.name());
            return Err(Error::InvalidProgram { op: "dot".to_string(), reason });
        }
        spec.ends_early = ends_within_eights(p);
        spec.by_eights = takes_by_eights(engine, tile);
    }
    if let Tiling::Lanes(tile) = tiling {
        if !lane_tiles(engine.model(), sum).contains(&tile) {
            return Err(Error::InvalidProgram { op: "dot".to_string(), reason: format!("no lanes for {tile:?}") });
        }
        let is_aligned = [spec.a_load, spec.b_load].iter().all(|load| load.by_four);
        let has_pairs = tile.takes_pairs(sum) && engine.caps().shader_int64 && engine.caps().subgroup_ops.shuffle;
        let takes_pairs = |dtype: &DType| matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
        if !(has_pairs && is_aligned && [spec.a, spec.b].iter().all(takes_pairs)) {
            // Kernels for all layouts are one.
            [spec.a_load, spec.b_load] = [Load { along_k: true, by_four: false }; 2];
        }
    }
    let by_four = match tiling {
        // Lanes that take pairs of neighbours store pairs.
        Tiling::Lanes(_) => spec.a_load.by_four,
        Tiling::Vectors(_) | Tiling::Narrow => false,
        Tiling::Matrix(tile) if matches!(tile.feed, Feed::Linear { .. }) => false,
        Tiling::Square | Tiling::Tiled(_) | Tiling::Matrix(_) | Tiling::Residues(_) => true,
    };
    // Results go to the end, or on the way there to a part of their own for each split, which keeps the type of sums.
    let parts_type = |dtype: DType| Type::new(dtype, &[splits, results]);
    let on_the_way = match splits {
        1 if p.reaches_inputs(engine) => None,
        1 => Some(Tensor::uninitialized(engine, &parts_type(p.dtype()))?),
        _ => Some(Tensor::uninitialized(engine, &parts_type(sum.dtype()))?),
    };
    let (space, inputs) = match &on_the_way {
        None => (direct(p, &mut spec, by_four), p.inputs()),
        Some(parts) => {
            (spec.product, spec.out) = (parts.view.dtype, parts.view.dtype);
            spec.store.by_four = by_four && columns.is_multiple_of(4);
            (Space::new(&[results], &[&[1]]), &[][..])
        }
    };
    let results = Results { out: on_the_way.as_ref().unwrap_or(p.out), space, inputs, splits };
    match (tiling, instead) {
        (_, Instead::Derived(derived)) => launch_derived::launch(engine, p, spec, derived, &results, compile)?,
        (Tiling::Matrix(tile), _) => matrix::launch_product(engine, p, spec, tile, instead, &results, compile)?,
        (Tiling::Residues(tile), _) => matrix::launch_residues(engine, p, spec, tile, &results, compile)?,
        _ => launch_plain(engine, p, spec, &results, (&[], Waits::All), compile)?,
    }
    match &on_the_way {
        None => Ok(()),
        Some(whole) if splits <= MAX_ADDED => finish(engine, p, &parts(whole, p, splits), compile),
        Some(many) => {
            let whole = Tensor::uninitialized(engine, &Type::new(p.dtype(), &p.out.view.shape))?;
            let what = Reduce { reduction: Reduction::Sum, tie_high: false, axes: &[0], out: p.dtype() };
            let direct = p.epilogue.is_none() && p.out.view.is_contiguous();
            let to = if direct { p.out } else { &whole };
            let target = Target { buffer: &to.buffer, offset_bytes: to.view.offset_bytes() };
            reduce(engine, &many.buffer, &many.view, what, target, compile)?;
            if direct { Ok(()) } else { finish(engine, p, &parts(&whole, p, 1), compile) }
        }
    }
}

/// Where the kernel of a product stores, and what its epilogue reads, each with strides in `space`.
pub(super) struct Results<'a> {
    out: &'a Tensor,
    pub(super) space: Space,
    inputs: &'a [Operand<'a>],
    pub(super) splits: u64,
}

impl Results<'_> {
    /// Whether kernels must reach far for it.
    pub(super) fn is_far(&self, engine: &Engine) -> Result<bool> {
        engine.reach().is_far(&[&self.out.view])
    }

    /// Whether groups of eight results are aligned.
    pub(super) fn is_aligned(&self) -> bool {
        self.out.address().is_multiple_of(8 * self.out.view.dtype.size_bytes())
    }

    /// The sizes of both operands' axes and those of results, one after the other, and along them the strides of the
    /// second operand, and of results and inputs: none along the axes of others.
    pub(super) fn behind(
        &self,
        a_sizes: Dims,
        (b_sizes, b_strides): (Dims, Strides),
    ) -> (Dims, Strides, SmallVec<[Strides; 4]>) {
        let b_strides: Strides = std::iter::repeat_n(0, a_sizes.len()).chain(b_strides).collect();
        let behind = |s: &Strides| std::iter::repeat_n(0, b_strides.len()).chain(s.iter().copied()).collect();
        let strides = self.space.strides.iter().map(behind).collect();
        let sizes = a_sizes.into_iter().chain(b_sizes).chain(self.space.sizes.iter().copied()).collect();
        (sizes, b_strides, strides)
    }

    /// The places of inputs and results.
    pub(super) fn places<'a>(&'a self, strides: &'a [Strides]) -> SmallVec<[Place<'a>; 4]> {
        let mut places = SmallVec::new();
        for (operand, strides) in self.inputs.iter().zip(strides.iter().skip(1)) {
            let element_bytes = operand.element.size_bytes().into();
            places.push(Place { buffer: operand.buffer, address: operand.address(), strides, element_bytes });
        }
        let strides = strides.first().map_or(&[][..], |s| &s[..]);
        places.push(Place { buffer: &self.out.buffer, address: self.out.address(), strides, element_bytes: 0 });
        places
    }
}

/// Launches a kernel that takes operands as they are; `guard` tells whether it is to, if it takes turns with one for
/// matrix units, and it `waits` for all or stands beside that.
pub(super) fn launch_plain(
    engine: &Engine,
    p: &Product<'_>,
    spec: DotSpec,
    results: &Results<'_>,
    (guard, waits): (&[&Tensor], Waits),
    compile: Compile,
) -> Result<()> {
    let guard: SmallVec<[Place<'_>; 3]> = guard.iter().map(|tensor| entire(tensor)).collect();
    launch_with(engine, p, spec, results, (&guard, &[], waits), compile)
}

/// Launches a product with operands between factors and those of the epilogue, which may lie along axes of their own.
pub(super) fn launch_with(
    engine: &Engine,
    p: &Product<'_>,
    spec: DotSpec,
    results: &Results<'_>,
    (between, own_sizes, waits): (&[Place<'_>], &[u64], Waits),
    compile: Compile,
) -> Result<()> {
    let (a, b, splits) = (&p.a, &p.b, results.splits);
    let [rows, columns] = [a.free.elements(), b.free.elements()];
    let [depth, batches] = [a.depth.elements(), a.batch.elements()];
    let block = match spec.tiling {
        Tiling::Tiled(tile) => tile.block(),
        Tiling::Vectors(tile) => tile.block(),
        Tiling::Matrix(_) if spec.linear.is_some() => STEP_OF_LINEAR,
        Tiling::Square | Tiling::Narrow | Tiling::Lanes(_) | Tiling::Matrix(_) | Tiling::Residues(_) => 16,
    };
    let tiles = spec.tiles(batches, rows, columns);
    let far = engine.reach().is_far(&[&a.tensor.view, &b.tensor.view])? || results.is_far(engine)?;
    let kernel = engine.kernel_reaching(&spec, far, compile)?;
    let (_, a_sizes, a_strides) = a.axes(true);
    let (_, b_sizes, b_strides) = b.axes(false);
    let (mut sizes, b_strides, strides) = results.behind(a_sizes, (b_sizes, b_strides));
    sizes.extend_from_slice(own_sizes);
    let mut places: SmallVec<[Place<'_>; 8]> = SmallVec::new();
    let mut factors = [(&a.tensor, &a_strides), (&b.tensor, &b_strides)];
    // What lies nowhere is not read: the other one stands there, too.
    if let Some(place) = spec.derived_place() {
        factors[place] = factors[1 - place];
    }
    for (tensor, strides) in factors {
        let element_bytes = tensor.view.dtype.size_bytes();
        places.push(Place { buffer: &tensor.buffer, address: tensor.address(), strides, element_bytes });
    }
    places.extend_from_slice(between);
    let chunk = depth.div_ceil(splits).next_multiple_of(block);
    let extra = [rows, columns, depth, batches, chunk, splits].map(|x| x as u32);
    places.extend(results.places(&strides));
    let count = (batches * rows * columns) as u32;
    let arguments = Arguments { count, sizes: &sizes, places: &places, extra: &extra };
    record(engine, &kernel, &arguments, places.len() - 1, tiles * splits, waits)
}

/// A tensor of which a kernel knows where it begins.
pub(super) fn entire(tensor: &Tensor) -> Place<'_> {
    Place { buffer: &tensor.buffer, address: tensor.address(), strides: &[], element_bytes: 0 }
}

/// Splits whose sums one elementwise kernel adds up.
const MAX_ADDED: u64 = 8;

/// The parts that make up the results, each contiguous in their order.
fn parts<'t>(all: &'t Tensor, p: &Product<'_>, count: u64) -> SmallVec<[Operand<'t>; 8]> {
    let dtype = all.view.dtype;
    let shape = &p.out.view.shape;
    let size_bytes = shape.iter().product::<u64>() * dtype.size_bytes();
    let part = |k: u64| Operand {
        bounds: None,
        buffer: &all.buffer,
        element: Element::Typed(dtype),
        strides: contiguous_strides(shape),
        offset_bytes: all.view.offset_bytes() + k * size_bytes,
    };
    (0..count).map(part).collect()
}

/// Adds up parts of the results in their order, rounds, and takes them through the epilogue to where they belong.
fn finish(engine: &Engine, p: &Product<'_>, parts: &[Operand<'_>], compile: Compile) -> Result<()> {
    let mut steps: SmallVec<[Step; 1]> = SmallVec::new();
    let part_dtype = parts.first().and_then(input_dtype).unwrap_or(p.dtype());
    let mut whole = Ref::Input(0);
    for k in 1..parts.len() as u8 {
        steps.push(Step {
            op: Elementwise::Binary(Binary::Add),
            args: SmallVec::from_slice(&[whole, Ref::Input(k)]),
            out: part_dtype,
        });
        whole = Ref::Result(u16::from(k) - 1);
    }
    if part_dtype != p.dtype() {
        steps.push(Step { op: Elementwise::AsType, args: SmallVec::from_slice(&[whole]), out: p.dtype() });
        whole = Ref::Result(steps.len() as u16 - 1);
    }
    let (own_inputs, own_steps) = (parts.len() as u8, steps.len() as u16);
    let moved = |r: Ref| match r {
        Ref::Input(0) => whole,
        Ref::Input(k) => Ref::Input(own_inputs + k - 1),
        Ref::Result(k) => Ref::Result(own_steps + k),
        Ref::Constant(..) | Ref::Coordinate(_) | Ref::Linear => r,
    };
    let mut result = whole;
    if let Some(epilogue) = &p.epilogue {
        steps.extend(
            epilogue.steps.iter().map(|s| Step { args: s.args.iter().map(|&r| moved(r)).collect(), ..s.clone() }),
        );
        result = moved(epilogue.result);
    }
    let inputs: SmallVec<[Operand<'_>; 8]> = parts.iter().chain(p.inputs()).cloned().collect();
    let output = Operand::new(&p.out.buffer, &p.out.view, Element::Typed(p.out.view.dtype));
    map(engine, &p.out.view.shape, &inputs, steps, &[(result, output)], Shapes::Any, compile)
}
