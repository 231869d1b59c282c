//! Compute pipelines, created once per key however many threads ask, from the driver's cache on disk where it knows
//! them.
//!
//! A process that compiles ever new kernels must not grow with them: from a bound on, pipelines that only caches hold
//! are dropped, those first that were launched least recently. Their Vulkan objects are destroyed once the submissions
//! that name them are complete.

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use ash::vk;
use nx_vulkan_ir::error::CREATE_PIPELINES;
use nx_vulkan_ir::{Error, Result};
use nx_vulkan_spirv::lower::lower;
use rspirv::spirv::Capability;
use vulkano::VulkanObject;
use vulkano::device::Device;

use super::code::{Code, Source};
use super::made::MadeFiles;
use super::once::Once;
use super::statistics::{Statistics, statistics};
use super::{Interface, PipelineKey, capabilities, disk_cache};
use crate::device::{Caps, DeviceKind, MATRIX_SUBGROUP_SIZE, OpenDevice};

/// The disk cache is written after this many new pipelines, and when the engine is dropped.
const STORE_EVERY_PIPELINES: u32 = 16;
/// A larger driver's cache is begun anew once it is written: it grows with every pipeline, and is written whole. 11,500
/// variants of one kernel make 41 MB on an H200.
const MAX_CACHE_BYTES: usize = 64 << 20;

const ENTRY_POINT: &CStr = c"main";

/// The Vulkan objects of a pipeline.
struct Handles {
    code: Code,
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
    device: Arc<Device>,
}

impl Handles {
    /// None yet.
    fn none(device: &Arc<Device>) -> Handles {
        Handles {
            code: Code::NONE,
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            device: Arc::clone(device),
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let fns = &self.device.fns().v1_0;
        let device = self.device.handle();
        // SAFETY: the last holder is a pipeline without an engine, whose device is at rest, or `Retired`, which holds
        // them until all submissions that name them are complete (VUID-vkDestroyPipeline-pipeline-00765); null handles
        // are ignored.
        unsafe {
            self.code.destroy(&self.device);
            (fns.destroy_pipeline_layout)(device, self.layout, null());
            (fns.destroy_descriptor_set_layout)(device, self.set_layout, null());
        }
    }
}

/// What nobody holds any more, with the serial of the last submission that it is recorded in.
type Retired = Mutex<Vec<(u64, Arc<Handles>)>>;

/// A compute pipeline with its layout.
pub struct Pipeline {
    handles: Arc<Handles>,
    interface: Interface,
    key: PipelineKey,
    statistics: Option<Box<Statistics>>,
    label: OnceLock<Box<str>>,
    /// The serial of the last submission that it was recorded in.
    last_use: AtomicU64,
    retired: Weak<Retired>,
}

impl Pipeline {
    /// What stands for a pipeline that is not compiled yet, in launches that are never recorded.
    pub fn without_handle(open: &OpenDevice, key: PipelineKey, interface: Interface) -> Pipeline {
        Pipeline {
            handles: Arc::new(Handles::none(&open.device)),
            interface,
            key,
            statistics: None,
            label: OnceLock::new(),
            last_use: AtomicU64::new(0),
            retired: Weak::new(),
        }
    }

    /// What people call it: a label, if it was given one, and the beginning of its key.
    pub fn name(&self) -> String {
        self.key.name(self.label.get().map_or("shader", |label| label))
    }

    /// Labels the pipeline, unless it has a label: kernels of different purposes may be the same module.
    pub fn set_label(&self, label: impl FnOnce() -> String) {
        self.label.get_or_init(|| label().into_boxed_str());
    }

    /// What the driver's compiler said of it, where the device was opened to ask.
    pub fn statistics(&self) -> Option<&Statistics> {
        self.statistics.as_deref()
    }

    /// What it was compiled from.
    pub fn key(&self) -> PipelineKey {
        self.key
    }

    /// How it takes its buffers.
    pub fn interface(&self) -> Interface {
        self.interface
    }

    /// What command buffers bind.
    pub fn code(&self) -> Code {
        self.handles.code
    }

    /// The layout of its parameters.
    pub fn layout(&self) -> vk::PipelineLayout {
        self.handles.layout
    }

    /// The layout of its descriptors; null for kernels that take addresses.
    pub fn set_layout(&self) -> vk::DescriptorSetLayout {
        self.handles.set_layout
    }

    /// Whether it was compiled for this device.
    pub fn belongs_to(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.handles.device, device)
    }

