//! Chains that are made from log-densities, against an integrator on the host.

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::chain::Form;
use nx_vulkan_engine::chain::log_density::{LogDensityChain, Mass, Start, Trace};
use nx_vulkan_engine::program::Program;
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Engine, Error, Options, Tensor, Type, Value};

use crate::common::{self, Rng};
use crate::models;

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

fn array(dtype: DType, shape: &[u64], values: &[f64]) -> Array {
    Array::new(&Type::new(dtype, shape), values.iter().map(|&x| Value::Float(x)))
}

fn tensor(dtype: DType, shape: &[u64], values: &[f64]) -> Tensor {
    let array = array(dtype, shape, values);
    Tensor::from_nx_bytes(engine(), &array.ty, &array.to_nx_bytes()).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.to_nx_bytes(engine(), None).unwrap();
    Array::from_nx_bytes(&tensor.view().ty(), &bytes).unwrap().values.iter().map(|v| v.real()).collect()
}

fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.below(1 << 40) as f64 / (1u64 << 40) as f64).sum::<f64>() - 6.0
}

fn normals(rng: &mut Rng, n: u64, scale: f64) -> Vec<f64> {
    (0..n).map(|_| normal(rng) * scale).collect()
}

/// A model, its data and where B chains start.
struct Case {
    model: Program,
    dtype: DType,
    d: u64,
    chains: u64,
    data: Vec<Vec<f64>>,
    mass: Mass,
    inverse_mass: Vec<f64>,
    q: Vec<f64>,
    p: Vec<f64>,
    step_size: Vec<f64>,
}

impl Case {
    fn new(model: Program, chains: u64, data: Vec<Vec<f64>>, step_size: f64, rng: &mut Rng) -> Case {
        let (d, dtype) = (model.inputs[0].shape[0], model.inputs[0].dtype);
        Case {
            dtype,
            d,
            chains,
            data,
            mass: Mass::Diagonal,
            inverse_mass: (0..d).map(|_| 0.5 + normal(rng).abs() / 2.0).collect(),
            q: normals(rng, chains * d, 0.3),
            p: normals(rng, chains * d, 1.0),
            step_size: (0..chains).map(|c| if c % 2 == 0 { step_size } else { -step_size }).collect(),
            model,
        }
    }

    fn dense(mut self, rng: &mut Rng) -> Case {
        let d = self.d as usize;
        self.mass = Mass::Dense;
        self.inverse_mass =
            (0..d * d).map(|i| if i / d == i % d { 1.0 } else { normal(rng) * 0.1 / d as f64 }).collect();
        self
    }

    fn captured(&self) -> Vec<Tensor> {
        let types = &self.model.inputs[1..];
        types.iter().zip(&self.data).map(|(ty, values)| tensor(ty.dtype, &ty.shape, values)).collect()
    }

    fn compile(&self) -> LogDensityChain {
        LogDensityChain::compile(engine(), &self.model, self.mass, None).unwrap()
    }

    /// Runs chains `from .. to`.
    fn run_some(&self, chain: &LogDensityChain, steps: u32, from: u64, to: u64) -> Trace {
        self.run_on(engine(), chain, steps, from, to)
    }

    fn run_on(&self, engine: &Arc<Engine>, chain: &LogDensityChain, steps: u32, from: u64, to: u64) -> Trace {
        let (d, n) = (self.d, to - from);
        let tensor = |dtype: DType, shape: &[u64], values: &[f64]| {
            let array = array(dtype, shape, values);
            Tensor::from_nx_bytes(engine, &array.ty, &array.to_nx_bytes()).unwrap()
        };
        let part = |values: &[f64], width: u64| values[(from * width) as usize..(to * width) as usize].to_vec();
        let shape: &[u64] = if self.mass == Mass::Dense { &[d, d] } else { &[d] };
        let types = &self.model.inputs[1..];
        let captured: Vec<Tensor> =
            types.iter().zip(&self.data).map(|(ty, values)| tensor(ty.dtype, &ty.shape, values)).collect();
        let start = Start {
            q: &tensor(self.dtype, &[n, d], &part(&self.q, d)),
            p: &tensor(self.dtype, &[n, d], &part(&self.p, d)),
            inverse_mass: &tensor(self.dtype, shape, &self.inverse_mass),
            step_size: &tensor(self.dtype, &[n], &part(&self.step_size, 1)),
            captured: &captured,
            steps,
        };
        chain.run(engine, &start, Compile::Allowed).unwrap()
    }

