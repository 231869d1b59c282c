//! Fused ops: one kernel for a whole body, or the body's ops one by one where sizes or layouts need that.

use nx_vulkan_ir::program::passes::{Saving, Target};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::call::{Call, Results, loaded};
use super::program::run_instructions;
use super::{attention, epilogue, halves, put};
use crate::kernels::Loaded;
use crate::kernels::map::{Operand, Shapes, map, map_from};
use crate::kernels::reduce::{Reduce, Source, Target as Place, produce, reduce_from};
use crate::kernels::rows::rows;
use crate::program::attention::Attention;
use crate::program::attention_gradient::AttentionGradient;
use crate::program::epilogue::Factor;
use crate::program::fused::{Computed, Made, Plan};
use crate::program::pair::Pair;
use crate::program::put::Put;
use crate::program::reductions::Reductions;
use crate::program::{Program, passes};
use crate::shape::{Dims, contiguous_strides};
use crate::{Result, Tensor, View};

/// Runs the body of a fused op.
pub fn fused(call: &Call<'_>, body: &Program) -> Result<Results> {
    let programs = &call.engine.model().programs;
    let live_words = programs.live_words;
    if let Some(found) = Attention::of(body, live_words) {
        return match attention::attention(call, &found)? {
            Some(result) => Ok(smallvec![result]),
            None => one_by_one(call, &passes::composed(body, &call.engine.target())?),
        };
    }
    if let Some(found) = AttentionGradient::of(body, live_words) {
        return match attention::gradient(call, &found, &body.output_types())? {
            Some(results) => Ok(results),
            None => one_by_one(call, &passes::composed(body, &call.engine.target())?),
        };
    }
    if let Some(found) = Pair::of(body, live_words) {
        return match epilogue::pair(call, body, found)? {
            Some(result) => Ok(smallvec![result]),
            None => one_by_one(call, &passes::composed(body, &call.engine.target())?),
        };
    }
    if let Some(found) = crate::program::epilogue::of(body, programs.joins.unit_work, live_words) {
        let is_derived = found.factors.iter().any(|factor| matches!(factor, Factor::Derived(_)));
        let is_beyond = halves::reaches_beyond(call.engine, call.operands, std::slice::from_ref(call.out));
        let result = if is_beyond { None } else { epilogue::product(call, body, found)? };
        return match result {
            Some(result) => Ok(smallvec![result]),
            None if is_derived => one_by_one(call, &passes::composed(body, &call.engine.target())?),
            None => one_by_one(call, body),
        };
    }
    if let Some(found) = Put::of(body, live_words) {
        return match put::put(call, &found)? {
            Some(result) => Ok(smallvec![result]),
            None => one_by_one(call, body),
        };
    }
    let Ok(plan) = Plan::of(body, live_words) else { return one_by_one(call, body) };
    let loads = plan.loads.iter().map(|load| loaded(call, load)).collect::<Result<Vec<_>>>()?;
    let results = plan.stores.iter().map(|s| Tensor::uninitialized(call.engine, &s.ty)).collect::<Result<Results>>()?;
    let done = match plan.reductions().next() {
        None if !loads.iter().all(|load| load.is_bounded_within(call.engine.reach())) => None,
        None => mapped(call, &plan, &loads, &results).map(Some)?,
        Some(_) => {
            let what = Reductions::of(&plan, programs.repeats).filter(|reductions| streams(call, &plan, reductions));
            let done = reduced(call, &plan, what.as_ref(), &loads, &results)?;
            if done.is_none() && what.is_some_and(|what| !what.is_alone()) {
                return one_by_one(call, &passes::apart(body, &call.engine.target())?);
            }
            done
        }
    };
    match done {
        Some(()) => Ok(results),
        None if plan.axes.is_empty() => one_by_one(call, body),
        // What one kernel would not store is stored only where a reduction reads it, a part at a time where memory has
        // no room for it.
        None => {
            let target = call.engine.target();
            let is_too_large = target.is_too_large(&plan);
            if is_too_large && reduced_by_parts(call, &plan, &loads, &results)? {
                return Ok(results);
            }
            if is_too_large && plan.by_parts().is_none() {
                let apart = passes::apart(body, &target)?;
                if apart.instructions.len() > 1 {
                    return one_by_one(call, &apart);
                }
            }
            let saving = Saving::Reductions;
            one_by_one(call, &passes::fuse_again(body, &Target { saving, ..target })?)
        }
    }
}

