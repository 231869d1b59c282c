//! Numbers of devices that nothing was measured on, by their class.

use std::time::Duration;

use nx_vulkan_device::device::MemoryTypeInfo;
use nx_vulkan_device::work::{Copies, Rates, Submissions};
use nx_vulkan_device::{Caps, DeviceKind};
use nx_vulkan_ir::program::ops::PHASE_WORK;
use nx_vulkan_ir::program::passes::{Joins, Quick, Recompute, SmallProducts};
use nx_vulkan_ir::program::reductions::Repeats;
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_spirv::workgroup::LocalSizes;

use super::{
    Attention, Chains, Class, Columns, DeviceModel, Efficiency, Fill, Lanes, Loops, Maps, Panels, Products, Programs,
    Reductions, Rows, Short, Transfers, Transforms, Units, Updates,
};
use crate::kernels::dot::{LANES, VectorTile};
use crate::kernels::map::Sharing;
use crate::kernels::reduce::ReduceSpec;

/// Multiprocessors of an H100 and an H200, for which the numbers of data-center GPUs were measured.
const MEASURED_PROCESSORS: u64 = 132;

/// What classes of GPUs differ in.
struct Processor {
    /// How many there are where the driver does not tell.
    count: u64,
    /// Invocations that one holds at once where the driver does not tell.
    invocations: u64,
    /// f32 multiplications per cycle of one.
    lanes: f64,
    /// Those of f64, as a share of f32's.
    f64_share: f64,
    /// Bytes of memory per cycle, for `count` of them.
    bytes: f64,
    /// What matrix units do, where kernels for them run.
    units: Units,
    /// Workgroups for each beyond which splits of a product only cost.
    splits: u64,
}

/// Measured on an H100 with `examples/products.rs`.
const HOPPER_UNITS: Units = Units {
    three_bf16: 160.0,
    own_three_bf16: 150.0,
    two_f16: [225.0, 180.0],
    one_f16: [560.0, 330.0],
    own: [750.0, 600.0],
    fragments: [1010.0, 1000.0],
    least_of_fragments: 512,
    // So that all of a product by residues takes what it took on an H200, 8.47 and 14.8 ms at 4096.
    bytes: [570.0, 315.0],
    split: 20.0,
    restored: 24.0,
};

/// Units with twice the rate of f32 lanes, of which tiles reach what they do on an H100: GPUs for desktops with f32
/// sums.
const DESKTOP_UNITS: Units = Units {
    three_bf16: 20.0,
    own_three_bf16: 20.0,
    two_f16: [56.0, 45.0],
    one_f16: [140.0, 82.0],
    own: [180.0, 150.0],
    fragments: [230.0, 220.0],
    least_of_fragments: 512,
    // No more than on an H200, though vendors state 1024.
    bytes: [570.0, 315.0],
    split: 20.0,
    restored: 24.0,
};

impl Processor {
    fn of(class: Class, caps: &Caps) -> Processor {
        let is_integrated = caps.kind == DeviceKind::Integrated;
        let processor = |count, invocations, lanes, f64_share, bytes| Processor {
            count,
            invocations,
            lanes,
            f64_share,
            bytes,
            units: DESKTOP_UNITS,
            // Where f64 is slow, more even shares are worth more splits.
            splits: 16,
        };
        match class {
            Class::NvidiaDataCenter => {
                Processor { units: HOPPER_UNITS, splits: 4, ..processor(MEASURED_PROCESSORS, 2048, 128.0, 0.5, 2000.0) }
            }
            // 32 warps: Turing, of half as many lanes.
            Class::Nvidia if caps.processor_invocations == Some(1024) => processor(46, 1024, 64.0, 1.0 / 32.0, 260.0),
            Class::Nvidia => processor(46, 1536, 128.0, 1.0 / 64.0, 230.0),
            Class::AmdRdna if is_integrated => processor(12, 1024, 64.0, 1.0 / 16.0, 40.0),
            Class::AmdRdna => processor(32, 1024, 64.0, 1.0 / 16.0, 150.0),
            // GCN, of as many lanes: Polaris, Vega and what shares a CPU's memory.
            Class::AmdCdna if caps.processors.is_some_and(|n| n <= MOST_OF_GCN) => {
                processor(36, 2048, 64.0, 1.0 / 16.0, 256.0)
            }
            Class::AmdCdna => processor(104, 2048, 64.0, 1.0, 950.0),
            // Xe cores, of 16 or 8 vector engines.
            Class::Intel if is_integrated => processor(6, 2048, 128.0, 1.0 / 8.0, 45.0),
            Class::Intel => processor(32, 1024, 128.0, 1.0 / 16.0, 230.0),
            Class::Apple => processor(8, 1024, 128.0, 1.0 / 32.0, 50.0),
            Class::Arm => processor(7, 1024, 64.0, 1.0 / 32.0, 35.0),
            // CPUs have numbers of their own.
            Class::Other | Class::Cpu => processor(4, 256, 16.0, 1.0 / 32.0, 16.0),
        }
    }
}

