//! Matrices that products compute, as launches see them.

use nx_vulkan_ir::program::epilogue::DERIVED_TOGETHER;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::{Element, Layout};
use smallvec::SmallVec;

use nx_vulkan_device::kernel::Waits;

use super::choice::linear_choice;
use super::derived::{Span, Spread};
use super::generate_matrix::STEP_OF_LINEAR;
use super::launch::{Choice, Instead, Product, Results, launch_with, product_with, way};
use super::linear::SHARED_BY;
use super::matrix::own_by_axes;
use super::{DerivedSpec, DotSpec, Feed, LinearSpec, Load, MatrixTile, Tiling};
use crate::kernels::map::Port;
use crate::kernels::{Compile, Place};
use crate::program::Elementwise;
use crate::program::fused::{Made, Plan};
use crate::shape::{Dims, Space, Strides};
use crate::{CType, DType, Engine, Result, Tensor};

/// A matrix that a product computes, with the operands that it is computed from, which have strides along axes that
/// make up the matrix in the order of its elements.
#[derive(Debug)]
pub struct Derived {
    loads: SmallVec<[Tensor; 3]>,
    space: Space,
    spec: DerivedSpec,
}

impl Derived {
    /// What a plan of a map computes of tensors that have the shape of its space, as a matrix of so many rows, for a
    /// product with results of a type: where that has 16 bits, elements are not rounded to as many, which is for what
    /// is stored. `None` where an axis that steps count goes on beyond the end of a row, neighbours along the last one
    /// are no groups, or an operand runs backwards.
    pub fn of(plan: &Plan, rows: u64, loads: SmallVec<[Tensor; 3]>, out: DType) -> Option<Derived> {
        let step = |made: &Made| match made {
            Made::Step(step) => Some(step.clone()),
            Made::Reduction { .. } => None,
        };
        let mut steps: SmallVec<[Step; 1]> =
            plan.values.iter().map(|value| step(&value.made)).collect::<Option<_>>()?;
        let mut result = plan.stores.first()?.value;
        if let Some(whole) = before_rounding(&steps, result, &loads).filter(|_| is_narrow(out)) {
            result = whole;
            steps.pop();
        }
        let strides = loads.iter().map(|load| load.view.strides.clone()).collect();
        let mut whole = Space { sizes: plan.space.clone(), strides };
        let (cut, added) = cut_at(&mut whole, rows)?;
        let mut refs: SmallVec<[&mut Ref; 16]> =
            steps.iter_mut().flat_map(|step| &mut step.args).chain([&mut result]).collect();
        if let Some(added) = added {
            for r in &mut refs {
                match axis_of(r) {
                    Some(axis) if axis + 1 == added => return None,
                    Some(axis) if axis >= added => **r = Ref::Coordinate(axis as u8 + 1),
                    _ => {}
                }
            }
        }
        let counted: SmallVec<[usize; 6]> = refs.iter().filter_map(|r| axis_of(r)).collect();
        let mut space = Space { sizes: Dims::new(), strides: SmallVec::from_elem(Strides::new(), loads.len()) };
        let mut places: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        let parts = [0..cut, cut..whole.sizes.len()].map(|part| {
            let strides: SmallVec<[&[i64]; 3]> = whole.strides.iter().map(|strides| &strides[part.clone()]).collect();
            let own: SmallVec<[usize; 6]> =
                counted.iter().filter(|&axis| part.contains(axis)).map(|axis| axis - part.start).collect();
            let (merged, found) = Space::keeping(&whole.sizes[part.clone()], &strides, &own);
            let before = space.sizes.len();
            places.extend(own.iter().zip(found).map(|(&axis, place)| (part.start + axis, before + place)));
            space.sizes.extend_from_slice(&merged.sizes);
            space.strides.iter_mut().zip(&merged.strides).for_each(|(all, own)| all.extend_from_slice(own));
            merged.sizes
        });
        for r in refs {
            let place = axis_of(r).and_then(|axis| places.iter().find(|(counted, _)| *counted == axis));
            if let (Ref::Coordinate(axis), Some((_, place))) = (r, place) {
                *axis = *place as u8;
            }
        }
        let [_, depth] = &parts;
        if !depth.last().is_some_and(|n| n.is_multiple_of(DERIVED_TOGETHER))
            || space.strides.iter().flatten().any(|&stride| stride < 0)
        {
            return None;
        }
        let inputs = loads.iter().zip(&space.strides).map(|(load, strides)| port(load, strides)).collect();
        let ranks = parts.map(|sizes| sizes.len() as u8);
        let (spans, lies) = (SmallVec::new(), SmallVec::new());
        let first = |strides: &Strides| space.strides.iter().position(|other| other == strides).unwrap_or_default();
        let alike = space.strides.iter().map(|strides| first(strides) as u8).collect();
        let spec = DerivedSpec { inputs, steps, result, axis: 0, ranks, spans, alike, lies };
        Some(Derived { loads, space, spec })
    }

