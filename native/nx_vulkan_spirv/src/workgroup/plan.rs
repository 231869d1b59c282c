//! Which values of a program are written to memory, and in what phases.
//!
//! A phase is a set of loops with no barrier between them. What a phase leaves in memory, later ones read.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use nx_vulkan_ir::program::Op;
use nx_vulkan_ir::shape::elements;
use smallvec::{SmallVec, smallvec};

use super::node::{Id, Node, NodeKind, Reduce, Reduced, Source};
use super::{Emitter, Target};

/// Elements of a reduction that one invocation combines alone, wherever the result is read.
const INLINE_ELEMENTS: u64 = 16;

/// Instructions up to which a value is computed again by each of its readers rather than kept: about those of a trip
/// through memory.
const CHEAP: u64 = 4;

/// Readers of a value that are told apart; more make no difference.
const MAX_READERS: usize = 8;

/// How an operand's elements are read when a value's elements are computed one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// At the same position.
    Same,
    /// Elsewhere, in a way that has this number.
    Other(u64),
}

/// Where a value is read: the phase and length of the loop, and by what way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reader {
    phase: u32,
    length: u64,
    way: u64,
}

/// How a reduction is spread over invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Spread {
    /// One invocation combines all elements of a result, where the result is read.
    Inline,
    /// One invocation combines all elements of a result.
    Rows,
    /// A team of so many does.
    Team(u32),
}

/// What a phase computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// Elements of a value, to memory.
    Map(Id),
    Reduction(Id),
    /// A result that goes where its target says.
    Output(Id, u8, Option<rspirv::spirv::Word>),
    /// A loop or branches; the entry of the first result.
    Control(Id),
}

#[derive(Debug, Default)]
pub(super) struct Phases {
    pub phases: Vec<Vec<Root>>,
    /// The last phase that reads each value which is kept in memory; `None` where its reader is who asked for the
    /// program.
    pub last_use: HashMap<Id, Option<usize>>,
}

/// When values can be read: by a loop over the same elements, and by any other.
#[derive(Debug, Clone, Copy, Default)]
struct Depth {
    aligned: u32,
    free: u32,
}

/// The entries from one on, while they are planned.
struct Entries {
    first: Id,
    nodes: Vec<Option<Rc<Node>>>,
    /// Instructions for an element.
    costs: Vec<u64>,
    /// Which ones have loops of their own whoever reads them: loops, branches, and reductions by several invocations or
    /// of many elements.
    are_alone: Vec<bool>,
}

/// Of each of those entries whether it is read, and whether it is kept where it need not be.
struct Uses {
    read: Vec<bool>,
    kept: Vec<bool>,
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Emitter<'_, '_, '_> {
    pub(super) fn node_of(&self, id: Id) -> Option<Rc<Node>> {
        match self.entries[id].source {
            Source::Lazy => self.entries[id].node.clone(),
            _ => None,
        }
    }

    pub(super) fn relation(&self, id: Id, node: &Node, operand: usize) -> Relation {
        let of = node.operands[operand];
        let same = self.elements_of(of) == self.elements_of(id);
        match &node.kind {
            NodeKind::Op(op) if op.elementwise().is_some() => match same {
                true => Relation::Same,
                false => Relation::Other(hash((self.shape(id), self.shape(of)))),
            },
            NodeKind::Op(Op::Reshape | Op::Squeeze | Op::Bitcast) if same => Relation::Same,
            // The first operand of put is read where the result is, the number of the last update too.
            NodeKind::Put { .. } if operand < 2 => Relation::Same,
            NodeKind::Reduction(Reduce { what: Reduced::Parts, .. }) => Relation::Same,
            NodeKind::Reduction(reduction) if self.is_total(id, reduction) => Relation::Same,
            _ => Relation::Other(hash((id, operand))),
        }
    }

    /// Whether a reduction combines all elements of its only operand, in their order, to one.
    pub(super) fn is_total(&self, id: Id, reduction: &Reduce) -> bool {
        matches!(reduction.what, Reduced::Axes(_)) && self.elements_of(id) == 1
    }

    /// Elements that a reduction reads in all.
    pub(super) fn reduction_length(&self, id: Id, reduction: &Reduce) -> u64 {
        self.elements_of(id) * elements(&reduction.reduced)
    }

