//! What the tests of device, memory and stream share: an engine with the validation layer on, and the two test kernels.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::sync::Arc;

use nx_vulkan_engine::program::Conv;
use nx_vulkan_engine::{
    Access, Binding, BoundLaunch, Buffer, Engine, HostAccess, Interface, Launch, Options, Pipeline, PipelineKey,
    Result, Validation, Waits,
};

pub const AXPB: &[u8] = include_bytes!("../../../nx_vulkan_device/tests/data/axpb.spv");
pub const BOUND_ADD: &[u8] = include_bytes!("../data/bound_add.spv");

/// Options for tests: validation on unless the environment says more, and no disk cache.
pub fn options() -> Options {
    let mut options = Options::from_env();
    if options.validation == Validation::Off {
        options.validation = Validation::On;
    }
    options.cache_dir = None;
    options
}

pub fn engine() -> Arc<Engine> {
    Engine::open_with(&options()).unwrap()
}

/// One engine for each way in which the host may reach device memory.
pub fn every_host_access() -> [Arc<Engine>; 3] {
    [HostAccess::Auto, HostAccess::Small, HostAccess::Never]
        .map(|host_access| Engine::open_with(&Options { host_access, ..options() }).unwrap())
}

/// Fails the test if the validation layer said anything.
pub fn assert_valid(engine: &Engine) {
    if let Some(messages) = engine.validation_messages() {
        assert!(messages.is_empty(), "{}", messages.join("\n"));
    }
}

/// A convolution by a kernel of 3 x 3 whose results have the sides of the input, with these axes of input, kernel and
/// result.
pub fn conv_3x3(axes: [[usize; 4]; 3]) -> Conv {
    let ones = || [1, 1].into_iter().collect();
    let [input_axes, kernel_axes, output_axes] = axes.map(|axes| axes.into_iter().collect());
    Conv {
        strides: ones(),
        padding: [(1, 1), (1, 1)].into_iter().collect(),
        input_dilation: ones(),
        kernel_dilation: ones(),
        feature_groups: 1,
        batch_groups: 1,
        input_axes,
        kernel_axes,
        output_axes,
    }
}

pub fn words(spv: &[u8]) -> Vec<u32> {
    spv.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub fn axpb(engine: &Engine, use_table: bool) -> Arc<Pipeline> {
    let spirv = words(AXPB);
    let spec = [(0, u32::from(use_table))];
    let interface = Interface::Addresses { push_bytes: 32 };
    let key = PipelineKey::new(&spirv, &spec, interface);
    // SAFETY: the module is one of the tests, for this interface.
    unsafe { engine.pipeline(key, &spirv, &spec, interface) }.unwrap()
}

pub fn bound_add(engine: &Engine) -> Arc<Pipeline> {
    let spirv = words(BOUND_ADD);
    let interface = Interface::Descriptors { bindings: 3, push_bytes: 8 };
    let key = PipelineKey::new(&spirv, &[], interface);
    // SAFETY: the module is one of the tests, for this interface.
    unsafe { engine.pipeline(key, &spirv, &[], interface) }.unwrap()
}

/// Records `dst = src * mul + add` over `n` words.
pub fn run_axpb(
    engine: &Engine,
    pipeline: &Arc<Pipeline>,
    src: &Arc<Buffer>,
    dst: &Arc<Buffer>,
    n: u32,
    (mul, add): (u32, u32),
    use_table: bool,
) -> Result<()> {
    let (s, d) = (src.address(), dst.address());
    let params = [s as u32, (s >> 32) as u32, d as u32, (d >> 32) as u32, n, mul, add];
    // SAFETY: the parameters name these buffers, which have as many elements.
    unsafe {
        engine.dispatch(&Launch {
            pipeline,
            params: if use_table { &[] } else { &params },
            table: use_table.then_some(&params),
            addresses: &[],
            groups: [n.div_ceil(64), 1, 1],
            reads: &[src],
            writes: &[dst],
            waits: Waits::All,
            work: None,
            in_place: &[],
            copied_bytes: None,
        })
    }
}

/// Records `c = a + b * scale` over `n` words through descriptors.
pub fn run_bound_add(
    engine: &Engine,
    pipeline: &Arc<Pipeline>,
    [a, b, c]: [&Arc<Buffer>; 3],
    n: u32,
    scale: u32,
) -> Result<()> {
    let binding = |buffer, access| Binding { buffer, offset: 0, size_bytes: u64::from(n) * 4, access };
    let push: Vec<u8> = [n, scale].into_iter().flat_map(u32::to_le_bytes).collect();
    engine.dispatch_bound(&BoundLaunch {
        pipeline,
        push: &push,
        groups: [n.div_ceil(64), 1, 1],
        bindings: &[binding(a, Access::Read), binding(b, Access::Read), binding(c, Access::Write)],
    })
}

pub fn upload_words(engine: &Engine, words: &[u32]) -> Arc<Buffer> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let buffer = engine.alloc(bytes.len() as u64).unwrap();
    engine.upload(&buffer, 0, &bytes).unwrap();
    buffer
}

pub fn download_words(engine: &Engine, buffer: &Arc<Buffer>) -> Result<Vec<u32>> {
    let mut bytes = vec![0; buffer.size_bytes() as usize];
    engine.download(buffer, 0, &mut bytes)?;
    Ok(words(&bytes))
}

/// A small deterministic generator: xorshift64*.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A directory of its own under the system's temporary one, removed on drop.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("nx_vulkan-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
