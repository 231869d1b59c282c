//! Plans that reduce what steps compute, and take steps on what was reduced: what one pass over memory does for each.

use smallvec::SmallVec;

use super::fused::{Computed, Made, Plan};
use super::reducer::Reducer;
use super::step::{Ref, Step};
use crate::DType;

/// 32-bit words of the accumulators of several reductions: an invocation of a team that shares a column holds eight
/// times as many, and a workgroup 256 times, in memory that is 16 KiB at least.
const MAX_WORDS: u32 = 8;

/// Steps behind reductions, and operands that come in there: one invocation takes them for each result.
const MAX_STEPS: usize = 24;
const MAX_LOADS: usize = 8;

/// What may be computed again for each element of a row, although it is the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Instructions that take less time than an element does to come from memory.
    pub instructions: u64,
    /// Elements for which more of them take less time than a launch.
    pub elements: u64,
}

/// Steps on loads of a plan, and on what was reduced.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// The loads among those of the plan. Inputs of steps are what was reduced, if anything, then these.
    pub loads: Vec<usize>,
    /// In order.
    pub steps: Vec<Step>,
    /// What comes out.
    pub results: SmallVec<[Ref; 1]>,
}

/// Reductions of the same rows, none of which waits for another.
#[derive(Debug, Clone, PartialEq)]
pub struct Reductions {
    /// One for each reduction.
    pub reducers: SmallVec<[Reducer; 1]>,
    /// Gives what each of them takes.
    pub before: Side,
    /// Gives what is stored, once for each row.
    pub behind: Side,
    /// Types of what is stored.
    pub stored: SmallVec<[DType; 1]>,
}

impl Reductions {
    /// `None` for plans that do something else: reduce what was reduced, use that within rows, need the index, or would
    /// compute for each element what takes long and is the same for a row.
    pub fn of(plan: &Plan, repeats: Repeats) -> Option<Reductions> {
        let (mut numbers, mut taken) = (Vec::new(), Vec::new());
        let mut reducers: SmallVec<[Reducer; 1]> = SmallVec::new();
        for (at, value) in plan.reductions() {
            let Made::Reduction { of, .. } = value.made else { continue };
            numbers.push(at);
            reducers.extend(plan.reducer(value));
            taken.push(of);
        }
        let fits = match reducers.len() {
            0 => false,
            1 => true,
            _ => reducers.iter().map(Reducer::words).sum::<u32>() <= MAX_WORDS,
        };
        if !fits || !plan.stores.iter().all(|store| store.row) || plan.loads.iter().any(|load| load.bounded) {
            return None;
        }
        // What comes before is computed for each element.
        let (_, steps) = reached(plan, &taken, &[])?;
        let is_large = plan.row_elements() > 1 && plan.elements() > repeats.elements;
        if is_large && steps.iter().map(|&k| row_instructions(plan, k)).sum::<u64>() > repeats.instructions {
            return None;
        }
        let stored: Vec<Ref> = plan.stores.iter().map(|store| store.value).collect();
        let (before, behind) = (side(plan, &taken, &[])?, side(plan, &stored, &numbers)?);
        let stored = plan.stores.iter().map(|store| store.ty.dtype).collect();
        let is_short = behind.steps.len() <= MAX_STEPS && behind.loads.len() <= MAX_LOADS;
        is_short.then_some(Reductions { reducers, before, behind, stored })
    }

    /// Whether each reduction's result is stored as it is, in order.
    pub fn is_plain(&self) -> bool {
        let reduced = (0..self.reducers.len()).map(|k| Ref::Input(k as u8));
        self.behind.steps.is_empty() && self.behind.results.iter().copied().eq(reduced)
    }

    /// Whether it is one reduction that nothing follows.
    pub fn is_alone(&self) -> bool {
        self.reducers.len() == 1 && self.is_plain()
    }
}

/// Instructions of a step that is the same for all elements of a row.
fn row_instructions(plan: &Plan, k: usize) -> u64 {
    match plan.values.get(k) {
        Some(Computed { made: Made::Step(step), row: true, .. }) => step.op.cost(step.out.ctype()),
        _ => 0,
    }
}

/// The loads and steps that values are computed from, in order, up to what was reduced.
fn reached(plan: &Plan, values: &[Ref], reduced: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
    let (mut loads, mut steps) = (vec![false; plan.loads.len()], vec![false; plan.values.len()]);
    let mut left = values.to_vec();
    while let Some(r) = left.pop() {
        match r {
            Ref::Input(k) => *loads.get_mut(usize::from(k))? = true,
            Ref::Result(k) if reduced.contains(&k.into()) => {}
            Ref::Result(k) => {
                let Made::Step(step) = &plan.values.get(usize::from(k))?.made else { return None };
                if !std::mem::replace(steps.get_mut(usize::from(k))?, true) {
                    left.extend(&step.args);
                }
            }
            Ref::Constant(..) => {}
            Ref::Coordinate(_) | Ref::Linear => return None,
        }
    }
    let listed = |flags: &[bool]| -> Vec<usize> { (0..flags.len()).filter(|&k| flags[k]).collect() };
    Some((listed(&loads), listed(&steps)))
}

/// What computes some values from loads and from what was reduced.
fn side(plan: &Plan, values: &[Ref], reduced: &[usize]) -> Option<Side> {
    let (loads, steps) = reached(plan, values, reduced)?;
    let place = |list: &[usize], k: u16| list.iter().position(|&other| other == usize::from(k)).map(|at| at as u16);
    let moved = |r: Ref| match r {
        Ref::Input(k) => place(&loads, k.into()).map(|at| Ref::Input(at as u8 + reduced.len() as u8)),
        Ref::Result(k) => {
            place(reduced, k).map(|at| Ref::Input(at as u8)).or_else(|| place(&steps, k).map(Ref::Result))
        }
        Ref::Constant(..) | Ref::Coordinate(_) | Ref::Linear => Some(r),
    };
    let step = |&k: &usize| match &plan.values.get(k)?.made {
        Made::Step(step) => {
            Some(Step { args: step.args.iter().map(|&r| moved(r)).collect::<Option<_>>()?, ..step.clone() })
        }
        Made::Reduction { .. } => None,
    };
    let results = values.iter().map(|&r| moved(r)).collect::<Option<_>>()?;
    Some(Side { steps: steps.iter().map(step).collect::<Option<_>>()?, loads, results })
}
