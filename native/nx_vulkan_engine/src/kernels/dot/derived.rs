//! A matrix whose elements a product computes from several operands as it needs them, each once: it lies nowhere.

use nx_vulkan_ir::program::epilogue::DERIVED_TOGETHER;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element, Layout};
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{dtype_of, find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::takes_eights;
use crate::Tensor;
use crate::kernels::Place;
use crate::kernels::map::Port;
use crate::program::fused::{Made, Plan};
use crate::shape::{Dims, Space, Strides};

/// How four neighbours of the matrix are computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DerivedSpec {
    pub inputs: SmallVec<[Port; 3]>,
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
    /// Where the axes of the matrix's elements begin among those of the kernel.
    pub axis: u8,
    /// How many of these make up its rows, and the contracted elements.
    pub ranks: [u8; 2],
}

/// The same with the operands, which have strides along axes that make up the matrix in the order of its elements.
#[derive(Debug)]
pub struct Derived {
    loads: SmallVec<[Tensor; 3]>,
    space: Space,
    spec: DerivedSpec,
}

impl Derived {
    /// What a plan of a map computes of tensors that have the shape of its space, as a matrix of so many rows; `None`
    /// where no axis of the space begins at the end of a row, neighbours along its last axis are no groups, or an operand
    /// runs backwards.
    pub fn of(plan: &Plan, rows: u64, loads: SmallVec<[Tensor; 3]>) -> Option<Derived> {
        let step = |made: &Made| match made {
            Made::Step(step) => Some(step.clone()),
            Made::Reduction { .. } => None,
        };
        let mut steps: SmallVec<[Step; 1]> =
            plan.values.iter().map(|value| step(&value.made)).collect::<Option<_>>()?;
        let mut result = plan.stores.first()?.value;
        let sizes = &plan.space[..];
        let cut = (0..=sizes.len()).find(|&cut| sizes[..cut].iter().product::<u64>() == rows)?;
        let refs = || steps.iter().flat_map(|step| &step.args).chain([&result]);
        let counted: SmallVec<[usize; 6]> = refs().filter_map(axis_of).collect();
        let mut space = Space { sizes: Dims::new(), strides: SmallVec::from_elem(Strides::new(), loads.len()) };
        let mut places: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        let parts = [0..cut, cut..sizes.len()].map(|part| {
            let strides: SmallVec<[&[i64]; 3]> = loads.iter().map(|load| &load.view.strides[part.clone()]).collect();
            let own: SmallVec<[usize; 6]> =
                counted.iter().filter_map(|&axis| part.contains(&axis).then(|| axis - part.start)).collect();
            let (merged, found) = Space::keeping(&sizes[part.clone()], &strides, &own);
            let before = space.sizes.len();
            places.extend(own.iter().zip(found).map(|(&axis, place)| (part.start + axis, before + place)));
            space.sizes.extend_from_slice(&merged.sizes);
            space.strides.iter_mut().zip(&merged.strides).for_each(|(all, own)| all.extend_from_slice(own));
            merged.sizes
        });
        for r in steps.iter_mut().flat_map(|step| &mut step.args).chain([&mut result]) {
            let place = axis_of(r).and_then(|axis| places.iter().find(|(counted, _)| *counted == axis));
            if let (Ref::Coordinate(axis), Some((_, place))) = (r, place) {
                *axis = *place as u8;
            }
        }
        let [_, depth] = &parts;
        let together =
            if takes_eights(plan.stores.first()?.ty.dtype) { 2 * DERIVED_TOGETHER } else { DERIVED_TOGETHER };
        let are_groups = depth.last().is_some_and(|n| n.is_multiple_of(together));
        if !are_groups || space.strides.iter().flatten().any(|&stride| stride < 0) {
            return None;
        }
        let inputs = loads.iter().zip(&space.strides).map(|(load, strides)| port(load, strides)).collect();
        let spec = DerivedSpec { inputs, steps, result, axis: 0, ranks: parts.map(|sizes| sizes.len() as u8) };
        Some(Derived { loads, space, spec })
    }

