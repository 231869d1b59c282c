//! Leapfrog chains: families against f64 arithmetic on the host, determinism, prefixes, batches, and every refusal.

use std::path::Path;

use nx_vulkan_engine::chain::{self, Real, Request};
use nx_vulkan_engine::nativev::{Failure, Outcome};

use crate::common::Rng;
use crate::raw::{Raw, shader};

const F64_RELATIVE: f64 = 1e-12;
const F32_RELATIVE: f64 = 1e-4;

/// q, p, gradient, log density.
type Bytes = [Vec<u8>; 4];

fn run(raw: &Raw, path: &Path, request: &Request<'_>) -> Outcome<Bytes> {
    let chain = chain::start(&raw.call(path), request)?;
    let mut bytes = vec![0; chain.size_bytes() as usize];
    chain.download(&raw.engine, &mut bytes)?;
    Ok(chain.ranges().clone().map(|range| bytes[range.start as usize..range.end as usize].to_vec()))
}

fn bytes_of(real: Real, values: &[f64]) -> Vec<u8> {
    match real {
        Real::F32 => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        Real::F64 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

fn values_of(real: Real, bytes: &[u8]) -> Vec<f64> {
    match real {
        Real::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Real::F64 => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// The regime model: 8 dimensions, its priors, an instance of its own for every `seed`.
struct Regime {
    real: Real,
    n_obs: usize,
    q: Vec<f64>,
    p: Vec<f64>,
    extras: Vec<f64>,
}

const PRIORS: [f64; 12] = [0.001, 0.01, 0.02, 0.001, 0.01, 0.02, 0.05, 0.5, 0.0, 1.0, 0.0, 1.0];

impl Regime {
    fn new(real: Real, n_obs: usize, seed: u64) -> Regime {
        let mut rng = Rng(seed);
        let mut uniform = || rng.below(1 << 32) as f64 / (1u64 << 32) as f64;
        Regime {
            real,
            n_obs,
            q: [0.01, 0.05, 0.02, 0.05, 0.02, 0.05, 0.05, 0.05].to_vec(),
            p: (0..8).map(|_| uniform() - 0.5).collect(),
            extras: (0..n_obs).map(|_| uniform() * 0.02 - 0.01).chain([1e-4; 8]).collect(),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        shader(if self.real == Real::F64 { "examples/regime_f64" } else { "examples/regime" })
    }

    fn push(&self, k: u32, n_instances: u32) -> Vec<u8> {
        let floats: Vec<f64> = [0.05].into_iter().chain(PRIORS).collect();
        [words(&[k, self.n_obs as u32, 8, n_instances]), bytes_of(self.real, &floats)].concat()
    }

    fn run(&self, raw: &Raw, k: u32) -> Outcome<Bytes> {
        let [q, p, extras] = [&self.q, &self.p, &self.extras].map(|values| bytes_of(self.real, values));
        let push = self.push(k, 1);
        let request =
            Request { real: self.real, batched: false, q: &q, p: &p, extras: &extras, push: &push, k: u64::from(k) };
        run(raw, &self.path(), &request)
    }
}

fn run_batch(raw: &Raw, instances: &[Regime], k: u32) -> Outcome<Bytes> {
    let first = &instances[0];
    let concat = |of: fn(&Regime) -> &Vec<f64>| -> Vec<u8> {
        instances.iter().flat_map(|instance| bytes_of(first.real, of(instance))).collect()
    };
    let [q, p, extras] = [concat(|r| &r.q), concat(|r| &r.p), concat(|r| &r.extras)];
    let push = first.push(k, instances.len() as u32);
    let request =
        Request { real: first.real, batched: true, q: &q, p: &p, extras: &extras, push: &push, k: u64::from(k) };
    run(raw, &first.path(), &request)
}

#[test]
fn same_inputs_give_the_same_bits_and_a_longer_chain_begins_with_the_shorter() {
    let raw = Raw::new();
    for real in [Real::F32, Real::F64] {
        for n_obs in [0, 1, 200, 700] {
            let regime = Regime::new(real, n_obs, 3);
            let long = regime.run(&raw, 7).unwrap();
            assert_eq!(long, regime.run(&raw, 7).unwrap());
            assert!(values_of(real, &long[0]).iter().all(|x| x.is_finite()), "{real:?}, {n_obs} observations");
            for k in 1..7 {
                let short = regime.run(&raw, k).unwrap();
                for (short, long) in short.iter().zip(&long) {
                    assert_eq!(short.len() * 7, long.len() * k as usize);
                    assert_eq!(short[..], long[..short.len()]);
                }
            }
        }
    }
    raw.finish();
}

#[test]
fn a_batch_gives_the_bits_of_its_instances() {
    let raw = Raw::new();
    for real in [Real::F32, Real::F64] {
        let instances: Vec<Regime> = (0..5).map(|seed| Regime::new(real, 200, 100 + seed)).collect();
        let batch = run_batch(&raw, &instances, 9).unwrap();
        let singles: Vec<Bytes> = instances.iter().map(|instance| instance.run(&raw, 9).unwrap()).collect();
        for output in 0..4 {
            let expected: Vec<u8> = singles.iter().flat_map(|single| single[output].clone()).collect();
            assert_eq!(batch[output], expected, "{real:?}, output {output}");
        }
    }
    raw.finish();
}

#[test]
fn the_longest_chain_and_threads_at_once() {
    let raw = Raw::new();
    let regime = Regime::new(Real::F32, 10, 5);
    let long = regime.run(&raw, 4096).unwrap();
    assert_eq!(long.map(|bytes| bytes.len()), [4096 * 32, 4096 * 32, 4096 * 32, 4096 * 4]);
    let expected = regime.run(&raw, 20).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(regime.run(&raw, 20).unwrap(), expected)));
        }
    });
    raw.finish();
}

