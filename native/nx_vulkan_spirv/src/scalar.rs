//! Elementwise ops on values: which casts, which library function, which rounding.

use nx_vulkan_ir::dtype::merge;
use nx_vulkan_ir::program::ops::Rule;
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{CType, DType, Error, Result};
use rspirv::dr::Operand;
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::access::{canonical, exact_constant, hides_round_trips, value_type};
use super::link::{Code, Rare};

/// A value in generated code and the dtype whose element it is.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// Its id, of the compute type.
    pub id: Word,
    /// Its tensor type.
    pub dtype: DType,
}

/// An integer of which no compiler knows more than its type. One that becomes a float may be 0 otherwise, and compilers
/// drop additions of zeros, although those change signs (lavapipe does, of x - x too).
fn hidden(code: &mut Code<'_, '_>, a: Value) -> Result<Value> {
    if code.linker.any_zero {
        return Ok(a);
    }
    // The count of elements is below 2^31, which no compiler knows: 0, and not -1.
    let (count, shift, int) = (code.param(0)?, code.linker.const_u32(31), value_type(code, CType::I32));
    let zero = Value { id: code.ids(SpirvOp::ShiftRightArithmetic, int, &[count, shift]), dtype: DType::S32 };
    let zero = cast(code, zero, a.dtype.ctype().dtype())?;
    let ty = value_type(code, a.dtype.ctype());
    Ok(Value { id: code.ids(SpirvOp::BitwiseOr, ty, &[a.id, zero]), ..a })
}

/// Emits one elementwise op. The result is canonical for `out`.
pub fn emit(code: &mut Code<'_, '_>, op: Elementwise, args: &[Value], out: DType) -> Result<Word> {
    if let (Elementwise::Bitcast, &[a]) = (op, args) {
        return bitcast(code, a, out);
    }
    let becomes_float = |a: &Value| a.dtype.is_integer() && !out.is_integer();
    let args = args.iter().map(|a| if becomes_float(a) { hidden(code, *a) } else { Ok(*a) });
    let args: SmallVec<[Value; 3]> = args.collect::<Result<_>>()?;
    match (op, &args[..]) {
        (Elementwise::Unary(op), &[a]) => unary(code, op, a, out),
        (Elementwise::Binary(op), &[a, b]) => binary(code, op, a, b, out),
        (Elementwise::AsType, &[a]) => shown(code, a, out),
        (Elementwise::Select, &[pred, a, b]) => {
            let is_one = truthy(code, pred)?;
            let condition = is_set(code, is_one);
            let [a, b] = [a, b].map(|x| shown(code, x, out).map(|id| Value { id, dtype: out }));
            let (a, b) = (a?, b?);
            let ty = value_type(code, out.ctype());
            let id = code.ids(SpirvOp::Select, ty, &[condition, a.id, b.id]);
            code.know_result(op, &[pred, a, b], id, None)?;
            Ok(id)
        }
        (Elementwise::Clip, &[a, min, max]) => {
            // By comparisons, which are false for NaN: min takes the place of NaN.
            let (a, min, max) = (cast(code, a, out)?, cast(code, min, out)?, cast(code, max, out)?);
            let low = choose(code, "greater", a, min, out)?;
            choose(code, "less", low, max, out)
        }
        _ => Err(Error::InvalidProgram {
            op: op.name().to_string(),
            reason: format!("no elementwise op of {} operands", args.len()),
        }),
    }
}

/// A value as an element of a type that may show which NaN it is.
fn shown(code: &mut Code<'_, '_>, a: Value, out: DType) -> Result<Word> {
    let id = if out.is_integer() || a.dtype == out { a.id } else { plain_nan(code, a)? };
    cast(code, Value { id, ..a }, out)
}

/// A value whose NaN is the library's: what short forms rounded to 16 bits may be any.
pub fn plain_nan(code: &mut Code<'_, '_>, a: Value) -> Result<Word> {
    let may_be_any = match a.dtype {
        DType::F16 => code.linker.modes.kept || hides_round_trips(code),
        DType::Bf16 => code.linker.modes.kept,
        _ => false,
    };
    match may_be_any && code.narrowed.contains_key(&(a.id, a.dtype)) {
        true => code.call("nx_plain_nan_f32", &[a.id]),
        false => Ok(a.id),
    }
}

