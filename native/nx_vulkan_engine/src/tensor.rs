//! Tensors: a view of a buffer on the device, and the transfer of Nx binaries.

use std::sync::Arc;

use crate::memory::Buffer;
use crate::{DType, Engine, Error, Result, Type, View, eager};

/// A tensor on the device. Cloning shares the memory; nothing ever changes a tensor that others can see.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub buffer: Arc<Buffer>,
    pub view: View,
}

impl Tensor {
    /// Memory for a contiguous tensor, with undefined contents.
    pub fn uninitialized(engine: &Engine, ty: &Type) -> Result<Tensor> {
        Ok(Tensor { buffer: engine.alloc(ty.size_bytes())?, view: View::contiguous(ty.dtype, &ty.shape) })
    }

    /// A tensor from an Nx binary: native byte order, sub-byte types packed from the high bits down.
    ///
    /// # Errors
    /// `InvalidArgument` when the binary's length does not fit the type.
    pub fn from_nx_bytes(engine: &Engine, ty: &Type, bytes: &[u8]) -> Result<Tensor> {
        let expected = nx_bytes(ty.dtype, ty.elements());
        if bytes.len() as u64 != expected {
            return Err(Error::InvalidArgument {
                what: "binary",
                expected: format!("{expected} bytes for {} elements of {}", ty.elements(), ty.dtype),
                got: format!("{} bytes", bytes.len()),
            });
        }
        let tensor = Tensor::uninitialized(engine, ty)?;
        if ty.dtype.bits() < 8 {
            engine.upload(&tensor.buffer, 0, &unpack(ty.dtype, bytes, ty.elements()))?;
        } else {
            engine.upload(&tensor.buffer, 0, bytes)?;
        }
        Ok(tensor)
    }

    /// The first `limit` elements (all, if `None`) as an Nx binary. Waits for the device.
    pub fn to_nx_bytes(&self, engine: &Engine, limit: Option<u64>) -> Result<Vec<u8>> {
        let elements = self.view.elements().min(limit.unwrap_or(u64::MAX));
        let dtype = self.view.dtype;
        // One element stands for all of a uniform tensor; other views are gathered on the device.
        let uniform = self.view.is_uniform() && elements > 1;
        let source = if uniform || self.view.is_contiguous() {
            self.clone()
        } else {
            eager::contiguous(engine, self, eager::Compile::Allowed)?
        };
        let read = if uniform { 1 } else { elements };
        let mut bytes = vec![0; (read * dtype.size_bytes()) as usize];
        engine.download(&source.buffer, source.view.offset_bytes(), &mut bytes)?;
        if uniform {
            bytes = bytes.repeat(elements as usize);
        }
        Ok(if dtype.bits() < 8 { pack(dtype, &bytes) } else { bytes })
    }

    /// Device address of the first element.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.view.offset_bytes()
    }
}

/// Bytes of an Nx binary of `elements` elements.
pub fn nx_bytes(dtype: DType, elements: u64) -> u64 {
    (elements * u64::from(dtype.bits())).div_ceil(8)
}

/// One byte per element from packed sub-byte elements.
fn unpack(dtype: DType, bytes: &[u8], elements: u64) -> Vec<u8> {
    let bits = dtype.bits();
    let mask = (1u8 << bits) - 1;
    let per_byte = 8 / bits;
    (0..elements)
        .map(|i| {
            let byte = bytes.get((i / u64::from(per_byte)) as usize).copied().unwrap_or(0);
            let shift = 8 - bits * ((i % u64::from(per_byte)) as u32 + 1);
            (byte >> shift) & mask
        })
        .collect()
}

/// Packed sub-byte elements from one byte per element.
fn pack(dtype: DType, elements: &[u8]) -> Vec<u8> {
    let bits = dtype.bits();
    let mask = (1u8 << bits) - 1;
    elements
        .chunks((8 / bits) as usize)
        .map(|group| group.iter().zip(1u32..).fold(0, |byte, (&e, i)| byte | (e & mask) << (8 - bits * i)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_round_trips() {
        assert_eq!(unpack(DType::U4, &[0x12, 0x30], 3), [1, 2, 3]);
        assert_eq!(pack(DType::U4, &[1, 2, 3]), [0x12, 0x30]);
        assert_eq!(unpack(DType::S2, &[0b01_10_11_00], 3), [1, 2, 3]);
        assert_eq!(pack(DType::S2, &[1, 2, 3]), [0b01_10_11_00]);
        assert_eq!(nx_bytes(DType::S2, 5), 2);
        assert_eq!(nx_bytes(DType::C128, 2), 32);
    }
}
