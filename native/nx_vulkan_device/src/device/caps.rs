//! What a device can do, as plain data: nothing else in the engine asks Vulkan for a limit or a feature.

use ash::vk;
use nx_vulkan_ir::{Error, Result};
use nx_vulkan_spirv::lower::Lacks;
use vulkano::VulkanObject;
use vulkano::device::physical::{PhysicalDevice, PhysicalDeviceType, SubgroupFeatures};
use vulkano::device::{DeviceFeatures, DeviceProperties};
use vulkano::memory::{MemoryHeapFlags, MemoryPropertyFlags};
use vulkano::shader::ShaderStages;

use super::{DeviceInfo, DeviceKind, bfloat16};

/// Float-controls properties of one float width (`SPV_KHR_float_controls`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FloatControls {
    /// Kernels may ask that the sign of zero, infinities and NaN are kept.
    pub signed_zero_inf_nan_preserve: bool,
    /// Kernels may ask that denormals are kept.
    pub denorm_preserve: bool,
    /// Kernels may ask that denormals become zero.
    pub denorm_flush_to_zero: bool,
    /// Kernels may ask that results are rounded to the nearest number, ties to even.
    pub rounding_mode_rte: bool,
    /// Kernels may ask that results are rounded towards zero.
    pub rounding_mode_rtz: bool,
}

/// Classes of subgroup operations that compute shaders may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubgroupOps {
    /// Elections and barriers.
    pub basic: bool,
    /// Whether all, or any, have something.
    pub vote: bool,
    /// Reductions and scans.
    pub arithmetic: bool,
    /// Who has something, as bits.
    pub ballot: bool,
    /// Values of any other invocation.
    pub shuffle: bool,
    /// Values of the invocation so many places before or behind.
    pub shuffle_relative: bool,
    /// Reductions of equal parts of a subgroup.
    pub clustered: bool,
    /// Exchanges among four neighbours.
    pub quad: bool,
}

/// One memory type: which heap it is in and how the host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryTypeInfo {
    /// The number of its heap.
    pub heap: u32,
    /// Memory of the device's own.
    pub device_local: bool,
    /// The host can map it.
    pub host_visible: bool,
    /// What the host writes is seen without a flush, and what it reads without one.
    pub host_coherent: bool,
    /// The host caches it.
    pub host_cached: bool,
    /// Lazily allocated, protected or device-coherent memory, which buffers must not use.
    pub special: bool,
}

/// One memory heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapInfo {
    /// How large it is.
    pub size_bytes: u64,
    /// Memory of the device's own.
    pub device_local: bool,
}

