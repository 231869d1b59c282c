//! Bodies of fused ops that are attention: the product of queries and keys, elementwise steps on it (the scores), a
//! softmax of each of its rows, and the product of that with values.

mod softmax;

use smallvec::{SmallVec, smallvec};

use softmax::Softmax;

use super::attribute::Axes;
use super::fused::{Load, Plan, Seen as SeenAs};
use super::ops::Class;
use super::step::{Ref, Step};
use super::{Binary, Elementwise, Instruction, Op, Operand, Program};
use crate::shape::Dims;
use crate::{DType, Type};

/// Operands of the steps on scores: each takes an address and strides among the kernel's parameters.
const MAX_LOADS: usize = 8;

/// What attention computes: `softmax(steps(query key^T)) value` for every batch, where some weights may be dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Queries of which each row gives a row of results, keys and values.
    pub factors: [Factor; 3],
    /// Batch axes, then rows of queries and rows of keys.
    pub space: Vec<u64>,
    /// Elements that are contracted for a score.
    pub depth: u64,
    /// Elements of a row of values.
    pub width: u64,
    /// Operands of the body, seen with the shape of the scores.
    pub loads: Vec<Load>,
    /// Input 0 is the product, those after it are `loads`. Coordinates are those of rows and keys alone. Floats of 16
    /// bits are not rounded to, but f32.
    pub steps: SmallVec<[Step; 1]>,
    /// The score.
    pub score: Ref,
    /// The type of scores.
    pub scores: DType,
    /// Whether keys behind the row of a query have no weight, so that they need not be looked at, where a score of
    /// the row is above [`LOW`].
    pub causal: bool,
    /// The positive number that products are multiplied with, where nothing else makes scores of them, but for what
    /// `causal` says.
    pub factor: Option<f32>,
    /// Which weights are kept, where some are dropped.
    pub kept: Option<Kept>,
    /// Which of the axes of batches, rows and a value's elements each axis of the result is; the elements stay last.
    pub order: Axes,
}

/// Which weights are kept, as in dropout: those of others are 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// As those of scores, but of no product.
    pub steps: SmallVec<[Step; 1]>,
    /// What is not 0 where a weight is kept.
    pub value: Ref,
    /// What weights that are kept are multiplied with.
    pub scale: f32,
}

/// An operand of the body: batches of matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor {
    /// The operand of the body.
    pub operand: u32,
    /// From the operand to a shape of which neighbouring axes are each axis of `shape`: heads that are repeated for
    /// groups of queries.
    pub views: Vec<SeenAs>,
    /// What the products take.
    pub shape: Dims,
    /// Axes that are batches, in the order of the scores' axes.
    pub batch: Axes,
    /// The axis of rows.
    pub rows: usize,
    /// The axis of a row's elements.
    pub columns: usize,
}

impl Factor {
    /// An operand of a product in a body, of which these axes are batches, rows and their elements.
    pub(super) fn of(
        body: &Program,
        mut operand: Operand,
        batch: &Axes,
        rows: usize,
        columns: usize,
        live_words: u32,
    ) -> Option<Factor> {
        // Which axis of what is turned each axis is.
        let mut places: Axes = (0..body.type_of(operand)?.shape.len()).collect();
        while let Operand::Result(r) = operand
            && let Instruction { op: Op::Transpose { axes }, operands, .. } = body.instructions.get(r as usize)?
        {
            places = places.iter().map(|&axis| axes[axis]).collect();
            operand = *operands.first()?;
        }
        let shape = body.type_of(operand)?.shape.clone();
        let (operand, views) = match operand {
            Operand::Input(operand) => (operand, Vec::new()),
            Operand::Result(_) => views(body, operand, live_words)?,
        };
        let batch = batch.iter().map(|&axis| places[axis]).collect();
        Some(Factor { operand, views, shape, batch, rows: places[rows], columns: places[columns] })
    }
}

