//! Chains from a log-density: its program, with the steps of the integrator around it, becomes one kernel, in which
//! each chain is one workgroup, or runs again and again with the whole device.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Run;
use super::form::{Form, Stepping, Steps};
use crate::kernels::Compile;
use crate::program::attribute::{Axes, Scalar};
use crate::program::{Binary, Instruction, Op, Operand, Program, Reduction, verify};
use crate::{DType, Engine, Error, Result, Tensor, Type};

/// Steps of one call.
pub const MAX_STEPS: u32 = 1 << 16;

/// How the inverse of the mass matrix is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mass {
    /// Its diagonal, `[d]`.
    Diagonal,
    /// All of it, `[d, d]`.
    Dense,
}

/// A compiled chain: leapfrog steps with a log-density and its gradient.
#[derive(Debug)]
pub struct LogDensityChain {
    steps: Arc<Steps>,
    parameters: u64,
    dtype: DType,
    mass: Mass,
    captured: Vec<Type>,
}

/// What starts B chains.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Positions, `[B, d]`.
    pub q: &'a Tensor,
    /// Momenta, `[B, d]`.
    pub p: &'a Tensor,
    /// `[d]` or `[d, d]`, the same for all chains.
    pub inverse_mass: &'a Tensor,
    /// `[B]`; a negative one goes back in time.
    pub step_size: &'a Tensor,
    /// What the log-density reads besides q.
    pub captured: &'a [Tensor],
    /// Steps of each chain, from 1 to [`MAX_STEPS`].
    pub steps: u32,
}

/// What every step of B chains of K steps left.
#[derive(Debug)]
pub struct Trace {
    /// Positions, `[B, K, d]`.
    pub q: Tensor,
    /// Momenta, `[B, K, d]`.
    pub p: Tensor,
    /// The gradient of the log-density, `[B, K, d]`.
    pub gradient: Tensor,
    /// The log-density, `[B, K]`.
    pub log_density: Tensor,
    /// `[B, K]`: half of p M^-1 p, less the log-density. Where it is not finite, the chain diverged.
    pub energy: Tensor,
}

fn invalid(reason: String) -> Error {
    Error::InvalidProgram { op: "chain".to_string(), reason }
}

impl LogDensityChain {
    /// Compiles the chain of `model`, which takes q (`[d]`, f32 or f64) and what it captures, and gives the log-density
    /// (a scalar) and its gradient (`[d]`), all of q's type. Without a `form`, each chain has a workgroup where that
    /// can run a step and does not take long for it, and else the whole device.
    ///
    /// # Errors
    /// `InvalidProgram` for a program of another form; `Unsupported` where one workgroup is asked for and can't run it:
    /// an op that it lacks, or too many elements or instructions; else what compilation answers.
    pub fn compile(engine: &Arc<Engine>, model: &Program, mass: Mass, form: Option<Form>) -> Result<LogDensityChain> {
        verify::program(model)?;
        let (parameters, dtype) = self::form(model)?;
        let captured = model.inputs[1..].to_vec();
        // q, p, gradient, step size; the inverse mass and what is captured are those of all chains.
        let own: Vec<bool> = (0..5 + captured.len()).map(|k| k < 4).collect();
        let stepping = Stepping { states: 3, begins: true };
        let steps = Arc::new(Steps::compile(engine, step(model, parameters, dtype, mass)?, stepping, &own, form)?);
        Ok(LogDensityChain { steps, parameters, dtype, mass, captured })
    }

    /// In what form the chains run.
    pub fn form(&self) -> Form {
        self.steps.form()
    }

    /// The type of positions and of everything that a chain leaves.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// d.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The types of what the log-density captures.
    pub fn captured(&self) -> &[Type] {
        &self.captured
    }

    /// Runs the chains. Returns when the last part of them is recorded ([`Run::advance`]): at once where they are one
    /// part. The same chain leaves the same bits, alone or among others, and its first steps are the same however many
    /// follow.
    ///
    /// # Errors
    /// As [`LogDensityChain::begin`] and [`Run::advance`].
    pub fn run(&self, engine: &Arc<Engine>, start: &Start<'_>, compile: Compile) -> Result<Trace> {
        Trace::of(self.begin(engine, start, compile)?.finish()?)
    }

