//! Every way in which a call on raw buffers is refused, and that a bad file is an error and no more.

use std::fs;
use std::path::{Path, PathBuf};

use nx_vulkan_engine::nativev::{self, Compile, Failure, Outcome};

use crate::common::{Rng, TempDir, words};
use crate::raw::{Raw, shader};

fn add(raw: &Raw, path: &Path) -> Outcome {
    let a = raw.upload(&[1f32, 2.0]);
    nativev::binary(&raw.call(path), &a, &a, &a, 2, 0)
}

fn write(dir: &TempDir, name: &str, words: &[u32]) -> PathBuf {
    let path = dir.0.join(name);
    fs::write(&path, bytemuck::cast_slice::<u32, u8>(words)).unwrap();
    path
}

fn module(name: &str) -> Vec<u32> {
    words(&fs::read(shader(name)).unwrap())
}

/// Offsets of the instructions with an opcode.
fn find(words: &[u32], opcode: u32) -> Vec<usize> {
    let mut at = 5;
    let mut found = Vec::new();
    while at < words.len() {
        if words[at] & 0xffff == opcode {
            found.push(at);
        }
        at += (words[at] >> 16) as usize;
    }
    found
}

const OP_ENTRY_POINT: u32 = 15;
const OP_CAPABILITY: u32 = 17;

#[test]
fn sizes_that_do_not_fit_mismatch() {
    let raw = Raw::new();
    let (two, three, none) = (raw.zeros(8), raw.zeros(12), raw.zeros(0));
    let binary = |bufs, n| raw.binary("elementwise_binary", bufs, n, 0);
    assert_eq!(binary([&two, &two, &three], 2), Err(Failure::SizeMismatch));
    assert_eq!(binary([&three, &two, &two], 2), Err(Failure::SizeMismatch));
    assert_eq!(binary([&two, &two, &two], 3), Err(Failure::SizeMismatch));
    assert_eq!(binary([&two, &two, &two], u64::MAX), Err(Failure::SizeMismatch));
    assert_eq!(binary([&none, &none, &none], 1), Err(Failure::SizeMismatch));
    assert_eq!(binary([&none, &none, &none], 0), Ok(()));
    assert_eq!(raw.unary("elementwise_unary", [&two, &three], 2, 0), Err(Failure::SizeMismatch));
    // Two f64 are 16 bytes.
    assert_eq!(raw.binary("elementwise_binary_f64", [&two, &two, &two], 2, 0), Err(Failure::SizeMismatch));
    let reduce = |dims| nativev::reduce_axis(&raw.call(&shader("reduce_axis")), &two, &three, dims, 0);
    for dims in [[2, 2, 1], [3, 1, 1], [u64::MAX, u64::MAX, 2], [1, 0, 3]] {
        assert_eq!(reduce(dims), Err(Failure::SizeMismatch), "{dims:?}");
    }
    assert_eq!(reduce([1, 3, 1]), Ok(()));
    assert_eq!(reduce([0, 3, 1]), Ok(()));
    let transpose = |dims| nativev::transpose_2d(&raw.call(&shader("transpose")), &two, &three, dims);
    assert_eq!(transpose([3, 1]), Err(Failure::SizeMismatch));
    assert_eq!(transpose([2, 1]), Ok(()));
    let matmul = |dims| nativev::matmul(&raw.call(&shader("matmul")), &two, &three, &three, dims);
    assert_eq!(matmul([2, 1, 2]), Err(Failure::SizeMismatch));
    assert_eq!(matmul([1, 1, 3]), Ok(()));
    assert_eq!(matmul([3, 1, 1]), Err(Failure::SizeMismatch));
    raw.finish();
}

