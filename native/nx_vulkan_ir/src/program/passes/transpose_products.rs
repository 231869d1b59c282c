//! Lets products give their transposes, as gradients of weights want them: `transpose(dot(a, b))` is `dot(b, a)`, so
//! that what reads it finds neighbours beside each other.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::{Instruction, Op, Program};
use crate::shape::elements;
use crate::{DType, Result};

/// The program with such products, of which matrix units may take those from `unit_work` multiplications on.
pub fn run(program: &Program, unit_work: u64) -> Result<Program> {
    let reads = program.reads();
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let is_only_reader = old.operands.iter().all(|operand| reads.get(operand) == Some(&1));
        match is_only_reader.then(|| turned(&new, &instruction, unit_work)).transpose()?.flatten() {
            Some(product) => new.replace(product),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The product of which the instruction is the transpose, with its operands exchanged.
fn turned(new: &Rewriter, instruction: &Instruction, unit_work: u64) -> Result<Option<Instruction>> {
    let (Op::Transpose { axes }, &[operand]) = (&instruction.op, instruction.operands.as_slice()) else {
        return Ok(None);
    };
    let Some(Instruction { op, operands, outs }) = new.maker(operand) else { return Ok(None) };
    let Op::Dot { contract_a, batch_a, contract_b, batch_b } = op else { return Ok(None) };
    let (&[a, b], [out]) = (operands.as_slice(), outs.as_slice()) else { return Ok(None) };
    // Tiles of f64 have no mirror images, so that its sums might be split in other ways.
    if out.dtype == DType::F64 {
        return Ok(None);
    }
    let batches = batch_a.len();
    let free = new.ty(a)?.shape.len() - batches - contract_a.len();
    let exchanged = (0..batches).chain(batches + free..out.shape.len()).chain(batches..batches + free);
    if !axes.iter().copied().eq(exchanged) {
        return Ok(None);
    }
    // On matrix units, the order of terms goes by which operand has more rows.
    let (rows, columns) = out.shape[batches..].split_at(free);
    let is_square = elements(rows) == elements(columns);
    if is_square && op.flops(&[new.ty(a)?, new.ty(b)?], outs) >= Some(unit_work.saturating_mul(2)) {
        return Ok(None);
    }
    let op = Op::Dot {
        contract_a: contract_b.clone(),
        batch_a: batch_b.clone(),
        contract_b: contract_a.clone(),
        batch_b: batch_a.clone(),
    };
    Ok(Some(Instruction { op, operands: SmallVec::from_slice(&[b, a]), outs: instruction.outs.clone() }))
}
