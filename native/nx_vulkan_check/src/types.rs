//! The types, constants and layout decorations of a module.
//!
//! SPIR-V declares a type before its use (only pointers may look ahead), so one pass in file order sees every part of a
//! type before the type, and sizes need no recursion.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{BuiltIn, Capability, Decoration, Op, StorageClass};

use super::parse::{Instruction, Module};

/// What can not be bound.
pub const UNBOUND: &str = "uses uniform buffers, images or samplers; only storage buffers can be bound";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Void,
    Bool,
    Int {
        bits: u32,
        signed: bool,
    },
    Float {
        bits: u32,
    },
    Vector {
        component: u32,
        count: u32,
    },
    Matrix {
        column: u32,
        count: u32,
    },
    /// `length` is unknown when it is computed by an operation that [`Types`] does not fold.
    Array {
        element: u32,
        length: Option<u64>,
    },
    RuntimeArray {
        element: u32,
    },
    Struct {
        members: Vec<u32>,
    },
    Pointer {
        class: StorageClass,
        pointee: u32,
    },
    Function {
        result: u32,
        parameters: Vec<u32>,
    },
    /// `parameters` are the constants of scope, rows, columns and use.
    CooperativeMatrix {
        component: u32,
        parameters: [u32; 4],
    },
}

impl Type {
    /// Can a value of this type be an element, a member, or a variable?
    fn is_data(&self) -> bool {
        !matches!(self, Type::Void | Type::Function { .. })
    }
}

/// Decorations of one struct member.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemberLayout {
    pub offset: Option<u32>,
    pub matrix_stride: Option<u32>,
    pub row_major: bool,
    pub column_major: bool,
    pub readonly: bool,
}

/// Decorations of an id.
#[derive(Debug, Clone, Default)]
pub struct Decorations {
    pub set: Option<u32>,
    pub binding: Option<u32>,
    pub spec_id: Option<u32>,
    pub array_stride: Option<u32>,
    pub builtin: Option<BuiltIn>,
    pub block: bool,
    pub buffer_block: bool,
    pub readonly: bool,
    pub members: HashMap<u32, MemberLayout>,
}

#[derive(Debug, Default)]
pub struct Types {
    types: HashMap<u32, Type>,
    /// Integer constants and defaults of integer spec constants, as unsigned bit patterns.
    integers: HashMap<u32, u64>,
    /// Every constant, whatever its value.
    constants: HashMap<u32, u32>,
    decorations: HashMap<u32, Decorations>,
    /// Names of the declared capabilities.
    capabilities: HashSet<String>,
    /// Types that are, or hold, runtime arrays.
    unsized_types: HashSet<u32>,
}

impl Types {
    pub fn of(module: &Module) -> Result<Types, String> {
        let mut types = Types::default();
        for instruction in &module.instructions {
            match instruction.op {
                Op::Decorate | Op::DecorateId => types.decorate(module, instruction),
                Op::MemberDecorate => types.decorate_member(module, instruction),
                Op::Capability => {
                    let capability = Capability::from_u32(module.operand(instruction, 0));
                    types.capabilities.extend(capability.map(|c| format!("{c:?}")));
                }
                _ => {}
            }
        }
        for instruction in &module.instructions {
            types
                .declare(module, instruction)
                .map_err(|reason| format!("word {}: Op{}: {reason}", instruction.at_word, instruction.name))?;
        }
        Ok(types)
    }

    pub fn get(&self, id: u32) -> Option<&Type> {
        self.types.get(&id)
    }

    pub fn integer(&self, id: u32) -> Option<u64> {
        self.integers.get(&id).copied()
    }

    pub fn is_constant(&self, id: u32) -> bool {
        self.constants.contains_key(&id)
    }

    /// Whether a type is a runtime array or holds one, so that only a buffer knows how long it is.
    pub fn is_unsized(&self, id: u32) -> bool {
        self.unsized_types.contains(&id)
    }

    pub fn has_capability(&self, name: &str) -> bool {
        self.capabilities.contains(name)
    }

