//! Whole programs that one workgroup runs.

mod launch;

use nx_vulkan_ir::program::workgroup::{is_open, work_repeated};
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::workgroup::{Mode, WorkgroupSpec};

use super::Arguments;
use super::family::{KernelSpec, name_of_ops};
use crate::Result;
use crate::program::Op;
use crate::program::ops::{PHASE_WORK, multiplied};

pub use launch::{Repeat, outputs, run, run_kernel, spec, spec_with};

/// How often a workgroup runs its program.
fn runs(mode: Mode, arguments: &Arguments<'_>) -> u64 {
    match (mode, arguments.extra) {
        (Mode::Steps { pauses: true, .. }, &[_, _, _, _, units, ..]) => units.into(),
        (Mode::Steps { .. }, &[_, _, from, to, ..]) => u64::from(to.saturating_sub(from)),
        _ => 1,
    }
}

impl KernelSpec for WorkgroupSpec {
    fn name(&self) -> String {
        let program = &self.program.program;
        let named = program.instructions.iter().filter(|i| !matches!(i.op, Op::Constant(_)));
        let out = program.output_types().first().map_or_else(String::new, |ty| ty.dtype.to_string());
        format!("workgroup.{}.{out}", name_of_ops(named.map(|i| i.op.name()), "copy"))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        WorkgroupSpec::generate(self, library, modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, groups: u64) -> Option<u64> {
        multiplied(&[self.program.program.flops()?, runs(self.mode, arguments), groups])
    }

    fn longest(&self, max_work: u64, arguments: &Arguments<'_>, _: u64) -> u64 {
        let program = &*self.program.program;
        // Loops that end nobody knows when stop where they have done so much.
        let pauses = matches!(self.mode, Mode::Steps { pauses: true, .. });
        let least = if is_open(program) && !pauses { max_work } else { 0 };
        work_repeated(program, PHASE_WORK).max(least).saturating_mul(runs(self.mode, arguments))
    }
}
