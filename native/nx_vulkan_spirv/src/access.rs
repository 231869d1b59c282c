//! How generated code reads and writes tensors: storage types and index arithmetic.

use nx_vulkan_ir::{CType, DType, Error, Result};
use rspirv::dr::Operand;
use rspirv::spirv::{Op, Word};
use smallvec::SmallVec;

use super::link::{Code, Linker};
use super::memory::Address;
use super::params::{Param, ParamLayout};

/// How an operand lies in the iteration space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row-major without gaps: the linear index is the position.
    Contiguous,
    /// One element for every index.
    Uniform,
    /// A stride per axis.
    Strided,
    /// A stride per axis, where vectors along the innermost axis are near each other in memory, and accessed one
    /// element after the other.
    Each,
    /// A stride per axis, where vectors along the innermost axis are neighbours in memory and aligned.
    Inner,
    /// A stride per axis, where one element repeats along the innermost axis, and vectors don't reach beyond it.
    Repeated,
    /// As `Each`, and positions may lie outside of the operand: what is read there is any of its elements.
    Bounded,
    /// As `Inner`, where vectors lie in the operand or outside of it, and any other vector is read there.
    BoundedInner,
}

/// How a kernel reads an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port {
    /// What it takes of it.
    pub element: Element,
    /// Where that lies.
    pub layout: Layout,
}

impl Layout {
    /// Whether positions may lie outside of the operand.
    pub fn is_bounded(self) -> bool {
        matches!(self, Layout::Bounded | Layout::BoundedInner)
    }

    /// Whether positions come from coordinates.
    pub fn has_strides(self) -> bool {
        match self {
            Layout::Strided
            | Layout::Each
            | Layout::Inner
            | Layout::Repeated
            | Layout::Bounded
            | Layout::BoundedInner => true,
            Layout::Contiguous | Layout::Uniform => false,
        }
    }
}

/// The type of an element as code handles it: a dtype with its meaning, or storage bits that are only moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// Of a tensor type.
    Typed(DType),
    /// Bits of 1, 2, 4, 8 or 16 bytes.
    Raw(u8),
}

impl Element {
    /// Elements of the size of a type, whatever they mean.
    pub fn raw(dtype: DType) -> Element {
        Element::Raw(dtype.size_bytes() as u8)
    }

    /// Bytes of one.
    pub fn size_bytes(self) -> u32 {
        match self {
            Element::Typed(dtype) => dtype.size_bytes() as u32,
            Element::Raw(bytes) => u32::from(bytes),
        }
    }

    /// How many neighbours one load can take: up to 16 bytes, up to 4 elements.
    pub fn max_width(self) -> u32 {
        match self {
            Element::Typed(DType::C64 | DType::C128) => 1,
            other => match other.size_bytes() {
                1..=4 => 4,
                8 if matches!(other, Element::Typed(_)) => 2,
                _ => 1,
            },
        }
    }
}

/// The type of a value of compute type `ctype`.
pub fn value_type(code: &mut Code<'_, '_>, ctype: CType) -> Word {
    match ctype {
        CType::I32 => code.linker.type_int(32),
        CType::U32 => code.linker.type_uint(32),
        CType::I64 => code.linker.type_int(64),
        CType::U64 => code.linker.type_uint(64),
        CType::F32 => code.linker.type_float(32),
        CType::F64 => code.linker.type_float(64),
        CType::C64 => {
            let part = code.linker.type_float(32);
            code.linker.type_vector(part, 2)
        }
        CType::C128 => {
            let part = code.linker.type_float(64);
            code.linker.type_vector(part, 2)
        }
    }
}

