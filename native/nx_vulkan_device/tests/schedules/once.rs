//! Values that are made once.

#[path = "../../src/kernel/once.rs"]
mod source;

use nx_vulkan_ir::Error;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use shuttle::thread;

use super::orders::in_many_orders;
use source::Once;

/// How often something was made, and how many make it at this moment.
#[derive(Default)]
struct Made {
    times: AtomicUsize,
    now: AtomicUsize,
}

impl Made {
    fn make(&self, value: u32, fails: impl FnOnce(usize) -> bool) -> Result<u32, Error> {
        assert_eq!(self.now.fetch_add(1, SeqCst), 0, "two threads make one value");
        thread::yield_now();
        let before = self.times.fetch_add(1, SeqCst);
        self.now.fetch_sub(1, SeqCst);
        if fails(before) { Err(Error::NeedsCompile) } else { Ok(value) }
    }
}

#[test]
fn one_thread_makes_what_all_get() {
    in_many_orders(|| {
        let (once, made) = (Arc::new(Once::<u32, u32>::default()), Arc::new([Made::default(), Made::default()]));
        let threads = [0, 0, 1, 0].map(|key| {
            let (once, made) = (Arc::clone(&once), Arc::clone(&made));
            thread::spawn(move || {
                let before = once.get(key);
                let value = once.get_or_make(key, || made[key as usize].make(10 + key, |_| false)).unwrap();
                assert_eq!(value, 10 + key);
                assert!(before.is_none_or(|before| before == value));
                assert_eq!(once.get(key), Some(value), "what is there stays there");
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([0, 1].map(|key: usize| made[key].times.load(SeqCst)), [1, 1]);
        let mut all = once.all();
        all.sort_unstable();
        assert_eq!((all, once.count()), (vec![10, 11], 2));
    });
}

#[test]
fn an_error_goes_to_those_who_wait_and_later_calls_try_again() {
    in_many_orders(|| {
        let (once, made) = (Arc::new(Once::<u32, u32>::default()), Arc::new(Made::default()));
        let threads = [(); 3].map(|()| {
            let (once, made) = (Arc::clone(&once), Arc::clone(&made));
            thread::spawn(move || once.get_or_make(7, || made.make(1, |before| before == 0)))
        });
        let results = threads.map(|thread| thread.join().unwrap());
        assert!(results.iter().any(|result| *result == Err(Error::NeedsCompile)), "the first attempt failed");
        assert!(results.iter().all(|result| [Ok(1), Err(Error::NeedsCompile)].contains(result)));
        assert_eq!(once.get_or_make(7, || made.make(1, |before| before == 0)), Ok(1));
        assert_eq!(made.times.load(SeqCst), 2);
    });
}

#[test]
fn what_is_forgotten_meanwhile_is_made_again_and_nothing_else_goes() {
    in_many_orders(|| {
        let once = Arc::new(Once::<u32, u32>::default());
        let forgets = {
            let once = Arc::clone(&once);
            // Key 3 is held by somebody, as its missing rank says.
            thread::spawn(move || once.forget(1, |&key, _| (key != 3).then_some(key.into())))
        };
        let makes = [1, 2, 3].map(|key| {
            let once = Arc::clone(&once);
            thread::spawn(move || once.get_or_make(key, || Ok(key)).unwrap())
        });
        assert_eq!(makes.map(|thread| thread.join().unwrap()), [1, 2, 3]);
        let forgotten = forgets.join().unwrap();
        assert!(!forgotten.contains_key(&3) && forgotten.iter().all(|(key, value)| key == value));
        assert_eq!(once.count() + forgotten.len(), 3);
        for key in [1, 2, 3] {
            assert_eq!(once.get(key).is_none(), forgotten.contains_key(&key));
        }
    });
}
