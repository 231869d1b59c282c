//! Maps whose elements at the two indices of an axis are for the most part computed together, as random bits are, of
//! which each block gives two words: one invocation computes both.

use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::step::{Ref, Step, has_costly};
use nx_vulkan_ir::program::{Binary, Elementwise};
use smallvec::{SmallVec, smallvec};

use super::Operand;
use crate::shape::Dims;

/// Such a map over the other axes.
#[derive(Debug)]
pub(super) struct Both<'a> {
    pub sizes: Dims,
    pub inputs: SmallVec<[Operand<'a>; 4]>,
    pub steps: SmallVec<[Step; 1]>,
    pub outputs: SmallVec<[(Ref, Operand<'a>); 2]>,
}

/// The map as one of both elements, where there is such an axis. Costly steps are code that stands twice only where
/// `repeats_costly` says so.
pub(super) fn both<'a>(
    repeats_costly: bool,
    sizes: &[u64],
    inputs: &[Operand<'a>],
    steps: &[Step],
    outputs: &[(Ref, Operand<'a>)],
) -> Option<Both<'a>> {
    (0..sizes.len())
        .filter(|&axis| sizes[axis] == 2)
        .find_map(|axis| Axis { axis, sizes, inputs }.both(repeats_costly, steps, outputs))
}

/// An axis of two, of a map over a space.
struct Axis<'a, 'b> {
    axis: usize,
    sizes: &'b [u64],
    inputs: &'b [Operand<'a>],
}

impl<'a> Axis<'a, '_> {
    /// Whether something is not the same at both indices, by which steps are not.
    fn differs(&self, r: &Ref, steps: &[bool]) -> bool {
        match *r {
            Ref::Input(k) => self.inputs.get(usize::from(k)).is_none_or(|input| input.strides[self.axis] != 0),
            Ref::Result(k) => steps.get(usize::from(k)).is_none_or(|&differs| differs),
            Ref::Coordinate(axis) => usize::from(axis) == self.axis,
            Ref::Linear => true,
            Ref::Constant(..) => false,
        }
    }

    fn both(&self, repeats_costly: bool, steps: &[Step], outputs: &[(Ref, Operand<'a>)]) -> Option<Both<'a>> {
        let mut differ: Vec<bool> = Vec::new();
        for step in steps {
            differ.push(step.args.iter().any(|r| self.differs(r, &differ)));
        }
        let twice = differ.iter().filter(|&&differs| differs).count();
        let is_costly = |(step, differs): (&Step, &bool)| *differs && has_costly(std::slice::from_ref(step));
        if !repeats_costly && steps.iter().zip(&differ).any(is_costly) {
            return None;
        }
        let counts_first = self.sizes[..self.axis].iter().all(|&n| n == 1);
        let mut refs = steps.iter().flat_map(|step| &step.args).chain(outputs.iter().map(|(r, _)| r));
        let is_counted = refs.any(|r| *r == Ref::Linear);
        let is_bounded = self.inputs.iter().any(|input| input.bounds.is_some() && input.strides[self.axis] != 0);
        // A number of the half is added to indices of 32 bits. What only moves elements gains nothing.
        let is_wide = is_counted && self.sizes.iter().product::<u64>() > u64::from(u32::MAX);
        if twice == 0 || steps.len() < 3 * twice || is_bounded || is_wide || is_counted && !counts_first {
            return None;
        }
        let without = |sizes: &[u64]| -> Dims {
            sizes.iter().enumerate().filter(|(axis, _)| *axis != self.axis).map(|(_, &n)| n).collect()
        };
        let sizes = without(self.sizes);
        let mut both = Both { sizes, inputs: SmallVec::new(), steps: SmallVec::new(), outputs: SmallVec::new() };
        // What stands for the inputs and for the results of steps, at each of the two indices.
        let mut places: [SmallVec<[u8; 4]>; 2] = [SmallVec::new(), SmallVec::new()];
        for input in self.inputs {
            for (which, places) in places.iter_mut().enumerate() {
                if which == 0 || input.strides[self.axis] != 0 {
                    both.inputs.push(self.at(input, which));
                }
                places.push(u8::try_from(both.inputs.len() - 1).ok()?);
            }
        }
        let mut made: [Vec<Ref>; 2] = [Vec::new(), Vec::new()];
        for (step, differs) in steps.iter().zip(&differ) {
            for which in 0..2 {
                let found = match which == 0 || *differs {
                    true => {
                        let args = step.args.iter().map(|r| self.moved(&mut both, r, which, &places, &made));
                        let args = args.collect::<Option<_>>()?;
                        known(&mut both.steps, Step { args, ..step.clone() })?
                    }
                    false => *made[0].last()?,
                };
                made[which].push(found);
            }
        }
        for which in 0..2 {
            for (r, output) in outputs {
                let r = self.moved(&mut both, r, which, &places, &made)?;
                both.outputs.push((r, self.at(output, which)));
            }
        }
        // Operands are numbered by bytes.
        (both.inputs.len() + both.outputs.len() <= usize::from(u8::MAX)).then_some(both)
    }

    /// An operand at one of the two indices.
    fn at(&self, operand: &Operand<'a>, which: usize) -> Operand<'a> {
        let bytes = operand.strides[self.axis] * which as i64 * i64::from(operand.element.size_bytes());
        let mut at = operand.clone();
        at.strides.remove(self.axis);
        at.offset_bytes = at.offset_bytes.wrapping_add_signed(bytes);
        at
    }

    /// What something is at one of the two indices.
    fn moved(
        &self,
        both: &mut Both<'a>,
        r: &Ref,
        which: usize,
        places: &[SmallVec<[u8; 4]>; 2],
        made: &[Vec<Ref>; 2],
    ) -> Option<Ref> {
        let is_line = both.sizes.iter().filter(|&&n| n > 1).count() <= 1;
        Some(match *r {
            Ref::Input(k) => Ref::Input(*places[which].get(usize::from(k))?),
            Ref::Result(k) => *made[which].get(usize::from(k))?,
            Ref::Coordinate(axis) if usize::from(axis) == self.axis => Ref::Constant(DType::U32, which as u64),
            // Along the only axis, so that vectors may begin anywhere.
            Ref::Coordinate(axis) if is_line && self.sizes[usize::from(axis)] > 1 => Ref::Linear,
            Ref::Coordinate(axis) => Ref::Coordinate(axis - u8::from(usize::from(axis) > self.axis)),
            Ref::Linear if which == 0 => Ref::Linear,
            Ref::Linear => {
                let half = Ref::Constant(DType::U32, both.sizes.iter().product());
                let args = smallvec![Ref::Linear, half];
                known(&mut both.steps, Step { op: Elementwise::Binary(Binary::Add), args, out: DType::U32 })?
            }
            Ref::Constant(..) => *r,
        })
    }
}

/// A step's result: a number, what it chooses by a number, or what computes it.
fn known(steps: &mut SmallVec<[Step; 1]>, step: Step) -> Option<Ref> {
    match (step.op, &step.args[..]) {
        (Elementwise::AsType, &[Ref::Constant(from, bits)])
            if from.is_integer() && step.out.is_integer() && bits < 2 =>
        {
            return Some(Ref::Constant(step.out, bits));
        }
        (Elementwise::Select, &[Ref::Constant(_, bits), yes, no]) => {
            let chosen = if bits != 0 { yes } else { no };
            let is_same = match chosen {
                Ref::Result(k) => steps.get(usize::from(k))?.out == step.out,
                Ref::Constant(dtype, _) => dtype == step.out,
                Ref::Input(_) | Ref::Coordinate(_) | Ref::Linear => false,
            };
            if is_same {
                return Some(chosen);
            }
        }
        _ => {}
    }
    let known = steps.iter().position(|other| *other == step);
    let at = known.unwrap_or(steps.len());
    if known.is_none() {
        steps.push(step);
    }
    u16::try_from(at).ok().map(Ref::Result)
}
