//! A matrix whose elements a product computes from several operands as it needs them, each once: it lies nowhere.

use nx_vulkan_ir::program::epilogue::DERIVED_TOGETHER;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Layout};
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{dtype_of, find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::loads::{following, groups};
use crate::kernels::map::Port;

/// How neighbours of the matrix are computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DerivedSpec {
    pub inputs: SmallVec<[Port; 3]>,
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
    /// Where the axes of the matrix's elements begin among those of the kernel.
    pub axis: u8,
    /// How many of these make up its rows, and the contracted elements.
    pub ranks: [u8; 2],
    /// Whether eights are neighbours along the last axis, and not fours alone.
    pub by_eights: bool,
    /// Whether the last axis ends with what are neighbours, so that their indices along it are known.
    pub is_short: bool,
}

impl DerivedSpec {
    /// The elements of four or eight neighbours in a row, as f32, from a contracted one on that is a multiple of as many.
    /// Its operands are those of the kernel from `first` on. What depends on the row alone, or on the contracted element
    /// alone, is computed of it alone, so that rows share it.
    pub(super) fn neighbours(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        first: u8,
        [row, depth]: [Word; 2],
    ) -> Result<SmallVec<[Word; 8]>> {
        let [rows, contracted] = self.ranks;
        let mut coordinates = access::coordinates(code, params, row, self.axis, rows)?;
        coordinates.extend(access::coordinates(code, params, depth, self.axis + rows, contracted)?);
        if let Some(last) = coordinates.last_mut().filter(|_| self.is_short) {
            *last = code.linker.const_u32(0);
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
        let mut lanes: SmallVec<[Lane; 8]> = SmallVec::new();
        for j in 0..self.together() as u32 {
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

    /// Neighbours that are computed at once.
    pub(super) fn together(&self) -> u64 {
        if self.by_eights { 2 * DERIVED_TOGETHER } else { DERIVED_TOGETHER }
    }

    /// The elements of an operand for each of the neighbours.
    fn load(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        Port { element, layout }: Port,
        lanes: &[Lane],
    ) -> Result<SmallVec<[Word; 8]>> {
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
                let width = DERIVED_TOGETHER as u32;
                let at = at(code, &lanes[0])?;
                let first = groups(code, at, width);
                let mut loaded = SmallVec::new();
                for k in 0..lanes.len() as u32 / width {
                    let group = following(code, first, k);
                    loaded.extend(access::load_vector(code, address, element, width, group)?);
                }
                Ok(loaded)
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
