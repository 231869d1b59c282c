//! Calls on raw buffers with the shaders of priv/shaders.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nx_vulkan_engine::nativev::{self, Call, Compile, Outcome, ShaderFiles};
use nx_vulkan_engine::{Buffer, Engine};

use crate::common::{assert_valid, engine};

/// An engine with the files it has read.
pub struct Raw {
    pub engine: Arc<Engine>,
    pub files: ShaderFiles,
}

impl Raw {
    pub fn new() -> Raw {
        Raw { engine: engine(), files: ShaderFiles::default() }
    }

    pub fn call<'a>(&'a self, path: &'a Path) -> Call<'a> {
        // SAFETY: the shaders of tests keep within their bounds, and end.
        unsafe { Call::new(&self.engine, &self.files, path, false, Compile::Allowed) }
    }

    pub fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> Arc<Buffer> {
        nativev::upload(&self.engine, bytemuck::cast_slice(values)).unwrap()
    }

    pub fn zeros(&self, size_bytes: usize) -> Arc<Buffer> {
        nativev::alloc_zeroed(&self.engine, size_bytes as u64).unwrap()
    }

    pub fn download<T: bytemuck::AnyBitPattern>(&self, buffer: &Arc<Buffer>) -> Vec<T> {
        let mut bytes = vec![0; buffer.size_bytes() as usize];
        nativev::download(&self.engine, buffer, &mut bytes).unwrap();
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    pub fn binary(&self, spv: &str, bufs: [&Arc<Buffer>; 3], n: u64, op: i64) -> Outcome {
        let [out, a, b] = bufs;
        nativev::binary(&self.call(&shader(spv)), out, a, b, n, op)
    }

    pub fn unary(&self, spv: &str, bufs: [&Arc<Buffer>; 2], n: u64, op: i64) -> Outcome {
        let [out, a] = bufs;
        nativev::unary(&self.call(&shader(spv)), out, a, n, op)
    }

    pub fn finish(&self) {
        self.engine.wait().unwrap();
        assert_valid(&self.engine);
    }
}

/// A file of priv/shaders.
pub fn shader(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders").join(format!("{name}.spv"))
}
