//! Checks that a program keeps the rules of the format: operands exist, attributes are in range, and the shapes and
//! types of results are those that the ops give.

use super::{Op, Operand, Program, ops};
use crate::{Error, Result, Type};

/// Checks a whole program.
///
/// # Errors
/// `InvalidProgram`, with the number of the instruction; `TooLarge`, within `InOp`, for a type that no tensor may have.
pub fn program(program: &Program) -> Result<()> {
    let named = |what: String| {
        move |e: Error| match e {
            Error::InvalidProgram { op, reason } => Error::InvalidProgram { op: format!("{what}: {op}"), reason },
            other => other,
        }
    };
    for (i, ty) in program.inputs.iter().enumerate() {
        input(i, ty)?;
    }
    let results: Vec<&Type> = program.results().collect();
    let find = |operand: Operand, before: usize| match operand {
        Operand::Result(k) => results.iter().take(before).nth(k as usize).copied(),
        Operand::Input(k) => program.inputs.get(k as usize),
    };
    let mut before = 0;
    for (i, instruction) in program.instructions.iter().enumerate() {
        let at = || named(format!("instruction {i}"));
        let name = instruction.op.name();
        let types: Vec<&Type> = instruction
            .operands
            .iter()
            .map(|&operand| {
                find(operand, before).ok_or_else(|| bad(name, format!("{operand:?} does not exist before it")))
            })
            .collect::<Result<_>>()
            .map_err(at())?;
        self::instruction(&instruction.op, &types, &instruction.outs).map_err(at())?;
        before += instruction.outs.len();
    }
    for &output in &program.outputs {
        if find(output, results.len()).is_none() {
            return Err(bad("outputs", format!("{output:?} does not exist")));
        }
    }
    Ok(())
}

/// Checks the type of one input.
///
/// # Errors
/// `TooLarge`, within `InOp`.
pub fn input(i: usize, ty: &Type) -> Result<()> {
    ty.check().map_err(|cause| Error::InOp {
        op: format!("input {i}"),
        operands: vec![],
        outs: vec![ty.clone()],
        cause: Box::new(cause),
    })
}

/// Checks one op with the types of its operands against the types that it should give.
///
/// # Errors
/// `InvalidProgram` with the op's name; `TooLarge`, within `InOp`, for a result that no tensor may have.
pub fn instruction(op: &Op, operands: &[&Type], outs: &[Type]) -> Result<()> {
    outs.iter().try_for_each(Type::check).map_err(|cause| Error::InOp {
        op: op.name().to_string(),
        operands: operands.iter().map(|&t| t.clone()).collect(),
        outs: outs.to_vec(),
        cause: Box::new(cause),
    })?;
    ops::check(op, operands, outs).map_err(|reason| bad(op.name(), reason))
}

fn bad(op: &str, reason: String) -> Error {
    Error::InvalidProgram { op: op.to_string(), reason }
}

#[cfg(test)]
mod tests {
    use smallvec::{SmallVec, smallvec};

    use super::*;
    use crate::DType;
    use crate::program::attribute::{Axes, Scalar};
    use crate::program::ops::index::{Gather, IndexedAdd};
    use crate::program::ops::moved::{Pad, Reverse};
    use crate::program::{Binary, Instruction, Reduction, Unary};

    fn ty(dtype: DType, shape: &[u64]) -> Type {
        Type::new(dtype, shape)
    }

    fn refused(op: Op, operands: &[Type], out: Type) -> String {
        match instruction(&op, &operands.iter().collect::<Vec<_>>(), std::slice::from_ref(&out)) {
            Err(Error::InvalidProgram { op: name, reason }) => {
                assert_eq!(name, op.name());
                reason
            }
            other => panic!("{op:?} {operands:?} {out:?}: {other:?}"),
        }
    }

    fn accepted(op: Op, operands: &[Type], out: Type) {
        instruction(&op, &operands.iter().collect::<Vec<_>>(), &[out]).unwrap();
    }

    #[test]
    fn right_instructions_pass() {
        let m = ty(DType::F32, &[2, 3]);
        let add = || Op::Binary(Binary::Add);
        accepted(add(), &[m.clone(), ty(DType::S64, &[3])], m.clone());
        accepted(add(), &[ty(DType::S32, &[]), ty(DType::U8, &[4])], ty(DType::U8, &[4]));
        accepted(Op::Select, &[ty(DType::U8, &[]), m.clone(), ty(DType::F32, &[])], m.clone());
        accepted(
            Op::from(Pad { config: smallvec![(-1, 0, 0), (1, 2, 1)] }),
            &[m.clone(), ty(DType::F32, &[])],
            ty(DType::F32, &[1, 8]),
        );
        let keep = Op::Reduce { reduction: Reduction::Sum, axes: smallvec![1], tie_high: false };
        accepted(keep.clone(), std::slice::from_ref(&m), ty(DType::F32, &[2, 1]));
        accepted(keep, std::slice::from_ref(&m), ty(DType::F32, &[2]));
        accepted(
            Op::from(Gather { axes: smallvec![1] }),
            &[m.clone(), ty(DType::S32, &[4, 1])],
            ty(DType::F32, &[4, 2]),
        );
        accepted(Op::After, &[m.clone(), ty(DType::S64, &[3])], m.clone());
        accepted(Op::Stack { axis: 2 }, &[m.clone(), m], ty(DType::F32, &[2, 3, 2]));
    }

