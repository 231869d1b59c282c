//! Device addresses that were handed out, and tensors made from them.
//!
//! Handing an address out keeps the memory alive until the tensor is released; after that the address stands for the memory
//! as long as another tensor holds it. So an address can be wrong, but a tensor made from one can't: it shares the buffer
//! that the address lies in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::memory::Buffer;
use crate::{Engine, Error, Result, Tensor, Type, View, eager};

#[derive(Debug)]
struct Range {
    end: u64,
    buffer: Weak<Buffer>,
    /// Until the tensor is released.
    kept: Option<Arc<Buffer>>,
}

/// Ranges of device addresses that were handed out, by where they begin.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<BTreeMap<u64, Range>>);

impl Shared {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tensor: &Tensor) {
        let (start, buffer) = (tensor.address(), Arc::downgrade(&tensor.buffer));
        let mut ranges = self.ranges();
        ranges.retain(|_, range| range.buffer.strong_count() > 0);
        let end = start + tensor.view.ty().size_bytes();
        let end = ranges.get(&start).map_or(end, |other| end.max(other.end));
        ranges.insert(start, Range { end, buffer, kept: Some(Arc::clone(&tensor.buffer)) });
    }

    fn release(&self, tensor: &Tensor) -> Option<Arc<Buffer>> {
        self.ranges().get_mut(&tensor.address())?.kept.take()
    }

    /// The living buffer of a range that holds `size_bytes` from `address` on.
    fn find(&self, address: u64, size_bytes: u64) -> Option<Arc<Buffer>> {
        let end = address.checked_add(size_bytes)?;
        let ranges = self.ranges();
        let mut holding = ranges.range(..=address).rev().filter(|(_, range)| end <= range.end);
        holding.find_map(|(_, range)| range.buffer.upgrade())
    }
}

impl Tensor {
    /// The tensor with its elements one after the other, ready to be read at [`Tensor::address`] until [`Tensor::unshare`].
    /// Waits for the device.
    pub fn share(&self, engine: &Engine) -> Result<Tensor> {
        let tensor = eager::contiguous(engine, self, eager::Compile::Allowed)?;
        engine.wait()?;
        engine.shared().add(&tensor);
        Ok(tensor)
    }

    /// Keeps the memory no longer for those who know its address.
    pub fn unshare(&self, engine: &Engine) {
        drop(engine.shared().release(self));
    }

    /// A tensor of what lies at an address within a tensor that was shared.
    ///
    /// # Errors
    /// `InvalidArgument` unless a shared tensor that still exists holds all of it, at a multiple of the element's size.
    pub fn from_address(engine: &Engine, address: u64, ty: &Type) -> Result<Tensor> {
        let fail = |expected: String| Error::InvalidArgument { what: "address", expected, got: address.to_string() };
        let size_bytes = ty.size_bytes();
        let buffer = engine
            .shared()
            .find(address, size_bytes)
            .ok_or_else(|| fail(format!("{size_bytes} bytes of a shared tensor that still exists")))?;
        let mut view = View::contiguous(ty.dtype, &ty.shape);
        let (offset, element) = (address - buffer.address(), ty.dtype.size_bytes());
        if !offset.is_multiple_of(element) {
            return Err(fail(format!("a multiple of {element} bytes")));
        }
        view.offset = offset / element;
        Ok(Tensor { buffer, view })
    }
}