/// A number of a compute type by its bits, the real part of a complex number in the lower half. `None` where 64 bits
/// don't hold it.
pub fn constant(code: &mut Code<'_, '_>, ctype: CType, bits: u64) -> Option<Word> {
    let ty = value_type(code, ctype);
    let (opcode, operands) = match ctype {
        CType::I32 | CType::U32 | CType::F32 => (Op::Constant, vec![Operand::LiteralBit32(bits as u32)]),
        CType::I64 | CType::U64 | CType::F64 => (Op::Constant, vec![Operand::LiteralBit64(bits)]),
        CType::C64 => {
            let parts = [bits & 0xffff_ffff, bits >> 32].map(|part| constant(code, CType::F32, part));
            (Op::ConstantComposite, parts.into_iter().map(|id| id.map(Operand::IdRef)).collect::<Option<_>>()?)
        }
        CType::C128 => return None,
    };
    Some(code.linker.global(opcode, Some(ty), operands))
}

/// The bits of a value of a compute type as so many words or more, the others zeros.
pub fn padded_words(code: &mut Code<'_, '_>, ctype: CType, id: Word, words: u32) -> Word {
    let uint = code.linker.type_uint(32);
    let own = ctype.dtype().size_bytes() as u32 / 4;
    let own_type = if own == 1 { uint } else { code.linker.type_vector(uint, own) };
    let bits = if ctype == CType::U32 { id } else { code.bitcast(own_type, id) };
    if own == words {
        return bits;
    }
    let zero = code.linker.const_u32(0);
    let part = |code: &mut Code<'_, '_>, k: u32| match own {
        _ if k >= own => zero,
        1 => bits,
        _ => code.extract(uint, bits, k),
    };
    let parts: SmallVec<[Word; 4]> = (0..words).map(|k| part(code, k)).collect();
    let ty = code.linker.type_vector(uint, words);
    code.ids(Op::CompositeConstruct, ty, &parts)
}

/// The value of [`padded_words`].
pub fn value_of_padded(code: &mut Code<'_, '_>, ctype: CType, padded: Word, words: u32) -> Word {
    let uint = code.linker.type_uint(32);
    let own = ctype.dtype().size_bytes() as u32 / 4;
    let bits = match own {
        _ if own == words => padded,
        1 => code.extract(uint, padded, 0),
        _ => {
            let parts: SmallVec<[Word; 4]> = (0..own).map(|k| code.extract(uint, padded, k)).collect();
            let ty = code.linker.type_vector(uint, own);
            code.ids(Op::CompositeConstruct, ty, &parts)
        }
    };
    if ctype == CType::U32 {
        return bits;
    }
    let ty = value_type(code, ctype);
    code.bitcast(ty, bits)
}

/// A word that is 0, as no compiler knows: the count of elements is below 2^31.
pub fn zero_word(code: &mut Code<'_, '_>) -> Result<Word> {
    let (count, shift) = (code.param(0)?, code.linker.const_u32(31));
    Ok(code.u32_op(Op::ShiftRightLogical, count, shift))
}

/// A constant where compilers that know a zero would drop operations with it, although they change signs, infinities
/// and NaN (lavapipe does): zeros are made from [`zero_word`].
pub fn exact_constant(code: &mut Code<'_, '_>, ctype: CType, bits: u64) -> Result<Option<Word>> {
    let float_zero = |part: u64, bits: u32| part << 1 << (64 - bits) == 0;
    let single = |code: &mut Code<'_, '_>, part: u64| -> Result<Option<Word>> {
        if !float_zero(part & 0xffff_ffff, 32) {
            return Ok(constant(code, CType::F32, part & 0xffff_ffff));
        }
        let (zero, sign) = (zero_word(code)?, code.linker.const_u32(part as u32));
        let word = code.u32_op(Op::BitwiseOr, zero, sign);
        let ty = value_type(code, CType::F32);
        Ok(Some(code.bitcast(ty, word)))
    };
    match ctype {
        CType::F32 => single(code, bits),
        CType::F64 if float_zero(bits, 64) => {
            let (low, sign) = (zero_word(code)?, code.linker.const_u32((bits >> 32) as u32));
            let high = code.u32_op(Op::BitwiseOr, low, sign);
            let uint = code.linker.type_uint(32);
            let pair = code.linker.type_vector(uint, 2);
            let words = code.ids(Op::CompositeConstruct, pair, &[low, high]);
            let ty = value_type(code, CType::F64);
            Ok(Some(code.bitcast(ty, words)))
        }
        CType::C64 => {
            let (Some(re), Some(im)) = (single(code, bits)?, single(code, bits >> 32)?) else { return Ok(None) };
            let ty = value_type(code, CType::C64);
            Ok(Some(code.ids(Op::CompositeConstruct, ty, &[re, im])))
        }
        CType::F64 | CType::I32 | CType::U32 | CType::I64 | CType::U64 | CType::C128 => Ok(constant(code, ctype, bits)),
    }
}

