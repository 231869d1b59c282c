#![no_main]

#[allow(dead_code)]
#[path = "../../native/nx_vulkan_ir/tests/programs/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::packed(bytes);
});