    /// The sizes of its axes.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.space.sizes
    }

    /// How it is computed by a kernel that has so many axes before its own, and the strides of its operands there.
    pub(super) fn behind(&self, before: usize) -> (DerivedSpec, SmallVec<[Strides; 3]>) {
        let strides = self.space.strides.iter();
        let strides = strides.map(|s| std::iter::repeat_n(0, before).chain(s.iter().copied()).collect()).collect();
        (DerivedSpec { axis: before as u8, ..self.spec.clone() }, strides)
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

/// The axis whose index it is.
fn axis_of(r: &Ref) -> Option<usize> {
    if let Ref::Coordinate(axis) = r { Some(usize::from(*axis)) } else { None }
}

/// How an operand is loaded for neighbours along the last axis.
fn port(load: &Tensor, strides: &[i64]) -> Port {
    let element = Element::Typed(load.view.dtype);
    let (last, others) = strides.split_last().map_or((0, &[][..]), |(&last, others)| (last, others));
    let whole = || {
        others.iter().all(|s| s.unsigned_abs().is_multiple_of(DERIVED_TOGETHER))
            && load.address().is_multiple_of(DERIVED_TOGETHER * u64::from(element.size_bytes()))
            && u64::from(element.max_width()) >= DERIVED_TOGETHER
    };
    let layout = match last {
        _ if strides.iter().all(|&stride| stride == 0) => Layout::Uniform,
        0 => Layout::Repeated,
        1 if whole() => Layout::Inner,
        _ => Layout::Each,
    };
    Port { element, layout }
}

impl DerivedSpec {
    /// The elements of four neighbours in a row, as f32, from one on that is so many behind a contracted one, where both
    /// fours of eight are neighbours along the last axis. Its operands are those of the kernel from `first` on. What
    /// depends on the row alone, or on the contracted element alone, is computed of it alone, so that rows and fours
    /// share it.
    pub(super) fn four(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        first: u8,
        [row, depth, behind]: [Word; 3],
    ) -> Result<SmallVec<[Word; 4]>> {
        let [rows, contracted] = self.ranks;
        let mut coordinates = access::coordinates(code, params, row, self.axis, rows)?;
        coordinates.extend(access::coordinates(code, params, depth, self.axis + rows, contracted)?);
        let depth = code.u32_op(SpirvOp::IAdd, depth, behind);
        if let Some(last) = coordinates.last_mut() {
            *last = code.u32_op(SpirvOp::IAdd, *last, behind);
        }
        let linear =
            match self.steps.iter().flat_map(|step| &step.args).chain([&self.result]).any(|r| *r == Ref::Linear) {
                true => {
                    let length = code.param(params.word(CONTRACTED))?;
                    let begin = code.u32_op(SpirvOp::IMul, row, length);
                    code.u32_op(SpirvOp::IAdd, begin, depth)
                }
                false => depth,
            };
        let mut lanes: SmallVec<[Lane; 4]> = SmallVec::new();
        for j in 0..DERIVED_TOGETHER as u32 {
            let mut lane = Lane { linear, coordinates: coordinates.clone(), values: SmallVec::new() };
            if j > 0 {
                let j = code.linker.const_u32(j);
                for index in lane.coordinates.last_mut().into_iter().chain([&mut lane.linear]) {
                    *index = code.u32_op(SpirvOp::IAdd, *index, j);
                }
            }
            lanes.push(lane);
        }
        for (operand, port) in (first..).zip(&self.inputs) {
            let dtype = dtype_of(port.element);
            let ids = self.load(code, params, operand, *port, &lanes)?;
            lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.values.push(Value { id, dtype }));
        }
        let compute = |lane: &Lane| {
            let Lane { linear, coordinates, values } = lane;
            let results = run_steps(code, &self.steps, values, *linear, coordinates)?;
            let value = find(code, self.result, values, &results, *linear, coordinates)?;
            scalar::cast(code, value, DType::F32)
        };
        lanes.iter().map(compute).collect()
    }

    /// The elements of an operand for each of the neighbours.
    fn load(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        Port { element, layout }: Port,
        lanes: &[Lane],
    ) -> Result<SmallVec<[Word; 4]>> {
        let address = params.address(operand);
        let mut at = |code: &mut Code<'_, '_>, lane: &Lane| match layout {
            Layout::Uniform => Ok(code.linker.const_u32(0)),
            _ => access::position(code, params, operand, self.axis, &lane.coordinates),
        };
        match layout {
            Layout::Uniform | Layout::Repeated => {
                let at = at(code, &lanes[0])?;
                Ok(SmallVec::from_elem(access::load(code, address, element, at)?, lanes.len()))
            }
            Layout::Inner => {
                let (at, count) = (at(code, &lanes[0])?, code.linker.const_u32(DERIVED_TOGETHER as u32));
                let group = code.u32_op(SpirvOp::UDiv, at, count);
                access::load_vector(code, address, element, DERIVED_TOGETHER as u32, group)
            }
            _ => lanes
                .iter()
                .map(|lane| at(code, lane).and_then(|at| access::load(code, address, element, at)))
                .collect(),
        }
    }
}

/// The parameter that says how many elements are contracted.
const CONTRACTED: Param = Param::Extra(2);

/// One of the neighbours: where it is, and the elements of operands there.
struct Lane {
    linear: Word,
    coordinates: SmallVec<[Word; 6]>,
    values: SmallVec<[Value; 4]>,
}
