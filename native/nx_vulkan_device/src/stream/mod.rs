//! The one queue of a device: recording from any thread, barriers only where data needs them, submission, and waiting.
//!
//! Everything recorded runs in order. A barrier ends an *epoch*; within an epoch nothing depends on anything else. A
//! *serial* numbers a submission. The first failure of a submission sticks: every later call returns it. A wait that
//! took too long does not, nor does a lack of memory: what was recorded may be lost by it, and whoever needs that is
//! told.

mod barriers;
mod bulk;
mod hold;
mod host;
mod queries;
mod replay;
mod slot;
mod transfer;
mod wait;
mod workers;

use std::collections::VecDeque;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ash::vk;
use nx_vulkan_ir::{Error, Result};

use crate::device::OpenDevice;
use crate::kernel::{Access, Binding, BoundLaunch, Code, Launch, Pipeline, Waits};
use crate::memory::{Buffer, DevicePool, MemoryKind, Ring};
use crate::profile::{Measured, Profiler};
use crate::work::{Copies, Rates, Submissions, Work};
use barriers::{DEVICE_ACCESS, DEVICE_STAGES};
pub use bulk::Source;
pub use hold::{MAX_HELD_COMMANDS, MAX_HELD_NS};
pub use replay::{Replay, Slots, table_words};
use slot::Slot;

/// Submissions in flight before recording waits for the oldest.
const MAX_IN_FLIGHT: usize = 32;
/// Submissions that other threads may make between a look at `is_congested` and recording.
const CONGESTION_MARGIN: u64 = 8;
/// Size of the ring of argument tables, until submissions come that need more.
const ARGUMENT_RING_BYTES: u64 = 1 << 20;
const ARGUMENT_RING_MOST_BYTES: u64 = 64 << 20;
const ARGUMENT_ALIGN_BYTES: u64 = 16;

/// How often the end of a submission is waited for where the driver has no memory to tell.
const MOST_WAITS: usize = 3;

/// For the calls of Vulkan that wait.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Largest push-constant block that the engine's own kernels use, in words.
const MAX_PARAM_WORDS: usize = 64;

/// Counters since the stream was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Submissions to the queue.
    pub submissions: u64,
    /// Kernels recorded.
    pub dispatches: u64,
    /// Copies and fills recorded.
    pub transfers: u64,
    /// Barriers recorded.
    pub barriers: u64,
}

/// What is recorded and submitted in order: the only way to the queue.
pub struct Stream {
    recorder: Mutex<Recorder>,
    /// Every submission up to this serial is complete.
    completed: AtomicU64,
    /// The last serial that was submitted.
    submitted: AtomicU64,
    error: OnceLock<Error>,
    /// Submissions that there was no memory for, and whether there are any.
    lost: RwLock<Vec<u64>>,
    has_lost: AtomicBool,
    fail_next_submission: AtomicBool,
    staging: transfer::Staging,
    bulk: bulk::Bulk,
    copies: Copies,
    submissions: Submissions,
    /// For how long a thread waits while no submission completes; `None` for ever.
    time_limit: Option<Duration>,
    rates: Rates,
    profiler: Profiler,
    pool: Arc<DevicePool>,
    open: Arc<OpenDevice>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("completed", &self.completed).field("error", &self.error).finish_non_exhaustive()
    }
}

struct Pending {
    serial: u64,
    slot: Arc<Slot>,
}

struct Recorder {
    /// The command buffer being recorded.
    current: Option<Arc<Slot>>,
    /// Submitted, oldest first.
    pending: VecDeque<Pending>,
    free: Vec<Arc<Slot>>,
    slots: usize,
    /// The serial that the next submission gets.
    serial: u64,
    epoch: u64,
    /// Whether the next operation needs a barrier: others were lost, or the other queue has written something.
    needs_barrier: bool,
    /// Whether words in memory were asked since the last barrier whether launches run, so that the next one waits for
    /// that, too.
    asked_words: bool,
    bound: Code,
    /// The number of the part that was recorded last, 0 where something else was.
    part: u64,
    ops: u32,
    bytes: u64,
    /// Time that what was replayed takes, as `rates` estimate it.
    ns: u64,
    arguments: Option<(Buffer, Ring)>,
    counters: Counters,
}

type RecorderGuard<'a> = MutexGuard<'a, Recorder>;

