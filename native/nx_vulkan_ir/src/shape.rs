//! Shapes, strided views over buffers, and the index arithmetic of views. Nothing here touches the device.

use smallvec::SmallVec;

use crate::{DType, Error, Result};

/// Axis sizes, outermost first. A scalar has no axes.
pub type Dims = SmallVec<[u64; 6]>;

/// Elements between neighbours along each axis; 0 repeats an element, negative walks backwards.
pub type Strides = SmallVec<[i64; 6]>;

/// Type and shape of a value: what an instruction promises to produce.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// The type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub shape: Dims,
}

impl Type {
    /// A type with these axes.
    pub fn new(dtype: DType, shape: &[u64]) -> Type {
        Type { dtype, shape: Dims::from_slice(shape) }
    }

    /// How many elements there are; `u64::MAX` where no `u64` holds that.
    pub fn elements(&self) -> u64 {
        elements(&self.shape)
    }

    /// Bytes of a contiguous tensor of this type in device memory; `u64::MAX` where no `u64` holds that.
    pub fn size_bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size_bytes())
    }

    /// Whether a tensor may have this type.
    ///
    /// # Errors
    /// `TooLarge` for more than [`MAX_ELEMENTS`] elements. Axes of size 0 count as 1, so that products of any sizes
    /// stay within that.
    pub fn check(&self) -> Result<()> {
        match self.shape.iter().try_fold(1u64, |n, &size| n.checked_mul(size.max(1))) {
            Some(elements) if elements <= MAX_ELEMENTS => Ok(()),
            positions => Err(Error::TooLarge {
                size_bytes: positions.unwrap_or(u64::MAX).saturating_mul(self.dtype.size_bytes()),
                limit_bytes: MAX_ELEMENTS * self.dtype.size_bytes(),
            }),
        }
    }
}

/// Elements that a tensor may have. No device has memory for as many; positions and sizes in bytes stay far below 2^63.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// How a tensor's elements lie in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub shape: Dims,
    /// Elements between neighbours along each axis.
    pub strides: Strides,
    /// Elements from the start of the buffer to the element with index 0 on every axis.
    pub offset: u64,
}

/// The greatest common divisor; that of 0 and a number is the number.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How many elements a shape has; `u64::MAX` where no `u64` holds that.
pub fn elements(shape: &[u64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1, |n: u64, &size| n.saturating_mul(size))
}

/// Row-major strides.
pub fn contiguous_strides(shape: &[u64]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(0, shape.len());
    let mut step = 1i64;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.wrapping_mul(size as i64);
    }
    strides
}

