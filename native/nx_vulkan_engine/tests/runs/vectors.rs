//! Replays the programs that `mix nx_vulkan.record` recorded from Nx, and compares with Nx's own results.

use std::sync::Arc;

use nx_vulkan_engine::program::file::Recording;
use nx_vulkan_engine::{Compile, Engine, Executable, Result, Tensor, eager};

use crate::beside;
use crate::common;
use crate::recordings::replay;
use crate::workloads;

#[test]
fn recorded_programs_give_nx_results_on_the_device() {
    let engine = common::engine();
    replay(|recording| {
        let types = recording.program.inputs.iter().zip(&recording.inputs);
        let inputs = types.map(|(ty, bytes)| Tensor::from_nx_bytes(&engine, ty, bytes)).collect::<Result<Vec<_>>>()?;
        let outputs = eager::run_program(&engine, &recording.program, &inputs)?;
        outputs.iter().map(|output| output.to_nx_bytes(&engine, None)).collect()
    });
    common::assert_valid(&engine);
}

/// The results of a second run of the program's executable.
fn of_executable(engine: &Arc<Engine>, recording: &Recording) -> Result<Vec<Tensor>> {
    let executable = Executable::compile(engine, recording.program.clone())?;
    let types = recording.program.inputs.iter().zip(&recording.inputs);
    let inputs = types.map(|(ty, bytes)| Tensor::from_nx_bytes(engine, ty, bytes)).collect::<Result<Vec<_>>>()?;
    executable.run(&inputs, Compile::Allowed)?;
    executable.run(&inputs, Compile::Allowed)
}

/// Whose bits depend on the device (guides/numerics.md): small products of f32 are summed in f64, fewer where it is
/// lowered, and the last bits of f64 functions and products depend on whether fma rounds once, which lavapipe's does
/// not.
const DEVICES_DIFFER: [&str; 8] =
    ["cnn_step", "digits_step", "mlp_large_step", "conv_f64", "dot_f64", "solvers_f64", "unary_erf", "unary_tan"];

/// With `NX_VULKAN_BESIDE` they have the bits of another engine, too.
#[test]
fn recorded_programs_give_nx_results_as_executables() {
    let engine = common::engine();
    replay(|recording| {
        let outputs = of_executable(&engine, recording)?;
        if let Some(beside) = beside::engine().filter(|_| !DEVICES_DIFFER.contains(&&*recording.name)) {
            let others = of_executable(beside, recording)?;
            beside::check(&recording.name, [&engine, beside], &outputs, &others)?;
        }
        outputs.iter().map(|output| output.to_nx_bytes(&engine, None)).collect()
    });
    common::assert_valid(&engine);
}

#[test]
fn what_is_measured_is_recorded() {
    let steps = |name: &str| workloads::workload(name).program.instructions;
    workloads::WORKLOADS.iter().for_each(|name| assert!(!steps(name).is_empty(), "{name}"));
    for name in ["k_means", "logistic_regression", "while_of_1000_steps"] {
        assert!(steps(name).iter().any(|instruction| instruction.op.name() == "while"), "{name}");
    }
}