    pub fn decorations(&self, id: u32) -> Option<&Decorations> {
        self.decorations.get(&id)
    }

    pub fn decorated(&self) -> impl Iterator<Item = (u32, &Decorations)> {
        self.decorations.iter().map(|(id, d)| (*id, d))
    }

    /// Ids of the pointers that are addresses of eight bytes; a struct may hold one before it is declared.
    pub fn addresses(&self) -> impl Iterator<Item = u32> {
        let is_address =
            |found: &Type| matches!(found, Type::Pointer { class: StorageClass::PhysicalStorageBuffer, .. });
        self.types.iter().filter(move |(_, found)| is_address(found)).map(|(id, _)| *id)
    }

    /// What a pointer type points to.
    pub fn pointee(&self, pointer_type: u32) -> Option<(StorageClass, u32)> {
        match self.get(pointer_type)? {
            Type::Pointer { class, pointee } => Some((*class, *pointee)),
            _ => None,
        }
    }

    fn decorate(&mut self, module: &Module, instruction: &Instruction) {
        let &[target, decoration, ref rest @ ..] = module.operands(instruction) else {
            return;
        };
        let value = rest.first().copied();
        let entry = self.decorations.entry(target).or_default();
        match Decoration::from_u32(decoration) {
            Some(Decoration::DescriptorSet) => entry.set = value,
            Some(Decoration::Binding) => entry.binding = value,
            Some(Decoration::SpecId) => entry.spec_id = value,
            Some(Decoration::ArrayStride) => entry.array_stride = value,
            Some(Decoration::BuiltIn) => entry.builtin = value.and_then(BuiltIn::from_u32),
            Some(Decoration::Block) => entry.block = true,
            Some(Decoration::BufferBlock) => entry.buffer_block = true,
            Some(Decoration::NonWritable) => entry.readonly = true,
            _ => {}
        }
    }

    fn decorate_member(&mut self, module: &Module, instruction: &Instruction) {
        let &[target, member, decoration, ref rest @ ..] = module.operands(instruction) else {
            return;
        };
        let value = rest.first().copied();
        let members = &mut self.decorations.entry(target).or_default().members;
        let entry = members.entry(member).or_default();
        match Decoration::from_u32(decoration) {
            Some(Decoration::Offset) => entry.offset = value,
            Some(Decoration::MatrixStride) => entry.matrix_stride = value,
            Some(Decoration::RowMajor) => entry.row_major = true,
            Some(Decoration::ColMajor) => entry.column_major = true,
            Some(Decoration::NonWritable) => entry.readonly = true,
            _ => {}
        }
    }

    fn declare(&mut self, module: &Module, instruction: &Instruction) -> Result<(), String> {
        let Some(result) = instruction.result else {
            if instruction.op == Op::TypeForwardPointer {
                self.forward_pointer(module, instruction)?;
            }
            return Ok(());
        };
        if let Some(declared) = self.type_of_instruction(module, instruction)? {
            if let Some(earlier) = self.types.get(&result)
                && !matches!(
                    (earlier, &declared),
                    (Type::Pointer { class: a, .. }, Type::Pointer { class: b, .. }) if a == b
                )
            {
                return Err(format!("id {result} is declared twice"));
            }
            // Numbers, vectors and matrices are declared once, so that equal types have equal ids.
            let is_plain = matches!(
                declared,
                Type::Bool | Type::Int { .. } | Type::Float { .. } | Type::Vector { .. } | Type::Matrix { .. }
            );
            if is_plain && self.types.values().any(|earlier| *earlier == declared) {
                return Err(format!("{declared:?} is declared twice"));
            }
            let is_unsized = match &declared {
                Type::RuntimeArray { .. } => true,
                Type::Struct { members } => members.iter().any(|&member| self.is_unsized(member)),
                _ => false,
            };
            if is_unsized {
                self.unsized_types.insert(result);
            }
            self.types.insert(result, declared);
            return Ok(());
        }
        if let Some(result_type) = instruction.result_type
            && !self.types.contains_key(&result_type)
        {
            return Err(format!("the result type {result_type} is no type"));
        }
        self.constant(module, instruction, result)
    }

