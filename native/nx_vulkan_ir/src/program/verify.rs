//! Checks that a program keeps the rules of the format: operands exist, attributes are in range, and the shapes and types
//! of results are those that the ops give.

use super::op::Axes;
use super::{Binary, Cumulative, Elementwise, Function, Op, Operand, Program, Reduction, Unary, factorization};
use crate::dtype::merge;
use crate::shape::Dims;
use crate::{DType, Error, Result, Type};

/// Checks a whole program.
///
/// # Errors
/// `InvalidProgram`, with the number of the instruction; `TooLarge`, within `InOp`, for a type that no tensor may have.
pub fn program(program: &Program) -> Result<()> {
    let named = |what: String| {
        move |e: Error| match e {
            Error::InvalidProgram { op, reason } => Error::InvalidProgram { op: format!("{what}: {op}"), reason },
            other => other,
        }
    };
    for (i, ty) in program.inputs.iter().enumerate() {
        input(i, ty)?;
    }
    let results: Vec<&Type> = program.results().collect();
    let find = |operand: Operand, before: usize| match operand {
        Operand::Result(k) => results.iter().take(before).nth(k as usize).copied(),
        Operand::Input(k) => program.inputs.get(k as usize),
    };
    let mut before = 0;
    for (i, instruction) in program.instructions.iter().enumerate() {
        let at = || named(format!("instruction {i}"));
        let name = instruction.op.name();
        let types: Vec<&Type> = instruction
            .operands
            .iter()
            .map(|&operand| {
                find(operand, before).ok_or_else(|| bad(name, format!("{operand:?} does not exist before it")))
            })
            .collect::<Result<_>>()
            .map_err(at())?;
        self::instruction(&instruction.op, &types, &instruction.outs).map_err(at())?;
        before += instruction.outs.len();
    }
    for &output in &program.outputs {
        if find(output, results.len()).is_none() {
            return Err(bad("outputs", format!("{output:?} does not exist")));
        }
    }
    Ok(())
}

/// Checks the type of one input.
///
/// # Errors
/// `TooLarge`, within `InOp`.
pub fn input(i: usize, ty: &Type) -> Result<()> {
    ty.check().map_err(|cause| Error::InOp {
        op: format!("input {i}"),
        operands: vec![],
        outs: vec![ty.clone()],
        cause: Box::new(cause),
    })
}

/// Checks one op with the types of its operands against the types that it should give.
///
/// # Errors
/// `InvalidProgram` with the op's name; `TooLarge`, within `InOp`, for a result that no tensor may have.
pub fn instruction(op: &Op, operands: &[&Type], outs: &[Type]) -> Result<()> {
    outs.iter().try_for_each(Type::check).map_err(|cause| Error::InOp {
        op: op.name().to_string(),
        operands: operands.iter().map(|&t| t.clone()).collect(),
        outs: outs.to_vec(),
        cause: Box::new(cause),
    })?;
    check_all(op, operands, outs).map_err(|reason| bad(op.name(), reason))
}

fn check_all(op: &Op, operands: &[&Type], outs: &[Type]) -> Check {
    if let Op::Qr { .. } | Op::Eigh | Op::Svd { .. } = op {
        arity(op, operands.len())?;
        let expected = operands.first().and_then(|a| factorization::results(op, a));
        let expected = expected.ok_or_else(|| "needs a matrix that it can factorize".to_string())?;
        return require(expected == outs, || format!("gives {expected:?}, not {outs:?}"));
    }
    if let Op::Linalg(op) = op {
        return op.check(operands, outs);
    }
    match (op, outs) {
        (Op::While(op), _) => op.check(operands, outs),
        (Op::Cond(op), _) => op.check(operands, outs),
        (Op::Fused(body), _) => fused(body, operands, outs),
        (Op::Workgroup(program), _) => super::workgroup::check(program, operands, outs),
        (Op::TopK { k }, [values, places]) => {
            arity(op, operands.len())?;
            top_k(operands[0], *k, values, places)
        }
        (_, [out]) => check(op, operands, out),
        _ => Err(format!("has one result, got {}", outs.len())),
    }
}

fn bad(op: &str, reason: String) -> Error {
    Error::InvalidProgram { op: op.to_string(), reason }
}

type Check = std::result::Result<(), String>;

fn require(condition: bool, reason: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(reason()) }
}

