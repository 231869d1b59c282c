//! That numbers of single GPUs stand in the device model alone.

use std::collections::BTreeSet;
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

/// Words and units that tell of a constant's comment that its number is a device's.
const WORDS: [&str; 24] = [
    "gpu",
    "gpus",
    "nvidia",
    "amd",
    "intel",
    "lavapipe",
    "mesa",
    "a100",
    "h100",
    "h200",
    "register",
    "registers",
    "processor",
    "processors",
    "multiprocessor",
    "multiprocessors",
    "cache",
    "caches",
    "sector",
    "sectors",
    "cycles",
    "microseconds",
    "milliseconds",
    "millisecond",
];
const UNITS: [&str; 4] = ["ns", "us", "ms", "GB/s"];

/// Constants whose comments have such words, and which are no device's for all that: where, which, and why.
const OTHERS: &[(&str, &[&str], &str)] = &[
    ("device/src/device/select.rs", &["MIN_UUID_DIGITS"], "a name that somebody may give"),
    ("device/src/kernel/pipeline.rs", &["STORE_EVERY_PIPELINES", "MAX_CACHE_BYTES"], "a file"),
    ("device/src/stream/barriers.rs", &["DEVICE_STAGES"], "Vulkan's bits"),
    ("device/src/stream/transfer.rs", &["UPLOAD_ALIGN_BYTES"], "the host's"),
    ("engine/src/deferred/cache.rs", &["RUNS_BEFORE_COMPILING"], "what compilers on the host take"),
    ("engine/src/deferred/mod.rs", &["MAX_OPS", "MAX_BYTES"], "what passes on the host take"),
    ("engine/src/eager/constant.rs", &["CAPACITY"], "a cache of the engine"),
    ("engine/src/eager/read.rs", &["SOON_BYTES"], "what the host takes to copy"),
    (
        "engine/src/kernels/fft/tables.rs",
        &["CAPACITY_BYTES", "MAX_QUICK"],
        "a cache of the engine, and the host's time",
    ),
    ("engine/src/options.rs", &["MAX_PIPELINES"], "the host's memory"),
    ("engine/src/pressure.rs", &["LITTLE_GARBAGE_BYTES", "LITTLE_GARBAGE_SHARE"], "what the BEAM takes to collect"),
    (
        "engine/src/profile/limits.rs",
        &["COPY_BYTES", "COPY_BYTES_CPU", "ELEMENTS", "ELEMENTS_CPU"],
        "what is measured must not depend on what is believed",
    ),
    ("spirv/src/lower/machine.rs", &["BITS", "WIDE_BITS"], "registers of a machine that a kernel contains"),
    ("spirv/src/lower/order.rs", &["NEGATE_A", "NEGATE_B", "NEGATE_C", "SUBTRACT"], "words of such a machine"),
    ("spirv/src/lower/sequences.rs", &["REGISTERS", "BITS"], "registers of such a machine"),
    ("spirv/src/probe.rs", &["CHAINS", "STEPS"], "what is measured must not depend on what is believed"),
];

/// A constant of a text: its name, and the comment before it, which constants in a row share.
struct Constant<'a> {
    name: &'a str,
    comment: String,
}

fn constants(text: &str) -> Vec<Constant<'_>> {
    let (mut comment, mut is_taken) = (String::new(), false);
    let mut found = vec![];
    let tests = text.find("\nmod tests {").unwrap_or(text.len());
    for line in text[..tests].lines().map(str::trim_start) {
        let item = ["pub(super) ", "pub(crate) ", "pub "].iter().find_map(|shown| line.strip_prefix(shown));
        if let Some(words) = line.strip_prefix("//") {
            if std::mem::take(&mut is_taken) {
                comment.clear();
            }
            comment.push_str(words.trim_start_matches('/'));
        } else if let Some((name, _)) = item.unwrap_or(line).strip_prefix("const ").and_then(|c| c.split_once(':')) {
            is_taken = true;
            found.push(Constant { name, comment: comment.clone() });
        } else {
            comment.clear();
        }
    }
    found
}

/// What a comment says of a device.
fn of_device(comment: &str) -> Option<&str> {
    let mut words = comment.split(|c: char| !c.is_ascii_alphanumeric());
    let named = words.find(|word| WORDS.contains(&word.to_ascii_lowercase().as_str()));
    let all: Vec<&str> =
        comment.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', ';', ':', '.'])).collect();
    let timed =
        || all.windows(2).find(|pair| pair[0].ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&pair[1]));
    named.or_else(|| timed().map(|pair| pair[1]))
}

#[test]
fn comments_tell_of_devices() {
    let text = "/// Half of the registers.\nconst A: u32 = 1;\npub const B: u32 = 2;\n/// Takes 3.5 us.\nconst C: u32 = 3;\n\n\
                /// Registry.\npub(super) const D: u32 = 4;\n    const E: u32 = 5;\nfn f() {}\nconst F: u32 = 6;\n\
                /// One GPU's.\nstatic G: u32 = 7;\nmod tests {\n/// 3 ms.\nconst H: u32 = 8;";
    let found: Vec<(&str, Option<String>)> =
        constants(text).iter().map(|c| (c.name, of_device(&c.comment).map(str::to_string))).collect();
    let found: Vec<(&str, Option<&str>)> = found.iter().map(|(name, word)| (*name, word.as_deref())).collect();
    let registers = Some("registers");
    assert_eq!(found, [("A", registers), ("B", registers), ("C", Some("us")), ("D", None), ("E", None), ("F", None)]);
}

#[test]
fn constants_of_devices_stand_in_the_model() {
    let (mut found, mut others) = (vec![], BTreeSet::new());
    for path in sources() {
        let (text, path) = (fs::read_to_string(&path).unwrap(), path.display().to_string());
        for constant in constants(&text) {
            let Some(word) = of_device(&constant.comment) else { continue };
            let is_it =
                |(place, names, _): &&(&str, &[&str], &str)| path.contains(place) && names.contains(&constant.name);
            match OTHERS.iter().find(is_it) {
                Some((place, ..)) => drop(others.insert((*place, constant.name.to_string()))),
                None => found.push(format!("{path}: {} ({word})", constant.name)),
            }
        }
    }
    assert!(found.is_empty(), "a pass asks its Target for these, a kernel its DeviceModel:\n{}", found.join("\n"));
    let listed = OTHERS.iter().flat_map(|(place, names, _)| names.iter().map(|name| (*place, name.to_string())));
    assert_eq!(listed.collect::<BTreeSet<_>>(), others, "what is listed is still there");
}
