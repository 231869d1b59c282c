//! Operands of f16 and bf16 that units take as they are, and the same of f32 in planes.

use std::collections::HashMap;

use half::{bf16, f16};
use nx_vulkan_engine::kernels::dot::{
    Epilogue, Feed, InPlace, Matrix, MergedAxes, Narrowing, Product, Tiling, product_as,
};
use nx_vulkan_engine::program::{Elementwise, Op};
use nx_vulkan_engine::{CType, Compile, DType, Tensor, Type, eager};
use nx_vulkan_ir::program::step::{Ref, Step};
use smallvec::smallvec;

use super::{Change, Given, Random, bytes, decode, dtypes, engine, planes_of_units, some_sums, ways};
use crate::common;

/// Where an operand lies makes no difference to the bits: in place, over heads between rows, or written anew. Nor do
/// tiles, but those of few vectors, which share out the contracted elements.
#[test]
fn own_numbers_have_the_same_bits_wherever_they_lie() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.is_own()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        let [batch, heads, rows, columns, depth] = [2, 3, 128, 256, 192];
        let size = |n: u64| batch * n * heads * depth;
        let mut random = Random(11);
        let [a, b] = [rows, columns].map(|n| (0..size(n)).map(|_| random.normal()).collect::<Vec<f64>>());
        // [batch, rows, heads, depth], which attention turns to [batch, heads, rows, depth].
        let view = |given: &Given, n: u64, along_k: bool| {
            let [n_, heads_, depth_] = [n, heads, depth].map(|n| n as i64);
            let (outer, inner) = (n_ * heads_ * depth_, if along_k { depth_ } else { n_ * depth_ });
            Matrix {
                tensor: given.tensor.clone(),
                batch: MergedAxes::new(&[batch, heads], &[outer, inner]),
                free: MergedAxes::new(&[n], &[if along_k { heads_ * depth_ } else { 1 }]),
                depth: MergedAxes::new(&[depth], &[if along_k { 1 } else { n_ }]),
            }
        };
        let given = |values: &[f64], n: u64, along_k: bool| {
            let at = |i: u64| {
                let [batch, head, row, k] = if along_k {
                    [i / (n * heads * depth), i / depth % heads, i / (heads * depth) % n, i % depth]
                } else {
                    [i / (n * heads * depth), i / (n * depth) % heads, i % n, i / n % depth]
                };
                values[(((batch * heads + head) * n + row) * depth + k) as usize]
            };
            let turned: Vec<f64> = (0..size(n)).map(at).collect();
            Given::new(engine, dtype, [batch, n * heads, depth], true, &turned)
        };
        let ty = Type::new(dtype, &[batch * heads, rows, columns]);
        let mut first = HashMap::new();
        for (a_along, b_along) in [(true, true), (true, false), (false, true), (false, false)] {
            let [a, b] = [given(&a, rows, a_along), given(&b, columns, b_along)];
            for way in ways(planes, depth).into_iter().filter(|way| way.splits == 1) {
                let out = Tensor::uninitialized(engine, &ty).unwrap();
                let (a, b) = (view(&a, rows, a_along), view(&b, columns, b_along));
                let Tiling::Matrix(tile) = way.tiling else { unreachable!("a tile of units") };
                let form = Narrowing { planes, scaled: false };
                let in_place = planes.own_type().map(|_| InPlace::Along { k: true });
                assert_eq!(form.takes(&a, tile.rows, depth), in_place.filter(|_| a_along));
                assert_eq!(form.takes(&b, tile.columns, depth), in_place.filter(|_| b_along));
                let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                let got = bytes(engine, &out);
                let expected = first.entry(tile.feed == Feed::Few).or_insert_with(|| got.clone());
                assert!(*expected == got, "{planes:?} {a_along} {b_along} {way:?}");
            }
        }
        common::assert_valid(engine);
    }
}

