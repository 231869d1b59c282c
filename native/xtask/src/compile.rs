//! One module from GLSL to words: glslangValidator, spirv-opt, then the float pass.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nx_vulkan_check::floats;

use crate::error::{Error, Result};
use crate::list::{Module, ModuleKind};

const COMPILER: &str = "glslangValidator";
const OPTIMISER: &str = "spirv-opt";

/// What spirv-opt may do: nothing that folds or reorders float arithmetic, since it does not know the float modes,
/// and no inlining, since functions are imported by name.
const PASSES: [&str; 6] = [
    "--eliminate-local-single-block",
    "--eliminate-local-single-store",
    "--ssa-rewrite",
    "--eliminate-dead-code-aggressive",
    "--merge-blocks",
    "--compact-ids",
];

/// The versions of the tools, for the lock. The same versions build the same words.
pub fn tool_versions() -> Result<String> {
    let compiler = version_line(COMPILER)?;
    let optimiser = version_line(OPTIMISER)?;
    Ok(format!("{compiler}, {optimiser}"))
}

fn version_line(tool: &'static str) -> Result<String> {
    let output = run(tool, Command::new(tool).arg("--version"))?;
    // spirv-opt prints its version on stderr.
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    let mut lines = text.lines().map(str::trim);
    Ok(lines.find(|line| !line.is_empty()).unwrap_or_default().to_owned())
}

pub fn run(tool: &'static str, command: &mut Command) -> Result<Output> {
    command.output().map_err(|source| Error::Tool { tool, source })
}

/// Builds one module. `scratch` is a folder of its own for temporary files.
pub fn compile(root: &Path, module: &Module, scratch: &Path) -> Result<Vec<u8>> {
    let raw = scratch.join("raw.spv");
    let small = scratch.join("small.spv");
    let mut command = Command::new(COMPILER);
    command.args(["-V", "--target-env", "vulkan1.2", "-S", "comp"]);
    command.arg(format!("-I{}", root.join("include").display()));
    for (name, value) in &module.defines {
        command.arg(format!("-D{name}={value}"));
    }
    match module.kind {
        ModuleKind::Library | ModuleKind::Soft => {
            let wrapper = scratch.join("library.comp");
            write(&wrapper, library_wrapper(module).as_bytes())?;
            command.arg("--no-link").arg(wrapper);
        }
        ModuleKind::Kernel | ModuleKind::Example | ModuleKind::Template => {
            command.arg(root.join(&module.source));
        }
    }
    run_on(module, COMPILER, command.arg("-o").arg(&raw))?;

    let mut command = Command::new(OPTIMISER);
    command.args(PASSES);
    if module.kind != ModuleKind::Template {
        command.arg("--strip-debug");
    }
    run_on(module, OPTIMISER, command.arg(&raw).arg("-o").arg(&small))?;

    let words = std::fs::read(&small).map_err(|source| Error::Io { path: small, source })?;
    floats::preserve(&words).map_err(|reason| source_error(module, &reason))
}

fn library_wrapper(module: &Module) -> String {
    let mut text = String::from("#version 460\n#extension GL_GOOGLE_include_directive : require\n");
    for extension in &module.extensions {
        // Writing to a String does not fail.
        let _ = writeln!(text, "#extension {extension} : require");
    }
    let _ = writeln!(text, "#include \"{}.glsl\"", module.name);
    text
}

fn run_on(module: &Module, tool: &'static str, command: &mut Command) -> Result<()> {
    let output = run(tool, command)?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(source_error(module, &format!("{tool}:\n{}", said.trim())))
}

fn source_error(module: &Module, reason: &str) -> Error {
    Error::Source { path: PathBuf::from(&module.source), reason: format!("building {}: {reason}", module.output()) }
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|source| Error::Io { path: path.to_owned(), source })
}
