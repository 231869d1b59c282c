//! Launches of sorts over contiguous rows: short rows in the registers or in the shared memory of a workgroup, long
//! ones by radix passes from the lowest digit to the highest. All keep the order of equal elements.

use std::sync::Arc;

use nx_vulkan_device::device::Caps;
use nx_vulkan_device::memory::Buffer;
use smallvec::SmallVec;

use crate::kernels::sort::{Payload, SortKey, SortSpec, Team};
use crate::kernels::{Arguments, Compile, Kernel, Place, launch, wide_subgroups};
use crate::shape::Type;
use crate::{DType, Engine, Error, Result, Tensor};

/// Tiles whose counts one invocation per digit adds up one after another.
const SPAN: u64 = 64;

/// Elements that one workgroup selects from, about.
const SELECT_CHUNK: u64 = 16_384;

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
    /// Bytes of the keys that matter, from the lowest on; others are equal in all elements whose order matters.
    pub key_bytes: u64,
    /// Where the elements go.
    pub values: Option<&'a Tensor>,
    /// Where their places go, of 32 bits.
    pub ranks: Option<&'a Tensor>,
}

/// Whether rows of so many elements can be sorted without all of their elements in the results.
pub fn keeps_fewer(elements: u64, kept: u64) -> bool {
    elements <= SortSpec::ROW || kept <= SortSpec::KEPT
}

/// A workgroup whose invocations tell each other by ballots which of them have a digit, where there are such.
fn ranked(caps: &Caps) -> Option<Team> {
    let subgroup = wide_subgroups(caps).filter(|_| caps.subgroup_ops.ballot && caps.subgroup_ops.arithmetic)?;
    Some(Team::largest(subgroup, caps.max_invocations.min(caps.max_workgroup_size[0])))
}

/// Results have all elements unless [`keeps_fewer`] allows less.
pub fn sort(engine: &Engine, what: &Sort<'_>, compile: Compile) -> Result<()> {
    sort_by(engine, what, ranked(engine.caps()), compile)
}

fn sort_by(engine: &Engine, what: &Sort<'_>, ranked: Option<Team>, compile: Compile) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    // Places take four bytes.
    let (limit, most) = (engine.reach().near(size.max(4)), engine.reach().far());
    if what.elements > most {
        return Err(Error::TooLarge { size_bytes: what.elements * size, limit_bytes: most * size });
    }
    let far = what.elements > limit;
    let per_launch = (limit / what.elements.max(1)).max(1);
    // The second batch of rows needs kernels of the same specs as the first.
    let mut first = 0;
    while first < what.rows {
        let batch = Batch { engine, what, first, rows: per_launch.min(what.rows - first), far, ranked, compile };
        if let Some(team) = batch.team_of_row() {
            batch.in_registers(team)?;
        } else if what.elements <= SortSpec::ROW {
            batch.in_rows(&batch.source(), what.elements)?;
        } else if what.kept < what.elements {
            batch.select()?;
        } else {
            batch.by_digits()?;
        }
        first += batch.rows;
    }
    Ok(())
}

/// A buffer and the address of its part.
type Located = (Arc<Buffer>, u64);

/// Rows and the places of their elements, if they don't count from the row's first.
struct Source {
    elements: Located,
    places: Option<Located>,
}

struct Batch<'a> {
    engine: &'a Engine,
    what: &'a Sort<'a>,
    first: u64,
    rows: u64,
    /// Kernels reach far.
    far: bool,
    /// Who sorts by ballots of whole subgroups.
    ranked: Option<Team>,
    compile: Compile,
}