/// Limits and features of an open device, which have Vulkan's names. A feature is true when it exists and was enabled.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// The vendor, by its PCI identifier or one that Khronos gave.
    pub vendor_id: u32,
    /// The vendor's number of the device.
    pub device_id: u32,
    /// The driver's version, in the vendor's own form.
    pub driver_version: u32,
    /// Whose pipeline caches the driver takes.
    pub pipeline_cache_uuid: [u8; 16],
    /// Vulkan's version: major, minor and patch.
    pub api_version: (u32, u32, u32),

    /// `shaderFloat64`: kernels compute with f64.
    pub shader_float64: bool,
    /// `shaderInt64`: kernels compute with integers of 64 bits.
    pub shader_int64: bool,
    /// `shaderInt16`: kernels compute with integers of 16 bits.
    pub shader_int16: bool,
    /// `shaderInt8`: kernels compute with integers of 8 bits.
    pub shader_int8: bool,
    /// `shaderFloat16`: kernels compute with f16.
    pub shader_float16: bool,
    /// `storageBuffer8BitAccess`: buffers have elements of 8 bits.
    pub storage_buffer_8bit: bool,
    /// `storageBuffer16BitAccess`: buffers have elements of 16 bits.
    pub storage_buffer_16bit: bool,
    /// `shaderBufferInt64Atomics`: atomic operations on 64 bits of a buffer.
    pub shader_buffer_int64_atomics: bool,
    /// `variablePointers`: pointers that are chosen while a kernel runs.
    pub variable_pointers: bool,
    /// `vulkanMemoryModel`: kernels state their memory model.
    pub vulkan_memory_model: bool,
    /// `vulkanMemoryModelDeviceScope`: that model among all workgroups.
    pub vulkan_memory_model_device_scope: bool,
    /// `scalarBlockLayout`: blocks whose members lie without gaps.
    pub scalar_block_layout: bool,
    /// `maintenance4`, of Vulkan 1.3.
    pub maintenance4: bool,
    /// `robustBufferAccess`: what is beyond a descriptor's range is not accessed.
    pub robust_buffer_access: bool,
    /// `shaderSubgroupExtendedTypes`: operations of subgroups on narrow and wide types.
    pub subgroup_extended_types: bool,
    /// `subgroupSizeControl`: pipelines may have subgroups of other sizes than the usual one.
    pub subgroup_size_control: bool,
    /// `computeFullSubgroups`: pipelines may ask that subgroups are whole.
    pub compute_full_subgroups: bool,
    /// Whether compute pipelines may ask for a size of their subgroups between the least and the most.
    pub required_subgroup_size: bool,
    /// `VK_EXT_conditional_rendering`: words in memory decide whether launches run.
    pub conditional_rendering: bool,
    /// `VK_KHR_cooperative_matrix` with products of 16 x 16 x 16 f16 numbers and f32 sums in subgroups of 32 (those
    /// of the device, or those that pipelines may ask for), and what kernels need beside it.
    pub cooperative_matrix: bool,
    /// Kernels that multiply f32 exactly as three bf16 parts on matrix units pay: beside `cooperative_matrix`,
    /// `VK_KHR_shader_bfloat16` with products of 16 x 16 x 16 bf16 numbers and f32 sums, votes in subgroups, and 64
    /// warps per multiprocessor (`VK_NV_shader_sm_builtins`). That is what NVIDIA's data-center GPUs (A100, H100, H200,
    /// B200) have, whose matrix units do 16 times as many multiplications as their f32 lanes. With the 32 or 48 warps
    /// of others they do 2 to 4 times as many, and six products would be slower than fma.
    pub bfloat16_matrix: bool,
    /// Products of 16 x 32 by 32 x 16 bytes with a sign and sums of 32 bits that wrap: beside `cooperative_matrix`,
    /// kernels compute with integers of 8 bits.
    pub byte_matrix: bool,
    /// Whether drivers are asked what their compiler made of kernels: `pipelineExecutableInfo`, which is enabled on
    /// request only.
    pub pipeline_statistics: bool,

    /// Multiprocessors (`VK_NV_shader_sm_builtins`), compute units (`VK_AMD_shader_core_properties2`) or cores
    /// (`VK_ARM_shader_core_builtins`), where the driver tells how many there are.
    pub processors: Option<u32>,
    /// Invocations that one of them holds at once, by the same extensions.
    pub processor_invocations: Option<u32>,

    /// Invocations of a subgroup where a pipeline asks for no other size.
    pub subgroup_size: u32,
    /// The fewest that it may ask for.
    pub min_subgroup_size: u32,
    /// The most.
    pub max_subgroup_size: u32,
    /// What subgroups can do.
    pub subgroup_ops: SubgroupOps,

    /// Workgroups per dispatch in x, y, z.
    pub max_workgroup_count: [u32; 3],
    /// Invocations per workgroup in x, y, z.
    pub max_workgroup_size: [u32; 3],
    /// Invocations per workgroup in all.
    pub max_invocations: u32,
    /// Shared memory of a workgroup.
    pub max_shared_memory_bytes: u32,
    /// Push constants of a pipeline.
    pub max_push_bytes: u32,
    /// Storage buffers that one descriptor-bound shader may use.
    pub max_storage_buffers: u32,
    /// Largest range of one storage-buffer descriptor. Addresses have no such limit.
    pub max_storage_buffer_range_bytes: u64,
    /// What offsets of descriptors are multiples of.
    pub min_storage_buffer_offset_alignment: u64,
    /// Largest single tensor.
    pub max_buffer_bytes: u64,
    /// Up to which size one allocation surely works. Drivers may grant more: NVIDIA's states 4 GiB and grants whatever
    /// is free.
    pub max_allocation_bytes: u64,
    /// What ranges are multiples of that are flushed or invalidated.
    pub non_coherent_atom_bytes: u64,
    /// Bits of the queue's timestamps; 0 when it has none.
    pub timestamp_valid_bits: u32,
    /// Nanoseconds per timestamp tick.
    pub timestamp_period_ns: f32,

    /// Of f16.
    pub float16_controls: FloatControls,
    /// Of f32.
    pub float32_controls: FloatControls,
    /// Of f64.
    pub float64_controls: FloatControls,

    /// Heaps of memory, by their number.
    pub heaps: Vec<HeapInfo>,
    /// Types of memory, by their number.
    pub memory_types: Vec<MemoryTypeInfo>,
}

