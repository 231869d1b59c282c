//! What fills the slots of the templates of reductions: where elements come from, how accumulators are combined, and
//! what becomes of results. Outputs are numbered `o`, elements of an output `r`.

use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::Ref;
use nx_vulkan_ir::{DType, Error, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::ReducerCode;
use nx_vulkan_spirv::scalar::Value;
use nx_vulkan_spirv::steps::{find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::common::{Parts, Variable};
use super::{Producer, ReduceEpilogue, ReduceSpec, Stage};
use crate::kernels::rows::Along;

/// Words or values, one for each reducer.
type Lane = SmallVec<[Word; 4]>;

/// The types of the accumulators of an element, and of the structure of them where there are several.
struct Together {
    all: Option<Word>,
    members: Lane,
}

impl Together {
    /// The template for several has a structure, which gets their types.
    fn of(reducers: &[Reducer], linker: &mut Linker<'_>) -> Result<Together> {
        let uint = linker.type_uint(32);
        let mut ty = |reducer: &Reducer| match reducer.words() {
            1 => uint,
            words => linker.type_vector(uint, words),
        };
        let members: Lane = reducers.iter().map(&mut ty).collect();
        let all = if members.len() > 1 { Some(linker.set_members("slot_identity", &members)?) } else { None };
        Ok(Together { all, members })
    }

    fn join(&self, code: &mut Code<'_, '_>, parts: Lane) -> Option<Word> {
        match self.all {
            Some(all) => Some(code.ids(SpirvOp::CompositeConstruct, all, &parts)),
            None => parts.first().copied(),
        }
    }

    fn part(&self, code: &mut Code<'_, '_>, all: Word, k: u32) -> Word {
        match self.members.get(k as usize).filter(|_| self.all.is_some()) {
            Some(&member) => code.extract(member, all, k),
            None => all,
        }
    }
}

/// A kernel whose slots are filled one after the other.
pub(super) struct Slots<'a> {
    spec: &'a ReduceSpec,
    parts: &'a Parts,
    /// Where what elements have in common is kept.
    common: Vec<Variable>,
    together: Together,
    pub params: ParamLayout,
}

impl<'a> Slots<'a> {
    /// Of a kernel whose producer is in these parts.
    pub fn new(spec: &'a ReduceSpec, linker: &mut Linker<'_>, parts: &'a Parts) -> Result<Slots<'a>> {
        let together = Together::of(&spec.reducers, linker)?;
        let params = ParamLayout::new(&[Param::Count, Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        Ok(Slots { spec, parts, common: Vec::new(), together, params })
    }

    /// Computes what all elements of an output have in common.
    pub fn begin(&mut self, code: &mut Code<'_, '_>, o: Word) -> Result<Option<Word>> {
        let zero = code.linker.const_u32(0);
        let mut inputs: SmallVec<[Value; 4]> = SmallVec::new();
        for (k, port) in (0u8..).zip(self.spec.producer.iter().flat_map(|producer| &producer.inputs)) {
            let is_common = self.parts.common_inputs.get(usize::from(k)) == Some(&true);
            let id = match is_common {
                true => self.element(code, (k, port.dtype), (o, zero))?,
                // No step takes it.
                false => zero,
            };
            inputs.push(Value { id, dtype: port.dtype });
        }
        self.common = self.parts.begin(code, &inputs, o)?;
        Ok(None)
    }

    /// The accumulator of no elements.
    pub fn identity(&self, code: &mut Code<'_, '_>) -> Result<Option<Word>> {
        let parts = self.spec.reducers.iter().map(|reducer| reducer.identity(code)).collect::<Result<_>>()?;
        Ok(self.together.join(code, parts))
    }

    /// The accumulator of the elements of two.
    pub fn combine(&self, code: &mut Code<'_, '_>, a: Word, b: Word) -> Result<Option<Word>> {
        let mut parts = Lane::new();
        for (k, reducer) in (0..).zip(&self.spec.reducers) {
            let [a, b] = [a, b].map(|all| self.together.part(code, all, k));
            parts.push(reducer.combine(code, a, b)?);
        }
        Ok(self.together.join(code, parts))
    }

    /// The accumulator of one element, or one of a chunk.
    pub fn load(&mut self, code: &mut Code<'_, '_>, (o, r): (Word, Word)) -> Result<Option<Word>> {
        let spec = self.spec;
        if spec.stage == Stage::Last {
            return self.load_partial(code, (o, r));
        }
        if let Some(producer) = &spec.producer {
            let [lane] = &self.produced(code, producer, (o, r), 1)?[..] else { return Ok(None) };
            let mut parts = Lane::new();
            for (reducer, &id) in spec.reducers.iter().zip(lane) {
                parts.push(reducer.lift(code, id, r)?);
            }
            return Ok(self.together.join(code, parts));
        }
        let only = self.only()?;
        let id = self.element(code, (0, only.input), (o, r))?;
        let Some(times) = spec.times else { return only.lift(code, id, r).map(Some) };
        let by = self.element(code, (1, times), (o, r))?;
        only.lift_product(code, id, by, times).map(Some)
    }

    /// The accumulators of a chunk.
    fn load_partial(&mut self, code: &mut Code<'_, '_>, (o, r): (Word, Word)) -> Result<Option<Word>> {
        let mut parts = Lane::new();
        for (k, reducer) in (0..).zip(&self.spec.reducers) {
            let at = self.position(code, k, (o, r))?;
            let (address, element) = (self.params.address(k), Element::Raw(reducer.accumulator_bytes() as u8));
            parts.push(access::load(code, address, element, at)?);
        }
        Ok(self.together.join(code, parts))
    }

    /// The accumulator of `width` neighbours from element `r` on.
    pub fn load_vector(&mut self, code: &mut Code<'_, '_>, (o, r): (Word, Word), width: u32) -> Result<Option<Word>> {
        let lifted = self.lifted(code, (o, r), width)?;
        let mut parts = Lane::new();
        for (reducer, lifted) in self.spec.reducers.iter().zip(lifted) {
            let Some(all) = reducer.combine_all(code, lifted, self.spec.times.is_none())? else { return Ok(None) };
            parts.push(all);
        }
        Ok(self.together.join(code, parts))
    }

    /// Stores the results of an output, or the accumulators of a chunk.
    pub fn store(&mut self, code: &mut Code<'_, '_>, o: Word, all: Word) -> Result<Option<Word>> {
        let spec = self.spec;
        let mut values: SmallVec<[Value; 4]> = SmallVec::new();
        let operands = self.operands();
        for (k, reducer) in (0u8..).zip(&spec.reducers) {
            let words = self.together.part(code, all, k.into());
            if spec.stage == Stage::First {
                let (address, element) = (self.params.address(operands + k), reducer.accumulator_bytes() as u8);
                access::store(code, address, Element::Raw(element), o, words)?;
                continue;
            }
            values.push(Value { id: reducer.lower(code, words)?, dtype: reducer.out });
        }
        let mut first = operands;
        if let Some(epilogue) = spec.epilogue.as_ref().filter(|_| spec.stage != Stage::First) {
            first += epilogue.inputs.len() as u8;
            values = self.finished(code, epilogue, (operands, o), values)?;
        }
        for (k, value) in (first..).zip(values) {
            let address = self.params.address(k);
            access::store(code, address, Element::Typed(value.dtype), o, value.id)?;
        }
        Ok(None)
    }

    fn only(&self) -> Result<&'a Reducer> {
        let reason = || "several reductions of what nothing computes".to_string();
        let only = if let [only] = &*self.spec.reducers { Some(only) } else { None };
        only.ok_or_else(|| Error::InvalidProgram { op: "reduce".to_string(), reason: reason() })
    }

    /// Operands that are reduced.
    fn operands(&self) -> u8 {
        match (&self.spec.producer, self.spec.times) {
            _ if self.spec.stage == Stage::Last => self.spec.reducers.len() as u8,
            (Some(producer), _) => producer.inputs.len() as u8,
            (None, Some(_)) => 2,
            (None, None) => 1,
        }
    }

    /// What the epilogue makes of results number `o`; its operands come from number `first` on.
    fn finished(
        &mut self,
        code: &mut Code<'_, '_>,
        epilogue: &ReduceEpilogue,
        (first, o): (u8, Word),
        mut values: SmallVec<[Value; 4]>,
    ) -> Result<SmallVec<[Value; 4]>> {
        let (axis, params) = (self.spec.kept_rank + self.spec.reduced_rank, &mut self.params);
        let coordinates = access::coordinates(code, params, o, axis, epilogue.rank)?;
        for (k, &dtype) in (first..).zip(&epilogue.inputs) {
            let sum = access::position(code, params, k, axis, &coordinates)?;
            let at = access::biased(code, params, k, sum)?;
            let id = access::load(code, params.address(k), Element::Typed(dtype), at)?;
            values.push(Value { id, dtype });
        }
        let zero = code.linker.const_u32(0);
        let steps = run_steps(code, &epilogue.steps, &values, zero, &[])?;
        let result = |&(r, dtype): &(Ref, DType)| {
            find(code, r, &values, &steps, zero, &[]).map(|value| Value { id: value.id, dtype })
        };
        epilogue.results.iter().map(result).collect()
    }

    /// Accumulators of `width` neighbours from element `r` on, for each reducer.
    fn lifted(&mut self, code: &mut Code<'_, '_>, (o, r): (Word, Word), width: u32) -> Result<SmallVec<[Lane; 1]>> {
        let spec = self.spec;
        let mut lifted: SmallVec<[Lane; 1]> = SmallVec::from_elem(Lane::new(), spec.reducers.len());
        let lanes: SmallVec<[Lane; 4]> = match &spec.producer {
            Some(producer) => self.produced(code, producer, (o, r), width)?,
            None => {
                let only = self.only()?;
                let elements = self.vector(code, (0, only.input), (o, r), width)?;
                if let Some(times) = spec.times {
                    let factors = self.vector(code, (1, times), (o, r), width)?;
                    for (id, by) in elements.into_iter().zip(factors) {
                        let product = only.lift_product(code, id, by, times)?;
                        lifted.iter_mut().for_each(|parts| parts.push(product));
                    }
                    return Ok(lifted);
                }
                elements.into_iter().map(|id| Lane::from_slice(&[id])).collect()
            }
        };
        for (i, lane) in (0..).zip(&lanes) {
            let offset = code.linker.const_u32(i);
            let index = code.u32_op(SpirvOp::IAdd, r, offset);
            for ((reducer, &id), parts) in spec.reducers.iter().zip(lane).zip(&mut lifted) {
                parts.push(reducer.lift(code, id, index)?);
            }
        }
        Ok(lifted)
    }

    /// What the steps compute at `width` neighbours from element `r` on: at each, what each reducer takes.
    fn produced(
        &mut self,
        code: &mut Code<'_, '_>,
        producer: &Producer,
        (o, r): (Word, Word),
        width: u32,
    ) -> Result<SmallVec<[Lane; 4]>> {
        let parts = self.parts;
        let mut lanes: SmallVec<[SmallVec<[Value; 4]>; 4]> = SmallVec::from_elem(SmallVec::new(), width as usize);
        let own = (0u8..).zip(&producer.inputs).zip(&parts.common_inputs).filter(|(_, common)| !**common);
        for ((k, port), _) in own {
            let (address, element, dtype) = (self.params.address(k), Element::Typed(port.dtype), port.dtype);
            match port.along {
                Along::Row => {
                    let id = self.element(code, (k, dtype), (o, r))?;
                    lanes.iter_mut().for_each(|lane| lane.push(Value { id, dtype }));
                }
                Along::Vector if width > 1 => {
                    let ids = self.vector(code, (k, dtype), (o, r), width)?;
                    lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.push(Value { id, dtype }));
                }
                Along::Vector | Along::Strided => {
                    for (i, lane) in (0u32..).zip(&mut lanes) {
                        let offset = code.linker.const_u32(i);
                        let index = code.u32_op(SpirvOp::IAdd, r, offset);
                        let at = self.position(code, k, (o, index))?;
                        lane.push(Value { id: access::load(code, address, element, at)?, dtype });
                    }
                }
            }
        }
        for variable in &self.common {
            let value = variable.load(code);
            lanes.iter_mut().for_each(|lane| lane.push(value));
        }
        let mut produced = SmallVec::new();
        for lane in &lanes {
            let results = run_steps(code, &parts.own, lane, o, &[])?;
            let value = |&r: &Ref| find(code, r, lane, &results, o, &[]).map(|value| value.id);
            produced.push(parts.values.iter().map(value).collect::<Result<_>>()?);
        }
        Ok(produced)
    }

    /// An element of an operand.
    fn element(
        &mut self,
        code: &mut Code<'_, '_>,
        (operand, dtype): (u8, DType),
        (o, r): (Word, Word),
    ) -> Result<Word> {
        let at = self.position(code, operand, (o, r))?;
        access::load(code, self.params.address(operand), Element::Typed(dtype), at)
    }

    /// `width` neighbours of an operand, which lie together, from element `r` on.
    fn vector(
        &mut self,
        code: &mut Code<'_, '_>,
        (operand, dtype): (u8, DType),
        (o, r): (Word, Word),
        width: u32,
    ) -> Result<SmallVec<[Word; 4]>> {
        let width_id = code.linker.const_u32(width);
        let at = self.position(code, operand, (o, r))?;
        let group = code.u32_op(SpirvOp::UDiv, at, width_id);
        access::load_vector(code, self.params.address(operand), Element::Typed(dtype), width, group)
    }

    /// Where an element of an operand lies.
    fn position(&mut self, code: &mut Code<'_, '_>, operand: u8, (o, r): (Word, Word)) -> Result<Word> {
        let (kept, reduced, params) = (self.spec.kept_rank, self.spec.reduced_rank, &mut self.params);
        let outer = access::coordinates(code, params, o, 0, kept)?;
        let inner = access::coordinates(code, params, r, kept, reduced)?;
        let outer = access::position(code, params, operand, 0, &outer)?;
        let inner = access::position(code, params, operand, kept, &inner)?;
        let sum = code.u32_op(SpirvOp::IAdd, outer, inner);
        access::biased(code, params, operand, sum)
    }
}