    fn run(&self, chain: &LogDensityChain, steps: u32) -> [Vec<f64>; 5] {
        all(&self.run_some(chain, steps, 0, self.chains))
    }

    /// Log-density and gradient at `q` in f64.
    fn density(&self, q: &[f64]) -> (f64, Vec<f64>) {
        let inputs = self.model.inputs.iter().zip(std::iter::once(q).chain(self.data.iter().map(|d| &d[..])));
        let inputs: Vec<Array> = inputs.map(|(ty, values)| array(ty.dtype, &ty.shape, values)).collect();
        let results = reference::run(&self.model, &inputs).unwrap();
        (results[0].values[0].real(), results[1].values.iter().map(|v| v.real()).collect())
    }

    fn velocity(&self, p: &[f64]) -> Vec<f64> {
        let d = self.d as usize;
        match self.mass {
            Mass::Diagonal => p.iter().zip(&self.inverse_mass).map(|(p, m)| p * m).collect(),
            Mass::Dense => self.inverse_mass.chunks(d).map(|row| row.iter().zip(p).map(|(m, p)| m * p).sum()).collect(),
        }
    }

    /// What chain `c` leaves, in f64 on the host.
    fn expected(&self, c: usize, steps: u32) -> [Vec<f64>; 5] {
        let d = self.d as usize;
        let (mut q, mut p) = (self.q[c * d..][..d].to_vec(), self.p[c * d..][..d].to_vec());
        let eps = self.step_size[c];
        let mut gradient = self.density(&q).1;
        let mut left: [Vec<f64>; 5] = Default::default();
        for _ in 0..steps {
            p.iter_mut().zip(&gradient).for_each(|(p, g)| *p += 0.5 * eps * g);
            q.iter_mut().zip(self.velocity(&p)).for_each(|(q, v)| *q += eps * v);
            let (log_density, g) = self.density(&q);
            gradient = g;
            p.iter_mut().zip(&gradient).for_each(|(p, g)| *p += 0.5 * eps * g);
            let kinetic: f64 = self.velocity(&p).iter().zip(&p).map(|(v, p)| v * p / 2.0).sum();
            left[0].extend(&q);
            left[1].extend(&p);
            left[2].extend(&gradient);
            left[3].push(log_density);
            left[4].push(kinetic - log_density);
        }
        left
    }

    /// Compares one chain with the host.
    fn check(&self, what: &str, steps: u32, tolerance: f64) {
        let chain = self.compile();
        let got = self.run(&chain, steps);
        assert_eq!(got, self.run(&chain, steps), "{what}: twice");
        let c = (self.chains - 1) as usize;
        for (k, (got, want)) in got.iter().zip(&self.expected(c, steps)).enumerate() {
            let got = &got[c * want.len()..][..want.len()];
            let scale = want.iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for (i, (x, y)) in got.iter().zip(want).enumerate() {
                assert!((x - y).abs() <= tolerance * scale, "{what}: output {k} at {i}: {x}, not {y}");
            }
        }
        common::assert_valid(engine());
    }
}

fn all(trace: &Trace) -> [Vec<f64>; 5] {
    [&trace.q, &trace.p, &trace.gradient, &trace.log_density, &trace.energy].map(numbers)
}

fn schools(dtype: DType, chains: u64, step_size: f64, rng: &mut Rng) -> Case {
    let data = vec![models::SCHOOL_EFFECTS.to_vec(), models::SCHOOL_ERRORS.to_vec()];
    Case::new(models::eight_schools(dtype), chains, data, step_size, rng)
}

fn regime(dtype: DType, n: u64, chains: u64, step_size: f64, rng: &mut Rng) -> Case {
    let data = vec![normals(rng, n, 0.8)];
    Case::new(models::regime(dtype, n), chains, data, step_size, rng)
}

/// Roundings that a few steps of these models make of f32 and of f64.
const F32: f64 = 2e-4;
const F64: f64 = 1e-11;

