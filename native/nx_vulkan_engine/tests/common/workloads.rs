//! The recordings in `tests/vectors` of what `bench/` measures, in small; bench/README.md says where each is measured.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::Path;

use nx_vulkan_engine::program::file::Recording;

/// Names of the files.
pub const WORKLOADS: [&str; 13] = [
    "tiny_call",
    "while_of_1000_steps",
    "mlp_small_step",
    "mlp_large_step",
    "cnn_step",
    "transformer_block",
    "k_means",
    "k_means_step",
    "pca_variances",
    "logistic_regression",
    "regression_step",
    "eight_schools_gradient",
    "regime_gradient",
];

/// The recording of that name.
pub fn workload(name: &str) -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    Recording::read(&folder.join(name).with_extension("nxp")).unwrap()
}
