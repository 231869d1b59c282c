//! Float semantics that GLSL can't state: no contraction anywhere, and signed zeros, infinities and NaN kept.
//!
//! glslang puts `NoContraction` neither on `fma` nor inside functions that a `precise` expression calls, and keeps only
//! the last of several `spirv_execution_mode` lines, so both are set here for every module.

use std::collections::{BTreeSet, HashMap, HashSet};

use rspirv::binary::Assemble;
use rspirv::dr::{self, Instruction, Operand};
use rspirv::spirv::{Capability, Decoration, ExecutionMode, GlslStd450Op, Op};

/// SPIR-V 1.4, where the float controls became core.
const FLOAT_CONTROLS_IN_CORE: u32 = 0x0001_0400;

/// Makes every float operation of a module exact in the sense above and returns the module's words.
pub fn preserve(words: &[u8]) -> Result<Vec<u8>, String> {
    let mut module = dr::load_bytes(words).map_err(|e| e.to_string())?;
    forbid_contraction(&mut module);
    preserve_special_values(&mut module);
    Ok(module.assemble().into_iter().flat_map(u32::to_le_bytes).collect())
}

fn forbid_contraction(module: &mut dr::Module) {
    let decorated: HashSet<u32> = module
        .annotations
        .iter()
        .filter(|i| i.operands.get(1) == Some(&Operand::Decoration(Decoration::NoContraction)))
        .filter_map(|i| i.operands.first().and_then(Operand::id_ref_any))
        .collect();
    let glsl: HashSet<u32> = module
        .ext_inst_imports
        .iter()
        .filter(|i| i.operands.first() == Some(&Operand::LiteralString("GLSL.std.450".into())))
        .filter_map(|i| i.result_id)
        .collect();
    let results: Vec<u32> = module
        .all_inst_iter()
        .filter(|i| is_float_arithmetic(i, &glsl))
        .filter_map(|i| i.result_id)
        .filter(|id| !decorated.contains(id))
        .collect();
    for id in results {
        module.annotations.push(Instruction::new(
            Op::Decorate,
            None,
            None,
            vec![Operand::IdRef(id), Operand::Decoration(Decoration::NoContraction)],
        ));
    }
}

fn is_float_arithmetic(instruction: &Instruction, glsl: &HashSet<u32>) -> bool {
    match instruction.class.opcode {
        Op::FAdd
        | Op::FSub
        | Op::FMul
        | Op::FDiv
        | Op::FRem
        | Op::FMod
        | Op::FNegate
        | Op::Dot
        | Op::VectorTimesScalar
        | Op::MatrixTimesScalar
        | Op::VectorTimesMatrix
        | Op::MatrixTimesVector
        | Op::MatrixTimesMatrix
        | Op::OuterProduct => true,
        Op::ExtInst => {
            let set = instruction.operands.first().and_then(Operand::id_ref_any);
            let is_fma = instruction.operands.get(1) == Some(&Operand::LiteralExtInstInteger(GlslStd450Op::Fma as u32));
            is_fma && set.is_some_and(|set| glsl.contains(&set))
        }
        _ => false,
    }
}

fn preserve_special_values(module: &mut dr::Module) {
    let entries: Vec<u32> =
        module.entry_points.iter().filter_map(|i| i.operands.get(1).and_then(Operand::id_ref_any)).collect();
    let widths: BTreeSet<u32> = module
        .types_global_values
        .iter()
        .filter(|i| i.class.opcode == Op::TypeFloat)
        .filter_map(|i| match i.operands.first() {
            Some(Operand::LiteralBit32(width @ (16 | 32 | 64))) => Some(*width),
            _ => None,
        })
        .collect();
    if entries.is_empty() || widths.is_empty() {
        return;
    }
    let mode = ExecutionMode::SignedZeroInfNanPreserve;
    let mut present: HashMap<u32, HashSet<u32>> = HashMap::new();
    for instruction in &module.execution_modes {
        if let [Operand::IdRef(entry), Operand::ExecutionMode(m), Operand::LiteralBit32(width)] =
            instruction.operands.as_slice()
            && *m == mode
        {
            present.entry(*entry).or_default().insert(*width);
        }
    }
    for entry in entries {
        let present = present.remove(&entry).unwrap_or_default();
        for &width in widths.difference(&present.into_iter().collect()) {
            module.execution_modes.push(Instruction::new(
                Op::ExecutionMode,
                None,
                None,
                vec![Operand::IdRef(entry), Operand::ExecutionMode(mode), Operand::LiteralBit32(width)],
            ));
        }
    }
    let capability = Operand::Capability(Capability::SignedZeroInfNanPreserve);
    add_once(&mut module.capabilities, Op::Capability, capability);
    let version = module.header.as_ref().map_or(0, |header| header.version);
    if version < FLOAT_CONTROLS_IN_CORE {
        let extension = Operand::LiteralString("SPV_KHR_float_controls".into());
        add_once(&mut module.extensions, Op::Extension, extension);
    }
}

