//! Groups that read the same become one kernel where that saves something.

use std::collections::{BTreeMap, BTreeSet};

use super::super::clusters::Cluster;
use super::Fusion;
use crate::Type;
use crate::program::Operand;

/// Groups that share an operand are compared in pairs up to this many.
const MAX_SIBLINGS: usize = 64;

/// Of what a kernel moves, the share that makes it worth to read it together with another.
const LEAST_SAVED: u64 = 8;

/// What a kernel moves, in parts of `Joins::read_bytes`, from which a launch of its own costs no more than it gains: as
/// much as memory gives in the time of a launch.
const MUCH_MOVED: u64 = 4;

impl Fusion<'_> {
    /// Makes one group of those that read an instruction, where that is possible and saves something.
    pub(super) fn merge_readers(&mut self, at: usize) {
        let readers: Vec<usize> = self.readers[at].iter().copied().collect();
        self.merge_all(&readers);
    }

    /// Makes one kernel of groups that read the same operand.
    pub(super) fn merge_siblings(&mut self) {
        let mut sharing: BTreeMap<Operand, Vec<usize>> = BTreeMap::new();
        for (number, group) in self.groups.iter().enumerate() {
            let operands = group.iter().flat_map(|group| self.operands(group));
            operands.for_each(|operand| sharing.entry(operand).or_default().push(number));
        }
        for (_, numbers) in sharing {
            numbers.chunks(MAX_SIBLINGS).for_each(|numbers| self.merge_all(numbers));
        }
    }

    /// Makes one group of each two of these where one kernel can compute both, and is sooner done.
    fn merge_all(&mut self, groups: &[usize]) {
        for (i, &a) in groups.iter().enumerate() {
            for &b in &groups[i + 1..] {
                if self.may_merge(a, b) && self.gains_by_merging(a, b) {
                    self.merge(a, b);
                }
            }
        }
    }

    /// What a group reads of others.
    fn operands(&self, group: &Cluster) -> BTreeSet<Operand> {
        let all = group.members.iter().flat_map(|at| self.program.instructions[at].operands.iter().copied());
        all.filter(|&o| self.bodies.maker(o).is_none_or(|at| !group.members.contains(at))).collect()
    }

    /// Whether one kernel of two groups is sooner done than both: where there are many operands and results, memory is
    /// slower than with few.
    fn gains_by_merging(&self, a: usize, b: usize) -> bool {
        let (Some(one), Some(two)) = (&self.groups[a], &self.groups[b]) else { return false };
        let size_bytes = |operand: &Operand| self.bodies.ty(*operand).map_or(0, Type::size_bytes);
        let sum = |all: &mut dyn Iterator<Item = Operand>| all.map(|o| size_bytes(&o)).fold(0, u64::saturating_add);
        let operands = [one, two].map(|group| self.operands(group));
        let moved = [(one, &operands[0]), (two, &operands[1])].map(|(group, operands)| {
            let stored = group.outputs.iter().map(|at| self.bodies.result(at));
            sum(&mut operands.iter().copied().chain(stored))
        });
        let made = |operands: &BTreeSet<Operand>, by: &Cluster| {
            let is_made = |o: &Operand| self.bodies.maker(*o).is_some_and(|at| by.members.contains(at));
            sum(&mut operands.iter().copied().filter(is_made))
        };
        let shared = sum(&mut operands[0].intersection(&operands[1]).copied());
        let saved = shared.saturating_add(made(&operands[0], two)).saturating_add(made(&operands[1], one));
        let least = moved[0].min(moved[1]);
        least / MUCH_MOVED <= self.target.joins.read_bytes || saved >= least / LEAST_SAVED
    }
}
