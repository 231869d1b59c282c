//! The NIFs of the NativeV contract: raw buffers, supplied shaders, leapfrog chains.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use nx_vulkan_check::exact_floats;
use nx_vulkan_engine::chain::{self, Real, Request};
use nx_vulkan_engine::nativev::{self, Call, Compile, Failure, Outcome, ShaderFiles};
use nx_vulkan_engine::{Buffer, Engine, Error, Tensor};
use rustler::{Binary, Encoder, Env, NifResult, OwnedBinary, ResourceArc, Term, TermType};

use crate::device;
use crate::engines::{self, Opened};
use crate::tensor::{TensorRef, encode_tensor, host_binary};
use crate::term;

mod atoms {
    rustler::atoms! {
        ok, error, needs_compile,
        size_mismatch, bad_input, vulkan_init_failed, spv_read_failed, dispatch_failed, upload_failed, download_failed,
    }
}

/// The shader files that were read, of whatever device.
static FILES: LazyLock<ShaderFiles> = LazyLock::new(ShaderFiles::default);

#[derive(rustler::NifUnitEnum, Clone, Copy)]
enum Function {
    Binary,
    Unary,
    ReduceAxis,
    Transpose,
    Matmul,
}

#[derive(rustler::NifUnitEnum, Clone, Copy)]
enum Chain {
    F32,
    F64,
    BatchF32,
    BatchF64,
}

type Reference = ResourceArc<TensorRef>;

fn encode_failure<'a>(env: Env<'a>, failure: &Failure) -> Term<'a> {
    let (atom, message) = match failure {
        Failure::NeedsCompile => return atoms::needs_compile().encode(env),
        Failure::SizeMismatch => return (atoms::error(), atoms::size_mismatch()).encode(env),
        Failure::BadInput => return (atoms::error(), atoms::bad_input()).encode(env),
        Failure::VulkanInit(message) => (atoms::vulkan_init_failed(), message),
        Failure::SpvRead(message) => (atoms::spv_read_failed(), message),
        Failure::Dispatch(message) => (atoms::dispatch_failed(), message),
        Failure::Upload(message) => (atoms::upload_failed(), message),
        Failure::Download(message) => (atoms::download_failed(), message),
    };
    (atoms::error(), atom, message).encode(env)
}

fn answer<'a>(env: Env<'a>, outcome: Outcome<Term<'a>>) -> Term<'a> {
    outcome.unwrap_or_else(|failure| encode_failure(env, &failure))
}

fn done<'a>(env: Env<'a>, outcome: Outcome) -> Term<'a> {
    answer(env, outcome.map(|()| atoms::ok().encode(env)))
}

/// The engine, opened if need be.
fn engine() -> Outcome<Opened> {
    device::engine().map_err(|e| Failure::VulkanInit(e.to_string()))
}

/// The engine of the first buffer, or of calls that name no device, if it is open.
fn engine_of(buffers: &[Reference]) -> Option<Opened> {
    buffers.first().map_or_else(engines::default, |reference| Some(reference.engine))
}

/// The storage behind a reference that has it for itself: a tensor that is a view of a part, or in another order, is no
/// raw buffer.
fn buffer(reference: &Reference, compile: Compile) -> Outcome<Arc<Buffer>> {
    let pending = match compile {
        Compile::Allowed => nx_vulkan_engine::Compile::Allowed,
        Compile::Refused => nx_vulkan_engine::Compile::Refused,
    };
    let tensor = reference.tensor(pending).map_err(|e| match e {
        Error::NeedsCompile => Failure::NeedsCompile,
        _ => Failure::BadInput,
    });
    let tensor = tensor?;
    let (buffer, view) = (tensor.buffer(), tensor.view());
    match view.is_contiguous() && view.offset == 0 && view.size_bytes() == buffer.size_bytes() {
        true => Ok(Arc::clone(buffer)),
        false => Err(Failure::BadInput),
    }
}

/// A count, which an integer that is too large or negative is not; any other term is a wrong argument.
fn count(term: &Term) -> NifResult<Outcome<u64>> {
    match term.get_type() {
        TermType::Integer => Ok(term.decode().map_err(|_| Failure::BadInput)),
        _ => Err(rustler::Error::BadArg),
    }
}