/// Compute units of the largest GPU of GCN, Vega 64; CDNA begins at 104.
const MOST_OF_GCN: u32 = 64;

/// Operations of f64 beside those of f32 below which arithmetic takes longer than memory in rows of f64.
const SLOW_F64: f64 = 0.1;

/// The power of two that is nearest by its exponent.
fn power_near(x: f64) -> u64 {
    1 << x.max(1.0).log2().round() as u32
}

/// The largest power of two up to a number.
fn power_below(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}

pub(super) fn model(caps: &Caps) -> DeviceModel {
    match Class::of(caps) {
        Class::Cpu => cpu(caps),
        class => gpu(caps, class),
    }
}

fn gpu(caps: &Caps, class: Class) -> DeviceModel {
    let processor = Processor::of(class, caps);
    let processors = caps.processors.map_or(processor.count, u64::from).max(1);
    let held = caps.processor_invocations.map_or(processor.invocations, u64::from).max(64);
    let share = |of_measured: u64| (of_measured * processors / MEASURED_PROCESSORS).max(1);
    let products = Products {
        invocations: held,
        lanes: processor.lanes,
        f64_share: processor.f64_share,
        // Measured on an H100.
        latency: 900.0,
        latency_of_odd: 1.4,
        fetch: 0.03,
        result: 60.0,
        dispatch: 8000.0,
        bytes: processor.bytes * processors as f64 / processor.count as f64,
        draw: DRAW,
        efficiency: Efficiency {
            of_128: 0.7,
            of_64: 0.75,
            of_32: 0.75,
            of_32_in_few: 0.66,
            of_few: 0.5,
            of_two_teams: 0.8,
            of_teams: 0.6,
            of_short_steps: 0.85,
        },
        units: processor.units,
        least_work: 0,
        most_groups: processor.splits * processors,
        square_groups: 2 * processors,
        least_split_depth: LEAST_SPLIT_DEPTH,
        least_vector_rows: Some(32),
        resident: RESIDENT,
        operand_bytes: operand_bytes(caps),
        residue_bytes: residue_bytes(caps),
        eights_vectors: EIGHTS_VECTORS,
    };
    DeviceModel {
        caps: caps.clone(),
        class,
        processors,
        products,
        lanes: LANE_TILES,
        attention: ATTENTION,
        fill: Fill {
            cholesky_groups: 4 * processors,
            scan_groups: power_below(8 * processors),
            reduce_invocations: power_below(held * processors),
        },
        // Of 2^16 elements an H100 takes 6.7 us instead of 9.7, and a kernel takes 0.1 s to compile.
        transforms: Transforms { groups: 2 * processors, least_fixed: 1 << 16, ..TRANSFORMS },
        local_sizes: LOCAL_SIZES,
        network_row: NETWORK_ROW,
        reductions: Reductions {
            most_team: ReduceSpec::LOCAL_SIZE.into(),
            elements: REDUCED,
            most_alone: REDUCED_ALONE,
            // Measured on an H200: 16 elements of columns of 2,000 take 9 us, where 64 take 12.
            columns: Some(Columns {
                many_outputs: power_below(32 * processors),
                many_bytes: 32 << 20,
                line_bytes: 128,
                elements: 16,
                most_elements: 64,
            }),
            streams: false,
        },
        rows: Rows {
            few_groups: processors,
            neighbours: NEIGHBOURING_ROWS,
            many_groups: Some(8 * processors),
            most_invocations_of_halves: 512,
            // What 512 invocations wait for costs softmax of 16,384 elements 4 % on an H200.
            few_invocations: 256,
            // By Mesa's compiler for RDNA, layer norm of f64 takes up to 1.8 times the cycles otherwise.
            few_of_f64: processor.f64_share < SLOW_F64,
            most_of_f64: MOST_OF_F64,
            loads: LOADS,
        },
        maps: Maps {
            sharing: SHARING,
            most_shared: SMALL_ELEMENTS,
            most_single: power_below(2 * held * processors),
            // A subgroup for each of the four schedulers.
            most_exact: power_below(128 * processors),
            least_unrolled: None,
            least_paired: None,
            blocks: &[],
        },
        panels: Panels {
            // One workgroup of an H200 takes 71 us for a column of 2000 rows, many 2 to 3 for one of any length.
            tall: 128,
            most_matrices: power_below(2 * processors),
            most_groups: power_below(2 * processors),
        },
        // An H100 takes 0.6 us for each update that an owner reads.
        updates: Updates {
            owners: OWNERS,
            most_owned: 8,
            widest_run: u64::MAX,
            most_compared: 64 * power_below(processors),
        },
        chains: Chains {
            side_by_side: Some(power_below(processors)),
            most_lanes: MOST_LANES,
            // On an H200 a workgroup does a seventh of it, a logistic regression of 500 x 21, in 12 us, and the
            // dispatches of a step take 70 to 95 us.
            most_work: 2_400_000,
            // A command takes the host 1 us, and a submission 7.
            begins_early: Some([1 << 11, 1 << 13]),
            step_work: STEP_WORK,
            least_steps: LEAST_STEPS,
        },
        loops: LOOPS,
        // Some 4 us of an H200's memory, and 8 of its arithmetic.
        short: Short { groups: 8 * processors, bytes: share(16 << 20), flops: share(1 << 28) },
        programs: Programs { joins: joins(processors, &products), ..programs(caps.kind, caps.max_invocations) },
        transfers: transfers(caps),
        bulk_copies: bulk_copies(),
        rates: rates(caps.kind, memory_bytes(caps)),
        submissions: submissions(caps.kind, memory_bytes(caps)),
    }
}

