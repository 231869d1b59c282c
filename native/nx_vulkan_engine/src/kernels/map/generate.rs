//! Kernels that compute each element of their outputs from elements of their inputs at the same index: fused chains
//! of elementwise ops, copies between layouts, iota and eye.

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{self, Element, Layout, Port};
use nx_vulkan_spirv::generated::{Generated, ITEMS, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::lower::Lacks;
use nx_vulkan_spirv::memory::Address;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Fixed, Param, ParamLayout};
use nx_vulkan_spirv::scalar::Value;
use nx_vulkan_spirv::steps::{bounds, dtype_of, find, hides_nan, number, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::{SmallVec, smallvec};

use crate::kernels::dot::LANES;

/// How the elements are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Each invocation has vectors, or elements where the width is 1.
    Vectors,
    /// One element each where vectors would do: few elements take as long as the code of one invocation.
    Single,
    /// One element each, with functions in one form, which gives all results: of fewer elements, a launch takes longer
    /// to fetch the code of short forms than these save.
    Exact,
    /// Vectors, which are accessed 8 bytes at a time.
    Pairs,
    /// Vectors of a subgroup's block, whose lanes load neighbours together: so many in each invocation, at most 32. A
    /// launch has whole blocks and shares out the elements behind the last.
    Blocks { vectors: u8 },
}

/// What a kernel computes, apart from sizes: the key under which it is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    pub inputs: SmallVec<[Port; 3]>,
    pub steps: SmallVec<[Step; 1]>,
    pub outputs: SmallVec<[(Ref, Port); 1]>,
    /// Axes of the iteration space.
    pub rank: u8,
    /// Neighbours per load; above 1 only where no port is strided otherwise than along outer axes.
    pub width: u8,
    pub form: Form,
    /// The sizes and strides that it is for, all where there are none.
    pub fixed: Option<Box<Fixed>>,
    /// The types of numbers that a launch gives, of 64 bits each: for the steps, further inputs.
    pub numbers: SmallVec<[DType; 1]>,
    /// What adds to the positions of outputs, a u32: where that is, none of them is contiguous.
    pub shift: Option<Ref>,
    /// How its device shares vectors out.
    pub sharing: Sharing,
}

/// How vectors are shared out among invocations, each count of which has a template: 1, 2 or 4 vectors in each, and
/// workgroups of 256 invocations or, with several vectors, of 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// Vectors per invocation where functions are costly or one operand is read.
    pub more_vectors: u32,
    /// Where the functions of one operand are costly, but few, and where pairs are read.
    pub most_vectors: u32,
    /// How many costly functions are few.
    pub few_costly: usize,
    /// Vectors per invocation where a workgroup lists what is in doubt.
    pub listed_vectors: u32,
    /// Invocations per workgroup where they take more vectors of cheap functions.
    pub small_local_size: u32,
    /// Invocations whose vectors lie one after the other where each has many.
    pub neighbours: u32,
    /// Elements of a block's invocation whose costly functions stand side by side.
    pub together: u32,
}

/// Workgroups that blocks may have at most: their template knows numbers of four digits of 5 bits.
pub const MAX_BLOCKS: u64 = 1 << 20;

impl Spec {
    /// The widest vector that all ports and steps allow, if the launch is aligned for it. Costly steps are repeated per
    /// lane where `unroll` allows it: more loads in flight, for longer compilation.
    pub fn widest(&self, unroll: bool) -> u8 {
        let ports = self.inputs.iter().chain(self.outputs.iter().map(|(_, port)| port));
        // An output that is not contiguous has one element: there are no neighbours.
        if self.outputs.iter().any(|(_, port)| port.layout != Layout::Contiguous) {
            return 1;
        }
        let mut width = 4;
        for port in ports {
            match port.layout {
                Layout::Strided => return 1,
                Layout::Uniform | Layout::Repeated | Layout::Each | Layout::Bounded => {}
                Layout::Contiguous | Layout::Inner | Layout::BoundedInner => {
                    width = width.min(port.element.max_width());
                }
            }
        }
        if self.is_cheap() || unroll { width as u8 } else { 1 }
    }

