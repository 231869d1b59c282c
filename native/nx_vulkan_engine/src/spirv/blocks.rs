//! The blocks of a function: branches lead to its own labels, phis fit them, and values are computed before they are used.

use super::check::{Block, Checked, Function, is_merge, is_terminator, located};
use super::operands::Checker;
use super::parse::Instruction;
use super::types::Type;
use rspirv::spirv::{Op, StorageClass};
use std::collections::{BTreeSet, HashMap};

/// Steps that finding the dominators of one function may take. Ordinary shaders need a few per block.
const DOMINATOR_STEPS: usize = 50_000_000;

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
    for (index, block) in function.blocks.iter().enumerate() {
        if dominators.is_reachable(index) {
            for (_, instruction) in inside(checker, block) {
                uses(checker, function, &graph, &dominators, index, instruction)
                    .map_err(|reason| located(instruction, &reason))?;
            }
        }
    }
    Ok(())
}

/// The instructions of a block after its label, with their indices.
fn inside<'m>(checker: &Checker<'m>, block: &Block) -> impl Iterator<Item = (usize, &'m Instruction)> {
    let first = block.label + 1;
    let instructions = checker.module.instructions.get(first..=block.end).unwrap_or(&[]);
    instructions.iter().enumerate().map(move |(index, instruction)| (first + index, instruction))
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

/// The labels that a terminator or a merge names.
fn targets<'m>(checker: &Checker<'m>, instruction: &Instruction) -> &'m [u32] {
    let ids = checker.module.ids(instruction);
    match instruction.op {
        Op::Branch | Op::SelectionMerge | Op::LoopMerge => ids,
        Op::BranchConditional | Op::Switch => ids.get(1..).unwrap_or(&[]),
        _ => &[],
    }
}

/// The control flow of a function, by block index.
struct Graph {
    labels: HashMap<u32, usize>,
    successors: Vec<BTreeSet<usize>>,
    predecessors: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn of(checker: &Checker, function: &Function) -> Checked<Graph> {
        let label = |block: &Block| checker.module.instructions.get(block.label)?.result;
        let blocks = function.blocks.iter().enumerate();
        let labels: HashMap<u32, usize> = blocks.filter_map(|(index, block)| Some((label(block)?, index))).collect();
        let mut graph = Graph {
            labels,
            successors: vec![BTreeSet::new(); function.blocks.len()],
            predecessors: vec![BTreeSet::new(); function.blocks.len()],
        };
        for (from, block) in function.blocks.iter().enumerate() {
            for (_, instruction) in inside(checker, block) {
                for target in targets(checker, instruction) {
                    let Some(&to) = graph.labels.get(target) else {
                        return Err(located(instruction, &format!("{target} is no label of this function")));
                    };
                    if to == 0 {
                        return Err(located(instruction, "leads back to the first block"));
                    }
                    if is_terminator(instruction.op) {
                        graph.successors[from].insert(to);
                        graph.predecessors[to].insert(from);
                    }
                }
            }
        }
        Ok(graph)
    }
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

/// The dominator tree of a function (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001), as intervals:
/// a block dominates those whose interval lies in its own.
struct Dominators {
    intervals: Vec<Option<(usize, usize)>>,
}

impl Dominators {
    fn of(graph: &Graph) -> Checked<Dominators> {
        let order = post_order(&graph.successors);
        let mut number = vec![None; graph.successors.len()];
        for (position, &block) in order.iter().enumerate() {
            number[block] = Some(position);
        }
        // By post-order number, in which the first block is the last and every dominator is later than what it dominates.
        let entry = order.len() - 1;
        let mut parents = vec![None; order.len()];
        parents[entry] = Some(entry);
        let mut steps = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for position in (0..entry).rev() {
                let known = graph.predecessors[order[position]].iter().filter_map(|&p| number[p]);
                let mut parent: Option<usize> = None;
                for candidate in known.filter(|&p| parents[p].is_some()) {
                    let mut pair = (candidate, parent.unwrap_or(candidate));
                    while pair.0 != pair.1 {
                        let (low, high) = (pair.0.min(pair.1), pair.0.max(pair.1));
                        pair = (parents[low].unwrap_or(entry), high);
                        steps += 1;
                    }
                    parent = Some(pair.0);
                }
                changed |= parents[position] != parent;
                parents[position] = parent;
                steps += 1;
                if steps > DOMINATOR_STEPS {
                    return Err("control flow too tangled to check".into());
                }
            }
        }
        let mut children = vec![BTreeSet::new(); order.len()];
        for (position, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent.filter(|&parent| parent != position) {
                children[parent].insert(position);
            }
        }
        // In post-order of the tree a subtree is a run of numbers that ends with its root.
        let mut intervals = vec![None; graph.successors.len()];
        let mut sizes = vec![1; order.len()];
        for (end, position) in post_order_from(&children, entry).into_iter().enumerate() {
            sizes[position] += children[position].iter().map(|&child| sizes[child]).sum::<usize>();
            intervals[order[position]] = Some((end + 1 - sizes[position], end));
        }
        Ok(Dominators { intervals })
    }

    fn is_reachable(&self, block: usize) -> bool {
        self.intervals.get(block).is_some_and(Option::is_some)
    }

    fn dominates(&self, definer: usize, user: usize) -> bool {
        match (self.intervals.get(definer), self.intervals.get(user)) {
            (Some(Some((low, high))), Some(Some((_, end)))) => low <= end && end <= high,
            _ => false,
        }
    }
}

/// The blocks that the first one leads to, each after those that it leads to (but for loops).
fn post_order(successors: &[BTreeSet<usize>]) -> Vec<usize> {
    post_order_from(successors, 0)
}

fn post_order_from(successors: &[BTreeSet<usize>], root: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; successors.len()];
    seen[root] = true;
    let mut stack = vec![(root, successors[root].iter())];
    while let Some((block, rest)) = stack.last_mut() {
        match rest.next() {
            Some(&next) if !seen[next] => {
                seen[next] = true;
                stack.push((next, successors[next].iter()));
            }
            Some(_) => {}
            None => {
                order.push(*block);
                stack.pop();
            }
        }
    }
    order
}
