//! Layouts of what buffers, push constants and addresses hold: the offsets and strides are there, aligned as scalar
//! block layout wants it, and nothing overlaps (SPIR-V section 2.16.2, Vulkan's "Offset and Stride Assignment").
//!
//! A type's layout follows from those of its parts, which are declared before it, so one pass in file order finds all.
//! Types that no such memory holds need none: what is wrong with a type is told only where it is used.

use std::collections::HashMap;
use std::rc::Rc;

use rspirv::spirv::{Op, StorageClass};

use super::operands::{Checker, require};
use super::parse::Instruction;
use super::parts::{Checked, located};
use super::types::{MemberLayout, Type};

/// How a type lies in memory.
#[derive(Clone, Copy)]
struct Layout {
    align: u64,
    /// Up to the end of the last part, without the matrices of `matrix`.
    bytes: u64,
    matrix: Option<Matrix>,
}

const ADDRESS: Layout = Layout { align: 8, bytes: 8, matrix: None };

/// A matrix in any number of arrays: how it lies is said by the struct that has it as a member.
#[derive(Clone, Copy)]
struct Matrix {
    columns: u64,
    rows: u64,
    component: u64,
    /// What the strides of the arrays around it leave for it.
    room: u64,
}

/// The layout, or what is wrong with it.
type Found = Result<Layout, Rc<str>>;

pub fn check(checker: &Checker) -> Checked {
    let layouts = Layouts::of(checker);
    for instruction in &checker.module.instructions {
        let pointer = instruction.result_type.and_then(|id| checker.types.pointee(id));
        let Some((class, pointee)) = pointer else { continue };
        let held = match class {
            StorageClass::StorageBuffer | StorageClass::Uniform | StorageClass::PushConstant
                if instruction.op == Op::Variable =>
            {
                let block = block(checker, pointee);
                let decorations = checker.types.decorations(block);
                let is_block =
                    decorations.is_some_and(|d| d.block || (d.buffer_block && class == StorageClass::Uniform));
                require(is_block, || {
                    format!("{class:?} variables hold a struct that is decorated Block, type {block} is not")
                })
                .map_err(|reason| located(instruction, &reason))?;
                block
            }
            StorageClass::PhysicalStorageBuffer => pointee,
            _ => continue,
        };
        layouts.found(held).map_err(|reason| reason.to_string())?;
    }
    Ok(())
}

/// The struct that a variable or an array of variables holds.
fn block(checker: &Checker, pointee: u32) -> u32 {
    match checker.types.get(pointee) {
        Some(Type::Array { element, .. } | Type::RuntimeArray { element }) => *element,
        _ => pointee,
    }
}

struct Layouts<'m> {
    checker: &'m Checker<'m>,
    found: HashMap<u32, Found>,
}