    /// Whether a step or an output is one of these.
    fn uses(&self, is_one: impl Fn(&Ref) -> bool) -> bool {
        self.steps.iter().any(|s| s.args.iter().any(&is_one)) || self.outputs.iter().any(|(r, _)| is_one(r))
    }

    /// Whether coordinates of elements are needed: vectors must not reach beyond the innermost axis then.
    pub fn has_coordinates(&self) -> bool {
        let mut ports = self.inputs.iter().chain(self.outputs.iter().map(|(_, port)| port));
        ports.any(|port| port.layout.has_strides()) || self.uses(|r| matches!(r, Ref::Coordinate(_)))
    }

    /// Whether all steps cost so little that memory alone sets the time.
    pub fn is_cheap(&self) -> bool {
        self.costly_steps() == 0
    }

    /// Whether so few steps are costly that many copies of them compile soon.
    pub fn is_short(&self) -> bool {
        self.costly_steps() <= self.sharing.few_costly
    }

    /// Whether it computes with types of 64 bits that a device lacks.
    pub fn is_lowered(&self, lacks: Lacks) -> bool {
        let lowered = |dtype: DType| match dtype.ctype() {
            CType::F64 | CType::C128 => lacks.float64,
            CType::I64 | CType::U64 => lacks.int64,
            CType::I32 | CType::U32 | CType::F32 | CType::C64 => false,
        };
        let loaded = self.inputs.iter().filter_map(|input| match input.element {
            Element::Typed(dtype) => Some(dtype),
            Element::Raw(_) => None,
        });
        loaded.chain(self.steps.iter().map(|step| step.out)).any(lowered)
    }

    /// Whether it makes no difference which NaN a number of 16 bits is that is read: steps take it, and none shows it.
    fn hides_nan(&self) -> bool {
        hides_nan(&self.steps) && self.outputs.iter().all(|(from, _)| matches!(from, Ref::Result(_)))
    }

    fn costly_steps(&self) -> usize {
        let number = |k: usize| k.checked_sub(self.inputs.len()).and_then(|k| self.numbers.get(k).copied());
        let dtype = |r: &Ref| match r {
            Ref::Input(k) => match self.inputs.get(*k as usize).map(|p| p.element) {
                Some(Element::Typed(dtype)) => dtype,
                Some(Element::Raw(_)) => DType::U32,
                None => number(*k as usize).unwrap_or(DType::U32),
            },
            Ref::Result(k) => self.steps.get(*k as usize).map_or(DType::U32, |s| s.out),
            Ref::Coordinate(_) | Ref::Linear => DType::U32,
            Ref::Constant(dtype, _) => *dtype,
        };
        let is_costly = |s: &&Step| {
            let args: SmallVec<[DType; 3]> = s.args.iter().map(dtype).collect();
            !s.op.is_short(&args, s.out)
        };
        self.steps.iter().filter(is_costly).count()
    }

    /// The width of a block's vectors, where vectors can be wider: lanes store 8 bytes of the largest element at a
    /// time, and whole words of the smallest.
    pub fn block_width(&self) -> u8 {
        let ports = self.inputs.iter().chain(self.outputs.iter().map(|(_, port)| port));
        let vectors =
            ports.filter(|port| matches!(port.layout, Layout::Contiguous | Layout::Inner | Layout::BoundedInner));
        let bytes = vectors.map(|port| port.element.size_bytes());
        let (smallest, largest) = bytes.fold((8, 1), |(least, most), bytes| (least.min(bytes), most.max(bytes)));
        self.widest(true).min((4 / smallest).max(8 / largest).max(1) as u8)
    }

