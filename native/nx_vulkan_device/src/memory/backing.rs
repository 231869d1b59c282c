//! Regions from Vulkan: one `VkDeviceMemory` with one `VkBuffer` over all of it.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use ash::vk;
use nx_vulkan_ir::Error;
use smallvec::SmallVec;
use vulkano::buffer::sys::RawBuffer;
use vulkano::buffer::{Buffer as VulkanoBuffer, BufferCreateInfo, BufferUsage};
use vulkano::device::Device;
use vulkano::memory::{
    DeviceMemory, ExternalMemoryHandleTypes, MemoryAllocateFlags, MemoryAllocateInfo, MemoryMapInfo, ResourceMemory,
};
use vulkano::sync::Sharing;
use vulkano::{Validated, VulkanError, VulkanObject};

use super::block::MemoryKind;
use super::pool::{AllocError, Backing, Chunk, PoolLimits};
use crate::device::{Caps, DeviceKind, MemoryTypeInfo, OpenDevice, describe};

pub(super) const USAGE: BufferUsage = BufferUsage::STORAGE_BUFFER
    .union(BufferUsage::TRANSFER_SRC)
    .union(BufferUsage::TRANSFER_DST)
    .union(BufferUsage::INDIRECT_BUFFER)
    .union(BufferUsage::SHADER_DEVICE_ADDRESS);

/// Share of a heap that the pool may fill, in percent. The rest is for the driver and for other programs; on a CPU
/// device the heap is all of the host's memory.
const DEVICE_BUDGET_PERCENT: u64 = 95;
const CPU_BUDGET_PERCENT: u64 = 80;
const SMALL_BUDGET_PERCENT: u64 = 25;
const SPILL_BUDGET_PERCENT: u64 = 50;

/// Regions of a kind start at the first size and double up to the second: a driver takes longer for larger ones.
const REGION_BYTES: (u64, u64) = (32 << 20, 256 << 20);
const REGION_BYTES_UNIFIED: (u64, u64) = (16 << 20, 128 << 20);
const REGION_BYTES_SMALL: (u64, u64) = (4 << 20, 64 << 20);
const REGION_BYTES_STAGING: (u64, u64) = (1 << 20, 64 << 20);

/// How the host may reach tensors in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostAccess {
    /// Directly as far as the device allows: all of it on CPU and integrated devices, small tensors on discrete ones.
    #[default]
    Auto,
    /// Small tensors at most, as on a discrete GPU, and what is more than the limit of device memory, where there is
    /// one, is spilled as there.
    Small,
    /// Only through copies in staging memory.
    Never,
}

/// Which memory type serves each kind, best first, and how much of it.
#[derive(Debug)]
pub struct DeviceMemoryPlan {
    memory_types: Vec<MemoryTypeInfo>,
    ranked: [Vec<u32>; MemoryKind::COUNT],
    map: [bool; MemoryKind::COUNT],
    max_allocation_bytes: u64,
    /// Bounds of the pool.
    pub limits: PoolLimits,
}

impl DeviceMemoryPlan {
    /// `limit_bytes` caps the budget for tensors. At most `uncached_read_bytes` are read directly from memory that the
    /// host does not cache.
    pub fn new(
        caps: &Caps,
        limit_bytes: Option<u64>,
        access: HostAccess,
        uncached_read_bytes: u64,
    ) -> DeviceMemoryPlan {
        let unified = caps.is_unified() && access == HostAccess::Auto;
        let ranked = KINDS.map(|kind| ranked(caps, kind, unified));
        let first =
            |kind: MemoryKind| ranked[kind as usize].first().and_then(|&i| caps.memory_types.get(i as usize)).copied();
        let share = |t: MemoryTypeInfo, percent: u64| {
            caps.heaps
                .get(t.heap as usize)
                .map_or(0, |h| h.size_bytes / 100 * percent)
                .min(limit_bytes.unwrap_or(u64::MAX))
        };
        let percent = match caps.kind {
            DeviceKind::Cpu => CPU_BUDGET_PERCENT,
            _ => DEVICE_BUDGET_PERCENT,
        };
        let device = first(MemoryKind::Device);
        let budget_bytes = KINDS.map(|kind| match kind {
            MemoryKind::Device => device.map_or(0, |t| share(t, percent)),
            MemoryKind::Small if unified || access == HostAccess::Never => 0,
            MemoryKind::Small => first(kind).map_or(0, |t| share(t, SMALL_BUDGET_PERCENT)),
            // Spilling into the heap that is already full would gain nothing.
            MemoryKind::Spill => first(kind)
                .filter(|t| device.is_some_and(|d| d.heap != t.heap) || access != HostAccess::Auto)
                .map_or(0, |t| share(t, SPILL_BUDGET_PERCENT)),
            MemoryKind::Upload | MemoryKind::Readback | MemoryKind::Arguments => u64::MAX,
        });
        let limits = PoolLimits {
            max_buffer_bytes: caps.max_buffer_bytes,
            budget_bytes,
            region_bytes: KINDS.map(|kind| match kind {
                MemoryKind::Device if unified => REGION_BYTES_UNIFIED,
                MemoryKind::Device | MemoryKind::Spill => REGION_BYTES,
                MemoryKind::Small => REGION_BYTES_SMALL,
                MemoryKind::Upload | MemoryKind::Readback | MemoryKind::Arguments => REGION_BYTES_STAGING,
            }),
            direct_read_bytes: KINDS.map(|kind| match first(kind) {
                Some(t) if t.host_cached => u64::MAX,
                _ => uncached_read_bytes,
            }),
        };
        let map = KINDS.map(|kind| kind != MemoryKind::Device || unified);
        let max_allocation_bytes = caps.max_allocation_bytes;
        DeviceMemoryPlan { memory_types: caps.memory_types.clone(), ranked, map, max_allocation_bytes, limits }
    }
}

