//! `cargo xtask layers`: files that import each other in a ring can only be understood together, so rings stay small.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Files of a ring, at most.
const MAX_RING: usize = 8;

/// The names of a module and those it lies in, or of something in it.
type Names<'a> = Vec<&'a str>;

/// What counts of a source file.
#[derive(Debug, Default)]
struct Source<'a> {
    file: &'a str,
    defined: BTreeSet<&'a str>,
    imports: Vec<Names<'a>>,
    /// What it re-exports by name, and all of what.
    shown: BTreeMap<&'a str, Names<'a>>,
    globs: Vec<Names<'a>>,
}

/// Checks the crates below native/.
pub fn check(workspace: &Path) -> Result<String, Vec<Error>> {
    let mut errors = Vec::new();
    let native = workspace.join("native");
    for folder in entries(&native).map_err(|e| vec![e])? {
        let root = folder.join("src");
        if !root.is_dir() {
            continue;
        }
        let mut texts = BTreeMap::new();
        read(&root, &root, &mut texts).map_err(|e| vec![e])?;
        if let Err(reason) = judge(&rings(&texts)) {
            errors.push(Error::Source { path: root, reason });
        }
    }
    if errors.is_empty() {
        Ok(format!("no more than {MAX_RING} files import each other in a ring"))
    } else {
        Err(errors)
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { path: folder.to_path_buf(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

/// Reads the sources of a folder, by their paths in the crate.
fn read(root: &Path, folder: &Path, texts: &mut BTreeMap<String, String>) -> Result<()> {
    for path in entries(folder)? {
        if path.is_dir() {
            read(root, &path, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
            texts.insert(path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned(), text);
        }
    }
    Ok(())
}

/// Whether the rings of a crate are as small as they must be.
fn judge(rings: &[Vec<&str>]) -> Result<(), String> {
    match rings.iter().max_by_key(|ring| ring.len()) {
        Some(largest) if largest.len() > MAX_RING => {
            let (found, files) = (largest.len(), largest.join(", "));
            Err(format!("{found} files import each other in a ring, where {MAX_RING} may: {files}"))
        }
        _ => Ok(()),
    }
}

/// The rings of files that import each other, of a crate's sources by their paths.
fn rings(texts: &BTreeMap<String, String>) -> Vec<Vec<&str>> {
    let modules: BTreeSet<Names<'_>> = texts.keys().map(|file| module(file)).collect();
    let sources: BTreeMap<Names<'_>, Source<'_>> =
        texts.iter().map(|(file, text)| (module(file), Source::of(file, text, &modules))).collect();
    let of = |path: &Names<'_>| Some(sources.get(&resolve(&sources, path, &mut BTreeSet::new()))?.file);
    let imports: BTreeMap<&str, Vec<&str>> =
        sources.values().map(|source| (source.file, source.imports.iter().filter_map(of).collect())).collect();
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for &from in imports.keys() {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(next) = waiting.pop() {
            waiting.extend(imports[next].iter().filter(|&&to| found.insert(to)));
        }
        reached.insert(from, found);
    }
    let mut rings = BTreeSet::new();
    for (from, found) in &reached {
        let ring: Vec<&str> = found.iter().copied().filter(|to| reached[to].contains(from)).collect();
        rings.extend((ring.len() > 1).then_some(ring));
    }
    rings.into_iter().collect()
}

/// The module that a file is.
fn module(file: &str) -> Names<'_> {
    let mut names: Names<'_> = file.trim_end_matches(".rs").split('/').collect();
    if let Some(&"mod" | &"lib" | &"main") = names.last() {
        names.pop();
    }
    names
}

/// The module that defines what a path from the crate's root names, through re-exports.
fn resolve<'a>(
    sources: &BTreeMap<Names<'a>, Source<'a>>,
    path: &[&'a str],
    seen: &mut BTreeSet<Names<'a>>,
) -> Names<'a> {
    let known = (0..=path.len()).rev().find(|&n| sources.contains_key(&path[..n])).unwrap_or(0);
    let (module, rest) = path.split_at(known);
    if let (Some(source), Some((name, rest))) = (sources.get(module), rest.split_first())
        && seen.insert([module, &[*name]].concat())
    {
        if let Some(shown) = source.shown.get(name) {
            return resolve(sources, &[shown, rest].concat(), seen);
        }
        if !source.defined.contains(name) {
            let there = source.globs.iter().map(|glob| resolve(sources, &[&glob[..], &[*name]].concat(), seen));
            let there: Vec<Names<'a>> = there.collect();
            if let Some(there) = there.into_iter().find(|m| sources.get(m).is_some_and(|s| s.defined.contains(name))) {
                return there;
            }
        }
    }
    module.to_vec()
}

impl<'a> Source<'a> {
    fn of(file: &'a str, text: &'a str, modules: &BTreeSet<Names<'a>>) -> Source<'a> {
        let own = module(file);
        let mut source = Source { file, ..Source::default() };
        let tokens = without_tests(&tokens(text));
        let mut modules_here: BTreeMap<&str, Names<'a>> = BTreeMap::new();
        let mut at = 0;
        while let Some(&token) = tokens.get(at) {
            let before = at.checked_sub(1).and_then(|before| tokens.get(before)).copied().unwrap_or_default();
            if token == "use" && tokens.get(at + 1) != Some(&"<") {
                let end = at + tokens[at..].iter().position(|&t| t == ";").unwrap_or(tokens.len() - at);
                let mut paths = Vec::new();
                expand(&tokens[at + 1..end], Vec::new(), &mut paths);
                let is_shown = matches!(before, "pub" | ")");
                for (path, renamed) in paths {
                    let Some(path) = absolute(&own, &path, modules) else { continue };
                    let Some((&last, outer)) = path.split_last() else { continue };
                    let name = renamed.unwrap_or(last);
                    if modules.contains(&path) {
                        modules_here.insert(name, path.clone());
                    }
                    if is_shown && name == "*" {
                        source.globs.push(outer.to_vec());
                    } else if is_shown {
                        source.shown.insert(name, path.clone());
                    }
                    // A folder's face shows what is in the folder, and needs none of it.
                    if !is_shown || !file.ends_with("mod.rs") && !file.ends_with("lib.rs") {
                        source.imports.push(path);
                    }
                }
                at = end;
                continue;
            }
            if matches!(before, "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "mod" | "union") {
                source.defined.insert(token);
            }
            let mut path = vec![token];
            while is_word(token)
                && let (Some(&"::"), Some(&next)) = (tokens.get(at + 1), tokens.get(at + 2))
                && is_word(next)
            {
                path.push(next);
                at += 2;
            }
            if path.len() > 1 && before != "::" {
                let of_import = || Some([modules_here.get(token)?, &path[1..]].concat());
                source.imports.extend(absolute(&own, &path, modules).or_else(of_import));
            }
            at += 1;
        }
        source
    }
}

/// A path as it is from the crate's root, if it leads into the crate.
fn absolute<'a>(own: &[&'a str], path: &[&'a str], modules: &BTreeSet<Names<'a>>) -> Option<Names<'a>> {
    let path = path.strip_suffix(&["self"]).unwrap_or(path);
    let (&first, rest) = path.split_first()?;
    Some(match first {
        "crate" => rest.to_vec(),
        "self" => [own, rest].concat(),
        "super" => {
            let ups = path.iter().take_while(|&&name| name == "super").count();
            [&own[..own.len().checked_sub(ups)?], &path[ups..]].concat()
        }
        _ if modules.contains(&[own, &[first]].concat()) => [own, path].concat(),
        _ => return None,
    })
}

/// The paths of a `use`, with the new names that they get.
fn expand<'a>(tree: &[&'a str], mut path: Names<'a>, paths: &mut Vec<(Names<'a>, Option<&'a str>)>) {
    for (at, &token) in tree.iter().enumerate() {
        match token {
            "::" => {}
            "as" => return paths.push((path, tree.get(at + 1).copied())),
            "{" => {
                let mut depth = 0;
                let items = tree[at + 1..tree.len() - 1].split(|&token| {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    token == "," && depth == 0
                });
                return items.filter(|item| !item.is_empty()).for_each(|item| expand(item, path.clone(), paths));
            }
            name => path.push(name),
        }
    }
    paths.push((path, None));
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The tokens without modules for tests.
fn without_tests<'a>(tokens: &[&'a str]) -> Names<'a> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut left = Vec::new();
    let mut at = 0;
    while let Some(&token) = tokens.get(at) {
        let body = tokens[at..].iter().position(|&t| t == "{" || t == ";").map_or(tokens.len(), |body| at + body);
        if tokens[at..].starts_with(&TEST) && tokens.get(body) == Some(&"{") && tokens[at..body].contains(&"mod") {
            let mut depth = 0;
            let end = tokens[body..].iter().position(|&token| {
                depth += i32::from(token == "{") - i32::from(token == "}");
                depth == 0
            });
            at = end.map_or(tokens.len(), |end| body + end + 1);
        } else {
            left.push(token);
            at += 1;
        }
    }
    left
}

