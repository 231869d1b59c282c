//! The engine: an open device with its memory, stream and pipelines.

mod launches;
mod memory;
mod transfers;
mod usage;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use nx_vulkan_device::capture::{Capture, CopyKey};
use nx_vulkan_device::device::{Caps, DeviceInfo, OpenDevice};
#[cfg(feature = "testing")]
use nx_vulkan_device::kernel::Pipeline;
use nx_vulkan_device::kernel::{MadeFiles, PipelineStore};
use nx_vulkan_device::memory::{Buffer, DeviceMemoryPlan, DevicePool, Keeper, Pool, VulkanBacking};
use nx_vulkan_device::stream::{Replay, Stream};
use smallvec::SmallVec;

use crate::Result;
use crate::kernels::{KernelCache, Planned, Reach, feature_names};
use crate::options::{Options, Precision, Profiling};
use crate::states::States;
use crate::tuning::{self, DeviceModel};
pub use usage::Usage;

/// Counters of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes of blocks that live buffers hold.
    pub in_use_bytes: u64,
    /// The most of them that there were at once.
    pub peak_bytes: u64,
    /// Bytes taken from the driver, staging included.
    pub reserved_bytes: u64,
    /// How often memory was taken from the driver, for tensors and for staging.
    pub allocations: u64,
    /// Bytes of device memory that tensors may take.
    pub budget_bytes: u64,
    /// Command buffers submitted.
    pub submissions: u64,
    /// Kernel launches recorded.
    pub dispatches: u64,
    /// Copies and fills recorded.
    pub transfers: u64,
    /// Barriers recorded.
    pub barriers: u64,
    /// Pipelines that are compiled or being compiled.
    pub pipelines: u64,
}

/// An open device, used by any number of threads at once.
///
/// Everything recorded runs in order on one queue. Recording returns at once; [`crate::Tensor::to_vec`] and
/// [`Engine::wait`] are what waits. A failed submission sticks and every later call returns its error.
///
/// With [`Options::time_limit`], waiting for a device that completes nothing ends with `TimedOut`; whoever asks again
/// waits again. An engine that is dropped then leaks what the device still uses, and the next one opens the device
/// anew.
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
    /// Where what is recorded goes instead of to the device.
    capture: Option<Capture>,
    /// Whether kernels take numbers from launches, so that many launches have the same one.
    shares_kernels: bool,
    /// Where kernels are noted that are not there yet, instead of being compiled for what is captured.
    planned: Option<Arc<Planned>>,
}

#[derive(Debug)]
struct Core {
    /// None once it has ended.
    keeper: Option<Keeper>,
    // Dropped in this order: the stream waits for the device, then nothing is in use any more.
    stream: Arc<Stream>,
    kernels: KernelCache,
    states: States,
    features_used: AtomicU16,
    pipelines: PipelineStore,
    dump_spirv: Option<PathBuf>,
    prints_profile: bool,
    precision: Precision,
    exact_attention: bool,
    keeps_copies: bool,
    reach: Reach,
    pool: Arc<DevicePool>,
    model: DeviceModel,
    is_measured: bool,
    cache_dir: Option<PathBuf>,
    made: Arc<MadeFiles>,
    open: Arc<OpenDevice>,
}

impl Drop for Core {
    fn drop(&mut self) {
        // It holds the stream, too.
        self.keeper = None;
        if self.prints_profile && self.stream.collect_profile().is_ok() {
            eprint!("{}", self.stream.profiler().profile(&self.open.info));
        }
        if !Arc::get_mut(&mut self.stream).is_some_and(Stream::come_to_rest) {
            self.pipelines.leak();
        }
    }
}

impl Engine {
    /// Opens the device that `selector` names, else `NX_VULKAN_DEVICE`, else the best one: discrete, integrated,
    /// virtual, CPU.
    ///
    /// # Errors
    /// `NoDevice` when there is no loader, no driver, or no match; the reason lists the devices that were found.
    /// `InvalidArgument` as [`Options::check_env`].
    pub fn open(selector: Option<&str>) -> Result<Arc<Engine>> {
        Options::check_env()?;
        let mut options = Options::from_env();
        if let Some(selector) = selector {
            options.selector = Some(selector.to_string());
        }
        Engine::open_with(&options)
    }