/// A number of a compute type, but for c128, whose lower and upper bits two parameters say.
pub fn number(
    code: &mut Code<'_, '_>,
    layout: &mut ParamLayout,
    ctype: CType,
    [low, high]: [Param; 2],
) -> Result<Word> {
    let ty = value_type(code, ctype);
    let low = code.param(layout.word(low))?;
    match ctype {
        CType::U32 => Ok(low),
        CType::I32 | CType::F32 => Ok(code.bitcast(ty, low)),
        CType::I64 | CType::U64 | CType::F64 | CType::C64 | CType::C128 => {
            let high = code.param(layout.word(high))?;
            let uint = code.linker.type_uint(32);
            let pair = code.linker.type_vector(uint, 2);
            let words = code.ids(Op::CompositeConstruct, pair, &[low, high]);
            Ok(code.bitcast(ty, words))
        }
    }
}

/// The type in memory.
fn storage_type(code: &mut Code<'_, '_>, element: Element) -> Word {
    match element {
        Element::Typed(dtype) if dtype.size_bytes() > 2 => value_type(code, dtype.ctype()),
        other => match other.size_bytes() {
            1 => code.linker.type_uint(8),
            2 => code.linker.type_uint(16),
            4 => code.linker.type_uint(32),
            size => {
                let word = code.linker.type_uint(32);
                code.linker.type_vector(word, size / 4)
            }
        },
    }
}

/// From storage to a value: widens narrow types through the scalar library.
fn widen(code: &mut Code<'_, '_>, element: Element, stored: Word) -> Result<Word> {
    if element.size_bytes() > 2 {
        return Ok(stored);
    }
    let uint = code.linker.type_uint(32);
    let raw = code.ids(Op::UConvert, uint, &[stored]);
    of_bits(code, element, raw)
}

/// The value of a narrow type whose bits are the low ones of a word, and the others zeros.
fn of_bits(code: &mut Code<'_, '_>, element: Element, raw: Word) -> Result<Word> {
    match element {
        Element::Typed(DType::F16) if code.linker.any_nan => code.call("nx_load_f16_number", &[raw]),
        Element::Typed(dtype) if dtype != DType::U8 && dtype != DType::U16 => {
            code.call(&format!("nx_load_{dtype}"), &[raw])
        }
        _ => Ok(raw),
    }
}

/// From a value to storage. A narrow value is rounded or wrapped here.
fn narrow(code: &mut Code<'_, '_>, element: Element, value: Word) -> Result<Word> {
    if element.size_bytes() > 2 {
        return Ok(value);
    }
    let raw = to_bits(code, element, value)?;
    let stored = storage_type(code, element);
    Ok(code.ids(Op::UConvert, stored, &[raw]))
}

/// The bits of a value of a narrow type, below others of which stores know nothing.
fn to_bits(code: &mut Code<'_, '_>, element: Element, value: Word) -> Result<Word> {
    match element {
        Element::Typed(dtype) if dtype != DType::U8 && dtype != DType::U16 => {
            if let Some(&bits) = code.narrowed.get(&(value, dtype)) {
                return Ok(bits);
            }
            code.call(&format!("nx_store_{dtype}"), &[value])
        }
        _ => Ok(value),
    }
}

/// Whether numbers are rounded to f16 by a conversion there and back that compilers can't see through.
pub(crate) fn hides_round_trips(code: &Code<'_, '_>) -> bool {
    let modes = code.linker.modes;
    modes.hidden_round_trips && !modes.half_round_trips && !code.linker.bfloat16
}

