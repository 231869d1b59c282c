//! Running reductions along rows: what accumulators mean is as in reductions.

use std::sync::Arc;

use nx_vulkan_device::device::Caps;
use nx_vulkan_device::memory::Buffer;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Linker;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::{ReducerCode, value_of, words_of};
use rspirv::spirv::{Op, Word};
use smallvec::SmallVec;

use super::family::{Constants, KernelSpec};
use super::{Arguments, Compile, Kernel, Place, launch, wide_subgroups};
use crate::program::Reduction;
use crate::program::ops::multiplied;
use crate::tuning::DeviceModel;
use crate::{DType, Engine, Error, Result, Tensor};

/// Long rows take three dispatches: the totals of chunks, the prefixes of those, and the elements of each chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanStage {
    Whole,
    Totals,
    Prefixes,
    Apply,
}

/// The key under which a scan kernel is compiled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    pub reduction: Reduction,
    pub dtype: DType,
    pub stage: ScanStage,
    /// Invocations of a subgroup combine what they have by shuffles.
    pub shuffled: bool,
    /// Invocations load and store four neighbours at once.
    pub fours: bool,
}

impl ScanSpec {
    /// Invocations per workgroup.
    pub const LOCAL_SIZE: u32 = 256;

    fn reducer(&self) -> Reducer {
        Reducer { reduction: self.reduction, tie_high: false, input: self.dtype, out: self.dtype }
    }

    /// Bytes of one accumulator.
    pub fn accumulator_bytes(&self) -> u64 {
        self.reducer().accumulator_bytes()
    }

    /// Neighbours that one invocation takes in each step.
    pub fn items(&self) -> u64 {
        if self.accumulator_bytes() <= 8 { 8 } else { 4 }
    }

    /// Operands: input, carries, output.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let reduce = self.reducer();
        let accumulator = Element::Raw(self.accumulator_bytes() as u8);
        let by = if self.shuffled { "_shuffled" } else { "" };
        let name = format!("scan{by}_{}", self.accumulator_bytes() / 4);
        let mut linker = Linker::new(library, &name, false, modes)?;
        let mut params = ParamLayout::new(&[0, 1, 2, 3, 4].map(Param::Extra));
        linker.define("slot_combine", |code, args| {
            let (a, b) = (arg(args, 0)?, arg(args, 1)?);
            reduce.combine(code, a, b).map(Some)
        })?;
        linker.define("slot_load", |code, args| {
            let at = arg(args, 0)?;
            let address = params.address(0);
            if self.stage == ScanStage::Prefixes {
                return access::load(code, address, accumulator, at).map(Some);
            }
            let id = access::load(code, address, Element::Typed(self.dtype), at)?;
            reduce.lift(code, id, at).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            let (at, value) = (arg(args, 0)?, arg(args, 1)?);
            let address = params.address(2);
            if matches!(self.stage, ScanStage::Totals | ScanStage::Prefixes) {
                access::store(code, address, accumulator, at, value)?;
            } else {
                let value = reduce.lower(code, value)?;
                access::store(code, address, Element::Typed(self.dtype), at, value)?;
            }
            Ok(None)
        })?;
        if self.fours {
            self.define_fours(&mut linker, &mut params)?;
        }
        if self.stage == ScanStage::Apply {
            linker.define("slot_carry", |code, args| {
                let address = params.address(1);
                access::load(code, address, accumulator, arg(args, 0)?).map(Some)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }

    /// Whether values have one word, so that four of them are a vector.
    fn has_fours(&self) -> bool {
        self.stage != ScanStage::Prefixes && self.dtype.ctype().dtype().size_bytes() == 4
    }

    fn define_fours(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        let (reduce, element, ctype) = (self.reducer(), Element::Typed(self.dtype), self.dtype.ctype());
        linker.define("slot_load_four", |code, args| {
            let values = access::load_vector(code, params.address(0), element, 4, arg(args, 0)?)?;
            let words: SmallVec<[Word; 4]> = values.iter().map(|&value| words_of(code, ctype, value)).collect();
            let uint = code.linker.type_uint(32);
            let four = code.linker.type_vector(uint, 4);
            Ok(Some(code.ids(Op::CompositeConstruct, four, &words)))
        })?;
        linker.define("slot_lift", |code, args| {
            let value = value_of(code, ctype, arg(args, 0)?);
            let place = code.linker.const_u32(0);
            reduce.lift(code, value, place).map(Some)
        })?;
        linker.define("slot_lower", |code, args| {
            let value = reduce.lower(code, arg(args, 0)?)?;
            Ok(Some(words_of(code, ctype, value)))
        })?;
        linker.define("slot_store_four", |code, args| {
            let (at, words) = (arg(args, 0)?, arg(args, 1)?);
            let uint = code.linker.type_uint(32);
            let values: SmallVec<[Word; 4]> = (0..4)
                .map(|k| {
                    let word = code.extract(uint, words, k);
                    value_of(code, ctype, word)
                })
                .collect();
            access::store_vector(code, params.address(2), element, at, &values)?;
            Ok(None)
        })
    }
}

/// A scan, and how many invocations share a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanKernel {
    pub spec: ScanSpec,
    pub team: u32,
}

impl KernelSpec for ScanKernel {
    fn name(&self) -> String {
        let stage = match self.spec.stage {
            ScanStage::Whole => "whole",
            ScanStage::Totals => "totals",
            ScanStage::Prefixes => "prefixes",
            ScanStage::Apply => "apply",
        };
        format!("scan.{}.{stage}.{}", self.spec.reduction.name(), self.spec.dtype)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.spec.generate(library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        let is = |stage| u32::from(self.spec.stage == stage);
        SmallVec::from_slice(&[
            (0, self.team),
            (1, is(ScanStage::Totals)),
            (2, is(ScanStage::Apply)),
            (3, u32::from(self.spec.fours)),
        ])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.number(0)?, arguments.number(1)?])
    }
}

