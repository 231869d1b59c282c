//! Trains a network of 64-32-10 units to read handwritten digits, with programs of the builder alone: `cargo run
//! --release --example mlp`. Exits with 1 where it reads fewer than 90 % of the images that it has not seen in
//! training.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "digits/data.rs"]
mod data;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use data::{Images, PIXELS, Random};
use nx_vulkan_engine::program::{Builder, Operand, Program, Reduction};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Result, Tensor};

const UNITS: u64 = 32;
const DIGITS: u64 = 10;
const BATCH: usize = 64;
const TEST_IMAGES: usize = 360;
const EPOCHS: usize = 20;
const RATE: f64 = 0.3;
const ACCURACY_LIMIT: f64 = 0.9;

/// Weights and biases of two layers.
const PARAMETERS: [&[u64]; 4] = [&[PIXELS as u64, UNITS], &[UNITS], &[UNITS, DIGITS], &[DIGITS]];

struct Forward {
    parameters: [Operand; 4],
    pixels: Operand,
    hidden: Operand,
    /// The logarithms of the probabilities.
    logs: Operand,
}

fn forward(b: &Builder, images: u64) -> Forward {
    let parameters = PARAMETERS.map(|shape| b.input(DType::F32, shape));
    let [w1, b1, w2, b2] = parameters;
    let pixels = b.divide(b.as_type(b.input(DType::U8, &[images, PIXELS as u64]), DType::F32), 16.0);
    let hidden = b.max(b.add(b.dot(pixels, w1), b1), 0.0);
    let scores = b.add(b.dot(hidden, w2), b2);
    let shifted = b.subtract(scores, b.reduce(Reduction::Max, scores, &[1], true));
    let logs = b.subtract(shifted, b.log(b.reduce(Reduction::Sum, b.exp(shifted), &[1], true)));
    Forward { parameters, pixels, hidden, logs }
}

/// Parameters, pixels, digits -> the next parameters, and the loss.
fn step() -> Result<Program> {
    let b = Builder::new();
    let Forward { parameters, pixels, hidden, logs } = forward(&b, BATCH as u64);
    let digits = b.reshape(b.input(DType::U8, &[BATCH as u64]), &[BATCH as u64, 1]);
    let wanted = b.as_type(b.equal(digits, b.iota(DType::U8, &[BATCH as u64, DIGITS], Some(1))), DType::F32);
    let loss = b.divide(b.negate(b.sum(b.multiply(logs, wanted), &[0, 1])), BATCH as f64);
    let scores = b.divide(b.subtract(b.exp(logs), wanted), BATCH as f64);
    let units = b.dot(scores, b.transpose(parameters[2], &[1, 0]));
    let units = b.select(b.greater(hidden, 0.0), units, 0.0);
    let turned = |a| b.transpose(a, &[1, 0]);
    let gradients =
        [b.dot(turned(pixels), units), b.sum(units, &[0]), b.dot(turned(hidden), scores), b.sum(scores, &[0])];
    let mut outputs: Vec<Operand> =
        parameters.iter().zip(gradients).map(|(&p, gradient)| b.subtract(p, b.multiply(gradient, RATE))).collect();
    outputs.push(loss);
    b.finish(&outputs)
}

fn classify() -> Result<Program> {
    let b = Builder::new();
    let digits = b.argmax(forward(&b, TEST_IMAGES as u64).logs, 1);
    b.finish(&[digits])
}

/// Uniform numbers of the variance that keeps that of activations (He), from the fractions of a golden sequence.
fn initial(engine: &Engine) -> Result<Vec<Tensor>> {
    let tensor = |shape: &&[u64]| {
        let count: u64 = shape.iter().product();
        let spread = if shape.len() == 1 { 0.0 } else { 2.0 * (6.0 / shape[0] as f64).sqrt() };
        let value = |i: u64| (spread * (((i + 1) as f64 * 0.618_033_988_749_894_9).fract() - 0.5)) as f32;
        Tensor::from_slice(engine, shape, &(0..count).map(value).collect::<Vec<f32>>())
    };
    PARAMETERS.iter().map(tensor).collect()
}

fn main() -> std::result::Result<ExitCode, Box<dyn Error>> {
    let engine = Engine::open(None)?;
    let images = Images::read()?;
    let mut random = Random(7);
    let mut order: Vec<usize> = (0..images.len()).collect();
    random.shuffle(&mut order);
    let (train, test) = order.split_at_mut(images.len() - TEST_IMAGES);
    let tensors = |which: &[usize]| -> Result<[Tensor; 2]> {
        let (pixels, digits) = images.take(which);
        let count = which.len() as u64;
        Ok([
            Tensor::from_slice(&engine, &[count, PIXELS as u64], &pixels)?,
            Tensor::from_slice(&engine, &[count], &digits)?,
        ])
    };
    let compiled = Instant::now();
    let (step, classify) = (Executable::compile(&engine, step()?)?, Executable::compile(&engine, classify()?)?);
    println!("{}: compiled in {:.1?}; a step is {:?}", engine.info().name, compiled.elapsed(), step.summary());

    let start = Instant::now();
    let mut parameters = initial(&engine)?;
    for epoch in 1..=EPOCHS {
        random.shuffle(train);
        let mut loss = None;
        for batch in train.chunks_exact(BATCH) {
            let mut next = step.run(&[&parameters[..], &tensors(batch)?].concat(), Compile::Allowed)?;
            loss = next.pop();
            parameters = next;
        }
        if let (Some(loss), true) = (loss, epoch % 5 == 0) {
            println!("epoch {epoch:2}: loss of the last batch {:.4}", loss.to_vec::<f32>(&engine)?[0]);
        }
    }
    let steps = EPOCHS * (train.len() / BATCH);
    let [pixels, _] = tensors(test)?;
    let seen = classify.run(&[&parameters[..], &[pixels]].concat(), Compile::Allowed)?[0].to_vec::<i32>(&engine)?;
    let (_, digits) = images.take(test);
    let right = seen.iter().zip(&digits).filter(|&(&seen, &digit)| seen == i32::from(digit)).count();
    let accuracy = right as f64 / TEST_IMAGES as f64;
    println!("test accuracy {:.1} %; {steps} steps in {:.1?}", 100.0 * accuracy, start.elapsed());
    if accuracy < ACCURACY_LIMIT {
        eprintln!("wrong: test accuracy is below {:.0} %", 100.0 * ACCURACY_LIMIT);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