    /// The sizes of its axes.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.space.sizes
    }

    /// How it is computed by a kernel that has so many axes before its own and takes up to so many neighbours at once,
    /// and the strides of its operands there.
    pub(super) fn behind(&self, before: usize, together: u64) -> (DerivedSpec, SmallVec<[Strides; 3]>) {
        let strides = self.space.strides.iter();
        let strides = strides.map(|s| std::iter::repeat_n(0, before).chain(s.iter().copied()).collect()).collect();
        let spans = self.spans(together);
        let operands = self.loads.iter().zip(&self.space.strides);
        let lies = operands.map(|(load, strides)| lies(load, strides, &spans)).collect();
        (DerivedSpec { axis: before as u8, spans, lies, ..self.spec.clone() }, strides)
    }

    /// Its elements as numbers that a narrow type holds, with a scale and an offset each, if they are such, for a kernel
    /// that has so many axes before its own.
    pub fn linear(&self, before: usize, dtype: DType) -> Option<LinearSpec> {
        let of = |count: u64| {
            let spans = Span::of(self.contracted(), count)?;
            let operands = self.loads.iter().zip(&self.space.strides);
            let lies = operands.map(|(load, strides)| lies(load, strides, &spans)).collect();
            Some(DerivedSpec { axis: before as u8, spans, lies, ..self.spec.clone() })
        };
        LinearSpec::of(&self.behind(before, 1).0, &of(8)?, &of(SHARED_BY)?, dtype)
    }

    /// The sizes of the axes that are contracted.
    fn contracted(&self) -> &[u64] {
        self.space.sizes.get(usize::from(self.spec.ranks[0])..).unwrap_or_default()
    }

    /// How up to so many neighbours lie along its last axes, at least as many as all take; alone, where that is one.
    fn spans(&self, together: u64) -> SmallVec<[Span; 2]> {
        if together == 1 {
            return SmallVec::new();
        }
        let contracted = self.contracted();
        let halves = std::iter::successors(Some(together), |n| Some(n / 2)).take_while(|&n| n > DERIVED_TOGETHER);
        let found = halves.chain([DERIVED_TOGETHER]).find_map(|n| Span::of(contracted, n));
        found.unwrap_or_default()
    }

    /// Neighbours that an invocation takes at once where it takes up to so many.
    #[cfg(feature = "testing")]
    pub fn together(&self, most: u64) -> u64 {
        self.spans(most).iter().map(|span| u64::from(span.count)).product()
    }

    /// The places of its operands.
    pub(super) fn places<'a>(&'a self, strides: &'a [Strides]) -> impl Iterator<Item = Place<'a>> {
        self.loads.iter().zip(strides).map(|(load, strides)| Place {
            buffer: &load.buffer,
            address: load.address(),
            strides,
            element_bytes: load.view.dtype.size_bytes(),
        })
    }
}

