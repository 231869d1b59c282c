//! What tools tests need.

/// Says that spirv-val is not installed, which is a failure where validation is required of a device that is there.
pub fn skipped_without_spirv_val() {
    let is = |name, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    let may_skip = !is("NX_VULKAN_VALIDATION", "required") || is("NX_VULKAN_TEST_DEVICE", "none");
    assert!(may_skip, "spirv-val is not installed: it is in the package spirv-tools");
    eprintln!("skipped: spirv-val is not installed");
}
