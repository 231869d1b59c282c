//! Modules with one or two words changed: what spirv-val refuses, the check refuses; and where the words are targets of
//! branches, offsets or strides, it refuses nothing else. Skipped where spirv-val is not installed and need not be.
//!
//! `NX_VULKAN_SPIRV_MUTANTS` sets how many mutants are tried, `NX_VULKAN_SPIRV_SEED` where they begin.

use std::path::{Path, PathBuf};

use nx_vulkan_check::{Reflection, spirv_val};

use crate::random::Random;

const SHADERS: [&str; 9] = [
    "examples/regime_f64",
    "examples/eight_schools_f64",
    "examples/regime",
    "leapfrog_chain_weibull",
    "leapfrog_chain_beta_f64",
    "reduce_axis",
    "matmul_tiled",
    "random_philox",
    "template/sort_rows_1",
];

/// With matrices, nested structs, and control flow of every kind.
const SHADERS_OF_TESTS: [&str; 5] = [
    "tests/spirv/interface.comp",
    "tests/spirv/layouts.comp",
    "tests/spirv/modern.comp",
    "tests/spirv/old_style.comp",
    "tests/spirv/structured.comp",
];

fn shader(name: &str) -> PathBuf {
    let folder = if name.starts_with("tests/") { "" } else { "../../priv/shaders" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{name}.spv"))
}

/// The original with one or two words replaced by near ones, by small ones, or by other words of the module.
fn mutant(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = original.to_vec();
    let words = bytes.len() / 4;
    for _ in 0..=random.below(2) {
        let at = 5 + random.below(words - 5);
        let word =
            |at: usize| u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]);
        let replaced = match random.below(6) {
            0 => word(at) ^ 1 << random.below(8),
            1 => random.below(300) as u32,
            2 => word(at).wrapping_add(1),
            3 => word(at).wrapping_sub(1),
            4 => word(at - 1),
            _ => word(5 + random.below(words - 5)),
        };
        bytes[4 * at..4 * at + 4].copy_from_slice(&replaced.to_le_bytes());
    }
    bytes
}

