//! Kernels that hold whole rows in registers: elementwise steps and reductions over the row in any order, then results
//! per row and per element. What is read is read once, and a step runs once per element.

mod steps;
mod store;

use std::collections::HashMap;

use nx_vulkan_ir::program::fused::{Computed, Made};
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Reduction, Unary};
use nx_vulkan_ir::{DType, Error, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::memory::Address;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::ReducerCode;
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{bounds, hides_nan, pays_to_assume};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

/// How an operand lies along a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Along {
    /// One element for the whole row.
    Row,
    /// Neighbours are neighbours in memory, and loads of `width` are aligned.
    Vector,
    Strided,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowPort {
    pub dtype: DType,
    pub along: Along,
    /// Whether positions may lie outside of the operand, as with [`Layout::Bounded`](access::Layout::Bounded).
    pub bounded: bool,
}

/// The key under which a row kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsSpec {
    /// Axes of the iteration space that count rows, then those that make up a row.
    pub kept_rank: u8,
    pub row_rank: u8,
    pub inputs: Vec<RowPort>,
    pub values: Vec<Computed>,
    /// Results, those of one element per row as [`Along::Row`].
    pub outputs: Vec<(Ref, RowPort)>,
    /// Neighbours per load, of which a row is a multiple.
    pub width: u8,
    /// Loads per invocation.
    pub items: u8,
    /// Invocations per row, a power of two.
    pub team: u32,
    /// Neighbouring invocations take neighbouring rows.
    pub columns: bool,
    /// Every load of every invocation lies in the row.
    pub full: bool,
    /// Functions that have a form which leaves some results in doubt are computed without it.
    pub exact: bool,
}

impl RowsSpec {
    /// Invocations per workgroup: few, as all of them wait for one another.
    pub fn local_size(&self) -> u32 {
        self.team.max(if self.columns { 256 } else { 128 })
    }

    /// Rows per workgroup.
    pub fn rows_per_group(&self) -> u32 {
        self.local_size() / self.team
    }

    /// Generates the kernel's SPIR-V.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("rows_{}", self.local_size());
        let mut linker = Linker::new(library, &name, table, modes)?;
        linker.any_nan = hides_nan(self.steps());
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        let reductions: Vec<Reducer> = self.values.iter().filter_map(|v| self.reduction(&v.made)).collect();
        for (k, spec) in reductions.iter().enumerate() {
            linker.define(&format!("slot_combine_{k}"), |code, args| {
                if spec.extreme_of_f32().is_some() {
                    let (a, b) = (arg(args, 0)?, arg(args, 1)?);
                    return larger_key(code, a, b).map(Some);
                }
                let a = from_four(code, spec, arg(args, 0)?);
                let b = from_four(code, spec, arg(args, 1)?);
                let sum = spec.combine(code, a, b)?;
                Ok(Some(to_four(code, spec, sum)))
            })?;
        }
        linker.define("slot_row", |code, args| {
            code.assumes = self.is_narrow();
            let [row, lane, live] = [arg(args, 0)?, arg(args, 1)?, arg(args, 2)?];
            let mut emit = |code: &mut Code<'_, '_>| Emission::new(self, code, &mut params, row, lane)?.emit(live);
            if self.exact {
                code.settled(emit)?
            } else {
                emit(code)?
            }
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: self.rows_per_group() })
    }

    fn dtype(&self, r: Ref) -> DType {
        match r {
            Ref::Input(k) => self.inputs.get(k as usize).map_or(DType::U32, |p| p.dtype),
            Ref::Result(k) => self.values.get(k as usize).map_or(DType::U32, Computed::dtype),
            Ref::Coordinate(_) | Ref::Linear => DType::U32,
            Ref::Constant(dtype, _) => dtype,
        }
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.values.iter().filter_map(|value| match &value.made {
            Made::Step(step) => Some(step),
            Made::Reduction { .. } => None,
        })
    }

    /// Whether steps round to floats of 16 bits, most of them in few instructions where nothing is rare.
    fn is_narrow(&self) -> bool {
        self.steps().any(|step| matches!(step.out, DType::F16 | DType::Bf16))
    }

    /// Elements and the largest of their row, if a step gives the exponentials of their difference, all of one type.
    fn below_largest(&self, step: &Step) -> Option<[Ref; 2]> {
        let made = |r: Ref| match r {
            Ref::Result(k) => self.values.get(k as usize).map(|value| &value.made),
            _ => None,
        };
        let Made::Step(difference) = made(*step.args.first()?)? else { return None };
        let [of, largest] = difference.args[..] else { return None };
        let Made::Reduction { reduction: Reduction::Max, of: all, out, .. } = made(largest)? else { return None };
        let is_difference = difference.op == Elementwise::Binary(Binary::Subtract) && *all == of;
        let is_same = [*out, difference.out, self.dtype(of)].iter().all(|dtype| *dtype == step.out);
        (step.op == Elementwise::Unary(Unary::Exp) && is_difference && is_same).then_some([of, largest])
    }

    /// Whether a value is what elements are below the largest of their row, and the exponentials of that are taken.
    fn is_exponent(&self, r: Ref) -> bool {
        self.steps().any(|step| step.args.first() == Some(&r) && self.below_largest(step).is_some())
    }

    /// The meaning of a reduction's accumulators.
    fn reduction(&self, made: &Made) -> Option<Reducer> {
        let Made::Reduction { reduction, tie_high, of, out } = made else { return None };
        Some(Reducer { reduction: *reduction, tie_high: *tie_high, input: self.dtype(*of), out: *out })
    }
}

