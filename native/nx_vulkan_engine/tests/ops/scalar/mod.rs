//! Runs one elementwise op over contiguous tensors.

mod halves;
mod lowered;
mod of_f32;
mod of_f64;
mod of_int;

use std::sync::Arc;

use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_engine::program::Elementwise;
use nx_vulkan_engine::tuning::SHARING;
use nx_vulkan_engine::{DType, Engine, Interface, Launch, PipelineKey, Waits};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use smallvec::smallvec;

use crate::common;

pub struct Runner {
    pub engine: Arc<Engine>,
    /// The forms of functions: those of the device, unless a test sets others.
    pub modes: FloatModes,
}

impl Runner {
    pub fn new() -> Runner {
        let engine = common::engine();
        Runner { modes: engine.float_modes().unwrap(), engine }
    }

    /// The forms of the device, and those of others, which do without what it rounds rightly.
    pub fn of_all_forms() -> Vec<Runner> {
        let own = Runner::new();
        let without = own
            .modes
            .rounded
            .then(|| Runner { engine: Arc::clone(&own.engine), modes: FloatModes { rounded: false, ..own.modes } });
        std::iter::once(own).chain(without).collect()
    }

    pub fn assert_valid(&self) {
        common::assert_valid(&self.engine);
    }

    /// The elements of `out`, as they are stored, for operands of the same number of elements.
    pub fn run(&self, op: Elementwise, inputs: &[(DType, &[u8])], out: DType) -> Vec<u8> {
        self.run_wide(op, inputs, out, 1)
    }

    /// As `run`, with `width` neighbours per invocation.
    pub fn run_wide(&self, op: Elementwise, inputs: &[(DType, &[u8])], out: DType, width: u8) -> Vec<u8> {
        let dtypes: Vec<DType> = inputs.iter().map(|&(dtype, _)| dtype).collect();
        let kernel = self.kernel(op, &dtypes, out, width);
        self.run_kernel(&kernel, inputs, out)
    }

    /// The kernel of an op.
    pub fn kernel(&self, op: Elementwise, inputs: &[DType], out: DType, width: u8) -> Generated {
        self.kernel_of(&[Step { op, args: (0..inputs.len() as u8).map(Ref::Input).collect(), out }], inputs, width)
    }

    /// The kernel of steps, which stores what the last one gives.
    pub fn kernel_of(&self, steps: &[Step], inputs: &[DType], width: u8) -> Generated {
        self.kernel_in(Form::Vectors, steps, inputs, width)
    }

    /// The same in a form of kernels.
    pub fn kernel_in(&self, form: Form, steps: &[Step], inputs: &[DType], width: u8) -> Generated {
        let last = steps.len() - 1;
        let port = |dtype| Port { element: Element::Typed(dtype), layout: Layout::Contiguous };
        let spec = Spec {
            inputs: inputs.iter().map(|&dtype| port(dtype)).collect(),
            steps: steps.into(),
            outputs: smallvec![(Ref::Result(last as u16), port(steps[last].out))],
            rank: 1,
            width,
            form,
            fixed: None,
            numbers: Default::default(),
            shift: None,
            sharing: SHARING,
        };
        spec.generate(Library::builtin().unwrap(), self.modes).unwrap()
    }

    /// The elements that a kernel makes of operands of the same number of elements.
    pub fn run_kernel(&self, kernel: &Generated, inputs: &[(DType, &[u8])], out: DType) -> Vec<u8> {
        let n = inputs[0].1.len() / storage_bytes(inputs[0].0);
        let mut buffers: Vec<_> = inputs
            .iter()
            .map(|(_, data)| {
                let buffer = self.engine.alloc(data.len() as u64).unwrap();
                self.engine.upload(&buffer, 0, data).unwrap();
                buffer
            })
            .collect();
        buffers.push(self.engine.alloc((n * storage_bytes(out)) as u64).unwrap());
        let params: Vec<u32> = kernel
            .params
            .words
            .iter()
            .map(|param| match *param {
                Param::Count => n as u32,
                Param::AddressLow(k) => buffers[k as usize].address() as u32,
                Param::AddressHigh(k) => (buffers[k as usize].address() >> 32) as u32,
                other => panic!("{other:?} in a contiguous kernel"),
            })
            .collect();
        // the whole block of the templates
        let interface = Interface::Addresses { push_bytes: ParamLayout::PUSH_WORDS as u32 * 4 };
        let key = PipelineKey::new(&kernel.words, &[], interface);
        // SAFETY: the kernel is generated for this interface.
        let pipeline = unsafe { self.engine.pipeline(key, &kernel.words, &[], interface) }.unwrap();
        let (reads, writes): (Vec<_>, Vec<_>) =
            (buffers[..inputs.len()].iter().collect(), vec![&buffers[inputs.len()]]);
        // SAFETY: the parameters name these buffers, which have as many elements.
        unsafe {
            self.engine.dispatch(&Launch {
                pipeline: &pipeline,
                params: &params,
                table: None,
                addresses: &[],
                groups: [(n as u32).div_ceil(kernel.elements_per_group), 1, 1],
                reads: &reads,
                writes: &writes,
                waits: Waits::All,
                work: None,
                in_place: &[],
                copied_bytes: None,
            })
        }
        .unwrap();
        let mut bytes = vec![0; n * storage_bytes(out)];
        self.engine.download(&buffers[inputs.len()], 0, &mut bytes).unwrap();
        bytes
    }
}

/// Bytes of an element on the device: sub-byte types take one.
pub fn storage_bytes(dtype: DType) -> usize {
    (dtype.bits() as usize / 8).max(1)
}

pub fn f32_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
