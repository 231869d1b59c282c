//! Every Vulkan call that an engine makes, failing in every way that it may: no panic, no hang, an error of the right
//! kind or the right result, nothing left behind, and the next call is right.
//!
//! The layer of this crate makes calls fail. It is taken when the instance is made, so each of these tests runs in a
//! process of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../nx_vulkan_engine/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use common::*;
use nx_vulkan_engine::program::ops::order::Sort;
use nx_vulkan_engine::program::{Binary, Builder, Op, Program};
use nx_vulkan_engine::{
    Compile, DType, Engine, Error, Executable, HostAccess, Interface, Options, PipelineKey, Result, Tensor, Type, eager,
};

const LAYER: &str = "VK_LAYER_NX_VULKAN_faults";

/// Where the process of a test finds the layer.
const LAYER_FILE: &str = "NX_VULKAN_TEST_LAYER";

/// For how long a process tries calls, besides the first one and the last one of each function. What is left out then
/// is said.
const TIME: Duration = Duration::from_secs(25);
/// A call that takes so long hangs.
const HANGS: Duration = Duration::from_secs(120);
/// Calls of each function that come before others, first ones and last ones.
const ENDS: u64 = 3;

/// `VkResult`s.
const OUT_OF_HOST_MEMORY: i32 = -1;
const OUT_OF_DEVICE_MEMORY: i32 = -2;
const INITIALIZATION_FAILED: i32 = -3;
const DEVICE_LOST: i32 = -4;

/// The functions of the layer that the loader has loaded.
struct Layer {
    arm: unsafe extern "C" fn(*const c_char, u64, i32),
    failed: extern "C" fn() -> *const c_char,
    calls: extern "C" fn() -> u64,
    name: extern "C" fn(u64) -> *const c_char,
    kind: extern "C" fn(usize) -> *const c_char,
    alive: extern "C" fn(usize) -> i64,
}

fn text(name: *const c_char) -> Option<&'static str> {
    // SAFETY: the layer's names are its own for ever.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap())
}

impl Layer {
    fn load(file: &str) -> Layer {
        let file = CString::new(file).unwrap();
        // SAFETY: the file is the layer of this crate, whose functions have these types.
        unsafe {
            let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "{file:?} can't be loaded");
            let find = |name: &CStr| -> *mut c_void {
                let found = libc::dlsym(library, name.as_ptr());
                assert!(!found.is_null(), "{name:?}");
                found
            };
            Layer {
                arm: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, u64, i32)>(find(
                    c"nx_vulkan_faults_arm",
                )),
                failed: std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(find(
                    c"nx_vulkan_faults_failed",
                )),
                calls: std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(find(c"nx_vulkan_faults_calls")),
                name: std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> *const c_char>(find(
                    c"nx_vulkan_faults_name",
                )),
                kind: std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> *const c_char>(find(
                    c"nx_vulkan_faults_kind",
                )),
                alive: std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> i64>(find(c"nx_vulkan_faults_alive")),
            }
        }
    }

    /// Makes a call of a function (of any where there is none) fail, the first one for 1, none for 0.
    fn arm(&self, function: Option<&str>, call: u64, result: i32) {
        let function = function.map(|name| CString::new(name).unwrap());
        // SAFETY: the name ends with 0.
        unsafe { (self.arm)(function.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()), call, result) }
    }

    /// The function of which a call has failed since; then no other one does.
    fn failed(&self) -> Option<&'static str> {
        let failed = text((self.failed)());
        self.arm(None, 0, 0);
        failed
    }

    /// Objects that exist although no engine does.
    fn leaks(&self) -> BTreeMap<&'static str, i64> {
        let kinds = (0..).map_while(|kind| Some((kind, text((self.kind)(kind))?)));
        kinds.map(|(kind, name)| (name, (self.alive)(kind))).filter(|&(_, alive)| alive != 0).collect()
    }
}

/// Options of engines whose memory is small, and that the host reaches through copies.
fn small() -> Options {
    // Kernels are pipelines then, as on a GPU, whose driver may refuse them.
    let keeps_compiled = false;
    Options { memory_limit_bytes: Some(160 << 20), host_access: HostAccess::Never, keeps_compiled, ..options() }
}

