//! Structured control flow (SPIR-V section 2.11): headers, the constructs that they open, and the ways in and out of
//! them.
//!
//! With an edge from every header to its merge and its continue block ("structural" edges), a construct is what its
//! header dominates without what its merge block dominates. So each is found by one walk down the dominator tree, and
//! each edge needs a look at the innermost construct that it leaves and the few that it enters.

use std::collections::{BTreeMap, HashMap, HashSet};

use rspirv::spirv::Op;

use super::graph::{Dominators, Graph, targets};
use super::operands::Checker;
use super::parse::Instruction;
use super::parts::{Checked, Function, is_merge, located};

/// SPIR-V's universal limit on nested constructs (section 2.17).
const MAX_DEPTH: usize = 1023;

/// `graph` has the branches alone, and `flow` says what they lead to.
pub fn check(checker: &Checker, function: &Function, graph: &Graph, flow: &Dominators) -> Checked {
    let headers = headers(checker, function, graph);
    let mut structural = graph.clone();
    for (block, header) in headers.iter().enumerate() {
        if let Some(header) = header {
            structural.connect(block, header.merge);
            if let Some(target) = header.continues.filter(|&target| target != block) {
                structural.connect(block, target);
            }
        }
    }
    let dominators = Dominators::of(&structural)?;
    let mut structure = Structure {
        checker,
        function,
        graph,
        flow,
        dominators,
        headers,
        latches: HashMap::new(),
        constructs: Vec::new(),
        innermost: vec![None; function.blocks.len()],
    };
    structure.check_headers()?;
    structure.find_latches()?;
    structure.find_constructs()?;
    structure.check_edges()?;
    structure.check_selections()
}

/// What a block's merge instruction declares, by block index.
#[derive(Clone, Copy)]
struct Header {
    merge: usize,
    /// The continue target of a loop; none for a selection.
    continues: Option<usize>,
    is_switch: bool,
}

fn headers(checker: &Checker, function: &Function, graph: &Graph) -> Vec<Option<Header>> {
    let instructions = &checker.module.instructions;
    let of = |end: usize| {
        let merge = instructions.get(end.checked_sub(1)?).filter(|instruction| is_merge(instruction.op))?;
        let block = |index| graph.labels.get(&checker.module.operand(merge, index)).copied();
        let continues = if merge.op == Op::LoopMerge { Some(block(1)?) } else { None };
        Some(Header { merge: block(0)?, continues, is_switch: instructions.get(end)?.op == Op::Switch })
    };
    function.blocks.iter().map(|block| of(block.end)).collect()
}

enum ConstructKind {
    Selection,
    /// One target of the switch whose construct is around it.
    Case,
    Loop {
        continues: usize,
    },
    /// From the continue target to the block with the back edge.
    Continue {
        latch: usize,
    },
}

struct Construct {
    kind: ConstructKind,
    /// Where it is entered.
    entry: usize,
    /// The header of the selection or loop that it belongs to.
    header: usize,
    outer: Option<usize>,
    depth: usize,
    /// The nearest loop around a block of it, by its header.
    in_loop: Option<usize>,
    /// The nearest switch that can be left from it, by its header.
    in_switch: Option<usize>,
    /// The nearest continue construct, this one included.
    in_continue: Option<usize>,
}

struct Structure<'m> {
    checker: &'m Checker<'m>,
    function: &'m Function,
    graph: &'m Graph,
    flow: &'m Dominators,
    /// With structural edges.
    dominators: Dominators,
    headers: Vec<Option<Header>>,
    /// The block with the back edge, by loop header.
    latches: HashMap<usize, usize>,
    constructs: Vec<Construct>,
    /// The innermost construct of a block; a header is inside of its own.
    innermost: Vec<Option<usize>>,
}