fn check(op: &Op, operands: &[&Type], out: &Type) -> Check {
    arity(op, operands.len())?;
    if let Some(elementwise) = op.elementwise() {
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        require(accepts(elementwise, &dtypes, out.dtype), || format!("{dtypes:?} do not give {}", out.dtype))?;
        let joint = joint_shape(operands)?;
        return same_shape(&joint, out);
    }
    let Some(&a) = operands.first() else { return nullary(op, out) };
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => Err("not elementwise".to_string()),
        Op::Constant(_) | Op::Iota { .. } | Op::Eye => nullary(op, out),
        Op::Bitcast => {
            require(a.dtype.bits() == out.dtype.bits(), || {
                format!("{} and {} have different widths", a.dtype, out.dtype)
            })?;
            same_shape(&a.shape, out)
        }
        Op::Reshape => {
            same_dtype(a, out)?;
            require(a.elements() == out.elements(), || format!("{:?} has not the elements of {:?}", a.shape, out.shape))
        }
        Op::Squeeze => {
            same_dtype(a, out)?;
            let long = |shape: &[u64]| shape.iter().copied().filter(|&n| n != 1).collect::<Dims>();
            require(long(&a.shape) == long(&out.shape) && a.shape.len() >= out.shape.len(), || {
                format!("{:?} is not {:?} less axes of size 1", out.shape, a.shape)
            })
        }
        Op::Broadcast { axes } => {
            same_dtype(a, out)?;
            distinct(axes, out.shape.len())?;
            require(
                axes.len() == a.shape.len()
                    && axes.iter().zip(&a.shape).all(|(&axis, &size)| size == 1 || size == out.shape[axis]),
                || format!("{:?} does not broadcast to {:?} along {axes:?}", a.shape, out.shape),
            )
        }
        Op::Transpose { axes } => {
            same_dtype(a, out)?;
            distinct(axes, a.shape.len())?;
            require(axes.len() == a.shape.len(), || format!("{} axes for rank {}", axes.len(), a.shape.len()))?;
            same_shape(&axes.iter().map(|&axis| a.shape[axis]).collect::<Dims>(), out)
        }
        Op::Reverse { axes } => {
            same_dtype(a, out)?;
            distinct(axes, a.shape.len())?;
            same_shape(&a.shape, out)
        }
        Op::Slice { starts, strides, lengths } => {
            same_dtype(a, out)?;
            window(a, starts, lengths, &operands[1..])?;
            require(strides.len() == lengths.len() && strides.iter().all(|&s| s > 0), || {
                format!("strides {strides:?}")
            })?;
            let shape: Dims = lengths.iter().zip(strides).map(|(length, stride)| length.div_ceil(*stride)).collect();
            same_shape(&shape, out)
        }
        Op::PutSlice { starts } => {
            holds(operands[..2].iter(), out)?;
            window(a, starts, &operands[1].shape, &operands[2..])?;
            same_shape(&a.shape, out)
        }
        Op::Pad { config } => {
            holds(operands.iter(), out)?;
            require(operands[1].shape.is_empty(), || format!("a value of shape {:?}", operands[1].shape))?;
            same_shape(&padded(a, config)?, out)
        }
        Op::Concatenate { axis } => {
            holds(operands.iter(), out)?;
            require(*axis < a.shape.len(), || format!("axis {axis} of rank {}", a.shape.len()))?;
            let mut joint = a.shape.clone();
            joint[*axis] = 0;
            for operand in operands {
                let fits = operand.shape.len() == joint.len()
                    && (0..joint.len()).all(|i| i == *axis || operand.shape[i] == joint[i]);
                require(fits, || format!("{:?} beside {:?} along axis {axis}", operand.shape, a.shape))?;
                joint[*axis] = joint[*axis].saturating_add(operand.shape[*axis]);
            }
            same_shape(&joint, out)
        }
        Op::Stack { axis } => {
            holds(operands.iter(), out)?;
            require(*axis <= a.shape.len(), || format!("axis {axis} of rank {}", a.shape.len() + 1))?;
            for operand in operands {
                require(operand.shape == a.shape, || format!("{:?} beside {:?}", operand.shape, a.shape))?;
            }
            let mut stacked = a.shape.clone();
            stacked.insert(*axis, operands.len() as u64);
            same_shape(&stacked, out)
        }
        Op::Reduce { reduction, axes, .. } => reduce(*reduction, axes, a, out),
        Op::Window { reduction, windows } => {
            require(Reduction::WINDOWED.contains(reduction), || format!("{} of windows", reduction.name()))?;
            require(!a.dtype.is_complex() || matches!(reduction, Reduction::Sum | Reduction::Product), || {
                format!("{} has no order", a.dtype)
            })?;
            same_dtype(a, out)?;
            same_shape(&windows.counts(&a.shape)?, out)
        }
        Op::Sort { axis, .. } | Op::Argsort { axis, .. } => {
            ordered(a)?;
            if matches!(op, Op::Sort { .. }) {
                same_dtype(a, out)?;
            }
            require(*axis < a.shape.len(), || format!("axis {axis} of rank {}", a.shape.len()))?;
            same_shape(&a.shape, out)
        }
        Op::TopK { .. } => Err("has two results".to_string()),
        Op::Scan { scan, axis, .. } => {
            same_dtype(a, out)?;
            if matches!(scan, Cumulative::Max | Cumulative::Min) {
                ordered(a)?;
            }
            require(*axis < a.shape.len(), || format!("axis {axis} of rank {}", a.shape.len()))?;
            same_shape(&a.shape, out)
        }
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot([a, operands[1]], [contract_a, contract_b], [batch_a, batch_b], out)
        }
        Op::Fold { axes, function } => {
            folded(function, operands, out)?;
            kept(axes, a, out)
        }
        Op::WindowFold { windows, function } => {
            folded(function, operands, out)?;
            same_shape(&windows.counts(&a.shape)?, out)
        }
        Op::WindowScatter { windows, .. } => {
            let (source, initial) = (operands[1], operands[2]);
            holds([source, initial].iter(), out)?;
            require(!a.dtype.is_complex() && !out.dtype.is_complex(), || "complex numbers have no order".to_string())?;
            require(windows.dilations.iter().all(|&step| step == 1), || "dilated windows".to_string())?;
            require(initial.elements() == 1, || format!("an initial value of {:?}", initial.shape))?;
            same_shape(&windows.counts(&a.shape)?, source)?;
            same_shape(&a.shape, out)
        }
        Op::Conv(conv) => {
            holds(operands.iter(), out)?;
            require(!out.dtype.is_integer(), || format!("a convolution of type {}", out.dtype))?;
            same_shape(&conv.output(&conv.sizes(&a.shape, &operands[1].shape)?), out)
        }
        Op::Take { axis } | Op::TakeAlongAxis { axis } => {
            same_dtype(a, out)?;
            let indices = operands[1];
            require(indices.dtype.is_integer(), || format!("indices of {}", indices.dtype))?;
            require(*axis < a.shape.len(), || format!("axis {axis} of rank {}", a.shape.len()))?;
            if matches!(op, Op::Take { .. }) {
                let (outer, inner) = (&a.shape[..*axis], &a.shape[axis + 1..]);
                return same_shape(&outer.iter().chain(&indices.shape).chain(inner).copied().collect::<Dims>(), out);
            }
            let rest = |shape: &[u64]| shape.iter().enumerate().all(|(i, &n)| i == *axis || a.shape.get(i) == Some(&n));
            require(indices.shape.len() == a.shape.len() && rest(&indices.shape), || {
                format!("indices of {:?} for {:?}", indices.shape, a.shape)
            })?;
            same_shape(&indices.shape, out)
        }
        Op::Fft { kind, axis, length, .. } => kind.check(*axis, *length, a, out),
        Op::Gather { axes } => {
            same_dtype(a, out)?;
            let vectors = index_vectors(axes, a, operands[1])?;
            let rest = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]);
            same_shape(&vectors.into_iter().chain(rest).collect::<Dims>(), out)
        }
        Op::Qr { .. } | Op::Eigh | Op::Svd { .. } => Err("has several results".to_string()),
        Op::While(_) | Op::Cond(_) | Op::Workgroup(_) => Err("runs programs".to_string()),
        Op::Fused(body) => fused(body, operands, std::slice::from_ref(out)),
        Op::IndexedAdd { axes } | Op::IndexedPut { axes } => {
            let updates = operands[2];
            holds([a, updates].iter(), out)?;
            let vectors = index_vectors(axes, a, operands[1])?;
            let rest: Dims = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]).collect();
            let expected = crate::shape::elements(&vectors.iter().chain(&rest).copied().collect::<Dims>());
            require(updates.elements() == expected, || {
                format!("updates of {:?} for index vectors {vectors:?} and rows {rest:?}", updates.shape)
            })?;
            same_shape(&a.shape, out)
        }
        Op::Linalg(op) => op.check(operands, std::slice::from_ref(out)),
    }
}