/// Bytes that both operands of matrix units may take on devices whose memory is not large.
const OPERAND_BYTES: u64 = 1 << 30;

/// The share of a large memory that residues may take, and the most: kernels count their words in 32 bits.
const RESIDUE_SHARE: u64 = 8;
const MOST_RESIDUE_BYTES: u64 = 8 << 30;

fn residue_bytes(caps: &Caps) -> u64 {
    (memory_bytes(caps) / RESIDUE_SHARE).clamp(OPERAND_BYTES, MOST_RESIDUE_BYTES)
}

/// The share of a large memory that operands of matrix units may take, and the most: offsets in words of 4 GiB are far.
const OPERAND_SHARE: u64 = 32;
const MOST_OPERAND_BYTES: u64 = 2 << 30;

fn operand_bytes(caps: &Caps) -> u64 {
    let local = caps.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.size_bytes).max();
    (local.unwrap_or(0) / OPERAND_SHARE).clamp(OPERAND_BYTES, MOST_OPERAND_BYTES)
}

/// Measured with lavapipe on two cores, and the same for all: results must not depend on how many cores a host has.
fn cpu(caps: &Caps) -> DeviceModel {
    DeviceModel {
        caps: caps.clone(),
        class: Class::Cpu,
        processors: 2,
        products: Products {
            invocations: 256,
            lanes: 16.0,
            f64_share: 0.5,
            latency: 0.0,
            latency_of_odd: 1.0,
            fetch: 0.0,
            result: 0.0,
            dispatch: 40_000.0,
            bytes: 8.0,
            draw: DRAW,
            // lavapipe's tests of bounds and barriers weigh more the fewer results they serve.
            efficiency: Efficiency {
                of_128: 1.0,
                of_64: 1.0,
                of_32: 0.2,
                of_32_in_few: 0.2,
                of_few: 0.3,
                of_two_teams: 1.0,
                of_teams: 1.0,
                of_short_steps: 1.0,
            },
            units: HOPPER_UNITS,
            // Compiling an unrolled kernel takes up to a second.
            least_work: 1 << 20,
            most_groups: 528,
            square_groups: 4,
            least_split_depth: LEAST_SPLIT_DEPTH,
            least_vector_rows: None,
            resident: RESIDENT,
            operand_bytes: OPERAND_BYTES,
            residue_bytes: OPERAND_BYTES,
            eights_vectors: EIGHTS_VECTORS,
        },
        lanes: LANE_TILES,
        attention: ATTENTION,
        fill: Fill { cholesky_groups: 4, scan_groups: 4, reduce_invocations: 1 << 11 },
        // Compiling takes as long as some hundred thousand elements.
        transforms: Transforms { groups: 264, least_fixed: 1 << 20, ..TRANSFORMS },
        local_sizes: LOCAL_SIZES,
        network_row: NETWORK_ROW,
        // Invocations of several subgroups wait for one another at each level of a tree: means of 2048^2 take 23 ms by
        // whole rows in registers, and 2 in chunks.
        reductions: Reductions {
            most_team: LANES.into(),
            elements: REDUCED,
            most_alone: REDUCED_ALONE,
            columns: None,
            streams: true,
        },
        rows: Rows {
            few_groups: 0,
            neighbours: NEIGHBOURING_ROWS,
            many_groups: None,
            most_invocations_of_halves: 512,
            few_invocations: 256,
            few_of_f64: false,
            most_of_f64: MOST_OF_F64,
            loads: LOADS,
        },
        maps: Maps {
            sharing: SHARING,
            most_shared: SMALL_ELEMENTS,
            most_single: 0,
            most_exact: 0,
            // A CPU has no latency to hide and compiles slowly, and takes an access of every lane one after the other,
            // whatever its size.
            least_unrolled: Some(1 << 14),
            least_paired: Some(1 << 14),
            // Twice as many elements take up to twice as long to compile.
            blocks: &[(1 << 20, 32), (1 << 16, 16)],
        },
        // lavapipe takes twice the time of a core for the same panel (2000 rows of f32: 15 ms by one workgroup, 32 by
        // many on one core and 19 on two).
        panels: Panels { tall: u64::MAX, most_matrices: 0, most_groups: 256 },
        // lavapipe takes 13 cycles for a comparison, and reads all that one of its lanes waits for.
        updates: Updates { owners: OWNERS, most_owned: 1 << 10, widest_run: 63, most_compared: 0 },
        // The host that records shares the cores.
        chains: Chains {
            side_by_side: None,
            most_lanes: MOST_LANES,
            most_work: 2_400_000,
            step_work: STEP_WORK,
            begins_early: None,
            least_steps: LEAST_STEPS,
        },
        loops: LOOPS,
        short: Short { groups: 1056, bytes: 16 << 20, flops: 1 << 28 },
        programs: programs(caps.kind, caps.max_invocations),
        transfers: transfers(caps),
        bulk_copies: bulk_copies(),
        rates: rates(caps.kind, memory_bytes(caps)),
        submissions: submissions(caps.kind, memory_bytes(caps)),
    }
}

