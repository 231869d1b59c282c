//! Bodies of fused ops around a product, dot or conv, whose operands may take elementwise steps when they are loaded,
//! and whose results take some before they are stored.

use smallvec::SmallVec;

use super::fused::{Load, Made, Plan, Seen};
use super::step::{Prologue, Ref, Step};
use super::{Elementwise, Op, Operand, Program};
use crate::{CType, DType, Type};

/// Contracted elements from which matrix units take a product of such a type: from where on their sums are at least as
/// exact as those of f32, which is exact or nearly so with few of them. Of f16 and bf16 a matrix is to be full.
pub fn matrix_min_depth(product: DType) -> u64 {
    if product.size_bytes() < 4 { 16 } else { 128 }
}

/// Operands of the steps beside the product: each takes an address and strides among the kernel's parameters.
const MAX_LOADS: usize = 8;

/// Operands of the steps that a matrix is computed by, and these steps: what blocks of quantised weights take, of which
/// scales and digits lie in bytes of their own.
const MAX_DERIVED_LOADS: usize = 12;
const MAX_DERIVED_STEPS: usize = 64;

/// A product with what comes before and after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Epilogue {
    /// The product among the instructions of the body.
    pub product: usize,
    /// The operands of the body that the product takes.
    pub factors: SmallVec<[Factor; 2]>,
    /// Operands of the body, seen with the shape of the product.
    pub loads: Vec<Load>,
    /// Input 0 is the product, those after it are `loads`.
    pub steps: SmallVec<[Step; 1]>,
    /// What comes out of the steps.
    pub result: Ref,
    /// Its type.
    pub dtype: DType,
}

/// What a product takes as one of its operands.
#[derive(Debug, Clone, PartialEq)]
pub enum Factor {
    /// An operand of the body.
    Loaded {
        /// Which one.
        operand: u32,
        /// From the operand to what the product takes.
        views: Vec<Seen>,
        /// Steps on its elements.
        prologue: Option<Prologue>,
    },
    /// What steps make of several operands, as in a map: one result for each element that the product takes, in their
    /// order.
    Derived(Box<Plan>),
}

/// Whether kernels of a product may take steps on the elements of operands in, which each workgroup repeats for what it
/// loads: not where vectors or matrix units may have kernels of their own, those from `unit_work` multiplications on.
pub fn takes_prologues(unit_work: u64, batches: u64, rows: u64, columns: u64, depth: u64) -> bool {
    let multiplications = [rows, columns, depth].iter().fold(batches, |n, &m| n.saturating_mul(m));
    rows > 1 && columns > 1 && multiplications < unit_work
}

/// Whether an op is a product, of matrices or a convolution.
pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Dot { .. } | Op::Conv(_))
}

/// The most vectors by which a matrix is multiplied as it comes from memory, each element being taken once.
pub const MOST_VECTORS: u64 = 8;

/// Elements that an invocation computes at once of a matrix that comes from several operands.
pub const DERIVED_TOGETHER: u64 = 4;

/// The vectors by which a product multiplies its operand at `place`, if kernels may compute the elements of that from
/// several others: those of a matrix and few vectors, which take each once, along the contracted axes. Sums of f32 by
/// one vector have more digits than theirs.
pub(crate) fn vectors(op: &Op, [a, b]: [&Type; 2], out: &Type, place: usize) -> Option<u64> {
    let Op::Dot { contract_a, batch_a, contract_b, .. } = op else { return None };
    let (matrix, contract, other) = if place == 0 { (a, contract_a, b) } else { (b, contract_b, a) };
    let rank = matrix.shape.len();
    let is_last = contract.iter().copied().eq(rank.saturating_sub(contract.len())..rank);
    let depth: u64 = contract.iter().filter_map(|&axis| matrix.shape.get(axis)).product();
    let vectors = other.elements().checked_div(depth)?;
    let is_summed = out.dtype.size_bytes() < DType::F32.size_bytes() || vectors > 1;
    let is_f32 = |ty: &Type| ty.dtype.ctype() == CType::F32;
    let fits = batch_a.is_empty() && is_last && depth.is_multiple_of(DERIVED_TOGETHER);
    (fits && (1..=MOST_VECTORS).contains(&vectors) && is_summed && is_f32(matrix) && is_f32(out)).then_some(vectors)
}

