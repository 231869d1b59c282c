//! The shaders of the NativeV catalogue, run through descriptors and compared with plain f64 arithmetic on the CPU.
#![allow(clippy::needless_range_loop)]

mod chains;
mod kernels;

use std::path::Path;
use std::sync::Arc;

use nx_vulkan_check::Reflection;
use nx_vulkan_engine::{Access, Binding, BoundLaunch, Buffer, Engine, Interface, PipelineKey};

use crate::common::*;

/// A catalogue shader ready to run.
struct Shader {
    spirv: Vec<u32>,
    reflection: Reflection,
}

impl Shader {
    fn load(name: &str) -> Shader {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders");
        let bytes = std::fs::read(folder.join(format!("{name}.spv"))).unwrap();
        Shader { spirv: words(&bytes), reflection: Reflection::of(&bytes, name).unwrap() }
    }

    fn run(&self, engine: &Engine, op: Option<u32>, buffers: &[&Arc<Buffer>], push: &[u8], groups: [u32; 3]) {
        let spec: Vec<(u32, u32)> = op.map(|op| (0, op)).into_iter().collect();
        let interface = Interface::Descriptors {
            bindings: u32::try_from(buffers.len()).unwrap(),
            push_bytes: self.reflection.push_bytes,
        };
        let key = PipelineKey::new(&self.spirv, &spec, interface);
        // SAFETY: the module is one of the tests, for this interface.
        let pipeline = unsafe { engine.pipeline(key, &self.spirv, &spec, interface) }.unwrap();
        assert_eq!(push.len(), self.reflection.push_bytes as usize);
        let bindings: Vec<Binding> = buffers
            .iter()
            .zip(&self.reflection.bindings)
            .map(|(buffer, declared)| Binding {
                buffer,
                offset: 0,
                size_bytes: buffer.size_bytes(),
                access: if declared.readonly { Access::Read } else { Access::ReadWrite },
            })
            .collect();
        let launch = BoundLaunch { pipeline: &pipeline, push, groups, bindings: &bindings };
        engine.dispatch_bound(&launch).unwrap();
    }

    fn groups(&self, n: usize) -> [u32; 3] {
        [u32::try_from(n).unwrap().div_ceil(self.reflection.local_size[0]), 1, 1]
    }
}

/// f32 or f64 as the shaders hold them.
#[derive(Clone, Copy, PartialEq)]
enum Real {
    F32,
    F64,
}

use Real::{F32, F64};

impl Real {
    fn name(self, base: &str) -> String {
        match self {
            F32 => base.to_owned(),
            F64 => format!("{base}_f64"),
        }
    }

    fn encode(self, values: &[f64]) -> Vec<u8> {
        match self {
            F32 => values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
            F64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            F32 => bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
            F64 => bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    }

    /// What a value becomes when it is stored.
    fn round(self, value: f64) -> f64 {
        match self {
            F32 => f64::from(value as f32),
            F64 => value,
        }
    }

    fn upload(self, engine: &Engine, values: &[f64]) -> Arc<Buffer> {
        upload(engine, &self.encode(values))
    }

    /// A buffer of `n` values that no shader would write, so that missing and stray writes show.
    fn guarded(self, engine: &Engine, n: usize) -> Arc<Buffer> {
        self.upload(engine, &vec![-12345.0; n])
    }

    fn download(self, engine: &Engine, buffer: &Arc<Buffer>) -> Vec<f64> {
        self.decode(&download(engine, buffer))
    }

    /// |error| allowed for `expected` at `ulps`.
    fn tolerance(self, expected: f64, ulps: f64) -> f64 {
        let (epsilon, tiny) = match self {
            F32 => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
            F64 => (f64::EPSILON, f64::MIN_POSITIVE),
        };
        ulps * epsilon * expected.abs().max(tiny)
    }

    fn assert_close(self, what: &str, got: f64, expected: f64, ulps: f64) {
        let same = got == expected
            || got.is_nan() && expected.is_nan()
            || (got - expected).abs() <= self.tolerance(expected, ulps);
        assert!(same, "{what}: got {got:e}, expected {expected:e}");
    }
}

fn upload(engine: &Engine, bytes: &[u8]) -> Arc<Buffer> {
    let buffer = engine.alloc(bytes.len() as u64).unwrap();
    engine.upload(&buffer, 0, bytes).unwrap();
    buffer
}

fn download(engine: &Engine, buffer: &Arc<Buffer>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.size_bytes()).unwrap()];
    engine.download(buffer, 0, &mut bytes).unwrap();
    bytes
}

fn push(words: &[usize]) -> Vec<u8> {
    words.iter().flat_map(|&w| u32::try_from(w).unwrap().to_le_bytes()).collect()
}

const SPECIAL: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    2.5,
    -2.5,
    1e10,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn values(real: Real, n: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng(seed);
    let mut random = || (rng.below(1 << 30) as f64 / f64::from(1 << 29) - 1.0) * 4.0;
    (0..n).map(|i| real.round(if i < 16 { SPECIAL[i] } else { random() })).collect()
}
