//! indexed_add and indexed_put.
//!
//! Few updates: every target row belongs to one invocation, which applies the row's updates one after another. Many: the
//! updates are sorted by their targets, and runs of equal targets are added up, or their last update is stored.

use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::generated::LOCAL_SIZE;

use super::index::{rows, split};
use super::{Call, movement};
use crate::kernels::index::{ScatterSpec, SegmentAddSpec, SegmentPutSpec, TargetSpec, extra};
use crate::kernels::sort::{Sort, SortKey, sort};
use crate::kernels::{Arguments, KernelSpec, Place, launch};
use crate::program::op::Axes;
use crate::shape::{Dims, Strides, elements};
use crate::{DType, Error, Result, Tensor, Type, View};

/// Invocations that share the rows of a scatter when rows are too short to fill the device.
const OWNERS: u64 = 1024;

/// Updates from which on sorting them costs less than reading all their indices in every invocation.
const SORTED_FROM: u64 = 4096;

/// Elements of a row that fill a device without sharing the updates.
const WIDE_ROW: u64 = 1 << 16;

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

/// indexed_add (`add`) and indexed_put: updates apply in their order, so that the last put wins.
pub fn indexed(call: &Call<'_>, axes: &Axes, add: bool) -> Result<Tensor> {
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
            let copy = movement::contiguous(call.engine, updates, call.compile)?;
            copy.with_view(View::contiguous(updates.view.dtype, &update_shape))
        }
    };
    // Targets and their order take a word for each update.
    let reach = call.engine.reach();
    let far = reach.is_far(&[&indices.view, &result.view, &updates.view])? || count > reach.near(4);
    let components = parts.components.to_vec();
    let indexed =
        Indexed { call, add, count, inner, indices, updates, result, components, rest_sizes, rest_strides, far };
    if count < SORTED_FROM || inner >= WIDE_ROW {
        indexed.owned()?;
    } else {
        indexed.sorted()?;
    }
    call.result(indexed.result)
}

impl Indexed<'_> {
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
        movement::copy(self.call.engine, self.call.operand(0)?, &self.result, self.call.compile)
    }

    fn owned(&self) -> Result<()> {
        let engine = self.call.engine;
        let spec = KernelSpec::Scatter(ScatterSpec {
            add: self.add.then_some(self.call.out.dtype),
            element: self.element(&self.result),
            update: self.element(&self.updates),
            index: self.indices.view.dtype,
            components: self.components.len() as u8,
            rest_rank: self.rest_sizes.len() as u8,
        });
        let kernel = engine.kernel(&spec.reaching(self.far), self.call.compile)?;
        self.start()?;
        let owners = (OWNERS / self.inner.max(1)).clamp(1, self.count.max(1));
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

    fn sorted(&self) -> Result<()> {
        let engine = self.call.engine;
        let words = |count: u64| Tensor::uninitialized(engine, &Type::new(DType::U32, &[count]));
        let spec = TargetSpec { index: self.indices.view.dtype, components: self.components.len() as u8 };
        let kernel = engine.kernel(&KernelSpec::Targets(spec).reaching(self.far), self.call.compile)?;
        let targets = words(self.count)?;
        let indices = place(&self.indices, &self.indices.view.strides);
        let places = [indices, indices, place(&targets, &[])];
        let extra = extra([0, 0], &self.components);
        let arguments = Arguments { count: self.count as u32, sizes: &[self.count], places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 2, self.count.div_ceil(u64::from(kernel.elements_per_group)))?;
        let (by_target, order) = (words(self.count)?, words(self.count)?);
        // Targets out of bounds have all bits set and come last, so no other target may have all bits of the bytes set.
        let bits = u64::BITS - self.result.view.elements().leading_zeros();
        let key_bytes = u64::from(bits.div_ceil(8)).max(1);
        let what = Sort {
            key: SortKey { dtype: DType::U32, descending: false },
            input: &targets,
            places: None,
            rows: 1,
            elements: self.count,
            kept: self.count,
            key_bytes,
            values: Some(&by_target),
            ranks: Some(&order),
        };
        sort(engine, &what, self.call.compile)?;
        if self.add { self.add_runs(by_target, &order) } else { self.put_last(&by_target, &order) }
    }

    fn put_last(&self, targets: &Tensor, order: &Tensor) -> Result<()> {
        let engine = self.call.engine;
        let spec = KernelSpec::SegmentPut(SegmentPutSpec {
            element: self.element(&self.result),
            update: self.element(&self.updates),
            rest_rank: self.rest_sizes.len() as u8,
        });
        let kernel = engine.kernel(&spec.reaching(self.far), self.call.compile)?;
        self.start()?;
        let out_strides = self.out_strides();
        let places = [
            place(targets, &[]),
            place(order, &[]),
            place(&self.updates, &self.updates.view.strides),
            place(&self.result, &out_strides),
        ];
        let extra = [self.count as u32];
        let arguments = Arguments { count: self.inner as u32, sizes: &self.sizes(), places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 3, (self.count * self.inner).div_ceil(u64::from(LOCAL_SIZE)))
    }

    fn add_runs(&self, targets: Tensor, order: &Tensor) -> Result<()> {
        let engine = self.call.engine;
        let spec = |sums: bool, last: bool| SegmentAddSpec {
            out: self.call.out.dtype,
            update: self.updates.view.dtype,
            sums,
            last,
            rest_rank: self.rest_sizes.len() as u8,
        };
        let accumulator_bytes = spec(true, true).accumulator_bytes();
        // Sums of the first level are the most.
        let sums_bytes = 2 * self.count.div_ceil(SegmentAddSpec::CHUNK) * self.inner * accumulator_bytes;
        let far = self.far || sums_bytes > engine.reach().near(1);
        let kernel = |spec| engine.kernel(&KernelSpec::SegmentAdd(spec).reaching(far), self.call.compile);
        let levels = [kernel(spec(false, false))?, kernel(spec(true, false))?, kernel(spec(true, true))?];
        self.start()?;
        let (out_strides, sizes) = (self.out_strides(), self.sizes());
        let mut targets = targets;
        let mut updates = (self.updates.buffer.clone(), self.updates.address());
        let mut count = self.count;
        for level in 0.. {
            let chunks = count.div_ceil(SegmentAddSpec::CHUNK);
            let next = if chunks > 1 { chunks * 2 } else { 1 };
            let sums = engine.alloc(next * self.inner * accumulator_bytes)?;
            let marks = Tensor::uninitialized(engine, &Type::new(DType::U32, &[next]))?;
            let places = [
                place(&targets, &[]),
                place(order, &[]),
                Place { buffer: &updates.0, address: updates.1, strides: &self.updates.view.strides, element_bytes: 0 },
                place(&self.result, &out_strides),
                Place { buffer: &sums, address: sums.address(), strides: &[], element_bytes: 0 },
                place(&marks, &[]),
            ];
            let kernel = match (level, chunks) {
                (0, _) => &levels[0],
                (_, 1) => &levels[2],
                _ => &levels[1],
            };
            let extra = [count as u32, chunks as u32];
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
