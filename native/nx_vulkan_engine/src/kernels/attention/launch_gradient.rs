//! Launches of gradients of attention.

use nx_vulkan_ir::program::attention_gradient::{AttentionGradient, By};
use smallvec::SmallVec;

use super::AttentionKernel;
use super::generate::AttentionTile;
use super::gradient::GradientSpec;
use super::launch::{EIGHT, Lying, Placed, RowBatches, factor_bits, has_wide_push, lying, places, reads, scores};
use super::query::UNIT_BYTES;
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::shape::Strides;
use crate::{Engine, Result, Tensor};

/// Bytes of the numbers of a row of queries.
const ROW_BYTES: u64 = 16;

/// The gradient of attention of one type.
#[derive(Debug)]
pub struct Gradients<'a> {
    pub of: &'a AttentionGradient,
    /// Queries, keys and values, with a stride for each axis of batches.
    pub factors: &'a [RowBatches; 3],
    /// The gradient of the results.
    pub given: &'a RowBatches,
    /// Sizes of the axes of batches.
    pub batches: &'a [u64],
    /// Operands of steps, with strides along batches, rows and keys.
    pub inputs: &'a [Tensor],
    /// In the order of `AttentionGradient::results`, with strides along batches and rows; a row's elements are
    /// contiguous.
    pub results: &'a [(Tensor, Strides); 3],
}

/// Launches the gradient of attention; answers whether there are kernels for it that reach its operands.
///
/// # Errors
/// What launching may fail with.
pub fn gradients(engine: &Engine, a: &Gradients<'_>, compile: Compile) -> Result<bool> {
    let (attention, dtype) = (&a.of.of, a.given.tensor.view.dtype);
    let (depth, width, queries, keys) = (attention.depth, attention.width, attention.rows(), attention.keys());
    // Both are contracted, and both are those of results.
    let longer = depth.max(width);
    let Some(tile) = AttentionTile::of(longer, longer) else { return Ok(false) };
    let rows = || a.factors.iter().chain([a.given]);
    let is_aligned = rows().all(RowBatches::is_aligned)
        && a.results.iter().all(|(result, _)| result.address().is_multiple_of(UNIT_BYTES));
    let reach = engine.reach();
    let tensors = rows().map(|f| &f.tensor).chain(a.inputs).chain(a.results.iter().map(|(result, _)| result));
    let reaches = tensors.map(|t| &*t.view).all(|view| reach_of(view) <= reach.near(view.dtype.size_bytes()));
    let count: u64 = a.batches.iter().product();
    if !is_aligned || !reaches || count * queries > reach.near(ROW_BYTES) {
        return Ok(false);
    }
    let Some(by) = order(a.of) else { return Ok(false) };
    let of_operands = lying(a.factors, a.inputs, a.batches.len());
    let mut kernels = SmallVec::<[_; 3]>::new();
    for result in by {
        let by = a.of.results[result].by;
        let (_, strides) = &a.results[result];
        let Some((&of_rows, of_batches)) = strides.split_last() else { return Ok(false) };
        let own = match by {
            By::Query => [of_rows, 0, 1, 0],
            By::Key => [0, of_rows, 1, 0],
            By::Value => [0, of_rows, 0, 1],
        };
        let given = Lying::of(a.given, [a.given.rows, 0, 0, 1]);
        let numbers = Lying { batch: a.batches.iter().map(|_| 0).collect(), own: [0; 4] };
        let out = Lying { batch: Strides::from_slice(of_batches), own };
        let all: Vec<Lying> = of_operands.iter().map(Lying::clone).chain([given, numbers, out]).collect();
        let placed = Placed::of(a.batches, [queries, keys, depth, width], &all);
        let reads = reads(a.inputs, &placed.strides, placed.batch_rank);
        let operands = GradientSpec::operands(by, reads.len() as u8);
        let (of, others) = if by == By::Query { (queries, keys) } else { (keys, queries) };
        let spec = GradientSpec {
            by,
            dtype,
            tile,
            batch_rank: placed.batch_rank as u8,
            scores: scores(attention, reads),
            whole_others: others.is_multiple_of(GradientSpec::OTHERS),
            whole_depth: depth == tile.depth(),
            whole_width: width == tile.depth(),
            causal: attention.causal,
            factor: factor_bits(attention),
            scale: if by == By::Value { 1.0_f32.to_bits() } else { a.of.scale.to_bits() },
            wide: has_wide_push(engine),
        };
        let kernel = engine.kernel(&AttentionKernel::Gradient(spec), compile)?;
        let step = |operand: u8| match usize::from(operand) {
            at if at < a.factors.len() => a.factors[at].rows,
            _ => a.given.rows,
        };
        let steps = operands.map(step).into_iter().chain([of_rows]).map(|stride| stride.unsigned_abs() / EIGHT);
        let extra: SmallVec<[u32; 10]> =
            [count, queries, keys, depth, width].into_iter().chain(steps).map(|number| number as u32).collect();
        let groups = count * of.div_ceil(tile.gradient_rows());
        kernels.push((kernel, placed, extra, groups, result));
    }
    // All kernels must exist before anything is recorded.
    let numbers = engine.alloc(count * queries * ROW_BYTES)?;
    for (kernel, placed, extra, groups, result) in &kernels {
        let (out, _) = &a.results[*result];
        let operands = a.factors.iter().map(|f| &f.tensor).chain(a.inputs).chain([&a.given.tensor]);
        let mut all = places(operands, &placed.strides);
        all.push(Place { buffer: &numbers, address: numbers.address(), strides: &[], element_bytes: 0 });
        let strides = placed.strides.last().map_or(&[][..], |strides| &strides[..]);
        let element_bytes = dtype.size_bytes();
        all.push(Place { buffer: &out.buffer, address: out.address(), strides, element_bytes });
        let stores_numbers = a.of.results[*result].by == By::Query;
        let inputs = all.len() - if stores_numbers { 2 } else { 1 };
        let elements = out.view.elements() as u32;
        let arguments = Arguments { count: elements, sizes: &placed.sizes, places: &all, extra };
        launch(engine, kernel, &arguments, inputs, *groups)?;
    }
    Ok(true)
}

/// The results, that of queries first: its kernel finds the numbers of rows.
fn order(of: &AttentionGradient) -> Option<[usize; 3]> {
    let first = of.results.iter().position(|result| result.by == By::Query)?;
    Some([first, (first + 1) % 3, (first + 2) % 3])
}
