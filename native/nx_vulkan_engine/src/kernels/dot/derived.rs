//! A matrix whose elements a product computes from several operands as it needs them, each once: it lies nowhere.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element, Layout, Port};
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{dtype_of, find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::loads::{following, groups};

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
    /// How neighbours that are computed at once lie along the last axes, the last one first.
    pub spans: SmallVec<[Span; 2]>,
    /// For each operand the first one that has its strides, so that places are found once.
    pub alike: SmallVec<[u8; 4]>,
    /// How each operand lies along those.
    pub lies: SmallVec<[SmallVec<[Spread; 2]>; 3]>,
}

/// What neighbours take of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub count: u8,
    /// Whether that is the whole axis, so that indices along it are known.
    pub is_whole: bool,
}

impl Span {
    /// What so many neighbours take of axes, the last one first; `None` where they are no part of them.
    pub(super) fn of(sizes: &[u64], together: u64) -> Option<SmallVec<[Span; 2]>> {
        let mut spans = SmallVec::new();
        let mut rest = together;
        for &size in sizes.iter().rev() {
            if rest == 1 {
                break;
            }
            let count = if size.is_multiple_of(rest) { rest } else { size };
            spans.push(Span { count: count as u8, is_whole: count == size });
            rest = rest.checked_div(count).filter(|next| next * count == rest)?;
        }
        (rest == 1).then_some(spans)
    }
}

/// How an operand lies along an axis for neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spread {
    /// One element serves all.
    Same,
    /// Groups of so many lie one element behind the other, where one load takes them.
    Near(u8),
    /// Each somewhere else.
    Apart,
}

impl DerivedSpec {
    /// The elements of neighbours in a row, as f32, from a contracted one on that is a multiple of as many. Its
    /// operands are those of the kernel from `first` on. What depends on the row alone, or on the contracted element
    /// alone, is computed of it alone, so that rows share it.
    pub(super) fn neighbours(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        first: u8,
        at: [Word; 2],
    ) -> Result<SmallVec<[Word; 16]>> {
        let lanes = self.lanes(code, params, first, at)?;
        // Sums that begin with 0 know no sign of a zero that is added.
        code.linker.any_zero = self.steps.iter().all(forgets_signs);
        let compute = |lane: &Lane| {
            let value = self.computed(code, lane)?;
            scalar::cast(code, value, DType::F32)
        };
        let computed = lanes.iter().map(compute).collect();
        code.linker.any_zero = false;
        computed
    }

    /// What steps give of a neighbour.
    pub(super) fn computed(&self, code: &mut Code<'_, '_>, lane: &Lane) -> Result<Value> {
        self.value_of(code, lane, self.result)
    }

    /// What a value is of a neighbour.
    pub(super) fn value_of(&self, code: &mut Code<'_, '_>, lane: &Lane, value: Ref) -> Result<Value> {
        let Lane { linear, coordinates, values } = lane;
        let results = match value {
            Ref::Result(_) => run_steps(code, &self.steps, values, *linear, coordinates)?,
            _ => SmallVec::new(),
        };
        find(code, value, values, &results, *linear, coordinates)
    }

