//! Chains that have the whole device: a step is an executable, whose runs follow each other without a wait, one chain after the other.

use std::sync::Arc;

use super::form::Stepping;
use crate::kernel::launch::Compile;
use crate::program::Program;
use crate::{DType, Engine, Error, Executable, Result, Tensor, Type, eager};

/// A compiled step and how it repeats.
#[derive(Debug)]
pub(super) struct Stepped {
    step: Executable,
    stepping: Stepping,
    outputs: Vec<Type>,
}

impl Stepped {
    /// Compiles a step, whose inputs are a counter (u32), `states` values and what stays the same; its first outputs are the next states.
    pub fn compile(engine: &Arc<Engine>, program: Program, stepping: Stepping) -> Result<Stepped> {
        let outputs = program.output_types().into_iter().cloned().collect();
        Ok(Stepped { step: Executable::compile(engine, program)?, stepping, outputs })
    }

    /// Runs `steps` steps of every chain. `inputs` are all but the counter; what is a chain's `own` has the chains as its first axis.
    /// Answers the outputs of each step, `[chains, steps, ..]`.
    ///
    /// # Errors
    /// `NeedsCompile` where `compile` refuses to wait: to record many steps takes too long for those who do.
    pub fn run(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        own: &[bool],
        [chains, steps]: [u64; 2],
        compile: Compile,
    ) -> Result<Vec<Tensor>> {
        if compile == Compile::Refused {
            return Err(Error::NeedsCompile);
        }
        let Stepping { states, begins } = self.stepping;
        let first = u64::from(begins);
        let number = Type::new(DType::U32, &[]);
        let counters: Vec<Tensor> = (0..steps + first)
            .map(|step| Tensor::from_nx_bytes(engine, &number, &(step as u32).to_ne_bytes()))
            .collect::<Result<_>>()?;
        let results: Vec<Tensor> = self
            .outputs
            .iter()
            .map(|ty| Tensor::uninitialized(engine, &Type::new(ty.dtype, &[&[chains, steps], &ty.shape[..]].concat())))
            .collect::<Result<_>>()?;
        for chain in 0..chains {
            let mine =
                inputs.iter().zip(own).map(|(tensor, &own)| if own { row(tensor, chain) } else { tensor.clone() });
            let mut operands: Vec<Tensor> = counters[..1].iter().cloned().chain(mine).collect();
            for (step, counter) in counters.iter().enumerate() {
                operands[0] = counter.clone();
                let left = self.step.run(&operands, compile)?;
                operands[1..=states].clone_from_slice(&left[..states]);
                if let Some(place) = (step as u64).checked_sub(first) {
                    for (from, to) in left.iter().zip(&results) {
                        eager::copy(engine, from, &row(&row(to, chain), place), compile)?;
                    }
                }
            }
        }
        Ok(results)
    }
}

/// Element `i` along the first axis.
fn row(tensor: &Tensor, i: u64) -> Tensor {
    let mut view = tensor.view.clone();
    view.shape.remove(0);
    let stride = view.strides.remove(0);
    view.offset = view.offset.wrapping_add_signed(i as i64 * stride);
    Tensor { buffer: Arc::clone(&tensor.buffer), view }
}
