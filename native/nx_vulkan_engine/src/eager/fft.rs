//! Discrete Fourier transforms along one axis.

use super::call::Call;
use crate::kernels::fft::{Fft, fft};
use crate::program::Fourier;
use crate::{Result, Tensor};

pub fn transform(call: &Call<'_>, kind: Fourier, axis: usize, length: u64, eps: f64) -> Result<Tensor> {
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
    let what = Fft {
        inverse: matches!(kind, Fourier::Ifft | Fourier::Irfft),
        mirror: kind == Fourier::Irfft,
        axis,
        length,
        eps,
    };
    fft(call.engine, input, &result, &what, call.compile)?;
    Ok(result)
}
