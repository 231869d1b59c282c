//! Passes over programs. Each takes a program and gives one with the same outputs; what they may not change is a single
//! bit of them. Attention and sums of small products alone round less.

mod all_close;
mod attention;
mod clusters;
mod counters;
mod cse;
mod dce;
mod derived_factors;
mod epilogue;
mod expand;
mod fold_constants;
mod fuse;
mod halves_to_choice;
mod identities;
mod known_comparisons;
mod loop_fuel;
mod map_loops;
mod number_types;
mod padding_to_choice;
mod pairs;
mod predicate_loops;
mod prologue;
mod puts;
mod quick;
mod recompute;
mod rewrite;
mod row_blocks;
mod slices_last;
mod slices_to_concatenation;
mod small_products;
mod take_first;
mod takes_of_choices;
mod takes_to_reductions;
mod target;
mod transpose_products;
mod unroll;
mod unstack;
mod updates_to_choice;
mod vectorize_scalars;
mod windows_to_axes;
mod workgroup;

pub use all_close::steps as steps_of_all_close;
pub use fold_constants::computed;
pub use target::{FewQueries, Heads, Joins, Quick, Recompute, Saving, SmallProducts, Target};
pub use unstack::MAX_ROWS;

use rewrite::{Rewriter, checked};

use super::{Instruction, Op, Program, counted, verify};
use crate::Result;

/// A fused op's body in smaller kernels, none of which has several reductions or does more than reduce.
pub fn apart(body: &Program, target: &Target) -> Result<Program> {
    checked(fuse::apart(body, target)?)
}

/// Attention, two products side by side, or one of what is computed, in kernels of their parts.
pub fn composed(body: &Program, target: &Target) -> Result<Program> {
    fused(body.clone(), &Target { heads: Heads::default(), paired_vectors: 0, derived_vectors: 0, ..*target })
}

/// A fused op's body in kernels as the target says.
pub fn fuse_again(body: &Program, target: &Target) -> Result<Program> {
    checked(fuse::run(body, target)?)
}

/// Folds constants, removes what is computed twice or for nothing, puts what is small into kernels of one workgroup,
/// and fuses what one kernel can do, in the programs of loops and branches too.
///
/// # Errors
/// `InvalidProgram` for a program that breaks a rule.
pub fn optimize(program: Program, target: &Target) -> Result<Program> {
    verify::program(&program)?;
    let unit_work = target.joins.unit_work;
    let mut program = tidied(program, unit_work)?;
    counted::note(&mut program);
    if unroll::has_loops(&program) {
        let mapped = map_loops::run(&with_choices(program.clone(), target)?, target)?;
        if mapped != program {
            program = tidied(checked(mapped)?, unit_work)?;
            counted::note(&mut program);
        }
        let unrolled = unroll::run(&program, target)?;
        if unrolled != program {
            program = tidied(checked(unrolled)?, unit_work)?;
            counted::note(&mut program);
        }
    }
    if target.fusion {
        program = checked(dce::run(&takes_of_choices::run(&program)?)?)?;
    }
    let in_blocks = row_blocks::run(&program, target)?;
    if in_blocks != program {
        program = checked(in_blocks)?;
    }
    program = taken_first(program, target)?;
    if target.workgroups {
        program = checked(dce::run(&workgroup::run(&program, target)?)?)?;
    }
    program = guarded(program, target)?;
    if target.fusion { fused(joined(program, target)?, target) } else { Ok(program) }
}

/// Reads elements where they are computed, with what reads all of them where that reduces them, and writes none to
/// tensors of equal ones, in the programs of loops and branches too. A workgroup would read what has to be stored for
/// it.
fn taken_first(mut program: Program, target: &Target) -> Result<Program> {
    if !target.fusion {
        return Ok(program);
    }
    nested(&mut program, |program| taken_first(program, target))?;
    program = checked(take_first::run(&updates_to_choice::run(&program)?)?)?;
    // There nothing is reduced that does not lie in memory.
    if target.saving != Saving::Reductions {
        program = checked(takes_to_reductions::run(&program, target)?)?;
    }
    checked(dce::run(&program)?)
}