fn nullary(op: &Op, out: &Type) -> Check {
    let rank = out.shape.len();
    match op {
        Op::Iota { axis: Some(axis) } => require(*axis < rank, || format!("axis {axis} of rank {rank}")),
        Op::Eye => require(rank >= 2, || format!("needs two axes, got {:?}", out.shape)),
        _ => Ok(()),
    }
}

/// Whether an op takes `n` operands.
fn arity(op: &Op, n: usize) -> Check {
    let missing = |starts: &[Option<i64>]| starts.iter().filter(|s| s.is_none()).count();
    let expected = match op {
        Op::Constant(_) | Op::Iota { .. } | Op::Eye => 0,
        Op::Unary(_)
        | Op::AsType
        | Op::Bitcast
        | Op::Reshape
        | Op::Squeeze
        | Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Qr { .. }
        | Op::Eigh
        | Op::Svd { .. }
        | Op::Reduce { .. }
        | Op::Window { .. }
        | Op::Sort { .. }
        | Op::Argsort { .. }
        | Op::TopK { .. }
        | Op::Fft { .. }
        | Op::Scan { .. } => 1,
        Op::Binary(_)
        | Op::Pad { .. }
        | Op::Dot { .. }
        | Op::Conv(_)
        | Op::Gather { .. }
        | Op::Take { .. }
        | Op::TakeAlongAxis { .. } => 2,
        Op::Select | Op::Clip | Op::WindowScatter { .. } | Op::IndexedAdd { .. } | Op::IndexedPut { .. } => 3,
        Op::Slice { starts, .. } => 1 + missing(starts),
        Op::PutSlice { starts } => 2 + missing(starts),
        Op::Concatenate { .. } | Op::Stack { .. } => n.max(1),
        Op::Linalg(_) | Op::While(_) | Op::Cond(_) | Op::Fused(_) | Op::Workgroup(_) => n,
        Op::Fold { .. } | Op::WindowFold { .. } => n.max(2),
    };
    require(n == expected, || format!("needs {expected} operands, got {n}"))
}

