//! Programs put together op by op, with the types and shapes that Nx gives results.

use crate::program::ops::index::Take;
use std::cell::RefCell;

use smallvec::SmallVec;

use super::attribute::{Axes, Scalar};
use super::control::{Branches, Loop};
use super::{Binary, Elementwise, Instruction, Op, Operand, Program, Reduction, Unary, ops, verify};
use crate::dtype::merge;
use crate::{DType, Error, Result, Type};

/// Stands for a result where there is an error.
const NOWHERE: Operand = Operand::Result(u32::MAX);

/// An operand of an elementwise op: a value of the program, or a number of the other operand's type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// A value of the program.
    Operand(Operand),
    /// A number, which takes the type of the op's other operand.
    Number(f64),
}

impl From<Operand> for Arg {
    fn from(operand: Operand) -> Arg {
        Arg::Operand(operand)
    }
}

impl From<f64> for Arg {
    fn from(number: f64) -> Arg {
        Arg::Number(number)
    }
}

/// Builds a [`Program`]. Each method adds an instruction and answers where its result is.
///
/// Methods take `&self`, so that calls nest. What breaks a rule (shapes that don't broadcast, a type that the op does
/// not take) is remembered, later calls add nothing, and [`Builder::finish`] answers the first such error with the
/// number of its instruction. Operands belong to the builder that made them: functions that build parts of
/// [`Builder::while_loop`] and [`Builder::cond`] see only what they are given.
///
/// # Examples
/// ```
/// use nx_vulkan_ir::program::Builder;
/// use nx_vulkan_ir::{DType, Type};
///
/// # fn main() -> nx_vulkan_ir::Result<()> {
/// let b = Builder::new();
/// let (x, w) = (b.input(DType::F32, &[64, 10]), b.input(DType::F32, &[10]));
/// let sigmoid = b.sigmoid(b.dot(x, w));
/// let loss = b.negate(b.sum(b.log(b.max(sigmoid, 1e-6)), &[0]));
/// let program = b.finish(&[sigmoid, loss])?;
/// assert_eq!(program.output_types(), [&Type::new(DType::F32, &[64]), &Type::new(DType::F32, &[])]);
///
/// let b = Builder::new();
/// let (x, y) = (b.input(DType::F32, &[3]), b.input(DType::F32, &[4]));
/// let sum = b.add(x, y);
/// let error = b.finish(&[sum]).unwrap_err().to_string();
/// assert!(error.contains("instruction 0: add") && error.contains("broadcast"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Builder(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    program: Program,
    /// The types of all results, and which instruction makes each.
    types: Vec<Type>,
    makers: Vec<u32>,
    error: Option<Error>,
}

impl State {
    fn ty(&self, operand: Operand) -> Option<&Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(r) => self.types.get(r as usize),
        }
    }

    fn fail(&mut self, op: &str, reason: String) {
        let op = format!("instruction {}: {op}", self.program.instructions.len());
        self.error.get_or_insert(Error::InvalidProgram { op, reason });
    }
}

/// Methods with Nx's names for elementwise ops.
macro_rules! elementwise {
    (unary $($method:ident $op:ident),* $(,)?) => {
        $(
            #[doc = concat!("`Nx.", stringify!($method), "` of every element.")]
            pub fn $method(&self, a: Operand) -> Operand {
                self.unary(Unary::$op, a)
            }
        )*
    };
    (binary $($method:ident $op:ident),* $(,)?) => {
        $(
            #[doc = concat!("`Nx.", stringify!($method), "` of elements at the same place; shapes broadcast.")]
            pub fn $method(&self, a: impl Into<Arg>, b: impl Into<Arg>) -> Operand {
                self.binary(Binary::$op, a, b)
            }
        )*
    };
}

