//! `cargo xtask metal`: whether spirv-cross makes Metal's language of the modules, as MoltenVK does with the same
//! library. Metal has no doubles, so their modules convert in the form that a device without doubles gets.

use std::path::{Path, PathBuf};
use std::process::Command;

use nx_vulkan_spirv::lower::{Lacks, lower};

use crate::compile;
use crate::error::Error;
use crate::list::{self, ModuleKind};
use crate::shaders::{Scratch, in_parallel};

const CONVERTER: &str = "spirv-cross";

/// `OpCapability`, and those of doubles and of what has no form in Metal.
const OP_CAPABILITY: u32 = 17;
const DOUBLES: u32 = 10;
const COOPERATIVE_MATRICES: u32 = 6022;

/// The committed modules, and those of folders, such as `NX_VULKAN_DUMP_SPIRV` fills.
pub fn all(root: &Path, folders: &[&str]) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(|error| vec![error])?;
    let is_library = |kind| matches!(kind, ModuleKind::Library | ModuleKind::Soft);
    let libraries = modules.iter().filter(|module| is_library(module.kind)).count();
    let mut paths: Vec<PathBuf> =
        modules.iter().filter(|module| !is_library(module.kind)).map(|module| root.join(module.output())).collect();
    for folder in folders.iter().map(Path::new) {
        let read = |source| vec![Error::Io { path: folder.to_owned(), source }];
        for entry in std::fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|extension| extension == "spv") {
                paths.push(path);
            }
        }
    }
    let scratch = Scratch::new().map_err(|error| vec![error])?;
    let results = in_parallel(&paths, |index, path| convert(path, &scratch.folder(index)?));
    let (mut converted, mut lowered, mut refused, mut errors) = (0, 0, 0, vec![]);
    for result in results {
        match result {
            Ok(Converted::AsItIs) => converted += 1,
            Ok(Converted::Lowered) => lowered += 1,
            Ok(Converted::CooperativeMatrices) => refused += 1,
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(format!(
        "metal: {converted} modules convert, {lowered} without doubles; not {refused} for cooperative matrices, nor \
         {libraries} libraries"
    ))
}

/// What became of a module.
enum Converted {
    AsItIs,
    /// In the form for devices without doubles.
    Lowered,
    /// Which Metal does not have in this form.
    CooperativeMatrices,
}

fn convert(path: &Path, folder: &Path) -> Result<Converted, Error> {
    let source = |reason: String| Error::Source { path: path.to_owned(), reason };
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let declared = capabilities(&words);
    let (mut file, mut result) = (path.to_owned(), Converted::AsItIs);
    if declared.contains(&DOUBLES) {
        let lacks = Lacks { float64: true, ..Lacks::default() };
        let form = lower(&words, lacks).map_err(|error| source(format!("lowering it: {error}")))?;
        let bytes: Vec<u8> = form.iter().flat_map(|word| word.to_le_bytes()).collect();
        (file, result) = (folder.join("lowered.spv"), Converted::Lowered);
        compile::write(&file, &bytes)?;
    }
    let mut command = Command::new(CONVERTER);
    let output = compile::run(CONVERTER, command.args(["--msl", "--msl-version", "30000"]).arg(&file))?;
    match output.status.success() {
        true => Ok(result),
        false if declared.contains(&COOPERATIVE_MATRICES) => Ok(Converted::CooperativeMatrices),
        false => Err(source(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// What a module declares, which it does before all else.
fn capabilities(words: &[u32]) -> Vec<u32> {
    let declared = words.get(5..).unwrap_or_default().chunks_exact(2);
    declared.take_while(|two| two[0] == 2 << 16 | OP_CAPABILITY).map(|two| two[1]).collect()
}
