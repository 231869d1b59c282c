//! Fused ops that compute what they put into something larger.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::SmallVec;

use super::call::{Call, loaded};
use super::copies::copy;
use crate::kernels::Loaded;
use crate::kernels::map::{self, Operand};
use crate::program::fused::Made;
use crate::program::put::Put;
use crate::program::{Binary, Elementwise};
use crate::shape::Strides;
use crate::{DType, Result, Tensor, View};

/// Runs it in one kernel beside a copy of what it is put into, which is none where both have one memory. `None` where
/// one launch can't.
pub fn put(call: &Call<'_>, found: &Put) -> Result<Option<Tensor>> {
    let (engine, plan) = (call.engine, &found.plan);
    let target = call.operand(found.target as usize)?;
    let result = Tensor::uninitialized(engine, call.out)?;
    let loads = plan.loads.iter().map(|load| loaded(call, load)).collect::<Result<Vec<Loaded>>>()?;
    let lying = View::contiguous(found.ty.dtype, &found.ty.shape);
    let to = found.part().views(&lying, &result.view).and_then(|(_, to)| to.reshape(&plan.space));
    let (Some(to), [store]) = (to, &plan.stores[..]) else { return Ok(None) };
    let reach = engine.reach();
    let views: Vec<&View> = loads.iter().map(|load| &*load.tensor.view).chain([&*result.view]).collect();
    if !loads.iter().all(|load| load.is_bounded_within(reach)) || reach.is_far(&views)? {
        return Ok(None);
    }
    let mut inputs: SmallVec<[Operand<'_>; 4]> = loads.iter().map(Operand::loaded).collect();
    let mut steps: SmallVec<[Step; 1]> = SmallVec::new();
    for value in &plan.values {
        match &value.made {
            Made::Step(step) => steps.push(step.clone()),
            Made::Reduction { .. } => return Ok(None),
        }
    }
    // Where it begins, which is clamped so that all of it fits.
    let mut shift = Ref::Constant(DType::U32, 0);
    for (line, operand, room) in found.starts() {
        let (Ok(room), start) = (i32::try_from(room), call.operand(operand as usize)?) else { return Ok(None) };
        let (dtype, wide) = (start.view.dtype, counting(start.view.dtype));
        let strides: Strides = SmallVec::from_elem(0, plan.space.len());
        let element = Element::Typed(dtype);
        inputs.push(Operand { strides, ..Operand::new(&start.buffer, &start.view, element) });
        let mut place = Ref::Input(inputs.len() as u8 - 1);
        let binary = Elementwise::Binary;
        let number = |of: i32| Ref::Constant(wide, of as u64);
        let stride = Ref::Constant(DType::U32, result.view.strides[line.along] as u64);
        let clamped: [(Elementwise, Option<Ref>, DType); 5] = [
            (Elementwise::AsType, None, wide),
            (binary(Binary::Max), Some(number(0)), wide),
            (binary(Binary::Min), Some(number(room)), wide),
            (Elementwise::AsType, None, DType::U32),
            (binary(Binary::Multiply), Some(stride), DType::U32),
        ];
        for (op, other, out) in clamped.into_iter().chain([(binary(Binary::Add), Some(shift), DType::U32)]) {
            steps.push(Step { op, args: [place].into_iter().chain(other).collect(), out });
            place = Ref::Result(steps.len() as u16 - 1);
        }
        shift = place;
    }
    // What is moved as it is keeps its bits.
    let mut element = Element::Typed(found.ty.dtype);
    if plan.values.is_empty() && matches!(store.value, Ref::Input(_)) {
        element = Element::raw(found.ty.dtype);
        inputs.iter_mut().take(loads.len()).for_each(|input| input.element = element);
    }
    copy(engine, target, &result, call.compile)?;
    let output = Operand::new(&result.buffer, &to, element);
    map::put(engine, &plan.space, &inputs, steps, (store.value, output), shift, call.compile)?;
    Ok(Some(result))
}

/// The type in which numbers of an integer type are compared with those of 31 bits.
fn counting(dtype: DType) -> DType {
    match (dtype.size_bytes(), dtype.is_signed()) {
        (8, true) => DType::S64,
        (8, false) => DType::U64,
        (_, true) => DType::S32,
        (_, false) => DType::U32,
    }
}