impl Builder {
    /// An empty program.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// The next input of the program.
    pub fn input(&self, dtype: DType, shape: &[u64]) -> Operand {
        let mut state = self.0.borrow_mut();
        let (i, ty) = (state.program.inputs.len(), Type::new(dtype, shape));
        if let Err(error) = verify::input(i, &ty) {
            state.error.get_or_insert(error);
        }
        state.program.inputs.push(ty);
        Operand::Input(i as u32)
    }

    /// The type of a value; that of an f32 scalar where there is an error.
    pub fn ty(&self, operand: Operand) -> Type {
        self.0.borrow().ty(operand).cloned().unwrap_or_else(|| Type::new(DType::F32, &[]))
    }

    /// The instruction that has a value as its only result.
    pub(super) fn maker(&self, operand: Operand) -> Option<Instruction> {
        let Operand::Result(r) = operand else { return None };
        let state = self.0.borrow();
        let at = *state.makers.get(r as usize)?;
        state.program.instructions.get(at as usize).filter(|instruction| instruction.outs.len() == 1).cloned()
    }

    /// How many results there are so far.
    pub fn results(&self) -> u32 {
        self.0.borrow().types.len() as u32
    }

    /// How many inputs there are so far.
    pub fn inputs(&self) -> u32 {
        self.0.borrow().program.inputs.len() as u32
    }

    /// The program with these outputs.
    ///
    /// # Errors
    /// `InvalidProgram`: the first rule that was broken. `TooLarge`, within `InOp`, where a value has more elements
    /// than any tensor.
    pub fn finish(self, outputs: &[Operand]) -> Result<Program> {
        let State { mut program, types, error, .. } = self.0.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        for &output in outputs {
            let exists = match output {
                Operand::Input(i) => (i as usize) < program.inputs.len(),
                Operand::Result(r) => (r as usize) < types.len(),
            };
            if !exists {
                let reason = format!("{output:?} does not exist");
                return Err(Error::InvalidProgram { op: "outputs".to_string(), reason });
            }
        }
        program.outputs = outputs.to_vec();
        Ok(program)
    }

    /// Adds any op of one result.
    pub fn push(&self, op: Op, operands: &[Operand], out: &Type) -> Operand {
        self.push_all(op, operands, std::slice::from_ref(out)).first().copied().unwrap_or(NOWHERE)
    }

    /// Adds any op. Answers one operand per result.
    pub fn push_all(&self, op: Op, operands: &[Operand], outs: &[Type]) -> Vec<Operand> {
        let mut state = self.0.borrow_mut();
        let nowhere = vec![NOWHERE; outs.len()];
        if state.error.is_some() {
            return nowhere;
        }
        let Some(types) = operands.iter().map(|&o| state.ty(o)).collect::<Option<Vec<&Type>>>() else {
            state.fail(op.name(), format!("{operands:?} do not exist before it"));
            return nowhere;
        };
        match verify::instruction(&op, &types, outs) {
            Ok(()) => {}
            Err(Error::InvalidProgram { op, reason }) => {
                state.fail(&op, reason);
                return nowhere;
            }
            Err(other) => {
                state.error = Some(other);
                return nowhere;
            }
        }
        let first = state.types.len() as u32;
        state.types.extend_from_slice(outs);
        let at = state.program.instructions.len() as u32;
        state.makers.extend(outs.iter().map(|_| at));
        state.program.instructions.push(Instruction {
            op,
            operands: SmallVec::from_slice(operands),
            outs: SmallVec::from(outs),
        });
        (first..).take(outs.len()).map(Operand::Result).collect()
    }

    /// Adds another program's instructions, which take `inputs` in the place of its own. Answers its outputs.
    pub fn append(&self, other: &Program, inputs: &[Operand]) -> Vec<Operand> {
        let mut results: Vec<Operand> = Vec::new();
        let find = |results: &[Operand], operand: Operand| match operand {
            Operand::Input(i) => inputs.get(i as usize).copied().unwrap_or(NOWHERE),
            Operand::Result(r) => results.get(r as usize).copied().unwrap_or(NOWHERE),
        };
        for instruction in &other.instructions {
            let operands: Vec<Operand> = instruction.operands.iter().map(|&o| find(&results, o)).collect();
            results.extend(self.push_all(instruction.op.clone(), &operands, &instruction.outs));
        }
        other.outputs.iter().map(|&o| find(&results, o)).collect()
    }

