//! Ops that see the elements of their operand in another way.

use smallvec::smallvec;

use super::kind::{Arity, Check, Class, Facts, Names, OpKind, named};
use super::rules::{
    axes_attr, distinct, f32, ints_attr, missing, one, places, require, s32, same_dtype, same_shape, starts_attr,
    window_fits,
};
use crate::Type;
use crate::program::Op;
use crate::program::attribute::Axes;
use crate::program::index_map::{IndexMap, Line, Place, repeated};
use crate::program::wire::Attr;
use crate::shape::Dims;

pub(super) fn names() -> Names<Op> {
    vec![
        named("bitcast", |_, _| Ok(Op::Bitcast), || (Op::Bitcast, [f32(&[2, 3])], [s32(&[2, 3])])),
        named("reshape", |_, _| Ok(Op::Reshape), || (Op::Reshape, [f32(&[2, 3])], [f32(&[3, 2])])),
        named("squeeze", |_, _| Ok(Op::Squeeze), || (Op::Squeeze, [f32(&[2, 1])], [f32(&[2])])),
        named("after", |_, _| Ok(Op::After), || (Op::After, [f32(&[2]), s32(&[3])], [f32(&[2])])),
        named(
            "broadcast",
            |_, a| Ok(Op::Broadcast { axes: a.ints("axes")? }),
            || (Op::Broadcast { axes: smallvec![1] }, [f32(&[3])], [f32(&[2, 3])]),
        ),
        named(
            "transpose",
            |_, a| Ok(Op::Transpose { axes: a.ints("axes")? }),
            || (Op::Transpose { axes: smallvec![1, 0] }, [f32(&[2, 3])], [f32(&[3, 2])]),
        ),
        named(
            "slice",
            |_, a| {
                let starts = a.optional_ints("starts")?;
                Ok(Op::Slice { starts, strides: a.ints("strides")?, lengths: a.ints("lengths")? })
            },
            || {
                let starts = smallvec![Some(1), None];
                let slice = Op::Slice { starts, strides: smallvec![1, 2], lengths: smallvec![1, 3] };
                (slice, [f32(&[2, 3]), s32(&[])], [f32(&[1, 2])])
            },
        ),
    ]
}

pub(in crate::program) struct Bitcast;

impl OpKind for Bitcast {
    fn facts(&self) -> Facts {
        Facts::anywhere("bitcast", Class::View, 1)
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        require(a.dtype.bits() == out.dtype.bits(), || format!("{} and {} have different widths", a.dtype, out.dtype))?;
        same_shape(&a.shape, out)
    }
}

pub(in crate::program) struct Reshape;

impl OpKind for Reshape {
    fn facts(&self) -> Facts {
        Facts::anywhere("reshape", Class::View, 1)
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        require(a.elements() == out.elements(), || format!("{:?} has not the elements of {:?}", a.shape, out.shape))
    }
}

pub(in crate::program) struct Squeeze;

impl OpKind for Squeeze {
    fn facts(&self) -> Facts {
        Facts::anywhere("squeeze", Class::View, 1)
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        let long = |shape: &[u64]| shape.iter().copied().filter(|&n| n != 1).collect::<Dims>();
        require(long(&a.shape) == long(&out.shape) && a.shape.len() >= out.shape.len(), || {
            format!("{:?} is not {:?} less axes of size 1", out.shape, a.shape)
        })
    }
}

pub(in crate::program) struct After;

impl OpKind for After {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::AtLeast(1), ..Facts::anywhere("after", Class::Fence, 1) }
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        same_shape(&a.shape, out)
    }
}

pub(in crate::program) struct Broadcast<'a> {
    pub axes: &'a Axes,
}

impl OpKind for Broadcast<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("broadcast", Class::View, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out, axes) = (operands[0], one(outs)?, self.axes);
        same_dtype(a, out)?;
        distinct(axes, out.shape.len())?;
        require(
            axes.len() == a.shape.len()
                && axes.iter().zip(&a.shape).all(|(&axis, &size)| size == 1 || size == out.shape[axis]),
            || format!("{:?} does not broadcast to {:?} along {axes:?}", a.shape, out.shape),
        )
    }

    fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        Some(IndexMap::view(repeated(shapes.first()?, self.axes.iter().copied(), out)))
    }
}

pub(in crate::program) struct Transpose<'a> {
    pub axes: &'a Axes,
}

impl OpKind for Transpose<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("transpose", Class::View, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out, axes) = (operands[0], one(outs)?, self.axes);
        same_dtype(a, out)?;
        distinct(axes, a.shape.len())?;
        require(axes.len() == a.shape.len(), || format!("{} axes for rank {}", axes.len(), a.shape.len()))?;
        same_shape(&axes.iter().map(|&axis| a.shape[axis]).collect::<Dims>(), out)
    }

    fn index_map(&self, _: &[&[u64]], _: &[u64]) -> Option<IndexMap> {
        Some(IndexMap::view(self.axes.iter().enumerate().map(|(along, &of)| Line::straight(along, of)).collect()))
    }
}

pub(in crate::program) struct Slice<'a> {
    pub starts: &'a [Option<i64>],
    pub strides: &'a [u64],
    pub lengths: &'a [u64],
}

impl OpKind for Slice<'_> {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::Exactly(1 + missing(self.starts)), ..Facts::anywhere("slice", Class::View, 1) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![
            starts_attr(self.starts),
            ints_attr("strides", self.strides.iter().map(|&i| i as i64)),
            ints_attr("lengths", self.lengths.iter().map(|&i| i as i64)),
        ]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        window_fits(a, self.starts, self.lengths, &operands[1..])?;
        let strides = self.strides;
        require(strides.len() == self.lengths.len() && strides.iter().all(|&s| s > 0), || {
            format!("strides {strides:?}")
        })?;
        let shape: Dims = self.lengths.iter().zip(strides).map(|(length, stride)| length.div_ceil(*stride)).collect();
        same_shape(&shape, out)
    }

    fn index_map(&self, shapes: &[&[u64]], _: &[u64]) -> Option<IndexMap> {
        let places = places(self.starts, shapes.first()?, self.lengths, 1).into_iter().zip(self.strides).enumerate();
        let line = |(axis, (from, &step)): (usize, (Place, &u64))| Line {
            from,
            step: step as i64,
            ..Line::straight(axis, axis)
        };
        Some(IndexMap::view(places.map(line).collect()))
    }
}
