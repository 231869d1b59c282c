//! Tensors in memory that processes share: `VK_KHR_external_memory_fd`, and Linux's way to fetch a descriptor of
//! another process.

use std::fs::File;
use std::sync::Arc;

use nx_vulkan_device::memory::{Buffer, External};

use crate::{Engine, Error, Result, Tensor, Type, View, eager};

const MAGIC: &[u8; 8] = b"nxvkipc1";
/// Magic, process, descriptor, start time, file, serial number, address, offset, sizes, memory type, allocation,
/// device.
const HANDLE_BYTES: usize = 8 + 4 + 4 + 8 + 16 + 8 + 8 + 8 + 8 + 8 + 4 + 8 + 16 + 4;
/// Shared memory ends with the start time of its process and its serial number there.
const TAG_BYTES: u64 = 16;

/// What another process needs to find the memory. The start time tells a process from a later one of the same number. A
/// number of a descriptor that was closed may be another's by now: the device and inode tell other files from memory,
/// and the tag in the memory tells it from memory that was shared later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    process: u32,
    descriptor: i32,
    start_time: u64,
    file: [u64; 2],
    serial: u64,
    address: u64,
    offset_bytes: u64,
    tensor_bytes: u64,
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
        let [device, inode] = self.file;
        for word in [self.start_time, device, inode, self.serial, self.address] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.offset_bytes, self.tensor_bytes, self.buffer_bytes] {
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
            file: [u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?)],
            serial: u64::from_le_bytes(take(&mut rest)?),
            address: u64::from_le_bytes(take(&mut rest)?),
            offset_bytes: u64::from_le_bytes(take(&mut rest)?),
            tensor_bytes: u64::from_le_bytes(take(&mut rest)?),
            buffer_bytes: u64::from_le_bytes(take(&mut rest)?),
            memory_type: u32::from_le_bytes(take(&mut rest)?),
            allocation_bytes: u64::from_le_bytes(take(&mut rest)?),
            device: take(&mut rest)?,
            driver_version: u32::from_le_bytes(take(&mut rest)?),
        })
    }

    fn tag(&self) -> [u8; TAG_BYTES as usize] {
        let mut tag = [0; TAG_BYTES as usize];
        let (process, memory) = tag.split_at_mut(8);
        process.copy_from_slice(&self.start_time.to_le_bytes());
        memory.copy_from_slice(&self.serial.to_le_bytes());
        tag
    }
}

impl Tensor {
    /// The tensor in memory that other processes can map, and a handle for [`Tensor::from_ipc`] there. The memory is
    /// kept until [`Engine::unshare`] with the same `holder`. Waits for the device.
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
            let size_bytes = tensor.view.size_bytes();
            let buffer = engine.alloc_shared(size_bytes.next_multiple_of(TAG_BYTES) + TAG_BYTES)?;
            engine.copy(&tensor.buffer, tensor.view.offset_bytes(), &buffer, 0, size_bytes)?;
            tensor = Tensor::at(buffer, View::contiguous(tensor.view.dtype, &tensor.view.shape));
        }
        let buffer = Arc::clone(&tensor.buffer);
        let (external, file) = descriptor(&buffer).ok_or_else(|| unsupported("exportable memory"))?;
        let handle = Handle {
            process: std::process::id(),
            descriptor: system::number(file),
            start_time,
            file: system::identity(file)?,
            serial: external.serial,
            address: tensor.address(),
            offset_bytes: tensor.view.offset_bytes(),
            tensor_bytes: tensor.view.size_bytes(),
            buffer_bytes: buffer.size_bytes(),
            memory_type: external.memory_type,
            allocation_bytes: external.allocation_bytes,
            device: engine.info().uuid,
            driver_version: engine.info().driver_version,
        };
        engine.upload(&buffer, buffer.size_bytes() - TAG_BYTES, &handle.tag())?;
        // Also waits for what writes it.
        let tensor = tensor.share(engine, holder)?;
        Ok((tensor, handle.encode()))
    }

    /// A tensor in the memory behind a handle of [`Tensor::share_ipc`], of this or another process.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no such handle, for a process that is gone or keeps its memory to itself, and
    /// where the memory is too small. `Unsupported` where the device or the system can't do it.
    ///
    /// # Safety
    /// The bytes are those of [`Tensor::share_ipc`], unchanged. Damaged ones are found by what they say of process,
    /// descriptor, sizes and contents, but drivers do not compare the type of memory that they name.
    pub unsafe fn from_ipc(engine: &Engine, handle: &[u8], ty: &Type) -> Result<Tensor> {
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
        let element = ty.dtype.size_bytes();
        if ty.size_bytes() > handle.tensor_bytes || !handle.offset_bytes.is_multiple_of(element) {
            return Err(bad(&format!("{} bytes", ty.size_bytes()), format!("{} bytes", handle.tensor_bytes)));
        }
        let end = handle.offset_bytes.checked_add(handle.tensor_bytes).and_then(|end| end.checked_add(TAG_BYTES));
        if end.is_none_or(|end| end > handle.buffer_bytes) {
            return Err(bad("a handle of Nx.to_pointer", "one that was changed".to_string()));
        }
        let file = system::descriptor_of(handle.process, handle.start_time, handle.descriptor)?;
        if system::identity(&file)? != handle.file {
            return Err(bad("memory that is still shared", "a descriptor of something else".to_string()));
        }
        let (buffer_bytes, allocation_bytes) = (handle.buffer_bytes, handle.allocation_bytes);
        // SAFETY: by the contract the file, whose identity was compared, is of such an allocation.
        let buffer = unsafe { engine.import_shared(file, buffer_bytes, handle.memory_type, allocation_bytes)? };
        let mut tag = [0; TAG_BYTES as usize];
        engine.download(&buffer, handle.buffer_bytes - TAG_BYTES, &mut tag)?;
        if tag != handle.tag() {
            return Err(bad("memory that is still shared", "memory that was shared later".to_string()));
        }
        let view = View { offset: handle.offset_bytes / element, ..View::contiguous(ty.dtype, &ty.shape) };
        Tensor::new(buffer, view)
    }
}

/// The memory of a buffer that other processes can map, and its file.
fn descriptor(buffer: &Buffer) -> Option<(&External, &File)> {
    let external = buffer.as_external()?;
    Some((external, external.file.as_ref()?))
}

fn unsupported(needs: &str) -> Error {
    Error::Unsupported { op: "sharing memory with another process".to_string(), dtype: None, needs: needs.to_string() }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;

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

    /// Device and inode of an open file. Drivers may give all their descriptors the same.
    pub fn identity(file: &File) -> Result<[u64; 2]> {
        let failed = |e: std::io::Error| Error::Io { path: "a descriptor".to_string(), cause: e.to_string() };
        let metadata = file.metadata().map_err(failed)?;
        Ok([metadata.dev(), metadata.ino()])
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

    pub fn identity(_file: &File) -> Result<[u64; 2]> {
        linux()
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
            file: [11, 12],
            serial: 13,
            address: u64::MAX,
            offset_bytes: 5,
            tensor_bytes: 14,
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
