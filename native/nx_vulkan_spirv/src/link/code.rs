//! Straight-line code of one slot, as it is emitted.

use std::collections::{HashMap, HashSet};

use nx_vulkan_ir::{DType, Result};
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, SelectionControl, Word};

use super::{Linker, label_of};
use crate::magnitudes::Known;
use crate::modes::FloatModes;

/// Where hot twins do not hold.
#[derive(Debug, Default)]
pub struct Rare {
    words: Vec<Word>,
    /// Whether one of these holds: said at once for each, so that none is kept.
    any: Option<Word>,
}

impl Rare {
    /// How many bools there are.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// One of them.
    pub(crate) fn get(&self, k: usize) -> Option<Word> {
        self.words.get(k).copied()
    }
}

/// Code of one slot.
#[derive(Debug)]
pub struct Code<'a, 'l> {
    /// The module.
    pub linker: &'a mut Linker<'l>,
    /// The code of the function so far, after its variables.
    pub instructions: Vec<Instruction>,
    /// Variables of the function, declared where it begins.
    pub variables: Vec<Instruction>,
    /// Parameter words that were loaded, by number.
    pub params: HashMap<u32, Word>,
    /// Addresses that were made of parameters, by operand and type, and whether nobody writes there.
    pub bases: HashMap<(u32, Word, bool), Word>,
    /// The bits of narrow values that were rounded or wrapped to their types.
    pub narrowed: HashMap<(Word, DType), Word>,
    /// Whether quotients of a narrow type by a number, by its bits, are products with its reciprocal.
    pub reciprocals: HashMap<(u32, DType), bool>,
    /// Whether so much may be in doubt as `f_nearby` leaves: where others take a share in computing it.
    pub shares_doubts: bool,
    /// Whether the operand of the function is known to be a positive normal number, so that `f_nearby_normal` serves.
    pub is_of_normal: bool,
    /// How large values can be.
    pub(crate) known: HashMap<Word, Known>,
    /// Whether bf16 that are read are assumed to be so large and no larger, where hot twins are called.
    pub assumes: bool,
    /// Whether what is computed is no more than 1.
    pub is_at_most_one: bool,
    /// While hot twins are called: where each of them does not hold.
    pub(crate) rare: Option<Rare>,
    /// While functions may be computed nearly: where each of them is in doubt.
    pub(super) doubts: Option<Vec<Word>>,
    /// While functions are computed of what was in doubt: those that have an `f_near` without it.
    pub(super) settles: bool,
}

impl Code<'_, '_> {
    /// Emits an instruction with a result.
    pub fn op(&mut self, opcode: Op, result_type: Word, operands: Vec<Operand>) -> Word {
        let id = self.linker.fresh();
        self.instructions.push(Instruction::new(opcode, Some(result_type), Some(id), operands));
        id
    }

    /// Emits an instruction whose operands are all ids.
    pub fn ids(&mut self, opcode: Op, result_type: Word, operands: &[Word]) -> Word {
        self.op(opcode, result_type, operands.iter().map(|&id| Operand::IdRef(id)).collect())
    }

    /// Integer arithmetic on `uint`.
    pub fn u32_op(&mut self, opcode: Op, a: Word, b: Word) -> Word {
        let ty = self.linker.type_uint(32);
        self.ids(opcode, ty, &[a, b])
    }

    /// The same bits as another type.
    pub fn bitcast(&mut self, ty: Word, value: Word) -> Word {
        self.ids(Op::Bitcast, ty, &[value])
    }

    /// A part of a composite.
    pub fn extract(&mut self, ty: Word, composite: Word, index: u32) -> Word {
        self.op(Op::CompositeExtract, ty, vec![Operand::IdRef(composite), Operand::LiteralBit32(index)])
    }

    /// Emits code that calls the hot twin of every function that has one: `f_hot` gives what `f` gives unless `f_rare`
    /// of the same arguments is true. Returns what `emit` does, and a bool that is false where all of them hold, if
    /// there were any.
    pub fn hot<T>(&mut self, emit: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Option<Word>)> {
        self.begin_hot();
        let result = emit(self);
        let rare = self.end_hot();
        Ok((result?, rare))
    }

    /// Begins code that calls hot twins, as [`Code::hot`] does.
    pub fn begin_hot(&mut self) {
        self.rare = Some(Rare::default());
    }

    /// Ends code that calls hot twins, and gives what [`Code::hot`] does.
    pub fn end_hot(&mut self) -> Option<Word> {
        self.rare.take().and_then(|rare| rare.any)
    }

    /// Ends it for what has no bools to give, such as code of branches; [`Code::resume_hot`] goes on.
    pub fn pause_hot(&mut self) -> Option<Rare> {
        self.rare.take()
    }

    /// Notes that what is computed does not hold where a bool does.
    pub fn add_rare(&mut self, rare: Word) {
        let Some(known) = &mut self.rare else { return };
        if known.words.contains(&rare) {
            return;
        }
        known.words.push(rare);
        let any = match known.any {
            Some(any) => {
                let ty = self.linker.type_bool();
                self.ids(Op::LogicalOr, ty, &[any, rare])
            }
            None => rare,
        };
        self.rare.iter_mut().for_each(|known| known.any = Some(any));
    }

    /// Goes on with code that calls hot twins, if it did.
    pub fn resume_hot(&mut self, rare: Option<Rare>) {
        self.rare = rare;
    }

