//! Reads SPIR-V that comes from elsewhere: is it well-formed, what does it need, how is it called.
//!
//! `Reflection::of` takes any byte string and gives a [`Reflection`] or [`Error::BadShader`]; it never panics and always ends. What it
//! checks are the words, ids, types, functions and blocks that a driver takes for granted. It is no full validator: [`spirv_val`] runs
//! the one of SPIRV-Tools where that is installed. A well-formed shader is code, and runs with its caller's trust.

mod check;
mod parse;
mod reflect;
mod types;

pub use reflect::{Binding, Reflection};

use crate::{Error, Result};
use std::path::Path;
use std::process::Command;

/// Runs `spirv-val` of SPIRV-Tools on a file, by the rules of Vulkan 1.2. `Ok(false)` when it is not installed.
///
/// # Errors
/// `BadShader` with the validator's words when it rejects the file; `Io` when it can't be run.
pub fn spirv_val(path: &Path) -> Result<bool> {
    let shown = path.display().to_string();
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.2", "--scalar-block-layout"]);
    match command.arg(path).output() {
        Ok(output) if output.status.success() => Ok(true),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Err(Error::BadShader {
                path: shown,
                reason: format!("spirv-val: {}", String::from_utf8_lossy(&said).trim()),
            })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::Io { path: shown, cause: format!("spirv-val can't be run: {e}") }),
    }
}
