//! Loops and branches of compiled programs: the values of the reference, and how often the host has to do with them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor, Type, Value};

use smallvec::smallvec;

use crate::common;

/// Elements that no loop in one workgroup takes.
const LARGE: u64 = 8_000;

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

fn ramp(n: u64) -> Array {
    Array::new(&Type::new(DType::F32, &[n]), (0..n).map(|i| Value::Float((i % 97) as f64 / 64.0)))
}

fn whole(value: i64) -> Array {
    Array::new(&Type::new(DType::S32, &[]), [Value::Int(value.into())])
}

fn float(value: f64) -> Array {
    Array::new(&Type::new(DType::F32, &[]), [Value::Float(value)])
}

/// One test at a time, since submissions are those of all threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a compiled program and compares it with the reference. Answers how many submissions the run took, and whether
/// it may wait.
fn check(program: &Program, inputs: &[Array]) -> (u64, bool) {
    let _alone = alone();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    let tensors: Vec<Tensor> =
        inputs.iter().map(|a| Tensor::from_nx_bytes(engine(), &a.ty, &a.to_nx_bytes()).unwrap()).collect();
    let run = || {
        let results = executable.run(&tensors, Compile::Allowed).unwrap();
        engine().wait().unwrap();
        results
    };
    run();
    let before = engine().stats().submissions;
    let results = run();
    let submissions = engine().stats().submissions - before;
    for (k, (got, want)) in results.iter().zip(reference::run(program, inputs).unwrap()).enumerate() {
        let got = Array::from_nx_bytes(&got.view().ty(), &got.to_nx_bytes(engine(), None).unwrap()).unwrap();
        assert_eq!(got.ty, want.ty);
        for (i, (x, y)) in got.values.iter().zip(&want.values).enumerate() {
            let (x, y) = (x.real(), y.real());
            assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "output {k}, element {i}: {x}, not {y}, of {program}");
        }
    }
    (submissions, executable.waits())
}

/// x becomes x / 2 + a row of its own, in two kernels that don't fuse.
fn step(b: &Builder, x: Operand) -> Operand {
    let n = b.ty(x).shape[0];
    let total = b.mean(x, &[0]);
    b.add(
        b.multiply(x, 0.5),
        b.multiply(b.slice(b.concatenate(&[x, x], 0), &[1], &[n]), b.add(b.multiply(total, 0.1), 0.2)),
    )
}

/// Steps on a large vector while a counter is below an end: an input, or a number.
fn counting(end: Option<f64>) -> Program {
    let b = Builder::new();
    let (x, n) = (b.input(DType::F32, &[LARGE]), b.input(DType::S32, &[]));
    let zero = b.number(DType::S32, 0.0);
    let end = |b: &Builder, n: Operand| end.map_or(n, |end| b.number(DType::S32, end));
    let last =
        b.while_loop(&[zero, x], &[n], |b, v| b.less(v[0], end(b, v[2])), |b, v| vec![b.add(v[0], 2.0), step(b, v[1])]);
    b.finish(&last).unwrap()
}

#[test]
fn few_known_iterations_are_recorded_at_once() {
    let (_, waits) = check(&counting(Some(9.0)), &[ramp(LARGE), whole(0)]);
    assert!(!waits);
}

/// Large as they are, the host waits for none of them: with a look per iteration it would submit 100 times.
#[test]
fn loops_that_count_are_not_waited_for() {
    let (submissions, _) = check(&counting(Some(200.0)), &[ramp(LARGE), whole(0)]);
    assert!(submissions < 80, "{submissions}");
    for end in [200, 1, 0, -3] {
        let (submissions, _) = check(&counting(None), &[ramp(LARGE), whole(end)]);
        assert!(submissions < 80, "{submissions}");
    }
}

/// Halves a large vector until its sum is below a limit, or takes another way through a branch.
fn converging() -> Program {
    let b = Builder::new();
    let (x, limit) = (b.input(DType::F32, &[LARGE]), b.input(DType::F32, &[]));
    let count = b.number(DType::S32, 0.0);
    let last = b.while_loop(
        &[count, x],
        &[limit],
        |b, v| b.greater(b.sum(v[1], &[0]), v[2]),
        |b, v| {
            let even = b.equal(b.remainder(v[0], 2.0), 0.0);
            let x = b.cond(
                even,
                &[v[1]],
                |b, v| vec![b.multiply(v[0], 0.875)],
                |b, v| {
                    let sum = b.sum(v[0], &[0]);
                    let large = b.greater(sum, 2_800.0);
                    b.cond(
                        large,
                        &[v[0], sum],
                        |b, v| vec![b.subtract(v[0], b.multiply(b.divide(v[1], LARGE as f64), 0.125))],
                        |b, v| vec![step(b, v[0])],
                    )
                },
            );
            vec![b.add(v[0], 1.0), x[0]]
        },
    );
    b.finish(&last).unwrap()
}

