//! Launches of whole programs that one workgroup runs, or each of many for itself.

use std::sync::Arc;

use nx_vulkan_spirv::workgroup::{Keyed, Mode, Port, WorkgroupSpec};
use smallvec::SmallVec;

use crate::kernels::{Arguments, Compile, Kernel, Place, launch};
use crate::program::Program;
use crate::tuning::DeviceModel;
use crate::{Engine, Error, Result, Tensor, Type, View};

/// Shared memory that a workgroup uses at most: what every device has that Vulkan 1.2 drivers for desktops support, so
/// that programs take the same form everywhere.
const SHARED_BYTES: u32 = 32 << 10;

/// How an input lies, seen from its lowest element.
fn port(tensor: &Tensor) -> Port {
    let view = &tensor.view;
    let (low, _) = view.extent();
    Port { strides: view.strides.clone(), bias: view.offset.wrapping_sub(low as u64), per_group: false }
}

/// The spec of a program that runs once on these inputs.
pub fn spec(model: &DeviceModel, program: &Arc<Program>, inputs: &[Tensor]) -> WorkgroupSpec {
    spec_with(model, program, inputs.iter().map(port).collect(), Mode::Once)
}

/// The spec of a program whose inputs lie as `ports` say.
pub fn spec_with(model: &DeviceModel, program: &Arc<Program>, ports: Vec<Port>, mode: Mode) -> WorkgroupSpec {
    let (caps, sizes) = (&model.caps, model.local_sizes);
    let max_invocations = caps.max_invocations.min(caps.max_workgroup_size[0]);
    WorkgroupSpec {
        local_size: WorkgroupSpec::local_size(program, mode, sizes, max_invocations),
        program: Keyed::new(Arc::clone(program)),
        ports,
        mode,
        shared_bytes: SHARED_BYTES.min(caps.max_shared_memory_bytes),
        subgroup: sizes.subgroup,
    }
}

/// Which runs of a program a dispatch does that repeats one ([`Mode::Steps`]).
#[derive(Debug, Clone, Copy, Default)]
pub struct Repeat<'a> {
    /// Runs that all dispatches together keep: rows of the outputs for each workgroup.
    pub kept: u32,
    /// The counter of the first run, and that after the last one.
    pub from: u32,
    pub to: u32,
    /// For kernels that pause: units of work, scratch memory `[groups, words]` and progress `[groups, PROGRESS_WORDS]`,
    /// both u32.
    pub pause: Option<(u32, &'a Tensor, &'a Tensor)>,
}

/// Records one workgroup of a kernel of `spec`, which runs its program once.
pub fn run(
    engine: &Engine,
    spec: &WorkgroupSpec,
    inputs: &[Tensor],
    outputs: &[Tensor],
    compile: Compile,
) -> Result<()> {
    let kernel = engine.kernel(spec, compile)?;
    run_kernel(engine, &kernel, &spec.ports, (inputs, outputs), 1, Repeat::default())
}

/// Records `groups` workgroups of a kernel with these inputs and outputs.
pub fn run_kernel(
    engine: &Engine,
    kernel: &Arc<Kernel>,
    ports: &[Port],
    (inputs, outputs): (&[Tensor], &[Tensor]),
    groups: u32,
    repeat: Repeat<'_>,
) -> Result<()> {
    let views: SmallVec<[&View; 8]> = inputs.iter().chain(outputs).map(|tensor| &*tensor.view).collect();
    let kernel = &kernel.reaching(engine, engine.reach().is_far(&views)?)?;
    // For these kernels it is the bytes of scratch memory that a workgroup needs.
    let scratch_bytes = u64::from(kernel.elements_per_group);
    let scratch_limit = u64::from(u32::MAX);
    if scratch_bytes * u64::from(groups) >= scratch_limit {
        return Err(Error::TooLarge { size_bytes: scratch_bytes * u64::from(groups), limit_bytes: scratch_limit });
    }
    let scratch = match (repeat.pause, scratch_bytes) {
        (None, 0) => None,
        (None, bytes) => {
            let buffer = engine.alloc(bytes * u64::from(groups))?;
            let address = buffer.address();
            Some((buffer, address))
        }
        (Some((_, scratch, _)), _) => Some((Arc::clone(&scratch.buffer), scratch.address())),
    };
    let progress = repeat.pause.map(|(_, _, progress)| (&progress.buffer, progress.address()));
    let lowest = |tensor: &Tensor, port: &Port| tensor.address() - port.bias * tensor.view.dtype.size_bytes();
    let mut places: SmallVec<[Place<'_>; 8]> = inputs
        .iter()
        .zip(ports)
        .map(|(t, port)| Place { buffer: &t.buffer, address: lowest(t, port), strides: &[], element_bytes: 0 })
        .collect();
    let first_output = places.len();
    let written = outputs.iter().map(|t| (&t.buffer, t.address()));
    let written = written.chain(scratch.iter().map(|(buffer, address)| (buffer, *address))).chain(progress);
    places.extend(written.map(|(buffer, address)| Place { buffer, address, strides: &[], element_bytes: 0 }));
    let units = repeat.pause.map_or(0, |(units, ..)| units);
    let extra = [repeat.kept, scratch_bytes as u32, repeat.from, repeat.to, units];
    let arguments = Arguments { count: groups, sizes: &[], places: &places, extra: &extra };
    launch(engine, kernel, &arguments, first_output, groups.into())
}

/// Memory for the outputs of a program.
pub fn outputs(engine: &Engine, types: &[Type]) -> Result<Vec<Tensor>> {
    types.iter().map(|ty| Tensor::uninitialized(engine, ty)).collect()
}