impl Caps {
    /// Invocations of each subgroup of a kernel that counts on whole subgroups: one of ours with ballots or shuffles by
    /// distance. None where no size is known.
    pub fn whole_subgroups(&self) -> Option<u32> {
        let is_within = (self.min_subgroup_size..=self.max_subgroup_size).contains(&MATRIX_SUBGROUP_SIZE);
        match () {
            () if !self.compute_full_subgroups => None,
            () if self.min_subgroup_size == self.max_subgroup_size => Some(self.min_subgroup_size),
            () if self.required_subgroup_size && is_within => Some(MATRIX_SUBGROUP_SIZE),
            () => None,
        }
    }

    /// Whether device memory is the host's own, so that copying through staging buffers gains nothing.
    pub fn is_unified(&self) -> bool {
        matches!(self.kind, DeviceKind::Cpu | DeviceKind::Integrated)
    }

    /// Types that kernels must do without, and that are lowered in their modules.
    pub fn lacks(&self) -> Lacks {
        Lacks {
            float64: !self.shader_float64,
            int64: !self.shader_int64,
            int8: !(self.shader_int8 && self.storage_buffer_8bit),
            int16: !(self.shader_int16 && self.storage_buffer_16bit),
        }
    }

    pub(super) fn of(
        device: &PhysicalDevice,
        info: &DeviceInfo,
        enabled: &Features,
        timestamp_valid_bits: u32,
    ) -> Caps {
        let p = device.properties();
        let matrix = matrix_units(device, enabled);
        let Features { known: enabled, .. } = enabled;
        let memory = device.memory_properties();
        let subgroup_size = p.subgroup_size.unwrap_or(1);
        Caps {
            kind: info.kind,
            vendor_id: p.vendor_id,
            device_id: p.device_id,
            driver_version: p.driver_version,
            pipeline_cache_uuid: p.pipeline_cache_uuid,
            api_version: info.api_version,
            shader_float64: enabled.shader_float64,
            shader_int64: enabled.shader_int64,
            shader_int16: enabled.shader_int16,
            shader_int8: enabled.shader_int8,
            shader_float16: enabled.shader_float16,
            storage_buffer_8bit: enabled.storage_buffer8_bit_access,
            storage_buffer_16bit: enabled.storage_buffer16_bit_access,
            shader_buffer_int64_atomics: enabled.shader_buffer_int64_atomics,
            variable_pointers: enabled.variable_pointers,
            vulkan_memory_model: enabled.vulkan_memory_model,
            vulkan_memory_model_device_scope: enabled.vulkan_memory_model_device_scope,
            scalar_block_layout: enabled.scalar_block_layout,
            maintenance4: enabled.maintenance4,
            robust_buffer_access: enabled.robust_buffer_access,
            subgroup_extended_types: enabled.shader_subgroup_extended_types,
            subgroup_size_control: enabled.subgroup_size_control,
            compute_full_subgroups: enabled.compute_full_subgroups,
            required_subgroup_size: requires_subgroup_size(p, enabled.subgroup_size_control),
            conditional_rendering: enabled.conditional_rendering,
            cooperative_matrix: matrix.float16,
            bfloat16_matrix: matrix.bfloat16,
            byte_matrix: matrix.bytes,
            pipeline_statistics: enabled.pipeline_executable_info,
            processors: processors(p),
            processor_invocations: processor_invocations(p),
            subgroup_size,
            min_subgroup_size: p.min_subgroup_size.unwrap_or(subgroup_size),
            max_subgroup_size: p.max_subgroup_size.unwrap_or(subgroup_size),
            subgroup_ops: subgroup_ops(p),
            max_workgroup_count: p.max_compute_work_group_count,
            max_workgroup_size: p.max_compute_work_group_size,
            max_invocations: p.max_compute_work_group_invocations,
            max_shared_memory_bytes: p.max_compute_shared_memory_size,
            max_push_bytes: p.max_push_constants_size,
            max_storage_buffers: p.max_per_stage_descriptor_storage_buffers,
            max_storage_buffer_range_bytes: u64::from(p.max_storage_buffer_range),
            min_storage_buffer_offset_alignment: p.min_storage_buffer_offset_alignment.as_devicesize(),
            max_buffer_bytes: p.max_buffer_size.or(p.max_memory_allocation_size).unwrap_or(u64::MAX),
            max_allocation_bytes: p.max_memory_allocation_size.unwrap_or(u64::MAX),
            non_coherent_atom_bytes: p.non_coherent_atom_size.as_devicesize(),
            timestamp_valid_bits,
            timestamp_period_ns: p.timestamp_period,
            float16_controls: FloatControls {
                signed_zero_inf_nan_preserve: on(p.shader_signed_zero_inf_nan_preserve_float16),
                denorm_preserve: on(p.shader_denorm_preserve_float16),
                denorm_flush_to_zero: on(p.shader_denorm_flush_to_zero_float16),
                rounding_mode_rte: on(p.shader_rounding_mode_rte_float16),
                rounding_mode_rtz: on(p.shader_rounding_mode_rtz_float16),
            },
            float32_controls: FloatControls {
                signed_zero_inf_nan_preserve: on(p.shader_signed_zero_inf_nan_preserve_float32),
                denorm_preserve: on(p.shader_denorm_preserve_float32),
                denorm_flush_to_zero: on(p.shader_denorm_flush_to_zero_float32),
                rounding_mode_rte: on(p.shader_rounding_mode_rte_float32),
                rounding_mode_rtz: on(p.shader_rounding_mode_rtz_float32),
            },
            float64_controls: FloatControls {
                signed_zero_inf_nan_preserve: on(p.shader_signed_zero_inf_nan_preserve_float64),
                denorm_preserve: on(p.shader_denorm_preserve_float64),
                denorm_flush_to_zero: on(p.shader_denorm_flush_to_zero_float64),
                rounding_mode_rte: on(p.shader_rounding_mode_rte_float64),
                rounding_mode_rtz: on(p.shader_rounding_mode_rtz_float64),
            },
            heaps: memory
                .memory_heaps
                .iter()
                .map(|h| HeapInfo {
                    size_bytes: h.size,
                    device_local: h.flags.intersects(MemoryHeapFlags::DEVICE_LOCAL),
                })
                .collect(),
            memory_types: memory.memory_types.iter().map(|t| memory_type(t.heap_index, t.property_flags)).collect(),
        }
    }
}

