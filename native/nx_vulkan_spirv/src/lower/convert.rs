//! Conversions between types and views of bits as other types.

use nx_vulkan_ir::Result;
use rspirv::dr::Instruction;
use rspirv::spirv::{Op, StorageClass, Word};

use super::types::{Scalar, Type, id_at, mask};
use super::{Lowering, bad};

impl Lowering<'_> {
    /// A number of 64 bits as a pair, native or not.
    pub(super) fn as_pair(&mut self, value: Word, scalar: Scalar) -> Word {
        if self.lacks.has(scalar) {
            return value;
        }
        let pair = self.pair();
        self.of_ids(Op::Bitcast, pair, &[value])
    }

    /// The number of 64 bits that a pair is.
    fn of_pair(&mut self, pair: Word, scalar: Scalar) -> Word {
        if self.lacks.has(scalar) {
            return pair;
        }
        let ty = self.native(scalar);
        self.of_ids(Op::Bitcast, ty, &[pair])
    }

    fn native(&mut self, scalar: Scalar) -> Word {
        match scalar {
            Scalar::Bool => self.linker.type_bool(),
            Scalar::Int { bits, signed: true } => self.linker.type_int(bits),
            Scalar::Int { bits, signed: false } => self.linker.type_uint(bits),
            Scalar::Float(bits) => self.linker.type_float(bits),
        }
    }

    /// The new type of a scalar.
    pub(super) fn new_type(&mut self, scalar: Scalar) -> Word {
        match scalar.bits() {
            64 if self.lacks.has(scalar) => self.pair(),
            _ if self.lacks.has(scalar) => self.uint(),
            _ => self.native(scalar),
        }
    }

    /// A value of 32 bits as a word.
    fn as_word(&mut self, value: Word, scalar: Scalar) -> Word {
        if self.lacks.has(scalar) || scalar == (Scalar::Int { bits: 32, signed: false }) {
            return value;
        }
        let uint = self.uint();
        self.of_ids(Op::Bitcast, uint, &[value])
    }

    /// The value of 32 bits, or fewer, whose bits a word has.
    fn of_word(&mut self, word: Word, scalar: Scalar) -> Word {
        if self.lacks.has(scalar) {
            return self.masked(word, scalar);
        }
        if scalar == (Scalar::Int { bits: 32, signed: false }) {
            return word;
        }
        let ty = self.native(scalar);
        self.of_ids(Op::Bitcast, ty, &[word])
    }

    pub(super) fn masked(&mut self, word: Word, scalar: Scalar) -> Word {
        let (uint, mask) = (self.uint(), self.linker.const_u32(mask(scalar.bits())));
        self.of_ids(Op::BitwiseAnd, uint, &[word, mask])
    }

    /// A narrow integer as a word that has its value, or an integer of 32 bits.
    pub(super) fn extended(&mut self, value: Word, scalar: Scalar, signed: bool) -> Word {
        if scalar.bits() >= 32 {
            return self.as_word(value, scalar);
        }
        let uint = self.uint();
        if !self.lacks.has(scalar) {
            return self.of_ids(if signed { Op::SConvert } else { Op::UConvert }, uint, &[value]);
        }
        if !signed {
            return value;
        }
        let (zero, bits) = (self.linker.const_u32(0), self.linker.const_u32(scalar.bits()));
        let int = self.linker.type_int(32);
        let value = self.of_ids(Op::Bitcast, int, &[value]);
        let extended = self.of_ids(Op::BitFieldSExtract, int, &[value, zero, bits]);
        self.of_ids(Op::Bitcast, uint, &[extended])
    }

    /// The low word of an integer of 64 bits, native or not.
    pub(super) fn low_word(&mut self, value: Word, scalar: Scalar) -> Word {
        let (pair, uint) = (self.as_pair(value, scalar), self.uint());
        self.extract(uint, pair, 0)
    }

    /// Converts a value as `opcode` does.
    pub(super) fn convert(&mut self, opcode: Op, value: Word, from: Scalar, to: Scalar) -> Result<Word> {
        let signed = matches!(opcode, Op::SConvert | Op::ConvertSToF | Op::ConvertFToS);
        let (uint, int) = (self.uint(), self.linker.type_int(32));
        match (from, to) {
            (Scalar::Int { .. }, Scalar::Int { .. }) => Ok(self.integer(value, from, to, signed)),
            (Scalar::Float(32), Scalar::Float(64)) => {
                let pair = self.call("nx_soft_f64_of_f32", &[value])?;
                Ok(self.of_pair(pair, to))
            }
            (Scalar::Float(64), Scalar::Float(32)) => {
                let pair = self.as_pair(value, from);
                self.call("nx_soft_f32_of_f64", &[pair])
            }
            (Scalar::Int { bits: 64, .. }, Scalar::Float(bits @ (32 | 64))) => {
                let pair = self.as_pair(value, from);
                let kind = if signed { 'i' } else { 'u' };
                let float = self.call(&format!("nx_soft_f{bits}_of_{kind}64"), &[pair])?;
                Ok(if bits == 64 { self.of_pair(float, to) } else { float })
            }
            (Scalar::Int { .. }, Scalar::Float(64)) => {
                let word = self.extended(value, from, signed);
                let pair = if signed {
                    let word = self.of_ids(Op::Bitcast, int, &[word]);
                    self.call("nx_soft_f64_of_i32", &[word])?
                } else {
                    self.call("nx_soft_f64_of_u32", &[word])?
                };
                Ok(self.of_pair(pair, to))
            }
            (Scalar::Int { .. }, Scalar::Float(32)) => {
                let (word, float) = (self.extended(value, from, signed), self.linker.type_float(32));
                Ok(self.of_ids(opcode, float, &[word]))
            }
            (Scalar::Float(bits @ (32 | 64)), Scalar::Int { bits: 64, .. }) => {
                let value = if bits == 64 { self.as_pair(value, from) } else { value };
                let pair = self.call(&format!("nx_soft_u64_of_f{bits}"), &[value])?;
                Ok(self.of_pair(pair, to))
            }
            (Scalar::Float(64), Scalar::Int { .. }) => {
                let pair = self.as_pair(value, from);
                let word = self.call("nx_soft_u32_of_f64", &[pair])?;
                Ok(self.of_word(word, to))
            }
            (Scalar::Float(32), Scalar::Int { .. }) => {
                let word = self.of_ids(opcode, uint, &[value]);
                Ok(self.of_word(word, to))
            }
            _ => Err(self.unsupported(opcode)),
        }
    }

    fn integer(&mut self, value: Word, from: Scalar, to: Scalar, signed: bool) -> Word {
        let uint = self.uint();
        let low = match from.bits() {
            64 => self.low_word(value, from),
            _ => self.extended(value, from, signed),
        };
        if to.bits() < 64 {
            if !self.lacks.has(to) && to.bits() < 32 {
                let ty = self.native(to);
                return self.of_ids(Op::UConvert, ty, &[low]);
            }
            return self.of_word(low, to);
        }
        let pair = self.pair();
        let both = match (from.bits(), signed) {
            (64, _) => self.as_pair(value, from),
            (_, true) => {
                let places = self.linker.const_u32(31);
                let high = self.of_ids(Op::ShiftRightArithmetic, uint, &[low, places]);
                self.of_ids(Op::CompositeConstruct, pair, &[low, high])
            }
            (_, false) => {
                let high = self.linker.const_u32(0);
                self.of_ids(Op::CompositeConstruct, pair, &[low, high])
            }
        };
        self.of_pair(both, to)
    }

    /// Bits as another type.
    pub(super) fn bitcast(&mut self, inst: &Instruction) -> Result<()> {
        let (from, to) = (id_at(inst, 0)?, inst.result_type.ok_or_else(|| bad("a bitcast to nothing"))?);
        let from_type = self.value_types.get(&from).copied().ok_or_else(|| bad("a bitcast of nothing"))?;
        let value = match self.id(from) {
            value if self.id(from_type) == self.id(to) => value,
            value => {
                let words = self.bits_of(value, from_type)?;
                self.of_bits(&words, to)?
            }
        };
        self.define(inst, value);
        Ok(())
    }

    /// The bits of a value, as words. Parts of fewer bits stand beside each other.
    pub(super) fn bits_of(&mut self, value: Word, ty: Word) -> Result<Vec<Word>> {
        let (uint, pair) = (self.uint(), self.pair());
        let (scalar, length) = match self.types.get(&ty) {
            Some(&Type::Scalar(scalar)) => (scalar, 1),
            Some(&Type::Vector(scalar, length)) => (scalar, length),
            Some(&Type::Pointer(StorageClass::PhysicalStorageBuffer, _)) => {
                let value = self.of_ids(Op::Bitcast, pair, &[value]);
                return Ok((0..2).map(|k| self.extract(uint, value, k)).collect());
            }
            _ => return Err(self.unsupported(Op::Bitcast)),
        };
        let part = self.new_type(scalar);
        let parts: Vec<Word> = match length {
            1 if !matches!(self.types.get(&ty), Some(Type::Vector(..))) => vec![value],
            _ => (0..length).map(|k| self.extract(part, value, k)).collect(),
        };
        match scalar.bits() {
            64 => Ok(parts
                .into_iter()
                .flat_map(|part| {
                    let both = self.as_pair(part, scalar);
                    [0, 1].map(|k| self.extract(uint, both, k))
                })
                .collect()),
            32 => Ok(parts.into_iter().map(|part| self.as_word(part, scalar)).collect()),
            bits @ (8 | 16) if matches!(scalar, Scalar::Int { .. }) => {
                let parts: Vec<Word> = parts.into_iter().map(|part| self.extended(part, scalar, false)).collect();
                Ok(parts.chunks((32 / bits) as usize).map(|parts| self.joined(parts, bits)).collect())
            }
            _ => Err(self.unsupported(Op::Bitcast)),
        }
    }

    /// Parts of so many bits in one word.
    pub(super) fn joined(&mut self, parts: &[Word], bits: u32) -> Word {
        let uint = self.uint();
        let mut word = parts[0];
        for (k, &part) in (1..).zip(&parts[1..]) {
            let places = self.linker.const_u32(k * bits);
            let shifted = self.of_ids(Op::ShiftLeftLogical, uint, &[part, places]);
            word = self.of_ids(Op::BitwiseOr, uint, &[word, shifted]);
        }
        word
    }

    /// The value of a type that has these bits.
    pub(super) fn of_bits(&mut self, words: &[Word], ty: Word) -> Result<Word> {
        let (uint, pair) = (self.uint(), self.pair());
        let (scalar, length) = match self.types.get(&ty) {
            Some(&Type::Scalar(scalar)) => (scalar, None),
            Some(&Type::Vector(scalar, length)) => (scalar, Some(length)),
            Some(&Type::Pointer(StorageClass::PhysicalStorageBuffer, _)) => {
                let both = self.of_ids(Op::CompositeConstruct, pair, words);
                let new = self.id(ty);
                return Ok(self.of_ids(Op::Bitcast, new, &[both]));
            }
            _ => return Err(self.unsupported(Op::Bitcast)),
        };
        let parts: Vec<Word> = match scalar.bits() {
            64 => words
                .chunks(2)
                .map(|words| {
                    let both = self.of_ids(Op::CompositeConstruct, pair, words);
                    self.of_pair(both, scalar)
                })
                .collect(),
            32 => words.iter().map(|&word| self.of_word(word, scalar)).collect(),
            bits @ (8 | 16) if matches!(scalar, Scalar::Int { .. }) => {
                let count = length.unwrap_or(1);
                let mut parts = Vec::new();
                for k in 0..count {
                    let (at, place) = ((k * bits / 32) as usize, self.linker.const_u32(k * bits % 32));
                    let word = *words.get(at).ok_or_else(|| bad("a bitcast of too few bits"))?;
                    let low = self.of_ids(Op::ShiftRightLogical, uint, &[word, place]);
                    let wide = Scalar::Int { bits: 32, signed: false };
                    parts.push(self.integer(low, wide, scalar, false));
                }
                parts
            }
            _ => return Err(self.unsupported(Op::Bitcast)),
        };
        match (length, parts.as_slice()) {
            (None, &[part]) => Ok(part),
            (Some(_), _) => {
                let new = self.id(ty);
                Ok(self.of_ids(Op::CompositeConstruct, new, &parts))
            }
            _ => Err(bad("a bitcast between sizes")),
        }
    }
}
