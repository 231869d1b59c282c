//! Ops that make elements of nothing.

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{along, f32, one, require, s32};
use crate::program::Op;
use crate::program::attribute::Scalar;
use crate::program::wire::{Attr, Attrs};
use crate::{DType, Result, Type};

pub(super) fn names() -> Names<Op> {
    vec![
        named(
            "constant",
            |_, a| Ok(Op::Constant(a.scalar("value")?)),
            || (Op::Constant(Scalar::Float(0.5)), [], [f32(&[2])]),
        ),
        named("eye", |_, _| Ok(Op::Eye), || (Op::Eye, [], [f32(&[2, 3])])),
        named("iota", read_iota, || (Op::Iota { axis: Some(1) }, [], [s32(&[2, 3])])),
    ]
}

impl OpKind for Scalar {
    fn facts(&self) -> Facts {
        Facts::anywhere("constant", Class::Source, 0)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("value".to_string(), self.attr())]
    }

    fn check(&self, _: &[&Type], outs: &[Type]) -> Check {
        one(outs).map(|_| ())
    }

    fn runs_in_workgroup(&self, _: &[&Type], outs: &[Type]) -> bool {
        // c128 is no constant of SPIR-V by 64 bits.
        outs.iter().all(|out| out.dtype != DType::C128)
    }
}

pub(in crate::program) struct Iota {
    pub axis: Option<usize>,
}

fn read_iota(_: &str, a: &Attrs<'_>) -> Result<Op> {
    let counts_along = a.find("axis").is_some_and(|axis| *axis != Attr::None);
    Ok(Op::Iota { axis: if counts_along { Some(a.axis("axis")?) } else { None } })
}

impl OpKind for Iota {
    fn facts(&self) -> Facts {
        Facts::anywhere("iota", Class::Source, 0)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("axis".to_string(), self.axis.map_or(Attr::None, |i| Attr::Int(i as i64)))]
    }

    fn check(&self, _: &[&Type], outs: &[Type]) -> Check {
        let rank = one(outs)?.shape.len();
        self.axis.map_or(Ok(()), |axis| along(axis, rank))
    }
}

pub(in crate::program) struct Eye;

impl OpKind for Eye {
    fn facts(&self) -> Facts {
        Facts::anywhere("eye", Class::Source, 0)
    }

    fn check(&self, _: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        require(out.shape.len() >= 2, || format!("needs two axes, got {:?}", out.shape))
    }
}
