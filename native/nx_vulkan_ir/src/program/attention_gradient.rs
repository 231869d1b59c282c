//! Bodies of fused ops that are the gradient of attention: scores and their softmax as in
//! [`attention`](super::attention), the gradient of the weights, that of the scores, and the products that give
//! gradients by queries, keys and values.

use smallvec::{SmallVec, smallvec};

use super::attention::{Attention, Factor, Sides, between, is_held, leading_to, number};
use super::attribute::Axes;
use super::fused::{Made, Plan};
use super::step::{Ref, Step};
use super::{Binary, Elementwise, Instruction, Op, Operand, Program, Reduction, Unary};
use crate::Type;

/// What the gradient of attention computes, from queries, keys, values and the gradient of the results.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionGradient {
    /// The attention.
    pub of: Attention,
    /// The gradient of the results: rows of queries, with the elements of values.
    pub given: Factor,
    /// What the gradient of a score is multiplied with to be that of its product.
    pub scale: f32,
    /// The results of the body, in order.
    pub results: [Gradient; 3],
}

/// A result: a gradient, and which of the axes of batches, rows and elements each of its axes is; the elements stay
/// last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gradient {
    /// What it is by.
    pub by: By,
    /// Axes of batches, rows and elements.
    pub order: Axes,
}

/// What a gradient is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// A product of weights, or of gradients of scores, with a factor.
struct Found {
    product: usize,
    /// Weights, or gradients of scores.
    matrix: u32,
    /// Whether keys are contracted.
    of_keys: bool,
    order: Axes,
}

impl AttentionGradient {
    /// What a body computes, if that is the gradient of attention of which no more than so many words are needed at once.
    pub fn of(body: &Program, live_words: u32) -> Option<AttentionGradient> {
        if body.outputs.len() != 3 || body.instructions.iter().any(|i| i.outs.len() != 1) {
            return None;
        }
        let found: [Found; 3] = [result(body, 0)?, result(body, 1)?, result(body, 2)?];
        let is_result = |at: usize| found.iter().any(|f| f.product == at);
        let is_dot = |at: usize| matches!(body.instructions[at].op, Op::Dot { .. });
        let others: SmallVec<[usize; 3]> =
            (0..body.instructions.len()).filter(|&at| is_dot(at) && !is_result(at)).collect();
        let &[first, second] = others.as_slice() else { return None };
        let by_query = found.iter().find(|f| f.of_keys)?;
        let by_value = found.iter().find(|f| f.matrix != by_query.matrix)?;
        let results = found.iter().map(|f| {
            let by = match (f.matrix == by_query.matrix, f.of_keys) {
                (true, true) => By::Query,
                (true, false) => By::Key,
                (false, false) => By::Value,
                (false, true) => return None,
            };
            Some(Gradient { by, order: f.order.clone() })
        });
        let results: SmallVec<[Gradient; 3]> = results.collect::<Option<_>>()?;
        let results: [Gradient; 3] = results.into_vec().try_into().ok()?;
        if [By::Query, By::Key, By::Value].iter().any(|by| !results.iter().any(|r| r.by == *by)) {
            return None;
        }
        [[first, second], [second, first]].into_iter().find_map(|[product, by_weights]| {
            let (of, given) = attention(body, [product, by_weights], by_value.matrix, live_words)?;
            let (plan, places) = between(body, [product, by_weights], &[by_value.matrix, by_query.matrix], live_words)?;
            let scale = scale(&plan, places[1])?;
            let factors_fit = found.iter().zip(&results).all(|(f, r)| takes(body, f, r.by, (&of, &given), live_words));
            factors_fit.then(|| AttentionGradient { of, given, scale, results: results.clone() })
        })
    }
}