/// Of all classes: splits of square tiles and of tiles for lanes make digits.
const LEAST_SPLIT_DEPTH: u64 = 512;

/// NVIDIA's processors have registers for four workgroups of products on matrix units, and for two of attention.
const RESIDENT: u64 = 4;
const ATTENTION: Attention = Attention { groups: 2, least_rows: 16, least_keys: 32, most_whole_keys: 128 };

/// Of lavapipe, whose compiler takes as long as a tile is large.
const LANE_TILES: Lanes = Lanes { least_work: [(32, 1 << 23), (16, 1 << 18)], busy_groups: 8, least_results: 128 };

/// A guess: an H100's second cache gives a multiprocessor up to 64 bytes a cycle, and 15 are its share of memory.
const DRAW: f64 = 2.0;

/// The sums of more vectors leave no registers for what is on its way: by eight, 14336 x 4096 of bf16 takes 86 us on an
/// H100 and 72 by fours, by four 41 and 44.
const EIGHTS_VECTORS: u64 = 4;

/// Two workgroups and more run at once where each takes no more shared memory than this. Four rows of c64 fill a sector
/// of memory.
const TRANSFORMS: Transforms =
    Transforms { groups: 0, least_fixed: 0, least_group_elements: 2048, shared_bytes: 32 << 10, neighbours: 4 };

