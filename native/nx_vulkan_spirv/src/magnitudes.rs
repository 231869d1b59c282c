//! How large the numbers of a kernel can be, as far as that follows from how they are computed: where it is known, f32
//! are rounded to bf16 in three instructions (`nx_cast_f32_bf16_plain`).
//!
//! Of bf16 that are read, it is assumed, and code says for each of them whether it does not hold, as hot twins of
//! functions do. One such test serves all that is computed of a number.

use std::collections::HashSet;

use half::{bf16, f16};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{CType, DType, Result};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::{SmallVec, smallvec};

use super::link::Code;
use super::scalar::Value;

/// What a number is known to be: 0, or from 2^low to 2^high without its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Magnitude {
    low: i32,
    high: i32,
    /// It is not 0.
    is_some: bool,
    /// It has no sign, not as 0 either.
    is_unsigned: bool,
}

/// A magnitude, and the bools of the code that are false where it holds.
#[derive(Debug, Clone)]
pub struct Known {
    magnitude: Magnitude,
    unless: SmallVec<[Word; 4]>,
}

/// What bf16 that are read are assumed to be, which `nx_is_extreme_f32` tests: wide enough for weights, activations
/// and gradients, and narrow enough that products of three of them are in the range of [`ROUNDED`].
const ASSUMED: Magnitude = Magnitude { low: -40, high: 36, is_some: false, is_unsigned: false };

/// The numbers that `nx_cast_f32_bf16_plain` rounds.
const ROUNDED: [i32; 2] = [-126, 111];

/// Numbers whose quotients `nx_shared_quotient_f32` rounds rightly, and what divides them where that is to be known.
const DIVIDENDS: [i32; 2] = [-80, 60];
const DIVISOR: Magnitude = Magnitude { low: -15, high: 15, is_some: true, is_unsigned: false };

/// What f16, from 2^-24 to 2^16, is multiplied with.
const F16: [i32; 2] = [-100, 100];

/// From here on arguments of `nx_erf_bf16_hot` and `nx_tanh_bf16_hot` are not rare: 1e-30 is less.
const SMALLEST: i32 = -99;

/// Results of `nx_exp_bf16_hot`, `nx_sigmoid_bf16_hot` and `nx_exp_f16_hot` of what is not rare.
const EXP: [i32; 2] = [-80, 80];
const SIGMOID: [i32; 2] = [-126, 0];
const EXP_F16: [i32; 2] = [-26, 18];
/// Numbers that are no less than f16 can be, and that round to none above its range.
const WITHIN_F16: [i32; 2] = [-24, 15];

impl Known {
    /// Whether one of these ids says where it holds.
    pub(crate) fn depends_on(&self, ids: &HashSet<Word>) -> bool {
        self.unless.iter().any(|word| ids.contains(word))
    }
}

impl Magnitude {
    /// Of a constant; none of infinities, NaN and denormals.
    fn of(number: f32) -> Option<Magnitude> {
        let exponent = (number.to_bits() >> 23 & 0xff) as i32 - 127;
        let is_some = number != 0.0;
        let known = Magnitude { low: exponent, high: exponent + 1, is_some, is_unsigned: number.is_sign_positive() };
        if number == 0.0 {
            return Some(Magnitude { low: 0, high: 0, ..known });
        }
        number.is_normal().then_some(known)
    }

    /// Of one of two numbers.
    fn or(self, other: Magnitude) -> Magnitude {
        Magnitude {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            is_some: self.is_some && other.is_some,
            is_unsigned: self.is_unsigned && other.is_unsigned,
        }
    }

    /// Of a sum, where `digits` are the binary digits of each number: numbers are multiples of the last one's unit, and
    /// so are sums of them, which are no less than it unless they are 0.
    fn sum(self, other: Magnitude, digits: [i32; 2]) -> Magnitude {
        let either = self.or(other);
        let high = either.high + 1;
        if either.is_unsigned {
            return Magnitude { high, is_some: self.is_some || other.is_some, ..either };
        }
        let unit = |number: Magnitude, digits: i32| number.low + 1 - digits;
        let low = unit(self, digits[0]).min(unit(other, digits[1]));
        Magnitude { low, high, is_some: false, is_unsigned: false }
    }

