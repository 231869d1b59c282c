//! How fast a device is thought to be: what chooses among kernels and launches.
//!
//! A [`DeviceModel`] is made of what the driver says ([`Caps`]), of numbers by [`Class`], and of what was measured on
//! the device ([`Calibration`]) where [`crate::Engine::calibrate`] ran. All numbers that depend on a device stand here;
//! those of NVIDIA's data-center GPUs and of CPUs were measured (on an H100, an H200 and lavapipe), those of other
//! classes are guesses from what vendors publish.

mod calibration;
#[cfg(test)]
mod choices_tests;
mod class;
#[cfg(test)]
pub(crate) mod devices;
mod guess;
mod measured;
#[cfg(test)]
mod models_tests;
#[cfg(test)]
mod sources_tests;
mod stored;
pub mod target;

use std::time::Duration;

use nx_vulkan_device::Caps;
use nx_vulkan_device::work::{Copies, Rates, Submissions};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::passes::{Joins, Quick, Recompute, SmallProducts};
use nx_vulkan_ir::program::reductions::Repeats;
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_spirv::workgroup::LocalSizes;

pub use calibration::{Calibrated, CalibrationState};
pub use class::Class;
#[cfg(feature = "testing")]
pub use guess::{LOCAL_SIZES, SHARING};
pub use measured::Calibration;
pub(crate) use stored::load;

use crate::kernels::map::Sharing;

/// What is known of a device, measured or guessed.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceModel {
    /// What its driver says.
    pub caps: Caps,
    /// Whose sort of device it is.
    pub class: Class,
    /// Multiprocessors, compute units or cores: what runs workgroups beside each other.
    pub processors: u64,
    /// How long products take.
    pub products: Products,
    /// How products by the lanes of CPU devices are shared out.
    pub lanes: Lanes,
    /// How attention in one kernel is shared out.
    pub attention: Attention,
    /// How many workgroups and invocations keep the device busy.
    pub fill: Fill,
    /// How Fourier transforms are shared out.
    pub transforms: Transforms,
    /// Invocations of workgroups that run whole programs.
    pub local_sizes: LocalSizes,
    /// Elements of the longest rows that are sorted by a network where registers could hold them.
    pub network_row: u64,
    /// How reductions are laid out.
    pub reductions: Reductions,
    /// How rows are shared out.
    pub rows: Rows,
    /// When elementwise kernels take which form.
    pub maps: Maps,
    /// How panels of QR are shared out.
    pub panels: Panels,
    /// How updates of elements by indices come to them.
    pub updates: Updates,
    /// How chains of a log-density are spread.
    pub chains: Chains,
    /// How far loops that the host looks at run ahead of it.
    pub loops: Loops,
    /// What commands side by side are short with.
    pub short: Short,
    /// What passes over programs are told.
    pub programs: Programs,
    /// How tensors come to the device and from there.
    pub transfers: Transfers,
    /// In what portions many bytes are.
    pub bulk_copies: Copies,
    /// How fast the device is at least, for how much may be submitted at once.
    pub rates: Rates,
    /// In what portions the device is given its work.
    pub submissions: Submissions,
}

/// Times of products by tiles, in cycles of a processor: of the clock at which `lanes` multiplications a cycle are what
/// the device does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Products {
    /// Invocations that one processor holds at once, as far as registers allow.
    pub invocations: u64,
    /// f32 multiplications per cycle and processor.
    pub lanes: f64,
    /// Those of f64, as a share of f32's.
    pub f64_share: f64,
    /// Cycles from the fetch of a step to its use.
    pub latency: f64,
    /// How many times as long that takes where elements of 16 bits are fetched one by one.
    pub latency_of_odd: f64,
    /// Cycles to fetch an element of an operand and put it in shared memory, beside what is computed.
    pub fetch: f64,
    /// Cycles to store a result, and for each step of an epilogue that stands in a loop, by the results of one
    /// invocation.
    pub result: f64,
    /// Cycles that another dispatch costs, apart from its work.
    pub dispatch: f64,
    /// Bytes of memory read or written per cycle, by all processors.
    pub bytes: f64,
    /// How many times its share of those one processor reads where others are idle.
    pub draw: f64,
    /// The share of the lanes' arithmetic that tiles reach.
    pub efficiency: Efficiency,
    /// What matrix units do.
    pub units: Units,
    /// Multiplications from which a tiled kernel makes up for its compilation.
    pub least_work: u64,
    /// Workgroups beyond which splits of the contracted axis only cost.
    pub most_groups: u64,
    /// Workgroups of square tiles that fill the device.
    pub square_groups: u64,
    /// Contracted elements that pay for another dispatch of square tiles, or of tiles for lanes.
    pub least_split_depth: u64,
    /// Rows of a matrix from which it is worth the kernels that multiply it with few vectors; none where it never is.
    pub least_vector_rows: Option<u64>,
    /// Workgroups of 128 invocations for matrix units that a processor holds, as far as registers allow.
    pub resident: u64,
    /// Most bytes that both operands of matrix units take as numbers of 16 bits.
    pub operand_bytes: u64,
    /// Most bytes that residues of f64 operands and results take.
    pub residue_bytes: u64,
    /// The most vectors for which an invocation takes eight neighbours of a matrix.
    pub eights_vectors: u64,
}

