//! Is a module put together as a driver expects: sections in order, ids defined once and before use, types that fit, functions whose
//! blocks end and branch within themselves, no recursion.
//!
//! All walks are loops over the instruction list or a work list with a visited set.

use super::parse::{Instruction, Module};
use super::types::{Type, Types};
use rspirv::spirv::{Op, StorageClass};
use std::collections::{HashMap, HashSet};

/// Where an id is defined.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Index into `Module::instructions`.
    pub at: usize,
    /// The function it belongs to, or none for global ids and functions themselves.
    function: Option<usize>,
}

/// The definitions of all ids.
#[derive(Debug)]
pub struct Ids(HashMap<u32, Definition>);

impl Ids {
    pub fn instruction<'m>(&self, module: &'m Module, id: u32) -> Option<&'m Instruction> {
        module.instructions.get(self.0.get(&id)?.at)
    }
}

type Checked<T = ()> = Result<T, String>;

pub fn check(module: &Module, types: &Types, ids: &Ids) -> Checked {
    sections_in_order(module)?;
    let functions = functions(module)?;
    each_id_before_use(module, ids)?;
    let checker = Checker { module, types, ids };
    for instruction in &module.instructions {
        checker.instruction(instruction).map_err(|reason| located(instruction, &reason))?;
    }
    for function in &functions {
        checker.function(function)?;
    }
    no_recursion(module, &functions)
}

fn located(instruction: &Instruction, reason: &str) -> String {
    format!("word {}: Op{}: {reason}", instruction.at_word, instruction.name)
}