/// A product that an output is, perhaps turned.
fn result(body: &Program, output: usize) -> Option<Found> {
    let Operand::Result(mut r) = *body.outputs.get(output)? else { return None };
    let mut turned = None;
    if let Instruction { op: Op::Transpose { axes }, operands, .. } = &body.instructions[r as usize] {
        let &[Operand::Result(product)] = operands.as_slice() else { return None };
        (r, turned) = (product, Some(axes));
    }
    let product = r as usize;
    let sides = Sides::of(body, product)?;
    let rank = body.instructions[product].outs[0].shape.len();
    let batches: Axes = (0..rank - 2).collect();
    let is_matrix = |side: usize| {
        let operand = sides.operands[side];
        let ends = [sides.contract[side], sides.free[side]];
        matches!(operand, Operand::Result(_))
            && sides.batch[side] == batches
            && ends.iter().all(|&axis| axis + 2 >= rank)
    };
    // Which operand is a factor, only the other one's shape tells: a matrix is made of products.
    let made_of_products = |side: usize| match sides.operands[side] {
        Operand::Result(r) => reaches_product(body, r as usize),
        Operand::Input(_) => false,
    };
    let side = [0, 1].into_iter().find(|&side| is_matrix(side) && made_of_products(side))?;
    let Operand::Result(matrix) = sides.operands[side] else { return None };
    // Axes of a product are batches, those of the first operand, those of the second.
    let ends: [usize; 2] = if side == 0 { [rank - 2, rank - 1] } else { [rank - 1, rank - 2] };
    let of_product: Axes = batches.iter().copied().chain(ends).collect();
    let order: Axes = match turned {
        Some(axes) => axes.iter().map(|&axis| of_product[axis]).collect(),
        None => of_product,
    };
    (order.last() == Some(&(rank - 1))).then(|| Found {
        product,
        matrix,
        of_keys: sides.contract[side] == rank - 1,
        order,
    })
}

/// Whether a value is computed of a product.
fn reaches_product(body: &Program, value: usize) -> bool {
    let mut open: Vec<usize> = vec![value];
    let mut seen = vec![false; body.instructions.len()];
    while let Some(at) = open.pop() {
        if matches!(body.instructions[at].op, Op::Dot { .. }) {
            return true;
        }
        for operand in &body.instructions[at].operands {
            if let Operand::Result(r) = *operand
                && !std::mem::replace(&mut seen[r as usize], true)
            {
                open.push(r as usize);
            }
        }
    }
    false
}

/// The attention with these scores' product and weights, whose values the product of the weights' gradient tells, and
/// the gradient of its results.
fn attention(
    body: &Program,
    [product, by_weights]: [usize; 2],
    weights: u32,
    live_words: u32,
) -> Option<(Attention, Factor)> {
    let sides = Sides::of(body, by_weights)?;
    let ty = &body.instructions[by_weights].outs[0];
    let rank = ty.shape.len();
    if body.instructions[product].outs[0].shape != ty.shape || weights as usize <= product {
        return None;
    }
    let given = Factor::of(body, sides.operands[0], &sides.batch[0], sides.free[0], sides.contract[0], live_words)?;
    // The same with the product of weights and values at the end.
    let mut forward = Program { inputs: body.inputs.clone(), ..Program::default() };
    let needed = leading_to(body, [Operand::Result(weights), sides.operands[1]], &[by_weights])?;
    if needed[by_weights] {
        return None;
    }
    let mut moved = Vec::with_capacity(body.instructions.len());
    let place = |moved: &[u32], operand: Operand| match operand {
        Operand::Result(r) => Operand::Result(moved[r as usize]),
        input @ Operand::Input(_) => input,
    };
    for (at, instruction) in body.instructions.iter().enumerate() {
        moved.push(forward.instructions.len() as u32);
        if needed[at] {
            let operands = instruction.operands.iter().map(|&o| place(&moved, o)).collect();
            forward.instructions.push(Instruction { operands, ..instruction.clone() });
        }
    }
    let [weights, values] = [Operand::Result(weights), sides.operands[1]];
    let dtype = body.type_of(values)?.dtype;
    let mut shape = ty.shape.clone();
    shape[rank - 1] = body.type_of(values)?.shape[sides.contract[1]];
    let of_values = Instruction {
        op: Op::Dot {
            contract_a: smallvec![rank - 1],
            batch_a: (0..rank - 2).collect(),
            contract_b: smallvec![sides.free[1]],
            batch_b: sides.batch[1].clone(),
        },
        operands: smallvec![place(&moved, weights), place(&moved, values)],
        outs: smallvec![Type { dtype, shape }],
    };
    forward.outputs.push(Operand::Result(forward.instructions.len() as u32));
    forward.instructions.push(of_values);
    Some((Attention::of(&forward, live_words)?, given))
}