#[test]
fn conditions_on_data_are_looked_at_now_and_then() {
    for limit in [1e9, 5_600.0, 1_600.0, 20.0] {
        let inputs = [ramp(LARGE), float(limit)];
        let (submissions, _) = check(&converging(), &inputs);
        let iterations = reference::run(&converging(), &inputs).unwrap()[0].values[0].real();
        assert!(submissions as f64 <= 20.0 + 1.5 * iterations, "{submissions} for {iterations} iterations");
    }
}

/// Halves a large vector until its sum is below a limit, and keeps one that does not change.
fn halving() -> Program {
    let b = Builder::new();
    let (x, y, limit) = (b.input(DType::F32, &[LARGE]), b.input(DType::F32, &[LARGE]), b.input(DType::F32, &[]));
    let (count, sum) = (b.number(DType::S32, 0.0), b.sum(x, &[0]));
    let last = b.while_loop(
        &[count, x, y, sum],
        &[limit],
        |b, v| b.greater(v[3], v[4]),
        |b, v| {
            let x = b.multiply(b.add(v[1], b.multiply(v[2], 0.001)), 0.875);
            vec![b.add(v[0], 1.0), x, v[2], b.sum(x, &[0])]
        },
    );
    b.finish(&last).unwrap()
}

#[test]
fn iterations_after_the_last_change_nothing() {
    for limit in [1e9, 5_600.0, 1_600.0, 400.0, 90.0, f64::NAN] {
        let inputs = [ramp(LARGE), ramp(LARGE), float(limit)];
        let (submissions, _) = check(&halving(), &inputs);
        let iterations = reference::run(&halving(), &inputs).unwrap()[0].values[0].real();
        assert!(submissions as f64 <= 20.0 + iterations, "{submissions} for {iterations} iterations");
    }
}

/// Branches on large tensors, one within the other.
#[test]
fn branches_are_not_waited_for() {
    let b = Builder::new();
    let (x, at) = (b.input(DType::F32, &[LARGE]), b.input(DType::S32, &[]));
    let result = b.cond(
        b.greater(at, 0.0),
        &[x, at],
        |b, v| {
            let inner = b.cond(
                b.greater(v[1], 1.0),
                &[v[0]],
                |b, v| vec![step(b, v[0]), b.sum(v[0], &[0])],
                |b, v| vec![b.negate(step(b, v[0])), b.mean(v[0], &[0])],
            );
            vec![inner[0], v[0], inner[1]]
        },
        |b, v| vec![v[0], step(b, v[0]), b.number(DType::F32, 7.0)],
    );
    let program = b.finish(&result).unwrap();
    for at in [-1, 0, 1, 2] {
        let (_, waits) = check(&program, &[ramp(LARGE), whole(at)]);
        assert!(!waits);
    }
    common::assert_valid(engine());
}

/// For each of `n` numbers: the Collatz steps until 1, and the sum of what was on the way, skipping those that a branch
/// leaves out.
fn collatz(size: u64) -> Program {
    let b = Builder::new();
    let (starts, n) = (b.input(DType::S32, &[size]), b.input(DType::S32, &[]));
    let zero = b.number(DType::S32, 0.0);
    let last = b.while_loop(
        &[zero, zero],
        &[starts, n],
        |b, v| b.less(v[0], v[3]),
        |b, v| {
            let i = v[0];
            let hit = b.equal(b.iota(DType::S32, &[size], Some(0)), i);
            let start = b.sum(b.select(hit, v[2], 0.0), &[0]);
            let steps = b.cond(
                b.greater(start, 0.0),
                &[start],
                |b, v| {
                    let zero = b.number(DType::S32, 0.0);
                    let last = b.while_loop(
                        &[v[0], zero],
                        &[],
                        |b, v| b.greater(v[0], 1.0),
                        |b, v| {
                            let odd = b.remainder(v[0], 2.0);
                            let half = b.binary(nx_vulkan_engine::program::Binary::Quotient, v[0], 2.0);
                            let next = b.select(odd, b.add(b.multiply(v[0], 3.0), 1.0), half);
                            vec![next, b.add(v[1], 1.0)]
                        },
                    );
                    vec![last[1]]
                },
                |b, _| vec![b.number(DType::S32, -1.0)],
            );
            vec![b.add(i, 1.0), b.add(v[1], steps[0])]
        },
    );
    b.finish(&last).unwrap()
}

