//! Launches of attention.

use nx_vulkan_ir::program::step::{Ref, Step};
use smallvec::SmallVec;

use super::generate::{AttentionSpec, AttentionTile, Read};
use crate::kernels::{Arguments, Compile, KernelSpec, Place, launch};
use crate::program::passes;
use crate::shape::{Dims, Space, Strides};
use crate::{DType, Engine, Result, Tensor};
use nx_vulkan_spirv::access::ParamLayout;

pub use passes::Heads;

/// Neighbours that are loaded at once.
const EIGHT: u64 = 8;

/// Queries of a batch from which on attention in one kernel pays: fewer fill no matrix.
const MIN_ROWS: u64 = 16;

/// Batches of rows of elements that are contiguous, with a stride for each axis of batches, one for rows.
#[derive(Debug)]
pub struct Rows {
    pub tensor: Tensor,
    pub batch: Strides,
    pub rows: i64,
}

impl Rows {
    /// Whether each row is aligned for loads of eight neighbours.
    pub fn is_aligned(&self) -> bool {
        let is_multiple = |stride: &i64| *stride >= 0 && stride.unsigned_abs().is_multiple_of(EIGHT);
        self.tensor.address().is_multiple_of(16) && self.batch.iter().chain([&self.rows]).all(is_multiple)
    }
}

/// What attention the device has kernels for, as far as that is known before any ran.
pub fn heads(engine: &Engine) -> Heads {
    let caps = engine.caps();
    let has_units = engine.model().class.is_nvidia() && caps.cooperative_matrix && caps.subgroup_ops.shuffle;
    let f16 = has_units && !engine.has_exact_attention();
    Heads {
        f16,
        bf16: f16 && caps.bfloat16_matrix,
        max_depth: AttentionTile::most(),
        together: EIGHT,
        min_rows: MIN_ROWS,
    }
}

/// Whether the device has kernels for a type, which a small product tells.
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
    /// Queries, keys and values.
    pub factors: &'a [Rows; 3],
    /// Sizes of the axes of batches, of rows and of keys.
    pub space: &'a [u64],
    pub depth: u64,
    pub width: u64,
    /// Operands of steps, with the shape of the space.
    pub inputs: &'a [Tensor],
    pub steps: &'a [Step],
    pub score: Ref,
    pub scores: DType,
    pub causal: bool,
    pub factor: Option<f32>,
    /// Contiguous.
    pub out: &'a Tensor,
}

/// Launches attention; answers whether there is a kernel for it that reaches its operands.
///
/// # Errors
/// What launching may fail with.
pub fn attention(engine: &Engine, a: &Attention<'_>, compile: Compile) -> Result<bool> {
    let dtype = a.out.view.dtype;
    let Some(tile) = AttentionTile::of(a.depth, a.width) else { return Ok(false) };
    let rank = a.space.len() - 2;
    let (batch_sizes, &[rows, keys]) = a.space.split_at(rank) else { return Ok(false) };
    let reach = engine.reach();
    let views = a.factors.iter().map(|f| &f.tensor).chain(a.inputs).chain([a.out]).map(|t| &*t.view);
    let is_near = views.into_iter().all(|view| crate::kernels::reach_of(view) <= reach.near(view.dtype.size_bytes()));
    if !is_near || !a.factors.iter().all(Rows::is_aligned) || !a.out.address().is_multiple_of(16) {
        return Ok(false);
    }
    // One space of batches for all operands.
    let of_inputs = a.inputs.iter().map(|input| &input.view.strides[..rank]);
    let of_batches: SmallVec<[&[i64]; 8]> = a.factors.iter().map(|f| &f.batch[..]).chain(of_inputs).collect();
    let batches = Space::new(batch_sizes, &of_batches);
    let batch_rank = batches.sizes.len();
    let sizes: Dims = batches.sizes.iter().copied().chain([rows, keys]).collect();
    let mut strides: SmallVec<[Strides; 8]> = batches.strides.clone().into_iter().collect();
    for (k, strides) in strides.iter_mut().enumerate() {
        match k.checked_sub(a.factors.len()).and_then(|k| a.inputs.get(k)) {
            Some(input) => strides.extend(input.view.strides[rank..].iter().copied()),
            None => strides.extend([0, 0]),
        }
    }
    let reads = a.inputs.iter().zip(strides.iter().skip(a.factors.len())).map(|(input, strides)| {
        let (of_batch, own) = strides.split_at(batch_rank);
        let along = [of_batch.iter().any(|&s| s != 0), own[0] != 0, own[1] != 0];
        Read { dtype: input.view.dtype, along }
    });
    let wide = u64::from(engine.caps().max_push_bytes) >= 4 * ParamLayout::WIDE_PUSH_WORDS as u64;
    let spec = AttentionSpec {
        dtype,
        tile,
        batch_rank: batch_rank as u8,
        reads: reads.collect(),
        steps: a.steps.into(),
        score: a.score,
        scores: a.scores,
        coordinates: [rank as u8, rank as u8 + 1],
        whole_keys: keys.is_multiple_of(AttentionTile::KEYS),
        whole_depth: a.depth == tile.depth(),
        whole_width: a.width == tile.width(),
        causal: a.causal,
        factor: a.factor.map(|factor| (factor * std::f32::consts::LOG2_E).to_bits()),
        wide,
    };
    let kernel = engine.kernel(&KernelSpec::Attention(spec), compile)?;
    let count: u64 = batch_sizes.iter().product();
    let steps = a.factors.each_ref().map(|f| f.rows.unsigned_abs() / EIGHT);
    let extra: SmallVec<[u32; 8]> =
        [count, rows, keys, a.depth, a.width].into_iter().chain(steps).map(|number| number as u32).collect();
    let tensors = a.factors.iter().map(|f| &f.tensor).chain(a.inputs);
    let mut places: SmallVec<[Place<'_>; 8]> = SmallVec::new();
    for (tensor, strides) in tensors.zip(&strides) {
        let element_bytes = tensor.view.dtype.size_bytes();
        places.push(Place { buffer: &tensor.buffer, address: tensor.address(), strides, element_bytes });
    }
    let element_bytes = dtype.size_bytes();
    places.push(Place { buffer: &a.out.buffer, address: a.out.address(), strides: &[], element_bytes });
    let elements = a.out.view.elements() as u32;
    let arguments = Arguments { count: elements, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, places.len() - 1, count * rows.div_ceil(AttentionTile::ROWS))?;
    Ok(true)
}