/// n independent Normal(mu, sigma): what every step leaves.
fn normal_chain(q: &[f64], p: &[f64], inv_mass: &[f64], k: usize, [eps, mu, sigma]: [f64; 3]) -> [Vec<f64>; 4] {
    let (mut q, mut p) = (q.to_vec(), p.to_vec());
    let grad = |q: f64| -(q - mu) / (sigma * sigma);
    let mut out: [Vec<f64>; 4] = Default::default();
    for _ in 0..k {
        for i in 0..q.len() {
            p[i] += 0.5 * eps * grad(q[i]);
            q[i] += eps * inv_mass[i] * p[i];
            p[i] += 0.5 * eps * grad(q[i]);
        }
        out[0].extend(&q);
        out[1].extend(&p);
        out[2].extend(q.iter().map(|&q| grad(q)));
        let density = |q: &f64| -0.5 * ((q - mu) / sigma).powi(2) - sigma.ln() - 0.5 * std::f64::consts::TAU.ln();
        out[3].push(q.iter().map(density).sum());
    }
    out
}

#[test]
fn a_family_integrates_independent_elements() {
    let raw = Raw::new();
    for (real, name, relative) in
        [(Real::F32, "leapfrog_chain_normal", F32_RELATIVE), (Real::F64, "leapfrog_chain_normal_f64", F64_RELATIVE)]
    {
        for n in [1usize, 8, 256, 1000] {
            let mut rng = Rng(9);
            let mut reals = |low: f64| -> Vec<f64> { (0..n).map(|_| low + rng.below(1000) as f64 / 500.0).collect() };
            let (q, p, inv_mass) = (reals(-1.0), reals(-1.0), reals(0.5));
            let constants = [-0.1, 0.3, 1.7];
            let push = [words(&[n as u32, 11]), bytes_of(real, &constants)].concat();
            let [dq, dp, dm] = [&q, &p, &inv_mass].map(|values| bytes_of(real, values));
            let request = Request { real, batched: false, q: &dq, p: &dp, extras: &dm, push: &push, k: 11 };
            let got = run(&raw, &shader(name), &request).unwrap();
            let want = normal_chain(&q, &p, &inv_mass, 11, constants);
            for (got, want) in got.iter().zip(&want) {
                let got = values_of(real, got);
                assert_eq!(got.len(), want.len());
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() <= relative * (1.0 + want.abs()), "{name}, n = {n}: {got}, not {want}");
                }
            }
        }
    }
    raw.finish();
}

