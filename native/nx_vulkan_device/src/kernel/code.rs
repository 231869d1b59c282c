//! What command buffers bind of a kernel: a pipeline, or a shader object.
//!
//! The pipeline cache of lavapipe keeps nothing, so that it takes each kernel from SPIR-V anew: 65 to 250 ms for the
//! larger ones of BERT. Its shader objects have binaries, of which it makes them again in 1 to 27 ms, and those are kept
//! in files.

use std::ffi::CStr;
use std::ptr::null;

use ash::vk;
use sha2::{Digest, Sha256};
use vulkano::VulkanObject;
use vulkano::device::Device;

use super::{Interface, MadeFiles, MadeKey};
use crate::device::{Caps, DeviceInfo, OpenDevice};

/// The folder of binaries.
const FOLDER: &str = "shaders";

/// What command buffers bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// A compute pipeline.
    Pipeline(vk::Pipeline),
    /// A shader object.
    Shader(vk::ShaderEXT),
}

impl Code {
    /// Nothing yet.
    pub const NONE: Code = Code::Pipeline(vk::Pipeline::null());

    /// Binds it for dispatches.
    ///
    /// # Safety
    /// It is a live one of this device, whose command buffer is recording.
    pub(crate) unsafe fn bind(self, device: &Device, cmd: vk::CommandBuffer) {
        let fns = device.fns();
        // SAFETY: the caller's duty; one stage and one shader.
        unsafe {
            match self {
                Code::Pipeline(pipeline) => {
                    (fns.v1_0.cmd_bind_pipeline)(cmd, vk::PipelineBindPoint::COMPUTE, pipeline);
                }
                Code::Shader(shader) => {
                    let stage = vk::ShaderStageFlags::COMPUTE;
                    (fns.ext_shader_object.cmd_bind_shaders_ext)(cmd, 1, &stage, &shader);
                }
            }
        }
    }

    /// Destroys it.
    ///
    /// # Safety
    /// It is one of this device, and no submission that is not complete names it.
    pub(super) unsafe fn destroy(self, device: &Device) {
        let fns = device.fns();
        // SAFETY: the caller's duty; null handles are ignored. Shaders exist only with the extension.
        unsafe {
            match self {
                Code::Pipeline(pipeline) => (fns.v1_0.destroy_pipeline)(device.handle(), pipeline, null()),
                Code::Shader(shader) => (fns.ext_shader_object.destroy_shader_ext)(device.handle(), shader, null()),
            }
        }
    }
}

/// What a shader object is made of.
pub(super) struct Source<'a> {
    /// What the device takes as it is.
    pub spirv: &'a [u32],
    /// Specialization constants: id and value.
    pub spec: &'a [(u32, u32)],
    pub entry: &'a CStr,
    pub interface: Interface,
    /// Null where there are no descriptors.
    pub set_layout: vk::DescriptorSetLayout,
    /// Whether it counts on whole subgroups.
    pub whole_subgroups: bool,
}

