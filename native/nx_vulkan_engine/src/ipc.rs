//! Tensors in memory that processes share: `VK_KHR_external_memory_fd`, and Linux's way to fetch a descriptor of another process.

use std::sync::Arc;

use crate::memory::Buffer;
use crate::{Engine, Error, Result, Tensor, Type, View, eager};

const MAGIC: &[u8; 8] = b"nxvkipc1";
/// Magic, process, descriptor, start time, address, offset, size, memory type, allocation, device.
const HANDLE_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 8 + 8 + 4 + 8 + 16 + 4;

/// What another process needs to find the memory. The start time tells a process from a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    process: u32,
    descriptor: i32,
    start_time: u64,
    address: u64,
    offset_bytes: u64,
    buffer_bytes: u64,
    memory_type: u32,
    allocation_bytes: u64,
    device: [u8; 16],
    driver_version: u32,
}

impl Handle {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(self.descriptor.to_le_bytes());
        for word in [self.start_time, self.address, self.offset_bytes, self.buffer_bytes] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.memory_type.to_le_bytes());
        bytes.extend(self.allocation_bytes.to_le_bytes());
        bytes.extend(self.device);
        bytes.extend(self.driver_version.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Handle> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let mut rest = bytes.strip_prefix(MAGIC.as_slice())?;
        fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
            let (head, tail) = rest.split_first_chunk::<N>()?;
            *rest = tail;
            Some(*head)
        }
        Some(Handle {
            process: u32::from_le_bytes(take(&mut rest)?),
            descriptor: i32::from_le_bytes(take(&mut rest)?),
            start_time: u64::from_le_bytes(take(&mut rest)?),
            address: u64::from_le_bytes(take(&mut rest)?),
            offset_bytes: u64::from_le_bytes(take(&mut rest)?),
            buffer_bytes: u64::from_le_bytes(take(&mut rest)?),
            memory_type: u32::from_le_bytes(take(&mut rest)?),
            allocation_bytes: u64::from_le_bytes(take(&mut rest)?),
            device: take(&mut rest)?,
            driver_version: u32::from_le_bytes(take(&mut rest)?),
        })
    }
}

impl Tensor {
    /// The tensor in memory that other processes can map, and a handle for [`Tensor::from_ipc`] there. The memory is kept until
    /// [`Engine::unshare`] with the same `holder`. Waits for the device.
    ///
    /// # Errors
    /// `Unsupported` where the device or the system can't do it.
    pub fn share_ipc(&self, engine: &Engine, holder: u64) -> Result<(Tensor, Vec<u8>)> {
        let start_time = system::start_time(std::process::id())?;
        if !engine.shares_memory() {
            return Err(unsupported("VK_KHR_external_memory_fd"));
        }
        let mut tensor = eager::contiguous(engine, self, eager::Compile::Allowed)?;
        if descriptor(&tensor.buffer).is_none() {
            let size_bytes = tensor.view.ty().size_bytes();
            let buffer = engine.alloc_shared(size_bytes)?;
            engine.copy(&tensor.buffer, tensor.view.offset_bytes(), &buffer, 0, size_bytes)?;
            tensor = Tensor { buffer, view: View::contiguous(tensor.view.dtype, &tensor.view.shape) };
        }
        let (descriptor, memory_type, allocation_bytes) =
            descriptor(&tensor.buffer).ok_or_else(|| unsupported("exportable memory"))?;
        // Also waits for what writes it.
        let tensor = tensor.share(engine, holder)?;
        let handle = Handle {
            process: std::process::id(),
            descriptor,
            start_time,
            address: tensor.address(),
            offset_bytes: tensor.view.offset_bytes(),
            buffer_bytes: tensor.buffer.size_bytes(),
            memory_type,
            allocation_bytes,
            device: engine.info().uuid,
            driver_version: engine.info().driver_version,
        };
        Ok((tensor, handle.encode()))
    }

