//! Names, decorations and execution modes: those that a compute shader may have, each on what it may stand on.

use std::collections::HashSet;

use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op, StorageClass};

use super::operands::require;
use super::parse::{Instruction, Module};
use super::parts::{Checked, Ids, located};
use super::types::{Type, Types};

pub fn check(module: &Module, types: &Types, ids: &Ids) -> Checked {
    let entry = module.instructions.iter().find(|i| i.op == Op::EntryPoint);
    let entry = entry.map(|entry| module.operand(entry, 1));
    let place = Context { module, types, ids };
    let mut seen = HashSet::new();
    for instruction in &module.instructions {
        let operand = |index| module.operand(instruction, index);
        let target = operand(0);
        let at = |reason: String| located(instruction, &reason);
        let subject = match instruction.op {
            Op::Decorate => Some((target, None, operand(1))),
            Op::MemberDecorate => Some((target, Some(operand(1)), operand(2))),
            _ => None,
        };
        if let Some(subject) = subject {
            require(seen.insert(subject), || format!("decorates id {target} with the same twice")).map_err(at)?;
        }
        match instruction.op {
            Op::ExecutionMode | Op::ExecutionModeId => {
                require(Some(target) == entry, || format!("has no place on id {target}")).map_err(at)?;
                execution_mode(instruction, module, types).map_err(at)?;
            }
            Op::MemberName => {
                let fits = has_member(types, target, operand(1));
                require(fits, || format!("has no place on id {target}")).map_err(at)?;
            }
            Op::MemberDecorate => {
                let fits = has_member(types, target, operand(1));
                require(fits, || format!("has no place on id {target}")).map_err(at)?;
                place.member(instruction).map_err(at)?;
            }
            Op::Decorate => place.decoration(instruction).map_err(at)?,
            Op::DecorateId
            | Op::DecorateString
            | Op::MemberDecorateString
            | Op::DecorationGroup
            | Op::GroupDecorate
            | Op::GroupMemberDecorate => return Err(at("is no decoration that a compute shader may have".into())),
            _ => {}
        }
    }
    Ok(())
}

fn has_member(types: &Types, id: u32, member: u32) -> bool {
    match types.get(id) {
        Some(Type::Struct { members }) => (member as usize) < members.len(),
        _ => false,
    }
}

fn execution_mode(instruction: &Instruction, module: &Module, types: &Types) -> Checked {
    let mode = ExecutionMode::from_u32(module.operand(instruction, 1));
    let width = module.operand(instruction, 2);
    match mode {
        Some(ExecutionMode::LocalSize) if instruction.op == Op::ExecutionMode => {
            let sizes = module.operands(instruction).get(2..).unwrap_or(&[]);
            require(!sizes.contains(&0), || format!("local size {sizes:?}"))
        }
        Some(ExecutionMode::LocalSizeId) if instruction.op == Op::ExecutionModeId => Ok(()),
        Some(
            float_mode @ (ExecutionMode::SignedZeroInfNanPreserve
            | ExecutionMode::DenormPreserve
            | ExecutionMode::DenormFlushToZero
            | ExecutionMode::RoundingModeRTE
            | ExecutionMode::RoundingModeRTZ),
        ) if instruction.op == Op::ExecutionMode => {
            // The capability of each has its name.
            let is_declared = types.has_capability(&format!("{float_mode:?}"));
            require(is_declared, || format!("{float_mode:?} without its capability"))?;
            require(matches!(width, 16 | 32 | 64), || format!("floats of {width} bits"))
        }
        _ => Err(format!("execution mode {mode:?} in a compute shader")),
    }
}

struct Context<'m> {
    module: &'m Module,
    types: &'m Types,
    ids: &'m Ids,
}

