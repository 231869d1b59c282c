//! Operations of integers of 8 and 16 bits, which lie in the low bits of words above which there are zeros.

use nx_vulkan_ir::Result;
use rspirv::dr::Operand;
use rspirv::spirv::{GlslStd450Op as Glsl, Op, Word};

use super::Lowering;
use super::arithmetic::{Of, Operation};
use super::types::Scalar;

impl Lowering<'_> {
    pub(super) fn narrow(&mut self, operation: Operation, result: Scalar, of: &[Of]) -> Result<Option<Word>> {
        let signed = match operation {
            Operation::Core(opcode) => match opcode {
                Op::IAdd
                | Op::ISub
                | Op::IMul
                | Op::SNegate
                | Op::Not
                | Op::BitwiseAnd
                | Op::BitwiseOr
                | Op::BitwiseXor
                | Op::ShiftLeftLogical
                | Op::ShiftRightLogical
                | Op::UDiv
                | Op::UMod
                | Op::IEqual
                | Op::INotEqual
                | Op::ULessThan
                | Op::ULessThanEqual
                | Op::UGreaterThan
                | Op::UGreaterThanEqual
                | Op::BitCount => false,
                Op::SDiv
                | Op::SRem
                | Op::SMod
                | Op::ShiftRightArithmetic
                | Op::SLessThan
                | Op::SLessThanEqual
                | Op::SGreaterThan
                | Op::SGreaterThanEqual => true,
                _ => return Ok(None),
            },
            Operation::Extended(Glsl::UMin | Glsl::UMax) => false,
            Operation::Extended(Glsl::SMin | Glsl::SMax | Glsl::SAbs | Glsl::SSign) => true,
            Operation::Extended(_) => return Ok(None),
        };
        let is_shift = matches!(
            operation,
            Operation::Core(Op::ShiftLeftLogical | Op::ShiftRightLogical | Op::ShiftRightArithmetic)
        );
        let mut operands = Vec::new();
        for (k, &of) in of.iter().enumerate() {
            operands.push(match is_shift && k == 1 {
                true => self.places_of(of),
                false => self.extended(of.value, of.scalar, signed),
            });
        }
        let word = Scalar::Int { bits: 32, signed: false };
        let computed = if result == Scalar::Bool { result } else { word };
        let ty = self.new_type(computed);
        let value = match operation {
            Operation::Core(opcode) => self.of_ids(opcode, ty, &operands),
            Operation::Extended(op) => {
                let name = Operand::LiteralString("GLSL.std.450".to_string());
                let set = self.linker.global(Op::ExtInstImport, None, vec![name]);
                let mut all = vec![Operand::IdRef(set), Operand::LiteralExtInstInteger(op as u32)];
                all.extend(operands.into_iter().map(Operand::IdRef));
                self.op(Op::ExtInst, ty, all)
            }
        };
        Ok(Some(if result == Scalar::Bool { value } else { self.convert(Op::UConvert, value, word, result)? }))
    }
}
