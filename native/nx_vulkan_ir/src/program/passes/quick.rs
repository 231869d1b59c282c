//! Which kernels of small ops compile soon, of which a long program has many.

use smallvec::SmallVec;

use super::target::Quick;
use crate::DType;
use crate::program::Elementwise;
use crate::program::fused::{Computed, Made, Plan};

/// Instructions that a function counts.
const FUNCTION: u64 = 24;

/// What a costly step counts: ops that are short otherwise have several words here.
pub fn cost(op: Elementwise) -> u64 {
    match op.instructions() {
        0 | 1 => FUNCTION,
        more => more.min(FUNCTION),
    }
}

/// Whether a kernel of small ops compiles soon: as much as steps may take is done once more for a row, whose code stands
/// once.
pub fn compiles_soon(plan: &Plan, quick: &Quick) -> bool {
    if plan.elements() > quick.elements {
        return true;
    }
    let of_value = |value: &Computed| match &value.made {
        Made::Step(step) => {
            let args: SmallVec<[DType; 3]> = step.args.iter().map(|&r| plan.dtype(r)).collect();
            if step.op.is_cheap(&args, step.out) { 0 } else { cost(step.op) }
        }
        Made::Reduction { .. } => 0,
    };
    let sum = |of_rows: bool| plan.values.iter().filter(|value| value.row == of_rows).map(of_value).sum::<u64>();
    sum(false) <= quick.instructions
        && sum(true) <= quick.instructions
        && plan.loads.iter().filter(|load| load.bounded).count() <= quick.parts
}
