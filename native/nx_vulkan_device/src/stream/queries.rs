//! Timestamps around the commands of one command buffer.

use std::ptr::null;
use std::time::Duration;

use ash::vk;
use nx_vulkan_ir::Result;
use vulkano::VulkanObject;
use vulkano::device::Device;

use super::slot::ok;
use crate::device::Caps;
use crate::profile::{Measured, Profiler};
use crate::work::Work;

/// Commands that one command buffer can measure: above the number that it is submitted after.
pub(super) const MAX_MARKS: u32 = 1024;

/// A query pool of two timestamps per command, and what they were.
pub(super) struct Queries {
    pool: vk::QueryPool,
    marks: Vec<(Measured, Option<Work>)>,
}

impl Queries {
    pub fn new(device: &Device) -> Result<Queries> {
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2 * MAX_MARKS);
        let mut pool = vk::QueryPool::null();
        // SAFETY: plain object creation on a live device.
        let result = unsafe { (device.fns().v1_0.create_query_pool)(device.handle(), &info, null(), &mut pool) };
        ok("vkCreateQueryPool", result).map(|()| Queries { pool, marks: Vec::new() })
    }

    /// Forgets all marks, in a command buffer that has just begun.
    pub fn reset(&mut self, device: &Device, cmd: vk::CommandBuffer) {
        self.marks.clear();
        // SAFETY: the command buffer is recording outside of a render pass, and no submission uses the pool
        // (VUID-vkCmdResetQueryPool-firstQuery-02862).
        unsafe { (device.fns().v1_0.cmd_reset_query_pool)(cmd, self.pool, 0, 2 * MAX_MARKS) };
    }

    /// Writes the first timestamp of the next command; answers whether there was room.
    pub fn begin(&mut self, device: &Device, cmd: vk::CommandBuffer) -> bool {
        let next = self.marks.len() as u32;
        if next < MAX_MARKS {
            self.write(device, cmd, 2 * next);
        }
        next < MAX_MARKS
    }

    /// Writes the second timestamp of the command that was begun.
    pub fn end(&mut self, device: &Device, cmd: vk::CommandBuffer, what: Measured, work: Option<Work>) {
        self.write(device, cmd, 2 * self.marks.len() as u32 + 1);
        self.marks.push((what, work));
    }

    fn write(&self, device: &Device, cmd: vk::CommandBuffer, query: u32) {
        // SAFETY: the query exists and was reset in this command buffer, whose queue has timestamps
        // (VUID-vkCmdWriteTimestamp-queryPool-00828, -timestampValidBits-00829). It waits for all commands before it.
        unsafe {
            (device.fns().v1_0.cmd_write_timestamp)(cmd, vk::PipelineStageFlags::BOTTOM_OF_PIPE, self.pool, query);
        }
    }

    /// Adds the times of a complete submission to the profile.
    pub fn collect(&mut self, device: &Device, caps: &Caps, profiler: &Profiler) -> Result<()> {
        let marks = std::mem::take(&mut self.marks);
        if marks.is_empty() {
            return Ok(());
        }
        let mut ticks = vec![0u64; 2 * marks.len()];
        // SAFETY: `ticks` holds 64 bits for each of the queries, all of which were written
        // (VUID-vkGetQueryPoolResults-dataSize-00817, -firstQuery-09436).
        let result = unsafe {
            (device.fns().v1_0.get_query_pool_results)(
                device.handle(),
                self.pool,
                0,
                ticks.len() as u32,
                size_of_val(&ticks[..]),
                ticks.as_mut_ptr().cast(),
                size_of::<u64>() as u64,
                vk::QueryResultFlags::TYPE_64,
            )
        };
        if let Err(error) = ok("vkGetQueryPoolResults", result) {
            // They are asked for again.
            self.marks = marks;
            return Err(error);
        }
        let mask = u64::MAX >> (u64::BITS - caps.timestamp_valid_bits.clamp(1, u64::BITS));
        for ((what, work), pair) in marks.iter().zip(ticks.as_chunks::<2>().0) {
            let passed = pair[1].wrapping_sub(pair[0]) & mask;
            let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 * f64::from(caps.timestamp_period_ns) * 1e-9);
            profiler.add(what, *work, time(pair[0] & mask), time(passed));
        }
        Ok(())
    }

    /// Destroys the pool. No submission uses it any more.
    pub fn destroy(&self, device: &Device) {
        // SAFETY: nothing in flight uses the pool; a null handle is ignored.
        unsafe { (device.fns().v1_0.destroy_query_pool)(device.handle(), self.pool, null()) };
    }
}