/// Observations of N(q_0, 1) under a prior N(0, 1) of every element: what every step leaves.
fn observed_chain(q: &[f64], p: &[f64], extras: &[f64], k: usize, eps: f64) -> [Vec<f64>; 4] {
    let (mut q, mut p) = (q.to_vec(), p.to_vec());
    let (obs, inv_mass) = extras.split_at(extras.len() - q.len());
    let residual = |q: &[f64]| obs.iter().map(|x| x - q[0]).sum::<f64>();
    let grad = |q: &[f64], i: usize| -q[i] + if i == 0 { residual(q) } else { 0.0 };
    let mut out: [Vec<f64>; 4] = Default::default();
    for _ in 0..k {
        let before = q.clone();
        (0..q.len()).for_each(|i| p[i] += 0.5 * eps * grad(&before, i));
        (0..q.len()).for_each(|i| q[i] += eps * inv_mass[i] * p[i]);
        (0..q.len()).for_each(|i| p[i] += 0.5 * eps * grad(&q, i));
        out[0].extend(&q);
        out[1].extend(&p);
        out[2].extend((0..q.len()).map(|i| grad(&q, i)));
        let squares = |x: f64| -0.5 * x * x;
        out[3].push(q.iter().map(|&q| squares(q)).chain(obs.iter().map(|x| squares(x - q[0]))).sum());
    }
    out
}

#[test]
fn generated_shaders_get_the_head_of_longer_push_data() {
    let raw = Raw::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/synth_chain.spv");
    for (d, n_obs, k) in [(1, 0, 1), (3, 5, 8), (256, 600, 3), (8, 1000, 32)] {
        let mut rng = Rng(d as u64);
        let mut reals = |n: usize| -> Vec<f64> { (0..n).map(|_| rng.below(1000) as f64 / 500.0 - 1.0).collect() };
        let (q, p) = (reals(d), reals(d));
        let extras: Vec<f64> = reals(n_obs).into_iter().chain(vec![0.5; d]).collect();
        // Two doubles of priors that the shader has compiled in and does not declare.
        let push = [words(&[k, n_obs as u32, d as u32, 0]), bytes_of(Real::F64, &[-0.01, 7.0, 8.0])].concat();
        let [dq, dp, de] = [&q, &p, &extras].map(|values| bytes_of(Real::F64, values));
        let request =
            Request { real: Real::F64, batched: false, q: &dq, p: &dp, extras: &de, push: &push, k: u64::from(k) };
        let got = run(&raw, &path, &request).unwrap();
        for (got, want) in got.iter().zip(&observed_chain(&q, &p, &extras, k as usize, -0.01)) {
            let got = values_of(Real::F64, got);
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() <= F64_RELATIVE * (1.0 + want.abs()), "d = {d}: {got}, not {want}");
            }
        }
        let shorter = Request { push: &push[..20], ..request };
        assert_eq!(run(&raw, &path, &shorter), Err(Failure::BadInput));
    }
    raw.finish();
}

#[test]
fn push_data_is_cut_to_what_the_shader_declares_and_refused_when_shorter() {
    let raw = Raw::new();
    let regime = Regime::new(Real::F32, 4, 1);
    let [q, p, extras] = [&regime.q, &regime.p, &regime.extras].map(|values| bytes_of(regime.real, values));
    let request = |push: &[u8]| {
        let request = Request { real: Real::F32, batched: false, q: &q, p: &p, extras: &extras, push, k: 3 };
        run(&raw, &regime.path(), &request)
    };
    let push = regime.push(3, 1);
    let longer = [push.clone(), vec![0xff; 128 - push.len()]].concat();
    assert_eq!(request(&push).unwrap(), request(&longer).unwrap());
    assert_eq!(request(&push[..push.len() - 4]), Err(Failure::BadInput));
    assert_eq!(request(&[longer, vec![0; 4]].concat()), Err(Failure::BadInput));
    raw.finish();
}