    fn negated(self) -> Magnitude {
        Magnitude { is_unsigned: false, ..self }
    }

    fn product(self, other: Magnitude) -> Magnitude {
        Magnitude { low: self.low + other.low, high: self.high + other.high, ..self.with(other) }
    }

    /// None where the divisor may be 0.
    fn quotient(self, divisor: Magnitude) -> Option<Magnitude> {
        let quotient = Magnitude { low: self.low - divisor.high, high: self.high - divisor.low, ..self.with(divisor) };
        divisor.is_some.then_some(Magnitude { is_some: self.is_some, ..quotient })
    }

    /// What a product and a quotient have of both operands.
    fn with(self, other: Magnitude) -> Magnitude {
        let (is_some, is_unsigned) = (self.is_some && other.is_some, self.is_unsigned && other.is_unsigned);
        Magnitude { is_some, is_unsigned, ..self }
    }

    /// Whether it is a number that sums and products round, and that no device takes for 0.
    fn is_normal(self) -> bool {
        let [low, high] = ROUNDED;
        self.low >= low && self.high <= high
    }
}

/// Binary digits of a type that is computed in f32.
fn digits(dtype: DType) -> i32 {
    match dtype {
        DType::Bf16 => bf16::MANTISSA_DIGITS as i32,
        DType::F16 => f16::MANTISSA_DIGITS as i32,
        _ => f32::MANTISSA_DIGITS as i32,
    }
}

/// Of what hot twins of a narrow type's own functions give of arguments that are not rare.
fn of_function(op: Unary, dtype: DType) -> Option<Magnitude> {
    let [low, high] = match (op, dtype) {
        (Unary::Exp, DType::Bf16) => EXP,
        (Unary::Sigmoid, DType::Bf16) => SIGMOID,
        (Unary::Exp, DType::F16) => EXP_F16,
        _ => return None,
    };
    Some(Magnitude { low, high, is_some: op == Unary::Sigmoid, is_unsigned: true })
}

/// Whether anything is known of an op's result.
fn is_followed(op: Elementwise) -> bool {
    use Binary::{Add, Divide, Max, Min, Multiply, Subtract};
    use Unary::{Abs, Erf, Exp, Negate, Sigmoid, Sqrt, Tanh};
    match op {
        Elementwise::Select => true,
        Elementwise::Unary(op) => matches!(op, Negate | Abs | Erf | Tanh | Sqrt | Exp | Sigmoid),
        Elementwise::Binary(op) => matches!(op, Add | Subtract | Multiply | Divide | Max | Min),
        // Of no other op is anything known.
        _ => false,
    }
}

/// Of an op's result, by those of its operands, of which one is chosen or all count, and their digits, before it is
/// rounded.
fn of_result(op: Elementwise, of: &[Magnitude], digits: &[i32]) -> Option<Magnitude> {
    match (op, of) {
        (Elementwise::Select, &[a, b]) => Some(a.or(b)),
        (Elementwise::Unary(op), &[a]) => of_unary(op, a),
        (Elementwise::Binary(op), &[a, b]) => match op {
            Binary::Add => Some(a.sum(b, [digits[0], digits[1]])),
            Binary::Subtract => Some(a.sum(b.negated(), [digits[0], digits[1]])),
            Binary::Multiply => Some(a.product(b)),
            Binary::Divide => a.quotient(b),
            Binary::Max | Binary::Min => Some(a.or(b)),
            // Of no other op is anything known.
            _ => None,
        },
        _ => None,
    }
}

fn of_unary(op: Unary, a: Magnitude) -> Option<Magnitude> {
    match op {
        Unary::Negate => Some(a.negated()),
        Unary::Abs => Some(Magnitude { is_unsigned: true, ..a }),
        // At least half of the operand where that is below 1, and up to 1.
        Unary::Erf | Unary::Tanh => Some(Magnitude { low: a.low.min(0) - 1, high: 0, ..a }),
        Unary::Sqrt if a.is_unsigned => {
            Some(Magnitude { low: a.low.div_euclid(2), high: a.high.div_euclid(2) + 1, ..a })
        }
        // Of no other op is anything known.
        _ => None,
    }
}

impl Code<'_, '_> {
    /// Whether magnitudes are of use: in code that calls hot twins, where sums and products are rounded to the nearest.
    fn asks(&self) -> bool {
        self.assumes && self.rare.is_some() && self.linker.modes.nearest
    }

