//! A function as a graph of nodes, whose code is units: single instructions, or whole constructs without steps, which
//! stay as they are.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, StorageClass, Word};

use super::Lowering;
use super::order::{MachineStep, with_ids};

/// Parts of composites that merge one by one.
const MOST_PARTS: usize = 8;

/// What is moved as a whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    /// With labels where it is more than one block.
    pub code: Vec<Instruction>,
    /// The label by which its phis name the block that it begins in.
    pub before: Option<Word>,
    pub results: Vec<Word>,
    pub uses: Vec<Word>,
    pub is_pure: bool,
    pub step: Option<MachineStep>,
}

impl Unit {
    pub fn new(code: Vec<Instruction>, before: Option<Word>, is_pure: bool) -> Unit {
        let mut unit = Unit { code, before, is_pure, ..Unit::default() };
        unit.note();
        unit
    }

    /// Finds results and uses anew.
    pub fn note(&mut self) {
        self.results = self.code.iter().filter_map(|inst| inst.result_id).collect();
        let own: HashSet<Word> = self.results.iter().copied().chain(self.before).collect();
        let operands = self.code.iter().flat_map(|inst| &inst.operands).filter_map(Operand::id_ref_any);
        self.uses = operands.filter(|id| !own.contains(id)).collect();
    }
}

/// Code that begins at one label and ends with one branch.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub label: Word,
    pub phis: Vec<Instruction>,
    pub units: Vec<Unit>,
    /// Where the construct that it heads ends, in the words of SPIR-V.
    pub merge: Option<Instruction>,
    pub end: Instruction,
}

impl Node {
    /// Without code, and an end that is yet to be known.
    pub fn new(label: Word) -> Node {
        Node { label, phis: vec![], units: vec![], merge: None, end: branch(0) }
    }

    /// The labels that its phis name.
    pub fn parents(&mut self) -> impl Iterator<Item = &mut Operand> {
        self.phis.iter_mut().flat_map(|phi| phi.operands.iter_mut().skip(1).step_by(2))
    }
}

/// All nodes, the entry first.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub nodes: Vec<Node>,
    pub variables: Vec<Instruction>,
}

pub(super) fn ids(ids: &[Word]) -> Vec<Operand> {
    ids.iter().map(|&id| Operand::IdRef(id)).collect()
}

pub(super) fn branch(to: Word) -> Instruction {
    Instruction::new(Op::Branch, None, None, ids(&[to]))
}

/// The labels that a node may go on to, each as often as it is named.
pub(super) fn targets(end: &Instruction) -> Vec<Word> {
    let skipped = usize::from(end.class.opcode != Op::Branch);
    match end.class.opcode {
        Op::Branch | Op::BranchConditional | Op::Switch => {
            end.operands.iter().skip(skipped).filter_map(Operand::id_ref_any).collect()
        }
        _ => vec![],
    }
}

fn rename_parents(phis: &mut [Instruction], from: Word, to: Word) {
    for parent in phis.iter_mut().flat_map(|phi| phi.operands.iter_mut().skip(1).step_by(2)) {
        if *parent == Operand::IdRef(from) {
            *parent = Operand::IdRef(to);
        }
    }
}

pub(super) fn id(inst: &Instruction) -> Word {
    inst.result_id.unwrap_or_default()
}

