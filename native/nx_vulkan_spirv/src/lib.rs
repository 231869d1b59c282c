//! Kernels as SPIR-V: a GLSL template gives the structure, generated straight-line code fills its slots, and the
//! scalar library gives the arithmetic. Knows no device.
#![forbid(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access;
pub mod generated;
pub mod library;
#[cfg(test)]
mod library_tests;
pub mod link;
pub mod lower;
pub mod magnitudes;
pub mod memory;
pub mod modes;
pub mod params;
pub mod probe;
pub mod reducer;
pub mod scalar;
pub mod steps;
mod structured;
mod templates;
pub mod workgroup;
