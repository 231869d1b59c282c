//! The template and library modules: an archive that is built into the crate, unpacked pack by pack when needed.

use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status};
use nx_vulkan_ir::{Error, Result};
use once_cell::sync::OnceCell;

static ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/modules.bin"));

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Modules that are compressed together: the library, or templates of one family.
#[derive(Debug)]
struct Pack {
    packed: Range<usize>,
    words: usize,
    unpacked: OnceCell<Vec<u32>>,
}

/// Where a module is.
#[derive(Debug)]
struct Location {
    pack: usize,
    words: Range<usize>,
}

impl Pack {
    const fn new(packed: Range<usize>, words: usize) -> Pack {
        Pack { packed, words, unpacked: OnceCell::new() }
    }

    /// All words of the pack; `None` if the archive is damaged.
    fn words(&self) -> Option<&[u32]> {
        self.unpacked.get_or_try_init(|| self.unpack().ok_or(())).ok().map(Vec::as_slice)
    }

    fn unpack(&self) -> Option<Vec<u32>> {
        let mut planes = vec![0; 4 * self.words];
        let mut decoder = Decompress::new(false);
        let status =
            decoder.decompress(ARCHIVE.get(self.packed.clone())?, &mut planes, FlushDecompress::Finish).ok()?;
        if status != Status::StreamEnd || decoder.total_out() != planes.len() as u64 {
            return None;
        }
        let (low, high) = planes.split_at(2 * self.words);
        let (b0, b1) = low.split_at(self.words);
        let (b2, b3) = high.split_at(self.words);
        let bytes = b0.iter().zip(b1).zip(b2.iter().zip(b3));
        Some(bytes.map(|((&b0, &b1), (&b2, &b3))| u32::from_le_bytes([b0, b1, b2, b3])).collect())
    }
}

/// The paths of all modules that are built in, below `priv/shaders` and without `.spv`, sorted.
#[cfg(test)]
fn paths() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|(path, _)| *path)
}

/// The words of a module by path.
pub fn module(path: &str) -> Result<&'static [u32]> {
    let bad = |reason: &str| Error::BadShader { path: format!("{path}.spv"), reason: reason.to_string() };
    let index = MODULES.binary_search_by_key(&path, |(path, _)| path).map_err(|_| bad("not built in"))?;
    let place = &MODULES[index].1;
    let words = PACKS[place.pack].words().and_then(|words| words.get(place.words.clone()));
    words.ok_or_else(|| bad("the archive is damaged"))
}

/// Names and words of the library's modules, in the order in which functions are searched in them.
pub fn libraries() -> Result<Vec<(&'static str, &'static [u32])>> {
    LIBRARIES.iter().map(|name| Ok((*name, module(&format!("lib/{name}"))?))).collect()
}

/// The words of a module of operations that a device may lack.
pub fn soft(name: &str) -> Result<&'static [u32]> {
    module(&format!("soft/{name}"))
}

/// The words of a template by name.
pub fn template(name: &str) -> Result<&'static [u32]> {
    module(&format!("template/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// Every module of the folders is in the archive with the same words, and nothing else.
    #[test]
    fn the_archive_holds_the_folders() {
        let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders");
        let mut files = BTreeMap::new();
        for folder in ["lib", "soft", "template"] {
            for file in std::fs::read_dir(shaders.join(folder)).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "spv") {
                    let name = format!("{folder}/{}", path.file_stem().unwrap().to_string_lossy());
                    let bytes = std::fs::read(path).unwrap();
                    let words =
                        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>();
                    files.insert(name, words);
                }
            }
        }
        let built_in: BTreeMap<String, Vec<u32>> =
            paths().map(|path| (path.to_string(), module(path).unwrap().to_vec())).collect();
        assert!(built_in.keys().eq(files.keys()));
        assert!(built_in == files, "words differ");
    }

    #[test]
    fn the_library_is_all_of_its_folder() {
        let mut listed: Vec<String> = LIBRARIES.iter().map(|name| format!("lib/{name}")).collect();
        listed.sort();
        assert!(listed.iter().map(String::as_str).eq(paths().filter(|path| path.starts_with("lib/"))));
    }

    #[test]
    fn an_unknown_template_is_an_error() {
        assert!(template("no_such_template").is_err());
    }
}
