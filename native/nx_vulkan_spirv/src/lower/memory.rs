//! Loads and stores of what has no type of its own any more.

use nx_vulkan_ir::Result;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{MemoryAccess, Op, Scope, StorageClass, Word};

use super::types::{Scalar, Type, id_at, is_explicit, mask};
use super::{Lowering, bad};

/// Where something lies in memory that is seen as words.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordPointer {
    base: Base,
    /// What lies there, as an old type.
    pointee: Word,
}

#[derive(Debug, Clone, Copy)]
enum Base {
    /// At an address, which is a pair.
    Address(Word),
    /// So many bytes into a storage buffer.
    Buffer { variable: Word, bytes: Word },
}

impl Lowering<'_> {
    pub(super) fn access_chain(&mut self, inst: &Instruction) -> Result<()> {
        let base = id_at(inst, 0)?;
        let pointer = self.value_types.get(&base).and_then(|ty| self.types.get(ty)).cloned();
        let Some(Type::Pointer(class, pointee)) = pointer else { return Err(bad("a chain from no pointer")) };
        let mut indices = Vec::new();
        for k in 1..inst.operands.len() {
            indices.push(id_at(inst, k)?);
        }
        if is_explicit(class) && self.has_narrow(pointee) {
            return self.place(inst, class, base, pointee, &indices);
        }
        let mut new = self.renamed(inst);
        for (k, &index) in (1..).zip(&indices) {
            if let Some(&Type::Scalar(scalar)) = self.value_types.get(&index).and_then(|ty| self.types.get(ty))
                && self.lacks.has(scalar)
            {
                new.operands[k] = Operand::IdRef(self.index_word(index)?);
            }
        }
        self.out.push(new);
        Ok(())
    }

    /// An index as a word.
    fn index_word(&mut self, index: Word) -> Result<Word> {
        let ty = self.value_types.get(&index).and_then(|ty| self.types.get(ty)).cloned();
        let Some(Type::Scalar(scalar @ Scalar::Int { signed, .. })) = ty else {
            return Err(bad("an index of no integer"));
        };
        let value = self.id(index);
        Ok(match scalar.bits() {
            64 => self.low_word(value, scalar),
            _ => self.extended(value, scalar, signed),
        })
    }

    /// Notes where a chain leads in memory that is seen as words.
    fn place(
        &mut self,
        inst: &Instruction,
        class: StorageClass,
        base: Word,
        pointee: Word,
        indices: &[Word],
    ) -> Result<()> {
        let uint = self.uint();
        let (mut known, mut bytes, mut at) = (0, None, pointee);
        for &index in indices {
            let (stride, next) = match self.types.get(&at).cloned() {
                Some(Type::Struct(members)) => {
                    let member = self.numbers.get(&index).copied().ok_or_else(|| bad("a member without a number"))?;
                    known += self.offsets.get(&(at, member)).copied().unwrap_or(0);
                    at = *members.get(member as usize).ok_or_else(|| bad("no such member"))?;
                    continue;
                }
                Some(Type::Array(element, _)) => {
                    (self.strides.get(&at).copied().ok_or_else(|| bad("an array without a stride"))?, element)
                }
                Some(Type::Vector(scalar, _)) => (scalar.bits() / 8, self.component(scalar)?),
                _ => return Err(bad("an index into no composite")),
            };
            at = next;
            if let Some(number) = self.numbers.get(&index) {
                known += number * stride;
                continue;
            }
            let (index, stride) = (self.index_word(index)?, self.linker.const_u32(stride));
            let part = self.of_ids(Op::IMul, uint, &[index, stride]);
            bytes = Some(bytes.map_or(part, |bytes| self.of_ids(Op::IAdd, uint, &[bytes, part])));
        }
        let known_word = self.linker.const_u32(known);
        let bytes = match bytes {
            Some(bytes) if known == 0 => bytes,
            Some(bytes) => self.of_ids(Op::IAdd, uint, &[bytes, known_word]),
            None => known_word,
        };
        let base = match (self.places.get(&base).map(|place| place.base), class) {
            (Some(Base::Address(address)), _) => Base::Address(self.moved(address, bytes)),
            (Some(Base::Buffer { variable, bytes: before }), _) => {
                Base::Buffer { variable, bytes: self.of_ids(Op::IAdd, uint, &[before, bytes]) }
            }
            (None, StorageClass::PhysicalStorageBuffer) => {
                let (pair, base) = (self.pair(), self.id(base));
                let address = self.of_ids(Op::Bitcast, pair, &[base]);
                Base::Address(self.moved(address, bytes))
            }
            (None, StorageClass::StorageBuffer) => Base::Buffer { variable: self.id(base), bytes },
            _ => return Err(self.unsupported(inst.class.opcode)),
        };
        self.places.insert(inst.result_id.unwrap_or_default(), WordPointer { base, pointee: at });
        Ok(())
    }

    /// The old type of a vector's component.
    fn component(&self, scalar: Scalar) -> Result<Word> {
        let found = self.types.iter().find(|(_, ty)| **ty == Type::Scalar(scalar));
        found.map(|(id, _)| *id).ok_or_else(|| bad("a vector of an unknown type"))
    }

    /// An address so many bytes on.
    fn moved(&mut self, address: Word, bytes: Word) -> Word {
        let (uint, pair) = (self.uint(), self.pair());
        let sum_type = self.linker.global(Op::TypeStruct, None, vec![Operand::IdRef(uint), Operand::IdRef(uint)]);
        let (low, high) = (self.extract(uint, address, 0), self.extract(uint, address, 1));
        let sum = self.of_ids(Op::IAddCarry, sum_type, &[low, bytes]);
        let (low, carry) = (self.extract(uint, sum, 0), self.extract(uint, sum, 1));
        let high = self.of_ids(Op::IAdd, uint, &[high, carry]);
        self.of_ids(Op::CompositeConstruct, pair, &[low, high])
    }

    /// The low word of where something lies.
    fn low_of(&mut self, place: WordPointer) -> Word {
        match place.base {
            Base::Address(address) => {
                let uint = self.uint();
                self.extract(uint, address, 0)
            }
            Base::Buffer { bytes, .. } => bytes,
        }
    }

    /// A pointer to the word in which a place begins, or to one of the words after it, up to which the place is
    /// aligned.
    fn word_at(&mut self, place: WordPointer, words_on: u32) -> Word {
        let uint = self.uint();
        match place.base {
            Base::Address(address) => {
                let pair = self.pair();
                let pointer = self.linker.type_pointer(StorageClass::PhysicalStorageBuffer, uint);
                let (low, high) = (self.extract(uint, address, 0), self.extract(uint, address, 1));
                let whole = self.linker.const_u32(!3);
                let mut low = self.of_ids(Op::BitwiseAnd, uint, &[low, whole]);
                if words_on > 0 {
                    let bytes = self.linker.const_u32(4 * words_on);
                    low = self.of_ids(Op::BitwiseOr, uint, &[low, bytes]);
                }
                let address = self.of_ids(Op::CompositeConstruct, pair, &[low, high]);
                self.of_ids(Op::Bitcast, pointer, &[address])
            }
            Base::Buffer { variable, bytes } => {
                let pointer = self.linker.type_pointer(StorageClass::StorageBuffer, uint);
                let (zero, two) = (self.linker.const_u32(0), self.linker.const_u32(2));
                let mut index = self.of_ids(Op::ShiftRightLogical, uint, &[bytes, two]);
                if words_on > 0 {
                    let on = self.linker.const_u32(words_on);
                    index = self.of_ids(Op::IAdd, uint, &[index, on]);
                }
                self.of_ids(Op::AccessChain, pointer, &[variable, zero, index])
            }
        }
    }

    fn access_operands(place: WordPointer) -> Vec<Operand> {
        match place.base {
            Base::Address(_) => vec![Operand::MemoryAccess(MemoryAccess::ALIGNED), Operand::LiteralBit32(4)],
            Base::Buffer { .. } => vec![],
        }
    }

    fn load_word(&mut self, place: WordPointer, words_on: u32) -> Word {
        let (pointer, uint) = (self.word_at(place, words_on), self.uint());
        let mut operands = vec![Operand::IdRef(pointer)];
        operands.extend(Self::access_operands(place));
        self.op(Op::Load, uint, operands)
    }

    fn store_word(&mut self, place: WordPointer, words_on: u32, word: Word) {
        let pointer = self.word_at(place, words_on);
        let mut operands = vec![Operand::IdRef(pointer), Operand::IdRef(word)];
        operands.extend(Self::access_operands(place));
        self.out.push(Instruction::new(Op::Store, None, None, operands));
    }

    /// By how much bits are shifted that lie in the word of a place.
    fn bits_before(&mut self, place: WordPointer) -> Word {
        let (uint, low) = (self.uint(), self.low_of(place));
        let (three, eight) = (self.linker.const_u32(3), self.linker.const_u32(8));
        let bytes = self.of_ids(Op::BitwiseAnd, uint, &[low, three]);
        self.of_ids(Op::IMul, uint, &[bytes, eight])
    }

    /// What lies at a place: the scalar, how many there are, and whether they are whole words together.
    fn shape(&self, place: WordPointer, alignment: u32, opcode: Op) -> Result<(Scalar, Option<u32>, bool)> {
        let (scalar, length) = match self.types.get(&place.pointee) {
            Some(&Type::Scalar(scalar)) => (scalar, None),
            Some(&Type::Vector(scalar, length)) => (scalar, Some(length)),
            _ => return Err(self.unsupported(opcode)),
        };
        let bytes = scalar.bits() / 8 * length.unwrap_or(1);
        // Words on from the first are reached without a carry.
        let whole = bytes.is_multiple_of(4) && alignment >= bytes;
        if !whole && scalar.bits() >= 32 {
            return Err(self.unsupported(opcode));
        }
        Ok((scalar, length, whole))
    }

    /// The part of a vector at a place.
    fn part(&mut self, place: WordPointer, scalar: Scalar, k: u32) -> WordPointer {
        if k == 0 {
            return place;
        }
        let (uint, bytes) = (self.uint(), self.linker.const_u32(scalar.bits() / 8 * k));
        let base = match place.base {
            Base::Address(address) => Base::Address(self.moved(address, bytes)),
            Base::Buffer { variable, bytes: before } => {
                Base::Buffer { variable, bytes: self.of_ids(Op::IAdd, uint, &[before, bytes]) }
            }
        };
        WordPointer { base, pointee: place.pointee }
    }

    pub(super) fn load(&mut self, inst: &Instruction) -> Result<()> {
        let pointer = id_at(inst, 0)?;
        let ty = inst.result_type.ok_or_else(|| bad("a load of nothing"))?;
        let Some(&place) = self.places.get(&pointer) else { return self.load_whole(inst, pointer, ty) };
        let uint = self.uint();
        let (scalar, length, whole) = self.shape(place, alignment(inst, 1, place, self), inst.class.opcode)?;
        let bits = scalar.bits();
        let mut parts = Vec::new();
        if whole {
            let count = bits * length.unwrap_or(1) / 32;
            let words: Vec<Word> = (0..count).map(|k| self.load_word(place, k)).collect();
            let value = self.of_bits(&words, ty)?;
            self.define(inst, value);
            return Ok(());
        }
        for k in 0..length.unwrap_or(1) {
            let part = self.part(place, scalar, k);
            let (word, before) = (self.load_word(part, 0), self.bits_before(part));
            let low = self.of_ids(Op::ShiftRightLogical, uint, &[word, before]);
            parts.push(self.masked(low, scalar));
        }
        let value = match (length, parts.as_slice()) {
            (None, &[part]) => part,
            _ => {
                let new = self.id(ty);
                self.of_ids(Op::CompositeConstruct, new, &parts)
            }
        };
        self.define(inst, value);
        Ok(())
    }

    pub(super) fn store(&mut self, inst: &Instruction) -> Result<()> {
        let (pointer, object) = (id_at(inst, 0)?, id_at(inst, 1)?);
        let Some(&place) = self.places.get(&pointer) else { return self.store_whole(inst, pointer, object) };
        let (scalar, length, whole) = self.shape(place, alignment(inst, 2, place, self), inst.class.opcode)?;
        let object = self.id(object);
        if whole {
            let words = self.bits_of(object, place.pointee)?;
            for (k, word) in (0..).zip(words) {
                self.store_word(place, k, word);
            }
            return Ok(());
        }
        let uint = self.uint();
        for k in 0..length.unwrap_or(1) {
            let part = self.part(place, scalar, k);
            let value = if length.is_some() { self.extract(uint, object, k) } else { object };
            self.store_part(part, scalar, value);
        }
        Ok(())
    }

    /// Stores bits of a word of which others may store the rest at the same time.
    fn store_part(&mut self, place: WordPointer, scalar: Scalar, value: Word) {
        let (uint, before, pointer) = (self.uint(), self.bits_before(place), self.word_at(place, 0));
        let ones = self.linker.const_u32(mask(scalar.bits()));
        let own = self.of_ids(Op::ShiftLeftLogical, uint, &[ones, before]);
        let others = self.of_ids(Op::Not, uint, &[own]);
        let bits = self.of_ids(Op::ShiftLeftLogical, uint, &[value, before]);
        let (scope, relaxed) = (self.linker.const_u32(Scope::Device as u32), self.linker.const_u32(0));
        self.of_ids(Op::AtomicAnd, uint, &[pointer, scope, relaxed, others]);
        self.of_ids(Op::AtomicOr, uint, &[pointer, scope, relaxed, bits]);
    }

    /// Whether vectors of pairs lie where a pointer points, with a layout.
    fn pairs_at(&self, pointer: Word, opcode: Op) -> Result<Option<u32>> {
        let ty = self.value_types.get(&pointer).and_then(|ty| self.types.get(ty));
        let Some(&Type::Pointer(class, pointee)) = ty else { return Err(bad("access by no pointer")) };
        if !is_explicit(class) || !self.has_wide_vector(pointee) {
            return Ok(None);
        }
        match self.types.get(&pointee) {
            Some(&Type::Vector(_, length)) => Ok(Some(length)),
            _ => Err(self.unsupported(opcode)),
        }
    }

    /// The place of a vector's pair, and how it is accessed.
    fn pair_at(&mut self, inst: &Instruction, pointer: Word, k: u32, first: usize) -> Result<Vec<Operand>> {
        let ty = self.value_types.get(&pointer).and_then(|ty| self.types.get(ty)).cloned();
        let Some(Type::Pointer(class, _)) = ty else { return Err(bad("access by no pointer")) };
        let pair = self.pair();
        let to_pair = self.linker.type_pointer(class, pair);
        let (k, base) = (self.linker.const_u32(k), self.id(pointer));
        let mut operands = vec![Operand::IdRef(self.of_ids(Op::AccessChain, to_pair, &[base, k]))];
        let mut access = inst.operands.get(first..).unwrap_or_default().to_vec();
        if let Some(Operand::LiteralBit32(alignment)) = access.get_mut(1) {
            *alignment = (*alignment).min(8);
        }
        operands.extend(access);
        Ok(operands)
    }

    fn load_whole(&mut self, inst: &Instruction, pointer: Word, ty: Word) -> Result<()> {
        let Some(length) = self.pairs_at(pointer, inst.class.opcode)? else {
            self.keep(inst);
            return Ok(());
        };
        let pair = self.pair();
        let mut parts = Vec::new();
        for k in 0..length {
            let operands = self.pair_at(inst, pointer, k, 1)?;
            parts.push(self.op(Op::Load, pair, operands));
        }
        let new = self.id(ty);
        let value = self.of_ids(Op::CompositeConstruct, new, &parts);
        self.define(inst, value);
        Ok(())
    }

    fn store_whole(&mut self, inst: &Instruction, pointer: Word, object: Word) -> Result<()> {
        let Some(length) = self.pairs_at(pointer, inst.class.opcode)? else {
            self.keep(inst);
            return Ok(());
        };
        let (pair, object) = (self.pair(), self.id(object));
        for k in 0..length {
            let part = self.extract(pair, object, k);
            let mut operands = self.pair_at(inst, pointer, k, 2)?;
            operands.insert(1, Operand::IdRef(part));
            self.out.push(Instruction::new(Op::Store, None, None, operands));
        }
        Ok(())
    }
}

/// The alignment that an access states, whose operands begin with `first`; in a buffer it is that of what lies there.
fn alignment(inst: &Instruction, first: usize, place: WordPointer, lowering: &Lowering<'_>) -> u32 {
    match (inst.operands.get(first), inst.operands.get(first + 1)) {
        (Some(Operand::MemoryAccess(access)), Some(Operand::LiteralBit32(alignment)))
            if access.contains(MemoryAccess::ALIGNED) =>
        {
            *alignment
        }
        _ => match lowering.types.get(&place.pointee) {
            Some(&Type::Scalar(scalar)) => scalar.bits() / 8,
            Some(&Type::Vector(scalar, length)) => scalar.bits() / 8 * length.next_power_of_two(),
            _ => 1,
        },
    }
}
