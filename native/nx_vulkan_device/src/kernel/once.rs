//! Values that take long to make: the first thread that asks for one makes it, and others wait for that.

use std::collections::HashMap;
use std::hash::Hash;

use nx_vulkan_ir::{Error, Result};

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// A value that is there, or that some thread is making.
struct Entry<V> {
    state: Mutex<Option<Result<V>>>,
    done: Condvar,
}

impl<V: Clone> Entry<V> {
    fn finish(&self, result: Result<V>) {
        *self.lock() = Some(result);
        self.done.notify_all();
    }

    fn wait(&self) -> Result<V> {
        let mut state = self.lock();
        loop {
            if let Some(result) = &*state {
                return result.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<V>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, if it is there. Nobody has the lock for long.
    fn look<T>(&self, look: impl FnOnce(&V) -> T) -> Option<T> {
        match &*self.lock() {
            Some(Ok(value)) => Some(look(value)),
            _ => None,
        }
    }
}

/// Finishes the entry with an error should making it unwind, so that waiting threads never hang.
struct Unfinished<'a, K: Eq + Hash, V: Clone> {
    once: &'a Once<K, V>,
    entry: &'a Entry<V>,
    key: Option<K>,
}

impl<K: Eq + Hash, V: Clone> Drop for Unfinished<'_, K, V> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            let cause = "the compiling thread panicked".to_string();
            self.once.finish(key, self.entry, Err(Error::Vulkan { call: "vkCreateComputePipelines", cause }));
        }
    }
}

/// Values by key.
pub struct Once<K, V> {
    entries: RwLock<HashMap<K, Arc<Entry<V>>>>,
}

impl<K, V> Default for Once<K, V> {
    fn default() -> Self {
        Once { entries: RwLock::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash, V: Clone> Once<K, V> {
    fn finish(&self, key: &K, entry: &Entry<V>, result: Result<V>) {
        if result.is_err() {
            // A later call tries again.
            self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        }
        entry.finish(result);
    }
}

impl<K: Copy + Ord + Hash, V: Clone> Once<K, V> {
    /// The value of `key` if it has been made; never waits for one that is being made.
    pub fn get(&self, key: K) -> Option<V> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&key)?.look(V::clone)
    }

    /// The value of `key`, made by the first that asks for it. An error goes to all that wait for it, and to no later
    /// call.
    pub fn get_or_make(&self, key: K, make: impl FnOnce() -> Result<V>) -> Result<V> {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let (entry, mine) = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            match entries.get(&key) {
                Some(entry) => (Arc::clone(entry), false),
                None => {
                    let entry = Arc::new(Entry { state: Mutex::new(None), done: Condvar::new() });
                    entries.insert(key, Arc::clone(&entry));
                    (entry, true)
                }
            }
        };
        if !mine {
            return entry.wait();
        }
        let mut guard = Unfinished { once: self, entry: &entry, key: Some(key) };
        let result = make();
        guard.key = None;
        self.finish(&key, &entry, result.clone());
        result
    }

    /// All that are made.
    pub fn all(&self) -> Vec<V> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().filter_map(|entry| entry.look(V::clone)).collect()
    }

    /// How many there are or are being made.
    pub fn count(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Forgets what has a rank, the least ranks first, until `left` are left, and returns it.
    pub fn forget(&self, left: usize, rank: impl Fn(&K, &V) -> Option<u64>) -> HashMap<K, V> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let ranked = |(key, entry): (&K, &Arc<Entry<V>>)| Some((entry.look(|value| rank(key, value))??, *key));
        let mut ranked: Vec<(u64, K)> = entries.iter().filter_map(ranked).collect();
        ranked.sort_unstable();
        ranked.truncate(entries.len().saturating_sub(left));
        let forgotten = ranked.into_iter().filter_map(|(_, key)| Some((key, entries.remove(&key)?.look(V::clone)?)));
        forgotten.collect()
    }
}