impl Lowering<'_> {
    pub(super) fn all_types(&self) -> HashMap<Word, Instruction> {
        let globals = &self.linker.module.types_global_values;
        globals.iter().filter_map(|inst| Some((inst.result_id?, inst.clone()))).collect()
    }

    /// The types of the parts of a composite that is no vector.
    fn parts_of(&self, ty: Word, types: &HashMap<Word, Instruction>) -> Option<Vec<Word>> {
        let inst = types.get(&ty)?;
        match (inst.class.opcode, inst.operands.as_slice()) {
            (Op::TypeStruct, members) => Some(members.iter().filter_map(Operand::id_ref_any).collect()),
            (Op::TypeArray, [Operand::IdRef(element), Operand::IdRef(length)]) => {
                match types.get(length)?.operands.first() {
                    Some(Operand::LiteralBit32(length)) if (*length as usize) <= MOST_PARTS => {
                        Some(vec![*element; *length as usize])
                    }
                    _ => None,
                }
            }
            _ => None,
        }
        .filter(|parts| parts.len() <= MOST_PARTS)
    }

    /// Lets parts of composites merge one by one, so that they can stay in registers.
    pub(super) fn split_phis(&mut self, flow: &mut Flow) {
        let types = self.all_types();
        let at: HashMap<Word, usize> = flow.nodes.iter().enumerate().map(|(k, node)| (node.label, k)).collect();
        for k in 0..flow.nodes.len() {
            let mut whole: Vec<Instruction> = vec![];
            let mut made: Vec<Unit> = vec![];
            let mut left = std::mem::take(&mut flow.nodes[k].phis);
            left.reverse();
            while let Some(phi) = left.pop() {
                let Some(parts) = phi.result_type.and_then(|ty| self.parts_of(ty, &types)) else {
                    whole.push(phi);
                    continue;
                };
                let mut phis: Vec<Instruction> = parts
                    .iter()
                    .map(|&ty| Instruction::new(Op::Phi, Some(ty), Some(self.linker.fresh()), vec![]))
                    .collect();
                for pair in phi.operands.chunks(2) {
                    let [Operand::IdRef(value), Operand::IdRef(parent)] = *pair else { continue };
                    let Some(&parent_at) = at.get(&parent) else { continue };
                    for (part, phi) in phis.iter_mut().enumerate() {
                        let extracted = self.linker.fresh();
                        let operands = vec![Operand::IdRef(value), Operand::LiteralBit32(part as u32)];
                        let extract =
                            Instruction::new(Op::CompositeExtract, phi.result_type, Some(extracted), operands);
                        flow.nodes[parent_at].units.push(Unit::new(vec![extract], None, true));
                        phi.operands.extend(ids(&[extracted, parent]));
                    }
                }
                let parts: Vec<Word> = phis.iter().map(id).collect();
                let construct = Instruction::new(Op::CompositeConstruct, phi.result_type, phi.result_id, ids(&parts));
                // Inner ones first.
                made.insert(0, Unit::new(vec![construct], None, true));
                left.extend(phis.into_iter().rev());
            }
            let node = &mut flow.nodes[k];
            node.phis = whole;
            node.units.splice(0..0, made);
        }
    }

    pub(super) fn steps_in(&self, units: &[Unit]) -> usize {
        units.iter().flat_map(|unit| &unit.code).filter(|inst| self.is_step(inst)).count()
    }

    /// Joins nodes that follow each other, makes selections without steps and loops without steps units, and selections
    /// with few steps choices among values.
    pub(super) fn simplify(&mut self, flow: &mut Flow) {
        let types = self.all_types();
        loop {
            flow.sweep();
            // Choices first: they leave less that has to be kept.
            let changed = flow.join(false) || self.choose_all(flow, &types);
            if !changed && !self.collapse_selections(flow) && !self.collapse_loops(flow) {
                break;
            }
        }
        for node in &mut flow.nodes {
            node.merge = None;
        }
        while flow.join(true) || self.choose_all(flow, &types) {}
    }

    fn collapse_selections(&mut self, flow: &mut Flow) -> bool {
        let mut changed = false;
        let mut k = 0;
        while k < flow.nodes.len() {
            let merge = flow.nodes[k].merge.as_ref().filter(|merge| merge.class.opcode == Op::SelectionMerge);
            let Some(&Operand::IdRef(merge)) = merge.and_then(|merge| merge.operands.first()) else {
                k += 1;
                continue;
            };
            let inside = flow.inside(k, merge).filter(|inside| {
                let named = |node: &Node| {
                    node.merge.iter().flat_map(|inst| &inst.operands).any(|id| *id == Operand::IdRef(merge))
                };
                inside.iter().all(|&at| flow.nodes[at].merge.is_none())
                    && flow.nodes.iter().filter(|node| named(node)).count() == 1
            });
            let made = inside.is_some_and(|inside| self.keep_selection(flow, k, merge, &inside));
            if !made {
                k += 1;
                continue;
            }
            // What is joined may head another construct; indices have moved.
            changed = true;
            k = 0;
        }
        changed
    }

    /// Makes a selection without steps a unit.
    fn keep_selection(&mut self, flow: &mut Flow, at: usize, merge: Word, inside: &[usize]) -> bool {
        let code = || inside.iter().flat_map(|&k| &flow.nodes[k].units);
        if inside.iter().any(|&k| self.steps_in(&flow.nodes[k].units) > 0) {
            return false;
        }
        let Some(end) = flow.nodes.iter().position(|node| node.label == merge) else { return false };
        let is_pure = code().all(|unit| unit.is_pure);
        let header = &mut flow.nodes[at];
        let before = header.label;
        let mut stream: Vec<Instruction> = header.merge.take().into_iter().collect();
        stream.push(header.end.clone());
        flow.stream(inside, merge, &mut stream);
        let mut phis = std::mem::take(&mut flow.nodes[end].phis);
        stream.push(Instruction::new(Op::Label, None, Some(merge), vec![]));
        stream.append(&mut phis);
        flow.nodes[at].units.push(Unit::new(stream, Some(before), is_pure));
        flow.absorb(at, end, inside);
        true
    }

    fn collapse_loops(&mut self, flow: &mut Flow) -> bool {
        let mut k = 0;
        let mut changed = false;
        while k < flow.nodes.len() {
            let merge = flow.nodes[k].merge.as_ref().filter(|merge| merge.class.opcode == Op::LoopMerge);
            let merge = merge.and_then(|merge| merge.operands.first()).and_then(Operand::id_ref_any);
            if merge.is_some_and(|merge| self.keep_loop(flow, k, merge)) {
                changed = true;
                k = 0;
            } else {
                k += 1;
            }
        }
        changed
    }

    /// Makes a loop without steps a unit of the node before it.
    fn keep_loop(&mut self, flow: &mut Flow, at: usize, merge: Word) -> bool {
        let Some(inside) = flow.inside(at, merge) else { return false };
        let label = flow.nodes[at].label;
        let mut all = vec![at];
        all.extend(inside.iter().copied().filter(|&k| k != at));
        all.sort_unstable();
        let before: Vec<usize> = (0..flow.nodes.len())
            .filter(|k| !all.contains(k) && targets(&flow.nodes[*k].end).contains(&label))
            .collect();
        let [before] = before[..] else { return false };
        let ends_there = flow.nodes[before].end.class.opcode == Op::Branch && flow.nodes[before].merge.is_none();
        if !ends_there || all.iter().any(|&k| self.steps_in(&flow.nodes[k].units) > 0) {
            return false;
        }
        let Some(end) = flow.nodes.iter().position(|node| node.label == merge) else { return false };
        let is_pure = all.iter().flat_map(|&k| &flow.nodes[k].units).all(|unit| unit.is_pure);
        let mut stream = vec![branch(label)];
        flow.stream(&all, merge, &mut stream);
        let mut phis = std::mem::take(&mut flow.nodes[end].phis);
        stream.push(Instruction::new(Op::Label, None, Some(merge), vec![]));
        stream.append(&mut phis);
        let outer = flow.nodes[before].label;
        flow.nodes[before].units.push(Unit::new(stream, Some(outer), is_pure));
        flow.absorb(before, end, &all);
        true
    }
}

