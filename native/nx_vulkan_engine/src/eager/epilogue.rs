//! Fused ops around a product: one kernel, or one more where the product takes several.

use nx_vulkan_ir::program::step::Ref;

use super::call::{Call, loaded};
use super::conv;
use super::dot::{self, Then};
use crate::kernels::Loaded;
use crate::kernels::dot::Derived;
use crate::program::epilogue::{Epilogue, Factor, Following};
use crate::program::fused::{Plan, through};
use crate::program::pair::Pair;
use crate::program::{Op, Program};
use crate::{DType, Error, Result, Tensor, View};

/// Runs a product with the steps on its operands and results. `None` where an operand that takes steps does not lie as
/// their result would: how operands lie can decide how a product adds up.
pub fn product(call: &Call<'_>, body: &Program, epilogue: Epilogue) -> Result<Option<Tensor>> {
    let missing = || call.invalid("holds no product".into());
    let product = body.instructions.get(epilogue.product).ok_or_else(missing)?;
    let out = product.outs.first().ok_or_else(missing)?;
    let (mut operands, mut prologues, mut derived) = (Vec::new(), [None, None], None);
    for (place, factor) in epilogue.factors.into_iter().enumerate() {
        match factor {
            Factor::Loaded { operand, views, prologue } => {
                let tensor = call.operand(operand as usize)?;
                if prologue.is_some() && !tensor.view.is_contiguous() {
                    return Ok(None);
                }
                let Some(view) = through(View::clone(&tensor.view), &views) else { return Ok(None) };
                operands.push(tensor.with_view(view));
                prologues[place] = prologue;
            }
            Factor::Derived(plan) => {
                let ty = product.operands.get(place).and_then(|&factor| body.type_of(factor)).ok_or_else(missing)?;
                let depth = depth(&product.op, place, &ty.shape);
                let Some(found) = of_plan(call, &plan, ty.elements() / depth.max(1), out.dtype)? else {
                    return Ok(None);
                };
                // It has the type and the layout of what it is, in any memory, which nobody reads.
                let operand = plan.loads.first().map_or(0, |load| load.operand as usize);
                operands.push(call.operand(operand)?.with_view(View::contiguous(ty.dtype, &ty.shape)));
                derived = Some((found, place));
            }
        }
    }
    let Epilogue { loads, steps, result, dtype, .. } = epilogue;
    let has_steps = !steps.is_empty() || result != Ref::Input(0);
    let then = has_steps.then(|| after(call, Following { loads, steps, result, dtype })).transpose()?;
    let call = Call { op: &product.op, operands: &operands, out, outs: std::slice::from_ref(out), ..*call };
    match &product.op {
        Op::Dot { contract_a, batch_a, contract_b, batch_b } if let Some((derived, place)) = &derived => {
            dot::derived(&call, [contract_a, contract_b], [batch_a, batch_b], (derived, *place), then.as_ref())
        }
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot::dot(&call, [contract_a, contract_b], [batch_a, batch_b], prologues, then.as_ref()).map(Some)
        }
        Op::Conv(op) => conv::conv(&call, op, prologues, then.as_ref()).map(Some),
        _ => Err(Error::InvalidProgram { op: product.op.name().to_string(), reason: "is no product".to_string() }),
    }
}

/// The contracted elements of a product's operand.
fn depth(op: &Op, place: usize, shape: &[u64]) -> u64 {
    let Op::Dot { contract_a, contract_b, .. } = op else { return 0 };
    [contract_a, contract_b][place].iter().filter_map(|&axis| shape.get(axis)).product()
}

/// What a product with results of a type computes for itself, as a matrix of so many rows; `None` where a launch can't
/// reach all of what it is computed from, or does not find groups of neighbours.
fn of_plan(call: &Call<'_>, plan: &Plan, rows: u64, out: DType) -> Result<Option<Derived>> {
    let loads: Vec<Loaded> = plan.loads.iter().map(|load| loaded(call, load)).collect::<Result<_>>()?;
    let reach = call.engine.reach();
    if plan.elements() > reach.far() || !loads.iter().all(|load| load.is_indexed(reach)) {
        return Ok(None);
    }
    Ok(Derived::of(plan, rows, loads.into_iter().map(|load| load.tensor).collect(), out))
}

/// What follows products, for their kernel.
fn after(call: &Call<'_>, Following { loads, steps, result, dtype }: Following) -> Result<Then> {
    let inputs = loads.iter().map(|load| loaded(call, load).map(|load| load.tensor)).collect::<Result<_>>()?;
    Ok(Then { inputs, steps, result, dtype })
}

/// Runs two products of few vectors with the steps on the results of both. `None` where one kernel can't.
pub fn pair(call: &Call<'_>, body: &Program, found: Pair) -> Result<Option<Tensor>> {
    let product = body.instructions.first().and_then(|first| Some((&first.op, first.outs.first()?)));
    let Some((op @ Op::Dot { contract_a, batch_a, contract_b, batch_b }, out)) = product else { return Ok(None) };
    let [a, b] = found.factors.map(|k| call.operand(k as usize).cloned());
    let operands = [a?, b?];
    let other = call.operand(found.other as usize)?;
    let then = after(call, found.following)?;
    let call = Call { op, operands: &operands, out, outs: std::slice::from_ref(out), ..*call };
    dot::pair(&call, [contract_a, contract_b], [batch_a, batch_b], (other, found.place), &then)
}
