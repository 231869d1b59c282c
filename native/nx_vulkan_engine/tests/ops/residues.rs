//! Products of f64 by residues of whole numbers, on matrix units where the device has them, else with the same kernels
//! around products without these.

use std::sync::Arc;

use nx_vulkan_engine::kernels::dot::{
    Choice, Epilogue, Matrix, MergedAxes, Product, ResidueTile, Residues, Tiling, plain, product_as,
};
use nx_vulkan_engine::kernels::map::Operand;
use nx_vulkan_engine::program::{Binary, Elementwise};
use nx_vulkan_engine::{CType, Compile, DType, DeviceKind, Engine, Tensor, Type};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use crate::common;
use crate::double_double::Double;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 20) % n
    }

    /// About normal.
    fn normal(&mut self) -> f64 {
        (0..6).map(|_| self.next() as f64 / (1u64 << 53) as f64).sum::<f64>() - 3.0
    }

    fn whole(&mut self, bits: u32) -> f64 {
        self.below(1 << bits) as f64 - (1u64 << (bits - 1)) as f64
    }
}

/// How a matrix of `[batch][free][depth]` lies in memory.
#[derive(Debug, Clone, Copy)]
struct Layout {
    along_k: bool,
    /// Elements left out between rows, and before all.
    gap: u64,
    first: u64,
    /// Whether all batches are one.
    repeated: bool,
}

const DENSE: Layout = Layout { along_k: true, gap: 0, first: 0, repeated: false };

#[derive(Debug)]
struct Given {
    values: Vec<f64>,
    sizes: [u64; 3],
    matrix: Matrix,
    layout: Layout,
}

impl Given {
    /// Of values by batch, row and contracted element.
    fn new(engine: &Arc<Engine>, sizes: [u64; 3], layout: Layout, value: &mut dyn FnMut([u64; 3]) -> f64) -> Given {
        let [batches, free, depth] = sizes;
        let (inner, outer) = if layout.along_k { (depth, free) } else { (free, depth) };
        let line = inner + layout.gap;
        let own = if layout.repeated { 1 } else { batches };
        // What lies between must not count.
        let mut memory = vec![f64::NAN; (layout.first + own * outer * line) as usize];
        let mut values = vec![0.0; (own * free * depth) as usize];
        for batch in 0..own {
            for row in 0..free {
                for k in 0..depth {
                    let x = value([batch, row, k]);
                    let (i, o) = if layout.along_k { (k, row) } else { (row, k) };
                    memory[(layout.first + (batch * outer + o) * line + i) as usize] = x;
                    values[((batch * free + row) * depth + k) as usize] = x;
                }
            }
        }
        let bytes: Vec<u8> = memory.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let whole = Tensor::from_nx_bytes(engine, &Type::new(DType::F64, &[memory.len() as u64]), &bytes).unwrap();
        let mut view = whole.view().clone();
        view.offset = layout.first;
        view.shape = smallvec![memory.len() as u64 - layout.first];
        let group = |n: u64, stride: u64| MergedAxes::new(&[n], &[stride as i64]);
        let (of_free, of_depth) = if layout.along_k { (line, 1) } else { (1, line) };
        let matrix = Matrix {
            tensor: Tensor::new(whole.buffer().clone(), view).unwrap(),
            batch: group(batches, if layout.repeated { 0 } else { outer * line }),
            free: group(free, of_free),
            depth: group(depth, of_depth),
        };
        Given { values, sizes, matrix, layout }
    }

    fn row(&self, batch: u64, row: u64) -> &[f64] {
        let [_, free, depth] = self.sizes.map(|n| n as usize);
        let from = ((if self.layout.repeated { 0 } else { batch as usize }) * free + row as usize) * depth;
        &self.values[from..from + depth]
    }
}

/// All ways by residues that the device has.
fn ways(engine: &Engine, depth: u64) -> Vec<Choice> {
    let moduli = Residues::of(depth).unwrap().moduli;
    let has_units = engine.takes_own_numbers(DType::F64, Compile::Allowed).unwrap()[0];
    // All that are known hold bytes as kernels count on.
    assert_eq!(has_units, engine.caps().byte_matrix && engine.model().class.is_nvidia());
    let sides = if has_units { ResidueTile::SIDES.to_vec() } else { vec![ResidueTile::PLAIN] };
    let way = |side| Choice { tiling: Tiling::Residues(ResidueTile { side, moduli }), splits: 1 };
    sides.into_iter().map(way).collect()
}

