//! Device memory: a pool of size classes over large regions, and the buffers that tensors live in.
//!
//! A dropped buffer's block goes back to the pool at once. The GPU may reuse it immediately, as everything on the one
//! queue runs in order and hazards travel with the block; the host writes to it directly only when its last submission
//! is complete.

mod backing;
mod block;
mod buffer;
mod class;
mod copies;
mod external;
mod heap;
mod keeper;
mod owner;
mod pool;
#[cfg(test)]
mod pool_tests;
mod ranges;
mod ring;

pub use backing::HostAccess;
pub use backing::{DeviceMemoryPlan, VulkanBacking};
pub use block::MemoryKind;
pub use buffer::Buffer;
pub use copies::{Copies, CopyBuffers, CopyForm};
pub use external::{External, imported_buffer, shared_buffer};
pub use keeper::Keeper;
pub use owner::Owner;
pub use pool::{AllocError, Pool, part_bytes, reserved_bytes};
pub(crate) use ring::Ring;

/// The pool of an open device.
pub type DevicePool = Pool<VulkanBacking>;
