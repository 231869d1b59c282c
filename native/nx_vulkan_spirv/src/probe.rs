//! Kernels that tell how a device rounds, and how many fma it does in a second.

use nx_vulkan_ir::{CType, DType, Result};

use super::access::{self, Element};
use super::generated::{Generated, ITEMS, LOCAL_SIZE, arg};
use super::library::Library;
use super::link::Linker;
use super::modes::FloatModes;
use super::params::{Param, ParamLayout};

/// Chains of fma that don't depend on each other, and steps of each: enough to hide the latency of one, and few enough
/// for lavapipe to compile in 0.1 s.
const CHAINS: u32 = 8;
const STEPS: u32 = 32;

/// Operations that [`fma_rate`] does for each element: two per fma.
pub const RATE_FLOPS: u64 = 2 * (CHAINS * STEPS + CHAINS - 1) as u64;

/// What is probed of pairs `a` and `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `fma(a, b, -(a * b))`.
    Residual,
    /// `a / b` as the device rounds it.
    Quotient,
    /// The square root of `a` as the device rounds it.
    Root,
    /// The f32 equal to the f16 with the bits `a`, as bits.
    HalfLoaded,
    /// The bits of the f16 nearest to the f32 with the bits `a`.
    HalfStored,
    /// The bits of that number as f32, by a conversion to f16 and back.
    HalfRounded,
    /// The same where no compiler sees that it is there and back.
    HalfRoundedHidden,
    /// The bits of the bf16 nearest to the f32 with the bits `a`, as f32, by sums and products.
    PlainRounded,
    /// The bits of the f16 or bf16 nearest to the f32 with the bits `a`, as f32, by sums.
    NarrowRounded(DType),
}

/// `out[i] =` what is probed of `a[i]` and `b[i]`, in f32 or, for residuals, f64, or for bits u32.
pub fn generate(library: &Library, modes: FloatModes, probe: Probe, dtype: DType) -> Result<Generated> {
    let name = "elementwise";
    let mut linker = Linker::new(library, name, false, modes)?;
    let mut params = ParamLayout::new(&[Param::Count]);
    linker.define("slot_element", |code, args| {
        let (at, element) = (arg(args, 0)?, Element::Typed(dtype));
        let operands = [params.address(0), params.address(1)];
        let a = access::load(code, operands[0], element, at)?;
        let b = access::load(code, operands[1], element, at)?;
        let result = match probe {
            Probe::Residual => code.call(&format!("nx_fma_probe_{dtype}"), &[a, b])?,
            Probe::Quotient => code.call(&format!("nx_divide_{dtype}_rounded"), &[a, b])?,
            Probe::HalfLoaded => {
                let value = code.call("nx_load_f16_halves", &[a])?;
                let uint = code.linker.type_uint(32);
                code.bitcast(uint, value)
            }
            Probe::HalfStored => {
                let float = code.linker.type_float(32);
                let value = code.bitcast(float, a);
                code.call("nx_store_f16_halves", &[value])?
            }
            Probe::HalfRounded => {
                let (uint, float) = (code.linker.type_uint(32), code.linker.type_float(32));
                let value = code.bitcast(float, a);
                let rounded = code.call("nx_cast_f32_f16_round_trip", &[value])?;
                code.bitcast(uint, rounded)
            }
            Probe::HalfRoundedHidden | Probe::PlainRounded => {
                let (uint, float) = (code.linker.type_uint(32), code.linker.type_float(32));
                let value = code.bitcast(float, a);
                let rounded = if probe == Probe::PlainRounded {
                    code.call("nx_cast_f32_bf16_plain", &[value])?
                } else {
                    let zero = access::zero_word(code)?;
                    let rounded = code.call("nx_cast_f32_f16_hidden", &[value, zero])?;
                    code.call("nx_plain_nan_f32", &[rounded])?
                };
                code.bitcast(uint, rounded)
            }
            Probe::NarrowRounded(narrow) => {
                let (uint, float) = (code.linker.type_uint(32), code.linker.type_float(32));
                let value = code.bitcast(float, a);
                let rounded = code.call(&format!("nx_cast_f32_{narrow}_kept"), &[value])?;
                let rounded = code.call("nx_plain_nan_f32", &[rounded])?;
                code.bitcast(uint, rounded)
            }
            Probe::Root => code.call(&format!("nx_sqrt_{dtype}_rounded"), &[a])?,
        };
        let address = params.address(2);
        access::store(code, address, element, at, result)?;
        Ok(None)
    })?;
    Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: LOCAL_SIZE * ITEMS })
}

/// `out[i] =` what chains of fma make of `a[i]`, in f32. Each chain has a constant of its own, so that none is
/// another's prefix.
pub fn fma_rate(library: &Library, modes: FloatModes) -> Result<Generated> {
    let name = "elementwise";
    let mut linker = Linker::new(library, name, false, modes)?;
    let mut params = ParamLayout::new(&[Param::Count]);
    linker.define("slot_element", |code, args| {
        let (at, element) = (arg(args, 0)?, Element::Typed(DType::F32));
        let from = params.address(0);
        let a = access::load(code, from, element, at)?;
        let number = |k: u32| u64::from((0.25 + 0.05 * k as f32).to_bits());
        let constants = (0..CHAINS).map(|k| access::constant(code, CType::F32, number(k)).unwrap_or(a));
        let constants: Vec<_> = constants.collect();
        let mut chains = constants.clone();
        for _ in 0..STEPS {
            for (chain, &constant) in chains.iter_mut().zip(&constants) {
                *chain = code.call("nx_multiply_add_f32", &[*chain, a, constant])?;
            }
        }
        let mut sum = chains.first().copied().unwrap_or(a);
        for &chain in chains.iter().skip(1) {
            sum = code.call("nx_multiply_add_f32", &[chain, a, sum])?;
        }
        let address = params.address(1);
        access::store(code, address, element, at, sum)?;
        Ok(None)
    })?;
    Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: LOCAL_SIZE * ITEMS })
}
