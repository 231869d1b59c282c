//! Index maps beside what the interpreter says.
#![allow(clippy::unwrap_used)]

use smallvec::SmallVec;

use super::array::{Array, indices};
use super::evaluate;
use crate::program::Op;
use crate::program::index_map::{Line, Part, Place, is_identity};
use crate::program::ops::moved::{Pad, Reverse};
use crate::program::ops::{self, Sample};
use crate::shape::{Dims, elements};
use crate::value::Value;
use crate::{DType, Type, View};

struct Rng(u64);

impl Rng {
    /// A number from `low` to `high`.
    fn within(&mut self, low: i64, high: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + ((self.0 >> 33) % (high - low + 1) as u64) as i64
    }

    fn sizes(&mut self, low: i64) -> Dims {
        (0..self.within(0, 3)).map(|_| self.within(low, 4) as u64).collect()
    }

    /// Starts of windows, perhaps outside of the axes, and the operands that hold those that are left out.
    fn starts(&mut self, rank: usize) -> (SmallVec<[Option<i64>; 6]>, Vec<Array>) {
        let starts: SmallVec<[Option<i64>; 6]> =
            (0..rank).map(|_| (self.within(0, 2) > 0).then(|| self.within(-2, 5))).collect();
        let scalar = Type::new(DType::S32, &[]);
        let missing = starts.iter().filter(|start| start.is_none());
        let operands = missing.map(|_| Array::new(&scalar, [Value::Int(self.within(-2, 5).into())])).collect();
        (starts, operands)
    }

    /// An op, its operands and the shape of its result.
    fn op(&mut self) -> (Op, Vec<Array>, Dims) {
        let shape = self.sizes(0);
        let rank = shape.len();
        let axis = self.within(0, rank.max(1) as i64 - 1) as usize;
        let a = numbered(&shape, 0);
        match self.within(0, 7) {
            0 => {
                let mut out: Dims = shape.iter().map(|&n| if n == 1 { self.within(0, 3) as u64 } else { n }).collect();
                let at = self.within(0, rank as i64) as usize;
                out.insert(at, self.within(0, 3) as u64);
                (Op::Broadcast { axes: (0..=rank).filter(|&axis| axis != at).collect() }, vec![a], out)
            }
            1 => {
                let mut axes: SmallVec<[usize; 6]> = (0..rank).collect();
                (1..rank).for_each(|i| axes.swap(i, self.within(0, i as i64) as usize));
                let out = axes.iter().map(|&axis| shape[axis]).collect();
                (Op::Transpose { axes }, vec![a], out)
            }
            2 => (Op::from(Reverse { axes: (0..rank).filter(|_| self.within(0, 1) > 0).collect() }), vec![a], shape),
            3 => {
                let (starts, read) = self.starts(rank);
                let lengths: Dims = shape.iter().map(|&n| self.within(0, n as i64) as u64).collect();
                let strides: Dims = shape.iter().map(|_| self.within(1, 3) as u64).collect();
                let out = lengths.iter().zip(&strides).map(|(n, step)| n.div_ceil(*step)).collect();
                (Op::Slice { starts, strides, lengths }, [vec![a], read].concat(), out)
            }
            4 => {
                let (starts, read) = self.starts(rank);
                let lengths: Dims = shape.iter().map(|&n| self.within(0, n as i64) as u64).collect();
                (Op::PutSlice { starts }, [vec![a, numbered(&lengths, 1)], read].concat(), shape)
            }
            5 => {
                let config: SmallVec<[(i64, i64, u64); 6]> =
                    shape.iter().map(|_| (self.within(-3, 3), self.within(-3, 3), self.within(0, 2) as u64)).collect();
                let size = |(&n, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
                    (n + n.saturating_sub(1) * interior).checked_add_signed(low + high)
                };
                match shape.iter().zip(&config).map(size).collect() {
                    Some(out) => (Op::from(Pad { config }), vec![a, numbered(&[], 1)], out),
                    None => self.op(),
                }
            }
            6 if rank > 0 => {
                let mut parts = Vec::new();
                let mut out = shape.clone();
                out[axis] = 0;
                for k in 0..self.within(1, 4) {
                    let mut part = shape.clone();
                    part[axis] = self.within(0, 3) as u64;
                    out[axis] += part[axis];
                    parts.push(numbered(&part, k));
                }
                (Op::Concatenate { axis }, parts, out)
            }
            _ => {
                let parts: Vec<Array> = (0..self.within(1, 4)).map(|k| numbered(&shape, k)).collect();
                let axis = self.within(0, rank as i64) as usize;
                let mut out = shape;
                out.insert(axis, parts.len() as u64);
                (Op::Stack { axis }, parts, out)
            }
        }
    }
}

