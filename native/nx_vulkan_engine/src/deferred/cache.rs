//! Executables by the structure of what is pending.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::graph::{Graph, Structure};
use super::node::Node;
use crate::Executable;
use crate::program::Program;

/// Times that a structure is run op by op before it is compiled. Compiling takes as long as a few hundred runs op by
/// op: 4.4 s for the gradient of the regime model on lavapipe, where a run of its 455 ops takes 5 ms. What happens
/// twice or ten times may never happen again.
const RUNS_BEFORE_COMPILING: u32 = 16;

/// Instructions of all structures that are remembered, some 0.5 KiB of host memory each. Those that were not met for
/// longest go first.
const MAX_INSTRUCTIONS: usize = 1 << 16;

/// Nodes that were computed and not kept, from which on they are looked through, and computed if handles hold more than
/// half of them.
const MAX_SURVIVORS: usize = 8192;

/// What deferred ops did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Ops that wait for somebody to read their results, on this device.
    pub pending: u64,
    /// Programs that ran as an executable.
    pub replayed: u64,
    /// Programs that ran op by op.
    pub one_by_one: u64,
    /// Executables made.
    pub compiled: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    known: Mutex<Known>,
    survivors: Mutex<Vec<Weak<Node>>>,
    /// Nodes that are not computed.
    pub(super) pending: Arc<AtomicU64>,
    pub(super) replayed: AtomicU64,
    pub(super) one_by_one: AtomicU64,
    pub(super) compiled: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    by_hash: HashMap<u64, Vec<Arc<Entry>>>,
    instructions: usize,
    clock: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    structure: Structure,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last_met: u64,
    runs: u32,
    constants: Vec<u128>,
    /// Which constants had several values.
    varying: Vec<bool>,
    made: Made,
}

#[derive(Debug, Clone)]
enum Made {
    No,
    /// By another thread, at this moment.
    Soon,
    Yes(Arc<Executable>),
    /// It can't be compiled.
    Never,
}

/// How to run a graph.
#[derive(Debug)]
pub(super) enum Route {
    OneByOne,
    /// The program, and which of its constants are inputs.
    Compile(Arc<Entry>, Program, Vec<bool>),
    Replay(Arc<Executable>, Vec<bool>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    pub fn counters(&self) -> Counters {
        Counters {
            pending: self.pending.load(Relaxed),
            replayed: self.replayed.load(Relaxed),
            one_by_one: self.one_by_one.load(Relaxed),
            compiled: self.compiled.load(Relaxed),
        }
    }

    /// What to do with a graph, which is counted as met; `must_fuse` where its ops one by one would fail.
    pub(super) fn route(&self, graph: &Graph, must_fuse: bool) -> Route {
        let entry = self.entry(graph);
        let mut state = locked(&entry.state);
        let constants = graph.constants();
        let mut changed = false;
        let State { constants: before, varying, .. } = &mut *state;
        for ((was, is), varies) in before.iter().zip(&constants).zip(varying) {
            changed |= was != is && !std::mem::replace(varies, true);
        }
        state.constants = constants;
        if changed && matches!(state.made, Made::Yes(_)) {
            state.made = Made::No;
        }
        state.runs = state.runs.saturating_add(1);
        match &state.made {
            Made::Yes(executable) => Route::Replay(Arc::clone(executable), state.varying.clone()),
            Made::No if must_fuse || state.runs > RUNS_BEFORE_COMPILING => {
                state.made = Made::Soon;
                let varying = state.varying.clone();
                drop(state);
                let program = entry.structure.program(graph, &varying);
                Route::Compile(entry, program, varying)
            }
            Made::No | Made::Soon | Made::Never => Route::OneByOne,
        }
    }

    fn entry(&self, graph: &Graph) -> Arc<Entry> {
        let mut known = locked(&self.known);
        known.clock += 1;
        let now = known.clock;
        let entries = known.by_hash.get(&graph.hash);
        if let Some(entry) = entries.and_then(|e| e.iter().find(|entry| entry.structure.is_of(graph))) {
            locked(&entry.state).last_met = now;
            return Arc::clone(entry);
        }
        let constants = graph.constants();
        let varying = vec![false; constants.len()];
        let state = State { last_met: now, runs: 0, constants, varying, made: Made::No };
        let entry = Arc::new(Entry { structure: graph.structure(), state: Mutex::new(state) });
        known.instructions += entry.structure.len();
        known.by_hash.entry(graph.hash).or_default().push(Arc::clone(&entry));
        known.shrink();
        entry
    }

    /// Notes nodes that were computed and not kept, which hold on to what they need to be computed again. Answers those
    /// that are to be computed and kept now, because there are too many.
    pub(super) fn note_survivors(&self, nodes: impl Iterator<Item = Weak<Node>>, all: bool) -> Vec<Weak<Node>> {
        let mut survivors = locked(&self.survivors);
        survivors.extend(nodes);
        if survivors.len() < MAX_SURVIVORS && !all {
            return Vec::new();
        }
        survivors.retain(|node| node.upgrade().is_some_and(|node| node.lock().results.is_none()));
        if survivors.len() > MAX_SURVIVORS / 2 || all { std::mem::take(&mut *survivors) } else { Vec::new() }
    }
}

impl Known {
    /// Forgets the structures that were not met for longest, a quarter of all, where there are too many.
    fn shrink(&mut self) {
        if self.instructions <= MAX_INSTRUCTIONS {
            return;
        }
        let mut ages: Vec<(u64, usize)> =
            self.by_hash.values().flatten().map(|e| (e.last_met(), e.structure.len())).collect();
        ages.sort_unstable();
        let mut oldest = 0;
        for (met, instructions) in ages {
            if self.instructions <= MAX_INSTRUCTIONS / 4 * 3 || met == self.clock {
                break;
            }
            self.instructions -= instructions;
            oldest = met;
        }
        for entries in self.by_hash.values_mut() {
            entries.retain(|entry| entry.last_met() > oldest);
        }
        self.by_hash.retain(|_, entries| !entries.is_empty());
    }
}

impl Entry {
    fn last_met(&self) -> u64 {
        locked(&self.state).last_met
    }

    /// Says what came of [`Route::Compile`].
    pub fn compiled(&self, executable: Option<Arc<Executable>>, varying: &[bool]) {
        let mut state = locked(&self.state);
        state.made = match executable {
            // Meanwhile another constant may have changed.
            Some(executable) if state.varying == varying => Made::Yes(executable),
            Some(_) => Made::No,
            None => Made::Never,
        };
    }
}