#[test]
fn unknown_op_codes_and_aliasing_are_bad_input() {
    let raw = Raw::new();
    let (a, b) = (raw.zeros(16), raw.zeros(16));
    for op in [-1, 10, 15, i64::MAX, i64::MIN] {
        assert_eq!(raw.binary("elementwise_binary", [&a, &a, &b], 4, op), Err(Failure::BadInput));
    }
    for op in [-1, 15, 1 << 32] {
        assert_eq!(raw.unary("elementwise_unary", [&a, &b], 4, op), Err(Failure::BadInput));
    }
    let reduce = |out, op| nativev::reduce_axis(&raw.call(&shader("reduce_axis")), out, &a, [2, 2, 1], op);
    assert_eq!(reduce(&b, 4), Err(Failure::BadInput));
    assert_eq!(reduce(&b, -1), Err(Failure::BadInput));
    assert_eq!(reduce(&a, 0), Err(Failure::BadInput));
    assert_eq!(nativev::transpose_2d(&raw.call(&shader("transpose")), &a, &a, [2, 2]), Err(Failure::BadInput));
    let matmul = |x, y| nativev::matmul(&raw.call(&shader("matmul")), &a, x, y, [2, 2, 2]);
    assert_eq!(matmul(&a, &b), Err(Failure::BadInput));
    assert_eq!(matmul(&b, &a), Err(Failure::BadInput));
    raw.finish();
}

#[test]
fn files_that_are_no_shader_can_not_be_read() {
    let raw = Raw::new();
    let dir = TempDir::new("nativev-files");
    let good = module("elementwise_binary");
    let paths = [
        dir.0.join("missing.spv"),
        dir.0.clone(),
        PathBuf::from("/dev/zero"),
        PathBuf::from(""),
        PathBuf::from("a\0b"),
        write(&dir, "empty.spv", &[]),
        write(&dir, "zeros.spv", &[0; 100]),
        write(&dir, "header.spv", &good[..5]),
        write(&dir, "half.spv", &good[..good.len() / 2]),
    ];
    for path in &paths {
        let found = add(&raw, path);
        assert!(matches!(&found, Err(Failure::SpvRead(m)) if !m.is_empty()), "{}: {found:?}", path.display());
    }
    let odd = dir.0.join("odd.spv");
    fs::write(&odd, &fs::read(shader("elementwise_binary")).unwrap()[..101]).unwrap();
    assert!(matches!(add(&raw, &odd), Err(Failure::SpvRead(_))));
    raw.finish();
}

#[test]
fn graphics_modules_and_unknown_capabilities_are_refused() {
    let raw = Raw::new();
    let dir = TempDir::new("nativev-modules");
    let good = module("elementwise_binary");
    let entry = find(&good, OP_ENTRY_POINT)[0];
    for model in [0, 4, 3, 5267, 99] {
        let mut graphics = good.clone();
        graphics[entry + 1] = model;
        let found = add(&raw, &write(&dir, &format!("model{model}.spv"), &graphics));
        assert!(matches!(&found, Err(Failure::SpvRead(_))), "{found:?}");
    }
    let capability = find(&good, OP_CAPABILITY)[0];
    // RayTracingKHR, Geometry, one that nobody has, TileImage.
    for (word, name) in [(4479, "RayTracing"), (2, "Geometry"), (60000, ""), (4166, "")] {
        let mut needy = good.clone();
        needy.splice(capability..capability, [2 << 16 | OP_CAPABILITY, word]);
        let found = add(&raw, &write(&dir, &format!("capability{word}.spv"), &needy));
        match found {
            Err(Failure::Dispatch(message) | Failure::SpvRead(message)) => {
                assert!(message.contains(name), "{word}: {message}")
            }
            found => panic!("{word}: {found:?}"),
        }
    }
    raw.finish();
}

#[test]
fn missing_and_extra_bindings_and_push_data_are_refused() {
    let raw = Raw::new();
    let (a, b) = (raw.zeros(64), raw.zeros(64));
    let extra = raw.unary("elementwise_binary", [&a, &b], 4, 0);
    assert!(matches!(&extra, Err(Failure::Dispatch(m)) if m.contains("[0, 1, 2]")), "{extra:?}");
    let missing = raw.binary("elementwise_unary", [&a, &b, &b], 4, 0);
    assert!(matches!(&missing, Err(Failure::Dispatch(m)) if m.contains("[0, 1]")), "{missing:?}");
    // It takes 56 bytes of push data, the call has 4.
    assert_eq!(raw.binary("elementwise_binary_broadcast", [&a, &b, &b], 4, 0), Err(Failure::BadInput));
    raw.finish();
}

