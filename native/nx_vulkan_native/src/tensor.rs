//! The resource that Elixir holds, and the NIFs on tensors.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nx_vulkan_engine::deferred::{self, Deferred, Lazy};
use nx_vulkan_engine::eager::{self, Compile, Results};
use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::{Engine, Error, Result, Tensor, Type, View};
use rustler::{Binary, Encoder, Env, ListIterator, NewBinary, OwnedBinary, ResourceArc, Term, TermType};
use smallvec::{SmallVec, smallvec};

use crate::engines::{self, Opened};
use crate::{device, error, executable, memory, term};

mod atoms {
    rustler::atoms! {
        ok, pressure, full, already_deallocated, needs_compile, nil,
        tensor_from_binary, tensor_from_file, to_binary, to_pointer, from_pointer, backend_transfer,
        type_ = "type", shape, strides, offset, storage_bytes,
    }
}

/// What an Elixir reference points to: a tensor, which may be pending, until it is released. The BEAM drops it when it
/// collects the last reference, and the memory goes back to the pool with the last tensor that shares it.
pub struct TensorRef {
    /// The engine whose memory it is in, or will be.
    pub engine: Opened,
    slot: Mutex<Option<Lazy>>,
    /// Under which the reference shares its memory; no other reference has it.
    holder: u64,
}

#[rustler::resource_impl]
impl rustler::Resource for TensorRef {}

