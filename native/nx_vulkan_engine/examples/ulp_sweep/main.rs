//! The largest errors of the scalar functions on this device, as a markdown table.
//!
//! `cargo run --release --example ulp_sweep [-- options] [function...]`: f32 functions over all 2^32 inputs against the
//! f64 functions of the device, and f64 functions over 10^7 chosen inputs against double-double arithmetic on the host.
//!
//! `--stride N`   every Nth f32 pattern (default 1)
//! `--count N`    chosen f64 inputs (default 10000000)
//! `--f32`, `--f64`   only these

mod double;
mod double_double;
mod single;

use std::process::ExitCode;
use std::time::Instant;

use nx_vulkan_engine::{Engine, Error, Options};

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

struct Arguments {
    stride: u64,
    count: u64,
    single: bool,
    double: bool,
    functions: Vec<String>,
}

fn arguments() -> Option<Arguments> {
    let mut parsed = Arguments { stride: 1, count: 10_000_000, single: true, double: true, functions: Vec::new() };
    let mut rest = std::env::args().skip(1);
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--stride" => parsed.stride = rest.next()?.parse().ok()?,
            "--count" => parsed.count = rest.next()?.parse().ok()?,
            "--f32" => parsed.double = false,
            "--f64" => parsed.single = false,
            _ if word.starts_with('-') => return None,
            _ => parsed.functions.push(word),
        }
    }
    Some(parsed)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("usage: ulp_sweep [--stride N] [--count N] [--f32] [--f64] [function...]");
        return ExitCode::from(2);
    };
    match sweep(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sweep(arguments: &Arguments) -> Result<(), Error> {
    let engine = Engine::open_with(&Options::from_env())?;
    let wanted = |name: &str| arguments.functions.is_empty() || arguments.functions.iter().any(|f| f == name);
    println!("Device: {}", engine.info().name);
    if !engine.caps().shader_float64 {
        println!("The device has no f64, which both sweeps need");
        return Ok(());
    }
    if arguments.single {
        let sweep = single::Sweep::new(engine.clone(), arguments.stride);
        println!(
            "\n| f32 function | worst ulp | at | not correctly rounded | inputs | seconds |\n|---|---|---|---|---|---|"
        );
        for function in single::functions().filter(|f| wanted(f.name())) {
            let start = Instant::now();
            let worst = sweep.run(function)?;
            let percent = 100.0 * worst.not_rounded as f64 / worst.inputs as f64;
            println!(
                "| {} | {:.5} | {:e} = {:#010x} | {percent:.6} % | {} | {:.1} |",
                function.name(),
                worst.ulp,
                f32::from_bits(worst.at),
                worst.at,
                worst.inputs,
                start.elapsed().as_secs_f64()
            );
        }
    }
    if arguments.double {
        println!("\n| f64 function | worst ulp | at | inputs | seconds |\n|---|---|---|---|---|");
        for function in double::FUNCTIONS.iter().filter(|f| wanted(f.op.name())) {
            let start = Instant::now();
            let (ulp, at) = double::sweep(&engine, function, arguments.count, SEED)?;
            println!(
                "| {} | {ulp:.4} | {at:?} | {} | {:.1} |",
                function.op.name(),
                arguments.count,
                start.elapsed().as_secs_f64()
            );
        }
    }
    Ok(())
}
