//! Launches of reductions: the view is split into kept and reduced axes, and large ones take two dispatches.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::reducer::Reducer;
use smallvec::SmallVec;

use super::{Direction, ReduceKernel, ReduceSpec, Stage};
use crate::kernels::map::takes_pairs;
use crate::kernels::{Arguments, Compile, Kernel, Place, launch, reach_of};
use crate::program::Reduction;
use crate::shape::{Dims, Space, Strides};
use crate::tuning::DeviceModel;
use crate::{DType, Engine, Result, Tensor, View};

/// What to reduce.
#[derive(Debug, Clone, Copy)]
pub struct Reduce<'a> {
    pub reduction: Reduction,
    pub tie_high: bool,
    pub axes: &'a [usize],
    pub out: DType,
}

/// Where the result goes.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub buffer: &'a Arc<Buffer>,
    pub offset_bytes: u64,
}

/// How one reduction is laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub direction: Direction,
    /// Invocations that share a chunk of a column.
    team: u32,
    /// Chunks per output and part, and elements per chunk.
    pub chunks: u64,
    pub chunk: u64,
    pub paired: bool,
}

impl Layout {
    /// Invocations that share one chunk of so many elements along so many axes in memory.
    pub fn team(&self, model: &DeviceModel, axes: usize, elements: u64) -> u32 {
        match self.direction {
            // Neighbours along several short axes are no neighbours in memory that a team could read together.
            Direction::Rows { .. } if axes > 1 && elements <= model.reductions.most_alone => 1,
            Direction::Rows { width } => team(model, elements.div_ceil(u64::from(width))),
            Direction::Columns { .. } => self.team,
        }
    }

    /// How the chunks' accumulators of so many bytes are reduced, which lie innermost after rows, outermost after
    /// columns.
    pub fn of_partials(&self, model: &DeviceModel, outputs: u64, partials: u64, bytes: u64) -> Layout {
        let rows = Direction::Rows { width: 1 };
        let (direction, team) = match self.direction {
            Direction::Rows { .. } => (rows, 1),
            Direction::Columns { .. } => match column_team(model, outputs, partials, bytes) {
                1 if partials > model.reductions.most_alone => (rows, 1),
                team => (Direction::Columns { in_teams: team > 1 }, team as u32),
            },
        };
        Layout { direction, team, chunks: 1, chunk: partials, paired: false }
    }
}

/// Invocations that share a chunk of a column of so many elements of so many bytes: a power of two.
fn column_team(model: &DeviceModel, outputs: u64, elements: u64, bytes: u64) -> u64 {
    let local_size = u64::from(ReduceSpec::LOCAL_SIZE);
    let Some(columns) = &model.reductions.columns else { return 1 };
    let all_bytes = outputs * elements * bytes;
    if outputs >= columns.many_outputs || outputs >= local_size && all_bytes > columns.many_bytes {
        return 1;
    }
    // Where there is less to read, it may be read several times. Behind the last output lies the next element of the
    // first.
    let share_bytes = columns.line_bytes * all_bytes.min(columns.many_bytes) / columns.many_bytes;
    let most = local_size * bytes / share_bytes.clamp(bytes, outputs * bytes).next_power_of_two();
    (elements / columns.elements).next_power_of_two().clamp(1, most)
}

/// Where elements come from that a view of a whole shows.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)]
pub enum Source<'a> {
    Memory(&'a Arc<Buffer>),
    /// What makes up to so many elements at once, without gaps.
    Made {
        make: &'a dyn Fn(&View) -> Result<Tensor>,
        most: u64,
    },
}

impl Source<'_> {
    fn is_aligned(self, part: &View) -> bool {
        let address = match self {
            Source::Memory(buffer) => buffer.address(),
            Source::Made { .. } => 0,
        };
        (address + part.offset_bytes()).is_multiple_of(16)
    }

    /// How the elements lie.
    fn seen(self, part: &View) -> View {
        match self {
            Source::Memory(_) => part.clone(),
            Source::Made { .. } => View::contiguous(part.dtype, &part.shape),
        }
    }
}

