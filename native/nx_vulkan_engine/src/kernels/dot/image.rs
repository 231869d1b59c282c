//! Images whose windows matrix units read in place: their f32 elements as three bf16 numbers each, in planes. A kernel
//! writes them right from where the elements come from, among zeros, in the order that the product takes.

use smallvec::SmallVec;

use super::matrix::{InPlace, Prepared, words, zero};
use super::{Bounds, Load, Planes, SplitSpec, SplitStage};
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::shape::{Dims, Strides};
use crate::{DType, Engine, Result, Tensor};

/// An axis of an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageAxis {
    pub size: u64,
    /// Elements of the source along it, where the first one of them stands, and how far they are apart.
    pub of_source: u64,
    pub begin: i64,
    pub step: u64,
    /// The stride of the source.
    pub stride: i64,
}

impl ImageAxis {
    /// One along which all elements are those of the source.
    pub fn whole(size: u64, stride: i64) -> ImageAxis {
        ImageAxis { size, of_source: size, begin: 0, step: 1, stride }
    }

    fn is_dilated(&self) -> bool {
        self.step > 1
    }

    fn is_padded(&self) -> bool {
        self.begin != 0 || self.of_source != self.size
    }
}

/// An f32 image that lies as its axes follow each other; eight neighbours along the last one at least lie together.
#[derive(Debug)]
pub struct Image<'a> {
    /// No stride is negative.
    pub source: &'a Tensor,
    /// Axes of batches, of rows and of contracted elements, in the order in which they lie. Neighbours in the source
    /// are loaded together along the last contracted one, or along the last one of rows.
    pub axes: [SmallVec<[ImageAxis; 6]>; 3],
}

impl Image<'_> {
    /// Its elements, zeros among them.
    pub fn elements(&self) -> u64 {
        self.counts().iter().product()
    }

    fn counts(&self) -> [u64; 3] {
        self.axes.each_ref().map(|axes| axes.iter().map(|axis| axis.size).product())
    }

    /// The parts of its elements.
    ///
    /// # Errors
    /// What allocating and launching may fail with.
    pub fn planes(&self, engine: &Engine, compile: Compile) -> Result<Prepared> {
        let plane = self.elements() / 8;
        let (numbers, largest) = (words(engine, 3 * plane * 4)?, zero(engine)?);
        self.run(engine, SplitStage::Split, &[], &[&numbers, &largest], compile)?;
        let (lies, steps) = (InPlace::ByAxes, SmallVec::from_elem(1, 7));
        Ok(Prepared { numbers, lies, steps, plane: Some(plane), scales: None, largest: Some(largest) })
    }

    /// Its elements themselves, where units can't take both operands, as the words of `guard` tell.
    ///
    /// # Errors
    /// What launching may fail with.
    pub fn restore(&self, engine: &Engine, guard: &[&Tensor], to: &Tensor, compile: Compile) -> Result<()> {
        self.run(engine, SplitStage::Restore, guard, &[to], compile)
    }

    /// How elements are loaded, by four where these are neighbours that are all there or not.
    fn load(&self) -> Load {
        let four = |axes: &[ImageAxis]| match axes.last() {
            Some(axis) => {
                let multiples = [axis.size, axis.of_source, axis.begin.unsigned_abs()];
                axis.stride == 1 && !axis.is_dilated() && multiples.iter().all(|n| n.is_multiple_of(4))
            }
            None => false,
        };
        let others = |k: usize| {
            let axes = self
                .axes
                .iter()
                .enumerate()
                .flat_map(|(group, axes)| axes.iter().rev().enumerate().map(move |a| (group, a)));
            axes.filter(move |&(group, (at, _))| (group, at) != (k, 0)).all(|(_, (_, axis))| axis.stride % 4 == 0)
        };
        let aligned = self.source.address().is_multiple_of(16);
        let by_four = |k: usize| aligned && four(&self.axes[k]) && others(k);
        let stride = |k: usize| self.axes[k].iter().rev().find(|axis| axis.size > 1).map_or(0, |axis| axis.stride);
        match (by_four(2), by_four(1)) {
            (true, _) => Load { along_k: true, by_four: true },
            (_, true) => Load { along_k: false, by_four: true },
            _ => Load { along_k: stride(1) != 1 || stride(2) == 1, by_four: false },
        }
    }

    fn run(
        &self,
        engine: &Engine,
        stage: SplitStage,
        reads: &[&Tensor],
        writes: &[&Tensor],
        compile: Compile,
    ) -> Result<()> {
        let [batches, rows, depth] = self.counts();
        let load = self.load();
        let groups = match load.along_k {
            true => (batches * rows * (depth / 8)).div_ceil(256),
            false => batches * rows.div_ceil(64) * depth.div_ceil(64),
        };
        let axes: SmallVec<[ImageAxis; 8]> = self.axes.iter().flatten().copied().collect();
        let bits =
            |is: fn(&ImageAxis) -> bool| (0..).zip(&axes).filter(|(_, axis)| is(axis)).map(|(k, _)| 1 << k).sum();
        let bounds = Bounds { padded: bits(ImageAxis::is_padded), dilated: bits(ImageAxis::is_dilated) };
        let mut extra: SmallVec<[u32; 16]> = SmallVec::new();
        extra.extend([rows, depth, batches, 0, 0, 0, self.elements() / 8].map(|n| n as u32));
        for axis in axes.iter().filter(|axis| axis.is_padded() || axis.is_dilated()) {
            extra.extend([axis.begin as u32, axis.of_source as u32, axis.step as u32]);
        }
        let reach = engine.reach();
        let is_far = |tensor: &&Tensor| reach_of(&tensor.view) > reach.near(4);
        let far = reach.is_far(&[&self.source.view])? || writes.iter().any(is_far);
        let spec = SplitSpec {
            fragments: false,
            stage,
            dtype: DType::F32,
            ranks: self.axes.each_ref().map(|axes| axes.len() as u8),
            load,
            planes: Planes::OwnThreeBf16,
            scaled: false,
            bounds: Some(bounds),
            second: false,
        };
        let kernel = engine.kernel_reaching(&spec, far, compile)?;
        let (sizes, strides): (Dims, Strides) = axes.iter().map(|axis| (axis.size, axis.stride)).unzip();
        let entire = |tensor: &&Tensor| (tensor.buffer.clone(), tensor.address());
        let others: SmallVec<[_; 3]> = reads.iter().chain(writes).map(entire).collect();
        let source = &self.source;
        let source = Place { buffer: &source.buffer, address: source.address(), strides: &strides, element_bytes: 4 };
        let others =
            others.iter().map(|(buffer, address)| Place { buffer, address: *address, strides: &[], element_bytes: 0 });
        let places: SmallVec<[Place<'_>; 4]> = std::iter::once(source).chain(others).collect();
        let arguments = Arguments { count: (batches * rows) as u32, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 1 + reads.len(), groups)
    }
}
