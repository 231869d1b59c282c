//! One element of a value: loaded from where the value lies, or computed from elements of others.

use std::rc::Rc;

use nx_vulkan_ir::Value as Number;
use nx_vulkan_ir::program::attribute::{Axes, Scalar};
use nx_vulkan_ir::program::index_map::{Line, Place};
use nx_vulkan_ir::program::ops::index::{Gather, Indexing, Take, TakeAlongAxis};
use nx_vulkan_ir::program::{Binary, Elementwise, Op};
use nx_vulkan_ir::shape::{Dims, contiguous_strides, elements};
use nx_vulkan_ir::{CType, DType, Result, Type};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::{SmallVec, smallvec};

use super::index::Index;
use super::node::{Id, Node, NodeKind, Source};
use super::{Emitter, Port, invalid};
use crate::access::{self, Element, value_type};
use crate::scalar::{self, Value};

type Words = SmallVec<[Word; 6]>;

impl Emitter<'_, '_, '_> {
    /// The element of `id` at `index`, as its dtype's compute type holds it.
    pub(super) fn element(&mut self, id: Id, index: Index) -> Result<Word> {
        let key = (id, index.key());
        if let Some(&known) = self.frames.iter().rev().find_map(|frame| frame.elements.get(&key)) {
            return Ok(known);
        }
        let value = self.fresh_element(id, index)?;
        if let Some(frame) = self.frames.last_mut() {
            frame.elements.insert(key, value);
        }
        Ok(value)
    }

    fn fresh_element(&mut self, id: Id, mut index: Index) -> Result<Word> {
        match self.entries[id].source.clone() {
            Source::Uniform(value) => Ok(value),
            Source::Variable(variable) => {
                let ty = value_type(self.code, self.entries[id].ty.dtype.ctype());
                Ok(self.code.get(ty, variable))
            }
            Source::Region(region) => {
                let at = self.linear(&mut index);
                Ok(self.load_region(id, &region, at))
            }
            Source::Port { k, port } => self.load_port(id, k, &port, index),
            Source::Lazy => {
                let node = self.node_of(id).ok_or_else(|| invalid("a value from nowhere".to_string()))?;
                match &node.kind {
                    NodeKind::Op(op) => self.computed(id, op, &node, index),
                    NodeKind::Reduction(_) => self.reduction_alone(&node, index),
                    NodeKind::Put { axes } => self.put(id, axes, &node, index),
                    NodeKind::Control { .. } => Err(invalid("a result before its loop".to_string())),
                }
            }
        }
    }

    fn load_port(&mut self, id: Id, k: u8, port: &Port, mut index: Index) -> Result<Word> {
        let shape = self.shape(id);
        let contiguous = port.bias == 0
            && port.strides.iter().zip(&contiguous_strides(&shape)).zip(&shape).all(|((a, b), &n)| a == b || n == 1);
        let mut at =
            if contiguous { self.linear(&mut index) } else { self.position(&mut index, &port.strides, port.bias) };
        if port.per_group {
            let part = self.times(self.group, elements(&shape) as u32);
            at = self.plus(part, at);
        }
        let (address, element) = (self.params.address(k), self.stored(id));
        access::load(self.code, address, element, at)
    }

    /// The element of an operand, with the type that it has there.
    fn value(&mut self, id: Id, index: Index) -> Result<Value> {
        Ok(Value { id: self.element(id, index)?, dtype: self.entries[id].ty.dtype })
    }

    /// The element of an operand, as one of `out`.
    fn cast(&mut self, id: Id, index: Index, out: DType) -> Result<Word> {
        let value = self.value(id, index)?;
        scalar::cast(self.code, value, out)
    }

    /// The index in an operand of an elementwise op: aligned to the last axes, with axes of size 1 repeated.
    fn broadcast(&mut self, index: &mut Index, shape: &[u64]) -> Index {
        if elements(shape) == elements(&index.shape) {
            return index.clone().reshape(self, shape);
        }
        let zero = self.number(0);
        if elements(shape) == 1 {
            return Index::linear(shape, zero);
        }
        let coordinates = self.coordinates(index);
        let lead = coordinates.len().saturating_sub(shape.len());
        let pick = |(&size, &coordinate): (&u64, &Word)| if size == 1 { zero } else { coordinate };
        Index::coordinates(shape, shape.iter().zip(&coordinates[lead..]).map(pick).collect())
    }

    fn computed(&mut self, id: Id, op: &Op, node: &Node, mut index: Index) -> Result<Word> {
        let out = self.entries[id].ty.clone();
        if let Some(elementwise) = op.elementwise() {
            let mut args: SmallVec<[Value; 3]> = SmallVec::new();
            for &operand in &node.operands {
                let shape = self.shape(operand);
                let at = self.broadcast(&mut index, &shape);
                args.push(self.value(operand, at)?);
            }
            return scalar::emit(self.code, elementwise, &args, out.dtype);
        }
        let zero = self.number(0);
        match (op, &node.operands[..]) {
            (Op::Constant(value), _) => self.constant(*value, out.dtype),
            (Op::Iota { axis }, _) => {
                let at = match axis {
                    Some(axis) => self.coordinates(&mut index).get(*axis).copied().unwrap_or(zero),
                    None => self.linear(&mut index),
                };
                scalar::emit(self.code, Elementwise::AsType, &[Value { id: at, dtype: DType::U32 }], out.dtype)
            }
            (Op::Eye, _) => {
                let coordinates = self.coordinates(&mut index);
                let [.., row, column] = coordinates[..] else { return Err(invalid("eye of a vector".to_string())) };
                let args = [row, column].map(|id| Value { id, dtype: DType::U32 });
                scalar::emit(self.code, Elementwise::Binary(Binary::Equal), &args, out.dtype)
            }
            (Op::Reshape | Op::Squeeze, &[a]) => {
                let shape = self.shape(a);
                let at = index.reshape(self, &shape);
                self.element(a, at)
            }
            (Op::Bitcast, &[a]) => {
                let shape = self.shape(a);
                let at = index.reshape(self, &shape);
                let value = self.value(a, at)?;
                scalar::bitcast(self.code, value, out.dtype)
            }
            (Op::Indexing(Indexing::Take(Take { axis })), &[a, indices]) => {
                let (shape, by) = (self.shape(a), self.shape(indices));
                let mut at = self.coordinates(&mut index);
                let of_index: Words = at.drain(*axis..*axis + by.len()).collect();
                let place = self.element(indices, Index::coordinates(&by, of_index))?;
                let place = self.clamped_index(indices, place, shape[*axis])?;
                at.insert(*axis, place);
                self.element(a, Index::coordinates(&shape, at))
            }
            (Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })), &[a, indices]) => {
                let (shape, by) = (self.shape(a), self.shape(indices));
                let mut at = self.coordinates(&mut index);
                let place = self.element(indices, Index::coordinates(&by, at.clone()))?;
                at[*axis] = self.clamped_index(indices, place, shape[*axis])?;
                self.element(a, Index::coordinates(&shape, at))
            }
            (Op::Indexing(Indexing::Gather(Gather { axes })), &[a, indices]) => {
                self.gather(a, indices, axes, &mut index)
            }
            _ => self.moved(op, node, &out, index),
        }
    }

    /// The element of the operand that an op moves to `index`.
    fn moved(&mut self, op: &Op, node: &Node, out: &Type, mut index: Index) -> Result<Word> {
        let shapes: SmallVec<[Dims; 3]> = node.operands.iter().map(|&operand| self.shape(operand)).collect();
        let map = op.index_map(&shapes.iter().map(|shape| &shape[..]).collect::<SmallVec<[&[u64]; 3]>>(), &out.shape);
        let map = map.ok_or_else(|| invalid(format!("no code for {}", op.name())))?;
        let mut found: Option<Word> = None;
        for part in &map.parts {
            let shape = &shapes[part.operand];
            let (at, mut inside) = self.within(&part.lines, shape, &node.operands, &mut index)?;
            if let (None, Some(around)) = (found, map.around) {
                let around_shape = &shapes[around];
                let zero = self.number(0);
                let at = if *around_shape == out.shape { index.clone() } else { Index::linear(around_shape, zero) };
                found = Some(self.cast(node.operands[around], at, out.dtype)?);
            }
            let value = self.cast(node.operands[part.operand], Index::coordinates(shape, at), out.dtype)?;
            for line in part.lines.iter().filter(|line| line.of.is_none()) {
                let (coordinates, at) = (self.coordinates(&mut index), self.place(line.at, &node.operands)?);
                self.also_equal(coordinates[line.along], at, &mut inside);
            }
            found = Some(match found {
                Some(others) => self.where_inside(inside, value, others, out.dtype),
                None => value,
            });
        }
        found.ok_or_else(|| invalid(format!("{} of nothing", op.name())))
    }

    /// The coordinates in an operand of `shape` that its lines show at `index`, 0 where one has none; and whether all
    /// have, unless they always do.
    fn within(
        &mut self,
        lines: &[Line],
        shape: &[u64],
        operands: &[Id],
        index: &mut Index,
    ) -> Result<(Words, Option<Word>)> {
        let places: SmallVec<[(Word, Word); 6]> = lines
            .iter()
            .map(|line| Ok((self.place(line.from, operands)?, self.place(line.at, operands)?)))
            .collect::<Result<_>>()?;
        let (coordinates, zero) = (self.coordinates(index), self.number(0));
        let (mut own, mut inside): (Words, Option<Word>) = (smallvec![zero; shape.len()], None);
        for (line, (from, at)) in lines.iter().zip(places) {
            let Some(of) = line.of else { continue };
            let after = self.minus(coordinates[line.along], at);
            let (mut k, between) = self.divide(after, line.every as u32);
            if let Some(count) = line.count {
                k = self.clamped(k, count, &mut inside);
                self.also_equal(between, zero, &mut inside);
            }
            own[of] = match line.step {
                -1 => self.minus(from, k),
                step => {
                    let steps = self.times(k, step as u32);
                    self.plus(from, steps)
                }
            };
        }
        Ok((own, inside))
    }

    fn place(&mut self, place: Place, operands: &[Id]) -> Result<Word> {
        match place {
            Place::Read { operand, room: room @ 1.. } => {
                let id = *operands.get(operand as usize).ok_or_else(|| invalid("a start is missing".to_string()))?;
                let value = self.uniform(id)?;
                self.clamped_index(id, value, room + 1)
            }
            _ => Ok(self.number(place.number() as u32)),
        }
    }

    fn gather(&mut self, a: Id, indices: Id, axes: &Axes, index: &mut Index) -> Result<Word> {
        let (shape, by) = (self.shape(a), self.shape(indices));
        let coordinates = self.coordinates(index);
        let (vector, rest) = coordinates.split_at(by.len().saturating_sub(1).min(coordinates.len()));
        let mut rest = rest.iter();
        let zero = self.number(0);
        let mut at: Words = smallvec![zero; shape.len()];
        for (axis, coordinate) in at.iter_mut().enumerate() {
            *coordinate = match axes.iter().position(|&a| a == axis) {
                Some(component) => {
                    let mut of_index: Words = vector.into();
                    of_index.push(self.number(component as u32));
                    let place = self.element(indices, Index::coordinates(&by, of_index))?;
                    self.clamped_index(indices, place, shape[axis])?
                }
                None => rest.next().copied().unwrap_or(zero),
            };
        }
        self.element(a, Index::coordinates(&shape, at))
    }

    /// The last update of an element, or the element where there is none.
    fn put(&mut self, id: Id, axes: &Axes, node: &Rc<Node>, mut index: Index) -> Result<Word> {
        let &[a, last, updates] = &node.operands[..] else { return Err(invalid("operands of put".to_string())) };
        let (out, shape) = (self.entries[id].ty.dtype, self.shape(updates));
        let coordinates = self.coordinates(&mut index);
        let rest: Words =
            (0..coordinates.len()).filter(|axis| !axes.contains(axis)).map(|axis| coordinates[axis]).collect();
        let inner: Dims = shape[shape.len() - rest.len()..].into();
        let number = self.element(last, index.clone())?;
        let (zero, one) = (self.number(0), self.number(1));
        let mut outside = None;
        self.also_equal(number, zero, &mut outside);
        let row = self.code.u32_op(SpirvOp::ISub, number, one);
        let uint = self.code.linker.type_uint(32);
        let row = outside.map_or(row, |outside| self.choose(uint, outside, zero, row));
        let mut at = zero;
        for (&coordinate, &size) in rest.iter().zip(&inner) {
            at = self.times(at, size as u32);
            at = self.plus(at, coordinate);
        }
        let start = self.times(row, elements(&inner) as u32);
        let at = self.plus(start, at);
        let old = self.cast(a, index, out)?;
        let new = self.cast(updates, Index::linear(&shape, at), out)?;
        Ok(self.where_inside(outside, old, new, out))
    }

    fn where_inside(&mut self, inside: Option<Word>, inner: Word, outer: Word, dtype: DType) -> Word {
        let ty = value_type(self.code, dtype.ctype());
        inside.map_or(inner, |inside| self.choose(ty, inside, inner, outer))
    }

    fn also(&mut self, holds: Word, all: &mut Option<Word>) {
        let boolean = self.code.linker.type_bool();
        *all = Some(match *all {
            Some(before) => self.code.ids(SpirvOp::LogicalAnd, boolean, &[before, holds]),
            None => holds,
        });
    }

    fn also_equal(&mut self, a: Word, b: Word, all: &mut Option<Word>) {
        if a != b {
            let boolean = self.code.linker.type_bool();
            let equal = self.code.ids(SpirvOp::IEqual, boolean, &[a, b]);
            self.also(equal, all);
        }
    }

    /// The coordinate itself where it is below `size`, else 0; `inside` becomes false there.
    fn clamped(&mut self, coordinate: Word, size: u64, inside: &mut Option<Word>) -> Word {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let (zero, end) = (self.number(0), self.number(size as u32));
        let below = self.code.ids(SpirvOp::ULessThan, boolean, &[coordinate, end]);
        self.also(below, inside);
        self.choose(uint, below, coordinate, zero)
    }

    /// An element of an index tensor as a coordinate of an axis of `size`, clamped.
    fn clamped_index(&mut self, indices: Id, index: Word, size: u64) -> Result<Word> {
        let dtype = self.entries[indices].ty.dtype.ctype().dtype();
        let ctype = dtype.ctype().name();
        let [zero, last] = [0, size as u32 - 1].map(|number| self.number(number));
        let zero = scalar::cast(self.code, Value { id: zero, dtype: DType::U32 }, dtype)?;
        let last = scalar::cast(self.code, Value { id: last, dtype: DType::U32 }, dtype)?;
        let index = self.code.call(&format!("nx_max_{ctype}"), &[index, zero])?;
        let index = self.code.call(&format!("nx_min_{ctype}"), &[index, last])?;
        scalar::cast(self.code, Value { id: index, dtype }, DType::U32)
    }

    fn constant(&mut self, value: Scalar, dtype: DType) -> Result<Word> {
        let canonical = Number::from(value).cast(dtype);
        // In the compute type: a narrow number is the same number there.
        let bits = canonical.to_bits(dtype.ctype().dtype());
        let bits = if dtype.ctype() == CType::I32 { canonical.to_bits(DType::S32) } else { bits };
        access::exact_constant(self.code, dtype.ctype(), bits as u64)?
            .ok_or_else(|| invalid(format!("a constant of {dtype}")))
    }

    /// Element type of memory that holds the value as it is.
    pub(super) fn stored(&self, id: Id) -> Element {
        Element::Typed(self.entries[id].ty.dtype)
    }
}
