//! Ops that run programs.

use super::{Arity, Check, Class, Facts, Names, OpKind, runs};
use crate::Type;
use crate::program::control::{Branches, Loop};
use crate::program::wire::Attr;
use crate::program::workgroup::supports;
use crate::program::{Op, Program, workgroup};

pub(super) fn names() -> Names {
    vec![
        ("while", |_, a| Ok(Op::While(Box::new(Loop::from_wire(a)?)))),
        ("cond", |_, a| Ok(Op::Cond(Box::new(Branches::from_wire(a)?)))),
        ("fused", |_, a| Ok(Op::Fused(Box::new(a.program("program")?)))),
        ("workgroup", |_, a| Ok(Op::Workgroup(Box::new(a.program("program")?)))),
    ]
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
        self.wire_attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        self.check_types(operands, outs)
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
        self.wire_attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        self.check_types(operands, outs)
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
