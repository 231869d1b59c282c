//! The parts of a module that all checks speak of: where ids are defined, functions and their blocks, and what kind of
//! instruction stands where.

use std::collections::HashMap;

use rspirv::spirv::Op;

use super::parse::{Instruction, Module};

pub type Checked<T = ()> = Result<T, String>;

pub fn located(instruction: &Instruction, reason: &str) -> String {
    format!("word {}: Op{}: {reason}", instruction.at_word, instruction.name)
}

/// Where an id is defined.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Index into `Module::instructions`.
    pub at: usize,
    /// The function it belongs to, or none for global ids and functions themselves.
    pub function: Option<usize>,
}

/// The definitions of all ids.
#[derive(Debug)]
pub struct Ids(HashMap<u32, Definition>);

impl Ids {
    pub fn definition(&self, id: u32) -> Option<Definition> {
        self.0.get(&id).copied()
    }

    pub fn instruction<'m>(&self, module: &'m Module, id: u32) -> Option<&'m Instruction> {
        module.instructions.get(self.0.get(&id)?.at)
    }
}

/// Collects the definitions; each id once.
pub fn ids(module: &Module) -> Checked<Ids> {
    let mut ids = HashMap::new();
    let mut function = None;
    for (at, instruction) in module.instructions.iter().enumerate() {
        if instruction.op == Op::FunctionEnd {
            function = None;
        }
        if let Some(id) = instruction.result
            && ids.insert(id, Definition { at, function }).is_some()
        {
            return Err(located(instruction, &format!("id {id} is defined twice")));
        }
        if instruction.op == Op::Function {
            function = Some(at);
        }
    }
    Ok(Ids(ids))
}

/// Instructions `first..=last` of one function, with its blocks.
#[derive(Debug)]
pub struct Function {
    pub first: usize,
    pub parameters: Vec<usize>,
    pub blocks: Vec<Block>,
}

/// Instruction indices of a block: its label, and its terminator.
#[derive(Debug)]
pub struct Block {
    pub label: usize,
    pub end: usize,
}

/// The sections of a module (SPIR-V section 2.4); lines and debug information may stand anywhere after the names.
pub fn section(op: Op) -> Option<u8> {
    Some(match op {
        Op::Nop | Op::Line | Op::NoLine | Op::ModuleProcessed => return None,
        Op::Capability => 0,
        Op::Extension => 1,
        Op::ExtInstImport => 2,
        Op::MemoryModel => 3,
        Op::EntryPoint => 4,
        Op::ExecutionMode | Op::ExecutionModeId => 5,
        Op::String | Op::SourceExtension | Op::Source | Op::SourceContinued => 6,
        Op::Name | Op::MemberName => 7,
        Op::Decorate
        | Op::MemberDecorate
        | Op::DecorationGroup
        | Op::GroupDecorate
        | Op::GroupMemberDecorate
        | Op::DecorateId
        | Op::DecorateString
        | Op::MemberDecorateString => 8,
        _ => 9,
    })
}

pub fn is_global(instruction: &Instruction) -> bool {
    let families = ["Type", "Constant", "SpecConstant"];
    families.iter().any(|family| instruction.name.starts_with(family))
        || matches!(instruction.op, Op::Variable | Op::Undef)
}

pub fn is_terminator(op: Op) -> bool {
    matches!(op, Op::Branch | Op::BranchConditional | Op::Switch | Op::Return | Op::ReturnValue | Op::Unreachable)
}

pub fn is_merge(op: Op) -> bool {
    matches!(op, Op::SelectionMerge | Op::LoopMerge)
}

/// Instructions of such a set mean nothing to execution and may stand anywhere after the names.
pub fn is_non_semantic(module: &Module, import: &Instruction) -> bool {
    literal_string(module.operands(import)).starts_with("NonSemantic.")
}

/// The text at the start of operand words.
pub fn literal_string(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