    fn forward_pointer(&mut self, module: &Module, instruction: &Instruction) -> Result<(), String> {
        let class = StorageClass::from_u32(module.operand(instruction, 1)).ok_or("unknown storage class")?;
        // The pointee is set when the pointer is declared; till then it points to itself, which is no data type.
        let id = module.operand(instruction, 0);
        self.types.insert(id, Type::Pointer { class, pointee: id });
        Ok(())
    }

    fn type_of_instruction(&self, module: &Module, instruction: &Instruction) -> Result<Option<Type>, String> {
        let operand = |index| module.operand(instruction, index);
        Ok(Some(match instruction.op {
            Op::TypeVoid => Type::Void,
            Op::TypeBool => Type::Bool,
            Op::TypeInt if operand(1) > 1 => return Err(format!("signedness {}", operand(1))),
            Op::TypeInt => Type::Int { bits: operand(0), signed: operand(1) == 1 },
            Op::TypeFloat => Type::Float { bits: operand(0) },
            Op::TypeVector => {
                let (component, count) = (operand(0), operand(1));
                let scalar = matches!(self.get(component), Some(Type::Bool | Type::Int { .. } | Type::Float { .. }));
                if !scalar || !(2..=4).contains(&count) {
                    return Err(format!("{count} components of type {component}"));
                }
                Type::Vector { component, count }
            }
            Op::TypeMatrix => {
                let (column, count) = (operand(0), operand(1));
                if !matches!(self.get(column), Some(Type::Vector { .. })) || !(2..=4).contains(&count) {
                    return Err(format!("{count} columns of type {column}"));
                }
                Type::Matrix { column, count }
            }
            Op::TypeArray => {
                let element = self.sized(operand(0))?;
                let length = operand(1);
                if !self.is_constant(length) {
                    return Err(format!("the length {length} is no constant"));
                }
                let length = self.integer(length);
                if length == Some(0) {
                    return Err("an array of length 0".into());
                }
                Type::Array { element, length }
            }
            Op::TypeRuntimeArray => Type::RuntimeArray { element: self.sized(operand(0))? },
            Op::TypeStruct => {
                let members: Result<Vec<u32>, String> =
                    module.operands(instruction).iter().map(|&id| self.data(id)).collect();
                Type::Struct { members: members? }
            }
            Op::TypePointer => {
                let class = StorageClass::from_u32(operand(0)).ok_or("unknown storage class")?;
                let pointee = operand(1);
                if self.get(pointee).is_none() {
                    return Err(format!("{pointee} is no type"));
                }
                Type::Pointer { class, pointee }
            }
            Op::TypeFunction => {
                let result = operand(0);
                if self.get(result).is_none() {
                    return Err(format!("{result} is no type"));
                }
                let parameters = module.operands(instruction).get(1..).unwrap_or(&[]);
                let parameters: Result<Vec<u32>, String> = parameters.iter().map(|&id| self.data(id)).collect();
                Type::Function { result, parameters: parameters? }
            }
            Op::TypeCooperativeMatrixKHR => {
                let component = operand(0);
                if !matches!(self.get(component), Some(Type::Int { .. } | Type::Float { .. })) {
                    return Err(format!("components of type {component}"));
                }
                let parameters = [1, 2, 3, 4].map(operand);
                if let Some(id) = parameters.iter().find(|id| !self.is_constant(**id)) {
                    return Err(format!("{id} is no constant"));
                }
                Type::CooperativeMatrix { component, parameters }
            }
            Op::TypeImage | Op::TypeSampler | Op::TypeSampledImage => return Err(UNBOUND.into()),
            _ if instruction.name.starts_with("Type") => return Err("a type that a compute shader can't have".into()),
            _ => return Ok(None),
        }))
    }

    fn data(&self, id: u32) -> Result<u32, String> {
        match self.get(id) {
            Some(found) if found.is_data() => Ok(id),
            Some(found) => Err(format!("{found:?} (id {id}) is no data")),
            None => Err(format!("{id} is no type")),
        }
    }

