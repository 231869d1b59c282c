//! Convolutions as batched matrix products. The windows of the input are a view of it with many axes, which the product reads
//! in place. What is padded, dilated or too scattered is copied first, with its channels innermost.

use smallvec::SmallVec;

use super::dot::{self, Then};
use super::{Call, constant, movement};
use crate::kernel::launch::dot::{Group, Matrix, Product, product};
use crate::kernel::launch::max_position;
use crate::program::conv::{Conv, Sizes};
use crate::program::op::{Axes, Scalar};
use crate::shape::{Dims, elements};
use crate::{CType, Result, Tensor, Type, View};

/// Most bytes that a padded copy of the input takes, unless a single image takes more.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// Multiplications and filters from which a copy pays that lets the product load four elements at a time.
const MIN_COPY_WORK: u64 = 1 << 17;
const MIN_COPY_FILTERS: u64 = 16;

/// Axes of the split input: batch group, image, feature group, channel, then space.
const SPACE: usize = 4;

/// The convolution, or what follows it.
pub fn conv(call: &Call<'_>, op: &Conv, then: Option<&Then>) -> Result<Tensor> {
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
    let plan = Plan {
        call,
        op,
        then,
        inputs: inputs.iter().map(split_output).collect::<Result<_>>()?,
        input: split(call, input, &op.input_axes, &[&lead, &sizes.space[..]])?,
        kernel: split(call, kernel, &op.kernel_axes, &[&filters, &[sizes.channels], &sizes.windows.sizes[..]])?,
        sizes: &sizes,
    };
    plan.run(&split_output(&result)?)?;
    Ok(result)
}

/// The tensor with its axes permuted, then split to the concatenated shape.
fn split(call: &Call<'_>, tensor: &Tensor, axes: &Axes, shape: &[&[u64]]) -> Result<Tensor> {
    let shape = shape.concat();
    let view = tensor.view.transpose(axes)?.reshape(&shape);
    let view = view.ok_or_else(|| call.invalid(format!("{:?} does not split to {shape:?}", tensor.view.shape)))?;
    Ok(Tensor { buffer: tensor.buffer.clone(), view })
}

/// Some axes of a view as one.
fn group(view: &View, axes: impl IntoIterator<Item = usize>) -> Group {
    let (sizes, strides): (Dims, SmallVec<[i64; 6]>) =
        axes.into_iter().map(|axis| (view.shape[axis], view.strides[axis])).unzip();
    Group::new(&sizes, &strides)
}

fn is_ascending(view: &View) -> bool {
    view.strides.iter().all(|&stride| stride >= 0)
}

/// One convolution: the split input, and the kernel as groups, filters, channels and space.
struct Plan<'c> {
    call: &'c Call<'c>,
    op: &'c Conv,
    sizes: &'c Sizes,
    input: Tensor,
    kernel: Tensor,
    /// Steps after the convolution, and what they read, split as its results are.
    then: Option<&'c Then>,
    inputs: Vec<Tensor>,
}

