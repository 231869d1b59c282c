//! The control flow of a function, and which blocks every way to another leads through.

use std::collections::{BTreeSet, HashMap};

use rspirv::spirv::Op;

use super::operands::Checker;
use super::parse::Instruction;
use super::parts::{Block, Checked, Function, is_terminator, located};

/// Steps that finding the dominators of one function may take. Ordinary shaders need a few per block.
const DOMINATOR_STEPS: usize = 50_000_000;

/// The instructions of a block after its label, with their indices.
pub fn inside<'m>(checker: &Checker<'m>, block: &Block) -> impl Iterator<Item = (usize, &'m Instruction)> {
    let first = block.label + 1;
    let instructions = checker.module.instructions.get(first..=block.end).unwrap_or(&[]);
    instructions.iter().enumerate().map(move |(index, instruction)| (first + index, instruction))
}

/// The labels that a terminator or a merge names.
pub fn targets<'m>(checker: &Checker<'m>, instruction: &Instruction) -> &'m [u32] {
    let ids = checker.module.ids(instruction);
    match instruction.op {
        Op::Branch | Op::SelectionMerge | Op::LoopMerge => ids,
        Op::BranchConditional | Op::Switch => ids.get(1..).unwrap_or(&[]),
        _ => &[],
    }
}

/// The control flow of a function, by block index.
#[derive(Clone)]
pub struct Graph {
    pub labels: HashMap<u32, usize>,
    pub successors: Vec<BTreeSet<usize>>,
    pub predecessors: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// Adds a way that structured control flow has beside the branches: from a header to its merge or continue block.
    pub fn connect(&mut self, from: usize, to: usize) {
        self.successors[from].insert(to);
        self.predecessors[to].insert(from);
    }

    pub fn of(checker: &Checker, function: &Function) -> Checked<Graph> {
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
                        graph.connect(from, to);
                    }
                }
            }
        }
        Ok(graph)
    }
}

/// The dominator tree of a function (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001), as
/// intervals: a block dominates those whose interval lies in its own.
pub struct Dominators {
    intervals: Vec<Option<(usize, usize)>>,
    parents: Vec<Option<usize>>,
    numbers: Vec<Option<usize>>,
}

impl Dominators {
    pub fn of(graph: &Graph) -> Checked<Dominators> {
        let order = post_order(&graph.successors);
        let mut number = vec![None; graph.successors.len()];
        for (position, &block) in order.iter().enumerate() {
            number[block] = Some(position);
        }
        // By post-order number, in which the first block is the last and every dominator is later than what it
        // dominates.
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
        let mut immediate = vec![None; graph.successors.len()];
        for (position, parent) in parents.iter().enumerate() {
            immediate[order[position]] = parent.filter(|&parent| parent != position).map(|parent| order[parent]);
        }
        Ok(Dominators { intervals, parents: immediate, numbers: number })
    }

    pub fn is_reachable(&self, block: usize) -> bool {
        self.intervals.get(block).is_some_and(Option::is_some)
    }

    /// The nearest block that every way to this one leads through; none for the first block and those that nothing
    /// leads to.
    pub fn parent(&self, block: usize) -> Option<usize> {
        self.parents.get(block).copied().flatten()
    }

    /// Blocks that can be reached, each after those that dominate it.
    pub fn outside_in(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.numbers.len()).filter(|&block| self.is_reachable(block)).collect();
        order.sort_by_key(|&block| std::cmp::Reverse(self.numbers[block]));
        order
    }

    /// Does an edge lead back to a block that a walk from the first block is still inside of?
    pub fn leads_back(&self, from: usize, to: usize) -> bool {
        self.numbers[from] <= self.numbers[to]
    }

    pub fn dominates(&self, definer: usize, user: usize) -> bool {
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
