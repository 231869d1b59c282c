//! Launches of attention.

use smallvec::SmallVec;

use super::AttentionKernel;
use super::generate::{AttentionSpec, AttentionTile};
use super::launch_query::few_queries;
use super::query::{QueryTile, UNIT_BYTES};
use super::scores::{FACTORS, KeptSpec, Read, ScoreSpec};
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::program::attention;
use crate::program::passes::{FewQueries, Heads};
use crate::shape::{Dims, Space, Strides};
use crate::{DType, Engine, Result, Tensor};
use nx_vulkan_spirv::params::ParamLayout;

/// Neighbours of 16 bits that are loaded at once.
pub(super) const EIGHT: u64 = 8;

/// Batches of rows of elements that are contiguous.
#[derive(Debug)]
pub struct RowBatches {
    pub tensor: Tensor,
    /// Sizes and strides of axes that are batches.
    pub batch: Vec<(u64, i64)>,
    /// From one row to the next.
    pub rows: i64,
}

impl RowBatches {
    /// Whether each row is aligned for loads of 16 bytes.
    pub fn is_aligned(&self) -> bool {
        let unit = UNIT_BYTES / self.tensor.view.dtype.size_bytes();
        let is_multiple = |stride: i64| stride >= 0 && stride.unsigned_abs().is_multiple_of(unit);
        let strides = self.batch.iter().map(|&(_, stride)| stride).chain([self.rows]);
        self.tensor.address().is_multiple_of(UNIT_BYTES) && strides.into_iter().all(is_multiple)
    }
}

/// What attention the device has kernels for, as far as that is known before any ran.
pub fn heads(engine: &Engine) -> Heads {
    let caps = engine.caps();
    let has_units = engine.model().class.is_nvidia()
        && caps.cooperative_matrix
        && caps.subgroup_ops.shuffle
        && caps.subgroup_ops.vote
        && caps.max_shared_memory_bytes >= AttentionTile::shared_bytes();
    let f16 = has_units && !engine.has_exact_attention();
    let has_few = engine.model().programs.attends_few && fits(engine) && !engine.has_exact_attention();
    let tuned = &engine.model().attention;
    let few = FewQueries { max_rows: QueryTile::MAX_ROWS, max_depth: QueryTile::MAX_DEPTH, min_keys: tuned.least_keys };
    Heads {
        f16,
        bf16: f16 && caps.bfloat16_matrix,
        max_depth: AttentionTile::most(),
        together: EIGHT,
        min_rows: tuned.least_rows,
        few: if has_few { few } else { FewQueries::default() },
    }
}

/// Whether workgroups for few queries are within the device's limits.
fn fits(engine: &Engine) -> bool {
    let caps = engine.caps();
    QueryTile::SHARED_BYTES <= caps.max_shared_memory_bytes && QueryTile::LOCAL_SIZE <= caps.max_invocations
}

/// Which kernels compute attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Those for tiles of queries, on matrix units. Rows of operands must be aligned.
    Tiles,
    /// Those for few queries.
    FewQueries,
}

/// Which kernels the device has for attention of one type, if it has any.
///
/// # Errors
/// Those of [`takes`].
pub fn way(engine: &Engine, of: &attention::Attention, dtype: DType, compile: Compile) -> Result<Option<Way>> {
    if of.rows() > QueryTile::MAX_ROWS {
        return Ok(takes(engine, dtype, compile)?.then_some(Way::Tiles));
    }
    let is_float = matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
    let is_short = of.depth.max(of.width) <= QueryTile::MAX_DEPTH;
    Ok((is_float && is_short && of.kept.is_none() && fits(engine)).then_some(Way::FewQueries))
}

/// Whether the device has kernels on matrix units for a type, which a small product tells.
///
/// # Errors
/// Those of [`Engine::takes_own_numbers`].
pub fn takes(engine: &Engine, dtype: DType, compile: Compile) -> Result<bool> {
    let [f16, bf16] = engine.takes_own_numbers(dtype, compile)?;
    Ok(match dtype {
        DType::F16 => f16,
        DType::Bf16 => bf16,
        _ => false,
    })
}

