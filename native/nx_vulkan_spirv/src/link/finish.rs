//! What completes a module once its slots are filled: what it needs of a device, the memory model, float modes, the
//! length of its push constants.

use nx_vulkan_ir::Result;
use rspirv::binary::Assemble;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{AddressingModel, Capability, ExecutionMode, FPEncoding, MemoryModel, Op, Word};

use super::Linker;
use crate::params::ParamLayout;

/// What a module needs of a device.
struct Needs {
    capabilities: Vec<Capability>,
    extensions: Vec<&'static str>,
}

impl Needs {
    /// What addresses and these types need; floats of 16 bits may be bf16, which has other needs.
    fn of(types: &[Instruction], bfloat16: bool) -> Needs {
        let mut capabilities = vec![Capability::PhysicalStorageBufferAddresses];
        let mut extensions = vec!["SPV_KHR_physical_storage_buffer"];
        for inst in types {
            let bits = match inst.operands.first() {
                Some(Operand::LiteralBit32(bits)) => *bits,
                _ => continue,
            };
            match (inst.class.opcode, bits) {
                (Op::TypeInt, 8) => {
                    // Int8 and Int16 only because spirv-val wants them for a pointer made from an address.
                    capabilities.extend([Capability::StorageBuffer8BitAccess, Capability::Int8]);
                    extensions.push("SPV_KHR_8bit_storage");
                }
                (Op::TypeInt, 16) => capabilities.extend([Capability::StorageBuffer16BitAccess, Capability::Int16]),
                (Op::TypeInt, 64) => capabilities.push(Capability::Int64),
                (Op::TypeFloat, 16) if !bfloat16 => capabilities.push(Capability::Float16),
                (Op::TypeFloat, 64) => capabilities.push(Capability::Float64),
                _ => {}
            }
        }
        Needs { capabilities, extensions }
    }
}

impl Linker<'_> {
    /// Completes capabilities, extensions, the memory model and float modes, and assembles.
    pub fn finish(mut self) -> Result<Vec<u32>> {
        if self.table && self.has_slot("nx_param") {
            self.define("nx_param", |code, args| {
                let index = *args.first().ok_or_else(|| code.linker.bad("nx_param without index"))?;
                Ok(Some(code.table_word(index)))
            })?;
        }
        self.widen_push_constants()?;
        let mut needs = Needs::of(&self.module.types_global_values, self.bfloat16);
        self.preserve_floats(&mut needs)?;
        if self.bfloat16 {
            self.make_halves_bfloat16(&mut needs);
        }
        self.declare(needs);
        let model = self.module.memory_model.as_ref().and_then(|inst| inst.operands.get(1).cloned());
        let model = model.unwrap_or(Operand::MemoryModel(MemoryModel::GLSL450));
        let addressing = Operand::AddressingModel(AddressingModel::PhysicalStorageBuffer64);
        self.module.memory_model = Some(Instruction::new(Op::MemoryModel, None, None, vec![addressing, model]));
        self.module.debug_string_source.clear();
        self.module.debug_module_processed.clear();
        self.module.debug_names.clear();
        if let Some(header) = &mut self.module.header {
            header.bound = self.next_id;
        }
        Ok(self.module.assemble())
    }

    /// Keeps signed zeros, infinities and NaN of the floats for which the modes allow it, and of no others.
    fn preserve_floats(&mut self, needs: &mut Needs) -> Result<()> {
        self.module.execution_modes.retain(|inst| {
            !matches!(inst.operands.get(1), Some(Operand::ExecutionMode(ExecutionMode::SignedZeroInfNanPreserve)))
        });
        self.module
            .capabilities
            .retain(|inst| inst.operands.first() != Some(&Operand::Capability(Capability::SignedZeroInfNanPreserve)));
        let entry = self
            .module
            .entry_points
            .first()
            .and_then(|e| e.operands.get(1).cloned())
            .ok_or_else(|| self.bad("no entry point"))?;
        for (bits, allowed) in [(32, self.modes.preserve_f32), (64, self.modes.preserve_f64)] {
            let is_such = |inst: &Instruction| {
                inst.class.opcode == Op::TypeFloat && inst.operands.first() == Some(&Operand::LiteralBit32(bits))
            };
            if allowed && self.module.types_global_values.iter().any(is_such) {
                needs.capabilities.push(Capability::SignedZeroInfNanPreserve);
                needs.extensions.push("SPV_KHR_float_controls");
                self.module.execution_modes.push(Instruction::new(
                    Op::ExecutionMode,
                    None,
                    None,
                    vec![
                        entry.clone(),
                        Operand::ExecutionMode(ExecutionMode::SignedZeroInfNanPreserve),
                        Operand::LiteralBit32(bits),
                    ],
                ));
            }
        }
        Ok(())
    }

    /// Makes the template's floats of 16 bits bf16.
    fn make_halves_bfloat16(&mut self, needs: &mut Needs) {
        let half = vec![Operand::LiteralBit32(16)];
        let is_half = |inst: &&mut Instruction| inst.class.opcode == Op::TypeFloat && inst.operands == half;
        for inst in self.module.types_global_values.iter_mut().filter(is_half) {
            inst.operands.push(Operand::FPEncoding(FPEncoding::BFloat16KHR));
        }
        self.module.capabilities.retain(|c| c.operands.first() != Some(&Operand::Capability(Capability::Float16)));
        needs.capabilities.extend([Capability::BFloat16TypeKHR, Capability::BFloat16CooperativeMatrixKHR]);
        needs.extensions.push("SPV_KHR_bfloat16");
    }

    /// Declares what the template does not.
    fn declare(&mut self, needs: Needs) {
        for capability in needs.capabilities {
            let inst = Instruction::new(Op::Capability, None, None, vec![Operand::Capability(capability)]);
            if !self.module.capabilities.contains(&inst) {
                self.module.capabilities.push(inst);
            }
        }
        for extension in needs.extensions {
            let inst = Instruction::new(Op::Extension, None, None, vec![Operand::LiteralString(extension.to_string())]);
            if !self.module.extensions.contains(&inst) {
                self.module.extensions.push(inst);
            }
        }
    }

    /// Makes the template's array of push constants as long as those kernels have that need more words than it
    /// declares.
    fn widen_push_constants(&mut self) -> Result<()> {
        if self.push_words as usize <= ParamLayout::PUSH_WORDS {
            return Ok(());
        }
        let types = &mut self.module.types_global_values;
        let made = |id: Option<Word>| types.iter().position(|inst| id.is_some() && inst.result_id == id);
        let named = |at: Option<usize>, k: usize| match types.get(at?)?.operands.get(k)? {
            Operand::IdRef(id) => Some(*id),
            _ => None,
        };
        // The variable's type is a pointer to a structure of the array.
        let pointer = made(self.push_variable).and_then(|at| types.get(at)?.result_type);
        let block = named(made(pointer), 1);
        let array = made(named(made(block), 0));
        let uint = named(array, 0);
        let (Some(at), Some(uint)) = (array, uint) else { return Err(self.bad("push constants are no array")) };
        let length = self.next_id;
        self.next_id += 1;
        let words = vec![Operand::LiteralBit32(ParamLayout::WIDE_PUSH_WORDS as u32)];
        if let Some(operand) = types.get_mut(at).and_then(|inst| inst.operands.get_mut(1)) {
            *operand = Operand::IdRef(length);
        }
        types.insert(at, Instruction::new(Op::Constant, Some(uint), Some(length), words));
        Ok(())
    }
}
