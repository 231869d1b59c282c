//! How fast a device is thought to be: what chooses kernels and launches.

#[cfg(test)]
mod choices_tests;
#[cfg(test)]
mod devices;

use nx_vulkan_device::Caps;

/// What is known of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceModel {
    /// What its driver says.
    pub caps: Caps,
    /// What commands side by side are short with.
    pub short: Short,
}

/// What commands side by side do at most where all of it runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Workgroups.
    pub groups: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Operations on numbers.
    pub flops: u64,
}

impl DeviceModel {
    /// The model of a device that nothing was measured on.
    pub fn of(caps: &Caps) -> DeviceModel {
        DeviceModel { caps: caps.clone(), short: Short { groups: 8 * 132, bytes: 16 << 20, flops: 1 << 28 } }
    }
}
