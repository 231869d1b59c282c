//! Programs in files: with their inputs and the outputs expected of them, so that what was recorded from a real run
//! replays anywhere.
//!
//! A file is one line of JSON, the header, and then the bytes of the inputs and of the expected outputs, one tensor
//! after the other in Nx's binary layout (sub-byte types packed, each tensor filled up to whole bytes). Types give the
//! lengths.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::wire::Attr;
use super::{Instruction, Op, Operand, Program, verify};
use crate::dtype::nx_bytes;
use crate::{DType, Error, Result, Type};

const FORMAT: &str = "nx_vulkan program 1";

/// What a float output may differ from the expected one by: `absolute + relative * |expected|`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Tolerance {
    /// In the output's unit.
    pub absolute: f64,
    /// As a factor of the expected value.
    pub relative: f64,
}

/// A program with inputs and expected outputs, each in Nx's binary layout.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recording {
    /// What was recorded.
    pub name: String,
    /// The program.
    pub program: Program,
    /// One per input.
    pub inputs: Vec<Vec<u8>>,
    /// One per output.
    pub expected: Vec<Vec<u8>>,
    /// One per output.
    pub tolerances: Vec<Tolerance>,
}

#[derive(Serialize, Deserialize)]
struct WireType {
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Input,
    Result,
}

#[derive(Serialize, Deserialize)]
struct WireInstruction {
    op: String,
    attrs: Map<String, Value>,
    operands: Vec<(Source, u32)>,
    outs: Vec<WireType>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    name: String,
    inputs: Vec<WireType>,
    instructions: Vec<WireInstruction>,
    outputs: Vec<(Source, u32)>,
    tolerances: Vec<Tolerance>,
}

fn bad(reason: impl Into<String>) -> Error {
    Error::InvalidProgram { op: "program file".to_string(), reason: reason.into() }
}

impl WireType {
    fn of(ty: &Type) -> WireType {
        WireType { dtype: ty.dtype.name().to_string(), shape: ty.shape.to_vec() }
    }

    fn ty(&self) -> Result<Type> {
        let dtype = DType::from_name(&self.dtype).ok_or_else(|| bad(format!("type {:?}", self.dtype)))?;
        Ok(Type::new(dtype, &self.shape))
    }
}

fn source(operand: Operand) -> (Source, u32) {
    match operand {
        Operand::Input(i) => (Source::Input, i),
        Operand::Result(i) => (Source::Result, i),
    }
}

fn operand(source: &(Source, u32)) -> Operand {
    match *source {
        (Source::Input, i) => Operand::Input(i),
        (Source::Result, i) => Operand::Result(i),
    }
}

fn attrs(wire: Map<String, Value>) -> Result<Vec<(String, Attr)>> {
    wire.into_iter()
        .map(|(name, value)| {
            let attr = serde_json::from_value(value).map_err(|e| bad(format!("attribute {name}: {e}")))?;
            Ok((name, attr))
        })
        .collect()
}

impl Header {
    fn read(line: &[u8]) -> Result<Header> {
        let header: Header = serde_json::from_slice(line).map_err(|e| bad(format!("header: {e}")))?;
        match header.format == FORMAT {
            true => Ok(header),
            false => Err(bad(format!("format {:?}, expected {FORMAT:?}", header.format))),
        }
    }

    fn program(&self) -> Result<Program> {
        let mut program = Program {
            inputs: self.inputs.iter().map(WireType::ty).collect::<Result<_>>()?,
            instructions: vec![],
            outputs: self.outputs.iter().map(operand).collect(),
        };
        for wire in &self.instructions {
            let operands = wire.operands.iter().map(operand).collect();
            let op = Op::from_wire(&wire.op, &attrs(wire.attrs.clone())?)?;
            let outs = wire.outs.iter().map(WireType::ty).collect::<Result<_>>()?;
            program.instructions.push(Instruction { op, operands, outs });
        }
        verify::program(&program)?;
        Ok(program)
    }
}

/// The program of a file's header alone, without values.
///
/// # Errors
/// `InvalidProgram` for anything that is no header: another format, an unknown op or type, a program that breaks a
/// rule.
pub fn program_of_header(line: &[u8]) -> Result<Program> {
    Header::read(line)?.program()
}

