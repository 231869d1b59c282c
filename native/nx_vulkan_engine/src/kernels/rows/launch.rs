//! Launches of row kernels: how many invocations share a row, and how its elements are loaded.

use nx_vulkan_ir::program::rows::{MOST_INVOCATIONS_OF_COLUMNS, is_columns};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Elementwise, Unary};
use smallvec::SmallVec;

use crate::kernels::rows::{Along, RowPort, RowsSpec};
use crate::kernels::{Arguments, Compile, Loaded, Place, launch, map};
use crate::program::fused::{Computed, Made, Plan};
use crate::shape::{Dims, Space, Strides, contiguous_strides};
use crate::tuning::DeviceModel;
use crate::{DType, Engine, Result, Tensor};

/// Neighbouring rows that invocations take together where elements of a row are apart in memory.
const NEIGHBOURS: u32 = 32;

/// Loads that an invocation should have in flight before more of them share a row.
const LOADS: u64 = 4;

/// Elements of f64 that few invocations hold at most: half of the registers of an AMD GPU.
const MOST_OF_F64: u64 = 64;

/// Functions of f32 of which the library has an `f_near`.
const NEAR_FORMS: [Unary; 2] = [Unary::Log, Unary::ErfInv];

/// Steps of an element up to which the code for that many elements stays small.
const FEW_STEPS: u64 = 8;

