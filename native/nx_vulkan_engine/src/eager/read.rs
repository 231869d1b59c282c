//! Reading tensors: what does not lie in row-major order is copied on the device before.

use nx_vulkan_ir::dtype::nx_bytes;

use super::copies::contiguous;
use crate::kernels::Compile;
use crate::tensor::{MAX_ELEMENT_BYTES, Native, pack};
use crate::{Engine, Error, Result, Tensor};

impl Tensor {
    /// The elements in row-major order. Waits for the device.
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor of another type, and for one of more elements than the host has memory for.
    pub fn to_vec<T: Native>(&self, engine: &Engine) -> Result<Vec<T>> {
        if self.view.dtype != T::DTYPE {
            return Err(Error::InvalidArgument {
                what: "tensor",
                expected: format!("elements of {}", T::DTYPE),
                got: self.view.dtype.to_string(),
            });
        }
        let mut elements = zeroed(self.view.elements())?;
        self.read_nx_bytes(engine, None, bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// The first `limit` elements (all, if `None`) as an Nx binary. Waits for the device.
    ///
    /// # Errors
    /// `InvalidArgument` for more elements than the host has memory for.
    pub fn to_nx_bytes(&self, engine: &Engine, limit: Option<u64>) -> Result<Vec<u8>> {
        let mut bytes = zeroed(self.nx_size_bytes(limit))?;
        self.read_nx_bytes(engine, limit, &mut bytes)?;
        Ok(bytes)
    }

    /// The length of what [`Tensor::to_nx_bytes`] gives.
    pub fn nx_size_bytes(&self, limit: Option<u64>) -> u64 {
        nx_bytes(self.view.dtype, self.elements_up_to(limit))
    }

    /// As [`Tensor::to_nx_bytes`], into memory of the caller.
    ///
    /// # Errors
    /// `InvalidArgument` unless `out` is as long as [`Tensor::nx_size_bytes`] says.
    pub fn read_nx_bytes(&self, engine: &Engine, limit: Option<u64>, out: &mut [u8]) -> Result<()> {
        let (elements, dtype) = (self.elements_up_to(limit), self.view.dtype);
        let expected = nx_bytes(dtype, elements);
        if out.len() as u64 != expected {
            return Err(Error::InvalidArgument {
                what: "output",
                expected: format!("{expected} bytes for {elements} elements of {dtype}"),
                got: format!("{} bytes", out.len()),
            });
        }
        if self.view.elements() == 1
            && let Some(bytes) = self.known_bytes()
        {
            engine.stream().check()?;
            out.copy_from_slice(&bytes[..out.len()]);
            return Ok(());
        }
        // One element stands for all of a uniform tensor; other views are gathered on the device.
        if self.view.is_uniform() && self.view.elements() > 1 {
            let mut element = [0; MAX_ELEMENT_BYTES];
            let element = &mut element[..dtype.size_bytes() as usize];
            engine.download(&self.buffer, self.view.offset_bytes(), element)?;
            match dtype.bits() < 8 {
                true => {
                    let per_byte = 8 / u64::from(dtype.bits());
                    let packed = |n: u64| pack(dtype, &element.repeat(n as usize))[0];
                    out.fill(packed(per_byte));
                    if let (Some(last), rest @ 1..) = (out.last_mut(), elements % per_byte) {
                        *last = packed(rest);
                    }
                }
                false => out.chunks_exact_mut(element.len()).for_each(|chunk| chunk.copy_from_slice(element)),
            }
            return Ok(());
        }
        let source = contiguous(engine, self, Compile::Allowed)?;
        if dtype.bits() < 8 {
            let mut bytes = vec![0; elements as usize];
            engine.download(&source.buffer, source.view.offset_bytes(), &mut bytes)?;
            out.copy_from_slice(&pack(dtype, &bytes));
            return Ok(());
        }
        engine.download(&source.buffer, source.view.offset_bytes(), out)
    }

    /// What [`Tensor::read_nx_bytes_soon`] reads at most: it takes a few microseconds.
    pub const SOON_BYTES: u64 = 64 << 10;

    /// As [`Tensor::read_nx_bytes`] for a thread that must not block, such as a scheduler: reads small tensors whose
    /// elements the host can reach, if the device is done with them in about 100 us. Answers whether it has.
    ///
    /// # Errors
    /// As [`Tensor::read_nx_bytes`].
    pub fn read_nx_bytes_soon(&self, engine: &Engine, limit: Option<u64>, out: &mut [u8]) -> Result<bool> {
        let dtype = self.view.dtype;
        let is_plain = self.view.is_contiguous() && dtype.bits() >= 8;
        if !is_plain || out.len() as u64 > Self::SOON_BYTES || out.len() as u64 != self.nx_size_bytes(limit) {
            return Ok(false);
        }
        if self.view.elements() == 1
            && let Some(bytes) = self.known_bytes()
        {
            engine.stream().check()?;
            out.copy_from_slice(&bytes[..out.len()]);
            return Ok(true);
        }
        engine.download_soon(&self.buffer, self.view.offset_bytes(), out)
    }

    fn elements_up_to(&self, limit: Option<u64>) -> u64 {
        self.view.elements().min(limit.unwrap_or(u64::MAX))
    }
}

/// Zeros in memory of the host, where it has as much.
fn zeroed<T: Native>(elements: u64) -> Result<Vec<T>> {
    let zeros = usize::try_from(elements).ok().and_then(|n| bytemuck::try_zeroed_slice_box(n).ok());
    zeros.map(|zeros| zeros.into_vec()).ok_or_else(|| Error::InvalidArgument {
        what: "tensor",
        expected: "elements that the host has memory for".to_string(),
        got: format!("{elements} elements of {}", T::DTYPE),
    })
}
