//! Ops that put operands into something larger.

use smallvec::smallvec;

use super::kind::{Arity, Check, Class, Facts, Names, OpKind, named};
use super::rules::{
    along, axis_attr, f32, holds, missing, one, places, require, s32, same_shape, starts_attr, window_fits,
};
use crate::Type;
use crate::program::Op;
use crate::program::index_map::{IndexMap, Line, Part, Place};
use crate::program::wire::Attr;

pub(super) fn names() -> Names<Op> {
    vec![
        named(
            "concatenate",
            |_, a| Ok(Op::Concatenate { axis: a.axis("axis")? }),
            || (Op::Concatenate { axis: 0 }, [f32(&[3]), f32(&[2])], [f32(&[5])]),
        ),
        named(
            "stack",
            |_, a| Ok(Op::Stack { axis: a.axis("axis")? }),
            || (Op::Stack { axis: 1 }, [f32(&[3]), f32(&[3])], [f32(&[3, 2])]),
        ),
        named(
            "put_slice",
            |_, a| Ok(Op::PutSlice { starts: a.optional_ints("starts")? }),
            || {
                let put = Op::PutSlice { starts: smallvec![Some(0), None] };
                (put, [f32(&[2, 3]), f32(&[1, 2]), s32(&[])], [f32(&[2, 3])])
            },
        ),
    ]
}

/// Operands of concatenate and stack in one workgroup, among which each element is selected.
const MAX_PARTS: usize = 64;

/// A comparison and a selection for each operand of each element.
fn work_of_parts(operands: &[&Type], outs: &[Type]) -> u64 {
    outs.first().map_or(0, |out| out.elements() * operands.len() as u64 * 2)
}

pub(in crate::program) struct Concatenate {
    pub axis: usize,
}

impl OpKind for Concatenate {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::AtLeast(1), ..Facts::anywhere("concatenate", Class::Placement, 1) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out, axis) = (operands[0], one(outs)?, self.axis);
        holds(operands, out)?;
        along(axis, a.shape.len())?;
        let mut joint = a.shape.clone();
        joint[axis] = 0;
        for operand in operands {
            let fits = operand.shape.len() == joint.len()
                && (0..joint.len()).all(|i| i == axis || operand.shape[i] == joint[i]);
            require(fits, || format!("{:?} beside {:?} along axis {axis}", operand.shape, a.shape))?;
            joint[axis] = joint[axis].saturating_add(operand.shape[axis]);
        }
        same_shape(&joint, out)
    }

    fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        let mut end = 0;
        let part = |(operand, shape): (usize, &&[u64])| {
            let at = Place::Number(end);
            end += shape[self.axis] as i64;
            let line = |axis| match axis == self.axis {
                true => Line::placed(axis, shape[axis], at, 1, out[axis]),
                false => Line::straight(axis, axis),
            };
            Part { operand, lines: (0..out.len()).map(line).collect() }
        };
        Some(IndexMap { parts: shapes.iter().enumerate().map(part).collect(), around: None })
    }

    fn runs_in_workgroup(&self, operands: &[&Type], _: &[Type]) -> bool {
        operands.len() <= MAX_PARTS
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        work_of_parts(operands, outs)
    }
}

pub(in crate::program) struct Stack {
    pub axis: usize,
}

impl OpKind for Stack {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::AtLeast(1), ..Facts::anywhere("stack", Class::Placement, 1) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out, axis) = (operands[0], one(outs)?, self.axis);
        holds(operands, out)?;
        along(axis, a.shape.len() + 1)?;
        for operand in operands {
            require(operand.shape == a.shape, || format!("{:?} beside {:?}", operand.shape, a.shape))?;
        }
        let mut stacked = a.shape.clone();
        stacked.insert(axis, operands.len() as u64);
        same_shape(&stacked, out)
    }

    fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        let part = |operand| {
            let line = |along: usize| match along == self.axis {
                true => Line::layer(along, operand as u64, out[along]),
                false => Line::straight(along, along - usize::from(along > self.axis)),
            };
            Part { operand, lines: (0..out.len()).map(line).collect() }
        };
        Some(IndexMap { parts: (0..shapes.len()).map(part).collect(), around: None })
    }

    fn runs_in_workgroup(&self, operands: &[&Type], _: &[Type]) -> bool {
        operands.len() <= MAX_PARTS
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        work_of_parts(operands, outs)
    }
}

pub(in crate::program) struct PutSlice<'a> {
    pub starts: &'a [Option<i64>],
}

impl OpKind for PutSlice<'_> {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::Exactly(2 + missing(self.starts)), ..Facts::anywhere("put_slice", Class::Placement, 2) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![starts_attr(self.starts)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        holds(&operands[..2], out)?;
        window_fits(a, self.starts, &operands[1].shape, &operands[2..])?;
        same_shape(&a.shape, out)
    }

    fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        let lengths = *shapes.get(1)?;
        let axes = places(self.starts, out, lengths, 2).into_iter().zip(lengths).zip(out).enumerate();
        let lines = axes.map(|(axis, ((at, &length), &size))| Line::placed(axis, length, at, 1, size));
        Some(IndexMap { parts: smallvec![Part { operand: 1, lines: lines.collect() }], around: Some(0) })
    }
}
