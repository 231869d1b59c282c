//! Choosing and opening a Vulkan device, and what it can do as plain data.

mod bfloat16;
mod caps;
mod details;
mod instance;
mod open;
mod select;

pub(crate) use caps::MATRIX_SUBGROUP_SIZE;
pub use caps::{Caps, FloatControls, HeapInfo, MemoryTypeInfo, SubgroupOps};
pub use details::{Details, Heap, Matrices};
pub use instance::{Loader, Validation, ValidationLog, describe, loader};
pub use open::OpenDevice;
pub use select::choose;
use std::fmt;

use nx_vulkan_ir::{DType, Error, Result};
use nx_vulkan_spirv::lower::Lacks;

/// The kind of hardware behind a device, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// The CPU, such as lavapipe.
    Cpu,
    /// Anything else.
    Other,
}

impl DeviceKind {
    /// Lower-case name, as `Nx.Vulkan.devices/0` tells it.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Cpu => "cpu",
            DeviceKind::Other => "other",
        }
    }
}

/// One physical device, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Position in the loader's list; the number a selector may name.
    pub index: usize,
    /// As the driver says.
    pub name: String,
    /// All zeros where the driver reports none.
    pub uuid: [u8; 16],
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// The vendor's PCI number.
    pub vendor_id: u32,
    /// The vendor's number of the device.
    pub device_id: u32,
    /// The driver's name.
    pub driver_name: String,
    /// The driver's own description, its version above all.
    pub driver_info: String,
    /// The version in the vendor's encoding.
    pub driver_version: u32,
    /// (major, minor, patch), capped at what the engine's Vulkan bindings know.
    pub api_version: (u32, u32, u32),
    /// Size of the largest device-local heap.
    pub memory_bytes: u64,
    /// Types that it lacks, so that kernels are lowered for it.
    pub lacks: Lacks,
    /// Where it is on the PCI bus, where the driver tells.
    pub pci: Option<String>,
    /// What else its driver tells.
    pub details: Details,
    /// Why the engine can't use this device; `None` when it can.
    pub unusable: Option<String>,
}

impl DeviceInfo {
    /// The UUID as 32 hexadecimal digits.
    pub fn uuid_hex(&self) -> String {
        self.uuid.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Types that the device lacks, so that kernels compute with them in words of 32 bits.
    pub fn lowered_types(&self) -> Vec<DType> {
        DType::ALL.into_iter().filter(|dtype| self.lacks.lowers_type(*dtype)).collect()
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}, uuid:{})", self.index, self.name, self.kind.name(), self.uuid_hex())?;
        match &self.unusable {
            Some(reason) => write!(f, " [{reason}]"),
            None => Ok(()),
        }
    }
}

/// Every Vulkan device of this machine, usable or not.
///
/// # Errors
/// `NoDevice` when there is no Vulkan loader or no driver.
pub fn enumerate() -> Result<Vec<DeviceInfo>> {
    let instance = instance::VulkanInstance::shared(Validation::from_env())?;
    Ok(open::list(&instance)?.into_iter().map(|d| d.info).collect())
}

/// That there is no device to use, and why.
pub fn no_device(reason: impl Into<String>) -> Error {
    Error::NoDevice { reason: reason.into() }
}
