//! The driver's pipeline cache in a file, so that a second start compiles nothing.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;
use std::{env, fs, io, process};

use sha2::{Digest, Sha256};

use crate::device::{Caps, DeviceInfo};

/// Our own header in front of the driver's: a magic and a hash, as drivers may crash on damaged data.
const MAGIC: &[u8; 8] = b"NXVKPC01";
const HASH_BYTES: usize = 32;
/// `VkPipelineCacheHeaderVersionOne`: length, version, vendor, device, UUID.
const DRIVER_HEADER_BYTES: usize = 32;

/// `$NX_VULKAN_CACHE_DIR`, else `nx_vulkan` in the XDG cache directory. `None` where no home directory is known.
pub fn default_dir() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("NX_VULKAN_CACHE_DIR").or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .map(|cache| cache.join("nx_vulkan"))
    })
}

/// The file of a device and driver in a folder under `dir`.
pub fn device_file(dir: &Path, folder: &str, info: &DeviceInfo, extension: &str) -> PathBuf {
    let (vendor, device, driver) = (info.vendor_id, info.uuid_hex(), info.driver_version);
    dir.join(folder).join(format!("{vendor:04x}-{device}-{driver:08x}.{extension}"))
}

/// The file of the driver's data.
pub fn file(dir: &Path, info: &DeviceInfo) -> PathBuf {
    device_file(dir, "pipelines", info, "bin")
}

/// The driver's data in `path`; empty when the file is missing, damaged, or of another device or driver.
pub fn load(path: &Path, caps: &Caps) -> Vec<u8> {
    let Ok(mut file) = fs::read(path) else {
        return Vec::new();
    };
    let start = MAGIC.len() + HASH_BYTES;
    if file.len() < start + DRIVER_HEADER_BYTES || !file.starts_with(MAGIC) {
        return Vec::new();
    }
    let data = file.split_off(start);
    let intact = Sha256::digest(&data).as_slice() == &file[MAGIC.len()..];
    match intact && driver_header_matches(&data, caps) {
        true => data,
        false => Vec::new(),
    }
}

/// Writes `data`. An unwritable directory is ignored: the cache only saves time.
pub fn store(path: &Path, data: &[u8]) {
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&Sha256::digest(data));
    file.extend_from_slice(data);
    let _ = write_whole(path, &file);
}

/// Writes a file under a temporary name and renames it, so that no reader sees half of it.
///
/// # Errors
/// What the file system says.
pub fn write_whole(path: &Path, file: &[u8]) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    // Processes of two containers that share a folder may have one number.
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
    let write = WRITES.fetch_add(1, Relaxed);
    let temporary = path.with_extension(format!("{}-{write}-{now}.tmp", process::id()));
    let written = fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(&temporary, file))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn driver_header_matches(data: &[u8], caps: &Caps) -> bool {
    let word = |i: usize| data.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    word(0).is_some_and(|len| len as usize >= DRIVER_HEADER_BYTES)
        && word(1) == Some(1)
        && word(2) == Some(caps.vendor_id)
        && word(3) == Some(caps.device_id)
        && data.get(16..DRIVER_HEADER_BYTES) == Some(caps.pipeline_cache_uuid.as_slice())
}