    /// What a rule of the builder's own found wrong.
    fn fail(&self, op: &str, reason: String) -> Operand {
        self.0.borrow_mut().fail(op, reason);
        NOWHERE
    }

    /// A scalar of any type.
    pub fn constant(&self, dtype: DType, value: Scalar) -> Operand {
        self.push(Op::Constant(value), &[], &Type::new(dtype, &[]))
    }

    /// A scalar of any type; integer types take the whole part.
    pub fn number(&self, dtype: DType, value: f64) -> Operand {
        let value = if dtype.is_integer() { Scalar::Int(value as i128) } else { Scalar::Float(value) };
        self.constant(dtype, value)
    }

    /// Elements that count along an axis, or through the whole tensor.
    pub fn iota(&self, dtype: DType, shape: &[u64], axis: Option<usize>) -> Operand {
        self.push(Op::Iota { axis }, &[], &Type::new(dtype, shape))
    }

    /// Ones on the diagonal of the last two axes.
    pub fn eye(&self, dtype: DType, shape: &[u64]) -> Operand {
        self.push(Op::Eye, &[], &Type::new(dtype, shape))
    }

    /// Any elementwise op of one operand.
    pub fn unary(&self, op: Unary, a: Operand) -> Operand {
        self.elementwise(Elementwise::Unary(op), Op::Unary(op), &[a])
    }

    /// Any elementwise op of two operands, whose shapes broadcast.
    pub fn binary(&self, op: Binary, a: impl Into<Arg>, b: impl Into<Arg>) -> Operand {
        let (a, b) = match (a.into(), b.into()) {
            (Arg::Operand(a), Arg::Operand(b)) => (a, b),
            (Arg::Operand(a), Arg::Number(b)) => (a, self.number(self.ty(a).dtype, b)),
            (Arg::Number(a), Arg::Operand(b)) => (self.number(self.ty(b).dtype, a), b),
            (Arg::Number(a), Arg::Number(b)) => (self.number(DType::F32, a), self.number(DType::F32, b)),
        };
        self.elementwise(Elementwise::Binary(op), Op::Binary(op), &[a, b])
    }

    fn elementwise(&self, elementwise: Elementwise, op: Op, operands: &[Operand]) -> Operand {
        if self.0.borrow().error.is_some() {
            return NOWHERE;
        }
        let types: Vec<Type> = operands.iter().map(|&o| self.ty(o)).collect();
        let dtypes: Vec<DType> = types.iter().map(|t| t.dtype).collect();
        let Some(dtype) = ops::result_dtype(elementwise, &dtypes) else {
            return self.fail(op.name(), format!("takes no {dtypes:?}"));
        };
        match ops::joint_shape(&types.iter().collect::<Vec<_>>()) {
            Ok(shape) => self.push(op, operands, &Type { dtype, shape }),
            Err(reason) => self.fail(op.name(), reason),
        }
    }

    elementwise!(unary
        exp Exp, expm1 Expm1, log Log, log1p Log1p, sigmoid Sigmoid, cos Cos, sin Sin, tan Tan, tanh Tanh, sqrt Sqrt,
        rsqrt Rsqrt, erf Erf, abs Abs, ceil Ceil, floor Floor, negate Negate, round Round, sign Sign, is_nan IsNan,
    );

    elementwise!(binary
        add Add, subtract Subtract, multiply Multiply, divide Divide, pow Pow, remainder Remainder, atan2 Atan2,
        min Min, max Max, equal Equal, not_equal NotEqual, greater Greater, less Less, greater_equal GreaterEqual,
        less_equal LessEqual, logical_and LogicalAnd, logical_or LogicalOr,
    );

