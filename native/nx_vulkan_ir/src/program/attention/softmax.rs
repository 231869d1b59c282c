//! What lies between the products of attention: steps that make scores of the first one, the softmax of their rows, and
//! which of its weights are kept.

use smallvec::SmallVec;

use super::{Kept, is_held, number};
use crate::DType;
use crate::program::fused::{Made, Plan};
use crate::program::step::{Ref, Step};
use crate::program::{Binary, Elementwise, Reduction, Unary};

/// The scores of a plan that computes their softmax along rows.
pub(super) struct Softmax {
    pub steps: SmallVec<[Step; 1]>,
    pub score: Ref,
    pub scores: DType,
    pub kept: Option<Kept>,
}

impl Softmax {
    /// Of a plan whose input `place` is the product.
    pub fn of(plan: &Plan, place: usize) -> Option<Softmax> {
        let values = Values { plan };
        let (weights, which) = values.before_dropout(plan.stores.first()?.value);
        let (weights, scale) = values.before_scale(weights);
        if which.is_none() && scale != 1.0 || !scale.is_normal() {
            return None;
        }
        let score = values.score(weights)?;
        let scores = plan.dtype(score);
        if !is_held(scores) {
            return None;
        }
        let (steps, score) = Steps::of(plan, place, score)?;
        let kept = match which {
            Some(which) => Some(Kept::of(plan, place, which, scale)?),
            None => None,
        };
        Some(Softmax { steps, score, scores, kept })
    }
}

impl Kept {
    /// Weights of which `which` is not 0. `None` where the product says which.
    fn of(plan: &Plan, place: usize, which: Ref, scale: f32) -> Option<Kept> {
        let (steps, value) = Steps::of(plan, place, which)?;
        let is_product = |r: &Ref| *r == Ref::Input(0);
        let is_of_product = is_product(&value) || steps.iter().any(|step| step.args.iter().any(is_product));
        (!is_of_product).then_some(Kept { steps, value, scale })
    }
}

/// The values of a plan, looked at from what it stores. Casts between floats make no difference to what is not rounded.
#[derive(Clone, Copy)]
struct Values<'a> {
    plan: &'a Plan,
}

