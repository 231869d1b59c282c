//! Launches of reductions whose elements are computed on the way in. Trees are those of a reduction of the same elements in memory, so
//! that results have the same bits.

use smallvec::SmallVec;

use super::reduce::{Plan as Layout, plan as layout_of, run, spaces};
use super::{Compile, KernelSpec, Loaded, MAX_POSITION, Place, max_position};
use crate::codegen::elementwise::{Ref, Step};
use crate::codegen::reduce::{Direction, Producer, ReduceSpec, Stage};
use crate::codegen::rows::{Along, RowPort};
use crate::program::fused::{Made, Plan};
use crate::shape::{Dims, Space, Strides};
use crate::{Engine, Result, Tensor, View};

/// The only reduction of a plan that does nothing after it.
fn only(plan: &Plan) -> Option<&Made> {
    let (at, last) = plan.reductions().next()?;
    let [store] = plan.stores.as_slice() else { return None };
    let single = plan.reductions().count() == 1 && at + 1 == plan.values.len();
    (single && store.row && store.value == Ref::Result(at as u8)).then_some(&last.made)
}

/// Whether the plan is one reduction of what steps compute.
pub fn fits(plan: &Plan) -> bool {
    let counts = |r: &Ref| matches!(r, Ref::Coordinate(_) | Ref::Linear);
    let indexed = plan.values.iter().any(|v| match &v.made {
        Made::Step(step) => step.args.iter().any(counts),
        Made::Reduction { of, .. } => counts(of),
    });
    !indexed && !plan.loads.iter().any(|load| load.bounded) && only(plan).is_some()
}

/// Runs such a plan. `None` where one launch can't index everything.
pub fn reduce(engine: &Engine, plan: &Plan, loads: &[Loaded], result: &Tensor, compile: Compile) -> Result<Option<()>> {
    let Some(&Made::Reduction { reduction, tie_high, of, out }) = only(plan) else { return Ok(None) };
    let dtype = plan.dtype(of);
    // Accumulators take 16 bytes at most.
    let kept: u64 = plan.kept().iter().product();
    if plan.elements() > MAX_POSITION || kept > max_position(16) || !loads.iter().all(Loaded::is_indexed) {
        return Ok(None);
    }
    let loads: Vec<&Tensor> = loads.iter().map(|load| &load.tensor).collect();
    // As if the elements lay in memory.
    let (whole_kept, whole_reduced) = spaces(&View::contiguous(dtype, &plan.space), &plan.axes);
    let layout = layout_of(&whole_kept, &whole_reduced, dtype, true, engine);
    let pick = |reduced: bool| -> Space {
        let axes: SmallVec<[usize; 6]> =
            (0..plan.space.len()).filter(|axis| plan.axes.contains(axis) == reduced).collect();
        let sizes: Dims = axes.iter().map(|&axis| plan.space[axis]).collect();
        let strides: Vec<Strides> =
            loads.iter().map(|t| axes.iter().map(|&axis| t.view.strides[axis]).collect()).collect();
        Space::new(&sizes, &strides.iter().map(|s| &s[..]).collect::<Vec<_>>())
    };
    let (kept, reduced) = (pick(false), pick(true));
    let (outputs, elements) = (kept.elements(), reduced.elements());
    let width = match layout.direction {
        Direction::Rows { width } => u64::from(width),
        Direction::Columns { .. } => 1,
    };
    let port = |k: usize| {
        let (t, along) = (loads[k], &reduced.strides[k]);
        let bytes = t.view.dtype.size_bytes() * width;
        let vector = reduced.rank() == 1
            && along[0] == 1
            && bytes <= 16
            && !t.view.dtype.is_complex()
            && t.address().is_multiple_of(bytes)
            && kept.strides[k].iter().all(|s| s.unsigned_abs().is_multiple_of(width));
        let along = match () {
            () if along.iter().all(|&s| s == 0) => Along::Row,
            () if vector => Along::Vector,
            () => Along::Strided,
        };
        RowPort { dtype: t.view.dtype, along, bounded: false }
    };
    let steps: Vec<Step> = plan
        .values
        .iter()
        .filter_map(|v| if let Made::Step(step) = &v.made { Some(step.clone()) } else { None })
        .collect();
    let producer = Producer { inputs: (0..loads.len()).map(port).collect(), steps, value: of };
    let spec = |stage: Stage, layout: &Layout, ranks: [usize; 3], elements: u64| {
        let spec = ReduceSpec {
            reduction,
            tie_high,
            input: dtype,
            times: None,
            producer: (stage != Stage::Last).then(|| Box::new(producer.clone())),
            epilogue: None,
            out,
            stage,
            direction: layout.direction,
            kept_rank: ranks[0] as u8,
            reduced_rank: ranks[1] as u8,
            paired: layout.paired,
        };
        (KernelSpec::Reduce { spec: spec.clone(), team: layout.team(engine, ranks[2], elements) }, spec)
    };
    let sizes: Dims = kept.sizes.iter().chain(&reduced.sizes).copied().collect();
    let strides: Vec<Strides> =
        (0..loads.len()).map(|k| kept.strides[k].iter().chain(&reduced.strides[k]).copied().collect()).collect();
    let mut places: SmallVec<[Place<'_>; 4]> = loads
        .iter()
        .zip(&strides)
        .map(|(t, strides)| Place {
            buffer: &t.buffer,
            address: t.address(),
            strides,
            element_bytes: t.view.dtype.size_bytes(),
        })
        .collect();
    let target = Place { buffer: &result.buffer, address: result.address(), strides: &[], element_bytes: 0 };
    let stage = if layout.chunks > 1 { Stage::First } else { Stage::Whole };
    let ranks = [kept.rank(), reduced.rank(), whole_reduced.rank()];
    let (first, first_spec) = spec(stage, &layout, ranks, layout.chunk);
    if layout.chunks == 1 {
        places.push(target);
        return run(engine, &first, compile, &places, &sizes, [outputs, elements, elements, 1]).map(Some);
    }
    let strides = match layout.direction {
        Direction::Columns { .. } => [1, 0, outputs],
        Direction::Rows { .. } => [layout.chunks, 0, 1],
    };
    let of_partials = layout.of_partials(engine, outputs, layout.chunks, first_spec.accumulator_bytes());
    let (last, _) = spec(Stage::Last, &of_partials, [1, 2, 2], layout.chunks);
    // Both kernels must exist before anything is recorded.
    engine.kernel(&first, compile)?;
    engine.kernel(&last, compile)?;
    let scratch = engine.alloc(outputs * layout.chunks * first_spec.accumulator_bytes())?;
    let strides = strides.map(|s| s as i64);
    let partial = Place { buffer: &scratch, address: scratch.address(), strides: &[], element_bytes: 0 };
    let first_places: SmallVec<[Place<'_>; 4]> = places.iter().copied().chain([partial]).collect();
    run(engine, &first, compile, &first_places, &sizes, [outputs, elements, layout.chunk, layout.chunks])?;
    let sizes = [outputs, 1, layout.chunks];
    let places = [Place { strides: &strides, ..partial }, target];
    run(engine, &last, compile, &places, &sizes, [outputs, layout.chunks, layout.chunks, 1]).map(Some)
}