/// Accumulators travel as four words.
fn to_four(code: &mut Code<'_, '_>, spec: &Reducer, words: Word) -> Word {
    let uint = code.linker.type_uint(32);
    let four = code.linker.type_vector(uint, 4);
    let zero = code.linker.const_u32(0);
    match spec.accumulator_bytes() / 4 {
        1 => code.ids(SpirvOp::CompositeConstruct, four, &[words, zero, zero, zero]),
        2 => code.ids(SpirvOp::CompositeConstruct, four, &[words, zero, zero]),
        _ => words,
    }
}

fn from_four(code: &mut Code<'_, '_>, spec: &Reducer, four: Word) -> Word {
    let uint = code.linker.type_uint(32);
    match spec.accumulator_bytes() / 4 {
        1 => code.extract(uint, four, 0),
        2 => {
            let (pair, parts) = (code.linker.type_vector(uint, 2), [0, 1].map(|i| code.extract(uint, four, i)));
            code.ids(SpirvOp::CompositeConstruct, pair, &parts)
        }
        _ => four,
    }
}

/// The larger of keys in the first words, that of an extreme of f32.
fn larger_key(code: &mut Code<'_, '_>, a: Word, b: Word) -> Result<Word> {
    let uint = code.linker.type_uint(32);
    let four = code.linker.type_vector(uint, 4);
    let [a, b] = [a, b].map(|words| code.extract(uint, words, 0));
    let (larger, zero) = (code.call("nx_max_u32", &[a, b])?, code.linker.const_u32(0));
    Ok(code.ids(SpirvOp::CompositeConstruct, four, &[larger, zero, zero, zero]))
}

/// A value of the whole row, or one for each element that the invocation holds.
#[derive(Debug, Clone)]
enum Held {
    Row(Value),
    Each(Vec<Value>),
}

impl Held {
    fn at(&self, k: usize) -> Option<Value> {
        match self {
            Held::Row(value) => Some(*value),
            Held::Each(values) => values.get(k).copied(),
        }
    }
}

/// How the steps of a row's elements are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Each by short forms of functions beside whole ones, which an invocation takes for all of its elements where the
    /// short ones do not serve one.
    Both,
    /// All by short forms, whether these serve or not.
    Short,
    /// All by whole ones.
    Whole,
}