/// Attention of one type.
#[derive(Debug)]
pub struct Attention<'a> {
    pub of: &'a attention::Attention,
    /// Queries, keys and values, with a stride for each axis of batches.
    pub factors: &'a [RowBatches; 3],
    /// Sizes of the axes of batches.
    pub batches: &'a [u64],
    /// Operands of steps, with strides along batches, rows and keys.
    pub inputs: &'a [Tensor],
    pub out: &'a Tensor,
    /// Strides of results along batches and rows; a row's elements are contiguous.
    pub results: &'a [i64],
}

impl Attention<'_> {
    /// How queries, keys, values, what steps read and results lie.
    pub(super) fn lying(&self) -> Option<SmallVec<[Lying; 8]>> {
        let (&of_rows, results) = self.results.split_last()?;
        let mut all = lying(self.factors, self.inputs, self.batches.len());
        all.push(Lying { batch: Strides::from_slice(results), own: [of_rows, 0, 0, 1] });
        Some(all)
    }

    /// Queries, keys, values, what steps read and results as places of a launch.
    pub(super) fn places<'p>(&'p self, strides: &'p [Strides]) -> SmallVec<[Place<'p>; 8]> {
        places(self.factors.iter().map(|f| &f.tensor).chain(self.inputs).chain([self.out]), strides)
    }
}

/// Whether push constants hold `ParamLayout::WIDE_PUSH_WORDS`.
pub(super) fn has_wide_push(engine: &Engine) -> bool {
    u64::from(engine.caps().max_push_bytes) >= 4 * ParamLayout::WIDE_PUSH_WORDS as u64
}

/// Launches attention; answers whether there is a kernel for it that reaches its operands.
///
/// # Errors
/// What launching may fail with.
pub fn attention(engine: &Engine, a: &Attention<'_>, way: Way, compile: Compile) -> Result<bool> {
    let reach = engine.reach();
    let mut views = a.factors.iter().map(|f| &f.tensor).chain(a.inputs).chain([a.out]).map(|t| &*t.view);
    if !views.all(|view| reach_of(view) <= reach.near(view.dtype.size_bytes())) {
        return Ok(false);
    }
    match way {
        Way::Tiles => tiles(engine, a, compile),
        Way::FewQueries => few_queries(engine, a, compile),
    }
}

/// Strides of an operand along batches, and along rows, keys and the elements of queries and of values.
#[derive(Clone)]
pub(super) struct Lying {
    pub batch: Strides,
    pub own: [i64; 4],
}

impl Lying {
    pub(super) fn of(rows: &RowBatches, own: [i64; 4]) -> Lying {
        Lying { batch: rows.batch.iter().map(|&(_, stride)| stride).collect(), own }
    }
}

/// How queries, keys, values and the operands of steps lie, which have `rank` axes of batches.
pub(super) fn lying([q, k, v]: &[RowBatches; 3], inputs: &[Tensor], rank: usize) -> SmallVec<[Lying; 8]> {
    let of_factors = [(q, [q.rows, 0, 1, 0]), (k, [0, k.rows, 1, 0]), (v, [0, v.rows, 0, 1])];
    let of_inputs = inputs.iter().map(|input| {
        let (batch, own) = input.view.strides.split_at(rank);
        Lying { batch: Strides::from_slice(batch), own: [own[0], own[1], 0, 0] }
    });
    of_factors.into_iter().map(|(rows, own)| Lying::of(rows, own)).chain(of_inputs).collect()
}

/// A space of batches, rows, keys and elements, and where operands lie in it.
pub(super) struct Placed {
    pub sizes: Dims,
    pub strides: SmallVec<[Strides; 8]>,
    /// Axes that are batches.
    pub batch_rank: usize,
}

impl Placed {
    /// The space with as few axes of batches as all operands allow.
    pub(super) fn of(batches: &[u64], sizes: [u64; 4], lying: &[Lying]) -> Placed {
        let of_batches: SmallVec<[&[i64]; 8]> = lying.iter().map(|lying| &lying.batch[..]).collect();
        let batches = Space::new(batches, &of_batches);
        let all = batches.strides.iter().zip(lying).map(|(own, lying)| own.iter().chain(&lying.own).copied().collect());
        Placed {
            strides: all.collect(),
            sizes: batches.sizes.iter().copied().chain(sizes).collect(),
            batch_rank: batches.sizes.len(),
        }
    }
}

