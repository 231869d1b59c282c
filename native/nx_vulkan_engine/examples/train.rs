//! Trains a network of 2-32-1 units to tell the points of two half-moons apart, with what users of the crate have:
//! `cargo run --release --example train`. Exits with 1 where it is wrong on more than 3 % of points that it has not
//! seen.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use nx_vulkan_engine::program::{Builder, Operand, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Result, Tensor};

const POINTS: u64 = 512;
const UNITS: u64 = 32;
const STEPS: usize = 1500;
const RATE: f64 = 0.5;
const WRONG_LIMIT: f64 = 0.03;

/// Weights and biases of two layers.
const PARAMETERS: [&[u64]; 4] = [&[2, UNITS], &[UNITS], &[UNITS, 1], &[1]];

/// The hidden layer, and for each point the probability that it is of the second moon.
fn forward(b: &Builder, [w1, b1, w2, b2]: [Operand; 4], points: Operand) -> [Operand; 2] {
    let hidden = b.tanh(b.add(b.dot(points, w1), b1));
    [hidden, b.sigmoid(b.add(b.dot(hidden, w2), b2))]
}

/// Parameters, points and moons to better parameters, and the share of points that the given ones get wrong.
fn step() -> Result<Program> {
    let b = Builder::new();
    let parameters = PARAMETERS.map(|shape| b.input(DType::F32, shape));
    let (points, moons) = (b.input(DType::F32, &[POINTS, 2]), b.input(DType::F32, &[POINTS, 1]));
    let [hidden, probabilities] = forward(&b, parameters, points);

    // The gradient of the mean cross entropy.
    let error = b.divide(b.subtract(probabilities, moons), POINTS as f64);
    let by_w2 = b.dot(b.transpose(hidden, &[1, 0]), error);
    let by_hidden = b.dot(error, b.transpose(parameters[2], &[1, 0]));
    let slope = b.subtract(1.0, b.multiply(hidden, hidden));
    let inner = b.multiply(by_hidden, slope);
    let by_w1 = b.dot(b.transpose(points, &[1, 0]), inner);
    let gradients = [by_w1, b.sum(inner, &[0]), by_w2, b.sum(error, &[0])];

    let seen = b.as_type(b.greater(probabilities, 0.5), DType::F32);
    let wrong = b.mean(b.abs(b.subtract(seen, moons)), &[0, 1]);
    let next = parameters.iter().zip(gradients).map(|(&p, gradient)| b.subtract(p, b.multiply(gradient, RATE)));
    let outputs: Vec<Operand> = next.chain([wrong]).collect();
    b.finish(&outputs)
}

/// Numbers from 0 to 1 that fill it evenly: the fractions of multiples of an irrational one.
fn even(i: u64, irrational: f64) -> f64 {
    (i as f64 * irrational).fract()
}

/// Points of two half-moons, which of the two each is of, and a little noise.
fn moons(engine: &Engine, first: u64) -> Result<[Tensor; 2]> {
    let (mut points, mut moons) = (Vec::new(), Vec::new());
    for i in first..first + POINTS {
        let second = i % 2 == 1;
        let angle = std::f64::consts::PI * even(i, std::f64::consts::SQRT_2);
        let noise = |irrational| 0.2 * (even(i, irrational) - 0.5);
        let [x, y] = [angle.cos(), angle.sin()];
        let [x, y] = if second { [1.0 - x, 0.5 - y] } else { [x, y] };
        points.extend([(x + noise(3f64.sqrt())) as f32, (y + noise(7f64.sqrt())) as f32]);
        moons.push(f32::from(u8::from(second)));
    }
    Ok([Tensor::from_slice(engine, &[POINTS, 2], &points)?, Tensor::from_slice(engine, &[POINTS, 1], &moons)?])
}

fn initial(engine: &Engine) -> Result<Vec<Tensor>> {
    let tensor = |shape: &&[u64]| {
        let spread = if shape.len() == 1 { 0.0 } else { 2.0 / (shape[0] as f64).sqrt() };
        let values = (1..=shape.iter().product()).map(|i| (spread * (even(i, 5f64.sqrt()) - 0.5)) as f32);
        Tensor::from_slice(engine, shape, &values.collect::<Vec<f32>>())
    };
    PARAMETERS.iter().map(tensor).collect()
}

fn main() -> std::result::Result<ExitCode, Box<dyn Error>> {
    let engine = Engine::open(None)?;
    let executable = Executable::compile(&engine, step()?)?;
    println!("{}: a step is {:?}", engine.info().name, executable.summary());

    let seen = moons(&engine, 0)?;
    let mut parameters = initial(&engine)?;
    let start = Instant::now();
    for number in 1..=STEPS {
        // Nothing waits here: steps are recorded while the device computes those before.
        let mut outputs = executable.run(&[&parameters[..], &seen].concat(), Compile::Allowed)?;
        let wrong = outputs.pop();
        parameters = outputs;
        if let (Some(wrong), 0) = (wrong, number % 300) {
            println!("step {number:4}: {:.1} % wrong", 100.0 * wrong.to_vec::<f32>(&engine)?[0]);
        }
    }
    println!("{STEPS} steps in {:.1?}", start.elapsed());

    let outputs = executable.run(&[&parameters[..], &moons(&engine, POINTS)?].concat(), Compile::Allowed)?;
    let wrong = f64::from(outputs[PARAMETERS.len()].to_vec::<f32>(&engine)?[0]);
    println!("other points: {:.1} % wrong", 100.0 * wrong);
    if wrong > WRONG_LIMIT {
        eprintln!("more than {} % are wrong", 100.0 * WRONG_LIMIT);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