/// The original with one or two targets of branches and merge instructions replaced by near labels, or with one or two
/// offsets and strides moved.
fn aimed(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut words: Vec<u32> = original.chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let (mut labels, mut targets, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = 5;
    while at < words.len() {
        let count = (words[at] >> 16) as usize;
        match words[at] & 0xffff {
            // OpLabel, OpLoopMerge, OpSelectionMerge, OpBranch, OpBranchConditional, OpSwitch
            248 => labels.push(words[at + 1]),
            246 => targets.extend([at + 1, at + 2]),
            247 | 249 => targets.push(at + 1),
            250 => targets.extend([at + 2, at + 3]),
            251 => targets.extend((at + 2..at + count).step_by(2)),
            // ArrayStride, MatrixStride, Offset
            71 if words[at + 2] == 6 => numbers.push(at + 3),
            72 if matches!(words[at + 3], 7 | 35) => numbers.push(at + 4),
            _ => {}
        }
        at += count;
    }
    let of_blocks = numbers.is_empty() || (!targets.is_empty() && random.below(2) == 0);
    for _ in 0..=random.below(2) {
        if of_blocks {
            let at = targets[random.below(targets.len())];
            let label = labels.iter().position(|label| *label == words[at]).unwrap();
            let near = (label + random.below(17)).saturating_sub(8).min(labels.len() - 1);
            words[at] = labels[near];
        } else {
            let at = numbers[random.below(numbers.len())];
            let step = 1 << random.below(5);
            words[at] = match random.below(4) {
                0 => words[at].saturating_sub(step),
                1 => words[at] / 2,
                2 => step - 1,
                _ => words[at] + step,
            };
        }
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn what_spirv_val_refuses_is_refused() {
    if !matches!(spirv_val(&shader(SHADERS[0])), Ok(true)) {
        return crate::tools::skipped_without_spirv_val();
    }
    let names: Vec<&str> = SHADERS.into_iter().chain(SHADERS_OF_TESTS).collect();
    let originals: Vec<Vec<u8>> = names.iter().map(|name| std::fs::read(shader(name)).unwrap()).collect();
    let seed = setting("NX_VULKAN_SPIRV_SEED", 0);
    let kept = std::env::temp_dir().join(format!("nx_vulkan-mutants-{}", std::process::id()));
    std::fs::create_dir_all(&kept).unwrap();
    let mut accepted = 0;
    let mut wrong = Vec::new();
    for number in seed..seed + setting("NX_VULKAN_SPIRV_MUTANTS", 3000) {
        let mut random = Random(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let is_aimed = random.below(4) == 0;
        let which = random.below(if is_aimed { names.len() } else { SHADERS.len() });
        let bytes = if is_aimed { aimed } else { mutant }(&originals[which], &mut random);
        let own = Reflection::of(&bytes, "");
        accepted += usize::from(own.is_ok());
        // Of words anywhere spirv-val overlooks some that are wrong, so only those of control flow and layouts must be
        // judged alike.
        if own.is_err() && !is_aimed {
            continue;
        }
        let path = kept.join(format!("{number}.spv"));
        std::fs::write(&path, bytes).unwrap();
        match (own, spirv_val(&path)) {
            (Ok(_), Ok(_)) | (Err(_), Err(_)) => std::fs::remove_file(&path).unwrap(),
            // Blocks that nothing leads to need no structure.
            (Ok(_), Err(error)) if is_aimed && error.to_string().contains("Back-edges") => {}
            // spirv-val takes a struct to end with its last member, and does not compare the strides of matrices with
            // their columns.
            (Err(error), Ok(_)) if error.to_string().ends_with("at least") => {}
            (Ok(_), Err(error)) => wrong.push(format!("{} of {}: {error}", number, names[which])),
            (Err(error), Ok(_)) => wrong.push(format!("{} of {} is valid: {error}", number, names[which])),
        }
    }
    println!("{accepted} mutants accepted");
    assert!(wrong.is_empty(), "{} in {}:\n{}", wrong.len(), kept.display(), wrong.join("\n"));
    std::fs::remove_dir_all(&kept).unwrap();
}

/// The module with each operand `index` (after result type and result) of an operation, in turn, replaced; the reasons
/// of refusals.
fn reasons(name: &str, op: u32, index: usize, replaced: u32) -> Vec<Option<String>> {
    let bytes = std::fs::read(shader(name)).unwrap();
    let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let mut found = Vec::new();
    let mut at = 5;
    while at < words.len() {
        let count = (words[at] >> 16) as usize;
        if words[at] & 0xffff == op && index < count {
            let mut changed = words.clone();
            changed[at + index] = if replaced == OWN { words[at + 2] } else { replaced };
            let changed: Vec<u8> = changed.into_iter().flat_map(u32::to_le_bytes).collect();
            found.push(Reflection::of(&changed, "").err().map(|error| error.to_string()));
        }
        at += count;
    }
    found
}

/// Stands for the instruction's own result.
const OWN: u32 = u32::MAX;

#[test]
fn each_rule_refuses_what_breaks_it_and_says_so() {
    let double = "examples/regime_f64";
    // Operation, word of the instruction, what is put there, and what the refusal says of at least one place.
    let cases = [
        (12, 4, 27, "Exp: floats of 64 bits where 16 or 32 are needed"),
        (12, 4, 64, "UnpackUnorm4x8: operand"),
        (12, 4, 76, "operands for InterpolateAtCentroid"),
        (71, 2, 43, "InputAttachmentIndex on OpVariable"),
        (71, 2, 10_000, "is no Decoration"),
        (16, 2, 0, "execution mode Some(Invocations)"),
        (16, 2, 4462, "RoundingModeRTE without its capability"),
        (128, 3, OWN, "OpIAdd: id"),
        (131, 3, OWN, "is used before it is defined"),
        (250, 1, 1, "is no value"),
        (224, 1, 0, "id 0 is outside"),
    ];
    for (op, index, replaced, wanted) in cases {
        let found = reasons(double, op, index, replaced);
        assert!(found.iter().flatten().any(|reason| reason.contains(wanted)), "{op} {index} {replaced}: {found:?}");
    }
}

/// Every operand of these operations replaced by a value of another type.
#[test]
fn operands_of_another_type_are_refused() {
    let bytes = std::fs::read(shader("examples/regime_f64")).unwrap();
    let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let mut at = 5;
    // A Boolean constant or a void type's id, which no operand below may be.
    let mut void = 0;
    while at < words.len() {
        if words[at] & 0xffff == 19 {
            void = words[at + 1];
        }
        at += (words[at] >> 16) as usize;
    }
    // Loads, stores, access chains, arithmetic, shifts, comparisons, conversions, selections, barriers, calls,
    // composites, phis.
    for op in [61, 62, 65, 128, 129, 131, 132, 133, 176, 186, 188, 112, 169, 224, 57, 80, 81, 245, 250] {
        let first = if matches!(op, 62 | 224 | 250) { 1 } else { 3 };
        let found = reasons("examples/regime_f64", op, first, void);
        assert!(found.iter().all(Option::is_some), "{op}: {found:?}");
    }
}
