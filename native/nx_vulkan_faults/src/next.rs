//! The way to the next layer: what the loader hands over when instances and devices are created.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;
use ash::vk::Handle;

/// What dispatches a handle: handles of one device have the same, and so have those of one instance.
pub trait Key {
    fn key(&self) -> usize;
}

macro_rules! keys {
    ($($ty:ty),*) => {
        $(impl Key for $ty {
            fn key(&self) -> usize {
                // SAFETY: a dispatchable handle points to the loader's table.
                unsafe { *(self.as_raw() as *const usize) }
            }
        })*
    };
}

keys!(vk::Instance, vk::PhysicalDevice, vk::Device, vk::Queue, vk::CommandBuffer);

#[derive(Clone, Copy)]
enum Get {
    Instance(vk::PFN_vkGetInstanceProcAddr),
    Device(vk::PFN_vkGetDeviceProcAddr),
}

/// An instance or device, with what finds the next layer's functions.
#[derive(Clone, Copy)]
struct Known {
    key: usize,
    handle: u64,
    get: Get,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(known_now: Known) {
    let mut known = known();
    known.retain(|k| k.key != known_now.key);
    known.push(known_now);
}

pub fn register_instance(instance: vk::Instance, get: vk::PFN_vkGetInstanceProcAddr) {
    register(Known { key: instance.key(), handle: instance.as_raw(), get: Get::Instance(get) });
}

pub fn register_device(device: vk::Device, get: vk::PFN_vkGetDeviceProcAddr) {
    register(Known { key: device.key(), handle: device.as_raw(), get: Get::Device(get) });
}

pub fn forget(key: usize) {
    known().retain(|k| k.key != key);
}

/// The instance or device of a key, and the next layer's function.
pub fn next(key: usize, name: &CStr) -> Option<(u64, unsafe extern "system" fn())> {
    let found = known().iter().find(|k| k.key == key).copied()?;
    // SAFETY: the handle lives, and the name ends with 0.
    let function = unsafe {
        match found.get {
            Get::Instance(get) => get(vk::Instance::from_raw(found.handle), name.as_ptr()),
            Get::Device(get) => get(vk::Device::from_raw(found.handle), name.as_ptr()),
        }
    };
    function.map(|function| (found.handle, function))
}

/// The instance that a physical device belongs to.
pub fn instance_of(physical: vk::PhysicalDevice) -> vk::Instance {
    let key = physical.key();
    known().iter().find(|k| k.key == key).map_or(vk::Instance::null(), |k| vk::Instance::from_raw(k.handle))
}

/// `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo` of the loader, where they hold a link.
#[repr(C)]
pub struct LayerCreateInfo {
    s_type: vk::StructureType,
    p_next: *const c_void,
    function: u32,
    /// The first of the links that are left.
    pub link: *mut c_void,
}

/// `VK_LAYER_LINK_INFO`.
const LINK: u32 = 0;

#[repr(C)]
struct InstanceLink {
    next: *mut c_void,
    get: vk::PFN_vkGetInstanceProcAddr,
    _get_of_physical_device: Option<unsafe extern "system" fn()>,
}

#[repr(C)]
struct DeviceLink {
    next: *mut c_void,
    get_of_instance: vk::PFN_vkGetInstanceProcAddr,
    get: vk::PFN_vkGetDeviceProcAddr,
}

impl LayerCreateInfo {
    /// What finds the next layer's functions, and the link behind it.
    ///
    /// # Safety
    /// This is the loader's, of an instance.
    pub unsafe fn next_instance(&self) -> Option<(vk::PFN_vkGetInstanceProcAddr, *mut c_void)> {
        // SAFETY: the caller's duty.
        let link = unsafe { self.link.cast::<InstanceLink>().as_ref() }?;
        Some((link.get, link.next))
    }

    /// What the next layer, or the driver, has for a device.
    ///
    /// # Safety
    /// This is the loader's, of a device.
    #[allow(clippy::type_complexity)]
    pub unsafe fn next_device(
        &self,
    ) -> Option<(vk::PFN_vkGetInstanceProcAddr, vk::PFN_vkGetDeviceProcAddr, *mut c_void)> {
        // SAFETY: the caller's duty.
        let link = unsafe { self.link.cast::<DeviceLink>().as_ref() }?;
        Some((link.get_of_instance, link.get, link.next))
    }
}

/// The loader's part of a chain of structures; null where there is none.
///
/// # Safety
/// Every structure of the chain begins with its type and the next one, as Vulkan's do.
pub unsafe fn chain_of(mut chain: *const c_void, wanted: vk::StructureType) -> *mut LayerCreateInfo {
    while !chain.is_null() {
        // SAFETY: the caller's duty; the loader's own structures have a function as well.
        unsafe {
            let base = chain.cast::<vk::BaseInStructure<'static>>();
            if (*base).s_type == wanted && (*chain.cast::<LayerCreateInfo>()).function == LINK {
                return chain.cast_mut().cast();
            }
            chain = (*base).p_next.cast();
        }
    }
    std::ptr::null_mut()
}
