//! Kernels that choose the extreme elements of windows, and add sources to them.

use nx_vulkan_ir::{CType, DType, Result};
use rspirv::spirv::{Op as SpirvOp, Word};

use nx_vulkan_spirv::access::{self, Element, value_type};
use nx_vulkan_spirv::generated::{Generated, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};

/// The two kernels of a window scatter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowStage {
    /// Writes the number of each window's extreme element.
    Choose { max: bool, input: DType },
    /// Adds up what each element gets.
    Gather { source: DType, initial: DType, out: DType },
}

/// The key under which such a kernel is compiled once. Operands: the padded tensor, the sources, the initial value, the
/// chosen elements, the result.
///
/// The iteration space has five times `rank` axes: those of the result, of the windows, of one window, the windows that
/// may cover an element, and the strides of windows as sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowScatterSpec {
    pub stage: WindowStage,
    pub rank: u8,
}

const INPUT: u8 = 0;
const SOURCE: u8 = 1;
const INITIAL: u8 = 2;
const CHOSEN: u8 = 3;
const OUT: u8 = 4;

impl WindowScatterSpec {
    /// The extra parameter with the low padding of an axis, modulo 2^32.
    fn low(axis: u8) -> Param {
        Param::Extra(1 + axis)
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        match self.stage {
            WindowStage::Choose { max, input } => self.choose(library, modes, table, max, input),
            WindowStage::Gather { source, initial, out } => self.gather(library, modes, table, [source, initial, out]),
        }
    }

