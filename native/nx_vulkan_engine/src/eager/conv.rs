//! Convolutions as batched matrix products. The windows of the input are a view of it with many axes, which the product
//! reads in place. What is padded, dilated or too scattered is copied first, with its channels innermost, or its images
//! where the kernel is larger than the result, as in gradients by kernels, but for matrix units. Ops of one program
//! that need the same copy share it.

use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

mod border;
mod in_place;
mod phases;

use super::call::Call;
use super::dot::{self, Then};
use super::{constant, copies, movement};
use crate::kernels::dot::{Matrix, MergedAxes, Planes, Product, product};
use crate::kernels::map::Operand;
use crate::kernels::transpose::padded_copy;
use crate::program::attribute::{Axes, Scalar};
use crate::program::conv::{Conv, Sizes};
use crate::program::epilogue::matrix_min_depth;
use crate::program::step::Prologue;
use crate::shape::{Dims, elements};
use crate::{CType, DType, Result, Tensor, Type, View};

/// Most bytes that a padded copy of the input takes, unless a single image takes more.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// Multiplications and filters from which a copy pays that lets the product load four or eight elements at a time.
const MIN_COPY_WORK: u64 = 1 << 17;
const MIN_COPY_FILTERS: u64 = 16;

/// Parts of a convolution on matrix units, at most: each reads the whole kernel.
const MAX_PARTS: u64 = 8;

/// Windows and images up to which their elements are read one by one where that leaves a kernel larger than them in
/// place.
const MAX_SCATTERED_COLUMNS: u64 = 16;

/// Axes of the split input: batch group, image, feature group, channel, then space.
const SPACE: usize = 4;

/// The convolution, or what follows it. Steps on the elements of the input and the kernel make zeros of zeros.
pub fn conv(call: &Call<'_>, op: &Conv, prologues: [Option<Prologue>; 2], then: Option<&Then>) -> Result<Tensor> {
    let (input, kernel) = (call.operand(0)?, call.operand(1)?);
    let sizes = op.sizes(&input.view.shape, &kernel.view.shape).map_err(|reason| call.invalid(reason))?;
    if op.output(&sizes) != call.out.shape {
        return Err(call.invalid(format!("{:?} for a shape of {:?}", op.output(&sizes), call.out.shape)));
    }
    let dtype = then.map_or(call.out.dtype, |t| t.dtype);
    let result = Tensor::uninitialized(call.engine, &Type::new(dtype, &call.out.shape))?;
    let lead = [op.batch_groups, sizes.images, op.feature_groups, sizes.channels];
    let filters = [op.groups(), sizes.filters];
    let split_output = |t: &Tensor| split(call, t, &op.output_axes, &[&[sizes.images], &filters, &sizes.counts[..]]);
    let inputs = then.map_or(&[][..], |t| &t.inputs);
    let convolution = Convolution {
        call,
        op,
        then,
        inputs: inputs.iter().map(split_output).collect::<Result<_>>()?,
        input: split(call, input, &op.input_axes, &[&lead, &sizes.space[..]])?,
        kernel: split(call, kernel, &op.kernel_axes, &[&filters, &[sizes.channels], &sizes.windows.sizes[..]])?,
        sizes: &sizes,
        prologues,
    };
    let output = &split_output(&result)?;
    match convolution.phases() {
        Some(phases) => convolution.run_phases(&phases, output)?,
        None => convolution.run(output)?,
    }
    Ok(result)
}

/// The tensor with its axes permuted, then split to the concatenated shape.
fn split(call: &Call<'_>, tensor: &Tensor, axes: &Axes, shape: &[&[u64]]) -> Result<Tensor> {
    let shape = shape.concat();
    let view = tensor.view.transpose(axes)?.reshape(&shape);
    let view = view.ok_or_else(|| call.invalid(format!("{:?} does not split to {shape:?}", tensor.view.shape)))?;
    Ok(tensor.with_view(view))
}

/// Some axes of a view as one.
fn group(view: &View, axes: impl IntoIterator<Item = usize>) -> MergedAxes {
    let (sizes, strides): (Dims, SmallVec<[i64; 6]>) =
        axes.into_iter().map(|axis| (view.shape[axis], view.strides[axis])).unzip();
    MergedAxes::new(&sizes, &strides)
}

fn is_ascending(view: &View) -> bool {
    view.strides.iter().all(|&stride| stride >= 0)
}

/// Which elements of the input the product finds beside each other, and the order of the contracted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Channels, contracted behind the window.
    Channels,
    /// Spatial ones, contracted behind channels.
    Space,
    /// Images, as columns behind the windows; contracted are channels, then the window.
    Images,
}