    /// Notes that the submission `serial` launches it. Called under the recorder's lock.
    pub(crate) fn mark_use(&self, serial: u64) {
        self.last_use.store(serial, Relaxed);
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("name", &self.name())
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Some(retired) = self.retired.upgrade() {
            let entry = (*self.last_use.get_mut(), Arc::clone(&self.handles));
            retired.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
    }
}

/// The pipelines of an engine.
pub struct PipelineStore {
    entries: Once<PipelineKey, Arc<Pipeline>>,
    /// Dropped after the entries, which go here.
    retired: Arc<Retired>,
    /// See `max_pipelines` of the engine's options.
    limit: usize,
    /// With so many entries it is time to look for idle ones.
    full: AtomicUsize,
    cache: RwLock<vk::PipelineCache>,
    max_cache_bytes: usize,
    file: Option<PathBuf>,
    loaded_bytes: usize,
    unsaved: AtomicU32,
    made: Arc<MadeFiles>,
    open: Arc<OpenDevice>,
}

impl std::fmt::Debug for PipelineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineStore").field("file", &self.file).finish_non_exhaustive()
    }
}

impl PipelineStore {
    /// `dir`: where the disk cache lies; `None` for none. `made`: where binaries are kept for drivers whose cache keeps
    /// nothing. `limit`: from how many pipelines on idle ones are dropped.
    pub fn new(
        open: Arc<OpenDevice>,
        dir: Option<PathBuf>,
        made: Arc<MadeFiles>,
        limit: usize,
    ) -> Result<PipelineStore> {
        let file = dir.map(|dir| disk_cache::file(&dir, &open.info));
        let data = file.as_deref().map(|file| disk_cache::load(file, &open.caps)).unwrap_or_default();
        let (cache, loaded_bytes) = match create_cache(&open.device, &data) {
            Ok(cache) => (cache, data.len()),
            Err(_) => (create_cache(&open.device, &[])?, 0),
        };
        Ok(PipelineStore {
            entries: Once::default(),
            retired: Arc::default(),
            limit,
            full: AtomicUsize::new(limit),
            cache: RwLock::new(cache),
            max_cache_bytes: MAX_CACHE_BYTES,
            file,
            loaded_bytes,
            unsaved: AtomicU32::new(0),
            made,
            open,
        })
    }

    /// The file of the disk cache, and how many bytes were read from it when the device was opened.
    pub fn file(&self) -> Option<(&Path, usize)> {
        self.file.as_deref().map(|file| (file, self.loaded_bytes))
    }

    /// All that are compiled.
    pub fn all(&self) -> Vec<Arc<Pipeline>> {
        self.entries.all()
    }

    /// The pipeline of `key` if it has been compiled; never blocks on a compilation.
    pub fn get(&self, key: PipelineKey) -> Option<Arc<Pipeline>> {
        self.entries.get(key)
    }

    /// The pipeline of `key`, compiled by the first that asks for it.
    ///
    /// # Safety
    /// `key` is that of the other arguments. `spirv` is a valid module for `interface` and the device's features. With
    /// descriptors it accesses no memory but that of its bindings; with addresses, what the launches' parameters name.
    pub unsafe fn get_or_compile(
        &self,
        key: PipelineKey,
        spirv: &[u32],
        spec: &[(u32, u32)],
        interface: Interface,
    ) -> Result<Arc<Pipeline>> {
        let mut is_new = false;
        let result = self.entries.get_or_make(key, || {
            is_new = true;
            self.compile(key, spirv, spec, interface).map(Arc::new)
        });
        if is_new && result.is_ok() && self.unsaved.fetch_add(1, Relaxed) + 1 >= STORE_EVERY_PIPELINES {
            self.save();
        }
        result
    }

    /// How many pipelines are compiled or being compiled.
    pub fn count(&self) -> usize {
        self.entries.count()
    }

    /// Whether there are so many pipelines that idle ones should be dropped before the next one is compiled.
    pub fn is_full(&self) -> bool {
        self.count() >= self.full.load(Relaxed)
    }

    /// Forgets the pipelines that were launched least recently, until three quarters of the bound are left, and returns
    /// them. Only those go that nobody holds but the store and `cached` others, by key, which the caller drops as well.
    pub fn forget_idle(&self, cached: &HashMap<PipelineKey, usize>) -> HashMap<PipelineKey, Arc<Pipeline>> {
        let rank = |key: &PipelineKey, pipeline: &Arc<Pipeline>| {
            let holders = 1 + cached.get(key).copied().unwrap_or_default();
            (Arc::strong_count(pipeline) == holders).then(|| pipeline.last_use.load(Relaxed))
        };
        let forgotten = self.entries.forget(self.limit / 4 * 3, rank);
        // Where most are held, not every new pipeline is a reason to look again.
        self.full.store(self.limit.max(self.count() + self.limit / 4), Relaxed);
        forgotten
    }