impl Flow {
    pub(super) fn at(&self, label: Word) -> Option<usize> {
        self.nodes.iter().position(|node| node.label == label)
    }

    pub(super) fn parents(&self) -> HashMap<Word, Vec<usize>> {
        let mut parents: HashMap<Word, Vec<usize>> = HashMap::new();
        for (k, node) in self.nodes.iter().enumerate() {
            for target in targets(&node.end) {
                parents.entry(target).or_default().push(k);
            }
        }
        parents
    }

    /// Drops what nothing leads to.
    pub(super) fn sweep(&mut self) {
        let at: HashMap<Word, usize> = self.nodes.iter().enumerate().map(|(k, node)| (node.label, k)).collect();
        let mut reached: HashSet<Word> = HashSet::new();
        let mut left: Vec<Word> = self.nodes.first().map(|node| node.label).into_iter().collect();
        while let Some(label) = left.pop() {
            if reached.insert(label) {
                left.extend(at.get(&label).into_iter().flat_map(|&k| targets(&self.nodes[k].end)));
            }
        }
        if reached.len() == self.nodes.len() {
            return;
        }
        self.nodes.retain(|node| reached.contains(&node.label));
        for phi in self.nodes.iter_mut().flat_map(|node| &mut node.phis) {
            let kept =
                phi.operands.chunks(2).filter(|pair| pair[1].id_ref_any().is_some_and(|id| reached.contains(&id)));
            phi.operands = kept.flatten().cloned().collect();
        }
    }

