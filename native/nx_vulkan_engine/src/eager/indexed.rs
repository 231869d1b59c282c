//! indexed_add and indexed_put.
//!
//! Very few updates: every target row belongs to one invocation, which applies the row's updates one after another.
//! More: the updates are sorted by their targets, and those of a run of equal targets are added one after another, or
//! the last is stored. Many are added up in parts.

use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::generated::LOCAL_SIZE;
use smallvec::SmallVec;

use super::call::Call;
use super::index::{rows, split};
use super::{copies, movement};
use crate::kernels::index::{
    Applied, ScatterSpec, SegmentAddSpec, SegmentPutSpec, SegmentStepsSpec, TargetOrderSpec, TargetSpec, Way, extra,
    owners,
};
use crate::kernels::sort::{Sort, SortKey, sort};
use crate::kernels::{Arguments, KernelSpec, Place, launch};
use crate::program::attribute::Axes;
use crate::shape::{Dims, Strides, elements, gcd};
use crate::{DType, Error, Result, Tensor, Type, View};

/// Updates that fit their tensor.
struct Indexed<'a> {
    call: &'a Call<'a>,
    /// Elements that are added in this type; otherwise they replace.
    add: bool,
    count: u64,
    /// Elements per row.
    inner: u64,
    indices: Tensor,
    /// Of rank 2 or more: updates, then the rows' axes.
    updates: Tensor,
    result: Tensor,
    /// Size and stride of the axes that are addressed.
    components: Vec<(u64, i64)>,
    rest_sizes: Dims,
    rest_strides: Strides,
    /// Kernels reach far.
    far: bool,
}

/// Beyond all targets: no launch reaches more than 2^31 elements.
const OUTSIDE: u32 = u32::MAX - 1;

/// Updates in the order of their targets.
struct Ordered {
    targets: Tensor,
    /// Their places among the updates; if they are `carried`, nothing reads it.
    order: Tensor,
    /// Those that the places are of, or, if they are `carried`, the updates in their new order.
    updates: Tensor,
    carried: bool,
}

/// indexed_add (`add`) and indexed_put: updates apply in their order, so that the last put wins.
pub fn indexed(call: &Call<'_>, axes: &Axes, add: bool) -> Result<Tensor> {
    let indexed = prepared(call, axes, add)?;
    let applied = Applied::of(add, indexed.count, indexed.inner);
    indexed.apply(applied, applied.way(call.engine.model(), indexed.count, indexed.inner))?;
    call.result(indexed.result)
}

/// What an op's operands are updates of.
fn prepared<'a>(call: &'a Call<'_>, axes: &Axes, add: bool) -> Result<Indexed<'a>> {
    let (a, updates) = (call.operand(0)?, &movement::ascending(call, call.operand(2)?)?);
    let result = Tensor::uninitialized(call.engine, call.out)?;
    if a.view.shape != call.out.shape {
        return Err(call.invalid(format!("{:?} does not give a shape of {:?}", a.view.shape, call.out.shape)));
    }
    let parts = split(call, &result.view, axes)?;
    let (count, indices) = rows(call, call.operand(1)?, axes.len())?;
    let inner = elements(&parts.rest_sizes);
    if count.checked_mul(inner) != Some(updates.view.elements()) {
        return Err(call.invalid(format!("{count} index vectors for updates of {:?}", updates.view.shape)));
    }
    let most = call.engine.reach().far();
    if updates.view.elements() > most {
        let size = updates.view.dtype.size_bytes();
        return Err(Error::TooLarge { size_bytes: updates.view.elements() * size, limit_bytes: most * size });
    }
    let (mut rest_sizes, mut rest_strides) = (parts.rest_sizes, parts.rest_strides);
    if rest_sizes.is_empty() {
        rest_sizes.push(1);
        rest_strides.push(0);
    }
    let update_shape: Dims = std::iter::once(count).chain(rest_sizes.iter().copied()).collect();
    let updates = match updates.view.reshape(&update_shape) {
        Some(view) => updates.with_view(view),
        None => {
            let copy = copies::contiguous(call.engine, updates, call.compile)?;
            copy.with_view(View::contiguous(updates.view.dtype, &update_shape))
        }
    };
    // Targets and their order take a word for each update.
    let reach = call.engine.reach();
    let far = reach.is_far(&[&indices.view, &result.view, &updates.view])? || count > reach.near(4);
    let components = parts.components.to_vec();
    Ok(Indexed { call, add, count, inner, indices, updates, result, components, rest_sizes, rest_strides, far })
}

