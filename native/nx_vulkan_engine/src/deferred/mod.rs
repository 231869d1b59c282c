//! Ops that wait until somebody reads a result: fusion without a compiler in front.
//!
//! [`defer`] makes a pending *node* of an op; [`Lazy`] is one of its results. [`Lazy::tensor`] computes: it takes all
//! pending nodes that hang together with the one that is read, and runs them as one program, whose executable is found
//! by the program's structure once the same structure was seen often enough to be worth compiling. Until then its ops
//! run one by one.
//!
//! What is computed is decided by structure alone, never by when a garbage collector drops handles, or equal steps of a
//! loop would be different programs: kept are the result that is read, results that no pending node reads, results of
//! costly ops, and what was computed before without being kept and is needed again. A result that is not kept stays
//! pending, and may be computed again, twice at most.
//!
//! ```
//! use nx_vulkan_engine::deferred::{Lazy, defer};
//! use nx_vulkan_engine::program::{Binary, Op, Unary};
//! use nx_vulkan_engine::{DType, Engine, Executable, Tensor, Type};
//! use smallvec::smallvec;
//!
//! # fn main() -> nx_vulkan_engine::Result<()> {
//! # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
//! let engine = Engine::open(None)?;
//! let x = Lazy::from(Tensor::from_slice(&engine, &[2], &[1f32, -2.0])?);
//! let vector = Type::new(DType::F32, &[2]);
//!
//! let double = defer(&engine, Op::Binary(Binary::Add), smallvec![x.clone(), x], smallvec![vector.clone()]);
//! let result = defer(&engine, Op::Unary(Unary::Abs), smallvec![double.results[0].clone()], smallvec![vector]);
//! assert!(result.results[0].ready().is_none());
//!
//! let tensor = result.results[0].tensor(&engine, Executable::compile)?;
//! assert_eq!(tensor.to_vec::<f32>(&engine)?, [2.0, 4.0]);
//! # Ok(())
//! # }
//! ```

mod cache;
mod graph;
mod lazy;
mod node;
mod run;
mod signature;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use cache::Cache;
pub use cache::Counters;
use lazy::Inner;
pub use lazy::Lazy;
use node::{Backlog, Node};

use crate::program::{Op, Program};
use crate::{Engine, Executable, Result, Tensor, Type};

/// Pending ops that hang together, and bytes of their results, from which on they are computed without being read:
/// passes take longer than in proportion (16 ms for 455 ops), and a device that starts late is idle.
const MAX_OPS: u32 = 1024;
const MAX_BYTES: u64 = 64 << 20;

/// Pending ops of an engine, some 0.7 KiB of host memory each, from which on handles that nobody needs should be
/// dropped, asked for once for so many new ops; and from which on every new op is computed.
const MANY_PENDING: u64 = 1 << 14;
const ASK_EVERY: u64 = MANY_PENDING / 4;
const MAX_PENDING: u64 = 1 << 16;

/// How to compile a program; on a thread whose stack is large enough for deep nesting.
pub type CompileWith = fn(&Arc<Engine>, Program) -> Result<Executable>;

/// What [`defer`] gives.
#[derive(Debug)]
pub struct Deferred {
    /// Its results in order, pending.
    pub results: SmallVec<[Lazy; 1]>,
    /// Whether so much is pending that one of the results should be computed now.
    pub full: bool,
    /// Whether so many ops are pending that whoever holds results that nobody needs should drop them.
    pub many: bool,
}

impl Engine {
    /// What deferred ops did so far.
    pub fn deferred_counters(&self) -> Counters {
        self.state::<Cache>().counters()
    }
}

/// An op whose results are computed when somebody asks for them. Makes no Vulkan call and takes about a microsecond.
///
/// # Errors
/// None: what is wrong with the op is an error of [`Lazy::tensor`].
pub fn defer(engine: &Engine, op: Op, operands: SmallVec<[Lazy; 3]>, outs: SmallVec<[Type; 1]>) -> Deferred {
    let operands: SmallVec<[Lazy; 3]> = operands.into_iter().map(Lazy::settled).collect();
    let backlog = Backlog::of(&operands);
    let pending = &engine.state::<Cache>().pending;
    let node = Node::new(op, operands, outs, backlog, pending);
    let pending = pending.load(Relaxed);
    let full = pending >= MAX_PENDING || node.backlog().is_full(MAX_OPS, MAX_BYTES);
    let many = pending >= MANY_PENDING && node.number.is_multiple_of(ASK_EVERY);
    let results = (0..node.outs.len() as u32).map(|result| Lazy(Inner::Pending { node: Arc::clone(&node), result }));
    Deferred { results: results.collect(), full, many }
}

impl Lazy {
    /// The tensor, which this records if it is pending. Returns at once; the device fills it.
    ///
    /// # Errors
    /// [`crate::Error::InOp`] with the op that failed.
    pub fn tensor(&self, engine: &Arc<Engine>, compile: CompileWith) -> Result<Tensor> {
        match &self.0 {
            Inner::Ready(tensor) => Ok(Tensor::clone(tensor)),
            Inner::Pending { node, result } => run::compute(engine, node, *result, compile),
        }
    }
}
