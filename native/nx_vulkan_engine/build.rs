//! Hashes the sources of what the engine makes of programs, so that what one build has left on disk is found by that
//! build and its like alone.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// From the folder of this crate.
const SOURCES: [&str; 8] = [
    "src",
    "../nx_vulkan_ir/src",
    "../nx_vulkan_spirv/src",
    "../../priv/shaders/lib",
    "../../priv/shaders/soft",
    "../../priv/shaders/template",
    "../../priv/shaders/kernels.toml",
    "../../Cargo.lock",
];

fn main() -> Result<()> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = root.ok_or_else(|| Error::other("CARGO_MANIFEST_DIR is not set"))?;
    println!("cargo::rerun-if-changed=build.rs");
    let mut hash = Sha256::new();
    for name in SOURCES {
        let path = root.join(name);
        // A package of this crate has no others beside it: its version says which they are.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
            feed(&mut hash, name, &path)?;
        }
    }
    for variable in ["TARGET", "CARGO_PKG_VERSION"] {
        hash.update(std::env::var(variable).unwrap_or_default());
        hash.update([0]);
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("cargo::rustc-env=ENGINE_SOURCES={digits}");
    Ok(())
}

/// The names and bytes of a file, or of all files in a folder, in the order of their names.
fn feed(hash: &mut Sha256, name: &str, path: &Path) -> Result<()> {
    let located = |e: Error| Error::other(format!("{}: {e}", path.display()));
    if !path.is_dir() {
        let bytes = std::fs::read(path).map_err(located)?;
        hash.update(format!("{name}\0{}\0", bytes.len()));
        hash.update(bytes);
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(located)?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    names.iter().try_for_each(|file| feed(hash, &format!("{name}/{}", file.to_string_lossy()), &path.join(file)))
}