#[test]
fn normals_of_any_number() {
    let mut rng = Rng(7);
    for (dtype, d, steps, tolerance) in
        [(DType::F64, 1, 1, F64), (DType::F32, 2, 40, F32), (DType::F64, 31, 7, F64), (DType::F32, 256, 3, F32)]
    {
        let data = vec![(0..d).map(|i| 0.5 + i as f64 / d as f64).collect()];
        let case = Case::new(models::normals(dtype, d), 2, data, 0.1, &mut rng);
        case.check(&format!("{d} normals"), steps, tolerance);
    }
    let data = vec![(0..20).map(|i| 0.5 + f64::from(i) / 20.0).collect()];
    let case = Case::new(models::normals(DType::F64, 20), 3, data, 0.1, &mut rng).dense(&mut rng);
    case.check("20 normals with a dense mass matrix", 9, F64);
}

fn chain_as(case: &Case, form: Form) -> LogDensityChain {
    LogDensityChain::compile(engine(), &case.model, case.mass, Some(form)).unwrap()
}

/// Both forms give the same to the rounding; the device's has the same bits again, alone, and as part of more steps.
#[test]
fn the_whole_device_or_one_workgroup() {
    let mut rng = Rng(12);
    let mut of_normals = |dtype, d: u64, chains| {
        let data = vec![(0..d).map(|i| 0.5 + i as f64 / d as f64).collect()];
        Case::new(models::normals(dtype, d), chains, data, 0.1, &mut rng)
    };
    let (small, large) = (of_normals(DType::F64, 300, 2), of_normals(DType::F32, 1000, 2));
    let dense = of_normals(DType::F64, 300, 2).dense(&mut Rng(13));
    let of_schools = schools(DType::F64, 3, 0.1, &mut rng);
    let of_regime = regime(DType::F32, 200, 2, 0.01, &mut rng);
    for (case, tolerance) in [(small, F64), (large, F32), (dense, F64), (of_schools, 1e-10), (of_regime, 1e-3)] {
        const STEPS: u32 = 4;
        let (chain, other) = (chain_as(&case, Form::Device), chain_as(&case, Form::Workgroup));
        assert_eq!((chain.form(), other.form()), (Form::Device, Form::Workgroup));
        let got = case.run(&chain, STEPS);
        assert_eq!(got, case.run(&chain, STEPS), "twice");
        for (x, y) in got.iter().zip(&case.run(&other, STEPS)) {
            let scale = y.iter().fold(1.0f64, |m, x| m.max(x.abs()));
            let off = x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(x.len() == y.len() && off <= tolerance * scale, "{off} of {scale}, d = {}", case.d);
        }
        let last = case.chains - 1;
        let part = all(&case.run_some(&chain, STEPS - 1, last, last + 1));
        for (all, part) in got.iter().zip(&part) {
            let width = all.len() / (case.chains * u64::from(STEPS)) as usize;
            let from = last as usize * STEPS as usize * width;
            assert_eq!(&all[from..from + part.len()], &part[..], "fewer steps of the last chain alone");
        }
    }
    let many = models::regime(DType::F32, 1 << 17);
    assert_eq!(LogDensityChain::compile(engine(), &many, Mass::Diagonal, None).unwrap().form(), Form::Device);
    common::assert_valid(engine());
}

/// A logistic regression and where `chains` chains start.
fn logistic(dtype: DType, n: u64, d: u64, chains: u64, rng: &mut Rng) -> Case {
    let labels = (0..n).map(|_| rng.below(2) as f64).collect();
    let data = vec![normals(rng, n * d, 1.0), labels];
    Case::new(models::logistic(dtype, n, d), chains, data, 0.01, rng)
}

