//! Emits a program phase by phase.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use rspirv::spirv::Word;

use super::index::Index;
use super::memory::{Region, words};
use super::node::{Fold, Id, Kind, Node, Source};
use super::plan::{Root, Spread};
use super::{Emitter, Target, invalid};
use crate::Result;
use crate::codegen::access;
use crate::program::Program;
use crate::shape::elements;

/// Accumulators that one invocation combines alone at the end of a reduction. A tree would wait at a barrier for each halving.
const LAST_ACCUMULATORS: u32 = 16;

/// A value whose elements are stored: to a region, or to an operand from an element on.
struct Map {
    id: Id,
    region: Option<Region>,
    output: Option<(u8, Option<Word>)>,
}

/// A reduction by teams while its phase is emitted.
struct Team {
    id: Id,
    node: Rc<Node>,
    /// Invocations of a team, and teams.
    size: u32,
    teams: u32,
    partial: Region,
    last: Option<Region>,
}

impl Emitter<'_, '_, '_> {
    /// Emits a program whose inputs are `inputs`. Answers its outputs, those to keep in registers or memory, or to be computed
    /// where they are read.
    pub(super) fn scope(&mut self, program: &Program, inputs: &[Id], targets: &[Target]) -> Result<Vec<Id>> {
        let first = self.entries.len();
        let results = self.build(program, inputs)?;
        let outputs: Vec<Id> =
            program.outputs.iter().map(|&o| Self::find(o, inputs, &results)).collect::<Result<_>>()?;
        let plan = self.plan(first, &outputs, targets);
        let mut live: Vec<(Id, Region)> = vec![];
        for (number, roots) in plan.phases.iter().enumerate() {
            self.phase(roots, &mut live)?;
            live.retain(|(id, region)| {
                let dead = matches!(plan.last_use.get(id), Some(Some(last)) if *last <= number);
                if dead {
                    self.memory.release(*region);
                }
                !dead
            });
        }
        self.kept.extend(live.into_iter().map(|(_, region)| region));
        for (&id, target) in outputs.iter().zip(targets) {
            if matches!(target, Target::Keep) && self.elements_of(id) == 1 {
                self.touch(&[id], &[]);
                self.uniform(id)?;
            }
        }
        Ok(outputs)
    }

    /// The value of one element, in a register of every invocation.
    pub(super) fn uniform(&mut self, id: Id) -> Result<Word> {
        let zero = self.number(0);
        let index = Index::linear(&self.shape(id), zero);
        self.element(id, index)
    }

    /// Computes values of one element that `id` reads, so that loops need not.
    pub(super) fn prepare(&mut self, id: Id, seen: &mut HashSet<Id>) -> Result<()> {
        if !seen.insert(id) {
            return Ok(());
        }
        let Some(node) = self.node_of(id) else {
            if self.elements_of(id) == 1 {
                self.uniform(id)?;
            }
            return Ok(());
        };
        if self.elements_of(id) == 1 {
            self.uniform(id)?;
            return Ok(());
        }
        node.operands.iter().try_for_each(|&operand| self.prepare(operand, seen))
    }

    pub(super) fn allocate(&mut self, id: Id) -> Region {
        let ctype = self.entries[id].ty.dtype.ctype();
        self.memory.allocate(words(ctype), self.elements_of(id) as u32)
    }

    /// Notes what is read and written next, and waits for the workgroup where it must.
    pub(super) fn touch(&mut self, read: &[Id], writes: &[Region]) {
        let mut found = vec![];
        let mut seen = HashSet::new();
        for &id in read {
            self.sources(id, &mut seen, &mut found);
        }
        let reads: Vec<Region> = found
            .iter()
            .filter_map(|&id| match self.entries[id].source {
                Source::Region(region) => Some(region),
                _ => None,
            })
            .collect();
        if self.memory.touch(&reads, writes) {
            self.code.barrier();
        }
    }

    fn phase(&mut self, roots: &[Root], live: &mut Vec<(Id, Region)>) -> Result<()> {
        let mut maps: BTreeMap<u64, Vec<Map>> = BTreeMap::new();
        let mut rows: Vec<(Id, Rc<Node>, Region)> = vec![];
        let mut teams: Vec<Team> = vec![];
        let (mut read, mut written) = (vec![], vec![]);
        for root in roots {
            match *root {
                Root::Map(id) => {
                    let region = self.allocate(id);
                    live.push((id, region));
                    written.push(region);
                    read.push(id);
                    maps.entry(self.elements_of(id)).or_default().push(Map { id, region: Some(region), output: None });
                }
                Root::Output(id, k, base) => {
                    read.push(id);
                    maps.entry(self.elements_of(id)).or_default().push(Map {
                        id,
                        region: None,
                        output: Some((k, base)),
                    });
                }
                Root::Fold(id) => {
                    let node = self.node_of(id).ok_or_else(|| invalid("a reduction twice".to_string()))?;
                    let Kind::Fold(fold) = &node.kind else { return Err(invalid("no reduction".to_string())) };
                    read.extend(&node.operands);
                    // What is spread over a team was decided with costs; here only teams and rows come.
                    match self.spread(id, fold, u64::MAX) {
                        Spread::Team(size) => {
                            let teams_of = self.elements_of(id) as u32;
                            let words = fold.spec.accumulator_bytes() as u32 / 4;
                            let partial = self.memory.allocate(words, size * teams_of);
                            let last = (size > LAST_ACCUMULATORS)
                                .then(|| self.memory.allocate(words, LAST_ACCUMULATORS * teams_of));
                            written.push(partial);
                            teams.push(Team { id, node, size, teams: teams_of, partial, last });
                        }
                        Spread::Rows | Spread::Inline => {
                            let region = self.allocate(id);
                            live.push((id, region));
                            written.push(region);
                            rows.push((id, node, region));
                        }
                    }
                }
                Root::Control(_) => {}
            }
        }
        self.touch(&read, &written);
        let mut seen = HashSet::new();
        for &id in &read {
            self.prepare(id, &mut seen)?;
        }
        let (total, partly): (Vec<Team>, Vec<Team>) = teams.into_iter().partition(|team| match &team.node.kind {
            Kind::Fold(fold) => self.is_total(team.id, fold),
            _ => false,
        });
        let mut by_length: BTreeMap<u64, Vec<&Team>> = BTreeMap::new();
        for team in &total {
            by_length.entry(self.elements_of(team.node.operands[0])).or_default().push(team);
        }
        let lengths: std::collections::BTreeSet<u64> = maps.keys().chain(by_length.keys()).copied().collect();
        for length in lengths {
            let maps = maps.remove(&length).unwrap_or_default();
            let folds = by_length.remove(&length).unwrap_or_default();
            self.line(length, &maps, &folds)?;
        }
        for team in &partly {
            self.team(team)?;
        }
        for (id, node, region) in &rows {
            self.row(*id, node, *region)?;
        }
        let teams: Vec<Team> = total.into_iter().chain(partly).collect();
        self.combine(&teams, live)?;
        for root in roots {
            if let Root::Map(id) | Root::Fold(id) = *root
                && let Some((_, region)) = live.iter().find(|(of, _)| *of == id)
            {
                self.entries[id].source = Source::Region(*region);
            }
        }
        for root in roots {
            if let Root::Control(first) = *root {
                self.control(first, live)?;
            }
        }
        Ok(())
    }

    /// One loop over `length` elements: stores of values, and reductions of all elements.
    fn line(&mut self, length: u64, maps: &[Map], folds: &[&Team]) -> Result<()> {
        let mut accumulators = vec![];
        for team in folds {
            accumulators.push(self.accumulator(&team.node)?);
        }
        let size = self.spec.local_size;
        let (construct, i) = self.begin_for(self.local_id, length as u32, size);
        let mut values = vec![];
        for map in maps {
            let index = Index::linear(&self.shape(map.id), i);
            values.push(self.element(map.id, index)?);
        }
        for (Map { id, region, output }, value) in maps.iter().zip(values) {
            if let Some(region) = region {
                self.store_region(*id, region, i, value);
            }
            if let Some((k, base)) = *output {
                let at = base.map_or(i, |base| self.plus(base, i));
                let (address, element) = (self.params.address(k), self.stored(*id));
                access::store(self.code, address, element, at, value)?;
            }
        }
        for (team, &variable) in folds.iter().zip(&accumulators) {
            let one = Index::linear(&self.shape(team.id), self.local_id);
            self.accumulate(&team.node, variable, one, i)?;
        }
        self.end_for(construct);
        for (team, &variable) in folds.iter().zip(&accumulators) {
            self.store_partial(team, variable)?;
        }
        Ok(())
    }

    /// What each invocation has accumulated, to memory.
    fn store_partial(&mut self, team: &Team, variable: Word) -> Result<()> {
        let Kind::Fold(fold) = &team.node.kind else { return Ok(()) };
        let ty = fold.spec.words_type(self.code);
        let value = self.code.get(ty, variable);
        let (construct, i) = self.begin_for(self.local_id, team.size * team.teams, self.spec.local_size);
        self.store_words(&team.partial, i, value);
        self.end_for(construct);
        Ok(())
    }

    /// The elements of one result for each team.
    fn team(&mut self, team: &Team) -> Result<()> {
        let Kind::Fold(fold) = &team.node.kind else { return Ok(()) };
        let variable = self.accumulator(&team.node)?;
        let (outer, id) = self.begin_for(self.local_id, team.size * team.teams, self.spec.local_size);
        let (o, lane) = self.divide(id, team.size);
        let (inner, r) = self.begin_for(lane, elements(&fold.reduced) as u32, team.size);
        let result = Index::linear(&self.shape(team.id), o);
        self.accumulate(&team.node, variable, result, r)?;
        self.end_for(inner);
        self.end_for(outer);
        self.store_partial(team, variable)
    }

    /// One invocation for each result.
    fn row(&mut self, id: Id, node: &Rc<Node>, region: Region) -> Result<()> {
        let (construct, o) = self.begin_for(self.local_id, self.elements_of(id) as u32, self.spec.local_size);
        let value = self.fold_alone(node, Index::linear(&self.shape(id), o))?;
        self.store_region(id, &region, o, value);
        self.end_for(construct);
        Ok(())
    }

    /// The accumulators of teams become results.
    fn combine(&mut self, teams: &[Team], live: &mut Vec<(Id, Region)>) -> Result<()> {
        if teams.is_empty() {
            return Ok(());
        }
        let partials: Vec<Region> = teams.iter().map(|team| team.partial).collect();
        let lasts: Vec<Region> = teams.iter().filter_map(|team| team.last).collect();
        if self.memory.touch(&partials, &lasts) {
            self.code.barrier();
        }
        let size = self.spec.local_size;
        for team in teams {
            let Some(last) = team.last else { continue };
            let (construct, i) = self.begin_for(self.local_id, LAST_ACCUMULATORS * team.teams, size);
            let (o, lane) = self.divide(i, LAST_ACCUMULATORS);
            let from = self.times(o, team.size);
            let from = self.plus(from, lane);
            let value = self.combined(team, &team.partial, from, LAST_ACCUMULATORS, team.size / LAST_ACCUMULATORS)?;
            self.store_words(&last, i, value);
            self.end_for(construct);
        }
        let results: Vec<Option<Region>> = teams
            .iter()
            .map(|team| {
                let region = (team.teams > 1).then(|| self.allocate(team.id))?;
                live.push((team.id, region));
                Some(region)
            })
            .collect();
        let written: Vec<Region> = results.iter().flatten().copied().collect();
        if self.memory.touch(&lasts, &written) {
            self.code.barrier();
        }
        for (team, result) in teams.iter().zip(&results) {
            let Kind::Fold(fold) = &team.node.kind else { continue };
            let (source, count) = match &team.last {
                Some(last) => (last, LAST_ACCUMULATORS),
                None => (&team.partial, team.size),
            };
            match result {
                Some(region) => {
                    let (construct, o) = self.begin_for(self.local_id, team.teams, size);
                    let from = self.times(o, count);
                    let value = self.combined(team, source, from, 1, count)?;
                    let value = fold.spec.lower(self.code, value)?;
                    self.store_region(team.id, region, o, value);
                    self.end_for(construct);
                }
                None => {
                    let from = self.number(0);
                    let value = self.combined(team, source, from, 1, count)?;
                    let value = fold.spec.lower(self.code, value)?;
                    self.entries[team.id].source = Source::Uniform(value);
                }
            }
        }
        for team in teams {
            self.memory.release(team.partial);
            team.last.into_iter().for_each(|last| self.memory.release(last));
        }
        Ok(())
    }

    /// `count` accumulators from place `from` on, `step` apart, combined in their order.
    fn combined(&mut self, team: &Team, source: &Region, from: Word, step: u32, count: u32) -> Result<Word> {
        let Kind::Fold(fold): &Kind = &team.node.kind else { return Err(invalid("no reduction".to_string())) };
        let fold: &Fold = fold;
        let ty = fold.spec.words_type(self.code);
        let variable = self.code.variable(ty);
        let value = self.load_words(source, from);
        self.code.set(variable, value);
        let one = self.number(1);
        let (construct, j) = self.begin_for(one, count, 1);
        let offset = self.times(j, step);
        let at = self.plus(from, offset);
        let next = self.load_words(source, at);
        let old = self.code.get(ty, variable);
        let value = fold.spec.combine(self.code, old, next)?;
        self.code.set(variable, value);
        self.end_for(construct);
        Ok(self.code.get(ty, variable))
    }
}