/// Shares of arithmetic by the results that one invocation of a tile computes. Teams that share out the contracted
/// elements add their sums up at the end, short steps have more barriers, and workgroups of few invocations fetch more
/// for each result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Efficiency {
    /// 128 results and more.
    pub of_128: f64,
    /// From 64 on.
    pub of_64: f64,
    /// From 32 on.
    pub of_32: f64,
    /// From 32 on, in workgroups of up to 64 invocations.
    pub of_32_in_few: f64,
    /// Fewer.
    pub of_few: f64,
    /// By what two or three teams lower it.
    pub of_two_teams: f64,
    /// By what more teams lower it.
    pub of_teams: f64,
    /// By what steps of fewer than 16 elements lower it.
    pub of_short_steps: f64,
}

/// Multiplications per cycle and processor that tiles on matrix units reach, by the side of the tile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Units {
    /// f32 as three bf16 numbers.
    pub three_bf16: f64,
    /// f32 as three bf16 numbers that are made in place.
    pub own_three_bf16: f64,
    /// f32 as two f16 numbers, in tiles of 128 and of 64.
    pub two_f16: [f64; 2],
    /// f16, in tiles of 128 and of 64.
    pub one_f16: [f64; 2],
    /// f16 and bf16 that go from memory to the units, in tiles of 128 columns and of 64.
    pub own: [f64; 2],
    /// Those that were written in the order of matrices before.
    pub fragments: [f64; 2],
    /// Rows, columns and contracted elements from which on they are written so: with fewer of any, as layers of images
    /// have, copies take what they save.
    pub least_of_fragments: u64,
    /// Bytes with a sign, in tiles of 128 and of 64.
    pub bytes: [f64; 2],
    /// Operations of f32 lanes that take as long as one residue of an f64 element.
    pub split: f64,
    /// Operations of f32 lanes that take as long as one residue of a result.
    pub restored: f64,
}

/// How products by the lanes of CPU devices are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    /// Multiplications from which a tile of so many rows is worth its compilation, which takes as long as it is large.
    pub least_work: [(u32, u64); 2],
    /// Workgroups that keep the cores busy where tiles are that large.
    pub busy_groups: u64,
    /// Results that one core is to compute before the contracted axis is split.
    pub least_results: u64,
}

/// How attention in one kernel is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Workgroups that a processor runs at once.
    pub groups: u64,
    /// Queries of a batch from which on it pays: fewer fill no matrix.
    pub least_rows: u64,
    /// Keys from which on kernels for few queries pay: fewer leave invocations without work.
    pub least_keys: u64,
    /// Keys up to which shares of few queries don't make up for another launch.
    pub most_whole_keys: u64,
}

/// Workgroups and invocations that keep a device busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Workgroups of a step of Cholesky's factorization, each of which factors the diagonal block for itself.
    pub cholesky_groups: u64,
    /// Workgroups of a scan.
    pub scan_groups: u64,
    /// Invocations in flight of a reduction.
    pub reduce_invocations: u64,
}

/// How Fourier transforms are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transforms {
    /// Workgroups that keep the device busy.
    pub groups: u64,
    /// Elements from which transforms have a kernel for their length alone.
    pub least_fixed: u64,
    /// Elements that keep the invocations of a workgroup busy.
    pub least_group_elements: u64,
    /// Shared memory that a workgroup takes at most.
    pub shared_bytes: u32,
    /// Neighbouring rows of a workgroup that are read from memory together.
    pub neighbours: u64,
}

