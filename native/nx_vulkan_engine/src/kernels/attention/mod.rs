//! Attention in one kernel, or two, and its gradient in three: scores are never in memory.

mod generate;
mod gradient;
mod launch;
mod launch_gradient;
mod launch_query;
mod query;
mod scores;

use nx_vulkan_ir::program::step::Step;
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::{Constants, KernelSpec, flops_of, name_of_ops, names_of_steps};
use crate::program::attention::LOW;
use crate::program::attention_gradient::By;
use crate::program::ops::multiplied;
use crate::{DType, Result};

pub use generate::{AttentionSpec, AttentionTile};
pub use gradient::GradientSpec;
pub use launch::{Attention, RowBatches, Way, attention, heads, takes, way};
pub use launch_gradient::{Gradients, gradients};
pub use query::{MergeSpec, QuerySpec, QueryTile};
pub use scores::{KeptSpec, Read, ScoreSpec};

/// What distinguishes kernels of attention.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// Tiles of queries on matrix units.
    Tile(AttentionSpec),
    /// Gradients by queries, keys or values on matrix units.
    Gradient(GradientSpec),
    /// Few queries.
    Query(QuerySpec),
    /// What shares of keys give to few queries, put together.
    Merge(MergeSpec),
}

impl KernelSpec for AttentionKernel {
    fn name(&self) -> String {
        let name = |steps: &[Step]| name_of_ops(["attention"].into_iter().chain(names_of_steps(steps)), "attention");
        match self {
            AttentionKernel::Tile(spec) => {
                let (depth, width) = (spec.tile.depth(), spec.tile.width());
                format!("{}.{depth}x{width}.{}", name(&spec.scores.steps), spec.dtype)
            }
            AttentionKernel::Gradient(spec) => {
                let by = match spec.by {
                    By::Query => "query",
                    By::Key => "key",
                    By::Value => "value",
                };
                format!("{}.gradient_by_{by}.{}", name(&spec.scores.steps), spec.dtype)
            }
            AttentionKernel::Query(spec) => {
                let split = if spec.splits { ".split" } else { "" };
                format!("{}.query_{}{split}.{}", name(&spec.scores.steps), spec.tile.count, spec.dtype)
            }
            AttentionKernel::Merge(spec) => format!("attention.merge.{}", spec.dtype),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        match self {
            AttentionKernel::Tile(spec) => spec.generate(library, modes),
            AttentionKernel::Gradient(spec) => spec.generate(library, modes),
            AttentionKernel::Query(spec) => spec.generate(library, modes),
            AttentionKernel::Merge(spec) => spec.generate(library, modes),
        }
    }

    fn constants(&self, _: FloatModes) -> Constants {
        match self {
            AttentionKernel::Tile(spec) => {
                let AttentionSpec { whole_keys, whole_depth, whole_width, causal, .. } = *spec;
                let values = [spec.dtype == DType::Bf16, whole_keys, whole_depth, whole_width, causal];
                let [drops, scale] = spec.scores.dropping();
                let others = [spec.factor.unwrap_or(0), spec.shares_keys.into(), LOW.to_bits(), drops, scale];
                (0..).zip(values.map(u32::from).into_iter().chain(others)).collect()
            }
            AttentionKernel::Gradient(spec) => {
                let GradientSpec { whole_others, whole_depth, whole_width, causal, .. } = *spec;
                let values = [spec.dtype == DType::Bf16, whole_others, whole_depth, whole_width, causal];
                let [drops, scale] = spec.scores.dropping();
                let others = [spec.factor.unwrap_or(0), spec.by as u32, spec.scale, LOW.to_bits(), drops, scale];
                (0..).zip(values.map(u32::from).into_iter().chain(others)).collect()
            }
            AttentionKernel::Query(spec) => {
                let flags = spec.by_units.into_iter().chain([spec.splits]).map(u32::from);
                (0..).zip(spec.units.into_iter().chain(flags)).collect()
            }
            AttentionKernel::Merge(spec) => [(0, spec.team)].into_iter().collect(),
        }
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let number = |k| arguments.number(k);
        let steps = match self {
            AttentionKernel::Tile(spec) => &spec.scores.steps,
            AttentionKernel::Gradient(spec) => &spec.scores.steps,
            AttentionKernel::Query(spec) => &spec.scores.steps,
            // A product and a sum for each number of a share.
            AttentionKernel::Merge(_) => return multiplied(&[2, number(0)?, number(1)?, number(2)?, number(3)?]),
        };
        let [batches, rows, keys, depth, width] = [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?];
        // Of each score: all products, the steps, the softmax, what becomes of a weight's gradient.
        let of_score = match self {
            AttentionKernel::Gradient(spec) => {
                let once = 2 * depth + flops_of(steps) + 2;
                match spec.by {
                    By::Query => 2 * (once + 2 * width) + 2 * depth + 4,
                    By::Key => once + 2 * (width + depth) + 2,
                    By::Value => once + 2 * width,
                }
            }
            AttentionKernel::Tile(_) | AttentionKernel::Query(_) | AttentionKernel::Merge(_) => {
                2 * (depth + width) + flops_of(steps) + 4
            }
        };
        multiplied(&[batches, rows, keys, of_score])
    }
}