fn one_by_one(call: &Call<'_>, body: &Program) -> Result<Results> {
    Ok(run_instructions(call.engine, body, call.operands, call.compile)?.into_iter().collect())
}

/// Runs a plan that reduces rows: by `what` it reduces, or row by row. Where no launch reaches all elements, halves of
/// the rows, as reductions of what lies in memory do. `None` where one kernel can't do it.
fn reduced(
    call: &Call<'_>,
    plan: &Plan,
    what: Option<&Reductions>,
    loads: &[Loaded],
    results: &[Tensor],
) -> Result<Option<()>> {
    let reach = call.engine.reach();
    let is_beyond = plan.elements() > reach.far() || !loads.iter().all(|load| load.is_indexed(reach));
    if is_beyond && let Some(axis) = cut_axis(plan, loads) {
        let half = plan.space[axis] / 2;
        for (start, size) in [(0, half), (half, plan.space[axis] - half)] {
            let mut part = plan.clone();
            part.space[axis] = size;
            let loads: Vec<Loaded> = loads.iter().map(|load| cut(load, axis, start, size)).collect();
            let mut parts = Results::new();
            for (store, whole) in plan.stores.iter().zip(results) {
                let inner = (axis + 1..plan.space.len()).filter(|axis| !(store.row && plan.axes.contains(axis)));
                let inner: u64 = inner.map(|axis| plan.space[axis]).product();
                let mut view = View::contiguous(whole.view.dtype, &[size * inner]);
                view.offset = whole.view.offset + start * inner;
                parts.push(whole.with_view(view));
            }
            if reduced(call, &part, what, &loads, &parts)?.is_none() {
                return Ok(None);
            }
        }
        return Ok(Some(()));
    }
    match what {
        Some(what) => produce::reduce(call.engine, plan, what, loads, results, call.compile),
        None => rows(call.engine, plan, loads, results, call.compile),
    }
}

/// The outermost axis of several rows, where halves of them may be computed apart: nothing is made of where a row is,
/// and what is stored of either half lies together.
fn cut_axis(plan: &Plan, loads: &[Loaded]) -> Option<usize> {
    let axis = (0..plan.space.len()).find(|axis| !plan.axes.contains(axis) && plan.space[*axis] > 1)?;
    let is_of_rows = |r: &Ref| matches!(r, Ref::Linear) || matches!(r, Ref::Coordinate(k) if usize::from(*k) == axis);
    let counts = |value: &Computed| match &value.made {
        Made::Step(step) => step.args.iter().any(is_of_rows),
        Made::Reduction { of, .. } => is_of_rows(of),
    };
    let is_outermost = plan.space[..axis].iter().all(|&size| size == 1);
    let is_bounded = |load: &Loaded| load.bounds.is_some() && load.tensor.view.strides[axis] != 0;
    let fits = plan.stores.iter().all(|store| (store.row || is_outermost) && !is_of_rows(&store.value));
    (fits && !plan.values.iter().any(counts) && !loads.iter().any(is_bounded)).then_some(axis)
}

/// The elements of a part of an axis.
fn cut(load: &Loaded, axis: usize, start: u64, size: u64) -> Loaded {
    let mut view = View::clone(&load.tensor.view);
    view.shape[axis] = size;
    view.offset = view.offset.wrapping_add_signed(view.strides[axis] * start as i64);
    Loaded { tensor: load.tensor.with_view(view), bounds: load.bounds }
}