/// Subgroups of common GPUs. Steps of chains wait at barriers more than they compute (5.3 us for the mixture model in
/// `examples/posteriors` on an H200, 5.5 with 512 invocations, 6.5 with 1024), a softmax and its loss of 128 x 10 take 2
/// us less with 512.
pub const LOCAL_SIZES: LocalSizes = LocalSizes { subgroup: 32, most_of_loops: 256, most: 512 };

/// Of a network several rows share a workgroup: 65,536 rows of 256, which one subgroup would hold, take an H200 0.58 ms
/// so, and 0.87 in registers.
const NETWORK_ROW: u64 = 256;

/// Enough to hide the second dispatch.
const REDUCED: u64 = 64;
const REDUCED_ALONE: u64 = 32;

/// A line of a GPU's cache, of f32.
const NEIGHBOURING_ROWS: u64 = 32;

/// - More vectors: several loads in flight hide the memory's latency behind costly functions (14 % on an H200, 2 to 5 %
///   for `x + 1`, while cheap ones of two operands lose 1 %).
/// - The most: what an invocation does once counts less (45 instructions an element instead of 47 for an exponential and
///   a hyperbolic tangent on an H200), and more loads are in flight; six and more take too many registers. On CPU
///   devices, where a subgroup takes 50 cycles to begin, everywhere.
/// - Listed: one subgroup computes all that is in doubt at once (normal draws on an H100: 100 us with four, 95 with two).
/// - Small workgroups: with 256 invocations, `x + 1` is 3 % slower on an H200; one vector in each is as fast as this
///   only while few buffers are in use (9 % slower among twelve of a GiB).
/// - Neighbours, those of a GPU's subgroup: a workgroup's are 3 % slower on an H200, and 4 KiB apart, as vectors of a
///   workgroup would be, arrays are in each other's way in a CPU's first cache.
/// - Together: the branch around stores where short forms don't serve divides the code (an exponential and a hyperbolic
///   tangent take a quarter longer with two elements between branches).
pub const SHARING: Sharing = Sharing {
    more_vectors: 2,
    most_vectors: 4,
    few_costly: 4,
    listed_vectors: 2,
    small_local_size: 128,
    neighbours: 32,
    together: 8,
};

/// Invocations enough to hide what one waits for.
const OWNERS: u64 = 1024;

/// More don't keep a device busier.
const MOST_LANES: u64 = 1024;

/// Results of more than `SMALL_BYTES` take the larger blocks of device memory. Uncached memory gives 128 bytes in 2 us,
/// 512 in 8 and 1 KiB in 30 on an H200, where a copy on the GPU into cached memory takes 15 to 20.
const SMALL_BYTES: u64 = 64 << 10;
const UNCACHED_READ_BYTES: u64 = 512;

fn transfers(caps: &Caps) -> Transfers {
    // Where the host reaches all of the device's memory, which drivers give 256 MiB of otherwise, one thread writes
    // 8.6 GB/s there over an H200's bus, and 5.9 to staging memory that has to be copied yet.
    let is_reached = |t: &MemoryTypeInfo| t.device_local && t.host_visible && t.host_coherent && !t.special;
    let reached = caps.memory_types.iter().filter(|t| is_reached(t)).filter_map(|t| caps.heaps.get(t.heap as usize));
    let reaches_all = reached.map(|heap| heap.size_bytes).max() == Some(memory_bytes(caps));
    let written_bytes = if reaches_all { COPY_LEAST_BYTES } else { SMALL_BYTES };
    Transfers { small_bytes: SMALL_BYTES, written_bytes, uncached_read_bytes: UNCACHED_READ_BYTES }
}

/// Copies of `COPY_LEAST_BYTES` are worth threads of their own, of which `COPY_THREADS` keep the bus of an H200 busy.
const COPY_LEAST_BYTES: u64 = 1 << 20;
const COPY_CHUNK_BYTES: u64 = 2 << 20;
const COPY_THREADS: usize = 12;

/// On this host, whatever the device.
fn bulk_copies() -> Copies {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(COPY_THREADS));
    Copies { least_bytes: COPY_LEAST_BYTES, chunk_bytes: COPY_CHUNK_BYTES, threads }
}

/// Half of the registers of an AMD GPU.
const MOST_OF_F64: u64 = 64;

/// Of GPUs and of lavapipe alike.
const LOADS: u64 = 4;

