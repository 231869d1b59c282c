//! A Vulkan layer for tests: the n-th call from now on fails with a chosen result, and objects that exist are counted.
//!
//! A call that fails is not passed on, so that nothing comes of it. Loss of a device is as drivers have it: the device
//! comes to rest, and from then on all that may tell of a loss does. Tests load the file of the layer and call the
//! functions at its end.

mod next;
mod state;

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;

use next::{Key, chain_of, forget, instance_of, next, register_device, register_instance};
use state::{Kind, appears, fault, is_lost, lose, revive, vanishes};

/// Results that a call may have, by the specification.
const HOST_MEMORY: &[vk::Result] = &[vk::Result::ERROR_OUT_OF_HOST_MEMORY];
const MEMORY: &[vk::Result] = &[vk::Result::ERROR_OUT_OF_HOST_MEMORY, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY];
const MEMORY_OR_LOSS: &[vk::Result] =
    &[vk::Result::ERROR_OUT_OF_HOST_MEMORY, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_DEVICE_LOST];
const OPENING: &[vk::Result] = &[
    vk::Result::ERROR_OUT_OF_HOST_MEMORY,
    vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
    vk::Result::ERROR_INITIALIZATION_FAILED,
];
const OPENING_OR_LOSS: &[vk::Result] = &[
    vk::Result::ERROR_OUT_OF_HOST_MEMORY,
    vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
    vk::Result::ERROR_INITIALIZATION_FAILED,
    vk::Result::ERROR_DEVICE_LOST,
];

type Allocator = *const vk::AllocationCallbacks<'static>;

/// Held while something is submitted: no other thread may do that while this layer waits for a device.
fn submits() -> MutexGuard<'static, ()> {
    static SUBMITS: Mutex<()> = Mutex::new(());
    SUBMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a call in place of what the next layer would say, if it is to fail.
fn failure(key: usize, name: &'static CStr, results: &[vk::Result]) -> Option<vk::Result> {
    let may_lose = results.contains(&vk::Result::ERROR_DEVICE_LOST);
    if may_lose && is_lost(key) {
        return Some(vk::Result::ERROR_DEVICE_LOST);
    }
    let result = fault(name, results)?;
    if result == vk::Result::ERROR_DEVICE_LOST {
        let _nobody_submits = submits();
        lose(key);
        // What runs on a lost device ends.
        if let Some((device, wait)) = next(key, c"vkDeviceWaitIdle") {
            // SAFETY: the name is that of this type; the handle is the device's, and no other thread uses its queues.
            unsafe {
                let wait: vk::PFN_vkDeviceWaitIdle = transmute(wait);
                let _ = wait(vk::Handle::from_raw(device));
            }
        }
    }
    Some(result)
}

/// Calls that may fail: the function here, its name, what it creates, the results that it may have, and its parameters.
macro_rules! calls {
    ($(
        $function:ident $name:literal $kind:expr, $results:expr, ($handle:ident: $of:ty $(, $arg:ident: $ty:ty)*);
    )*) => {
        $(
            unsafe extern "system" fn $function($handle: $of $(, $arg: $ty)*) -> vk::Result {
                let key = $handle.key();
                if let Some(result) = failure(key, $name, $results) {
                    return result;
                }
                let Some((_, next)) = next(key, $name) else { return vk::Result::ERROR_UNKNOWN };
                let submitting = ($name == c"vkQueueSubmit").then(submits);
                // It may have been lost since.
                if submitting.is_some() && is_lost(key) {
                    return vk::Result::ERROR_DEVICE_LOST;
                }
                // SAFETY: the next layer's function of this name has these parameters, which are handed on.
                let result = unsafe {
                    transmute::<
                        unsafe extern "system" fn(),
                        unsafe extern "system" fn($of $(, $ty)*) -> vk::Result,
                    >(next)($handle $(, $arg)*)
                };
                let kind: Option<Kind> = $kind;
                if let (vk::Result::SUCCESS, Some(kind)) = (result, kind) {
                    appears(kind);
                }
                result
            }
        )*

        fn failing(name: &CStr) -> Option<unsafe extern "system" fn()> {
            $(
                if name == $name {
                    // SAFETY: whoever asks for the function calls it with its own type.
                    return Some(unsafe { transmute::<*const (), unsafe extern "system" fn()>($function as *const ()) });
                }
            )*
            None
        }
    };
}

