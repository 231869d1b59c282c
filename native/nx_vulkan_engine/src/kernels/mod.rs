//! Kernel families, and what they share: specs, parameter words, how far one launch reaches.

pub mod attention;
pub mod dot;
mod family;
pub mod fft;
pub mod fold;
mod in_place;
pub mod index;
mod launch;
pub mod linalg;
pub mod map;
mod planned;
pub mod reduce;
mod rounding;
pub mod rows;
pub mod scan;
pub mod sort;
pub mod transpose;
pub mod window_scatter;
pub mod workgroup;

#[cfg(feature = "testing")]
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use dot::LANES;
use nx_vulkan_device::device::Caps;
use nx_vulkan_device::kernel::{Interface, Pipeline, PipelineStore, capabilities};
use nx_vulkan_device::memory::Buffer;
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout, bias, divider};
use once_cell::sync::OnceCell;
use rspirv::spirv::Capability;
use smallvec::SmallVec;

use crate::{DeviceKind, Error, Result, View};

pub use family::{Constants, FarSpec, KernelSpec, Pairs};
pub(crate) use launch::launch;
#[cfg(test)]
pub(crate) use launch::refusal;
pub use launch::{Bounds, Loaded, in_parts};
pub(crate) use planned::Planned;

/// How far launches reach from the lowest element of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    bytes: u64,
}

impl Default for Reach {
    /// Offsets in bytes stay within 32 bits, as NVIDIA's driver 580 computes no more of them.
    fn default() -> Reach {
        Reach { bytes: u32::MAX.into() }
    }
}

impl Reach {
    /// A reach of fewer bytes, so that tests need no gigabytes.
    pub fn of_bytes(bytes: u64) -> Reach {
        Reach { bytes: bytes.min(Reach::default().bytes) }
    }

    /// The last position that any launch can reach: a signed number of 32 bits.
    pub fn far(self) -> u64 {
        self.bytes / 2
    }

    /// The last position of elements of this size that kernels reach which are not made to reach far.
    pub fn near(self, element_bytes: u64) -> u64 {
        self.far().min(self.bytes / element_bytes.max(1))
    }

    /// Whether a launch that reaches these tensors needs kernels that reach far; `TooLarge` where none does.
    pub fn is_far(self, views: &[&View]) -> Result<bool> {
        let mut far = false;
        for view in views {
            let (size, reach) = (view.dtype.size_bytes(), reach_of(view));
            if reach > self.far() {
                let limit_bytes = self.far().saturating_mul(size);
                return Err(Error::TooLarge { size_bytes: view.elements().saturating_mul(size), limit_bytes });
            }
            far |= reach > self.near(size);
        }
        Ok(far)
    }
}

/// Elements from the lowest of a view to the highest.
pub fn reach_of(view: &View) -> u64 {
    let (low, high) = view.extent();
    (high - low) as u64
}

/// Whether a call may compile a kernel that is not there yet (milliseconds), or must answer `NeedsCompile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compile {
    /// It may.
    Allowed,
    /// A kernel that is not compiled yet gives [`Error::NeedsCompile`].
    Refused,
}

/// A compiled kernel and the meaning of its parameter words.
#[derive(Debug)]
pub struct Kernel {
    spec: Option<Arc<dyn KernelSpec>>,
    pub pipeline: Arc<Pipeline>,
    pub params: ParamLayout,
    pub table: bool,
    pub elements_per_group: u32,
    /// The words of `params` that begin an address.
    addresses: SmallVec<[u32; 4]>,
    features: u16,
}

/// Kernels compiled so far on one device.
#[derive(Debug, Default)]
pub struct KernelCache {
    kernels: RwLock<HashMap<Arc<dyn KernelSpec>, Arc<Kernel>>>,
    modes: OnceCell<FloatModes>,
}

impl KernelCache {
    /// The specs of one family, with their pipelines.
    #[cfg(feature = "testing")]
    pub(crate) fn of_family<S: KernelSpec + Clone>(&self) -> Vec<(S, Arc<Pipeline>)> {
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let of_family = |(spec, kernel): (&Arc<dyn KernelSpec>, &Arc<Kernel>)| {
            let spec: &dyn Any = spec.as_ref();
            Some((spec.downcast_ref::<S>()?.clone(), Arc::clone(&kernel.pipeline)))
        };
        kernels.iter().filter_map(of_family).collect()
    }

