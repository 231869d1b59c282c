//! Discrete Fourier transforms.

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{axis_attr, f32, multiplied, one};
use crate::program::attribute::Scalar;
use crate::program::wire::{Attr, Attrs};
use crate::program::{Fourier, Op};
use crate::{DType, Result, Type};

pub(super) fn names() -> Names {
    let named = |&kind: &Fourier| {
        let dtype = if kind == Fourier::Irfft { DType::F32 } else { DType::C64 };
        let op = Op::Fft { kind, axis: 1, length: 5, eps: Scalar::Float(1e-10) };
        named(kind.name(), read, move || (op.clone(), [f32(&[2, 3])], [Type::new(dtype, &[2, kind.kept(5)])]))
    };
    Fourier::ALL.iter().map(named).collect()
}

/// Operations of a discrete Fourier transform of `n` numbers, by whichever method.
pub fn flops_of_transform(n: u64) -> u64 {
    (5.0 * n as f64 * (n as f64).log2()).round() as u64
}

pub(in crate::program) struct Fft {
    pub kind: Fourier,
    pub axis: usize,
    pub length: u64,
    pub eps: Scalar,
}

fn read(name: &str, a: &Attrs<'_>) -> Result<Op> {
    let kind = Fourier::from_name(name).ok_or_else(|| a.fail("name", "a transform"))?;
    let eps = Scalar::Float(a.scalar("eps")?.real());
    Ok(Op::Fft { kind, axis: a.axis("axis")?, length: a.size("length")?, eps })
}

impl OpKind for Fft {
    fn facts(&self) -> Facts {
        Facts::alone(self.kind.name(), Class::Transform, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![
            axis_attr(self.axis),
            ("length".to_string(), Attr::Int(self.length as i64)),
            ("eps".to_string(), self.eps.attr()),
        ]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        self.kind.check(self.axis, self.length, operands[0], one(outs)?)
    }

    fn flops(&self, _: &[&Type], outs: &[Type]) -> Option<u64> {
        let out = outs.first()?;
        multiplied(&[out.elements() / (*out.shape.get(self.axis)?).max(1), flops_of_transform(self.length)])
    }
}
