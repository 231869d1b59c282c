//! The file of what was measured, one for each device and driver.

use std::fs;
use std::path::{Path, PathBuf};

use nx_vulkan_device::DeviceInfo;
use nx_vulkan_device::kernel::{device_file, write_whole};
use serde::{Deserialize, Serialize};

use super::measured::Calibration;

/// The version of the file, and of what its numbers mean.
const FORMAT: u32 = 1;

/// What stands in the file: whose numbers they are, so that those of a copied or renamed file count for no other
/// device.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    device: String,
    uuid: String,
    driver_version: u32,
    measured: Calibration,
}

pub(super) fn path(dir: &Path, info: &DeviceInfo) -> PathBuf {
    device_file(dir, "tuning", info, "json")
}

/// What was measured on the device, under the cache's folder; none where the file is missing, damaged, or of another
/// device, driver or version.
pub(crate) fn load(dir: &Path, info: &DeviceInfo) -> Option<Calibration> {
    let text = fs::read(path(dir, info)).ok()?;
    let file: File = serde_json::from_slice(&text).ok()?;
    let is_own = file.format == FORMAT && file.uuid == info.uuid_hex() && file.driver_version == info.driver_version;
    Some(file.measured).filter(|measured| is_own && measured.is_plausible())
}

/// Writes the file, and answers where it is; none where the folder can't be written.
pub(super) fn store(dir: &Path, info: &DeviceInfo, measured: &Calibration) -> Option<PathBuf> {
    let file = File {
        format: FORMAT,
        device: info.name.clone(),
        uuid: info.uuid_hex(),
        driver_version: info.driver_version,
        measured: *measured,
    };
    let path = path(dir, info);
    write_whole(&path, &serde_json::to_vec_pretty(&file).ok()?).ok()?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use nx_vulkan_device::DeviceKind;

    use super::*;
    use crate::Engine;

    const MEASURED: Calibration = Calibration {
        bytes_per_second: 3.9e12,
        flops_per_second: 6.2e13,
        dispatch_ns: 190.0,
        wait_ns: 2100.0,
        f32_products_per_second: 2.2e13,
        f64_products_per_second: Some(1.2e13),
        unit_products_per_second: None,
    };

    #[test]
    fn only_whole_files_of_the_device_and_driver_count() {
        let engine = Engine::open(None).unwrap();
        let info = engine.info();
        let dir = std::env::temp_dir().join(format!("nx-vulkan-tuning-{}", std::process::id()));
        assert_eq!(load(&dir, info), None);
        let path = store(&dir, info, &MEASURED).unwrap();
        assert_eq!(load(&dir, info), Some(MEASURED));
        let text = fs::read_to_string(&path).unwrap();
        let other_driver = DeviceInfo { driver_version: info.driver_version + 1, ..info.clone() };
        assert_eq!(load(&dir, &other_driver), None);
        fs::copy(&path, super::path(&dir, &other_driver)).unwrap();
        assert_eq!(load(&dir, &other_driver), None, "a file of another driver");
        let spoilt = [
            String::new(),
            "{".to_string(),
            text[..text.len() / 2].to_string(),
            text.replace("\"format\": 1", "\"format\": 2"),
            text.replace("190.0", "-190.0"),
            text.replace("190.0", "1e999"),
            text.replace("190.0", "null"),
            text.replace("dispatch_ns", "dispatch_us"),
            text.replace(&info.uuid_hex(), "00"),
        ];
        for text in spoilt {
            fs::write(&path, &text).unwrap();
            assert_eq!(load(&dir, info), None, "{text}");
        }
        fs::write(&path, [0xff, 0xfe, 0]).unwrap();
        assert_eq!(load(&dir, info), None);
        fs::remove_dir_all(&dir).unwrap();
        assert_ne!(info.kind, DeviceKind::Other);
    }
}