#[test]
fn small_loops_within_loops_run_in_one_kernel() {
    let program = collatz(40);
    let starts = Array::new(&Type::new(DType::S32, &[40]), (0..40).map(|i| Value::Int(i * 7 - 20)));
    for n in [0, 1, 40] {
        let (submissions, _) = check(&program, &[starts.clone(), whole(n)]);
        assert!(submissions <= 6, "{submissions}");
    }
}

/// For each of three numbers: that many inner iterations, more than a kernel may take in its few milliseconds.
#[test]
fn what_no_kernel_may_take_is_driven_by_the_host() {
    let b = Builder::new();
    let (x, n) = (b.input(DType::F32, &[200]), b.input(DType::S32, &[]));
    let zero = b.number(DType::S32, 0.0);
    let last = b.while_loop(
        &[zero, zero, x],
        &[n],
        |b, v| b.less(v[0], 3.0),
        |b, v| {
            let inner = b.while_loop(
                &[v[1], v[2]],
                &[v[3], v[0]],
                |b, v| b.less(v[0], b.multiply(v[2], b.add(v[3], 1.0))),
                |b, v| vec![b.add(v[0], 1.0), b.subtract(1.0, b.multiply(v[1], 0.75))],
            );
            vec![b.add(v[0], 1.0), inner[0], inner[1]]
        },
    );
    let program = b.finish(&last).unwrap();
    for n in [10, 6_000] {
        check(&program, &[ramp(200), whole(n)]);
    }
    common::assert_valid(engine());
}

/// Known loops within a loop, and within branches of it.
#[test]
fn known_loops_within_loops_are_part_of_them() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[30]);
    let zero = b.number(DType::S32, 0.0);
    let last = b.while_loop(
        &[zero, x],
        &[],
        |b, v| b.less(v[0], 20.0),
        |b, v| {
            let zero = b.number(DType::S32, 0.0);
            let inner = b.while_loop(
                &[zero, v[1]],
                &[v[0]],
                |b, v| b.less(v[0], 5.0),
                |b, v| vec![b.add(v[0], 1.0), b.add(b.multiply(v[1], 0.5), b.multiply(v[2], 0.01))],
            );
            vec![b.add(v[0], 1.0), inner[1]]
        },
    );
    let (submissions, waits) = check(&b.finish(&last).unwrap(), &[ramp(30)]);
    assert!(submissions <= 2 && !waits, "{submissions}");
}

/// A square matrix times itself, over and over, as long as a counter is below the limit, which nobody knows to be one.
fn multiplying(n: u64) -> Program {
    let b = Builder::new();
    let (x, limit) = (b.input(DType::F32, &[n, n]), b.input(DType::F32, &[]));
    let count = b.number(DType::F32, 0.0);
    let last = b.while_loop(
        &[count, x],
        &[limit],
        |b, v| b.less(b.multiply(v[0], v[0]), v[2]),
        |b, v| vec![b.add(v[0], 1.0), b.multiply(b.dot(v[1], v[1]), 1.0 / n as f64)],
    );
    b.finish(&last).unwrap()
}

/// A vector times one of two numbers, by a branch: no kernel chooses between the states of loops that have one.
fn shrunk(b: &Builder, count: Operand, x: Operand) -> Operand {
    let even = b.equal(b.remainder(count, 2.0), 0.0);
    let times = |factor: f64| move |b: &Builder, v: &[Operand]| vec![b.multiply(v[0], factor)];
    b.cond(even, &[x], times(0.875), times(0.8))[0]
}

/// Puts rows of a shrinking vector into a cache, which the next steps read, until the vector's sum is below a limit.
fn caching(rows: u64) -> Program {
    let b = Builder::new();
    let cache_type = Type::new(DType::F32, &[rows, 64]);
    let (cache, x) = (b.input(DType::F32, &cache_type.shape), b.input(DType::F32, &[LARGE]));
    let (limit, count) = (b.input(DType::F32, &[]), b.number(DType::S32, 0.0));
    let last = b.while_loop(
        &[count, cache, x],
        &[limit],
        |b, v| b.greater(b.sum(v[2], &[0]), v[3]),
        |b, v| {
            let row = b.reshape(b.slice(v[2], &[0], &[64]), &[1, 64]);
            let put = Op::PutSlice { starts: smallvec![None, Some(0)] };
            let cache = b.push(put, &[v[1], row, v[0]], &cache_type);
            let mean = b.multiply(b.mean(cache, &[0, 1]), 0.001);
            vec![b.add(v[0], 1.0), cache, b.add(shrunk(b, v[0], v[2]), mean)]
        },
    );
    // What the loop began with is still there.
    let more = b.add(cache, 1.0);
    b.finish(&[&last[..], &[more]].concat()).unwrap()
}