impl Stream {
    /// The stream of an open device, whose memory comes from the pool. A thread waits for `time_limit` while no
    /// submission completes.
    pub fn new(
        open: Arc<OpenDevice>,
        pool: Arc<DevicePool>,
        rates: Rates,
        submissions: Submissions,
        copies: Copies,
        time_limit: Option<Duration>,
    ) -> Stream {
        Stream {
            recorder: Mutex::new(Recorder {
                current: None,
                pending: VecDeque::new(),
                free: Vec::new(),
                slots: 0,
                serial: 1,
                epoch: 1,
                needs_barrier: false,
                asked_words: false,
                bound: Code::NONE,
                part: 0,
                ops: 0,
                bytes: 0,
                ns: 0,
                arguments: None,
                counters: Counters::default(),
            }),
            completed: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            error: OnceLock::new(),
            lost: RwLock::default(),
            has_lost: AtomicBool::new(false),
            fail_next_submission: AtomicBool::new(false),
            staging: transfer::Staging::default(),
            bulk: bulk::Bulk::default(),
            copies,
            submissions,
            time_limit,
            rates,
            profiler: Profiler::default(),
            pool,
            open,
        }
    }

    /// The last serial known to be complete, without asking the device.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Whether so many submissions are in flight that recording is about to wait for the oldest.
    pub fn is_congested(&self) -> bool {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let limit = MAX_IN_FLIGHT as u64 - CONGESTION_MARGIN;
        submitted.saturating_sub(self.completed()) >= limit && {
            let mut recorder = self.lock();
            let _ = self.reap(&mut recorder);
            submitted.saturating_sub(self.completed()) >= limit
        }
    }

    /// What was recorded and submitted so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Records one dispatch of a kernel that takes addresses.
    ///
    /// # Safety
    /// With these parameters (or this table) the kernel accesses elements of `reads` and `writes` alone, and writes to
    /// `writes` alone. `waits` leaves out no launch that touches the same elements.
    pub unsafe fn dispatch(&self, launch: &Launch<'_>) -> Result<()> {
        let mut words = [0u32; MAX_PARAM_WORDS];
        let count = launch.params.len().max(2 * usize::from(launch.table.is_some()));
        let params = words.get_mut(..count).ok_or_else(|| Error::InvalidArgument {
            what: "launch parameters",
            expected: format!("at most {MAX_PARAM_WORDS} words"),
            got: launch.params.len().to_string(),
        })?;
        params[..launch.params.len()].copy_from_slice(launch.params);

        let mut recorder = match launch.table {
            None => self.acquire()?,
            Some(table) => {
                let (recorder, address) = self.acquire_with_table(table)?;
                params[0] = address as u32;
                params[1] = (address >> 32) as u32;
                recorder
            }
        };
        let reads = launch.reads.iter().map(|b| &***b);
        let writes = launch.writes.iter().map(|b| &***b);
        self.check_contents(reads.clone().chain(writes.clone()))?;
        // What takes turns with the launch before it finds all that it touches as that launch did, and a part finds
        // what it writes as the part before it did.
        let (checked_reads, checked_writes) = match launch.waits {
            Waits::All => (usize::MAX, usize::MAX),
            Waits::Beside => (0, 0),
            Waits::Part(number) => (usize::MAX, if recorder.part == number { 0 } else { usize::MAX }),
        };
        let cmd =
            self.prepare(&mut recorder, reads.clone().take(checked_reads), writes.clone().take(checked_writes))?;
        if let Waits::Part(number) = launch.waits {
            recorder.part = number;
        }
        self.bind(&mut recorder, cmd, launch.pipeline);
        let measures = self.begin_measure(&recorder, cmd);
        let fns = &self.open.device.fns().v1_0;
        // SAFETY: the command buffer is recording, the pipeline is bound, and the engine checked push size and group
        // counts against pipeline and device (VUID-vkCmdPushConstants-offset-01795,
        // VUID-vkCmdDispatch-groupCountX-00386).
        unsafe {
            if !params.is_empty() {
                (fns.cmd_push_constants)(
                    cmd,
                    launch.pipeline.layout(),
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    (params.len() * 4) as u32,
                    params.as_ptr().cast(),
                );
            }
            let [x, y, z] = launch.groups;
            (fns.cmd_dispatch)(cmd, x, y, z);
        }
        if measures {
            self.end_measure(&recorder, Measured::Kernel(Arc::clone(launch.pipeline)), launch.work);
        }
        recorder.counters.dispatches += 1;
        self.finish(&mut recorder, reads, writes)
    }

