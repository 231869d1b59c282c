//! The synth ABI: how a chain's inputs are laid out as bytes, and its outputs read back.

use std::path::Path;

use crate::gpu::Chain;
use crate::model::{D, Inputs, PRIORS, Prior};

/// Element type of every buffer and of the floats in the push data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F64,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "regime",
            Format::F64 => "regime_f64",
        }
    }

    pub fn of_file(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if name.starts_with("regime_f64") {
            Some(Format::F64)
        } else if name.starts_with("regime") {
            Some(Format::F32)
        } else {
            None
        }
    }

    pub fn element_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F64 => 8,
        }
    }

    /// Largest |device - CPU| / (1 + |CPU|) over all numbers of a 32-step chain; about ten times what lavapipe shows.
    pub fn tolerance(self) -> f64 {
        match self {
            Format::F32 => 1e-4,
            Format::F64 => 1e-12,
        }
    }

    fn put(self, out: &mut Vec<u8>, value: f64) {
        match self {
            Format::F32 => out.extend_from_slice(&(value as f32).to_le_bytes()),
            Format::F64 => out.extend_from_slice(&value.to_le_bytes()),
        }
    }

    fn bytes(self, values: &[f64]) -> Vec<u8> {
        let mut out = Vec::new();
        for &value in values {
            self.put(&mut out, value);
        }
        out
    }

    fn values(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Format::F32 => {
                bytemuck::allocation::pod_collect_to_vec::<u8, f32>(bytes).into_iter().map(f64::from).collect()
            }
            Format::F64 => bytemuck::allocation::pod_collect_to_vec::<u8, f64>(bytes),
        }
    }
}

/// `{k_steps, n_obs, d, n_instances: u32, eps}` and then the priors: 68 bytes in f32, 120 in f64.
fn push(inputs: &Inputs, format: Format) -> Vec<u8> {
    let mut push = Vec::new();
    for word in [inputs.k_steps as u32, inputs.returns.len() as u32, D as u32, 1] {
        push.extend_from_slice(&word.to_le_bytes());
    }
    format.put(&mut push, inputs.eps);
    for prior in PRIORS {
        match prior {
            Prior::Normal { mean, sd } => {
                format.put(&mut push, mean);
                format.put(&mut push, sd);
            }
            Prior::HalfCauchy { scale } => format.put(&mut push, scale),
        }
    }
    push
}

/// One instance of the chain as the shader's seven bindings see it.
pub fn chain(inputs: &Inputs, format: Format) -> Chain {
    let mut extras = format.bytes(&inputs.returns);
    extras.extend(format.bytes(&inputs.inv_mass));
    Chain {
        q: format.bytes(&inputs.q),
        p: format.bytes(&inputs.p),
        extras,
        push: push(inputs, format),
        n_instances: 1,
        rows_bytes: inputs.k_steps * D * format.element_bytes(),
        logp_bytes: inputs.k_steps * format.element_bytes(),
    }
}

/// The four outputs, `[k][i]` row-major.
pub struct Outputs {
    pub q: Vec<f64>,
    pub p: Vec<f64>,
    pub grad: Vec<f64>,
    pub logp: Vec<f64>,
}

impl Outputs {
    pub fn parse(bytes: &[u8], k_steps: usize, format: Format) -> Self {
        let values = format.values(bytes);
        let rows = k_steps * D;
        Self {
            q: values[..rows].to_vec(),
            p: values[rows..2 * rows].to_vec(),
            grad: values[2 * rows..3 * rows].to_vec(),
            logp: values[3 * rows..].to_vec(),
        }
    }
}
