//! Products on matrix units. Kernels write operands in the order in which the product takes them: f32 as three bf16
//! numbers that make up all 24 bits or, with `Precision::High`, as two f16 numbers scaled by rows; operands of f16
//! and bf16 that lie so already are taken in place, and so are those whose neighbours along the contracted axis lie
//! together by eight. Where an element lost digits on the way, or is so large that sums
//! may leave the range, which the device notes, the product leaves the results to a plain kernel behind it.

use std::sync::Arc;

use nx_vulkan_device::kernel::Waits;
use nx_vulkan_ir::program::epilogue::matrix_min_depth;
use smallvec::SmallVec;

use super::generate_residues::groups_of_words;
use super::launch::{Choice, Instead, Matrix, MergedAxes, Outline, Product, Results, entire, launch_plain};
use super::residues::{self, Rows};
use super::{
    Border, DotSpec, Feed, Load, MatrixTile, Planes, ResidueTile, SplitSpec, SplitStage, Tiling, choice, few, fragments,
};
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::shape::{Dims, Strides};
use crate::tuning::DeviceModel;
use crate::{CType, DType, Engine, Error, Precision, Result, Tensor, Type, View};

/// Contracted elements of which a workgroup of dot_own.comp keeps the places, of each operand by eight: in half of the
/// words of `tiles` there.
pub(super) const MAX_PLACED_DEPTH: u64 = 8 * 1152;

/// How a product reads an operand where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlace {
    /// By steps, along the contracted axis or along the free one.
    Along { k: bool },
    /// By its axes, eight neighbours along the contracted one at a time.
    ByAxes,
}

/// How elements become numbers of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Narrowing {
    pub planes: Planes,
    /// Whether rows are scaled to the range of f16, and elements may lose digits.
    pub scaled: bool,
}

impl Narrowing {
    /// The form for a product, if matrix units can take it.
    pub fn of(model: &DeviceModel, p: &Outline, sum: CType) -> Option<Narrowing> {
        let Outline { batches, rows, columns, depth, .. } = *p;
        if !model.caps.cooperative_matrix || sum != CType::F32 || depth < matrix_min_depth(p.product) {
            return None;
        }
        let form = Narrowing::of_types(p.product, p.operands, p.precision, p.own)?;
        if form.planes.is_bf16() && !model.caps.bfloat16_matrix {
            return None;
        }
        let padded = depth.next_multiple_of(form.planes.block());
        let bytes = batches.checked_mul(rows + columns)?.checked_mul(padded * 2 * u64::from(form.planes.count()))?;
        (bytes <= model.products.operand_bytes).then_some(form)
    }

    /// The form for a product of f32 that reads operands in place, if matrix units can take it: `p.own` tells that of
    /// bf16.
    pub fn in_place(model: &DeviceModel, p: &Outline, sum: CType) -> Option<Narrowing> {
        let is_f32 = [p.product, p.operands[0], p.operands[1]] == [DType::F32; 3] && p.precision == Precision::Highest;
        let has_units = model.caps.cooperative_matrix && model.caps.bfloat16_matrix && p.own[1];
        let is_so = is_f32 && has_units && sum == CType::F32 && p.depth >= matrix_min_depth(p.product);
        is_so.then_some(Narrowing { planes: Planes::OwnThreeBf16, scaled: false })
    }

    /// Whether there are operands that units can't take.
    fn is_guarded(self) -> bool {
        self.scaled || self.planes.count() == 3
    }

    fn of_types(product: DType, operands: [DType; 2], precision: Precision, own: [bool; 2]) -> Option<Narrowing> {
        let all_within = |dtype: DType| operands.iter().all(|operand| operand.is_within(dtype));
        match product {
            _ if product.is_within(DType::F16) => {
                let planes = if own[0] { Planes::OwnF16 } else { Planes::OneF16 };
                all_within(DType::F16).then_some(Narrowing { planes, scaled: false })
            }
            DType::Bf16 => {
                let (planes, scaled) = if own[1] { (Planes::OwnBf16, false) } else { (Planes::OneF16, true) };
                (operands == [DType::Bf16; 2]).then_some(Narrowing { planes, scaled })
            }
            DType::F32 => all_within(DType::F32).then_some(match precision {
                Precision::High => Narrowing { planes: Planes::TwoF16, scaled: true },
                Precision::Highest => Narrowing { planes: Planes::ThreeBf16, scaled: false },
            }),
            _ => None,
        }
    }

