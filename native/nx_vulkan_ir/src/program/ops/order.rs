//! Ops that order the elements along an axis, or combine them one after the other.

use super::elementwise::Binary;
use super::kind::{Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{along, axis_attr, combine_work, f32, flag_attr, one, ordered, s32, same_dtype, same_shape};
use crate::program::attribute::{Reduction, Scalar, named_enum};
use crate::program::wire::{Attr, Attrs};
use crate::value::range;
use crate::{DType, Result, Type};

family! {
    /// Ops along one axis whose results depend on the order of its elements.
    Order { Scan, Sort, Argsort, TopK, Searchsorted }
}

/// Instructions for each pair of elements that a sort compares where one workgroup runs it as other ops.
const SORT_COST: u64 = 16;

/// Every pair along the axis.
fn work_of_sort(axis: usize, outs: &[Type]) -> u64 {
    let of = |out: &Type| out.elements() * out.shape.get(axis).copied().unwrap_or(1) * SORT_COST;
    outs.first().map_or(0, of)
}

/// a; equal elements keep their order, NaN is the largest
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sort {
    /// Along which.
    pub axis: usize,
    /// The largest first.
    pub descending: bool,
}

impl Sort {
    fn names<Of: From<Sort> + 'static>() -> Names<Of> {
        vec![named(
            "sort",
            |_, a| Ok(Sort { axis: a.axis("axis")?, descending: a.flag("descending")? }.into()),
            || (Sort { axis: 1, descending: true }.into(), [f32(&[2, 3])], [f32(&[2, 3])]),
        )]
    }
}

impl OpKind for Sort {
    fn facts(&self) -> Facts {
        Facts::alone("sort", Class::Order, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis), flag_attr("descending", self.descending)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        ordered(a)?;
        same_dtype(a, out)?;
        along(self.axis, a.shape.len())?;
        same_shape(&a.shape, out)
    }

    fn workgroup_work(&self, _: &[&Type], outs: &[Type]) -> u64 {
        work_of_sort(self.axis, outs)
    }
}

/// a; the places of the elements of [`Sort`]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Argsort {
    /// Along which.
    pub axis: usize,
    /// The largest first.
    pub descending: bool,
}

impl Argsort {
    fn names<Of: From<Argsort> + 'static>() -> Names<Of> {
        vec![named(
            "argsort",
            |_, a| Ok(Argsort { axis: a.axis("axis")?, descending: a.flag("descending")? }.into()),
            || (Argsort { axis: 0, descending: false }.into(), [f32(&[2, 3])], [s32(&[2, 3])]),
        )]
    }
}

impl OpKind for Argsort {
    fn facts(&self) -> Facts {
        Facts::alone("argsort", Class::Order, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis), flag_attr("descending", self.descending)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let a = operands[0];
        ordered(a)?;
        along(self.axis, a.shape.len())?;
        same_shape(&a.shape, one(outs)?)
    }

    fn workgroup_work(&self, _: &[&Type], outs: &[Type]) -> u64 {
        work_of_sort(self.axis, outs)
    }
}

/// a; two results: the first elements along the last axis of a descending sort, and their places
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopK {
    /// How many.
    pub k: u64,
}

impl TopK {
    fn names<Of: From<TopK> + 'static>() -> Names<Of> {
        vec![named(
            "top_k",
            |_, a| Ok(TopK { k: a.axis("k")? as u64 }.into()),
            || (TopK { k: 2 }.into(), [f32(&[2, 3])], [f32(&[2, 2]), s32(&[2, 2])]),
        )]
    }
}

impl OpKind for TopK {
    fn facts(&self) -> Facts {
        Facts::alone("top_k", Class::Order, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("k".to_string(), Attr::Int(self.k as i64))]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let ([a], [values, places]) = (operands, outs) else {
            return Err(format!("has two results, got {}", outs.len()));
        };
        ordered(a)?;
        same_dtype(a, values)?;
        let mut shape = a.shape.clone();
        let Some(last) = shape.last_mut().filter(|last| (1..=**last).contains(&self.k)) else {
            return Err(format!("{} of {:?}", self.k, a.shape));
        };
        *last = self.k;
        same_shape(&shape, values)?;
        same_shape(&shape, places)
    }
}

named_enum! {
    /// Where a value stands among elements that are equal to it.
    Side { Left = "left", Right = "right" }
}

/// sorted, values; how many elements of its row come before each value: of the one that `sorted` is, or along the last
/// axis of the one that it has for each row of values. NaN is the largest
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Searchsorted {
    /// Left or right of the equal ones.
    pub side: Side,
}

