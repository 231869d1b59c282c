//! Copies of many bytes between host and device. Several threads move chunks to and from staging memory while the device
//! copies others, on a queue of its own where it has one, so that nothing recorded waits for them, nor they for that.
//!
//! They need no order on the device: before a copy begins, what last used the tensor's memory is complete, and it ends
//! when the device has done it all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ash::vk;
use nx_vulkan_ir::{Error, Result};

use super::slot::Slot;
use super::wait::{BLOCK, LOOKS};
use super::workers::Workers;
use super::{Stream, host, nanoseconds};
use crate::device::OpenDevice;
use crate::memory::{Buffer, MemoryKind};
use crate::work::Copies;

/// Chunks of each thread: the device copies one while the host copies the other.
const LANES: usize = 2;
/// Where there are few bytes, chunks are so much smaller, that all threads have some.
const SHARES: usize = 4;
/// Chunks are multiples of this.
const CHUNK_STEP_BYTES: u64 = 64 << 10;

/// Where the bytes of an upload come from.
pub trait Source: Sync {
    /// Writes the bytes from `at` on.
    ///
    /// # Errors
    /// Where they can't be had.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()>;
}

impl Source for [u8] {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        match at.checked_add(out.len()).and_then(|end| self.get(at..end)) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => {
                return Err(Error::InvalidArgument {
                    what: "upload",
                    expected: format!("a range within {} bytes", self.len()),
                    got: format!("{} bytes at {at}", out.len()),
                });
            }
        }
        Ok(())
    }
}

/// One chunk of staging memory, and the command buffer that copies it.
pub(super) struct Lane {
    slot: Slot,
    staging: Buffer,
    /// Kept from all others while the device copies to or from it.
    tensor: Option<Arc<Buffer>>,
}

impl Lane {
    /// Whether the device has done what was submitted; what failed never will.
    fn is_done(&self, open: &OpenDevice) -> bool {
        self.tensor.is_none() || matches!(self.slot.is_signalled(&open.device), Ok(true) | Err(Error::DeviceLost))
    }

    fn bytes(&mut self, size: usize) -> Result<&mut [u8]> {
        let mapped = self.staging.block().mapped;
        if mapped.is_null() || size as u64 > self.staging.size_bytes() || self.tensor.is_some() {
            return Err(Error::Vulkan { call: "vkMapMemory", cause: "staging memory is not there".into() });
        }
        // SAFETY: the block is mapped, has so many bytes and is this lane's; the device does not use it now, as no
        // tensor is held.
        Ok(unsafe { std::slice::from_raw_parts_mut(mapped, size) })
    }
}

/// What copies have taken and may take again.
#[derive(Default)]
pub(super) struct Bulk {
    uploads: Mutex<Vec<Lane>>,
    downloads: Mutex<Vec<Lane>>,
    workers: Workers,
    /// Counts copies of chunks, which take turns on the queues.
    turns: AtomicUsize,
}

impl Bulk {
    fn lanes(&self, kind: MemoryKind) -> MutexGuard<'_, Vec<Lane>> {
        let lanes = if kind == MemoryKind::Upload { &self.uploads } else { &self.downloads };
        lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends with the stream: waits so long for each lane, destroys those that are done, and answers whether all are.
    /// What the device may still use is leaked.
    pub(super) fn come_to_rest(&self, open: &OpenDevice, patience_ns: u64) -> bool {
        let mut rests = true;
        for kind in [MemoryKind::Upload, MemoryKind::Readback] {
            for lane in std::mem::take(&mut *self.lanes(kind)) {
                let ended = lane.is_done(open)
                    || matches!(lane.slot.block(&open.device, patience_ns), Ok(true) | Err(Error::DeviceLost));
                match ended {
                    true => lane.slot.destroy(&open.device),
                    false => std::mem::forget(lane),
                }
                rests &= ended;
            }
        }
        rests
    }
}

/// The lanes of one thread, which go back with it.
struct Taken<'a> {
    stream: &'a Stream,
    kind: MemoryKind,
    lanes: Vec<Lane>,
}