    /// Records one dispatch of a shader that takes descriptors.
    ///
    /// # Safety
    /// The pipeline is of this device, and takes as many descriptors as there are bindings and as many bytes of push
    /// constants as are given. The group counts and each binding's offset and size are within the device's limits, and
    /// each binding within its buffer. What the shader does beyond its bindings is its owner's to answer for.
    pub unsafe fn dispatch_bound(&self, launch: &BoundLaunch<'_>) -> Result<()> {
        let mut recorder = self.acquire()?;
        let uses = |wanted: Access| {
            launch
                .bindings
                .iter()
                .filter(move |b| b.access == wanted || b.access == Access::ReadWrite)
                .map(|b| &**b.buffer)
        };
        let (reads, writes) = (uses(Access::Read), uses(Access::Write));
        self.check_contents(reads.clone().chain(writes.clone()))?;
        let cmd = self.prepare(&mut recorder, reads.clone(), writes.clone())?;
        let set = match &recorder.current {
            Some(slot) => slot.descriptor_set(&self.open.device, launch),
            None => Ok(vk::DescriptorSet::null()),
        };
        let set = set.map_err(|e| self.fail(e))?;
        self.bind(&mut recorder, cmd, launch.pipeline);
        let measures = self.begin_measure(&recorder, cmd);
        let fns = &self.open.device.fns().v1_0;
        // SAFETY: the command buffer is being recorded, under the lock; the set was allocated for this pipeline's
        // layout and lives until the slot is recycled. Push constants and group counts fit by the contract
        // (VUID-vkCmdPushConstants-offset-01795, VUID-vkCmdDispatch-groupCountX-00386).
        unsafe {
            if !launch.bindings.is_empty() {
                (fns.cmd_bind_descriptor_sets)(
                    cmd,
                    vk::PipelineBindPoint::COMPUTE,
                    launch.pipeline.layout(),
                    0,
                    1,
                    &set,
                    0,
                    null(),
                );
            }
            if !launch.push.is_empty() {
                (fns.cmd_push_constants)(
                    cmd,
                    launch.pipeline.layout(),
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    launch.push.len() as u32,
                    launch.push.as_ptr().cast(),
                );
            }
            let [x, y, z] = launch.groups;
            (fns.cmd_dispatch)(cmd, x, y, z);
        }
        if measures {
            let sum = |buffers: &mut dyn Iterator<Item = &Binding<'_>>| buffers.map(|b| b.size_bytes).sum();
            let is = |access: Access| move |b: &&Binding<'_>| b.access == access || b.access == Access::ReadWrite;
            let work = Work {
                read_bytes: sum(&mut launch.bindings.iter().filter(is(Access::Read))),
                written_bytes: sum(&mut launch.bindings.iter().filter(is(Access::Write))),
                ..Work::default()
            };
            self.end_measure(&recorder, Measured::Kernel(Arc::clone(launch.pipeline)), Some(work));
        }
        recorder.counters.dispatches += 1;
        self.finish(&mut recorder, reads, writes)
    }

    /// What takes times.
    pub fn profiler(&self) -> &Profiler {
        &self.profiler
    }

    /// Switches timestamps on or off for what is recorded from now on; answers whether they were on.
    pub fn set_profiling(&self, on: bool) -> Result<bool> {
        let mut recorder = self.lock();
        let before = self.profiler.switch(on);
        // A command buffer is recorded with timestamps or without; one that is empty begins anew.
        self.submit(&mut recorder)?;
        let empty = recorder.current.take();
        recorder.free.extend(empty);
        Ok(before)
    }

    /// Waits for all that was recorded and adds its times to the profile.
    pub fn collect_profile(&self) -> Result<()> {
        self.wait()?;
        let recorder = self.lock();
        let completed = self.completed();
        let complete = recorder.pending.iter().filter(|p| p.serial <= completed);
        complete.into_iter().try_for_each(|p| p.slot.collect(&self.open, &self.profiler))
    }

    /// Begins to measure the next command; answers whether it does. Commands that are measured don't overlap.
    fn begin_measure(&self, recorder: &Recorder, cmd: vk::CommandBuffer) -> bool {
        let Some(slot) = recorder.current.as_ref().filter(|_| self.profiler.is_on()) else { return false };
        self.barrier(cmd, DEVICE_STAGES, DEVICE_ACCESS);
        let begun = slot.begin_measure(&self.open.device);
        if begun == Some(false) {
            self.profiler.miss();
        }
        begun == Some(true)
    }

