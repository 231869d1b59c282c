//! Ops that order the elements along an axis, or combine them one after the other.

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{along, axis_attr, combine_work, f32, flag_attr, one, ordered, s32, same_dtype, same_shape};
use crate::program::Op;
use crate::program::attribute::Cumulative;
use crate::program::wire::{Attr, Attrs};
use crate::{Result, Type};

/// Elements that are combined for each of a scan, about, where one workgroup runs it as other ops.
const SCAN_COST: u64 = 32;

/// Instructions for each pair of elements that a sort compares there.
const SORT_COST: u64 = 16;

pub(super) fn names() -> Names {
    let scans = Cumulative::ALL.iter().map(|&scan| {
        let sample = move || (Op::Scan { scan, axis: 0, reverse: true }, [f32(&[2, 3])], [f32(&[2, 3])]);
        named(scan.name(), read_scan, sample)
    });
    let others = [
        named(
            "sort",
            |_, a| Ok(Op::Sort { axis: a.axis("axis")?, descending: a.flag("descending")? }),
            || (Op::Sort { axis: 1, descending: true }, [f32(&[2, 3])], [f32(&[2, 3])]),
        ),
        named(
            "argsort",
            |_, a| Ok(Op::Argsort { axis: a.axis("axis")?, descending: a.flag("descending")? }),
            || (Op::Argsort { axis: 0, descending: false }, [f32(&[2, 3])], [s32(&[2, 3])]),
        ),
        named(
            "top_k",
            |_, a| Ok(Op::TopK { k: a.axis("k")? as u64 }),
            || (Op::TopK { k: 2 }, [f32(&[2, 3])], [f32(&[2, 2]), s32(&[2, 2])]),
        ),
    ];
    scans.chain(others).collect()
}

/// Every pair along the axis.
fn work_of_sort(axis: usize, outs: &[Type]) -> u64 {
    let of = |out: &Type| out.elements() * out.shape.get(axis).copied().unwrap_or(1) * SORT_COST;
    outs.first().map_or(0, of)
}

pub(in crate::program) struct Sort {
    pub axis: usize,
    pub descending: bool,
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

pub(in crate::program) struct Argsort {
    pub axis: usize,
    pub descending: bool,
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

pub(in crate::program) struct TopK {
    pub k: u64,
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

pub(in crate::program) struct Scan {
    pub scan: Cumulative,
    pub axis: usize,
    pub reverse: bool,
}

fn read_scan(name: &str, a: &Attrs<'_>) -> Result<Op> {
    let scan = Cumulative::from_name(name).ok_or_else(|| a.fail("name", "a running reduction"))?;
    Ok(Op::Scan { scan, axis: a.axis("axis")?, reverse: a.flag("reverse")? })
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
