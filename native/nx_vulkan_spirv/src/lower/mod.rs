//! Rewrites a module for a device that lacks some of its types: numbers of 64 bits become pairs of words, integers of 8
//! and 16 bits become words, and lie as parts of words in memory. What the device has stays as it is. The bits that the
//! module computes stay the same, so neither kernels nor ops ask for what a device lacks.
//!
//! Operations of pairs are calls of the soft library (`nx_soft_f64.glsl`). Parts of a word that several invocations may
//! store at once are stored by atomic operations, neighbours of one invocation as whole words.

mod arithmetic;
mod choices;
mod convert;
mod flow;
mod inline;
mod machine;
mod memory;
mod narrow;
mod order;
mod promote;
mod sequences;
mod slots;
#[cfg(test)]
mod tests;
mod types;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use nx_vulkan_ir::{DType, Error, Result};
use rspirv::binary::Assemble;
use rspirv::dr::{Block, Function, Instruction, Module, Operand};
use rspirv::spirv::{Capability, ExecutionMode, Op, Word};

use super::library::Library;
use super::link::Linker;
use super::modes::FloatModes;
use memory::WordPointer;
use order::Soft;
use types::{Scalar, Type};

/// Types that a device lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lacks {
    /// Floats of 64 bits.
    pub float64: bool,
    /// Integers of 64 bits.
    pub int64: bool,
    /// Integers of 8 bits, in arithmetic or in memory.
    pub int8: bool,
    /// Integers of 16 bits, in arithmetic or in memory.
    pub int16: bool,
}

impl Lacks {
    /// All types that can be lowered.
    pub const ALL: Lacks = Lacks { float64: true, int64: true, int8: true, int16: true };

    /// What either lacks.
    pub fn or(self, other: Lacks) -> Lacks {
        Lacks {
            float64: self.float64 || other.float64,
            int64: self.int64 || other.int64,
            int8: self.int8 || other.int8,
            int16: self.int16 || other.int16,
        }
    }

    /// Without a type, and those that need the same of a device. `None` for a type that every device has.
    pub fn without(self, dtype: DType) -> Option<Lacks> {
        let also = match dtype {
            DType::F64 | DType::C128 => Lacks { float64: true, ..self },
            DType::S64 | DType::U64 => Lacks { int64: true, ..self },
            _ => match dtype.size_bytes() {
                1 => Lacks { int8: true, ..self },
                2 => Lacks { int16: true, ..self },
                _ => return None,
            },
        };
        Some(also)
    }

    /// Whether a type is lowered.
    pub fn lowers_type(self, dtype: DType) -> bool {
        Lacks::default().without(dtype).is_some_and(|lacks| lacks.or(self) == self)
    }

    /// Whether the rewriting does without a capability.
    pub fn lowers(self, capability: Capability) -> bool {
        match capability {
            Capability::Float64 => self.float64,
            Capability::Int64 => self.int64,
            Capability::Int8
            | Capability::StorageBuffer8BitAccess
            | Capability::UniformAndStorageBuffer8BitAccess
            | Capability::StoragePushConstant8 => self.int8,
            Capability::Int16
            | Capability::StorageBuffer16BitAccess
            | Capability::UniformAndStorageBuffer16BitAccess
            | Capability::StoragePushConstant16 => self.int16,
            _ => false,
        }
    }

    fn has(self, scalar: Scalar) -> bool {
        match scalar {
            Scalar::Float(64) => self.float64,
            Scalar::Int { bits: 64, .. } => self.int64,
            Scalar::Int { bits: 8, .. } => self.int8,
            Scalar::Int { bits: 16, .. } => self.int16,
            _ => false,
        }
    }
}

/// The module for a device that lacks some types; `words` themselves if it uses none of them.
///
/// # Errors
/// `Unsupported` for operations that are not lowered, `BadShader` for words that are no module.
pub fn lower(words: &[u32], lacks: Lacks) -> Result<Cow<'_, [u32]>> {
    let declared = words.get(5..).unwrap_or_default().chunks_exact(2);
    let mut declared = declared
        .take_while(|inst| inst[0] == 2 << 16 | Op::Capability as u32)
        .filter_map(|inst| Capability::from_u32(inst[1]));
    if !declared.any(|capability| lacks.lowers(capability)) {
        return Ok(Cow::Borrowed(words));
    }
    let module = rspirv::dr::load_words(words).map_err(|e| bad(e.to_string()))?;
    Lowering::new(module, lacks)?.run().map(Cow::Owned)
}

fn bad(reason: impl Into<String>) -> Error {
    Error::BadShader { path: "<memory>".to_string(), reason: reason.into() }
}