/// Integers, floats, complex numbers: each holds what comes before it, roughly.
fn class(dtype: DType) -> u8 {
    if dtype.is_complex() { 2 } else { u8::from(dtype.is_float()) }
}

/// The result type that Nx gives an elementwise op on tensors of these types, or `None` where the op refuses them.
pub fn result_dtype(op: Elementwise, operands: &[DType]) -> Option<DType> {
    let float = |t: DType| if t.is_integer() { DType::F32 } else { t };
    match (op, operands) {
        (Elementwise::Unary(op), &[a]) => {
            let out = match op {
                Unary::IsNan | Unary::IsInfinity => DType::U8,
                Unary::Abs | Unary::Real | Unary::Imag if a == DType::C128 => DType::F64,
                Unary::Abs | Unary::Real | Unary::Imag if a == DType::C64 => DType::F32,
                Unary::Real | Unary::Imag => float(a),
                Unary::Conjugate => {
                    if matches!(a, DType::F64 | DType::C128) {
                        DType::C128
                    } else {
                        DType::C64
                    }
                }
                Unary::Abs
                | Unary::BitwiseNot
                | Unary::Ceil
                | Unary::Floor
                | Unary::Negate
                | Unary::Round
                | Unary::Sign
                | Unary::CountLeadingZeros
                | Unary::PopulationCount => a,
                _ => float(a),
            };
            Some(out)
        }
        (Elementwise::Binary(op), &[a, b]) => Some(match op {
            _ if op.is_predicate() => DType::U8,
            Binary::Divide | Binary::Atan2 => float(merge(a, b)),
            _ => merge(a, b),
        }),
        (Elementwise::Select, &[_, a, b]) => Some(merge(a, b)),
        (Elementwise::Clip, &[a, ..]) | (Elementwise::AsType, &[a]) => Some(a),
        _ => None,
    }
    .filter(|&out| accepts(op, operands, out))
}

