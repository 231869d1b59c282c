//! Measures a device, and makes a model of what was measured.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_device::stream::Stream;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use super::measured::Calibration;
use super::{Class, DeviceModel, guess, stored};
use crate::kernels::dot::{Outline, Tiling, estimate, matrix_candidates, plain};
use crate::kernels::map::{Operand, Shapes, map};
use crate::program::attribute::Axes;
use crate::program::{Elementwise, Op, Unary};
use crate::{CType, Compile, DType, Engine, Error, Precision, Result, Tensor, Type, eager};

/// What [`Engine::calibrate`] measured, and where it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// Whose sort of device it is.
    pub class: Class,
    /// Multiprocessors, compute units or cores: what runs workgroups beside each other.
    pub processors: u64,
    /// What was measured.
    pub measured: Calibration,
    /// The file; none where there is no folder for the cache, or it can't be written.
    pub path: Option<PathBuf>,
}

/// What models are made of, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationState {
    /// Whose sort of device it is, which guesses are by.
    pub class: Class,
    /// What runs workgroups beside each other.
    pub processors: u64,
    /// Whether the numbers were measured on the device.
    pub is_measured: bool,
    /// Where measured numbers are kept, whether or not there are any; none where there is no folder for the cache.
    pub path: Option<PathBuf>,
}

/// What is measured, in this order.
const MEASURED: [&str; 7] = [
    "copies",
    "fma in f32",
    "dispatches side by side",
    "dispatches that wait",
    "products of f32",
    "products of f64",
    "products of f16 on matrix units",
];

/// Dispatches one after the other in one measurement, and measurements, the fastest of which counts.
const DISPATCHES: u64 = 512;
const MEASUREMENTS: usize = 5;

/// Sides of the products that are measured, on GPUs and on CPU devices.
const SIDE: u64 = 2048;
const SIDE_CPU: u64 = 256;

/// Products in one measurement, so that the wait at its end does not count.
const PRODUCTS: u64 = 8;

/// What another dispatch costs a product, with the tails of both kernels, in waits of one small dispatch for another:
/// 8,000 cycles of an H100, on which they take 2.1 us, and 40,000 of lavapipe, on which they take 20.
const DISPATCH_WAITS: f64 = 2.08;
const DISPATCH_WAITS_CPU: f64 = 1.0;

/// By how much a measured product may correct the model's: beyond, the measurement is not to be trusted.
const MOST_CORRECTION: f64 = 4.0;

/// Nanoseconds that commands side by side take at most of the device's memory, and of its arithmetic, to be short.
const SHORT_NS: f64 = 4000.0;

/// Shares of measured rates that submissions may count on.
const SURE_SHARE: f64 = 0.5;

impl Calibration {
    /// Puts measured numbers in place of guesses.
    pub(super) fn apply(&self, model: &mut DeviceModel) {
        let is_cpu = model.class == Class::Cpu;
        let lanes = model.processors as f64 * model.products.lanes;
        // What the clock would be if all lanes did an fma in each cycle.
        let cycles_per_ns = self.flops_per_second / 2.0 / lanes / 1e9;
        let waits = if is_cpu { DISPATCH_WAITS_CPU } else { DISPATCH_WAITS };
        model.products.dispatch = waits * self.wait_ns * cycles_per_ns;
        model.products.bytes = self.bytes_per_second / 1e9 / cycles_per_ns;
        if !is_cpu {
            model.programs.joins = guess::joins(model.processors, &model.products);
        }
        let correction = |cycles: Option<f64>, side: u64, rate: f64| {
            let measured = side.pow(3) as f64 / rate * 1e9 * cycles_per_ns;
            cycles.map_or(1.0, |cycles| (cycles / measured).clamp(1.0 / MOST_CORRECTION, MOST_CORRECTION))
        };
        let side = side(model);
        let of_f32 = correction(by_tiles(model, DType::F32, side), side, self.f32_products_per_second);
        let f64_rate = self.f64_products_per_second;
        let of_f64 = f64_rate.map(|rate| correction(by_tiles(model, DType::F64, side), side, rate));
        let units_rate = self.unit_products_per_second;
        let of_units = units_rate.map(|rate| correction(by_units(model, side), side, rate));
        model.products.lanes *= of_f32;
        if let Some(of_f64) = of_f64 {
            model.products.f64_share *= of_f64 / of_f32;
        }
        if let Some(of_units) = of_units {
            let units = &mut model.products.units;
            let rates = units.two_f16.iter_mut().chain(&mut units.one_f16).chain(&mut units.own);
            let rates = rates.chain(&mut units.fragments).chain(&mut units.bytes);
            let rates = rates.chain([&mut units.three_bf16, &mut units.own_three_bf16]);
            rates.for_each(|rate| *rate *= of_units);
        }
        if !is_cpu {
            model.short.bytes = (self.bytes_per_second * SHORT_NS / 1e9) as u64;
            model.short.flops = (self.flops_per_second * SHORT_NS / 1e9) as u64;
            model.programs.recompute.flops_per_byte = (self.flops_per_second / self.bytes_per_second) as u64;
        }
        model.rates.bytes_per_ns = self.bytes_per_second * SURE_SHARE / 1e9;
        model.rates.command_ns = self.dispatch_ns.ceil() as u64;
        model.rates.barrier_ns = (self.wait_ns / SURE_SHARE).ceil() as u64;
    }
}

