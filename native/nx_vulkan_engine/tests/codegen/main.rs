//! Code generation. Needs no device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod coverage;
mod golden;
mod kernels;
mod listing;
#[path = "../../../nx_vulkan_check/tests/check/tools.rs"]
mod tools;