    /// The nodes between a header and its merge, if nothing else leads in or out; a loop's header may be among them.
    fn inside(&self, header: usize, merge: Word) -> Option<Vec<usize>> {
        let at: HashMap<Word, usize> = self.nodes.iter().enumerate().map(|(k, node)| (node.label, k)).collect();
        let mut inside: Vec<usize> = vec![];
        let mut left: Vec<Word> = targets(&self.nodes[header].end);
        while let Some(label) = left.pop() {
            if label == merge {
                continue;
            }
            let &k = at.get(&label)?;
            if k == header || inside.contains(&k) {
                continue;
            }
            inside.push(k);
            let next = targets(&self.nodes[k].end);
            if next.is_empty() && self.nodes[k].end.class.opcode != Op::Unreachable {
                return None;
            }
            left.extend(next);
        }
        inside.sort_unstable();
        let within = |k: &usize| *k == header || inside.contains(k);
        let parents = self.parents();
        let closed =
            inside.iter().all(|k| parents.get(&self.nodes[*k].label).is_some_and(|list| list.iter().all(within)));
        let ends = parents.get(&merge).is_some_and(|list| list.iter().all(within));
        (closed && ends && !within(at.get(&merge)?)).then_some(inside)
    }

    /// Writes nodes as blocks, and lets phis at `merge` name the blocks in which they end.
    fn stream(&mut self, nodes: &[usize], merge: Word, stream: &mut Vec<Instruction>) {
        let mut blocks: Vec<Vec<Instruction>> = vec![];
        let mut ends: Vec<(Word, Word)> = vec![];
        for &k in nodes {
            let node = &mut self.nodes[k];
            let mut block = vec![Instruction::new(Op::Label, None, Some(node.label), vec![])];
            block.append(&mut node.phis);
            let mut current = node.label;
            for unit in std::mem::take(&mut node.units) {
                write(&unit, &HashMap::new(), &mut current, &mut block);
            }
            block.extend(node.merge.take());
            block.push(node.end.clone());
            ends.push((node.label, current));
            blocks.push(block);
        }
        let ends: HashMap<Word, Word> = ends.into_iter().collect();
        let rename = |inst: &mut Instruction, among: &HashSet<Word>| {
            if inst.class.opcode == Op::Phi {
                for parent in inst.operands.iter_mut().skip(1).step_by(2) {
                    if let Operand::IdRef(label) = parent
                        && among.contains(label)
                    {
                        *label = ends.get(label).copied().unwrap_or(*label);
                    }
                }
            }
        };
        let labels: HashSet<Word> = ends.keys().copied().collect();
        for block in &mut blocks {
            // Only the phis that begin the node: those of units name blocks that are written already.
            block
                .iter_mut()
                .skip(1)
                .take_while(|inst| inst.class.opcode == Op::Phi)
                .for_each(|inst| rename(inst, &labels));
        }
        if let Some(end) = self.at(merge) {
            self.nodes[end].phis.iter_mut().for_each(|inst| rename(inst, &labels));
        }
        stream.extend(blocks.into_iter().flatten());
    }

