//! Elements of reductions, and accumulators in variables and memory.

use std::rc::Rc;

use nx_vulkan_ir::program::attribute::Axes;
use nx_vulkan_ir::shape::elements;
use nx_vulkan_ir::{CType, DType, Result};
use rspirv::spirv::{Op, Word};
use smallvec::{SmallVec, smallvec};

use super::index::Index;
use super::memory::{Region, Space, WIDTHS};
use super::node::{Id, Node, NodeKind, Reduce, Reduced};
use super::{Emitter, invalid};
use crate::access::{self, Element, value_type};
use crate::params::Param;
use crate::reducer::ReducerCode;
use crate::scalar::{self, Value};

impl Emitter<'_, '_, '_> {
    /// A variable with the accumulator that changes nothing.
    pub(super) fn accumulator(&mut self, node: &Node) -> Result<Word> {
        let NodeKind::Reduction(reduction) = &node.kind else { return Err(invalid("no reduction".to_string())) };
        let ty = reduction.reducer.words_type(self.code);
        let variable = self.code.variable(ty);
        let identity = reduction.reducer.exact_identity(self.code)?;
        self.code.set(variable, identity);
        Ok(variable)
    }

    /// Combines the accumulator in `variable` with element `r` of result `o`.
    pub(super) fn accumulate(&mut self, node: &Rc<Node>, variable: Word, o: Index, r: Word) -> Result<()> {
        let NodeKind::Reduction(reduction) = &node.kind else { return Err(invalid("no reduction".to_string())) };
        let element = self.lifted(reduction, node, o, r)?;
        let ty = reduction.reducer.words_type(self.code);
        let old = self.code.get(ty, variable);
        let value = reduction.reducer.combine(self.code, old, element)?;
        self.code.set(variable, value);
        Ok(())
    }

    /// Result `o`, of all its elements in order, by one invocation.
    pub(super) fn reduction_alone(&mut self, node: &Rc<Node>, o: Index) -> Result<Word> {
        let NodeKind::Reduction(reduction) = &node.kind else { return Err(invalid("no reduction".to_string())) };
        if let Reduced::Parts = reduction.what {
            return self.reduction_parts(reduction, node, o);
        }
        let count = elements(&reduction.reduced) as u32;
        // A float of one element is combined too: that makes 0.0 of -0.0, and zero of denormals where the device
        // flushes them.
        if count == 1 && !reduction.reducer.accumulates_floats() {
            let zero = self.number(0);
            let value = self.lifted(reduction, node, o, zero)?;
            return reduction.reducer.lower(self.code, value);
        }
        let variable = self.accumulator(node)?;
        let zero = self.number(0);
        let (construct, r) = self.begin_for(zero, count, 1);
        self.accumulate(node, variable, o, r)?;
        self.end_for(construct);
        let ty = reduction.reducer.words_type(self.code);
        let value = self.code.get(ty, variable);
        reduction.reducer.lower(self.code, value)
    }

    /// The elements of all operands at one position, in their order.
    fn reduction_parts(&mut self, reduction: &Reduce, node: &Node, o: Index) -> Result<Word> {
        let mut value = reduction.reducer.exact_identity(self.code)?;
        for (r, &part) in node.operands.iter().enumerate() {
            let shape = self.shape(part);
            let at = o.clone().reshape(self, &shape);
            let (element, r) = (self.element(part, at)?, self.number(r as u32));
            let lifted = reduction.reducer.lift(self.code, element, r)?;
            value = reduction.reducer.combine(self.code, value, lifted)?;
        }
        reduction.reducer.lower(self.code, value)
    }

    /// The accumulator of element `r` of result `o`.
    fn lifted(&mut self, reduction: &Reduce, node: &Node, mut o: Index, r: Word) -> Result<Word> {
        match (&reduction.what, &node.operands[..]) {
            (Reduced::Axes(axes), &[a]) => {
                let shape = self.shape(a);
                let index = if elements(&reduction.reduced) == elements(&shape) {
                    Index::linear(&shape, r)
                } else {
                    let mut r = Index::linear(&reduction.reduced, r);
                    let (kept, reduced) = (self.coordinates(&mut o), self.coordinates(&mut r));
                    let (mut kept, mut reduced) = (kept.into_iter(), reduced.into_iter());
                    let zero = self.number(0);
                    // Kept axes of the result may have lost the reduced ones, or have them with one element.
                    let all = o.shape.len() == shape.len();
                    let coordinates = (0..shape.len()).map(|axis| {
                        let found = if axes.contains(&axis) {
                            if all {
                                kept.next();
                            }
                            reduced.next()
                        } else {
                            kept.next()
                        };
                        found.unwrap_or(zero)
                    });
                    Index::coordinates(&shape, coordinates.collect())
                };
                let value = self.element(a, index)?;
                reduction.reducer.lift(self.code, value, r)
            }
            (Reduced::Products { contract_a, batch_a, contract_b, batch_b }, &[a, b]) => {
                let kept = self.coordinates(&mut o);
                let mut r = Index::linear(&reduction.reduced, r);
                let summed = self.coordinates(&mut r);
                let (batch, free) = kept.split_at(batch_a.len());
                let free_a = self.shape(a).len() - batch_a.len() - contract_a.len();
                let (of_a, of_b) = free.split_at(free_a.min(free.len()));
                let times = self.entries[b].ty.dtype;
                let a = self.factor(a, (batch_a, batch), (contract_a, &summed), of_a)?;
                let b = self.factor(b, (batch_b, batch), (contract_b, &summed), of_b)?;
                reduction.reducer.lift_product(self.code, a, b, times)
            }
            (Reduced::Updates { axes }, &[indices, updates]) => {
                let (here, rest) = self.addressed(indices, axes, &mut o, r)?;
                // Updates are counted by rows, whatever the axes of the indices are.
                let shape = self.shape(updates);
                let mut at = self.number(0);
                for (&coordinate, &size) in rest.iter().zip(&shape[shape.len() - rest.len()..]) {
                    at = self.times(at, size as u32);
                    at = self.plus(at, coordinate);
                }
                let row: u64 = shape[shape.len() - rest.len()..].iter().product();
                let start = self.times(r, row as u32);
                let at = self.plus(start, at);
                let value = self.element(updates, Index::linear(&shape, at))?;
                let lifted = reduction.reducer.lift(self.code, value, r)?;
                let (none, ty) =
                    (reduction.reducer.exact_identity(self.code)?, reduction.reducer.words_type(self.code));
                Ok(self.choose(ty, here, lifted, none))
            }
            (Reduced::LastUpdate { axes }, &[indices]) => {
                let (here, _) = self.addressed(indices, axes, &mut o, r)?;
                let one = self.number(1);
                let (number, none) = (self.plus(r, one), self.number(0));
                let uint = self.code.linker.type_uint(32);
                Ok(self.choose(uint, here, number, none))
            }
            _ => Err(invalid("operands of a reduction".to_string())),
        }
    }

    /// `a` where the bool `condition` is true, else `b`.
    pub(super) fn choose(&mut self, ty: Word, condition: Word, a: Word, b: Word) -> Word {
        if a == b {
            return a;
        }
        self.code.ids(Op::Select, ty, &[condition, a, b])
    }

    fn factor(
        &mut self,
        id: Id,
        (batch_axes, batch): (&Axes, &[Word]),
        (contract_axes, summed): (&Axes, &[Word]),
        free: &[Word],
    ) -> Result<Word> {
        let shape = self.shape(id);
        let zero = self.number(0);
        let mut free = free.iter();
        let mut coordinates: SmallVec<[Word; 6]> = smallvec![zero; shape.len()];
        for (axis, coordinate) in coordinates.iter_mut().enumerate() {
            let found = if let Some(i) = batch_axes.iter().position(|&a| a == axis) {
                batch.get(i)
            } else if let Some(i) = contract_axes.iter().position(|&a| a == axis) {
                summed.get(i)
            } else {
                free.next()
            };
            *coordinate = found.copied().unwrap_or(zero);
        }
        self.element(id, Index::coordinates(&shape, coordinates))
    }

    /// Whether index vector `row` addresses element `o`, and the coordinates of `o` along the other axes.
    fn addressed(&mut self, indices: Id, axes: &Axes, o: &mut Index, row: Word) -> Result<(Word, SmallVec<[Word; 6]>)> {
        let coordinates = self.coordinates(o);
        let dtype = self.entries[indices].ty.dtype;
        let boolean = self.code.linker.type_bool();
        let shape = self.shape(indices);
        let start = self.times(row, axes.len() as u32);
        let mut here: Option<Word> = None;
        for (j, &axis) in axes.iter().enumerate() {
            let j = self.number(j as u32);
            let at = self.plus(start, j);
            let component = self.element(indices, Index::linear(&shape, at))?;
            // Compared as the index's own type, so that what is out of bounds equals nothing.
            let ctype = dtype.ctype();
            let value = Value { id: coordinates[axis], dtype: DType::U32 };
            let wanted = scalar::cast(self.code, value, ctype.dtype())?;
            let equal = self.code.ids(Op::IEqual, boolean, &[component, wanted]);
            here = Some(match here {
                Some(before) => self.code.ids(Op::LogicalAnd, boolean, &[before, equal]),
                None => equal,
            });
        }
        let rest = (0..coordinates.len()).filter(|axis| !axes.contains(axis)).map(|axis| coordinates[axis]).collect();
        let here = match here {
            Some(here) => here,
            None => self.code.linker.const_true(),
        };
        Ok((here, rest))
    }

    /// The type of `words` words as memory holds them.
    fn words_type(&mut self, words: u32) -> Word {
        let uint = self.code.linker.type_uint(32);
        if words == 1 { uint } else { self.code.linker.type_vector(uint, words) }
    }

    fn shared(&mut self, width: usize) -> Word {
        if let Some(array) = self.memory.arrays[width] {
            return array;
        }
        let array = self.code.linker.fresh();
        self.memory.arrays[width] = Some(array);
        array
    }

    /// Element of a region in the scratch buffer.
    fn scratch_place(&mut self, region: &Region, at: Word) -> (u32, Word) {
        let k = self.spec.ports.len() + self.spec.outputs();
        let address = self.params.address(k as u8);
        let bytes = self.params.word(Param::Extra(1));
        let words = region.words * 4;
        // Every group's part is a multiple of 16 bytes.
        let part = self.code.param(bytes).unwrap_or(at);
        let part = self.code.u32_op(Op::IMul, part, self.group);
        let (part, _) = self.divide(part, words);
        let first = self.number(region.offset / words);
        let at = self.plus(at, first);
        (address, self.plus(at, part))
    }

    pub(super) fn load_words(&mut self, region: &Region, at: Word) -> Word {
        match region.space {
            Space::Shared(width) => {
                let (array, first) = (self.shared(width), self.number(region.offset));
                let at = self.plus(at, first);
                let ty = self.words_type(WIDTHS[width]);
                self.code.load_shared(array, ty, at)
            }
            Space::Scratch => {
                let (address, at) = self.scratch_place(region, at);
                access::load(self.code, address, Element::Raw((region.words * 4) as u8), at).unwrap_or(at)
            }
        }
    }

    pub(super) fn store_words(&mut self, region: &Region, at: Word, value: Word) {
        match region.space {
            Space::Shared(width) => {
                let (array, first) = (self.shared(width), self.number(region.offset));
                let at = self.plus(at, first);
                let ty = self.words_type(WIDTHS[width]);
                self.code.store_shared(array, ty, at, value);
            }
            Space::Scratch => {
                let (address, at) = self.scratch_place(region, at);
                // Only narrow elements can fail to be stored, and regions have none.
                let _ = access::store(self.code, address, Element::Raw((region.words * 4) as u8), at, value);
            }
        }
    }

    /// Stores an element of a value that lies in a region.
    pub(super) fn store_region(&mut self, id: Id, region: &Region, at: Word, value: Word) {
        let ctype = self.entries[id].ty.dtype.ctype();
        let value = match ctype {
            CType::U32 => value,
            _ => {
                let ty = self.words_type(region.words);
                self.code.bitcast(ty, value)
            }
        };
        self.store_words(region, at, value);
    }

    pub(super) fn load_region(&mut self, id: Id, region: &Region, at: Word) -> Word {
        let value = self.load_words(region, at);
        match self.entries[id].ty.dtype.ctype() {
            CType::U32 => value,
            ctype => {
                let ty = value_type(self.code, ctype);
                self.code.bitcast(ty, value)
            }
        }
    }
}
