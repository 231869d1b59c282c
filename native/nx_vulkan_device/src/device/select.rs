//! Which of the devices found a selector means.

use nx_vulkan_ir::Result;

use super::{DeviceInfo, no_device};

/// The index into `devices` of the device that `selector` names.
///
/// A selector is an index, `uuid:` with hexadecimal digits, at least 8 bare hexadecimal digits of a UUID, or a part of
/// the name in any case, which may stand after `name:`. Without one, the best kind wins, and the first of its kind.
pub fn choose(devices: &[DeviceInfo], selector: Option<&str>) -> Result<usize> {
    let selector = selector.map(str::trim).filter(|s| !s.is_empty());
    let found = match selector {
        None => {
            devices.iter().enumerate().filter(|(_, d)| d.unusable.is_none()).min_by_key(|(_, d)| d.kind).map(|(i, _)| i)
        }
        Some(wanted) => devices.iter().position(|d| matches(d, wanted) && d.unusable.is_none()),
    };
    found.ok_or_else(|| no_device(reason(devices, selector)))
}

fn matches(device: &DeviceInfo, wanted: &str) -> bool {
    if let Ok(index) = wanted.parse::<usize>()
        && wanted.len() < MIN_UUID_DIGITS
    {
        return device.index == index;
    }
    let wanted = wanted.to_ascii_lowercase();
    if let Some(name) = wanted.strip_prefix("name:") {
        return !name.is_empty() && device.name.to_ascii_lowercase().contains(name);
    }
    let (explicit, digits) = match wanted.strip_prefix("uuid:") {
        Some(rest) => (true, rest.replace('-', "")),
        None => (false, wanted.replace('-', "")),
    };
    let is_hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if explicit || (is_hex && digits.len() >= MIN_UUID_DIGITS) {
        return is_hex && device.uuid_hex().starts_with(&digits);
    }
    device.name.to_ascii_lowercase().contains(&wanted)
}

/// Fewer bare hexadecimal digits than this are an index or a part of a name ("a100").
const MIN_UUID_DIGITS: usize = 8;

fn reason(devices: &[DeviceInfo], selector: Option<&str>) -> String {
    let list = devices.iter().map(DeviceInfo::to_string).collect::<Vec<_>>().join("; ");
    match (devices.is_empty(), selector) {
        (true, _) => "the Vulkan loader reports no devices".to_string(),
        (false, Some(s)) => format!("no usable device matches {s:?}; found {list}"),
        (false, None) => format!("none of the devices found can be used: {list}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Details, DeviceKind};
    use nx_vulkan_ir::Error;

    use nx_vulkan_spirv::lower::Lacks;

    fn device(index: usize, name: &str, kind: DeviceKind, uuid0: u8) -> DeviceInfo {
        let mut uuid = [0u8; 16];
        uuid[0] = uuid0;
        uuid[1] = 0xbc;
        DeviceInfo {
            index,
            name: name.into(),
            uuid,
            kind,
            vendor_id: 0,
            device_id: 0,
            driver_name: String::new(),
            driver_info: String::new(),
            driver_version: 0,
            api_version: (1, 3, 0),
            memory_bytes: 0,
            lacks: Lacks::default(),
            pci: None,
            details: Details::default(),
            unusable: None,
        }
    }

    fn machine() -> Vec<DeviceInfo> {
        vec![
            device(0, "llvmpipe (LLVM)", DeviceKind::Cpu, 0x11),
            device(1, "Intel Arc", DeviceKind::Integrated, 0x22),
            device(2, "NVIDIA H200", DeviceKind::Discrete, 0xab),
            device(3, "NVIDIA H200", DeviceKind::Discrete, 0xac),
        ]
    }

    #[test]
    fn without_a_selector_the_best_kind_wins() {
        let mut m = machine();
        assert_eq!(choose(&m, None), Ok(2));
        assert_eq!(choose(&m, Some("  ")), Ok(2));
        m[2].unusable = Some("too old".into());
        assert_eq!(choose(&m, None), Ok(3));
        m.truncate(2);
        assert_eq!(choose(&m, None), Ok(1));
    }

    #[test]
    fn selectors_name_index_uuid_or_name() {
        let m = machine();
        assert_eq!(choose(&m, Some("1")), Ok(1));
        assert_eq!(choose(&m, Some("uuid:ac")), Ok(3));
        assert_eq!(choose(&m, Some("uuid:ACBC-0000")), Ok(3));
        assert_eq!(choose(&m, Some("acbc0000")), Ok(3));
        assert_eq!(choose(&m, Some("h200")), Ok(2));
        assert_eq!(choose(&m, Some("LLVMPIPE")), Ok(0));
        assert_eq!(choose(&m, Some("name:H200")), Ok(2));
    }

    #[test]
    fn an_unmatched_selector_lists_what_was_found() {
        let err = choose(&machine(), Some("radeon")).unwrap_err();
        let Error::NoDevice { reason } = err else { panic!("{err:?}") };
        assert!(reason.contains("radeon") && reason.contains("NVIDIA H200"));
        assert!(choose(&machine(), Some("9")).is_err());
        assert!(choose(&machine(), Some("uuid:zz")).is_err());
        assert!(choose(&machine(), Some("name:")).is_err());
        assert!(choose(&[], None).is_err());
    }
}
