//! Changes of type that keep the bits, in kernels with what is around them.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_engine::{DType, Tensor, Type, eager};

use super::known::ops;
use super::{engine, gpu};
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