#[test]
fn a_changed_file_is_read_again() {
    let raw = Raw::new();
    let dir = TempDir::new("nativev-changed");
    let path = dir.0.join("changes.spv");
    let a = raw.upload(&[3f32, 5.0]);
    let out = raw.zeros(8);
    let unary = || nativev::unary(&raw.call(&path), &out, &a, 2, 4);
    for _ in 0..3 {
        fs::copy(shader("elementwise_unary"), &path).unwrap();
        unary().unwrap();
        assert_eq!(raw.download::<f32>(&out), [-3.0, -5.0]);
        fs::write(&path, [0u8; 64]).unwrap();
        assert!(matches!(unary(), Err(Failure::SpvRead(_))));
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(unary(), Err(Failure::SpvRead(_))));
    raw.finish();
}

#[test]
fn a_call_that_may_not_compile_says_so_until_it_is_compiled() {
    let raw = Raw::new();
    let a = raw.upload(&[1f32, 2.0]);
    let path = shader("elementwise_binary");
    let mut cached = raw.call(&path);
    cached.compile = Compile::Refused;
    assert_eq!(nativev::binary(&cached, &a, &a, &a, 2, 0), Err(Failure::NeedsCompile));
    nativev::binary(&raw.call(&path), &a, &a, &a, 2, 0).unwrap();
    nativev::binary(&cached, &a, &a, &a, 2, 0).unwrap();
    assert_eq!(nativev::binary(&cached, &a, &a, &a, 2, 1), Err(Failure::NeedsCompile));
    assert_eq!(raw.download::<f32>(&a), [4.0, 8.0]);
    raw.finish();
}

#[test]
fn spirv_val_refuses_what_it_does_not_like() {
    if std::process::Command::new("spirv-val").arg("--version").output().is_err() {
        return crate::tools::skipped_without_spirv_val();
    }
    let raw = Raw::new();
    let dir = TempDir::new("nativev-validate");
    let a = raw.upload(&[1f32, 2.0]);
    let validated = |path: &Path| {
        let mut call = raw.call(path);
        call.validate = true;
        nativev::binary(&call, &a, &a, &a, 2, 0)
    };
    validated(&shader("elementwise_binary")).unwrap();
    // Bit flips: whatever the own checks let through, spirv-val sees; or the module is still a valid one.
    let good = module("elementwise_binary");
    let mut rng = Rng(11);
    let mut refused = 0;
    for round in 0..40 {
        let mut flipped = good.clone();
        let at = 5 + rng.below(good.len() as u64 - 5) as usize;
        flipped[at] ^= 1 << rng.below(32);
        match validated(&write(&dir, &format!("flip{round}.spv"), &flipped)) {
            Err(Failure::SpvRead(_) | Failure::Dispatch(_) | Failure::BadInput) => refused += 1,
            Ok(()) => {}
            found => panic!("word {at}: {found:?}"),
        }
    }
    assert!(refused > 10, "{refused} of 40 refused");
    raw.engine.wait().unwrap();
}

#[test]
fn a_fault_shows_at_the_download() {
    let raw = Raw::new();
    let a = raw.upload(&[1f32, 2.0]);
    let big = raw.zeros(8);
    raw.engine.wait().unwrap();
    raw.binary("elementwise_binary", [&big, &a, &a], 2, 0).unwrap();
    raw.engine.fail_next_submission();
    let mut out = [0; 8];
    let found = nativev::download(&raw.engine, &big, &mut out);
    assert!(matches!(found, Err(Failure::Dispatch(_))), "{found:?}");
    let found = raw.binary("elementwise_binary", [&big, &a, &a], 2, 0);
    assert!(matches!(found, Err(Failure::Dispatch(_))), "{found:?}");
}
