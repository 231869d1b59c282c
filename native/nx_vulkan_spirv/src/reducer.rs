//! What a reduction makes of elements: its accumulators, and how they are combined.

use nx_vulkan_ir::program::Reduction;
use nx_vulkan_ir::program::reducer::{Accumulator, Reducer};
use nx_vulkan_ir::{CType, DType, Error, Result};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::access::{self, value_type};
use super::link::Code;
use super::scalar::{self, Value};

/// Code for a reduction: its accumulators as words, and how they are combined.
pub trait ReducerCode {
    /// The type of the words.
    fn words_type(&self, code: &mut Code<'_, '_>) -> Word;

    /// Accumulator of one element at index `r`.
    fn lift(&self, code: &mut Code<'_, '_>, id: Word, r: Word) -> Result<Word>;

    /// Accumulator of a product of two elements; compensated ones hold all of it.
    fn lift_product(&self, code: &mut Code<'_, '_>, id: Word, by: Word, times: DType) -> Result<Word>;

    /// The accumulator that changes nothing.
    fn identity(&self, code: &mut Code<'_, '_>) -> Result<Word>;

    /// The accumulator that changes nothing, where no loop hides from compilers what it is: those that know it drop
    /// what it is combined with, although that changes signs of zeros.
    fn exact_identity(&self, code: &mut Code<'_, '_>) -> Result<Word>;

    /// One accumulator of two.
    fn combine(&self, code: &mut Code<'_, '_>, a: Word, b: Word) -> Result<Word>;

    /// A tree of accumulators, none of none. Those of `elements` have no errors yet.
    fn combine_all(
        &self,
        code: &mut Code<'_, '_>,
        accumulators: SmallVec<[Word; 4]>,
        elements: bool,
    ) -> Result<Option<Word>>;

    /// The result from its accumulator.
    fn lower(&self, code: &mut Code<'_, '_>, words: Word) -> Result<Word>;
}

impl ReducerCode for Reducer {
    fn words_type(&self, code: &mut Code<'_, '_>) -> Word {
        words_type(code, self.accumulator().words())
    }

    fn lift(&self, code: &mut Code<'_, '_>, id: Word, r: Word) -> Result<Word> {
        let value = Value { id, dtype: self.input };
        match self.accumulator() {
            Accumulator::Value(ctype) if matches!(self.reduction, Reduction::All | Reduction::Any) => {
                let id = scalar::truthy(code, value)?;
                Ok(words_of(code, ctype, id))
            }
            Accumulator::Value(ctype) => {
                let id = scalar::cast(code, value, ctype.dtype())?;
                Ok(words_of(code, ctype, id))
            }
            Accumulator::Compensated(ctype) => {
                let id = scalar::cast(code, value, ctype.dtype())?;
                let ty = value_type(code, ctype);
                let zero = code.linker.global(SpirvOp::ConstantNull, Some(ty), vec![]);
                let pair = compensated_type(code, ctype);
                let both = code.ids(SpirvOp::CompositeConstruct, pair, &[id, zero]);
                let words = self.words_type(code);
                Ok(code.bitcast(words, both))
            }
            Accumulator::Arg { key_words } => {
                let ctype = self.input.ctype();
                let mut key = code.call(&format!("nx_key_{}", ctype.name()), &[id])?;
                let bits = key_words * 32;
                if self.reduction == Reduction::ArgMin {
                    let nan = if self.input.is_float() { "nan_" } else { "" };
                    key = code.call(&format!("nx_key_reverse_{nan}{bits}"), &[key])?;
                }
                let ty = self.words_type(code);
                if key_words == 1 {
                    return Ok(code.ids(SpirvOp::CompositeConstruct, ty, &[key, r]));
                }
                let zero = code.linker.const_u32(0);
                Ok(code.ids(SpirvOp::CompositeConstruct, ty, &[key, r, zero]))
            }
        }
    }

    fn lift_product(&self, code: &mut Code<'_, '_>, id: Word, by: Word, times: DType) -> Result<Word> {
        let ctype = self.out.ctype();
        let a = scalar::cast(code, Value { id, dtype: self.input }, ctype.dtype())?;
        let b = scalar::cast(code, Value { id: by, dtype: times }, ctype.dtype())?;
        if let Accumulator::Compensated(ctype) = self.accumulator() {
            let product = code.call(&format!("nx_exact_product_{}", ctype.name()), &[a, b])?;
            let words = self.words_type(code);
            return Ok(code.bitcast(words, product));
        }
        let product = code.call(&format!("nx_multiply_{}", ctype.name()), &[a, b])?;
        Ok(words_of(code, ctype, product))
    }

