//! Products by few vectors that compute the matrix from several operands: the bits that they have where it lies in
//! memory as f32.

use nx_vulkan_engine::eager::run_program;
use nx_vulkan_engine::kernels::dot::{
    Choice, Derived, Matrix, MatrixTile, MergedAxes, Numbers, Planes, Product, Tiling, VectorTile, derived_as,
    product_as,
};
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::epilogue::{self, Factor};
use nx_vulkan_engine::program::fused::{Load, through};
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_engine::tuning::target;
use smallvec::smallvec;

use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{CType, Compile, DType, DeviceKind, Tensor, Type, Value, View};

use super::values::{Range, operand};
use super::{download, engine, finish, rng, upload};
use crate::compare::{Bound, epsilon, mismatch};

/// What a matrix of so many rows and contracted elements is computed from, in a type.
type Weights = fn(&Builder, [u64; 2], DType) -> Operand;

const KINDS: [(&str, u64, Weights); 10] = [
    // Groups of all rows in one axis, four bytes in a word.
    ("8 bits in words", 32, |b, [rows, depth], dtype| {
        let groups = rows * depth / 32;
        let words = b.reshape(b.input(DType::U32, &[rows, depth / 4]), &[groups, 8, 1]);
        let scales = b.reshape(b.as_type(b.input(DType::Bf16, &[rows, depth / 32]), DType::F32), &[groups, 1, 1]);
        let shifts = b.multiply(b.iota(DType::U32, &[1, 1, 4], Some(2)), 8.0);
        let bits = b.binary(Binary::BitwiseAnd, b.binary(Binary::RightShift, words, shifts), 255.0);
        let weights = b.multiply(b.subtract(b.as_type(bits, DType::F32), 128.0), scales);
        b.as_type(b.reshape(weights, &[rows, depth]), dtype)
    }),
    // Groups of 32 elements with a scale and a bias, eight in a word.
    ("4 bits", 32, |b, [rows, depth], dtype| {
        let groups = depth / 32;
        let words = b.input(DType::U32, &[rows, groups * 4]);
        let scales = b.input(DType::F16, &[rows, groups]);
        let biases = b.input(DType::F16, &[rows, groups]);
        let shifts = b.multiply(b.iota(DType::U32, &[1, 1, 1, 8], Some(3)), 4.0);
        let words = b.reshape(words, &[rows, groups, 4, 1]);
        let shifted = b.binary(Binary::RightShift, words, shifts);
        let bits = b.as_type(b.binary(Binary::BitwiseAnd, shifted, 15.0), DType::F32);
        let [scales, biases] = [scales, biases].map(|x| b.reshape(b.as_type(x, DType::F32), &[rows, groups, 1, 1]));
        b.as_type(b.reshape(b.add(b.multiply(bits, scales), biases), &[rows, depth]), dtype)
    }),
    // A scale for each row.
    ("s8", 4, |b, [rows, depth], dtype| {
        let bytes = b.input(DType::S8, &[rows, depth]);
        let scales = b.input(DType::F32, &[rows, 1]);
        b.as_type(b.multiply(b.as_type(bytes, DType::F32), scales), dtype)
    }),
    // The index of an element counts, and one operand alone is read.
    ("index", 4, |b, [rows, depth], dtype| {
        let bytes = b.input(DType::U8, &[rows, depth]);
        let counted = b.binary(Binary::BitwiseAnd, b.iota(DType::S32, &[rows, depth], None), 31.0);
        b.as_type(b.multiply(b.as_type(counted, DType::F32), b.as_type(bytes, DType::F32)), dtype)
    }),
    ("cast", 4, |b, [rows, depth], dtype| b.as_type(b.input(DType::S8, &[rows, depth]), dtype)),
    // Rows that lie across.
    ("turned", 4, |b, [rows, depth], dtype| {
        let bytes = b.input(DType::S8, &[depth, rows]);
        let scales = b.input(DType::Bf16, &[depth]);
        let turned = b.as_type(b.transpose(bytes, &[1, 0]), DType::F32);
        b.as_type(b.multiply(turned, b.as_type(b.reshape(scales, &[1, depth]), DType::F32)), dtype)
    }),
    // Four elements in a byte, neighbours of which are far apart in the matrix.
    ("2 bits", 32, |b, [rows, depth], dtype| {
        let bytes = b.reshape(b.input(DType::U8, &[rows, depth / 4]), &[rows, 1, depth / 4]);
        let shifts = b.as_type(b.multiply(b.iota(DType::S32, &[1, 4, 1], Some(1)), 2.0), DType::U8);
        let bits = b.binary(Binary::BitwiseAnd, b.binary(Binary::RightShift, bytes, shifts), 3.0);
        let scale = b.input(DType::F32, &[]);
        b.as_type(b.reshape(b.multiply(b.as_type(bits, DType::F32), scale), &[rows, depth]), dtype)
    }),
    // As `Nx.Vulkan.Quantized` writes it.
    ("4 bits of all rows", 64, |b, [rows, depth], dtype| {
        let groups = rows * depth / 64;
        let words = b.reshape(b.input(DType::U32, &[rows, depth / 8]), &[groups, 8, 1]);
        let [scales, biases] = [(), ()]
            .map(|()| b.reshape(b.as_type(b.input(DType::F16, &[rows, depth / 64]), DType::F32), &[groups, 1, 1]));
        // Nx's numbers have a type of their own.
        let with_number = |op, x: Operand, number, shape: &[u64]| {
            let number = b.constant(DType::S32, Scalar::Int(number));
            b.push(Op::Binary(op), &[x, number], &Type::new(DType::U32, shape))
        };
        let shifts = with_number(Binary::Multiply, b.iota(DType::U32, &[8], None), 4, &[8]);
        let shifted = b.binary(Binary::RightShift, words, b.reshape(shifts, &[1, 1, 8]));
        let bits = with_number(Binary::BitwiseAnd, shifted, 15, &[groups, 8, 8]);
        let weights = b.add(b.multiply(scales, b.as_type(bits, DType::F32)), biases);
        b.as_type(b.reshape(weights, &[rows, depth]), dtype)
    }),
    // Halves of 32 bytes, with a scale for both, of which a least number is taken away.
    ("halves of bytes", 64, |b, [rows, depth], dtype| {
        let groups = depth / 64;
        let bytes = b.reshape(b.input(DType::U8, &[rows, depth / 2]), &[rows, groups, 1, 32]);
        let shifts = b.as_type(b.multiply(b.iota(DType::S32, &[1, 1, 2, 1], Some(2)), 4.0), DType::U8);
        let bits = b.binary(Binary::BitwiseAnd, b.binary(Binary::RightShift, bytes, shifts), 15.0);
        let [scales, least] = [(), ()].map(|()| {
            b.reshape(b.as_type(b.input(DType::F16, &[rows, groups * 2]), DType::F32), &[rows, groups, 2, 1])
        });
        let weights = b.subtract(b.multiply(scales, b.as_type(bits, DType::F32)), least);
        b.as_type(b.reshape(weights, &[rows, depth]), dtype)
    }),
    ("floats of 8 bits", 4, |b, [rows, depth], dtype| {
        let numbers = b.as_type(b.input(DType::F8E4M3Fn, &[rows, depth]), DType::F32);
        let scales = b.input(DType::F32, &[rows, 1]);
        b.as_type(b.multiply(scales, numbers), dtype)
    }),
];

