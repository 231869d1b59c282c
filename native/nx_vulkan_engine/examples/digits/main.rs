//! Trains a small neural network to read handwritten digits, on the Vulkan device: the programs are recorded from Nx,
//! and no Elixir runs. Exits with 1 where it reads fewer than 95 % of the images that it has not seen in training.
//!
//!     cargo run --release --example digits

mod data;
mod network;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use data::{Images, Random};
use network::{Network, State};
use nx_vulkan_engine::{Engine, Options, Tensor};

const SEED: u64 = 42;
const EPOCHS: usize = 25;
const ACCURACY_LIMIT: f64 = 0.95;
/// How far the first loss may be from that of `Nx.BinaryBackend`, which rounds differently.
const LOSS_TOLERANCE: f32 = 1e-3;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let engine = Engine::open_with(&Options::from_env())?;
    let device = &engine.info().name;
    let network = Network::open(&engine)?;
    let images = Images::read()?;
    let mut random = Random(SEED);
    let mut order: Vec<usize> = (0..images.len()).collect();
    random.shuffle(&mut order);
    let (train, test) = order.split_at_mut(images.len() - network.test_images());
    let steps_per_epoch = train.len() / network.batch();
    println!("handwritten digits, f32 on {device}");
    println!("{} images to train on, {} to test with, seed {SEED}", train.len(), test.len());
    println!("{EPOCHS} epochs of {steps_per_epoch} batches of {} images\n", network.batch());

    let start = Instant::now();
    let (ours, theirs) = network.recorded_losses()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("the first step took {seconds:.1} s: it compiles the kernels, which later runs find on disk");
    println!("the loss of the recorded step: {ours:.4} here, {theirs:.4} by Nx.BinaryBackend\n");

    let start = Instant::now();
    let mut state = network.initial()?;
    for epoch in 1..=EPOCHS {
        random.shuffle(train);
        state = run_epoch(&network, &images, state, train, epoch)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let steps = EPOCHS * steps_per_epoch;
    let steps_per_s = steps as f64 / seconds;

    let (pixels, digits) = images.take(test);
    let seen = network.classify(&state, &pixels)?;
    let right = seen.iter().zip(&digits).filter(|(seen, digit)| seen == digit).count();
    let accuracy = right as f64 / digits.len() as f64;
    println!("test accuracy {:.1} %; {steps} steps in {seconds:.1} s, {steps_per_s:.1} a second", 100.0 * accuracy);

    let mut faults = vec![];
    if accuracy < ACCURACY_LIMIT {
        faults.push(format!("test accuracy is {:.1} %, below {:.1} %", 100.0 * accuracy, 100.0 * ACCURACY_LIMIT));
    }
    // Written so that NaN is a fault.
    let agrees = (ours - theirs).abs() <= LOSS_TOLERANCE;
    if !agrees {
        faults.push(format!("the losses differ by more than {LOSS_TOLERANCE}"));
    }
    faults.iter().for_each(|fault| eprintln!("wrong: {fault}"));
    println!("result: device={} accuracy={accuracy:.4} steps_per_s={steps_per_s:.1}", device.replace(' ', "_"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Takes one step per batch of an epoch; what is left over waits for another epoch.
fn run_epoch(
    network: &Network,
    images: &Images,
    mut state: State,
    order: &[usize],
    epoch: usize,
) -> Result<State, Box<dyn Error>> {
    let batches = order.chunks_exact(network.batch());
    let count = batches.len();
    let mut losses: Vec<Tensor> = vec![];
    for (i, batch) in batches.enumerate() {
        progress(epoch, i + 1, count)?;
        let (pixels, digits) = images.take(batch);
        let (next, loss) = network.step(&state, &pixels, &digits)?;
        state = next;
        losses.push(loss);
    }
    // Reading the losses is the only wait for the device.
    let total: f32 = losses.iter().map(|loss| network.number(loss)).sum::<Result<f32, _>>()?;
    println!(" loss {:.4}", total / count as f32);
    Ok(state)
}

fn progress(epoch: usize, step: usize, steps: usize) -> std::io::Result<()> {
    let filled = 30 * step / steps;
    print!("\repoch {epoch:2} [{}{}]", "#".repeat(filled), ".".repeat(30 - filled));
    std::io::stdout().flush()
}
