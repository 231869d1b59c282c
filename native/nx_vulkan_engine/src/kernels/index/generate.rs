//! Kernels that read or write at positions which a tensor of indices gives.

use nx_vulkan_ir::program::{Binary, Elementwise};
use nx_vulkan_ir::{DType, Result};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, ITEMS, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};

/// Operand numbers in parameters.
const TENSOR: u8 = 0;
const INDICES: u8 = 1;

/// `out[o, rest..] = tensor[indices[o, ..], rest..]`: axis 0 of the iteration space counts index vectors, the others
/// are the tensor's axes that are not indexed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatherSpec {
    pub element: Element,
    pub index: DType,
    /// Components of an index vector.
    pub components: u8,
    pub rest_rank: u8,
}

/// `out[i..] = tensor[i.. with an index in the place of one axis]`, where the index is an element of a tensor. Strides
/// of both tensors are along the axes of the result; the addressed axis has one of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakeSpec {
    pub element: Element,
    pub index: DType,
    pub rank: u8,
}

/// `out[i..] = tensor[starts + i..]` or, if it `puts`, `out[starts + i..] = tensor[i..]`: starts are scalars on the
/// device, each of one axis, and are clamped so that all elements fit. Operands: tensor, starts, out; strides of both
/// tensors are along the axes of what moves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShiftSpec {
    pub element: Element,
    /// Types of the starts.
    pub starts: SmallVec<[DType; 4]>,
    pub rank: u8,
    pub puts: bool,
}

/// `out[indices[u, ..], rest..] (+)= updates[u, rest..]`: the iteration space is the axes that are not indexed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterSpec {
    /// Adds in this dtype; `None` replaces.
    pub add: Option<DType>,
    pub element: Element,
    pub update: Element,
    pub index: DType,
    pub components: u8,
    pub rest_rank: u8,
}

/// The parameter with the largest index of component `j`, and the one with its stride in the tensor.
fn bound(j: u8) -> Param {
    Param::Extra(2 + 2 * j)
}

fn step(j: u8) -> Param {
    Param::Extra(3 + 2 * j)
}

/// Extra parameters: two that templates define, then bound and stride of each component.
pub fn extra(header: [u32; 2], components: &[(u64, i64)]) -> SmallVec<[u32; 12]> {
    let pairs = components.iter().flat_map(|&(size, stride)| [size as u32 - 1, stride as u32]);
    header.into_iter().chain(pairs).collect()
}

/// Loads component `j` of index vector `row`.
fn load_component(code: &mut Code<'_, '_>, params: &mut ParamLayout, dtype: DType, row: Word, j: u8) -> Result<Word> {
    let row_stride = code.param(params.word(Param::Stride(INDICES, 0)))?;
    let component_stride = code.param(params.word(Param::Stride(INDICES, 1)))?;
    let at = code.u32_op(SpirvOp::IMul, row, row_stride);
    let j = code.linker.const_u32(u32::from(j));
    let offset = code.u32_op(SpirvOp::IMul, component_stride, j);
    let at = code.u32_op(SpirvOp::IAdd, at, offset);
    let address = params.address(INDICES);
    access::load(code, address, Element::Typed(dtype), at)
}

/// A `uint` as a value of the index's compute type.
fn index_value(code: &mut Code<'_, '_>, dtype: DType, id: Word) -> Result<Word> {
    scalar::cast(code, Value { id, dtype: DType::U32 }, dtype.ctype().dtype())
}

fn to_uint(code: &mut Code<'_, '_>, dtype: DType, id: Word) -> Result<Word> {
    scalar::cast(code, Value { id, dtype: dtype.ctype().dtype() }, DType::U32)
}

/// Elements from the tensor's first to the one that component `j` addresses; an index out of bounds is clamped.
fn clamped_offset(code: &mut Code<'_, '_>, params: &mut ParamLayout, dtype: DType, index: Word, j: u8) -> Result<Word> {
    let ctype = dtype.ctype().name();
    let zero = code.linker.const_u32(0);
    let zero = index_value(code, dtype, zero)?;
    let last = code.param(params.word(bound(j)))?;
    let last = index_value(code, dtype, last)?;
    let index = code.call(&format!("nx_max_{ctype}"), &[index, zero])?;
    let index = code.call(&format!("nx_min_{ctype}"), &[index, last])?;
    let index = to_uint(code, dtype, index)?;
    let stride = code.param(params.word(step(j)))?;
    Ok(code.u32_op(SpirvOp::IMul, index, stride))
}