impl TensorRef {
    pub fn new(engine: Opened, tensor: impl Into<Lazy>) -> ResourceArc<TensorRef> {
        static HOLDERS: AtomicU64 = AtomicU64::new(0);
        let holder = HOLDERS.fetch_add(1, Ordering::Relaxed);
        ResourceArc::new(TensorRef { engine, slot: Mutex::new(Some(tensor.into())), holder })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Lazy>> {
        // A panic can't leave an `Option` half written.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lazy(&self) -> Result<Lazy> {
        self.slot().clone().ok_or(Error::Released)
    }

    /// The tensor, which shares the storage. One that is pending is computed, or `NeedsCompile` where `compile` refuses
    /// that.
    pub fn tensor(&self, compile: Compile) -> Result<Tensor> {
        let lazy = match self.lazy()?.into_ready() {
            Ok(tensor) => return Ok(tensor),
            Err(lazy) => lazy,
        };
        if compile == Compile::Refused {
            return Err(Error::NeedsCompile);
        }
        let tensor = lazy.tensor(self.engine, executable::compile_deferred)?;
        self.replace(tensor.clone())?;
        Ok(tensor)
    }

    /// The tensor, after which the reference is a released one.
    fn take(&self, compile: Compile) -> Result<Tensor> {
        self.tensor(compile)?;
        let lazy = self.slot().take().ok_or(Error::Released)?;
        lazy.into_ready().map_err(|_| Error::Released)
    }

    /// Puts back what was taken.
    fn give_back(&self, tensor: Tensor) {
        self.slot().get_or_insert_with(|| Lazy::from(tensor));
    }

    /// The size of the memory that it has, or will have.
    pub fn storage_bytes(&self) -> Result<u64> {
        let lazy = self.lazy()?;
        Ok(lazy.ready().map_or_else(|| lazy.ty().size_bytes(), |tensor| tensor.buffer().size_bytes()))
    }

    /// Puts another tensor in the place of the one that is there.
    fn replace(&self, tensor: Tensor) -> Result<()> {
        let mut slot = self.slot();
        let held = slot.as_mut().ok_or(Error::Released)?;
        let before = std::mem::replace(held, Lazy::from(tensor));
        // What a pending tensor holds is dropped without the lock.
        drop(slot);
        drop(before);
        Ok(())
    }
}

fn resource_of(term: Term) -> Result<ResourceArc<TensorRef>> {
    let reference: ResourceArc<TensorRef> = term.decode().map_err(|_| Error::InvalidArgument {
        what: "tensor",
        expected: "a reference to a tensor".to_string(),
        got: format!("{term:?}"),
    })?;
    engines::met(reference.engine);
    Ok(reference)
}

/// The reference of an operand, whose memory has to be of this engine.
fn operand_of(term: Term, engine: Opened) -> Result<ResourceArc<TensorRef>> {
    let reference = resource_of(term)?;
    match std::ptr::eq(reference.engine, engine) {
        true => Ok(reference),
        false => Err(elsewhere(engine, reference.engine)),
    }
}

/// Elixir knows it by `devices`, and moves what may be moved.
fn elsewhere(engine: Opened, other: Opened) -> Error {
    let name = |engine: Opened| format!("{} (device {})", engine.info().name, engine.info().index);
    Error::InvalidArgument {
        what: "devices",
        expected: format!("all tensors on {}", name(engine)),
        got: format!("one on {}", name(other)),
    }
}

/// Bytes of results since somebody was asked to collect garbage.
static SINCE_LAST: AtomicU64 = AtomicU64::new(0);

/// Whether there are `enough` results to ask for a collection.
fn asks(enough_bytes: u64) -> bool {
    let asks = SINCE_LAST.load(Ordering::Relaxed) >= enough_bytes;
    if asks {
        SINCE_LAST.store(0, Ordering::Relaxed);
    }
    asks
}

/// Whether the caller should collect garbage: a large tensor found no unused memory (the VM does not see how large a
/// reference's tensor is), or memory is short, and much was allocated since somebody was asked last.
fn pressure(engine: &Engine, size_bytes: u64) -> bool {
    SINCE_LAST.fetch_add(size_bytes, Ordering::Relaxed);
    engine.take_growth() || (engine.pressure() && asks(engine.garbage_step_bytes()))
}

/// Whether the caller of a compiled function should collect garbage before it runs, and the results of calls before
/// with it: those of a step of training that the next one has replaced take memory until somebody does.
pub fn collects_before(engine: &Engine) -> bool {
    asks(engine.garbage_bytes())
}

/// Numbers of the markers whose destructors have not run.
static MARKERS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

struct Marker {
    number: u64,
}

impl Drop for Marker {
    fn drop(&mut self) {
        MARKERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

#[rustler::resource_impl]
impl rustler::Resource for Marker {}

/// A number and a reference whose destructor forgets it.
#[rustler::nif]
fn marker(env: Env) -> Term {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    MARKERS.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    (number, ResourceArc::new(Marker { number })).encode(env)
}

/// Whether the destructor of this marker has still to run.
#[rustler::nif(name = "marker_alive?")]
fn marker_alive(number: u64) -> bool {
    MARKERS.lock().unwrap_or_else(PoisonError::into_inner).contains(&number)
}

pub fn encode_tensor<'a>(env: Env<'a>, engine: Opened, tensor: Tensor) -> Term<'a> {
    let size_bytes = tensor.view().size_bytes();
    encode_ok(env, engine, TensorRef::new(engine, tensor), size_bytes)
}

fn encode_tensors<'a>(env: Env<'a>, engine: Opened, tensors: Results) -> Term<'a> {
    let size_bytes = tensors.iter().map(|t| t.view().size_bytes()).sum();
    encode_ok(env, engine, references_to(engine, tensors), size_bytes)
}

/// References to tensors of an engine.
fn references_to<T: Into<Lazy>>(engine: Opened, tensors: impl IntoIterator<Item = T>) -> Vec<ResourceArc<TensorRef>> {
    tensors.into_iter().map(|tensor| TensorRef::new(engine, tensor)).collect()
}

fn encode_ok<'a>(env: Env<'a>, engine: &Engine, references: impl Encoder, size_bytes: u64) -> Term<'a> {
    match pressure(engine, size_bytes) {
        false => (atoms::ok(), references).encode(env),
        true => (atoms::ok(), references, atoms::pressure()).encode(env),
    }
}