    /// Begins a run of chains, of whose results [`Trace::of`] makes a trace. Returns at once.
    ///
    /// # Errors
    /// `InvalidArgument` for tensors of other types or shapes, and for no or too many steps; `TooLarge`, `OutOfMemory`
    /// for more than fits; `NeedsCompile` where a tensor must be copied by a kernel that is missing, the chains have
    /// the whole device, or they may take more than one part, and `compile` refuses to wait for that.
    pub fn begin(&self, engine: &Arc<Engine>, start: &Start<'_>, compile: Compile) -> Result<Run> {
        let d = self.parameters;
        let chains = match start.q.view.shape[..] {
            [chains, _] if (1..=u64::from(u16::MAX)).contains(&chains) => chains,
            _ => {
                let expected = format!("{}[B, {d}] with B from 1 to {}", self.dtype, u16::MAX);
                return Err(argument("q", expected, &start.q.view.ty()));
            }
        };
        let expect = |what: &'static str, tensor: &Tensor, shape: &[u64]| {
            let expected = Type::new(self.dtype, shape);
            if tensor.view.ty() == expected {
                Ok(())
            } else {
                Err(argument(what, expected.to_string(), &tensor.view.ty()))
            }
        };
        expect("q", start.q, &[chains, d])?;
        expect("p", start.p, &[chains, d])?;
        expect("inverse mass", start.inverse_mass, &self.mass.shape(d))?;
        expect("step size", start.step_size, &[chains])?;
        if start.captured.len() != self.captured.len() {
            let got = format!("{} tensors", start.captured.len());
            return Err(Error::InvalidArgument { what: "captured", expected: format!("{}", self.captured.len()), got });
        }
        for (tensor, ty) in start.captured.iter().zip(&self.captured) {
            if tensor.view.ty() != *ty {
                return Err(argument("captured", ty.to_string(), &tensor.view.ty()));
            }
        }
        let steps = u64::from(start.steps);
        if !(1..=MAX_STEPS).contains(&start.steps) {
            let expected = format!("1 to {MAX_STEPS}");
            return Err(Error::InvalidArgument { what: "steps", expected, got: steps.to_string() });
        }
        // The gradient before the first step is computed by a run that takes no step; until then q stands for it.
        let fixed = [start.q, start.p, start.q, start.step_size, start.inverse_mass];
        let inputs: Vec<Tensor> = fixed.into_iter().chain(start.captured).cloned().collect();
        self.steps.begin(engine, &inputs, [chains, steps], compile)
    }
}

impl Trace {
    /// What a run of a [`LogDensityChain`] left.
    ///
    /// # Errors
    /// `InvalidProgram` for the results of anything else.
    pub fn of(results: Vec<Tensor>) -> Result<Trace> {
        match <[Tensor; 5]>::try_from(results) {
            Ok([q, p, gradient, log_density, energy]) => Ok(Trace { q, p, gradient, log_density, energy }),
            Err(_) => Err(invalid("gives other results".to_string())),
        }
    }
}

fn argument(what: &'static str, expected: String, got: &Type) -> Error {
    Error::InvalidArgument { what, expected, got: got.to_string() }
}

impl Mass {
    fn shape(self, parameters: u64) -> SmallVec<[u64; 2]> {
        match self {
            Mass::Diagonal => smallvec![parameters],
            Mass::Dense => smallvec![parameters, parameters],
        }
    }
}

/// The number and type of a log-density's parameters.
fn form(model: &Program) -> Result<(u64, DType)> {
    let outputs = model.output_types();
    match (model.inputs.first(), &outputs[..]) {
        (Some(q), &[log_density, gradient])
            if q.shape.len() == 1
                && matches!(q.dtype, DType::F32 | DType::F64)
                && *log_density == Type::new(q.dtype, &[])
                && gradient == q =>
        {
            Ok((q.shape[0], q.dtype))
        }
        (q, _) => Err(invalid(format!("{q:?} to {outputs:?} is no log-density of f32[d] or f64[d] with its gradient"))),
    }
}

/// Instructions that are being put together.
struct Builder {
    program: Program,
    results: u32,
}

impl Builder {
    fn push(&mut self, op: Op, operands: &[Operand], ty: &Type) -> Operand {
        self.program.instructions.push(Instruction { op, operands: operands.into(), outs: smallvec![ty.clone()] });
        self.results += 1;
        Operand::Result(self.results - 1)
    }

