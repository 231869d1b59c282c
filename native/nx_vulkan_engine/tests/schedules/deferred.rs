//! Pending ops that several threads read, add to and drop.

#[path = "../../src/deferred/graph.rs"]
mod graph;
#[path = "../../src/deferred/lazy.rs"]
mod lazy;
#[path = "../../src/deferred/node.rs"]
mod node;
#[path = "../../src/deferred/signature.rs"]
mod signature;

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use smallvec::{SmallVec, smallvec};

use crate::orders::in_many_orders;
use crate::program::{Binary, Op, Operand, Unary};
use crate::{DType, Tensor, Type, View};
use graph::{Graph, Keep};
use lazy::{Inner, Lazy};
use node::{Backlog, Node};

fn number(value: u64) -> Tensor {
    Tensor { buffer: Arc::new(value), view: Box::new(View::contiguous(DType::F32, &[2])) }
}

/// What an op gives: another number for all other operands.
fn value(op: &Op, operands: &[u64]) -> u64 {
    let first = if matches!(op, Op::Unary(_)) { 3 } else { 5 };
    operands.iter().fold(first, |sum, operand| sum * 31 + operand)
}

/// An op that waits.
fn defer(op: Op, operands: &[&Lazy], pending: &Arc<AtomicU64>) -> Lazy {
    let operands: SmallVec<[Lazy; 3]> = operands.iter().map(|&lazy| lazy.clone().settled()).collect();
    let backlog = Backlog::of(&operands);
    let node = Node::new(op, operands, smallvec![Type::new(DType::F32, &[2])], backlog, pending);
    Lazy(Inner::Pending { node, result: 0 })
}

fn negate(a: &Lazy, pending: &Arc<AtomicU64>) -> Lazy {
    defer(Op::Unary(Unary::Negate), &[a], pending)
}

fn add(a: &Lazy, b: &Lazy, pending: &Arc<AtomicU64>) -> Lazy {
    defer(Op::Binary(Binary::Add), &[a, b], pending)
}

/// The number of a result, computed as the engine does with all that hangs together with it.
fn read(lazy: &Lazy) -> u64 {
    if let Some(tensor) = lazy.ready() {
        return *tensor.buffer;
    }
    let graph = Graph::of(lazy.pending().unwrap(), Keep::Needed);
    let mut results: Vec<u64> = Vec::new();
    for step in &graph.steps {
        let find = |operand: &Operand| match *operand {
            Operand::Input(i) => *graph.inputs[i as usize].buffer,
            Operand::Result(r) => results[r as usize],
        };
        let operands: Vec<u64> = step.operands.iter().map(find).collect();
        results.push(value(&step.node.op, &operands));
        let tensor = number(results[results.len() - 1]);
        if step.kept { step.node.fill(smallvec![tensor]) } else { step.node.note_run() }
    }
    graph.restart_backlogs();
    drop(graph);
    // What is read is kept.
    *lazy.ready().unwrap().buffer
}

#[test]
fn all_who_read_find_the_same_whoever_computes_it() {
    in_many_orders(|| {
        let pending = Arc::new(AtomicU64::new(0));
        let x = Lazy::from(number(1));
        let a = negate(&x, &pending);
        let b = negate(&a, &pending);
        let c = add(&a, &b, &pending);
        let unary = Op::Unary(Unary::Negate);
        let binary = Op::Binary(Binary::Add);
        let of_a = value(&unary, &[1]);
        let of_b = value(&unary, &[of_a]);
        let of_c = value(&binary, &[of_a, of_b]);
        let reads = [(&c, of_c), (&b, of_b), (&c, of_c)].map(|(lazy, expected)| {
            let lazy = lazy.clone();
            thread::spawn(move || assert_eq!(read(&lazy), expected))
        });
        // While others read, more ops come that need the same ones.
        let adds = {
            let (b, c, pending) = (b.clone(), c.clone(), Arc::clone(&pending));
            thread::spawn(move || {
                let d = add(&c, &b, &pending);
                assert_eq!(read(&negate(&d, &pending)), value(&unary, &[value(&binary, &[of_c, of_b])]));
            })
        };
        reads.into_iter().for_each(|thread| thread.join().unwrap());
        adds.join().unwrap();
        drop((a, b, c));
        assert_eq!(pending.load(SeqCst), 0);
    });
}

#[test]
fn nothing_stays_pending_whoever_lets_go_last() {
    in_many_orders(|| {
        let pending = Arc::new(AtomicU64::new(0));
        let x = Lazy::from(number(1));
        let shared = negate(&x, &pending);
        let threads = [true, false, true].map(|reads| {
            let (shared, pending) = (shared.clone(), Arc::clone(&pending));
            thread::spawn(move || {
                let mut last = shared;
                for _ in 0..4 {
                    last = negate(&last, &pending);
                }
                if reads {
                    read(&last);
                }
            })
        });
        drop(shared);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pending.load(SeqCst), 0);
        assert_eq!(Arc::strong_count(&pending), 1);
    });
}
