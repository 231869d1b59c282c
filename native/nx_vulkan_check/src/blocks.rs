//! The blocks of a function: branches lead to its own labels, phis fit them, and values are computed before they are
//! used.

use std::collections::BTreeSet;

use rspirv::spirv::{Op, StorageClass};

use super::graph::{Dominators, Graph, inside};
use super::operands::Checker;
use super::parse::Instruction;
use super::parts::{Block, Checked, Function, is_merge, located};
use super::structure;
use super::types::Type;

pub fn check(checker: &Checker, function: &Function) -> Checked {
    signature(checker, function)?;
    let graph = Graph::of(checker, function)?;
    merges(checker, function)?;
    for (index, block) in function.blocks.iter().enumerate() {
        for (at, instruction) in inside(checker, block) {
            block_rules(checker, function, index, at, instruction).map_err(|reason| located(instruction, &reason))?;
        }
        phis(checker, block, &graph, index)?;
    }
    let dominators = Dominators::of(&graph)?;
    in_order(checker, function, &dominators)?;
    for (index, block) in function.blocks.iter().enumerate() {
        if dominators.is_reachable(index) {
            for (_, instruction) in inside(checker, block) {
                uses(checker, function, &graph, &dominators, index, instruction)
                    .map_err(|reason| located(instruction, &reason))?;
            }
        }
    }
    structure::check(checker, function, &graph, &dominators)
}

/// Blocks stand after those that dominate them.
fn in_order(checker: &Checker, function: &Function, dominators: &Dominators) -> Checked {
    for (index, block) in function.blocks.iter().enumerate() {
        if dominators.parent(index).is_some_and(|parent| parent > index)
            && let Some(label) = checker.module.instructions.get(block.label)
        {
            return Err(located(label, "stands before a block that every way here leads through; move it behind that"));
        }
    }
    Ok(())
}

fn signature(checker: &Checker, function: &Function) -> Checked {
    let instructions = &checker.module.instructions;
    let Some(first) = instructions.get(function.first) else {
        return Ok(());
    };
    let fault = |reason: String| located(first, &reason);
    let (result, parameters) = checker.function_type(first.result.unwrap_or(0)).map_err(fault)?;
    if first.result_type != Some(result) {
        return Err(fault("its result does not fit its type".into()));
    }
    let declared = function.parameters.iter().map(|&at| instructions.get(at).and_then(|i| i.result_type));
    if declared.eq(parameters.iter().map(|&parameter| Some(parameter))) {
        Ok(())
    } else {
        Err(fault("its parameters do not fit its type".into()))
    }
}

fn block_rules(checker: &Checker, function: &Function, block: usize, at: usize, instruction: &Instruction) -> Checked {
    let instructions = &checker.module.instructions;
    if instruction.op == Op::Variable {
        let class = StorageClass::from_u32(checker.module.operand(instruction, 0));
        if block != 0 || class != Some(StorageClass::Function) {
            return Err("not a Function variable of the first block".into());
        }
    }
    if is_merge(instruction.op) {
        let next = instructions.get(at + 1).map(|next| next.op);
        let fits = match instruction.op {
            Op::SelectionMerge => matches!(next, Some(Op::BranchConditional | Op::Switch)),
            _ => matches!(next, Some(Op::Branch | Op::BranchConditional)),
        };
        if !fits {
            return Err("is not followed by a branch".into());
        }
    }
    let result = instructions.get(function.first).and_then(|first| first.result_type).unwrap_or(0);
    let returns_its_type = match instruction.op {
        Op::Return => checker.types.get(result) == Some(&Type::Void),
        Op::ReturnValue => checker.type_of(checker.module.operand(instruction, 0))? == result,
        _ => true,
    };
    if returns_its_type { Ok(()) } else { Err("does not return the function's type".into()) }
}

/// Each merge block is that of one selection or loop, and no continue block of it.
fn merges(checker: &Checker, function: &Function) -> Checked {
    let mut seen = BTreeSet::new();
    for block in &function.blocks {
        for (_, instruction) in inside(checker, block).filter(|(_, instruction)| is_merge(instruction.op)) {
            let merge = checker.module.operand(instruction, 0);
            let is_continue = instruction.op == Op::LoopMerge && checker.module.operand(instruction, 1) == merge;
            if is_continue || !seen.insert(merge) {
                return Err(located(instruction, &format!("its merge block {merge} has another part, too")));
            }
        }
    }
    Ok(())
}

/// Every phi stands at the start of its block and has one value for each block that leads there.
fn phis(checker: &Checker, block: &Block, graph: &Graph, index: usize) -> Checked {
    let mut at_start = true;
    for (_, instruction) in inside(checker, block) {
        if instruction.op != Op::Phi {
            at_start &= matches!(instruction.op, Op::Line | Op::NoLine);
            continue;
        }
        if !at_start {
            return Err(located(instruction, "is not at the start of its block"));
        }
        let labels = checker.module.ids(instruction).iter().skip(1).step_by(2);
        let count = labels.len();
        let parents: BTreeSet<usize> = labels.filter_map(|label| graph.labels.get(label).copied()).collect();
        if parents.len() != count || parents != graph.predecessors[index] {
            return Err(located(instruction, "its parents are not the blocks that lead here"));
        }
    }
    Ok(())
}

/// Every value that an instruction uses is computed on all ways that lead there.
fn uses(
    checker: &Checker,
    function: &Function,
    graph: &Graph,
    dominators: &Dominators,
    block: usize,
    instruction: &Instruction,
) -> Checked {
    let block_of = |id: u32| -> Option<usize> {
        let at = checker.ids.definition(id)?.at;
        let after = function.blocks.partition_point(|block| block.label <= at);
        let index = after.checked_sub(1)?;
        (at != function.blocks.get(index)?.label).then_some(index)
    };
    let is_local = |id: u32| checker.ids.definition(id).is_some_and(|d| d.function == Some(function.first));
    let ids = checker.module.ids(instruction);
    let check = |id: u32, user: usize| match block_of(id) {
        Some(definer) if is_local(id) && dominators.is_reachable(user) && !dominators.dominates(definer, user) => {
            Err(format!("id {id} is not computed on every way that leads here"))
        }
        _ => Ok(()),
    };
    if instruction.op == Op::Phi {
        return ids.chunks_exact(2).try_for_each(|pair| match graph.labels.get(&pair[1]) {
            Some(&parent) => check(pair[0], parent),
            None => Ok(()),
        });
    }
    ids.iter().try_for_each(|&id| check(id, block))
}