/// The body of `slot_row` under construction.
struct Emission<'s, 'c, 'a, 'l> {
    spec: &'s RowsSpec,
    code: &'c mut Code<'a, 'l>,
    params: &'s mut ParamLayout,
    row: Word,
    lane: Word,
    /// Coordinates of the row.
    outer: SmallVec<[Word; 6]>,
    /// For each load: its first element in the row, and whether it exists, if not all do.
    loads: Vec<(Word, Option<Word>)>,
    /// For each element: its place in the row.
    places: Vec<Word>,
    held: HashMap<Ref, Held>,
    way: Way,
    /// Of the bits of the invocation's elements of f32: the largest as signed integers, the largest and the least as
    /// unsigned ones.
    extremes: HashMap<Ref, [Word; 3]>,
    /// Exponentials of what elements are below the largest of their row: the argument of the invocation's least.
    least_exponents: HashMap<Ref, Word>,
}

impl<'s, 'c, 'a, 'l> Emission<'s, 'c, 'a, 'l> {
    fn new(
        spec: &'s RowsSpec,
        code: &'c mut Code<'a, 'l>,
        params: &'s mut ParamLayout,
        row: Word,
        lane: Word,
    ) -> Result<Emission<'s, 'c, 'a, 'l>> {
        let outer = access::coordinates(code, params, row, 0, spec.kept_rank)?;
        let elements = code.param(params.word(Param::Extra(0)))?;
        let (uint, bool_type) = (code.linker.type_uint(32), code.linker.type_bool());
        let width = code.linker.const_u32(spec.width.into());
        let last = code.u32_op(SpirvOp::ISub, elements, width);
        let (mut loads, mut places) = (Vec::new(), Vec::new());
        for item in 0..u32::from(spec.items) {
            let step = code.linker.const_u32(item * spec.team);
            let vector = code.u32_op(SpirvOp::IAdd, lane, step);
            let mut first = code.u32_op(SpirvOp::IMul, vector, width);
            let mut exists = None;
            if !spec.full {
                let inside = code.ids(SpirvOp::ULessThan, bool_type, &[first, elements]);
                // What lies beyond the row is read at its end, and counts nowhere.
                first = code.ids(SpirvOp::Select, uint, &[inside, first, last]);
                exists = Some(inside);
            }
            loads.push((first, exists));
            for k in 0..u32::from(spec.width) {
                let offset = code.linker.const_u32(k);
                places.push(code.u32_op(SpirvOp::IAdd, first, offset));
            }
        }
        Ok(Emission {
            spec,
            code,
            params,
            row,
            lane,
            outer,
            loads,
            places,
            held: HashMap::new(),
            way: Way::Both,
            extremes: HashMap::new(),
            least_exponents: HashMap::new(),
        })
    }

    fn emit(mut self, live: Word) -> Result<()> {
        if !self.spec.is_narrow() || !self.code.linker.modes.nearest {
            self.compute()?;
            return self.store(live);
        }
        // Short forms without a branch between them, so that nothing waits for one. Where something is rare, the
        // workgroup computes all of it again.
        self.way = Way::Short;
        self.code.begin_hot();
        self.compute()?;
        let Some(rare) = self.code.end_hot() else { return self.store(live) };
        let any = self.code.call_own("nx_any", &[rare])?;
        let mut branch = self.code.begin_if(any);
        self.code.assumes = false;
        let mut whole = self.again(Way::Whole);
        whole.compute()?;
        whole.store(live)?;
        self.code.begin_else(&mut branch);
        self.store(live)?;
        self.code.end_if(branch);
        Ok(())
    }

    /// The same row with nothing computed.
    fn again(&mut self, way: Way) -> Emission<'_, '_, 'a, 'l> {
        Emission {
            spec: self.spec,
            code: &mut *self.code,
            params: &mut *self.params,
            row: self.row,
            lane: self.lane,
            outer: self.outer.clone(),
            loads: self.loads.clone(),
            places: self.places.clone(),
            held: HashMap::new(),
            way,
            extremes: HashMap::new(),
            least_exponents: HashMap::new(),
        }
    }