impl<'m> Layouts<'m> {
    fn of(checker: &'m Checker<'m>) -> Layouts<'m> {
        let mut layouts = Layouts { checker, found: HashMap::new() };
        for instruction in &checker.module.instructions {
            if let Some(id) = instruction.result
                && let Some(declared) = checker.types.get(id)
            {
                let found = layouts.declared(instruction, declared);
                layouts.found.insert(id, found);
            }
        }
        layouts
    }

    fn found(&self, id: u32) -> Found {
        match (self.checker.types.get(id), self.found.get(&id)) {
            // Structs may hold addresses that are declared later.
            (Some(Type::Pointer { .. }), _) => Ok(ADDRESS),
            (_, Some(found)) => found.clone(),
            (_, None) => Err(format!("type {id} has no layout").into()),
        }
    }

    fn declared(&self, instruction: &Instruction, declared: &Type) -> Found {
        match declared {
            Type::Int { bits, .. } | Type::Float { bits } => {
                let bytes = u64::from(bits / 8);
                Ok(Layout { align: bytes, bytes, matrix: None })
            }
            Type::Vector { component, count } => {
                let part = self.found(*component)?;
                Ok(Layout { bytes: part.bytes * u64::from(*count), ..part })
            }
            Type::Matrix { column, count } => {
                let rows = match self.checker.types.get(*column) {
                    Some(Type::Vector { count, .. }) => u64::from(*count),
                    _ => 1,
                };
                let align = self.found(*column)?.align;
                let matrix = Matrix { columns: u64::from(*count), rows, component: align, room: u64::MAX };
                Ok(Layout { align, bytes: 0, matrix: Some(matrix) })
            }
            Type::Array { element, length } => {
                // Arrays of a specialized length end nowhere that is known yet.
                let length_id = self.checker.module.operand(instruction, 1);
                let is_known = self.checker.defining(length_id).is_some_and(|length| length.op == Op::Constant);
                self.array(instruction, *element, length.filter(|_| is_known))
            }
            Type::RuntimeArray { element } => self.array(instruction, *element, None),
            Type::Struct { members } => self.structure(instruction, members),
            Type::Pointer { .. } => Ok(ADDRESS),
            _ => {
                fault(instruction, "has no layout, so it can't be in a buffer, in push constants or behind an address")
            }
        }
    }

    /// Elements are aligned and don't overlap.
    fn array(&self, instruction: &Instruction, element: u32, length: Option<u64>) -> Found {
        let part = self.found(element)?;
        let decorations = instruction.result.and_then(|id| self.checker.types.decorations(id));
        let Some(stride) = decorations.and_then(|d| d.array_stride).map(u64::from) else {
            return fault(instruction, "has no ArrayStride; arrays in blocks need one");
        };
        if !stride.is_multiple_of(part.align) {
            return fault(
                instruction,
                &format!("an ArrayStride of {stride}, which must be a multiple of {}", part.align),
            );
        }
        let Some(room) = stride.checked_sub(part.bytes) else {
            return fault(instruction, &format!("an ArrayStride of {stride}, which must be {} at least", part.bytes));
        };
        let bytes = match length {
            Some(length) => stride.saturating_mul(length.saturating_sub(1)).saturating_add(part.bytes),
            None => 0,
        };
        let matrix = part.matrix.map(|matrix| Matrix { room: matrix.room.min(room), ..matrix });
        Ok(Layout { align: part.align, bytes, matrix })
    }

    /// Members are aligned and don't overlap, whatever their order.
    fn structure(&self, instruction: &Instruction, members: &[u32]) -> Found {
        let decorations = instruction.result.and_then(|id| self.checker.types.decorations(id));
        let mut align = 1;
        let mut placed = Vec::with_capacity(members.len());
        for (index, &member) in members.iter().enumerate() {
            let part = self.found(member)?;
            let declared = u32::try_from(index).ok().and_then(|index| decorations?.members.get(&index)).copied();
            let declared = declared.unwrap_or_default();
            let Some(offset) = declared.offset.filter(|&offset| offset != u32::MAX).map(u64::from) else {
                return fault(instruction, &format!("member {index} has no Offset; members of blocks need one each"));
            };
            if !offset.is_multiple_of(part.align) {
                let reason = format!("member {index} at {offset}, which must be a multiple of {}", part.align);
                return fault(instruction, &reason);
            }
            let matrix = match part.matrix {
                Some(matrix) => match matrix.bytes(declared) {
                    Ok(bytes) => bytes,
                    Err(reason) => return fault(instruction, &format!("member {index}: {reason}")),
                },
                None => 0,
            };
            align = align.max(part.align);
            placed.push((offset, index, part.bytes.saturating_add(matrix)));
        }
        placed.sort_unstable();
        let mut end = 0;
        for (offset, index, bytes) in placed {
            if offset < end {
                return fault(
                    instruction,
                    &format!("member {index} at {offset} overlaps another, which ends at {end}"),
                );
            }
            end = offset.saturating_add(bytes);
        }
        Ok(Layout { align, bytes: end, matrix: None })
    }
}

impl Matrix {
    /// Its size as a member with these decorations.
    fn bytes(self, member: MemberLayout) -> Result<u64, String> {
        if member.row_major == member.column_major {
            return Err("a matrix needs RowMajor or ColMajor".into());
        }
        let stride = member.matrix_stride.map(u64::from).ok_or("a matrix needs a MatrixStride")?;
        let (vectors, count) = if member.row_major { (self.rows, self.columns) } else { (self.columns, self.rows) };
        let vector = count * self.component;
        if !stride.is_multiple_of(self.component) {
            return Err(format!("a MatrixStride of {stride}, which must be a multiple of {}", self.component));
        }
        if stride < vector {
            return Err(format!("a MatrixStride of {stride}, which must be {vector} at least"));
        }
        // What follows may stand in the padding of the last row.
        let bytes = if member.row_major { (vectors - 1) * stride + vector } else { vectors * stride };
        if bytes > self.room {
            return Err(format!(
                "a matrix of {bytes} bytes, of which the ArrayStride around it has room for {}",
                self.room
            ));
        }
        Ok(bytes)
    }
}

fn fault(instruction: &Instruction, reason: &str) -> Found {
    Err(located(instruction, reason).into())
}
