//! Branches as choices among values: both ways are computed, where that is cheaper than to go one of them.

use std::collections::{BTreeMap, HashMap};

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, Word};

use super::Lowering;
use super::flow::{Flow, Unit, branch, ids, targets, write};
use crate::link::blocks;

/// Selections with at most so many steps are computed on both sides: a step costs what a turn of a machine does.
const SPECULATED: usize = 16;

/// Steps of branches that are computed on both sides where one way has none, as functions leave out what is not finite.
const GUARDED: usize = 64;

/// Instructions of a way that is computed whether it is taken or not.
const CHOSEN: usize = 400;

impl Lowering<'_> {
    /// Makes choices among values of branches in functions of the soft library, which stand in loops: SwiftShader's
    /// compiler takes twice as long for every two ways through the body of a loop.
    pub(super) fn straighten(&mut self) {
        for at in 0..self.linker.module.functions.len() {
            let function = self.linker.module.functions[at].clone();
            if function.blocks.len() < 2 {
                continue;
            }
            let Some(mut flow) = self.flow(&function, &HashMap::new()) else { continue };
            self.simplify(&mut flow);
            let [node] = flow.nodes.as_mut_slice() else { continue };
            let mut stream = std::mem::take(&mut flow.variables);
            let mut current = node.label;
            for unit in std::mem::take(&mut node.units) {
                write(&unit, &HashMap::new(), &mut current, &mut stream);
            }
            stream.push(node.end.clone());
            let blocks = blocks(node.label, stream);
            self.linker.module.functions[at].blocks = blocks;
        }
    }

    /// Makes branches whose ways are pure, and short, choices among values.
    pub(super) fn choose_all(&mut self, flow: &mut Flow, types: &HashMap<Word, Instruction>) -> bool {
        let mut changed = false;
        let mut k = 0;
        while k < flow.nodes.len() {
            if self.choose(flow, k, types) {
                changed = true;
                flow.sweep();
                k = 0;
            } else {
                k += 1;
            }
        }
        changed
    }

    /// The steps of a way that leads from one node alone to another, through pure code.
    fn way(
        &self,
        flow: &Flow,
        label: Word,
        parents: &HashMap<Word, Vec<usize>>,
        types: &HashMap<Word, Instruction>,
    ) -> Option<(usize, Word, usize)> {
        let is_safe = |divisor: &Operand| {
            let constant = divisor.id_ref_any().and_then(|id| types.get(&id));
            matches!(constant.and_then(|inst| inst.operands.first()), Some(Operand::LiteralBit32(1..=0x7fff_ffff)))
        };
        // Integers alone are divided.
        let may_fail = |inst: &Instruction| {
            matches!(inst.class.opcode as u32, 134..=135 | 137..=139) && !inst.operands.get(1).is_some_and(is_safe)
        };
        let at = flow.at(label)?;
        let node = &flow.nodes[at];
        let alone = parents.get(&label).is_some_and(|list| list.len() == 1) && node.phis.is_empty();
        let cheap = |unit: &Unit| unit.is_pure && unit.before.is_none() && !unit.code.iter().any(may_fail);
        let goes_on = node.end.class.opcode == Op::Branch && node.merge.is_none();
        (alone && goes_on && node.units.len() <= CHOSEN && node.units.iter().all(cheap))
            .then(|| (at, targets(&node.end)[0], self.steps_in(&node.units)))
    }

    /// Makes the branch that ends a node a choice.
    fn choose(&mut self, flow: &mut Flow, at: usize, types: &HashMap<Word, Instruction>) -> bool {
        let header = &flow.nodes[at];
        let is_loop = header.merge.as_ref().is_some_and(|merge| merge.class.opcode == Op::LoopMerge);
        if header.end.class.opcode != Op::BranchConditional || is_loop {
            return false;
        }
        let [yes, no] = targets(&header.end)[..] else { return false };
        let Some(&Operand::IdRef(condition)) = header.end.operands.first() else { return false };
        let (label, parents) = (header.label, flow.parents());
        let [a, b] = [yes, no].map(|way| self.way(flow, way, &parents, types));
        let (merge, inside, most) = match (a, b) {
            (Some((a, to, few)), Some((b, other, more))) if to == other => {
                (to, vec![a, b], if few.min(more) == 0 { GUARDED } else { SPECULATED })
            }
            (Some((a, to, _)), _) if to == no => (to, vec![a], GUARDED),
            (_, Some((b, to, _))) if to == yes => (to, vec![b], GUARDED),
            _ => return false,
        };
        let steps: usize = inside.iter().map(|&k| self.steps_in(&flow.nodes[k].units)).sum();
        let Some(end) = flow.at(merge) else { return false };
        if yes == no || steps > most || end == at {
            return false;
        }
        let parent = |target: Word| Operand::IdRef(if target == merge { label } else { target });
        let (yes, no) = (parent(yes), parent(no));
        let mut chosen = vec![];
        let mut variants: BTreeMap<u32, Word> = BTreeMap::new();
        let mut phis = flow.nodes[end].phis.clone();
        for phi in &mut phis {
            let value = |parent: &Operand| phi.operands.chunks(2).find(|pair| pair[1] == *parent)?[0].id_ref_any();
            let (Some(a), Some(b), Some(ty)) = (value(&yes), value(&no), phi.result_type) else { return false };
            let value = if a == b {
                a
            } else {
                let condition = match types.get(&ty).map(|inst| (inst.class.opcode, inst.operands.as_slice())) {
                    Some((Op::TypeVector, [_, Operand::LiteralBit32(length)])) => {
                        *variants.entry(*length).or_insert_with(|| self.linker.fresh())
                    }
                    Some((Op::TypeInt | Op::TypeFloat | Op::TypeBool, _)) => condition,
                    _ => return false,
                };
                let value = self.linker.fresh();
                chosen.push(Instruction::new(Op::Select, Some(ty), Some(value), ids(&[condition, a, b])));
                value
            };
            let kept = phi.operands.chunks(2).filter(|pair| pair[1] != yes && pair[1] != no);
            phi.operands = kept.flatten().cloned().chain(ids(&[value, label])).collect();
        }
        let bool = self.linker.type_bool();
        let mut units: Vec<Unit> = inside.iter().flat_map(|&k| std::mem::take(&mut flow.nodes[k].units)).collect();
        for (length, variant) in variants {
            let bools = self.linker.type_vector(bool, length);
            let operands = ids(&vec![condition; length as usize]);
            let inst = Instruction::new(Op::CompositeConstruct, Some(bools), Some(variant), operands);
            units.push(Unit::new(vec![inst], None, true));
        }
        units.extend(chosen.into_iter().map(|inst| Unit::new(vec![inst], None, true)));
        flow.nodes[end].phis = phis;
        let header = &mut flow.nodes[at];
        header.units.extend(units);
        header.merge = None;
        header.end = branch(merge);
        true
    }
}
