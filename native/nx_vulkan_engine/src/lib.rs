//! Tensors and tensor programs on any Vulkan device. The engine knows Vulkan and tensors; it has never heard of Elixir.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod codegen;
pub mod dtype;
pub mod error;
pub mod program;
pub mod shape;

pub use dtype::{CType, DType};
pub use error::{Error, Result};
pub use shape::{Type, View};