    /// Ends the measurement of the command that was recorded.
    fn end_measure(&self, recorder: &Recorder, what: Measured, work: Option<Work>) {
        if let Some(slot) = &recorder.current {
            slot.end_measure(&self.open.device, what, work);
        }
    }

    /// Submits what is recorded, without waiting. Answers the serial of the last submission.
    pub fn flush(&self) -> Result<u64> {
        let mut recorder = self.lock();
        self.check()?;
        self.submit(&mut recorder)?;
        Ok(recorder.serial - 1)
    }

    /// How fast the device is at least.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Submits what is recorded and waits until the device is idle.
    pub fn wait(&self) -> Result<()> {
        let last = {
            let recorder = self.lock();
            recorder.serial - u64::from(recorder.ops == 0)
        };
        self.wait_serial(last)
    }

    /// Submits what is recorded and waits until the device is idle, before the stream and all that the device uses are
    /// dropped. Answers false where the device completed nothing for the time limit.
    ///
    /// It may go on then, so what it uses is leaked rather than freed: command buffers, memory and the open device, and
    /// by the caller its pipelines. The next engine opens the device anew.
    pub fn come_to_rest(&mut self) -> bool {
        let waited = self.wait();
        let device = &self.open.device;
        let recorder = self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner);
        // By their fences: other engines go on submitting.
        let patience = match waited {
            Err(Error::TimedOut { .. }) => 0,
            _ => self.time_limit.map_or(u64::MAX, nanoseconds),
        };
        let is_busy = |p: &Pending| {
            for _ in 0..MOST_WAITS {
                match p.slot.block(device, patience) {
                    Ok(is_done) => return !is_done,
                    // On a lost device the first wait returns an error at once.
                    Err(Error::DeviceLost) => return false,
                    // A lack of memory says nothing of the device.
                    Err(_) => {}
                }
            }
            true
        };
        let busy = recorder.pending.iter().position(is_busy).unwrap_or(recorder.pending.len());
        recorder.free.extend(recorder.pending.drain(..busy).map(|p| p.slot));
        let rests = self.bulk.come_to_rest(&self.open, patience) && recorder.pending.is_empty();
        if !rests {
            recorder.pending.clear();
            std::mem::forget((Arc::clone(&self.pool), Arc::clone(&self.open)));
            self.open.mark_lost();
        }
        rests
    }

    /// Makes the next submission fail as if the device were lost.
    pub fn fail_next_submission(&self) {
        self.fail_next_submission.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> RecorderGuard<'_> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sticky error, if there is one.
    pub fn check(&self) -> Result<()> {
        match self.error.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// That no work which writes these buffers was lost for want of memory.
    ///
    /// # Errors
    /// `OutOfMemory`: what lies there is not what was to be computed. So it remains: later work may have written only a
    /// part anew.
    pub fn check_contents<'a>(&self, mut buffers: impl Iterator<Item = &'a Buffer>) -> Result<()> {
        if !self.has_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        let lost = self.lost.read().unwrap_or_else(PoisonError::into_inner);
        match buffers.any(|buffer| buffer.is_written_by(&lost)) {
            true => Err(self.out_of_memory()),
            false => Ok(()),
        }
    }

    fn out_of_memory(&self) -> Error {
        let budget_bytes = self.pool.limits.budget_bytes[MemoryKind::Device as usize];
        Error::OutOfMemory { size_bytes: 0, in_use_bytes: self.pool.in_use_bytes(), budget_bytes }
    }

    /// Makes `error` stick unless another came first, and returns the one that stuck. A lack of memory passes, and does
    /// not stick.
    fn fail(&self, error: Error) -> Error {
        if matches!(error, Error::OutOfMemory { .. }) {
            return self.out_of_memory();
        }
        let error = self.stick(error);
        if error == Error::DeviceLost {
            self.open.mark_lost();
        }
        error
    }

    fn stick(&self, error: Error) -> Error {
        self.error.get_or_init(|| error).clone()
    }

    /// Locks the recorder with a command buffer ready to record into.
    fn acquire(&self) -> Result<RecorderGuard<'_>> {
        let mut recorder = self.lock();
        loop {
            self.check()?;
            if recorder.current.is_some() {
                return Ok(recorder);
            }
            if recorder.free.is_empty() {
                self.reap(&mut recorder)?;
            }
            if recorder.free.is_empty() && recorder.slots < MAX_IN_FLIGHT {
                let slot = Slot::new(&self.open, self.open.queue.queue_family_index()).map_err(|e| self.fail(e))?;
                recorder.slots += 1;
                recorder.free.push(Arc::new(slot));
            }
            if self.begin_free(&mut recorder)? {
                return Ok(recorder);
            }
            let oldest = recorder.pending.front().map_or(0, |p| p.serial);
            drop(recorder);
            self.wait_serial(oldest)?;
            std::thread::yield_now();
            recorder = self.lock();
        }
    }

    /// Begins a free command buffer where none is recording; answers whether one is.
    fn begin_free(&self, recorder: &mut Recorder) -> Result<bool> {
        if recorder.current.is_none()
            && let Some(slot) = recorder.free.pop()
        {
            if let Err(error) = slot.begin(&self.open.device, self.profiler.is_on()) {
                recorder.free.push(slot);
                return Err(self.fail(error));
            }
            recorder.current = Some(slot);
            recorder.bound = Code::NONE;
            recorder.ops = 0;
            recorder.bytes = 0;
            recorder.ns = 0;
        }
        Ok(recorder.current.is_some())
    }

    /// Puts a table into the argument ring. Returns the locked recorder and the table's device address.
    fn acquire_with_table(&self, table: &[u32]) -> Result<(RecorderGuard<'_>, u64)> {
        let bytes = size_of_val(table) as u64;
        if bytes > ARGUMENT_RING_BYTES / 4 {
            return Err(Error::InvalidArgument {
                what: "argument table",
                expected: format!("at most {} bytes", ARGUMENT_RING_BYTES / 4),
                got: bytes.to_string(),
            });
        }
        loop {
            let mut recorder = self.acquire()?;
            if recorder.arguments.is_none() {
                let buffer = self.host_buffer(MemoryKind::Arguments, ARGUMENT_RING_BYTES)?;
                recorder.arguments = Some((buffer, Ring::new(ARGUMENT_RING_BYTES)));
            }
            let serial = recorder.serial;
            let completed = self.completed();
            let Some((buffer, ring)) = &mut recorder.arguments else {
                continue;
            };
            if let Some(space) = ring.reserve(bytes, ARGUMENT_ALIGN_BYTES, completed) {
                ring.commit(space, serial);
                let block = buffer.block();
                let address = block.address + space.offset;
                // SAFETY: the ring gave out `bytes` bytes at this offset of a mapped block, and every submission that
                // read them before is complete.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        table.as_ptr().cast::<u8>(),
                        block.mapped.add(space.offset as usize),
                        size_of_val(table),
                    );
                }
                return Ok((recorder, address));
            }
            let oldest = ring.oldest().unwrap_or(serial);
            drop(recorder);
            self.wait_serial(oldest)?;
        }
    }

    /// Makes the ring of argument tables large enough for a submission with so many bytes of them, as far as it may
    /// grow.
    pub fn grow_arguments(&self, bytes: u64) -> Result<()> {
        // Twice as much, as space is handed out in one piece and others take some of it.
        let size = (2 * bytes).next_power_of_two().clamp(ARGUMENT_RING_BYTES, ARGUMENT_RING_MOST_BYTES);
        let is_small = |recorder: &Recorder| recorder.arguments.as_ref().is_none_or(|(b, _)| b.size_bytes() < size);
        if !is_small(&self.lock()) {
            return Ok(());
        }
        let buffer = self.host_buffer(MemoryKind::Arguments, size)?;
        // It may have been a ring before.
        self.wait_serial(buffer.use_serial())?;
        let mut recorder = self.lock();
        if is_small(&recorder) {
            let (epoch, serial) = (recorder.epoch, recorder.serial);
            if let Some((before, _)) = recorder.arguments.replace((buffer, Ring::new(size))) {
                before.mark_read(epoch, serial);
            }
        }
        Ok(())
    }

    /// Emits the barrier that an operation with these reads and writes needs, if any. Returns the command buffer.
    fn prepare<'a>(
        &self,
        recorder: &mut Recorder,
        mut reads: impl Iterator<Item = &'a Buffer>,
        mut writes: impl Iterator<Item = &'a Buffer>,
    ) -> Result<vk::CommandBuffer> {
        let Some(cmd) = recorder.current.as_ref().map(|slot| slot.cmd()) else {
            return Err(self
                .fail(Error::Vulkan { call: "vkBeginCommandBuffer", cause: "no command buffer is recording".into() }));
        };
        let epoch = recorder.epoch;
        recorder.part = 0;
        if std::mem::take(&mut recorder.needs_barrier)
            || reads.any(|b| b.read_conflicts(epoch))
            || writes.any(|b| b.write_conflicts(epoch))
        {
            self.barrier_before(recorder, cmd, DEVICE_STAGES, DEVICE_ACCESS);
        }
        Ok(cmd)
    }

    fn bind(&self, recorder: &mut Recorder, cmd: vk::CommandBuffer, pipeline: &Pipeline) {
        pipeline.mark_use(recorder.serial);
        let code = pipeline.code();
        if recorder.bound != code {
            // SAFETY: it is a live one of this device, as the pipeline is, and the command buffer is recording.
            unsafe { code.bind(&self.open.device, cmd) };
            recorder.bound = code;
        }
    }

    /// Notes what the recorded operation touched, and submits when enough has gathered.
    fn finish<'a>(
        &self,
        recorder: &mut Recorder,
        reads: impl Iterator<Item = &'a Buffer>,
        writes: impl Iterator<Item = &'a Buffer>,
    ) -> Result<()> {
        let (epoch, serial) = (recorder.epoch, recorder.serial);
        for buffer in reads {
            buffer.mark_read(epoch, serial);
        }
        for buffer in writes {
            buffer.mark_write(epoch, serial);
            recorder.bytes += buffer.size_bytes();
        }
        recorder.ops += 1;
        if Stream::holds() {
            return if self.is_full(recorder) { self.submit(recorder) } else { Ok(()) };
        }
        let Submissions { first_ops, doublings, first_bytes, busy_bytes, long_ns, .. } = self.submissions;
        if recorder.bytes >= first_bytes {
            self.reap(recorder)?;
        }
        let in_flight = recorder.pending.len().min(doublings);
        let most_bytes = if in_flight == 0 { first_bytes } else { busy_bytes };
        let is_long = recorder.ns >= long_ns;
        if is_long || recorder.ops >= first_ops << in_flight || recorder.bytes >= most_bytes {
            self.submit(recorder)?;
        }
        Ok(())
    }

    fn submit(&self, recorder: &mut Recorder) -> Result<()> {
        if recorder.ops == 0 {
            return Ok(());
        }
        let Some(slot) = recorder.current.take() else {
            return Ok(());
        };
        recorder.ops = 0;
        let serial = recorder.serial;
        recorder.serial += 1;
        recorder.counters.submissions += 1;
        // The host reads results after the fence: a fence alone does not make device writes visible to it.
        self.barrier(slot.cmd(), vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
        if self.fail_next_submission.swap(false, Ordering::Relaxed) {
            recorder.free.push(slot);
            // The device itself is well, and stays open for other engines.
            return Err(self.stick(Error::DeviceLost));
        }
        if let Err(error) = self.hand_over(&slot) {
            recorder.free.push(slot);
            recorder.needs_barrier = true;
            // Whoever needs what it was to compute is told, also where another thread gets the error.
            self.lost.write().unwrap_or_else(PoisonError::into_inner).push(serial);
            self.has_lost.store(true, Ordering::Release);
            return Err(self.fail(error));
        }
        recorder.pending.push_back(Pending { serial, slot });
        self.submitted.store(serial, Ordering::Relaxed);
        self.reap(recorder)
    }

    fn hand_over(&self, slot: &Slot) -> Result<()> {
        slot.end(&self.open.device)?;
        match slot.submit(&self.open.queue) {
            // Nothing was submitted then, and may be once the driver has memory again.
            Err(Error::OutOfMemory { .. }) => {
                self.pool.trim(self.completed());
                slot.submit(&self.open.queue)
            }
            submitted => submitted,
        }
    }

    /// Recycles the command buffers of complete submissions.
    fn reap(&self, recorder: &mut Recorder) -> Result<()> {
        while let Some(front) = recorder.pending.front() {
            if self.completed() < front.serial {
                match front.slot.is_signalled(&self.open.device) {
                    Ok(true) => {
                        self.completed.fetch_max(front.serial, Ordering::AcqRel);
                    }
                    Ok(false) => return Ok(()),
                    Err(e) => return Err(self.fail(e)),
                }
            }
            front.slot.collect(&self.open, &self.profiler).map_err(|e| self.fail(e))?;
            if front.slot.has_waiters() {
                return Ok(());
            }
            if let Some(done) = recorder.pending.pop_front() {
                recorder.free.push(done.slot);
            }
        }
        // Also where the last ones were lost.
        self.completed.fetch_max(recorder.serial - 1, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.come_to_rest();
        let recorder = self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slot in recorder.free.drain(..).chain(recorder.current.take()) {
            slot.destroy(&self.open.device);
        }
    }
}
