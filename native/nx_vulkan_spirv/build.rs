//! Packs the library and template modules of `priv/shaders` into one archive, which is built into the crate.
//!
//! The archive is a sequence of packs: the library, and each family of templates (the name up to the first `_`), large
//! families in several. A pack is what is unpacked at once. Before compression its words are split into four planes of
//! bytes: those of the high bytes are nearly all zeros. A table of packs and modules is written beside it, as Rust, and
//! the order in which `kernels.toml` lists the library's modules: which one a function comes from depends on it.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Error, Result, Write as _};
use std::path::{Path, PathBuf};

/// Packs of templates grow no larger, so that the first kernel of a large family does not pay for all.
const PACK_BYTES: usize = 256 << 10;

/// Modules that are compressed together.
#[derive(Default)]
struct Pack {
    family: String,
    /// Path and words of each module.
    modules: Vec<(String, usize)>,
    bytes: Vec<u8>,
}

fn main() -> Result<()> {
    let shaders = shaders(&folder("CARGO_MANIFEST_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    let mut packs: Vec<Pack> = Vec::new();
    for kind in ["lib", "soft", "template"] {
        println!("cargo::rerun-if-changed={}", shaders.join(kind).display());
        for (name, bytes) in modules(&shaders.join(kind))? {
            let family = format!("{kind}/{}", name.split('_').next().unwrap_or_default());
            let fits = |pack: &Pack| kind == "lib" || pack.bytes.len() + bytes.len() <= PACK_BYTES;
            if !packs.last().is_some_and(|pack| pack.family == family && fits(pack)) {
                packs.push(Pack { family, ..Pack::default() });
            }
            if let Some(pack) = packs.last_mut() {
                pack.modules.push((format!("{kind}/{name}"), bytes.len() / 4));
                pack.bytes.extend(bytes);
            }
        }
    }
    let list = shaders.join("kernels.toml");
    println!("cargo::rerun-if-changed={}", list.display());
    let list = std::fs::read_to_string(list)?;
    let (archive, mut table) = compressed(&packs)?;
    table += &format!("static LIBRARIES: &[&str] = &{:?};\n", libraries(&list));
    let out = folder("OUT_DIR")?;
    std::fs::write(out.join("modules.bin"), archive)?;
    std::fs::write(out.join("modules.rs"), table)
}

/// Where the modules are: in a checkout and in the Hex package beside the Elixir code, in this crate's package within.
fn shaders(crate_folder: &Path) -> PathBuf {
    let beside = crate_folder.join("../../priv/shaders");
    if beside.is_dir() { beside } else { crate_folder.join("shaders") }
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

/// The archive, and the Rust text of the table, whose modules are sorted by path.
fn compressed(packs: &[Pack]) -> Result<(Vec<u8>, String)> {
    let mut archive = Vec::new();
    let mut pack_rows = String::new();
    let mut module_rows = String::new();
    for (index, pack) in packs.iter().enumerate() {
        let mut first = 0;
        for (path, words) in &pack.modules {
            let end = first + words;
            // Writing to a String does not fail.
            let _ = writeln!(module_rows, "({path:?}, Location {{ pack: {index}, words: {first}..{end} }}),");
            first = end;
        }
        let planes: Vec<u8> = (0..4).flat_map(|plane| pack.bytes.iter().copied().skip(plane).step_by(4)).collect();
        let start = archive.len();
        let mut encoder = DeflateEncoder::new(archive, Compression::best());
        encoder.write_all(&planes)?;
        archive = encoder.finish()?;
        let _ = writeln!(pack_rows, "Pack::new({start}..{}, {first}),", archive.len());
    }
    let count = packs.len();
    let packs = format!("static PACKS: [Pack; {count}] = [\n{pack_rows}];\n");
    let modules = format!("static MODULES: &[(&str, Location)] = &[\n{module_rows}];\n");
    Ok((archive, packs + &modules))
}