    /// Elements of `on_true` where `predicate` is not 0, else of `on_false`; shapes broadcast.
    pub fn select(&self, predicate: Operand, on_true: impl Into<Arg>, on_false: impl Into<Arg>) -> Operand {
        let (on_true, on_false) = match (on_true.into(), on_false.into()) {
            (Arg::Operand(a), Arg::Operand(b)) => (a, b),
            (Arg::Operand(a), Arg::Number(b)) => (a, self.number(self.ty(a).dtype, b)),
            (Arg::Number(a), Arg::Operand(b)) => (self.number(self.ty(b).dtype, a), b),
            (Arg::Number(a), Arg::Number(b)) => (self.number(DType::F32, a), self.number(DType::F32, b)),
        };
        self.elementwise(Elementwise::Select, Op::Select, &[predicate, on_true, on_false])
    }

    /// The same numbers in another type, cut, rounded or wrapped as Nx does.
    pub fn as_type(&self, a: Operand, dtype: DType) -> Operand {
        self.push(Op::AsType, &[a], &Type { dtype, ..self.ty(a) })
    }

    /// The same elements in another shape.
    pub fn reshape(&self, a: Operand, shape: &[u64]) -> Operand {
        self.push(Op::Reshape, &[a], &Type::new(self.ty(a).dtype, shape))
    }

    /// Elements repeated to a larger shape, whose last axes are those of `a`.
    pub fn broadcast(&self, a: Operand, shape: &[u64]) -> Operand {
        let ty = self.ty(a);
        let Some(lead) = shape.len().checked_sub(ty.shape.len()) else {
            return self.fail("broadcast", format!("{:?} does not broadcast to {shape:?}", ty.shape));
        };
        self.push(Op::Broadcast { axes: (lead..shape.len()).collect() }, &[a], &Type::new(ty.dtype, shape))
    }

    /// Axis i of the result is axis `axes[i]` of `a`.
    pub fn transpose(&self, a: Operand, axes: &[usize]) -> Operand {
        let ty = self.ty(a);
        let Some(shape) = axes.iter().map(|&axis| ty.shape.get(axis).copied()).collect::<Option<Vec<u64>>>() else {
            return self.fail("transpose", format!("axes {axes:?} of {:?}", ty.shape));
        };
        self.push(Op::Transpose { axes: axes.into() }, &[a], &Type::new(ty.dtype, &shape))
    }

    /// `lengths` elements from `starts` on, along each axis.
    pub fn slice(&self, a: Operand, starts: &[u64], lengths: &[u64]) -> Operand {
        let op = Op::Slice {
            starts: starts.iter().map(|&start| i64::try_from(start).ok()).collect(),
            strides: SmallVec::from_elem(1, starts.len()),
            lengths: lengths.into(),
        };
        self.push(op, &[a], &Type::new(self.ty(a).dtype, lengths))
    }

    /// Element `i` of a vector as a scalar.
    pub fn at(&self, a: Operand, i: u64) -> Operand {
        self.reshape(self.slice(a, &[i], &[1]), &[])
    }

    /// Tensors one after the other along an axis.
    pub fn concatenate(&self, parts: &[Operand], axis: usize) -> Operand {
        let types: Vec<Type> = parts.iter().map(|&part| self.ty(part)).collect();
        let dtype = types.iter().map(|t| t.dtype).reduce(merge).unwrap_or(DType::F32);
        let mut shape = types.first().map(|t| t.shape.clone()).unwrap_or_default();
        if let Some(size) = shape.get_mut(axis) {
            *size = types.iter().filter_map(|t| t.shape.get(axis)).fold(0, |sum: u64, &n| sum.saturating_add(n));
        }
        self.push(Op::Concatenate { axis }, parts, &Type { dtype, shape })
    }

