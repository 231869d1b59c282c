//! Sequences of sums and products of f64 as loops over tables of steps: drivers inline every call of the soft library,
//! so that a hundred operations in a row would be tens of thousands of instructions.
//!
//! Functions of one block are inlined first. Then each block is put in an order in which operations that need nothing
//! else follow each other. A loop keeps numbers in an array of registers; a word of the table names the registers and
//! signs of one step.

use std::collections::{HashMap, HashSet};

use nx_vulkan_ir::Result;
use rspirv::dr::{Block, Function, Instruction, Operand};
use rspirv::spirv::{LoopControl, Op, StorageClass, Word};

use super::Lowering;
use super::flow::Unit;
use super::order::{Constants, MachineStep, Soft, callee, is_pure, pieces, with_ids};

/// Fewer operations in a row stay calls: a loop is as much code as one or two of them.
pub(super) const LEAST: usize = 3;

/// Registers that a word of the table can name.
const REGISTERS: usize = 1 << BITS;
const BITS: u32 = 7;

/// What the loops of a module share: variables, which are declared once all is known, and the table.
pub(super) struct Shared {
    pub registers: Word,
    table: Word,
    /// The steps of a machine's segment.
    pub step_table: Word,
    /// Words that the longest row of a machine takes.
    pub most_steps: u32,
    words: Vec<Word>,
    /// Registers that the longest sequence takes.
    pub most: usize,
    /// Pointers into both variables.
    pub pair_pointer: Word,
    pub word_pointer: Word,
    pub constants: Constants,
}

