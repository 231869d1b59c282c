//! Makes one fused op of the gradient of attention: of the products that give gradients by queries, keys and values,
//! and of all between them and the operands of attention, so that weights and their gradients need not be in memory.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use super::{Search, is_step};
use crate::Result;
use crate::program::attention_gradient::AttentionGradient;
use crate::program::attribute::Axes;
use crate::program::fused::MAX_VALUES;
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program, Unary};

/// Ops on exponentials among which weights are looked for.
const MOST_STEPS: usize = 32;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if !target.heads.has_tiles() {
        return Ok(program.clone());
    }
    let search = Search::of(program, target);
    let of_products = of_products(program);
    let mut found: HashMap<usize, Joined> = HashMap::new();
    let mut places: HashMap<usize, (usize, u32)> = HashMap::new();
    for at in 0..program.instructions.len() {
        if let Some(joined) = search.gradient(at, &of_products)
            && joined.replaced.iter().all(|replaced| !places.contains_key(replaced))
        {
            places.extend(joined.replaced.iter().copied().zip((0..).map(|k| (joined.first, k))));
            found.insert(joined.first, joined);
        }
    }
    if found.is_empty() {
        return Ok(program.clone());
    }
    let mut new = Rewriter::new(program);
    let mut results: HashMap<usize, Operand> = HashMap::new();
    for (at, old) in program.instructions.iter().enumerate() {
        if let Some(joined) = found.remove(&at) {
            let operands = joined.operands.iter().map(|&o| new.operand(o)).collect::<Result<_>>()?;
            let outs = joined.body.output_types().into_iter().cloned().collect();
            let op = Op::Fused(Box::new(joined.body));
            results.insert(at, new.push(Instruction { op, operands, outs }));
        }
        let result = places.get(&at).and_then(|(first, k)| Some((results.get(first)?, k)));
        match result {
            Some((Operand::Result(first), k)) => new.moved(Operand::Result(first + k)),
            _ => new.replace(Instruction { operands: new.operands(old)?, ..old.clone() }),
        }
    }
    super::super::dce::run(&new.finish(program)?)
}

/// Which instructions are products, or are computed of some.
fn of_products(program: &Program) -> Vec<bool> {
    let mut results: Vec<bool> = Vec::new();
    let of = |instruction: &Instruction, results: &[bool]| {
        let is_of = |o: &Operand| matches!(*o, Operand::Result(r) if results.get(r as usize) == Some(&true));
        matches!(instruction.op, Op::Dot { .. }) || instruction.operands.iter().any(is_of)
    };
    let each = program.instructions.iter().map(|instruction| {
        let is_of = of(instruction, &results);
        results.extend(instruction.outs.iter().map(|_| is_of));
        is_of
    });
    each.collect()
}

/// The gradient of attention as one op.
struct Joined {
    body: Program,
    operands: Vec<Operand>,
    /// The instructions whose results are those of the body.
    replaced: [usize; 3],
    /// Before which instruction it stands.
    first: usize,
}

