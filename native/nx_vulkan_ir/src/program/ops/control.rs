//! Ops that run programs.

use smallvec::smallvec;

use super::kind::{Arity, Check, Class, Facts, Names, OpKind, named};
use super::rules::{f32, require};
use crate::program::control::{Branches, Loop};
use crate::program::wire::{Attr, Attrs};
use crate::program::workgroup::supports;
use crate::program::{Binary, Instruction, Op, Operand, Program, Unary, verify, workgroup};
use crate::{DType, Result, Type};

pub(super) fn names() -> Names<Op> {
    vec![
        named(
            "while",
            |_, a| Ok(Op::While(Box::new(Loop::new(a.program("condition")?, a.program("body")?)))),
            || (Op::While(Box::new(never())), [f32(&[2]), predicate()], [f32(&[2])]),
        ),
        named(
            "cond",
            |_, a| Ok(Op::Cond(Box::new(read_branches(a)?))),
            || {
                let program = gives(vec![f32(&[2])], 0);
                let branches = Branches { on_true: program.clone(), on_false: program };
                (Op::Cond(Box::new(branches)), [predicate(), f32(&[2])], [f32(&[2])])
            },
        ),
        named(
            "fused",
            |_, a| Ok(Op::Fused(Box::new(a.program("program")?))),
            || (Op::Fused(Box::new(negated_twice())), [f32(&[2])], [f32(&[2])]),
        ),
        named(
            "workgroup",
            |_, a| Ok(Op::Workgroup(Box::new(a.program("program")?))),
            || (Op::Workgroup(Box::new(gives(vec![f32(&[2])], 0))), [f32(&[2])], [f32(&[2])]),
        ),
    ]
}

fn predicate() -> Type {
    Type::new(DType::U8, &[])
}

/// A program that gives one of its inputs, for samples.
fn gives(inputs: Vec<Type>, output: u32) -> Program {
    Program { inputs, outputs: vec![Operand::Input(output)], ..Program::default() }
}

/// A loop without iterations.
fn never() -> Loop {
    let inputs = vec![f32(&[2]), predicate()];
    let less = Instruction {
        op: Op::Binary(Binary::Less),
        operands: smallvec![Operand::Input(1), Operand::Input(1)],
        outs: smallvec![predicate()],
    };
    let condition = Program { instructions: vec![less], outputs: vec![Operand::Result(0)], ..gives(inputs.clone(), 0) };
    Loop::new(condition, gives(inputs, 0))
}

fn negated_twice() -> Program {
    let negate = |operand| Instruction {
        op: Op::Unary(Unary::Negate),
        operands: smallvec![operand],
        outs: smallvec![f32(&[2])],
    };
    let instructions = vec![negate(Operand::Input(0)), negate(Operand::Result(0))];
    Program { inputs: vec![f32(&[2])], instructions, outputs: vec![Operand::Result(1)] }
}

fn read_branches(a: &Attrs<'_>) -> Result<Branches> {
    Ok(Branches { on_true: a.program("on_true")?, on_false: a.program("on_false")? })
}

/// Checks a program that takes `inputs` and gives `outs`.
fn check_program(what: &str, program: &Program, inputs: &[&Type], outs: &[Type]) -> Check {
    verify::program(program).map_err(|e| format!("{what}: {e}"))?;
    if !program.inputs.iter().eq(inputs.iter().copied()) {
        return Err(format!("{what}: takes {:?}, not {inputs:?}", program.inputs));
    }
    let found = program.output_types();
    if !found.iter().copied().eq(outs) {
        return Err(format!("{what}: gives {found:?}, not {outs:?}"));
    }
    Ok(())
}

/// A program that takes the operands and gives the results.
fn runs(body: &Program, operands: &[&Type], outs: &[Type]) -> Check {
    verify::program(body).map_err(|e| e.to_string())?;
    require(body.inputs.iter().eq(operands.iter().copied()), || {
        format!("operands {operands:?} for {:?}", body.inputs)
    })?;
    let types: Vec<Option<&Type>> = body.outputs.iter().map(|&o| body.type_of(o)).collect();
    require(types.iter().copied().eq(outs.iter().map(Some)), || format!("gives {types:?}, not {outs:?}"))
}

/// As many operands as the programs say.
fn facts(name: &'static str, class: Class, in_workgroup: bool) -> Facts {
    Facts { name, class, arity: Arity::AtLeast(0), in_workgroup }
}

impl OpKind for Loop {
    fn facts(&self) -> Facts {
        facts("while", Class::Loop, true)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("condition".to_string(), self.condition.to_attr()), ("body".to_string(), self.body.to_attr())]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let state = operands.get(..outs.len()).filter(|state| !state.is_empty());
        if !state.is_some_and(|state| state.iter().copied().eq(outs)) {
            return Err(format!("the state of {outs:?} does not begin with operands {operands:?}"));
        }
        let going_on = self.condition.output_types();
        match going_on.as_slice() {
            [one] if one.elements() == 1 && !one.dtype.is_complex() => {}
            _ => return Err(format!("condition: gives {going_on:?}, not one scalar")),
        }
        let going_on: Vec<Type> = going_on.into_iter().cloned().collect();
        check_program("condition", &self.condition, operands, &going_on)?;
        check_program("body", &self.body, operands, outs)
    }

    fn runs_in_workgroup(&self, _: &[&Type], _: &[Type]) -> bool {
        [&self.condition, &self.body].into_iter().all(supports)
    }
}

impl OpKind for Branches {
    fn facts(&self) -> Facts {
        facts("cond", Class::Branch, true)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("on_true".to_string(), self.on_true.to_attr()), ("on_false".to_string(), self.on_false.to_attr())]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let Some((predicate, captured)) = operands.split_first() else {
            return Err("needs a predicate".to_string());
        };
        if predicate.elements() != 1 || predicate.dtype.is_complex() {
            return Err(format!("a predicate of {predicate:?}"));
        }
        if outs.is_empty() {
            return Err("gives nothing".to_string());
        }
        check_program("on_true", &self.on_true, captured, outs)?;
        check_program("on_false", &self.on_false, captured, outs)
    }

    fn runs_in_workgroup(&self, _: &[&Type], _: &[Type]) -> bool {
        [&self.on_true, &self.on_false].into_iter().all(supports)
    }
}

pub(in crate::program) struct Fused<'a> {
    pub body: &'a Program,
}

impl OpKind for Fused<'_> {
    fn facts(&self) -> Facts {
        facts("fused", Class::Kernel, false)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("program".to_string(), self.body.to_attr())]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        runs(self.body, operands, outs)
    }

    fn flops(&self, _: &[&Type], _: &[Type]) -> Option<u64> {
        self.body.flops()
    }
}

pub(in crate::program) struct Workgroup<'a> {
    pub program: &'a Program,
}

impl OpKind for Workgroup<'_> {
    fn facts(&self) -> Facts {
        facts("workgroup", Class::Kernel, false)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![("program".to_string(), self.program.to_attr())]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        workgroup::check(self.program, operands, outs)
    }

    fn flops(&self, _: &[&Type], _: &[Type]) -> Option<u64> {
        self.program.flops()
    }
}