/// lavapipe takes 0.3 ms to begin a workgroup of 32 invocations, as long as 20 leapfrog steps of 10 parameters.
const LEAST_STEPS: u64 = 32;

/// Of some barriers: 2.5 us of a GPU and 20 of a CPU device.
const STEP_WORK: u64 = 13 * PHASE_WORK;

/// Looks need a submission each, which costs a GPU 7 us.
const LOOPS: Loops = Loops {
    ahead: Duration::from_millis(2),
    most_vain: Duration::from_millis(2),
    least_vain: Duration::from_micros(750),
};

/// Elements of a row that one invocation holds at most, on GPUs and on a CPU device, whose driver compiles each of them
/// slowly.
const MOST_ELEMENTS: u32 = 16;
const MOST_ELEMENTS_CPU: u32 = 4;

/// 32-bit registers that these take: half of what NVIDIA gives each of 1024 invocations.
const ROW_REGISTERS: u32 = 32;

/// Invocations of a row: the largest workgroup that the template has.
const MOST_INVOCATIONS: u32 = 1024;

/// Of a row whose elements are apart in memory: those of a workgroup still read a sector of 32 bytes together.
const COLUMN_INVOCATIONS: u32 = 32;

/// Invocations up to which programs are given kernels of rows on a CPU device, where those of several subgroups wait
/// for one another at each level of a tree: lavapipe takes twice as long for a softmax of 4096 rows of 1,000 in one
/// kernel as for four kernels that stream, and 1.5 times as long for rows of 100, which then take less memory.
const PLANNED_INVOCATIONS_CPU: u32 = 32;

/// Work that one workgroup of a GPU does in the time of a dependent dispatch (2.1 us on an H200): 128 lanes, of whose
/// time loads and barriers take nine tenths.
const DISPATCH_WORK: u64 = 24_000;

/// In large tiles a loop of steps costs registers: a product of 1024 x 2048 results takes 369 us instead of 230 on an
/// H200, a map of them 18 us. The step of a network of 784-2048-2048-10 units took 9 us of 976 longer there where
/// products took the steps of 2^21 activations. Products of fewer multiplications than `unit_work` never gained from
/// matrix units there, and to begin took about as long as reading `read_bytes`.
const JOINS: Joins = Joins {
    dispatch_work: DISPATCH_WORK,
    looped_results: 1 << 18,
    loaded_elements: 1 << 18,
    unit_operations: 1 << 31,
    unit_work: 1 << 26,
    unit_bytes: OPERAND_BYTES,
    read_bytes: 4 << 20,
};

/// Beyond about 64 of the 255 registers that NVIDIA gives an invocation, fewer of them fit on a multiprocessor than hide
/// the memory's latency.
const LIVE_WORDS: u32 = 40;

/// Two functions, or a quotient and a root for each moment of Adam. lavapipe's compiler takes longer than in proportion:
/// with four functions the gradient of 200 steps of a sine compiles for 4.1 s, with two for 1.9, with as many as fit for
/// 96; 0.2 s for four parts, 6 s for 23.
const QUICK: Quick = Quick { elements: SMALL_ELEMENTS, long_program: 64, instructions: 48, parts: 4 };

/// Elements that a launch takes microseconds for, while its kernel takes milliseconds to a second to compile.
const SMALL_ELEMENTS: u64 = 1 << 14;

/// A short iteration takes some 20 us of an H200, a dispatch that waits 2.1 and one that doesn't 0.2. Larger launches of
/// several matrices fill a device. A cache reads two sectors at once.
const SMALL_PRODUCTS: SmallProducts = SmallProducts { launches: 8, neighbours: 64, most_of_columns: 8, run_bytes: 64 };

/// A few instructions take less time than an element to come from memory, and any for fewer elements than a launch.
const REPEATS: Repeats = Repeats { instructions: 16, elements: SMALL_ELEMENTS };

/// Shares of a dispatch's time in which lanes multiply what matrix units begin with, and memory gives `read_bytes`.
const UNIT_SHARE: f64 = 0.5;
const READ_SHARE: f64 = 0.25;

/// What kernels of a GPU take in, by how long its dispatches, its lanes and its memory take.
pub(super) fn joins(processors: u64, products: &Products) -> Joins {
    let lanes = products.lanes * processors as f64;
    Joins {
        unit_work: power_near(UNIT_SHARE * products.dispatch * lanes),
        read_bytes: power_near(READ_SHARE * products.dispatch * products.bytes),
        ..JOINS
    }
}