/// Whether an elementwise op on these types can give `out`. Other results than those of [`result_dtype`] come from
/// numbers beside tensors, whose type gives way.
pub fn accepts(op: Elementwise, operands: &[DType], out: DType) -> bool {
    let integers = operands.iter().all(|t| t.is_integer());
    let complex = operands.iter().any(|t| t.is_complex());
    let widest = operands.iter().map(|&t| class(t)).max().unwrap_or(0);
    let holds = class(out) >= widest;
    match op {
        Elementwise::Unary(op) => match op {
            Unary::IsNan | Unary::IsInfinity => out == DType::U8,
            Unary::BitwiseNot | Unary::CountLeadingZeros | Unary::PopulationCount => integers && out.is_integer(),
            Unary::Ceil | Unary::Floor | Unary::Round => !complex && holds && !out.is_complex(),
            Unary::Erf | Unary::Erfc | Unary::ErfInv => !complex && out.is_float(),
            Unary::Abs => {
                if complex {
                    out.is_float()
                } else {
                    holds && !out.is_complex()
                }
            }
            Unary::Real | Unary::Imag => out.is_float(),
            Unary::Conjugate => out.is_complex(),
            Unary::Negate | Unary::Sign => holds,
            _ => holds && !out.is_integer(),
        },
        Elementwise::Binary(op) => match op {
            Binary::Equal | Binary::NotEqual | Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => {
                out == DType::U8
            }
            Binary::Greater | Binary::Less | Binary::GreaterEqual | Binary::LessEqual => !complex && out == DType::U8,
            Binary::Quotient
            | Binary::BitwiseAnd
            | Binary::BitwiseOr
            | Binary::BitwiseXor
            | Binary::LeftShift
            | Binary::RightShift => integers && out.is_integer(),
            Binary::Min | Binary::Max | Binary::Remainder => !complex && holds && !out.is_complex(),
            Binary::Atan2 | Binary::Divide => holds && !out.is_integer(),
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Pow => holds,
        },
        Elementwise::Select => operands.len() == 3 && operands[1..].iter().all(|&t| class(t) <= class(out)),
        Elementwise::Clip => !complex && !out.is_complex() && operands.first().is_some_and(|&t| class(t) <= class(out)),
        Elementwise::AsType => true,
    }
}

/// The shape to which all operands broadcast, aligned to the right.
pub(super) fn joint_shape(operands: &[&Type]) -> std::result::Result<Dims, String> {
    let rank = operands.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let mut joint = Dims::from_elem(1, rank);
    for operand in operands {
        let lead = rank - operand.shape.len();
        for (size, &own) in joint[lead..].iter_mut().zip(&operand.shape) {
            if *size == 1 {
                *size = own;
            } else if own != 1 && own != *size {
                return Err(format!("{:?} do not broadcast", operands.iter().map(|t| &t.shape).collect::<Vec<_>>()));
            }
        }
    }
    Ok(joint)
}

fn same_shape(expected: &[u64], out: &Type) -> Check {
    require(expected == &out.shape[..], || format!("the result has shape {expected:?}, not {:?}", out.shape))
}

fn same_dtype(a: &Type, out: &Type) -> Check {
    require(a.dtype == out.dtype, || format!("the result has type {}, not {}", a.dtype, out.dtype))
}

/// Whether a result can hold elements of all operands.
fn holds<'a>(mut operands: impl Iterator<Item = &'a &'a Type>, out: &Type) -> Check {
    require(operands.all(|t| class(t.dtype) <= class(out.dtype)), || format!("{} holds not all operands", out.dtype))
}

fn ordered(a: &Type) -> Check {
    require(!a.dtype.is_complex(), || format!("{} has no order", a.dtype))
}

/// The elements and places of the `k` first along the last axis.
fn top_k(a: &Type, k: u64, values: &Type, places: &Type) -> Check {
    ordered(a)?;
    same_dtype(a, values)?;
    let mut shape = a.shape.clone();
    let Some(last) = shape.last_mut().filter(|last| (1..=**last).contains(&k)) else {
        return Err(format!("{k} of {:?}", a.shape));
    };
    *last = k;
    same_shape(&shape, values)?;
    same_shape(&shape, places)
}

fn distinct(axes: &Axes, rank: usize) -> Check {
    let ok = axes.iter().enumerate().all(|(i, &axis)| axis < rank && !axes[..i].contains(&axis));
    require(ok, || format!("axes {axes:?} of rank {rank}"))
}

/// A window of `lengths` in `a`; `rest` are start indices.
fn window(a: &Type, starts: &[Option<i64>], lengths: &[u64], rest: &[&Type]) -> Check {
    let fits = lengths.len() == a.shape.len() && lengths.iter().zip(&a.shape).all(|(length, size)| length <= size);
    require(fits, || format!("a window of {lengths:?} in {:?}", a.shape))?;
    require(starts.len() == a.shape.len(), || format!("{} starts for rank {}", starts.len(), a.shape.len()))?;
    require(rest.iter().all(|t| t.dtype.is_integer() && t.elements() == 1), || {
        "start indices must be integer scalars".to_string()
    })
}