    /// What [`Code::hot`] gives, and of functions that have an `f_near` what that gives, or `f_nearby`, with fewer
    /// steps and more doubts, where these are shared out. The bool is false where none of these is in doubt, if there
    /// were any; where hot twins hold is left to [`Code::rare`].
    pub fn hot_in_doubt<T>(&mut self, emit: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Option<Word>)> {
        self.doubts = Some(vec![]);
        let result = self.hot(emit);
        let doubts = self.doubts.take().unwrap_or_default();
        let ty = self.linker.type_bool();
        let doubt = doubts.into_iter().reduce(|a, b| self.ids(Op::LogicalOr, ty, &[a, b]));
        Ok((result?.0, doubt))
    }

    /// Emits code for what is in doubt: functions are computed exactly at once that were by an `f_near` before.
    pub fn settled<T>(&mut self, emit: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.settles = true;
        let result = emit(self);
        self.settles = false;
        result
    }

    /// A bool that is false where hot twins of all functions that `emit` calls hold, if any has one: what `hot` gives,
    /// without the code that only what `emit` computes needs.
    pub fn rare<T>(&mut self, emit: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<Word>> {
        let first = self.instructions.len();
        let (_, rare) = self.hot(emit)?;
        let mut used: HashSet<Word> = self.params.values().chain(self.bases.values()).copied().chain(rare).collect();
        let (mut kept, mut gone) = (Vec::new(), HashSet::new());
        for instruction in self.instructions.drain(first..).rev() {
            let needed =
                instruction.result_id.is_none_or(|id| used.contains(&id)) || instruction.class.opcode == Op::Label;
            if needed {
                used.extend(instruction.operands.iter().filter_map(Operand::id_ref_any));
                kept.push(instruction);
            } else {
                gone.extend(instruction.result_id);
            }
        }
        self.instructions.extend(kept.into_iter().rev());
        self.known.retain(|_, known| !known.depends_on(&gone));
        Ok(rare)
    }

    /// Emits code that runs where `condition`, a bool, is false. Nothing that it defines is seen after it.
    pub fn unless(&mut self, condition: Word, emit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (body, merge) = (self.linker.fresh(), self.linker.fresh());
        let mut push = |opcode, operands| self.instructions.push(Instruction::new(opcode, None, None, operands));
        push(Op::SelectionMerge, vec![Operand::IdRef(merge), Operand::SelectionControl(SelectionControl::NONE)]);
        let targets = [condition, merge, body].map(Operand::IdRef);
        push(Op::BranchConditional, targets.to_vec());
        self.instructions.push(label_of(body));
        let (params, bases, known) = (self.params.clone(), self.bases.clone(), self.known.clone());
        emit(self)?;
        (self.params, self.bases, self.known) = (params, bases, known);
        self.instructions.push(Instruction::new(Op::Branch, None, None, vec![Operand::IdRef(merge)]));
        self.instructions.push(label_of(merge));
        Ok(())
    }

    /// Calls a library function by name.
    pub fn call(&mut self, name: &str, arguments: &[Word]) -> Result<Word> {
        let is_nearby =
            |code: &Self, form: &str| code.shares_doubts && code.linker.has(&format!("{name}{form}_nearby"));
        if self.settles
            && self.linker.modes.fused
            && !is_nearby(self, "_fused")
            && self.linker.has(&format!("{name}_fused_near"))
            && let Some(of) = name.strip_suffix("_f32")
        {
            return self.call_exactly(&format!("{of}_exactly_f32"), arguments);
        }
        if self.rare.is_some() {
            // A twin that needs no hot form is called as it is.
            let serves = |twin: &str| {
                let twin = format!("{name}{twin}");
                let has_part = |part| self.linker.has(&format!("{twin}_{part}"));
                self.linker.has(&twin) && !has_part("hot") && !has_part("near")
            };
            let forms = match self.linker.modes {
                FloatModes { rounded: true, .. } if serves("_rounded") => &[][..],
                FloatModes { fused: true, .. } if serves("_fused") => &[],
                FloatModes { fused: true, .. } => &["_fused", ""],
                _ => &[""],
            };
            for form in forms {
                let near = match is_nearby(self, form) {
                    true if self.is_of_normal && self.linker.has(&format!("{name}{form}_nearby_normal")) => {
                        "nearby_normal"
                    }
                    true => "nearby",
                    false => "near",
                };
                let [hot, near] = ["hot", near].map(|part| format!("{name}{form}_{part}"));
                if self.linker.has(&hot) {
                    let rare = self.call_exactly(&format!("{name}{form}_rare"), arguments)?;
                    self.add_rare(rare);
                    return self.call_exactly(&hot, arguments);
                }
                if self.doubts.is_some() && self.linker.has(&near) {
                    let near = [self.call_exactly(&near, arguments)?];
                    let doubt = self.call_exactly("nx_is_doubtful_f32", &near)?;
                    self.doubts.iter_mut().for_each(|list| list.push(doubt));
                    return self.call_exactly("nx_certain_f32", &near);
                }
            }
        }
        self.call_exactly(name, arguments)
    }

    fn call_exactly(&mut self, name: &str, arguments: &[Word]) -> Result<Word> {
        let (function, signature) = self.linker.import(name)?;
        if signature.parameters.len() != arguments.len() {
            return Err(self.linker.bad(format!(
                "{name} takes {} arguments, not {}",
                signature.parameters.len(),
                arguments.len()
            )));
        }
        let mut operands = vec![Operand::IdRef(function)];
        operands.extend(arguments.iter().map(|&id| Operand::IdRef(id)));
        Ok(self.op(Op::FunctionCall, signature.result, operands))
    }

    /// Calls a function of the template by name.
    pub fn call_own(&mut self, name: &str, arguments: &[Word]) -> Result<Word> {
        let (function, result) = self.linker.own(name)?;
        let operands = std::iter::once(function).chain(arguments.iter().copied()).map(Operand::IdRef).collect();
        Ok(self.op(Op::FunctionCall, result, operands))
    }
}
