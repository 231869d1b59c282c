//! The engine: an open device with its memory, stream and pipelines.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use nx_vulkan_device::capture::{Capture, CopyKey};
use nx_vulkan_device::device::{Caps, DeviceInfo, OpenDevice};
use nx_vulkan_device::kernel::{BoundLaunch, Interface, Launch, Pipeline, PipelineKey, PipelineStore};
use nx_vulkan_device::memory::{
    AllocError, Buffer, DeviceMemoryPlan, DevicePool, FreeBlock, MemoryKind, Pool, VulkanBacking, imported_buffer,
    part_bytes, shared_buffer,
};
use nx_vulkan_device::stream::{Replay, Stream};
use smallvec::SmallVec;

use crate::kernels::{KernelCache, Planned, Reach, feature_names};
use crate::options::{Options, Precision, Profiling};
use crate::states::States;
use crate::tuning::{self, DeviceModel};
use crate::{Error, Result};

thread_local! {
    /// Whether this thread may wait for the device until memory is free.
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Up to this size a tensor goes where the host writes directly, on a discrete GPU too. Beyond it, staging and the
/// GPU's copy engine are faster than writes over the bus.
const SMALL_BYTES: u64 = 64 << 10;

/// The part of a device's memory that results of one run may take in one piece.
const TOGETHER_PART: u64 = 8;

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
    // Dropped in this order: the stream waits for the device, then nothing is in use any more.
    stream: Stream,
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
    cache_dir: Option<PathBuf>,
    open: Arc<OpenDevice>,
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.prints_profile && self.stream.collect_profile().is_ok() {
            eprint!("{}", self.stream.profiler().profile(&self.open.info));
        }
        if !self.stream.come_to_rest() {
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
        let plan = DeviceMemoryPlan::new(&open.caps, options.memory_limit_bytes, options.host_access);
        let limits = plan.limits;
        let backing = VulkanBacking::new(Arc::clone(&open.device), plan);
        let pool = Arc::new(Pool::new(backing, limits));
        let measured = options.cache_dir.as_deref().and_then(|dir| tuning::load(dir, &open.info));
        let model = match &measured {
            Some(measured) => DeviceModel::calibrated(&open.caps, measured),
            None => DeviceModel::of(&open.caps),
        };
        let core = Core {
            stream: Stream::new(Arc::clone(&open), Arc::clone(&pool), model.rates, options.time_limit),
            kernels: KernelCache::default(),
            states: States::default(),
            features_used: AtomicU16::new(0),
            pipelines: PipelineStore::new(Arc::clone(&open), options.cache_dir.clone(), options.max_pipelines)?,
            dump_spirv: options.dump_spirv.clone(),
            prints_profile: options.profile == Profiling::Printed,
            precision: options.precision,
            exact_attention: options.exact_attention,
            keeps_copies: options.keeps_copies,
            reach: options.reach,
            pool,
            model,
            cache_dir: options.cache_dir.clone(),
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

    /// The same; small kernels take numbers from launches if they are to be shared.
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

    /// How fast the device is thought to be, which chooses kernels and launches.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn model(&self) -> &DeviceModel {
        &self.core.model
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.core.open.info
    }

    /// A buffer with undefined contents. Zero bytes work. Makes no Vulkan call when the pool has a free block.
    ///
    /// # Errors
    /// `TooLarge` when it can never fit; `OutOfMemory` when it does not fit after trimming, waiting and spilling to
    /// host memory.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn alloc(&self, size_bytes: u64) -> Result<Arc<Buffer>> {
        if let Some(capture) = &self.capture {
            return capture.alloc(size_bytes, &self.core.pool);
        }
        let completed = self.core.stream.completed();
        let small = size_bytes <= SMALL_BYTES && self.core.pool.limits.budget_bytes[MemoryKind::Small as usize] > 0;
        let first = match small.then(|| self.core.pool.alloc(MemoryKind::Small, size_bytes, completed)) {
            Some(Ok(block)) => Ok(block),
            Some(Err(_)) | None => self.core.pool.alloc(MemoryKind::Device, size_bytes, completed),
        };
        let block = match first {
            Ok(block) => block,
            Err(AllocError::OutOfMemory) => self.alloc_under_pressure(size_bytes)?,
            Err(e) => return Err(self.alloc_error(e, size_bytes)),
        };
        Ok(Arc::new(Buffer::new(block, size_bytes, Arc::clone(&self.core.pool))))
    }

    /// Buffers with undefined contents that lie one behind the other, each at the next multiple of 256 bytes. Their
    /// memory serves others of this kind once all of them are gone.
    ///
    /// # Errors
    /// Those of [`Engine::alloc`].
    pub(crate) fn alloc_together(&self, sizes: &[u64]) -> Result<Vec<Arc<Buffer>>> {
        let pool = &self.core.pool;
        let all_bytes = sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(part_bytes(size)));
        let attempt = |kind: MemoryKind| pool.alloc_parts(kind, sizes, self.core.stream.completed());
        let blocks = match self.with_more_memory(all_bytes, || attempt(MemoryKind::Device))? {
            Some(blocks) => blocks,
            None => attempt(MemoryKind::Spill).map_err(|e| self.alloc_error(e, all_bytes))?,
        };
        let buffer = |(block, &size)| Arc::new(Buffer::new(block, size, Arc::clone(pool)));
        Ok(blocks.into_iter().zip(sizes).map(buffer).collect())
    }

    /// The most bytes of buffers that may lie one behind the other: of larger pieces of memory there may be none.
    pub(crate) fn most_together_bytes(&self) -> u64 {
        self.core.pool.limits.max_buffer_bytes.min(self.budget_bytes() / TOGETHER_PART)
    }

    /// The most bytes that one tensor can ever have.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.core.pool.largest_bytes()
    }

    /// Whether other processes can map memory of this device.
    pub(crate) fn shares_memory(&self) -> bool {
        self.core.pool.backing().shares_memory()
    }

    /// A buffer with undefined contents that other processes can map.
    pub(crate) fn alloc_shared(&self, size_bytes: u64) -> Result<Arc<Buffer>> {
        self.core.pool.free_retired(self.core.stream.completed());
        let buffer = self.with_more_memory(size_bytes, || shared_buffer(&self.core.pool, size_bytes))?;
        buffer.map(Arc::new).ok_or_else(|| self.alloc_error(AllocError::OutOfMemory, size_bytes))
    }

    /// The buffer behind a descriptor of another process's memory.
    pub(crate) fn import_shared(
        &self,
        file: File,
        size_bytes: u64,
        memory_type: u32,
        allocation_bytes: u64,
    ) -> Result<Arc<Buffer>> {
        self.core.pool.free_retired(self.core.stream.completed());
        let buffer = self.with_more_memory(size_bytes, || {
            let failed = |e: std::io::Error| {
                AllocError::Failed(Error::Io { path: "a descriptor".to_string(), cause: e.to_string() })
            };
            let file = file.try_clone().map_err(failed)?;
            imported_buffer(&self.core.pool, file, size_bytes, memory_type, allocation_bytes)
        })?;
        // The memory is there already. NVIDIA's driver says this of a descriptor that is none of its memory.
        buffer.map(Arc::new).ok_or_else(|| Error::InvalidArgument {
            what: "handle",
            expected: "memory that is still shared".to_string(),
            got: "a descriptor that the driver finds no memory for".to_string(),
        })
    }

    /// The first success of `attempt` as it is, after the pool gave back what is free, and after the device came to
    /// rest; none where memory is short even so.
    fn with_more_memory<T>(
        &self,
        size_bytes: u64,
        mut attempt: impl FnMut() -> std::result::Result<T, AllocError>,
    ) -> Result<Option<T>> {
        let mut check = || match attempt() {
            Ok(found) => Ok(Some(found)),
            Err(AllocError::OutOfMemory) => Ok(None),
            Err(e) => Err(self.alloc_error(e, size_bytes)),
        };
        if let Some(found) = check()? {
            return Ok(Some(found));
        }
        self.forget_copies();
        self.core.pool.trim(self.core.stream.completed());
        if let Some(found) = check()? {
            return Ok(Some(found));
        }
        if !MAY_WAIT.get() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.wait()?;
        self.core.pool.trim(self.core.stream.completed());
        check()
    }

    /// Runs `f` on a thread that must not wait: what would have to, for memory, is `NeedsCompile` instead.
    pub fn without_waiting<T>(f: impl FnOnce() -> T) -> T {
        let before = MAY_WAIT.replace(false);
        let result = f();
        MAY_WAIT.set(before);
        result
    }

    fn alloc_under_pressure(&self, size_bytes: u64) -> Result<FreeBlock> {
        let attempt = |kind: MemoryKind| self.core.pool.alloc(kind, size_bytes, self.core.stream.completed());
        if let Some(block) = self.with_more_memory(size_bytes, || attempt(MemoryKind::Device))? {
            return Ok(block);
        }
        attempt(MemoryKind::Spill).map_err(|e| self.alloc_error(e, size_bytes))
    }

    fn alloc_error(&self, error: AllocError, size_bytes: u64) -> Error {
        let largest_bytes = self.core.pool.largest_bytes();
        match error {
            AllocError::OutOfMemory | AllocError::TooLarge { .. } if size_bytes > largest_bytes => {
                Error::TooLarge { size_bytes, limit_bytes: largest_bytes }
            }
            AllocError::OutOfMemory => Error::OutOfMemory {
                size_bytes,
                in_use_bytes: self.core.pool.in_use_bytes(),
                budget_bytes: self.budget_bytes(),
            },
            AllocError::TooLarge { limit_bytes } => Error::TooLarge { size_bytes, limit_bytes },
            AllocError::Failed(e) => e,
        }
    }

    pub(crate) fn pool(&self) -> &DevicePool {
        &self.core.pool
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.core.pool.limits.budget_bytes[MemoryKind::Device as usize]
    }

    /// Writes `data` at byte `offset` of `dst`, ordered after everything recorded so far.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn upload(&self, dst: &Arc<Buffer>, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range("upload", dst, offset, data.len() as u64)?;
        if dst.virtual_id().is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.upload(dst, offset, data)
    }

    /// Reads `out.len()` bytes at byte `offset` of `src`: submits, waits for what writes them, and copies.
    ///
    /// # Errors
    /// The sticky error, if a submission failed at any time before.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn download(&self, src: &Arc<Buffer>, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check_range("download", src, offset, out.len() as u64)?;
        if src.virtual_id().is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.download(src, offset, out)
    }

    /// As `download` for a thread that must not block: reads what the host can reach directly and is there, or will be
    /// in about 100 us. Answers whether it has.
    pub(crate) fn download_soon(&self, src: &Arc<Buffer>, offset: u64, out: &mut [u8]) -> Result<bool> {
        self.check_range("download", src, offset, out.len() as u64)?;
        if src.virtual_id().is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.download_soon(src, offset, out)
    }

    /// Fills bytes with a repeated little-endian word. `offset` is a multiple of 4; so is `size`, unless it ends the
    /// buffer.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn fill(&self, dst: &Arc<Buffer>, offset: u64, size: u64, word: u32) -> Result<()> {
        self.check_range("fill", dst, offset, size)?;
        let ends_buffer = offset + size == dst.size_bytes();
        if !offset.is_multiple_of(4) || !(size.is_multiple_of(4) || ends_buffer) {
            return Err(Error::InvalidArgument {
                what: "fill range",
                expected: "multiples of 4 bytes".into(),
                got: format!("offset {offset}, size {size}"),
            });
        }
        // Blocks are padded to more than a word, so rounding up stays inside.
        let size = size.next_multiple_of(4);
        match &self.capture {
            Some(capture) => capture.fill(dst, offset, size, word),
            None => self.core.stream.fill(dst, offset, size, word),
        }
    }

    /// Copies bytes on the device. Ranges of one buffer must not overlap.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn copy(
        &self,
        src: &Arc<Buffer>,
        src_offset: u64,
        dst: &Arc<Buffer>,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.check_range("copy source", src, src_offset, size)?;
        self.check_range("copy destination", dst, dst_offset, size)?;
        if Arc::ptr_eq(src, dst) && src_offset.abs_diff(dst_offset) < size {
            return Err(Error::InvalidArgument {
                what: "copy ranges",
                expected: "ranges that do not overlap".into(),
                got: format!("{size} bytes from {src_offset} to {dst_offset}"),
            });
        }
        if size == 0 {
            return self.core.stream.check();
        }
        match &self.capture {
            Some(capture) => capture.copy(src, src_offset, dst, dst_offset, size),
            None => self.core.stream.record_copy(src, src_offset, dst, dst_offset, size).map(|_| ()),
        }
    }

    /// The pipeline of `key`, compiled if it is not there yet: milliseconds on a GPU driver. Any number of threads may
    /// ask for the same key; one compiles, the others wait.
    ///
    /// # Safety
    /// `key` is that of the other arguments. `spirv` is a valid module for `interface` and the device's features. With
    /// descriptors it accesses no memory but that of its bindings; with addresses, what the launches' parameters name.
    ///
    /// # Errors
    /// `BadShader` for what is no module, `InvalidArgument` for an interface beyond the device's limits, `OutOfMemory`,
    /// `Vulkan` where the driver refuses it.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) unsafe fn pipeline(
        &self,
        key: PipelineKey,
        spirv: &[u32],
        spec: &[(u32, u32)],
        interface: Interface,
    ) -> Result<Arc<Pipeline>> {
        let pipelines = &self.core.pipelines;
        if pipelines.is_full() && pipelines.get(key).is_none() {
            self.core.kernels.drop_idle(pipelines);
            pipelines.destroy_retired(self.core.stream.completed());
        }
        // A driver without memory for a pipeline may have some once the pool gives back what is free.
        let size_bytes = size_of_val(spirv) as u64;
        let compile = || {
            // SAFETY: the caller's duty.
            unsafe { pipelines.get_or_compile(key, spirv, spec, interface) }.map_err(|e| match e {
                Error::OutOfMemory { .. } => AllocError::OutOfMemory,
                other => AllocError::Failed(other),
            })
        };
        self.with_more_memory(size_bytes, compile)?.ok_or_else(|| self.alloc_error(AllocError::OutOfMemory, size_bytes))
    }

    /// The pipeline of `key` if it is compiled. Never blocks.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn cached_pipeline(&self, key: PipelineKey) -> Option<Arc<Pipeline>> {
        self.core.pipelines.get(key)
    }

    /// Writes a module to the folder that the options name.
    pub(crate) fn dump_spirv(&self, name: impl FnOnce() -> String, words: &[u32]) -> Result<()> {
        let Some(folder) = &self.core.dump_spirv else { return Ok(()) };
        let path = folder.join(format!("{}.spv", name()));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, bytemuck::cast_slice::<u32, u8>(words)));
        written.map_err(|e| Error::Io { path: path.display().to_string(), cause: e.to_string() })
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

    /// Writes compiled pipelines to the cache on disk now, rather than after some more of them: a process that ends
    /// without dropping its engine loses those.
    pub fn save_pipelines(&self) {
        self.core.pipelines.save();
    }

    /// Records one dispatch of a kernel that takes buffer addresses.
    ///
    /// # Safety
    /// With these parameters (or this table) the kernel accesses elements of `reads` and `writes` alone, and writes to
    /// `writes` alone. `addresses` names every word of them that begins an address, `waits` leaves out no launch that
    /// touches the same elements, and the kernel does with pairs of `in_place` what they say.
    ///
    /// # Errors
    /// `InvalidArgument` when parameters don't fit the pipeline or group counts exceed the device's limit: splitting is
    /// the caller's.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) unsafe fn dispatch(&self, launch: &Launch<'_>) -> Result<()> {
        if launch.groups.contains(&0) {
            return self.core.stream.check();
        }
        let push_bytes = match launch.pipeline.interface() {
            Interface::Addresses { push_bytes } => push_bytes as usize,
            Interface::Descriptors { .. } => return Err(wrong_interface("an address pipeline")),
        };
        let words = launch.params.len().max(if launch.table.is_some() { 2 } else { 0 });
        if words * 4 > push_bytes {
            return Err(Error::InvalidArgument {
                what: "launch parameters",
                expected: format!("at most {push_bytes} bytes"),
                got: format!("{} bytes", words * 4),
            });
        }
        self.check_launch(launch.pipeline, launch.groups)?;
        for buffer in launch.reads.iter().chain(launch.writes) {
            self.check_owner(buffer)?;
        }
        match &self.capture {
            Some(capture) => capture.launch(launch),
            // SAFETY: the caller's duty.
            None => unsafe { self.core.stream.dispatch(launch) },
        }
    }

    /// Records one dispatch of a shader that takes storage-buffer descriptors.
    ///
    /// # Errors
    /// `InvalidArgument` when bindings or push bytes don't fit the pipeline, `TooLarge` when a range exceeds what a
    /// descriptor holds.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn dispatch_bound(&self, launch: &BoundLaunch<'_>) -> Result<()> {
        if launch.groups.contains(&0) {
            return self.core.stream.check();
        }
        let Interface::Descriptors { bindings, push_bytes } = launch.pipeline.interface() else {
            return Err(wrong_interface("a descriptor pipeline"));
        };
        if launch.bindings.len() != bindings as usize {
            return Err(Error::InvalidArgument {
                what: "bindings",
                expected: format!("{bindings} buffers"),
                got: launch.bindings.len().to_string(),
            });
        }
        if launch.push.len() > push_bytes as usize || !launch.push.len().is_multiple_of(4) {
            return Err(Error::InvalidArgument {
                what: "push constants",
                expected: format!("a multiple of 4 bytes, at most {push_bytes}"),
                got: format!("{} bytes", launch.push.len()),
            });
        }
        self.check_launch(launch.pipeline, launch.groups)?;
        let caps = self.caps();
        for b in launch.bindings {
            self.check_range("binding", b.buffer, b.offset, b.size_bytes)?;
            if !b.offset.is_multiple_of(caps.min_storage_buffer_offset_alignment) {
                return Err(Error::InvalidArgument {
                    what: "binding offset",
                    expected: format!("a multiple of {}", caps.min_storage_buffer_offset_alignment),
                    got: b.offset.to_string(),
                });
            }
            if b.size_bytes > caps.max_storage_buffer_range_bytes {
                return Err(Error::TooLarge {
                    size_bytes: b.size_bytes,
                    limit_bytes: caps.max_storage_buffer_range_bytes,
                });
            }
        }
        if self.capture.is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.dispatch_bound(launch)
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

    /// Gives idle memory back to the driver. Returns the bytes freed.
    pub fn trim(&self) -> u64 {
        self.core.pool.trim(self.core.stream.completed())
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

    fn check_range(&self, what: &'static str, buffer: &Buffer, offset: u64, size: u64) -> Result<()> {
        if offset.checked_add(size).is_none_or(|end| end > buffer.size_bytes()) {
            return Err(Error::InvalidArgument {
                what,
                expected: format!("a range within {} bytes", buffer.size_bytes()),
                got: format!("{size} bytes at {offset}"),
            });
        }
        self.check_owner(buffer)
    }

    pub(crate) fn check_owner(&self, buffer: &Buffer) -> Result<()> {
        match buffer.belongs_to(&self.core.pool) {
            true => Ok(()),
            false => Err(Error::InvalidArgument {
                what: "buffer",
                expected: "a buffer of this device".into(),
                got: "a buffer of another one".into(),
            }),
        }
    }

    fn check_launch(&self, pipeline: &Pipeline, groups: [u32; 3]) -> Result<()> {
        if !pipeline.belongs_to(&self.core.open.device) {
            return Err(wrong_interface("a pipeline of this device"));
        }
        let limit = self.core.open.caps.max_workgroup_count;
        if groups.iter().zip(&limit).any(|(g, max)| g > max) {
            return Err(Error::InvalidArgument {
                what: "workgroup counts",
                expected: format!("at most {limit:?}"),
                got: format!("{groups:?}"),
            });
        }
        Ok(())
    }
}

