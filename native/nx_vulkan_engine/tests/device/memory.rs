//! Buffers: sizes, transfers at every offset, reuse, limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::{Compile, DType, Engine, Error, HostAccess, Options, Owner, Tensor, Type, eager};

use crate::common::*;

#[test]
fn transfers_of_odd_sizes_at_odd_offsets() {
    for engine in every_host_access() {
        let mut rng = Rng(42);
        for size in [1usize, 2, 3, 5, 15, 16, 17, 255, 256, 257, 1023, 4097, 65_537] {
            let buffer = engine.alloc(size as u64).unwrap();
            assert!(buffer.address().is_multiple_of(256));
            assert!(buffer.reserved_bytes() >= (size as u64).next_multiple_of(16));
            let mut model = rng.bytes(size);
            engine.upload(&buffer, 0, &model).unwrap();
            for _ in 0..10 {
                let start = rng.below(size as u64) as usize;
                let len = rng.below((size - start) as u64 + 1) as usize;
                let patch = rng.bytes(len);
                model[start..start + len].copy_from_slice(&patch);
                engine.upload(&buffer, start as u64, &patch).unwrap();
                let mut part = vec![0; len];
                engine.download(&buffer, start as u64, &mut part).unwrap();
                assert_eq!(part, patch);
            }
            let mut all = vec![0; size];
            engine.download(&buffer, 0, &mut all).unwrap();
            assert_eq!(all, model);
        }
        assert_valid(&engine);
    }
}

#[test]
fn uploads_onto_memory_in_use_are_ordered_after_it() {
    for engine in every_host_access() {
        let a = engine.alloc(4096).unwrap();
        let b = engine.alloc(4096).unwrap();
        for round in 0..50u32 {
            engine.fill(&a, 0, 4096, round).unwrap();
            engine.copy(&a, 0, &b, 0, 4096).unwrap();
            engine.upload(&a, 4, &[9, 9, 9, 9]).unwrap();
            let copied = download_words(&engine, &b).unwrap();
            assert!(copied.iter().all(|&w| w == round));
            let patched = download_words(&engine, &a).unwrap();
            assert_eq!(patched[..3], [round, 0x0909_0909, round]);
        }
        assert_valid(&engine);
    }
}

#[test]
fn empty_buffers_and_ranges() {
    for engine in every_host_access() {
        let a = engine.alloc(0).unwrap();
        let b = engine.alloc(16).unwrap();
        assert_eq!(a.size_bytes(), 0);
        engine.upload(&a, 0, &[]).unwrap();
        engine.download(&a, 0, &mut []).unwrap();
        engine.fill(&a, 0, 0, 1).unwrap();
        engine.copy(&a, 0, &b, 16, 0).unwrap();
        for result in [
            engine.upload(&a, 0, &[1]),
            engine.upload(&b, 16, &[1]),
            engine.upload(&b, u64::MAX, &[1]),
            engine.download(&b, 9, &mut [0; 8]),
            engine.fill(&b, 2, 4, 0),
            engine.fill(&b, 4, 6, 0),
            engine.copy(&b, 0, &b, 4, 8),
            engine.copy(&b, 8, &a, 0, 1),
        ] {
            assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
        }
        assert_valid(&engine);
    }
}

#[test]
fn a_fill_that_ends_the_buffer_may_have_any_size() {
    for engine in every_host_access() {
        let a = engine.alloc(7).unwrap();
        engine.fill(&a, 0, 7, 0x0403_0201).unwrap();
        let mut out = [0; 7];
        engine.download(&a, 0, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 1, 2, 3]);
        assert_valid(&engine);
    }
}

