//! Do operands fit their instruction: values where values are needed, of types that agree, indices inside what they
//! index. An instruction that no rule here knows is refused.

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::parse::{Instruction, Module};
use super::parts::{Checked, Ids, is_global, section};
use super::rules::ScalarKind;
use super::types::{Type, Types};

/// Looks at the operands of one module.
pub struct Checker<'m> {
    pub module: &'m Module,
    pub types: &'m Types,
    pub ids: &'m Ids,
}

pub fn require(holds: bool, reason: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(reason()) }
}

impl Checker<'_> {
    pub fn defining(&self, id: u32) -> Option<&Instruction> {
        self.ids.instruction(self.module, id)
    }

    /// The type of a value. Functions have a result type too, but are no values.
    pub fn type_of(&self, id: u32) -> Checked<u32> {
        self.defining(id)
            .filter(|instruction| instruction.op != Op::Function)
            .and_then(|instruction| instruction.result_type)
            .ok_or_else(|| format!("{id} is no value"))
    }

    pub fn pointee_of(&self, id: u32) -> Checked<(StorageClass, u32)> {
        self.types.pointee(self.type_of(id)?).ok_or_else(|| format!("{id} is no pointer"))
    }

    /// What a pointer that is written through points to.
    pub fn written(&self, id: u32) -> Checked<u32> {
        let (class, pointee) = self.pointee_of(id)?;
        let is_read_only = matches!(class, StorageClass::Input | StorageClass::PushConstant);
        require(!is_read_only, || format!("writes to {class:?} memory"))?;
        Ok(pointee)
    }

    /// Addresses of eight bytes; other pointers are logical: only variables, parameters and access chains make them.
    pub fn is_address(&self, type_id: u32) -> bool {
        matches!(self.types.pointee(type_id), Some((StorageClass::PhysicalStorageBuffer, _)))
    }

    pub fn instruction(&self, instruction: &Instruction) -> Checked {
        let op = instruction.op;
        if section(op) != Some(9) {
            return Ok(());
        }
        let operands = self.module.operands(instruction);
        let operand = |index| self.module.operand(instruction, index);
        let Some(result) = instruction.result_type else {
            return self.without_result(instruction);
        };
        self.result_type(op, result)?;
        require(!self.types.is_unsized(result), || format!("a value of type {result}, which has no length"))?;
        match op {
            Op::Variable => self.variable(instruction),
            Op::Load => {
                let (_, pointee) = self.pointee_of(operand(0))?;
                require(pointee == result, || format!("loads type {pointee} as type {result}"))?;
                self.access(operand(0), operands.get(1..).unwrap_or(&[]), false)
            }
            Op::AccessChain | Op::InBoundsAccessChain => self.access_chain(instruction),
            Op::ArrayLength => self.array_length(instruction),
            Op::FunctionCall => self.call(instruction),
            Op::ExtInst | Op::ExtInstWithForwardRefsKHR => self.extended(instruction),
            Op::Phi => {
                let (pairs, rest) = operands.as_chunks::<2>();
                require(rest.is_empty() && !pairs.is_empty(), || "no pairs of a value and a block".into())?;
                pairs.iter().try_for_each(|&[value, _]| self.all_of(result, &[value]))
            }
            Op::ConvertPtrToU => {
                require(self.is_address(self.type_of(operand(0))?), || "the operand is no address".into())?;
                self.number(result, ScalarKind::Unsigned).map(|_| ())
            }
            Op::ConvertUToPtr => {
                require(self.is_address(result), || "the result is no address".into())?;
                self.scalar(operand(0), ScalarKind::Unsigned).map(|_| ())
            }
            Op::SpecConstantOp => {
                let op = Op::from_u32(operand(0)).ok_or("unknown operation")?;
                self.constants(instruction)?;
                self.value(op, result, operands.get(1..).unwrap_or(&[]))
            }
            Op::Function | Op::FunctionParameter | Op::Undef => Ok(()),
            _ if is_global(instruction) => self.constants(instruction),
            _ => match self.of_other_invocations(op, result, operands) {
                Some(checked) => checked,
                None => self.value(op, result, operands),
            },
        }
    }

    fn without_result(&self, instruction: &Instruction) -> Checked {
        let operands = self.module.operands(instruction);
        let operand = |index| self.module.operand(instruction, index);
        match instruction.op {
            Op::Store => {
                let pointee = self.written(operand(0))?;
                self.all_of(pointee, &operands[1..2])?;
                self.access(operand(0), operands.get(2..).unwrap_or(&[]), true)
            }
            Op::Switch => self.scalar(operand(0), ScalarKind::Int).map(|_| ()),
            Op::BranchConditional => {
                self.scalar(operand(0), ScalarKind::Bool)?;
                require(matches!(operands.len(), 3 | 5), || "one branch weight".into())
            }
            Op::ReturnValue => self.type_of(operand(0)).map(|_| ()),
            Op::Branch
            | Op::SelectionMerge
            | Op::LoopMerge
            | Op::Return
            | Op::Unreachable
            | Op::Label
            | Op::FunctionEnd
            | Op::TypeForwardPointer => Ok(()),
            _ if is_global(instruction) => Ok(()),
            op => self
                .of_other_invocations(op, 0, operands)
                .unwrap_or_else(|| Err("is no instruction that a compute shader may have here".into())),
        }
    }

    /// Results are data; and logical pointers come from few instructions.
    fn result_type(&self, op: Op, result: u32) -> Checked {
        let may_be_void = matches!(op, Op::Function | Op::FunctionCall | Op::ExtInst | Op::ExtInstWithForwardRefsKHR);
        match self.types.get(result) {
            Some(Type::Void) if may_be_void => Ok(()),
            Some(Type::Void | Type::Function { .. }) | None => Err(format!("the result type {result} is no data")),
            Some(Type::Pointer { .. }) if !self.is_address(result) => {
                let makes_pointers =
                    matches!(op, Op::Variable | Op::FunctionParameter | Op::AccessChain | Op::InBoundsAccessChain);
                require(makes_pointers, || "the result is a pointer".into())
            }
            _ => Ok(()),
        }
    }

    /// Every id among the operands is a constant.
    fn constants(&self, instruction: &Instruction) -> Checked {
        let ids = self.module.ids(instruction);
        ids.iter().try_for_each(|&id| require(self.types.is_constant(id), || format!("operand {id} is no constant")))
    }

    fn variable(&self, instruction: &Instruction) -> Checked {
        let operands = self.module.operands(instruction);
        let class = StorageClass::from_u32(self.module.operand(instruction, 0));
        let pointer = instruction.result_type.and_then(|id| self.types.pointee(id));
        let Some((_, pointee)) = pointer.filter(|(of_pointer, _)| Some(*of_pointer) == class) else {
            return Err("its type is no pointer of its storage class".into());
        };
        let pointee_is_data = !matches!(self.types.get(pointee), None | Some(Type::Void | Type::Function { .. }));
        require(pointee_is_data, || format!("a variable of type {pointee}"))?;
        let is_buffer =
            matches!(class, Some(StorageClass::StorageBuffer | StorageClass::Uniform | StorageClass::UniformConstant));
        require(is_buffer || !self.types.is_unsized(pointee), || {
            format!("a variable of type {pointee}, which has no length, outside of a buffer")
        })?;
        let Some(&initial) = operands.get(1) else {
            return Ok(());
        };
        let is_null = self.defining(initial).is_some_and(|i| i.op == Op::ConstantNull);
        let may_start = matches!(class, Some(StorageClass::Function | StorageClass::Private))
            || (class == Some(StorageClass::Workgroup) && is_null);
        require(may_start && self.types.is_constant(initial), || format!("can't start with {initial}"))?;
        self.all_of(pointee, &[initial])
    }

    /// The memory operands of a load or a store.
    fn access(&self, pointer: u32, operands: &[u32], writes: bool) -> Checked {
        let flags = MemoryAccess::from_bits_truncate(operands.first().copied().unwrap_or(0));
        let known = MemoryAccess::VOLATILE
            | MemoryAccess::ALIGNED
            | MemoryAccess::NONTEMPORAL
            | MemoryAccess::MAKE_POINTER_AVAILABLE
            | MemoryAccess::MAKE_POINTER_VISIBLE
            | MemoryAccess::NON_PRIVATE_POINTER;
        require(known.contains(flags), || format!("memory access {flags:?}"))?;
        let is_address = self.is_address(self.type_of(pointer)?);
        let is_aligned = flags.contains(MemoryAccess::ALIGNED);
        require(is_aligned || !is_address, || "an address without an alignment".into())?;
        let alignment = operands.get(1).copied().unwrap_or(0);
        require(!is_aligned || alignment.is_power_of_two(), || format!("an alignment of {alignment}"))?;
        let wrong_way = if writes { MemoryAccess::MAKE_POINTER_VISIBLE } else { MemoryAccess::MAKE_POINTER_AVAILABLE };
        require(!flags.contains(wrong_way), || format!("memory access {flags:?}"))?;
        let scoped = MemoryAccess::MAKE_POINTER_AVAILABLE | MemoryAccess::MAKE_POINTER_VISIBLE;
        if flags.intersects(scoped) {
            require(flags.contains(MemoryAccess::NON_PRIVATE_POINTER), || {
                "made available as a private pointer".into()
            })?;
            self.memory_scope(operands.last().copied().unwrap_or(0))?;
        }
        Ok(())
    }

    fn access_chain(&self, instruction: &Instruction) -> Checked {
        let Some((&base, indices)) = self.module.operands(instruction).split_first() else {
            return Err("no base".into());
        };
        let (class, mut current) = self.pointee_of(base)?;
        for &index in indices {
            self.scalar(index, ScalarKind::Int)?;
            current = match self.types.get(current) {
                Some(Type::Struct { members }) => {
                    let is_plain = self.defining(index).is_some_and(|i| i.op == Op::Constant);
                    let member = self.types.integer(index).filter(|_| is_plain);
                    let member = member.ok_or("a struct member that is no constant")?;
                    let member = usize::try_from(member).ok().and_then(|member| members.get(member));
                    *member.ok_or("a member that the struct has not")?
                }
                Some(Type::Array { element, .. } | Type::RuntimeArray { element }) => *element,
                Some(Type::Vector { component, .. }) => *component,
                Some(Type::Matrix { column, .. }) => *column,
                Some(Type::CooperativeMatrix { component, .. }) => *component,
                _ => return Err("an index into what has no parts".into()),
            };
        }
        let result = instruction.result_type.and_then(|id| self.types.pointee(id));
        require(result == Some((class, current)), || "the result is not a pointer to the indexed part".into())
    }

    /// The type that literal indices lead to.
    pub fn inside(&self, composite: u32, indices: &[u32]) -> Checked<u32> {
        let mut current = composite;
        require(!indices.is_empty(), || "no index".into())?;
        for &index in indices {
            let (part, count) = match self.types.get(current) {
                Some(Type::Struct { members }) => {
                    let part = members.get(index as usize).copied();
                    (part.ok_or("a member that the struct has not")?, u64::MAX)
                }
                Some(Type::Array { element, length }) => (*element, length.unwrap_or(u64::MAX)),
                Some(Type::Vector { component, count }) => (*component, u64::from(*count)),
                Some(Type::Matrix { column, count }) => (*column, u64::from(*count)),
                Some(Type::CooperativeMatrix { component, .. }) => (*component, u64::MAX),
                _ => return Err("an index into what has no parts".into()),
            };
            require(u64::from(index) < count, || format!("index {index} of {count} parts"))?;
            current = part;
        }
        Ok(current)
    }

    fn array_length(&self, instruction: &Instruction) -> Checked {
        let (_, pointee) = self.pointee_of(self.module.operand(instruction, 0))?;
        let member = self.module.operand(instruction, 1) as usize;
        let last = match self.types.get(pointee) {
            Some(Type::Struct { members }) if member.checked_add(1) == Some(members.len()) => members.get(member),
            _ => None,
        };
        let is_array = matches!(last.and_then(|id| self.types.get(*id)), Some(Type::RuntimeArray { .. }));
        require(is_array, || "not the last member of a struct, or no runtime array".into())?;
        let length = self.number(instruction.result_type.unwrap_or(0), ScalarKind::Unsigned)?;
        require(length.bits == 32 && length.count == 1, || "the result is no 32-bit unsigned integer".into())
    }

    pub fn function_type(&self, id: u32) -> Checked<(u32, &[u32])> {
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
        let returned = instruction.result_type.unwrap_or(0);
        require(returned == result, || format!("a call of type {returned} to a function of type {result}"))?;
        if arguments.len() != parameters.len() {
            return Err(format!("{} arguments for {} parameters", arguments.len(), parameters.len()));
        }
        for (&argument, &parameter) in arguments.iter().zip(parameters) {
            self.all_of(parameter, &[argument])?;
            let is_logical = self.types.pointee(parameter).is_some() && !self.is_address(parameter);
            let origin = self.defining(argument).map(|i| i.op);
            let is_whole = matches!(origin, Some(Op::Variable | Op::FunctionParameter));
            require(!is_logical || is_whole, || format!("argument {argument} points into a variable"))?;
        }
        Ok(())
    }
}