    /// Destroys what nobody holds any more and no submission after `completed` names.
    pub fn destroy_retired(&self, completed: u64) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let done: Vec<_> = retired.extract_if(.., |(serial, _)| *serial <= completed).collect();
        drop(retired);
        drop(done);
    }

    /// Keeps the Vulkan objects of all pipelines for ever: the device does not end what it runs, and may still use
    /// them.
    pub fn leak(&self) {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.all();
        let handles = retired.iter().map(|(_, handles)| handles).chain(held.iter().map(|pipeline| &pipeline.handles));
        handles.for_each(|handles| std::mem::forget(Arc::clone(handles)));
    }

    /// Writes the driver's cache to its file if there is anything new in it.
    pub fn save(&self) {
        if self.unsaved.swap(0, Relaxed) == 0 {
            return;
        }
        let device = &self.open.device;
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        let Some(size) = cache_bytes(device, *cache) else { return };
        let data = self.file.as_ref().and_then(|file| Some((file, cache_data(device, *cache, size)?)));
        drop(cache);
        if let Some((file, data)) = data {
            disk_cache::store(file, &data);
        }
        if size > self.max_cache_bytes
            && let Ok(fresh) = create_cache(device, &[])
        {
            let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
            let old = std::mem::replace(&mut *cache, fresh);
            drop(cache);
            destroy_cache(device, old);
        }
    }

    fn compile(&self, key: PipelineKey, spirv: &[u32], spec: &[(u32, u32)], interface: Interface) -> Result<Pipeline> {
        let caps = &self.open.caps;
        if interface.push_bytes() > caps.max_push_bytes || !interface.push_bytes().is_multiple_of(4) {
            return Err(Error::InvalidArgument {
                what: "push constant bytes",
                expected: format!("a multiple of 4, at most {}", caps.max_push_bytes),
                got: interface.push_bytes().to_string(),
            });
        }
        if let Interface::Descriptors { bindings, .. } = interface
            && bindings > caps.max_storage_buffers
        {
            return Err(Error::InvalidArgument {
                what: "storage buffer bindings",
                expected: format!("at most {}", caps.max_storage_buffers),
                got: bindings.to_string(),
            });
        }
        if spirv.len() < 5 || spirv[0] != rspirv::spirv::MAGIC_NUMBER {
            return Err(Error::BadShader { path: "<memory>".into(), reason: "not a SPIR-V module".into() });
        }
        let spirv = &*lower(spirv, caps.lacks())?;
        let device = &self.open.device;
        // Handles are filled in one by one; Drop destroys what is there when a later step fails.
        let mut handles = Handles::none(device);
        if let Interface::Descriptors { bindings, .. } = interface {
            handles.set_layout = create_set_layout(device, bindings)?;
        }
        handles.layout = create_layout(device, handles.set_layout, interface.push_bytes())?;
        let subgroups = Subgroups::of(spirv, &interface, caps);
        let asks = caps.pipeline_statistics;
        let mut found = None;
        handles.code = match self.shader(spirv, spec, interface, handles.set_layout, subgroups) {
            Some(shader) => shader,
            None => {
                let module = create_module(device, spirv)?;
                let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
                let created = create_pipeline(device, *cache, module, handles.layout, spec, subgroups, asks);
                drop(cache);
                // SAFETY: a module may be destroyed as soon as its pipelines exist.
                unsafe {
                    (device.fns().v1_0.destroy_shader_module)(device.handle(), module, null());
                }
                let pipeline = created?;
                found = if asks { statistics(device, pipeline).map(Box::new) } else { None };
                Code::Pipeline(pipeline)
            }
        };
        Ok(Pipeline {
            handles: Arc::new(handles),
            statistics: found,
            interface,
            key,
            label: OnceLock::new(),
            last_use: AtomicU64::new(0),
            retired: Arc::downgrade(&self.retired),
        })
    }

    /// A shader object in the place of a pipeline, on devices that have binaries of them.
    fn shader(
        &self,
        spirv: &[u32],
        spec: &[(u32, u32)],
        interface: Interface,
        set_layout: vk::DescriptorSetLayout,
        subgroups: Subgroups,
    ) -> Option<Code> {
        let whole_subgroups = match subgroups {
            Subgroups::Any => false,
            Subgroups::Whole => true,
            Subgroups::Sized(_) => return None,
        };
        let source = Source { spirv, spec, entry: ENTRY_POINT, interface, set_layout, whole_subgroups };
        source.shader(&self.open, &self.made)
    }
}

