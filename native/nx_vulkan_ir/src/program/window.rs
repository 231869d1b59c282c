//! Windows that slide over every axis of an operand, and what they cover.

use smallvec::SmallVec;

use super::wire::{Attr, Attrs};
use crate::Result;
use crate::shape::{Dims, View};

/// Windows over every axis of an operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Elements of a window along each axis.
    pub sizes: Dims,
    /// Elements before and after each axis; negative ones are cut off.
    pub padding: SmallVec<[(i64, i64); 6]>,
    /// Elements from one window to the next.
    pub strides: Dims,
    /// Elements from one element of a window to the next.
    pub dilations: Dims,
}

impl Windows {
    /// The shape of the operand with its padding.
    pub fn padded(&self, shape: &[u64]) -> std::result::Result<Dims, String> {
        let rank = shape.len();
        if shape.contains(&0) {
            return Err(format!("windows over {shape:?}"));
        }
        let lengths = [self.sizes.len(), self.padding.len(), self.strides.len(), self.dilations.len()];
        if lengths != [rank; 4] {
            return Err(format!("windows of {lengths:?} axes over rank {rank}"));
        }
        shape
            .iter()
            .zip(&self.padding)
            .map(|(&size, &(low, high))| {
                u64::try_from(i128::from(size) + i128::from(low) + i128::from(high))
                    .ok()
                    .filter(|&padded| padded > 0 && padded <= 1 << 58)
                    .ok_or_else(|| format!("padding {:?} of {shape:?}", self.padding))
            })
            .collect()
    }

    /// How many windows fit along each axis.
    pub fn counts(&self, shape: &[u64]) -> std::result::Result<Dims, String> {
        let padded = self.padded(shape)?;
        (0..shape.len())
            .map(|axis| {
                let (size, stride, dilation) = (self.sizes[axis], self.strides[axis], self.dilations[axis]);
                let span = size.checked_sub(1).and_then(|n| n.checked_mul(dilation));
                let room = span.and_then(|span| padded[axis].checked_sub(span)?.checked_sub(1));
                match room {
                    Some(room) if stride > 0 && dilation > 0 => Ok(room / stride + 1),
                    _ => Err(format!(
                        "windows of {size} by {dilation} every {stride} in {} elements of axis {axis}",
                        padded[axis]
                    )),
                }
            })
            .collect()
    }

    /// The windows of a padded operand as a view: the counts of windows, then the sizes of one. The stride of an axis
    /// with one element may be anything.
    pub fn view(&self, padded: &View, counts: &[u64]) -> View {
        let strides = |steps: &Dims| {
            padded
                .strides
                .iter()
                .zip(steps)
                .map(|(&stride, &step)| stride.wrapping_mul(step as i64))
                .collect::<SmallVec<[i64; 6]>>()
        };
        View {
            dtype: padded.dtype,
            shape: counts.iter().chain(&self.sizes).copied().collect(),
            strides: strides(&self.strides).into_iter().chain(strides(&self.dilations)).collect(),
            offset: padded.offset,
        }
    }

    /// Reads the attributes `window`, `low`, `high`, `strides` and `dilations`.
    pub fn from_wire(a: &Attrs<'_>) -> Result<Windows> {
        let (low, high): (Vec<i64>, Vec<i64>) = (a.ints("low")?, a.ints("high")?);
        if low.len() != high.len() {
            return Err(a.fail("high", "as many values as low"));
        }
        Ok(Windows {
            sizes: a.ints("window")?,
            padding: low.into_iter().zip(high).collect(),
            strides: a.ints("strides")?,
            dilations: a.ints("dilations")?,
        })
    }

    /// The wire form.
    pub fn attrs(&self) -> Vec<(String, Attr)> {
        let list = |name: &str, items: &mut dyn Iterator<Item = i64>| {
            (name.to_string(), Attr::List(items.map(Attr::Int).collect()))
        };
        vec![
            list("window", &mut self.sizes.iter().map(|&n| n as i64)),
            list("low", &mut self.padding.iter().map(|p| p.0)),
            list("high", &mut self.padding.iter().map(|p| p.1)),
            list("strides", &mut self.strides.iter().map(|&n| n as i64)),
            list("dilations", &mut self.dilations.iter().map(|&n| n as i64)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::DType;

    #[test]
    fn windows_are_counted_and_seen() {
        let windows = Windows {
            sizes: smallvec![2, 3],
            padding: smallvec![(1, -1), (0, 0)],
            strides: smallvec![2, 1],
            dilations: smallvec![1, 2],
        };
        assert_eq!(windows.counts(&[4, 6]).unwrap()[..], [2, 2]);
        let view = windows.view(&View::contiguous(DType::F32, &[4, 6]), &[2, 2]);
        assert_eq!((&view.shape[..], &view.strides[..]), (&[2, 2, 2, 3][..], &[12, 1, 6, 2][..]));
        assert!(windows.counts(&[4, 4]).is_err());
        assert!(windows.counts(&[4]).is_err());
        assert!(windows.padded(&[0, 4]).is_err());
        let huge = Windows { dilations: smallvec![u64::MAX, 1], ..windows.clone() };
        assert!(huge.counts(&[4, 6]).is_err());
        let far = Windows { strides: smallvec![u64::MAX, 1 << 62], ..windows };
        assert_eq!(far.counts(&[4, 6]).unwrap()[..], [1, 1]);
        far.view(&View::contiguous(DType::F32, &[4, 6]), &[1, 1]);
    }
}
