//! Devices: which there are, the default one, which the first use opens on a dirty scheduler, and those that are opened
//! besides.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nx_vulkan_device::device::{Details, Heap, Loader, Matrices};
use nx_vulkan_device::kernel::default_cache_dir;
use nx_vulkan_device::{DeviceInfo, DeviceKind, device};
use nx_vulkan_engine::{Calibrated, CalibrationState, DType, Engine, Error, Options, Precision, Profiling, Result};
use once_cell::sync::OnceCell;
use rustler::{Atom, Encoder, Env, LocalPid, Term};

use crate::engines::{self, Opened};
use crate::{error, memory};

mod atoms {
    rustler::atoms! {
        ok, nil,
        index, name, kind, uuid, open, default, driver, api_version, memory_bytes, has_f64, lowered, usable, reason,
        discrete, integrated, virtual_ = "virtual", cpu, other,
        pci, vendor_id, device_id, driver_name, driver_info, subgroup_sizes, matrices, sizes, types, heaps, size_bytes, device_local, used_bytes, selector, f16_matrices, bf16_matrices,
        denormals, f16, f32, f64, validation, pipeline_cache, loaded_bytes, calibration, measured, version, error, validation_layer, cache_dir, nx_vulkan_calibration,
        in_use_bytes, peak_bytes, reserved_bytes, allocations, budget_bytes, submissions, dispatches, transfers, barriers, pipelines, class, processors, path, bytes_per_second, flops_per_second, dispatch_ns, wait_ns,
        f32_products_per_second, f64_products_per_second, unit_products_per_second, deferred_pending, deferred_replayed, deferred_one_by_one, deferred_compiled,
    }
}

/// What the configuration of the application says beside the environment.
#[derive(Debug, Clone)]
struct Configured {
    /// Whether to take a profile.
    profile: bool,
    /// Where to write modules.
    dump_spirv: Option<PathBuf>,
    /// Whether large products of f32 may run on matrix units.
    is_high: bool,
    /// Whether attention has the bits of its ops one by one.
    exact_attention: bool,
    /// Types to lower, as `NX_VULKAN_LOWER` has them.
    lower: Option<String>,
    /// For how long a process waits while the device completes nothing.
    time_limit: Option<Duration>,
}

static CONFIGURED: Mutex<Configured> = Mutex::new(Configured {
    profile: false,
    dump_spirv: None,
    is_high: false,
    exact_attention: false,
    lower: None,
    time_limit: None,
});

/// What named the default device; empty where nothing did.
static SELECTOR: OnceCell<Option<String>> = OnceCell::new();

/// What the configuration and the environment say of every device. Profiles are printed by Elixir, which knows when the
/// VM ends.
fn options() -> Result<Options> {
    Options::check_env()?;
    let Configured { profile, dump_spirv, is_high, exact_attention, lower, time_limit } =
        CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut options = Options::from_env();
    options.dump_spirv = options.dump_spirv.or(dump_spirv);
    options.profile = if profile || options.profile != Profiling::Off { Profiling::On } else { Profiling::Off };
    options.precision = if is_high { Precision::High } else { options.precision };
    options.exact_attention |= exact_attention;
    options.time_limit = options.time_limit.or(time_limit);
    options.lower = match lower {
        Some(lower) => options.lower.or(Options::types_to_lower(&lower)?),
        None => options.lower,
    };
    Ok(options)
}

/// Opens the device that the selector or the environment names.
fn open(selector: Option<&str>) -> Result<Arc<Engine>> {
    let mut options = options()?;
    options.selector = selector.map(ToString::to_string).or(options.selector);
    let engine = Engine::open_with(&options)?;
    SELECTOR.get_or_init(|| options.selector);
    Ok(engine)
}

/// The engine of the default device, opened if it is not open yet: only for dirty schedulers.
pub fn engine() -> Result<Opened> {
    engines::default_or(|| open(None))
}

/// The engine of a device by its index, opened if it is not open yet, or of the default one: only for dirty schedulers.
pub fn engine_of(device: Option<usize>) -> Result<Opened> {
    match device {
        Some(index) => engines::of_or(index, || {
            let mut options = options()?;
            options.selector = Some(index.to_string());
            Engine::open_with(&options)
        }),
        None => engine(),
    }
}