/// Whether a product takes the factor that its gradient needs.
fn takes(body: &Program, found: &Found, by: By, (of, given): (&Attention, &Factor), live_words: u32) -> bool {
    let Some(sides) = Sides::of(body, found.product) else { return false };
    let side = usize::from(sides.operands[0] == Operand::Result(found.matrix));
    let taken =
        Factor::of(body, sides.operands[side], &sides.batch[side], sides.contract[side], sides.free[side], live_words);
    let [query, key, _] = &of.factors;
    taken.as_ref()
        == Some(match by {
            By::Query => key,
            By::Key => query,
            By::Value => given,
        })
}

/// A number times powers of an exponential, of a weight's gradient, of the sum of a row's exponentials, and of the sum
/// of products of the first two; 0 where a weight is dropped, if it knows that.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Term {
    number: f64,
    kept: bool,
    exponential: i8,
    gradient: i8,
    sum: i8,
    products: i8,
}

const ONE: Term = Term { number: 1.0, kept: false, exponential: 0, gradient: 0, sum: 0, products: 0 };

/// Sums of terms, the most that are looked at.
type Terms = SmallVec<[Term; 4]>;
const MOST_TERMS: usize = 4;

/// What numbers of terms may differ by that are the same but for rounding: those of narrow types are inverses of
/// numbers in turn.
const ROUNDED: f64 = 1e-6;

impl Term {
    /// `None` of powers that no softmax has.
    fn times(self, other: Term) -> Option<Term> {
        Some(Term {
            number: self.number * other.number,
            kept: self.kept || other.kept,
            exponential: self.exponential.checked_add(other.exponential)?,
            gradient: self.gradient.checked_add(other.gradient)?,
            sum: self.sum.checked_add(other.sum)?,
            products: self.products.checked_add(other.products)?,
        })
    }

    fn inverse(self) -> Option<Term> {
        let Term { number, kept, exponential, gradient, sum, products } = self;
        if kept || number == 0.0 {
            return None;
        }
        Some(Term {
            number: 1.0 / number,
            kept,
            exponential: exponential.checked_neg()?,
            gradient: gradient.checked_neg()?,
            sum: sum.checked_neg()?,
            products: products.checked_neg()?,
        })
    }

    fn is_like(self, other: Term) -> bool {
        Term { number: 1.0, ..self } == Term { number: 1.0, ..other }
    }
}

/// Values of a plan as sums of terms, in exact arithmetic; casts between floats make no difference.
struct Values<'a> {
    plan: &'a Plan,
    /// Which input is the gradient of weights.
    place: usize,
    known: Vec<Option<Terms>>,
    /// What says which weights are kept, as soon as one value asks for it.
    kept: Option<Ref>,
    /// Whether sums of products are of weights that are kept alone.
    of_kept: Option<bool>,
}

/// The number by which the second value of a plan is a gradient of scores, where the first are the weights, and input
/// `place` is the weights' gradient.
fn scale(plan: &Plan, place: usize) -> Option<f32> {
    let [weights, gradient] = plan.stores.as_slice() else { return None };
    let mut values = Values { plan, place, known: vec![None; plan.values.len()], kept: None, of_kept: None };
    let weight = Term { exponential: 1, sum: -1, ..ONE };
    let kept = match *values.terms(weights.value)?.as_slice() {
        [term] if term.is_like(Term { kept: term.kept, ..weight }) => term,
        _ => return None,
    };
    if !kept.kept && kept.number != 1.0 {
        return None;
    }
    let found = values.terms(gradient.value)?;
    let of_own = Term { kept: kept.kept, gradient: 1, ..weight };
    let of_row = Term { exponential: 1, sum: -2, products: 1, ..ONE };
    let number = |like: Term| found.iter().find(|term| term.is_like(like)).map(|term| term.number / kept.number);
    match (found.len(), number(of_own)?, number(of_row)?) {
        (2, scale, less)
            if values.of_kept == Some(kept.kept)
                && (scale + less).abs() <= ROUNDED * scale.abs()
                && (scale as f32).is_normal() =>
        {
            Some(scale as f32)
        }
        _ => None,
    }
}

