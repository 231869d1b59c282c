//! `VK_KHR_shader_bfloat16`, which vulkano's headers (1.3.281) don't have: whether a device has it, and devices opened
//! with it. These are created without vulkano, which is then given the handle.

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use ash::vk;
use vulkano::device::physical::PhysicalDevice;
use vulkano::device::{Device, DeviceCreateInfo, DeviceFeatures, Queue};
use vulkano::{Version, VulkanError, VulkanObject};

const EXTENSION: &CStr = c"VK_KHR_shader_bfloat16";

/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
pub(super) const COMPONENT_TYPE: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
struct Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    shader_bfloat16_type: vk::Bool32,
    shader_bfloat16_dot_product: vk::Bool32,
    shader_bfloat16_cooperative_matrix: vk::Bool32,
    chained: PhantomData<&'a mut c_void>,
}

impl Features<'_> {
    /// With the features that kernels use on or off.
    fn new(on: bool) -> Self {
        Features {
            s_type: vk::StructureType::from_raw(1_000_141_000),
            p_next: null_mut(),
            shader_bfloat16_type: on.into(),
            shader_bfloat16_dot_product: vk::FALSE,
            shader_bfloat16_cooperative_matrix: on.into(),
            chained: PhantomData,
        }
    }
}

// SAFETY: Vulkan's structure by layout and type, and one that may be chained to this one.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features<'_> {}
// SAFETY: likewise.
unsafe impl vk::ExtendsDeviceCreateInfo for Features<'_> {}

/// Whether the device has the extension with `shaderBFloat16Type` and `shaderBFloat16CooperativeMatrix`.
pub(super) fn is_supported(device: &PhysicalDevice) -> bool {
    let is_listed = device.extension_properties().iter().any(|e| e.extension_name.as_bytes() == EXTENSION.to_bytes());
    // `vkGetPhysicalDeviceFeatures2` came with 1.1.
    if !is_listed || device.api_version() < Version::V1_1 {
        return false;
    }
    let mut features = Features::new(false);
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
    let get = device.instance().fns().v1_1.get_physical_device_features2;
    // SAFETY: the device lives and has the extension whose structure is chained.
    unsafe { get(device.handle(), &mut all) };
    features.shader_bfloat16_type != vk::FALSE && features.shader_bfloat16_cooperative_matrix != vk::FALSE
}

/// The features of a device that the engine may enable, as Vulkan 1.3 takes them.
#[derive(Default)]
struct Known {
    core: vk::PhysicalDeviceFeatures,
    v1_1: vk::PhysicalDeviceVulkan11Features<'static>,
    v1_2: vk::PhysicalDeviceVulkan12Features<'static>,
    v1_3: vk::PhysicalDeviceVulkan13Features<'static>,
    matrix: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    conditional: vk::PhysicalDeviceConditionalRenderingFeaturesEXT<'static>,
    executables: vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR<'static>,
}

impl Known {
    fn of(f: &DeviceFeatures) -> Known {
        Known {
            core: vk::PhysicalDeviceFeatures::default()
                .robust_buffer_access(f.robust_buffer_access)
                .shader_float64(f.shader_float64)
                .shader_int64(f.shader_int64)
                .shader_int16(f.shader_int16),
            v1_1: vk::PhysicalDeviceVulkan11Features::default()
                .storage_buffer16_bit_access(f.storage_buffer16_bit_access)
                .uniform_and_storage_buffer16_bit_access(f.uniform_and_storage_buffer16_bit_access)
                .storage_push_constant16(f.storage_push_constant16)
                .variable_pointers_storage_buffer(f.variable_pointers_storage_buffer)
                .variable_pointers(f.variable_pointers),
            v1_2: vk::PhysicalDeviceVulkan12Features::default()
                .storage_buffer8_bit_access(f.storage_buffer8_bit_access)
                .uniform_and_storage_buffer8_bit_access(f.uniform_and_storage_buffer8_bit_access)
                .storage_push_constant8(f.storage_push_constant8)
                .shader_buffer_int64_atomics(f.shader_buffer_int64_atomics)
                .shader_float16(f.shader_float16)
                .shader_int8(f.shader_int8)
                .scalar_block_layout(f.scalar_block_layout)
                .shader_subgroup_extended_types(f.shader_subgroup_extended_types)
                .buffer_device_address(f.buffer_device_address)
                .vulkan_memory_model(f.vulkan_memory_model)
                .vulkan_memory_model_device_scope(f.vulkan_memory_model_device_scope),
            v1_3: vk::PhysicalDeviceVulkan13Features::default()
                .subgroup_size_control(f.subgroup_size_control)
                .compute_full_subgroups(f.compute_full_subgroups)
                .maintenance4(f.maintenance4),
            matrix: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(f.cooperative_matrix),
            conditional: vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default()
                .conditional_rendering(f.conditional_rendering),
            executables: vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
                .pipeline_executable_info(f.pipeline_executable_info),
        }
    }