/// A larger team where rows whose elements are apart fill few workgroups: these take as long as the code of one
/// invocation.
fn shared_out(few_groups: u64, rows: u64, vectors: u64, team: u64) -> u64 {
    let groups = |team: u64| rows.div_ceil((256 / team).max(1));
    let mut team = team;
    while groups(team) < few_groups && 2 * team <= u64::from(MOST_INVOCATIONS_OF_COLUMNS) && 2 * team <= vectors {
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
    let team = vectors.div_ceil(LOADS).next_power_of_two().min(most_invocations).max(least_team);
    // Neighbouring rows keep their place in the workgroup for as long as possible.
    let team = if columns { team.min(u64::from(256 / NEIGHBOURS)).max(least_team) } else { team };
    let team = if columns { shared_out(tuned.few_groups, rows, vectors, team) } else { team };
    let half = team / 2;
    let halved = !columns
        && (1..=tuned.most_invocations_of_halves).contains(&half)
        && tuned.many_groups.is_some_and(|many| rows * half >= 256 * many);
    let (team, most_items) = if halved { (half, 2 * most_items) } else { (team, most_items) };
    // Of those that are half as many already.
    let further = match () {
        () if halved && cheap && tuned.few_of_f64 => {
            let fits = |n: &u64| *n <= team && elements.div_ceil(team / n) <= MOST_OF_F64;
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
fn has_near_form(plan: &Plan) -> bool {
    plan.values.iter().any(|value| match &value.made {
        Made::Step(Step { op: Elementwise::Unary(op), out: DType::F32, .. }) => NEAR_FORMS.contains(op),
        Made::Step(_) | Made::Reduction { .. } => false,
    })
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
    let (most_elements, most_invocations) = (limits.elements_of(plan.live_words(true)), limits.invocations);
    let tensors = || loads.iter().map(|load| &load.tensor).chain(results);
    let widest = tensors().map(|t| t.view.dtype.size_bytes()).max().unwrap_or(1);
    let reach = engine.reach();
    if plan.elements() > reach.near(widest) || !loads.iter().all(|load| load.is_indexed(reach)) {
        return Ok(None);
    }
    // Strides of all operands in the iteration space; results of one element per row have none along it.
    let full = contiguous_strides(&plan.space);
    let strides: Vec<&[i64]> =
        loads.iter().map(|load| &load.tensor.view.strides[..]).chain(plan.stores.iter().map(|_| &full[..])).collect();
    let counts = |r: &Ref| matches!(r, Ref::Coordinate(_));
    let indexed = plan.stores.iter().any(|s| counts(&s.value))
        || plan.values.iter().any(|v| matches!(&v.made, Made::Step(s) if s.args.iter().any(counts)));
    let pick = |row: bool| -> Space {
        let axes: SmallVec<[usize; 6]> = (0..plan.space.len()).filter(|axis| plan.axes.contains(axis) == row).collect();
        let sizes: Dims = axes.iter().map(|&axis| plan.space[axis]).collect();
        let strides: Vec<Strides> = strides.iter().map(|s| axes.iter().map(|&axis| s[axis]).collect()).collect();
        if indexed && !axes.is_empty() {
            return Space { sizes, strides: strides.into_iter().collect() };
        }
        Space::new(&sizes, &strides.iter().map(|s| &s[..]).collect::<Vec<_>>())
    };
    let (kept, row) = (pick(false), pick(true));
    let (rows, elements) = (kept.elements(), row.elements());
    let columns = is_columns(plan);

    let ports: Vec<(&Tensor, bool)> = loads
        .iter()
        .zip(&plan.loads)
        .map(|(loaded, load)| (&loaded.tensor, load.row))
        .chain(results.iter().zip(&plan.stores).map(|(t, store)| (t, store.row)))
        .collect();
    let is_bounded = |k: usize| loads.get(k).is_some_and(|load| load.bounds.is_some());
    let aligned = |width: u64| {
        elements.is_multiple_of(width)
            && row.rank() == 1
            && ports.iter().enumerate().all(|(k, (t, is_row))| {
                let outer = kept.strides[k].iter().all(|s| s.unsigned_abs().is_multiple_of(width));
                let bytes = t.view.dtype.size_bytes() * width;
                *is_row
                    || is_bounded(k)
                    || row.strides[k][0] != 1
                    || (outer && bytes <= 16 && !t.view.dtype.is_complex() && t.address().is_multiple_of(bytes))
            })
            && ports.iter().enumerate().any(|(k, (_, is_row))| !is_row && !is_bounded(k) && row.strides[k][0] == 1)
    };
    // The team that needs all vectors that each invocation may hold.
    let least_team =
        |width: u64| elements.div_ceil(width).div_ceil(most_items(most_elements, width)).next_power_of_two();
    let most_invocations = u64::from(most_invocations);
    let is_held = |width: u64| width <= u64::from(most_elements) && least_team(width) <= most_invocations;
    let width = [4, 2].into_iter().find(|&w| !columns && is_held(w) && aligned(w)).unwrap_or(1);
    let steps = plan.values.iter().filter(|value| !value.row).map(|value| match &value.made {
        Made::Step(step) => step.op.flops(),
        Made::Reduction { .. } => 0,
    });
    let is_wide = |value: &Computed| matches!(value.dtype(), DType::F64 | DType::C128);
    let cheap = steps.sum::<u64>() <= FEW_STEPS && plan.values.iter().any(is_wide);
    let shared = share(engine.model(), plan.live_words(true), rows, elements, width, columns, cheap);
    let Some((team, items)) = shared else { return Ok(None) };
    let port = |k: usize| {
        let (t, is_row) = ports[k];
        let along = match () {
            () if is_row => Along::Row,
            () if row.rank() == 1 && row.strides[k][0] == 1 && !is_bounded(k) => Along::Vector,
            () => Along::Strided,
        };
        // One element is no vector.
        let along = if along == Along::Vector && width == 1 { Along::Strided } else { along };
        RowPort { dtype: t.view.dtype, along, bounded: is_bounded(k) }
    };
    let kept_axes: SmallVec<[usize; 6]> = (0..plan.space.len()).filter(|a| !plan.axes.contains(a)).collect();
    let row_axes: SmallVec<[usize; 6]> = (0..plan.space.len()).filter(|a| plan.axes.contains(a)).collect();
    let placed = |r: Ref| match r {
        Ref::Coordinate(axis) => {
            let axis = axis as usize;
            let place = kept_axes.iter().position(|&a| a == axis);
            let inner = || row_axes.iter().position(|&a| a == axis).map(|p| p + kept.rank());
            Ref::Coordinate(place.or_else(inner).unwrap_or(axis) as u8)
        }
        Ref::Input(_) | Ref::Result(_) | Ref::Constant(..) | Ref::Linear => r,
    };
    let spec = RowsSpec {
        kept_rank: kept.rank() as u8,
        row_rank: row.rank() as u8,
        inputs: (0..loads.len()).map(port).collect(),
        values: plan
            .values
            .iter()
            .cloned()
            .map(|mut value| {
                match &mut value.made {
                    Made::Step(step) => step.args.iter_mut().for_each(|r| *r = placed(*r)),
                    Made::Reduction { of, .. } => *of = placed(*of),
                }
                value
            })
            .collect(),
        outputs: plan.stores.iter().enumerate().map(|(i, s)| (placed(s.value), port(loads.len() + i))).collect(),
        width: width as u8,
        items: items as u8,
        team: team as u32,
        columns,
        full: items * team * width == elements,
        exact: has_near_form(plan) && map::is_exact(engine.model(), rows * team),
    };
    let rows_per_group = u64::from(spec.rows_per_group());
    let kernel = engine.kernel(&spec, compile)?;
    let sizes: Dims = kept.sizes.iter().chain(&row.sizes).copied().collect();
    let joined: Vec<Strides> =
        (0..ports.len()).map(|k| kept.strides[k].iter().chain(&row.strides[k]).copied().collect()).collect();
    let places: SmallVec<[Place<'_>; 4]> = ports
        .iter()
        .zip(&joined)
        .map(|(&(t, _), strides)| Place {
            buffer: &t.buffer,
            address: t.address(),
            strides,
            element_bytes: t.view.dtype.size_bytes(),
        })
        .collect();
    let bounds = loads.iter().flat_map(Loaded::words);
    let extra: SmallVec<[u32; 12]> = std::iter::once(elements as u32).chain(bounds).collect();
    let arguments = Arguments { count: rows as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, loads.len(), rows.div_ceil(rows_per_group)).map(Some)
}
