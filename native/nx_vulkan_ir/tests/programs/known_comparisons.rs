//! Comparisons that the range of their operands answers.

use nx_vulkan_ir::program::attribute::Scalar;
use nx_vulkan_ir::program::passes::{Saving, optimize};
use nx_vulkan_ir::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

/// A number from 0 to 1 of each word, as `Nx.Random.uniform` makes it.
pub fn uniform(b: &Builder, words: Operand, dtype: DType) -> Operand {
    let mantissa = match dtype {
        DType::F16 => 10,
        DType::Bf16 => 7,
        DType::F32 => 23,
        _ => 52,
    };
    let Type { dtype: unsigned, shape } = b.ty(words);
    let one = Value::Float(1.0).to_bits(dtype) as i128;
    let number = |value: i128| b.constant(unsigned, Scalar::Int(value));
    let bits = b.binary(Binary::RightShift, words, number((unsigned.bits() - mantissa).into()));
    let bits = b.binary(Binary::BitwiseOr, bits, number(one));
    let x = b.subtract(b.push(Op::Bitcast, &[bits], &Type { dtype, shape }), 1.0);
    b.max(b.add(b.multiply(x, 1.0), 0.0), 0.0)
}

/// Dropout of an eight by four tensor with a rate, and the gradient of its sum of squares, which is f32 in between.
fn dropout(dtype: DType, rate: f64) -> Program {
    let words = [DType::U16, DType::U32, DType::U64].into_iter().find(|words| words.bits() == dtype.bits()).unwrap();
    let b = Builder::new();
    let (x, words) = (b.input(dtype, &[8, 4]), b.input(words, &[8, 1]));
    let keep = b.subtract(b.number(dtype, 1.0), b.number(dtype, rate));
    let mask = b.broadcast(b.less(uniform(&b, words, dtype), keep), &[8, 4]);
    let y = b.select(mask, b.divide(x, keep), 0.0);
    let gradient = b.select(mask, b.divide(b.multiply(y, 2.0), keep), b.number(DType::F32, 0.0));
    let gradient = b.as_type(gradient, dtype);
    b.finish(&[y, gradient]).unwrap()
}

/// Inputs with the least and the largest words.
fn inputs(program: &Program) -> Vec<Array> {
    let array = |ty: &Type| {
        let most = 1u128.checked_shl(ty.dtype.bits()).unwrap_or(0).wrapping_sub(1) as i128;
        let value = |i: u64| match ty.dtype.is_integer() {
            true if i.is_multiple_of(2) => Value::Int(most - i128::from(i)),
            true => Value::Int(i128::from(i) / 3 * (most / 8)),
            false => Value::Float(i as f64 - 3.5),
        };
        Array::new(ty, (0..ty.elements()).map(value))
    };
    program.inputs.iter().map(array).collect()
}

fn results(program: &Program, inputs: &[Array]) -> Vec<Vec<u8>> {
    reference::run(program, inputs).unwrap().iter().map(Array::to_nx_bytes).collect()
}

#[test]
fn dropout_that_drops_nothing_is_gone() {
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
        let program = dropout(dtype, 0.0);
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        assert_eq!(optimized.outputs[0], Operand::Input(0), "{dtype:?}:\n{optimized}");
        let text = optimized.to_string();
        assert!(!["less", "select", "as_type"].iter().any(|op| text.contains(op)), "{dtype:?}:\n{text}");
        assert_eq!(results(&optimized, &inputs(&program)), results(&program, &inputs(&program)));
    }
}

#[test]
fn dropout_that_drops_something_stays() {
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
        // The largest number below 1 that the type has.
        for rate in [0.25, 2f64.powi(-7)] {
            let program = dropout(dtype, rate);
            let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
            assert!(optimized.to_string().contains("less"), "{dtype:?}:\n{optimized}");
            assert_eq!(results(&optimized, &inputs(&program)), results(&program, &inputs(&program)));
        }
    }
}

