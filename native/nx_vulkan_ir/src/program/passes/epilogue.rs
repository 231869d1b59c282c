//! Moves elementwise ops into the kernels of the products that they alone read: biases, activations, masks, residuals.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rewrite::with_joined;
use super::target::Target;
use crate::program::epilogue::matrix_min_depth;
use crate::program::step::stands_in_loop;
use crate::program::{Instruction, Op, Operand, Program, epilogue};
use crate::{DType, Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let (maker, reads) = (program.makers(), program.reads());
    // The product that each instruction takes in.
    let mut taken: HashMap<usize, usize> = HashMap::new();
    let mut joined: HashMap<usize, (Op, Vec<Operand>)> = HashMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        for operand in &instruction.operands {
            let Some(product) = maker(*operand) else { continue };
            let once = reads.get(operand) == Some(&1) && epilogue::is_product(&program.instructions[product].op);
            if let Some(found) = once.then(|| join(program, target, product, instruction, *operand)).flatten() {
                taken.insert(product, at);
                joined.insert(at, found);
                break;
            }
        }
    }
    with_joined(program, |at, _| taken.contains_key(&at), |at, _| joined.remove(&at))
}

/// A fused op of a product and of what reads it, with its operands, if one kernel can do both.
fn join(
    program: &Program,
    target: &Target,
    product: usize,
    reader: &Instruction,
    read: Operand,
) -> Option<(Op, Vec<Operand>)> {
    let [out] = reader.outs.as_slice() else { return None };
    let product = &program.instructions[product];
    let mut operands: Vec<Operand> = product.operands.to_vec();
    let mut inputs: Vec<Type> = operands.iter().map(|&o| program.type_of(o).cloned()).collect::<Option<_>>()?;
    let own: SmallVec<[Operand; 3]> = (0..operands.len() as u32).map(Operand::Input).collect();
    // What the reader's operands are in the body: result 0 is the product.
    let mut inner: Vec<Operand> = Vec::new();
    for &operand in &reader.operands {
        if operand == read {
            inner.push(Operand::Result(0));
            continue;
        }
        inner.push(Operand::Input(operands.len() as u32));
        inputs.push(program.type_of(operand)?.clone());
        operands.push(operand);
    }
    let mut body = Program { inputs, ..Program::default() };
    body.instructions.push(Instruction { operands: own, ..product.clone() });
    match &reader.op {
        Op::Fused(steps) => {
            let moved = |o: &Operand| match *o {
                Operand::Input(i) => inner.get(i as usize).copied(),
                Operand::Result(r) => Some(Operand::Result(r + 1)),
            };
            for step in &steps.instructions {
                let operands = step.operands.iter().map(moved).collect::<Option<_>>()?;
                body.instructions.push(Instruction { operands, ..step.clone() });
            }
            body.outputs = steps.outputs.iter().map(moved).collect::<Option<_>>()?;
        }
        op if op.elementwise().is_some() => {
            body.instructions.push(Instruction { operands: inner.into(), ..reader.clone() });
            body.outputs.push(Operand::Result(1));
        }
        _ => return None,
    }
    let found = epilogue::of(&body, target.joins.unit_work, target.live_words)?;
    let on_units = runs_on_units(program, product, target);
    if out.elements() > target.joins.looped_results && !on_units && stands_in_loop(&found.steps) {
        return None;
    }
    Some((Op::Fused(Box::new(body)), operands))
}

fn runs_on_units(program: &Program, product: &Instruction, target: &Target) -> bool {
    let operands: Option<Vec<&Type>> = product.operands.iter().map(|&o| program.type_of(o)).collect();
    let Some([a, b]) = operands.as_deref() else { return false };
    let flops = product.op.flops(&[a, b], &product.outs);
    let depth: u64 = match &product.op {
        Op::Dot { contract_a, .. } => contract_a.iter().filter_map(|&axis| a.shape.get(axis)).product(),
        Op::Conv(conv) => match conv.sizes(&a.shape, &b.shape) {
            Ok(sizes) => sizes.depth(),
            Err(_) => return false,
        },
        _ => return false,
    };
    // f32 takes three bf16 numbers for each element.
    let (has_units, element_bytes) = match a.dtype {
        DType::F32 => (target.matrix_units, 6),
        DType::F16 | DType::Bf16 => (target.half_units, 2),
        _ => return false,
    };
    let is_one_type = product.outs.iter().all(|ty| ty.dtype == a.dtype) && b.dtype == a.dtype;
    let bytes = element_bytes * (a.elements() + b.elements());
    has_units
        && is_one_type
        && depth >= matrix_min_depth(a.dtype)
        && bytes <= target.joins.unit_bytes
        && flops >= Some(target.joins.unit_operations)
}
