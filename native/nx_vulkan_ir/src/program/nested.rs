//! Programs as attributes: `[inputs, instructions, outputs]`, where a type is `[name, sizes]`, an operand
//! `["input" or "result", n]`, and an instruction `[op, [[name, value], ..], operands, types of its results]`.

use super::wire::{Attr, Attrs};
use super::{Instruction, Op, Operand, Program, verify};
use crate::{DType, Error, Result, Type};

fn bad(expected: &str, got: &Attr) -> Error {
    let got: String = format!("{got:?}").chars().take(200).collect();
    Error::InvalidProgram { op: "program".to_string(), reason: format!("expected {expected}, got {got}") }
}

fn list<'a>(attr: &'a Attr, expected: &str) -> Result<&'a [Attr]> {
    match attr {
        Attr::List(items) => Ok(items),
        other => Err(bad(expected, other)),
    }
}

fn name<'a>(attr: &'a Attr, expected: &str) -> Result<&'a str> {
    match attr {
        Attr::Name(name) => Ok(name),
        other => Err(bad(expected, other)),
    }
}

fn ty(attr: &Attr) -> Result<Type> {
    let expected = "a type and its sizes";
    let [dtype, shape] = list(attr, expected)? else { return Err(bad(expected, attr)) };
    let dtype = DType::from_name(name(dtype, expected)?).ok_or_else(|| bad("a type of Nx", dtype))?;
    let size = |size: &Attr| match size {
        Attr::Int(n) => u64::try_from(*n).map_err(|_| bad("a size", size)),
        Attr::UInt(n) => Ok(*n),
        other => Err(bad("a size", other)),
    };
    Ok(Type { dtype, shape: list(shape, expected)?.iter().map(size).collect::<Result<_>>()? })
}

fn ty_attr(ty: &Type) -> Attr {
    let sizes = ty.shape.iter().map(|&n| i64::try_from(n).map_or(Attr::UInt(n), Attr::Int)).collect();
    Attr::List(vec![Attr::Name(ty.dtype.name().to_string()), Attr::List(sizes)])
}

fn operand(attr: &Attr) -> Result<Operand> {
    let expected = "input or result, and its number";
    match list(attr, expected)? {
        [Attr::Name(kind), Attr::Int(n)] => {
            let n = u32::try_from(*n).map_err(|_| bad(expected, attr))?;
            match kind.as_str() {
                "input" => Ok(Operand::Input(n)),
                "result" => Ok(Operand::Result(n)),
                _ => Err(bad(expected, attr)),
            }
        }
        _ => Err(bad(expected, attr)),
    }
}

fn operand_attr(operand: &Operand) -> Attr {
    let (kind, n) = match *operand {
        Operand::Input(n) => ("input", n),
        Operand::Result(n) => ("result", n),
    };
    Attr::List(vec![Attr::Name(kind.to_string()), Attr::Int(n.into())])
}

fn instruction(attr: &Attr) -> Result<Instruction> {
    let expected = "an op, its attributes, its operands and the types of its results";
    let [op, attrs, operands, outs] = list(attr, expected)? else { return Err(bad(expected, attr)) };
    let pair = |pair: &Attr| match list(pair, "a name and a value")? {
        [Attr::Name(name), value] => Ok((name.clone(), value.clone())),
        _ => Err(bad("a name and a value", pair)),
    };
    let attrs = list(attrs, expected)?.iter().map(pair).collect::<Result<Vec<_>>>()?;
    Ok(Instruction {
        op: Op::from_wire(name(op, expected)?, &attrs)?,
        operands: list(operands, expected)?.iter().map(operand).collect::<Result<_>>()?,
        outs: list(outs, expected)?.iter().map(ty).collect::<Result<_>>()?,
    })
}

fn instruction_attr(instruction: &Instruction) -> Attr {
    let pair = |(name, value): (String, Attr)| Attr::List(vec![Attr::Name(name), value]);
    Attr::List(vec![
        Attr::Name(instruction.op.name().to_string()),
        Attr::List(instruction.op.attrs().into_iter().map(pair).collect()),
        Attr::List(instruction.operands.iter().map(operand_attr).collect()),
        Attr::List(instruction.outs.iter().map(ty_attr).collect()),
    ])
}

impl Program {
    /// Reads a program from its wire form. The rules of the format are `verify`'s to check.
    ///
    /// # Errors
    /// `InvalidProgram` for another form, `Unsupported` for an op that the engine does not have.
    pub fn from_attr(attr: &Attr) -> Result<Program> {
        let expected = "inputs, instructions and outputs";
        let [inputs, instructions, outputs] = list(attr, expected)? else { return Err(bad(expected, attr)) };
        Ok(Program {
            inputs: list(inputs, expected)?.iter().map(ty).collect::<Result<_>>()?,
            instructions: list(instructions, expected)?.iter().map(instruction).collect::<Result<_>>()?,
            outputs: list(outputs, expected)?.iter().map(operand).collect::<Result<_>>()?,
        })
    }

    /// The wire form.
    pub fn to_attr(&self) -> Attr {
        Attr::List(vec![
            Attr::List(self.inputs.iter().map(ty_attr).collect()),
            Attr::List(self.instructions.iter().map(instruction_attr).collect()),
            Attr::List(self.outputs.iter().map(operand_attr).collect()),
        ])
    }
}

impl Program {
    /// Writes the program as one line of JSON, which [`Program::from_bytes`] reads.
    ///
    /// # Errors
    /// `InvalidProgram` where an attribute can't be written.
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_ir::DType;
    /// use nx_vulkan_ir::program::{Builder, Program};
    ///
    /// # fn main() -> nx_vulkan_ir::Result<()> {
    /// let b = Builder::new();
    /// let x = b.input(DType::F32, &[3]);
    /// let y = b.tanh(x);
    /// let program = b.finish(&[y])?;
    /// assert_eq!(Program::from_bytes(&program.to_bytes()?)?, program);
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.to_attr()).map_err(|e| unreadable(&e))
    }

    /// Reads what [`Program::to_bytes`] wrote, and checks the program.
    ///
    /// # Errors
    /// `InvalidProgram` for other bytes and for programs that break a rule; `Unsupported` for an op that the engine
    /// does not have.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program> {
        let attr: Attr = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
        let program = Program::from_attr(&attr)?;
        verify::program(&program)?;
        Ok(program)
    }
}

fn unreadable(cause: &serde_json::Error) -> Error {
    Error::InvalidProgram { op: "program".to_string(), reason: cause.to_string() }
}

impl Attrs<'_> {
    /// The program that an attribute holds.
    pub(super) fn program(&self, name: &str) -> Result<Program> {
        Program::from_attr(self.find(name).ok_or_else(|| self.fail(name, "a program"))?)
    }
}
