//! Where threads meet, under many orders of their steps: sources of the crate with locks and atomics of shuttle, which
//! chooses at each of them which thread goes on. The orders come from seeds, so that a failure comes again.
#![allow(clippy::unwrap_used, dead_code, reason = "what the crate does with these sources is more than these tests do")]

mod memory;
mod once;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, sync};

/// Orders that are tried in each way.
const ORDERS: usize = 400;

/// Changes of threads in orders that otherwise let one thread go on as long as it can.
const CHANGES: usize = 3;

/// Runs `test` in many orders: any at all, and those with few changes of threads at unlikely places.
fn in_many_orders(test: impl Fn() + Clone + Send + Sync + 'static) {
    for seed in 0..2 {
        Runner::new(RandomScheduler::new_from_seed(seed, ORDERS), Config::new()).run(test.clone());
        Runner::new(PctScheduler::new_from_seed(seed, CHANGES, ORDERS), Config::new()).run(test.clone());
    }
}
