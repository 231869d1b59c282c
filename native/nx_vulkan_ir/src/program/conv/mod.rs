//! Convolutions: attributes, and the shapes that they give.

mod phases;

use smallvec::SmallVec;

pub use phases::{Every, Phase};

use super::attribute::Axes;
use super::window::Windows;
use super::wire::{Attr, Attrs};
use crate::Result;
use crate::shape::Dims;

/// How a kernel slides over an input. Spatial attributes have one item per spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Elements from one position of the kernel to the next.
    pub strides: Dims,
    /// Zeros before and after each axis; negative ones are cut off.
    pub padding: SmallVec<[(i64, i64); 6]>,
    /// Elements from one element of the input to the next; zeros lie between.
    pub input_dilation: Dims,
    /// Elements of the input from one element of the kernel to the next.
    pub kernel_dilation: Dims,
    /// Groups of channels that are convolved apart.
    pub feature_groups: u64,
    /// Groups of images that are convolved apart.
    pub batch_groups: u64,
    /// Which axes are batch, channels and space, in this order.
    pub input_axes: Axes,
    /// Which axes are filters, channels and space.
    pub kernel_axes: Axes,
    /// Which axes of the result are batch, filters and space.
    pub output_axes: Axes,
}

/// The sizes of a convolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Batch of the input, divided by the batch groups.
    pub images: u64,
    /// Channels of one feature group.
    pub channels: u64,
    /// Filters of one group of either kind.
    pub filters: u64,
    /// Spatial sizes of the input.
    pub space: Dims,
    /// The kernel's positions over the dilated input.
    pub windows: Windows,
    /// Spatial sizes of the result.
    pub counts: Dims,
}

impl Sizes {
    /// Elements that are contracted to one of the result.
    pub fn depth(&self) -> u64 {
        self.windows.sizes.iter().fold(self.channels, |depth, &size| depth.saturating_mul(size))
    }
}

impl Conv {
    /// Groups of either kind.
    pub fn groups(&self) -> u64 {
        self.feature_groups * self.batch_groups
    }

