//! Reductions over axes, with what is computed on the way in and on the way out.

mod common;
mod generate;
mod inner;
mod launch;
pub mod produce;
mod slots;
mod stages;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::Arguments;
use super::family::{Constants, KernelSpec, flops_of, name_of_ops, names_of_steps};
use crate::program::ops::multiplied;
use crate::program::reducer::Reducer;
use crate::{DType, Result};

pub use generate::{Direction, Producer, ReduceEpilogue, ReduceSpec, Stage};
pub use inner::{Factor, Finish, inner};
#[cfg(test)]
pub(crate) use launch::layout;
pub use launch::{Reduce, Source, Target, reduce, reduce_from};

/// A reduction, and how many invocations share its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceKernel {
    pub spec: ReduceSpec,
    pub team: u32,
}

impl KernelSpec for ReduceKernel {
    fn name(&self) -> String {
        let spec = &self.spec;
        let producer = spec.producer.iter().flat_map(|producer| names_of_steps(&producer.steps));
        let name = |reducer: &Reducer| if spec.times.is_some() { "dot" } else { reducer.reduction.name() };
        let reductions = spec.reducers.iter().map(name);
        let (first, input) = spec.reducers.first().map_or(("", DType::U32), |r| (name(r), r.input));
        let stage = match spec.stage {
            Stage::Whole => "",
            Stage::First => ".first",
            Stage::Last => ".last",
        };
        let epilogue = spec.epilogue.iter().flat_map(|epilogue| names_of_steps(&epilogue.steps));
        format!("reduce.{}{stage}.{}", name_of_ops(producer.chain(reductions).chain(epilogue), first), input)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.spec.generate(library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        SmallVec::from_slice(&[(0, self.team)])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let spec = &self.spec;
        let producer = spec.producer.as_ref().map_or(0, |producer| flops_of(&producer.steps));
        let epilogue = spec.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
        let each = spec.reducers.len() as u64 + u64::from(spec.times.is_some()) + producer;
        let count = arguments.count.into();
        multiplied(&[count, arguments.number(0)?, each])?.checked_add(multiplied(&[count, epilogue])?)
    }
}