/// Windows of images, rows that fill no tile and contracted elements that fill no step have the bits of copies.
#[test]
fn own_numbers_found_by_their_axes_have_the_bits_of_copies() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.is_own()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        // Groups, images, sides and channels; filters and the side and step of windows.
        for ([groups, images, side, channels], [filters, window, step]) in [
            ([1, 2, 13, 64], [64, 3, 1]),
            ([2, 3, 9, 24], [40, 3, 2]),
            ([1, 1, 17, 8], [130, 5, 1]),
            ([1, 5, 7, 16], [8, 1, 2]),
        ] {
            let count = (side - window) / step + 1;
            let (rows, depth) = (images * count * count, window * window * channels);
            let mut random = Random(21);
            let mut values = |n: u64| (0..n).map(|_| random.normal()).collect::<Vec<f64>>();
            let image = values(groups * images * side * side * channels);
            let kernel = values(groups * filters * depth);
            let upload = |shape: [u64; 3], values: &[f64]| Given::new(engine, dtype, shape, true, values);
            let [channel, pixel, line, image_, group] =
                [1, channels, side * channels, side * side * channels, images * side * side * channels]
                    .map(|n| n as i64);
            let step_ = step as i64;
            let windows = Matrix {
                tensor: upload([groups, images * side * side, channels], &image).tensor,
                batch: MergedAxes::new(&[groups], &[group]),
                free: MergedAxes::new(&[images, count, count], &[image_, step_ * line, step_ * pixel]),
                depth: MergedAxes::new(&[window, window, channels], &[line, pixel, channel]),
            };
            let copied: Vec<f64> = (0..groups * rows * depth)
                .map(|at| {
                    let (group, row, k) = (at / depth / rows, at / depth % rows, at % depth);
                    let [n, y, x] = [row / count / count, row / count % count, row % count];
                    let [dy, dx, c] = [k / channels / window, k / channels % window, k % channels];
                    let [y, x] = [y * step + dy, x * step + dx];
                    image[((((group * images + n) * side + y) * side + x) * channels + c) as usize]
                })
                .collect();
            let copy = upload([groups, rows, depth], &copied);
            let filters_ = upload([groups, filters, depth], &kernel);
            let across: Vec<f64> = (0..groups * filters * depth)
                .map(|at| {
                    let (group, k, filter) = (at / filters / depth, at / filters % depth, at % filters);
                    kernel[((group * filters + filter) * depth + k) as usize]
                })
                .collect();
            let across = Given::new(engine, dtype, [groups, filters, depth], false, &across);
            let form = Narrowing { planes, scaled: false };
            // f32 is not what is multiplied.
            let takes = planes.own_type().map(|_| InPlace::ByAxes);
            assert_eq!(form.takes(&windows, 64, depth), takes);
            for way in ways(planes, depth) {
                let run = |a: Matrix, b: Matrix| {
                    let shape = [groups, a.free.elements(), b.free.elements()];
                    let poison = vec![0xff; (shape.iter().product::<u64>() * dtype.size_bytes()) as usize];
                    let out = Tensor::from_nx_bytes(engine, &Type::new(dtype, &shape), &poison).unwrap();
                    let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                    product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                    bytes(engine, &out)
                };
                let view = || windows.clone();
                let what = format!("{dtype} {images} x {side} x {channels}, {way:?}");
                let expected = run(copy.matrix(), across.matrix());
                assert!(run(view(), across.matrix()) == expected, "{what}");
                assert!(run(view(), filters_.matrix()) == expected, "{what}, both by axes");
                let expected = run(across.matrix(), copy.matrix());
                assert!(run(across.matrix(), view()) == expected, "{what}, as columns");
                assert!(run(filters_.matrix(), view()) == expected, "{what}, as columns, both by axes");
            }
        }
        common::assert_valid(engine);
    }
}