fn padded(a: &Type, config: &[(i64, i64, u64)]) -> std::result::Result<Dims, String> {
    require(config.len() == a.shape.len(), || format!("{} axes for rank {}", config.len(), a.shape.len()))?;
    let size = |(&size, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
        let inner = i128::from(size) + (i128::from(size) - 1).max(0) * i128::from(interior);
        u64::try_from(inner + i128::from(low) + i128::from(high))
            .map_err(|_| format!("padding {config:?} of {:?}", a.shape))
    };
    a.shape.iter().zip(config).map(size).collect()
}

/// A program that takes the operands and gives the results.
fn fused(body: &Program, operands: &[&Type], outs: &[Type]) -> Check {
    program(body).map_err(|e| e.to_string())?;
    require(body.inputs.iter().eq(operands.iter().copied()), || {
        format!("operands {operands:?} for {:?}", body.inputs)
    })?;
    let types: Vec<Option<&Type>> = body.outputs.iter().map(|&o| body.type_of(o)).collect();
    require(types.iter().copied().eq(outs.iter().map(Some)), || format!("gives {types:?}, not {outs:?}"))
}

/// A function of an element, the accumulator, and scalars.
fn folded(function: &Function, operands: &[&Type], out: &Type) -> Check {
    require(operands.len() >= 2 && operands[1..].iter().all(|t| t.elements() == 1), || {
        "needs an operand, and scalars".to_string()
    })?;
    let captured = operands[2..].iter().map(|t| t.dtype);
    let inputs: Vec<DType> = [operands[0].dtype, out.dtype].into_iter().chain(captured).collect();
    function.check(&inputs, out.dtype)
}

fn reduce(reduction: Reduction, axes: &Axes, a: &Type, out: &Type) -> Check {
    let ordered = !a.dtype.is_complex();
    let fits = match reduction {
        Reduction::Sum | Reduction::Product => class(a.dtype) <= class(out.dtype),
        Reduction::Max | Reduction::Min => ordered && a.dtype == out.dtype,
        Reduction::All | Reduction::Any => out.dtype == DType::U8,
        Reduction::ArgMax | Reduction::ArgMin => ordered && out.dtype.is_integer(),
    };
    require(fits, || format!("{} does not give {}", a.dtype, out.dtype))?;
    kept(axes, a, out)
}

/// Whether the result has the axes that a reduction keeps. Reduced axes are gone, or stay with size 1.
fn kept(axes: &Axes, a: &Type, out: &Type) -> Check {
    distinct(axes, a.shape.len())?;
    let kept: Dims = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]).collect();
    let ones: Dims = (0..a.shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { a.shape[axis] }).collect();
    if ones == out.shape { Ok(()) } else { same_shape(&kept, out) }
}

fn dot([a, b]: [&Type; 2], contract: [&Axes; 2], batch: [&Axes; 2], out: &Type) -> Check {
    holds([a, b].iter(), out)?;
    let mut free: [Dims; 2] = Default::default();
    let mut sizes: [[Dims; 2]; 2] = Default::default();
    for (k, operand) in [a, b].into_iter().enumerate() {
        let all: Axes = batch[k].iter().chain(contract[k]).copied().collect();
        distinct(&all, operand.shape.len())?;
        let pick = |axes: &Axes| axes.iter().map(|&axis| operand.shape[axis]).collect::<Dims>();
        sizes[k] = [pick(batch[k]), pick(contract[k])];
        free[k] = (0..operand.shape.len()).filter(|axis| !all.contains(axis)).map(|axis| operand.shape[axis]).collect();
    }
    require(sizes[0] == sizes[1], || {
        format!("{:?} and {:?} do not contract along {:?} and {:?}", a.shape, b.shape, contract[0], contract[1])
    })?;
    let [batch_sizes, _] = &sizes[0];
    let shape: Dims = batch_sizes.iter().chain(&free[0]).chain(&free[1]).copied().collect();
    same_shape(&shape, out)
}

/// The axes of `indices` but the last, which holds one component per addressed axis.
fn index_vectors(axes: &Axes, a: &Type, indices: &Type) -> std::result::Result<Dims, String> {
    distinct(axes, a.shape.len())?;
    match indices.shape.split_last() {
        Some((&last, vectors)) if last > 0 && last == axes.len() as u64 && indices.dtype.is_integer() => {
            Ok(vectors.into())
        }
        _ => Err(format!("indices {}{:?} for {} axes", indices.dtype, indices.shape, axes.len())),
    }
}

