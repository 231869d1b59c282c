//! Launches of kernels: each is compiled once per spec, and its parameter words are filled from tensors.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use nx_vulkan_device::kernel::{Launch, Pipeline, PipelineKey, Waits};
use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::text::KERNEL;
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::params::bias;
use nx_vulkan_spirv::probe;
use smallvec::SmallVec;

use super::family::{Constants, FarSpec, KernelSpec, Pairs};
use super::planned::{Planned, Source};
use super::{
    Arguments, Compile, Kernel, Reach, available, feature_names, features, grid, interface_of, label_of, max_groups,
    reach_of,
};
use crate::{Engine, Error, Result, Tensor, View};

impl Engine {
    /// The kernel of [`probe::fma_rate`].
    pub(crate) fn fma_rate_kernel(&self) -> Result<Kernel> {
        self.build(None, probe::fma_rate(Library::builtin()?, self.float_modes()?)?, &[])
    }

    /// The key of a generated module.
    fn key_of(
        &self,
        spec: Option<&Arc<dyn KernelSpec>>,
        generated: &Generated,
        constants: &[(u32, u32)],
    ) -> Result<PipelineKey> {
        let features = features(&generated.words);
        let missing = features & !available(self.caps());
        if missing != 0 {
            let needs = feature_names(missing).join(", ");
            // Its name tells op and type, where nobody knows the op that it is for.
            let op = spec.map_or_else(|| KERNEL.to_string(), |spec| format!("{KERNEL} {}", spec.name()));
            return Err(Error::Unsupported { op, dtype: None, needs });
        }
        let key = PipelineKey::new(&generated.words, constants, interface_of(generated));
        // Before the driver sees it, since what that refuses is what people want to read.
        if self.cached_pipeline(key).is_none() {
            self.dump_spirv(|| key.name(&label_of(spec)), &generated.words)?;
        }
        #[cfg(test)]
        refusal::check(&label_of(spec))?;
        Ok(key)
    }

    /// Compiles a generated module.
    pub(super) fn build(
        &self,
        spec: Option<Arc<dyn KernelSpec>>,
        generated: Generated,
        constants: &[(u32, u32)],
    ) -> Result<Kernel> {
        let key = self.key_of(spec.as_ref(), &generated, constants)?;
        // SAFETY: what is generated is valid and accesses what `Arguments` name; tests and spirv-val look at every
        // family.
        let pipeline = unsafe { self.pipeline(key, &generated.words, constants, interface_of(&generated))? };
        pipeline.set_label(|| label_of(spec.as_ref()));
        Ok(Kernel::new(spec, pipeline, &generated))
    }

    /// The kernel of `spec`, compiled if it is not there yet and `compile` allows it.
    pub fn kernel(&self, spec: &dyn KernelSpec, compile: Compile) -> Result<Arc<Kernel>> {
        let kernels = &self.kernel_cache().kernels;
        if let Some(kernel) = kernels.read().unwrap_or_else(PoisonError::into_inner).get(spec) {
            return Ok(Arc::clone(kernel));
        }
        if compile == Compile::Refused {
            return Err(Error::NeedsCompile);
        }
        if let Some(planned) = self.planned().filter(|_| self.captures()) {
            return planned.kernel(spec, |spec| self.plan(spec));
        }
        let (generated, constants) = self.generate(spec)?;
        self.keep(spec.kept(), generated, &constants)
    }

    /// The kernel of `spec`, or the one like it that reaches further where operands are `far`.
    pub fn kernel_reaching(&self, spec: &dyn KernelSpec, far: bool, compile: Compile) -> Result<Arc<Kernel>> {
        if far { self.kernel(&FarSpec(spec.kept()), compile) } else { self.kernel(spec, compile) }
    }

    /// The kernel of `spec`, or what stands for it and what it is to be compiled of.
    fn plan(&self, spec: &Arc<dyn KernelSpec>) -> Result<(Arc<Kernel>, Option<Source>)> {
        let (generated, constants) = self.generate(&**spec)?;
        let key = self.key_of(Some(spec), &generated, &constants)?;
        if self.cached_pipeline(key).is_some() {
            return Ok((self.keep(Arc::clone(spec), generated, &constants)?, None));
        }
        let pipeline = Arc::new(Pipeline::without_handle(self.open_device(), key, interface_of(&generated)));
        let stand_in = Arc::new(Kernel::new(Some(Arc::clone(spec)), pipeline, &generated));
        Ok((stand_in, Some((generated, constants))))
    }

    /// Compiles what is planned. Who asks for a kernel that failed finds out why. What is given is not dropped as idle
    /// while it is held.
    pub(crate) fn compile_planned(&self, planned: &Planned) -> Vec<Arc<Kernel>> {
        planned.compile(|spec, generated, constants| self.keep(spec, generated, constants))
    }

    /// The module of a kernel, and its specialization constants.
    fn generate(&self, spec: &dyn KernelSpec) -> Result<(Generated, Constants)> {
        let modes = self.float_modes()?;
        Ok((spec.generate(Library::builtin()?, modes)?, spec.constants(modes)))
    }

