//! Passes over programs. Each takes a program and gives one with the same outputs; what they may not change is a single bit of them.

mod clean;
mod cse;
mod dce;
mod fold;
mod fuse;
mod rewrite;

use super::fused::Plan;
use super::{Op, Program, verify};
use crate::device::Caps;
use crate::kernel::launch::{produce, rows};
use crate::{DeviceKind, Result};

/// What passes need to know of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub kind: DeviceKind,
    /// Invocations per workgroup.
    pub max_invocations: u32,
    /// Whether groups of ops become one kernel each.
    pub fusion: bool,
}

impl Target {
    pub fn of(caps: &Caps) -> Target {
        Target { kind: caps.kind, max_invocations: caps.max_invocations, fusion: true }
    }

    /// Whether there is a kernel for the plan.
    fn takes(&self, plan: &Plan) -> bool {
        plan.reductions().next().is_none() || produce::fits(plan) || rows::fits(plan, self.kind, self.max_invocations)
    }
}

/// Folds constants, removes what is computed twice or for nothing, and fuses what one kernel can do, in the programs of loops and
/// branches too.
///
/// # Errors
/// `InvalidProgram` for a program that breaks a rule.
pub fn optimize(program: Program, target: &Target) -> Result<Program> {
    verify::program(&program)?;
    let mut program = program;
    for instruction in &mut program.instructions {
        match &mut instruction.op {
            Op::While(op) => {
                op.condition = optimize(std::mem::take(&mut op.condition), target)?;
                op.body = optimize(std::mem::take(&mut op.body), target)?;
            }
            Op::Cond(op) => {
                op.on_true = optimize(std::mem::take(&mut op.on_true), target)?;
                op.on_false = optimize(std::mem::take(&mut op.on_false), target)?;
            }
            _ => {}
        }
    }
    for pass in [dce::run, fold::run, clean::run, cse::run, dce::run] {
        program = checked(pass(&program)?)?;
    }
    if target.fusion {
        program = checked(fuse::run(&program, target)?)?;
        program = checked(dce::run(&cse::run(&program)?)?)?;
    }
    Ok(program)
}

/// In debug builds, the program if it keeps all rules.
fn checked(program: Program) -> Result<Program> {
    if cfg!(debug_assertions) {
        verify::program(&program)?;
    }
    Ok(program)
}