/// Uploads a tensor in Nx's binary layout to the device of that index, or to the default one; `:needs_compile` while it
/// is not open or far behind. For small binaries.
#[rustler::nif]
fn tensor_from_binary<'a>(
    env: Env<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
    binary: Binary<'a>,
    device: Option<usize>,
) -> Term<'a> {
    device::when_ready(env, engines::of(device), |engine| upload(env, Ok(engine), dtype, shape, &binary))
}

/// As `tensor_from_binary`, for binaries of any size, and it opens the device.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_from_binary_dirty<'a>(
    env: Env<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
    binary: Binary<'a>,
    device: Option<usize>,
) -> Term<'a> {
    upload(env, device::engine_of(device), dtype, shape, &binary)
}

fn upload<'a>(env: Env<'a>, engine: Result<Opened>, dtype: Term<'a>, shape: Term<'a>, binary: &[u8]) -> Term<'a> {
    let run = || {
        let (engine, ty) = (engine?, term::ty(dtype, shape)?);
        Ok((engine, memory::charged_again(env, engine, || Tensor::from_nx_bytes(engine, &ty, binary))?))
    };
    match run() {
        Ok((engine, tensor)) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, atoms::tensor_from_binary().to_term(env), &e),
    }
}

/// Uploads part of a file, from a byte on, as `tensor_from_binary_dirty` does a binary.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_from_file<'a>(
    env: Env<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
    path: Binary<'a>,
    offset: u64,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let ty = term::ty(dtype, shape)?;
        let no_path = || Error::Io { path: format!("{:?}", path.as_slice()), cause: "the path is no UTF-8".into() };
        let path = term::path(&path).ok_or_else(no_path)?;
        let engine = device::engine_of(device)?;
        let read = || Tensor::from_file(engine, &ty, &path, offset);
        Ok((engine, memory::charged_again(env, engine, read)?))
    };
    match run() {
        Ok((engine, tensor)) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, atoms::tensor_from_file().to_term(env), &e),
    }
}

/// Waits for a tensor and reads it in Nx's binary layout, all of it or the first `limit` elements.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_to_binary<'a>(env: Env<'a>, reference: Term<'a>, limit: Option<u64>) -> Term<'a> {
    let read = || {
        let resource = resource_of(reference)?;
        let tensor = memory::charged(env, resource.engine, || resource.tensor(Compile::Allowed))?;
        let mut binary = host_binary(tensor.nx_size_bytes(limit))?;
        tensor.read_nx_bytes(resource.engine, limit, binary.as_mut_slice())?;
        Ok(Binary::from_owned(binary, env))
    };
    match read() {
        Ok(binary) => (atoms::ok(), binary).encode(env),
        Err(e) => error::encode(env, atoms::to_binary().to_term(env), &e),
    }
}

/// Memory of the host with undefined contents.
pub fn host_binary(size_bytes: u64) -> Result<OwnedBinary> {
    // Growing an empty one tells when memory is short; asking for a large one panics.
    let mut binary = OwnedBinary::new(0);
    match usize::try_from(size_bytes).is_ok_and(|size| binary.realloc(size)) {
        true => Ok(binary),
        false => Err(Error::InvalidArgument {
            what: "tensor",
            expected: "elements that the host has memory for".to_string(),
            got: format!("{size_bytes} bytes"),
        }),
    }
}

/// The binary of a small tensor that is there or will be soon, without a way to another scheduler and back;
/// `:needs_compile` for others.
#[rustler::nif]
fn tensor_to_binary_soon<'a>(env: Env<'a>, reference: Term<'a>, limit: Option<u64>) -> Term<'a> {
    let read = || {
        let resource = resource_of(reference)?;
        let tensor = resource.tensor(Compile::Refused)?;
        let size_bytes = tensor.nx_size_bytes(limit);
        if size_bytes > Tensor::SOON_BYTES {
            return Ok(None);
        }
        let mut binary = NewBinary::new(env, size_bytes as usize);
        let has_read = tensor.read_nx_bytes_soon(resource.engine, limit, binary.as_mut_slice())?;
        Ok(has_read.then(|| Binary::from(binary)))
    };
    match read() {
        Ok(Some(binary)) => (atoms::ok(), binary).encode(env),
        Ok(None) => atoms::needs_compile().encode(env),
        Err(e) => error::encode(env, atoms::to_binary().to_term(env), &e),
    }
}

