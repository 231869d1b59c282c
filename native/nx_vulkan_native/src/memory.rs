//! Which process has how much of a device's memory, and what else it is taken for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nx_vulkan_engine::{Engine, Owner, Usage};
use rustler::{Atom, Encoder, Env, LocalPid, Term};

use crate::engines::{self, Opened};
use crate::{device, error};

mod atoms {
    rustler::atoms! {
        ok, budget_bytes, peak_bytes, reserved_bytes, in_use_bytes, spilled_bytes, copies_bytes, staging_bytes,
    }
}

/// A device by its index, and a process.
type Key = (usize, LocalPid);

#[derive(Default)]
struct Owners {
    by_process: BTreeMap<Key, Arc<Owner>>,
    /// Processes that take memory for others, and these.
    taking_for: BTreeMap<LocalPid, LocalPid>,
    /// With so many, those of processes that have ended are forgotten.
    enough: usize,
}

/// Fewer are never looked through for processes that have ended.
const FEW: usize = 1024;

static OWNERS: Mutex<Owners> =
    Mutex::new(Owners { by_process: BTreeMap::new(), taking_for: BTreeMap::new(), enough: FEW });

/// What a process may have that sets no limit of its own; `u64::MAX` where nothing bounds it.
static LIMIT_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// Sets what processes may have that are met from now on.
pub fn set_limit_bytes(limit_bytes: Option<u64>) {
    LIMIT_BYTES.store(limit_bytes.unwrap_or(u64::MAX), Relaxed);
}

/// As many processes are known to a scheduler without a look at all of them.
const KNOWN: usize = 8;

/// Processes that were met last.
struct Known {
    next: usize,
    owners: [Option<(Key, Arc<Owner>)>; KNOWN],
}

thread_local! {
    static LAST: RefCell<Known> = const { RefCell::new(Known { next: 0, owners: [const { None }; KNOWN] }) };
}

fn owners() -> MutexGuard<'static, Owners> {
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the calling process has of a device.
fn owner(env: Env, engine: Opened) -> Arc<Owner> {
    let key = (engine.info().index, env.pid());
    LAST.with_borrow_mut(|Known { next, owners: known }| {
        if let Some((_, owner)) = known.iter().flatten().find(|(of, _)| *of == key) {
            return Arc::clone(owner);
        }
        let owner = owners().of(env, key);
        known[*next] = Some((key, Arc::clone(&owner)));
        *next = (*next + 1) % KNOWN;
        owner
    })
}

impl Owners {
    fn of(&mut self, env: Env, (index, pid): Key) -> Arc<Owner> {
        if self.by_process.len() >= self.enough {
            self.by_process.retain(|(_, pid), owner| owner.bytes() > 0 || env.is_process_alive(*pid));
            self.enough = FEW.max(2 * self.by_process.len());
        }
        let key = (index, self.taking_for.get(&pid).copied().unwrap_or(pid));
        let limited = || {
            let owner = Owner::default();
            owner.set_limit_bytes(LIMIT_BYTES.load(Relaxed));
            Arc::new(owner)
        };
        Arc::clone(self.by_process.entry(key).or_insert_with(limited))
    }
}

/// As [`charged`], for calls that `VulkanoBackend.settle/2` makes again after it has collected garbage.
pub fn charged_again<T>(env: Env, engine: Opened, f: impl FnOnce() -> T) -> T {
    charged(env, engine, || Engine::asking_to_spill(f))
}

/// Runs `f`, where what it takes of the device's memory is the calling process'.
pub fn charged<T>(env: Env, engine: Opened, f: impl FnOnce() -> T) -> T {
    Owner::charged(Some(owner(env, engines::met(engine))), f)
}

/// What the memory of that device, or of the default one, is taken for, and what each process has of it and may have.
#[rustler::nif(schedule = "DirtyCpu")]
fn memory_usage<'a>(env: Env<'a>, device: Option<usize>) -> Term<'a> {
    let Some(engine) = engines::of(device) else { return (atoms::ok(), Term::map_new(env), empty()).encode(env) };
    let Usage { budget_bytes, peak_bytes, reserved_bytes, in_use_bytes, spilled_bytes, copies_bytes, staging_bytes } =
        engine.usage();
    let pairs = [
        (atoms::budget_bytes(), budget_bytes),
        (atoms::peak_bytes(), peak_bytes),
        (atoms::reserved_bytes(), reserved_bytes),
        (atoms::in_use_bytes(), in_use_bytes),
        (atoms::spilled_bytes(), spilled_bytes),
        (atoms::copies_bytes(), copies_bytes),
        (atoms::staging_bytes(), staging_bytes),
    ];
    let map = Term::map_from_pairs(env, &pairs).unwrap_or_else(|_| Term::map_new(env));
    let index = engine.info().index;
    let owners = owners();
    let all = owners.by_process.iter().filter(|((of, _), _)| *of == index);
    let listed = all.map(|((_, pid), owner)| (*pid, owner.bytes(), limit(owner)));
    let of_all = Some(LIMIT_BYTES.load(Relaxed)).filter(|&limit| limit != u64::MAX);
    let with_some: Vec<Listed> = listed.filter(|(_, bytes, limit)| *bytes > 0 || *limit != of_all).collect();
    (atoms::ok(), map, with_some).encode(env)
}

/// A process, the bytes that it has, and its limit.
type Listed = (LocalPid, u64, Option<u64>);

fn empty() -> Vec<Listed> {
    Vec::new()
}

fn limit(owner: &Owner) -> Option<u64> {
    Some(owner.limit_bytes()).filter(|&limit| limit != u64::MAX)
}

/// Sets what the calling process may have of that device's memory, or of the default one's, which this opens if need be.
/// Answers what bounded it before.
#[rustler::nif(schedule = "DirtyIo")]
fn memory_limit<'a>(env: Env<'a>, limit_bytes: Option<u64>, device: Option<usize>) -> Term<'a> {
    match device::engine_of(device) {
        Ok(engine) => {
            let owner = owner(env, engine);
            let before = limit(&owner);
            owner.set_limit_bytes(limit_bytes.unwrap_or(u64::MAX));
            (atoms::ok(), before).encode(env)
        }
        Err(e) => error::encode_short(env, &e),
    }
}

/// What the calling process takes of any device's memory is that process' from now on. It has taken none before.
#[rustler::nif]
fn memory_owner(env: Env, pid: LocalPid) -> Atom {
    let mut owners = owners();
    let owner = owners.taking_for.get(&pid).copied().unwrap_or(pid);
    owners.taking_for.retain(|taking, _| env.is_process_alive(*taking));
    owners.taking_for.insert(env.pid(), owner);
    atoms::ok()
}

/// Lets the calling process spill memory of any device to the host's, after the garbage of all was collected. Answers
/// whether a device can.
#[rustler::nif]
fn memory_allow_spill(env: Env) -> bool {
    let mut can = false;
    for engine in engines::all() {
        can |= engine.allow_spill(&owner(env, engine));
    }
    can
}

/// Waits for the device and gives all free memory back to its driver. Answers how much that was; nothing where the
/// device is not open.
#[rustler::nif(schedule = "DirtyIo")]
fn memory_trim<'a>(env: Env<'a>, device: Option<usize>) -> Term<'a> {
    let trim = || match engines::of(device) {
        Some(engine) => engine.wait().map(|()| engine.trim()),
        None => Ok(0),
    };
    match trim() {
        Ok(bytes) => (atoms::ok(), bytes).encode(env),
        Err(e) => error::encode_short(env, &e),
    }
}