impl Values<'_> {
    fn terms(&mut self, r: Ref) -> Option<Terms> {
        let k = match r {
            Ref::Input(k) if usize::from(k) == self.place => return Some(smallvec![Term { gradient: 1, ..ONE }]),
            Ref::Constant(..) => return Some(smallvec![Term { number: number(r)?.into(), ..ONE }]),
            Ref::Result(k) => usize::from(k),
            _ => return None,
        };
        if let Some(terms) = self.known.get(k)? {
            return Some(terms.clone());
        }
        let found = match &self.plan.values.get(k)?.made {
            Made::Reduction { reduction: Reduction::Sum, of, .. } => match self.terms(*of)?.as_slice() {
                [term @ Term { exponential: 1, gradient: 0, kept: false, .. }] => {
                    smallvec![Term { exponential: 0, sum: term.sum.checked_add(1)?, ..*term }]
                }
                [term @ Term { exponential: 1, gradient: 1, .. }] => {
                    if *self.of_kept.get_or_insert(term.kept) != term.kept {
                        return None;
                    }
                    smallvec![Term {
                        exponential: 0,
                        gradient: 0,
                        products: term.products.checked_add(1)?,
                        kept: false,
                        ..*term
                    }]
                }
                _ => return None,
            },
            Made::Step(Step { op: Elementwise::Unary(Unary::Exp), out, .. }) if is_held(*out) => {
                // Of one softmax: another one would have another sum.
                let is_other = |(at, value): (usize, &crate::program::fused::Computed)| {
                    at != k && matches!(&value.made, Made::Step(step) if step.op == Elementwise::Unary(Unary::Exp))
                };
                if self.plan.values.iter().enumerate().any(is_other) {
                    return None;
                }
                smallvec![Term { exponential: 1, ..ONE }]
            }
            Made::Step(Step { op, args, out }) if is_held(*out) => {
                let mut arg = |at: usize| self.terms(*args.get(at)?);
                match op {
                    Elementwise::AsType => arg(0)?,
                    Elementwise::Select if number(*args.get(2)?) == Some(0.0) => {
                        let terms = arg(1)?;
                        let kept = *args.first()?;
                        if *self.kept.get_or_insert(kept) != kept {
                            return None;
                        }
                        times(&terms, Term { kept: true, ..ONE })?
                    }
                    Elementwise::Unary(Unary::Negate) => times(&arg(0)?, Term { number: -1.0, ..ONE })?,
                    Elementwise::Binary(Binary::Add) => sum(arg(0)?, &arg(1)?),
                    Elementwise::Binary(Binary::Subtract) => {
                        sum(arg(0)?, &times(&arg(1)?, Term { number: -1.0, ..ONE })?)
                    }
                    Elementwise::Binary(Binary::Multiply) => {
                        let (a, b) = (arg(0)?, arg(1)?);
                        b.iter().try_fold(Terms::new(), |all, &by| Some(sum(all, &times(&a, by)?)))?
                    }
                    Elementwise::Binary(Binary::Divide) => match arg(1)?.as_slice() {
                        &[by] => times(&arg(0)?, by.inverse()?)?,
                        _ => return None,
                    },
                    _ => return None,
                }
            }
            _ => return None,
        };
        if found.len() > MOST_TERMS {
            return None;
        }
        *self.known.get_mut(k)? = Some(found.clone());
        Some(found)
    }
}

fn times(terms: &Terms, by: Term) -> Option<Terms> {
    terms.iter().map(|term| term.times(by)).collect()
}

fn sum(mut a: Terms, b: &Terms) -> Terms {
    for &term in b {
        match a.iter_mut().find(|known| known.is_like(term)) {
            Some(known) => known.number += term.number,
            None => a.push(term),
        }
    }
    a.retain(|term| term.number != 0.0);
    a
}
