//! Which values of a program differ from row to row.

use crate::program::{Loop, Op, Operand, Program};

/// Whether each output differs where the inputs do that are said to.
pub(super) fn outputs(program: &Program, inputs: &[bool]) -> Vec<bool> {
    let results = results(program, inputs);
    program.outputs.iter().map(|&output| of(output, inputs, &results)).collect()
}

/// Whether each result does.
pub(super) fn results(program: &Program, inputs: &[bool]) -> Vec<bool> {
    let mut results = Vec::new();
    for instruction in &program.instructions {
        let operands: Vec<bool> = instruction.operands.iter().map(|&o| of(o, inputs, &results)).collect();
        match &instruction.op {
            Op::While(op) => {
                let (varies, _) = states(op, &operands);
                results.extend(varies.into_iter().take(instruction.outs.len()));
            }
            Op::Cond(op) if operands.first() == Some(&false) => {
                let branches = [&op.on_true, &op.on_false].map(|branch| outputs(branch, &operands[1..]));
                results.extend(branches[0].iter().zip(&branches[1]).map(|(a, b)| a | b));
            }
            _ => results.extend(instruction.outs.iter().map(|_| operands.contains(&true))),
        }
    }
    results
}

fn of(operand: Operand, inputs: &[bool], results: &[bool]) -> bool {
    match operand {
        Operand::Input(i) => inputs.get(i as usize).copied().unwrap_or(true),
        Operand::Result(r) => results.get(r as usize).copied().unwrap_or(true),
    }
}

/// Which of a loop's operands differ, the states after any number of iterations, and whether its condition does. Where
/// that does, rows end at different times, and so does all that iterations change.
pub(super) fn states(op: &Loop, operands: &[bool]) -> (Vec<bool>, bool) {
    let mut varies = operands.to_vec();
    loop {
        let condition = outputs(&op.condition, &varies).contains(&true);
        let next = outputs(&op.body, &varies);
        let mut is_known = true;
        for (state, (&next, &output)) in next.iter().zip(&op.body.outputs).enumerate() {
            let changes = output != Operand::Input(state as u32);
            if !varies[state] && (next || condition && changes) {
                varies[state] = true;
                is_known = false;
            }
        }
        if is_known {
            return (varies, condition);
        }
    }
}