/// The device address of a tensor, which is made contiguous if need be, and its size in bytes. Waits for what writes
/// it.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_share<'a>(env: Env<'a>, reference: Term<'a>) -> Term<'a> {
    let share = || {
        let resource = resource_of(reference)?;
        let share = || resource.tensor(Compile::Allowed)?.share(resource.engine, resource.holder);
        let tensor = memory::charged(env, resource.engine, share)?;
        let answer = (atoms::ok(), tensor.address(), tensor.view().size_bytes());
        resource.replace(tensor)?;
        Ok(answer)
    };
    match share() {
        Ok(answer) => answer.encode(env),
        Err(e) => error::encode(env, atoms::to_pointer().to_term(env), &e),
    }
}

/// A handle by which other processes of the system find a tensor's memory, and its size in bytes.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_share_ipc<'a>(env: Env<'a>, reference: Term<'a>) -> Term<'a> {
    let share = || {
        let resource = resource_of(reference)?;
        let share = || resource.tensor(Compile::Allowed)?.share_ipc(resource.engine, resource.holder);
        let (tensor, handle) = memory::charged(env, resource.engine, share)?;
        let size_bytes = tensor.view().size_bytes();
        resource.replace(tensor)?;
        Ok((handle, size_bytes))
    };
    match share() {
        Ok((handle, size_bytes)) => (atoms::ok(), encode_binary(env, &handle), size_bytes).encode(env),
        Err(e) => error::encode(env, atoms::to_pointer().to_term(env), &e),
    }
}

fn encode_binary<'a>(env: Env<'a>, bytes: &[u8]) -> Binary<'a> {
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    Binary::from(binary)
}

/// A tensor in the memory behind a handle that `tensor_share_ipc` gave, in this or in another process.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_from_ipc<'a>(
    env: Env<'a>,
    handle: Binary<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let engine = device::engine_of(device)?;
        // SAFETY: `Nx.from_pointer` asks for a handle of `Nx.to_pointer`, for which its caller answers.
        Ok((engine, unsafe { Tensor::from_ipc(engine, &handle, &term::ty(dtype, shape)?)? }))
    };
    match run() {
        Ok((engine, tensor)) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, atoms::from_pointer().to_term(env), &e),
    }
}

/// A tensor of what lies at an address that `tensor_share` gave, or within that tensor.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_from_address<'a>(
    env: Env<'a>,
    address: u64,
    dtype: Term<'a>,
    shape: Term<'a>,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let engine = device::engine_of(device)?;
        Ok((engine, Tensor::from_address(engine, address, &term::ty(dtype, shape)?)?))
    };
    match run() {
        Ok((engine, tensor)) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, atoms::from_pointer().to_term(env), &e),
    }
}

/// The tensor on the device of that index, or on the default one, which this opens if need be. Waits for what writes
/// it, unless it is there already.
#[rustler::nif(schedule = "DirtyIo")]
fn tensor_transfer<'a>(env: Env<'a>, reference: Term<'a>, device: Option<usize>) -> Term<'a> {
    let run = || {
        let (resource, engine) = (resource_of(reference)?, device::engine_of(device)?);
        let tensor = memory::charged(env, resource.engine, || resource.tensor(Compile::Allowed))?;
        match std::ptr::eq(resource.engine, engine) {
            true => Ok((engine, tensor)),
            false => Ok((engine, memory::charged(env, engine, || tensor.transferred(resource.engine, engine))?)),
        }
    };
    match run() {
        Ok((engine, tensor)) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, atoms::backend_transfer().to_term(env), &e),
    }
}

