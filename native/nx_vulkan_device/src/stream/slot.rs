//! One recyclable command buffer with its fence and the descriptor sets recorded into it.

use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use nx_vulkan_ir::{Error, Result};
use vulkano::VulkanObject;
use vulkano::device::{Device, DeviceOwned, Queue};

use super::queries::Queries;
use crate::device::OpenDevice;
use crate::kernel::BoundLaunch;
use crate::profile::{Measured, Profiler};
use crate::work::Work;

/// Sets and storage buffers of one descriptor pool.
const POOL_SETS: u32 = 64;
const POOL_BUFFERS: u32 = 1024;

pub(super) struct Slot {
    pool: vk::CommandPool,
    cmd: vk::CommandBuffer,
    fence: vk::Fence,
    /// Threads that poll the fence: it must not be reset under them.
    waiters: AtomicU32,
    descriptors: Mutex<Descriptors>,
    /// Timestamps, while a profile is taken.
    queries: Mutex<Option<Queries>>,
}

#[derive(Default)]
struct Descriptors {
    pools: Vec<vk::DescriptorPool>,
    /// Pools before this index are full.
    active: usize,
}

impl Slot {
    /// A command buffer for the queues of a family.
    pub fn new(open: &OpenDevice, queue_family: u32) -> Result<Slot> {
        let (device, fns) = (open.device.handle(), &open.device.fns().v1_0);
        let mut slot = Slot {
            pool: vk::CommandPool::null(),
            cmd: vk::CommandBuffer::null(),
            fence: vk::Fence::null(),
            waiters: AtomicU32::new(0),
            descriptors: Mutex::default(),
            queries: Mutex::default(),
        };
        // SAFETY: plain object creation on a live device; every out pointer is a field of `slot`.
        let created = unsafe {
            let info = vk::CommandPoolCreateInfo::default()
                .flags(vk::CommandPoolCreateFlags::TRANSIENT)
                .queue_family_index(queue_family);
            ok("vkCreateCommandPool", (fns.create_command_pool)(device, &info, null(), &mut slot.pool))
                .and_then(|()| {
                    let info = vk::CommandBufferAllocateInfo::default()
                        .command_pool(slot.pool)
                        .level(vk::CommandBufferLevel::PRIMARY)
                        .command_buffer_count(1);
                    ok("vkAllocateCommandBuffers", (fns.allocate_command_buffers)(device, &info, &mut slot.cmd))
                })
                .and_then(|()| {
                    let info = vk::FenceCreateInfo::default();
                    ok("vkCreateFence", (fns.create_fence)(device, &info, null(), &mut slot.fence))
                })
        };
        match created {
            Ok(()) => Ok(slot),
            Err(e) => {
                slot.destroy(&open.device);
                Err(e)
            }
        }
    }

    pub fn cmd(&self) -> vk::CommandBuffer {
        self.cmd
    }

