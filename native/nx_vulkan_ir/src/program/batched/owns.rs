//! Which values are each one's own, found without the program of them.

use crate::program::ops::matrix::Matrix;
use crate::program::{Linalg, Loop, Op, Operand, Program};

/// Whether an op has loops of which it is not known how often they run: those for whom one is not to run must not run
/// it, as it might go on for ever.
pub(super) fn might_not_end(op: &Op) -> bool {
    let is_open = matches!(op, Op::While(op) if op.known_trips().is_none());
    is_open || op.inside().any(has_open_loop)
}

/// Whether a program has such loops.
pub(super) fn has_open_loop(program: &Program) -> bool {
    program.instructions.iter().any(|instruction| might_not_end(&instruction.op))
}

/// Of the results of an op whose operands are each one's own or not.
fn of_op(op: &Op, operands: &[bool], count: usize, masked: bool) -> Vec<bool> {
    match op {
        Op::While(op) => {
            let mut cells = cells(op, operands, masked).0;
            cells.truncate(count);
            cells
        }
        Op::Cond(op) if !operands.first().is_some_and(|&own| own) => {
            let captured = operands.get(1..).unwrap_or_default();
            let ways = [&op.on_true, &op.on_false].map(|program| outputs(program, captured, masked));
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

fn find(operand: Operand, inputs: &[bool], made: &[bool]) -> bool {
    match operand {
        Operand::Input(i) => inputs.get(i as usize).is_some_and(|&own| own),
        Operand::Result(r) => made.get(r as usize).is_some_and(|&own| own),
    }
}

/// Of all results of a program whose inputs are each one's own or not. It is `masked` where it is not to run for all.
pub(in crate::program) fn results(program: &Program, inputs: &[bool], masked: bool) -> Vec<bool> {
    let mut made: Vec<bool> = Vec::new();
    for instruction in &program.instructions {
        let operands: Vec<bool> = instruction.operands.iter().map(|&o| find(o, inputs, &made)).collect();
        made.extend(of_op(&instruction.op, &operands, instruction.outs.len(), masked));
    }
    made
}

/// Of the outputs of such a program.
pub(super) fn outputs(program: &Program, inputs: &[bool], masked: bool) -> Vec<bool> {
    let made = results(program, inputs, masked);
    program.outputs.iter().map(|&operand| find(operand, inputs, &made)).collect()
}

/// Of the operands of a loop, the state among them, which are each one's own while it runs, and whether it is to run
/// for each as long as its own condition or mask says. What a cell gets from others that are each one's own, it has of
/// its own from then on.
pub(in crate::program) fn cells(op: &Loop, operands: &[bool], masked: bool) -> (Vec<bool>, bool) {
    let mut own = operands.to_vec();
    loop {
        let apart = masked && op.known_trips().is_none() || outputs(&op.condition, &own, masked).contains(&true);
        let next = outputs(&op.body, &own, masked || apart);
        let stays = |i: usize| op.body.outputs.get(i) == Some(&Operand::Input(i as u32));
        let grown: Vec<bool> =
            next.iter().enumerate().map(|(i, next)| own[i] || *next || (apart && !stays(i))).collect();
        if own[..grown.len()] == grown[..] {
            return (own, apart);
        }
        own[..grown.len()].copy_from_slice(&grown);
    }
}