impl Recording {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// `InvalidProgram` for anything that is not a whole recording: another format, an unknown op or type, a program
    /// that breaks a rule, a payload of another length. `TooLarge`, within `InOp`, where a value has more elements than
    /// any tensor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Recording> {
        let end = bytes.iter().position(|&b| b == b'\n').ok_or_else(|| bad("no header line"))?;
        let header = Header::read(&bytes[..end])?;
        let program = header.program()?;
        let outputs =
            program.outputs.iter().map(|&o| program.type_of(o).ok_or_else(|| bad(format!("no output {o:?}"))));
        let outputs = outputs.collect::<Result<Vec<&Type>>>()?;
        if header.tolerances.len() != outputs.len() {
            return Err(bad(format!("{} tolerances for {} outputs", header.tolerances.len(), outputs.len())));
        }
        let mut rest = &bytes[end + 1..];
        let mut take = |ty: &Type| {
            let length = usize::try_from(nx_bytes(ty.dtype, ty.elements())).ok();
            let parts = length.and_then(|length| rest.split_at_checked(length));
            let (tensor, after) = parts.ok_or_else(|| bad("the payload ends early"))?;
            rest = after;
            Ok(tensor.to_vec())
        };
        let inputs = program.inputs.iter().map(&mut take).collect::<Result<_>>()?;
        let expected = outputs.into_iter().map(&mut take).collect::<Result<_>>()?;
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes after the payload", rest.len())));
        }
        Ok(Recording { name: header.name, inputs, expected, tolerances: header.tolerances, program })
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// `InvalidProgram` where an attribute can't be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let instructions = self.program.instructions.iter().map(|i| {
            let attrs = i.op.attrs().into_iter().map(|(name, attr)| Ok((name, serde_json::to_value(attr)?)));
            Ok(WireInstruction {
                op: i.op.name().to_string(),
                attrs: attrs.collect::<serde_json::Result<_>>()?,
                operands: i.operands.iter().map(|&o| source(o)).collect(),
                outs: i.outs.iter().map(WireType::of).collect(),
            })
        });
        let header = Header {
            format: FORMAT.to_string(),
            name: self.name.clone(),
            inputs: self.program.inputs.iter().map(WireType::of).collect(),
            instructions: instructions.collect::<serde_json::Result<_>>().map_err(|e| bad(e.to_string()))?,
            outputs: self.program.outputs.iter().map(|&o| source(o)).collect(),
            tolerances: self.tolerances.clone(),
        };
        let mut bytes = serde_json::to_vec(&header).map_err(|e| bad(e.to_string()))?;
        bytes.push(b'\n');
        self.inputs.iter().chain(&self.expected).for_each(|tensor| bytes.extend_from_slice(tensor));
        Ok(bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `Io` where it can't be read, else as [`Recording::from_bytes`].
    pub fn read(path: &Path) -> Result<Recording> {
        let bytes =
            std::fs::read(path).map_err(|e| Error::Io { path: path.display().to_string(), cause: e.to_string() })?;
        Recording::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::program::attribute::Scalar;
    use crate::program::{Binary, Reduction};

    fn recording() -> Recording {
        let vector = Type::new(DType::F32, &[2]);
        let scalar = Type::new(DType::F32, &[]);
        let instructions = vec![
            Instruction {
                op: Op::Constant(Scalar::Float(f64::INFINITY)),
                operands: smallvec![],
                outs: smallvec![scalar.clone()],
            },
            Instruction {
                op: Op::Binary(Binary::Min),
                operands: smallvec![Operand::Input(0), Operand::Result(0)],
                outs: smallvec![vector.clone()],
            },
            Instruction {
                op: Op::Reduce { reduction: Reduction::Sum, axes: smallvec![0], tie_high: false },
                operands: smallvec![Operand::Result(1)],
                outs: smallvec![scalar],
            },
        ];
        Recording {
            name: "sum".to_string(),
            program: Program { inputs: vec![vector], instructions, outputs: vec![Operand::Result(2)] },
            inputs: vec![bytemuck::cast_slice(&[1.5f32, 2.5]).to_vec()],
            expected: vec![bytemuck::cast_slice(&[4.0f32]).to_vec()],
            tolerances: vec![Tolerance { absolute: 0.0, relative: 1e-6 }],
        }
    }

    #[test]
    fn recordings_round_trip() {
        let recording = recording();
        assert_eq!(Recording::from_bytes(&recording.to_bytes().unwrap()), Ok(recording));
    }

    #[test]
    fn broken_files_are_errors() {
        let bytes = recording().to_bytes().unwrap();
        let edit = |from: &str, to: &str| {
            let end = bytes.iter().position(|&b| b == b'\n').unwrap();
            let mut edited = String::from_utf8(bytes[..end].to_vec()).unwrap().replacen(from, to, 1).into_bytes();
            edited.extend_from_slice(&bytes[end..]);
            edited
        };
        assert_eq!(Recording::from_bytes(&edit("sum", "sum")), Ok(recording()));
        for broken in [
            vec![],
            bytes[..bytes.len() - 1].to_vec(),
            [&bytes[..], &[0]].concat(),
            edit("program 1", "program 2"),
            edit("[2]", "[3]"),
            edit("[2]", "[18446744073709551615,9]"),
            edit("\"f32\"", "\"f31\""),
            edit("\"min\"", "\"mim\""),
            edit("[\"result\",0]", "[\"result\",1]"),
            edit("[\"input\",0]", "[\"input\",7]"),
            edit("\"infinity\"", "\"infinite\""),
            edit("\"outputs\":[", "\"outputs\":[[\"result\",1],"),
        ] {
            assert!(Recording::from_bytes(&broken).is_err(), "{}", String::from_utf8_lossy(&broken));
        }
    }
}