impl Attention {
    /// What a body computes, if that is attention of which no more than so many words are needed at once.
    pub fn of(body: &Program, live_words: u32) -> Option<Attention> {
        let is_dot = |i: &Instruction| matches!(i.op, Op::Dot { .. });
        let end = body.instructions.len().checked_sub(1)?;
        let product = body.instructions.iter().position(is_dot)?;
        let (last, turned) = match &body.instructions[end].op {
            Op::Transpose { axes }
                if body.instructions[end].operands.as_slice() == [Operand::Result(end as u32 - 1)] =>
            {
                (end - 1, Some(axes))
            }
            _ => (end, None),
        };
        let others = body.instructions.iter().enumerate().filter(|(at, i)| is_dot(i) && *at != product);
        let (1, true) = (others.count(), is_dot(&body.instructions[last])) else { return None };
        if body.instructions.iter().any(|i| i.outs.len() != 1) || body.outputs != [Operand::Result(end as u32)] {
            return None;
        }
        let of_scores = Sides::of(body, product)?;
        let of_values = Sides::of(body, last)?;
        let Operand::Result(weights) = of_values.operands[0] else { return None };
        let [query, key, value] = [of_scores.operands[0], of_scores.operands[1], of_values.operands[1]];
        let rank = body.instructions[product].outs[0].shape.len();
        // Weights are batches of rows along the keys.
        let batches: Axes = (0..rank - 2).collect();
        if of_values.batch[0] != batches || of_values.contract[0] != rank - 1 || of_values.free[0] != rank - 2 {
            return None;
        }
        let order = turned.cloned().unwrap_or_else(|| (0..rank).collect());
        if order.last() != Some(&(rank - 1)) {
            return None;
        }
        let factors = [
            Factor::of(body, query, &of_scores.batch[0], of_scores.free[0], of_scores.contract[0], live_words)?,
            Factor::of(body, key, &of_scores.batch[1], of_scores.free[1], of_scores.contract[1], live_words)?,
            Factor::of(body, value, &of_values.batch[1], of_values.contract[1], of_values.free[1], live_words)?,
        ];
        let (plan, [place]) = between(body, [product], &[weights], live_words)?;
        let softmax = Softmax::of(&plan, place)?;
        let [depth, width] = [&factors[0], &factors[2]].map(|factor| factor.shape[factor.columns]);
        let mut loads = plan.loads;
        loads.remove(place);
        if loads.len() > MAX_LOADS || loads.iter().any(|load| load.bounded) {
            return None;
        }
        let seen = Seen { steps: &softmax.steps, scores: softmax.scores, rank };
        let causal = seen.is_causal(softmax.score);
        let factor = seen.factor(softmax.score);
        let Softmax { steps, score, scores, kept } = softmax;
        Some(Attention {
            factors,
            space: plan.space.to_vec(),
            depth,
            width,
            loads,
            steps,
            score,
            scores,
            causal,
            factor,
            kept,
            order,
        })
    }

    /// Rows of queries in each batch.
    pub fn rows(&self) -> u64 {
        self.space[self.space.len() - 2]
    }

    /// Keys in each batch.
    pub fn keys(&self) -> u64 {
        self.space[self.space.len() - 1]
    }

    /// The coordinates of steps that are the row of a query and the key.
    pub fn coordinates(&self) -> [u8; 2] {
        [2, 1].map(|before_end| (self.space.len() - before_end) as u8)
    }

    /// Batches.
    pub fn batches(&self) -> u64 {
        self.space[..self.space.len() - 2].iter().product()
    }
}

/// The operands of a product of matrices with one free and one contracted axis each.
pub(super) struct Sides {
    pub(super) operands: [Operand; 2],
    pub(super) batch: [Axes; 2],
    pub(super) contract: [usize; 2],
    pub(super) free: [usize; 2],
}

impl Sides {
    pub(super) fn of(body: &Program, at: usize) -> Option<Sides> {
        let instruction = &body.instructions[at];
        let Op::Dot { contract_a, batch_a, contract_b, batch_b } = &instruction.op else { return None };
        let [a, b] = *instruction.operands.as_slice() else { return None };
        let side = |operand: Operand, batch: &Axes, contract: &Axes| {
            let rank = body.type_of(operand)?.shape.len();
            let mut free = (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis));
            match (contract.as_slice(), free.next(), free.next()) {
                (&[contract], Some(free), None) => Some((contract, free)),
                _ => None,
            }
        };
        let (a_contract, a_free) = side(a, batch_a, contract_a)?;
        let (b_contract, b_free) = side(b, batch_b, contract_b)?;
        Some(Sides {
            operands: [a, b],
            batch: [batch_a.clone(), batch_b.clone()],
            contract: [a_contract, b_contract],
            free: [a_free, b_free],
        })
    }
}

