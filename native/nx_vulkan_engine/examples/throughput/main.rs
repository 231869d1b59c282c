//! Measures the engine's kernels and its eager path. Prints one JSON object per line: what, milliseconds (median), and
//! the rate that the work implies. `bench/peers/` measures the same work with torch and JAX.
//!
//! `cargo run --release --example throughput [-- small]`; `small` fits a CPU device.

mod transforms;
mod types;

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::kernels::map::{Form, Operand, Port, Shapes, Spec, map};
use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::{IndexedAdd, Take};
use nx_vulkan_engine::program::ops::matrix::{Eigh, Qr, Svd};
use nx_vulkan_engine::program::ops::order::{Argsort, Cumulative, Scan, Sort, TopK};
use nx_vulkan_engine::program::{Binary, Elementwise, Linalg, Op, Reduction, Transform, Unary, ops};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Interface, PipelineKey, Tensor, Type, eager};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::library::Library;

pub type Outcome<T> = Result<T, Error>;

#[derive(Debug)]
pub struct Bench {
    engine: Arc<Engine>,
}

impl Bench {
    fn op(&self, op: &Op, operands: &[Tensor], shape: &[u64]) -> Outcome<Tensor> {
        self.op_of(op, operands, DType::F32, shape)
    }

    fn op_of(&self, op: &Op, operands: &[Tensor], dtype: DType, shape: &[u64]) -> Outcome<Tensor> {
        eager::run(&self.engine, op, operands, &Type::new(dtype, shape), Compile::Allowed)
    }

    /// Values in [0, 1) that are no constants.
    fn filled(&self, shape: &[u64]) -> Outcome<Tensor> {
        let n: u64 = shape.iter().product();
        let count = self.op(&Op::Iota { axis: None }, &[], &[n])?;
        let scale = self.op(&Op::Constant(Scalar::Float(1e-3)), &[], &[])?;
        let scaled = self.op(&Op::Binary(Binary::Multiply), &[count, scale], &[n])?;
        let floor = self.op(&Op::Unary(Unary::Floor), std::slice::from_ref(&scaled), &[n])?;
        let fraction = self.op(&Op::Binary(Binary::Subtract), &[scaled, floor], &[n])?;
        self.op(&Op::Reshape, &[fraction], shape)
    }