impl<'a> Taken<'a> {
    /// As many as there may be, and one at least.
    fn of(stream: &'a Stream, kind: MemoryKind) -> Result<Taken<'a>> {
        let mut taken = Taken { stream, kind, lanes: Vec::with_capacity(LANES) };
        while taken.lanes.len() < LANES {
            match taken.lane() {
                Ok(lane) => taken.lanes.push(lane),
                Err(Error::OutOfMemory { .. }) if !taken.lanes.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    }

    fn lane(&self) -> Result<Lane> {
        let Stream { bulk, open, .. } = self.stream;
        let mut lanes = bulk.lanes(self.kind);
        // After an error some may still be at work.
        if let Some(done) = lanes.iter().rposition(|lane| lane.is_done(open)) {
            let mut lane = lanes.swap_remove(done);
            lane.tensor = None;
            return Ok(lane);
        }
        drop(lanes);
        let staging = self.stream.host_buffer(self.kind, self.stream.copies.chunk_bytes)?;
        // It may have served others before.
        self.stream.wait_serial(staging.use_serial())?;
        let slot = Slot::new(open, open.transfer_family()).map_err(|e| self.stream.fail(e))?;
        Ok(Lane { slot, staging, tensor: None })
    }

    /// Lets the device copy between a lane's memory and that of a tensor.
    fn submit(&mut self, lane: usize, tensor: &Arc<Buffer>, offset: u64, size: u64) -> Result<()> {
        let Stream { open, .. } = self.stream;
        if self.stream.fail_next_submission.swap(false, Ordering::Relaxed) {
            // As of the other queue's submissions: the device itself is well.
            return Err(self.stream.stick(Error::DeviceLost));
        }
        let Lane { slot, staging, tensor: held } = &mut self.lanes[lane];
        let (host, device) = (staging.block(), tensor.block());
        let [at_host, at_device] = [(host, host.offset), (device, device.offset + offset)];
        let is_upload = self.kind == MemoryKind::Upload;
        let [(from, src_offset), (to, dst_offset)] =
            if is_upload { [at_host, at_device] } else { [at_device, at_host] };
        let region = vk::BufferCopy { src_offset, dst_offset, size };
        let submit = || {
            slot.begin(&open.device, false)?;
            let cmd = slot.cmd();
            // What the other queue has written, whose end the host has seen.
            self.stream.copy_barrier(cmd, vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_READ);
            // SAFETY: both ranges lie within their blocks, which are different ones (VUID-vkCmdCopyBuffer-size-00115,
            // -00116, -pRegions-00117); size is not 0; the command buffer is recording, on a queue that copies.
            unsafe { (open.device.fns().v1_0.cmd_copy_buffer)(cmd, from.handle, to.handle, 1, &region) };
            // The host reads what was copied after the fence, which alone does not make it visible.
            self.stream.copy_barrier(cmd, vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
            slot.end(&open.device)?;
            let turn = self.stream.bulk.turns.fetch_add(1, Ordering::Relaxed);
            let queues = &open.transfer_queues;
            queues.get(turn % queues.len().max(1)).map_or(Ok(()), |queue| slot.submit(queue))
        };
        submit().map_err(|e| self.stream.fail(e))?;
        *held = Some(Arc::clone(tensor));
        Ok(())
    }

    /// Waits for what a lane submitted.
    fn wait(&mut self, lane: usize) -> Result<()> {
        let lane = &mut self.lanes[lane];
        if lane.tensor.is_some() {
            self.stream.wait_lane(&lane.slot)?;
            lane.tensor = None;
        }
        Ok(())
    }

    /// Ends with an error. Where the device is not hung, what was submitted is waited for: it writes nothing after the
    /// copy has returned, and keeps no tensor.
    fn fail(&mut self, error: Error) -> Error {
        if !matches!(error, Error::TimedOut { .. }) {
            // The first error is the one to tell.
            (0..self.lanes.len()).for_each(|lane| drop(self.wait(lane)));
        }
        error
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Stream { bulk, open, copies, .. } = self.stream;
        let mut lanes = bulk.lanes(self.kind);
        lanes.append(&mut self.lanes);
        let mut surplus = lanes.len().saturating_sub(LANES * copies.threads);
        while surplus > 0
            && let Some(done) = lanes.iter().position(|lane| lane.is_done(open))
        {
            lanes.swap_remove(done).slot.destroy(&open.device);
            surplus -= 1;
        }
    }
}

impl Stream {
    /// Whether a copy of so many bytes is one for several threads and a queue of its own. While times are taken it is
    /// none, so that they are seen, and memory that other processes have is of the other queue alone.
    pub(super) fn is_bulk(&self, tensor: &Buffer, size: u64) -> bool {
        size >= self.copies.least_bytes && tensor.as_external().is_none() && !self.profiler.is_on()
    }

    /// Uploads what nothing in flight uses.
    pub(super) fn upload_bulk(
        &self,
        dst: &Arc<Buffer>,
        offset: u64,
        size: u64,
        source: &(impl Source + ?Sized),
    ) -> Result<()> {
        self.check()?;
        self.check_contents([&**dst].into_iter())?;
        let chunk = self.portion(size);
        let chunks = Mutex::new((0..size).step_by(chunk as usize));
        self.with_threads(MemoryKind::Upload, size, |taken| {
            let mut free: Vec<usize> = (0..taken.lanes.len()).collect();
            let mut busy = VecDeque::with_capacity(free.len());
            while let Some(at) = next(&chunks)
                && let Some(lane) = free.pop().or_else(|| busy.pop_front())
            {
                taken.wait(lane)?;
                let len = chunk.min(size - at);
                source.read(at, taken.lanes[lane].bytes(len as usize)?)?;
                taken.submit(lane, dst, offset + at, len)?;
                busy.push_back(lane);
            }
            busy.into_iter().try_for_each(|lane| taken.wait(lane))
        })?;
        // The other queue's writes are seen from the next barrier on.
        self.lock().needs_barrier = true;
        Ok(())
    }

    /// Downloads what is there.
    pub(super) fn download_bulk(&self, src: &Arc<Buffer>, offset: u64, out: &mut [u8]) -> Result<()> {
        self.wait_serial(src.write_serial())?;
        self.check_contents([&**src].into_iter())?;
        let size = out.len() as u64;
        let chunk = self.portion(size) as usize;
        host::in_large_pages(out);
        let chunks = Mutex::new(out.chunks_mut(chunk).zip((offset..).step_by(chunk)));
        self.with_threads(MemoryKind::Readback, size, |taken| {
            let mut free: Vec<usize> = (0..taken.lanes.len()).collect();
            let mut busy = VecDeque::with_capacity(free.len());
            loop {
                while !free.is_empty()
                    && let Some((out, at)) = next(&chunks)
                    && let Some(lane) = free.pop()
                {
                    taken.submit(lane, src, at, out.len() as u64)?;
                    busy.push_back((lane, out));
                }
                let Some((lane, out)) = busy.pop_front() else { return Ok(()) };
                taken.wait(lane)?;
                host::copy_past_caches(taken.lanes[lane].bytes(out.len())?, out);
                free.push(lane);
            }
        })
    }

    /// The bytes of a chunk: such that all threads have some, within bounds.
    fn portion(&self, size: u64) -> u64 {
        let Copies { chunk_bytes, threads, .. } = self.copies;
        let shares = (threads * LANES * SHARES) as u64;
        (size / shares).next_multiple_of(CHUNK_STEP_BYTES).clamp(chunk_bytes / SHARES as u64, chunk_bytes)
    }

    /// Runs a job on several threads at the same time, this one among them: as many as there is work for, and of the
    /// others as many as there is staging memory for.
    fn with_threads(
        &self,
        kind: MemoryKind,
        size: u64,
        job: impl Fn(&mut Taken<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let first = Mutex::new(Some(Taken::of(self, kind)?));
        let most = self.copies.threads.saturating_sub(1);
        let others = size.div_ceil(self.portion(size)).saturating_sub(1).min(most as u64) as usize;
        self.bulk.workers.run(others, most, &|| {
            let own = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            match own.map_or_else(|| Taken::of(self, kind), Ok) {
                Ok(mut taken) => job(&mut taken).map_err(|e| taken.fail(e)),
                // The thread that has the first ones does it all.
                Err(Error::OutOfMemory { .. }) => Ok(()),
                Err(e) => Err(e),
            }
        })
    }

    /// Waits for the fence of a copy: polls, then blocks.
    fn wait_lane(&self, slot: &Slot) -> Result<()> {
        let device = &self.open.device;
        let start = Instant::now();
        while !slot.is_signalled(device).map_err(|e| self.fail(e))? {
            if start.elapsed() < self.submissions.polls {
                std::hint::spin_loop();
                continue;
            }
            let step = self.time_limit.map_or(BLOCK, |limit| BLOCK.min(limit / LOOKS));
            if slot.block(device, nanoseconds(step)).map_err(|e| self.fail(e))? {
                break;
            }
            self.check()?;
            if let Some(limit) = self.time_limit.filter(|&limit| start.elapsed() >= limit) {
                return Err(Error::TimedOut { limit });
            }
        }
        Ok(())
    }
}

fn next<I: Iterator>(items: &Mutex<I>) -> Option<I::Item> {
    items.lock().unwrap_or_else(PoisonError::into_inner).next()
}

pub(super) fn not_copied() -> Error {
    Error::Vulkan { call: "vkCmdCopyBuffer", cause: "a thread that copied panicked".into() }
}
