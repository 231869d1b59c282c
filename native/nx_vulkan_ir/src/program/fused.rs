//! What a fused op computes, worked out from its body, an ordinary program: one iteration space, and at each of its
//! indices loads, steps, reductions along some axes, and stores.

mod lowering;

use smallvec::SmallVec;

use lowering::{lowered, type_of};

use super::attribute::{Axes, Reduction};
use super::index_map::{IndexMap, Line, Lines};
use super::op::Op;
use super::ops::{Arity, Class};
use super::reducer::Reducer;
use super::step::{Ref, Step};
use super::{Instruction, Operand, Program};
use crate::shape::Dims;
use crate::{DType, Type, View};

/// What one kernel computes, loads and stores at most, of any device: operands have numbers of a byte among its
/// parameters, and its code is of a length that drivers compile in reasonable time. Whole numbers of 32 bits count a
/// quarter, since nothing has to be done for their digits: two blocks of random bits, of which an element of 64 bits is
/// drawn, are one kernel.
pub(crate) const MAX_VALUES: usize = 96;
pub(crate) const MAX_LOADS: usize = 24;
pub(crate) const MAX_STORES: usize = 12;

/// Parts of a larger shape that one kernel chooses from: it reads all of them at each index.
const MAX_PARTS: usize = 4;

/// Shapes to try for the iteration space.
const MAX_SPACES: usize = 4;

/// How many times as often as in its own instruction a costly step may run.
const MAX_REPEATS: u64 = 1;

/// A tensor as one of another shape: along lines, or where there are none as a reshape does.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Where its elements are; none where it is what a reshape gives.
    pub lines: Option<Lines>,
    /// Its shape.
    pub shape: Dims,
}

impl Seen {
    /// Whether some indices have no element.
    fn is_bounded(&self) -> bool {
        self.lines.iter().flatten().any(|line| line.count.is_some())
    }
}

/// An operand of the fused op as the kernel reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Which one.
    pub operand: u32,
    /// Its type.
    pub dtype: DType,
    /// From the operand to a view with the shape of the iteration space.
    pub views: Vec<Seen>,
    /// Whether it is the same for all elements of a row.
    pub row: bool,
    /// Whether some indices have no element of it: what is read there is not used.
    pub bounded: bool,
}

/// What computes a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Made {
    /// A step.
    Step(Step),
    /// Over the elements of a row.
    Reduction {
        /// What it makes of elements.
        reduction: Reduction,
        /// Whether the last of equal elements counts, not the first.
        tie_high: bool,
        /// What is reduced.
        of: Ref,
        /// The type of what comes out.
        out: DType,
    },
}

/// A value of the kernel. References to results count these.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Computed {
    /// What computes it.
    pub made: Made,
    /// Whether it is the same for all elements of a row.
    pub row: bool,
    /// How many passes over the row come before it can be computed.
    pub phase: u32,
}

impl Computed {
    /// Its type.
    pub fn dtype(&self) -> DType {
        match &self.made {
            Made::Step(step) => step.out,
            Made::Reduction { out, .. } => *out,
        }
    }
}

/// A result of the fused op.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// What is stored.
    pub value: Ref,
    /// The type of the result.
    pub ty: Type,
    /// One element per row, not one per index.
    pub row: bool,
}

/// One kernel's work.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sizes of the iteration space.
    pub space: Dims,
    /// The axes that make up a row; none where nothing is reduced.
    pub axes: Axes,
    /// What it reads.
    pub loads: Vec<Load>,
    /// What it computes, in order.
    pub values: Vec<Computed>,
    /// What it stores.
    pub stores: Vec<Store>,
}

/// Why a body is no kernel.
pub(crate) type Reason = String;

impl Plan {
    /// Works out what a body computes, of which no more than so many 32-bit words are needed at once.
    ///
    /// # Errors
    /// A reason where one kernel can't do it.
    pub fn of(body: &Program, live_words: u32) -> std::result::Result<Plan, Reason> {
        let makers: Vec<&Instruction> = body
            .instructions
            .iter()
            .map(|i| if i.outs.len() == 1 { Ok(i) } else { Err(format!("{} has several results", i.op.name())) })
            .collect::<std::result::Result<_, _>>()?;
        let reduction = makers.iter().find_map(|i| match &i.op {
            Op::Reduce { axes, .. } => i.operands.first().map(|&o| (o, axes)),
            _ => None,
        });
        if let Some((operand, axes)) = reduction {
            let mut axes = axes.clone();
            axes.sort_unstable();
            if axes.is_empty() {
                return Err("a reduction over no axes".to_string());
            }
            let space = type_of(body, &makers, operand)?.shape.clone();
            return Plan::over(body, &makers, space, axes, live_words);
        }
        // Any shape of the results' number of elements will do, if what is read can be seen in it.
        let first = type_of(body, &makers, *body.outputs.first().ok_or("no outputs")?)?;
        let mut spaces: Vec<&Dims> = vec![&first.shape];
        for maker in makers.iter().rev().filter_map(|i| i.outs.first()) {
            if maker.elements() == first.elements() && !spaces.contains(&&maker.shape) {
                spaces.push(&maker.shape);
            }
        }
        let finest =
            spaces[1..].iter().fold(first.shape.clone(), |space, shape| refined(&space, shape).unwrap_or(space));
        if !spaces.contains(&&finest) {
            spaces.truncate(MAX_SPACES - 1);
            spaces.push(&finest);
        }
        let mut reason = Reason::new();
        for space in spaces.into_iter().take(MAX_SPACES) {
            match Plan::over(body, &makers, space.clone(), Axes::new(), live_words) {
                Ok(plan) => return Ok(plan),
                Err(other) => reason = other,
            }
        }
        Err(reason)
    }