impl View {
    /// Row-major, from the beginning of the buffer.
    pub fn contiguous(dtype: DType, shape: &[u64]) -> View {
        View { dtype, shape: Dims::from_slice(shape), strides: contiguous_strides(shape), offset: 0 }
    }

    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        elements(&self.shape)
    }

    /// Bytes of the elements, each counted as often as it is named; `u64::MAX` where no `u64` holds that.
    pub fn size_bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size_bytes())
    }

    /// Type and shape.
    pub fn ty(&self) -> Type {
        Type { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Whether the elements lie in row-major order without gaps (the offset may be anything).
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1i64;
        for (&stride, &size) in self.strides.iter().zip(&self.shape).rev() {
            if size != 1 {
                if stride != step {
                    return false;
                }
                step = step.wrapping_mul(size as i64);
            }
        }
        true
    }

    /// Whether every index reads the same element.
    pub fn is_uniform(&self) -> bool {
        self.strides.iter().zip(&self.shape).all(|(&stride, &size)| stride == 0 || size == 1)
    }

    /// Bytes from the start of the buffer to the element with index 0.
    pub fn offset_bytes(&self) -> u64 {
        self.offset * self.dtype.size_bytes()
    }

    /// The parts of numbers of c128 or c64 along an axis of their own, the last.
    pub fn parts(&self) -> View {
        let dtype = if self.dtype == DType::C128 { DType::F64 } else { DType::F32 };
        let mut parts = View { dtype, offset: self.offset * 2, ..self.clone() };
        parts.strides.iter_mut().for_each(|stride| *stride *= 2);
        parts.shape.push(2);
        parts.strides.push(1);
        parts
    }

    /// The same elements under another shape, or `None` where that needs a copy.
    pub fn reshape(&self, shape: &[u64]) -> Option<View> {
        if elements(shape) != self.elements() {
            return None;
        }
        let strides = reshape_strides(&self.shape, &self.strides, shape)?;
        Some(View { dtype: self.dtype, shape: Dims::from_slice(shape), strides, offset: self.offset })
    }

    /// Axis `i` of the result is axis `axes[i]` of `self`.
    pub fn transpose(&self, axes: &[usize]) -> Result<View> {
        let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, self.shape.len());
        for &axis in axes {
            match seen.get_mut(axis) {
                Some(slot) if !*slot => *slot = true,
                _ => return Err(bad("transpose", format!("{axes:?} is no permutation of {} axes", self.shape.len()))),
            }
        }
        if axes.len() != self.shape.len() {
            return Err(bad("transpose", format!("{axes:?} is no permutation of {} axes", self.shape.len())));
        }
        Ok(View {
            dtype: self.dtype,
            shape: axes.iter().map(|&a| self.shape[a]).collect(),
            strides: axes.iter().map(|&a| self.strides[a]).collect(),
            offset: self.offset,
        })
    }

    /// `axes[i]` is where axis `i` of `self` goes in `shape`; the others repeat, as does an axis of size 1.
    pub fn broadcast(&self, shape: &[u64], axes: &[usize]) -> Result<View> {
        if axes.len() != self.shape.len() {
            return Err(bad("broadcast", format!("{} axes for rank {}", axes.len(), self.shape.len())));
        }
        let mut strides: Strides = SmallVec::from_elem(0, shape.len());
        for (i, &axis) in axes.iter().enumerate() {
            let Some(&size) = shape.get(axis) else {
                return Err(bad("broadcast", format!("axis {axis} of a shape of rank {}", shape.len())));
            };
            if self.shape[i] == size {
                strides[axis] = self.strides[i];
            } else if self.shape[i] != 1 {
                return Err(bad(
                    "broadcast",
                    format!("{:?} does not broadcast to {shape:?} along {axes:?}", self.shape),
                ));
            }
        }
        Ok(View { dtype: self.dtype, shape: Dims::from_slice(shape), strides, offset: self.offset })
    }

    /// Aligns the axes to the right of `shape` and repeats, as Nx's binary ops do.
    pub fn broadcast_trailing(&self, shape: &[u64]) -> Result<View> {
        let Some(lead) = shape.len().checked_sub(self.shape.len()) else {
            return Err(bad("broadcast", format!("{:?} does not broadcast to {shape:?}", self.shape)));
        };
        let axes: SmallVec<[usize; 6]> = (lead..shape.len()).collect();
        self.broadcast(shape, &axes)
    }

    /// Every `strides`-th of `lengths` elements from `starts` on.
    ///
    /// # Errors
    /// `InvalidProgram` where that goes beyond an axis.
    pub fn slice(&self, starts: &[u64], lengths: &[u64], strides: &[u64]) -> Result<View> {
        let rank = self.shape.len();
        if starts.len() != rank || lengths.len() != rank || strides.len() != rank {
            return Err(bad("slice", format!("needs {rank} starts, lengths and strides")));
        }
        let mut view = self.clone();
        let mut offset = self.offset as i64;
        for axis in 0..rank {
            let fits = starts[axis].checked_add(lengths[axis]).is_some_and(|end| end <= self.shape[axis]);
            if !fits || strides[axis] == 0 {
                return Err(bad(
                    "slice",
                    format!(
                        "start {} length {} of axis {axis} with size {}",
                        starts[axis], lengths[axis], self.shape[axis]
                    ),
                ));
            }
            view.shape[axis] = lengths[axis].div_ceil(strides[axis]);
            offset = offset.wrapping_add((starts[axis] as i64).wrapping_mul(self.strides[axis]));
            view.strides[axis] = self.strides[axis].wrapping_mul(strides[axis] as i64);
        }
        view.offset = offset as u64;
        Ok(view)
    }

    /// The same elements backwards along axes.
    ///
    /// # Errors
    /// `InvalidProgram` for an axis that is not there.
    pub fn reverse(&self, axes: &[usize]) -> Result<View> {
        let mut view = self.clone();
        let mut offset = self.offset as i64;
        for &axis in axes {
            let Some(&size) = self.shape.get(axis) else {
                return Err(bad("reverse", format!("axis {axis} of rank {}", self.shape.len())));
            };
            if size > 0 {
                offset = offset.wrapping_add((size as i64 - 1).wrapping_mul(view.strides[axis]));
            }
            view.strides[axis] = view.strides[axis].wrapping_neg();
        }
        view.offset = offset as u64;
        Ok(view)
    }

    /// Whether a tensor in a buffer of `size_bytes` bytes may have this view: all elements lie in the buffer. Where
    /// there are none, the offset does, and positions along the axes stay small enough to be computed.
    pub fn fits(&self, size_bytes: u64) -> bool {
        if self.strides.len() != self.shape.len() || self.ty().check().is_err() {
            return false;
        }
        let (mut low, mut high) = (0i128, 0i128);
        for (&stride, &size) in self.strides.iter().zip(&self.shape) {
            let span = i128::from(size.max(1) - 1) * i128::from(stride);
            if span < 0 { low += span } else { high += span }
        }
        let offset = i128::from(self.offset);
        let (inside, end) = match self.elements() {
            0 => (high.max(-low) <= i128::from(MAX_ELEMENTS), offset),
            _ => (offset + low >= 0, offset + high + 1),
        };
        inside && end * i128::from(self.dtype.size_bytes()) <= i128::from(size_bytes)
    }

    /// Lowest and highest element position that the view touches, inclusive.
    pub fn extent(&self) -> (i64, i64) {
        let (mut low, mut high) = (self.offset as i64, self.offset as i64);
        for (&stride, &size) in self.strides.iter().zip(&self.shape) {
            let span = (size.max(1) as i64 - 1) * stride;
            if span < 0 { low += span } else { high += span }
        }
        (low, high)
    }
}