    fn choose(&self, library: &Library, modes: FloatModes, table: bool, max: bool, input: DType) -> Result<Generated> {
        let name = "window_choose";
        let mut linker = Linker::new(library, name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        let (rank, ctype) = (self.rank, input.ctype());
        linker.define("slot_base", |code, args| {
            let outer = access::coordinates(code, &mut params, arg(args, 0)?, rank, rank)?;
            access::position(code, &mut params, INPUT, rank, &outer).map(Some)
        })?;
        linker.define("slot_element", |code, args| {
            let inner = access::coordinates(code, &mut params, arg(args, 1)?, 2 * rank, rank)?;
            let inner = access::position(code, &mut params, INPUT, 2 * rank, &inner)?;
            let at = code.u32_op(SpirvOp::IAdd, arg(args, 0)?, inner);
            let address = params.address(INPUT);
            let id = access::load(code, address, Element::Typed(input), at)?;
            Ok(Some(to_pair(code, ctype, id)))
        })?;
        linker.define("slot_replaces", |code, args| {
            let operands = [from_pair(code, ctype, arg(args, 0)?), from_pair(code, ctype, arg(args, 1)?)];
            let op = if max { "greater_equal" } else { "less_equal" };
            code.call(&format!("nx_{op}_{}", ctype.name()), &operands).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            let address = params.address(CHOSEN);
            access::store(code, address, Element::Typed(DType::U32), arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }

    fn gather(
        &self,
        library: &Library,
        modes: FloatModes,
        table: bool,
        [source, initial, out]: [DType; 3],
    ) -> Result<Generated> {
        let name = "window_gather";
        let mut linker = Linker::new(library, name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        let (rank, sums) = (self.rank, out.ctype());
        linker.define("slot_window", |code, args| {
            let (i, cover) = (arg(args, 0)?, arg(args, 1)?);
            self.window(code, &mut params, i, cover).map(Some)
        })?;
        linker.define("slot_chosen", |code, args| {
            let address = params.address(CHOSEN);
            access::load(code, address, Element::Typed(DType::U32), arg(args, 0)?).map(Some)
        })?;
        linker.define("slot_initial", |code, _| {
            let zero = code.linker.const_u32(0);
            let address = params.address(INITIAL);
            let id = access::load(code, address, Element::Typed(initial), zero)?;
            let id = scalar::cast(code, Value { id, dtype: initial }, sums.dtype())?;
            Ok(Some(to_pair(code, sums, id)))
        })?;
        linker.define("slot_add", |code, args| {
            let sum = from_pair(code, sums, arg(args, 0)?);
            let outer = access::coordinates(code, &mut params, arg(args, 1)?, rank, rank)?;
            let at = access::position(code, &mut params, SOURCE, rank, &outer)?;
            let at = access::biased(code, &mut params, SOURCE, at)?;
            let address = params.address(SOURCE);
            let id = access::load(code, address, Element::Typed(source), at)?;
            let id = scalar::cast(code, Value { id, dtype: source }, sums.dtype())?;
            let sum = code.call(&format!("nx_add_{}", sums.name()), &[sum, id])?;
            Ok(Some(to_pair(code, sums, sum)))
        })?;
        linker.define("slot_store", |code, args| {
            let id = from_pair(code, sums, arg(args, 1)?);
            let id = scalar::cast(code, Value { id, dtype: sums.dtype() }, out)?;
            let address = params.address(OUT);
            access::store(code, address, Element::Typed(out), arg(args, 0)?, id)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }

    /// The `cover`-th window that may cover element `i`, and the element's number in it.
    fn window(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, i: Word, cover: Word) -> Result<Word> {
        let rank = self.rank;
        let (uint, boolean) = (code.linker.type_uint(32), code.linker.type_bool());
        let own = access::coordinates(code, params, i, 0, rank)?;
        let back = access::coordinates(code, params, cover, 3 * rank, rank)?;
        let zero = code.linker.const_u32(0);
        let one = code.linker.const_u32(1);
        let (mut window, mut element, mut outside) = (zero, zero, zero);
        for axis in 0..rank {
            let at = usize::from(axis);
            let low = code.param(params.word(Self::low(axis)))?;
            let padded = code.u32_op(SpirvOp::IAdd, own[at], low);
            // Cut off by negative padding; positions are below 2^31.
            let bit = code.linker.const_u32(31);
            let negative = code.u32_op(SpirvOp::ShiftRightLogical, padded, bit);
            let covers = code.param(params.word(Param::Size(3 * rank + axis)))?;
            let counts = code.param(params.word(Param::Size(rank + axis)))?;
            let size = code.param(params.word(Param::Size(2 * rank + axis)))?;
            let stride = code.param(params.word(Param::Size(4 * rank + axis)))?;
            // The last window that starts at or before the element, and then those before it.
            let (last, _) = access::divide(code, params, padded, 4 * rank + axis)?;
            let steps = code.u32_op(SpirvOp::ISub, covers, one);
            let steps = code.u32_op(SpirvOp::ISub, steps, back[at]);
            let number = code.u32_op(SpirvOp::ISub, last, steps);
            let start = code.u32_op(SpirvOp::IMul, number, stride);
            let inside = code.u32_op(SpirvOp::ISub, padded, start);
            // As unsigned numbers, negative ones are too large, too.
            let beyond = code.ids(SpirvOp::UGreaterThanEqual, boolean, &[number, counts]);
            let after = code.ids(SpirvOp::UGreaterThanEqual, boolean, &[inside, size]);
            for condition in [beyond, after] {
                let flag = code.ids(SpirvOp::Select, uint, &[condition, one, zero]);
                outside = code.u32_op(SpirvOp::BitwiseOr, outside, flag);
            }
            outside = code.u32_op(SpirvOp::BitwiseOr, outside, negative);
            window = code.u32_op(SpirvOp::IMul, window, counts);
            window = code.u32_op(SpirvOp::IAdd, window, number);
            element = code.u32_op(SpirvOp::IMul, element, size);
            element = code.u32_op(SpirvOp::IAdd, element, inside);
        }
        let none = code.linker.const_u32(u32::MAX);
        let is_outside = scalar::is_set(code, outside);
        let window = code.ids(SpirvOp::Select, uint, &[is_outside, none, window]);
        let pair = code.linker.type_vector(uint, 2);
        Ok(code.ids(SpirvOp::CompositeConstruct, pair, &[window, element]))
    }
}

/// A real value as two words.
fn to_pair(code: &mut Code<'_, '_>, ctype: CType, value: Word) -> Word {
    let uint = code.linker.type_uint(32);
    let pair = code.linker.type_vector(uint, 2);
    if ctype.dtype().size_bytes() == 8 {
        return code.bitcast(pair, value);
    }
    let word = if ctype == CType::U32 { value } else { code.bitcast(uint, value) };
    let zero = code.linker.const_u32(0);
    code.ids(SpirvOp::CompositeConstruct, pair, &[word, zero])
}

fn from_pair(code: &mut Code<'_, '_>, ctype: CType, pair: Word) -> Word {
    let ty = value_type(code, ctype);
    if ctype.dtype().size_bytes() == 8 {
        return code.bitcast(ty, pair);
    }
    let uint = code.linker.type_uint(32);
    let word = code.extract(uint, pair, 0);
    if ctype == CType::U32 { word } else { code.bitcast(ty, word) }
}
