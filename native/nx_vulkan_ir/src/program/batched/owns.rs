//! Which values are each one's own, found without the program of them.

use crate::program::ops::matrix::Matrix;
use crate::program::{Linalg, Loop, Op, Operand, Program};

/// Of the results of an op whose operands are each one's own or not.
fn results(op: &Op, operands: &[bool], count: usize) -> Vec<bool> {
    match op {
        Op::While(op) => {
            let mut cells = cells(op, operands).0;
            cells.truncate(count);
            cells
        }
        Op::Cond(op) if !operands.first().is_some_and(|&own| own) => {
            let captured = operands.get(1..).unwrap_or_default();
            let ways = [&op.on_true, &op.on_false].map(|program| outputs(program, captured));
            (0..count).map(|i| ways.iter().any(|way| way.get(i) == Some(&true))).collect()
        }
        _ => {
            let own = operands.contains(&true);
            (0..count).map(|i| own && !is_flag(op, i)).collect()
        }
    }
}

/// Whether a result tells of all systems whether they are regular.
pub(super) fn is_flag(op: &Op, result: usize) -> bool {
    result == 1 && matches!(op, Op::Matrix(Matrix::Linalg(Linalg::Solve)))
}

/// Of the outputs of a program whose inputs are each one's own or not.
pub(super) fn outputs(program: &Program, inputs: &[bool]) -> Vec<bool> {
    let mut made: Vec<bool> = Vec::new();
    let find = |made: &[bool], operand: &Operand| match *operand {
        Operand::Input(i) => inputs.get(i as usize).is_some_and(|&own| own),
        Operand::Result(r) => made.get(r as usize).is_some_and(|&own| own),
    };
    for instruction in &program.instructions {
        let operands: Vec<bool> = instruction.operands.iter().map(|operand| find(&made, operand)).collect();
        made.extend(results(&instruction.op, &operands, instruction.outs.len()));
    }
    program.outputs.iter().map(|operand| find(&made, operand)).collect()
}

/// Of the operands of a loop, the state among them, which are each one's own while it runs, and whether each ends it on
/// its own. What a cell gets from others that are each one's own, it has of its own from then on.
pub(super) fn cells(op: &Loop, operands: &[bool]) -> (Vec<bool>, bool) {
    let mut own = operands.to_vec();
    loop {
        let apart = outputs(&op.condition, &own).contains(&true);
        let next = outputs(&op.body, &own);
        let stays = |i: usize| op.body.outputs.get(i) == Some(&Operand::Input(i as u32));
        let grown: Vec<bool> =
            next.iter().enumerate().map(|(i, next)| own[i] || *next || (apart && !stays(i))).collect();
        if own[..grown.len()] == grown[..] {
            return (own, apart);
        }
        own[..grown.len()].copy_from_slice(&grown);
    }
}