impl Lowering<'_> {
    /// The functions with loops in place of long sequences.
    pub(super) fn sequences(&mut self, mut functions: Vec<Function>) -> Result<Vec<Function>> {
        if !self.soft.values().any(|soft| !matches!(soft, Soft::Negate | Soft::Other)) {
            return Ok(functions);
        }
        let (pair, uint) = (self.pair(), self.uint());
        let mut shared = Shared {
            registers: self.linker.fresh(),
            table: self.linker.fresh(),
            step_table: self.linker.fresh(),
            most_steps: 0,
            words: vec![],
            most: 0,
            pair_pointer: self.linker.type_pointer(StorageClass::Private, pair),
            word_pointer: self.linker.type_pointer(StorageClass::Private, uint),
            constants: self.constants(),
        };
        self.machines(&mut functions, &mut shared)?;
        self.drop_uncalled(&mut functions);
        self.inline(&mut functions);
        for function in &mut functions {
            self.function_sequences(function, &mut shared)?;
        }
        if !shared.words.is_empty() {
            let words = std::mem::take(&mut shared.words);
            let array = self.linker.type_array(uint, words.len() as u32);
            let words = words.into_iter().map(Operand::IdRef).collect();
            let constant = self.linker.global(Op::ConstantComposite, Some(array), words);
            self.private(shared.table, array, Some(constant));
        }
        if shared.most_steps > 0 {
            let array = self.linker.type_array(uint, shared.most_steps);
            self.private(shared.step_table, array, None);
        }
        if shared.most > 0 {
            let array = self.linker.type_array(pair, shared.most as u32);
            self.private(shared.registers, array, None);
        }
        Ok(functions)
    }

    /// Declares a variable of each invocation.
    fn private(&mut self, variable: Word, ty: Word, initializer: Option<Word>) {
        let pointer = self.linker.type_pointer(StorageClass::Private, ty);
        let operands =
            [Operand::StorageClass(StorageClass::Private)].into_iter().chain(initializer.map(Operand::IdRef)).collect();
        let module = &mut self.linker.module;
        module.types_global_values.push(Instruction::new(Op::Variable, Some(pointer), Some(variable), operands));
        // From SPIR-V 1.4 on, entry points name all variables.
        if module.header.as_ref().is_some_and(|header| header.version() >= (1, 4)) {
            for entry in &mut self.old.entry_points {
                entry.operands.push(Operand::IdRef(variable));
            }
        }
    }

    fn has_steps(&self, function: &Function) -> bool {
        function.all_inst_iter().any(|inst| self.is_step(inst))
    }

    /// Inlines functions of one block that have operations of sequences, and drops those which nothing calls then.
    fn inline(&mut self, functions: &mut Vec<Function>) {
        loop {
            let bodies: HashMap<Word, Function> = functions
                .iter()
                .filter(|function| is_plain(function) && self.has_steps(function))
                .filter_map(|function| Some((function.def_id()?, function.clone())))
                .collect();
            let mut changed = false;
            for function in functions.iter_mut() {
                for block in &mut function.blocks {
                    changed |= self.inline_into(block, &bodies);
                }
            }
            if !changed {
                break;
            }
        }
        self.drop_uncalled(functions);
    }

    /// Drops functions that no entry point reaches.
    fn drop_uncalled(&self, functions: &mut Vec<Function>) {
        let entries = self.old.entry_points.iter().filter_map(|entry| entry.operands.get(1)?.id_ref_any());
        let mut left: Vec<Word> = entries.collect();
        let calls: HashMap<Word, Vec<Word>> = functions
            .iter()
            .filter_map(|function| Some((function.def_id()?, function.all_inst_iter().filter_map(callee).collect())))
            .collect();
        let mut reached: HashSet<Word> = HashSet::new();
        while let Some(id) = left.pop() {
            if reached.insert(id) {
                left.extend(calls.get(&id).into_iter().flatten());
            }
        }
        functions.retain(|function| function.def_id().is_none_or(|id| reached.contains(&id)));
    }

    fn inline_into(&mut self, block: &mut Block, bodies: &HashMap<Word, Function>) -> bool {
        let body = |inst: &Instruction| callee(inst).and_then(|callee| bodies.get(&callee));
        if !block.instructions.iter().any(|inst| body(inst).is_some()) {
            return false;
        }
        let mut instructions = Vec::new();
        for inst in std::mem::take(&mut block.instructions) {
            let Some(body) = body(&inst) else {
                instructions.push(inst);
                continue;
            };
            let arguments = inst.operands.iter().skip(1).filter_map(Operand::id_ref_any);
            let parameters = body.parameters.iter().filter_map(|parameter| parameter.result_id);
            let mut ids: HashMap<Word, Word> = parameters.zip(arguments).collect();
            for inner in body.blocks.iter().flat_map(|block| &block.instructions) {
                if let Some(id) = inner.result_id {
                    let fresh = self.linker.fresh();
                    ids.insert(id, fresh);
                    self.copied.push((id, fresh));
                }
                let mut inner = with_ids(inner, &ids);
                inner.result_id = inner.result_id.and_then(|id| ids.get(&id).copied());
                match inner.class.opcode {
                    Op::Return => {}
                    Op::ReturnValue => {
                        let (ty, id) = (inst.result_type, inst.result_id);
                        instructions.push(Instruction::new(Op::CopyObject, ty, id, inner.operands));
                    }
                    _ => instructions.push(inner),
                }
            }
        }
        block.instructions = instructions;
        true
    }

    fn function_sequences(&mut self, function: &mut Function, shared: &mut Shared) -> Result<()> {
        if !self.has_steps(function) {
            return Ok(());
        }
        self.forward_copies(function);
        let negated = self.negations(function.all_inst_iter());
        let mut uses: HashMap<Word, usize> = HashMap::new();
        for id in function.all_inst_iter().flat_map(|inst| &inst.operands).filter_map(Operand::id_ref_any) {
            *uses.entry(id).or_default() += 1;
        }
        let mut blocks = Vec::new();
        let mut ends = HashMap::new();
        for block in std::mem::take(&mut function.blocks) {
            let label = block.label.as_ref().and_then(|label| label.result_id);
            let steps = block.instructions.iter().filter(|inst| self.is_step(inst)).count();
            // A loop's header must stay the block that the loop comes back to.
            if steps < LEAST || block.instructions.iter().any(|inst| inst.class.opcode == Op::LoopMerge) {
                blocks.push(block);
                continue;
            }
            let split = self.block_sequences(block, &negated, &uses, shared)?;
            let last = split.last().and_then(|block| block.label.as_ref()).and_then(|label| label.result_id);
            if let (Some(label), Some(last)) = (label, last) {
                ends.insert(label, last);
            }
            blocks.extend(split);
        }
        for inst in blocks.iter_mut().flat_map(|block| &mut block.instructions) {
            if inst.class.opcode == Op::Phi && !self.counters.contains(&inst.result_id.unwrap_or_default()) {
                for parent in inst.operands.iter_mut().skip(1).step_by(2) {
                    if let Operand::IdRef(id) = parent {
                        *id = ends.get(id).copied().unwrap_or(*id);
                    }
                }
            }
        }
        function.blocks = blocks;
        Ok(())
    }

    /// Lets uses of copies, and of parts of what was put together, name what they are.
    fn forward_copies(&self, function: &mut Function) {
        let globals = &self.linker.module.types_global_values;
        let vectors: HashSet<Word> = globals
            .iter()
            .filter(|inst| inst.class.opcode == Op::TypeVector)
            .filter_map(|inst| inst.result_id)
            .collect();
        let mut made: HashMap<Word, Vec<Word>> = HashMap::new();
        let mut same: HashMap<Word, Word> = HashMap::new();
        for inst in function.all_inst_iter() {
            let (Some(id), Some(ty)) = (inst.result_id, inst.result_type) else { continue };
            let resolved = |id: Word| same.get(&id).copied().unwrap_or(id);
            match (inst.class.opcode, inst.operands.as_slice()) {
                (Op::CopyObject, [Operand::IdRef(from)]) => {
                    same.insert(id, resolved(*from));
                }
                (Op::CompositeConstruct, parts) if !vectors.contains(&ty) => {
                    made.insert(id, parts.iter().filter_map(Operand::id_ref_any).map(resolved).collect());
                }
                (Op::CompositeExtract, [Operand::IdRef(from), Operand::LiteralBit32(index)]) => {
                    if let Some(&part) = made.get(&resolved(*from)).and_then(|parts| parts.get(*index as usize)) {
                        same.insert(id, part);
                    }
                }
                _ => {}
            }
        }
        for inst in function.blocks.iter_mut().flat_map(|block| &mut block.instructions) {
            *inst = with_ids(inst, &same);
        }
    }
}