impl Batch<'_> {
    fn kernel(&self, spec: SortSpec) -> Result<Arc<Kernel>> {
        self.engine.kernel_reaching(&spec, self.far, self.compile)
    }

    /// The part of a tensor with rows of `per_row` elements that this batch takes.
    fn part(&self, tensor: &Tensor, per_row: u64) -> Located {
        let offset_bytes = self.first * per_row * tensor.view.dtype.size_bytes();
        (Arc::clone(&tensor.buffer), tensor.address() + offset_bytes)
    }

    fn input(&self) -> Located {
        self.part(self.what.input, self.what.elements)
    }

    fn places(&self) -> Option<Located> {
        self.what.places.map(|t| self.part(t, self.what.elements))
    }

    /// Operands that a kernel does not use are given some buffer that it does.
    fn run(
        &self,
        kernel: &Kernel,
        reads: &[Option<&Located>],
        writes: &[Option<&Located>],
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
        // Kernels that only add up counts read no elements and have no key.
        let key = self.what.key.params();
        let key = if reads.is_empty() { &[] } else { &key[..] };
        let extra: SmallVec<[u32; 10]> = key.iter().copied().chain(extra.iter().map(|&x| x as u32)).collect();
        let arguments = Arguments { count: 0, sizes: &[], places: &places, extra: &extra };
        launch(self.engine, kernel, &arguments, reads.len(), groups)
    }

    fn payload(&self, places: bool) -> Payload {
        Payload { places, values: self.what.values.is_some(), ranks: self.what.ranks.is_some() }
    }

    fn bytes(&self) -> u8 {
        self.what.input.view.dtype.size_bytes() as u8
    }

    fn source(&self) -> Source {
        Source { elements: self.input(), places: self.places() }
    }

    /// Who sorts a row in registers, where that is possible and pays.
    fn team_of_row(&self) -> Option<Team> {
        let by_network = self.engine.model().network_row;
        let elements = Some(self.what.elements).filter(|&elements| elements > by_network)?;
        self.ranked?.holding(elements, self.bytes())
    }

    fn in_registers(&self, team: Team) -> Result<()> {
        let what = self.what;
        let (bytes, places) = (self.bytes(), self.places());
        let kernel = self.kernel(SortSpec::RowsRanked { bytes, payload: self.payload(places.is_some()), team })?;
        let (values, ranks) =
            (what.values.map(|t| self.part(t, what.kept)), what.ranks.map(|t| self.part(t, what.kept)));
        let key_bytes = what.key_bytes.clamp(1, u64::from(bytes));
        let reads = [Some(&self.input()), places.as_ref(), None, None];
        let extra = [self.rows, what.elements, key_bytes, what.kept];
        self.run(&kernel, &reads, &[values.as_ref(), ranks.as_ref()], &extra, self.rows)
    }

    /// Sorts rows of `elements` from `source` into the results.
    fn in_rows(&self, source: &Source, elements: u64) -> Result<()> {
        let what = self.what;
        let (bytes, payload) = (self.bytes(), self.payload(source.places.is_some()));
        let kernel = self.kernel(SortSpec::Rows { bytes, payload })?;
        let padded = elements.next_power_of_two();
        let (values, ranks) =
            (what.values.map(|t| self.part(t, what.kept)), what.ranks.map(|t| self.part(t, what.kept)));
        let (reads, writes) = ([Some(&source.elements), source.places.as_ref()], [values.as_ref(), ranks.as_ref()]);
        let extra = [self.rows, elements, padded, what.kept];
        self.run(&kernel, &reads, &writes, &extra, self.rows.div_ceil(SortSpec::ROW / padded))
    }

    /// Keeps the first elements of ever fewer chunks until one workgroup can sort what is left of a row.
    fn select(&self) -> Result<()> {
        let (bytes, kept) = (self.bytes(), self.what.kept);
        // All kernels must exist before anything is recorded.
        let payload = |places| Payload { places, values: true, ranks: true };
        let first = self.kernel(SortSpec::Select { bytes, payload: payload(self.what.places.is_some()) })?;
        let others = self.kernel(SortSpec::Select { bytes, payload: payload(true) })?;
        self.kernel(SortSpec::Rows { bytes, payload: self.payload(true) })?;
        let mut source = self.source();
        let mut elements = self.what.elements;
        let mut kernel = &first;
        while elements > SortSpec::ROW {
            let chunks = elements.div_ceil(SELECT_CHUNK);
            let left = self.rows * chunks * kept;
            let next = Source {
                elements: self.scratch(self.what.input.view.dtype, left)?,
                places: Some(self.scratch(DType::U32, left)?),
            };
            let reads = [Some(&source.elements), source.places.as_ref()];
            let writes = [Some(&next.elements), next.places.as_ref()];
            self.run(kernel, &reads, &writes, &[self.rows, elements, chunks, kept], self.rows * chunks)?;
            (source, elements, kernel) = (next, chunks * kept, &others);
        }
        self.in_rows(&source, elements)
    }

    fn scratch(&self, dtype: DType, elements: u64) -> Result<Located> {
        let buffer = self.engine.alloc(Type::new(dtype, &[elements]).size_bytes())?;
        let address = buffer.address();
        Ok((buffer, address))
    }

    /// A kernel that moves elements by a digit.
    fn scatter(&self, payload: Payload) -> SortSpec {
        let bytes = self.bytes();
        match self.ranked {
            Some(team) => SortSpec::ScatterRanked { bytes, payload, team },
            None => SortSpec::Scatter { bytes, payload },
        }
    }

    fn by_digits(&self) -> Result<()> {
        let what = self.what;
        let (rows, elements) = (self.rows, what.elements);
        let (dtype, bytes) = (what.input.view.dtype, self.bytes());
        let passes = what.key_bytes.clamp(1, dtype.size_bytes()) as usize;
        let with_ranks = what.ranks.is_some();
        let payload = |pass: usize| Payload {
            places: pass > 0 || what.places.is_some(),
            values: pass + 1 < passes || what.values.is_some(),
            ranks: with_ranks,
        };
        // All kernels must exist before anything is recorded.
        let count = self.kernel(SortSpec::Count { bytes })?;
        let offsets = self.kernel(SortSpec::Offsets { last: false })?;
        let bases = self.kernel(SortSpec::Offsets { last: true })?;
        let scatters: Vec<Arc<Kernel>> =
            (0..passes).map(|pass| self.kernel(self.scatter(payload(pass)))).collect::<Result<_>>()?;
        let tile = self.scatter(payload(0)).tile();
        let tiles = elements.div_ceil(tile);
        let spans = tiles.div_ceil(SPAN);
        let tile_counts = self.scratch(DType::U32, rows * tiles * SortSpec::DIGITS)?;
        let span_counts = self.scratch(DType::U32, rows * (spans + 1) * SortSpec::DIGITS)?;
        let pairs = (passes - 1).min(2);
        let elements_between: Vec<Located> =
            (0..pairs).map(|_| self.scratch(dtype, rows * elements)).collect::<Result<_>>()?;
        let ranks_between: Vec<Located> = (0..if with_ranks { pairs } else { 0 })
            .map(|_| self.scratch(DType::U32, rows * elements))
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
            self.run(&count, &[from], &[Some(&tile_counts)], &[rows, elements, tiles, shift, tile], groups)?;
            let levels = [Some(&tile_counts), Some(&span_counts)];
            self.run(&offsets, &[], &levels, &[rows, tiles, SPAN, spans], rows * spans)?;
            self.run(&bases, &[], &levels[1..], &[rows, spans, spans, 1], rows)?;
            let reads = [from, from_places, levels[0], levels[1]];
            self.run(scatter, &reads, &[to, to_ranks], &[rows, elements, tiles, shift, SPAN, spans], groups)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Values whose bytes take few or all values, at random.
    fn words(seed: u64, count: u64, few: bool) -> Vec<u64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = (state >> 33) ^ (state << 29);
            if few { word & 0x0300_0001_0001_0003 } else { word }
        };
        (0..count).map(|_| next()).collect()
    }

    fn bytes(words: &[u64], size: usize) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()[..size].to_vec()).collect()
    }

    fn numbers(bytes: &[u8], size: usize) -> Vec<u64> {
        let number = |part: &[u8]| part.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        bytes.chunks(size).map(number).collect()
    }

    /// Keys that sort as elements of the type do.
    fn key(dtype: DType, bits: u64) -> u64 {
        let (size, sign) = (dtype.bits(), 1u64 << (dtype.bits() - 1));
        let all = u64::MAX >> (64 - size);
        match dtype {
            DType::F32 if f32::from_bits(bits as u32).is_nan() => all,
            DType::F32 if bits & !sign == 0 => sign,
            DType::F32 if bits & sign != 0 => !bits & all,
            DType::F32 | DType::S64 => bits ^ sign,
            _ => bits,
        }
    }

    #[test]
    fn radix_passes_with_and_without_ballots_sort_alike() {
        let engine = Engine::open(None).unwrap();
        let caps = engine.caps();
        let with_ballots = caps.whole_subgroups().filter(|_| caps.subgroup_ops.ballot && caps.subgroup_ops.arithmetic);
        let most = caps.max_invocations.min(caps.max_workgroup_size[0]);
        let team = with_ballots.map(|subgroup| Team::largest(subgroup, most));
        let ways: Vec<Option<Team>> = [None].into_iter().chain(team.map(Some)).collect();
        for (case, dtype) in [DType::U16, DType::S64, DType::F32].into_iter().enumerate() {
            let size = dtype.size_bytes() as usize;
            let cases = [(5u64, 300u64, 300u64), (3, 1000, 7), (2, 2049, 2049), (2, 4097, 4097), (1, 70_001, 70_001)];
            for (rows, elements, kept) in cases {
                let few = (rows + case as u64).is_multiple_of(2);
                let descending = case % 2 == 1;
                let input = words(case as u64 + elements, rows * elements, few);
                let ty = Type::new(dtype, &[rows, elements]);
                let input = Tensor::from_nx_bytes(&engine, &ty, &bytes(&input, size)).unwrap();
                let names = words(9, rows * elements, false);
                let of_names = Type::new(DType::U32, &[rows, elements]);
                let places = Tensor::from_nx_bytes(&engine, &of_names, &bytes(&names, 4)).unwrap();
                let given = numbers(&input.to_nx_bytes(&engine, None).unwrap(), size);
                let (mut in_order, mut order) = (vec![], vec![]);
                for (row, elements) in given.chunks(elements as usize).enumerate() {
                    let mut own: Vec<usize> = (0..elements.len()).collect();
                    let key = |&place: &usize| key(dtype, elements[place]);
                    if descending {
                        own.sort_by_key(|place| std::cmp::Reverse(key(place)));
                    } else {
                        own.sort_by_key(key);
                    }
                    let own = &own[..kept as usize];
                    in_order.extend(own.iter().map(|&place| elements[place]));
                    order.extend(own.iter().map(|&place| (row, place)));
                }
                for &ranked in &ways {
                    for (has_values, has_ranks, has_places) in
                        [(true, true, false), (true, false, false), (false, true, true)]
                    {
                        let result = |dtype| {
                            let result = Tensor::uninitialized(&engine, &Type::new(dtype, &[rows, kept])).unwrap();
                            engine.fill(&result.buffer, 0, result.buffer.size_bytes(), 0x5a5a_5a5a).unwrap();
                            result
                        };
                        let (values, ranks) = (result(dtype), result(DType::U32));
                        let what = Sort {
                            key: SortKey { dtype, descending },
                            input: &input,
                            places: has_places.then_some(&places),
                            rows,
                            elements,
                            kept,
                            key_bytes: size as u64,
                            values: has_values.then_some(&values),
                            ranks: has_ranks.then_some(&ranks),
                        };
                        sort_by(&engine, &what, ranked, Compile::Allowed).unwrap();
                        let read = |tensor: &Tensor, size| numbers(&tensor.to_nx_bytes(&engine, None).unwrap(), size);
                        let what = format!("{rows} x {elements} {dtype}, {kept} kept, by {ranked:?}, {has_places}");
                        if has_values {
                            assert!(read(&values, size) == in_order, "values of {what}");
                        }
                        if has_ranks {
                            let name = |&(row, place): &(usize, usize)| match has_places {
                                true => names[row * elements as usize + place] & 0xffff_ffff,
                                false => place as u64,
                            };
                            let expected: Vec<u64> = order.iter().map(name).collect();
                            assert!(read(&ranks, 4) == expected, "ranks of {what}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn teams_are_what_devices_and_rows_allow() {
        let largest = |subgroup, most| Team::largest(subgroup, most).invocations;
        assert_eq!([largest(32, 1024), largest(64, 1024), largest(32, 256), largest(8, 1024)], [512, 512, 256, 128]);
        assert_eq!([largest(32, 384), largest(64, 128)], [256, 128]);
        let team = Team::largest(32, 1024);
        let holding = |elements, bytes| team.holding(elements, bytes).map(|team| team.invocations);
        assert_eq!([holding(256, 4), holding(257, 1), holding(4096, 2)], [Some(32), Some(64), Some(512)]);
        assert_eq!([holding(4097, 4), holding(2048, 8), holding(2049, 8)], [None, Some(512), None]);
    }
}
