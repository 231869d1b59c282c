//! What a fused op computes, worked out from its body, an ordinary program: one iteration space, and at each of its
//! indices loads, steps, reductions along some axes, and stores.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::attribute::{Axes, Reduction};
use super::index_map::{IndexMap, Line, Lines, is_identity, repeated};
use super::op::Op;
use super::ops::{Arity, Class, keeps_bits};
use super::reducer::Reducer;
use super::step::{Ref, Step};
use super::{Binary, Elementwise, Instruction, Operand, Program};
use crate::shape::{Dims, contiguous_strides};
use crate::value::Value;
use crate::{CType, DType, Type, View};

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
        let mut lowering = Lowering {
            body,
            makers,
            plan: Plan { space, axes, loads: Vec::new(), values: Vec::new(), stores: Vec::new() },
            chains: vec![],
            known: BTreeMap::new(),
        };
        body.outputs.iter().try_for_each(|&output| lowering.store(output))?;
        let plan = lowering.plan;
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

/// The type of an operand of a body.
fn type_of<'a>(
    body: &'a Program,
    makers: &[&'a Instruction],
    operand: Operand,
) -> std::result::Result<&'a Type, Reason> {
    let found = match operand {
        Operand::Input(i) => body.inputs.get(i as usize),
        Operand::Result(r) => makers.get(r as usize).and_then(|i| i.outs.first()),
    };
    found.ok_or_else(|| format!("{operand:?} does not exist"))
}

/// A view after one of its parts, as a list from the inside to the iteration space. Number 0 is the space itself.
type ChainId = usize;

/// A view of what follows it from the inside.
#[derive(Debug, Clone, PartialEq)]
struct Link {
    seen: Seen,
    outer: ChainId,
}

struct Lowering<'a> {
    body: &'a Program,
    makers: &'a [&'a Instruction],
    plan: Plan,
    chains: Vec<Link>,
    known: BTreeMap<(Operand, ChainId), Ref>,
}

/// Why a value can't be worked out.
enum Stop {
    /// It is computed from this one, which has to be known first.
    Unknown(Operand, ChainId),
    Never(Reason),
}

impl<R: Into<Reason>> From<R> for Stop {
    fn from(reason: R) -> Stop {
        Stop::Never(reason.into())
    }
}

