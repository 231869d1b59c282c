//! Copies between host and device, and the device's own fills and copies.
//!
//! Mapped memory is read and written directly when nothing in flight forbids it. Everything else goes through
//! host-visible staging memory in chunks, so that the host's copy of one chunk overlaps with the device's copy of
//! another.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use nx_vulkan_ir::{Error, Result};

use super::Stream;
use crate::memory::{AllocError, Buffer, MemoryKind, Ring};
use crate::profile::Measured;
use crate::work::Work;

/// Size of the upload ring. An upload waits only when it is full.
const UPLOAD_RING_BYTES: u64 = 32 << 20;
/// Transfers through staging of at least this size are copied by several threads: one thread moves 12 GB/s on an H200's
/// host, the bus 50.
const PARALLEL_BYTES: usize = 16 << 20;
const PARALLEL_THREADS: usize = 4;
/// Large transfers go in chunks of this size.
const CHUNK_BYTES: usize = 4 << 20;
/// Keeps chunks of different uploads on different cache lines.
const UPLOAD_ALIGN_BYTES: u64 = 64;

/// The upload ring, made on first use.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Option<(Arc<Buffer>, Ring)>>);

impl Stream {
    /// Writes `data` at `offset` of `dst`, ordered after everything recorded so far.
    pub fn upload(&self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        let block = dst.block();
        if data.is_empty() {
            return self.check();
        }
        dst.forget_contents();
        if !block.mapped.is_null() && self.is_complete(dst.use_serial()) {
            self.check()?;
            // SAFETY: the range was checked against the buffer, the block is mapped, and no submission uses it any
            // more.
            unsafe {
                std::ptr::copy_nonoverlapping(data.as_ptr(), block.mapped.add(offset as usize), data.len());
            }
            return Ok(());
        }
        let part = part_bytes(data.len());
        in_parallel(data.chunks(part).zip((offset..).step_by(part)).map(|(part, at)| {
            move || -> Result<()> {
                for (chunk, at) in part.chunks(CHUNK_BYTES).zip((at..).step_by(CHUNK_BYTES)) {
                    self.upload_chunk(dst, at, chunk)?;
                    // The device copies it while the host copies the next.
                    if data.len() > CHUNK_BYTES {
                        self.flush()?;
                    }
                }
                Ok(())
            }
        }))
    }

    /// Copies `size` bytes of `src` to `dst`, a buffer of another device: chunk by chunk from staging memory of the one
    /// to that of the other, which both devices copy while the host does. Waits for what writes `src`; on `to`, it is
    /// ordered after everything recorded so far.
    pub fn copy_to(
        &self,
        (src, src_offset): (&Buffer, u64),
        to: &Stream,
        (dst, dst_offset): (&Buffer, u64),
        size: u64,
    ) -> Result<()> {
        if size == 0 {
            self.check()?;
            return to.check();
        }
        if !src.block().mapped.is_null() && size <= self.pool.limits.direct_read_bytes[src.block().kind as usize] {
            let bytes = self.written_bytes(src, src.write_serial(), src_offset, size as usize)?;
            return to.upload(dst, dst_offset, bytes);
        }
        let part = part_bytes(size as usize) as u64;
        in_parallel((0..size).step_by(part as usize).map(|at| {
            let size = part.min(size - at);
            move || self.copy_part_to((src, src_offset + at), to, (dst, dst_offset + at), size)
        }))
    }

    /// The device reads a chunk while the host copies the one before.
    fn copy_part_to(
        &self,
        (src, src_offset): (&Buffer, u64),
        to: &Stream,
        (dst, dst_offset): (&Buffer, u64),
        size: u64,
    ) -> Result<()> {
        let write = |(staging, serial, at): (Buffer, u64, u64)| {
            let chunk = self.written_bytes(&staging, serial, 0, staging.size_bytes() as usize)?;
            to.upload(dst, dst_offset + at, chunk)?;
            to.flush().map(|_| ())
        };
        let mut earlier: Option<(Buffer, u64, u64)> = None;
        for at in (0..size).step_by(CHUNK_BYTES) {
            let len = (CHUNK_BYTES as u64).min(size - at);
            let staging = self.host_buffer(MemoryKind::Readback, len)?;
            let serial = self.record_copy(src, src_offset + at, &staging, 0, len)?;
            self.flush()?;
            if let Some(earlier) = earlier.replace((staging, serial, at)) {
                write(earlier)?;
            }
        }
        earlier.map_or(Ok(()), write)
    }

