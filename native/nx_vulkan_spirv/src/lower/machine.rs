//! Functions of many steps as machines: one loop in which the code of a step stands once. Each turn runs the code of a
//! segment, which says what segment is next and writes the words of its steps, and then those steps. The size of such a
//! function does not grow with the operations that its steps stand for; a driver that inlined them would compile for
//! minutes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nx_vulkan_ir::Result;
use rspirv::dr::{Function, Instruction, Operand};
use rspirv::spirv::{LoopControl, Op, SelectionControl, StorageClass, Word};

use super::Lowering;
use super::flow::{Flow, Node, Unit, branch, ids, local, targets, write};
use super::order::{Kind, MachineStep, Soft, callee, pieces, with_ids};
use super::sequences::{LEAST, Shared};
use super::slots::{Segment, Slot, Slots};
use crate::link::blocks;

/// Bits that name a register: where a step has one word, and where it has two.
const BITS: u32 = 7;
const WIDE_BITS: u32 = 14;

/// So many steps, or more of them in one row, stay what sequences make of them.
const FEW_STEPS: usize = 4;
const FEW_IN_A_ROW: usize = 8;

impl Lowering<'_> {
    /// Makes machines of functions that have many steps and in which invocations do not meet.
    pub(super) fn machines(&mut self, functions: &mut [Function], shared: &mut Shared) -> Result<()> {
        let all: HashMap<Word, Function> =
            functions.iter().filter_map(|function| Some((function.def_id()?, function.clone()))).collect();
        let mut facts: HashMap<Word, (bool, bool)> = HashMap::new();
        for &id in all.keys() {
            self.facts(id, &all, &mut facts);
        }
        let bodies: HashMap<Word, Function> = all
            .iter()
            .filter(|(id, _)| facts.get(id).is_some_and(|(_, meets)| !*meets))
            .map(|(id, function)| (*id, function.clone()))
            .collect();
        let mut left: Vec<Word> =
            self.old.entry_points.iter().filter_map(|entry| entry.operands.get(1)?.id_ref_any()).collect();
        let mut seen: HashSet<Word> = HashSet::new();
        while let Some(id) = left.pop() {
            let (Some(&(steps, meets)), Some(function)) = (facts.get(&id), all.get(&id)) else { continue };
            if !steps || !seen.insert(id) {
                continue;
            }
            if !meets {
                let copied = self.copied.len();
                if let Some(made) = self.machine(function, &bodies, shared)? {
                    functions.iter_mut().filter(|old| old.def_id() == Some(id)).for_each(|old| *old = made.clone());
                    continue;
                }
                self.copied.truncate(copied);
                continue;
            }
            left.extend(function.all_inst_iter().filter_map(callee));
        }
        Ok(())
    }

    /// Whether a function has steps, and whether invocations meet in it, itself or in what it calls.
    fn facts(&self, id: Word, all: &HashMap<Word, Function>, known: &mut HashMap<Word, (bool, bool)>) -> (bool, bool) {
        if let Some(&facts) = known.get(&id) {
            return facts;
        }
        let Some(function) = all.get(&id) else { return (false, false) };
        let mut facts = (false, false);
        for inst in function.all_inst_iter() {
            facts.0 |= self.soft_of(inst).is_some_and(|soft| !matches!(soft, Soft::Negate | Soft::Other));
            facts.1 |= meets(inst.class.opcode);
            if let Some(callee) = callee(inst) {
                let inner = self.facts(callee, all, known);
                facts = (facts.0 | inner.0, facts.1 | inner.1);
            }
        }
        known.insert(id, facts);
        facts
    }

    /// The machine of a function, where it is worth one.
    fn machine(
        &mut self,
        function: &Function,
        bodies: &HashMap<Word, Function>,
        shared: &mut Shared,
    ) -> Result<Option<Function>> {
        let Some(mut flow) = self.flow(function, bodies) else { return Ok(None) };
        self.simplify(&mut flow);
        let globals = &self.linker.module.types_global_values;
        let of_kind = |opcode: Op| -> HashSet<Word> {
            let made = globals.iter().filter(|inst| inst.class.opcode == opcode);
            made.filter_map(|inst| inst.result_id).collect()
        };
        let (vectors, pointers) = (of_kind(Op::TypeVector), of_kind(Op::TypePointer));
        flow.forward(&vectors);
        self.find_steps(&mut flow, shared);
        flow.prune();
        if !self.one_way_out(&mut flow, function) {
            return Ok(None);
        }
        let Some(segments) = self.segments(flow.nodes) else { return Ok(None) };
        let steps = || segments.iter().flat_map(|segment| &segment.steps);
        let kinds: Vec<Kind> = steps().map(|step| step.kind).collect::<BTreeSet<Kind>>().into_iter().collect();
        let code: usize = segments.iter().map(|segment| calls(&segment.steps)).sum();
        let count = steps().count();
        if count <= FEW_STEPS || code < 2 && count <= FEW_IN_A_ROW || segments.len() < 3 {
            return Ok(None);
        }
        let sums = steps().all(|step| step.is_sum(shared.constants));
        let pair = self.pair();
        let Some(slots) = Slots::new(&segments, pair, &pointers, sums) else { return Ok(None) };
        if slots.registers > 1 << WIDE_BITS {
            return Ok(None);
        }
        let wide = slots.registers > 1 << BITS;
        let machine = Machine { kinds, sums, wide, variables: BTreeMap::new(), slots };
        machine.write(self, function, flow.variables, &segments, shared).map(Some)
    }

    /// Marks the units that are steps.
    fn find_steps(&mut self, flow: &mut Flow, shared: &Shared) {
        let units = || flow.nodes.iter().flat_map(|node| &node.units);
        let single = |unit: &Unit| match unit.code.as_slice() {
            [inst] => self.soft_of(inst),
            _ => None,
        };
        let softs: Vec<Soft> = units().filter_map(single).collect();
        let many = |soft: Soft| softs.iter().filter(|other| **other == soft).count() > 1;
        let (divides, roots) = (many(Soft::Divide), many(Soft::Sqrt));
        let negated = self.negations(units().flat_map(|unit| &unit.code));
        for unit in flow.nodes.iter_mut().flat_map(|node| &mut node.units) {
            let [inst] = unit.code.as_slice() else { continue };
            let step = self.step(inst, &negated, shared.constants).filter(|step| match step.kind {
                Kind::Sum => true,
                Kind::Quotient => divides,
                Kind::Root => roots,
            });
            if let Some(step) = step {
                unit.step = Some(step);
                unit.uses = step.operands.to_vec();
            }
        }
    }

    /// Lets all returns be one, which is the last node.
    fn one_way_out(&mut self, flow: &mut Flow, function: &Function) -> bool {
        let returns = |node: &Node| matches!(node.end.class.opcode, Op::Return | Op::ReturnValue);
        let count = flow.nodes.iter().filter(|node| returns(node)).count();
        let unreachable = flow.nodes.iter().any(|node| node.end.class.opcode == Op::Unreachable);
        if count == 0 {
            return false;
        }
        if count == 1 && !unreachable {
            return true;
        }
        let ty = function.def.as_ref().and_then(|def| def.result_type);
        let exit = self.linker.fresh();
        let mut values = vec![];
        for node in &mut flow.nodes {
            let value = match node.end.class.opcode {
                Op::ReturnValue => node.end.operands.first().and_then(Operand::id_ref_any),
                Op::Unreachable => Some(self.linker.global(Op::Undef, ty, vec![])),
                Op::Return => None,
                _ => continue,
            };
            if let Some(value) = value {
                values.extend(ids(&[value, node.label]));
            }
            node.end = branch(exit);
        }
        let has_value = flow.nodes.iter().all(|node| node.end.class.opcode != Op::Return) && !self.is_void(ty);
        let (phis, end) = if has_value {
            let value = self.linker.fresh();
            (
                vec![Instruction::new(Op::Phi, ty, Some(value), values)],
                Instruction::new(Op::ReturnValue, None, None, ids(&[value])),
            )
        } else {
            (vec![], Instruction::new(Op::Return, None, None, vec![]))
        };
        flow.nodes.push(Node { label: exit, phis, units: vec![], merge: None, end });
        true
    }

    fn is_void(&self, ty: Option<Word>) -> bool {
        let globals = &self.linker.module.types_global_values;
        globals.iter().any(|inst| inst.class.opcode == Op::TypeVoid && inst.result_id == ty)
    }

    /// Cuts nodes behind steps. The first segment is where the function begins, the last one where it returns.
    fn segments(&mut self, nodes: Vec<Node>) -> Option<Vec<Segment>> {
        let mut copies: HashMap<Word, BTreeMap<Word, Vec<(Word, Word)>>> = HashMap::new();
        for node in &nodes {
            for phi in &node.phis {
                for pair in phi.operands.chunks(2) {
                    let [Operand::IdRef(value), Operand::IdRef(parent)] = *pair else { continue };
                    let to = copies.entry(parent).or_default().entry(node.label).or_default();
                    to.push((phi.result_id?, value));
                }
            }
        }
        let mut segments: Vec<Segment> = vec![];
        for node in nodes {
            let mut pieces = pieces(node.units, 1);
            let returns = targets(&node.end).is_empty();
            let copies = copies.remove(&node.label).unwrap_or_default();
            // What is behind the last steps is a segment of its own only if it has to be.
            if let [.., before, last] = pieces.as_slice()
                && last.code.is_empty()
                && !returns
            {
                let made: HashSet<Word> = before.steps.iter().flat_map(|unit| unit.results.iter().copied()).collect();
                let read = node.end.operands.iter().filter_map(Operand::id_ref_any);
                if !read.chain(copies.values().flatten().map(|&(_, from)| from)).any(|id| made.contains(&id)) {
                    pieces.pop();
                }
            }
            let count = pieces.len();
            let (mut label, mut phis, mut end, mut copies) = (node.label, node.phis, Some(node.end), Some(copies));
            for (k, piece) in pieces.into_iter().enumerate() {
                let next = self.linker.fresh();
                let is_last = k + 1 == count;
                segments.push(Segment {
                    label,
                    phis: std::mem::take(&mut phis),
                    code: piece.code,
                    steps: piece.steps.iter().filter_map(|unit| unit.step).collect(),
                    end: if is_last { end.take()? } else { branch(next) },
                    copies: if is_last { copies.take()? } else { BTreeMap::new() },
                });
                label = next;
            }
        }
        let last = segments.iter().position(|segment| targets(&segment.end).is_empty())?;
        let last = segments.remove(last);
        segments.push(last);
        Some(segments)
    }
}

