//! Pending ops and what holds them.

use smallvec::SmallVec;

use super::lazy::{Inner, Lazy};
use super::signature;
use crate::eager::Results;
use crate::program::Op;
use crate::program::fused::is_view;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use crate::{DType, Tensor, Type};

/// An op with its operands, until its results are there.
#[derive(Debug)]
pub(super) struct Node {
    /// Greater than those of its operands.
    pub number: u64,
    pub op: Op,
    pub outs: SmallVec<[Type; 1]>,
    /// A hash of `op`, without the value of a constant, and `outs`.
    pub signature: u64,
    backlog: Arc<Backlog>,
    /// Nodes of the engine that are not computed.
    pending: Arc<AtomicU64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// None once there are results.
    pub operands: SmallVec<[Lazy; 3]>,
    pub results: Option<Results>,
    /// The nodes that have it as an operand.
    pub readers: SmallVec<[Weak<Node>; 2]>,
    /// How often its results were computed and not kept.
    pub runs: u8,
    /// Whether computing it failed, so that only who reads it tries again.
    pub failed: bool,
}

/// Counts nodes that hang together. Nodes of backlogs that meet later go on counting in their own: a bound needs no
/// exact number.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    ops: AtomicU32,
    bytes: AtomicU64,
}

impl Backlog {
    pub fn of(operands: &[Lazy]) -> Arc<Backlog> {
        let mut backlogs = operands.iter().filter_map(|o| o.pending()).map(|node| &node.backlog);
        let Some(first) = backlogs.next() else { return Arc::default() };
        for other in backlogs.filter(|other| !Arc::ptr_eq(first, other)) {
            first.ops.fetch_add(other.ops.swap(0, Relaxed), Relaxed);
            first.bytes.fetch_add(other.bytes.swap(0, Relaxed), Relaxed);
        }
        Arc::clone(first)
    }

    fn add(&self, bytes: u64) {
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn is_full(&self, max_ops: u32, max_bytes: u64) -> bool {
        self.ops.load(Relaxed) >= max_ops || self.bytes.load(Relaxed) >= max_bytes
    }

    pub fn restart(&self) {
        self.ops.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }
}

impl Node {
    pub fn new(
        op: Op,
        operands: SmallVec<[Lazy; 3]>,
        outs: SmallVec<[Type; 1]>,
        backlog: Arc<Backlog>,
        pending: &Arc<AtomicU64>,
    ) -> Arc<Node> {
        static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let takes_none = matches!(op, Op::Constant(_)) || is_view(&op);
        backlog.add(if takes_none { 0 } else { outs.iter().map(Type::size_bytes).sum() });
        pending.fetch_add(1, Relaxed);
        let signature = signature::of(&op, &outs);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let read: SmallVec<[Arc<Node>; 3]> = operands.iter().filter_map(|o| o.pending().cloned()).collect();
        let state = Mutex::new(State { operands, ..State::default() });
        let node = Arc::new(Node { number, op, outs, signature, backlog, pending: Arc::clone(pending), state });
        for operand in read {
            operand.lock().add_reader(&node);
        }
        node
    }

    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Locks of nodes are held one at a time.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of a state is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn result(&self, result: u32) -> Option<Tensor> {
        self.lock().results.as_ref().and_then(|results| results.get(result as usize).cloned())
    }

    pub fn ty(&self, result: u32) -> Type {
        self.outs.get(result as usize).cloned().unwrap_or_else(|| Type::new(DType::U8, &[0]))
    }

    /// Keeps results, unless others were faster, and lets go of the operands.
    pub fn fill(&self, results: Results) {
        let mut state = self.lock();
        if state.results.is_some() {
            return;
        }
        state.results = Some(results);
        let operands = std::mem::take(&mut state.operands);
        state.readers = SmallVec::new();
        // What the operands hold may be dropped here, which must not happen under the lock.
        drop(state);
        drop(operands);
        self.pending.fetch_sub(1, Relaxed);
    }

    /// Notes that the results were computed and not kept.
    pub fn note_run(&self) {
        let mut state = self.lock();
        state.runs = state.runs.saturating_add(1);
    }
}

impl State {
    fn add_reader(&mut self, node: &Arc<Node>) {
        if self.results.is_some() {
            return;
        }
        // Readers that are gone are forgotten each time the list would double.
        if self.readers.len() == self.readers.capacity() {
            self.readers.retain(|reader| reader.strong_count() > 0);
        }
        self.readers.push(Arc::downgrade(node));
    }
}

impl Drop for Node {
    /// Frees what only this node held, without recursion: chains of pending nodes may be long and stacks are small.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.results.is_none() {
            self.pending.fetch_sub(1, Relaxed);
        }
        let mut held = std::mem::take(&mut state.operands);
        while let Some(Lazy(operand)) = held.pop() {
            if let Inner::Pending { node, .. } = operand
                && let Some(mut node) = Arc::into_inner(node)
            {
                let state = node.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                held.append(&mut state.operands);
            }
        }
    }
}
