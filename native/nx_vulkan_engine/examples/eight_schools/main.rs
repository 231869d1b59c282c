//! Samples the eight-schools posterior by Hamiltonian Monte Carlo on the Vulkan device and compares it with
//! posteriordb's reference. Exits with 1 where they disagree.
//!
//!     cargo run --release --example eight_schools [-- --f32 | --cpu]

mod device;
mod diagnostics;
mod model;
mod random;
mod report;
mod sampler;

use device::Device;
use nx_vulkan_engine::chain::Real;
use nx_vulkan_engine::{Engine, Options};
use sampler::{Samples, Settings};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// 32 chains: 32,000 draws. Six steps at an acceptance rate of 0.9 are a third of an orbit of the scaled posterior.
const SETTINGS: Settings =
    Settings { chains: 32, d: model::D, warmup: 400, draws: 1000, k_steps: 6, target_accept: 0.9, seed: 8 };

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let samples_and_seconds = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => on_device(None)?,
        ["--f32"] => on_device(Some(Real::F32))?,
        ["--cpu"] => {
            println!("eight schools, non-centred, f64 on the CPU");
            let start = Instant::now();
            let Ok(samples) = sampler::sample(&mut model::Cpu, &SETTINGS);
            (samples, start.elapsed().as_secs_f64())
        }
        _ => return Err("usage: eight_schools [--f32 | --cpu]".into()),
    };
    Ok(print(&samples_and_seconds.0, samples_and_seconds.1))
}

/// In f64 where the device has it, if nothing else is asked for.
fn on_device(real: Option<Real>) -> Result<(Samples, f64), Box<dyn Error>> {
    let engine = Engine::open_with(&Options::from_env())?;
    let real = real.unwrap_or(if !engine.info().lacks.float64 { Real::F64 } else { Real::F32 });
    println!("eight schools, non-centred, {real:?} on {}", engine.info().name);
    let mut device = Device::new(engine, real);
    // The first chain compiles the shader.
    device.leapfrog(&[0.0; model::D], &[0.0; model::D], &[1.0; model::D], 0.0, 1)?;
    let start = Instant::now();
    let samples = sampler::sample(&mut device, &SETTINGS)?;
    Ok((samples, start.elapsed().as_secs_f64()))
}

fn print(samples: &Samples, seconds: f64) -> ExitCode {
    let report = report::report(samples);
    println!("{} chains of {} draws", SETTINGS.chains, SETTINGS.draws);
    for line in &report.lines {
        println!("{line}");
    }
    let draws_per_s = (SETTINGS.chains * (SETTINGS.warmup + SETTINGS.draws)) as f64 / seconds;
    println!("diagonal of the inverse mass matrix: {:.2?}", samples.inv_mass);
    println!(
        "step size {:.3}, {} steps per trajectory, acceptance {:.3}, {draws_per_s:.0} draws per second, warm-up \
         included",
        samples.eps, SETTINGS.k_steps, samples.accept_rate
    );
    for fault in &report.faults {
        eprintln!("disagrees: {fault}");
    }
    println!("result: rhat={:.4} draws_per_s={draws_per_s:.0}", report.rhat);
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
