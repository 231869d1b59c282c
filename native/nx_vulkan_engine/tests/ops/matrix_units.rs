//! Products on matrix units, and how operands become f16 numbers for them. Devices without such units run the latter
//! alone.

use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use nx_vulkan_engine::kernels::dot::Planes::{self, OneF16, OwnBf16, OwnF16, OwnThreeBf16, ThreeBf16, TwoF16};
use nx_vulkan_engine::kernels::dot::{
    Choice, Epilogue, Matrix, MatrixTile, MergedAxes, Narrowing, Product, Tiling, choose, plain, prepare, product_as,
};
use nx_vulkan_engine::kernels::map::Operand;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::{CType, Compile, DType, Engine, Options, Precision, Tensor, Type, View};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use crate::common;

mod borders;
mod few;
mod fragments;
mod own_numbers;
mod planes;

/// The engine that makes such numbers of an f32.
fn engine(planes: Planes) -> &'static Arc<Engine> {
    static HIGH: OnceLock<Arc<Engine>> = OnceLock::new();
    static HIGHEST: OnceLock<Arc<Engine>> = OnceLock::new();
    let (engine, precision) = match planes {
        OneF16 | TwoF16 => (&HIGH, Precision::High),
        OwnF16 | OwnBf16 | ThreeBf16 | OwnThreeBf16 => (&HIGHEST, Precision::Highest),
    };
    engine.get_or_init(|| Engine::open_with(&Options { precision, ..common::options() }).unwrap())
}

/// For outlines: whether units take numbers as they are makes no difference to plain kernels.
const OWN: [bool; 2] = [true; 2];

/// Those that the device's matrix units can take; says so where it has none.
fn planes_of_units() -> Vec<Planes> {
    let caps = engine(TwoF16).caps();
    if !caps.cooperative_matrix {
        eprintln!("no matrix units: {}", engine(TwoF16).info());
    }
    let own = |dtype| engine(OwnF16).takes_own_numbers(dtype, Compile::Allowed).unwrap();
    let has = |planes: &Planes| match planes {
        OwnF16 => own(DType::F16)[0],
        OwnBf16 | OwnThreeBf16 => own(DType::Bf16)[1],
        ThreeBf16 => caps.bfloat16_matrix,
        OneF16 | TwoF16 => caps.cooperative_matrix,
    };
    Planes::ALL.into_iter().filter(has).collect()
}

/// Those of three numbers for an element that the device's units can take.
fn three_parts() -> Vec<Planes> {
    planes_of_units().into_iter().filter(|planes| planes.count() == 3).collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 11
    }

    fn uniform(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }

    /// About normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let one = |&x: &f64| match dtype {
        DType::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
        _ => (x as f32).to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F16 => bytes.chunks(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::Bf16 => bytes.chunks(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
        _ => bytes.chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
    }
}

/// Matrices with a contiguous axis of their own: `[batch][free][depth]`, or `[batch][depth][free]`.
struct Given {
    values: Vec<f64>,
    tensor: Tensor,
    sizes: [u64; 3],
    along_k: bool,
}

impl Given {
    fn new(engine: &'static Arc<Engine>, dtype: DType, sizes: [u64; 3], along_k: bool, values: &[f64]) -> Given {
        let bytes = encode(dtype, values);
        let shape = if along_k { sizes } else { [sizes[0], sizes[2], sizes[1]] };
        let tensor = Tensor::from_nx_bytes(engine, &Type::new(dtype, &shape), &bytes).unwrap();
        Given { values: decode(dtype, &bytes), tensor, sizes, along_k }
    }

    fn random(engine: &'static Arc<Engine>, dtype: DType, sizes: [u64; 3], along_k: bool, seed: u64) -> Given {
        let mut random = Random(seed);
        let values: Vec<f64> = (0..sizes.iter().product()).map(|_| random.normal()).collect();
        Given::new(engine, dtype, sizes, along_k, &values)
    }

    fn strides(&self) -> [i64; 3] {
        let [_, free, depth] = self.sizes.map(|n| n as i64);
        if self.along_k { [free * depth, depth, 1] } else { [free * depth, 1, free] }
    }

    fn at(&self, batch: u64, free: u64, k: u64) -> f64 {
        let at = self.strides().iter().zip([batch, free, k]).map(|(s, i)| s * i as i64).sum::<i64>();
        self.values[at as usize]
    }

