//! Reads `kernels.toml`, the list of all prebuilt modules.

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
    #[serde(default)]
    template: Vec<Shader>,
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
    source: OneOrMore<String>,
    #[serde(default)]
    defines: Defines,
    name: Option<String>,
    matrix: Option<OneOrMore<Matrix>>,
    #[serde(default)]
    choices: Choices,
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

/// All modules of `kernels.toml`, sorted by output.
pub fn read(root: &Path) -> Result<Vec<Module>> {
    let path = root.join(LIST);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    parse(&text).map_err(|reason| Error::Source { path, reason })
}

fn parse(text: &str) -> Result<Vec<Module>, String> {
    let list: List = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut modules = Vec::new();
    for shader in &list.kernel {
        declares_interface(shader)?;
        modules.extend(expand(shader, ModuleKind::Kernel, "src", &list.choices)?);
    }
    for shader in &list.example {
        declares_interface(shader)?;
        modules.extend(expand(shader, ModuleKind::Example, "src", &list.choices)?);
    }
    for shader in &list.template {
        modules.extend(expand(shader, ModuleKind::Template, FAMILIES, &list.choices)?);
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
        Err(format!("kernel {:?}: bindings, push_bytes and local_size must be declared", shader.source.as_slice()))
    }
}

/// All modules of one entry: each of its sources in each of its variants.
fn expand(shader: &Shader, kind: ModuleKind, folder: &str, shared: &Choices) -> Result<Vec<Module>, String> {
    let mut modules = Vec::new();
    for file in shader.source.as_slice() {
        let source = Path::new(folder).join(file);
        let stem = source.file_stem().and_then(|stem| stem.to_str());
        let stem = stem.ok_or_else(|| format!("{file:?} is no source file"))?;
        for (name, own) in variants(shader, stem, shared).map_err(|reason| format!("{file}: {reason}"))? {
            let mut defines = shader.defines.clone();
            defines.extend(own);
            modules.push(Module { kind, name, source: source.clone(), defines, extensions: Vec::new() });
        }
    }
    Ok(modules)
}

/// Name and own defines of each variant of a source.
fn variants(shader: &Shader, stem: &str, shared: &Choices) -> Result<Vec<(String, Defines)>, String> {
    match (&shader.name, &shader.matrix) {
        (Some(name), Some(matrices)) if shader.variants.is_empty() => {
            let name = name.replace("{source}", stem);
            let choices = [&shader.choices, shared];
            let cells = matrices.as_slice().iter().map(|matrix| matrix::cells(&name, matrix, &choices));
            Ok(cells.collect::<Result<Vec<_>, _>>()?.concat())
        }
        (None, None) if shader.variants.is_empty() => Ok(vec![(stem.to_owned(), Defines::new())]),
        (None, None) => Ok(shader.variants.iter().map(|v| (v.name.clone(), v.defines.clone())).collect()),
        _ => Err("name and matrix belong together, without variants".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_override_defines_and_modules_are_sorted() {
        let modules = parse(
            r#"
            [[template]]
            source = "map.comp"
            defines = { A = "1", B = "2" }
            variants = [{ name = "map_b", defines = { B = "3" } }, { name = "map_a" }]
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
        )
        .unwrap();
        let outputs: Vec<String> = modules.iter().map(Module::output).collect();
        assert_eq!(outputs, ["examples/e.spv", "k.spv", "lib/nx_x.spv", "template/map_a.spv", "template/map_b.spv"]);
        assert_eq!(modules[4].defines["A"], "1");
        assert_eq!(modules[4].defines["B"], "3");
        assert_eq!(modules[2].source, Path::new("include/nx_x.glsl"));
    }

    #[test]
    fn each_source_comes_in_each_cell() {
        let modules = parse(
            r#"
            [choices.type]
            f32 = { F32 = "1" }
            f64 = { F64 = "1" }
            [[template]]
            source = ["b.comp", "a.comp"]
            defines = { A = "1" }
            name = "{source}_{type}"
            matrix = { type = ["f32", "f64"] }
            [[template]]
            source = "c.comp"
            name = "c_{type}_{TILE}"
            matrix = [{ type = ["f32"], TILE = ["1", "2"] }, { type = ["f64"], TILE = ["1"] }]
            choices.type = { f32 = {}, f64 = { DOUBLE = "1" } }
            "#,
        )
        .unwrap();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["a_f32", "a_f64", "b_f32", "b_f64", "c_f32_1", "c_f32_2", "c_f64_1"]);
        let defines =
            |i: usize| modules[i].defines.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
        assert_eq!(
            [defines(0), defines(3), defines(5), defines(6)],
            ["A=1 F32=1", "A=1 F64=1", "TILE=2", "DOUBLE=1 TILE=1"]
        );
        assert_eq!(modules[3].source, Path::new(FAMILIES).join("b.comp"));
    }

    #[test]
    fn bad_lists_are_refused() {
        let twice = "[[library]]\nname = \"a\"\n[[library]]\nname = \"a\"";
        assert!(parse(twice).unwrap_err().contains("listed twice"));
        assert!(parse("[[library]]\nname = \"../a\"").unwrap_err().contains("no module name"));
        assert!(parse("[[kernel]]\nsource = \"a.comp\"").unwrap_err().contains("must be declared"));
        assert!(parse("[[template]]\nsource = \"a.comp\"\nname = \"b\"").unwrap_err().contains("belong together"));
        assert!(parse("[[kernal]]\nsource = \"a.comp\"").unwrap_err().contains("unknown field"));
    }
}