    /// How the product reads the operand in place, of which a tile has `side` rows, and a split so many contracted
    /// elements. `None` where it does not.
    pub fn takes(self, m: &Matrix, side: u32, split: u64) -> Option<InPlace> {
        if self.planes.is_own() {
            return self.takes_own(m, side, split);
        }
        let eights =
            |strides: &[i64]| strides.len() <= 1 && strides.iter().all(|&stride| stride >= 0 && stride % 8 == 0);
        let along = |one: &MergedAxes, other: &MergedAxes| {
            one.rank() == 1 && one.last_stride() == 1 && one.elements().is_multiple_of(8) && eights(&other.strides)
        };
        let aligned = m.tensor.address().is_multiple_of(16) && eights(&m.batch.strides);
        if self.scaled || self.planes != Planes::OneF16 || m.tensor.view.dtype != DType::F16 || !aligned {
            return None;
        }
        match (along(&m.depth, &m.free), along(&m.free, &m.depth)) {
            (true, _) => Some(InPlace::Along { k: true }),
            (_, true) => Some(InPlace::Along { k: false }),
            _ => None,
        }
    }

    /// How the product reads the operand in place by kernels that take 32 contracted elements of 16 rows at once.
    fn takes_own(self, m: &Matrix, side: u32, split: u64) -> Option<InPlace> {
        if !own_by_axes(self.planes, m) {
            return None;
        }
        let is_whole =
            m.depth.elements().is_multiple_of(self.planes.block()) && m.free.elements().is_multiple_of(side.into());
        if is_whole && m.batch.rank() <= 2 && m.free.rank() == 1 && m.depth.rank() == 1 {
            return Some(InPlace::Along { k: true });
        }
        (split <= MAX_PLACED_DEPTH).then_some(InPlace::ByAxes)
    }
}

/// Whether kernels that take operands of 16 bits as they are can find one by its axes.
pub(super) fn own_by_axes(planes: Planes, m: &Matrix) -> bool {
    let is_ascending = [&m.batch, &m.free, &m.depth].iter().all(|g| g.strides.iter().all(|&stride| stride >= 0));
    planes.own_type() == Some(m.tensor.view.dtype) && is_ascending && m.loaded_along_k(8) == Some(true)
}

/// How kernels of `Planes::is_own` find an operand that they take in place.
fn own_steps(m: &Matrix) -> SmallVec<[u64; 7]> {
    let eighth = |stride: i64| stride.unsigned_abs() / 8;
    let row = eighth(m.free.last_stride());
    let outer = m.batch.strides.iter().rev().nth(1).map_or(0, |&stride| eighth(stride));
    SmallVec::from_slice(&[16 * row, 8 * row, row, 4, m.batch.inner(), outer, eighth(m.batch.last_stride())])
}

/// An operand as the product takes it.
#[derive(Debug)]
pub struct Prepared {
    /// Blocks of numbers, in words unless it is the operand itself.
    pub numbers: Tensor,
    /// How they are found.
    pub lies: InPlace,
    /// Numbers by which the product finds them, in uvec4: from one row or column (from 16 rows, where they lie
    /// together) to the next and from a batch to the next, or what dot_own.comp says. Where axes find them, ones, which
    /// nothing uses, or none.
    pub steps: SmallVec<[u64; 7]>,
    /// The uvec4 of one of several planes that lie one behind the other.
    pub plane: Option<u64>,
    /// By what each row is to be multiplied, as f32, if rows are scaled.
    pub scales: Option<Tensor>,
    /// A word that tells whether units can take it, as `dot_guard.glsl` says; none where they can take all.
    pub largest: Option<Tensor>,
}

