//! Programs put together by hand.
#![allow(dead_code)]

use nx_vulkan_engine::program::op::{Axes, Scalar};
use nx_vulkan_engine::program::{Binary, Instruction, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::{DType, Type};
use smallvec::smallvec;

/// A program in the making.
#[derive(Default)]
pub struct Maker(pub Program);

impl Maker {
    pub fn input(&mut self, dtype: DType, shape: &[u64]) -> Operand {
        self.0.inputs.push(Type::new(dtype, shape));
        Operand::Input(self.0.inputs.len() as u32 - 1)
    }

    pub fn push(&mut self, op: Op, operands: &[Operand], dtype: DType, shape: &[u64]) -> Operand {
        let outs = smallvec![Type::new(dtype, shape)];
        self.0.instructions.push(Instruction { op, operands: operands.into(), outs });
        Operand::Result(self.0.results().count() as u32 - 1)
    }

    pub fn ty(&self, operand: Operand) -> Type {
        self.0.type_of(operand).unwrap().clone()
    }

    pub fn unary(&mut self, op: Unary, a: Operand) -> Operand {
        let ty = self.ty(a);
        self.push(Op::Unary(op), &[a], ty.dtype, &ty.shape)
    }

    /// Of one type; shapes broadcast.
    pub fn binary(&mut self, op: Binary, a: Operand, b: Operand) -> Operand {
        let (x, y) = (self.ty(a), self.ty(b));
        let rank = x.shape.len().max(y.shape.len());
        let size = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
        let shape: Vec<u64> = (0..rank).map(|i| size(&x.shape, i).max(size(&y.shape, i))).collect();
        let dtype = if op.is_predicate() { DType::U8 } else { x.dtype };
        self.push(Op::Binary(op), &[a, b], dtype, &shape)
    }

    pub fn add(&mut self, a: Operand, b: Operand) -> Operand {
        self.binary(Binary::Add, a, b)
    }

    pub fn sub(&mut self, a: Operand, b: Operand) -> Operand {
        self.binary(Binary::Subtract, a, b)
    }

    pub fn mul(&mut self, a: Operand, b: Operand) -> Operand {
        self.binary(Binary::Multiply, a, b)
    }

    pub fn div(&mut self, a: Operand, b: Operand) -> Operand {
        self.binary(Binary::Divide, a, b)
    }

    pub fn number(&mut self, dtype: DType, value: f64) -> Operand {
        self.push(Op::Constant(Scalar::Float(value)), &[], dtype, &[])
    }

    pub fn times(&mut self, a: Operand, value: f64) -> Operand {
        let number = self.number(self.ty(a).dtype, value);
        self.mul(a, number)
    }

    pub fn plus(&mut self, a: Operand, value: f64) -> Operand {
        let number = self.number(self.ty(a).dtype, value);
        self.add(a, number)
    }

    pub fn reduce(&mut self, reduction: Reduction, a: Operand, axes: &[usize]) -> Operand {
        let ty = self.ty(a);
        let shape: Vec<u64> = (0..ty.shape.len()).filter(|i| !axes.contains(i)).map(|i| ty.shape[i]).collect();
        let op = Op::Reduce { reduction, axes: axes.into(), tie_high: false };
        self.push(op, &[a], ty.dtype, &shape)
    }

    pub fn sum(&mut self, a: Operand, axes: &[usize]) -> Operand {
        self.reduce(Reduction::Sum, a, axes)
    }

    pub fn reshape(&mut self, a: Operand, shape: &[u64]) -> Operand {
        let dtype = self.ty(a).dtype;
        self.push(Op::Reshape, &[a], dtype, shape)
    }

    /// Elements `start .. start + length` of a vector.
    pub fn slice(&mut self, a: Operand, start: i64, length: u64) -> Operand {
        let dtype = self.ty(a).dtype;
        let op = Op::Slice { starts: smallvec![Some(start)], strides: smallvec![1], lengths: smallvec![length] };
        self.push(op, &[a], dtype, &[length])
    }

    /// Element `i` of a vector as a scalar.
    pub fn at(&mut self, a: Operand, i: i64) -> Operand {
        let one = self.slice(a, i, 1);
        self.reshape(one, &[])
    }

    /// Vectors and scalars one after the other.
    pub fn concatenate(&mut self, parts: &[Operand]) -> Operand {
        let parts: Vec<Operand> = parts
            .iter()
            .map(|&part| if self.ty(part).shape.is_empty() { self.reshape(part, &[1]) } else { part })
            .collect();
        let length = parts.iter().map(|&part| self.ty(part).elements()).sum();
        let dtype = self.ty(parts[0]).dtype;
        self.push(Op::Concatenate { axis: 0 }, &parts, dtype, &[length])
    }

    /// Product of a matrix and a vector.
    pub fn matrix_vector(&mut self, a: Operand, b: Operand) -> Operand {
        let ty = self.ty(a);
        let op =
            Op::Dot { contract_a: smallvec![1], batch_a: Axes::new(), contract_b: smallvec![0], batch_b: Axes::new() };
        self.push(op, &[a, b], ty.dtype, &[ty.shape[0]])
    }

    pub fn done(mut self, outputs: &[Operand]) -> Program {
        self.0.outputs = outputs.to_vec();
        self.0
    }
}
