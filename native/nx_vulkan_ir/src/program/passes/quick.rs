//! Which kernels of small ops compile soon, of which a long program has many.

use smallvec::SmallVec;

use crate::DType;
use crate::program::Elementwise;
use crate::program::fused::{Computed, Made, Plan};

/// Elements up to which an op is small.
pub const MAX_QUICK: u64 = 1 << 14;

/// What costly steps of a kernel of a long program take, in instructions: two functions, or a quotient and a root for
/// each moment of Adam; as much again is done once for a row, whose code stands once. And parts that it puts into
/// something larger. lavapipe's compiler takes longer than in proportion: with four functions the gradient of 200 steps
/// of a sine compiles for 4.1 s, with two for 1.9, with as many as fit for 96; 0.2 s for four parts, 6 s for 23.
pub const MAX_COSTLY: u64 = 2 * FUNCTION;
const FUNCTION: u64 = 24;
const MAX_BOUNDED: usize = 4;

/// What a costly step counts: ops that are short otherwise have several words here.
pub fn cost(op: Elementwise) -> u64 {
    match op.instructions() {
        0 | 1 => FUNCTION,
        more => more.min(FUNCTION),
    }
}

/// Whether a kernel of small ops compiles soon.
pub fn compiles_soon(plan: &Plan) -> bool {
    if plan.elements() > MAX_QUICK {
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
    sum(false) <= MAX_COSTLY
        && sum(true) <= MAX_COSTLY
        && plan.loads.iter().filter(|load| load.bounded).count() <= MAX_BOUNDED
}