    fn identity(&self, code: &mut Code<'_, '_>) -> Result<Word> {
        let words = identity_words(self)?;
        let ty = self.words_type(code);
        let ids: SmallVec<[Word; 4]> = words.iter().map(|&w| code.linker.const_u32(w)).collect();
        Ok(match *ids {
            [word] => word,
            _ => code.ids(SpirvOp::CompositeConstruct, ty, &ids),
        })
    }

    fn exact_identity(&self, code: &mut Code<'_, '_>) -> Result<Word> {
        let identity = self.identity(code)?;
        if !self.accumulates_floats() {
            return Ok(identity);
        }
        let (ty, zero) = (self.words_type(code), access::zero_word(code)?);
        let zeros = match self.accumulator().words() {
            1 => zero,
            words => code.ids(SpirvOp::CompositeConstruct, ty, &vec![zero; words as usize]),
        };
        Ok(code.ids(SpirvOp::BitwiseOr, ty, &[identity, zeros]))
    }

    fn combine(&self, code: &mut Code<'_, '_>, a: Word, b: Word) -> Result<Word> {
        let name = match (self.accumulator(), self.reduction) {
            (Accumulator::Compensated(ctype), reduction) => {
                let pair = compensated_type(code, ctype);
                let (a, b) = (code.bitcast(pair, a), code.bitcast(pair, b));
                let function = if reduction == Reduction::Product { "product2" } else { "sum2" };
                let result = code.call(&format!("nx_{function}_{}", ctype.name()), &[a, b])?;
                let words = self.words_type(code);
                return Ok(code.bitcast(words, result));
            }
            (Accumulator::Arg { key_words }, _) => {
                let tie = if self.tie_high { "high" } else { "low" };
                let nan = if self.input.is_float() && !self.tie_high { "_nan" } else { "" };
                return code.call(&format!("nx_arg_{tie}{nan}_{}", key_words * 32), &[a, b]);
            }
            (_, Reduction::All) => return Ok(code.u32_op(SpirvOp::BitwiseAnd, a, b)),
            (_, Reduction::Any) => return Ok(code.u32_op(SpirvOp::BitwiseOr, a, b)),
            (Accumulator::Value(_), Reduction::Product) => "multiply",
            // Of zeros with different signs one that does not depend on the order in which they are combined.
            (Accumulator::Value(CType::F32 | CType::F64), Reduction::Max) => "largest",
            (Accumulator::Value(CType::F32 | CType::F64), Reduction::Min) => "least",
            (Accumulator::Value(_), Reduction::Max) => "max",
            (Accumulator::Value(_), Reduction::Min) => "min",
            (Accumulator::Value(_), _) => "add",
        };
        let ctype = self.out.ctype();
        let (a, b) = (value_of(code, ctype, a), value_of(code, ctype, b));
        let id = code.call(&format!("nx_{name}_{}", ctype.name()), &[a, b])?;
        Ok(words_of(code, ctype, id))
    }

    fn combine_all(
        &self,
        code: &mut Code<'_, '_>,
        mut accumulators: SmallVec<[Word; 4]>,
        elements: bool,
    ) -> Result<Option<Word>> {
        let is_sum_of_f32 = self.is_sum_of_f32();
        let mut exact = elements && is_sum_of_f32;
        while accumulators.len() > 1 {
            let mut next = SmallVec::new();
            for pair in accumulators.chunks(2) {
                next.push(match *pair {
                    [a, b] if exact => {
                        let [a, b] = [a, b].map(|words| {
                            let (uint, float) = (code.linker.type_uint(32), code.linker.type_float(32));
                            let bits = code.extract(uint, words, 0);
                            code.bitcast(float, bits)
                        });
                        let sum = code.call("nx_two_sum_f32", &[a, b])?;
                        let words = self.words_type(code);
                        code.bitcast(words, sum)
                    }
                    [a, b] => self.combine(code, a, b)?,
                    [a] => a,
                    _ => continue,
                });
            }
            (accumulators, exact) = (next, false);
        }
        Ok(accumulators.first().copied())
    }

    fn lower(&self, code: &mut Code<'_, '_>, words: Word) -> Result<Word> {
        let uint = code.linker.type_uint(32);
        let value = match self.accumulator() {
            Accumulator::Compensated(ctype) => {
                let pair = compensated_type(code, ctype);
                let pair = code.bitcast(pair, words);
                let id = code.call(&format!("nx_compensated_value_{}", ctype.name()), &[pair])?;
                Value { id, dtype: ctype.dtype() }
            }
            Accumulator::Arg { key_words } => Value { id: code.extract(uint, words, key_words), dtype: DType::U32 },
            Accumulator::Value(ctype) => {
                let id = value_of(code, ctype, words);
                Value { id, dtype: ctype.dtype() }
            }
        };
        scalar::cast(code, value, self.out)
    }
}

