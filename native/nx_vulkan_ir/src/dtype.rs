//! The twenty tensor types of Nx, how they are stored on the device, and in which type kernels compute with them.

use std::fmt;

/// What kind of number a type's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
    Complex,
}

/// How the bits of a float are laid out: from the highest on its sign, its exponent and its mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Explicit bits of the mantissa.
    pub mantissa: u32,
    /// Whether the largest exponent is that of infinity and NaN. Otherwise it is an exponent like others, whose largest
    /// number is NaN, and what is too large becomes the largest number below.
    pub infinite: bool,
}

impl Format {
    const fn ieee(exponent: u32, mantissa: u32) -> Format {
        Format { exponent, mantissa, infinite: true }
    }

    const fn finite(exponent: u32, mantissa: u32) -> Format {
        Format { exponent, mantissa, infinite: false }
    }

    /// What is added to an exponent.
    pub fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The exponent of the smallest normal number.
    pub fn least_exponent(self) -> i32 {
        1 - self.bias()
    }

    /// The bits of what numbers that are too large become.
    pub fn largest_bits(self) -> u64 {
        let all = (1 << (self.exponent + self.mantissa)) - 1;
        if self.infinite { all << self.mantissa & all } else { all - 1 }
    }

    /// The bits of a NaN.
    pub fn nan_bits(self) -> u64 {
        if self.infinite { self.largest_bits() | 1 << (self.mantissa - 1) } else { self.largest_bits() + 1 }
    }

    /// The largest number.
    pub fn max(self) -> f64 {
        let bits = self.largest_bits() - u64::from(self.infinite);
        let (exponent, fraction) = (bits >> self.mantissa, bits & ((1 << self.mantissa) - 1));
        let ulp = 2f64.powi(exponent as i32 - self.bias() - self.mantissa as i32);
        ((1 << self.mantissa) + fraction) as f64 * ulp
    }
}

/// What is to be known of a type.
struct Facts {
    name: &'static str,
    kind: Kind,
    bits: u32,
    ctype: CType,
    format: Option<Format>,
}

