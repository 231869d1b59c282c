//! Scans and sorts.

use smallvec::smallvec;

use crate::program::ops::Visitor;
use crate::program::ops::index::TakeAlongAxis;
use crate::program::ops::moved::{Pad, Reverse};
use crate::program::ops::order::*;
use crate::program::{Builder, Op, Operand, Reduction, Unary};
use crate::{DType, Type};

/// Elements that each element of a scan is combined of in one reduction, which one invocation does where it is read.
const BLOCK: u64 = 16;

/// Elements of the longest scan: three levels of blocks.
const MAX_SCAN: u64 = BLOCK * BLOCK * BLOCK;

/// Elements of the longest sort, each of which is compared with all others.
const MAX_SORT: u64 = 512;

/// The operand of an op, which gives elements of a type: visits give its result where it is one of those.
#[derive(Clone, Copy)]
pub struct Expansion<'a> {
    pub b: &'a Builder,
    pub a: Operand,
    pub out: DType,
}

impl Expansion<'_> {
    fn length(&self, axis: usize) -> u64 {
        self.b.ty(self.a).shape.get(axis).copied().unwrap_or(0)
    }
}

/// Elements before and after an axis, for each place along it.
fn around(shape: &[u64], axis: usize) -> [u64; 2] {
    [shape[..axis].iter().product(), shape[axis + 1..].iter().product()]
}

impl Visitor<Scan, Option<Operand>> for Expansion<'_> {
    fn visit(self, &Scan { scan, axis, reverse }: &Scan) -> Option<Operand> {
        let Expansion { b, a, .. } = self;
        let ty = b.ty(a);
        // Reductions give what scans do: sums of u64 are s64, and those of narrow types wider.
        if !ty.dtype.is_canonical() || ty.dtype == DType::U64 || self.length(axis) > MAX_SCAN {
            return None;
        }
        let turned = |a: Operand| match reverse {
            true => b.push(Op::from(Reverse { axes: smallvec![axis] }), &[a], &ty),
            false => a,
        };
        let [outer, inner] = around(&ty.shape, axis);
        let lines = b.reshape(turned(a), &[outer, ty.shape[axis], inner]);
        Some(turned(b.reshape(along_lines(b, lines, scan), &ty.shape)))
    }
}

/// The scan along the middle one of three axes: in blocks, each of whose elements is a reduction of those up to it, and
/// of the blocks.
fn along_lines(b: &Builder, a: Operand, scan: Cumulative) -> Operand {
    let ty = b.ty(a);
    let &[outer, n, inner] = &ty.shape[..] else { return a };
    let nothing = b.constant(ty.dtype, scan.identity(ty.dtype));
    if n <= BLOCK {
        let place = |axis| b.iota(DType::U32, &[n, n, 1], Some(axis));
        let all = b.push(Op::Broadcast { axes: smallvec![0, 2, 3] }, &[a], &Type::new(ty.dtype, &[outer, n, n, inner]));
        // What comes later is left out, not multiplied by zero: so NaN and infinities stay where they are.
        let up_to = b.select(b.less_equal(place(1), place(0)), all, nothing);
        return b.reduce(scan.reduction(), up_to, &[2], false);
    }
    let size = (1..BLOCK).find(|size| size * size >= n).unwrap_or(BLOCK);
    let blocks = n.div_ceil(size);
    let padded = |a: Operand, low: i64, high: i64, length: u64| {
        let config = smallvec![(0, 0, 0), (low, high, 0), (0, 0, 0)];
        b.push(Op::from(Pad { config }), &[a, nothing], &Type::new(ty.dtype, &[outer, length, inner]))
    };
    let whole = padded(a, 0, (blocks * size - n) as i64, blocks * size);
    let within = along_lines(b, b.reshape(whole, &[outer * blocks, size, inner]), scan);
    let totals = b.slice(within, &[0, size - 1, 0], &[outer * blocks, 1, inner]);
    let ends = along_lines(b, b.reshape(totals, &[outer, blocks, inner]), scan);
    let before = b.reshape(padded(ends, 1, -1, blocks), &[outer * blocks, 1, inner]);
    let all = b.reshape(b.binary(scan.combine(), before, within), &[outer, blocks * size, inner]);
    b.slice(all, &[0, 0, 0], &[outer, n, inner])
}

/// The places along the middle one of three axes of the elements that come first, second and so on.
fn places(b: &Builder, a: Operand, descending: bool) -> Operand {
    let ty = b.ty(a);
    let &[outer, n, inner] = &ty.shape[..] else { return a };
    let pairs = |a: Operand, dtype: DType, axis: usize| {
        b.push(Op::Broadcast { axes: smallvec![0, axis, 3] }, &[a], &Type::new(dtype, &[outer, n, n, inner]))
    };
    let [this, other] = [1, 2].map(|axis| pairs(a, ty.dtype, axis));
    let is_less = |x: Operand, y: Operand| {
        let less = b.less(x, y);
        if ty.dtype.is_integer() {
            return less;
        }
        // NaN is the largest.
        let is_nan = |x: Operand| b.unary(Unary::IsNan, x);
        b.logical_or(less, b.greater(is_nan(y), is_nan(x)))
    };
    let [is_before, is_behind] = match descending {
        true => [is_less(this, other), is_less(other, this)],
        false => [is_less(other, this), is_less(this, other)],
    };
    let place = |axis| b.iota(DType::U32, &[n, n, 1], Some(axis));
    // Equal elements keep their order.
    let is_earlier = b.logical_and(b.equal(is_behind, 0.0), b.less(place(1), place(0)));
    let ahead = b.as_type(b.logical_or(is_before, is_earlier), DType::U32);
    let rank = b.reduce(Reduction::Sum, ahead, &[2], false);
    let is_here = b.equal(pairs(rank, DType::U32, 2), place(0));
    let found = b.reduce(Reduction::Sum, b.select(is_here, place(1), 0.0), &[2], false);
    b.as_type(found, DType::S32)
}

impl Visitor<Sort, Option<Operand>> for Expansion<'_> {
    fn visit(self, &Sort { axis, descending }: &Sort) -> Option<Operand> {
        let Expansion { b, a, .. } = self;
        if self.length(axis) > MAX_SORT {
            return None;
        }
        let ty = b.ty(a);
        let [outer, inner] = around(&ty.shape, axis);
        let lines = b.reshape(a, &[outer, ty.shape[axis], inner]);
        let places = places(b, lines, descending);
        let found = b.push(Op::from(TakeAlongAxis { axis: 1 }), &[lines, places], &b.ty(lines));
        Some(b.reshape(found, &ty.shape))
    }
}

impl Visitor<Argsort, Option<Operand>> for Expansion<'_> {
    fn visit(self, &Argsort { axis, descending }: &Argsort) -> Option<Operand> {
        let Expansion { b, a, out } = self;
        if self.length(axis) > MAX_SORT {
            return None;
        }
        let ty = b.ty(a);
        let [outer, inner] = around(&ty.shape, axis);
        let places = places(b, b.reshape(a, &[outer, ty.shape[axis], inner]), descending);
        let places = b.reshape(places, &ty.shape);
        Some(if out == DType::S32 { places } else { b.as_type(places, out) })
    }
}

impl Visitor<TopK, Option<Operand>> for Expansion<'_> {
    fn visit(self, _: &TopK) -> Option<Operand> {
        None
    }
}

impl Visitor<Searchsorted, Option<Operand>> for Expansion<'_> {
    fn visit(self, _: &Searchsorted) -> Option<Operand> {
        None
    }
}
