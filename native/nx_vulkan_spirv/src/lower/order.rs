//! Steps, which are the operations of f64 that a loop over a table can do, and an order of straight code in which many
//! of them follow each other.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, Word};

use super::Lowering;
use super::flow::Unit;

/// Bits of a step's word beside its registers: which operands are negated, and that the last is subtracted.
pub(super) const NEGATE_A: u32 = 1 << 31;
pub(super) const NEGATE_B: u32 = 1 << 30;
pub(super) const NEGATE_C: u32 = 1 << 29;
pub(super) const SUBTRACT: u32 = 1 << 28;

/// Functions of the soft library that steps stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Soft {
    Add,
    Subtract,
    Multiply,
    Fma,
    Divide,
    Sqrt,
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
            "nx_soft_divide_f64" => Soft::Divide,
            "nx_soft_sqrt_f64" => Soft::Sqrt,
            "nx_soft_negate_f64" => Soft::Negate,
            _ => Soft::Other,
        }
    }

    /// Whether a step of sequences stands for it.
    pub fn is_step(self) -> bool {
        matches!(self, Soft::Add | Soft::Subtract | Soft::Multiply | Soft::Fma)
    }
}

/// What a step does with its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// `a * b + c`
    Sum,
    /// `a / b`
    Quotient,
    /// The square root of `a`.
    Root,
}

/// One step: result, operands, and the signs of its word.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineStep {
    pub kind: Kind,
    pub result: Word,
    pub operands: [Word; 3],
    pub signs: u32,
}

impl MachineStep {
    /// Operands that it reads; a sum alone has no factor.
    pub fn reads(&self, sums: bool) -> impl Iterator<Item = Word> {
        let [a, b, c] = self.operands;
        let b = Some(b).filter(|_| !sums && self.kind != Kind::Root);
        [Some(a), b, Some(c).filter(|_| self.kind == Kind::Sum)].into_iter().flatten()
    }

    /// Whether it is a sum of two numbers.
    pub fn is_sum(&self, constants: Constants) -> bool {
        self.kind == Kind::Sum && self.operands[1] == constants.one && self.signs & NEGATE_B == 0
    }
}

/// Numbers that stand for the operands that a step has not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants {
    pub one: Word,
    pub minus_zero: Word,
}

/// Straight code, and the steps that run behind it.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub code: Vec<Unit>,
    pub steps: Vec<Unit>,
}

/// What a call calls.
pub(super) fn callee(inst: &Instruction) -> Option<Word> {
    let operand = inst.operands.first().filter(|_| inst.class.opcode == Op::FunctionCall);
    operand.and_then(Operand::id_ref_any)
}

pub(super) fn with_ids(inst: &Instruction, ids: &HashMap<Word, Word>) -> Instruction {
    let mut inst = inst.clone();
    for operand in &mut inst.operands {
        if let Some(id) = operand.id_ref_any_mut() {
            *id = ids.get(id).copied().unwrap_or(*id);
        }
    }
    inst
}

/// Whether an instruction is arithmetic that may be moved: composites, conversions, arithmetic, comparisons and bits,
/// by SPIR-V's numbers, and GLSL's functions but those that store.
pub(super) fn is_pure(inst: &Instruction) -> bool {
    match (inst.class.opcode as u32, inst.operands.get(1)) {
        (12, Some(Operand::LiteralExtInstInteger(number))) => !matches!(number, 35 | 51 | 76..=78),
        (opcode, _) => matches!(opcode, 65..=66 | 77..=84 | 109..=124 | 126..=152 | 154..=191 | 194..=205),
    }
}