impl<'a> Values<'a> {
    fn made(self, r: Ref) -> Option<&'a Made> {
        match r {
            Ref::Result(k) => self.plan.values.get(usize::from(k)).map(|value| &value.made),
            _ => None,
        }
    }

    fn step(self, r: Ref) -> Option<&'a Step> {
        match self.made(r) {
            Some(Made::Step(step)) => Some(step),
            _ => None,
        }
    }

    fn uncast(self, mut r: Ref) -> Ref {
        while let Some(Step { op: Elementwise::AsType, args, out }) = self.step(r)
            && let [of] = args.as_slice()
            && is_held(*out)
            && is_held(self.plan.dtype(*of))
        {
            r = *of;
        }
        r
    }

    /// The operands of an op, if it makes the value.
    fn binary(self, r: Ref, op: Binary) -> Option<(Ref, Ref)> {
        match self.step(self.uncast(r)) {
            Some(Step { op: Elementwise::Binary(found), args, out }) if *found == op && is_held(*out) => {
                match args.as_slice() {
                    &[a, b] => Some((self.uncast(a), self.uncast(b))),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What a value is a reduction of.
    fn reduced(self, r: Ref, kind: Reduction) -> Option<Ref> {
        match self.made(r) {
            Some(Made::Reduction { reduction, of, .. }) if *reduction == kind => Some(self.uncast(*of)),
            _ => None,
        }
    }

    /// What a value is the reciprocal of.
    fn inverse(self, r: Ref) -> Option<Ref> {
        self.binary(r, Binary::Divide).filter(|(one, _)| number(*one) == Some(1.0)).map(|(_, of)| of)
    }

    /// The weights of which some are kept, and what is not 0 where one is.
    fn before_dropout(self, weights: Ref) -> (Ref, Option<Ref>) {
        match self.step(self.uncast(weights)) {
            Some(Step { op: Elementwise::Select, args, out }) if is_held(*out) && number(args[2]) == Some(0.0) => {
                (args[1], Some(args[0]))
            }
            _ => (weights, None),
        }
    }

    /// The weights that are multiplied with a number, and that number.
    fn before_scale(self, weights: Ref) -> (Ref, f32) {
        match self.binary(weights, Binary::Divide).map(|(a, by)| (a, number(by))) {
            Some((a, Some(by))) => (a, 1.0 / by),
            _ => match self.binary(weights, Binary::Multiply).map(|(a, b)| (a, b, number(a), number(b))) {
                Some((_, b, Some(by), _)) => (b, by),
                Some((a, _, _, Some(by))) => (a, by),
                _ => (weights, 1.0),
            },
        }
    }

    /// What the weights are the softmax of.
    fn score(self, weights: Ref) -> Option<Ref> {
        let (exponential, sum) = self.binary(weights, Binary::Divide).or_else(|| {
            let (a, b) = self.binary(weights, Binary::Multiply)?;
            self.inverse(a).map(|sum| (b, sum)).or_else(|| self.inverse(b).map(|sum| (a, sum)))
        })?;
        let Some(Step { op: Elementwise::Unary(Unary::Exp), args, .. }) = self.step(exponential) else { return None };
        let (score, largest) = self.binary(*args.first()?, Binary::Subtract)?;
        let is_softmax =
            self.reduced(sum, Reduction::Sum)? == exponential && self.reduced(largest, Reduction::Max)? == score;
        is_softmax.then_some(score)
    }
}

/// The steps that lead to a value of a plan, without reductions, and with f32 in the place of floats of 16 bits.
struct Steps<'a> {
    plan: &'a Plan,
    place: usize,
    steps: SmallVec<[Step; 1]>,
    /// Where values of the plan are among `steps`.
    known: Vec<(u16, Ref)>,
    /// What depends on the product.
    of_product: Vec<Ref>,
}

impl Steps<'_> {
    /// The steps, and the value among them, of a plan whose input `place` is the product.
    fn of(plan: &Plan, place: usize, value: Ref) -> Option<(SmallVec<[Step; 1]>, Ref)> {
        let of_product = vec![Ref::Input(0)];
        let mut steps = Steps { plan, place, steps: SmallVec::new(), known: Vec::new(), of_product };
        let value = steps.moved(value)?;
        Some((steps.steps, value))
    }

    fn moved(&mut self, r: Ref) -> Option<Ref> {
        let keys = self.plan.space.len() - 1;
        match r {
            Ref::Input(k) if usize::from(k) == self.place => Some(Ref::Input(0)),
            Ref::Input(k) if usize::from(k) < self.place => Some(Ref::Input(k + 1)),
            Ref::Coordinate(axis) if usize::from(axis) + 1 < keys => None,
            Ref::Linear => None,
            Ref::Result(k) => {
                if let Some((_, at)) = self.known.iter().find(|(known, _)| *known == k) {
                    return Some(*at);
                }
                let Made::Step(step) = &self.plan.values.get(usize::from(k))?.made else { return None };
                let args: SmallVec<[Ref; 3]> = step.args.iter().map(|&arg| self.moved(arg)).collect::<Option<_>>()?;
                // The sign of a zero makes no difference to a score.
                if step.op == Elementwise::Binary(Binary::Add)
                    && let Some(zero) = args.iter().position(|&arg| number(arg) == Some(0.0))
                    && is_held(self.plan.dtype(step.args[1 - zero]))
                {
                    return args.get(1 - zero).copied();
                }
                // What masks and biases are made of keeps its bits.
                let of_product = args.iter().any(|arg| self.of_product.contains(arg));
                let out = if of_product && is_held(step.out) { DType::F32 } else { step.out };
                self.steps.push(Step { op: step.op, args, out });
                let at = Ref::Result(u16::try_from(self.steps.len() - 1).ok()?);
                self.known.push((k, at));
                if of_product {
                    self.of_product.push(at);
                }
                Some(at)
            }
            Ref::Input(_) | Ref::Coordinate(_) | Ref::Constant(..) => Some(r),
        }
    }
}