    /// Opens a device with explicit options.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with(options: &Options) -> Result<Arc<Engine>> {
        let open =
            OpenDevice::shared(options.selector.as_deref(), options.validation, options.lower, options.statistics)?;
        let measured = options.cache_dir.as_deref().and_then(|dir| tuning::load(dir, &open.info));
        let model = match &measured {
            Some(measured) => DeviceModel::calibrated(&open.caps, measured),
            None => DeviceModel::of(&open.caps),
        };
        let uncached_read_bytes = model.transfers.uncached_read_bytes;
        let plan =
            DeviceMemoryPlan::new(&open.caps, options.memory_limit_bytes, options.host_access, uncached_read_bytes);
        let limits = plan.limits;
        let backing = VulkanBacking::new(&open, plan);
        let pool = Arc::new(Pool::new(backing, limits));
        let (rates, submissions, copies) = (model.rates, model.submissions, model.bulk_copies);
        let stream = Stream::new(Arc::clone(&open), Arc::clone(&pool), rates, submissions, copies, options.time_limit);
        let stream = Arc::new(stream);
        let made = Arc::new(MadeFiles::new(options.cache_dir.clone().filter(|_| options.keeps_compiled)));
        let core = Core {
            keeper: Some(Keeper::start(Arc::clone(&pool), Arc::clone(&stream), options.keeps_free)),
            stream,
            kernels: KernelCache::default(),
            states: States::default(),
            features_used: AtomicU16::new(0),
            pipelines: PipelineStore::new(
                Arc::clone(&open),
                options.cache_dir.clone(),
                Arc::clone(&made),
                options.max_pipelines,
            )?,
            dump_spirv: options.dump_spirv.clone(),
            prints_profile: options.profile == Profiling::Printed,
            precision: options.precision,
            exact_attention: options.exact_attention,
            keeps_copies: options.keeps_copies,
            reach: options.reach,
            pool,
            model,
            is_measured: measured.is_some(),
            cache_dir: options.cache_dir.clone(),
            made,
            open,
        };
        let engine = Arc::new(Engine { core: Arc::new(core), capture: None, shares_kernels: false, planned: None });
        match options.profile {
            Profiling::Off => {}
            Profiling::On => engine.start_profile()?,
            Profiling::Printed => {
                engine.measure_limits()?;
                engine.start_profile()?;
            }
        }
        Ok(engine)
    }

    /// How exact products of f32 are.
    pub fn precision(&self) -> Precision {
        self.core.precision
    }

    /// Whether attention has the bits of its ops one by one.
    pub fn has_exact_attention(&self) -> bool {
        self.core.exact_attention
    }

    /// Whether copies of inputs are kept for runs to come.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.core.keeps_copies
    }

    /// How far one launch reaches.
    pub(crate) fn reach(&self) -> Reach {
        self.core.reach
    }

    /// The same device for a compilation: memory that ops ask for is virtual, and what they record is kept in a list.
    pub(crate) fn capturing(&self) -> Arc<Engine> {
        self.capturing_sharing(false)
    }

    /// The same device for a compilation, whose small kernels take numbers from launches if they are to be shared.
    pub(crate) fn capturing_sharing(&self, shares_kernels: bool) -> Arc<Engine> {
        let (core, planned) = (Arc::clone(&self.core), self.planned.clone());
        Arc::new(Engine { core, capture: Some(Capture::default()), shares_kernels, planned })
    }

    /// The buffers of what `make` makes of the memory at an address, or those that earlier commands of the program made
    /// of it, where that had the same `form`: all else that it depends on.
    pub(crate) fn shared_copy(
        &self,
        address: u64,
        form: impl FnOnce() -> String,
        make: impl FnOnce() -> Result<SmallVec<[Arc<Buffer>; 2]>>,
    ) -> Result<SmallVec<[Arc<Buffer>; 2]>> {
        let Some(capture) = self.capture() else { return make() };
        let key = CopyKey { address, form: form() };
        if let Some(buffers) = capture.copied(&key) {
            return Ok(buffers);
        }
        let mark = capture.mark();
        let buffers = make()?;
        capture.note_copy(key, buffers.clone(), mark);
        Ok(buffers)
    }

    /// The same device for a compilation that finds out which kernels it wants: those that are not there have
    /// stand-ins, so that nothing of it may run.
    pub(crate) fn planning(&self) -> Arc<Engine> {
        let planned = Some(Arc::default());
        Arc::new(Engine { core: Arc::clone(&self.core), capture: None, shares_kernels: false, planned })
    }

    /// The kernels that a planning engine was asked for.
    pub(crate) fn planned(&self) -> Option<&Planned> {
        self.planned.as_deref()
    }

    pub(crate) fn open_device(&self) -> &OpenDevice {
        &self.core.open
    }

    /// Whether small kernels take numbers from launches, so that many launches have the same one.
    pub(crate) fn shares_kernels(&self) -> bool {
        self.shares_kernels
    }

    /// The list of a capturing engine.
    pub(crate) fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// The device itself, also within a compilation: for what outlives it.
    pub(crate) fn uncaptured(&self) -> Arc<Engine> {
        Arc::new(Engine { core: Arc::clone(&self.core), capture: None, shares_kernels: false, planned: None })
    }

    /// Records an executable's commands.
    pub(crate) fn replay(&self, replay: &Replay<'_>) -> Result<()> {
        // SAFETY: executables replay what was captured of launches, each of which was vouched for.
        unsafe { self.core.stream.replay(replay) }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.core.stream
    }

    pub(crate) fn kernel_cache(&self) -> &KernelCache {
        &self.core.kernels
    }

    /// The one `T` that is kept with the device, made when it is first asked for.
    pub(crate) fn state<T: Any + Default + Send + Sync>(&self) -> &T {
        self.core.states.get()
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        &self.core.open.caps
    }

    /// Where what outlives the engine is kept.
    pub(crate) fn cache_dir(&self) -> Option<&Path> {
        self.core.cache_dir.as_deref()
    }

    /// What passes and generators made, on disk.
    pub(crate) fn made_files(&self) -> &MadeFiles {
        &self.core.made
    }

    /// Whether the model is by what [`Engine::calibrate`] measured rather than by guesses.
    pub fn is_calibrated(&self) -> bool {
        self.core.is_measured
    }

    /// The file of the driver's pipeline cache, and how many bytes of it were taken when the device was opened; none
    /// where there is no folder for it.
    pub fn pipeline_cache(&self) -> Option<(&Path, usize)> {
        self.core.pipelines.file()
    }

    /// How fast the device is thought to be, which chooses kernels and launches.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn model(&self) -> &DeviceModel {
        &self.core.model
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.core.open.info
    }

    /// Whether launches go to a list instead of the device.
    pub(crate) fn captures(&self) -> bool {
        self.capture.is_some()
    }

    /// Whether launches should say what they move and compute: while a program is compiled or a profile is taken.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn counts_work(&self) -> bool {
        self.capture.is_some() || self.core.stream.profiler().is_on()
    }

    /// Submits what is recorded, without waiting.
    pub fn flush(&self) -> Result<()> {
        self.core.stream.flush().map(|_| ())
    }

    /// Submits what is recorded and waits until all of it is done.
    pub fn wait(&self) -> Result<()> {
        self.core.stream.wait()
    }

    /// Whether the device is so far behind that recording may have to wait for it. A thread that must not wait records
    /// elsewhere then.
    pub fn is_congested(&self) -> bool {
        self.core.stream.is_congested()
    }

    /// All pipelines that are compiled.
    #[cfg(feature = "testing")]
    pub fn pipelines(&self) -> Vec<Arc<Pipeline>> {
        self.core.pipelines.all()
    }

    /// The kernels of one family that are compiled.
    #[cfg(feature = "testing")]
    pub fn kernels_of<S: crate::kernels::KernelSpec + Clone>(&self) -> Vec<(S, Arc<Pipeline>)> {
        self.core.kernels.of_family()
    }

    /// Counters since the engine was opened.
    pub fn stats(&self) -> Stats {
        let counters = self.core.stream.counters();
        Stats {
            in_use_bytes: self.core.pool.in_use_bytes(),
            peak_bytes: self.core.pool.peak_bytes(),
            reserved_bytes: self.core.pool.reserved_bytes(),
            allocations: self.core.pool.allocations(),
            budget_bytes: self.budget_bytes(),
            submissions: counters.submissions,
            dispatches: counters.dispatches,
            transfers: counters.transfers,
            barriers: counters.barriers,
            pipelines: self.core.pipelines.count() as u64,
        }
    }

    pub(crate) fn note_features(&self, features: u16) {
        if features & !self.core.features_used.load(Relaxed) != 0 {
            self.core.features_used.fetch_or(features, Relaxed);
        }
    }

    /// The device features that generated kernels launched since the last call depend on.
    pub fn take_features_used(&self) -> Vec<&'static str> {
        feature_names(self.core.features_used.swap(0, Relaxed))
    }

    /// What the validation layer said; `None` when it is not watching.
    pub fn validation_messages(&self) -> Option<Vec<String>> {
        self.core.open.log.as_ref().map(|log| log.messages())
    }

    /// The log behind [`Engine::validation_messages`], which outlives the engine.
    #[cfg(feature = "testing")]
    pub fn validation_log(&self) -> Option<Arc<nx_vulkan_device::device::ValidationLog>> {
        self.core.open.log.clone()
    }

    /// Makes the next submission fail as a lost device does, to test what callers make of it.
    #[cfg(feature = "testing")]
    pub fn fail_next_submission(&self) {
        self.core.stream.fail_next_submission();
    }
}

/// Whether the examples of the documentation have no device to run on, and say so, as tests do: they are skipped where
/// no device is found, and fail where `NX_VULKAN_TEST_DEVICE` asks for one.
///
/// # Errors
/// As [`Engine::open`], where there should be a device.
#[cfg(feature = "testing")]
pub fn is_missing_for_examples() -> Result<bool> {
    let wanted = std::env::var("NX_VULKAN_TEST_DEVICE").ok();
    if wanted.as_deref() == Some("none") {
        return Ok(true);
    }
    match Engine::open(None) {
        Err(crate::Error::NoDevice { reason }) if wanted.is_none() => {
            println!("skipped, as there is no device: {reason}");
            Ok(true)
        }
        Err(e) => Err(e),
        Ok(_) => Ok(false),
    }
}