/// Whether invocations have to be together for an instruction.
fn meets(opcode: Op) -> bool {
    let name = format!("{opcode:?}");
    ["ControlBarrier", "MemoryBarrier", "Group", "CooperativeMatrix", "Subgroup"]
        .iter()
        .any(|way| name.starts_with(way))
}

/// How often sequences would have the code of these steps.
fn calls(steps: &[MachineStep]) -> usize {
    let sums = steps.iter().filter(|step| step.kind == Kind::Sum).count();
    steps.len() - sums + if sums < LEAST { sums } else { 1 }
}

/// A function on its way to a machine.
struct Machine {
    kinds: Vec<Kind>,
    sums: bool,
    /// Steps have two words.
    wide: bool,
    slots: Slots,
    /// Variables of the function that are slots, by type and number.
    variables: BTreeMap<(Word, usize), Word>,
}

impl Machine {
    fn write(
        mut self,
        lowering: &mut Lowering<'_>,
        function: &Function,
        mut variables: Vec<Instruction>,
        segments: &[Segment],
        shared: &mut Shared,
    ) -> Result<Function> {
        let bad = || super::bad("a machine without segments");
        let [first, middle @ .., last] = segments else { return Err(bad()) };
        let uint = lowering.uint();
        shared.most = shared.most.max(self.slots.registers);
        for (&ty, &count) in &self.slots.variables {
            let pointer = lowering.linker.type_pointer(StorageClass::Function, ty);
            for number in 0..count {
                let variable = lowering.linker.fresh();
                variables.push(local(pointer, variable));
                self.variables.insert((ty, number), variable);
            }
        }
        let states: HashMap<Word, u32> =
            segments.iter().enumerate().map(|(at, segment)| (segment.label, at as u32)).collect();
        let end = states.get(&last.label).copied().ok_or_else(bad)?;
        let [header, check, dispatch, after, next, exit] = [(); 6].map(|()| lowering.linker.fresh());

        lowering.out = vec![];
        let mut current = first.label;
        for (register, &constant) in self.slots.constants.iter().enumerate() {
            let pointer = lowering.register(shared, register);
            lowering.effect(Op::Store, &[pointer, constant]);
        }
        let begun = self.write_segment(lowering, 0, first, &states, &mut current, shared);
        lowering.effect(Op::Branch, &[header]);

        // State, and where the steps of each kind begin and end.
        let before = current;
        let turned: Vec<Word> = begun.iter().map(|_| lowering.linker.fresh()).collect();
        let state: Vec<Word> = begun.iter().map(|_| lowering.linker.fresh()).collect();
        lowering.label(header, &mut current);
        for ((&phi, &from), &turn) in state.iter().zip(&begun).zip(&turned) {
            let phi = Instruction::new(Op::Phi, Some(uint), Some(phi), ids(&[from, before, turn, next]));
            lowering.out.push(phi);
        }
        lowering.loop_merge(exit, next);
        for (k, &kind) in self.kinds.iter().enumerate() {
            self.write_steps(lowering, kind, [state[k + 1], state[k + 2]], &mut current, shared)?;
        }
        lowering.effect(Op::Branch, &[check]);
        lowering.label(check, &mut current);
        let (bool, number) = (lowering.linker.type_bool(), lowering.linker.const_u32(end));
        let done = lowering.of_ids(Op::IEqual, bool, &[state[0], number]);
        lowering.effect(Op::BranchConditional, &[done, exit, dispatch]);

        lowering.label(dispatch, &mut current);
        let labels: Vec<Word> = middle.iter().map(|_| lowering.linker.fresh()).collect();
        lowering.selection_merge(after);
        let mut operands = ids(&[state[0], *labels.last().ok_or_else(bad)?]);
        for (k, &label) in labels.iter().enumerate().take(labels.len() - 1) {
            operands.extend([Operand::LiteralBit32(k as u32 + 1), Operand::IdRef(label)]);
        }
        lowering.out.push(Instruction::new(Op::Switch, None, None, operands));
        let mut ways: Vec<(Vec<Word>, Word)> = vec![];
        for (k, segment) in middle.iter().enumerate() {
            lowering.label(labels[k], &mut current);
            let made = self.write_segment(lowering, k + 1, segment, &states, &mut current, shared);
            lowering.effect(Op::Branch, &[after]);
            ways.push((made, current));
        }
        lowering.label(after, &mut current);
        for (k, &turn) in turned.iter().enumerate() {
            let operands = ways.iter().flat_map(|(made, label)| ids(&[made[k], *label])).collect();
            lowering.out.push(Instruction::new(Op::Phi, Some(uint), Some(turn), operands));
        }
        lowering.effect(Op::Branch, &[next]);
        lowering.label(next, &mut current);
        lowering.effect(Op::Branch, &[header]);

        lowering.label(exit, &mut current);
        let renamed = self.load(lowering, segments.len() - 1, last, shared);
        let mut out = std::mem::take(&mut lowering.out);
        last.code.iter().for_each(|unit| write(unit, &renamed, &mut current, &mut out));
        out.push(with_ids(&last.end, &renamed));

        variables.append(&mut out);
        let blocks = blocks(first.label, variables);
        Ok(Function { blocks, ..function.clone() })
    }

