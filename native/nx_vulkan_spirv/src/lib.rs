//! Kernels as SPIR-V: a GLSL template gives the structure, generated straight-line code fills its slots, and the
//! scalar library gives the arithmetic. Knows no device.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access;
pub mod dot;
pub mod elementwise;
pub mod fft;
pub mod fold;
pub mod index;
pub mod library;
#[cfg(test)]
mod library_tests;
pub mod linalg;
pub mod link;
pub mod matrix;
pub mod memory;
pub mod probe;
pub mod reduce;
pub mod reducer;
pub mod rows;
pub mod scalar;
pub mod scan;
pub mod segment;
pub mod sort;
mod structured;
pub mod templates;
pub mod transpose;
pub mod window_scatter;
pub mod workgroup;
