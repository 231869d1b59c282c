//! Bytes between host and device, and from buffer to buffer.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_device::stream::Source;

use super::Engine;
use crate::{Error, Result};

impl Engine {
    /// Writes `data` at byte `offset` of `dst`, ordered after everything recorded so far.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn upload(&self, dst: &Arc<Buffer>, offset: u64, data: &[u8]) -> Result<()> {
        self.upload_from(dst, offset, data.len() as u64, data)
    }

    /// Writes `size` bytes of a source at byte `offset` of `dst`, ordered after everything recorded so far.
    ///
    /// # Errors
    /// Also those of the source, after which the contents are undefined.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn upload_from(
        &self,
        dst: &Arc<Buffer>,
        offset: u64,
        size: u64,
        source: &(impl Source + ?Sized),
    ) -> Result<()> {
        self.check_range("upload", dst, offset, size)?;
        if dst.virtual_id().is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.upload_from(dst, offset, size, source)
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

    /// Copies bytes to the beginning of a buffer of another engine, through memory of the host.
    pub(crate) fn copy_to(
        &self,
        src: &Arc<Buffer>,
        offset: u64,
        to: &Engine,
        dst: &Arc<Buffer>,
        size: u64,
    ) -> Result<()> {
        self.check_range("transfer source", src, offset, size)?;
        to.check_range("transfer destination", dst, 0, size)?;
        if src.virtual_id().is_some() || dst.virtual_id().is_some() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.copy_to((src, offset), &to.core.stream, (dst, 0), size)
    }

    pub(super) fn check_range(&self, what: &'static str, buffer: &Buffer, offset: u64, size: u64) -> Result<()> {
        if offset.checked_add(size).is_none_or(|end| end > buffer.size_bytes()) {
            return Err(Error::InvalidArgument {
                what,
                expected: format!("a range within {} bytes", buffer.size_bytes()),
                got: format!("{size} bytes at {offset}"),
            });
        }
        self.check_owner(buffer)
    }
}