impl Search<'_> {
    /// The gradient of attention, if this instruction makes the gradient of scores.
    fn gradient(&self, scores: usize, of_products: &[bool]) -> Option<Joined> {
        let program = self.program;
        let instruction = program.instructions.get(scores).filter(|i| is_step(i))?;
        let keys = *instruction.outs[0].shape.last()?;
        // By queries and keys.
        let result = self.result(scores)?;
        let &[one, other] = self.readers.get(&result)?.as_slice() else { return None };
        let sides = [self.contracted(one, result)?, self.contracted(other, result)?];
        let rank = instruction.outs[0].shape.len();
        if rank < 2 || one == other || !(sides.contains(&(rank - 1)) && sides.contains(&(rank - 2))) {
            return None;
        }
        let (mut members, products) = self.between(scores, keys, of_products)?;
        let &[_, _] = products.as_slice() else { return None };
        let is_exp = |at: &&usize| program.instructions[**at].op == Op::Unary(Unary::Exp);
        let exp = *members.iter().find(is_exp)?;
        let (weights, by_value, of_weights) = self.weights(exp, keys, &products, of_products)?;
        members.extend(of_weights);
        members.extend(products);
        let results = [one, other, by_value];
        let of_scores = [one, other].map(|product| self.with_elements_last(product, result));
        let [Some(one_last), Some(other_last)] = of_scores else { return None };
        let replaced = [one_last, other_last, self.with_elements_last(by_value, self.result(weights)?)?];
        [true, false].into_iter().find_map(|with_sources| {
            let mut all = if with_sources { self.with_sources(&members, &results) } else { members.clone() };
            all.extend(results);
            all.extend(replaced);
            let (body, operands) = self.body(&all, &replaced)?;
            let gradient = AttentionGradient::of(&body, self.target.live_words)?;
            let first = *results.iter().min()?;
            let is_there = |&operand: &Operand| (self.maker)(operand).is_none_or(|at| at < first);
            let is_taken = operands.iter().all(is_there) && self.target.heads.take_gradient(&gradient, &body);
            is_taken.then_some(Joined { body, operands, replaced, first })
        })
    }

    /// A product with a matrix, or its transpose if that alone reads it, whichever has the other operand's elements
    /// last.
    fn with_elements_last(&self, product: usize, matrix: Operand) -> Option<usize> {
        let Instruction { operands, outs, .. } = self.program.instructions.get(product)?;
        let rank = outs.first()?.shape.len();
        let from_end = if operands.first() == Some(&matrix) { 1 } else { 2 };
        let elements = rank.checked_sub(from_end)?;
        if let [reader] = *self.readers.get(&self.result(product)?)?.as_slice()
            && let Some(Instruction { op: Op::Transpose { axes }, .. }) = self.program.instructions.get(reader)
            && axes.last() == Some(&elements)
        {
            return Some(reader);
        }
        (from_end == 1).then_some(product)
    }

    /// The axis of an operand of a product that is contracted, if it is one.
    fn contracted(&self, at: usize, operand: Operand) -> Option<usize> {
        let Instruction { op: Op::Dot { contract_a, contract_b, .. }, operands, .. } =
            self.program.instructions.get(at)?
        else {
            return None;
        };
        let of = |axes: &Axes| if let &[axis] = axes.as_slice() { Some(axis) } else { None };
        match *operands.as_slice() {
            [a, b] if a == operand && b != operand => of(contract_a),
            [a, b] if b == operand && a != operand => of(contract_b),
            _ => None,
        }
    }

    /// The steps that lead from products to what an instruction makes of them, with that, and the products.
    fn between(&self, last: usize, keys: u64, of_products: &[bool]) -> Option<(BTreeSet<usize>, SmallVec<[usize; 2]>)> {
        let program = self.program;
        let elements = program.instructions[last].outs[0].elements();
        let (mut reached, mut products) = (BTreeSet::from([last]), BTreeSet::new());
        let mut open = vec![last];
        while let Some(at) = open.pop() {
            for &operand in &program.instructions[at].operands {
                let Some(maker) = (self.maker)(operand) else { continue };
                let instruction = &program.instructions[maker];
                // Of a row, at least, and no mask.
                let is_small = (self.type_of)(operand)?.elements().saturating_mul(keys) < elements;
                if is_small || !of_products[maker] {
                    continue;
                }
                if matches!(instruction.op, Op::Dot { .. }) {
                    products.insert(maker);
                } else if is_step(instruction) && reached.insert(maker) {
                    open.push(maker);
                }
                if reached.len() > MAX_VALUES || products.len() > 2 {
                    return None;
                }
            }
        }
        Some((reached, products.into_iter().collect()))
    }

    /// What is made of exponentials and one product alone, and read by another one that contracts queries, which gives
    /// the gradient by values; with the steps that make it.
    fn weights(
        &self,
        exp: usize,
        keys: u64,
        products: &[usize],
        of_products: &[bool],
    ) -> Option<(usize, usize, BTreeSet<usize>)> {
        let program = self.program;
        let ty = &program.instructions[exp].outs[0];
        let (mut open, mut seen) = (BTreeSet::from([exp]), BTreeSet::new());
        while let Some(at) = open.pop_first() {
            let result = self.result(at)?;
            for &reader in self.readers.get(&result)? {
                let Some(instruction) = program.instructions.get(reader) else { continue };
                if self.contracted(reader, result).map(|axis| axis + 2) == Some(ty.shape.len())
                    && let Some((steps, of)) = self.between(at, keys, of_products)
                    && let &[product] = of.as_slice()
                    && products.contains(&product)
                {
                    return Some((at, reader, steps));
                }
                let is_like = is_step(instruction) && instruction.outs[0].shape == ty.shape;
                if is_like && seen.len() < MOST_STEPS && seen.insert(reader) {
                    open.insert(reader);
                }
            }
        }
        None
    }
}
