//! Results in the memory of inputs that the caller needs no longer.

use std::cell::Cell;
use std::sync::Arc;

use super::{Batch, Executable, GoesOn, Run};
use crate::eager::Compile;
use crate::{Engine, Result, Tensor};

/// An input by its number, and the memory of a run that may be the input's: the last step alone writes that, after all
/// that read the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Donation {
    pub input: u32,
    pub own: u32,
}

/// What a run writes to memory of its inputs.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    /// The numbers of the memory; none where nothing is donated.
    own: Vec<u32>,
    spent: Option<&'a Cell<bool>>,
}

impl Executable {
    /// Runs as [`Executable::run_while`] does, where the caller gives up the inputs that the program was compiled to
    /// have donated. A result has the memory of one that nobody but the caller holds, and that is all of its memory.
    ///
    /// `spent` becomes true once that memory may hold something else: a run that fails before leaves all inputs as they
    /// were.
    ///
    /// # Errors
    /// Those of [`Executable::run_while`].
    ///
    /// # Examples
    /// ```
    /// use std::cell::Cell;
    ///
    /// use nx_vulkan_engine::program::Builder;
    /// use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};
    ///
    /// # fn main() -> nx_vulkan_engine::Result<()> {
    /// # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
    /// let engine = Engine::open(None)?;
    /// let b = Builder::new();
    /// let x = b.input(DType::F32, &[3]);
    /// let y = b.multiply(x, 2.0);
    /// let executable = Executable::compile_donating(&engine, b.finish(&[y])?, &[true])?;
    /// let x = Tensor::from_slice(&engine, &[3], &[1f32, 2.0, 3.0])?;
    /// let (address, spent) = (x.address(), Cell::new(false));
    /// let results = executable.run_donating(&[x], Compile::Allowed, &|| true, &spent)?;
    /// assert_eq!(results[0].to_vec::<f32>(&engine)?, [2.0, 4.0, 6.0]);
    /// assert!(spent.get() && results[0].address() == address);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_donating(
        &self,
        inputs: &[Tensor],
        compile: Compile,
        goes_on: GoesOn<'_>,
        spent: &Cell<bool>,
    ) -> Result<Vec<Tensor>> {
        self.run_with(inputs, compile, goes_on, Some(spent))
    }

    pub(super) fn donated_bytes(&self) -> u64 {
        let own = self.donations.iter().filter_map(|donation| self.own.get(donation.own as usize));
        own.map(|own| own.size_bytes).sum()
    }
}

impl<'a> Run<'a> {
    /// Takes the memory of donated inputs that nobody but the caller and this run hold, and of copies of them that the
    /// run has made.
    pub(super) fn give(&mut self, executable: &Executable, inputs: &[Tensor], spent: &'a Cell<bool>) {
        for &Donation { input, own } in &executable.donations {
            let bound = self.bound.get(input as usize).and_then(Option::as_ref);
            let (Some(tensor), Some(caller)) = (bound, inputs.get(input as usize)) else { continue };
            let is_caller = Arc::ptr_eq(&tensor.buffer, &caller.buffer);
            let holders = if is_caller { 2 } else { 1 };
            let size_bytes = executable.own.get(own as usize).map(|own| own.size_bytes);
            if let Some(memory) = self.own.get_mut(own as usize)
                && size_bytes == Some(tensor.buffer.size_bytes())
                && is_alone(tensor, holders)
            {
                *memory = Some(Arc::clone(&tensor.buffer));
                if is_caller {
                    self.given.own.push(own);
                    self.given.spent = Some(spent);
                }
            }
        }
    }
}

/// Whether a tensor is held by nobody else than so many, and is all of an ordinary block of the device's memory. Those
/// who know a buffer by its address have weak references.
fn is_alone(tensor: &Tensor, holders: usize) -> bool {
    let buffer = &tensor.buffer;
    Arc::strong_count(buffer) == holders
        && Arc::weak_count(buffer) == 0
        && tensor.view.offset == 0
        && buffer.as_external().is_none()
        && !buffer.is_spilled()
}

impl Given<'_> {
    /// Notes that a batch is about to be recorded.
    pub fn note_written(&self, engine: &Engine, batch: &Batch) -> Result<()> {
        let Some(spent) = self.spent else { return Ok(()) };
        if batch.written.iter().any(|own| self.own.contains(own)) {
            // What may lack memory comes before.
            engine.stream().grow_arguments(0)?;
            spent.set(true);
        }
        Ok(())
    }
}