    /// `costs` are those of the entries from `first` on.
    fn costs(&self, first: Id) -> Vec<u64> {
        let mut costs: Vec<u64> = vec![];
        for id in first..self.entries.len() {
            let cost_of = |costs: &[u64], id: Id| id.checked_sub(first).map_or(1, |k| costs[k]);
            let node = self.entries[id].node.as_ref();
            let many = self.elements_of(id) > 1;
            // A value of one element is computed before the loops that read it.
            let of_operand = |&o: &Id| if many && self.elements_of(o) == 1 { 1 } else { cost_of(&costs, o) };
            let of_operands: u64 = node.map_or(0, |node| node.operands.iter().map(of_operand).sum());
            let ctype = self.entries[id].ty.dtype.ctype();
            let cost = match node.map(|node| &node.kind) {
                Some(NodeKind::Op(op)) => match op.elementwise() {
                    Some(op) => op.cost(ctype) + of_operands,
                    None => 1 + of_operands,
                },
                Some(NodeKind::Reduction(Reduce { what: Reduced::Parts, reduced, .. })) => {
                    elements(reduced) * CHEAP + of_operands
                }
                Some(NodeKind::Reduction(reduction)) => match self.spread(id, reduction, of_operands) {
                    Spread::Inline => elements(&reduction.reduced) * (CHEAP + of_operands),
                    Spread::Rows | Spread::Team(_) => 1,
                },
                Some(NodeKind::Put { .. }) => 2 + of_operands,
                Some(NodeKind::Control { .. }) | None => 1,
            };
            costs.push(cost.min(1 << 20));
        }
        costs
    }

    pub(super) fn spread(&self, id: Id, reduction: &Reduce, operand_cost: u64) -> Spread {
        if matches!(reduction.what, Reduced::Parts) {
            return Spread::Inline;
        }
        let (results, count) = (self.elements_of(id), elements(&reduction.reduced));
        let size = u64::from(self.spec.local_size);
        if count <= INLINE_ELEMENTS && (results > 1 || operand_cost <= CHEAP || count <= 1) {
            return Spread::Inline;
        }
        let team = (size / results.next_power_of_two()).min(count.next_power_of_two());
        if team <= 1 { Spread::Rows } else { Spread::Team(team as u32) }
    }

    /// Plans the entries from `first` on, of which `outputs` go to `targets`.
    pub(super) fn plan(&mut self, first: Id, outputs: &[Id], targets: &[Target]) -> Phases {
        let entries = self.entries_from(first);
        let uses = self.uses(&entries, outputs, targets);
        let roots = self.roots(&entries, &uses, outputs, targets);
        let last = roots.iter().map(|&(phase, _)| phase).max().map_or(0, |phase| phase as usize + 1);
        let mut plan = Phases { phases: vec![vec![]; last], last_use: HashMap::new() };
        for (phase, root) in roots {
            plan.phases[phase as usize].push(root);
        }
        self.last_uses(first, outputs, targets, &mut plan);
        plan
    }

    fn entries_from(&self, first: Id) -> Entries {
        let costs = self.costs(first);
        let nodes: Vec<Option<Rc<Node>>> = self.entries[first..].iter().map(|entry| entry.node.clone()).collect();
        let is_alone = |(k, node): (usize, &Option<Rc<Node>>)| match node.as_deref() {
            Some(Node { kind: NodeKind::Reduction(reduction), operands }) => {
                let of_operands = operands.iter().map(|&o| o.checked_sub(first).map_or(1, |k| costs[k])).sum();
                match self.spread(first + k, reduction, of_operands) {
                    Spread::Rows | Spread::Team(_) => true,
                    Spread::Inline => false,
                }
            }
            Some(Node { kind: NodeKind::Control { .. }, .. }) => true,
            Some(Node { kind: NodeKind::Op(_) | NodeKind::Put { .. }, .. }) | None => false,
        };
        let are_alone = nodes.iter().enumerate().map(is_alone).collect();
        Entries { first, nodes, costs, are_alone }
    }

