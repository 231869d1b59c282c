//! Opening a device: the floor it must meet, the features and the queue that the engine takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use nx_vulkan_ir::{Error, Result};
use nx_vulkan_spirv::lower::Lacks;
use vulkano::device::physical::PhysicalDevice;
use vulkano::device::{Device, DeviceCreateInfo, DeviceExtensions, Queue, QueueCreateInfo, QueueFlags};
use vulkano::instance::Instance;
use vulkano::{Validated, Version, VulkanError, VulkanObject};

use super::caps::{Caps, Features, supported_features, wanted_features};
use super::details::{Details, details, pci};
use super::instance::{Validation, ValidationLog, VulkanInstance, describe};
use super::select::choose;
use super::{DeviceInfo, DeviceKind, bfloat16, no_device};

pub(super) struct Listed {
    pub info: DeviceInfo,
    /// None where its driver says what can't be.
    physical: Option<Arc<PhysicalDevice>>,
}

pub(super) fn list(instance: &VulkanInstance) -> Result<Vec<Listed>> {
    let handles = handles(&instance.instance)?;
    handles.into_iter().enumerate().map(|(index, handle)| listed(&instance.instance, index, handle)).collect()
}

/// vulkano's own list is all or nothing: it panics where one driver reports a number that is none of Vulkan's.
fn handles(instance: &Arc<Instance>) -> Result<Vec<vk::PhysicalDevice>> {
    let enumerate = instance.fns().v1_0.enumerate_physical_devices;
    loop {
        let mut count = 0;
        // SAFETY: the instance lives; a null pointer asks for the count.
        let counted = unsafe { enumerate(instance.handle(), &mut count, null_mut()) };
        if counted != vk::Result::SUCCESS {
            return Err(no_device(format!("the devices could not be listed: {counted}")));
        }
        let mut handles = vec![vk::PhysicalDevice::null(); count as usize];
        // SAFETY: likewise, with room for `count` of them.
        let got = unsafe { enumerate(instance.handle(), &mut count, handles.as_mut_ptr()) };
        match got {
            vk::Result::SUCCESS => {
                handles.truncate(count as usize);
                return Ok(handles);
            }
            // There are more by now.
            vk::Result::INCOMPLETE => {}
            other => return Err(no_device(format!("the devices could not be listed: {other}"))),
        }
    }
}

fn listed(instance: &Arc<Instance>, index: usize, handle: vk::PhysicalDevice) -> Result<Listed> {
    let mut said = vk::PhysicalDeviceProperties::default();
    // SAFETY: the instance gave this handle.
    unsafe { (instance.fns().v1_0.get_physical_device_properties)(handle, &mut said) };
    let hidden = |reason: String| Ok(Listed { info: nonsensical(index, &said, reason), physical: None });
    if !(0..=vk::PhysicalDeviceType::CPU.as_raw()).contains(&said.device_type.as_raw()) {
        return hidden(format!(
            "its driver reports the device type {}, which Vulkan has not",
            said.device_type.as_raw()
        ));
    }
    // What else vulkano does not understand hides this device alone, too.
    // SAFETY: the instance gave this handle.
    let known = catch_unwind(AssertUnwindSafe(|| unsafe { PhysicalDevice::from_handle(Arc::clone(instance), handle) }));
    match known {
        Ok(Ok(physical)) => Ok(Listed { info: info(index, &physical)?, physical: Some(physical) }),
        Ok(Err(error)) => hidden(format!("its driver does not describe it: {error}")),
        Err(_) => hidden("its driver describes it in numbers that Vulkan has not".into()),
    }
}

/// What can be told of a device whose driver says what can't be.
fn nonsensical(index: usize, said: &vk::PhysicalDeviceProperties, reason: String) -> DeviceInfo {
    let name: Vec<u8> = said.device_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let api = Version::from(said.api_version);
    DeviceInfo {
        index,
        name: String::from_utf8_lossy(&name).into_owned(),
        uuid: [0; 16],
        kind: DeviceKind::Other,
        vendor_id: said.vendor_id,
        device_id: said.device_id,
        driver_name: String::new(),
        driver_info: String::new(),
        driver_version: said.driver_version,
        api_version: (api.major, api.minor, api.patch),
        memory_bytes: 0,
        lacks: Lacks::default(),
        pci: None,
        details: Details::default(),
        unusable: Some(reason),
    }
}

