//! Discrete Fourier transforms as ops.

use super::attribute::named_enum;
use crate::{DType, Type};

named_enum! {
    /// Discrete Fourier transforms. `rfft` gives the first half of the spectrum of real numbers, `irfft` takes it.
    Fourier { Fft = "fft", Ifft = "ifft", Rfft = "rfft", Irfft = "irfft" }
}

impl Fourier {
    /// Elements of a result of `length` frequencies or samples.
    pub fn kept(self, length: u64) -> u64 {
        if self == Fourier::Rfft { length / 2 + 1 } else { length }
    }

    /// Whether the transform of `a` along an axis, cut or continued to `length`, is of type `out`.
    pub fn check(self, axis: usize, length: u64, a: &Type, out: &Type) -> Result<(), String> {
        if axis >= a.shape.len() || length == 0 {
            return Err(format!("axis {axis} of rank {}, length {length}", a.shape.len()));
        }
        let wide = matches!(a.dtype, DType::F64 | DType::C128);
        let complex = if wide { DType::C128 } else { DType::C64 };
        let fits = match self {
            Fourier::Fft | Fourier::Ifft => out.dtype == complex,
            Fourier::Rfft => !a.dtype.is_complex() && out.dtype == complex,
            Fourier::Irfft => out.dtype == if wide { DType::F64 } else { DType::F32 },
        };
        if !fits {
            return Err(format!("{} does not give {}", a.dtype, out.dtype));
        }
        let mut shape = a.shape.clone();
        shape[axis] = self.kept(length);
        if shape != out.shape {
            return Err(format!("{shape:?}, not {:?}", out.shape));
        }
        Ok(())
    }
}