/// Reduces `view` of `buffer` over `axes` into the contiguous tensor at `out`, in the order of the kept axes.
pub fn reduce(
    engine: &Engine,
    buffer: &Arc<Buffer>,
    view: &View,
    what: Reduce<'_>,
    out: Target<'_>,
    compile: Compile,
) -> Result<()> {
    reduce_from(engine, Source::Memory(buffer), view, what, out, compile)
}

/// Reduces what lies in memory or is made for it; no C128 that is made.
pub fn reduce_from(
    engine: &Engine,
    source: Source<'_>,
    view: &View,
    what: Reduce<'_>,
    out: Target<'_>,
    compile: Compile,
) -> Result<()> {
    if what.reduction == Reduction::Sum && view.dtype == DType::C128 && what.out == DType::C128 {
        // The parts one by one, so that each sum is compensated.
        let parts = Reduce { out: DType::F64, ..what };
        return reduce_from(engine, source, &view.parts(), parts, out, compile);
    }
    let near = engine.reach().near(view.dtype.size_bytes().max(what.out.size_bytes()));
    let most = match source {
        Source::Memory(_) => engine.reach().far(),
        Source::Made { most, .. } => most.min(engine.reach().far()),
    };
    let kept: u64 = (0..view.shape.len()).filter(|a| !what.axes.contains(a)).map(|a| view.shape[a]).product();
    let is_large = |view: &View| reach_of(view) > near || view.elements() > most;
    if (is_large(view) || kept > near)
        && let Some(axis) = outermost(view, |axis| !what.axes.contains(&axis))
    {
        let inner: u64 =
            (axis + 1..view.shape.len()).filter(|a| !what.axes.contains(a)).map(|a| view.shape[a]).product();
        let half = view.shape[axis] / 2;
        let (first, second) = halve(view, axis, half)?;
        reduce_from(engine, source, &first, what, out, compile)?;
        let moved = Target { offset_bytes: out.offset_bytes + half * inner * what.out.size_bytes(), ..out };
        return reduce_from(engine, source, &second, what, moved, compile);
    }
    let mut parts: SmallVec<[View; 1]> = SmallVec::from_elem(view.clone(), 1);
    // Places count from the first element of a launch.
    let far = what.reduction.finds_place() && engine.reach().is_far(&[view])?;
    while let Some(at) = parts.iter().position(is_large).filter(|_| !what.reduction.finds_place()) {
        let Some(axis) = outermost(&parts[at], |axis| what.axes.contains(&axis)) else { break };
        let (first, second) = halve(&parts[at], axis, parts[at].shape[axis] / 2)?;
        parts[at] = first;
        parts.insert(at + 1, second);
    }
    reduce_parts(engine, source, &parts, what, out, far, compile)
}

fn outermost(view: &View, which: impl Fn(usize) -> bool) -> Option<usize> {
    (0..view.shape.len()).find(|&axis| which(axis) && view.shape[axis] > 1)
}

fn halve(view: &View, axis: usize, at: u64) -> Result<(View, View)> {
    let ones: SmallVec<[u64; 6]> = SmallVec::from_elem(1, view.shape.len());
    let mut starts: SmallVec<[u64; 6]> = SmallVec::from_elem(0, view.shape.len());
    let mut lengths = view.shape.clone();
    lengths[axis] = at;
    let first = view.slice(&starts, &lengths, &ones)?;
    starts[axis] = at;
    lengths[axis] = view.shape[axis] - at;
    Ok((first, view.slice(&starts, &lengths, &ones)?))
}

/// Kept and reduced axes of a view as two spaces.
pub(super) fn spaces(view: &View, axes: &[usize]) -> (Space, Space) {
    let pick = |reduced: bool| -> Space {
        let (sizes, strides): (Dims, Strides) = (0..view.shape.len())
            .filter(|axis| axes.contains(axis) == reduced)
            .map(|axis| (view.shape[axis], view.strides[axis]))
            .unzip();
        Space::new(&sizes, &[&strides])
    };
    (pick(false), pick(true))
}

