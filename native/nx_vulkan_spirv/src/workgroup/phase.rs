//! Emits a program phase by phase.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::{Op, Program};
use nx_vulkan_ir::shape::elements;
use rspirv::spirv::Word;

use super::index::Index;
use super::memory::{Region, words};
use super::node::{Id, Node, NodeKind, Reduce, Source};
use super::plan::{Root, Spread};
use super::{Emitter, Target, invalid};
use crate::access;
use crate::reducer::ReducerCode;

/// Accumulators that one invocation combines alone at the end of a reduction. A tree would wait at a barrier for each
/// halving.
const LAST_ACCUMULATORS: u32 = 16;

/// A value whose elements are stored: to a region, or to an operand from an element on.
struct Map {
    id: Id,
    region: Option<Region>,
    output: Option<(u8, Option<Word>)>,
}

type Members = Vec<(Id, Rc<Node>)>;

/// The loops of a phase, and what they read and write.
#[derive(Default)]
struct Loops {
    /// By the number of their elements.
    maps: BTreeMap<u64, Vec<Map>>,
    rows: Vec<(Id, Rc<Node>, Region)>,
    /// Invocations of a team, and the reduction.
    teams: Vec<(u32, Id, Rc<Node>)>,
    read: Vec<Id>,
    written: Vec<Region>,
}

/// Equal reductions by teams while their phase is emitted: one of several results, or several of one result each.
struct Team {
    members: Members,
    /// Whether each result is of all elements of its operand.
    is_total: bool,
    /// Invocations of a team, and teams.
    size: u32,
    teams: u32,
    partial: Region,
    last: Option<Region>,
}

impl Team {
    fn reduction(&self) -> Result<&Reduce> {
        match self.members.first().map(|(_, node)| &node.kind) {
            Some(NodeKind::Reduction(reduction)) => Ok(reduction),
            _ => Err(invalid("no reduction".to_string())),
        }
    }
}