/// Few vectors by a matrix that is computed; the operand at `place` has its type and the strides that it would have in
/// memory, and is not read. Elements have the bits that they have where it lies in memory, as f32 where it is not
/// rounded; they are added up in an order of their own where many are computed at once. Answers whether one kernel does
/// it.
///
/// # Errors
/// As of [`product`].
pub fn product_of_derived(
    engine: &Engine,
    p: &Product<'_>,
    (derived, place): (&Derived, usize),
    compile: Compile,
) -> Result<bool> {
    if p.is_far(engine)? {
        return Ok(false);
    }
    let (sum, is_reduced, choice) = way(engine, p, compile)?;
    if is_reduced || sum != CType::F32 {
        return Ok(false);
    }
    let vectors = if place == 0 { &p.b.free } else { &p.a.free };
    if engine.takes_own_numbers(p.dtype(), compile)?.contains(&true)
        && let Some(choice) = linear_choice(engine.model(), &p.outline(engine.precision(), [true; 2]), place)
        && derived.linear(0, p.dtype()).is_some_and(|linear| linear.pays(vectors.elements()))
        && derived_as(engine, p, (derived, place), choice, compile)?
    {
        return Ok(true);
    }
    if vectors.elements() > engine.model().programs.derived_vectors {
        return Ok(false);
    }
    derived_as(engine, p, (derived, place), choice, compile)
}

/// The product of vectors with what is computed from others, in one way to launch it.
///
/// # Errors
/// As of [`product_as`].
pub fn derived_as(
    engine: &Engine,
    p: &Product<'_>,
    (derived, place): (&Derived, usize),
    choice: Choice,
    compile: Compile,
) -> Result<bool> {
    let (matrix, vectors) = if place == 0 { (&p.a, &p.b) } else { (&p.b, &p.a) };
    let fits = match choice.tiling {
        Tiling::Vectors(tile) => {
            let load = matrix.load(place == 0);
            tile.first == (place == 1) && load.along_k && load.by_four && tile.fits(engine.caps())
        }
        Tiling::Matrix(MatrixTile { feed: Feed::Linear { first, .. }, planes, .. }) => {
            let dtype = planes.own_type();
            let is_own = dtype == Some(p.dtype()) && own_by_axes(planes, vectors);
            let is_whole = p.a.depth.elements().is_multiple_of(SHARED_BY) && p.a.batch.elements() == 1;
            first == (place == 1) && is_own && is_whole && dtype.is_some_and(|dtype| derived.linear(0, dtype).is_some())
        }
        _ => false,
    };
    if !fits {
        return Ok(false);
    }
    product_with(engine, p, CType::F32, choice, Instead::Derived(derived), compile)?;
    Ok(true)
}