    /// Notes that a value is this constant.
    pub fn know_constant(&mut self, value: Value, bits: u64) {
        if self.asks()
            && value.dtype.ctype() == CType::F32
            && let Some(magnitude) = Magnitude::of(f32::from_bits(bits as u32))
        {
            self.known.insert(value.id, Known { magnitude, unless: SmallVec::new() });
        }
    }

    /// Assumes of bf16 that were read that none of them is extreme: one bool says whether one is.
    pub fn assume(&mut self, values: &[Value]) -> Result<()> {
        let ty = self.linker.type_bool();
        let mut any: Option<Word> = None;
        for value in values {
            let is_extreme = self.call("nx_is_extreme_f32", &[value.id])?;
            any = Some(any.map_or(is_extreme, |any| self.ids(SpirvOp::LogicalOr, ty, &[any, is_extreme])));
        }
        for (value, any) in values.iter().filter_map(|value| Some((value, any?))) {
            self.known.insert(value.id, Known { magnitude: ASSUMED, unless: smallvec![any] });
        }
        Ok(())
    }

    /// What is known of an operand; of bf16 it is assumed if nothing else is.
    fn known(&mut self, value: Value) -> Result<Option<Known>> {
        if !self.known.contains_key(&value.id) && value.dtype == DType::Bf16 {
            self.assume(&[value])?;
        }
        Ok(self.known.get(&value.id).cloned())
    }

    /// Notes how large what an op has computed can be, before it is rounded. `own` is the bool that says whether the
    /// argument of a narrow type's own function is rare, where one computed it.
    pub fn know_result(&mut self, op: Elementwise, args: &[Value], id: Word, own: Option<Word>) -> Result<()> {
        let is_float = |value: &Value| value.dtype.ctype() == CType::F32 && !value.dtype.is_integer();
        // Which of two is chosen, an integer says.
        let counts = if op == Elementwise::Select { args.get(1..).unwrap_or_default() } else { args };
        if !self.asks() || !is_followed(op) || !counts.iter().all(is_float) || self.known.contains_key(&id) {
            return Ok(());
        }
        let mut known: SmallVec<[Known; 3]> = SmallVec::new();
        let is_within = own.is_some() && matches!(op, Elementwise::Unary(Unary::Exp | Unary::Sigmoid));
        for &arg in if is_within { &[] } else { counts } {
            let Some(of) = self.known(arg)? else { return Ok(()) };
            known.push(of);
        }
        let of: SmallVec<[Magnitude; 3]> = known.iter().map(|known| known.magnitude).collect();
        let digits: SmallVec<[i32; 3]> = counts.iter().map(|arg| digits(arg.dtype)).collect();
        let magnitude = match op {
            Elementwise::Unary(op) if is_within => of_function(op, args[0].dtype),
            _ => of_result(op, &of, &digits),
        };
        let Some(mut magnitude) = magnitude else { return Ok(()) };
        if self.is_at_most_one {
            magnitude.high = magnitude.high.min(0);
        }
        let mut unless: SmallVec<[Word; 4]> = SmallVec::new();
        for word in known.iter().flat_map(|known| known.unless.iter().copied()).chain(own) {
            if !unless.contains(&word) {
                unless.push(word);
            }
        }
        self.known.insert(id, Known { magnitude, unless });
        Ok(())
    }

    /// Whether a number of 16 bits times a constant is 0 or normal, so that no device takes it for 0: of f16 always,
    /// unless the constant is extreme.
    pub fn is_normal_product(&mut self, number: Value, by: f32) -> Result<bool> {
        let Some(by) = Magnitude::of(by).filter(|_| by != 0.0) else { return Ok(false) };
        if number.dtype == DType::F16 {
            return Ok(by.low >= F16[0] && by.high <= F16[1]);
        }
        if !self.asks() {
            return Ok(false);
        }
        Ok(self.known(number)?.is_some_and(|known| known.magnitude.product(by).is_normal()))
    }