/// Takes what the configuration says; it counts when the device is opened, the limit for processes that are met later.
#[rustler::nif]
fn device_configure(
    profile: bool,
    dump_spirv: Option<String>,
    is_high: bool,
    exact_attention: bool,
    lower: Option<String>,
    time_limit_ms: Option<u64>,
    process_limit_bytes: Option<u64>,
) -> Atom {
    memory::set_limit_bytes(process_limit_bytes);
    let dump_spirv = dump_spirv.map(PathBuf::from);
    let time_limit = time_limit_ms.map(Duration::from_millis);
    *CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner) =
        Configured { profile, dump_spirv, is_high, exact_attention, lower, time_limit };
    atoms::ok()
}

/// What a NIF on a normal scheduler answers: `run` with an engine, if it is open, which must not wait, or
/// `:needs_compile` where it would have to.
pub fn when_ready<'a>(env: Env<'a>, engine: Option<Opened>, run: impl FnOnce(Opened) -> Term<'a>) -> Term<'a> {
    match engine.filter(|engine| !engine.is_congested()) {
        Some(engine) => memory::charged(env, engine, || Engine::without_waiting(|| run(engine))),
        None => error::encode(env, atoms::nil().to_term(env), &Error::NeedsCompile),
    }
}

/// Opens the device of `selector` as the default one; if that is open already, it must be the device that is named.
#[rustler::nif(schedule = "DirtyIo")]
fn device_open<'a>(env: Env<'a>, selector: Option<&str>) -> Term<'a> {
    let open = || match (engines::default_or(|| open(selector))?, selector) {
        (engine, Some(selector)) => check_selected(engine.info(), selector),
        (_, None) => Ok(()),
    };
    match open() {
        Ok(()) => atoms::ok().encode(env),
        Err(e) => error::encode_short(env, &e),
    }
}

fn check_selected(open: &DeviceInfo, selector: &str) -> Result<()> {
    let devices = device::enumerate()?;
    match device::choose(&devices, Some(selector))? {
        chosen if devices[chosen].index == open.index => Ok(()),
        chosen => Err(Error::InvalidArgument {
            what: "device",
            expected: format!("{open}, which is the default device already"),
            got: devices[chosen].to_string(),
        }),
    }
}

/// Opens the device of `selector` if it is not open yet. Answers its index, and whether it is the default one.
#[rustler::nif(schedule = "DirtyIo")]
fn device_select<'a>(env: Env<'a>, selector: &str) -> Term<'a> {
    let select = || {
        let devices = device::enumerate()?;
        let index = devices[device::choose(&devices, Some(selector))?].index;
        engine_of(Some(index)).map(|engine| (index, is_default(engine.info())))
    };
    match select() {
        Ok((index, is_default)) => (atoms::ok(), index, is_default).encode(env),
        Err(e) => error::encode_short(env, &e),
    }
}

pub fn is_default(info: &DeviceInfo) -> bool {
    engines::default().is_some_and(|engine| engine.info().index == info.index)
}

/// Types by Nx's names.
fn names(env: Env, types: &[DType]) -> Vec<Atom> {
    types.iter().filter_map(|dtype| Atom::from_str(env, dtype.name()).ok()).collect()
}

