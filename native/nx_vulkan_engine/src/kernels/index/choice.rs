//! How updates come to their targets.

use crate::tuning::DeviceModel;

/// What becomes of the updates with one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The last one is put.
    Last,
    /// They are added one after another, and sums are rounded after each.
    Steps,
    /// They are added up in parts, and the sum is rounded once.
    Sums,
}

/// How updates find their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Rows have owners, who read all updates in their order.
    Owned,
    /// Updates are sorted by their targets, by comparing each with all others.
    Compared,
    /// Updates are sorted by their targets, as sorts do.
    Sorted,
}

/// Updates from which on they are added up in parts: guides/numerics.md.
const SUMS_FROM: u64 = 4096;

/// Elements of a row that are many without parts of the updates, on all devices, since results depend on it.
const WIDE_ROW: u64 = 1 << 16;

impl Applied {
    /// What an op means by so many updates of so many elements each. Results depend on it.
    pub(crate) fn of(add: bool, count: u64, inner: u64) -> Applied {
        match add {
            false => Applied::Last,
            true if count >= SUMS_FROM && inner < WIDE_ROW => Applied::Sums,
            true => Applied::Steps,
        }
    }

    /// How `count` updates of `inner` elements each are soonest applied.
    pub(crate) fn way(self, model: &DeviceModel, count: u64, inner: u64) -> Way {
        let updates = &model.updates;
        let is_owned = match self {
            Applied::Last => count <= updates.most_owned,
            Applied::Steps => count <= updates.most_owned || inner > updates.widest_run,
            Applied::Sums => false,
        };
        match is_owned {
            true => Way::Owned,
            false if count <= updates.most_compared => Way::Compared,
            false => Way::Sorted,
        }
    }
}

/// Invocations for each inner element among which a scatter shares its rows.
pub(crate) fn owners(model: &DeviceModel, count: u64, inner: u64) -> u64 {
    (model.updates.owners / inner.max(1)).clamp(1, count.max(1))
}
