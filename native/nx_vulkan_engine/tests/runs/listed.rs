//! Kernels of numbers alone, whose workgroups list the elements that short forms of functions do not serve.

use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Unary};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Options, Tensor, Type};
use nx_vulkan_spirv::lower::Lacks;

use crate::common;

/// Numbers from -95 to 95 out of order, of which `exp` of every fourteenth is denormal, 0 or infinite.
fn numbers(b: &Builder, elements: u64) -> Operand {
    let words = b.multiply(b.iota(DType::U32, &[elements], None), 2_654_435_761.0);
    b.subtract(b.multiply(b.as_type(words, DType::F32), 190.0 * 2f64.powi(-32)), 95.0)
}

#[test]
fn what_is_listed_is_computed_once() {
    // CPUs have forms of their own for elements of up to 64 bits.
    let lower = Lacks { int64: true, ..Lacks::default() };
    let engine = Engine::open_with(&Options { lower, ..common::options() }).unwrap();
    let run = |program, inputs: &[_]| {
        Executable::compile(&engine, program).unwrap().run(inputs, Compile::Allowed).unwrap().remove(0)
    };
    for elements in [1 << 20, (1 << 20) + 4, (1 << 20) + 1020] {
        let (b, alone) = (Builder::new(), Builder::new());
        let x = numbers(&b, elements);
        let program = b.finish(&[x]).unwrap();
        let y = alone.unary(Unary::Exp, numbers(&alone, elements));
        let listed = run(alone.finish(&[y]).unwrap(), &[]).to_vec::<f32>(&engine).unwrap();
        let b = Builder::new();
        let y = b.unary(Unary::Exp, b.input(DType::F32, &[elements]));
        let read = run(b.finish(&[y]).unwrap(), &[run(program, &[])]).to_vec::<f32>(&engine).unwrap();
        let rare = listed.iter().filter(|y| !y.is_normal()).count() as u64;
        assert!((elements / 16..elements / 12).contains(&rare), "{rare} of {elements}");
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&listed) == bits(&read), "{elements} elements");
    }
    common::assert_valid(&engine);
}

/// Uniform numbers from the least normal one on to less than 1, as Gumbel draws are made of.
fn uniform(b: &Builder, elements: u64) -> Operand {
    let words = b.multiply(b.iota(DType::U32, &[elements], None), 2_654_435_761.0);
    let bits = b.binary(Binary::RightShift, words, 9.0);
    let bits = b.binary(Binary::BitwiseOr, bits, f64::from(0x3f80_0000));
    let above_one = b.push(Op::Bitcast, &[bits], &Type::new(DType::F32, &[elements]));
    b.add(b.subtract(above_one, 1.0), f64::from(f32::MIN_POSITIVE))
}

/// Workgroups that list doubts take a shorter form of `log` than others do.
#[test]
fn logarithms_that_are_listed_are_those_that_are_not() {
    let lower = Lacks { int64: true, ..Lacks::default() };
    let engine = Engine::open_with(&Options { lower, ..common::options() }).unwrap();
    let run = |program, inputs: &[_]| {
        Executable::compile(&engine, program).unwrap().run(inputs, Compile::Allowed).unwrap().remove(0)
    };
    let elements = (1 << 20) + 4;
    let gumbel =
        |b: &Builder, u| b.unary(Unary::Negate, b.unary(Unary::Log, b.unary(Unary::Negate, b.unary(Unary::Log, u))));
    let (b, alone, stored) = (Builder::new(), Builder::new(), Builder::new());
    let u = uniform(&b, elements);
    let drawn = run(b.finish(&[u]).unwrap(), &[]);
    let y = gumbel(&alone, uniform(&alone, elements));
    let listed = run(alone.finish(&[y]).unwrap(), &[]);
    let y = gumbel(&stored, stored.input(DType::F32, &[elements]));
    let read = run(stored.finish(&[y]).unwrap(), &[drawn]);
    let bits = |tensor: &Tensor| tensor.to_vec::<f32>(&engine).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(&listed) == bits(&read));
    common::assert_valid(&engine);
}
