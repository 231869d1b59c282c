//! Groups of instructions that one kernel may compute, and the bodies of such kernels. Equal layers have equal groups:
//! whether there is a kernel is worked out once for all that are alike.

use std::cell::RefCell;
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::Type;
use crate::program::{Instruction, Op, Operand, Program};

/// Numbers in order. They are walked more often than they grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers(Vec<usize>);

impl Numbers {
    pub fn contains(&self, number: usize) -> bool {
        self.0.binary_search(&number).is_ok()
    }

    pub fn insert(&mut self, number: usize) {
        if let Err(at) = self.0.binary_search(&number) {
            self.0.insert(at, number);
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.0.iter().copied()
    }

    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn union(&self, other: &Numbers) -> Numbers {
        self.iter().chain(other.iter()).collect()
    }

    pub fn without(&self, other: &Numbers) -> Numbers {
        Numbers(self.iter().filter(|&number| !other.contains(number)).collect())
    }
}

impl FromIterator<usize> for Numbers {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Numbers {
        let mut numbers: Vec<usize> = numbers.into_iter().collect();
        // Runs that are in order already are merged.
        numbers.sort();
        numbers.dedup();
        Numbers(numbers)
    }
}

/// Instructions that become one kernel. What is a member of several groups is computed in each.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    pub members: Numbers,
    /// The members that others read.
    pub outputs: Numbers,
    /// What members read and the group does not compute.
    pub externals: Numbers,
    /// What members count that are costly and small, in instructions. None is a member of another group, too.
    pub costly: u64,
    /// Elements of what a member reduces, and of its result.
    pub reduces: Option<(u64, u64)>,
}

impl Cluster {
    /// The first result, and the last instruction that the group reads, where that is a later one: another result needs
    /// it.
    pub fn detour(&self) -> Option<(usize, usize)> {
        let ends = (self.outputs.first()?, self.externals.iter().next_back()?);
        (ends.0 < ends.1).then_some(ends)
    }
}

type Types<'a> = SmallVec<[Option<&'a Type>; 3]>;

/// The instructions of a program, of which groups are made.
pub struct Bodies<'a> {
    program: &'a Program,
    /// The instruction of each result.
    makers: Vec<usize>,
    /// The first result of each instruction.
    first: Vec<u32>,
    /// Instructions with the same number have the same op, and operands and results of the same types.
    alike: Vec<u32>,
    /// What was asked of groups, by what they are made of.
    known: RefCell<HashMap<Vec<u32>, bool>>,
}

