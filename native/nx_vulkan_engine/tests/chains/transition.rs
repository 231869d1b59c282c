//! Transitions: a program that runs over its own results, in one workgroup for each chain.

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::chain::Form;
use nx_vulkan_engine::chain::transition::Transition;
use nx_vulkan_engine::program::{Binary, Instruction, Op, Operand, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Tensor, Type};
use smallvec::smallvec;

use crate::common;

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

fn f32s(shape: &[u64], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::from_nx_bytes(engine(), &Type::new(DType::F32, shape), &bytes).unwrap()
}

fn read(tensor: &Tensor) -> Vec<f32> {
    let bytes = tensor.to_nx_bytes(engine(), None).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// x' = x * a + b, with x and a of each chain and b of all; x * a is given beside it, and the number of the draw plus
/// itself.
fn affine() -> Program {
    let (vector, scalar, number) =
        (Type::new(DType::F32, &[3]), Type::new(DType::F32, &[]), Type::new(DType::U32, &[]));
    let binary = |op, a, b, ty: &Type| Instruction {
        op: Op::Binary(op),
        operands: smallvec![a, b],
        outs: smallvec![ty.clone()],
    };
    Program {
        inputs: vec![number.clone(), vector.clone(), scalar, vector.clone()],
        instructions: vec![
            binary(Binary::Multiply, Operand::Input(1), Operand::Input(2), &vector),
            binary(Binary::Add, Operand::Result(0), Operand::Input(3), &vector),
            binary(Binary::Add, Operand::Input(0), Operand::Input(0), &number),
        ],
        outputs: vec![Operand::Result(1), Operand::Result(0), Operand::Result(2)],
    }
}

const OWN: [bool; 3] = [true, true, false];

#[test]
fn draws_of_chains_are_those_of_a_loop() {
    for form in [Form::Workgroup, Form::Device] {
        draws_in(form);
    }
}

fn draws_in(form: Form) {
    let transition = Transition::compile(engine(), affine(), 1, &OWN, Some(form)).unwrap();
    let (x, a, b) = ([1.0f32, 2.0, 3.0, -1.0, 0.5, 8.0], [0.5f32, -2.0], [1.0f32, 0.0, -4.0]);
    for draws in [1u32, 2, 7] {
        let inputs = [f32s(&[2, 3], &x), f32s(&[2], &a), f32s(&[3], &b)];
        let outputs = transition.run(engine(), &inputs, 2, draws, Compile::Allowed).unwrap();
        let (mut states, mut products): (Vec<f32>, Vec<f32>) = (vec![], vec![]);
        for chain in 0..2 {
            let mut state: Vec<f32> = x[chain * 3..chain * 3 + 3].to_vec();
            for _ in 0..draws {
                let product: Vec<f32> = state.iter().map(|x| x * a[chain]).collect();
                state = product.iter().zip(&b).map(|(x, b)| x + b).collect();
                states.extend(&state);
                products.extend(&product);
            }
        }
        assert_eq!(outputs[0].view().shape[..], [2, u64::from(draws), 3]);
        assert_eq!(read(&outputs[0]), states);
        assert_eq!(read(&outputs[1]), products);
        let bytes = outputs[2].to_nx_bytes(engine(), None).unwrap();
        let numbers: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        assert_eq!(numbers, (0..draws).chain(0..draws).map(|i| 2 * i).collect::<Vec<u32>>());
    }
}

#[test]
fn programs_of_another_form_are_refused() {
    let refused = |program: Program, states: usize, own: &[bool]| {
        matches!(Transition::compile(engine(), program, states, own, None), Err(Error::InvalidProgram { .. }))
    };
    assert!(refused(affine(), 0, &OWN));
    assert!(refused(affine(), 4, &OWN));
    assert!(refused(affine(), 1, &OWN[..2]));
    assert!(refused(affine(), 1, &[false, true, false]));
    // The second output is no next value of the second input.
    assert!(refused(affine(), 2, &[true, true, false]));
    let mut counted = affine();
    counted.inputs[0] = Type::new(DType::S32, &[]);
    assert!(refused(counted, 1, &OWN));
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let transition = Transition::compile(engine(), affine(), 1, &OWN, None).unwrap();
    let (x, a, b) = (f32s(&[2, 3], &[0.0; 6]), f32s(&[2], &[0.0; 2]), f32s(&[3], &[0.0; 3]));
    let refused = |inputs: &[&Tensor], chains: u64, draws: u32| {
        let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
        matches!(transition.run(engine(), &inputs, chains, draws, Compile::Allowed), Err(Error::InvalidArgument { .. }))
    };
    assert!(!refused(&[&x, &a, &b], 2, 1));
    assert!(refused(&[&x, &a, &b], 1, 1));
    assert!(refused(&[&x, &a, &b], 0, 1));
    assert!(refused(&[&x, &a, &b], 1 << 16, 1));
    assert!(refused(&[&x, &a, &b], 2, 0));
    assert!(refused(&[&x, &a, &b], 2, (1 << 16) + 1));
    assert!(refused(&[&x, &a], 2, 1));
    assert!(refused(&[&x, &b, &b], 2, 1));
}
