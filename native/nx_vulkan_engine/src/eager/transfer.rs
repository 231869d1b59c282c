//! Tensors from one device to another, through memory of the host.

use smallvec::smallvec;

use super::copies::contiguous;
use crate::kernels::Compile;
use crate::{Engine, Result, Tensor, View};

impl Tensor {
    /// The tensor in memory of another engine. Waits for what writes it; what is recorded on `to` afterwards comes
    /// after the copy. A tensor of one repeated element stays one element.
    ///
    /// # Errors
    /// As [`Tensor::uninitialized`], and the sticky error of either device.
    pub fn transferred(&self, from: &Engine, to: &Engine) -> Result<Tensor> {
        let is_uniform = self.view.is_uniform();
        let source = match is_uniform {
            true => self.with_view(View { shape: smallvec![], strides: smallvec![], ..View::clone(&self.view) }),
            false => contiguous(from, self, Compile::Allowed)?,
        };
        let tensor = Tensor::uninitialized(to, &source.view.ty())?;
        let size_bytes = source.view.size_bytes();
        match source.known_bytes() {
            Some(bytes) => {
                let element = &bytes[..size_bytes as usize];
                to.upload(&tensor.buffer, 0, element)?;
                tensor.buffer.note_value(element);
            }
            None => from.copy_to(&source.buffer, source.view.offset_bytes(), to, &tensor.buffer, size_bytes)?,
        }
        match is_uniform {
            true => Ok(tensor.with_view(View { offset: 0, ..View::clone(&self.view) })),
            false => Ok(tensor),
        }
    }
}
