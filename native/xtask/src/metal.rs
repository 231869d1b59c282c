//! `cargo xtask metal`: whether spirv-cross makes Metal's language of the modules, as MoltenVK does with the same library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::list::{self, ModuleKind};
use crate::{Error, compile};

const CONVERTER: &str = "spirv-cross";

/// `OpCapability`, and the capabilities whose modules have no form in Metal.
const OP_CAPABILITY: u32 = 17;
const WITHOUT_METAL: [(u32, &str); 2] = [(10, "doubles"), (6022, "cooperative matrices")];

/// The committed modules, and those of folders, such as `NX_VULKAN_DUMP_SPIRV` fills.
pub fn all(root: &Path, folders: &[&str]) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(|error| vec![error])?;
    let libraries = modules.iter().filter(|module| module.kind == ModuleKind::Library).count();
    let mut paths: Vec<PathBuf> = modules
        .iter()
        .filter(|module| module.kind != ModuleKind::Library)
        .map(|module| root.join(module.output()))
        .collect();
    for folder in folders.iter().map(Path::new) {
        let read = |source| vec![Error::Io { path: folder.to_owned(), source }];
        for entry in std::fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|extension| extension == "spv") {
                paths.push(path);
            }
        }
    }
    let (mut converted, mut refused, mut errors) = (0, [0; WITHOUT_METAL.len()], vec![]);
    for path in &paths {
        match convert(path) {
            Ok(None) => converted += 1,
            Ok(Some(reason)) => refused[reason] += 1,
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let refused: Vec<String> =
        refused.iter().zip(WITHOUT_METAL).map(|(n, (_, what))| format!("{n} for {what}")).collect();
    Ok(format!("metal: {converted} modules convert, none of {} and of {libraries} libraries", refused.join(", ")))
}

/// Whether a module converts, or the place of the reason why it need not.
fn convert(path: &Path) -> Result<Option<usize>, Error> {
    let mut command = Command::new(CONVERTER);
    let output = compile::run(CONVERTER, command.args(["--msl", "--msl-version", "30000"]).arg(path))?;
    if output.status.success() {
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let declared = capabilities(&bytes);
    let reason = WITHOUT_METAL.iter().position(|(capability, _)| declared.contains(capability));
    reason.map(Some).ok_or_else(|| Error::Source {
        path: path.to_owned(),
        reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// What a module declares, which it does before all else.
fn capabilities(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).skip(5);
    let words: Vec<u32> = words.collect();
    words.chunks_exact(2).take_while(|two| two[0] == 2 << 16 | OP_CAPABILITY).map(|two| two[1]).collect()
}
