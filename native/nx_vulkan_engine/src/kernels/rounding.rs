//! What a device's arithmetic is found to round rightly, which decides between the forms of functions.

use half::{bf16, f16};
use nx_vulkan_device::device::DeviceKind;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::probe::{self, Probe};
use smallvec::SmallVec;

use super::{Arguments, Kernel, Place, launch};
use crate::{DType, Engine, Error, Result, Tensor, Type};

/// Pairs of operands that are tried.
const PAIRS: u64 = 1024;

impl Engine {
    /// What generated modules may declare and assume on this device. The first call runs probes and waits for them.
    pub fn float_modes(&self) -> Result<FloatModes> {
        if self.capture().is_some() {
            return self.uncaptured().float_modes();
        }
        let modes = self.kernel_cache().modes.get_or_try_init(|| {
            let caps = self.caps();
            let modes = FloatModes {
                preserve_f32: caps.float32_controls.signed_zero_inf_nan_preserve,
                preserve_f64: caps.shader_float64 && caps.float64_controls.signed_zero_inf_nan_preserve,
                exact_f64: !caps.shader_float64,
                ..FloatModes::NONE
            };
            let fused = self.fuses_fma::<f32>(modes)? && (modes.exact_f64 || self.fuses_fma::<f64>(modes)?);
            // A CPU rounds all quotients or none. A GPU may be right about those that are tried: Vulkan lets them be
            // off.
            let rounded = caps.kind == DeviceKind::Cpu && self.rounds_quotients(modes)?;
            // Compilers for CPUs convert one number after the other.
            let has_halves = caps.kind != DeviceKind::Cpu && caps.shader_float16 && !caps.lacks().int16;
            let halves = has_halves && self.converts_halves(modes)?;
            let half_round_trips = halves && self.rounds_by_halves(modes, Probe::HalfRounded)?;
            let hidden_round_trips =
                halves && !half_round_trips && self.rounds_by_halves(modes, Probe::HalfRoundedHidden)?;
            let nearest = self.rounds_to_nearest(modes)?;
            let kept = fused && caps.kind != DeviceKind::Cpu && self.rounds_by_sums(modes)?;
            Ok::<_, Error>(FloatModes {
                fused,
                nearest,
                kept,
                rounded,
                halves,
                half_round_trips,
                hidden_round_trips,
                ..modes
            })
        })?;
        Ok(*modes)
    }

    /// Whether fma gives the exact rounding error of products.
    fn fuses_fma<T: Float>(&self, modes: FloatModes) -> Result<bool> {
        // Near 1 products have an error that is a number.
        let near_one = |seed: f64| (0..PAIRS).map(|i| T::from_f64(1.0 + (i as f64 * seed).fract())).collect::<Vec<T>>();
        let operands = [near_one(0.618_033_988_749_894_9), near_one(0.414_213_562_373_095_1)];
        self.gives(modes, Probe::Residual, &operands, T::residual)
    }

    /// Whether quotients and roots of f32 are the rounded ones, of numbers of all sizes, denormals, infinities and
    /// NaN among them.
    fn rounds_quotients(&self, modes: FloatModes) -> Result<bool> {
        let of_all_sizes =
            |seed: u32| (1..=PAIRS as u32).map(|i| f32::from_bits(i.wrapping_mul(seed))).collect::<Vec<f32>>();
        let operands = [of_all_sizes(0x9e37_79b9), of_all_sizes(0xd1b5_4a33)];
        Ok(self.gives(modes, Probe::Quotient, &operands, |a, b| a / b)?
            && self.gives(modes, Probe::Root, &operands, |a, _| a.sqrt())?)
    }

    /// Whether f16 become the f32 that they are, all of them, and f32 the nearest f16: each of these, what is in the
    /// middle between neighbours, and what is next to that.
    fn converts_halves(&self, modes: FloatModes) -> Result<bool> {
        let all = (0..=u32::from(u16::MAX)).collect::<Vec<u32>>();
        let edges = half_edges();
        let loaded = |bits: u32, _| half_to_single(bits as u16);
        let stored = |bits: u32, _| single_to_half(bits).into();
        Ok(self.gives(modes, Probe::HalfLoaded, &[all.clone(), all], loaded)?
            && self.gives(modes, Probe::HalfStored, &[edges.clone(), edges], stored)?)
    }

    /// Whether f32 that are converted to f16 and back are the nearest ones.
    fn rounds_by_halves(&self, modes: FloatModes, probe: Probe) -> Result<bool> {
        let edges = half_edges();
        let rounded = |bits: u32, _| plain(half_to_single(single_to_half(bits)));
        self.gives(modes, probe, &[edges.clone(), edges], rounded)
    }

    /// Whether differences of products round f32 to bf16 that are zeros or from 2^-126 to 2^111.
    fn rounds_to_nearest(&self, modes: FloatModes) -> Result<bool> {
        let is_plain = |bits: &u32| {
            let magnitude = f32::from_bits(*bits).abs();
            magnitude == 0.0 || (f32::MIN_POSITIVE..=2f32.powi(111)).contains(&magnitude)
        };
        let edges: Vec<u32> = bf16_edges().into_iter().filter(is_plain).collect();
        let rounded = |bits: u32, _| bf16::from_f32(f32::from_bits(bits)).to_f32().to_bits();
        self.gives(modes, Probe::PlainRounded, &[edges.clone(), edges], rounded)
    }

