//! Is a module put together as a driver expects: sections in order, ids defined once and before use, types that fit,
//! functions whose blocks end and branch within themselves, no recursion.
//!
//! All walks are loops over the instruction list or a work list with a visited set.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::Op;

use super::operands::Checker;
use super::parse::{Instruction, Module};
use super::parts::{Block, Checked, Function, Ids, is_global, is_non_semantic, is_terminator, located, section};
use super::types::Types;
use super::{annotations, blocks, layout};

pub fn check(module: &Module, types: &Types, ids: &Ids) -> Checked {
    sections_in_order(module)?;
    let functions = functions(module)?;
    each_id_before_use(module, ids)?;
    annotations::check(module, types, ids)?;
    let checker = Checker { module, types, ids };
    for instruction in &module.instructions {
        checker.instruction(instruction).map_err(|reason| located(instruction, &reason))?;
    }
    layout::check(&checker)?;
    for function in &functions {
        blocks::check(&checker, function)?;
    }
    no_recursion(module, &functions)
}

fn sections_in_order(module: &Module) -> Checked {
    let mut reached = 0;
    let mut memory_models = 0;
    for instruction in &module.instructions {
        memory_models += usize::from(instruction.op == Op::MemoryModel);
        if let Some(section) = section(instruction.op) {
            if section < reached {
                return Err(located(instruction, "stands after a later section"));
            }
            reached = section;
        }
    }
    if memory_models == 1 { Ok(()) } else { Err(format!("{memory_models} memory models")) }
}

/// Splits the function section into functions and blocks.
fn functions(module: &Module) -> Checked<Vec<Function>> {
    let mut functions = Vec::new();
    let mut current: Option<Function> = None;
    let mut label = None;
    let is_debug_set = |i: &&Instruction| i.op == Op::ExtInstImport && is_non_semantic(module, i);
    let debug_sets: HashSet<u32> = module.instructions.iter().filter(is_debug_set).filter_map(|i| i.result).collect();
    for (at, instruction) in module.instructions.iter().enumerate() {
        let op = instruction.op;
        if matches!(op, Op::ExtInst | Op::ExtInstWithForwardRefsKHR)
            && debug_sets.contains(&module.operand(instruction, 0))
        {
            continue;
        }
        let wrong = |reason: &str| Err(located(instruction, reason));
        if section(op) != Some(9) {
            if current.is_some() && section(op).is_some() {
                return wrong("stands in a function");
            }
            continue;
        }
        let Some(function) = &mut current else {
            match op {
                Op::Function => current = Some(Function { first: at, parameters: Vec::new(), blocks: Vec::new() }),
                _ if is_global(instruction) && functions.is_empty() => {}
                _ => return wrong("stands outside of every function"),
            }
            continue;
        };
        match (op, label) {
            (Op::FunctionParameter, None) if function.blocks.is_empty() => function.parameters.push(at),
            (Op::Label, None) => label = Some(at),
            (Op::Function | Op::Label | Op::FunctionEnd | Op::FunctionParameter, Some(_)) => {
                return wrong("the block before has no end");
            }
            (Op::FunctionEnd, None) => {
                if function.blocks.is_empty() {
                    return wrong("a function without a body");
                }
                functions.extend(current.take());
            }
            (_, Some(start)) if is_terminator(op) => {
                function.blocks.push(Block { label: start, end: at });
                label = None;
            }
            (_, Some(_)) if may_stand_in_block(instruction) => {}
            (_, Some(_)) => return wrong("has no place in a compute shader's function"),
            (_, None) => return wrong("stands outside of every block"),
        }
    }
    if current.is_some() {
        return Err("the last function has no end".into());
    }
    Ok(functions)
}

fn may_stand_in_block(instruction: &Instruction) -> bool {
    let op = instruction.op;
    let of_graphics = matches!(
        op,
        Op::Kill
            | Op::TerminateInvocation
            | Op::DemoteToHelperInvocation
            | Op::IgnoreIntersectionKHR
            | Op::TerminateRayKHR
            | Op::EmitMeshTasksEXT
            | Op::EmitVertex
            | Op::EndPrimitive
    );
    !of_graphics && (matches!(op, Op::Variable | Op::Undef) || !is_global(instruction))
}

/// Whether an instruction may name an id that is defined later, by the id's place among its operands.
fn may_look_ahead(op: Op, place: usize) -> bool {
    if place == usize::MAX {
        return false;
    }
    match op {
        Op::FunctionCall => place == 0,
        Op::BranchConditional | Op::Switch => place > 0,
        Op::TypeForwardPointer
        | Op::ExtInstWithForwardRefsKHR
        | Op::TypeStruct
        | Op::Phi
        | Op::Branch
        | Op::SelectionMerge
        | Op::LoopMerge => true,
        _ => section(op).is_some_and(|section| section < 9),
    }
}

fn each_id_before_use(module: &Module, ids: &Ids) -> Checked {
    let mut function = None;
    for (at, instruction) in module.instructions.iter().enumerate() {
        match instruction.op {
            Op::Function => function = Some(at),
            Op::FunctionEnd => function = None,
            _ => {}
        }
        let used = module.ids(instruction).iter().copied().enumerate();
        for (place, id) in used.chain(instruction.result_type.map(|id| (usize::MAX, id))) {
            let Some(definition) = ids.definition(id) else {
                return Err(located(instruction, &format!("id {id} is not defined")));
            };
            let looks_ahead = may_look_ahead(instruction.op, place);
            if definition.at >= at && !looks_ahead {
                return Err(located(instruction, &format!("id {id} is used before it is defined")));
            }
            let is_annotation = section(instruction.op).is_some_and(|section| section < 9);
            if definition.function.is_some() && definition.function != function && !is_annotation {
                return Err(located(instruction, &format!("id {id} belongs to another function")));
            }
        }
    }
    Ok(())
}

fn no_recursion(module: &Module, functions: &[Function]) -> Checked {
    let mut callees: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut waiting: HashMap<u32, usize> = HashMap::new();
    for function in functions {
        let Some(id) = module.instructions.get(function.first).and_then(|i| i.result) else {
            continue;
        };
        waiting.entry(id).or_default();
        let last = function.blocks.last().map_or(function.first, |block| block.end);
        for instruction in module.instructions.get(function.first..=last).unwrap_or(&[]) {
            if instruction.op == Op::FunctionCall {
                let callee = module.operand(instruction, 0);
                callees.entry(id).or_default().push(callee);
                *waiting.entry(callee).or_default() += 1;
            }
        }
    }
    // Take away functions that nobody left calls, until none is left or only cycles are.
    let mut free: Vec<u32> = waiting.iter().filter(|(_, calls)| **calls == 0).map(|(id, _)| *id).collect();
    let mut taken = 0;
    while let Some(id) = free.pop() {
        taken += 1;
        for callee in callees.get(&id).into_iter().flatten() {
            if let Some(calls) = waiting.get_mut(callee) {
                *calls -= 1;
                if *calls == 0 {
                    free.push(*callee);
                }
            }
        }
    }
    if taken == waiting.len() { Ok(()) } else { Err("functions call each other in a circle".into()) }
}
