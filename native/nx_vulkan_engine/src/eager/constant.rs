//! Scalars: one element in memory, repeated by the view, shared by all that ask for the same value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use half::{bf16, f16};

use super::Call;
use crate::memory::Buffer;
use crate::program::op::Scalar;
use crate::{DType, Result, Tensor, Type, View, float8};

/// Distinct scalars kept before the cache starts over.
const CAPACITY: usize = 4096;

/// A scalar: its type, and its bits in the first bytes.
type Key = (DType, [u8; 16]);

/// Buffers of one element.
#[derive(Debug, Default)]
pub struct ConstantCache {
    buffers: Mutex<HashMap<Key, Arc<Buffer>>>,
}

pub fn constant(call: &Call<'_>, value: Scalar) -> Result<Tensor> {
    let dtype = call.out.dtype;
    let bytes = encode(value, dtype);
    let cache = &call.engine.constant_cache().buffers;
    let known = cache.lock().unwrap_or_else(|e| e.into_inner()).get(&(dtype, bytes)).cloned();
    let buffer = match known {
        Some(buffer) => buffer,
        None => {
            let element = Tensor::uninitialized(call.engine, &Type::new(dtype, &[]))?;
            call.engine.upload(&element.buffer, 0, &bytes[..dtype.size_bytes() as usize])?;
            let mut cache = cache.lock().unwrap_or_else(|e| e.into_inner());
            if cache.len() >= CAPACITY {
                cache.clear();
            }
            cache.insert((dtype, bytes), Arc::clone(&element.buffer));
            element.buffer
        }
    };
    let view = View::contiguous(dtype, &[]).broadcast_trailing(&call.out.shape)?;
    Ok(Tensor { buffer, view })
}

/// Bits of a number as an element of `dtype`: integers wrap, floats round to nearest even.
pub fn encode(value: Scalar, dtype: DType) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (re, im) = match value {
        Scalar::Int(i) => (i as f64, 0.0),
        Scalar::Float(x) => (x, 0.0),
        Scalar::Complex(re, im) => (re, im),
    };
    let int = match value {
        Scalar::Int(i) => i,
        // Rust's casts saturate and take NaN to 0.
        Scalar::Float(_) | Scalar::Complex(..) => re as i128,
    };
    let mut put = |at: usize, part: &[u8]| {
        if let Some(slot) = bytes.get_mut(at..at + part.len()) {
            slot.copy_from_slice(part);
        }
    };
    match dtype {
        DType::S2 | DType::U2 => put(0, &[(int & 0x3) as u8]),
        DType::S4 | DType::U4 => put(0, &[(int & 0xf) as u8]),
        DType::S8 | DType::U8 => put(0, &[int as u8]),
        DType::S16 | DType::U16 => put(0, &(int as u16).to_ne_bytes()),
        DType::S32 | DType::U32 => put(0, &(int as u32).to_ne_bytes()),
        DType::S64 | DType::U64 => put(0, &(int as u64).to_ne_bytes()),
        DType::F8E5M2 => put(0, &[float8::e5m2_from_f64(re)]),
        DType::F8E4M3Fn => put(0, &[float8::e4m3fn_from_f64(re)]),
        DType::Bf16 => put(0, &bf16::from_f64(re).to_bits().to_ne_bytes()),
        DType::F16 => put(0, &f16::from_f64(re).to_bits().to_ne_bytes()),
        DType::F32 => put(0, &(re as f32).to_ne_bytes()),
        DType::F64 => put(0, &re.to_ne_bytes()),
        DType::C64 => {
            put(0, &(re as f32).to_ne_bytes());
            put(4, &(im as f32).to_ne_bytes());
        }
        DType::C128 => {
            put(0, &re.to_ne_bytes());
            put(8, &im.to_ne_bytes());
        }
    }
    bytes
}
