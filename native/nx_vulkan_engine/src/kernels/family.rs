//! What a family of kernels says of each of them.

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use nx_vulkan_device::work::Work;
use nx_vulkan_ir::program::step::Step;
use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::{Arguments, Place};
use crate::Result;

/// Specialization constants: id and value.
pub type Constants = SmallVec<[(u32, u32); 4]>;

/// Numbers of places: one that is read and, behind those, one that is written.
pub type Pairs = SmallVec<[(usize, usize); 2]>;

/// A kernel before it is generated: all that distinguishes it from others, as a key, and what is known of its launches.
pub trait KernelSpec: Key + Debug {
    /// Its name, for people: `family.variant.type` of lower-case letters, digits, `_` and `.`, such as
    /// `map.multiply_add_tanh.f32`. Different kernels may share one.
    fn name(&self) -> String;

    /// The module and its parameters.
    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated>;

    /// The constants that it is specialized with.
    fn constants(&self, _modes: FloatModes) -> Constants {
        Constants::new()
    }

    /// The operations of one launch; `None` where they depend on values. What `extra` means is said where the family is
    /// launched.
    fn flops(&self, arguments: &Arguments<'_>, groups: u64) -> Option<u64>;

    /// Whether launches look at one number and, as a rule, do nothing.
    fn is_fallback(&self) -> bool {
        false
    }

    /// Whether indices choose what is read of the first operand: as much as is written.
    fn reads_by_indices(&self) -> bool {
        false
    }

    /// Bytes of an element of operand `k`, 0 where all that lies behind its address counts.
    fn element_bytes(&self, _k: usize, place: &Place<'_>) -> u64 {
        place.element_bytes
    }

    /// The most that one workgroup does, in instructions, where that may take long, on a device that ends loops after
    /// `max_work`.
    fn longest(&self, _max_work: u64, _arguments: &Arguments<'_>, _groups: u64) -> u64 {
        0
    }

    /// Pairs of places of which the second may share its memory with the first, if nothing else uses either meanwhile.
    fn in_place(&self, _arguments: &Arguments<'_>, _first_output: usize) -> Pairs {
        Pairs::new()
    }

    /// How many bytes it writes, where results are its one operand as it is, and both lie in one order without gaps.
    fn copied_bytes(&self, _arguments: &Arguments<'_>) -> Option<u64> {
        None
    }
}

/// What makes specs keys of one map, whatever their families: what can be compared, hashed and cloned has it.
pub trait Key: Any + Send + Sync {
    /// A number that equal specs share.
    fn digest(&self) -> u64;

    /// Whether the other one is the same kernel.
    fn is(&self, other: &dyn KernelSpec) -> bool;

    /// A copy that is kept.
    fn kept(&self) -> Arc<dyn KernelSpec>;
}

impl<S: KernelSpec + Clone + Eq + Hash> Key for S {
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (TypeId::of::<S>(), self).hash(&mut hasher);
        hasher.finish()
    }

    fn is(&self, other: &dyn KernelSpec) -> bool {
        (other as &dyn Any).downcast_ref::<S>().is_some_and(|other| self == other)
    }

    fn kept(&self) -> Arc<dyn KernelSpec> {
        Arc::new(self.clone())
    }
}

impl PartialEq for dyn KernelSpec {
    fn eq(&self, other: &dyn KernelSpec) -> bool {
        self.is(other)
    }
}

impl Eq for dyn KernelSpec {}

impl Hash for dyn KernelSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// A kernel whose operands reach further than offsets of 32 bits, of the spec of one whose don't.
#[derive(Debug, Clone)]
pub struct FarSpec(pub Arc<dyn KernelSpec>);

impl PartialEq for FarSpec {
    fn eq(&self, other: &FarSpec) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for FarSpec {}

impl Hash for FarSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl KernelSpec for FarSpec {
    fn name(&self) -> String {
        format!("{}.far", self.0.name())
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.0.generate(library, FloatModes { far: true, ..modes })
    }

