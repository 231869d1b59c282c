//! Hashes of ops. Equal hashes are not enough for anything: programs are compared before one stands for the other.

use std::fmt::Write;
use std::hash::{Hash, Hasher};

use crate::Type;
use crate::program::Op;

/// A fast hash of words.
#[derive(Debug, Default)]
pub(super) struct Mix(u64);

impl Mix {
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.word(u64::from_le_bytes(word)));
        rest.iter().for_each(|&byte| self.word(byte.into()));
    }

    fn write_u8(&mut self, i: u8) {
        self.word(i.into());
    }

    fn write_u64(&mut self, i: u64) {
        self.word(i);
    }

    fn write_usize(&mut self, i: usize) {
        self.word(i as u64);
    }

    fn write_isize(&mut self, i: isize) {
        self.word(i as u64);
    }
}

impl Write for Mix {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

/// A hash of an op with its attributes, but for the value of a constant, and of the types of its results.
pub(super) fn of(op: &Op, outs: &[Type]) -> u64 {
    let mut mix = Mix::default();
    std::mem::discriminant(op).hash(&mut mix);
    match op {
        Op::Unary(op) => op.hash(&mut mix),
        Op::Binary(op) => op.hash(&mut mix),
        Op::Select
        | Op::Clip
        | Op::AsType
        | Op::Bitcast
        | Op::Constant(_)
        | Op::Eye
        | Op::Reshape
        | Op::Squeeze
        | Op::Eigh => {}
        Op::Iota { axis } => axis.hash(&mut mix),
        Op::Broadcast { axes } | Op::Transpose { axes } | Op::Reverse { axes } => axes.hash(&mut mix),
        Op::Slice { starts, strides, lengths } => (starts, strides, lengths).hash(&mut mix),
        Op::PutSlice { starts } => starts.hash(&mut mix),
        Op::Pad { config } => config.hash(&mut mix),
        Op::Concatenate { axis } | Op::Stack { axis } | Op::Take { axis } | Op::TakeAlongAxis { axis } => {
            axis.hash(&mut mix)
        }
        Op::Reduce { reduction, axes, tie_high } => (reduction, axes, tie_high).hash(&mut mix),
        Op::Sort { axis, descending } | Op::Argsort { axis, descending } => (axis, descending).hash(&mut mix),
        Op::TopK { k } => k.hash(&mut mix),
        Op::Scan { scan, axis, reverse } => (scan, axis, reverse).hash(&mut mix),
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            (contract_a, batch_a, contract_b, batch_b).hash(&mut mix)
        }
        Op::Gather { axes } | Op::IndexedAdd { axes } | Op::IndexedPut { axes } => axes.hash(&mut mix),
        Op::Qr { complete } => complete.hash(&mut mix),
        Op::Svd { full } => full.hash(&mut mix),
        Op::Linalg(op) => op.hash(&mut mix),
        Op::Fold { axes, function } => (axes, function).hash(&mut mix),
        Op::Conv(_)
        | Op::Window { .. }
        | Op::WindowFold { .. }
        | Op::WindowScatter { .. }
        | Op::Fft { .. }
        | Op::While(_)
        | Op::Cond(_)
        | Op::Fused(_)
        | Op::Workgroup(_) => {
            // Writing into a hash can't fail.
            let _ = write!(mix, "{op:?}");
        }
    }
    outs.hash(&mut mix);
    mix.finish()
}