/// What a body does that has a product behind elementwise steps on its operands, which nothing else reads, and before
/// such steps on its results; `None` for other bodies. Matrix units may take products from `unit_work` multiplications
/// on, and steps need no more than `live_words` words at once.
pub fn of(body: &Program, unit_work: u64, live_words: u32) -> Option<Epilogue> {
    let at = body.instructions.iter().position(|i| is_product(&i.op))?;
    let (lead, product) = (&body.instructions[..at], &body.instructions[at]);
    let [ty] = product.outs.as_slice() else { return None };
    if lead.iter().any(|i| i.outs.len() != 1) {
        return None;
    }
    let before = Program { inputs: body.inputs.clone(), instructions: lead.to_vec(), ..Program::default() };
    let mut factors: SmallVec<[Factor; 2]> =
        product.operands.iter().map(|&operand| factor(&before, operand, live_words)).collect::<Option<_>>()?;
    let as_it_lies = |factor: &Factor| matches!(factor, Factor::Loaded { prologue: None, .. });
    if !factors.iter().all(as_it_lies) {
        let [a, b] = product.operands.as_slice() else { return None };
        let type_of = before.types();
        let operands = [type_of(*a)?, type_of(*b)?];
        for (factor, &from) in factors.iter_mut().zip(&product.operands) {
            let Factor::Loaded { operand, prologue: Some(prologue), .. } = &*factor else { continue };
            let ty_of = body.inputs.get(*operand as usize)?;
            if !takes_steps(unit_work, &product.op, operands, ty, ty_of, &prologue.steps) {
                *factor = derived(&before, from, live_words)?;
            }
        }
        // Vectors are loaded as they lie.
        let fits = |(place, factor): (usize, &Factor)| match factor {
            Factor::Loaded { .. } => true,
            Factor::Derived(_) => {
                factors.get(1 - place).is_some_and(as_it_lies) && vectors(&product.op, operands, ty, place).is_some()
            }
        };
        if !factors.iter().enumerate().all(fits) {
            return None;
        }
    }
    let Following { loads, steps, result, dtype } = following(body, &[at], ty, live_words)?;
    Some(Epilogue { product: at, factors, loads, steps, result, dtype })
}

/// Elementwise steps on the results of products of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Following {
    /// Operands of the body, seen with the shape of the products.
    pub loads: Vec<Load>,
    /// The first inputs are the products, those after them `loads`.
    pub steps: SmallVec<[Step; 1]>,
    /// What comes out of the steps.
    pub result: Ref,
    /// Its type.
    pub dtype: DType,
}

/// What follows products in a body, the last instructions before it, if those are steps alone that read nothing else
/// of what comes before.
pub(super) fn following(body: &Program, products: &[usize], ty: &Type, live_words: u32) -> Option<Following> {
    let [output] = body.outputs.as_slice() else { return None };
    let rest = body.instructions.get(products.last()? + 1..)?;
    // The rest as a body of its own, with the products as its last operands.
    let (own, before) = (body.inputs.len() as u32, (body.instructions.len() - rest.len()) as u32);
    let of = |at: usize| products.iter().position(|&product| product == at);
    let moved = |o: &Operand| match *o {
        Operand::Result(r) if r >= before => Some(Operand::Result(r - before)),
        Operand::Result(r) => of(r as usize).map(|k| Operand::Input(own + k as u32)),
        input => Some(input),
    };
    let mut after = Program { inputs: body.inputs.clone(), ..Program::default() };
    after.inputs.extend(products.iter().map(|_| ty.clone()));
    after.outputs.push(moved(output)?);
    for instruction in rest {
        let mut instruction = instruction.clone();
        instruction.operands = instruction.operands.iter().map(moved).collect::<Option<_>>()?;
        after.instructions.push(instruction);
    }
    let plan = Plan::of(&after, live_words).ok()?;
    let [store] = plan.stores.as_slice() else { return None };
    if plan.space != ty.shape || store.ty.shape != ty.shape {
        return None;
    }
    // The products first, each read once, then the others in their order.
    let mut order: Vec<usize> = Vec::new();
    for product in own..after.inputs.len() as u32 {
        let mut read = (0..plan.loads.len()).filter(|&k| plan.loads[k].operand == product);
        let (Some(place), None) = (read.next(), read.next()) else { return None };
        if !plan.loads[place].views.is_empty() {
            return None;
        }
        order.push(place);
    }
    order.extend((0..plan.loads.len()).filter(|&k| plan.loads[k].operand < own));
    let known = |r: Ref| match r {
        Ref::Coordinate(_) | Ref::Linear => None,
        Ref::Input(k) => order.iter().position(|&place| place == usize::from(k)).map(|k| Ref::Input(k as u8)),
        Ref::Result(_) | Ref::Constant(..) => Some(r),
    };
    let steps = steps(&plan, known)?;
    let (result, dtype) = (known(store.value)?, store.ty.dtype);
    let loads: Vec<Load> = order.iter().skip(products.len()).map(|&place| plan.loads[place].clone()).collect();
    let fits = loads.len() <= MAX_LOADS && !loads.iter().any(|load| load.bounded);
    fits.then_some(Following { loads, steps, result, dtype })
}