fn map<'a>(env: Env<'a>, pairs: &[(Atom, Term<'a>)]) -> Term<'a> {
    Term::map_from_pairs(env, pairs).unwrap_or_else(|_| Term::map_new(env))
}

/// What is to be known of a device whether or not it is open.
fn known<'a>(env: Env<'a>, info: &DeviceInfo) -> Vec<(Atom, Term<'a>)> {
    let kind = match info.kind {
        DeviceKind::Discrete => atoms::discrete(),
        DeviceKind::Integrated => atoms::integrated(),
        DeviceKind::Virtual => atoms::virtual_(),
        DeviceKind::Cpu => atoms::cpu(),
        DeviceKind::Other => atoms::other(),
    };
    let (major, minor, patch) = info.api_version;
    let Details { subgroup_sizes, matrices, .. } = &info.details;
    let matrices: Vec<Term> = matrices
        .iter()
        .map(|Matrices { sizes, types }| {
            map(env, &[(atoms::sizes(), sizes.as_slice().encode(env)), (atoms::types(), types.as_slice().encode(env))])
        })
        .collect();
    vec![
        (atoms::index(), info.index.encode(env)),
        (atoms::name(), info.name.encode(env)),
        (atoms::kind(), kind.encode(env)),
        (atoms::uuid(), info.uuid_hex().encode(env)),
        (atoms::pci(), info.pci.encode(env)),
        (atoms::vendor_id(), info.vendor_id.encode(env)),
        (atoms::device_id(), info.device_id.encode(env)),
        (atoms::driver(), format!("{} {}", info.driver_name, info.driver_info).trim().encode(env)),
        (atoms::driver_name(), info.driver_name.encode(env)),
        (atoms::driver_info(), info.driver_info.encode(env)),
        (atoms::api_version(), format!("{major}.{minor}.{patch}").encode(env)),
        (atoms::memory_bytes(), info.memory_bytes.encode(env)),
        (atoms::subgroup_sizes(), subgroup_sizes.as_slice().encode(env)),
        (atoms::matrices(), matrices.encode(env)),
        (atoms::has_f64(), (!info.lacks.float64).encode(env)),
        (atoms::lowered(), names(env, &info.lowered_types()).encode(env)),
        (atoms::usable(), info.unusable.is_none().encode(env)),
        (atoms::reason(), info.unusable.encode(env)),
    ]
}

fn heaps<'a>(env: Env<'a>, info: &DeviceInfo) -> Vec<Term<'a>> {
    let heap = |heap: &Heap| {
        let (used, budget) = heap.used_and_budget_bytes.unzip();
        map(
            env,
            &[
                (atoms::size_bytes(), heap.size_bytes.encode(env)),
                (atoms::device_local(), heap.device_local.encode(env)),
                (atoms::used_bytes(), used.encode(env)),
                (atoms::budget_bytes(), budget.encode(env)),
            ],
        )
    };
    info.details.heaps.iter().map(heap).collect()
}

/// Every Vulkan device of this machine.
#[rustler::nif(schedule = "DirtyIo")]
fn device_list<'a>(env: Env<'a>) -> Term<'a> {
    let listed = |info: &DeviceInfo| {
        let mut pairs = known(env, info);
        pairs.extend([
            (atoms::heaps(), heaps(env, info).encode(env)),
            (atoms::open(), engines::of(Some(info.index)).is_some().encode(env)),
            (atoms::default(), is_default(info).encode(env)),
        ]);
        map(env, &pairs)
    };
    match device::enumerate() {
        Ok(devices) => (atoms::ok(), devices.iter().map(listed).collect::<Vec<Term>>()).encode(env),
        Err(e) => error::encode_short(env, &e),
    }
}

/// The Vulkan loader, and the folder of the cache: all that is there without a device.
#[rustler::nif(schedule = "DirtyIo")]
fn device_loader<'a>(env: Env<'a>) -> Term<'a> {
    let Loader { version, validation_layer } = device::loader();
    let (version, error) = match version {
        Ok(version) => (Some(version), None),
        Err(why) => (None, Some(why)),
    };
    let pairs = [
        (atoms::version(), version.encode(env)),
        (atoms::error(), error.encode(env)),
        (atoms::validation_layer(), validation_layer.encode(env)),
        (atoms::cache_dir(), default_cache_dir().map(|dir| dir.display().to_string()).encode(env)),
    ];
    map(env, &pairs)
}

/// The device of that index, or the default one, which this opens if need be.
#[rustler::nif(schedule = "DirtyIo")]
fn device_describe<'a>(env: Env<'a>, device: Option<usize>) -> Term<'a> {
    match engine_of(device) {
        Ok(engine) => (atoms::ok(), in_use(env, engine)).encode(env),
        Err(e) => error::encode_short(env, &e),
    }
}

fn in_use<'a>(env: Env<'a>, engine: Opened) -> Term<'a> {
    let (info, caps) = (engine.info(), engine.caps());
    let CalibrationState { class, processors, is_measured, path } = engine.calibration();
    let calibration = [
        (atoms::measured(), is_measured.encode(env)),
        (atoms::class(), class.name().encode(env)),
        (atoms::processors(), processors.encode(env)),
        (atoms::path(), path.map(|path| path.display().to_string()).encode(env)),
    ];
    let pipeline_cache = engine.pipeline_cache().map(|(path, loaded_bytes)| {
        let path = path.display().to_string();
        map(env, &[(atoms::path(), path.encode(env)), (atoms::loaded_bytes(), loaded_bytes.encode(env))])
    });
    let denormals = [
        (atoms::f16(), caps.float16_controls),
        (atoms::f32(), caps.float32_controls),
        (atoms::f64(), caps.float64_controls),
    ];
    let denormals: Vec<Atom> =
        denormals.into_iter().filter(|(_, controls)| controls.denorm_preserve).map(|(ty, _)| ty).collect();
    let mut pairs = known(env, info);
    pairs.extend([
        (atoms::open(), true.encode(env)),
        (atoms::default(), is_default(info).encode(env)),
        (atoms::selector(), SELECTOR.get().cloned().flatten().filter(|_| is_default(info)).encode(env)),
        (atoms::f16_matrices(), caps.cooperative_matrix.encode(env)),
        (atoms::bf16_matrices(), caps.bfloat16_matrix.encode(env)),
        (atoms::denormals(), denormals.encode(env)),
        (atoms::validation(), engine.validation_messages().is_some().encode(env)),
        (atoms::pipeline_cache(), pipeline_cache.encode(env)),
        (atoms::calibration(), map(env, &calibration)),
    ]);
    map(env, &pairs)
}

