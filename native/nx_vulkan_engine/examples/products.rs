//! Measures every way to launch matrix products: each tile and number of splits, with matrix units and without, not
//! only what the model chooses. Results are checked against f64 sums of sampled elements. Prints one JSON object per
//! way, and the model's choice at each shape's end.
//!
//! `cargo run --release --example products [-- small] [shape] [way]`; `small` fits a CPU device, the others are parts
//! of the names of shapes and tiles to measure.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::kernels::dot::{
    Choice, Feed, Matrix, MergedAxes, Product, Tile, Tiling, candidates, choose, estimate, lane_tiles,
    matrix_candidates, plain, product_as, residue_candidates, vector_candidates,
};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Tensor, Type};

type Outcome<T> = Result<T, Error>;

/// A product: `a` lies as `[batch, m, k]`, or `[batch, k, m]` where it is transposed, `b` as `[batch, k, n]` or
/// `[batch, n, k]`.
struct Shape {
    name: &'static str,
    dtype: DType,
    batch: u64,
    m: u64,
    k: u64,
    n: u64,
    a_transposed: bool,
    b_transposed: bool,
}

const fn shape(name: &'static str, dtype: DType, [m, k, n]: [u64; 3], transposed: [bool; 2]) -> Shape {
    Shape { name, dtype, batch: 1, m, k, n, a_transposed: transposed[0], b_transposed: transposed[1] }
}

const fn batched(name: &'static str, batch: u64, sizes: [u64; 3]) -> Shape {
    let one = shape(name, DType::F32, sizes, [false, true]);
    Shape { batch, ..one }
}

const NN: [bool; 2] = [false, false];
const TN: [bool; 2] = [true, false];
const NT: [bool; 2] = [false, true];

const SMALL: &[Shape] = &[
    shape("forward 784-512", DType::F32, [128, 784, 512], NN),
    shape("forward 512-256", DType::F32, [128, 512, 256], NN),
    shape("forward 256-10", DType::F32, [128, 256, 10], NN),
    shape("weights 784-512", DType::F32, [784, 128, 512], TN),
    shape("weights 512-256", DType::F32, [512, 128, 256], TN),
    shape("weights 256-10", DType::F32, [256, 128, 10], TN),
    shape("backward 10-256", DType::F32, [128, 10, 256], NT),
    shape("backward 256-512", DType::F32, [128, 256, 512], NT),
    shape("odd", DType::F32, [131, 333, 77], NN),
    shape("square 512", DType::F32, [512, 512, 512], NN),
    batched("attention scores", 16, [128, 64, 128]),
    shape("square 512 f16", DType::F16, [512, 512, 512], NN),
    shape("square 512 bf16", DType::Bf16, [512, 512, 512], NT),
    shape("square 256 f64", DType::F64, [256, 256, 256], NN),
];