/// A function of one block without variables, which can stand where it is called.
fn is_plain(function: &Function) -> bool {
    let [block] = function.blocks.as_slice() else { return false };
    let ends = block.instructions.last().is_some_and(|end| matches!(end.class.opcode, Op::Return | Op::ReturnValue));
    ends && !block.instructions.iter().any(|inst| inst.class.opcode == Op::Variable)
}

/// A block on its way to blocks with loops.
struct Writing<'w, 'l> {
    lowering: &'w mut Lowering<'l>,
    uses: &'w HashMap<Word, usize>,
    blocks: Vec<Block>,
}

impl Lowering<'_> {
    fn block_sequences(
        &mut self,
        block: Block,
        negated: &HashMap<Word, Word>,
        uses: &HashMap<Word, usize>,
        shared: &mut Shared,
    ) -> Result<Vec<Block>> {
        let all = block.instructions;
        let begins = |inst: &&Instruction| matches!(inst.class.opcode, Op::Phi | Op::Variable);
        let first = all.iter().take_while(begins).count();
        let merges = |inst: &Instruction| inst.class.opcode == Op::SelectionMerge;
        let last = all.iter().position(merges).unwrap_or(all.len().saturating_sub(1)).max(first);
        let unit = |inst: &Instruction| {
            let step = self.step(inst, negated, shared.constants).filter(|_| self.is_step(inst));
            let is_pure = is_pure(inst) || self.soft_of(inst).is_some();
            Unit { step, ..Unit::new(vec![inst.clone()], None, is_pure) }
        };
        let pieces = pieces(all[first..last].iter().map(unit).collect(), LEAST);
        let begun = Block { label: block.label, instructions: all[..first].to_vec() };
        let mut writing = Writing { lowering: self, uses, blocks: vec![begun] };
        for piece in pieces {
            writing.current().extend(piece.code.into_iter().flat_map(|unit| unit.code));
            writing.emit_steps(&piece.steps, shared)?;
        }
        writing.current().extend(all[last..].iter().cloned());
        Ok(writing.blocks)
    }
}