fn bad(op: &str, reason: String) -> Error {
    Error::InvalidProgram { op: op.to_string(), reason }
}

/// Strides of `new` over the elements of `(old, strides)`, or `None` where no strides can say it.
fn reshape_strides(old: &[u64], strides: &[i64], new: &[u64]) -> Option<Strides> {
    let old: SmallVec<[(u64, i64); 6]> =
        old.iter().copied().zip(strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
    let mut out: Strides = SmallVec::from_elem(0, new.len());
    let (mut i, mut j) = (0, 0);
    while i < old.len() {
        // A group of old axes and one of new axes that cover the same elements.
        let (mut i_end, mut old_size) = (i + 1, old[i].0);
        while j < new.len() && new[j] == 1 {
            j += 1;
        }
        let mut j_end = j + 1;
        let mut new_size = *new.get(j)?;
        while old_size != new_size {
            if old_size < new_size {
                old_size = old_size.checked_mul(old.get(i_end)?.0)?;
                i_end += 1;
            } else {
                new_size = new_size.checked_mul(*new.get(j_end)?)?;
                j_end += 1;
            }
        }
        for k in i..i_end - 1 {
            if old[k].1 != old[k + 1].1.wrapping_mul(old[k + 1].0 as i64) {
                return None;
            }
        }
        let mut step = old[i_end - 1].1;
        for k in (j..j_end).rev() {
            out[k] = step;
            step = step.wrapping_mul(new[k] as i64);
        }
        i = i_end;
        j = j_end;
    }
    Some(out)
}

/// An iteration space shared by several operands: sizes, and per operand the strides, with axes merged where every
/// operand allows it. Axes of size 1 are gone; at least one axis stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Sizes of the axes.
    pub sizes: Dims,
    /// Strides of each operand.
    pub strides: SmallVec<[Strides; 4]>,
}

