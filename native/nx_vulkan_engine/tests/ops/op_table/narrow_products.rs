//! Products of f16 and bf16 of random sizes, layouts and types, against sums in f64.

use half::{bf16, f16};
use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::{DType, Tensor, Type, Value, View};

use super::{download, engine, finish, rng, run};
use crate::common::Rng;
use crate::compare::epsilon;

/// Products in all.
const CASES: u64 = 1000;
/// One of so many is large enough for matrix units.
const LARGE: u64 = 40;
/// Results of each that are compared.
const SAMPLES: u64 = 48;

/// What an operand's axes are for.
const BATCH: usize = 0;
const FREE: usize = 1;
const DEPTH: usize = 2;

/// An operand with its axes in some order, within memory that is larger, in which its rows may go backwards.
struct Operand {
    tensor: Tensor,
    /// Which axis is which.
    axes: [usize; 3],
    /// Its numbers, `[batch, free, depth]`.
    numbers: Vec<f64>,
    sizes: [u64; 3],
}

impl Operand {
    fn new(dtype: DType, sizes: [u64; 3], specials: bool, rng: &mut Rng) -> Operand {
        let mut order = [BATCH, FREE, DEPTH];
        for i in (1..3).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        // Contiguous ones are the usual ones.
        let plain = rng.below(2) == 0;
        let gaps = [0; 3].map(|_| if plain { 0 } else { rng.below(4) });
        let memory: Vec<u64> = order.iter().zip(gaps).map(|(&axis, gap)| sizes[axis] + gap).collect();
        let steps = [memory[1] * memory[2], memory[2], 1];
        let mut axes = [0; 3];
        order.iter().enumerate().for_each(|(at, &axis)| axes[axis] = at);
        let reversed = axes[FREE] != 2 && rng.below(8) == 0;
        let first = if reversed { (sizes[FREE] - 1) * steps[axes[FREE]] } else { 0 };
        let step = |axis: usize| {
            let step = steps[axes[axis]] as i64;
            if reversed && axis == FREE { -step } else { step }
        };

        // What lies between the elements must not be read.
        let mut numbers = vec![f64::NAN; memory.iter().product::<u64>() as usize];
        let mut own = Vec::with_capacity(sizes.iter().product::<u64>() as usize);
        for batch in 0..sizes[BATCH] {
            for free in 0..sizes[FREE] {
                for k in 0..sizes[DEPTH] {
                    let number = rounded(dtype, ordinary(rng));
                    let at = [batch, free, k]
                        .iter()
                        .zip([BATCH, FREE, DEPTH])
                        .fold(first as i64, |at, (&i, axis)| at + i as i64 * step(axis));
                    let number = if specials && rng.below(4096) == 0 { special(rng) } else { number };
                    numbers[at as usize] = number;
                    own.push(number);
                }
            }
        }
        let ty = Type::new(dtype, &memory);
        let bytes: Vec<u8> = numbers.iter().flat_map(|&x| encode(dtype, x)).collect();
        let whole = Tensor::from_nx_bytes(engine(), &ty, &bytes).unwrap();
        let view = View {
            dtype,
            shape: order.iter().map(|&axis| sizes[axis]).collect(),
            strides: order.iter().map(|&axis| step(axis)).collect(),
            offset: whole.view().offset + first,
        };
        Operand { tensor: Tensor::new(whole.buffer().clone(), view).unwrap(), axes, numbers: own, sizes }
    }

    fn row(&self, batch: u64, free: u64) -> &[f64] {
        let depth = self.sizes[DEPTH] as usize;
        let from = (batch * self.sizes[FREE] + free) as usize * depth;
        &self.numbers[from..from + depth]
    }
}

/// Of both signs and sizes 2^10 apart, with some zeros.
fn ordinary(rng: &mut Rng) -> f64 {
    let x = (1.0 + rng.below(1 << 20) as f64 / f64::from(1 << 20)) * 2f64.powi(rng.below(10) as i32 - 6);
    match rng.below(9) {
        0 => 0.0,
        1..5 => -x,
        _ => x,
    }
}