    /// Lets a node go on as the one that a construct ends in, and drops what is inside.
    fn absorb(&mut self, at: usize, end: usize, inside: &[usize]) {
        let merged = self.nodes[end].clone();
        let label = self.nodes[at].label;
        let node = &mut self.nodes[at];
        node.units.extend(merged.units);
        node.merge = merged.merge;
        node.end = merged.end;
        for other in &mut self.nodes {
            rename_parents(&mut other.phis, merged.label, label);
        }
        let mut k = 0;
        self.nodes.retain(|_| {
            k += 1;
            !(inside.contains(&(k - 1)) || end == k - 1)
        });
    }

    /// Joins nodes that nothing else leads to with those before them; whether there were any. Constructs of SPIR-V stay
    /// what they are unless `all` may be joined.
    fn join(&mut self, all: bool) -> bool {
        let mut changed = false;
        let named: HashSet<Word> = self
            .nodes
            .iter()
            .filter_map(|node| node.merge.as_ref())
            .flat_map(|merge| merge.operands.iter().filter_map(Operand::id_ref_any))
            .collect();
        let mut parents: HashMap<Word, usize> = HashMap::new();
        for node in &self.nodes {
            for target in targets(&node.end) {
                *parents.entry(target).or_default() += 1;
            }
        }
        let entry = self.nodes.first().map(|node| node.label);
        let mut index: HashMap<Word, usize> = self.nodes.iter().enumerate().map(|(k, node)| (node.label, k)).collect();
        let mut gone: HashSet<usize> = HashSet::new();
        let mut renamed: HashMap<Word, Word> = HashMap::new();
        for k in 0..self.nodes.len() {
            if gone.contains(&k) {
                continue;
            }
            loop {
                let node = &self.nodes[k];
                if node.end.class.opcode != Op::Branch || node.merge.is_some() {
                    break;
                }
                let [next] = targets(&node.end)[..] else { break };
                let Some(&at) = index.get(&next) else { break };
                let is_loop = self.nodes[at].merge.as_ref().is_some_and(|merge| merge.class.opcode == Op::LoopMerge);
                let is_kept = !all && (named.contains(&next) || is_loop);
                if parents.get(&next) != Some(&1) || Some(next) == entry || at == k || is_kept {
                    break;
                }
                let joined = self.nodes[at].clone();
                let copies = joined.phis.iter().map(|phi| {
                    let value = phi.operands.first().cloned().into_iter().collect();
                    Unit::new(vec![Instruction::new(Op::CopyObject, phi.result_type, phi.result_id, value)], None, true)
                });
                let copies: Vec<Unit> = copies.collect();
                let node = &mut self.nodes[k];
                node.units.extend(copies);
                node.units.extend(joined.units);
                node.merge = joined.merge;
                node.end = joined.end;
                renamed.insert(joined.label, node.label);
                index.remove(&joined.label);
                gone.insert(at);
                changed = true;
            }
        }
        let resolved = |mut label: Word| {
            while let Some(&to) = renamed.get(&label) {
                label = to;
            }
            label
        };
        let mut k = 0;
        self.nodes.retain(|_| {
            k += 1;
            !gone.contains(&(k - 1))
        });
        for parent in self.nodes.iter_mut().flat_map(Node::parents) {
            if let Operand::IdRef(label) = parent {
                *label = resolved(*label);
            }
        }
        changed
    }

    /// Replaces ids wherever they are used.
    pub fn substitute(&mut self, ids: &HashMap<Word, Word>) {
        for node in &mut self.nodes {
            for unit in &mut node.units {
                if unit.uses.iter().any(|id| ids.contains_key(id)) {
                    unit.code.iter_mut().for_each(|inst| *inst = with_ids(inst, ids));
                    unit.note();
                }
            }
            node.phis.iter_mut().for_each(|inst| *inst = with_ids(inst, ids));
            node.end = with_ids(&node.end, ids);
        }
    }