/// A loop, a branch, a sort and a product.
fn program() -> Program {
    let b = Builder::new();
    let (x, n) = (b.input(DType::F32, &[30, 30]), b.input(DType::S32, &[]));
    let zero = b.number(DType::S32, 0.0);
    let step = |b: &Builder, v: &[_]| vec![b.add(v[0], 1.0), b.multiply(v[1], 1.5)];
    let last = b.while_loop(&[zero, x], &[n], |b, v| b.less(v[0], v[2]), |b, v| step(b, v));
    let product = b.dot(last[1], x);
    let rows = b.sum(product, &[1]);
    let sorted = b.push(Op::from(Sort { axis: 0, descending: false }), &[rows], &Type::new(DType::F32, &[30]));
    let which = b.less(n, 4.0);
    let chosen = b.cond(which, &[sorted], |b, v| vec![b.add(v[0], 1.0)], |b, v| vec![b.multiply(v[0], 2.0)]);
    b.finish(&[chosen[0], product]).unwrap()
}

/// What an engine is used for, and what comes of it.
fn work(engine: &Arc<Engine>) -> Result<Vec<Vec<u8>>> {
    let mut results = Vec::new();
    let f32s = |shape: &[u64]| Type::new(DType::F32, shape);
    let values: Vec<f32> = (0..900).map(|i| (i % 97) as f32 / 64.0).collect();
    let x = Tensor::from_slice(engine, &[30, 30], &values)?;
    let one = |op: &Op, operands: &[Tensor], out: &Type| eager::run(engine, op, operands, out, Compile::Allowed);
    let sum = one(&Op::Binary(Binary::Add), &[x.clone(), x.clone()], &f32s(&[30, 30]))?;
    let sorted = one(&Op::from(Sort { axis: 1, descending: true }), std::slice::from_ref(&sum), &f32s(&[30, 30]))?;
    results.push(sorted.to_nx_bytes(engine, None)?);

    // Larger than half of the memory: what was there before has to go.
    for word in 0..3 {
        let large = engine.alloc(100 << 20)?;
        engine.fill(&large, 0, large.size_bytes(), word)?;
        let mut end = vec![0; 8];
        engine.download(&large, large.size_bytes() - 8, &mut end)?;
        results.push(end);
    }

    // Copied by several threads.
    let bytes: Vec<u8> = (0..(3 << 20) + 5u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let copied = Tensor::from_slice(engine, &[bytes.len() as u64], &bytes)?;
    results.push(copied.to_nx_bytes(engine, None)?);

    let executable = Executable::compile(engine, program())?;
    for n in [3, 9] {
        let n = Tensor::from_slice(engine, &[], &[n])?;
        for result in executable.run(&[x.clone(), n], Compile::Allowed)? {
            results.push(result.to_nx_bytes(engine, None)?);
        }
    }

    // Memory for other processes.
    match x.share_ipc(engine, 1) {
        Ok((shared, _)) => {
            engine.unshare(1);
            results.push(shared.to_nx_bytes(engine, None)?);
        }
        Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error),
    }

    // A shader that takes descriptors, and times of kernels.
    engine.start_profile()?;
    let spirv = words(BOUND_ADD);
    let interface = Interface::Descriptors { bindings: 3, push_bytes: 8 };
    let key = PipelineKey::new(&spirv, &[], interface);
    // SAFETY: the module is one of the tests, for this interface.
    let pipeline = unsafe { engine.pipeline(key, &spirv, &[], interface) }?;
    let a = engine.alloc(2000)?;
    engine.upload(&a, 0, &[3; 2000])?;
    let c = engine.alloc(2000)?;
    run_bound_add(engine, &pipeline, [&a, &a, &c], 500, 5)?;
    let mut out = vec![0; 2000];
    engine.download(&c, 0, &mut out)?;
    results.push(out);
    let kernels = engine.profile().map(|profile| profile.rows.len());
    engine.stop_profile()?;
    assert!(kernels? > 0);
    engine.save_pipelines();
    Ok(results)
}

/// An engine and its work, with what is left of the engine.
fn open_and_work(cache: &Path) -> (Option<Arc<Engine>>, Result<Vec<Vec<u8>>>) {
    match Engine::open_with(&Options { cache_dir: Some(cache.to_path_buf()), ..small() }) {
        Ok(engine) => {
            let results = work(&engine);
            (Some(engine), results)
        }
        Err(error) => (None, Err(error)),
    }
}

/// Whether an error may be what a result of Vulkan has led to.
fn is_right(error: &Error, result: i32, has_engine: bool) -> bool {
    match error.cause() {
        // What keeps a device from being opened is told as that.
        Error::NoDevice { .. } => !has_engine,
        Error::OutOfMemory { .. } => result == OUT_OF_DEVICE_MEMORY || result == OUT_OF_HOST_MEMORY,
        Error::DeviceLost => result == DEVICE_LOST,
        _ => false,
    }
}