    /// A number as the nearest bf16, in few instructions where it is known to be normal.
    pub fn round_known(&mut self, value: Word) -> Result<Option<Word>> {
        let Some(known) = self.known.get(&value).filter(|known| self.asks() && known.magnitude.is_normal()) else {
            return Ok(None);
        };
        let known = known.clone();
        let id = self.call("nx_cast_f32_bf16_plain", &[value])?;
        self.rely_on(&known);
        self.keep(id, known);
        Ok(Some(id))
    }

    /// A bf16 times a constant that is a power of two, if what is known of it says that no digit is lost.
    pub fn exact_product(&mut self, number: Value, by: Value, bits: u64) -> Result<Option<Word>> {
        let factor = f32::from_bits(bits as u32);
        let is_power = factor.is_normal() && bits & 0x7f_ffff == 0;
        if number.dtype != DType::Bf16 || !is_power || !self.is_normal_product(number, factor)? {
            return Ok(None);
        }
        let (Some(known), Some(factor)) = (self.known(number)?, Magnitude::of(factor)) else { return Ok(None) };
        self.rely_on(&known);
        let id = self.call("nx_multiply_f32", &[number.id, by.id])?;
        self.keep(id, Known { magnitude: known.magnitude.product(factor), ..known });
        Ok(Some(id))
    }

    /// Notes a number that is a bf16 as it is, with its bits, and what is known of it.
    fn keep(&mut self, id: Word, known: Known) {
        let (uint, half) = (self.linker.type_uint(32), self.linker.const_u32(16));
        let bits = self.bitcast(uint, id);
        let bits = self.u32_op(SpirvOp::ShiftRightLogical, bits, half);
        self.narrowed.insert((id, DType::Bf16), bits);
        self.known.insert(id, known);
    }

    /// Whether an operand is known to be 0 or no smaller than `SMALLEST` says, so that code may count on it.
    pub fn is_large(&mut self, value: Value) -> Result<bool> {
        let known = if self.asks() { self.known(value)? } else { None };
        let Some(known) = known.filter(|known| known.magnitude.low >= SMALLEST) else { return Ok(false) };
        self.rely_on(&known);
        Ok(true)
    }

    /// Notes that code does not hold where this does not.
    fn rely_on(&mut self, known: &Known) {
        known.unless.iter().for_each(|&word| self.add_rare(word));
    }

    /// Notes of a number that was rounded to f16 what is known of it.
    pub fn know_half(&mut self, value: Word, rounded: Word) {
        let [least, most] = WITHIN_F16;
        let Some(known) = self.known.get(&value).filter(|known| known.magnitude.high <= most) else { return };
        let Magnitude { low, high, is_some, is_unsigned } = known.magnitude;
        // Less than half of the least one rounds to 0.
        let magnitude =
            Magnitude { low: low.max(least), high: high.max(least), is_some: is_some && low >= least, is_unsigned };
        self.known.insert(rounded, Known { magnitude, unless: known.unless.clone() });
    }

    /// Assumes of a divisor that it is from 2^-15 to 2^15, and tells whether the quotients of these numbers by it are
    /// what `nx_shared_quotient_f32` gives, rounded to a narrow type: where they are, code counts on what is known.
    pub fn divides_plainly(&mut self, dividends: &[Value], divisor: Value) -> Result<bool> {
        let is_plain = |known: Option<&Known>| {
            known.is_some_and(|Known { magnitude, .. }| {
                // Of -0 it would lose the sign.
                (magnitude.is_some || magnitude.is_unsigned)
                    && magnitude.low >= DIVIDENDS[0]
                    && magnitude.high <= DIVIDENDS[1]
                    && magnitude.quotient(DIVISOR).is_some_and(Magnitude::is_normal)
            })
        };
        if !self.asks() || !self.linker.fuses() || !dividends.iter().all(|value| is_plain(self.known.get(&value.id))) {
            return Ok(false);
        }
        let [low, high] = [DIVISOR.low, DIVISOR.high].map(|power| ((power + 127) as u32) << 23);
        let [low, high] = [low, high].map(|bits| self.linker.const_u32(bits));
        let is_beyond = self.call("nx_is_beyond_f32", &[divisor.id, low, high])?;
        self.known.insert(divisor.id, Known { magnitude: DIVISOR, unless: smallvec![is_beyond] });
        for value in dividends.iter().chain([&divisor]) {
            if let Some(known) = self.known.get(&value.id).cloned() {
                self.rely_on(&known);
            }
        }
        // Of 1, that is of the divisor alone.
        let [most, least] = [0x7f00_0000; 2].map(|key| self.linker.const_u32(key));
        let is_rare = self.call("nx_rare_quotient_f32", &[most, least, divisor.id])?;
        self.add_rare(is_rare);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that a magnitude says, its ends and zeros among them, and what else is known of them.
    fn holds(known: Magnitude, x: f32) -> bool {
        let size = f64::from(x.abs());
        let is_within = (2f64.powi(known.low)..=2f64.powi(known.high)).contains(&size);
        (is_within || x == 0.0 && !known.is_some) && !(known.is_unsigned && x.is_sign_negative())
    }

    /// A value of bf16 with what is known of it.
    type Sample = (f32, Magnitude);

    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }

