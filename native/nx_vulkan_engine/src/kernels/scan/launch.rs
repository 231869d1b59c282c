//! Launches of scans over contiguous rows.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;

use super::{ScanKernel, ScanSpec, ScanStage};
use crate::kernels::{Arguments, Compile, Kernel, Place, launch};
use crate::program::Reduction;
use crate::tuning::DeviceModel;
use crate::{Engine, Error, Result, Tensor};

/// The running reduction of `rows` rows of `elements` from `input` into `out`, both contiguous and of one dtype.
#[derive(Debug, Clone, Copy)]
pub struct Scan<'a> {
    pub reduction: Reduction,
    /// Rows run from their last element to their first.
    pub reverse: bool,
    pub input: &'a Tensor,
    pub out: &'a Tensor,
    pub rows: u64,
    pub elements: u64,
}

pub fn scan(engine: &Engine, what: &Scan<'_>, compile: Compile) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    let (limit, most) = (engine.reach().near(size), engine.reach().far());
    if what.elements > most {
        return Err(Error::TooLarge { size_bytes: what.elements * size, limit_bytes: most * size });
    }
    let rows_per_launch = (limit / what.elements.max(1)).max(1);
    let mut first = 0;
    while first < what.rows {
        let rows = rows_per_launch.min(what.rows - first);
        let offset_bytes = first * what.elements * size;
        scan_rows(engine, what, rows, offset_bytes, compile)?;
        first += rows;
    }
    Ok(())
}

/// Elements of a chunk of a row, and chunks, where a workgroup takes `step` elements at once. The chunks of a row are
/// themselves scanned in one step.
pub(crate) fn chunks(model: &DeviceModel, rows: u64, elements: u64, step: u64) -> (u64, u64) {
    let chunks = model.fill.scan_groups.div_ceil(rows).min(elements.div_ceil(step)).min(step).max(1);
    let chunk = elements.div_ceil(chunks).next_multiple_of(step);
    (chunk, elements.div_ceil(chunk))
}

fn scan_rows(engine: &Engine, what: &Scan<'_>, rows: u64, offset_bytes: u64, compile: Compile) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    let spec = |stage| ScanSpec { reduction: what.reduction, dtype: what.input.view.dtype, stage };
    let whole = spec(ScanStage::Whole);
    let step = u64::from(ScanSpec::LOCAL_SIZE) * whole.items();
    let (chunk, chunks) = chunks(engine.model(), rows, what.elements, step);
    let team = what.elements.div_ceil(whole.items()).next_power_of_two().clamp(1, u64::from(ScanSpec::LOCAL_SIZE));
    let teams = u64::from(ScanSpec::LOCAL_SIZE) / team;
    let kernel = |stage, team: u64| {
        let spec = ScanKernel { spec: spec(stage), team: team as u32 };
        engine.kernel_reaching(&spec, what.elements > engine.reach().near(size), compile)
    };
    let place = |tensor: &Tensor| (Arc::clone(&tensor.buffer), tensor.address() + offset_bytes);
    let (input, out) = (place(what.input), place(what.out));
    let extra = |elements: u64, chunk: u64, chunks: u64, reverse: bool| {
        [rows as u32, elements as u32, chunk as u32, chunks as u32, u32::from(reverse)]
    };
    // Operands: input, carries, output.
    let run = |kernel: &Kernel, operands: [&(Arc<Buffer>, u64); 3], extra: [u32; 5], groups: u64| {
        let places =
            operands.map(|(buffer, address)| Place { buffer, address: *address, strides: &[], element_bytes: 0 });
        launch(engine, kernel, &Arguments { count: 0, sizes: &[], places: &places, extra: &extra }, 2, groups)
    };
    if chunks == 1 {
        let kernel = kernel(ScanStage::Whole, team)?;
        let extra = extra(what.elements, chunk, 1, what.reverse);
        return run(&kernel, [&input, &input, &out], extra, rows.div_ceil(teams));
    }
    // All kernels must exist before anything is recorded.
    let team_of_chunks = chunks.div_ceil(whole.items()).next_power_of_two().clamp(1, u64::from(ScanSpec::LOCAL_SIZE));
    let totals = kernel(ScanStage::Totals, team)?;
    let prefixes = kernel(ScanStage::Prefixes, team_of_chunks)?;
    let apply = kernel(ScanStage::Apply, team)?;
    let scratch = engine.alloc(rows * chunks * whole.accumulator_bytes())?;
    let carries = (Arc::clone(&scratch), scratch.address());
    let of_elements = extra(what.elements, chunk, chunks, what.reverse);
    run(&totals, [&input, &input, &carries], of_elements, rows * chunks)?;
    let groups = rows.div_ceil(u64::from(ScanSpec::LOCAL_SIZE) / team_of_chunks);
    run(&prefixes, [&carries, &carries, &carries], extra(chunks, step, 1, false), groups)?;
    run(&apply, [&input, &carries, &out], of_elements, rows * chunks)
}