fn gpu() -> Target {
    target::of(DeviceKind::Discrete, 1024, false)
}

/// The product of a matrix and vectors, `first` where these are the rows of the result, with a bias and a residual
/// behind it.
fn product(weights: Weights, [vectors, rows, depth]: [u64; 3], first: bool, dtype: DType, followed: bool) -> Program {
    product_of(weights, [vectors, rows, depth], first, [dtype, dtype], followed)
}

/// The same with another type of the matrix.
fn product_of(
    weights: Weights,
    [vectors, rows, depth]: [u64; 3],
    first: bool,
    [dtype, of_matrix]: [DType; 2],
    followed: bool,
) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[vectors, depth]);
    let matrix = weights(&b, [rows, depth], of_matrix);
    let factors = if first { [x, matrix] } else { [matrix, x] };
    let along = || [1].into_iter().collect();
    let dot = Op::Dot { contract_a: along(), batch_a: smallvec![], contract_b: along(), batch_b: smallvec![] };
    let shape = if first { [vectors, rows] } else { [rows, vectors] };
    let mut out = b.push(dot, &factors, &Type::new(dtype, &shape));
    if followed {
        let shape = if first { [1, rows] } else { [rows, 1] };
        out = b.add(out, b.input(dtype, &shape));
    }
    b.finish(&[out]).unwrap()
}

