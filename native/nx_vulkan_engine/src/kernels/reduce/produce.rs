//! Launches of reductions whose elements are computed on the way in, several of them at once, and whose results take
//! steps on the way out. Trees are those of each reduction of the same elements in memory, so that results have the
//! same bits.

use nx_vulkan_ir::program::step::Ref;
use smallvec::SmallVec;

use super::launch::{Layout, layout as layout_of, spaces};
use super::stages::Stages;
use super::{Direction, Producer, ReduceEpilogue, ReduceSpec, Stage};
use crate::kernels::rows::{Along, RowPort};
use crate::kernels::{Compile, Loaded, Place};
use crate::program::fused::Plan;
use crate::program::reductions::Reductions;
use crate::shape::{Dims, Space, Strides};
use crate::tuning::DeviceModel;
use crate::{Engine, Result, Tensor, View};

/// Axes of chunks' accumulators: as of reductions of several parts, which share the kernel.
const AXES_OF_PARTIALS: usize = 2;

/// How the reductions are laid out, and the axes along which their elements lie, if each would be laid out like that
/// alone.
fn layout(
    model: &DeviceModel,
    plan: &Plan,
    what: &Reductions,
    loads: &[&Tensor],
    outputs: u64,
) -> Option<(Layout, usize)> {
    let mut layouts = what.before.results.iter().zip(&what.reducers).map(|(&of, reducer)| {
        let dtype = reducer.input;
        // What is computed would lie in memory without gaps.
        let (view, aligned) = match of {
            Ref::Input(k) => {
                let tensor = loads.get(usize::from(k))?;
                (View::clone(&tensor.view), tensor.address().is_multiple_of(16))
            }
            _ => (View::contiguous(dtype, &plan.space), true),
        };
        let (kept, reduced) = spaces(&view, &plan.axes);
        let layout = layout_of(&kept, &reduced, dtype, aligned, model);
        let last = layout.of_partials(model, outputs, layout.chunks, reducer.accumulator_bytes());
        let teams =
            [layout.team(model, reduced.rank(), layout.chunk), last.team(model, AXES_OF_PARTIALS, layout.chunks)];
        Some((layout, last.direction, teams, reduced.rank()))
    });
    let (layout, last, teams, rank) = layouts.next()??;
    let is_same = |(other, direction, other_teams, _): (Layout, Direction, [u32; 2], usize)| {
        other == layout && direction == last && other_teams == teams
    };
    layouts.all(|other| other.is_some_and(is_same)).then_some((layout, rank))
}

/// The axes of the plan's space that rows are made of, or the others, with the strides of some tensors.
fn along(plan: &Plan, tensors: &[&Tensor], reduced: bool) -> Space {
    let axes: SmallVec<[usize; 6]> = (0..plan.space.len()).filter(|axis| plan.axes.contains(axis) == reduced).collect();
    let sizes: Dims = axes.iter().map(|&axis| plan.space[axis]).collect();
    let strides: Vec<Strides> =
        tensors.iter().map(|t| axes.iter().map(|&axis| t.view.strides[axis]).collect()).collect();
    Space::new(&sizes, &strides.iter().map(|s| &s[..]).collect::<Vec<_>>())
}

fn place<'a>(t: &'a Tensor, strides: &'a [i64]) -> Place<'a> {
    Place { buffer: &t.buffer, address: t.address(), strides, element_bytes: t.view.dtype.size_bytes() }
}

/// How a kernel that reads `width` neighbours together finds an operand whose elements lie along these axes.
fn port(t: &Tensor, kept: &[i64], reduced: &[i64], width: u64) -> RowPort {
    let bytes = t.view.dtype.size_bytes() * width;
    let vector = *reduced == [1]
        && bytes <= 16
        && !t.view.dtype.is_complex()
        && t.address().is_multiple_of(bytes)
        && kept.iter().all(|s| s.unsigned_abs().is_multiple_of(width));
    let along = match () {
        () if reduced.iter().all(|&s| s == 0) => Along::Row,
        () if vector => Along::Vector,
        () => Along::Strided,
    };
    RowPort { dtype: t.view.dtype, along, bounded: false }
}

