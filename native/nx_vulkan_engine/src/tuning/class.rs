//! The classes of devices that have numbers of their own.

use nx_vulkan_device::{Caps, DeviceKind};

/// Whose sort of device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// NVIDIA, for data centers: 64 warps per multiprocessor (A100, H100, H200, B200).
    NvidiaDataCenter,
    /// NVIDIA, for desktops: 32 or 48 warps.
    Nvidia,
    /// AMD, with subgroups of 32.
    AmdRdna,
    /// AMD, with subgroups of 64 alone.
    AmdCdna,
    /// Intel, with memory of its own or the host's.
    Intel,
    /// Apple, through MoltenVK or Honeykrisp.
    Apple,
    /// Arm's Mali and Immortalis.
    Arm,
    /// A CPU.
    Cpu,
    /// Any other GPU.
    Other,
}

/// PCI identifiers of vendors, or those that Khronos gave.
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
const INTEL: u32 = 0x8086;
const APPLE: u32 = 0x106b;
const ARM: u32 = 0x13b5;

/// Warps that one multiprocessor of NVIDIA's GPUs for data centers holds.
const DATA_CENTER_INVOCATIONS: u32 = 64 * 32;

impl Class {
    /// The class of a device. One whose driver tells nothing of NVIDIA's multiprocessors counts as one for data
    /// centers, on which NVIDIA's numbers were measured.
    pub fn of(caps: &Caps) -> Class {
        match caps.vendor_id {
            _ if caps.kind == DeviceKind::Cpu => Class::Cpu,
            NVIDIA if caps.processor_invocations.is_none_or(|held| held == DATA_CENTER_INVOCATIONS) => {
                Class::NvidiaDataCenter
            }
            NVIDIA => Class::Nvidia,
            AMD if caps.min_subgroup_size >= 64 => Class::AmdCdna,
            AMD => Class::AmdRdna,
            INTEL => Class::Intel,
            APPLE => Class::Apple,
            ARM => Class::Arm,
            _ => Class::Other,
        }
    }

    /// Whether it is a GPU of NVIDIA.
    pub fn is_nvidia(self) -> bool {
        matches!(self, Class::Nvidia | Class::NvidiaDataCenter)
    }

    /// How people call it.
    pub fn name(self) -> &'static str {
        match self {
            Class::NvidiaDataCenter => "NVIDIA data center",
            Class::Nvidia => "NVIDIA",
            Class::AmdRdna => "AMD RDNA",
            Class::AmdCdna => "AMD CDNA",
            Class::Intel => "Intel",
            Class::Apple => "Apple",
            Class::Arm => "Arm",
            Class::Cpu => "CPU",
            Class::Other => "other",
        }
    }
}