fn loaded(load: &Load, inputs: &[Tensor]) -> Tensor {
    let tensor = &inputs[load.operand as usize];
    Tensor::new(tensor.buffer().clone(), through(View::clone(tensor.view()), &load.views).unwrap()).unwrap()
}

/// A matrix of one tensor, `[free, depth]`.
fn matrix(tensor: &Tensor) -> Matrix {
    let axis = |axis: usize| MergedAxes::new(&tensor.view().shape[axis..=axis], &tensor.view().strides[axis..=axis]);
    Matrix { tensor: tensor.clone(), batch: MergedAxes::new(&[], &[]), free: axis(0), depth: axis(1) }
}

/// The columns of a tensor in the order in which a kernel that takes eight neighbours at once takes those that one of
/// `together` takes: each team's steps become steps of eight, and where a step is not full, zeros are in it.
fn by_eights(tensor: &Tensor, together: u64, teams: u64) -> Tensor {
    let (dtype, [rows, depth]) = (tensor.view().dtype, [tensor.view().shape[0], tensor.view().shape[1]]);
    let whole = depth.next_multiple_of(together * teams);
    let b = Builder::new();
    let columns = b.input(dtype, &[rows, depth]);
    let zeros =
        b.as_type(b.broadcast(b.multiply(b.iota(DType::F32, &[1], Some(0)), 0.0), &[rows, whole - depth]), dtype);
    let all = if whole == depth { columns } else { b.concatenate(&[columns, zeros], 1) };
    let steps = b.reshape(all, &[rows, whole / together / teams, teams, together / 8, 8]);
    let turned = b.reshape(b.transpose(steps, &[0, 1, 3, 2, 4]), &[rows, whole]);
    run_program(engine(), &b.finish(&[turned]).unwrap(), std::slice::from_ref(tensor)).unwrap().remove(0)
}

/// What one kernel computes of the product of a program with these inputs, which has no steps behind it.
fn derived_of(name: &str, program: Program, inputs: &[Tensor], [rows, place]: [u64; 2], dtype: DType) -> Derived {
    let optimized = optimize(program, &gpu()).unwrap();
    let [instruction] = optimized.instructions.as_slice() else { panic!("{name} of {dtype}: {optimized}") };
    let Op::Fused(body) = &instruction.op else { panic!("{name}: {optimized}") };
    let operands: Vec<Tensor> = instruction
        .operands
        .iter()
        .map(|o| if let Operand::Input(i) = o { inputs[*i as usize].clone() } else { panic!("{o}") })
        .collect();
    let found = epilogue::of(body, u64::MAX, u32::MAX).unwrap();
    let Factor::Derived(plan) = &found.factors[place as usize] else { panic!("{name}: {found:?}") };
    Derived::of(plan, rows, plan.loads.iter().map(|load| loaded(load, &operands)).collect(), dtype).unwrap()
}