    /// Writes the words of a segment's steps, by kind; answers where those of each kind begin and end.
    fn write_words(&self, lowering: &mut Lowering<'_>, segment: &Segment, shared: &mut Shared) -> Vec<u32> {
        let constants: HashMap<Word, usize> =
            self.slots.constants.iter().enumerate().map(|(register, &id)| (id, register)).collect();
        let register = |id: Word| match self.slots.of.get(&id) {
            Some(&Slot::Register(register)) => register as u32,
            _ => constants.get(&id).copied().unwrap_or(0) as u32,
        };
        let (mut at, mut starts) = (0, vec![0]);
        for &kind in &self.kinds {
            for step in segment.steps.iter().filter(|step| step.kind == kind) {
                let [a, b, c] = step.operands.map(register);
                let result = register(step.result);
                let words = match self.wide {
                    false => vec![step.signs | c << (3 * BITS) | b << (2 * BITS) | a << BITS | result],
                    true => vec![step.signs | a << WIDE_BITS | result, c << WIDE_BITS | b],
                };
                let first = at * words.len() as u32;
                for (k, word) in (first..).zip(words) {
                    let (word, index) = (lowering.linker.const_u32(word), lowering.linker.const_u32(k));
                    let place =
                        lowering.of_ids(Op::InBoundsAccessChain, shared.word_pointer, &[shared.step_table, index]);
                    lowering.effect(Op::Store, &[place, word]);
                    shared.most_steps = shared.most_steps.max(k + 1);
                }
                at += 1;
            }
            starts.push(at);
        }
        starts
    }

