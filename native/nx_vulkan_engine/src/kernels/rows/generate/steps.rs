//! The steps of a row's elements: by short forms of functions, by whole ones, or by either.

use nx_vulkan_ir::program::fused::Made;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access;
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::emit_step;
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::{Emission, Held, Way, missing};

impl Emission<'_, '_, '_, '_> {
    /// The values of a step, which is what makes `of`.
    pub(super) fn step(&mut self, step: &Step, of: Ref) -> Result<Held> {
        let args: Vec<Held> = step.args.iter().map(|&r| self.find(r)).collect::<Result<_>>()?;
        let one = |code: &mut Code<'_, '_>, k: usize| -> Result<Value> {
            let args: SmallVec<[Value; 3]> =
                args.iter().map(|a| a.at(k).ok_or_else(|| missing(Ref::Linear))).collect::<Result<_>>()?;
            Ok(Value { id: emit_step(code, step, &args)?, dtype: step.out })
        };
        if args.iter().all(|a| matches!(a, Held::Row(_))) {
            return one(self.code, 0).map(Held::Row);
        }
        let elements = 0..self.places.len();
        let each = |code: &mut Code<'_, '_>| elements.clone().map(|k| one(code, k)).collect::<Result<Vec<Value>>>();
        match self.way {
            Way::Short => return self.short(step, &args, of, each).map(Held::Each),
            Way::Whole if self.code.rare(each)?.is_none() => return each(self.code).map(Held::Each),
            Way::Whole => {
                let ids = self.one_by_one(step, &args)?.into_iter();
                return Ok(Held::Each(ids.map(|id| Value { id, dtype: step.out }).collect()));
            }
            Way::Both => {}
        }
        // Known before anything is computed, so that what is computed can take the place of what it is made of.
        let by_row = self.rare_quotient(step, &args)?;
        let rare = match by_row {
            Some(rare) => Some(rare),
            None => match self.rare_exponential(step, of)? {
                Some(rare) => Some(rare),
                None => self.code.rare(each)?,
            },
        };
        let Some(rare) = rare else { return each(self.code).map(Held::Each) };
        // Short forms of functions one beside the other, or whole ones for all of them where these do not serve one.
        let ty = access::value_type(self.code, step.out.ctype());
        let variables: Vec<Word> = elements.clone().map(|_| self.code.variable(ty)).collect();
        let mut branch = self.code.begin_if(rare);
        let whole = self.one_by_one(step, &args)?;
        variables.iter().zip(whole).for_each(|(&variable, value)| self.code.set(variable, value));
        self.code.begin_else(&mut branch);
        let short = match by_row {
            Some(_) => quotients(self.code, &args, step.out)?,
            None => self.code.hot(each)?.0,
        };
        for (&variable, value) in variables.iter().zip(short) {
            let id = scalar::plain_nan(self.code, value)?;
            self.code.set(variable, id);
        }
        self.code.end_if(branch);
        let get = |variable| Value { id: self.code.get(ty, variable), dtype: step.out };
        Ok(Held::Each(variables.into_iter().map(get).collect()))
    }

    /// The values of a step by short forms, in code that calls hot twins.
    fn short<F>(&mut self, step: &Step, args: &[Held], of: Ref, each: F) -> Result<Vec<Value>>
    where
        F: Fn(&mut Code<'_, '_>) -> Result<Vec<Value>>,
    {
        if let [Held::Each(dividends), Held::Row(divisor)] = args
            && step.op == Elementwise::Binary(Binary::Divide)
            && matches!(step.out, DType::F16 | DType::Bf16)
            && dividends.iter().chain([divisor]).all(|value| value.dtype == step.out)
            && self.code.divides_plainly(dividends, *divisor)?
        {
            return quotients(self.code, args, step.out);
        }
        let by_row = self.rare_quotient(step, args)?;
        let by_extreme = if by_row.is_none() { self.rare_exponential(step, of)? } else { None };
        if let Some(rare) = by_row.or(by_extreme) {
            self.code.add_rare(rare);
            let others = self.code.pause_hot();
            let values = match by_row {
                Some(_) => quotients(self.code, args, step.out),
                None => self.code.hot(each).map(|(values, _)| values),
            };
            self.code.resume_hot(others);
            return values;
        }
        // What masks leave out is infinitely far below: nothing is assumed of it.
        let assumes = self.code.assumes;
        self.code.assumes = assumes && !self.spec.is_exponent(of);
        self.code.is_at_most_one = self.spec.below_largest(step).is_some();
        let values = each(self.code);
        self.code.is_at_most_one = false;
        self.code.assumes = assumes;
        values
    }