fn poisoned(engine: &Engine, sizes: [u64; 3]) -> Tensor {
    let poison = vec![0xa5; 8 * sizes.iter().product::<u64>() as usize];
    Tensor::from_nx_bytes(engine, &Type::new(DType::F64, &sizes), &poison).unwrap()
}

/// The product by a way, or by the plain kernel that the model chooses.
fn multiply(engine: &Engine, a: &Given, b: &Given, way: Option<Choice>) -> Vec<f64> {
    let out = poisoned(engine, [a.sizes[0], a.sizes[1], b.sizes[1]]);
    let p = Product { a: a.matrix.clone(), b: b.matrix.clone(), out: &out, prologues: [None, None], epilogue: None };
    let by_plain = || plain(engine.model(), &p.outline(engine.precision(), [false; 2]), CType::F64, Some(1));
    product_as(engine, &p, CType::F64, way.unwrap_or_else(by_plain), Compile::Allowed).unwrap();
    read(engine, &out)
}

fn read(engine: &Engine, tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.to_nx_bytes(engine, None).unwrap();
    bytes.chunks_exact(8).map(|x| f64::from_ne_bytes(x.try_into().unwrap())).collect()
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The sum of products in 106 bits, and that of their sizes.
fn exact(a: &[f64], b: &[f64]) -> (Double, f64) {
    let mut sum = Double::from(0.0);
    for (&x, &y) in a.iter().zip(b) {
        sum = sum + Double::from(x) * Double::from(y);
    }
    (sum, a.iter().zip(b).map(|(x, y)| (x * y).abs()).sum())
}

fn value(x: Double) -> f64 {
    x.0 + x.1
}

/// What guides/numerics.md says, with so much of the sum of the terms' sizes.
fn assert_near(a: &Given, b: &Given, got: &[f64], share: f64, what: &str) {
    let [batches, rows, _] = a.sizes;
    let columns = b.sizes[1];
    for (at, &x) in got.iter().enumerate() {
        let at = at as u64;
        let (batch, row, column) = (at / columns / rows, at / columns % rows, at % columns);
        assert!(batch < batches);
        let (sum, size) = exact(a.row(batch, row), b.row(batch, column));
        let error = value(Double::from(x) - sum).abs();
        let most = value(sum).abs() * 2f64.powi(-53) * 1.000001 + size * share + 5e-324;
        assert!(error <= most, "{what}: {x} at {batch}, {row}, {column} for {}, off by {error:e}", value(sum));
    }
}

#[test]
fn random_products_are_within_their_bounds() {
    let engine = &common::engine();
    let mut random = Random(0x5eed);
    let mut by_residues = 0;
    // CPU devices take a second for each.
    let rounds = if engine.caps().kind == DeviceKind::Cpu { 60 } else { 1000 };
    for round in 0..rounds {
        let most = if round % 10 == 0 { [3, 150, 150, 700] } else { [3, 40, 40, 150] };
        let [batches, rows, columns, depth] = most.map(|n| 1 + random.below(n));
        let mut layout = || Layout {
            along_k: random.below(2) == 0,
            gap: random.below(3),
            first: random.below(3),
            repeated: random.below(4) == 0,
        };
        let layouts = [layout(), layout()];
        // Of rows on scales of their own, and elements of them, too.
        let (scales, spread) = (random.below(200) as i32, random.below(12) as i32);
        let mut of = |sizes: [u64; 3], layout: Layout| {
            let mut last = ([u64::MAX; 2], 0);
            Given::new(engine, sizes, layout, &mut |[batch, row, _]| {
                if last.0 != [batch, row] {
                    last = ([batch, row], random.below(2 * scales as u64 + 1) as i32 - scales);
                }
                random.normal() * 2f64.powi(last.1 - random.below(1 + spread as u64) as i32)
            })
        };
        let (a, b) = (of([batches, rows, depth], layouts[0]), of([batches, columns, depth], layouts[1]));
        for way in ways(engine, depth) {
            let what = format!("round {round}: {:?} by {:?}, {layouts:?} {way:?}", a.sizes, b.sizes);
            let got = multiply(engine, &a, &b, Some(way));
            // Plain kernels round each sum.
            let is_plain = bits(&got) == bits(&multiply(engine, &a, &b, None));
            by_residues += u32::from(!is_plain);
            let share = if is_plain { (1 + depth) as f64 * 2f64.powi(-53) } else { 2f64.powi(-50) };
            assert_near(&a, &b, &got, share, &what);
        }
    }
    assert!(by_residues > rounds / 2, "{by_residues}");
    common::assert_valid(engine);
}

/// Whole numbers that f64 has: their sums are exact, rounded once, which those of plain kernels are not.
#[test]
fn sums_of_whole_numbers_are_rounded_once() {
    let engine = &common::engine();
    let mut random = Random(7);
    for [batches, rows, columns, depth] in
        [[1, 16, 16, 32], [1, 1, 1, 1], [2, 130, 67, 300], [1, 3, 200, 1025], [1, 20, 17, 70_001], [1, 5, 3, 600_000]]
    {
        let of = |random: &mut Random, sizes, along_k| {
            Given::new(engine, sizes, Layout { along_k, ..DENSE }, &mut |_| random.whole(53))
        };
        let (a, b) = (of(&mut random, [batches, rows, depth], true), of(&mut random, [batches, columns, depth], false));
        for way in ways(engine, depth) {
            let got = multiply(engine, &a, &b, Some(way));
            for (at, &x) in got.iter().enumerate() {
                let at = at as u64;
                let (batch, row, column) = (at / columns / rows, at / columns % rows, at % columns);
                let pairs = a.row(batch, row).iter().zip(b.row(batch, column));
                let sum: i128 = pairs.map(|(&x, &y)| x as i128 * y as i128).sum();
                assert_eq!(x.to_bits(), (sum as f64).to_bits(), "{rows} x {columns} of {depth} by {way:?} at {at}");
            }
        }
    }
    common::assert_valid(engine);
}

/// Layouts, batches, transposition and runs make no difference to bits, nor do powers of two.
#[test]
fn bits_do_not_depend_on_layouts() {
    let engine = &common::engine();
    let [rows, columns, depth] = [45u64, 37, 163];
    let value = |seed: u64| {
        move |[_, row, k]: [u64; 3]| {
            Random((seed * 1000 + row) * 1_000_003 + k * 7919).normal() * 2f64.powi((k % 7) as i32)
        }
    };
    let given = |seed: u64, batches: u64, free: u64, layout: Layout, scale: f64| {
        Given::new(engine, [batches, free, depth], layout, &mut |at| value(seed)(at) * scale)
    };
    for way in ways(engine, depth) {
        let way = Some(way);
        let once = |layouts: [Layout; 2], scales: [f64; 2]| {
            let (a, b) = (given(1, 1, rows, layouts[0], scales[0]), given(2, 1, columns, layouts[1], scales[1]));
            multiply(engine, &a, &b, way)
        };
        let first = once([DENSE; 2], [1.0; 2]);
        let across = Layout { along_k: false, gap: 5, first: 3, repeated: false };
        assert_eq!(bits(&once([DENSE; 2], [1.0; 2])), bits(&first));
        assert_eq!(bits(&once([across, DENSE], [1.0; 2])), bits(&first));
        assert_eq!(bits(&once([Layout { gap: 1, ..DENSE }, across], [1.0; 2])), bits(&first));
        // Rows whose elements are denormal, too.
        for (x, y) in [(1000, -990), (-1040, 1000), (300, -200)] {
            let scaled = once([across, DENSE], [x, y].map(|n| 2f64.powi(n / 2) * 2f64.powi(n - n / 2)));
            if x > -1030 {
                let expected: Vec<f64> = first.iter().map(|z| z * 2f64.powi(x + y)).collect();
                assert_eq!(bits(&scaled), bits(&expected), "{x} {y}");
            }
        }
        let repeated = Layout { repeated: true, ..across };
        let (a, b) = (given(1, 3, rows, repeated, 1.0), given(2, 3, columns, repeated, 1.0));
        let three = multiply(engine, &a, &b, way);
        assert!(three.chunks_exact(first.len()).all(|batch| bits(batch) == bits(&first)));
        let (a, b) = (given(2, 1, columns, across, 1.0), given(1, 1, rows, DENSE, 1.0));
        let transposed = multiply(engine, &a, &b, way);
        for (at, x) in first.iter().enumerate() {
            let (row, column) = (at as u64 / columns, at as u64 % columns);
            assert_eq!(x.to_bits(), transposed[(column * rows + row) as usize].to_bits());
        }
    }
    common::assert_valid(engine);
}

/// What whole numbers can't hold well enough is left to the plain kernel, for all results.
#[test]
fn others_are_left_to_the_plain_kernel() {
    let engine = &common::engine();
    let [rows, columns, depth] = [70u64, 50, 257];
    let mut random = Random(11);
    type Change = Box<dyn Fn([u64; 3], f64) -> f64>;
    let same = || -> Change { Box::new(|_, x| x) };
    let put = |row: u64, at: u64, value: f64| -> Change {
        Box::new(move |[_, r, k], x| if r == row && k == at { value } else { x })
    };
    let cases: Vec<(&str, [Change; 2])> = vec![
        ("NaN", [put(3, 5, f64::NAN), same()]),
        ("infinity", [same(), put(49, 256, f64::INFINITY)]),
        (
            "infinity by a zero row",
            [put(3, 5, f64::NEG_INFINITY), Box::new(|[_, r, _], x| if r == 2 { 0.0 } else { x })],
        ),
        (
            "graded along k",
            [
                Box::new(|[_, _, k], x| x * 2f64.powi(k as i32 / 4)),
                Box::new(|[_, _, k], x| x * 2f64.powi(-(k as i32) / 4)),
            ],
        ),
        ("one large element by a zero", [put(3, 5, 1e30), Box::new(|[_, _, k], x| if k == 5 { 0.0 } else { x })]),
        ("identity", [Box::new(|[_, r, k], _| f64::from(u8::from(r == k))), same()]),
        ("overflow", [Box::new(|_, x| x * 2f64.powi(600)), Box::new(|_, x| x * 2f64.powi(500))]),
        ("denormal results", [Box::new(|_, x| x * 2f64.powi(-600)), Box::new(|_, x| x * 2f64.powi(-470))]),
    ];
    for (name, [of_a, of_b]) in cases {
        let mut of = |free: u64, change: &Change| {
            Given::new(engine, [1, free, depth], DENSE, &mut |at| change(at, random.normal()))
        };
        let (a, b) = (of(rows, &of_a), of(columns, &of_b));
        let expected = bits(&multiply(engine, &a, &b, None));
        for way in ways(engine, depth) {
            assert_eq!(bits(&multiply(engine, &a, &b, Some(way))), expected, "{name} by {way:?}");
        }
    }
    common::assert_valid(engine);
}

/// Zeros are exact wherever they stand, and so are whole rows of them, beside rows of other scales.
#[test]
fn zeros_cost_nothing() {
    let engine = &common::engine();
    let mut random = Random(13);
    let sizes = |free: u64| [1, free, 96];
    let mut of = |free: u64| {
        Given::new(engine, sizes(free), DENSE, &mut |[_, row, k]| match row % 3 {
            0 => 0.0,
            1 => random.whole(40) * f64::from(u8::from(k % 5 == 0)) * 2f64.powi(-300),
            _ => -0.0 * random.whole(3) + random.whole(44),
        })
    };
    let (a, b) = (of(31), of(22));
    for way in ways(engine, 96) {
        let got = multiply(engine, &a, &b, Some(way));
        for (at, x) in got.iter().enumerate() {
            let (sum, _) = exact(a.row(0, at as u64 / 22), b.row(0, at as u64 % 22));
            assert_eq!(x.to_bits(), (value(sum) + 0.0).to_bits(), "{at}");
        }
    }
    common::assert_valid(engine);
}

/// Products of matrices that factorizations have: ill-conditioned ones, those graded along rows, columns and both, and
/// sums that cancel.
#[test]
fn graded_and_ill_conditioned_matrices_keep_the_bound_of_each_element() {
    let engine = &common::engine();
    let mut random = Random(19);
    type Element = fn([u64; 3], f64) -> f64;
    let hilbert: Element = |[_, row, k], _| 1.0 / (row + k + 1) as f64;
    let vandermonde: Element = |[_, row, k], _| (1.0 + row as f64 / 64.0).powi(k as i32 % 12);
    let rows_graded: Element = |[_, row, _], x| x * 10f64.powi(-(row as i32) / 4);
    let decaying: Element = |[_, _, k], x| x * 2f64.powi(-(k as i32) / 2);
    let growing: Element = |[_, _, k], x| x * 2f64.powi(k as i32 / 2);
    let both: Element = |[_, row, k], x| if k <= row { x * 2f64.powi((k as i32 - row as i32) / 3) } else { 0.0 };
    // The second half of the terms is the first with another sign, but for the last digits.
    let cancelling: Element = |[_, row, k], _| {
        let x = Random(row * 64 + k % 32 + 1).normal();
        if k < 32 { x } else { -x * (1.0 + 1e-12) }
    };
    let periodic: Element = |[_, row, k], _| Random(row * 64 + k % 32 + 77).normal();
    let mut by_residues = 0;
    let pairs = [
        (hilbert, hilbert),
        (vandermonde, hilbert),
        (vandermonde, vandermonde),
        (rows_graded, rows_graded),
        (decaying, decaying),
        (decaying, growing),
        (both, both),
        (both, rows_graded),
        (cancelling, periodic),
        (cancelling, cancelling),
    ];
    for (case, (of_a, of_b)) in pairs.into_iter().enumerate() {
        let mut of =
            |free: u64, of: Element| Given::new(engine, [1, free, 64], DENSE, &mut |at| of(at, random.normal()));
        let (a, b) = (of(48, of_a), of(40, of_b));
        let by_plain = bits(&multiply(engine, &a, &b, None));
        for way in ways(engine, 64) {
            let got = multiply(engine, &a, &b, Some(way));
            let is_plain = bits(&got) == by_plain;
            by_residues += u32::from(!is_plain);
            let share = if is_plain { 65.0 * 2f64.powi(-53) } else { 2f64.powi(-50) };
            assert_near(&a, &b, &got, share, &format!("case {case} by {way:?}"));
        }
    }
    assert!(by_residues >= 4, "{by_residues}");
    common::assert_valid(engine);
}

/// Operands of other types, results that lie elsewhere with steps behind, and results in parts.
#[test]
fn epilogues_types_and_parts_are_those_of_products() {
    let engine = &common::engine();
    let [rows, columns, depth] = [33u64, 29, 130];
    let mut random = Random(17);
    let whole: Vec<f32> = (0..rows * depth).map(|_| random.whole(20) as f32).collect();
    let raw: Vec<u8> = whole.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let ty = Type::new(DType::F32, &[1, rows, depth]);
    let a = Matrix {
        tensor: Tensor::from_nx_bytes(engine, &ty, &raw).unwrap(),
        batch: MergedAxes::new(&[1], &[0]),
        free: MergedAxes::new(&[rows], &[depth as i64]),
        depth: MergedAxes::new(&[depth], &[1]),
    };
    let b = Given::new(engine, [1, columns, depth], DENSE, &mut |_| random.whole(50));
    let bias = Given::new(engine, [1, 1, columns], DENSE, &mut |_| random.whole(30));
    let mut strides = bias.matrix.tensor.view().clone();
    strides.shape = smallvec![1, rows, columns];
    strides.strides = smallvec![0, 0, 1];
    let inputs = [Operand::new(bias.matrix.tensor.buffer(), &strides, Element::Typed(DType::F64))];
    let args = smallvec![Ref::Input(0), Ref::Input(1)];
    let steps = [Step { op: Elementwise::Binary(Binary::Add), args, out: DType::F64 }];
    for way in ways(engine, depth) {
        for splits in [1, 3] {
            let out = poisoned(engine, [1, rows, columns]);
            let epilogue = Epilogue { dtype: DType::F64, inputs: &inputs, steps: &steps, result: Ref::Result(0) };
            let p = Product {
                a: a.clone(),
                b: b.matrix.clone(),
                out: &out,
                prologues: [None, None],
                epilogue: Some(epilogue),
            };
            product_as(engine, &p, CType::F64, Choice { splits, ..way }, Compile::Allowed).unwrap();
            for (at, x) in read(engine, &out).iter().enumerate() {
                let (row, column) = (at as u64 / columns, at as u64 % columns);
                let own = &whole[(row * depth) as usize..][..depth as usize];
                let sum: i128 = own.iter().zip(b.row(0, column)).map(|(&x, &y)| x as i128 * y as i128).sum();
                assert_eq!(*x, sum as f64 + bias.values[column as usize], "{way:?} in {splits} at {at}");
            }
        }
    }
    common::assert_valid(engine);
}
