//! The engines of this VM, by their devices. Calls that name none mean the default device, and references carry the
//! engine whose memory they hold.

use std::cell::Cell;
use std::sync::Arc;

use nx_vulkan_engine::{Engine, Error, Result};
use once_cell::sync::OnceCell;

/// An engine stays open until the VM ends.
pub type Opened = &'static Arc<Engine>;

/// Devices of one machine, at most.
const MAX_DEVICES: usize = 64;

/// By the index of the device among those of the machine.
static BY_DEVICE: [OnceCell<Arc<Engine>>; MAX_DEVICES] = [const { OnceCell::new() }; MAX_DEVICES];

/// That of the default device. A failed attempt leaves it empty, so that the next use tries again.
static DEFAULT: OnceCell<Opened> = OnceCell::new();

thread_local! {
    /// The index of the device that the call on this thread has met last.
    static MET: Cell<usize> = const { Cell::new(0) };
}

/// Notes the device that the call on this thread is about.
pub fn met(engine: Opened) -> Opened {
    MET.set(engine.info().index);
    engine
}

/// The index of the device that the call on this thread is about, if it has met one.
pub fn last_met() -> usize {
    MET.get()
}

/// The engine of calls that name no device, if it is open.
pub fn default() -> Option<Opened> {
    DEFAULT.get().copied().map(met)
}

/// The engine of calls that name no device, which `open` opens if it is not open yet.
pub fn default_or(open: impl FnOnce() -> Result<Arc<Engine>>) -> Result<Opened> {
    DEFAULT
        .get_or_try_init(|| {
            let engine = open()?;
            let place = place(engine.info().index)?;
            Ok(place.get_or_init(|| engine))
        })
        .copied()
        .map(met)
}

/// The engine of a device, which `open` opens if it is not open yet.
pub fn of_or(index: usize, open: impl FnOnce() -> Result<Arc<Engine>>) -> Result<Opened> {
    place(index)?.get_or_try_init(open).map(met)
}

/// The engine of a device by its index, or the default one for `None`, if it is open.
pub fn of(device: Option<usize>) -> Option<Opened> {
    match device {
        Some(index) => BY_DEVICE.get(index).and_then(OnceCell::get).map(met),
        None => default(),
    }
}

/// Every engine that is open.
pub fn all() -> impl Iterator<Item = Opened> {
    BY_DEVICE.iter().filter_map(OnceCell::get)
}

fn place(index: usize) -> Result<&'static OnceCell<Arc<Engine>>> {
    BY_DEVICE.get(index).ok_or_else(|| Error::InvalidArgument {
        what: "device",
        expected: format!("one of the first {MAX_DEVICES}"),
        got: index.to_string(),
    })
}