    /// What [`Code::rare`] gives for elements of f32 that are all divided by the same number, if that is what the step
    /// does: two extremes of them say it, in three operations per element instead of seven.
    fn rare_quotient(&mut self, step: &Step, args: &[Held]) -> Result<Option<Word>> {
        let [Held::Each(dividends), Held::Row(divisor)] = args else { return Ok(None) };
        let is_f32 = dividends.iter().chain([divisor]).all(|value| value.dtype == DType::F32);
        if step.op != Elementwise::Binary(Binary::Divide)
            || step.out != DType::F32
            || !is_f32
            || !self.code.linker.fuses()
        {
            return Ok(None);
        }
        let dividend = step.args[0];
        let unsigned = self.has_no_sign(dividend);
        let uint = self.code.linker.type_uint(32);
        let keys: Vec<Word> = if unsigned {
            dividends.iter().map(|value| self.code.bitcast(uint, value.id)).collect()
        } else {
            let key = |value: &Value| self.code.call("nx_dividend_key_f32", &[value.id]);
            dividends.iter().map(key).collect::<Result<_>>()?
        };
        let (Some(&first), one) = (keys.first(), self.code.linker.const_u32(1)) else { return Ok(None) };
        let mut most = first;
        for &key in &keys[1..] {
            most = self.code.call("nx_max_u32", &[most, key])?;
        }
        // Of exponentials of no less than -41, which are above 2^-60, the least does not matter.
        let variable = self.code.variable(uint);
        let branch = match self.least_exponents.get(&dividend) {
            Some(&exponent) => {
                let (large, bool_type) = (self.code.linker.const_u32(0x3f80_0000), self.code.linker.type_bool());
                self.code.set(variable, large);
                let limit = access::constant(self.code, CType::F32, (-41f32).to_bits().into())
                    .ok_or_else(|| missing(dividend))?;
                // Not a number neither.
                let matters = self.code.ids(SpirvOp::FUnordLessThan, bool_type, &[exponent, limit]);
                Some(self.code.begin_if(matters))
            }
            None => None,
        };
        let mut least = self.code.u32_op(SpirvOp::ISub, first, one);
        for &key in &keys[1..] {
            let less = self.code.u32_op(SpirvOp::ISub, key, one);
            least = self.code.call("nx_min_u32", &[least, less])?;
        }
        self.code.set(variable, least);
        if let Some(branch) = branch {
            self.code.end_if(branch);
        }
        let mut least = self.code.get(uint, variable);
        if unsigned {
            most = self.code.call("nx_most_dividend_key_f32", &[most])?;
            least = self.code.call("nx_least_dividend_key_f32", &[least])?;
        }
        self.code.call("nx_rare_quotient_f32", &[most, least, divisor.id]).map(Some)
    }

    /// What [`Code::rare`] gives for exponentials of what elements of f32 are below the largest of them, if that is
    /// what the step does: the least of them says it.
    fn rare_exponential(&mut self, step: &Step, exponentials: Ref) -> Result<Option<Word>> {
        let Some([of, largest]) = self.spec.below_largest(step).filter(|_| step.out == DType::F32) else {
            return Ok(None);
        };
        let (Held::Row(largest), values @ Held::Each(_)) = (self.find(largest)?, self.find(of)?) else {
            return Ok(None);
        };
        let extremes = self.extremes(of, &values)?;
        let float = self.code.linker.type_float(32);
        let least = self.code.call("nx_least_of_extremes_f32", &extremes)?;
        let least = self.code.bitcast(float, least);
        let difference = self.code.call("nx_subtract_f32", &[least, largest.id])?;
        self.least_exponents.insert(exponentials, difference);
        self.code.call("nx_exp_f32_rare", &[difference]).map(Some)
    }

