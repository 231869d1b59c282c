//! Threads that wait for work that a caller shares with them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nx_vulkan_ir::Result;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

/// What a caller and its helpers run at the same time.
type Job<'a> = dyn Fn() -> Result<()> + Sync + 'a;

/// A job that threads may still begin, or are running.
struct Shared {
    /// Lives until the call that it is of returns, which is when no thread is in it or may begin it any more.
    job: *const Job<'static>,
    state: Mutex<State>,
    left: Condvar,
}

struct State {
    /// Threads that run the job.
    running: usize,
    result: Result<()>,
}

// SAFETY: the job is `Sync`, and its owner waits for all threads that have it.
unsafe impl Send for Shared {}
// SAFETY: as above; all else is under a lock.
unsafe impl Sync for Shared {}

#[derive(Default)]
struct Queue {
    /// One for each thread that may help.
    waiting: VecDeque<Arc<Shared>>,
    /// Threads that there are, and those of them without work.
    threads: usize,
    idle: usize,
    ends: bool,
}

#[derive(Default)]
struct Pool {
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// Threads that help with jobs. They begin with the first job that wants them.
#[derive(Default)]
pub(super) struct Workers(Arc<Pool>);

impl Workers {
    /// Runs a job on this thread and on up to so many others at the same time, of which there are `most` for all jobs.
    /// Answers the first error. Others that have not begun when this thread is done never do.
    pub fn run(&self, others: usize, most: usize, job: &Job<'_>) -> Result<()> {
        if others == 0 {
            return job();
        }
        // SAFETY: only the lifetime changes. `Waits` ends the job for other threads before it goes, also where this
        // thread unwinds.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        let state = Mutex::new(State { running: 0, result: Ok(()) });
        let shared = Arc::new(Shared { job: erased, state, left: Condvar::new() });
        let waits = Waits { pool: &self.0, shared: &shared };
        let missing = {
            let mut queue = lock(&self.0.queue);
            queue.waiting.extend((0..others).map(|_| Arc::clone(&shared)));
            let missing = queue.waiting.len().saturating_sub(queue.idle).min(others);
            let missing = missing.min(most.saturating_sub(queue.threads));
            queue.threads += missing;
            missing
        };
        self.0.wake.notify_all();
        for _ in 0..missing {
            let pool = Arc::clone(&self.0);
            let named = std::thread::Builder::new().name("nx_vulkan copies".into());
            if named.spawn(move || pool.work()).is_err() {
                // Where there is no other thread, this one does it all.
                lock(&self.0.queue).threads -= 1;
            }
        }
        let own = job();
        drop(waits);
        own.and(lock(&shared.state).result.clone())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.0.queue).ends = true;
        self.0.wake.notify_all();
    }
}

impl Pool {
    /// What a thread does: all jobs that it finds, until there was none for a while.
    fn work(&self) {
        loop {
            let shared = {
                let mut queue = lock(&self.queue);
                queue.idle += 1;
                let (mut queue, waited) = self
                    .wake
                    .wait_timeout_while(queue, IDLE, |queue| queue.waiting.is_empty() && !queue.ends)
                    .unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                let Some(shared) = queue.waiting.pop_front() else {
                    debug_assert!(waited.timed_out() || queue.ends);
                    queue.threads -= 1;
                    return;
                };
                // Under the queue's lock, so that its owner knows of it.
                lock(&shared.state).running += 1;
                shared
            };
            // SAFETY: the owner of the job waits until no thread is counted as running it.
            let job = unsafe { &*shared.job };
            let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| Err(super::bulk::not_copied()));
            let mut state = lock(&shared.state);
            state.running -= 1;
            if state.result.is_ok() {
                state.result = result;
            }
            drop(state);
            shared.left.notify_all();
        }
    }
}

/// Keeps a job until no other thread has it.
struct Waits<'a> {
    pool: &'a Pool,
    shared: &'a Arc<Shared>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.pool.queue).waiting.retain(|waiting| !Arc::ptr_eq(waiting, self.shared));
        let state = lock(&self.shared.state);
        let left = self.shared.left.wait_while(state, |state| state.running > 0);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use nx_vulkan_ir::Error;

    use super::*;

    #[test]
    fn all_of_a_job_is_done_when_it_returns() {
        let workers = Workers::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200u64 {
                        let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
                        let job = || {
                            loop {
                                let at = next.fetch_add(1, Relaxed);
                                if at >= 100 {
                                    return Ok(());
                                }
                                sum.fetch_add(at * round, Relaxed);
                            }
                        };
                        assert_eq!(workers.run(round as usize % 4, 3, &job), Ok(()));
                        assert_eq!(sum.into_inner(), 4950 * round);
                    }
                });
            }
        });
    }

    #[test]
    fn errors_and_panics_of_other_threads_come_back() {
        let workers = Workers::default();
        let caller = std::thread::current().id();
        let (turns, meet) = (AtomicU64::new(0), std::sync::Barrier::new(2));
        let job = |fails: &dyn Fn() -> Result<()>| {
            meet.wait();
            match std::thread::current().id() == caller {
                true => Ok(()),
                false => {
                    turns.fetch_add(1, Relaxed);
                    fails()
                }
            }
        };
        assert_eq!(workers.run(1, 3, &|| job(&|| Err(Error::Released))), Err(Error::Released));
        assert!(matches!(workers.run(1, 3, &|| job(&|| panic!("as it should"))), Err(Error::Vulkan { .. })));
        assert_eq!(workers.run(1, 3, &|| job(&|| Ok(()))), Ok(()));
        assert_eq!(turns.into_inner(), 3);
    }
}
