//! Fused ops: one kernel for a whole body, or the body's ops one by one where sizes or layouts need that.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::program::run_instructions;
use super::{Call, Results, contiguous, epilogue};
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::reduce::produce;
use crate::kernels::rows::rows;
use crate::kernels::{Loaded, max_position};
use crate::program::fused::{Load, Made, Plan, through};
use crate::program::reductions::Reductions;
use crate::program::{Program, passes};
use crate::shape::contiguous_strides;
use crate::{Error, Result, Tensor, View};

/// Runs the body of a fused op.
pub fn fused(call: &Call<'_>, body: &Program) -> Result<Results> {
    if let Some(found) = crate::program::epilogue::of(body) {
        return match epilogue::product(call, body, found)? {
            Some(result) => Ok(smallvec![result]),
            None => one_by_one(call, body),
        };
    }
    let Ok(plan) = Plan::of(body) else { return one_by_one(call, body) };
    let loads = plan.loads.iter().map(|load| loaded(call, load)).collect::<Result<Vec<_>>>()?;
    let results = plan.stores.iter().map(|s| Tensor::uninitialized(call.engine, &s.ty)).collect::<Result<Results>>()?;
    let done = match plan.reductions().next() {
        None if !fits(&plan, &loads) => None,
        None => match mapped(call, &plan, &loads, &results) {
            Err(Error::TooLarge { .. }) => None,
            other => other.map(Some)?,
        },
        Some(_) => match Reductions::of(&plan).filter(|reductions| streams(call, &plan, reductions)) {
            Some(what) => {
                let done = produce::reduce(call.engine, &plan, &what, &loads, &results, call.compile)?;
                if done.is_none() && !what.is_alone() {
                    return one_by_one(call, &passes::apart(body, &call.engine.target())?);
                }
                done
            }
            None => rows(call.engine, &plan, &loads, &results, call.compile)?,
        },
    };
    match done {
        Some(()) => Ok(results),
        None => one_by_one(call, body),
    }
}

fn one_by_one(call: &Call<'_>, body: &Program) -> Result<Results> {
    Ok(run_instructions(call.engine, body, call.operands, call.compile)?.into_iter().collect())
}

/// Whether reductions take a pass over memory of chunks of rows, and not whole rows in registers: workgroups of a GPU finish those sooner where
/// several are reduced or steps follow.
fn streams(call: &Call<'_>, plan: &Plan, what: &Reductions) -> bool {
    let model = call.engine.model();
    what.is_alone() || model.reductions.streams || !model.programs.rows.fit(plan)
}

/// An operand as the kernel reads it.
pub(super) fn loaded(call: &Call<'_>, load: &Load) -> Result<Loaded> {
    let mut tensor = call.operand(load.operand as usize)?.clone();
    let mut view = through(View::clone(&tensor.view), &load.views);
    if view.is_none() {
        tensor = contiguous(call.engine, &tensor, call.compile)?;
        view = through(View::clone(&tensor.view), &load.views);
    }
    let view = view.ok_or_else(|| call.invalid("views that need copies".into()))?;
    Ok(match load.bounded {
        true => Loaded::within(&tensor, view),
        false => Loaded { tensor: tensor.with_view(view), bounds: None },
    })
}

/// Whether one launch can index everything: a part of the space would count its indices anew.
fn fits(plan: &Plan, loads: &[Loaded]) -> bool {
    let widest = plan.stores.iter().map(|s| s.ty.dtype.size_bytes()).max().unwrap_or(1);
    let steps = plan.values.iter().filter_map(|v| if let Made::Step(step) = &v.made { Some(step) } else { None });
    let counts = |r: &Ref| matches!(r, Ref::Coordinate(_) | Ref::Linear);
    let indexed = steps.flat_map(|s| &s.args).chain(plan.stores.iter().map(|s| &s.value)).any(counts)
        || plan.loads.iter().any(|load| load.bounded);
    !indexed || (plan.elements() <= max_position(widest) && loads.iter().all(Loaded::is_indexed))
}

fn mapped(call: &Call<'_>, plan: &Plan, loads: &[Loaded], results: &[Tensor]) -> Result<()> {
    let inputs: Vec<Operand<'_>> = loads.iter().map(Operand::loaded).collect();
    let outputs: Vec<(Ref, Operand<'_>)> = plan
        .stores
        .iter()
        .zip(results)
        .map(|(store, t)| {
            let strides = contiguous_strides(&plan.space);
            let element = Element::Typed(t.view.dtype);
            (store.value, Operand { buffer: &t.buffer, element, strides, offset_bytes: 0, bounds: None })
        })
        .collect();
    let steps: SmallVec<[Step; 1]> = plan
        .values
        .iter()
        .map(|v| match &v.made {
            Made::Step(step) => Ok(step.clone()),
            Made::Reduction { .. } => Err(call.invalid("reduces".into())),
        })
        .collect::<Result<_>>()?;
    map(call.engine, &plan.space, &inputs, steps, &outputs, Shapes::Own, call.compile)
}