    /// Median milliseconds of one run, from batches that keep the device busy.
    fn time(&self, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        run()?;
        self.engine.wait()?;
        let start = Instant::now();
        run()?;
        self.engine.wait()?;
        let once = start.elapsed().as_secs_f64();
        let per_batch = ((0.05 / once.max(1e-6)) as usize).clamp(1, 200);
        let mut times = vec![];
        for _ in 0..7 {
            let start = Instant::now();
            for _ in 0..per_batch {
                run()?;
            }
            self.engine.wait()?;
            times.push(start.elapsed().as_secs_f64() * 1e3 / per_batch as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn report(&self, what: &str, ms: f64, amount: f64, unit: &str) {
        println!(
            "{{\"what\": \"{what}\", \"ms\": {ms:.5}, \"rate\": {:.2}, \"unit\": \"{unit}\"}}",
            amount / (ms * 1e-3)
        );
    }

    fn elementwise(&self, n: u64) -> Outcome<()> {
        let (a, b) = (self.filled(&[n])?, self.filled(&[n])?);
        let operands = [a, b];
        let ms = self.time(|| self.op(&Op::Binary(Binary::Add), &operands, &[n]).map(|_| ()))?;
        self.report("add_f32", ms, n as f64 * 12e-9, "GB/s");
        Ok(())
    }

    /// tanh(exp(x * 0.5 + 1) * x - 0.1) as one kernel.
    fn fused_chain(&self, n: u64) -> Outcome<()> {
        let x = self.filled(&[n])?;
        let number = |x: f32| Ref::Constant(DType::F32, x.to_bits().into());
        let step = |op: Elementwise, args: &[Ref]| Step { op, args: args.iter().copied().collect(), out: DType::F32 };
        let steps = [
            step(Elementwise::Binary(Binary::Multiply), &[Ref::Input(0), number(0.5)]),
            step(Elementwise::Binary(Binary::Add), &[Ref::Result(0), number(1.0)]),
            step(Elementwise::Unary(Unary::Exp), &[Ref::Result(1)]),
            step(Elementwise::Binary(Binary::Multiply), &[Ref::Result(2), Ref::Input(0)]),
            step(Elementwise::Binary(Binary::Subtract), &[Ref::Result(3), number(0.1)]),
            step(Elementwise::Unary(Unary::Tanh), &[Ref::Result(4)]),
        ];
        let ms = self.time_steps(&x, &steps)?;
        self.report("fused_chain_f32", ms, n as f64 * 8e-9, "GB/s");
        Ok(())
    }

    /// Each function four times over in one kernel: what it costs beside the memory that it reads and writes.
    fn functions(&self, n: u64) -> Outcome<()> {
        let x = self.filled(&[n])?;
        for &op in Unary::ALL {
            let steps: Vec<Step> = (0..4)
                .map(|k: u8| Step {
                    op: Elementwise::Unary(op),
                    args: [if k == 0 { Ref::Input(0) } else { Ref::Result(u16::from(k) - 1) }].into_iter().collect(),
                    out: DType::F32,
                })
                .collect();
            if ops::result_dtype(Elementwise::Unary(op), &[DType::F32]) == Some(DType::F32) {
                let (one, four) = (self.time_steps(&x, &steps[..1])?, self.time_steps(&x, &steps)?);
                self.report(&format!("{}_f32", op.name()), one, n as f64 * 8e-9, "GB/s");
                self.report(&format!("{}_f32_four_times", op.name()), four, n as f64 * 8e-9, "GB/s");
            }
        }
        Ok(())
    }

    /// Milliseconds of a chain of ops on `x` as one kernel. Each result is a new tensor and outlives the next run's
    /// start, as those of the peers do.
    fn time_steps(&self, x: &Tensor, steps: &[Step]) -> Outcome<f64> {
        let typed = Element::Typed(DType::F32);
        let mut previous = None;
        self.time(|| {
            let result = Tensor::uninitialized(&self.engine, &x.view().ty())?;
            let inputs = [Operand::new(x.buffer(), x.view(), typed)];
            let output = Operand::new(result.buffer(), result.view(), typed);
            map(
                &self.engine,
                &x.view().shape,
                &inputs,
                steps.iter().cloned().collect(),
                &[(Ref::Result(steps.len() as u16 - 1), output)],
                Shapes::Any,
                Compile::Allowed,
            )?;
            previous = Some(result);
            Ok(())
        })
    }

    fn reductions(&self, n: u64) -> Outcome<()> {
        let a = self.filled(&[n, n])?;
        for (name, axes, shape) in
            [("sum_all", &[0usize, 1][..], &[][..]), ("sum_axis_0", &[0], &[n]), ("sum_axis_1", &[1], &[n])]
        {
            let op = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(axes), tie_high: false };
            let ms = self.time(|| self.op(&op, std::slice::from_ref(&a), shape).map(|_| ()))?;
            self.report(name, ms, (n * n) as f64 * 4e-9, "GB/s");
        }
        Ok(())
    }

    fn transpose(&self, n: u64) -> Outcome<()> {
        let a = self.filled(&[n, n])?;
        let turned = self.op(&Op::Transpose { axes: Axes::from_slice(&[1, 0]) }, &[a], &[n, n])?;
        let ms = self.time(|| eager::contiguous(&self.engine, &turned, Compile::Allowed).map(|_| ()))?;
        self.report(&format!("transpose_{n}"), ms, (n * n) as f64 * 8e-9, "GB/s");
        Ok(())
    }

    fn dot(&self, n: u64) -> Outcome<()> {
        let operands = [self.filled(&[n, n])?, self.filled(&[n, n])?];
        let axes = |a: &[usize]| Axes::from_slice(a);
        let op = Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[0]), batch_b: axes(&[]) };
        let ms = self.time(|| self.op(&op, &operands, &[n, n]).map(|_| ()))?;
        self.report(&format!("dot_f32_{n}"), ms, 2.0 * (n as f64).powi(3) * 1e-12, "TFLOP/s");
        Ok(())
    }

