//! What a driver tells of a device for people to read: none of it decides anything.

use ash::vk;
use vulkano::device::physical::PhysicalDevice;
use vulkano::memory::MemoryHeapFlags;
use vulkano::{Version, VulkanObject};

use super::caps::matrix_properties;

/// What a device is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Invocations of a subgroup: the fewest, as many as there are unless kernels ask otherwise, the most.
    pub subgroup_sizes: [u32; 3],
    /// The products that its matrix units do (`VK_KHR_cooperative_matrix`).
    pub matrices: Vec<Matrices>,
    /// Its memory.
    pub heaps: Vec<Heap>,
}

/// A product of an m x k and a k x n matrix, with an m x n matrix added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrices {
    /// m, n and k.
    pub sizes: [u32; 3],
    /// Types of the factors, of what is added, and of the result, as Nx names them.
    pub types: [String; 4],
}

/// A heap of memory. What is in use and the budget are those of the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// All of it.
    pub size_bytes: u64,
    /// Whether it is the device's own.
    pub device_local: bool,
    /// What this process has of it, and how much it may have at most, where the driver tells
    /// (`VK_EXT_memory_budget`).
    pub used_and_budget_bytes: Option<(u64, u64)>,
}

pub(super) fn details(physical: &PhysicalDevice) -> Details {
    let p = physical.properties();
    let usual = p.subgroup_size.unwrap_or(1);
    let has_matrices = physical.supported_extensions().khr_cooperative_matrix;
    let matrices = if has_matrices { matrix_properties(physical).iter().map(matrices).collect() } else { vec![] };
    let subgroup_sizes = [p.min_subgroup_size.unwrap_or(usual), usual, p.max_subgroup_size.unwrap_or(usual)];
    Details { subgroup_sizes, matrices, heaps: heaps(physical) }
}

/// Where the device is on the PCI bus, as `lspci -D` has it.
pub(super) fn pci(physical: &PhysicalDevice) -> Option<String> {
    let p = physical.properties();
    let (domain, bus, device, function) = (p.pci_domain?, p.pci_bus?, p.pci_device?, p.pci_function?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn matrices(p: &vk::CooperativeMatrixPropertiesKHR<'_>) -> Matrices {
    Matrices {
        sizes: [p.m_size, p.n_size, p.k_size],
        types: [p.a_type, p.b_type, p.c_type, p.result_type].map(type_name),
    }
}

/// By the numbers of `VkComponentTypeKHR`, some of which the headers at hand don't have.
fn type_name(component: vk::ComponentTypeKHR) -> String {
    const NAMES: [&str; 11] = ["f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"];
    match component.as_raw() {
        1_000_141_000 => "bf16".into(),
        1_000_491_002 => "f8_e4m3fn".into(),
        1_000_491_003 => "f8".into(),
        other => match usize::try_from(other).ok().and_then(|i| NAMES.get(i)) {
            Some(name) => (*name).into(),
            None => format!("type {other}"),
        },
    }
}

fn heaps(physical: &PhysicalDevice) -> Vec<Heap> {
    let budgets = budgets(physical);
    let heap = |(index, heap): (usize, &vulkano::memory::MemoryHeap)| Heap {
        size_bytes: heap.size,
        device_local: heap.flags.intersects(MemoryHeapFlags::DEVICE_LOCAL),
        used_and_budget_bytes: budgets.as_ref().and_then(|of| of.get(index).copied()),
    };
    physical.memory_properties().memory_heaps.iter().enumerate().map(heap).collect()
}

/// What is in use of each heap, and its budget.
fn budgets(physical: &PhysicalDevice) -> Option<Vec<(u64, u64)>> {
    // `vkGetPhysicalDeviceMemoryProperties2` came with 1.1.
    if !physical.supported_extensions().ext_memory_budget || physical.api_version() < Version::V1_1 {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    let get = physical.instance().fns().v1_1.get_physical_device_memory_properties2;
    // SAFETY: the device lives and has the extension whose structure is chained.
    unsafe { get(physical.handle(), &mut all) };
    Some(budget.heap_usage.into_iter().zip(budget.heap_budget).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_the_names_of_types() {
        let name = |raw: i32| type_name(vk::ComponentTypeKHR::from_raw(raw));
        assert_eq!(name(vk::ComponentTypeKHR::FLOAT16.as_raw()), "f16");
        assert_eq!(name(vk::ComponentTypeKHR::SINT8.as_raw()), "s8");
        assert_eq!(name(vk::ComponentTypeKHR::UINT64.as_raw()), "u64");
        assert_eq!(name(super::super::bfloat16::COMPONENT_TYPE.as_raw()), "bf16");
        assert_eq!(name(11), "type 11");
        assert_eq!(name(-1), "type -1");
    }

    #[test]
    fn devices_tell_their_subgroups_and_heaps() {
        for device in crate::enumerate().unwrap().iter().filter(|device| device.unusable.is_none()) {
            let Details { subgroup_sizes: [least, usual, most], heaps, .. } = &device.details;
            assert!(1 <= *least && least <= usual && usual <= most, "{device}");
            assert_eq!(
                heaps.iter().filter(|heap| heap.device_local).map(|h| h.size_bytes).max(),
                Some(device.memory_bytes)
            );
            for (used, budget) in heaps.iter().filter_map(|heap| heap.used_and_budget_bytes) {
                assert!(budget > 0 && used <= 1 << 50, "{device}: {used} of {budget}");
            }
        }
    }
}