impl Source<'_> {
    /// The shader object, of its binary where a file has it; none where the device has no such objects, there is no
    /// folder, or anything fails.
    pub fn shader(&self, open: &OpenDevice, made: &MadeFiles) -> Option<Code> {
        let device = &open.device;
        if !made.are_kept() || !device.enabled_extensions().ext_shader_object {
            return None;
        }
        let key = self.key(&open.info, &open.caps);
        let of_binary = |file: Vec<u8>| {
            // It has to begin at a multiple of 16.
            let mut blocks = blocks(file.len());
            let code = bytemuck::cast_slice_mut::<u128, u8>(&mut blocks).get_mut(..file.len())?;
            code.copy_from_slice(&file);
            self.create(device, vk::ShaderCodeTypeEXT::BINARY, code)
        };
        if let Some(shader) = made.get(FOLDER, &key).and_then(of_binary) {
            return Some(Code::Shader(shader));
        }
        let spirv = bytemuck::cast_slice(self.spirv);
        let shader = self.create(device, vk::ShaderCodeTypeEXT::SPIRV, spirv)?;
        if let Some(binary) = binary_of(device, shader) {
            made.put(FOLDER, &key, &binary);
        }
        Some(Code::Shader(shader))
    }

    /// All that a binary depends on. Numbers and UUIDs of lavapipe stay the same from one build to another: its name and
    /// what it says of itself have the versions of Mesa and LLVM and the width of vectors.
    fn key(&self, info: &DeviceInfo, caps: &Caps) -> MadeKey {
        let mut hash = Sha256::new();
        for text in [FOLDER, &info.name, &info.driver_name, &info.driver_info, &host_features()] {
            hash.update(text);
            hash.update([0]);
        }
        hash.update(info.uuid);
        hash.update(caps.pipeline_cache_uuid);
        let subgroups = [caps.min_subgroup_size, caps.max_subgroup_size];
        let numbers = [caps.vendor_id, caps.device_id, info.driver_version, self.whole_subgroups.into()];
        for word in numbers.into_iter().chain(subgroups) {
            hash.update(word.to_le_bytes());
        }
        let (kind, bindings) = match self.interface {
            Interface::Addresses { .. } => (0u32, 0),
            Interface::Descriptors { bindings, .. } => (1, bindings),
        };
        let lengths = [self.spec.len() as u32, self.spirv.len() as u32];
        let constants = self.spec.iter().flat_map(|&(id, value)| [id, value]);
        for word in [kind, bindings, self.interface.push_bytes()].into_iter().chain(lengths).chain(constants) {
            hash.update(word.to_le_bytes());
        }
        hash.update(bytemuck::cast_slice::<u32, u8>(self.spirv));
        hash.finalize().into()
    }

    fn create(&self, device: &Device, kind: vk::ShaderCodeTypeEXT, code: &[u8]) -> Option<vk::ShaderEXT> {
        let sets = [self.set_layout];
        let sets = if self.set_layout == vk::DescriptorSetLayout::null() { &[] } else { &sets[..] };
        let push_bytes = self.interface.push_bytes();
        let ranges = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push_bytes)];
        let ranges = if push_bytes > 0 { &ranges[..] } else { &[] };
        let values: Vec<u32> = self.spec.iter().map(|&(_, value)| value).collect();
        let entries: Vec<_> = self
            .spec
            .iter()
            .zip((0u32..).step_by(4))
            .map(|(&(id, _), offset)| vk::SpecializationMapEntry::default().constant_id(id).offset(offset).size(4))
            .collect();
        let spec = vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(&values));
        let whole = match self.whole_subgroups {
            true => vk::ShaderCreateFlagsEXT::REQUIRE_FULL_SUBGROUPS,
            false => vk::ShaderCreateFlagsEXT::empty(),
        };
        let info = vk::ShaderCreateInfoEXT::default()
            .flags(whole)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .code_type(kind)
            .code(code)
            .name(self.entry)
            .set_layouts(sets)
            .push_constant_ranges(ranges)
            .specialization_info(&spec);
        let mut shader = vk::ShaderEXT::null();
        let create = device.fns().ext_shader_object.create_shaders_ext;
        // SAFETY: all that `info` points to lives; SPIR-V is valid (see `create_module`), and a binary is what this
        // driver gave out for the same other fields: its key and its hash say so. A driver that finds it to be another
        // version's answers with no shader.
        let result = unsafe { create(device.handle(), 1, &info, null(), &mut shader) };
        (result == vk::Result::SUCCESS && shader != vk::ShaderEXT::null()).then_some(shader)
    }
}

/// What drivers that compile for the host's processor ask it.
fn host_features() -> String {
    #[cfg(target_arch = "x86_64")]
    let has = [
        is_x86_feature_detected!("sse4.1"),
        is_x86_feature_detected!("avx"),
        is_x86_feature_detected!("avx2"),
        is_x86_feature_detected!("f16c"),
        is_x86_feature_detected!("fma"),
        is_x86_feature_detected!("avx512f"),
        is_x86_feature_detected!("avx512bw"),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let has = [false; 0];
    format!("{} {has:?}", std::env::consts::ARCH)
}

/// What the driver makes the shader of again.
fn binary_of(device: &Device, shader: vk::ShaderEXT) -> Option<Vec<u8>> {
    let get = device.fns().ext_shader_object.get_shader_binary_data_ext;
    let mut size = 0;
    // SAFETY: the shader lives; a null data pointer asks for the size.
    let sized = unsafe { get(device.handle(), shader, &mut size, std::ptr::null_mut()) };
    let mut blocks = blocks(size);
    // SAFETY: the blocks have `size` bytes, and begin at a multiple of 16.
    let result = unsafe { get(device.handle(), shader, &mut size, blocks.as_mut_ptr().cast()) };
    let data = bytemuck::cast_slice::<u128, u8>(&blocks).get(..size)?;
    ([sized, result] == [vk::Result::SUCCESS; 2] && size > 0).then(|| data.to_vec())
}

/// Room for so many bytes that begins where binaries may: at a multiple of 16.
fn blocks(bytes: usize) -> Vec<u128> {
    const { assert!(align_of::<u128>() == 16) };
    vec![0; bytes.div_ceil(16)]
}
