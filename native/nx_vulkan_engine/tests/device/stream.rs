//! Dispatches, copies and fills in order, from many threads, and what happens when a submission fails.

use std::sync::Arc;
use std::thread;

use nx_vulkan_device::stream::{MAX_HELD_COMMANDS, Stream};
use nx_vulkan_engine::program::{Binary, Op, Unary};
use nx_vulkan_engine::{Compile, DType, Error, Launch, Tensor, Type, Waits, eager};

use crate::common::*;

#[test]
fn a_dispatch_computes_through_addresses_and_through_a_table() {
    let engine = engine();
    let src: Vec<u32> = (0..1000).collect();
    let a = upload_words(&engine, &src);
    let b = engine.alloc(4000).unwrap();
    for use_table in [false, true] {
        let pipeline = axpb(&engine, use_table);
        let mul = 3 + u32::from(use_table);
        run_axpb(&engine, &pipeline, &a, &b, 1000, (mul, 7), use_table).unwrap();
        let expected: Vec<u32> = src.iter().map(|x| x * mul + 7).collect();
        assert_eq!(download_words(&engine, &b).unwrap(), expected);
    }
    assert_valid(&engine);
}

#[test]
fn a_dispatch_computes_through_descriptors() {
    let engine = engine();
    let pipeline = bound_add(&engine);
    let a = upload_words(&engine, &(0..500).collect::<Vec<_>>());
    let b = upload_words(&engine, &(1000..1500).collect::<Vec<_>>());
    // More launches than one descriptor pool holds sets.
    for scale in 0..200 {
        let c = engine.alloc(2000).unwrap();
        run_bound_add(&engine, &pipeline, [&a, &b, &c], 500, scale).unwrap();
        if scale % 50 == 49 {
            let expected: Vec<u32> = (0..500).map(|i| i + (i + 1000) * scale).collect();
            assert_eq!(download_words(&engine, &c).unwrap(), expected);
        }
    }
    assert_valid(&engine);
}

#[test]
fn a_chain_of_dependent_operations_runs_in_order() {
    for engine in every_host_access() {
        let pipeline = axpb(&engine, false);
        let n = 4096u32;
        let bytes = u64::from(n) * 4;
        let mut a = engine.alloc(bytes).unwrap();
        let mut b = engine.alloc(bytes).unwrap();
        engine.fill(&a, 0, bytes, 1).unwrap();
        let mut expected = 1u32;
        for step in 0..500u32 {
            match step % 5 {
                // Through a buffer that is dropped at once, so that blocks are reused while in flight.
                0 => {
                    let middle = engine.alloc(bytes).unwrap();
                    engine.copy(&a, 0, &middle, 0, bytes).unwrap();
                    engine.copy(&middle, 0, &b, 0, bytes).unwrap();
                }
                1 => {
                    engine.fill(&b, 0, bytes, step).unwrap();
                    expected = step;
                }
                2 => {
                    run_axpb(&engine, &pipeline, &a, &a, n, (5, 1), false).unwrap();
                    run_axpb(&engine, &pipeline, &a, &b, n, (1, 0), false).unwrap();
                    expected = expected.wrapping_mul(5).wrapping_add(1);
                }
                _ => {
                    run_axpb(&engine, &pipeline, &a, &b, n, (3, step), false).unwrap();
                    expected = expected.wrapping_mul(3).wrapping_add(step);
                }
            }
            std::mem::swap(&mut a, &mut b);
        }
        let got = download_words(&engine, &a).unwrap();
        assert!(got.iter().all(|&w| w == expected));
        assert_valid(&engine);
    }
}

#[test]
fn only_dependent_operations_get_a_barrier() {
    let engine = engine();
    let pipeline = axpb(&engine, false);
    let src = upload_words(&engine, &[1; 64]);
    let outs: Vec<_> = (0..20).map(|_| engine.alloc(256).unwrap()).collect();
    engine.wait().unwrap();
    let before = engine.stats().barriers;
    for out in &outs {
        run_axpb(&engine, &pipeline, &src, out, 64, (1, 0), false).unwrap();
    }
    let independent = engine.stats().barriers;
    assert!(independent - before <= 1, "at most the one after the upload");
    run_axpb(&engine, &pipeline, &outs[0], &outs[1], 64, (1, 0), false).unwrap();
    assert_eq!(engine.stats().barriers, independent + 1);
    run_axpb(&engine, &pipeline, &outs[2], &outs[3], 64, (1, 0), false).unwrap();
    assert_eq!(engine.stats().barriers, independent + 1, "the barrier served both");
    run_axpb(&engine, &pipeline, &src, &outs[2], 64, (1, 0), false).unwrap();
    assert_eq!(engine.stats().barriers, independent + 2, "a write waits for a read");
    // Of no elements: the other of two launches that take turns.
    let (s, d) = (src.address(), outs[2].address());
    let params = [s as u32, (s >> 32) as u32, d as u32, (d >> 32) as u32, 0, 1, 0];
    let other = Launch {
        pipeline: &pipeline,
        params: &params,
        table: None,
        addresses: &[],
        groups: [1, 1, 1],
        reads: &[&src],
        writes: &[&outs[2]],
        waits: Waits::Beside,
        work: None,
        in_place: &[],
        copied_bytes: None,
    };
    // SAFETY: the parameters name these buffers, which have as many elements.
    unsafe { engine.dispatch(&other) }.unwrap();
    assert_eq!(engine.stats().barriers, independent + 2, "one of two that take turns does not wait for the other");
    run_axpb(&engine, &pipeline, &outs[2], &outs[4], 64, (2, 0), false).unwrap();
    assert_eq!(engine.stats().barriers, independent + 3, "what reads their results waits for both");
    assert_eq!(download_words(&engine, &outs[4]).unwrap(), [2; 64]);
    engine.wait().unwrap();
    assert_valid(&engine);
}

