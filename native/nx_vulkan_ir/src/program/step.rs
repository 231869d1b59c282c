//! Elementwise steps of kernels: what fused ops, prologues and epilogues are made of.

use smallvec::SmallVec;

use super::Elementwise;
use crate::DType;

/// Where a value of the kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ref {
    /// An operand.
    Input(u8),
    /// The result of an earlier step.
    Result(u16),
    /// Index along an axis of the iteration space, a u32.
    Coordinate(u8),
    /// Row-major index, a u32.
    Linear,
    /// A number, by the bits that it has in the compute type of the dtype; not for c128.
    Constant(DType, u64),
}

/// One elementwise op of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// What is computed.
    pub op: Elementwise,
    /// Of what.
    pub args: SmallVec<[Ref; 3]>,
    /// The type of its result, to which it is rounded.
    pub out: DType,
}

/// Elementwise steps on each element of an operand when it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Prologue {
    /// Input 0 is the element. Positions are not known.
    pub steps: Box<[Step]>,
    /// What takes the place of the element.
    pub result: Ref,
}

impl Prologue {
    /// The type of what takes the place of the element, if it is not the element.
    pub fn dtype(&self) -> Option<DType> {
        let Ref::Result(k) = self.result else { return None };
        self.steps.get(usize::from(k)).map(|step| step.out)
    }
}

/// Cheap steps of an epilogue that are repeated for each of an invocation's results; what is more stands in a loop.
const MAX_REPEATED_STEPS: usize = 2;

/// Whether the steps of an epilogue are so much code that it stands once, in a loop over an invocation's results.
pub fn stands_in_loop(steps: &[Step]) -> bool {
    steps.len() > MAX_REPEATED_STEPS || has_costly(steps)
}

/// Whether a step is more than a few instructions.
pub fn has_costly(steps: &[Step]) -> bool {
    !steps.iter().all(|s| s.op.is_cheap(&[s.out], s.out))
}
