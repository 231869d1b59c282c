//! Transforms of an axis that no launch reaches: those of its parts, where its length has a small factor, and else a
//! product of spectra (Bluestein's algorithm).

use std::f64::consts::{FRAC_PI_2, TAU};

use smallvec::smallvec;

use super::{Cut, section};
use crate::eager::copies;
use crate::eager::program::run_instructions;
use crate::program::attribute::Scalar;
use crate::program::ops::moved::{Pad, Reverse};
use crate::program::ops::transform::Fft;
use crate::program::{Binary, Builder, Fourier, Op, Operand, Unary, passes};
use crate::shape::{Dims, Strides, Type};
use crate::{DType, Result, Tensor, View};

/// Factors of a length by which its transform becomes that of parts.
const RADICES: [u64; 6] = [2, 3, 5, 7, 11, 13];

/// Longest length whose elements' numbers have squares of 64 bits.
const MAX_CHIRP: u64 = 1 << 32;

/// One axis whose transform is complex.
struct Line<'a> {
    /// The first elements, after which zeros follow.
    from: &'a Tensor,
    /// The first elements of the result, of which real numbers are the real parts.
    to: &'a Tensor,
    length: u64,
    inverse: bool,
    dtype: DType,
    eps: Scalar,
}

impl Cut<'_> {
    /// The transform along an axis, beside which no other has several elements; none where numbers of chirps have no 64
    /// bits.
    pub(super) fn transform(&self, op: &Fft, out: &Type) -> Result<Option<Tensor>> {
        let Fft { kind, axis, length, eps } = *op;
        let whole = Tensor::uninitialized(self.engine, out)?;
        let [mut from, to] = [&self.operands[0], &whole].map(|t| along(t, axis));
        let dtype = if matches!(out.dtype, DType::F64 | DType::C128) { DType::C128 } else { DType::C64 };
        if kind == Fourier::Irfft {
            from = self.mirrored(&from, length, dtype)?;
        }
        let inverse = matches!(kind, Fourier::Ifft | Fourier::Irfft);
        let line = Line { from: &from, to: &to, length, inverse, dtype, eps };
        match RADICES.iter().find(|&&radix| length.is_multiple_of(radix)) {
            Some(&radix) => self.by_parts(&line, radix)?,
            None if length > MAX_CHIRP => return Ok(None),
            None => self.by_chirps(&line)?,
        }
        Ok(Some(whole))
    }

    /// Elements `r`, `r + radix`, ... of the result are the transform of sums of elements that lie a part of the length
    /// apart, turned by roots of unity.
    fn by_parts(&self, line: &Line<'_>, radix: u64) -> Result<()> {
        let part = line.length / radix;
        let (given, kept) = (line.from.view.shape[0], line.to.view.shape[0]);
        let sections = (0..radix).take_while(|j| j * part < given);
        let sections = sections
            .map(|j| section(line.from, 0, j * part, part.min(given - j * part)))
            .collect::<Result<Vec<_>>>()?;
        let sign = if line.inverse { 1.0 } else { -1.0 };
        for r in 0..radix.min(kept) {
            let sums = self.program(&sections, |b, inputs| {
                let turned = inputs.iter().enumerate().map(|(j, &x)| {
                    let x = extended(b, b.as_type(x, line.dtype), part);
                    let turns = r * j as u64 % radix;
                    let root = Scalar::Complex(
                        (TAU * turns as f64 / radix as f64).cos(),
                        sign * (TAU * turns as f64 / radix as f64).sin(),
                    );
                    match turns {
                        0 => x,
                        _ if 2 * turns == radix => b.negate(x),
                        _ => b.multiply(x, b.constant(line.dtype, root)),
                    }
                });
                let sum = turned.reduce(|sum, x| b.add(sum, x)).unwrap_or_else(|| b.number(line.dtype, 0.0));
                let sum = if line.inverse { b.divide(sum, radix as f64) } else { sum };
                if r == 0 {
                    return sum;
                }
                let turns = b.multiply(b.iota(DType::S64, &[part], None), r as f64);
                b.multiply(sum, roots(b, turns, line.length, sign, line.dtype))
            })?;
            let kind = if line.inverse { Fourier::Ifft } else { Fourier::Fft };
            let op = Op::from(Fft { kind, axis: 0, length: part, eps: line.eps });
            let result = self.run(&op, &[sums], &Type::new(line.dtype, &[part]))?;
            let count = (kept - r).div_ceil(radix);
            let place = line.to.view.slice(&[r], &[(count - 1) * radix + 1], &[radix])?;
            self.store(&section(&result, 0, 0, count)?, &line.to.with_view(place))?;
        }
        Ok(())
    }

    /// Bluestein's algorithm. With a chirp w(j) = exp(-i pi j^2 / n) element k of the result is w(k) times the sum over
    /// j of w(j) x(j) / w(k - j).
    fn by_chirps(&self, line: &Line<'_>) -> Result<()> {
        let Line { length, dtype, .. } = *line;
        let sign = if line.inverse { 1.0 } else { -1.0 };
        let chirp = |b: &Builder, at: Operand, sign: f64| {
            let at = b.as_type(at, DType::U64);
            let turns = b.as_type(b.remainder(b.multiply(at, at), (2 * length) as f64), DType::S64);
            roots(b, turns, 2 * length, sign, dtype)
        };
        let padded = (2 * length - 1).next_power_of_two();
        let spectrum = |kind, x: Tensor| {
            let op = Op::from(Fft { kind, axis: 0, length: padded, eps: Scalar::Float(0.0) });
            self.run(&op, &[x], &Type::new(dtype, &[padded]))
        };
        let given = section(line.from, 0, 0, line.from.view.shape[0].min(length))?;
        let turned = self.program(&[given], |b, inputs| {
            let x = b.as_type(inputs[0], dtype);
            let at = b.iota(DType::S64, &b.ty(x).shape, None);
            extended(b, b.multiply(x, chirp(b, at, sign)), padded)
        })?;
        let turned = spectrum(Fourier::Fft, turned)?;
        let filter = self.program(&[], |b, _| {
            let at = b.iota(DType::S64, &[padded], None);
            let at = b.min(at, b.subtract(padded as f64, at));
            b.select(b.less(at, length as f64), chirp(b, b.min(at, length as f64), -sign), 0.0)
        })?;
        let filter = spectrum(Fourier::Fft, filter)?;
        let product = self.run(&Op::Binary(Binary::Multiply), &[turned, filter], &Type::new(dtype, &[padded]))?;
        let sums = section(&spectrum(Fourier::Ifft, product)?, 0, 0, line.to.view.shape[0])?;
        let result = self.program(&[sums], |b, inputs| {
            let at = b.iota(DType::S64, &b.ty(inputs[0]).shape, None);
            let result = b.multiply(inputs[0], chirp(b, at, sign));
            let result = if line.inverse { b.divide(result, length as f64) } else { result };
            b.reshape(result, &[b.ty(result).shape[0], 1])
        })?;
        // A transform of one element changes nothing but parts up to `eps`.
        let op = Op::from(Fft { kind: Fourier::Fft, axis: 1, length: 1, eps: line.eps });
        let result = self.run(&op, std::slice::from_ref(&result), &result.view.ty())?;
        self.store(&along(&result, 0), line.to)
    }

    /// All of a spectrum of which the first half is given.
    fn mirrored(&self, half: &Tensor, length: u64, dtype: DType) -> Result<Tensor> {
        let own = length / 2 + 1;
        let given = section(half, 0, 0, half.view.shape[0].min(own))?;
        self.program(&[given], |b, inputs| {
            let x = extended(b, b.as_type(inputs[0], dtype), own);
            let rest = b.slice(x, &[1], &[length - own]);
            let rest = b.unary(Unary::Conjugate, rest);
            let rest = b.push(Op::from(Reverse { axes: smallvec![0] }), &[rest], &b.ty(rest));
            b.concatenate(&[x, rest], 0)
        })
    }

    fn store(&self, result: &Tensor, place: &Tensor) -> Result<()> {
        let ty = Type { dtype: place.view.dtype, ..result.view.ty() };
        let result = if ty.dtype.is_complex() {
            result.clone()
        } else {
            self.run(&Op::Unary(Unary::Real), std::slice::from_ref(result), &ty)?
        };
        copies::copy(self.engine, &result, place, self.compile)
    }

    /// The one result of a program, in as few kernels as it takes.
    fn program(&self, inputs: &[Tensor], make: impl Fn(&Builder, &[Operand]) -> Operand) -> Result<Tensor> {
        let b = Builder::new();
        let operands: Vec<Operand> = inputs.iter().map(|t| b.input(t.view.dtype, &t.view.shape)).collect();
        let out = make(&b, &operands);
        let program = passes::optimize(b.finish(&[out])?, &self.engine.target())?;
        let results = run_instructions(self.engine, &program, inputs, self.compile)?;
        results.into_iter().next().ok_or_else(|| crate::Error::InvalidProgram {
            op: self.op.name().to_string(),
            reason: "has a result".to_string(),
        })
    }
}