impl Context<'_> {
    fn decoration(&self, instruction: &Instruction) -> Checked {
        let target = self.module.operand(instruction, 0);
        let word = self.module.operand(instruction, 1);
        let value = self.module.operand(instruction, 2);
        let on = self.ids.instruction(self.module, target).ok_or_else(|| format!("id {target} is not defined"))?;
        let declared = on.result.and_then(|id| self.types.get(id));
        let class = on.result_type.and_then(|id| self.types.pointee(id)).map(|(class, _)| class);
        let is_variable = on.op == Op::Variable;
        let is_object = is_variable || on.op == Op::FunctionParameter;
        let is_buffer = matches!(class, Some(StorageClass::StorageBuffer | StorageClass::Uniform));
        let is_own = matches!(class, Some(StorageClass::Function | StorageClass::Private));
        let is_address = class == Some(StorageClass::PhysicalStorageBuffer);
        let decoration = Decoration::from_u32(word);
        let fits = match decoration {
            Some(Decoration::Block) => matches!(declared, Some(Type::Struct { .. })),
            Some(Decoration::BufferBlock) => {
                matches!(declared, Some(Type::Struct { .. })) && self.module.version <= 0x0001_0300
            }
            Some(Decoration::ArrayStride) => {
                let strided =
                    matches!(declared, Some(Type::Array { .. } | Type::RuntimeArray { .. } | Type::Pointer { .. }));
                strided && value > 0
            }
            Some(Decoration::SpecId) => {
                matches!(on.op, Op::SpecConstant | Op::SpecConstantTrue | Op::SpecConstantFalse)
            }
            Some(Decoration::DescriptorSet | Decoration::Binding) => is_variable && is_buffer,
            Some(Decoration::BuiltIn) => self.built_in(on, class, value),
            // Since SPIR-V 1.4 also tables of constants in a variable of its own are never written.
            Some(Decoration::NonWritable) if self.module.version >= 0x0001_0400 && is_own => is_variable,
            Some(Decoration::NonWritable | Decoration::NonReadable) => is_object && (is_buffer || is_address),
            Some(Decoration::Restrict | Decoration::Aliased | Decoration::Volatile | Decoration::Coherent) => {
                is_object && class.is_some()
            }
            Some(Decoration::RestrictPointer | Decoration::AliasedPointer) => is_object && class.is_some(),
            Some(Decoration::NoContraction) => on.result_type.is_some() && !on.name.contains("Constant") && !is_object,
            Some(Decoration::RelaxedPrecision) => on.result_type.is_some() && on.op != Op::Function,
            _ => false,
        };
        require(fits, || match decoration {
            Some(decoration) => format!("has no place on id {target}: {decoration:?} on Op{}", on.name),
            None => format!("has no place on id {target}: unknown decoration {word}"),
        })
    }

    fn member(&self, instruction: &Instruction) -> Checked {
        let id = self.module.operand(instruction, 0);
        let member = self.module.operand(instruction, 1) as usize;
        let type_id = match self.types.get(id) {
            Some(Type::Struct { members }) => members.get(member).copied(),
            _ => None,
        };
        let decoration = Decoration::from_u32(self.module.operand(instruction, 2));
        let fits = match decoration {
            Some(
                Decoration::Offset
                | Decoration::NonWritable
                | Decoration::NonReadable
                | Decoration::Coherent
                | Decoration::Volatile
                | Decoration::Restrict
                | Decoration::Aliased
                | Decoration::RelaxedPrecision,
            ) => true,
            Some(Decoration::MatrixStride | Decoration::RowMajor | Decoration::ColMajor) => {
                type_id.is_some_and(|id| self.is_matrix_or_array(id))
            }
            _ => false,
        };
        require(fits, || format!("has no place on member {member} of id {id}: {decoration:?}"))
    }

    fn is_matrix_or_array(&self, id: u32) -> bool {
        let mut current = id;
        loop {
            match self.types.get(current) {
                Some(Type::Matrix { .. }) => return true,
                Some(Type::Array { element, .. } | Type::RuntimeArray { element }) => current = *element,
                _ => return false,
            }
        }
    }

    /// An input variable of the built-in's type, or the constant that is the workgroup's size.
    fn built_in(&self, on: &Instruction, class: Option<StorageClass>, word: u32) -> bool {
        let word_type = |id: u32| self.types.get(id) == Some(&Type::Int { bits: 32, signed: false });
        let words = |id: u32, wanted: u32| match self.types.get(id) {
            Some(Type::Vector { component, count }) => *count == wanted && word_type(*component),
            _ => wanted == 1 && word_type(id),
        };
        let count = match BuiltIn::from_u32(word) {
            Some(BuiltIn::WorkgroupSize) => {
                let is_constant = matches!(on.op, Op::ConstantComposite | Op::SpecConstantComposite);
                return is_constant && on.result_type.is_some_and(|id| words(id, 3));
            }
            Some(
                BuiltIn::NumWorkgroups
                | BuiltIn::WorkgroupId
                | BuiltIn::LocalInvocationId
                | BuiltIn::GlobalInvocationId,
            ) => 3,
            Some(
                BuiltIn::LocalInvocationIndex
                | BuiltIn::SubgroupSize
                | BuiltIn::NumSubgroups
                | BuiltIn::SubgroupId
                | BuiltIn::SubgroupLocalInvocationId,
            ) => 1,
            Some(
                BuiltIn::SubgroupEqMask
                | BuiltIn::SubgroupGeMask
                | BuiltIn::SubgroupGtMask
                | BuiltIn::SubgroupLeMask
                | BuiltIn::SubgroupLtMask,
            ) => 4,
            _ => return false,
        };
        let pointee = on.result_type.and_then(|id| self.types.pointee(id)).map(|(_, pointee)| pointee);
        on.op == Op::Variable && class == Some(StorageClass::Input) && pointee.is_some_and(|id| words(id, count))
    }
}