    /// Vectors per invocation.
    pub(super) fn vectors(&self) -> u32 {
        match self.form {
            Form::Single | Form::Exact => return 1,
            Form::Pairs => return self.sharing.most_vectors,
            Form::Blocks { vectors } => return vectors.into(),
            Form::Vectors if self.is_listed() => return self.sharing.listed_vectors,
            Form::Vectors => {}
        }
        let loaded = self.inputs.iter().filter(|port| port.layout != Layout::Uniform).count();
        match loaded {
            2.. if self.is_cheap() => 1,
            0..=1 if self.width == 4 && self.is_short() && !self.is_cheap() => self.sharing.most_vectors,
            _ => self.sharing.more_vectors,
        }
    }

    /// Whether workgroups list what short forms of functions do not serve: where numbers alone are computed, so that no
    /// loads are to be in flight, vectors are a loop of short code.
    fn is_listed(&self) -> bool {
        let is_alone = self.inputs.iter().all(|port| port.layout == Layout::Uniform);
        self.form == Form::Vectors && self.width == 4 && is_alone && self.is_short() && !self.is_cheap()
    }

    /// The vectors whose code stands in a kernel.
    fn written_vectors(&self) -> u32 {
        if self.is_listed() { 1 } else { self.vectors() }
    }

    /// Whether elements may be stored that are in doubt: these are computed again from the inputs, in whose place
    /// results may have been stored (`in_place`).
    fn may_doubt(&self) -> bool {
        self.inputs.iter().all(|port| port.layout != Layout::Contiguous)
    }

    /// Whether each invocation has as many vectors as any has.
    fn has_most(&self) -> bool {
        self.vectors() == self.sharing.most_vectors
    }

    /// Invocations per workgroup.
    fn local_size(&self) -> u32 {
        let is_small = self.width > 1 && self.vectors() > 1 && (self.is_cheap() || self.has_most());
        match self.form {
            Form::Blocks { .. } => LANES,
            Form::Vectors if is_small || self.is_listed() => self.sharing.small_local_size,
            Form::Vectors | Form::Single | Form::Exact | Form::Pairs => LOCAL_SIZE,
        }
    }

    /// Elements that one workgroup covers.
    pub fn elements_per_group(&self) -> u32 {
        let has_vectors = self.width > 1 || matches!(self.form, Form::Single | Form::Exact | Form::Blocks { .. });
        self.local_size() * if has_vectors { u32::from(self.width) * self.vectors() } else { ITEMS }
    }

    /// Vectors between an invocation's.
    fn apart(&self) -> u32 {
        match self.form {
            Form::Pairs | Form::Blocks { .. } => LANES,
            _ if self.has_most() || self.is_listed() => self.sharing.neighbours,
            _ => self.local_size(),
        }
    }