fn path(bytes: &[u8]) -> Outcome<PathBuf> {
    term::path(bytes).ok_or_else(|| Failure::SpvRead("the path is no UTF-8".into()))
}

/// `{:ok, ref}`, or `{:ok, ref, :pressure}` when the caller should collect garbage.
#[rustler::nif(schedule = "DirtyIo")]
fn raw_alloc<'a>(env: Env<'a>, size_bytes: Term<'a>) -> NifResult<Term<'a>> {
    let size_bytes = count(&size_bytes)?;
    let alloc = || {
        let engine = engine()?;
        Ok(encode_tensor(env, engine, Tensor::bytes(nativev::alloc_zeroed(engine, size_bytes?)?)))
    };
    Ok(answer(env, alloc()))
}

#[rustler::nif(schedule = "DirtyIo")]
fn raw_upload<'a>(env: Env<'a>, binary: Binary<'a>) -> Term<'a> {
    let upload = || {
        let engine = engine()?;
        Ok(encode_tensor(env, engine, Tensor::bytes(nativev::upload(engine, &binary)?)))
    };
    answer(env, upload())
}

#[rustler::nif(schedule = "DirtyIo")]
fn buf_upload_into<'a>(env: Env<'a>, reference: Reference, binary: Binary<'a>) -> Term<'a> {
    done(
        env,
        buffer(&reference, Compile::Allowed)
            .and_then(|buffer| nativev::upload_into(reference.engine, &buffer, &binary)),
    )
}

#[rustler::nif(schedule = "DirtyIo")]
fn buf_download<'a>(env: Env<'a>, reference: Reference) -> Term<'a> {
    let download = || {
        let buffer = buffer(&reference, Compile::Allowed)?;
        let mut binary = binary_of(buffer.size_bytes())?;
        nativev::download(reference.engine, &buffer, &mut binary)?;
        Ok((atoms::ok(), Binary::from_owned(binary, env)).encode(env))
    };
    answer(env, download())
}

fn binary_of(size_bytes: u64) -> Outcome<OwnedBinary> {
    host_binary(size_bytes).map_err(|_| Failure::Download(format!("no host memory for {size_bytes} bytes")))
}

#[rustler::nif]
fn buf_byte_size(reference: Reference) -> NifResult<u64> {
    reference.storage_bytes().map_err(|_| rustler::Error::BadArg)
}

/// Runs a shader that is read and compiled, else `:needs_compile`.
#[rustler::nif]
fn raw_apply<'a>(
    env: Env<'a>,
    function: Function,
    buffers: Vec<Reference>,
    counts: Vec<Term<'a>>,
    op: Term<'a>,
    spv: Binary<'a>,
    validate: bool,
) -> NifResult<Term<'a>> {
    match engine_of(&buffers) {
        Some(engine) => Engine::without_waiting(|| {
            apply(env, Ok(engine), function, &buffers, &counts, op, &spv, (validate, Compile::Refused))
        }),
        None => Ok(atoms::needs_compile().encode(env)),
    }
}

/// As `raw_apply`, and it opens the device, reads and compiles the shader.
#[rustler::nif(schedule = "DirtyCpu")]
fn raw_apply_compile<'a>(
    env: Env<'a>,
    function: Function,
    buffers: Vec<Reference>,
    counts: Vec<Term<'a>>,
    op: Term<'a>,
    spv: Binary<'a>,
    validate: bool,
) -> NifResult<Term<'a>> {
    apply(
        env,
        engine_of(&buffers).map_or_else(engine, Ok),
        function,
        &buffers,
        &counts,
        op,
        &spv,
        (validate, Compile::Allowed),
    )
}