const LARGE: &[Shape] = &[
    shape("forward 784-2048", DType::F32, [1024, 784, 2048], NN),
    shape("forward 2048-2048", DType::F32, [1024, 2048, 2048], NN),
    shape("forward 2048-10", DType::F32, [1024, 2048, 10], NN),
    shape("weights 784-2048", DType::F32, [784, 1024, 2048], TN),
    shape("weights 2048-2048", DType::F32, [2048, 1024, 2048], TN),
    shape("weights 2048-10", DType::F32, [2048, 1024, 10], TN),
    shape("backward 2048-2048", DType::F32, [1024, 2048, 2048], NT),
    shape("square 512", DType::F32, [512, 512, 512], NN),
    shape("square 1024", DType::F32, [1024, 1024, 1024], NN),
    shape("square 2048", DType::F32, [2048, 2048, 2048], NN),
    shape("square 4096", DType::F32, [4096, 4096, 4096], NN),
    shape("square 4096 tn", DType::F32, [4096, 4096, 4096], TN),
    shape("square 4096 nt", DType::F32, [4096, 4096, 4096], NT),
    shape("odd 1023", DType::F32, [1023, 1021, 1019], NN),
    batched("attention scores 2048", 64, [2048, 64, 2048]),
    shape("block 256-256", DType::F32, [1024, 256, 256], NN),
    shape("block 256-1024", DType::F32, [1024, 256, 1024], NN),
    shape("block 1024-256", DType::F32, [1024, 1024, 256], NN),
    shape("block weights 256-256", DType::F32, [256, 1024, 256], TN),
    shape("block weights 256-1024", DType::F32, [256, 1024, 1024], TN),
    shape("block weights 1024-256", DType::F32, [1024, 1024, 256], TN),
    shape("block backward 256-256", DType::F32, [1024, 256, 256], NT),
    shape("block backward 256-1024", DType::F32, [1024, 1024, 256], NT),
    batched("attention scores 128", 32, [128, 64, 128]),
    batched("attention values 128", 32, [128, 128, 64]),
    shape("f16 1024", DType::F16, [1024, 1024, 1024], NN),
    shape("f16 4096", DType::F16, [4096, 4096, 4096], NN),
    shape("f16 8192", DType::F16, [8192, 8192, 8192], NN),
    shape("bf16 1024", DType::Bf16, [1024, 1024, 1024], NN),
    shape("bf16 1024 nt", DType::Bf16, [1024, 1024, 1024], NT),
    shape("bf16 4096", DType::Bf16, [4096, 4096, 4096], NN),
    shape("bf16 4096 nt", DType::Bf16, [4096, 4096, 4096], NT),
    shape("bf16 4096 tn", DType::Bf16, [4096, 4096, 4096], TN),
    shape("bf16 8192", DType::Bf16, [8192, 8192, 8192], NN),
    shape("bf16 768-768", DType::Bf16, [4096, 768, 768], NN),
    shape("bf16 768-3072", DType::Bf16, [4096, 768, 3072], NN),
    shape("bf16 3072-768", DType::Bf16, [4096, 3072, 768], NN),
    shape("bf16 odd", DType::Bf16, [1023, 1021, 1019], NN),
    Shape { batch: 64, ..shape("bf16 attention scores", DType::Bf16, [2048, 64, 2048], NT) },
    Shape { batch: 64, ..shape("f16 attention scores", DType::F16, [2048, 64, 2048], NT) },
    Shape { batch: 64, ..shape("bf16 attention values", DType::Bf16, [2048, 2048, 64], NN) },
    Shape { batch: 384, ..shape("bf16 heads of 128", DType::Bf16, [128, 64, 128], NT) },
    shape("recurrent f32 650-2600", DType::F32, [64, 650, 2600], NN),
    shape("recurrent f32 2600-1300", DType::F32, [64, 2600, 1300], NT),
    shape("recurrent bf16 650-2600", DType::Bf16, [64, 650, 2600], NN),
    shape("recurrent bf16 2600-1300", DType::Bf16, [64, 2600, 1300], NT),
    shape("vectors f32 1", DType::F32, [14_336, 4096, 1], NN),
    shape("vectors f32 8", DType::F32, [14_336, 4096, 8], NN),
    shape("vectors f32 8 turned", DType::F32, [8, 4096, 14_336], NN),
    shape("vectors bf16 1", DType::Bf16, [14_336, 4096, 1], NN),
    shape("vectors bf16 1 turned", DType::Bf16, [1, 4096, 14_336], NN),
    shape("vectors bf16 2", DType::Bf16, [14_336, 4096, 2], NN),
    shape("vectors bf16 4", DType::Bf16, [14_336, 4096, 4], NN),
    shape("vectors bf16 8", DType::Bf16, [14_336, 4096, 8], NN),
    shape("vectors bf16 8 turned", DType::Bf16, [8, 4096, 14_336], NN),
    shape("vectors bf16 8 nt", DType::Bf16, [14_336, 4096, 8], NT),
    shape("vectors bf16 16", DType::Bf16, [14_336, 4096, 16], NN),
    shape("vectors bf16 16 nt", DType::Bf16, [14_336, 4096, 16], NT),
    shape("vectors bf16 16 turned", DType::Bf16, [16, 4096, 14_336], NN),
    shape("vectors bf16 16 turned nt", DType::Bf16, [16, 4096, 14_336], NT),
    shape("vectors bf16 16 square", DType::Bf16, [16, 4096, 4096], NT),
    shape("vectors bf16 16 long", DType::Bf16, [16, 14_336, 4096], NT),
    shape("vectors f16 1", DType::F16, [14_336, 4096, 1], NN),
    shape("vectors bf16 2048", DType::Bf16, [1, 2048, 2048], NN),
    shape("vectors bf16 8192", DType::Bf16, [1, 8192, 2048], NN),
    shape("vectors bf16 768", DType::Bf16, [4, 768, 3072], NN),
    shape("token bf16 768-768", DType::Bf16, [1, 768, 768], NN),
    shape("token bf16 768-3072", DType::Bf16, [1, 768, 3072], NN),
    shape("token bf16 3072-768", DType::Bf16, [1, 3072, 768], NN),
    shape("token bf16 2048-512", DType::Bf16, [1, 2048, 512], NN),
    shape("token bf16 2048-2048", DType::Bf16, [1, 2048, 2048], NN),
    shape("token bf16 2048-8192", DType::Bf16, [1, 2048, 8192], NN),
    shape("token bf16 8192-2048", DType::Bf16, [1, 8192, 2048], NN),
    shape("token bf16 8192-2048 nt", DType::Bf16, [1, 8192, 2048], NT),
    shape("token bf16 2048-50000 nt", DType::Bf16, [1, 2048, 50_000], NT),
    shape("f64 1024", DType::F64, [1024, 1024, 1024], NN),
    shape("f64 4096", DType::F64, [4096, 4096, 4096], NN),
];

