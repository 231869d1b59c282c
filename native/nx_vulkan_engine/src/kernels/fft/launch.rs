//! Launches of Fourier transforms: one for lengths that fit in a workgroup's shared memory, several for longer ones,
//! and Bluestein's algorithm for lengths with large prime factors.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use smallvec::SmallVec;

use super::rows::Rows;
use super::tables::Content;
use super::{FftForm, FftKernel, FftSpec, plan, tables};
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::shape::{Dims, Strides};
use crate::tuning::DeviceModel;
use crate::{CType, DType, Engine, Error, Result, Tensor, Type};

/// Longest c64 transform that is computed in f64 where the device has it: memory, not arithmetic, sets its time anyway.
const MAX_EXTENDED: u64 = 64;

/// Bytes of scratch memory above which the batches of a transform run one part after the other.
const MAX_SCRATCH_BYTES: u64 = 1 << 30;

/// Bits of the template's `flags`.
const SWAP_LOAD: u32 = 1;
const SWAP_STORE: u32 = 2;
const SWAP_LAST: u32 = 4;
const LOAD_FACTOR: u32 = 8;
const STORE_FACTOR: u32 = 16;
const MIRROR: u32 = 32;
const DIRECT: u32 = 64;
const SCALE: u32 = 128;
const DIVIDE: u32 = 256;
const CLEAN: u32 = 512;
const LOAD_ROWS: u32 = 1024;
const STORE_ROWS: u32 = 2048;
const WHOLE_LOAD: u32 = 4096;
const WHOLE_STORE: u32 = 8192;
const PARTS: u32 = 16384;
const COLUMNS: u32 = 32768;
const TAKE_APART: u32 = 65536;
const PUT_TOGETHER: u32 = 131_072;
const LOAD_PAIRS: u32 = 262_144;
const STORE_PAIRS: u32 = 524_288;

/// What asks for a template of pairs.
pub(super) const OF_PAIRS: u32 = TAKE_APART | PUT_TOGETHER | LOAD_PAIRS | STORE_PAIRS;

/// What to compute along one axis.
#[derive(Debug, Clone, Copy)]
pub struct Fft {
    pub inverse: bool,
    /// The input is the first half of a spectrum whose second half mirrors it.
    pub mirror: bool,
    pub axis: usize,
    pub length: u64,
    /// Parts up to this size become zero.
    pub eps: f64,
}

/// One transform of a smooth length, or a direct one, of all rows.
struct Pass<'a> {
    /// Kernels reach far.
    far: bool,
    /// Rows are columns of a matrix.
    columns: bool,
    compute: CType,
    length: u64,
    /// Elements before the second half is mirrored or the rest is zero.
    full: u64,
    flags: u32,
    load_factor: Option<&'a Arc<Buffer>>,
    store_factor: Option<&'a Arc<Buffer>>,
    eps: f64,
    scale: f64,
}

impl Pass<'_> {
    const PLAIN: Pass<'static> = Pass {
        far: false,
        columns: false,
        compute: CType::C64,
        length: 0,
        full: 0,
        flags: 0,
        load_factor: None,
        store_factor: None,
        eps: 0.0,
        scale: 1.0,
    };
}