macro_rules! types {
    ($(#[$doc:meta])* $types:ident {
        $($variant:ident = $name:literal, $kind:ident, $bits:literal, $ctype:ident, $format:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $types { $(#[doc = concat!("Nx's `", $name, "`.")] $variant),* }

        impl $types {
            /// Every type.
            pub const ALL: [$types; [$($bits),*].len()] = [$($types::$variant),*];

            const fn facts(self) -> Facts {
                match self {
                    $($types::$variant => Facts {
                        name: $name,
                        kind: Kind::$kind,
                        bits: $bits,
                        ctype: CType::$ctype,
                        format: $format,
                    }),*
                }
            }
        }
    };
}

// Name, kind, bits in an Nx binary, compute type, and the format of floats, or of the parts of complex numbers.
types! {
    /// A tensor element type, named as Nx names it.
    DType {
        S2 = "s2", Signed, 2, I32, None;
        S4 = "s4", Signed, 4, I32, None;
        S8 = "s8", Signed, 8, I32, None;
        S16 = "s16", Signed, 16, I32, None;
        S32 = "s32", Signed, 32, I32, None;
        S64 = "s64", Signed, 64, I64, None;
        U2 = "u2", Unsigned, 2, U32, None;
        U4 = "u4", Unsigned, 4, U32, None;
        U8 = "u8", Unsigned, 8, U32, None;
        U16 = "u16", Unsigned, 16, U32, None;
        U32 = "u32", Unsigned, 32, U32, None;
        U64 = "u64", Unsigned, 64, U64, None;
        F8E5M2 = "f8", Float, 8, F32, Some(Format::ieee(5, 2));
        F8E4M3Fn = "f8_e4m3fn", Float, 8, F32, Some(Format::finite(4, 3));
        Bf16 = "bf16", Float, 16, F32, Some(Format::ieee(8, 7));
        F16 = "f16", Float, 16, F32, Some(Format::ieee(5, 10));
        F32 = "f32", Float, 32, F32, Some(Format::ieee(8, 23));
        F64 = "f64", Float, 64, F64, Some(Format::ieee(11, 52));
        C64 = "c64", Complex, 64, C64, Some(Format::ieee(8, 23));
        C128 = "c128", Complex, 128, C128, Some(Format::ieee(11, 52));
    }
}

/// The type of a value inside a kernel. Narrow types are widened to one of these and rounded back after every op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CType {
    /// Integers of 32 bits with a sign.
    I32,
    /// Integers of 32 bits without one.
    U32,
    /// Integers of 64 bits with a sign.
    I64,
    /// Integers of 64 bits without one.
    U64,
    /// Floats of 32 bits.
    F32,
    /// Floats of 64 bits.
    F64,
    /// Complex numbers, of two f32.
    C64,
    /// Complex numbers, of two f64.
    C128,
}

impl DType {
    /// Nx's short name, as in `Nx.Type.to_string/1`.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The type that Nx calls so.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Bits of one element in an Nx binary, where sub-byte types are packed.
    pub fn bits(self) -> u32 {
        self.facts().bits
    }

    /// The format of a float, or of the parts of a complex number.
    pub fn format(self) -> Option<Format> {
        self.facts().format
    }

    /// Whether it is a float all of whose numbers another float has.
    pub fn is_within(self, other: DType) -> bool {
        let within = |own: Format, other: Format| own.exponent <= other.exponent && own.mantissa <= other.mantissa;
        let formats = self.format().zip(other.format());
        self.is_float() && other.is_float() && formats.is_some_and(|(own, other)| within(own, other))
    }

    /// Whether it is a float of 8 bits.
    pub fn is_float8(self) -> bool {
        self.is_float() && self.bits() == 8
    }

    /// Bytes of one element in device memory, where sub-byte types take one byte each.
    pub fn size_bytes(self) -> u64 {
        u64::from(self.bits().div_ceil(8))
    }

    /// The type in which kernels compute with it.
    pub fn ctype(self) -> CType {
        self.facts().ctype
    }

    /// Whether the dtype is its own compute type, so that a value needs no rounding before it is stored.
    pub fn is_canonical(self) -> bool {
        self.ctype().dtype() == self
    }

    /// Whether it is a signed integer.
    pub fn is_signed(self) -> bool {
        self.facts().kind == Kind::Signed
    }

    /// Whether it is an unsigned integer.
    pub fn is_unsigned(self) -> bool {
        self.facts().kind == Kind::Unsigned
    }

    /// Whether it is an integer.
    pub fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// Whether it is a real float.
    pub fn is_float(self) -> bool {
        self.facts().kind == Kind::Float
    }

    /// Whether it is a complex number.
    pub fn is_complex(self) -> bool {
        self.facts().kind == Kind::Complex
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CType {
    /// The suffix of scalar library functions, as in `nx_add_f32`.
    pub fn name(self) -> &'static str {
        match self {
            CType::I32 => "i32",
            CType::U32 => "u32",
            CType::I64 => "i64",
            CType::U64 => "u64",
            CType::F32 => "f32",
            CType::F64 => "f64",
            CType::C64 => "c64",
            CType::C128 => "c128",
        }
    }

    /// The dtype whose stored elements are values of this compute type.
    pub fn dtype(self) -> DType {
        match self {
            CType::I32 => DType::S32,
            CType::U32 => DType::U32,
            CType::I64 => DType::S64,
            CType::U64 => DType::U64,
            CType::F32 => DType::F32,
            CType::F64 => DType::F64,
            CType::C64 => DType::C64,
            CType::C128 => DType::C128,
        }
    }
}

/// Bytes of an Nx binary of `elements` elements; `u64::MAX` where no `u64` holds that.
pub fn nx_bytes(dtype: DType, elements: u64) -> u64 {
    match dtype.bits() {
        bits if bits < 8 => elements.div_ceil(8 / u64::from(bits)),
        _ => elements.saturating_mul(dtype.size_bytes()),
    }
}

/// The type in which Nx compares or merges two operands.
pub fn merge(a: DType, b: DType) -> DType {
    let rank = |t: DType| match t {
        _ if t.is_complex() => 3,
        _ if t.is_float() => 2,
        _ => 1,
    };
    if a == b {
        return a;
    }
    let (low, high) = if rank(a) <= rank(b) { (a, b) } else { (b, a) };
    match (rank(low), rank(high)) {
        (3, _) | (_, 3) => {
            let wide = [low, high].iter().any(|t| matches!(t, DType::C128 | DType::F64));
            if wide { DType::C128 } else { DType::C64 }
        }
        (2, 2) => {
            if low.bits() == high.bits() {
                // Two different 8- or 16-bit formats: neither holds the other.
                if low.bits() == 16 { DType::F32 } else { DType::Bf16 }
            } else if low.bits() > high.bits() {
                low
            } else {
                high
            }
        }
        (1, 2) => high,
        _ => {
            if low.is_signed() == high.is_signed() {
                return if low.bits() >= high.bits() { low } else { high };
            }
            let (signed, unsigned) = if low.is_signed() { (low, high) } else { (high, low) };
            if unsigned.bits() < signed.bits() {
                return signed;
            }
            match unsigned.bits() {
                2 => DType::S4,
                4 => DType::S8,
                8 => DType::S16,
                16 => DType::S32,
                _ => DType::S64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_unique() {
        for t in DType::ALL {
            assert_eq!(DType::from_name(t.name()), Some(t));
        }
        assert_eq!(DType::from_name("f128"), None);
    }

    #[test]
    fn formats_are_as_wide_as_their_types() {
        for (t, format) in DType::ALL.into_iter().filter_map(|t| Some((t, t.format()?))) {
            let parts = if t.is_complex() { 2 } else { 1 };
            assert_eq!(parts * (1 + format.exponent + format.mantissa), t.bits(), "{t}");
            assert!(t.is_canonical() || t.is_within(t.ctype().dtype()), "{t}");
        }
        let max = |t: DType| t.format().map(Format::max);
        assert_eq!(max(DType::F8E5M2), Some(57_344.0));
        assert_eq!(max(DType::F8E4M3Fn), Some(448.0));
        assert_eq!(max(DType::F16), Some(65_504.0));
        assert_eq!(max(DType::F32), Some(f64::from(f32::MAX)));
        assert_eq!(max(DType::F64), Some(f64::MAX));
        assert!(DType::F8E4M3Fn.is_within(DType::F16) && !DType::F16.is_within(DType::Bf16));
    }

    #[test]
    fn merging_follows_nx() {
        use DType::*;
        for (a, b, expected) in [
            (S32, F32, F32),
            (S64, Bf16, Bf16),
            (U8, S8, S16),
            (U64, S64, S64),
            (U32, S64, S64),
            (U32, S8, S64),
            (F16, Bf16, F32),
            (F64, C64, C128),
            (U2, S2, S4),
            (U8, U64, U64),
            (F32, C64, C64),
            (F16, F32, F32),
        ] {
            assert_eq!(merge(a, b), expected, "{a} {b}");
            assert_eq!(merge(b, a), expected, "{b} {a}");
        }
    }
}