fn special(rng: &mut Rng) -> f64 {
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][rng.below(3) as usize]
}

fn rounded(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F16 { f16::from_f64(x).to_f64() } else { bf16::from_f64(x).to_f64() }
}

fn encode(dtype: DType, x: f64) -> [u8; 2] {
    if dtype == DType::F16 { f16::from_f64(x).to_ne_bytes() } else { bf16::from_f64(x).to_ne_bytes() }
}

/// Batches, rows, columns and contracted elements.
fn sizes(large: bool, rng: &mut Rng) -> [u64; 4] {
    if large {
        let side = |rng: &mut Rng| [256, 384, 515, 520, 640][rng.below(5) as usize];
        let depth = [1024, 1031, 1536][rng.below(3) as usize];
        return [1 + rng.below(2), side(rng), side(rng), depth];
    }
    let up_to = |limits: [u64; 3], rng: &mut Rng| {
        let limit = limits[rng.below(3) as usize];
        1 + rng.below(limit)
    };
    let side = [3, 20, 80];
    [1 + rng.below(3), up_to(side, rng), up_to(side, rng), up_to([4, 40, 300], rng)]
}

/// `what` is wrong with a result, which is to be the sum of the products of two rows.
fn fault(got: f64, a: &[f64], b: &[f64], out: DType) -> Option<String> {
    // Products of such numbers are exact in f64.
    let sum: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    let size: f64 = a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum();
    if !sum.is_finite() {
        let same = got == sum || got.is_nan() && sum.is_nan();
        return (!same).then(|| format!("{got}, not {sum}"));
    }
    // One rounding to the result, and sums of f32 that matrix units cut off.
    let limit = epsilon(out) * sum.abs() + (a.len() as f64 / 4.0 + 4.0) * 2.0 * epsilon(DType::F32) * size;
    let error = (got - sum).abs();
    (error.is_nan() || error > limit).then(|| format!("{got:e}, not {sum:e}, off by {error:e} of {limit:e}"))
}

#[test]
fn products_of_narrow_types_are_within_their_bound() {
    let mut rng = rng(96);
    for case in 0..CASES {
        let rng = &mut rng;
        let [batches, rows, columns, depth] = sizes(case % LARGE == 0, rng);
        let specials = rng.below(4) == 0;
        let narrow = |rng: &mut Rng| if rng.below(2) == 0 { DType::F16 } else { DType::Bf16 };
        let dtypes = [narrow(rng), narrow(rng)];
        let out = if dtypes[0] == dtypes[1] && rng.below(4) != 0 { dtypes[0] } else { DType::F32 };
        let [a, b] = [(dtypes[0], rows), (dtypes[1], columns)]
            .map(|(dtype, free)| Operand::new(dtype, [batches, free, depth], specials, rng));
        let axis = |operand: &Operand, axis: usize| Axes::from_slice(&[operand.axes[axis]]);
        let op = Op::Dot {
            contract_a: axis(&a, DEPTH),
            batch_a: axis(&a, BATCH),
            contract_b: axis(&b, DEPTH),
            batch_b: axis(&b, BATCH),
        };
        let ty = Type::new(out, &[batches, rows, columns]);
        let got = download(&run(&op, &[a.tensor.clone(), b.tensor.clone()], &ty).unwrap());
        let samples = (batches * rows * columns).min(SAMPLES);
        for sample in 0..samples {
            // The last result among them.
            let i = if sample == 0 { batches * rows * columns - 1 } else { rng.below(batches * rows * columns) };
            let (batch, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
            let Value::Float(value) = got.values[i as usize] else { panic!("{:?}", got.values[i as usize]) };
            if let Some(fault) = fault(value, a.row(batch, row), b.row(batch, column), out) {
                panic!(
                    "case {case}, {dtypes:?} -> {out}, {:?} {:?} x {:?} {:?}: [{batch}, {row}, {column}] is {fault}",
                    a.sizes,
                    a.tensor.view().strides,
                    b.sizes,
                    b.tensor.view().strides
                );
            }
        }
    }
    finish();
}
