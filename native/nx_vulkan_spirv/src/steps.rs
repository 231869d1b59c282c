//! Elementwise steps as code: values of one element, and of one element each of the vectors of an invocation.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{DType, Error, Result};
use rspirv::spirv::Word;
use smallvec::SmallVec;

use super::access::{self, Element};
use super::link::Code;
use super::params::Param;
use super::scalar::{self, Value};

/// The results of steps on values.
pub fn run_steps(
    code: &mut Code<'_, '_>,
    steps: &[Step],
    inputs: &[Value],
    linear: Word,
    coordinates: &[Word],
) -> Result<SmallVec<[Value; 4]>> {
    let mut results: SmallVec<[Value; 4]> = SmallVec::new();
    for step in steps {
        let find = |&r: &Ref| find(code, r, inputs, &results, linear, coordinates);
        let args: SmallVec<[Value; 3]> = step.args.iter().map(find).collect::<Result<_>>()?;
        let id = scalar::emit(code, step.op, &args, step.out)?;
        results.push(Value { id, dtype: step.out });
    }
    Ok(results)
}

/// One result of steps on values that know no positions.
pub fn emit_steps(code: &mut Code<'_, '_>, steps: &[Step], result: Ref, inputs: &[Value]) -> Result<Value> {
    let zero = code.linker.const_u32(0);
    let results = run_steps(code, steps, inputs, zero, &[])?;
    find(code, result, inputs, &results, zero, &[])
}

/// Raw bits count as unsigned numbers; nothing computes with them.
pub fn dtype_of(element: Element) -> DType {
    match element {
        Element::Typed(dtype) => dtype,
        Element::Raw(_) => DType::U32,
    }
}

/// What a reference of a step stands for.
pub fn find(
    code: &mut Code<'_, '_>,
    from: Ref,
    inputs: &[Value],
    results: &[Value],
    linear: Word,
    coordinates: &[Word],
) -> Result<Value> {
    let found = match from {
        Ref::Input(k) => inputs.get(k as usize).copied(),
        Ref::Result(k) => results.get(k as usize).copied(),
        Ref::Coordinate(k) => coordinates.get(k as usize).map(|&id| Value { id, dtype: DType::U32 }),
        Ref::Linear => Some(Value { id: linear, dtype: DType::U32 }),
        Ref::Constant(dtype, bits) => access::exact_constant(code, dtype.ctype(), bits)?.map(|id| Value { id, dtype }),
    };
    found.ok_or_else(|| Error::InvalidProgram { op: "kernel".to_string(), reason: format!("{from:?} does not exist") })
}

/// The parameters that bound input `k`, behind `others` of the launch.
pub fn bounds(others: u8, k: u8) -> [Param; 2] {
    [0, 1].map(|i| Param::Extra(others + 2 * k + i))
}

/// The parameters that are number `j` of a launch with so many inputs, which may have bounds: its lower bits and its
/// upper ones.
pub fn number(inputs: usize, j: usize) -> [Param; 2] {
    [0, 1].map(|i| Param::Extra((2 * (inputs + j) + i) as u8))
}