    fn compute(&mut self) -> Result<()> {
        let mut reductions = 0;
        for (i, value) in self.spec.values.iter().enumerate() {
            let held = match &value.made {
                Made::Step(step) => self.step(step, Ref::Result(i as u16))?,
                Made::Reduction { of, .. } => {
                    let spec = self.spec.reduction(&value.made).ok_or_else(|| missing(Ref::Result(i as u16)))?;
                    reductions += 1;
                    self.reduce(&spec, *of, reductions - 1)?
                }
            };
            self.held.insert(Ref::Result(i as u16), held);
        }
        Ok(())
    }

    fn find(&mut self, r: Ref) -> Result<Held> {
        if let Some(held) = self.held.get(&r) {
            return Ok(held.clone());
        }
        let held = match r {
            Ref::Input(k) => self.load(k)?,
            Ref::Constant(dtype, bits) => {
                let id = access::exact_constant(self.code, dtype.ctype(), bits)?.ok_or_else(|| missing(r))?;
                Held::Row(Value { id, dtype })
            }
            Ref::Coordinate(axis) if axis < self.spec.kept_rank => {
                let id = self.outer.get(axis as usize).copied().ok_or_else(|| missing(r))?;
                Held::Row(Value { id, dtype: DType::U32 })
            }
            Ref::Coordinate(axis) => {
                let mut values = Vec::new();
                for k in 0..self.places.len() {
                    let inner = self.inner(self.places[k])?;
                    let id = inner.get((axis - self.spec.kept_rank) as usize).copied().ok_or_else(|| missing(r))?;
                    values.push(Value { id, dtype: DType::U32 });
                }
                Held::Each(values)
            }
            Ref::Linear | Ref::Result(_) => return Err(missing(r)),
        };
        self.held.insert(r, held.clone());
        Ok(held)
    }

    fn inner(&mut self, place: Word) -> Result<SmallVec<[Word; 6]>> {
        access::coordinates(self.code, self.params, place, self.spec.kept_rank, self.spec.row_rank)
    }

    /// The position of an element of operand `k`, of the row's first if there is no place.
    fn position(&mut self, k: u8, place: Option<Word>) -> Result<Word> {
        let outer = self.outer.clone();
        let mut sum = access::position(self.code, self.params, k, 0, &outer)?;
        if let Some(place) = place {
            let inner = self.inner(place)?;
            let inner = access::position(self.code, self.params, k, self.spec.kept_rank, &inner)?;
            sum = self.code.u32_op(SpirvOp::IAdd, sum, inner);
        }
        if self.spec.inputs.get(k as usize).is_some_and(|port| port.bounded) {
            return access::bounded(self.code, self.params, sum, bounds(1, k));
        }
        access::biased(self.code, self.params, k, sum)
    }

    fn load(&mut self, k: u8) -> Result<Held> {
        let port = *self.spec.inputs.get(k as usize).ok_or_else(|| missing(Ref::Input(k)))?;
        let address = self.params.address(k);
        let (element, dtype) = (Element::Typed(port.dtype), port.dtype);
        let mut values = Vec::new();
        match port.along {
            Along::Row => {
                let at = self.position(k, None)?;
                let id = access::load(self.code, address, element, at)?;
                return Ok(Held::Row(Value { id, dtype }));
            }
            Along::Vector if self.is_dense() => {
                let first = self.first_vector(k, element)?;
                for item in 0..u32::from(self.spec.items) {
                    let place = self.code.linker.const_u32(item * self.spec.team);
                    let ids = access::load_vector_at(self.code, first, element, self.spec.width.into(), place)?;
                    values.extend(ids.into_iter().map(|id| Value { id, dtype }));
                }
            }
            Along::Vector => {
                let width = self.code.linker.const_u32(self.spec.width.into());
                for (first, _) in self.loads.clone() {
                    let at = self.position(k, Some(first))?;
                    let group = self.code.u32_op(SpirvOp::UDiv, at, width);
                    let ids = access::load_vector(self.code, address, element, self.spec.width.into(), group)?;
                    values.extend(ids.into_iter().map(|id| Value { id, dtype }));
                }
            }
            Along::Strided => {
                for place in self.places.clone() {
                    let at = self.position(k, Some(place))?;
                    values.push(Value { id: access::load(self.code, address, element, at)?, dtype });
                }
            }
        }
        if dtype == DType::Bf16 && self.way == Way::Short && pays_to_assume(self.spec.steps()) {
            self.code.assume(&values)?;
        }
        Ok(Held::Each(values))
    }

