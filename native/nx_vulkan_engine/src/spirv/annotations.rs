//! Do names, decorations and execution modes stand on what they may stand on.

use super::check::{Checked, Ids, located};
use super::parse::{Instruction, Module};
use super::types::{Type, Types};
use rspirv::spirv::{Decoration, Op};

pub fn check(module: &Module, types: &Types, ids: &Ids) -> Checked {
    let entry = module.instructions.iter().find(|i| i.op == Op::EntryPoint);
    let entry = entry.map(|entry| module.operand(entry, 1));
    for instruction in &module.instructions {
        let target = module.operand(instruction, 0);
        let fits = match instruction.op {
            Op::ExecutionMode | Op::ExecutionModeId => Some(target) == entry,
            Op::MemberName | Op::MemberDecorate | Op::MemberDecorateString => {
                has_member(types, target, module.operand(instruction, 1))
            }
            Op::Decorate => {
                let on = ids.instruction(module, target);
                on.is_some_and(|on| may_carry(types, on, module.operand(instruction, 1)))
            }
            _ => true,
        };
        if !fits {
            return Err(located(instruction, &format!("has no place on id {target}")));
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

/// Decorations that a driver follows into what they stand on; a decoration group may carry any.
fn may_carry(types: &Types, on: &Instruction, decoration: u32) -> bool {
    if on.op == Op::DecorationGroup {
        return true;
    }
    let declared = on.result.and_then(|id| types.get(id));
    let is_constant = on.name.contains("Constant");
    match Decoration::from_u32(decoration) {
        Some(Decoration::Block | Decoration::BufferBlock) => matches!(declared, Some(Type::Struct { .. })),
        Some(Decoration::ArrayStride) => {
            matches!(declared, Some(Type::Array { .. } | Type::RuntimeArray { .. } | Type::Pointer { .. }))
        }
        Some(Decoration::SpecId) => {
            matches!(on.op, Op::SpecConstant | Op::SpecConstantTrue | Op::SpecConstantFalse)
        }
        Some(Decoration::DescriptorSet | Decoration::Binding) => on.op == Op::Variable,
        Some(Decoration::BuiltIn) => on.op == Op::Variable || is_constant,
        Some(Decoration::NonWritable | Decoration::NonReadable) => {
            matches!(on.op, Op::Variable | Op::FunctionParameter)
        }
        Some(Decoration::Offset | Decoration::MatrixStride | Decoration::RowMajor | Decoration::ColMajor) => false,
        Some(Decoration::NoContraction | Decoration::RelaxedPrecision) => {
            on.result_type.is_some() || declared.is_some()
        }
        Some(Decoration::LinkageAttributes) => false,
        _ => true,
    }
}
