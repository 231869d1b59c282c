//! Tensors of parts of files.

use std::fs::File;
use std::path::Path;

use nx_vulkan_device::stream::Source;
use nx_vulkan_ir::dtype::nx_bytes;

use crate::{Engine, Error, Result, Tensor, Type};

/// Up to so many bytes are read at once, and so are elements of sub-byte types, which are unpacked.
const SMALL_BYTES: u64 = 64 << 10;

/// An open file, from an offset on.
struct Part<'a> {
    file: &'a File,
    path: &'a Path,
    offset: u64,
}

impl Source for Part<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let at = self.offset.saturating_add(at);
        read_exact_at(self.file, out, at).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => shorter(self.path, at, out.len() as u64),
            _ => io(self.path, &e),
        })
    }
}

impl Tensor {
    /// A tensor of the bytes of a file from `offset` on, in Nx's binary layout. They go to the device in portions that
    /// are read as they go, so that the host needs no memory for them all. The file is not mapped: one that is changed
    /// meanwhile gives some of its bytes before and some after, and one that is cut short an error.
    ///
    /// # Errors
    /// `Io` when the file can't be read, is no regular file, or ends too early, else as [`Tensor::uninitialized`].
    pub fn from_file(engine: &Engine, ty: &Type, path: &Path, offset: u64) -> Result<Tensor> {
        ty.check()?;
        let size = nx_bytes(ty.dtype, ty.elements());
        // What is no file may block when it is opened.
        if !std::fs::metadata(path).map_err(|e| io(path, &e))?.is_file() {
            return Err(Error::Io { path: path.display().to_string(), cause: "it is no regular file".into() });
        }
        let file = File::open(path).map_err(|e| io(path, &e))?;
        let len = file.metadata().map_err(|e| io(path, &e))?.len();
        if offset.checked_add(size).is_none_or(|end| end > len) {
            return Err(shorter(path, offset, size));
        }
        let part = Part { file: &file, path, offset };
        if size <= SMALL_BYTES || ty.dtype.bits() < 8 {
            let mut bytes = Vec::new();
            let room = usize::try_from(size).ok().filter(|&size| bytes.try_reserve_exact(size).is_ok());
            bytes.resize(room.ok_or(Error::TooLarge { size_bytes: size, limit_bytes: SMALL_BYTES })?, 0);
            part.read(0, &mut bytes)?;
            return Tensor::from_nx_bytes(engine, ty, &bytes);
        }
        let tensor = Tensor::for_upload(engine, ty)?;
        engine.upload_from(tensor.buffer(), 0, size, &part)?;
        Ok(tensor)
    }
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Io { path: path.display().to_string(), cause: error.to_string() }
}

fn shorter(path: &Path, offset: u64, size: u64) -> Error {
    Error::Io {
        path: path.display().to_string(),
        cause: format!("the file ends before the last of {size} bytes from {offset} on"),
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut at: u64) -> std::io::Result<()> {
    use std::io::ErrorKind;
    use std::os::windows::fs::FileExt;

    while !out.is_empty() {
        match file.seek_read(out, at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                out = &mut out[read..];
                at += read as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