    fn sized(&self, id: u32) -> Result<u32, String> {
        if self.is_unsized(id) { Err(format!("elements of type {id}, which has no length")) } else { self.data(id) }
    }

    fn constant(&mut self, module: &Module, instruction: &Instruction, result: u32) -> Result<(), String> {
        let result_type = match (instruction.op, instruction.result_type) {
            (
                Op::Constant
                | Op::SpecConstant
                | Op::ConstantTrue
                | Op::ConstantFalse
                | Op::SpecConstantTrue
                | Op::SpecConstantFalse
                | Op::ConstantNull
                | Op::ConstantComposite
                | Op::SpecConstantComposite
                | Op::SpecConstantOp
                | Op::Undef,
                Some(result_type),
            ) => result_type,
            _ => return Ok(()),
        };
        match instruction.op {
            Op::Constant | Op::SpecConstant => self.number(module, instruction, result, result_type),
            Op::SpecConstantOp => self.fold(module, instruction, result, result_type),
            Op::ConstantComposite | Op::SpecConstantComposite => self.composite(module, instruction, result_type)?,
            _ => {}
        }
        self.constants.insert(result, result_type);
        Ok(())
    }

    fn number(&mut self, module: &Module, instruction: &Instruction, result: u32, result_type: u32) {
        if let Some(Type::Int { .. }) = self.get(result_type) {
            let low = u64::from(module.operand(instruction, 0));
            let high = u64::from(module.operand(instruction, 1));
            self.integers.insert(result, high << 32 | low);
        }
    }

    fn composite(&self, module: &Module, instruction: &Instruction, result_type: u32) -> Result<(), String> {
        let parts = module.ids(instruction);
        if let Some(part) = parts.iter().find(|part| !self.is_constant(**part)) {
            return Err(format!("{part} is no constant"));
        }
        let part_types: Vec<Option<u32>> = parts.iter().map(|part| self.constants.get(part).copied()).collect();
        let all = |part_type: u32, count: u64| {
            part_types.len() as u64 == count && part_types.iter().all(|t| *t == Some(part_type))
        };
        let fits = match self.get(result_type) {
            Some(Type::Vector { component, count }) => all(*component, u64::from(*count)),
            Some(Type::Matrix { column, count }) => all(*column, u64::from(*count)),
            Some(Type::Array { element, length }) => all(*element, length.unwrap_or(part_types.len() as u64)),
            Some(Type::CooperativeMatrix { component, .. }) => all(*component, 1),
            Some(Type::Struct { members }) => {
                members.len() == parts.len() && members.iter().zip(&part_types).all(|(m, t)| Some(*m) == *t)
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err("the parts do not make up the type".into()) }
    }

    /// The default value of a 32-bit spec constant expression, where it is plain integer arithmetic.
    fn fold(&mut self, module: &Module, instruction: &Instruction, result: u32, result_type: u32) {
        if !matches!(self.get(result_type), Some(Type::Int { bits: 32, .. })) {
            return;
        }
        let &[opcode, a, b] = module.operands(instruction) else {
            return;
        };
        let (Some(a), Some(b)) = (self.integer(a), self.integer(b)) else {
            return;
        };
        let (a, b) = (a as u32, b as u32);
        let value = match Op::from_u32(opcode) {
            Some(Op::IAdd) => Some(a.wrapping_add(b)),
            Some(Op::ISub) => Some(a.wrapping_sub(b)),
            Some(Op::IMul) => Some(a.wrapping_mul(b)),
            Some(Op::UDiv) => a.checked_div(b),
            Some(Op::UMod) => a.checked_rem(b),
            Some(Op::SDiv) => (a as i32).checked_div(b as i32).map(|v| v as u32),
            Some(Op::ShiftLeftLogical) => a.checked_shl(b),
            Some(Op::ShiftRightLogical) => a.checked_shr(b),
            Some(Op::BitwiseAnd) => Some(a & b),
            Some(Op::BitwiseOr) => Some(a | b),
            _ => None,
        };
        if let Some(value) = value {
            self.integers.insert(result, u64::from(value));
        }
    }
}