/// `a` where the comparison of `a` and `b` holds, else `b`.
fn choose(code: &mut Code<'_, '_>, comparison: &str, a: Word, b: Word, dtype: DType) -> Result<Word> {
    let holds = code.call(&format!("nx_{comparison}_{}", dtype.ctype().name()), &[a, b])?;
    let condition = is_set(code, holds);
    let ty = value_type(code, dtype.ctype());
    Ok(code.ids(SpirvOp::Select, ty, &[condition, a, b]))
}

/// 1 where the value is not zero, else 0.
pub fn truthy(code: &mut Code<'_, '_>, a: Value) -> Result<Word> {
    code.call(&format!("nx_truthy_{}", a.dtype.ctype().name()), &[a.id])
}

/// A SPIR-V bool from a `uint` that is 0 or not.
pub fn is_set(code: &mut Code<'_, '_>, value: Word) -> Word {
    let (bool_type, zero) = (code.linker.type_bool(), code.linker.const_u32(0));
    code.ids(SpirvOp::INotEqual, bool_type, &[value, zero])
}

/// A `uint` that is 0 or 1, as a value of `out`.
fn from_predicate(code: &mut Code<'_, '_>, id: Word, out: DType) -> Result<Word> {
    cast(code, Value { id, dtype: DType::U8 }, out)
}

/// The same bits as an element of another type of the same width.
pub fn bitcast(code: &mut Code<'_, '_>, a: Value, out: DType) -> Result<Word> {
    if a.dtype == out {
        return Ok(a.id);
    }
    if a.dtype.size_bytes() > 2 {
        let ty = value_type(code, out.ctype());
        return Ok(if a.dtype.ctype() == out.ctype() { a.id } else { code.bitcast(ty, a.id) });
    }
    let plain = |dtype| matches!(dtype, DType::U8 | DType::U16);
    let raw = match a.dtype {
        dtype if plain(dtype) => a.id,
        dtype => code.call(&format!("nx_store_{dtype}"), &[a.id])?,
    };
    if plain(out) {
        // What is stored may have more bits than the type.
        let mask = code.linker.const_u32((1u32 << out.bits()) - 1);
        return Ok(code.u32_op(SpirvOp::BitwiseAnd, raw, mask));
    }
    code.call(&format!("nx_load_{out}"), &[raw])
}

/// The value as an element of `out`, by the rules of `Nx.as_type/2`.
pub fn cast(code: &mut Code<'_, '_>, a: Value, out: DType) -> Result<Word> {
    let (from, to) = (a.dtype.ctype(), out.ctype());
    if a.dtype == out || (from == to && (out.is_canonical() || contains(out, a.dtype))) {
        return Ok(a.id);
    }
    if from == to {
        return canonical(code, out, a.id);
    }
    let narrow_int = out.is_integer() && !out.is_canonical();
    let from_float = !a.dtype.is_integer();
    if from_float && narrow_int {
        return code.call(&format!("nx_cast_{}_{out}", from.name()), &[a.id]);
    }
    // A narrow float is rounded once, not by way of f32.
    if out.is_float() && !out.is_canonical() && from != CType::F32 {
        return code.call(&format!("nx_cast_{}_{out}", from.name()), &[a.id]);
    }
    let id = code.call(&format!("nx_cast_{}_{}", from.name(), to.name()), &[a.id])?;
    if exact_in(a.dtype, out) { Ok(id) } else { canonical(code, out, id) }
}

/// Whether every value of `inner` is a value of `outer`, both narrow types of one compute type.
fn contains(outer: DType, inner: DType) -> bool {
    match (outer.is_integer(), inner.is_integer()) {
        (true, true) => outer.is_signed() == inner.is_signed() && outer.bits() >= inner.bits(),
        _ => false,
    }
}