impl Plan<'_> {
    /// Fills `output`, whose axes are images, groups, filters and space.
    fn run(&self, output: &Tensor) -> Result<()> {
        let unpadded = self.unpadded()?;
        let depth = self.sizes.channels * elements(&self.sizes.windows.sizes);
        let work = output.view.elements().saturating_mul(depth);
        let by_four = matches!(self.call.out.dtype.ctype(), CType::F32 | CType::F64)
            && self.sizes.channels >= 3
            && self.sizes.filters >= MIN_COPY_FILTERS
            && work >= MIN_COPY_WORK;
        let in_place = unpadded.filter(|input| {
            let channels_last = self.has_channels_last(&input.view);
            !by_four || self.positions(input.clone(), channels_last).is_vectorizable()
        });
        let channels_last = match &in_place {
            Some(input) => self.has_channels_last(&input.view),
            None => self.sizes.channels > 1,
        };
        // Channels of zeros make whole groups of four.
        let channels = match &in_place {
            None if by_four => self.sizes.channels.next_multiple_of(4),
            _ => self.sizes.channels,
        };
        let results = (output.view.elements() / self.sizes.images).max(output.view.strides[0].unsigned_abs());
        let limit = max_position(self.input.view.dtype.size_bytes());
        let step = match &in_place {
            Some(input) => limit / results.max(input.view.strides[1].unsigned_abs()),
            None => {
                let copied = self.op.groups() * channels * elements(&self.padded_space()?);
                let bytes = copied * self.input.view.dtype.size_bytes();
                (limit / results.max(copied)).min(MAX_COPY_BYTES / bytes)
            }
        };
        let step = step.clamp(1, self.sizes.images);
        for first in (0..self.sizes.images).step_by(step as usize) {
            let count = step.min(self.sizes.images - first);
            let input = match &in_place {
                Some(input) => slice(input, 1, first, count)?,
                None => self.copy(&slice(&self.input, 1, first, count)?, channels, channels_last)?,
            };
            let positions = self.positions(input, channels_last);
            let filters = self.filters(channels, channels_last, by_four)?;
            let output = slice(output, 0, first, count)?;
            let space = 3..output.view.shape.len();
            // Whichever axis of the result is contiguous is that of the columns.
            let filters_last = output.view.strides[2] == 1;
            let order: Axes = match filters_last {
                true => [1, 0].into_iter().chain(space).chain([2]).collect(),
                false => [1, 2, 0].into_iter().chain(space).collect(),
            };
            let out = &Tensor { view: output.view.transpose(&order)?, buffer: output.buffer };
            let (a, b) = if filters_last { (positions, filters) } else { (filters, positions) };
            let view = |t: &Tensor| slice(t, 0, first, count)?.view.transpose(&order);
            let views = self.inputs.iter().map(view).collect::<Result<Vec<_>>>()?;
            let operands = dot::operands(&self.inputs, &views);
            let epilogue = self.then.map(|t| t.epilogue(self.call.out.dtype, &operands));
            product(self.call.engine, &Product { a, b, out, epilogue }, self.call.compile)?;
        }
        Ok(())
    }

    fn padded_space(&self) -> Result<Dims> {
        let dilated = self.op.dilated(&self.sizes.space).and_then(|space| self.sizes.windows.padded(&space));
        dilated.map_err(|reason| self.call.invalid(reason))
    }

    /// The input without what padding cuts off, if nothing is added to it.
    fn unpadded(&self) -> Result<Option<Tensor>> {
        let cuts_only = self.op.padding.iter().all(|&(low, high)| low <= 0 && high <= 0);
        let dense = self.op.input_dilation.iter().zip(&self.sizes.space).all(|(&step, &size)| step == 1 || size == 1);
        if !cuts_only || !dense || !is_ascending(&self.input.view) {
            return Ok(None);
        }
        let view = &self.input.view;
        let starts: Dims = [0; SPACE].into_iter().chain(self.op.padding.iter().map(|p| p.0.unsigned_abs())).collect();
        let lengths: Dims = view.shape[..SPACE].iter().copied().chain(self.padded_space()?).collect();
        let view = view.slice(&starts, &lengths, &Dims::from_elem(1, starts.len()))?;
        Ok(Some(Tensor { buffer: self.input.buffer.clone(), view }))
    }

    /// Whether channels lie closer together than elements along any spatial axis.
    fn has_channels_last(&self, input: &View) -> bool {
        let channel = input.strides[3];
        (SPACE..input.shape.len()).all(|axis| input.shape[axis] == 1 || channel < input.strides[axis])
    }

    /// A padded and dilated copy of some images, with as many channels, those added being zeros.
    fn copy(&self, input: &Tensor, channels: u64, channels_last: bool) -> Result<Tensor> {
        let lead = |channels: u64| -> Dims { input.view.shape[..3].iter().copied().chain([channels]).collect() };
        let mut config: Vec<(i64, i64, u64)> = vec![(0, 0, 0); 3];
        config.push((0, (channels - self.sizes.channels) as i64, 0));
        let space = self.op.padding.iter().zip(&self.op.input_dilation);
        config.extend(space.map(|(&(low, high), &step)| (low, high, step - 1)));
        let shape: Dims = lead(channels).into_iter().chain(self.padded_space()?).collect();
        // In memory: groups and images, then space and channels, or channels and space.
        let order: Axes = match channels_last {
            true => [0, 1, 2].into_iter().chain(SPACE..shape.len()).chain([3]).collect(),
            false => (0..shape.len()).collect(),
        };
        self.filled(input, &config, &shape, &order)
    }

    /// A tensor of a shape, whose axes lie in memory in the given order, with `a` among zeros.
    fn filled(&self, a: &Tensor, config: &[(i64, i64, u64)], shape: &[u64], order: &Axes) -> Result<Tensor> {
        let dtype = a.view.dtype;
        let ordered: Dims = order.iter().map(|&axis| shape[axis]).collect();
        let memory = Tensor::uninitialized(self.call.engine, &Type::new(dtype, &ordered))?;
        let mut back = Axes::from_elem(0, order.len());
        for (i, &axis) in order.iter().enumerate() {
            back[axis] = i;
        }
        let result = Tensor { view: memory.view.transpose(&back)?, buffer: memory.buffer };
        if a.view.shape == result.view.shape && config.iter().all(|&c| c == (0, 0, 0)) {
            movement::copy(self.call.engine, a, &result, self.call.compile)?;
        } else {
            let zero = constant::constant(self.call.engine, Scalar::Int(0), &Type::new(dtype, &[]))?;
            movement::fill_around(self.call, a, &zero, config, &result)?;
        }
        Ok(result)
    }

    /// The windows of the input: a matrix of positions and contracted elements per group.
    fn positions(&self, input: Tensor, channels_last: bool) -> Matrix {
        let rank = self.sizes.counts.len();
        let space = View {
            shape: input.view.shape[SPACE..].into(),
            strides: input.view.strides[SPACE..].into(),
            ..input.view.clone()
        };
        let windows = self.sizes.windows.view(&space, &self.sizes.counts);
        let mut view = input.view.clone();
        view.shape.truncate(SPACE);
        view.strides.truncate(SPACE);
        view.shape.extend(windows.shape);
        view.strides.extend(windows.strides);
        let window = SPACE + rank..SPACE + 2 * rank;
        Matrix {
            batch: group(&view, [0, 2]),
            free: group(&view, [1].into_iter().chain(SPACE..SPACE + rank)),
            depth: match channels_last {
                true => group(&view, window.chain([3])),
                false => group(&view, [3].into_iter().chain(window)),
            },
            tensor: Tensor { view, buffer: input.buffer },
        }
    }

    /// The kernel as a matrix of filters and contracted elements per group, which are those of the positions.
    fn filters(&self, channels: u64, channels_last: bool, by_four: bool) -> Result<Matrix> {
        let view = &self.kernel.view;
        let window = 3..view.shape.len();
        let depth: Axes = match channels_last {
            true => window.chain([2]).collect(),
            false => [2].into_iter().chain(window).collect(),
        };
        let matrix = |tensor: Tensor| Matrix {
            batch: group(&tensor.view, [0]),
            free: group(&tensor.view, [1]),
            depth: group(&tensor.view, depth.iter().copied()),
            tensor,
        };
        let own = matrix(self.kernel.clone());
        if channels == self.sizes.channels
            && is_ascending(view)
            && own.depth.rank() == 1
            && (!by_four || own.is_vectorizable())
        {
            return Ok(own);
        }
        let mut config = vec![(0, 0, 0); view.shape.len()];
        config[2].1 = (channels - self.sizes.channels) as i64;
        let mut shape = view.shape.clone();
        shape[2] = channels;
        let order: Axes = [0, 1].into_iter().chain(depth.iter().copied()).collect();
        Ok(matrix(self.filled(&self.kernel, &config, &shape, &order)?))
    }
}

/// Some of the elements along an axis.
fn slice(tensor: &Tensor, axis: usize, first: u64, count: u64) -> Result<Tensor> {
    let mut starts = Dims::from_elem(0, tensor.view.shape.len());
    let mut lengths = tensor.view.shape.clone();
    (starts[axis], lengths[axis]) = (first, count);
    let view = tensor.view.slice(&starts, &lengths, &Dims::from_elem(1, starts.len()))?;
    Ok(Tensor { buffer: tensor.buffer.clone(), view })
}