fn info(index: usize, physical: &PhysicalDevice) -> Result<DeviceInfo> {
    let p = physical.properties();
    let api = physical.api_version();
    let heaps = &physical.memory_properties().memory_heaps;
    let local = heaps
        .iter()
        .filter(|h| h.flags.intersects(vulkano::memory::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|h| h.size)
        .max();
    Ok(DeviceInfo {
        index,
        name: p.device_name.clone(),
        uuid: p.device_uuid.unwrap_or_default(),
        kind: DeviceKind::from(p.device_type),
        vendor_id: p.vendor_id,
        device_id: p.device_id,
        driver_name: p.driver_name.clone().unwrap_or_default(),
        driver_info: p.driver_info.clone().unwrap_or_default(),
        driver_version: p.driver_version,
        api_version: (api.major, api.minor, api.patch),
        memory_bytes: local.or_else(|| heaps.iter().map(|h| h.size).max()).unwrap_or(0),
        lacks: supported_features(physical)?.lacks(),
        pci: pci(physical),
        details: details(physical),
        unusable: unusable(physical),
    })
}

fn unusable(physical: &PhysicalDevice) -> Option<String> {
    if physical.api_version() < Version::V1_2 {
        return Some(format!("Vulkan {}, needs 1.2 or later", physical.api_version()));
    }
    if !physical.supported_features().buffer_device_address {
        return Some("needs the feature bufferDeviceAddress".into());
    }
    if queue_family(physical).is_none() {
        return Some("has no compute queue".into());
    }
    None
}

/// The compute queue family: one without graphics where there is one, as display work can't delay it. Not on NVIDIA:
/// with driver 580 on an H200, fills of half a gigabyte beside other threads' work hung that queue in two runs of five,
/// the general one in none of thirty.
fn queue_family(physical: &PhysicalDevice) -> Option<u32> {
    const NVIDIA: u32 = 0x10de;
    let families = physical.queue_family_properties();
    let find = |avoid: QueueFlags| {
        families.iter().position(|f| f.queue_flags.intersects(QueueFlags::COMPUTE) && !f.queue_flags.intersects(avoid))
    };
    let avoid = if physical.properties().vendor_id == NVIDIA { QueueFlags::empty() } else { QueueFlags::GRAPHICS };
    find(avoid).or_else(|| find(QueueFlags::empty())).and_then(|i| u32::try_from(i).ok())
}

/// Queues that only copy. One pauses between two copies, and two in turns hide that.
const TRANSFER_QUEUES: u32 = 2;

/// The queue family that only copies, by copy engines beside all else that the device does, where there is one, and how
/// many queues of it are used.
fn transfer_family(physical: &PhysicalDevice) -> Option<(u32, u32)> {
    let copies_only = |flags: QueueFlags| flags.difference(QueueFlags::SPARSE_BINDING) == QueueFlags::TRANSFER;
    let mut families = (0u32..).zip(physical.queue_family_properties());
    let (family, found) = families.find(|(_, f)| copies_only(f.queue_flags))?;
    Some((family, found.queue_count.min(TRANSFER_QUEUES)))
}

/// An open device with its queues.
#[derive(Debug)]
pub struct OpenDevice {
    /// Where everything is submitted but large copies between host and device.
    pub queue: Arc<Queue>,
    /// Where those are: queues that only copy, or the other one where the device has none.
    pub transfer_queues: Vec<Arc<Queue>>,
    /// The logical device.
    pub device: Arc<Device>,
    /// What it is.
    pub info: DeviceInfo,
    /// What it can do.
    pub caps: Caps,
    /// The validation layer's messages, where it watches.
    pub log: Option<Arc<ValidationLog>>,
    lost: AtomicBool,
    /// Whether it was opened to tell of kernels.
    statistics: bool,
    /// Keeps the messenger alive until the device is gone, so that it hears of leaked objects.
    _instance: Arc<VulkanInstance>,
}

/// Devices that stay open for the next engine until the process ends. Closing one while another is in use hangs
/// NVIDIA's driver 580 now and then: vkDestroyDevice waits for a helper thread that never ends, under a lock that every
/// submission takes. The validation layer looks for leaks when a device is closed, so with it devices do close.
static KEPT: Mutex<Vec<Arc<OpenDevice>>> = Mutex::new(Vec::new());

impl OpenDevice {
    /// The device that the selector names, without the types that are to be lowered: the one that is open already, or
    /// else opened now. With `statistics` it tells, if its driver does, what the driver's compiler makes of kernels.
    pub fn shared(
        selector: Option<&str>,
        validation: Validation,
        lower: Lacks,
        statistics: bool,
    ) -> Result<Arc<OpenDevice>> {
        let instance = VulkanInstance::shared(validation)?;
        let mut listed = list(&instance)?;
        let infos: Vec<DeviceInfo> = listed.iter().map(|l| l.info.clone()).collect();
        let mut chosen = listed.swap_remove(choose(&infos, selector)?);
        chosen.info.lacks = chosen.info.lacks.or(lower);
        if instance.log.is_some() {
            return OpenDevice::open(chosen, instance, statistics).map(Arc::new);
        }
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |d: &&Arc<OpenDevice>| {
            d.info.index == chosen.info.index
                && d.info.lacks == chosen.info.lacks
                && d.statistics == statistics
                && !d.lost.load(Relaxed)
        };
        if let Some(open) = kept.iter().find(same) {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(OpenDevice::open(chosen, instance, statistics)?);
        kept.push(Arc::clone(&open));
        Ok(open)
    }

    /// The family of the queues for large copies.
    pub(crate) fn transfer_family(&self) -> u32 {
        self.transfer_queues.first().unwrap_or(&self.queue).queue_family_index()
    }

    /// Makes the next engine open the device anew.
    pub(crate) fn mark_lost(&self) {
        self.lost.store(true, Relaxed);
    }

    fn open(chosen: Listed, instance: Arc<VulkanInstance>, statistics: bool) -> Result<OpenDevice> {
        let Listed { info, physical } = chosen;
        let physical = physical.ok_or_else(|| no_device(format!("{info} can't be opened")))?;
        let family = queue_family(&physical).ok_or_else(|| no_device("the device has no compute queue"))?;

        let mut supported = supported_features(&physical)?;
        supported.lower(info.lacks);
        let mut features = wanted_features(&supported.known);
        let extensions = DeviceExtensions {
            ext_conditional_rendering: features.conditional_rendering,
            // Where pipelines are not cached: a GPU's driver does that itself.
            ext_shader_object: !statistics && info.kind == DeviceKind::Cpu && supported.known.shader_object,
            khr_cooperative_matrix: features.cooperative_matrix,
            khr_external_memory_fd: true,
            khr_pipeline_executable_properties: statistics && features.pipeline_executable_info,
            ..DeviceExtensions::empty()
        }
        .intersection(physical.supported_extensions());
        features.conditional_rendering &= extensions.ext_conditional_rendering;
        features.cooperative_matrix &= extensions.khr_cooperative_matrix;
        features.shader_object = extensions.ext_shader_object;
        features.pipeline_executable_info &= extensions.khr_pipeline_executable_properties;
        let timestamps = physical.queue_family_properties().get(family as usize).and_then(|f| f.timestamp_valid_bits);
        let enabled = Features { known: features, ..supported };
        let mut caps = Caps::of(&physical, &info, &enabled, timestamps.unwrap_or(0));

        let families = [Some((family, 1)), transfer_family(&physical)].into_iter().flatten();
        let queues = families.map(|(queue_family_index, count)| QueueCreateInfo {
            queue_family_index,
            queues: vec![0.5; count as usize],
            ..Default::default()
        });
        let create_info = DeviceCreateInfo {
            queue_create_infos: queues.collect(),
            enabled_extensions: extensions,
            enabled_features: features,
            ..Default::default()
        };
        caps.bfloat16_matrix &= physical.api_version() >= Version::V1_3;
        let opened = match caps.bfloat16_matrix {
            true => bfloat16::open(&physical, create_info, true).map_err(Validated::Error),
            false => Device::new(physical, create_info).map(|(device, queues)| (device, queues.collect())),
        };
        let (device, queues): (_, Vec<_>) = opened.map_err(|e| match e {
            Validated::Error(VulkanError::DeviceLost) => Error::DeviceLost,
            e => no_device(format!("{info} could not be opened: {}", describe(&e))),
        })?;
        let mut queues = queues.into_iter();
        let queue = queues.next().ok_or_else(|| no_device("the device gave no queue"))?;
        let mut transfer_queues: Vec<_> = queues.collect();
        if transfer_queues.is_empty() {
            transfer_queues.push(Arc::clone(&queue));
        }
        Ok(OpenDevice {
            queue,
            transfer_queues,
            device,
            info,
            caps,
            log: instance.log.clone(),
            lost: AtomicBool::new(false),
            statistics,
            _instance: instance,
        })
    }
}