impl Space {
    /// All `operands` have the shape `sizes` (broadcast already).
    pub fn new(sizes: &[u64], operands: &[&[i64]]) -> Space {
        Space::keeping(sizes, operands, &[]).0
    }

    /// The space of `operands` in which some axes stay as they are, whatever their size. Answers where these are, too.
    pub fn keeping(sizes: &[u64], operands: &[&[i64]], kept: &[usize]) -> (Space, SmallVec<[usize; 6]>) {
        let mut space = Space { sizes: Dims::new(), strides: SmallVec::from_elem(Strides::new(), operands.len()) };
        let mut places = SmallVec::from_elem(0, kept.len());
        // Whether the last axis of the space may grow.
        let mut open = false;
        for (axis, &size) in sizes.iter().enumerate() {
            let own = kept.contains(&axis);
            if size == 1 && !own {
                continue;
            }
            let mergeable =
                open && !own
                    && operands.iter().zip(&space.strides).all(|(o, merged)| {
                        merged.last().is_some_and(|&outer| outer == o[axis].wrapping_mul(size as i64))
                    });
            open = !own;
            if mergeable {
                if let Some(last) = space.sizes.last_mut() {
                    *last *= size;
                }
                for (o, merged) in operands.iter().zip(&mut space.strides) {
                    if let Some(last) = merged.last_mut() {
                        *last = o[axis];
                    }
                }
            } else {
                kept.iter().zip(&mut places).filter(|(k, _)| **k == axis).for_each(|(_, place)| *place = space.rank());
                space.sizes.push(size);
                for (o, merged) in operands.iter().zip(&mut space.strides) {
                    merged.push(o[axis]);
                }
            }
        }
        if space.sizes.is_empty() {
            space.sizes.push(1);
            for merged in &mut space.strides {
                merged.push(0);
            }
        }
        (space, places)
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        elements(&self.sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(v: &View) -> Vec<i64> {
        let mut out = vec![];
        for linear in 0..v.elements() {
            let (mut rest, mut at) = (linear, v.offset as i64);
            for axis in (0..v.shape.len()).rev() {
                at += (rest % v.shape[axis]) as i64 * v.strides[axis];
                rest /= v.shape[axis];
            }
            out.push(at);
        }
        out
    }

    #[test]
    fn views_compose() {
        let v = View::contiguous(DType::F32, &[2, 3, 4]);
        assert!(v.is_contiguous());
        let t = v.transpose(&[2, 0, 1]).unwrap();
        assert_eq!(&t.shape[..], &[4, 2, 3]);
        assert_eq!(&positions(&t)[..7], &[0, 4, 8, 12, 16, 20, 1]);
        assert!(!t.is_contiguous());
        let s = v.slice(&[1, 0, 1], &[1, 3, 3], &[1, 2, 2]).unwrap();
        assert_eq!(&s.shape[..], &[1, 2, 2]);
        assert_eq!(positions(&s), [13, 15, 21, 23]);
        let r = v.reverse(&[2]).unwrap();
        assert_eq!(&positions(&r)[..4], &[3, 2, 1, 0]);
        assert_eq!(r.extent(), (0, 23));
        let b = View::contiguous(DType::F32, &[3, 1]).broadcast_trailing(&[2, 3, 2]).unwrap();
        assert_eq!(positions(&b), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn reshape_keeps_the_element_order_or_refuses() {
        let v = View::contiguous(DType::F32, &[4, 6]);
        assert_eq!(positions(&v.reshape(&[2, 2, 3, 2, 1]).unwrap()), positions(&v));
        let t = v.transpose(&[1, 0]).unwrap();
        assert_eq!(t.reshape(&[24]), None);
        assert_eq!(positions(&t.reshape(&[6, 1, 2, 2]).unwrap()), positions(&t));
        assert_eq!(positions(&t.reshape(&[2, 3, 4]).unwrap()), positions(&t));
        let b = View::contiguous(DType::F32, &[]).broadcast_trailing(&[5, 2]).unwrap();
        assert_eq!(positions(&b.reshape(&[10]).unwrap()), [0; 10]);
        assert!(View::contiguous(DType::F32, &[1, 1]).reshape(&[]).is_some());
    }

    #[test]
    fn sizes_saturate() {
        let check = |shape: &[u64]| Type::new(DType::C128, shape).check();
        let ty = Type::new(DType::F32, &[1 << 40, 1 << 40]);
        assert_eq!((ty.elements(), ty.size_bytes()), (u64::MAX, u64::MAX));
        assert_eq!(Type::new(DType::F32, &[1 << 40, 1 << 40, 0]).size_bytes(), 0);
        assert_eq!(check(&[MAX_ELEMENTS]), Ok(()));
        let limit_bytes = MAX_ELEMENTS * 16;
        assert_eq!(check(&[2, MAX_ELEMENTS]), Err(Error::TooLarge { size_bytes: limit_bytes * 2, limit_bytes }));
        assert_eq!(check(&[u64::MAX, 3]), Err(Error::TooLarge { size_bytes: u64::MAX, limit_bytes }));
        assert!(check(&[0, u64::MAX, u64::MAX]).is_err());
        assert_eq!(View::contiguous(DType::F32, &[1 << 40, 1 << 40]).reshape(&[1 << 41, 1 << 41]), None);
        assert_eq!(View::contiguous(DType::F32, &[1 << 40, 1 << 40, 0]).reshape(&[1 << 41, 1 << 41, 0]), None);
    }

    #[test]
    fn views_fit_or_not() {
        let view = |shape: &[u64], strides: &[i64], offset| View {
            dtype: DType::F32,
            shape: Dims::from_slice(shape),
            strides: Strides::from_slice(strides),
            offset,
        };
        let huge = 1u64 << 63;
        for (view, fits) in [
            (view(&[2, 3], &[3, 1], 0), true),
            (view(&[2, 3], &[3, 1], 1), false),
            (view(&[2, 3], &[-3, 1], 3), true),
            (view(&[2, 3], &[-3, 1], 2), false),
            (view(&[MAX_ELEMENTS], &[0], 5), true),
            (view(&[MAX_ELEMENTS], &[0], 6), false),
            (view(&[MAX_ELEMENTS, 2], &[0, 0], 0), false),
            (view(&[2, 3], &[3], 0), false),
            (view(&[3], &[i64::MAX], 0), false),
            (view(&[3], &[i64::MIN], huge), false),
            (view(&[1], &[i64::MIN], 5), true),
            (view(&[], &[], u64::MAX), false),
            (view(&[0, 3], &[3, 1], 6), true),
            (view(&[0, 3], &[3, 1], 7), false),
            (view(&[0, 3], &[3, i64::MAX], 0), false),
            (view(&[0, huge], &[0, 0], 0), false),
        ] {
            assert_eq!(view.fits(24), fits, "{view:?}");
        }
    }

    #[test]
    fn wrong_views_are_errors() {
        let v = View::contiguous(DType::F32, &[2, 3]);
        assert!(v.transpose(&[0, 0]).is_err());
        assert!(v.transpose(&[0]).is_err());
        assert!(v.slice(&[0, 2], &[2, 2], &[1, 1]).is_err());
        assert!(v.slice(&[0, u64::MAX], &[2, 2], &[1, 1]).is_err());
        assert!(v.broadcast_trailing(&[3, 3]).is_err());
        assert!(v.reverse(&[2]).is_err());
        assert!(v.reshape(&[7]).is_none());
    }

    #[test]
    fn spaces_merge_what_all_operands_allow() {
        let full = contiguous_strides(&[2, 1, 3, 4]);
        let space = Space::new(&[2, 1, 3, 4], &[&full, &full]);
        assert_eq!(&space.sizes[..], &[24]);
        let bias = [0, 0, 0, 1];
        let space = Space::new(&[2, 1, 3, 4], &[&full, &bias]);
        assert_eq!(&space.sizes[..], &[6, 4]);
        assert_eq!(&space.strides[1][..], &[0, 1]);
        assert_eq!(Space::new(&[], &[&[]]).elements(), 1);
    }
}
