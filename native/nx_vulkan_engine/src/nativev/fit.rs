//! Does a shader fit the device and the call?

use std::sync::Arc;

use nx_vulkan_check::Reflection;
use rspirv::spirv::Capability;

use super::{Call, Failure, Outcome, Shader};
use crate::{Access, Binding, BoundLaunch, Buffer, Caps, Interface};

/// One launch of a supplied shader.
pub(crate) struct Run<'a> {
    pub groups: [u64; 3],
    /// Buffer, byte offset and size of bindings 0, 1, ... in order. Behind the inputs come the outputs.
    pub bindings: &'a [(&'a Arc<Buffer>, u64, u64)],
    pub inputs: usize,
    pub push: &'a [u8],
    /// The op code, for a shader that takes one as specialization constant 0.
    pub op: Option<u32>,
}

impl Call<'_> {
    /// Records a launch.
    pub(crate) fn run(&self, shader: &Shader, run: &Run<'_>) -> Outcome {
        let reflection = shader.reflection();
        self.check_bindings(reflection, run.bindings.len())?;
        let push = run.push.get(..reflection.push_bytes as usize).ok_or(Failure::BadInput)?;
        self.check_device(reflection)?;
        self.check_range(run.bindings.iter().map(|&(_, _, size_bytes)| size_bytes), "fewer elements")?;
        let groups = self.groups(run.groups)?;
        let bindings: Vec<Binding<'_>> = (run.bindings.iter().zip(&reflection.bindings).enumerate())
            .map(|(at, (&(buffer, offset, size_bytes), declared))| Binding {
                buffer,
                offset,
                size_bytes,
                access: match (at < run.inputs, declared.readonly) {
                    (true, true) => Access::Read,
                    _ => Access::ReadWrite,
                },
            })
            .collect();
        let op = run.op.filter(|_| reflection.spec_ids.contains(&0));
        let interface =
            Interface::Descriptors { bindings: run.bindings.len() as u32, push_bytes: reflection.push_bytes };
        let pipeline = shader.pipeline(self, interface, op)?;
        let launch = BoundLaunch { pipeline: &pipeline, push, groups, bindings: &bindings };
        self.engine.dispatch_bound(&launch).map_err(Failure::of_dispatch)
    }

    fn refuse<T>(&self, reason: &str) -> Outcome<T> {
        Err(Failure::Dispatch(format!("{}: {reason}", self.path.display())))
    }

    fn check_bindings(&self, reflection: &Reflection, wanted: usize) -> Outcome {
        let declared: Vec<u32> = reflection.bindings.iter().map(|b| b.binding).collect();
        if declared.iter().copied().eq(0..wanted as u32) {
            return Ok(());
        }
        self.refuse(&format!("binds buffers {declared:?}, the call has {:?}", (0..wanted).collect::<Vec<_>>()))
    }

    fn check_device(&self, reflection: &Reflection) -> Outcome {
        let missing = missing(reflection, self.engine.caps());
        if missing.is_empty() {
            return Ok(());
        }
        self.refuse(&format!("{} has not: {}", self.engine.info().name, missing.join(", ")))
    }

    /// Checks that bindings of these sizes can be bound; `ask_for` says what makes them smaller.
    pub(crate) fn check_range(&self, sizes_bytes: impl Iterator<Item = u64>, ask_for: &str) -> Outcome {
        let limit = self.engine.caps().max_storage_buffer_range_bytes;
        match sizes_bytes.max() {
            Some(size) if size > limit => self.refuse(&format!(
                "a buffer of {size} bytes, but the device binds at most {limit} (maxStorageBufferRange): ask for \
                 {ask_for} in one call"
            )),
            _ => Ok(()),
        }
    }

    /// The group counts, if the device takes them.
    fn groups(&self, groups: [u64; 3]) -> Outcome<[u32; 3]> {
        let limit = self.engine.caps().max_workgroup_count;
        if groups.iter().zip(limit).any(|(&count, max)| count > u64::from(max)) {
            return self.refuse(&format!("needs {groups:?} workgroups, the device takes {limit:?}"));
        }
        Ok(groups.map(|count| count as u32))
    }

    /// Checks that the elements of every buffer have the size that the call counts with.
    pub(crate) fn check_element_bytes(&self, reflection: &Reflection, element_bytes: u64) -> Outcome {
        let doubles = reflection.declares_float64();
        let fits = |stride: u32| match element_bytes {
            // Eight bytes may be a vec2 of a shader that has no doubles.
            4 => stride.is_multiple_of(4) && !(doubles && stride == 8),
            _ => u64::from(stride).is_multiple_of(element_bytes),
        };
        let wrong = reflection.bindings.iter().find_map(|b| Some((b.binding, b.stride_bytes.filter(|&s| !fits(s))?)));
        match wrong {
            None => Ok(()),
            Some((binding, stride)) => {
                self.refuse(&format!("binding {binding} holds elements of {stride} bytes, not of {element_bytes}"))
            }
        }
    }
}