/// The operand of a body that a factor shows through views, and those.
fn views(body: &Program, mut factor: Operand, live_words: u32) -> Option<(u32, Vec<SeenAs>)> {
    let mut chain = Vec::new();
    while let Operand::Result(r) = factor {
        let instruction = body.instructions.get(r as usize).filter(|i| i.op.class() == Class::View)?;
        let &[of] = instruction.operands.as_slice() else { return None };
        chain.push(instruction);
        factor = of;
    }
    let Operand::Input(operand) = factor else { return None };
    let mut program = Program { inputs: vec![body.type_of(factor)?.clone()], ..Program::default() };
    let mut seen = Operand::Input(0);
    for (at, instruction) in (0..).zip(chain.into_iter().rev()) {
        program.instructions.push(Instruction { operands: smallvec![seen], ..instruction.clone() });
        seen = Operand::Result(at);
    }
    program.outputs.push(seen);
    let mut plan = Plan::of(&program, live_words).ok()?;
    let ([load], true) = (plan.loads.as_slice(), plan.values.is_empty()) else { return None };
    let is_seen = !load.bounded && plan.stores.iter().all(|store| store.value == Ref::Input(0));
    let load = plan.loads.pop()?;
    is_seen.then_some((operand, load.views))
}

/// Which instructions lead to operands; those of `apart` are some of them, but what leads to these is not.
pub(super) fn leading_to(
    body: &Program,
    operands: impl IntoIterator<Item = Operand>,
    apart: &[usize],
) -> Option<Vec<bool>> {
    let mut needed = vec![false; body.instructions.len()];
    let note = |needed: &mut Vec<bool>, operand: Operand| {
        if let Operand::Result(r) = operand {
            *needed.get_mut(r as usize)? = true;
        }
        Some(())
    };
    operands.into_iter().try_for_each(|operand| note(&mut needed, operand))?;
    for at in (0..body.instructions.len()).rev().filter(|at| !apart.contains(at)) {
        if needed[at] {
            body.instructions[at].operands.iter().try_for_each(|&operand| note(&mut needed, operand))?;
        }
    }
    Some(needed)
}

/// What lies between products of the shape of scores and `values`, which have it, too: over the space of the scores,
/// and which of its loads the products are.
pub(super) fn between<const N: usize>(
    body: &Program,
    products: [usize; N],
    values: &[u32],
    live_words: u32,
) -> Option<(Plan, [usize; N])> {
    let own = body.inputs.len() as u32;
    let mut program = Program { inputs: body.inputs.clone(), ..Program::default() };
    let ty: &Type = &body.instructions[products[0]].outs[0];
    program.inputs.extend(products.iter().map(|&product| body.instructions[product].outs[0].clone()));
    let needed = leading_to(body, values.iter().map(|&value| Operand::Result(value)), &products)?;
    let mut moved: Vec<Operand> = Vec::with_capacity(body.instructions.len());
    for (at, instruction) in body.instructions.iter().enumerate() {
        let product = products.iter().position(|&product| product == at);
        moved.push(match product {
            Some(k) => Operand::Input(own + k as u32),
            None => Operand::Result(program.instructions.len() as u32),
        });
        if needed[at] && product.is_none() {
            let operand = |o: &Operand| match *o {
                Operand::Result(r) => moved[r as usize],
                input => input,
            };
            let operands = instruction.operands.iter().map(operand).collect();
            program.instructions.push(Instruction { operands, ..instruction.clone() });
        }
    }
    program.outputs.extend(values.iter().map(|&value| moved[value as usize]));
    let plan = Plan::of(&program, live_words).ok()?;
    let is_whole = |k: &usize| plan.loads[*k].views.is_empty();
    let place = |k: u32| {
        let mut places = (0..plan.loads.len()).filter(|&at| plan.loads[at].operand == own + k);
        places.next().filter(|place| places.next().is_none() && is_whole(place))
    };
    let mut places = [0; N];
    for (k, found) in (0..).zip(&mut places) {
        *found = place(k)?;
    }
    let is_along_keys = plan.axes.as_slice() == [ty.shape.len() - 1];
    let stores_all = plan.stores.len() == values.len();
    let is_stored = stores_all && plan.stores.iter().all(|store| !store.row && store.ty.shape == ty.shape);
    (is_along_keys && plan.space == ty.shape && is_stored).then_some((plan, places))
}

/// Floats of which f32 holds all.
pub(super) fn is_held(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16 | DType::F32)
}

/// What steps on products do; rows and keys are the last axes of `rank`.
struct Seen<'a> {
    steps: &'a [Step],
    scores: DType,
    rank: usize,
}