/// Transforms `input` along an axis into `out`, which has fewer elements on that axis where only the first are wanted.
pub fn fft(engine: &Engine, input: &Tensor, out: &Tensor, what: &Fft, compile: Compile) -> Result<()> {
    let wide = matches!(out.view.dtype, DType::F64 | DType::C128);
    let extended = what.length <= MAX_EXTENDED && engine.caps().shader_float64;
    let compute = if wide || extended { CType::C128 } else { CType::C64 };
    let element_bytes = compute.dtype().size_bytes();
    // What is computed depends on the op alone, not on where its operand lies.
    let columns = what.axis + 1 < input.view.shape.len();
    let longest_part = longest_part(engine.model(), compute, columns);
    let pairs = takes_pairs(input, what, longest_part);
    let length = if pairs { what.length / 2 } else { what.length };
    let smooth = plan::is_smooth(length);
    let direct = !smooth && length <= plan::MAX_DIRECT;
    let longest = if smooth || direct { length } else { tables::convolution(length) };
    let rows = input.view.elements() / input.view.shape[what.axis].max(1);
    let positions = (rows * longest).max(reach_of(&input.view)).max(reach_of(&out.view));
    let far = positions > engine.reach().near(element_bytes);
    let needs_scratch = longest > longest_part || !(smooth || direct);
    if far || (needs_scratch && rows * longest * element_bytes > MAX_SCRATCH_BYTES) {
        let shape = &input.view.shape;
        if let Some(axis) = (0..shape.len()).find(|&a| a != what.axis && shape[a] > 1) {
            for (start, length) in [(0, shape[axis] / 2), (shape[axis] / 2, shape[axis] - shape[axis] / 2)] {
                let (input, out) = (section(input, axis, start, length)?, section(out, axis, start, length)?);
                fft(engine, &input, &out, what, compile)?;
            }
            return Ok(());
        }
        let most = engine.reach().far();
        if positions > most {
            let limit_bytes = most * element_bytes;
            return Err(Error::TooLarge { size_bytes: positions * element_bytes, limit_bytes });
        }
    }
    let (from, to) = (Rows::new(input, what.axis), Rows::new(out, what.axis));
    let mut last = Pass { far, columns, compute, length: what.length, full: what.length, ..Pass::PLAIN };
    last.eps = what.eps;
    last.flags = CLEAN;
    let mirror = if what.mirror { MIRROR } else { 0 };
    let swap = |flag: u32| if what.inverse { flag } else { 0 };
    if what.inverse {
        // One over a power of two is exact, and in f64 for c64 the quotient need not be.
        let reciprocal = what.length.is_power_of_two() || (compute == CType::C128 && !wide);
        last.flags |= if reciprocal { SCALE } else { DIVIDE };
        last.scale = if reciprocal { 1.0 / what.length as f64 } else { what.length as f64 };
    }
    if pairs {
        return run_pairs(engine, from, to, last, what, compile);
    }
    if smooth || direct {
        last.flags |= swap(SWAP_LOAD) | swap(SWAP_LAST) | mirror | if direct { DIRECT } else { 0 };
        return run(engine, &from, &to, &last, compile);
    }
    let chirp = tables::table(engine, Content::Chirp(what.length), compute, compile)?;
    let spectrum = tables::table(engine, Content::Spectrum(what.length), compute, compile)?;
    let between = Rows::scratch(engine, compute, rows, longest, columns)?;
    let first = Pass {
        far,
        columns,
        compute,
        length: longest,
        full: what.length,
        flags: swap(SWAP_LOAD) | mirror | LOAD_FACTOR | STORE_FACTOR,
        load_factor: Some(&chirp),
        store_factor: Some(&spectrum),
        ..Pass::PLAIN
    };
    run(engine, &from, &between, &first, compile)?;
    last.length = longest;
    last.full = longest;
    last.store_factor = Some(&chirp);
    last.flags |= SWAP_LOAD | SWAP_STORE | STORE_FACTOR | swap(SWAP_LAST);
    run(engine, &between, &to, &last, compile)
}

/// Whether real rows, or those of a mirrored spectrum, are transformed as half as many pairs: in one launch.
fn takes_pairs(input: &Tensor, what: &Fft, longest_part: u64) -> bool {
    let half = what.length / 2;
    let real = !what.inverse && !input.view.dtype.is_complex();
    (real || what.mirror) && what.length.is_multiple_of(2) && plan::is_smooth(half) && half <= longest_part
}