/// Rounds or wraps a computed value to what its dtype can hold.
pub fn canonical(code: &mut Code<'_, '_>, dtype: DType, value: Word) -> Result<Word> {
    if dtype.is_canonical() {
        return Ok(value);
    }
    if dtype == DType::Bf16
        && let Some(id) = code.round_known(value)?
    {
        return Ok(id);
    }
    let raw = code.call(&format!("nx_store_{dtype}"), &[value])?;
    let computed = value;
    let value = match dtype {
        DType::F16 if hides_round_trips(code) => {
            let zero = zero_word(code)?;
            code.call("nx_cast_f32_f16_hidden", &[value, zero])?
        }
        // Not by way of its bits, which takes longer.
        DType::F16 | DType::Bf16 => code.call(&format!("nx_cast_f32_{dtype}"), &[value])?,
        _ => code.call(&format!("nx_load_{dtype}"), &[raw])?,
    };
    if dtype == DType::F16 {
        code.know_half(computed, value);
    }
    code.narrowed.insert((value, dtype), raw);
    Ok(value)
}

/// Loads element `index` of the array at parameter word `address`.
pub fn load(code: &mut Code<'_, '_>, address: u32, element: Element, index: Word) -> Result<Word> {
    let array = code.address(address)?;
    load_at(code, array, element, index)
}

fn load_at(code: &mut Code<'_, '_>, array: Address, element: Element, index: Word) -> Result<Word> {
    let stored_type = storage_type(code, element);
    let stored = code.load(array, stored_type, element.size_bytes(), index);
    widen(code, element, stored)
}

/// Stores `value` as element `index` of the array at parameter word `address`.
pub fn store(code: &mut Code<'_, '_>, address: u32, element: Element, index: Word, value: Word) -> Result<()> {
    let array = code.address(address)?;
    store_at(code, array, element, index, value)
}

fn store_at(code: &mut Code<'_, '_>, array: Address, element: Element, index: Word, value: Word) -> Result<()> {
    let stored = narrow(code, element, value)?;
    let stored_type = storage_type(code, element);
    code.store(array, stored_type, element.size_bytes(), index, stored);
    Ok(())
}

/// Loads `width` neighbours; `index` counts groups of `width`.
pub fn load_vector(
    code: &mut Code<'_, '_>,
    address: u32,
    element: Element,
    width: u32,
    index: Word,
) -> Result<SmallVec<[Word; 4]>> {
    let array = code.address(address)?;
    load_vector_at(code, array, element, width, index)
}

/// Loads a vector of the array at an address.
pub fn load_vector_at(
    code: &mut Code<'_, '_>,
    array: Address,
    element: Element,
    width: u32,
    index: Word,
) -> Result<SmallVec<[Word; 4]>> {
    if width == 1 {
        return load_at(code, array, element, index).map(|id| SmallVec::from_slice(&[id]));
    }
    if code.linker.pairs && has_words(element, width) {
        return load_pairs(code, array, element, width, index);
    }
    let part = storage_type(code, element);
    let vector = code.linker.type_vector(part, width);
    let stored = code.load(array, vector, element.size_bytes() * width, index);
    (0..width)
        .map(|lane| {
            let lane = code.extract(part, stored, lane);
            widen(code, element, lane)
        })
        .collect()
}

/// Stores `width` neighbours; `index` counts groups of `width`.
pub fn store_vector(
    code: &mut Code<'_, '_>,
    address: u32,
    element: Element,
    index: Word,
    values: &[Word],
) -> Result<()> {
    let array = code.address(address)?;
    store_vector_at(code, array, element, index, values)
}

/// Stores a vector in the array at an address.
pub fn store_vector_at(
    code: &mut Code<'_, '_>,
    array: Address,
    element: Element,
    index: Word,
    values: &[Word],
) -> Result<()> {
    if let [value] = *values {
        return store_at(code, array, element, index, value);
    }
    if code.linker.pairs && has_words(element, values.len() as u32) {
        return store_pairs(code, array, element, index, values);
    }
    let lanes: SmallVec<[Word; 4]> = values.iter().map(|&value| narrow(code, element, value)).collect::<Result<_>>()?;
    let part = storage_type(code, element);
    let vector = code.linker.type_vector(part, lanes.len() as u32);
    let value = code.ids(Op::CompositeConstruct, vector, &lanes);
    code.store(array, vector, element.size_bytes() * lanes.len() as u32, index, value);
    Ok(())
}