/// Whether reductions take a pass over memory of chunks of rows, and not whole rows in registers: workgroups of a GPU
/// finish those sooner where several are reduced or steps follow.
fn streams(call: &Call<'_>, plan: &Plan, what: &Reductions) -> bool {
    let model = call.engine.model();
    what.is_alone() || model.reductions.streams || !model.programs.rows.fit(plan)
}

fn mapped(call: &Call<'_>, plan: &Plan, loads: &[Loaded], results: &[Tensor]) -> Result<()> {
    let inputs: Vec<Operand<'_>> = loads.iter().map(Operand::loaded).collect();
    let outputs: Vec<(Ref, Operand<'_>)> = plan
        .stores
        .iter()
        .zip(results)
        .map(|(store, t)| {
            let strides = contiguous_strides(&plan.space);
            let element = Element::Typed(t.view.dtype);
            (store.value, Operand { buffer: &t.buffer, element, strides, offset_bytes: 0, bounds: None })
        })
        .collect();
    let steps: SmallVec<[Step; 1]> = plan
        .values
        .iter()
        .map(|v| match &v.made {
            Made::Step(step) => Ok(step.clone()),
            Made::Reduction { .. } => Err(call.invalid("reduces".into())),
        })
        .collect::<Result<_>>()?;
    map(call.engine, &plan.space, &inputs, steps, &outputs, Shapes::Own, call.compile)
}

/// Runs a plan of one reduction that nothing follows by parts of what it reduces, as they would be reduced in memory.
/// Whether it is such a plan.
fn reduced_by_parts(call: &Call<'_>, plan: &Plan, loads: &[Loaded], results: &[Tensor]) -> Result<bool> {
    let (Some(of), Some(value), [result]) = (plan.by_parts(), plan.values.last(), results) else { return Ok(false) };
    let Made::Reduction { reduction, tie_high, out, .. } = value.made else { return Ok(false) };
    let (dtype, reach) = (plan.dtype(of), call.engine.reach());
    if !loads.iter().all(|load| load.is_bounded_within(reach)) {
        return Ok(false);
    }
    let inputs: Vec<Operand<'_>> = loads.iter().map(Operand::loaded).collect();
    let steps = plan.values.iter().filter_map(|value| match &value.made {
        Made::Step(step) => Some(step.clone()),
        Made::Reduction { .. } => None,
    });
    let steps: Vec<Step> = steps.collect();
    let whole = View::contiguous(dtype, &plan.space);
    let make = |part: &View| {
        let mut before = part.offset;
        let starts = whole.strides.iter().map(|&stride| {
            let start = before / stride.unsigned_abs();
            before %= stride.unsigned_abs();
            start
        });
        let starts: Dims = starts.collect();
        let made = Tensor::uninitialized(call.engine, &part.ty())?;
        map_from(call.engine, [&plan.space, &starts], &inputs, &steps, (of, &made), call.compile)?;
        Ok(made)
    };
    // An eighth of what memory holds, if that is what sets the limit.
    let elements = call.engine.largest_bytes() / dtype.size_bytes();
    let most = if plan.elements() > elements { (elements / 8).max(1) } else { plan.elements() };
    let what = Reduce { reduction, tie_high, axes: &plan.axes, out };
    let target = Place { buffer: &result.buffer, offset_bytes: 0 };
    reduce_from(call.engine, Source::Made { make: &make, most }, &whole, what, target, call.compile)?;
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use crate::deferred::defer;
    use crate::eager::{Compile, run, run_program};
    use crate::kernels::Reach;
    use crate::options::Options;
    use crate::program::{Builder, Op, Operand, Reduction};
    use crate::{DType, Engine, Error, Executable, Tensor, Type};

    const MIB: u64 = 1 << 20;

    fn wide(b: &Builder) -> Operand {
        b.iota(DType::S64, &[MIB], None)
    }

    type Make = fn(&Builder) -> Operand;

    /// Results of which 1 MiB is stored at most, of what would take 8 MiB and more.
    const NARROW: [(&str, Make); 11] = [
        ("cast", |b| b.as_type(wide(b), DType::U8)),
        ("steps", |b| b.as_type(b.remainder(b.multiply(wide(b), 3.0), 251.0), DType::U8)),
        ("turned", |b| {
            let counted = b.iota(DType::S64, &[1000, 1024], Some(0));
            b.as_type(b.transpose(b.add(counted, b.iota(DType::S64, &[1000, 1024], None)), &[1, 0]), DType::U8)
        }),
        ("eye", |b| b.as_type(b.eye(DType::F64, &[1000, 1024]), DType::U8)),
        ("parts", |b| {
            let few = b.as_type(b.iota(DType::U8, &[300], None), DType::S64);
            b.as_type(b.concatenate(&[few, b.iota(DType::S64, &[900_000], None), few], 0), DType::U8)
        }),
        ("sum", |b| b.sum(b.as_type(wide(b), DType::U8), &[0])),
        ("sums", |b| b.sum(b.as_type(b.reshape(wide(b), &[1 << 18, 4]), DType::U8), &[1])),
        ("sum of wide steps", |b| b.sum(b.multiply(wide(b), 3.0), &[0])),
        ("count", |b| {
            let is = |by, rest| b.equal(b.remainder(wide(b), by), rest);
            b.sum(b.as_type(b.logical_and(is(3.0, 1.0), is(5.0, 2.0)), DType::S64), &[0])
        }),
        ("mean", |b| b.mean(b.multiply(b.as_type(wide(b), DType::F64), 0.7), &[0])),
        ("centred", |b| {
            let x = b.as_type(b.reshape(wide(b), &[1 << 18, 4]), DType::U8);
            let most = b.reduce_max(x, &[1]);
            b.subtract(x, b.reshape(most, &[1 << 18, 1]))
        }),
    ];

    fn engine(memory_limit_bytes: Option<u64>, reach: Reach) -> Arc<Engine> {
        Engine::open_with(&Options { memory_limit_bytes, reach, ..Options::from_env() }).unwrap()
    }

    #[test]
    fn what_no_kernel_stores_need_not_fit() {
        let free = engine(None, Reach::default());
        // As one launch, and as launches that reach an eighth of a MiB.
        let reaches = [Reach::of_bytes(16 * MIB), Reach::of_bytes(MIB / 8)];
        let limited = reaches.map(|reach| engine(Some(4 * MIB), reach));
        for (name, make) in NARROW {
            let program = || {
                let b = Builder::new();
                let out = make(&b);
                b.finish(&[out]).unwrap()
            };
            let expected = run_program(&free, &program(), &[]).unwrap()[0].to_nx_bytes(&free, None).unwrap();
            for (engine, reach) in limited.iter().zip(reaches) {
                // A budget that allows all of it finds the same way.
                let budgeted = Executable::compile_within(engine, program(), &[], 1 << 40);
                for executable in [Executable::compile(engine, program()), budgeted] {
                    let executable = executable.map_err(|e| format!("{name}: {e}")).unwrap();
                    let got = executable.run(&[], Compile::Allowed).unwrap()[0].to_nx_bytes(engine, None).unwrap();
                    assert!(got == expected, "{name} in launches of {reach:?}");
                }
            }
        }
    }

    /// Rows of which no launch reaches all are reduced by halves, as those in memory are, and nothing is stored first.
    #[test]
    fn rows_that_no_launch_reaches_are_reduced_by_halves() {
        type Of = fn(&Builder, Operand, Operand) -> Operand;
        let squares: Of = |b, x, y| {
            let difference = b.subtract(x, y);
            b.multiply(difference, difference)
        };
        let cases: [(&str, Of); 6] = [
            ("least of rows", |b, s, _| b.reduce(Reduction::Min, s, &[1], false)),
            ("sums of rows", |b, s, _| b.multiply(b.sum(s, &[1]), 0.5)),
            ("places", |b, s, _| b.reduce(Reduction::ArgMin, s, &[1], false)),
            ("sums of columns", |b, s, _| b.sum(s, &[0])),
            ("shares", |b, s, _| b.divide(s, b.reduce(Reduction::Sum, s, &[1], true))),
            ("places of rows", |b, s, y| {
                let place = b.as_type(b.iota(DType::S32, &[700, 1024], Some(0)), DType::F32);
                b.sum(b.multiply(s, b.add(place, y)), &[1])
            }),
        ];
        let (free, limited) = (engine(None, Reach::default()), engine(None, Reach::of_bytes(MIB / 8)));
        for (name, of) in cases {
            let b = Builder::new();
            let (x, y) = (b.input(DType::F32, &[700, 1024]), b.input(DType::F32, &[1024]));
            let out = of(&b, squares(&b, x, y), y);
            let program = b.finish(&[out]).unwrap();
            let run = |engine: &Arc<Engine>| {
                let executable = Executable::compile(engine, program.clone()).unwrap();
                let inputs = program.inputs.iter().map(|ty| {
                    let values: Vec<u8> =
                        (0..ty.elements()).flat_map(|i| ((i * 37 % 1013) as f32 / 7.0).to_ne_bytes()).collect();
                    Tensor::from_nx_bytes(engine, ty, &values).unwrap()
                });
                let inputs: Vec<Tensor> = inputs.collect();
                let got = executable.run(&inputs, Compile::Allowed).unwrap()[0].to_nx_bytes(engine, None).unwrap();
                (got, executable.summary().arena_bytes)
            };
            let ((expected, _), (got, stored)) = (run(&free), run(&limited));
            assert!(got == expected, "{name}");
            // Places of rows are counted over all of them, and the elements of a column lie too far apart.
            assert!(stored < MIB || ["places of rows", "sums of columns"].contains(&name), "{name}: {stored}");
        }
    }

    #[test]
    fn what_no_deferred_op_stores_need_not_fit() {
        let engine = engine(Some(4 * MIB), Reach::default());
        let counted = defer(&engine, Op::Iota { axis: None }, smallvec![], smallvec![Type::new(DType::S64, &[MIB])]);
        // As whoever makes a result that is large.
        let iota = counted.results[0].tensor(&engine, Executable::compile).map(|_| ()).unwrap_err();
        assert!(matches!(iota.cause(), Error::TooLarge { .. }), "{iota:?}");
        let cast =
            defer(&engine, Op::AsType, smallvec![counted.results[0].clone()], smallvec![Type::new(DType::U8, &[MIB])]);
        let got = cast.results[0].tensor(&engine, Executable::compile).unwrap().to_nx_bytes(&engine, None).unwrap();
        assert!(got.iter().enumerate().all(|(i, &byte)| byte == i as u8));
    }

    #[test]
    fn indices_are_counted_over_several_launches() {
        let (free, limited) = (engine(None, Reach::default()), engine(None, Reach::of_bytes(4000)));
        for dtype in [DType::U8, DType::S64, DType::F32, DType::Bf16] {
            for (op, shape) in [
                (Op::Iota { axis: None }, &[5000u64][..]),
                (Op::Iota { axis: Some(1) }, &[3, 5000]),
                (Op::Iota { axis: None }, &[3, 50, 41]),
                (Op::Eye, &[71, 65]),
            ] {
                let ty = Type::new(dtype, shape);
                let bits = |engine: &Arc<Engine>| {
                    let counted: Tensor = run(engine, &op, &[], &ty, Compile::Allowed).unwrap();
                    counted.to_nx_bytes(engine, None).unwrap()
                };
                assert_eq!(bits(&limited), bits(&free), "{op:?} {ty}");
            }
        }
    }
}