#[cfg(test)]
mod tests {
    use smallvec::{SmallVec, smallvec};

    use super::*;
    use crate::program::{Instruction, op::Scalar};

    fn ty(dtype: DType, shape: &[u64]) -> Type {
        Type::new(dtype, shape)
    }

    fn refused(op: Op, operands: &[Type], out: Type) -> String {
        match instruction(&op, &operands.iter().collect::<Vec<_>>(), std::slice::from_ref(&out)) {
            Err(Error::InvalidProgram { op: name, reason }) => {
                assert_eq!(name, op.name());
                reason
            }
            other => panic!("{op:?} {operands:?} {out:?}: {other:?}"),
        }
    }

    fn accepted(op: Op, operands: &[Type], out: Type) {
        instruction(&op, &operands.iter().collect::<Vec<_>>(), &[out]).unwrap();
    }

    #[test]
    fn right_instructions_pass() {
        let m = ty(DType::F32, &[2, 3]);
        let add = || Op::Binary(Binary::Add);
        accepted(add(), &[m.clone(), ty(DType::S64, &[3])], m.clone());
        accepted(add(), &[ty(DType::S32, &[]), ty(DType::U8, &[4])], ty(DType::U8, &[4]));
        accepted(Op::Select, &[ty(DType::U8, &[]), m.clone(), ty(DType::F32, &[])], m.clone());
        accepted(
            Op::Pad { config: smallvec![(-1, 0, 0), (1, 2, 1)] },
            &[m.clone(), ty(DType::F32, &[])],
            ty(DType::F32, &[1, 8]),
        );
        let keep = Op::Reduce { reduction: Reduction::Sum, axes: smallvec![1], tie_high: false };
        accepted(keep.clone(), std::slice::from_ref(&m), ty(DType::F32, &[2, 1]));
        accepted(keep, std::slice::from_ref(&m), ty(DType::F32, &[2]));
        accepted(Op::Gather { axes: smallvec![1] }, &[m.clone(), ty(DType::S32, &[4, 1])], ty(DType::F32, &[4, 2]));
        accepted(Op::Stack { axis: 2 }, &[m.clone(), m], ty(DType::F32, &[2, 3, 2]));
    }

