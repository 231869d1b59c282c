//! Random programs: elementwise ops over mixed types, views, reductions, and rows that are normalized.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::ops::result_dtype;
use nx_vulkan_engine::program::{Binary, Builder, Elementwise, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::shape::elements;
use nx_vulkan_engine::{DType, Type, Value};

use crate::common::Rng;

const MAX_ELEMENTS: u64 = 2048;

const TYPES: [DType; 17] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::S32,
    DType::S32,
    DType::S8,
    DType::S16,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::U8,
    DType::S64,
    DType::Bf16,
    DType::F16,
    DType::F64,
    DType::C64,
];

pub fn values(ty: &Type, rng: &mut Rng) -> Array {
    let special = [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let number = |rng: &mut Rng| match rng.below(24) {
        k if k < 6 => special[k as usize],
        _ => (rng.below(4001) as f64 - 2000.0) / 500.0,
    };
    let value = |rng: &mut Rng| match ty.dtype {
        // Some of them are any numbers that the type has, its least and its largest one among them.
        t if t.is_integer() => match rng.below(24) {
            0 => Value::Int(1 << (t.bits() - 1)).cast(t),
            1 => Value::Int((1 << (t.bits() - 1)) - 1).cast(t),
            2 => Value::Int(-1).cast(t),
            3 => Value::Int(rng.next().into()).cast(t),
            _ => Value::Int(i128::from(rng.below(11)) - 4).cast(t),
        },
        t if t.is_complex() => Value::Complex(number(rng), number(rng)),
        _ => Value::Float(number(rng)),
    };
    Array::new(ty, (0..ty.elements()).map(|_| value(rng)).collect::<Vec<_>>())
}

struct Maker<'a> {
    build: Builder,
    rng: &'a mut Rng,
    types: &'static [DType],
}

