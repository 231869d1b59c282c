//! Vulkan devices: which there are and what they can do, a pool of their memory, compiled pipelines, and the stream
//! that records, submits and waits. The only crate that knows vulkano.
#![forbid(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod capture;
pub mod device;
pub mod kernel;
pub mod memory;
pub mod profile;
pub mod stream;
pub mod work;

/// Locks and what else threads meet at. tests/schedules has other ones in their place.
pub(crate) use std::sync;

pub use device::{Caps, DeviceInfo, DeviceKind, Validation, enumerate};