#[test]
fn derived_matrices_have_the_bits_of_those_in_memory() {
    let mut by_sixteen = 0;
    let mut rng = rng(131);
    for (k, (name, least, weights)) in KINDS.into_iter().enumerate() {
        for vectors in [1, 2, 3, 4] {
            let first = rng.below(2) == 0;
            let tiles: Vec<VectorTile> =
                VectorTile::all(vectors, first).filter(|tile| tile.fits(engine().caps())).collect();
            let tile = tiles[(k + vectors as usize) % tiles.len()];
            let short = least * (8 + rng.below(40));
            // Enough for all teams to take sixteen at once, for each second kind of vectors.
            let long = u64::from(tile.teams) * 16 + least.max(16) * rng.below(20);
            let [rows, depth] = [32 + rng.below(40), if vectors % 2 == 1 { long } else { short }];
            // Sums of f32 by one vector are reductions.
            let types: &[DType] = if vectors == 1 { &[DType::Bf16, DType::F16] } else { &[DType::Bf16, DType::F32] };
            let dtype = types[(k + vectors as usize) % types.len()];
            let program = product(weights, [vectors, rows, depth], first, dtype, false);
            let inputs: Vec<Tensor> =
                program.inputs.iter().map(|ty| upload(&operand(ty, Range::Ordinary, 0, &mut rng))).collect();
            let place = usize::from(first);
            let derived = derived_of(name, program, &inputs, [rows, u64::from(first)], dtype);
            // The matrix as a program of its own gives it, not rounded to 16 bits.
            let b = Builder::new();
            b.input(dtype, &[vectors, depth]);
            let alone = weights(&b, [rows, depth], DType::F32);
            let stored = run_program(engine(), &b.finish(&[alone]).unwrap(), &inputs).unwrap().remove(0);
            let x = &inputs[0];
            let shape = if first { [vectors, rows] } else { [rows, vectors] };
            let run = |x: &Tensor, of_matrix: &Tensor, choice: Choice, is_derived: bool| {
                let out = Tensor::uninitialized(engine(), &Type::new(dtype, &shape)).unwrap();
                let [a, b] = if first { [matrix(x), matrix(of_matrix)] } else { [matrix(of_matrix), matrix(x)] };
                let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                match is_derived {
                    true => assert!(derived_as(engine(), &p, (&derived, place), choice, Compile::Allowed).unwrap()),
                    false => product_as(engine(), &p, CType::F32, choice, Compile::Allowed).unwrap(),
                }
                download(&out)
            };
            let nowhere = Tensor::uninitialized(engine(), &Type::new(dtype, &[rows, depth])).unwrap();
            let most = if dtype == DType::F32 { 4 } else { tile.most_together(depth) };
            let is_sixteen = derived.together(most) == 16;
            by_sixteen += usize::from(is_sixteen);
            let splits = if is_sixteen { 1 } else { 1 + rng.below(3) };
            let choice = Choice { tiling: Tiling::Vectors(tile), splits };
            let got = run(x, &nowhere, choice, true);
            let want = match is_sixteen {
                true => {
                    let [x, stored] = [x, &stored].map(|tensor| by_eights(tensor, 16, tile.teams.into()));
                    run(&x, &stored, choice, false)
                }
                false => run(x, &stored, choice, false),
            };
            let wrong = mismatch(&got, &[want], Bound::Exact);
            assert!(wrong.is_none(), "{vectors} by {name}, {rows} x {depth} {dtype}, {choice:?}: {wrong:?}");
        }
    }
    assert!(by_sixteen >= 6, "{by_sixteen}");
    finish();
}

/// What passes make for a GPU runs anywhere: by one kernel, with the bits of the ops one by one, but that the matrix is
/// not rounded to 16 bits, or where none of this device's takes it, by several, with their bits.
#[test]
fn products_of_what_is_derived_run_on_any_device() {
    let mut rng = rng(132);
    for (name, least, weights) in KINDS {
        for (vectors, first, dtype) in [(1, true, DType::Bf16), (3, false, DType::F32), (4, true, DType::F16)] {
            let sizes = [vectors, 33 + rng.below(20), least * (8 + rng.below(9))];
            let program = product(weights, sizes, first, dtype, true);
            let inputs: Vec<Tensor> =
                program.inputs.iter().map(|ty| upload(&operand(ty, Range::Ordinary, 0, &mut rng))).collect();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(optimized.instructions.len(), 1, "{name}: {optimized}");
            let whole = product_of(weights, sizes, first, [dtype, DType::F32], true);
            let [rounded, whole, got] = [&program, &whole, &optimized]
                .map(|program| download(&run_program(engine(), program, &inputs).unwrap().remove(0)));
            // Where sums are scaled in place of elements, they are rounded elsewhere.
            let has_own = engine().takes_own_numbers(dtype, Compile::Allowed).unwrap().contains(&true);
            let largest = sizes[2] as f64 * 2.5 * 255.0;
            let near = Bound::Norm { relative: 4.0 * epsilon(dtype), absolute: largest * 2f64.powi(-16) };
            let bound = if has_own && dtype != DType::F32 { near } else { Bound::Exact };
            let wrong = [rounded, whole].map(|want| mismatch(&got, &[want], bound));
            assert!(wrong.iter().any(Option::is_none), "{sizes:?} of {name}, {dtype}: {wrong:?}");
        }
    }
    finish();
}

/// Keys and values of a token: products of two matrices by one vector, each of which computes its own.
#[test]
fn matrices_that_lie_alike_are_computed_by_their_products() {
    for (name, least, weights) in KINDS {
        let (depth, rows) = (least.max(64), 64);
        let b = Builder::new();
        let x = b.input(DType::Bf16, &[1, depth]);
        let outs = [(), ()].map(|()| {
            let matrix = weights(&b, [rows, depth], DType::Bf16);
            b.dot_axes([x, matrix], [&[1], &[1]], [&[], &[]])
        });
        let optimized = optimize(b.finish(&outs).unwrap(), &gpu()).unwrap();
        assert_eq!(optimized.instructions.len(), 2, "{name}: {optimized}");
    }
}