fn wrong_interface(expected: &str) -> Error {
    Error::InvalidArgument { what: "pipeline", expected: expected.to_string(), got: "another one".into() }
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
        Err(Error::NoDevice { reason }) if wanted.is_none() => {
            println!("skipped, as there is no device: {reason}");
            Ok(true)
        }
        Err(e) => Err(e),
        Ok(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_tried_again_after_trimming_and_waiting() {
        let engine = Engine::open(None).expect("a Vulkan device");
        drop(engine.alloc(1 << 20).expect("memory"));
        assert!(engine.stats().reserved_bytes > 0);
        let mut attempts = 0;
        let found = engine.with_more_memory(1, || {
            attempts += 1;
            if engine.stats().reserved_bytes > 0 { Err(AllocError::OutOfMemory) } else { Ok(()) }
        });
        assert_eq!((found, attempts), (Ok(Some(())), 2));
        let mut never = || {
            attempts += 1;
            Err::<(), _>(AllocError::OutOfMemory)
        };
        assert_eq!(engine.with_more_memory(1, &mut never), Ok(None));
        assert_eq!(Engine::without_waiting(|| engine.with_more_memory(1, &mut never)), Err(Error::NeedsCompile));
        assert_eq!(attempts, 2 + 3 + 2);
        assert!(engine.alloc(1 << 20).is_ok());
    }
}