impl Writing<'_, '_> {
    fn current(&mut self) -> &mut Vec<Instruction> {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last].instructions
    }

    /// Writes steps as loops, each of as many as there are registers for.
    fn emit_steps(&mut self, mut steps: &[Unit], shared: &mut Shared) -> Result<()> {
        while !steps.is_empty() {
            let mut count = steps.len();
            let assigned = loop {
                match self.assign(&steps[..count], shared) {
                    Some(assigned) => break assigned,
                    None => count = (count / 2).max(1),
                }
            };
            self.emit_loop(assigned, shared)?;
            steps = &steps[count..];
        }
        Ok(())
    }

    /// Registers for steps, if there are enough.
    fn assign(&self, units: &[Unit], shared: &Shared) -> Option<Assigned> {
        let steps: Vec<MachineStep> = units.iter().filter_map(|unit| unit.step).collect();
        let sums = steps.iter().all(|step| step.is_sum(shared.constants));
        let mut last: HashMap<Word, usize> = HashMap::new();
        for (k, step) in steps.iter().enumerate() {
            last.extend(step.reads(sums).map(|id| (id, k)));
        }
        // Uses by these steps themselves.
        let mut raw: HashMap<Word, usize> = HashMap::new();
        for &id in units.iter().flat_map(|unit| &unit.uses) {
            *raw.entry(id).or_default() += 1;
        }
        let is_kept = |id: Word| self.uses.get(&id).copied().unwrap_or(0) > raw.get(&id).copied().unwrap_or(0);
        let mut free: Vec<usize> = (0..REGISTERS).rev().collect();
        let mut most = 0;
        let mut at: HashMap<Word, usize> = HashMap::new();
        let mut assigned = Assigned { sums, loads: vec![], words: vec![], results: vec![], most: 0 };
        let results: HashSet<Word> = steps.iter().map(|step| step.result).collect();
        for id in steps.iter().flat_map(|step| step.reads(sums)) {
            if !results.contains(&id) && !at.contains_key(&id) {
                let register = free.pop()?;
                most = most.max(register + 1);
                at.insert(id, register);
                assigned.loads.push((register, id));
            }
        }
        for (k, step) in steps.iter().enumerate() {
            let registers = step.operands.map(|id| at.get(&id).copied().unwrap_or(0));
            let mut dead: Vec<Word> = step.reads(sums).filter(|id| last.get(id) == Some(&k)).collect();
            dead.sort_unstable();
            dead.dedup();
            for id in dead {
                // A result that is read behind the loop stays in its register.
                if !(results.contains(&id) && is_kept(id)) {
                    free.extend(at.get(&id));
                }
            }
            let register = free.pop()?;
            most = most.max(register + 1);
            let [a, b, c] = registers.map(|register| register as u32);
            let word = register as u32 | a << BITS | b << (2 * BITS) | c << (3 * BITS) | step.signs;
            assigned.words.push(word);
            at.insert(step.result, register);
            if is_kept(step.result) {
                assigned.results.push((step.result, register));
            } else if !last.contains_key(&step.result) {
                free.push(register);
            }
        }
        assigned.most = most;
        Some(assigned)
    }

    fn emit_loop(&mut self, assigned: Assigned, shared: &mut Shared) -> Result<()> {
        shared.most = shared.most.max(assigned.most);
        let lowering = &mut *self.lowering;
        let start = lowering.linker.const_u32(shared.words.len() as u32);
        for word in &assigned.words {
            let word = lowering.linker.const_u32(*word);
            shared.words.push(word);
        }
        let end = lowering.linker.const_u32(shared.words.len() as u32);
        let (uint, pair, bool) = (lowering.uint(), lowering.pair(), lowering.linker.type_bool());
        let [header, body, next, merge] = [(); 4].map(|()| lowering.linker.fresh());
        let before = self.blocks.last().and_then(|block| block.label.as_ref()).and_then(|label| label.result_id);
        let before = before.ok_or_else(|| super::bad("a block without a label"))?;

        lowering.out = vec![];
        for &(register, id) in &assigned.loads {
            let pointer = lowering.register(shared, register);
            lowering.effect(Op::Store, &[pointer, id]);
        }
        lowering.effect(Op::Branch, &[header]);
        let out = std::mem::take(&mut lowering.out);
        self.current().extend(out);

        let lowering = &mut *self.lowering;
        let (index, more, following) = (lowering.linker.fresh(), lowering.linker.fresh(), lowering.linker.fresh());
        lowering.counters.insert(index);
        let ids = |ids: &[Word]| ids.iter().map(|&id| Operand::IdRef(id)).collect::<Vec<_>>();
        let head = vec![
            Instruction::new(Op::Phi, Some(uint), Some(index), ids(&[start, before, following, next])),
            Instruction::new(Op::ULessThan, Some(bool), Some(more), ids(&[index, end])),
            Instruction::new(
                Op::LoopMerge,
                None,
                None,
                vec![Operand::IdRef(merge), Operand::IdRef(next), Operand::LoopControl(LoopControl::DONT_UNROLL)],
            ),
            Instruction::new(Op::BranchConditional, None, None, ids(&[more, body, merge])),
        ];

        let at = lowering.of_ids(Op::InBoundsAccessChain, shared.word_pointer, &[shared.table, index]);
        let word = lowering.of_ids(Op::Load, uint, &[at]);
        let mask = lowering.linker.const_u32(REGISTERS as u32 - 1);
        let mut operands = vec![word];
        for k in if assigned.sums { vec![1, 3] } else { vec![1, 2, 3] } {
            let places = lowering.linker.const_u32(k * BITS);
            let shifted = lowering.of_ids(Op::ShiftRightLogical, uint, &[word, places]);
            let register = lowering.of_ids(Op::BitwiseAnd, uint, &[shifted, mask]);
            let pointer = lowering.of_ids(Op::InBoundsAccessChain, shared.pair_pointer, &[shared.registers, register]);
            operands.push(lowering.of_ids(Op::Load, pair, &[pointer]));
        }
        let step = if assigned.sums { "nx_soft_sum_step_f64" } else { "nx_soft_fma_step_f64" };
        let result = lowering.call(step, &operands)?;
        let register = lowering.of_ids(Op::BitwiseAnd, uint, &[word, mask]);
        let pointer = lowering.of_ids(Op::InBoundsAccessChain, shared.pair_pointer, &[shared.registers, register]);
        lowering.effect(Op::Store, &[pointer, result]);
        lowering.effect(Op::Branch, &[next]);
        let inner = std::mem::take(&mut lowering.out);

        let one = lowering.linker.const_u32(1);
        let further = vec![
            Instruction::new(Op::IAdd, Some(uint), Some(following), ids(&[index, one])),
            Instruction::new(Op::Branch, None, None, ids(&[header])),
        ];

        for (id, register) in assigned.results {
            let pointer = lowering.register(shared, register);
            let load = Instruction::new(Op::Load, Some(pair), Some(id), ids(&[pointer]));
            lowering.out.push(load);
        }
        let after = std::mem::take(&mut lowering.out);
        for (label, instructions) in [(header, head), (body, inner), (next, further), (merge, after)] {
            let label = Some(Instruction::new(Op::Label, None, Some(label), vec![]));
            self.blocks.push(Block { label, instructions });
        }
        Ok(())
    }
}

/// A sequence with its registers.
struct Assigned {
    /// Whether all steps are sums.
    sums: bool,
    /// Registers that are set before the loop.
    loads: Vec<(usize, Word)>,
    words: Vec<u32>,
    /// Results that are read behind it.
    results: Vec<(Word, usize)>,
    /// Registers in all.
    most: usize,
}

impl Lowering<'_> {
    pub(super) fn register(&mut self, shared: &Shared, register: usize) -> Word {
        let index = self.linker.const_u32(register as u32);
        self.of_ids(Op::InBoundsAccessChain, shared.pair_pointer, &[shared.registers, index])
    }

    /// Writes an instruction without a result.
    pub(super) fn effect(&mut self, opcode: Op, operands: &[Word]) {
        let operands = operands.iter().map(|&id| Operand::IdRef(id)).collect();
        self.out.push(Instruction::new(opcode, None, None, operands));
    }
}