/// A tensor of which only one axis has several elements, without the others.
fn along(tensor: &Tensor, axis: usize) -> Tensor {
    let view = &tensor.view;
    let (shape, strides) = (Dims::from_slice(&[view.shape[axis]]), Strides::from_slice(&[view.strides[axis]]));
    tensor.with_view(View { shape, strides, ..View::clone(view) })
}

/// The elements, and zeros after them.
fn extended(b: &Builder, x: Operand, length: u64) -> Operand {
    let ty = b.ty(x);
    let more = (length - ty.shape[0]) as i64;
    if more == 0 {
        return x;
    }
    let zero = b.number(ty.dtype, 0.0);
    b.push(Op::from(Pad { config: smallvec![(0, more, 0)] }), &[x, zero], &Type::new(ty.dtype, &[length]))
}

/// exp(sign 2 pi i t / n) for numbers t from 0 to n: quarters of a turn are exact, and what is left is an angle of at
/// most pi / 4.
fn roots(b: &Builder, t: Operand, n: u64, sign: f64, dtype: DType) -> Operand {
    let quarters = b.binary(Binary::Quotient, b.add(b.multiply(t, 8.0), n as f64), (2 * n) as f64);
    let rest = b.subtract(b.multiply(t, 4.0), b.multiply(quarters, n as f64));
    let angle = b.multiply(b.divide(b.as_type(rest, DType::F64), n as f64), sign * FRAC_PI_2);
    let unit = |re, im| b.constant(DType::C128, Scalar::Complex(re, im));
    let root = b.exp(b.multiply(b.as_type(angle, DType::C128), unit(0.0, 1.0)));
    let is = |quarter: f64| b.equal(quarters, quarter);
    let turn = b.select(is(3.0), unit(0.0, -sign), unit(1.0, 0.0));
    let turn = b.select(is(2.0), unit(-1.0, 0.0), turn);
    let turn = b.select(is(1.0), unit(0.0, sign), turn);
    b.as_type(b.multiply(root, turn), dtype)
}
