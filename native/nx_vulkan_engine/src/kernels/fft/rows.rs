//! Rows of elements that are transformed, wherever they lie.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;

use crate::shape::{Dims, Space, Strides};
use crate::{CType, DType, Engine, Result, Tensor};

/// Rows of elements along one axis of a view.
#[derive(Debug, Clone)]
pub struct Rows {
    pub buffer: Arc<Buffer>,
    pub dtype: DType,
    pub address: u64,
    pub sizes: Dims,
    pub strides: Strides,
    pub length: u64,
    pub stride: i64,
}

impl Rows {
    pub fn new(tensor: &Tensor, axis: usize) -> Rows {
        let view = &tensor.view;
        let (sizes, strides): (Dims, Strides) =
            (0..view.shape.len()).filter(|&a| a != axis).map(|a| (view.shape[a], view.strides[a])).unzip();
        let space = Space::new(&sizes, &[&strides]);
        Rows {
            buffer: Arc::clone(&tensor.buffer),
            dtype: view.dtype,
            address: tensor.address(),
            sizes: space.sizes,
            strides: space.strides.into_iter().next().unwrap_or_default(),
            length: view.shape[axis],
            stride: view.strides[axis],
        }
    }

    pub fn contiguous(buffer: Arc<Buffer>, dtype: DType, count: u64, length: u64) -> Rows {
        let address = buffer.address();
        let (sizes, strides) = (Dims::from_slice(&[count]), Strides::from_slice(&[length as i64]));
        Rows { buffer, dtype, address, sizes, strides, length, stride: 1 }
    }

    /// `count` columns of a matrix, each of as many rows as `parts` of `length` elements have.
    pub fn columns(buffer: Arc<Buffer>, dtype: DType, count: u64, parts: u64, length: u64) -> Rows {
        let address = buffer.address();
        let sizes = Dims::from_slice(&[parts, count]);
        let strides = Strides::from_slice(&[(length * count) as i64, 1]);
        Rows { buffer, dtype, address, sizes, strides, length, stride: count as i64 }
    }

    pub fn scratch(engine: &Engine, ctype: CType, count: u64, length: u64, columns: bool) -> Result<Rows> {
        let dtype = ctype.dtype();
        let buffer = engine.alloc(count * length * dtype.size_bytes())?;
        Ok(match columns {
            true => Rows::columns(buffer, dtype, count, 1, length),
            false => Rows::contiguous(buffer, dtype, count, length),
        })
    }

    /// Pairs of neighbouring real numbers as complex ones, if rows lie so.
    pub fn paired(&self) -> Option<Rows> {
        let dtype = match self.dtype {
            DType::F32 => DType::C64,
            DType::F64 => DType::C128,
            _ => return None,
        };
        let fits = self.stride == 1
            && self.length.is_multiple_of(2)
            && self.strides.iter().all(|stride| stride % 2 == 0)
            && self.address.is_multiple_of(dtype.size_bytes());
        let strides = self.strides.iter().map(|stride| stride / 2).collect();
        fits.then(|| Rows { dtype, length: self.length / 2, strides, ..self.clone() })
    }

    pub fn count(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Whether the same element of neighbouring rows lies closer than neighbouring elements of a row.
    pub fn rows_are_closer(&self) -> bool {
        let across = self.strides.last().copied().unwrap_or(0).unsigned_abs();
        self.sizes.last().is_some_and(|&n| n > 1) && across != 0 && across < self.stride.unsigned_abs()
    }
}