/// Whether a cast between compute types leaves a canonical value of `to`.
fn exact_in(from: DType, to: DType) -> bool {
    to.is_canonical() || (from.is_unsigned() && to.is_signed() && to.bits() > from.bits())
}

fn binary(code: &mut Code<'_, '_>, op: Binary, a: Value, b: Value, out: DType) -> Result<Word> {
    let logical = match op {
        Binary::LogicalAnd => Some(SpirvOp::BitwiseAnd),
        Binary::LogicalOr => Some(SpirvOp::BitwiseOr),
        Binary::LogicalXor => Some(SpirvOp::BitwiseXor),
        _ => None,
    };
    if let Some(opcode) = logical {
        let (a, b) = (truthy(code, a)?, truthy(code, b)?);
        let id = code.u32_op(opcode, a, b);
        return from_predicate(code, id, out);
    }
    if op.is_predicate() {
        if let Some(id) = order(code, op, a, b)? {
            return from_predicate(code, id, out);
        }
        // Narrow floats are compared as the f32 values they are.
        let operand = match merge(a.dtype, b.dtype) {
            merged if merged.ctype() == CType::F32 => DType::F32,
            merged => merged,
        };
        let (a, b) = (cast(code, a, operand)?, cast(code, b, operand)?);
        let id = code.call(&format!("nx_{}_{}", op.name(), operand.ctype().name()), &[a, b])?;
        return from_predicate(code, id, out);
    }
    if out == DType::S64
        && (a.dtype == DType::U64 || b.dtype == DType::U64)
        && let Some(id) = mixed_signs(code, op, a, b)?
    {
        return Ok(id);
    }
    let compute = computes_in(&[a.dtype, b.dtype], out);
    let is_operand = matches!(op, Binary::Max | Binary::Min) && [a, b].iter().all(|x| x.dtype == out);
    let operands = [a, b];
    let (a, b) = (cast(code, a, compute)?, cast(code, b, compute)?);
    let id = code.call(&format!("nx_{}_{}", op.name(), compute.ctype().name()), &[a, b])?;
    code.know_result(Elementwise::Binary(op), &operands, id, None)?;
    if is_operand && out.is_float() { Ok(id) } else { rounded(code, id, compute, out) }
}

/// The quotient of a number that computes in f32 by a constant whose rounded reciprocal is known.
pub fn divide_by(code: &mut Code<'_, '_>, a: Value, b: Value, reciprocal: Value, out: DType) -> Result<Word> {
    let id = code.call("nx_divide_by_f32", &[a.id, b.id, reciprocal.id])?;
    code.know_result(Elementwise::Binary(Binary::Divide), &[a, b], id, None)?;
    rounded(code, id, DType::F32, out)
}

/// Ops of a u64 and a signed number that do not work modulo 2^64. `None` for those that do.
fn mixed_signs(code: &mut Code<'_, '_>, op: Binary, a: Value, b: Value) -> Result<Option<Word>> {
    let exact = |code: &mut Code<'_, '_>, x: Value| {
        let dtype = if x.dtype == DType::U64 { DType::U64 } else { DType::S64 };
        cast(code, x, dtype).map(|id| Value { id, dtype })
    };
    match op {
        Binary::Max | Binary::Min => {
            let comparison = if op == Binary::Max { Binary::GreaterEqual } else { Binary::LessEqual };
            let Some(holds) = order(code, comparison, a, b)? else {
                return Ok(None);
            };
            let condition = is_set(code, holds);
            let (a, b) = (cast(code, a, DType::S64)?, cast(code, b, DType::S64)?);
            let ty = value_type(code, CType::I64);
            Ok(Some(code.ids(SpirvOp::Select, ty, &[condition, a, b])))
        }
        Binary::Quotient | Binary::Remainder | Binary::Pow if a.dtype != b.dtype => {
            let (a, b) = (exact(code, a)?, exact(code, b)?);
            let name = format!("nx_{}_{}_{}", op.name(), a.dtype.ctype().name(), b.dtype.ctype().name());
            code.call(&name, &[a.id, b.id]).map(Some)
        }
        Binary::RightShift if a.dtype == DType::U64 => {
            let amount = cast(code, b, DType::U64)?;
            let id = code.call("nx_right_shift_u64", &[a.id, amount])?;
            cast(code, Value { id, dtype: DType::U64 }, DType::S64).map(Some)
        }
        // Of operands of one type.
        Binary::Quotient | Binary::Remainder | Binary::Pow | Binary::RightShift => Ok(None),
        // The same bits, whichever of both types they are computed in.
        Binary::Add | Binary::Subtract | Binary::Multiply | Binary::LeftShift => Ok(None),
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => Ok(None),
        // These give floats, or 0 and 1.
        Binary::Divide | Binary::Atan2 => Ok(None),
        Binary::Equal | Binary::NotEqual | Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => Ok(None),
        Binary::Greater | Binary::Less | Binary::GreaterEqual | Binary::LessEqual => Ok(None),
    }
}

