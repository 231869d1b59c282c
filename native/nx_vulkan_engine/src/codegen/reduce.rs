//! Kernels that reduce over axes: which accumulator, which combine function, which template.

use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::access::{self, Element, Param, ParamLayout, value_type};
use super::elementwise::{Generated, Ref, Step, arg, emit_steps, find};
use super::library::Library;
use super::link::{Code, FloatModes, Linker};
use super::rows::{Along, RowPort};
use super::scalar::{self, Value};
use super::templates;
use crate::program::Reduction;
use crate::{CType, DType, Error, Result};

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

/// Elementwise steps between memory and a reduction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    pub inputs: Vec<RowPort>,
    pub steps: Vec<Step>,
    pub value: Ref,
}

/// Elementwise steps on what was reduced, before it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceEpilogue {
    /// Further operands, after those that are reduced.
    pub inputs: SmallVec<[DType; 2]>,
    /// Input 0 is what was reduced, of type `ReduceSpec::out`, those after it are `inputs`. Positions are not known.
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
    pub out: DType,
    /// Axes of the results, behind those that are kept and reduced.
    pub rank: u8,
}

/// The key under which a reduction kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    pub reduction: Reduction,
    /// Of equal extremes argmax and argmin take the last.
    pub tie_high: bool,
    pub input: DType,
    /// Another input, at whose elements the first one's are multiplied.
    pub times: Option<DType>,
    /// What computes the elements, which are then of type `input`; operands are its inputs.
    pub producer: Option<Box<Producer>>,
    /// Not of a first stage.
    pub epilogue: Option<Box<ReduceEpilogue>>,
    pub out: DType,
    pub stage: Stage,
    pub direction: Direction,
    /// Axes of the iteration space that are kept, then those that are reduced.
    pub kept_rank: u8,
    pub reduced_rank: u8,
    /// Vectors are accessed 8 bytes at a time.
    pub paired: bool,
}

/// What an accumulator's words mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accumulator {
    /// One value.
    Value(CType),
    /// A compensated sum or product: the value of the type, then its error.
    Compensated(CType),
    /// An ordered key of one or two words and an index.
    Arg { key_words: u32 },
}

impl Accumulator {
    fn words(self) -> u32 {
        match self {
            Accumulator::Value(ctype) => ctype.dtype().size_bytes() as u32 / 4,
            Accumulator::Compensated(ctype) => ctype.dtype().size_bytes() as u32 / 2,
            Accumulator::Arg { key_words: 1 } => 2,
            Accumulator::Arg { .. } => 4,
        }
    }
}

impl ReduceSpec {
    /// Invocations per workgroup of the reduction templates.
    pub const LOCAL_SIZE: u32 = 256;

    fn accumulator(&self) -> Accumulator {
        match self.reduction {
            Reduction::ArgMax | Reduction::ArgMin => {
                Accumulator::Arg { key_words: self.input.ctype().dtype().size_bytes() as u32 / 4 }
            }
            Reduction::All | Reduction::Any => Accumulator::Value(CType::U32),
            Reduction::Product if self.out.ctype() == CType::F32 => Accumulator::Compensated(CType::F32),
            Reduction::Sum => match self.out.ctype() {
                ctype @ (CType::F32 | CType::F64 | CType::C64) => Accumulator::Compensated(ctype),
                ctype => Accumulator::Value(ctype),
            },
            _ => Accumulator::Value(self.out.ctype()),
        }
    }

    /// Bytes of one accumulator in the scratch buffer between the two stages.
    pub fn accumulator_bytes(&self) -> u64 {
        u64::from(self.accumulator().words()) * 4
    }

