//! Reads SPIR-V that comes from elsewhere: is it well-formed, what does it need, how is it called.
//!
//! `Reflection::of` takes any byte string and gives a [`Reflection`] or [`Error::BadShader`]; it never panics and
//! always ends. What it checks are the words, ids, types, functions and blocks that a driver takes for granted: each
//! instruction has a rule for the types of its operands and its result, each decoration one for what it stands on, and
//! what has none is refused. Control flow is structured, as drivers translate it, and what buffers hold is laid out.
//! [`spirv_val`] runs the validator of SPIRV-Tools where that is installed. A well-formed shader is code, and runs with
//! its caller's trust.
#![forbid(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod annotations;
mod blocks;
mod check;
mod extended;
pub mod floats;
mod graph;
mod invocations;
mod layout;
mod operands;
mod parse;
mod parts;
mod reflect;
mod rules;
mod structure;
mod types;

pub use reflect::{Binding, Reflection};

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use nx_vulkan_ir::{Error, Result};

/// "No child processes", of every Unix.
const ECHILD: i32 = 10;

/// The module with every float operation uncontracted, and with signed zeros, infinities and NaN kept: what the scalar
/// functions of `priv/shaders/include` rely on, and GLSL can't state.
///
/// # Errors
/// `BadShader` for bytes that [`Reflection::of`] refuses.
pub fn exact_floats(bytes: &[u8], path: &str) -> Result<Vec<u8>> {
    Reflection::of(bytes, path)?;
    floats::preserve(bytes).map_err(|reason| Error::BadShader { path: path.into(), reason })
}

/// Runs `spirv-val` of SPIRV-Tools on a file, by the rules of Vulkan 1.2. `Ok(false)` when it is not installed.
///
/// # Errors
/// `BadShader` with the validator's words when it rejects the file; `Io` when it can't be run.
pub fn spirv_val(path: &Path) -> Result<bool> {
    let shown = path.display().to_string();
    match run_spirv_val(path) {
        Ok((true, _)) => Ok(true),
        Ok((false, said)) => Err(Error::BadShader { path: shown, reason: format!("spirv-val: {}", said.trim()) }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::Io { path: shown, cause: format!("spirv-val can't be run: {e}") }),
    }
}

/// Did it accept the file, and what did it say?
fn run_spirv_val(path: &Path) -> std::io::Result<(bool, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    let mut child = {
        let mut command = Command::new("spirv-val");
        command.args(["--target-env", "vulkan1.2", "--scalar-block-layout"]).arg(path);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?
    };
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said).into_owned();
    match child.wait() {
        Ok(status) => Ok((status.success(), said)),
        // In a process that ignores SIGCHLD, as the BEAM does, the status is lost. It says nothing to a valid file.
        Err(e) if e.raw_os_error() == Some(ECHILD) => Ok((said.trim().is_empty(), said)),
        Err(e) => Err(e),
    }
}