    /// Drops the pipelines of the store that were launched least recently, with the kernels that they are.
    pub(crate) fn drop_idle(&self, pipelines: &PipelineStore) {
        // Nobody else can get at a kernel of the cache meanwhile.
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        let mut cached = HashMap::new();
        for kernel in kernels.values().filter(|kernel| Arc::strong_count(kernel) == 1) {
            *cached.entry(kernel.pipeline.key()).or_default() += 1;
        }
        let forgotten = pipelines.forget_idle(&cached);
        kernels.retain(|_, kernel| !forgotten.contains_key(&kernel.pipeline.key()));
    }
}

fn label_of(spec: Option<&Arc<dyn KernelSpec>>) -> String {
    spec.map_or_else(|| "probe".to_string(), |spec| spec.name())
}

/// How a generated module takes its parameters.
fn interface_of(generated: &Generated) -> Interface {
    let is_wide = !generated.table && generated.params.words.len() > ParamLayout::PUSH_WORDS;
    let push_words = if is_wide { ParamLayout::WIDE_PUSH_WORDS } else { ParamLayout::PUSH_WORDS };
    Interface::Addresses { push_bytes: (push_words * 4) as u32 }
}

impl Kernel {
    fn new(spec: Option<Arc<dyn KernelSpec>>, pipeline: Arc<Pipeline>, generated: &Generated) -> Kernel {
        let is_address = |param: &Param| matches!(param, Param::AddressLow(_));
        let addresses = (0..).zip(&generated.params.words).filter(|(_, param)| is_address(param)).map(|(i, _)| i);
        Kernel {
            spec,
            addresses: addresses.collect(),
            pipeline,
            params: generated.params.clone(),
            table: generated.table,
            elements_per_group: generated.elements_per_group,
            features: features(&generated.words),
        }
    }
}

/// Device features that kernels depend on, by their bit in a set of them.
const FEATURES: [&str; 9] = [
    "shaderFloat64",
    "shaderInt64",
    "shaderInt8",
    "shaderInt16",
    "storageBuffer8BitAccess",
    "storageBuffer16BitAccess",
    "shaderFloat16",
    "cooperativeMatrix",
    "shaderBFloat16CooperativeMatrix",
];

/// The names in a set of features.
pub(crate) fn feature_names(set: u16) -> Vec<&'static str> {
    FEATURES.into_iter().enumerate().filter(|(bit, _)| set & 1 << bit != 0).map(|(_, name)| name).collect()
}

/// The features that the capabilities of a module stand for.
fn features(words: &[u32]) -> u16 {
    capabilities(words).fold(0, |set, capability| {
        set | match capability {
            Capability::Float64 => 1,
            Capability::Int64 => 1 << 1,
            Capability::Int8 => 1 << 2,
            Capability::Int16 => 1 << 3,
            Capability::StorageBuffer8BitAccess => 1 << 4,
            Capability::StorageBuffer16BitAccess => 1 << 5,
            Capability::Float16 => 1 << 6,
            Capability::CooperativeMatrixKHR => 1 << 7,
            Capability::BFloat16CooperativeMatrixKHR => 1 << 8,
            _ => 0,
        }
    })
}

/// The features that kernels may use: those that a device has, and those without which modules are lowered.
fn available(caps: &Caps) -> u16 {
    let lowered = [true; 6];
    let has = [caps.shader_float16, caps.cooperative_matrix, caps.bfloat16_matrix];
    lowered.into_iter().chain(has).enumerate().fold(0, |set, (bit, has)| set | u16::from(has) << bit)
}

/// An operand of a launch: where its first element lies and the strides in the iteration space.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub buffer: &'a Arc<Buffer>,
    pub address: u64,
    pub strides: &'a [i64],
    pub element_bytes: u64,
}

impl Place<'_> {
    /// Elements between the lowest element and the one with index 0.
    fn bias(&self, sizes: &[u64]) -> u64 {
        bias(self.strides, sizes)
    }

    /// Address of the lowest element.
    fn lowest(&self, sizes: &[u64]) -> u64 {
        self.address.wrapping_sub(self.bias(sizes) * self.element_bytes)
    }
}

/// What the parameter words are filled from.
#[derive(Debug)]
pub struct Arguments<'a> {
    pub count: u32,
    pub sizes: &'a [u64],
    pub places: &'a [Place<'a>],
    pub extra: &'a [u32],
}

