//! Single ops on a device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/compare.rs"]
mod compare;
#[path = "../../examples/ulp_sweep/double.rs"]
#[allow(dead_code)]
mod double;
#[path = "../../examples/ulp_sweep/double_double.rs"]
mod double_double;
mod eager;
mod matrix_units;
mod op_table;
mod prebuilt;
mod reach;
mod residues;
mod scalar;
mod transfer;
