//! `cargo xtask validate`: spirv-val on every module.

use std::path::Path;
use std::process::Command;

use crate::list::{self, Module, ModuleKind};
use crate::{Error, compile};

const VALIDATOR: &str = "spirv-val";

pub fn all(root: &Path) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(|error| vec![error])?;
    let errors: Vec<Error> = modules.iter().filter_map(|module| validate(root, module).err()).collect();
    if errors.is_empty() { Ok(format!("validate: {} modules are valid", modules.len())) } else { Err(errors) }
}

fn validate(root: &Path, module: &Module) -> Result<(), Error> {
    let path = root.join(module.output());
    let mut command = Command::new(VALIDATOR);
    match module.kind {
        // Vulkan knows no linkage, so libraries are held to the rules of SPIR-V alone.
        ModuleKind::Library => command.args(["--target-env", "spv1.5"]),
        ModuleKind::Kernel | ModuleKind::Example | ModuleKind::Template => {
            command.args(["--target-env", "vulkan1.2", "--scalar-block-layout"])
        }
    };
    let output = compile::run(VALIDATOR, command.arg(&path))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Source { path, reason: String::from_utf8_lossy(&said).trim().to_owned() })
}