/// The sections of a module (SPIR-V section 2.4); lines and debug information may stand anywhere after the names.
fn section(op: Op) -> Option<u8> {
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

fn sections_in_order(module: &Module) -> Checked {
    let mut reached = 0;
    let mut memory_models = 0;
    for instruction in &module.instructions {
        memory_models += usize::from(instruction.op == Op::MemoryModel);
        if let Some(section) = section(instruction.op) {
            if section < reached {
                return Err(located(instruction, "stands after a later section"));
            }
            reached = section;
        }
    }
    if memory_models == 1 { Ok(()) } else { Err(format!("{memory_models} memory models")) }
}

/// Instructions `first..=last` of one function, with its blocks.
#[derive(Debug)]
struct Function {
    first: usize,
    parameters: Vec<usize>,
    blocks: Vec<Block>,
}

/// Instruction indices of a block: its label, and its terminator.
#[derive(Debug)]
struct Block {
    label: usize,
    end: usize,
}

fn is_global(instruction: &Instruction) -> bool {
    let families = ["Type", "Constant", "SpecConstant"];
    families.iter().any(|family| instruction.name.starts_with(family))
        || matches!(instruction.op, Op::Variable | Op::Undef | Op::ExtInst)
}

fn is_terminator(op: Op) -> bool {
    matches!(op, Op::Branch | Op::BranchConditional | Op::Switch | Op::Return | Op::ReturnValue | Op::Unreachable)
}

fn is_merge(op: Op) -> bool {
    matches!(op, Op::SelectionMerge | Op::LoopMerge)
}

/// Splits the function section into functions and blocks.
fn functions(module: &Module) -> Checked<Vec<Function>> {
    let mut functions = Vec::new();
    let mut current: Option<Function> = None;
    let mut label = None;
    for (at, instruction) in module.instructions.iter().enumerate() {
        let op = instruction.op;
        let wrong = |reason: &str| Err(located(instruction, reason));
        if section(op) != Some(9) {
            if current.is_some() && section(op).is_some() {
                return wrong("stands in a function");
            }
            continue;
        }
        let Some(function) = &mut current else {
            match op {
                Op::Function => current = Some(Function { first: at, parameters: Vec::new(), blocks: Vec::new() }),
                _ if is_global(instruction) && functions.is_empty() => {}
                _ => return wrong("stands outside of every function"),
            }
            continue;
        };
        match (op, label) {
            (Op::FunctionParameter, None) if function.blocks.is_empty() => function.parameters.push(at),
            (Op::Label, None) => label = Some(at),
            (Op::Function | Op::Label | Op::FunctionEnd | Op::FunctionParameter, Some(_)) => {
                return wrong("the block before has no end");
            }
            (Op::FunctionEnd, None) => {
                if function.blocks.is_empty() {
                    return wrong("a function without a body");
                }
                functions.extend(current.take());
            }
            (_, Some(start)) if is_terminator(op) => {
                function.blocks.push(Block { label: start, end: at });
                label = None;
            }
            (_, Some(_)) if may_stand_in_block(instruction) => {}
            (_, Some(_)) => return wrong("has no place in a compute shader's function"),
            (_, None) => return wrong("stands outside of every block"),
        }
    }
    if current.is_some() {
        return Err("the last function has no end".into());
    }
    Ok(functions)
}

fn may_stand_in_block(instruction: &Instruction) -> bool {
    let op = instruction.op;
    let of_graphics = matches!(
        op,
        Op::Kill
            | Op::TerminateInvocation
            | Op::DemoteToHelperInvocation
            | Op::IgnoreIntersectionKHR
            | Op::TerminateRayKHR
            | Op::EmitMeshTasksEXT
            | Op::EmitVertex
            | Op::EndPrimitive
    );
    !of_graphics && (matches!(op, Op::Variable | Op::Undef | Op::ExtInst) || !is_global(instruction))
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

/// Whether an instruction may name ids that are defined later.
fn may_look_ahead(op: Op) -> bool {
    section(op).is_some_and(|section| section < 9)
        || matches!(
            op,
            Op::TypeForwardPointer
                | Op::TypeStruct
                | Op::FunctionCall
                | Op::Phi
                | Op::Branch
                | Op::BranchConditional
                | Op::Switch
                | Op::SelectionMerge
                | Op::LoopMerge
        )
}

fn each_id_before_use(module: &Module, ids: &Ids) -> Checked {
    let mut function = None;
    for (at, instruction) in module.instructions.iter().enumerate() {
        match instruction.op {
            Op::Function => function = Some(at),
            Op::FunctionEnd => function = None,
            _ => {}
        }
        let used = module.ids(instruction).iter().copied().chain(instruction.result_type);
        for id in used {
            let Some(definition) = ids.0.get(&id) else {
                return Err(located(instruction, &format!("id {id} is not defined")));
            };
            if definition.at >= at && !may_look_ahead(instruction.op) {
                return Err(located(instruction, &format!("id {id} is used before it is defined")));
            }
            let is_annotation = section(instruction.op).is_some_and(|section| section < 9);
            if definition.function.is_some() && definition.function != function && !is_annotation {
                return Err(located(instruction, &format!("id {id} belongs to another function")));
            }
        }
    }
    Ok(())
}

/// A number type as arithmetic sees it.
#[derive(PartialEq, Clone, Copy)]
struct Shape {
    kind: Kind,
    bits: u32,
    count: u32,
}

#[derive(PartialEq, Clone, Copy)]
enum Kind {
    Bool,
    Int,
    Float,
}

struct Checker<'m> {
    module: &'m Module,
    types: &'m Types,
    ids: &'m Ids,
}

impl Checker<'_> {
    fn defining(&self, id: u32) -> Option<&Instruction> {
        self.ids.instruction(self.module, id)
    }

    /// The type of a value. Functions have a result type too, but are no values.
    fn type_of(&self, id: u32) -> Checked<u32> {
        self.defining(id)
            .filter(|instruction| instruction.op != Op::Function)
            .and_then(|instruction| instruction.result_type)
            .ok_or_else(|| format!("{id} is no value"))
    }

    fn pointee_of(&self, id: u32) -> Checked<(StorageClass, u32)> {
        self.types.pointee(self.type_of(id)?).ok_or_else(|| format!("{id} is no pointer"))
    }

    fn shape(&self, type_id: u32) -> Checked<Shape> {
        let (scalar, count) = match self.types.get(type_id) {
            Some(Type::Vector { component, count }) => (*component, *count),
            _ => (type_id, 1),
        };
        let (kind, bits) = match self.types.get(scalar) {
            Some(Type::Bool) => (Kind::Bool, 1),
            Some(Type::Int { bits }) => (Kind::Int, *bits),
            Some(Type::Float { bits }) => (Kind::Float, *bits),
            _ => return Err(format!("type {type_id} is no number")),
        };
        Ok(Shape { kind, bits, count })
    }

    fn is_other(&self, type_id: u32) -> bool {
        matches!(self.types.get(type_id), Some(Type::Other) | None)
    }

    fn instruction(&self, instruction: &Instruction) -> Checked {
        let ids = self.module.ids(instruction);
        let operand = |index| self.module.operand(instruction, index);
        match instruction.op {
            Op::Variable => self.variable(instruction),
            Op::Load => {
                let (_, pointee) = self.pointee_of(operand(0))?;
                self.same(instruction.result_type, Some(pointee))
            }
            Op::Store => {
                let (_, pointee) = self.pointee_of(operand(0))?;
                self.same(Some(self.type_of(operand(1))?), Some(pointee))
            }
            Op::AccessChain | Op::InBoundsAccessChain => self.access_chain(instruction),
            Op::CompositeExtract => {
                let indices = self.module.operands(instruction).get(1..).unwrap_or(&[]);
                let found = self.inside(self.type_of(operand(0))?, indices)?;
                self.same(instruction.result_type, found)
            }
            Op::CompositeInsert => {
                let indices = self.module.operands(instruction).get(2..).unwrap_or(&[]);
                let composite = self.type_of(operand(1))?;
                self.same(instruction.result_type, Some(composite))?;
                self.same(Some(self.type_of(operand(0))?), self.inside(composite, indices)?)
            }
            Op::ArrayLength => self.array_length(instruction),
            Op::FAdd | Op::FSub | Op::FMul | Op::FDiv | Op::FRem | Op::FMod | Op::FNegate => {
                self.alike(instruction, Kind::Float)
            }
            Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::UDiv
            | Op::SDiv
            | Op::UMod
            | Op::SRem
            | Op::SMod
            | Op::SNegate
            | Op::BitwiseAnd
            | Op::BitwiseOr
            | Op::BitwiseXor
            | Op::Not => self.alike(instruction, Kind::Int),
            Op::LogicalAnd | Op::LogicalOr | Op::LogicalNot | Op::LogicalEqual | Op::LogicalNotEqual => {
                self.alike(instruction, Kind::Bool)
            }
            Op::FOrdEqual
            | Op::FUnordEqual
            | Op::FOrdNotEqual
            | Op::FUnordNotEqual
            | Op::FOrdLessThan
            | Op::FUnordLessThan
            | Op::FOrdGreaterThan
            | Op::FUnordGreaterThan
            | Op::FOrdLessThanEqual
            | Op::FUnordLessThanEqual
            | Op::FOrdGreaterThanEqual
            | Op::FUnordGreaterThanEqual => self.comparison(instruction, Kind::Float),
            Op::IEqual
            | Op::INotEqual
            | Op::ULessThan
            | Op::SLessThan
            | Op::UGreaterThan
            | Op::SGreaterThan
            | Op::ULessThanEqual
            | Op::SLessThanEqual
            | Op::UGreaterThanEqual
            | Op::SGreaterThanEqual => self.comparison(instruction, Kind::Int),
            Op::FunctionCall => self.call(instruction),
            Op::ExtInst => self.extended(instruction),
            Op::Switch => self.is_kind(operand(0), Kind::Int),
            Op::BranchConditional => self.is_kind(operand(0), Kind::Bool),
            Op::Phi => {
                let values = ids.iter().step_by(2);
                values.map(|&id| self.type_of(id)).try_for_each(|t| self.same(instruction.result_type, Some(t?)))
            }
            _ => Ok(()),
        }
    }

    /// Two type ids that must agree; none stands for what is not known here.
    fn same(&self, wanted: Option<u32>, found: Option<u32>) -> Checked {
        match (wanted, found) {
            (Some(wanted), Some(found)) if wanted != found => {
                Err(format!("type {found} where type {wanted} is needed"))
            }
            _ => Ok(()),
        }
    }

    fn is_kind(&self, id: u32, kind: Kind) -> Checked {
        let shape = self.shape(self.type_of(id)?)?;
        if shape.kind == kind && shape.count == 1 { Ok(()) } else { Err(format!("{id} has the wrong type")) }
    }

    fn variable(&self, instruction: &Instruction) -> Checked {
        let class = StorageClass::from_u32(self.module.operand(instruction, 0));
        let pointer = instruction.result_type.and_then(|id| self.types.pointee(id));
        match pointer {
            Some((of_pointer, _)) if Some(of_pointer) == class => Ok(()),
            _ => Err("its type is no pointer of its storage class".into()),
        }
    }

    fn access_chain(&self, instruction: &Instruction) -> Checked {
        let Some((&base, indices)) = self.module.operands(instruction).split_first() else {
            return Err("no base".into());
        };
        let (class, mut current) = self.pointee_of(base)?;
        for &index in indices {
            self.is_kind(index, Kind::Int)?;
            current = match self.types.get(current) {
                Some(Type::Struct { members }) => {
                    let member = self.types.integer(index).ok_or("a struct member that is no constant")?;
                    let member = usize::try_from(member).ok().and_then(|member| members.get(member));
                    *member.ok_or("a member that the struct has not")?
                }
                Some(Type::Array { element, .. } | Type::RuntimeArray { element }) => *element,
                Some(Type::Vector { component, .. }) => *component,
                Some(Type::Matrix { column, .. }) => *column,
                Some(Type::Other) => return Ok(()),
                _ => return Err("an index into what has no parts".into()),
            };
        }
        let result = instruction.result_type.and_then(|id| self.types.pointee(id));
        if result == Some((class, current)) {
            Ok(())
        } else {
            Err("the result is not a pointer to the indexed part".into())
        }
    }

    /// The type that literal indices lead to; none inside types that are not looked at.
    fn inside(&self, composite: u32, indices: &[u32]) -> Checked<Option<u32>> {
        let mut current = composite;
        for &index in indices {
            let (part, count) = match self.types.get(current) {
                Some(Type::Struct { members }) => {
                    let part = members.get(index as usize).copied();
                    (part.ok_or("a member that the struct has not")?, u64::MAX)
                }
                Some(Type::Array { element, length }) => (*element, length.unwrap_or(u64::MAX)),
                Some(Type::Vector { component, count }) => (*component, u64::from(*count)),
                Some(Type::Matrix { column, count }) => (*column, u64::from(*count)),
                Some(Type::Other) => return Ok(None),
                _ => return Err("an index into what has no parts".into()),
            };
            if u64::from(index) >= count {
                return Err(format!("index {index} of {count} parts"));
            }
            current = part;
        }
        Ok(Some(current))
    }

    fn array_length(&self, instruction: &Instruction) -> Checked {
        let (_, pointee) = self.pointee_of(self.module.operand(instruction, 0))?;
        let member = self.module.operand(instruction, 1) as usize;
        let last = match self.types.get(pointee) {
            Some(Type::Struct { members }) if member + 1 == members.len() => members.get(member).copied(),
            _ => None,
        };
        match last.and_then(|id| self.types.get(id)) {
            Some(Type::RuntimeArray { .. }) => Ok(()),
            _ => Err("not the last member of a struct, or no runtime array".into()),
        }
    }

    fn alike(&self, instruction: &Instruction, kind: Kind) -> Checked {
        let Some(result_type) = instruction.result_type.filter(|id| !self.is_other(*id)) else {
            return Ok(());
        };
        let wanted = self.shape(result_type)?;
        if wanted.kind != kind {
            return Err("the result has the wrong type".into());
        }
        for &id in self.module.ids(instruction) {
            if self.shape(self.type_of(id)?)? != wanted {
                return Err(format!("operand {id} has the wrong type"));
            }
        }
        Ok(())
    }

    fn comparison(&self, instruction: &Instruction, kind: Kind) -> Checked {
        let result = self.shape(instruction.result_type.unwrap_or(0))?;
        let mut shapes = Vec::new();
        for &id in self.module.ids(instruction) {
            shapes.push(self.shape(self.type_of(id)?)?);
        }
        let fits = shapes.iter().all(|shape| shape.kind == kind && shape.count == result.count)
            && shapes.windows(2).all(|pair| pair[0] == pair[1]);
        if fits && result.kind == Kind::Bool { Ok(()) } else { Err("operands and result do not fit".into()) }
    }

    fn function_type(&self, id: u32) -> Checked<(u32, &[u32])> {
        let function = self.defining(id).filter(|instruction| instruction.op == Op::Function);
        let function = function.ok_or_else(|| format!("{id} is no function"))?;
        match self.types.get(self.module.operand(function, 1)) {
            Some(Type::Function { result, parameters }) => Ok((*result, parameters)),
            _ => Err(format!("the type of function {id} is no function type")),
        }
    }

    fn call(&self, instruction: &Instruction) -> Checked {
        let Some((&callee, arguments)) = self.module.ids(instruction).split_first() else {
            return Err("no callee".into());
        };
        let (result, parameters) = self.function_type(callee)?;
        self.same(instruction.result_type, Some(result))?;
        if arguments.len() != parameters.len() {
            return Err(format!("{} arguments for {} parameters", arguments.len(), parameters.len()));
        }
        for (&argument, &parameter) in arguments.iter().zip(parameters) {
            self.same(Some(parameter), Some(self.type_of(argument)?))?;
        }
        Ok(())
    }

    /// Extended instructions: those of GLSL.std.450 exist and have all their operands; NonSemantic ones may be anything.
    fn extended(&self, instruction: &Instruction) -> Checked {
        let set = self.defining(self.module.operand(instruction, 0));
        let set = set.filter(|set| set.op == Op::ExtInstImport).ok_or("no instruction set")?;
        if literal_string(self.module.operands(set)).starts_with("NonSemantic.") {
            return Ok(());
        }
        let number = self.module.operand(instruction, 1);
        let grammar = rspirv::grammar::GLSL_STD_450_INSTRUCTION_TABLE.lookup_opcode(number);
        let grammar = grammar.ok_or_else(|| format!("GLSL.std.450 has no instruction {number}"))?;
        let arguments = self.module.operands(instruction).get(2..).unwrap_or(&[]);
        if arguments.len() != grammar.operands.len() {
            return Err(format!("{} operands for {}", arguments.len(), grammar.opname));
        }
        arguments.iter().try_for_each(|&id| self.type_of(id).map(|_| ()))
    }

    fn function(&self, function: &Function) -> Checked {
        let instructions = &self.module.instructions;
        let Some(first) = instructions.get(function.first) else {
            return Ok(());
        };
        let (result, parameters) = self.function_type(first.result.unwrap_or(0)).map_err(|e| located(first, &e))?;
        self.same(first.result_type, Some(result)).map_err(|e| located(first, &e))?;
        let declared: Vec<Option<u32>> =
            function.parameters.iter().map(|&at| instructions.get(at).and_then(|i| i.result_type)).collect();
        if declared.len() != parameters.len() || declared.iter().zip(parameters).any(|(d, p)| *d != Some(*p)) {
            return Err(located(first, "its parameters do not fit its type"));
        }
        let labels: HashMap<u32, usize> = function
            .blocks
            .iter()
            .enumerate()
            .filter_map(|(index, block)| Some((instructions.get(block.label)?.result?, index)))
            .collect();
        let mut predecessors: Vec<HashSet<u32>> = vec![HashSet::new(); function.blocks.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            let own_label = instructions.get(block.label).and_then(|i| i.result).unwrap_or(0);
            for at in block.label + 1..=block.end {
                let Some(instruction) = instructions.get(at) else { continue };
                let fault = |reason: &str| located(instruction, reason);
                if instruction.op == Op::Variable {
                    let class = StorageClass::from_u32(self.module.operand(instruction, 0));
                    if index != 0 || class != Some(StorageClass::Function) {
                        return Err(fault("not a Function variable of the first block"));
                    }
                }
                if is_merge(instruction.op) {
                    let next = instructions.get(at + 1).map(|next| next.op);
                    let fits = match instruction.op {
                        Op::SelectionMerge => matches!(next, Some(Op::BranchConditional | Op::Switch)),
                        _ => matches!(next, Some(Op::Branch | Op::BranchConditional)),
                    };
                    if !fits {
                        return Err(fault("is not followed by a branch"));
                    }
                }
                for target in self.targets(instruction) {
                    let Some(&to) = labels.get(&target) else {
                        return Err(fault(&format!("{target} is no label of this function")));
                    };
                    if to == 0 {
                        return Err(fault("leads back to the first block"));
                    }
                    if is_terminator(instruction.op)
                        && let Some(from) = predecessors.get_mut(to)
                    {
                        from.insert(own_label);
                    }
                }
                let returned = match instruction.op {
                    Op::Return => self.types.get(result) == Some(&Type::Void),
                    Op::ReturnValue => {
                        self.type_of(self.module.operand(instruction, 0)).map_err(|e| fault(&e))? == result
                    }
                    _ => true,
                };
                if !returned {
                    return Err(fault("does not return the function's type"));
                }
            }
        }
        self.phis(function, &predecessors)
    }

    /// The labels that a terminator or a merge names.
    fn targets(&self, instruction: &Instruction) -> Vec<u32> {
        let ids = self.module.ids(instruction);
        match instruction.op {
            Op::Branch | Op::SelectionMerge | Op::LoopMerge => ids.to_vec(),
            Op::BranchConditional | Op::Switch => ids.get(1..).unwrap_or(&[]).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Every phi stands at the start of its block and has one value for each block that leads there.
    fn phis(&self, function: &Function, predecessors: &[HashSet<u32>]) -> Checked {
        for (block, from) in function.blocks.iter().zip(predecessors) {
            let mut at_start = true;
            for at in block.label + 1..=block.end {
                let Some(instruction) = self.module.instructions.get(at) else { continue };
                if instruction.op != Op::Phi {
                    at_start &= matches!(instruction.op, Op::Line | Op::NoLine);
                    continue;
                }
                if !at_start {
                    return Err(located(instruction, "is not at the start of its block"));
                }
                let parents: Vec<u32> = self.module.ids(instruction).iter().skip(1).step_by(2).copied().collect();
                let distinct: HashSet<u32> = parents.iter().copied().collect();
                if distinct.len() != parents.len() || distinct != *from {
                    return Err(located(instruction, "its parents are not the blocks that lead here"));
                }
            }
        }
        Ok(())
    }
}

/// The text at the start of operand words.
pub fn literal_string(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn no_recursion(module: &Module, functions: &[Function]) -> Checked {
    let mut callees: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut waiting: HashMap<u32, usize> = HashMap::new();
    for function in functions {
        let Some(id) = module.instructions.get(function.first).and_then(|i| i.result) else {
            continue;
        };
        waiting.entry(id).or_default();
        let last = function.blocks.last().map_or(function.first, |block| block.end);
        for instruction in module.instructions.get(function.first..=last).unwrap_or(&[]) {
            if instruction.op == Op::FunctionCall {
                let callee = module.operand(instruction, 0);
                callees.entry(id).or_default().push(callee);
                *waiting.entry(callee).or_default() += 1;
            }
        }
    }
    // Take away functions that nobody left calls, until none is left or only cycles are.
    let mut free: Vec<u32> = waiting.iter().filter(|(_, calls)| **calls == 0).map(|(id, _)| *id).collect();
    let mut taken = 0;
    while let Some(id) = free.pop() {
        taken += 1;
        for callee in callees.get(&id).into_iter().flatten() {
            if let Some(calls) = waiting.get_mut(callee) {
                *calls -= 1;
                if *calls == 0 {
                    free.push(*callee);
                }
            }
        }
    }
    if taken == waiting.len() { Ok(()) } else { Err("functions call each other in a circle".into()) }
}
