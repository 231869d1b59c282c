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
mod row_blocks;
mod small_products;
mod takes_of_choices;
mod targets;
mod vectors;
