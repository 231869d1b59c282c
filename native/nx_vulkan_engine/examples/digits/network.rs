//! The network of `examples/digits/network.exs`, as Programs that `mix nx_vulkan.record` recorded from Nx.

use std::path::Path;
use std::sync::Arc;

use nx_vulkan_engine::program::file::Recording;
use nx_vulkan_engine::{Engine, Error, Result, Tensor, Type, eager};

/// Parameters, the two averages of Adam, and the number of steps: the first inputs and the first outputs of a step.
const STATE: usize = 13;
/// Weights and biases of two layers, the first tensors of the state.
const PARAMETERS: usize = 4;

pub struct Network {
    engine: Arc<Engine>,
    step: Recording,
    classify: Recording,
}

/// The state of a training.
#[derive(Clone)]
pub struct State(Vec<Tensor>);

fn read(name: &str) -> Result<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    Recording::read(&folder.join(name).with_extension("nxp"))
}

fn mismatch(what: &'static str, expected: impl ToString, got: impl ToString) -> Error {
    Error::InvalidArgument { what, expected: expected.to_string(), got: got.to_string() }
}

impl Network {
    pub fn open(engine: &Arc<Engine>) -> Result<Network> {
        let (step, classify) = (read("digits_step")?, read("digits_classify")?);
        let inputs = (step.program.inputs.len(), classify.program.inputs.len());
        let outputs = (step.program.outputs.len(), classify.program.outputs.len());
        if (inputs, outputs) != ((STATE + 2, PARAMETERS + 1), (STATE + 1, 1)) {
            return Err(mismatch("recordings", "the programs of the digits", format!("{inputs:?} {outputs:?}")));
        }
        Ok(Network { engine: Arc::clone(engine), step, classify })
    }

    /// Images in a batch.
    pub fn batch(&self) -> usize {
        self.step.inputs[STATE + 1].len()
    }

    /// How many images `classify` takes.
    pub fn test_images(&self) -> usize {
        self.classify.expected[0].len()
    }

    fn tensor(&self, ty: &Type, bytes: &[u8]) -> Result<Tensor> {
        Tensor::from_nx_bytes(&self.engine, ty, bytes)
    }

    pub fn initial(&self) -> Result<State> {
        let tensors = self.step.program.inputs.iter().zip(&self.step.inputs).take(STATE);
        Ok(State(tensors.map(|(ty, bytes)| self.tensor(ty, bytes)).collect::<Result<_>>()?))
    }

    /// One step on a batch; the loss stays on the device.
    pub fn step(&self, state: &State, pixels: &[u8], digits: &[u8]) -> Result<(State, Tensor)> {
        let types = &self.step.program.inputs[STATE..];
        let batch = [self.tensor(&types[0], pixels)?, self.tensor(&types[1], digits)?];
        let mut outputs = eager::run_program(&self.engine, &self.step.program, &[&state.0[..], &batch].concat())?;
        let loss = outputs.pop().ok_or_else(|| mismatch("recordings", "a loss", "none"))?;
        Ok((State(outputs), loss))
    }

    /// The losses of the recorded step here and on `Nx.BinaryBackend`, from the same inputs.
    pub fn recorded_losses(&self) -> Result<(f32, f32)> {
        let [pixels, digits] = [STATE, STATE + 1].map(|i| &self.step.inputs[i][..]);
        let (_, loss) = self.step(&self.initial()?, pixels, digits)?;
        let expected = self.step.expected[STATE].as_slice().try_into().map(f32::from_ne_bytes);
        Ok((self.number(&loss)?, expected.map_err(|_| mismatch("recordings", "an f32 loss", "another type"))?))
    }

    /// The digits that the network sees in the images.
    pub fn classify(&self, state: &State, pixels: &[u8]) -> Result<Vec<u8>> {
        let images = self.tensor(&self.classify.program.inputs[PARAMETERS], pixels)?;
        let inputs = [&state.0[..PARAMETERS], &[images]].concat();
        eager::run_program(&self.engine, &self.classify.program, &inputs)?[0].to_nx_bytes(&self.engine, None)
    }

    /// Waits for a scalar.
    pub fn number(&self, scalar: &Tensor) -> Result<f32> {
        let bytes = scalar.to_nx_bytes(&self.engine, None)?;
        bytes.as_slice().try_into().map(f32::from_ne_bytes).map_err(|_| mismatch("scalar", "an f32", bytes.len()))
    }
}