impl Maker<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn pick(&mut self) -> Operand {
        let made = self.build.results() as usize;
        match self.below(6) {
            k if k < made.min(5) => Operand::Result((made - 1 - k) as u32),
            _ => Operand::Input(self.below(self.build.inputs() as usize) as u32),
        }
    }

    /// One of the ops that models are made of, or of all.
    fn one_of<T: Copy>(&mut self, common: &[T], all: &[T]) -> T {
        let ops = if self.below(3) > 0 { common } else { all };
        ops[self.below(ops.len())]
    }

    fn unary(&mut self, a: Operand) -> Option<()> {
        let ty = self.build.ty(a);
        let common = [
            Unary::Exp,
            Unary::Negate,
            Unary::Abs,
            Unary::Sqrt,
            Unary::Tanh,
            Unary::Sign,
            Unary::Floor,
            Unary::Log1p,
            Unary::IsNan,
            Unary::Sigmoid,
            Unary::Negate,
            Unary::Abs,
        ];
        let op = self.one_of(&common, Unary::ALL);
        let dtype = result_dtype(Elementwise::Unary(op), &[ty.dtype])?;
        if dtype.is_complex() && !self.types.contains(&DType::C64) {
            return None;
        }
        self.build.push(Op::Unary(op), &[a], &Type::new(dtype, &ty.shape));
        Some(())
    }

    fn binary(&mut self, a: Operand, b: Operand) -> Option<()> {
        let (x, y) = (self.build.ty(a), self.build.ty(b));
        let shape = joint(&x.shape, &y.shape)?;
        let common = [
            Binary::Add,
            Binary::Subtract,
            Binary::Multiply,
            Binary::Max,
            Binary::Min,
            Binary::Divide,
            Binary::Less,
            Binary::Equal,
            Binary::Add,
            Binary::Multiply,
            Binary::Subtract,
            Binary::LogicalAnd,
        ];
        let op = self.one_of(&common, Binary::ALL);
        let dtype = result_dtype(Elementwise::Binary(op), &[x.dtype, y.dtype])?;
        self.build.push(Op::Binary(op), &[a, b], &Type::new(dtype, &shape));
        Some(())
    }

    fn constant(&mut self, dtype: DType) -> Operand {
        let value = [0.0, 1.0, -0.0, 2.0, 0.5, -1.0, 3.0, 200.0][self.below(8)];
        let value = if dtype.is_integer() { Scalar::Int(value as i128) } else { Scalar::Float(value) };
        self.build.push(Op::Constant(value), &[], &Type::new(dtype, &[]))
    }

    fn view(&mut self, a: Operand) -> Option<()> {
        let ty = self.build.ty(a);
        let (dtype, shape) = (ty.dtype, ty.shape.to_vec());
        let rank = shape.len();
        let (op, out) = match self.below(6) {
            0 => {
                let mut axes: Axes = (0..rank).collect();
                (1..rank).for_each(|i| axes.swap(i, self.rng.below(i as u64 + 1) as usize));
                let out = axes.iter().map(|&axis| shape[axis]).collect();
                (Op::Transpose { axes }, out)
            }
            1 => (Op::from(Reverse { axes: (0..rank).filter(|_| self.rng.below(2) == 0).collect() }), shape),
            2 => {
                let lengths: Vec<u64> = shape.iter().map(|&n| 1 + self.rng.below(n)).collect();
                let strides: Vec<u64> = shape.iter().map(|_| 1 + self.rng.below(2)).collect();
                let starts = shape.iter().map(|&n| Some(self.rng.below(n) as i64 - 1)).collect();
                let out = lengths.iter().zip(&strides).map(|(n, s)| n.div_ceil(*s)).collect();
                (Op::Slice { starts, strides: strides.as_slice().into(), lengths: lengths.as_slice().into() }, out)
            }
            3 => {
                let at = self.below(rank + 1);
                let mut out = shape;
                out.insert(at, 1 + self.rng.below(4));
                (Op::Broadcast { axes: (0..=rank).filter(|&axis| axis != at).collect() }, out)
            }
            4 if rank > 1 => {
                let at = self.below(rank - 1);
                let mut out = shape;
                let next = out.remove(at + 1);
                out[at] *= next;
                (Op::Reshape, out)
            }
            _ => {
                let mut out = shape;
                out.insert(0, 1);
                (Op::Reshape, out)
            }
        };
        if elements(&out) > MAX_ELEMENTS || out.len() > 5 {
            return None;
        }
        self.build.push(op, &[a], &Type::new(dtype, &out));
        Some(())
    }

    /// An operand of a shape that can stand beside `a` in a result of the same type: `a` itself if need be.
    fn beside(&mut self, a: Operand, fits: impl Fn(&[u64]) -> bool) -> Operand {
        let of = self.build.ty(a).dtype;
        let fits =
            |ty: Type| fits(&ty.shape) && result_dtype(Elementwise::Select, &[DType::U8, of, ty.dtype]) == Some(of);
        let found = (0..4).map(|_| self.pick()).collect::<Vec<_>>().into_iter().find(|&b| fits(self.build.ty(b)));
        found.unwrap_or(a)
    }

    /// Parts at places of something larger.
    fn placement(&mut self, a: Operand) -> Option<()> {
        let ty = self.build.ty(a);
        let rank = ty.shape.len();
        if rank == 0 {
            return None;
        }
        let (op, operands, shape): (Op, Vec<Operand>, Vec<u64>) = match self.rng.below(4) {
            0 => {
                let value = self.constant(ty.dtype);
                let config: Vec<(i64, i64, u64)> = ty
                    .shape
                    .iter()
                    .map(|&n| {
                        let low = self.rng.below(5) as i64 - 2;
                        let high = (self.rng.below(5) as i64 - 2).max(1 - low - n as i64);
                        (low, high, u64::from(self.rng.below(6) == 0))
                    })
                    .collect();
                let padded = |(&n, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
                    (n as i64 + (n - 1) as i64 * interior as i64 + low + high) as u64
                };
                let shape = ty.shape.iter().zip(&config).map(padded).collect();
                (Op::from(Pad { config: config.into() }), vec![a, value], shape)
            }
            1 => {
                let within =
                    |shape: &[u64]| shape.len() == rank && shape.iter().zip(&ty.shape).all(|(inner, n)| inner <= n);
                let window = self.beside(a, within);
                let starts = ty.shape.iter().map(|&n| Some(self.rng.below(n + 2) as i64 - 1)).collect();
                (Op::PutSlice { starts }, vec![a, window], ty.shape.to_vec())
            }
            2 => {
                let axis = self.rng.below(rank as u64) as usize;
                let beside =
                    |shape: &[u64]| shape.len() == rank && (0..rank).all(|k| k == axis || shape[k] == ty.shape[k]);
                let count = self.rng.below(5);
                let operands: Vec<Operand> =
                    std::iter::once(a).chain((0..count).map(|_| self.beside(a, beside))).collect();
                let mut shape = ty.shape.to_vec();
                shape[axis] = operands.iter().map(|&o| self.build.ty(o).shape[axis]).sum();
                (Op::Concatenate { axis }, operands, shape)
            }
            _ => {
                let axis = self.rng.below(rank as u64 + 1) as usize;
                let count = self.rng.below(5);
                let alike = |shape: &[u64]| *shape == *ty.shape;
                let operands: Vec<Operand> =
                    std::iter::once(a).chain((0..count).map(|_| self.beside(a, alike))).collect();
                let mut shape = ty.shape.to_vec();
                shape.insert(axis, operands.len() as u64);
                (Op::Stack { axis }, operands, shape)
            }
        };
        if shape.contains(&0) || elements(&shape) > MAX_ELEMENTS || shape.len() > 5 {
            return None;
        }
        self.build.push(op, &operands, &Type::new(ty.dtype, &shape));
        Some(())
    }

    fn reduce(&mut self, a: Operand) -> Option<()> {
        let ty = self.build.ty(a);
        let rank = ty.shape.len();
        let axes: Axes = match self.below(3) {
            0 => (0..rank).collect(),
            _ if rank == 0 => return None,
            1 => Axes::from_slice(&[rank - 1]),
            _ => Axes::from_slice(&[self.below(rank)]),
        };
        let keep = self.below(2) == 0;
        let ones = |i: usize| if axes.contains(&i) { keep.then_some(1) } else { Some(ty.shape[i]) };
        let shape: Vec<u64> = (0..rank).filter_map(ones).collect();
        // Now and then several of the same elements, or of what is computed from them.
        let mut of = a;
        for _ in 0..[1, 1, 1, 2, 4][self.below(5)] {
            let dtype = self.build.ty(of).dtype;
            let (reduction, dtype) = match self.below(6) {
                0 if !dtype.is_complex() => (Reduction::Max, dtype),
                1 if !dtype.is_complex() => (Reduction::Min, dtype),
                2 => (Reduction::Any, DType::U8),
                3 if !dtype.is_complex() => (Reduction::ArgMax, DType::S32),
                _ => (Reduction::Sum, if dtype.is_integer() { DType::S64 } else { dtype }),
            };
            let op = Op::Reduce { reduction, axes: axes.clone(), tie_high: false };
            self.build.push(op, &[of], &Type::new(dtype, &shape));
            if self.below(2) == 0 && self.binary(a, a).is_some() {
                of = Operand::Result(self.build.results() - 1);
            }
        }
        Some(())
    }

    /// An operand less, or divided by, a reduction of its rows.
    fn normalize(&mut self, a: Operand) -> Option<()> {
        let ty = self.build.ty(a);
        let last = ty.shape.len().checked_sub(1)?;
        if !ty.dtype.is_float() {
            return None;
        }
        let mut shape = ty.shape.to_vec();
        shape[last] = 1;
        let reduction = if self.below(2) == 0 { Reduction::Max } else { Reduction::Sum };
        let op = Op::Reduce { reduction, axes: Axes::from_slice(&[last]), tie_high: false };
        let row = self.build.push(op, &[a], &Type::new(ty.dtype, &shape));
        let op = if self.below(2) == 0 { Binary::Subtract } else { Binary::Divide };
        self.build.push(Op::Binary(op), &[a, row], &Type::new(ty.dtype, &ty.shape));
        Some(())
    }

    fn source(&mut self) -> Option<()> {
        let like = self.pick();
        let shape = self.build.ty(like).shape;
        let dtype = self.types[self.below(self.types.len())];
        let op = match self.below(3) {
            0 => Op::Iota { axis: None },
            1 if !shape.is_empty() => Op::Iota { axis: Some(self.below(shape.len())) },
            _ if shape.len() >= 2 => Op::Eye,
            _ => Op::Iota { axis: None },
        };
        self.build.push(op, &[], &Type::new(dtype, &shape));
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        let (a, b) = (self.pick(), self.pick());
        match self.below(18) {
            0..=2 => self.unary(a),
            3..=6 => self.binary(a, b),
            7 => {
                let dtype = self.build.ty(a).dtype;
                let c = self.constant(dtype);
                if self.below(2) == 0 { self.binary(a, c) } else { self.binary(c, a) }
            }
            8 => {
                let dtype = self.types[self.below(self.types.len())];
                let shape = self.build.ty(a).shape;
                self.build.push(Op::AsType, &[a], &Type::new(dtype, &shape));
                Some(())
            }
            9 => {
                let (x, y) = (self.build.ty(a), self.build.ty(b));
                let dtype = result_dtype(Elementwise::Select, &[x.dtype, x.dtype, y.dtype])?;
                let shape = joint(&x.shape, &y.shape)?;
                self.build.push(Op::Select, &[a, a, b], &Type::new(dtype, &shape));
                Some(())
            }
            10 => self.source(),
            11 | 12 => self.view(a),
            13 | 14 => self.reduce(a),
            15 | 16 => self.placement(a),
            _ => self.normalize(a),
        }
    }
}

