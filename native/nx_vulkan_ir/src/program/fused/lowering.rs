//! Works out of a body, from its results on, what each value is and where its elements are seen.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{Computed, Load, MAX_REPEATS, Made, Plan, Reason, Seen, Store, chosen, through};
use crate::program::attribute::{Axes, Reduction};
use crate::program::index_map::{IndexMap, Line, Lines, is_identity, repeated};
use crate::program::op::Op;
use crate::program::ops::keeps_bits;
use crate::program::step::{Ref, Step};
use crate::program::{Binary, Elementwise, Instruction, Operand, Program};
use crate::shape::{Dims, contiguous_strides};
use crate::value::Value;
use crate::{CType, DType, Type, View};

/// The type of an operand of a body.
pub(super) fn type_of<'a>(
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

/// A plan with what a body stores, and all that leads there.
pub(super) fn lowered(body: &Program, makers: &[&Instruction], empty: Plan) -> std::result::Result<Plan, Reason> {
    let mut lowering = Lowering { body, makers, plan: empty, chains: Vec::new(), known: BTreeMap::new() };
    body.outputs.iter().try_for_each(|&output| lowering.store(output))?;
    Ok(lowering.plan)
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