impl Lowering<'_> {
    fn ty(&self, operand: Operand) -> std::result::Result<Type, Reason> {
        type_of(self.body, self.makers, operand).cloned()
    }

    /// The chain that first shows what has one shape as one of another, along lines or as a reshape does, and then
    /// `outer`.
    fn chain(&mut self, lines: Option<Lines>, from: &[u64], to: &[u64], outer: ChainId) -> ChainId {
        match &lines {
            Some(lines) if is_identity(lines, from, to) => return outer,
            None if from == to => return outer,
            None => {
                let next = outer.checked_sub(1).and_then(|at| self.chains.get(at));
                if let Some(Link { seen: Seen { lines: None, shape }, outer }) = next {
                    let (shape, outer) = (shape.clone(), *outer);
                    return self.chain(None, from, &shape, outer);
                }
            }
            Some(_) => {}
        }
        let link = Link { seen: Seen { lines, shape: to.into() }, outer };
        if let Some(known) = self.chains.iter().position(|l| *l == link) {
            return known + 1;
        }
        self.chains.push(link);
        self.chains.len()
    }

    fn views(&self, mut chain: ChainId) -> Vec<Seen> {
        let mut views = Vec::new();
        while let Some(link) = chain.checked_sub(1).and_then(|at| self.chains.get(at)) {
            views.push(link.seen.clone());
            chain = link.outer;
        }
        views
    }

    fn store(&mut self, output: Operand) -> std::result::Result<(), Reason> {
        let ty = self.ty(output)?;
        let (space, axes) = (self.plan.space.clone(), self.plan.axes.clone());
        let kept_axes: Axes = (0..space.len()).filter(|axis| !axes.contains(axis)).collect();
        let kept: Dims = kept_axes.iter().map(|&axis| space[axis]).collect();
        let ones: Dims = (0..space.len()).map(|axis| if axes.contains(&axis) { 1 } else { space[axis] }).collect();
        let row = !axes.is_empty() && ty.shape != space;
        let chain = if !row {
            if ty.elements() != self.plan.elements() {
                return Err(format!("results of {:?} and {space:?}", ty.shape));
            }
            self.chain(None, &ty.shape, &space, 0)
        } else if ty.shape == kept {
            self.chain(Some(repeated(&kept, kept_axes, &space)), &kept, &space, 0)
        } else if ty.shape == ones {
            self.chain(Some(repeated(&ones, 0..space.len(), &space)), &ones, &space, 0)
        } else {
            return Err(format!("a result of {:?} for rows of {space:?}", ty.shape));
        };
        let value = self.value(output, chain)?;
        if row && !self.plan.level(value).0 {
            return Err("a result of one element per row that differs within the row".to_string());
        }
        self.plan.stores.push(Store { value, ty, row });
        Ok(())
    }

    /// The value of an operand, seen through a chain of views, at an index of the space, and before it what it is
    /// computed from. A list takes the place of recursion, for which the stacks of the BEAM's dirty schedulers, 320
    /// KiB, are too small.
    fn value(&mut self, operand: Operand, chain: ChainId) -> std::result::Result<Ref, Reason> {
        let mut open = vec![(operand, chain)];
        while let Some(&(operand, chain)) = open.last() {
            let found = match operand {
                Operand::Input(k) => self.load(k, chain)?,
                Operand::Result(r) => {
                    let maker = *self.makers.get(r as usize).ok_or("an operand does not exist")?;
                    match self.result(maker, chain) {
                        Ok(found) => found,
                        Err(Stop::Unknown(operand, chain)) => {
                            open.push((operand, chain));
                            continue;
                        }
                        Err(Stop::Never(reason)) => return Err(reason),
                    }
                }
            };
            self.known.insert((operand, chain), found);
            open.pop();
        }
        self.known.get(&(operand, chain)).copied().ok_or_else(|| "a value without a maker".to_string())
    }

    /// The value of an operand as [`Lowering::value`] found it.
    fn found(&self, operand: Operand, chain: ChainId) -> std::result::Result<Ref, Stop> {
        self.known.get(&(operand, chain)).copied().ok_or(Stop::Unknown(operand, chain))
    }

    fn load(&mut self, operand: u32, chain: ChainId) -> std::result::Result<Ref, Reason> {
        let ty = self.ty(Operand::Input(operand))?;
        let view = self.seen(&ty, chain)?;
        let row = !self.plan.axes.is_empty()
            && self.plan.axes.iter().all(|&axis| view.strides[axis] == 0 || self.plan.space[axis] == 1);
        let views = self.views(chain);
        let bounded = views.iter().any(Seen::is_bounded);
        self.plan.loads.push(Load { operand, dtype: ty.dtype, views, row, bounded });
        u8::try_from(self.plan.loads.len() - 1).map(Ref::Input).map_err(|_| "too many loads".to_string())
    }

    /// How a contiguous tensor looks through a chain.
    fn seen(&self, ty: &Type, chain: ChainId) -> std::result::Result<View, Reason> {
        let view = through(View::contiguous(ty.dtype, &ty.shape), &self.views(chain));
        let view = view.ok_or("a reshape that moves elements")?;
        if view.shape != self.plan.space {
            return Err(format!("{:?} seen as {:?}, not {:?}", ty.shape, view.shape, self.plan.space));
        }
        Ok(view)
    }

    fn result(&mut self, maker: &Instruction, chain: ChainId) -> std::result::Result<Ref, Stop> {
        let out = maker.outs.first().ok_or("no result")?;
        if let Some(op) = maker.op.elementwise() {
            return self.elementwise(op, &maker.operands, out, chain);
        }
        match &maker.op {
            Op::Bitcast => {
                let source = *maker.operands.first().ok_or("no operand")?;
                if !keeps_bits(self.ty(source)?.dtype, out.dtype) {
                    return Err("bits that registers do not have".into());
                }
                let args = SmallVec::from_slice(&[self.found(source, chain)?]);
                Ok(self.step(Step { op: Elementwise::Bitcast, args, out: out.dtype })?)
            }
            Op::Reshape | Op::Squeeze => {
                let source = *maker.operands.first().ok_or("no operand")?;
                let from = self.ty(source)?;
                let inner = self.chain(None, &from.shape, &out.shape, chain);
                self.found(source, inner)
            }
            Op::Constant(value) => {
                let ctype = out.dtype.ctype();
                let bits = Value::from(*value).cast(out.dtype).to_bits(ctype.dtype());
                if ctype == CType::C128 {
                    return Err("a constant of 128 bits".into());
                }
                Ok(Ref::Constant(out.dtype, bits as u64))
            }
            Op::Iota { axis } => {
                let index = match axis {
                    Some(axis) => self.counted(out, *axis, chain)?,
                    None => self.index(View::contiguous(out.dtype, &out.shape), chain)?,
                };
                Ok(self.step(Step { op: Elementwise::AsType, args: SmallVec::from_slice(&[index]), out: out.dtype })?)
            }
            Op::Eye => {
                let lead = out.shape.len().checked_sub(2).ok_or("eye of a vector")?;
                let args = [self.counted(out, lead, chain)?, self.counted(out, lead + 1, chain)?];
                let args = SmallVec::from_slice(&args);
                Ok(self.step(Step { op: Elementwise::Binary(Binary::Equal), args, out: out.dtype })?)
            }
            Op::Reduce { reduction, axes, tie_high } => {
                let source = *maker.operands.first().ok_or("no operand")?;
                self.reduced(source, (*reduction, axes, *tie_high), out, chain)
            }
            op => match chosen(maker, |operand| type_of(self.body, self.makers, operand).ok()) {
                Some(map) => self.moved(maker, &map, out, chain),
                None => Err(format!("{} is no part of kernels", op.name()).into()),
            },
        }
    }

    /// The step of an op on operands that broadcast to the result.
    fn elementwise(
        &mut self,
        op: Elementwise,
        operands: &[Operand],
        out: &Type,
        chain: ChainId,
    ) -> std::result::Result<Ref, Stop> {
        let mut args: SmallVec<[Ref; 3]> = SmallVec::new();
        for &operand in operands {
            let from = type_of(self.body, self.makers, operand)?;
            let inner = if from.shape == out.shape {
                chain
            } else {
                let lead = out.shape.len() - from.shape.len().min(out.shape.len());
                let lines = repeated(&from.shape, lead..out.shape.len(), &out.shape);
                self.chain(Some(lines), &from.shape, &out.shape, chain)
            };
            args.push(self.found(operand, inner)?);
        }
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|&r| self.plan.dtype(r)).collect();
        let step = self.step(Step { op, args, out: out.dtype })?;
        let row = self.plan.level(step).0 && !self.plan.axes.is_empty();
        let repeats = self.plan.elements() / out.elements().max(1);
        if !row && repeats > MAX_REPEATS && !op.is_cheap(&dtypes, out.dtype) {
            return Err(format!("{} would be computed {repeats} times", op.name()).into());
        }
        Ok(step)
    }

    /// The indices of a result along an axis.
    fn counted(&mut self, out: &Type, axis: usize, chain: ChainId) -> std::result::Result<Ref, Stop> {
        let mut counted = View::contiguous(out.dtype, &out.shape);
        counted.strides.iter_mut().enumerate().for_each(|(i, s)| *s = i64::from(i == axis));
        Ok(self.index(counted, chain)?)
    }

    /// What a reduction gives for each row.
    fn reduced(
        &mut self,
        source: Operand,
        (reduction, axes, tie_high): (Reduction, &Axes, bool),
        out: &Type,
        chain: ChainId,
    ) -> std::result::Result<Ref, Stop> {
        let mut axes = axes.clone();
        axes.sort_unstable();
        if axes != self.plan.axes || self.ty(source)?.shape != self.plan.space {
            return Err("reductions over different axes".into());
        }
        if out.dtype == DType::C128 {
            return Err("a reduction of c128".into());
        }
        if self.views(chain).iter().any(Seen::is_bounded) {
            return Err("a reduction as part of something larger".into());
        }
        // Seen from the space, the result must repeat along the row and be in place across rows.
        let seen = self.seen(out, chain)?;
        let kept = contiguous_strides(&self.plan.kept());
        let mut expected = kept.iter();
        let in_place = (0..self.plan.space.len()).all(|axis| {
            let wanted = if axes.contains(&axis) { Some(&0) } else { expected.next() };
            self.plan.space[axis] == 1 || Some(&seen.strides[axis]) == wanted
        });
        if !in_place || seen.offset != 0 {
            return Err("a reduction that is read elsewhere".into());
        }
        let of = self.found(source, 0)?;
        let phase = self.plan.level(of).1 + 1;
        let made = Made::Reduction { reduction, tie_high, of, out: out.dtype };
        // The same reduction seen through other views.
        if let Some(known) = self.plan.values.iter().position(|v| v.made == made) {
            return Ok(result_ref(known)?);
        }
        Ok(self.push(Computed { made, row: true, phase })?)
    }

    /// The value of an op that only moves elements: what is around its parts, but for the indices where one of these
    /// lies.
    fn moved(
        &mut self,
        maker: &Instruction,
        map: &IndexMap,
        out: &Type,
        chain: ChainId,
    ) -> std::result::Result<Ref, Stop> {
        let operand = |k: usize| maker.operands.get(k).copied().ok_or("an operand is missing");
        let mut found = None;
        if let Some(around) = map.around {
            let around = operand(around)?;
            let from = self.ty(around)?.shape;
            let lines = repeated(&from, 0..from.len(), &out.shape);
            let inner = self.chain(Some(lines), &from, &out.shape, chain);
            found = Some(self.found(around, inner)?);
        }
        for part in &map.parts {
            let source = operand(part.operand)?;
            let from = self.ty(source)?.shape;
            if from.contains(&0) {
                continue;
            }
            let inner = self.chain(Some(part.lines.clone()), &from, &out.shape, chain);
            let value = self.found(source, inner)?;
            let inside = match found {
                Some(others) => self.inside(&part.lines, out, chain)?.map(|inside| (inside, others)),
                None => None,
            };
            let (op, args): (_, SmallVec<[Ref; 3]>) = match inside {
                Some((inside, others)) => (Elementwise::Select, SmallVec::from_slice(&[inside, value, others])),
                None if self.plan.dtype(value) == out.dtype => {
                    found = Some(value);
                    continue;
                }
                None => (Elementwise::AsType, SmallVec::from_slice(&[value])),
            };
            found = Some(self.step(Step { op, args, out: out.dtype })?);
        }
        found.ok_or_else(|| "nothing but empty parts".into())
    }

    /// Whether an index of a shape lies on lines: a number that is not 0 there, or nothing where all do.
    fn inside(&mut self, lines: &[Line], out: &Type, chain: ChainId) -> std::result::Result<Option<Ref>, Reason> {
        let mut inside: Option<Ref> = None;
        for line in lines {
            let Some(count) = line.count else { continue };
            let count = u32::try_from(count).map_err(|_| "an axis beyond 32 bits")?;
            let mut counted = View::contiguous(DType::U32, &out.shape);
            counted.strides.iter_mut().enumerate().for_each(|(i, s)| *s = i64::from(i == line.along));
            counted.offset = line.at.number().wrapping_neg() as u64;
            // Indices before the first are beyond all sizes.
            let at = self.index(counted, chain)?;
            let binary =
                |op, a, b| Step { op: Elementwise::Binary(op), args: SmallVec::from_slice(&[a, b]), out: DType::U8 };
            let below = self.step(binary(Binary::Less, at, Ref::Constant(DType::U32, count.into())))?;
            inside = Some(match inside {
                Some(inside) => self.step(binary(Binary::BitwiseAnd, inside, below))?,
                None => below,
            });
        }
        Ok(inside)
    }

    /// The number that counts along an iota that has the layout of `counted`, as a u32.
    fn index(&mut self, counted: View, chain: ChainId) -> std::result::Result<Ref, Reason> {
        let view = through(counted, &self.views(chain)).ok_or("a reshape that moves elements")?;
        let space = self.plan.space.clone();
        if view.shape != space || self.plan.elements() > u64::from(u32::MAX) {
            return Err("an index beyond the space".to_string());
        }
        if view.offset == 0 && view.is_contiguous() && self.plan.axes.is_empty() && space.len() != 1 {
            return Ok(Ref::Linear);
        }
        let word = |value: i64| Ref::Constant(DType::U32, u64::from(value as u32));
        let binary =
            |op, a, b| Step { op: Elementwise::Binary(op), args: SmallVec::from_slice(&[a, b]), out: DType::U32 };
        let mut sum: Option<Ref> = (view.offset != 0).then(|| word(view.offset as i64));
        for (axis, &size) in space.iter().enumerate() {
            let stride = view.strides[axis];
            if stride == 0 || size == 1 {
                continue;
            }
            let coordinate = Ref::Coordinate(axis as u8);
            let term = match stride {
                1 => coordinate,
                _ => self.step(binary(Binary::Multiply, coordinate, word(stride)))?,
            };
            sum = Some(match sum {
                Some(sum) => self.step(binary(Binary::Add, sum, term))?,
                None => term,
            });
        }
        Ok(sum.unwrap_or(word(0)))
    }

    fn step(&mut self, step: Step) -> std::result::Result<Ref, Reason> {
        // Equal steps of equal arguments: there are too few to hash them.
        let is_known = |value: &Computed| matches!(&value.made, Made::Step(known) if *known == step);
        if let Some(known) = self.plan.values.iter().position(is_known) {
            return result_ref(known);
        }
        let levels: SmallVec<[(bool, u32); 3]> = step.args.iter().map(|&r| self.plan.level(r)).collect();
        let row = levels.iter().all(|l| l.0);
        let phase = levels.iter().map(|l| l.1).max().unwrap_or(0);
        self.push(Computed { made: Made::Step(step), row, phase })
    }

    fn push(&mut self, value: Computed) -> std::result::Result<Ref, Reason> {
        self.plan.values.push(value);
        result_ref(self.plan.values.len() - 1)
    }
}

fn result_ref(index: usize) -> std::result::Result<Ref, Reason> {
    u16::try_from(index).map(Ref::Result).map_err(|_| "too many values".to_string())
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
