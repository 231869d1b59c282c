//! Where the values of a machine lie between its segments: which of them need a place, and which can share one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, Word};

use super::flow::{Unit, targets};
use super::order::MachineStep;

/// Straight code, the steps that run behind it, and where it goes on.
#[derive(Debug)]
pub(super) struct Segment {
    pub label: Word,
    pub phis: Vec<Instruction>,
    pub code: Vec<Unit>,
    pub steps: Vec<MachineStep>,
    pub end: Instruction,
    /// For each segment that may follow, the values that its phis take.
    pub copies: BTreeMap<Word, Vec<(Word, Word)>>,
}

/// How a value is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    Phi,
    Code,
    Step,
}

/// A place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Register(usize),
    /// The variable of that number among those of a type.
    Variable(Word, usize),
}

/// The places of all values.
#[derive(Debug, Default)]
pub(super) struct Slots {
    made: HashMap<Word, (usize, Maker)>,
    types: HashMap<Word, Word>,
    /// The instructions that make pointers, which are made anew where they are used.
    pointers: HashMap<Word, Instruction>,
    pub of: HashMap<Word, Slot>,
    /// Values of the whole function that steps read.
    pub constants: Vec<Word>,
    pub registers: usize,
    /// Variables of each type.
    pub variables: BTreeMap<Word, usize>,
}

impl Slots {
    /// `None` where a pointer is needed that can't be made anew.
    pub fn new(segments: &[Segment], pair: Word, pointers: &HashSet<Word>, sums: bool) -> Option<Slots> {
        let mut slots = Slots::default();
        for (at, segment) in segments.iter().enumerate() {
            for inst in &segment.phis {
                slots.note(inst, at, Maker::Phi);
            }
            for inst in segment.code.iter().flat_map(|unit| &unit.code) {
                slots.note(inst, at, Maker::Code);
                if inst.result_type.is_some_and(|ty| pointers.contains(&ty)) {
                    slots.pointers.insert(inst.result_id?, inst.clone());
                }
            }
            for step in &segment.steps {
                slots.made.insert(step.result, (at, Maker::Step));
                slots.types.insert(step.result, pair);
            }
        }
        if segments
            .iter()
            .flat_map(|segment| &segment.phis)
            .any(|phi| phi.result_type.is_none_or(|ty| pointers.contains(&ty)))
        {
            return None;
        }
        let lives = Lives::of(segments, &mut slots, sums)?;
        slots.place(&lives, pair);
        Some(slots)
    }

    fn note(&mut self, inst: &Instruction, at: usize, maker: Maker) {
        if let (Some(id), Some(ty)) = (inst.result_id, inst.result_type) {
            self.made.insert(id, (at, maker));
            self.types.insert(id, ty);
        }
    }

    /// Whether code of a segment can name a value as it is.
    pub fn is_visible(&self, id: Word, at: usize) -> bool {
        match self.made.get(&id) {
            None => true,
            // The first segment is in front of all others.
            Some(&(made, Maker::Code)) => made == at || made == 0,
            Some(_) => false,
        }
    }

    /// The instruction that makes a pointer.
    pub fn pointer(&self, id: Word) -> Option<&Instruction> {
        self.pointers.get(&id)
    }

    pub fn type_of(&self, id: Word) -> Option<Word> {
        self.types.get(&id).copied()
    }

    /// Adds what a segment has to load for a value.
    fn reads_of(&self, id: Word, at: usize, read: &mut BTreeSet<Word>) -> Option<()> {
        if self.is_visible(id, at) {
            return Some(());
        }
        let Some(pointer) = self.pointers.get(&id) else {
            read.insert(id);
            return Some(());
        };
        let simple = matches!(
            pointer.class.opcode,
            Op::AccessChain
                | Op::InBoundsAccessChain
                | Op::PtrAccessChain
                | Op::Bitcast
                | Op::ConvertUToPtr
                | Op::CopyObject
        );
        if !simple {
            return None;
        }
        pointer.operands.iter().filter_map(Operand::id_ref_any).try_for_each(|id| self.reads_of(id, at, read))
    }

    /// Gives each value the first place of its type that none has which lives beside it.
    fn place(&mut self, lives: &Lives<'_>, pair: Word) {
        let apart = lives.apart();
        let friends = lives.friends();
        self.registers = self.constants.len();
        for id in lives.order() {
            if self.of.contains_key(&id) {
                continue;
            }
            let ty = self.types.get(&id).copied().unwrap_or_default();
            let slot = |number: usize| match ty == pair {
                true => Slot::Register(number + self.constants.len()),
                false => Slot::Variable(ty, number),
            };
            let taken: Vec<Slot> =
                apart.get(&id).into_iter().flatten().filter_map(|other| self.of.get(other).copied()).collect();
            let friendly = friends.get(&id).into_iter().flatten().filter_map(|other| self.of.get(other).copied());
            let chosen = friendly.chain((0..).map(slot)).find(|slot| !taken.contains(slot));
            let Some(chosen) = chosen else { continue };
            match chosen {
                Slot::Register(number) => self.registers = self.registers.max(number + 1),
                Slot::Variable(ty, number) => {
                    let count = self.variables.entry(ty).or_default();
                    *count = (*count).max(number + 1);
                }
            }
            self.of.insert(id, chosen);
        }
    }
}

/// From where to where values that need places are live, segment by segment.
struct Lives<'a> {
    segments: &'a [Segment],
    /// Whether all steps are sums, which read no factors.
    sums: bool,
    placed: BTreeSet<Word>,
    /// What code reads of others.
    reads: Vec<BTreeSet<Word>>,
    phis: Vec<Vec<Word>>,
    /// What code makes.
    made: Vec<Vec<Word>>,
    followers: Vec<Vec<usize>>,
}

