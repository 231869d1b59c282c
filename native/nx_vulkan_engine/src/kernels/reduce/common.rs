//! What all elements of an output have in common: steps on operands that lie along the outputs alone.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::value_type;
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::scalar::Value;
use nx_vulkan_spirv::steps::{find, run_steps};
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::Producer;
use crate::kernels::rows::Along;

/// The steps of a producer in two parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// For each operand, whether it is the same for all elements of an output.
    pub common_inputs: Vec<bool>,
    /// Steps on such operands.
    pub common: Vec<Step>,
    /// What the other steps take of these.
    pub kept: Vec<Ref>,
    /// The other steps: their inputs are the other operands, then what is kept.
    pub own: Vec<Step>,
    /// What each of the reductions takes.
    pub values: SmallVec<[Ref; 1]>,
}

/// Where a step stands: among the common ones, or the others.
#[derive(Clone, Copy)]
enum At {
    Common(u16),
    Own(u16),
}

impl Parts {
    pub fn of(producer: &Producer) -> Parts {
        let is_word = |dtype: DType| matches!(dtype.ctype(), CType::I32 | CType::U32 | CType::F32);
        let inputs = producer.inputs.iter().map(|port| port.along == Along::Row && is_word(port.dtype));
        let mut parts = Parts { common_inputs: inputs.collect(), ..Parts::default() };
        let mut places: Vec<At> = Vec::new();
        for step in &producer.steps {
            let args: SmallVec<[Option<Ref>; 3]> = step.args.iter().map(|&r| parts.in_common(r, &places)).collect();
            let args: Option<SmallVec<[Ref; 3]>> = args.into_iter().collect();
            match args.filter(|_| is_word(step.out)) {
                Some(args) => {
                    places.push(At::Common(parts.common.len() as u16));
                    parts.common.push(Step { args, ..step.clone() });
                }
                None => {
                    let args = step.args.iter().map(|&r| parts.own(r, &places)).collect();
                    places.push(At::Own(parts.own.len() as u16));
                    parts.own.push(Step { args, ..step.clone() });
                }
            }
        }
        parts.values = producer.values.iter().map(|&r| parts.own(r, &places)).collect();
        parts
    }

    /// The value among those that all elements have in common, if it is one.
    fn in_common(&self, value: Ref, places: &[At]) -> Option<Ref> {
        match value {
            Ref::Input(k) => self.common_inputs.get(usize::from(k))?.then_some(value),
            Ref::Result(k) => match places.get(usize::from(k))? {
                At::Common(k) => Some(Ref::Result(*k)),
                At::Own(_) => None,
            },
            Ref::Constant(..) => Some(value),
            Ref::Coordinate(_) | Ref::Linear => None,
        }
    }

    /// The value as the steps on elements see it.
    fn own(&mut self, value: Ref, places: &[At]) -> Ref {
        let is_own = |(_, common): &(usize, &bool)| !**common;
        match (value, self.in_common(value, places)) {
            (Ref::Constant(..) | Ref::Coordinate(_) | Ref::Linear, _) => value,
            (_, Some(common)) => {
                let known = self.kept.iter().position(|&kept| kept == common);
                let at = known.unwrap_or(self.kept.len());
                if known.is_none() {
                    self.kept.push(common);
                }
                let others = self.common_inputs.iter().filter(|&&common| !common).count();
                Ref::Input((others + at) as u8)
            }
            (Ref::Input(k), None) => {
                let before = self.common_inputs.iter().enumerate().take(usize::from(k));
                Ref::Input(before.filter(is_own).count() as u8)
            }
            (Ref::Result(k), None) => match places.get(usize::from(k)) {
                Some(At::Own(k)) => Ref::Result(*k),
                Some(At::Common(_)) | None => value,
            },
        }
    }

    /// Computes what is kept of the operands, of which those in common are values, and puts it into variables.
    pub fn begin(&self, code: &mut Code<'_, '_>, inputs: &[Value], o: Word) -> Result<Vec<Variable>> {
        let results = run_steps(code, &self.common, inputs, o, &[])?;
        let mut variables = Vec::new();
        for &kept in &self.kept {
            let value = find(code, kept, inputs, &results, o, &[])?;
            let ty = value_type(code, value.dtype.ctype());
            let variable = Variable { id: code.linker.private_variable(ty), dtype: value.dtype };
            let operands = [variable.id, value.id].map(Operand::IdRef).to_vec();
            code.instructions.push(Instruction::new(SpirvOp::Store, None, None, operands));
            variables.push(variable);
        }
        Ok(variables)
    }
}

/// Where each invocation keeps a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Variable {
    id: Word,
    dtype: DType,
}

impl Variable {
    pub fn load(self, code: &mut Code<'_, '_>) -> Value {
        let ty = value_type(code, self.dtype.ctype());
        Value { id: code.ids(SpirvOp::Load, ty, &[self.id]), dtype: self.dtype }
    }
}

#[cfg(test)]
mod tests {
    use nx_vulkan_ir::program::{Binary, Elementwise};
    use smallvec::smallvec;

    use super::*;
    use crate::kernels::rows::RowPort;

    #[test]
    fn steps_on_the_output_alone_stand_apart() {
        let port = |dtype, along| RowPort { dtype, along, bounded: false };
        let step = |op, a, b, out| Step { op: Elementwise::Binary(op), args: smallvec![a, b], out };
        let t = DType::Bf16;
        let producer = Producer {
            inputs: vec![
                port(t, Along::Row),
                port(t, Along::Vector),
                port(t, Along::Row),
                port(DType::F64, Along::Row),
            ],
            steps: vec![
                step(Binary::Divide, Ref::Input(0), Ref::Input(2), t),
                step(Binary::Subtract, Ref::Input(1), Ref::Result(0), t),
                step(Binary::Add, Ref::Result(0), Ref::Constant(t, 1), t),
                step(Binary::Multiply, Ref::Result(1), Ref::Result(2), t),
                // Two words are left with the elements.
                step(Binary::Add, Ref::Input(3), Ref::Input(2), DType::F64),
            ],
            values: smallvec![Ref::Result(3), Ref::Result(4), Ref::Result(0)],
        };
        let parts = Parts::of(&producer);
        assert_eq!(parts.common_inputs, [true, false, true, false]);
        let first = step(Binary::Divide, Ref::Input(0), Ref::Input(2), t);
        assert_eq!(parts.common, [first, step(Binary::Add, Ref::Result(0), Ref::Constant(t, 1), t)]);
        assert_eq!(parts.kept, [Ref::Result(0), Ref::Result(1), Ref::Input(2)]);
        let own = [
            step(Binary::Subtract, Ref::Input(0), Ref::Input(2), t),
            step(Binary::Multiply, Ref::Result(0), Ref::Input(3), t),
            step(Binary::Add, Ref::Input(1), Ref::Input(4), DType::F64),
        ];
        assert_eq!(parts.own, own);
        assert_eq!(parts.values[..], [Ref::Result(1), Ref::Result(2), Ref::Input(2)]);
    }
}