    /// What a body computes over a given space, in rows along the axes.
    fn over(
        body: &Program,
        makers: &[&Instruction],
        space: Dims,
        axes: Axes,
        live_words: u32,
    ) -> std::result::Result<Plan, Reason> {
        if space.contains(&0) {
            return Err("no elements".to_string());
        }
        let empty = Plan { space, axes, loads: Vec::new(), values: Vec::new(), stores: Vec::new() };
        let plan = lowered(body, makers, empty)?;
        if plan.values.iter().map(|value| weight(value.dtype())).sum::<usize>() > 4 * MAX_VALUES
            || plan.loads.len() > MAX_LOADS
            || plan.stores.len() > MAX_STORES
        {
            return Err("too much for one kernel".to_string());
        }
        if plan.live_words(false) > live_words {
            return Err("too many values at once".to_string());
        }
        Ok(plan)
    }

    /// The type of what a reference names.
    pub fn dtype(&self, r: Ref) -> DType {
        match r {
            Ref::Input(k) => self.loads.get(k as usize).map_or(DType::U32, |l| l.dtype),
            Ref::Result(k) => self.values.get(k as usize).map_or(DType::U32, Computed::dtype),
            Ref::Coordinate(_) | Ref::Linear => DType::U32,
            Ref::Constant(dtype, _) => dtype,
        }
    }

    /// Whether a value is the same for all elements of a row, and the passes over the row that come before it.
    pub fn level(&self, r: Ref) -> (bool, u32) {
        match r {
            Ref::Input(k) => (self.loads.get(k as usize).is_some_and(|l| l.row), 0),
            Ref::Result(k) => self.values.get(k as usize).map_or((true, 0), |v| (v.row, v.phase)),
            Ref::Coordinate(axis) => (!self.axes.contains(&(axis as usize)), 0),
            Ref::Linear => (false, 0),
            Ref::Constant(..) => (true, 0),
        }
    }

    /// What a reduction makes of its elements; `None` for a step.
    pub fn reducer(&self, value: &Computed) -> Option<Reducer> {
        let Made::Reduction { reduction, tie_high, of, out } = value.made else { return None };
        Some(Reducer { reduction, tie_high, input: self.dtype(of), out })
    }

    /// The values that are reductions, with their numbers.
    pub fn reductions(&self) -> impl Iterator<Item = (usize, &Computed)> {
        self.values.iter().enumerate().filter(|(_, v)| matches!(v.made, Made::Reduction { .. }))
    }

    /// What a plan reduces that does no more, if results of parts give that of the whole. Complex numbers of f64 are
    /// reduced as their parts.
    pub fn by_parts(&self) -> Option<Ref> {
        let ([store], Some((last, before))) = (&self.stores[..], self.values.split_last()) else { return None };
        let Made::Reduction { reduction, of, out, .. } = &last.made else { return None };
        let is_alone = before.iter().all(|value| matches!(value.made, Made::Step(_)))
            && store.value == Ref::Result(before.len() as u16)
            && store.ty.dtype == *out;
        let fits = !reduction.finds_place() && self.dtype(*of) != DType::C128 && matches!(of, Ref::Result(_));
        (is_alone && fits).then_some(*of)
    }

    /// Passes over a row that reduce.
    pub fn phases(&self) -> u32 {
        self.reductions().map(|(_, v)| v.phase).max().unwrap_or(0)
    }

    /// Elements of a row.
    pub(crate) fn row_elements(&self) -> u64 {
        self.axes.iter().filter_map(|&axis| self.space.get(axis)).product()
    }

    /// Elements of the iteration space.
    pub fn elements(&self) -> u64 {
        self.space.iter().product()
    }

    /// Sizes of the axes that are no part of a row.
    pub fn kept(&self) -> Dims {
        (0..self.space.len()).filter(|axis| !self.axes.contains(axis)).map(|axis| self.space[axis]).collect()
    }

