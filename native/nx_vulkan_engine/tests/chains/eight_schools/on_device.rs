//! The eight-schools chain and sampler on the device, against the same arithmetic in f64 on the CPU.

use nx_vulkan_engine::chain::Real;

use super::device::Device;
use super::model::{self, D};
use super::random::Random;
use super::report;
use super::sampler::{self, Settings};
use crate::common::{assert_valid, engine};

const CHAINS: usize = 24;
const STEPS: usize = 32;

/// Largest `|device - CPU| / (1 + |CPU|)` of q, p, gradient and log density over 32 steps of 0.2. Lavapipe shows 2e-6
/// and 2e-15.
fn tolerance(real: Real) -> f64 {
    match real {
        Real::F32 => 2e-5,
        Real::F64 => 2e-13,
    }
}

#[test]
fn every_step_of_every_chain_is_that_of_the_cpu() {
    let engine = engine();
    for real in [Real::F32, Real::F64] {
        let round = |x: f64| if real == Real::F32 { f64::from(x as f32) } else { x };
        let device = Device::new(engine.clone(), real);
        let mut random = Random::new(11);
        let mut normals = |n: usize| -> Vec<f64> { (0..n).map(|_| round(random.normal())).collect() };
        let (q, p) = (normals(CHAINS * D), normals(CHAINS * D));
        let inv_mass: Vec<f64> = (0..D).map(|i| round(0.5 + 0.1 * i as f64)).collect();
        // Backwards too: a sampler may run a trajectory in either direction.
        for eps in [0.2, -0.2].map(round) {
            let [qs, ps, grads, logps] = device.leapfrog(&q, &p, &inv_mass, eps, STEPS).unwrap();
            for i in 0..CHAINS {
                let own = i * D..(i + 1) * D;
                let cpu = model::leapfrog(&q[own.clone()], &p[own], &inv_mass, eps, STEPS);
                for (name, ours, cpu, width) in [
                    ("q", &qs, &cpu.q, D),
                    ("p", &ps, &cpu.p, D),
                    ("grad", &grads, &cpu.grad, D),
                    ("logp", &logps, &cpu.logp, 1),
                ] {
                    let ours = &ours[i * STEPS * width..(i + 1) * STEPS * width];
                    for (at, (ours, cpu)) in ours.iter().zip(cpu).enumerate() {
                        let error = (ours - cpu).abs() / (1.0 + cpu.abs());
                        assert!(error <= tolerance(real), "{real:?} {name} of chain {i} at {at}: {ours}, not {cpu}");
                    }
                }
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn sampler_on_the_device_finds_the_reference_posterior() {
    let engine = engine();
    let mut device = Device::new(engine.clone(), Real::F64);
    let settings = Settings { chains: 32, d: D, warmup: 200, draws: 400, k_steps: 6, target_accept: 0.9, seed: 5 };
    let samples = sampler::sample(&mut device, &settings).unwrap();
    let report = report::report(&samples);
    assert!(report.faults.is_empty(), "{:?}\n{}", report.faults, report.lines.join("\n"));
    assert_valid(&engine);
}