/// All steps of many chains are one submission, whose barriers are as many as for one chain. GPUs begin after 2,048
/// commands, and go on by what takes a certain time, which is less where others use the device.
#[test]
fn one_submission() {
    let mut rng = Rng(14);
    // Others submit on the shared engine.
    let engine = common::engine();
    for (dtype, steps) in [(DType::F32, 200), (DType::F64, 20)] {
        let case = logistic(dtype, 500, 21, 16, &mut rng);
        let chain = LogDensityChain::compile(&engine, &case.model, case.mass, Some(Form::Device)).unwrap();
        let mut barriers = vec![];
        for chains in [1, 16] {
            let mut last = None;
            for _ in 0..2 {
                engine.wait().unwrap();
                let before = engine.stats();
                let trace = case.run_on(&engine, &chain, steps, 0, chains);
                let after = engine.stats();
                let (submissions, dispatches) =
                    (after.submissions - before.submissions, after.dispatches - before.dispatches);
                let most = match engine.caps().kind {
                    DeviceKind::Cpu => 1,
                    _ => 2 + dispatches / 1000,
                };
                assert!((1..=most).contains(&submissions), "{submissions} of {chains} chains of {dtype}");
                let energy = trace.energy.to_nx_bytes(&engine, None).unwrap();
                assert_eq!(last.replace(energy.clone()).unwrap_or(energy.clone()), energy, "twice");
                barriers.push(after.barriers - before.barriers);
            }
        }
        barriers.dedup();
        assert_eq!(barriers.len(), 1, "{barriers:?}");
    }
    common::assert_valid(&engine);
}

/// More steps than a submission has commands, and memory for some of the chains only.
#[test]
fn limits_of_submissions_and_memory() {
    let mut rng = Rng(16);
    let limited = Engine::open_with(&Options { memory_limit_bytes: Some(32 << 20), ..common::options() }).unwrap();
    let case = logistic(DType::F32, 9, 3, 300, &mut rng);
    let chain = LogDensityChain::compile(&limited, &case.model, case.mass, Some(Form::Device)).unwrap();
    let before = limited.stats().submissions;
    let trace = case.run_on(&limited, &chain, 100, 0, 300);
    let submissions = limited.stats().submissions - before;
    assert!(submissions >= 2, "{submissions}");
    let chain = chain_as(&case, Form::Device);
    for c in [0, 1, 150, 299] {
        let alone = all(&case.run_some(&chain, 100, c, c + 1));
        for (alone, all) in alone.iter().zip([&trace.q, &trace.p, &trace.gradient, &trace.log_density, &trace.energy]) {
            let bytes = all.to_nx_bytes(&limited, None).unwrap();
            let values: Vec<f64> = bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_ne_bytes(b))).collect();
            assert_eq!(values[alone.len() * c as usize..][..alone.len()], alone[..], "chain {c}");
        }
    }
    common::assert_valid(&limited);
}

/// More chains than lie side by side, and rows that don't begin where vectors do.
#[test]
fn groups_of_chains() {
    let mut rng = Rng(15);
    let case = logistic(DType::F32, 9, 3, 1030, &mut rng);
    let chain = chain_as(&case, Form::Device);
    let all_chains = case.run(&chain, 2);
    for (from, to) in [(0, 1), (511, 514), (1020, 1030)] {
        for (part, all) in all(&case.run_some(&chain, 2, from, to)).iter().zip(&all_chains) {
            let width = all.len() / 1030;
            assert_eq!(part[..], all[from as usize * width..to as usize * width], "chains {from} to {to}");
        }
    }
    for (got, want) in all_chains.iter().zip(&case.expected(1029, 2)) {
        let got = &got[got.len() - want.len()..];
        assert!(got.iter().zip(want).all(|(x, y)| (x - y).abs() <= F32 * y.abs().max(1.0)), "{got:?}, not {want:?}");
    }
    common::assert_valid(engine());
}

#[test]
fn eight_schools() {
    let mut rng = Rng(8);
    schools(DType::F64, 3, 0.1, &mut rng).check("eight schools in f64", 12, 1e-10);
    schools(DType::F32, 2, 0.1, &mut rng).check("eight schools in f32", 12, F32);
}

#[test]
fn mixtures_of_any_length() {
    let mut rng = Rng(9);
    for (dtype, n, steps, tolerance) in [
        (DType::F64, 1, 5, 1e-10),
        (DType::F64, 200, 4, 1e-9),
        (DType::F32, 200, 4, 1e-3),
        (DType::F32, 10_000, 1, 1e-3),
    ] {
        let chains = if n == 10_000 { 2 } else { 1 };
        regime(dtype, n, chains, 0.4 / (n as f64 + 4.0).sqrt() / 4.0, &mut rng).check(
            &format!("{n} returns in {dtype}"),
            steps,
            tolerance,
        );
    }
}