    /// Which values are read, and which are kept for that. Readers come first: who reads a value decides whether it is
    /// kept, and that who reads its operands.
    fn uses(&self, entries: &Entries, outputs: &[Id], targets: &[Target]) -> Uses {
        let Entries { first, nodes, .. } = entries;
        let count = nodes.len();
        let mut uses = Uses { read: vec![false; count], kept: vec![false; count] };
        let tentative = self.depths(entries, &uses.kept);
        let mut readers: Vec<HashSet<Reader>> = vec![HashSet::new(); count];
        let mut note = |id: Id, reader: Reader, readers: &mut Vec<HashSet<Reader>>| {
            if let Some(k) = id.checked_sub(*first) {
                uses.read[k] = true;
                if readers[k].len() < MAX_READERS {
                    readers[k].insert(reader);
                }
            }
        };
        for (&id, target) in outputs.iter().zip(targets) {
            let phase = match target {
                Target::Keep => u32::MAX,
                Target::Operand { .. } => id.checked_sub(*first).map_or(0, |k| tentative[k].aligned),
            };
            note(id, Reader { phase, length: self.elements_of(id), way: 0 }, &mut readers);
        }
        for k in (0..count).rev() {
            let Some(node) = nodes[k].clone() else { continue };
            uses.kept[k] = self.is_kept(entries, k, &readers[k]);
            if readers[k].is_empty() {
                continue;
            }
            let id = first + k;
            let of = match uses.kept[k] {
                true => smallvec![Reader { phase: tentative[k].aligned, length: self.elements_of(id), way: 0 }],
                false => self.readers_of_operands(entries, k, &node, tentative[k], &readers[k]),
            };
            for (j, &operand) in node.operands.iter().enumerate() {
                for reader in &of {
                    let (length, way) = match (self.relation(id, &node, j), &node.kind) {
                        (Relation::Same, _) => (reader.length, reader.way),
                        (Relation::Other(other), NodeKind::Reduction(reduction)) if !entries.are_alone[k] => {
                            (reader.length.saturating_mul(elements(&reduction.reduced)), hash((reader.way, other)))
                        }
                        (Relation::Other(other), _) => (reader.length, hash((reader.way, other))),
                    };
                    note(operand, Reader { length, way, ..*reader }, &mut readers);
                }
            }
        }
        uses
    }

    /// Whether a value that its readers could compute is kept, as several would, or one for many elements.
    fn is_kept(&self, entries: &Entries, k: usize, readers: &HashSet<Reader>) -> bool {
        let length = self.elements_of(entries.first + k);
        let spread_out = || readers.iter().any(|reader| reader.length > 2 * length);
        !entries.are_alone[k] && length != 1 && entries.costs[k] > CHEAP && (readers.len() > 1 || spread_out())
    }

    /// Who reads the operands of a value that is not kept, as those read them that read the value.
    fn readers_of_operands(
        &self,
        entries: &Entries,
        k: usize,
        node: &Rc<Node>,
        Depth { free, .. }: Depth,
        readers: &HashSet<Reader>,
    ) -> SmallVec<[Reader; 8]> {
        let id = entries.first + k;
        let length = self.elements_of(id);
        match &node.kind {
            // Loops read what they capture many times.
            NodeKind::Control { first: result, .. } => {
                smallvec![Reader { phase: free, length: u64::MAX, way: hash(result) }]
            }
            kind if entries.are_alone[k] => {
                let total = match kind {
                    NodeKind::Reduction(reduction) => self.reduction_length(id, reduction),
                    NodeKind::Control { .. } | NodeKind::Op(_) | NodeKind::Put { .. } => length,
                };
                let is_in_place = node.operands.len() == 1 && self.relation(id, node, 0) == Relation::Same;
                let way = if is_in_place { 0 } else { hash(id) };
                smallvec![Reader { phase: free.saturating_sub(1), length: total, way }]
            }
            _ if length == 1 => smallvec![Reader { phase: free, length: 1, way: hash(id) }],
            _ => readers.iter().copied().collect(),
        }
    }

    /// What is computed, and in which phase.
    fn roots(&self, entries: &Entries, uses: &Uses, outputs: &[Id], targets: &[Target]) -> Vec<(u32, Root)> {
        let Entries { first, nodes, are_alone, .. } = entries;
        let depths = self.depths(entries, &uses.kept);
        let mut roots: Vec<(u32, Root)> = vec![];
        let mut controls = HashSet::new();
        for k in (0..nodes.len()).filter(|&k| uses.read[k]) {
            let id = first + k;
            match nodes[k].as_deref() {
                Some(Node { kind: NodeKind::Control { first: result, .. }, .. }) if controls.insert(*result) => {
                    roots.push((depths[k].free - 1, Root::Control(*result)));
                }
                Some(Node { kind: NodeKind::Control { .. }, .. }) => {}
                Some(Node { kind: NodeKind::Reduction(_), .. }) if are_alone[k] => {
                    roots.push((depths[k].free - 1, Root::Reduction(id)))
                }
                _ if uses.kept[k] => roots.push((depths[k].aligned, Root::Map(id))),
                _ => {}
            }
        }
        for (&id, target) in outputs.iter().zip(targets) {
            if let Target::Operand { k, base } = *target {
                let phase = id.checked_sub(*first).map_or(0, |k| depths[k].aligned);
                roots.push((phase, Root::Output(id, k, base)));
            }
        }
        roots
    }

