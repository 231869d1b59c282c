//! Launches of products of vectors, or of a matrix and a vector: reductions of the elements' products.

use std::sync::Arc;

use smallvec::SmallVec;

use super::dot::Epilogue;
use super::reduce::{Plan, Target, plan, run};
use super::{Compile, KernelSpec, Place};
use crate::codegen::elementwise::dtype_of;
use crate::codegen::reduce::{Direction, ReduceEpilogue, ReduceSpec, Stage};
use crate::memory::Buffer;
use crate::program::Reduction;
use crate::shape::{Dims, Space, Strides};
use crate::{DType, Engine, Result};

/// One of two operands: its strides along the kept axes, then along those summed over.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    pub buffer: &'a Arc<Buffer>,
    pub address: u64,
    pub dtype: DType,
    pub kept: &'a [i64],
    pub summed: &'a [i64],
}

/// Steps on results of a shape, which give others of type `out`.
#[derive(Debug, Clone, Copy)]
pub struct Finish<'a> {
    pub epilogue: &'a Epilogue<'a>,
    pub shape: &'a [u64],
    pub out: DType,
}

/// Sums the products of elements over some axes, into a contiguous result of `dtype`, or of what `finish` makes of it, in the order of the kept
/// ones. The first factor's layout says which way to walk.
pub fn inner(
    engine: &Engine,
    [a, b]: [Factor<'_>; 2],
    [kept, summed]: [&[u64]; 2],
    out: Target<'_>,
    dtype: DType,
    finish: Option<Finish<'_>>,
    compile: Compile,
) -> Result<()> {
    let (kept, summed) = (Space::new(kept, &[a.kept, b.kept]), Space::new(summed, &[a.summed, b.summed]));
    let aligned = a.dtype == b.dtype && a.address.is_multiple_of(16) && b.address.is_multiple_of(16);
    let plan = plan(&kept, &summed, a.dtype, aligned, engine);
    let (outputs, elements) = (kept.elements(), summed.elements());
    let further = finish.map_or(&[][..], |finish| finish.epilogue.inputs);
    let results = finish.map(|finish| {
        let strides: SmallVec<[&[i64]; 4]> = further.iter().map(|operand| &operand.strides[..]).collect();
        Space::new(finish.shape, &strides)
    });
    let result_sizes = results.as_ref().map_or(&[][..], |space| &space.sizes[..]);
    let epilogue = finish.zip(results.as_ref()).map(|(finish, space)| {
        Box::new(ReduceEpilogue {
            inputs: further.iter().map(|operand| dtype_of(operand.element)).collect(),
            steps: finish.epilogue.steps.into(),
            result: finish.epilogue.result,
            out: finish.out,
            rank: space.rank() as u8,
        })
    });
    // The strides of the epilogue's operands behind axes in which they have none.
    let behind = |axes: usize| -> Vec<Strides> {
        let strides = results.iter().flat_map(|space| &space.strides);
        strides.map(|s| std::iter::repeat_n(0, axes).chain(s.iter().copied()).collect()).collect()
    };
    let spec = |stage: Stage, plan: &Plan, ranks: [usize; 2], elements: u64| {
        let spec = ReduceSpec {
            reduction: Reduction::Sum,
            tie_high: false,
            input: a.dtype,
            times: Some(b.dtype),
            producer: None,
            epilogue: epilogue.clone().filter(|_| stage != Stage::First),
            out: dtype,
            stage,
            direction: plan.direction,
            kept_rank: ranks[0] as u8,
            reduced_rank: ranks[1] as u8,
            paired: plan.paired,
        };
        (KernelSpec::Reduce { spec: spec.clone(), team: plan.team(engine, 1, elements) }, spec)
    };
    let sizes: Dims = kept.sizes.iter().chain(&summed.sizes).chain(result_sizes).copied().collect();
    let strides = [0, 1].map(|k| -> Strides { kept.strides[k].iter().chain(&summed.strides[k]).copied().collect() });
    let place = |factor: &Factor<'_>| (factor.address, factor.dtype.size_bytes());
    let [(a_address, a_bytes), (b_address, b_bytes)] = [&a, &b].map(place);
    let factors = [
        Place { buffer: a.buffer, address: a_address, strides: &strides[0], element_bytes: a_bytes },
        Place { buffer: b.buffer, address: b_address, strides: &strides[1], element_bytes: b_bytes },
    ];
    let target =
        Place { buffer: out.buffer, address: out.buffer.address() + out.offset_bytes, strides: &[], element_bytes: 0 };
    let stage = if plan.chunks > 1 { Stage::First } else { Stage::Whole };
    let (first, first_spec) = spec(stage, &plan, [kept.rank(), summed.rank()], plan.chunk);
    let finished = |operands: &[Place<'_>], axes: usize, sizes: &[u64], spec: &KernelSpec, header: [u64; 4]| {
        let strides = behind(axes);
        let further = further.iter().zip(&strides).map(|(operand, strides)| Place {
            buffer: operand.buffer,
            address: operand.address(),
            strides,
            element_bytes: operand.element.size_bytes().into(),
        });
        let places: SmallVec<[Place<'_>; 4]> = operands.iter().copied().chain(further).chain([target]).collect();
        run(engine, spec, compile, &places, sizes, header)
    };
    if plan.chunks == 1 {
        let axes = kept.rank() + summed.rank();
        return finished(&factors, axes, &sizes, &first, [outputs, elements, elements, 1]);
    }
    let strides = match plan.direction {
        Direction::Columns { .. } => [1, outputs],
        Direction::Rows { .. } => [plan.chunks, 1],
    };
    let of_partials = plan.of_partials(engine, outputs, plan.chunks, first_spec.accumulator_bytes());
    let (last, _) = spec(Stage::Last, &of_partials, [1, 1], plan.chunks);
    // Both kernels must exist before anything is recorded.
    engine.kernel(&first, compile)?;
    engine.kernel(&last, compile)?;
    let scratch = engine.alloc(outputs * plan.chunks * first_spec.accumulator_bytes())?;
    let strides = strides.map(|s| s as i64);
    let partial = Place { buffer: &scratch, address: scratch.address(), strides: &strides, element_bytes: 0 };
    let places = [factors[0], factors[1], Place { strides: &[], ..partial }];
    run(engine, &first, compile, &places, &sizes, [outputs, elements, plan.chunk, plan.chunks])?;
    let sizes: Dims = [outputs, plan.chunks].iter().chain(result_sizes).copied().collect();
    finished(&[partial], 2, &sizes, &last, [outputs, plan.chunks, plan.chunks, 1])
}
