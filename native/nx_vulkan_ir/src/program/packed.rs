//! Programs as bytes that are read sooner than JSON, whose values of any kind are tried one kind after the other: 45 to
//! 90 ms for BERT base. For one build of this library.
//!
//! The wire form, value by value: a byte for its kind, then its bits, or its length and as many bytes or values. All
//! lengths and numbers have the least byte first.

use super::wire::Attr;
use super::{Program, verify};
use crate::{Error, Result};

/// Lists in lists, as deep as JSON is read.
const MAX_DEPTH: usize = 128;
/// Longer ones are not read: a value takes at most 32 times the bytes that it has here.
const MAX_BYTES: usize = 16 << 20;

const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const UINT: u8 = 4;
const FLOAT: u8 = 5;
const NAME: u8 = 6;
const LIST: u8 = 7;

fn bad(reason: &str) -> Error {
    Error::InvalidProgram { op: "program".to_string(), reason: reason.to_string() }
}

impl Program {
    /// The bytes that [`Program::from_packed`] reads.
    pub fn to_packed(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write(&self.to_attr(), &mut out);
        out
    }

    /// Reads what [`Program::to_packed`] wrote, and checks the program.
    ///
    /// # Errors
    /// `InvalidProgram` for other bytes and for programs that break a rule; `Unsupported` for an op that the engine
    /// does not have.
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
    /// assert_eq!(Program::from_packed(&program.to_packed())?, program);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_packed(bytes: &[u8]) -> Result<Program> {
        if bytes.len() > MAX_BYTES {
            return Err(bad("it is too long"));
        }
        let mut rest = bytes;
        let attr = read(&mut rest, MAX_DEPTH)?;
        if !rest.is_empty() {
            return Err(bad("bytes follow it"));
        }
        let program = Program::from_attr(&attr)?;
        verify::program(&program)?;
        Ok(program)
    }
}

fn write(attr: &Attr, out: &mut Vec<u8>) {
    let bits = |kind: u8, bits: [u8; 8], out: &mut Vec<u8>| {
        out.push(kind);
        out.extend(bits);
    };
    let length = |kind: u8, length: usize, out: &mut Vec<u8>| {
        out.push(kind);
        // What is longer is not read again: `MAX_BYTES`.
        out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    };
    match attr {
        Attr::None => out.push(NONE),
        Attr::Bool(false) => out.push(FALSE),
        Attr::Bool(true) => out.push(TRUE),
        Attr::Int(i) => bits(INT, i.to_le_bytes(), out),
        Attr::UInt(i) => bits(UINT, i.to_le_bytes(), out),
        Attr::Float(x) => bits(FLOAT, x.to_le_bytes(), out),
        Attr::Name(name) => {
            length(NAME, name.len(), out);
            out.extend(name.as_bytes());
        }
        Attr::List(items) => {
            length(LIST, items.len(), out);
            items.iter().for_each(|item| write(item, out));
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (taken, others) = rest.split_first_chunk().ok_or_else(|| bad("it ends early"))?;
    *rest = others;
    Ok(*taken)
}

/// A length, of what takes a byte each at least.
fn take_length(rest: &mut &[u8]) -> Result<usize> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    if length <= rest.len() { Ok(length) } else { Err(bad("it ends early")) }
}

fn read(rest: &mut &[u8], depth: usize) -> Result<Attr> {
    let [kind] = take(rest)?;
    Ok(match kind {
        NONE => Attr::None,
        FALSE => Attr::Bool(false),
        TRUE => Attr::Bool(true),
        INT => Attr::Int(i64::from_le_bytes(take(rest)?)),
        UINT => Attr::UInt(u64::from_le_bytes(take(rest)?)),
        FLOAT => Attr::Float(f64::from_le_bytes(take(rest)?)),
        NAME => {
            let length = take_length(rest)?;
            let (name, others) = rest.split_at(length);
            *rest = others;
            Attr::Name(std::str::from_utf8(name).map_err(|_| bad("a name is no text"))?.to_string())
        }
        LIST => {
            let depth = depth.checked_sub(1).ok_or_else(|| bad("it is too deep"))?;
            let length = take_length(rest)?;
            Attr::List((0..length).map(|_| read(rest, depth)).collect::<Result<_>>()?)
        }
        _ => return Err(bad("a value of no kind")),
    })
}
