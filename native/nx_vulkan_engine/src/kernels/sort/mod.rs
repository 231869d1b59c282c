//! Sorts along rows, by keys of 32 or 64 bits.

mod generate;
mod launch;
pub mod search;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

use super::Arguments;
use super::family::{Constants, KernelSpec};
use crate::Result;

pub use generate::{Payload, SortKey, SortSpec, Team};
pub use launch::{Sort, keeps_fewer, sort};

impl KernelSpec for SortSpec {
    fn name(&self) -> String {
        match self {
            SortSpec::Rows { bytes, .. } => format!("sort.rows.{bytes}_bytes"),
            SortSpec::RowsRanked { bytes, .. } => format!("sort.rows_ranked.{bytes}_bytes"),
            SortSpec::Select { bytes, .. } => format!("sort.select.{bytes}_bytes"),
            SortSpec::Count { bytes } => format!("sort.count.{bytes}_bytes"),
            SortSpec::Offsets { last: false } => "sort.offsets".to_string(),
            SortSpec::Offsets { last: true } => "sort.bases".to_string(),
            SortSpec::Scatter { bytes, .. } => format!("sort.scatter.{bytes}_bytes"),
            SortSpec::ScatterRanked { bytes, .. } => format!("sort.scatter_ranked.{bytes}_bytes"),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        SortSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        match self {
            SortSpec::Offsets { last } => smallvec![(0, u32::from(*last))],
            SortSpec::RowsRanked { team, payload, .. } | SortSpec::ScatterRanked { team, payload, .. } => smallvec![
                (0, team.invocations),
                (1, team.subgroup),
                (2, u32::from(payload.values)),
                (3, u32::from(payload.ranks)),
            ],
            SortSpec::Rows { .. } | SortSpec::Select { .. } | SortSpec::Count { .. } | SortSpec::Scatter { .. } => {
                Constants::new()
            }
        }
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}
