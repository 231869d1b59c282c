//! Pipelines, and how a dispatch names its pipeline, parameters and buffers.

mod code;
mod disk_cache;
mod made;
mod once;
mod pipeline;
mod statistics;

use std::sync::Arc;

pub use code::Code;
pub use disk_cache::{default_dir as default_cache_dir, device_file, write_whole};
pub use made::{MadeFiles, MadeKey};
pub use pipeline::Pipeline;
pub use pipeline::PipelineStore;
use rspirv::spirv::{Capability, Op};
use sha2::{Digest, Sha256};
pub use statistics::Statistics;

use crate::memory::Buffer;
use crate::work::Work;

/// How a shader takes its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interface {
    /// Buffer device addresses in push constants or in a table: every kernel of the engine's own.
    Addresses {
        /// Bytes of push constants.
        push_bytes: u32,
    },
    /// Storage buffers at set 0, bindings `0..bindings`: shaders that users supply.
    Descriptors {
        /// How many there are.
        bindings: u32,
        /// Bytes of push constants.
        push_bytes: u32,
    },
}

impl Interface {
    /// Bytes of push constants.
    pub fn push_bytes(self) -> u32 {
        match self {
            Interface::Addresses { push_bytes } | Interface::Descriptors { push_bytes, .. } => push_bytes,
        }
    }
}

/// Identifies a pipeline: a hash of the SPIR-V words, the specialization constants and the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PipelineKey([u8; 32]);

impl PipelineKey {
    /// Hashes about 0.5 GB/s: callers on a hot path keep the key.
    pub fn new(spirv: &[u32], spec: &[(u32, u32)], interface: Interface) -> PipelineKey {
        let mut hash = Sha256::new();
        hash.update(bytemuck::cast_slice::<u32, u8>(spirv));
        for &(id, value) in spec {
            hash.update(id.to_le_bytes());
            hash.update(value.to_le_bytes());
        }
        let (kind, bindings) = match interface {
            Interface::Addresses { .. } => (0u32, 0),
            Interface::Descriptors { bindings, .. } => (1, bindings),
        };
        for word in [kind, bindings, interface.push_bytes(), spec.len() as u32] {
            hash.update(word.to_le_bytes());
        }
        PipelineKey(hash.finalize().into())
    }

    /// What people call a pipeline of this label: that, and the first eight hexadecimal digits of the key.
    pub fn name(&self, label: &str) -> String {
        let digits: String = self.0.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("{label}-{digits}")
    }
}

/// What a module declares, which it does before all else.
pub fn capabilities(words: &[u32]) -> impl Iterator<Item = Capability> + '_ {
    let declared = words.get(5..).unwrap_or_default().chunks_exact(2);
    let declared = declared.take_while(|inst| inst[0] == 2 << 16 | Op::Capability as u32);
    declared.filter_map(|inst| Capability::from_u32(inst[1]))
}

/// What a launch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waits {
    /// What wrote the buffers that it reads, and used those that it writes.
    #[default]
    All,
    /// What the launch before it waits for, with which it takes turns: only one of the two writes, the same, and what
    /// either reads was there before both.
    Beside,
    /// All but other launches with this number, which is not 0. They write other elements of the one buffer that it
    /// writes, no bytes of which share a word with its own.
    Part(u64),
}

/// One dispatch of an `Interface::Addresses` pipeline.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The compiled kernel.
    pub pipeline: &'a Arc<Pipeline>,
    /// Push-constant words.
    pub params: &'a [u32],
    /// Words for a table in memory, when they don't fit the push constants. Its address overwrites words 0 and 1 of
    /// `params`.
    pub table: Option<&'a [u32]>,
    /// Where addresses stand: the first of two words each, in the table if there is one, else in `params`.
    pub addresses: &'a [u32],
    /// Workgroups in x, y, z. A zero makes the launch a no-op.
    pub groups: [u32; 3],
    /// What the kernel reads.
    pub reads: &'a [&'a Arc<Buffer>],
    /// A buffer may be in `reads` and `writes` at once.
    pub writes: &'a [&'a Arc<Buffer>],
    /// What it waits for.
    pub waits: Waits,
    /// What it moves and computes, where somebody asks.
    pub work: Option<Work>,
    /// Of `reads` one and of `writes`, counted on behind them, one that may share memory with it where nothing else
    /// uses either meanwhile.
    pub in_place: &'a [(usize, usize)],
    /// How many bytes it writes, where these are what it reads, in one order without gaps.
    pub copied_bytes: Option<u64>,
}

/// What a shader does with a bound buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It does both.
    ReadWrite,
}

/// One storage-buffer binding.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// The memory.
    pub buffer: &'a Arc<Buffer>,
    /// A multiple of `Caps::min_storage_buffer_offset_alignment`.
    pub offset: u64,
    /// The range that the shader sees.
    pub size_bytes: u64,
    /// What the shader does with it.
    pub access: Access,
}

/// One dispatch of an `Interface::Descriptors` pipeline.
#[derive(Debug, Clone, Copy)]
pub struct BoundLaunch<'a> {
    /// The compiled kernel.
    pub pipeline: &'a Arc<Pipeline>,
    /// Push constants; a multiple of four bytes.
    pub push: &'a [u8],
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// By their numbers in set 0.
    pub bindings: &'a [Binding<'a>],
}