#[test]
fn large_transfers_go_both_ways() {
    for engine in every_host_access() {
        let size = (70 << 20) + 13;
        let data: Vec<u8> = (0..size).map(|i| ((i * 31) >> 7) as u8).collect();
        let a = engine.alloc(size as u64).unwrap();
        let b = engine.alloc(size as u64).unwrap();
        // A use in flight forbids the direct write.
        engine.fill(&a, 0, 1024, 5).unwrap();
        engine.upload(&a, 0, &data).unwrap();
        engine.copy(&a, 0, &b, 0, size as u64).unwrap();
        let mut out = vec![0; size];
        engine.download(&b, 0, &mut out).unwrap();
        assert!(out == data);
        drop((a, b));
        assert_eq!(engine.stats().in_use_bytes, 0);
        assert_valid(&engine);
    }
}

#[test]
fn dropped_buffers_are_reused_without_new_memory() {
    let engine = engine();
    let round = |engine: &Engine| {
        let buffers: Vec<_> = (0..100).map(|i| engine.alloc(i * 1000).unwrap()).collect();
        engine.fill(&buffers[99], 0, 400, 1).unwrap();
    };
    round(&engine);
    let reserved = engine.stats().reserved_bytes;
    for _ in 0..100 {
        round(&engine);
    }
    assert_eq!(engine.stats().reserved_bytes, reserved);
    assert_eq!(engine.stats().in_use_bytes, 0);
    engine.wait().unwrap();
    assert!(engine.trim() > 0);
    assert_eq!(engine.stats().reserved_bytes, 0);
    assert_valid(&engine);
}