fn add_once(section: &mut Vec<Instruction>, op: Op, operand: Operand) {
    if !section.iter().any(|i| i.operands.first() == Some(&operand)) {
        section.push(Instruction::new(op, None, None, vec![operand]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rspirv::spirv::{AddressingModel, ExecutionModel, FunctionControl, MemoryModel};

    /// A module with one fadd, one fma, one integer add; with an entry point or none.
    fn module(version: (u8, u8), with_entry: bool) -> Vec<u8> {
        let mut b = dr::Builder::new();
        b.set_version(version.0, version.1);
        b.capability(Capability::Shader);
        let glsl = b.ext_inst_import("GLSL.std.450");
        b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
        let void = b.type_void();
        let float = b.type_float(32, None);
        let uint = b.type_int(32, 0);
        let signature = b.type_function(void, []);
        let one = b.constant_bit32(float, 1.0f32.to_bits());
        let two = b.constant_bit32(uint, 2);
        let main = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        let sum = b.f_add(float, None, one, one).unwrap();
        let fma = GlslStd450Op::Fma as u32;
        b.ext_inst(float, None, glsl, fma, [sum, one, one].map(Operand::IdRef)).unwrap();
        b.i_add(uint, None, two, two).unwrap();
        b.ret().unwrap();
        b.end_function().unwrap();
        if with_entry {
            b.entry_point(ExecutionModel::GLCompute, main, "main", []);
            b.execution_mode(main, ExecutionMode::LocalSize, [1, 1, 1]);
        }
        b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn count(module: &dr::Module, op: Op, operand: &Operand) -> usize {
        module.all_inst_iter().filter(|i| i.class.opcode == op && i.operands.contains(operand)).count()
    }

    #[test]
    fn float_operations_are_decorated_and_entry_points_preserve_special_values() {
        let once = preserve(&module((1, 5), true)).unwrap();
        let found = dr::load_bytes(&once).unwrap();
        let no_contraction = Operand::Decoration(Decoration::NoContraction);
        assert_eq!(count(&found, Op::Decorate, &no_contraction), 2);
        let mode = Operand::ExecutionMode(ExecutionMode::SignedZeroInfNanPreserve);
        assert_eq!(count(&found, Op::ExecutionMode, &mode), 1);
        let capability = Operand::Capability(Capability::SignedZeroInfNanPreserve);
        assert_eq!(count(&found, Op::Capability, &capability), 1);
        assert!(found.extensions.is_empty());
        assert_eq!(preserve(&once).unwrap(), once);
    }

    #[test]
    fn before_spirv_1_4_the_extension_is_named() {
        let found = dr::load_bytes(preserve(&module((1, 3), true)).unwrap()).unwrap();
        let extension = Operand::LiteralString("SPV_KHR_float_controls".into());
        assert_eq!(count(&found, Op::Extension, &extension), 1);
    }

    #[test]
    fn libraries_have_no_entry_point_to_set_a_mode_on() {
        let found = dr::load_bytes(preserve(&module((1, 5), false)).unwrap()).unwrap();
        assert_eq!(found.capabilities.len(), 1);
        assert!(found.execution_modes.is_empty());
        let no_contraction = Operand::Decoration(Decoration::NoContraction);
        assert_eq!(count(&found, Op::Decorate, &no_contraction), 2);
    }
}