    fn sample(seed: &mut u64) -> Sample {
        let sign = if random(seed).is_multiple_of(2) { 1.0 } else { -1.0 };
        let number = match random(seed) % 6 {
            0 => 0.0,
            1 => 2f32.powi(-40),
            2 => 2f32.powi(36),
            _ => (1.0 + random(seed) as f32 / 2f32.powi(31)) * 2f32.powi((random(seed) % 76) as i32 - 40),
        };
        let number = bf16::from_f32(sign * number).to_f32();
        if random(seed).is_multiple_of(3) { (number, Magnitude::of(number).unwrap()) } else { (number, ASSUMED) }
    }

    #[test]
    fn what_is_known_holds_of_random_chains() {
        let binary = [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide, Binary::Max, Binary::Min];
        let unary = [Unary::Negate, Unary::Abs, Unary::Erf, Unary::Tanh, Unary::Sqrt, Unary::Exp, Unary::Sigmoid];
        let (mut seed, mut rounded) = (1, 0);
        for _ in 0..40_000 {
            let (mut x, mut known) = sample(&mut seed);
            for _ in 0..4 {
                let (y, other) = sample(&mut seed);
                let (value, magnitude) = if !random(&mut seed).is_multiple_of(3) {
                    let op = binary[random(&mut seed) as usize % binary.len()];
                    let value = match op {
                        Binary::Add => x + y,
                        Binary::Subtract => x - y,
                        Binary::Multiply => x * y,
                        Binary::Divide => x / y,
                        Binary::Max => x.max(y),
                        _ => x.min(y),
                    };
                    (value, of_result(Elementwise::Binary(op), &[known, other], &[8, 8]))
                } else {
                    let op = unary[random(&mut seed) as usize % unary.len()];
                    let is_rare = match op {
                        Unary::Exp => (-93.0..=-55.0).contains(&x) || x >= 55.0,
                        Unary::Sigmoid => x <= -87.0,
                        _ => false,
                    };
                    let value = match op {
                        Unary::Negate => -x,
                        Unary::Abs => x.abs(),
                        Unary::Erf => libm::erf(x.into()) as f32,
                        Unary::Tanh => x.tanh(),
                        Unary::Sqrt => x.sqrt(),
                        Unary::Exp if x < -93.0 => 0.0,
                        Unary::Exp => x.exp(),
                        _ => 1.0 / (1.0 + (-x).exp()),
                    };
                    let of = match op {
                        Unary::Exp | Unary::Sigmoid => of_function(op, DType::Bf16),
                        _ => of_result(Elementwise::Unary(op), &[known], &[8]),
                    };
                    (value, of.filter(|_| !is_rare))
                };
                let Some(magnitude) = magnitude else { break };
                assert!(holds(magnitude, value), "{value:e} of {x:e}, {known:?}, and {y:e}, {other:?}: {magnitude:?}");
                if !magnitude.is_normal() {
                    break;
                }
                rounded += 1;
                (x, known) = (bf16::from_f32(value).to_f32(), magnitude);
                assert!(holds(known, x), "{x:e} rounded of {value:e}: {known:?}");
            }
        }
        assert!(rounded > 40_000, "{rounded}");
    }

    #[test]
    fn three_factors_of_what_is_assumed_are_rounded_plainly() {
        let cube = ASSUMED.product(ASSUMED).product(ASSUMED);
        assert!(cube.is_normal() && !cube.product(ASSUMED).is_normal());
        assert_eq!(ASSUMED.quotient(ASSUMED), None);
    }
}
