//! Raw buffers: bytes in, bytes out.

use super::{Failure, Outcome};
use crate::{Buffer, Engine};
use std::sync::Arc;

/// A buffer of `size_bytes` zeros.
///
/// # Errors
/// `Upload` when the memory is not to be had.
pub fn alloc_zeroed(engine: &Engine, size_bytes: u64) -> Outcome<Arc<Buffer>> {
    let buffer = engine.alloc(size_bytes).map_err(Failure::of_upload)?;
    engine.fill(&buffer, 0, size_bytes, 0).map_err(Failure::of_upload)?;
    Ok(buffer)
}

/// A buffer that holds `bytes`.
///
/// # Errors
/// `Upload` when the memory is not to be had.
pub fn upload(engine: &Engine, bytes: &[u8]) -> Outcome<Arc<Buffer>> {
    let buffer = engine.alloc(bytes.len() as u64).map_err(Failure::of_upload)?;
    engine.upload(&buffer, 0, bytes).map_err(Failure::of_upload)?;
    Ok(buffer)
}

/// Overwrites all of `buffer`, after everything that was recorded before.
///
/// # Errors
/// `SizeMismatch` unless `bytes` is as long as the buffer.
pub fn upload_into(engine: &Engine, buffer: &Arc<Buffer>, bytes: &[u8]) -> Outcome {
    if bytes.len() as u64 != buffer.size_bytes() {
        return Err(Failure::SizeMismatch);
    }
    engine.upload(buffer, 0, bytes).map_err(Failure::of_upload)
}

/// Waits for what writes `buffer` and copies it to `out`, which has its size.
///
/// # Errors
/// `Dispatch` for a fault of anything that ran before.
pub fn download(engine: &Engine, buffer: &Arc<Buffer>, out: &mut [u8]) -> Outcome {
    engine.download(buffer, 0, out).map_err(Failure::of_download)
}
