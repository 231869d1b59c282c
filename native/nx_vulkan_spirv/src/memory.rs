//! How code reads parameters, and memory by addresses.

use nx_vulkan_ir::Result;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{MemoryAccess, MemoryModel, Op, Scope, StorageClass, Word};

use super::link::Code;

impl Code<'_, '_> {
    fn push_word(&mut self, index: u32) -> Result<Word> {
        let variable =
            self.linker.push_variable.ok_or_else(|| self.linker.bad("the template has no push constants"))?;
        self.linker.push_words = self.linker.push_words.max(index + 1);
        let uint = self.linker.type_uint(32);
        let pointer = self.linker.type_pointer(StorageClass::PushConstant, uint);
        let (zero, k) = (self.linker.const_u32(0), self.linker.const_u32(index));
        let chain = self.ids(Op::AccessChain, pointer, &[variable, zero, k]);
        Ok(self.ids(Op::Load, uint, &[chain]))
    }

    /// A word of the table of parameters.
    pub(crate) fn table_word(&mut self, index: Word) -> Word {
        // The template's push block always starts with the table's address.
        let (Ok(low), Ok(high)) = (self.push_word(0), self.push_word(1)) else { return index };
        let (uint, zero) = (self.linker.type_uint(32), self.linker.const_u32(0));
        let block = self.linker.unwritten_block(uint, 4);
        let two = self.linker.type_vector(uint, 2);
        let block_pointer = self.linker.type_pointer(StorageClass::PhysicalStorageBuffer, block);
        let pointer = self.linker.type_pointer(StorageClass::PhysicalStorageBuffer, uint);
        let address = self.ids(Op::CompositeConstruct, two, &[low, high]);
        let base = self.bitcast(block_pointer, address);
        let word = self.ids(Op::AccessChain, pointer, &[base, zero, index]);
        self.aligned(uint, word, 4)
    }

    /// Word `index` of the kernel's parameters.
    pub fn param(&mut self, index: u32) -> Result<Word> {
        if let Some(&id) = self.params.get(&index) {
            return Ok(id);
        }
        let id = if self.linker.table {
            self.push_word(0)?;
            let index = self.linker.const_u32(index);
            self.table_word(index)
        } else {
            self.push_word(index)?
        };
        self.params.insert(index, id);
        Ok(id)
    }

    fn pointer_at(&mut self, low: Word, high: Word, element: Word, stride: u32, index: Word) -> Word {
        let zero = self.linker.const_u32(0);
        let (low, high, index) = match self.linker.modes.far && index != zero {
            true => {
                let address = self.address_of(Address { low, high }, stride, index);
                (address.low, address.high, zero)
            }
            false => (low, high, index),
        };
        let uint = self.linker.type_uint(32);
        let uvec2 = self.linker.type_vector(uint, 2);
        let unwritten = self.linker.unwritten;
        let block = match unwritten {
            true => self.linker.unwritten_block(element, stride),
            false => self.linker.array_block(element, stride),
        };
        let block_pointer = self.linker.type_pointer(StorageClass::PhysicalStorageBuffer, block);
        let pointer = self.linker.type_pointer(StorageClass::PhysicalStorageBuffer, element);
        let base = match self.bases.get(&(low, element, unwritten)) {
            Some(&base) => base,
            None => {
                let address = self.ids(Op::CompositeConstruct, uvec2, &[low, high]);
                let base = self.bitcast(block_pointer, address);
                self.bases.insert((low, element, unwritten), base);
                base
            }
        };
        self.ids(Op::AccessChain, pointer, &[base, zero, index])
    }

    fn load_at(&mut self, low: Word, high: Word, element: Word, stride: u32, index: Word, align: u32) -> Word {
        let pointer = self.pointer_at(low, high, element, stride, index);
        self.aligned(element, pointer, align)
    }

    fn aligned(&mut self, element: Word, pointer: Word, align: u32) -> Word {
        let align = [Operand::MemoryAccess(MemoryAccess::ALIGNED), Operand::LiteralBit32(align)];
        self.op(Op::Load, element, std::iter::once(Operand::IdRef(pointer)).chain(align).collect())
    }

    /// The address in parameter words `address` and `address + 1`.
    pub fn address(&mut self, address: u32) -> Result<Address> {
        Ok(Address { low: self.param(address)?, high: self.param(address + 1)? })
    }

    /// The address of element `index` of the array at an address. Those of its neighbours are this one and a number
    /// that compilers know, which memory instructions add.
    pub fn address_of(&mut self, array: Address, stride: u32, index: Word) -> Address {
        let (uint, stride) = (self.linker.type_uint(32), self.linker.const_u32(stride));
        let two = self.linker.global(Op::TypeStruct, None, vec![Operand::IdRef(uint), Operand::IdRef(uint)]);
        let (bytes, array_high) = match self.linker.modes.far {
            true => {
                let product = self.ids(Op::UMulExtended, two, &[index, stride]);
                let (low, high) = (self.extract(uint, product, 0), self.extract(uint, product, 1));
                (low, self.u32_op(Op::IAdd, array.high, high))
            }
            false => (self.u32_op(Op::IMul, index, stride), array.high),
        };
        let sum = self.ids(Op::IAddCarry, two, &[array.low, bytes]);
        let (low, carry) = (self.extract(uint, sum, 0), self.extract(uint, sum, 1));
        Address { low, high: self.u32_op(Op::IAdd, array_high, carry) }
    }

    /// Loads element `index` of the array at an address.
    pub fn load(&mut self, array: Address, element: Word, stride: u32, index: Word) -> Word {
        self.load_at(array.low, array.high, element, stride, index, stride)
    }

    /// Stores `value` as element `index` of the array at an address.
    pub fn store(&mut self, array: Address, element: Word, stride: u32, index: Word, value: Word) {
        let pointer = self.pointer_at(array.low, array.high, element, stride, index);
        self.instructions.push(Instruction::new(
            Op::Store,
            None,
            None,
            vec![
                Operand::IdRef(pointer),
                Operand::IdRef(value),
                Operand::MemoryAccess(MemoryAccess::ALIGNED),
                Operand::LiteralBit32(stride),
            ],
        ));
    }

    /// Raises the word whose address is in parameter words `address`, `address + 1` to another one if that is larger,
    /// whoever else does at the same time.
    pub fn atomic_max(&mut self, address: u32, word: Word) -> Result<()> {
        let zero = self.linker.const_u32(0);
        self.atomic(Op::AtomicUMax, address, zero, word)
    }

    /// Changes word `index` behind the address in parameter words `address`, `address + 1` by an atomic operation of
    /// integers, whoever else does at the same time: the order of such changes must not matter.
    pub fn atomic(&mut self, op: Op, address: u32, index: Word, word: Word) -> Result<()> {
        let (low, high) = (self.param(address)?, self.param(address + 1)?);
        let (uint, zero) = (self.linker.type_uint(32), self.linker.const_u32(0));
        let pointer = self.pointer_at(low, high, uint, 4, index);
        // The Vulkan memory model knows the device as a scope where a feature is on alone, and the other one knows no
        // families of queues.
        let model = self.linker.module.memory_model.as_ref().and_then(|inst| inst.operands.get(1));
        let is_vulkan = model == Some(&Operand::MemoryModel(MemoryModel::Vulkan));
        let scope = if is_vulkan { Scope::QueueFamily } else { Scope::Device };
        let (scope, relaxed) = (self.linker.const_u32(scope as u32), zero);
        self.ids(op, uint, &[pointer, scope, relaxed, word]);
        Ok(())
    }
}

/// Halves of an address in a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    low: Word,
    high: Word,
}