#[test]
fn empty_and_oversized_launches() {
    let engine = engine();
    let pipeline = axpb(&engine, false);
    let a = engine.alloc(256).unwrap();
    let launch = |groups| Launch {
        pipeline: &pipeline,
        params: &[],
        table: None,
        addresses: &[],
        groups,
        reads: &[],
        writes: &[],
        waits: Waits::All,
        work: None,
        in_place: &[],
        copied_bytes: None,
    };
    // SAFETY: the parameters name these buffers, which have as many elements.
    assert_eq!(unsafe { engine.dispatch(&launch([0, 1, 1])) }, Ok(()));
    assert_eq!(engine.stats().dispatches, 0);
    let limit = engine.caps().max_workgroup_count;
    if let Some(over) = limit[0].checked_add(1) {
        // SAFETY: the parameters name these buffers, which have as many elements.
        let result = unsafe { engine.dispatch(&launch([over, 1, 1])) };
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
    // SAFETY: the parameters name these buffers, which have as many elements.
    let result = unsafe { engine.dispatch(&Launch { params: &[0; 9], reads: &[&a], ..launch([1, 1, 1]) }) };
    assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    let descriptors = bound_add(&engine);
    // SAFETY: the parameters name these buffers, which have as many elements.
    let result = unsafe { engine.dispatch(&Launch { pipeline: &descriptors, ..launch([1, 1, 1]) }) };
    assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    assert_valid(&engine);
}

#[test]
fn tables_survive_more_launches_than_the_ring_holds() {
    let engine = engine();
    let pipeline = axpb(&engine, true);
    let n = 64;
    let a = upload_words(&engine, &[1; 64]);
    let b = engine.alloc(256).unwrap();
    let mut table = vec![0u32; 16 << 10];
    for round in 0..200u32 {
        let (s, d) = (a.address(), b.address());
        table[..7].copy_from_slice(&[s as u32, (s >> 32) as u32, d as u32, (d >> 32) as u32, n, round, 1]);
        // SAFETY: the parameters name these buffers, which have as many elements.
        unsafe {
            engine.dispatch(&Launch {
                pipeline: &pipeline,
                params: &[],
                table: Some(&table),
                addresses: &[],
                groups: [1, 1, 1],
                reads: &[&a],
                writes: &[&b],
                waits: Waits::All,
                work: None,
                in_place: &[],
                copied_bytes: None,
            })
        }
        .unwrap();
        if round % 37 == 0 {
            assert_eq!(download_words(&engine, &b).unwrap(), [round + 1; 64]);
        }
    }
    assert_eq!(download_words(&engine, &b).unwrap(), [200; 64]);
    assert_valid(&engine);
}

#[test]
fn sixteen_threads_record_and_read_at_once() {
    for engine in every_host_access() {
        let threads: Vec<_> = (0..16u32)
            .map(|t| {
                let engine = Arc::clone(&engine);
                thread::spawn(move || {
                    let pipeline = axpb(&engine, false);
                    let mut rng = Rng(u64::from(t) + 1);
                    for _ in 0..30 {
                        let n = rng.below(3000) as u32 + 1;
                        let src: Vec<u32> = (0..n).map(|_| rng.next() as u32).collect();
                        let mut a = upload_words(&engine, &src);
                        for k in 0..5 {
                            let b = engine.alloc(u64::from(n) * 4).unwrap();
                            run_axpb(&engine, &pipeline, &a, &b, n, (3, t + k), false).unwrap();
                            a = b;
                        }
                        let expected: Vec<u32> =
                            src.iter().map(|&x| (0..5).fold(x, |x, k| x.wrapping_mul(3).wrapping_add(t + k))).collect();
                        assert_eq!(download_words(&engine, &a).unwrap(), expected);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(engine.stats().pipelines, 1, "one compilation for all threads");
        assert_eq!(engine.stats().in_use_bytes, 0);
        assert_valid(&engine);
    }
}

#[test]
fn a_device_far_behind_says_so() {
    let engine = engine();
    assert!(!engine.is_congested());
    // Each fill is worth a submission of its own and takes longer than recording it.
    let size: u64 = if engine.caps().is_unified() { 32 << 20 } else { 512 << 20 };
    let a = engine.alloc(size).unwrap();
    let mut submitted = 0;
    while !engine.is_congested() && submitted < 2000 {
        engine.fill(&a, 0, size, submitted).unwrap();
        submitted += 1;
    }
    assert!(submitted < 2000, "never congested");
    engine.wait().unwrap();
    assert!(!engine.is_congested());
    let mut word = [0; 4];
    engine.download(&a, size - 4, &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), submitted - 1);
    assert_valid(&engine);
}

#[test]
fn a_failed_submission_sticks_and_never_gives_zeros() {
    for engine in every_host_access() {
        let a = upload_words(&engine, &[7; 64]);
        engine.wait().unwrap();
        engine.fail_next_submission();
        engine.fill(&a, 0, 256, 1).unwrap();
        assert_eq!(engine.flush(), Err(Error::DeviceLost));
        assert_eq!(download_words(&engine, &a), Err(Error::DeviceLost));
        assert_eq!(engine.wait(), Err(Error::DeviceLost));
        assert_eq!(engine.flush(), Err(Error::DeviceLost));
        assert_eq!(engine.fill(&a, 0, 256, 2), Err(Error::DeviceLost));
        assert_eq!(engine.upload(&a, 0, &[1]), Err(Error::DeviceLost));
        drop(a);
        assert_valid(&engine);
    }
}

#[test]
fn an_engine_dropped_with_work_in_flight_cleans_up() {
    for engine in every_host_access() {
        let log = engine.validation_log();
        let pipeline = axpb(&engine, false);
        let a = engine.alloc(1 << 20).unwrap();
        let b = engine.alloc(1 << 20).unwrap();
        engine.fill(&a, 0, 1 << 20, 3).unwrap();
        for _ in 0..100 {
            run_axpb(&engine, &pipeline, &a, &b, 1 << 18, (2, 1), false).unwrap();
        }
        drop(engine);
        drop((a, pipeline));
        drop(b);
        if let Some(log) = log {
            assert_eq!(log.messages(), Vec::<String>::new());
        }
    }
}

#[test]
fn parts_of_a_tensor_do_not_wait_for_each_other() {
    let engine = engine();
    let row = |first: f32| {
        let bytes: Vec<u8> = (0..64).flat_map(|i| (first + i as f32).to_ne_bytes()).collect();
        Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[1, 64]), &bytes).unwrap()
    };
    let run = |op: &Op, operands: &[Tensor], shape: &[u64]| {
        eager::run(&engine, op, operands, &Type::new(DType::F32, shape), Compile::Allowed).unwrap()
    };
    let values = |t: &Tensor| -> Vec<f32> {
        t.to_nx_bytes(&engine, None)
            .unwrap()
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
            .collect()
    };
    let rows: Vec<Tensor> = (0..8).map(|i| row(100.0 * i as f32)).collect();
    let join = Op::Concatenate { axis: 0 };
    // Kernels are compiled.
    drop(run(&join, &rows, &[8, 64]));
    engine.wait().unwrap();
    let barriers = || engine.stats().barriers;
    let before = barriers();
    let joined = run(&join, &rows, &[8, 64]);
    assert!(barriers() - before <= 1, "one for what used the memory before");
    // What reads a part's operand waits for it, and what reads them all for all.
    let before = barriers();
    let negated = run(&Op::Unary(Unary::Negate), &rows[..1], &[1, 64]);
    let again = run(&join, &[rows[1].clone(), negated, rows[2].clone()], &[3, 64]);
    assert!(barriers() > before);
    let sum = run(&Op::Binary(Binary::Add), &[joined.clone(), joined.clone()], &[8, 64]);
    let row_values = |i: usize, by: f32| (0..64).map(move |k| by * (100.0 * i as f32 + k as f32));
    assert_eq!(values(&sum), (0..8).flat_map(|i| row_values(i, 2.0)).collect::<Vec<f32>>());
    assert_eq!(
        values(&again),
        [(1, 1.0), (0, -1.0), (2, 1.0)].into_iter().flat_map(|(i, by)| row_values(i, by)).collect::<Vec<f32>>()
    );
    // Memory of parts that nobody reads any more serves others at once, which wait.
    let mut seen = Vec::new();
    let (other, waited) = loop {
        let before = barriers();
        let other = run(&join, &rows[4..], &[4, 64]);
        if seen.contains(&other.address()) {
            break (other, barriers() > before);
        }
        seen.push(other.address());
        assert!(seen.len() < 1000, "freed memory is not used again");
    };
    assert!(waited);
    assert_eq!(values(&other), (4..8).flat_map(|i| row_values(i, 1.0)).collect::<Vec<f32>>());
    assert_valid(&engine);
}

#[test]
fn what_several_threads_hold_is_one_submission_until_it_is_full() {
    let engine = engine();
    let submissions = |each: u64| {
        engine.flush().unwrap();
        let before = engine.stats().submissions;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let buffer = engine.alloc(4).unwrap();
                    Stream::hold(|| (0..each).for_each(|i| engine.fill(&buffer, 0, 4, i as u32).unwrap()));
                    assert!(!Stream::holds());
                });
            }
        });
        engine.stats().submissions - before
    };
    assert_eq!(submissions(100), 0);
    assert_eq!(submissions(MAX_HELD_COMMANDS / 2), 1);
}