impl<'a> Lives<'a> {
    /// Notes what is constant among `slots`. `None` where a pointer is needed that can't be made anew.
    fn of(segments: &'a [Segment], slots: &mut Slots, sums: bool) -> Option<Lives<'a>> {
        let mut reads: Vec<BTreeSet<Word>> = vec![];
        let mut placed: BTreeSet<Word> = BTreeSet::new();
        let mut constants: BTreeSet<Word> = BTreeSet::new();
        for (at, segment) in segments.iter().enumerate() {
            let mut read = BTreeSet::new();
            for id in segment.native_uses() {
                slots.reads_of(id, at, &mut read)?;
            }
            placed.extend(&read);
            placed.extend(segment.phis.iter().filter_map(|phi| phi.result_id));
            for step in &segment.steps {
                placed.insert(step.result);
                for id in step.reads(sums) {
                    if slots.made.contains_key(&id) {
                        placed.insert(id)
                    } else {
                        constants.insert(id)
                    };
                }
            }
            reads.push(read);
        }
        slots.constants = constants.into_iter().collect();
        let index: HashMap<Word, usize> =
            segments.iter().enumerate().map(|(at, segment)| (segment.label, at)).collect();
        let followers =
            |segment: &Segment| targets(&segment.end).iter().filter_map(|label| index.get(label).copied()).collect();
        let phis = |segment: &Segment| segment.phis.iter().filter_map(|phi| phi.result_id).collect();
        let made = |segment: &Segment| {
            let results = segment.code.iter().flat_map(|unit| unit.results.iter().copied());
            results.filter(|id| placed.contains(id)).collect()
        };
        Some(Lives {
            segments,
            sums,
            reads,
            phis: segments.iter().map(phis).collect(),
            made: segments.iter().map(made).collect(),
            followers: segments.iter().map(followers).collect(),
            placed,
        })
    }

    fn step_reads(&self, step: &MachineStep) -> impl Iterator<Item = Word> {
        step.reads(self.sums).filter(|id| self.placed.contains(id))
    }

    /// The values that are live where each segment begins.
    fn live(&self) -> Vec<BTreeSet<Word>> {
        let mut live: Vec<BTreeSet<Word>> = vec![BTreeSet::new(); self.segments.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..self.segments.len()).rev() {
                let mut now = self.after(at, &live);
                for step in self.segments[at].steps.iter().rev() {
                    now.remove(&step.result);
                    now.extend(self.step_reads(step));
                }
                now.retain(|id| !self.made[at].contains(id));
                now.extend(&self.reads[at]);
                now.retain(|id| !self.phis[at].contains(id));
                if now != live[at] {
                    live[at] = now;
                    changed = true;
                }
            }
        }
        live
    }

    /// The values that are live where a segment ends.
    fn after(&self, at: usize, live: &[BTreeSet<Word>]) -> BTreeSet<Word> {
        self.followers[at].iter().flat_map(|&next| live[next].iter().copied()).collect()
    }

    /// For each value those that can't share its place.
    fn apart(&self) -> HashMap<Word, HashSet<Word>> {
        let live = self.live();
        let mut apart: HashMap<Word, HashSet<Word>> = HashMap::new();
        let mut part = |a: Word, b: Word| {
            if a != b {
                apart.entry(a).or_default().insert(b);
                apart.entry(b).or_default().insert(a);
            }
        };
        for at in 0..self.segments.len() {
            let followers = self.followers[at].iter();
            let taken: BTreeSet<Word> = followers.flat_map(|&next| self.phis[next].iter().copied()).collect();
            let mut now = self.after(at, &live);
            now.extend(&taken);
            for step in self.segments[at].steps.iter().rev() {
                now.iter().for_each(|&id| part(step.result, id));
                now.remove(&step.result);
                now.extend(self.step_reads(step));
            }
            let written: Vec<Word> = self.made[at].iter().copied().chain(taken).collect();
            for &id in &written {
                now.iter().chain(&written).for_each(|&other| part(id, other));
            }
        }
        apart
    }

    /// Phis and what they take: a phi in the place of that needs no copy.
    fn friends(&self) -> HashMap<Word, Vec<Word>> {
        let mut friends: HashMap<Word, Vec<Word>> = HashMap::new();
        for &(phi, from) in self.segments.iter().flat_map(|segment| segment.copies.values()).flatten() {
            friends.entry(phi).or_default().push(from);
            friends.entry(from).or_default().push(phi);
        }
        friends
    }

    /// The values in the order in which they are made.
    fn order(&self) -> Vec<Word> {
        let in_segment = |(at, segment): (usize, &Segment)| {
            let steps = segment.steps.iter().map(|step| step.result);
            self.phis[at].iter().chain(&self.made[at]).copied().chain(steps).collect::<Vec<Word>>()
        };
        self.segments.iter().enumerate().flat_map(in_segment).collect()
    }
}

impl Segment {
    /// Values that code in front of the steps, and the way out, read.
    pub fn native_uses(&self) -> impl Iterator<Item = Word> {
        let labels: HashSet<Word> = targets(&self.end).into_iter().collect();
        let end = self.end.operands.iter().filter_map(Operand::id_ref_any).filter(move |id| !labels.contains(id));
        let code = self.code.iter().flat_map(|unit| unit.uses.iter().copied());
        code.chain(end).chain(self.copies.values().flatten().map(|&(_, from)| from))
    }
}
