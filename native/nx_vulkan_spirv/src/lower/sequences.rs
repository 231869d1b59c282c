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

/// Fewer operations in a row stay calls: a loop is as much code as one or two of them.
const LEAST: usize = 3;

/// Registers that a word of the table can name.
const REGISTERS: usize = 1 << BITS;
const BITS: u32 = 7;

/// Bits of a step's word beside its registers.
const NEGATE_A: u32 = 1 << 31;
const NEGATE_B: u32 = 1 << 30;
const NEGATE_C: u32 = 1 << 29;
const SUBTRACT: u32 = 1 << 28;

/// Functions of the soft library that sequences know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Soft {
    Add,
    Subtract,
    Multiply,
    Fma,
    Negate,
    Other,
}

impl Soft {
    pub fn of(name: &str) -> Soft {
        match name {
            "nx_soft_add_f64" => Soft::Add,
            "nx_soft_subtract_f64" => Soft::Subtract,
            "nx_soft_multiply_f64" => Soft::Multiply,
            "nx_soft_fma_f64" => Soft::Fma,
            "nx_soft_negate_f64" => Soft::Negate,
            _ => Soft::Other,
        }
    }

    fn is_step(self) -> bool {
        !matches!(self, Soft::Negate | Soft::Other)
    }
}

/// One operation of a sequence: result, operands as `a * b + c`, and the signs of its word.
#[derive(Debug, Clone, Copy)]
struct Step {
    result: Word,
    operands: [Word; 3],
    signs: u32,
}

/// What the loops of a module share: variables, which are declared once all is known, and the table.
struct Shared {
    registers: Word,
    table: Word,
    words: Vec<Word>,
    /// Registers that the longest sequence takes.
    most: usize,
    /// Pointers into both variables.
    pair_pointer: Word,
    word_pointer: Word,
    one: Word,
    minus_zero: Word,
}

