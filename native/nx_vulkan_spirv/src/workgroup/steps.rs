//! A program that runs again and again, as many times as parameters say, and keeps what each run gives.

use nx_vulkan_ir::{DType, Result, Type};
use rspirv::spirv::{Op, Word};
use smallvec::SmallVec;

use super::index::Index;
use super::node::{Entry, Id, Source};
use super::{Emitter, Target, invalid};
use crate::access::{self, Element};
use crate::params::Param;

impl Emitter<'_, '_, '_> {
    pub(super) fn steps(&mut self, states: usize, begins: bool, pauses: bool) -> Result<()> {
        let program = self.program;
        let Some((counter, types)) = program.inputs.split_first() else {
            return Err(invalid("no counter".to_string()));
        };
        if *counter != Type::new(DType::U32, &[]) || types.len() < states || program.outputs.len() < states {
            return Err(invalid(format!("{states} states of {} inputs", types.len())));
        }
        let inputs = self.inputs(types)?;
        let [kept, from, to] = [0, 2, 3].map(|k| self.code.param(self.params.word(Param::Extra(k))));
        let (kept, from, to) = (kept?, from?, to?);
        let (start, fixed) = inputs.split_at(states);
        let cells = self.cells(start);
        self.assign(start, &cells)?;
        let uint = self.code.linker.type_uint(32);
        let variable = self.code.variable(uint);
        let pausing = if pauses { Some(self.resume(from, start, &cells)?) } else { None };
        self.code.set(variable, pausing.as_ref().map_or(from, |pausing| pausing.first));
        let state = self.readers(start, &cells);
        self.barrier();
        let repeat = self.code.begin_loop();
        self.enter();
        let step = self.code.get(uint, variable);
        let boolean = self.code.linker.type_bool();
        let mut going_on = self.code.ids(Op::ULessThan, boolean, &[step, to]);
        if let Some(pausing) = &pausing {
            going_on = self.may_begin(pausing, going_on);
        }
        self.code.go_on(&repeat, going_on);
        if let Some(pausing) = &pausing {
            self.begin_run(pausing);
        }
        let counted = self.add(Entry::new(counter.clone(), Source::Uniform(step)));
        let inputs: SmallVec<[Id; 8]> = std::iter::once(counted).chain(state).chain(fixed.iter().copied()).collect();
        self.body(|emitter| {
            let targets = vec![Target::Keep; program.outputs.len()];
            emitter.pausing = pausing.clone();
            let outputs = emitter.scope(program, &inputs, &targets)?;
            let end = |emitter: &mut Self| {
                emitter.keep_step(&outputs, step, kept, begins)?;
                emitter.assign(&outputs[..states], &cells)
            };
            match &pausing {
                Some(pausing) => emitter.unless_paused(pausing, end),
                None => end(emitter),
            }
        })?;
        self.barrier();
        self.leave();
        let next = match &pausing {
            Some(pausing) => self.next_run(pausing, step),
            None => {
                let one = self.number(1);
                self.code.u32_op(Op::IAdd, step, one)
            }
        };
        self.code.set(variable, next);
        self.code.end_loop(repeat);
        match &pausing {
            Some(pausing) => self.leave_off(pausing, start, &cells, variable),
            None => Ok(()),
        }
    }

    /// Writes outputs of run `step` to their place among `kept` rows, unless it is the beginning.
    fn keep_step(&mut self, outputs: &[Id], step: Word, kept: Word, begins: bool) -> Result<()> {
        self.touch(outputs, &[]);
        let mut seen = std::collections::HashSet::new();
        for &id in outputs {
            self.prepare(id, &mut seen)?;
        }
        let branch = begins.then(|| {
            let (boolean, zero) = (self.code.linker.type_bool(), self.number(0));
            let later = self.code.ids(Op::INotEqual, boolean, &[step, zero]);
            self.code.begin_if(later)
        });
        self.enter();
        let rows = self.code.u32_op(Op::IMul, self.group, kept);
        let mut row = self.code.u32_op(Op::IAdd, rows, step);
        if begins {
            let one = self.number(1);
            row = self.code.u32_op(Op::ISub, row, one);
        }
        let mut lengths: std::collections::BTreeMap<u64, Vec<(usize, Id)>> = Default::default();
        for (k, &id) in outputs.iter().enumerate() {
            lengths.entry(self.elements_of(id)).or_default().push((self.spec.ports.len() + k, id));
        }
        for (length, outputs) in lengths {
            let base = self.times(row, length as u32);
            let (construct, i) = self.begin_for(self.local_id, length as u32, self.spec.local_size);
            let at = self.plus(base, i);
            for (k, id) in outputs {
                let index = Index::linear(&self.shape(id), i);
                let value = self.element(id, index)?;
                let address = self.params.address(k as u8);
                let element: Element = self.stored(id);
                access::store(self.code, address, element, at, value)?;
            }
            self.end_for(construct);
        }
        self.leave();
        if let Some(branch) = branch {
            self.code.end_if(branch);
        }
        Ok(())
    }
}
