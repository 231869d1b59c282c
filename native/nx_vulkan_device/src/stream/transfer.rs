//! Copies between host and device, and the device's own fills and copies.
//!
//! Mapped memory is read and written directly when nothing in flight forbids it. Everything else goes through
//! host-visible staging memory in chunks, so that the host's copy of one chunk overlaps with the device's copy of
//! another: large copies as bulk.rs has it, others in the order of what is recorded.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use nx_vulkan_ir::{Error, Result};

use super::{Source, Stream};
use crate::memory::{AllocError, Buffer, MemoryKind, Ring};
use crate::profile::Measured;
use crate::work::Work;

/// Size of the upload ring. An upload waits only when it is full.
const UPLOAD_RING_BYTES: u64 = 32 << 20;
/// Uploads of this size onto memory in use wait until it no longer is: in the ring the next chunks would.
const WAITING_BYTES: u64 = UPLOAD_RING_BYTES / 2;
/// Transfers on the queue of all else go in chunks of this size.
const CHUNK_BYTES: usize = 4 << 20;
/// Keeps chunks of different uploads on different cache lines.
const UPLOAD_ALIGN_BYTES: u64 = 64;

/// The upload ring, made on first use.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Option<(Arc<Buffer>, Ring)>>);

impl Stream {
    /// Writes `size` bytes of a source at `offset` of `dst`, ordered after everything recorded so far.
    ///
    /// # Errors
    /// Also those of the source, after which the contents are undefined.
    pub fn upload_from(
        &self,
        dst: &Arc<Buffer>,
        offset: u64,
        size: u64,
        source: &(impl Source + ?Sized),
    ) -> Result<()> {
        let block = dst.block();
        if size == 0 {
            return self.check();
        }
        dst.forget_contents();
        let is_bulk = self.is_bulk(dst, size);
        if is_bulk && size >= WAITING_BYTES {
            self.wait_serial(dst.use_serial())?;
        }
        let is_idle = self.is_complete(dst.use_serial());
        if !block.mapped.is_null() && is_idle {
            self.check()?;
            // SAFETY: the range was checked against the buffer, the block is mapped, and no submission uses it any
            // more.
            return source
                .read(0, unsafe { std::slice::from_raw_parts_mut(block.mapped.add(offset as usize), size as usize) });
        }
        if is_bulk && is_idle {
            return self.upload_bulk(dst, offset, size, source);
        }
        for at in (0..size).step_by(CHUNK_BYTES) {
            self.upload_chunk(dst, offset, at, (CHUNK_BYTES as u64).min(size - at), source)?;
            // The device copies it while the host copies the next.
            if size > CHUNK_BYTES as u64 {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Copies `size` bytes of `src` to `dst`, a buffer of another device: chunk by chunk from staging memory of the one
    /// to that of the other, which both devices copy while the host does. Waits for what writes `src`; on `to`, it is
    /// ordered after everything recorded so far.
    pub fn copy_to(
        &self,
        (src, src_offset): (&Arc<Buffer>, u64),
        to: &Stream,
        (dst, dst_offset): (&Arc<Buffer>, u64),
        size: u64,
    ) -> Result<()> {
        self.check()?;
        to.upload_from(dst, dst_offset, size, &Elsewhere { stream: self, buffer: src, offset: src_offset })
    }

    /// Reads `out.len()` bytes at `offset` of `src`, waiting for what writes them.
    pub fn download(&self, src: &Arc<Buffer>, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return self.check();
        }
        let block = src.block();
        let direct = out.len() as u64 <= self.pool.limits.direct_read_bytes[block.kind as usize];
        if !block.mapped.is_null() && direct {
            out.copy_from_slice(self.written_bytes(src, src.write_serial(), offset, out.len())?);
            return Ok(());
        }
        match self.is_bulk(src, out.len() as u64) {
            true => self.download_bulk(src, offset, out),
            false => self.download_staged(src, offset, out),
        }
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

    /// Uploads the bytes from `at` on through the ring.
    fn upload_chunk(
        &self,
        dst: &Buffer,
        offset: u64,
        at: u64,
        len: u64,
        source: &(impl Source + ?Sized),
    ) -> Result<()> {
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
        let space_bytes =
            unsafe { std::slice::from_raw_parts_mut(staging.block().mapped.add(space.offset as usize), len as usize) };
        let recorded =
            source.read(at, space_bytes).and_then(|()| self.record_copy(&staging, space.offset, dst, offset + at, len));
        let serial = *recorded.as_ref().unwrap_or(&0);
        if let Some((_, ring)) = &mut *self.staging.0.lock().unwrap_or_else(PoisonError::into_inner) {
            ring.commit(space, serial);
        }
        recorded.map(|_| ())
    }
}

/// The bytes of a buffer of another device.
struct Elsewhere<'a> {
    stream: &'a Stream,
    buffer: &'a Arc<Buffer>,
    offset: u64,
}

impl Source for Elsewhere<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.stream.download(self.buffer, self.offset + at, out)
    }
}
