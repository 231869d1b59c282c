//! Kernels that a compilation wants and that are not there yet: their modules are generated one after the other, and
//! drivers compile them on all cores.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use nx_vulkan_spirv::generated::Generated;
use smallvec::SmallVec;

use super::Kernel;
use super::family::{Constants, KernelSpec};
use crate::Result;

/// Threads that compile at once.
const MAX_COMPILERS: usize = 32;

/// Stacks of theirs: drivers' compilers go deep.
const STACK_BYTES: usize = 16 << 20;

/// What is wanted so far.
#[derive(Debug, Default)]
pub(crate) struct Planned(Mutex<HashMap<Arc<dyn KernelSpec>, Wanted>>);

#[derive(Debug)]
struct Wanted {
    /// What stands for the kernel in launches that nobody records.
    stand_in: Arc<Kernel>,
    source: Source,
}

/// What a kernel is compiled of.
pub(super) type Source = (Generated, Constants);

impl Planned {
    /// The kernel of `spec`, or what stands for it. `plan` gives it, and what it is to be compiled of if it is not
    /// there.
    pub(super) fn kernel(
        &self,
        spec: &dyn KernelSpec,
        plan: impl FnOnce(&Arc<dyn KernelSpec>) -> Result<(Arc<Kernel>, Option<Source>)>,
    ) -> Result<Arc<Kernel>> {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = wanted.get(spec) {
            return Ok(Arc::clone(&wanted.stand_in));
        }
        let spec = spec.kept();
        let (kernel, missing) = plan(&spec)?;
        if let Some(source) = missing {
            wanted.insert(spec, Wanted { stand_in: Arc::clone(&kernel), source });
        }
        Ok(kernel)
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Compiles all of them by `keep`.
    pub(super) fn compile(
        &self,
        keep: impl Fn(Arc<dyn KernelSpec>, Generated, &[(u32, u32)]) -> Result<Arc<Kernel>> + Sync,
    ) -> Vec<Arc<Kernel>> {
        let wanted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let wanted: Vec<(_, Mutex<Option<Wanted>>)> =
            wanted.into_iter().map(|(spec, wanted)| (spec, Mutex::new(Some(wanted)))).collect();
        let (next, compiled) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(wanted.len())));
        let work = || {
            while let Some((spec, wanted)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(wanted) = wanted.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
                let (generated, constants) = wanted.source;
                let kernel = keep(Arc::clone(spec), generated, &constants);
                compiled.lock().unwrap_or_else(PoisonError::into_inner).extend(kernel);
            }
        };
        let cores = available_parallelism().map_or(1, |cores| cores.get()).min(MAX_COMPILERS);
        thread::scope(|scope| {
            let others: SmallVec<[_; MAX_COMPILERS]> = (1..cores.min(wanted.len()))
                .map_while(|_| thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).ok())
                .collect();
            work();
            // One that panicked left its kernel to whoever asks for it.
            others.into_iter().for_each(|other| drop(other.join()));
        });
        compiled.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