    fn matrix(&self) -> Matrix {
        let ([b, f, k], strides) = (self.sizes, self.strides());
        let group = |n: u64, stride: i64| MergedAxes::new(&[n], &[stride]);
        Matrix {
            tensor: self.tensor.clone(),
            batch: group(b, strides[0]),
            free: group(f, strides[1]),
            depth: group(k, strides[2]),
        }
    }
}

#[test]
fn operands_become_f16_numbers() {
    let forms = [
        (DType::F32, Narrowing { planes: TwoF16, scaled: true }),
        (DType::F16, Narrowing { planes: TwoF16, scaled: true }),
        (DType::Bf16, Narrowing { planes: OneF16, scaled: true }),
        (DType::F16, Narrowing { planes: OneF16, scaled: false }),
        (DType::F16, Narrowing { planes: OwnF16, scaled: false }),
        (DType::Bf16, Narrowing { planes: OwnBf16, scaled: false }),
    ];
    for (dtype, form) in forms {
        for sizes in [[1, 1, 1], [1, 128, 128], [2, 67, 129], [3, 130, 260], [1, 8, 1000]] {
            for along_k in [true, false] {
                let given = Given::random(engine(TwoF16), dtype, sizes, along_k, sizes[2]);
                let [prepared] = prepare(engine(TwoF16), &[(&given.matrix(), 64)], form, u64::MAX, Compile::Allowed)
                    .unwrap()
                    .into_vec()
                    .try_into()
                    .unwrap();
                if form.takes(&given.matrix(), 64, u64::MAX).is_some() {
                    continue;
                }
                let what = format!("{dtype} {form:?} {sizes:?} {along_k}");
                let halves: Vec<f64> = {
                    let bytes = prepared.numbers.to_nx_bytes(engine(TwoF16), None).unwrap();
                    decode(if form.planes.is_bf16() { DType::Bf16 } else { DType::F16 }, &bytes)
                };
                if let Some(word) = &prepared.largest {
                    assert_eq!(bytes(engine(TwoF16), word), [0; 4], "{what}");
                }
                let scales = prepared.scales.map(|scales| decode(DType::F32, &bytes(engine(TwoF16), &scales)));
                let [batches, rows, depth] = sizes;
                let (block, planes) = (form.planes.block(), u64::from(form.planes.count()));
                let together = form.planes.rows_together();
                assert_eq!(prepared.steps[0] * 8, together * planes * depth.next_multiple_of(block), "{what}");
                for row in 0..batches * rows {
                    let scale = scales.as_ref().map_or(1.0, |s| s[row as usize]);
                    assert_eq!(scale.log2().fract(), 0.0, "{what}");
                    for k in 0..depth.next_multiple_of(block) {
                        let at = if form.planes.is_own() {
                            let (batch, m, slice) = (row / rows * prepared.steps[5], row % rows, k / 32 * 64);
                            let eighth = m / 16 * prepared.steps[0] + slice + m % 16 * 4 + k % 32 / 8;
                            (batch + eighth) * 8 + k % 8
                        } else {
                            row * prepared.steps[0] * 8 + k / block * block * planes + k % block
                        };
                        let low = if form.planes == TwoF16 { halves[(at + block) as usize] / 2048.0 } else { 0.0 };
                        let got = (halves[at as usize] + low) * scale;
                        let expected = if k < depth { given.at(row / rows, row % rows, k) } else { 0.0 };
                        let least = if form.planes == TwoF16 { expected.abs() * 2f64.powi(-21) } else { 0.0 };
                        assert!((got - expected).abs() <= least, "{what}: row {row}, {k}: {got}, not {expected}");
                    }
                }
            }
        }
    }
    common::assert_valid(engine(TwoF16));
}

/// What becomes of an element, by its place.
type Change = Box<dyn Fn(usize, f64) -> f64>;

