//! The sampler of the eight-schools example, on the CPU: gradient, diagnostics, posterior.

use super::diagnostics;
use super::model;
use super::random::Random;
use super::report;
use super::sampler::{self, Settings};

#[test]
fn gradient_is_the_central_difference_of_the_log_density() {
    let mut random = Random::new(1);
    for _ in 0..20 {
        let q: Vec<f64> = (0..model::D).map(|_| 2.0 * random.normal()).collect();
        let (_, grad) = model::logp_grad(&q);
        for i in 0..model::D {
            let h = 1e-5;
            let at = |by: f64| {
                let mut moved = q.clone();
                moved[i] += by;
                model::logp_grad(&moved).0
            };
            let difference = (at(h) - at(-h)) / (2.0 * h);
            assert!((difference - grad[i]).abs() <= 1e-6 * (1.0 + grad[i].abs()), "{i}: {difference} {}", grad[i]);
        }
    }
}

#[test]
fn leapfrog_is_reversible_and_of_second_order() {
    let mut random = Random::new(2);
    let q: Vec<f64> = (0..model::D).map(|_| random.normal()).collect();
    let p: Vec<f64> = (0..model::D).map(|_| random.normal()).collect();
    let inv_mass = vec![1.0; model::D];
    let energy = |p: &[f64], logp: f64| 0.5 * p.iter().map(|p| p * p).sum::<f64>() - logp;
    let start = energy(&p, model::logp_grad(&q).0);
    let error = |eps: f64, k: usize| {
        let chain = model::leapfrog(&q, &p, &inv_mass, eps, k);
        (energy(&chain.p[chain.p.len() - model::D..], chain.logp[k - 1]) - start).abs()
    };
    let order = (error(0.02, 10) / error(0.01, 20)).log2();
    assert!((1.8..2.2).contains(&order), "{order}");

    let there = model::leapfrog(&q, &p, &inv_mass, 0.1, 20);
    let back: Vec<f64> = there.p[19 * model::D..].iter().map(|p| -p).collect();
    let here = model::leapfrog(&there.q[19 * model::D..], &back, &inv_mass, 0.1, 20);
    for (a, b) in q.iter().zip(&here.q[19 * model::D..]) {
        assert!((a - b).abs() < 1e-11, "{a} {b}");
    }
}

/// Four chains of an AR(1) process with unit variance.
fn autoregressive(rho: f64, n: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut random = Random::new(seed);
    let chain = |_| {
        let mut x = random.normal();
        let step = |_| {
            x = rho * x + (1.0 - rho * rho).sqrt() * random.normal();
            x
        };
        (0..n).map(step).collect()
    };
    (0..4).map(chain).collect()
}

#[test]
fn effective_sample_size_is_that_of_an_autoregressive_process() {
    for rho in [-0.5, 0.0, 0.5, 0.9] {
        let chains = autoregressive(rho, 10_000, 3);
        let expected = 40_000.0 * (1.0 - rho) / (1.0 + rho);
        for found in [diagnostics::ess_mean(&chains), diagnostics::ess_bulk(&chains)] {
            assert!((found / expected - 1.0).abs() < 0.15, "rho {rho}: {found} beside {expected}");
        }
    }
}

#[test]
fn rhat_is_one_for_equal_chains_and_sees_shifts_and_scales() {
    let good = autoregressive(0.0, 1000, 4);
    assert!((0.999..1.005).contains(&diagnostics::rhat(&good)), "{}", diagnostics::rhat(&good));

    let mut shifted = good.clone();
    shifted[0].iter_mut().for_each(|x| *x += 1.0);
    assert!(diagnostics::rhat(&shifted) > 1.05);

    // Same mean, larger spread: only the folded draws tell.
    let mut wide = good.clone();
    wide[0].iter_mut().for_each(|x| *x *= 4.0);
    assert!(diagnostics::rhat(&wide) > 1.05);

    // A chain that drifts disagrees with itself.
    let mut drifting = good;
    for chain in &mut drifting {
        chain.iter_mut().enumerate().for_each(|(i, x)| *x += i as f64 / 500.0);
    }
    assert!(diagnostics::rhat(&drifting) > 1.05);
}

#[test]
fn sampler_finds_the_reference_posterior() {
    let settings =
        Settings { chains: 16, d: model::D, warmup: 400, draws: 1000, k_steps: 6, target_accept: 0.9, seed: 5 };
    let samples = sampler::sample(&mut model::Cpu, &settings).unwrap();
    let report = report::report(&samples);
    assert!(report.faults.is_empty(), "{:?}\n{}", report.faults, report.lines.join("\n"));
    assert!((0.8..0.97).contains(&samples.accept_rate), "{}", samples.accept_rate);
    // mu is the widest coordinate by far, and the mass matrix has to know.
    assert!(samples.inv_mass[0] > 5.0 * samples.inv_mass[2], "{:?}", samples.inv_mass);
}
