//! The template and library modules that are built into the engine.

macro_rules! modules {
    ($dir:literal, $($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../priv/shaders/", $dir, "/", $name, ".spv")))),*]
    };
}

pub const LIBRARIES: &[(&str, &[u8])] = modules!("lib",);

pub const TEMPLATES: &[(&str, &[u8])] = modules!("template", "elementwise", "elementwise_v4", "elementwise_v2");

/// SPIR-V bytes as words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

/// The words of a template by name.
pub fn template(name: &str) -> Option<Vec<u32>> {
    TEMPLATES.iter().find(|(n, _)| *n == name).map(|(_, bytes)| words(bytes))
}
