//! Computes what is pending.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use super::cache::{Cache, Route};
use super::graph::{Graph, GraphStep, Keep};
use super::node::Node;
use super::{CompileWith, Lazy};
use crate::eager::{self, Compile, Results};
use crate::program::{Op, Operand};
use crate::{Engine, Error, Executable, Result, Tensor, Type};

/// A result of a node, computed if need be with all that hangs together with it.
pub(super) fn compute(engine: &Arc<Engine>, node: &Arc<Node>, result: u32, compile: CompileWith) -> Result<Tensor> {
    if let Some(tensor) = node.result(result) {
        return Ok(tensor);
    }
    let graph = Graph::of(node, Keep::Needed);
    let failures = run(engine, &graph, compile)?;
    let not_kept = graph.steps.iter().filter(|step| !step.kept && !matches!(step.node.op, Op::Constant(_)));
    let not_kept: Vec<Weak<Node>> = not_kept.map(|step| Arc::downgrade(&step.node)).collect();
    drop(graph);
    // Without the graph, those live that somebody else holds.
    let alive = not_kept.into_iter().filter(|node| node.strong_count() > 0);
    let survivors = engine.state::<Cache>().note_survivors(alive, engine.pressure());
    sweep(engine, survivors);
    let missing =
        || Error::InvalidProgram { op: node.op.name().to_string(), reason: format!("has no result {result}") };
    node.result(result).ok_or_else(|| failures.into_iter().find(|f| f.0 == node.number).map_or_else(missing, |f| f.1))
}

/// Computes and keeps nodes that were not kept before.
fn sweep(engine: &Arc<Engine>, survivors: Vec<Weak<Node>>) {
    for node in survivors.iter().filter_map(|node| node.upgrade()) {
        let graph = Graph::of(&node, Keep::ComputedBefore);
        // Whoever reads what fails is told.
        let _ = one_by_one(engine, &graph);
    }
}

/// The numbers of nodes that failed, or that need what failed, and why.
type Failures = Vec<(u64, Error)>;

fn run(engine: &Arc<Engine>, graph: &Graph, compile: CompileWith) -> Result<Failures> {
    let cache = engine.state::<Cache>();
    let largest_bytes = engine.largest_bytes();
    let never_fits = |step: &GraphStep| !step.kept && step.node.outs.iter().any(|ty| ty.size_bytes() > largest_bytes);
    let replayed = match cache.route(graph, graph.steps.iter().any(never_fits)) {
        Route::OneByOne => None,
        Route::Replay(executable, varying) => replay(engine, graph, &executable, &varying),
        Route::Compile(entry, program, varying) => {
            let executable = compile(engine, program).ok().map(Arc::new);
            entry.compiled(executable.clone(), &varying);
            cache.compiled.fetch_add(u64::from(executable.is_some()), Relaxed);
            executable.and_then(|executable| replay(engine, graph, &executable, &varying))
        }
    };
    match replayed {
        Some(()) => {
            cache.replayed.fetch_add(1, Relaxed);
            Ok(Failures::new())
        }
        // Op by op it is known which one fails.
        None => {
            cache.one_by_one.fetch_add(1, Relaxed);
            one_by_one(engine, graph)
        }
    }
}

fn replay(engine: &Arc<Engine>, graph: &Graph, executable: &Executable, varying: &[bool]) -> Option<()> {
    let (mut inputs, constants) = graph.arguments(varying);
    for step in constants {
        let scalar = Type::new(step.node.outs.first()?.dtype, &[]);
        inputs.push(eager::run(engine, &step.node.op, &[], &scalar, Compile::Allowed).ok()?);
    }
    let mut outputs = executable.run(&inputs, Compile::Allowed).ok()?.into_iter();
    for step in &graph.steps {
        match step.kept {
            true => step.node.fill(outputs.by_ref().take(step.node.outs.len()).collect()),
            false => step.node.note_run(),
        }
    }
    graph.restart_backlogs();
    Some(())
}

/// Runs a graph's ops in order. What fails, and what needs it, is left pending.
fn one_by_one(engine: &Arc<Engine>, graph: &Graph) -> Result<Failures> {
    let count = graph.steps.last().map_or(0, |step| step.first as usize + step.node.outs.len());
    let mut uses = vec![0u32; count];
    for operand in graph.steps.iter().flat_map(|step| &step.operands) {
        if let Operand::Result(r) = operand {
            uses[*r as usize] += 1;
        }
    }
    let mut results: Vec<Option<Tensor>> = vec![None; count];
    // For results that are missing, the place in `failures`.
    let mut failed: Vec<Option<usize>> = vec![None; count];
    let mut failures = Failures::new();
    for step in &graph.steps {
        let own = step.first as usize..step.first as usize + step.node.outs.len();
        let broken =
            step.operands.iter().find_map(|o| if let Operand::Result(r) = o { failed[*r as usize] } else { None });
        let answer = match broken {
            Some(place) => Err(failures.get(place).map_or(Error::Released, |f: &(u64, Error)| f.1.clone())),
            None => run_step(engine, graph, step, &results),
        };
        match answer {
            Ok(made) => {
                results[own].iter_mut().zip(&made).for_each(|(place, tensor)| *place = Some(tensor.clone()));
                if step.kept { step.node.fill(made) } else { step.node.note_run() }
            }
            Err(error) => {
                failed[own].fill(Some(failures.len()));
                failures.push((step.node.number, error));
                step.node.lock().failed = true;
            }
        }
        for operand in &step.operands {
            if let Operand::Result(r) = operand {
                let r = *r as usize;
                uses[r] -= 1;
                if uses[r] == 0 {
                    results[r] = None;
                }
            }
        }
    }
    graph.restart_backlogs();
    Ok(failures)
}

fn run_step(engine: &Arc<Engine>, graph: &Graph, step: &GraphStep, results: &[Option<Tensor>]) -> Result<Results> {
    let GraphStep { node, operands, .. } = step;
    let missing =
        || Error::InvalidProgram { op: node.op.name().to_string(), reason: "an operand is missing".to_string() };
    let find = |operand: &Operand| match *operand {
        Operand::Input(i) => graph.inputs.get(i as usize),
        Operand::Result(r) => results.get(r as usize).and_then(Option::as_ref),
    };
    let operands = operands.iter().map(|o| find(o).cloned().ok_or_else(missing)).collect::<Result<Vec<Tensor>>>()?;
    eager::run_all(engine, &node.op, &operands, &node.outs, Compile::Allowed).map_err(|cause| Error::InOp {
        op: node.op.name().to_string(),
        operands: operands.iter().map(|t| Lazy::from(t.clone()).ty()).collect(),
        outs: node.outs.to_vec(),
        cause: Box::new(cause),
    })
}