/// Bytes that no cache holds, and matrices that are made at most to have as many.
const UNCACHED_BYTES: u64 = 256 << 20;
const MAX_COPIES: u64 = 64;

/// Values in [-1, 1) on a grid that f16 and bf16 hold.
fn value(seed: u64, index: u64) -> f64 {
    let mut x = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    f64::from((x >> 40) as u32 % 256) / 128.0 - 1.0
}

fn encode(dtype: DType, x: f64, to: &mut Vec<u8>) {
    match dtype {
        DType::F64 => to.extend(x.to_ne_bytes()),
        DType::F16 => to.extend(half(x).to_ne_bytes()),
        DType::Bf16 => to.extend(((x as f32).to_bits() >> 16).to_le_bytes()[..2].iter()),
        _ => to.extend((x as f32).to_ne_bytes()),
    }
}

/// The bits in f16 of a multiple of 1/128 up to 1.
fn half(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    if x == 0.0 {
        return 0;
    }
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    (bits >> 16 & 0x8000) as u16 | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16
}

fn decode(dtype: DType, bytes: &[u8], at: usize) -> f64 {
    let size = dtype.size_bytes() as usize;
    let bytes = &bytes[at * size..(at + 1) * size];
    match (dtype, bytes) {
        (DType::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (DType::Bf16, &[a, b]) => f32::from_bits(u32::from(u16::from_ne_bytes([a, b])) << 16).into(),
        (DType::F16, &[a, b]) => {
            let bits = u32::from(u16::from_ne_bytes([a, b]));
            let (exponent, fraction) = ((bits >> 10 & 0x1f) as i32, f64::from(bits & 0x3ff) / 1024.0);
            let size =
                if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent - 15) };
            if bits & 0x8000 != 0 { -size } else { size }
        }
        (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]).into(),
        _ => f64::NAN,
    }
}

struct Bench {
    engine: Arc<Engine>,
    seconds: f64,
    way: String,
}

impl Bench {
    fn tensor(&self, dtype: DType, shape: &[u64], seed: u64) -> Outcome<Tensor> {
        let n: u64 = shape.iter().product();
        let mut bytes = Vec::with_capacity((n * dtype.size_bytes()) as usize);
        (0..n).for_each(|i| encode(dtype, value(seed, i), &mut bytes));
        Tensor::from_nx_bytes(&self.engine, &Type::new(dtype, shape), &bytes)
    }

