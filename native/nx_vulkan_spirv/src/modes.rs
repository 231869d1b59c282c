//! What a module declares and assumes of a device's arithmetic.

/// What generated modules may declare and assume about the device's arithmetic, and how far their positions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FloatModes {
    /// SignedZeroInfNanPreserve by width.
    pub preserve_f32: bool,
    /// SignedZeroInfNanPreserve for 64 bits.
    pub preserve_f64: bool,
    /// Every operation of f64 is rounded once, as where doubles are lowered, so that functions need no corrections.
    pub exact_f64: bool,
    /// fma rounds once, in every width that the device has.
    pub fused: bool,
    /// Sums and products of normal f32 are rounded to the nearest, so that differences of them round to bf16.
    pub nearest: bool,
    /// fma rounds once and arithmetic keeps denormals of f32, so that sums round to f16 and bf16.
    pub kept: bool,
    /// Quotients and square roots of f32 are the rounded ones, denormal or not.
    pub rounded: bool,
    /// Conversions between f16 and f32 are the ones of the scalar library, but for NaN.
    pub halves: bool,
    /// A conversion from f32 to f16 and back rounds, which some compilers take for nothing.
    pub half_round_trips: bool,
    /// It does so where no compiler can take it for nothing.
    pub hidden_round_trips: bool,
    /// Bytes from where an operand begins may take more than 32 bits.
    pub far: bool,
}

impl FloatModes {
    /// Nothing is declared or assumed.
    pub const NONE: FloatModes = FloatModes {
        preserve_f32: false,
        preserve_f64: false,
        exact_f64: false,
        fused: false,
        nearest: false,
        kept: false,
        rounded: false,
        halves: false,
        half_round_trips: false,
        hidden_round_trips: false,
        far: false,
    };
}
