//! Products on matrix units. Kernels write operands in the order in which the product takes them: f32 as three bf16 numbers that make up all
//! 24 bits or, with `Precision::High`, as two f16 numbers scaled by rows; f16 operands that lie so already are taken in place. Where an element
//! lost digits on the way, or is so large that sums may leave the range, which the device notes, the product leaves the
//! results to a plain kernel behind it.

use nx_vulkan_ir::program::epilogue::{MATRIX_MAX_BYTES, MATRIX_MIN_DEPTH};
use smallvec::SmallVec;

use super::launch::{Choice, Matrix, MergedAxes, Outline, Product, Results, entire, launch_plain};
use super::{DotSpec, Load, MatrixTile, Planes, SplitSpec, SplitStage, Tiling, choice};
use crate::kernels::{Arguments, Compile, KernelSpec, Place, launch, reach_of};
use crate::tuning::DeviceModel;
use crate::{CType, DType, Engine, Error, Precision, Result, Tensor, Type};

/// How elements become numbers of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    pub planes: Planes,
    /// Whether rows are scaled to the range of f16, and elements may lose digits.
    pub scaled: bool,
}

impl Form {
    /// The form for a product, if matrix units can take it.
    pub fn of(model: &DeviceModel, p: &Outline, sum: CType) -> Option<Form> {
        let Outline { batches, rows, columns, depth, .. } = *p;
        if !model.caps.cooperative_matrix || sum != CType::F32 || depth < MATRIX_MIN_DEPTH {
            return None;
        }
        let form = Form::of_types(p.product, p.operands, p.precision)?;
        if form.planes.is_bf16() && !model.caps.bfloat16_matrix {
            return None;
        }
        let padded = depth.next_multiple_of(form.planes.block());
        let bytes = batches.checked_mul(rows + columns)?.checked_mul(padded * 2 * u64::from(form.planes.count()))?;
        (bytes <= MATRIX_MAX_BYTES).then_some(form)
    }

    /// Whether there are operands that units can't take.
    fn is_guarded(self) -> bool {
        self.scaled || self.planes.is_in_order()
    }

    fn of_types(product: DType, operands: [DType; 2], precision: Precision) -> Option<Form> {
        let all = |types: &[DType]| operands.iter().all(|dtype| types.contains(dtype));
        match product {
            DType::F16 | DType::F8E5M2 | DType::F8E4M3Fn => {
                let in_f16 = [DType::F16, DType::F8E5M2, DType::F8E4M3Fn];
                all(&in_f16).then_some(Form { planes: Planes::OneF16, scaled: false })
            }
            DType::Bf16 => all(&[DType::Bf16]).then_some(Form { planes: Planes::OneF16, scaled: true }),
            DType::F32 => {
                let floats = [DType::F32, DType::Bf16, DType::F16, DType::F8E5M2, DType::F8E4M3Fn];
                all(&floats).then_some(match precision {
                    Precision::High => Form { planes: Planes::TwoF16, scaled: true },
                    Precision::Highest => Form { planes: Planes::ThreeBf16, scaled: false },
                })
            }
            _ => None,
        }
    }

