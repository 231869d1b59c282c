//! Launches of sorts over contiguous rows: short rows in shared memory, long ones by radix passes from the lowest digit
//! to the highest. Both keep the order of equal elements.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Arguments, Compile, Kernel, KernelSpec, MAX_POSITION, Place, launch};
use crate::codegen::sort::{Payload, SortKey, SortSpec};
use crate::memory::Buffer;
use crate::shape::Type;
use crate::{DType, Engine, Error, Result, Tensor};

/// Tiles whose counts one invocation per digit adds up one after another.
const SPAN: u64 = 64;

/// `rows` contiguous rows of `elements`, sorted; results have `kept` elements per row.
#[derive(Debug, Clone, Copy)]
pub struct Sort<'a> {
    pub key: SortKey,
    pub input: &'a Tensor,
    /// Places of the elements, of 32 bits; otherwise they count from the row's first element.
    pub places: Option<&'a Tensor>,
    pub rows: u64,
    pub elements: u64,
    pub kept: u64,
    /// Where the elements go.
    pub values: Option<&'a Tensor>,
    /// Where their places go, of 32 bits.
    pub ranks: Option<&'a Tensor>,
}

/// Whether one dispatch can do it, for which `kept` may be any number.
pub fn fits_in_rows(elements: u64) -> bool {
    elements <= SortSpec::ROW
}

/// Rows that [`fits_in_rows`] refuses keep all their elements.
pub fn sort(engine: &Engine, what: &Sort<'_>, compile: Compile) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    if what.elements > MAX_POSITION {
        return Err(Error::TooLarge { size_bytes: what.elements * size, limit_bytes: MAX_POSITION * size });
    }
    let per_launch = (MAX_POSITION / what.elements.max(1)).max(1);
    // The second batch of rows needs kernels of the same specs as the first.
    let mut first = 0;
    while first < what.rows {
        let batch = Batch { engine, what, first, rows: per_launch.min(what.rows - first), compile };
        if fits_in_rows(what.elements) {
            batch.in_rows()?
        } else {
            batch.by_digits()?
        }
        first += batch.rows;
    }
    Ok(())
}

/// A buffer and the address of its part.
type Part = (Arc<Buffer>, u64);

struct Batch<'a> {
    engine: &'a Engine,
    what: &'a Sort<'a>,
    first: u64,
    rows: u64,
    compile: Compile,
}

