//! Reads what is to be built: `kernels.toml`, and the heads of the templates in the folders of kernel families.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::matrix::{self, Choices, Defines, Matrix, OneOrMore};

pub const LIST: &str = "kernels.toml";

/// The folders of kernel families, relative to `priv/shaders`.
const FAMILIES: &str = "../../native/nx_vulkan_engine/src/kernels";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A whole compute shader with the NativeV interface: `src/<source>` to `<name>.spv`.
    Kernel,
    /// A supplied shader as users write them, with the interface of a kernel: `src/<source>` to `examples/<name>.spv`.
    Example,
    /// Functions for generated kernels to import: `include/<name>.glsl` to `lib/<name>.spv`.
    Library,
    /// Functions that stand for operations which a device lacks: `include/<name>.glsl` to `soft/<name>.spv`.
    Soft,
    /// A compute shader whose `slot_` functions the code generator fills: `<source>` in the folders of kernel families
    /// to `template/<name>.spv`.
    Template,
}

/// One module to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub kind: ModuleKind,
    pub name: String,
    /// Relative to `priv/shaders`.
    pub source: PathBuf,
    pub defines: Defines,
    /// Only for libraries, whose wrapper has to name them before the first declaration.
    pub extensions: Vec<String>,
}

impl Module {
    /// The built file, relative to `priv/shaders`, with `/` on every platform.
    pub fn output(&self) -> String {
        match self.kind {
            ModuleKind::Kernel => format!("{}.spv", self.name),
            ModuleKind::Example => format!("examples/{}.spv", self.name),
            ModuleKind::Library => format!("lib/{}.spv", self.name),
            ModuleKind::Soft => format!("soft/{}.spv", self.name),
            ModuleKind::Template => format!("template/{}.spv", self.name),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    choices: Choices,
    #[serde(default)]
    kernel: Vec<Shader>,
    #[serde(default)]
    example: Vec<Shader>,
    #[serde(default)]
    library: Vec<Library>,
    #[serde(default)]
    soft: Vec<Library>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Library {
    name: String,
    #[serde(default)]
    extensions: Vec<String>,
    #[serde(default)]
    defines: Defines,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shader {
    source: String,
    #[serde(default)]
    variants: Vec<Variant>,
    bindings: Option<u32>,
    push_bytes: Option<u32>,
    local_size: Option<[u32; 3]>,
    #[serde(default, rename = "needs")]
    _needs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant {
    name: String,
    #[serde(default)]
    defines: Defines,
    push_bytes: Option<u32>,
    #[serde(default, rename = "needs")]
    _needs: Vec<String>,
}

/// The head of a template.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: Option<String>,
    matrix: Option<OneOrMore<Matrix>>,
    #[serde(default)]
    choices: Choices,
    #[serde(default)]
    variants: Vec<Pick>,
}

/// A variant of a template that is in no matrix.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pick {
    name: String,
    #[serde(default)]
    defines: Defines,
}

/// All modules, sorted by output.
pub fn read(root: &Path) -> Result<Vec<Module>> {
    let path = root.join(LIST);
    let text = read_text(&path)?;
    let mut templates = Vec::new();
    for family in entries(&root.join(FAMILIES))?.iter().filter(|path| path.is_dir()) {
        for path in entries(family)?.iter().filter(|path| path.extension().is_some_and(|e| e == "comp")) {
            let file = path.strip_prefix(root).unwrap_or(path);
            templates.push((file.to_path_buf(), read_text(path)?));
        }
    }
    parse(&text, &templates).map_err(|reason| Error::Source { path, reason })
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let all = std::fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    all.map_err(|source| Error::Io { path: folder.to_owned(), source })
}

/// The modules of a list and of templates, which are paths relative to `priv/shaders` with their texts.
fn parse(text: &str, templates: &[(PathBuf, String)]) -> Result<Vec<Module>, String> {
    let list: List = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut modules = Vec::new();
    for (kind, shaders) in [(ModuleKind::Kernel, &list.kernel), (ModuleKind::Example, &list.example)] {
        for shader in shaders {
            declares_interface(shader)?;
            let source = Path::new("src").join(&shader.source);
            let variants = shader.variants.iter().map(|v| (v.name.clone(), v.defines.clone())).collect();
            modules.extend(built(kind, &source, variants)?);
        }
    }
    for (source, text) in templates {
        let of = |reason| format!("{}: {reason}", source.display());
        let variants = variants(text, &list.choices).map_err(of)?;
        modules.extend(built(ModuleKind::Template, source, variants)?);
    }
    for (kind, libraries) in [(ModuleKind::Library, list.library), (ModuleKind::Soft, list.soft)] {
        modules.extend(libraries.into_iter().map(|library| Module {
            kind,
            source: Path::new("include").join(format!("{}.glsl", library.name)),
            name: library.name,
            defines: library.defines,
            extensions: library.extensions,
        }));
    }
    modules.sort_by_key(Module::output);
    for module in &modules {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if module.name.is_empty() || !module.name.chars().all(plain) {
            return Err(format!("{:?} is no module name", module.name));
        }
    }
    match modules.windows(2).find(|w| w[0].output() == w[1].output()) {
        Some(twins) => Err(format!("{} is listed twice", twins[0].output())),
        None => Ok(modules),
    }
}

fn declares_interface(shader: &Shader) -> Result<(), String> {
    let push = shader.push_bytes.is_some()
        || (!shader.variants.is_empty() && shader.variants.iter().all(|v| v.push_bytes.is_some()));
    if shader.bindings.is_some() && shader.local_size.is_some() && push {
        Ok(())
    } else {
        Err(format!("kernel {:?}: bindings, push_bytes and local_size must be declared", shader.source))
    }
}

/// The modules of one source: one for each variant, or one of its name.
fn built(kind: ModuleKind, source: &Path, variants: Vec<(String, Defines)>) -> Result<Vec<Module>, String> {
    let stem = source.file_stem().and_then(|stem| stem.to_str());
    let stem = stem.ok_or_else(|| format!("{source:?} is no source file"))?;
    let variants = if variants.is_empty() { vec![(stem.to_owned(), Defines::new())] } else { variants };
    let module = |(name, defines)| Module { kind, name, source: source.to_owned(), defines, extensions: Vec::new() };
    Ok(variants.into_iter().map(module).collect())
}

/// Name and defines of each variant that the head of a template lists.
fn variants(text: &str, shared: &Choices) -> Result<Vec<(String, Defines)>, String> {
    let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let head: Head = toml::from_str(&head.join("\n")).map_err(|e| e.to_string())?;
    match (&head.name, &head.matrix) {
        (Some(name), Some(matrices)) if head.variants.is_empty() => {
            let choices = [&head.choices, shared];
            let cells = matrices.as_slice().iter().map(|matrix| matrix::cells(name, matrix, &choices));
            Ok(cells.collect::<Result<Vec<_>, _>>()?.concat())
        }
        (None, None) => Ok(head.variants.into_iter().map(|v| (v.name, v.defines)).collect()),
        _ => Err("name and matrix belong together, without variants".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(file: &str, text: &str) -> (PathBuf, String) {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        (Path::new(FAMILIES).join(file), lines.join("\n"))
    }

    #[test]
    fn modules_are_sorted() {
        let map = template(
            "map/map.comp",
            "//! variants = [{ name = \"map_b\", defines = { B = \"3\" } }, { name = \"map_a\" }]\n#version 460",
        );
        let modules = parse(
            r#"
            [[library]]
            name = "nx_x"
            [[example]]
            source = "nativev/e.comp"
            bindings = 1
            push_bytes = 4
            local_size = [32, 1, 1]
            [[kernel]]
            source = "nativev/k.comp"
            bindings = 1
            push_bytes = 4
            local_size = [256, 1, 1]
            "#,
            &[map, template("map/lanes.comp", "#version 460\n//! variants = []")],
        )
        .unwrap();
        let outputs: Vec<String> = modules.iter().map(Module::output).collect();
        let templates = ["template/lanes.spv", "template/map_a.spv", "template/map_b.spv"];
        assert_eq!(outputs, [&["examples/e.spv", "k.spv", "lib/nx_x.spv"], &templates[..]].concat());
        assert_eq!(modules[5].defines["B"], "3");
        assert_eq!(modules[2].source, Path::new("include/nx_x.glsl"));
        assert_eq!(modules[3].source, Path::new(FAMILIES).join("map/lanes.comp"));
    }

    #[test]
    fn templates_come_in_each_cell() {
        let list = r#"
            [choices.type]
            f32 = { F32 = "1" }
            f64 = { F64 = "1" }
            "#;
        let shared = template(
            "a/a.comp",
            r#"//! name = "a_{type}"
               //! matrix = { type = ["f32", "f64"] }
               #version 460"#,
        );
        let own = template(
            "b/c.comp",
            r#"//! name = "c_{type}_{TILE}"
               //! matrix = [{ type = ["f32"], TILE = ["1", "2"] }, { type = ["f64"], TILE = ["1"] }]
               //!
               //! [choices.type]
               //! f32 = {}
               //! f64 = { DOUBLE = "1" }"#,
        );
        let modules = parse(list, &[shared, own]).unwrap();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["a_f32", "a_f64", "c_f32_1", "c_f32_2", "c_f64_1"]);
        let defines =
            |i: usize| modules[i].defines.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
        assert_eq!([defines(0), defines(1), defines(3), defines(4)], ["F32=1", "F64=1", "TILE=2", "DOUBLE=1 TILE=1"]);
        assert_eq!(modules[1].source, Path::new(FAMILIES).join("a/a.comp"));
    }

    #[test]
    fn bad_lists_are_refused() {
        let refused = |text: &str| parse(text, &[]).unwrap_err();
        let twice = "[[library]]\nname = \"a\"\n[[library]]\nname = \"a\"";
        assert!(refused(twice).contains("listed twice"));
        assert!(refused("[[library]]\nname = \"../a\"").contains("no module name"));
        assert!(refused("[[kernel]]\nsource = \"a.comp\"").contains("must be declared"));
        assert!(refused("[[kernal]]\nsource = \"a.comp\"").contains("unknown field"));
        let head = |text: &str| parse("", &[template("a/a.comp", text)]).unwrap_err();
        assert!(head("//! name = \"b\"").contains("a.comp: name and matrix belong together"));
        assert!(head("//! nam = \"b\"").contains("unknown field"));
    }
}
