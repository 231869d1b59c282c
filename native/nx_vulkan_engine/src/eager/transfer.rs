//! Tensors from one device to another, through memory of the host.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use nx_vulkan_device::memory::Buffer;
use smallvec::smallvec;

use super::copies::contiguous;
use crate::kernels::Compile;
use crate::{Engine, Error, Result, Tensor, View};

/// Bytes of a part: while one is written to the one device, the next is read from the other. Reading and writing have
/// steps of their own that overlap, which a part has to be many of.
const PART_BYTES: u64 = 32 << 20;

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
        let bytes =
            Bytes { buffer: &source.buffer, offset: source.view.offset_bytes(), size: source.view.size_bytes() };
        match bytes.size <= PART_BYTES {
            true => {
                let mut part = host_bytes(bytes.size)?;
                from.download(bytes.buffer, bytes.offset, &mut part)?;
                to.upload(&tensor.buffer, 0, &part)?;
                tensor.buffer.note_value(&part);
            }
            false => copy_in_parts(from, &bytes, to, &tensor.buffer)?,
        }
        match is_uniform {
            true => Ok(tensor.with_view(View { offset: 0, ..View::clone(&self.view) })),
            false => Ok(tensor),
        }
    }
}

/// A range of a buffer.
struct Bytes<'a> {
    buffer: &'a Arc<Buffer>,
    offset: u64,
    size: u64,
}

impl Bytes<'_> {
    /// Where each part begins within the range, and how long it is.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let size = self.size;
        (0..size.div_ceil(PART_BYTES)).map(move |part| (part * PART_BYTES, PART_BYTES.min(size - part * PART_BYTES)))
    }
}

fn host_bytes(size_bytes: u64) -> Result<Vec<u8>> {
    let zeros = usize::try_from(size_bytes).ok().and_then(|size| bytemuck::try_zeroed_slice_box(size).ok());
    zeros.map(|zeros| zeros.into_vec()).ok_or_else(|| Error::InvalidArgument {
        what: "tensor",
        expected: "elements that the host has memory for".to_string(),
        got: format!("{size_bytes} bytes"),
    })
}

/// Reads on a thread of its own, which is a part ahead, and has memory for three of them.
fn copy_in_parts(from: &Engine, source: &Bytes, to: &Engine, target: &Arc<Buffer>) -> Result<()> {
    let failed = |cause: String| Error::Vulkan { call: "vkCmdCopyBuffer", cause };
    let (filled, fills) = sync_channel::<Result<Vec<u8>>>(1);
    let (emptied, empties) = sync_channel::<Vec<u8>>(2);
    let read = move |(at, size): (u64, u64)| {
        let mut part = match empties.try_recv() {
            Ok(part) => part,
            Err(_) => host_bytes(PART_BYTES)?,
        };
        part.truncate(size as usize);
        from.download(source.buffer, source.offset + at, &mut part)?;
        Ok(part)
    };
    let reader = move || {
        for part in source.parts().map(read) {
            let has_failed = part.is_err();
            // Nobody takes it where writing failed.
            if filled.send(part).is_err() || has_failed {
                return;
            }
        }
    };
    // It has the receiver, so that a reader whose part nobody wants any more ends, and can be waited for.
    std::thread::scope(move |scope| {
        std::thread::Builder::new().spawn_scoped(scope, reader).map_err(|e| failed(e.to_string()))?;
        for (at, _) in source.parts() {
            let part = fills.recv().map_err(|_| failed("the reading thread ended early".to_string()))??;
            to.upload(target, at, &part)?;
            // The last part is shorter, and nothing comes after it.
            let _ = emptied.try_send(part);
        }
        Ok(())
    })
}
