//! Kernels that a compilation wants and that are not there yet: their modules are generated one after the other, and
//! drivers compile them on all cores.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use nx_vulkan_device::kernel::Pipeline;
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use smallvec::SmallVec;

use super::family::{Constants, KernelSpec};
use super::{Compile, Kernel, interface_of};
use crate::{Engine, Error, Result};

/// Threads that compile at once.
const MAX_COMPILERS: usize = 32;

/// Stacks of theirs: drivers' compilers go deep.
const STACK_BYTES: usize = 16 << 20;

/// What is wanted so far.
#[derive(Debug, Default)]
pub(crate) struct Planned(Mutex<HashMap<Arc<KernelSpec>, Wanted>>);

#[derive(Debug)]
struct Wanted {
    /// What stands for the kernel in launches that nobody records.
    stand_in: Arc<Kernel>,
    generated: Generated,
    constants: Constants,
}

impl Planned {
    /// What stands for the kernel of `spec`, which is not there.
    pub(super) fn kernel(&self, engine: &Engine, spec: &KernelSpec) -> Result<Arc<Kernel>> {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = wanted.get(spec) {
            return Ok(Arc::clone(&wanted.stand_in));
        }
        let (generated, constants) = engine.generate(spec)?;
        let spec = Arc::new(spec.clone());
        let key = engine.key_of(Some(&spec), &generated, &constants)?;
        if engine.cached_pipeline(key).is_some() {
            return engine.keep(spec, generated, &constants);
        }
        let pipeline = Arc::new(Pipeline::without_handle(engine.open_device(), key, interface_of(&generated)));
        let stand_in = Arc::new(Kernel::new(Some(Arc::clone(&spec)), pipeline, &generated));
        wanted.insert(spec, Wanted { stand_in: Arc::clone(&stand_in), generated, constants });
        Ok(stand_in)
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Compiles all of them. Who asks for one that failed finds out why. What is given is not dropped as idle while it is
    /// held.
    pub(crate) fn compile(&self, engine: &Engine) -> Vec<Arc<Kernel>> {
        let wanted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let wanted: Vec<(Arc<KernelSpec>, Mutex<Option<Wanted>>)> =
            wanted.into_iter().map(|(spec, wanted)| (spec, Mutex::new(Some(wanted)))).collect();
        let (next, compiled) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(wanted.len())));
        let work = || {
            while let Some((spec, wanted)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(wanted) = wanted.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
                let kernel = engine.keep(Arc::clone(spec), wanted.generated, &wanted.constants);
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

impl Engine {
    /// The kernel of `spec`, compiled if it is not there yet and `compile` allows it.
    pub fn kernel(&self, spec: &KernelSpec, compile: Compile) -> Result<Arc<Kernel>> {
        let kernels = &self.kernel_cache().kernels;
        if let Some(kernel) = kernels.read().unwrap_or_else(PoisonError::into_inner).get(spec) {
            return Ok(Arc::clone(kernel));
        }
        if compile == Compile::Refused {
            return Err(Error::NeedsCompile);
        }
        if let Some(planned) = self.planned().filter(|_| self.captures()) {
            return planned.kernel(self, spec);
        }
        let (generated, constants) = self.generate(spec)?;
        self.keep(Arc::new(spec.clone()), generated, &constants)
    }

    /// The module of a kernel, and its specialization constants.
    fn generate(&self, spec: &KernelSpec) -> Result<(Generated, Constants)> {
        let (family, modes) = (spec.family(), self.float_modes()?);
        Ok((family.generate(Library::builtin()?, modes)?, family.constants(modes)))
    }

    /// Compiles a kernel and keeps it.
    fn keep(&self, spec: Arc<KernelSpec>, generated: Generated, constants: &[(u32, u32)]) -> Result<Arc<Kernel>> {
        let kernel = Arc::new(self.build(Some(Arc::clone(&spec)), generated, constants)?);
        let kernels = &self.kernel_cache().kernels;
        kernels.write().unwrap_or_else(PoisonError::into_inner).insert(spec, Arc::clone(&kernel));
        Ok(kernel)
    }
}
