//! Barriers of the stream: what they wait for, and what waits for them.

use std::ptr::null;

use ash::vk;

use super::{Recorder, Stream};

/// What the stream records.
const RECORDED_STAGES: vk::PipelineStageFlags =
    vk::PipelineStageFlags::from_raw(DEVICE_STAGES.as_raw() | COUNTING_STAGES.as_raw());
/// What reads and writes buffers, but for launches that read their group counts: NVIDIA's driver takes 2.5 us to wait
/// for those on an H200.
pub(super) const DEVICE_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
);
pub(super) const DEVICE_ACCESS: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_READ.as_raw()
        | vk::AccessFlags::SHADER_WRITE.as_raw()
        | vk::AccessFlags::TRANSFER_READ.as_raw()
        | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
);
/// What those launches do besides.
pub(super) const COUNTING_STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::DRAW_INDIRECT;
pub(super) const COUNTING_ACCESS: vk::AccessFlags = vk::AccessFlags::INDIRECT_COMMAND_READ;

impl Stream {
    /// A barrier that begins an epoch.
    pub(super) fn barrier_before(
        &self,
        recorder: &mut Recorder,
        cmd: vk::CommandBuffer,
        stages: vk::PipelineStageFlags,
        access: vk::AccessFlags,
    ) {
        let asked = match std::mem::take(&mut recorder.asked_words) {
            true => vk::PipelineStageFlags::CONDITIONAL_RENDERING_EXT,
            false => vk::PipelineStageFlags::empty(),
        };
        self.barrier_from(cmd, RECORDED_STAGES | asked, stages, access);
        recorder.epoch += 1;
        recorder.counters.barriers += 1;
    }

    /// One global memory barrier from everything the stream records to `stages` and `access`.
    pub(super) fn barrier(&self, cmd: vk::CommandBuffer, stages: vk::PipelineStageFlags, access: vk::AccessFlags) {
        self.barrier_from(cmd, RECORDED_STAGES, stages, access);
    }

    fn barrier_from(
        &self,
        cmd: vk::CommandBuffer,
        from: vk::PipelineStageFlags,
        stages: vk::PipelineStageFlags,
        access: vk::AccessFlags,
    ) {
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(access);
        self.memory_barrier(cmd, from, stages, &barrier);
    }

    /// A barrier of a command buffer that only copies, from all that was there before it.
    pub(super) fn copy_barrier(&self, cmd: vk::CommandBuffer, stages: vk::PipelineStageFlags, access: vk::AccessFlags) {
        let barrier =
            vk::MemoryBarrier::default().src_access_mask(vk::AccessFlags::MEMORY_WRITE).dst_access_mask(access);
        self.memory_barrier(cmd, vk::PipelineStageFlags::ALL_COMMANDS, stages, &barrier);
    }

    fn memory_barrier(
        &self,
        cmd: vk::CommandBuffer,
        from: vk::PipelineStageFlags,
        stages: vk::PipelineStageFlags,
        barrier: &vk::MemoryBarrier<'_>,
    ) {
        // SAFETY: the command buffer is recording outside of a render pass, on a queue that has these stages.
        unsafe {
            (self.open.device.fns().v1_0.cmd_pipeline_barrier)(
                cmd,
                from,
                stages,
                vk::DependencyFlags::empty(),
                1,
                barrier,
                0,
                null(),
                0,
                null(),
            );
        }
    }
}