impl<'a> Bodies<'a> {
    pub fn new(program: &'a Program) -> Bodies<'a> {
        let (mut makers, mut first) = (Vec::new(), Vec::new());
        for (at, instruction) in program.instructions.iter().enumerate() {
            first.push(makers.len() as u32);
            makers.extend(instruction.outs.iter().map(|_| at));
        }
        let mut bodies = Bodies { program, makers, first, alike: Vec::new(), known: RefCell::default() };
        let mut numbers: HashMap<(&Op, Types<'_>, &[Type]), u32> = HashMap::with_capacity(program.instructions.len());
        let alike = program.instructions.iter().map(|instruction| {
            let operands: Types<'_> = instruction.operands.iter().map(|&operand| bodies.ty(operand)).collect();
            let next = numbers.len() as u32;
            *numbers.entry((&instruction.op, operands, &instruction.outs)).or_insert(next)
        });
        bodies.alike = alike.collect();
        bodies
    }

    pub fn ty(&self, operand: Operand) -> Option<&'a Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(r) => {
                let at = *self.makers.get(r as usize)?;
                self.program.instructions[at].outs.get((r - self.first[at]) as usize)
            }
        }
    }

    /// The first result of an instruction.
    pub fn result(&self, at: usize) -> Operand {
        Operand::Result(self.first[at])
    }

    pub fn results(&self, at: usize) -> impl Iterator<Item = Operand> {
        let first = self.first[at];
        (first..first + self.program.instructions[at].outs.len() as u32).map(Operand::Result)
    }

    pub fn maker(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::Input(_) => None,
            Operand::Result(r) => self.makers.get(r as usize).copied(),
        }
    }

    /// The instructions that one reads.
    pub fn sources(&self, at: usize) -> impl Iterator<Item = usize> {
        self.program.instructions[at].operands.iter().filter_map(|&o| self.maker(o))
    }

    /// Makes some instructions members.
    pub fn insert(&self, cluster: &mut Cluster, joining: &[usize]) {
        joining.iter().for_each(|&at| cluster.members.insert(at));
        let read = joining.iter().flat_map(|&at| self.sources(at)).collect();
        cluster.externals = cluster.externals.union(&read).without(&cluster.members);
    }

    /// What `ask` says of a group's body, which is the same for all groups with this body.
    pub fn answer(&self, group: &Cluster, ask: impl FnOnce(&Program) -> bool) -> bool {
        let key = self.key(group);
        if let Some(&known) = self.known.borrow().get(&key) {
            return known;
        }
        let answer = self.body(group).is_some_and(|(body, _)| ask(&body));
        self.known.borrow_mut().insert(key, answer);
        answer
    }

    /// Calls `member` with each member, and what says of its operands where the body finds them; answers what the body
    /// takes.
    fn walk(&self, group: &Cluster, mut member: impl FnMut(usize, &[Operand])) -> Vec<Operand> {
        let mut taken: Vec<Operand> = Vec::new();
        let mut operands: SmallVec<[Operand; 3]> = SmallVec::new();
        for at in group.members.iter() {
            operands.clear();
            for &operand in &self.program.instructions[at].operands {
                // Members are in order, and each has one result.
                let place = self.maker(operand).and_then(|maker| group.members.0.binary_search(&maker).ok());
                operands.push(match place {
                    Some(result) => Operand::Result(result as u32),
                    None => {
                        let input = taken.iter().position(|known| *known == operand).unwrap_or(taken.len());
                        if input == taken.len() {
                            taken.push(operand);
                        }
                        Operand::Input(input as u32)
                    }
                });
            }
            member(at, &operands);
        }
        taken
    }

    /// The places of a group's results among its members.
    fn outputs(&self, group: &Cluster) -> impl Iterator<Item = u32> {
        group.outputs.iter().filter_map(|at| group.members.0.binary_search(&at).ok()).map(|place| place as u32)
    }

    /// What says all of a group's body: the kinds of its members, where each finds its operands, and the results.
    fn key(&self, group: &Cluster) -> Vec<u32> {
        let mut key = Vec::with_capacity(4 * group.members.len());
        self.walk(group, |at, operands| {
            key.push(self.alike[at]);
            key.extend(operands.iter().map(|operand| match *operand {
                Operand::Input(i) => 2 * i,
                Operand::Result(r) => 2 * r + 1,
            }));
        });
        key.push(u32::MAX);
        key.extend(self.outputs(group));
        key
    }

    /// A group as a program, and the operands that it takes.
    pub fn body(&self, group: &Cluster) -> Option<(Program, Vec<Operand>)> {
        let mut body = Program::default();
        let operands = self.walk(group, |at, operands| {
            let Instruction { op, outs, .. } = &self.program.instructions[at];
            body.instructions.push(Instruction { op: op.clone(), operands: operands.into(), outs: outs.clone() });
        });
        body.inputs = operands.iter().map(|&operand| self.ty(operand).cloned()).collect::<Option<_>>()?;
        body.outputs = self.outputs(group).map(Operand::Result).collect();
        Some((body, operands))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::DType;
    use crate::program::Builder;

    /// A group of these instructions with these results.
    fn group(bodies: &Bodies<'_>, members: &[usize], outputs: &[usize]) -> Cluster {
        let mut group = Cluster { outputs: outputs.iter().copied().collect(), ..Cluster::default() };
        bodies.insert(&mut group, members);
        group
    }

    #[test]
    fn equal_layers_are_worked_out_once() {
        let b = Builder::new();
        let wide = b.input(DType::F32, &[64]);
        let narrow = b.input(DType::F32, &[32]);
        // Two instructions each: 0 and 1, 2 and 3, ...
        let layer = |x| b.tanh(b.sin(x));
        let outputs = [layer(layer(layer(wide))), layer(narrow), b.multiply(wide, wide), b.multiply(narrow, narrow)];
        let program = b.finish(&outputs).unwrap();
        let bodies = Bodies::new(&program);
        let asked = Cell::new(0);
        let ask = |group: &Cluster| {
            bodies.answer(group, |body| {
                asked.set(asked.get() + 1);
                body.instructions.len() == 2
            })
        };
        for first in [0, 2, 4] {
            let layer = group(&bodies, &[first, first + 1], &[first + 1]);
            assert_eq!(layer.externals.iter().count(), usize::from(first > 0));
            assert!(ask(&layer));
        }
        assert_eq!(asked.get(), 1);
        // Other types, other results, and operands that are the same one are another body.
        let others = [
            group(&bodies, &[6, 7], &[7]),
            group(&bodies, &[0, 1], &[0, 1]),
            group(&bodies, &[8], &[8]),
            group(&bodies, &[9], &[9]),
            group(&bodies, &[1, 2], &[2]),
        ];
        let answers = others.map(|group| ask(&group));
        assert_eq!((answers, asked.get()), ([true, true, false, false, true], 6));
    }

    #[test]
    fn a_detour_ends_in_what_is_read_last() {
        let b = Builder::new();
        let x = b.input(DType::F32, &[64]);
        let early = b.sin(x);
        let between = b.cos(early);
        let late = b.tanh(between);
        let program = b.finish(&[early, late]).unwrap();
        let bodies = Bodies::new(&program);
        assert_eq!(group(&bodies, &[0, 2], &[0, 2]).detour(), Some((0, 1)));
        assert_eq!(group(&bodies, &[1, 2], &[1, 2]).detour(), None);
        assert_eq!(group(&bodies, &[0, 1, 2], &[0, 2]).detour(), None);
    }
}
