//! What must hold for any bytes: an error, or a module whose form with exact floats is a module with the same
//! interface, and no panic. `fuzz/` calls it too.

use nx_vulkan_check::{Reflection, exact_floats};

/// Bytes of a module. Answers whether they are one.
pub fn module(bytes: &[u8]) -> bool {
    let Ok(reflection) = Reflection::of(bytes, "module") else { return false };
    let Ok(exact) = exact_floats(bytes, "module") else { return true };
    let again = Reflection::of(&exact, "module").expect("exact floats change no rule");
    // It asks for one capability more.
    let same = Reflection { capabilities: reflection.capabilities.clone(), ..again };
    assert_eq!(format!("{same:?}"), format!("{reflection:?}"));
    true
}