/// Lets blocks of 16 bytes count on nobody writing to where they load from: compilers may fetch them early then, past
/// all other accesses.
pub fn declare_blocks_read_only(linker: &mut Linker<'_>) {
    let word = linker.type_uint(32);
    let block = linker.type_vector(word, 4);
    linker.declare_read_only(block, 16);
}

/// Stores four words as block `index` of 16 bytes, in a kernel whose other blocks may be declared to be read alone.
pub fn store_block(code: &mut Code<'_, '_>, address: u32, index: Word, words: Word) -> Result<()> {
    let array = code.address(address)?;
    // Of a type of its own.
    let word = code.linker.type_int(32);
    let block = code.linker.type_vector(word, 4);
    let words = code.bitcast(block, words);
    code.store(array, block, 16, index, words);
    Ok(())
}

/// Whether so many neighbours, of at most 4 bytes each, are words of 4 bytes together.
fn has_words(element: Element, width: u32) -> bool {
    element.size_bytes() <= 4 && element.size_bytes() * width >= 4
}

/// Neighbours of at most 4 bytes each by accesses of 8 bytes, or of 4 where they have no more.
fn load_pairs(
    code: &mut Code<'_, '_>,
    array: Address,
    element: Element,
    width: u32,
    index: Word,
) -> Result<SmallVec<[Word; 4]>> {
    let uint = code.linker.type_uint(32);
    let bytes = element.size_bytes() * width;
    if bytes < 8 {
        let word = code.load(array, uint, bytes, index);
        return parts_of(code, element, width, &[word]);
    }
    let wide = code.linker.type_uint(64);
    let both: SmallVec<[Word; 2]> =
        eights(code, bytes, index).into_iter().map(|place| code.load(array, wide, 8, place)).collect();
    let words = halves(code, &both);
    parts_of(code, element, width, &words)
}

/// The words of numbers of 64 bits.
fn halves(code: &mut Code<'_, '_>, numbers: &[Word]) -> SmallVec<[Word; 4]> {
    let uint = code.linker.type_uint(32);
    let pair = code.linker.type_vector(uint, 2);
    let mut words = SmallVec::new();
    for &number in numbers {
        let both = code.bitcast(pair, number);
        words.extend([0, 1].map(|half| code.extract(uint, both, half)));
    }
    words
}

/// Neighbours of at most 4 bytes each that lie in words.
pub fn parts_of(code: &mut Code<'_, '_>, element: Element, width: u32, words: &[Word]) -> Result<SmallVec<[Word; 4]>> {
    let uint = code.linker.type_uint(32);
    let per_word = 4 / element.size_bytes();
    let ty = storage_type(code, element);
    let mut values = SmallVec::new();
    for (k, &word) in (0..width).zip(words.iter().flat_map(|word| std::iter::repeat_n(word, per_word as usize))) {
        values.push(match per_word {
            1 if ty == uint => word,
            1 => code.bitcast(ty, word),
            _ => {
                let (shift, mask) = place_in_word(code, k, per_word);
                let low = code.u32_op(Op::ShiftRightLogical, word, shift);
                let raw = code.u32_op(Op::BitwiseAnd, low, mask);
                of_bits(code, element, raw)?
            }
        });
    }
    Ok(values)
}

/// By how much element `k` of words is shifted, and the mask of its bits below.
fn place_in_word(code: &mut Code<'_, '_>, k: u32, per_word: u32) -> (Word, Word) {
    let bits = 32 / per_word;
    (code.linker.const_u32(k % per_word * bits), code.linker.const_u32((1 << bits) - 1))
}