impl<'m> Structure<'m> {
    fn terminator(&self, block: usize) -> Option<&'m Instruction> {
        self.checker.module.instructions.get(self.function.blocks.get(block)?.end)
    }

    fn label(&self, block: usize) -> u32 {
        let label = self.function.blocks.get(block).and_then(|block| self.checker.module.instructions.get(block.label));
        label.and_then(|label| label.result).unwrap_or(0)
    }

    /// An error at the end of a block.
    fn fault<T>(&self, block: usize, reason: &str) -> Checked<T> {
        Err(self.terminator(block).map_or_else(|| reason.to_owned(), |instruction| located(instruction, reason)))
    }

    /// Merge blocks, continue targets and cases can be reached through their header only.
    fn check_headers(&self) -> Checked {
        for (block, header) in self.reachable_headers() {
            // A loop may be its own continue construct.
            let continues = header.continues.filter(|&target| target != block);
            let declared = [("merge block", Some(header.merge)), ("continue target", continues)];
            for (name, target) in declared {
                if let Some(target) = target.filter(|&target| self.dominators.parent(target) != Some(block)) {
                    let (header, target) = (self.label(block), self.label(target));
                    let reason =
                        format!("the {name} {target} of header {header} must be reached through {header} alone");
                    return self.fault(block, &reason);
                }
            }
            let is_foreign = |case: &&usize| **case != header.merge && self.dominators.parent(**case) != Some(block);
            if header.is_switch
                && let Some(&case) = self.graph.successors[block].iter().find(is_foreign)
            {
                let reason = format!(
                    "case {} can be reached past this switch; give the case a block of its own",
                    self.label(case)
                );
                return self.fault(block, &reason);
            }
        }
        Ok(())
    }

    fn reachable_headers(&self) -> impl Iterator<Item = (usize, Header)> {
        let headers = self.headers.iter().enumerate().filter_map(|(block, header)| Some((block, (*header)?)));
        headers.filter(|(block, _)| self.dominators.is_reachable(*block))
    }

    /// Every back edge leads to a loop header, each loop header has one, and it comes from the continue construct.
    fn find_latches(&mut self) -> Checked {
        for (from, successors) in self.graph.successors.iter().enumerate() {
            for &to in successors.iter().filter(|_| self.dominators.is_reachable(from)) {
                if !self.dominators.leads_back(from, to) {
                    continue;
                }
                let Some(continues) = self.headers[to].and_then(|header| header.continues) else {
                    return self.fault(from, &format!("leads back to {}, which is no loop header", self.label(to)));
                };
                if continues == to && from != to {
                    let reason = format!(
                        "the loop of header {} is its own continue target, so it must lead back to itself without \
                         another block",
                        self.label(to)
                    );
                    return self.fault(from, &reason);
                }
                if !self.dominators.dominates(continues, from) {
                    let (header, target) = (self.label(to), self.label(continues));
                    let reason =
                        format!("leads back to loop header {header} from outside of its continue target {target}");
                    return self.fault(from, &reason);
                }
                if self.latches.insert(to, from).is_some() {
                    return self.fault(from, &format!("is a second way back to loop header {}", self.label(to)));
                }
            }
        }
        for (block, header) in self.reachable_headers() {
            if header.continues.is_some() && !self.latches.contains_key(&block) {
                return self.fault(block, &format!("no block leads back to loop header {}", self.label(block)));
            }
        }
        Ok(())
    }

    /// Gives each block its innermost construct, that of its dominator but where a construct begins or ends.
    fn find_constructs(&mut self) -> Checked {
        let mut around: Vec<Option<usize>> = vec![None; self.headers.len()];
        for block in self.dominators.outside_in() {
            let parent = self.dominators.parent(block);
            let mut current = match parent.and_then(|parent| Some((parent, self.headers[parent]?))) {
                Some((parent, header)) if header.merge == block => around[parent],
                Some((parent, header)) if header.continues == Some(block) => {
                    self.open(self.continuing(parent), block, parent, around[parent])?
                }
                Some((parent, header)) if header.is_switch && self.graph.successors[parent].contains(&block) => {
                    self.open(ConstructKind::Case, block, parent, self.innermost[parent])?
                }
                _ => parent.and_then(|parent| self.innermost[parent]),
            };
            around[block] = current;
            if let Some(header) = self.headers[block] {
                let kind = match header.continues {
                    None => ConstructKind::Selection,
                    // Nothing is outside of the continue construct then.
                    Some(continues) if continues == block => self.continuing(block),
                    Some(continues) => ConstructKind::Loop { continues },
                };
                current = self.open(kind, block, block, current)?;
            }
            self.innermost[block] = current;
        }
        Ok(())
    }

    fn continuing(&self, header: usize) -> ConstructKind {
        ConstructKind::Continue { latch: self.latches.get(&header).copied().unwrap_or(header) }
    }

    fn open(
        &mut self,
        kind: ConstructKind,
        entry: usize,
        header: usize,
        outer: Option<usize>,
    ) -> Checked<Option<usize>> {
        let index = self.constructs.len();
        let parent = outer.map(|outer| &self.constructs[outer]);
        let depth = parent.map_or(0, |parent| parent.depth) + usize::from(!matches!(kind, ConstructKind::Case));
        if depth > MAX_DEPTH {
            return self.fault(entry, &format!("is nested in more than {MAX_DEPTH} loops and selections"));
        }
        let is_loop = matches!(kind, ConstructKind::Loop { .. } | ConstructKind::Continue { .. });
        let is_switch =
            matches!(kind, ConstructKind::Selection) && self.headers[header].is_some_and(|header| header.is_switch);
        let construct = Construct {
            entry,
            header,
            outer,
            depth,
            in_loop: if is_loop { Some(header) } else { parent.and_then(|parent| parent.in_loop) },
            in_switch: match () {
                () if is_switch => Some(header),
                () if is_loop => None,
                () => parent.and_then(|parent| parent.in_switch),
            },
            in_continue: match kind {
                ConstructKind::Continue { .. } => Some(index),
                _ => parent.and_then(|parent| parent.in_continue),
            },
            kind,
        };
        self.constructs.push(construct);
        Ok(Some(index))
    }

    fn merge_of(&self, header: usize) -> Option<usize> {
        self.headers[header].map(|header| header.merge)
    }

    fn contains(&self, construct: &Construct, block: usize) -> bool {
        let dominated_by = |by: usize| self.dominators.dominates(by, block);
        let is_behind = self.merge_of(construct.header).is_some_and(dominated_by);
        dominated_by(construct.entry)
            && !is_behind
            && !matches!(construct.kind, ConstructKind::Loop { continues } if dominated_by(continues))
    }

    fn check_edges(&self) -> Checked {
        // By switch header and case entry: the other case that it leads to.
        let mut falls: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        for block in self.dominators.outside_in() {
            let inside = self.innermost[block].map(|index| &self.constructs[index]);
            let successors = &self.graph.successors[block];
            let in_continue = inside.and_then(|inside| inside.in_continue);
            // What no branch leads to falls through to nothing.
            let left = match inside {
                Some(case) if matches!(case.kind, ConstructKind::Case) && !self.flow.is_reachable(block) => {
                    case.outer.map(|index| &self.constructs[index])
                }
                _ => inside,
            };
            if successors.is_empty() && in_continue.is_some() {
                return self.fault(block, "ends the function inside of a loop's continue construct");
            }
            for &to in successors {
                self.entered(block, to)?;
                if let Some(index) = in_continue {
                    self.continued(&self.constructs[index], block, to)?;
                }
                let Some(construct) = left.filter(|construct| !self.contains(construct, to)) else {
                    continue;
                };
                if matches!(construct.kind, ConstructKind::Case) && self.is_case(construct.header, to) {
                    let falls = falls.entry(construct.header).or_default();
                    if falls.insert(construct.entry, to).is_some_and(|other| other != to) {
                        return self.fault(
                            block,
                            &format!("case {} falls through to two others", self.label(construct.entry)),
                        );
                    }
                } else if !self.is_exit(construct, to) {
                    return self.not_an_exit(construct, block, to);
                }
            }
        }
        for (block, header) in self.reachable_headers() {
            if header.is_switch {
                self.fall_through(block, falls.get(&block).unwrap_or(&BTreeMap::new()))?;
            }
        }
        Ok(())
    }

    fn is_case(&self, header: usize, block: usize) -> bool {
        self.graph.successors[header].contains(&block) && self.merge_of(header) != Some(block)
    }

    /// May a construct be left by a branch to this block?
    fn is_exit(&self, construct: &Construct, to: usize) -> bool {
        let merge_is = |header: Option<usize>| header.and_then(|header| self.merge_of(header)) == Some(to);
        let nearest = construct.in_loop.and_then(|header| self.headers[header]);
        let is_of_loop = nearest.is_some_and(|nearest| nearest.merge == to || nearest.continues == Some(to));
        let is_of_switch = merge_is(construct.in_switch);
        match construct.kind {
            ConstructKind::Selection | ConstructKind::Case => {
                merge_is(Some(construct.header)) || is_of_loop || is_of_switch
            }
            ConstructKind::Loop { .. } => is_of_loop,
            ConstructKind::Continue { .. } => to == construct.header || merge_is(Some(construct.header)),
        }
    }

    fn not_an_exit(&self, construct: &Construct, block: usize, to: usize) -> Checked {
        let (name, exits) = match construct.kind {
            ConstructKind::Selection => ("selection", "its merge block, or out of the nearest loop or switch"),
            ConstructKind::Case => ("case", "the switch's merge block, another case, or out of the nearest loop"),
            ConstructKind::Loop { .. } => ("loop", "its merge block or its continue target"),
            ConstructKind::Continue { .. } => ("continue construct", "the loop's header or its merge block"),
        };
        let (to, entry) = (self.label(to), self.label(construct.entry));
        self.fault(block, &format!("leaves the {name} headed by {entry} for {to}; it may lead to {exits} only"))
    }

    /// Every construct that an edge enters begins where the edge leads; continue constructs are entered from their
    /// loop.
    fn entered(&self, from: usize, to: usize) -> Checked {
        let mut current = self.innermost[to];
        while let Some(construct) = current.map(|index| &self.constructs[index]) {
            if self.contains(construct, from) {
                break;
            }
            let entry = construct.entry;
            let is_of_loop = match (&construct.kind, self.headers[construct.header]) {
                (ConstructKind::Continue { .. }, Some(header)) if entry != construct.header => {
                    self.dominators.dominates(construct.header, from) && !self.dominators.dominates(header.merge, from)
                }
                _ => true,
            };
            if entry != to || !is_of_loop {
                let (to, entry) = (self.label(to), self.label(entry));
                let reason = format!("leads to {to} in the middle of the construct that begins with {entry}");
                return self.fault(from, &reason);
            }
            current = construct.outer;
        }
        Ok(())
    }

    /// All ways through a continue construct lead to the block with the back edge, and from there back or out.
    fn continued(&self, construct: &Construct, from: usize, to: usize) -> Checked {
        let ConstructKind::Continue { latch } = construct.kind else {
            return Ok(());
        };
        let leaves = to == construct.header || !self.contains(construct, to);
        match (from == latch, leaves) {
            (true, false) => {
                let reason =
                    "the block that leads back to a loop's header may lead else to the loop's merge block only";
                self.fault(from, reason)
            }
            (false, true) => self.not_an_exit_of_continue(construct, from, latch),
            _ => Ok(()),
        }
    }

    fn not_an_exit_of_continue(&self, construct: &Construct, from: usize, latch: usize) -> Checked {
        let (entry, latch) = (self.label(construct.entry), self.label(latch));
        self.fault(
            from,
            &format!("leaves the continue construct of {entry}; only {latch}, which leads back, may do so"),
        )
    }

    /// Cases fall through to the next one in the switch's list, each to one and from one.
    fn fall_through(&self, block: usize, falls: &BTreeMap<usize, usize>) -> Checked {
        let mut from: BTreeMap<usize, usize> = BTreeMap::new();
        for (&case, &next) in falls {
            if from.insert(next, case).is_some() {
                return self.fault(block, &format!("more than one case falls through to {}", self.label(next)));
            }
        }
        let Some(switch) = self.terminator(block) else {
            return Ok(());
        };
        let cases: Vec<usize> =
            targets(self.checker, switch).iter().filter_map(|label| self.graph.labels.get(label).copied()).collect();
        let Some((&default, listed)) = cases.split_first() else {
            return Ok(());
        };
        // The default case has no place in the list of its own: what falls to it is followed by what it falls to.
        let default_is_listed = listed.contains(&default);
        let past_default = |next: usize| match falls.get(&next) {
            after if next == default && !default_is_listed => after.copied(),
            _ => Some(next),
        };
        for (at, &case) in listed.iter().enumerate() {
            // Of literals in a row that lead to the same case, the last one counts.
            let following = listed.get(at + 1);
            if following == Some(&case) {
                continue;
            }
            let Some(next) = falls.get(&case).and_then(|&next| past_default(next)) else {
                continue;
            };
            if following != Some(&next) {
                let (case, next) = (self.label(case), self.label(next));
                let reason = format!("case {case} falls through to {next}, which must stand right behind it");
                return self.fault(block, &reason);
            }
        }
        Ok(())
    }

    /// A switch has a merge block; so has a conditional branch, unless one of its ways leaves a construct or is
    /// another's, too.
    fn check_selections(&self) -> Checked {
        let declared = self.reachable_headers().flat_map(|(_, header)| [Some(header.merge), header.continues]);
        let declared: HashSet<usize> = declared.flatten().collect();
        let chooses = |block: usize| {
            let op = self.terminator(block).map(|instruction| instruction.op);
            op.filter(|op| self.dominators.is_reachable(block) && matches!(op, Op::BranchConditional | Op::Switch))
        };
        let mut choosers: Vec<Vec<usize>> = vec![Vec::new(); self.headers.len()];
        for block in self.dominators.outside_in() {
            if chooses(block).is_some() {
                self.graph.successors[block].iter().for_each(|&to| choosers[to].push(block));
            }
        }
        // Is one block the first to choose this way, and are all others that do so behind it?
        let is_new = |block: usize, to: usize| {
            let is_behind = |other: &usize| self.dominators.dominates(block, *other);
            !declared.contains(&to) && choosers[to].first() == Some(&block) && choosers[to].iter().all(is_behind)
        };
        for (block, successors) in self.graph.successors.iter().enumerate() {
            if self.headers[block].is_some_and(|header| header.continues.is_none()) {
                continue;
            }
            let is_plain = match chooses(block) {
                Some(Op::Switch) => true,
                Some(_) => successors.len() > 1 && successors.iter().all(|&to| is_new(block, to)),
                None => false,
            };
            if is_plain {
                return self.fault(block, "chooses between ways without an OpSelectionMerge that says where they meet");
            }
        }
        Ok(())
    }
}
