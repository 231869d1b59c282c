//! Tensor programs in Nx's words: types, shapes and views, programs with their rules and passes, and an interpreter
//! that says what they mean. Knows no device: all its tests run without one.
#![forbid(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod dtype;
pub mod error;
pub mod float8;
pub mod program;
pub mod reference;
pub mod shape;
pub mod value;

pub use dtype::{CType, DType};
pub use error::{Error, Result};
pub use shape::{Type, View};
pub use value::Value;
