//! Loops and branches.

use std::cell::Cell;

use super::{Batch, Value, owns};
use crate::program::{Branches, Builder, Loop, Op, Operand, Program};
use crate::{Error, Result, Type};

impl Batch {
    /// A program of such inputs, which runs for all or not.
    fn part(
        &self,
        inputs: &[Type],
        own: &[bool],
        all_run: bool,
        build: impl FnOnce(&Batch, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Program> {
        let part = Batch { b: Builder::new(), count: self.count, all_run: Cell::new(all_run) };
        let inputs: Vec<Value> = inputs.iter().zip(own).map(|(ty, &own)| part.input(ty, own)).collect();
        let outputs: Vec<Operand> = build(&part, &inputs)?.iter().map(|value| value.at).collect();
        part.b.finish(&outputs)
    }

    /// The value as others have it that is each one's own, or the one of all.
    fn as_own(&self, value: Value, own: bool) -> Value {
        if own { Value { at: self.wide(value), own } } else { value }
    }

    pub(super) fn while_loop(&self, op: &Loop, operands: &[Value]) -> Result<Vec<Value>> {
        let types: Vec<Type> = operands.iter().map(|&value| self.each(value)).collect();
        let cells = op.body.outputs.len();
        let flags: Vec<bool> = operands.iter().map(|value| value.own).collect();
        let (own, apart) = owns::cells(op, &flags);
        if apart && !self.all_run.get() {
            // From a state that its own program never has, a loop may go on for ever.
            let needs = "a count that all share within a branch or loop that each takes on its own".to_string();
            return Err(Error::Unsupported { op: "while".to_string(), dtype: None, needs });
        }
        let condition = self.part(&types, &own, self.all_run.get(), |part, inputs| {
            let goes_on = part.append(&op.condition, inputs)?;
            Ok(goes_on.iter().map(|&value| Value { at: part.goes_on(value), own: false }).collect())
        })?;
        let body = self.part(&types, &own, self.all_run.get() && !apart, |part, inputs| {
            let next = part.append(&op.body, inputs)?;
            let goes_on = if apart { part.append(&op.condition, inputs)?.first().copied() } else { None };
            let kept = |(i, &value): (usize, &Value)| {
                let next = part.as_own(value, own[i]);
                match goes_on.filter(|_| own[i]) {
                    Some(goes_on) => Value { at: part.chosen(goes_on, [next.at, inputs[i].at], &types[i]), own: true },
                    None => next,
                }
            };
            Ok(next.iter().enumerate().map(kept).collect())
        })?;
        let operands: Vec<Value> = operands.iter().zip(&own).map(|(&value, &own)| self.as_own(value, own)).collect();
        let led = |(ty, &own): (&Type, &bool)| if own { self.lead(ty) } else { ty.clone() };
        let outs: Vec<Type> = types[..cells].iter().zip(&own).map(led).collect();
        let places: Vec<Operand> = operands.iter().map(|value| value.at).collect();
        let results = self.b.push_all(Op::While(Box::new(Loop::new(condition, body))), &places, &outs);
        Ok(results.into_iter().zip(own).map(|(at, own)| Value { at, own }).collect())
    }

    /// Whether it goes on for anyone.
    fn goes_on(&self, condition: Value) -> Operand {
        if condition.own { self.any(condition.at) } else { condition.at }
    }

    /// Of two values of their own with that type for each, the first where the predicate holds.
    fn chosen(&self, predicate: Value, [on_true, on_false]: [Operand; 2], ty: &Type) -> Operand {
        let mut shape = vec![1; ty.shape.len() + 1];
        shape[0] = self.count;
        let predicate = match predicate.own {
            true => self.b.reshape(predicate.at, &shape),
            false => self.b.reshape(predicate.at, &[]),
        };
        self.b.push(Op::Select, &[predicate, on_true, on_false], &self.lead(ty))
    }

    pub(super) fn cond(&self, op: &Branches, operands: &[Value], outs: &[Type]) -> Result<Vec<Value>> {
        let (predicate, captured) = (operands[0], &operands[1..]);
        if predicate.own {
            let all_run = self.all_run.replace(false);
            let [on_true, on_false] = [self.append(&op.on_true, captured)?, self.append(&op.on_false, captured)?];
            self.all_run.set(all_run);
            let ways = on_true.into_iter().zip(on_false).zip(outs);
            let chosen = ways.map(|((a, b), ty)| self.chosen(predicate, [self.wide(a), self.wide(b)], ty));
            return Ok(chosen.map(Batch::own).collect());
        }
        let types: Vec<Type> = captured.iter().map(|&value| self.each(value)).collect();
        let own: Vec<bool> = captured.iter().map(|value| value.own).collect();
        let [on_true, on_false] = [&op.on_true, &op.on_false].map(|program| owns::outputs(program, &own));
        let owns: Vec<bool> = on_true.into_iter().zip(on_false).map(|(a, b)| a || b).collect();
        let alike = |program: &Program| {
            self.part(&types, &own, self.all_run.get(), |part, inputs| {
                let outputs = part.append(program, inputs)?;
                Ok(outputs.iter().zip(&owns).map(|(&value, &own)| part.as_own(value, own)).collect())
            })
        };
        let op = Branches { on_true: alike(&op.on_true)?, on_false: alike(&op.on_false)? };
        let outs: Vec<Type> =
            outs.iter().zip(&owns).map(|(ty, &own)| if own { self.lead(ty) } else { ty.clone() }).collect();
        let places: Vec<Operand> = operands.iter().map(|value| value.at).collect();
        let results = self.b.push_all(Op::Cond(Box::new(op)), &places, &outs);
        Ok(results.into_iter().zip(owns).map(|(at, own)| Value { at, own }).collect())
    }
}
