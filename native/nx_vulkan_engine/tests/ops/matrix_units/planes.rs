//! Convolutions of f32 whose windows units read in place, by planes of the image.

use std::sync::Arc;

use half::bf16;
use nx_vulkan_engine::kernels::dot::Planes::OwnThreeBf16;
use nx_vulkan_engine::kernels::dot::{Image, ImageAxis};
use nx_vulkan_engine::program::{Conv, Op};
use nx_vulkan_engine::{Compile, DType, Engine, Tensor, Type, eager};

use smallvec::smallvec;

use super::{Random, bytes, decode, encode, planes_of_units};
use crate::common;

/// Channels last, and kernels with filters last.
const FORWARD: [[usize; 4]; 3] = [[0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2]];
/// The same of a gradient by the input, and of one by the kernel.
const BY_INPUT: [[usize; 4]; 3] = [[0, 3, 1, 2], [2, 3, 0, 1], [0, 3, 1, 2]];
const BY_KERNEL: [[usize; 4]; 3] = [[3, 0, 1, 2], [3, 0, 1, 2], [2, 3, 0, 1]];
/// Results with filters before space, so that windows are columns.
const FILTERS_FIRST: [[usize; 4]; 3] = [[0, 3, 1, 2], [3, 2, 0, 1], [0, 1, 2, 3]];

struct Case {
    conv: Conv,
    input: [u64; 4],
    kernel: [u64; 4],
}

impl Case {
    fn new(axes: [[usize; 4]; 3], input: [u64; 4], kernel: [u64; 4], change: impl Fn(&mut Conv)) -> Case {
        let mut conv = common::conv_3x3(axes);
        change(&mut conv);
        Case { conv, input, kernel }
    }

    fn output(&self) -> Vec<u64> {
        self.conv.output(&self.conv.sizes(&self.input, &self.kernel).unwrap()).to_vec()
    }

    fn run(&self, engine: &Arc<Engine>, [x, w]: [&[f64]; 2]) -> Vec<f64> {
        let upload = |shape: &[u64], values: &[f64]| {
            Tensor::from_nx_bytes(engine, &Type::new(DType::F32, shape), &encode(DType::F32, values)).unwrap()
        };
        let operands = [upload(&self.input, x), upload(&self.kernel, w)];
        let op = Op::Conv(Box::new(self.conv.clone()));
        let out = eager::run(engine, &op, &operands, &Type::new(DType::F32, &self.output()), Compile::Allowed).unwrap();
        decode(DType::F32, &bytes(engine, &out))
    }

    /// The result at a place, and the sum of the terms' absolute values.
    fn at(&self, place: usize, [x, w]: [&[f64]; 2]) -> (f64, f64) {
        let (conv, output) = (&self.conv, self.output());
        let own = |axes: &[usize], shape: &[u64]| -> Vec<i64> { axes.iter().map(|&axis| shape[axis] as i64).collect() };
        let index = |axes: &[usize], shape: &[u64], own: [i64; 4]| -> usize {
            let mut all = [0; 4];
            axes.iter().zip(own).for_each(|(&axis, i)| all[axis] = i);
            all.iter().zip(shape).fold(0, |at, (&i, &n)| at * n as usize + i as usize)
        };
        let mut rest = place;
        let mut coordinates = [0; 4];
        for axis in (0..4).rev() {
            coordinates[axis] = (rest % output[axis] as usize) as i64;
            rest /= output[axis] as usize;
        }
        let [n, f, y, x_] = [0, 1, 2, 3].map(|k| coordinates[conv.output_axes[k]]);
        let (input, kernel) = (own(&conv.input_axes, &self.input), own(&conv.kernel_axes, &self.kernel));
        let (features, batches) = (conv.feature_groups as i64, conv.batch_groups as i64);
        let image = f / (kernel[0] / batches) * (input[0] / batches) + n;
        let (mut sum, mut size) = (0.0, 0.0);
        for (dy, dx) in (0..kernel[2]).flat_map(|dy| (0..kernel[3]).map(move |dx| (dy, dx))) {
            let from = |k: usize, at: i64, d: i64| {
                let at = at * conv.strides[k] as i64 + d * conv.kernel_dilation[k] as i64 - conv.padding[k].0;
                let step = conv.input_dilation[k] as i64;
                (at >= 0 && at % step == 0 && at / step < input[2 + k]).then_some(at / step)
            };
            let place = from(0, y, dy).zip(from(1, x_, dx));
            for c in 0..kernel[1] {
                let channel = f / (kernel[0] / features) * kernel[1] + c;
                // Zeros around and between elements are multiplied, too.
                let a = place.map_or(0.0, |(row, column)| {
                    x[index(&conv.input_axes, &self.input, [image, channel, row, column])]
                });
                let term = a * w[index(&conv.kernel_axes, &self.kernel, [f, c, dy, dx])];
                (sum, size) = (sum + term, size + term.abs());
            }
        }
        (sum, size)
    }
}

fn random(count: u64, seed: u64) -> Vec<f64> {
    let mut random = Random(seed);
    (0..count).map(|_| f64::from(random.normal() as f32)).collect()
}