    /// The sizes for operands of these shapes.
    pub fn sizes(&self, input: &[u64], kernel: &[u64]) -> std::result::Result<Sizes, String> {
        let rank = input.len();
        if rank < 2 || kernel.len() != rank {
            return Err(format!("{input:?} and {kernel:?} have no batch and channels of one rank"));
        }
        for axes in [&self.input_axes, &self.kernel_axes, &self.output_axes] {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..rank) {
                return Err(format!("{axes:?} is no permutation of {rank} axes"));
            }
        }
        let input: Dims = self.input_axes.iter().map(|&axis| input[axis]).collect();
        let kernel: Dims = self.kernel_axes.iter().map(|&axis| kernel[axis]).collect();
        if input.contains(&0) || kernel.contains(&0) {
            return Err(format!("{input:?} and {kernel:?}"));
        }
        let is_step = |step: &u64| (1..1 << 58).contains(step);
        if self.input_dilation.len() != rank - 2 || !self.input_dilation.iter().all(is_step) {
            return Err(format!("input dilation {:?} for {} spatial axes", self.input_dilation, rank - 2));
        }
        let (features, batches) = (self.feature_groups, self.batch_groups);
        let divides = |groups: u64, size: u64| groups > 0 && size.is_multiple_of(groups);
        let fits = divides(features, input[1])
            && divides(batches, input[0])
            && divides(features, kernel[0])
            && divides(batches, kernel[0])
            && input[1] / features == kernel[1]
            && (features == 1 || batches == 1);
        if !fits {
            return Err(format!("{features} feature and {batches} batch groups of {input:?} and {kernel:?}"));
        }
        let windows = Windows {
            sizes: kernel[2..].into(),
            padding: self.padding.clone(),
            strides: self.strides.clone(),
            dilations: self.kernel_dilation.clone(),
        };
        let space: Dims = input[2..].into();
        let counts = windows.counts(&self.dilated(&space)?)?;
        Ok(Sizes {
            images: input[0] / batches,
            channels: kernel[1],
            filters: kernel[0] / self.groups(),
            space,
            windows,
            counts,
        })
    }

    /// Spatial sizes with the zeros between elements.
    pub fn dilated(&self, space: &[u64]) -> std::result::Result<Dims, String> {
        let size = |(&size, &dilation): (&u64, &u64)| size.saturating_sub(1).checked_mul(dilation)?.checked_add(1);
        let sizes: Option<Dims> = space.iter().zip(&self.input_dilation).map(size).collect();
        sizes.ok_or_else(|| format!("dilation {:?} of {space:?}", self.input_dilation))
    }

    /// The shape of the result.
    pub fn output(&self, sizes: &Sizes) -> Dims {
        let mut shape = Dims::from_elem(0, self.output_axes.len());
        let own = [sizes.images, sizes.filters * self.groups()].into_iter().chain(sizes.counts.iter().copied());
        for (&axis, size) in self.output_axes.iter().zip(own) {
            shape[axis] = size;
        }
        shape
    }

    /// Reads the wire form.
    pub fn from_wire(a: &Attrs<'_>) -> Result<Conv> {
        let (low, high): (Vec<i64>, Vec<i64>) = (a.ints("low")?, a.ints("high")?);
        if low.len() != high.len() {
            return Err(a.fail("high", "as many values as low"));
        }
        Ok(Conv {
            strides: a.ints("strides")?,
            padding: low.into_iter().zip(high).collect(),
            input_dilation: a.ints("input_dilation")?,
            kernel_dilation: a.ints("kernel_dilation")?,
            feature_groups: a.int("feature_groups")?,
            batch_groups: a.int("batch_groups")?,
            input_axes: a.ints("input_axes")?,
            kernel_axes: a.ints("kernel_axes")?,
            output_axes: a.ints("output_axes")?,
        })
    }

    /// The wire form.
    pub(crate) fn wire_attrs(&self) -> Vec<(String, Attr)> {
        let list = |name: &str, items: &mut dyn Iterator<Item = i64>| {
            (name.to_string(), Attr::List(items.map(Attr::Int).collect()))
        };
        let dims = |name: &str, items: &Dims| list(name, &mut items.iter().map(|&n| n as i64));
        let axes = |name: &str, items: &Axes| list(name, &mut items.iter().map(|&n| n as i64));
        vec![
            dims("strides", &self.strides),
            list("low", &mut self.padding.iter().map(|p| p.0)),
            list("high", &mut self.padding.iter().map(|p| p.1)),
            dims("input_dilation", &self.input_dilation),
            dims("kernel_dilation", &self.kernel_dilation),
            ("feature_groups".to_string(), Attr::Int(self.feature_groups as i64)),
            ("batch_groups".to_string(), Attr::Int(self.batch_groups as i64)),
            axes("input_axes", &self.input_axes),
            axes("kernel_axes", &self.kernel_axes),
            axes("output_axes", &self.output_axes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn conv() -> Conv {
        Conv {
            strides: smallvec![1],
            padding: smallvec![(1, 1)],
            input_dilation: smallvec![2],
            kernel_dilation: smallvec![1],
            feature_groups: 2,
            batch_groups: 1,
            input_axes: smallvec![0, 2, 1],
            kernel_axes: smallvec![0, 1, 2],
            output_axes: smallvec![1, 0, 2],
        }
    }

    #[test]
    fn sizes_follow_the_options() {
        let sizes = conv().sizes(&[3, 5, 4], &[6, 2, 3]).unwrap();
        assert_eq!((sizes.images, sizes.channels, sizes.filters), (3, 2, 3));
        assert_eq!(sizes.counts[..], [9]);
        assert_eq!(conv().output(&sizes)[..], [6, 3, 9]);
    }

    #[test]
    fn wrong_options_are_errors() {
        let shapes = (&[3, 5, 4][..], &[6, 2, 3][..]);
        let wrong = [
            Conv { strides: smallvec![0], ..conv() },
            Conv { strides: smallvec![], ..conv() },
            Conv { padding: smallvec![(-9, -9)], ..conv() },
            Conv { input_dilation: smallvec![0], ..conv() },
            Conv { input_dilation: smallvec![u64::MAX], ..conv() },
            Conv { kernel_dilation: smallvec![u64::MAX], ..conv() },
            Conv { feature_groups: 0, ..conv() },
            Conv { feature_groups: 4, ..conv() },
            Conv { batch_groups: 3, ..conv() },
            Conv { input_axes: smallvec![0, 0, 1], ..conv() },
            Conv { output_axes: smallvec![0, 1, 3], ..conv() },
        ];
        for conv in wrong {
            assert!(conv.sizes(shapes.0, shapes.1).is_err(), "{conv:?}");
        }
        assert!(conv().sizes(&[0, 5, 4], shapes.1).is_err());
        assert!(conv().sizes(&[3, 5], &[6, 2]).is_err());
        assert!(conv().sizes(&[3], &[6]).is_err());
    }
}