/// Position of the row that an index vector addresses, or `u32::MAX` where it is out of bounds.
fn target(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    dtype: DType,
    components: u8,
    update: Word,
) -> Result<Word> {
    let ctype = dtype.ctype();
    let (uint, boolean) = (code.linker.type_uint(32), code.linker.type_bool());
    let mut position = code.linker.const_u32(0);
    let mut outside = code.linker.const_u32(0);
    for j in 0..components {
        let index = load_component(code, params, dtype, update, j)?;
        let last = code.param(params.word(bound(j)))?;
        let last_value = index_value(code, dtype, last)?;
        let zero = code.linker.const_u32(0);
        let zero = index_value(code, dtype, zero)?;
        let above = code.call(&format!("nx_greater_{}", ctype.name()), &[index, last_value])?;
        let below = code.call(&format!("nx_less_{}", ctype.name()), &[index, zero])?;
        outside = code.u32_op(SpirvOp::BitwiseOr, outside, above);
        outside = code.u32_op(SpirvOp::BitwiseOr, outside, below);
        let index = to_uint(code, dtype, index)?;
        let stride = code.param(params.word(step(j)))?;
        let offset = code.u32_op(SpirvOp::IMul, index, stride);
        position = code.u32_op(SpirvOp::IAdd, position, offset);
    }
    let zero = code.linker.const_u32(0);
    let none = code.linker.const_u32(u32::MAX);
    let is_outside = code.ids(SpirvOp::INotEqual, boolean, &[outside, zero]);
    Ok(code.ids(SpirvOp::Select, uint, &[is_outside, none, position]))
}

/// Position of element `inner` of a row whose first element is at `first`, both in operand `k`.
pub(super) fn in_row(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    k: u8,
    coordinates: &[Word],
    first: Word,
) -> Result<Word> {
    let inner = access::position(code, params, k, 1, coordinates)?;
    Ok(code.u32_op(SpirvOp::IAdd, inner, first))
}

/// Position of element `inner` of update `update` in operand `k`.
pub(super) fn in_update(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    k: u8,
    coordinates: &[Word],
    update: Word,
) -> Result<Word> {
    let stride = code.param(params.word(Param::Stride(k, 0)))?;
    let first = code.u32_op(SpirvOp::IMul, stride, update);
    in_row(code, params, k, coordinates, first)
}

/// A kernel of the elementwise template that `emit` writes for each index.
fn each_element(
    library: &Library,
    modes: FloatModes,
    emit: impl Fn(&mut Code<'_, '_>, &mut ParamLayout, Word) -> Result<()>,
) -> Result<Generated> {
    Generated::push_or_table(|table| {
        let mut linker = Linker::new(library, "elementwise", table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count]);
        linker.define("slot_element", |code, args| {
            emit(code, &mut params, arg(args, 0)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE * ITEMS })
    })
}

/// Copies an element of the tensor to a place of operand `out`.
fn copy_element(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    element: Element,
    from: Word,
    (out, to): (u8, Word),
) -> Result<()> {
    let address = params.address(TENSOR);
    let value = access::load(code, address, element, from)?;
    let address = params.address(out);
    access::store(code, address, element, to, value)
}

/// Targets of updates: the rows that their index vectors address, counted by what strides say. Operands: indices twice,
/// targets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetSpec {
    pub index: DType,
    pub components: u8,
}

impl TargetSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        each_element(library, modes, |code, params, update| {
            let target = target(code, params, self.index, self.components, update)?;
            let address = params.address(2);
            access::store(code, address, Element::Raw(4), update, target)
        })
    }
}

/// Targets of updates, sorted, and the places that the updates had before: each place is counted by comparing all
/// targets. Operands: indices twice, targets, order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetOrderSpec {
    pub index: DType,
    pub components: u8,
}

