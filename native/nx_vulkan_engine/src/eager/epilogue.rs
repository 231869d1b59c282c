//! Fused ops that begin with a product: one kernel, or one more where the product takes several.

use super::dot::{self, Then};
use super::fused::loaded;
use super::{Call, conv};
use crate::program::epilogue::Epilogue;
use crate::program::{Op, Operand, Program};
use crate::{Error, Result, Tensor};

/// Runs a product and the steps on its results.
pub fn product(call: &Call<'_>, body: &Program, epilogue: Epilogue) -> Result<Tensor> {
    let missing = || call.invalid("begins with no product".into());
    let first = body.instructions.first().ok_or_else(missing)?;
    let operand = |o: &Operand| match *o {
        Operand::Input(k) => call.operand(k as usize).cloned(),
        Operand::Result(_) => Err(missing()),
    };
    let operands = first.operands.iter().map(operand).collect::<Result<Vec<_>>>()?;
    let out = first.outs.first().ok_or_else(missing)?;
    let then = Then {
        inputs: epilogue.loads.iter().map(|load| loaded(call, load)).collect::<Result<_>>()?,
        steps: epilogue.steps,
        result: epilogue.result,
        dtype: epilogue.dtype,
    };
    let call = Call { op: &first.op, operands: &operands, out, ..*call };
    match &first.op {
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot::dot(&call, [contract_a, contract_b], [batch_a, batch_b], Some(&then))
        }
        Op::Conv(op) => conv::conv(&call, op, Some(&then)),
        _ => Err(Error::InvalidProgram { op: first.op.name().to_string(), reason: "is no product".to_string() }),
    }
}
