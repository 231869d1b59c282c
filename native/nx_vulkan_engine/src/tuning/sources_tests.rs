//! That numbers of single GPUs stand in the device model alone.

use std::fs;
use std::path::{Path, PathBuf};

/// Multiprocessors of an H100 and an H200 and multiples of them.
const NUMBERS: [&str; 4] = ["132", "264", "528", "1056"];
const NAMES: [&str; 2] = ["H100", "H200"];

/// Every source file of the crates but those of the model.
fn sources() -> Vec<PathBuf> {
    let native = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = ["nx_vulkan_ir", "nx_vulkan_spirv", "nx_vulkan_check", "nx_vulkan_device", "nx_vulkan_engine"];
    let mut folders: Vec<PathBuf> = crates.iter().map(|name| native.join(name).join("src")).collect();
    let mut files = vec![];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.file_name().is_some_and(|name| name == "tuning") => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// A file's code: no comments, and nothing from its tests on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = |line: &&str| line.trim_start() == "#[cfg(test)]";
    let until =
        text.lines().zip(text.lines().skip(1)).position(|(line, next)| tests(&line) && next.starts_with("mod "));
    let lines = text.lines().take(until.unwrap_or(usize::MAX)).enumerate();
    lines.map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn no_number_of_one_gpu_stands_outside_the_model() {
    let files = sources();
    assert!(files.len() > 100);
    let mut found = vec![];
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for (at, line) in code(&text) {
            let mut words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
            let is_number = |word: &str| NUMBERS.contains(&word.replace('_', "").trim_end_matches("u64"));
            if words.any(is_number) || NAMES.iter().any(|name| line.contains(name)) {
                found.push(format!("{}:{at}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Constants of a text, each with the comment before it, of which constants in a row share one.
fn constants(text: &str) -> Vec<(&str, String)> {
    let mut comment = String::new();
    let mut found = vec![];
    for line in text.lines().map(str::trim_start) {
        let item = line.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        match line.strip_prefix("//") {
            Some(words) => comment.push_str(words),
            None if item.starts_with("const ") => found.push((line, comment.clone())),
            None => comment.clear(),
        }
    }
    found
}

#[test]
fn passes_have_no_constant_that_is_a_gpus() {
    let mut found = vec![];
    for path in sources().iter().filter(|path| path.iter().any(|part| part == "nx_vulkan_ir")) {
        let text = fs::read_to_string(path).unwrap();
        for (line, comment) in constants(&text) {
            let mut words = comment.split(|c: char| !c.is_ascii_alphanumeric());
            if words.any(|word| ["GPU", "GPUs"].contains(&word) || NAMES.contains(&word)) {
                found.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "a pass asks its Target for these:\n{}", found.join("\n"));
}