impl Seen<'_> {
    fn step(&self, r: Ref) -> Option<&Step> {
        match r {
            Ref::Result(k) => self.steps.get(usize::from(k)),
            _ => None,
        }
    }

    /// Which axis a value counts.
    fn coordinate(&self, mut r: Ref) -> Option<usize> {
        while let Some(Step { op: Elementwise::AsType, args, out }) = self.step(r)
            && out.is_integer()
            && out.bits() >= 32
        {
            r = args[0];
        }
        match r {
            Ref::Coordinate(axis) => Some(usize::from(axis)),
            _ => None,
        }
    }

    /// Whether a value says that a key is not behind the row of a query.
    fn is_visible(&self, r: Ref) -> bool {
        let Some(Step { op: Elementwise::Binary(op), args, .. }) = self.step(r) else { return false };
        let axes = [args[0], args[1]].map(|arg| self.coordinate(arg));
        match op {
            Binary::GreaterEqual => axes == [Some(self.rank - 2), Some(self.rank - 1)],
            Binary::LessEqual => axes == [Some(self.rank - 1), Some(self.rank - 2)],
            // Of those that are not behind, others may be masked, too.
            Binary::LogicalAnd => args.iter().any(|&arg| self.is_visible(arg)),
            _ => false,
        }
    }

    /// Whether all keys are visible that are not behind the row of a query.
    fn is_all(&self, r: Ref) -> bool {
        match self.step(r) {
            Some(Step { op: Elementwise::Binary(Binary::LogicalAnd), args, .. }) => {
                args.iter().all(|&arg| is_true(arg) || self.is_all(arg))
            }
            _ => self.is_visible(r),
        }
    }

    /// What says which keys are visible, and what scores are of those, where they are -Inf, or a number near that, of
    /// others, keys behind the row of a query among them.
    fn visible(&self, r: Ref) -> Option<(Ref, Ref)> {
        let Some(Step { op: Elementwise::Select, args, .. }) = self.step(r) else { return None };
        let most = if self.scores == DType::F16 { LEAST_F16 } else { LEAST };
        let is_least = matches!(number(args[2]), Some(least) if least <= most);
        (self.is_visible(args[0]) && is_least).then_some((args[0], args[1]))
    }

    /// Whether no weight is left of keys behind the row of a query. Key 0 is behind none.
    fn is_causal(&self, score: Ref) -> bool {
        match self.step(score) {
            Some(Step { op: Elementwise::Binary(Binary::Add), args, .. }) => {
                args.iter().any(|&arg| self.visible(arg).is_some())
            }
            _ => self.visible(score).is_some(),
        }
    }

    /// The number that a score is a multiple of the product by.
    fn factor(&self, score: Ref) -> Option<f32> {
        let product = match self.step(score) {
            Some(Step { op: Elementwise::Binary(Binary::Add), args, .. }) => {
                let is_mask = |&arg: &Ref| {
                    self.visible(arg).is_some_and(|(keys, zero)| number(zero) == Some(0.0) && self.is_all(keys))
                };
                let mask = args.iter().position(is_mask)?;
                *args.get(1 - mask)?
            }
            _ => match self.visible(score) {
                Some((keys, product)) if self.is_all(keys) => product,
                Some(_) => return None,
                None => score,
            },
        };
        let factor = match self.step(product) {
            Some(Step { op: Elementwise::Binary(op), args, .. }) => match (op, args.as_slice()) {
                (Binary::Multiply, &[Ref::Input(0), by] | &[by, Ref::Input(0)]) => number(by)?,
                (Binary::Divide, &[Ref::Input(0), by]) => 1.0 / number(by)?,
                _ => return None,
            },
            _ => (product == Ref::Input(0)).then_some(1.0)?,
        };
        FACTORS.contains(&factor).then_some(factor)
    }
}

/// Numbers by which a score may be a multiple of a product, so that neither is too large or too small for f32.
const FACTORS: std::ops::RangeInclusive<f32> = 1e-6..=1.0;

/// The least finite number of f16. What is added to it, or is it, has no weight beside scores above [`LOW`].
const LEAST_F16: f32 = -65504.0;

/// What has no weight in scores of types with more exponents than f16.
const LEAST: f32 = -1e30;

/// Where the scores of a row are all below this, keys that are masked may have weights.
pub const LOW: f32 = -60000.0;

/// Whether a constant is not zero.
fn is_true(r: Ref) -> bool {
    matches!(r, Ref::Constant(dtype, bits) if dtype.is_integer() && bits != 0)
}