/// How reductions are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reductions {
    /// Invocations that share one chunk of a row at most.
    pub most_team: u64,
    /// Elements that an invocation reduces before a reduction is worth splitting in chunks, which is a second dispatch.
    pub elements: u64,
    /// Those that it reduces alone where a team could not read them as neighbours.
    pub most_alone: u64,
    /// Whether several invocations share a column; none where it does not pay.
    pub columns: Option<Columns>,
    /// Whether reductions pass over memory in chunks of rows rather than hold whole rows in registers, where both are
    /// possible.
    pub streams: bool,
}

/// When invocations share columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Outputs from which neighbouring outputs alone keep the device busy.
    pub many_outputs: u64,
    /// Bytes from which a second dispatch takes less time than memory loses where workgroups read narrow strips.
    pub many_bytes: u64,
    /// Bytes of neighbours that teams read at once where there are as many: a line of a cache. Of less they read a
    /// share.
    pub line_bytes: u64,
    /// Elements that one invocation reduces where others share the column: more at once hide the memory's latency.
    pub elements: u64,
    /// The most that each invocation of a team reduces before a second dispatch is worth it.
    pub most_elements: u64,
}

/// How rows that are held in registers are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Workgroups below which more invocations share a row whose elements are apart in memory.
    pub few_groups: u64,
    /// Neighbouring rows of such that a workgroup takes together.
    pub neighbours: u64,
    /// Workgroups of half as large teams, whose invocations hold twice as much, that rows must fill: what a row does
    /// once, its invocations all do, so few of them are better where other rows hide how long they take. None where it
    /// never pays.
    pub many_groups: Option<u64>,
    /// Invocations of a row that may hold twice as much: more of them would have too few registers.
    pub most_invocations_of_halves: u64,
    /// Invocations of a row from which on half as many hold twice as much once more, if that is one number of 32 bits
    /// for each element.
    pub few_invocations: u64,
    /// Whether a quarter of that many hold four times as much where elements are of f64 and take few steps: where f64
    /// is slow, what invocations do once takes longer than their loads.
    pub few_of_f64: bool,
    /// Elements of f64 that these hold at most.
    pub most_of_f64: u64,
    /// Loads that an invocation should have in flight before more of them share a row.
    pub loads: u64,
}

/// When elementwise kernels take which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maps {
    /// How vectors are shared out among invocations.
    pub sharing: Sharing,
    /// Elements up to which kernels of long programs share their code.
    pub most_shared: u64,
    /// Elements of costly steps up to which each has an invocation of its own.
    pub most_single: u64,
    /// Elements up to which functions have one form, which gives all results: launches of few take as long as their
    /// code, of which short forms are more. So do kernels of rows of so few invocations.
    pub most_exact: u64,
    /// Elements from which costly steps are worth more code, if they are few; none where they always are.
    pub least_unrolled: Option<u64>,
    /// Elements from which vectors are read and written 8 bytes at a time; none where that gains nothing.
    pub least_paired: Option<u64>,
    /// Elements from which on a device with lanes takes longer for them than for compiling blocks, and elements that an
    /// invocation has of each.
    pub blocks: &'static [(u64, u8)],
}

/// How panels of QR are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panels {
    /// Rows from which many workgroups share a panel.
    pub tall: u64,
    /// Matrices up to which they do: more fill the device by themselves.
    pub most_matrices: u64,
    /// Workgroups that share a panel at most. Each adds up what all of them found.
    pub most_groups: u64,
}

/// How updates of elements by indices come to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updates {
    /// Invocations that share the rows of a scatter where these are too short to fill the device.
    pub owners: u64,
    /// Updates up to which each row has an owner that reads all of them, sooner than they are sorted.
    pub most_owned: u64,
    /// Elements of a row up to which what has one target is added by who comes to the first of it; beyond, rows have
    /// owners.
    pub widest_run: u64,
    /// Updates up to which comparing each with all others sorts them sooner than passes over their bytes.
    pub most_compared: u64,
}

