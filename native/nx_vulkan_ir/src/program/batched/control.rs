//! Loops and branches.

use super::{Batch, First, Value, owns};
use crate::program::{Branches, Loop, Op, Operand, Program};
use crate::{DType, Result, Type};

impl Batch {
    /// A program of such inputs; before input `mask` it has one more, the mask.
    fn part(
        &self,
        inputs: &[Type],
        own: &[bool],
        mask: Option<usize>,
        build: impl FnOnce(&Batch, &[Value]) -> Result<Vec<Operand>>,
    ) -> Result<Program> {
        let part = Batch::new(self.count, First::Number(0));
        let bits = |at: usize| {
            if mask == Some(at) {
                part.mask.set(Some(part.b.input(DType::U8, &[self.count])));
            }
        };
        let mut values: Vec<Value> = Vec::with_capacity(inputs.len());
        for (i, (ty, &own)) in inputs.iter().zip(own).enumerate() {
            bits(i);
            values.push(part.input(ty, own));
        }
        bits(inputs.len());
        let outputs = build(&part, &values)?;
        part.b.finish(&outputs)
    }

    /// The value as others have it that is each one's own, or the one of all.
    fn as_own(&self, value: Value, own: bool) -> Value {
        if own && !value.own { Value::own(self.wide(value)) } else { value }
    }

    /// As operands of an op, with the mask before one of them.
    fn with_mask(values: &[Value], mask: Option<(usize, Operand)>) -> Vec<Operand> {
        let mut operands: Vec<Operand> = values.iter().map(|value| value.at).collect();
        if let Some((at, mask)) = mask {
            operands.insert(at, mask);
        }
        operands
    }

    pub(super) fn while_loop(&self, op: &Loop, operands: &[Value]) -> Result<Vec<Value>> {
        let types: Vec<Type> = operands.iter().map(|&value| self.each(value)).collect();
        let cells = op.body.outputs.len();
        let flags: Vec<bool> = operands.iter().map(|value| value.own).collect();
        let (own, apart) = owns::cells(op, &flags, self.mask.get().is_some());
        let operands: Vec<Value> = operands.iter().zip(&own).map(|(&value, &own)| self.as_own(value, own)).collect();
        let led = |(ty, &own): (&Type, &bool)| if own { self.lead(ty) } else { ty.clone() };
        let mut outs: Vec<Type> = types[..cells].iter().zip(&own).map(led).collect();
        let (condition, body, places) = if apart {
            // For whom it goes on is one of its cells.
            let going = self.and(self.bits(self.value(&op.condition, &operands)?), self.mask.get());
            outs.push(self.bit());
            let condition = self.part(&types, &own, Some(cells), |part, _| {
                Ok(part.mask.get().map(|m| part.any(m)).into_iter().collect())
            })?;
            let body = self.part(&types, &own, Some(cells), |part, inputs| part.step(op, inputs, &types, &own))?;
            (condition, body, Self::with_mask(&operands, Some((cells, going))))
        } else {
            // Loops within it may have to know who runs them.
            let is_open = [&op.condition, &op.body].into_iter().any(owns::has_open_loop);
            let mask = self.mask.get().filter(|_| is_open).map(|mask| (operands.len(), mask));
            let place = mask.map(|(at, _)| at);
            let condition = self.part(&types, &own, place, |part, inputs| {
                Ok(part.append(&op.condition, inputs)?.iter().map(|value| value.at).collect())
            })?;
            let body = self.part(&types, &own, place, |part, inputs| {
                let next = part.append(&op.body, inputs)?;
                Ok(next.iter().zip(&own).map(|(&value, &own)| part.as_own(value, own).at).collect())
            })?;
            (condition, body, Self::with_mask(&operands, mask))
        };
        let trips = op.trips.filter(|_| !apart);
        let results = self.b.push_all(Op::While(Box::new(Loop { condition, body, trips })), &places, &outs);
        Ok(results.into_iter().take(cells).zip(own).map(|(at, own)| Value::new(at, own)).collect())
    }

    /// The next state of a loop that ends for each alone, and for whom it goes on.
    fn step(&self, op: &Loop, inputs: &[Value], types: &[Type], own: &[bool]) -> Result<Vec<Operand>> {
        let next = self.append(&op.body, inputs)?;
        let mask = self.mask.get();
        let mut state: Vec<Value> = inputs.to_vec();
        for (i, &value) in next.iter().enumerate() {
            let stays = op.body.outputs.get(i) == Some(&Operand::Input(i as u32));
            state[i] = match mask.filter(|_| own[i] && !stays) {
                Some(mask) => Value::own(self.chosen(mask, [self.wide(value), inputs[i].at], &types[i])),
                None => self.as_own(value, own[i]),
            };
        }
        let goes_on = self.and(self.bits(self.value(&op.condition, &state)?), mask);
        Ok(state[..next.len()].iter().map(|value| value.at).chain([goes_on]).collect())
    }

    /// What a program of one output gives.
    fn value(&self, program: &Program, inputs: &[Value]) -> Result<Value> {
        let outputs = self.append(program, inputs)?;
        outputs.first().copied().map_or_else(|| super::unsupported(&Op::Select, "a condition"), Ok)
    }

    pub(super) fn cond(&self, op: &Branches, operands: &[Value], outs: &[Type]) -> Result<Vec<Value>> {
        let (predicate, captured) = (operands[0], &operands[1..]);
        if predicate.own {
            let holds = self.bits(predicate);
            let outer = self.mask.get();
            let way = |program: &Program, taken: Operand| {
                if owns::has_open_loop(program) {
                    self.mask.set(Some(self.and(taken, outer)));
                }
                let values = self.append(program, captured);
                self.mask.set(outer);
                values
            };
            let [on_true, on_false] = [way(&op.on_true, holds)?, way(&op.on_false, self.not(holds))?];
            let ways = on_true.into_iter().zip(on_false).zip(outs);
            let chosen = |((a, b), ty): ((Value, Value), &Type)| match a == b {
                true => a,
                false => Value::own(self.chosen(holds, [self.wide(a), self.wide(b)], ty)),
            };
            return Ok(ways.map(chosen).collect());
        }
        let types: Vec<Type> = captured.iter().map(|&value| self.each(value)).collect();
        let own: Vec<bool> = captured.iter().map(|value| value.own).collect();
        let programs = [&op.on_true, &op.on_false];
        let masked = self.mask.get().is_some();
        let [on_true, on_false] = programs.map(|program| owns::outputs(program, &own, masked));
        let owns: Vec<bool> = on_true.into_iter().zip(on_false).map(|(a, b)| a || b).collect();
        let is_open = programs.iter().any(|program| owns::has_open_loop(program));
        let mask = self.mask.get().filter(|_| is_open).map(|mask| (operands.len(), mask));
        let alike = |program: &Program| {
            self.part(&types, &own, mask.map(|_| captured.len()), |part, inputs| {
                let outputs = part.append(program, inputs)?;
                Ok(outputs.iter().zip(&owns).map(|(&value, &own)| part.as_own(value, own).at).collect())
            })
        };
        let op = Branches { on_true: alike(&op.on_true)?, on_false: alike(&op.on_false)? };
        let outs: Vec<Type> =
            outs.iter().zip(&owns).map(|(ty, &own)| if own { self.lead(ty) } else { ty.clone() }).collect();
        let results = self.b.push_all(Op::Cond(Box::new(op)), &Self::with_mask(operands, mask), &outs);
        Ok(results.into_iter().zip(owns).map(|(at, own)| Value::new(at, own)).collect())
    }
}
