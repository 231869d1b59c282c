//! Puts equal costly ops of scalars side by side, as one op of a vector: in a workgroup, all invocations compute a
//! scalar alike, but each an element of a vector of its own.

use std::collections::{BTreeMap, HashMap, HashSet};

use smallvec::{SmallVec, smallvec};

use super::rewrite::Rewriter;
use crate::program::ops::index::Indexing;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

/// Instructions that packing must save in a level: about those of a barrier and two trips through shared memory.
const LEVEL_COST: u64 = 32;

/// Instructions from which on an op is costly.
const COSTLY: u64 = 8;

/// Scalars of one vector.
const MAX_PACKED: usize = 32;

/// Ops that are computed alike.
type Family = (String, SmallVec<[DType; 3]>, DType);

pub fn run(program: &Program) -> Result<Program> {
    let packing = Packing::of(program);
    if packing.groups.is_empty() {
        return Ok(program.clone());
    }
    let (program, places) = reordered(program, &packing);
    let mut starts: HashMap<usize, usize> = HashMap::new();
    let mut packed: HashSet<usize> = HashSet::new();
    for group in &packing.groups {
        let first = group.iter().map(|&i| places[i]).min().unwrap_or_default();
        starts.insert(first, group.len());
        packed.extend(group.iter().map(|&i| places[i]));
    }
    let mut new = Rewriter::new(&program);
    for (at, old) in program.instructions.iter().enumerate() {
        if let Some(&count) = starts.get(&at) {
            pack(&mut new, &program.instructions[at..at + count])?;
        } else if !packed.contains(&at) {
            let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
            new.replace(instruction);
        }
    }
    new.finish(&program)
}

/// One op for all of these instructions.
fn pack(new: &mut Rewriter, members: &[Instruction]) -> Result<()> {
    let Some(first) = members.first() else { return Ok(()) };
    let count = members.len() as u64;
    let operands: Vec<_> = members.iter().map(|member| new.operands(member)).collect::<Result<_>>()?;
    let mut vectors: SmallVec<[Operand; 3]> = smallvec![];
    for k in 0..first.operands.len() {
        let of: Vec<Operand> = operands.iter().map(|operands| operands[k]).collect();
        let dtype = new.ty(of[0])?.dtype;
        let scalar = Type::new(dtype, &[]);
        let mut scalars: SmallVec<[Operand; 8]> = smallvec![];
        for &operand in &of {
            let flat = new.ty(operand)?.shape.is_empty();
            scalars.push(if flat { operand } else { new.push_one(Op::Reshape, &[operand], &scalar) });
        }
        let same = of.iter().all(|&operand| operand == of[0]);
        let vector = Type::new(dtype, &[count]);
        vectors.push(if same { scalars[0] } else { new.push_one(Op::Stack { axis: 0 }, &scalars, &vector) });
    }
    let dtype = first.outs[0].dtype;
    let vector = new.push_one(first.op.clone(), &vectors, &Type::new(dtype, &[count]));
    for (i, member) in members.iter().enumerate() {
        let op = Op::Slice { starts: smallvec![Some(i as i64)], strides: smallvec![1], lengths: smallvec![1] };
        let element = new.push_one(op, &[vector], &Type::new(dtype, &[1]));
        let element = new.push_one(Op::Reshape, &[element], &member.outs[0]);
        new.moved(element);
    }
    Ok(())
}

/// The program with its instructions by level, those of a group side by side; and where each instruction went.
fn reordered(program: &Program, packing: &Packing) -> (Program, Vec<usize>) {
    let mut group_of: HashMap<usize, usize> = HashMap::new();
    for (g, group) in packing.groups.iter().enumerate() {
        group_of.extend(group.iter().map(|&i| (i, g)));
    }
    let mut order: Vec<usize> = (0..program.instructions.len()).collect();
    // What makes a level reads lower ones only, and the rest of the level may read it.
    order
        .sort_by_key(|&i| (packing.levels[i], !packing.makes_level[i], group_of.get(&i).map_or(usize::MAX, |&g| g), i));
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &i)| places[i] = place);
    (program.reordered(&order), places)
}

/// Which instructions become one.
struct Packing {
    /// Barriers, about, before each instruction's result can be read.
    levels: Vec<usize>,
    /// Whether the result can be read one level after the operands.
    makes_level: Vec<bool>,
    /// Equal ops of the same level, two or more each.
    groups: Vec<Vec<usize>>,
}

