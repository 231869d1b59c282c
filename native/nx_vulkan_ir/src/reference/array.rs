//! Tensors of the reference, and the indices of their elements.

use crate::dtype::nx_bytes;
use crate::program::Op;
use crate::shape::{Dims, elements};
use crate::value::Value;
use crate::{Error, Result, Type};

/// A tensor on the host: its elements in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Type and shape.
    pub ty: Type,
    /// In row-major order.
    pub values: Vec<Value>,
}

impl Array {
    /// An array of values, each rounded to the dtype.
    pub fn new(ty: &Type, values: impl IntoIterator<Item = Value>) -> Array {
        Array { ty: ty.clone(), values: values.into_iter().map(|v| v.cast(ty.dtype)).collect() }
    }

    /// An array from an Nx binary.
    ///
    /// # Errors
    /// `InvalidArgument` when the binary's length does not fit the type.
    pub fn from_nx_bytes(ty: &Type, bytes: &[u8]) -> Result<Array> {
        let expected = nx_bytes(ty.dtype, ty.elements());
        if bytes.len() as u64 != expected {
            return Err(Error::InvalidArgument {
                what: "binary",
                expected: format!("{expected} bytes for {} elements of {}", ty.elements(), ty.dtype),
                got: format!("{} bytes", bytes.len()),
            });
        }
        let bits = ty.dtype.bits() as usize;
        let values = (0..ty.elements() as usize)
            .map(|i| {
                if bits < 8 {
                    let shift = 8 - bits * (i % (8 / bits) + 1);
                    return Value::from_bits(ty.dtype, (bytes[i * bits / 8] >> shift).into());
                }
                let element = &bytes[i * bits / 8..(i + 1) * bits / 8];
                let word = element.iter().rev().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
                Value::from_bits(ty.dtype, word)
            })
            .collect();
        Ok(Array { ty: ty.clone(), values })
    }

    /// The elements as an Nx binary.
    pub fn to_nx_bytes(&self) -> Vec<u8> {
        let dtype = self.ty.dtype;
        let bits = dtype.bits();
        if bits >= 8 {
            let size = bits as usize / 8;
            return self.values.iter().flat_map(|v| v.to_bits(dtype).to_le_bytes().into_iter().take(size)).collect();
        }
        let per_byte = (8 / bits) as usize;
        self.values
            .chunks(per_byte)
            .map(|group| {
                group.iter().zip(1u32..).fold(0, |byte, (v, i)| byte | (v.to_bits(dtype) as u8) << (8 - bits * i))
            })
            .collect()
    }

    /// The element at an index.
    pub(super) fn at(&self, index: &[u64]) -> Value {
        self.values[position(&self.ty.shape, index)]
    }
}

/// What an op of a family is evaluated on: operands, and the types of results that its rules accept for them. Visits
/// give the results.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    pub operands: &'a [Array],
    pub outs: &'a [Type],
}

/// What an op gives.
pub type Values = Result<Vec<Array>>;

/// Row-major position of an index.
pub(super) fn position(shape: &[u64], index: &[u64]) -> usize {
    shape.iter().zip(index).fold(0, |at, (&size, &i)| at * size as usize + i as usize)
}

/// All indices of a shape in row-major order.
pub(super) fn indices(shape: &[u64]) -> impl Iterator<Item = Dims> + '_ {
    (0..elements(shape)).map(|linear| {
        let mut rest = linear;
        let mut index: Dims = shape
            .iter()
            .rev()
            .map(|&size| {
                let i = rest % size;
                rest /= size;
                i
            })
            .collect();
        index.reverse();
        index
    })
}

pub(super) fn invalid(op: &Op, reason: &str) -> Error {
    Error::InvalidProgram { op: op.name().to_string(), reason: reason.to_string() }
}
