//! Kernels that reduce over axes, perhaps several reductions of the same elements at once: which template, where
//! elements come from, and what becomes of results.

use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{DType, Error, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::ReducerCode;
use nx_vulkan_spirv::scalar::Value;
use nx_vulkan_spirv::steps::{find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::common::{Elements, Parts};
use crate::kernels::rows::{Along, RowPort};

/// Large reductions take two dispatches: chunks first, then the chunks' accumulators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Whole,
    First,
    Last,
}

/// Which template: neighbouring invocations walk along the reduced axis, or along the kept one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Rows {
        width: u8,
    },
    /// Of each output by one invocation, or by a team.
    Columns {
        in_teams: bool,
    },
}

/// Elementwise steps between memory and reductions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    pub inputs: Vec<RowPort>,
    pub steps: Vec<Step>,
    /// What each of the reductions takes.
    pub values: SmallVec<[Ref; 1]>,
}

/// Elementwise steps on what was reduced, before it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceEpilogue {
    /// Further operands, after those that are reduced.
    pub inputs: SmallVec<[DType; 2]>,
    /// The first inputs are what was reduced, those after them are `inputs`. Positions are not known.
    pub steps: SmallVec<[Step; 1]>,
    pub results: SmallVec<[(Ref, DType); 1]>,
    /// Axes of the results, behind those that are kept and reduced.
    pub rank: u8,
}

/// The key under which a reduction kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    /// One or several, for each element.
    pub reducers: SmallVec<[Reducer; 1]>,
    /// Another input, at whose elements those of the only reducer are multiplied.
    pub times: Option<DType>,
    /// What computes the elements from operands; without it they are those of one operand.
    pub producer: Option<Box<Producer>>,
    /// Not of a first stage.
    pub epilogue: Option<Box<ReduceEpilogue>>,
    pub stage: Stage,
    pub direction: Direction,
    /// Axes of the iteration space that are kept, then those that are reduced.
    pub kept_rank: u8,
    pub reduced_rank: u8,
    /// Vectors are accessed 8 bytes at a time.
    pub paired: bool,
}

/// Words or values, one for each reducer.
type Lane = SmallVec<[Word; 4]>;

/// The types of the accumulators of an element, and of the structure of them where there are several.
struct Together {
    all: Option<Word>,
    members: Lane,
}

impl Together {
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

impl ReduceSpec {
    /// Invocations per workgroup of the reduction templates.
    pub const LOCAL_SIZE: u32 = 256;

