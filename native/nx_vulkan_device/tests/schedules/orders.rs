//! Many orders of threads.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Orders that are tried in each way, for each of so many seeds.
const ORDERS: usize = 400;
const SEEDS: u64 = 2;

/// Changes of threads in orders that otherwise let one thread go on as long as it can.
const CHANGES: usize = 3;

/// Runs `test` in many orders: any at all, and those with few changes of threads at unlikely places.
pub fn in_many_orders(test: impl Fn() + Clone + Send + Sync + 'static) {
    for seed in 0..SEEDS {
        Runner::new(RandomScheduler::new_from_seed(seed, ORDERS), Config::new()).run(test.clone());
        Runner::new(PctScheduler::new_from_seed(seed, CHANGES, ORDERS), Config::new()).run(test.clone());
    }
}