/// Transforms real rows, or those of a mirrored spectrum, as rows of pairs. `pass` is what is done to the results.
fn run_pairs(engine: &Engine, from: Rows, to: Rows, pass: Pass<'_>, what: &Fft, compile: Compile) -> Result<()> {
    let length = what.length / 2;
    let roots = tables::table(engine, Content::Roots(what.length), pass.compute, compile)?;
    if what.mirror {
        let (to, flags) = to.paired().map_or((to, STORE_PAIRS), |pairs| (pairs, 0));
        let flags = pass.flags | flags | PUT_TOGETHER | SWAP_LAST;
        let pass = Pass { length, full: length + 1, flags, load_factor: Some(&roots), ..pass };
        return run(engine, &from, &to, &pass, compile);
    }
    let (from, full, flags) = match from.paired() {
        Some(pairs) => (pairs, length, 0),
        None => (from, what.length, LOAD_PAIRS),
    };
    let flags = pass.flags | flags | TAKE_APART;
    let pass = Pass { length, full, flags, store_factor: Some(&roots), ..pass };
    run(engine, &from, &to, &pass, compile)
}

/// A part of a tensor along one axis.
fn section(tensor: &Tensor, axis: usize, start: u64, length: u64) -> Result<Tensor> {
    let rank = tensor.view.shape.len();
    let mut starts: Dims = SmallVec::from_elem(0, rank);
    let mut lengths = tensor.view.shape.clone();
    starts[axis] = start;
    lengths[axis] = length;
    let ones: Dims = SmallVec::from_elem(1, rank);
    Ok(tensor.with_view(tensor.view.slice(&starts, &lengths, &ones)?))
}

/// The transform of `n` numbers in `buffer`, over n.
pub(super) fn spectrum(
    engine: &Engine,
    buffer: &Arc<Buffer>,
    n: u64,
    ctype: CType,
    compile: Compile,
) -> Result<Arc<Buffer>> {
    let result = Tensor::uninitialized(engine, &Type::new(ctype.dtype(), &[n]))?.buffer;
    let rows = |buffer: &Arc<Buffer>| Rows::contiguous(Arc::clone(buffer), ctype.dtype(), 1, n);
    let far = n > engine.reach().near(ctype.dtype().size_bytes());
    let pass = Pass { far, compute: ctype, length: n, full: n, flags: SCALE, scale: 1.0 / n as f64, ..Pass::PLAIN };
    run(engine, &rows(buffer), &rows(&result), &pass, compile)?;
    Ok(result)
}

/// Elements that one workgroup transforms.
pub(crate) fn capacity(model: &DeviceModel, compute: CType) -> u64 {
    u64::from(model.caps.max_shared_memory_bytes.min(model.transforms.shared_bytes)) / compute.dtype().size_bytes() / 16
        * 16
}

/// The longest transform of one launch: columns have neighbours beside them that fill memory sectors.
fn longest_part(model: &DeviceModel, compute: CType, columns: bool) -> u64 {
    capacity(model, compute) / if columns { model.transforms.neighbours } else { 1 }
}

