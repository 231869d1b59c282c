//! The same work in several types: what narrow ones cost beside f32.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::{DType, Engine, Tensor, eager};

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

/// Layer norm and RMS norm of rows, with a scale and a bias.
fn norms(engine: &Engine, dtype: DType, rows: u64) -> Outcome<[(&'static str, Program); 2]> {
    let program = |make: fn(&Builder, Operand, [Operand; 2]) -> Operand| -> Outcome<Program> {
        let b = Builder::new();
        let x = b.input(dtype, &[rows, COLUMNS]);
        let parameters = [(); 2].map(|()| b.input(dtype, &[COLUMNS]));
        let result = make(&b, x, parameters);
        optimize(b.finish(&[result])?, &engine.target())
    };
    fn mean(b: &Builder, x: Operand) -> Operand {
        b.divide(b.reduce(Reduction::Sum, x, &[1], true), COLUMNS as f64)
    }
    fn normalized(b: &Builder, x: Operand, scale: Operand) -> Operand {
        let variance = mean(b, b.multiply(x, x));
        b.multiply(b.multiply(x, b.unary(Unary::Rsqrt, b.add(variance, 1e-5))), scale)
    }
    Ok([
        ("layer_norm", program(|b, x, [scale, bias]| b.add(normalized(b, b.subtract(x, mean(b, x)), scale), bias))?),
        ("rms_norm", program(|b, x, [scale, bias]| b.add(normalized(b, x, scale), bias))?),
    ])
}

/// What models in narrow types compute of each element, as kernels of one input and one result.
fn activations(engine: &Engine, dtype: DType, n: u64) -> Outcome<Vec<(&'static str, Program)>> {
    let program = |make: fn(&Builder, Operand) -> Operand| -> Outcome<Program> {
        let b = Builder::new();
        let x = b.input(dtype, &[n]);
        let result = make(&b, x);
        optimize(b.finish(&[result])?, &engine.target())
    };
    Ok(vec![
        ("copy", program(|b, x| b.negate(x))?),
        ("exp", program(|b, x| b.exp(x))?),
        ("tanh", program(|b, x| b.tanh(x))?),
        ("erf", program(|b, x| b.erf(x))?),
        ("sigmoid", program(|b, x| b.unary(Unary::Sigmoid, x))?),
        ("silu", program(|b, x| b.multiply(x, b.unary(Unary::Sigmoid, x)))?),
        ("gelu", {
            program(|b, x| {
                let cdf = b.add(b.erf(b.divide(x, std::f64::consts::SQRT_2)), 1.0);
                b.multiply(b.multiply(x, cdf), 0.5)
            })?
        }),
        ("gelu_by_tanh", {
            program(|b, x| {
                let cube = b.multiply(b.multiply(x, x), x);
                let inner = b.multiply(b.add(b.multiply(cube, 0.044_715), x), 0.797_884_56);
                b.multiply(b.multiply(x, 0.5), b.add(b.tanh(inner), 1.0))
            })?
        }),
    ])
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

    /// Activations of `n` elements between -4 and 4, and softmax and norms of rows of them.
    pub fn activations(&self, n: u64) -> Outcome<()> {
        let rows = n / COLUMNS;
        let unit = self.filled(&[n])?;
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let b = Builder::new();
            let x = b.input(DType::F32, &[n]);
            let around_zero = b.as_type(b.multiply(b.subtract(x, 0.5), 8.0), dtype);
            let spread = optimize(b.finish(&[around_zero])?, &self.engine.target())?;
            let x = eager::run_program(&self.engine, &spread, std::slice::from_ref(&unit))?;
            let bytes = 2e-9 * (n * dtype.size_bytes()) as f64;
            let time = |what: &str, program: &Program, x: &[Tensor]| -> Outcome<()> {
                let ms = self.time(|| eager::run_program(&self.engine, program, x).map(|_| ()))?;
                self.report(&format!("{what}_{dtype}_{n}"), ms, bytes, "GB/s");
                Ok(())
            };
            for (what, program) in activations(&self.engine, dtype, n)? {
                time(what, &program, &x)?;
            }
            let matrix = self.op_of(&Op::Reshape, &x, dtype, &[rows, COLUMNS])?;
            time("softmax", &softmax(&self.engine, dtype, rows)?, std::slice::from_ref(&matrix))?;
            let ones = self.op_of(&Op::AsType, &[self.filled(&[COLUMNS])?], dtype, &[COLUMNS])?;
            for (what, program) in norms(&self.engine, dtype, rows)? {
                time(what, &program, &[matrix.clone(), ones.clone(), ones.clone()])?;
            }
        }
        Ok(())
    }
}
