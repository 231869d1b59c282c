//! `VK_KHR_shader_bfloat16`, which vulkano's headers (1.3.281) don't have: whether a device has it, and devices opened with it.
//!
//! vulkano gets its functions from a [`Loader`]. [`load`] puts one before the system's that answers `vkCreateDevice` with
//! [`create_device`], which adds the extension where [`adding`] asks for it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use ash::vk;
use vulkano::device::physical::PhysicalDevice;
use vulkano::library::{Loader, LoadingError};
use vulkano::{Version, VulkanLibrary, VulkanObject};

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

/// The system's Vulkan library, with [`create_device`] for `vkCreateDevice`.
pub(super) fn load() -> Result<Arc<VulkanLibrary>, LoadingError> {
    VulkanLibrary::with_loader(WithCreateDevice(VulkanLibrary::new()?))
}

struct WithCreateDevice(Arc<VulkanLibrary>);

// SAFETY: the library is kept, and so are its functions. The one put in place of `vkCreateDevice` has its type and is there forever.
unsafe impl Loader for WithCreateDevice {
    unsafe fn get_instance_proc_addr(&self, instance: vk::Instance, name: *const c_char) -> vk::PFN_vkVoidFunction {
        // SAFETY: the caller's duty.
        let found = unsafe { self.0.get_instance_proc_addr(instance, name) }?;
        // SAFETY: a name is a C string.
        if unsafe { CStr::from_ptr(name) } != c"vkCreateDevice" {
            return Some(found);
        }
        // The loader's own function finds the driver by the physical device: it is the same for all instances.
        let first = REAL.get_or_init(|| Real { create_device: found, _library: Arc::clone(&self.0) });
        if !std::ptr::fn_addr_eq(first.create_device, found) {
            return Some(found);
        }
        let ours: vk::PFN_vkCreateDevice = create_device;
        // SAFETY: function pointers are of one size; the caller gives it back its type.
        Some(unsafe { transmute::<vk::PFN_vkCreateDevice, unsafe extern "system" fn()>(ours) })
    }
}

/// The `vkCreateDevice` that [`create_device`] calls.
struct Real {
    create_device: unsafe extern "system" fn(),
    /// Keeps the function where it is.
    _library: Arc<VulkanLibrary>,
}

static REAL: OnceLock<Real> = OnceLock::new();

thread_local! {
    /// Whether the next device that this thread creates gets the extension.
    static ADD: Cell<bool> = const { Cell::new(false) };
}

/// Calls `open`, which creates a device: with the extension if `add`, and only where the device has it. Whether it was added comes
/// with the result.
pub(super) fn adding<T>(add: bool, open: impl FnOnce() -> T) -> (T, bool) {
    ADD.set(add);
    let result = open();
    // `create_device` took the flag.
    (result, add && !ADD.take())
}

/// `vkCreateDevice`, for which the caller vouches as for the real one.
unsafe extern "system" fn create_device(
    physical_device: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    let Some(real) = REAL.get() else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: it was found by this name.
    let real = unsafe { transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(real.create_device) };
    if !ADD.try_with(Cell::take).unwrap_or(false) {
        // SAFETY: the caller's own arguments.
        return unsafe { real(physical_device, info, allocator, device) };
    }
    // SAFETY: the caller's arguments, changed in `info` alone, to which the extension may be added where `adding` was asked for it.
    unsafe { with_extension(&*info, |info| real(physical_device, info, allocator, device)) }
}

/// Calls `create` with `info`, to which the extension and its features were added.
///
/// # Safety
/// As `vkCreateDevice` asks of `info`.
unsafe fn with_extension<T>(info: &vk::DeviceCreateInfo<'_>, create: impl FnOnce(&vk::DeviceCreateInfo<'_>) -> T) -> T {
    let mut names = Vec::new();
    if info.enabled_extension_count > 0 {
        let (first, count) = (info.pp_enabled_extension_names, info.enabled_extension_count as usize);
        // SAFETY: there are as many names as `info` says.
        names.extend_from_slice(unsafe { std::slice::from_raw_parts(first, count) });
    }
    names.push(EXTENSION.as_ptr());
    let mut features = Features::new(true);
    create(&info.enabled_extension_names(&names).push_next(&mut features))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::mem::offset_of;
    use std::ptr::from_ref;

    use vulkano::VulkanError;
    use vulkano::device::{Device, DeviceCreateInfo, QueueCreateInfo};

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
    fn the_extension_comes_last_and_its_features_first() {
        let mut first = vk::PhysicalDeviceFeatures2::default();
        let in_chain: *const c_void = from_ref(&first).cast();
        let names = [c"VK_KHR_one".as_ptr(), c"VK_KHR_two".as_ptr()];
        let queues = [vk::DeviceQueueCreateInfo::default()];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let whole = info.enabled_extension_names(&names).push_next(&mut first);
        let check = |info: &vk::DeviceCreateInfo<'_>, before: &[*const c_char], next: *const c_void| {
            assert_eq!((info.queue_create_info_count, info.p_queue_create_infos), (1, queues.as_ptr()));
            let count = info.enabled_extension_count as usize;
            // SAFETY: both are alive.
            let (names, added) = unsafe {
                let names = std::slice::from_raw_parts(info.pp_enabled_extension_names, count);
                (names, &*info.p_next.cast::<Features<'_>>())
            };
            assert_eq!(names.split_last(), Some((&EXTENSION.as_ptr(), before)));
            assert_eq!(added.s_type.as_raw(), 1_000_141_000);
            assert_eq!(added.p_next.cast_const(), next);
            let Features { shader_bfloat16_type, shader_bfloat16_dot_product, .. } = *added;
            assert_eq!([shader_bfloat16_type, shader_bfloat16_dot_product], [vk::TRUE, vk::FALSE]);
            assert_eq!(added.shader_bfloat16_cooperative_matrix, vk::TRUE);
        };
        // SAFETY: no device is created.
        unsafe {
            with_extension(&whole, |changed| check(changed, &names, in_chain));
            with_extension(&info, |changed| check(changed, &[], std::ptr::null()));
        }
        assert_eq!((whole.enabled_extension_count, whole.p_next), (2, in_chain));
    }

    #[test]
    fn devices_get_the_extension_only_when_asked_for_it() {
        let instance = VulkanInstance::shared(Validation::Off).unwrap();
        for physical in instance.instance.enumerate_physical_devices().unwrap() {
            let create = || {
                let queue_create_infos = vec![QueueCreateInfo::default()];
                let info = DeviceCreateInfo { queue_create_infos, ..Default::default() };
                Device::new(Arc::clone(&physical), info).map(|_| ()).map_err(|e| e.unwrap())
            };
            let has = is_supported(&physical);
            assert_eq!(adding(false, create), (Ok(()), false));
            let expected = if has { Ok(()) } else { Err(VulkanError::ExtensionNotPresent) };
            assert_eq!(adding(true, create), (expected, true));
            assert_eq!(create(), Ok(()));
        }
        assert_eq!(adding(true, || ()), ((), false));
    }
}