impl Lowering<'_> {
    pub(super) fn constants(&mut self) -> Constants {
        Constants { one: self.pair_constant(1f64.to_bits()), minus_zero: self.pair_constant((-0f64).to_bits()) }
    }

    pub(super) fn soft_of(&self, inst: &Instruction) -> Option<Soft> {
        callee(inst).and_then(|callee| self.soft.get(&callee).copied())
    }

    /// Whether it calls a function of the soft library that has no other effect than its result.
    pub(super) fn is_pure_call(&self, inst: &Instruction) -> bool {
        let Some(callee) = callee(inst) else { return false };
        let module = &self.linker.module;
        let pointers = || module.types_global_values.iter().filter(|inst| inst.class.opcode == Op::TypePointer);
        self.soft.contains_key(&callee)
            || module.functions.iter().filter(|function| function.def_id() == Some(callee)).any(|function| {
                let types = function.parameters.iter().filter_map(|parameter| parameter.result_type);
                types.into_iter().all(|ty| pointers().all(|pointer| pointer.result_id != Some(ty)))
            })
    }

    pub(super) fn is_step(&self, inst: &Instruction) -> bool {
        self.soft_of(inst).is_some_and(Soft::is_step)
    }

    /// What the negations among instructions negate.
    pub(super) fn negations<'i>(&self, code: impl Iterator<Item = &'i Instruction>) -> HashMap<Word, Word> {
        code.filter(|inst| self.soft_of(inst) == Some(Soft::Negate))
            .filter_map(|inst| Some((inst.result_id?, inst.operands.get(1)?.id_ref_any()?)))
            .collect()
    }

    /// The step that an instruction is, with the operands of negations and their signs in place of those.
    pub(super) fn step(
        &self,
        inst: &Instruction,
        negated: &HashMap<Word, Word>,
        constants: Constants,
    ) -> Option<MachineStep> {
        let Constants { one, minus_zero } = constants;
        let operands: Vec<Word> = inst.operands.iter().skip(1).filter_map(Operand::id_ref_any).collect();
        let (kind, operands, subtract) = match (self.soft_of(inst)?, operands.as_slice()) {
            (Soft::Add, &[a, c]) => (Kind::Sum, [a, one, c], 0),
            (Soft::Subtract, &[a, c]) => (Kind::Sum, [a, one, c], SUBTRACT),
            (Soft::Multiply, &[a, b]) => (Kind::Sum, [a, b, minus_zero], 0),
            (Soft::Fma, &[a, b, c]) => (Kind::Sum, [a, b, c], 0),
            (Soft::Divide, &[a, b]) => (Kind::Quotient, [a, b, one], 0),
            (Soft::Sqrt, &[a]) => (Kind::Root, [a, one, one], 0),
            _ => return None,
        };
        let mut step = MachineStep { kind, result: inst.result_id?, operands, signs: subtract };
        if kind != Kind::Sum {
            return Some(step);
        }
        for (k, sign) in [NEGATE_A, NEGATE_B, NEGATE_C].into_iter().enumerate() {
            // What is subtracted has no sign of its own to turn.
            while (k < 2 || subtract == 0)
                && let Some(&of) = negated.get(&step.operands[k])
            {
                step.operands[k] = of;
                step.signs ^= sign;
            }
        }
        Some(step)
    }
}

/// Straight code on its way to an order in which steps follow each other.
struct Order {
    left: Vec<Option<Unit>>,
    /// Where in `left` a result is made.
    makers: HashMap<Word, usize>,
    pieces: Vec<Piece>,
}

/// Puts units in such an order. Fewer than `least` steps in a row are code like the rest.
pub(super) fn pieces(units: Vec<Unit>, least: usize) -> Vec<Piece> {
    let makers = units.iter().enumerate().flat_map(|(at, unit)| unit.results.iter().map(move |&id| (id, at))).collect();
    let mut order = Order { left: units.into_iter().map(Some).collect(), makers, pieces: vec![Piece::default()] };
    loop {
        order.emit_ready();
        let steps = order.ready_steps();
        if steps.is_empty() {
            break;
        }
        if steps.len() < least {
            steps.into_iter().for_each(|at| order.emit(at));
            continue;
        }
        let steps = steps.into_iter().filter_map(|at| order.left[at].take()).collect();
        order.piece().steps = steps;
        order.pieces.push(Piece::default());
    }
    // What is left waits for itself in no valid module.
    for at in 0..order.left.len() {
        order.emit(at);
    }
    order.pieces
}

impl Order {
    fn piece(&mut self) -> &mut Piece {
        if self.pieces.is_empty() {
            self.pieces.push(Piece::default());
        }
        let last = self.pieces.len() - 1;
        &mut self.pieces[last]
    }

    /// Whether so much is written that a value is there.
    fn is_there(&self, id: Word) -> bool {
        self.makers.get(&id).is_none_or(|&at| self.left[at].is_none())
    }

    /// Writes all that waits for no step, in the old order; what memory or other invocations see keeps its order.
    fn emit_ready(&mut self) {
        let mut waits = false;
        for at in 0..self.left.len() {
            let Some(unit) = self.left[at].as_ref().filter(|unit| unit.step.is_none()) else { continue };
            let ready = unit.uses.iter().all(|&id| self.is_there(id));
            if ready && (unit.is_pure || !waits) {
                let unit = self.left[at].take();
                self.piece().code.extend(unit);
            } else {
                waits |= !unit.is_pure;
            }
        }
    }

    /// Writes a unit behind those that it needs.
    fn emit(&mut self, at: usize) {
        let Some(unit) = self.left[at].take() else { return };
        for id in &unit.uses {
            if let Some(&maker) = self.makers.get(id) {
                self.emit(maker);
            }
        }
        self.piece().code.push(unit);
    }

    /// Steps that wait for nothing but each other, in an order in which they can run: sums before quotients, and roots
    /// last.
    fn ready_steps(&self) -> Vec<usize> {
        let mut made: HashSet<Word> = HashSet::new();
        let mut ready: Vec<usize> = vec![];
        for kind in [Kind::Sum, Kind::Quotient, Kind::Root] {
            for (at, unit) in self.left.iter().enumerate() {
                let Some(step) = unit.as_ref().and_then(|unit| unit.step).filter(|step| step.kind == kind) else {
                    continue;
                };
                if step.operands.iter().all(|&id| made.contains(&id) || self.is_there(id)) {
                    made.insert(step.result);
                    ready.push(at);
                }
            }
        }
        ready
    }
}
