//! Functions of scalars: the sub-programs of folds.

use smallvec::SmallVec;

use super::attribute::Scalar;
use super::ops::{Binary, Elementwise, accepts};
use super::wire::{Attr, Attrs, number};
use crate::value::Value;
use crate::{DType, Error, Result, Type};

/// Steps that a function may have: what one kernel can reasonably hold.
pub const MAX_STEPS: usize = 4096;

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalars {
    /// The bits of a value of the step's type.
    Constant(u128),
    /// An op of scalars.
    Elementwise(Elementwise),
}

/// One value of a function. Values are numbered: the function's inputs first, then its steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScalarStep {
    /// What it computes.
    pub op: Scalars,
    /// From which values.
    pub args: SmallVec<[u16; 3]>,
    /// The type of the result.
    pub out: DType,
}

/// A function of an element, the accumulator and scalars that it captured.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    /// In order.
    pub steps: Vec<ScalarStep>,
    /// The value that is the function's.
    pub result: u16,
}

impl Function {
    /// The accumulator and half of what is captured, for samples of ops.
    pub(super) fn sample() -> Function {
        let step = |op, args: &[u16]| ScalarStep { op, args: args.into(), out: DType::F32 };
        let binary = |op| Scalars::Elementwise(Elementwise::Binary(op));
        let half = Scalars::Constant(0.5f32.to_bits().into());
        let steps = vec![step(half, &[]), step(binary(Binary::Multiply), &[3, 2]), step(binary(Binary::Add), &[1, 4])];
        Function { steps, result: 5 }
    }

    /// Checks that it takes an element, the accumulator and scalars, as ops have them that fold their first operand.
    pub(super) fn folds(&self, operands: &[&Type], out: &Type) -> std::result::Result<(), String> {
        if operands[1..].iter().any(|t| t.elements() != 1) {
            return Err("needs an operand, and scalars".to_string());
        }
        let captured = operands[2..].iter().map(|t| t.dtype);
        let inputs: Vec<DType> = [operands[0].dtype, out.dtype].into_iter().chain(captured).collect();
        self.check(&inputs, out.dtype)
    }

    /// Checks that values exist before they are used, that every step takes its arguments, and that the result is an
    /// `out`.
    pub fn check(&self, inputs: &[DType], out: DType) -> std::result::Result<(), String> {
        if self.steps.len() > MAX_STEPS || inputs.len() > 64 {
            return Err(format!("a function of {} steps and {} inputs", self.steps.len(), inputs.len()));
        }
        let mut types = inputs.to_vec();
        for (i, step) in self.steps.iter().enumerate() {
            let args: Option<Vec<DType>> = step.args.iter().map(|&arg| types.get(usize::from(arg)).copied()).collect();
            let Some(args) = args else {
                return Err(format!("step {i} uses values {:?} of {}", step.args, types.len()));
            };
            let fits = match step.op {
                Scalars::Constant(_) => args.is_empty(),
                Scalars::Elementwise(op) => args.len() == op.arity() && accepts(op, &args, step.out),
            };
            if !fits {
                return Err(format!("step {i}: {:?} of {args:?} does not give {}", step.op, step.out));
            }
            types.push(step.out);
        }
        match types.get(usize::from(self.result)) {
            Some(&dtype) if dtype == out => Ok(()),
            other => Err(format!("the function's result is {other:?}, not {out}")),
        }
    }

    /// Reads the attribute `function`: `[[[name, arguments, type] or ["constant", value, type], ..], result]`.
    pub fn from_wire(a: &Attrs<'_>) -> Result<Function> {
        let fail = || a.fail("function", "steps and the number of the result");
        let [Attr::List(steps), Attr::Int(result)] = a.list("function", "steps and a result")? else {
            return Err(fail());
        };
        let index = |attr: &Attr| match attr {
            Attr::Int(i) => u16::try_from(*i).map_err(|_| fail()),
            _ => Err(fail()),
        };
        let steps = steps.iter().map(|step| {
            let Attr::List(step) = step else { return Err(fail()) };
            let [Attr::Name(name), arguments, Attr::Name(out)] = step.as_slice() else { return Err(fail()) };
            let out = DType::from_name(out).ok_or_else(fail)?;
            if name == "constant" {
                let value = Value::from(number(arguments).ok_or_else(fail)?).cast(out);
                return Ok(ScalarStep { op: Scalars::Constant(value.to_bits(out)), args: SmallVec::new(), out });
            }
            let Attr::List(args) = arguments else { return Err(fail()) };
            let op = Elementwise::from_name(name).ok_or_else(|| Error::Unsupported {
                op: a.op().to_string(),
                dtype: None,
                needs: format!("a function of scalars without {name}"),
            })?;
            Ok(ScalarStep { op: Scalars::Elementwise(op), args: args.iter().map(index).collect::<Result<_>>()?, out })
        });
        let result = u16::try_from(*result).map_err(|_| fail())?;
        Ok(Function { steps: steps.collect::<Result<_>>()?, result })
    }

    /// The wire form.
    pub fn attr(&self) -> (String, Attr) {
        let step = |step: &ScalarStep| {
            let (name, arguments) = match step.op {
                Scalars::Constant(bits) => ("constant", Scalar::from(Value::from_bits(step.out, bits)).attr()),
                Scalars::Elementwise(op) => {
                    (op.name(), Attr::List(step.args.iter().map(|&arg| Attr::Int(arg.into())).collect()))
                }
            };
            Attr::List(vec![Attr::Name(name.to_string()), arguments, Attr::Name(step.out.name().to_string())])
        };
        let steps = Attr::List(self.steps.iter().map(step).collect());
        ("function".to_string(), Attr::List(vec![steps, Attr::Int(self.result.into())]))
    }
}
