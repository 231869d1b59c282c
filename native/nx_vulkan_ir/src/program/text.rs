//! Programs as text: one line per instruction, the bodies of fused ops below them.

use std::fmt;

use super::{Op, Operand, Program};
use crate::{Error, Type};

/// How errors of what generates kernels, which does not know for what, begin to name the op.
pub const KERNEL: &str = "kernel";

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Input(i) => write!(f, "in{i}"),
            Operand::Result(r) => write!(f, "%{r}"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, &self.shape[..])
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn lines(program: &Program, indent: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{:indent$}inputs {}", "", list(&program.inputs))?;
    let mut result = 0;
    for instruction in &program.instructions {
        let numbers: Vec<Operand> = (result..).take(instruction.outs.len()).map(Operand::Result).collect();
        result += instruction.outs.len() as u32;
        write!(f, "{:indent$}{} = {}({})", "", list(&numbers), instruction.op.name(), list(&instruction.operands))?;
        match &instruction.op {
            Op::Fused(body) => {
                writeln!(f, " -> {}", list(&instruction.outs))?;
                lines(body, indent + 2, f)?;
            }
            op => {
                op.attrs().iter().try_for_each(|(name, value)| write!(f, " {name}={value:?}"))?;
                writeln!(f, " -> {}", list(&instruction.outs))?;
            }
        }
    }
    writeln!(f, "{:indent$}outputs {}", "", list(&program.outputs))
}

/// Ops of a fused one that its title lists; of more, it says how many there are.
const MAX_TITLE_OPS: usize = 6;

/// The op's name, and what a fused op does.
fn title(op: &Op) -> String {
    let (Op::Fused(body) | Op::Workgroup(body)) = op else { return op.name().to_string() };
    let names = body.instructions.iter().map(|i| i.op.name()).filter(|&name| name != "constant");
    let all: Vec<&str> = names.collect();
    let more = match all.len().saturating_sub(MAX_TITLE_OPS) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{} ({}{more})", op.name(), all[..all.len().min(MAX_TITLE_OPS)].join(", "))
}

/// The error with the op that it came from. Errors of the device as a whole, and those that name their op already, stay
/// as they are.
pub fn in_op(error: Error, op: &Op, operands: impl Iterator<Item = Type>, outs: &[Type]) -> Error {
    let cause = match error {
        Error::NeedsCompile
        | Error::DeviceLost
        | Error::TimedOut { .. }
        | Error::NoDevice { .. }
        | Error::Released
        | Error::Stopped
        | Error::Io { .. }
        | Error::InOp { .. } => return error,
        // What generates kernels does not know for what.
        Error::Unsupported { op: kernel, dtype, needs } if kernel.starts_with(KERNEL) => {
            Error::Unsupported { op: op.name().to_string(), dtype, needs }
        }
        other => other,
    };
    Error::InOp { op: title(op), operands: operands.collect(), outs: outs.to_vec(), cause: Box::new(cause) }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(self, 0, f)
    }
}