#[test]
fn lost_digits_are_noticed() {
    let wide = |x: f64| move |i: usize, value: f64| if i == 77 { x } else { value };
    let cases: [(&str, bool, Change); 8] = [
        ("normal", false, Box::new(|_, x| x)),
        ("zeros", false, Box::new(|_, _| 0.0)),
        ("an infinity", true, Box::new(wide(f64::INFINITY))),
        ("a NaN", true, Box::new(wide(f64::NAN))),
        ("a large row", true, Box::new(wide(2f64.powi(90)))),
        ("small rows", true, Box::new(|_, x| x * 2f64.powi(-90))),
        ("a small element", true, Box::new(wide(1.2345e-12))),
        ("scaled", false, Box::new(|_, x| x * 2f64.powi(40))),
    ];
    for planes in [OneF16, TwoF16] {
        let dtype = if planes == OneF16 { DType::Bf16 } else { DType::F32 };
        for (name, lost, change) in &cases {
            for along_k in [true, false] {
                let mut random = Random(5);
                let values: Vec<f64> = (0..65 * 131).map(|i| change(i, random.normal() + 8.0)).collect();
                let given = Given::new(engine(TwoF16), dtype, [1, 65, 131], along_k, &values);
                let form = Narrowing { planes, scaled: true };
                let [prepared] = prepare(engine(TwoF16), &[(&given.matrix(), 64)], form, u64::MAX, Compile::Allowed)
                    .unwrap()
                    .into_vec()
                    .try_into()
                    .unwrap();
                let noticed = bytes(engine(TwoF16), &prepared.largest.unwrap()) != [0; 4];
                assert_eq!(noticed, *lost, "{name}, {planes:?}, {along_k}");
            }
        }
    }
}

/// Every way to compute a product on matrix units.
fn ways(planes: Planes, depth: u64) -> Vec<Choice> {
    let splits = [1, 3].into_iter().filter(|splits| depth >= 128 * splits);
    let few = [(16, false), (8, true)].into_iter().flat_map(move |(n, first)| MatrixTile::of_few(planes, n, first));
    let tiles = MatrixTile::all(planes).chain(few);
    splits.flat_map(|splits| tiles.clone().map(move |tile| Choice { tiling: Tiling::Matrix(tile), splits })).collect()
}

fn bytes(engine: &Engine, t: &Tensor) -> Vec<u8> {
    t.to_nx_bytes(engine, None).unwrap()
}

const SHAPES: [[u64; 4]; 8] = [
    [1, 128, 128, 128],
    [1, 131, 333, 77],
    [3, 64, 168, 72],
    [1, 264, 1000, 136],
    [2, 5, 500, 9],
    [1, 1, 128, 2],
    [2, 192, 320, 256],
    [3, 128, 192, 130],
];

/// The types whose elements become such numbers.
fn dtypes(planes: Planes) -> &'static [DType] {
    match planes {
        OwnF16 => &[DType::F16],
        OwnBf16 => &[DType::Bf16],
        OneF16 => &[DType::F16, DType::Bf16],
        TwoF16 | ThreeBf16 | OwnThreeBf16 => &[DType::F32],
    }
}

#[test]
fn products_are_exact() {
    for (planes, &dtype) in planes_of_units().into_iter().flat_map(|n| dtypes(n).iter().map(move |dtype| (n, dtype))) {
        let engine = engine(planes);
        for (seed, [batches, rows, depth, columns]) in SHAPES.into_iter().enumerate() {
            let layouts = if depth > 333 { 2..3 } else { 0..4 };
            for layout in layouts {
                let a = Given::random(engine, dtype, [batches, rows, depth], layout & 1 == 0, seed as u64 + 1);
                let b = Given::random(engine, dtype, [batches, columns, depth], layout & 2 == 0, seed as u64 + 2);
                let ty = Type::new(dtype, &[batches, rows, columns]);
                let out = Tensor::uninitialized(engine, &ty).unwrap();
                let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
                let expected = some_sums(&a, &b);
                for way in ways(planes, depth) {
                    product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                    let got = decode(dtype, &bytes(engine, &out));
                    let ulp = match dtype {
                        DType::F16 => 2f64.powi(-11),
                        DType::Bf16 => 2f64.powi(-8),
                        _ => 0.0,
                    };
                    // Sums of a few hundred numbers; those of f16 are never taken out of the units.
                    let units = match planes {
                        OwnF16 | OwnBf16 | OneF16 => 256.0,
                        TwoF16 => 4.0,
                        ThreeBf16 | OwnThreeBf16 => 2.0,
                    };
                    for &(at, sum, size) in &expected {
                        let limit = units * size * 2f64.powi(-24) + sum.abs() * ulp;
                        assert!(
                            (got[at] - sum).abs() <= limit,
                            "{dtype} {batches}x{rows}x{depth}x{columns} {layout} {way:?} at {at}: {}, not {sum}",
                            got[at]
                        );
                    }
                }
            }
        }
        common::assert_valid(engine);
    }
}

