//! Matrix product kernels for every type: a tiled template whose loads, products and stores are generated.

use rspirv::spirv::{Op as SpirvOp, Word};

use smallvec::SmallVec;

use super::access::{self, Element, Param, ParamLayout, value_type};
use super::elementwise::{Generated, arg};
use super::library::Library;
use super::link::{Code, FloatModes, Linker};
use super::scalar::{self, Value};
use super::templates;
use crate::{CType, DType, Result};

/// How results lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Store {
    Contiguous,
    /// Along the axes of a view.
    Strided {
        rank: u8,
    },
    /// The same, where four neighbouring columns are neighbours in memory and aligned.
    StridedByFour {
        rank: u8,
    },
}

/// How results are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tiling {
    /// Square tiles of any type.
    Square,
    /// An invocation per result, where results are too narrow to fill tiles.
    Narrow,
    /// Large f32 operands that are contiguous along one axis, loaded four elements at a time.
    Large,
    Wide,
    Tall,
}

/// The key under which a product kernel is compiled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DotSpec {
    pub a: DType,
    pub b: DType,
    pub out: DType,
    /// The type in which products are summed: that of `out`, or a wider one.
    pub sum: CType,
    /// Axes that make up the batches, rows and contracted elements of `a`, and the batches, contracted elements and columns of `b`.
    pub a_ranks: [u8; 3],
    pub b_ranks: [u8; 3],
    pub store: Store,
    pub tiling: Tiling,
}

impl DotSpec {
    fn words(&self) -> u32 {
        self.sum.dtype().size_bytes() as u32 / 4
    }

    /// Rows and columns of results that one workgroup computes.
    pub fn tile(&self) -> (u64, u64) {
        match (self.tiling, self.words()) {
            (Tiling::Large, _) => (128, 128),
            (Tiling::Wide, _) => (64, 256),
            (Tiling::Tall, _) => (256, 64),
            (Tiling::Narrow, _) => (1, 256),
            (Tiling::Square, 1) => (64, 64),
            (Tiling::Square, 2) => (32, 32),
            (Tiling::Square, _) => (16, 16),
        }
    }