impl Searchsorted {
    fn names<Of: From<Searchsorted> + 'static>() -> Names<Of> {
        vec![named("searchsorted", Searchsorted::read, || {
            (Searchsorted { side: Side::Left }.into(), [f32(&[2, 3]), f32(&[2, 4])], [s32(&[2, 4])])
        })]
    }

    fn read<Of: From<Searchsorted>>(_: &str, a: &Attrs<'_>) -> Result<Of> {
        let side =
            a.find("side").and_then(|side| if let Attr::Name(name) = side { Side::from_name(name) } else { None });
        Ok(Searchsorted { side: side.ok_or_else(|| a.fail("side", "left or right"))? }.into())
    }
}

impl OpKind for Searchsorted {
    fn facts(&self) -> Facts {
        Facts::alone("searchsorted", Class::Order, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("side".to_string(), Attr::Name(self.side.name().to_string()))]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (sorted, values, out) = (operands[0], operands[1], one(outs)?);
        ordered(sorted)?;
        if sorted.dtype != values.dtype {
            return Err(format!("{} among {}", values.dtype, sorted.dtype));
        }
        if !out.dtype.is_integer() {
            return Err(format!("places are integers, not {}", out.dtype));
        }
        match (&sorted.shape[..], &values.shape[..]) {
            ([_], _) => {}
            ([rows @ .., _], [of_values @ .., _]) if rows == of_values => {}
            (rows, of_values) => return Err(format!("{rows:?} has no row for each of {of_values:?}")),
        }
        same_shape(&values.shape, out)
    }
}

named_enum! {
    /// Running reductions along an axis.
    Cumulative {
        Sum = "cumulative_sum", Product = "cumulative_product", Max = "cumulative_max", Min = "cumulative_min",
    }
}

impl Cumulative {
    /// The reduction of the elements up to each, and what it makes of two.
    fn parts(self) -> (Reduction, Binary) {
        match self {
            Cumulative::Sum => (Reduction::Sum, Binary::Add),
            Cumulative::Product => (Reduction::Product, Binary::Multiply),
            Cumulative::Max => (Reduction::Max, Binary::Max),
            Cumulative::Min => (Reduction::Min, Binary::Min),
        }
    }

    /// The reduction that runs along the axis.
    pub fn reduction(self) -> Reduction {
        self.parts().0
    }

    /// What combines the reductions of neighbouring parts.
    pub fn combine(self) -> Binary {
        self.parts().1
    }

    /// The number that changes nothing.
    pub(in crate::program) fn identity(self, dtype: DType) -> Scalar {
        let whole = dtype.is_integer();
        match self {
            Cumulative::Sum if whole => Scalar::Int(0),
            Cumulative::Product if whole => Scalar::Int(1),
            Cumulative::Max if whole => Scalar::Int(range(dtype).0),
            Cumulative::Min if whole => Scalar::Int(range(dtype).1),
            Cumulative::Sum => Scalar::Float(0.0),
            Cumulative::Product => Scalar::Float(1.0),
            Cumulative::Max => Scalar::Float(f64::NEG_INFINITY),
            Cumulative::Min => Scalar::Float(f64::INFINITY),
        }
    }
}

/// Elements that are combined for each of a scan there, about.
const SCAN_COST: u64 = 32;

/// a; each element is combined with all before it
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scan {
    /// By what.
    pub scan: Cumulative,
    /// Along which.
    pub axis: usize,
    /// From the last element to the first.
    pub reverse: bool,
}

impl Scan {
    fn names<Of: From<Scan> + 'static>() -> Names<Of> {
        let all = Cumulative::ALL.iter().map(|&scan| {
            let sample = move || (Scan { scan, axis: 0, reverse: true }.into(), [f32(&[2, 3])], [f32(&[2, 3])]);
            named(scan.name(), Scan::read, sample)
        });
        all.collect()
    }

    fn read<Of: From<Scan>>(name: &str, a: &Attrs<'_>) -> Result<Of> {
        let scan = Cumulative::from_name(name).ok_or_else(|| a.fail("name", "a running reduction"))?;
        Ok(Scan { scan, axis: a.axis("axis")?, reverse: a.flag("reverse")? }.into())
    }
}

impl OpKind for Scan {
    fn facts(&self) -> Facts {
        Facts::alone(self.scan.name(), Class::Order, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis), flag_attr("reverse", self.reverse)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        if self.scan.reduction().is_ordered() {
            ordered(a)?;
        }
        along(self.axis, a.shape.len())?;
        same_shape(&a.shape, out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        Some(operands.first()?.elements())
    }

    fn workgroup_work(&self, _: &[&Type], outs: &[Type]) -> u64 {
        outs.first().map_or(0, |out| out.elements() * SCAN_COST * combine_work(out))
    }
}