/// An array all of whose elements, and those of others, differ.
fn numbered(shape: &[u64], number: i64) -> Array {
    let ty = Type::new(DType::S32, shape);
    let first = 1000 * i128::from(number);
    Array::new(&ty, (0..ty.elements()).map(|i| Value::Int(first + i128::from(i))))
}

fn place(place: Place, operands: &[Array]) -> i64 {
    match place {
        Place::Number(number) => number,
        Place::Read { operand, room } => match operands[operand as usize].values[0] {
            Value::Int(number) => number.clamp(0, room.into()) as i64,
            _ => 0,
        },
    }
}

/// The element of a part at an index of the result, if it lies there.
fn element(part: &Part, operands: &[Array], index: &[u64]) -> Option<Value> {
    let a = &operands[part.operand];
    let mut own: Dims = SmallVec::from_elem(0, a.ty.shape.len());
    for line in &part.lines {
        let after = index[line.along] as i64 - place(line.at, operands);
        let k = after.div_euclid(line.every as i64);
        let lies = after % line.every as i64 == 0 && (0..line.count.unwrap_or(1) as i64).contains(&k);
        if line.count.is_some() && !lies {
            return None;
        }
        if let Some(of) = line.of {
            own[of] = u64::try_from(place(line.from, operands) + k * line.step).unwrap();
            assert!(own[of] < a.ty.shape[of]);
        }
    }
    Some(a.at(&own))
}

/// Where a view has its elements, in row-major order.
fn positions(view: &View) -> Vec<usize> {
    let at = |index: Dims| {
        let steps = index.iter().zip(&view.strides).map(|(&i, &stride)| i as i64 * stride);
        (view.offset as i64 + steps.sum::<i64>()) as usize
    };
    indices(&view.shape).map(at).collect()
}

/// The op of every sample that has an index map, as [`Rng::op`] gives them.
fn samples() -> impl Iterator<Item = (Op, Vec<Array>, Dims)> {
    ops::samples().into_iter().filter_map(|(_, Sample { op, operands, outs })| {
        let shapes: Vec<&[u64]> = operands.iter().map(|ty| &ty.shape[..]).collect();
        op.index_map(&shapes, &outs[0].shape)?;
        let operands = shapes.iter().zip(0..).map(|(shape, k)| numbered(shape, k)).collect();
        Some((op, operands, outs[0].shape.clone()))
    })
}

#[test]
fn maps_say_what_the_reference_does() {
    let mut rng = Rng(27);
    let random: Vec<(Op, Vec<Array>, Dims)> = (0..20_000).map(|_| rng.op()).collect();
    for (op, operands, out) in samples().chain(random) {
        let ty = Type::new(DType::S32, &out);
        let expected = evaluate(&op, &operands, &ty).unwrap().values;
        let shapes: Vec<&[u64]> = operands.iter().map(|a| &a.ty.shape[..]).collect();
        let map = op.index_map(&shapes, &out).unwrap();
        let around = |index: &[u64]| {
            let a = &operands[map.around.unwrap()];
            if a.ty.shape == out { a.at(index) } else { a.values[0] }
        };
        let shown = indices(&out).map(|index| {
            let mut parts = map.parts.iter().filter_map(|part| element(part, &operands, &index));
            let shown = parts.next().unwrap_or_else(|| around(&index));
            assert_eq!(parts.next(), None, "parts of {op:?} lie over each other");
            shown
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{op:?} of {shapes:?} to {out:?}");
        if map.parts.iter().any(|part| part.lines.iter().any(Line::is_read)) {
            continue;
        }
        // By copies, and as views.
        let view = |a: &Array| View::contiguous(DType::S32, &a.ty.shape);
        let mut copied: Vec<Value> = match map.around {
            Some(_) => indices(&out).map(|index| around(&index)).collect(),
            None => vec![Value::Int(-1); elements(&out) as usize],
        };
        for part in &map.parts {
            let a = &operands[part.operand];
            let Some((from, to)) = part.views(&view(a), &View::contiguous(DType::S32, &out)) else { continue };
            positions(&from).into_iter().zip(positions(&to)).for_each(|(from, to)| copied[to] = a.values[from]);
        }
        assert_eq!(copied, expected, "{op:?} of {shapes:?} to {out:?}");
        let [part] = &map.parts[..] else { continue };
        let a = &operands[part.operand];
        assert!(
            !is_identity(&part.lines, &a.ty.shape, &out) || a.values == expected,
            "{op:?} of {shapes:?} to {out:?}"
        );
        if part.lines.iter().all(|line| line.count.is_none()) {
            let seen = positions(&view(a).along(&part.lines, &out));
            let seen: Vec<Value> = seen.into_iter().map(|at| a.values[at]).collect();
            assert_eq!(seen, expected, "{op:?} of {shapes:?} to {out:?}");
        }
    }
}
