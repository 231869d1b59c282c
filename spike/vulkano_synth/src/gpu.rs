//! A device and one chain dispatch on it, through vulkano's own builders: bytes in, bytes out.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vulkano::VulkanLibrary;
use vulkano::buffer::{Buffer, BufferCreateInfo, BufferUsage, Subbuffer};
use vulkano::command_buffer::allocator::StandardCommandBufferAllocator;
use vulkano::command_buffer::{AutoCommandBufferBuilder, CommandBufferUsage, PrimaryAutoCommandBuffer};
use vulkano::descriptor_set::allocator::StandardDescriptorSetAllocator;
use vulkano::descriptor_set::{DescriptorSet, WriteDescriptorSet};
use vulkano::device::physical::{PhysicalDevice, PhysicalDeviceType};
use vulkano::device::{Device, DeviceCreateInfo, DeviceFeatures, Queue, QueueCreateInfo, QueueFlags};
use vulkano::instance::{Instance, InstanceCreateInfo};
use vulkano::memory::allocator::{AllocationCreateInfo, MemoryTypeFilter, StandardMemoryAllocator};
use vulkano::pipeline::compute::ComputePipelineCreateInfo;
use vulkano::pipeline::layout::PipelineDescriptorSetLayoutCreateInfo;
use vulkano::pipeline::{ComputePipeline, Pipeline, PipelineBindPoint, PipelineLayout, PipelineShaderStageCreateInfo};
use vulkano::query::{QueryPool, QueryPoolCreateInfo, QueryResultFlags, QueryType};
use vulkano::shader::ShaderModule;
use vulkano::sync::{self, GpuFuture, PipelineStage};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub struct Gpu {
    device: Arc<Device>,
    queue: Arc<Queue>,
    memory: Arc<StandardMemoryAllocator>,
    descriptors: Arc<StandardDescriptorSetAllocator>,
    commands: Arc<StandardCommandBufferAllocator>,
}

/// Inputs of a chain in the synth ABI, and the sizes of its outputs.
pub struct Chain {
    pub q: Vec<u8>,
    pub p: Vec<u8>,
    pub extras: Vec<u8>,
    pub push: Vec<u8>,
    pub n_instances: u32,
    /// Bytes of q_chain, p_chain and grad_chain.
    pub rows_bytes: usize,
    pub logp_bytes: usize,
}

/// A chain whose buffers and pipeline stand ready.
pub struct Prepared {
    pipeline: Arc<ComputePipeline>,
    set: Arc<DescriptorSet>,
    outputs: [Subbuffer<[u8]>; 4],
    push: Vec<u8>,
    n_instances: u32,
    timestamps: Option<Arc<QueryPool>>,
}

/// What one dispatch took.
#[derive(Clone, Copy)]
pub struct Timing {
    /// From the submission to the fence.
    pub wall: Duration,
    /// Between timestamps around the dispatch, where the queue has them.
    pub on_device: Option<Duration>,
}

impl Gpu {
    pub fn open() -> Result<Self> {
        let instance = Instance::new(VulkanLibrary::new()?, InstanceCreateInfo::default())?;
        let rank = |device: &PhysicalDevice| match device.properties().device_type {
            PhysicalDeviceType::DiscreteGpu => 0,
            PhysicalDeviceType::IntegratedGpu => 1,
            PhysicalDeviceType::VirtualGpu => 2,
            _ => 3,
        };
        let physical = instance
            .enumerate_physical_devices()?
            .filter(|device| device.supported_features().shader_float64)
            .min_by_key(|device| rank(device))
            .ok_or("no Vulkan device with shaderFloat64")?;
        let family = physical
            .queue_family_properties()
            .iter()
            .position(|family| family.queue_flags.contains(QueueFlags::COMPUTE))
            .ok_or("no compute queue")?;
        let (device, mut queues) = Device::new(
            physical,
            DeviceCreateInfo {
                queue_create_infos: vec![QueueCreateInfo { queue_family_index: family as u32, ..Default::default() }],
                // The committed modules use what their scalar library uses; a device without it refuses the module.
                enabled_features: DeviceFeatures { shader_float64: true, shader_int64: true, ..Default::default() },
                ..Default::default()
            },
        )?;
        Ok(Self {
            queue: queues.next().ok_or("no queue")?,
            memory: Arc::new(StandardMemoryAllocator::new_default(device.clone())),
            descriptors: Arc::new(StandardDescriptorSetAllocator::new(device.clone(), Default::default())),
            commands: Arc::new(StandardCommandBufferAllocator::new(device.clone(), Default::default())),
            device,
        })
    }

