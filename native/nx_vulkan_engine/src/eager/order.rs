//! Ops along one axis whose results depend on the order of its elements.
//!
//! Kernels take contiguous rows. Where the axis is another than the last, it becomes the last of a copy, and the result
//! is a view that puts it back.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use super::call::{Call, Results};
use super::copies;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::sort::{SortKey, keeps_fewer};
use crate::kernels::{scan, sort};
use crate::program::Elementwise;
use crate::program::attribute::Axes;
use crate::program::ops::Visitor;
use crate::program::ops::order::*;
use crate::{DType, Result, Tensor, Type, View};

/// An operand as contiguous rows, and how to put their axis back.
struct AlongAxis {
    /// The operand with the axis last.
    tensor: Tensor,
    rows: u64,
    elements: u64,
    /// Axes of a result with the axis last, in the order of the operand's.
    back: Axes,
}

impl AlongAxis {
    fn of(call: &Call<'_>, axis: usize) -> Result<AlongAxis> {
        let a = call.operand(0)?;
        let rank = a.view.shape.len();
        if axis >= rank {
            return Err(call.invalid(format!("axis {axis} of rank {rank}")));
        }
        let order: Axes = (0..rank).filter(|&i| i != axis).chain([axis]).collect();
        let back: Axes = (0..rank).map(|i| if i == axis { rank - 1 } else { i - usize::from(i > axis) }).collect();
        let turned = a.with_view(a.view.transpose(&order)?);
        let elements = a.view.shape[axis];
        Ok(AlongAxis {
            tensor: copies::contiguous(call.engine, &turned, call.compile)?,
            rows: a.view.elements() / elements.max(1),
            elements,
            back,
        })
    }

    fn key(&self, call: &Call<'_>, descending: bool) -> Result<SortKey> {
        let dtype = self.tensor.view.dtype;
        if dtype.is_complex() {
            return Err(call.invalid(format!("{dtype} has no order")));
        }
        Ok(SortKey { dtype, descending })
    }

    /// A sort of the rows, without results yet.
    fn sort(&self, key: SortKey) -> sort::Sort<'_> {
        sort::Sort {
            key,
            input: &self.tensor,
            places: None,
            rows: self.rows,
            elements: self.elements,
            kept: self.elements,
            key_bytes: self.tensor.view.dtype.size_bytes(),
            values: None,
            ranks: None,
        }
    }

    /// A result whose last axis is the one of the rows, as the op gives it.
    fn result(&self, tensor: Tensor) -> Result<Tensor> {
        Ok(tensor.with_view(tensor.view.transpose(&self.back)?))
    }
}

impl Visitor<Scan, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Scan) -> Result<Results> {
        Ok(smallvec![scan(self, op)?])
    }
}

fn scan(call: &Call<'_>, op: &Scan) -> Result<Tensor> {
    let rows = AlongAxis::of(call, op.axis)?;
    let view = View::contiguous(call.out.dtype, &rows.tensor.view.shape);
    if rows.tensor.view.dtype != call.out.dtype {
        return Err(call.invalid(format!("{} does not give {}", rows.tensor.view.dtype, call.out.dtype)));
    }
    let out = Tensor::at(call.engine.alloc(call.out.size_bytes())?, view);
    let what = scan::Scan {
        reduction: op.scan.reduction(),
        reverse: op.reverse,
        input: &rows.tensor,
        out: &out,
        rows: rows.rows,
        elements: rows.elements,
    };
    if rows.elements > call.engine.reach().far() {
        for row in 0..rows.rows {
            scan_in_parts(call, op.scan, &what, row)?;
        }
    } else {
        scan::scan(call.engine, &what, call.compile)?;
    }
    call.result(rows.result(out)?)
}

/// A row that no launch reaches: parts of it, to each of which the last result of the part before is added.
fn scan_in_parts(call: &Call<'_>, scan: Cumulative, what: &scan::Scan<'_>, row: u64) -> Result<()> {
    let op = Elementwise::Binary(scan.combine());
    let dtype = call.out.dtype;
    let seen = |tensor: &Tensor, first: u64, elements: u64| {
        let offset = tensor.view.offset + row * what.elements + first;
        tensor.with_view(View { offset, ..View::contiguous(dtype, &[elements]) })
    };
    let longest = call.engine.reach().near(dtype.size_bytes());
    let mut before: Option<Tensor> = None;
    let mut done = 0;
    while done < what.elements {
        let elements = longest.min(what.elements - done);
        let first = if what.reverse { what.elements - done - elements } else { done };
        let (input, out) = (seen(what.input, first, elements), seen(what.out, first, elements));
        scan::scan(call.engine, &scan::Scan { input: &input, out: &out, rows: 1, elements, ..*what }, call.compile)?;
        if let Some(before) = before {
            let view = before.view.broadcast(&[elements], &[])?;
            let element = Element::Typed(dtype);
            let place = Operand::new(&out.buffer, &out.view, element);
            let inputs = [Operand::new(&before.buffer, &view, element), place.clone()];
            let step = Step { op, args: smallvec![Ref::Input(0), Ref::Input(1)], out: dtype };
            let outputs = [(Ref::Result(0), place)];
            map(call.engine, &[elements], &inputs, smallvec![step], &outputs, Shapes::Any, call.compile)?;
        }
        let last = if what.reverse { first } else { first + elements - 1 };
        let last = seen(what.out, last, 1);
        before = Some(last.with_view(View { offset: last.view.offset, ..View::contiguous(dtype, &[]) }));
        done += elements;
    }
    Ok(())
}