/// Writes operands as numbers of 16 bits: the first one of a product, then the second, each with the rows that a tile
/// has of it; `split` contracted elements are multiplied by one workgroup.
///
/// # Errors
/// What allocating and launching may fail with.
pub fn prepare(
    engine: &Engine,
    operands: &[(&Matrix, u32)],
    form: Narrowing,
    split: u64,
    compile: Compile,
) -> Result<SmallVec<[Prepared; 2]>> {
    // One after the other, so that operands don't wait for each other.
    let mut scaled = SmallVec::<[Option<[Tensor; 2]>; 2]>::new();
    for &(m, side) in operands {
        if !form.scaled {
            scaled.push(None);
            continue;
        }
        let find = spec(m, form, SplitStage::Largest, false);
        let parts = find.parts(m.depth.elements());
        let [largest, lost] = [words(engine, m.batch.elements() * m.free.elements() * parts)?, words(engine, 1)?];
        run(engine, m, find, (side, None), &[], &[&largest, &lost], compile)?;
        scaled.push(Some([largest, lost]));
    }
    let mut prepared = SmallVec::<[Prepared; 2]>::new();
    for (place, (&(m, side), scaled)) in operands.iter().zip(scaled).enumerate() {
        if let Some(lies) = form.takes(m, side, split) {
            let eighth = |group: &MergedAxes| group.last_stride().unsigned_abs() / 8;
            let steps = match lies {
                InPlace::ByAxes => SmallVec::from_elem(1, 7),
                InPlace::Along { .. } if form.planes.is_own() => own_steps(m),
                InPlace::Along { k } => {
                    SmallVec::from_slice(&[eighth(if k { &m.free } else { &m.depth }), eighth(&m.batch)])
                }
            };
            let numbers = m.tensor.clone();
            prepared.push(Prepared { numbers, lies, steps, plane: None, scales: None, largest: None });
            continue;
        }
        let (rows, batches) = (m.free.elements(), m.batch.elements());
        let together = form.planes.rows_together();
        let padded = m.depth.elements().next_multiple_of(form.planes.block());
        // Planes of their own lie one behind the other, others side by side.
        let has_planes = form.planes == Planes::OwnThreeBf16;
        let [beside, behind] = if has_planes { [1, 3] } else { [u64::from(form.planes.count()), 1] };
        let step = together * beside * padded / 8;
        let batch = padded_rows(m, form, side) / together * step;
        let count = batches * batch * behind * 4;
        let plane = has_planes.then_some(batches * batch);
        let steps = if form.planes.is_own() {
            SmallVec::from_slice(&[step, 32, 4, 64, 1, batch, 0])
        } else {
            SmallVec::from_slice(&[step, batch])
        };
        let writes = match m.loaded_along_k(8) {
            Some(along_k) if form.planes.own_type() == Some(m.tensor.view.dtype) => {
                let load = Load { along_k, by_four: true };
                SplitSpec { load, ..spec(m, form, SplitStage::Copy, false) }
            }
            _ => spec(m, form, SplitStage::Split, place == 1),
        };
        let (scales, numbers, largest) = match scaled {
            Some([largest, lost]) => {
                let (numbers, scales) = (words(engine, count)?, words(engine, batches * rows)?);
                run(engine, m, writes, (side, plane), &[&largest], &[&numbers, &scales, &lost], compile)?;
                (Some(scales), numbers, Some(lost))
            }
            None => {
                let (numbers, largest) = written(engine, m, writes, (side, plane, count), form, compile)?;
                (None, numbers, largest)
            }
        };
        prepared.push(Prepared { numbers, lies: InPlace::Along { k: true }, steps, plane, scales, largest });
    }
    Ok(prepared)
}

/// Writes an operand, of which a tile has `side` rows, in so many words, or finds that earlier commands of a program
/// have: the numbers, and the largest where units may not take all.
pub(super) fn written(
    engine: &Engine,
    m: &Matrix,
    spec: SplitSpec,
    (side, plane, count): (u32, Option<u64>, u64),
    form: Narrowing,
    compile: Compile,
) -> Result<(Tensor, Option<Tensor>)> {
    let padded = padded_rows(m, form, side);
    let key = || format!("{spec:?} {padded} of {:?}", m.axes(true));
    let make = || {
        let numbers = words(engine, count)?;
        let largest = if form.is_guarded() { Some(zero(engine)?) } else { None };
        let both = || std::iter::once(&numbers).chain(&largest);
        run(engine, m, spec.clone(), (side, plane), &[], &both().collect::<SmallVec<[&Tensor; 2]>>(), compile)?;
        Ok(both().map(|tensor| Arc::clone(&tensor.buffer)).collect())
    };
    let mut buffers = engine.shared_copy(m.tensor.address(), key, make)?.into_iter();
    let at = |count: u64| move |buffer| Tensor::at(buffer, View::contiguous(DType::U32, &[count]));
    let missing = || bad("an operand was not written".to_string());
    Ok((buffers.next().map(at(count)).ok_or_else(missing)?, buffers.next().map(at(1))))
}

pub(super) fn words(engine: &Engine, count: u64) -> Result<Tensor> {
    Tensor::uninitialized(engine, &Type::new(DType::U32, &[count]))
}

/// A word that kernels raise.
pub(super) fn zero(engine: &Engine) -> Result<Tensor> {
    let word = words(engine, 1)?;
    engine.fill(word.buffer(), word.view.offset_bytes(), 4, 0)?;
    Ok(word)
}

