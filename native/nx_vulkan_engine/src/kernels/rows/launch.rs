//! Launches of row kernels: how many invocations share a row, and how its elements are loaded.

use nx_vulkan_ir::program::rows::is_columns;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::library::Library;
use smallvec::SmallVec;

use crate::kernels::rows::{Along, RowPort, RowsSpec};
use crate::kernels::{Arguments, Compile, Loaded, Place, launch, map};
use crate::program::fused::{Computed, Made, Plan, Store};
use crate::shape::{Dims, Space, Strides, contiguous_strides};
use crate::tuning::DeviceModel;
use crate::{DType, Engine, Result, Tensor};

/// Steps of an element up to which the code for that many elements stays small.
const FEW_STEPS: u64 = 8;

/// A larger team where rows whose elements are apart fill few workgroups: these take as long as the code of one
/// invocation.
fn shared_out(model: &DeviceModel, rows: u64, vectors: u64, team: u64) -> u64 {
    let (few_groups, most) = (model.rows.few_groups, u64::from(model.programs.rows.column_invocations));
    let groups = |team: u64| rows.div_ceil((256 / team).max(1));
    let mut team = team;
    while groups(team) < few_groups && 2 * team <= most && 2 * team <= vectors {
        team *= 2;
    }
    team
}

/// Invocations that share each of `rows` rows of `elements` elements of so many words, and vectors of each; none where
/// rows are too long. `columns`: neighbours in memory are elements of different rows. `cheap`: elements are of f64 and
/// take few steps.
pub(crate) fn share(
    model: &DeviceModel,
    words: u32,
    rows: u64,
    elements: u64,
    width: u64,
    columns: bool,
    cheap: bool,
) -> Option<(u64, u64)> {
    let (limits, tuned) = (&model.programs.rows, &model.rows);
    let (most_items, most_invocations) = (most_items(limits.elements_of(words), width), u64::from(limits.invocations));
    let vectors = elements.div_ceil(width);
    let least_team = vectors.div_ceil(most_items).next_power_of_two();
    let team = vectors.div_ceil(tuned.loads).next_power_of_two().min(most_invocations).max(least_team);
    // Neighbouring rows keep their place in the workgroup for as long as possible.
    let team = if columns { team.min(256 / tuned.neighbours).max(least_team) } else { team };
    let team = if columns { shared_out(model, rows, vectors, team) } else { team };
    let half = team / 2;
    let halved = !columns
        && (1..=tuned.most_invocations_of_halves).contains(&half)
        && tuned.many_groups.is_some_and(|many| rows * half >= 256 * many);
    let (team, most_items) = if halved { (half, 2 * most_items) } else { (team, most_items) };
    // Of those that are half as many already.
    let further = match () {
        () if halved && cheap && tuned.few_of_f64 => {
            let fits = |n: &u64| *n <= team && elements.div_ceil(team / n) <= tuned.most_of_f64;
            [4, 2].into_iter().find(fits).unwrap_or(1)
        }
        () if halved && team > tuned.few_invocations && words <= 1 => 2,
        () => 1,
    };
    let (team, most_items) = (team / further, most_items * further);
    let items = vectors.div_ceil(team);
    (items <= most_items && team <= most_invocations).then_some((team, items))
}

/// Vectors that one invocation may hold.
fn most_items(most_elements: u32, width: u64) -> u64 {
    (u64::from(most_elements) / width).max(1)
}

/// Whether a function has a form that leaves some results in doubt (`f_near` in the library).
fn has_near_form(plan: &Plan) -> Result<bool> {
    let library = Library::builtin()?;
    Ok(plan.values.iter().any(|value| match &value.made {
        Made::Step(Step { op, out: DType::F32, .. }) => library.has_near(op.name()),
        Made::Step(_) | Made::Reduction { .. } => false,
    }))
}

/// How operands lie in a plan's rows.
struct Laid<'a> {
    loads: &'a [Loaded],
    /// Loads, then results, and whether they have one element for each row.
    ports: Vec<(&'a Tensor, bool)>,
    /// The axes that rows are counted along, and those along which a row lies.
    kept: Space,
    row: Space,
}

