//! Shapes of tensors, and how views see memory.

pub use nx_vulkan_ir::shape::{Dims, MAX_ELEMENTS, Type, View};

#[cfg(not(feature = "testing"))]
pub(crate) use nx_vulkan_ir::shape::*;
#[cfg(feature = "testing")]
pub use nx_vulkan_ir::shape::*;