/// The type in which an op computes: operands are what they are, and the result is rounded once. 32-bit integers are no
/// f32, so they meet floats in f64.
fn computes_in(operands: &[DType], out: DType) -> DType {
    let wide = |t: &DType| t.is_integer() && t.bits() >= 32;
    match out.ctype() {
        CType::F32 if operands.iter().any(wide) => DType::F64,
        CType::F32 => DType::F32,
        _ => out,
    }
}

/// A result that was computed as `compute`, as an element of `out`.
fn rounded(code: &mut Code<'_, '_>, id: Word, compute: DType, out: DType) -> Result<Word> {
    if compute.ctype() == out.ctype() {
        canonical(code, out, id)
    } else {
        cast(code, Value { id, dtype: compute }, out)
    }
}

/// A comparison of numbers of which neither type holds the other, exactly. `None` where a cast to the merged type is
/// exact.
fn order(code: &mut Code<'_, '_>, op: Binary, a: Value, b: Value) -> Result<Option<Word>> {
    let apart = |x: Value, y: Value| match x.dtype.ctype() {
        CType::I32 | CType::U32 => y.dtype.ctype() == CType::F32 && x.dtype.bits() == 32,
        CType::I64 => y.dtype.is_float(),
        CType::U64 => y.dtype.is_float() || y.dtype.is_signed(),
        // What meets these is cast to the merged type, unless it is apart itself.
        CType::F32 | CType::F64 | CType::C64 | CType::C128 => false,
    };
    let (x, y, op) = if apart(a, b) {
        (a, b, op)
    } else if apart(b, a) {
        let Some(mirrored) = mirrored(op) else { return Ok(None) };
        (b, a, mirrored)
    } else {
        return Ok(None);
    };
    let y = if y.dtype.is_signed() { Value { id: cast(code, y, DType::S64)?, dtype: DType::S64 } } else { y };
    let name = format!("nx_order_{}_{}", x.dtype.ctype().name(), y.dtype.ctype().name());
    let order = code.call(&name, &[x.id, y.id])?;
    code.call(&format!("nx_order_{}_i32", op.name()), &[order]).map(Some)
}

/// The comparison that gives the same of operands that have changed places; `None` for an op that is none.
fn mirrored(op: Binary) -> Option<Binary> {
    match op {
        Binary::Less => Some(Binary::Greater),
        Binary::LessEqual => Some(Binary::GreaterEqual),
        Binary::Greater => Some(Binary::Less),
        Binary::GreaterEqual => Some(Binary::LessEqual),
        Binary::Equal | Binary::NotEqual => Some(op),
        Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => None,
        Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Pow | Binary::Atan2 => None,
        Binary::Quotient | Binary::Remainder | Binary::Min | Binary::Max => None,
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => None,
        Binary::LeftShift | Binary::RightShift => None,
    }
}