/// Invocations of a subgroup of a kernel for matrix units, and of others that count on whole subgroups where the device
/// has them of several sizes.
pub(crate) const MATRIX_SUBGROUP_SIZE: u32 = 32;

/// Which kernels for matrix units the device gets.
#[derive(Default)]
struct MatrixUnits {
    float16: bool,
    bfloat16: bool,
    bytes: bool,
}

fn matrix_units(device: &PhysicalDevice, enabled: &Features) -> MatrixUnits {
    let (p, known) = (device.properties(), &enabled.known);
    let needed = known.cooperative_matrix
        && known.vulkan_memory_model
        && known.shader_float16
        && known.compute_full_subgroups
        && has_matrix_subgroups(p, known.subgroup_size_control);
    if !needed {
        return MatrixUnits::default();
    }
    let listed = matrix_properties(device);
    let has = |factor| listed.iter().any(|p| is_product(p, factor));
    let float16 = has(vk::ComponentTypeKHR::FLOAT16);
    // Kernels for bf16 count on how NVIDIA's units hold matrices (matrix_fragments.glsl): eight components per
    // invocation, which are the same elements in all kernels. No others have a number of warps.
    let bfloat16 = float16
        && enabled.bfloat16
        && has(bfloat16::COMPONENT_TYPE)
        && subgroup_ops(p).vote
        && p.shader_warps_per_sm == Some(64);
    let has_bytes = known.shader_int8 && known.storage_buffer8_bit_access;
    let bytes = float16 && has_bytes && listed.iter().any(is_product_of_bytes);
    MatrixUnits { float16, bfloat16, bytes }
}

