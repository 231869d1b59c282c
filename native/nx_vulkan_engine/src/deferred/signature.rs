//! Hashes of ops. Equal hashes are not enough for anything: programs are compared before one stands for the other.

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

/// A hash of an op with its attributes, but for the value of a constant, and of the types of its results.
pub(super) fn of(op: &Op, outs: &[Type]) -> u64 {
    let mut mix = Mix::default();
    match op {
        Op::Constant(_) => std::mem::discriminant(op).hash(&mut mix),
        op => op.hash(&mut mix),
    }
    outs.hash(&mut mix);
    mix.finish()
}
