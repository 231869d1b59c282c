//! The engines of this VM, by their devices. Calls that name none mean the device that was opened first, and references
//! carry the engine whose memory they hold.

use std::sync::Arc;

use nx_vulkan_engine::{Engine, Error, Result};
use once_cell::sync::OnceCell;

/// An engine stays open until the VM ends.
pub type Opened = &'static Arc<Engine>;

/// Devices of one machine, at most.
const MAX_DEVICES: usize = 64;

/// By the index of the device among those of the machine.
static BY_DEVICE: [OnceCell<Arc<Engine>>; MAX_DEVICES] = [const { OnceCell::new() }; MAX_DEVICES];

/// The one that was opened first. A failed attempt leaves it empty, so that the next use tries again.
static FIRST: OnceCell<Opened> = OnceCell::new();

/// The engine of calls that name no device, if it is open.
pub fn opened() -> Option<Opened> {
    FIRST.get().copied()
}

/// The engine of calls that name no device, which `open` opens if it is not open yet.
pub fn opened_or(open: impl FnOnce() -> Result<Arc<Engine>>) -> Result<Opened> {
    FIRST.get_or_try_init(|| keep(open()?)).copied()
}

/// Every engine that is open, for `halt`.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub fn all() -> impl Iterator<Item = Opened> {
    BY_DEVICE.iter().filter_map(OnceCell::get)
}

/// Puts an engine at its place.
fn keep(engine: Arc<Engine>) -> Result<Opened> {
    let index = engine.info().index;
    let place = BY_DEVICE.get(index).ok_or_else(|| Error::InvalidArgument {
        what: "device",
        expected: format!("one of the first {MAX_DEVICES}"),
        got: index.to_string(),
    })?;
    Ok(place.get_or_init(|| engine))
}
