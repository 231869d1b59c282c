//! The template and library modules that are built into the engine.

use crate::{Error, Result};

macro_rules! modules {
    ($dir:literal, $($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../priv/shaders/", $dir, "/", $name, ".spv")))),*]
    };
}

pub const LIBRARIES: &[(&str, &[u8])] = modules!(
    "lib",
    "nx_cast",
    "nx_cast_f64",
    "nx_cast_f64_int64",
    "nx_cast_int64",
    "nx_f32",
    "nx_f64",
    "nx_c64",
    "nx_c128",
    "nx_int32",
    "nx_int64",
    "nx_reduce",
    "nx_storage",
);

pub const TEMPLATES: &[(&str, &[u8])] = modules!(
    "template",
    "cholesky_block_c128",
    "cholesky_block_c64",
    "cholesky_block_f32",
    "cholesky_block_f64",
    "determinant_c128",
    "determinant_c64",
    "determinant_f32",
    "determinant_f64",
    "dot_1",
    "dot_2",
    "dot_4",
    "dot_f32",
    "eigh_finish_c128",
    "eigh_finish_c64",
    "eigh_finish_f32",
    "eigh_finish_f64",
    "eigh_prepare_c128",
    "eigh_prepare_c64",
    "eigh_prepare_f32",
    "eigh_prepare_f64",
    "eigh_round_c128",
    "eigh_round_c64",
    "eigh_round_f32",
    "eigh_round_f64",
    "eigh_small_c128",
    "eigh_small_c64",
    "eigh_small_f32",
    "eigh_small_f64",
    "elementwise",
    "elementwise_v2",
    "elementwise_v4",
    "gather_rows_c128",
    "gather_rows_c64",
    "gather_rows_f32",
    "gather_rows_f64",
    "lu_panel_c128",
    "lu_panel_c64",
    "lu_panel_f32",
    "lu_panel_f64",
    "lu_rows_c128",
    "lu_rows_c64",
    "lu_rows_f32",
    "lu_rows_f64",
    "qr_panel_c128",
    "qr_panel_c64",
    "qr_panel_f32",
    "qr_panel_f64",
    "rank_update_c128",
    "rank_update_c64",
    "rank_update_f32",
    "rank_update_f64",
    "fold_1",
    "fold_2",
    "fold_4",
    "reduce_columns_1",
    "reduce_columns_2",
    "reduce_columns_4",
    "reduce_rows_1",
    "reduce_rows_1_v2",
    "reduce_rows_1_v4",
    "reduce_rows_2",
    "reduce_rows_2_v2",
    "reduce_rows_2_v4",
    "reduce_rows_4",
    "reduce_rows_4_v2",
    "scan_1",
    "scan_2",
    "scan_4",
    "scatter",
    "solve_block_c128",
    "solve_block_c64",
    "solve_block_f32",
    "solve_block_f64",
    "sort_count_1",
    "sort_count_2",
    "sort_offsets",
    "sort_rows_1",
    "sort_rows_2",
    "sort_scatter_1",
    "sort_scatter_2",
    "svd_finish_f32",
    "svd_finish_f64",
    "svd_norm_f32",
    "svd_norm_f64",
    "svd_prepare_f32",
    "svd_prepare_f64",
    "svd_round_f32",
    "svd_round_f64",
    "transpose_1",
    "transpose_2",
    "transpose_4",
    "window_scatter",
);

/// SPIR-V bytes as words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

/// The words of a template by name.
pub fn template(name: &str) -> Result<Vec<u32>> {
    let found = TEMPLATES.iter().find(|(n, _)| *n == name).map(|(_, bytes)| words(bytes));
    found.ok_or_else(|| Error::BadShader { path: format!("template/{name}.spv"), reason: "not built in".to_string() })
}
