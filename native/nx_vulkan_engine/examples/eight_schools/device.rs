//! Trajectories on a Vulkan device: all chains are instances of one batched leapfrog dispatch.

use super::model::{D, SCHOOLS, SIGMA, Y};
use super::sampler::{Ends, Trajectories};
use nx_vulkan_engine::Engine;
use nx_vulkan_engine::chain::{self, Chain, Real, Request};
use nx_vulkan_engine::nativev::{Call, Compile, Failure, Outcome, ShaderFiles};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A device with the chain shader of the eight-schools posterior.
pub struct Device {
    pub engine: Arc<Engine>,
    files: ShaderFiles,
    path: PathBuf,
    real: Real,
}

impl Device {
    pub fn new(engine: Arc<Engine>, real: Real) -> Self {
        let file = match real {
            Real::F32 => "eight_schools.spv",
            Real::F64 => "eight_schools_f64.spv",
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders/examples").join(file);
        Self { engine, files: ShaderFiles::default(), path, real }
    }

    /// All states of `k_steps` leapfrog steps: q, p, gradient (`[chain][k][coordinate]`) and log density
    /// (`[chain][k]`).
    ///
    /// # Errors
    /// Those of a chain.
    pub fn leapfrog(&self, q: &[f64], p: &[f64], inv_mass: &[f64], eps: f64, k_steps: usize) -> Outcome<[Vec<f64>; 4]> {
        let instances = q.len() / D;
        let of_instance = [&Y[..], &SIGMA[..], inv_mass].concat();
        let header = [k_steps, 2 * SCHOOLS, D, instances].map(|word| (word as u32).to_le_bytes());
        let push = [header.concat(), self.bytes(&[eps])].concat();
        let request = Request {
            real: self.real,
            batched: true,
            q: &self.bytes(q),
            p: &self.bytes(p),
            extras: &self.bytes(&of_instance).repeat(instances),
            push: &push,
            k: k_steps as u64,
        };
        // SAFETY: the shader is one of the catalogue.
        let call = unsafe { Call::new(&self.engine, &self.files, &self.path, false, Compile::Allowed) };
        self.read(&chain::start(&call, &request)?)
    }

    fn read(&self, chain: &Chain) -> Outcome<[Vec<f64>; 4]> {
        let mut bytes = vec![0; chain.size_bytes() as usize];
        chain.download(&self.engine, &mut bytes)?;
        Ok(chain
            .ranges()
            .clone()
            .map(|range: Range<u64>| self.values(&bytes[range.start as usize..range.end as usize])))
    }

    fn bytes(&self, values: &[f64]) -> Vec<u8> {
        match self.real {
            Real::F32 => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
            Real::F64 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
        }
    }

    fn values(&self, bytes: &[u8]) -> Vec<f64> {
        match self.real {
            Real::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Real::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        }
    }
}

impl Trajectories for Device {
    type Error = Failure;

    fn run(&mut self, q: &[f64], p: &[f64], inv_mass: &[f64], eps: f64, k_steps: usize) -> Outcome<Ends> {
        let [q, p, _gradient, logp] = self.leapfrog(q, p, inv_mass, eps, k_steps)?;
        let last_rows = |states: &[f64], width: usize| -> Vec<f64> {
            let instances = states.chunks_exact(k_steps * width);
            instances.flat_map(|rows| &rows[(k_steps - 1) * width..]).copied().collect()
        };
        Ok(Ends { q: last_rows(&q, D), p: last_rows(&p, D), logp: last_rows(&logp, 1) })
    }
}
