//! Discrete Fourier transforms along one axis.

use smallvec::smallvec;

use super::call::{Call, Results};
use crate::kernels::fft;
use crate::program::Fourier;
use crate::program::ops::Visitor;
use crate::program::ops::transform::Fft;
use crate::{Result, Tensor};

impl Visitor<Fft, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Fft) -> Result<Results> {
        Ok(smallvec![transform(self, op)?])
    }
}

fn transform(call: &Call<'_>, op: &Fft) -> Result<Tensor> {
    let Fft { kind, axis, length, eps } = *op;
    let input = call.operand(0)?;
    let (shape, kept) = (&input.view.shape, kind.kept(length));
    let fits = axis < shape.len()
        && length > 0
        && call.out.shape.len() == shape.len()
        && (0..shape.len()).all(|a| call.out.shape[a] == if a == axis { kept } else { shape[a] });
    if !fits {
        return Err(call.invalid(format!("{shape:?} to {:?} along axis {axis}, length {length}", call.out.shape)));
    }
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let what = fft::Fft {
        inverse: matches!(kind, Fourier::Ifft | Fourier::Irfft),
        mirror: kind == Fourier::Irfft,
        axis,
        length,
        eps: eps.real(),
    };
    fft::fft(call.engine, input, &result, &what, call.compile)?;
    Ok(result)
}