    #[test]
    fn wrong_instructions_are_refused() {
        let m = ty(DType::F32, &[2, 3]);
        let i = ty(DType::S32, &[2, 3]);
        let axes = |a: &[usize]| Axes::from_slice(a);
        for (op, operands, out) in [
            (Op::Binary(Binary::Add), vec![m.clone()], m.clone()),
            (Op::Binary(Binary::Add), vec![m.clone(), ty(DType::F32, &[2])], m.clone()),
            (Op::Binary(Binary::Add), vec![m.clone(), i.clone()], i.clone()),
            (Op::Binary(Binary::Less), vec![m.clone(), m.clone()], m.clone()),
            (Op::Binary(Binary::Quotient), vec![m.clone(), m.clone()], m.clone()),
            (Op::Unary(Unary::Exp), vec![i.clone()], i.clone()),
            (Op::Unary(Unary::Exp), vec![ty(DType::F32, &[])], m.clone()),
            (Op::Unary(Unary::Erf), vec![ty(DType::C64, &[])], ty(DType::C64, &[])),
            (Op::Bitcast, vec![m.clone()], ty(DType::F64, &[2, 3])),
            (Op::Reshape, vec![m.clone()], ty(DType::F32, &[5])),
            (Op::Squeeze, vec![m.clone()], ty(DType::F32, &[3, 2])),
            (Op::After, vec![m.clone(), m.clone()], i.clone()),
            (Op::After, vec![], m.clone()),
            (Op::Broadcast { axes: axes(&[1, 1]) }, vec![m.clone()], ty(DType::F32, &[2, 3])),
            (Op::Broadcast { axes: axes(&[0, 2]) }, vec![m.clone()], ty(DType::F32, &[2, 3])),
            (Op::Transpose { axes: axes(&[0]) }, vec![m.clone()], m.clone()),
            (Op::Transpose { axes: axes(&[1, 0]) }, vec![m.clone()], m.clone()),
            (Op::from(Reverse { axes: axes(&[2]) }), vec![m.clone()], m.clone()),
            (Op::PutSlice { starts: smallvec![Some(0), Some(0)] }, vec![m.clone(), ty(DType::F32, &[3, 1])], m.clone()),
            (
                Op::PutSlice { starts: smallvec![Some(0), None] },
                vec![m.clone(), ty(DType::F32, &[1, 1]), ty(DType::F32, &[])],
                m.clone(),
            ),
            (
                Op::from(Pad { config: smallvec![(-3, 0, 0), (0, 0, 0)] }),
                vec![m.clone(), ty(DType::F32, &[])],
                m.clone(),
            ),
            (Op::Concatenate { axis: 2 }, vec![m.clone()], m.clone()),
            (Op::Concatenate { axis: 0 }, vec![], m.clone()),
            (Op::Concatenate { axis: 0 }, vec![m.clone(), ty(DType::F32, &[1, 2])], m.clone()),
            (Op::Stack { axis: 3 }, vec![m.clone()], ty(DType::F32, &[2, 3, 1])),
            (
                Op::Reduce { reduction: Reduction::Max, axes: axes(&[0]), tie_high: false },
                vec![ty(DType::C64, &[2])],
                ty(DType::C64, &[]),
            ),
            (
                Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0, 0]), tie_high: false },
                vec![m.clone()],
                ty(DType::F32, &[3]),
            ),
            (Op::from(Gather { axes: axes(&[0]) }), vec![m.clone(), ty(DType::S32, &[4, 2])], ty(DType::F32, &[4, 3])),
            (Op::from(Gather { axes: axes(&[0]) }), vec![m.clone(), m.clone()], m.clone()),
            (
                Op::from(IndexedAdd { axes: axes(&[0]) }),
                vec![m.clone(), ty(DType::S32, &[1, 1]), ty(DType::F32, &[2])],
                m.clone(),
            ),
            (Op::Iota { axis: Some(2) }, vec![], m.clone()),
            (Op::Eye, vec![], ty(DType::F32, &[2])),
            (Op::Constant(Scalar::Int(0)), vec![m.clone()], m.clone()),
            (
                Op::Slice { starts: smallvec![Some(0), Some(0)], strides: smallvec![1, 0], lengths: smallvec![1, 1] },
                vec![m.clone()],
                ty(DType::F32, &[1, 1]),
            ),
            (
                Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[1]), batch_b: axes(&[]) },
                vec![m.clone(), ty(DType::F32, &[3, 2])],
                ty(DType::F32, &[2, 3]),
            ),
        ] {
            refused(op, &operands, out);
        }
    }

    #[test]
    fn errors_name_the_instruction() {
        let m = ty(DType::F32, &[2]);
        let negate = |operand| Instruction {
            op: Op::Unary(Unary::Negate),
            operands: SmallVec::from_slice(&[operand]),
            outs: smallvec::smallvec![m.clone()],
        };
        let mut p = Program {
            inputs: vec![m.clone()],
            instructions: vec![negate(Operand::Input(0)), negate(Operand::Result(0))],
            outputs: vec![Operand::Result(1)],
        };
        program(&p).unwrap();
        p.instructions[1] = negate(Operand::Result(1));
        let message = program(&p).unwrap_err().to_string();
        assert!(message.contains("instruction 1: negate") && message.contains("Result(1)"), "{message}");
        p.instructions.pop();
        assert!(program(&p).unwrap_err().to_string().contains("outputs"));
        p.inputs[0] = ty(DType::F32, &[1 << 40, 1 << 40]);
        let error = program(&p).unwrap_err();
        assert!(matches!(error.cause(), Error::TooLarge { .. }) && error.to_string().contains("input 0"), "{error}");
        p.instructions[0].outs[0] = std::mem::replace(&mut p.inputs[0], m.clone());
        let error = program(&p).unwrap_err();
        assert!(matches!(error.cause(), Error::TooLarge { .. }) && error.to_string().contains("negate"), "{error}");
    }
}
