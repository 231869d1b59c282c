//! Devices, memory, streams, pipelines, and the raw calls on them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bulk;
mod catalogue;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod nativev;
mod nativev_errors;
mod open;
mod pipelines;
#[path = "../common/raw.rs"]
mod raw;
mod stream;
mod time_limit;
#[path = "../../../nx_vulkan_check/tests/check/tools.rs"]
mod tools;