/// What the shader needs and the device has not.
fn missing(reflection: &Reflection, caps: &Caps) -> Vec<String> {
    let mut missing: Vec<String> =
        reflection.capabilities.iter().filter(|c| !has(caps, **c)).map(|&c| name(c)).collect();
    let most = match caps.api_version {
        (1, 0..=2, _) => (1, 5),
        _ => (1, 6),
    };
    if reflection.version > most {
        missing.push(format!("SPIR-V {}.{}", reflection.version.0, reflection.version.1));
    }
    if reflection.entry_point != "main" {
        missing.push(format!("the entry point {:?}, only \"main\"", reflection.entry_point));
    }
    let size = reflection.local_size;
    let invocations: u64 = size.iter().map(|&s| u64::from(s)).product();
    if size.iter().zip(caps.max_workgroup_size).any(|(&s, max)| s > max)
        || invocations > u64::from(caps.max_invocations)
    {
        missing.push(format!(
            "workgroups of {size:?}, at most {:?} and {} in all",
            caps.max_workgroup_size, caps.max_invocations
        ));
    }
    if reflection.shared_bytes > u64::from(caps.max_shared_memory_bytes) {
        missing
            .push(format!("{} bytes of shared memory, only {}", reflection.shared_bytes, caps.max_shared_memory_bytes));
    }
    missing
}

/// The device feature that a capability needs, by Vulkan's name, as in what ops say; else the capability's own.
fn name(capability: Capability) -> String {
    let feature = match capability {
        Capability::Float64 => "shaderFloat64",
        Capability::Float16 => "shaderFloat16",
        Capability::Int64 => "shaderInt64",
        Capability::Int16 => "shaderInt16",
        Capability::Int8 => "shaderInt8",
        Capability::Int64Atomics => "shaderBufferInt64Atomics",
        Capability::StorageBuffer8BitAccess => "storageBuffer8BitAccess",
        Capability::StorageBuffer16BitAccess => "storageBuffer16BitAccess",
        Capability::CooperativeMatrixKHR => "cooperativeMatrix",
        Capability::BFloat16TypeKHR => "shaderBFloat16Type",
        Capability::BFloat16CooperativeMatrixKHR => "shaderBFloat16CooperativeMatrix",
        other => return format!("{other:?}"),
    };
    feature.to_string()
}

/// Is a capability there, and enabled?
fn has(caps: &Caps, capability: Capability) -> bool {
    let subgroup = &caps.subgroup_ops;
    let floats = [caps.float16_controls, caps.float32_controls, caps.float64_controls];
    match capability {
        Capability::Matrix | Capability::Shader | Capability::PhysicalStorageBufferAddresses => true,
        capability if caps.lacks().lowers(capability) => true,
        Capability::Float64 => caps.shader_float64,
        Capability::Float16 => caps.shader_float16,
        Capability::Int64 => caps.shader_int64,
        Capability::Int16 => caps.shader_int16,
        Capability::Int8 => caps.shader_int8,
        Capability::Int64Atomics => caps.shader_buffer_int64_atomics,
        Capability::StorageBuffer8BitAccess
        | Capability::UniformAndStorageBuffer8BitAccess
        | Capability::StoragePushConstant8 => caps.storage_buffer_8bit,
        Capability::StorageBuffer16BitAccess
        | Capability::UniformAndStorageBuffer16BitAccess
        | Capability::StoragePushConstant16 => caps.storage_buffer_16bit,
        Capability::VariablePointers | Capability::VariablePointersStorageBuffer => caps.variable_pointers,
        Capability::VulkanMemoryModel => caps.vulkan_memory_model,
        Capability::VulkanMemoryModelDeviceScope => caps.vulkan_memory_model_device_scope,
        Capability::CooperativeMatrixKHR => caps.cooperative_matrix,
        Capability::BFloat16TypeKHR | Capability::BFloat16CooperativeMatrixKHR => caps.bfloat16_matrix,
        Capability::GroupNonUniform => subgroup.basic,
        Capability::GroupNonUniformVote => subgroup.vote,
        Capability::GroupNonUniformArithmetic => subgroup.arithmetic,
        Capability::GroupNonUniformBallot => subgroup.ballot,
        Capability::GroupNonUniformShuffle => subgroup.shuffle,
        Capability::GroupNonUniformShuffleRelative => subgroup.shuffle_relative,
        Capability::GroupNonUniformClustered => subgroup.clustered,
        Capability::GroupNonUniformQuad => subgroup.quad,
        // The modules do not tell here for which width they ask.
        Capability::SignedZeroInfNanPreserve => floats.iter().any(|f| f.signed_zero_inf_nan_preserve),
        Capability::DenormPreserve => floats.iter().any(|f| f.denorm_preserve),
        Capability::DenormFlushToZero => floats.iter().any(|f| f.denorm_flush_to_zero),
        Capability::RoundingModeRTE => floats.iter().any(|f| f.rounding_mode_rte),
        Capability::RoundingModeRTZ => floats.iter().any(|f| f.rounding_mode_rtz),
        _ => false,
    }
}