/// Where a product takes each element more than once, or several read it, or as many bytes are read, it is stored.
#[test]
fn what_is_read_again_is_stored() {
    let (_, _, weights) = KINDS[0];
    let kernels = |program: Program| optimize(program, &gpu()).unwrap().instructions.len();
    assert_eq!(kernels(product(weights, [1, 64, 64], true, DType::Bf16, true)), 1);
    assert!(kernels(product(weights, [5, 64, 64], true, DType::Bf16, false)) > 1);
    assert!(kernels(product(weights, [1, 64, 64], true, DType::F32, false)) > 1, "a reduction");
    let b = Builder::new();
    let (x, y) = (b.input(DType::Bf16, &[1, 64]), b.input(DType::Bf16, &[2, 64]));
    let matrix = weights(&b, [64, 64], DType::Bf16);
    let of = |x: Operand| b.dot_axes([x, matrix], [&[1], &[1]], [&[], &[]]);
    let outs = [of(x), of(y)];
    assert_eq!(kernels(b.finish(&outs).unwrap()), 3);
    let b = Builder::new();
    let x = b.input(DType::Bf16, &[1, 64]);
    let [p, q] = [0, 1].map(|_| b.input(DType::Bf16, &[64, 64]));
    let out = b.dot_axes([x, b.multiply(p, q)], [&[1], &[1]], [&[], &[]]);
    assert_eq!(kernels(b.finish(&[out]).unwrap()), 2);
}

fn numbers_of(array: &Array) -> Vec<f64> {
    array.values.iter().map(|value| value.real()).collect()
}

fn tensor_of(numbers: &[f64], ty: &Type) -> Tensor {
    upload(&Array::new(ty, numbers.iter().map(|&x| Value::Float(x))))
}

/// What numbers, scales and offsets become: `None` where a formula has no such form.
#[test]
fn formulas_are_taken_apart() {
    let fields = |numbers: &Numbers| matches!(numbers, Numbers::Fields { shifts: [0, 4, 8, 12], mask: 15, .. });
    let small = |numbers: &Numbers| *numbers == Numbers::Small;
    let floats = |numbers: &Numbers| *numbers == Numbers::Floats;
    let bytes = |numbers: &Numbers| *numbers == Numbers::Bytes;
    type Is = fn(&Numbers) -> bool;
    type OfBothTypes = [Option<(Is, bool, bool)>; 2];
    // By name, in f16 and in bf16: the numbers, whether they have a scale, and an offset.
    let expected: [(&str, OfBothTypes); 10] = [
        ("8 bits in words", [Some((small, true, true)), Some((floats, true, true))]),
        ("4 bits", [Some((fields, true, true)); 2]),
        ("s8", [Some((floats, true, false)); 2]),
        ("index", [None; 2]),
        ("cast", [Some((floats, false, false)); 2]),
        ("turned", [None; 2]),
        ("2 bits", [Some((bytes, true, false)); 2]),
        ("4 bits of all rows", [Some((fields, true, true)); 2]),
        ("halves of bytes", [Some((bytes, true, true)); 2]),
        ("floats of 8 bits", [Some((floats, true, false)); 2]),
    ];
    let mut rng = rng(133);
    for ((name, _, weights), (_, expected)) in KINDS.into_iter().zip(expected) {
        for (dtype, expected) in [DType::F16, DType::Bf16].into_iter().zip(expected) {
            let [rows, depth] = if name.starts_with("4 bits of") {
                [14336, 4096]
            } else {
                [32 + rng.below(40), 128 * (1 + rng.below(5))]
            };
            let program = product(weights, [2, rows, depth], true, dtype, false);
            let inputs: Vec<Tensor> =
                program.inputs.iter().map(|ty| upload(&operand(ty, Range::Ordinary, 0, &mut rng))).collect();
            let derived = derived_of(name, program, &inputs, [rows, 1], dtype);
            if name.starts_with("4 bits of") {
                println!("{derived:?}");
            }
            let linear = derived.linear(0, dtype);
            match (&linear, expected) {
                (None, None) => {}
                (Some(linear), Some((is_kind, has_scale, has_offset))) => {
                    assert!(is_kind(&linear.kind), "{name} {dtype}: {:?}", linear.kind);
                    assert_eq!([linear.scale.is_some(), linear.offset.is_some()], [has_scale, has_offset], "{name}");
                }
                _ => panic!("{name} of {dtype}: {linear:?}"),
            }
        }
    }
    finish();
}

