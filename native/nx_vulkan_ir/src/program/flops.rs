//! How many operations ops take, counted by one rule.

use super::Program;
use crate::Type;

impl Program {
    /// The sum of [`super::Op::flops`] over all instructions.
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