/// How the product loads its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loads {
    /// Element by element.
    Single,
    /// Four neighbours at once, as tiles do.
    Four,
    /// Eight, in place on matrix units: numbers of 16 bits.
    Own,
    /// Eight, in place on matrix units: f32, whose elements are made numbers of 16 bits first, where they lie.
    Planes,
}

impl Loads {
    fn neighbours(self) -> u64 {
        match self {
            Loads::Single => 1,
            Loads::Four => 4,
            Loads::Own | Loads::Planes => 8,
        }
    }
}

/// Some images of a convolution.
struct ImageRange {
    positions: Matrix,
    filters: Matrix,
    order: Order,
    first: u64,
    count: u64,
}

/// One convolution: the split input, and the kernel as groups, filters, channels and space.
#[derive(Clone)]
struct Convolution<'c> {
    call: &'c Call<'c>,
    op: &'c Conv,
    sizes: &'c Sizes,
    input: Tensor,
    kernel: Tensor,
    /// Steps on the elements of either.
    prologues: [Option<Prologue>; 2],
    /// Steps after the convolution, and what they read, split as its results are.
    then: Option<&'c Then>,
    inputs: Vec<Tensor>,
}

impl Convolution<'_> {
    /// How the product is to load its operands, of so many multiplications.
    fn loads(&self, work: u64) -> Result<Loads> {
        let Call { engine, out, compile, .. } = self.call;
        let pays = self.sizes.channels >= 3 && self.sizes.filters >= MIN_COPY_FILTERS && work >= MIN_COPY_WORK;
        if !pays || !matches!(out.dtype.ctype(), CType::F32 | CType::F64) {
            return Ok(Loads::Single);
        }
        let is_one_type = [&self.input, &self.kernel].iter().all(|operand| operand.view.dtype == out.dtype);
        let channels = self.sizes.channels.next_multiple_of(8);
        let is_large = work >= engine.model().programs.joins.unit_work;
        if !is_one_type || !is_large || self.depth(channels) < matrix_min_depth(out.dtype) {
            return Ok(Loads::Four);
        }
        let takes_own = match out.dtype {
            DType::F16 | DType::Bf16 => {
                let fits = self.images_of_units(channels).saturating_mul(MAX_PARTS) >= self.sizes.images;
                fits && engine.takes_own_numbers(out.dtype, *compile)? != [false; 2]
            }
            DType::F32 if self.pays_in_place(channels) && engine.takes_own_numbers(DType::Bf16, *compile)?[1] => {
                return Ok(Loads::Planes);
            }
            _ => false,
        };
        Ok(if takes_own { Loads::Own } else { Loads::Four })
    }

    /// Contracted elements, with as many channels.
    fn depth(&self, channels: u64) -> u64 {
        channels * elements(&self.sizes.windows.sizes)
    }

    /// Images that matrix units take at once.
    fn images_of_units(&self, channels: u64) -> u64 {
        let padded = self.depth(channels).next_multiple_of(Planes::OwnBf16.block());
        let line_bytes = padded * self.input.view.dtype.size_bytes();
        let lines = self.call.engine.model().programs.joins.unit_bytes / line_bytes / self.op.groups();
        lines.saturating_sub(self.sizes.filters) / elements(&self.sizes.counts)
    }

    /// Fills `output`, whose axes are images, groups, filters and space.
    fn run(&self, output: &Tensor) -> Result<()> {
        let unpadded = self.unpadded()?;
        let depth = self.depth(self.sizes.channels);
        let loads = self.loads(output.view.elements().saturating_mul(depth))?;
        if loads == Loads::Planes {
            return self.run_in_place(output);
        }
        if loads == Loads::Own && unpadded.is_none() && self.run_with_border(output)? {
            return Ok(());
        }
        let together = loads.neighbours();
        let of_kernel = if loads == Loads::Four { self.order_of_large_kernel()? } else { None };
        let own_order = |input: &Tensor| match of_kernel {
            Some(order) => order,
            None if self.has_channels_last(&input.view) => Order::Channels,
            None => Order::Space,
        };
        let in_place = unpadded.filter(|input| {
            let order = own_order(input);
            let along_k = || self.positions(input.clone(), order).loaded_along_k(together);
            match loads {
                Loads::Single => true,
                Loads::Own | Loads::Planes => along_k() == Some(true),
                Loads::Four => of_kernel == Some(Order::Space) || along_k().is_some(),
            }
        });
        let order = match (&in_place, of_kernel) {
            (_, Some(order)) => order,
            (Some(input), None) => own_order(input),
            (None, None) if self.sizes.channels > 1 => Order::Channels,
            (None, None) => Order::Space,
        };
        // Channels of zeros make whole groups.
        let channels = match (&in_place, of_kernel) {
            (None, None) => self.sizes.channels.next_multiple_of(together),
            _ => self.sizes.channels,
        };
        let step = self.images_at_once(in_place.as_ref(), channels, loads, output)?;
        let filters = self.filters(channels, order, loads)?;
        for first in (0..self.sizes.images).step_by(step as usize) {
            let count = step.min(self.sizes.images - first);
            let input = match &in_place {
                Some(input) => slice(input, 1, first, count)?,
                None => self.copy(&slice(&self.input, 1, first, count)?, channels, order)?,
            };
            let positions = self.positions(input, order);
            let part = ImageRange { positions, filters: filters.clone(), order, first, count };
            self.multiply(part, output, |p, _| product(self.call.engine, p, self.call.compile))?;
        }
        Ok(())
    }

    /// Images of a part, that of an input which is read in place or copied with as many channels. Parts are as large as
    /// each other.
    fn images_at_once(&self, in_place: Option<&Tensor>, channels: u64, loads: Loads, output: &Tensor) -> Result<u64> {
        let images = self.sizes.images;
        let results = (output.view.elements() / images).max(output.view.strides[0].unsigned_abs());
        let limit = self.call.engine.reach().near(self.input.view.dtype.size_bytes());
        let step = match in_place {
            Some(input) => limit / results.max(input.view.strides[1].unsigned_abs()),
            None => {
                let copied = self.op.groups() * channels * elements(&self.padded_space()?);
                let bytes = copied * self.input.view.dtype.size_bytes();
                (limit / results.max(copied)).min(MAX_COPY_BYTES / bytes)
            }
        };
        let step = if loads == Loads::Own { step.min(self.images_of_units(channels)) } else { step };
        let parts = images.div_ceil(step.clamp(1, images));
        Ok(images.div_ceil(parts))
    }

    /// Multiplies the windows of a part by the filters, into `output`, by what launches a product; that is also told
    /// whether windows are its second operand.
    fn multiply(
        &self,
        part: ImageRange,
        output: &Tensor,
        launch: impl FnOnce(&Product<'_>, bool) -> Result<()>,
    ) -> Result<()> {
        let ImageRange { positions, filters, order, first, count } = part;
        let output = slice(output, 0, first, count)?;
        let space = 3..output.view.shape.len();
        let places: Axes = match order {
            Order::Images => space.chain([0]).collect(),
            Order::Channels | Order::Space => [0].into_iter().chain(space).collect(),
        };
        // Whichever axis of the result is contiguous is that of the columns.
        let filters_last = output.view.strides[2] == 1;
        let axes: Axes = match filters_last {
            true => [1].into_iter().chain(places).chain([2]).collect(),
            false => [1, 2].into_iter().chain(places).collect(),
        };
        let out = &output.with_view(output.view.transpose(&axes)?);
        let [of_input, of_kernel] = self.prologues.clone();
        let (a, b, prologues) = match filters_last {
            true => (positions, filters, [of_input, of_kernel]),
            false => (filters, positions, [of_kernel, of_input]),
        };
        let view = |t: &Tensor| slice(t, 0, first, count)?.view.transpose(&axes);
        let views = self.inputs.iter().map(view).collect::<Result<Vec<_>>>()?;
        let operands = dot::operands(&self.inputs, &views);
        let epilogue = self.then.map(|t| t.epilogue(self.call.out.dtype, &operands));
        launch(&Product { a, b, prologues, out, epilogue }, !filters_last)
    }

    fn padded_space(&self) -> Result<Dims> {
        let dilated = self.op.dilated(&self.sizes.space).and_then(|space| self.sizes.windows.padded(&space));
        dilated.map_err(|reason| self.call.invalid(reason))
    }

    /// The order for a kernel that is larger than the result and that the product can read by four where it lies,
    /// contracted by channel: the input is what is copied then.
    fn order_of_large_kernel(&self) -> Result<Option<Order>> {
        let counts = elements(&self.sizes.counts);
        let is_large = elements(&self.sizes.windows.sizes) > counts;
        if !is_large
            || !is_ascending(&self.kernel.view)
            || !self.filter_matrix(&self.kernel, Order::Space).is_vectorizable()
        {
            return Ok(None);
        }
        Ok(match self.sizes.images {
            images if images.is_multiple_of(4) => Some(Order::Images),
            images if images * counts <= MAX_SCATTERED_COLUMNS => Some(Order::Space),
            _ => None,
        })
    }

    /// The input without what padding cuts off, if nothing is added to it.
    fn unpadded(&self) -> Result<Option<Tensor>> {
        let cuts_only = self.op.padding.iter().all(|&(low, high)| low <= 0 && high <= 0);
        if cuts_only { self.without_cut_off() } else { Ok(None) }
    }

    /// The input without what padding cuts off, if nothing stands between its elements.
    fn without_cut_off(&self) -> Result<Option<Tensor>> {
        let dense = self.op.input_dilation.iter().zip(&self.sizes.space).all(|(&step, &size)| step == 1 || size == 1);
        if !dense || !is_ascending(&self.input.view) {
            return Ok(None);
        }
        let view = &self.input.view;
        let cut = |(low, high): (i64, i64)| [low, high].map(|side| side.min(0).unsigned_abs());
        let mut starts = Dims::from_elem(0, SPACE);
        let mut lengths: Dims = view.shape[..SPACE].into();
        for (&padding, &size) in self.op.padding.iter().zip(&view.shape[SPACE..]) {
            let [low, high] = cut(padding);
            // Beyond the input nothing but zeros is left.
            let Some(left) = size.checked_sub(low.saturating_add(high)).filter(|&left| left > 0) else {
                return Ok(None);
            };
            starts.push(low);
            lengths.push(left);
        }
        let view = view.slice(&starts, &lengths, &Dims::from_elem(1, starts.len()))?;
        Ok(Some(self.input.with_view(view)))
    }

    /// Whether channels lie closer together than elements along any spatial axis.
    fn has_channels_last(&self, input: &View) -> bool {
        let channel = input.strides[3];
        (SPACE..input.shape.len()).all(|axis| input.shape[axis] == 1 || channel < input.strides[axis])
    }

    /// A padded and dilated copy of some images, with as many channels, those added being zeros.
    fn copy(&self, input: &Tensor, channels: u64, order: Order) -> Result<Tensor> {
        let lead = |channels: u64| -> Dims { input.view.shape[..3].iter().copied().chain([channels]).collect() };
        let mut config: Vec<(i64, i64, u64)> = vec![(0, 0, 0); 3];
        config.push((0, (channels - self.sizes.channels) as i64, 0));
        let space = self.op.padding.iter().zip(&self.op.input_dilation);
        config.extend(space.map(|(&(low, high), &step)| (low, high, step - 1)));
        let shape: Dims = lead(channels).into_iter().chain(self.padded_space()?).collect();
        // In memory: groups, and images or channels, before space, unless they are the innermost.
        let memory: Axes = match order {
            Order::Channels => [0, 1, 2].into_iter().chain(SPACE..shape.len()).chain([3]).collect(),
            Order::Space => (0..shape.len()).collect(),
            Order::Images => [0, 2, 3].into_iter().chain(SPACE..shape.len()).chain([1]).collect(),
        };
        self.filled(input, &config, &shape, &memory)
    }

    /// A tensor of a shape, whose axes lie in memory in the given order, with `a` among zeros.
    fn filled(&self, a: &Tensor, config: &[(i64, i64, u64)], shape: &[u64], order: &Axes) -> Result<Tensor> {
        let (dtype, engine) = (a.view.dtype, self.call.engine);
        let ordered: Dims = order.iter().map(|&axis| shape[axis]).collect();
        let along = |&axis: &usize| (a.view.shape[axis], a.view.strides[axis], config[axis]);
        let is_wide = |&&axis: &&usize| a.view.shape[axis] > 1 || shape[axis] > 1;
        let form = || format!("{dtype} along {:?}", order.iter().filter(is_wide).map(along).collect::<Vec<_>>());
        let mut back = Axes::from_elem(0, order.len());
        for (i, &axis) in order.iter().enumerate() {
            back[axis] = i;
        }
        let view = View::contiguous(dtype, &ordered).transpose(&back)?;
        let make = || {
            let memory = Tensor::uninitialized(engine, &Type::new(dtype, &ordered))?;
            let result = memory.with_view(view.clone());
            if config.iter().all(|&c| c == (0, 0, 0)) {
                copies::copy(engine, a, &result, self.call.compile)?;
            } else if !self.padded(a, config, &result)? {
                let zero = constant::constant(engine, Scalar::Int(0), &Type::new(dtype, &[]))?;
                movement::fill_around(self.call, a, &zero, config, &result)?;
            }
            Ok(smallvec![result.buffer])
        };
        let memory = engine.shared_copy(a.address(), form, make)?.pop();
        memory.map(|buffer| Tensor::at(buffer, view)).ok_or_else(|| self.call.invalid("copies to nowhere".into()))
    }

    /// Copies `a` among zeros in one launch if it has a kernel for that; answers whether it did.
    fn padded(&self, a: &Tensor, config: &[(i64, i64, u64)], to: &Tensor) -> Result<bool> {
        if config.iter().any(|&(_, _, interior)| interior > 0) {
            return Ok(false);
        }
        let element = Element::raw(a.view.dtype);
        let from = (&a.view.shape[..], &Operand::new(&a.buffer, &a.view, element));
        let into = (&to.view.shape[..], &Operand::new(&to.buffer, &to.view, element));
        let begins: SmallVec<[i64; 8]> = config.iter().map(|c| c.0).collect();
        padded_copy(self.call.engine, from, into, &begins, self.call.compile)
    }

    /// The windows of the input: a matrix of positions and contracted elements per group.
    fn positions(&self, input: Tensor, order: Order) -> Matrix {
        let rank = self.sizes.counts.len();
        let space = View {
            shape: input.view.shape[SPACE..].into(),
            strides: input.view.strides[SPACE..].into(),
            ..View::clone(&input.view)
        };
        let windows = self.sizes.windows.view(&space, &self.sizes.counts);
        let mut view = View::clone(&input.view);
        view.shape.truncate(SPACE);
        view.strides.truncate(SPACE);
        view.shape.extend(windows.shape);
        view.strides.extend(windows.strides);
        let (window, places) = (SPACE + rank..SPACE + 2 * rank, SPACE..SPACE + rank);
        Matrix {
            batch: group(&view, [0, 2]),
            free: match order {
                Order::Images => group(&view, places.chain([1])),
                Order::Channels | Order::Space => group(&view, [1].into_iter().chain(places)),
            },
            depth: match order {
                Order::Channels => group(&view, window.chain([3])),
                Order::Space | Order::Images => group(&view, [3].into_iter().chain(window)),
            },
            tensor: input.with_view(view),
        }
    }

    /// The kernel as a matrix of filters and contracted elements per group, which are those of the positions.
    fn filters(&self, channels: u64, order: Order, loads: Loads) -> Result<Matrix> {
        let view = &self.kernel.view;
        let own = self.filter_matrix(&self.kernel, order);
        let by_four = loads != Loads::Single;
        let is_near = own.depth.rank() == 1 || order == Order::Images || (order == Order::Space && by_four);
        let lies_well = is_near && (!by_four || own.is_vectorizable());
        // What writes the parts of f32 reads whatever order, and what writes others for units turns eights of filters,
        // as gradients by kernels have them: no need to turn them before.
        let is_turned = match loads {
            Loads::Planes => true,
            Loads::Own => own.loaded_along_k(8) == Some(false),
            Loads::Single | Loads::Four => false,
        };
        if channels == self.sizes.channels && is_ascending(view) && (lies_well || is_turned) {
            return Ok(own);
        }
        let mut config = vec![(0, 0, 0); view.shape.len()];
        config[2].1 = (channels - self.sizes.channels) as i64;
        let mut shape = view.shape.clone();
        shape[2] = channels;
        let memory: Axes = [0, 1].into_iter().chain(self.filter_depth(order)).collect();
        Ok(self.filter_matrix(&self.filled(&self.kernel, &config, &shape, &memory)?, order))
    }

    /// The kernel's contracted axes.
    fn filter_depth(&self, order: Order) -> Axes {
        let window = 3..self.kernel.view.shape.len();
        match order {
            Order::Channels => window.chain([2]).collect(),
            Order::Space | Order::Images => [2].into_iter().chain(window).collect(),
        }
    }

    fn filter_matrix(&self, kernel: &Tensor, order: Order) -> Matrix {
        Matrix {
            batch: group(&kernel.view, [0]),
            free: group(&kernel.view, [1]),
            depth: group(&kernel.view, self.filter_depth(order)),
            tensor: kernel.clone(),
        }
    }
}

/// Some of the elements along an axis.
fn slice(tensor: &Tensor, axis: usize, first: u64, count: u64) -> Result<Tensor> {
    let mut starts = Dims::from_elem(0, tensor.view.shape.len());
    let mut lengths = tensor.view.shape.clone();
    (starts[axis], lengths[axis]) = (first, count);
    let view = tensor.view.slice(&starts, &lengths, &Dims::from_elem(1, starts.len()))?;
    Ok(tensor.with_view(view))
}
