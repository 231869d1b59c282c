//! Compute pipelines, created once per key however many threads ask, from the driver's cache on disk where it knows them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};

use ash::vk;
use vulkano::VulkanObject;
use vulkano::device::Device;

use super::{Interface, PipelineKey, disk_cache};
use crate::device::OpenDevice;
use crate::{Error, Result};

/// The disk cache is written after this many new pipelines, and when the engine is dropped.
const STORE_EVERY_PIPELINES: u32 = 16;
const ENTRY_POINT: &CStr = c"main";

/// A compute pipeline with its layout.
pub struct Pipeline {
    handle: vk::Pipeline,
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
    interface: Interface,
    key: PipelineKey,
    label: OnceLock<Box<str>>,
    device: Arc<Device>,
}

impl Pipeline {
    /// What people call it: a label, if it was given one, and the beginning of its key.
    pub fn name(&self) -> String {
        format!("{}-{}", self.label.get().map_or("shader", |label| label), self.key.short_hex())
    }

    /// Labels the pipeline, unless it has a label: kernels of different purposes may be the same module.
    pub(crate) fn set_label(&self, label: impl FnOnce() -> String) {
        self.label.get_or_init(|| label().into_boxed_str());
    }

    pub(crate) fn key(&self) -> PipelineKey {
        self.key
    }

    /// How it takes its buffers.
    pub fn interface(&self) -> Interface {
        self.interface
    }

    pub(crate) fn handle(&self) -> vk::Pipeline {
        self.handle
    }

    pub(crate) fn layout(&self) -> vk::PipelineLayout {
        self.layout
    }

    pub(crate) fn set_layout(&self) -> vk::DescriptorSetLayout {
        self.set_layout
    }

    pub(crate) fn belongs_to(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
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
        let fns = &self.device.fns().v1_0;
        let device = self.device.handle();
        // SAFETY: the store keeps every pipeline until the engine is dropped, which waits for all submissions, so no command
        // buffer in use names these handles (VUID-vkDestroyPipeline-pipeline-00765); null handles are ignored.
        unsafe {
            (fns.destroy_pipeline)(device, self.handle, null());
            (fns.destroy_pipeline_layout)(device, self.layout, null());
            (fns.destroy_descriptor_set_layout)(device, self.set_layout, null());
        }
    }
}

/// A pipeline that is there, or that some thread is compiling.
#[derive(Default)]
struct Entry {
    state: Mutex<Option<Result<Arc<Pipeline>>>>,
    done: Condvar,
}

impl Entry {
    fn finish(&self, result: Result<Arc<Pipeline>>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.done.notify_all();
    }

    fn wait(&self) -> Result<Arc<Pipeline>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = &*state {
                return result.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Finishes the entry with an error should compiling unwind, so that waiting threads never hang.
struct Unfinished<'a>(Option<&'a Entry>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.finish(Err(failed("vkCreateComputePipelines", "the compiling thread panicked")));
        }
    }
}

/// Every pipeline of an engine. They live as long as the engine does.
pub(crate) struct PipelineStore {
    entries: RwLock<HashMap<PipelineKey, Arc<Entry>>>,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    unsaved: AtomicU32,
    open: Arc<OpenDevice>,
}

impl std::fmt::Debug for PipelineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineStore").field("file", &self.file).finish_non_exhaustive()
    }
}

impl PipelineStore {
    /// `dir`: where the disk cache lies; `None` for none.
    pub fn new(open: Arc<OpenDevice>, dir: Option<PathBuf>) -> Result<PipelineStore> {
        let file = dir.map(|dir| disk_cache::file(&dir, &open.info));
        let data = file.as_deref().map(|file| disk_cache::load(file, &open.caps)).unwrap_or_default();
        let cache = create_cache(&open.device, &data).or_else(|_| create_cache(&open.device, &[]))?;
        Ok(PipelineStore { entries: RwLock::default(), cache, file, unsaved: AtomicU32::new(0), open })
    }

