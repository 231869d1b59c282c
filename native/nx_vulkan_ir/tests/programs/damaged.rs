//! Recorded programs and the wire form of their ops with bytes, numbers and words changed.
//!
//! `NX_VULKAN_FUZZ_ROUNDS` sets how many each test tries, `NX_VULKAN_FUZZ_SEED` where they begin.

use std::path::Path;

use nx_vulkan_ir::program::Program;
use nx_vulkan_ir::program::file::Recording;

use crate::targets;

/// SplitMix64, enough for test data.
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(number("NX_VULKAN_FUZZ_SEED", 20_261_125))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// What a token of JSON may become.
const TOKENS: [&str; 16] = [
    "0",
    "1",
    "-1",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e300",
    "0.5",
    "true",
    "null",
    "[]",
    "{}",
    "[[1]]",
    "\"f32\"",
    "\"nan\"",
];

fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_' | b'"')
}

/// Changes one token, or swaps, doubles, drops or flips some bytes.
fn damage(bytes: &mut Vec<u8>, others: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    let length = 1 + random.below(16.min(bytes.len() - at));
    match random.below(8) {
        0 => drop(bytes.drain(at..at + length)),
        1 => bytes[at] ^= 1 << random.below(8),
        2 => {
            let part = bytes[at..at + length].to_vec();
            bytes.splice(at..at, part);
        }
        3 => {
            let from = random.below(others.len());
            let part = others[from..others.len().min(from + length)].to_vec();
            bytes.splice(at..at + length, part);
        }
        _ => {
            let Some(start) = (at..bytes.len()).find(|&i| is_of_token(bytes[i])) else { return };
            let end = (start..bytes.len()).find(|&i| !is_of_token(bytes[i])).unwrap_or(bytes.len());
            bytes.splice(start..end, TOKENS[random.below(TOKENS.len())].bytes());
        }
    }
}

fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nx_vulkan_engine/tests/vectors");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| Recording::read(path).unwrap()).collect()
}

/// Tries `rounds` damaged samples, and wants some of each outcome.
fn try_all(samples: &[Vec<u8>], rounds: u64, target: impl Fn(&[u8]) -> bool) {
    assert!(samples.iter().all(|sample| target(sample)));
    let mut random = Random::new();
    let rounds = number("NX_VULKAN_FUZZ_ROUNDS", rounds);
    let mut accepted = 0;
    for _ in 0..rounds {
        let mut bytes = samples[random.below(samples.len())].clone();
        let others = &samples[random.below(samples.len())];
        for _ in 0..=random.below(3) {
            damage(&mut bytes, others, &mut random);
        }
        accepted += u64::from(target(&bytes));
    }
    println!("{accepted} of {rounds} damaged samples mean something");
    assert!(accepted > 0 && accepted < rounds, "{accepted} of {rounds}");
}

#[test]
fn damaged_programs_are_refused_or_programs() {
    // The long ones take long to read.
    let samples: Vec<Vec<u8>> = recordings().iter().map(|recording| recording.program.to_bytes().unwrap()).collect();
    let short: Vec<Vec<u8>> = samples.into_iter().filter(|bytes| bytes.len() < 20_000).collect();
    try_all(&short, 10_000, targets::program);
}

#[test]
fn damaged_packed_programs_are_refused_or_programs() {
    let recordings = recordings();
    let packed = |recording: &Recording| recording.program.to_packed();
    let samples: Vec<Vec<u8>> = recordings.iter().map(packed).collect();
    for (recording, bytes) in recordings.iter().zip(&samples) {
        assert!(Program::from_packed(bytes).as_ref() == Ok(&recording.program), "{}", recording.name);
    }
    let short: Vec<Vec<u8>> = samples.into_iter().filter(|bytes| bytes.len() < 20_000).collect();
    for end in 0..short[0].len() {
        assert!(Program::from_packed(&short[0][..end]).is_err(), "{end} bytes");
    }
    // Lists in lists without an end.
    assert!(Program::from_packed(&[7, 1, 0, 0, 0].repeat(1 << 20)).is_err());
    try_all(&short, 20_000, targets::packed);
}

#[test]
fn damaged_recordings_are_refused_or_recordings() {
    let samples: Vec<Vec<u8>> = recordings().iter().map(|recording| recording.to_bytes().unwrap()).collect();
    let short: Vec<Vec<u8>> = samples.into_iter().filter(|bytes| bytes.len() < 8_000).collect();
    try_all(&short, 10_000, targets::recording);
}

#[test]
fn damaged_ops_are_refused_or_ops() {
    let mut samples: Vec<Vec<u8>> = recordings()
        .iter()
        .flat_map(|recording| &recording.program.instructions)
        .map(|instruction| serde_json::to_vec(&(instruction.op.name(), instruction.op.attrs())).unwrap())
        .filter(|bytes| bytes.len() < 5_000)
        .collect();
    samples.sort();
    samples.dedup();
    try_all(&samples, 50_000, targets::wire);
}