fn words_type(code: &mut Code<'_, '_>, words: u32) -> Word {
    let uint = code.linker.type_uint(32);
    if words == 1 { uint } else { code.linker.type_vector(uint, words) }
}

/// A value as the 32-bit words that accumulators are made of.
pub fn words_of(code: &mut Code<'_, '_>, ctype: CType, value: Word) -> Word {
    if ctype == CType::U32 {
        return value;
    }
    let ty = words_type(code, ctype.dtype().size_bytes() as u32 / 4);
    code.bitcast(ty, value)
}

/// The value of words.
pub fn value_of(code: &mut Code<'_, '_>, ctype: CType, words: Word) -> Word {
    if ctype == CType::U32 {
        return words;
    }
    let ty = value_type(code, ctype);
    code.bitcast(ty, words)
}

fn identity_words(reducer: &Reducer) -> Result<SmallVec<[u32; 4]>> {
    let two = |bits: u64| SmallVec::from_slice(&[bits as u32, (bits >> 32) as u32]);
    let unsupported = || Error::Unsupported {
        op: reducer.reduction.name().to_string(),
        dtype: Some(reducer.input),
        needs: "a type with an order".to_string(),
    };
    let accumulator = reducer.accumulator();
    let ctype = match accumulator {
        Accumulator::Arg { key_words } => {
            // Key 0 loses to every other key; against an equal key the index decides.
            let index = if reducer.tie_high { 0 } else { u32::MAX };
            return Ok(match key_words {
                1 => SmallVec::from_slice(&[0, index]),
                _ => SmallVec::from_slice(&[0, 0, index, 0]),
            });
        }
        Accumulator::Compensated(_) => {
            let neutral = if reducer.reduction == Reduction::Product { 1f32 } else { 0f32 };
            let mut words = SmallVec::from_elem(0, accumulator.words() as usize);
            words[0] = neutral.to_bits();
            return Ok(words);
        }
        Accumulator::Value(ctype) => ctype,
    };
    Ok(match (reducer.reduction, ctype) {
        (Reduction::All, _) => SmallVec::from_slice(&[1]),
        (Reduction::Any, _) => SmallVec::from_slice(&[0]),
        (Reduction::Product, CType::F32) => SmallVec::from_slice(&[1f32.to_bits()]),
        (Reduction::Sum, _) => SmallVec::from_elem(0, accumulator.words() as usize),
        (Reduction::Product, CType::I32 | CType::U32) => SmallVec::from_slice(&[1]),
        (Reduction::Product, CType::I64 | CType::U64) => two(1),
        (Reduction::Product, CType::F64) => two(1f64.to_bits()),
        (Reduction::Product, CType::C64) => SmallVec::from_slice(&[1f32.to_bits(), 0]),
        (Reduction::Product, CType::C128) => {
            let bits = 1f64.to_bits();
            SmallVec::from_slice(&[bits as u32, (bits >> 32) as u32, 0, 0])
        }
        (Reduction::Max, CType::I32) => SmallVec::from_slice(&[i32::MIN as u32]),
        (Reduction::Max, CType::U32) => SmallVec::from_slice(&[0]),
        (Reduction::Max, CType::I64) => two(i64::MIN as u64),
        (Reduction::Max, CType::U64) => two(0),
        (Reduction::Max, CType::F32) => SmallVec::from_slice(&[f32::NEG_INFINITY.to_bits()]),
        (Reduction::Max, CType::F64) => two(f64::NEG_INFINITY.to_bits()),
        (Reduction::Min, CType::I32) => SmallVec::from_slice(&[i32::MAX as u32]),
        (Reduction::Min, CType::U32) => SmallVec::from_slice(&[u32::MAX]),
        (Reduction::Min, CType::I64) => two(i64::MAX as u64),
        (Reduction::Min, CType::U64) => two(u64::MAX),
        (Reduction::Min, CType::F32) => SmallVec::from_slice(&[f32::INFINITY.to_bits()]),
        (Reduction::Min, CType::F64) => two(f64::INFINITY.to_bits()),
        (Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin, _) => return Err(unsupported()),
    })
}

/// The type of a compensated value: twice its parts.
fn compensated_type(code: &mut Code<'_, '_>, ctype: CType) -> Word {
    let (part, parts) = match ctype {
        CType::C64 => (CType::F32, 4),
        CType::C128 => (CType::F64, 4),
        CType::I32 | CType::U32 | CType::I64 | CType::U64 | CType::F32 | CType::F64 => (ctype, 2),
    };
    let part = value_type(code, part);
    code.linker.type_vector(part, parts)
}
