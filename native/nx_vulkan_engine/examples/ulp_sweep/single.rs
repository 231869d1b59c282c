//! f32 functions over all bit patterns, against the f64 functions of the same device. Nothing but the worst error, its
//! place and counts leave the device.

use std::sync::Arc;

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::Rule;
use nx_vulkan_engine::program::{Binary, Op, Reduction, Unary};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Engine, Error, Tensor, Type, eager};

type Outcome<T> = Result<T, Error>;

/// What has an error: the functions of floats, and what rounds them.
pub fn functions() -> impl Iterator<Item = Unary> {
    let rounds = |op: Unary| matches!(op, Unary::Floor | Unary::Ceil);
    let is_function = move |op: &Unary| matches!(op.rule(), Rule::Float | Rule::RealFloat) || rounds(*op);
    Unary::ALL.iter().copied().filter(is_function)
}

pub struct Worst {
    pub ulp: f64,
    pub at: u32,
    /// Inputs whose result is not the rounded reference.
    pub not_rounded: u64,
    pub inputs: u64,
}

pub struct Sweep {
    engine: Arc<Engine>,
    /// The step through the bit patterns; odd.
    stride: u64,
    chunk: u64,
}

impl Sweep {
    pub fn new(engine: Arc<Engine>, stride: u64) -> Sweep {
        let chunk = if engine.caps().kind == DeviceKind::Cpu { 1 << 20 } else { 1 << 26 };
        Sweep { engine, stride: stride | 1, chunk }
    }

    fn op(&self, op: &Op, operands: &[&Tensor], dtype: DType, n: u64) -> Outcome<Tensor> {
        let operands: Vec<Tensor> = operands.iter().map(|&t| t.clone()).collect();
        eager::run(&self.engine, op, &operands, &Type::new(dtype, &[n]), Compile::Allowed)
    }

    fn constant(&self, value: Scalar, dtype: DType, n: u64) -> Outcome<Tensor> {
        self.op(&Op::Constant(value), &[], dtype, n)
    }

    fn number(&self, tensor: &Tensor) -> Outcome<u64> {
        let mut bytes = [0; 8];
        let size = tensor.view().dtype.size_bytes() as usize;
        self.engine.download(tensor.buffer(), tensor.view().offset_bytes(), &mut bytes[..size])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn reduced(&self, reduction: Reduction, a: &Tensor, dtype: DType) -> Outcome<u64> {
        let op = Op::Reduce { reduction, axes: Axes::from_slice(&[0]), tie_high: false };
        let out = Type::new(dtype, &[]);
        self.number(&eager::run(&self.engine, &op, std::slice::from_ref(a), &out, Compile::Allowed)?)
    }

    pub fn run(&self, function: Unary) -> Outcome<Worst> {
        let mut worst = Worst { ulp: -1.0, at: 0, not_rounded: 0, inputs: 0 };
        let total = (1u64 << 32).div_ceil(self.stride);
        let mut begin = 0;
        while begin < total {
            let n = self.chunk.min(total - begin);
            let (errors, different) = self.chunk(function, begin, n)?;
            let ulp = f64::from_bits(self.reduced(Reduction::Max, &errors, DType::F64)?);
            if ulp > worst.ulp {
                let index = begin + self.reduced(Reduction::ArgMax, &errors, DType::S32)?;
                (worst.ulp, worst.at) = (ulp, (index * self.stride) as u32);
            }
            worst.not_rounded += self.reduced(Reduction::Sum, &different, DType::U32)?;
            worst.inputs += n;
            begin += n;
        }
        Ok(worst)
    }

    /// The errors in ulp at the patterns `begin * stride`, ... and whether the results differ from the rounded
    /// references.
    fn chunk(&self, function: Unary, begin: u64, n: u64) -> Outcome<(Tensor, Tensor)> {
        let unary = |op, a: &Tensor, dtype| self.op(&Op::Unary(op), &[a], dtype, n);
        let binary = |op, a: &Tensor, b: &Tensor, dtype| self.op(&Op::Binary(op), &[a, b], dtype, n);
        let cast = |a: &Tensor, dtype| self.op(&Op::AsType, &[a], dtype, n);
        let bits = |a: &Tensor, dtype| self.op(&Op::Bitcast, &[a], dtype, n);
        let float = |x| self.constant(Scalar::Float(x), DType::F64, n);
        let select = |p: &Tensor, a: &Tensor, b: &Tensor| self.op(&Op::Select, &[p, a, b], DType::F64, n);
        let word = |x: u64| self.constant(Scalar::Int(i128::from(x as u32)), DType::U32, n);

        let count = self.op(&Op::Iota { axis: None }, &[], DType::U32, n)?;
        let scaled = binary(Binary::Multiply, &count, &word(self.stride)?, DType::U32)?;
        let pattern = binary(Binary::Add, &scaled, &word(begin.wrapping_mul(self.stride))?, DType::U32)?;
        let x = bits(&pattern, DType::F32)?;
        let got = unary(function, &x, DType::F32)?;
        let want = unary(function, &cast(&x, DType::F64)?, DType::F64)?;
        let rounded = cast(&want, DType::F32)?;

        // |got - want| in units of the last place of want. Infinity counts as 2^128.
        let limit = 2f64.powi(128);
        let bounded = |a: &Tensor| -> Outcome<Tensor> {
            let a = binary(Binary::Min, a, &float(limit)?, DType::F64)?;
            binary(Binary::Max, &a, &float(-limit)?, DType::F64)
        };
        let (got64, want64) = (bounded(&cast(&got, DType::F64)?)?, bounded(&want)?);
        let mask = self.constant(Scalar::Int(0x7ff << 52), DType::U64, n)?;
        let power = bits(&binary(Binary::BitwiseAnd, &bits(&want64, DType::U64)?, &mask, DType::U64)?, DType::F64)?;
        let power = binary(Binary::Max, &power, &float(2f64.powi(-126))?, DType::F64)?;
        let power = binary(Binary::Min, &power, &float(2f64.powi(127))?, DType::F64)?;
        let distance = unary(Unary::Abs, &binary(Binary::Subtract, &got64, &want64, DType::F64)?, DType::F64)?;
        let distance = binary(Binary::Multiply, &distance, &float(2f64.powi(23))?, DType::F64)?;
        let ulp = binary(Binary::Divide, &distance, &power, DType::F64)?;

        let nans = [unary(Unary::IsNan, &got, DType::U8)?, unary(Unary::IsNan, &rounded, DType::U8)?];
        let both = binary(Binary::LogicalAnd, &nans[0], &nans[1], DType::U8)?;
        let one = binary(Binary::NotEqual, &nans[0], &nans[1], DType::U8)?;
        let (got, rounded) = (bits(&got, DType::U32)?, bits(&rounded, DType::U32)?);
        let change = binary(Binary::BitwiseXor, &got, &rounded, DType::U32)?;
        let sign = binary(Binary::Equal, &change, &word(0x8000_0000)?, DType::U8)?;
        let failed = binary(Binary::LogicalOr, &one, &sign, DType::U8)?;
        let ulp = select(&failed, &float(f64::INFINITY)?, &ulp)?;
        let ulp = select(&both, &float(0.0)?, &ulp)?;
        let zero = word(0)?;
        let change = self.op(&Op::Select, &[&both, &zero, &change], DType::U32, n)?;
        let different = binary(Binary::NotEqual, &change, &zero, DType::U8)?;
        Ok((ulp, different))
    }
}
