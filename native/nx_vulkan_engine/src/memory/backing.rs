//! Regions from Vulkan: one `VkDeviceMemory` with one `VkBuffer` over all of it.

use std::ptr::null_mut;
use std::sync::Arc;

use vulkano::buffer::sys::RawBuffer;
use vulkano::buffer::{Buffer as VulkanoBuffer, BufferCreateInfo, BufferUsage};
use vulkano::device::Device;
use vulkano::memory::{DeviceMemory, MemoryAllocateFlags, MemoryAllocateInfo, MemoryMapInfo, ResourceMemory};
use vulkano::{Validated, VulkanError, VulkanObject};

use super::block::Kind;
use super::pool::{AllocError, Backing, Chunk};
use crate::Error;
use crate::device::{Caps, MemoryTypeInfo, describe};

/// Share of a heap that the pool may fill, in percent. The rest is for the driver and for other programs; on a CPU device the heap is
/// all of the host's memory.
const DEVICE_BUDGET_PERCENT: u64 = 95;
const CPU_BUDGET_PERCENT: u64 = 80;
const SPILL_BUDGET_PERCENT: u64 = 50;

/// Which memory type serves each kind, best first, and how much of it.
#[derive(Debug)]
pub(crate) struct DeviceMemoryPlan {
    types: [Vec<u32>; Kind::COUNT],
    map: [bool; Kind::COUNT],
    pub budget_bytes: [u64; Kind::COUNT],
}

impl DeviceMemoryPlan {
    /// `limit_bytes` caps the budget for tensors; `staged` treats unified memory as if the host could not see it.
    pub fn new(caps: &Caps, limit_bytes: Option<u64>, staged: bool) -> DeviceMemoryPlan {
        let unified = caps.is_unified() && !staged;
        let types = KINDS.map(|kind| ranked(caps, kind, unified));
        let first = |kind: Kind| {
            let index = *types[kind as usize].first()?;
            caps.memory_types.get(index as usize)
        };
        let heap_bytes = |t: &MemoryTypeInfo| caps.heaps.get(t.heap as usize).map_or(0, |h| h.size_bytes);
        let percent = match caps.kind {
            crate::device::DeviceKind::Cpu => CPU_BUDGET_PERCENT,
            _ => DEVICE_BUDGET_PERCENT,
        };
        let device = first(Kind::Device);
        let device_budget = device.map_or(0, |t| heap_bytes(t) / 100 * percent);
        // Spilling into the heap that is already full would gain nothing.
        let spill_budget = first(Kind::Spill)
            .filter(|t| device.is_some_and(|d| d.heap != t.heap))
            .map_or(0, |t| heap_bytes(t) / 100 * SPILL_BUDGET_PERCENT);
        let limit = limit_bytes.unwrap_or(u64::MAX);
        let mut budget_bytes = [u64::MAX; Kind::COUNT];
        budget_bytes[Kind::Device as usize] = device_budget.min(limit);
        budget_bytes[Kind::Spill as usize] = spill_budget.min(limit);
        let mut map = [true; Kind::COUNT];
        map[Kind::Device as usize] = unified && device.is_some_and(|t| t.host_visible && t.host_coherent);
        DeviceMemoryPlan { types, map, budget_bytes }
    }
}

const KINDS: [Kind; Kind::COUNT] = [Kind::Device, Kind::Spill, Kind::Upload, Kind::Readback, Kind::Arguments];

fn ranked(caps: &Caps, kind: Kind, unified: bool) -> Vec<u32> {
    let mut types: Vec<(u32, u32)> =
        (0u32..).zip(&caps.memory_types).filter_map(|(i, t)| Some((score(t, kind, unified)?, i))).collect();
    types.sort_by_key(|&(score, i)| (std::cmp::Reverse(score), i));
    types.into_iter().map(|(_, i)| i).collect()
}

/// How well a memory type serves a kind; `None` for not at all.
fn score(t: &MemoryTypeInfo, kind: Kind, unified: bool) -> Option<u32> {
    let host = t.host_visible && t.host_coherent;
    let points = |wishes: &[(bool, u32)]| wishes.iter().map(|&(holds, weight)| if holds { weight } else { 0 }).sum();
    match kind {
        _ if t.special => None,
        Kind::Device if unified => Some(points(&[(t.device_local, 8), (host, 4), (host && t.host_cached, 2)])),
        Kind::Device => Some(points(&[(t.device_local, 8), (!t.host_visible, 4)])),
        Kind::Spill => host.then(|| points(&[(!t.device_local, 4), (t.host_cached, 1)])),
        Kind::Upload => host.then(|| points(&[(!t.device_local, 4), (!t.host_cached, 1)])),
        Kind::Readback => host.then(|| points(&[(t.host_cached, 8), (!t.device_local, 1)])),
        Kind::Arguments => host.then(|| points(&[(t.device_local, 4)])),
    }
}

#[derive(Debug)]
pub(crate) struct VulkanBacking {
    device: Arc<Device>,
    plan: DeviceMemoryPlan,
}

impl VulkanBacking {
    pub fn new(device: Arc<Device>, plan: DeviceMemoryPlan) -> VulkanBacking {
        VulkanBacking { device, plan }
    }
}

impl Backing for VulkanBacking {
    type Memory = VulkanoBuffer;

    fn allocate(&self, kind: Kind, size_bytes: u64) -> Result<Chunk<VulkanoBuffer>, AllocError> {
        let raw = RawBuffer::new(
            Arc::clone(&self.device),
            BufferCreateInfo {
                size: size_bytes,
                usage: BufferUsage::STORAGE_BUFFER
                    | BufferUsage::TRANSFER_SRC
                    | BufferUsage::TRANSFER_DST
                    | BufferUsage::INDIRECT_BUFFER
                    | BufferUsage::SHADER_DEVICE_ADDRESS,
                ..Default::default()
            },
        )
        .map_err(|e| alloc_error("vkCreateBuffer", e))?;
        let needs = *raw.memory_requirements();
        let memory_type_index = self.plan.types[kind as usize]
            .iter()
            .copied()
            .find(|&i| needs.memory_type_bits & (1 << i) != 0)
            .ok_or(AllocError::OutOfMemory)?;
        let mut memory = DeviceMemory::allocate(
            Arc::clone(&self.device),
            MemoryAllocateInfo {
                allocation_size: needs.layout.size(),
                memory_type_index,
                flags: MemoryAllocateFlags::DEVICE_ADDRESS,
                ..Default::default()
            },
        )
        .map_err(|e| alloc_error("vkAllocateMemory", e))?;
        let mut mapped = null_mut();
        if self.plan.map[kind as usize] {
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
}

fn alloc_error(call: &'static str, error: Validated<VulkanError>) -> AllocError {
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
