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

pub type Outcome<T = ()> = std::result::Result<T, Failure>;

/// May a call read, check and compile a shader? That takes milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compile {
    Allowed,
    /// A shader that is not ready gives [`Failure::NeedsCompile`].
    Refused,
}

/// The shader of one call, and what it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub engine: &'a Arc<Engine>,
    pub files: &'a ShaderFiles,
    /// The SPIR-V file.
    pub path: &'a Path,
    /// Run spirv-val on a file before its first use, where that is installed.
    pub validate: bool,
    pub compile: Compile,
}

impl Call<'_> {
    pub(crate) fn shader(&self) -> Outcome<Arc<Shader>> {
        match (self.files.get(self.path, self.validate), self.compile) {
            (Some(shader), _) => Ok(shader),
            (None, Compile::Refused) => Err(Failure::NeedsCompile),
            (None, Compile::Allowed) => self.files.load(self.path, self.validate),
        }
    }
}