    /// Workgroups for so many batches of rows and columns.
    pub fn tiles(&self, batches: u64, rows: u64, columns: u64) -> u64 {
        let (m, n) = self.tile();
        match self.tiling {
            Tiling::Narrow => (batches * rows * columns).div_ceil(n),
            _ => batches * rows.div_ceil(m) * columns.div_ceil(n),
        }
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| match self.tiling {
            Tiling::Square => self.generate_scalar(library, &format!("dot_{}", self.words()), modes, table),
            Tiling::Narrow => self.generate_scalar(library, &format!("dot_narrow_{}", self.words()), modes, table),
            Tiling::Large => self.generate_vector(library, "dot_f32", modes, table),
            Tiling::Wide => self.generate_vector(library, "dot_f32_wide", modes, table),
            Tiling::Tall => self.generate_vector(library, "dot_f32_tall", modes, table),
        })
    }

    /// Element of operand `k` at a batch, row or column, and contracted element.
    fn position(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, k: u8, args: &[Word]) -> Result<Word> {
        let (ranks, mut axis) = match k {
            0 => (self.a_ranks, 0),
            _ => (self.b_ranks, self.a_ranks.iter().sum()),
        };
        let mut at = None;
        for (&arg, rank) in args.iter().zip(ranks) {
            let coordinates = access::coordinates(code, params, arg, axis, rank)?;
            let term = access::position(code, params, k, axis, &coordinates)?;
            at = Some(at.map_or(term, |at| code.u32_op(SpirvOp::IAdd, at, term)));
            axis += rank;
        }
        at.map_or_else(|| arg(args, 0), Ok)
    }

    /// Where result `at` goes.
    fn target(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, at: Word) -> Result<Word> {
        match self.store {
            Store::Contiguous => Ok(at),
            Store::Strided { rank } | Store::StridedByFour { rank } => {
                let axis = self.a_ranks.iter().chain(&self.b_ranks).sum();
                let coordinates = access::coordinates(code, params, at, axis, rank)?;
                access::position(code, params, 2, axis, &coordinates)
            }
        }
    }

    fn generate_scalar(&self, library: &Library, name: &str, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, name, modes, table)?;
        for (slot, operand, dtype) in [("slot_a", 0, self.a), ("slot_b", 1, self.b)] {
            linker.define(slot, |code, args| {
                let at = self.position(code, &mut params, operand, args)?;
                let address = params.address(operand);
                let id = access::load(code, address, Element::Typed(dtype), at)?;
                let id = scalar::cast(code, Value { id, dtype }, self.sum.dtype())?;
                Ok(Some(self.to_words(code, id)))
            })?;
        }
        for (slot, name) in [("slot_multiply_add", "multiply_add"), ("slot_add", "add")] {
            if !linker.has_slot(slot) {
                continue;
            }
            linker.define(slot, |code, args| {
                let ty = value_type(code, self.sum);
                let mut operands: SmallVec<[Word; 3]> = SmallVec::from_slice(args);
                if self.sum != CType::U32 {
                    operands.iter_mut().for_each(|words| *words = code.ids(SpirvOp::Bitcast, ty, &[*words]));
                }
                let id = code.call(&format!("nx_{name}_{}", self.sum.name()), &operands)?;
                Ok(Some(self.to_words(code, id)))
            })?;
        }
        linker.define("slot_store", |code, args| {
            let (at, words) = (arg(args, 0)?, arg(args, 1)?);
            let ty = value_type(code, self.sum);
            let id = if self.sum == CType::U32 { words } else { code.bitcast(ty, words) };
            let id = scalar::cast(code, Value { id, dtype: self.sum.dtype() }, self.out)?;
            let at = self.target(code, &mut params, at)?;
            let address = params.address(2);
            access::store(code, address, Element::Typed(self.out), at, id)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    fn generate_vector(&self, library: &Library, name: &str, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, name, modes, table)?;
        let element = Element::Typed(DType::F32);
        for (slot, operand) in [("slot_a", 0), ("slot_b", 1)] {
            linker.define(slot, |code, args| {
                let at = self.position(code, &mut params, operand, args)?;
                let two = code.linker.const_u32(2);
                let group = code.u32_op(SpirvOp::ShiftRightLogical, at, two);
                let address = params.address(operand);
                let lanes = access::load_vector(code, address, element, 4, group)?;
                let float = code.linker.type_float(32);
                let vector = code.linker.type_vector(float, 4);
                Ok(Some(code.ids(SpirvOp::CompositeConstruct, vector, &lanes)))
            })?;
        }
        linker.define("slot_store", |code, args| {
            let (at, value) = (arg(args, 0)?, arg(args, 1)?);
            let float = code.linker.type_float(32);
            let lanes = [0, 1, 2, 3].map(|lane| code.extract(float, value, lane));
            let address = params.address(2);
            if self.store == Store::Contiguous {
                access::store_vector(code, address, element, at, &lanes)?;
                return Ok(None);
            }
            let two = code.linker.const_u32(2);
            let first = code.u32_op(SpirvOp::ShiftLeftLogical, at, two);
            if let Store::StridedByFour { .. } = self.store {
                let target = self.target(code, &mut params, first)?;
                let group = code.u32_op(SpirvOp::ShiftRightLogical, target, two);
                access::store_vector(code, address, element, group, &lanes)?;
                return Ok(None);
            }
            for (lane, value) in (0..).zip(lanes) {
                let lane = code.linker.const_u32(lane);
                let at = code.u32_op(SpirvOp::IAdd, first, lane);
                let target = self.target(code, &mut params, at)?;
                access::store(code, address, element, target, value)?;
            }
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    fn to_words(self, code: &mut Code<'_, '_>, id: Word) -> Word {
        if self.sum == CType::U32 {
            return id;
        }
        let uint = code.linker.type_uint(32);
        let ty = match self.words() {
            1 => uint,
            words => code.linker.type_vector(uint, words),
        };
        code.bitcast(ty, id)
    }
}

fn start<'l>(library: &'l Library, name: &str, modes: FloatModes, table: bool) -> Result<(Linker<'l>, ParamLayout)> {
    let template = templates::template(name)?;
    let header = [0, 1, 2, 3, 4, 5].map(Param::Extra);
    Ok((Linker::new(library, name, &template, table, modes)?, ParamLayout::new(&header)))
}