/// The running reduction of `rows` rows of `elements` from `input` into `out`, both contiguous and of one dtype.
#[derive(Debug, Clone, Copy)]
pub struct Scan<'a> {
    pub reduction: Reduction,
    /// Rows run from their last element to their first.
    pub reverse: bool,
    pub input: &'a Tensor,
    pub out: &'a Tensor,
    pub rows: u64,
    pub elements: u64,
}

pub fn scan(engine: &Engine, what: &Scan<'_>, compile: Compile) -> Result<()> {
    scan_by(engine, what, ScanForm::of(engine.caps()), compile)
}

fn scan_by(engine: &Engine, what: &Scan<'_>, form: ScanForm, compile: Compile) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    let (limit, most) = (engine.reach().near(size), engine.reach().far());
    if what.elements > most {
        return Err(Error::TooLarge { size_bytes: what.elements * size, limit_bytes: most * size });
    }
    let rows_per_launch = (limit / what.elements.max(1)).max(1);
    let mut first = 0;
    while first < what.rows {
        let rows = rows_per_launch.min(what.rows - first);
        let offset_bytes = first * what.elements * size;
        scan_rows(engine, what, form, rows, offset_bytes, compile)?;
        first += rows;
    }
    Ok(())
}

/// Elements of a chunk of a row, and chunks, where a workgroup takes `step` elements at once. The chunks of a row are
/// themselves scanned in one step.
pub(crate) fn chunks(model: &DeviceModel, rows: u64, elements: u64, step: u64) -> (u64, u64) {
    let chunks = model.fill.scan_groups.div_ceil(rows).min(elements.div_ceil(step)).min(step).max(1);
    let chunk = elements.div_ceil(chunks).next_multiple_of(step);
    (chunk, elements.div_ceil(chunk))
}

/// How rows are scanned; results have the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScanForm {
    shuffled: bool,
    fours: bool,
}

impl ScanForm {
    /// The fastest form that a device has.
    fn of(caps: &Caps) -> ScanForm {
        ScanForm { shuffled: wide_subgroups(caps).is_some() && caps.subgroup_ops.shuffle_relative, fours: true }
    }
}

