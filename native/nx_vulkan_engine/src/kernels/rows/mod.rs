//! Several reductions along rows, with what is computed between them.

mod generate;
mod in_place;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::family::{Constants, KernelSpec, name_of_ops};
use super::{Arguments, Pairs};
use crate::Result;
use crate::program::fused::{Computed, Made};
use crate::program::ops::multiplied;

pub use generate::{Along, RowPort, RowsSpec};
pub use launch::rows;
#[cfg(test)]
pub(crate) use launch::share;

impl KernelSpec for RowsSpec {
    fn name(&self) -> String {
        let names = self.values.iter().map(|value| match &value.made {
            Made::Step(step) => step.op.name(),
            Made::Reduction { reduction, .. } => reduction.name(),
        });
        let out = self.outputs.first().map_or_else(String::new, |(_, port)| port.dtype.to_string());
        format!("rows.{}.{out}", name_of_ops(names, "copy"))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        RowsSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        SmallVec::from_slice(&[(0, self.team), (1, if self.columns { self.rows_per_group() } else { 1 })])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let rows = u64::from(arguments.count);
        let elements = multiplied(&[rows, arguments.number(0)?])?;
        let of = |value: &Computed| match &value.made {
            Made::Step(step) => step.op.flops() * if value.row { rows } else { elements },
            Made::Reduction { .. } => elements,
        };
        Some(self.values.iter().map(of).sum())
    }

    fn in_place(&self, arguments: &Arguments<'_>, first_output: usize) -> Pairs {
        in_place::pairs(self, arguments, first_output)
    }
}