/// Work of one iteration that a loop in one workgroup may have. Where the host decides, it waits for the device in
/// every iteration, some 30 us.
const ITERATION_WORK: u64 = 8 * DISPATCH_WORK;

/// Work of one dispatch, some 10 ms: drivers may end what runs for seconds.
const MAX_WORK: u64 = 4_800 * DISPATCH_WORK;

/// How many times as long a CPU device takes: lavapipe runs a workgroup on one core, at some tenth of the rate of one
/// processor of a GPU, and its host waits less.
const CPU_SLOWNESS: u64 = 8;

/// GPUs do 13 to 20 operations of f32 while they read a byte, and some 70 instructions for an element while they store
/// and read a number. A step of training takes some 3 percent longer for half its memory.
const RECOMPUTE: Recompute = Recompute { flops_per_byte: 16, shares: 1, most_per_byte: 6, most_instructions: 96 };

/// The most vectors for which a kernel computes the matrix: 14336 x 4096 from four bits takes 36 us by one and 45 by
/// four on an H200. On an H100, where elements were rounded to bf16, it took 59 and 75, by way of memory 139 and 129,
/// and by eight 188 and 141.
const MOST_DERIVED: u64 = 4;

pub(super) fn programs(kind: DeviceKind, max_invocations: u32) -> Programs {
    let invocations = 1 << MOST_INVOCATIONS.min(max_invocations.max(1)).ilog2();
    let rows = RowLimits {
        elements: MOST_ELEMENTS,
        registers: ROW_REGISTERS,
        invocations,
        column_invocations: COLUMN_INVOCATIONS,
        planned_invocations: invocations,
    };
    match kind {
        DeviceKind::Cpu => Programs {
            rows: RowLimits { elements: MOST_ELEMENTS_CPU, planned_invocations: PLANNED_INVOCATIONS_CPU, ..rows },
            // A CPU device copies neighbours faster than it chooses between them.
            chooses_parts: false,
            recompute: Recompute { shares: 0, ..RECOMPUTE },
            // lavapipe's dispatches cost little, and its compiler takes long for large kernels.
            joins_small_ops: false,
            attends_few: false,
            paired_vectors: 0,
            derived_vectors: 0,
            iteration_work: ITERATION_WORK / CPU_SLOWNESS,
            max_work: MAX_WORK / CPU_SLOWNESS,
            // Some 0.1 ms each with lavapipe on two cores, as long as five launches.
            short_bytes: 1 << 20,
            short_flops: 1 << 22,
            mapped_bytes: 16 << 20,
            joins: JOINS,
            live_words: LIVE_WORDS,
            quick: QUICK,
            small_products: SMALL_PRODUCTS,
            repeats: REPEATS,
        },
        DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual | DeviceKind::Other => Programs {
            rows,
            chooses_parts: true,
            recompute: RECOMPUTE,
            joins_small_ops: true,
            attends_few: true,
            paired_vectors: VectorTile::MOST_OF_PAIR,
            derived_vectors: MOST_DERIVED,
            iteration_work: ITERATION_WORK,
            max_work: MAX_WORK,
            // Some 20 us of an H200.
            short_bytes: 64 << 20,
            short_flops: 1 << 28,
            mapped_bytes: 256 << 20,
            joins: JOINS,
            live_words: LIVE_WORDS,
            quick: QUICK,
            small_products: SMALL_PRODUCTS,
            repeats: REPEATS,
        },
    }
}

/// GPUs read all of their memory in 30 to 100 ms; those that share it with the host take longer.
const GPU_MEMORY_NS: f64 = 1e8;
const SHARED_BYTES_PER_NS: f64 = 20.0;
const CPU_BYTES_PER_NS: f64 = 4.0;
/// Few, since f64 runs at a 32nd or 64th of the rate of f32 on GPUs that are made for games.
const FLOPS_PER_BYTE: f64 = 2.0;
/// An H200 does 30 for one workgroup of f32; of f64 such GPUs do 4.
const GPU_INSTRUCTIONS_PER_NS: f64 = 8.0;
const CPU_INSTRUCTIONS_PER_NS: f64 = 1.0;
/// An H200 takes 190 ns for an independent dispatch and 2.1 us for one that waits; lavapipe 4 and some 20 us.
const GPU_COMMAND_NS: [u64; 2] = [200, 4_000];
const CPU_COMMAND_NS: [u64; 2] = [4_000, 20_000];