    /// Lets uses of copies, and of parts of what was put together, name what they are.
    pub fn forward(&mut self, vectors: &HashSet<Word>) {
        loop {
            let mut made: HashMap<Word, Vec<Word>> = HashMap::new();
            let mut same: HashMap<Word, Word> = HashMap::new();
            let single = |unit: &Unit| if let [inst] = unit.code.as_slice() { Some(inst.clone()) } else { None };
            let code: Vec<Instruction> = self.nodes.iter().flat_map(|node| &node.units).filter_map(single).collect();
            for inst in &code {
                match (inst.class.opcode, inst.operands.as_slice()) {
                    (Op::CopyObject, [Operand::IdRef(from)]) => {
                        same.insert(id(inst), *from);
                    }
                    (Op::CompositeConstruct, parts) if inst.result_type.is_some_and(|ty| !vectors.contains(&ty)) => {
                        made.insert(id(inst), parts.iter().filter_map(Operand::id_ref_any).collect());
                    }
                    _ => {}
                }
            }
            for inst in &code {
                if let (Op::CompositeExtract, [Operand::IdRef(from), Operand::LiteralBit32(index)]) =
                    (inst.class.opcode, inst.operands.as_slice())
                    && let Some(&part) = made.get(from).and_then(|parts| parts.get(*index as usize))
                {
                    same.insert(id(inst), part);
                }
            }
            if same.is_empty() {
                return;
            }
            let resolved = |from: Word| {
                let mut to = from;
                while let Some(&next) = same.get(&to) {
                    to = next;
                }
                to
            };
            let resolved: HashMap<Word, Word> = same.keys().map(|&from| (from, resolved(from))).collect();
            self.substitute(&resolved);
            for node in &mut self.nodes {
                node.units.retain(|unit| unit.code.len() != 1 || !unit.results.iter().any(|id| same.contains_key(id)));
            }
        }
    }

    /// Drops pure code and phis that nothing uses.
    pub fn prune(&mut self) {
        let mut makers: HashMap<Word, (usize, Option<usize>)> = HashMap::new();
        for (k, node) in self.nodes.iter().enumerate() {
            makers.extend(node.phis.iter().map(|phi| (id(phi), (k, None))));
            for (at, unit) in node.units.iter().enumerate() {
                makers.extend(unit.results.iter().map(|&id| (id, (k, Some(at)))));
            }
        }
        let mut used: HashSet<Word> = HashSet::new();
        let mut left: Vec<Word> = vec![];
        for node in &self.nodes {
            left.extend(node.end.operands.iter().filter_map(Operand::id_ref_any));
            left.extend(node.units.iter().filter(|unit| !unit.is_pure).flat_map(|unit| unit.uses.iter().copied()));
        }
        while let Some(value) = left.pop() {
            if !used.insert(value) {
                continue;
            }
            match makers.get(&value) {
                Some(&(k, Some(at))) => left.extend(self.nodes[k].units[at].uses.iter().copied()),
                Some(&(k, None)) => {
                    let phi = self.nodes[k].phis.iter().find(|phi| id(phi) == value);
                    left.extend(
                        phi.into_iter().flat_map(|phi| phi.operands.iter().step_by(2)).filter_map(Operand::id_ref_any),
                    );
                }
                None => {}
            }
        }
        for node in &mut self.nodes {
            node.phis.retain(|phi| used.contains(&id(phi)));
            node.units.retain(|unit| !unit.is_pure || unit.results.iter().any(|id| used.contains(id)));
        }
    }
}

/// Appends a unit's code with other ids; `current` is the label of the block that is being written.
pub(super) fn write(unit: &Unit, renamed: &HashMap<Word, Word>, current: &mut Word, out: &mut Vec<Instruction>) {
    let start = *current;
    for inst in &unit.code {
        let mut inst = if renamed.is_empty() { inst.clone() } else { with_ids(inst, renamed) };
        if inst.class.opcode == Op::Phi
            && let Some(before) = unit.before
        {
            rename_parents(std::slice::from_mut(&mut inst), before, start);
        }
        if inst.class.opcode == Op::Label {
            *current = inst.result_id.unwrap_or_default();
        }
        out.push(inst);
    }
}

/// A variable of the function.
pub(super) fn local(pointer: Word, id: Word) -> Instruction {
    Instruction::new(Op::Variable, Some(pointer), Some(id), vec![Operand::StorageClass(StorageClass::Function)])
}
