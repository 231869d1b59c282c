//! Convolutions of a dilated input, as gradients by the inputs of strided ones are, without the zeros between elements:
//! results whose places leave one remainder by the dilation meet every so many elements of the kernel, and are a
//! convolution of the input as it is.

use smallvec::{SmallVec, smallvec};

use super::{Conv, Sizes};
use crate::shape::{Dims, gcd};

/// Phases of a convolution at most.
const MAX_PHASES: usize = 64;

/// Every so many elements of each axis, from one on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Every {
    /// The first.
    pub first: Dims,
    /// How many.
    pub counts: Dims,
    /// Elements from one to the next.
    pub steps: Dims,
}

/// Some results of a convolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Which.
    pub results: Every,
    /// The elements of the kernel that they meet, and the convolution of the input by these. None where results meet
    /// nothing but zeros.
    pub met: Option<(Every, Conv)>,
}

/// A phase along one axis.
#[derive(Debug, Clone, Copy)]
struct Along {
    /// The first result, how many, and from one to the next.
    results: [u64; 3],
    met: Option<Met>,
}

/// What the results of a phase meet along one axis.
#[derive(Debug, Clone, Copy)]
struct Met {
    /// The first element of the kernel, how many, and from one to the next.
    elements: [u64; 3],
    stride: u64,
    dilation: u64,
    padding: (i64, i64),
}

impl Conv {
    /// The phases, if zeros lie between elements of the input and there are no more of them than is reasonable.
    pub fn phases(&self, sizes: &Sizes) -> Option<Vec<Phase>> {
        let is_dilated = self.input_dilation.iter().zip(&sizes.space).any(|(&step, &size)| step > 1 && size > 1);
        if !is_dilated {
            return None;
        }
        let mut phases: Vec<SmallVec<[Along; 3]>> = vec![SmallVec::new()];
        for axis in 0..sizes.space.len() {
            let along = self.phases_along(sizes, axis)?;
            if phases.len() * along.len() > MAX_PHASES {
                return None;
            }
            let with = |phase: &SmallVec<[Along; 3]>, one: &Along| phase.iter().chain([one]).copied().collect();
            phases = phases.iter().flat_map(|phase| along.iter().map(move |one| with(phase, one))).collect();
        }
        Some(phases.iter().map(|along| self.phase(along)).collect())
    }

    /// What result p and element q of the kernel meet lies at p * stride + q * kernel_dilation - low of the dilated
    /// input: it is an element of the input if the dilation divides that.
    fn phases_along(&self, sizes: &Sizes, axis: usize) -> Option<SmallVec<[Along; 4]>> {
        let (dilation, stride) = (self.input_dilation[axis], self.strides[axis]);
        let kernel_dilation = self.kernel_dilation[axis];
        let by_stride = gcd(dilation, stride);
        let by_kernel = gcd(dilation, kernel_dilation);
        let (step, kernel_step) = (dilation / by_stride, dilation / by_kernel);
        if step.max(kernel_step) > MAX_PHASES as u64 {
            return None;
        }
        let (elements, results) = (sizes.windows.sizes[axis], sizes.counts[axis]);
        let along = |p: u64| {
            let at = |q: u64| {
                let place = i128::from(p) * i128::from(stride) + i128::from(q) * i128::from(kernel_dilation);
                place - i128::from(self.padding[axis].0)
            };
            let count = (results - p).div_ceil(step);
            let first = (0..kernel_step.min(elements)).find(|&q| at(q) % i128::from(dilation) == 0);
            let met = first.and_then(|q| {
                let (met, left) =
                    ((elements - q).div_ceil(kernel_step), [stride / by_stride, kernel_dilation / by_kernel]);
                let spans = [(count, left[0]), (met, left[1])];
                let span: i128 = spans.into_iter().map(|(n, step)| i128::from(n - 1) * i128::from(step)).sum();
                let (begin, size) = (at(q) / i128::from(dilation), i128::from(sizes.space[axis]));
                let meets = begin < size && begin + span >= 0;
                let padding = (i64::try_from(-begin).ok()?, i64::try_from(begin + span + 1 - size).ok()?);
                let elements = [q, met, kernel_step];
                meets.then_some(Met { elements, stride: left[0], dilation: left[1], padding })
            });
            Along { results: [p, count, step], met }
        };
        Some((0..step.min(results)).map(along).collect())
    }

