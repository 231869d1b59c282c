//! Changes of type that keep the bits, in kernels with what is around them.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Tensor, Type, eager};

use super::known::ops;
use super::{difference, engine, gpu};
use crate::common::{self, Rng};

fn bitcast(b: &Builder, a: Operand, to: DType) -> Operand {
    let ty = b.ty(a);
    b.push(Op::Bitcast, &[a], &Type { dtype: to, ..ty })
}

/// The bits that a program gives for those of its inputs.
fn bits(program: &Program, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let tensors = program.inputs.iter().zip(inputs);
    let tensors: Vec<Tensor> = tensors.map(|(ty, bytes)| Tensor::from_nx_bytes(engine(), ty, bytes).unwrap()).collect();
    let results = eager::run_program(engine(), program, &tensors).unwrap();
    results.iter().map(|t| t.to_nx_bytes(engine(), None).unwrap()).collect()
}

#[test]
fn bits_of_integers_become_numbers_in_the_kernel_that_reads_them() {
    let pairs = [
        (DType::U32, DType::F32),
        (DType::S32, DType::F32),
        (DType::U64, DType::F64),
        (DType::U16, DType::Bf16),
        (DType::S16, DType::F16),
        (DType::U8, DType::S8),
        (DType::S64, DType::U64),
    ];
    let mut rng = Rng(20_261_131);
    for (from, to) in pairs {
        // Every number of 16 bits, and as many others of more: infinities, NaN, subnormal numbers.
        let n = 1 << 16;
        let size = from.size_bytes() as usize;
        let random = (0..n).flat_map(|_| rng.next().to_ne_bytes()[..size].to_vec());
        let bytes: Vec<u8> = match size {
            2 => (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect(),
            _ => random.collect(),
        };
        let b = Builder::new();
        let x = b.input(from, &[256, 256]);
        let turned = b.binary(Binary::BitwiseXor, x, b.push(Op::Constant(Scalar::Int(5)), &[], &Type::new(from, &[])));
        let cast = bitcast(&b, turned, to);
        let used = b.subtract(cast, b.push(Op::Constant(Scalar::Int(1)), &[], &Type::new(to, &[])));
        let program = b.finish(&[used]).unwrap();
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert_eq!(ops(&optimized), ["fused"], "{from} {to}: {optimized}");
        assert_eq!(bits(&optimized, std::slice::from_ref(&bytes)), bits(&program, &[bytes]), "{from} {to}");
    }
    common::assert_valid(engine());
}

/// A kernel that stores a narrow float writes one NaN for all, a change of type leaves each as it is.
#[test]
fn bits_that_are_results_stay_what_they_are() {
    for (from, to) in
        [(DType::U16, DType::Bf16), (DType::U16, DType::F16), (DType::Bf16, DType::U16), (DType::U32, DType::F32)]
    {
        let b = Builder::new();
        let x = b.input(from, &[1 << 16]);
        let before = if from.is_integer() {
            b.binary(Binary::BitwiseXor, x, b.push(Op::Constant(Scalar::Int(0)), &[], &Type::new(from, &[])))
        } else {
            b.negate(x)
        };
        let cast = bitcast(&b, before, to);
        let sum = b.add(cast, cast);
        let program = b.finish(&[cast, sum]).unwrap();
        let bytes: Vec<u8> = match from.size_bytes() {
            2 => (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect(),
            _ => (0..=u16::MAX).flat_map(|high| (u32::from(high) << 16 | 1).to_ne_bytes()).collect(),
        };
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert_eq!(bits(&optimized, std::slice::from_ref(&bytes)), bits(&program, &[bytes]), "{from} {to}");
    }
}

/// Random bits of both numbers, zeros of both signs, infinities, NaN and subnormal numbers among them.
#[test]
fn products_by_units_are_sums_with_their_bits() {
    let units = [
        [Scalar::Int(1), Scalar::Complex(0.0, 1.0)],
        [Scalar::Complex(0.0, -1.0), Scalar::Float(-1.0)],
        [Scalar::Int(1), Scalar::Int(1)],
        [Scalar::Int(0), Scalar::Int(-1)],
    ];
    let mut rng = Rng(20_261_128);
    for (from, to) in
        [(DType::F32, DType::C64), (DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::S32, DType::S32)]
    {
        for (case, units) in units.iter().enumerate().filter(|(case, _)| to == DType::C64 || *case > 1) {
            let b = Builder::new();
            let x = b.input(from, &[3, 2048, 2]);
            let number = |unit: &Scalar| match unit {
                Scalar::Complex(..) => b.constant(DType::C64, *unit),
                Scalar::Int(_) | Scalar::Float(_) if to == DType::C64 && case == 1 => b.constant(DType::C64, *unit),
                Scalar::Int(_) | Scalar::Float(_) => b.constant(from, *unit),
            };
            let numbers: Vec<Operand> = units.iter().map(number).collect();
            let vector = b.push(Op::Stack { axis: 0 }, &numbers, &Type::new(to, &[2]));
            let lines = b.push(Op::Broadcast { axes: [1].into_iter().collect() }, &[vector], &Type::new(to, &[3, 2]));
            let flat = b.reshape(x, &[3 * 2048, 2]);
            let results = [
                b.dot_axes([flat, vector], [&[1], &[0]], [&[], &[]]),
                b.dot_axes([vector, flat], [&[0], &[1]], [&[], &[]]),
                b.dot_axes([x, lines], [&[2], &[1]], [&[0], &[0]]),
            ];
            let program = b.finish(&results).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert!(ops(&optimized).iter().all(|op| *op != "dot"), "{from} {to}: {optimized}");
            let special = [0u32, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 1, 0x8000_0001];
            let mut word = || match rng.next() {
                word if word % 3 == 0 => special[(word >> 32) as usize % special.len()],
                word => (word >> 16) as u32,
            };
            let bytes: Vec<u8> = match from.size_bytes() {
                2 => (0..3 * 2048 * 2).flat_map(|_| ((word() >> 16) as u16).to_ne_bytes()).collect(),
                _ => (0..3 * 2048 * 2).flat_map(|_| word().to_ne_bytes()).collect(),
            };
            let arrays = |program: &Program| -> Vec<Array> {
                let types = program.output_types();
                let results = bits(program, std::slice::from_ref(&bytes));
                types.into_iter().zip(results).map(|(ty, bytes)| Array::from_nx_bytes(ty, &bytes).unwrap()).collect()
            };
            for (product, sum) in arrays(&program).iter().zip(&arrays(&optimized)) {
                assert_eq!(difference(product, sum), None, "{from} {to} by {units:?}");
            }
        }
    }
    common::assert_valid(engine());
}
