//! Kernels that apply updates sorted by their targets: see the templates.

use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::{Binary, Elementwise, Reduction};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::{ReducerCode, value_of};
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};

use super::generate::{in_row, in_update};

/// Operand numbers in parameters. Strides of updates and result are along the count of updates and the rows' axes.
const TARGETS: u8 = 0;
/// The updates' places before they were sorted.
const ORDER: u8 = 1;
const UPDATES: u8 = 2;
const OUT: u8 = 3;
/// Sums and targets of the next level.
const SUMS: u8 = 4;
const MARKS: u8 = 5;

/// The key under which a kernel that stores the last update of each target is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SegmentPutSpec {
    pub element: Element,
    pub update: Element,
    /// Updates lie in the order of their targets.
    pub carried: bool,
    pub rest_rank: u8,
}

/// The key under which a kernel that adds up the updates of each target is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SegmentAddSpec {
    pub out: DType,
    pub update: DType,
    /// Updates are the sums of the level before.
    pub sums: bool,
    /// Updates are single elements of one word, in the order of their targets.
    pub carried: bool,
    pub last: bool,
    pub rest_rank: u8,
}

/// The key under which a kernel that adds the updates of each target one after another is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SegmentStepsSpec {
    pub out: DType,
    pub update: DType,
    pub rest_rank: u8,
}

/// Position of element `inner` of a row of the result. Rows are counted by `unit` elements, the parameter.
fn in_result(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    unit: Param,
    coordinates: &[Word],
    row: Word,
) -> Result<Word> {
    let unit = code.param(params.word(unit))?;
    let first = code.u32_op(SpirvOp::IMul, row, unit);
    in_row(code, params, OUT, coordinates, first)
}

fn load_word(code: &mut Code<'_, '_>, params: &mut ParamLayout, operand: u8, at: Word) -> Result<Word> {
    let address = params.address(operand);
    access::load(code, address, Element::Raw(4), at)
}