/// How steps read operands whose strides follow those of queries, keys and values.
pub(super) fn reads(inputs: &[Tensor], strides: &[Strides], batch_rank: usize) -> SmallVec<[Read; 2]> {
    let read = |(input, strides): (&Tensor, &Strides)| {
        let (of_batch, own) = strides.split_at(batch_rank);
        Read { dtype: input.view.dtype, along: [of_batch.iter().any(|&s| s != 0), own[0] != 0, own[1] != 0] }
    };
    inputs.iter().zip(strides.iter().skip(usize::from(FACTORS))).map(read).collect()
}

/// What makes scores, of operands that are read like this.
pub(super) fn scores(of: &attention::Attention, reads: SmallVec<[Read; 2]>) -> ScoreSpec {
    let attention::Attention { steps, score, scores, kept, .. } = of;
    let kept = kept.as_ref().map(|kept| KeptSpec {
        steps: kept.steps.clone(),
        value: kept.value,
        scale: kept.scale.to_bits(),
    });
    ScoreSpec { reads, steps: steps.clone(), score: *score, dtype: *scores, coordinates: of.coordinates(), kept }
}

/// The bits of what makes a score of a product in powers of 2, where that is all.
pub(super) fn factor_bits(of: &attention::Attention) -> Option<u32> {
    of.factor.map(|factor| (factor * std::f32::consts::LOG2_E).to_bits())
}

/// Tensors with their strides.
pub(super) fn places<'p>(
    tensors: impl Iterator<Item = &'p Tensor>,
    strides: &'p [Strides],
) -> SmallVec<[Place<'p>; 8]> {
    let place = |(tensor, strides): (&'p Tensor, &'p Strides)| Place {
        buffer: &tensor.buffer,
        address: tensor.address(),
        strides,
        element_bytes: tensor.view.dtype.size_bytes(),
    };
    tensors.zip(strides).map(place).collect()
}

fn tiles(engine: &Engine, a: &Attention<'_>, compile: Compile) -> Result<bool> {
    let dtype = a.out.view.dtype;
    let attention::Attention { depth, width, .. } = *a.of;
    let (rows, keys) = (a.of.rows(), a.of.keys());
    let Some(tile) = AttentionTile::of(depth, width) else { return Ok(false) };
    if !a.factors.iter().all(RowBatches::is_aligned) || !a.out.address().is_multiple_of(UNIT_BYTES) {
        return Ok(false);
    }
    let Some(lying) = a.lying() else { return Ok(false) };
    let of_rows = lying.last().map_or(0, |results| results.own[0]);
    let Placed { sizes, strides, batch_rank } = Placed::of(a.batches, [rows, keys, depth, width], &lying);
    let count: u64 = a.batches.iter().product();
    // Where rows alone leave processors without work.
    let model = engine.model();
    let is_small = count * rows.div_ceil(AttentionTile::rows(false)) < model.attention.groups * model.processors;
    let shares_keys = is_small && keys >= AttentionTile::SUBGROUPS * AttentionTile::KEYS;
    let spec = AttentionSpec {
        dtype,
        tile,
        batch_rank: batch_rank as u8,
        scores: scores(a.of, reads(a.inputs, &strides, batch_rank)),
        whole_keys: keys.is_multiple_of(AttentionTile::KEYS),
        whole_depth: depth == tile.depth(),
        whole_width: width == tile.width(),
        causal: a.of.causal,
        factor: factor_bits(a.of),
        shares_keys,
        wide: has_wide_push(engine),
    };
    let kernel = engine.kernel(&AttentionKernel::Tile(spec), compile)?;
    let steps = a.factors.iter().map(|f| f.rows).chain([of_rows]).map(|stride| stride.unsigned_abs() / EIGHT);
    let extra: SmallVec<[u32; 10]> =
        [count, rows, keys, depth, width].into_iter().chain(steps).map(|number| number as u32).collect();
    let places = a.places(&strides);
    let elements = a.out.view.elements() as u32;
    let arguments = Arguments { count: elements, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, places.len() - 1, count * rows.div_ceil(AttentionTile::rows(shares_keys)))?;
    Ok(true)
}
