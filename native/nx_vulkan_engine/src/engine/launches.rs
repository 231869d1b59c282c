//! Pipelines, and launches of them.

use std::sync::Arc;

use nx_vulkan_device::kernel::{BoundLaunch, Interface, Launch, Pipeline, PipelineKey};
use nx_vulkan_device::memory::AllocError;

use super::Engine;
use crate::{Error, Result};

impl Engine {
    /// The pipeline of `key`, compiled if it is not there yet: milliseconds on a GPU driver. Any number of threads may
    /// ask for the same key; one compiles, the others wait.
    ///
    /// # Safety
    /// `key` is that of the other arguments. `spirv` is a valid module for `interface` and the device's features. With
    /// descriptors it accesses no memory but that of its bindings; with addresses, what the launches' parameters name.
    ///
    /// # Errors
    /// `BadShader` for what is no module, `InvalidArgument` for an interface beyond the device's limits, `OutOfMemory`,
    /// `Vulkan` where the driver refuses it.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) unsafe fn pipeline(
        &self,
        key: PipelineKey,
        spirv: &[u32],
        spec: &[(u32, u32)],
        interface: Interface,
    ) -> Result<Arc<Pipeline>> {
        let pipelines = &self.core.pipelines;
        if pipelines.is_full() && pipelines.get(key).is_none() {
            self.core.kernels.drop_idle(pipelines);
            pipelines.destroy_retired(self.core.stream.completed());
        }
        // A driver without memory for a pipeline may have some once the pool gives back what is free.
        let size_bytes = size_of_val(spirv) as u64;
        let compile = || {
            // SAFETY: the caller's duty.
            unsafe { pipelines.get_or_compile(key, spirv, spec, interface) }.map_err(|e| match e {
                Error::OutOfMemory { .. } => AllocError::OutOfMemory,
                other => AllocError::Failed(other),
            })
        };
        self.with_more_memory(size_bytes, compile)?.ok_or_else(|| self.alloc_error(AllocError::OutOfMemory, size_bytes))
    }

    /// The pipeline of `key` if it is compiled. Never blocks.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn cached_pipeline(&self, key: PipelineKey) -> Option<Arc<Pipeline>> {
        self.core.pipelines.get(key)
    }

    /// Writes a module to the folder that the options name.
    pub(crate) fn dump_spirv(&self, name: impl FnOnce() -> String, words: &[u32]) -> Result<()> {
        let Some(folder) = &self.core.dump_spirv else { return Ok(()) };
        let path = folder.join(format!("{}.spv", name()));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, bytemuck::cast_slice::<u32, u8>(words)));
        written.map_err(|e| Error::Io { path: path.display().to_string(), cause: e.to_string() })
    }

    /// Writes compiled pipelines to the cache on disk now, rather than after some more of them: a process that ends
    /// without dropping its engine loses those.
    pub fn save_pipelines(&self) {
        self.core.pipelines.save();
    }

    /// Records one dispatch of a kernel that takes buffer addresses.
    ///
    /// # Safety
    /// With these parameters (or this table) the kernel accesses elements of `reads` and `writes` alone, and writes to
    /// `writes` alone. `addresses` names every word of them that begins an address, `waits` leaves out no launch that
    /// touches the same elements, and the kernel does with pairs of `in_place` what they say.
    ///
    /// # Errors
    /// `InvalidArgument` when parameters don't fit the pipeline or group counts exceed the device's limit: splitting is
    /// the caller's.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) unsafe fn dispatch(&self, launch: &Launch<'_>) -> Result<()> {
        if launch.groups.contains(&0) {
            return self.core.stream.check();
        }
        let push_bytes = match launch.pipeline.interface() {
            Interface::Addresses { push_bytes } => push_bytes as usize,
            Interface::Descriptors { .. } => return Err(wrong_interface("an address pipeline")),
        };
        let words = launch.params.len().max(if launch.table.is_some() { 2 } else { 0 });
        if words * 4 > push_bytes {
            return Err(Error::InvalidArgument {
                what: "launch parameters",
                expected: format!("at most {push_bytes} bytes"),
                got: format!("{} bytes", words * 4),
            });
        }
        self.check_launch(launch.pipeline, launch.groups)?;
        for buffer in launch.reads.iter().chain(launch.writes) {
            self.check_owner(buffer)?;
        }
        match &self.capture {
            Some(capture) => capture.launch(launch),
            // SAFETY: the caller's duty.
            None => unsafe { self.core.stream.dispatch(launch) },
        }
    }

    /// Records one dispatch of a shader that takes storage-buffer descriptors.
    ///
    /// # Errors
    /// `InvalidArgument` when bindings or push bytes don't fit the pipeline, `TooLarge` when a range exceeds what a
    /// descriptor holds.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn dispatch_bound(&self, launch: &BoundLaunch<'_>) -> Result<()> {
        if launch.groups.contains(&0) {
            return self.core.stream.check();
        }
        let Interface::Descriptors { bindings, push_bytes } = launch.pipeline.interface() else {
            return Err(wrong_interface("a descriptor pipeline"));
        };
        if launch.bindings.len() != bindings as usize {
            return Err(Error::InvalidArgument {
                what: "bindings",
                expected: format!("{bindings} buffers"),
                got: launch.bindings.len().to_string(),
            });
        }
        if launch.push.len() > push_bytes as usize || !launch.push.len().is_multiple_of(4) {
            return Err(Error::InvalidArgument {
                what: "push constants",
                expected: format!("a multiple of 4 bytes, at most {push_bytes}"),
                got: format!("{} bytes", launch.push.len()),
            });
        }
        self.check_launch(launch.pipeline, launch.groups)?;
        let caps = self.caps();
        for b in launch.bindings {
            self.check_range("binding", b.buffer, b.offset, b.size_bytes)?;
            if !b.offset.is_multiple_of(caps.min_storage_buffer_offset_alignment) {
                return Err(Error::InvalidArgument {
                    what: "binding offset",
                    expected: format!("a multiple of {}", caps.min_storage_buffer_offset_alignment),
                    got: b.offset.to_string(),
                });
            }
            if b.size_bytes > caps.max_storage_buffer_range_bytes {
                return Err(Error::TooLarge {
                    size_bytes: b.size_bytes,
                    limit_bytes: caps.max_storage_buffer_range_bytes,
                });
            }
        }
        if self.capture.is_some() {
            return Err(Error::NeedsCompile);
        }
        // SAFETY: device, interface, group counts and each binding's range were checked above.
        unsafe { self.core.stream.dispatch_bound(launch) }
    }

    fn check_launch(&self, pipeline: &Pipeline, groups: [u32; 3]) -> Result<()> {
        if !pipeline.belongs_to(&self.core.open.device) {
            return Err(wrong_interface("a pipeline of this device"));
        }
        let limit = self.core.open.caps.max_workgroup_count;
        if groups.iter().zip(&limit).any(|(g, max)| g > max) {
            return Err(Error::InvalidArgument {
                what: "workgroup counts",
                expected: format!("at most {limit:?}"),
                got: format!("{groups:?}"),
            });
        }
        Ok(())
    }
}

fn wrong_interface(expected: &str) -> Error {
    Error::InvalidArgument { what: "pipeline", expected: expected.to_string(), got: "another one".into() }
}
