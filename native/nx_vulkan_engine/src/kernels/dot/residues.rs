//! Products of f64 on matrix units for bytes, by residues: each row of an operand becomes whole numbers, these are
//! multiplied modulo numbers of at most eight bits, and what the residues of a sum leave is that sum, exactly. What is
//! lost is what whole numbers round off, which a product of coarse values bounds from the sum of the terms' sizes; where
//! that is too much, the plain kernel behind takes over.

use std::sync::Arc;

use smallvec::SmallVec;

use super::generate_residues::{BLOCK, SIDE, WORDS, groups_of_products, groups_of_words};
use super::{ResidueSpec, ResidueStage, ResidueTile};
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::shape::{Dims, Strides};
use crate::{DType, Engine, Error, Result, Tensor, Type, View};

#[cfg(test)]
mod tests;

/// The moduli, no two of which have a divisor in common; a product takes the first ones.
pub(super) const MODULI: [u16; 18] =
    [256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181];

/// Fewest moduli of a product, and bits of its whole numbers: three more than f64 has, which is what rows may span
/// before anything is rounded. Digits depend on them, so they are the same on all devices.
const LEAST_MODULI: usize = 16;
const LEAST_BITS: u32 = 56;

/// The most bits that residues_split.comp knows.
const MOST_BITS: u32 = 60;

/// How much of the moduli's product a sum may take, so that dot_restored.comp tells how often that is in it.
const SHARE_OF_PRODUCT: f64 = 0.49;

/// What whole numbers round off may change a result by this share of the sum of the terms' sizes, as a power of two:
/// guides/numerics.md states it.
const MOST_ERROR: i32 = -50;

/// Bits of coarse values, with those of contracted elements from which on their sums of 32 bits have room for fewer.
const COARSE_BITS: u32 = 7;
const LEAST_COARSE_BITS: u32 = 5;
const COARSE_DEPTH_BITS: u32 = 31 - 2 * COARSE_BITS;

/// The most contracted elements that are added up in 32 bits.
const PART_DEPTH: u64 = 1 << 16;

/// Steps of 32 contracted elements that a part has at least, and parts that fill a device at most.
const LEAST_STEPS: u64 = 16;
const MOST_PARTS: u64 = 16;

/// Times 32 contracted elements that an invocation splits one after the other.
const SPLIT_TIMES: u64 = 4;

/// Parts of the contracted axis of which largest exponents are found where rows are no neighbours.
const ROW_PARTS: u64 = 32;

/// How the whole numbers of a product are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residues {
    pub moduli: u8,
    /// Bits of whole numbers, and how many of them coarse values have.
    pub bits: u32,
    pub coarse: u32,
}

impl Residues {
    /// Those for sums of so many products; `None` for too many.
    pub fn of(depth: u64) -> Option<Residues> {
        let depth_bits = depth.max(1).next_power_of_two().ilog2();
        let coarse = COARSE_BITS - depth_bits.saturating_sub(COARSE_DEPTH_BITS).div_ceil(2).min(COARSE_BITS);
        let with = |moduli: usize| {
            let product: f64 = MODULI.iter().take(moduli).map(|&modulus| f64::from(modulus)).product();
            let fits = |bits: &u32| depth as f64 * 4f64.powi(*bits as i32) <= SHARE_OF_PRODUCT * product;
            let bits = (LEAST_BITS..=MOST_BITS).rev().find(fits)?;
            Some(Residues { moduli: moduli as u8, bits, coarse })
        };
        let found = (LEAST_MODULI..=MODULI.len()).find_map(with);
        found.filter(|_| coarse >= LEAST_COARSE_BITS)
    }

