//! Variables, branches, loops, barriers and shared memory in generated code.

use std::collections::HashMap;

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{LoopControl, MemorySemantics, Op, Scope, SelectionControl, StorageClass, Word};

use super::link::{Code, label_of};
use super::magnitudes::Known;

/// What code outside a construct may use, to be restored after it: definitions inside don't reach beyond.
type Outer = (HashMap<u32, Word>, HashMap<(u32, Word, bool), Word>, HashMap<Word, Known>);

/// An `if` whose code is being emitted.
#[derive(Debug)]
pub struct Branch {
    otherwise: Word,
    merge: Word,
    outer: Outer,
    in_else: bool,
}

/// A loop whose code is being emitted.
#[derive(Debug)]
pub struct Repeat {
    header: Word,
    next: Word,
    merge: Word,
    outer: Outer,
}

impl Code<'_, '_> {
    fn push(&mut self, opcode: Op, operands: Vec<Operand>) {
        self.instructions.push(Instruction::new(opcode, None, None, operands));
    }

    fn branch(&mut self, to: Word) {
        self.push(Op::Branch, vec![Operand::IdRef(to)]);
    }

    fn label(&mut self, id: Word) {
        self.instructions.push(label_of(id));
    }

    fn outer(&self) -> Outer {
        (self.params.clone(), self.bases.clone(), self.known.clone())
    }

    fn restore(&mut self, outer: Outer) {
        (self.params, self.bases, self.known) = outer;
    }

    /// A variable of the function, without a value.
    pub fn variable(&mut self, ty: Word) -> Word {
        let pointer = self.linker.type_pointer(StorageClass::Function, ty);
        let id = self.linker.fresh();
        let class = vec![Operand::StorageClass(StorageClass::Function)];
        self.variables.push(Instruction::new(Op::Variable, Some(pointer), Some(id), class));
        id
    }

    /// A variable of the function with `count` elements.
    pub fn array(&mut self, element: Word, count: u32) -> Word {
        let array = self.linker.type_array(element, count);
        self.variable(array)
    }

    /// Where an element of such a variable is.
    pub fn array_place(&mut self, array: Word, element: Word, index: Word) -> Word {
        let pointer = self.linker.type_pointer(StorageClass::Function, element);
        self.ids(Op::AccessChain, pointer, &[array, index])
    }

    /// Reads a variable.
    pub fn get(&mut self, ty: Word, variable: Word) -> Word {
        self.ids(Op::Load, ty, &[variable])
    }

    /// Writes a variable.
    pub fn set(&mut self, variable: Word, value: Word) {
        self.push(Op::Store, vec![Operand::IdRef(variable), Operand::IdRef(value)]);
    }

    /// Begins what runs where `condition`, a bool, is true.
    pub fn begin_if(&mut self, condition: Word) -> Branch {
        let [then, otherwise, merge] = [(); 3].map(|()| self.linker.fresh());
        self.push(Op::SelectionMerge, vec![Operand::IdRef(merge), Operand::SelectionControl(SelectionControl::NONE)]);
        self.push(Op::BranchConditional, [condition, then, otherwise].map(Operand::IdRef).to_vec());
        self.label(then);
        Branch { otherwise, merge, outer: self.outer(), in_else: false }
    }

    /// Begins what runs where the condition is false.
    pub fn begin_else(&mut self, branch: &mut Branch) {
        self.branch(branch.merge);
        self.restore(branch.outer.clone());
        self.label(branch.otherwise);
        branch.in_else = true;
    }

    /// Ends the construct.
    pub fn end_if(&mut self, mut branch: Branch) {
        if !branch.in_else {
            self.begin_else(&mut branch);
        }
        self.branch(branch.merge);
        self.restore(branch.outer);
        self.label(branch.merge);
    }

    /// Begins a loop with the code that computes whether to go on.
    pub fn begin_loop(&mut self) -> Repeat {
        let [header, check, next, merge] = [(); 4].map(|()| self.linker.fresh());
        self.branch(header);
        self.label(header);
        self.push(
            Op::LoopMerge,
            vec![Operand::IdRef(merge), Operand::IdRef(next), Operand::LoopControl(LoopControl::DONT_UNROLL)],
        );
        self.branch(check);
        self.label(check);
        Repeat { header, next, merge, outer: self.outer() }
    }

    /// Leaves the loop unless `condition`, a bool, is true.
    pub fn go_on(&mut self, repeat: &Repeat, condition: Word) {
        let body = self.linker.fresh();
        self.push(Op::BranchConditional, [condition, body, repeat.merge].map(Operand::IdRef).to_vec());
        self.label(body);
    }

    /// Ends the loop: it goes on from its beginning.
    pub fn end_loop(&mut self, repeat: Repeat) {
        self.branch(repeat.next);
        self.label(repeat.next);
        self.branch(repeat.header);
        self.restore(repeat.outer);
        self.label(repeat.merge);
    }

    /// Waits for the whole workgroup, which then sees what each invocation wrote to shared memory and to buffers.
    pub fn barrier(&mut self) {
        let semantics =
            MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY | MemorySemantics::UNIFORM_MEMORY;
        let scope = self.linker.const_u32(Scope::Workgroup as u32);
        let semantics = self.linker.const_u32(semantics.bits());
        self.push(Op::ControlBarrier, [scope, scope, semantics].map(Operand::IdRef).to_vec());
    }

    fn shared_pointer(&mut self, array: Word, element: Word, index: Word) -> Word {
        let pointer = self.linker.type_pointer(StorageClass::Workgroup, element);
        self.ids(Op::AccessChain, pointer, &[array, index])
    }

    /// Element `index` of an array in shared memory.
    pub fn load_shared(&mut self, array: Word, element: Word, index: Word) -> Word {
        let pointer = self.shared_pointer(array, element, index);
        self.ids(Op::Load, element, &[pointer])
    }

    /// Writes an element of a shared array.
    pub fn store_shared(&mut self, array: Word, element: Word, index: Word, value: Word) {
        let pointer = self.shared_pointer(array, element, index);
        self.push(Op::Store, vec![Operand::IdRef(pointer), Operand::IdRef(value)]);
    }
}
