//! Launches of elementwise kernels over views.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::params::{Fixed, ParamLayout};
use smallvec::SmallVec;

use super::both::both;
use super::generate::MAX_BLOCKS;
use super::{Form, Port, Spec};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::{Binary, Elementwise};
use nx_vulkan_spirv::params::bias;

use crate::kernels::{Arguments, Compile, Loaded, Place, Reach, has_lanes, launch, max_groups, whole_grid};
use crate::shape::{Dims, Space, Strides, elements as elements_of};
use crate::tuning::DeviceModel;
use crate::{Engine, Result, Tensor, View};

/// One input or output of a map: a view with the shape of the iteration space.
#[derive(Debug, Clone)]
pub struct Operand<'a> {
    pub buffer: &'a Arc<Buffer>,
    pub element: Element,
    pub strides: Strides,
    /// Bytes from the start of the buffer to the first element.
    pub offset_bytes: u64,
    /// The parameters that bound an input of which some indices have no element.
    pub bounds: Option<[u32; 2]>,
}

impl<'a> Operand<'a> {
    pub fn new(buffer: &'a Arc<Buffer>, view: &View, element: Element) -> Operand<'a> {
        Operand { buffer, element, strides: view.strides.clone(), offset_bytes: view.offset_bytes(), bounds: None }
    }

    /// What a fused op loads.
    pub fn loaded(loaded: &'a Loaded) -> Operand<'a> {
        let Tensor { buffer, view } = &loaded.tensor;
        let bounds = loaded.bounds.map(|_| loaded.words());
        Operand { bounds, ..Operand::new(buffer, view, Element::Typed(view.dtype)) }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset_bytes
    }
}

/// Whether a kernel for so many elements accesses vectors 8 bytes at a time.
pub(crate) fn takes_pairs(model: &DeviceModel, elements: u64) -> bool {
    model.caps.shader_int64 && model.maps.least_paired.is_some_and(|least| elements >= least)
}

/// Elements of each block that an invocation has, where the device has lanes for blocks and they pay.
pub(crate) fn block_items(model: &DeviceModel, elements: u64) -> Option<u8> {
    let mut blocks = model.maps.blocks.iter().filter(|_| has_lanes(&model.caps));
    blocks.find(|(least, _)| elements >= *least).map(|(_, own)| *own)
}

/// Whether each of so many elements of costly steps has an invocation of its own.
pub(crate) fn is_single(model: &DeviceModel, elements: u64) -> bool {
    elements <= model.maps.most_single
}

/// Whether so few elements are computed that short forms of functions take longer to fetch than they save.
pub(crate) fn is_exact(model: &DeviceModel, elements: u64) -> bool {
    elements <= model.maps.most_exact
}

/// The form of a kernel that has an invocation for each element, where costly steps of few elements are stored one
/// after the other. That with short forms has the code of an element twice, which is long where types are lowered.
fn single(model: &DeviceModel, spec: &Spec, elements: u64) -> Option<Form> {
    let are_together = spec.outputs.iter().all(|(_, port)| port.layout == Layout::Contiguous);
    match are_together && !spec.is_cheap() {
        true if is_exact(model, elements) => Some(Form::Exact),
        true if is_single(model, elements) && !spec.is_lowered(model.caps.lacks()) => Some(Form::Single),
        _ => None,
    }
}

/// Whether costly steps are repeated for each lane of a vector, which is more code.
pub(crate) fn unrolls(model: &DeviceModel, elements: u64, is_short: bool) -> bool {
    model.maps.least_unrolled.is_none_or(|least| elements >= least && is_short)
}

/// The spec with blocks, where the device has lanes for them and they pay.
fn by_blocks(model: &DeviceModel, spec: &Spec, elements: u64) -> Option<Spec> {
    let own = block_items(model, elements)?;
    let caps = &model.caps;
    let has_numbers = u64::from(caps.max_push_bytes) >= 4 * ParamLayout::WIDE_PUSH_WORDS as u64
        && parameters(spec) <= ParamLayout::PUSH_WORDS;
    if !caps.shader_int64 || !has_numbers {
        return None;
    }
    let width = spec.block_width();
    let spec = Spec { width, form: Form::Blocks { vectors: own / width }, ..spec.clone() };
    (elements / u64::from(spec.elements_per_group()) < MAX_BLOCKS).then_some(spec)
}

/// Numbers that a launch gives: their parameters and those of 24 inputs have numbers of a byte.
const MAX_NUMBERS: usize = 96;

/// Which sizes and strides a map's kernel is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shapes {
    /// All, so that one kernel does for every launch.
    Any,
    /// Those of the launch alone, if they are more than push constants hold.
    Own,
}

/// Computes `outputs` from `inputs` at every index of `sizes`. Operands have one stride per axis of `sizes`.
pub fn map(
    engine: &Engine,
    sizes: &[u64],
    inputs: &[Operand<'_>],
    steps: SmallVec<[Step; 1]>,
    outputs: &[(Ref, Operand<'_>)],
    shapes: Shapes,
    compile: Compile,
) -> Result<()> {
    // What takes compilers of CPU devices long stands once.
    let repeats_costly = engine.model().maps.least_unrolled.is_none();
    if let Some(both) = both(repeats_costly, sizes, inputs, &steps, outputs) {
        return map(engine, &both.sizes, &both.inputs, both.steps, &both.outputs, shapes, compile);
    }
    let operands = || inputs.iter().chain(outputs.iter().map(|(_, o)| o));
    let counts = steps.iter().flat_map(|step| &step.args).chain(outputs.iter().map(|(r, _)| r)).any(is_index);
    let reach = engine.reach();
    if (counts || inputs.iter().any(|input| input.bounds.is_some()))
        && !sizes.contains(&0)
        && !is_indexed_whole(reach, sizes, operands().map(|o| (&o.strides, &o.element)))
    {
        let starts = SmallVec::from_elem(0, sizes.len());
        let part = Subspace { whole: sizes, sizes: SmallVec::from_slice(sizes), starts };
        return map_part(engine, part, inputs, &steps, outputs, shapes, compile);
    }
    map_whole(engine, sizes, inputs, steps, outputs, None, shapes, compile)
}

/// Computes a tensor of the elements of a larger space from `starts` on.
pub fn map_from(
    engine: &Engine,
    [whole, starts]: [&[u64]; 2],
    inputs: &[Operand<'_>],
    steps: &[Step],
    (stored, out): (Ref, &Tensor),
    compile: Compile,
) -> Result<()> {
    let view = &out.view;
    let mut output = Operand::new(&out.buffer, view, Element::Typed(view.dtype));
    // Parts begin where the space does.
    let before = view.strides.iter().zip(starts).fold(0, |at: u64, (&s, n)| at.wrapping_add(n.wrapping_mul(s as u64)));
    output.offset_bytes = output.offset_bytes.wrapping_sub(before.wrapping_mul(view.dtype.size_bytes()));
    let part = Subspace { whole, sizes: view.shape.clone(), starts: SmallVec::from_slice(starts) };
    map_part(engine, part, inputs, steps, &[(stored, output)], Shapes::Own, compile)
}

fn map_part(
    engine: &Engine,
    part: Subspace<'_>,
    inputs: &[Operand<'_>],
    steps: &[Step],
    outputs: &[(Ref, Operand<'_>)],
    shapes: Shapes,
    compile: Compile,
) -> Result<()> {
    part.halves(engine.reach(), inputs, outputs, &mut |part| {
        let (steps, stored) = part.counted(steps, outputs);
        let inputs: SmallVec<[Operand<'_>; 4]> = inputs.iter().map(|o| part.of(o)).collect();
        let outputs: SmallVec<[(Ref, Operand<'_>); 2]> =
            stored.into_iter().zip(outputs).map(|(r, (_, o))| (r, part.of(o))).collect();
        map_whole(engine, &part.sizes, &inputs, steps, &outputs, None, shapes, compile)
    })
}

/// Computes an output at every index of `sizes`, which one launch counts, and stores it `shift` elements behind its
/// place, a u32 that steps give.
#[allow(clippy::too_many_arguments)]
pub fn put(
    engine: &Engine,
    sizes: &[u64],
    inputs: &[Operand<'_>],
    steps: SmallVec<[Step; 1]>,
    output: (Ref, Operand<'_>),
    shift: Ref,
    compile: Compile,
) -> Result<()> {
    map_whole(engine, sizes, inputs, steps, &[output], Some(shift), Shapes::Own, compile)
}

fn is_index(r: &Ref) -> bool {
    matches!(r, Ref::Coordinate(_) | Ref::Linear)
}

/// A part of a space whose elements need their indices in the whole, which one launch can't count.
struct Subspace<'a> {
    whole: &'a [u64],
    sizes: Dims,
    starts: Dims,
}

impl Subspace<'_> {
    /// Calls `run` for parts that 32-bit positions can index.
    fn halves(
        self,
        reach: Reach,
        inputs: &[Operand<'_>],
        outputs: &[(Ref, Operand<'_>)],
        run: &mut dyn FnMut(&Subspace<'_>) -> Result<()>,
    ) -> Result<()> {
        let operands = inputs.iter().chain(outputs.iter().map(|(_, o)| o));
        // The outermost axis with more than one element, so that row-major indices of a part follow each other.
        let axis = self.sizes.iter().position(|&n| n > 1);
        let whole = is_indexed_whole(reach, &self.sizes, operands.map(|o| (&o.strides, &o.element)));
        let Some(axis) = axis.filter(|_| !whole) else { return run(&self) };
        let half = half_of(self.sizes[axis]);
        for (start, size) in [(0, half), (half, self.sizes[axis] - half)] {
            let (mut sizes, mut starts) = (self.sizes.clone(), self.starts.clone());
            (sizes[axis], starts[axis]) = (size, starts[axis] + start);
            Subspace { whole: self.whole, sizes, starts }.halves(reach, inputs, outputs, run)?;
        }
        Ok(())
    }

    /// What of an operand lies in the part.
    fn of<'b>(&self, operand: &Operand<'b>) -> Operand<'b> {
        let Operand { strides, bounds, element, .. } = operand;
        let moved =
            strides.iter().zip(&self.starts).fold(0i64, |at, (s, &n)| at.wrapping_add(s.wrapping_mul(n as i64)));
        let bytes = i64::from(element.size_bytes());
        // Positions of a bounded operand are counted from its lowest element.
        let elements = match bounds {
            Some(_) => (bias(strides, &self.sizes) as i64).wrapping_sub(bias(strides, self.whole) as i64),
            None => moved,
        };
        Operand {
            offset_bytes: operand.offset_bytes.wrapping_add_signed(elements.wrapping_mul(bytes)),
            bounds: bounds.map(|[first, last]| [first.wrapping_add(moved as u32), last]),
            ..operand.clone()
        }
    }

    /// The steps with indices counted from the start of the whole, and what outputs store.
    fn counted(&self, steps: &[Step], outputs: &[(Ref, Operand<'_>)]) -> (SmallVec<[Step; 1]>, SmallVec<[Ref; 2]>) {
        let refs = || steps.iter().flat_map(|step| &step.args).chain(outputs.iter().map(|(r, _)| r));
        let mut indices: SmallVec<[Ref; 4]> = SmallVec::new();
        refs().filter(|r| is_index(r)).for_each(|r| {
            if !indices.contains(r) {
                indices.push(*r)
            }
        });
        let wide = elements_of(self.whole) > u64::from(u32::MAX);
        let dtype = if wide { DType::U64 } else { DType::U32 };
        let start = |index: &Ref| match index {
            Ref::Coordinate(axis) => self.starts.get(usize::from(*axis)).copied().unwrap_or(0),
            _ => self.starts.iter().zip(self.whole).fold(0, |at, (start, size)| at * size + start),
        };
        let step = |op, args: &[Ref]| Step { op, args: SmallVec::from_slice(args), out: dtype };
        let mut new: SmallVec<[Step; 1]> = SmallVec::new();
        let mut moved: SmallVec<[Ref; 4]> = SmallVec::new();
        for index in &indices {
            let mut at = *index;
            if wide {
                new.push(step(Elementwise::AsType, &[at]));
                at = Ref::Result(new.len() as u16 - 1);
            }
            new.push(step(Elementwise::Binary(Binary::Add), &[at, Ref::Constant(dtype, start(index))]));
            moved.push(Ref::Result(new.len() as u16 - 1));
        }
        let before = new.len() as u16;
        let renumbered = |r: &Ref| match indices.iter().position(|index| index == r) {
            Some(k) => moved[k],
            None if let Ref::Result(k) = r => Ref::Result(k + before),
            None => *r,
        };
        new.extend(steps.iter().map(|s| Step { args: s.args.iter().map(renumbered).collect(), ..s.clone() }));
        (new, outputs.iter().map(|(r, _)| renumbered(r)).collect())
    }
}

/// Where a part of so many elements along an axis is cut: vector kernels need multiples of their width.
fn half_of(size: u64) -> u64 {
    (size / 2).next_multiple_of(4).min(size - 1)
}

/// Computes `outputs` from `inputs` at every index of `sizes`, which one launch counts, unless nothing is counted.
/// Positions of outputs are `shift` more.
#[allow(clippy::too_many_arguments)]
fn map_whole(
    engine: &Engine,
    sizes: &[u64],
    inputs: &[Operand<'_>],
    mut steps: SmallVec<[Step; 1]>,
    outputs: &[(Ref, Operand<'_>)],
    shift: Option<Ref>,
    shapes: Shapes,
    compile: Compile,
) -> Result<()> {
    let mut stored: SmallVec<[Ref; 2]> = outputs.iter().map(|(r, _)| *r).collect();
    let (space, keeps_axes) = space_of(sizes, inputs, outputs, &mut steps, &mut stored);
    let numbers = match engine.shares_kernels() && elements_of(sizes) <= engine.model().maps.most_shared {
        true => numbers(&mut steps, inputs.len()),
        false => Numbers::new(),
    };
    let laid = Laid::new(space, inputs, outputs, shift.is_some());
    let Laid { space, layouts, .. } = &laid;
    let port = |k: usize| Port { element: laid.elements[k], layout: layouts[k] };
    let mut spec = Spec {
        inputs: (0..inputs.len()).map(port).collect(),
        steps,
        outputs: stored.iter().enumerate().map(|(i, r)| (*r, port(inputs.len() + i))).collect(),
        rank: if layouts.iter().any(|l| l.has_strides()) || keeps_axes { space.rank() as u8 } else { 1 },
        width: 1,
        form: Form::Vectors,
        fixed: None,
        numbers: numbers.iter().map(|(dtype, _)| *dtype).collect(),
        shift,
        sharing: engine.model().maps.sharing,
    };
    if shapes == Shapes::Own && parameters(&spec) > ParamLayout::PUSH_WORDS && laid.is_indexed_whole(engine.reach()) {
        spec.fixed = Some(Box::new(Fixed { sizes: space.sizes.clone(), strides: space.strides.clone() }));
    }
    let spec = formed(engine, spec, &laid);
    let extra = extra_words(inputs, &numbers);
    let kernel = engine.kernel(&spec, compile)?;
    let buffers: SmallVec<[&Arc<Buffer>; 4]> =
        inputs.iter().chain(outputs.iter().map(|(_, o)| o)).map(|o| o.buffer).collect();
    split(engine.reach(), space, &laid.addresses, &laid.elements, &mut |sizes, addresses| {
        let places: SmallVec<[Place<'_>; 4]> = buffers
            .iter()
            .zip(addresses)
            .zip(&space.strides)
            .zip(&laid.elements)
            .map(|(((&buffer, &address), strides), element)| Place {
                buffer,
                address,
                strides,
                element_bytes: u64::from(element.size_bytes()),
            })
            .collect();
        let count = sizes.iter().product::<u64>();
        let arguments = Arguments { count: count as u32, sizes, places: &places, extra: &extra };
        let per_group = u64::from(kernel.elements_per_group);
        let groups = match spec.form {
            Form::Blocks { .. } => whole_grid(max_groups(engine.caps()), count / per_group),
            Form::Vectors | Form::Single | Form::Exact | Form::Pairs => count.div_ceil(per_group),
        };
        launch(engine, &kernel, &arguments, inputs.len(), groups)
    })
}

/// The space in which a map runs, and whether it keeps axes that steps or outputs ask coordinates of. Those become the
/// coordinates of the space.
fn space_of(
    sizes: &[u64],
    inputs: &[Operand<'_>],
    outputs: &[(Ref, Operand<'_>)],
    steps: &mut [Step],
    stored: &mut [Ref],
) -> (Space, bool) {
    let strides: SmallVec<[&[i64]; 4]> =
        inputs.iter().chain(outputs.iter().map(|(_, o)| o)).map(|o| &o.strides[..]).collect();
    let refs = || steps.iter().flat_map(|step| &step.args).chain(&*stored);
    let axes: SmallVec<[usize; 6]> =
        refs().filter_map(|r| if let Ref::Coordinate(axis) = r { Some(*axis as usize) } else { None }).collect();
    if axes.is_empty() {
        let space = match refs().any(is_index) {
            true => Space::new(sizes, &strides),
            false => in_order_of_output(sizes, &strides, inputs.len()),
        };
        return (space, false);
    }
    let (space, places) = Space::keeping(sizes, &strides, &axes);
    for r in steps.iter_mut().flat_map(|step| &mut step.args).chain(stored) {
        if let Ref::Coordinate(axis) = r
            && let Some(place) = axes.iter().position(|&kept| kept == *axis as usize)
        {
            *axis = places[place] as u8;
        }
    }
    (space, true)
}

/// How operands lie in the space of a map: inputs, then outputs.
struct Laid {
    space: Space,
    addresses: SmallVec<[u64; 4]>,
    elements: SmallVec<[Element; 4]>,
    layouts: SmallVec<[Layout; 4]>,
}

impl Laid {
    fn new(space: Space, inputs: &[Operand<'_>], outputs: &[(Ref, Operand<'_>)], is_shifted: bool) -> Laid {
        let operands = || inputs.iter().chain(outputs.iter().map(|(_, o)| o));
        let addresses: SmallVec<[u64; 4]> = operands().map(Operand::address).collect();
        let elements: SmallVec<[Element; 4]> = operands().map(|o| o.element).collect();
        let bounds: SmallVec<[Option<[u32; 2]>; 4]> = inputs.iter().map(|input| input.bounds).collect();
        let layouts = (0..space.strides.len())
            .map(|k| match layout(&space.sizes, &space.strides[k]) {
                _ if bounds.get(k).is_some_and(Option::is_some) => Layout::Bounded,
                _ if k >= inputs.len() && is_shifted => Layout::Strided,
                layout => layout,
            })
            .collect();
        let layouts = vectors(&space, layouts, &addresses, &elements, &bounds);
        Laid { space, addresses, elements, layouts }
    }

    /// Whether 32-bit positions index all of the space.
    fn is_indexed_whole(&self, reach: Reach) -> bool {
        is_indexed_whole(reach, &self.space.sizes, self.space.strides.iter().zip(&self.elements))
    }

    /// Whether vectors of so many elements begin at multiples of their size, where there are any.
    fn is_aligned(&self, width: u8) -> bool {
        (0..self.addresses.len()).all(|k| {
            matches!(self.layouts[k], Layout::Uniform | Layout::Repeated | Layout::Each | Layout::Bounded)
                || self.addresses[k].is_multiple_of(u64::from(self.elements[k].size_bytes() * u32::from(width)))
        })
    }
}

/// The spec with the width and the form in which the device is fastest.
fn formed(engine: &Engine, mut spec: Spec, laid: &Laid) -> Spec {
    let (model, space) = (engine.model(), &laid.space);
    let whole = |width: u8| {
        let innermost = space.sizes.last().copied().unwrap_or(1);
        !spec.has_coordinates() || innermost.is_multiple_of(width.into())
    };
    // Code of lowered types is long: it stands once.
    let width = match spec.is_lowered(model.caps.lacks()) {
        true => 1,
        false => spec.widest(unrolls(model, space.elements(), spec.is_short())),
    };
    let width = [width, width / 2].into_iter().find(|&width| width > 0 && whole(width)).unwrap_or(1);
    let blocks = by_blocks(model, &spec, space.elements()).filter(|blocks| {
        width > 1 && whole(blocks.width) && laid.is_aligned(blocks.width) && laid.is_indexed_whole(engine.reach())
    });
    if let Some(single) = single(model, &spec, space.elements()) {
        spec.form = single;
    } else if let Some(blocks) = blocks {
        return blocks;
    } else if width > 1 && laid.is_aligned(width) {
        spec.width = width;
        if takes_pairs(model, space.elements()) {
            spec.form = Form::Pairs;
        }
    }
    spec
}

/// The words of a launch behind those of its operands: two for each input, which bound it, and two for each number, or
/// none where nothing is bounded and there are no numbers.
fn extra_words(inputs: &[Operand<'_>], numbers: &Numbers) -> SmallVec<[u32; 8]> {
    if numbers.is_empty() && inputs.iter().all(|input| input.bounds.is_none()) {
        return SmallVec::new();
    }
    let bounds = inputs.iter().flat_map(|input| input.bounds.unwrap_or_default());
    bounds.chain(numbers.iter().flat_map(|(_, bits)| [*bits as u32, (*bits >> 32) as u32])).collect()
}

/// Types of numbers and their bits.
type Numbers = SmallVec<[(DType, u64); 8]>;

/// Takes the numbers out of steps and puts inputs in their place, as far as a launch can give them.
fn numbers(steps: &mut [Step], inputs: usize) -> Numbers {
    let mut numbers = Numbers::new();
    for r in steps.iter_mut().flat_map(|step| &mut step.args) {
        if let Ref::Constant(dtype, bits) = *r
            && numbers.len() < MAX_NUMBERS
            && let Ok(k) = u8::try_from(inputs + numbers.len())
        {
            *r = Ref::Input(k);
            numbers.push((dtype, bits));
        }
    }
    numbers
}

/// Words that the kernel takes where no sizes and strides are fixed.
fn parameters(spec: &Spec) -> usize {
    let ports = || spec.inputs.iter().chain(spec.outputs.iter().map(|(_, port)| port));
    let strided = ports().filter(|port| port.layout.has_strides()).count();
    let rank = usize::from(spec.rank);
    // The count, addresses, what divides by sizes, strides and biases or bounds, and numbers.
    let bounded = ports().filter(|port| port.layout.is_bounded()).count();
    1 + 2 * ports().count() + 3 * rank.saturating_sub(1) + strided * (rank + 1) + bounded + 2 * spec.numbers.len()
}

/// The space with its axes in the order in which the first output lies in memory, so that neighbours are written
/// together.
fn in_order_of_output(sizes: &[u64], strides: &[&[i64]], first_output: usize) -> Space {
    let Some(out) = strides.get(first_output) else { return Space::new(sizes, strides) };
    let mut order: SmallVec<[usize; 6]> = (0..sizes.len()).filter(|&axis| sizes[axis] > 1).collect();
    if order.is_sorted_by_key(|&axis| std::cmp::Reverse(out[axis].unsigned_abs())) {
        return Space::new(sizes, strides);
    }
    order.sort_by_key(|&axis| std::cmp::Reverse(out[axis].unsigned_abs()));
    let sizes: Dims = order.iter().map(|&axis| sizes[axis]).collect();
    let strides: SmallVec<[Strides; 4]> = strides.iter().map(|s| order.iter().map(|&axis| s[axis]).collect()).collect();
    Space::new(&sizes, &strides.iter().map(|s| &s[..]).collect::<SmallVec<[&[i64]; 4]>>())
}

/// The layouts of operands, where those with strides allow vectors along the innermost axis, if all of them do.
fn vectors(
    space: &Space,
    layouts: SmallVec<[Layout; 4]>,
    addresses: &[u64],
    elements: &[Element],
    bounds: &[Option<[u32; 2]>],
) -> SmallVec<[Layout; 4]> {
    // As `Spec::widest` counts.
    let loaded = |k: &usize| match layouts[*k] {
        Layout::Contiguous => true,
        Layout::Uniform => false,
        _ => space.strides[*k].last() == Some(&1),
    };
    let width = u64::from((0..layouts.len()).filter(loaded).map(|k| elements[k].max_width()).min().unwrap_or(1));
    let Some(&innermost) = space.sizes.last() else { return layouts };
    if width == 1 || !innermost.is_multiple_of(width) {
        return layouts;
    }
    let along = |k: usize| {
        let (last, outer) = space.strides[k].split_last()?;
        let whole = outer.iter().all(|s| s.unsigned_abs().is_multiple_of(width));
        let aligned = whole && addresses[k].is_multiple_of(u64::from(elements[k].size_bytes()) * width);
        let bounds = bounds.get(k).copied().flatten();
        let within = bounds.is_none_or(|[first, last]| {
            u64::from(first).is_multiple_of(width) && (u64::from(last) + 1).is_multiple_of(width)
        });
        match (layouts[k], *last) {
            (Layout::Bounded, 1) if aligned && within => Some(Layout::BoundedInner),
            (Layout::Strided, 0) => Some(Layout::Repeated),
            (Layout::Strided, 1) if aligned => Some(Layout::Inner),
            (Layout::Strided, stride) => (stride.unsigned_abs() <= NEAR).then_some(Layout::Each),
            (other, _) => Some(other),
        }
    };
    let seen: Option<SmallVec<[Layout; 4]>> = (0..layouts.len()).map(along).collect();
    seen.unwrap_or(layouts)
}

/// Elements between neighbours of a vector that are accessed one by one, not those of a kernel without vectors.
const NEAR: u64 = 4;

/// How an operand with `strides` lies in the space.
fn layout(sizes: &[u64], strides: &[i64]) -> Layout {
    if strides.iter().zip(sizes).all(|(&stride, &size)| stride == 0 || size == 1) {
        return Layout::Uniform;
    }
    let mut step = 1i64;
    for (&stride, &size) in strides.iter().zip(sizes).rev() {
        if stride != step {
            return Layout::Strided;
        }
        step = step.wrapping_mul(size as i64);
    }
    Layout::Contiguous
}

/// Whether 32-bit positions index all of the space.
fn is_indexed_whole<'a>(
    reach: Reach,
    sizes: &[u64],
    mut operands: impl Iterator<Item = (&'a Strides, &'a Element)>,
) -> bool {
    let span =
        |s: &Strides| -> u64 { s.iter().zip(sizes).map(|(&s, &n)| s.unsigned_abs() * n.saturating_sub(1)).sum() };
    let fits = |(s, e): (&Strides, &Element)| span(s) <= reach.near(e.size_bytes().into());
    sizes.iter().product::<u64>() <= reach.far() && operands.all(fits)
}

/// Takes the sizes of a part of the space and the addresses of its first elements.
type RunPart<'a> = dyn FnMut(&[u64], &[u64]) -> Result<()> + 'a;

/// Calls `run` for parts of the space that 32-bit positions can index, with the addresses of their first elements.
fn split(reach: Reach, space: &Space, addresses: &[u64], elements: &[Element], run: &mut RunPart<'_>) -> Result<()> {
    fn halves(
        reach: Reach,
        sizes: &[u64],
        strides: &[Strides],
        addresses: &[u64],
        elements: &[Element],
        run: &mut RunPart<'_>,
    ) -> Result<()> {
        if sizes.contains(&0) {
            return Ok(());
        }
        if is_indexed_whole(reach, sizes, strides.iter().zip(elements)) {
            return run(sizes, addresses);
        }
        // The outermost axis with more than one element: halving it keeps the order of everything inside.
        let Some(axis) = sizes.iter().position(|&n| n > 1) else { return run(sizes, addresses) };
        let half = half_of(sizes[axis]);
        let mut low: SmallVec<[u64; 6]> = SmallVec::from_slice(sizes);
        let mut high = low.clone();
        low[axis] = half;
        high[axis] = sizes[axis] - half;
        halves(reach, &low, strides, addresses, elements, run)?;
        let moved: SmallVec<[u64; 4]> = addresses
            .iter()
            .zip(strides)
            .zip(elements)
            .map(|((&address, s), e)| address.wrapping_add_signed(s[axis] * half as i64 * i64::from(e.size_bytes())))
            .collect();
        halves(reach, &high, strides, &moved, elements, run)
    }
    halves(reach, &space.sizes, &space.strides, addresses, elements, run)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::program::Unary;

    #[test]
    fn few_costly_elements_have_an_invocation_each_where_results_lie_together() {
        let mut model = Engine::open(None).unwrap().model().clone();
        (model.maps.most_single, model.maps.most_exact) = (1 << 10, 1 << 6);
        let spec = |op: Unary, input: Layout, output: Layout| {
            let [input, output] = [input, output].map(|layout| Port { element: Element::Typed(DType::F32), layout });
            Spec {
                inputs: smallvec![input],
                steps: smallvec![Step { op: Elementwise::Unary(op), args: smallvec![Ref::Input(0)], out: DType::F32 }],
                outputs: smallvec![(Ref::Result(0), output)],
                rank: 2,
                width: 1,
                form: Form::Vectors,
                fixed: None,
                numbers: SmallVec::new(),
                shift: None,
                sharing: model.maps.sharing,
            }
        };
        let form = |op, input, output, elements| single(&model, &spec(op, input, output), elements);
        assert_eq!(form(Unary::Tan, Layout::Strided, Layout::Contiguous, 1 << 10), Some(Form::Single));
        assert_eq!(form(Unary::Tan, Layout::Strided, Layout::Contiguous, 1 << 6), Some(Form::Exact));
        assert_eq!(form(Unary::Tan, Layout::Contiguous, Layout::Strided, 1 << 6), None);
        assert_eq!(form(Unary::Tan, Layout::Contiguous, Layout::Contiguous, (1 << 10) + 1), None);
        assert_eq!(form(Unary::Negate, Layout::Contiguous, Layout::Contiguous, 1 << 6), None);
    }

    #[test]
    fn large_spaces_are_split_and_cover_everything_once() {
        let element = Element::Raw(4);
        let n = (1u64 << 33) + 12345;
        let space =
            Space { sizes: SmallVec::from_slice(&[n]), strides: SmallVec::from_vec(vec![Strides::from_slice(&[1])]) };
        let mut next = 64;
        split(Reach::default(), &space, &[64], &[element], &mut |sizes, addresses| {
            assert_eq!(addresses[0], next);
            assert!(sizes[0] <= Reach::default().far());
            assert!(addresses[0].is_multiple_of(16));
            next += sizes[0] * 4;
            Ok(())
        })
        .unwrap();
        assert_eq!(next, 64 + n * 4);
    }

    #[test]
    fn layouts() {
        assert_eq!(layout(&[4, 5], &[5, 1]), Layout::Contiguous);
        assert_eq!(layout(&[4, 5], &[1, 4]), Layout::Strided);
        assert_eq!(layout(&[4, 5], &[0, 0]), Layout::Uniform);
        assert_eq!(layout(&[1], &[0]), Layout::Uniform);
        assert_eq!(layout(&[4], &[0]), Layout::Uniform);
    }
}
