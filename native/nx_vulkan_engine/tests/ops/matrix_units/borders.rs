//! Convolutions of f16 and bf16 whose windows reach beyond the image: units read it where it lies, without a copy.

use std::sync::Arc;

use half::{bf16, f16};
use nx_vulkan_engine::program::{Conv, Op};
use nx_vulkan_engine::{Compile, DType, Engine, Tensor, Type, eager};

use super::{Random, bytes, dtypes, planes_of_units};
use crate::common;

/// Images with channels last: batch, space, channels.
struct Case {
    name: &'static str,
    conv: Conv,
    input: Vec<u64>,
    kernel: Vec<u64>,
    /// Channels that lie behind each pixel's, of no use.
    behind: u64,
}

impl Case {
    /// Kernels have filters last, and results channels.
    fn new(name: &'static str, input: &[u64], kernel: &[u64], pads: &[(i64, i64)], change: impl Fn(&mut Conv)) -> Case {
        let rank = input.len();
        let last = || [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let ones = || vec![1; rank - 2].into_iter().collect();
        let mut conv = Conv {
            strides: ones(),
            padding: pads.iter().copied().collect(),
            input_dilation: ones(),
            kernel_dilation: ones(),
            feature_groups: 1,
            batch_groups: 1,
            input_axes: last(),
            kernel_axes: [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect(),
            output_axes: last(),
        };
        change(&mut conv);
        Case { name, conv, input: input.into(), kernel: kernel.into(), behind: 8 }
    }

    fn output(&self) -> Vec<u64> {
        let (input, kernel) = (&self.input, &self.kernel);
        self.conv.output(&self.conv.sizes(input, kernel).unwrap()).to_vec()
    }

    fn run(&self, engine: &Arc<Engine>, conv: Conv, x: Tensor, kernel: &Tensor) -> Vec<u8> {
        let out = Type::new(kernel.view().dtype, &self.output());
        let op = Op::Conv(Box::new(conv));
        let result = eager::run(engine, &op, &[x, kernel.clone()], &out, Compile::Allowed).unwrap();
        bytes(engine, &result)
    }

    /// The image among so many pixels of a value on each side of its axes, with so many channels of it behind its own:
    /// the shape of all, and their elements.
    fn among(&self, values: &[u16], around: &[[u64; 2]], behind: u64, value: u16) -> (Vec<u64>, Vec<u16>) {
        let (channels, pixels) = self.input.split_last().unwrap();
        let mut whole: Vec<u64> = pixels.iter().zip(around).map(|(n, [low, high])| low + n + high).collect();
        let mut all = vec![];
        for at in 0..whole.iter().product() {
            let (mut rest, mut own, mut unit) = (at, Some(0), 1);
            for ((n, size), [low, _]) in whole.iter().zip(pixels).zip(around).rev() {
                let place = (rest % n).checked_sub(*low).filter(|i| i < size);
                own = own.zip(place).map(|(own, place)| own + place * unit);
                (rest, unit) = (rest / n, unit * size);
            }
            let pixel = |own: u64| values[(own * channels) as usize..].iter().take(*channels as usize);
            match own {
                Some(own) => all.extend(pixel(own)),
                None => all.extend((0..*channels).map(|_| value)),
            }
            all.extend((0..behind).map(|_| value));
        }
        whole.push(channels + behind);
        (whole, all)
    }

    /// The convolution of the image with the zeros that padding adds, which lie in memory.
    fn padded(&self, engine: &Arc<Engine>, dtype: DType, values: &[u16], kernel: &Tensor) -> Vec<u8> {
        let mut conv = self.conv.clone();
        let mut around = vec![[0; 2]];
        for (padding, &step) in conv.padding.iter_mut().zip(&conv.input_dilation) {
            let added = [padding.0, padding.1].map(|side| side.max(0).unsigned_abs().div_ceil(step));
            let [low, high] = added.map(|pixels| (pixels * step) as i64);
            *padding = (padding.0 - low, padding.1 - high);
            around.push(added);
        }
        let (whole, all) = self.among(values, &around, 0, 0);
        self.run(engine, conv, upload(engine, dtype, &whole, all.into_iter()), kernel)
    }

    /// The convolution of the image where it lies, with NaN on all of its sides.
    fn in_place(&self, engine: &Arc<Engine>, dtype: DType, values: &[u16], kernel: &Tensor) -> Vec<u8> {
        let mut starts = vec![2; self.input.len()];
        starts[self.input.len() - 1] = 0;
        let around: Vec<[u64; 2]> = starts.iter().map(|&n| [n; 2]).collect();
        let (whole, all) = self.among(values, &around, self.behind, 0x7fff);
        let x = upload(engine, dtype, &whole, all.into_iter());
        let view = x.view().slice(&starts, &self.input, &vec![1; starts.len()]).unwrap();
        self.run(engine, self.conv.clone(), Tensor::new(x.buffer().clone(), view).unwrap(), kernel)
    }
}

fn upload(engine: &Arc<Engine>, dtype: DType, shape: &[u64], bits: impl Iterator<Item = u16>) -> Tensor {
    let bytes: Vec<u8> = bits.flat_map(u16::to_ne_bytes).collect();
    Tensor::from_nx_bytes(engine, &Type::new(dtype, shape), &bytes).unwrap()
}

fn cases() -> Vec<Case> {
    let steps = |n: &[u64]| n.iter().copied().collect();
    vec![
        Case::new("3 x 3", &[13, 33, 31, 64], &[3, 3, 64, 64], &[(1, 1), (1, 1)], |_| ()),
        Case::new("wide", &[16, 28, 28, 64], &[3, 3, 64, 256], &[(1, 1), (1, 1)], |_| ()),
        Case::new("filters first", &[13, 33, 31, 64], &[3, 3, 64, 72], &[(1, 1), (1, 1)], |c| {
            c.output_axes = [0, 1, 2, 3].into_iter().collect();
        }),
        Case::new("strides", &[24, 40, 41, 64], &[3, 3, 64, 72], &[(0, 1), (1, 0)], |c| c.strides = steps(&[2, 3])),
        Case::new("dilation", &[20, 32, 29, 24], &[5, 5, 24, 64], &[(4, 4), (2, 6)], |c| {
            c.kernel_dilation = steps(&[2, 3]);
        }),
        Case::new("few channels", &[32, 63, 65, 8], &[5, 5, 8, 64], &[(2, 2), (2, 2)], |_| ()),
        Case::new("groups", &[16, 32, 31, 128], &[3, 3, 64, 128], &[(1, 1), (1, 1)], |c| c.feature_groups = 2),
        Case::new("batch groups", &[24, 32, 31, 64], &[3, 3, 64, 128], &[(1, 1), (1, 1)], |c| c.batch_groups = 2),
        Case::new("of the past", &[16, 1500, 64], &[7, 64, 80], &[(12, 0)], |c| c.kernel_dilation = steps(&[2])),
        Case::new("32 positions", &[16, 1500, 40], &[32, 40, 64], &[(16, 15)], |_| ()),
        Case::new("3 x 3 x 3", &[3, 17, 15, 16, 32], &[3, 3, 3, 32, 64], &[(1, 1), (1, 2), (0, 1)], |_| ()),
        Case::new("3 x 1 x 5", &[3, 17, 15, 16, 64], &[3, 1, 5, 64, 64], &[(1, 1), (2, 0), (2, 2)], |c| {
            c.strides = steps(&[1, 2, 1]);
        }),
        Case::new("far beyond", &[16, 28, 29, 64], &[3, 3, 64, 64], &[(5, 4), (7, 6)], |_| ()),
        Case::new("cut off", &[16, 33, 34, 64], &[3, 3, 64, 64], &[(-2, 3), (2, -1)], |_| ()),
        Case::new("parts of the contracted axis", &[4, 14, 14, 520], &[3, 3, 520, 64], &[(1, 1), (1, 1)], |_| ()),
        Case::new("1 x 1", &[32, 33, 34, 128], &[1, 1, 128, 128], &[(1, 1), (0, 2)], |_| ()),
        Case::new("gradient by the input", &[24, 16, 17, 64], &[3, 3, 72, 64], &[(1, 2), (1, 1)], |c| {
            c.kernel_axes = [2, 3, 0, 1].into_iter().collect();
        }),
        Case::new("gradient by the input, with strides", &[64, 24, 23, 64], &[3, 3, 72, 64], &[(1, 2), (1, 1)], |c| {
            c.kernel_axes = [2, 3, 0, 1].into_iter().collect();
            c.input_dilation = steps(&[2, 2]);
        }),
        Case {
            behind: 4,
            ..Case::new("windows begin between eights", &[64, 64, 66, 24], &[3, 3, 24, 64], &[(1, 1), (1, 1)], |c| {
                (c.strides, c.kernel_dilation) = (steps(&[2, 2]), steps(&[2, 2]));
            })
        },
    ]
}

/// Whether kernels for matrix units ran since the profile began, and whether one for windows with a border did.
fn took(engine: &Engine) -> [bool; 2] {
    engine.wait().unwrap();
    let rows = engine.profile().unwrap().rows;
    engine.reset_profile().unwrap();
    [".matrix_", "_bordered."].map(|part| rows.iter().any(|row| row.kernel.contains(part)))
}

#[test]
fn windows_beyond_an_image_have_the_bits_of_a_padded_one() {
    let own = planes_of_units().into_iter().filter(|planes| planes.own_type().is_some());
    let (mut wrong, mut ways) = (vec![], [0; 2]);
    for dtype in own.map(|planes| dtypes(planes)[0]) {
        let engine = common::engine();
        engine.start_profile().unwrap();
        let bits = |x: f64| match dtype {
            DType::Bf16 => bf16::from_f64(x).to_bits(),
            _ => f16::from_f64(x).to_bits(),
        };
        for (seed, case) in cases().into_iter().enumerate() {
            let mut random = Random(seed as u64 + 1);
            let mut values =
                |shape: &[u64]| -> Vec<u16> { (0..shape.iter().product()).map(|_| bits(random.normal())).collect() };
            let (mut x, mut w) = (values(&case.input), values(&case.kernel));
            // Whether phases of a dilated image pay, and not zeros among its elements, the model says.
            let is_certain = case.conv.input_dilation.iter().all(|&step| step == 1);
            for values in ["normal", "special"] {
                if values == "special" {
                    let (last, pixel) = (x.len() - 1, case.input[case.input.len() - 1] as usize);
                    (x[0], x[last], x[last / 2]) = (bits(f64::INFINITY), bits(f64::NEG_INFINITY), bits(f64::NAN));
                    x.iter_mut().skip(2 * pixel).step_by(17).for_each(|x| *x = bits(-0.0));
                    // Zeros are multiplied, too: every sum with one and an infinity is NaN.
                    let last = w.len() - 1;
                    (w[0], w[last]) = (bits(f64::INFINITY), bits(f64::NEG_INFINITY));
                    w.iter_mut().skip(1).step_by(23).for_each(|w| *w = bits(-0.0));
                }
                let kernel = upload(&engine, dtype, &case.kernel, w.iter().copied());
                let expected = case.padded(&engine, dtype, &x, &kernel);
                let [units, padded] = took(&engine);
                let got = case.in_place(&engine, dtype, &x, &kernel);
                let [_, in_place] = took(&engine);
                ways[usize::from(in_place)] += 1;
                let mut note = |what: String| wrong.push(format!("{} of {values} {dtype}: {what}", case.name));
                if padded {
                    note("an image without padding took kernels for borders".to_string());
                }
                // The same units take both.
                if is_certain && in_place != (units && case.behind == 8) {
                    note(format!("in place: {in_place}, units: {units}"));
                }
                let pairs = || got.chunks(2).zip(expected.chunks(2)).enumerate().filter(|(_, (a, b))| a != b);
                if let Some(first) = pairs().next() {
                    note(format!("{} of {} have wrong bits, first {first:?}", pairs().count(), expected.len() / 2));
                }
            }
        }
        common::assert_valid(&engine);
    }
    eprintln!("images with a border: {} read in place, {} copied", ways[1], ways[0]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