/// Runs one pass in as many launches as its length takes.
fn run(engine: &Engine, from: &Rows, to: &Rows, pass: &Pass<'_>, compile: Compile) -> Result<()> {
    let capacity = capacity(engine.model(), pass.compute);
    let longest = longest_part(engine.model(), pass.compute, pass.columns);
    let parts = plan::parts(pass.length, longest).ok_or_else(|| Error::InvalidProgram {
        op: "fft".to_string(),
        reason: format!("no parts of {}", pass.length),
    })?;
    let columns = pass.columns && parts.len() > 1;
    let batches = from.count();
    let mut source = from.clone();
    let (mut before, mut rest) = (1, pass.length);
    for (i, &n) in parts.iter().enumerate() {
        rest /= n;
        let (is_first, is_last) = (i == 0, i + 1 == parts.len());
        let target = match is_last {
            true => to.clone(),
            false => Rows::scratch(engine, pass.compute, batches, pass.length, columns)?,
        };
        let roots = match rest {
            1 => None,
            _ => Some(tables::table(engine, Content::Twofold(n * rest), pass.compute, compile)?),
        };
        let of_load = MIRROR | SWAP_LOAD | LOAD_FACTOR | LOAD_PAIRS | PUT_TOGETHER;
        let mut flags = pass.flags & DIRECT | if columns { COLUMNS } else { 0 };
        if is_first {
            flags |= pass.flags & of_load;
        }
        if is_last {
            flags |= pass.flags & !of_load;
        }
        let step = Dispatch {
            pass,
            n,
            rows: batches * before * rest,
            batches,
            in_inner: rest,
            out_inner: before * rest,
            flags,
            valid: if is_first { source.length.min(pass.full) } else { n * rest },
            kept: target.length,
            full: if is_first { pass.full } else { n * rest },
            load_factor: if is_first { pass.load_factor } else { None },
            store_factor: if is_last { pass.store_factor } else { roots.as_ref() },
            rest,
        };
        step.launch(engine, &source, &target, capacity, compile)?;
        before *= n;
        if !is_last {
            // What was stored is rows of what is left.
            source = match columns {
                true => Rows::columns(target.buffer, target.dtype, batches, before, rest),
                false => Rows::contiguous(target.buffer, target.dtype, batches * before, rest),
            };
        }
    }
    Ok(())
}

/// One launch.
struct Dispatch<'a> {
    pass: &'a Pass<'a>,
    n: u64,
    rows: u64,
    batches: u64,
    in_inner: u64,
    out_inner: u64,
    flags: u32,
    valid: u64,
    kept: u64,
    full: u64,
    load_factor: Option<&'a Arc<Buffer>>,
    store_factor: Option<&'a Arc<Buffer>>,
    rest: u64,
}

