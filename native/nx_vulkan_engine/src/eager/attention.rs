//! Fused ops that are attention: one kernel, or those of its parts.

use super::fused::loaded;
use super::{Call, contiguous, movement};
use crate::kernels::attention::{self, Rows};
use crate::program::attention::{Attention, Factor};
use crate::shape::Strides;
use crate::{Result, Tensor};

/// Runs attention in one kernel; `None` where there is none for it.
pub fn attention(call: &Call<'_>, found: &Attention) -> Result<Option<Tensor>> {
    if !attention::takes(call.engine, call.out.dtype, call.compile)? {
        return Ok(None);
    }
    let [query, key, value] = &found.factors;
    let factors = [rows(call, query)?, rows(call, key)?, rows(call, value)?];
    let inputs = found.loads.iter().map(|load| movement::ascending(call, &loaded(call, load)?.tensor));
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    let out = Tensor::uninitialized(call.engine, call.out)?;
    let what = attention::Attention {
        factors: &factors,
        space: &found.space,
        depth: found.depth,
        width: found.width,
        inputs: &inputs,
        steps: &found.steps,
        score: found.score,
        scores: found.scores,
        causal: found.causal,
        factor: found.factor,
        out: &out,
    };
    Ok(attention::attention(call.engine, &what, call.compile)?.then_some(out))
}

/// An operand in place if its rows are contiguous and aligned, else a copy.
fn rows(call: &Call<'_>, factor: &Factor) -> Result<Rows> {
    let tensor = call.operand(factor.operand as usize)?;
    let of = |tensor: &Tensor| {
        let strides = &tensor.view.strides;
        let batch: Strides = factor.batch.iter().map(|&axis| strides[axis]).collect();
        Rows { tensor: tensor.clone(), batch, rows: strides[factor.rows] }
    };
    let found = of(tensor);
    if tensor.view.strides[factor.columns] == 1 && found.is_aligned() {
        return Ok(found);
    }
    // Rows of elements, as results lie.
    let order = factor.batch.iter().copied().chain([factor.rows, factor.columns]).collect::<Vec<usize>>();
    let turned = tensor.with_view(tensor.view.transpose(&order)?);
    let copy = contiguous(call.engine, &turned, call.compile)?;
    let rank = factor.batch.len();
    let (batch, rows) = (copy.view.strides[..rank].into(), copy.view.strides[rank]);
    Ok(Rows { tensor: copy, batch, rows })
}
