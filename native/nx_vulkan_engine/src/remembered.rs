//! What passes made of programs, on disk. They are a function of a program and of what they are told of the device. So
//! files are found by the hash of these and of this engine's sources, and what is found is what would be made again, by
//! whatever process.

use std::hash::{Hash, Hasher};

use nx_vulkan_device::kernel::MadeKey;
use sha2::{Digest, Sha256};

use crate::program::Program;
use crate::program::passes::{self, Target};
use crate::{Engine, Result};

/// The hash of the sources that this engine is built of: build.rs.
const SOURCES: &str = env!("ENGINE_SOURCES");

/// The folder of these files, beside those of pipelines.
const FOLDER: &str = "programs";

/// Shorter programs pass through the passes in less time than a file takes.
const MIN_PROGRAM: usize = 64;

/// The bytes of what is hashed.
#[derive(Default)]
struct Fed(Vec<u8>);

impl Hasher for Fed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    // Nothing asks for it: the key is the hash of all bytes.
    fn finish(&self) -> u64 {
        0
    }
}

fn key(program: &Program, target: &Target) -> MadeKey {
    let mut fed = Fed::default();
    (SOURCES, FOLDER, format!("{target:?}"), program).hash(&mut fed);
    Sha256::digest(&fed.0).into()
}

/// Whether a program has the inputs and the outputs of another one.
fn is_alike(program: &Program, other: &Program) -> bool {
    program.inputs == other.inputs && program.output_types() == other.output_types()
}

impl Engine {
    /// The program as [`passes::optimize`] makes it for a target, from disk where it is there.
    pub(crate) fn optimized(&self, program: Program, target: &Target) -> Result<Program> {
        let files = self.made_files();
        if !files.are_kept() || program.size() < MIN_PROGRAM {
            return passes::optimize(program, target);
        }
        let key = key(&program, target);
        let found = files.get(FOLDER, &key).and_then(|bytes| Program::from_packed(&bytes).ok());
        if let Some(found) = found.filter(|found| is_alike(found, &program)) {
            return Ok(found);
        }
        let optimized = passes::optimize(program, target)?;
        let bytes = optimized.to_packed();
        // Numbers that files have no form for stay out of them.
        if Program::from_packed(&bytes).is_ok_and(|read| read == optimized) {
            files.put(FOLDER, &key, &bytes);
        }
        Ok(optimized)
    }
}
