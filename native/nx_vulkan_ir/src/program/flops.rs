//! How many operations ops take, counted by one rule.

use super::{Elementwise, Op, Program, Windows};
use crate::Type;

/// Operations per element of an elementwise op: one whatever it costs, none for a change of type.
pub fn of_elementwise(op: Elementwise) -> u64 {
    u64::from(op != Elementwise::AsType)
}

/// Operations of a discrete Fourier transform of `n` numbers, by whichever method.
pub fn of_transform(n: u64) -> u64 {
    (5.0 * n as f64 * (n as f64).log2()).round() as u64
}

/// The product of counts, if it is one.
pub fn product(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor))
}

impl Op {
    /// The operations of the op: one per element of elementwise ops and per element reduced, two per product that is added up,
    /// 5 n log2 n for a transform, none for what moves data. `None` for ops whose number depends on values, and for factorizations and
    /// solvers.
    pub fn flops(&self, operands: &[&Type], outs: &[Type]) -> Option<u64> {
        if let Some(elementwise) = self.elementwise() {
            return product(&[of_elementwise(elementwise), outs.first()?.elements()]);
        }
        let windowed = |windows: &Windows| {
            let counts = windows.counts(&operands.first()?.shape).ok()?;
            product(&[product(&counts)?, product(&windows.sizes)?])
        };
        match self {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => None,
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Eye
            | Op::Bitcast
            | Op::Reshape
            | Op::Squeeze
            | Op::Broadcast { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::PutSlice { .. }
            | Op::Pad { .. }
            | Op::Reverse { .. }
            | Op::Concatenate { .. }
            | Op::Stack { .. }
            | Op::Sort { .. }
            | Op::Argsort { .. }
            | Op::TopK { .. }
            | Op::Take { .. }
            | Op::TakeAlongAxis { .. }
            | Op::Gather { .. }
            | Op::IndexedPut { .. } => Some(0),
            Op::Reduce { .. } | Op::Scan { .. } => Some(operands.first()?.elements()),
            Op::IndexedAdd { .. } => Some(operands.get(2)?.elements()),
            Op::Window { windows, .. } | Op::WindowScatter { windows, .. } => windowed(windows),
            Op::Dot { contract_a, .. } => {
                let a = operands.first()?;
                let depth: u64 = contract_a.iter().filter_map(|&axis| a.shape.get(axis)).product();
                product(&[2, outs.first()?.elements(), depth])
            }
            Op::Conv(conv) => {
                let sizes = conv.sizes(&operands.first()?.shape, &operands.get(1)?.shape).ok()?;
                product(&[2, outs.first()?.elements(), product(&sizes.windows.sizes)?, sizes.channels])
            }
            Op::Fold { function, .. } => product(&[operands.first()?.elements(), function.steps.len() as u64]),
            Op::WindowFold { windows, function } => product(&[windowed(windows)?, function.steps.len() as u64]),
            Op::Fft { axis, length, .. } => {
                let out = outs.first()?;
                product(&[out.elements() / (*out.shape.get(*axis)?).max(1), of_transform(*length)])
            }
            Op::Fused(body) | Op::Workgroup(body) => body.flops(),
            Op::Qr { .. } | Op::Linalg(_) | Op::Eigh | Op::Svd { .. } | Op::While(_) | Op::Cond(_) => None,
        }
    }
}

impl Program {
    /// The sum of [`Op::flops`] over all instructions.
    pub fn flops(&self) -> Option<u64> {
        let type_of = self.types();
        self.instructions.iter().try_fold(0u64, |sum, instruction| {
            let operands = instruction.operands.iter().map(|&o| type_of(o)).collect::<Option<Vec<&Type>>>()?;
            sum.checked_add(instruction.op.flops(&operands, &instruction.outs)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::DType;
    use crate::program::{Builder, Reduction};

    #[test]
    fn programs_are_counted_by_the_rule() {
        let b = Builder::new();
        let (x, w) = (b.input(DType::F32, &[5, 7]), b.input(DType::F32, &[7, 3]));
        let product = b.dot(x, w);
        let scaled = b.exp(b.multiply(b.transpose(product, &[1, 0]), 2.0));
        let sum = b.reduce(Reduction::Sum, scaled, &[0], false);
        let cast = b.as_type(sum, DType::F16);
        assert_eq!(b.finish(&[cast]).unwrap().flops(), Some(2 * 5 * 7 * 3 + 2 * 15 + 15));
        let b = Builder::new();
        let x = b.input(DType::F32, &[]);
        let last = b.while_loop(&[x], &[], |b, v| b.less(v[0], 9.0), |b, v| vec![b.add(v[0], 1.0)]);
        assert_eq!(b.finish(&last).unwrap().flops(), None);
    }
}