/// A module on its way. Ids of instructions that stay are kept; those of types, constants and replaced values change.
struct Lowering<'l> {
    lacks: Lacks,
    /// The new module.
    linker: Linker<'l>,
    old: Module,
    /// By their ids in the old module.
    types: HashMap<Word, Type>,
    /// The old type of each value.
    value_types: HashMap<Word, Word>,
    /// What old ids have become, where they changed.
    ids: HashMap<Word, Word>,
    strides: HashMap<Word, u32>,
    offsets: HashMap<(Word, u32), u32>,
    /// Constants of 32 bits.
    numbers: HashMap<Word, u32>,
    /// Vectors of pairs: by length, and whether they have a layout.
    arrays: HashMap<(u32, bool), Word>,
    /// Pointers to what lies as parts of words.
    places: HashMap<Word, WordPointer>,
    /// Results that are no arithmetic any more, so that they have no decorations of such.
    replaced: HashSet<Word>,
    /// Functions of the soft library, by their ids.
    soft: HashMap<Word, Soft>,
    /// Values that were inlined, and the ids of the copies.
    copied: Vec<(Word, Word)>,
    /// Counters of loops that sequences became.
    counters: HashSet<Word>,
    /// The block that is being written.
    out: Vec<Instruction>,
    /// Where in it begins what the instruction at hand became.
    begun: usize,
}