/// Rows and contracted elements of several axes each, as convolutions have them, which read elements more than once.
#[test]
fn windows_are_multiplied() {
    let [width, height, rows, columns, depth] = [40, 20, 10 * 13, 72, 8 * 24];
    for (planes, &dtype) in planes_of_units().into_iter().flat_map(|n| dtypes(n).iter().map(move |dtype| (n, dtype))) {
        let engine = engine(planes);
        let image = Given::random(engine, dtype, [2, height, width], true, 7);
        let b = Given::random(engine, dtype, [2, columns, depth], true, 8);
        let out = Tensor::uninitialized(engine, &Type::new(dtype, &[2, rows, columns])).unwrap();
        let windows = || Matrix {
            tensor: image.tensor.clone(),
            batch: MergedAxes::new(&[2], &[(height * width) as i64]),
            free: MergedAxes::new(&[10, 13], &[width as i64, 1]),
            depth: MergedAxes::new(&[8, 24], &[width as i64, 1]),
        };
        for turned in [false, true] {
            let (a, other) = if turned { (b.matrix(), windows()) } else { (windows(), b.matrix()) };
            let p = Product { a, b: other, out: &out, prologues: [None, None], epilogue: None };
            for way in ways(planes, depth) {
                product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                let got = decode(dtype, &bytes(engine, &out));
                for (batch, row, column) in
                    (0..2).flat_map(|i| (0..rows * columns).map(move |at| (i, at / columns, at % columns)))
                {
                    let terms = (0..depth).map(|k| {
                        let x = image.at(batch, row / 13 + k / 24, row % 13 + k % 24);
                        x * b.at(batch, column, k)
                    });
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), x| (sum + x, size + x.abs()));
                    let at = if turned { column * rows + row } else { row * columns + column } + batch * rows * columns;
                    let limit = match dtype {
                        DType::F32 => size * 2f64.powi(-22),
                        _ => size * 2f64.powi(-16) + sum.abs() * 2f64.powi(-8),
                    };
                    assert!(
                        (got[at as usize] - sum).abs() <= limit,
                        "{dtype} {way:?} {turned} at {at}: {}, not {sum}",
                        got[at as usize]
                    );
                }
            }
        }
        common::assert_valid(engine);
    }
}

/// Three numbers hold all that f32 does: where sums need no rounding, there is none.
#[test]
fn exact_sums_of_f32_are_exact() {
    three_parts().into_iter().for_each(exact_sums_of_f32_are_exact_by);
}

fn exact_sums_of_f32_are_exact_by(planes: Planes) {
    let (engine, [rows, depth, columns]) = (engine(planes), [130, 300, 150]);
    let mut random = Random(4);
    let any: Vec<f64> = (0..columns * depth).map(|_| random.normal() * 2f64.powi(random.next() as i32 % 60)).collect();
    let few: Vec<f64> = (0..columns * depth).map(|_| (random.next() % 127) as f64 - 63.0).collect();
    let large: Vec<f64> = (0..rows * depth).map(|_| (random.next() % 511) as f64 - 255.0).collect();
    let chosen: Vec<f64> =
        (0..rows * depth).map(|i| if i % depth == i / depth * 7 % depth { -4.0 } else { 0.0 }).collect();
    for (a, b) in [(&large, &few), (&chosen, &any)] {
        let a = Given::new(engine, DType::F32, [1, rows, depth], true, a);
        let b = Given::new(engine, DType::F32, [1, columns, depth], false, b);
        let out = Tensor::uninitialized(engine, &Type::new(DType::F32, &[1, rows, columns])).unwrap();
        let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
        for way in ways(planes, depth) {
            product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
            let got = decode(DType::F32, &bytes(engine, &out));
            for (at, sum, _) in some_sums(&a, &b) {
                assert_eq!(got[at], sum, "{way:?} at {at}");
            }
        }
    }
}