/// Bytes of the largest heap of the device's own memory, or of any.
fn memory_bytes(caps: &Caps) -> u64 {
    let largest = |local: bool| caps.heaps.iter().filter(|h| h.device_local || !local).map(|h| h.size_bytes).max();
    largest(true).or(largest(false)).unwrap_or(0)
}

/// A submission of its own costs an operation 7 us on an H200, as long as it takes to write 30 MB there.
const IDLE_BYTES: u64 = 32 << 20;
const MOST_BUSY_BYTES: u64 = 4 << 30;

/// The share of the device's memory that submissions write while it is busy: devices with little memory are slow, and
/// drivers end submissions that take seconds.
const BUSY_SHARE: u64 = 32;

/// A thousand times what a submission costs, as estimates may be a few times too long: with 0.7 ms, `x + 1` of 8192^2
/// takes an H200 135 us, with one submission for 14 calls 128.
const LONG_NS: u64 = 10_000_000;

/// Blocking costs a GPU round trip 10 us more; on a CPU device the polling thread takes a core from the device itself.
const GPU_POLLS: Duration = Duration::from_micros(100);
const CPU_POLLS: Duration = Duration::from_micros(2);

fn submissions(kind: DeviceKind, memory_bytes: u64) -> Submissions {
    Submissions {
        first_ops: 8,
        doublings: 3,
        first_bytes: IDLE_BYTES,
        busy_bytes: (memory_bytes / BUSY_SHARE).clamp(IDLE_BYTES, MOST_BUSY_BYTES),
        long_ns: LONG_NS,
        polls: if kind == DeviceKind::Cpu { CPU_POLLS } else { GPU_POLLS },
    }
}

fn rates(kind: DeviceKind, memory_bytes: u64) -> Rates {
    let (bytes_per_ns, instructions_per_ns) = match kind {
        DeviceKind::Cpu => (CPU_BYTES_PER_NS, CPU_INSTRUCTIONS_PER_NS),
        DeviceKind::Integrated => (SHARED_BYTES_PER_NS, GPU_INSTRUCTIONS_PER_NS),
        DeviceKind::Discrete | DeviceKind::Virtual | DeviceKind::Other => {
            ((memory_bytes as f64 / GPU_MEMORY_NS).max(SHARED_BYTES_PER_NS), GPU_INSTRUCTIONS_PER_NS)
        }
    };
    let [command_ns, barrier_ns] = if kind == DeviceKind::Cpu { CPU_COMMAND_NS } else { GPU_COMMAND_NS };
    let flops_per_ns = bytes_per_ns * FLOPS_PER_BYTE;
    Rates { bytes_per_ns, flops_per_ns, instructions_per_ns, command_ns, barrier_ns }
}

#[cfg(test)]
mod tests {
    use nx_vulkan_device::work::Work;

    use super::*;

    #[test]
    fn what_one_workgroup_does_takes_time_however_little_it_moves() {
        const GIB: u64 = 1 << 30;
        let work = Work { read_bytes: 1000, written_bytes: 1000, flops: None, longest: 8_000_000 };
        let [large, small, shared, cpu] = [
            (DeviceKind::Discrete, 140),
            (DeviceKind::Discrete, 1),
            (DeviceKind::Integrated, 64),
            (DeviceKind::Cpu, 64),
        ]
        .map(|(kind, gib)| rates(kind, gib * GIB));
        for rates in [large, small, shared] {
            assert!((1_000_000..1_001_000).contains(&rates.ns(Some(work))), "{rates:?}");
        }
        assert!(cpu.ns(Some(work)) >= 8_000_000);
        assert!(large.ns(None) > 0);
        let moves = Some(Work { read_bytes: GIB, ..Work::default() });
        assert!(large.ns(moves) < 1_000_000 && small.ns(moves) == shared.ns(moves));
        let computes = Some(Work { flops: Some(GIB), ..Work::default() });
        assert!(large.ns(computes) < large.ns(moves) && cpu.ns(computes) > 100_000_000);
    }
}