    /// Reads `out.len()` bytes at `offset` of `src`, waiting for what writes them.
    pub fn download(&self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return self.check();
        }
        let block = src.block();
        let direct = out.len() as u64 <= self.pool.limits.direct_read_bytes[block.kind as usize];
        if !block.mapped.is_null() && direct {
            out.copy_from_slice(self.written_bytes(src, src.write_serial(), offset, out.len())?);
            return Ok(());
        }
        let part = part_bytes(out.len());
        in_parallel(
            out.chunks_mut(part)
                .zip((offset..).step_by(part))
                .map(|(part, at)| move || self.download_staged(src, at, part)),
        )
    }

    /// Reads as `download` does where the host can read the memory and need not block. Answers whether it has.
    pub fn download_soon(&self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<bool> {
        let block = src.block();
        let direct = out.len() as u64 <= self.pool.limits.direct_read_bytes[block.kind as usize];
        let serial = src.write_serial();
        if block.mapped.is_null() || !direct || !self.poll_serial(serial)? {
            return Ok(false);
        }
        out.copy_from_slice(self.written_bytes(src, serial, offset, out.len())?);
        Ok(true)
    }

    /// Bytes of mapped memory, when the submission of that serial, the last that writes them, is complete.
    fn written_bytes<'a>(&self, src: &'a Buffer, serial: u64, offset: u64, size: usize) -> Result<&'a [u8]> {
        self.wait_serial(serial)?;
        self.check_contents([src].into_iter())?;
        let block = src.block();
        debug_assert!(!block.mapped.is_null());
        // SAFETY: the range was checked against the buffer, the block is mapped, and its last write is complete and
        // made visible to the host by the barrier that ends each submission. Nothing writes what its owner reads.
        Ok(unsafe { std::slice::from_raw_parts(block.mapped.add(offset as usize).cast_const(), size) })
    }

    /// Downloads chunk by chunk: the host copies one while the device copies the next.
    fn download_staged(&self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut earlier: Option<(Buffer, u64, &mut [u8])> = None;
        for (chunk, at) in out.chunks_mut(CHUNK_BYTES).zip((offset..).step_by(CHUNK_BYTES)) {
            let staging = self.host_buffer(MemoryKind::Readback, chunk.len() as u64)?;
            let serial = self.record_copy(src, at, &staging, 0, chunk.len() as u64)?;
            if let Some((staging, serial, out)) = earlier.take() {
                self.flush()?;
                out.copy_from_slice(self.written_bytes(&staging, serial, 0, out.len())?);
            }
            earlier = Some((staging, serial, chunk));
        }
        if let Some((staging, serial, out)) = earlier {
            out.copy_from_slice(self.written_bytes(&staging, serial, 0, out.len())?);
        }
        Ok(())
    }

    /// Fills `size` bytes at `offset` with a word; both multiples of 4.
    pub fn fill(&self, dst: &Buffer, offset: u64, size: u64, word: u32) -> Result<()> {
        if size == 0 {
            return self.check();
        }
        let mut recorder = self.acquire()?;
        self.check_contents([dst].into_iter())?;
        let cmd = self.prepare(&mut recorder, std::iter::empty(), [dst].into_iter())?;
        let measures = self.begin_measure(&recorder, cmd);
        let block = dst.block();
        // SAFETY: offset and size are multiples of 4 within the block (VUID-vkCmdFillBuffer-dstOffset-00024,
        // -size-00026, -00028).
        unsafe {
            (self.open.device.fns().v1_0.cmd_fill_buffer)(cmd, block.handle, block.offset + offset, size, word);
        }
        if measures {
            let work = Work { written_bytes: size, flops: Some(0), ..Work::default() };
            self.end_measure(&recorder, Measured::Fill, Some(work));
        }
        recorder.counters.transfers += 1;
        self.finish(&mut recorder, std::iter::empty(), [dst].into_iter())
    }

    /// Copies on the device. Source and destination must not overlap. Returns the serial of the submission that does
    /// it.
    pub fn record_copy(&self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, size: u64) -> Result<u64> {
        let mut recorder = self.acquire()?;
        self.check_contents([src, dst].into_iter())?;
        let cmd = self.prepare(&mut recorder, [src].into_iter(), [dst].into_iter())?;
        let measures = self.begin_measure(&recorder, cmd);
        let (from, to) = (src.block(), dst.block());
        let region = vk::BufferCopy { src_offset: from.offset + src_offset, dst_offset: to.offset + dst_offset, size };
        // SAFETY: both ranges lie within their blocks and don't overlap (VUID-vkCmdCopyBuffer-size-00115, -00116,
        // -pRegions-00117); size is not 0.
        unsafe {
            (self.open.device.fns().v1_0.cmd_copy_buffer)(cmd, from.handle, to.handle, 1, &region);
        }
        if measures {
            let work = Work { read_bytes: size, written_bytes: size, flops: Some(0), longest: 0 };
            self.end_measure(&recorder, Measured::Copy, Some(work));
        }
        recorder.counters.transfers += 1;
        let serial = recorder.serial;
        self.finish(&mut recorder, [src].into_iter(), [dst].into_iter())?;
        Ok(serial)
    }

    /// A mapped buffer for staging or arguments.
    pub(super) fn host_buffer(&self, kind: MemoryKind, size_bytes: u64) -> Result<Buffer> {
        Buffer::of_pool(&self.pool, kind, size_bytes, self.completed()).map_err(|e| match e {
            AllocError::OutOfMemory => Error::OutOfMemory {
                size_bytes,
                in_use_bytes: self.pool.in_use_bytes(),
                budget_bytes: self.pool.reserved_bytes(),
            },
            AllocError::TooLarge { limit_bytes } => Error::TooLarge { size_bytes, limit_bytes },
            AllocError::Failed(e) => e,
        })
    }

    fn upload_chunk(&self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let (staging, space) = loop {
            let oldest = {
                let mut cell = self.staging.0.lock().unwrap_or_else(PoisonError::into_inner);
                let (buffer, ring) = match &mut *cell {
                    Some(staging) => staging,
                    empty => {
                        let buffer = self.host_buffer(MemoryKind::Upload, UPLOAD_RING_BYTES)?;
                        empty.insert((Arc::new(buffer), Ring::new(UPLOAD_RING_BYTES)))
                    }
                };
                match ring.reserve(len, UPLOAD_ALIGN_BYTES, self.completed()) {
                    Some(space) => break (Arc::clone(buffer), space),
                    None => ring.oldest(),
                }
            };
            match oldest {
                Some(serial) => self.wait_serial(serial)?,
                // Another thread is still writing into the oldest space.
                None => std::thread::yield_now(),
            }
        };
        // SAFETY: the ring gave out `len` bytes at this offset of a mapped block, and no submission reads them.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), staging.block().mapped.add(space.offset as usize), data.len());
        }
        let recorded = self.record_copy(&staging, space.offset, dst, offset, len);
        let serial = *recorded.as_ref().unwrap_or(&0);
        if let Some((_, ring)) = &mut *self.staging.0.lock().unwrap_or_else(PoisonError::into_inner) {
            ring.commit(space, serial);
        }
        recorded.map(|_| ())
    }
}

/// The bytes of each thread's part, a multiple of the chunk size.
fn part_bytes(len: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(PARALLEL_THREADS));
    match len < PARALLEL_BYTES {
        true => len,
        false => len.div_ceil(threads).next_multiple_of(CHUNK_BYTES),
    }
}

/// Runs jobs at the same time, the first one on this thread. Returns the first error.
fn in_parallel<F: FnOnce() -> Result<()> + Send>(mut jobs: impl Iterator<Item = F>) -> Result<()> {
    let Some(first) = jobs.next() else {
        return Ok(());
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = jobs.map(|job| std::thread::Builder::new().spawn_scoped(scope, job)).collect();
        let mut result = first();
        for other in others {
            let joined = match other {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(not_copied("a copying thread panicked".into()))),
                Err(e) => Err(not_copied(e.to_string())),
            };
            result = result.and(joined);
        }
        result
    })
}

fn not_copied(cause: String) -> Error {
    Error::Vulkan { call: "vkCmdCopyBuffer", cause }
}
