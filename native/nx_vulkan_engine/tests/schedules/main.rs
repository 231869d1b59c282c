//! Where threads meet, under many orders of their steps, as in the tests of `nx_vulkan_device`: sources of the crate
//! with locks and atomics of shuttle, and with tensors that are numbers.
#![allow(clippy::unwrap_used, dead_code, reason = "what the crate does with these sources is more than these tests do")]

mod deferred;
#[path = "../../../nx_vulkan_device/tests/schedules/orders.rs"]
mod orders;

use nx_vulkan_ir::{DType, Type, Value, View, program};
use shuttle::sync;

mod eager {
    pub type Results = smallvec::SmallVec<[crate::Tensor; 1]>;
}

/// A number in the place of memory.
#[derive(Debug, Clone)]
struct Tensor {
    buffer: sync::Arc<u64>,
    view: Box<View>,
}

impl Tensor {
    fn with_view(&self, view: View) -> Tensor {
        Tensor { buffer: sync::Arc::clone(&self.buffer), view: Box::new(view) }
    }
}