/// The side of the products that are measured.
fn side(model: &DeviceModel) -> u64 {
    if model.class == Class::Cpu { SIDE_CPU } else { SIDE }
}

fn square(dtype: DType, side: u64) -> Outline {
    Outline {
        batches: 1,
        rows: side,
        columns: side,
        depth: side,
        operands: [dtype; 2],
        product: dtype,
        looped_steps: 0,
        precision: Precision::Highest,
        own: [false; 2],
        repeats: false,
    }
}

/// Cycles of a square product by the model, where tiles take it.
fn by_tiles(model: &DeviceModel, dtype: DType, side: u64) -> Option<f64> {
    let (outline, sum) = (square(dtype, side), dtype.ctype());
    let choice = plain(model, &outline, sum, None);
    match choice.tiling {
        // A CPU device takes such products by lanes.
        Tiling::Tiled(tile) if model.class != Class::Cpu => Some(estimate(model, &outline, sum, &tile, choice.splits)),
        _ => None,
    }
}

/// Cycles of a square product of f16 by the model, where matrix units take it.
fn by_units(model: &DeviceModel, side: u64) -> Option<f64> {
    let own = [model.class.is_nvidia(); 2];
    let found = matrix_candidates(model, &Outline { own, ..square(DType::F16, side) }, CType::F32);
    found.into_iter().map(|(_, _, cycles)| cycles).min_by(f64::total_cmp)
}

impl Engine {
    /// What kernels are chosen by.
    pub fn calibration(&self) -> CalibrationState {
        let &DeviceModel { class, processors, .. } = self.model();
        let path = self.cache_dir().map(|dir| stored::path(dir, self.info()));
        CalibrationState { class, processors, is_measured: self.is_calibrated(), path }
    }

