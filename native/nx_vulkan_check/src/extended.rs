//! The instructions of GLSL.std.450: what each takes and gives. NonSemantic sets mean nothing to execution and may hold
//! anything.

use rspirv::spirv::{GlslStd450Op as Glsl, Op};

use super::operands::{Checker, require};
use super::parse::Instruction;
use super::parts::{Checked, is_non_semantic};
use super::rules::{ScalarKind, Shape};
use super::types::Type;

impl Checker<'_> {
    pub fn extended(&self, instruction: &Instruction) -> Checked {
        let set = self.defining(self.module.operand(instruction, 0));
        let set = set.filter(|set| set.op == Op::ExtInstImport).ok_or("no instruction set")?;
        let result = instruction.result_type.unwrap_or(0);
        if is_non_semantic(self.module, set) {
            return require(self.types.get(result) == Some(&Type::Void), || "its result is not void".into());
        }
        require(instruction.op == Op::ExtInst, || "looks ahead, which GLSL.std.450 must not".into())?;
        let number = self.module.operand(instruction, 1);
        let grammar = rspirv::grammar::GLSL_STD_450_INSTRUCTION_TABLE.lookup_opcode(number);
        let grammar = grammar.ok_or_else(|| format!("GLSL.std.450 has no instruction {number}"))?;
        let operands = self.module.operands(instruction).get(2..).unwrap_or(&[]);
        if operands.len() != grammar.operands.len() {
            return Err(format!("{} operands for {}", operands.len(), grammar.opname));
        }
        let op = Glsl::from_u32(number).ok_or("unknown instruction")?;
        self.glsl(op, result, operands).map_err(|reason| format!("{}: {reason}", grammar.opname))
    }

    fn glsl(&self, op: Glsl, result: u32, operands: &[u32]) -> Checked {
        let operand = |index: usize| operands.get(index).copied().unwrap_or(0);
        match op {
            Glsl::Round
            | Glsl::RoundEven
            | Glsl::Trunc
            | Glsl::FAbs
            | Glsl::FSign
            | Glsl::Floor
            | Glsl::Ceil
            | Glsl::Fract
            | Glsl::Sqrt
            | Glsl::InverseSqrt
            | Glsl::FMin
            | Glsl::FMax
            | Glsl::FClamp
            | Glsl::FMix
            | Glsl::Step
            | Glsl::SmoothStep
            | Glsl::Fma
            | Glsl::NMin
            | Glsl::NMax
            | Glsl::NClamp
            | Glsl::Normalize
            | Glsl::FaceForward
            | Glsl::Reflect => {
                self.number(result, ScalarKind::Float)?;
                self.all_of(result, operands)
            }
            Glsl::Radians
            | Glsl::Degrees
            | Glsl::Sin
            | Glsl::Cos
            | Glsl::Tan
            | Glsl::Asin
            | Glsl::Acos
            | Glsl::Atan
            | Glsl::Sinh
            | Glsl::Cosh
            | Glsl::Tanh
            | Glsl::Asinh
            | Glsl::Acosh
            | Glsl::Atanh
            | Glsl::Atan2
            | Glsl::Pow
            | Glsl::Exp
            | Glsl::Log
            | Glsl::Exp2
            | Glsl::Log2 => {
                let bits = self.number(result, ScalarKind::Float)?.bits;
                require(bits <= 32, || format!("floats of {bits} bits where 16 or 32 are needed"))?;
                self.all_of(result, operands)
            }
            Glsl::SAbs
            | Glsl::SSign
            | Glsl::UMin
            | Glsl::SMin
            | Glsl::UMax
            | Glsl::SMax
            | Glsl::UClamp
            | Glsl::SClamp => self.value(Op::IAdd, result, operands),
            Glsl::FindILsb | Glsl::FindSMsb | Glsl::FindUMsb => {
                let bits = self.number(result, ScalarKind::Int)?.bits;
                require(bits == 32, || format!("integers of {bits} bits where 32 are needed"))?;
                self.value(Op::IAdd, result, operands)
            }
            Glsl::Determinant | Glsl::MatrixInverse => {
                let matrix = self.type_of(operand(0))?;
                let square = match self.types.get(matrix) {
                    Some(Type::Matrix { column, count }) => match self.types.get(*column) {
                        Some(Type::Vector { component, count: rows }) if rows == count => Some(*component),
                        _ => None,
                    },
                    _ => None,
                };
                let gives = if op == Glsl::Determinant { square } else { square.map(|_| matrix) };
                require(gives == Some(result), || "no square matrix and its result".into())
            }
            Glsl::Modf => {
                self.number(result, ScalarKind::Float)?;
                self.all_of(result, &operands[..1])?;
                let whole = self.written(operand(1))?;
                require(whole == result, || "the pointer is not to the result's type".into())
            }
            Glsl::ModfStruct => {
                let (fraction, whole) = self.two_members(result)?;
                self.number(fraction, ScalarKind::Float)?;
                require(fraction == whole, || "the result's members differ".into())?;
                self.all_of(fraction, operands)
            }
            Glsl::Frexp => {
                self.all_of(result, &operands[..1])?;
                self.exponents(result, self.written(operand(1))?)
            }
            Glsl::FrexpStruct => {
                let (fraction, exponent) = self.two_members(result)?;
                self.all_of(fraction, operands)?;
                self.exponents(fraction, exponent)
            }
            Glsl::Ldexp => {
                self.all_of(result, &operands[..1])?;
                self.exponents(result, self.type_of(operand(1))?)
            }
            Glsl::Length | Glsl::Distance => {
                let first = self.type_of(operand(0))?;
                self.all_of(first, operands)?;
                let (vector, scalar) =
                    (self.number(first, ScalarKind::Float)?, self.number(result, ScalarKind::Float)?);
                require(scalar == Shape { count: 1, ..vector }, || "the result is not the vector's component".into())
            }
            Glsl::Cross => {
                require(self.number(result, ScalarKind::Float)?.count == 3, || {
                    "no vectors of three components".into()
                })?;
                self.all_of(result, operands)
            }
            Glsl::Refract => {
                self.all_of(result, &operands[..2])?;
                let (vector, eta) =
                    (self.number(result, ScalarKind::Float)?, self.scalar(operand(2), ScalarKind::Float)?);
                require(eta.bits == vector.bits, || "the ratio has not the vector's width".into())
            }
            _ => self.packed(op, result, operand(0)),
        }
    }

    fn packed(&self, op: Glsl, result: u32, operand: u32) -> Checked {
        let shape = |kind, bits, count| Shape { kind, bits, count };
        let words = |count| shape(ScalarKind::Int, 32, count);
        let floats = |count| shape(ScalarKind::Float, 32, count);
        let double = shape(ScalarKind::Float, 64, 1);
        let (from, to) = match op {
            Glsl::PackSnorm4x8 | Glsl::PackUnorm4x8 => (floats(4), words(1)),
            Glsl::PackSnorm2x16 | Glsl::PackUnorm2x16 | Glsl::PackHalf2x16 => (floats(2), words(1)),
            Glsl::PackDouble2x32 => (words(2), double),
            Glsl::UnpackSnorm4x8 | Glsl::UnpackUnorm4x8 => (words(1), floats(4)),
            Glsl::UnpackSnorm2x16 | Glsl::UnpackUnorm2x16 | Glsl::UnpackHalf2x16 => (words(1), floats(2)),
            Glsl::UnpackDouble2x32 => (double, words(2)),
            _ => return Err("has no place in a compute shader".into()),
        };
        require(from.fits(&self.shape_of(operand)?), || format!("operand {operand} has the wrong type"))?;
        require(to.fits(&self.shape(result)?), || "the result has the wrong type".into())
    }

    /// Exponents are integers of 32 bits, one for each float.
    fn exponents(&self, floats: u32, exponents: u32) -> Checked {
        let (floats, exponents) = (self.number(floats, ScalarKind::Float)?, self.number(exponents, ScalarKind::Int)?);
        let fits = floats.count == exponents.count && exponents.bits == 32;
        require(fits, || "the exponent is no 32-bit integer for each float".into())
    }

    fn two_members(&self, type_id: u32) -> Checked<(u32, u32)> {
        match self.types.get(type_id) {
            Some(Type::Struct { members }) => match members.as_slice() {
                &[first, second] => Ok((first, second)),
                _ => Err("the result is no struct of two members".into()),
            },
            _ => Err("the result is no struct".into()),
        }
    }
}
