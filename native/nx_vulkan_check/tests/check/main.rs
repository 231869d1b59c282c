//! The check of foreign SPIR-V. Needs no device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod flow;
mod layout;
mod mutations;
mod random;
mod reading;
mod structure;
mod targets;
mod tools;