/// The program with elements that are put among others as choices, in the programs of loops and branches too.
fn with_choices(mut program: Program, target: &Target) -> Result<Program> {
    if !target.fusion {
        return Ok(program);
    }
    nested(&mut program, |program| with_choices(program, target))?;
    checked(updates_to_choice::run(&program)?)
}

/// Makes one product of several, in the programs of loops and branches too.
fn joined(mut program: Program, target: &Target) -> Result<Program> {
    nested(&mut program, |program| joined(program, target))?;
    small_products::run(&program, target)
}

/// Applies `pass` to the programs of loops and branches.
fn nested(program: &mut Program, pass: impl Fn(Program) -> Result<Program>) -> Result<()> {
    for program in program.instructions.iter_mut().flat_map(|instruction| instruction.op.inside_mut()) {
        *program = pass(std::mem::take(program))?;
    }
    Ok(())
}

/// From one program to another.
type Pass<'a> = &'a dyn Fn(&Program) -> Result<Program>;

/// Folds constants and removes what is computed twice or for nothing, in the programs of loops and branches too. Matrix
/// units may take products from `unit_work` multiplications on.
fn tidied(mut program: Program, unit_work: u64) -> Result<Program> {
    nested(&mut program, |program| tidied(program, unit_work))?;
    let transpose_products = |program: &Program| transpose_products::run(program, unit_work);
    let passes: [Pass<'_>; 11] = [
        &dce::run,
        &all_close::run,
        &fold_constants::run,
        &padding_to_choice::run,
        &number_types::run,
        &identities::run,
        &cse::run,
        &transpose_products,
        &dce::run,
        &slices_to_concatenation::run,
        &dce::run,
    ];
    for pass in passes {
        program = checked(pass(&program)?)?;
    }
    Ok(program)
}

/// The program with what one workgroup has no code for written as ops that it has, where that is small.
pub fn expanded(mut program: Program) -> Result<Program> {
    nested(&mut program, expanded)?;
    checked(expand::run(&program)?)
}

/// The program as one workgroup runs it best. No matrix units take products there.
pub fn for_workgroup(program: Program) -> Result<Program> {
    alone(tidied(unfenced(program)?, u64::MAX)?)
}

/// The program without fences: they save memory, of which one workgroup has what it has.
fn unfenced(mut program: Program) -> Result<Program> {
    nested(&mut program, unfenced)?;
    let mut new = Rewriter::new(&program);
    for instruction in &program.instructions {
        let operands = new.operands(instruction)?;
        match (&instruction.op, operands.first()) {
            (Op::After, Some(&first)) => new.moved(first),
            _ => new.replace(Instruction { operands, ..instruction.clone() }),
        }
    }
    new.finish(&program)
}

fn alone(mut program: Program) -> Result<Program> {
    nested(&mut program, alone)?;
    for pass in [unstack::run, dce::run, cse::run, vectorize_scalars::run, dce::run] {
        program = checked(pass(&program)?)?;
    }
    Ok(program)
}

/// Guards loops, those within loops and branches too.
fn guarded(mut program: Program, target: &Target) -> Result<Program> {
    nested(&mut program, |program| guarded(program, target))?;
    checked(predicate_loops::run(&program, target)?)
}

fn fused(mut program: Program, target: &Target) -> Result<Program> {
    nested(&mut program, |program| fused(program, target))?;
    if target.heads.any() {
        program = checked(attention::run(&program, target)?)?;
    }
    program = checked(dce::run(&slices_last::run(&windows_to_axes::run(&program)?)?)?)?;
    program = halves_to_choice::run(&program)?;
    program = checked(dce::run(&cse::run(&program)?)?)?;
    program = checked(fuse::run(&program, target)?)?;
    program = checked(dce::run(&cse::run(&program)?)?)?;
    program = checked(recompute::run(&program, target)?)?;
    program = checked(epilogue::run(&program, target)?)?;
    program = checked(derived_factors::run(&program, target)?)?;
    program = checked(pairs::run(&program, target)?)?;
    program = checked(prologue::run(&program, target)?)?;
    program = checked(puts::run(&program, target)?)?;
    checked(recompute::in_order(&program, target)?)
}