/// The index of the device that a tensor is on, and whether it is the default one.
#[rustler::nif]
fn tensor_device<'a>(env: Env<'a>, reference: Term<'a>) -> Term<'a> {
    match resource_of(reference) {
        Ok(resource) => {
            let info = resource.engine.info();
            (atoms::ok(), info.index, device::is_default(info)).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Gives the reference's hold on the memory up now.
#[rustler::nif]
fn tensor_release<'a>(env: Env<'a>, reference: ResourceArc<TensorRef>) -> Term<'a> {
    let tensor = reference.slot().take();
    match tensor {
        Some(_) => {
            reference.engine.unshare(reference.holder);
            atoms::ok().encode(env)
        }
        None => atoms::already_deallocated().encode(env),
    }
}

/// How the tensor lies in memory. One that is pending lies in none, and will be contiguous for all that is known.
#[rustler::nif]
fn tensor_info<'a>(env: Env<'a>, reference: Term<'a>) -> Term<'a> {
    let layout = || {
        let lazy = resource_of(reference)?.lazy()?;
        Ok(match lazy.ready() {
            Some(tensor) => (tensor.view().clone(), tensor.buffer().size_bytes()),
            None => (View::contiguous(lazy.ty().dtype, &lazy.ty().shape), 0),
        })
    };
    match layout() {
        Ok((view, storage_bytes)) => {
            let info = Term::map_from_pairs(
                env,
                &[
                    (atoms::type_(), view.dtype.name().encode(env)),
                    (atoms::shape(), view.shape.as_slice().encode(env)),
                    (atoms::strides(), view.strides.as_slice().encode(env)),
                    (atoms::offset(), view.offset.encode(env)),
                    (atoms::storage_bytes(), storage_bytes.encode(env)),
                ],
            );
            (atoms::ok(), info.unwrap_or_else(|_| Term::map_new(env))).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Runs one op: records it and returns. `:needs_compile` where its kernel is new, and where no device is open or it is
/// far behind.
#[rustler::nif]
fn program_run<'a>(
    env: Env<'a>,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
) -> Term<'a> {
    device::when_ready(env, engine_of(operands), |engine| {
        answer(env, op, run(engine, op, attrs, operands, dtype, shape, Compile::Refused), engine)
    })
}

/// As `program_run`, and it opens the device and compiles the kernel.
#[rustler::nif(schedule = "DirtyCpu")]
fn program_run_compile<'a>(
    env: Env<'a>,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
) -> Term<'a> {
    match engine_or_open(operands) {
        Ok(engine) => memory::charged_again(env, engine, || {
            answer(env, op, run(engine, op, attrs, operands, dtype, shape, Compile::Allowed), engine)
        }),
        Err(e) => error::encode(env, op, &e),
    }
}

fn run<'a>(
    engine: Opened,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
    compile: Compile,
) -> Result<Tensor> {
    let op = term::op(op, attrs)?;
    let out: Type = term::ty(dtype, shape)?;
    eager::run(engine, &op, &tensors_of(operands, engine, compile)?, &out, compile)
}

fn references(terms: Term) -> Result<ListIterator> {
    terms.decode().map_err(|_| Error::InvalidArgument {
        what: "operands",
        expected: "a list of references".to_string(),
        got: format!("{terms:?}"),
    })
}

/// Where an op without operands runs, which has the index of a device in their place, or nil for the default one.
fn named_device(operands: Term) -> Option<Option<usize>> {
    match operands.get_type() {
        TermType::List => operands.is_empty_list().then_some(None),
        _ => operands.decode().ok(),
    }
}

/// The engine of the first operand, or of the device that stands in their place, if it is open.
fn engine_of(operands: Term) -> Option<Opened> {
    if let Some(device) = named_device(operands) {
        return engines::of(device);
    }
    let first = operands.decode().ok().and_then(|mut list: ListIterator| list.next());
    // A wrong operand is told where it is read.
    first.and_then(|term| resource_of(term).ok()).map_or_else(engines::default, |reference| Some(reference.engine))
}