impl Indexed<'_> {
    fn apply(&self, applied: Applied, way: Way) -> Result<()> {
        let ordered = &match way {
            Way::Owned => return self.owned(),
            Way::Compared => self.compared(applied)?,
            Way::Sorted => self.sorted(applied)?,
        };
        match applied {
            Applied::Last => self.put_last(ordered),
            Applied::Steps => self.add_steps(ordered),
            Applied::Sums => self.add_runs(ordered),
        }
    }

    fn element(&self, tensor: &Tensor) -> Element {
        let moved = !self.add && self.updates.view.dtype == self.call.out.dtype;
        if moved { Element::raw(tensor.view.dtype) } else { Element::Typed(tensor.view.dtype) }
    }

    fn sizes(&self) -> Dims {
        std::iter::once(self.count).chain(self.rest_sizes.iter().copied()).collect()
    }

    fn out_strides(&self) -> Strides {
        std::iter::once(0).chain(self.rest_strides.iter().copied()).collect()
    }

    /// The tensor before the updates becomes the result. What comes later may still ask for kernels: copying again does
    /// no harm.
    fn start(&self) -> Result<()> {
        copies::copy(self.call.engine, self.call.operand(0)?, &self.result, self.call.compile)
    }

    fn owned(&self) -> Result<()> {
        let engine = self.call.engine;
        let spec = ScatterSpec {
            add: self.add.then_some(self.call.out.dtype),
            element: self.element(&self.result),
            update: self.element(&self.updates),
            index: self.indices.view.dtype,
            components: self.components.len() as u8,
            rest_rank: self.rest_sizes.len() as u8,
        };
        let kernel = engine.kernel_reaching(&spec, self.far, self.call.compile)?;
        self.start()?;
        let owners = owners(engine.model(), self.count, self.inner);
        let out_strides = self.out_strides();
        let places = [
            place(&self.indices, &[]),
            place(&self.indices, &self.indices.view.strides),
            place(&self.updates, &self.updates.view.strides),
            place(&self.result, &out_strides),
        ];
        let extra = extra([self.count as u32, owners as u32], &self.components);
        let arguments = Arguments { count: self.inner as u32, sizes: &self.sizes(), places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 3, (self.inner * owners).div_ceil(u64::from(LOCAL_SIZE)))
    }

    fn compared(&self, applied: Applied) -> Result<Ordered> {
        let (index, components) = (self.indices.view.dtype, self.components.len() as u8);
        let results = [self.words()?, self.words()?];
        let last = u32::MAX >> (u32::BITS - 8 * self.key_bytes(applied));
        self.launch_targets(&TargetOrderSpec { index, components }, last.min(OUTSIDE), &results)?;
        let [targets, order] = results;
        Ok(Ordered { targets, order, updates: self.updates.clone(), carried: false })
    }

    /// Bytes of targets by which updates are ordered. Those out of bounds have all bits set: they come last, or, where
    /// sums have a row with all bits of the bytes set, among its updates, in all ways alike. Sums pass over them.
    fn key_bytes(&self, applied: Applied) -> u32 {
        let rows = self.result.view.elements() / self.unit();
        let largest = if applied == Applied::Sums { rows.saturating_sub(1) } else { rows };
        (u64::BITS - largest.leading_zeros()).div_ceil(8).clamp(1, 4)
    }

    /// Whether each update is one word of memory, so that a sort moves it as easily as its place. What reads them in
    /// their old order reads one word here and one there.
    fn are_words(&self) -> bool {
        let view = &self.updates.view;
        self.inner == 1 && view.dtype.size_bytes() == 4 && view.strides.first() == Some(&1)
    }

    fn sorted(&self, applied: Applied) -> Result<Ordered> {
        let (index, components) = (self.indices.view.dtype, self.components.len() as u8);
        let [targets, by_target, order] = [self.words()?, self.words()?, self.words()?];
        let carried = applied != Applied::Steps && self.are_words();
        self.launch_targets(&TargetSpec { index, components }, OUTSIDE, std::slice::from_ref(&targets))?;
        let what = Sort {
            key: SortKey { dtype: DType::U32, descending: false },
            input: &targets,
            places: carried.then_some(&self.updates),
            rows: 1,
            elements: self.count,
            kept: self.count,
            key_bytes: self.key_bytes(applied).into(),
            values: Some(&by_target),
            ranks: Some(&order),
        };
        sort(self.call.engine, &what, self.call.compile)?;
        let updates = if carried {
            let shape = &self.updates.view.shape;
            order.with_view(View::contiguous(self.updates.view.dtype, shape))
        } else {
            self.updates.clone()
        };
        Ok(Ordered { targets: by_target, order, updates, carried })
    }

    /// Elements between neighbouring targets: sorted targets are counted by them, so that they have fewer bytes.
    fn unit(&self) -> u64 {
        let strides = self.components.iter().map(|&(_, stride)| stride.unsigned_abs());
        strides.fold(0, gcd).max(1)
    }

    /// A word for each update.
    fn words(&self) -> Result<Tensor> {
        Tensor::uninitialized(self.call.engine, &Type::new(DType::U32, &[self.count]))
    }

    /// `last` is the target as which all beyond it are ordered.
    fn launch_targets(&self, spec: &dyn KernelSpec, last: u32, results: &[Tensor]) -> Result<()> {
        let engine = self.call.engine;
        let kernel = engine.kernel_reaching(spec, self.far, self.call.compile)?;
        let indices = place(&self.indices, &self.indices.view.strides);
        let results = results.iter().map(|result| place(result, &[]));
        let places: SmallVec<[Place<'_>; 4]> = [indices, indices].into_iter().chain(results).collect();
        let unit = self.unit() as i64;
        let components: SmallVec<[(u64, i64); 4]> =
            self.components.iter().map(|&(size, stride)| (size, stride / unit)).collect();
        let extra = extra([last, 0], &components);
        let arguments = Arguments { count: self.count as u32, sizes: &[self.count], places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 2, self.count.div_ceil(u64::from(kernel.elements_per_group)))
    }

    fn put_last(&self, ordered: &Ordered) -> Result<()> {
        let spec = SegmentPutSpec {
            element: self.element(&self.result),
            update: self.element(&self.updates),
            carried: ordered.carried,
            rest_rank: self.rest_sizes.len() as u8,
        };
        self.each_update(&spec, ordered)
    }

    fn add_steps(&self, ordered: &Ordered) -> Result<()> {
        let spec = SegmentStepsSpec {
            out: self.call.out.dtype,
            update: self.updates.view.dtype,
            rest_rank: self.rest_sizes.len() as u8,
        };
        self.each_update(&spec, ordered)
    }

    /// An invocation for each element of the sorted updates.
    fn each_update(&self, spec: &dyn KernelSpec, ordered: &Ordered) -> Result<()> {
        let Ordered { targets, order, updates, .. } = ordered;
        let engine = self.call.engine;
        let kernel = engine.kernel_reaching(spec, self.far, self.call.compile)?;
        self.start()?;
        let out_strides = self.out_strides();
        let places = [
            place(targets, &[]),
            place(order, &[]),
            place(updates, &updates.view.strides),
            place(&self.result, &out_strides),
        ];
        let extra = [self.count as u32, self.unit() as u32];
        let arguments = Arguments { count: self.inner as u32, sizes: &self.sizes(), places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 3, (self.count * self.inner).div_ceil(u64::from(LOCAL_SIZE)))
    }

    fn add_runs(&self, ordered: &Ordered) -> Result<()> {
        let Ordered { targets, order, updates, carried } = ordered;
        let engine = self.call.engine;
        let spec = |sums: bool, last: bool| SegmentAddSpec {
            out: self.call.out.dtype,
            update: self.updates.view.dtype,
            sums,
            carried: !sums && *carried,
            last,
            rest_rank: self.rest_sizes.len() as u8,
        };
        let accumulator_bytes = spec(true, true).accumulator_bytes();
        // Sums of the first level are the most.
        let sums_bytes = 2 * self.count.div_ceil(SegmentAddSpec::CHUNK) * self.inner * accumulator_bytes;
        let far = self.far || sums_bytes > engine.reach().near(1);
        let kernel = |spec| engine.kernel_reaching(&spec, far, self.call.compile);
        let levels = [kernel(spec(false, false))?, kernel(spec(true, false))?, kernel(spec(true, true))?];
        self.start()?;
        let (out_strides, sizes) = (self.out_strides(), self.sizes());
        let mut targets = targets.clone();
        let strides = &updates.view.strides;
        let mut updates = (updates.buffer.clone(), updates.address());
        let mut count = self.count;
        for level in 0.. {
            let chunks = count.div_ceil(SegmentAddSpec::CHUNK);
            let next = if chunks > 1 { chunks * 2 } else { 1 };
            let sums = engine.alloc(next * self.inner * accumulator_bytes)?;
            let marks = Tensor::uninitialized(engine, &Type::new(DType::U32, &[next]))?;
            let places = [
                place(&targets, &[]),
                place(order, &[]),
                Place { buffer: &updates.0, address: updates.1, strides, element_bytes: 0 },
                place(&self.result, &out_strides),
                Place { buffer: &sums, address: sums.address(), strides: &[], element_bytes: 0 },
                place(&marks, &[]),
            ];
            let kernel = match (level, chunks) {
                (0, _) => &levels[0],
                (_, 1) => &levels[2],
                _ => &levels[1],
            };
            let extra = [count as u32, chunks as u32, self.unit() as u32];
            let arguments = Arguments { count: self.inner as u32, sizes: &sizes, places: &places, extra: &extra };
            launch(engine, kernel, &arguments, 3, (chunks * self.inner).div_ceil(u64::from(LOCAL_SIZE)))?;
            if level > 0 && chunks == 1 {
                return Ok(());
            }
            (targets, count) = (marks, next);
            updates = (sums.clone(), sums.address());
        }
        Ok(())
    }
}

