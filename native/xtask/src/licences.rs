//! `cargo xtask licences`: the crates that the native library is linked from, for all systems of a release, and the
//! texts of licences that have to go wherever it goes. Written to one file, which the package has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::compile::{run, write};
use crate::error::{Error, Result};
use crate::release::TARGETS;

const FILE: &str = "THIRD_PARTY_LICENSES.md";
const LIBRARY: &str = "nx_vulkan_native";

/// Which licence is taken where a crate offers several: the first of these. The text of the first is the package's own
/// LICENSE, so that crates under it need none of theirs.
const TAKEN: [&str; 5] = ["Apache-2.0", "MIT", "ISC", "Zlib", "Unicode-3.0"];

const HEAD: &str = "\
# Licences of the native library

Written by `cargo xtask licences`. nx_vulkan is under the Apache License 2.0, whose text is the file LICENSE. Its native
library has the code of these crates in it, some of them on one system alone, and of Rust's standard library (MIT or
Apache-2.0), and is linked for its system's C library. Where a crate offers several licences, the one in the last column
is taken.

| crate | version | offered under | taken under |
|---|---|---|---|
";

/// The text of MIT, for crates that have none with them.
const MIT: &str = r#"Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."#;

/// What `cargo metadata` tells, as far as it is asked for.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    manifest_path: PathBuf,
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

impl Package {
    /// Its functions run in the compiler and are no part of what it makes.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }

    fn error(&self, reason: String) -> Error {
        Error::Source { path: self.manifest_path.clone(), reason }
    }
}

/// Writes the file.
pub fn build(workspace: &Path) -> Result<String, Vec<Error>> {
    let page = page(workspace).map_err(|error| vec![error])?;
    write(&workspace.join(FILE), page.as_bytes()).map_err(|error| vec![error])?;
    Ok(format!("licences: {FILE} is written"))
}

/// Whether the file is what would be written.
pub fn check(workspace: &Path) -> Result<String, Vec<Error>> {
    let page = page(workspace).map_err(|error| vec![error])?;
    let path = workspace.join(FILE);
    let committed = std::fs::read_to_string(&path).map_err(|source| vec![Error::Io { path: path.clone(), source }])?;
    match committed == page {
        true => Ok(format!("licences: {FILE} is up to date")),
        false => Err(vec![Error::Source { path, reason: "differs, `cargo xtask licences` writes it".to_owned() }]),
    }
}

fn page(workspace: &Path) -> Result<String> {
    let metadata = metadata(workspace)?;
    let mut page = HEAD.to_owned();
    // By licence and text, the crates that have it.
    let mut texts: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for package in linked(&metadata)? {
        let offered = package.license.as_deref().unwrap_or_default();
        let taken = taken(offered).ok_or_else(|| package.error(format!("{offered:?} is no licence that is taken")))?;
        let (name, version) = (&package.name, &package.version);
        let _ = writeln!(page, "| {name} | {version} | {offered} | {} |", taken.join(", "));
        for licence in taken.into_iter().filter(|&licence| licence != TAKEN[0]) {
            texts.entry((licence, text(package, licence)?)).or_default().push(format!("{name} {version}"));
        }
    }
    for ((licence, text), crates) in texts {
        let _ = write!(page, "\n## {licence}: {}\n\n```text\n{text}\n```\n", crates.join(", "));
    }
    Ok(page)
}

fn metadata(workspace: &Path) -> Result<Metadata> {
    let mut command = Command::new("cargo");
    command.current_dir(workspace).args(["metadata", "--format-version", "1", "--locked", "--quiet"]);
    for target in TARGETS {
        command.args(["--filter-platform", target]);
    }
    let output = run("cargo", &mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Source { path: workspace.join("Cargo.lock"), reason: said });
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Source { path: workspace.join("Cargo.toml"), reason: error.to_string() })
}

/// The crates of others whose code is in the library, by name and version.
fn linked(metadata: &Metadata) -> Result<Vec<&Package>> {
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.id.as_str(), p)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|n| (n.id.as_str(), n)).collect();
    let library = metadata.packages.iter().find(|package| package.name == LIBRARY);
    let mut waiting: Vec<&str> = library.map(|package| package.id.as_str()).into_iter().collect();
    let mut found: BTreeSet<&str> = waiting.iter().copied().collect();
    while let Some(id) = waiting.pop() {
        for dependency in nodes.get(id).map_or(&[] as &[Dependency], |node| &node.deps) {
            let linked = dependency.dep_kinds.iter().any(|dependency| dependency.kind.is_none());
            let is_macro = packages.get(dependency.pkg.as_str()).is_some_and(|package| package.is_macro());
            if linked && !is_macro && found.insert(&dependency.pkg) {
                waiting.push(&dependency.pkg);
            }
        }
    }
    let mut linked: Vec<&Package> = found.iter().filter_map(|id| packages.get(id).copied()).collect();
    linked.retain(|package| package.source.is_some());
    linked.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    match linked.is_empty() {
        false => Ok(linked),
        true => Err(Error::Release(format!("cargo metadata knows no crates of {LIBRARY}"))),
    }
}

/// Which licences are taken of an SPDX expression: of each part between `AND` the first of `TAKEN` that it offers.
fn taken(expression: &str) -> Option<Vec<&'static str>> {
    let parts = expression.split(" AND ").map(|part| {
        let part = part.trim_matches(|c| c == '(' || c == ')');
        let offered: Vec<&str> = part.split(" OR ").flat_map(|one| one.split('/')).map(str::trim).collect();
        TAKEN.into_iter().find(|licence| offered.contains(licence))
    });
    parts.collect()
}

/// The text of a licence that the crate has with it: in the file that is named after the licence, or in the only one.
fn text(package: &Package, licence: &str) -> Result<String> {
    let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
    let failed = |source| Error::Io { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if ["LICENSE", "LICENCE", "COPYING"].iter().any(|word| name.to_uppercase().starts_with(word)) {
            files.push(name);
        }
    }
    files.sort();
    let (family, _) = licence.split_once('-').unwrap_or((licence, ""));
    let named = files.iter().find(|name| name.to_uppercase().contains(&family.to_uppercase()));
    let file = match (named, files.as_slice()) {
        (Some(file), _) | (None, [file]) => file,
        (None, []) if licence == "MIT" => {
            return Ok(format!(
                "Copyright (c) the authors of {}: {}\n\n{MIT}",
                package.name,
                package.authors.join(", ")
            ));
        }
        _ => return Err(package.error(format!("the text of {licence} is in none of its files: {files:?}"))),
    };
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let lines: Vec<&str> = text.trim_matches(['\n', '\r']).lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_licence_is_taken_of_those_offered_and_every_one_that_is_asked_for() {
        assert_eq!(taken("MIT OR Apache-2.0"), Some(vec!["Apache-2.0"]));
        assert_eq!(taken("MIT/Apache-2.0"), Some(vec!["Apache-2.0"]));
        assert_eq!(taken("Unlicense OR MIT"), Some(vec!["MIT"]));
        assert_eq!(taken("(MIT OR Apache-2.0) AND Unicode-3.0"), Some(vec!["Apache-2.0", "Unicode-3.0"]));
        assert_eq!(taken("GPL-3.0-only"), None);
        assert_eq!(taken("MIT AND GPL-3.0-only"), None);
        assert_eq!(taken(""), None);
    }
}
