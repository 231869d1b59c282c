//! Samples the eight-schools posterior by Hamiltonian Monte Carlo and compares it with posteriordb's reference.
//! Exits with 1 where they disagree.

mod diagnostics;
mod model;
mod random;
mod report;
mod sampler;

use sampler::Settings;
use std::process::ExitCode;
use std::time::Instant;

/// 32 chains: 32,000 draws. Six steps at an acceptance rate of 0.9 are a third of an orbit of the scaled posterior.
const SETTINGS: Settings =
    Settings { chains: 32, d: model::D, warmup: 400, draws: 1000, k_steps: 6, target_accept: 0.9, seed: 8 };

fn main() -> ExitCode {
    let start = Instant::now();
    let Ok(samples) = sampler::sample(&mut model::Cpu, &SETTINGS);
    let elapsed = start.elapsed();
    let report = report::report(&samples);

    println!("eight schools, non-centred: {} chains of {} draws", SETTINGS.chains, SETTINGS.draws);
    for line in &report.lines {
        println!("{line}");
    }
    let draws = SETTINGS.chains * (SETTINGS.warmup + SETTINGS.draws);
    println!(
        "step size {:.3}, {} steps per trajectory, acceptance {:.3}, {:.0} draws per second in {elapsed:.1?}, warm-up included",
        samples.eps,
        SETTINGS.k_steps,
        samples.accept_rate,
        draws as f64 / elapsed.as_secs_f64()
    );
    println!("diagonal of the inverse mass matrix: {:.2?}", samples.inv_mass);
    for fault in &report.faults {
        eprintln!("disagrees: {fault}");
    }
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