#[test]
fn a_memory_limit_is_kept_and_named() {
    let limit = 40u64 << 20;
    let engine_options = Options { memory_limit_bytes: Some(limit), ..options() };
    let engine = Engine::open_with(&engine_options).unwrap();
    let spills = engine.caps().heaps.len() > 1 || engine_options.host_access != HostAccess::Auto;
    // The limit is what the memory holds, where the device would take larger buffers, too.
    for size_bytes in [limit + 1, u64::MAX] {
        assert_eq!(engine.alloc(size_bytes).unwrap_err(), Error::TooLarge { size_bytes, limit_bytes: limit });
    }
    assert!(!engine.pressure());
    let mut held = Vec::new();
    let error = loop {
        match engine.alloc(3 << 20) {
            Ok(buffer) => held.push(buffer),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    // A thread that must not wait leaves that to one that may.
    let error = Engine::without_waiting(|| engine.alloc(3 << 20)).unwrap_err();
    assert!(matches!(error, Error::NeedsCompile), "{error:?}");
    assert!(matches!(engine.alloc(3 << 20), Err(Error::OutOfMemory { .. })));
    assert!(held.len() >= 10, "{} of 13 fit", held.len());
    assert!(engine.pressure());
    assert_eq!(held.last().unwrap().is_spilled(), spills);
    let (first, last) = (&held[0], held.last().unwrap());
    engine.upload(first, 0, &[7; 1000]).unwrap();
    engine.copy(first, 0, last, 1000, 1000).unwrap();
    let mut out = [0; 1000];
    engine.download(last, 1000, &mut out).unwrap();
    assert_eq!(out, [7; 1000]);
    held.truncate(held.len() - 2);
    // Different size: served by joining what the dropped buffers left.
    engine.alloc(5 << 20).unwrap();
    held.clear();
    engine.alloc(32 << 20).unwrap();
    assert_valid(&engine);
}

/// Waits until the pool has so few bytes.
fn await_reserved(engine: &Engine, most_bytes: u64) {
    let begin = Instant::now();
    while engine.stats().reserved_bytes > most_bytes {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_spilled_goes_back_to_the_system_and_what_is_idle_to_the_device() {
    let limit = 40u64 << 20;
    let keeps_free = Duration::from_millis(600);
    // As a discrete device, also where there is one heap.
    let small = Options { memory_limit_bytes: Some(limit), host_access: HostAccess::Small, keeps_free, ..options() };
    let engine = Engine::open_with(&small).unwrap();
    let fill = || {
        let mut held = Vec::new();
        while let Ok(buffer) = engine.alloc(3 << 20) {
            engine.fill(&buffer, 0, 3 << 20, held.len() as u32).unwrap();
            held.push(buffer);
        }
        held
    };
    for round in 0..3 {
        let mut held = fill();
        let spilled = held.iter().filter(|buffer| buffer.is_spilled()).count();
        assert!(spilled >= 10 && held.len() >= spilled + 10, "{spilled} of {}", held.len());
        for (i, buffer) in held.iter().enumerate() {
            assert!(download_words(&engine, buffer).unwrap().iter().all(|&word| word == i as u32));
        }
        if round == 1 {
            // What is used again and again stays, and keeps its contents, while the spilled rest goes.
            held.truncate(5);
            await_reserved(&engine, limit + (4 << 20));
            for (i, buffer) in held.iter().enumerate() {
                assert!(download_words(&engine, buffer).unwrap().iter().all(|&word| word == i as u32));
            }
        }
        // Some of it is in use by commands that nobody waits for.
        held.iter().for_each(|buffer| engine.fill(buffer, 0, 64, 9).unwrap());
        drop(held);
        assert_eq!(engine.stats().in_use_bytes, 0);
        // Tables and staging stay.
        await_reserved(&engine, 16 << 20);
    }
    assert_valid(&engine);
}

#[test]
fn owners_have_what_they_take_up_to_their_limits() {
    let engine = engine();
    let owner = Arc::new(Owner::default());
    let charged = |size_bytes: u64| Owner::charged(Some(Arc::clone(&owner)), || engine.alloc(size_bytes));
    let nobodys = engine.alloc(1 << 20).unwrap();
    let held = [charged(1 << 20).unwrap(), charged(100).unwrap()];
    let bytes: u64 = held.iter().map(|buffer| buffer.reserved_bytes()).sum();
    assert_eq!(owner.bytes(), bytes);
    owner.set_limit_bytes(bytes + (1 << 20));
    let more = charged(1 << 20).unwrap();
    let error = charged(1).unwrap_err();
    let (held_bytes, limit_bytes) = (owner.bytes(), owner.limit_bytes());
    assert_eq!(error, Error::OverLimit { size_bytes: 256, held_bytes, limit_bytes });
    drop(more);
    let again = charged(1 << 20).unwrap();
    assert_eq!(engine.usage().in_use_bytes, owner.bytes() + nobodys.reserved_bytes());
    // Whoever drops it, on whatever thread.
    std::thread::spawn(move || drop((held, again))).join().unwrap();
    assert_eq!(owner.bytes(), 0);
}

#[test]
fn who_asks_to_spill_gives_up_garbage_first() {
    let limit = 40u64 << 20;
    let small = Options { memory_limit_bytes: Some(limit), host_access: HostAccess::Small, ..options() };
    let engine = Engine::open_with(&small).unwrap();
    let owner = Arc::new(Owner::default());
    let ask = || Owner::charged(Some(Arc::clone(&owner)), || Engine::asking_to_spill(|| engine.alloc(6 << 20)));
    let held: Vec<_> = std::iter::from_fn(|| ask().ok()).collect();
    assert!(held.len() >= 3 && held.iter().all(|buffer| !buffer.is_spilled()));
    assert!(matches!(ask(), Err(Error::OutOfMemory { .. })));
    assert!(engine.allow_spill(&owner));
    // What begins may go on, and the next one asks again.
    let both = Owner::charged(Some(Arc::clone(&owner)), || {
        Engine::asking_to_spill(|| [engine.alloc(6 << 20).unwrap(), engine.alloc(6 << 20).unwrap()])
    });
    assert!(both.iter().all(|buffer| buffer.is_spilled()));
    assert!(matches!(ask(), Err(Error::OutOfMemory { .. })));
    assert!(engine.alloc(6 << 20).unwrap().is_spilled(), "who can't ask spills");
    drop(held);
    assert!(!ask().unwrap().is_spilled());
    assert_eq!(engine.usage().spilled_bytes, both.iter().map(|buffer| buffer.reserved_bytes()).sum::<u64>());
    assert_valid(&engine);
}

#[test]
fn a_loop_keeps_its_memory_for_however_long_it_goes_on() {
    let engine = Engine::open_with(&Options { keeps_free: Duration::from_millis(900), ..options() }).unwrap();
    let step = || {
        for size_bytes in [70 << 20, 90 << 20, 5 << 20, 1000] {
            let buffer = engine.alloc(size_bytes).unwrap();
            engine.fill(&buffer, 0, 64, 1).unwrap();
        }
        engine.wait().unwrap();
    };
    (0..5).for_each(|_| step());
    let before = engine.stats().allocations;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        step();
    }
    // A thread that was not run for a while is none that asks.
    assert!(engine.stats().allocations - before <= 8, "{}", engine.stats().allocations - before);
    await_reserved(&engine, 16 << 20);
    assert_valid(&engine);
}

#[test]
fn addresses_keep_memory_until_they_are_given_up() {
    let engine = engine();
    let ty = Type { dtype: DType::U16, shape: [4].as_slice().into() };
    let part = Type { dtype: DType::U16, shape: [2].as_slice().into() };
    let tensor = Tensor::from_nx_bytes(&engine, &ty, &[1, 0, 2, 0, 3, 0, 4, 0]).unwrap();
    assert!(Tensor::from_address(&engine, tensor.address(), &ty).is_err(), "nobody handed it out");
    let shared = tensor.share(&engine, 1).unwrap();
    let address = shared.address();
    drop((tensor, shared));
    let again = Tensor::from_address(&engine, address + 4, &part).unwrap();
    assert_eq!(again.to_nx_bytes(&engine, None).unwrap(), [3, 0, 4, 0]);
    for wrong in [address + 1, address + 6, address - 2, 0, u64::MAX - 1] {
        let error = Tensor::from_address(&engine, wrong, &part).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
    let tensor = Tensor::from_address(&engine, address, &ty).unwrap();
    // Another who hands the same address out, twice, keeps it as well.
    for _ in 0..2 {
        assert_eq!(tensor.share(&engine, 2).unwrap().address(), address);
    }
    drop((tensor, again));
    engine.unshare(1);
    let tensor = Tensor::from_address(&engine, address, &ty).expect("the second holder keeps it");
    engine.unshare(3);
    engine.unshare(2);
    assert!(Tensor::from_address(&engine, address, &ty).is_ok(), "a tensor holds it");
    drop(tensor);
    assert!(Tensor::from_address(&engine, address, &ty).is_err(), "nothing holds it");
    assert_valid(&engine);
}

#[test]
fn reads_need_memory_of_the_right_size() {
    let engine = engine();
    let ty = Type { dtype: DType::U4, shape: [3].as_slice().into() };
    let tensor = Tensor::from_nx_bytes(&engine, &ty, &[0x12, 0x30]).unwrap();
    assert_eq!(tensor.nx_size_bytes(None), 2);
    assert_eq!(tensor.nx_size_bytes(Some(2)), 1);
    let mut out = [0; 2];
    tensor.read_nx_bytes(&engine, None, &mut out).unwrap();
    assert_eq!(out, [0x12, 0x30]);
    assert!(matches!(tensor.read_nx_bytes(&engine, None, &mut [0; 1]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(tensor.read_nx_bytes(&engine, Some(2), &mut out), Err(Error::InvalidArgument { .. })));
}

#[test]
fn a_scalar_that_is_handed_out_is_nobody_elses() {
    let engine = engine();
    let ty = Type::new(DType::S32, &[]);
    let three = || eager::run(&engine, &Op::Constant(Scalar::Int(3)), &[], &ty, Compile::Allowed).unwrap();
    let (held, shared) = (three(), three().share(&engine, 1).unwrap());
    let written = Tensor::from_address(&engine, shared.address(), &ty).unwrap();
    engine.upload(written.buffer(), 0, &7i32.to_ne_bytes()).unwrap();
    assert_eq!(written.to_nx_bytes(&engine, None).unwrap(), 7i32.to_ne_bytes());
    for other in [held, three()] {
        assert_eq!(other.to_nx_bytes(&engine, None).unwrap(), 3i32.to_ne_bytes());
    }
    assert_valid(&engine);
}