impl Drop for PipelineStore {
    fn drop(&mut self) {
        self.save();
        destroy_cache(&self.open.device, *self.cache.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The size of the driver's data.
fn cache_bytes(device: &Device, cache: vk::PipelineCache) -> Option<usize> {
    let mut size = 0;
    let fns = &device.fns().v1_0;
    // SAFETY: the cache lives; a null data pointer asks for the size.
    let result = unsafe { (fns.get_pipeline_cache_data)(device.handle(), cache, &mut size, std::ptr::null_mut()) };
    (result == vk::Result::SUCCESS).then_some(size)
}

/// The driver's data, if it is not larger than `size` by now.
fn cache_data(device: &Device, cache: vk::PipelineCache, mut size: usize) -> Option<Vec<u8>> {
    let mut data = vec![0u8; size];
    let fns = &device.fns().v1_0;
    // SAFETY: the cache lives; `data` has `size` bytes.
    let result = unsafe { (fns.get_pipeline_cache_data)(device.handle(), cache, &mut size, data.as_mut_ptr().cast()) };
    data.truncate(size);
    (result == vk::Result::SUCCESS).then_some(data)
}

fn destroy_cache(device: &Device, cache: vk::PipelineCache) {
    // SAFETY: pipelines don't need the cache that they were made with, and no thread compiles with it any more: the
    // caller owns the store, or replaced the cache under the lock that compilations hold.
    unsafe { (device.fns().v1_0.destroy_pipeline_cache)(device.handle(), cache, null()) };
}

fn create_cache(device: &Device, data: &[u8]) -> Result<vk::PipelineCache> {
    let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
    let mut cache = vk::PipelineCache::null();
    // SAFETY: `data` was checked to be this driver's (VUID-VkPipelineCacheCreateInfo-initialDataSize-00769).
    let result = unsafe { (device.fns().v1_0.create_pipeline_cache)(device.handle(), &info, null(), &mut cache) };
    checked("vkCreatePipelineCache", result, cache)
}

fn create_set_layout(device: &Device, bindings: u32) -> Result<vk::DescriptorSetLayout> {
    let bindings: Vec<_> = (0..bindings)
        .map(|binding| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    let mut layout = vk::DescriptorSetLayout::null();
    // SAFETY: the binding numbers are distinct and within the device's limit.
    let result =
        unsafe { (device.fns().v1_0.create_descriptor_set_layout)(device.handle(), &info, null(), &mut layout) };
    checked("vkCreateDescriptorSetLayout", result, layout)
}

fn create_layout(device: &Device, set_layout: vk::DescriptorSetLayout, push_bytes: u32) -> Result<vk::PipelineLayout> {
    let sets = [set_layout];
    let ranges = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push_bytes)];
    let mut info = vk::PipelineLayoutCreateInfo::default();
    if set_layout != vk::DescriptorSetLayout::null() {
        info = info.set_layouts(&sets);
    }
    if push_bytes > 0 {
        info = info.push_constant_ranges(&ranges);
    }
    let mut layout = vk::PipelineLayout::null();
    // SAFETY: the set layout lives and the push range is within the device's limit.
    let result = unsafe { (device.fns().v1_0.create_pipeline_layout)(device.handle(), &info, null(), &mut layout) };
    checked("vkCreatePipelineLayout", result, layout)
}

fn create_module(device: &Device, spirv: &[u32]) -> Result<vk::ShaderModule> {
    let info = vk::ShaderModuleCreateInfo::default().code(spirv);
    let mut module = vk::ShaderModule::null();
    // SAFETY: the words begin with the SPIR-V magic; that they are valid is the caller's to know (own kernels are
    // validated by tests, supplied ones are checked on loading).
    let result = unsafe { (device.fns().v1_0.create_shader_module)(device.handle(), &info, null(), &mut module) };
    checked("vkCreateShaderModule", result, module)
}

/// What a kernel counts on: those for matrix units, and on GPUs those with ballots or shuffles by distance, on whole
/// subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subgroups {
    Any,
    /// Whole ones, of the size that the device has.
    Whole,
    /// Whole ones of this size, where the driver may take others.
    Sized(u32),
}

impl Subgroups {
    fn of(spirv: &[u32], interface: &Interface, caps: &Caps) -> Subgroups {
        // On CPU devices a ballot is how kernels whose workgroups are a subgroup give a lane's value to all. Shaders
        // that others wrote have workgroups of any size.
        let is_own = !matches!(interface, Interface::Descriptors { .. });
        let has_whole = is_own && caps.kind != DeviceKind::Cpu && caps.whole_subgroups().is_some();
        let counts = |capability| match capability {
            Capability::CooperativeMatrixKHR => true,
            Capability::GroupNonUniformBallot | Capability::GroupNonUniformShuffleRelative => has_whole,
            _ => false,
        };
        match capabilities(spirv).any(counts) {
            true if caps.min_subgroup_size == caps.max_subgroup_size => Subgroups::Whole,
            true => Subgroups::Sized(MATRIX_SUBGROUP_SIZE),
            false => Subgroups::Any,
        }
    }
}

fn create_pipeline(
    device: &Device,
    cache: vk::PipelineCache,
    module: vk::ShaderModule,
    layout: vk::PipelineLayout,
    spec: &[(u32, u32)],
    subgroups: Subgroups,
    asks: bool,
) -> Result<vk::Pipeline> {
    let values: Vec<u32> = spec.iter().map(|&(_, value)| value).collect();
    let entries: Vec<_> = spec
        .iter()
        .zip((0u32..).step_by(4))
        .map(|(&(id, _), offset)| vk::SpecializationMapEntry::default().constant_id(id).offset(offset).size(4))
        .collect();
    let specialization = vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(&values));
    let whole = match subgroups {
        Subgroups::Any => vk::PipelineShaderStageCreateFlags::empty(),
        Subgroups::Whole | Subgroups::Sized(_) => vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS,
    };
    let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .flags(whole)
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(ENTRY_POINT)
        .specialization_info(&specialization);
    if let Subgroups::Sized(invocations) = subgroups {
        size = size.required_subgroup_size(invocations);
        stage = stage.push_next(&mut size);
    }
    let captures =
        if asks { vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR } else { vk::PipelineCreateFlags::empty() };
    let info = vk::ComputePipelineCreateInfo::default().flags(captures).stage(stage).layout(layout);
    let mut handle = vk::Pipeline::null();
    // SAFETY: module and layout live; the cache is internally synchronized.
    let result =
        unsafe { (device.fns().v1_0.create_compute_pipelines)(device.handle(), cache, 1, &info, null(), &mut handle) };
    checked(CREATE_PIPELINES, result, handle)
}