    /// Compiles a kernel and keeps it.
    fn keep(&self, spec: Arc<dyn KernelSpec>, generated: Generated, constants: &[(u32, u32)]) -> Result<Arc<Kernel>> {
        let kernel = Arc::new(self.build(Some(Arc::clone(&spec)), generated, constants)?);
        let kernels = &self.kernel_cache().kernels;
        kernels.write().unwrap_or_else(PoisonError::into_inner).insert(spec, Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl Kernel {
    /// The kernel, or the one like it that reaches further. Who has operands that need it may wait for it to be
    /// compiled.
    pub(super) fn reaching(self: &Arc<Kernel>, engine: &Engine, far: bool) -> Result<Arc<Kernel>> {
        match &self.spec {
            Some(spec) if far => engine.kernel(&FarSpec(Arc::clone(spec)), Compile::Allowed),
            _ => Ok(Arc::clone(self)),
        }
    }
}

/// A tensor as kernels read it at each index of an iteration space.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// With a view that has the shape of the space.
    pub tensor: Tensor,
    /// Where positions may lie outside of the operand, what bounds them: then the view begins as if its lowest position
    /// were the operand's.
    pub bounds: Option<Bounds>,
}

/// Where the elements of an operand lie of which some indices have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// From its lowest element to the position at index 0.
    pub first: i64,
    /// From its lowest element to its highest.
    pub last: u64,
}

impl Loaded {
    /// A view of elements of `whole`, perhaps with positions outside of it, as [`View::along`] gives them.
    pub fn within(whole: &Tensor, mut view: View) -> Loaded {
        let (low, high) = whole.view.extent();
        let bounds = Bounds { first: (view.offset as i64).wrapping_sub(low), last: (high - low) as u64 };
        view.offset = low as u64 + bias(&view.strides, &view.shape);
        Loaded { tensor: whole.with_view(view), bounds: Some(bounds) }
    }

    /// Whether one launch can reach all of it.
    pub fn is_indexed(&self, reach: Reach) -> bool {
        let last = reach_of(&self.tensor.view).max(self.bounds.map_or(0, |bounds| bounds.last));
        last <= reach.near(self.tensor.view.dtype.size_bytes())
    }

    /// Whether launches for parts of the space can reach it: a bounded operand is the same for all of them.
    pub fn is_bounded_within(&self, reach: Reach) -> bool {
        let most = reach.near(self.tensor.view.dtype.size_bytes());
        self.bounds.is_none_or(|bounds| bounds.last <= most)
    }

    /// The parameters that bound it.
    pub fn words(&self) -> [u32; 2] {
        self.bounds.map_or([0, 0], |bounds| [bounds.first as u32, bounds.last as u32])
    }
}

/// Records one launch of `groups` workgroups; places at and after `first_output` are written.
pub(crate) fn launch(
    engine: &Engine,
    kernel: &Kernel,
    arguments: &Arguments<'_>,
    first_output: usize,
    groups: u64,
) -> Result<()> {
    let (part, whole) = PART.get();
    let writes_part = || arguments.places.iter().skip(first_output).all(|p| Arc::as_ptr(p.buffer) as usize == whole);
    let waits = if part != 0 && writes_part() { Waits::Part(part) } else { Waits::All };
    record(engine, kernel, arguments, first_output, groups, waits)
}

thread_local! {
    /// The number of the buffer that this thread's launches write parts of, or 0, and where it is.
    static PART: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Runs `f`, whose launches write parts of a buffer that is new, no element more than once, and of no element that
/// shares a word with another part's: those that write nothing else don't wait for each other.
pub fn in_parts<T>(whole: &Arc<Buffer>, f: impl FnOnce() -> T) -> T {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let before = PART.replace((NUMBERS.fetch_add(1, Relaxed), Arc::as_ptr(whole) as usize));
    let result = f();
    PART.set(before);
    result
}

pub(super) fn record(
    engine: &Engine,
    kernel: &Kernel,
    arguments: &Arguments<'_>,
    first_output: usize,
    groups: u64,
    waits: Waits,
) -> Result<()> {
    engine.note_features(kernel.features);
    let words: SmallVec<[u32; 32]> = kernel.params.words.iter().map(|&p| arguments.word(p)).collect();
    let reads: SmallVec<[&Arc<Buffer>; 4]> = arguments.places.iter().take(first_output).map(|p| p.buffer).collect();
    let writes: SmallVec<[&Arc<Buffer>; 2]> = arguments.places.iter().skip(first_output).map(|p| p.buffer).collect();
    let (params, table): (&[u32], Option<&[u32]>) = if kernel.table { (&[], Some(&words)) } else { (&words, None) };
    let in_place = match &kernel.spec {
        Some(spec) if waits == Waits::All && engine.captures() => spec.in_place(arguments, first_output),
        _ => Pairs::new(),
    };
    let launch = Launch {
        pipeline: &kernel.pipeline,
        params,
        table,
        addresses: &kernel.addresses,
        groups: grid(max_groups(engine.caps()), groups),
        reads: &reads,
        writes: &writes,
        waits,
        work: match &kernel.spec {
            Some(spec) if engine.counts_work() => {
                Some(spec.work(engine.model().programs.max_work, arguments, first_output, groups))
            }
            _ => None,
        },
        in_place: &in_place,
        copied_bytes: match &kernel.spec {
            Some(spec) if engine.captures() => spec.copied_bytes(arguments),
            _ => None,
        },
    };
    // SAFETY: families fill `Arguments` from tensors, whose views lie within their buffers; positions beyond and those
    // that indices choose are bounded by the kernels.
    unsafe { engine.dispatch(&launch) }
}

/// A driver that refuses kernels, for tests of this thread.
#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::RefCell;

    use crate::error::CREATE_PIPELINES;
    use crate::{Error, Result};

    thread_local! {
        /// How the names of the kernels begin.
        static REFUSED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    /// What `run` gives while kernels of such names are refused.
    pub fn of<T>(names: &[&'static str], run: impl FnOnce() -> T) -> T {
        REFUSED.set(names.to_vec());
        let result = run();
        REFUSED.take();
        result
    }

    pub(super) fn check(name: &str) -> Result<()> {
        match REFUSED.with_borrow(|names| names.iter().any(|refused| name.starts_with(refused))) {
            true => Err(Error::Vulkan { call: CREATE_PIPELINES, cause: "refused".to_string() }),
            false => Ok(()),
        }
    }
}
