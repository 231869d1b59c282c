//! Fused ops that are attention: kernels of its own, or those of its parts.

use super::call::Call;
use super::copies::contiguous;
use super::fused::{loaded, seen};
use super::movement;
use crate::kernels::attention::{self, Rows, Way};
use crate::program::attention::{Attention, Factor};
use crate::program::fused::refined;
use crate::shape::{Dims, Strides};
use crate::{Result, Tensor, View};

/// Runs attention in kernels of its own; `None` where there are none for it.
pub fn attention(call: &Call<'_>, found: &Attention) -> Result<Option<Tensor>> {
    let dtype = call.out.dtype;
    let Some(way) = attention::way(call.engine, found, dtype, call.compile)? else { return Ok(None) };
    for factor in &found.factors {
        if call.operand(factor.operand as usize)?.view.dtype != dtype {
            return Ok(None);
        }
    }
    let [query, key, value] = found.factors.each_ref().map(|factor| rows(call, factor, way == Way::Tiles));
    let mut factors = [query?, key?, value?];
    let inputs = found.loads.iter().map(|load| movement::ascending(call, &loaded(call, load)?.tensor));
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    // Batches as axes along which every operand has one stride.
    let rank = found.space.len() - 2;
    let (plain, of_scores) = found.space.split_at(rank);
    let fine = factors.iter().try_fold(Dims::from_slice(plain), |fine, factor| {
        let sizes: Dims = factor.batch.iter().map(|&(size, _)| size).collect();
        refined(&fine, &sizes)
    });
    let Some(fine) = fine else { return Ok(None) };
    for factor in &mut factors {
        factor.batch = split(&factor.batch, &fine);
    }
    let along = |strides: &[i64]| -> Strides {
        let axes: Vec<(u64, i64)> = plain.iter().copied().zip(strides.iter().copied()).collect();
        split(&axes, &fine).into_iter().map(|(_, stride)| stride).chain(strides[rank..].iter().copied()).collect()
    };
    let inputs: Vec<Tensor> = inputs
        .into_iter()
        .map(|input| {
            let view = View {
                shape: fine.iter().chain(of_scores).copied().collect(),
                strides: along(&input.view.strides),
                ..View::clone(&input.view)
            };
            input.with_view(view)
        })
        .collect();
    let out = Tensor::uninitialized(call.engine, call.out)?;
    // Where axes of batches, rows and elements are in the result.
    let mut strides: Strides = std::iter::repeat_n(0, rank + 2).collect();
    for (&axis, &stride) in found.order.iter().zip(&out.view.strides) {
        strides[axis] = stride;
    }
    let results = along(&strides);
    let what = attention::Attention {
        of: found,
        factors: &factors,
        batches: &fine,
        inputs: &inputs,
        out: &out,
        results: &results[..=fine.len()],
    };
    Ok(attention::attention(call.engine, &what, way, call.compile)?.then_some(out))
}

/// Axes of which neighbours make up others, from the outermost on: sizes and strides.
type Lying = Vec<(u64, i64)>;

/// The axes of a view that make up each axis of a shape, without those of one element, and joined where strides allow
/// it.
fn axes_of(view: &View, shape: &[u64]) -> Option<Vec<Lying>> {
    let mut fine = view.shape.iter().copied().zip(view.strides.iter().copied()).filter(|&(size, _)| size != 1);
    let axes = |&size: &u64| {
        let (mut own, mut all) = (Lying::new(), 1);
        while all < size {
            let (size, stride) = fine.next()?;
            all *= size;
            match own.last_mut() {
                Some(outer) if outer.1 == stride * size as i64 => *outer = (outer.0 * size, stride),
                _ => own.push((size, stride)),
            }
        }
        (all == size).then_some(own)
    };
    shape.iter().map(axes).collect()
}

/// Axes as finer ones of these sizes, which is a stride for each of them.
fn split(axes: &[(u64, i64)], sizes: &[u64]) -> Lying {
    let mut rest = axes.iter().rev().copied();
    let (mut left, mut stride) = (1, 0);
    let mut fine: Lying = Vec::with_capacity(sizes.len());
    for &size in sizes.iter().rev() {
        if size != 1 && left == 1 {
            (left, stride) = rest.find(|&(size, _)| size != 1).unwrap_or((size, 0));
        }
        fine.push((size, stride));
        stride *= size as i64;
        left /= size.min(left);
    }
    fine.reverse();
    fine
}

/// An operand in place if its rows are contiguous, and aligned where they must be, else a copy.
fn rows(call: &Call<'_>, factor: &Factor, aligned: bool) -> Result<Rows> {
    let tensor = movement::ascending(call, call.operand(factor.operand as usize)?)?;
    let (tensor, view) = seen(call, &tensor, &factor.views)?;
    let seen = tensor.with_view(view);
    // Kernels begin at the lowest address.
    let ascends = |found: &Rows| found.rows >= 0 && found.batch.iter().all(|&(_, stride)| stride >= 0);
    let fits = |found: &Rows| ascends(found) && (!aligned || found.is_aligned());
    if let Some(found) = in_place(&seen, factor).filter(fits) {
        return Ok(found);
    }
    // Rows of elements, as results lie.
    let whole = contiguous(call.engine, &seen, call.compile)?;
    let order = factor.batch.iter().copied().chain([factor.rows, factor.columns]).collect::<Vec<usize>>();
    let shape = View::contiguous(whole.view.dtype, &factor.shape);
    let turned = whole.with_view(View { offset: whole.view.offset, ..shape }.transpose(&order)?);
    let copy = contiguous(call.engine, &turned, call.compile)?;
    let (lead, rank) = (copy.view.strides.iter().copied(), factor.batch.len());
    let batch = copy.view.shape[..rank].iter().copied().zip(lead).collect();
    Ok(Rows { batch, rows: copy.view.strides[rank], tensor: copy })
}

fn in_place(seen: &Tensor, factor: &Factor) -> Option<Rows> {
    let axes = axes_of(&seen.view, &factor.shape)?;
    let one = |axis: usize| match axes[axis].as_slice() {
        [] => Some(0),
        &[(_, stride)] => Some(stride),
        _ => None,
    };
    let batch = factor.batch.iter().flat_map(|&axis| axes[axis].iter().copied()).collect();
    let found = Rows { tensor: seen.clone(), batch, rows: one(factor.rows)? };
    (one(factor.columns)? == 1).then_some(found)
}
