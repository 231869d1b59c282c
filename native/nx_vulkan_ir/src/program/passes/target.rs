//! What passes need to know of a device.

use crate::DType;
use crate::program::Program;
use crate::program::attention::Attention;
use crate::program::attention_gradient::AttentionGradient;
use crate::program::fused::{Made, Plan};
use crate::program::reductions::{Reductions, Repeats};
use crate::program::rows::RowLimits;

/// What passes need to know of a device. An engine says what its device is ([`crate`] knows none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// What kernels of rows hold.
    pub rows: RowLimits,
    /// Whether one kernel that chooses between parts of something larger is faster than a copy of each.
    pub chooses_parts: bool,
    /// Whether runs of small ops become kernels of one workgroup.
    pub joins_small_ops: bool,
    /// Work of one iteration that a loop in one workgroup may have, in instructions of all invocations.
    pub iteration_work: u64,
    /// Work of one dispatch that has loops of which nobody knows how often they run, at most.
    pub max_work: u64,
    /// Bytes of an iteration that costs no more in vain than launches that read whether they have to
    /// run: as long as its kernels take to start, some 20 us on an H200.
    pub short_bytes: u64,
    /// Operations on numbers of such an iteration.
    pub short_flops: u64,
    /// Bytes that a value of iterations that run side by side may take; 0 where none do.
    pub mapped_bytes: u64,
    /// Whether large products of f32 run on matrix units.
    pub matrix_units: bool,
    /// Whether those of f16 and bf16 do.
    pub half_units: bool,
    /// What attention becomes one kernel.
    pub heads: Heads,
    /// The most vectors that one kernel multiplies with two matrices; 0 where none does.
    pub paired_vectors: u64,
    /// The most vectors for which one kernel computes the elements of a matrix from others; 0 where none does.
    pub derived_vectors: u64,
    /// The most bytes that memory has for what is reduced. More is reduced a part at a time.
    pub reduced_bytes: u64,
    /// Whether groups of ops become one kernel each.
    pub fusion: bool,
    /// Whether small loops and runs of small ops become kernels of one workgroup.
    pub workgroups: bool,
    /// What fused kernels do to take less memory.
    pub saving: Saving,
    /// How much is computed again for what reads it late.
    pub recompute: Recompute,
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

/// What kernels of small ops hold in programs that have many of them, so that drivers compile these soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quick {
    /// Elements up to which an op is small.
    pub elements: u64,
    /// Costly small ops, and parts that are put into something small, from which a program is long.
    pub long_program: usize,
    /// What costly steps of a kernel take at most, in instructions; as much again may be done once for a row.
    pub instructions: u64,
    /// Parts that a kernel puts into something larger, at most.
    pub parts: usize,
}

/// How small products become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallProducts {
    /// Launches that wait for each other in the time of a short iteration of a loop.
    pub launches: u64,
    /// Launches beside each other in that time.
    pub neighbours: u64,
    /// What a launch of products with several matrices does at most, in times of what a small one does.
    pub most_of_columns: u64,
    /// Neighbours of one result in a stack, at least, in bytes: as much as is read from memory at once.
    pub run_bytes: u64,
}

/// Up to where kernels take in what stands beside them, by what that costs and saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joins {
    /// Work, about the instructions of all invocations, that one workgroup does in the time of a dependent dispatch.
    pub dispatch_work: u64,
    /// Results of a product up to which its kernel takes steps that stand in a loop.
    pub looped_results: u64,
    /// Elements of an operand up to which they take steps in products, several times each.
    pub loaded_elements: u64,
    /// Operations from which products run on matrix units, whose results are stored in a loop anyway.
    pub unit_operations: u64,
    /// Multiplications below which matrix units never take a product: to write its operands costs more than they gain.
    pub unit_work: u64,
    /// Bytes that both operands of matrix units take at most where products on these take steps in.
    pub unit_bytes: u64,
    /// Bytes that are read while a kernel waits for the one that stores them: as many are read, and not computed again
    /// from more.
    pub read_bytes: u64,
}

impl Target {
    /// Whether there is a kernel for the plan.
    pub(super) fn takes(&self, plan: &Plan) -> bool {
        let reduces = plan.reductions().next().is_some();
        let in_parts = || self.is_too_large(plan) && plan.stores.iter().all(|store| store.row);
        !reduces || Reductions::of(plan, self.repeats).is_some() || self.rows.fit(plan) || in_parts()
    }

