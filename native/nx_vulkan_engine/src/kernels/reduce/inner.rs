//! Launches of products of vectors, or of a matrix and a vector: reductions of the elements' products.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_spirv::steps::dtype_of;
use smallvec::SmallVec;

use super::launch::{Target, layout};
use super::stages::Stages;
use super::{ReduceEpilogue, ReduceSpec, Stage};
use crate::kernels::dot::Epilogue;
use crate::kernels::{Compile, Place};
use crate::program::Reduction;
use crate::shape::{Space, Strides};
use crate::{DType, Engine, Result};

/// One of two operands: its strides along the kept axes, then along those summed over.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    pub buffer: &'a Arc<Buffer>,
    pub address: u64,
    pub dtype: DType,
    pub kept: &'a [i64],
    pub summed: &'a [i64],
}

/// Steps on results of a shape, which give others of type `out`.
#[derive(Debug, Clone, Copy)]
pub struct Finish<'a> {
    pub epilogue: &'a Epilogue<'a>,
    pub shape: &'a [u64],
    pub out: DType,
}

/// Sums the products of elements over some axes, into a contiguous result of `dtype`, or of what `finish` makes of it,
/// in the order of the kept ones, by kernels that reach far if they must. The first factor's layout says which way to
/// walk.
#[allow(clippy::too_many_arguments)]
pub fn inner<'a>(
    engine: &Engine,
    [a, b]: [Factor<'a>; 2],
    [kept, summed]: [&[u64]; 2],
    out: Target<'_>,
    dtype: DType,
    finish: Option<Finish<'_>>,
    far: bool,
    compile: Compile,
) -> Result<()> {
    let (kept, summed) = (Space::new(kept, &[a.kept, b.kept]), Space::new(summed, &[a.summed, b.summed]));
    let aligned = a.dtype == b.dtype && a.address.is_multiple_of(16) && b.address.is_multiple_of(16);
    let layout = layout(&kept, &summed, a.dtype, aligned, engine.model());
    let further = finish.map_or(&[][..], |finish| finish.epilogue.inputs);
    let results = finish.map(|finish| {
        let strides: SmallVec<[&[i64]; 4]> = further.iter().map(|operand| &operand.strides[..]).collect();
        Space::new(finish.shape, &strides)
    });
    let epilogue = finish.zip(results.as_ref()).map(|(finish, space)| {
        Box::new(ReduceEpilogue {
            inputs: further.iter().map(|operand| dtype_of(operand.element)).collect(),
            steps: finish.epilogue.steps.into(),
            results: SmallVec::from_elem((finish.epilogue.result, finish.out), 1),
            rank: space.rank() as u8,
        })
    });
    let spec = ReduceSpec {
        reducers: SmallVec::from_elem(
            Reducer { reduction: Reduction::Sum, tie_high: false, input: a.dtype, out: dtype },
            1,
        ),
        times: Some(b.dtype),
        producer: None,
        epilogue,
        stage: Stage::Whole,
        direction: layout.direction,
        kept_rank: kept.rank() as u8,
        reduced_rank: summed.rank() as u8,
        paired: layout.paired,
    };
    let strides = [0, 1].map(|k| -> Strides { kept.strides[k].iter().chain(&summed.strides[k]).copied().collect() });
    let place = |k: usize, factor: &Factor<'a>| Place {
        buffer: factor.buffer,
        address: factor.address,
        strides: &strides[k],
        element_bytes: factor.dtype.size_bytes(),
    };
    let further: SmallVec<[Place<'_>; 4]> = further
        .iter()
        .zip(results.iter().flat_map(|space| &space.strides))
        .map(|(operand, strides)| Place {
            buffer: operand.buffer,
            address: operand.address(),
            strides,
            element_bytes: operand.element.size_bytes().into(),
        })
        .collect();
    let address = out.buffer.address() + out.offset_bytes;
    let stages = Stages {
        spec,
        layout: &layout,
        axes: [1, 1],
        sizes: [&kept.sizes, &summed.sizes],
        operands: &[place(0, &a), place(1, &b)],
        results: results.as_ref().map_or(&[], |space| &space.sizes),
        further: &further,
        targets: &[Place { buffer: out.buffer, address, strides: &[], element_bytes: 0 }],
        far,
    };
    stages.run(engine, compile)
}
