//! Kinds of data.

use nx_vulkan_engine::{DType, Engine, Tensor, Type};

use crate::Outcome;

/// How the elements of an operand are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In (-1, 1), without a pattern: the ordinary kind.
    Random,
    Zeros,
    /// All of them 0.75.
    Equal,
    /// All of them different, the least first.
    Sorted,
    /// All of them different, the largest first.
    Reversed,
    Denormals,
    /// Random ones, of which one is the largest f32 there is.
    OneHuge,
    /// Random ones times 1e30.
    Huge,
    /// Random ones, of which one is infinite.
    OneInfinite,
    /// Random ones, of which the last of each row of 64 is infinite.
    SomeInfinite,
    Infinite,
    /// Random ones, of which one is no number.
    OneNan,
    Nan,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Random,
        Kind::Zeros,
        Kind::Equal,
        Kind::Sorted,
        Kind::Reversed,
        Kind::Denormals,
        Kind::OneHuge,
        Kind::Huge,
        Kind::OneInfinite,
        Kind::SomeInfinite,
        Kind::Infinite,
        Kind::OneNan,
        Kind::Nan,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Random => "random",
            Kind::Zeros => "zeros",
            Kind::Equal => "equal",
            Kind::Sorted => "sorted",
            Kind::Reversed => "reversed",
            Kind::Denormals => "denormals",
            Kind::OneHuge => "one huge",
            Kind::Huge => "huge",
            Kind::OneInfinite => "one Inf",
            Kind::SomeInfinite => "some Inf",
            Kind::Infinite => "Inf",
            Kind::OneNan => "one NaN",
            Kind::Nan => "NaN",
        }
    }

    /// So many elements of it.
    pub fn values(self, count: u64) -> Vec<f32> {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        (0..count)
            .map(|i| {
                let x = random.next();
                let place = i as f32 / count as f32 * 2.0 - 1.0;
                match self {
                    Kind::Zeros => 0.0,
                    Kind::Equal => 0.75,
                    Kind::Sorted => place,
                    Kind::Reversed => -place,
                    Kind::Denormals => x * 1e-39,
                    Kind::OneHuge if i == count / 2 => f32::MAX,
                    Kind::OneInfinite if i == count / 2 => f32::INFINITY,
                    Kind::OneNan if i == count / 2 => f32::NAN,
                    Kind::SomeInfinite if i % 64 == 63 => f32::INFINITY,
                    Kind::Huge => x * 1e30,
                    Kind::Infinite => f32::INFINITY,
                    Kind::Nan => f32::NAN,
                    Kind::Random | Kind::OneHuge | Kind::OneInfinite | Kind::SomeInfinite | Kind::OneNan => x,
                }
            })
            .collect()
    }

    /// A tensor of it.
    pub fn tensor(self, engine: &std::sync::Arc<Engine>, shape: &[u64]) -> Outcome<Tensor> {
        floats(engine, shape, &self.values(shape.iter().product()))
    }
}

/// A tensor of f32.
pub fn floats(engine: &std::sync::Arc<Engine>, shape: &[u64], values: &[f32]) -> Outcome<Tensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    Tensor::from_nx_bytes(engine, &Type::new(DType::F32, shape), &bytes)
}

/// A tensor of s32.
pub fn integers(engine: &std::sync::Arc<Engine>, shape: &[u64], values: &[i32]) -> Outcome<Tensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    Tensor::from_nx_bytes(engine, &Type::new(DType::S32, shape), &bytes)
}

/// Numbers in (-1, 1) without a pattern.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, bound: u64) -> i32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % bound) as i32
    }
}