fn place<'a>(tensor: &'a Tensor, strides: &'a [i64]) -> Place<'a> {
    Place { buffer: &tensor.buffer, address: tensor.address(), strides, element_bytes: 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nx_vulkan_ir::Value;

    use super::*;
    use crate::eager::Compile;
    use crate::program::Op;
    use crate::program::ops::index::{IndexedAdd, IndexedPut};
    use crate::reference::Array;
    use crate::{Engine, Type};

    fn values(dtype: DType, shape: &[u64], of: impl Fn(u64) -> u64) -> Array {
        let ty = Type::new(dtype, shape);
        let value = |i: u64| match dtype.is_integer() {
            true => Value::Int(i128::from(of(i))),
            false => Value::Float(of(i) as f64 / 7.0 - 9.0),
        };
        let values: Vec<Value> = (0..ty.elements()).map(|i| value(i).cast(dtype)).collect();
        Array::new(&ty, values)
    }

    /// Numbers whose sums depend on their order, even where what is rounded off is kept.
    fn cancelling(dtype: DType, shape: &[u64]) -> Array {
        let mut array = values(dtype, shape, |i| (i * 37) % 113);
        if !dtype.is_integer() {
            let number = |i: usize| [1.0, 2f64.powi(100), 2f64.powi(60), -(2f64.powi(100)), -(2f64.powi(60))][i % 5];
            array.values.iter_mut().enumerate().for_each(|(i, value)| *value = Value::Float(number(i / 3)).cast(dtype));
        }
        array
    }

    #[test]
    fn all_ways_have_the_same_bits() {
        let engine = Engine::open(None).unwrap();
        for (k, dtype) in DType::ALL.into_iter().enumerate() {
            for (count, rows, inner) in [
                (1u64, 5u64, 3u64),
                (70, 4, 1),
                (700, 90, 1),
                (700, 90, 5),
                (2300, 1 << 9, 2),
                (3000, 300, 1),
                (4400, 7, 2),
                (4401, 97, 1),
                // Targets out of bounds lie among those of the last row.
                (4400, 256, 1),
                (4400, 256, 2),
            ] {
                // Several for each target, of which some are outside.
                let targets = [|i: u64| i * i, |i| i * 13, |_| 2][k % 3];
                let targets = if rows == 256 { |i: u64| 255 + i % 2 } else { targets };
                let array = |a: Array| Tensor::from_nx_bytes(&engine, &a.ty, &a.to_nx_bytes()).unwrap();
                let operands = [
                    array(values(dtype, &[rows, inner], |i| i % 101)),
                    array(values(DType::U32, &[count, 1], |i| targets(i) % (rows + 1))),
                    array(cancelling(dtype, &[count, inner])),
                ];
                let out = Type::new(dtype, &[rows, inner]);
                for add in [false, true] {
                    let axes = Axes::from_slice(&[0]);
                    let op = if add { Op::from(IndexedAdd { axes }) } else { Op::from(IndexedPut { axes }) };
                    let axes = Axes::from_slice(&[0]);
                    let compile = Compile::Allowed;
                    let call = Call {
                        engine: &engine,
                        op: &op,
                        operands: &operands,
                        out: &out,
                        outs: std::slice::from_ref(&out),
                        compile,
                    };
                    let applied = Applied::of(add, count, inner);
                    let ways = [Way::Owned, Way::Compared, Way::Sorted];
                    let ways = if applied == Applied::Sums { &ways[1..] } else { &ways };
                    let results = ways.iter().map(|&way| {
                        let indexed = prepared(&call, &axes, add).unwrap();
                        indexed.apply(applied, way).unwrap();
                        indexed.result.to_nx_bytes(&engine, None).unwrap()
                    });
                    let results: Vec<_> = results.collect();
                    let are_same = results.iter().all(|result| *result == results[0]);
                    assert!(are_same, "{} of {count} to {rows} x {inner} {dtype}: {ways:?}", op.name());
                }
            }
        }
    }
}