    /// Whether an invocation's vectors of a row, where neighbours in it are neighbours in memory, are as far apart as
    /// its code says.
    fn is_dense(&self) -> bool {
        self.spec.full && self.spec.row_rank == 1
    }

    /// Where the invocation's first vector of operand `k` is.
    fn first_vector(&mut self, k: u8, element: Element) -> Result<Address> {
        let start = self.position(k, None)?;
        let width = self.code.linker.const_u32(self.spec.width.into());
        let group = self.code.u32_op(SpirvOp::UDiv, start, width);
        let group = self.code.u32_op(SpirvOp::IAdd, group, self.lane);
        let address = self.params.address(k);
        let array = self.code.address(address)?;
        Ok(self.code.address_of(array, element.size_bytes() * u32::from(self.spec.width), group))
    }

    /// The tree is that of `reduce_rows`: loads of one invocation in order, then the team.
    fn reduce(&mut self, spec: &Reducer, of: Ref, number: usize) -> Result<Held> {
        let values = self.find(of)?;
        // Reductions have branches of their own.
        let others = self.code.pause_hot();
        let reduced = self.reduced(spec, of, &values, number);
        self.code.resume_hot(others);
        reduced
    }

    fn reduced(&mut self, spec: &Reducer, of: Ref, values: &Held, number: usize) -> Result<Held> {
        let mut sum = match spec.extreme_of_f32() {
            Some(extreme) => {
                let extremes = self.extremes(of, values)?;
                let bits = self.code.call(&format!("nx_{extreme}_of_extremes_f32"), &extremes)?;
                self.code.call(&format!("nx_{extreme}_key_f32"), &[bits])?
            }
            None if spec.is_sum_of_f32() && self.spec.full && self.is_held(of) && self.has_no_sign(of) => {
                self.sum_without_signs(spec, of, values)?
            }
            None => self.sum(spec, values)?,
        };
        if self.spec.team > 1 {
            let four = to_four(self.code, spec, sum);
            let whole = self.code.call_own(&format!("nx_tree_{number}"), &[four])?;
            sum = from_four(self.code, spec, whole);
        }
        if let Some(extreme) = spec.extreme_of_f32() {
            sum = self.code.call(&format!("nx_{extreme}_of_key_f32"), &[sum])?;
        }
        Ok(Held::Row(Value { id: spec.lower(self.code, sum)?, dtype: spec.out }))
    }

    /// The accumulator of an invocation's elements.
    fn sum(&mut self, spec: &Reducer, values: &Held) -> Result<Word> {
        let identity = spec.exact_identity(self.code)?;
        let words = spec.words_type(self.code);
        let mut sum = identity;
        for (item, (_, exists)) in self.loads.clone().into_iter().enumerate() {
            let width = usize::from(self.spec.width);
            let mut lifted: SmallVec<[Word; 4]> = SmallVec::new();
            for k in item * width..(item + 1) * width {
                let value = values.at(k).ok_or_else(|| missing(Ref::Linear))?;
                lifted.push(spec.lift(self.code, value.id, self.places[k])?);
            }
            let Some(all) = spec.combine_all(self.code, lifted, true)? else { continue };
            let counted = match exists {
                Some(exists) => select(self.code, words, exists, all, identity, spec.accumulator_bytes() / 4),
                None => all,
            };
            sum = spec.combine(self.code, sum, counted)?;
        }
        Ok(sum)
    }