    fn phase(&self, along: &[Along]) -> Phase {
        let every = |axes: &mut dyn Iterator<Item = [u64; 3]>| {
            let mut every = Every::default();
            for [first, count, step] in axes {
                every.first.push(first);
                every.counts.push(count);
                every.steps.push(step);
            }
            every
        };
        let met: Option<SmallVec<[Met; 3]>> = along.iter().map(|axis| axis.met).collect();
        Phase {
            results: every(&mut along.iter().map(|axis| axis.results)),
            met: met.map(|met| {
                let conv = Conv {
                    strides: met.iter().map(|axis| axis.stride).collect(),
                    kernel_dilation: met.iter().map(|axis| axis.dilation).collect(),
                    padding: met.iter().map(|axis| axis.padding).collect(),
                    input_dilation: smallvec![1; met.len()],
                    ..self.clone()
                };
                (every(&mut met.iter().map(|axis| axis.elements)), conv)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// For each result of one axis, the pairs of kernel's and input's elements that it is made of.
    type Terms = BTreeMap<u64, Vec<(u64, u64)>>;

    fn terms(conv: &Conv, input: u64, kernel: u64) -> Terms {
        let sizes = conv.sizes(&[1, 1, input], &[1, 1, kernel]).unwrap();
        let of = |p: u64| {
            let pairs = (0..kernel).filter_map(|q| {
                let at = (p * conv.strides[0] + q * conv.kernel_dilation[0]) as i64 - conv.padding[0].0;
                let (at, dilation) = (u64::try_from(at).ok()?, conv.input_dilation[0]);
                (at % dilation == 0 && at / dilation < input).then_some((q, at / dilation))
            });
            (p, pairs.collect())
        };
        (0..sizes.counts[0]).map(of).collect()
    }

    #[test]
    fn phases_meet_what_the_convolution_meets() {
        let (mut phases_seen, mut empty) = (0, 0);
        for input in [2, 3, 7] {
            for kernel in [1, 2, 3, 5] {
                for steps in 0..6u64.pow(3) {
                    let [stride, dilation, kernel_dilation] = [steps % 6 + 1, steps / 6 % 6 + 1, steps / 36 + 1];
                    for padding in [(0, 0), (1, 2), (-1, 3), (7, -2), (11, 9)] {
                        let conv = Conv {
                            strides: smallvec![stride],
                            padding: smallvec![padding],
                            input_dilation: smallvec![dilation],
                            kernel_dilation: smallvec![kernel_dilation],
                            feature_groups: 1,
                            batch_groups: 1,
                            input_axes: smallvec![0, 1, 2],
                            kernel_axes: smallvec![0, 1, 2],
                            output_axes: smallvec![0, 1, 2],
                        };
                        let Ok(sizes) = conv.sizes(&[1, 1, input], &[1, 1, kernel]) else { continue };
                        let Some(phases) = conv.phases(&sizes) else {
                            assert_eq!(dilation, 1);
                            continue;
                        };
                        let mut found = Terms::new();
                        for Phase { results, met } in phases {
                            let part = met.as_ref().map(|(elements, part)| {
                                let of_part = part.sizes(&[1, 1, input], &[1, 1, elements.counts[0]]).unwrap();
                                assert_eq!(of_part.counts, results.counts);
                                (elements, terms(part, input, elements.counts[0]))
                            });
                            phases_seen += 1;
                            empty += usize::from(part.is_none());
                            for i in 0..results.counts[0] {
                                let pairs = part.iter().flat_map(|(elements, terms)| {
                                    let of = |q: u64| elements.first[0] + q * elements.steps[0];
                                    terms[&i].iter().map(move |&(q, at)| (of(q), at))
                                });
                                let place = results.first[0] + i * results.steps[0];
                                assert!(found.insert(place, pairs.collect()).is_none(), "{place} of {conv:?}");
                            }
                        }
                        assert_eq!(found, terms(&conv, input, kernel), "{conv:?} of {input} by {kernel}");
                    }
                }
            }
        }
        assert!(phases_seen > 1000 && empty > 100, "{phases_seen} {empty}");
    }

    #[test]
    fn axes_have_phases_of_their_own() {
        let conv = Conv {
            strides: smallvec![1, 1],
            padding: smallvec![(1, 1), (0, 0)],
            input_dilation: smallvec![2, 3],
            kernel_dilation: smallvec![1, 1],
            feature_groups: 1,
            batch_groups: 1,
            input_axes: smallvec![0, 3, 1, 2],
            kernel_axes: smallvec![3, 2, 0, 1],
            output_axes: smallvec![0, 3, 1, 2],
        };
        let sizes = conv.sizes(&[2, 4, 5, 8], &[3, 2, 8, 6]).unwrap();
        let phases = conv.phases(&sizes).unwrap();
        let met: Vec<Option<Dims>> = phases.iter().map(|phase| Some(phase.met.as_ref()?.0.counts.clone())).collect();
        // Of three elements of the kernel two or one, and of two one or none.
        let some = |a, b| Some(smallvec![a, b]);
        assert_eq!(met, [some(1, 1), None, some(1, 1), some(2, 1), None, some(2, 1)]);
        // As many phases as that are one convolution of zeros after all.
        let far = Conv { input_dilation: smallvec![9, 9], ..conv.clone() };
        assert!(far.phases(&far.sizes(&[2, 4, 5, 8], &[3, 2, 8, 6]).unwrap()).is_none());
        let near = Conv { input_dilation: smallvec![1, 1], ..conv };
        assert!(near.phases(&sizes).is_none());
    }
}
