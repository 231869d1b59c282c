//! `cargo xtask shaders [--check]`.

use crate::error::{Error, Result};
use crate::list::Module;
use crate::lock::{self, Entry, Lock};
use crate::{compile, list};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The folders of `priv/shaders` that hold built modules.
pub const OUTPUT_FOLDERS: [&str; 4] = ["", "examples", "lib", "template"];

/// Builds every module whose sources, output or tools have changed, and writes the lock.
pub fn build(root: &Path) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(one)?;
    // A lock that can't be read, say with the marks of a merge in it, is written anew.
    let old = Lock::read(root).unwrap_or_default();
    let compiler = compile::tool_versions().map_err(one)?;
    for folder in OUTPUT_FOLDERS {
        let path = root.join(folder);
        std::fs::create_dir_all(&path).map_err(|source| vec![Error::Io { path, source }])?;
    }
    let scratch = Scratch::new().map_err(one)?;
    let results =
        in_parallel(&modules, |index, module| build_one(root, module, &old, &compiler, &scratch.folder(index)?));
    let mut lock = Lock { compiler, ..Lock::default() };
    let mut errors = Vec::new();
    let mut built = 0;
    for (module, result) in modules.iter().zip(results) {
        match result {
            Ok((entry, is_new)) => {
                built += usize::from(is_new);
                lock.entries.insert(module.output(), entry);
            }
            Err(error) => {
                errors.push(error);
                // A module that failed keeps its old lock entry: its sources no longer agree, so --check tells.
                if let Some(entry) = old.entries.get(&module.output()) {
                    lock.entries.insert(module.output(), entry.clone());
                }
            }
        }
    }
    let strays = strays(root, &lock).map_err(one)?;
    for stray in &strays {
        if let Err(source) = std::fs::remove_file(root.join(stray)) {
            let path = root.join(stray);
            errors.push(Error::Io { path, source });
        }
    }
    if lock != old {
        compile::write(&root.join(lock::LOCK), lock.to_text().as_bytes()).map_err(one)?;
    }
    let removed = strays.len();
    let total = modules.len();
    if errors.is_empty() {
        Ok(format!("shaders: {total} modules, {built} built, {removed} removed"))
    } else {
        Err(errors)
    }
}

fn build_one(root: &Path, module: &Module, old: &Lock, compiler: &str, scratch: &Path) -> Result<(Entry, bool)> {
    let source = lock::hash_sources(root, module)?;
    let path = root.join(module.output());
    if let Some(entry) = old.entries.get(&module.output())
        && entry.source == source
        && old.compiler == compiler
        && std::fs::read(&path).is_ok_and(|bytes| lock::hash(&bytes) == entry.output)
    {
        return Ok((entry.clone(), false));
    }
    let words = compile::compile(root, module, scratch)?;
    compile::write(&path, &words)?;
    let output = lock::hash(&words);
    Ok((Entry { source, output }, true))
}

/// Checks that list, sources, modules and lock agree. Needs no compiler; where the one that built them is installed,
/// every module is also built again and compared.
pub fn check(root: &Path) -> Result<String, Vec<Error>> {
    let modules = list::read(root).map_err(one)?;
    let lock = Lock::read(root).map_err(one)?;
    let rebuild = compile::tool_versions().is_ok_and(|compiler| compiler == lock.compiler);
    let scratch = Scratch::new().map_err(one)?;
    let results = in_parallel(&modules, |index, module| {
        check_one(root, module, &lock)?;
        if rebuild {
            let words = compile::compile(root, module, &scratch.folder(index)?)?;
            let same = lock.entries.get(&module.output()).map(|e| &e.output) == Some(&lock::hash(&words));
            agree(root, module, same, "building it again gives other words")?;
        }
        Ok(())
    });
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let listed: Vec<String> = modules.iter().map(Module::output).collect();
    let unlisted = lock.entries.keys().filter(|output| !listed.contains(output));
    let strays = strays(root, &lock).map_err(one)?;
    errors.extend(
        unlisted
            .chain(&strays)
            .map(|output| Error::Source { path: root.join(output), reason: "is not listed".to_owned() }),
    );
    if !errors.is_empty() {
        return Err(errors);
    }
    let how = if rebuild {
        "built again and equal"
    } else {
        "hashes agree; not built again, since the compiler of the lock is not installed"
    };
    Ok(format!("shaders: {} modules, {how}", modules.len()))
}

fn check_one(root: &Path, module: &Module, lock: &Lock) -> Result<()> {
    let path = root.join(module.output());
    let source = lock::hash_sources(root, module)?;
    let bytes = std::fs::read(&path).map_err(|source| Error::Io { path, source })?;
    let entry = lock.entries.get(&module.output());
    agree(root, module, entry.is_some(), "is not in the lock")?;
    let same_source = entry.is_some_and(|entry| entry.source == source);
    agree(root, module, same_source, "its sources have changed since it was built")?;
    let same_output = entry.is_some_and(|entry| entry.output == lock::hash(&bytes));
    agree(root, module, same_output, "is not the file that was built")
}

fn agree(root: &Path, module: &Module, agrees: bool, reason: &str) -> Result<()> {
    if agrees {
        return Ok(());
    }
    Err(Error::Source { path: root.join(module.output()), reason: format!("{reason}; run cargo xtask shaders") })
}

/// Modules on disk that no lock entry knows, relative to `root`.
fn strays(root: &Path, lock: &Lock) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in OUTPUT_FOLDERS {
        let path = root.join(folder);
        let files = match std::fs::read_dir(&path) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(Error::Io { path, source }),
        };
        for file in files {
            let file = file.map_err(|source| Error::Io { path: path.clone(), source })?;
            let name = file.file_name().to_string_lossy().into_owned();
            let output = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if output.ends_with(".spv") && !lock.entries.contains_key(&output) {
                found.push(output);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn one(error: Error) -> Vec<Error> {
    vec![error]
}

/// Runs `work` on every item, such as a module, with as many threads as there are cores; results in the order of
/// `items`.
pub fn in_parallel<I: Sync, T: Send>(items: &[I], work: impl Fn(usize, &I) -> Result<T> + Sync) -> Vec<Result<T>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else {
                        break;
                    };
                    let result = work(index, item);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A temporary folder that goes when the build ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch> {
        let name = format!("nx_vulkan-shaders-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        create(&path)?;
        Ok(Scratch(path))
    }

    pub fn folder(&self, index: usize) -> Result<PathBuf> {
        let path = self.0.join(index.to_string());
        create(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-over temporary files are the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn create(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}