/// Whether compute pipelines have subgroups of `MATRIX_SUBGROUP_SIZE`: all of them, or those that ask for it.
fn has_matrix_subgroups(p: &DeviceProperties, controls_size: bool) -> bool {
    let [least, most] = [p.min_subgroup_size, p.max_subgroup_size].map(|size| size.or(p.subgroup_size));
    let is_fixed = least == most;
    let can_ask = requires_subgroup_size(p, controls_size);
    let is_within = least <= Some(MATRIX_SUBGROUP_SIZE) && most >= Some(MATRIX_SUBGROUP_SIZE);
    least.is_some() && is_within && (is_fixed || can_ask)
}

fn requires_subgroup_size(p: &DeviceProperties, controls_size: bool) -> bool {
    controls_size && p.required_subgroup_size_stages.is_some_and(|stages| stages.intersects(ShaderStages::COMPUTE))
}

/// Whether these are products of 16 x 16 x 16 numbers of a type with f32 sums.
fn is_product(p: &vk::CooperativeMatrixPropertiesKHR<'_>, factor: vk::ComponentTypeKHR) -> bool {
    let float = vk::ComponentTypeKHR::FLOAT32;
    [p.m_size, p.n_size, p.k_size] == [16; 3]
        && [p.a_type, p.b_type, p.c_type, p.result_type] == [factor, factor, float, float]
        && p.scope == vk::ScopeKHR::SUBGROUP
}

/// Whether these are products of 16 x 32 x 16 bytes with a sign, with sums that wrap.
fn is_product_of_bytes(p: &vk::CooperativeMatrixPropertiesKHR<'_>) -> bool {
    let (byte, sum) = (vk::ComponentTypeKHR::SINT8, vk::ComponentTypeKHR::SINT32);
    [p.m_size, p.n_size, p.k_size] == [16, 16, 32]
        && [p.a_type, p.b_type, p.c_type, p.result_type] == [byte, byte, sum, sum]
        && p.saturating_accumulation == vk::FALSE
        && p.scope == vk::ScopeKHR::SUBGROUP
}

/// What the driver says of its cooperative matrices; nothing where it says nothing.
pub(super) fn matrix_properties(device: &PhysicalDevice) -> Vec<vk::CooperativeMatrixPropertiesKHR<'static>> {
    let get = device.instance().fns().khr_cooperative_matrix.get_physical_device_cooperative_matrix_properties_khr;
    let mut count = 0;
    // SAFETY: the device lives and has the extension; a null pointer asks for the count.
    let counted = unsafe { get(device.handle(), &mut count, std::ptr::null_mut()) };
    if counted != vk::Result::SUCCESS {
        return vec![];
    }
    let mut properties = vec![vk::CooperativeMatrixPropertiesKHR::default(); count as usize];
    // SAFETY: there is room for `count` of them.
    let got = unsafe { get(device.handle(), &mut count, properties.as_mut_ptr()) };
    properties.truncate(if got == vk::Result::SUCCESS { count as usize } else { 0 });
    properties
}

fn processors(p: &DeviceProperties) -> Option<u32> {
    let in_arrays =
        || Some(p.shader_engine_count? * p.shader_arrays_per_engine_count? * p.compute_units_per_shader_array?);
    p.shader_sm_count.or(p.active_compute_unit_count).or_else(in_arrays).or(p.shader_core_count).filter(|&n| n > 0)
}