impl<'a> Laid<'a> {
    fn new(plan: &Plan, loads: &'a [Loaded], results: &'a [Tensor]) -> Laid<'a> {
        // Strides of all operands in the iteration space; results of one element per row have none along it.
        let full = contiguous_strides(&plan.space);
        let of_loads = loads.iter().map(|load| &load.tensor.view.strides[..]);
        let strides: Vec<&[i64]> = of_loads.chain(plan.stores.iter().map(|_| &full[..])).collect();
        let counts = |r: &Ref| matches!(r, Ref::Coordinate(_));
        let indexed = plan.stores.iter().any(|s| counts(&s.value))
            || plan.values.iter().any(|v| matches!(&v.made, Made::Step(s) if s.args.iter().any(counts)));
        let pick = |row: bool| -> Space {
            let axes: SmallVec<[usize; 6]> =
                (0..plan.space.len()).filter(|axis| plan.axes.contains(axis) == row).collect();
            let sizes: Dims = axes.iter().map(|&axis| plan.space[axis]).collect();
            let strides: Vec<Strides> = strides.iter().map(|s| axes.iter().map(|&axis| s[axis]).collect()).collect();
            if indexed && !axes.is_empty() {
                return Space { sizes, strides: strides.into_iter().collect() };
            }
            Space::new(&sizes, &strides.iter().map(|s| &s[..]).collect::<Vec<_>>())
        };
        let ports = loads
            .iter()
            .zip(&plan.loads)
            .map(|(loaded, load)| (&loaded.tensor, load.row))
            .chain(results.iter().zip(&plan.stores).map(|(t, store)| (t, store.row)))
            .collect();
        Laid { loads, ports, kept: pick(false), row: pick(true) }
    }

    /// Whether some indices have no element there.
    fn is_bounded(&self, k: usize) -> bool {
        self.loads.get(k).is_some_and(|load| load.bounds.is_some())
    }

    /// Whether neighbours of a row are neighbours in memory.
    fn is_along_row(&self, k: usize) -> bool {
        !self.is_bounded(k) && self.row.strides[k][0] == 1
    }

    /// Whether there are operands of which vectors of so many elements are accessed, and each begins where it can be.
    fn takes_vectors(&self, width: u64) -> bool {
        let begins_well = |k: usize, t: &Tensor| {
            let outer = self.kept.strides[k].iter().all(|s| s.unsigned_abs().is_multiple_of(width));
            let bytes = t.view.dtype.size_bytes() * width;
            outer && bytes <= 16 && !t.view.dtype.is_complex() && t.address().is_multiple_of(bytes)
        };
        let mut ports = self.ports.iter().enumerate();
        self.row.elements().is_multiple_of(width)
            && self.row.rank() == 1
            && ports.clone().all(|(k, (t, is_row))| *is_row || !self.is_along_row(k) || begins_well(k, t))
            && ports.any(|(k, (_, is_row))| !is_row && self.is_along_row(k))
    }

    fn port(&self, k: usize, width: u64) -> RowPort {
        let (t, is_row) = self.ports[k];
        let along = match () {
            () if is_row => Along::Row,
            // One element is no vector.
            () if width > 1 && self.row.rank() == 1 && self.is_along_row(k) => Along::Vector,
            () => Along::Strided,
        };
        RowPort { dtype: t.view.dtype, along, bounded: self.is_bounded(k) }
    }

    /// A value of a plan with the coordinates of these spaces: those of rows, then those within one.
    fn placed(&self, plan: &Plan, r: Ref) -> Ref {
        match r {
            Ref::Coordinate(axis) => {
                let axis = axis as usize;
                let among = |row: bool| (0..axis).filter(|a| plan.axes.contains(a) == row).count();
                let place = match plan.axes.contains(&axis) {
                    true => self.kept.rank() + among(true),
                    false => among(false),
                };
                Ref::Coordinate(place as u8)
            }
            Ref::Input(_) | Ref::Result(_) | Ref::Constant(..) | Ref::Linear => r,
        }
    }

    /// Records the launch for rows of so many elements.
    fn launch(&self, engine: &Engine, spec: &RowsSpec, compile: Compile) -> Result<()> {
        let (kept, row) = (&self.kept, &self.row);
        let kernel = engine.kernel(spec, compile)?;
        let sizes: Dims = kept.sizes.iter().chain(&row.sizes).copied().collect();
        let joined: Vec<Strides> =
            (0..self.ports.len()).map(|k| kept.strides[k].iter().chain(&row.strides[k]).copied().collect()).collect();
        let places: SmallVec<[Place<'_>; 4]> = self
            .ports
            .iter()
            .zip(&joined)
            .map(|(&(t, _), strides)| Place {
                buffer: &t.buffer,
                address: t.address(),
                strides,
                element_bytes: t.view.dtype.size_bytes(),
            })
            .collect();
        let (rows, elements) = (kept.elements(), row.elements());
        let bounds = self.loads.iter().flat_map(Loaded::words);
        let extra: SmallVec<[u32; 12]> = std::iter::once(elements as u32).chain(bounds).collect();
        let arguments = Arguments { count: rows as u32, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, self.loads.len(), rows.div_ceil(spec.rows_per_group().into()))
    }
}

