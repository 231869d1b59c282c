//! Reading SPIR-V of others: the interface of every catalogue module, and no panic on any byte string.

use std::path::{Path, PathBuf};

use nx_vulkan_check::{Reflection, spirv_val};
use nx_vulkan_ir::Error;
use serde::Deserialize;

use crate::random::Random;
use crate::targets;

fn shaders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders")
}

fn test_module(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spirv").join(name);
    std::fs::read(path).unwrap()
}

fn reason(bytes: &[u8]) -> String {
    match Reflection::of(bytes, "test.spv") {
        Err(Error::BadShader { path, reason }) => {
            assert_eq!(path, "test.spv");
            reason
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[derive(Deserialize)]
struct List {
    kernel: Vec<Kernel>,
}

#[derive(Deserialize)]
struct Kernel {
    source: String,
    bindings: usize,
    push_bytes: Option<u32>,
    local_size: [u32; 3],
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    variants: Vec<Variant>,
}

#[derive(Deserialize, Default)]
struct Variant {
    name: String,
    push_bytes: Option<u32>,
    #[serde(default)]
    needs: Vec<String>,
}

fn catalogue() -> Vec<(Kernel, Vec<Variant>)> {
    let text = std::fs::read_to_string(shaders().join("kernels.toml")).unwrap();
    let list: List = toml::from_str(&text).unwrap();
    list.kernel
        .into_iter()
        .map(|mut kernel| {
            let mut variants = std::mem::take(&mut kernel.variants);
            if variants.is_empty() {
                let name = Path::new(&kernel.source).file_stem().unwrap().to_str().unwrap().to_owned();
                variants.push(Variant { name, ..Variant::default() });
            }
            (kernel, variants)
        })
        .collect()
}

#[test]
fn every_catalogue_module_has_the_interface_that_the_list_declares() {
    let mut seen = 0;
    for (kernel, variants) in catalogue() {
        for variant in variants {
            let path = shaders().join(format!("{}.spv", variant.name));
            let found = Reflection::of(&std::fs::read(&path).unwrap(), &variant.name).unwrap();
            let numbers: Vec<u32> = found.bindings.iter().map(|b| b.binding).collect();
            let wanted: Vec<u32> = (0..u32::try_from(kernel.bindings).unwrap()).collect();
            assert_eq!(numbers, wanted, "{}: bindings", variant.name);
            let push_bytes = variant.push_bytes.or(kernel.push_bytes).unwrap();
            assert_eq!(found.push_bytes, push_bytes, "{}: push bytes", variant.name);
            assert_eq!(found.local_size, kernel.local_size, "{}: local size", variant.name);
            let mut needs: Vec<String> = kernel.needs.iter().chain(&variant.needs).cloned().collect();
            let mut declared: Vec<String> = found.capabilities.iter().map(|c| format!("{c:?}")).collect();
            declared.retain(|c| c != "Shader" && c != "SignedZeroInfNanPreserve");
            needs.sort();
            declared.sort();
            assert_eq!(declared, needs, "{}: capabilities", variant.name);
            seen += 1;
        }
    }
    assert!(seen >= 40, "{seen} modules");
}

#[test]
fn every_template_is_a_compute_shader_and_every_library_is_none() {
    for file in std::fs::read_dir(shaders().join("template")).unwrap() {
        let path = file.unwrap().path();
        Reflection::of(&std::fs::read(&path).unwrap(), &path.display().to_string()).unwrap();
    }
    for file in std::fs::read_dir(shaders().join("lib")).unwrap() {
        let said = reason(&std::fs::read(file.unwrap().path()).unwrap());
        assert_eq!(said, "0 entry points, not one");
    }
}

#[test]
fn sizes_follow_decorations_and_spec_constants() {
    let found = Reflection::of(&test_module("interface.comp.spv"), "interface").unwrap();
    assert_eq!(found.local_size, [32, 2, 1]);
    assert_eq!(found.spec_ids, [3, 7]);
    let bindings: Vec<(u32, bool)> = found.bindings.iter().map(|b| (b.binding, b.readonly)).collect();
    assert_eq!(bindings, [(1, true), (5, false)]);
    // n @0, two pairs of 16 bytes @16, then two columns of 8 bytes.
    assert_eq!(found.push_bytes, 64);
    // 24 vec4, 3 uint.
    assert_eq!(found.shared_bytes, 24 * 16 + 12);
    assert_eq!(found.entry_point, "main");
    assert!(!found.declares_float64());
}

#[test]
fn modules_for_vulkan_1_0_are_read() {
    let found = Reflection::of(&test_module("old_style.comp.spv"), "old_style").unwrap();
    let bindings: Vec<(u32, bool)> = found.bindings.iter().map(|b| (b.binding, b.readonly)).collect();
    assert_eq!(bindings, [(0, true), (1, false)]);
    assert_eq!(found.push_bytes, 24);
    assert_eq!(found.shared_bytes, 2048);
    assert_eq!(found.version, (1, 0));
    assert!(found.declares_float64());
}

#[test]
fn modules_of_today_are_read() {
    let found = Reflection::of(&test_module("modern.comp.spv"), "modern").unwrap();
    // An address @0, a byte @8, three columns of 16 bytes @12.
    assert_eq!(found.push_bytes, 60);
    assert_eq!(found.bindings.len(), 1);
    for name in ["Int64Atomics", "GroupNonUniformShuffle", "PhysicalStorageBufferAddresses", "AtomicFloat32AddEXT"] {
        assert!(found.capabilities.iter().any(|c| format!("{c:?}") == name), "{name}");
    }
}

#[test]
fn what_can_not_be_called_is_refused_with_its_reason() {
    assert_eq!(reason(&test_module("graphics.vert.spv")), "a Vertex shader, not a compute shader");
    assert_eq!(reason(&test_module("graphics.frag.spv")), "a Fragment shader, not a compute shader");
    assert!(reason(&test_module("image.comp.spv")).contains("only storage buffers"));
    assert_eq!(reason(&test_module("set1.comp.spv")), "binding 0 is in set 1; only set 0 can be bound");
}

#[test]
fn what_is_no_spirv_is_refused_with_its_reason() {
    assert!(reason(b"").contains("five header words"));
    assert!(reason(b"hello, world, hello, world").contains("whole number of words"));
    assert!(reason(b"hello, world, hello, world!!").contains("not SPIR-V"));
    let good = test_module("old_style.comp.spv");
    let swapped: Vec<u8> = good.chunks(4).flat_map(|w| [w[3], w[2], w[1], w[0]]).collect();
    assert_eq!(reason(&swapped), "big-endian SPIR-V");
    let patched = |at: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    assert!(reason(&patched(1, 0x0002_0000)).contains("version"));
    assert!(reason(&patched(3, 3)).contains("outside"));
    assert!(reason(&patched(3, u32::MAX)).contains("bound"));
    assert!(reason(&patched(5, 0)).contains("word count 0"));
    assert!(reason(&patched(5, 0xffff_0011)).contains("beyond the end"));
    assert!(reason(&patched(5, 0x0002_ffff)).contains("unknown instruction"));
    assert!(reason(&patched(6, 99_999)).contains("99999 is no Capability"));
    let doubled = [good.as_slice(), &good[20..]].concat();
    assert!(reason(&doubled).contains("defined twice"));
}

/// A module as a list of instructions, each with its first word.
fn instructions(bytes: &[u8]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let mut list = Vec::new();
    let mut at = 5;
    while at < words.len() {
        let count = (words[at] >> 16) as usize;
        list.push(words[at..at + count].to_vec());
        at += count;
    }
    (words[..5].to_vec(), list)
}

fn assemble(header: &[u32], list: &[Vec<u32>]) -> Vec<u8> {
    let words = header.iter().chain(list.iter().flatten());
    words.flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn functions_that_call_each_other_in_a_circle_are_refused() {
    let bytes = std::fs::read(shaders().join("elementwise_binary.spv")).unwrap();
    let (header, mut list) = instructions(&bytes);
    // The first call of every function calls its own function instead, where the types agree.
    let mut refused = 0;
    let mut function = 0;
    for at in 0..list.len() {
        match list[at][0] & 0xffff {
            54 => function = list[at][2],
            57 if list[at][3] != function => {
                let callee = std::mem::replace(&mut list[at][3], function);
                if reason_of(&assemble(&header, &list)).is_some_and(|r| r.contains("circle")) {
                    refused += 1;
                }
                list[at][3] = callee;
            }
            _ => {}
        }
    }
    assert!(refused > 0);
}

fn reason_of(bytes: &[u8]) -> Option<String> {
    match Reflection::of(bytes, "") {
        Ok(_) => None,
        Err(Error::BadShader { reason, .. }) => Some(reason),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_missing_terminator_and_a_foreign_branch_are_refused() {
    let bytes = std::fs::read(shaders().join("elementwise_binary.spv")).unwrap();
    let (header, list) = instructions(&bytes);
    let is = |i: &[u32], op: u32| i[0] & 0xffff == op;
    let without_return: Vec<Vec<u32>> = list.iter().filter(|i| !is(i, 253)).cloned().collect();
    assert!(reason(&assemble(&header, &without_return)).contains("no end"));
    let labels: Vec<u32> = list.iter().filter(|i| is(i, 248)).map(|i| i[1]).collect();
    let mut foreign = list.clone();
    let branch = foreign.iter_mut().rev().find(|i| is(i, 249)).unwrap();
    branch[1] = labels[0];
    assert!(reason(&assemble(&header, &foreign)).contains("another function"));
    let mut missing = list.clone();
    missing.retain(|i| !is(i, 56));
    assert!(reason(&assemble(&header, &missing)).contains("OpFunction"));
}

#[test]
fn every_truncation_is_refused() {
    let bytes = test_module("old_style.comp.spv");
    for length in 0..bytes.len() {
        reason(&bytes[..length]);
    }
}

/// A copy with one to three words swapped or replaced, or bits flipped.
fn damaged(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(3) {
        match random.below(4) {
            0 => {
                let (a, b) = (random.below(bytes.len() / 4) * 4, random.below(bytes.len() / 4) * 4);
                for i in 0..4 {
                    bytes.swap(a + i, b + i);
                }
            }
            1 => {
                let at = random.below(bytes.len() / 4) * 4;
                let word = random.below(64) as u32;
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            _ => {
                let bit = random.below(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
    bytes
}

/// Either way of ending is fine; a panic or a hang is not.
#[test]
fn damaged_modules_never_panic() {
    let names = ["transpose", "matmul_tiled", "reduce_axis", "leapfrog_chain_normal"];
    let mut originals: Vec<Vec<u8>> =
        names.iter().map(|name| std::fs::read(shaders().join(format!("{name}.spv"))).unwrap()).collect();
    originals.push(test_module("interface.comp.spv"));
    originals.push(test_module("old_style.comp.spv"));
    originals.push(test_module("modern.comp.spv"));
    // A debug build takes 0.4 ms for each.
    let rounds = if cfg!(debug_assertions) { 25_000 } else { 100_000 };
    let threads = 4;
    let damage = &|seed: u64| {
        let mut random = Random(seed);
        let damaged = (0..rounds / threads).map(|round| damaged(&originals[round % originals.len()], &mut random));
        damaged.filter(|bytes| targets::module(bytes)).count()
    };
    let accepted: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || damage(seed as u64))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    // Literals, names and constants may change and leave a well-formed module.
    println!("{accepted} of {rounds} damaged modules are still well-formed");
    assert!(accepted < rounds / 2);
}

#[test]
fn random_bytes_are_refused() {
    let mut random = Random(2);
    for _ in 0..1000 {
        let words = 5 + random.below(60);
        let mut bytes: Vec<u8> = (0..words * 4).map(|_| random.below(256) as u8).collect();
        bytes[..20].copy_from_slice(&test_module("set1.comp.spv")[..20]);
        reason(&bytes);
    }
}

#[test]
fn the_external_validator_agrees_where_it_is_installed() {
    let good = shaders().join("transpose.spv");
    let Ok(true) = spirv_val(&good) else {
        return crate::tools::skipped_without_spirv_val();
    };
    let bad = std::env::temp_dir().join(format!("nx_vulkan-bad-{}.spv", std::process::id()));
    std::fs::write(&bad, &std::fs::read(&good).unwrap()[..400]).unwrap();
    let result = spirv_val(&bad);
    std::fs::remove_file(&bad).unwrap();
    assert!(matches!(result, Err(Error::BadShader { .. })), "{result:?}");
}

#[test]
fn a_value_used_where_it_may_not_be_computed_is_refused() {
    let bytes = test_module("interface.comp.spv");
    let (header, list) = instructions(&bytes);
    // Moves the first two instructions of main, whose results later blocks use, into a branch that may not be taken.
    let main = list.iter().position(|i| i[0] & 0xffff == 54).unwrap();
    let label = |id: u32| vec![0x0002_00f8, id];
    let bound = header[3];
    let (taken, merge) = (bound, bound + 1);
    let condition = bound + 2;
    let boolean = bound + 3;
    let body = (main..list.len()).find(|&at| list[at][0] & 0xffff == 61).unwrap();
    let mut broken = list[..main].to_vec();
    broken.push(vec![0x0002_0014, boolean]);
    broken.push(vec![0x0003_0029, boolean, condition]);
    broken.extend_from_slice(&list[main..body - 1]);
    broken.push(vec![0x0003_00f7, merge, 0]);
    broken.push(vec![0x0004_00fa, condition, taken, merge]);
    broken.push(label(taken));
    broken.extend_from_slice(&list[body - 1..=body]);
    broken.push(vec![0x0002_00f9, merge]);
    broken.push(label(merge));
    broken.extend_from_slice(&list[body + 1..]);
    let mut header = header;
    header[3] += 4;
    assert!(reason(&assemble(&header, &broken)).contains("not computed on every way"));
}

#[test]
fn decorations_on_what_can_not_carry_them_are_refused() {
    let bytes = test_module("old_style.comp.spv");
    let (header, list) = instructions(&bytes);
    let is = |i: &[u32], op: u32| i[0] & 0xffff == op;
    let mut beyond = list.clone();
    beyond.iter_mut().find(|i| is(i, 72)).unwrap()[2] = 9;
    assert!(reason(&assemble(&header, &beyond)).contains("OpMemberDecorate: has no place"));
    let mut binding = list.clone();
    let void = list.iter().find(|i| is(i, 19)).unwrap()[1];
    binding.iter_mut().find(|i| is(i, 71) && i[2] == 33).unwrap()[1] = void;
    assert!(reason(&assemble(&header, &binding)).contains("OpDecorate: has no place"));
}
