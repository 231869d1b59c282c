//! Listings of generated kernels, in `tests/golden`: what a change of the generator does to them is seen as a
//! difference of text.
//!
//! `NX_VULKAN_UPDATE_GOLDEN=1` writes them anew.

mod attention;
mod dot;
mod map;
mod other;
mod reduce;
mod rows;
mod workgroup;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use crate::kernels::check_lowered;
use crate::listing::listing;

const MODES: FloatModes = FloatModes { preserve_f32: true, preserve_f64: true, ..FloatModes::NONE };
/// Those of a GPU whose quotients and roots are rounded.
const ROUNDED: FloatModes = FloatModes { fused: true, rounded: true, ..MODES };

/// Kernels of one family by name.
struct Kernels {
    family: &'static str,
    all: Vec<(String, String)>,
}

impl Kernels {
    fn of(family: &'static str) -> Kernels {
        Kernels { family, all: Vec::new() }
    }

    fn add(&mut self, name: &str, generate: impl Fn(&Library, FloatModes) -> Result<Generated>) {
        self.add_for(name, MODES, generate);
    }

    fn add_for(&mut self, name: &str, modes: FloatModes, generate: impl Fn(&Library, FloatModes) -> Result<Generated>) {
        let kernel = generate(Library::builtin().unwrap(), modes).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_lowered(&format!("{} {name}", self.family), &kernel.words);
        let mut text = String::new();
        let place = if kernel.table { "a table" } else { "push constants" };
        writeln!(text, "; parameters in {place}: {:?}", kernel.params.words).unwrap();
        if self.family != "workgroup" {
            writeln!(text, "; elements of a workgroup: {}", kernel.elements_per_group).unwrap();
        } else {
            writeln!(text, "; bytes of scratch memory: {}", kernel.elements_per_group).unwrap();
        }
        text.push_str(&listing(&kernel.words));
        self.all.push((format!("{}_{name}.spvasm", self.family), text));
    }

    /// Compares them with the folder, or writes them there.
    fn compare(self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        if std::env::var("NX_VULKAN_UPDATE_GOLDEN").is_ok_and(|value| value == "1") {
            std::fs::create_dir_all(&folder).unwrap();
            for old in listed(&folder, self.family) {
                std::fs::remove_file(folder.join(old)).unwrap();
            }
            for (name, text) in &self.all {
                std::fs::write(folder.join(name), text).unwrap();
            }
            return;
        }
        let differences: Vec<String> = self
            .all
            .iter()
            .filter_map(|(name, text)| {
                let kept = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
                (kept != *text).then(|| format!("{name}: {}", difference(&kept, text)))
            })
            .collect();
        assert!(
            differences.is_empty(),
            "kernels are not those of tests/golden; NX_VULKAN_UPDATE_GOLDEN=1 writes them anew, for `git diff`:\n{}",
            differences.join("\n")
        );
        let names: BTreeSet<String> = self.all.into_iter().map(|(name, _)| name).collect();
        assert_eq!(listed(&folder, self.family), names, "files of kernels that no test makes, or of two that are one");
    }
}

/// The files of a family.
fn listed(folder: &PathBuf, family: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.split('_').next() == Some(family))
        .collect()
}

/// The first lines that differ, and how many lines there are.
fn difference(kept: &str, made: &str) -> String {
    let at = kept.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
    let [was, is] = [kept, made].map(|text| text.lines().nth(at).unwrap_or("the end").to_owned());
    format!(
        "line {} is\n    {is}\n  not\n    {was}\n  ({} lines, not {})",
        at + 1,
        made.lines().count(),
        kept.lines().count()
    )
}

fn step(op: Elementwise, args: &[Ref], out: DType) -> Step {
    Step { op, args: args.into(), out }
}

fn unary(op: Unary, of: Ref, out: DType) -> Step {
    step(Elementwise::Unary(op), &[of], out)
}

fn binary(op: Binary, a: Ref, b: Ref, out: DType) -> Step {
    step(Elementwise::Binary(op), &[a, b], out)
}