/// On units that hold matrices so: sums of scaled numbers against f64, and against infinite elements of vectors, where
/// they are as by the elements of the matrix.
#[test]
fn scaled_numbers_on_matrix_units() {
    let mut rng = rng(134);
    let mut checked = 0;
    for (planes, dtype) in [(Planes::OwnF16, DType::F16), (Planes::OwnBf16, DType::Bf16)] {
        if !engine().takes_own_numbers(dtype, Compile::Allowed).unwrap().contains(&true) {
            continue;
        }
        for (name, least, weights) in KINDS {
            for vectors in [1, 2, 3, 4, 7, 8, 11, 16] {
                let first = rng.below(2) == 0;
                let tiles: Vec<MatrixTile> = MatrixTile::of_linear(planes, vectors, first).collect();
                let tile = tiles[rng.below(2) as usize];
                let depth = 32u64.max(least) * (1 + rng.below(70));
                let [rows, place] = [1 + rng.below(300), u64::from(first)];
                // Passes take four vectors at most.
                let program = product(weights, [vectors.min(4), rows, depth], first, dtype, false);
                let inputs: Vec<Tensor> =
                    program.inputs.iter().map(|ty| upload(&operand(ty, Range::Ordinary, 0, &mut rng))).collect();
                let derived = derived_of(name, program, &inputs, [rows, place], dtype);
                if derived.linear(0, dtype).is_none() {
                    continue;
                }
                let b = Builder::new();
                b.input(dtype, &[vectors.min(4), depth]);
                let alone = weights(&b, [rows, depth], DType::F32);
                let stored = run_program(engine(), &b.finish(&[alone]).unwrap(), &inputs).unwrap().remove(0);
                for is_infinite in [false, true] {
                    let x = operand(&Type::new(dtype, &[vectors, depth]), Range::Ordinary, 0, &mut rng);
                    let mut x = numbers_of(&x);
                    if is_infinite {
                        let at = rng.below(vectors * depth) as usize;
                        x[at] = f64::INFINITY;
                    }
                    let of_x = tensor_of(&x, &Type::new(dtype, &[vectors, depth]));
                    let shape = if first { [vectors, rows] } else { [rows, vectors] };
                    let poison = vec![0xff; (vectors * rows * 2) as usize];
                    let out = Tensor::from_nx_bytes(engine(), &Type::new(dtype, &shape), &poison).unwrap();
                    let nowhere = Tensor::uninitialized(engine(), &Type::new(dtype, &[rows, depth])).unwrap();
                    let [a, b] =
                        if first { [matrix(&of_x), matrix(&nowhere)] } else { [matrix(&nowhere), matrix(&of_x)] };
                    let p = Product { a, b, out: &out, prologues: [None, None], epilogue: None };
                    let splits = 1 + rng.below(2);
                    let choice = Choice { tiling: Tiling::Matrix(tile), splits };
                    let what = format!("{vectors} by {name}, {rows} x {depth} {dtype}, {choice:?}, {is_infinite}");
                    let done = derived_as(engine(), &p, (&derived, place as usize), choice, Compile::Allowed).unwrap();
                    assert!(done, "{what}");
                    let (got, w) = (numbers_of(&download(&out)), numbers_of(&download(&stored)));
                    let ulp = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
                    for (row, w) in w.chunks(depth as usize).enumerate() {
                        // Numbers are moved by up to 70 times the largest of 4 bits on their way into f32 sums.
                        let largest = w.iter().fold(0.0, |most: f64, w| most.max(w.abs()));
                        for (vector, x) in x.chunks(depth as usize).enumerate() {
                            let sum: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                            let size: f64 = x.iter().map(|x| x.abs() * largest).sum();
                            let at = if first { vector * rows as usize + row } else { row * vectors as usize + vector };
                            let limit = size * 2f64.powi(-16) + sum.abs() * ulp + 2f64.powi(-24);
                            let largest_number = if dtype == DType::F16 { 65_504.0 } else { 3.38e38 };
                            let is_near = (got[at] - sum).abs() <= limit
                                || got[at] == sum
                                || got[at].is_nan() && sum.is_nan()
                                || got[at].is_infinite() && sum.abs() + limit > largest_number;
                            assert!(is_near, "{what} at {row}, {vector}: {}, not {sum}", got[at]);
                        }
                    }
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} products");
    finish();
}