impl TargetOrderSpec {
    /// Updates whose places one workgroup counts.
    const GROUP_UPDATES: u32 = 16;

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| {
            let mut linker = Linker::new(library, "target_order", table, modes)?;
            let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
            linker.define("slot_target", |code, args| {
                target(code, &mut params, self.index, self.components, arg(args, 0)?).map(Some)
            })?;
            linker.define("slot_store", |code, args| {
                let (place, target, update) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
                for (operand, word) in [(2, target), (3, update)] {
                    let address = params.address(operand);
                    access::store(code, address, Element::Raw(4), place, word)?;
                }
                Ok(None)
            })?;
            Ok(Generated { words: linker.finish()?, params, table, elements_per_group: Self::GROUP_UPDATES })
        })
    }
}

impl TakeSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        each_element(library, modes, |code, params, linear| {
            let coordinates = access::coordinates(code, params, linear, 0, self.rank)?;
            let at = access::position(code, params, INDICES, 0, &coordinates)?;
            let address = params.address(INDICES);
            let index = access::load(code, address, Element::Typed(self.index), at)?;
            let offset = clamped_offset(code, params, self.index, index, 0)?;
            let position = access::position(code, params, TENSOR, 0, &coordinates)?;
            let position = code.u32_op(SpirvOp::IAdd, position, offset);
            copy_element(code, params, self.element, position, (2, linear))
        })
    }
}

impl ShiftSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let out = 1 + self.starts.len() as u8;
        each_element(library, modes, |code, params, linear| {
            let coordinates = access::coordinates(code, params, linear, 0, self.rank)?;
            let mut from = access::position(code, params, TENSOR, 0, &coordinates)?;
            let mut to = access::position(code, params, out, 0, &coordinates)?;
            for (j, &dtype) in (0..).zip(&self.starts) {
                let zero = code.linker.const_u32(0);
                let address = params.address(1 + j);
                let start = access::load(code, address, Element::Typed(dtype), zero)?;
                let offset = clamped_offset(code, params, dtype, start, j)?;
                let moved = if self.puts { &mut to } else { &mut from };
                *moved = code.u32_op(SpirvOp::IAdd, *moved, offset);
            }
            copy_element(code, params, self.element, from, (out, to))
        })
    }
}

impl GatherSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        each_element(library, modes, |code, params, linear| {
            let coordinates = access::coordinates(code, params, linear, 0, 1 + self.rest_rank)?;
            let mut position = if self.rest_rank > 0 {
                access::position(code, params, TENSOR, 1, &coordinates[1..])?
            } else {
                code.linker.const_u32(0)
            };
            for j in 0..self.components {
                let index = load_component(code, params, self.index, coordinates[0], j)?;
                let offset = clamped_offset(code, params, self.index, index, j)?;
                position = code.u32_op(SpirvOp::IAdd, position, offset);
            }
            copy_element(code, params, self.element, position, (2, linear))
        })
    }
}

impl ScatterSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let mut linker = Linker::new(library, "scatter", table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0), Param::Extra(1)]);
        let (updates, out) = (2, 3);
        linker.define("slot_target", |code, args| {
            target(code, &mut params, self.index, self.components, arg(args, 0)?).map(Some)
        })?;
        linker.define("slot_apply", |code, args| {
            let (inner, position, update) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
            let coordinates = access::coordinates(code, &mut params, inner, 1, self.rest_rank)?;
            let target = in_row(code, &mut params, out, &coordinates, position)?;
            let source = in_update(code, &mut params, updates, &coordinates, update)?;
            let address = params.address(updates);
            let mut value = access::load(code, address, self.update, source)?;
            let address = params.address(out);
            if let (Some(dtype), Element::Typed(update_dtype)) = (self.add, self.update) {
                let old = access::load(code, address, self.element, target)?;
                let sum = Elementwise::Binary(Binary::Add);
                let args = [Value { id: old, dtype }, Value { id: value, dtype: update_dtype }];
                value = scalar::emit(code, sum, &args, dtype)?;
            } else if let (Element::Typed(from), Element::Typed(to)) = (self.update, self.element) {
                value = scalar::cast(code, Value { id: value, dtype: from }, to)?;
            }
            access::store(code, address, self.element, target, value)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }
}
