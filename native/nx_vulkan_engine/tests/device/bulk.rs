//! Large copies between host and device: by several threads, through staging memory, on a queue of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nx_vulkan_engine::{Engine, Error, HostAccess, Options, Result, Source, Tensor};

use crate::common::*;

const MIB: usize = 1 << 20;

/// An engine whose memory the host reaches through copies alone.
fn staged() -> Arc<Engine> {
    Engine::open_with(&Options { host_access: HostAccess::Never, ..options() }).unwrap()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn sizes_around_those_of_chunks_go_both_ways() {
    let engine = staged();
    for mib in [1, 2, 16] {
        for size in [mib * MIB - 1, mib * MIB, mib * MIB + 1] {
            let buffer = engine.alloc(size as u64 + 9).unwrap();
            let data = bytes(size as u64, size);
            engine.upload(&buffer, 7, &data).unwrap();
            let mut out = vec![0xa5; size];
            engine.download(&buffer, 7, &mut out).unwrap();
            assert!(out == data, "{size} bytes");
            // What lies around them is untouched.
            engine.fill(&buffer, 0, size as u64 + 9, 0x0101_0101).unwrap();
            engine.upload(&buffer, 7, &data).unwrap();
            let mut all = vec![0; size + 9];
            engine.download(&buffer, 0, &mut all).unwrap();
            assert!(all[..7] == [1; 7] && all[7..size + 7] == data && all[size + 7..] == [1; 2], "{size} bytes");
        }
    }
    assert_valid(&engine);
}

#[test]
fn copies_are_ordered_with_what_is_recorded() {
    let engine = staged();
    let size = 5 * MIB + 12;
    let [a, b] = [0, 1].map(|_| engine.alloc(size as u64).unwrap());
    for round in 0..12u32 {
        let data = bytes(u64::from(round) + 1, size);
        engine.fill(&a, 0, size as u64, round).unwrap();
        engine.copy(&a, 0, &b, 0, size as u64).unwrap();
        if round % 2 == 0 {
            // Nothing is in flight: the copy has a queue of its own.
            engine.wait().unwrap();
        }
        engine.upload(&a, 0, &data).unwrap();
        let filled = download_words(&engine, &b).unwrap();
        assert!(filled.iter().all(|&word| word == round));
        engine.copy(&a, 0, &b, 0, size as u64).unwrap();
        let mut out = vec![0; size];
        engine.download(&b, 0, &mut out).unwrap();
        assert!(out == data, "round {round}");
    }
    assert_valid(&engine);
}

#[test]
fn many_threads_copy_at_once() {
    let engine = staged();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..4 {
                    let size = MIB + (thread as usize * 1_234_567 + round * 777_777) % (9 * MIB);
                    let data = bytes(thread * 100 + round as u64, size);
                    let tensor = Tensor::from_slice(engine, &[size as u64], &data).unwrap();
                    engine.fill(&engine.alloc(4096).unwrap(), 0, 4096, round as u32).unwrap();
                    assert!(tensor.to_vec::<u8>(engine).unwrap() == data, "{size} bytes");
                }
            });
        }
    });
    assert_eq!(engine.stats().in_use_bytes, 0);
    assert_valid(&engine);
}

/// Bytes of which there are none from a place on.
struct Ends {
    at: u64,
    read: AtomicU64,
}

impl Source for Ends {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.read.fetch_add(1, Ordering::Relaxed);
        if at + out.len() as u64 > self.at {
            return Err(Error::Io { path: "a source".into(), cause: "it ends".into() });
        }
        out.fill(7);
        Ok(())
    }
}

#[test]
fn a_source_that_fails_is_an_error_and_nothing_is_left_behind() {
    for engine in every_host_access() {
        let size = 12 * MIB;
        for at in [0, MIB as u64, 5 * MIB as u64, size as u64 - 1] {
            let buffer = engine.alloc(size as u64).unwrap();
            let ends = Ends { at, read: AtomicU64::new(0) };
            let error = engine.upload_from(&buffer, 0, size as u64, &ends).unwrap_err();
            assert_eq!(error, Error::Io { path: "a source".into(), cause: "it ends".into() });
            assert!(ends.read.load(Ordering::Relaxed) > 0);
            drop(buffer);
            assert_eq!(engine.stats().in_use_bytes, 0, "no copy holds the tensor");
        }
        let data = bytes(3, size);
        let buffer = engine.alloc(size as u64).unwrap();
        engine.upload(&buffer, 0, &data).unwrap();
        let mut out = vec![0; size];
        engine.download(&buffer, 0, &mut out).unwrap();
        assert!(out == data);
        drop(buffer);
        assert_eq!(engine.stats().in_use_bytes, 0);
        assert_valid(&engine);
    }
}