    /// A tensor in the memory behind a handle of [`Tensor::share_ipc`], of this or another process.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no such handle, for a process that is gone or keeps its memory to itself, and where the
    /// memory is too small. `Unsupported` where the device or the system can't do it.
    pub fn from_ipc(engine: &Engine, handle: &[u8], ty: &Type) -> Result<Tensor> {
        let bad = |expected: &str, got: String| Error::InvalidArgument {
            what: "handle",
            expected: expected.to_string(),
            got,
        };
        let handle = Handle::decode(handle)
            .ok_or_else(|| bad("a handle of Nx.to_pointer", format!("{} bytes", handle.len())))?;
        let device = (engine.info().uuid, engine.info().driver_version);
        if device != (handle.device, handle.driver_version) {
            return Err(bad("memory of this device and driver", "that of another".to_string()));
        }
        if handle.process == std::process::id() {
            return Tensor::from_address(engine, handle.address, ty);
        }
        if !engine.shares_memory() {
            return Err(unsupported("VK_KHR_external_memory_fd"));
        }
        let (end, element) = (handle.offset_bytes.checked_add(ty.size_bytes()), ty.dtype.size_bytes());
        if end.is_none_or(|end| end > handle.buffer_bytes) || !handle.offset_bytes.is_multiple_of(element) {
            let got = format!("{} bytes", handle.buffer_bytes.saturating_sub(handle.offset_bytes));
            return Err(bad(&format!("{} bytes", ty.size_bytes()), got));
        }
        let file = system::descriptor_of(handle.process, handle.start_time, handle.descriptor)?;
        let buffer = engine.import_shared(file, handle.buffer_bytes, handle.memory_type, handle.allocation_bytes)?;
        let view = View { offset: handle.offset_bytes / element, ..View::contiguous(ty.dtype, &ty.shape) };
        Ok(Tensor { buffer, view })
    }
}

/// How another process maps a buffer: descriptor, memory type, bytes of the allocation.
fn descriptor(buffer: &Arc<Buffer>) -> Option<(i32, u32, u64)> {
    let external = buffer.as_external()?;
    let file = external.file.as_ref()?;
    Some((system::number(file), external.memory_type, external.allocation_bytes))
}

fn unsupported(needs: &str) -> Error {
    Error::Unsupported { op: "sharing memory with another process".to_string(), dtype: None, needs: needs.to_string() }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use crate::{Error, Result};

    fn gone(process: u32, cause: impl std::fmt::Display) -> Error {
        Error::InvalidArgument {
            what: "handle",
            expected: "memory of a process that runs and that this one may trace".to_string(),
            got: format!("memory of process {process}: {cause}"),
        }
    }

    pub fn number(file: &File) -> i32 {
        file.as_raw_fd()
    }

    /// When a process started, in ticks since the system did.
    pub fn start_time(process: u32) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).map_err(|e| gone(process, e))?;
        // The second field is the name in parentheses, and may hold anything; the start time is the 22nd.
        let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
        field.and_then(|f| f.parse().ok()).ok_or_else(|| gone(process, "it has no start time"))
    }

    /// A duplicate of a descriptor of another process.
    pub fn descriptor_of(process: u32, started: u64, descriptor: i32) -> Result<File> {
        // SAFETY: the call takes plain numbers and gives a new descriptor or -1.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0) };
        let pidfd = owned(opened).ok_or_else(|| gone(process, std::io::Error::last_os_error()))?;
        // The number belongs to the process that pidfd holds from now on.
        if start_time(process)? != started {
            return Err(gone(process, "it ended, and another has its number"));
        }
        // SAFETY: as above; pidfd is open.
        let fetched = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), descriptor, 0) };
        owned(fetched).map(File::from).ok_or_else(|| gone(process, std::io::Error::last_os_error()))
    }

    fn owned(result: libc::c_long) -> Option<OwnedFd> {
        let number = i32::try_from(result).ok().filter(|&n| n >= 0)?;
        // SAFETY: the kernel just opened it for this process, and nobody else has it.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;

    use crate::Result;

    fn linux<T>() -> Result<T> {
        Err(super::unsupported("Linux"))
    }

    pub fn number(_file: &File) -> i32 {
        -1
    }

    pub fn start_time(_process: u32) -> Result<u64> {
        linux()
    }

    pub fn descriptor_of(_process: u32, _started: u64, _descriptor: i32) -> Result<File> {
        linux()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_round_trip() {
        let handle = Handle {
            process: 1,
            descriptor: 2,
            start_time: 3,
            address: u64::MAX,
            offset_bytes: 5,
            buffer_bytes: 6,
            memory_type: 7,
            allocation_bytes: 8,
            device: [9; 16],
            driver_version: 10,
        };
        let bytes = handle.encode();
        assert_eq!(bytes.len(), HANDLE_BYTES);
        assert_eq!(Handle::decode(&bytes), Some(handle));
        assert_eq!(Handle::decode(&bytes[1..]), None);
        assert_eq!(Handle::decode(&[0; HANDLE_BYTES]), None);
        assert_eq!(Handle::decode(&[]), None);
    }
}