    /// A reduction over axes, which stay in the shape with size 1 if they are kept.
    pub fn reduce(&self, reduction: Reduction, a: Operand, axes: &[usize], keep_axes: bool) -> Operand {
        let ty = self.ty(a);
        let size = |(axis, &size): (usize, &u64)| match axes.contains(&axis) {
            true => keep_axes.then_some(1),
            false => Some(size),
        };
        let dtype = match reduction {
            Reduction::Sum | Reduction::Product => aggregate(ty.dtype),
            Reduction::Max | Reduction::Min => ty.dtype,
            Reduction::All | Reduction::Any => DType::U8,
            Reduction::ArgMax | Reduction::ArgMin => DType::S32,
        };
        let out = Type { dtype, shape: ty.shape.iter().enumerate().filter_map(size).collect() };
        self.push(Op::Reduce { reduction, axes: axes.into(), tie_high: false }, &[a], &out)
    }

    /// Sums over axes.
    pub fn sum(&self, a: Operand, axes: &[usize]) -> Operand {
        self.reduce(Reduction::Sum, a, axes, false)
    }

    /// Means over axes.
    pub fn mean(&self, a: Operand, axes: &[usize]) -> Operand {
        let shape = self.ty(a).shape;
        let count = axes.iter().filter_map(|&axis| shape.get(axis)).fold(1, |n: u64, &size| n.saturating_mul(size));
        self.divide(self.sum(a, axes), count as f64)
    }

    /// The largest elements along axes.
    pub fn reduce_max(&self, a: Operand, axes: &[usize]) -> Operand {
        self.reduce(Reduction::Max, a, axes, false)
    }

    /// Where the first of the largest elements along an axis are, as s32.
    pub fn argmax(&self, a: Operand, axis: usize) -> Operand {
        self.reduce(Reduction::ArgMax, a, &[axis], false)
    }

    /// `Nx.dot/2`: sums products over the last axis of `a` and the last but one of `b`, or its only one.
    pub fn dot(&self, a: Operand, b: Operand) -> Operand {
        let (x, y) = (self.ty(a).shape.len(), self.ty(b).shape.len());
        let (Some(last), true) = (x.checked_sub(1), y > 0) else { return self.multiply(a, b) };
        self.dot_axes([a, b], [&[last], &[y.saturating_sub(2)]], [&[], &[]])
    }

    /// `Nx.dot/6`: sums products over the contracted axes of both operands, for each index of the batch axes, which
    /// come first in the result. Axes are those of the first, then those of the second operand.
    pub fn dot_axes(&self, [a, b]: [Operand; 2], contract: [&[usize]; 2], batch: [&[usize]; 2]) -> Operand {
        let types = [self.ty(a), self.ty(b)];
        let batches = batch[0].iter().filter_map(|&axis| types[0].shape.get(axis).copied());
        let free = |k: usize| {
            let used = move |axis: usize| contract[k].contains(&axis) || batch[k].contains(&axis);
            types[k].shape.iter().enumerate().filter(move |(axis, _)| !used(*axis)).map(|(_, &size)| size)
        };
        let shape = batches.chain(free(0)).chain(free(1)).collect();
        let [contract_a, contract_b] = contract.map(Axes::from_slice);
        let [batch_a, batch_b] = batch.map(Axes::from_slice);
        let dtype = merge(types[0].dtype, types[1].dtype);
        self.push(Op::Dot { contract_a, batch_a, contract_b, batch_b }, &[a, b], &Type { dtype, shape })
    }

    /// `Nx.take/3`: the indices' axes in the place of the axis.
    pub fn take(&self, a: Operand, indices: Operand, axis: usize) -> Operand {
        let (ty, places) = (self.ty(a), self.ty(indices));
        let (before, after) = (ty.shape.iter().take(axis), ty.shape.iter().skip(axis + 1));
        let shape = before.chain(&places.shape).chain(after).copied().collect();
        self.push(Op::from(Take { axis }), &[a, indices], &Type { dtype: ty.dtype, shape })
    }

