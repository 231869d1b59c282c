//! What the parameter words of a kernel hold, which the host fills for each launch.

use nx_vulkan_ir::shape::{Dims, Strides};
use smallvec::SmallVec;

/// What a parameter word holds. The host fills the words of a launch from this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Param {
    /// Elements of the iteration space.
    Count,
    /// Halves of the address of operand `k`'s lowest element (outputs come after the inputs).
    AddressLow(u8),
    /// High half of the address of operand k.
    AddressHigh(u8),
    /// Size of an axis of the iteration space, and the constants that divide by it.
    Size(u8),
    /// Multiplier of the division by the size of an axis.
    Multiplier(u8),
    /// Shift of the division by the size of an axis.
    Shift(u8),
    /// Elements between neighbours of operand `k` along an axis of the iteration space.
    Stride(u8, u8),
    /// Elements from the lowest element of operand `k`, where its address points, to the one with index 0.
    Bias(u8),
    /// Word `w` of scalar `k`.
    Scalar(u8, u8),
    /// A number that the launch computes itself.
    Extra(u8),
    /// This number.
    Number(u32),
}

/// Sizes of the axes of an iteration space and strides of each operand that a kernel is made for, which are constants
/// of its code instead of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fixed {
    /// Of the axes.
    pub sizes: Dims,
    /// Of each operand.
    pub strides: SmallVec<[Strides; 4]>,
}

impl Fixed {
    fn word(&self, param: Param) -> Option<u32> {
        match param {
            Param::Size(axis) => self.sizes.get(axis as usize).map(|&size| size as u32),
            Param::Stride(k, axis) => self.strides.get(k as usize)?.get(axis as usize).map(|&stride| stride as u32),
            Param::Bias(k) => self.strides.get(k as usize).map(|strides| bias(strides, &self.sizes) as u32),
            _ => None,
        }
    }
}

/// Elements between the lowest element of a view and the one with index 0.
pub fn bias(strides: &[i64], sizes: &[u64]) -> u64 {
    let below = |(&stride, &size): (&i64, &u64)| if stride < 0 { stride.unsigned_abs() * (size - 1) } else { 0 };
    strides.iter().zip(sizes).map(below).sum()
}

/// The words of a kernel in order; asking for a word adds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParamLayout {
    /// What each word means.
    pub words: Vec<Param>,
    /// What is no parameter, because it is known.
    pub fixed: Option<Fixed>,
}

impl ParamLayout {
    /// Words that push constants can hold everywhere (128 bytes).
    pub const PUSH_WORDS: usize = 32;

    /// Words that push constants hold where limits of the device allow 256 bytes: drivers may load words of a table anew
    /// wherever they are used, 40 times in a step of a convolution's product.
    pub const WIDE_PUSH_WORDS: usize = 64;

    /// Words that every launch has.
    pub fn new(header: &[Param]) -> ParamLayout {
        ParamLayout { words: header.to_vec(), fixed: None }
    }

    /// The place of a parameter, added where it is not there yet.
    pub fn word(&mut self, param: Param) -> u32 {
        if let Some(i) = self.words.iter().position(|&p| p == param) {
            return i as u32;
        }
        self.words.push(param);
        self.words.len() as u32 - 1
    }

    /// Puts the numbers 0, 1, 2, ... into the words between those that push constants hold everywhere and those that
    /// they hold on devices with 256 bytes; there must be no more parameters than the former.
    pub fn add_numbers(&mut self) {
        self.words.resize(Self::PUSH_WORDS, Param::Number(0));
        self.words.extend((0..(Self::WIDE_PUSH_WORDS - Self::PUSH_WORDS) as u32).map(Param::Number));
    }

    /// The parameter's value where it is a constant.
    pub(crate) fn known(&self, param: Param) -> Option<u32> {
        self.fixed.as_ref()?.word(param)
    }

    /// First of the two words with the address of operand `k`.
    pub fn address(&mut self, k: u8) -> u32 {
        let low = self.word(Param::AddressLow(k));
        self.word(Param::AddressHigh(k));
        low
    }
}

/// Multiplier and shift with `i / d == (high(i * multiplier) + i) >> shift` for `i < 2^31`, `1 <= d < 2^31`.
/// Source: Granlund, Montgomery, "Division by Invariant Integers using Multiplication", 1994.
pub fn divider(d: u32) -> (u32, u32) {
    let shift = 32 - d.saturating_sub(1).leading_zeros();
    let multiplier = ((1u64 << 32) * ((1u64 << shift) - u64::from(d.max(1)))) / u64::from(d.max(1)) + 1;
    (multiplier as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        let mut seed = 0x9e3779b97f4a7c15u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let check = |n: u32, d: u32| {
            let (m, s) = divider(d);
            let high = ((u64::from(n) * u64::from(m)) >> 32) as u32;
            assert_eq!((high + n) >> s, n / d, "{n} / {d}");
        };
        for d in [1u32, 2, 3, 5, 7, 255, 256, 257, 641, 65535, 65536, 0x7fff_fffe, 0x7fff_ffff] {
            for n in [0, 1, d - 1, d, d.wrapping_add(1) & 0x7fff_ffff, 0x7fff_ffff] {
                check(n, d);
            }
        }
        for _ in 0..200_000 {
            let d = ((random() >> (33 + random() % 30)) as u32).max(1);
            check((random() >> 33) as u32, d);
        }
    }
}
