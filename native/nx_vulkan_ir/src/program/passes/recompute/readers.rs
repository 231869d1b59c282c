//! Large results within the kernels that read them late: what these read in their place is no more.

use smallvec::smallvec;

use super::lives::{Again, Lives, Taken};
use crate::Result;
use crate::program::fused::{Plan, shares_memory};
use crate::program::passes::target::Target;
use crate::program::passes::{cse, dce};
use crate::program::{Instruction, Op, Operand, Program};

/// Where so many times as much lies in memory at the peak as large results take, results count from this part of all
/// on: steps of recurrent cells leave many that are small.
const MUCH: u64 = 64;
const LEAST_PART: u64 = 4096;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let mut lives = Lives::of(program, target);
    let mut new = program.clone();
    let (peak, peak_bytes) = lives.peak();
    let large = target.joins.read_bytes;
    let least_bytes = if peak_bytes < MUCH.saturating_mul(large) { large } else { large.min(peak_bytes / LEAST_PART) };
    let counts = |&r: &usize| lives.results[r].bytes >= least_bytes && lives.is_between_kernels(r, peak);
    let mut results: Vec<usize> = (0..lives.results.len()).filter(counts).collect();
    // What takes most comes first.
    results.sort_by_key(|&r| std::cmp::Reverse(lives.results[r].bytes));
    for r in results {
        let (early, late) = lives.readers(r, peak);
        let level = |readers: &[usize]| readers.iter().map(|&at| lives.level[at]).max();
        let between = (level(&early).unwrap_or(lives.level[lives.results[r].maker]), level(&late).unwrap_or(peak));
        let Some(part) = lives.steps_of(lives.results[r].maker, &[r], between) else { continue };
        let joined = late.iter().map(|&at| joined(&lives, &new.instructions[at], &part, target));
        let Some(joined) = joined.collect::<Option<Vec<Instruction>>>() else { continue };
        let bytes = |instruction: &Instruction| lives.bytes_of(&instruction.operands);
        let before: u64 = late.iter().map(|&at| bytes(&new.instructions[at])).sum();
        if joined.iter().map(bytes).sum::<u64>() > before {
            continue;
        }
        for (at, instruction) in late.into_iter().zip(joined) {
            new.instructions[at] = instruction;
            lives.move_reader(at, r, &part.operands);
        }
        lives.results[r].last = between.0;
    }
    if new == *program { Ok(new) } else { dce::run_within(&cse::run(&new)?) }
}

impl Lives<'_> {
    /// Whether a result of a fused op lies in memory at the peak for kernels that read it after it, and what
    /// makes it is there for others before.
    fn is_between_kernels(&self, result: usize, peak: usize) -> bool {
        let made = &self.results[result];
        let instruction = &self.program.instructions[made.maker];
        let is_early = |r: usize| self.results[r].readers.iter().any(|&at| self.level[at] <= peak);
        let fused = |at: &usize| matches!(self.program.instructions[*at].op, Op::Fused(_));
        let all = self.first[made.maker]..self.first[made.maker] + instruction.outs.len();
        made.bytes > 0
            && !made.is_fenced
            && matches!(instruction.op, Op::Fused(_))
            && self.level[made.maker] < peak
            && (peak + 1..usize::MAX).contains(&made.last)
            && all.into_iter().any(is_early)
            && self.readers(result, peak).1.iter().all(fused)
    }

    /// Notes that an instruction reads these operands in the place of a result.
    fn move_reader(&mut self, at: usize, result: usize, operands: &[Operand]) {
        self.results[result].readers.remove(&at);
        for &operand in operands {
            for r in self.behind(self.base_of(operand)) {
                let made = &mut self.results[r];
                made.readers.insert(at);
                made.last = made.last.max(self.level[at]);
            }
        }
    }
}

/// A fused op that computes what it reads of this result, through the views that it sees it through.
fn joined(lives: &Lives<'_>, reader: &Instruction, part: &Again, target: &Target) -> Option<Instruction> {
    let Op::Fused(old) = &reader.op else { return None };
    let base = Operand::Result(*part.results.first()? as u32);
    let mut kernel = Taken::of(lives);
    let inputs = part.operands.iter().map(|&o| kernel.input(o)).collect::<Option<Vec<Operand>>>()?;
    let computed = kernel.program.append(&part.program, &inputs);
    kernel.known.insert(base, *computed.first()?);
    let read = |kernel: &mut Taken<'_>, &operand: &Operand| match lives.base_of(operand) == base {
        true => seen(kernel, operand),
        false => kernel.input(operand),
    };
    let inputs = reader.operands.iter().map(|o| read(&mut kernel, o)).collect::<Option<Vec<Operand>>>()?;
    kernel.program.outputs = kernel.program.append(old, &inputs);
    let body = cse::run(&kernel.program).ok()?;
    Plan::of(&body, target.live_words).is_ok_and(|plan| target.takes(&plan)).then(|| Instruction {
        op: Op::Fused(Box::new(body)),
        operands: kernel.operands.iter().copied().collect(),
        outs: reader.outs.clone(),
    })
}

/// What a fused op computes, as it is seen through views.
fn seen(kernel: &mut Taken<'_>, operand: Operand) -> Option<Operand> {
    if let Some(&known) = kernel.known.get(&operand) {
        return Some(known);
    }
    let view = &kernel.lives.program.instructions[kernel.lives.made(operand)?.maker];
    if !shares_memory(&view.op) {
        return None;
    }
    let inner = seen(kernel, *view.operands.first()?)?;
    Some(kernel.push(operand, Instruction { operands: smallvec![inner], ..view.clone() }))
}
