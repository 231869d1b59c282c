//! Tensors: a view of a buffer on the device.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::dtype::nx_bytes;

use crate::{DType, Engine, Error, Result, Type, Value, View};

/// Types of Rust whose bytes are those of a tensor's element.
pub trait Native: bytemuck::Pod {
    /// The tensor type.
    const DTYPE: DType;
}

macro_rules! native {
    ($($native:ty = $dtype:ident),* $(,)?) => {
        $(impl Native for $native {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

native! {
    i8 = S8, i16 = S16, i32 = S32, i64 = S64, u8 = U8, u16 = U16, u32 = U32, u64 = U64, f32 = F32, f64 = F64,
    half::f16 = F16, half::bf16 = Bf16,
}

/// A tensor on the device. Cloning shares the memory; nothing ever changes a tensor that others can see.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The memory, which tensors may share.
    pub(crate) buffer: Arc<Buffer>,
    /// Where in it the elements lie: nothing checks again that they do. Results of an executable share theirs.
    pub(crate) view: Arc<View>,
}

impl Tensor {
    /// The elements of a buffer that a view names. Tensors may share a buffer.
    ///
    /// # Errors
    /// `InvalidArgument` unless they all lie in the buffer.
    pub fn new(buffer: Arc<Buffer>, view: View) -> Result<Tensor> {
        if !view.fits(buffer.size_bytes()) {
            return Err(Error::InvalidArgument {
                what: "view",
                expected: format!("elements within {} bytes", buffer.size_bytes()),
                got: format!("{} with strides {:?} from {}", view.ty(), view.strides, view.offset),
            });
        }
        Ok(Tensor::at(buffer, view))
    }

    /// The elements of a buffer that a view names, which are known to lie in it.
    pub(crate) fn at(buffer: Arc<Buffer>, view: View) -> Tensor {
        Tensor { buffer, view: Arc::new(view) }
    }

    /// Other elements of the same memory.
    pub(crate) fn with_view(&self, view: impl Into<Arc<View>>) -> Tensor {
        Tensor { buffer: Arc::clone(&self.buffer), view: view.into() }
    }

    /// All bytes of a buffer, as u8.
    pub fn bytes(buffer: Arc<Buffer>) -> Tensor {
        let view = View::contiguous(DType::U8, &[buffer.size_bytes()]);
        Tensor::at(buffer, view)
    }

    /// The memory, which other tensors may share.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Where in the memory the elements lie.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Memory for a contiguous tensor, with undefined contents.
    ///
    /// # Errors
    /// `TooLarge` where no memory can ever hold it; `OutOfMemory` when it does not fit after trimming, waiting and
    /// spilling to host memory.
    pub fn uninitialized(engine: &Engine, ty: &Type) -> Result<Tensor> {
        ty.check()?;
        Ok(Tensor::at(engine.alloc(ty.size_bytes())?, View::contiguous(ty.dtype, &ty.shape)))
    }

    /// As [`Tensor::uninitialized`], for one that the host is about to write all of.
    pub(crate) fn for_upload(engine: &Engine, ty: &Type) -> Result<Tensor> {
        ty.check()?;
        Ok(Tensor::at(engine.alloc_for_upload(ty.size_bytes())?, View::contiguous(ty.dtype, &ty.shape)))
    }

    /// A tensor from elements in row-major order.
    ///
    /// # Errors
    /// `InvalidArgument` when there are not as many elements as the shape has, else as [`Tensor::uninitialized`].
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_engine::{DType, Engine, Tensor};
    ///
    /// # fn main() -> nx_vulkan_engine::Result<()> {
    /// # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
    /// let engine = Engine::open(None)?;
    /// let tensor = Tensor::from_slice(&engine, &[2, 3], &[1i32, 2, 3, 4, 5, 6])?;
    /// assert_eq!(tensor.view().dtype, DType::S32);
    /// assert_eq!(tensor.to_vec::<i32>(&engine)?, [1, 2, 3, 4, 5, 6]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_slice<T: Native>(engine: &Engine, shape: &[u64], elements: &[T]) -> Result<Tensor> {
        Tensor::from_nx_bytes(engine, &Type::new(T::DTYPE, shape), bytemuck::cast_slice(elements))
    }

    /// A tensor from an Nx binary: native byte order, sub-byte types packed from the high bits down.
    ///
    /// # Errors
    /// `InvalidArgument` when the binary's length does not fit the type, else as [`Tensor::uninitialized`].
    pub fn from_nx_bytes(engine: &Engine, ty: &Type, bytes: &[u8]) -> Result<Tensor> {
        ty.check()?;
        let expected = nx_bytes(ty.dtype, ty.elements());
        if bytes.len() as u64 != expected {
            return Err(Error::InvalidArgument {
                what: "binary",
                expected: format!("{expected} bytes for {} elements of {}", ty.elements(), ty.dtype),
                got: format!("{} bytes", bytes.len()),
            });
        }
        let tensor = Tensor::for_upload(engine, ty)?;
        if ty.dtype.bits() < 8 {
            engine.upload(&tensor.buffer, 0, &unpack(ty.dtype, bytes, ty.elements()))?;
        } else {
            engine.upload(&tensor.buffer, 0, bytes)?;
            tensor.buffer.note_value(bytes);
        }
        Ok(tensor)
    }

    /// The bytes of the element that all are, if it is all of a buffer that the host wrote, with zeros behind them.
    /// Sub-byte types have none.
    pub(crate) fn known_bytes(&self) -> Option<[u8; MAX_ELEMENT_BYTES]> {
        let dtype = self.view.dtype;
        let is_all = self.view.offset == 0
            && (self.view.is_uniform() || self.view.elements() == 1)
            && dtype.bits() >= 8
            && dtype.size_bytes() == self.buffer.size_bytes();
        if is_all { self.buffer.value() } else { None }
    }

    /// The number that all elements are, if the host knows it.
    pub(crate) fn known_value(&self) -> Option<Value> {
        let bytes = self.known_bytes()?;
        Some(Value::from_bits(self.view.dtype, u128::from_le_bytes(bytes)))
    }

    /// Device address of the first element.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.view.offset_bytes()
    }
}

/// The size of a c128.
pub(crate) const MAX_ELEMENT_BYTES: usize = 16;

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
pub(crate) fn pack(dtype: DType, elements: &[u8]) -> Vec<u8> {
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
        assert_eq!(nx_bytes(DType::C128, u64::MAX / 2), u64::MAX);
    }
}