    fn place(&self, lowering: &mut Lowering<'_>, slot: Slot, shared: &Shared) -> Word {
        match slot {
            Slot::Register(register) => lowering.register(shared, register),
            Slot::Variable(ty, number) => self.variables.get(&(ty, number)).copied().unwrap_or_default(),
        }
    }

    /// Loads what a segment reads of others, and makes pointers anew; the ids that those have here.
    fn load(&self, lowering: &mut Lowering<'_>, at: usize, segment: &Segment, shared: &Shared) -> HashMap<Word, Word> {
        let mut renamed = HashMap::new();
        let labels: HashSet<Word> = targets(&segment.end).into_iter().collect();
        let code = segment.code.iter().flat_map(|unit| unit.uses.iter().copied());
        let end = segment.end.operands.iter().filter_map(Operand::id_ref_any).filter(|id| !labels.contains(id));
        let moved = segment.copies.values().flatten();
        let moved =
            moved.filter(|(phi, from)| self.slots.of.get(phi) != self.slots.of.get(from)).map(|&(_, from)| from);
        for id in code.chain(end).chain(moved) {
            self.load_one(lowering, at, id, shared, &mut renamed);
        }
        renamed
    }

    fn load_one(
        &self,
        lowering: &mut Lowering<'_>,
        at: usize,
        id: Word,
        shared: &Shared,
        renamed: &mut HashMap<Word, Word>,
    ) {
        if self.slots.is_visible(id, at) || renamed.contains_key(&id) {
            return;
        }
        if let Some(pointer) = self.slots.pointer(id) {
            for inner in pointer.operands.iter().filter_map(Operand::id_ref_any) {
                self.load_one(lowering, at, inner, shared, renamed);
            }
            let made = with_ids(pointer, renamed);
            let copy = lowering.op(made.class.opcode, made.result_type.unwrap_or_default(), made.operands);
            lowering.copied.push((id, copy));
            renamed.insert(id, copy);
            return;
        }
        if let (Some(&slot), Some(ty)) = (self.slots.of.get(&id), self.slots.type_of(id)) {
            let place = self.place(lowering, slot, shared);
            let loaded = lowering.of_ids(Op::Load, ty, &[place]);
            renamed.insert(id, loaded);
        }
    }