/// Launches a kernel for vectors that computes the matrix.
pub(super) fn launch(
    engine: &Engine,
    p: &Product<'_>,
    mut spec: DotSpec,
    derived: &Derived,
    results: &Results<'_>,
    compile: Compile,
) -> Result<()> {
    let axes = p.a.axes(true).1.len() + p.b.axes(false).1.len() + results.space.sizes.len();
    let depth = p.a.depth.elements() / results.splits.max(1);
    let together = match spec.tiling {
        Tiling::Matrix(tile) => {
            spec.linear = tile.planes.own_type().and_then(|dtype| derived.linear(axes, dtype)).map(Box::new);
            spec.ends_early = !p.a.depth.elements().is_multiple_of(STEP_OF_LINEAR);
            // Kernels for all layouts are one.
            (spec.a, spec.b) = (DType::F16, DType::F16);
            [spec.a_load, spec.b_load] = [Load { along_k: true, by_four: true }; 2];
            1
        }
        _ => spec.most_together(depth),
    };
    let (of_matrix, strides) = derived.behind(axes, together);
    spec.derived = Some(Box::new(of_matrix));
    let places: SmallVec<[Place<'_>; 3]> = derived.places(&strides).collect();
    launch_with(engine, p, spec, results, (&places, derived.sizes(), Waits::All), compile)
}

/// Makes an axis of a space begin where a row ends, of so many rows. Answers which one, and whether it is new, the
/// inner part of another; `None` where rows end within what no axis can be made of.
fn cut_at(space: &mut Space, rows: u64) -> Option<(usize, Option<usize>)> {
    let mut before = 1;
    for (axis, &size) in space.sizes.clone().iter().enumerate() {
        if before == rows {
            return Some((axis, None));
        }
        let outer = rows.checked_div(before).filter(|outer| outer * before == rows)?;
        if outer < size {
            let inner = size.checked_div(outer).filter(|inner| inner * outer == size)?;
            space.sizes[axis] = outer;
            space.sizes.insert(axis + 1, inner);
            for strides in &mut space.strides {
                let stride = strides[axis];
                strides[axis] = stride.checked_mul(inner as i64)?;
                strides.insert(axis + 1, stride);
            }
            return Some((axis + 1, Some(axis + 1)));
        }
        before *= size;
    }
    None
}

/// What the last of all steps rounds from f32 to 16 bits, if it makes the result so.
fn before_rounding(steps: &[Step], result: Ref, loads: &[Tensor]) -> Option<Ref> {
    let (Some(last), Ref::Result(made)) = (steps.last(), result) else { return None };
    let [whole] = last.args.as_slice() else { return None };
    let dtype = match *whole {
        Ref::Input(k) => loads.get(usize::from(k))?.view.dtype,
        Ref::Result(k) => steps.get(usize::from(k))?.out,
        Ref::Constant(..) | Ref::Coordinate(_) | Ref::Linear => return None,
    };
    let rounds = last.op == Elementwise::AsType && is_narrow(last.out) && dtype == DType::F32;
    (rounds && usize::from(made) + 1 == steps.len()).then_some(*whole)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// The axis whose index it is.
fn axis_of(r: &Ref) -> Option<usize> {
    if let Ref::Coordinate(axis) = r { Some(usize::from(*axis)) } else { None }
}

/// How an operand is loaded.
fn port(load: &Tensor, strides: &[i64]) -> Port {
    let is_one = strides.iter().all(|&stride| stride == 0);
    Port { element: Element::Typed(load.view.dtype), layout: if is_one { Layout::Uniform } else { Layout::Each } }
}

/// The bytes of one load.
const LOAD_BYTES: u64 = 16;
const WORD_BYTES: u64 = 4;

/// How an operand lies along the axes of spans. Spread one of them its elements may be near each other.
fn lies(load: &Tensor, strides: &[i64], spans: &[Span]) -> SmallVec<[Spread; 2]> {
    let size_bytes = load.view.dtype.size_bytes();
    let near = |axis: usize, span: &Span| {
        let is_group = |width: u64| {
            let mut others = strides.iter().rev().enumerate().filter(|(other, _)| *other != axis);
            let bytes = width * size_bytes;
            u64::from(span.count).is_multiple_of(width)
                && bytes.is_multiple_of(WORD_BYTES)
                && load.address().is_multiple_of(bytes)
                && others.all(|(_, stride)| stride.unsigned_abs().is_multiple_of(width))
        };
        let widths = [16, 8, 4, 2].into_iter().filter(|width| width * size_bytes <= LOAD_BYTES);
        // Words hold whole numbers of elements of up to as many bytes.
        (size_bytes <= WORD_BYTES).then(|| widths.into_iter().find(|&width| is_group(width))).flatten()
    };
    let mut found = false;
    let along = |(axis, (&stride, span)): (usize, (&i64, &Span))| match stride {
        0 => Spread::Same,
        1 if !found => match near(axis, span) {
            Some(width) => {
                found = true;
                Spread::Near(width as u8)
            }
            None => Spread::Apart,
        },
        _ => Spread::Apart,
    };
    strides.iter().rev().zip(spans).enumerate().map(along).collect()
}