/// The calls that are tried of those with these names, as functions and which of their calls it is, in this order: of
/// each function the first one and the last one, then the next ones from both ends, then the others, each time the one
/// in the middle of the widest gap. Also answers how many are first ones and last ones.
fn order(names: &[&'static str]) -> (Vec<(&'static str, u64)>, usize) {
    let mut of_function: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut all: Vec<(&'static str, u64)> = Vec::new();
    for name in names {
        let count = of_function.entry(name).or_default();
        *count += 1;
        all.push((name, *count));
    }
    let mut chosen: Vec<(&'static str, u64)> = Vec::new();
    let mut ends = 0;
    for end in 0..ENDS {
        for (&name, &count) in &of_function {
            for call in [end + 1, count.saturating_sub(end)] {
                if (1..=count).contains(&call) && !chosen.contains(&(name, call)) {
                    chosen.push((name, call));
                }
            }
        }
        ends = if end == 0 { chosen.len() } else { ends };
    }
    all.retain(|call| !chosen.contains(call));
    // By the bits of their places, lowest first: halves, quarters, eighths.
    let mut places: Vec<_> = (0u64..).zip(all).map(|(i, call)| (i.reverse_bits(), call)).collect();
    places.sort_unstable();
    (chosen.into_iter().chain(places.into_iter().map(|(_, call)| call)).collect(), ends)
}

/// Opens the first engine of the process, whose instance is made with it: each call fails once. Answers what went
/// wrong.
fn opening(layer: &Layer, result: i32) -> Vec<String> {
    let mut failures = Vec::new();
    let mut functions = Vec::new();
    for call in 1.. {
        layer.arm(None, call, result);
        let engine = Engine::open_with(&small());
        let failed = layer.failed();
        let error = engine.err();
        if error.as_ref().is_some_and(|error| failed.is_none() || !is_right(error, result, false)) {
            failures.push(format!("opening, call {call}, {failed:?}: {error:?}"));
        }
        match failed {
            Some(name) => functions.push(name),
            None => break,
        }
    }
    println!("while the first engine was opened these failed: {functions:?}");
    failures
}

/// Run by the tests below, each in a process of its own.
#[test]
#[ignore = "needs the environment that its caller sets"]
fn child_makes_calls_fail() {
    let layer = Layer::load(&std::env::var(LAYER_FILE).unwrap());
    let result: i32 = std::env::var("NX_VULKAN_TEST_RESULT").unwrap().parse().unwrap();
    let cache = TempDir::new(&format!("faults-{result}"));
    static PANICS: AtomicU64 = AtomicU64::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Relaxed);
        hook(info);
    }));
    static TRIED: AtomicU64 = AtomicU64::new(0);
    std::thread::spawn(|| {
        let mut last = (TRIED.load(Relaxed), Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let tried = TRIED.load(Relaxed);
            if tried != last.0 {
                last = (tried, Instant::now());
            } else if last.1.elapsed() > HANGS {
                println!("FAILED: hangs");
                std::io::stdout().flush().unwrap();
                std::process::abort();
            }
        }
    });

    let mut failures = opening(&layer, result);
    let began = Instant::now();
    layer.arm(None, 0, result);
    let (engine, wanted) = open_and_work(&cache.0);
    let wanted = wanted.unwrap();
    drop(engine);
    if (layer.calls)() == 0 {
        println!("skipped: the Vulkan loader has not loaded {LAYER}");
        return;
    }
    let mut kept = layer.leaks();
    println!("kept by the process: {kept:?}");
    let names: Vec<&str> = (1..=(layer.calls)()).map(|call| text((layer.name)(call)).unwrap()).collect();

    // Under the validation layer devices close with their engines.
    let closes = !kept.contains_key("VkDevice");
    let (mut tried, mut survived, mut said) = (0, 0, 0);
    let mut log = None;
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let (order, ends) = order(&names);
    for (at, &(function, call)) in order.iter().enumerate() {
        if at >= ends && began.elapsed() > TIME {
            break;
        }
        TRIED.fetch_add(1, Relaxed);
        // Without what earlier ones have compiled.
        let _ = std::fs::remove_dir_all(cache.0.join("pipelines"));
        layer.arm(Some(function), call, result);
        let outcome = catch_unwind(AssertUnwindSafe(|| open_and_work(&cache.0)));
        // How many calls there are depends on time, too.
        let Some(name) = layer.failed() else { continue };
        tried += 1;
        *functions.entry(name).or_default() += 1;
        let mut complain = |what: String| {
            println!("FAILED: call {call}, {name}: {what}");
            failures.push(format!("call {call}, {name}: {what}"));
        };
        let Ok((engine, results)) = outcome else {
            complain("panicked".into());
            continue;
        };
        let is_open = engine.is_some();
        match &results {
            Ok(results) => {
                survived += 1;
                if *results != wanted {
                    complain("wrong results".into());
                }
            }
            Err(error) if is_right(error, result, engine.is_some()) => {}
            Err(error) => complain(format!("{error:?}")),
        }
        if let Some(engine) = engine {
            let again = catch_unwind(AssertUnwindSafe(|| work(&engine)));
            match (&results, again) {
                (_, Err(_)) => complain("the next call panicked".into()),
                (Err(error), Ok(again)) if *error.cause() == Error::DeviceLost => {
                    let each = [engine.wait(), engine.flush(), again.map(|_| ())];
                    if each != [const { Err(Error::DeviceLost) }; 3] {
                        complain(format!("after the loss {each:?}"));
                    }
                }
                (_, Ok(Ok(again))) if again == wanted => {}
                (_, Ok(Ok(_))) => complain("the next results are wrong".into()),
                (_, Ok(Err(error))) => complain(format!("after {results:?} the next call: {error:?}")),
            }
            log = log.or(engine.validation_log());
        }
        let messages = log.as_ref().map(|log| log.messages()).unwrap_or_default();
        messages.iter().skip(said).for_each(|message| complain(message.clone()));
        said = messages.len();
        let left = layer.leaks();
        // A lost device that was kept for the next engine stays, without validation, and another one is kept in its
        // place.
        let devices = |counts: &BTreeMap<&str, i64>| counts.get("VkDevice").copied().unwrap_or(0);
        let others = |counts: &BTreeMap<&str, i64>| {
            counts.iter().filter(|(name, _)| **name != "VkDevice").map(|(n, c)| (n.to_string(), *c)).collect::<Vec<_>>()
        };
        if others(&left) != others(&kept) || (closes && devices(&left) != 0) {
            complain(format!("left behind: {left:?}"));
        }
        kept = left;
        // The next engine is right, where this one was not opened or is lost.
        if !is_open || result == DEVICE_LOST {
            let (engine, results) = open_and_work(&cache.0);
            drop(engine);
            if results.as_ref() != Ok(&wanted) {
                complain(format!("the next engine: {:?}", results.map(|_| "wrong results")));
            }
        }
    }
    assert!(tried > 0, "no call failed");
    println!("{tried} of {} calls failed, and {survived} times the results were right: {functions:?}", names.len());
    assert_eq!(PANICS.load(Relaxed), 0, "a panic");
    assert_eq!(failures, Vec::<String>::new());
    println!("all is well");
}