    /// Bytes of memory that residues and coarse values of operands and results take.
    pub(super) fn bytes(self, sizes: Sizes) -> Option<u64> {
        let Sizes { rows, columns, depth, batches } = sizes;
        let planes = self.planes();
        let sides = rows.next_multiple_of(SIDE) + columns.next_multiple_of(SIDE);
        let operands = planes.checked_mul(batches)?.checked_mul(sides)?.checked_mul(depth.next_multiple_of(BLOCK))?;
        // Coarse sums have four bytes.
        let results = sizes.matrices().checked_mul(SIDE * SIDE)?;
        let sums = (planes + 3).checked_mul(results)?.checked_mul(depth.div_ceil(PART_DEPTH))?;
        operands.checked_add(sums)
    }

    /// Planes of an operand.
    pub(super) fn planes(self) -> u64 {
        u64::from(self.moduli) + 1
    }
}

fn bad(reason: &str) -> Error {
    Error::InvalidProgram { op: "dot".to_string(), reason: reason.to_string() }
}

/// An operand as bytes.
#[derive(Debug)]
pub(super) struct Split {
    /// Planes of residues, and one of coarse values.
    pub planes: Tensor,
    /// The largest exponent of each row, and the sum of its coarse values with what tells that an element was rounded.
    pub exponents: Tensor,
    pub totals: Tensor,
}

/// An operand as it lies: batches of rows.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    pub tensor: &'a Tensor,
    pub batches: u64,
    pub rows: u64,
    pub depth: u64,
    /// Axes that make up batches, rows and contracted elements, their sizes and strides.
    pub axes: ([u8; 3], Dims, Strides),
    /// Whether neighbours lie along the contracted axis.
    pub along_k: bool,
}

fn words(engine: &Engine, count: u64) -> Result<Tensor> {
    Tensor::uninitialized(engine, &Type::new(DType::U32, &[count]))
}

fn entire(tensor: &Tensor) -> Place<'_> {
    Place { buffer: &tensor.buffer, address: tensor.address(), strides: &[], element_bytes: 0 }
}

/// Words that begin as zeros.
fn zeros(engine: &Engine, count: u64) -> Result<Tensor> {
    let tensor = words(engine, count)?;
    engine.fill(tensor.buffer(), tensor.view.offset_bytes(), 4 * count, 0)?;
    Ok(tensor)
}

/// Writes an operand as bytes, or finds that earlier commands of a program have.
///
/// # Errors
/// What allocating and launching may fail with.
pub(super) fn split(engine: &Engine, m: &Rows<'_>, form: Residues, second: bool, compile: Compile) -> Result<Split> {
    let &Rows { rows, depth, batches, along_k, .. } = m;
    let (sixteens, blocks) = (rows.div_ceil(SIDE), depth.div_ceil(BLOCK));
    let count = form.planes() * batches * sixteens * blocks * (SIDE * BLOCK / 4);
    let spec = |stage| ResidueSpec { stage, dtype: m.tensor.view.dtype, ranks: m.axes.0, along_k };
    let make = || {
        let [exponents, totals] = [zeros(engine, batches * rows)?, zeros(engine, batches * rows)?];
        let planes = words(engine, count)?;
        let parts = if along_k { 1 } else { ROW_PARTS.min(depth.div_ceil(BLOCK)) };
        let find = spec(ResidueStage::Rows);
        let numbers = [rows, depth, batches, parts, depth.div_ceil(parts)];
        run(engine, m, &find, &numbers, (&[], &[&exponents]), find.groups_of_rows(batches, rows, parts), compile)?;
        let write = spec(ResidueStage::Split { second, moduli: form.moduli });
        let numbers = [rows, depth, batches, form.planes(), form.bits.into(), form.coarse.into(), SPLIT_TIMES];
        let groups = write.groups_of_split(batches, sixteens, blocks.div_ceil(SPLIT_TIMES));
        run(engine, m, &write, &numbers, (&[&exponents], &[&planes, &totals]), groups, compile)?;
        Ok([planes, exponents, totals].map(|tensor| Arc::clone(&tensor.buffer)).into_iter().collect())
    };
    let key = || format!("{form:?} {second} {:?} of {:?}", m.tensor.view.dtype, m.axes);
    let buffers = engine.shared_copy(m.tensor.address(), key, make)?;
    let at = |buffer: &Arc<_>, count| Tensor::at(Arc::clone(buffer), View::contiguous(DType::U32, &[count]));
    let [planes, exponents, totals] = buffers.as_slice() else { return Err(bad("an operand was not written")) };
    let [exponents, totals] = [exponents, totals].map(|buffer| at(buffer, batches * rows));
    Ok(Split { planes: at(planes, count), exponents, totals })
}

