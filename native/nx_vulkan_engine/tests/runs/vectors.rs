//! Replays the programs that `mix nx_vulkan.record` recorded from Nx, and compares with Nx's own results.

use nx_vulkan_engine::{Compile, Executable, Result, Tensor, eager};

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

#[test]
fn recorded_programs_give_nx_results_as_executables() {
    let engine = common::engine();
    replay(|recording| {
        let executable = Executable::compile(&engine, recording.program.clone())?;
        let types = recording.program.inputs.iter().zip(&recording.inputs);
        let inputs = types.map(|(ty, bytes)| Tensor::from_nx_bytes(&engine, ty, bytes)).collect::<Result<Vec<_>>>()?;
        executable.run(&inputs, Compile::Allowed)?;
        let outputs = executable.run(&inputs, Compile::Allowed)?;
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
