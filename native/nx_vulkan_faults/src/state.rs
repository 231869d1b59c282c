//! Which call fails next, and how many objects there are.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;

/// Objects that are created and destroyed one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Instance,
    Device,
    Memory,
    Buffer,
    ShaderModule,
    PipelineCache,
    Pipeline,
    PipelineLayout,
    DescriptorSetLayout,
    DescriptorPool,
    CommandPool,
    Fence,
    QueryPool,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Instance,
        Kind::Device,
        Kind::Memory,
        Kind::Buffer,
        Kind::ShaderModule,
        Kind::PipelineCache,
        Kind::Pipeline,
        Kind::PipelineLayout,
        Kind::DescriptorSetLayout,
        Kind::DescriptorPool,
        Kind::CommandPool,
        Kind::Fence,
        Kind::QueryPool,
    ];

    pub fn name(self) -> &'static CStr {
        match self {
            Kind::Instance => c"VkInstance",
            Kind::Device => c"VkDevice",
            Kind::Memory => c"VkDeviceMemory",
            Kind::Buffer => c"VkBuffer",
            Kind::ShaderModule => c"VkShaderModule",
            Kind::PipelineCache => c"VkPipelineCache",
            Kind::Pipeline => c"VkPipeline",
            Kind::PipelineLayout => c"VkPipelineLayout",
            Kind::DescriptorSetLayout => c"VkDescriptorSetLayout",
            Kind::DescriptorPool => c"VkDescriptorPool",
            Kind::CommandPool => c"VkCommandPool",
            Kind::Fence => c"VkFence",
            Kind::QueryPool => c"VkQueryPool",
        }
    }
}

static ALIVE: [AtomicI64; Kind::ALL.len()] = [const { AtomicI64::new(0) }; Kind::ALL.len()];

pub fn appears(kind: Kind) {
    ALIVE[kind as usize].fetch_add(1, Relaxed);
}

pub fn vanishes(kind: Kind) {
    ALIVE[kind as usize].fetch_sub(1, Relaxed);
}

pub fn alive(kind: Kind) -> i64 {
    ALIVE[kind as usize].load(Relaxed)
}

struct Armed {
    /// The function of which a call fails; of all where there is none.
    function: Option<CString>,
    /// The number of the call that fails; 0 for none.
    call: u64,
    /// Calls of the function so far.
    counted: u64,
    /// The function of which a call failed.
    failed: Option<&'static CStr>,
    result: vk::Result,
    /// Calls that could have had the result.
    calls: Vec<&'static CStr>,
    /// Devices that are lost, by the key of their handles.
    lost: Option<HashSet<usize>>,
}

static ARMED: Mutex<Armed> = Mutex::new(Armed {
    function: None,
    call: 0,
    counted: 0,
    failed: None,
    result: vk::Result::SUCCESS,
    calls: Vec::new(),
    lost: None,
});

fn armed() -> MutexGuard<'static, Armed> {
    ARMED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn arm(function: Option<&CStr>, call: u64, result: vk::Result) {
    let mut armed = armed();
    armed.function = function.map(CStr::to_owned);
    armed.call = call;
    armed.counted = 0;
    armed.failed = None;
    armed.result = result;
    armed.calls.clear();
}

pub fn failed() -> Option<&'static CStr> {
    armed().failed
}

pub fn calls() -> u64 {
    armed().calls.len() as u64
}

pub fn name(call: u64) -> Option<&'static CStr> {
    let index = usize::try_from(call.checked_sub(1)?).ok()?;
    armed().calls.get(index).copied()
}

/// Counts a call that may have these results; the one that it has if its turn has come.
pub fn fault(name: &'static CStr, results: &[vk::Result]) -> Option<vk::Result> {
    let mut armed = armed();
    if !results.contains(&armed.result) {
        return None;
    }
    armed.calls.push(name);
    if armed.function.as_deref().is_some_and(|function| function != name) {
        return None;
    }
    armed.counted += 1;
    if armed.counted != armed.call {
        return None;
    }
    armed.failed = Some(name);
    Some(armed.result)
}

pub fn lose(key: usize) {
    armed().lost.get_or_insert_default().insert(key);
}

pub fn is_lost(key: usize) -> bool {
    armed().lost.as_ref().is_some_and(|lost| lost.contains(&key))
}

/// A device that is destroyed: another one may have its key.
pub fn revive(key: usize) {
    if let Some(lost) = &mut armed().lost {
        lost.remove(&key);
    }
}
