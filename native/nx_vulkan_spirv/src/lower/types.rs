//! Types, constants and global variables.

use nx_vulkan_ir::Result;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Decoration, Op, StorageClass, Word};

use super::{Lowering, bad};

/// A scalar type of the old module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int { bits: u32, signed: bool },
    Float(u32),
}

impl Scalar {
    pub fn bits(self) -> u32 {
        match self {
            Scalar::Bool => 1,
            Scalar::Int { bits, .. } | Scalar::Float(bits) => bits,
        }
    }
}

/// A type of the old module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Type {
    Scalar(Scalar),
    Vector(Scalar, u32),
    /// Of an element, and of so many where that is known.
    Array(Word, Option<Word>),
    Struct(Vec<Word>),
    Pointer(StorageClass, Word),
    Other,
}

/// Whether things of a storage class lie at offsets and strides that the module states.
pub(super) fn is_explicit(class: StorageClass) -> bool {
    matches!(
        class,
        StorageClass::PhysicalStorageBuffer
            | StorageClass::StorageBuffer
            | StorageClass::Uniform
            | StorageClass::PushConstant
    )
}

/// The id in operand `k`.
pub(super) fn id_at(inst: &Instruction, k: usize) -> Result<Word> {
    inst.operands
        .get(k)
        .and_then(Operand::id_ref_any)
        .ok_or_else(|| bad(format!("Op{:?} without operand {k}", inst.class.opcode)))
}

fn number_at(inst: &Instruction, k: usize) -> u32 {
    match inst.operands.get(k) {
        Some(Operand::LiteralBit32(number)) => *number,
        _ => 0,
    }
}