    pub fn name(&self) -> &str {
        &self.device.physical_device().properties().device_name
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn buffer(&self, bytes: &[u8]) -> Result<Subbuffer<[u8]>> {
        Ok(Buffer::from_iter(
            self.memory.clone(),
            BufferCreateInfo { usage: BufferUsage::STORAGE_BUFFER, ..Default::default() },
            AllocationCreateInfo {
                memory_type_filter: MemoryTypeFilter::PREFER_DEVICE | MemoryTypeFilter::HOST_RANDOM_ACCESS,
                ..Default::default()
            },
            bytes.iter().copied(),
        )?)
    }

    pub fn prepare(&self, module: &Arc<ShaderModule>, chain: &Chain) -> Result<Prepared> {
        let stage =
            PipelineShaderStageCreateInfo::new(module.entry_point("main").ok_or("the module has no entry point main")?);
        let layout = PipelineLayout::new(
            self.device.clone(),
            PipelineDescriptorSetLayoutCreateInfo::from_stages([&stage])
                .into_pipeline_layout_create_info(self.device.clone())?,
        )?;
        // vulkano refuses to push beyond the range that the module declares.
        let declared = layout.push_constant_ranges().first().map_or(0, |range| range.size as usize);
        let push = chain.push.get(..declared).ok_or("the push data is shorter than the module's range")?.to_vec();
        let inputs = [&chain.q, &chain.p, &chain.extras].map(|bytes| self.buffer(bytes));
        let outputs = [chain.rows_bytes, chain.rows_bytes, chain.rows_bytes, chain.logp_bytes]
            .map(|size| self.buffer(&vec![0; size]));
        let mut writes = Vec::new();
        let mut kept = Vec::new();
        for (binding, buffer) in inputs.into_iter().chain(outputs).enumerate() {
            let buffer = buffer?;
            writes.push(WriteDescriptorSet::buffer(binding as u32, buffer.clone()));
            kept.push(buffer);
        }
        let outputs = kept.split_off(3).try_into().map_err(|_| "four outputs")?;
        let set_layout = layout.set_layouts().first().ok_or("the module has no descriptor set")?.clone();
        let set = DescriptorSet::new(self.descriptors.clone(), set_layout, writes, [])?;
        let pipeline =
            ComputePipeline::new(self.device.clone(), None, ComputePipelineCreateInfo::stage_layout(stage, layout))?;
        let family = &self.device.physical_device().queue_family_properties()[self.queue.queue_family_index() as usize];
        let timestamps = match family.timestamp_valid_bits {
            Some(_) => Some(QueryPool::new(
                self.device.clone(),
                QueryPoolCreateInfo { query_count: 2, ..QueryPoolCreateInfo::query_type(QueryType::Timestamp) },
            )?),
            None => None,
        };
        Ok(Prepared { pipeline, set, outputs, push, n_instances: chain.n_instances, timestamps })
    }

    fn record(&self, prepared: &Prepared) -> Result<Arc<PrimaryAutoCommandBuffer>> {
        let layout = prepared.pipeline.layout();
        let mut builder = AutoCommandBufferBuilder::primary(
            self.commands.clone(),
            self.queue.queue_family_index(),
            CommandBufferUsage::OneTimeSubmit,
        )?;
        builder.bind_pipeline_compute(prepared.pipeline.clone())?.bind_descriptor_sets(
            PipelineBindPoint::Compute,
            layout.clone(),
            0,
            prepared.set.clone(),
        )?;
        push(&mut builder, layout, &prepared.push)?;
        if let Some(pool) = &prepared.timestamps {
            // SAFETY: the pool has two queries and no other command buffer is in flight.
            unsafe {
                builder.reset_query_pool(pool.clone(), 0..2)?;
                builder.write_timestamp(pool.clone(), 0, PipelineStage::TopOfPipe)?;
            }
        }
        // SAFETY: the shader indexes its bindings by the sizes in the push data, for which the buffers were made.
        unsafe { builder.dispatch([prepared.n_instances, 1, 1])? };
        if let Some(pool) = &prepared.timestamps {
            // SAFETY: as above; query 1 was reset and is written once.
            unsafe { builder.write_timestamp(pool.clone(), 1, PipelineStage::BottomOfPipe)? };
        }
        Ok(builder.build()?)
    }

    /// Runs the chain once and waits.
    pub fn dispatch(&self, prepared: &Prepared) -> Result<Timing> {
        let commands = self.record(prepared)?;
        let start = Instant::now();
        sync::now(self.device.clone())
            .then_execute(self.queue.clone(), commands)?
            .then_signal_fence_and_flush()?
            .wait(None)?;
        let wall = start.elapsed();
        let on_device = match &prepared.timestamps {
            Some(pool) => {
                let mut ticks = [0u64; 2];
                pool.get_results(0..2, &mut ticks, QueryResultFlags::WAIT)?;
                let period_ns = self.device.physical_device().properties().timestamp_period as f64;
                Some(Duration::from_nanos((ticks[1].wrapping_sub(ticks[0]) as f64 * period_ns) as u64))
            }
            None => None,
        };
        Ok(Timing { wall, on_device })
    }

    /// q_chain, p_chain, grad_chain and logp_chain, one after the other.
    pub fn outputs(&self, prepared: &Prepared) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for buffer in &prepared.outputs {
            bytes.extend_from_slice(&buffer.read()?);
        }
        Ok(bytes)
    }
}

/// Pushes all of `bytes`: vulkano takes its size from a type, so one is chosen by the two sizes that the ABI has.
fn push(
    builder: &mut AutoCommandBufferBuilder<PrimaryAutoCommandBuffer>,
    layout: &Arc<PipelineLayout>,
    bytes: &[u8],
) -> Result<()> {
    match bytes.len() {
        68 => builder.push_constants(layout.clone(), 0, <[u8; 68]>::try_from(bytes)?)?,
        120 => builder.push_constants(layout.clone(), 0, <[u8; 120]>::try_from(bytes)?)?,
        other => return Err(format!("push range of {other} bytes").into()),
    };
    Ok(())
}
