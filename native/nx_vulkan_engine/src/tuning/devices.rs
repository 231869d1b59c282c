//! What drivers say of devices, for tests of what a model makes of them. Of those that no test runs on, it is what drivers report to
//! <https://vulkan.gpuinfo.org>, as far as models ask for it.

use crate::DeviceKind;
use nx_vulkan_device::device::{Caps, FloatControls, SubgroupOps};

const ALL_OPS: SubgroupOps = SubgroupOps {
    basic: true,
    vote: true,
    arithmetic: true,
    ballot: true,
    shuffle: true,
    shuffle_relative: true,
    clustered: true,
    quad: true,
};

/// A device with all features and the least limits of Vulkan for desktops.
fn any() -> Caps {
    Caps {
        kind: DeviceKind::Discrete,
        vendor_id: 0,
        device_id: 0,
        driver_version: 1,
        pipeline_cache_uuid: [0; 16],
        api_version: (1, 3, 0),
        shader_float64: true,
        shader_int64: true,
        shader_int16: true,
        shader_int8: true,
        shader_float16: true,
        storage_buffer_8bit: true,
        storage_buffer_16bit: true,
        shader_buffer_int64_atomics: true,
        variable_pointers: true,
        vulkan_memory_model: true,
        vulkan_memory_model_device_scope: true,
        scalar_block_layout: true,
        maintenance4: true,
        robust_buffer_access: true,
        subgroup_extended_types: true,
        subgroup_size_control: true,
        compute_full_subgroups: true,
        cooperative_matrix: false,
        bfloat16_matrix: false,
        subgroup_size: 32,
        min_subgroup_size: 32,
        max_subgroup_size: 32,
        subgroup_ops: ALL_OPS,
        max_workgroup_count: [65_535; 3],
        max_workgroup_size: [1024, 1024, 64],
        max_invocations: 1024,
        max_shared_memory_bytes: 32 << 10,
        max_push_bytes: 256,
        max_storage_buffers: 1 << 20,
        max_storage_buffer_range_bytes: u64::from(u32::MAX),
        min_storage_buffer_offset_alignment: 16,
        max_buffer_bytes: 4 << 30,
        max_allocation_bytes: 4 << 30,
        non_coherent_atom_bytes: 64,
        timestamp_valid_bits: 64,
        timestamp_period_ns: 1.0,
        float16_controls: FloatControls::default(),
        float32_controls: FloatControls::default(),
        float64_controls: FloatControls::default(),
        heaps: vec![],
        memory_types: vec![],
    }
}

/// An NVIDIA H200, driver 580.159.
pub fn h200() -> Caps {
    Caps {
        vendor_id: 0x10de,
        device_id: 0x2335,
        cooperative_matrix: true,
        bfloat16_matrix: true,
        max_workgroup_count: [i32::MAX as u32, 65_535, 65_535],
        max_shared_memory_bytes: 48 << 10,
        ..any()
    }
}

/// Mesa's lavapipe 25.0 on a CPU with 256-bit vectors.
pub fn lavapipe() -> Caps {
    Caps {
        kind: DeviceKind::Cpu,
        vendor_id: 0x10005,
        subgroup_size: 8,
        min_subgroup_size: 8,
        max_subgroup_size: 8,
        ..any()
    }
}