impl Emitter<'_, '_, '_> {
    /// Emits a program whose inputs are `inputs`. Answers its outputs, those to keep in registers or memory, or to be
    /// computed where they are read.
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
        let Loops { maps, rows, teams, read, mut written } = self.loops(roots, live)?;
        let teams = self.teams(teams)?;
        written.extend(teams.iter().map(|team| team.partial));
        self.touch(&read, &written);
        let mut seen = HashSet::new();
        for &id in &read {
            self.prepare(id, &mut seen)?;
        }
        self.lines(maps, &teams)?;
        for team in teams.iter().filter(|team| !team.is_total) {
            self.team(team)?;
        }
        for (id, node, region) in &rows {
            self.row(*id, node, *region)?;
        }
        self.combine(&teams, live)?;
        for root in roots {
            if let Root::Map(id) | Root::Reduction(id) = *root
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

    /// Gives memory to what a phase keeps, but for what teams reduce.
    fn loops(&mut self, roots: &[Root], live: &mut Vec<(Id, Region)>) -> Result<Loops> {
        let mut loops = Loops::default();
        for root in roots {
            match *root {
                Root::Map(id) => {
                    let region = self.allocate(id);
                    live.push((id, region));
                    loops.written.push(region);
                    loops.read.push(id);
                    let map = Map { id, region: Some(region), output: None };
                    loops.maps.entry(self.elements_of(id)).or_default().push(map);
                }
                Root::Output(id, k, base) => {
                    loops.read.push(id);
                    let map = Map { id, region: None, output: Some((k, base)) };
                    loops.maps.entry(self.elements_of(id)).or_default().push(map);
                }
                Root::Reduction(id) => {
                    let node = self.node_of(id).ok_or_else(|| invalid("a reduction twice".to_string()))?;
                    let NodeKind::Reduction(reduction) = &node.kind else {
                        return Err(invalid("no reduction".to_string()));
                    };
                    loops.read.extend(&node.operands);
                    // What is spread over a team was decided with costs; here only teams and rows come.
                    match self.spread(id, reduction, u64::MAX) {
                        Spread::Team(size) => loops.teams.push((size, id, node)),
                        Spread::Rows | Spread::Inline => {
                            let region = self.allocate(id);
                            live.push((id, region));
                            loops.written.push(region);
                            loops.rows.push((id, node, region));
                        }
                    }
                }
                Root::Control(_) => {}
            }
        }
        Ok(loops)
    }

    /// Values that are stored, and totals: those of as many elements in one loop.
    fn lines(&mut self, mut maps: BTreeMap<u64, Vec<Map>>, teams: &[Team]) -> Result<()> {
        let mut totals: BTreeMap<u64, Vec<(&Team, usize)>> = BTreeMap::new();
        for team in teams.iter().filter(|team| team.is_total) {
            for (member, (_, node)) in team.members.iter().enumerate() {
                totals.entry(self.elements_of(node.operands[0])).or_default().push((team, member));
            }
        }
        let lengths: BTreeSet<u64> = maps.keys().chain(totals.keys()).copied().collect();
        let mut apart = 0;
        for length in lengths {
            let maps = maps.remove(&length).unwrap_or_default();
            let folds = totals.remove(&length).unwrap_or_default();
            let (packed, maps): (Vec<Map>, Vec<Map>) = maps.into_iter().partition(|map: &Map| self.is_packed(map.id));
            self.line(self.local_id, length, &maps, &folds)?;
            for map in packed {
                // Each in a subgroup of its own, so that none waits for another.
                let subgroups = self.spec.local_size / self.spec.subgroup;
                apart = (apart + 1) % subgroups.max(1);
                let skipped = self.number(apart * self.spec.subgroup);
                let first = self.minus(self.local_id, skipped);
                self.line(first, length, &[map], &[])?;
            }
        }
        Ok(())
    }

    /// Puts reductions of one result together that are combined alike, and gives all teams memory.
    fn teams(&mut self, folds: Vec<(u32, Id, Rc<Node>)>) -> Result<Vec<Team>> {
        let reducer_of = |node: &Rc<Node>| match &node.kind {
            NodeKind::Reduction(reduction) => Some(reduction.reducer),
            _ => None,
        };
        let mut alike: Vec<(u32, bool, Members)> = vec![];
        for (size, id, node) in folds {
            let NodeKind::Reduction(reduction) = &node.kind else { return Err(invalid("no reduction".to_string())) };
            let total = self.is_total(id, reduction);
            let same = alike.iter_mut().find(|(of, is_total, members)| {
                *of == size && *is_total && total && reducer_of(&members[0].1) == Some(reduction.reducer)
            });
            match same {
                Some((_, _, members)) => members.push((id, node)),
                None => alike.push((size, total, vec![(id, node)])),
            }
        }
        let mut teams = vec![];
        for (size, is_total, members) in alike {
            let NodeKind::Reduction(reduction) = &members[0].1.kind else { continue };
            let words = reduction.reducer.accumulator_bytes() as u32 / 4;
            let count = self.elements_of(members[0].0) as u32 * members.len() as u32;
            let partial = self.memory.allocate(words, size * count);
            let last = (size > LAST_ACCUMULATORS).then(|| self.memory.allocate(words, LAST_ACCUMULATORS * count));
            teams.push(Team { members, is_total, size, teams: count, partial, last });
        }
        Ok(teams)
    }

    /// Whether a value is costly for one subgroup, made of scalars, and so of nothing that other loops compute.
    fn is_packed(&self, id: Id) -> bool {
        let Some(node) = self.node_of(id) else { return false };
        let is_stack = |&operand: &Id| {
            let stack = self.node_of(operand);
            stack.is_some_and(|stack| {
                matches!(stack.kind, NodeKind::Op(Op::Stack { .. }))
                    && stack.operands.iter().all(|&part| self.elements_of(part) == 1)
            })
        };
        self.elements_of(id) <= u64::from(self.spec.subgroup.min(self.spec.local_size))
            && matches!(&node.kind, NodeKind::Op(op) if op.elementwise().is_some())
            && node.operands.iter().any(is_stack)
            && node.operands.iter().all(|operand| is_stack(operand) || self.elements_of(*operand) == 1)
    }

    /// One loop over `length` elements from `first` on: stores of values, and reductions of all elements.
    fn line(&mut self, first: Word, length: u64, maps: &[Map], folds: &[(&Team, usize)]) -> Result<()> {
        if maps.is_empty() && folds.is_empty() {
            return Ok(());
        }
        let mut accumulators = vec![];
        for &(team, member) in folds {
            accumulators.push(self.accumulator(&team.members[member].1)?);
        }
        let size = self.spec.local_size;
        let (construct, i) = self.begin_for(first, length as u32, size);
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
        for (&(team, member), &variable) in folds.iter().zip(&accumulators) {
            let (id, node) = &team.members[member];
            let one = Index::linear(&self.shape(*id), self.local_id);
            self.accumulate(node, variable, one, i)?;
        }
        self.end_for(construct);
        for (&(team, member), &variable) in folds.iter().zip(&accumulators) {
            self.store_partial(team, team.size * member as u32, team.size, variable)?;
        }
        Ok(())
    }

    /// What each of `count` invocations has accumulated, to memory from place `first` on.
    fn store_partial(&mut self, team: &Team, first: u32, count: u32, variable: Word) -> Result<()> {
        let ty = team.reduction()?.reducer.words_type(self.code);
        let value = self.code.get(ty, variable);
        let (construct, i) = self.begin_for(self.local_id, count, self.spec.local_size);
        let first = self.number(first);
        let at = self.plus(i, first);
        self.store_words(&team.partial, at, value);
        self.end_for(construct);
        Ok(())
    }

    /// The elements of one result for each team.
    fn team(&mut self, team: &Team) -> Result<()> {
        let (id, node) = &team.members[0];
        let variable = self.accumulator(node)?;
        let (outer, i) = self.begin_for(self.local_id, team.size * team.teams, self.spec.local_size);
        let (o, lane) = self.divide(i, team.size);
        let (inner, r) = self.begin_for(lane, elements(&team.reduction()?.reduced) as u32, team.size);
        let result = Index::linear(&self.shape(*id), o);
        self.accumulate(node, variable, result, r)?;
        self.end_for(inner);
        self.end_for(outer);
        self.store_partial(team, 0, team.size * team.teams, variable)
    }

    /// One invocation for each result.
    fn row(&mut self, id: Id, node: &Rc<Node>, region: Region) -> Result<()> {
        let (construct, o) = self.begin_for(self.local_id, self.elements_of(id) as u32, self.spec.local_size);
        let value = self.reduction_alone(node, Index::linear(&self.shape(id), o))?;
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
        let mut results: Vec<Option<Region>> = vec![];
        for team in teams {
            results.push((team.teams > 1).then(|| {
                let ctype = team.members.first().map(|(id, _)| self.entries[*id].ty.dtype.ctype());
                self.memory.allocate(ctype.map_or(1, words), team.teams)
            }));
        }
        let written: Vec<Region> = results.iter().flatten().copied().collect();
        let sources: Vec<Region> = teams.iter().map(|team| team.last.unwrap_or(team.partial)).collect();
        if self.memory.touch(&sources, &written) {
            self.code.barrier();
        }
        for (team, result) in teams.iter().zip(&results) {
            let (source, count) = match &team.last {
                Some(last) => (last, LAST_ACCUMULATORS),
                None => (&team.partial, team.size),
            };
            let id = team.members[0].0;
            match result {
                Some(region) => {
                    let (construct, o) = self.begin_for(self.local_id, team.teams, size);
                    let from = self.times(o, count);
                    let value = self.combined(team, source, from, 1, count)?;
                    let value = team.reduction()?.reducer.lower(self.code, value)?;
                    self.store_region(id, region, o, value);
                    self.end_for(construct);
                }
                None => {
                    let from = self.number(0);
                    let value = self.combined(team, source, from, 1, count)?;
                    let value = team.reduction()?.reducer.lower(self.code, value)?;
                    self.entries[id].source = Source::Uniform(value);
                }
            }
        }
        for (team, result) in teams.iter().zip(&results) {
            match (result, &team.members[..]) {
                (Some(region), &[(id, _)]) => live.push((id, *region)),
                (Some(region), members) => {
                    if self.memory.touch(&[*region], &[]) {
                        self.code.barrier();
                    }
                    for (at, (id, _)) in members.iter().enumerate() {
                        let at = self.number(at as u32);
                        let value = self.load_region(*id, region, at);
                        self.entries[*id].source = Source::Uniform(value);
                    }
                    self.memory.release(*region);
                }
                (None, _) => {}
            }
        }
        for team in teams {
            self.memory.release(team.partial);
            team.last.into_iter().for_each(|last| self.memory.release(last));
        }
        Ok(())
    }

    /// `count` accumulators from place `from` on, `step` apart, combined in their order. They are few: no load waits
    /// for a sum.
    fn combined(&mut self, team: &Team, source: &Region, from: Word, step: u32, count: u32) -> Result<Word> {
        let reduction = team.reduction()?;
        let mut value = self.load_words(source, from);
        for j in 1..count {
            let offset = self.number(j * step);
            let at = self.plus(from, offset);
            let next = self.load_words(source, at);
            value = reduction.reducer.combine(self.code, value, next)?;
        }
        Ok(value)
    }
}