fn engine_or_open(operands: Term) -> Result<Opened> {
    engine_of(operands).map_or_else(|| device::engine_of(named_device(operands).flatten()), Ok)
}

/// The tensors of a list of references, all of them of this engine; none of a device in its place.
pub fn tensors_of(terms: Term, engine: Opened, compile: Compile) -> Result<SmallVec<[Tensor; 4]>> {
    if named_device(terms).is_some() {
        return Ok(SmallVec::new());
    }
    let references = references(terms)?;
    let mut tensors = SmallVec::with_capacity(terms.list_length().unwrap_or(0));
    for term in references {
        tensors.push(operand_of(term, engine)?.tensor(compile)?);
    }
    Ok(tensors)
}

/// The operands of a run, of which some were taken from their references, so that nobody else can get at them
/// meanwhile.
pub struct Taken {
    pub tensors: SmallVec<[Tensor; 4]>,
    /// References, and the places of their tensors.
    taken: Vec<(ResourceArc<TensorRef>, usize)>,
}

impl Taken {
    pub fn of(terms: Term, engine: Opened, donated: &[bool], compile: Compile) -> Result<Taken> {
        let mut it = Taken { tensors: SmallVec::new(), taken: Vec::new() };
        let mut donated = donated.iter().copied().chain(std::iter::repeat(false));
        for term in references(terms)? {
            let pushed = operand_of(term, engine)
                .and_then(|reference| it.push(reference, donated.next().unwrap_or(false), compile));
            if let Err(e) = pushed {
                it.give_back();
                return Err(e);
            }
        }
        Ok(it)
    }

    fn push(&mut self, reference: ResourceArc<TensorRef>, is_donated: bool, compile: Compile) -> Result<()> {
        // A reference may be several arguments.
        let before = self.taken.iter().find(|(taken, _)| taken.holder == reference.holder).map(|(_, place)| *place);
        let tensor = match before {
            Some(place) => self.tensors[place].clone(),
            None if is_donated => reference.take(compile)?,
            None => reference.tensor(compile)?,
        };
        if is_donated && before.is_none() {
            self.taken.push((reference, self.tensors.len()));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Leaves all references as they were.
    pub fn give_back(self) {
        for (reference, place) in self.taken {
            reference.give_back(self.tensors[place].clone());
        }
    }

    /// Leaves those that were taken as released ones.
    pub fn release(self) {
        self.taken.iter().for_each(|(reference, _)| reference.engine.unshare(reference.holder));
    }
}

/// Leaves one op for when a result is read. `:full` beside the reference asks for that soon. `:needs_compile` while no
/// device is open.
#[rustler::nif]
fn program_defer<'a>(
    env: Env<'a>,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    dtype: Term<'a>,
    shape: Term<'a>,
) -> Term<'a> {
    let Some(engine) = engine_of(operands) else { return atoms::needs_compile().encode(env) };
    let defer = || defer(engine, term::op(op, attrs)?, operands, smallvec![term::ty(dtype, shape)?]);
    match defer() {
        Ok(Deferred { mut results, full, many }) => match results.pop().map(|result| TensorRef::new(engine, result)) {
            Some(reference) => answer_deferred(env, engine, reference, full, many),
            None => error::encode(env, op, &Error::Released),
        },
        Err(e) => error::encode(env, op, &e),
    }
}

/// As `program_defer`, for ops of several results, whose types are a list of `{type, shape}`.
#[rustler::nif]
fn program_defer_all<'a>(env: Env<'a>, op: Term<'a>, attrs: Term<'a>, operands: Term<'a>, types: Term<'a>) -> Term<'a> {
    let Some(engine) = engine_of(operands) else { return atoms::needs_compile().encode(env) };
    let defer = || defer(engine, term::op(op, attrs)?, operands, types_of(types)?);
    match defer() {
        Ok(Deferred { results, full, many }) => {
            answer_deferred(env, engine, references_to(engine, results), full, many)
        }
        Err(e) => error::encode(env, op, &e),
    }
}