    /// Neighbours of which those operands are loaded that count.
    pub(super) fn lanes(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        first: u8,
        [row, depth]: [Word; 2],
    ) -> Result<SmallVec<[Lane; 16]>> {
        let [rows, contracted] = self.ranks;
        let mut coordinates = access::coordinates(code, params, row, self.axis, rows)?;
        coordinates.extend(access::coordinates(code, params, depth, self.axis + rows, contracted)?);
        for (coordinate, span) in coordinates.iter_mut().rev().zip(&self.spans) {
            if span.is_whole {
                *coordinate = code.linker.const_u32(0);
            }
        }
        let linear = match self.reads(Ref::Linear) {
            true => {
                let length = code.param(params.word(CONTRACTED))?;
                let begin = code.u32_op(SpirvOp::IMul, row, length);
                code.u32_op(SpirvOp::IAdd, begin, depth)
            }
            false => depth,
        };
        let mut lanes: SmallVec<[Lane; 16]> = SmallVec::new();
        for j in 0..self.together() {
            let places = self.places_of(j);
            let mut lane =
                Lane { linear: following(code, linear, j), coordinates: coordinates.clone(), values: SmallVec::new() };
            for (coordinate, &place) in lane.coordinates.iter_mut().rev().zip(&places) {
                *coordinate = following(code, *coordinate, place);
            }
            lanes.push(lane);
        }
        for ((k, port), lies) in (0..).zip(&self.inputs).zip(&self.lies) {
            let dtype = dtype_of(port.element);
            let ids = match self.reads(Ref::Input(k)) {
                true => {
                    let places = first + self.first_alike(k);
                    code.linker.unwritten = true;
                    let loaded = self.load(code, params, [first + k, places], (*port, lies), &lanes);
                    code.linker.unwritten = false;
                    loaded?
                }
                false => SmallVec::from_elem(code.linker.const_u32(0), lanes.len()),
            };
            lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.values.push(Value { id, dtype }));
        }
        Ok(lanes)
    }

    /// The bytes of an operand for eight neighbours as two words, where groups of four lie near each other, or one byte
    /// for all.
    pub(super) fn words(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        first: u8,
        k: u8,
        lanes: &[Lane],
    ) -> Result<SmallVec<[Word; 2]>> {
        let operand = first + k;
        let (address, lies) = (params.address(operand), self.lies.get(usize::from(k)));
        let places = first + self.first_alike(k);
        let is_eight = lies.is_some_and(|lies| lies.contains(&Spread::Near(8)));
        let mut words = SmallVec::new();
        for lane in lanes.iter().step_by(if is_eight { 8 } else { 4 }) {
            let mut coordinates = lane.coordinates.clone();
            for (coordinate, along) in coordinates.iter_mut().rev().zip(lies.into_iter().flatten()) {
                if *along == Spread::Same {
                    *coordinate = code.linker.const_u32(0);
                }
            }
            let at = access::position(code, params, places, self.axis, &coordinates)?;
            let (group, width) = if is_eight { (groups(code, at, 8), 2) } else { (groups(code, at, 4), 1) };
            code.linker.unwritten = true;
            let loaded = match width {
                1 => access::load(code, address, Element::Raw(4), group).map(|word| SmallVec::from_slice(&[word])),
                _ => access::load_vector(code, address, Element::Raw(4), width, group),
            };
            code.linker.unwritten = false;
            words.extend(loaded?);
        }
        Ok(words)
    }

    /// The first operand that has the strides of operand `k`.
    fn first_alike(&self, k: u8) -> u8 {
        self.alike.get(usize::from(k)).copied().unwrap_or(k)
    }

    /// Whether a step, or the result, is this.
    pub(super) fn reads(&self, what: Ref) -> bool {
        self.steps.iter().flat_map(|step| &step.args).chain([&self.result]).any(|r| *r == what)
    }

    /// Neighbours that are computed at once.
    pub(super) fn together(&self) -> u32 {
        self.spans.iter().map(|span| u32::from(span.count)).product()
    }

    /// Where one of the neighbours is along the axes of the spans, behind the first of them.
    pub(super) fn places_of(&self, mut neighbour: u32) -> SmallVec<[u32; 2]> {
        let mut place = |span: &Span| {
            let count = u32::from(span.count);
            let place = neighbour % count;
            neighbour /= count;
            place
        };
        self.spans.iter().map(&mut place).collect()
    }

    /// The elements of an operand for each of the neighbours: each is loaded once, with those that are near it. It lies
    /// as the second operand.
    fn load(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        [operand, places]: [u8; 2],
        (Port { element, layout }, lies): (Port, &[Spread]),
        lanes: &[Lane],
    ) -> Result<SmallVec<[Word; 16]>> {
        let address = params.address(operand);
        if layout == Layout::Uniform {
            let zero = code.linker.const_u32(0);
            return Ok(SmallVec::from_elem(access::load(code, address, element, zero)?, lanes.len()));
        }
        let width = lies.iter().find_map(|along| if let Spread::Near(width) = *along { Some(width) } else { None });
        let width = u32::from(width.unwrap_or(1));
        let mut loaded: SmallVec<[Loaded; 4]> = SmallVec::new();
        let mut ids = SmallVec::new();
        for (lane, neighbour) in lanes.iter().zip(0..) {
            let mut within = 0;
            // The group of elements that one load takes.
            let group = self.places_of(neighbour).into_iter().zip(lies).map(|(place, along)| match along {
                Spread::Same => 0,
                Spread::Near(_) => {
                    within = place % width;
                    place / width
                }
                Spread::Apart => place,
            });
            let group: SmallVec<[u32; 2]> = group.collect();
            let known = match loaded.iter().position(|other| other.group == group) {
                Some(known) => known,
                None => {
                    let mut coordinates = lane.coordinates.clone();
                    for (coordinate, along) in coordinates.iter_mut().rev().zip(lies) {
                        if *along == Spread::Same {
                            *coordinate = code.linker.const_u32(0);
                        }
                    }
                    let at = access::position(code, params, places, self.axis, &coordinates)?;
                    let elements = match width {
                        1 => SmallVec::from_slice(&[access::load(code, address, element, at)?]),
                        _ => near(code, address, element, (at, width))?,
                    };
                    loaded.push(Loaded { group, elements });
                    loaded.len() - 1
                }
            };
            ids.extend(loaded.get(known).and_then(|of| of.elements.get(within as usize)).copied());
        }
        Ok(ids)
    }
}

/// Whether all results of an op are the same numbers, signs of zeros aside, whatever signs the zeros have that it
/// takes.
fn forgets_signs(step: &Step) -> bool {
    match step.op {
        Elementwise::AsType | Elementwise::Select => true,
        Elementwise::Binary(op) => matches!(
            op,
            Binary::Add
                | Binary::Subtract
                | Binary::Multiply
                | Binary::BitwiseAnd
                | Binary::BitwiseOr
                | Binary::BitwiseXor
                | Binary::LeftShift
                | Binary::RightShift
        ),
        Elementwise::Bitcast => !step.out.is_integer(),
        Elementwise::Unary(_) | Elementwise::Clip => false,
    }
}

/// Elements one behind the other from a position on that is a multiple of as many, by one load of words.
fn near(
    code: &mut Code<'_, '_>,
    address: u32,
    element: Element,
    (at, width): (Word, u32),
) -> Result<SmallVec<[Word; 16]>> {
    let group = groups(code, at, width);
    let words = access::load_vector(code, address, Element::Raw(4), width * element.size_bytes() / 4, group)?;
    Ok(SmallVec::from_slice(&access::parts_of(code, element, width, &words)?))
}

/// The parameter that says how many elements are contracted.
const CONTRACTED: Param = Param::Extra(2);

/// What one load took of an operand: which group of elements along the axes of the spans, and these.
struct Loaded {
    group: SmallVec<[u32; 2]>,
    elements: SmallVec<[Word; 16]>,
}

/// One of the neighbours: where it is, and the elements of operands there.
pub(super) struct Lane {
    linear: Word,
    coordinates: SmallVec<[Word; 6]>,
    pub(super) values: SmallVec<[Value; 4]>,
}