#[allow(clippy::too_many_arguments)]
fn apply<'a>(
    env: Env<'a>,
    engine: Outcome<Opened>,
    function: Function,
    buffers: &[Reference],
    counts: &[Term<'a>],
    op: Term<'a>,
    spv: &[u8],
    (validate, compile): (bool, Compile),
) -> NifResult<Term<'a>> {
    let counts = counts.iter().map(count).collect::<NifResult<Vec<_>>>()?;
    // An op code that is no 64-bit number is as unknown as any other.
    let op = count(&op)?.ok().and_then(|op| i64::try_from(op).ok()).unwrap_or(-1);
    let run = || {
        let path = path(spv)?;
        // SAFETY: the caller of `Nx.Vulkan.NativeV` vouches for the shaders that it names.
        let call = unsafe { Call::new(engine?, &FILES, &path, validate, compile) };
        let buffers = buffers.iter().map(|b| buffer(b, compile)).collect::<Outcome<Vec<_>>>()?;
        let counts = counts.into_iter().collect::<Outcome<Vec<_>>>()?;
        match (function, buffers.as_slice(), counts.as_slice()) {
            (Function::Binary, [out, a, b], &[n]) => nativev::binary(&call, out, a, b, n, op),
            (Function::Unary, [out, a], &[n]) => nativev::unary(&call, out, a, n, op),
            (Function::ReduceAxis, [out, a], &[outer, reduce, inner]) => {
                nativev::reduce_axis(&call, out, a, [outer, reduce, inner], op)
            }
            (Function::Transpose, [out, a], &[m, n]) => nativev::transpose_2d(&call, out, a, [m, n]),
            (Function::Matmul, [out, a, b], &[m, n, k]) => nativev::matmul(&call, out, a, b, [m, n, k]),
            _ => Err(Failure::BadInput),
        }
    };
    Ok(done(env, run()))
}

/// Reads and checks a shader file as its first use does.
#[rustler::nif(schedule = "DirtyIo")]
fn raw_check<'a>(env: Env<'a>, spv: Binary<'a>, validate: bool) -> Term<'a> {
    done(env, path(&spv).and_then(|path| FILES.load(&path, validate).map(drop)))
}

#[rustler::nif(schedule = "DirtyCpu")]
fn raw_exact_floats<'a>(env: Env<'a>, spirv: Binary<'a>) -> Term<'a> {
    let exact = || {
        let words = exact_floats(&spirv, "the module").map_err(|e| Failure::SpvRead(e.to_string()))?;
        let mut binary = binary_of(words.len() as u64)?;
        binary.copy_from_slice(&words);
        Ok((atoms::ok(), Binary::from_owned(binary, env)).encode(env))
    };
    answer(env, exact())
}

/// `{:ok, {q, p, grad, logp}}`: four parts of one binary, on the device of that index, or on the default one.
#[rustler::nif(schedule = "DirtyIo")]
#[allow(clippy::too_many_arguments)]
fn raw_chain<'a>(
    env: Env<'a>,
    kind: Chain,
    q: Binary<'a>,
    p: Binary<'a>,
    extras: Binary<'a>,
    push: Binary<'a>,
    k: Term<'a>,
    spv: Binary<'a>,
    validate: bool,
    device: Option<usize>,
) -> NifResult<Term<'a>> {
    let k = count(&k)?;
    let run = || {
        let engine = device::engine_of(device).map_err(|e| Failure::VulkanInit(e.to_string()))?;
        let path = path(&spv)?;
        // SAFETY: the caller of `Nx.Vulkan.NativeV` vouches for the shaders that it names.
        let call = unsafe { Call::new(engine, &FILES, &path, validate, Compile::Allowed) };
        let (real, batched) = match kind {
            Chain::F32 => (Real::F32, false),
            Chain::F64 => (Real::F64, false),
            Chain::BatchF32 => (Real::F32, true),
            Chain::BatchF64 => (Real::F64, true),
        };
        let request = Request { real, batched, q: &q, p: &p, extras: &extras, push: &push, k: k? };
        let chain = chain::start(&call, &request)?;
        let mut bytes = binary_of(chain.size_bytes())?;
        chain.download(engine, &mut bytes)?;
        let all = Binary::from_owned(bytes, env);
        let part = |at: usize| {
            let range = &chain.ranges()[at];
            let part = all.make_subbinary(range.start as usize, (range.end - range.start) as usize);
            part.map_err(|_| Failure::Download("a part of the result is out of its range".into()))
        };
        Ok((atoms::ok(), (part(0)?, part(1)?, part(2)?, part(3)?)).encode(env))
    };
    Ok(answer(env, run()))
}
