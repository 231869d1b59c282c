//! Index arithmetic with sizes that are known: constants are computed, and what was computed once is used again.

use nx_vulkan_ir::shape::{Dims, elements};
use rspirv::spirv::{Op, Word};
use smallvec::{SmallVec, smallvec};

use super::Emitter;

type Coordinates = SmallVec<[Word; 6]>;

/// An index into a shape: its row-major position, its coordinates, or both.
#[derive(Debug, Clone)]
pub(super) struct Index {
    pub shape: Dims,
    linear: Option<Word>,
    coordinates: Option<Coordinates>,
}

/// What tells two indices of one value apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The only index that there is.
    One,
    Linear(Word),
    Coordinates(Coordinates),
}

impl Index {
    pub fn linear(shape: &[u64], linear: Word) -> Index {
        Index { shape: shape.into(), linear: Some(linear), coordinates: None }
    }

    pub fn coordinates(shape: &[u64], coordinates: Coordinates) -> Index {
        Index { shape: shape.into(), linear: None, coordinates: Some(coordinates) }
    }

    /// The same position in another shape of as many elements.
    pub fn reshape(mut self, emitter: &mut Emitter<'_, '_, '_>, shape: &[u64]) -> Index {
        let linear = emitter.linear(&mut self);
        Index::linear(shape, linear)
    }

    pub fn key(&self) -> Key {
        if elements(&self.shape) == 1 {
            return Key::One;
        }
        match (&self.linear, &self.coordinates) {
            (Some(linear), _) => Key::Linear(*linear),
            (None, Some(coordinates)) => Key::Coordinates(coordinates.clone()),
            (None, None) => Key::One,
        }
    }
}

impl Emitter<'_, '_, '_> {
    pub(super) fn number(&mut self, value: u32) -> Word {
        let id = self.code.linker.const_u32(value);
        self.numbers.insert(id, value);
        id
    }

    fn known(&self, id: Word) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    fn u32_op(&mut self, op: Op, a: Word, b: Word) -> Word {
        let key = (op as u32, a, b);
        if let Some(&id) = self.frames.iter().rev().find_map(|frame| frame.arithmetic.get(&key)) {
            return id;
        }
        let id = self.code.u32_op(op, a, b);
        if let Some(frame) = self.frames.last_mut() {
            frame.arithmetic.insert(key, id);
        }
        id
    }

    pub(super) fn plus(&mut self, a: Word, b: Word) -> Word {
        match (self.known(a), self.known(b)) {
            (Some(x), Some(y)) => self.number(x.wrapping_add(y)),
            (Some(0), _) => b,
            (_, Some(0)) => a,
            _ => self.u32_op(Op::IAdd, a, b),
        }
    }

    pub(super) fn minus(&mut self, a: Word, b: Word) -> Word {
        match (self.known(a), self.known(b)) {
            (Some(x), Some(y)) => self.number(x.wrapping_sub(y)),
            (_, Some(0)) => a,
            _ => self.u32_op(Op::ISub, a, b),
        }
    }

    pub(super) fn times(&mut self, a: Word, by: u32) -> Word {
        match (self.known(a), by) {
            (Some(x), _) => self.number(x.wrapping_mul(by)),
            (_, 0) => self.number(0),
            (_, 1) => a,
            _ => {
                let by = self.number(by);
                self.u32_op(Op::IMul, a, by)
            }
        }
    }

    /// Quotient and remainder by a constant.
    pub(super) fn divide(&mut self, a: Word, by: u32) -> (Word, Word) {
        match (self.known(a), by) {
            (_, 0 | 1) => (a, self.number(0)),
            (Some(x), _) => (self.number(x / by), self.number(x % by)),
            _ => {
                let by = self.number(by);
                (self.u32_op(Op::UDiv, a, by), self.u32_op(Op::UMod, a, by))
            }
        }
    }

    /// The row-major position.
    pub(super) fn linear(&mut self, index: &mut Index) -> Word {
        if let Some(linear) = index.linear {
            return linear;
        }
        let mut linear = self.number(0);
        for (axis, coordinate) in index.coordinates.clone().unwrap_or_default().into_iter().enumerate() {
            linear = self.times(linear, index.shape[axis] as u32);
            linear = self.plus(linear, coordinate);
        }
        index.linear = Some(linear);
        linear
    }

    pub(super) fn coordinates(&mut self, index: &mut Index) -> Coordinates {
        if let Some(coordinates) = &index.coordinates {
            return coordinates.clone();
        }
        let zero = self.number(0);
        let mut coordinates: Coordinates = smallvec![zero; index.shape.len()];
        let long: SmallVec<[usize; 6]> = (0..index.shape.len()).filter(|&axis| index.shape[axis] != 1).collect();
        let mut rest = index.linear.unwrap_or(zero);
        for (i, &axis) in long.iter().enumerate().rev() {
            if i == 0 {
                coordinates[axis] = rest;
                break;
            }
            let (quotient, remainder) = self.divide(rest, index.shape[axis] as u32);
            coordinates[axis] = remainder;
            rest = quotient;
        }
        index.coordinates = Some(coordinates.clone());
        coordinates
    }

    /// The position under strides, from `bias` elements on.
    pub(super) fn position(&mut self, index: &mut Index, strides: &[i64], bias: u64) -> Word {
        let mut at = self.number(bias as u32);
        for (coordinate, &stride) in self.coordinates(index).into_iter().zip(strides) {
            let term = self.times(coordinate, stride as u32);
            at = self.plus(at, term);
        }
        at
    }
}
