//! Products of few vectors with a matrix of scaled numbers on matrix units.

use nx_vulkan_ir::program::step::Ref;
use nx_vulkan_ir::program::{Binary, Elementwise};
use nx_vulkan_ir::{CType, DType, Error, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::ParamLayout;
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::derived::{DerivedSpec, Lane};
use super::generate::{DotSpec, FACTORS, start};
use super::generate_matrix::MatrixTile;
use super::linear::{LinearSpec, Numbers, is_same_for_all, moved_by};
use super::loads::vector_of;

impl DotSpec {
    pub(super) fn generate_linear(
        &self,
        library: &Library,
        tile: MatrixTile,
        modes: FloatModes,
        table: bool,
    ) -> Result<Generated> {
        let (Some(whole), Some(linear)) = (self.derived.as_deref(), self.linear.as_deref()) else {
            return Err(bad("the matrix is not computed"));
        };
        let Some(dtype) = tile.planes.own_type() else { return Err(bad("vectors have 16 bits")) };
        let (mut linker, mut params) = start(library, &tile.template(false), modes, table, 6)?;
        linker.bfloat16 = tile.planes.is_bf16();
        access::declare_blocks_read_only(&mut linker);
        let vectors = if tile.is_vectors_first() { 0 } else { 1 };
        self.define_positions(&mut linker, &mut params, "vectors", vectors)?;
        linker.define("slot_vectors_block", |code, args| {
            access::load(code, params.address(vectors), Element::Raw(16), arg(args, 0)?).map(Some)
        })?;
        // Rows and contracted elements are known by their numbers.
        linker.define("slot_matrix_free", |_, args| arg(args, 1).map(Some))?;
        linker.define("slot_matrix_depth", |_, args| arg(args, 0).map(Some))?;
        match linear.kind {
            Numbers::Floats => linker.define("slot_matrix_numbers", |code, args| {
                let at = [arg(args, 0)?, arg(args, 1)?];
                let numbers = linear.numbers.neighbours(code, &mut params, FACTORS, at)?;
                let fours: SmallVec<[Word; 2]> =
                    numbers.chunks(4).map(|four| vector_of(code, CType::F32, four)).collect();
                let float = code.linker.type_float(32);
                let four = code.linker.type_vector(float, 4);
                let matrix = code.linker.type_matrix(four, 2);
                Ok(Some(code.ids(SpirvOp::CompositeConstruct, matrix, &fours)))
            })?,
            Numbers::Bytes => linker.define("slot_matrix_pairs", |code, args| {
                let at = [arg(args, 0)?, arg(args, 1)?];
                let numbers = &linear.numbers;
                let lanes = numbers.lanes(code, &mut params, FACTORS, at)?;
                let mut words = SmallVec::new();
                for k in 0..numbers.inputs.len() as u8 {
                    let is_one = is_same_for_all(numbers, Ref::Input(k)) || !numbers.reads(Ref::Input(k));
                    words.push(match is_one {
                        true => None,
                        false => Some(numbers.words(code, &mut params, FACTORS, k, &lanes)?),
                    });
                }
                Bytes { numbers, lanes: &lanes, words }.pairs(code, dtype).map(Some)
            })?,
            Numbers::Small | Numbers::Fields { .. } => linker.define("slot_matrix_pairs", |code, args| {
                let at = [arg(args, 0)?, arg(args, 1)?];
                let lanes = linear.numbers.lanes(code, &mut params, FACTORS, at)?;
                pairs(code, linear, &lanes, dtype).map(Some)
            })?,
        }
        linker.define("slot_matrix_factors", |code, args| {
            let at = [arg(args, 0)?, arg(args, 1)?];
            factors(code, &mut params, linear, at, dtype).map(Some)
        })?;
        linker.define("slot_matrix", |code, args| {
            let at = [arg(args, 0)?, arg(args, 1)?];
            one(code, &mut params, whole, at).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            self.finish(code, &mut params, arg(args, 0)?, &[&[arg(args, 1)?]])?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

/// Four words of the numbers `j` and `j + 4` of eight, moved.
fn pairs(code: &mut Code<'_, '_>, linear: &LinearSpec, lanes: &[Lane], dtype: DType) -> Result<Word> {
    let (bits, _) = moved_by(dtype);
    let power = code.linker.const_u32(bits | bits << 16);
    let sixteen = code.linker.const_u32(16);
    let mut words: SmallVec<[Word; 4]> = SmallVec::new();
    let (firsts, seconds) = lanes.split_at(lanes.len() / 2);
    for (j, (first, second)) in firsts.iter().zip(seconds).enumerate() {
        let pair = match linear.kind {
            Numbers::Fields { operand, mask, shifts } => {
                let word = first.values.get(usize::from(operand)).ok_or_else(|| bad("no word"))?.id;
                let shift = code.linker.const_u32(shifts.get(j).copied().unwrap_or(0).into());
                let mask = code.linker.const_u32(mask | mask << 16);
                let shifted = code.u32_op(SpirvOp::ShiftRightLogical, word, shift);
                code.u32_op(SpirvOp::BitwiseAnd, shifted, mask)
            }
            Numbers::Small | Numbers::Bytes | Numbers::Floats => {
                let mut number = |lane: &Lane| -> Result<Word> {
                    let value = linear.numbers.computed(code, lane)?;
                    scalar::cast(code, value, DType::U32)
                };
                let [low, high] = [number(first)?, number(second)?];
                let high = code.u32_op(SpirvOp::ShiftLeftLogical, high, sixteen);
                code.u32_op(SpirvOp::BitwiseOr, low, high)
            }
        };
        words.push(code.u32_op(SpirvOp::BitwiseOr, pair, power));
    }
    let uint = code.linker.type_uint(32);
    let four = code.linker.type_vector(uint, 4);
    Ok(code.ids(SpirvOp::CompositeConstruct, four, &words))
}

/// Numbers of eight neighbours as bits of bytes.
struct Bytes<'a> {
    numbers: &'a DerivedSpec,
    lanes: &'a [Lane],
    /// The words of operands that are no single byte for all, by their place.
    words: SmallVec<[Option<SmallVec<[Word; 2]>>; 4]>,
}

impl Bytes<'_> {
    /// Four words of the numbers 0 and 2, 1 and 3, 4 and 6, 5 and 7, moved.
    fn pairs(&self, code: &mut Code<'_, '_>, dtype: DType) -> Result<Word> {
        let (bits, _) = moved_by(dtype);
        let power = code.linker.const_u32(bits | bits << 16);
        let (eight, every_other) = (code.linker.const_u32(8), code.linker.const_u32(0x00ff_00ff));
        let mut pairs: SmallVec<[Word; 4]> = SmallVec::new();
        for half in 0..2 {
            let word = self.word(code, half, self.numbers.result)?;
            let next = code.u32_op(SpirvOp::ShiftRightLogical, word, eight);
            for word in [word, next] {
                let pair = code.u32_op(SpirvOp::BitwiseAnd, word, every_other);
                pairs.push(code.u32_op(SpirvOp::BitwiseOr, pair, power));
            }
        }
        let uint = code.linker.type_uint(32);
        let vector = code.linker.type_vector(uint, 4);
        Ok(code.ids(SpirvOp::CompositeConstruct, vector, &pairs))
    }

    /// A value that is the same for all.
    fn one(&self, code: &mut Code<'_, '_>, value: Ref) -> Result<Value> {
        self.numbers.value_of(code, self.lanes.first().ok_or_else(|| bad("no neighbours"))?, value)
    }

    /// The bytes of a value for the first or the second four neighbours, the first one lowest.
    fn word(&self, code: &mut Code<'_, '_>, half: usize, value: Ref) -> Result<Word> {
        let all = code.linker.const_u32(0x0101_0101);
        if is_same_for_all(self.numbers, value) {
            let byte = self.one(code, value)?;
            let byte = scalar::cast(code, byte, DType::U32)?;
            return Ok(code.u32_op(SpirvOp::IMul, byte, all));
        }
        let step = match value {
            Ref::Result(k) => self.numbers.steps.get(usize::from(k)),
            Ref::Input(k) => {
                let words = self.words.get(usize::from(k)).and_then(Option::as_ref);
                return words.and_then(|words| words.get(half)).copied().ok_or_else(|| bad("no bytes"));
            }
            _ => None,
        };
        let (Elementwise::Binary(op), &[a, b]) =
            step.map_or((Elementwise::Select, &[][..]), |step| (step.op, &step.args))
        else {
            return Err(bad("no bits"));
        };
        let word = self.word(code, half, a)?;
        let bitwise = match op {
            Binary::BitwiseAnd => Some(SpirvOp::BitwiseAnd),
            Binary::BitwiseOr => Some(SpirvOp::BitwiseOr),
            Binary::BitwiseXor => Some(SpirvOp::BitwiseXor),
            _ => None,
        };
        if let Some(bitwise) = bitwise {
            let other = self.word(code, half, b)?;
            return Ok(code.u32_op(bitwise, word, other));
        }
        // Bits that would get into another byte are none: of eight and more, all.
        let by = self.one(code, b)?;
        let byte = Value { id: code.linker.const_u32(0xff), dtype: DType::U8 };
        let shift = Elementwise::Binary(Binary::RightShift);
        let kept = scalar::emit(code, shift, &[byte, by], DType::U8)?;
        let kept = code.u32_op(SpirvOp::IMul, kept, all);
        let most = code.linker.const_u32(31);
        let by = scalar::cast(code, by, DType::U32)?;
        let by = code.u32_op(SpirvOp::BitwiseAnd, by, most);
        match op {
            Binary::RightShift => {
                let shifted = code.u32_op(SpirvOp::ShiftRightLogical, word, by);
                Ok(code.u32_op(SpirvOp::BitwiseAnd, shifted, kept))
            }
            Binary::LeftShift => {
                let within = code.u32_op(SpirvOp::BitwiseAnd, word, kept);
                Ok(code.u32_op(SpirvOp::ShiftLeftLogical, within, by))
            }
            _ => Err(bad("no shift")),
        }
    }
}

/// The scale and the offset of numbers, which may have been moved.
fn factors(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    linear: &LinearSpec,
    at: [Word; 2],
    dtype: DType,
) -> Result<Word> {
    let float = |code: &mut Code<'_, '_>, x: f32| {
        access::constant(code, CType::F32, x.to_bits().into()).ok_or_else(|| bad("no constants of f32"))
    };
    let mut of = |code: &mut Code<'_, '_>, spec: &Option<DerivedSpec>, otherwise: f32| match spec {
        Some(spec) => one(code, params, spec, at),
        None => float(code, otherwise),
    };
    let scale = of(code, &linear.scale, 1.0)?;
    let mut offset = of(code, &linear.offset, 0.0)?;
    if linear.kind.is_moved() {
        let (_, power) = moved_by(dtype);
        let moved = [scale, float(code, power)?].map(|id| Value { id, dtype: DType::F32 });
        let id = scalar::emit(code, Elementwise::Binary(Binary::Multiply), &moved, DType::F32)?;
        let both = [offset, id].map(|id| Value { id, dtype: DType::F32 });
        offset = scalar::emit(code, Elementwise::Binary(Binary::Subtract), &both, DType::F32)?;
    }
    Ok(vector_of(code, CType::F32, &[scale, offset]))
}

/// What is computed of one element.
fn one(code: &mut Code<'_, '_>, params: &mut ParamLayout, spec: &DerivedSpec, at: [Word; 2]) -> Result<Word> {
    let computed = spec.neighbours(code, params, FACTORS, at)?;
    computed.first().copied().ok_or_else(|| bad("no element"))
}

fn bad(reason: &str) -> Error {
    Error::InvalidProgram { op: "dot".to_string(), reason: reason.to_string() }
}
