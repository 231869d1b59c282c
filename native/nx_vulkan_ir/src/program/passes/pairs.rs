//! Makes one kernel of two products of few vectors with two matrices where the steps behind one alone read the other.

use std::collections::HashMap;

use super::rewrite::with_joined;
use super::target::Target;
use crate::Result;
use crate::program::pair::Pair;
use crate::program::{Instruction, Op, Operand, Program, epilogue};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if target.paired_vectors == 0 {
        return Ok(program.clone());
    }
    let (maker, reads) = (program.makers(), program.reads());
    // The instruction that takes each product in.
    let mut taken: HashMap<usize, usize> = HashMap::new();
    let mut joined: HashMap<usize, (Op, Vec<Operand>)> = HashMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        let Op::Fused(body) = &instruction.op else { continue };
        let Some(found) =
            epilogue::of(body, target.joins.unit_work, target.live_words).filter(|found| found.product == 0)
        else {
            continue;
        };
        for load in found.loads.iter().filter(|load| load.views.is_empty()) {
            let Some(&read) = instruction.operands.get(load.operand as usize) else { continue };
            let Some(product) = maker(read).filter(|_| reads.get(&read) == Some(&1)) else { continue };
            if let Some(pair) = join(program, target, product, instruction, body, load.operand) {
                taken.insert(product, at);
                joined.insert(at, pair);
                break;
            }
        }
    }
    with_joined(program, |at, _| taken.contains_key(&at), |at, _| joined.remove(&at))
}

/// The body of a product and of what follows it with another product in front, in the place of the operand that is its
/// result, and the operands that it takes then.
fn join(
    program: &Program,
    target: &Target,
    product: usize,
    instruction: &Instruction,
    body: &Program,
    read: u32,
) -> Option<(Op, Vec<Operand>)> {
    let (product, second) = (&program.instructions[product], body.instructions.first()?);
    // The second as the program has it.
    let outside = |operand: &Operand| match *operand {
        Operand::Input(i) => instruction.operands.get(i as usize).copied(),
        Operand::Result(_) => None,
    };
    let own = second.operands.iter().map(outside).collect::<Option<_>>()?;
    let place = Pair::matrix_of(product, &Instruction { operands: own, ..second.clone() })?;
    let matrix = *product.operands.get(place)?;
    let mut operands = instruction.operands.to_vec();
    let mut paired = Program { inputs: body.inputs.clone(), ..Program::default() };
    *operands.get_mut(read as usize)? = matrix;
    *paired.inputs.get_mut(read as usize)? = program.type_of(matrix)?.clone();
    let mut first = Instruction { operands: second.operands.clone(), ..product.clone() };
    *first.operands.get_mut(place)? = Operand::Input(read);
    paired.instructions.push(first);
    let moved = |operand: &Operand| match *operand {
        Operand::Input(i) if i == read => Operand::Result(0),
        Operand::Result(r) => Operand::Result(r + 1),
        input => input,
    };
    let behind = body.instructions.iter();
    paired.instructions.extend(
        behind.map(|other| Instruction { operands: other.operands.iter().map(moved).collect(), ..other.clone() }),
    );
    paired.outputs = body.outputs.iter().map(moved).collect();
    let found = Pair::of(&paired, target.live_words)?;
    found.fits(product.outs.first()?, target.paired_vectors).then(|| (Op::Fused(Box::new(paired)), operands))
}