/// Whether the kernels of a product take steps on the elements of its operands in, which lie in memory as a given type:
/// tiles take them in f32, and convolutions none that make something else of the zeros around their input. Matrix units
/// may take products from `unit_work` multiplications on.
pub(crate) fn takes_steps(
    unit_work: u64,
    op: &Op,
    [a, b]: [&Type; 2],
    out: &Type,
    from: &Type,
    steps: &[Step],
) -> bool {
    if out.dtype.ctype() != CType::F32 || from.dtype.ctype() != CType::F32 || out.shape.contains(&0) {
        return false;
    }
    match op {
        Op::Dot { contract_a, batch_a, .. } => {
            let size = |axes: &[usize]| axes.iter().filter_map(|&axis| a.shape.get(axis)).product::<u64>();
            let (batches, depth) = (size(batch_a), size(contract_a));
            let rows = a.elements() / (batches * depth).max(1);
            let columns = b.elements() / (batches * depth).max(1);
            takes_prologues(unit_work, batches, rows, columns, depth)
        }
        Op::Conv(conv) => conv.sizes(&a.shape, &b.shape).is_ok_and(|sizes| {
            let (positions, depth) = (sizes.counts.iter().product(), sizes.depth());
            let batches = sizes.images.saturating_mul(conv.groups());
            steps.iter().all(|step| step.op == Elementwise::AsType)
                && takes_prologues(unit_work, batches, positions, sizes.filters, depth)
        }),
        _ => false,
    }
}

/// What a product takes as one of its operands: an operand of the body, perhaps by way of steps and views, or what
/// steps make of several.
fn factor(before: &Program, operand: Operand, live_words: u32) -> Option<Factor> {
    if let Operand::Input(operand) = operand {
        return Some(Factor::Loaded { operand, views: Vec::new(), prologue: None });
    }
    let mut body = before.clone();
    body.outputs.push(operand);
    match prologue(&body, live_words) {
        Some((Load { operand, views, .. }, prologue)) => {
            Some(Factor::Loaded { operand, views, prologue: Some(prologue) })
        }
        None => derived(before, operand, live_words),
    }
}

/// The one operand that a body of steps and views reads, as often as it has elements, and the steps on it.
pub fn prologue(body: &Program, live_words: u32) -> Option<(Load, Prologue)> {
    let mut plan = Plan::of(body, live_words).ok()?;
    let ([load], [store]) = (plan.loads.as_slice(), plan.stores.as_slice()) else { return None };
    let ty = body.inputs.get(load.operand as usize)?;
    if load.bounded || ty.elements() != plan.elements() || store.ty.shape != plan.space {
        return None;
    }
    let known = |r: Ref| (!matches!(r, Ref::Coordinate(_) | Ref::Linear)).then_some(r);
    let prologue = Prologue { steps: steps(&plan, known)?.into_vec().into(), result: known(store.value)? };
    Some((plan.loads.pop()?, prologue))
}

/// What steps make of operands, element after element: few and cheap ones, for the kernel has their code for each
/// element that an invocation computes at once.
fn derived(before: &Program, operand: Operand, live_words: u32) -> Option<Factor> {
    let mut body = before.clone();
    body.outputs.push(operand);
    let plan = Plan::of(&body, live_words).ok()?;
    let [store] = plan.stores.as_slice() else { return None };
    let is_map = plan.axes.is_empty() && store.ty.elements() == plan.elements();
    let is_cheap = |made: &Made| match made {
        Made::Step(step) => step.op.is_cheap(&[step.out], step.out),
        Made::Reduction { .. } => false,
    };
    let fits = plan.loads.len() <= MAX_DERIVED_LOADS
        && plan.values.len() <= MAX_DERIVED_STEPS
        && plan.values.iter().all(|value| is_cheap(&value.made))
        && !plan.loads.iter().any(|load| load.bounded);
    (is_map && fits).then(|| Factor::Derived(Box::new(plan)))
}

/// The steps of a plan with other names for what they read; `None` where one has none, or something is reduced.
fn steps(plan: &Plan, known: impl Fn(Ref) -> Option<Ref>) -> Option<SmallVec<[Step; 1]>> {
    let step = |made: &Made| match made {
        Made::Step(step) => {
            Some(Step { args: step.args.iter().map(|&r| known(r)).collect::<Option<_>>()?, ..step.clone() })
        }
        Made::Reduction { .. } => None,
    };
    plan.values.iter().map(|value| step(&value.made)).collect()
}