fn unary(code: &mut Code<'_, '_>, op: Unary, a: Value, out: DType) -> Result<Word> {
    let (integer, rule) = (a.dtype.is_integer(), op.rule());
    if rule == Rule::Integer {
        // Where results depend on how many bits there are, each type has a function.
        let own = format!("nx_{}_{}", op.name(), a.dtype);
        if code.linker.has(&own) {
            let id = code.call(&own, &[a.id])?;
            return cast(code, Value { id, dtype: a.dtype.ctype().dtype() }, out);
        }
    }
    match op {
        // Integers are all finite.
        _ if rule == Rule::Predicate && integer => {
            let zero = code.linker.const_u32(0);
            from_predicate(code, zero, out)
        }
        _ if rule == Rule::Predicate => {
            let id = code.call(&format!("nx_{}_{}", op.name(), a.dtype.ctype().name()), &[a.id])?;
            from_predicate(code, id, out)
        }
        // They are what real numbers are rounded to.
        _ if rule == Rule::Real && integer && out.is_integer() => cast(code, a, out),
        _ if a.dtype.is_complex() && matches!(rule, Rule::Part | Rule::Magnitude) => {
            let id = code.call(&format!("nx_{}_{}", op.name(), a.dtype.ctype().name()), &[a.id])?;
            let part = if a.dtype == DType::C128 { DType::F64 } else { DType::F32 };
            cast(code, Value { id, dtype: part }, out)
        }
        Unary::Real => cast(code, a, out),
        // No compiler may know it, see `hidden`.
        Unary::Imag => {
            let missing = || Error::InvalidProgram { op: "imag".to_string(), reason: format!("gives {out}") };
            exact_constant(code, out.ctype(), 0)?.ok_or_else(missing)
        }
        // The angle of a number whose imaginary part is 0; no compiler may know it.
        Unary::Phase => {
            let angle = out.ctype().dtype();
            let missing = || Error::InvalidProgram { op: "phase".to_string(), reason: format!("gives {out}") };
            let (x, y) = (cast(code, a, angle)?, exact_constant(code, angle.ctype(), 0)?.ok_or_else(missing)?);
            let id = code.call(&format!("nx_atan2_{}", angle.ctype().name()), &[y, x])?;
            rounded(code, id, angle, out)
        }
        _ if rule == Rule::Magnitude && a.dtype.is_unsigned() => cast(code, a, out),
        // NVIDIA's compiler (580.159, on Hopper) takes magnitudes for positive, as that of the least number is not.
        _ if rule == Rule::Magnitude && integer && out == a.dtype => {
            let id = code.call(&format!("nx_{}_{}", op.name(), out.ctype().name()), &[a.id])?;
            let id = hidden(code, Value { id, dtype: out })?.id;
            canonical(code, out, id)
        }
        _ => {
            let compute = computes_in(&[a.dtype], out);
            let value = cast(code, a, compute)?;
            let own = format!("nx_{}_{out}", op.name());
            let is_own = a.dtype == out && code.linker.fuses() && code.linker.has(&own);
            let is_hot = is_own && matches!(op, Unary::Erf | Unary::Tanh) && code.is_large(a)?;
            let own = if is_hot { format!("{own}_hot") } else { own };
            let name = if is_own { own } else { format!("nx_{}_{}", op.name(), compute.ctype().name()) };
            let before = code.rare.as_ref().map_or(0, Rare::len);
            let id = code.call(&name, &[value])?;
            let is_rare = code.rare.as_ref().and_then(|rare| rare.get(before));
            code.know_result(Elementwise::Unary(op), &[a], id, is_rare.filter(|_| is_own))?;
            let changes_sign = rule == Rule::Magnitude || op == Unary::Negate;
            let is_exact = changes_sign && a.dtype == out && out.is_float();
            if is_exact { Ok(id) } else { rounded(code, id, compute, out) }
        }
    }
}

/// A value from its parameter words.
pub fn from_words(code: &mut Code<'_, '_>, ctype: CType, words: &[Word]) -> Word {
    let uint = code.linker.type_uint(32);
    let ty = value_type(code, ctype);
    match words {
        [word] if ctype == CType::U32 => *word,
        [word] => code.bitcast(ty, *word),
        _ => {
            let vector = code.linker.type_vector(uint, words.len() as u32);
            let operands = words.iter().map(|&w| Operand::IdRef(w)).collect();
            let bits = code.op(SpirvOp::CompositeConstruct, vector, operands);
            code.bitcast(ty, bits)
        }
    }
}
