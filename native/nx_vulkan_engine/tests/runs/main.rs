//! Whole programs on a device: passes, executables, their memory, and what is seen of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod after;
#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/compare.rs"]
mod compare;
mod donation;
mod executable;
mod in_place;
mod kept;
mod listed;
mod loops;
#[path = "../common/models.rs"]
mod models;
mod parts;
mod passes;
mod profile;
#[path = "../common/recordings.rs"]
mod recordings;
mod remembered;
mod seeing;
mod sizes;
mod together;
#[path = "../../../nx_vulkan_check/tests/check/tools.rs"]
mod tools;
mod vectors;
#[path = "../common/workloads.rs"]
mod workloads;