impl<'l> Lowering<'l> {
    fn new(mut old: Module, lacks: Lacks) -> Result<Lowering<'l>> {
        let next_id = old.header.as_ref().map_or(0, |header| header.bound);
        let mut new = Module { header: old.header.take(), ..Module::default() };
        new.ext_inst_imports = std::mem::take(&mut old.ext_inst_imports);
        let mut linker = Linker::around(Library::soft()?, "soft", new, false, FloatModes::NONE);
        linker.next_id = next_id;
        let mut lowering = Lowering {
            lacks,
            linker,
            old,
            types: HashMap::new(),
            value_types: HashMap::new(),
            ids: HashMap::new(),
            strides: HashMap::new(),
            offsets: HashMap::new(),
            numbers: HashMap::new(),
            arrays: HashMap::new(),
            places: HashMap::new(),
            replaced: HashSet::new(),
            soft: HashMap::new(),
            copied: vec![],
            counters: HashSet::new(),
            out: vec![],
            begun: 0,
        };
        lowering.read_old();
        Ok(lowering)
    }

    fn run(mut self) -> Result<Vec<u32>> {
        let globals = std::mem::take(&mut self.old.types_global_values);
        for inst in &globals {
            self.global(inst)?;
        }
        let mut functions = Vec::new();
        for function in std::mem::take(&mut self.old.functions) {
            functions.push(self.function(&function)?);
        }
        let functions = self.sequences(functions)?;
        self.straighten();
        self.finish(functions)
    }

    fn function(&mut self, old: &Function) -> Result<Function> {
        let mut new = Function {
            def: old.def.as_ref().map(|def| self.renamed(def)),
            parameters: old.parameters.iter().map(|parameter| self.renamed(parameter)).collect(),
            end: old.end.clone(),
            blocks: vec![],
        };
        for block in &old.blocks {
            self.out = vec![];
            for inst in &block.instructions {
                self.instruction(inst)?;
            }
            new.blocks.push(Block { label: block.label.clone(), instructions: std::mem::take(&mut self.out) });
        }
        Ok(new)
    }

    fn finish(mut self, functions: Vec<Function>) -> Result<Vec<u32>> {
        let (lacks, old) = (self.lacks, std::mem::take(&mut self.old));
        let mut annotations: Vec<Instruction> =
            old.annotations.iter().filter_map(|annotation| self.annotation(annotation)).collect();
        self.annotate_copies(&mut annotations);
        // Functions that were inlined are gone, and so is what nothing used.
        let inside = functions.iter().flat_map(Function::all_inst_iter).filter_map(|inst| inst.result_id);
        let globals = self.linker.module.types_global_values.iter().filter_map(|inst| inst.result_id);
        let defined: HashSet<Word> = inside.chain(globals).collect();
        annotations.retain(|annotation| match annotation.operands.first() {
            Some(Operand::IdRef(target)) => defined.contains(target),
            _ => true,
        });
        let module = &mut self.linker.module;
        module.functions.extend(functions);
        module.annotations.extend(annotations);
        module.capabilities = old.capabilities;
        module.capabilities.retain(
            |inst| !matches!(inst.operands.first(), Some(Operand::Capability(capability)) if lacks.lowers(*capability)),
        );
        module.execution_modes = old.execution_modes;
        module.execution_modes.retain(|inst| !is_mode_of(inst, lacks));
        let unused: Vec<Capability> = FLOAT_MODES
            .into_iter()
            .filter(|(_, mode)| !module.execution_modes.iter().any(|inst| is_mode(inst, *mode)))
            .map(|(capability, _)| capability)
            .collect();
        module.capabilities.retain(
            |inst| !matches!(inst.operands.first(), Some(Operand::Capability(needed)) if unused.contains(needed)),
        );
        module.extensions = old.extensions;
        // Drivers that lack the type may not know its extension.
        for (is_lowered, extension) in [(lacks.int8, "SPV_KHR_8bit_storage"), (lacks.int16, "SPV_KHR_16bit_storage")] {
            let named = vec![Operand::LiteralString(extension.to_string())];
            module.extensions.retain(|inst| !(is_lowered && inst.operands == named));
        }
        module.memory_model = old.memory_model;
        module.entry_points = old.entry_points;
        if let Some(header) = &mut module.header {
            header.bound = self.linker.next_id;
        }
        Ok(self.linker.module.assemble())
    }

    /// A decoration of what is still there, under its new id.
    fn annotation(&self, old: &Instruction) -> Option<Instruction> {
        let Some(Operand::IdRef(target)) = old.operands.first() else { return Some(old.clone()) };
        let is_layout = matches!(self.types.get(target), Some(Type::Array(..) | Type::Struct(_)));
        if self.replaced.contains(target) || is_layout && self.has_narrow(*target) && self.is_laid_out(*target) {
            return None;
        }
        let mut new = old.clone();
        for operand in &mut new.operands {
            if let Operand::IdRef(id) = operand {
                *id = self.id(*id);
            }
        }
        Some(new)
    }

    /// Copies have the decorations of what they were copied from.
    fn annotate_copies(&self, annotations: &mut Vec<Instruction>) {
        let mut of: HashMap<Word, Vec<usize>> = HashMap::new();
        if !self.copied.is_empty() {
            for (at, annotation) in annotations.iter().enumerate() {
                if let Some(&Operand::IdRef(target)) = annotation.operands.first() {
                    of.entry(target).or_default().push(at);
                }
            }
        }
        for &(from, to) in &self.copied {
            for at in of.get(&from).cloned().unwrap_or_default() {
                let mut annotation = annotations[at].clone();
                annotation.operands[0] = Operand::IdRef(to);
                of.entry(to).or_default().push(annotations.len());
                annotations.push(annotation);
            }
        }
    }

    /// The new id of an old one.
    fn id(&self, old: Word) -> Word {
        self.ids.get(&old).copied().unwrap_or(old)
    }

    /// The instruction with new ids.
    fn renamed(&self, old: &Instruction) -> Instruction {
        let mut new = old.clone();
        new.result_type = old.result_type.map(|ty| self.id(ty));
        for operand in &mut new.operands {
            if let Some(id) = operand.id_ref_any_mut() {
                *id = self.id(*id);
            }
        }
        new
    }

    fn keep(&mut self, old: &Instruction) {
        let new = self.renamed(old);
        self.out.push(new);
    }

    /// Emits an instruction with a result.
    fn op(&mut self, opcode: Op, ty: Word, operands: Vec<Operand>) -> Word {
        let id = self.linker.fresh();
        self.out.push(Instruction::new(opcode, Some(ty), Some(id), operands));
        id
    }

    /// Emits an instruction with a result, of ids.
    fn of_ids(&mut self, opcode: Op, ty: Word, operands: &[Word]) -> Word {
        self.op(opcode, ty, operands.iter().map(|&id| Operand::IdRef(id)).collect())
    }

    fn extract(&mut self, ty: Word, composite: Word, index: u32) -> Word {
        self.op(Op::CompositeExtract, ty, vec![Operand::IdRef(composite), Operand::LiteralBit32(index)])
    }

    /// Calls a function of the soft library.
    fn call(&mut self, name: &str, arguments: &[Word]) -> Result<Word> {
        let (function, signature) = self.linker.import(name)?;
        self.soft.insert(function, Soft::of(name));
        let operands = std::iter::once(function).chain(arguments.iter().copied()).map(Operand::IdRef).collect();
        Ok(self.op(Op::FunctionCall, signature.result, operands))
    }

    /// Lets the old id stand for a value: as the result of the instruction that made it, if that was the last and
    /// belongs to the old instruction at hand. What an earlier one made keeps its id, which others name.
    fn define(&mut self, old: &Instruction, value: Word) {
        let Some(result) = old.result_id else { return };
        self.replaced.insert(result);
        let result_type = old.result_type.map(|ty| self.id(ty));
        match self.out.get_mut(self.begun..).and_then(<[Instruction]>::last_mut) {
            Some(last) if last.result_id == Some(value) && last.result_type == result_type => {
                last.result_id = Some(result);
            }
            _ => {
                self.out.push(Instruction::new(Op::CopyObject, result_type, Some(result), vec![Operand::IdRef(value)]))
            }
        }
    }

    /// That an operation has no lowered form.
    fn unsupported(&self, opcode: Op) -> Error {
        let lacks = self.lacks;
        let missing = [
            (lacks.float64, "shaderFloat64"),
            (lacks.int64, "shaderInt64"),
            (lacks.int8, "shaderInt8 and storageBuffer8BitAccess"),
            (lacks.int16, "shaderInt16 and storageBuffer16BitAccess"),
        ];
        let missing: Vec<&str> = missing.into_iter().filter(|(lacks, _)| *lacks).map(|(_, name)| name).collect();
        Error::Unsupported {
            op: format!("Op{opcode:?}"),
            dtype: None,
            needs: format!("the feature {}: it has no lowered form", missing.join(" or ")),
        }
    }

    fn instruction(&mut self, inst: &Instruction) -> Result<()> {
        self.begun = self.out.len();
        match inst.class.opcode {
            Op::AccessChain | Op::InBoundsAccessChain => self.access_chain(inst),
            Op::Load => self.load(inst),
            Op::Store => self.store(inst),
            // Values that are only moved.
            Op::Phi
            | Op::FunctionCall
            | Op::Return
            | Op::ReturnValue
            | Op::CompositeExtract
            | Op::CompositeInsert
            | Op::CopyObject
            | Op::Undef
            | Op::Variable
            | Op::GroupNonUniformAllEqual => {
                self.keep(inst);
                Ok(())
            }
            Op::Line | Op::NoLine => Ok(()),
            _ if !self.touches(inst) => {
                self.keep(inst);
                Ok(())
            }
            Op::CompositeConstruct => self.construct(inst),
            Op::VectorShuffle => self.shuffle(inst),
            Op::VectorExtractDynamic => self.extract_dynamic(inst),
            Op::Bitcast | Op::ConvertUToPtr | Op::ConvertPtrToU => self.bitcast(inst),
            Op::GroupNonUniformBroadcast
            | Op::GroupNonUniformBroadcastFirst
            | Op::GroupNonUniformShuffle
            | Op::GroupNonUniformShuffleXor
            | Op::GroupNonUniformShuffleUp
            | Op::GroupNonUniformShuffleDown
                if inst.result_type.is_some_and(|ty| matches!(self.types.get(&ty), Some(Type::Scalar(_)))) =>
            {
                self.keep(inst);
                Ok(())
            }
            _ => self.arithmetic(inst),
        }
    }

    /// Whether the result or an operand is of a type that is lowered.
    fn touches(&self, inst: &Instruction) -> bool {
        let lowered = |ty: &Word| match self.types.get(ty) {
            Some(&Type::Scalar(scalar) | &Type::Vector(scalar, _)) => self.lacks.has(scalar),
            _ => false,
        };
        let operands = inst.operands.iter().filter_map(Operand::id_ref_any);
        inst.result_type.iter().any(lowered) || operands.filter_map(|id| self.value_types.get(&id)).any(lowered)
    }
}

/// Capabilities of float controls, each with its execution mode.
const FLOAT_MODES: [(Capability, ExecutionMode); 5] = [
    (Capability::SignedZeroInfNanPreserve, ExecutionMode::SignedZeroInfNanPreserve),
    (Capability::DenormPreserve, ExecutionMode::DenormPreserve),
    (Capability::DenormFlushToZero, ExecutionMode::DenormFlushToZero),
    (Capability::RoundingModeRTE, ExecutionMode::RoundingModeRTE),
    (Capability::RoundingModeRTZ, ExecutionMode::RoundingModeRTZ),
];

fn is_mode(inst: &Instruction, mode: ExecutionMode) -> bool {
    inst.operands.get(1) == Some(&Operand::ExecutionMode(mode))
}

/// Whether an execution mode is of floats that are lowered.
fn is_mode_of(inst: &Instruction, lacks: Lacks) -> bool {
    let of_doubles = lacks.float64 && inst.operands.get(2) == Some(&Operand::LiteralBit32(64));
    of_doubles && FLOAT_MODES.iter().any(|(_, mode)| is_mode(inst, *mode))
}
