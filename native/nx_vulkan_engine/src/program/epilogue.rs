//! Bodies of fused ops that begin with a product, dot or conv, whose results take elementwise steps before they are stored.

use smallvec::SmallVec;

use super::fused::{Load, Made, Plan};
use super::{Op, Operand, Program};
use crate::DType;
use crate::codegen::elementwise::{Ref, Step};

/// Operands of the steps beside the product: each takes an address and strides among the kernel's parameters.
const MAX_LOADS: usize = 8;

/// What follows the product.
#[derive(Debug, Clone, PartialEq)]
pub struct Epilogue {
    /// Operands of the body, seen with the shape of the product.
    pub loads: Vec<Load>,
    /// Input 0 is the product, those after it are `loads`.
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
    pub dtype: DType,
}

pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Dot { .. } | Op::Conv(_))
}

/// The steps of a body that begins with a product which nothing else reads; `None` for other bodies.
pub fn of(body: &Program) -> Option<Epilogue> {
    let (product, rest) = body.instructions.split_first()?;
    let ([ty], [output]) = (product.outs.as_slice(), body.outputs.as_slice()) else { return None };
    if !is_product(&product.op) {
        return None;
    }
    // The rest as a body of its own, with the product as its last operand.
    let own = body.inputs.len() as u32;
    let moved = |o: &Operand| match *o {
        Operand::Result(0) => Operand::Input(own),
        Operand::Result(r) => Operand::Result(r - 1),
        input => input,
    };
    let mut after = Program { inputs: body.inputs.clone(), ..Program::default() };
    after.inputs.push(ty.clone());
    after.outputs.push(moved(output));
    for instruction in rest {
        let mut instruction = instruction.clone();
        instruction.operands.iter_mut().for_each(|o| *o = moved(o));
        after.instructions.push(instruction);
    }
    let plan = Plan::of(&after).ok()?;
    let [store] = plan.stores.as_slice() else { return None };
    let of_product: Vec<usize> = (0..plan.loads.len()).filter(|&k| plan.loads[k].operand == own).collect();
    let [place] = *of_product else { return None };
    if plan.space != ty.shape || store.ty.shape != ty.shape || !plan.loads[place].views.is_empty() {
        return None;
    }
    let known = |r: Ref| match r {
        Ref::Coordinate(_) | Ref::Linear => None,
        Ref::Input(k) if usize::from(k) == place => Some(Ref::Input(0)),
        Ref::Input(k) if usize::from(k) < place => Some(Ref::Input(k + 1)),
        other => Some(other),
    };
    let mut steps = SmallVec::new();
    for value in &plan.values {
        let Made::Step(step) = &value.made else { return None };
        let args = step.args.iter().map(|&r| known(r)).collect::<Option<_>>()?;
        steps.push(Step { args, ..step.clone() });
    }
    let (result, dtype) = (known(store.value)?, store.ty.dtype);
    let mut loads = plan.loads;
    loads.remove(place);
    (loads.len() <= MAX_LOADS).then_some(Epilogue { loads, steps, result, dtype })
}