impl Lowering<'_> {
    /// The functions with loops in place of long sequences.
    pub(super) fn sequences(&mut self, mut functions: Vec<Function>) -> Result<Vec<Function>> {
        if !self.soft.values().any(|soft| soft.is_step()) {
            return Ok(functions);
        }
        self.inline(&mut functions);
        let (pair, uint) = (self.pair(), self.uint());
        let mut shared = Shared {
            registers: self.linker.fresh(),
            table: self.linker.fresh(),
            words: vec![],
            most: 0,
            pair_pointer: self.linker.type_pointer(StorageClass::Private, pair),
            word_pointer: self.linker.type_pointer(StorageClass::Private, uint),
            one: self.pair_constant(1f64.to_bits()),
            minus_zero: self.pair_constant((-0f64).to_bits()),
        };
        for function in &mut functions {
            self.function_sequences(function, &mut shared)?;
        }
        if !shared.words.is_empty() {
            let words = std::mem::take(&mut shared.words);
            let array = self.linker.type_array(uint, words.len() as u32);
            let words = words.into_iter().map(Operand::IdRef).collect();
            let constant = self.linker.global(Op::ConstantComposite, Some(array), words);
            self.private(shared.table, array, Some(constant));
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

    fn soft_of(&self, inst: &Instruction) -> Option<Soft> {
        callee(inst).and_then(|callee| self.soft.get(&callee).copied())
    }

    fn has_steps(&self, function: &Function) -> bool {
        function.all_inst_iter().any(|inst| self.soft_of(inst).is_some_and(Soft::is_step))
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
        let called: HashSet<Word> =
            functions.iter().flat_map(|function| function.all_inst_iter()).filter_map(callee).collect();
        let entries: HashSet<Word> =
            self.old.entry_points.iter().filter_map(|entry| entry.operands.get(1)?.id_ref_any()).collect();
        functions.retain(|function| function.def_id().is_none_or(|id| called.contains(&id) || entries.contains(&id)));
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
        let negated: HashMap<Word, Word> = function
            .all_inst_iter()
            .filter(|inst| self.soft_of(inst) == Some(Soft::Negate))
            .filter_map(|inst| Some((inst.result_id?, inst.operands.get(1)?.id_ref_any()?)))
            .collect();
        let mut uses: HashMap<Word, usize> = HashMap::new();
        for id in function.all_inst_iter().flat_map(|inst| &inst.operands).filter_map(Operand::id_ref_any) {
            *uses.entry(id).or_default() += 1;
        }
        let mut blocks = Vec::new();
        let mut ends = HashMap::new();
        for block in std::mem::take(&mut function.blocks) {
            let label = block.label.as_ref().and_then(|label| label.result_id);
            let steps = block.instructions.iter().filter(|inst| self.soft_of(inst).is_some_and(Soft::is_step)).count();
            // A loop's header must stay the block that the loop comes back to.
            if steps < LEAST || block.instructions.iter().any(|inst| inst.class.opcode == Op::LoopMerge) {
                blocks.push(block);
                continue;
            }
            let mut order = Order::new(self, block, &negated, &uses);
            order.run(shared)?;
            let split = order.blocks;
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

/// What a call calls.
fn callee(inst: &Instruction) -> Option<Word> {
    let operand = inst.operands.first().filter(|_| inst.class.opcode == Op::FunctionCall);
    operand.and_then(Operand::id_ref_any)
}

/// A function of one block without variables, which can stand where it is called.
fn is_plain(function: &Function) -> bool {
    let [block] = function.blocks.as_slice() else { return false };
    let ends = block.instructions.last().is_some_and(|end| matches!(end.class.opcode, Op::Return | Op::ReturnValue));
    ends && !block.instructions.iter().any(|inst| inst.class.opcode == Op::Variable)
}

fn with_ids(inst: &Instruction, ids: &HashMap<Word, Word>) -> Instruction {
    let mut inst = inst.clone();
    for operand in &mut inst.operands {
        if let Some(id) = operand.id_ref_any_mut() {
            *id = ids.get(id).copied().unwrap_or(*id);
        }
    }
    inst
}

/// Whether an instruction is arithmetic that may be moved: composites, conversions, arithmetic, comparisons and bits,
/// by SPIR-V's numbers.
fn is_pure(opcode: Op) -> bool {
    matches!(opcode as u32, 65..=66 | 77..=84 | 109..=124 | 126..=152 | 154..=191 | 194..=205)
}

/// A block on its way to an order in which steps follow each other.
struct Order<'o, 'l> {
    lowering: &'o mut Lowering<'l>,
    negated: &'o HashMap<Word, Word>,
    uses: &'o HashMap<Word, usize>,
    /// Those between the ones that begin the block and those that end it.
    middle: Vec<Option<Instruction>>,
    end: Vec<Instruction>,
    /// Where in `middle` a result is made.
    makers: HashMap<Word, usize>,
    blocks: Vec<Block>,
}

impl<'o, 'l> Order<'o, 'l> {
    fn new(
        lowering: &'o mut Lowering<'l>,
        block: Block,
        negated: &'o HashMap<Word, Word>,
        uses: &'o HashMap<Word, usize>,
    ) -> Order<'o, 'l> {
        let all = block.instructions;
        let begins = |inst: &&Instruction| matches!(inst.class.opcode, Op::Phi | Op::Variable);
        let first = all.iter().take_while(begins).count();
        let merges = |inst: &Instruction| inst.class.opcode == Op::SelectionMerge;
        let last = all.iter().position(merges).unwrap_or(all.len().saturating_sub(1)).max(first);
        let middle: Vec<Option<Instruction>> = all[first..last].iter().cloned().map(Some).collect();
        let made = |(at, inst): (usize, &Option<Instruction>)| Some((inst.as_ref()?.result_id?, at));
        let makers = middle.iter().enumerate().filter_map(made).collect();
        let begun = Block { label: block.label, instructions: all[..first].to_vec() };
        Order { lowering, negated, uses, middle, end: all[last..].to_vec(), makers, blocks: vec![begun] }
    }

    fn run(&mut self, shared: &mut Shared) -> Result<()> {
        loop {
            self.emit_ready();
            let steps = self.ready_steps(shared);
            if steps.is_empty() {
                break;
            }
            self.emit_steps(&steps, shared)?;
        }
        // What is left waits for itself in no valid module.
        for at in 0..self.middle.len() {
            self.emit(at);
        }
        let end = std::mem::take(&mut self.end);
        self.current().extend(end);
        Ok(())
    }

    fn current(&mut self) -> &mut Vec<Instruction> {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last].instructions
    }

    fn is_step(&self, inst: &Instruction) -> bool {
        self.lowering.soft_of(inst).is_some_and(Soft::is_step)
    }

    /// Whether so much of the block is written that a value is there.
    fn is_there(&self, id: Word) -> bool {
        self.makers.get(&id).is_none_or(|&at| self.middle[at].is_none())
    }

    /// Writes all that waits for no step, in the old order; what memory or other invocations see keeps its order.
    fn emit_ready(&mut self) {
        let mut waits = false;
        for at in 0..self.middle.len() {
            let Some(inst) = &self.middle[at] else { continue };
            if self.is_step(inst) {
                continue;
            }
            let is_pure = is_pure(inst.class.opcode) || self.lowering.soft_of(inst).is_some();
            let ready = inst.operands.iter().filter_map(Operand::id_ref_any).all(|id| self.is_there(id));
            if ready && (is_pure || !waits) {
                let inst = self.middle[at].take();
                self.current().extend(inst);
            } else {
                waits |= !is_pure;
            }
        }
    }

    /// Writes an instruction behind those that it needs.
    fn emit(&mut self, at: usize) {
        let Some(inst) = self.middle[at].take() else { return };
        for id in inst.operands.iter().filter_map(Operand::id_ref_any) {
            if let Some(&maker) = self.makers.get(&id) {
                self.emit(maker);
            }
        }
        self.current().push(inst);
    }

    /// Steps that wait for nothing but each other, in an order in which they can run, with their places.
    fn ready_steps(&self, shared: &Shared) -> Vec<(usize, Step)> {
        let mut steps: Vec<(usize, Step)> = Vec::new();
        let mut made: HashSet<Word> = HashSet::new();
        for (at, inst) in self.middle.iter().enumerate() {
            let Some(inst) = inst.as_ref().filter(|inst| self.is_step(inst)) else { continue };
            let Some(step) = self.step(inst, shared) else { continue };
            if step.operands.iter().all(|&id| made.contains(&id) || self.is_there(id)) {
                made.insert(step.result);
                steps.push((at, step));
            }
        }
        steps
    }

    fn step(&self, inst: &Instruction, shared: &Shared) -> Option<Step> {
        let operands: Vec<Word> = inst.operands.iter().skip(1).filter_map(Operand::id_ref_any).collect();
        let (operands, subtract) = match (self.lowering.soft_of(inst)?, operands.as_slice()) {
            (Soft::Add, &[a, c]) => ([a, shared.one, c], 0),
            (Soft::Subtract, &[a, c]) => ([a, shared.one, c], SUBTRACT),
            (Soft::Multiply, &[a, b]) => ([a, b, shared.minus_zero], 0),
            (Soft::Fma, &[a, b, c]) => ([a, b, c], 0),
            _ => return None,
        };
        let mut step = Step { result: inst.result_id?, operands, signs: subtract };
        for (k, sign) in [NEGATE_A, NEGATE_B, NEGATE_C].into_iter().enumerate() {
            // What is subtracted has no sign of its own to turn.
            while (k < 2 || subtract == 0)
                && let Some(&of) = self.negated.get(&step.operands[k])
            {
                step.operands[k] = of;
                step.signs ^= sign;
            }
        }
        Some(step)
    }

    /// Writes steps as calls or as a loop; those for which registers are missing wait.
    fn emit_steps(&mut self, steps: &[(usize, Step)], shared: &mut Shared) -> Result<()> {
        if steps.len() < LEAST {
            steps.iter().for_each(|&(at, _)| self.emit(at));
            return Ok(());
        }
        let mut count = steps.len();
        let assigned = loop {
            match self.assign(&steps[..count], shared) {
                Some(assigned) => break assigned,
                None => count = (count / 2).max(1),
            }
        };
        self.emit_loop(assigned, shared)?;
        for (at, _) in &steps[..count] {
            self.middle[*at] = None;
        }
        Ok(())
    }

    /// Registers for steps, if there are enough.
    fn assign(&self, steps: &[(usize, Step)], shared: &Shared) -> Option<Assigned> {
        let sums = steps.iter().all(|(_, step)| step.operands[1] == shared.one && step.signs & NEGATE_B == 0);
        let operands = |step: &Step| {
            let [a, b, c] = step.operands;
            // A sum has no factor.
            [Some(a), Some(b).filter(|_| !sums), Some(c)].into_iter().flatten()
        };
        let mut last: HashMap<Word, usize> = HashMap::new();
        for (k, (_, step)) in steps.iter().enumerate() {
            for id in operands(step) {
                last.insert(id, k);
            }
        }
        // Uses by these steps themselves.
        let raw: HashMap<Word, usize> = steps.iter().fold(HashMap::new(), |mut raw, (at, _)| {
            let inst = self.middle[*at].as_ref();
            let ids = inst.into_iter().flat_map(|inst| inst.operands.iter().skip(1)).filter_map(Operand::id_ref_any);
            ids.for_each(|id| *raw.entry(id).or_default() += 1);
            raw
        });
        let is_kept = |id: Word| self.uses.get(&id).copied().unwrap_or(0) > raw.get(&id).copied().unwrap_or(0);
        let mut free: Vec<usize> = (0..REGISTERS).rev().collect();
        let mut most = 0;
        let mut at: HashMap<Word, usize> = HashMap::new();
        let mut assigned = Assigned { sums, loads: vec![], words: vec![], results: vec![], most: 0 };
        let results: HashSet<Word> = steps.iter().map(|(_, step)| step.result).collect();
        for id in steps.iter().flat_map(|(_, step)| operands(step)) {
            if !results.contains(&id) && !at.contains_key(&id) {
                let register = free.pop()?;
                most = most.max(register + 1);
                at.insert(id, register);
                assigned.loads.push((register, id));
            }
        }
        for (k, (_, step)) in steps.iter().enumerate() {
            let registers = step.operands.map(|id| at.get(&id).copied().unwrap_or(0));
            let mut dead: Vec<Word> = operands(step).filter(|id| last.get(id) == Some(&k)).collect();
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
    fn register(&mut self, shared: &Shared, register: usize) -> Word {
        let index = self.linker.const_u32(register as u32);
        self.of_ids(Op::InBoundsAccessChain, shared.pair_pointer, &[shared.registers, index])
    }

    /// Writes an instruction without a result.
    fn effect(&mut self, opcode: Op, operands: &[Word]) {
        let operands = operands.iter().map(|&id| Operand::IdRef(id)).collect();
        self.out.push(Instruction::new(opcode, None, None, operands));
    }
}
