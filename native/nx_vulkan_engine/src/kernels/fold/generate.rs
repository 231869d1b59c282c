//! Kernels that fold elements with a function of the user's: a sub-program of scalar steps, inlined into the loop.

use nx_vulkan_ir::program::function::{Function, Scalars};
use nx_vulkan_ir::{CType, DType, Error, Result, value};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, LOCAL_SIZE, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::{value_of, words_of};
use nx_vulkan_spirv::scalar::{self, Value};

/// The key under which a fold is compiled once. Operands: the folded tensor, the initial value, the captured scalars,
/// the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FoldSpec {
    pub input: DType,
    pub initial: DType,
    pub captured: SmallVec<[DType; 2]>,
    pub out: DType,
    pub function: Box<Function>,
    /// Axes of the iteration space: those of the results, then those that are folded.
    pub kept_rank: u8,
    pub folded_rank: u8,
}

/// The operand numbers of the folded tensor and the initial value; captured scalars follow.
const INPUT: u8 = 0;
const INITIAL: u8 = 1;

impl FoldSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("fold_{}", words(self.out.ctype()));
        let mut linker = Linker::new(library, &name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        let ctype = self.out.ctype();
        linker.define("slot_initial", |code, _| {
            let zero = code.linker.const_u32(0);
            let address = params.address(INITIAL);
            let id = access::load(code, address, Element::Typed(self.initial), zero)?;
            let id = scalar::cast(code, Value { id, dtype: self.initial }, self.out)?;
            Ok(Some(words_of(code, ctype, id)))
        })?;
        linker.define("slot_apply", |code, args| {
            let acc = value_of(code, ctype, arg(args, 0)?);
            let at = self.position(code, &mut params, arg(args, 1)?, arg(args, 2)?)?;
            let address = params.address(INPUT);
            let element = access::load(code, address, Element::Typed(self.input), at)?;
            let mut values = vec![Value { id: element, dtype: self.input }, Value { id: acc, dtype: self.out }];
            let zero = code.linker.const_u32(0);
            for (k, &dtype) in (INITIAL + 1..).zip(&self.captured) {
                let address = params.address(k);
                values.push(Value { id: access::load(code, address, Element::Typed(dtype), zero)?, dtype });
            }
            let result = apply(code, &self.function, values)?;
            Ok(Some(words_of(code, ctype, result.id)))
        })?;
        linker.define("slot_store", |code, args| {
            let value = value_of(code, ctype, arg(args, 1)?);
            let address = params.address(INITIAL + 1 + self.captured.len() as u8);
            access::store(code, address, Element::Typed(self.out), arg(args, 0)?, value)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: LOCAL_SIZE })
    }

    fn position(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, o: Word, r: Word) -> Result<Word> {
        let outer = access::coordinates(code, params, o, 0, self.kept_rank)?;
        let inner = access::coordinates(code, params, r, self.kept_rank, self.folded_rank)?;
        let outer = access::position(code, params, INPUT, 0, &outer)?;
        let inner = access::position(code, params, INPUT, self.kept_rank, &inner)?;
        let sum = code.u32_op(SpirvOp::IAdd, outer, inner);
        access::biased(code, params, INPUT, sum)
    }
}

/// Emits a function's steps; `values` are its inputs.
pub fn apply(code: &mut Code<'_, '_>, function: &Function, mut values: Vec<Value>) -> Result<Value> {
    let missing = || Error::InvalidProgram {
        op: "function".to_string(),
        reason: "a step uses a value that does not exist".to_string(),
    };
    for step in &function.steps {
        let id = match step.op {
            Scalars::Constant(bits) => constant(code, step.out, bits),
            Scalars::Elementwise(op) => {
                let args: Option<SmallVec<[Value; 3]>> =
                    step.args.iter().map(|&arg| values.get(usize::from(arg)).copied()).collect();
                scalar::emit(code, op, &args.ok_or_else(missing)?, step.out)?
            }
        };
        values.push(Value { id, dtype: step.out });
    }
    values.get(usize::from(function.result)).copied().ok_or_else(missing)
}

/// The value with the given bits as an element of `dtype`.
fn constant(code: &mut Code<'_, '_>, dtype: DType, bits: u128) -> Word {
    let ctype = dtype.ctype();
    let wide = value::Value::from_bits(dtype, bits).to_bits(ctype.dtype());
    let words: SmallVec<[Word; 4]> =
        (0..words(ctype)).map(|i| code.linker.const_u32((wide >> (32 * i)) as u32)).collect();
    scalar::from_words(code, ctype, &words)
}

/// 32-bit words of a value.
fn words(ctype: CType) -> u32 {
    ctype.dtype().size_bytes() as u32 / 4
}