/// Units cut off, but sums are taken out of them so often that those of many numbers of one sign stay nearer than added
/// up one after the other.
#[test]
fn long_sums_are_as_exact_as_those_of_f32() {
    for (planes, depth) in three_parts().into_iter().flat_map(|planes| [1024, 8192].map(|depth| (planes, depth))) {
        let (engine, [rows, columns]) = (engine(planes), [70, 64]);
        let mut random = Random(6);
        let mut given = |rows: u64| {
            let values: Vec<f64> = (0..rows * depth).map(|_| random.uniform()).collect();
            Given::new(engine, DType::F32, [1, rows, depth], true, &values)
        };
        let (a, b) = (given(rows), given(columns));
        let out = Tensor::uninitialized(engine, &Type::new(DType::F32, &[1, rows, columns])).unwrap();
        let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
        let expected = some_sums(&a, &b);
        let mean = |of: &dyn Fn(u64) -> f64| {
            let errors = expected.iter().map(|&(at, sum, size)| (of(at as u64) - sum).abs() / size * 2f64.powi(24));
            errors.sum::<f64>() / expected.len() as f64
        };
        let in_turn = mean(&|at| {
            let factor = |given: &Given, row: u64, k: u64| given.at(0, row, k) as f32;
            let terms = (0..depth).map(|k| (factor(&a, at / columns, k), factor(&b, at % columns, k)));
            terms.fold(0f32, |sum, (x, y)| x.mul_add(y, sum)).into()
        });
        for tile in MatrixTile::all(planes) {
            let way = Choice { tiling: Tiling::Matrix(tile), splits: 1 };
            product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
            let got = decode(DType::F32, &bytes(engine, &out));
            let error = mean(&|at| got[at as usize]);
            // Planes of an image are added up 32 channels at a time, in more and shorter sums.
            let most = if planes == OwnThreeBf16 { 4.5 } else { 4.0 };
            assert!(error < most && error < in_turn, "{tile:?}, {depth}: {error}, {in_turn} one after the other");
        }
    }
}

/// What leaves f32's range on its way to the units, or is no number, means what it does to f32.
#[test]
fn special_elements_keep_their_meaning() {
    three_parts().into_iter().for_each(special_elements_keep_their_meaning_by);
}

fn special_elements_keep_their_meaning_by(planes: Planes) {
    let (engine, [rows, depth, columns]) = (engine(planes), [70, 140, 80]);
    let specials = [
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        3e38,
        -3.4e38,
        2f64.powi(112),
        2f64.powi(80),
        1e-20,
        2f64.powi(-120),
    ];
    for x in specials {
        for (which, other) in [(0, 1.0), (1, 0.0), (0, 2f64.powi(100)), (1, 2f64.powi(-100))] {
            let mut random = Random(9);
            let mut values: Vec<Vec<f64>> =
                [rows, columns].iter().map(|n| (0..n * depth).map(|_| random.normal()).collect()).collect();
            values[which][3000] = x;
            // What the first rows have in its place.
            for row in 0..40 {
                values[1 - which][(row * depth + 3000 % depth) as usize] *= other;
            }
            let a = Given::new(engine, DType::F32, [1, rows, depth], true, &values[0]);
            let b = Given::new(engine, DType::F32, [1, columns, depth], true, &values[1]);
            let ty = Type::new(DType::F32, &[1, rows, columns]);
            let [out, expected] = [(); 2].map(|()| Tensor::uninitialized(engine, &ty).unwrap());
            let p = |out| Product { a: a.matrix(), b: b.matrix(), out, prologues: [None, None], epilogue: None };
            let plain = plain(engine.model(), &p(&expected).outline(engine.precision(), OWN), CType::F32, Some(1));
            product_as(engine, &p(&expected), CType::F32, plain, Compile::Allowed).unwrap();
            let expected = decode(DType::F32, &bytes(engine, &expected));
            let size = |at: u64| -> f64 {
                (0..depth).map(|k| (a.at(0, at / columns, k) * b.at(0, at % columns, k)).abs()).sum()
            };
            let sizes: Vec<f64> = (0..rows * columns).map(size).collect();
            for way in ways(planes, depth) {
                product_as(engine, &p(&out), CType::F32, way, Compile::Allowed).unwrap();
                let got = decode(DType::F32, &bytes(engine, &out));
                for (at, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
                    let same = if expected.is_finite() {
                        (got - expected).abs() <= 2e-6 * sizes[at]
                    } else {
                        got == expected || (got.is_nan() && expected.is_nan())
                    };
                    assert!(same, "{x:e} in {which} with {other:e}, {way:?} at {at}: {got}, not {expected}");
                }
            }
        }
    }
    common::assert_valid(engine);
}