    fn binary(&mut self, op: Binary, a: Operand, b: Operand, ty: &Type) -> Operand {
        self.push(Op::Binary(op), &[a, b], ty)
    }

    /// All instructions of `program`, whose inputs are `inputs`. Answers its outputs.
    fn inline(&mut self, program: &Program, inputs: &[Operand]) -> Result<Vec<Operand>> {
        let first = self.results;
        let map = |operand: &Operand| match *operand {
            Operand::Input(i) => inputs.get(i as usize).copied().ok_or_else(|| invalid(format!("no input {i}"))),
            Operand::Result(i) => Ok(Operand::Result(first + i)),
        };
        for instruction in &program.instructions {
            let operands = instruction.operands.iter().map(map).collect::<Result<_>>()?;
            self.results += instruction.outs.len() as u32;
            self.program.instructions.push(Instruction { operands, ..instruction.clone() });
        }
        program.outputs.iter().map(map).collect()
    }
}

/// One leapfrog step: counter, q, p, gradient, step size, inverse mass, captured to q, p, gradient, log-density,
/// energy. Step 0 stays where it is and gives the gradient there.
fn step(model: &Program, parameters: u64, dtype: DType, mass: Mass) -> Result<Program> {
    let (vector, scalar) = (Type::new(dtype, &[parameters]), Type::new(dtype, &[]));
    let counter = Type::new(DType::U32, &[]);
    let mut inputs = vec![counter.clone(), vector.clone(), vector.clone(), vector.clone(), scalar.clone()];
    inputs.push(Type::new(dtype, &mass.shape(parameters)));
    inputs.extend_from_slice(&model.inputs[1..]);
    let [count, q, p, gradient, step_size, inverse_mass] = [0, 1, 2, 3, 4, 5].map(Operand::Input);
    let mut b = Builder { program: Program { inputs, ..Program::default() }, results: 0 };
    let constant = |b: &mut Builder, value: Scalar, ty: &Type| b.push(Op::Constant(value), &[], ty);

    let none = constant(&mut b, Scalar::Int(0), &counter);
    let is_first = b.binary(Binary::Equal, count, none, &Type::new(DType::U8, &[]));
    let zero = constant(&mut b, Scalar::Float(0.0), &scalar);
    let time = b.push(Op::Select, &[is_first, zero, step_size], &scalar);
    let half = constant(&mut b, Scalar::Float(0.5), &scalar);
    let half_time = b.binary(Binary::Multiply, time, half, &scalar);
    let kick = b.binary(Binary::Multiply, half_time, gradient, &vector);
    let between = b.binary(Binary::Add, p, kick, &vector);
    let velocity = |b: &mut Builder, p: Operand| match mass {
        Mass::Diagonal => b.binary(Binary::Multiply, inverse_mass, p, &vector),
        Mass::Dense => {
            let (contract_a, contract_b) = (smallvec![1], smallvec![0]);
            let dot = Op::Dot { contract_a, batch_a: Axes::new(), contract_b, batch_b: Axes::new() };
            b.push(dot, &[inverse_mass, p], &vector)
        }
    };
    let v = velocity(&mut b, between);
    let drift = b.binary(Binary::Multiply, time, v, &vector);
    let q = b.binary(Binary::Add, q, drift, &vector);

    let captured = (6..b.program.inputs.len() as u32).map(Operand::Input);
    let model_inputs: Vec<Operand> = std::iter::once(q).chain(captured).collect();
    let outputs = b.inline(model, &model_inputs)?;
    let &[log_density, gradient] = &outputs[..] else { return Err(invalid("two outputs".to_string())) };

    let kick = b.binary(Binary::Multiply, half_time, gradient, &vector);
    let p = b.binary(Binary::Add, between, kick, &vector);
    let v = velocity(&mut b, p);
    let products = b.binary(Binary::Multiply, p, v, &vector);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: smallvec![0], tie_high: false };
    let twice = b.push(sum, &[products], &scalar);
    let kinetic = b.binary(Binary::Multiply, twice, half, &scalar);
    let energy = b.binary(Binary::Subtract, kinetic, log_density, &scalar);
    b.program.outputs = vec![q, p, gradient, log_density, energy];
    Ok(b.program)
}