    /// Generates the kernel's SPIR-V.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let words = self.accumulator().words();
        let name = match self.direction {
            Direction::Rows { width: 1 } => format!("reduce_rows_{words}"),
            Direction::Rows { width } => format!("reduce_rows_{words}_v{width}"),
            Direction::Columns { in_teams: false } => format!("reduce_columns_{words}"),
            Direction::Columns { in_teams: true } => format!("reduce_column_teams_{words}"),
        };
        let template = templates::template(&name)?;
        let mut linker = Linker::new(library, &name, &template, table, modes)?;
        linker.pairs = self.paired;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        linker.define("slot_identity", |code, _| self.identity(code).map(Some))?;
        linker.define("slot_combine", |code, args| {
            let (a, b) = (arg(args, 0)?, arg(args, 1)?);
            self.combine(code, a, b).map(Some)
        })?;
        linker.define("slot_load", |code, args| {
            let (o, r) = (arg(args, 0)?, arg(args, 1)?);
            if let (Some(producer), Stage::Whole | Stage::First) = (&self.producer, self.stage) {
                let elements = self.produced(code, &mut params, producer, (o, r), 1)?;
                let [id] = *elements else { return Ok(None) };
                return self.lift(code, id, r).map(Some);
            }
            let at = self.position(code, &mut params, 0, o, r)?;
            let address = params.address(0);
            if self.stage == Stage::Last {
                return access::load(code, address, Element::Raw((words * 4) as u8), at).map(Some);
            }
            let id = access::load(code, address, Element::Typed(self.input), at)?;
            let Some(times) = self.times else { return self.lift(code, id, r).map(Some) };
            let at = self.position(code, &mut params, 1, o, r)?;
            let address = params.address(1);
            let by = access::load(code, address, Element::Typed(times), at)?;
            self.lift_product(code, id, by, times).map(Some)
        })?;
        if let Direction::Rows { width } = self.direction
            && width > 1
        {
            linker.define("slot_load_vector", |code, args| {
                let (o, r) = (arg(args, 0)?, arg(args, 1)?);
                let width_id = code.linker.const_u32(u32::from(width));
                let width_u32 = u32::from(width);
                let lanes = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand: u8, dtype: DType| {
                    let at = self.position(code, params, operand, o, r)?;
                    let group = code.u32_op(SpirvOp::UDiv, at, width_id);
                    let address = params.address(operand);
                    access::load_vector(code, address, Element::Typed(dtype), u32::from(width), group)
                };
                let elements = match &self.producer {
                    Some(producer) => self.produced(code, &mut params, producer, (o, r), width_u32)?,
                    None => lanes(code, &mut params, 0, self.input)?,
                };
                let factors = self.times.map(|times| lanes(code, &mut params, 1, times)).transpose()?;
                let mut lifted: SmallVec<[Word; 4]> = SmallVec::new();
                for (i, id) in elements.into_iter().enumerate() {
                    if let (Some(times), Some(&by)) = (self.times, factors.as_ref().and_then(|f| f.get(i))) {
                        lifted.push(self.lift_product(code, id, by, times)?);
                        continue;
                    }
                    let offset = code.linker.const_u32(i as u32);
                    let index = code.u32_op(SpirvOp::IAdd, r, offset);
                    lifted.push(self.lift(code, id, index)?);
                }
                self.combine_all(code, lifted, self.times.is_none())
            })?;
        }
        linker.define("slot_store", |code, args| {
            let (o, value) = (arg(args, 0)?, arg(args, 1)?);
            let reduced = match (&self.producer, self.times) {
                _ if self.stage == Stage::Last => 1,
                (Some(producer), _) => producer.inputs.len() as u8,
                (None, Some(_)) => 2,
                (None, None) => 1,
            };
            if self.stage == Stage::First {
                let address = params.address(reduced);
                access::store(code, address, Element::Raw((words * 4) as u8), o, value)?;
                return Ok(None);
            }
            let value = Value { id: self.lower(code, value)?, dtype: self.out };
            let (further, value) = match &self.epilogue {
                Some(epilogue) => {
                    let further = epilogue.inputs.len() as u8;
                    (further, self.finished(code, &mut params, epilogue, (reduced, o), value)?)
                }
                None => (0, value),
            };
            let address = params.address(reduced + further);
            access::store(code, address, Element::Typed(value.dtype), o, value.id)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: Self::LOCAL_SIZE })
    }

    /// What the epilogue makes of result `o`; its operands come from number `first` on.
    fn finished(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        epilogue: &ReduceEpilogue,
        (first, o): (u8, Word),
        value: Value,
    ) -> Result<Value> {
        let axis = self.kept_rank + self.reduced_rank;
        let coordinates = access::coordinates(code, params, o, axis, epilogue.rank)?;
        let mut values: SmallVec<[Value; 4]> = SmallVec::from_slice(&[value]);
        for (k, &dtype) in (first..).zip(&epilogue.inputs) {
            let sum = access::position(code, params, k, axis, &coordinates)?;
            let at = access::biased(code, params, k, sum)?;
            let id = access::load(code, params.address(k), Element::Typed(dtype), at)?;
            values.push(Value { id, dtype });
        }
        let result = emit_steps(code, &epilogue.steps, epilogue.result, &values)?;
        Ok(Value { id: result.id, dtype: epilogue.out })
    }

    /// What the steps compute at `width` neighbours from index `r` on.
    fn produced(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        producer: &Producer,
        (o, r): (Word, Word),
        width: u32,
    ) -> Result<SmallVec<[Word; 4]>> {
        let mut lanes: SmallVec<[SmallVec<[Value; 4]>; 4]> = SmallVec::from_elem(SmallVec::new(), width as usize);
        for (k, port) in (0u8..).zip(&producer.inputs) {
            let (address, element, dtype) = (params.address(k), Element::Typed(port.dtype), port.dtype);
            match port.along {
                Along::Row => {
                    let at = self.position(code, params, k, o, r)?;
                    let id = access::load(code, address, element, at)?;
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
        let mut elements = SmallVec::new();
        for lane in &lanes {
            let mut results: SmallVec<[Value; 4]> = SmallVec::new();
            for step in &producer.steps {
                let args: SmallVec<[Value; 3]> =
                    step.args.iter().map(|&r| find(code, r, lane, &results, o, &[])).collect::<Result<_>>()?;
                results.push(Value { id: scalar::emit(code, step.op, &args, step.out)?, dtype: step.out });
            }
            elements.push(find(code, producer.value, lane, &results, o, &[])?.id);
        }
        Ok(elements)
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

    pub(super) fn words_type(&self, code: &mut Code<'_, '_>) -> Word {
        let uint = code.linker.type_uint(32);
        match self.accumulator().words() {
            1 => uint,
            words => code.linker.type_vector(uint, words),
        }
    }

    /// A value as accumulator words.
    fn to_words(&self, code: &mut Code<'_, '_>, ctype: CType, value: Word) -> Word {
        if ctype == CType::U32 {
            return value;
        }
        let ty = self.words_type(code);
        code.bitcast(ty, value)
    }

    fn value_of(&self, code: &mut Code<'_, '_>, ctype: CType, words: Word) -> Word {
        if ctype == CType::U32 {
            return words;
        }
        let ty = value_type(code, ctype);
        code.bitcast(ty, words)
    }

    /// Accumulator of one element at index `r`.
    pub(super) fn lift(&self, code: &mut Code<'_, '_>, id: Word, r: Word) -> Result<Word> {
        let value = Value { id, dtype: self.input };
        match self.accumulator() {
            Accumulator::Value(ctype) if matches!(self.reduction, Reduction::All | Reduction::Any) => {
                let id = scalar::truthy(code, value)?;
                Ok(self.to_words(code, ctype, id))
            }
            Accumulator::Value(ctype) => {
                let id = scalar::cast(code, value, ctype.dtype())?;
                Ok(self.to_words(code, ctype, id))
            }
            Accumulator::Compensated(ctype) => {
                let id = scalar::cast(code, value, ctype.dtype())?;
                let ty = value_type(code, ctype);
                let zero = code.linker.global(SpirvOp::ConstantNull, Some(ty), vec![]);
                let pair = compensated_type(code, ctype);
                let both = code.ids(SpirvOp::CompositeConstruct, pair, &[id, zero]);
                let words = self.words_type(code);
                Ok(code.bitcast(words, both))
            }
            Accumulator::Arg { key_words } => {
                let ctype = self.input.ctype();
                let mut key = code.call(&format!("nx_key_{}", ctype.name()), &[id])?;
                let bits = key_words * 32;
                if self.reduction == Reduction::ArgMin {
                    let nan = if self.input.is_float() { "nan_" } else { "" };
                    key = code.call(&format!("nx_key_reverse_{nan}{bits}"), &[key])?;
                }
                let ty = self.words_type(code);
                if key_words == 1 {
                    return Ok(code.ids(SpirvOp::CompositeConstruct, ty, &[key, r]));
                }
                let zero = code.linker.const_u32(0);
                Ok(code.ids(SpirvOp::CompositeConstruct, ty, &[key, r, zero]))
            }
        }
    }

    /// Accumulator of a product of two elements; compensated ones hold all of it.
    pub(super) fn lift_product(&self, code: &mut Code<'_, '_>, id: Word, by: Word, times: DType) -> Result<Word> {
        let ctype = self.out.ctype();
        let a = scalar::cast(code, Value { id, dtype: self.input }, ctype.dtype())?;
        let b = scalar::cast(code, Value { id: by, dtype: times }, ctype.dtype())?;
        if let Accumulator::Compensated(ctype) = self.accumulator() {
            let product = code.call(&format!("nx_exact_product_{}", ctype.name()), &[a, b])?;
            let words = self.words_type(code);
            return Ok(code.bitcast(words, product));
        }
        let product = code.call(&format!("nx_multiply_{}", ctype.name()), &[a, b])?;
        Ok(self.to_words(code, ctype, product))
    }

    /// The accumulator that changes nothing.
    pub(super) fn identity(&self, code: &mut Code<'_, '_>) -> Result<Word> {
        let words = self.identity_words()?;
        let ty = self.words_type(code);
        let ids: SmallVec<[Word; 4]> = words.iter().map(|&w| code.linker.const_u32(w)).collect();
        Ok(match *ids {
            [word] => word,
            _ => code.ids(SpirvOp::CompositeConstruct, ty, &ids),
        })
    }

    /// The same where no loop hides from compilers what it is: those that know it drop what it is combined with, although that
    /// changes signs of zeros.
    pub(super) fn exact_identity(&self, code: &mut Code<'_, '_>) -> Result<Word> {
        let identity = self.identity(code)?;
        if !self.accumulates_floats() {
            return Ok(identity);
        }
        let (ty, zero) = (self.words_type(code), access::zero_word(code)?);
        let zeros = match self.accumulator().words() {
            1 => zero,
            words => code.ids(SpirvOp::CompositeConstruct, ty, &vec![zero; words as usize]),
        };
        Ok(code.ids(SpirvOp::BitwiseOr, ty, &[identity, zeros]))
    }

    /// Whether combining rounds, and so gives another result than a lone element.
    pub(super) fn accumulates_floats(&self) -> bool {
        match self.accumulator() {
            Accumulator::Value(ctype) => !ctype.dtype().is_integer(),
            Accumulator::Compensated(_) => true,
            Accumulator::Arg { .. } => false,
        }
    }

    /// Whether the result is the largest or the least of f32.
    pub(super) fn extreme_of_f32(&self) -> Option<&'static str> {
        match (self.accumulator(), self.reduction) {
            (Accumulator::Value(CType::F32), Reduction::Max) => Some("largest"),
            (Accumulator::Value(CType::F32), Reduction::Min) => Some("least"),
            _ => None,
        }
    }

    fn identity_words(&self) -> Result<SmallVec<[u32; 4]>> {
        let two = |bits: u64| SmallVec::from_slice(&[bits as u32, (bits >> 32) as u32]);
        let unsupported = || Error::Unsupported {
            op: self.reduction.name().to_string(),
            dtype: Some(self.input),
            needs: "a type with an order".to_string(),
        };
        let accumulator = self.accumulator();
        let ctype = match accumulator {
            Accumulator::Arg { key_words } => {
                // Key 0 loses to every other key; against an equal key the index decides.
                let index = if self.tie_high { 0 } else { u32::MAX };
                return Ok(match key_words {
                    1 => SmallVec::from_slice(&[0, index]),
                    _ => SmallVec::from_slice(&[0, 0, index, 0]),
                });
            }
            Accumulator::Compensated(_) => {
                let neutral = if self.reduction == Reduction::Product { 1f32 } else { 0f32 };
                let mut words = SmallVec::from_elem(0, accumulator.words() as usize);
                words[0] = neutral.to_bits();
                return Ok(words);
            }
            Accumulator::Value(ctype) => ctype,
        };
        Ok(match (self.reduction, ctype) {
            (Reduction::All, _) => SmallVec::from_slice(&[1]),
            (Reduction::Any, _) => SmallVec::from_slice(&[0]),
            (Reduction::Product, CType::F32) => SmallVec::from_slice(&[1f32.to_bits()]),
            (Reduction::Sum, _) => SmallVec::from_elem(0, accumulator.words() as usize),
            (Reduction::Product, CType::I32 | CType::U32) => SmallVec::from_slice(&[1]),
            (Reduction::Product, CType::I64 | CType::U64) => two(1),
            (Reduction::Product, CType::F64) => two(1f64.to_bits()),
            (Reduction::Product, CType::C64) => SmallVec::from_slice(&[1f32.to_bits(), 0]),
            (Reduction::Product, CType::C128) => {
                let bits = 1f64.to_bits();
                SmallVec::from_slice(&[bits as u32, (bits >> 32) as u32, 0, 0])
            }
            (Reduction::Max, CType::I32) => SmallVec::from_slice(&[i32::MIN as u32]),
            (Reduction::Max, CType::U32) => SmallVec::from_slice(&[0]),
            (Reduction::Max, CType::I64) => two(i64::MIN as u64),
            (Reduction::Max, CType::U64) => two(0),
            (Reduction::Max, CType::F32) => SmallVec::from_slice(&[f32::NEG_INFINITY.to_bits()]),
            (Reduction::Max, CType::F64) => two(f64::NEG_INFINITY.to_bits()),
            (Reduction::Min, CType::I32) => SmallVec::from_slice(&[i32::MAX as u32]),
            (Reduction::Min, CType::U32) => SmallVec::from_slice(&[u32::MAX]),
            (Reduction::Min, CType::I64) => two(i64::MAX as u64),
            (Reduction::Min, CType::U64) => two(u64::MAX),
            (Reduction::Min, CType::F32) => SmallVec::from_slice(&[f32::INFINITY.to_bits()]),
            (Reduction::Min, CType::F64) => two(f64::INFINITY.to_bits()),
            (Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin, _) => return Err(unsupported()),
        })
    }

    pub(super) fn combine(&self, code: &mut Code<'_, '_>, a: Word, b: Word) -> Result<Word> {
        let name = match (self.accumulator(), self.reduction) {
            (Accumulator::Compensated(ctype), reduction) => {
                let pair = compensated_type(code, ctype);
                let (a, b) = (code.bitcast(pair, a), code.bitcast(pair, b));
                let function = if reduction == Reduction::Product { "product2" } else { "sum2" };
                let result = code.call(&format!("nx_{function}_{}", ctype.name()), &[a, b])?;
                let words = self.words_type(code);
                return Ok(code.bitcast(words, result));
            }
            (Accumulator::Arg { key_words }, _) => {
                let tie = if self.tie_high { "high" } else { "low" };
                let nan = if self.input.is_float() && !self.tie_high { "_nan" } else { "" };
                return code.call(&format!("nx_arg_{tie}{nan}_{}", key_words * 32), &[a, b]);
            }
            (_, Reduction::All) => return Ok(code.u32_op(SpirvOp::BitwiseAnd, a, b)),
            (_, Reduction::Any) => return Ok(code.u32_op(SpirvOp::BitwiseOr, a, b)),
            (Accumulator::Value(_), Reduction::Product) => "multiply",
            // Of zeros with different signs one that does not depend on the order in which they are combined.
            (Accumulator::Value(CType::F32 | CType::F64), Reduction::Max) => "largest",
            (Accumulator::Value(CType::F32 | CType::F64), Reduction::Min) => "least",
            (Accumulator::Value(_), Reduction::Max) => "max",
            (Accumulator::Value(_), Reduction::Min) => "min",
            (Accumulator::Value(_), _) => "add",
        };
        let ctype = self.out.ctype();
        let (a, b) = (self.value_of(code, ctype, a), self.value_of(code, ctype, b));
        let id = code.call(&format!("nx_{name}_{}", ctype.name()), &[a, b])?;
        Ok(self.to_words(code, ctype, id))
    }

    /// A tree of accumulators, none of none. Those of `elements` have no errors yet.
    pub(super) fn combine_all(
        &self,
        code: &mut Code<'_, '_>,
        mut accumulators: SmallVec<[Word; 4]>,
        elements: bool,
    ) -> Result<Option<Word>> {
        let is_sum_of_f32 = self.is_sum_of_f32();
        let mut exact = elements && is_sum_of_f32;
        while accumulators.len() > 1 {
            let mut next = SmallVec::new();
            for pair in accumulators.chunks(2) {
                next.push(match *pair {
                    [a, b] if exact => {
                        let [a, b] = [a, b].map(|words| {
                            let (uint, float) = (code.linker.type_uint(32), code.linker.type_float(32));
                            let bits = code.extract(uint, words, 0);
                            code.bitcast(float, bits)
                        });
                        let sum = code.call("nx_two_sum_f32", &[a, b])?;
                        let words = self.words_type(code);
                        code.bitcast(words, sum)
                    }
                    [a, b] => self.combine(code, a, b)?,
                    [a] => a,
                    _ => continue,
                });
            }
            (accumulators, exact) = (next, false);
        }
        Ok(accumulators.first().copied())
    }

    /// Whether it sums what are f32 by then.
    pub(super) fn is_sum_of_f32(&self) -> bool {
        self.reduction == Reduction::Sum && self.accumulator() == Accumulator::Compensated(CType::F32)
    }

    /// The result from its accumulator.
    pub(super) fn lower(&self, code: &mut Code<'_, '_>, words: Word) -> Result<Word> {
        let uint = code.linker.type_uint(32);
        let value = match self.accumulator() {
            Accumulator::Compensated(ctype) => {
                let pair = compensated_type(code, ctype);
                let pair = code.bitcast(pair, words);
                let id = code.call(&format!("nx_compensated_value_{}", ctype.name()), &[pair])?;
                Value { id, dtype: ctype.dtype() }
            }
            Accumulator::Arg { key_words } => Value { id: code.extract(uint, words, key_words), dtype: DType::U32 },
            Accumulator::Value(ctype) => {
                let id = self.value_of(code, ctype, words);
                Value { id, dtype: ctype.dtype() }
            }
        };
        scalar::cast(code, value, self.out)
    }
}

/// The type of a compensated value: twice its parts.
fn compensated_type(code: &mut Code<'_, '_>, ctype: CType) -> Word {
    let (part, parts) = match ctype {
        CType::C64 => (CType::F32, 4),
        ctype => (ctype, 2),
    };
    let part = value_type(code, part);
    code.linker.type_vector(part, parts)
}