    #[test]
    fn wrong_instructions_are_refused() {
        let m = ty(DType::F32, &[2, 3]);
        let i = ty(DType::S32, &[2, 3]);
        let axes = |a: &[usize]| Axes::from_slice(a);
        for (op, operands, out) in [
            (Op::Binary(Binary::Add), vec![m.clone()], m.clone()),
            (Op::Binary(Binary::Add), vec![m.clone(), ty(DType::F32, &[2])], m.clone()),
            (Op::Binary(Binary::Add), vec![m.clone(), i.clone()], i.clone()),
            (Op::Binary(Binary::Less), vec![m.clone(), m.clone()], m.clone()),
            (Op::Binary(Binary::Quotient), vec![m.clone(), m.clone()], m.clone()),
            (Op::Unary(Unary::Exp), vec![i.clone()], i.clone()),
            (Op::Unary(Unary::Exp), vec![ty(DType::F32, &[])], m.clone()),
            (Op::Unary(Unary::Erf), vec![ty(DType::C64, &[])], ty(DType::C64, &[])),
            (Op::Bitcast, vec![m.clone()], ty(DType::F64, &[2, 3])),
            (Op::Reshape, vec![m.clone()], ty(DType::F32, &[5])),
            (Op::Squeeze, vec![m.clone()], ty(DType::F32, &[3, 2])),
            (Op::Broadcast { axes: axes(&[1, 1]) }, vec![m.clone()], ty(DType::F32, &[2, 3])),
            (Op::Broadcast { axes: axes(&[0, 2]) }, vec![m.clone()], ty(DType::F32, &[2, 3])),
            (Op::Transpose { axes: axes(&[0]) }, vec![m.clone()], m.clone()),
            (Op::Transpose { axes: axes(&[1, 0]) }, vec![m.clone()], m.clone()),
            (Op::Reverse { axes: axes(&[2]) }, vec![m.clone()], m.clone()),
            (Op::PutSlice { starts: smallvec![Some(0), Some(0)] }, vec![m.clone(), ty(DType::F32, &[3, 1])], m.clone()),
            (
                Op::PutSlice { starts: smallvec![Some(0), None] },
                vec![m.clone(), ty(DType::F32, &[1, 1]), ty(DType::F32, &[])],
                m.clone(),
            ),
            (Op::Pad { config: smallvec![(-3, 0, 0), (0, 0, 0)] }, vec![m.clone(), ty(DType::F32, &[])], m.clone()),
            (Op::Concatenate { axis: 2 }, vec![m.clone()], m.clone()),
            (Op::Concatenate { axis: 0 }, vec![], m.clone()),
            (Op::Concatenate { axis: 0 }, vec![m.clone(), ty(DType::F32, &[1, 2])], m.clone()),
            (Op::Stack { axis: 3 }, vec![m.clone()], ty(DType::F32, &[2, 3, 1])),
            (
                Op::Reduce { reduction: Reduction::Max, axes: axes(&[0]), tie_high: false },
                vec![ty(DType::C64, &[2])],
                ty(DType::C64, &[]),
            ),
            (
                Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0, 0]), tie_high: false },
                vec![m.clone()],
                ty(DType::F32, &[3]),
            ),
            (Op::Gather { axes: axes(&[0]) }, vec![m.clone(), ty(DType::S32, &[4, 2])], ty(DType::F32, &[4, 3])),
            (Op::Gather { axes: axes(&[0]) }, vec![m.clone(), m.clone()], m.clone()),
            (
                Op::IndexedAdd { axes: axes(&[0]) },
                vec![m.clone(), ty(DType::S32, &[1, 1]), ty(DType::F32, &[2])],
                m.clone(),
            ),
            (Op::Iota { axis: Some(2) }, vec![], m.clone()),
            (Op::Eye, vec![], ty(DType::F32, &[2])),
            (Op::Constant(Scalar::Int(0)), vec![m.clone()], m.clone()),
            (
                Op::Slice { starts: smallvec![Some(0), Some(0)], strides: smallvec![1, 0], lengths: smallvec![1, 1] },
                vec![m.clone()],
                ty(DType::F32, &[1, 1]),
            ),
            (
                Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[1]), batch_b: axes(&[]) },
                vec![m.clone(), ty(DType::F32, &[3, 2])],
                ty(DType::F32, &[2, 3]),
            ),
        ] {
            refused(op, &operands, out);
        }
    }

    #[test]
    fn errors_name_the_instruction() {
        let m = ty(DType::F32, &[2]);
        let negate = |operand| Instruction {
            op: Op::Unary(Unary::Negate),
            operands: SmallVec::from_slice(&[operand]),
            outs: smallvec::smallvec![m.clone()],
        };
        let mut p = Program {
            inputs: vec![m.clone()],
            instructions: vec![negate(Operand::Input(0)), negate(Operand::Result(0))],
            outputs: vec![Operand::Result(1)],
        };
        program(&p).unwrap();
        p.instructions[1] = negate(Operand::Result(1));
        let message = program(&p).unwrap_err().to_string();
        assert!(message.contains("instruction 1: negate") && message.contains("Result(1)"), "{message}");
        p.instructions.pop();
        assert!(program(&p).unwrap_err().to_string().contains("outputs"));
        p.inputs[0] = ty(DType::F32, &[1 << 40, 1 << 40]);
        let error = program(&p).unwrap_err();
        assert!(matches!(error.cause(), Error::TooLarge { .. }) && error.to_string().contains("input 0"), "{error}");
        p.instructions[0].outs[0] = std::mem::replace(&mut p.inputs[0], m.clone());
        let error = program(&p).unwrap_err();
        assert!(matches!(error.cause(), Error::TooLarge { .. }) && error.to_string().contains("negate"), "{error}");
    }

    #[test]
    fn results_have_the_types_of_nx() {
        let unary = |op, a| result_dtype(Elementwise::Unary(op), &[a]);
        let binary = |op, a, b| result_dtype(Elementwise::Binary(op), &[a, b]);
        assert_eq!(unary(Unary::Exp, DType::S64), Some(DType::F32));
        assert_eq!(unary(Unary::Exp, DType::Bf16), Some(DType::Bf16));
        assert_eq!(unary(Unary::Abs, DType::C128), Some(DType::F64));
        assert_eq!(unary(Unary::Erf, DType::C64), None);
        assert_eq!(unary(Unary::BitwiseNot, DType::F32), None);
        assert_eq!(binary(Binary::Divide, DType::S8, DType::U8), Some(DType::F32));
        assert_eq!(binary(Binary::Add, DType::S8, DType::U8), Some(DType::S16));
        assert_eq!(binary(Binary::Less, DType::C64, DType::C64), None);
        assert_eq!(binary(Binary::Equal, DType::C64, DType::F32), Some(DType::U8));
    }
}
