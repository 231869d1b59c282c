//! Chains of samplers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod eight_schools;
mod families;
mod log_density;
#[path = "../common/models.rs"]
mod models;
mod parts;
#[path = "../common/raw.rs"]
mod raw;
mod transition;