    /// Whether sums round f32 to f16 and bf16, denormals too.
    fn rounds_by_sums(&self, modes: FloatModes) -> Result<bool> {
        let f16 = half_edges();
        let bf16 = bf16_edges();
        let to_f16 = |bits: u32, _| plain(half_to_single(single_to_half(bits)));
        let to_bf16 = |bits: u32, _| plain(bf16::from_f32(f32::from_bits(bits)).to_f32().to_bits());
        Ok(self.gives(modes, Probe::NarrowRounded(DType::Bf16), &[bf16.clone(), bf16], to_bf16)?
            && self.gives(modes, Probe::NarrowRounded(DType::F16), &[f16.clone(), f16], to_f16)?)
    }

    /// Whether the device gives what the host does, to the bit but for those of NaN.
    fn gives<T: Operand>(
        &self,
        modes: FloatModes,
        probe: Probe,
        operands: &[Vec<T>; 2],
        wanted: fn(T, T) -> T,
    ) -> Result<bool> {
        let [a, b] = operands;
        let count = a.len() as u64;
        let ty = Type::new(T::DTYPE, &[count]);
        let upload = |values: &Vec<T>| {
            Tensor::from_nx_bytes(self, &ty, &values.iter().flat_map(|value| value.to_bytes()).collect::<Vec<u8>>())
        };
        let tensors = [upload(a)?, upload(b)?, Tensor::uninitialized(self, &ty)?];
        let element_bytes = T::DTYPE.size_bytes();
        let places: SmallVec<[Place<'_>; 3]> = tensors
            .iter()
            .map(|tensor| Place { buffer: &tensor.buffer, address: tensor.address(), strides: &[], element_bytes })
            .collect();
        let generated = probe::generate(Library::builtin()?, modes, probe, T::DTYPE)?;
        // No op uses what it uses.
        let kernel = Kernel { features: 0, ..self.build(None, generated, &[])? };
        let arguments = Arguments { count: count as u32, sizes: &[count], places: &places, extra: &[] };
        launch(self, &kernel, &arguments, 2, count.div_ceil(u64::from(kernel.elements_per_group)))?;
        let bytes = tensors[2].to_nx_bytes(self, None)?;
        let got = bytes.chunks_exact(element_bytes as usize);
        Ok(got.zip(a.iter().zip(b)).all(|(got, (&a, &b))| wanted(a, b).is(got)))
    }
}

/// The bits of the f32 with the number of an f16, or with the bits of its NaN.
fn half_to_single(bits: u16) -> u32 {
    let half = f16::from_bits(bits);
    if half.is_nan() {
        return u32::from(bits & 0x8000) << 16 | 0x7f80_0000 | u32::from(bits & 0x3ff) << 13;
    }
    half.to_f32().to_bits()
}

/// The bits of the f16 nearest to the f32 with these.
fn single_to_half(bits: u32) -> u16 {
    let single = f32::from_bits(bits);
    if single.is_nan() { 0x7e00 } else { f16::from_f32(single).to_bits() }
}

/// The bits of every f32 at which rounding to f16 may go wrong: all f16, the middles between neighbours and their
/// neighbours, and what is far from all of them.
fn half_edges() -> Vec<u32> {
    let halves = (0..0x7c00u16).flat_map(|bits| {
        let own = half_to_single(bits);
        // Beyond the largest one lies 2^16, by exponents.
        let next = if bits == 0x7bff { 0x4780_0000 } else { half_to_single(bits + 1) };
        let middle = ((f32::from_bits(own) + f32::from_bits(next)) / 2.0).to_bits();
        [own, middle - 1, middle, middle + 1]
    });
    let others =
        [1, 0x7f_ffff, 0x80_0000, 0x4780_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff];
    halves.chain(others).flat_map(|bits| [bits, bits | 0x8000_0000]).collect()
}

/// The bits of an f32, but of NaN those of the library's.
fn plain(bits: u32) -> u32 {
    if f32::from_bits(bits).is_nan() { 0x7fc0_0000 } else { bits }
}

/// The bits of every f32 at which rounding to bf16 may go wrong: all bf16, the middles between neighbours and their
/// neighbours.
fn bf16_edges() -> Vec<u32> {
    let all = (0..=u32::from(u16::MAX)).map(|bits| bits << 16);
    all.flat_map(|own| [own, own + 0x7fff, own + 0x8000, own + 0x8001]).collect()
}

/// What probes take and give.
trait Operand: Copy {
    const DTYPE: DType;

    fn to_bytes(self) -> SmallVec<[u8; 8]>;
    /// Whether these are its bytes, or both are NaN.
    fn is(self, bytes: &[u8]) -> bool;
}

impl Operand for u32 {
    const DTYPE: DType = DType::U32;

    fn to_bytes(self) -> SmallVec<[u8; 8]> {
        SmallVec::from_slice(&self.to_ne_bytes())
    }

    fn is(self, bytes: &[u8]) -> bool {
        self.to_ne_bytes() == *bytes
    }
}

/// What the host computes in a type, rounded once.
trait Float: Operand {
    fn from_f64(value: f64) -> Self;
    /// The rounding error of a product.
    fn residual(self, other: Self) -> Self;
}

macro_rules! float {
    ($float:ident, $dtype:expr) => {
        impl Operand for $float {
            const DTYPE: DType = $dtype;

            fn to_bytes(self) -> SmallVec<[u8; 8]> {
                SmallVec::from_slice(&self.to_ne_bytes())
            }

            fn is(self, bytes: &[u8]) -> bool {
                let is_nan = |bytes: [u8; size_of::<$float>()]| $float::from_ne_bytes(bytes).is_nan();
                self.to_ne_bytes() == *bytes || (self.is_nan() && bytes.try_into().is_ok_and(is_nan))
            }
        }

        impl Float for $float {
            fn from_f64(value: f64) -> $float {
                value as $float
            }

            fn residual(self, other: $float) -> $float {
                self.mul_add(other, -(self * other))
            }
        }
    };
}

float!(f32, DType::F32);
float!(f64, DType::F64);