/// Some results of a product: where they are, what they are, and the sum of the terms' absolute values.
fn some_sums(a: &Given, b: &Given) -> Vec<(usize, f64, f64)> {
    let [batches, rows, depth] = a.sizes;
    let columns = b.sizes[1];
    let places = (0..batches * rows * columns)
        .filter(|at| (at % columns + at / columns).is_multiple_of(7) || at % columns >= 64);
    let places = places.filter(|at| at.is_multiple_of(3) || (at / columns) % rows >= rows - 2);
    places
        .map(|at| {
            let (row, n) = (at / columns, at % columns);
            let terms = (0..depth).map(|k| a.at(row / rows, row % rows, k) * b.at(row / rows, n, k));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            (at as usize, sum, size)
        })
        .collect()
}

/// What the units can't take has the bits of a kernel without them.
#[test]
fn what_units_cannot_take_is_left_to_other_kernels() {
    let one = |x: f64| move |at: usize, value: f64| if at == 3000 { x } else { value };
    let cases: [(&str, &[Planes], Change); 10] = [
        ("an infinity", &[OneF16, TwoF16, ThreeBf16], Box::new(one(f64::INFINITY))),
        ("a NaN", &[OneF16, TwoF16, ThreeBf16], Box::new(one(-f64::NAN))),
        ("2^80", &[OneF16, TwoF16], Box::new(one(2f64.powi(80)))),
        ("1e-20", &[OneF16, TwoF16], Box::new(one(1.234e-20))),
        ("2^111", &[ThreeBf16], Box::new(one(2f64.powi(111)))),
        ("the largest", &[ThreeBf16], Box::new(one(-3.4028e38))),
        ("all infinite", &[OneF16, TwoF16, ThreeBf16], Box::new(|_, x| x * f64::INFINITY)),
        (
            "the last one",
            &[OneF16, TwoF16, ThreeBf16],
            Box::new(|at, x| if at == 260 * 140 - 1 { f64::NAN } else { x }),
        ),
        ("products that overflow", &[ThreeBf16], Box::new(|_, x| x * 2f64.powi(90))),
        (
            "some of each",
            &[ThreeBf16],
            Box::new(|at, x| if at % 50 == 0 { f64::INFINITY * x } else { x * 2f64.powi(70) }),
        ),
    ];
    for (planes, &dtype) in planes_of_units().into_iter().flat_map(|n| dtypes(n).iter().map(move |dtype| (n, dtype))) {
        if dtype == DType::F16 {
            continue;
        }
        let (engine, [rows, depth, columns]) = (engine(planes), [150, 260, 140]);
        let kind = if planes == OwnThreeBf16 { ThreeBf16 } else { planes };
        for (name, _, change) in cases.iter().filter(|(_, given, _)| given.contains(&kind)) {
            for (changed, along_k) in [([true, false], true), ([false, true], false), ([true, true], true)] {
                let mut random = Random(9);
                let [a, b] = [(rows, 0), (columns, 1)].map(|(n, which): (u64, usize)| {
                    let changed = |(at, x): (usize, f64)| if changed[which] { change(at, x) } else { x };
                    let values: Vec<f64> = (0..n * depth).map(|_| random.normal()).enumerate().map(changed).collect();
                    Given::new(engine, dtype, [1, n, depth], along_k == (which == 0), &values)
                });
                let ty = Type::new(dtype, &[1, rows, columns]);
                let [out, expected] = [(); 2].map(|()| Tensor::uninitialized(engine, &ty).unwrap());
                let p = |out| Product { a: a.matrix(), b: b.matrix(), out, prologues: [None, None], epilogue: None };
                for way in ways(planes, depth) {
                    product_as(engine, &p(&out), CType::F32, way, Compile::Allowed).unwrap();
                    let outline = p(&expected).outline(engine.precision(), OWN);
                    let plain = plain(engine.model(), &outline, CType::F32, Some(way.splits));
                    product_as(engine, &p(&expected), CType::F32, plain, Compile::Allowed).unwrap();
                    let same = bytes(engine, &out) == bytes(engine, &expected);
                    assert!(same, "{name} in {changed:?} of {dtype}, {along_k}, {way:?}");
                }
            }
        }
        common::assert_valid(engine);
    }
}

/// Units multiply numbers that are 2^16 times as large: sums may leave the range there, though none does in f32.
#[test]
fn sums_beyond_the_range_of_units_are_right() {
    three_parts().into_iter().for_each(sums_beyond_the_range_of_units_are_right_by);
}