fn processor_invocations(p: &DeviceProperties) -> Option<u32> {
    let subgroups = p.shader_warps_per_sm.or(p.shader_warps_per_core);
    let of_amd = || Some(p.simd_per_compute_unit? * p.wavefronts_per_simd? * p.wavefront_size?);
    subgroups.zip(p.subgroup_size).map(|(n, size)| n * size).or_else(of_amd).filter(|&n| n > 0)
}

fn on(property: Option<bool>) -> bool {
    property.unwrap_or(false)
}

fn memory_type(heap: u32, flags: MemoryPropertyFlags) -> MemoryTypeInfo {
    let known = MemoryPropertyFlags::DEVICE_LOCAL
        | MemoryPropertyFlags::HOST_VISIBLE
        | MemoryPropertyFlags::HOST_COHERENT
        | MemoryPropertyFlags::HOST_CACHED;
    MemoryTypeInfo {
        heap,
        device_local: flags.intersects(MemoryPropertyFlags::DEVICE_LOCAL),
        host_visible: flags.intersects(MemoryPropertyFlags::HOST_VISIBLE),
        host_coherent: flags.intersects(MemoryPropertyFlags::HOST_COHERENT),
        host_cached: flags.intersects(MemoryPropertyFlags::HOST_CACHED),
        special: !known.contains(flags),
    }
}

fn subgroup_ops(p: &DeviceProperties) -> SubgroupOps {
    let in_compute = p.subgroup_supported_stages.is_some_and(|s| s.intersects(ShaderStages::COMPUTE));
    let ops = match p.subgroup_supported_operations {
        Some(ops) if in_compute => ops,
        _ => SubgroupFeatures::empty(),
    };
    SubgroupOps {
        basic: ops.intersects(SubgroupFeatures::BASIC),
        vote: ops.intersects(SubgroupFeatures::VOTE),
        arithmetic: ops.intersects(SubgroupFeatures::ARITHMETIC),
        ballot: ops.intersects(SubgroupFeatures::BALLOT),
        shuffle: ops.intersects(SubgroupFeatures::SHUFFLE),
        shuffle_relative: ops.intersects(SubgroupFeatures::SHUFFLE_RELATIVE),
        clustered: ops.intersects(SubgroupFeatures::CLUSTERED),
        quad: ops.intersects(SubgroupFeatures::QUAD),
    }
}

impl From<PhysicalDeviceType> for DeviceKind {
    fn from(t: PhysicalDeviceType) -> Self {
        match t {
            PhysicalDeviceType::DiscreteGpu => DeviceKind::Discrete,
            PhysicalDeviceType::IntegratedGpu => DeviceKind::Integrated,
            PhysicalDeviceType::VirtualGpu => DeviceKind::Virtual,
            PhysicalDeviceType::Cpu => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        }
    }
}

/// Features, by Vulkan's names and with commas between them, that are taken for missing: to test what happens on a
/// device without.
const WITHOUT: &str = "NX_VULKAN_WITHOUT";

/// Features of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Features {
    /// Those that vulkano knows.
    pub known: DeviceFeatures,
    /// `shaderBFloat16Type` and `shaderBFloat16CooperativeMatrix`.
    pub bfloat16: bool,
}

impl Features {
    /// Types that are lowered with these features.
    pub fn lacks(&self) -> Lacks {
        let known = &self.known;
        Lacks {
            float64: !known.shader_float64,
            int64: !known.shader_int64,
            int8: !(known.shader_int8 && known.storage_buffer8_bit_access),
            int16: !(known.shader_int16 && known.storage_buffer16_bit_access),
        }
    }

    /// Without the types that are to be lowered although they are there.
    pub fn lower(&mut self, lower: Lacks) {
        let known = &mut self.known;
        known.shader_float64 &= !lower.float64;
        known.shader_int64 &= !lower.int64;
        known.shader_buffer_int64_atomics &= !lower.int64;
        known.shader_int8 &= !lower.int8;
        known.storage_buffer8_bit_access &= !lower.int8;
        known.uniform_and_storage_buffer8_bit_access &= !lower.int8;
        known.storage_push_constant8 &= !lower.int8;
        known.shader_int16 &= !lower.int16;
        known.storage_buffer16_bit_access &= !lower.int16;
        known.uniform_and_storage_buffer16_bit_access &= !lower.int16;
        known.storage_push_constant16 &= !lower.int16;
    }
}