fn defer(engine: Opened, op: Op, operands: Term, outs: SmallVec<[Type; 1]>) -> Result<Deferred> {
    let operands = match named_device(operands) {
        Some(_) => SmallVec::new(),
        None => references(operands)?.map(|term| operand_of(term, engine)?.lazy()).collect::<Result<_>>()?,
    };
    Ok(deferred::defer(engine, op, operands, outs))
}

fn answer_deferred<'a>(env: Env<'a>, engine: &Engine, references: impl Encoder, full: bool, many: bool) -> Term<'a> {
    match (full, many) {
        (true, _) => (atoms::ok(), references, atoms::full()).encode(env),
        (false, true) => (atoms::ok(), references, atoms::pressure()).encode(env),
        (false, false) => encode_ok(env, engine, references, 0),
    }
}

/// Computes a tensor that is pending, with all that hangs together with it.
#[rustler::nif(schedule = "DirtyCpu")]
fn tensor_compute<'a>(env: Env<'a>, reference: Term<'a>) -> Term<'a> {
    let compute = || {
        let resource = resource_of(reference)?;
        memory::charged(env, resource.engine, || resource.tensor(Compile::Allowed))
    };
    match compute() {
        Ok(_) => (atoms::ok(), reference).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// As `program_run`, for ops of several results, whose types are a list of `{type, shape}`.
#[rustler::nif]
fn program_run_all<'a>(env: Env<'a>, op: Term<'a>, attrs: Term<'a>, operands: Term<'a>, types: Term<'a>) -> Term<'a> {
    device::when_ready(env, engine_of(operands), |engine| {
        answer_all(env, op, run_all(engine, op, attrs, operands, types, Compile::Refused), engine)
    })
}

/// As `program_run_all`, and it opens the device and compiles the kernels.
#[rustler::nif(schedule = "DirtyCpu")]
fn program_run_all_compile<'a>(
    env: Env<'a>,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    types: Term<'a>,
) -> Term<'a> {
    match engine_or_open(operands) {
        Ok(engine) => memory::charged_again(env, engine, || {
            answer_all(env, op, run_all(engine, op, attrs, operands, types, Compile::Allowed), engine)
        }),
        Err(e) => error::encode(env, op, &e),
    }
}

fn run_all<'a>(
    engine: Opened,
    op: Term<'a>,
    attrs: Term<'a>,
    operands: Term<'a>,
    types: Term<'a>,
    compile: Compile,
) -> Result<Results> {
    let (op, outs) = (term::op(op, attrs)?, types_of(types)?);
    eager::run_all(engine, &op, &tensors_of(operands, engine, compile)?, &outs, compile)
}

fn types_of(types: Term) -> Result<SmallVec<[Type; 1]>> {
    let fail = || Error::InvalidArgument {
        what: "types",
        expected: "a list of {type, shape}".to_string(),
        got: format!("{types:?}"),
    };
    let list: ListIterator = types.decode().map_err(|_| fail())?;
    let types = list.map(|item| {
        let (dtype, shape) = item.decode::<(Term, Term)>().map_err(|_| fail())?;
        term::ty(dtype, shape)
    });
    types.collect()
}

/// The references of a NIF's results, or its error.
pub fn answer_all<'a>(env: Env<'a>, op: Term<'a>, result: Result<Results>, engine: Opened) -> Term<'a> {
    match result {
        Ok(tensors) => encode_tensors(env, engine, tensors),
        Err(e) => error::encode(env, op, &e),
    }
}

fn answer<'a>(env: Env<'a>, op: Term<'a>, result: Result<Tensor>, engine: Opened) -> Term<'a> {
    match result {
        Ok(tensor) => encode_tensor(env, engine, tensor),
        Err(e) => error::encode(env, op, &e),
    }
}