/// The layer's file, which Cargo builds beside the tests.
fn layer_file() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libnx_vulkan_faults.so")
}

fn check(result: i32) {
    let file = layer_file();
    if !file.exists() {
        println!("skipped: there is no {}", file.display());
        return;
    }
    let folder = TempDir::new(&format!("layer{result}"));
    let manifest = format!(
        r#"{{"file_format_version": "1.2.0", "layer": {{"name": "{LAYER}", "type": "GLOBAL", "library_path": "{}",
        "api_version": "1.3.281", "implementation_version": "1", "description": "calls that fail"}}}}"#,
        file.display()
    );
    std::fs::write(folder.0.join("faults.json"), manifest).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["child_makes_calls_fail", "--exact", "--ignored", "--nocapture"])
        .env("VK_ADD_LAYER_PATH", &folder.0)
        .env("VK_INSTANCE_LAYERS", LAYER)
        // Mesa's own layer reads what a call that failed has not written (docs/design/driver-faults.md).
        .env("NODEVICE_SELECT", "1")
        .env(LAYER_FILE, &file)
        .env("NX_VULKAN_TEST_RESULT", result.to_string())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout);
    let said = out.lines().filter(|line| !line.is_empty());
    said.for_each(|line| println!("{line}"));
    let is_well = out.contains("all is well") || out.contains("skipped: ");
    assert!(child.status.success() && is_well, "{out}\n{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn without_device_memory() {
    check(OUT_OF_DEVICE_MEMORY);
}

#[test]
fn without_host_memory() {
    check(OUT_OF_HOST_MEMORY);
}

#[test]
fn on_a_device_that_is_lost() {
    check(DEVICE_LOST);
}

#[test]
fn where_nothing_can_be_initialized() {
    check(INITIALIZATION_FAILED);
}