#[test]
fn shaders_that_do_not_fit_are_refused() {
    let raw = Raw::new();
    let regime = Regime::new(Real::F64, 4, 1);
    let [q, p, extras] = [&regime.q, &regime.p, &regime.extras].map(|values| bytes_of(regime.real, values));
    let push = regime.push(3, 1);
    let request = Request { real: Real::F64, batched: false, q: &q, p: &p, extras: &extras, push: &push, k: 3 };
    for (name, words) in
        [("examples/regime", "4 bytes"), ("elementwise_binary", "[0, 1, 2]"), ("matmul_f64", "[0, 1, 2]")]
    {
        let found = run(&raw, &shader(name), &request);
        assert!(
            matches!(&found, Err(Failure::Dispatch(m)) if m.contains(words) || m.contains("elements")),
            "{found:?}"
        );
    }
    let missing = run(&raw, Path::new("/nonexistent.spv"), &request);
    assert!(matches!(missing, Err(Failure::SpvRead(_))), "{missing:?}");
    // The arguments are looked at before the file.
    let wrong = Request { p: &p[8..], ..request };
    assert_eq!(run(&raw, Path::new("/nonexistent.spv"), &wrong), Err(Failure::SizeMismatch));
    assert_eq!(run(&raw, &regime.path(), &Request { k: 4, ..request }), Err(Failure::BadInput));
    raw.finish();
}

#[test]
fn more_instances_than_the_device_takes_fail_to_dispatch() {
    let raw = Raw::new();
    let limit = raw.engine.caps().max_workgroup_count[0];
    if limit > 1 << 20 {
        println!("skipped: the device takes {limit} workgroups");
        return;
    }
    let n = limit + 1;
    let push = [words(&[1, 0, 1, n]), vec![0; 4 + 48]].concat();
    let q = vec![0; 4 * n as usize];
    let request = Request { real: Real::F32, batched: true, q: &q, p: &q, extras: &q, push: &push, k: 1 };
    let found = run(&raw, &shader("examples/regime"), &request);
    assert!(matches!(&found, Err(Failure::Dispatch(m)) if m.contains("workgroups")), "{found:?}");
    raw.finish();
}

#[test]
fn results_above_the_largest_storage_buffer_are_refused_by_their_limit() {
    let raw = Raw::new();
    let limit = raw.engine.caps().max_storage_buffer_range_bytes;
    for (batched, name, ask_for) in [
        (false, "leapfrog_chain_normal", "fewer elements or steps"),
        (true, "examples/regime", "fewer instances or steps"),
    ] {
        let k = 4096u32;
        // In a batch, instances of 8 elements and no observations.
        let n = (limit / (4 * u64::from(k)) + 1).next_multiple_of(8);
        let zeros = vec![0u8; n as usize * 4];
        let head = if batched { words(&[k, 0, 8, n as u32 / 8]) } else { words(&[n as u32, k]) };
        let push = [head, bytes_of(Real::F32, &[0.1; 13])].concat();
        let request =
            Request { real: Real::F32, batched, q: &zeros, p: &zeros, extras: &zeros, push: &push, k: u64::from(k) };
        let found = run(&raw, &shader(name), &request);
        let expected = format!(
            "a buffer of {} bytes, but the device binds at most {limit} (maxStorageBufferRange): ask for {ask_for} in \
             one call",
            n * 4 * u64::from(k)
        );
        assert!(matches!(&found, Err(Failure::Dispatch(m)) if m.ends_with(&expected)), "{expected}: {:?}", found.err());
    }
    raw.finish();
}

#[test]
fn a_lost_device_is_an_error_of_the_chain() {
    let raw = Raw::new();
    let regime = Regime::new(Real::F32, 4, 1);
    regime.run(&raw, 2).unwrap();
    raw.engine.fail_next_submission();
    assert!(matches!(regime.run(&raw, 2), Err(Failure::Dispatch(_))));
    assert!(matches!(regime.run(&raw, 2), Err(Failure::Dispatch(_) | Failure::Upload(_))));
}