    /// Whole numbers below `bound` in no order, as `dtype`.
    fn scattered(&self, dtype: DType, shape: &[u64], bound: u64) -> Outcome<Tensor> {
        let n: u64 = shape.iter().product();
        let run = |op: &Op, operands: &[Tensor], dtype, shape: &[u64]| self.op_of(op, operands, dtype, shape);
        let count = run(&Op::Iota { axis: None }, &[], DType::U32, &[n])?;
        let constant = |i: u64| run(&Op::Constant(Scalar::Int(i.into())), &[], DType::U32, &[]);
        // Knuth's multiplicative hash.
        let hash = run(&Op::Binary(Binary::Multiply), &[count, constant(2_654_435_761)?], DType::U32, &[n])?;
        let high = run(&Op::Binary(Binary::RightShift), &[hash, constant(3)?], DType::U32, &[n])?;
        let below = run(&Op::Binary(Binary::Remainder), &[high, constant(bound)?], DType::U32, &[n])?;
        run(&Op::AsType, &[run(&Op::Reshape, &[below], DType::U32, shape)?], dtype, shape)
    }

    /// What depends on the order of `n` elements, in a row and in a matrix, and what goes by indices.
    fn order(&self, n: u64) -> Outcome<()> {
        let side = 1 << (n.ilog2() / 2);
        let (row, matrix) = ([n], [n / side, side]);
        let a = self.scattered(DType::F32, &row, 1 << 24)?;
        let m = self.op(&Op::Reshape, std::slice::from_ref(&a), &matrix)?;
        let table = self.filled(&[n / 128, 128])?;
        let picks = self.scattered(DType::S32, &[n / 64], n / 128)?;
        let vectors = self.op_of(&Op::Reshape, std::slice::from_ref(&picks), DType::S32, &[n / 64, 1])?;
        let updates = self.filled(&[n / 64, 128])?;
        let flat = self.filled(&[n / 16])?;
        let places = self.scattered(DType::S32, &[n, 1], n / 16)?;
        let f32 = |shape: &[u64]| Type::new(DType::F32, shape);
        let s32 = |shape: &[u64]| Type::new(DType::S32, shape);
        let sum = |axis| Op::from(Scan { scan: Cumulative::Sum, axis, reverse: false });
        let add = || Op::from(IndexedAdd { axes: Axes::from_slice(&[0]) });
        let s64 = Type::new(DType::S64, &[n / 4]);
        let long = self.scattered(DType::S64, &[n / 4], 1 << 31)?;
        let long = self.op_of(&Op::Binary(Binary::Multiply), &[long.clone(), long], DType::S64, &[n / 4])?;
        let sparse = self.scattered(DType::S32, &[n / 4, 1], n)?;
        let quarter = self.filled(&[n / 4])?;
        let uneven = [n / side + 1, side + 3];
        let odd = self.scattered(DType::F32, &uneven, 1 << 24)?;
        let wide = self.scattered(DType::F64, &[n / 4], 1 << 24)?;
        let max = Op::from(Scan { scan: Cumulative::Max, axis: 0, reverse: false });
        let sorted_rows = |name: &'static str, elements: u64| -> Outcome<_> {
            let rows = self.op(&Op::Reshape, std::slice::from_ref(&a), &[n / elements, elements])?;
            let sort = Op::from(Sort { axis: 1, descending: false });
            Ok((name, sort, vec![rows], vec![f32(&[n / elements, elements])]))
        };
        for (name, op, operands, outs) in [
            ("sort", Op::from(Sort { axis: 0, descending: false }), vec![a.clone()], vec![f32(&row)]),
            ("argsort", Op::from(Argsort { axis: 0, descending: false }), vec![a.clone()], vec![s32(&row)]),
            sorted_rows("sort_rows_256", 256)?,
            sorted_rows("sort_rows_1024", 1024)?,
            sorted_rows("sort_rows_4096", 4096)?,
            ("sort_s64", Op::from(Sort { axis: 0, descending: false }), vec![long], vec![s64]),
            ("top_k_10", Op::from(TopK { k: 10 }), vec![a.clone()], vec![f32(&[10]), s32(&[10])]),
            ("cumulative_sum", sum(0), vec![a.clone()], vec![f32(&row)]),
            ("cumulative_sum_axis_0", sum(0), vec![m.clone()], vec![f32(&matrix)]),
            ("cumulative_sum_axis_1", sum(1), vec![m], vec![f32(&matrix)]),
            ("cumulative_sum_of_odd_rows", sum(1), vec![odd.clone()], vec![f32(&uneven)]),
            ("cumulative_max", max, vec![a.clone()], vec![f32(&row)]),
            ("cumulative_sum_f64", sum(0), vec![wide], vec![Type::new(DType::F64, &[n / 4])]),
            ("sort_odd_rows", Op::from(Sort { axis: 1, descending: false }), vec![odd], vec![f32(&uneven)]),
            ("take_rows_128", Op::from(Take { axis: 0 }), vec![table.clone(), picks], vec![f32(&[n / 64, 128])]),
            ("indexed_add_rows_128", add(), vec![table, vectors, updates], vec![f32(&[n / 128, 128])]),
            ("indexed_add", add(), vec![flat, places, a.clone()], vec![f32(&[n / 16])]),
            ("indexed_add_sparse", add(), vec![a.clone(), sparse, quarter], vec![f32(&row)]),
        ] {
            let ms = self.time(|| eager::run_all(&self.engine, &op, &operands, &outs, Compile::Allowed).map(|_| ()))?;
            self.report(&format!("{name}_f32_{n}"), ms, n as f64 * 1e-9, "Gelement/s");
        }
        Ok(())
    }

    /// Direct solvers on `batches` matrices of n x n with a strong diagonal: the rows whose names contain `rows`.
    fn solvers(&self, dtype: DType, batches: u64, n: u64, rows: &str) -> Outcome<()> {
        let shape = [batches, n, n];
        let ty = Type::new(dtype, &shape);
        let op = |op: &Op, operands: &[Tensor]| eager::run(&self.engine, op, operands, &ty, Compile::Allowed);
        let noise = op(&Op::AsType, &[self.filled(&shape)?])?;
        let half = op(
            &Op::Binary(Binary::Add),
            &[noise.clone(), op(&Op::Transpose { axes: Axes::from_slice(&[0, 2, 1]) }, &[noise])?],
        )?;
        let scale = eager::run(
            &self.engine,
            &Op::Constant(Scalar::Int(n.into())),
            &[],
            &Type::new(dtype, &[]),
            Compile::Allowed,
        )?;
        let diagonal = op(&Op::Binary(Binary::Multiply), &[op(&Op::Eye, &[])?, scale])?;
        let a = op(&Op::Binary(Binary::Add), &[half, diagonal])?;
        let solve = Linalg::TriangularSolve { lower: true, left_side: true, transform: Transform::None };
        let flag = Type::new(DType::U8, &[]);
        let work = (batches * n * n * n) as f64 * 1e-9;
        for (name, op, operands, outs, share) in [
            ("cholesky", Linalg::Cholesky, vec![a.clone()], vec![ty.clone()], 1.0 / 3.0),
            ("lu", Linalg::Lu, vec![a.clone()], vec![ty.clone(), ty.clone(), ty.clone()], 2.0 / 3.0),
            ("solve", Linalg::Solve, vec![a.clone(), a.clone()], vec![ty.clone(), flag], 8.0 / 3.0),
            ("triangular_solve", solve, vec![a.clone(), a.clone()], vec![ty.clone()], 1.0),
            ("determinant", Linalg::Determinant, vec![a.clone()], vec![Type::new(dtype, &[batches])], 2.0 / 3.0),
        ] {
            let (op, row) = (Op::from(op), format!("{name}_{dtype}_{batches}x{n}"));
            if !row.contains(rows) {
                continue;
            }
            let ms = self.time(|| eager::run_all(&self.engine, &op, &operands, &outs, Compile::Allowed).map(|_| ()))?;
            self.report(&row, ms, work * share, "GFLOP/s");
        }
        Ok(())
    }

    /// QR, eigenvalues and singular values of `batches` matrices of n x n between -1 and 1: the rows whose names contain
    /// `rows`.
    fn factorizations(&self, dtype: DType, batches: u64, n: u64, rows: &str) -> Outcome<()> {
        let ty = Type::new(dtype, &[batches, n, n]);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let bytes: Vec<u8> = (0..ty.elements())
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f32 / (1u32 << 23) as f32 - 1.0).to_ne_bytes()
            })
            .collect();
        let random = Tensor::from_nx_bytes(&self.engine, &Type::new(DType::F32, &ty.shape), &bytes)?;
        let a = eager::run(&self.engine, &Op::AsType, &[random], &ty, Compile::Allowed)?;
        let values = Type::new(dtype, &[batches, n]);
        let work = (batches * n * n * n) as f64 * 1e-9;
        for (name, op, outs, share) in [
            ("qr", Op::from(Qr { complete: false }), vec![ty.clone(), ty.clone()], 8.0 / 3.0),
            ("eigh", Op::from(Eigh), vec![values.clone(), ty.clone()], 9.0),
            ("svd", Op::from(Svd { full: false }), vec![ty.clone(), values.clone(), ty.clone()], 22.0),
        ] {
            let (operands, row) = (std::slice::from_ref(&a), format!("{name}_{dtype}_{batches}x{n}"));
            if !row.contains(rows) {
                continue;
            }
            let ms = self.time(|| eager::run_all(&self.engine, &op, operands, &outs, Compile::Allowed).map(|_| ()))?;
            self.report(&row, ms, work * share, "GFLOP/s");
        }
        Ok(())
    }

    /// Host cost of recording one warm eager op, and of one op with its result read back.
    fn latency(&self) -> Outcome<()> {
        let operands = [self.filled(&[16])?, self.filled(&[16])?];
        let add = Op::Binary(Binary::Add);
        let out = Type::new(DType::F32, &[16]);
        let run = || eager::run(&self.engine, &add, &operands, &out, Compile::Allowed);
        run()?;
        self.engine.wait()?;
        let mut times = vec![];
        for _ in 0..100_000 {
            let start = Instant::now();
            run()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        self.engine.wait()?;
        let median = |times: &mut [f64]| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (early, late) = (median(&mut times.clone()[..1000]), median(&mut times.clone()[99_000..]));
        let middle = median(&mut times);
        self.report("record_add_16", middle, 1.0, "op/s");
        self.report("record_add_16_first_1000", early, 1.0, "op/s");
        self.report("record_add_16_last_1000", late, 1.0, "op/s");
        let mut times = vec![];
        for _ in 0..2000 {
            let start = Instant::now();
            run()?.to_nx_bytes(&self.engine, None)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let middle = median(&mut times);
        self.report("add_16_read_back", middle, 1.0, "op/s");
        Ok(())
    }

    /// From a spec to SPIR-V to a pipeline, for kernels that nothing has compiled yet.
    fn compile(&self) -> Outcome<()> {
        let library = Library::builtin()?;
        let modes = self.engine.float_modes()?;
        let port =
            |dtype: DType| Port { element: Element::Typed(dtype), layout: nx_vulkan_spirv::access::Layout::Contiguous };
        let (mut generate, mut pipeline) = (vec![], vec![]);
        for (i, op) in
            [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sigmoid, Unary::Negate, Unary::Sqrt, Unary::Erf, Unary::Sin]
                .into_iter()
                .enumerate()
        {
            let spec = Spec {
                inputs: [port(DType::F32)].into_iter().collect(),
                steps: [Step {
                    op: Elementwise::Unary(op),
                    args: [Ref::Input(0)].into_iter().collect(),
                    out: DType::F32,
                }]
                .into_iter()
                .collect(),
                outputs: [(Ref::Result(0), port(DType::F32))].into_iter().collect(),
                rank: 1,
                width: 1,
                form: Form::Vectors,
                fixed: None,
                numbers: Default::default(),
                shift: None,
                sharing: self.engine.model().maps.sharing,
            };
            let start = Instant::now();
            let generated = spec.generate(library, modes)?;
            generate.push(start.elapsed().as_secs_f64() * 1e3);
            let interface = Interface::Addresses { push_bytes: 128 };
            let start = Instant::now();
            // A constant that no kernel reads makes the pipeline a new one.
            let key = PipelineKey::new(&generated.words, &[(99, i as u32)], interface);
            // SAFETY: the kernel is generated for this interface.
            unsafe { self.engine.pipeline(key, &generated.words, &[(99, i as u32)], interface)? };
            pipeline.push(start.elapsed().as_secs_f64() * 1e3);
        }
        for (what, mut times) in [("generate_spirv", generate), ("create_pipeline", pipeline)] {
            times.sort_by(f64::total_cmp);
            self.report(what, times[times.len() / 2], 1.0, "kernel/s");
            self.report(&format!("{what}_max"), times[times.len() - 1], 1.0, "kernel/s");
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "small");
    let only = arguments.iter().find_map(|a| a.strip_prefix("only="));
    let bench = Bench { engine: Engine::open(None)? };
    eprintln!("{}", bench.engine.info().name);
    let wanted = |name: &str| only.is_none_or(|o| o == name);
    if wanted("compile") {
        bench.compile()?;
    }
    if wanted("latency") {
        bench.latency()?;
    }
    let (vector, chain, matrix) = if small { (1 << 22, 1 << 20, 2048) } else { (1 << 28, 1 << 26, 16384) };
    if wanted("elementwise") {
        bench.elementwise(vector)?;
        bench.fused_chain(chain)?;
    }
    if wanted("functions") {
        bench.functions(chain)?;
    }
    if wanted("types") {
        bench.types(chain)?;
    }
    if wanted("activations") {
        bench.activations(chain)?;
    }
    if wanted("reduce") {
        bench.reductions(matrix)?;
    }
    if wanted("transpose") {
        bench.transpose(matrix)?;
    }
    if wanted("dot") {
        for n in if small { &[256u64, 512][..] } else { &[1024, 2048, 4096, 8192] } {
            bench.dot(*n)?;
        }
    }
    if wanted("order") {
        bench.order(if small { 1 << 16 } else { 1 << 24 })?;
    }
    if wanted("transforms") {
        bench.transforms(small)?;
    }
    // Rows of matrices are chosen by parts of their names.
    let rows = arguments.iter().find_map(|a| a.strip_prefix("rows=")).unwrap_or("");
    if wanted("solvers") {
        let sizes = [(1, 128), (64, 32), (1, 512), (1, 1024), (1024, 16), (1, 2048), (1, 4096)];
        for &(batches, n) in &sizes[..if small { 2 } else { sizes.len() }] {
            bench.solvers(DType::F32, batches, n, rows)?;
            bench.solvers(DType::F64, batches, n, rows)?;
        }
    }
    if wanted("factorizations") {
        let sizes = [(1, 64), (64, 16), (1, 256), (1, 1024), (1024, 16), (1, 2048), (1, 4096)];
        for &(batches, n) in &sizes[..if small { 2 } else { sizes.len() }] {
            bench.factorizations(DType::F32, batches, n, rows)?;
            bench.factorizations(DType::F64, batches, n, rows)?;
        }
    }
    Ok(())
}
