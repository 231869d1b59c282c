//! Passes on what was recorded from Nx.

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::passes::{Heads, Recompute, Saving, Target, optimize};
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::reference::{self, Array};

use crate::recordings::replay;

/// A GPU without matrix units.
pub fn target(saving: Saving) -> Target {
    Target {
        rows: RowLimits { elements: 1 << 15, invocations: 1024, planned_invocations: 1024 },
        chooses_parts: true,
        joins_small_ops: false,
        iteration_work: 1 << 20,
        max_work: 1 << 34,
        short_bytes: 64 << 20,
        short_flops: 1 << 28,
        matrix_units: false,
        half_units: false,
        heads: Heads::default(),
        fusion: true,
        workgroups: false,
        saving,
        recompute: Recompute { flops_per_byte: 16, shares: 1, most_per_byte: 6 },
    }
}

#[test]
fn recorded_programs_give_nx_results_whatever_kernels_save() {
    for saving in [Saving::Nothing, Saving::Order, Saving::Kernels, Saving::Reductions] {
        replay(|recording| {
            let program = optimize(recording.program.clone(), &target(saving))?;
            let types = program.inputs.iter().zip(&recording.inputs);
            let inputs = types.map(|(ty, bytes)| Array::from_nx_bytes(ty, bytes)).collect::<Result<Vec<_>>>()?;
            Ok(reference::run(&program, &inputs)?.iter().map(Array::to_nx_bytes).collect())
        });
    }
}
