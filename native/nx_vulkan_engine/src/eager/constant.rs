//! Scalars: one element in memory, repeated by the view, shared by all that ask for the same value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nx_vulkan_device::memory::Buffer;
use smallvec::SmallVec;

use crate::program::attribute::Scalar;
use crate::program::{Elementwise, passes};
use crate::{DType, Engine, Result, Tensor, Type, Value, View};

/// Distinct scalars kept before the cache starts over.
const CAPACITY: usize = 4096;

/// A scalar: its type, and its bits in the first bytes.
type Key = (DType, [u8; 16]);

/// Buffers of one element.
#[derive(Debug, Default)]
pub struct ConstantCache {
    buffers: Mutex<HashMap<Key, Arc<Buffer>>>,
}

impl ConstantCache {
    /// Whether others that ask for a scalar get this buffer.
    pub fn has(&self, buffer: &Arc<Buffer>) -> bool {
        self.buffers.lock().unwrap_or_else(|e| e.into_inner()).values().any(|known| Arc::ptr_eq(known, buffer))
    }
}

/// A tensor whose elements are all `value`.
pub fn constant(engine: &Engine, value: Scalar, out: &Type) -> Result<Tensor> {
    let dtype = out.dtype;
    let bytes = Value::from(value).cast(dtype).to_bits(dtype).to_le_bytes();
    let cache = &engine.state::<ConstantCache>().buffers;
    let known = cache.lock().unwrap_or_else(|e| e.into_inner()).get(&(dtype, bytes)).cloned();
    let known = known.filter(|buffer| engine.stream().check_contents([&**buffer].into_iter()).is_ok());
    let buffer = match known {
        Some(buffer) => buffer,
        None => {
            let engine = engine.uncaptured();
            let element = Tensor::uninitialized(&engine, &Type::new(dtype, &[]))?;
            engine.upload(&element.buffer, 0, &bytes[..dtype.size_bytes() as usize])?;
            element.buffer.note_value(&bytes[..dtype.size_bytes() as usize]);
            let mut cache = cache.lock().unwrap_or_else(|e| e.into_inner());
            if cache.len() >= CAPACITY {
                cache.clear();
            }
            cache.insert((dtype, bytes), Arc::clone(&element.buffer));
            element.buffer
        }
    };
    let view = View::contiguous(dtype, &[]).broadcast_trailing(&out.shape)?;
    Ok(Tensor::at(buffer, view))
}

/// What an elementwise op gives for operands whose numbers the host knows, if that is one element with the bits that
/// the device would give: then nothing is recorded, and who reads it waits for nothing.
pub fn computed(engine: &Engine, op: Elementwise, operands: &[Tensor], out: &Type) -> Result<Option<Tensor>> {
    if engine.captures() || out.elements() != 1 || out.dtype.bits() < 8 || out.dtype.is_complex() {
        return Ok(None);
    }
    let mut args: SmallVec<[(Value, DType); 3]> = SmallVec::new();
    for operand in operands {
        match operand.known_value() {
            Some(value) if !is_nan(value) => args.push((value, operand.view.dtype)),
            _ => return Ok(None),
        }
    }
    let Some(value) = passes::computed(op, &args, out.dtype).filter(|&value| !is_nan(value)) else { return Ok(None) };
    let bytes = value.cast(out.dtype).to_bits(out.dtype).to_le_bytes();
    Tensor::from_nx_bytes(engine, out, &bytes[..out.dtype.size_bytes() as usize]).map(Some)
}

/// NaN of devices have other bits than those of hosts.
fn is_nan(value: Value) -> bool {
    value.real().is_nan() || value.imag().is_nan()
}
