//! `cargo xtask validate`: spirv-val on every module, as it is and lowered.

use std::path::{Path, PathBuf};
use std::process::Command;

use nx_vulkan_spirv::lower::{Lacks, lower};

use crate::compile;
use crate::error::{Error, Result};
use crate::list::{self, Module, ModuleKind};
use crate::shaders::{Scratch, in_parallel};

const VALIDATOR: &str = "spirv-val";

/// Devices that lack types, each of which some device lacks without the others.
const LACKING: [Lacks; 4] = [
    Lacks { float64: true, int64: true, int8: true, int16: true },
    Lacks { float64: true, int64: false, int8: false, int16: false },
    Lacks { float64: false, int64: true, int8: false, int16: false },
    Lacks { float64: false, int64: false, int8: true, int16: true },
];

pub fn all(root: &Path) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(|error| vec![error])?;
    let scratch = Scratch::new().map_err(|error| vec![error])?;
    let counts = in_parallel(&modules, |index, module| {
        validate(module, &root.join(module.output()))?;
        lowered(root, module, &scratch.folder(index)?)
    });
    let (mut count, mut errors) = (0, Vec::new());
    for result in counts {
        match result {
            Ok(lowered) => count += lowered,
            Err(error) => errors.push(error),
        }
    }
    let total = modules.len();
    if errors.is_empty() {
        Ok(format!("validate: {total} modules and {count} lowered forms are valid"))
    } else {
        Err(errors)
    }
}

/// Validates the forms that devices get which lack types of the module; answers how many there are.
fn lowered(root: &Path, module: &Module, folder: &Path) -> Result<usize> {
    if matches!(module.kind, ModuleKind::Library | ModuleKind::Soft) {
        return Ok(0);
    }
    let path = root.join(module.output());
    let bytes = std::fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut count = 0;
    for (k, lacks) in LACKING.into_iter().enumerate() {
        let form = lower(&words, lacks)
            .map_err(|error| Error::Source { path: path.clone(), reason: format!("lowering it: {error}") })?;
        if *form == words {
            continue;
        }
        let file: PathBuf = folder.join(format!("{}.{k}.spv", module.name));
        let bytes: Vec<u8> = form.iter().flat_map(|word| word.to_le_bytes()).collect();
        compile::write(&file, &bytes)?;
        validate(module, &file)?;
        count += 1;
    }
    Ok(count)
}

fn validate(module: &Module, path: &Path) -> Result<()> {
    let mut command = Command::new(VALIDATOR);
    match module.kind {
        // Vulkan knows no linkage, so libraries are held to the rules of SPIR-V alone.
        ModuleKind::Library | ModuleKind::Soft => command.args(["--target-env", "spv1.5"]),
        ModuleKind::Kernel | ModuleKind::Example | ModuleKind::Template => {
            command.args(["--target-env", "vulkan1.2", "--scalar-block-layout"])
        }
    };
    let output = compile::run(VALIDATOR, command.arg(path))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Source { path: path.to_owned(), reason: String::from_utf8_lossy(&said).trim().to_owned() })
}