fn sums_beyond_the_range_of_units_are_right_by(planes: Planes) {
    let (engine, [rows, depth, columns]) = (engine(planes), [70, 260, 80]);
    let mut random = Random(3);
    let mut given = |n: u64, exponent: i32| {
        let values: Vec<f64> = (0..n * depth).map(|_| (1.0 + random.uniform()) * 2f64.powi(exponent)).collect();
        Given::new(engine, DType::F32, [1, n, depth], true, &values)
    };
    let (a, b) = (given(rows, 44), given(columns, 47));
    let out = Tensor::uninitialized(engine, &Type::new(DType::F32, &[1, rows, columns])).unwrap();
    let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
    for way in ways(planes, depth) {
        product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
        let got = decode(DType::F32, &bytes(engine, &out));
        for (at, sum, size) in some_sums(&a, &b) {
            assert!(sum > 2f64.powi(96));
            assert!((got[at] - sum).abs() <= 2e-6 * size, "{way:?} at {at}: {}, not {sum}", got[at]);
        }
    }
    common::assert_valid(engine);
}

#[test]
fn transposed_products_have_the_same_bits() {
    for planes in planes_of_units().into_iter().filter(|&planes| planes != OneF16) {
        let (engine, dtype) = (engine(planes), dtypes(planes)[0]);
        for [rows, depth, columns] in [[256, 512, 250], [136, 300, 200]] {
            for layout in 0..4 {
                let a = Given::random(engine, dtype, [1, rows, depth], layout & 1 == 0, 1);
                let b = Given::random(engine, dtype, [1, columns, depth], layout & 2 == 0, 2);
                let out = Tensor::uninitialized(engine, &Type::new(dtype, &[1, rows, columns])).unwrap();
                let turned = Tensor::uninitialized(engine, &Type::new(dtype, &[1, columns, rows])).unwrap();
                for way in ways(planes, depth) {
                    let p = |a: &Given, b: &Given, out| {
                        let p = Product { a: a.matrix(), b: b.matrix(), out, prologues: [None, None], epilogue: None };
                        product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                    };
                    p(&a, &b, &out);
                    p(&b, &a, &turned);
                    let [one, other] = [&out, &turned].map(|t| decode(dtype, &bytes(engine, t)));
                    let same = (0..rows * columns).all(|i| {
                        let (m, n) = (i / columns, i % columns);
                        one[i as usize] == other[(n * rows + m) as usize]
                    });
                    assert!(same, "{rows} x {depth} x {columns}, {layout}, {way:?}");
                }
            }
        }
    }
}

/// Steps behind a product, results in other layouts, and partial sums give what they give without units, but for
/// rounding. Operands that are made of fewer parts than three give what their numbers give as f32.
#[test]
fn fewer_parts_have_the_same_bits() {
    if !planes_of_units().contains(&ThreeBf16) {
        return;
    }
    let (engine, sizes) = (engine(ThreeBf16), [[2, 131, 333], [2, 77, 333]]);
    let types = [DType::F32, DType::F16, DType::Bf16];
    for (a, b) in types.iter().flat_map(|&a| types.map(|b| (a, b))).filter(|&pair| pair != (DType::F32, DType::F32)) {
        let narrow = [(a, true), (b, false)];
        let narrow = [0, 1].map(|k| Given::random(engine, narrow[k].0, sizes[k], narrow[k].1, 7 + k as u64));
        let wide = [0, 1].map(|k| Given::new(engine, DType::F32, sizes[k], narrow[k].along_k, &narrow[k].values));
        for way in ways(ThreeBf16, 333) {
            let got = [&narrow, &wide].map(|[a, b]| {
                let out = Tensor::uninitialized(engine, &Type::new(DType::F32, &[2, 131, 77])).unwrap();
                let p = Product { a: a.matrix(), b: b.matrix(), out: &out, prologues: [None, None], epilogue: None };
                product_as(engine, &p, CType::F32, way, Compile::Allowed).unwrap();
                bytes(engine, &out)
            });
            assert_eq!(got[0], got[1], "{a} x {b}, {way:?}");
        }
    }
    common::assert_valid(engine);
}

#[test]
fn epilogues_and_layouts() {
    planes_of_units().into_iter().filter(|planes| dtypes(*planes) == [DType::F32]).for_each(epilogues_and_layouts_of);
}

