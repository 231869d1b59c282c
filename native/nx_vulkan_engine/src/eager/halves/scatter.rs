//! Updates of a tensor that are more than a launch reaches, and windows that give to elements of one.

use super::{Cut, section, shortened};
use crate::eager::copies;
use crate::program::ops::window::{WindowScatter, Windowed};
use crate::program::{Op, Windows};
use crate::shape::Type;
use crate::{Result, Tensor, View};

/// Elements of a result along an axis, and all windows that cover one of them.
struct Cover {
    result: [u64; 2],
    windows: [u64; 2],
    /// What those elements and windows take of the operand, and its padding.
    operand: [u64; 2],
    padding: (i64, i64),
}

impl Cover {
    /// Elements `from .. to` of an axis of `size` elements and `count` windows.
    fn new([from, to]: [u64; 2], windows: &Windows, axis: usize, size: u64, count: u64) -> Cover {
        let (width, stride, low) =
            (i128::from(windows.sizes[axis]), i128::from(windows.strides[axis]), i128::from(windows.padding[axis].0));
        let (from, to, size) = (i128::from(from), i128::from(to), i128::from(size));
        let last = (to + low + stride - 1).div_euclid(stride).clamp(0, count.into());
        let first = (from + low - width + stride).div_euclid(stride).clamp(0, last);
        let (start, end) = (first * stride - low, (last - 1) * stride + width - low);
        let operand = if first < last { [start.clamp(0, from), end.clamp(to, size)] } else { [from, to] };
        let padding = (operand[0] - start, end - operand[1]);
        Cover {
            result: [from, to].map(|n| n as u64),
            windows: [first, last].map(|n| n as u64),
            operand: operand.map(|n| n as u64),
            padding: (padding.0 as i64, padding.1 as i64),
        }
    }

    fn length(&self) -> u64 {
        self.operand[1] - self.operand[0]
    }
}

impl Cut<'_> {
    /// Windows that give to either half of the result along the axis where that takes the least of the operand. None
    /// where windows are so wide that either takes all of it.
    pub(super) fn windows(&self, op: &WindowScatter, out: &Type) -> Result<Option<Tensor>> {
        let (a, source, initial) = (&self.operands[0], &self.operands[1], &self.operands[2]);
        let parts = |axis: usize| {
            let (size, count) = (a.view.shape[axis], source.view.shape[axis]);
            [[0, size / 2], [size / 2, size]].map(|ends| Cover::new(ends, &op.windows, axis, size, count))
        };
        let share = |&axis: &usize| {
            let longest = parts(axis).iter().map(Cover::length).max().unwrap_or(0);
            longest as f64 / a.view.shape[axis] as f64
        };
        let axes = (0..a.view.shape.len()).filter(|axis| share(axis) < 1.0);
        let Some(axis) = axes.min_by(|a, b| share(a).total_cmp(&share(b))) else { return Ok(None) };
        let whole = Tensor::uninitialized(self.engine, out)?;
        for part in parts(axis) {
            let [from, to] = part.result;
            let place = section(&whole, axis, from, to - from)?;
            if part.windows[0] == part.windows[1] {
                let scalar = View { offset: initial.view.offset, ..View::contiguous(initial.view.dtype, &[]) };
                let view = scalar.broadcast(&place.view.shape, &[])?;
                copies::copy(self.engine, &initial.with_view(view), &place, self.compile)?;
                continue;
            }
            let mut windows = op.windows.clone();
            windows.padding[axis] = part.padding;
            let given = section(source, axis, part.windows[0], part.windows[1] - part.windows[0])?;
            let taken = section(a, axis, part.operand[0], part.length())?;
            let op = Op::Windowed(Windowed::WindowScatter(WindowScatter { max: op.max, windows }));
            let result = self.run(&op, &[taken, given, initial.clone()], &shortened(out, axis, part.length()))?;
            let result = section(&result, axis, from - part.operand[0], to - from)?;
            copies::copy(self.engine, &result, &place, self.compile)?;
        }
        Ok(Some(whole))
    }

    /// The first half of the updates, and then the second of what these give.
    pub(super) fn updates(&self, out: &Type) -> Result<Option<Tensor>> {
        let [mut result, indices, updates] = [0, 1, 2].map(|k| self.operands[k].clone());
        let lead = indices.view.shape.len() - 1;
        let Some(axis) = (0..lead).find(|&k| indices.view.shape[k] > 1) else { return Ok(None) };
        let size = indices.view.shape[axis];
        for (start, length) in [(0, size / 2), (size / 2, size - size / 2)] {
            let [indices, updates] = [&indices, &updates].map(|t| section(t, axis, start, length));
            result = self.run(self.op, &[result, indices?, updates?], out)?;
        }
        Ok(Some(result))
    }
}