    fn queries(&self) -> MutexGuard<'_, Option<Queries>> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears what was recorded and starts anew, with timestamps if it is to measure. The slot must not be in flight
    /// and nobody may wait for it.
    pub fn begin(&self, device: &Device, measures: bool) -> Result<()> {
        let fns = &device.fns().v1_0;
        let handle = device.handle();
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the last submission is complete (VUID-vkResetCommandPool-commandPool-00040,
        // VUID-vkResetFences-pFences-01123, VUID-vkResetDescriptorPool-descriptorPool-00313), and the recorder's lock
        // gives external synchronization.
        unsafe {
            ok("vkResetFences", (fns.reset_fences)(handle, 1, &self.fence))?;
            for &pool in descriptors.pools.iter().take(descriptors.active + 1) {
                ok(
                    "vkResetDescriptorPool",
                    (fns.reset_descriptor_pool)(handle, pool, vk::DescriptorPoolResetFlags::empty()),
                )?;
            }
            ok("vkResetCommandPool", (fns.reset_command_pool)(handle, self.pool, vk::CommandPoolResetFlags::empty()))?;
            let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
            ok("vkBeginCommandBuffer", (fns.begin_command_buffer)(self.cmd, &info))?;
        }
        descriptors.active = 0;
        let mut queries = self.queries();
        if measures {
            let queries = match queries.take() {
                Some(found) => queries.insert(found),
                None => queries.insert(Queries::new(device)?),
            };
            queries.reset(device, self.cmd);
        } else if let Some(unused) = queries.take() {
            unused.destroy(device);
        }
        Ok(())
    }

    /// Begins to measure the next command; answers whether it does.
    pub fn begin_measure(&self, device: &Device) -> Option<bool> {
        self.queries().as_mut().map(|queries| queries.begin(device, self.cmd))
    }

    /// Ends the measurement of a command.
    pub fn end_measure(&self, device: &Device, what: Measured, work: Option<Work>) {
        if let Some(queries) = self.queries().as_mut() {
            queries.end(device, self.cmd, what, work);
        }
    }

    /// Adds what the submission measured to the profile, once it is complete.
    pub fn collect(&self, open: &OpenDevice, profiler: &Profiler) -> Result<()> {
        match self.queries().as_mut() {
            Some(queries) => queries.collect(&open.device, &open.caps, profiler),
            None => Ok(()),
        }
    }

    /// Ends the command buffer.
    pub fn end(&self, device: &Device) -> Result<()> {
        // SAFETY: the command buffer is recording.
        ok("vkEndCommandBuffer", unsafe { (device.fns().v1_0.end_command_buffer)(self.cmd) })
    }

    /// Submits the command buffer, which has ended, with the fence, to a queue of the family that it was made for.
    pub fn submit(&self, queue: &Arc<Queue>) -> Result<()> {
        let fns = &queue.device().fns().v1_0;
        let commands = [self.cmd];
        let info = vk::SubmitInfo::default().command_buffers(&commands);
        // SAFETY: the guard gives external synchronization of the queue; the fence is unsignalled and unused.
        let result = queue.with(|_guard| unsafe { (fns.queue_submit)(queue.handle(), 1, &info, self.fence) });
        ok("vkQueueSubmit", result)
    }

    pub fn is_signalled(&self, device: &Device) -> Result<bool> {
        // SAFETY: the fence lives.
        match unsafe { (device.fns().v1_0.get_fence_status)(device.handle(), self.fence) } {
            vk::Result::NOT_READY => Ok(false),
            result => ok("vkGetFenceStatus", result).map(|()| true),
        }
    }

    /// Blocks until the fence is signalled or the timeout passes. Returns whether it is signalled.
    pub fn block(&self, device: &Device, timeout_ns: u64) -> Result<bool> {
        // SAFETY: the fence lives.
        let result =
            unsafe { (device.fns().v1_0.wait_for_fences)(device.handle(), 1, &self.fence, vk::TRUE, timeout_ns) };
        match result {
            vk::Result::TIMEOUT => Ok(false),
            result => ok("vkWaitForFences", result).map(|()| true),
        }
    }

    /// Keeps the fence from being reset until `remove_waiter`. Called under the recorder's lock.
    pub fn add_waiter(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
    }

    pub fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Acquire) != 0
    }

    /// A descriptor set for the launch, valid until the slot begins anew.
    pub fn descriptor_set(&self, device: &Device, launch: &BoundLaunch<'_>) -> Result<vk::DescriptorSet> {
        if launch.bindings.is_empty() {
            return Ok(vk::DescriptorSet::null());
        }
        let set = self.allocate_set(device, launch)?;
        let buffers: Vec<_> = launch
            .bindings
            .iter()
            .map(|b| {
                let block = b.buffer.block();
                vk::DescriptorBufferInfo::default()
                    .buffer(block.handle)
                    .offset(block.offset + b.offset)
                    .range(b.size_bytes.max(1).next_multiple_of(4))
            })
            .collect();
        let writes: Vec<_> = (0u32..)
            .zip(&buffers)
            .map(|(binding, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(std::slice::from_ref(info))
            })
            .collect();
        // SAFETY: the set is new, so no submission uses it; ranges were checked against the buffers.
        unsafe {
            (device.fns().v1_0.update_descriptor_sets)(
                device.handle(),
                writes.len() as u32,
                writes.as_ptr(),
                0,
                null(),
            );
        }
        Ok(set)
    }

    fn allocate_set(&self, device: &Device, launch: &BoundLaunch<'_>) -> Result<vk::DescriptorSet> {
        let fns = &device.fns().v1_0;
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let fresh = descriptors.active == descriptors.pools.len();
            if fresh {
                let pool = create_pool(device, launch.bindings.len() as u32)?;
                descriptors.pools.push(pool);
            }
            let layouts = [launch.pipeline.set_layout()];
            let info = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(descriptors.pools[descriptors.active])
                .set_layouts(&layouts);
            let mut set = vk::DescriptorSet::null();
            // SAFETY: pool and layout live; the lock gives external synchronization of the pool.
            let result = unsafe { (fns.allocate_descriptor_sets)(device.handle(), &info, &mut set) };
            match result {
                vk::Result::ERROR_OUT_OF_POOL_MEMORY | vk::Result::ERROR_FRAGMENTED_POOL if !fresh => {
                    descriptors.active += 1;
                }
                result => return ok("vkAllocateDescriptorSets", result).map(|()| set),
            }
        }
    }

    /// Destroys the Vulkan objects. The slot must not be in flight.
    pub fn destroy(&self, device: &Device) {
        let fns = &device.fns().v1_0;
        let handle = device.handle();
        if let Some(queries) = self.queries().take() {
            queries.destroy(device);
        }
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing in flight uses the objects; null handles are ignored.
        unsafe {
            for &pool in &descriptors.pools {
                (fns.destroy_descriptor_pool)(handle, pool, null());
            }
            (fns.destroy_fence)(handle, self.fence, null());
            (fns.destroy_command_pool)(handle, self.pool, null());
        }
    }
}

fn create_pool(device: &Device, bindings: u32) -> Result<vk::DescriptorPool> {
    let sizes = [vk::DescriptorPoolSize::default()
        .ty(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(POOL_BUFFERS.max(bindings))];
    let info = vk::DescriptorPoolCreateInfo::default().max_sets(POOL_SETS).pool_sizes(&sizes);
    let mut pool = vk::DescriptorPool::null();
    // SAFETY: plain object creation on a live device.
    let result = unsafe { (device.fns().v1_0.create_descriptor_pool)(device.handle(), &info, null(), &mut pool) };
    ok("vkCreateDescriptorPool", result).map(|()| pool)
}

pub(super) fn ok(call: &'static str, result: vk::Result) -> Result<()> {
    match result {
        vk::Result::SUCCESS => Ok(()),
        vk::Result::ERROR_DEVICE_LOST => Err(Error::DeviceLost),
        // The stream knows the numbers.
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            Err(Error::OutOfMemory { size_bytes: 0, in_use_bytes: 0, budget_bytes: 0 })
        }
        result => Err(Error::Vulkan { call, cause: result.to_string() }),
    }
}