/// Runs a plan whose rows fit. `None` where one launch can't index everything, or rows are too long for loads of one
/// element.
pub fn rows(
    engine: &Engine,
    plan: &Plan,
    loads: &[Loaded],
    results: &[Tensor],
    compile: Compile,
) -> Result<Option<()>> {
    let limits = &engine.model().programs.rows;
    let live_words = plan.live_words(true);
    let (most_elements, most_invocations) = (limits.elements_of(live_words), u64::from(limits.invocations));
    let tensors = || loads.iter().map(|load| &load.tensor).chain(results);
    let widest = tensors().map(|t| t.view.dtype.size_bytes()).max().unwrap_or(1);
    let reach = engine.reach();
    if plan.elements() > reach.near(widest) || !loads.iter().all(|load| load.is_indexed(reach)) {
        return Ok(None);
    }
    let laid = Laid::new(plan, loads, results);
    let (rows, elements) = (laid.kept.elements(), laid.row.elements());
    let columns = is_columns(plan);
    // The team that needs all vectors that each invocation may hold.
    let least_team =
        |width: u64| elements.div_ceil(width).div_ceil(most_items(most_elements, width)).next_power_of_two();
    let is_held = |width: u64| width <= u64::from(most_elements) && least_team(width) <= most_invocations;
    let width = [4, 2].into_iter().find(|&w| !columns && is_held(w) && laid.takes_vectors(w)).unwrap_or(1);
    let steps = plan.values.iter().filter(|value| !value.row).map(|value| match &value.made {
        Made::Step(step) => step.op.flops(),
        Made::Reduction { .. } => 0,
    });
    let is_wide = |value: &Computed| matches!(value.dtype(), DType::F64 | DType::C128);
    let cheap = steps.sum::<u64>() <= FEW_STEPS && plan.values.iter().any(is_wide);
    let shared = share(engine.model(), live_words, rows, elements, width, columns, cheap);
    let Some((team, items)) = shared else { return Ok(None) };
    let placed = |mut value: Computed| {
        match &mut value.made {
            Made::Step(step) => step.args.iter_mut().for_each(|r| *r = laid.placed(plan, *r)),
            Made::Reduction { of, .. } => *of = laid.placed(plan, *of),
        }
        value
    };
    let output = |(i, store): (usize, &Store)| (laid.placed(plan, store.value), laid.port(loads.len() + i, width));
    let spec = RowsSpec {
        kept_rank: laid.kept.rank() as u8,
        row_rank: laid.row.rank() as u8,
        inputs: (0..loads.len()).map(|k| laid.port(k, width)).collect(),
        values: plan.values.iter().cloned().map(placed).collect(),
        outputs: plan.stores.iter().enumerate().map(output).collect(),
        width: width as u8,
        items: items as u8,
        team: team as u32,
        columns,
        full: items * team * width == elements,
        exact: map::is_exact(engine.model(), rows * team) && has_near_form(plan)?,
    };
    laid.launch(engine, &spec, compile).map(Some)
}