/// The number that a constant is.
pub(super) fn number(r: Ref) -> Option<f32> {
    match r {
        Ref::Constant(dtype, bits) if is_held(dtype) => Some(f32::from_bits(bits as u32)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::program::{Builder, Reduction};

    /// What is done to scores of 24 queries and keys, and what that is seen as: a factor, and whether it is causal.
    type Case = (&'static str, fn(&Builder, Operand) -> Operand, Option<f32>, bool);

    fn visible(b: &Builder) -> Operand {
        let count = |axis| b.iota(DType::S64, &[24, 24], Some(axis));
        b.greater_equal(count(0), count(1))
    }

    fn numbers(b: &Builder, least: f64) -> [Operand; 2] {
        [0.0, least].map(|x| b.number(DType::F32, x))
    }

    #[test]
    fn scores_are_seen_as_multiples_of_products_and_as_causal() {
        const LEAST: f64 = -3.4028234663852886e38;
        let cases: [Case; 16] = [
            ("nothing", |_, s| s, Some(1.0), false),
            ("a factor", |b, s| b.multiply(s, 0.125), Some(0.125), false),
            ("a factor first", |b, s| b.multiply(0.125, s), Some(0.125), false),
            ("a quotient", |b, s| b.divide(s, 8.0), Some(0.125), false),
            ("a negative factor", |b, s| b.multiply(s, -0.125), None, false),
            ("a large factor", |b, s| b.multiply(s, 16.0), None, false),
            ("a zero is added", |b, s| b.add(b.multiply(s, 0.5), 0.0), Some(0.5), false),
            ("-Inf behind", |b, s| b.select(visible(b), b.divide(s, 4.0), f64::NEG_INFINITY), Some(0.25), true),
            ("-5 behind", |b, s| b.select(visible(b), s, -5.0), None, false),
            (
                "counters of 8 bits, which wrap",
                |b, s| {
                    let count = |axis| b.iota(DType::U8, &[24, 24], Some(axis));
                    b.select(b.greater_equal(count(0), count(1)), s, f64::NEG_INFINITY)
                },
                None,
                false,
            ),
            ("-65504 behind", |b, s| b.select(visible(b), s, -65504.0), None, false),
            (
                "a zero is added to whole numbers",
                |b, s| b.add(b.as_type(s, DType::S32), b.number(DType::F32, 0.0)),
                None,
                false,
            ),
            ("-Inf before", |b, s| b.select(b.greater(visible(b), 0.5), s, f64::NEG_INFINITY), None, false),
            (
                "the least number is added behind",
                |b, s| {
                    let [zero, least] = numbers(b, LEAST);
                    let mask =
                        b.logical_and(b.constant(DType::U8, crate::program::attribute::Scalar::Int(1)), visible(b));
                    b.add(b.multiply(s, 0.125), b.select(mask, zero, least))
                },
                Some(0.125),
                true,
            ),
            (
                "other keys are masked, too",
                |b, s| {
                    let keys = b.less(b.iota(DType::S64, &[24, 24], Some(1)), 20.0);
                    b.select(b.logical_and(keys, visible(b)), b.multiply(s, 0.125), LEAST)
                },
                None,
                true,
            ),
            ("a soft cap", |b, s| b.select(visible(b), b.tanh(b.multiply(s, 0.125)), LEAST), None, true),
        ];
        for (name, scores, factor, causal) in cases {
            let b = Builder::new();
            let [q, k, v] = [(); 3].map(|()| b.input(DType::F32, &[3, 24, 16]));
            let scores = scores(&b, b.dot_axes([q, k], [&[2], &[2]], [&[0], &[0]]));
            let exp = b.exp(b.subtract(scores, b.reduce(Reduction::Max, scores, &[2], true)));
            let weights = b.divide(exp, b.reduce(Reduction::Sum, exp, &[2], true));
            let out = b.dot_axes([weights, v], [&[2], &[1]], [&[0], &[0]]);
            let mut body = b.finish(&[out]).unwrap();
            // Fused bodies end with the second product, and hold what makes masks before the first.
            body.outputs = vec![Operand::Result(body.instructions.len() as u32 - 1)];
            let found = Attention::of(&body, 40).unwrap_or_else(|| panic!("{name}: {body}"));
            assert_eq!((found.factor, found.causal), (factor, causal), "{name}: {found:?}");
            assert_eq!((found.batches(), found.rows(), found.keys()), (3, 24, 24));
            assert_eq!((found.depth, found.width), (16, 16));
        }
    }
}
