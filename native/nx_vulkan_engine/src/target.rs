//! What passes are told of an engine's device.

use nx_vulkan_ir::program::passes::{Saving, Target};
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::program::workgroup::DISPATCH_WORK;

use crate::{DeviceKind, Engine, Precision};

/// Elements of a row that one invocation holds at most, on GPUs and on a CPU device, whose driver compiles each of them slowly.
const MOST_ELEMENTS: u32 = 16;
const MOST_ELEMENTS_CPU: u32 = 4;

/// Invocations of a row: the largest workgroup that the template has.
const MOST_INVOCATIONS: u32 = 1024;

/// Invocations up to which programs are given kernels of rows on a CPU device, where those of several subgroups wait for one another at each
/// level of a tree: lavapipe takes twice as long for a softmax of 4096 rows of 1,000 in one kernel as for four kernels that stream, and 1.5
/// times as long for rows of 100, which then take less memory.
const PLANNED_INVOCATIONS_CPU: u32 = 32;

/// Work of one iteration that a loop in one workgroup may have. Where the host decides, it waits for the device in every iteration, some 30 us.
const ITERATION_WORK: u64 = 8 * DISPATCH_WORK;

/// Work of one dispatch, some 10 ms: drivers may end what runs for seconds.
const MAX_WORK: u64 = 4_800 * DISPATCH_WORK;

/// How many times as long a CPU device takes: lavapipe runs a workgroup on one core, at some tenth of the rate of one processor of a GPU, and
/// its host waits less.
const CPU_SLOWNESS: u64 = 8;

/// What kernels of rows hold on a device.
pub fn row_limits(kind: DeviceKind, max_invocations: u32) -> RowLimits {
    let invocations = 1 << MOST_INVOCATIONS.min(max_invocations.max(1)).ilog2();
    match kind {
        DeviceKind::Cpu => {
            RowLimits { elements: MOST_ELEMENTS_CPU, invocations, planned_invocations: PLANNED_INVOCATIONS_CPU }
        }
        _ => RowLimits { elements: MOST_ELEMENTS, invocations, planned_invocations: invocations },
    }
}

/// Work of one dispatch of a kernel of one workgroup, at most.
pub fn max_work(kind: DeviceKind) -> u64 {
    if kind == DeviceKind::Cpu { MAX_WORK / CPU_SLOWNESS } else { MAX_WORK }
}

/// A device of this kind, with all passes on. `matrix_units` says whether large products of f32 run on them.
pub fn of(kind: DeviceKind, max_invocations: u32, matrix_units: bool) -> Target {
    let is_cpu = kind == DeviceKind::Cpu;
    Target {
        rows: row_limits(kind, max_invocations),
        // A CPU device copies neighbours faster than it chooses between them.
        chooses_parts: !is_cpu,
        // lavapipe's dispatches cost little, and its compiler takes long for large kernels.
        joins_small_ops: !is_cpu,
        iteration_work: if is_cpu { ITERATION_WORK / CPU_SLOWNESS } else { ITERATION_WORK },
        max_work: max_work(kind),
        matrix_units,
        fusion: true,
        workgroups: true,
        saving: Saving::Nothing,
    }
}

impl Engine {
    /// What passes may know of the device, with all of them on.
    pub fn target(&self) -> Target {
        let caps = self.caps();
        let half_planes = caps.cooperative_matrix && self.precision() == Precision::High;
        of(caps.kind, caps.max_invocations, caps.bfloat16_matrix || half_planes)
    }
}