/// Launches a kernel on an operand.
fn run(
    engine: &Engine,
    m: &Rows<'_>,
    spec: &ResidueSpec,
    numbers: &[u64],
    (reads, writes): (&[&Tensor], &[&Tensor]),
    groups: u64,
    compile: Compile,
) -> Result<()> {
    let (_, sizes, strides) = &m.axes;
    let source = Place { buffer: &m.tensor.buffer, address: m.tensor.address(), strides, element_bytes: 0 };
    let others = reads.iter().chain(writes).map(|tensor| entire(tensor));
    let places: SmallVec<[Place<'_>; 4]> = std::iter::once(source).chain(others).collect();
    let extra: SmallVec<[u32; 8]> = numbers.iter().map(|&number| number as u32).collect();
    let reach = engine.reach();
    let far = reach.is_far(&[&m.tensor.view])? || writes.iter().any(|words| reach_of(&words.view) > reach.near(4));
    let kernel = engine.kernel_reaching(spec, far, compile)?;
    let count = (m.batches * m.rows) as u32;
    let arguments = Arguments { count, sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 1 + reads.len(), groups)
}

/// Launches a kernel on what others wrote, of which the last one is written.
fn run_on(
    engine: &Engine,
    stage: ResidueStage,
    numbers: &[u64],
    tensors: &[&Tensor],
    groups: u64,
    compile: Compile,
) -> Result<()> {
    let reach = engine.reach();
    let far = tensors.iter().any(|words| reach_of(&words.view) > reach.near(4));
    let kernel = engine.kernel_reaching(&ResidueSpec::of(stage), far, compile)?;
    let places: SmallVec<[Place<'_>; 6]> = tensors.iter().map(|tensor| entire(tensor)).collect();
    let extra: SmallVec<[u32; 9]> = numbers.iter().map(|&number| number as u32).collect();
    let arguments = Arguments { count: 0, sizes: &[], places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, places.len() - 1, groups)
}

/// Rows, columns, contracted elements and batches of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub rows: u64,
    pub columns: u64,
    pub depth: u64,
    pub batches: u64,
}

impl Sizes {
    /// Matrices of 16 x 16 of all results.
    pub(super) fn matrices(self) -> u64 {
        self.batches * self.rows.div_ceil(SIDE) * self.columns.div_ceil(SIDE)
    }

    /// Multiplies planes of both operands from one on, in parts of the contracted axis.
    ///
    /// # Errors
    /// What launching may fail with.
    fn multiply(
        self,
        engine: &Engine,
        side: u32,
        operands: [&Split; 2],
        (coarse, first, planes, parts): (bool, u64, u64, u64),
        raised: &Tensor,
        compile: Compile,
    ) -> Result<Tensor> {
        let Sizes { rows, columns, depth, batches } = self;
        let bytes = if coarse { 4 } else { 1 };
        let to = words(engine, planes * parts * self.matrices() * WORDS * bytes)?;
        let chunk = depth.div_ceil(parts).next_multiple_of(BLOCK);
        let groups = groups_of_products(side, [rows, columns], batches * parts * planes);
        let numbers = [rows, columns, depth, batches, chunk, parts, planes, first];
        let [a, b] = operands.map(|operand| &operand.planes);
        run_on(engine, ResidueStage::Product { side, coarse }, &numbers, &[a, b, raised, &to], groups, compile)?;
        Ok(to)
    }

    /// Raises a word where results would not be exact enough, by sums of coarse values.
    ///
    /// # Errors
    /// What launching may fail with.
    fn check(
        self,
        engine: &Engine,
        form: Residues,
        [a, b]: [&Split; 2],
        (sums, parts): (&Tensor, u64),
        raised: &Tensor,
        compile: Compile,
    ) -> Result<()> {
        let Sizes { rows, columns, depth, batches } = self;
        let more = MOST_ERROR + form.bits as i32 + 1 - form.coarse as i32;
        let more = u64::try_from(more).map_err(|_| bad("too few bits"))?;
        let depth_bits = u64::from(depth.max(1).next_power_of_two().ilog2());
        // Results have exponents of the sum of both and the bits of the whole number, less twice the bias and the bits.
        let (least, most) = (1022 + 2 * u64::from(form.bits), 3066 - depth_bits);
        let sixteens = [rows, columns].map(|n| n.div_ceil(SIDE));
        let numbers = [rows, columns, batches, parts, sixteens[0], sixteens[1], more, least, most];
        let tensors = [sums, &a.exponents, &b.exponents, &a.totals, &b.totals, raised];
        run_on(engine, ResidueStage::Check, &numbers, &tensors, groups_of_words(self.matrices()), compile)
    }
}

/// What results are made of.
#[derive(Debug)]
pub(super) struct Multiplied {
    /// Residues of sums, in parts of the contracted axis.
    pub residues: Tensor,
    pub parts: u64,
    /// The largest exponents of both operands' rows.
    pub exponents: [Tensor; 2],
    /// A word that is raised as `dot_guard.glsl` has it where results would not be exact enough.
    pub raised: Tensor,
    pub form: Residues,
}

/// All of a product but its results.
///
/// # Errors
/// `InvalidProgram` where the device or the tile can't take it; what allocating and launching may fail with.
pub(super) fn multiply(
    engine: &Engine,
    [a, b]: [&Rows<'_>; 2],
    tile: ResidueTile,
    compile: Compile,
) -> Result<Multiplied> {
    let sizes = Sizes { rows: a.rows, columns: b.rows, depth: a.depth, batches: a.batches };
    let has_units = engine.caps().byte_matrix || tile.side == ResidueTile::PLAIN;
    let form = Residues::of(sizes.depth).filter(|form| has_units && form.moduli == tile.moduli);
    let form = form.ok_or_else(|| bad("no residues of such a product"))?;
    let a = split(engine, a, form, false, compile)?;
    let b = split(engine, b, form, true, compile)?;
    let raised = zeros(engine, 1)?;
    let tiles = groups_of_products(tile.side, [sizes.rows, sizes.columns], sizes.batches);
    // Parts that fill the device, of some steps at least.
    let model = engine.model();
    let filling = (model.processors * model.products.resident).div_ceil(tiles);
    let least = sizes.depth.div_ceil(PART_DEPTH);
    let most = sizes.depth.div_ceil(LEAST_STEPS * BLOCK).clamp(1, MOST_PARTS);
    let parts_of = |planes: u64| filling.div_ceil(planes).clamp(1, most).max(least);
    let [of_coarse, of_residues] = [1, form.moduli.into()].map(|planes| (planes, parts_of(planes)));
    let multiplied = |coarse, first, (planes, parts)| {
        let what = (coarse, first, planes, parts);
        sizes.multiply(engine, tile.side, [&a, &b], what, &raised, compile)
    };
    let sums = multiplied(true, form.moduli.into(), of_coarse)?;
    sizes.check(engine, form, [&a, &b], (&sums, of_coarse.1), &raised, compile)?;
    let residues = multiplied(false, 0, of_residues)?;
    Ok(Multiplied { residues, parts: of_residues.1, exponents: [a.exponents, b.exponents], raised, form })
}