impl Packing {
    fn of(program: &Program) -> Packing {
        let type_of = program.types();
        let single = |&operand: &Operand| type_of(operand).is_some_and(|ty| ty.elements() == 1);
        let family = |instruction: &Instruction| -> Option<(Family, u64)> {
            let [out] = instruction.outs.as_slice() else { return None };
            let cost = instruction.op.elementwise()?.cost(out.dtype.ctype());
            if cost < COSTLY || out.elements() != 1 || !instruction.operands.iter().all(single) {
                return None;
            }
            let dtypes = instruction.operands.iter().filter_map(|&o| type_of(o)).map(|ty| ty.dtype).collect();
            Some(((format!("{:?}", instruction.op), dtypes, out.dtype), cost))
        };
        let families: Vec<Option<(Family, u64)>> = program.instructions.iter().map(family).collect();
        let makes_level: Vec<bool> = program
            .instructions
            .iter()
            .zip(&families)
            .map(|(instruction, family)| family.is_some() || has_barrier(&instruction.op))
            .collect();
        let maker = program.makers();
        let reads: Vec<SmallVec<[usize; 3]>> = program
            .instructions
            .iter()
            .map(|instruction| instruction.operands.iter().filter_map(|&o| maker(o)).collect())
            .collect();
        let mut earliest = vec![0; reads.len()];
        let levels = |earliest: &[usize]| {
            let mut levels: Vec<usize> = vec![];
            for (i, reads) in reads.iter().enumerate() {
                let ready = reads.iter().map(|&of| levels[of]).max().unwrap_or(0);
                levels.push((ready + usize::from(makes_level[i])).max(earliest[i]));
            }
            levels
        };
        let mut known = levels(&earliest);
        let last = known.iter().copied().max().unwrap_or(0);
        let mut latest = vec![last; reads.len()];
        for (i, reads) in reads.iter().enumerate().rev() {
            for &of in reads {
                latest[of] = latest[of].min(latest[i] - usize::from(makes_level[i]));
            }
        }
        let mut of_family: BTreeMap<&Family, Vec<usize>> = BTreeMap::new();
        for (i, family) in families.iter().enumerate() {
            if let Some((family, _)) = family {
                of_family.entry(family).or_default().push(i);
            }
        }
        // What can wait does so while more of its family come.
        for level in 1..=last {
            for members in of_family.values() {
                let now: Vec<usize> = members.iter().copied().filter(|&i| known[i] == level).collect();
                if now.iter().any(|&i| latest[i] <= level) {
                    continue;
                }
                for &i in &now {
                    let later = members.iter().map(|&other| known[other]).filter(|&at| at > level && at <= latest[i]);
                    earliest[i] = later.min().unwrap_or(earliest[i]);
                }
            }
            known = levels(&earliest);
        }
        let mut by_level: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
        for members in of_family.values() {
            let mut at: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            members.iter().for_each(|&i| at.entry(known[i]).or_default().push(i));
            for (level, members) in at {
                let chunks = members.chunks(MAX_PACKED).filter(|chunk| chunk.len() > 1).map(<[usize]>::to_vec);
                by_level.entry(level).or_default().extend(chunks);
            }
        }
        let cost = |i: usize| families[i].as_ref().map_or(0, |(_, cost)| *cost);
        let saved = |groups: &Vec<Vec<usize>>| -> u64 {
            groups.iter().map(|group| group.iter().skip(1).map(|&i| cost(i)).sum::<u64>()).sum()
        };
        let groups = by_level.into_values().filter(|groups| saved(groups) >= LEVEL_COST).flatten().collect();
        Packing { levels: known, makes_level, groups }
    }
}

/// Whether invocations wait for each other before they read the result.
fn has_barrier(op: &Op) -> bool {
    matches!(
        op,
        Op::Reduce { .. }
            | Op::Dot { .. }
            | Op::Indexing(Indexing::IndexedAdd(_) | Indexing::IndexedPut(_))
            | Op::While(_)
            | Op::Cond(_)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::program::passes::dce;
    use crate::program::{Binary, Builder, Unary};
    use crate::reference::{self, Array};
    use crate::value::Value;

    #[test]
    fn scalars_of_one_op_are_a_vector() {
        let maker = Builder::new();
        let scalars: Vec<Operand> = (0..4).map(|_| maker.input(DType::F64, &[])).collect();
        let exps: Vec<Operand> = scalars.iter().map(|&x| maker.unary(Unary::Exp, x)).collect();
        // The logarithm of an input waits for the others.
        let early = maker.unary(Unary::Log, scalars[0]);
        let late: Vec<Operand> = exps.iter().map(|&x| maker.binary(Binary::Add, x, scalars[1])).collect();
        let late: Vec<Operand> = late.iter().map(|&x| maker.unary(Unary::Log, x)).collect();
        let sum = late.iter().fold(early, |sum, &x| maker.binary(Binary::Add, sum, x));
        let program = maker.finish(&[sum, early]).unwrap();
        let packed = dce::run(&run(&program).unwrap()).unwrap();
        let lengths: Vec<(Unary, u64)> = packed
            .instructions
            .iter()
            .filter_map(|i| match i.op {
                Op::Unary(op) => Some((op, i.outs[0].elements())),
                _ => None,
            })
            .collect();
        assert_eq!(lengths, [(Unary::Exp, 4), (Unary::Log, 5)]);
        let inputs: Vec<Array> = (1..5)
            .map(|k| Array::new(&Type::new(DType::F64, &[]), std::iter::once(Value::Float(f64::from(k) * 0.7))))
            .collect();
        assert_eq!(reference::run(&packed, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
    }

    #[test]
    fn what_saves_little_stays() {
        let maker = Builder::new();
        let scalars = [maker.input(DType::F32, &[]), maker.input(DType::F32, &[])];
        let exps = scalars.map(|x| maker.unary(Unary::Exp, x));
        let program = maker.finish(&exps).unwrap();
        assert_eq!(run(&program).unwrap(), program);
    }
}
