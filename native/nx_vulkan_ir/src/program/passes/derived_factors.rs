//! Moves what is computed from fewer bytes, such as weights of a few bits, into the kernels of the products with few
//! vectors that alone read it: it is never stored.

use std::collections::{HashMap, HashSet};

use smallvec::{SmallVec, smallvec};

use super::prologue::input;
use super::rewrite::{body_of, with_joined};
use super::target::Target;
use crate::program::epilogue::{self, Factor};
use crate::program::fused::is_view;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// How many times as many bytes are computed as are read, at least: those of bf16 from weights of 8 bits with a scale
/// for 32 of them. With less, to read what is stored takes about as long.
const LEAST_GROWTH: (u64, u64) = (3, 2);

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if target.derived_vectors == 0 {
        return Ok(program.clone());
    }
    let mut taken: HashSet<usize> = HashSet::new();
    let mut joined: HashMap<usize, (Op, Vec<Operand>)> = HashMap::new();
    let (maker, reads) = (program.makers(), program.reads());
    for (at, instruction) in program.instructions.iter().enumerate() {
        let Some(product) = product(program, target, instruction) else { continue };
        let found = (0..2).find_map(|place| {
            let Operand::Input(k) = product.instructions.first()?.operands.get(place)? else { return None };
            let operand = *instruction.operands.get(*k as usize)?;
            let chain = chain(program, &maker, &reads, operand)?;
            Some((join(program, target, instruction, &product, (*k, place), &chain)?, chain))
        });
        if let Some((new, chain)) = found {
            taken.extend(chain);
            joined.insert(at, new);
        }
    }
    with_joined(program, |at, _| taken.contains(&at), |at, _| joined.remove(&at))
}

/// A product that loads both operands as they lie, and what follows it, as a body of the instruction's operands.
fn product(program: &Program, target: &Target, instruction: &Instruction) -> Option<Program> {
    match &instruction.op {
        op if epilogue::is_product(op) => body_of(instruction, program.types()),
        Op::Fused(body) => {
            let found = epilogue::of(body, target.joins.unit_work, target.live_words)?;
            (found.product == 0).then(|| (**body).clone())
        }
        _ => None,
    }
}

/// What makes an operand for one reader alone: an elementwise op and the views of its result, the last first.
fn chain(
    program: &Program,
    maker: &impl Fn(Operand) -> Option<usize>,
    reads: &HashMap<Operand, usize>,
    mut operand: Operand,
) -> Option<Vec<usize>> {
    let mut chain = Vec::new();
    loop {
        let at = maker(operand).filter(|_| reads.get(&operand) == Some(&1))?;
        let made = &program.instructions[at];
        chain.push(at);
        match (made.operands.as_slice(), made.outs.as_slice()) {
            ([before], [out]) if is_view(&made.op) => {
                if program.type_of(*before)?.elements() != out.elements() {
                    return None;
                }
                operand = *before;
            }
            (_, [_]) if matches!(made.op, Op::Fused(_)) || made.op.elementwise().is_some() => return Some(chain),
            _ => return None,
        }
    }
}

/// The product's body with what makes its operand `k`, the factor at a place, in front of it, and the operands that it
/// takes then.
fn join(
    program: &Program,
    target: &Target,
    instruction: &Instruction,
    product: &Program,
    (k, place): (u32, usize),
    chain: &[usize],
) -> Option<(Op, Vec<Operand>)> {
    let (source, views) = chain.split_last()?;
    let source = &program.instructions[*source];
    let sources: HashSet<&Operand> = source.operands.iter().collect();
    let read = sources.iter().map(|&&o| program.type_of(o).map(Type::size_bytes)).sum::<Option<u64>>()?;
    let (growth, of) = LEAST_GROWTH;
    if read.saturating_mul(growth) > source.outs.first()?.size_bytes().saturating_mul(of) {
        return None;
    }
    let mut operands: SmallVec<[Operand; 3]> = SmallVec::new();
    let own: Vec<Operand> = source.operands.iter().map(|&operand| input(&mut operands, operand)).collect();
    // What it computes is none of the new operands.
    let others: Vec<Option<Operand>> =
        (0..).zip(&instruction.operands).map(|(i, &operand)| (i != k).then(|| input(&mut operands, operand))).collect();
    let inputs = operands.iter().map(|&operand| program.type_of(operand).cloned()).collect::<Option<_>>()?;
    let mut body = Program { inputs, ..Program::default() };
    let mut made = *body.append(&body_of(source, program.types())?, &own).first()?;
    for &view in views.iter().rev() {
        let result = Operand::Result(body.results().count() as u32);
        body.instructions.push(Instruction { operands: smallvec![made], ..program.instructions[view].clone() });
        made = result;
    }
    let inputs: Vec<Operand> = others.into_iter().map(|operand| operand.unwrap_or(made)).collect();
    body.outputs = body.append(product, &inputs);
    let found = epilogue::of(&body, target.joins.unit_work, target.live_words)?;
    let product = body.instructions.get(found.product)?;
    let types: Option<Vec<&Type>> = product.operands.iter().map(|&o| body.type_of(o)).collect();
    let (Some([a, b]), [out]) = (types.as_deref(), product.outs.as_slice()) else { return None };
    let is_derived = matches!(found.factors.get(place), Some(Factor::Derived(_)));
    let fits = epilogue::vectors(&product.op, [a, b], out, place).is_some_and(|n| n <= target.derived_vectors);
    (is_derived && fits).then(|| (Op::Fused(Box::new(body)), operands.into_vec()))
}
