//! Operations of numbers.

use nx_vulkan_ir::Result;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{GlslStd450Op as Glsl, Op, Word};

use super::types::{Scalar, Type, id_at};
use super::{Lowering, bad};

/// An operand: its value in the new module, and its type in the old one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of {
    pub value: Word,
    pub scalar: Scalar,
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Core(Op),
    Extended(Glsl),
}

impl Lowering<'_> {
    fn scalar_and_length(&self, ty: Option<Word>) -> Option<(Scalar, Option<u32>)> {
        match self.types.get(&ty?) {
            Some(&Type::Scalar(scalar)) => Some((scalar, None)),
            Some(&Type::Vector(scalar, length)) => Some((scalar, Some(length))),
            _ => None,
        }
    }

    /// The type of an old value, by its old id.
    fn type_of(&self, value: Word) -> Option<(Scalar, Option<u32>)> {
        self.scalar_and_length(self.value_types.get(&value).copied())
    }

    /// The components of an old value.
    fn components(&mut self, value: Word) -> Result<Vec<Of>> {
        let (scalar, length) = self.type_of(value).ok_or_else(|| bad("an operand that is no number"))?;
        let new = self.id(value);
        let Some(length) = length else { return Ok(vec![Of { value: new, scalar }]) };
        let part = self.new_type(scalar);
        Ok((0..length).map(|k| Of { value: self.extract(part, new, k), scalar }).collect())
    }

    /// A vector, or the one component of a scalar.
    fn assembled(&mut self, ty: Word, components: &[Word]) -> Word {
        match (self.types.get(&ty), components) {
            (Some(Type::Scalar(_)), &[one]) => one,
            _ => {
                let new = self.id(ty);
                self.of_ids(Op::CompositeConstruct, new, components)
            }
        }
    }

    pub(super) fn construct(&mut self, inst: &Instruction) -> Result<()> {
        let ty = inst.result_type.ok_or_else(|| bad("a composite without a type"))?;
        if !matches!(self.types.get(&ty), Some(Type::Vector(..))) {
            if self.is_laid_out(ty) && self.has_wide_vector(ty) {
                return Err(self.unsupported(inst.class.opcode));
            }
            self.keep(inst);
            return Ok(());
        }
        let mut parts = Vec::new();
        for k in 0..inst.operands.len() {
            parts.extend(self.components(id_at(inst, k)?)?.into_iter().map(|part| part.value));
        }
        let value = self.assembled(ty, &parts);
        self.define(inst, value);
        Ok(())
    }

    pub(super) fn shuffle(&mut self, inst: &Instruction) -> Result<()> {
        let ty = inst.result_type.ok_or_else(|| bad("a vector without a type"))?;
        let mut parts = self.components(id_at(inst, 0)?)?;
        parts.extend(self.components(id_at(inst, 1)?)?);
        let chosen = inst.operands[2..].iter().map(|operand| match operand {
            Operand::LiteralBit32(k) => parts.get(*k as usize).or(parts.first()).map(|part| part.value),
            _ => None,
        });
        let chosen = chosen.collect::<Option<Vec<Word>>>().ok_or_else(|| bad("a shuffle of nothing"))?;
        let value = self.assembled(ty, &chosen);
        self.define(inst, value);
        Ok(())
    }

    pub(super) fn extract_dynamic(&mut self, inst: &Instruction) -> Result<()> {
        let parts = self.components(id_at(inst, 0)?)?;
        let index = self.components(id_at(inst, 1)?)?;
        let (Some(last), Some(index)) = (parts.last().copied(), index.first().copied()) else {
            return Err(bad("an index of nothing"));
        };
        let (index, bool) = (self.extended(index.value, index.scalar, false), self.linker.type_bool());
        let mut value = last.value;
        for (k, part) in (0..).zip(&parts[..parts.len() - 1]) {
            let k = self.linker.const_u32(k);
            let is = self.of_ids(Op::IEqual, bool, &[index, k]);
            value = self.select(is, part.value, value, part.scalar);
        }
        self.define(inst, value);
        Ok(())
    }

    fn select(&mut self, condition: Word, yes: Word, no: Word, scalar: Scalar) -> Word {
        let ty = self.new_type(scalar);
        if scalar.bits() != 64 || !self.lacks.has(scalar) {
            return self.of_ids(Op::Select, ty, &[condition, yes, no]);
        }
        let bool = self.linker.type_bool();
        let bools = self.linker.type_vector(bool, 2);
        let both = self.of_ids(Op::CompositeConstruct, bools, &[condition, condition]);
        self.of_ids(Op::Select, ty, &[both, yes, no])
    }

    pub(super) fn arithmetic(&mut self, inst: &Instruction) -> Result<()> {
        let (operation, first) = match (inst.class.opcode, inst.operands.get(1)) {
            (Op::ExtInst, Some(Operand::LiteralExtInstInteger(number))) => {
                let known = Glsl::from_u32(*number).ok_or_else(|| self.unsupported(Op::ExtInst))?;
                (Operation::Extended(known), 2)
            }
            (opcode, _) => (Operation::Core(opcode), 0),
        };
        let ty = inst.result_type.ok_or_else(|| self.unsupported(inst.class.opcode))?;
        let (result, length) = self.scalar_and_length(Some(ty)).ok_or_else(|| self.unsupported(inst.class.opcode))?;
        let mut operands = Vec::new();
        for k in first..inst.operands.len() {
            let id = inst.operands[k].id_ref_any().ok_or_else(|| self.unsupported(inst.class.opcode))?;
            operands.push(self.components(id)?);
        }
        let value = match operation {
            Operation::Core(Op::Dot) => self.dot(&operands)?,
            Operation::Extended(Glsl::Length) => match operands.as_slice() {
                [parts] if parts.len() == 1 => self.call("nx_soft_abs_f64", &[parts[0].value])?,
                [parts] => {
                    let squares = self.dot(&[parts.clone(), parts.clone()])?;
                    self.call("nx_soft_sqrt_f64", &[squares])?
                }
                _ => return Err(bad("the length of nothing")),
            },
            // Words of a pair, which are the bits of its number.
            Operation::Extended(Glsl::PackDouble2x32 | Glsl::UnpackDouble2x32) => self.id(id_at(inst, 2)?),
            _ => {
                let mut parts = Vec::new();
                for k in 0..length.unwrap_or(1) as usize {
                    let of: Option<Vec<Of>> = operands.iter().map(|o| o.get(k).or(o.first()).copied()).collect();
                    let of = of.ok_or_else(|| bad("an operation of nothing"))?;
                    parts.push(self.scalar_operation(operation, result, &of)?);
                }
                self.assembled(ty, &parts)
            }
        };
        self.define(inst, value);
        Ok(())
    }

    /// The sum of products, the last ones first.
    fn dot(&mut self, operands: &[Vec<Of>]) -> Result<Word> {
        let [a, b] = operands else { return Err(bad("a product of nothing")) };
        let mut sum = None;
        for (a, b) in a.iter().zip(b).rev() {
            let product = self.call("nx_soft_multiply_f64", &[a.value, b.value])?;
            sum = Some(match sum {
                Some(sum) => self.call("nx_soft_add_f64", &[sum, product])?,
                None => product,
            });
        }
        sum.ok_or_else(|| bad("a product of nothing"))
    }

    fn scalar_operation(&mut self, operation: Operation, result: Scalar, of: &[Of]) -> Result<Word> {
        let unsupported = |lowering: &Self| match operation {
            Operation::Core(opcode) => lowering.unsupported(opcode),
            Operation::Extended(_) => lowering.unsupported(Op::ExtInst),
        };
        let Some(&first) = of.first() else { return Err(unsupported(self)) };
        if let Operation::Core(opcode) = operation {
            match (opcode, of) {
                (
                    Op::UConvert
                    | Op::SConvert
                    | Op::FConvert
                    | Op::ConvertSToF
                    | Op::ConvertUToF
                    | Op::ConvertFToS
                    | Op::ConvertFToU,
                    _,
                ) => return self.convert(opcode, first.value, first.scalar, result),
                (Op::Select, &[condition, yes, no]) => {
                    return Ok(self.select(condition.value, yes.value, no.value, result));
                }
                (Op::VectorTimesScalar, _) => {
                    return self.scalar_operation(Operation::Core(Op::FMul), result, of);
                }
                _ => {}
            }
        }
        match first.scalar {
            scalar if !self.lacks.has(scalar) => {
                // Only how far bits are shifted is of a type that is lowered.
                let (Operation::Core(opcode), &[value, places]) = (operation, of) else {
                    return Err(unsupported(self));
                };
                let (places, ty) = (self.places_of(places), self.new_type(result));
                Ok(self.of_ids(opcode, ty, &[value.value, places]))
            }
            Scalar::Float(64) => self.float(operation, of)?.ok_or_else(|| unsupported(self)),
            Scalar::Int { bits: 64, .. } => self.long(operation, of)?.ok_or_else(|| unsupported(self)),
            Scalar::Int { .. } => self.narrow(operation, result, of)?.ok_or_else(|| unsupported(self)),
            _ => Err(unsupported(self)),
        }
    }

    /// How far bits are shifted, as a word.
    pub(super) fn places_of(&mut self, places: Of) -> Word {
        match places.scalar.bits() {
            64 => self.low_word(places.value, places.scalar),
            _ => self.extended(places.value, places.scalar, false),
        }
    }

    pub(super) fn not(&mut self, value: Word) -> Word {
        let bool = self.linker.type_bool();
        self.of_ids(Op::LogicalNot, bool, &[value])
    }

    fn float(&mut self, operation: Operation, of: &[Of]) -> Result<Option<Word>> {
        let values: Vec<Word> = of.iter().map(|of| of.value).collect();
        let one = |lowering: &mut Self| lowering.pair_constant(1f64.to_bits());
        let value = match (operation, values.as_slice()) {
            (Operation::Core(opcode), &[x]) => match opcode {
                Op::FNegate => self.call("nx_soft_negate_f64", &[x])?,
                Op::IsNan => self.call("nx_soft_is_nan_f64", &[x])?,
                Op::IsInf => self.call("nx_soft_is_infinity_f64", &[x])?,
                _ => return Ok(None),
            },
            (Operation::Core(opcode), &[a, b]) => match opcode {
                Op::FAdd => self.call("nx_soft_add_f64", &[a, b])?,
                Op::FSub => self.call("nx_soft_subtract_f64", &[a, b])?,
                Op::FMul => self.call("nx_soft_multiply_f64", &[a, b])?,
                Op::FDiv => self.call("nx_soft_divide_f64", &[a, b])?,
                Op::FOrdEqual => self.call("nx_soft_equal_f64", &[a, b])?,
                Op::FOrdLessThan => self.call("nx_soft_less_f64", &[a, b])?,
                Op::FOrdGreaterThan => self.call("nx_soft_less_f64", &[b, a])?,
                Op::FOrdLessThanEqual => self.call("nx_soft_less_equal_f64", &[a, b])?,
                Op::FOrdGreaterThanEqual => self.call("nx_soft_less_equal_f64", &[b, a])?,
                Op::Ordered => self.call("nx_soft_ordered_f64", &[a, b])?,
                Op::FOrdNotEqual => {
                    let bool = self.linker.type_bool();
                    let (ordered, equal) =
                        (self.call("nx_soft_ordered_f64", &[a, b])?, self.call("nx_soft_equal_f64", &[a, b])?);
                    let differ = self.not(equal);
                    self.of_ids(Op::LogicalAnd, bool, &[ordered, differ])
                }
                // What is unordered is the opposite of what is ordered.
                opcode => {
                    let opposite = match opcode {
                        Op::FUnordEqual => Op::FOrdNotEqual,
                        Op::FUnordNotEqual => Op::FOrdEqual,
                        Op::FUnordLessThan => Op::FOrdGreaterThanEqual,
                        Op::FUnordGreaterThan => Op::FOrdLessThanEqual,
                        Op::FUnordLessThanEqual => Op::FOrdGreaterThan,
                        Op::FUnordGreaterThanEqual => Op::FOrdLessThan,
                        Op::Unordered => Op::Ordered,
                        _ => return Ok(None),
                    };
                    let Some(value) = self.float(Operation::Core(opposite), of)? else { return Ok(None) };
                    self.not(value)
                }
            },
            (Operation::Extended(op), &[x]) => match op {
                Glsl::FAbs => self.call("nx_soft_abs_f64", &[x])?,
                Glsl::FSign => self.call("nx_soft_sign_f64", &[x])?,
                Glsl::Floor => self.call("nx_soft_floor_f64", &[x])?,
                Glsl::Ceil => self.call("nx_soft_ceil_f64", &[x])?,
                Glsl::Trunc => self.call("nx_soft_trunc_f64", &[x])?,
                Glsl::Round | Glsl::RoundEven => self.call("nx_soft_round_even_f64", &[x])?,
                Glsl::Sqrt => self.call("nx_soft_sqrt_f64", &[x])?,
                Glsl::Fract => {
                    let floor = self.call("nx_soft_floor_f64", &[x])?;
                    self.call("nx_soft_subtract_f64", &[x, floor])?
                }
                Glsl::InverseSqrt => {
                    let (one, root) = (one(self), self.call("nx_soft_sqrt_f64", &[x])?);
                    self.call("nx_soft_divide_f64", &[one, root])?
                }
                _ => return Ok(None),
            },
            (Operation::Extended(op), &[a, b]) => match op {
                Glsl::FMin | Glsl::NMin => self.call("nx_soft_min_f64", &[a, b])?,
                Glsl::FMax | Glsl::NMax => self.call("nx_soft_max_f64", &[a, b])?,
                _ => return Ok(None),
            },
            (Operation::Extended(op), &[a, b, c]) => match op {
                Glsl::Fma => self.call("nx_soft_fma_f64", &[a, b, c])?,
                Glsl::FClamp | Glsl::NClamp => {
                    let raised = self.call("nx_soft_max_f64", &[a, b])?;
                    self.call("nx_soft_min_f64", &[raised, c])?
                }
                Glsl::FMix => {
                    let one = one(self);
                    let rest = self.call("nx_soft_subtract_f64", &[one, c])?;
                    let (first, second) =
                        (self.call("nx_soft_multiply_f64", &[a, rest])?, self.call("nx_soft_multiply_f64", &[b, c])?);
                    self.call("nx_soft_add_f64", &[first, second])?
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    fn long(&mut self, operation: Operation, of: &[Of]) -> Result<Option<Word>> {
        let pair = self.pair();
        let value = match (operation, of) {
            (Operation::Core(Op::Not), &[x]) => self.of_ids(Op::Not, pair, &[x.value]),
            (Operation::Core(Op::SNegate), &[x]) => self.call("nx_soft_negate_u64", &[x.value])?,
            (Operation::Extended(Glsl::SAbs), &[x]) => self.call("nx_soft_abs_i64", &[x.value])?,
            (Operation::Core(Op::ShiftLeftLogical), &[x, places]) => {
                let places = self.places_of(places);
                self.call("nx_soft_left_u64", &[x.value, places])?
            }
            (Operation::Core(Op::ShiftRightLogical), &[x, places]) => {
                let places = self.places_of(places);
                self.call("nx_soft_right_u64", &[x.value, places])?
            }
            (Operation::Core(Op::ShiftRightArithmetic), &[x, places]) => {
                let places = self.places_of(places);
                self.call("nx_soft_right_i64", &[x.value, places])?
            }
            (Operation::Core(opcode @ (Op::BitwiseAnd | Op::BitwiseOr | Op::BitwiseXor)), &[a, b]) => {
                self.of_ids(opcode, pair, &[a.value, b.value])
            }
            (operation, &[a, b]) => {
                let (name, turned, negated) = match operation {
                    Operation::Core(Op::IAdd) => ("add_u64", false, false),
                    Operation::Core(Op::ISub) => ("subtract_u64", false, false),
                    Operation::Core(Op::IMul) => ("multiply_u64", false, false),
                    Operation::Core(Op::UDiv) => ("quotient_u64", false, false),
                    Operation::Core(Op::UMod) => ("remainder_u64", false, false),
                    Operation::Core(Op::SDiv) => ("quotient_i64", false, false),
                    Operation::Core(Op::SRem) => ("remainder_i64", false, false),
                    Operation::Core(Op::SMod) => ("modulo_i64", false, false),
                    Operation::Core(Op::IEqual) => ("equal_u64", false, false),
                    Operation::Core(Op::INotEqual) => ("equal_u64", false, true),
                    Operation::Core(Op::ULessThan) => ("less_u64", false, false),
                    Operation::Core(Op::UGreaterThan) => ("less_u64", true, false),
                    Operation::Core(Op::ULessThanEqual) => ("less_u64", true, true),
                    Operation::Core(Op::UGreaterThanEqual) => ("less_u64", false, true),
                    Operation::Core(Op::SLessThan) => ("less_i64", false, false),
                    Operation::Core(Op::SGreaterThan) => ("less_i64", true, false),
                    Operation::Core(Op::SLessThanEqual) => ("less_i64", true, true),
                    Operation::Core(Op::SGreaterThanEqual) => ("less_i64", false, true),
                    Operation::Extended(Glsl::UMin) => ("min_u64", false, false),
                    Operation::Extended(Glsl::UMax) => ("max_u64", false, false),
                    Operation::Extended(Glsl::SMin) => ("min_i64", false, false),
                    Operation::Extended(Glsl::SMax) => ("max_i64", false, false),
                    _ => return Ok(None),
                };
                let operands = if turned { [b.value, a.value] } else { [a.value, b.value] };
                let value = self.call(&format!("nx_soft_{name}"), &operands)?;
                if negated { self.not(value) } else { value }
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }
}
