//! SPIR-V files by path: read and checked once, and again when the file changes.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nx_vulkan_check::{self, Reflection};
use sha2::{Digest, Sha256};

use super::{Call, Compile, Failure, Outcome};
use crate::{Interface, Pipeline, PipelineKey};

/// Longer files are refused. The largest generated shaders have some hundred KiB.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// A file as young as this when it was read may change once more without its time of change telling: file systems count
/// time in steps of up to two seconds. Until then it is read, though not checked, again.
const RACY: Duration = Duration::from_secs(2);
/// With more modules than this in memory all are forgotten.
const MAX_MODULES: usize = 4096;

/// A checked module.
#[derive(Debug)]
pub struct Shader {
    words: Vec<u32>,
    reflection: Reflection,
    validated: AtomicBool,
    /// Pipeline keys by specialization: hashing the words takes longer than a dispatch.
    keys: Mutex<Vec<(Option<u32>, Interface, PipelineKey)>>,
}

impl Shader {
    /// What the module says of itself.
    pub fn reflection(&self) -> &Reflection {
        &self.reflection
    }

    /// The pipeline with `op` as specialization constant 0.
    pub(super) fn pipeline(&self, call: &Call<'_>, interface: Interface, op: Option<u32>) -> Outcome<Arc<Pipeline>> {
        let spec: Vec<(u32, u32)> = op.map(|op| (0, op)).into_iter().collect();
        let key = self.key(interface, op, &spec);
        if let Some(pipeline) = call.engine.cached_pipeline(key) {
            return Ok(pipeline);
        }
        if call.compile == Compile::Refused {
            return Err(Failure::NeedsCompile);
        }
        // The file is well-formed: what fails now is this device's driver. SAFETY: the module is well-formed and fits
        // the interface (`fit`), and who made the call vouches for what it does ([`Call::new`]).
        let pipeline = unsafe { call.engine.pipeline(key, &self.words, &spec, interface) };
        let pipeline = pipeline.map_err(|error| Failure::Dispatch(format!("{}: {error}", call.path.display())))?;
        pipeline
            .set_label(|| call.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()));
        Ok(pipeline)
    }

    fn key(&self, interface: Interface, op: Option<u32>, spec: &[(u32, u32)]) -> PipelineKey {
        let mut keys = lock(&self.keys);
        if let Some((_, _, key)) = keys.iter().find(|(o, i, _)| *o == op && *i == interface) {
            return *key;
        }
        let key = PipelineKey::new(&self.words, spec, interface);
        keys.push((op, interface, key));
        key
    }
}

/// Tells whether a file is still the one that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    len: u64,
    /// Device, inode and time of the last change of the inode.
    identity: [i64; 4],
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            [metadata.dev() as i64, metadata.ino() as i64, metadata.ctime(), metadata.ctime_nsec()]
        };
        #[cfg(not(unix))]
        let identity = [0; 4];
        Stamp { modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), len: metadata.len(), identity }
    }

    fn is_racy(&self) -> bool {
        // A time in the future is of another clock: never trusted.
        self.modified.elapsed().map_or(true, |age| age < RACY)
    }
}

#[derive(Debug)]
struct Entry {
    stamp: Stamp,
    /// The file was too young to trust the stamp when it was read.
    racy: bool,
    shader: Arc<Shader>,
}

/// The modules that were read.
#[derive(Debug, Default)]
pub struct ShaderFiles {
    by_path: Mutex<HashMap<PathBuf, Entry>>,
    by_content: Mutex<HashMap<[u8; 32], Arc<Shader>>>,
}

impl ShaderFiles {
    /// The module of a file that was read before and has not changed since: one look at the file's metadata.
    /// `validated`: only if spirv-val has seen it.
    pub fn get(&self, path: &Path, validated: bool) -> Option<Arc<Shader>> {
        let shader = {
            let by_path = lock(&self.by_path);
            let entry = by_path.get(path).filter(|entry| !entry.racy)?;
            let unchanged = Stamp::of(&std::fs::metadata(path).ok()?) == entry.stamp;
            unchanged.then(|| Arc::clone(&entry.shader))?
        };
        (!validated || shader.validated.load(Relaxed)).then_some(shader)
    }

    /// Reads and checks a file; with `validate` also by spirv-val, where that is installed.
    ///
    /// # Errors
    /// `SpvRead` when the file can't be read or is no well-formed compute module.
    pub fn load(&self, path: &Path, validate: bool) -> Outcome<Arc<Shader>> {
        let (stamp, bytes) = read(path)?;
        let hash: [u8; 32] = Sha256::digest(&bytes).into();
        let known = lock(&self.by_content).get(&hash).map(Arc::clone);
        let shader = match known {
            Some(shader) => shader,
            None => {
                let shader = Arc::new(check(path, &bytes)?);
                let mut by_content = lock(&self.by_content);
                if by_content.len() >= MAX_MODULES {
                    by_content.clear();
                }
                Arc::clone(by_content.entry(hash).or_insert(shader))
            }
        };
        if validate && !shader.validated.load(Relaxed) {
            nx_vulkan_check::spirv_val(path).map_err(Failure::of_dispatch)?;
            shader.validated.store(true, Relaxed);
        }
        let entry = Entry { racy: stamp.is_racy(), stamp, shader: Arc::clone(&shader) };
        let mut by_path = lock(&self.by_path);
        if by_path.len() >= MAX_MODULES {
            by_path.clear();
        }
        by_path.insert(path.to_path_buf(), entry);
        Ok(shader)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a regular file: a pipe or a device might never end.
fn read(path: &Path) -> Outcome<(Stamp, Vec<u8>)> {
    let refused = |reason: String| Failure::SpvRead(format!("{}: {reason}", path.display()));
    // Looked at before it is opened, as opening a pipe blocks.
    let is_file = std::fs::metadata(path).map_err(|e| refused(e.to_string()))?.is_file();
    if !is_file {
        return Err(refused("not a regular file".into()));
    }
    let file = File::open(path).map_err(|e| refused(e.to_string()))?;
    let metadata = file.metadata().map_err(|e| refused(e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| refused(e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(refused(format!("longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok((Stamp::of(&metadata), bytes))
}

fn check(path: &Path, bytes: &[u8]) -> Outcome<Shader> {
    let reflection = Reflection::of(bytes, &path.display().to_string()).map_err(Failure::of_dispatch)?;
    // Reflection has refused big-endian files.
    let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok(Shader { words, reflection, validated: AtomicBool::new(false), keys: Mutex::default() })
}
