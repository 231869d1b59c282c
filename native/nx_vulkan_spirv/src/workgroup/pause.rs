//! Kernels that pause: after so much work a workgroup leaves off within a loop, and another dispatch goes on from
//! there.
//!
//! What is kept between dispatches lies in the workgroup's scratch memory: the states at the beginning of the run and,
//! within that, what the loop changes. All else that a run computes before its loop is computed again.

use nx_vulkan_ir::Result;
use rspirv::spirv::{Op, Word};
use smallvec::SmallVec;

use super::control::Cell;
use super::memory::{Region, words};
use super::node::Id;
use super::{Emitter, PROGRESS_WORDS};
use crate::access::{self, Element, value_type};
use crate::params::Param;

type Saves = SmallVec<[Region; 8]>;

/// A kernel that pauses.
#[derive(Debug, Clone)]
pub(super) struct Pausing {
    /// The run that it begins or goes on with.
    pub first: Word,
    /// Units of work, and those that are left (a variable).
    units: Word,
    left: Word,
    /// Variables, bools: whether the loop goes on from where it was left, and whether it was left in this dispatch.
    resumes: Word,
    paused: Word,
    /// Where states are kept.
    saves: Saves,
}

impl Emitter<'_, '_, '_> {
    /// Begins such a kernel, whose cells have their first values: gives them those that were left, where `from` is not
    /// 0.
    pub(super) fn resume(&mut self, from: Word, start: &[Id], cells: &[Cell]) -> Result<Pausing> {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let units = self.code.param(self.params.word(Param::Extra(4)))?;
        let [zero, one] = [0, 1].map(|number| self.number(number));
        let is_later = self.code.ids(Op::INotEqual, boolean, &[from, zero]);
        let (address, row) = self.progress();
        let next = access::load(self.code, address, Element::Raw(4), row)?;
        let begun_at = self.plus(row, one);
        let begun = access::load(self.code, address, Element::Raw(4), begun_at)?;
        let first = self.code.ids(Op::Select, uint, &[is_later, next, zero]);
        let has_begun = self.code.ids(Op::INotEqual, boolean, &[begun, zero]);
        let has_begun = self.code.ids(Op::LogicalAnd, boolean, &[is_later, has_begun]);
        let [resumes, paused] = [(); 2].map(|()| self.code.variable(boolean));
        let left = self.code.variable(uint);
        let never = self.code.ids(Op::ULessThan, boolean, &[zero, zero]);
        self.code.set(resumes, has_begun);
        self.code.set(paused, never);
        self.code.set(left, units);
        let saves = self.saves(start);
        self.where_holds(is_later, |emitter| emitter.restore(start, cells, &saves))?;
        Ok(Pausing { first, units, left, resumes, paused, saves })
    }

    /// Whether the next run begins, where one is left.
    pub(super) fn may_begin(&mut self, pausing: &Pausing, is_left: Word) -> Word {
        let boolean = self.code.linker.type_bool();
        let has_paused = self.code.get(boolean, pausing.paused);
        let goes_on = self.code.ids(Op::LogicalNot, boolean, &[has_paused]);
        let goes_on = self.code.ids(Op::LogicalAnd, boolean, &[goes_on, is_left]);
        let has_units = self.has_units(pausing);
        self.code.ids(Op::LogicalAnd, boolean, &[goes_on, has_units])
    }

    /// A run that begins is a unit of work; one that goes on was counted.
    pub(super) fn begin_run(&mut self, pausing: &Pausing) {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let [zero, one] = [0, 1].map(|number| self.number(number));
        let resumes = self.code.get(boolean, pausing.resumes);
        let cost = self.code.ids(Op::Select, uint, &[resumes, zero, one]);
        let left = self.code.get(uint, pausing.left);
        let left = self.code.u32_op(Op::ISub, left, cost);
        self.code.set(pausing.left, left);
    }

    /// Gives the cells of the loop what it left, where it does not begin. Answers where it leaves that.
    pub(super) fn resume_loop(&mut self, pausing: &Pausing, start: &[Id], cells: &[Cell]) -> Result<Saves> {
        let boolean = self.code.linker.type_bool();
        let saves = self.saves(start);
        let resumes = self.code.get(boolean, pausing.resumes);
        self.where_holds(resumes, |emitter| emitter.restore(start, cells, &saves))?;
        let zero = self.number(0);
        let never = self.code.ids(Op::ULessThan, boolean, &[zero, zero]);
        self.code.set(pausing.resumes, never);
        Ok(saves)
    }

    /// Whether an iteration of the loop, whose condition `holds` or not, comes next; notes whether it is left instead.
    pub(super) fn go_on_or_pause(&mut self, pausing: &Pausing, holds: Word) -> Word {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let has_units = self.has_units(pausing);
        let has_none = self.code.ids(Op::LogicalNot, boolean, &[has_units]);
        let pauses = self.code.ids(Op::LogicalAnd, boolean, &[holds, has_none]);
        self.code.set(pausing.paused, pauses);
        let goes_on = self.code.ids(Op::LogicalAnd, boolean, &[holds, has_units]);
        let [zero, one] = [0, 1].map(|number| self.number(number));
        let cost = self.code.ids(Op::Select, uint, &[goes_on, one, zero]);
        let left = self.code.get(uint, pausing.left);
        let left = self.code.u32_op(Op::ISub, left, cost);
        self.code.set(pausing.left, left);
        goes_on
    }

    /// Leaves what the loop changes, where it has paused.
    pub(super) fn save_loop(&mut self, pausing: &Pausing, start: &[Id], cells: &[Cell], saves: &Saves) -> Result<()> {
        let boolean = self.code.linker.type_bool();
        let has_paused = self.code.get(boolean, pausing.paused);
        self.where_holds(has_paused, |emitter| emitter.save(start, cells, saves))
    }

    /// Emits the end of a run, which there is where it has not paused.
    pub(super) fn unless_paused(&mut self, pausing: &Pausing, end: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let boolean = self.code.linker.type_bool();
        let has_paused = self.code.get(boolean, pausing.paused);
        let ends = self.code.ids(Op::LogicalNot, boolean, &[has_paused]);
        self.where_holds(ends, end)
    }

    /// The run after `run`, or that again where it has paused.
    pub(super) fn next_run(&mut self, pausing: &Pausing, run: Word) -> Word {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let has_paused = self.code.get(boolean, pausing.paused);
        let one = self.number(1);
        let next = self.code.u32_op(Op::IAdd, run, one);
        self.code.ids(Op::Select, uint, &[has_paused, run, next])
    }

    /// Ends the kernel: leaves the states and the row of progress. `run` is the variable of the next run.
    pub(super) fn leave_off(&mut self, pausing: &Pausing, start: &[Id], cells: &[Cell], run: Word) -> Result<()> {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        self.barrier();
        self.save(start, cells, &pausing.saves)?;
        let [zero, one] = [0, 1].map(|number| self.number(number));
        let has_paused = self.code.get(boolean, pausing.paused);
        let begun = self.code.ids(Op::Select, uint, &[has_paused, one, zero]);
        let left = self.code.get(uint, pausing.left);
        let done = self.code.u32_op(Op::ISub, pausing.units, left);
        let run = self.code.get(uint, run);
        let (address, row) = self.progress();
        let (construct, _) = self.begin_for(self.local_id, 1, self.spec.local_size);
        for (k, value) in [run, begun, done].into_iter().enumerate() {
            let offset = self.number(k as u32);
            let at = self.plus(row, offset);
            access::store(self.code, address, Element::Raw(4), at, value)?;
        }
        self.end_for(construct);
        Ok(())
    }

    fn has_units(&mut self, pausing: &Pausing) -> Word {
        let (uint, boolean) = (self.code.linker.type_uint(32), self.code.linker.type_bool());
        let (left, zero) = (self.code.get(uint, pausing.left), self.number(0));
        self.code.ids(Op::INotEqual, boolean, &[left, zero])
    }

    /// The operand of progress, and the first word of the workgroup's row.
    fn progress(&mut self) -> (u32, Word) {
        let address = self.params.address((self.spec.ports.len() + self.spec.outputs() + 1) as u8);
        (address, self.times(self.group, PROGRESS_WORDS as u32))
    }

    /// Scratch memory for values of the types of `ids`.
    fn saves(&mut self, ids: &[Id]) -> Saves {
        ids.iter()
            .map(|&id| {
                let words = words(self.entries[id].ty.dtype.ctype());
                self.memory.allocate_scratch(words, self.elements_of(id) as u32)
            })
            .collect()
    }

    /// Emits what runs where a condition holds, which is the same in all invocations, with barriers around.
    fn where_holds(&mut self, condition: Word, emit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.barrier();
        let branch = self.code.begin_if(condition);
        self.enter();
        self.body(emit)?;
        self.barrier();
        self.leave();
        self.code.end_if(branch);
        Ok(())
    }

    /// Copies cells, whose values are of the types of `ids`, to where they are kept.
    fn save(&mut self, ids: &[Id], cells: &[Cell], saves: &Saves) -> Result<()> {
        for ((&id, cell), save) in ids.iter().zip(cells).zip(saves) {
            let (construct, i) = self.begin_for(self.local_id, save.elements, self.spec.local_size);
            let value = match cell {
                Cell::Variable(variable) => {
                    let ty = value_type(self.code, self.entries[id].ty.dtype.ctype());
                    self.code.get(ty, *variable)
                }
                Cell::Region(region) => self.load_region(id, region, i),
            };
            self.store_region(id, save, i, value);
            self.end_for(construct);
        }
        Ok(())
    }

    fn restore(&mut self, ids: &[Id], cells: &[Cell], saves: &Saves) -> Result<()> {
        for ((&id, cell), save) in ids.iter().zip(cells).zip(saves) {
            match cell {
                Cell::Variable(variable) => {
                    let zero = self.number(0);
                    let value = self.load_region(id, save, zero);
                    self.code.set(*variable, value);
                }
                Cell::Region(region) => {
                    let (construct, i) = self.begin_for(self.local_id, save.elements, self.spec.local_size);
                    let value = self.load_region(id, save, i);
                    self.store_region(id, region, i, value);
                    self.end_for(construct);
                }
            }
        }
        Ok(())
    }
}
