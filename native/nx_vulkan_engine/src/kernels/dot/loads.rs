//! Where elements of products' operands are, and their loads.

use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{self, Element, value_type};
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::params::ParamLayout;
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

/// Position of an operand at indices into some of its groups of axes, of which `first` is the first. The axes of all
/// groups begin at an axis of the iteration space.
pub(super) fn grouped_position(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    (operand, mut axis): (u8, u8),
    ranks: &[u8; 3],
    first: usize,
    args: &[Word],
) -> Result<Word> {
    axis += ranks.iter().take(first).sum::<u8>();
    let mut at = None;
    for (&arg, &rank) in args.iter().zip(ranks.iter().skip(first)) {
        // One element: its index is 0.
        if rank == 0 {
            continue;
        }
        let coordinates = access::coordinates(code, params, arg, axis, rank)?;
        let term = access::position(code, params, operand, axis, &coordinates)?;
        at = Some(at.map_or(term, |at| code.u32_op(SpirvOp::IAdd, at, term)));
        axis += rank;
    }
    Ok(at.unwrap_or_else(|| code.linker.const_u32(0)))
}

/// Four neighbours as a vector of a type of sums.
pub(super) fn load_four(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    operand: u8,
    dtype: DType,
    sum: CType,
    at: Word,
) -> Result<Word> {
    let mut lanes = any_nan(code, |code| neighbours(code, params, operand, dtype, at, 4))?;
    for id in &mut lanes {
        *id = scalar::cast(code, Value { id: *id, dtype }, sum.dtype())?;
    }
    Ok(vector_of(code, sum, &lanes))
}

/// Elements as a vector of a compute type.
pub(super) fn vector_of(code: &mut Code<'_, '_>, ctype: CType, lanes: &[Word]) -> Word {
    let part = value_type(code, ctype);
    let vector = code.linker.type_vector(part, lanes.len() as u32);
    code.ids(SpirvOp::CompositeConstruct, vector, lanes)
}

/// An element that is multiplied.
pub(super) fn load_factor(code: &mut Code<'_, '_>, address: u32, dtype: DType, at: Word) -> Result<Word> {
    any_nan(code, |code| access::load(code, address, Element::Typed(dtype), at))
}

/// What `emit` loads is multiplied, so that it makes no difference which NaN it is.
pub(super) fn any_nan<T>(code: &mut Code<'_, '_>, emit: impl FnOnce(&mut Code<'_, '_>) -> Result<T>) -> Result<T> {
    code.linker.any_nan = true;
    let loaded = emit(code);
    code.linker.any_nan = false;
    loaded
}

/// Two or four neighbours from a position on that is aligned for them, with as few loads as their type allows.
pub(super) fn neighbours(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    operand: u8,
    dtype: DType,
    at: Word,
    count: u32,
) -> Result<SmallVec<[Word; 4]>> {
    let (element, address) = (Element::Typed(dtype), params.address(operand));
    let width = element.max_width().min(count);
    let first = groups(code, at, width);
    let mut lanes: SmallVec<[Word; 4]> = SmallVec::new();
    for k in 0..count / width {
        let group = following(code, first, k);
        match width {
            1 => lanes.push(access::load(code, address, element, group)?),
            _ => lanes.extend(access::load_vector(code, address, element, width, group)?),
        }
    }
    Ok(lanes)
}

/// The index `k` after `first`.
pub(super) fn following(code: &mut Code<'_, '_>, first: Word, k: u32) -> Word {
    if k == 0 {
        return first;
    }
    let k = code.linker.const_u32(k);
    code.u32_op(SpirvOp::IAdd, first, k)
}

/// Groups of `width` elements, a power of two, before position `at`.
pub(super) fn groups(code: &mut Code<'_, '_>, at: Word, width: u32) -> Word {
    let shift = code.linker.const_u32(width.trailing_zeros());
    code.u32_op(SpirvOp::ShiftRightLogical, at, shift)
}