const KINDS: [MemoryKind; MemoryKind::COUNT] = [
    MemoryKind::Device,
    MemoryKind::Small,
    MemoryKind::Spill,
    MemoryKind::Upload,
    MemoryKind::Readback,
    MemoryKind::Arguments,
];

fn ranked(caps: &Caps, kind: MemoryKind, unified: bool) -> Vec<u32> {
    let mut types: Vec<(u32, u32)> =
        (0u32..).zip(&caps.memory_types).filter_map(|(i, t)| Some((score(t, kind, unified)?, i))).collect();
    types.sort_by_key(|&(score, i)| (std::cmp::Reverse(score), i));
    types.into_iter().map(|(_, i)| i).collect()
}

/// How well a memory type serves a kind; `None` for not at all.
fn score(t: &MemoryTypeInfo, kind: MemoryKind, unified: bool) -> Option<u32> {
    let host = t.host_visible && t.host_coherent;
    let points = |wishes: &[(bool, u32)]| wishes.iter().map(|&(holds, weight)| if holds { weight } else { 0 }).sum();
    match kind {
        _ if t.special => None,
        MemoryKind::Device if unified => Some(points(&[(t.device_local, 8), (host, 4), (host && t.host_cached, 2)])),
        MemoryKind::Device => Some(points(&[(t.device_local, 8), (!t.host_visible, 4)])),
        MemoryKind::Small => (host && t.device_local).then(|| points(&[(t.host_cached, 1)])),
        MemoryKind::Spill => host.then(|| points(&[(!t.device_local, 4), (t.host_cached, 1)])),
        MemoryKind::Upload => host.then(|| points(&[(!t.device_local, 4), (!t.host_cached, 1)])),
        MemoryKind::Readback => host.then(|| points(&[(t.host_cached, 8), (!t.device_local, 1)])),
        MemoryKind::Arguments => host.then(|| points(&[(t.device_local, 4)])),
    }
}

/// The device's memory, by vulkano's allocator of dedicated blocks.
#[derive(Debug)]
pub struct VulkanBacking {
    device: Arc<Device>,
    /// The families of the queues that use its buffers, each once.
    families: SmallVec<[u32; 4]>,
    plan: DeviceMemoryPlan,
}

impl VulkanBacking {
    /// Memory of a device, of the types that the plan names.
    pub fn new(open: &OpenDevice, plan: DeviceMemoryPlan) -> VulkanBacking {
        let mut families: SmallVec<_> = [open.queue.queue_family_index(), open.transfer_family()].into_iter().collect();
        families.dedup();
        VulkanBacking { device: Arc::clone(&open.device), families, plan }
    }
}

impl Backing for VulkanBacking {
    type Memory = VulkanoBuffer;

    fn allocate(&self, kind: MemoryKind, size_bytes: u64) -> Result<Chunk<VulkanoBuffer>, AllocError> {
        let raw = self.raw_buffer(size_bytes, ExternalMemoryHandleTypes::empty())?;
        let (memory_type_index, size) = self.memory_type(&raw, kind)?;
        let info = MemoryAllocateInfo {
            allocation_size: size,
            memory_type_index,
            flags: MemoryAllocateFlags::DEVICE_ADDRESS,
            ..Default::default()
        };
        let limit_bytes = self.plan.max_allocation_bytes;
        let memory = DeviceMemory::allocate(Arc::clone(&self.device), info).map_err(|e| {
            match alloc_error("vkAllocateMemory", e) {
                AllocError::OutOfMemory if size_bytes > limit_bytes => AllocError::TooLarge { limit_bytes },
                other => other,
            }
        })?;
        self.bind(raw, memory, self.plan.map[kind as usize])
    }
}

