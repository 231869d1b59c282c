//! Programs as text: one line per instruction, the bodies of fused ops below them.

use std::fmt;

use super::{Op, Operand, Program};
use crate::Type;

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

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(self, 0, f)
    }
}