impl Batch<'_> {
    fn kernel(&self, spec: SortSpec) -> Result<Arc<Kernel>> {
        self.engine.kernel(&KernelSpec::Sort(spec), self.compile)
    }

    /// The part of a tensor with rows of `per_row` elements that this batch takes.
    fn part(&self, tensor: &Tensor, per_row: u64) -> Part {
        let offset_bytes = self.first * per_row * tensor.view.dtype.size_bytes();
        (Arc::clone(&tensor.buffer), tensor.address() + offset_bytes)
    }

    fn input(&self) -> Part {
        self.part(self.what.input, self.what.elements)
    }

    fn places(&self) -> Option<Part> {
        self.what.places.map(|t| self.part(t, self.what.elements))
    }

    /// Operands that a kernel does not use are given some buffer that it does.
    fn run(
        &self,
        kernel: &Kernel,
        reads: &[Option<&Part>],
        writes: &[Option<&Part>],
        extra: &[u64],
        groups: u64,
    ) -> Result<()> {
        let Some(output) = writes.iter().copied().flatten().next() else { return Ok(()) };
        let input = reads.iter().copied().flatten().next().unwrap_or(output);
        let reads_or = reads.iter().map(|part| part.unwrap_or(input));
        let places: SmallVec<[Place<'_>; 6]> = reads_or
            .chain(writes.iter().map(|part| part.unwrap_or(output)))
            .map(|(buffer, address)| Place { buffer, address: *address, strides: &[], element_bytes: 0 })
            .collect();
        let extra: SmallVec<[u32; 6]> = extra.iter().map(|&x| x as u32).collect();
        let arguments = Arguments { count: 0, sizes: &[], places: &places, extra: &extra };
        launch(self.engine, kernel, &arguments, reads.len(), groups)
    }

    fn in_rows(&self) -> Result<()> {
        let what = self.what;
        let payload =
            Payload { places: what.places.is_some(), values: what.values.is_some(), ranks: what.ranks.is_some() };
        let kernel = self.kernel(SortSpec::Rows { key: what.key, payload })?;
        let padded = what.elements.next_power_of_two();
        let (values, ranks) =
            (what.values.map(|t| self.part(t, what.kept)), what.ranks.map(|t| self.part(t, what.kept)));
        let (input, places) = (self.input(), self.places());
        let (reads, writes) = ([Some(&input), places.as_ref()], [values.as_ref(), ranks.as_ref()]);
        let extra = [self.rows, what.elements, padded, what.kept];
        self.run(&kernel, &reads, &writes, &extra, self.rows.div_ceil(SortSpec::ROW / padded))
    }

    fn by_digits(&self) -> Result<()> {
        let what = self.what;
        let (rows, elements) = (self.rows, what.elements);
        let dtype = what.input.view.dtype;
        let passes = dtype.size_bytes() as usize;
        let with_ranks = what.ranks.is_some();
        let payload = |pass: usize| Payload {
            places: pass > 0 || what.places.is_some(),
            values: pass + 1 < passes || what.values.is_some(),
            ranks: with_ranks,
        };
        // All kernels must exist before anything is recorded.
        let count = self.kernel(SortSpec::Count { key: what.key })?;
        let offsets = self.kernel(SortSpec::Offsets { last: false })?;
        let bases = self.kernel(SortSpec::Offsets { last: true })?;
        let scatters: Vec<Arc<Kernel>> = (0..passes)
            .map(|pass| self.kernel(SortSpec::Scatter { key: what.key, payload: payload(pass) }))
            .collect::<Result<_>>()?;
        let tiles = elements.div_ceil(SortSpec::TILE);
        let spans = tiles.div_ceil(SPAN);
        let scratch = |dtype: DType, elements: u64| -> Result<Part> {
            let buffer = self.engine.alloc(Type::new(dtype, &[elements]).size_bytes())?;
            let address = buffer.address();
            Ok((buffer, address))
        };
        let tile_counts = scratch(DType::U32, rows * tiles * SortSpec::DIGITS)?;
        let span_counts = scratch(DType::U32, rows * spans * SortSpec::DIGITS)?;
        let pairs = (passes - 1).min(2);
        let elements_between: Vec<Part> = (0..pairs).map(|_| scratch(dtype, rows * elements)).collect::<Result<_>>()?;
        let ranks_between: Vec<Part> = (0..if with_ranks { pairs } else { 0 })
            .map(|_| scratch(DType::U32, rows * elements))
            .collect::<Result<_>>()?;
        let (input, places) = (self.input(), self.places());
        let (values, ranks) = (what.values.map(|t| self.part(t, elements)), what.ranks.map(|t| self.part(t, elements)));
        for (pass, scatter) in scatters.iter().enumerate() {
            let shift = pass as u64 * u64::from(SortSpec::DIGIT_BITS);
            let (from, from_places) = match pass.checked_sub(1) {
                None => (Some(&input), places.as_ref()),
                Some(before) => (elements_between.get(before % 2), ranks_between.get(before % 2)),
            };
            let (to, to_ranks) = if pass + 1 == passes {
                (values.as_ref(), ranks.as_ref())
            } else {
                (elements_between.get(pass % 2), ranks_between.get(pass % 2))
            };
            let groups = rows * tiles;
            self.run(&count, &[from], &[Some(&tile_counts)], &[rows, elements, tiles, shift], groups)?;
            let levels = [Some(&tile_counts), Some(&span_counts)];
            self.run(&offsets, &[], &levels, &[rows, tiles, SPAN, spans], rows * spans)?;
            self.run(&bases, &[], &levels[1..], &[rows, spans, spans, 1], rows)?;
            let reads = [from, from_places, levels[0], levels[1]];
            self.run(scatter, &reads, &[to, to_ranks], &[rows, elements, tiles, shift, SPAN, spans], groups)?;
        }
        Ok(())
    }
}