impl VulkanBacking {
    /// A buffer without memory.
    pub(super) fn raw_buffer(
        &self,
        size_bytes: u64,
        external: ExternalMemoryHandleTypes,
    ) -> Result<RawBuffer, AllocError> {
        let sharing = match external.is_empty() && self.families.len() > 1 {
            true => Sharing::Concurrent(self.families.clone()),
            false => Sharing::Exclusive,
        };
        let info = BufferCreateInfo {
            size: size_bytes,
            usage: USAGE,
            sharing,
            external_memory_handle_types: external,
            ..Default::default()
        };
        // Other processes make the same buffer over shared memory, which holds tensors alone.
        let decides = external.is_empty() && self.device.enabled_features().conditional_rendering;
        let created = match decides {
            true => self.deciding_buffer(info).map_err(Validated::Error),
            false => RawBuffer::new(Arc::clone(&self.device), info),
        };
        created.map_err(|e| alloc_error("vkCreateBuffer", e))
    }

    /// A buffer whose words may decide whether launches run, too: a usage that vulkano does not know.
    fn deciding_buffer(&self, info: BufferCreateInfo) -> Result<RawBuffer, VulkanError> {
        let usage = vk::BufferUsageFlags::from(info.usage) | vk::BufferUsageFlags::CONDITIONAL_RENDERING_EXT;
        let mut raw = vk::BufferCreateInfo::default().size(info.size).usage(usage);
        if let Sharing::Concurrent(families) = &info.sharing {
            raw = raw.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        let mut handle = vk::Buffer::null();
        // SAFETY: the device lives and has the extension whose usage is asked for; the pool asks for regions of some
        // bytes, no more than the device's largest buffer (VUID-VkBufferCreateInfo-size-00912, -06409), and the families
        // of its queues are different ones (-sharingMode-01419).
        let created =
            unsafe { (self.device.fns().v1_0.create_buffer)(self.device.handle(), &raw, null(), &mut handle) };
        match created {
            // SAFETY: the handle is that of a new buffer of this device without memory, made with what `info` says and
            // one usage more, and nobody else destroys it.
            vk::Result::SUCCESS => Ok(unsafe { RawBuffer::from_handle(Arc::clone(&self.device), handle, info) }),
            error => Err(error.into()),
        }
    }

    /// The best memory type of a kind for a buffer, and the bytes that it needs.
    pub(super) fn memory_type(&self, raw: &RawBuffer, kind: MemoryKind) -> Result<(u32, u64), AllocError> {
        let needs = raw.memory_requirements();
        let mut types = self.plan.ranked[kind as usize].iter().copied();
        let found = types.find(|&i| needs.memory_type_bits & (1 << i) != 0).ok_or(AllocError::OutOfMemory)?;
        Ok((found, needs.layout.size()))
    }

    /// Maps memory where that is asked for and possible, and binds it to its buffer.
    pub(super) fn bind(
        &self,
        raw: RawBuffer,
        mut memory: DeviceMemory,
        map: bool,
    ) -> Result<Chunk<VulkanoBuffer>, AllocError> {
        let memory_type = self.plan.memory_types[memory.memory_type_index() as usize];
        let mut mapped = null_mut();
        if map && memory_type.host_visible && memory_type.host_coherent {
            memory
                .map(MemoryMapInfo { size: memory.allocation_size(), ..Default::default() })
                .map_err(|e| alloc_error("vkMapMemory", e))?;
            if let Some(state) = memory.mapping_state() {
                mapped = state.ptr().as_ptr().cast();
            }
        }
        let buffer = raw
            .bind_memory(ResourceMemory::new_dedicated(memory))
            .map_err(|(e, _, _)| alloc_error("vkBindBufferMemory2", e))?;
        let address = buffer
            .device_address()
            .map_err(|e| AllocError::Failed(Error::Vulkan { call: "vkGetBufferDeviceAddress", cause: describe(&e) }))?;
        Ok(Chunk { handle: buffer.handle(), address: address.get(), mapped, memory: buffer })
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn maps(&self, kind: MemoryKind) -> bool {
        self.plan.map[kind as usize]
    }
}

pub(super) fn alloc_error(call: &'static str, error: Validated<VulkanError>) -> AllocError {
    match error {
        Validated::Error(
            VulkanError::OutOfDeviceMemory
            | VulkanError::OutOfHostMemory
            | VulkanError::TooManyObjects
            | VulkanError::MemoryMapFailed,
        ) => AllocError::OutOfMemory,
        Validated::Error(VulkanError::DeviceLost) => AllocError::Failed(Error::DeviceLost),
        e => AllocError::Failed(Error::Vulkan { call, cause: describe(&e) }),
    }
}