fn epilogues_and_layouts_of(planes: Planes) {
    let engine = engine(planes);
    let [rows, depth, columns] = [129, 384, 130];
    let a = Given::random(engine, DType::F32, [1, rows, depth], true, 3);
    let b = Given::random(engine, DType::F32, [1, columns, depth], false, 4);
    let bias = Given::random(engine, DType::F32, [1, 1, columns], true, 5);
    let mask = Given::random(engine, DType::F32, [1, rows, columns], true, 6);
    let steps = [
        Step { op: Elementwise::Binary(Binary::Add), args: smallvec![Ref::Input(0), Ref::Input(1)], out: DType::F32 },
        Step { op: Elementwise::Unary(Unary::Tanh), args: smallvec![Ref::Result(0)], out: DType::F32 },
        Step {
            op: Elementwise::Binary(Binary::Multiply),
            args: smallvec![Ref::Result(1), Ref::Input(2)],
            out: DType::F32,
        },
    ];
    for (few, transposed) in [(true, false), (true, true), (false, false), (false, true)] {
        let count = if few { 1 } else { 3 };
        let shape = if transposed { [1, columns, rows] } else { [1, rows, columns] };
        let (n, m) = (columns as i64, rows as i64);
        let view = |t: &Tensor| -> Tensor {
            if !transposed {
                return t.clone();
            }
            let (shape, strides) = (smallvec![1, rows, columns], smallvec![m * n, 1, m]);
            Tensor::new(t.buffer().clone(), View { shape, strides, ..t.view().clone() }).unwrap()
        };
        let whole = Tensor::uninitialized(engine, &Type::new(DType::F32, &shape)).unwrap();
        let expected = Tensor::uninitialized(engine, &Type::new(DType::F32, &shape)).unwrap();
        let bias_view =
            View { strides: smallvec![0, 0, 1], shape: smallvec![1, rows, columns], ..bias.tensor.view().clone() };
        let inputs = [
            Operand::new(bias.tensor.buffer(), &bias_view, Element::Typed(DType::F32)),
            Operand::new(mask.tensor.buffer(), mask.tensor.view(), Element::Typed(DType::F32)),
        ];
        let run = |out: &Tensor, way: Option<Choice>| {
            let out = &view(out);
            let result = Ref::Result(count as u16 - 1);
            let epilogue = Some(Epilogue {
                dtype: DType::F32,
                inputs: &inputs[..if few { 1 } else { 2 }],
                steps: &steps[..count],
                result,
            });
            let p = Product { a: a.matrix(), b: b.matrix(), out, prologues: [None, None], epilogue };
            product_as(
                engine,
                &p,
                CType::F32,
                way.unwrap_or_else(|| plain(engine.model(), &p.outline(engine.precision(), OWN), CType::F32, None)),
                Compile::Allowed,
            )
            .unwrap();
        };
        run(&expected, None);
        let expected = decode(DType::F32, &bytes(engine, &expected));
        for way in ways(planes, depth) {
            run(&whole, Some(way));
            let got = decode(DType::F32, &bytes(engine, &whole));
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
            assert!(got.iter().zip(&expected).all(near), "{few} {transposed} {way:?}");
        }
    }
    common::assert_valid(engine);
}

#[test]
fn large_products_are_given_to_the_units() {
    if planes_of_units().is_empty() {
        return;
    }
    let chosen = |engine: &Engine, dtype: DType, n: u64| {
        let ty = Type::new(dtype, &[1, n, n]);
        let [a, b, out] = [(); 3].map(|()| Tensor::uninitialized(engine, &ty).unwrap());
        let matrix = |tensor: Tensor| Matrix {
            tensor,
            batch: MergedAxes::new(&[1], &[0]),
            free: MergedAxes::new(&[n], &[n as i64]),
            depth: MergedAxes::new(&[n], &[1]),
        };
        let p = Product { a: matrix(a), b: matrix(b), out: &out, prologues: [None, None], epilogue: None };
        matches!(choose(engine.model(), &p.outline(engine.precision(), OWN), CType::F32).tiling, Tiling::Matrix(_))
    };
    assert!([DType::F32, DType::F16, DType::Bf16].iter().all(|&dtype| chosen(engine(TwoF16), dtype, 2048)));
    assert!(!chosen(engine(TwoF16), DType::F32, 64));
    let highest = engine(ThreeBf16);
    assert_eq!(chosen(highest, DType::F32, 2048), highest.caps().bfloat16_matrix);
    assert!(chosen(highest, DType::F16, 2048) && !chosen(highest, DType::F32, 256));
}