/// Words and signs of a source, without comments, texts, characters and lifetimes.
fn tokens(text: &str) -> Names<'_> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let hashes = rest[word..].len() - rest[word..].trim_start_matches('#').len();
        let is_raw = matches!(&rest[..word], "r" | "br" | "cr") && rest[word + hashes..].starts_with('"');
        let after = |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
        let length = if rest.starts_with("//") {
            after(2, "\n")
        } else if rest.starts_with("/*") {
            after(2, "*/")
        } else if is_raw {
            after(word + hashes + 1, &format!("\"{}", "#".repeat(hashes)))
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if let Some(quoted) = rest.strip_prefix('\'') {
            let character = quoted.chars().next().map_or(0, char::len_utf8);
            if quoted.starts_with('\\') {
                after(3, "'")
            } else if quoted[character..].starts_with('\'') {
                character + 2
            } else {
                quoted.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(quoted.len()) + 1
            }
        } else {
            let length = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
            tokens.push(&rest[..length]);
            length
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect()
    }

    #[test]
    fn rings_are_found_where_things_are_defined() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use b::{B, D as _};"),
            ("a.rs", "use crate::B; /* crate::d */ // crate::d\n#[cfg(test)]\nmod tests { use crate::d::D; }"),
            ("b/mod.rs", "mod inner; mod rest; pub(crate) use inner::*; pub use rest::{self, R};"),
            ("b/inner.rs", "use super::super::{c::{C, E}, d}; pub struct B<'fn>(&'fn str);"),
            ("b/rest.rs", "pub struct R;"),
            (
                "c.rs",
                "fn f() -> impl Sized + use<> { let q = ('\"', \"crate::d \\\" \", r#\"\"crate::d\"#); \
                 crate::a::g(q) }",
            ),
            ("d.rs", "use crate::b::R; use std::fmt; fn f(c: crate::c::C) {}"),
        ];
        assert_eq!(rings(&tree(&files)), [["a.rs", "b/inner.rs", "c.rs", "d.rs"]]);
        let without = files.map(|(file, text)| (file, if file == "c.rs" { "struct C; struct E;" } else { text }));
        assert_eq!(rings(&tree(&without)), Vec::<Vec<&str>>::new());
        let named = [
            ("b/mod.rs", "pub use inner::B as Shown;"),
            ("b/inner.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "use crate::b as folder; fn f(b: folder::Shown) {}"),
        ];
        assert_eq!(rings(&tree(&named)), [["b/inner.rs", "c.rs"]]);
    }

    #[test]
    fn large_rings_are_told() {
        let around = |n: usize| -> BTreeMap<String, String> {
            (0..n).map(|i| (format!("f{i}.rs"), format!("use crate::f{};", (i + 1) % n))).collect()
        };
        assert_eq!(judge(&rings(&around(MAX_RING))), Ok(()));
        let nine = around(MAX_RING + 1);
        let reason = judge(&rings(&nine)).unwrap_err();
        assert!(reason.contains("9 files import each other in a ring, where 8 may: f0.rs, f1.rs"), "{reason}");
    }
}