fn checked<T>(call: &'static str, result: vk::Result, value: T) -> Result<T> {
    match result {
        vk::Result::SUCCESS => Ok(value),
        vk::Result::ERROR_DEVICE_LOST => Err(Error::DeviceLost),
        // The engine, which may have memory to give back, knows the numbers.
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            Err(Error::OutOfMemory { size_bytes: 0, in_use_bytes: 0, budget_bytes: 0 })
        }
        vk::Result::ERROR_INVALID_SHADER_NV => {
            Err(Error::BadShader { path: "<memory>".into(), reason: "the driver refused it".into() })
        }
        result => Err(failed(call, &result.to_string())),
    }
}

fn failed(call: &'static str, cause: &str) -> Error {
    Error::Vulkan { call, cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Validation;

    #[test]
    fn a_driver_without_memory_does_not_refuse_a_kernel() {
        for result in [vk::Result::ERROR_OUT_OF_HOST_MEMORY, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY] {
            let error = checked(CREATE_PIPELINES, result, ()).expect_err("an error");
            assert!(matches!(error, Error::OutOfMemory { .. }) && !error.is_refused_kernel(), "{error}");
        }
        let refused = checked(CREATE_PIPELINES, vk::Result::ERROR_UNKNOWN, ()).expect_err("an error");
        assert!(refused.is_refused_kernel(), "{refused}");
    }

    #[test]
    fn a_large_cache_of_the_driver_is_begun_anew() {
        let open = OpenDevice::shared(None, Validation::On, nx_vulkan_spirv::lower::Lacks::default(), false)
            .expect("a Vulkan device");
        let mut store =
            PipelineStore::new(Arc::clone(&open), None, Arc::new(MadeFiles::new(None)), 8).expect("a store");
        store.max_cache_bytes = 0;
        let spirv: Vec<u32> = include_bytes!("../../tests/data/axpb.spv")
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect();
        let interface = Interface::Addresses { push_bytes: 32 };
        let mut caches = Vec::new();
        for number in 0..2 * STORE_EVERY_PIPELINES {
            let spec = [(99, number)];
            let key = PipelineKey::new(&spirv, &spec, interface);
            // SAFETY: the module is one of the tests, for this interface.
            unsafe { store.get_or_compile(key, &spirv, &spec, interface) }.expect("a pipeline");
            caches.push(*store.cache.read().expect("a cache"));
        }
        caches.dedup();
        assert_eq!(caches.len(), 3);
        drop(store);
        assert_eq!(open.log.as_ref().map(|log| log.messages()).unwrap_or_default(), Vec::<String>::new());
    }
}
