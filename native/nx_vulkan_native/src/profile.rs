//! Times of kernels, on the device of an index or on the default one.

use std::collections::HashMap;
use std::time::Duration;

use nx_vulkan_engine::profile::{Launch, Profile, ProfileRow};
use nx_vulkan_engine::{Engine, Limits, Result};
use rustler::{Encoder, Env, Term};

use crate::{device, engines, error};

mod atoms {
    rustler::atoms! {
        ok, nil, device, rows, limits, unmeasured, table, kernel, calls, time_ns, read_bytes, written_bytes, flops,
        bytes_per_second, flops_per_second,
    }
}

fn answer<'a>(env: Env<'a>, result: Result<()>) -> Term<'a> {
    match result {
        Ok(()) => (atoms::ok(), atoms::nil()).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Takes times from now on; opens the device if it is not open.
#[rustler::nif(schedule = "DirtyIo")]
fn profile_start(env: Env<'_>, device: Option<usize>) -> Term<'_> {
    answer(env, device::engine_of(device).and_then(|engine| engine.start_profile()))
}

fn of_open_engine(device: Option<usize>, run: impl FnOnce(&Engine) -> Result<()>) -> Result<()> {
    engines::of(device).map_or(Ok(()), |engine| run(engine))
}

/// Takes no more times.
#[rustler::nif(schedule = "DirtyIo")]
fn profile_stop(env: Env<'_>, device: Option<usize>) -> Term<'_> {
    answer(env, of_open_engine(device, Engine::stop_profile))
}

/// Forgets the times that were taken.
#[rustler::nif(schedule = "DirtyIo")]
fn profile_reset(env: Env<'_>, device: Option<usize>) -> Term<'_> {
    answer(env, of_open_engine(device, Engine::reset_profile))
}

/// The times taken so far. What the device can do is `limits` (bytes and operations per second), or measured if that is
/// asked for. Nil while the
/// device is not open.
#[rustler::nif(schedule = "DirtyIo")]
fn profile_get<'a>(env: Env<'a>, limits: Option<(f64, f64)>, measures: bool, device: Option<usize>) -> Term<'a> {
    let Some(engine) = engines::of(device) else { return (atoms::ok(), atoms::nil()).encode(env) };
    let get = || {
        match limits {
            Some((bytes_per_second, flops_per_second)) => {
                engine.set_limits(Limits { bytes_per_second, flops_per_second });
            }
            None if measures => engine.measure_limits().map(|_| ())?,
            None => {}
        }
        engine.profile()
    };
    match get() {
        Ok(profile) => (atoms::ok(), encode(env, &profile)).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// The launches whose times were taken, as `{kernel, start_ns, time_ns}`; none while the device is not open.
#[rustler::nif(schedule = "DirtyIo")]
fn profile_launches<'a>(env: Env<'a>, device: Option<usize>) -> Term<'a> {
    let Some(engine) = engines::of(device) else { return (atoms::ok(), Vec::<Term>::new()).encode(env) };
    let launches = match engine.launches() {
        Ok(launches) => launches,
        Err(e) => return error::encode(env, atoms::nil().to_term(env), &e),
    };
    // One text for all launches of a kernel.
    let mut names: HashMap<*const u8, Term<'a>> = HashMap::new();
    let listed = launches.iter().map(|Launch { kernel, start, time }| {
        let name = *names.entry(kernel.as_ptr()).or_insert_with(|| (**kernel).encode(env));
        (name, ns(*start), ns(*time))
    });
    (atoms::ok(), listed.collect::<Vec<_>>()).encode(env)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn encode<'a>(env: Env<'a>, profile: &Profile) -> Term<'a> {
    let map =
        |pairs: &[(rustler::Atom, Term<'a>)]| Term::map_from_pairs(env, pairs).unwrap_or_else(|_| Term::map_new(env));
    let row = |row: &ProfileRow| {
        map(&[
            (atoms::kernel(), row.kernel.encode(env)),
            (atoms::calls(), row.calls.encode(env)),
            (atoms::time_ns(), ns(row.time).encode(env)),
            (atoms::read_bytes(), row.read_bytes.encode(env)),
            (atoms::written_bytes(), row.written_bytes.encode(env)),
            (atoms::flops(), row.flops.encode(env)),
        ])
    };
    let limits = profile.limits.map(|limits| {
        map(&[
            (atoms::bytes_per_second(), limits.bytes_per_second.encode(env)),
            (atoms::flops_per_second(), limits.flops_per_second.encode(env)),
        ])
    });
    map(&[
        (atoms::device(), profile.device.encode(env)),
        (atoms::rows(), profile.rows.iter().map(row).collect::<Vec<Term<'a>>>().encode(env)),
        (atoms::limits(), limits.encode(env)),
        (atoms::unmeasured(), profile.unmeasured.encode(env)),
        (atoms::table(), profile.to_string().encode(env)),
    ])
}