    fn constants(&self, modes: FloatModes) -> Constants {
        self.0.constants(modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, groups: u64) -> Option<u64> {
        self.0.flops(arguments, groups)
    }

    fn is_fallback(&self) -> bool {
        self.0.is_fallback()
    }

    fn reads_by_indices(&self) -> bool {
        self.0.reads_by_indices()
    }

    fn element_bytes(&self, k: usize, place: &Place<'_>) -> u64 {
        self.0.element_bytes(k, place)
    }

    fn longest(&self, max_work: u64, arguments: &Arguments<'_>, groups: u64) -> u64 {
        self.0.longest(max_work, arguments, groups)
    }

    fn in_place(&self, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
        self.0.in_place(arguments, first_output)
    }

    fn copied_bytes(&self, arguments: &Arguments<'_>) -> Option<u64> {
        self.0.copied_bytes(arguments)
    }
}

impl dyn KernelSpec {
    /// The work of one launch on a device that ends loops after `max_work`.
    pub(super) fn work(&self, max_work: u64, arguments: &Arguments<'_>, first_output: usize, groups: u64) -> Work {
        if self.is_fallback() {
            return Work { read_bytes: 8, flops: Some(0), ..Work::default() };
        }
        let (reads, writes) = arguments.places.split_at(first_output.min(arguments.places.len()));
        let sum = |places: &[Place<'_>], first: usize| -> u64 {
            // Operands that a kernel does not use are given a buffer of another.
            let is_first = |k: usize, place: &Place<'_>| places[..k].iter().all(|p| p.address != place.address);
            let places = places.iter().enumerate().filter(|(k, place)| is_first(*k, place));
            places.map(|(k, place)| operand_bytes(self, first + k, place, arguments)).sum()
        };
        let written_bytes = sum(writes, first_output);
        let read_bytes = match self.reads_by_indices() {
            true => written_bytes + sum(reads.get(1..).unwrap_or_default(), 1),
            false => sum(reads, 0),
        };
        let longest = self.longest(max_work, arguments, groups);
        Work { read_bytes, written_bytes, flops: self.flops(arguments, groups), longest }
    }
}

/// The bytes of operand `k` of a launch.
pub(super) fn operand_bytes(family: &dyn KernelSpec, k: usize, place: &Place<'_>, arguments: &Arguments<'_>) -> u64 {
    let rest = place.buffer.size_bytes().saturating_sub(place.address.saturating_sub(place.buffer.address()));
    let element_bytes = family.element_bytes(k, place);
    if element_bytes == 0 || place.strides.is_empty() {
        return rest;
    }
    let moving = place.strides.iter().zip(arguments.sizes).filter(|(stride, _)| **stride != 0);
    let elements = moving.fold(1u64, |n, (_, &size)| n.saturating_mul(size));
    elements.saturating_mul(element_bytes).min(place.buffer.size_bytes())
}

/// The operations of steps on one element.
pub(super) fn flops_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.op.flops()).sum()
}

/// Ops that a name tells; of more, it tells how many there are.
const MAX_OPS: usize = 4;

/// `a_b_c`, or `a_b_c_d_and_5_more`; `none` where there is no op.
pub(super) fn name_of_ops<'a>(ops: impl Iterator<Item = &'a str>, none: &str) -> String {
    let all: Vec<&str> = ops.collect();
    let told = all.iter().take(MAX_OPS).copied().collect::<Vec<_>>().join("_");
    match all.len() {
        0 => none.to_string(),
        n if n > MAX_OPS => format!("{told}_and_{}_more", n - MAX_OPS),
        _ => told,
    }
}

/// The names of the ops of steps.
pub(super) fn names_of_steps(steps: &[Step]) -> impl Iterator<Item = &'static str> + '_ {
    steps.iter().map(|step| step.op.name())
}

/// The name of an element's type, or of its size.
pub(super) fn name_of_element(element: Element) -> String {
    match element {
        Element::Typed(dtype) => dtype.name().to_string(),
        Element::Raw(bytes) => format!("{bytes}_bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::DType;
    use crate::kernels::sort::SortSpec;
    use crate::kernels::window_scatter::{WindowScatterSpec, WindowStage};

    #[test]
    fn specs_of_all_families_are_keys_of_one_map() {
        let choose = |rank| WindowScatterSpec { stage: WindowStage::Choose { max: true, input: DType::F32 }, rank };
        let specs: [&dyn KernelSpec; 3] = [&choose(1), &choose(2), &SortSpec::Count { bytes: 4 }];
        let far = specs.map(|spec| FarSpec(spec.kept()));
        let all = || specs.into_iter().chain(far.iter().map(|spec| spec as &dyn KernelSpec));
        let places: HashMap<Arc<dyn KernelSpec>, usize> = all().map(|spec| spec.kept()).zip(0..).collect();
        assert_eq!(places.len(), 6);
        for (at, spec) in all().enumerate() {
            assert_eq!(places[spec], at);
        }
        assert_eq!(places.get(&choose(3) as &dyn KernelSpec), None);
    }
}