calls! {
    enumerate_physical_devices c"vkEnumeratePhysicalDevices" None, OPENING,
        (instance: vk::Instance, count: *mut u32, devices: *mut vk::PhysicalDevice);
    enumerate_extensions c"vkEnumerateDeviceExtensionProperties" None, MEMORY,
        (device: vk::PhysicalDevice, layer: *const c_char, count: *mut u32, out: *mut vk::ExtensionProperties);
    allocate_memory c"vkAllocateMemory" Some(Kind::Memory), MEMORY,
        (device: vk::Device, info: *const vk::MemoryAllocateInfo<'static>, with: Allocator, out: *mut vk::DeviceMemory);
    map_memory c"vkMapMemory" None, MEMORY,
        (device: vk::Device, memory: vk::DeviceMemory, offset: u64, size: u64, flags: u32, out: *mut *mut c_void);
    create_buffer c"vkCreateBuffer" Some(Kind::Buffer), MEMORY,
        (device: vk::Device, info: *const vk::BufferCreateInfo<'static>, with: Allocator, out: *mut vk::Buffer);
    bind_buffer_memory c"vkBindBufferMemory2" None, MEMORY,
        (device: vk::Device, count: u32, infos: *const vk::BindBufferMemoryInfo<'static>);
    create_shader_module c"vkCreateShaderModule" Some(Kind::ShaderModule), MEMORY,
        (device: vk::Device, info: *const vk::ShaderModuleCreateInfo<'static>, with: Allocator,
            out: *mut vk::ShaderModule);
    create_pipeline_cache c"vkCreatePipelineCache" Some(Kind::PipelineCache), MEMORY,
        (device: vk::Device, info: *const vk::PipelineCacheCreateInfo<'static>, with: Allocator,
            out: *mut vk::PipelineCache);
    get_pipeline_cache_data c"vkGetPipelineCacheData" None, MEMORY,
        (device: vk::Device, cache: vk::PipelineCache, size: *mut usize, data: *mut c_void);
    create_pipelines c"vkCreateComputePipelines" Some(Kind::Pipeline), MEMORY,
        (device: vk::Device, cache: vk::PipelineCache, count: u32, infos: *const vk::ComputePipelineCreateInfo<'static>,
            with: Allocator, out: *mut vk::Pipeline);
    create_pipeline_layout c"vkCreatePipelineLayout" Some(Kind::PipelineLayout), MEMORY,
        (device: vk::Device, info: *const vk::PipelineLayoutCreateInfo<'static>, with: Allocator,
            out: *mut vk::PipelineLayout);
    create_set_layout c"vkCreateDescriptorSetLayout" Some(Kind::DescriptorSetLayout), MEMORY,
        (device: vk::Device, info: *const vk::DescriptorSetLayoutCreateInfo<'static>, with: Allocator,
            out: *mut vk::DescriptorSetLayout);
    create_descriptor_pool c"vkCreateDescriptorPool" Some(Kind::DescriptorPool), MEMORY,
        (device: vk::Device, info: *const vk::DescriptorPoolCreateInfo<'static>, with: Allocator,
            out: *mut vk::DescriptorPool);
    allocate_descriptor_sets c"vkAllocateDescriptorSets" None, MEMORY,
        (device: vk::Device, info: *const vk::DescriptorSetAllocateInfo<'static>, out: *mut vk::DescriptorSet);
    create_command_pool c"vkCreateCommandPool" Some(Kind::CommandPool), MEMORY,
        (device: vk::Device, info: *const vk::CommandPoolCreateInfo<'static>, with: Allocator,
            out: *mut vk::CommandPool);
    reset_command_pool c"vkResetCommandPool" None, MEMORY,
        (device: vk::Device, pool: vk::CommandPool, flags: vk::CommandPoolResetFlags);
    allocate_command_buffers c"vkAllocateCommandBuffers" None, MEMORY,
        (device: vk::Device, info: *const vk::CommandBufferAllocateInfo<'static>, out: *mut vk::CommandBuffer);
    begin_command_buffer c"vkBeginCommandBuffer" None, MEMORY,
        (commands: vk::CommandBuffer, info: *const vk::CommandBufferBeginInfo<'static>);
    end_command_buffer c"vkEndCommandBuffer" None, MEMORY, (commands: vk::CommandBuffer);
    create_fence c"vkCreateFence" Some(Kind::Fence), MEMORY,
        (device: vk::Device, info: *const vk::FenceCreateInfo<'static>, with: Allocator, out: *mut vk::Fence);
    reset_fences c"vkResetFences" None, MEMORY, (device: vk::Device, count: u32, fences: *const vk::Fence);
    get_fence_status c"vkGetFenceStatus" None, MEMORY_OR_LOSS, (device: vk::Device, fence: vk::Fence);
    wait_for_fences c"vkWaitForFences" None, MEMORY_OR_LOSS,
        (device: vk::Device, count: u32, fences: *const vk::Fence, all: vk::Bool32, timeout: u64);
    queue_submit c"vkQueueSubmit" None, MEMORY_OR_LOSS,
        (queue: vk::Queue, count: u32, infos: *const vk::SubmitInfo<'static>, fence: vk::Fence);
    get_memory_fd c"vkGetMemoryFdKHR" None, HOST_MEMORY,
        (device: vk::Device, info: *const vk::MemoryGetFdInfoKHR<'static>, out: *mut i32);
    create_query_pool c"vkCreateQueryPool" Some(Kind::QueryPool), MEMORY,
        (device: vk::Device, info: *const vk::QueryPoolCreateInfo<'static>, with: Allocator, out: *mut vk::QueryPool);
    get_query_pool_results c"vkGetQueryPoolResults" None, MEMORY_OR_LOSS,
        (device: vk::Device, pool: vk::QueryPool, first: u32, count: u32, size: usize, data: *mut c_void,
            stride: u64, flags: u32);
}

/// Calls that end objects: the function here, its name, the kind, and the type of the handle.
macro_rules! ends {
    ($($function:ident $name:literal $kind:expr, $ty:ty;)*) => {
        $(
            unsafe extern "system" fn $function(device: vk::Device, object: $ty, with: Allocator) {
                let Some((_, next)) = next(device.key(), $name) else { return };
                // SAFETY: the next layer's function of this name has these parameters, which are handed on.
                unsafe {
                    transmute::<
                        unsafe extern "system" fn(),
                        unsafe extern "system" fn(vk::Device, $ty, Allocator),
                    >(next)(device, object, with);
                }
                if vk::Handle::as_raw(object) != 0 {
                    vanishes($kind);
                }
            }
        )*

        fn ending(name: &CStr) -> Option<unsafe extern "system" fn()> {
            $(
                if name == $name {
                    // SAFETY: whoever asks for the function calls it with its own type.
                    return Some(unsafe { transmute::<*const (), unsafe extern "system" fn()>($function as *const ()) });
                }
            )*
            None
        }
    };
}

ends! {
    free_memory c"vkFreeMemory" Kind::Memory, vk::DeviceMemory;
    destroy_buffer c"vkDestroyBuffer" Kind::Buffer, vk::Buffer;
    destroy_shader_module c"vkDestroyShaderModule" Kind::ShaderModule, vk::ShaderModule;
    destroy_pipeline_cache c"vkDestroyPipelineCache" Kind::PipelineCache, vk::PipelineCache;
    destroy_pipeline c"vkDestroyPipeline" Kind::Pipeline, vk::Pipeline;
    destroy_pipeline_layout c"vkDestroyPipelineLayout" Kind::PipelineLayout, vk::PipelineLayout;
    destroy_set_layout c"vkDestroyDescriptorSetLayout" Kind::DescriptorSetLayout, vk::DescriptorSetLayout;
    destroy_descriptor_pool c"vkDestroyDescriptorPool" Kind::DescriptorPool, vk::DescriptorPool;
    destroy_command_pool c"vkDestroyCommandPool" Kind::CommandPool, vk::CommandPool;
    destroy_fence c"vkDestroyFence" Kind::Fence, vk::Fence;
    destroy_query_pool c"vkDestroyQueryPool" Kind::QueryPool, vk::QueryPool;
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'static>,
    with: Allocator,
    out: *mut vk::Instance,
) -> vk::Result {
    if let Some(result) = fault(c"vkCreateInstance", OPENING) {
        return result;
    }
    // SAFETY: the loader hands over a chain with this layer's link, which is moved on to the next layer's.
    unsafe {
        let chain = chain_of((*info).p_next, vk::StructureType::LOADER_INSTANCE_CREATE_INFO);
        let Some(chain) = chain.as_mut() else { return vk::Result::ERROR_INITIALIZATION_FAILED };
        let Some((get, next)) = chain.next_instance() else { return vk::Result::ERROR_INITIALIZATION_FAILED };
        chain.link = next;
        let Some(create) = get(vk::Instance::null(), c"vkCreateInstance".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let result = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create)(info, with.cast(), out);
        if result == vk::Result::SUCCESS {
            register_instance(*out, get);
            appears(Kind::Instance);
        }
        result
    }
}

unsafe extern "system" fn destroy_instance(instance: vk::Instance, with: Allocator) {
    let key = instance.key();
    let Some((_, next)) = next(key, c"vkDestroyInstance") else { return };
    forget(key);
    // SAFETY: handed on.
    unsafe { transmute::<unsafe extern "system" fn(), vk::PFN_vkDestroyInstance>(next)(instance, with.cast()) };
    vanishes(Kind::Instance);
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'static>,
    with: Allocator,
    out: *mut vk::Device,
) -> vk::Result {
    if let Some(result) = fault(c"vkCreateDevice", OPENING_OR_LOSS) {
        return result;
    }
    // SAFETY: the loader hands over a chain with this layer's link, which is moved on to the next layer's.
    unsafe {
        let chain = chain_of((*info).p_next, vk::StructureType::LOADER_DEVICE_CREATE_INFO);
        let Some(chain) = chain.as_mut() else { return vk::Result::ERROR_INITIALIZATION_FAILED };
        let Some((get_of_instance, get, next)) = chain.next_device() else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        chain.link = next;
        let Some(create) = get_of_instance(instance_of(physical), c"vkCreateDevice".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let result = create(physical, info, with.cast(), out);
        if result == vk::Result::SUCCESS {
            register_device(*out, get);
            appears(Kind::Device);
        }
        result
    }
}

unsafe extern "system" fn destroy_device(device: vk::Device, with: Allocator) {
    if device == vk::Device::null() {
        return;
    }
    let key = device.key();
    let Some((_, next)) = next(key, c"vkDestroyDevice") else { return };
    forget(key);
    revive(key);
    // SAFETY: handed on.
    unsafe { transmute::<unsafe extern "system" fn(), vk::PFN_vkDestroyDevice>(next)(device, with.cast()) };
    vanishes(Kind::Device);
}

/// What this layer has in place of the next one's function.
fn own(name: &CStr) -> Option<unsafe extern "system" fn()> {
    let own = match name.to_bytes() {
        b"vkGetInstanceProcAddr" => get_instance_proc_addr as *const (),
        b"vkGetDeviceProcAddr" => get_device_proc_addr as *const (),
        b"vkCreateInstance" => create_instance as *const (),
        b"vkDestroyInstance" => destroy_instance as *const (),
        b"vkCreateDevice" => create_device as *const (),
        b"vkDestroyDevice" => destroy_device as *const (),
        _ => return failing(name).or_else(|| ending(name)),
    };
    // SAFETY: whoever asks for the function calls it with its own type.
    Some(unsafe { transmute::<*const (), unsafe extern "system" fn()>(own) })
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's name ends with 0.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(own) = own(name) {
        return Some(own);
    }
    if instance == vk::Instance::null() {
        return None;
    }
    next(instance.key(), name).map(|(_, next)| next)
}

unsafe extern "system" fn get_device_proc_addr(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's name ends with 0.
    let name = unsafe { CStr::from_ptr(name) };
    own(name).or_else(|| next(device.key(), name).map(|(_, next)| next))
}

/// `VkNegotiateLayerInterface` of the loader.
#[repr(C)]
#[derive(Debug)]
pub struct NegotiateLayerInterface {
    s_type: u32,
    p_next: *mut c_void,
    version: u32,
    get_instance_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
    get_device_proc_addr: Option<vk::PFN_vkGetDeviceProcAddr>,
    get_physical_device_proc_addr: Option<unsafe extern "system" fn()>,
}

/// The version of the loader's interface that this layer speaks.
const INTERFACE_VERSION: u32 = 2;

/// Where the loader begins.
///
/// # Safety
/// `negotiated` is the loader's.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(
    negotiated: *mut NegotiateLayerInterface,
) -> vk::Result {
    // SAFETY: the caller's duty.
    let Some(negotiated) = (unsafe { negotiated.as_mut() }) else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    if negotiated.version < INTERFACE_VERSION {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    negotiated.version = INTERFACE_VERSION;
    negotiated.get_instance_proc_addr = Some(get_instance_proc_addr);
    negotiated.get_device_proc_addr = Some(get_device_proc_addr);
    negotiated.get_physical_device_proc_addr = None;
    vk::Result::SUCCESS
}

/// From now on, of the calls of a function (of all that may have this result where it is null), the one of this number
/// has it: 1 for the next one, 0 for none. Counts anew.
///
/// # Safety
/// The name ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_vulkan_faults_arm(function: *const c_char, call: u64, result: i32) {
    // SAFETY: the caller's duty.
    let function = (!function.is_null()).then(|| unsafe { CStr::from_ptr(function) });
    state::arm(function, call, vk::Result::from_raw(result));
}

/// The name of the function of which a call has failed since; null where none has.
#[unsafe(no_mangle)]
pub extern "C" fn nx_vulkan_faults_failed() -> *const c_char {
    state::failed().map_or(std::ptr::null(), CStr::as_ptr)
}

/// How many calls could have had the result since it was armed.
#[unsafe(no_mangle)]
pub extern "C" fn nx_vulkan_faults_calls() -> u64 {
    state::calls()
}

/// The name of one of these calls, counted from 1; null where there is none of this number.
#[unsafe(no_mangle)]
pub extern "C" fn nx_vulkan_faults_name(call: u64) -> *const c_char {
    state::name(call).map_or(std::ptr::null(), CStr::as_ptr)
}

/// The name of a kind of objects, counted from 0; null where there is none of this number.
#[unsafe(no_mangle)]
pub extern "C" fn nx_vulkan_faults_kind(kind: usize) -> *const c_char {
    Kind::ALL.get(kind).map_or(std::ptr::null(), |kind| kind.name().as_ptr())
}

/// How many objects of a kind exist.
#[unsafe(no_mangle)]
pub extern "C" fn nx_vulkan_faults_alive(kind: usize) -> i64 {
    Kind::ALL.get(kind).map_or(0, |&kind| state::alive(kind))
}