fn joint(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let pairs = (0..rank).map(|i| (size(a, i), size(b, i)));
    pairs.map(|(x, y)| if x == y || y == 1 { Some(x) } else { (x == 1).then_some(y) }).collect()
}

/// A program with a few outputs. lavapipe drops additions of a zero that it knows, such as the imaginary part of a real
/// number: bits of complex numbers depend on how much of a program it sees.
pub fn program(rng: &mut Rng, instructions: usize, complex: bool) -> Program {
    let shapes: [&[u64]; 6] = [&[3, 5], &[5], &[], &[2, 3, 5], &[7, 36], &[3, 1]];
    let types = if complex { &TYPES[..] } else { &TYPES[..TYPES.len() - 1] };
    let mut maker = Maker { build: Builder::new(), rng, types };
    let base = shapes[maker.below(6)];
    for k in 0..3 {
        let shape = if k == 0 { base } else { shapes[maker.below(6)] };
        let dtype = types[maker.below(types.len())];
        maker.build.input(dtype, shape);
    }
    while (maker.build.results() as usize) < instructions {
        maker.step();
    }
    let mut program = maker.build.finish(&[]).unwrap();
    let last = program.results().count() as u32 - 1;
    program.outputs = vec![Operand::Result(last), Operand::Result(rng.below(u64::from(last)) as u32)];
    for r in 0..last {
        if rng.below(6) == 0 {
            program.outputs.push(Operand::Result(r));
        }
    }
    program
}