    /// Whether memory has no room for what a plan reduces.
    pub fn is_too_large(&self, plan: &Plan) -> bool {
        plan.reductions().any(|(_, value)| match value.made {
            Made::Reduction { of, .. } => {
                plan.elements().saturating_mul(plan.dtype(of).size_bytes()) > self.reduced_bytes
            }
            Made::Step(_) => false,
        })
    }
}

/// What kernels do to take less memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Saving {
    /// Nothing: they do as much each as they can.
    #[default]
    Nothing,
    /// They come in the order of the program's ops.
    Order,
    /// And what they read lives no longer than it does where ops run one by one.
    Kernels,
    /// They reduce nothing else than what lies in memory, so that what computes it takes no more than its own result
    /// there.
    Reductions,
}

/// What attention a device has kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heads {
    /// Whether there are any for f16.
    pub f16: bool,
    /// And for bf16.
    pub bf16: bool,
    /// The most elements of a query, and of a value.
    pub max_depth: u64,
    /// How many of them lie together.
    pub together: u64,
    /// Queries of a batch from which on that pays.
    pub min_rows: u64,
    /// What it has kernels for that take f32, f16 and bf16.
    pub few: FewQueries,
}

impl Heads {
    /// Whether there are any kernels.
    pub fn any(&self) -> bool {
        self.has_tiles() || self.few.max_rows > 0
    }

    /// Whether there are any for more than few queries.
    pub fn has_tiles(&self) -> bool {
        self.f16 || self.bf16
    }

    /// Whether there is a kernel for it.
    pub fn take(&self, attention: &Attention, body: &Program) -> bool {
        let out = body.output_types().first().map(|ty| ty.dtype);
        let is_float = matches!(out, Some(DType::F16 | DType::Bf16 | DType::F32));
        let is_tiled = self.tiles(attention, out);
        is_of(attention, body, out) && (is_tiled || is_float && self.few.take(attention))
    }

    /// Whether there are kernels for a gradient.
    pub fn take_gradient(&self, gradient: &AttentionGradient, body: &Program) -> bool {
        let types = body.output_types();
        let out = types.first().map(|ty| ty.dtype);
        let given = body.inputs.get(gradient.given.operand as usize).map(|ty| ty.dtype);
        let is_alike = given == out && types.iter().all(|ty| Some(ty.dtype) == out);
        is_alike && is_of(&gradient.of, body, out) && self.tiles(&gradient.of, out)
    }

    /// Whether matrix units take it.
    fn tiles(&self, attention: &Attention, dtype: Option<DType>) -> bool {
        let has = match dtype {
            Some(DType::F16) => self.f16,
            Some(DType::Bf16) => self.bf16,
            _ => false,
        };
        let fits = |n: u64| n <= self.max_depth && n.is_multiple_of(self.together.max(1));
        has && fits(attention.depth) && fits(attention.width) && attention.rows() >= self.min_rows
    }
}

/// Whether attention is of elements, all of one type.
fn is_of(attention: &Attention, body: &Program, dtype: Option<DType>) -> bool {
    let dtypes = attention.factors.each_ref().map(|f| body.inputs.get(f.operand as usize).map(|ty| ty.dtype));
    let is_empty = attention.space.contains(&0) || attention.depth == 0 || attention.width == 0;
    dtypes == [dtype; 3] && !is_empty
}

/// Attention of few queries in each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FewQueries {
    /// The most queries of a batch; 0 where there are no kernels.
    pub max_rows: u64,
    /// The most elements of a query, and of a value.
    pub max_depth: u64,
    /// Keys from which on that pays.
    pub min_keys: u64,
}

impl FewQueries {
    fn take(&self, attention: &Attention) -> bool {
        attention.kept.is_none()
            && attention.rows() <= self.max_rows
            && attention.depth.max(attention.width) <= self.max_depth
            && attention.keys() >= self.min_keys
    }
}

/// How much of what programs do may be done again. Without shares nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recompute {
    /// Operations on numbers that take as long as reading a byte.
    pub flops_per_byte: u64,
    /// Sixteenths of what the program costs that it may cost in addition.
    pub shares: u64,
    /// What a byte that is not kept may cost, in bytes that are read in the same time.
    pub most_per_byte: u64,
    /// Instructions for an element that are worth it.
    pub most_instructions: u64,
}