/// Random numbers for programs.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A comparison with a number of what a few steps make of bytes and floats, and what they make.
fn comparison(random: &mut Random) -> Program {
    let b = Builder::new();
    let mut x = b.input(random.of(&[DType::U8, DType::S8, DType::U16]), &[256]);
    let number = |random: &mut Random, dtype: DType| match dtype.is_integer() {
        true => b.constant(dtype, Value::Int(random.of(&[0, 1, 2, 3, 7, 9, 100, 127])).cast(dtype).into()),
        false => b.number(dtype, random.of(&[-2.5, -1.0, 0.0, 0.5, 1.0, 3.0, 250.0, 1.0e4])),
    };
    for _ in 0..random.below(6) {
        let dtype = b.ty(x).dtype;
        let y = number(random, dtype);
        let arithmetic = [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Max, Binary::Min];
        let bits = [Binary::RightShift, Binary::BitwiseAnd, Binary::BitwiseOr];
        x = match random.below(10) {
            0..4 => b.binary(random.of(&arithmetic), x, y),
            4 => b.binary(random.of(&arithmetic), y, x),
            5 | 6 if dtype.is_integer() => b.binary(random.of(&bits), x, y),
            7 if dtype == DType::U16 => b.push(Op::Bitcast, &[x], &Type { dtype: DType::F16, ..b.ty(x) }),
            7 if dtype == DType::F32 => b.negate(x),
            _ => b.as_type(x, random.of(&[DType::U8, DType::S16, DType::U16, DType::F16, DType::F32, DType::F8E5M2])),
        };
    }
    let comparisons = [Binary::Less, Binary::LessEqual, Binary::Greater, Binary::GreaterEqual];
    let y = number(random, b.ty(x).dtype);
    let answer = b.binary(random.of(&comparisons), x, y);
    b.finish(&[answer, x]).unwrap()
}

#[test]
fn random_numbers_are_no_less_than_the_least() {
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
        let b = Builder::new();
        let words = [DType::U16, DType::U32, DType::U64].into_iter().find(|words| words.bits() == dtype.bits());
        let x = uniform(&b, b.input(words.unwrap(), &[8, 4]), dtype);
        // What erf_inv takes, which is below 1.
        let least = b.number(dtype, -0.875);
        let y = b.max(least, b.add(b.multiply(x, 1.75), -0.875));
        let (positive, same) = (b.max(y, 0.0), b.min(1.0, x));
        let program = b.finish(&[x, y, positive, same]).unwrap();
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        assert_eq!(optimized.to_string().matches("max").count(), 1, "{dtype:?}:\n{optimized}");
        assert!(!optimized.to_string().contains("min"), "{dtype:?}:\n{optimized}");
        assert_eq!(results(&optimized, &inputs(&program)), results(&program, &inputs(&program)));
    }
}

#[test]
fn answers_are_those_of_all_elements() {
    let mut random = Random(20_261_127);
    let mut known = 0;
    for _ in 0..4000 {
        let program = comparison(&mut random);
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        let ty = &program.inputs[0];
        let spread = if ty.dtype == DType::U16 { 257 } else { 1 };
        let inputs = [Array::new(ty, (0..256).map(|i| Value::Int(i * spread).cast(ty.dtype)))];
        assert_eq!(results(&optimized, &inputs), results(&program, &inputs), "{program}became\n{optimized}");
        let text = optimized.to_string();
        known += usize::from(!text.contains("less") && !text.contains("greater"));
    }
    assert!((400..3600).contains(&known), "{known} answers were known");
}

#[test]
fn counters_that_wrap_have_no_ends() {
    for (dtype, length, most) in [(DType::U8, 300, 100.0), (DType::S8, 200, 10.0), (DType::U8, 257, 1.0)] {
        let b = Builder::new();
        let counters = b.iota(dtype, &[length], None);
        let outputs = [b.less(counters, most), b.max(counters, 0.0), b.min(counters, most)];
        let program = b.finish(&outputs).unwrap();
        let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
        assert_eq!(results(&optimized, &[]), results(&program, &[]), "{optimized}");
    }
}

#[test]
fn long_chains_are_looked_at_a_little() {
    let b = Builder::new();
    let mut x = b.input(DType::F32, &[4]);
    let comparisons = (0..64).map(|_| {
        x = b.add(x, x);
        b.less(x, 1.0)
    });
    let outputs: Vec<Operand> = comparisons.collect();
    let program = b.finish(&outputs).unwrap();
    assert!(optimize(program, &target(Saving::Nothing)).is_ok());
}
