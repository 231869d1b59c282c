//! The scalar library: SPIR-V modules of exported functions, parsed once, from which kernels import by name.

use std::collections::{HashMap, HashSet};

use nx_vulkan_ir::{Error, Result};
use once_cell::sync::OnceCell;
use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Decoration, Op, Word};

use super::modes::FloatModes;
use super::templates;

/// One parsed library module with the indices that imports need.
#[derive(Debug)]
pub struct LibraryModule {
    /// As it was built.
    pub module: Module,
    /// Index in `types_global_values` by result id.
    pub globals: HashMap<Word, usize>,
    /// Index in `functions` by result id.
    pub functions: HashMap<Word, usize>,
    /// Decorations of ids, without linkage.
    pub decorations: HashMap<Word, Vec<Instruction>>,
}

/// A function that a kernel can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// The number of the module.
    pub module: usize,
    /// The id of the function there.
    pub id: Word,
}

/// The scalar library: modules and what they export.
#[derive(Debug, Default)]
pub struct Library {
    /// In the order in which functions are looked up.
    pub modules: Vec<LibraryModule>,
    exports: HashMap<String, FunctionRef>,
    /// The `_fused` twin of a function, for devices whose fma rounds once.
    fused: HashMap<FunctionRef, FunctionRef>,
    /// The `_kept` twin of a function, for devices that fuse fma and keep denormals.
    kept: HashMap<FunctionRef, FunctionRef>,
    /// The `_rounded` twin of a function, for devices that round quotients and square roots of its type rightly.
    rounded: HashMap<FunctionRef, FunctionRef>,
    /// The `_halves` twin of a function, for devices that convert f16 rightly.
    halves: HashMap<FunctionRef, FunctionRef>,
    /// The `_round_trip` twin of a function, for devices on which a conversion to f16 and back rounds.
    round_trip: HashMap<FunctionRef, FunctionRef>,
    /// Functions with a twin that compute with f64.
    of_f64: HashSet<FunctionRef>,
    /// Names of ops whose function of f32 has an `f_near`.
    near: HashSet<String>,
}

impl Library {
    /// Parses library modules given as SPIR-V words.
    pub fn parse(modules: &[(&str, &[u32])]) -> Result<Library> {
        let mut library = Library::default();
        let mut names: Vec<(String, FunctionRef)> = vec![];
        for (name, words) in modules {
            let bad = |reason: String| Error::BadShader { path: format!("lib/{name}.spv"), reason };
            let module = rspirv::dr::load_words(words).map_err(|e| bad(e.to_string()))?;
            let index = library.modules.len();
            let mut decorations: HashMap<Word, Vec<Instruction>> = HashMap::new();
            for annotation in &module.annotations {
                let (Some(Operand::IdRef(target)), Some(Operand::Decoration(kind))) =
                    (annotation.operands.first(), annotation.operands.get(1))
                else {
                    continue;
                };
                if *kind != Decoration::LinkageAttributes {
                    decorations.entry(*target).or_default().push(annotation.clone());
                } else if let Some(Operand::LiteralString(export)) = annotation.operands.get(2) {
                    // glslang exports `name(argument types`. Files that two modules include come twice: the first
                    // serves.
                    let export = export.split('(').next().unwrap_or(export).to_string();
                    let function = FunctionRef { module: index, id: *target };
                    names.push((export.clone(), function));
                    library.exports.entry(export).or_insert(function);
                }
            }
            let ids = |list: &[Instruction]| -> HashMap<Word, usize> {
                list.iter().enumerate().filter_map(|(i, inst)| Some((inst.result_id?, i))).collect()
            };
            let functions = module
                .functions
                .iter()
                .enumerate()
                .filter_map(|(i, f)| Some((f.def.as_ref()?.result_id?, i)))
                .collect();
            library.modules.push(LibraryModule {
                globals: ids(&module.types_global_values),
                functions,
                decorations,
                module,
            });
        }
        for (name, function) in names {
            let near = name.strip_prefix("nx_").and_then(|name| name.strip_suffix("_f32_fused_near"));
            library.near.extend(near.map(str::to_string));
            let forms = [
                (&mut library.fused, "fused"),
                (&mut library.kept, "kept"),
                (&mut library.rounded, "rounded"),
                (&mut library.halves, "halves"),
                (&mut library.round_trip, "round_trip"),
            ];
            for (twins, form) in forms {
                if let Some(&twin) = library.exports.get(&format!("{name}_{form}")) {
                    twins.insert(function, twin);
                    if name.contains("f64") {
                        library.of_f64.insert(function);
                    }
                }
            }
        }
        Ok(library)
    }

    /// The function to call for `function` on a device with such arithmetic.
    pub fn twin(&self, function: FunctionRef, modes: FloatModes) -> FunctionRef {
        if let Some(&twin) = self.halves.get(&function).filter(|_| modes.halves) {
            return twin;
        }
        if let Some(&twin) = self.round_trip.get(&function).filter(|_| modes.half_round_trips) {
            return twin;
        }
        if let Some(&twin) = self.kept.get(&function).filter(|_| modes.kept) {
            return twin;
        }
        let is_f64 = self.of_f64.contains(&function);
        let rounds = if is_f64 { modes.exact_f64 } else { modes.rounded };
        let fuses = modes.fused || is_f64 && modes.exact_f64;
        let rounded = self.rounded.get(&function).filter(|_| rounds);
        rounded.or(self.fused.get(&function).filter(|_| fuses)).copied().unwrap_or(function)
    }

    /// Whether the function of f32 of an op of that name has a form that leaves some results in doubt (`f_near`).
    pub fn has_near(&self, op: &str) -> bool {
        self.near.contains(op)
    }

    /// The function of that name.
    pub fn find(&self, name: &str) -> Option<FunctionRef> {
        self.exports.get(name).copied()
    }

    /// Names of all exported functions.
    pub fn exports(&self) -> impl Iterator<Item = &str> {
        self.exports.keys().map(String::as_str)
    }

    /// The library that is built into the engine.
    pub fn builtin() -> Result<&'static Library> {
        static BUILTIN: OnceCell<Library> = OnceCell::new();
        BUILTIN.get_or_try_init(|| Library::parse(&templates::libraries()?))
    }

    /// The operations that a device may lack.
    pub fn soft() -> Result<&'static Library> {
        static SOFT: OnceCell<Library> = OnceCell::new();
        SOFT.get_or_try_init(|| Library::parse(&[("nx_soft_f64", templates::soft("nx_soft_f64")?)]))
    }
}

/// Whether an instruction declares a type that carries a layout and so must not be shared between uses.
pub(crate) fn is_aggregate(inst: &Instruction) -> bool {
    matches!(inst.class.opcode, Op::TypeStruct | Op::TypeArray | Op::TypeRuntimeArray)
}
