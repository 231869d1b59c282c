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
    "dot_1",
    "dot_2",
    "dot_4",
    "dot_f32",
    "elementwise",
    "elementwise_v4",
    "elementwise_v2",
    "qr_panel_c128",
    "qr_panel_c64",
    "qr_panel_f32",
    "qr_panel_f64",
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
    "transpose_1",
    "transpose_2",
    "transpose_4",
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