    /// Writes a segment's code; answers the state that follows, and where steps begin and end.
    fn write_segment(
        &self,
        lowering: &mut Lowering<'_>,
        at: usize,
        segment: &Segment,
        states: &HashMap<Word, u32>,
        current: &mut Word,
        shared: &mut Shared,
    ) -> Vec<Word> {
        let renamed = self.load(lowering, at, segment, shared);
        let mut out = std::mem::take(&mut lowering.out);
        segment.code.iter().for_each(|unit| write(unit, &renamed, current, &mut out));
        lowering.out = out;
        for &id in segment.code.iter().flat_map(|unit| &unit.results) {
            if let Some(&slot) = self.slots.of.get(&id) {
                let place = self.place(lowering, slot, shared);
                lowering.effect(Op::Store, &[place, id]);
            }
        }
        let starts = self.write_words(lowering, segment, shared);
        let uint = lowering.uint();
        let mut ways = targets(&segment.end);
        ways.sort_unstable();
        ways.dedup();
        let number = |lowering: &mut Lowering<'_>, way: Word| {
            lowering.linker.const_u32(states.get(&way).copied().unwrap_or_default())
        };
        let moved = |way: Word| -> Vec<(Slot, Word)> {
            let copies = segment.copies.get(&way).into_iter().flatten();
            let copies = copies.filter(|(phi, from)| self.slots.of.get(phi) != self.slots.of.get(from));
            copies
                .filter_map(|(phi, from)| Some((*self.slots.of.get(phi)?, renamed.get(from).copied().unwrap_or(*from))))
                .collect()
        };
        let end = with_ids(&segment.end, &renamed);
        let next = match (ways.as_slice(), segment.end.class.opcode) {
            (&[way], _) => {
                self.store(lowering, &moved(way), shared);
                number(lowering, way)
            }
            (&[_, _], Op::BranchConditional) if ways.iter().all(|&way| moved(way).is_empty()) => {
                let to = targets(&segment.end);
                let (yes, no) = (number(lowering, to[0]), number(lowering, to[1]));
                let condition = end.operands.first().and_then(Operand::id_ref_any).unwrap_or_default();
                lowering.of_ids(Op::Select, uint, &[condition, yes, no])
            }
            _ => {
                let (merge, labels): (Word, HashMap<Word, Word>) =
                    (lowering.linker.fresh(), ways.iter().map(|&way| (way, lowering.linker.fresh())).collect());
                lowering.selection_merge(merge);
                lowering.out.push(with_ids(&end, &labels));
                let mut operands = vec![];
                for &way in &ways {
                    let label = labels.get(&way).copied().unwrap_or_default();
                    lowering.label(label, current);
                    self.store(lowering, &moved(way), shared);
                    operands.extend(ids(&[number(lowering, way), label]));
                    lowering.effect(Op::Branch, &[merge]);
                }
                lowering.label(merge, current);
                lowering.op(Op::Phi, uint, operands)
            }
        };
        std::iter::once(next).chain(starts.into_iter().map(|start| lowering.linker.const_u32(start))).collect()
    }

    fn store(&self, lowering: &mut Lowering<'_>, moved: &[(Slot, Word)], shared: &Shared) {
        for &(slot, value) in moved {
            let place = self.place(lowering, slot, shared);
            lowering.effect(Op::Store, &[place, value]);
        }
    }

    /// The loop over a segment's steps of one kind.
    fn write_steps(
        &self,
        lowering: &mut Lowering<'_>,
        kind: Kind,
        [from, to]: [Word; 2],
        current: &mut Word,
        shared: &Shared,
    ) -> Result<()> {
        let [header, body, next, merge, index, following] = [(); 6].map(|()| lowering.linker.fresh());
        let (uint, pair, bool) = (lowering.uint(), lowering.pair(), lowering.linker.type_bool());
        let before = *current;
        lowering.effect(Op::Branch, &[header]);
        lowering.label(header, current);
        let phi = Instruction::new(Op::Phi, Some(uint), Some(index), ids(&[from, before, following, next]));
        lowering.out.push(phi);
        let more = lowering.of_ids(Op::ULessThan, bool, &[index, to]);
        lowering.loop_merge(merge, next);
        lowering.effect(Op::BranchConditional, &[more, body, merge]);

        lowering.label(body, current);
        let word_at = |lowering: &mut Lowering<'_>, index: Word| {
            let at = lowering.of_ids(Op::InBoundsAccessChain, shared.word_pointer, &[shared.step_table, index]);
            lowering.of_ids(Op::Load, uint, &[at])
        };
        let (first, second, bits) = if self.wide {
            let one = lowering.linker.const_u32(1);
            let even = lowering.of_ids(Op::ShiftLeftLogical, uint, &[index, one]);
            let odd = lowering.of_ids(Op::BitwiseOr, uint, &[even, one]);
            (word_at(lowering, even), word_at(lowering, odd), WIDE_BITS)
        } else {
            let word = word_at(lowering, index);
            (word, word, BITS)
        };
        let mask = lowering.linker.const_u32((1 << bits) - 1);
        // Result, a, b and c, of which two words have two each.
        let place = |lowering: &mut Lowering<'_>, k: u32| {
            let (mut word, k) = if self.wide && k > 1 { (second, k - 2) } else { (first, k) };
            if k > 0 {
                let places = lowering.linker.const_u32(k * bits);
                word = lowering.of_ids(Op::ShiftRightLogical, uint, &[word, places]);
            }
            let register = lowering.of_ids(Op::BitwiseAnd, uint, &[word, mask]);
            lowering.of_ids(Op::InBoundsAccessChain, shared.pair_pointer, &[shared.registers, register])
        };
        let operand = |lowering: &mut Lowering<'_>, k: u32| {
            let pointer = place(lowering, k);
            lowering.of_ids(Op::Load, pair, &[pointer])
        };
        let a = operand(lowering, 1);
        let result = match kind {
            Kind::Sum if self.sums => {
                let c = operand(lowering, 3);
                lowering.call("nx_soft_sum_step_f64", &[first, a, c])?
            }
            Kind::Sum => {
                let (b, c) = (operand(lowering, 2), operand(lowering, 3));
                lowering.call("nx_soft_fma_step_f64", &[first, a, b, c])?
            }
            Kind::Quotient => {
                let b = operand(lowering, 2);
                lowering.call("nx_soft_divide_f64", &[a, b])?
            }
            Kind::Root => lowering.call("nx_soft_sqrt_f64", &[a])?,
        };
        let result_place = place(lowering, 0);
        lowering.effect(Op::Store, &[result_place, result]);
        lowering.effect(Op::Branch, &[next]);
        lowering.label(next, current);
        let one = lowering.linker.const_u32(1);
        lowering.out.push(Instruction::new(Op::IAdd, Some(uint), Some(following), ids(&[index, one])));
        lowering.effect(Op::Branch, &[header]);
        lowering.label(merge, current);
        Ok(())
    }
}

impl Lowering<'_> {
    fn label(&mut self, id: Word, current: &mut Word) {
        *current = id;
        self.out.push(Instruction::new(Op::Label, None, Some(id), vec![]));
    }

    fn loop_merge(&mut self, merge: Word, next: Word) {
        let mut operands = ids(&[merge, next]);
        operands.push(Operand::LoopControl(LoopControl::DONT_UNROLL));
        self.out.push(Instruction::new(Op::LoopMerge, None, None, operands));
    }

    fn selection_merge(&mut self, merge: Word) {
        let operands = vec![Operand::IdRef(merge), Operand::SelectionControl(SelectionControl::NONE)];
        self.out.push(Instruction::new(Op::SelectionMerge, None, None, operands));
    }
}
