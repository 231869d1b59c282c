//! Choosing and opening devices, and the pipeline cache on disk.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nx_vulkan_engine::{DeviceKind, Engine, Error, Interface, Options, PipelineKey, enumerate};

use crate::common::*;

#[test]
fn every_device_can_be_named_by_index_uuid_and_name() {
    let devices = enumerate().unwrap();
    assert!(!devices.is_empty());
    for device in devices.iter().filter(|d| d.unusable.is_none()) {
        for selector in [device.index.to_string(), format!("uuid:{}", device.uuid_hex()), device.uuid_hex()] {
            let engine = Engine::open_with(&Options { selector: Some(selector), ..options() }).unwrap();
            assert_eq!(engine.info().index, device.index);
        }
    }
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_known_ones() {
    let Err(Error::NoDevice { reason }) = Engine::open(Some("no such device")) else {
        panic!("opened a device that does not exist");
    };
    assert!(reason.contains(&enumerate().unwrap()[0].name), "{reason}");
}

/// Run by `a_missing_driver_or_loader_is_an_error` in a process of its own.
#[test]
#[ignore = "needs the environment that its caller sets"]
fn child_opens_a_device() {
    println!("{:?} {:?}", Engine::open(None).map(|_| ()), enumerate());
}

#[test]
fn a_missing_driver_or_loader_is_an_error() {
    let dir = TempDir::new("no-loader");
    fs::write(dir.0.join("libvulkan.so.1"), b"not a library").unwrap();
    for (name, value) in [("VK_DRIVER_FILES", "/nonexistent.json".as_ref()), ("LD_LIBRARY_PATH", dir.0.as_os_str())] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["open::child_opens_a_device", "--exact", "--ignored", "--nocapture"])
            .env(name, value)
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{name}: {out}");
        assert_eq!(out.matches("Err(NoDevice { reason: ").count(), 2, "{name}: {out}");
    }
}

/// RADV's device without hardware, of a family whose device type is none of Vulkan's in Mesa 25.0.
#[test]
fn a_driver_that_reports_nonsense_hides_its_own_device_alone() {
    let Some(manifest) = ["radeon_icd.json", "radeon_icd.x86_64.json"]
        .map(|name| Path::new("/usr/share/vulkan/icd.d").join(name))
        .into_iter()
        .find(|path| path.exists())
    else {
        println!("skipped: RADV is not installed");
        return;
    };
    let others = std::env::var("VK_DRIVER_FILES").unwrap_or_default();
    let files = [others, manifest.display().to_string()].join(":");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["open::child_opens_a_device", "--exact", "--ignored", "--nocapture"])
        .envs([("VK_DRIVER_FILES", files.as_str()), ("VK_ICD_FILENAMES", &files), ("RADV_FORCE_FAMILY", "gfx1201")])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && out.contains("Ok(())"), "{out}");
    assert_eq!(out.matches("DeviceInfo {").count(), enumerate().unwrap().len() + 1, "{out}");
    // Later versions of Mesa may report a device like any other.
    assert!(out.contains("reports the device type") || out.contains("GFX1201"), "{out}");
}

#[test]
fn caps_are_plausible() {
    let engine = engine();
    let caps = engine.caps();
    assert!(caps.max_invocations >= 128);
    assert!(caps.max_push_bytes >= 128);
    assert!(caps.max_workgroup_count.iter().all(|&n| n >= 65_535));
    assert!(caps.subgroup_size.is_power_of_two());
    assert!(caps.max_buffer_bytes >= 1 << 28);
    assert!(!caps.memory_types.is_empty() && !caps.heaps.is_empty());
    if caps.kind == DeviceKind::Cpu {
        assert!(caps.is_unified() && caps.shader_float64 && caps.shader_int64);
    }
    assert_valid(&engine);
}

#[test]
fn bad_shaders_are_errors_and_can_be_asked_for_again() {
    let engine = engine();
    let interface = Interface::Addresses { push_bytes: 32 };
    for words in [vec![], vec![1, 2, 3], vec![0; 100]] {
        let key = PipelineKey::new(&words, &[], interface);
        for _ in 0..2 {
            // SAFETY: neither module nor interface reach the driver.
            let result = unsafe { engine.pipeline(key, &words, &[], interface) };
            assert!(matches!(result, Err(Error::BadShader { .. })));
        }
    }
    let spirv = words(AXPB);
    let too_many = Interface::Addresses { push_bytes: 1 << 20 };
    let key = PipelineKey::new(&spirv, &[], too_many);
    // SAFETY: neither module nor interface reach the driver.
    let result = unsafe { engine.pipeline(key, &spirv, &[], too_many) };
    assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    assert_eq!(engine.stats().pipelines, 0);
    assert_valid(&engine);
}

#[test]
fn a_pipeline_is_compiled_once_per_key() {
    let engine = engine();
    let spirv = words(AXPB);
    let interface = Interface::Addresses { push_bytes: 32 };
    let key = PipelineKey::new(&spirv, &[(0, 0)], interface);
    assert!(engine.cached_pipeline(key).is_none());
    let first = axpb(&engine, false);
    assert!(Arc::ptr_eq(&first, &axpb(&engine, false)));
    assert!(Arc::ptr_eq(&first, &engine.cached_pipeline(key).unwrap()));
    assert!(!Arc::ptr_eq(&first, &axpb(&engine, true)), "other constants");
    assert_eq!(engine.stats().pipelines, 2);
    assert_valid(&engine);
}

fn run_with_cache(dir: &TempDir) {
    let engine = Engine::open_with(&Options { cache_dir: Some(dir.0.clone()), ..options() }).unwrap();
    let pipeline = axpb(&engine, false);
    let a = upload_words(&engine, &[2; 64]);
    run_axpb(&engine, &pipeline, &a, &a, 64, (10, 1), false).unwrap();
    assert_eq!(download_words(&engine, &a).unwrap(), [21; 64]);
    assert_valid(&engine);
}

#[test]
fn the_pipeline_cache_survives_damage() {
    let dir = TempDir::new("cache");
    run_with_cache(&dir);
    let files: Vec<_> = fs::read_dir(dir.0.join("pipelines")).unwrap().map(|f| f.unwrap().path()).collect();
    let [file] = files.as_slice() else {
        panic!("one file and no leftovers, not {files:?}");
    };
    let good = fs::read(file).unwrap();
    run_with_cache(&dir);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [Vec::new(), b"NXVKPC01".to_vec(), good[..good.len() - 1].to_vec(), vec![0xff; 4096], flipped] {
        fs::write(file, damaged).unwrap();
        run_with_cache(&dir);
        assert_eq!(fs::read(file).unwrap()[..8], good[..8], "written anew");
    }
}

#[test]
fn an_unwritable_cache_directory_is_ignored() {
    let dir = TempDir::new("unwritable");
    fs::write(dir.0.join("pipelines"), b"a file where the directory should be").unwrap();
    run_with_cache(&dir);
}
