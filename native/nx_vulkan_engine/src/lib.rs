//! Tensors and tensor programs on any Vulkan device. The engine knows Vulkan and tensors; it has never heard of Elixir.
//!
//! # A tour
//! Open a device, build a program, compile it, run it, read back:
//! ```
//! use nx_vulkan_engine::program::{Builder, Reduction};
//! use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};
//!
//! # fn main() -> nx_vulkan_engine::Result<()> {
//! # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
//! let engine = Engine::open(None)?;
//!
//! // softmax(x w + bias)
//! let b = Builder::new();
//! let x = b.input(DType::F32, &[2, 3]);
//! let w = b.input(DType::F32, &[3, 2]);
//! let bias = b.input(DType::F32, &[2]);
//! let y = b.add(b.dot(x, w), bias);
//! let exp = b.exp(b.subtract(y, b.reduce(Reduction::Max, y, &[1], true)));
//! let softmax = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
//! let program = b.finish(&[softmax])?;
//!
//! let executable = Executable::compile(&engine, program)?;
//! let inputs = [
//!     Tensor::from_slice(&engine, &[2, 3], &[1f32, 0.0, 0.0, 0.0, 1.0, 0.0])?,
//!     Tensor::from_slice(&engine, &[3, 2], &[2f32, 1.0, 0.5, 0.5, 0.0, 0.0])?,
//!     Tensor::from_slice(&engine, &[2], &[0f32, 1.0])?,
//! ];
//! let outputs = executable.run(&inputs, Compile::Allowed)?;
//! let rows = outputs[0].to_vec::<f32>(&engine)?;
//! assert_eq!(&rows[..2], [0.5, 0.5]);
//! # Ok(())
//! # }
//! ```
//! - [`Engine::open`] chooses the best device, or the one that `NX_VULKAN_DEVICE` names; [`enumerate`] lists them,
//!   [`Engine::caps`] says what one can do. An engine serves any number of threads.
//! - A [`Tensor`] is memory on the device with a [`View`] that lies within it; dropping the last clone gives the memory
//!   back. Shapes of more than [`shape::MAX_ELEMENTS`] are [`Error::TooLarge`], wherever they come from.
//! - A [`program::Program`] is a flat list of instructions in Nx's words. [`program::Builder`] makes one and checks its
//!   rules, [`Engine::optimize`] fuses its ops, and [`program::Program::to_bytes`] and [`program::Program::from_bytes`]
//!   write and read it. [`program::Recording`] holds inputs and expected outputs as well.
//! - [`Executable::compile`] makes kernels of a program and plans its memory; [`Executable::run`] records them and
//!   returns at once. Reading an output is what waits.
//! - [`eager`] runs one op at a time; [`deferred`] leaves ops for when a result is read, and runs many at once.
//! - To see inside: [`Executable::describe`] tells what each launch moves and computes, [`program::Program::to_dot`]
//!   draws a program, [`Engine::start_profile`] takes times on the device, and `NX_VULKAN_PROFILE=1` prints them when
//!   the engine is dropped.
//! - Everything fails with the one [`Error`]. A failed submission sticks: every later call returns it.
//!
//! Examples of the package: `train`, `sample` and `saved_program`. In the repository also `session` (a program from build
//! to file), `mlp` (a network that reads digits, by programs of the builder), `digits` and `eight_schools` (the demos),
//! `throughput`, `products`, `fused`, `windows` and `workgroup` (measurements).
#![forbid(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod chain;
pub mod deferred;
pub mod eager;
pub mod executable;
pub mod nativev;
pub mod profile;
pub mod program;
pub mod shape;

mod engine;
mod file;
mod ipc;
mod options;
mod pressure;
mod remembered;
mod share;
mod states;
mod tensor;

// The inside of the engine: who fills launches answers for the addresses in them.
#[cfg(not(feature = "testing"))]
#[expect(unused_imports, reason = "tests reach what modules of kernels have within")]
mod kernels;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod kernels;
#[cfg(not(feature = "testing"))]
mod tuning;
#[cfg(feature = "testing")]
pub mod tuning;

pub use engine::{Engine, Stats, Usage};
pub use executable::{Executable, GoesOn};
pub use kernels::{Compile, Reach};
pub use nx_vulkan_device::memory::{Buffer, HostAccess, Owner};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use nx_vulkan_device::stream::Source;
pub use nx_vulkan_device::{Caps, DeviceInfo, DeviceKind, Validation, enumerate};
pub use nx_vulkan_ir::{CType, DType, Error, Result, Type, Value, View};
pub use nx_vulkan_spirv::lower::Lacks;
pub use options::{Options, Precision, Profiling};
pub use profile::{Limits, Profile};
pub use tensor::{Native, Tensor};
pub use tuning::{Calibrated, Calibration, CalibrationState, Class};

/// Locks and what else threads meet at. tests/schedules has other ones in their place.
pub(crate) use std::sync;

#[cfg(feature = "testing")]
pub use engine::is_missing_for_examples;
#[cfg(feature = "testing")]
pub use nx_vulkan_device::kernel::{
    Access, Binding, BoundLaunch, Interface, Launch, Pipeline, PipelineKey, Statistics, Waits,
};
#[cfg(not(feature = "testing"))]
pub(crate) use nx_vulkan_device::kernel::{Access, Binding, BoundLaunch, Interface, Pipeline, PipelineKey};
#[cfg(feature = "testing")]
pub use nx_vulkan_ir::{dtype, error, float8, reference, value};

/// The code of the README is compiled as the other examples are.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
