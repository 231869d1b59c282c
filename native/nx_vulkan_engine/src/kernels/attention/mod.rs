//! Attention in one kernel: scores are never in memory.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::{Constants, KernelFamily, flops_of, name_of_ops, names_of_steps};
use crate::program::attention::LOW;
use crate::program::ops::multiplied;
use crate::{DType, Result};

pub use generate::{AttentionSpec, AttentionTile, Read};
pub use launch::{Attention, Rows, attention, heads, takes};

impl KernelFamily for AttentionSpec {
    fn name(&self) -> String {
        let steps = names_of_steps(&self.steps);
        let name = name_of_ops(["attention"].into_iter().chain(steps), "attention");
        format!("{name}.{}x{}.{}", self.tile.depth(), self.tile.width(), self.dtype)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        AttentionSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        let values = [self.dtype == DType::Bf16, self.whole_keys, self.whole_depth, self.whole_width, self.causal];
        let numbers =
            values.map(u32::from).into_iter().chain([self.factor.unwrap_or(0), self.shares_keys.into(), LOW.to_bits()]);
        (0..).zip(numbers).collect()
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let number = |k| arguments.number(k);
        let [batches, rows, keys, depth, width] = [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?];
        // Of each score: both products, the steps, the softmax.
        let of_score = 2 * (depth + width) + flops_of(&self.steps) + 4;
        multiplied(&[batches, rows, keys, of_score])
    }
}