fn reduce_parts(
    engine: &Engine,
    source: Source<'_>,
    parts: &[View],
    what: Reduce<'_>,
    out: Target<'_>,
    far: bool,
    compile: Compile,
) -> Result<()> {
    let Some(view) = parts.first() else { return Ok(()) };
    let (kept, reduced) = spaces(view, what.axes);
    let aligned = parts.iter().all(|part| source.is_aligned(part));
    let layout = layout(&kept, &reduced, view.dtype, aligned, engine.model());
    let (kept, reduced) = spaces(&source.seen(view), what.axes);
    let outputs = kept.elements();
    let reducer = Reducer { reduction: what.reduction, tie_high: what.tie_high, input: view.dtype, out: what.out };
    let launches =
        PartsLaunch { engine, source, axes: what.axes, reducer, outputs, chunks: layout.chunks, far, compile };
    let ranks = [kept.rank(), reduced.rank()];
    let target =
        Place { buffer: out.buffer, address: out.buffer.address() + out.offset_bytes, strides: &[], element_bytes: 0 };
    let partials = layout.chunks * parts.len() as u64;
    if partials == 1 {
        let whole = launches.kernel(Stage::Whole, &layout, ranks, layout.chunk)?;
        return launches.reduce(view, &whole, layout.chunk, target);
    }
    let first = launches.kernel(Stage::First, &layout, ranks, layout.chunk)?;
    let of_partials = layout.of_partials(engine.model(), outputs, partials, reducer.accumulator_bytes());
    // Both kernels must exist before anything is recorded.
    let last = launches.kernel(Stage::Last, &of_partials, [1, 2], partials)?;
    let part_bytes = outputs * layout.chunks * reducer.accumulator_bytes();
    let scratch = engine.alloc(part_bytes * parts.len() as u64)?;
    let partial = |at: u64| Place { buffer: &scratch, address: scratch.address() + at, strides: &[], element_bytes: 0 };
    for (i, part) in (0..).zip(parts) {
        launches.reduce(part, &first, layout.chunk, partial(i * part_bytes))?;
    }
    // Parts lie outside of chunks.
    let (per_output, per_chunk) = match layout.direction {
        Direction::Rows { .. } => (layout.chunks, 1),
        Direction::Columns { .. } => (1, outputs),
    };
    let strides = [per_output as i64, (outputs * layout.chunks) as i64, per_chunk as i64];
    let sizes = [outputs, parts.len() as u64, layout.chunks];
    let places = [Place { strides: &strides, ..partial(0) }, target];
    run(engine, (&last.0, &last.1), &places, &sizes, [outputs, partials, partials, 1])
}

/// A reduction of the parts of a view, each of which is launched by itself.
struct PartsLaunch<'a> {
    engine: &'a Engine,
    source: Source<'a>,
    /// Those that are reduced.
    axes: &'a [usize],
    reducer: Reducer,
    outputs: u64,
    /// Of each output in each part.
    chunks: u64,
    /// Kernels reach far.
    far: bool,
    compile: Compile,
}

impl PartsLaunch<'_> {
    /// A kernel for so many axes that are kept, and that are reduced, of which a team shares so many elements.
    fn kernel(
        &self,
        stage: Stage,
        layout: &Layout,
        [kept, reduced]: [usize; 2],
        elements: u64,
    ) -> Result<(ReduceKernel, Arc<Kernel>)> {
        let spec = ReduceSpec {
            reducers: SmallVec::from_elem(self.reducer, 1),
            times: None,
            producer: None,
            epilogue: None,
            stage,
            direction: layout.direction,
            kept_rank: kept as u8,
            reduced_rank: reduced as u8,
            paired: layout.paired,
        };
        let spec = ReduceKernel { spec, team: layout.team(self.engine.model(), reduced, elements) };
        let kernel = self.engine.kernel_reaching(&spec, self.far, self.compile)?;
        Ok((spec, kernel))
    }

    /// Reduces a part to its results, or to accumulators of its chunks, of which each has `chunk` elements at least.
    fn reduce(
        &self,
        part: &View,
        (spec, kernel): &(ReduceKernel, Arc<Kernel>),
        chunk: u64,
        to: Place<'_>,
    ) -> Result<()> {
        let (kept, reduced) = spaces(&self.source.seen(part), self.axes);
        let sizes: Dims = kept.sizes.iter().chain(&reduced.sizes).copied().collect();
        let strides: Strides = kept.strides[0].iter().chain(&reduced.strides[0]).copied().collect();
        let elements = reduced.elements();
        let chunk = match spec.spec.stage {
            Stage::Whole => elements,
            Stage::First | Stage::Last => elements.div_ceil(self.chunks).next_multiple_of(4).max(chunk),
        };
        let header = [self.outputs, elements, chunk, self.chunks];
        let run = |buffer: &Arc<Buffer>, address: u64| {
            let from = Place { buffer, address, strides: &strides, element_bytes: part.dtype.size_bytes() };
            run(self.engine, (spec, kernel), &[from, to], &sizes, header)
        };
        match self.source {
            Source::Memory(buffer) => run(buffer, buffer.address() + part.offset_bytes()),
            Source::Made { make, .. } => {
                let made = make(part)?;
                run(&made.buffer, made.address())
            }
        }
    }
}