    /// Least microseconds of one run, from batches that keep the device busy.
    fn time(&self, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        run()?;
        self.engine.wait()?;
        let start = Instant::now();
        run()?;
        self.engine.wait()?;
        let once = start.elapsed().as_secs_f64();
        let batch = ((self.seconds / once.max(1e-6)) as usize).clamp(1, 500);
        // GPUs raise their clock while they are busy.
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 10.0 * self.seconds {
            for _ in 0..batch {
                run()?;
            }
            self.engine.wait()?;
        }
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..batch {
                run()?;
            }
            self.engine.wait()?;
            least = least.min(start.elapsed().as_secs_f64() * 1e6 / batch as f64);
        }
        Ok(least)
    }

    /// Largest error of sampled elements, in units of the largest absolute sum times 2^-24 (of its type for narrow
    /// ones).
    fn error(&self, s: &Shape, out: &Tensor) -> Outcome<f64> {
        let bytes = out.to_nx_bytes(&self.engine, None)?;
        let mut worst = 0f64;
        for sample in 0..200u64 {
            let pick = |k: u64, n: u64| match sample {
                0 => n - 1,
                1 => 0,
                _ => (value(k, sample) * 64.0 + 64.0) as u64 * 7919 % n,
            };
            let (batch, m, n) = (pick(3, s.batch), pick(4, s.m), pick(5, s.n));
            let (mut sum, mut size) = (0f64, 0f64);
            for k in 0..s.k {
                let (m_step, k_step) = if s.a_transposed { (1, s.m) } else { (s.k, 1) };
                let a = value(1, batch * s.m * s.k + m * m_step + k * k_step);
                let (n_step, k_step) = if s.b_transposed { (s.k, 1) } else { (1, s.n) };
                let b = value(2, batch * s.n * s.k + n * n_step + k * k_step);
                sum += a * b;
                size += (a * b).abs();
            }
            let got = decode(s.dtype, &bytes, ((batch * s.m + m) * s.n + n) as usize);
            let unit = size * 2f64.powi(if s.dtype == DType::F64 { -53 } else { -24 });
            let rounding = match s.dtype {
                DType::F16 => sum.abs() * 2f64.powi(-11),
                DType::Bf16 => sum.abs() * 2f64.powi(-8),
                _ => 0.0,
            };
            worst =
                worst.max(if got.is_finite() { ((got - sum).abs() - rounding).max(0.0) / unit } else { f64::INFINITY });
        }
        Ok(worst)
    }

    fn matrix(tensor: &Tensor, s: [u64; 2], transposed: bool, batch: u64) -> Matrix {
        let [free, depth] = s;
        let strides = if transposed { [1, free as i64] } else { [depth as i64, 1] };
        Matrix {
            tensor: tensor.clone(),
            batch: MergedAxes::new(&[batch], &[(free * depth) as i64]),
            free: MergedAxes::new(&[free], &strides[..1]),
            depth: MergedAxes::new(&[depth], &strides[1..]),
        }
    }

    fn measure(&self, s: &Shape) -> Outcome<()> {
        let a = self.tensor(s.dtype, &[s.batch, s.m, s.k], 1)?;
        let b = self.tensor(s.dtype, &[s.batch, s.k, s.n], 2)?;
        let work = 2e-6 * (s.batch * s.m * s.k * s.n) as f64;
        let out = Tensor::uninitialized(&self.engine, &Type::new(s.dtype, &[s.batch, s.m, s.n]))?;
        let of = |a: &Tensor, b: &Tensor| Product {
            a: Bench::matrix(a, [s.m, s.k], s.a_transposed, s.batch),
            b: Bench::matrix(b, [s.n, s.k], !s.b_transposed, s.batch),
            out: &out,
            prologues: [None, None],
            epilogue: None,
        };
        let p = of(&a, &b);
        // Those with few vectors take as long as it takes to read the matrix: one that is in no cache.
        let bytes = s.batch * s.k * s.m.max(s.n) * s.dtype.size_bytes();
        let copies = if s.m.min(s.n) <= 16 { UNCACHED_BYTES.div_ceil(bytes).min(MAX_COPIES) } else { 1 };
        let mut others = Vec::new();
        for _ in 1..copies {
            others
                .push((self.tensor(s.dtype, &[s.batch, s.m, s.k], 1)?, self.tensor(s.dtype, &[s.batch, s.k, s.n], 2)?));
        }
        let products: Vec<Product<'_>> =
            std::iter::once(of(&a, &b)).chain(others.iter().map(|(a, b)| of(a, b))).collect();
        let next = Cell::new(0);
        let sum = s.dtype.ctype();
        let name = |tiling: &Tiling| match tiling {
            Tiling::Tiled(Tile { rows, columns, own_rows, own_columns, slices, depth }) => {
                format!("{rows}x{columns} {own_rows}x{own_columns} {slices}x{depth}")
            }
            Tiling::Lanes(tile) => format!("{}x{} in lanes", tile.rows, tile.columns()),
            Tiling::Vectors(tile) => format!("{} vectors by {} rows and {} teams", tile.count, tile.rows(), tile.teams),
            Tiling::Matrix(tile) => {
                let feed = match tile.feed {
                    Feed::Planes => "",
                    Feed::Fragments => " by fragments",
                    Feed::Few => " by few vectors",
                    Feed::Linear { .. } => " of scaled numbers by few vectors",
                };
                format!("{}x{}{feed} on matrix units", tile.rows, tile.columns)
            }
            Tiling::Residues(tile) => format!("{0}x{0} by residues of {1} moduli", tile.side, tile.moduli),
            other => format!("{other:?}"),
        };
        let own = self.engine.takes_own_numbers(p.out.view().dtype, Compile::Allowed)?;
        let outline = p.outline(self.engine.precision(), own);
        let chosen = choose(self.engine.model(), &outline, sum);
        let mut best = (f64::INFINITY, String::new());
        let mut at_choice = f64::INFINITY;
        let mut ways: Vec<Choice> = candidates(self.engine.model(), &outline, sum)
            .into_iter()
            .map(|(tile, splits)| Choice { tiling: Tiling::Tiled(tile), splits })
            .collect();
        ways.extend(
            lane_tiles(self.engine.model(), sum).iter().map(|&tile| Choice { tiling: Tiling::Lanes(tile), splits: 1 }),
        );
        ways.push(Choice { tiling: Tiling::Square, splits: 1 });
        let on_units = matrix_candidates(self.engine.model(), &outline, sum);
        let by_vectors = vector_candidates(self.engine.model(), &outline, sum);
        ways.extend(by_vectors.iter().map(|&(tile, splits, _)| Choice { tiling: Tiling::Vectors(tile), splits }));
        ways.extend(on_units.iter().map(|&(tile, splits, _)| Choice { tiling: Tiling::Matrix(tile), splits }));
        let by_residues = residue_candidates(self.engine.model(), &outline, sum);
        let splits = plain(self.engine.model(), &outline, sum, None).splits;
        ways.extend(by_residues.iter().map(|&(tile, _)| Choice { tiling: Tiling::Residues(tile), splits }));
        for way in ways.into_iter().filter(|way| name(&way.tiling).contains(&self.way)) {
            let run = || {
                let at = next.replace((next.get() + 1) % products.len());
                product_as(&self.engine, &products[at], sum, way, Compile::Allowed)
            };
            let us = self.time(run)?;
            let error = self.error(s, &out)?;
            let tile = name(&way.tiling);
            let model = match way.tiling {
                Tiling::Tiled(tile) => estimate(self.engine.model(), &outline, sum, &tile, way.splits),
                Tiling::Matrix(tile) => {
                    on_units.iter().find(|known| (known.0, known.1) == (tile, way.splits)).map_or(0.0, |known| known.2)
                }
                Tiling::Vectors(tile) => by_vectors
                    .iter()
                    .find(|known| (known.0, known.1) == (tile, way.splits))
                    .map_or(0.0, |known| known.2),
                Tiling::Residues(tile) => by_residues.iter().find(|known| known.0 == tile).map_or(0.0, |known| known.1),
                _ => 0.0,
            };
            println!(
                "{{\"shape\": \"{}\", \"tile\": \"{tile}\", \"splits\": {}, \"us\": {us:.2}, \"tflops\": {:.2}, \
                 \"model\": {model:.0}, \"error\": {error:.2}}}",
                s.name,
                way.splits,
                work / us
            );
            if us < best.0 {
                best = (us, format!("{tile} in {}", way.splits));
            }
            if way == chosen {
                at_choice = us;
            }
        }
        let tile = name(&chosen.tiling);
        println!(
            "{{\"shape\": \"{}\", \"best\": \"{}\", \"us\": {:.2}, \"tflops\": {:.2}, \"chosen\": \"{tile} in {}\", \
             \"chosen_us\": {at_choice:.2}}}",
            s.name,
            best.1,
            best.0,
            work / best.0,
            chosen.splits
        );
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.first().is_some_and(|a| a == "small");
    let [filter, way] = [0, 1].map(|k| arguments.get(usize::from(small) + k).cloned().unwrap_or_default());
    let bench = Bench { engine: Engine::open(None)?, seconds: 0.02, way };
    println!("{{\"device\": \"{}\"}}", bench.engine.info());
    let large = if small { &[] } else { LARGE };
    for shape in SMALL.iter().chain(large).filter(|s| s.name.contains(&filter)) {
        bench.measure(shape)?;
    }
    Ok(())
}
