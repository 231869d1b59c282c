//! Random programs in whole numbers: views of views of results, whose every element must be right.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::{Gather, IndexedAdd, IndexedPut};
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::ops::result_dtype;
use nx_vulkan_engine::program::{Binary, Builder, Elementwise, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::shape::elements;
use nx_vulkan_engine::{Compile, DType, Executable, Tensor, Type, Value};

use super::values::{Range, operand};
use super::{download, engine, finish, rng, run, seed, upload};
use crate::common::Rng;
use crate::compare::{Bound, mismatch};

const PROGRAMS: usize = 120;
const INSTRUCTIONS: usize = 9;
const MAX_ELEMENTS: u64 = 4096;

/// The input that holds index vectors of one component.
const INDICES: Operand = Operand::Input(2);
pub const INDEX_COUNT: u64 = 5;

struct Maker<'a> {
    build: Builder,
    rng: &'a mut Rng,
}

impl Maker<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn ty(&self, operand: Operand) -> Type {
        self.build.ty(operand)
    }

    fn push(&mut self, op: Op, operands: &[Operand], dtype: DType, shape: &[u64]) -> Option<Operand> {
        if elements(shape) > MAX_ELEMENTS || elements(shape) == 0 || shape.len() > 5 {
            return None;
        }
        Some(self.build.push(op, operands, &Type::new(dtype, shape)))
    }

    /// One of the latest values.
    fn pick(&mut self) -> Operand {
        let made = self.build.results() as usize;
        match self.below(5) {
            0 => Operand::Input(self.below(2) as u32),
            k if k <= made => Operand::Result((made - k) as u32),
            _ => Operand::Input(0),
        }
    }

    fn some_axes(&mut self, rank: usize) -> Axes {
        (0..rank).filter(|_| self.rng.below(2) == 0).collect()
    }

    /// Adds an instruction, if the one that came up fits.
    fn step(&mut self) -> Option<Operand> {
        let a = self.pick();
        let ty = self.ty(a);
        let (dtype, shape) = (ty.dtype, ty.shape.to_vec());
        let rank = shape.len();
        match self.below(15) {
            0 => {
                let mut order: Axes = (0..rank).collect();
                (1..rank).for_each(|i| order.swap(i, self.rng.below(i as u64 + 1) as usize));
                let out: Vec<u64> = order.iter().map(|&axis| shape[axis]).collect();
                self.push(Op::Transpose { axes: order }, &[a], dtype, &out)
            }
            1 => {
                let axes = self.some_axes(rank);
                self.push(Op::from(Reverse { axes }), &[a], dtype, &shape)
            }
            2 => {
                let lengths: Vec<u64> = shape.iter().map(|&n| 1 + self.rng.below(n)).collect();
                let strides: Vec<u64> = shape.iter().map(|_| 1 + self.rng.below(3)).collect();
                let starts = shape.iter().map(|&n| Some(self.rng.below(n) as i64 - 1)).collect();
                let out: Vec<u64> = lengths.iter().zip(&strides).map(|(n, s)| n.div_ceil(*s)).collect();
                let op = Op::Slice { starts, strides: strides.as_slice().into(), lengths: lengths.as_slice().into() };
                self.push(op, &[a], dtype, &out)
            }
            3 => {
                let at = self.below(rank + 1);
                let mut out: Vec<u64> = shape.iter().map(|&n| if n == 1 { 1 + self.rng.below(4) } else { n }).collect();
                out.insert(at, 1 + self.rng.below(4));
                let axes = (0..=rank).filter(|&axis| axis != at).collect();
                self.push(Op::Broadcast { axes }, &[a], dtype, &out)
            }
            4 => {
                let (mut rest, mut out) = (elements(&shape), Vec::new());
                while rest > 1 && out.len() < 3 {
                    let factor = (2..=rest).filter(|f| rest % f == 0).nth(self.rng.below(2) as usize).unwrap_or(rest);
                    out.push(factor);
                    rest /= factor;
                }
                out.push(rest);
                self.push(Op::Reshape, &[a], dtype, &out)
            }
            5 => {
                let out: Vec<u64> = shape.iter().copied().filter(|&n| n != 1).collect();
                self.push(Op::Squeeze, &[a], dtype, &out)
            }
            6 | 7 => {
                let b = self.pick();
                let out = joint(&shape, &self.ty(b).shape)?;
                let op = [Binary::Add, Binary::Subtract, Binary::Max, Binary::Multiply, Binary::Less][self.below(5)];
                let dtype = result_dtype(Elementwise::Binary(op), &[dtype, self.ty(b).dtype])?;
                self.push(Op::Binary(op), &[a, b], dtype, &out)
            }
            8 => {
                let axes = self.some_axes(rank);
                let kept: Vec<u64> = (0..rank).filter(|i| !axes.contains(i)).map(|i| shape[i]).collect();
                let (reduction, out) = match self.below(3) {
                    0 => (Reduction::Sum, DType::S32),
                    1 => (Reduction::Min, dtype),
                    _ => (Reduction::ArgMax, DType::S32),
                };
                let tie_high = self.below(2) == 0;
                self.push(Op::Reduce { reduction, axes, tie_high }, &[a], out, &kept)
            }
            9 => {
                let config: Vec<(i64, i64, u64)> = shape
                    .iter()
                    .map(|_| (self.rng.below(4) as i64 - 1, self.rng.below(4) as i64 - 1, self.rng.below(2)))
                    .collect();
                let size = |(&n, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
                    u64::try_from((n + (n - 1) * interior) as i64 + low + high).unwrap_or(0)
                };
                let out: Vec<u64> = shape.iter().zip(&config).map(size).collect();
                let value = self.push(Op::Constant(Scalar::Int(7)), &[], dtype, &[])?;
                self.push(Op::from(Pad { config: config.into() }), &[a, value], dtype, &out)
            }
            10 if rank > 0 => {
                let axis = self.below(rank);
                let mut out = shape;
                out[axis] *= 2;
                self.push(Op::Concatenate { axis }, &[a, a], dtype, &out)
            }
            11 if rank > 0 => {
                let axis = self.below(rank);
                let rest = (0..rank).filter(|&i| i != axis).map(|i| shape[i]);
                let out: Vec<u64> = std::iter::once(INDEX_COUNT).chain(rest).collect();
                self.push(Op::from(Gather { axes: [axis].as_slice().into() }), &[a, INDICES], dtype, &out)
            }
            12 if rank > 0 => {
                let axis = self.below(rank);
                let free: Vec<u64> = (0..rank).filter(|&i| i != axis).map(|i| shape[i]).collect();
                let (contract_a, contract_b) = ([axis].as_slice().into(), [axis].as_slice().into());
                let op = Op::Dot { contract_a, batch_a: Axes::new(), contract_b, batch_b: Axes::new() };
                self.push(op, &[a, a], dtype, &[free.clone(), free].concat())
            }
            13 if rank > 0 => {
                let updates: Vec<u64> = std::iter::once(INDEX_COUNT).chain(shape[1..].iter().copied()).collect();
                let updates = self.push(Op::Iota { axis: None }, &[], dtype, &updates)?;
                let axes: Axes = [0].as_slice().into();
                let op = if self.below(2) == 0 { Op::from(IndexedAdd { axes }) } else { Op::from(IndexedPut { axes }) };
                self.push(op, &[a, INDICES, updates], dtype, &shape)
            }
            _ => {
                let lengths: Vec<u64> = shape.iter().map(|&n| 1 + self.rng.below(n)).collect();
                let window = self.push(Op::Iota { axis: None }, &[], dtype, &lengths)?;
                let starts = shape.iter().map(|&n| Some(self.rng.below(n) as i64)).collect();
                self.push(Op::PutSlice { starts }, &[a, window], dtype, &shape)
            }
        }
    }
}