/// The counterpart of [`load_pairs`].
fn store_pairs(code: &mut Code<'_, '_>, array: Address, element: Element, index: Word, values: &[Word]) -> Result<()> {
    let uint = code.linker.type_uint(32);
    let per_word = 4 / element.size_bytes();
    let ty = storage_type(code, element);
    let mut words: SmallVec<[Word; 4]> = SmallVec::new();
    for values in values.chunks(per_word as usize) {
        let mut word = None;
        for (k, &value) in (0..).zip(values) {
            let part = match per_word {
                1 if ty == uint => value,
                1 => code.bitcast(uint, value),
                _ => {
                    let raw = to_bits(code, element, value)?;
                    let (shift, mask) = place_in_word(code, k, per_word);
                    let low = code.u32_op(Op::BitwiseAnd, raw, mask);
                    code.u32_op(Op::ShiftLeftLogical, low, shift)
                }
            };
            word = Some(word.map_or(part, |word| code.u32_op(Op::BitwiseOr, word, part)));
        }
        words.extend(word);
    }
    if let [word] = *words {
        code.store(array, uint, 4, index, word);
        return Ok(());
    }
    let (wide, pair) = (code.linker.type_uint(64), code.linker.type_vector(uint, 2));
    let places = eights(code, words.len() as u32 * 4, index);
    for (place, halves) in places.into_iter().zip(words.chunks(2)) {
        let both = code.ids(Op::CompositeConstruct, pair, halves);
        let both = code.bitcast(wide, both);
        code.store(array, wide, 8, place, both);
    }
    Ok(())
}

/// Loads `width` neighbours for each lane of a subgroup, each lane's vector next to that of the lane before, and those
/// of the first lane at `index`, which counts groups of `width`. All lanes load all of it from an address that is the
/// same for all, where no control flow is, and each picks its own: lavapipe makes that one access of the CPU's vectors.
/// `is_lane` has a bool for each lane but the last.
pub fn load_lanes_at(
    code: &mut Code<'_, '_>,
    array: Address,
    element: Element,
    width: u32,
    index: u32,
    is_lane: &[Word],
) -> Result<SmallVec<[Word; 4]>> {
    let in_words = has_words(element, width);
    let (ty, bytes) = match element.size_bytes() * width {
        4 if in_words => (code.linker.type_uint(32), 4),
        _ if in_words => (code.linker.type_uint(64), 8),
        _ => (storage_type(code, element), element.size_bytes()),
    };
    let per_lane = element.size_bytes() * width / bytes;
    let own = |code: &mut Code<'_, '_>, k: u32| {
        let of_lane = |lane: u32| (index + lane) * per_lane + k;
        let load = |code: &mut Code<'_, '_>, lane: u32| {
            let place = code.linker.const_u32(of_lane(lane));
            code.load(array, ty, bytes, place)
        };
        let last = load(code, is_lane.len() as u32);
        (0u32..).zip(is_lane).fold(last, |others, (lane, &is_lane)| {
            let one = load(code, lane);
            code.ids(Op::Select, ty, &[is_lane, one, others])
        })
    };
    let units: SmallVec<[Word; 4]> = (0..per_lane).map(|k| own(code, k)).collect();
    match (in_words, bytes) {
        (true, 8) => {
            let words = halves(code, &units);
            parts_of(code, element, width, &words)
        }
        (true, _) => parts_of(code, element, width, &units),
        (false, _) => units.into_iter().map(|unit| widen(code, element, unit)).collect(),
    }
}

/// Places of 8 bytes each that make up group `index` of so many bytes.
fn eights(code: &mut Code<'_, '_>, bytes: u32, index: Word) -> SmallVec<[Word; 2]> {
    let per_group = bytes / 8;
    let count = code.linker.const_u32(per_group);
    let first = if per_group == 1 { index } else { code.u32_op(Op::IMul, index, count) };
    (0..per_group)
        .map(|k| {
            let k = code.linker.const_u32(k);
            code.u32_op(Op::IAdd, first, k)
        })
        .collect()
}