/// The steps before the reductions, of operands along the axes that are kept, and those that are reduced. Elements that
/// one reduction takes as they lie in memory are produced by nothing.
fn producer(
    what: &Reductions,
    loads: &[&Tensor],
    (kept, reduced): (&Space, &Space),
    direction: Direction,
) -> Option<Box<Producer>> {
    if what.before.results[..] == [Ref::Input(0)] {
        return None;
    }
    let width = match direction {
        Direction::Rows { width } => u64::from(width),
        Direction::Columns { .. } => 1,
    };
    let ports = loads.iter().enumerate().map(|(k, t)| port(t, &kept.strides[k], &reduced.strides[k], width));
    Some(Box::new(Producer {
        inputs: ports.collect(),
        steps: what.before.steps.clone(),
        values: what.before.results.clone(),
    }))
}

/// The steps behind the reductions, of further operands along so many axes.
fn epilogue(what: &Reductions, further: &[&Tensor], rank: usize) -> Option<Box<ReduceEpilogue>> {
    if what.is_plain() {
        return None;
    }
    Some(Box::new(ReduceEpilogue {
        inputs: further.iter().map(|t| t.view.dtype).collect(),
        steps: what.behind.steps.clone().into(),
        results: what.behind.results.iter().copied().zip(what.stored.iter().copied()).collect(),
        rank: rank as u8,
    }))
}

/// Runs a plan of such reductions. `None` where one launch can't index everything, or they are laid out differently.
pub fn reduce(
    engine: &Engine,
    plan: &Plan,
    what: &Reductions,
    loads: &[Loaded],
    results: &[Tensor],
    compile: Compile,
) -> Result<Option<()>> {
    // Accumulators take 16 bytes at most.
    let outputs: u64 = plan.kept().iter().product();
    let reach = engine.reach();
    if plan.elements() > reach.far() || outputs > reach.near(16) || !loads.iter().all(|load| load.is_indexed(reach)) {
        return Ok(None);
    }
    let tensors = |which: &[usize]| -> Vec<&Tensor> {
        which.iter().filter_map(|&k| loads.get(k)).map(|load| &load.tensor).collect()
    };
    let (loads, further) = (tensors(&what.before.loads), tensors(&what.behind.loads));
    let Some((layout, rank)) = layout(engine.model(), plan, what, &loads, outputs) else { return Ok(None) };
    let (kept, reduced) = (along(plan, &loads, false), along(plan, &loads, true));
    let producer = producer(what, &loads, (&kept, &reduced), layout.direction);
    let behind = if further.is_empty() { Space::new(&[], &[]) } else { along(plan, &further, false) };
    let epilogue = epilogue(what, &further, behind.rank());
    let spec = ReduceSpec {
        reducers: what.reducers.clone(),
        times: None,
        producer,
        epilogue,
        stage: Stage::Whole,
        direction: layout.direction,
        kept_rank: kept.rank() as u8,
        reduced_rank: reduced.rank() as u8,
        paired: layout.paired,
    };
    let strides: Vec<Strides> =
        (0..loads.len()).map(|k| kept.strides[k].iter().chain(&reduced.strides[k]).copied().collect()).collect();
    let operands: SmallVec<[Place<'_>; 4]> = loads.iter().zip(&strides).map(|(t, s)| place(t, s)).collect();
    let further: SmallVec<[Place<'_>; 4]> = further.iter().zip(&behind.strides).map(|(t, s)| place(t, s)).collect();
    let targets: SmallVec<[Place<'_>; 4]> =
        results.iter().map(|t| Place { element_bytes: 0, ..place(t, &[]) }).collect();
    let stages = Stages {
        spec,
        layout: &layout,
        axes: [rank, AXES_OF_PARTIALS],
        sizes: [&kept.sizes, &reduced.sizes],
        operands: &operands,
        results: &behind.sizes,
        further: &further,
        targets: &targets,
        far: false,
    };
    stages.run(engine, compile).map(Some)
}
