//! What the driver's compiler made of a kernel (`VK_KHR_pipeline_executable_properties`): registers, spills,
//! instructions. Asking for it costs compile time, so pipelines are asked only where the options say so.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::Arc;

use ash::vk;
use vulkano::VulkanObject;
use vulkano::device::Device;

/// What the compiler of a driver says of one kernel; `None` is what it does not say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistics {
    /// Registers of an invocation: AMD's vector registers, NVIDIA's general ones.
    pub registers: Option<u64>,
    /// Registers that had to go to memory, or what else the driver counts as spills.
    pub spills: Option<u64>,
    /// Bytes of memory of its own that an invocation has.
    pub scratch_bytes: Option<u64>,
    /// Bytes of memory that a workgroup shares.
    pub shared_bytes: Option<u64>,
    /// Subgroups that a processor, or a part of it, holds at once.
    pub subgroups: Option<u64>,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Cycles of one subgroup alone, as the compiler estimates them; loops count once or by guess.
    pub latency_cycles: Option<u64>,
    /// Cycles of one subgroup where others hide what it waits for, as the compiler estimates them.
    pub cycles: Option<u64>,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// All that the driver says, by its own names.
    pub all: Vec<(String, f64)>,
}

impl Statistics {
    fn of(subgroup_size: u32, all: Vec<(String, f64)>) -> Statistics {
        // The names of RADV, NVK and NVIDIA's driver; what several of them name is added up.
        let sum = |names: &[&str]| {
            let of_these = all.iter().filter(|(name, _)| names.iter().any(|n| name.eq_ignore_ascii_case(n)));
            of_these.map(|(_, value)| *value as u64).reduce(|a, b| a.saturating_add(b))
        };
        Statistics {
            registers: sum(&["VGPRs", "Register Count", "Register count", "Number of GPRs"]),
            spills: sum(&["Spilled SGPRs", "Spilled VGPRs", "Spills to Mem", "Spills to Reg", "Spills", "Spill count"]),
            scratch_bytes: sum(&["Scratch size", "SLM Size", "Local Memory Size", "Local memory size"]),
            shared_bytes: sum(&["LDS size", "Shared Memory Size", "Shared memory size", "Workgroup Memory Size"]),
            subgroups: sum(&["Subgroups per SIMD", "Max warps/SM", "Max Warps/SM", "Occupancy"]),
            instructions: sum(&["Instructions", "Instruction Count", "Instruction count"]),
            latency_cycles: sum(&["Latency"]),
            cycles: sum(&["Inverse Throughput", "Static cycle count", "Static Cycle Count", "Cycle count"]),
            subgroup_size,
            all,
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.registers, "registers"),
            (self.spills, "spilled"),
            (self.scratch_bytes, "B scratch"),
            (self.shared_bytes, "B shared"),
            (self.subgroups, "subgroups at once"),
            (self.instructions, "instructions"),
            (self.cycles, "cycles"),
        ];
        let said: Vec<String> = named.iter().filter_map(|(n, what)| n.map(|n| format!("{n} {what}"))).collect();
        f.write_str(&said.join(", "))
    }
}

/// Text in an array of Vulkan's, which a driver may have forgotten to end.
fn text(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|&c| c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

fn number(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> Option<f64> {
    let value = statistic.value;
    // SAFETY: the format says which of the union's members the driver wrote, and its first four or eight bytes are set
    // whichever it is.
    unsafe {
        match statistic.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => Some(f64::from(value.b32)),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => Some(value.i64 as f64),
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => Some(value.u64 as f64),
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => Some(value.f64),
            _ => None,
        }
    }
}

/// What the driver says of a pipeline that was created with `CAPTURE_STATISTICS`; `None` where it says nothing.
pub(super) fn statistics(device: &Arc<Device>, pipeline: vk::Pipeline) -> Option<Statistics> {
    let fns = &device.fns().khr_pipeline_executable_properties;
    let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
    let mut count = 0;
    // SAFETY: the device has the extension and its feature
    // (VUID-vkGetPipelineExecutablePropertiesKHR-pipelineExecutableInfo-03270), the pipeline lives; a null pointer asks
    // for the count.
    let counted = unsafe {
        (fns.get_pipeline_executable_properties_khr)(device.handle(), &info, &mut count, std::ptr::null_mut())
    };
    if counted != vk::Result::SUCCESS || count == 0 {
        return None;
    }
    let mut executables = vec![vk::PipelineExecutablePropertiesKHR::default(); count as usize];
    // SAFETY: likewise, with room for `count` of them.
    let got = unsafe {
        (fns.get_pipeline_executable_properties_khr)(device.handle(), &info, &mut count, executables.as_mut_ptr())
    };
    if got != vk::Result::SUCCESS {
        return None;
    }
    // A compute pipeline is one executable.
    let executable = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(0);
    let mut count = 0;
    // SAFETY: the pipeline has an executable 0 and captured statistics
    // (VUID-vkGetPipelineExecutableStatisticsKHR-pipeline-03274).
    let counted = unsafe {
        (fns.get_pipeline_executable_statistics_khr)(device.handle(), &executable, &mut count, std::ptr::null_mut())
    };
    if counted != vk::Result::SUCCESS {
        return None;
    }
    let mut found = vec![vk::PipelineExecutableStatisticKHR::default(); count as usize];
    // SAFETY: likewise, with room for `count` of them.
    let got = unsafe {
        (fns.get_pipeline_executable_statistics_khr)(device.handle(), &executable, &mut count, found.as_mut_ptr())
    };
    if got != vk::Result::SUCCESS {
        return None;
    }
    found.truncate(count as usize);
    let all = found.iter().filter_map(|s| Some((text(&s.name), number(s)?))).collect();
    Some(Statistics::of(executables.first().map_or(0, |e| e.subgroup_size), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_are_understood() {
        let said = |all: &[(&str, f64)]| Statistics::of(64, all.iter().map(|&(n, v)| (n.to_string(), v)).collect());
        let radv = said(&[("SGPRs", 32.0), ("VGPRs", 96.0), ("Spilled SGPRs", 1.0), ("Spilled VGPRs", 2.0)]);
        assert_eq!((radv.registers, radv.spills, radv.cycles), (Some(96), Some(3), None));
        assert_eq!(radv.to_string(), "96 registers, 3 spilled");
        assert_eq!(said(&[]).to_string(), "");
    }

    #[test]
    fn text_without_an_end_ends() {
        assert_eq!(text(&[b'a' as c_char; 4]), "aaaa");
        assert_eq!(text(&[b'a' as c_char, 0, 1]), "a");
    }
}
