//! `shaders.lock`: what each committed module was built from, and its own hash.

use crate::error::{Error, Result};
use crate::list::Module;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub const LOCK: &str = "shaders.lock";

/// Part of every source hash: raise it when the build itself changes what it emits.
const RECIPE: &str = "1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub source: String,
    pub output: String,
}

/// The lock file: the compiler that built the modules, and one entry per output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pub compiler: String,
    pub entries: BTreeMap<String, Entry>,
}

impl Lock {
    /// The lock in `root`; an empty one where there is none.
    pub fn read(root: &Path) -> Result<Lock> {
        let path = root.join(LOCK);
        match std::fs::read_to_string(&path) {
            Ok(text) => Lock::parse(&text).map_err(|reason| Error::Source { path, reason }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Lock::default()),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    fn parse(text: &str) -> Result<Lock, String> {
        let mut lock = Lock::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(compiler) = line.strip_prefix("compiler ") {
                lock.compiler = compiler.to_owned();
                continue;
            }
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [output, source, hash] = fields.as_slice() else {
                return Err(format!("{line:?} is no lock entry; run cargo xtask shaders"));
            };
            let entry = Entry { source: (*source).to_owned(), output: (*hash).to_owned() };
            lock.entries.insert((*output).to_owned(), entry);
        }
        Ok(lock)
    }

    pub fn to_text(&self) -> String {
        let mut text = format!(
            "# Written by `cargo xtask shaders`: module, hash of its sources, hash of the module.\ncompiler {}\n",
            self.compiler
        );
        for (output, entry) in &self.entries {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{output} {} {}", entry.source, entry.output);
        }
        text
    }
}

pub fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hash of everything that decides a module's words: its source, all that it includes, defines, extensions, kind.
pub fn hash_sources(root: &Path, module: &Module) -> Result<String> {
    let mut digest = Sha256::new();
    digest.update(format!("{RECIPE}\0{:?}\0{:?}\0{:?}\0", module.kind, module.defines, module.extensions));
    let mut seen = BTreeSet::new();
    let mut pending = vec![root.join(&module.source)];
    while let Some(path) = pending.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        digest.update(text.as_bytes());
        digest.update([0]);
        // A file that is not there may be included under a condition that does not hold; else the compiler reports it.
        let includes = text.lines().filter_map(included);
        pending.extend(includes.filter_map(|name| find_include(root, &path, name)));
    }
    Ok(hex(&digest.finalize()))
}

fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let name = rest.strip_prefix("include")?.trim_start();
    name.strip_prefix('"')?.split('"').next()
}

fn find_include(root: &Path, from: &Path, name: &str) -> Option<PathBuf> {
    let beside = from.parent().map(|folder| folder.join(name));
    let candidates = [beside, Some(root.join("include").join(name))];
    candidates.into_iter().flatten().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_survives_writing_and_reading() {
        let mut lock = Lock { compiler: "glslang 1 spirv-opt 2".into(), ..Lock::default() };
        let entry = Entry { source: "aa".into(), output: "bb".into() };
        lock.entries.insert("lib/x.spv".into(), entry);
        assert_eq!(Lock::parse(&lock.to_text()).unwrap(), lock);
        assert!(Lock::parse("one two").is_err());
    }

    #[test]
    fn include_lines_are_found() {
        assert_eq!(included("#include \"a.glsl\""), Some("a.glsl"));
        assert_eq!(included("  # include  \"b.glsl\" // why"), Some("b.glsl"));
        assert_eq!(included("// #include \"c.glsl\""), None);
    }
}
