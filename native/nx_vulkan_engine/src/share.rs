//! Device addresses that were handed out, and tensors made from them.
//!
//! Handing an address out keeps the memory alive until all who did so have released their tensors; after that the
//! address stands for the memory as long as another tensor holds it. So an address can be wrong, but a tensor made from
//! one can't: it shares the buffer that the address lies in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nx_vulkan_device::memory::Buffer;

use crate::eager::ConstantCache;
use crate::{Engine, Error, Result, Tensor, Type, View, eager};

#[derive(Debug)]
struct Range {
    end: u64,
    buffer: Weak<Buffer>,
    /// For those who handed it out.
    kept: BTreeMap<u64, Arc<Buffer>>,
}

/// Ranges of device addresses that were handed out, by where they begin.
#[derive(Debug, Default)]
struct Shared(Mutex<BTreeMap<u64, Range>>);

impl Shared {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tensor: &Tensor, holder: u64) {
        let (start, end) = (tensor.address(), tensor.address() + tensor.view.size_bytes());
        let mut ranges = self.ranges();
        ranges.retain(|_, range| range.buffer.strong_count() > 0);
        let fresh = || Range { end, buffer: Arc::downgrade(&tensor.buffer), kept: BTreeMap::new() };
        let range = ranges.entry(start).or_insert_with(fresh);
        range.end = range.end.max(end);
        range.kept.insert(holder, Arc::clone(&tensor.buffer));
    }

    fn release(&self, holder: u64) -> Vec<Arc<Buffer>> {
        self.ranges().values_mut().filter_map(|range| range.kept.remove(&holder)).collect()
    }

    /// The living buffer of a range that holds `size_bytes` from `address` on.
    fn find(&self, address: u64, size_bytes: u64) -> Option<Arc<Buffer>> {
        let end = address.checked_add(size_bytes)?;
        let ranges = self.ranges();
        let mut holding = ranges.range(..=address).rev().filter(|(_, range)| end <= range.end);
        holding.find_map(|(_, range)| range.buffer.upgrade())
    }
}

impl Engine {
    /// Keeps memory no longer for those who know an address that `holder` handed out.
    pub fn unshare(&self, holder: u64) {
        drop(self.state::<Shared>().release(holder));
    }
}

impl Tensor {
    /// The tensor with its elements one after the other, ready to be read at [`Tensor::address`] until
    /// [`Engine::unshare`] with the same `holder`, a number that tells those who share apart. Waits for the device.
    pub fn share(&self, engine: &Engine, holder: u64) -> Result<Tensor> {
        let tensor = if engine.state::<ConstantCache>().has(&self.buffer) {
            // All equal scalars lie there.
            eager::copied(engine, self, eager::Compile::Allowed)?
        } else {
            eager::contiguous(engine, self, eager::Compile::Allowed)?
        };
        engine.wait()?;
        engine.stream().check_contents(std::iter::once(&*tensor.buffer))?;
        engine.state::<Shared>().add(&tensor, holder);
        // Whoever has the address may write there.
        tensor.buffer.forget_contents();
        Ok(tensor)
    }

    /// A tensor of what lies at an address within a tensor that was shared.
    ///
    /// # Errors
    /// `InvalidArgument` unless a shared tensor that still exists holds all of it, at a multiple of the element's size.
    pub fn from_address(engine: &Engine, address: u64, ty: &Type) -> Result<Tensor> {
        let fail = |expected: String| Error::InvalidArgument { what: "address", expected, got: address.to_string() };
        let size_bytes = ty.size_bytes();
        let buffer = engine
            .state::<Shared>()
            .find(address, size_bytes)
            .ok_or_else(|| fail(format!("{size_bytes} bytes of a shared tensor that still exists")))?;
        let mut view = View::contiguous(ty.dtype, &ty.shape);
        let (offset, element) = (address - buffer.address(), ty.dtype.size_bytes());
        if !offset.is_multiple_of(element) {
            return Err(fail(format!("a multiple of {element} bytes")));
        }
        view.offset = offset / element;
        Tensor::new(buffer, view)
    }
}