/// How chains of a log-density are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chains {
    /// Workgroups that run side by side as fast as one alone, about; none for as many as the host has threads.
    pub side_by_side: Option<u64>,
    /// Those that lie side by side where the device does the same for all of them.
    pub most_lanes: u64,
    /// Work, about the instructions of all invocations, from which on a step is given to the whole device.
    pub most_work: u64,
    /// Work that a step takes beside that of its elements.
    pub step_work: u64,
    /// Commands of the first part and of later ones, where these are short, so that the device works while the next are
    /// recorded.
    pub begins_early: Option<[u64; 2]>,
    /// Steps, or iterations, that a dispatch should take chains further, or else it takes fewer chains.
    pub least_steps: u64,
}

/// How far loops that the host looks at run ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loops {
    /// What may be under way when the host looks: it finds out and records the next iterations meanwhile.
    pub ahead: Duration,
    /// What iterations may take at most that turn out to be in vain.
    pub most_vain: Duration,
    /// What they may take in any loop: less than a few looks cost is not worth one.
    pub least_vain: Duration,
}

/// What commands side by side do at most where all of it runs at once and is done in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Workgroups.
    pub groups: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Operations on numbers.
    pub flops: u64,
}

/// How tensors come to the device and from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfers {
    /// Bytes up to which a tensor goes where the host writes directly, on a discrete GPU too.
    pub small_bytes: u64,
    /// Bytes up to which one does that the host uploads.
    pub written_bytes: u64,
    /// Bytes up to which memory is read directly that the host does not cache.
    pub uncached_read_bytes: u64,
}

/// What passes over programs are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Programs {
    /// What kernels of rows hold.
    pub rows: RowLimits,
    /// Whether one kernel that chooses among the parts of something larger is sooner done than a copy of each part.
    pub chooses_parts: bool,
    /// How much is computed again for what reads it late: something where arithmetic is cheap beside memory.
    pub recompute: Recompute,
    /// Whether runs of small ops become kernels of one workgroup.
    pub joins_small_ops: bool,
    /// Whether attention of few queries is sooner done by kernels of its own than by those of its parts.
    pub attends_few: bool,
    /// The most vectors that one kernel multiplies with two matrices; 0 where none does.
    pub paired_vectors: u64,
    /// The most for which one kernel without matrix units computes the elements of a matrix from several operands; 0
    /// where none does.
    pub derived_vectors: u64,
    /// Work of one iteration that a loop in one workgroup may have.
    pub iteration_work: u64,
    /// Work of one dispatch of a kernel of one workgroup, at most.
    pub max_work: u64,
    /// Bytes of an iteration that takes about as long as its kernels take to start.
    pub short_bytes: u64,
    /// Operations on numbers of such an iteration.
    pub short_flops: u64,
    /// Bytes that a value may take of iterations that run side by side.
    pub mapped_bytes: u64,
    /// Up to where kernels take in what stands beside them.
    pub joins: Joins,
    /// 32-bit words of values that a kernel needs at once for an element, at most.
    pub live_words: u32,
    /// What kernels of small ops hold in long programs.
    pub quick: Quick,
    /// How small products become one.
    pub small_products: SmallProducts,
    /// What is computed again for each element of a row that is reduced.
    pub repeats: Repeats,
}

impl DeviceModel {
    /// The model of a device that nothing was measured on.
    pub fn of(caps: &Caps) -> DeviceModel {
        guess::model(caps)
    }

    /// The model of a device with what was measured on it.
    pub fn calibrated(caps: &Caps, measured: &Calibration) -> DeviceModel {
        let mut model = DeviceModel::of(caps);
        measured.apply(&mut model);
        model
    }

    /// Multiplications per cycle, by all processors, of the fastest product of a type.
    pub fn multiplications(&self, dtype: DType) -> f64 {
        let Products { lanes, f64_share, units, .. } = &self.products;
        let units = match dtype {
            DType::F16 | DType::Bf16 if self.caps.cooperative_matrix => units.fragments[0],
            DType::F32 if self.caps.bfloat16_matrix => units.own_three_bf16,
            // By residues of 16 moduli, and coarse values.
            DType::F64 if self.caps.byte_matrix && self.class.is_nvidia() => units.bytes[0] / 17.0,
            _ => 0.0,
        };
        let share = if dtype == DType::F64 { *f64_share } else { 1.0 };
        units.max(lanes * share) * self.processors as f64
    }
}