    /// Generates the kernel's SPIR-V.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let words = match *self.reducers {
            [only] => only.words().to_string(),
            _ => "several".to_string(),
        };
        let name = match self.direction {
            Direction::Rows { width: 1 } => format!("reduce_rows_{words}"),
            Direction::Rows { width } => format!("reduce_rows_{words}_v{width}"),
            Direction::Columns { in_teams: false } => format!("reduce_columns_{words}"),
            Direction::Columns { in_teams: true } => format!("reduce_column_teams_{words}"),
        };
        let mut linker = Linker::new(library, &name, table, modes)?;
        linker.pairs = self.paired;
        let together = self.together(&mut linker)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        let parts = self.producer.as_deref().filter(|_| self.stage != Stage::Last).map(Parts::of).unwrap_or_default();
        let mut common = Vec::new();
        if !parts.kept.is_empty() {
            linker.define("slot_begin", |code, args| {
                let (o, zero) = (arg(args, 0)?, code.linker.const_u32(0));
                let mut inputs: SmallVec<[Value; 4]> = SmallVec::new();
                for (k, port) in (0u8..).zip(self.producer.iter().flat_map(|producer| &producer.inputs)) {
                    let is_common = parts.common_inputs.get(usize::from(k)) == Some(&true);
                    let id = match is_common {
                        true => self.loaded(code, &mut params, (k, port.dtype), (o, zero))?,
                        // No step takes it.
                        false => zero,
                    };
                    inputs.push(Value { id, dtype: port.dtype });
                }
                common = parts.begin(code, &inputs, o)?;
                Ok(None)
            })?;
        }
        let elements = Elements { parts: &parts, common: &common };
        linker.define("slot_identity", |code, _| {
            let parts = self.reducers.iter().map(|reducer| reducer.identity(code)).collect::<Result<_>>()?;
            Ok(together.join(code, parts))
        })?;
        linker.define("slot_combine", |code, args| {
            let (a, b) = (arg(args, 0)?, arg(args, 1)?);
            let mut parts = Lane::new();
            for (k, reducer) in (0..).zip(&self.reducers) {
                let [a, b] = [a, b].map(|all| together.part(code, all, k));
                parts.push(reducer.combine(code, a, b)?);
            }
            Ok(together.join(code, parts))
        })?;
        linker.define("slot_load", |code, args| {
            let (o, r) = (arg(args, 0)?, arg(args, 1)?);
            let mut parts = Lane::new();
            if self.stage == Stage::Last {
                for (k, reducer) in (0..).zip(&self.reducers) {
                    let at = self.position(code, &mut params, k, o, r)?;
                    let (address, element) = (params.address(k), Element::Raw(reducer.accumulator_bytes() as u8));
                    parts.push(access::load(code, address, element, at)?);
                }
                return Ok(together.join(code, parts));
            }
            if let Some(producer) = &self.producer {
                let [lane] = &self.produced(code, &mut params, (producer, &elements), (o, r), 1)?[..] else {
                    return Ok(None);
                };
                for (reducer, &id) in self.reducers.iter().zip(lane) {
                    parts.push(reducer.lift(code, id, r)?);
                }
                return Ok(together.join(code, parts));
            }
            let only = self.only()?;
            let at = self.position(code, &mut params, 0, o, r)?;
            let id = access::load(code, params.address(0), Element::Typed(only.input), at)?;
            let Some(times) = self.times else { return only.lift(code, id, r).map(Some) };
            let at = self.position(code, &mut params, 1, o, r)?;
            let by = access::load(code, params.address(1), Element::Typed(times), at)?;
            only.lift_product(code, id, by, times).map(Some)
        })?;
        if let Direction::Rows { width } = self.direction
            && width > 1
        {
            linker.define("slot_load_vector", |code, args| {
                let at = (arg(args, 0)?, arg(args, 1)?);
                let lifted = self.lifted(code, &mut params, &elements, at, u32::from(width))?;
                let mut parts = Lane::new();
                for (reducer, lifted) in self.reducers.iter().zip(lifted) {
                    let Some(all) = reducer.combine_all(code, lifted, self.times.is_none())? else { return Ok(None) };
                    parts.push(all);
                }
                Ok(together.join(code, parts))
            })?;
        }
        linker.define("slot_store", |code, args| {
            let (o, all) = (arg(args, 0)?, arg(args, 1)?);
            let mut values: SmallVec<[Value; 4]> = SmallVec::new();
            let operands = self.operands();
            for (k, reducer) in (0u8..).zip(&self.reducers) {
                let words = together.part(code, all, k.into());
                if self.stage == Stage::First {
                    let (address, element) = (params.address(operands + k), reducer.accumulator_bytes() as u8);
                    access::store(code, address, Element::Raw(element), o, words)?;
                    continue;
                }
                values.push(Value { id: reducer.lower(code, words)?, dtype: reducer.out });
            }
            let mut first = operands;
            if let Some(epilogue) = self.epilogue.as_ref().filter(|_| self.stage != Stage::First) {
                first += epilogue.inputs.len() as u8;
                values = self.finished(code, &mut params, epilogue, (operands, o), values)?;
            }
            for (k, value) in (first..).zip(values) {
                let address = params.address(k);
                access::store(code, address, Element::Typed(value.dtype), o, value.id)?;
            }
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: Self::LOCAL_SIZE })
    }

    fn only(&self) -> Result<&Reducer> {
        let reason = || "several reductions of what nothing computes".to_string();
        let only = if let [only] = &*self.reducers { Some(only) } else { None };
        only.ok_or_else(|| Error::InvalidProgram { op: "reduce".to_string(), reason: reason() })
    }

    /// How many operands are written.
    pub fn results(&self) -> usize {
        match &self.epilogue {
            Some(epilogue) if self.stage != Stage::First => epilogue.results.len(),
            _ => self.reducers.len(),
        }
    }

    /// Operands that are reduced.
    fn operands(&self) -> u8 {
        match (&self.producer, self.times) {
            _ if self.stage == Stage::Last => self.reducers.len() as u8,
            (Some(producer), _) => producer.inputs.len() as u8,
            (None, Some(_)) => 2,
            (None, None) => 1,
        }
    }

    /// How the accumulators of an element travel. The template for several has a structure, which gets their types.
    fn together(&self, linker: &mut Linker<'_>) -> Result<Together> {
        let uint = linker.type_uint(32);
        let mut ty = |reducer: &Reducer| match reducer.words() {
            1 => uint,
            words => linker.type_vector(uint, words),
        };
        let members: Lane = self.reducers.iter().map(&mut ty).collect();
        let all = if members.len() > 1 { Some(linker.set_members("slot_identity", &members)?) } else { None };
        Ok(Together { all, members })
    }

    /// What the epilogue makes of results number `o`; its operands come from number `first` on.
    fn finished(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        epilogue: &ReduceEpilogue,
        (first, o): (u8, Word),
        mut values: SmallVec<[Value; 4]>,
    ) -> Result<SmallVec<[Value; 4]>> {
        let axis = self.kept_rank + self.reduced_rank;
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

    /// Accumulators of `width` neighbours from index `r` on, for each reducer.
    fn lifted(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        elements: &Elements<'_>,
        (o, r): (Word, Word),
        width: u32,
    ) -> Result<SmallVec<[Lane; 1]>> {
        let width_id = code.linker.const_u32(width);
        let loaded = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand: u8, dtype: DType| {
            let at = self.position(code, params, operand, o, r)?;
            let group = code.u32_op(SpirvOp::UDiv, at, width_id);
            let address = params.address(operand);
            access::load_vector(code, address, Element::Typed(dtype), width, group)
        };
        let mut lifted: SmallVec<[Lane; 1]> = SmallVec::from_elem(Lane::new(), self.reducers.len());
        let lanes: SmallVec<[Lane; 4]> = match &self.producer {
            Some(producer) => self.produced(code, params, (producer, elements), (o, r), width)?,
            None => {
                let only = self.only()?;
                let elements = loaded(code, params, 0, only.input)?;
                if let Some(times) = self.times {
                    let factors = loaded(code, params, 1, times)?;
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
            for ((reducer, &id), parts) in self.reducers.iter().zip(lane).zip(&mut lifted) {
                parts.push(reducer.lift(code, id, index)?);
            }
        }
        Ok(lifted)
    }

    /// What the steps compute at `width` neighbours from index `r` on: at each, what each reducer takes.
    fn produced(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        (producer, elements): (&Producer, &Elements<'_>),
        (o, r): (Word, Word),
        width: u32,
    ) -> Result<SmallVec<[Lane; 4]>> {
        let mut lanes: SmallVec<[SmallVec<[Value; 4]>; 4]> = SmallVec::from_elem(SmallVec::new(), width as usize);
        let own = (0u8..).zip(&producer.inputs).zip(&elements.parts.common_inputs).filter(|(_, common)| !**common);
        for ((k, port), _) in own {
            let (address, element, dtype) = (params.address(k), Element::Typed(port.dtype), port.dtype);
            match port.along {
                Along::Row => {
                    let id = self.loaded(code, params, (k, dtype), (o, r))?;
                    lanes.iter_mut().for_each(|lane| lane.push(Value { id, dtype }));
                }
                Along::Vector if width > 1 => {
                    let at = self.position(code, params, k, o, r)?;
                    let width_id = code.linker.const_u32(width);
                    let group = code.u32_op(SpirvOp::UDiv, at, width_id);
                    let ids = access::load_vector(code, address, element, width, group)?;
                    lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.push(Value { id, dtype }));
                }
                Along::Vector | Along::Strided => {
                    for (i, lane) in (0u32..).zip(&mut lanes) {
                        let offset = code.linker.const_u32(i);
                        let index = code.u32_op(SpirvOp::IAdd, r, offset);
                        let at = self.position(code, params, k, o, index)?;
                        lane.push(Value { id: access::load(code, address, element, at)?, dtype });
                    }
                }
            }
        }
        for variable in elements.common {
            let value = variable.load(code);
            lanes.iter_mut().for_each(|lane| lane.push(value));
        }
        let mut produced = SmallVec::new();
        for lane in &lanes {
            let results = run_steps(code, &elements.parts.own, lane, o, &[])?;
            let value = |&r: &Ref| find(code, r, lane, &results, o, &[]).map(|value| value.id);
            produced.push(elements.parts.values.iter().map(value).collect::<Result<_>>()?);
        }
        Ok(produced)
    }

    /// An element of an operand.
    fn loaded(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        (operand, dtype): (u8, DType),
        (o, r): (Word, Word),
    ) -> Result<Word> {
        let at = self.position(code, params, operand, o, r)?;
        access::load(code, params.address(operand), Element::Typed(dtype), at)
    }

    fn position(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        o: Word,
        r: Word,
    ) -> Result<Word> {
        let (kept, reduced) = (self.kept_rank, self.reduced_rank);
        let outer = access::coordinates(code, params, o, 0, kept)?;
        let inner = access::coordinates(code, params, r, kept, reduced)?;
        let outer = access::position(code, params, operand, 0, &outer)?;
        let inner = access::position(code, params, operand, kept, &inner)?;
        let sum = code.u32_op(SpirvOp::IAdd, outer, inner);
        access::biased(code, params, operand, sum)
    }
}
