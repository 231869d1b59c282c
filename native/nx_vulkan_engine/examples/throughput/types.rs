//! The same work in several types: what narrow ones cost beside f32.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Program, Reduction, Unary};
use nx_vulkan_engine::{DType, Engine, eager};

use super::{Bench, Outcome};

/// Elements of a row.
const COLUMNS: u64 = 1024;

fn softmax(engine: &Engine, dtype: DType, rows: u64) -> Outcome<Program> {
    let b = Builder::new();
    let x = b.input(dtype, &[rows, COLUMNS]);
    let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true)));
    let result = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
    optimize(b.finish(&[result])?, &engine.target())
}

impl Bench {
    /// Ops on `n` elements of f32, f16, bf16 and f8, and casts between f32 and these.
    pub fn types(&self, n: u64) -> Outcome<()> {
        let rows = n / COLUMNS;
        let row = [n];
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F8E5M2] {
            let f32 = self.filled(&row)?;
            let x = self.op_of(&Op::AsType, std::slice::from_ref(&f32), dtype, &row)?;
            let matrix = self.op_of(&Op::Reshape, std::slice::from_ref(&x), dtype, &[rows, COLUMNS])?;
            let program = softmax(&self.engine, dtype, rows)?;
            let sum = |axis| Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[axis]), tie_high: false };
            let report =
                |what: &str, ms| self.report(&format!("{what}_{dtype}_{n}"), ms, n as f64 * 1e-9, "Gelement/s");
            for (what, op, operands, out, shape) in [
                ("add", Op::Binary(Binary::Add), vec![x.clone(), x.clone()], dtype, &row[..]),
                ("exp", Op::Unary(Unary::Exp), vec![x.clone()], dtype, &row),
                ("sum_axis_0", sum(0), vec![matrix.clone()], dtype, &[COLUMNS]),
                ("sum_axis_1", sum(1), vec![matrix.clone()], dtype, &[rows]),
                ("cast_from_f32", Op::AsType, vec![f32.clone()], dtype, &row),
                ("cast_to_f32", Op::AsType, vec![x.clone()], DType::F32, &row),
            ] {
                report(what, self.time(|| self.op_of(&op, &operands, out, shape).map(|_| ()))?);
            }
            let inputs = std::slice::from_ref(&matrix);
            report("softmax", self.time(|| eager::run_program(&self.engine, &program, inputs).map(|_| ()))?);
        }
        Ok(())
    }
}