type TakeAway = fn(&mut Features);

/// What `NX_VULKAN_WITHOUT` may name, each with what takes it away.
const CAN_BE_WITHOUT: [(&str, TakeAway); 11] = [
    ("shaderFloat64", |f| f.known.shader_float64 = false),
    ("shaderInt64", |f| f.known.shader_int64 = false),
    ("shaderInt16", |f| f.known.shader_int16 = false),
    ("shaderInt8", |f| f.known.shader_int8 = false),
    ("shaderFloat16", |f| f.known.shader_float16 = false),
    ("storageBuffer8BitAccess", |f| f.known.storage_buffer8_bit_access = false),
    ("storageBuffer16BitAccess", |f| f.known.storage_buffer16_bit_access = false),
    ("subgroupSizeControl", |f| f.known.subgroup_size_control = false),
    ("conditionalRendering", |f| f.known.conditional_rendering = false),
    ("cooperativeMatrix", |f| f.known.cooperative_matrix = false),
    ("shaderBFloat16CooperativeMatrix", |f| f.bfloat16 = false),
];

/// The features of a device, less those that `NX_VULKAN_WITHOUT` names.
///
/// # Errors
/// `InvalidArgument` for another name.
pub(super) fn supported_features(device: &PhysicalDevice) -> Result<Features> {
    let features = Features { known: *device.supported_features(), bfloat16: bfloat16::is_supported(device) };
    without(features, &std::env::var(WITHOUT).unwrap_or_default())
}

fn without(mut features: Features, names: &str) -> Result<Features> {
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let (_, take_away) = CAN_BE_WITHOUT.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let known = CAN_BE_WITHOUT.map(|(known, _)| known).join(", ");
            Error::InvalidArgument { what: WITHOUT, expected: format!("some of {known}"), got: name.to_string() }
        })?;
        take_away(&mut features);
    }
    Ok(features)
}

/// The features that the engine can use.
pub(super) fn usable_features() -> DeviceFeatures {
    DeviceFeatures {
        buffer_device_address: true,
        shader_float64: true,
        shader_int64: true,
        shader_int16: true,
        shader_int8: true,
        shader_float16: true,
        storage_buffer8_bit_access: true,
        uniform_and_storage_buffer8_bit_access: true,
        storage_push_constant8: true,
        storage_buffer16_bit_access: true,
        uniform_and_storage_buffer16_bit_access: true,
        storage_push_constant16: true,
        shader_buffer_int64_atomics: true,
        variable_pointers: true,
        variable_pointers_storage_buffer: true,
        vulkan_memory_model: true,
        vulkan_memory_model_device_scope: true,
        shader_subgroup_extended_types: true,
        scalar_block_layout: true,
        maintenance4: true,
        robust_buffer_access: true,
        subgroup_size_control: true,
        compute_full_subgroups: true,
        conditional_rendering: true,
        cooperative_matrix: true,
        pipeline_executable_info: true,
        ..DeviceFeatures::empty()
    }
}

/// The features the engine enables: of those it can use, the ones that `supported` has.
pub(super) fn wanted_features(supported: &DeviceFeatures) -> DeviceFeatures {
    supported.intersection(&usable_features())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_taken_away_by_name() {
        let known = DeviceFeatures { shader_float64: true, shader_int8: true, ..DeviceFeatures::empty() };
        let has = Features { known, bfloat16: true };
        assert_eq!(without(has, "").unwrap(), has);
        let left = without(has, "shaderFloat64, shaderInt64").unwrap();
        let known = DeviceFeatures { shader_int8: true, ..DeviceFeatures::empty() };
        assert_eq!(left, Features { known, bfloat16: true });
        assert_eq!(without(has, "shaderBFloat16CooperativeMatrix").unwrap(), Features { bfloat16: false, ..has });
        let error = without(has, "shaderInt8,shaderFloat46").unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument { what: WITHOUT, got, .. } if got == "shaderFloat46"));
        assert!(CAN_BE_WITHOUT.iter().all(|(name, _)| error.to_string().contains(name)));
    }
}