    /// Calls `with` with all of them, and bfloat16's where `bfloat16` is there, in one chain.
    fn chained<T>(
        &mut self,
        bfloat16: Option<&mut Features<'_>>,
        with: impl FnOnce(&mut vk::PhysicalDeviceFeatures2<'_>) -> T,
    ) -> T {
        let mut all = vk::PhysicalDeviceFeatures2::default().features(self.core);
        all = all.push_next(&mut self.v1_1).push_next(&mut self.v1_2).push_next(&mut self.v1_3);
        all = all.push_next(&mut self.matrix);
        // Of extensions that are enabled with them only.
        if self.conditional.conditional_rendering != vk::FALSE {
            all = all.push_next(&mut self.conditional);
        }
        if self.executables.pipeline_executable_info != vk::FALSE {
            all = all.push_next(&mut self.executables);
        }
        match bfloat16 {
            Some(features) => with(&mut all.push_next(features)),
            None => with(&mut all),
        }
    }
}

/// Opens a device of Vulkan 1.3 or later with these queues, and with the extension if `bfloat16`, which it must have
/// then.
///
/// # Errors
/// Those of `vkCreateDevice`.
pub(super) fn open(
    physical: &Arc<PhysicalDevice>,
    info: DeviceCreateInfo,
    bfloat16: bool,
) -> Result<(Arc<Device>, Vec<Arc<Queue>>), VulkanError> {
    let names: Vec<CString> = (&info.enabled_extensions).into();
    let added = bfloat16.then(|| EXTENSION.as_ptr());
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).chain(added).collect();
    let families = info.queue_create_infos.clone();
    let queues: Vec<vk::DeviceQueueCreateInfo<'_>> = families
        .iter()
        .map(|family| {
            let family_index = family.queue_family_index;
            vk::DeviceQueueCreateInfo::default().queue_family_index(family_index).queue_priorities(&family.queues)
        })
        .collect();
    let mut features = Features::new(true);
    let mut handle = vk::Device::null();
    let create = physical.instance().fns().v1_0.create_device;
    let created = Known::of(&info.enabled_features).chained(bfloat16.then_some(&mut features), |all| {
        let raw =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names).push_next(all);
        // SAFETY: the physical device lives and has what is asked for; all that `raw` points to outlives the call.
        unsafe { create(physical.handle(), &raw, null(), &mut handle) }
    });
    if created != vk::Result::SUCCESS {
        return Err(created.into());
    }
    // SAFETY: the handle is that of a new device of `physical` with these queues, extensions and features, and nobody
    // else destroys it.
    let (device, queues) = unsafe { Device::from_handle(Arc::clone(physical), handle, info) };
    Ok((device, queues.collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::mem::offset_of;

    use vulkano::device::{DeviceOwned, QueueCreateInfo};

    use super::super::caps::{usable_features, wanted_features};
    use super::super::instance::{Validation, VulkanInstance};
    use super::*;

    #[test]
    fn the_structure_has_vulkans_layout() {
        // A structure of three features, too.
        type Like = vk::PhysicalDeviceVulkanMemoryModelFeatures<'static>;
        type Ours = Features<'static>;
        assert_eq!((size_of::<Ours>(), align_of::<Ours>()), (size_of::<Like>(), align_of::<Like>()));
        let ours = [offset_of!(Ours, p_next), offset_of!(Ours, shader_bfloat16_type)];
        assert_eq!(ours, [offset_of!(Like, p_next), offset_of!(Like, vulkan_memory_model)]);
        let last = offset_of!(Like, vulkan_memory_model_availability_visibility_chains);
        assert_eq!(offset_of!(Ours, shader_bfloat16_cooperative_matrix), last);
    }

    #[test]
    fn no_feature_of_the_engine_is_forgotten() {
        let wanted = usable_features();
        let count = wanted.into_iter().filter(|(_, on)| *on).count();
        let Known { core, v1_1, v1_2, v1_3, matrix, conditional, executables } = Known::of(&wanted);
        // Each is a word that is 1; the rest of the structures is none.
        let text = format!("{core:?} {v1_1:?} {v1_2:?} {v1_3:?} {matrix:?} {conditional:?} {executables:?}");
        assert_eq!(text.matches(": 1").count(), count, "{text}");
        assert_eq!(Known::of(&DeviceFeatures::empty()).v1_2.buffer_device_address, vk::FALSE);
    }

    #[test]
    fn devices_are_those_that_vulkano_opens() {
        let instance = VulkanInstance::shared(Validation::Off).unwrap();
        for physical in instance.instance.enumerate_physical_devices().unwrap() {
            if physical.api_version() < Version::V1_3 {
                continue;
            }
            let has = is_supported(&physical);
            let create = |bfloat16| {
                let info = DeviceCreateInfo {
                    queue_create_infos: vec![QueueCreateInfo::default()],
                    enabled_features: wanted_features(physical.supported_features()).difference(&DeviceFeatures {
                        cooperative_matrix: true,
                        conditional_rendering: true,
                        pipeline_executable_info: true,
                        ..DeviceFeatures::empty()
                    }),
                    ..Default::default()
                };
                let features = info.enabled_features;
                let (device, queues) = open(&physical, info, bfloat16)?;
                assert!(matches!(queues.as_slice(), [queue] if Arc::ptr_eq(queue.device(), &device)));
                assert_eq!(*device.enabled_features(), features);
                Ok(())
            };
            assert_eq!(create(false), Ok(()));
            assert_eq!(create(true), if has { Ok(()) } else { Err(VulkanError::ExtensionNotPresent) });
        }
    }
}
