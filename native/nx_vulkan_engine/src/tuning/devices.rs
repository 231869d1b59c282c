//! What drivers say of devices, for tests of what a model makes of them. Of those that no test runs on, it is what
//! drivers report to <https://vulkan.gpuinfo.org>, as far as models ask for it.

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
        required_subgroup_size: true,
        conditional_rendering: true,
        cooperative_matrix: false,
        bfloat16_matrix: false,
        byte_matrix: false,
        pipeline_statistics: false,
        processors: None,
        processor_invocations: None,
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
        byte_matrix: true,
        processors: Some(132),
        processor_invocations: Some(2048),
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

/// An NVIDIA A100.
fn a100() -> Caps {
    Caps { processors: Some(108), ..h200() }
}

/// An NVIDIA RTX 4060.
pub fn rtx_4060() -> Caps {
    Caps { bfloat16_matrix: false, processors: Some(24), processor_invocations: Some(48 * 32), ..h200() }
}

/// An NVIDIA RTX 2080, of Turing.
pub fn rtx_2080() -> Caps {
    Caps { bfloat16_matrix: false, processors: Some(46), processor_invocations: Some(32 * 32), ..h200() }
}

/// An AMD RX 6800 by RADV.
fn rx_6800() -> Caps {
    Caps {
        vendor_id: 0x1002,
        processors: Some(60),
        processor_invocations: Some(2 * 16 * 64),
        subgroup_size: 64,
        max_subgroup_size: 64,
        max_shared_memory_bytes: 64 << 10,
        ..any()
    }
}

/// An AMD RX 7900 XTX by RADV, whose cooperative matrices come with subgroups of two sizes.
fn rx_7900_xtx() -> Caps {
    Caps { cooperative_matrix: true, processors: Some(96), ..rx_6800() }
}

/// An AMD Instinct MI210.
fn mi210() -> Caps {
    Caps { processors: Some(104), processor_invocations: Some(4 * 8 * 64), min_subgroup_size: 64, ..rx_6800() }
}

/// Intel's Iris Xe by ANV.
fn iris_xe() -> Caps {
    Caps {
        kind: DeviceKind::Integrated,
        vendor_id: 0x8086,
        shader_float64: false,
        min_subgroup_size: 8,
        max_shared_memory_bytes: 64 << 10,
        ..any()
    }
}

/// An Intel Arc A770.
fn arc_a770() -> Caps {
    Caps { kind: DeviceKind::Discrete, ..iris_xe() }
}

/// Apple's M1 by MoltenVK.
fn m1() -> Caps {
    Caps { kind: DeviceKind::Integrated, vendor_id: 0x106b, shader_float64: false, ..any() }
}

/// Arm's Mali-G78.
fn mali_g78() -> Caps {
    Caps {
        kind: DeviceKind::Integrated,
        vendor_id: 0x13b5,
        shader_float64: false,
        processors: Some(20),
        processor_invocations: Some(1024),
        subgroup_size: 16,
        min_subgroup_size: 16,
        max_subgroup_size: 16,
        max_workgroup_size: [512; 3],
        max_invocations: 512,
        ..any()
    }
}

/// The V3D of a Raspberry Pi 5.
fn v3d() -> Caps {
    Caps {
        kind: DeviceKind::Integrated,
        vendor_id: 0x14e4,
        shader_float64: false,
        shader_int64: false,
        shader_float16: false,
        subgroup_size: 16,
        min_subgroup_size: 16,
        max_subgroup_size: 16,
        max_workgroup_size: [256; 3],
        max_invocations: 256,
        max_shared_memory_bytes: 16 << 10,
        max_push_bytes: 128,
        ..any()
    }
}

/// lavapipe on a CPU with 128-bit vectors.
fn small_lavapipe() -> Caps {
    Caps { subgroup_size: 4, min_subgroup_size: 4, max_subgroup_size: 4, ..lavapipe() }
}

/// A device by name, and what it can do.
type Described = (&'static str, fn() -> Caps);

/// All of them, by name.
pub const ALL: [Described; 14] = [
    ("H200", h200),
    ("A100", a100),
    ("RTX 4060", rtx_4060),
    ("RTX 2080", rtx_2080),
    ("RX 6800", rx_6800),
    ("RX 7900 XTX", rx_7900_xtx),
    ("MI210", mi210),
    ("Iris Xe", iris_xe),
    ("Arc A770", arc_a770),
    ("M1", m1),
    ("Mali-G78", mali_g78),
    ("V3D", v3d),
    ("lavapipe", lavapipe),
    ("lavapipe, 128-bit", small_lavapipe),
];
