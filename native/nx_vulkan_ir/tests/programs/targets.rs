//! What must hold for any bytes: an error or a program that is written as it is read, and no panic. `fuzz/` calls them
//! too.

use nx_vulkan_ir::program::file::Recording;
use nx_vulkan_ir::program::wire::Attr;
use nx_vulkan_ir::program::{Op, Program};

/// Bytes of a program. Answers whether they are one.
pub fn program(bytes: &[u8]) -> bool {
    let Ok(program) = Program::from_bytes(bytes) else { return false };
    let written = program.to_bytes().expect("what was read can be written");
    let again = Program::from_bytes(&written).expect("what was written can be read");
    assert!(again.to_bytes().expect("and written again") == written, "{program:?} is not {again:?}");
    true
}

/// Bytes of a packed program. Answers whether they are one.
pub fn packed(bytes: &[u8]) -> bool {
    let Ok(program) = Program::from_packed(bytes) else { return false };
    let written = program.to_packed();
    let again = Program::from_packed(&written).expect("what was written can be read");
    assert!(again.to_packed() == written, "{program:?} is not {again:?}");
    true
}

/// Bytes of a file with a program, its inputs and results. Answers whether they are one.
pub fn recording(bytes: &[u8]) -> bool {
    let Ok(recording) = Recording::from_bytes(bytes) else { return false };
    let written = recording.to_bytes().expect("what was read can be written");
    let again = Recording::from_bytes(&written).expect("what was written can be read");
    assert!(again.to_bytes().expect("and written again") == written, "{}", recording.name);
    true
}

/// Whether there are integers beyond 63 bits, of which ops write no axis or size: no tensor has one, and programs with
/// them are refused.
fn has_huge(attr: &Attr) -> bool {
    match attr {
        Attr::UInt(_) => true,
        Attr::List(items) => items.iter().any(has_huge),
        _ => false,
    }
}

/// A name and named attributes as JSON. Answers whether they are an op.
pub fn wire(bytes: &[u8]) -> bool {
    let Ok((name, attrs)) = serde_json::from_slice::<(String, Vec<(String, Attr)>)>(bytes) else { return false };
    let Ok(op) = Op::from_wire(&name, &attrs) else { return false };
    let written = op.attrs();
    if !attrs.iter().any(|(_, attr)| has_huge(attr)) {
        let again = Op::from_wire(op.name(), &written).expect("what was read can be written and read");
        assert_eq!((again.name(), again.attrs()), (op.name(), written));
    }
    true
}
