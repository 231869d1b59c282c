//! Tensors and tensor programs on any Vulkan device. The engine knows Vulkan and tensors; it has never heard of Elixir.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod chain;
pub mod codegen;
pub mod device;
pub mod dtype;
pub mod eager;
pub mod engine;
pub mod error;
pub mod executable;
pub mod float8;
mod ipc;
pub mod kernel;
pub mod memory;
pub mod nativev;
pub mod program;
pub mod reference;
pub mod shape;
mod share;
pub mod spirv;
mod stream;
pub mod tensor;
pub mod value;

pub use device::{Caps, DeviceInfo, DeviceKind, Validation, enumerate};
pub use dtype::{CType, DType};
pub use engine::{Engine, Options, Stats};
pub use error::{Error, Result};
pub use executable::Executable;
pub use kernel::launch::Compile;
pub use kernel::{Access, Binding, BoundLaunch, Interface, Launch, Pipeline, PipelineKey};
pub use memory::{Buffer, HostAccess};
pub use shape::{Type, View};
pub use tensor::Tensor;
pub use value::Value;