fn cases() -> Vec<(&'static str, Case)> {
    let two = |n: u64| [n, n].into_iter().collect();
    let pads = |low: i64, high: i64| [(low, high); 2].into_iter().collect();
    vec![
        ("3 x 3", Case::new(FORWARD, [48, 33, 31, 64], [3, 3, 64, 64], |_| ())),
        ("filters first", Case::new(FILTERS_FIRST, [20, 33, 31, 64], [3, 3, 64, 72], |_| ())),
        ("no padding", Case::new(FORWARD, [48, 33, 32, 64], [3, 3, 64, 64], |c| c.padding = pads(0, 0))),
        ("strides", Case::new(FORWARD, [60, 40, 40, 64], [3, 3, 64, 72], |c| c.strides = two(2))),
        (
            "dilation",
            Case::new(FORWARD, [40, 32, 32, 24], [5, 5, 24, 60], |c| {
                c.kernel_dilation = two(2);
                c.padding = pads(4, 4);
            }),
        ),
        ("odd channels", Case::new(FORWARD, [32, 33, 29, 44], [3, 3, 44, 122], |_| ())),
        ("groups", Case::new(FORWARD, [32, 32, 32, 128], [3, 3, 64, 128], |c| c.feature_groups = 2)),
        ("batch groups", Case::new(FORWARD, [60, 32, 32, 64], [3, 3, 64, 128], |c| c.batch_groups = 2)),
        (
            "gradient by the input",
            Case::new(BY_INPUT, [24, 16, 16, 64], [3, 3, 72, 64], |c| {
                c.input_dilation = two(2);
                c.padding = pads(1, 2);
            }),
        ),
        ("gradient by the kernel", Case::new(BY_KERNEL, [16, 48, 48, 64], [16, 48, 48, 64], |_| ())),
        (
            "gradient by the kernel, with strides",
            Case::new(BY_KERNEL, [40, 48, 56, 64], [40, 24, 28, 60], |c| {
                c.kernel_dilation = two(2);
                c.padding = pads(1, 0);
            }),
        ),
    ]
}

fn engine() -> Option<Arc<Engine>> {
    planes_of_units().contains(&OwnThreeBf16).then(common::engine)
}

/// Kernels with such names that ran since the profile began.
fn launched(engine: &Engine, name: &str) -> bool {
    engine.wait().unwrap();
    let found = engine.profile().unwrap().rows.iter().any(|row| row.kernel.starts_with(name));
    engine.reset_profile().unwrap();
    found
}

#[test]
fn convolutions_in_place_are_exact() {
    let Some(engine) = engine() else { return };
    engine.start_profile().unwrap();
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        let [x, w] = [case.input, case.kernel].map(|shape| random(shape.iter().product(), seed as u64 + 1));
        let got = case.run(&engine, [&x, &w]);
        // Phases of dilated inputs are convolutions that choose for themselves.
        let is_dilated = case.conv.input_dilation.iter().any(|&step| step > 1);
        assert!(launched(&engine, "split.planes") || is_dilated, "{name} is not taken in place");
        let mut places = Random(seed as u64 + 40);
        for place in (0..500).map(|_| places.next() as usize % got.len()).chain([0, got.len() - 1]) {
            let (sum, size) = case.at(place, [&x, &w]);
            let error = (got[place] - sum).abs();
            assert!(error <= 4.0 * size * 2f64.powi(-24), "{name} at {place}: {}, not {sum}", got[place]);
        }
        let again = case.run(&engine, [&x, &w]);
        assert!(got.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: other bits");
    }
    common::assert_valid(&engine);
}

/// What units can't take, and sums that leave their range, means what it does in f32, wherever it stands.
#[test]
fn special_elements_of_images_keep_their_meaning() {
    let Some(engine) = engine() else { return };
    for (name, case) in cases().into_iter().filter(|(name, _)| ["3 x 3", "gradient by the kernel"].contains(name)) {
        let whole = [case.input, case.kernel].map(|shape| random(shape.iter().product(), 3));
        let specials = [(f64::INFINITY, 0), (f64::NEG_INFINITY, 1), (f64::NAN, 0), (f64::NAN, 1), (1e30, 0), (1e30, 1)];
        for (special, which) in specials {
            let mut values = whole.clone();
            let place = values[which].len() / 2 + 7;
            values[which][place] = f64::from(special as f32);
            check(&engine, name, &case, [&values[0], &values[1]], special);
        }
        // Sums beyond 2^96, of products below.
        let large = |values: &[f64], power: i32| -> Vec<f64> {
            values.iter().map(|x| f64::from(((1.0 + x.abs() / 8.0) * 2f64.powi(power)) as f32)).collect()
        };
        let [x, w] = [large(&whole[0], 44), large(&whole[1], 47)];
        check(&engine, name, &case, [&x, &w], 2f64.powi(96));
    }
    common::assert_valid(&engine);
}