impl Arguments<'_> {
    fn word(&self, param: Param) -> u32 {
        match param {
            Param::Count => self.count,
            Param::AddressLow(k) => self.places.get(k as usize).map_or(0, |p| p.lowest(self.sizes) as u32),
            Param::AddressHigh(k) => self.places.get(k as usize).map_or(0, |p| (p.lowest(self.sizes) >> 32) as u32),
            Param::Bias(k) => self.places.get(k as usize).map_or(0, |p| p.bias(self.sizes) as u32),
            Param::Size(axis) => self.size(axis),
            Param::Multiplier(axis) => divider(self.size(axis)).0,
            Param::Shift(axis) => divider(self.size(axis)).1,
            Param::Stride(k, axis) => {
                let strides = self.places.get(k as usize).map(|p| p.strides).unwrap_or_default();
                strides.get(axis as usize).map_or(0, |&s| s as u32)
            }
            Param::Scalar(..) => 0,
            Param::Extra(k) => self.extra.get(k as usize).copied().unwrap_or(0),
            Param::Number(number) => number,
        }
    }

    /// Number `k` of those that only the family knows.
    pub fn number(&self, k: usize) -> Option<u64> {
        self.extra.get(k).map(|&number| number.into())
    }

    fn size(&self, axis: u8) -> u32 {
        self.sizes.get(axis as usize).map_or(1, |&s| s as u32)
    }
}

/// Whether subgroups are the vectors of a CPU, with the lanes that kernels for them have.
pub(super) fn has_lanes(caps: &Caps) -> bool {
    caps.kind == DeviceKind::Cpu && caps.subgroup_size >= LANES && caps.subgroup_ops.basic
}

/// Invocations of the whole subgroups of a GPU that has as many as kernels for them are made for: multiples of 32.
pub(super) fn wide_subgroups(caps: &Caps) -> Option<u32> {
    caps.whole_subgroups().filter(|size| caps.kind != DeviceKind::Cpu && matches!(size, 32 | 64))
}

/// The most workgroups of a launch of one dimension.
fn max_groups(caps: &Caps) -> u64 {
    caps.max_workgroup_count[0].into()
}

/// The most workgroups, up to so many, that fill a grid.
fn whole_grid(limit: u64, groups: u64) -> u64 {
    let rows = groups.div_ceil(limit).max(1);
    (groups / rows * rows).max((rows - 1) * limit)
}

/// Workgroups in two dimensions, at most `limit` in the first; kernels ignore those beyond the end.
fn grid(limit: u64, groups: u64) -> [u32; 3] {
    if groups <= limit {
        return [groups as u32, 1, 1];
    }
    let rows = groups.div_ceil(limit);
    [groups.div_ceil(rows) as u32, rows as u32, 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::devices::{h200, lavapipe};

    #[test]
    fn whole_subgroups_have_the_size_of_the_device_or_one_that_is_asked_for() {
        let caps = |least, most| Caps { min_subgroup_size: least, max_subgroup_size: most, ..h200() };
        let both = |caps: Caps| (caps.whole_subgroups(), wide_subgroups(&caps));
        for size in [32, 64] {
            assert_eq!(both(caps(size, size)), (Some(size), Some(size)));
        }
        assert_eq!(both(caps(16, 16)), (Some(16), None));
        assert_eq!(both(caps(128, 128)), (Some(128), None));
        for (least, most) in [(8, 32), (32, 64)] {
            assert_eq!(both(caps(least, most)), (Some(32), Some(32)));
            assert_eq!(both(Caps { required_subgroup_size: false, ..caps(least, most) }), (None, None));
        }
        assert_eq!(both(caps(64, 128)), (None, None));
        assert_eq!(both(Caps { compute_full_subgroups: false, ..h200() }), (None, None));
        assert_eq!(both(lavapipe()), (Some(8), None));
    }

    #[test]
    fn whole_grids_have_as_many_workgroups_as_they_say() {
        for limit in [1u64, 7, 65_535] {
            for groups in (1..400).chain((10 * limit).saturating_sub(40).max(1)..10 * limit + 40).chain([1 << 20]) {
                let whole = whole_grid(limit, groups);
                let [columns, rows, _] = grid(limit, whole);
                assert_eq!(u64::from(columns) * u64::from(rows), whole, "{groups}");
                assert!(u64::from(columns) <= limit && whole <= groups && groups - whole < groups.div_ceil(limit));
            }
        }
    }
}