/// The shape to which two broadcast.
fn joint(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

pub fn random_program(rng: &mut Rng) -> Program {
    let shapes: [&[u64]; 4] = [&[3, 4, 5], &[6, 1, 7], &[12], &[2, 3, 2, 5]];
    let mut shape = || shapes[rng.below(4) as usize];
    let build = Builder::new();
    for shape in [shape(), shape(), &[INDEX_COUNT, 1]] {
        build.input(DType::S32, shape);
    }
    let mut maker = Maker { build, rng };
    while (maker.build.results() as usize) < INSTRUCTIONS {
        maker.step();
    }
    maker.build.finish(&[]).unwrap()
}

#[test]
fn random_programs() {
    let mut rng = rng(50);
    for number in 0..PROGRAMS {
        let mut program = random_program(&mut rng);
        // Everything is an output, so that the first wrong result names the instruction.
        program.outputs = (0..program.instructions.len() as u32).map(Operand::Result).collect();
        let mut inputs: Vec<Array> =
            program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
        inputs[2] = Array::new(&program.inputs[2], (0..INDEX_COUNT).map(|_| Value::Int(rng.below(7).into())));
        let expected = reference::run(&program, &inputs).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(upload).collect();
        let mut results: Vec<Tensor> = Vec::new();
        for (i, instruction) in program.instructions.iter().enumerate() {
            let operands: Vec<Tensor> = instruction
                .operands
                .iter()
                .map(|&operand| match operand {
                    Operand::Input(k) => tensors[k as usize].clone(),
                    Operand::Result(k) => results[k as usize].clone(),
                })
                .collect();
            let what = || format!("program {number}, seed {}, instruction {i} of {program:#?}", seed());
            let result =
                run(&instruction.op, &operands, &instruction.outs[0]).unwrap_or_else(|e| panic!("{e}: {}", what()));
            let wrong = mismatch(&download(&result), std::slice::from_ref(&expected[i]), Bound::Exact);
            assert_eq!(wrong, None, "{}", what());
            results.push(result);
        }
        // The same at once, where intermediate results share memory.
        let kept: Vec<usize> = (0..expected.len()).filter(|_| rng.below(4) == 0).collect();
        program.outputs = kept.iter().map(|&i| Operand::Result(i as u32)).collect();
        let executable = Executable::compile(engine(), program.clone()).unwrap();
        for _ in 0..2 {
            let results = executable.run(&tensors, Compile::Allowed).unwrap();
            assert_eq!(results.len(), kept.len());
            for (result, &i) in results.iter().zip(&kept) {
                let wrong = mismatch(&download(result), std::slice::from_ref(&expected[i]), Bound::Exact);
                assert_eq!(wrong, None, "program {number}, seed {}, result {i} of {program:#?}", seed());
            }
        }
    }
    finish();
}