/// Counters of the engine of that device, or of the default one; all zero while it is not open.
#[rustler::nif]
fn device_stats<'a>(env: Env<'a>, device: Option<usize>) -> Term<'a> {
    let stats = engines::of(device).map(|engine| engine.stats()).unwrap_or_default();
    let deferred = engines::of(device).map(|engine| engine.deferred_counters()).unwrap_or_default();
    let pairs = [
        (atoms::in_use_bytes(), stats.in_use_bytes),
        (atoms::peak_bytes(), stats.peak_bytes),
        (atoms::reserved_bytes(), stats.reserved_bytes),
        (atoms::allocations(), stats.allocations),
        (atoms::budget_bytes(), stats.budget_bytes),
        (atoms::submissions(), stats.submissions),
        (atoms::dispatches(), stats.dispatches),
        (atoms::transfers(), stats.transfers),
        (atoms::barriers(), stats.barriers),
        (atoms::pipelines(), stats.pipelines),
        (atoms::deferred_pending(), deferred.pending),
        (atoms::deferred_replayed(), deferred.replayed),
        (atoms::deferred_one_by_one(), deferred.one_by_one),
        (atoms::deferred_compiled(), deferred.compiled),
    ];
    Term::map_from_pairs(env, &pairs).unwrap_or_else(|_| Term::map_new(env))
}

/// What the Vulkan validation layer has said so far of any device; nil where it is not watching.
#[rustler::nif(schedule = "DirtyIo")]
fn device_validation_messages() -> Option<Vec<String>> {
    // All devices are of one instance, whose messages these are.
    engines::all().find_map(|engine| engine.validation_messages())
}

/// Writes the compiled pipelines of all devices to the cache on disk.
#[rustler::nif(schedule = "DirtyIo")]
fn device_save_pipelines() -> Atom {
    engines::all().for_each(|engine| engine.save_pipelines());
    atoms::ok()
}

/// Measures a device, and keeps what was found for the next start. The process is told what is measured next.
#[rustler::nif(schedule = "DirtyIo")]
fn device_calibrate<'a>(env: Env<'a>, told: LocalPid, device: Option<usize>) -> Term<'a> {
    let begins = |what: &'static str, at: usize, of: usize| {
        // A process that has ended need not be told.
        let _ = env.send(&told, (atoms::nx_vulkan_calibration(), what, at, of));
    };
    let calibrated = engine_of(device).and_then(|engine| engine.calibrate(begins));
    let Calibrated { class, processors, measured, path } = match calibrated {
        Ok(found) => found,
        Err(e) => return error::encode_short(env, &e),
    };
    let pairs = [
        (atoms::class(), class.name().encode(env)),
        (atoms::processors(), processors.encode(env)),
        (atoms::path(), path.map(|path| path.display().to_string()).encode(env)),
        (atoms::bytes_per_second(), measured.bytes_per_second.encode(env)),
        (atoms::flops_per_second(), measured.flops_per_second.encode(env)),
        (atoms::dispatch_ns(), measured.dispatch_ns.encode(env)),
        (atoms::wait_ns(), measured.wait_ns.encode(env)),
        (atoms::f32_products_per_second(), measured.f32_products_per_second.encode(env)),
        (atoms::f64_products_per_second(), measured.f64_products_per_second.encode(env)),
        (atoms::unit_products_per_second(), measured.unit_products_per_second.encode(env)),
    ];
    (atoms::ok(), Term::map_from_pairs(env, &pairs).unwrap_or_else(|_| Term::map_new(env))).encode(env)
}

/// The device features that kernels launched on the default device since the last call depend on.
#[rustler::nif]
fn device_take_features_used() -> Vec<&'static str> {
    engines::default().map(|engine| engine.take_features_used()).unwrap_or_default()
}