fn scan_rows(
    engine: &Engine,
    what: &Scan<'_>,
    ScanForm { shuffled, fours }: ScanForm,
    rows: u64,
    offset_bytes: u64,
    compile: Compile,
) -> Result<()> {
    let size = what.input.view.dtype.size_bytes();
    let place = |tensor: &Tensor| (Arc::clone(&tensor.buffer), tensor.address() + offset_bytes);
    let (input, out) = (place(what.input), place(what.out));
    let is_aligned = |place: &(Arc<Buffer>, u64)| place.1.is_multiple_of(4 * size);
    let fours = fours && what.elements.is_multiple_of(4) && is_aligned(&input) && is_aligned(&out);
    let spec = |stage| ScanSpec { reduction: what.reduction, dtype: what.input.view.dtype, stage, shuffled, fours };
    let whole = spec(ScanStage::Whole);
    let step = u64::from(ScanSpec::LOCAL_SIZE) * whole.items();
    let (chunk, chunks) = chunks(engine.model(), rows, what.elements, step);
    let team = what.elements.div_ceil(whole.items()).next_power_of_two().clamp(1, u64::from(ScanSpec::LOCAL_SIZE));
    let teams = u64::from(ScanSpec::LOCAL_SIZE) / team;
    let kernel = |stage, team: u64| {
        let spec = spec(stage);
        let spec = ScanKernel { spec: ScanSpec { fours: spec.fours && spec.has_fours(), ..spec }, team: team as u32 };
        engine.kernel_reaching(&spec, what.elements > engine.reach().near(size), compile)
    };
    let extra = |elements: u64, chunk: u64, chunks: u64, reverse: bool| {
        [rows as u32, elements as u32, chunk as u32, chunks as u32, u32::from(reverse)]
    };
    // Operands: input, carries, output.
    let run = |kernel: &Kernel, operands: [&(Arc<Buffer>, u64); 3], extra: [u32; 5], groups: u64| {
        let places =
            operands.map(|(buffer, address)| Place { buffer, address: *address, strides: &[], element_bytes: 0 });
        launch(engine, kernel, &Arguments { count: 0, sizes: &[], places: &places, extra: &extra }, 2, groups)
    };
    if chunks == 1 {
        let kernel = kernel(ScanStage::Whole, team)?;
        let extra = extra(what.elements, chunk, 1, what.reverse);
        return run(&kernel, [&input, &input, &out], extra, rows.div_ceil(teams));
    }
    // All kernels must exist before anything is recorded.
    let team_of_chunks = chunks.div_ceil(whole.items()).next_power_of_two().clamp(1, u64::from(ScanSpec::LOCAL_SIZE));
    let totals = kernel(ScanStage::Totals, team)?;
    let prefixes = kernel(ScanStage::Prefixes, team_of_chunks)?;
    let apply = kernel(ScanStage::Apply, team)?;
    let scratch = engine.alloc(rows * chunks * whole.accumulator_bytes())?;
    let carries = (Arc::clone(&scratch), scratch.address());
    let of_elements = extra(what.elements, chunk, chunks, what.reverse);
    run(&totals, [&input, &input, &carries], of_elements, rows * chunks)?;
    let groups = rows.div_ceil(u64::from(ScanSpec::LOCAL_SIZE) / team_of_chunks);
    run(&prefixes, [&carries, &carries, &carries], extra(chunks, step, 1, false), groups)?;
    run(&apply, [&input, &carries, &out], of_elements, rows * chunks)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Type, View};

    #[test]
    fn scans_of_all_forms_have_the_same_bits() {
        let engine = Engine::open(None).unwrap();
        let best = ScanForm::of(engine.caps());
        let plain = ScanForm { shuffled: false, fours: false };
        let mut forms = vec![plain, ScanForm { fours: true, ..plain }];
        if best.shuffled {
            forms.extend([ScanForm { fours: false, ..best }, best]);
        }
        use Reduction::{Max, Product, Sum};
        let cases = [
            (DType::F32, Sum),
            (DType::F32, Max),
            (DType::F16, Sum),
            (DType::S8, Sum),
            (DType::S64, Max),
            (DType::F64, Product),
            (DType::C64, Product),
        ];
        for (dtype, reduction) in cases {
            for (rows, elements) in [(3u64, 5u64), (70, 12), (9, 250), (2, 2052), (2, 5000), (1, 40_004)] {
                // Of floats many cancel others that are much larger or smaller.
                let number =
                    |i: u64| [1u64, 0x4b00_0000, 0xcb00_0001, 0x3f80_0001, 0x7f00_0000, 0xff00_0000][i as usize % 6];
                let size = dtype.size_bytes() as usize;
                let byte = |i: u64| number(i).rotate_left((i % 5) as u32).to_le_bytes();
                // One element more than needed: rows also begin where no four of them is aligned.
                let bytes: Vec<u8> = (0..=rows * elements).flat_map(|i| byte(i).repeat(2)[..size].to_vec()).collect();
                let given = Tensor::from_nx_bytes(&engine, &Type::new(dtype, &[rows * elements + 1]), &bytes).unwrap();
                for (reverse, offset) in [(false, 0), (true, 1)] {
                    let view =
                        View { offset: given.view.offset + offset, ..View::contiguous(dtype, &[rows, elements]) };
                    let input = given.with_view(view);
                    let results = forms.iter().map(|&form| {
                        let out = Tensor::uninitialized(&engine, &Type::new(dtype, &[rows, elements])).unwrap();
                        let what = Scan { reduction, reverse, input: &input, out: &out, rows, elements };
                        scan_by(&engine, &what, form, Compile::Allowed).unwrap();
                        out.to_nx_bytes(&engine, None).unwrap()
                    });
                    let results: Vec<_> = results.collect();
                    let are_same = results.iter().all(|result| *result == results[0]);
                    assert!(are_same, "{} of {rows} x {elements} {dtype}, {reverse}: {forms:?}", reduction.name());
                }
            }
        }
    }
}