/// More windows than units take at once are convolved in parts, with the bits of the images alone.
#[test]
fn convolutions_beyond_what_units_take_at_once_go_in_parts() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.own_type().is_some()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        let [images, side, channels] = [320, 56, 64];
        assert!(images * side * side * 9 * channels * 2 > engine.model().programs.joins.unit_bytes);
        let conv = common::conv_3x3([[0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2]]);
        let mut random = Random(31);
        let mut upload = |shape: &[u64]| {
            let count = shape.iter().product::<u64>();
            let bits = (0..count).map(|_| match dtype {
                DType::Bf16 => bf16::from_f64(random.normal()).to_bits(),
                _ => f16::from_f64(random.normal()).to_bits(),
            });
            let bytes: Vec<u8> = bits.flat_map(u16::to_ne_bytes).collect();
            Tensor::from_nx_bytes(engine, &Type::new(dtype, shape), &bytes).unwrap()
        };
        let (x, kernel) = (upload(&[images, side, side, channels]), upload(&[3, 3, channels, channels]));
        let run = |x: Tensor| {
            let out = Type::new(dtype, &[x.view().shape[0], side, side, channels]);
            let op = Op::Conv(Box::new(conv.clone()));
            let result = eager::run(engine, &op, &[x, kernel.clone()], &out, Compile::Allowed).unwrap();
            bytes(engine, &result)
        };
        let image_bytes = (side * side * channels * 2) as usize;
        let all = run(x.clone());
        for first in [0, 150, images - 40] {
            let view = x.view().slice(&[first, 0, 0, 0], &[40, side, side, channels], &[1; 4]).unwrap();
            let alone = run(Tensor::new(x.buffer().clone(), view).unwrap());
            assert!(all[first as usize * image_bytes..][..alone.len()] == alone, "{dtype}, images from {first} on");
        }
        common::assert_valid(engine);
    }
}

/// Units know infinities, NaN and denormal numbers.
#[test]
fn special_own_numbers_keep_their_meaning() {
    for planes in planes_of_units().into_iter().filter(|planes| planes.own_type().is_some()) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        let [rows, depth, columns] = [70, 140, 80];
        let least = if dtype == DType::F16 { 2f64.powi(-24) } else { 2f64.powi(-133) };
        let large = if dtype == DType::F16 { 60000.0 } else { 2f64.powi(120) };
        let cases: [(&str, Change); 6] = [
            ("an infinity", Box::new(|at, x| if at == 3000 { f64::INFINITY } else { x })),
            ("a NaN", Box::new(|at, x| if at == 3000 { -f64::NAN } else { x })),
            ("both infinities", Box::new(|at, x| if at % 70 == 3 { f64::INFINITY * x } else { x })),
            ("denormal numbers", Box::new(move |_, x| (x * 4.0).round() * least)),
            ("large ones", Box::new(move |_, x| if x > 0.0 { large } else { -large })),
            ("zeros", Box::new(|_, _| 0.0)),
        ];
        for (name, change) in &cases {
            let mut random = Random(9);
            let mut values = |n: u64| (0..n * depth).map(|_| random.normal()).collect::<Vec<f64>>();
            let first = values(rows).into_iter().enumerate().map(|(at, x)| change(at, x)).collect::<Vec<f64>>();
            let a = Given::new(engine, dtype, [1, rows, depth], true, &first);
            let b = Given::new(engine, dtype, [1, columns, depth], false, &values(columns));
            // As they are, and through an epilogue.
            for out_dtype in [dtype, DType::F32] {
                let out = Tensor::uninitialized(engine, &Type::new(out_dtype, &[1, rows, columns])).unwrap();
                let steps = [Step { op: Elementwise::AsType, args: smallvec![Ref::Input(0)], out: DType::F32 }];
                for way in ways(planes, depth) {
                    let epilogue = Epilogue { dtype, inputs: &[], steps: &steps, result: Ref::Result(0) };
                    let epilogue = (out_dtype != dtype).then_some(epilogue);
                    let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue };
                    product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                    let got = decode(out_dtype, &bytes(engine, &out));
                    // Eight teams' sums are added up as f32, of which devices may take denormals for zeros.
                    let is_by_teams = matches!(way.tiling, Tiling::Matrix(tile) if tile.feed == Feed::Few);
                    let flushed = if is_by_teams { 8.0 * 2f64.powi(-126) } else { 0.0 };
                    for (at, sum, size) in some_sums(&a, &b) {
                        let rounded = match dtype {
                            DType::F16 => f16::from_f64(sum).to_f64(),
                            _ => bf16::from_f64(sum).to_f64(),
                        };
                        let limit = size * 2f64.powi(-16) + sum.abs() * 2f64.powi(-8) + least + flushed;
                        let same = if rounded.is_finite() {
                            (got[at] - sum).abs() <= limit
                        } else {
                            got[at] == rounded || (got[at].is_nan() && rounded.is_nan())
                        };
                        assert!(same, "{name} of {dtype}, {way:?} at {at}: {}, not {sum}", got[at]);
                    }
                }
            }
        }
        common::assert_valid(engine);
    }
}
