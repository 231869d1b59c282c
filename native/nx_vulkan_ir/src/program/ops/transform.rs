//! Discrete Fourier transforms.

use super::kind::{Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{axis_attr, f32, multiplied, one};
use crate::program::attribute::Scalar;
use crate::program::fourier::Fourier;
use crate::program::wire::{Attr, Attrs};
use crate::{DType, Result, Type};

family! {
    /// Discrete Fourier transforms.
    Spectral { Fft }
}

/// Operations of a discrete Fourier transform of `n` numbers, by whichever method.
pub fn flops_of_transform(n: u64) -> u64 {
    (5.0 * n as f64 * (n as f64).log2()).round() as u64
}

/// a, which is cut or continued with zeros to `length`
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fft {
    /// Which of them.
    pub kind: Fourier,
    /// Along which.
    pub axis: usize,
    /// Of the transformed axis.
    pub length: u64,
    /// Parts of the result up to this become zero.
    pub eps: Scalar,
}

impl Fft {
    fn names<Of: From<Fft> + 'static>() -> Names<Of> {
        let named = |&kind: &Fourier| {
            let dtype = if kind == Fourier::Irfft { DType::F32 } else { DType::C64 };
            let op = Fft { kind, axis: 1, length: 5, eps: Scalar::Float(1e-10) };
            let sample = move || (op.clone().into(), [f32(&[2, 3])], [Type::new(dtype, &[2, kind.kept(5)])]);
            named(kind.name(), Fft::read, sample)
        };
        Fourier::ALL.iter().map(named).collect()
    }

    fn read<Of: From<Fft>>(name: &str, a: &Attrs<'_>) -> Result<Of> {
        let kind = Fourier::from_name(name).ok_or_else(|| a.fail("name", "a transform"))?;
        let eps = Scalar::Float(a.scalar("eps")?.real());
        Ok(Fft { kind, axis: a.axis("axis")?, length: a.size("length")?, eps }.into())
    }
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
