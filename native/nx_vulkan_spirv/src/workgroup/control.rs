//! Loops and branches inside a workgroup: every invocation goes the same way, because what decides is the same in all
//! of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use nx_vulkan_ir::Result;
use nx_vulkan_ir::program::{Branches, Loop, Op};
use rspirv::spirv::Word;

use super::index::Index;
use super::memory::Region;
use super::node::{Entry, Id, NodeKind, Source};
use super::plan::Relation;
use super::{Emitter, Target, invalid};
use crate::access::value_type;
use crate::scalar::{self, Value};

/// Where a value lives that changes: a variable of one element, or a region.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cell {
    Variable(Word),
    Region(Region),
}

impl Emitter<'_, '_, '_> {
    /// Emits the loop or the branches whose first result is `first`.
    pub(super) fn control(&mut self, first: Id, live: &mut Vec<(Id, Region)>) -> Result<()> {
        let node = self.node_of(first).ok_or_else(|| invalid("a loop twice".to_string()))?;
        let NodeKind::Control { op, .. } = &node.kind else { return Err(invalid("no loop".to_string())) };
        let results: Vec<Id> = (first..self.entries.len())
            .take_while(|&id| match self.entries[id].node.as_deref().map(|node| &node.kind) {
                Some(NodeKind::Control { op: other, first: of }) => *of == first && Rc::ptr_eq(op, other),
                _ => false,
            })
            .collect();
        // What operands of one element are made of is computed before, once.
        self.touch(&node.operands, &[]);
        let mut seen = HashSet::new();
        for &operand in &node.operands {
            self.prepare(operand, &mut seen)?;
        }
        let cells = match &**op {
            Op::While(op) => self.repeat(op, &node.operands, &results)?,
            Op::Cond(op) => self.choose_program(op, &node.operands, &results)?,
            _ => return Err(invalid("no loop".to_string())),
        };
        for (&id, cell) in results.iter().zip(cells) {
            self.entries[id].source = match cell {
                Cell::Variable(variable) => {
                    let ty = value_type(self.code, self.entries[id].ty.dtype.ctype());
                    Source::Uniform(self.code.get(ty, variable))
                }
                Cell::Region(region) => {
                    live.push((id, region));
                    Source::Region(region)
                }
            };
        }
        Ok(())
    }

    /// Cells for values of the types of `ids`.
    pub(super) fn cells(&mut self, ids: &[Id]) -> Vec<Cell> {
        let mut cells = vec![];
        for &id in ids {
            cells.push(if self.elements_of(id) == 1 {
                let ty = value_type(self.code, self.entries[id].ty.dtype.ctype());
                Cell::Variable(self.code.variable(ty))
            } else {
                Cell::Region(self.allocate(id))
            });
        }
        cells
    }

    /// Entries that read cells.
    pub(super) fn readers(&mut self, ids: &[Id], cells: &[Cell]) -> Vec<Id> {
        ids.iter()
            .zip(cells)
            .map(|(&id, cell)| {
                let source = match *cell {
                    Cell::Variable(variable) => Source::Variable(variable),
                    Cell::Region(region) => Source::Region(region),
                };
                self.add(Entry::new(self.entries[id].ty.clone(), source))
            })
            .collect()
    }

    /// Gives cells new values, which may be computed from the old ones.
    pub(super) fn assign(&mut self, values: &[Id], cells: &[Cell]) -> Result<()> {
        self.touch(values, &[]);
        let mut seen = HashSet::new();
        for &id in values {
            self.prepare(id, &mut seen)?;
        }
        let mut scalars = vec![];
        let mut arrays: Vec<(Id, Region)> = vec![];
        for (&id, cell) in values.iter().zip(cells) {
            match *cell {
                Cell::Variable(variable) => scalars.push((variable, self.uniform(id)?)),
                // A value that is its own cell stays.
                Cell::Region(region) => match self.entries[id].source {
                    Source::Region(same) if same == region => {}
                    _ => arrays.push((id, region)),
                },
            }
        }
        // A cell that another value reads at other places must keep its old value until all are computed.
        let mut unsafe_cells: HashSet<usize> = HashSet::new();
        for &(id, _) in &arrays {
            let (mut reads, mut seen) = (HashMap::new(), HashSet::new());
            self.reads(id, true, &mut seen, &mut reads);
            for (source, aligned) in reads {
                for (k, (_, region)) in arrays.iter().enumerate() {
                    let Source::Region(read) = self.entries[source].source else { continue };
                    if read == *region && !(aligned && self.elements_of(id) == u64::from(region.elements)) {
                        unsafe_cells.insert(k);
                    }
                }
            }
        }
        let mut stores: Vec<(Id, Region)> = vec![];
        let mut copies: Vec<(Id, Region, Region)> = vec![];
        for (k, &(id, region)) in arrays.iter().enumerate() {
            if unsafe_cells.contains(&k) {
                let copy = self.allocate(id);
                stores.push((id, copy));
                copies.push((id, copy, region));
            } else {
                stores.push((id, region));
            }
        }
        self.store_all(&stores)?;
        let copied: Vec<(Id, Region)> = copies
            .iter()
            .map(|&(id, copy, region)| {
                let entry = Entry::new(self.entries[id].ty.clone(), Source::Region(copy));
                (self.add(entry), region)
            })
            .collect();
        self.store_all(&copied)?;
        copies.iter().for_each(|&(_, copy, _)| self.memory.release(copy));
        for (variable, value) in scalars {
            self.code.set(variable, value);
        }
        Ok(())
    }

    /// Stores values to regions. Those of one length are all computed at an index before any is stored there.
    fn store_all(&mut self, stores: &[(Id, Region)]) -> Result<()> {
        if stores.is_empty() {
            return Ok(());
        }
        let (ids, regions): (Vec<Id>, Vec<Region>) = stores.iter().copied().unzip();
        let mut lengths: BTreeMap<u64, Vec<(Id, Region)>> = BTreeMap::new();
        for &(id, region) in stores {
            lengths.entry(self.elements_of(id)).or_default().push((id, region));
        }
        // Each loop reads and writes the same places with the same invocations; only what came before can conflict.
        self.touch(&ids, &regions);
        for (length, stores) in lengths {
            let (construct, i) = self.begin_for(self.local_id, length as u32, self.spec.local_size);
            let mut values = vec![];
            for &(id, _) in &stores {
                let index = Index::linear(&self.shape(id), i);
                values.push(self.element(id, index)?);
            }
            for (&(id, region), value) in stores.iter().zip(values) {
                self.store_region(id, &region, i, value);
            }
            self.end_for(construct);
        }
        Ok(())
    }

    /// How the regions are read from which a value's elements come: whether always at the same position.
    fn reads(&self, id: Id, aligned: bool, seen: &mut HashSet<(Id, bool)>, found: &mut HashMap<Id, bool>) {
        if !seen.insert((id, aligned)) {
            return;
        }
        match self.entries[id].source {
            Source::Region(_) => {
                let all = found.entry(id).or_insert(true);
                *all &= aligned;
            }
            Source::Lazy => {
                let Some(node) = self.entries[id].node.clone() else { return };
                for (j, &operand) in node.operands.iter().enumerate() {
                    let same = self.relation(id, &node, j) == Relation::Same;
                    self.reads(operand, aligned && same, seen, found);
                }
            }
            Source::Port { .. } | Source::Uniform(_) | Source::Variable(_) => {}
        }
    }

    fn repeat(&mut self, op: &Loop, operands: &[Id], results: &[Id]) -> Result<Vec<Cell>> {
        let (start, captured) = operands.split_at(results.len().min(operands.len()));
        let cells = self.cells(start);
        self.assign(start, &cells)?;
        let mut state = self.readers(start, &cells);
        state.extend_from_slice(captured);
        let pausing = if op.known_trips().is_none() { self.pausing.take() } else { None };
        let saves = match &pausing {
            Some(pausing) => Some(self.resume_loop(pausing, start, &cells)?),
            None => None,
        };
        self.barrier();
        let repeat = self.code.begin_loop();
        self.enter();
        let condition = self.scope(&op.condition, &state, &[Target::Keep])?;
        let mut holds = self.predicate(condition.first().copied())?;
        if let Some(pausing) = &pausing {
            holds = self.go_on_or_pause(pausing, holds);
        }
        self.code.go_on(&repeat, holds);
        self.body(|emitter| {
            let targets = vec![Target::Keep; results.len()];
            let next = emitter.scope(&op.body, &state, &targets)?;
            emitter.assign(&next, &cells)
        })?;
        self.barrier();
        self.leave();
        self.code.end_loop(repeat);
        if let (Some(pausing), Some(saves)) = (&pausing, &saves) {
            self.save_loop(pausing, start, &cells, saves)?;
        }
        Ok(cells)
    }

    /// Emits code and frees what it kept.
    pub(super) fn body(&mut self, emit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let outer = std::mem::take(&mut self.kept);
        emit(self)?;
        for region in std::mem::replace(&mut self.kept, outer) {
            self.memory.release(region);
        }
        Ok(())
    }

    /// A bool from a scalar.
    fn predicate(&mut self, id: Option<Id>) -> Result<Word> {
        let id = id.ok_or_else(|| invalid("no condition".to_string()))?;
        self.touch(&[id], &[]);
        let value = Value { id: self.uniform(id)?, dtype: self.entries[id].ty.dtype };
        let truthy = scalar::truthy(self.code, value)?;
        Ok(scalar::is_set(self.code, truthy))
    }

    fn choose_program(&mut self, op: &Branches, operands: &[Id], results: &[Id]) -> Result<Vec<Cell>> {
        let (predicate, captured) = operands.split_first().ok_or_else(|| invalid("no predicate".to_string()))?;
        let cells = self.cells(results);
        let holds = self.predicate(Some(*predicate))?;
        self.barrier();
        let targets = vec![Target::Keep; results.len()];
        let mut branch = self.code.begin_if(holds);
        for (i, program) in [&op.on_true, &op.on_false].into_iter().enumerate() {
            if i == 1 {
                self.code.begin_else(&mut branch);
            }
            self.enter();
            self.body(|emitter| {
                let values = emitter.scope(program, captured, &targets)?;
                emitter.assign(&values, &cells)
            })?;
            self.barrier();
            self.leave();
        }
        self.code.end_if(branch);
        Ok(cells)
    }
}
