//! Memory that other processes can map: allocations of their own that Vulkan hands over as POSIX file descriptors.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nx_vulkan_ir::Error;
use vulkano::buffer::{Buffer as VulkanoBuffer, ExternalBufferInfo};
use vulkano::memory::{
    DedicatedAllocation, DeviceMemory, ExternalMemoryHandleType, ExternalMemoryHandleTypes, MemoryAllocateFlags,
    MemoryAllocateInfo, MemoryImportInfo,
};
use vulkano::{Validated, VulkanError};

use super::backing::{USAGE, VulkanBacking, alloc_error};
use super::block::{Block, MemoryKind};
use super::pool::{AllocError, Chunk};
use super::{Buffer, DevicePool};

/// Buffers reach to a multiple of this, as the pool's do.
const ROUND_BYTES: u64 = 256;

const FD: ExternalMemoryHandleType = ExternalMemoryHandleType::OpaqueFd;

/// An allocation that is a buffer's own.
#[derive(Debug)]
pub struct External {
    /// The buffer over all of it.
    pub memory: VulkanoBuffer,
    /// What other processes map it by; `None` where it is another process's memory.
    pub file: Option<File>,
    /// The memory type that it was allocated from.
    pub memory_type: u32,
    /// Bytes of the allocation.
    pub allocation_bytes: u64,
    /// Which of this process's shared allocations it is, counted from 1; 0 where it is another process's memory.
    pub serial: u64,
}

impl VulkanBacking {
    /// Whether memory can be given to other processes and taken from them.
    pub fn shares_memory(&self) -> bool {
        let mut info = ExternalBufferInfo::handle_type(FD);
        info.usage = USAGE;
        self.device().enabled_extensions().khr_external_memory_fd
            && self
                .device()
                .physical_device()
                .external_buffer_properties(info)
                .is_ok_and(|p| p.external_memory_properties.exportable && p.external_memory_properties.importable)
    }

    fn allocate_shared(&self, size_bytes: u64) -> Result<(Chunk<VulkanoBuffer>, File, u32, u64), AllocError> {
        let raw = self.raw_buffer(size_bytes, ExternalMemoryHandleTypes::OPAQUE_FD)?;
        let (memory_type_index, allocation_size) = self.memory_type(&raw, MemoryKind::Device)?;
        let memory = DeviceMemory::allocate(
            Arc::clone(self.device()),
            MemoryAllocateInfo {
                allocation_size,
                memory_type_index,
                dedicated_allocation: Some(DedicatedAllocation::Buffer(&raw)),
                export_handle_types: ExternalMemoryHandleTypes::OPAQUE_FD,
                flags: MemoryAllocateFlags::DEVICE_ADDRESS,
                ..Default::default()
            },
        )
        .map_err(|e| alloc_error("vkAllocateMemory", e))?;
        let file = memory.export_fd(FD).map_err(|e| alloc_error("vkGetMemoryFdKHR", e))?;
        let chunk = self.bind(raw, memory, self.maps(MemoryKind::Device))?;
        Ok((chunk, file, memory_type_index, allocation_size))
    }

    /// # Safety
    /// `file` is of an allocation by [`Self::allocate_shared`] of the same driver and device, of this type and size.
    unsafe fn import_shared(
        &self,
        file: File,
        size_bytes: u64,
        memory_type_index: u32,
        allocation_size: u64,
    ) -> Result<Chunk<VulkanoBuffer>, AllocError> {
        let raw = self.raw_buffer(size_bytes, ExternalMemoryHandleTypes::OPAQUE_FD)?;
        let needs = *raw.memory_requirements();
        if memory_type_index >= 32
            || needs.memory_type_bits & 1 << memory_type_index == 0
            || needs.layout.size() != allocation_size
        {
            return Err(AllocError::Failed(Error::InvalidArgument {
                what: "handle",
                expected: format!("memory that holds a buffer of {size_bytes} bytes"),
                got: format!("{allocation_size} bytes of type {memory_type_index}"),
            }));
        }
        let info = MemoryAllocateInfo {
            allocation_size,
            memory_type_index,
            dedicated_allocation: Some(DedicatedAllocation::Buffer(&raw)),
            flags: MemoryAllocateFlags::DEVICE_ADDRESS,
            ..Default::default()
        };
        let import = MemoryImportInfo::Fd { handle_type: FD, file };
        // SAFETY: the descriptor is of the same driver and device, of an allocation of this size and type that is
        // dedicated to a buffer made by the same code; it is not used again.
        let memory = unsafe { DeviceMemory::import(Arc::clone(self.device()), info, import) }.map_err(|e| match e {
            Validated::Error(VulkanError::InvalidExternalHandle) => AllocError::Failed(Error::InvalidArgument {
                what: "handle",
                expected: "memory that is still shared".to_string(),
                got: "a descriptor of something else".to_string(),
            }),
            e => alloc_error("vkAllocateMemory", e),
        })?;
        self.bind(raw, memory, self.maps(MemoryKind::Device))
    }
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A buffer with undefined contents that other processes can map.
pub fn shared_buffer(pool: &Arc<DevicePool>, size_bytes: u64) -> Result<Buffer, AllocError> {
    let (chunk, file, memory_type, allocation_bytes) =
        pool.backing().allocate_shared(size_bytes.next_multiple_of(ROUND_BYTES))?;
    Ok(buffer(pool, chunk, size_bytes, |memory| External {
        memory,
        file: Some(file),
        memory_type,
        allocation_bytes,
        serial: SERIAL.fetch_add(1, Relaxed),
    }))
}

/// The buffer of another process.
///
/// # Safety
/// `file` comes from the same driver and device, where [`shared_buffer`] exported it, with this type of memory and
/// these sizes: the driver does not compare them.
pub unsafe fn imported_buffer(
    pool: &Arc<DevicePool>,
    file: File,
    size_bytes: u64,
    memory_type: u32,
    allocation_bytes: u64,
) -> Result<Buffer, AllocError> {
    let limit_bytes = pool.limits.max_buffer_bytes;
    if size_bytes > limit_bytes || allocation_bytes > limit_bytes.max(size_bytes.saturating_mul(2)) {
        return Err(AllocError::TooLarge { limit_bytes });
    }
    let reserved = size_bytes.next_multiple_of(ROUND_BYTES);
    // SAFETY: the contract is the same.
    let chunk = unsafe { pool.backing().import_shared(file, reserved, memory_type, allocation_bytes)? };
    Ok(buffer(pool, chunk, size_bytes, |memory| External {
        memory,
        file: None,
        memory_type,
        allocation_bytes,
        serial: 0,
    }))
}

fn buffer(
    pool: &Arc<DevicePool>,
    chunk: Chunk<VulkanoBuffer>,
    size_bytes: u64,
    external: impl FnOnce(VulkanoBuffer) -> External,
) -> Buffer {
    let block = Block {
        kind: MemoryKind::Device,
        region: u32::MAX,
        offset: 0,
        size_bytes: size_bytes.next_multiple_of(ROUND_BYTES),
        handle: chunk.handle,
        address: chunk.address,
        mapped: chunk.mapped,
    };
    Buffer::external(block, size_bytes, Arc::clone(pool), external(chunk.memory))
}
