//! Discrete Fourier transforms, term by term.

use std::collections::HashMap;

use super::array::{Array, Given, Values, indices};
use super::axes::sum;
use super::complex;
use crate::Type;
use crate::program::Fourier;
use crate::program::ops::Visitor;
use crate::program::ops::transform::Fft;
use crate::shape::Dims;
use crate::value::Value;

impl Visitor<Fft, Values> for Given<'_> {
    fn visit(self, op: &Fft) -> Values {
        Ok(vec![transform(op, &self.operands[0], &self.outs[0])])
    }
}

fn transform(op: &Fft, a: &Array, out: &Type) -> Array {
    let Fft { kind, axis, length, eps } = *op;
    let eps = eps.real();
    let n = length as usize;
    let inverse = matches!(kind, Fourier::Ifft | Fourier::Irfft);
    let roots: Vec<complex::Pair> = (0..n)
        .map(|k| {
            let (sin, cos) = (std::f64::consts::TAU * k as f64 / n as f64).sin_cos();
            (cos, if inverse { sin } else { -sin })
        })
        .collect();
    let element = |index: &[u64], at: usize| -> complex::Pair {
        if at as u64 >= a.ty.shape[axis] {
            return (0.0, 0.0);
        }
        let mut own = Dims::from_slice(index);
        own[axis] = at as u64;
        let value = a.at(&own);
        (value.real(), value.imag())
    };
    let row = |index: &[u64]| -> Vec<complex::Pair> {
        let mirrored = |j: usize| {
            let (re, im) = element(index, n - j);
            (re, -im)
        };
        let second_half = |j: usize| kind == Fourier::Irfft && j > n / 2;
        (0..n).map(|j| if second_half(j) { mirrored(j) } else { element(index, j) }).collect()
    };
    let clean = |x: f64| if x.abs() <= eps { 0.0 } else { x };
    let mut rows: HashMap<Dims, Vec<complex::Pair>> = HashMap::new();
    let values: Vec<Value> = indices(&out.shape)
        .map(|index| {
            let mut first = index.clone();
            first[axis] = 0;
            let row = rows.entry(first).or_insert_with(|| row(&index));
            let k = index[axis] as usize;
            let terms = row.iter().enumerate().map(|(j, &x)| {
                let (re, im) = complex::multiply(x, roots[j * k % n]);
                Value::Complex(re, im)
            });
            let total = sum(terms);
            let scale = if inverse { n as f64 } else { 1.0 };
            Value::Complex(clean(total.real() / scale), clean(total.imag() / scale))
        })
        .collect();
    Array::new(out, values)
}