/// `[outputs, elements, chunk, chunks]` are the header words of the templates.
pub(super) fn run(
    engine: &Engine,
    (spec, kernel): (&ReduceKernel, &Kernel),
    places: &[Place<'_>],
    sizes: &[u64],
    [outputs, elements, chunk, chunks]: [u64; 4],
) -> Result<()> {
    let jobs = outputs * chunks;
    let ReduceKernel { spec, team } = spec;
    let jobs_per_group = u64::from(ReduceSpec::LOCAL_SIZE / team);
    let arguments =
        Arguments { count: outputs as u32, sizes, places, extra: &[elements as u32, chunk as u32, chunks as u32] };
    launch(engine, kernel, &arguments, places.len() - spec.results(), jobs.div_ceil(jobs_per_group))
}

/// Invocations that share one chunk of so many vectors: a power of two that leaves each at least four.
fn team(model: &DeviceModel, vectors: u64) -> u32 {
    vectors.div_ceil(4).next_power_of_two().clamp(1, model.reductions.most_team) as u32
}

pub(crate) fn layout(kept: &Space, reduced: &Space, dtype: DType, aligned: bool, model: &DeviceModel) -> Layout {
    let (outputs, elements) = (kept.elements(), reduced.elements());
    let stride_of = |space: &Space| space.strides[0].last().copied().unwrap_or(0).unsigned_abs();
    // Walk along whichever axis has the closer neighbours.
    let columns = outputs > 1 && stride_of(kept) != 0 && stride_of(kept) <= stride_of(reduced);
    let width = match dtype.size_bytes() {
        _ if dtype.is_complex() => 1,
        1..=4 => 4,
        8 => 2,
        _ => 1,
    };
    let vectorizable = aligned
        && !columns
        && reduced.rank() == 1
        && reduced.strides.iter().all(|s| s[0] == 1)
        && kept.strides.iter().flatten().all(|s| s.unsigned_abs().is_multiple_of(width))
        && elements >= width;
    let width = if vectorizable { width } else { 1 };
    let (target, most) = (model.fill.reduce_invocations, model.reductions.most_team);
    let of_one = model.reductions.elements;
    let team = if columns { column_team(model, outputs, elements, dtype.size_bytes()) } else { 1 };
    // A second dispatch is worth no fewer elements, however many invocations share them.
    let per_chunk = match (columns, &model.reductions.columns) {
        (true, Some(columns)) if team > 1 && elements <= columns.most_elements * team => elements,
        (true, Some(columns)) if team > 1 || elements >= 2 * of_one => columns.elements * team,
        (true, _) => of_one,
        (false, _) => of_one * u64::from(ReduceSpec::LOCAL_SIZE),
    };
    let invocations = match columns {
        true => outputs * team,
        false => outputs * elements.div_ceil(of_one).min(most),
    };
    let chunks = target.div_ceil(invocations.max(1)).min(elements / per_chunk.max(1)).max(1);
    // Invocations of a team read eight elements at once.
    let step = if team > 1 && chunks > 1 { 8 * team } else { 4 };
    let chunk = elements.div_ceil(chunks).next_multiple_of(step);
    let chunks = if team > 1 { elements.div_ceil(chunk).max(1) } else { chunks };
    Layout {
        chunks,
        chunk,
        team: team as u32,
        direction: match columns {
            true => Direction::Columns { in_teams: team > 1 },
            false => Direction::Rows { width: width as u8 },
        },
        paired: width == 4 && takes_pairs(model, outputs * elements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, Type};

    /// Sums or positions of extremes of columns, by teams, whatever device it is.
    fn by_teams(
        engine: &Engine,
        input: &Tensor,
        reduction: Reduction,
        out: DType,
        (team, chunks): (u32, u64),
    ) -> Tensor {
        let (elements, outputs) = (input.view.shape[0], input.view.shape[1]);
        let spec = |stage: Stage, team: u32| {
            let direction = Direction::Columns { in_teams: true };
            let (producer, tie_high, times, paired) = (None, false, None, false);
            let (kept_rank, reduced_rank, input) = (1, 1, input.view.dtype);
            let reducer = Reducer { reduction, tie_high, input, out };
            let reducers = SmallVec::from_elem(reducer, 1);
            let spec = ReduceSpec {
                reducers,
                times,
                producer,
                epilogue: None,
                stage,
                direction,
                kept_rank,
                reduced_rank,
                paired,
            };
            (ReduceKernel { spec, team }, reducer.accumulator_bytes())
        };
        let result = Tensor::uninitialized(engine, &Type::new(out, &[outputs])).unwrap();
        let place = |buffer, strides| Place { buffer, address: Buffer::address(buffer), strides, element_bytes: 0 };
        let strides = [1, outputs as i64];
        let from = Place { element_bytes: input.view.dtype.size_bytes(), ..place(&input.buffer, &strides) };
        let to = place(&result.buffer, &[]);
        let launched = |spec: &ReduceKernel, places: [Place<'_>; 2], elements: u64, chunk: u64, chunks: u64| {
            let header = [outputs, elements, chunk, chunks];
            let kernel = engine.kernel(spec, Compile::Allowed).unwrap();
            run(engine, (spec, &kernel), &places, &[outputs, elements], header).unwrap();
        };
        if chunks == 1 {
            launched(&spec(Stage::Whole, team).0, [from, to], elements, elements, 1);
            return result;
        }
        let (first, bytes) = spec(Stage::First, team);
        let scratch = engine.alloc(outputs * chunks * bytes).unwrap();
        let chunk = elements.div_ceil(chunks);
        launched(&first, [from, place(&scratch, &[])], elements, chunk, chunks);
        launched(&spec(Stage::Last, 2).0, [place(&scratch, &strides), to], chunks, chunks, 1);
        result
    }

    fn read<T: bytemuck::Pod>(engine: &Engine, tensor: &Tensor) -> Vec<T> {
        let mut bytes = vec![0; tensor.nx_size_bytes(None) as usize];
        tensor.read_nx_bytes(engine, None, &mut bytes).unwrap();
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    #[test]
    fn teams_reduce_columns_of_every_length() {
        let engine = Engine::open(None).unwrap();
        let mut seed = 7u32;
        for (elements, outputs) in [(1, 1), (7, 3), (31, 32), (250, 5), (1000, 33), (2051, 7)] {
            let values: Vec<f32> = (0..elements * outputs)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Of all sizes, and many that are equal.
                    (seed >> 24) as f32 * [1.0, -1e-4, 3e5][seed as usize % 3]
                })
                .collect();
            let ty = Type::new(DType::F32, &[elements, outputs]);
            let input = Tensor::from_nx_bytes(&engine, &ty, bytemuck::cast_slice(&values)).unwrap();
            let column = |o: u64| values[o as usize..].iter().step_by(outputs as usize);
            for team in [2, 8, 32, 256] {
                for chunks in [1, 3] {
                    let sums = by_teams(&engine, &input, Reduction::Sum, DType::F32, (team, chunks));
                    let maxima = by_teams(&engine, &input, Reduction::ArgMax, DType::S32, (team, chunks));
                    let (sums, maxima) = (read::<f32>(&engine, &sums), read::<i32>(&engine, &maxima));
                    for o in 0..outputs {
                        let expected = column(o).map(|&x| f64::from(x)).sum::<f64>() as f32;
                        assert_eq!(sums[o as usize], expected, "{elements} x {outputs}, {team}, {chunks}: {o}");
                        let largest = column(o).copied().fold(f32::MIN, f32::max);
                        let first = column(o).position(|&x| x == largest).unwrap() as i32;
                        assert_eq!(maxima[o as usize], first, "{elements} x {outputs}, {team}, {chunks}: {o}");
                    }
                }
            }
        }
    }
}