    /// Whether the product reads the operand in place: along the contracted axis, or along the free one. `None` where it does not.
    pub fn takes(self, m: &Matrix) -> Option<bool> {
        let eights =
            |strides: &[i64]| strides.len() <= 1 && strides.iter().all(|&stride| stride >= 0 && stride % 8 == 0);
        let along = |one: &MergedAxes, other: &MergedAxes| {
            one.rank() == 1 && one.last_stride() == 1 && one.elements().is_multiple_of(8) && eights(&other.strides)
        };
        let aligned = m.tensor.address().is_multiple_of(16) && eights(&m.batch.strides);
        if self.scaled || self.planes != Planes::OneF16 || m.tensor.view.dtype != DType::F16 || !aligned {
            return None;
        }
        match (along(&m.depth, &m.free), along(&m.free, &m.depth)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// An operand as the product takes it.
#[derive(Debug)]
pub struct Prepared {
    /// Blocks of numbers, in words unless it is the operand itself.
    pub numbers: Tensor,
    /// Whether rows lie along the contracted axis; else columns of it do.
    pub along_k: bool,
    /// uvec4 from one of those (from 16 rows, where they lie together) to the next, and from a batch.
    pub step: u64,
    pub batch: u64,
    /// By what each row is to be multiplied, as f32, if rows are scaled.
    pub scales: Option<Tensor>,
    /// A word that tells whether units can take it, as `dot_guard.glsl` says; none where they can take all.
    pub largest: Option<Tensor>,
}

/// Writes operands as numbers of 16 bits: the first one of a product, then the second.
///
/// # Errors
/// What allocating and launching may fail with.
pub fn prepare(engine: &Engine, operands: &[&Matrix], form: Form, compile: Compile) -> Result<SmallVec<[Prepared; 2]>> {
    let words = |count: u64| Tensor::uninitialized(engine, &Type::new(DType::U32, &[count]));
    // One after the other, so that operands don't wait for each other.
    let mut scaled = SmallVec::<[Option<[Tensor; 2]>; 2]>::new();
    for &m in operands {
        if !form.scaled {
            scaled.push(None);
            continue;
        }
        let find = spec(m, form, SplitStage::Largest, false);
        let parts = find.parts(m.depth.elements());
        let [largest, lost] = [words(m.batch.elements() * m.free.elements() * parts)?, words(1)?];
        run(engine, m, find, &[], &[&largest, &lost], compile)?;
        scaled.push(Some([largest, lost]));
    }
    let mut prepared = SmallVec::<[Prepared; 2]>::new();
    for (place, (&m, scaled)) in operands.iter().zip(scaled).enumerate() {
        if let Some(along_k) = form.takes(m) {
            let eighth = |group: &MergedAxes| group.last_stride().unsigned_abs() / 8;
            let (step, batch) = (eighth(if along_k { &m.free } else { &m.depth }), eighth(&m.batch));
            prepared.push(Prepared { numbers: m.tensor.clone(), along_k, step, batch, scales: None, largest: None });
            continue;
        }
        let (rows, batches) = (m.free.elements(), m.batch.elements());
        let together = form.planes.rows_together();
        let padded = m.depth.elements().next_multiple_of(form.planes.block());
        let step = together * u64::from(form.planes.count()) * padded / 8;
        let batch = rows.div_ceil(together) * step;
        let numbers = words(batches * batch * 4)?;
        let split = spec(m, form, SplitStage::Split, place == 1);
        let (scales, largest) = match scaled {
            Some([largest, lost]) => {
                let scales = words(batches * rows)?;
                run(engine, m, split, &[&largest], &[&numbers, &scales, &lost], compile)?;
                (Some(scales), Some(lost))
            }
            None if form.planes.is_in_order() => {
                let largest = words(1)?;
                engine.fill(largest.buffer(), largest.view.offset_bytes(), 4, 0)?;
                run(engine, m, split, &[], &[&numbers, &largest], compile)?;
                (None, Some(largest))
            }
            None => {
                run(engine, m, split, &[], &[&numbers], compile)?;
                (None, None)
            }
        };
        prepared.push(Prepared { numbers, along_k: true, step, batch, scales, largest });
    }
    Ok(prepared)
}

fn spec(m: &Matrix, form: Form, stage: SplitStage, second: bool) -> SplitSpec {
    let Form { planes, scaled } = form;
    let second = second && planes.is_in_order();
    SplitSpec { stage, dtype: m.tensor.view.dtype, ranks: m.axes(true).0, load: m.load(true), planes, scaled, second }
}

/// Launches a kernel on an operand.
fn run(
    engine: &Engine,
    m: &Matrix,
    spec: SplitSpec,
    reads: &[&Tensor],
    writes: &[&Tensor],
    compile: Compile,
) -> Result<()> {
    let (rows, depth, batches) = (m.free.elements(), m.depth.elements(), m.batch.elements());
    let (_, sizes, strides) = m.axes(true);
    let groups = spec.groups(batches, rows, depth);
    let extra = [rows, depth, batches, spec.parts(depth), spec.part(depth)].map(|x| x as u32);
    let reach = engine.reach();
    let far = reach.is_far(&[&m.tensor.view])? || writes.iter().any(|words| reach_of(&words.view) > reach.near(4));
    let kernel = engine.kernel(&KernelSpec::Split(spec).reaching(far), compile)?;
    let source = Place { buffer: &m.tensor.buffer, address: m.tensor.address(), strides: &strides, element_bytes: 0 };
    let others = reads.iter().chain(writes).map(|tensor| entire(tensor));
    let places: SmallVec<[Place<'_>; 5]> = std::iter::once(source).chain(others).collect();
    let arguments = Arguments { count: (batches * rows) as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 1 + reads.len(), groups)
}

/// Launches the product, and behind it what takes over where units can't take it.
pub(super) fn launch_product(
    engine: &Engine,
    p: &Product<'_>,
    spec: DotSpec,
    tile: MatrixTile,
    results: &Results<'_>,
    compile: Compile,
) -> Result<()> {
    let bad = |reason: String| Error::InvalidProgram { op: "dot".to_string(), reason };
    let form =
        Form::of(engine.model(), &p.outline(engine.precision()), spec.sum).filter(|form| form.planes == tile.planes);
    let form = form.ok_or_else(|| bad(format!("no operands for {tile:?}")))?;
    let (rows, columns) = (p.a.free.elements(), p.b.free.elements());
    let (depth, batches) = (p.a.depth.elements(), p.a.batch.elements());
    let prepared = prepare(engine, &[&p.a, &p.b], form, compile)?;
    let [a, b] = prepared.as_slice() else { return Err(bad("two operands".to_string())) };

    let mut own = DotSpec { tiling: Tiling::Matrix(tile), guarded: form.is_guarded(), ..spec.clone() };
    // Kernels for all layouts and types of operands are one.
    (own.a, own.b, own.a_ranks, own.b_ranks) = (DType::F16, DType::F16, [0; 3], [0; 3]);
    [own.a_load, own.b_load] = [a, b].map(|operand| Load { along_k: operand.along_k, by_four: true });
    own.low_b_first = columns > rows;
    let tiles = own.tiles(batches, rows, columns);
    let reach = engine.reach();
    let is_far = |numbers: &Tensor| reach_of(&numbers.view) > reach.near(numbers.view.dtype.size_bytes());
    let far = results.is_far(engine)? || [a, b].iter().any(|operand| is_far(&operand.numbers));
    let kernel = engine.kernel(&KernelSpec::Dot(own).reaching(far), compile)?;
    let chunk = depth.div_ceil(results.splits).next_multiple_of(tile.block());
    let numbers = [rows, columns, depth, batches, chunk, results.splits, a.step, a.batch, b.step, b.batch];
    if numbers.iter().any(|&number| number > reach.far()) {
        return Err(bad(format!("numbers beyond {}", reach.far())));
    }
    let strides = results.strides(0);
    let guard: SmallVec<[&Tensor; 2]> = prepared.iter().filter_map(|operand| operand.largest.as_ref()).collect();
    let scales = prepared.iter().filter_map(|operand| operand.scales.as_ref());
    let mut places: SmallVec<[Place<'_>; 10]> = [&a.numbers, &b.numbers].map(entire).into_iter().collect();
    places.extend(guard.iter().copied().chain(scales).map(entire));
    places.extend(results.places(&strides));
    let (count, extra) = ((batches * rows * columns) as u32, numbers.map(|x| x as u32));
    let arguments = Arguments { count, sizes: &results.space.sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, places.len() - 1, tiles * results.splits)?;
    if form.is_guarded() {
        let Choice { tiling, .. } =
            choice::plain(engine.model(), &p.outline(engine.precision()), spec.sum, Some(results.splits));
        if !matches!(tiling, Tiling::Tiled(_)) {
            return Err(bad("no kernel to take over".to_string()));
        }
        let fallback = DotSpec { tiling, guarded: true, ..spec };
        launch_plain(engine, p, fallback, results, &guard, compile)?;
    }
    Ok(())
}
