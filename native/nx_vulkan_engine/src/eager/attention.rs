//! Fused ops that are attention: kernels of its own, or those of its parts.

use super::call::{Call, Results, loaded, seen};
use super::copies::contiguous;
use super::movement;
use crate::kernels::attention::{self, Gradients, RowBatches, Way};
use crate::program::attention::{Attention, Factor};
use crate::program::attention_gradient::AttentionGradient;
use crate::program::fused::refined;
use crate::shape::{Dims, Strides};
use crate::{DType, Result, Tensor, Type, View};

/// Runs attention in kernels of its own; `None` where there are none for it.
pub fn attention(call: &Call<'_>, found: &Attention) -> Result<Option<Tensor>> {
    let dtype = call.out.dtype;
    let Some(way) = attention::way(call.engine, found, dtype, call.compile)? else { return Ok(None) };
    let factors = found.factors.each_ref();
    let Some(lying) = Lying::of(call, found, factors, dtype, way == Way::Tiles)? else { return Ok(None) };
    let out = Tensor::uninitialized(call.engine, call.out)?;
    let results = lying.along(&strides_of(&out, &found.order));
    let what = attention::Attention {
        of: found,
        factors: &lying.factors,
        batches: &lying.fine,
        inputs: &lying.inputs,
        out: &out,
        results: &results[..=lying.fine.len()],
    };
    Ok(attention::attention(call.engine, &what, way, call.compile)?.then_some(out))
}

/// Runs the gradient of attention in kernels of its own; `None` where there are none for it.
pub fn gradient(call: &Call<'_>, found: &AttentionGradient, types: &[&Type]) -> Result<Option<Results>> {
    let dtype = call.out.dtype;
    if !attention::takes(call.engine, dtype, call.compile)? {
        return Ok(None);
    }
    let [query, key, value] = found.of.factors.each_ref();
    let factors = [query, key, value, &found.given];
    let Some(lying) = Lying::of(call, &found.of, factors, dtype, true)? else { return Ok(None) };
    let [first, second, third] = types else { return Ok(None) };
    let placed = |ty: &Type, order: &[usize]| {
        let out = Tensor::uninitialized(call.engine, ty)?;
        let mut strides = lying.along(&strides_of(&out, order));
        strides.truncate(lying.fine.len() + 1);
        Ok((out, strides))
    };
    let [a, b, c] = found.results.each_ref();
    let results = [placed(first, &a.order)?, placed(second, &b.order)?, placed(third, &c.order)?];
    let [query, key, value, given] = lying.factors;
    let what = Gradients {
        of: found,
        factors: &[query, key, value],
        given: &given,
        batches: &lying.fine,
        inputs: &lying.inputs,
        results: &results,
    };
    let done = attention::gradients(call.engine, &what, call.compile)?;
    Ok(done.then(|| results.into_iter().map(|(out, _)| out).collect()))
}

/// Strides of a result along axes of batches, rows and elements, which `order` says the axes of the result are.
fn strides_of(out: &Tensor, order: &[usize]) -> Strides {
    let mut strides: Strides = order.iter().map(|_| 0).collect();
    for (&axis, &stride) in order.iter().zip(&out.view.strides) {
        strides[axis] = stride;
    }
    strides
}

/// Operands of attention, with batches as axes along which each of them has one stride.
struct Lying<const N: usize> {
    factors: [RowBatches; N],
    /// What steps read, with axes of batches, rows and keys.
    inputs: Vec<Tensor>,
    /// Axes of batches as the scores have them, and finer ones.
    plain: Dims,
    fine: Dims,
}

impl<const N: usize> Lying<N> {
    /// How operands of one type lie; `None` where there are no such axes.
    fn of(
        call: &Call<'_>,
        found: &Attention,
        factors: [&Factor; N],
        dtype: DType,
        aligned: bool,
    ) -> Result<Option<Lying<N>>> {
        for factor in factors {
            if call.operand(factor.operand as usize)?.view.dtype != dtype {
                return Ok(None);
            }
        }
        let factors = factors.iter().map(|factor| rows(call, factor, aligned)).collect::<Result<Vec<RowBatches>>>()?;
        let Ok(mut factors) = <[RowBatches; N]>::try_from(factors) else { return Ok(None) };
        let inputs = found.loads.iter().map(|load| movement::ascending(call, &loaded(call, load)?.tensor));
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let (plain, of_scores) = found.space.split_at(found.space.len() - 2);
        let fine = factors.iter().try_fold(Dims::from_slice(plain), |fine, factor| {
            let sizes: Dims = factor.batch.iter().map(|&(size, _)| size).collect();
            refined(&fine, &sizes)
        });
        let Some(fine) = fine else { return Ok(None) };
        for factor in &mut factors {
            factor.batch = split(&factor.batch, &fine);
        }
        let mut lying = Lying { factors, inputs: Vec::new(), plain: Dims::from_slice(plain), fine };
        lying.inputs = inputs
            .into_iter()
            .map(|input| {
                let view = View {
                    shape: lying.fine.iter().chain(of_scores).copied().collect(),
                    strides: lying.along(&input.view.strides),
                    ..View::clone(&input.view)
                };
                input.with_view(view)
            })
            .collect();
        Ok(Some(lying))
    }

    /// Strides along the finer axes, of those along batches and others.
    fn along(&self, strides: &[i64]) -> Strides {
        let rank = self.plain.len();
        let axes: Vec<(u64, i64)> = self.plain.iter().copied().zip(strides.iter().copied()).collect();
        split(&axes, &self.fine).into_iter().map(|(_, stride)| stride).chain(strides[rank..].iter().copied()).collect()
    }
}

/// Axes of which neighbours make up others, from the outermost on: sizes and strides.
type Axes = Vec<(u64, i64)>;

/// The axes of a view that make up each axis of a shape, without those of one element, and joined where strides allow
/// it.
fn axes_of(view: &View, shape: &[u64]) -> Option<Vec<Axes>> {
    let mut fine = view.shape.iter().copied().zip(view.strides.iter().copied()).filter(|&(size, _)| size != 1);
    let axes = |&size: &u64| {
        let (mut own, mut all) = (Axes::new(), 1);
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
fn split(axes: &[(u64, i64)], sizes: &[u64]) -> Axes {
    let mut rest = axes.iter().rev().copied();
    let (mut left, mut stride) = (1, 0);
    let mut fine: Axes = Vec::with_capacity(sizes.len());
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
fn rows(call: &Call<'_>, factor: &Factor, aligned: bool) -> Result<RowBatches> {
    let tensor = movement::ascending(call, call.operand(factor.operand as usize)?)?;
    let (tensor, view) = seen(call, &tensor, &factor.views)?;
    let seen = tensor.with_view(view);
    // Kernels begin at the lowest address.
    let ascends = |found: &RowBatches| found.rows >= 0 && found.batch.iter().all(|&(_, stride)| stride >= 0);
    let fits = |found: &RowBatches| ascends(found) && (!aligned || found.is_aligned());
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
    Ok(RowBatches { batch, rows: copy.view.strides[rank], tensor: copy })
}

fn in_place(seen: &Tensor, factor: &Factor) -> Option<RowBatches> {
    let axes = axes_of(&seen.view, &factor.shape)?;
    let one = |axis: usize| match axes[axis].as_slice() {
        [] => Some(0),
        &[(_, stride)] => Some(stride),
        _ => None,
    };
    let batch = factor.batch.iter().flat_map(|&axis| axes[axis].iter().copied()).collect();
    let found = RowBatches { tensor: seen.clone(), batch, rows: one(factor.rows)? };
    (one(factor.columns)? == 1).then_some(found)
}