impl Lowering<'_> {
    /// Notes what the old module says of its types and values.
    pub(super) fn read_old(&mut self) {
        for annotation in &self.old.annotations {
            match annotation.operands[..] {
                [Operand::IdRef(id), Operand::Decoration(Decoration::ArrayStride), Operand::LiteralBit32(stride)] => {
                    self.strides.insert(id, stride);
                }
                [
                    Operand::IdRef(id),
                    Operand::LiteralBit32(member),
                    Operand::Decoration(Decoration::Offset),
                    Operand::LiteralBit32(offset),
                ] => {
                    self.offsets.insert((id, member), offset);
                }
                _ => {}
            }
        }
        for inst in &self.old.types_global_values {
            let Some(id) = inst.result_id else { continue };
            if let Some(ty) = inst.result_type {
                self.value_types.insert(id, ty);
                if inst.class.opcode == Op::Constant
                    && let Some(Operand::LiteralBit32(number)) = inst.operands.first()
                {
                    self.numbers.insert(id, *number);
                }
                continue;
            }
            let of = |k| id_at(inst, k).unwrap_or_default();
            let scalar = |id| match self.types.get(&id) {
                Some(Type::Scalar(scalar)) => *scalar,
                _ => Scalar::Bool,
            };
            let ty = match inst.class.opcode {
                Op::TypeBool => Type::Scalar(Scalar::Bool),
                Op::TypeInt => Type::Scalar(Scalar::Int { bits: number_at(inst, 0), signed: number_at(inst, 1) != 0 }),
                Op::TypeFloat => Type::Scalar(Scalar::Float(number_at(inst, 0))),
                Op::TypeVector => Type::Vector(scalar(of(0)), number_at(inst, 1)),
                Op::TypeArray => Type::Array(of(0), Some(of(1))),
                Op::TypeRuntimeArray => Type::Array(of(0), None),
                Op::TypeStruct => Type::Struct(inst.operands.iter().filter_map(Operand::id_ref_any).collect()),
                Op::TypePointer => match inst.operands.first() {
                    Some(Operand::StorageClass(class)) => Type::Pointer(*class, of(1)),
                    _ => Type::Other,
                },
                _ => Type::Other,
            };
            self.types.insert(id, ty);
        }
        for inst in self.old.functions.iter().flat_map(|function| function.all_inst_iter()) {
            if let (Some(id), Some(ty)) = (inst.result_id, inst.result_type) {
                self.value_types.insert(id, ty);
            }
        }
    }

    /// Whether a type holds integers of 8 or 16 bits that are lowered.
    pub(super) fn has_narrow(&self, ty: Word) -> bool {
        self.holds(ty, &|scalar| scalar.bits() < 32 && self.lacks.has(scalar))
    }

    /// Whether a type holds vectors of pairs.
    pub(super) fn has_wide_vector(&self, ty: Word) -> bool {
        match self.types.get(&ty) {
            Some(&Type::Vector(scalar, _)) => scalar.bits() == 64 && self.lacks.has(scalar),
            Some(Type::Array(element, _)) => self.has_wide_vector(*element),
            Some(Type::Struct(members)) => members.iter().any(|member| self.has_wide_vector(*member)),
            _ => false,
        }
    }

    fn holds(&self, ty: Word, which: &dyn Fn(Scalar) -> bool) -> bool {
        match self.types.get(&ty) {
            Some(&Type::Scalar(scalar) | &Type::Vector(scalar, _)) => which(scalar),
            Some(Type::Array(element, _)) => self.holds(*element, which),
            Some(Type::Struct(members)) => members.iter().any(|member| self.holds(*member, which)),
            _ => false,
        }
    }

    /// Whether the module states where the parts of an array or a structure lie.
    pub(super) fn is_laid_out(&self, ty: Word) -> bool {
        self.strides.contains_key(&ty) || self.offsets.contains_key(&(ty, 0))
    }

    pub(super) fn uint(&mut self) -> Word {
        self.linker.type_uint(32)
    }

    /// The type of a number of 64 bits: its words, the low one first.
    pub(super) fn pair(&mut self) -> Word {
        let uint = self.uint();
        self.linker.type_vector(uint, 2)
    }

    /// The type of a vector of such numbers.
    pub(super) fn pairs(&mut self, length: u32, laid_out: bool) -> Word {
        if let Some(&array) = self.arrays.get(&(length, laid_out)) {
            return array;
        }
        let pair = self.pair();
        let array = self.linker.type_array(pair, length);
        if laid_out {
            self.linker.decorate(array, Decoration::ArrayStride, vec![Operand::LiteralBit32(8)]);
        }
        self.arrays.insert((length, laid_out), array);
        array
    }

    /// The new type of what lies in memory with a stated layout.
    fn in_memory(&mut self, ty: Word) -> Word {
        match self.types.get(&ty) {
            Some(&Type::Vector(scalar, length)) if scalar.bits() == 64 && self.lacks.has(scalar) => {
                self.pairs(length, true)
            }
            _ => self.id(ty),
        }
    }

    /// What memory is seen as whose words have several elements.
    pub(super) fn words(&mut self) -> Word {
        let uint = self.uint();
        self.linker.array_block(uint, 4)
    }

    /// Writes a type, a constant or a variable.
    pub(super) fn global(&mut self, inst: &Instruction) -> Result<()> {
        let (opcode, old) = (inst.class.opcode, inst.result_id.unwrap_or_default());
        let lowered = |lowering: &Self, ty: Option<Word>| {
            ty.and_then(|ty| match lowering.types.get(&ty) {
                Some(&Type::Scalar(scalar)) if lowering.lacks.has(scalar) => Some(scalar),
                _ => None,
            })
        };
        let new = match opcode {
            Op::TypeInt | Op::TypeFloat => match lowered(self, Some(old)) {
                Some(scalar) if scalar.bits() == 64 => self.pair(),
                Some(_) => self.uint(),
                None if inst.operands.first() == Some(&Operand::LiteralBit32(16)) && self.lacks.int16 => {
                    return Err(self.unsupported(opcode));
                }
                None => self.shared(inst),
            },
            Op::TypeVector => match self.types.get(&old) {
                Some(&Type::Vector(scalar, length)) if scalar.bits() == 64 && self.lacks.has(scalar) => {
                    self.pairs(length, false)
                }
                _ => self.shared(inst),
            },
            Op::TypeArray | Op::TypeRuntimeArray | Op::TypeStruct => {
                let laid_out = self.is_laid_out(old);
                if laid_out && self.has_narrow(old) {
                    // Such memory is seen as words.
                    return Ok(());
                }
                let mut new = self.renamed(inst);
                if laid_out {
                    let parts = if opcode == Op::TypeStruct { inst.operands.len() } else { 1 };
                    for k in 0..parts {
                        new.operands[k] = Operand::IdRef(self.in_memory(id_at(inst, k)?));
                    }
                }
                self.linker.module.types_global_values.push(new);
                return Ok(());
            }
            Op::TypePointer => self.pointer(inst, old)?,
            Op::Constant => match lowered(self, inst.result_type) {
                Some(scalar) => self.constant(scalar, inst),
                None => self.shared(inst),
            },
            Op::SpecConstant | Op::SpecConstantOp if lowered(self, inst.result_type).is_some() => {
                return Err(self.unsupported(opcode));
            }
            Op::TypeBool
            | Op::TypeVoid
            | Op::TypeFunction
            | Op::ConstantTrue
            | Op::ConstantFalse
            | Op::ConstantNull
            | Op::ConstantComposite
            | Op::Undef => self.shared(inst),
            _ => {
                let new = self.renamed(inst);
                self.linker.module.types_global_values.push(new);
                return Ok(());
            }
        };
        self.ids.insert(old, new);
        Ok(())
    }

    /// What is declared once, however many ask for it.
    fn shared(&mut self, inst: &Instruction) -> Word {
        let new = self.renamed(inst);
        self.linker.global(new.class.opcode, new.result_type, new.operands)
    }

    fn pointer(&mut self, inst: &Instruction, old: Word) -> Result<Word> {
        let Some(&Type::Pointer(class, pointee)) = self.types.get(&old) else {
            return Err(bad("a pointer to nothing"));
        };
        if !is_explicit(class) {
            return Ok(self.shared(inst));
        }
        let pointee = match self.has_narrow(pointee) {
            true if matches!(class, StorageClass::PhysicalStorageBuffer | StorageClass::StorageBuffer) => self.words(),
            true => return Err(self.unsupported(Op::TypePointer)),
            false => self.in_memory(pointee),
        };
        Ok(self.linker.type_pointer(class, pointee))
    }

    fn constant(&mut self, scalar: Scalar, inst: &Instruction) -> Word {
        match inst.operands.first() {
            Some(&Operand::LiteralBit64(bits)) => self.pair_constant(bits),
            Some(&Operand::LiteralBit32(bits)) => self.linker.const_u32(bits & mask(scalar.bits())),
            _ => self.linker.const_u32(0),
        }
    }

    pub(super) fn pair_constant(&mut self, bits: u64) -> Word {
        let pair = self.pair();
        let words = [bits as u32, (bits >> 32) as u32].map(|word| Operand::IdRef(self.linker.const_u32(word)));
        self.linker.global(Op::ConstantComposite, Some(pair), words.to_vec())
    }
}

/// The bits of a narrow integer in a word.
pub(super) fn mask(bits: u32) -> u32 {
    if bits >= 32 { u32::MAX } else { (1 << bits) - 1 }
}