    /// Whether elements of f32 have no sign, not that of zero either, unless they are NaN.
    pub(super) fn has_no_sign(&self, r: Ref) -> bool {
        let Ref::Result(k) = r else { return false };
        let Some(Made::Step(step)) = self.spec.values.get(k as usize).map(|value| &value.made) else { return false };
        step.out.ctype() == CType::F32
            && match step.op {
                Elementwise::Unary(Unary::Exp | Unary::Abs) => true,
                Elementwise::Binary(Binary::Multiply) => {
                    matches!(step.args[..], [a, b] if a == b && self.spec.dtype(a).ctype() == CType::F32)
                }
                _ => false,
            }
    }

    /// What a step gives for each element, by a loop: its code is there once, so that what follows it is near.
    fn one_by_one(&mut self, step: &Step, args: &[Held]) -> Result<Vec<Word>> {
        let count = self.places.len() as u32;
        let (uint, bool_type) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let mut arrays = Vec::new();
        for held in args {
            let Held::Each(values) = held else {
                arrays.push(None);
                continue;
            };
            let Some(first) = values.first() else { return Err(missing(Ref::Linear)) };
            let (ty, dtype) = (access::value_type(self.code, first.dtype.ctype()), first.dtype);
            let array = self.code.array(ty, count);
            for (k, value) in (0u32..).zip(values) {
                let k = self.code.linker.const_u32(k);
                let place = self.code.array_place(array, ty, k);
                self.code.set(place, value.id);
            }
            arrays.push(Some((array, ty, dtype)));
        }
        let ty = access::value_type(self.code, step.out.ctype());
        let results = self.code.array(ty, count);
        let variable = self.code.variable(uint);
        let [zero, one, count_id] = [0, 1, count].map(|n| self.code.linker.const_u32(n));
        // Compilers that know the count unroll the loop, whatever it asks for.
        let nothing = access::zero_word(self.code)?;
        let end = self.code.u32_op(SpirvOp::BitwiseOr, count_id, nothing);
        self.code.set(variable, zero);
        let repeat = self.code.begin_loop();
        let k = self.code.get(uint, variable);
        let goes_on = self.code.ids(SpirvOp::ULessThan, bool_type, &[k, end]);
        self.code.go_on(&repeat, goes_on);
        let mut values: SmallVec<[Value; 3]> = SmallVec::new();
        for (held, array) in args.iter().zip(&arrays) {
            values.push(match (held, *array) {
                (_, Some((array, ty, dtype))) => {
                    let place = self.code.array_place(array, ty, k);
                    Value { id: self.code.get(ty, place), dtype }
                }
                (held, None) => held.at(0).ok_or_else(|| missing(Ref::Linear))?,
            });
        }
        let id = emit_step(self.code, step, &values)?;
        // What reads it knows no more how it was rounded.
        let id = scalar::plain_nan(self.code, Value { id, dtype: step.out })?;
        let place = self.code.array_place(results, ty, k);
        self.code.set(place, id);
        let next = self.code.u32_op(SpirvOp::IAdd, k, one);
        self.code.set(variable, next);
        self.code.end_loop(repeat);
        Ok((0..count)
            .map(|k| {
                let k = self.code.linker.const_u32(k);
                let place = self.code.array_place(results, ty, k);
                self.code.get(ty, place)
            })
            .collect())
    }
}

/// The quotients that [`Emission::rare_quotient`] is about, where they are not rare.
fn quotients(code: &mut Code<'_, '_>, args: &[Held], out: DType) -> Result<Vec<Value>> {
    let [Held::Each(dividends), Held::Row(divisor)] = args else { return Err(missing(Ref::Linear)) };
    let mut values = Vec::new();
    for dividend in dividends {
        let id = code.call("nx_shared_quotient_f32", &[dividend.id, divisor.id])?;
        code.know_result(Elementwise::Binary(Binary::Divide), &[*dividend, *divisor], id, None)?;
        values.push(Value { id: access::canonical(code, out, id)?, dtype: out });
    }
    Ok(values)
}