impl SegmentPutSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let mut linker = Linker::new(library, "segment_put", table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        linker.define("slot_target", |code, args| load_word(code, &mut params, TARGETS, arg(args, 0)?).map(Some))?;
        linker.define("slot_apply", |code, args| {
            let (inner, target, at) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
            let update = if self.carried { at } else { load_word(code, &mut params, ORDER, at)? };
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let source = in_update(code, &mut params, UPDATES, &coordinates, update)?;
            let target = in_result(code, &mut params, Param::Extra(1), &coordinates, target)?;
            let address = params.address(UPDATES);
            let mut value = access::load(code, address, self.update, source)?;
            if let (Element::Typed(from), Element::Typed(to)) = (self.update, self.element) {
                value = scalar::cast(code, Value { id: value, dtype: from }, to)?;
            }
            let address = params.address(OUT);
            access::store(code, address, self.element, target, value)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }
}

impl SegmentAddSpec {
    /// Sorted updates that one invocation adds up.
    pub const CHUNK: u64 = 32;

    /// Accumulators are those of sums in the result's type.
    fn sum_of(&self, input: DType) -> Reducer {
        Reducer { reduction: Reduction::Sum, tie_high: false, input, out: self.out }
    }

    /// Bytes of one sum.
    pub fn accumulator_bytes(&self) -> u64 {
        self.sum_of(self.out).accumulator_bytes()
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("segment_add_{}", self.accumulator_bytes() / 4);
        let mut linker = Linker::new(library, &name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0), Param::Extra(1)]);
        let accumulator = Element::Raw(self.accumulator_bytes() as u8);
        let sum = self.sum_of(self.update);
        linker.define("slot_target", |code, args| load_word(code, &mut params, TARGETS, arg(args, 0)?).map(Some))?;
        linker.define("slot_combine", |code, args| sum.combine(code, arg(args, 0)?, arg(args, 1)?).map(Some))?;
        linker.define("slot_load", |code, args| {
            let (at, inner) = (arg(args, 0)?, arg(args, 1)?);
            if self.sums {
                let width = code.param(params.word(Param::Count))?;
                let first = code.u32_op(SpirvOp::IMul, at, width);
                let at = code.u32_op(SpirvOp::IAdd, first, inner);
                let address = params.address(UPDATES);
                return access::load(code, address, accumulator, at).map(Some);
            }
            let update = if self.carried { at } else { load_word(code, &mut params, ORDER, at)? };
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let source = in_update(code, &mut params, UPDATES, &coordinates, update)?;
            let address = params.address(UPDATES);
            let value = access::load(code, address, Element::Typed(self.update), source)?;
            sum.lift(code, value, update).map(Some)
        })?;
        if self.carried {
            for (slot, operand) in [("slot_target_four", TARGETS), ("slot_load_four", UPDATES)] {
                linker.define(slot, |code, args| {
                    let address = params.address(operand);
                    access::load(code, address, Element::Raw(16), arg(args, 0)?).map(Some)
                })?;
            }
            linker.define("slot_lift", |code, args| {
                let value = value_of(code, self.update.ctype(), arg(args, 0)?);
                let place = code.linker.const_u32(0);
                sum.lift(code, value, place).map(Some)
            })?;
        }
        linker.define("slot_apply", |code, args| {
            let (inner, target, total) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let target = in_result(code, &mut params, Param::Extra(2), &coordinates, target)?;
            let address = params.address(OUT);
            let old = access::load(code, address, Element::Typed(self.out), target)?;
            let old = self.sum_of(self.out).lift(code, old, target)?;
            let total = sum.combine(code, old, total)?;
            let value = sum.lower(code, total)?;
            access::store(code, address, Element::Typed(self.out), target, value)?;
            Ok(None)
        })?;
        if !self.last {
            linker.define("slot_store", |code, args| {
                let address = params.address(SUMS);
                access::store(code, address, accumulator, arg(args, 0)?, arg(args, 1)?)?;
                Ok(None)
            })?;
            linker.define("slot_mark", |code, args| {
                let address = params.address(MARKS);
                access::store(code, address, Element::Raw(4), arg(args, 0)?, arg(args, 1)?)?;
                Ok(None)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }
}

impl SegmentStepsSpec {
    /// Words of a sum and of an update.
    fn words(&self) -> u32 {
        self.out.ctype().dtype().size_bytes().max(self.update.ctype().dtype().size_bytes()) as u32 / 4
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let words = self.words();
        let mut linker = Linker::new(library, &format!("segment_steps_{words}"), table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        linker.define("slot_target", |code, args| load_word(code, &mut params, TARGETS, arg(args, 0)?).map(Some))?;
        linker.define("slot_update", |code, args| load_word(code, &mut params, ORDER, arg(args, 0)?).map(Some))?;
        linker.define("slot_load", |code, args| {
            let (update, inner) = (arg(args, 0)?, arg(args, 1)?);
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let source = in_update(code, &mut params, UPDATES, &coordinates, update)?;
            let address = params.address(UPDATES);
            let value = access::load(code, address, Element::Typed(self.update), source)?;
            Ok(Some(access::padded_words(code, self.update.ctype(), value, words)))
        })?;
        linker.define("slot_begin", |code, args| {
            let (inner, target) = (arg(args, 0)?, arg(args, 1)?);
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let target = in_result(code, &mut params, Param::Extra(1), &coordinates, target)?;
            let address = params.address(OUT);
            let value = access::load(code, address, Element::Typed(self.out), target)?;
            Ok(Some(access::padded_words(code, self.out.ctype(), value, words)))
        })?;
        linker.define("slot_combine", |code, args| {
            let [sum, update] = [(0, self.out), (1, self.update)].map(|(k, dtype)| {
                let id = access::value_of_padded(code, dtype.ctype(), arg(args, k)?, words);
                Ok(Value { id, dtype })
            });
            let sum = scalar::emit(code, Elementwise::Binary(Binary::Add), &[sum?, update?], self.out)?;
            Ok(Some(access::padded_words(code, self.out.ctype(), sum, words)))
        })?;
        linker.define("slot_apply", |code, args| {
            let (inner, target, sum) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let target = in_result(code, &mut params, Param::Extra(1), &coordinates, target)?;
            let value = access::value_of_padded(code, self.out.ctype(), sum, words);
            let address = params.address(OUT);
            access::store(code, address, Element::Typed(self.out), target, value)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }
}
