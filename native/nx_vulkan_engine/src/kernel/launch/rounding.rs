//! What a device's arithmetic is found to round rightly, which decides between the forms of functions.

use smallvec::SmallVec;

use super::{Arguments, Kernel, Place, launch};
use crate::codegen::library::Library;
use crate::codegen::link::FloatModes;
use crate::codegen::probe;
use crate::device::DeviceKind;
use crate::{DType, Engine, Error, Result, Tensor, Type};

/// Operands of each kind that are tried.
const PAIRS: u64 = 1024;

/// What held for all operands that were tried.
#[derive(Debug, Clone, Copy)]
struct Rounding {
    /// fma gives the exact rounding error of products.
    fused: bool,
    /// Quotients and roots are the rounded ones.
    rounded: bool,
}

impl Engine {
    /// What generated modules may declare and assume on this device. The first call runs a probe and waits for it.
    pub fn float_modes(&self) -> Result<FloatModes> {
        if self.capture().is_some() {
            return self.uncaptured().float_modes();
        }
        let modes = self.kernel_cache().modes.get_or_try_init(|| {
            let caps = self.caps();
            let modes = FloatModes {
                preserve_f32: caps.float32_controls.signed_zero_inf_nan_preserve,
                preserve_f64: caps.float64_controls.signed_zero_inf_nan_preserve,
                f64: caps.shader_float64,
                fused: false,
                rounded: false,
            };
            let mut seen = self.rounding::<f32>(modes)?;
            if caps.shader_float64 {
                let wide = self.rounding::<f64>(modes)?;
                seen = Rounding { fused: seen.fused && wide.fused, rounded: seen.rounded && wide.rounded };
            }
            // A CPU rounds all quotients or none. A GPU may be right about those that are tried: Vulkan lets them be off.
            let rounded = seen.rounded && caps.kind == DeviceKind::Cpu;
            Ok::<_, Error>(FloatModes { fused: seen.fused, rounded, ..modes })
        })?;
        Ok(*modes)
    }

    fn rounding<T: Float>(&self, modes: FloatModes) -> Result<Rounding> {
        let ty = Type::new(T::DTYPE, &[PAIRS]);
        let near_one = |seed: f64| (0..PAIRS).map(|i| T::from_f64(1.0 + (i as f64 * seed).fract())).collect::<Vec<T>>();
        let of_all_sizes = |seed: u64| (1..=PAIRS).map(|i| T::from_bits(i.wrapping_mul(seed))).collect::<Vec<T>>();
        // Near 1 products have a rounding error that is a number.
        let near = [near_one(0.618_033_988_749_894_9), near_one(0.414_213_562_373_095_1)];
        let all = [of_all_sizes(0x9e37_79b9_7f4a_7c15), of_all_sizes(0xd1b5_4a32_d192_ed03)];
        let kernel = self.build(None, probe::generate(Library::builtin()?, modes, T::DTYPE)?, &[])?;
        let [residuals, near_quotients, near_roots] = self.probe(&kernel, &ty, &near)?;
        let [_, quotients, roots] = self.probe(&kernel, &ty, &all)?;
        let holds = |[a, b]: &[Vec<T>; 2], got: &[T], wanted: fn(T, T) -> T| {
            got.iter().zip(a.iter().zip(b)).all(|(got, (&a, &b))| got.is(wanted(a, b)))
        };
        let root = |a: T, _: T| a.root();
        Ok(Rounding {
            fused: holds(&near, &residuals, T::residual),
            rounded: holds(&near, &near_quotients, T::quotient)
                && holds(&near, &near_roots, root)
                && holds(&all, &quotients, T::quotient)
                && holds(&all, &roots, root),
        })
    }

    /// Residuals of products, quotients, and roots of the first operands.
    fn probe<T: Float>(&self, kernel: &Kernel, ty: &Type, operands: &[Vec<T>; 2]) -> Result<[Vec<T>; 3]> {
        let upload = |values: &Vec<T>| {
            Tensor::from_nx_bytes(self, ty, &values.iter().flat_map(|value| value.to_bytes()).collect::<Vec<u8>>())
        };
        let mut tensors: SmallVec<[Tensor; 5]> = operands.iter().map(upload).collect::<Result<_>>()?;
        for _ in 0..3 {
            tensors.push(Tensor::uninitialized(self, ty)?);
        }
        let element_bytes = T::DTYPE.size_bytes();
        let places: SmallVec<[Place<'_>; 5]> = tensors
            .iter()
            .map(|tensor| Place { buffer: &tensor.buffer, address: tensor.address(), strides: &[], element_bytes })
            .collect();
        let arguments = Arguments { count: PAIRS as u32, sizes: &[PAIRS], places: &places, extra: &[] };
        launch(self, kernel, &arguments, 2, PAIRS.div_ceil(u64::from(kernel.elements_per_group)))?;
        let read = |tensor: &Tensor| -> Result<Vec<T>> {
            Ok(tensor.to_nx_bytes(self, None)?.chunks_exact(element_bytes as usize).map(T::from_bytes).collect())
        };
        let mut results = tensors.iter().skip(2).map(read);
        let mut next = || results.next().unwrap_or_else(|| Ok(vec![]));
        Ok([next()?, next()?, next()?])
    }
}

/// What the host computes in a type, rounded once.
trait Float: Copy + std::fmt::Debug {
    const DTYPE: DType;

    fn from_f64(value: f64) -> Self;
    /// The number of the upper bits.
    fn from_bits(bits: u64) -> Self;
    fn from_bytes(bytes: &[u8]) -> Self;
    fn to_bytes(self) -> SmallVec<[u8; 8]>;
    /// The rounding error of a product.
    fn residual(self, other: Self) -> Self;
    fn quotient(self, other: Self) -> Self;
    fn root(self) -> Self;
    /// Whether both have the same bits, or are NaN.
    fn is(self, other: Self) -> bool;
}

macro_rules! float {
    ($float:ident, $dtype:expr, $bits:ident) => {
        impl Float for $float {
            const DTYPE: DType = $dtype;

            fn from_f64(value: f64) -> $float {
                value as $float
            }

            fn from_bits(bits: u64) -> $float {
                $float::from_bits((bits >> (64 - $bits::BITS)) as $bits)
            }

            fn from_bytes(bytes: &[u8]) -> $float {
                bytes.try_into().map_or($float::NAN, $float::from_ne_bytes)
            }

            fn to_bytes(self) -> SmallVec<[u8; 8]> {
                SmallVec::from_slice(&self.to_ne_bytes())
            }

            fn residual(self, other: $float) -> $float {
                self.mul_add(other, -(self * other))
            }

            fn quotient(self, other: $float) -> $float {
                self / other
            }

            fn root(self) -> $float {
                self.sqrt()
            }

            fn is(self, other: $float) -> bool {
                $float::to_bits(self) == $float::to_bits(other) || (self.is_nan() && other.is_nan())
            }
        }
    };
}

float!(f32, DType::F32, u32);
float!(f64, DType::F64, u64);
