//! Ops that add up products.

use smallvec::smallvec;

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{axes_attr, combine_work, distinct, f32, holds, multiplied, one, require, same_shape};
use crate::program::attribute::Axes;
use crate::program::wire::Attr;
use crate::program::{Conv, Op};
use crate::shape::Dims;
use crate::{DType, Type};

/// Instructions of one workgroup for a product and its operands, besides adding it up.
const PRODUCT_COST: u64 = 8;

pub(super) fn names() -> Names<Op> {
    vec![
        named(
            "dot",
            |_, a| {
                Ok(Op::Dot {
                    contract_a: a.ints("contract_a")?,
                    batch_a: a.ints("batch_a")?,
                    contract_b: a.ints("contract_b")?,
                    batch_b: a.ints("batch_b")?,
                })
            },
            || {
                let (contract_a, contract_b) = (smallvec![1], smallvec![0]);
                let dot = Op::Dot { contract_a, batch_a: smallvec![], contract_b, batch_b: smallvec![] };
                (dot, [f32(&[2, 3]), f32(&[3, 4])], [f32(&[2, 4])])
            },
        ),
        named(
            "conv",
            |_, a| Ok(Op::Conv(Box::new(Conv::from_wire(a)?))),
            || (Op::Conv(Box::new(convolution())), [f32(&[2, 4, 5]), f32(&[3, 4, 2])], [f32(&[2, 3, 5])]),
        ),
    ]
}

/// Along one axis, for samples.
fn convolution() -> Conv {
    Conv {
        strides: smallvec![1],
        padding: smallvec![(1, -2)],
        input_dilation: smallvec![2],
        kernel_dilation: smallvec![3],
        feature_groups: 1,
        batch_groups: 1,
        input_axes: smallvec![0, 1, 2],
        kernel_axes: smallvec![0, 1, 2],
        output_axes: smallvec![0, 1, 2],
    }
}

pub(in crate::program) struct Dot<'a> {
    pub contract: [&'a Axes; 2],
    pub batch: [&'a Axes; 2],
}

impl Dot<'_> {
    /// Products that are added up for each result.
    fn depth(&self, operands: &[&Type]) -> u64 {
        let size = |axis: &usize| operands.first().and_then(|a| a.shape.get(*axis)).copied().unwrap_or(1);
        self.contract[0].iter().map(size).product()
    }
}

impl OpKind for Dot<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("dot", Class::Product, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![
            axes_attr("contract_a", self.contract[0]),
            axes_attr("batch_a", self.batch[0]),
            axes_attr("contract_b", self.contract[1]),
            axes_attr("batch_b", self.batch[1]),
        ]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        let Dot { contract, batch } = self;
        holds(operands, out)?;
        let mut free: [Dims; 2] = Default::default();
        let mut sizes: [[Dims; 2]; 2] = Default::default();
        for (k, operand) in operands.iter().take(2).enumerate() {
            let all: Axes = batch[k].iter().chain(contract[k]).copied().collect();
            distinct(&all, operand.shape.len())?;
            let pick = |axes: &Axes| axes.iter().map(|&axis| operand.shape[axis]).collect::<Dims>();
            sizes[k] = [pick(batch[k]), pick(contract[k])];
            let rest = (0..operand.shape.len()).filter(|axis| !all.contains(axis));
            free[k] = rest.map(|axis| operand.shape[axis]).collect();
        }
        require(sizes[0] == sizes[1], || {
            let [a, b] = [0, 1].map(|k| operands.get(k).map(|ty| &ty.shape));
            format!("{a:?} and {b:?} do not contract along {:?} and {:?}", contract[0], contract[1])
        })?;
        let [batch_sizes, _] = &sizes[0];
        let shape: Dims = batch_sizes.iter().chain(&free[0]).chain(&free[1]).copied().collect();
        same_shape(&shape, out)
    }

    fn flops(&self, operands: &[&Type], outs: &[Type]) -> Option<u64> {
        multiplied(&[2, outs.first()?.elements(), self.depth(operands)])
    }

    fn keeps_digits(&self, operands: &[&Type], outs: &[Type]) -> bool {
        let is_vector = |(operand, contract): (&&Type, &&Axes)| operand.shape.len() == contract.len();
        let compensated = self.batch[0].is_empty() && operands.iter().zip(&self.contract).any(is_vector);
        outs.iter().all(|out| out.dtype.is_integer() || (out.dtype != DType::C128 && compensated))
    }

    fn longest_loop(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        self.depth(operands) * outs.first().map_or(1, Type::elements)
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        outs.first().map_or(0, |out| out.elements() * self.depth(operands) * (combine_work(out) + PRODUCT_COST))
    }
}

impl OpKind for Conv {
    fn facts(&self) -> Facts {
        Facts::alone("conv", Class::Product, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        self.wire_attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        holds(operands, out)?;
        require(!out.dtype.is_integer(), || format!("a convolution of type {}", out.dtype))?;
        same_shape(&self.output(&self.sizes(&operands[0].shape, &operands[1].shape)?), out)
    }

    fn flops(&self, operands: &[&Type], outs: &[Type]) -> Option<u64> {
        let sizes = self.sizes(&operands.first()?.shape, &operands.get(1)?.shape).ok()?;
        multiplied(&[2, outs.first()?.elements(), multiplied(&sizes.windows.sizes)?, sizes.channels])
    }
}
