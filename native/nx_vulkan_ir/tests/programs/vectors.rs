//! Replays what was recorded from Nx in the reference, and compares with Nx's own results.

use nx_vulkan_ir::Result;
use nx_vulkan_ir::reference::{self, Array};

use crate::recordings::replay;

#[test]
fn recorded_programs_give_nx_results_in_the_reference() {
    replay(|recording| {
        let types = recording.program.inputs.iter().zip(&recording.inputs);
        let inputs = types.map(|(ty, bytes)| Array::from_nx_bytes(ty, bytes)).collect::<Result<Vec<_>>>()?;
        Ok(reference::run(&recording.program, &inputs)?.iter().map(Array::to_nx_bytes).collect())
    });
}
