//! Operations on raw buffers by SPIR-V files that the caller names: the engine's half of `Nx.Vulkan.NativeV`.
//!
//! A file is read, checked and reflected once, and again whenever it changes. A well-formed shader is code: it runs
//! with its caller's trust, and nothing can stop one that never ends.

mod apply;
mod buffers;
mod failure;
mod files;
mod fit;

pub use apply::{MAX_BINARY_OP, MAX_REDUCE_OP, MAX_UNARY_OP, binary, matmul, reduce_axis, transpose_2d, unary};
pub use buffers::{alloc_zeroed, download, upload, upload_into};
pub use failure::Failure;
pub use files::{Shader, ShaderFiles};
pub(crate) use fit::Run;

use crate::Engine;
use std::path::Path;
use std::sync::Arc;

/// What a call gives.
pub type Outcome<T = ()> = std::result::Result<T, Failure>;

/// May a call read, check and compile a shader? That takes milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compile {
    /// It may.
    Allowed,
    /// A shader that is not ready gives [`Failure::NeedsCompile`].
    Refused,
}

/// The shader of one call, and what it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    files: &'a ShaderFiles,
    /// The SPIR-V file.
    path: &'a Path,
    /// Run spirv-val on a file before its first use, where that is installed.
    pub validate: bool,
    /// Whether the call may take milliseconds.
    pub compile: Compile,
}

impl<'a> Call<'a> {
    /// A call of the shader in the file at `path`.
    ///
    /// # Safety
    /// What the file holds whenever it is read, as far as it is well-formed, is code that may run in this process: with
    /// the buffers and numbers of the call it keeps within arrays of its own and shared memory, writes to no element
    /// from two invocations at once, and ends. Devices bound what it does in buffers; CPU devices bound nothing else.
    pub unsafe fn new(
        engine: &'a Arc<Engine>,
        files: &'a ShaderFiles,
        path: &'a Path,
        validate: bool,
        compile: Compile,
    ) -> Call<'a> {
        Call { engine, files, path, validate, compile }
    }

    pub(crate) fn shader(&self) -> Outcome<Arc<Shader>> {
        match (self.files.get(self.path, self.validate), self.compile) {
            (Some(shader), _) => Ok(shader),
            (None, Compile::Refused) => Err(Failure::NeedsCompile),
            (None, Compile::Allowed) => self.files.load(self.path, self.validate),
        }
    }
}