impl Dispatch<'_> {
    /// The kernel for a length of these radices, of none where terms are summed.
    fn kernel(&self, model: &DeviceModel, spec: FftSpec, flags: u32, radices: &[u64], group: [u64; 2]) -> FftKernel {
        let [per_group, capacity] = group;
        let fixed = plan::fixed_radices(radices).filter(|_| is_fixed(model, self.n * self.rows));
        let Some(radices) = fixed else {
            let odd = radices.iter().any(|radix| !radix.is_power_of_two());
            return FftKernel { spec, capacity: capacity as u32, form: FftForm::Any { odd } };
        };
        let places = match flags & (LOAD_PAIRS | PUT_TOGETHER) {
            LOAD_PAIRS => 2 * self.n,
            PUT_TOGETHER => self.n + 1,
            _ => self.n * self.in_inner,
        };
        let stores_whole = flags & (TAKE_APART | STORE_PAIRS) != 0 || self.kept == self.n * self.out_inner;
        let flags = flags
            | if self.valid == places && self.full == self.valid { WHOLE_LOAD } else { 0 }
            | if stores_whole { WHOLE_STORE } else { 0 };
        let form = FftForm::Fixed { radices, rows: per_group as u32, flags };
        FftKernel { spec, capacity: (pitch(self.n) * per_group) as u32, form }
    }

    fn launch(&self, engine: &Engine, from: &Rows, to: &Rows, capacity: u64, compile: Compile) -> Result<()> {
        let compute = self.pass.compute;
        let load_rows = self.in_inner > 1 || from.rows_are_closer();
        let store_rows = self.out_inner > 1 || to.rows_are_closer();
        let spec = FftSpec {
            input: from.dtype,
            output: to.dtype,
            compute,
            in_rank: from.sizes.len() as u8,
            out_rank: to.sizes.len() as u8,
            load_factor: self.load_factor.is_some(),
            store_factor: self.store_factor.is_some(),
            divide: self.flags & DIVIDE != 0,
        };
        let direct = self.flags & DIRECT != 0;
        let per_group = rows_per_group(engine.model(), self.n, self.rows, capacity, load_rows || store_rows);
        let flags = self.flags
            | if load_rows { LOAD_ROWS } else { 0 }
            | if store_rows { STORE_ROWS } else { 0 }
            | if self.rest > 1 { PARTS } else { 0 };
        let radices = if direct { vec![] } else { plan::radices(self.n) };
        let spec = self.kernel(engine.model(), spec, flags, &radices, [per_group, capacity]);
        let kernel = engine.kernel_reaching(&spec, self.pass.far, compile)?;
        let content = if direct { Content::Roots(self.n) } else { Content::Passes(self.n) };
        let roots = tables::table(engine, content, compute, compile)?;
        let order_bytes = if direct { 0 } else { tables::pass_roots(self.n) * compute.dtype().size_bytes() };

        let sizes: Dims = from.sizes.iter().chain(&to.sizes).copied().chain([from.length]).collect();
        let padded = |own: &[i64], lead: usize, tail: usize, stride: i64| -> Strides {
            let zeros = |n: usize| std::iter::repeat_n(0, n);
            zeros(lead).chain(own.iter().copied()).chain(zeros(tail)).chain([stride]).collect()
        };
        let in_strides = padded(&from.strides, 0, to.sizes.len(), from.stride);
        let out_strides = padded(&to.strides, from.sizes.len(), 0, to.stride);
        let table = |buffer, offset: u64| Place { buffer, address: offset, strides: &[], element_bytes: 0 };
        let load_factor = self.load_factor.unwrap_or(&roots);
        let store_factor = self.store_factor.unwrap_or(&roots);
        let places = [
            Place {
                buffer: &from.buffer,
                address: from.address,
                strides: &in_strides,
                element_bytes: from.dtype.size_bytes(),
            },
            table(&roots, roots.address()),
            table(&roots, roots.address() + order_bytes),
            table(load_factor, load_factor.address()),
            table(store_factor, store_factor.address()),
            Place {
                buffer: &to.buffer,
                address: to.address,
                strides: &out_strides,
                element_bytes: to.dtype.size_bytes(),
            },
        ];
        let [eps, scale] = [self.pass.eps, self.pass.scale].map(|x| scalar_words(x, compute));
        let extra = [
            self.rows as u32,
            self.n as u32,
            per_group as u32,
            plan::radix_word(&radices),
            self.in_inner as u32,
            self.out_inner as u32,
            self.valid as u32,
            self.kept as u32,
            self.full as u32,
            flags,
            self.batches as u32,
            tables::twofold_shift(self.n * self.rest),
            eps[0],
            eps[1],
            scale[0],
            scale[1],
        ];
        let arguments = Arguments { count: self.rows as u32, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, places.len() - 1, self.rows.div_ceil(per_group))
    }
}

/// Whether a launch of so many elements has a kernel of its own length, which is another one to compile.
pub(crate) fn is_fixed(model: &DeviceModel, elements: u64) -> bool {
    elements >= model.transforms.least_fixed
}

/// Elements of shared memory from one row of `n` to the next: banks change places within 16.
fn pitch(n: u64) -> u64 {
    n.next_multiple_of(16)
}

/// Rows of `n` elements that a workgroup transforms, a power of two: as many as fit, but not so many that the device
/// idles. Neighbouring rows share memory sectors.
pub(crate) fn rows_per_group(model: &DeviceModel, n: u64, rows: u64, capacity: u64, neighbours: bool) -> u64 {
    let pitch = pitch(n);
    let most = (capacity / pitch).clamp(1, FftSpec::LOCAL_SIZE);
    let most = 1 << most.ilog2();
    let least = if neighbours { model.transforms.neighbours } else { 1 };
    let wanted = (rows / model.transforms.groups).max(model.transforms.least_group_elements / pitch).max(least);
    wanted.min(rows).next_power_of_two().min(most)
}

/// A real number of the compute type's parts in two words.
fn scalar_words(x: f64, compute: CType) -> [u32; 2] {
    match compute {
        CType::C128 => [x.to_bits() as u32, (x.to_bits() >> 32) as u32],
        _ => [(x as f32).to_bits(), 0],
    }
}