    /// The pipeline of `key` if it has been compiled; never blocks on a compilation.
    pub fn get(&self, key: PipelineKey) -> Option<Arc<Pipeline>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let state = entries.get(&key)?.state.try_lock().ok()?;
        match &*state {
            Some(Ok(pipeline)) => Some(Arc::clone(pipeline)),
            _ => None,
        }
    }

    pub fn get_or_compile(
        &self,
        key: PipelineKey,
        spirv: &[u32],
        spec: &[(u32, u32)],
        interface: Interface,
    ) -> Result<Arc<Pipeline>> {
        if let Some(pipeline) = self.get(key) {
            return Ok(pipeline);
        }
        let (entry, mine) = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            match entries.get(&key) {
                Some(entry) => (Arc::clone(entry), false),
                None => {
                    let entry = Arc::new(Entry::default());
                    entries.insert(key, Arc::clone(&entry));
                    (entry, true)
                }
            }
        };
        if !mine {
            return entry.wait();
        }
        let mut guard = Unfinished(Some(&entry));
        let result = self.compile(key, spirv, spec, interface).map(Arc::new);
        guard.0 = None;
        if result.is_err() {
            // A later call tries again.
            self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
        entry.finish(result.clone());
        if result.is_ok() && self.unsaved.fetch_add(1, Relaxed) + 1 >= STORE_EVERY_PIPELINES {
            self.save();
        }
        result
    }

    /// How many pipelines have been compiled or are being compiled.
    pub fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Writes the driver's cache to its file if there is anything new in it.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        if self.unsaved.swap(0, Relaxed) == 0 {
            return;
        }
        let fns = &self.open.device.fns().v1_0;
        let device = self.open.device.handle();
        let mut len = 0usize;
        // SAFETY: the cache lives; a null data pointer asks for the size.
        let sized = unsafe { (fns.get_pipeline_cache_data)(device, self.cache, &mut len, std::ptr::null_mut()) };
        if sized != vk::Result::SUCCESS {
            return;
        }
        let mut data = vec![0u8; len];
        // SAFETY: `data` has `len` bytes.
        let got = unsafe { (fns.get_pipeline_cache_data)(device, self.cache, &mut len, data.as_mut_ptr().cast()) };
        if got == vk::Result::SUCCESS {
            data.truncate(len);
            disk_cache::store(file, &data);
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
        // Handles are filled in one by one; Drop destroys what is there when a later step fails.
        let mut pipeline = Pipeline {
            handle: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            interface,
            key,
            label: OnceLock::new(),
            device: Arc::clone(&self.open.device),
        };
        if let Interface::Descriptors { bindings, .. } = interface {
            pipeline.set_layout = create_set_layout(&self.open.device, bindings)?;
        }
        pipeline.layout = create_layout(&self.open.device, &pipeline)?;
        let module = create_module(&self.open.device, spirv)?;
        let created = create_pipeline(&self.open.device, self.cache, module, pipeline.layout, spec);
        // SAFETY: a module may be destroyed as soon as its pipelines exist.
        unsafe {
            (self.open.device.fns().v1_0.destroy_shader_module)(self.open.device.handle(), module, null());
        }
        pipeline.handle = created?;
        Ok(pipeline)
    }
}

impl Drop for PipelineStore {
    fn drop(&mut self) {
        self.save();
        // SAFETY: pipelines don't need the cache that they were made with, and no thread is compiling while the store is dropped.
        unsafe {
            (self.open.device.fns().v1_0.destroy_pipeline_cache)(self.open.device.handle(), self.cache, null());
        }
    }
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

fn create_layout(device: &Device, pipeline: &Pipeline) -> Result<vk::PipelineLayout> {
    let sets = [pipeline.set_layout];
    let ranges = [vk::PushConstantRange::default()
        .stage_flags(vk::ShaderStageFlags::COMPUTE)
        .size(pipeline.interface.push_bytes())];
    let mut info = vk::PipelineLayoutCreateInfo::default();
    if pipeline.set_layout != vk::DescriptorSetLayout::null() {
        info = info.set_layouts(&sets);
    }
    if pipeline.interface.push_bytes() > 0 {
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
    // SAFETY: the words begin with the SPIR-V magic; that they are valid is the caller's to know (own kernels are validated by
    // tests, supplied ones are checked on loading).
    let result = unsafe { (device.fns().v1_0.create_shader_module)(device.handle(), &info, null(), &mut module) };
    checked("vkCreateShaderModule", result, module)
}

fn create_pipeline(
    device: &Device,
    cache: vk::PipelineCache,
    module: vk::ShaderModule,
    layout: vk::PipelineLayout,
    spec: &[(u32, u32)],
) -> Result<vk::Pipeline> {
    let values: Vec<u32> = spec.iter().map(|&(_, value)| value).collect();
    let entries: Vec<_> = spec
        .iter()
        .zip((0u32..).step_by(4))
        .map(|(&(id, _), offset)| vk::SpecializationMapEntry::default().constant_id(id).offset(offset).size(4))
        .collect();
    let specialization = vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(&values));
    let stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(ENTRY_POINT)
        .specialization_info(&specialization);
    let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
    let mut handle = vk::Pipeline::null();
    // SAFETY: module and layout live; the cache is internally synchronized.
    let result =
        unsafe { (device.fns().v1_0.create_compute_pipelines)(device.handle(), cache, 1, &info, null(), &mut handle) };
    checked("vkCreateComputePipelines", result, handle)
}

fn checked<T>(call: &'static str, result: vk::Result, value: T) -> Result<T> {
    match result {
        vk::Result::SUCCESS => Ok(value),
        vk::Result::ERROR_DEVICE_LOST => Err(Error::DeviceLost),
        vk::Result::ERROR_INVALID_SHADER_NV => {
            Err(Error::BadShader { path: "<memory>".into(), reason: "the driver refused it".into() })
        }
        result => Err(failed(call, &result.to_string())),
    }
}

fn failed(call: &'static str, cause: &str) -> Error {
    Error::Vulkan { call, cause: cause.to_string() }
}