    /// Generates the kernel's SPIR-V.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        match self.form {
            Form::Blocks { .. } => self.generate_blocks(library, modes),
            Form::Vectors | Form::Single | Form::Exact | Form::Pairs => {
                Generated::push_or_table(|table| self.generate_with(library, modes, table))
            }
        }
    }

    fn generate_blocks(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let name = "elementwise_lanes";
        let mut linker = Linker::new(library, name, false, modes)?;
        linker.pairs = true;
        linker.any_nan = self.hides_nan();
        let mut params = ParamLayout::new(&[Param::Count]);
        linker.define("slot_element", |code, args| {
            self.emit_element(code, &mut params, arg(args, 0)?)?;
            Ok(None)
        })?;
        linker.define("slot_block", |code, args| {
            self.emit_block(code, &mut params, arg(args, 0)?, arg(args, 1)?).map(Some)
        })?;
        if params.words.len() > ParamLayout::PUSH_WORDS {
            return Err(linker.bad("too many parameters"));
        }
        params.add_numbers();
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: self.elements_per_group() })
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = match (self.width, self.vectors(), self.local_size()) {
            _ if self.is_listed() => "elementwise_v4_listed",
            (4, 1, _) => "elementwise_v4",
            (4, 4, 128) => "elementwise_v4_four_128",
            (4, 4, _) => "elementwise_v4_four",
            (4, _, 128) => "elementwise_v4_two_128",
            (4, ..) => "elementwise_v4_two",
            (2, 4, _) => "elementwise_v2_four",
            (2, 1, _) => "elementwise_v2",
            (2, _, 128) => "elementwise_v2_two_128",
            (2, ..) => "elementwise_v2_two",
            _ if self.form == Form::Single => "elementwise_v1",
            _ if self.form == Form::Exact => "elementwise_one",
            _ => "elementwise",
        };
        let mut linker = Linker::new(library, name, table, modes)?;
        linker.pairs = self.form == Form::Pairs;
        linker.any_nan = self.hides_nan();
        let settles = self.form == Form::Exact || linker.has_slot("slot_vector") && self.may_doubt();
        let fixed = self.fixed.as_deref().cloned();
        let mut params = ParamLayout { fixed, ..ParamLayout::new(&[Param::Count]) };
        linker.define("slot_element", |code, args| {
            let i = arg(args, 0)?;
            code.shares_doubts = self.is_listed();
            match settles {
                true => code.settled(|code| self.emit_element(code, &mut params, i))?,
                false => self.emit_element(code, &mut params, i)?,
            }
            Ok(None)
        })?;
        if linker.has_slot("slot_vector") {
            linker.define("slot_vector", |code, args| {
                code.shares_doubts = self.is_listed();
                self.emit_vector(code, &mut params, arg(args, 0)?).map(Some)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: self.elements_per_group() })
    }

    fn output_operand(&self, index: usize) -> u8 {
        (self.inputs.len() + index) as u8
    }

    fn emit_element(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, linear: Word) -> Result<()> {
        let coordinates = match self.has_coordinates() {
            true => access::coordinates(code, params, linear, 0, self.rank)?,
            false => SmallVec::new(),
        };
        let mut inputs: SmallVec<[Value; 4]> = SmallVec::new();
        for (k, port) in self.inputs.iter().enumerate() {
            let k = k as u8;
            let at = position(code, params, k, port.layout, linear, &coordinates)?;
            let address = params.address(k);
            let id = access::load(code, address, port.element, at)?;
            inputs.push(Value { id, dtype: dtype_of(port.element) });
        }
        inputs.extend(self.numbers(code, params)?);
        let results = run_steps(code, &self.steps, &inputs, linear, &coordinates)?;
        for (i, (from, port)) in self.outputs.iter().enumerate() {
            let value = find(code, *from, &inputs, &results, linear, &coordinates)?;
            let k = self.output_operand(i);
            let mut at = position(code, params, k, port.layout, linear, &coordinates)?;
            if let Some(shift) = self.shift {
                let by = find(code, shift, &inputs, &results, linear, &coordinates)?;
                at = code.u32_op(SpirvOp::IAdd, at, by.id);
            }
            let address = params.address(k);
            access::store(code, address, port.element, at, value.id)?;
        }
        Ok(())
    }

    /// The numbers that the launch gives.
    fn numbers(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout) -> Result<SmallVec<[Value; 4]>> {
        let mut numbers = SmallVec::new();
        for (j, &dtype) in self.numbers.iter().enumerate() {
            let id = access::number(code, params, dtype.ctype(), number(self.inputs.len(), j))?;
            numbers.push(Value { id, dtype });
        }
        Ok(numbers)
    }

    /// The address of vector `index`, from which the invocation's others are as far as its code says.
    fn first_vector(&self, code: &mut Code<'_, '_>, address: u32, element: Element, index: Word) -> Result<Address> {
        let array = code.address(address)?;
        Ok(code.address_of(array, element.size_bytes() * u32::from(self.width), index))
    }

    /// Computes and stores neighbours by the short forms of functions; the result has a bit for each element for which
    /// these do not serve. Where that is known before, nothing is stored.
    fn emit_vector(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, index: Word) -> Result<Word> {
        let width = u32::from(self.width);
        let zero = code.linker.const_u32(0);
        let apart = code.linker.const_u32(self.apart());
        let mut places: SmallVec<[Word; 4]> = smallvec![index];
        for k in 1..self.written_vectors() as usize {
            places.push(code.u32_op(SpirvOp::IAdd, places[k - 1], apart));
        }
        let mut lanes: SmallVec<[Lane; 8]> = SmallVec::new();
        for &place in &places {
            lanes.extend(self.lanes(code, params, place)?);
        }
        for (k, port) in self.inputs.iter().enumerate() {
            let address = params.address(k as u8);
            let dtype = dtype_of(port.element);
            if port.layout == Layout::Uniform {
                let id = access::load(code, address, port.element, zero)?;
                lanes.iter_mut().for_each(|lane| lane.values.push(Value { id, dtype }));
            } else {
                let mut ids: SmallVec<[Word; 8]> = SmallVec::new();
                if port.layout == Layout::Contiguous {
                    let first = self.first_vector(code, address, port.element, index)?;
                    for k in 0..self.written_vectors() {
                        let place = code.linker.const_u32(k * self.apart());
                        ids.extend(access::load_vector_at(code, first, port.element, width, place)?);
                    }
                } else {
                    for lanes in lanes.chunks(width as usize) {
                        ids.extend(self.load_strided(code, params, k as u8, lanes)?);
                    }
                }
                lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.values.push(Value { id, dtype }));
            }
        }
        let numbers = self.numbers(code, params)?;
        lanes.iter_mut().for_each(|lane| lane.values.extend_from_slice(&numbers));
        let (all, uint) =
            (code.linker.const_u32((1 << (width * self.written_vectors())) - 1), code.linker.type_uint(32));
        if let Some(rare) = code.rare(|code| self.compute_vector(code, &lanes))? {
            code.unless(rare, |code| {
                // One vector after the other, so that few registers hold results.
                let firsts = self.first_outputs(code, params, index)?;
                for (k, lanes) in (0u32..).zip(lanes.chunks(width as usize)) {
                    let (results, _) = code.hot(|code| self.compute_vector(code, lanes))?;
                    self.store_vector(code, &firsts, k, lanes, &results)?;
                }
                Ok(())
            })?;
            return Ok(code.ids(SpirvOp::Select, uint, &[rare, all, zero]));
        }
        let (firsts, mut rest) = (self.first_outputs(code, params, index)?, zero);
        for (k, lanes) in (0u32..).zip(lanes.chunks(width as usize)) {
            let mut results: SmallVec<[SmallVec<[Value; 4]>; 4]> = SmallVec::new();
            for (j, lane) in (0u32..).zip(lanes) {
                let (result, doubt) = match self.may_doubt() {
                    true => code.hot_in_doubt(|code| self.compute(code, lane))?,
                    false => (code.hot(|code| self.compute(code, lane))?.0, None),
                };
                results.push(result);
                if let Some(doubt) = doubt {
                    let bit = code.linker.const_u32(1 << (k * width + j));
                    let bit = code.ids(SpirvOp::Select, uint, &[doubt, bit, zero]);
                    rest = code.u32_op(SpirvOp::BitwiseOr, rest, bit);
                }
            }
            self.store_vector(code, &firsts, k, lanes, &results)?;
        }
        Ok(rest)
    }

    /// Computes and stores a block by the short forms of functions; the result has a bit for each vector that is not
    /// stored because these do not serve one of its elements. Vectors are loaded outside of control flow, which makes
    /// gathers of loads, and right before they are needed.
    fn emit_block(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, first: Word, lane: Word) -> Result<Word> {
        let width = u32::from(self.width);
        let zero = code.linker.const_u32(0);
        let (width_id, ty) = (code.linker.const_u32(width), code.linker.type_bool());
        let vector = code.u32_op(SpirvOp::UDiv, first, width_id);
        let index = code.u32_op(SpirvOp::IAdd, vector, lane);
        let mut is_lane: SmallVec<[Word; 8]> = SmallVec::new();
        for k in 0..LANES - 1 {
            let k = code.linker.const_u32(k);
            is_lane.push(code.ids(SpirvOp::IEqual, ty, &[lane, k]));
        }
        let mut uniform: SmallVec<[Option<Word>; 4]> = SmallVec::new();
        let mut firsts: SmallVec<[Option<Address>; 4]> = SmallVec::new();
        for (k, port) in self.inputs.iter().enumerate() {
            let address = params.address(k as u8);
            uniform.push(match port.layout {
                Layout::Uniform => Some(access::load(code, address, port.element, zero)?),
                _ => None,
            });
            firsts.push(match port.layout {
                Layout::Contiguous => Some(self.first_vector(code, address, port.element, vector)?),
                _ => None,
            });
        }
        let numbers = self.numbers(code, params)?;
        let outputs = self.first_outputs(code, params, index)?;
        let mut rest = zero;
        let together = if self.is_cheap() { 1 } else { (self.sharing.together / width).min(self.vectors()) };
        for v in (0..self.vectors()).step_by(together as usize) {
            let mut lanes: SmallVec<[Lane; 16]> = SmallVec::new();
            for v in v..v + together {
                let apart = code.linker.const_u32(v * LANES);
                let place = code.u32_op(SpirvOp::IAdd, index, apart);
                let mut vector = self.lanes(code, params, place)?;
                for (k, port) in self.inputs.iter().enumerate() {
                    let ids = match (uniform[k], firsts[k]) {
                        (Some(id), _) => SmallVec::from_elem(id, width as usize),
                        (_, Some(first)) => {
                            access::load_lanes_at(code, first, port.element, width, v * LANES, &is_lane)?
                        }
                        _ => self.load_strided(code, params, k as u8, &vector)?,
                    };
                    let dtype = dtype_of(port.element);
                    vector.iter_mut().zip(ids).for_each(|(lane, id)| lane.values.push(Value { id, dtype }));
                }
                vector.iter_mut().for_each(|lane| lane.values.extend_from_slice(&numbers));
                lanes.extend(vector);
            }
            let (results, rare) = code.hot(|code| self.compute_vector(code, &lanes))?;
            let store = |code: &mut Code<'_, '_>| {
                let vectors = lanes.chunks(width as usize).zip(results.chunks(width as usize));
                for (v, (lanes, results)) in (v..).zip(vectors) {
                    self.store_vector(code, &outputs, v, lanes, results)?;
                }
                Ok(())
            };
            let Some(rare) = rare else {
                store(code)?;
                continue;
            };
            code.unless(rare, store)?;
            let bits = code.linker.const_u32(((1 << together) - 1) << v);
            let uint = code.linker.type_uint(32);
            let bits = code.ids(SpirvOp::Select, uint, &[rare, bits, zero]);
            rest = code.u32_op(SpirvOp::BitwiseOr, rest, bits);
        }
        Ok(rest)
    }

    /// The elements of the vector at a place, without values.
    fn lanes(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, place: Word) -> Result<SmallVec<[Lane; 4]>> {
        let (has_coordinates, is_counted) = (self.has_coordinates(), self.uses(|r| *r == Ref::Linear));
        let width = code.linker.const_u32(self.width.into());
        let first = match has_coordinates || is_counted {
            true => code.u32_op(SpirvOp::IMul, place, width),
            false => place,
        };
        let coordinates = match has_coordinates {
            true => access::coordinates(code, params, first, 0, self.rank)?,
            false => SmallVec::new(),
        };
        let mut lanes = SmallVec::new();
        for k in 0..u32::from(self.width) {
            let mut lane = Lane { linear: first, coordinates: coordinates.clone(), values: SmallVec::new() };
            if k > 0 {
                let k = code.linker.const_u32(k);
                for index in lane.coordinates.last_mut().into_iter().chain(is_counted.then_some(&mut lane.linear)) {
                    *index = code.u32_op(SpirvOp::IAdd, *index, k);
                }
            }
            lanes.push(lane);
        }
        Ok(lanes)
    }

    /// The vector of input `k`, which has strides.
    fn load_strided(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        k: u8,
        lanes: &[Lane],
    ) -> Result<SmallVec<[Word; 4]>> {
        let Port { element, layout } = self.inputs[k as usize];
        let width = u32::from(self.width);
        let address = params.address(k);
        let mut at =
            |code: &mut Code<'_, '_>, lane: &Lane| position(code, params, k, layout, lane.linear, &lane.coordinates);
        match layout {
            Layout::Inner | Layout::BoundedInner => {
                let (at, width_id) = (at(code, &lanes[0])?, code.linker.const_u32(width));
                let group = code.u32_op(SpirvOp::UDiv, at, width_id);
                access::load_vector(code, address, element, width, group)
            }
            Layout::Repeated => {
                let at = at(code, &lanes[0])?;
                Ok(SmallVec::from_elem(access::load(code, address, element, at)?, lanes.len()))
            }
            _ => {
                let load = |lane| at(code, lane).and_then(|at| access::load(code, address, element, at));
                lanes.iter().map(load).collect()
            }
        }
    }

    /// Results of the steps for each element of vectors.
    fn compute_vector(&self, code: &mut Code<'_, '_>, lanes: &[Lane]) -> Result<SmallVec<[SmallVec<[Value; 4]>; 4]>> {
        lanes.iter().map(|lane| self.compute(code, lane)).collect()
    }

    /// Results of the steps for one element.
    fn compute(&self, code: &mut Code<'_, '_>, lane: &Lane) -> Result<SmallVec<[Value; 4]>> {
        run_steps(code, &self.steps, &lane.values, lane.linear, &lane.coordinates)
    }

    /// Of each output, the address of vector `index`.
    fn first_outputs(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        index: Word,
    ) -> Result<SmallVec<[Address; 1]>> {
        let mut firsts = SmallVec::new();
        for (i, (_, port)) in self.outputs.iter().enumerate() {
            let address = params.address(self.output_operand(i));
            firsts.push(self.first_vector(code, address, port.element, index)?);
        }
        Ok(firsts)
    }

    /// Stores an invocation's vector `k` of each output.
    fn store_vector(
        &self,
        code: &mut Code<'_, '_>,
        firsts: &[Address],
        k: u32,
        lanes: &[Lane],
        results: &[SmallVec<[Value; 4]>],
    ) -> Result<()> {
        let place = code.linker.const_u32(k * self.apart());
        for ((from, port), &first) in self.outputs.iter().zip(firsts) {
            let values: SmallVec<[Word; 4]> = lanes
                .iter()
                .zip(results)
                .map(|(lane, result)| {
                    find(code, *from, &lane.values, result, lane.linear, &lane.coordinates).map(|v| v.id)
                })
                .collect::<Result<_>>()?;
            access::store_vector_at(code, first, port.element, place, &values)?;
        }
        Ok(())
    }
}

/// An element of a vector: where it is, and the values of inputs there.
#[derive(Debug, Clone)]
struct Lane {
    linear: Word,
    coordinates: SmallVec<[Word; 6]>,
    values: SmallVec<[Value; 4]>,
}

fn position(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    k: u8,
    layout: Layout,
    linear: Word,
    coordinates: &[Word],
) -> Result<Word> {
    match layout {
        Layout::Contiguous => Ok(linear),
        Layout::Uniform => Ok(code.linker.const_u32(0)),
        Layout::Strided | Layout::Each | Layout::Inner | Layout::Repeated => {
            let sum = access::position(code, params, k, 0, coordinates)?;
            access::biased(code, params, k, sum)
        }
        Layout::Bounded | Layout::BoundedInner => {
            let sum = access::position(code, params, k, 0, coordinates)?;
            access::bounded(code, params, sum, bounds(0, k))
        }
    }
}