/// Rows of a batch with those behind them that no one writes, and of which no result is kept: kernels of
/// `Planes::is_own` read whole tiles.
fn padded_rows(m: &Matrix, form: Narrowing, side: u32) -> u64 {
    let rows = if form.planes.is_own() { side.into() } else { form.planes.rows_together() };
    m.free.elements().next_multiple_of(rows)
}

pub(super) fn spec(m: &Matrix, form: Narrowing, stage: SplitStage, second: bool) -> SplitSpec {
    let Narrowing { planes, scaled } = form;
    let second = second && planes == Planes::ThreeBf16;
    let (ranks, dtype, load) = (m.axes(true).0, m.tensor.view.dtype, m.load(true));
    SplitSpec { stage, dtype, ranks, load, planes, scaled, bounds: None, second, fragments: false }
}

/// Launches a kernel on an operand, of which a tile has `side` rows, and planes are so far apart.
fn run(
    engine: &Engine,
    m: &Matrix,
    spec: SplitSpec,
    (side, plane): (u32, Option<u64>),
    reads: &[&Tensor],
    writes: &[&Tensor],
    compile: Compile,
) -> Result<()> {
    let (rows, depth, batches) = (m.free.elements(), m.depth.elements(), m.batch.elements());
    let (_, sizes, strides) = m.axes(true);
    let padded = padded_rows(m, Narrowing { planes: spec.planes, scaled: spec.scaled }, side);
    // Rows past the end of planes are zeros: sums of whatever lies there could leave the range.
    let groups = spec.groups(batches, if plane.is_some() { padded } else { rows }, depth);
    let numbers = [rows, depth, batches, spec.parts(depth), spec.part(depth), padded.div_ceil(16)];
    let extra: SmallVec<[u32; 7]> = numbers.into_iter().chain(plane).map(|x| x as u32).collect();
    let reach = engine.reach();
    let far = reach.is_far(&[&m.tensor.view])? || writes.iter().any(|words| reach_of(&words.view) > reach.near(4));
    let kernel = engine.kernel_reaching(&spec, far, compile)?;
    let source = Place { buffer: &m.tensor.buffer, address: m.tensor.address(), strides: &strides, element_bytes: 0 };
    let others = reads.iter().chain(writes).map(|tensor| entire(tensor));
    let places: SmallVec<[Place<'_>; 5]> = std::iter::once(source).chain(others).collect();
    let arguments = Arguments { count: (batches * rows) as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 1 + reads.len(), groups)
}

/// Launches the product, and behind it what takes over where units can't take it.
pub(super) fn launch_product(
    engine: &Engine,
    p: &Product<'_>,
    spec: DotSpec,
    tile: MatrixTile,
    instead: Instead<'_>,
    results: &Results<'_>,
    compile: Compile,
) -> Result<()> {
    let outline = p.outline(engine.precision(), [tile.planes.is_own(); 2]);
    let of = if tile.planes == Planes::OwnThreeBf16 { Narrowing::in_place } else { Narrowing::of };
    let form = of(engine.model(), &outline, spec.sum).filter(|form| form.planes == tile.planes);
    let form = form.ok_or_else(|| bad(format!("no operands for {tile:?}")))?;
    let tile = fragments::or_else(tile, form, p);
    let chunk = p.a.depth.elements().div_ceil(results.splits).next_multiple_of(tile.block());
    let operands = [(&p.a, tile.rows), (&p.b, tile.columns)];
    let (image, border) = match instead {
        Instead::Image(image, second) => (Some((image, second)), None),
        Instead::Border(border, second) => (None, Some((border, second))),
        Instead::Nothing | Instead::Derived(_) => (None, None),
    };
    let prepared = match image.filter(|_| tile.planes == Planes::OwnThreeBf16) {
        None if tile.feed == Feed::Few => few::prepare_both(engine, p, tile, form, compile)?,
        None if tile.feed == Feed::Fragments => fragments::prepare_both(engine, p, form, compile)?,
        None => prepare(engine, &operands, form, chunk, compile)?,
        Some((image, second)) => {
            let planes = image.planes(engine, compile)?;
            let mut prepared = prepare(engine, &[operands[usize::from(!second)]], form, chunk, compile)?;
            prepared.insert(usize::from(second), planes);
            prepared
        }
    };
    let [a, b] = prepared.as_slice() else { return Err(bad("two operands".to_string())) };
    let on_units = OnUnits::new(p, tile, [a, b], border, results);
    let own = on_units.spec(&spec, form);
    on_units.launch(engine, own, chunk, compile)?;
    if form.is_guarded() {
        let Choice { tiling, .. } = choice::plain(engine.model(), &outline, spec.sum, Some(results.splits));
        if !matches!(tiling, Tiling::Tiled(_)) {
            return Err(bad("no kernel to take over".to_string()));
        }
        let fallback = DotSpec { tiling, guarded: true, ..spec };
        let guard: SmallVec<[&Tensor; 2]> = prepared.iter().filter_map(|operand| operand.largest.as_ref()).collect();
        let mut waits = Waits::Beside;
        if let Some((image, second)) = image {
            let memory = if second { &p.b.tensor } else { &p.a.tensor };
            image.restore(engine, &guard, memory, compile)?;
            waits = Waits::All;
        }
        launch_plain(engine, p, fallback, results, (&guard, waits), compile)?;
    }
    Ok(())
}

/// Launches a product of f64 by residues, and behind it what takes over where that would not be exact enough.
pub(super) fn launch_residues(
    engine: &Engine,
    p: &Product<'_>,
    spec: DotSpec,
    tile: ResidueTile,
    results: &Results<'_>,
    compile: Compile,
) -> Result<()> {
    let outline = p.outline(engine.precision(), [false; 2]);
    let Choice { tiling, .. } = choice::plain(engine.model(), &outline, spec.sum, Some(results.splits));
    if spec.sum != CType::F64 || !matches!(tiling, Tiling::Tiled(_)) {
        return Err(bad("no kernel to take over".to_string()));
    }
    let [a, b] = [&p.a, &p.b].map(|m| Rows {
        tensor: &m.tensor,
        batches: m.batch.elements(),
        rows: m.free.elements(),
        depth: m.depth.elements(),
        axes: m.axes(true),
        along_k: m.load(true).along_k,
    });
    let (rows, columns, batches) = (a.rows, b.rows, a.batches);
    let found = residues::multiply(engine, [&a, &b], tile, compile)?;
    let own = DotSpec {
        tiling: Tiling::Residues(tile),
        guarded: true,
        a: DType::F64,
        b: DType::F64,
        a_ranks: [0; 3],
        b_ranks: [0; 3],
        ..spec.clone()
    };
    let reach = engine.reach();
    let far = results.is_far(engine)? || reach_of(&found.residues.view) > reach.near(4);
    let kernel = engine.kernel_reaching(&own, far, compile)?;
    let (sizes, _, strides) = results.behind(Dims::new(), (Dims::new(), Strides::new()));
    let [a_exponents, b_exponents] = &found.exponents;
    let from = [&found.residues, a_exponents, b_exponents, &found.raised];
    let places: SmallVec<[Place<'_>; 8]> = from.into_iter().map(entire).chain(results.places(&strides)).collect();
    let (side, _) = own.tile();
    let sixteens = [rows, columns].map(|n| n.div_ceil(side));
    let bits = found.form.bits.into();
    let numbers = [rows, columns, batches, found.parts, sixteens[0], sixteens[1], bits, results.splits];
    let extra = numbers.map(|number| number as u32);
    let count = (batches * rows * columns) as u32;
    let arguments = Arguments { count, sizes: &sizes, places: &places, extra: &extra };
    let groups = groups_of_words(batches * sixteens[0] * sixteens[1]);
    launch(engine, &kernel, &arguments, places.len() - 1, groups)?;
    let fallback = DotSpec { tiling, guarded: true, ..spec };
    launch_plain(engine, p, fallback, results, (&[&found.raised, &found.raised], Waits::Beside), compile)
}

fn bad(reason: String) -> Error {
    Error::InvalidProgram { op: "dot".to_string(), reason }
}

/// A product of operands that are prepared for matrix units.
struct OnUnits<'a> {
    p: &'a Product<'a>,
    tile: MatrixTile,
    operands: [&'a Prepared; 2],
    /// For each operand the ranks, sizes and strides of the axes by which it is found, if it is.
    axes: [([u8; 3], Dims, Strides); 2],
    /// What is around the windows that the second operand is, or the first.
    border: Option<(&'a Border, bool)>,
    results: &'a Results<'a>,
}

impl<'a> OnUnits<'a> {
    fn new(
        p: &'a Product<'a>,
        tile: MatrixTile,
        operands: [&'a Prepared; 2],
        border: Option<(&'a Border, bool)>,
        results: &'a Results<'a>,
    ) -> OnUnits<'a> {
        let [a, b] = operands;
        let axes = [(a, &p.a, true), (b, &p.b, false)].map(|(operand, m, depth_last)| match operand.lies {
            _ if tile.feed == Feed::Few => few::axes(m, operand, depth_last),
            InPlace::ByAxes => m.axes(depth_last),
            InPlace::Along { .. } => Default::default(),
        });
        OnUnits { p, tile, operands, axes, border, results }
    }

    /// Rows and columns.
    fn sides(&self) -> [u64; 2] {
        [self.p.a.free.elements(), self.p.b.free.elements()]
    }

    /// The kernel for a product of such a plain one.
    fn spec(&self, plain: &DotSpec, form: Narrowing) -> DotSpec {
        let OnUnits { p, tile, operands, results, .. } = *self;
        let [rows, columns] = self.sides();
        let mut own = DotSpec { tiling: Tiling::Matrix(tile), guarded: form.is_guarded(), ..plain.clone() };
        // Kernels for all layouts are one, and for all types but those with fewer parts.
        if tile.planes != Planes::ThreeBf16 {
            (own.a, own.b) = (DType::F16, DType::F16);
        }
        [own.a_load, own.b_load] =
            operands.map(|operand| Load { along_k: operand.lies != InPlace::Along { k: false }, by_four: true });
        [own.a_ranks, own.b_ranks] = self.axes.each_ref().map(|(ranks, ..)| *ranks);
        own.ends_early = own.by_axes().contains(&true) && !p.a.depth.elements().is_multiple_of(tile.block());
        own.border = self.border.map(|(border, second)| border.spec(second));
        own.low_b_first = columns > rows;
        // In large tiles that would take registers, and with them a workgroup from each processor.
        let has_room = tile.feed == Feed::Fragments || (tile.feed == Feed::Planes && !tile.is_large());
        own.store.by_eight = has_room
            && tile.planes.own_type() == Some(plain.out)
            && plain.product == plain.out
            && plain.epilogue.is_none()
            && plain.store.contiguous
            && columns.is_multiple_of(8)
            && results.is_aligned();
        own
    }

    /// Launches the kernel, of which a workgroup takes `chunk` contracted elements.
    fn launch(self, engine: &Engine, spec: DotSpec, chunk: u64, compile: Compile) -> Result<()> {
        let [rows, columns] = self.sides();
        let OnUnits { p, tile, operands, axes, border, results } = self;
        let [a, b] = operands;
        let (depth, batches) = (p.a.depth.elements(), p.a.batch.elements());
        let tiles = spec.tiles(batches, rows, columns);
        let reach = engine.reach();
        let is_far = |numbers: &Tensor| reach_of(&numbers.view) > reach.near(numbers.view.dtype.size_bytes());
        let far = results.is_far(engine)? || operands.iter().any(|operand| is_far(&operand.numbers));
        let kernel = engine.kernel_reaching(&spec, far, compile)?;
        let numbers = [rows, columns, depth, batches, chunk, results.splits].into_iter();
        // Tiles of few vectors find all by axes.
        let steps = a.steps.iter().chain(&b.steps).copied().filter(|_| tile.feed != Feed::Few);
        let of_border = border.map(|(border, _)| border.numbers()).unwrap_or_default();
        let numbers: SmallVec<[u64; 28]> =
            numbers.chain(steps).chain(a.plane).chain(b.plane).chain(of_border).collect();
        if numbers.iter().any(|&number| number > reach.far()) {
            return Err(bad(format!("numbers beyond {}", reach.far())));
        }
        let [(_, a_sizes, a_strides), (_, b_sizes, b_strides)] = axes;
        let (sizes, b_strides, strides) = results.behind(a_sizes, (b_sizes, b_strides));
        let guard = operands.iter().filter_map(|operand| operand.largest.as_ref());
        let scales = operands.iter().filter_map(|operand| operand.scales.as_ref());
        let factors = [(a, &a_strides), (b, &b_strides)];
        let mut places: SmallVec<[Place<'_>; 10]> = SmallVec::new();
        places.extend(factors.map(|(operand, strides)| Place { strides, ..entire(&operand.numbers) }));
        places.extend(guard.chain(scales).map(entire));
        places.extend(results.places(&strides));
        let count = (batches * rows * columns) as u32;
        let extra: SmallVec<[u32; 28]> = numbers.iter().map(|&x| x as u32).collect();
        let arguments = Arguments { count, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, places.len() - 1, tiles * results.splits)
    }
}