fn check(engine: &Arc<Engine>, name: &str, case: &Case, values: [&[f64]; 2], special: f64) {
    let got = case.run(engine, values);
    let mut places = Random(50);
    let strange = got.iter().enumerate().filter(|(_, x)| !x.is_finite()).map(|(at, _)| at).step_by(7).take(60);
    for place in (0..60).map(|_| places.next() as usize % got.len()).chain(strange) {
        let (sum, size) = case.at(place, values);
        let (got, sum) = (got[place], if sum.abs() > f64::from(f32::MAX) { sum.signum() * f64::INFINITY } else { sum });
        let same = if sum.is_finite() {
            (got - sum).abs() <= 2e-6 * size
        } else {
            got == sum || (got.is_nan() && sum.is_nan())
        };
        assert!(same, "{name} with {special:e} at {place}: {got}, not {sum}");
    }
}

/// Any device writes planes: of channels last and images last, with zeros around, between and behind elements, and
/// parts cut off.
#[test]
fn images_become_planes() {
    let engine = common::engine();
    let [images, height, width, channels] = [24, 5, 7, 24];
    let values = random(images * height * width * channels, 5);
    let strides = [height * width * channels, width * channels, channels, 1].map(|n| n as i64);
    let upload = |values: &[f64]| {
        let ty = Type::new(DType::F32, &[images, height, width, channels]);
        Tensor::from_nx_bytes(&engine, &ty, &encode(DType::F32, values)).unwrap()
    };
    for (of_rows, of_block, block) in [(0, 3, 8), (3, 0, 24), (0, 3, 32), (3, 0, 8)] {
        for (begins, step) in [([0, 0], 1), ([2, 1], 1), ([-1, 3], 1), ([1, 0], 2)] {
            let sizes = [images, height, width, channels];
            let space = |k: usize| ImageAxis {
                size: sizes[1 + k] * step + 3,
                of_source: sizes[1 + k],
                begin: begins[k],
                step,
                stride: strides[1 + k],
            };
            let rows = ImageAxis::whole(sizes[of_rows], strides[of_rows]);
            let blocks = ImageAxis::whole(sizes[of_block].div_ceil(block), strides[of_block] * block as i64);
            let last =
                ImageAxis { of_source: block.min(sizes[of_block]), ..ImageAxis::whole(block, strides[of_block]) };
            let axes = [smallvec![], smallvec![rows], smallvec![blocks, space(0), space(1), last]];
            let what = format!("{of_rows} {of_block} {block}, {begins:?} by {step}");
            let all = [rows, blocks, space(0), space(1), last];
            let count: u64 = all.iter().map(|axis| axis.size).product();
            let expected = |at: u64| -> f64 {
                let (mut rest, mut from) = (at, 0);
                for axis in all.iter().rev() {
                    let place = (rest % axis.size) as i64 - axis.begin;
                    rest /= axis.size;
                    let own = place / axis.step as i64;
                    if place < 0 || place % axis.step as i64 != 0 || own >= axis.of_source as i64 {
                        return 0.0;
                    }
                    from += own * axis.stride;
                }
                values[from as usize]
            };
            let source = upload(&values);
            let image = Image { source: &source, axes };
            let planes = image.planes(&engine, Compile::Allowed).unwrap();
            assert_eq!(bytes(&engine, planes.largest.as_ref().unwrap()), [0; 4], "{what}");
            let words = bytes(&engine, &planes.numbers);
            let part = |plane: u64, at: u64| {
                let at = 2 * (plane * count + at) as usize;
                bf16::from_ne_bytes([words[at], words[at + 1]]).to_f64()
            };
            let memory =
                Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[count]), &vec![0xff; 4 * count as usize]);
            let memory = memory.unwrap();
            for is_for_units in [true, false] {
                let word = if is_for_units { 0u32 } else { 0x7f80_0000 };
                let guard = [0, word].map(|word| {
                    Tensor::from_nx_bytes(&engine, &Type::new(DType::U32, &[1]), &word.to_ne_bytes()).unwrap()
                });
                image.restore(&engine, &[&guard[0], &guard[1]], &memory, Compile::Allowed).unwrap();
                let got = decode(DType::F32, &bytes(&engine, &memory));
                for at in 0..count {
                    let (got, expected) = (got[at as usize], expected(at));
                    assert!(
                        if is_for_units { got.is_nan() } else { got == expected },
                        "{what} at {at}: {got}, not {expected}"
                    );
                }
            }
            for at in 0..count {
                let got = (part(0, at) + part(1, at) + part(2, at)) / 65536.0;
                assert!(got == expected(at), "{what} at {at}: {got}, not {}", expected(at));
            }
        }
    }
    let mut large = values;
    large[1234] = -3e30;
    let source = upload(&large);
    let row = ImageAxis::whole(large.len() as u64, 1);
    let planes = Image { source: &source, axes: [smallvec![], smallvec![], smallvec![row]] };
    let planes = planes.planes(&engine, Compile::Allowed).unwrap();
    assert_eq!(bytes(&engine, &planes.largest.unwrap()), 3e30f32.to_bits().to_ne_bytes());
    common::assert_valid(&engine);
}
