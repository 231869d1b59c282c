//! Packs the library and template modules of `priv/shaders` into one archive, which is built into the crate.
//!
//! The archive is a sequence of groups: the library, and each family of templates (the name up to the first `_`). A
//! group is what is unpacked at once. Before compression its words are split into four planes of bytes: those of the
//! high bytes are nearly all zeros. A table of groups and modules is written beside it, as Rust, and the order in which
//! `kernels.toml` lists the library's modules: which one a function comes from depends on it.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Error, Result, Write as _};
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let shaders = folder("CARGO_MANIFEST_DIR")?.join("../../priv/shaders");
    println!("cargo::rerun-if-changed=build.rs");
    let mut groups: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for kind in ["lib", "template"] {
        println!("cargo::rerun-if-changed={}", shaders.join(kind).display());
        for (name, bytes) in modules(&shaders.join(kind))? {
            let family = name.split('_').next().unwrap_or_default();
            groups.entry(format!("{kind}/{family}")).or_default().push((format!("{kind}/{name}"), bytes));
        }
    }
    let list = shaders.join("kernels.toml");
    println!("cargo::rerun-if-changed={}", list.display());
    let list = std::fs::read_to_string(list)?;
    let (archive, mut table) = pack(groups)?;
    table += &format!("static LIBRARIES: &[&str] = &{:?};\n", libraries(&list));
    let out = folder("OUT_DIR")?;
    std::fs::write(out.join("modules.bin"), archive)?;
    std::fs::write(out.join("modules.rs"), table)
}

fn folder(variable: &str) -> Result<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).ok_or_else(|| Error::other(format!("{variable} is not set")))
}

/// The names of the library's modules, in the order of the list: the line after each `[[library]]`.
fn libraries(list: &str) -> Vec<&str> {
    let lines = list.lines().skip_while(|line| *line != "[[library]]");
    let pairs = lines.clone().zip(lines.skip(1)).filter(|(header, _)| *header == "[[library]]");
    pairs.filter_map(|(_, line)| line.strip_prefix("name = \"")?.strip_suffix('"')).collect()
}

/// Names and bytes of all modules in a folder.
fn modules(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::other(format!("{}: {e}", folder.display())))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "spv") {
            continue;
        }
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let bytes = std::fs::read(&path)?;
        if bytes.len() % 4 != 0 {
            return Err(Error::other(format!("{} is no sequence of words", path.display())));
        }
        found.insert(name, bytes);
    }
    Ok(found)
}

/// The archive, and the Rust text of the table.
fn pack(groups: BTreeMap<String, Vec<(String, Vec<u8>)>>) -> Result<(Vec<u8>, String)> {
    let mut archive = Vec::new();
    let mut group_rows = String::new();
    // By path, since modules are looked up so; groups of names are not in the order of their modules.
    let mut module_rows = BTreeMap::new();
    let count = groups.len();
    for (index, group) in groups.into_values().enumerate() {
        let start = archive.len();
        let mut bytes = Vec::new();
        for (path, module) in group {
            let first = bytes.len() / 4;
            bytes.extend(module);
            let row = format!("({path:?}, Place {{ group: {index}, words: {first}..{} }}),\n", bytes.len() / 4);
            module_rows.insert(path, row);
        }
        let planes: Vec<u8> = (0..4).flat_map(|plane| bytes.iter().copied().skip(plane).step_by(4)).collect();
        let mut encoder = DeflateEncoder::new(archive, Compression::best());
        encoder.write_all(&planes)?;
        archive = encoder.finish()?;
        // Writing to a String does not fail.
        let _ = writeln!(group_rows, "Group::new({start}..{}, {}),", archive.len(), bytes.len() / 4);
    }
    let module_rows: String = module_rows.into_values().collect();
    let groups = format!("static GROUPS: [Group; {count}] = [\n{group_rows}];\n");
    let modules = format!("static MODULES: &[(&str, Place)] = &[\n{module_rows}];\n");
    Ok((archive, groups + &modules))
}