    /// Measures the device and keeps what was found in the cache folder, for engines that are opened from then on: this
    /// one chooses as before, so that its results stay the same. Takes a second or two, in which others should not use
    /// the device. `begins` is told what is measured next, which of all measurements it is, from 0 on, and how many
    /// there are.
    ///
    /// # Errors
    /// The sticky error of a failed submission; `OutOfMemory` where half a gigabyte of memory is not to be had.
    pub fn calibrate(self: &Arc<Engine>, begins: impl FnMut(&'static str, usize, usize)) -> Result<Calibrated> {
        let was_on = self.stream().set_profiling(false)?;
        let measured = self.measure(begins);
        if was_on {
            self.stream().set_profiling(true)?;
        }
        let measured = measured?.rounded();
        if !measured.is_plausible() {
            let (expected, got) = ("numbers of a device".to_string(), format!("{measured:?}"));
            return Err(Error::InvalidArgument { what: "calibration", expected, got });
        }
        let path = self.cache_dir().and_then(|dir| stored::store(dir, self.info(), &measured));
        let &DeviceModel { class, processors, .. } = self.model();
        Ok(Calibrated { class, processors, measured, path })
    }

    fn measure(self: &Arc<Engine>, mut begins: impl FnMut(&'static str, usize, usize)) -> Result<Calibration> {
        let side = side(self.model());
        let takes = [true, true, true, true, true, self.caps().shader_float64, by_units(self.model(), side).is_some()];
        let [copies, fma, alone, waiting, of_f32, of_f64, of_units] = MEASURED;
        let all = MEASURED.into_iter().zip(takes).filter(|&(_, takes)| takes).map(|(what, _)| what);
        let all: Vec<&str> = all.collect();
        let mut begin = |what: &'static str| {
            let place = all.iter().position(|&other| other == what);
            if let Some(place) = place {
                begins(what, place, all.len());
            }
            place.is_some()
        };
        begin(copies);
        let bytes_per_second = self.bytes_per_second()?;
        begin(fma);
        let flops_per_second = self.flops_per_second()?;
        begin(alone);
        let dispatch_ns = self.dispatch_ns(|k| [0, 1 + k % 31])?;
        begin(waiting);
        let wait_ns = self.dispatch_ns(|k| [k % 32, (k + 1) % 32])?;
        begin(of_f32);
        let f32_products_per_second = self.products_per_second(DType::F32, side)?;
        let f64_products_per_second = begin(of_f64).then(|| self.products_per_second(DType::F64, side)).transpose()?;
        let unit_products_per_second =
            begin(of_units).then(|| self.products_per_second(DType::F16, side)).transpose()?;
        Ok(Calibration {
            bytes_per_second,
            flops_per_second,
            dispatch_ns,
            wait_ns,
            f32_products_per_second,
            f64_products_per_second,
            unit_products_per_second,
        })
    }

    /// Nanoseconds of each of many small kernels of one submission; the k-th reads and writes these two of 32 buffers.
    fn dispatch_ns(&self, places: impl Fn(u64) -> [u64; 2]) -> Result<f64> {
        let ty = Type::new(DType::F32, &[64]);
        let tensors = (0..32).map(|_| Tensor::uninitialized(self, &ty)).collect::<Result<Vec<Tensor>>>()?;
        for tensor in &tensors {
            self.fill(&tensor.buffer, 0, ty.size_bytes(), 0)?;
        }
        let negated = Step { op: Elementwise::Unary(Unary::Negate), args: smallvec![Ref::Input(0)], out: DType::F32 };
        let record = |k: u64| {
            let [from, to] = places(k).map(|k| {
                let tensor = &tensors[k as usize];
                Operand::new(&tensor.buffer, &tensor.view, Element::Typed(DType::F32))
            });
            let (steps, outputs) = (smallvec![negated.clone()], [(Ref::Result(0), to)]);
            map(self, &ty.shape, &[from], steps, &outputs, Shapes::Any, Compile::Allowed)
        };
        let mut shortest = f64::MAX;
        for _ in 0..MEASUREMENTS {
            self.wait()?;
            Stream::hold(|| (0..DISPATCHES).try_for_each(record))?;
            // Recording is the host's time.
            let start = Instant::now();
            self.wait()?;
            shortest = shortest.min(start.elapsed().as_secs_f64());
        }
        Ok((shortest * 1e9 / DISPATCHES as f64).max(1.0))
    }

    /// Multiplications per second of square products, as the model launches them.
    fn products_per_second(self: &Arc<Engine>, dtype: DType, side: u64) -> Result<f64> {
        let ty = Type::new(dtype, &[side, side]);
        let operands = [Tensor::uninitialized(self, &ty)?, Tensor::uninitialized(self, &ty)?];
        for operand in &operands {
            self.fill(&operand.buffer, 0, ty.size_bytes(), 0)?;
        }
        let axis = |axis: usize| Axes::from_slice(&[axis]);
        let op = Op::Dot {
            contract_a: axis(1),
            batch_a: axis(0)[1..].into(),
            contract_b: axis(0),
            batch_b: axis(0)[1..].into(),
        };
        let seconds = self.shortest(|| {
            (0..PRODUCTS).try_for_each(|_| eager::run(self, &op, &operands, &ty, Compile::Allowed).map(|_| ()))
        })?;
        Ok((PRODUCTS * side.pow(3)) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn engines_choose_by_what_was_measured_before_they_were_opened() {
        let dir = std::env::temp_dir().join(format!("nx-vulkan-calibration-{}", std::process::id()));
        let options = Options { cache_dir: Some(dir.clone()), ..Options::from_env() };
        let engine = Engine::open_with(&options).unwrap();
        let guess = DeviceModel::of(engine.caps());
        assert_eq!(*engine.model(), guess);
        let state = engine.calibration();
        assert!(!state.is_measured && state.class == guess.class);
        let mut told = vec![];
        let Calibrated { measured, path, .. } = engine.calibrate(|what, at, of| told.push((what, at, of))).unwrap();
        assert_eq!(told.first().map(|&(what, at, _)| (what, at)), Some(("copies", 0)));
        assert!(told.iter().enumerate().all(|(i, &(_, at, of))| i == at && of == told.len()), "{told:?}");
        assert_eq!(state.path, path);
        assert!(measured.is_plausible() && measured.wait_ns >= 0.5 * measured.dispatch_ns, "{measured:?}");
        assert_eq!(*engine.model(), guess, "an open engine stays as it is");
        let path = path.unwrap();
        let again = Engine::open_with(&options).unwrap();
        assert!(again.calibration().is_measured);
        let model = again.model().clone();
        assert_eq!(model, DeviceModel::calibrated(engine.caps(), &measured));
        assert_ne!(model, guess);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(*Engine::open_with(&options).unwrap().model(), guess);
        std::fs::remove_dir_all(&dir).unwrap();
        let nowhere = Engine::open_with(&Options { cache_dir: None, ..options }).unwrap();
        assert_eq!(nowhere.calibrate(|_, _, _| {}).unwrap().path, None);
    }
}
