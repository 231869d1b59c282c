//! The twenty tensor types of Nx, how they are stored on the device, and in which type kernels compute with them.

use std::fmt;

/// A tensor element type, named as Nx names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    S2,
    S4,
    S8,
    S16,
    S32,
    S64,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    F8E5M2,
    F8E4M3Fn,
    Bf16,
    F16,
    F32,
    F64,
    C64,
    C128,
}

/// The type of a value inside a kernel. Narrow types are widened to one of these and rounded back after every op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum CType {
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    C64,
    C128,
}

impl DType {
    /// Every type.
    pub const ALL: [DType; 20] = [
        DType::S2,
        DType::S4,
        DType::S8,
        DType::S16,
        DType::S32,
        DType::S64,
        DType::U2,
        DType::U4,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F8E5M2,
        DType::F8E4M3Fn,
        DType::Bf16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::C64,
        DType::C128,
    ];

    /// Nx's short name, as in `Nx.Type.to_string/1`.
    pub fn name(self) -> &'static str {
        match self {
            DType::S2 => "s2",
            DType::S4 => "s4",
            DType::S8 => "s8",
            DType::S16 => "s16",
            DType::S32 => "s32",
            DType::S64 => "s64",
            DType::U2 => "u2",
            DType::U4 => "u4",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F8E5M2 => "f8",
            DType::F8E4M3Fn => "f8_e4m3fn",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::C128 => "c128",
        }
    }

    /// The type that Nx calls so.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Bits of one element in an Nx binary, where sub-byte types are packed.
    pub fn bits(self) -> u32 {
        match self {
            DType::S2 | DType::U2 => 2,
            DType::S4 | DType::U4 => 4,
            DType::S8 | DType::U8 | DType::F8E5M2 | DType::F8E4M3Fn => 8,
            DType::S16 | DType::U16 | DType::Bf16 | DType::F16 => 16,
            DType::S32 | DType::U32 | DType::F32 => 32,
            DType::S64 | DType::U64 | DType::F64 | DType::C64 => 64,
            DType::C128 => 128,
        }
    }

    /// Bytes of one element in device memory, where sub-byte types take one byte each.
    pub fn size_bytes(self) -> u64 {
        u64::from(self.bits().div_ceil(8))
    }

    /// The type in which kernels compute with it.
    pub fn ctype(self) -> CType {
        match self {
            DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 => CType::I32,
            DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 => CType::U32,
            DType::S64 => CType::I64,
            DType::U64 => CType::U64,
            DType::F8E5M2 | DType::F8E4M3Fn | DType::Bf16 | DType::F16 | DType::F32 => CType::F32,
            DType::F64 => CType::F64,
            DType::C64 => CType::C64,
            DType::C128 => CType::C128,
        }
    }

    /// Whether the dtype is its own compute type, so that a value needs no rounding before it is stored.
    pub fn is_canonical(self) -> bool {
        matches!(
            self,
            DType::S32 | DType::U32 | DType::S64 | DType::U64 | DType::F32 | DType::F64 | DType::C64 | DType::C128
        )
    }

    /// Whether it is a signed integer.
    pub fn is_signed(self) -> bool {
        matches!(self, DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64)
    }

    /// Whether it is an unsigned integer.
    pub fn is_unsigned(self) -> bool {
        matches!(self, DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Whether it is an integer.
    pub fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// Whether it is a real float.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F8E5M2 | DType::F8E4M3Fn | DType::Bf16 | DType::F16 | DType::F32 | DType::F64)
    }

    /// Whether it is a complex number.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
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
    fn canonical_types_are_their_own_compute_type() {
        for t in DType::ALL {
            assert_eq!(t.is_canonical(), t.ctype().dtype() == t, "{t}");
        }
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
