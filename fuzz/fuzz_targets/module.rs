#![no_main]

#[allow(dead_code)]
#[path = "../../native/nx_vulkan_check/tests/check/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::module(bytes);
});
