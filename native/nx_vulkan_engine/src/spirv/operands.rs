//! Do operands fit their instruction: values where values are needed, of types that agree, indices inside what they index.

use super::check::{Checked, Ids, is_global, is_non_semantic, section};
use super::parse::{Instruction, Module};
use super::types::{Type, Types};
use rspirv::spirv::{Op, StorageClass};

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

/// Looks at the operands of one module.
pub struct Checker<'m> {
    pub module: &'m Module,
    pub types: &'m Types,
    pub ids: &'m Ids,
}

impl Checker<'_> {
    fn defining(&self, id: u32) -> Option<&Instruction> {
        self.ids.instruction(self.module, id)
    }

    /// The type of a value. Functions have a result type too, but are no values.
    pub fn type_of(&self, id: u32) -> Checked<u32> {
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

    pub fn instruction(&self, instruction: &Instruction) -> Checked {
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
            Op::VectorShuffle => self.shuffle(instruction),
            Op::FunctionParameter | Op::CooperativeMatrixLengthKHR | Op::ExtInstWithForwardRefsKHR => Ok(()),
            Op::Branch | Op::SelectionMerge | Op::LoopMerge | Op::Line => Ok(()),
            _ if section(instruction.op) == Some(9) && !is_global(instruction) && instruction.op != Op::Function => {
                ids.iter().try_for_each(|&id| self.type_of(id).map(|_| ()))
            }
            _ => Ok(()),
        }
    }

    fn shuffle(&self, instruction: &Instruction) -> Checked {
        let operands = self.module.operands(instruction);
        let (Some(&[a, b]), Some(components)) = (operands.get(..2), operands.get(2..)) else {
            return Err("operands are missing".into());
        };
        let (a, b) = (self.shape(self.type_of(a)?)?, self.shape(self.type_of(b)?)?);
        let result = self.shape(instruction.result_type.unwrap_or(0))?;
        // 0xffffffff stands for a component that nobody reads.
        let inside = |&component: &u32| component < a.count + b.count || component == u32::MAX;
        let same_scalar = [a, b].iter().all(|s| s.kind == result.kind && s.bits == result.bits && s.count > 1);
        if same_scalar && result.count as usize == components.len() && components.iter().all(inside) {
            Ok(())
        } else {
            Err("vectors and components do not fit".into())
        }
    }

    /// Two type ids that must agree; none stands for what is not known here.
    pub fn same(&self, wanted: Option<u32>, found: Option<u32>) -> Checked {
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
        if is_non_semantic(self.module, set) {
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
}