    /// The most 32-bit words of values that are needed at once: of all, or of those that differ within a row.
    pub fn live_words(&self, within_rows: bool) -> u32 {
        let counts = |r: Ref| !(matches!(r, Ref::Constant(..)) || within_rows && self.level(r).0);
        let words = |r: Ref| {
            if counts(r) { self.dtype(r).ctype().dtype().size_bytes().div_ceil(4) as u32 } else { 0 }
        };
        let end = self.values.len();
        let uses = |i: usize| -> &[Ref] {
            match &self.values[i].made {
                Made::Step(step) => &step.args,
                Made::Reduction { of, .. } => std::slice::from_ref(of),
            }
        };
        // Where each is used last, in a list: fusion asks this of every group that it tries.
        let loads = self.loads.len();
        let slot = |r: Ref| match r {
            Ref::Result(k) => Some(usize::from(k)),
            Ref::Input(k) => Some(end + usize::from(k)),
            Ref::Linear => Some(end + loads),
            Ref::Coordinate(axis) => Some(end + loads + 1 + usize::from(axis)),
            Ref::Constant(..) => None,
        };
        let mut last: Vec<Option<usize>> = vec![None; end + loads + 1 + self.space.len()];
        let all = (0..end).flat_map(|i| uses(i).iter().map(move |&r| (r, i)));
        for (r, i) in all.chain(self.stores.iter().map(|store| (store.value, end))) {
            if let Some(last) = slot(r).and_then(|at| last.get_mut(at)) {
                *last = Some(i);
            }
        }
        // Loads are issued together before the first step, except where rows are held.
        let used = (0..loads).filter(|k| last[end + k].is_some()).map(|k| words(Ref::Input(k as u8)));
        let mut live: u32 = if within_rows { 0 } else { used.sum() };
        let mut seen = vec![false; loads];
        let mut most = live;
        for i in 0..end {
            for &r in uses(i) {
                if within_rows
                    && let Ref::Input(k) = r
                    && !std::mem::replace(&mut seen[usize::from(k)], true)
                {
                    live += words(r);
                    most = most.max(live);
                }
            }
            // A step's result takes the place of what it uses last.
            let mut dying: SmallVec<[Ref; 3]> = SmallVec::new();
            uses(i).iter().for_each(|&r| {
                if !dying.contains(&r) {
                    dying.push(r)
                }
            });
            let dies = |r: &&Ref| slot(**r).is_some_and(|at| last[at] == Some(i));
            live -= dying.iter().filter(dies).map(|&r| words(r)).sum::<u32>().min(live);
            if last[i].is_some() {
                live += words(Ref::Result(i as u16));
            }
            most = most.max(live);
        }
        most
    }
}

/// What a value of a type counts, of four times [`MAX_VALUES`].
pub(super) fn weight(dtype: DType) -> usize {
    if matches!(dtype, DType::U32 | DType::S32) { 1 } else { 4 }
}

/// The shape of the same elements, row by row, of which two others are reshapes that join neighbouring axes.
pub fn refined(a: &[u64], b: &[u64]) -> Option<Dims> {
    let (mut a, mut b) = (a.iter().rev(), b.iter().rev());
    let (mut left, mut right) = (1, 1);
    let mut shape = Dims::new();
    loop {
        while left == 1
            && let Some(&size) = a.next()
        {
            left = size;
        }
        while right == 1
            && let Some(&size) = b.next()
        {
            right = size;
        }
        let (least, most) = (left.min(right), left.max(right));
        if most == 1 {
            shape.reverse();
            return Some(shape);
        }
        if least == 1 || most % least != 0 {
            return None;
        }
        shape.push(least);
        (left, right) = (left / least, right / least);
    }
}

/// Whether the op only says where elements are, and nothing is read to know where.
pub fn is_view(op: &Op) -> bool {
    shares_memory(op) && *op != Op::Bitcast
}

/// Whether the result lies in the memory of the first operand, whatever else the op waits for.
pub(crate) fn shows_first(op: &Op) -> bool {
    is_view(op) || *op == Op::After
}

/// Whether an op shows its operand's memory in another way, be it as another type.
pub fn shares_memory(op: &Op) -> bool {
    op.kind(|kind| (kind.facts().class, kind.facts().arity)) == (Class::View, Arity::Exactly(1))
}

/// The map of an instruction that kernels can choose by the index: none where places are read, elements have indices
/// between them, or there are too many parts.
pub fn chosen<'a>(instruction: &Instruction, ty: impl Fn(Operand) -> Option<&'a Type>) -> Option<IndexMap> {
    let map = instruction.index_map(ty)?;
    let fits = |line: &Line| line.every == 1 && !line.is_read();
    let all_fit = map.parts.len() <= MAX_PARTS && map.parts.iter().flat_map(|part| &part.lines).all(fits);
    all_fit.then_some(map)
}

/// A view seen through others, in order. `None` where a reshape would have to move elements.
pub fn through(view: View, views: &[Seen]) -> Option<View> {
    views.iter().try_fold(view, |view, Seen { lines, shape }| match lines {
        Some(lines) => Some(view.along(lines, shape)),
        None => view.reshape(shape),
    })
}