    fn depths(&self, entries: &Entries, kept: &[bool]) -> Vec<Depth> {
        let Entries { first, nodes, are_alone, .. } = entries;
        let mut depths: Vec<Depth> = vec![];
        let mut controls: HashMap<Id, u32> = HashMap::new();
        for (k, node) in nodes.iter().enumerate() {
            let id = first + k;
            let Some(node) = node else {
                depths.push(Depth::default());
                continue;
            };
            let of = |o: Id| o.checked_sub(*first).map_or(Depth::default(), |k| depths[k]);
            let free = node.operands.iter().map(|&o| of(o).free).max().unwrap_or(0);
            let aligned = node.operands.iter().enumerate().map(|(j, &o)| match self.relation(id, node, j) {
                Relation::Same => of(o).aligned,
                Relation::Other(_) => of(o).free,
            });
            let aligned = aligned.max().unwrap_or(0);
            let one = self.elements_of(id) == 1;
            depths.push(match &node.kind {
                NodeKind::Control { first, .. } => {
                    let phase = *controls.entry(*first).or_insert(free) + 1;
                    Depth { aligned: phase, free: phase }
                }
                NodeKind::Reduction(reduction) if are_alone[k] => {
                    let phase = 1 + if self.is_total(id, reduction) { aligned } else { free };
                    Depth { aligned: phase, free: phase }
                }
                // An inline reduction reads its operands in a loop of its own.
                NodeKind::Reduction(reduction) if !matches!(reduction.what, Reduced::Parts) => {
                    Depth { aligned: free, free }
                }
                _ if one => Depth { aligned: free, free },
                _ if kept[k] => Depth { aligned, free: aligned + 1 },
                _ => Depth { aligned, free },
            });
        }
        depths
    }

    /// The memory that a value's elements are read from, by way of values that are computed where they are read.
    pub(super) fn sources(&self, id: Id, seen: &mut HashSet<Id>, found: &mut Vec<Id>) {
        if !seen.insert(id) {
            return;
        }
        match &self.entries[id].source {
            Source::Lazy => {
                for &operand in self.entries[id].node.iter().flat_map(|node| &node.operands) {
                    self.sources(operand, seen, found);
                }
            }
            Source::Region(_) => found.push(id),
            Source::Port { .. } | Source::Uniform(_) | Source::Variable(_) => {}
        }
    }

    fn last_uses(&self, first: Id, outputs: &[Id], targets: &[Target], plan: &mut Phases) {
        let mut in_memory = HashSet::new();
        for root in plan.phases.iter().flatten() {
            match *root {
                Root::Map(id) | Root::Reduction(id) => {
                    in_memory.insert(id);
                }
                Root::Output(..) | Root::Control(_) => {}
            }
        }
        let mut note = |start: &[Id], phase: Option<usize>| {
            let (mut seen, mut next) = (HashSet::new(), start.to_vec());
            while let Some(id) = next.pop() {
                if id < first || !seen.insert(id) {
                    continue;
                }
                if in_memory.contains(&id) {
                    match (plan.last_use.get(&id), phase) {
                        (Some(None), _) => {}
                        (Some(Some(known)), Some(phase)) if *known >= phase => {}
                        _ => {
                            plan.last_use.insert(id, phase);
                        }
                    }
                    // Where it is not yet in memory, the loop that keeps it may compute it for others too.
                    if phase.is_none() {
                        continue;
                    }
                }
                next.extend(self.entries[id].node.iter().flat_map(|node| node.operands.iter().copied()));
            }
        };
        for (phase, roots) in plan.phases.iter().enumerate() {
            for root in roots {
                match *root {
                    Root::Map(id) | Root::Reduction(id) | Root::Control(id) => {
                        note(&[id], Some(phase));
                        let operands = self.entries[id].node.as_ref().map(|node| node.operands.to_vec());
                        note(&operands.unwrap_or_default(), Some(phase));
                    }
                    Root::Output(id, ..) => note(&[id], Some(phase)),
                }
            }
        }
        for (&id, target) in outputs.iter().zip(targets) {
            if matches!(target, Target::Keep) {
                note(&[id], None);
            }
        }
    }
}