/// Coordinates of a linear index in the axes `first_axis .. first_axis + rank` of the iteration space.
pub fn coordinates(
    code: &mut Code<'_, '_>,
    layout: &mut ParamLayout,
    linear: Word,
    first_axis: u8,
    rank: u8,
) -> Result<SmallVec<[Word; 6]>> {
    let mut coordinates: SmallVec<[Word; 6]> = SmallVec::from_elem(linear, rank as usize);
    let mut rest = linear;
    for axis in (1..rank).rev() {
        let (quotient, remainder) = divide(code, layout, rest, first_axis + axis)?;
        coordinates[axis as usize] = remainder;
        rest = quotient;
    }
    if let Some(first) = coordinates.first_mut() {
        *first = rest;
    }
    Ok(coordinates)
}

/// Quotient and remainder of `value` by the size of an axis.
pub fn divide(code: &mut Code<'_, '_>, layout: &mut ParamLayout, value: Word, axis: u8) -> Result<(Word, Word)> {
    if let Some(size) = layout.known(Param::Size(axis)) {
        let size = code.linker.const_u32(size);
        return Ok((code.u32_op(Op::UDiv, value, size), code.u32_op(Op::UMod, value, size)));
    }
    let size = code.param(layout.word(Param::Size(axis)))?;
    let multiplier = code.param(layout.word(Param::Multiplier(axis)))?;
    let shift = code.param(layout.word(Param::Shift(axis)))?;
    let uint = code.linker.type_uint(32);
    let pair = code.linker.global(
        Op::TypeStruct,
        None,
        vec![rspirv::dr::Operand::IdRef(uint), rspirv::dr::Operand::IdRef(uint)],
    );
    let product = code.ids(Op::UMulExtended, pair, &[value, multiplier]);
    let high = code.extract(uint, product, 1);
    let sum = code.u32_op(Op::IAdd, high, value);
    let quotient = code.u32_op(Op::ShiftRightLogical, sum, shift);
    let back = code.u32_op(Op::IMul, quotient, size);
    let remainder = code.u32_op(Op::ISub, value, back);
    Ok((quotient, remainder))
}

/// Adds the bias of operand `k` to a sum of coordinates times strides, so that the position is never negative: drivers
/// don't agree on negative indices.
pub fn biased(code: &mut Code<'_, '_>, layout: &mut ParamLayout, k: u8, sum: Word) -> Result<Word> {
    let bias = match layout.known(Param::Bias(k)) {
        Some(0) => return Ok(sum),
        Some(bias) => code.linker.const_u32(bias),
        None => code.param(layout.word(Param::Bias(k)))?,
    };
    Ok(code.u32_op(Op::IAdd, sum, bias))
}

/// The position of a sum of coordinates times strides in an operand whose first element and last position two
/// parameters say: the last one for sums that lie outside.
pub fn bounded(
    code: &mut Code<'_, '_>,
    layout: &mut ParamLayout,
    sum: Word,
    [first, last]: [Param; 2],
) -> Result<Word> {
    let (first, last) = (code.param(layout.word(first))?, code.param(layout.word(last))?);
    let at = code.u32_op(Op::IAdd, sum, first);
    code.call("nx_min_u32", &[at, last])
}

/// The sum of coordinate times stride of operand `k`, modulo 2^32. Where strides may be negative it needs the bias.
pub fn position(
    code: &mut Code<'_, '_>,
    layout: &mut ParamLayout,
    k: u8,
    first_axis: u8,
    coordinates: &[Word],
) -> Result<Word> {
    let mut sum: Option<Word> = None;
    for (axis, &coordinate) in coordinates.iter().enumerate() {
        let param = Param::Stride(k, first_axis + axis as u8);
        let stride = match layout.known(param) {
            Some(0) if axis + 1 < coordinates.len() || sum.is_some() => continue,
            Some(stride) => code.linker.const_u32(stride),
            None => code.param(layout.word(param))?,
        };
        let term = code.u32_op(Op::IMul, coordinate, stride);
        sum = Some(match sum {
            Some(sum) => code.u32_op(Op::IAdd, sum, term),
            None => term,
        });
    }
    sum.ok_or_else(|| Error::InvalidProgram { op: "index".to_string(), reason: "no axes".to_string() })
}
