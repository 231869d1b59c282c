//! What passes are told of an engine's device.

use nx_vulkan_ir::program::epilogue::MOST_VECTORS;
use nx_vulkan_ir::program::passes::{Heads, Saving, Target};

use super::Programs;
use crate::kernels::attention::heads;
use crate::program::Program;
use crate::program::passes::optimize;
use crate::{Engine, Precision, Result};

/// The part of memory that what is reduced takes at most: there are its operands, and other results.
const REDUCED_PART: u64 = 4;

impl Programs {
    /// What passes are told, with all of them on. `matrix_units` says whether large products of f32 run on them,
    /// `half_units` whether those of f16 and bf16 do.
    pub fn target(&self, matrix_units: bool, half_units: bool) -> Target {
        Target {
            rows: self.rows,
            chooses_parts: self.chooses_parts,
            joins_small_ops: self.joins_small_ops,
            iteration_work: self.iteration_work,
            max_work: self.max_work,
            short_bytes: self.short_bytes,
            short_flops: self.short_flops,
            mapped_bytes: self.mapped_bytes,
            matrix_units,
            half_units,
            heads: Heads::default(),
            paired_vectors: self.paired_vectors,
            derived_vectors: match self.derived_vectors {
                0 => 0,
                _ if half_units => MOST_VECTORS,
                few => few,
            },
            reduced_bytes: u64::MAX,
            fusion: true,
            workgroups: true,
            saving: Saving::Nothing,
            recompute: self.recompute,
            joins: self.joins,
            live_words: self.live_words,
            quick: self.quick,
            small_products: self.small_products,
            repeats: self.repeats,
        }
    }
}

/// What passes are told of a device of this kind.
#[cfg(feature = "testing")]
pub fn of(kind: crate::DeviceKind, max_invocations: u32, matrix_units: bool) -> Target {
    super::guess::programs(kind, max_invocations).target(matrix_units, matrix_units)
}

impl Engine {
    /// The program as [`crate::Executable::compile`] makes kernels of it: with its ops fused, and what is small in one
    /// workgroup.
    ///
    /// # Errors
    /// `InvalidProgram` where it breaks the rules of programs.
    pub fn optimize(&self, program: Program) -> Result<Program> {
        optimize(program, &self.target())
    }

    /// What passes may know of the device, with all of them on.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn target(&self) -> Target {
        let caps = self.caps();
        let half_planes = caps.cooperative_matrix && self.precision() == Precision::High;
        let programs = &self.model().programs;
        let target = programs.target(caps.bfloat16_matrix || half_planes, caps.cooperative_matrix);
        Target { heads: heads(self), reduced_bytes: self.largest_bytes() / REDUCED_PART, ..target }
    }
}
