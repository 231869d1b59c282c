//! Fused ops: one kernel for a whole body, or the body's ops one by one where sizes or layouts need that.

use smallvec::{SmallVec, smallvec};

use super::program::run_instructions;
use super::{Call, Results, contiguous, epilogue};
use crate::codegen::access::Element;
use crate::codegen::elementwise::{Ref, Step};
use crate::kernel::launch::map::{Operand, Shapes, map};
use crate::kernel::launch::rows::rows;
use crate::kernel::launch::{max_position, produce};
use crate::program::Program;
use crate::program::fused::{Load, Made, Plan, through};
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
        Some(_) if produce::fits(&plan) => match results.as_slice() {
            [result] => produce::reduce(call.engine, &plan, &loads, result, call.compile)?,
            _ => None,
        },
        Some(_) => rows(call.engine, &plan, &loads, &results, call.compile)?,
    };
    match done {
        Some(()) => Ok(results),
        None => one_by_one(call, body),
    }
}

fn one_by_one(call: &Call<'_>, body: &Program) -> Result<Results> {
    Ok(run_instructions(call.engine, body, call.operands, call.compile)?.into_iter().collect())
}

/// A tensor with the shape of the iteration space.
pub(super) fn loaded(call: &Call<'_>, load: &Load) -> Result<Tensor> {
    let tensor = call.operand(load.operand as usize)?;
    if let Some(view) = through(tensor.view.clone(), &load.views)? {
        return Ok(Tensor { buffer: tensor.buffer.clone(), view });
    }
    let tensor = contiguous(call.engine, tensor, call.compile)?;
    let view = through(tensor.view.clone(), &load.views)?;
    let view = view.ok_or_else(|| call.invalid("views that need copies".into()))?;
    Ok(Tensor { buffer: tensor.buffer, view })
}

/// Whether one launch can index everything: a part of the space would count its indices anew.
fn fits(plan: &Plan, loads: &[Tensor]) -> bool {
    let reach = |view: &View| {
        let (low, high) = view.extent();
        (high - low) as u64
    };
    let widest = plan.stores.iter().map(|s| s.ty.dtype.size_bytes()).max().unwrap_or(1);
    let steps = plan.values.iter().filter_map(|v| if let Made::Step(step) = &v.made { Some(step) } else { None });
    let counts = |r: &Ref| matches!(r, Ref::Coordinate(_) | Ref::Linear);
    let indexed = steps.flat_map(|s| &s.args).chain(plan.stores.iter().map(|s| &s.value)).any(counts);
    !indexed
        || (plan.elements() <= max_position(widest)
            && loads.iter().all(|t| reach(&t.view) <= max_position(t.view.dtype.size_bytes())))
}

fn mapped(call: &Call<'_>, plan: &Plan, loads: &[Tensor], results: &[Tensor]) -> Result<()> {
    let typed = |t: &Tensor| Element::Typed(t.view.dtype);
    let inputs: Vec<Operand<'_>> = loads.iter().map(|t| Operand::new(&t.buffer, &t.view, typed(t))).collect();
    let outputs: Vec<(Ref, Operand<'_>)> = plan
        .stores
        .iter()
        .zip(results)
        .map(|(store, t)| {
            let strides = contiguous_strides(&plan.space);
            (store.value, Operand { buffer: &t.buffer, element: typed(t), strides, offset_bytes: 0 })
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
