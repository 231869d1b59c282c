//! Where the elements of a result come from, for ops that only move them: what such an op means, once for every kind of
//! code.
//!
//! Reshapes have none: they keep the row-major position, which axes don't say.

use smallvec::{SmallVec, smallvec};

use crate::View;
use crate::shape::{Dims, Strides};

/// The operand and its element that each index of a result shows. Types may differ: elements are cast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexMap {
    /// Operands where they lie in the result, none over another.
    pub parts: SmallVec<[Part; 1]>,
    /// The operand that shows wherever no part lies: of the result's shape, or one element for all indices.
    pub around: Option<usize>,
}

/// An operand in a result. Its axes that no line names are at index 0, the result's that none names repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which operand it is.
    pub operand: usize,
    /// How its axes lie along the result's.
    pub lines: Lines,
}

/// Lines along different axes of a result, in the order of the operand's axes.
pub type Lines = SmallVec<[Line; 6]>;

/// How an axis of an operand lies along one of the result's: for each number k, index `at + k * every` of the result
/// shows index `from + k * step` of the operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The result's axis.
    pub along: usize,
    /// The operand's. None for a part that lies at one index only and has no axis there.
    pub of: Option<usize>,
    /// The operand's index for k = 0.
    pub from: Place,
    /// The operand's indices from one k to the next.
    pub step: i64,
    /// The result's index for k = 0, which may lie outside.
    pub at: Place,
    /// The result's indices from one k to the next.
    pub every: u64,
    /// Every k is below it and not negative. None where all indices of the result show an element; then `every` is 1.
    pub count: Option<u64>,
}

/// An index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A number.
    Number(i64),
    /// What the operand holds, an integer, clamped to between 0 and `room`.
    Read {
        /// Which operand holds it.
        operand: u32,
        /// The largest index.
        room: u64,
    },
}

impl Place {
    /// The number; 0 for one that is read.
    pub fn number(self) -> i64 {
        match self {
            Place::Number(number) => number,
            Place::Read { .. } => 0,
        }
    }

    /// Whether an operand holds it.
    pub fn is_read(self) -> bool {
        matches!(self, Place::Read { .. })
    }
}

impl Line {
    /// Axis `of` of the operand as it is.
    pub fn straight(along: usize, of: usize) -> Line {
        let zero = Place::Number(0);
        Line { along, of: Some(of), from: zero, step: 1, at: zero, every: 1, count: None }
    }

    /// An axis of `size` that begins at `at` of an axis of `out`, with `every - 1` indices between its own.
    pub fn placed(axis: usize, size: u64, at: Place, every: u64, out: u64) -> Line {
        let end = at.number().saturating_add_unsigned(size);
        let fills = every == 1 && at.number() <= 0 && end >= out as i64;
        Line { at, every, count: (!fills).then_some(size), ..Line::straight(axis, axis) }
    }

    /// Index `at` of the result's axis of `out` alone.
    pub fn layer(along: usize, at: u64, out: u64) -> Line {
        Line { of: None, ..Line::placed(along, 1, Place::Number(at as i64), 1, out) }
    }

    /// Whether an operand says where it lies.
    pub fn is_read(&self) -> bool {
        self.from.is_read() || self.at.is_read()
    }
}

/// Lines of an operand whose axis `i` is axis `axes[i]` of a result. It repeats along others, and where its size is 1.
pub fn repeated(operand: &[u64], axes: impl IntoIterator<Item = usize>, result: &[u64]) -> Lines {
    let own = axes.into_iter().zip(operand).enumerate().filter(|&(_, (axis, &size))| size == result[axis]);
    own.map(|(of, (axis, _))| Line::straight(axis, of)).collect()
}

/// Whether lines show an operand as it is.
pub(crate) fn is_identity(lines: &[Line], operand: &[u64], result: &[u64]) -> bool {
    let is_straight = |(axis, line): (usize, &Line)| {
        let straight = Line::straight(axis, axis);
        let is_one = result[axis] <= 1 && line.count.is_none() && (line.along, line.of) == (axis, Some(axis));
        is_one || *line == straight
    };
    operand == result && lines.len() == result.len() && lines.iter().enumerate().all(is_straight)
}

impl View {
    /// Shows the elements at every index of a result, along lines that have no indices between their own: where the
    /// operand does not lie there are no elements, and positions that say nothing. Places that are read count as 0.
    pub fn along(&self, lines: &[Line], shape: &[u64]) -> View {
        let mut strides: Strides = SmallVec::from_elem(0, shape.len());
        let mut offset = self.offset as i64;
        for line in lines {
            let Some(of) = line.of else { continue };
            let stride = self.strides[of].wrapping_mul(line.step);
            strides[line.along] = stride;
            let before = line.at.number().wrapping_mul(stride);
            offset = offset.wrapping_add(line.from.number().wrapping_mul(self.strides[of])).wrapping_sub(before);
        }
        View { dtype: self.dtype, shape: Dims::from_slice(shape), strides, offset: offset as u64 }
    }
}

impl Part {
    /// The elements of the operand that show, and where in the result they do, as views of one shape. None where there
    /// are none. Places that are read count as 0.
    pub fn views(&self, operand: &View, result: &View) -> Option<(View, View)> {
        let strides = SmallVec::from_elem(0, result.shape.len());
        let mut from = View { dtype: operand.dtype, shape: result.shape.clone(), strides, offset: operand.offset };
        let mut to = result.clone();
        for line in &self.lines {
            let (low, every) = (i128::from(line.at.number()), i128::from(line.every));
            // The first number whose index is not before another.
            let number = |index: u64| (i128::from(index) - low + every - 1).div_euclid(every);
            let (mut first, mut end) = (number(0), number(result.shape[line.along]));
            if let Some(count) = line.count {
                (first, end) = (first.max(0), end.min(count.into()));
            }
            if end <= first {
                return None;
            }
            let axis = line.along;
            let at = (low + first * every) as i64;
            to.offset = to.offset.wrapping_add_signed(at.wrapping_mul(result.strides[axis]));
            to.strides[axis] = result.strides[axis].wrapping_mul(line.every as i64);
            (from.shape[axis], to.shape[axis]) = ((end - first) as u64, (end - first) as u64);
            if let Some(of) = line.of {
                let own = line.from.number().wrapping_add((first as i64).wrapping_mul(line.step));
                from.offset = from.offset.wrapping_add_signed(own.wrapping_mul(operand.strides[of]));
                from.strides[axis] = operand.strides[of].wrapping_mul(line.step);
            }
        }
        Some((from, to))
    }

    /// Where the operand begins in the result, if it lies there whole, element by element, and nothing is read to know
    /// where.
    pub fn corner(&self, operand: &[u64], result: &[u64]) -> Option<Dims> {
        let mut corner = Dims::from_elem(0, result.len());
        for line in &self.lines {
            let size = *operand.get(line.of?)?;
            let at = u64::try_from(line.at.number()).ok()?;
            let fits = at.checked_add(size).is_some_and(|end| end <= result[line.along]);
            if line.is_read() || !fits || (line.every > 1 && size > 1) {
                return None;
            }
            corner[line.along] = at;
        }
        Some(corner)
    }
}

impl IndexMap {
    /// That of a view of the first operand.
    pub fn view(lines: Lines) -> IndexMap {
        IndexMap { parts: smallvec![Part { operand: 0, lines }], around: None }
    }
}