    /// Whether a value's elements are needed behind their reduction, so that they take registers anyway.
    fn is_held(&self, r: Ref) -> bool {
        let by_step = |value: &Computed| matches!(&value.made, Made::Step(step) if step.args.contains(&r));
        self.spec.values.iter().any(by_step) || self.spec.outputs.iter().any(|&(from, _)| from == r)
    }

    /// The sum of elements of f32 without signs: added to a power of two beyond all of them, in four operations each
    /// instead of eight.
    fn sum_without_signs(&mut self, spec: &Reducer, of: Ref, values: &Held) -> Result<Word> {
        let [_, most, _] = self.extremes(of, values)?;
        let (words, float) = (spec.words_type(self.code), self.code.linker.type_float(32));
        let pair = self.code.linker.type_vector(float, 2);
        let apart = self.code.call("nx_is_beyond_short_sums_f32", &[most])?;
        let variable = self.code.variable(words);
        let mut branch = self.code.begin_if(apart);
        let sum = self.sum(spec, values)?;
        self.code.set(variable, sum);
        self.code.begin_else(&mut branch);
        let beyond = self.code.call("nx_beyond_f32", &[most])?;
        let zero = self.code.linker.global(SpirvOp::ConstantNull, Some(float), vec![]);
        let mut sum = self.code.ids(SpirvOp::CompositeConstruct, pair, &[beyond, zero]);
        for k in 0..self.places.len() {
            let value = values.at(k).ok_or_else(|| missing(Ref::Linear))?;
            sum = self.code.call("nx_sum_beyond_f32", &[sum, value.id])?;
        }
        let sum = self.code.call("nx_sum_without_f32", &[sum, beyond])?;
        let sum = self.code.bitcast(words, sum);
        self.code.set(variable, sum);
        self.code.end_if(branch);
        Ok(self.code.get(words, variable))
    }

    /// What says which of an invocation's elements is the largest or the least, in three operations per element instead
    /// of the nine of `combine`. Those that are read at the row's end once more do no harm.
    fn extremes(&mut self, of: Ref, values: &Held) -> Result<[Word; 3]> {
        if let Some(&extremes) = self.extremes.get(&of) {
            return Ok(extremes);
        }
        let uint = self.code.linker.type_uint(32);
        let mut extremes: Option<[Word; 3]> = None;
        for k in 0..self.places.len() {
            let value = values.at(k).ok_or_else(|| missing(Ref::Linear))?;
            let float = scalar::cast(self.code, value, DType::F32)?;
            let bits = self.code.bitcast(uint, float);
            extremes = Some(match extremes {
                None => [bits; 3],
                Some([signed, most, least]) => [
                    self.code.call("nx_signed_max_u32", &[signed, bits])?,
                    self.code.call("nx_max_u32", &[most, bits])?,
                    self.code.call("nx_min_u32", &[least, bits])?,
                ],
            });
        }
        let extremes = extremes.ok_or_else(|| missing(Ref::Linear))?;
        self.extremes.insert(of, extremes);
        Ok(extremes)
    }
}

/// `a` where a bool holds, else `b`, for values of some words.
fn select(code: &mut Code<'_, '_>, ty: Word, condition: Word, a: Word, b: Word, words: u64) -> Word {
    if words == 1 {
        return code.ids(SpirvOp::Select, ty, &[condition, a, b]);
    }
    let bool_type = code.linker.type_bool();
    let bools = code.linker.type_vector(bool_type, words as u32);
    let condition = code.ids(SpirvOp::CompositeConstruct, bools, &vec![condition; words as usize]);
    code.ids(SpirvOp::Select, ty, &[condition, a, b])
}

fn missing(r: Ref) -> Error {
    Error::InvalidProgram { op: "rows".to_string(), reason: format!("{r:?} does not exist") }
}
