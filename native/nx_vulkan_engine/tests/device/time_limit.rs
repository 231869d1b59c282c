//! Waiting for a device that takes long, with a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nx_vulkan_device::stream::Stream;
use nx_vulkan_engine::{Buffer, Engine, Error, Options, Pipeline};

use crate::common::*;

const LIMIT: Duration = Duration::from_millis(100);
/// What the submission takes that is waited for in vain.
const LONG: Duration = Duration::from_secs(2);

const WORDS: u32 = 1 << 18;

/// Submissions that take as long as their caller says.
struct Busy {
    engine: Arc<Engine>,
    pipeline: Arc<Pipeline>,
}

impl Busy {
    fn new(time_limit: Option<Duration>) -> Busy {
        let engine = Engine::open_with(&Options { time_limit, ..options() }).unwrap();
        let pipeline = axpb(&engine, false);
        Busy { engine, pipeline }
    }

    /// Adds 1 so many times, in one submission.
    fn start(&self, steps: u32) -> Arc<Buffer> {
        let result = self.engine.alloc(u64::from(WORDS) * 4).unwrap();
        Stream::hold(|| {
            self.engine.fill(&result, 0, result.size_bytes(), 7).unwrap();
            for _ in 0..steps {
                run_axpb(&self.engine, &self.pipeline, &result, &result, WORDS, (1, 1), false).unwrap();
            }
        });
        self.engine.flush().unwrap();
        result
    }

    /// Reads as often as it takes.
    fn read(&self, result: &Arc<Buffer>) -> Vec<u32> {
        loop {
            match download_words(&self.engine, result) {
                Err(Error::TimedOut { .. }) => {}
                read => return read.unwrap(),
            }
        }
    }

    /// The steps that take so long.
    fn steps(&self, long: Duration) -> u32 {
        let mut steps = 10;
        loop {
            let began = Instant::now();
            self.read(&self.start(steps));
            let took = began.elapsed();
            if took > Duration::from_millis(50) {
                return (f64::from(steps) * long.as_secs_f64() / took.as_secs_f64()) as u32;
            }
            steps *= 4;
        }
    }
}

fn expected(steps: u32) -> Vec<u32> {
    vec![7 + steps; WORDS as usize]
}

#[test]
fn a_wait_that_takes_too_long_ends_and_the_next_one_waits_anew() {
    let busy = Busy::new(Some(LIMIT));
    // However fast the device is: longer and longer.
    let (steps, result, error) = (5..)
        .find_map(|doublings| {
            let steps = 1 << doublings;
            let result = busy.start(steps);
            Some((steps, Arc::clone(&result), busy.engine.wait().err()?))
        })
        .unwrap();
    assert_eq!(error, Error::TimedOut { limit: LIMIT });
    let text = error.to_string();
    assert!(text.contains("100 ms") && text.contains("NX_VULKAN_TIME_LIMIT"), "{text}");
    // More is recorded meanwhile, on memory that comes and goes.
    let more: Vec<Arc<Buffer>> = (0..20).map(|i| busy.start(i)).collect();
    assert_eq!(busy.read(&result), expected(steps));
    for (i, more) in (0..).zip(&more) {
        assert_eq!(busy.read(more), expected(i));
    }
    drop((result, more));
    assert_valid(&busy.engine);
}

#[test]
fn a_device_that_makes_progress_is_waited_for() {
    let patient = Duration::from_millis(1500);
    let busy = Busy::new(Some(patient));
    let steps = busy.steps(LIMIT);
    let results: Vec<Arc<Buffer>> = (0..30).map(|_| busy.start(steps)).collect();
    // All of them take twice as long as the limit.
    assert_eq!(download_words(&busy.engine, &results[29]), Ok(expected(steps)));
    assert_valid(&busy.engine);
}

#[test]
fn an_engine_whose_device_is_busy_for_too_long_is_dropped_all_the_same() {
    let busy = Busy::new(Some(LIMIT));
    let steps = busy.steps(LONG);
    let result = busy.start(steps);
    drop(result);
    drop(busy);
    // What the device runs goes on, which the next engine does not notice.
    let next = Busy::new(None);
    assert_eq!(download_words(&next.engine, &next.start(7)), Ok(expected(7)));
    assert_valid(&next.engine);
    // On a CPU it must not run on into the end of the process.
    next.read(&next.start(2 * steps));
}