    /// Runs `body` on a state while `condition` gives a scalar other than 0; answers the last state. Both get the state
    /// and then the captured values; `body` gives the next state, of the same types.
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_ir::program::Builder;
    /// use nx_vulkan_ir::reference::{self, Array};
    /// use nx_vulkan_ir::{DType, Type};
    ///
    /// # fn main() -> nx_vulkan_ir::Result<()> {
    /// // Doubles x until it is at least the limit.
    /// let b = Builder::new();
    /// let (x, limit) = (b.input(DType::F32, &[]), b.input(DType::F32, &[]));
    /// let last = b.while_loop(&[x], &[limit], |b, v| b.less(v[0], v[1]), |b, v| vec![b.add(v[0], v[0])]);
    /// let program = b.finish(&last)?;
    /// let scalar = |x: f32| Array::from_nx_bytes(&Type::new(DType::F32, &[]), &x.to_ne_bytes());
    /// let results = reference::run(&program, &[scalar(3.0)?, scalar(40.0)?])?;
    /// assert_eq!(results[0].to_nx_bytes(), 48f32.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn while_loop(
        &self,
        state: &[Operand],
        captured: &[Operand],
        condition: impl FnOnce(&Builder, &[Operand]) -> Operand,
        body: impl FnOnce(&Builder, &[Operand]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        let operands = [state, captured].concat();
        let outs: Vec<Type> = state.iter().map(|&o| self.ty(o)).collect();
        let condition = self.part(&operands, |b, inputs| vec![condition(b, inputs)]);
        match (condition, self.part(&operands, body)) {
            (Ok(condition), Ok(body)) => {
                self.push_all(Op::While(Box::new(Loop::new(condition, body))), &operands, &outs)
            }
            (Err(e), _) | (_, Err(e)) => self.broken_part("while", e, outs.len()),
        }
    }

    /// What one of two programs gives: `on_true` where the scalar `predicate` is not 0, else `on_false`. Both get the
    /// captured values and give values of the same types.
    pub fn cond(
        &self,
        predicate: Operand,
        captured: &[Operand],
        on_true: impl FnOnce(&Builder, &[Operand]) -> Vec<Operand>,
        on_false: impl FnOnce(&Builder, &[Operand]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        match (self.part(captured, on_true), self.part(captured, on_false)) {
            (Ok(on_true), Ok(on_false)) => {
                let outs: Vec<Type> = on_true.output_types().into_iter().cloned().collect();
                let operands = [&[predicate], captured].concat();
                self.push_all(Op::Cond(Box::new(Branches { on_true, on_false })), &operands, &outs)
            }
            (Err(e), _) | (_, Err(e)) => self.broken_part("cond", e, 1),
        }
    }

    /// A program whose inputs have the types of `inputs`.
    fn part(&self, inputs: &[Operand], build: impl FnOnce(&Builder, &[Operand]) -> Vec<Operand>) -> Result<Program> {
        let part = Builder::new();
        let inputs: Vec<Operand> = inputs
            .iter()
            .map(|&input| {
                let ty = self.ty(input);
                part.input(ty.dtype, &ty.shape)
            })
            .collect();
        let outputs = build(&part, &inputs);
        part.finish(&outputs)
    }

    fn broken_part(&self, op: &str, error: Error, results: usize) -> Vec<Operand> {
        self.fail(op, error.to_string());
        vec![NOWHERE; results.max(1)]
    }
}

/// The type in which Nx adds up.
fn aggregate(dtype: DType) -> DType {
    match dtype {
        DType::U64 | DType::S64 => DType::S64,
        t if t.is_unsigned() => DType::U32,
        t if t.is_integer() => DType::S32,
        t => t,
    }
}