impl Visitor<Sort, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Sort) -> Result<Results> {
        let rows = AlongAxis::of(self, op.axis)?;
        let key = rows.key(self, op.descending)?;
        let out = Tensor::uninitialized(self.engine, &rows.tensor.view.ty())?;
        sort::sort(self.engine, &sort::Sort { values: Some(&out), ..rows.sort(key) }, self.compile)?;
        Ok(smallvec![self.result(rows.result(out)?)?])
    }
}

impl Visitor<Argsort, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Argsort) -> Result<Results> {
        let rows = AlongAxis::of(self, op.axis)?;
        let key = rows.key(self, op.descending)?;
        let places = Tensor::uninitialized(self.engine, &Type::new(DType::U32, &rows.tensor.view.shape))?;
        sort::sort(self.engine, &sort::Sort { ranks: Some(&places), ..rows.sort(key) }, self.compile)?;
        Ok(smallvec![self.result(rows.result(places_as(self, places, self.out.dtype)?)?)?])
    }
}

impl Visitor<TopK, Result<Results>> for &Call<'_> {
    fn visit(self, op: &TopK) -> Result<Results> {
        top_k(self, op)
    }
}

/// Elements and places of the `k` first along the last axis.
fn top_k(call: &Call<'_>, op: &TopK) -> Result<Results> {
    let outs = call.outs;
    let (Some(axis), [_, places_type]) = (call.operand(0)?.view.shape.len().checked_sub(1), outs) else {
        return Err(call.invalid("needs an axis, has two results".to_string()));
    };
    let k = op.k;
    let rows = AlongAxis::of(call, axis)?;
    let key = rows.key(call, true)?;
    if !(1..=rows.elements).contains(&k) || places_type.shape != call.out.shape {
        return Err(call.invalid(format!("{k} of {} elements, places of {:?}", rows.elements, places_type.shape)));
    }
    let kept = if keeps_fewer(rows.elements, k) { k } else { rows.elements };
    let mut shape = rows.tensor.view.shape.clone();
    shape[axis] = kept;
    let values = Tensor::uninitialized(call.engine, &Type::new(call.out.dtype, &shape))?;
    let places = Tensor::uninitialized(call.engine, &Type::new(DType::U32, &shape))?;
    let what = sort::Sort { values: Some(&values), ranks: Some(&places), kept, ..rows.sort(key) };
    sort::sort(call.engine, &what, call.compile)?;
    let places = places_as(call, places, places_type.dtype)?;
    let first = |tensor: Tensor| tensor.with_view(View { shape: call.out.shape.clone(), ..View::clone(&tensor.view) });
    Ok(smallvec![call.result(first(values))?, first(places)])
}

impl Visitor<Searchsorted, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Searchsorted) -> Result<Results> {
        let Call { engine, compile, out, .. } = *self;
        let (sorted, values) = (self.operand(0)?, self.operand(1)?);
        let elements = sorted.view.shape.last().copied().unwrap_or(1);
        if elements > engine.reach().far() {
            return Ok(smallvec![search_in_halves(self, sorted, elements)?]);
        }
        let sorted = copies::contiguous(engine, sorted, compile)?;
        let values = copies::contiguous(engine, values, compile)?;
        let places = Tensor::uninitialized(engine, &Type::new(DType::U32, &values.view.shape))?;
        let what = sort::search::Search {
            sorted: &sorted,
            values: &values,
            places: &places,
            rows: sorted.view.elements() / elements.max(1),
            elements,
            right: op.side == Side::Right,
        };
        sort::search::search(engine, &what, compile)?;
        Ok(smallvec![self.result(places_as(self, places, out.dtype)?)?])
    }
}

/// Rows that no launch reaches: what comes before a value in their halves adds up.
fn search_in_halves(call: &Call<'_>, sorted: &Tensor, elements: u64) -> Result<Tensor> {
    let Call { engine, op, out, compile, .. } = *call;
    let axis = sorted.view.shape.len() - 1;
    let within = |start: u64, length: u64| -> Result<Tensor> {
        let mut view = View::clone(&sorted.view);
        view.shape[axis] = length;
        view.offset = view.offset.wrapping_add_signed(start as i64 * view.strides[axis]);
        super::run(engine, op, &[sorted.with_view(view), call.operand(1)?.clone()], out, compile)
    };
    let places = [within(0, elements / 2)?, within(elements / 2, elements - elements / 2)?];
    super::run(engine, &crate::program::Op::Binary(crate::program::Binary::Add), &places, out, compile)
}

/// Places of 32 bits as elements of the type that the op gives.
fn places_as(call: &Call<'_>, places: Tensor, dtype: DType) -> Result<Tensor> {
    if matches!(dtype, DType::S32 | DType::U32) {
        return Ok(places.with_view(View { dtype, ..View::clone(&places.view) }));
    }
    let result = Tensor::uninitialized(call.engine, &Type::new(dtype, &places.view.shape))?;
    copies::copy(call.engine, &places, &result, call.compile)?;
    Ok(result)
}
