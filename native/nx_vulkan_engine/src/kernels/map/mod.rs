//! Kernels that compute each element of their outputs from elements of their inputs at the same index.

mod both;
mod generate;
mod in_place;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

use super::family::{Constants, KernelSpec, flops_of, name_of_element, name_of_ops, names_of_steps};
use super::{Arguments, Pairs};
use crate::Result;
use crate::program::ops::multiplied;
use crate::program::step::Ref;

pub use generate::{Form, Sharing, Spec};
pub use launch::{Operand, Shapes, map, map_from, put};
#[cfg(test)]
pub(crate) use launch::{block_items, is_single, unrolls};
pub(crate) use launch::{is_exact, takes_pairs};
pub use nx_vulkan_spirv::access::Port;

impl KernelSpec for Spec {
    fn name(&self) -> String {
        let out = self.outputs.first().map_or_else(String::new, |(_, port)| name_of_element(port.element));
        let kind = if self.shift.is_some() { "put" } else { "map" };
        format!("{kind}.{}.{out}", name_of_ops(names_of_steps(&self.steps), "copy"))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Spec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        match self.form {
            Form::Blocks { .. } => smallvec![(0, u32::from(self.width)), (1, self.vectors())],
            Form::Vectors | Form::Single | Form::Exact | Form::Pairs => Constants::new(),
        }
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), flops_of(&self.steps)])
    }

    fn in_place(&self, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
        in_place::pairs(self, arguments, first_output)
    }

    fn copied_bytes(&self, arguments: &Arguments<'_>) -> Option<u64> {
        match (self.inputs.as_slice(), self.outputs.as_slice()) {
            ([from], [(Ref::Input(0), to)])
                if from.element == to.element
                    && self.shift.is_none()
                    && [from, to].iter().all(|port| in_place::is_whole(port.layout, arguments)) =>
            {
                Some(u64::from(arguments.count) * u64::from(to.element.size_bytes()))
            }
            _ => None,
        }
    }
}
