//! Programs: what is recorded gives in the reference what Nx gives, and what is damaged is refused or is a program.
//! Needs no device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batched;
mod damaged;
mod known_comparisons;
mod labels;
mod map_loops;
mod passes;
mod random;
mod recompute;
#[path = "../../../nx_vulkan_engine/tests/common/recordings.rs"]
mod recordings;
mod small_products;
mod targets;
mod vectors;
