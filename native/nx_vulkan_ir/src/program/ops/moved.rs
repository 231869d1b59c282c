//! Ops that only move elements, of which all is said by where those come from: no pass looks for them.

use smallvec::{SmallVec, smallvec};

use super::kind::{Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{axes_attr, distinct, f32, holds, ints_attr, one, require, same_dtype, same_shape};
use crate::program::attribute::Axes;
use crate::program::index_map::{IndexMap, Line, Part, Place};
use crate::program::wire::{Attr, Attrs};
use crate::shape::Dims;
use crate::{Result, Type};

family! {
    /// Ops that are known by their index maps alone.
    Moved { Reverse, Pad }
}

/// a
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reverse {
    /// Along which the last element comes first.
    pub axes: Axes,
}

impl Reverse {
    fn names<Of: From<Reverse> + 'static>() -> Names<Of> {
        vec![named(
            "reverse",
            |_, a| Ok(Reverse { axes: a.ints("axes")? }.into()),
            || (Reverse { axes: smallvec![0] }.into(), [f32(&[3])], [f32(&[3])]),
        )]
    }
}

impl OpKind for Reverse {
    fn facts(&self) -> Facts {
        Facts::anywhere("reverse", Class::View, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", &self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        distinct(&self.axes, a.shape.len())?;
        same_shape(&a.shape, out)
    }

    fn index_map(&self, _: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        let line = |(axis, &size): (usize, &u64)| match self.axes.contains(&axis) {
            true => Line { from: Place::Number(size as i64 - 1), step: -1, ..Line::straight(axis, axis) },
            false => Line::straight(axis, axis),
        };
        Some(IndexMap::view(out.iter().enumerate().map(line).collect()))
    }
}

/// a, value
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pad {
    /// Per axis (low, high, interior), low and high may be negative.
    pub config: SmallVec<[(i64, i64, u64); 6]>,
}

impl Pad {
    fn names<Of: From<Pad> + 'static>() -> Names<Of> {
        vec![named("pad", Pad::read, || {
            (Pad { config: smallvec![(1, -1, 2)] }.into(), [f32(&[3]), f32(&[])], [f32(&[7])])
        })]
    }

    fn read<Of: From<Pad>>(_: &str, a: &Attrs<'_>) -> Result<Of> {
        let (low, high, interior): (Vec<i64>, Vec<i64>, Vec<u64>) =
            (a.ints("low")?, a.ints("high")?, a.ints("interior")?);
        if low.len() != high.len() || low.len() != interior.len() {
            return Err(a.fail("interior", "as many values as low and high"));
        }
        Ok(Pad { config: low.into_iter().zip(high).zip(interior).map(|((l, h), i)| (l, h, i)).collect() }.into())
    }
}

impl OpKind for Pad {
    fn facts(&self) -> Facts {
        Facts::anywhere("pad", Class::Padding, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![
            ints_attr("low", self.config.iter().map(|c| c.0)),
            ints_attr("high", self.config.iter().map(|c| c.1)),
            ints_attr("interior", self.config.iter().map(|c| c.2 as i64)),
        ]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, value, out, config) = (operands[0], operands[1], one(outs)?, &self.config);
        holds(operands, out)?;
        require(value.shape.is_empty(), || format!("a value of shape {:?}", value.shape))?;
        require(config.len() == a.shape.len(), || format!("{} axes for rank {}", config.len(), a.shape.len()))?;
        let size = |(&size, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
            let inner = i128::from(size) + (i128::from(size) - 1).max(0) * i128::from(interior);
            u64::try_from(inner + i128::from(low) + i128::from(high))
                .map_err(|_| format!("padding {config:?} of {:?}", a.shape))
        };
        let padded: Dims = a.shape.iter().zip(config).map(size).collect::<std::result::Result<_, String>>()?;
        same_shape(&padded, out)
    }

    fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        let axes = self.config.iter().zip(*shapes.first()?).zip(out).enumerate();
        let lines = axes.map(|(axis, ((&(low, _, interior), &size), &out))| {
            Line::placed(axis, size, Place::Number(low), interior.saturating_add(1), out)
        });
        Some(IndexMap { parts: smallvec![Part { operand: 0, lines: lines.collect() }], around: Some(1) })
    }
}