#[test]
fn caches_have_one_place() {
    let rows = 1 << 12;
    let program = caching(rows);
    let cache = Array::new(&program.inputs[0], (0..rows * 64).map(|i| Value::Float((i % 97) as f64 / 64.0)));
    for limit in [1e9, 5_600.0, 1_600.0, 90.0] {
        check(&program, &[cache.clone(), ramp(LARGE), float(limit)]);
    }
    let _alone = alone();
    let engine = common::engine();
    let executable = Executable::compile(&engine, program).unwrap();
    let inputs = [cache, ramp(LARGE), float(90.0)];
    let tensors: Vec<Tensor> =
        inputs.iter().map(|a| Tensor::from_nx_bytes(&engine, &a.ty, &a.to_nx_bytes()).unwrap()).collect();
    let before = engine.stats();
    let results = executable.run(&tensors, Compile::Allowed).unwrap();
    let taken = engine.stats().peak_bytes - before.in_use_bytes;
    // The sum that is returned, and the cache, which the caller's is copied to.
    let one = rows * 64 * 4;
    assert!(taken < 2 * one + one / 2, "{taken} bytes for caches of {one}: {:?}", executable.describe());
    drop(results);
    common::assert_valid(&engine);
}

/// The last row of a cache is written anew: two copies, neither of which is the whole state.
fn renewing(dtype: DType) -> Program {
    let b = Builder::new();
    let (rows, width) = (64, 64);
    let (cache, x) = (b.input(dtype, &[rows, width]), b.input(DType::F32, &[LARGE]));
    let (limit, count) = (b.input(DType::F32, &[]), b.number(DType::S32, 0.0));
    let last = b.while_loop(
        &[count, cache, x],
        &[limit],
        |b, v| b.greater(b.sum(v[2], &[0]), v[3]),
        |b, v| {
            let row = b.reshape(b.as_type(b.slice(v[2], &[0], &[width]), dtype), &[1, width]);
            // It reads the old state beside the copies.
            let row = b.add(row, b.multiply(b.slice(v[1], &[rows - 1, 0], &[1, width]), 0.5));
            let cache = b.concatenate(&[b.slice(v[1], &[0, 0], &[rows - 1, width]), row], 0);
            vec![b.add(v[0], 1.0), cache, shrunk(b, v[0], v[2])]
        },
    );
    b.finish(&last).unwrap()
}

#[test]
fn states_that_are_copied_in_parts_keep_all_of_them() {
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let program = renewing(dtype);
        let cache = Array::new(&program.inputs[0], (0..64 * 64).map(|i| Value::Float(f64::from(i % 97) / 64.0)));
        for limit in [5_600.0, 1_600.0, 90.0] {
            check(&program, &[cache.clone(), ramp(LARGE), float(limit)]);
        }
    }
}

/// Dispatches of a run in which the loop takes so many steps.
fn dispatches(executable: &Executable, x: &Tensor, steps: u64) -> u64 {
    let limit = Array::new(&Type::new(DType::F32, &[]), [Value::Float((steps * steps) as f64 - 0.5)]);
    let limit = Tensor::from_nx_bytes(engine(), &limit.ty, &limit.to_nx_bytes()).unwrap();
    let before = engine().stats().dispatches;
    let results = executable.run(&[x.clone(), limit], Compile::Allowed).unwrap();
    engine().wait().unwrap();
    let count = results[0].to_nx_bytes(engine(), None).unwrap();
    assert_eq!(count, (steps as f32).to_ne_bytes());
    engine().stats().dispatches - before
}

#[test]
fn few_iterations_are_recorded_in_vain() {
    let _alone = alone();
    let n = 512;
    let x = Array::new(&Type::new(DType::F32, &[n, n]), (0..n * n).map(|i| Value::Float((i % 7) as f64 / 8.0)));
    let x = Tensor::from_nx_bytes(engine(), &x.ty, &x.to_nx_bytes()).unwrap();
    let executable = Executable::compile(engine(), multiplying(n)).unwrap();
    dispatches(&executable, &x, 1);
    let once = dispatches(&executable, &x, 1);
    let each = dispatches(&executable, &x, 2) - once;
    // What is recorded while the host looks runs or not as the condition says, and takes a while at most.
    for steps in [3, 10] {
        let found = dispatches(&executable, &x, steps);
        let least = once + (steps - 1) * each;
        assert!(found >= least && found <= least + 8 * each, "{found} dispatches for {steps} steps, {least} needed");
    }
}