/// The first steps are those of a shorter run, and a chain is the same alone and among others, to the bit.
#[test]
fn prefixes_and_batches() {
    let mut rng = Rng(10);
    let case = schools(DType::F32, 5, 0.2, &mut rng);
    let chain = case.compile();
    let long = case.run(&chain, 1024);
    for steps in [1u32, 2, 7, 33] {
        for (short, long) in case.run(&chain, steps).iter().zip(&long) {
            let width = long.len() / (5 * 1024);
            for (short, long) in short.chunks(width * steps as usize).zip(long.chunks(width * 1024)) {
                assert_eq!(short, &long[..short.len()], "{steps} steps");
            }
        }
    }
    for c in 0..5 {
        let alone = all(&case.run_some(&chain, 1024, c, c + 1));
        for (alone, long) in alone.iter().zip(&long) {
            assert_eq!(alone[..], long[alone.len() * c as usize..][..alone.len()], "chain {c}");
        }
    }
    common::assert_valid(engine());
}

#[test]
fn the_energy_error_falls_with_the_square_of_the_step() {
    let mut rng = Rng(11);
    let mut case = schools(DType::F64, 1, 1.0, &mut rng);
    let chain = case.compile();
    // From one end of the same time to the other.
    let mut change = |steps: u32| {
        case.step_size = vec![0.8 / f64::from(steps)];
        let (q, p) = (case.q.clone(), case.p.clone());
        let kinetic: f64 = case.velocity(&p).iter().zip(&p).map(|(v, p)| v * p / 2.0).sum();
        let energy = kinetic - case.density(&q).0;
        (case.run(&chain, steps)[4][steps as usize - 1] - energy).abs()
    };
    let (coarse, fine) = (change(16), change(32));
    assert!((3.5..4.5).contains(&(coarse / fine)), "{coarse} and {fine}");
}

#[test]
fn divergence_shows_in_the_energy() {
    let mut rng = Rng(12);
    let mut case = schools(DType::F32, 2, 1e30, &mut rng);
    case.step_size[1] = 0.01;
    let chain = case.compile();
    let energy = &case.run(&chain, 4)[4];
    assert!(!energy[3].is_finite(), "{energy:?}");
    assert!(energy[4..].iter().all(|e| e.is_finite()), "{energy:?}");
}

#[test]
fn wrong_calls_are_errors() {
    let mut rng = Rng(13);
    let case = schools(DType::F32, 2, 0.1, &mut rng);
    let chain = case.compile();
    let good = |d: u64, n: u64| tensor(DType::F32, &[n, d], &vec![0.1; (d * n) as usize]);
    let (q, mass, steps) = (good(10, 2), tensor(DType::F32, &[10], &[1.0; 10]), tensor(DType::F32, &[2], &[0.1; 2]));
    let captured = case.captured();
    let start = Start { q: &q, p: &q, inverse_mass: &mass, step_size: &steps, captured: &captured, steps: 3 };
    let refused = |start: Start<'_>| {
        assert!(
            matches!(chain.run(engine(), &start, Compile::Allowed), Err(Error::InvalidArgument { .. })),
            "{start:?}"
        );
    };
    refused(Start { steps: 0, ..start });
    refused(Start { steps: u32::MAX, ..start });
    refused(Start { p: &good(9, 2), ..start });
    refused(Start { q: &mass, ..start });
    refused(Start { step_size: &mass, ..start });
    refused(Start { captured: &captured[..1], ..start });
    refused(Start { inverse_mass: &good(10, 10), ..start });
    let compile = |model: &Program| LogDensityChain::compile(engine(), model, Mass::Diagonal, None).map(|_| ());
    assert!(matches!(compile(&Program::default()), Err(Error::InvalidProgram { .. })));
    let large = models::normals(DType::F32, (1 << 18) + 1);
    let in_workgroup = LogDensityChain::compile(engine(), &large, Mass::Diagonal, Some(Form::Workgroup));
    assert!(matches!(in_workgroup, Err(Error::Unsupported { .. })));
    assert!(
        matches!(chain_as(&case, Form::Device).run(engine(), &start, Compile::Refused), Err(Error::NeedsCompile)),
        "recording takes its time"
    );
    chain.run(engine(), &start, Compile::Allowed).unwrap();
}
