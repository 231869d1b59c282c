//! Updates that are comparisons, and elements that are taken before what is computed of them.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::index::{IndexedAdd, IndexedPut, Indexing, TakeAlongAxis};
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Executable, Tensor, Type, Value};

use super::known::ops;
use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::{self, Rng};
use crate::in_place::sums;

/// What counts along an axis of `lines`, or along another one where the updates are to stay.
#[derive(Clone, Copy, PartialEq)]
enum Counted {
    Right,
    Another,
}

/// One update for each line along `axis` of a tensor of equal elements, at the place that an input says.
fn updates(b: &Builder, target: &Type, axis: usize, places: DType, update: DType, adds: bool, how: Counted) -> Operand {
    let mut lines = target.shape.to_vec();
    lines[axis] = 1;
    let count: u64 = lines.iter().product();
    let (place, updates) = (b.input(places, &lines), b.input(update, &[count]));
    let value = b.push(
        Op::Constant(Scalar::Float(if !adds {
            -0.0
        } else if axis == 0 {
            0.0
        } else {
            1.5
        })),
        &[],
        target,
    );
    let mut column = lines.clone();
    column.push(1);
    let columns: Vec<Operand> = (0..lines.len())
        .map(|other| match how {
            _ if other == axis => b.reshape(place, &column),
            Counted::Another if lines[other] > 1 => b.reshape(b.input(places, &lines), &column),
            _ => b.push(Op::Iota { axis: Some(other) }, &[], &Type::new(DType::S32, &column)),
        })
        .collect();
    let wide = if places == DType::S64 { DType::S64 } else { DType::S32 };
    let mut whole = lines.clone();
    whole.push(lines.len() as u64);
    let indices = match &columns[..] {
        [only] => b.reshape(*only, &[count, 1]),
        _ => {
            let joined = b.push(Op::Concatenate { axis: lines.len() }, &columns, &Type::new(wide, &whole));
            b.reshape(joined, &[count, lines.len() as u64])
        }
    };
    let axes = (0..lines.len()).collect();
    let op = if adds { Op::from(IndexedAdd { axes }) } else { Op::from(IndexedPut { axes }) };
    let dtype = if adds && update == DType::F32 { DType::F32 } else { target.dtype };
    b.push(op, &[value, indices, updates], &Type { dtype, ..target.clone() })
}

/// Checks an optimized program beside the single ops, in the reference and on the device.
fn check(program: &Program, inputs: &[Array]) -> Program {
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    let expected = reference::run(program, inputs).unwrap();
    let beside = [reference::run(&optimized, inputs).unwrap(), run(program, inputs), run(&optimized, inputs)];
    for (got, want) in beside.iter().flat_map(|got| got.iter().zip(&expected)) {
        assert_eq!(difference(got, want), None, "{program}\n{optimized}");
    }
    optimized
}

/// Places, of which some lie outside.
fn places(ty: &Type, size: u64, rng: &mut Rng) -> Array {
    let place = |rng: &mut Rng| Value::Int(i128::from(rng.below(size + 3)) - 1).cast(ty.dtype);
    Array::new(ty, (0..ty.elements()).map(|_| place(rng)).collect::<Vec<_>>())
}

#[test]
fn one_update_for_each_line_is_a_comparison() {
    let mut rng = Rng(20_261_127);
    let shapes: [&[u64]; 6] = [&[7], &[5, 9], &[9, 1], &[3, 4, 6], &[1, 5, 5], &[2, 1, 300]];
    for shape in shapes {
        for axis in 0..shape.len() {
            for (k, (target, update)) in
                [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::F32, DType::F32)].into_iter().enumerate()
            {
                let places_of = [DType::S64, DType::S32, DType::U8][k];
                let b = Builder::new();
                let ty = Type::new(target, shape);
                let updated = updates(&b, &ty, axis, places_of, update, k != 2, Counted::Right);
                let result = b.negate(updated);
                let program = b.finish(&[result]).unwrap();
                let [places_ty, update_ty] = [&program.inputs[0], &program.inputs[1]];
                let inputs = [places(places_ty, shape[axis], &mut rng), graphs::values(update_ty, &mut rng)];
                let optimized = check(&program, &inputs);
                assert!(ops(&optimized).iter().all(|name| !name.starts_with("indexed")), "{optimized}");
            }
        }
    }
    common::assert_valid(engine());
}

#[test]
fn updates_of_other_places_stay() {
    let mut rng = Rng(20_261_128);
    let b = Builder::new();
    let ty = Type::new(DType::F32, &[5, 6]);
    let updated = updates(&b, &ty, 1, DType::S32, DType::F32, true, Counted::Another);
    let program = b.finish(&[updated]).unwrap();
    let inputs: Vec<Array> = program
        .inputs
        .iter()
        .map(|ty| if ty.dtype == DType::S32 { places(ty, 5, &mut rng) } else { graphs::values(ty, &mut rng) })
        .collect();
    assert!(ops(&check(&program, &inputs)).contains(&"indexed_add"));

    // Two updates of one line may meet.
    let b = Builder::new();
    let (place, update) = (b.input(DType::S32, &[2, 1]), b.input(DType::F32, &[2]));
    let value = b.push(Op::Constant(Scalar::Float(0.0)), &[], &Type::new(DType::F32, &[4]));
    let added = b.push(
        Op::from(IndexedAdd { axes: [0].into_iter().collect() }),
        &[value, place, update],
        &Type::new(DType::F32, &[4]),
    );
    let program = b.finish(&[added]).unwrap();
    let same = Array::new(&program.inputs[0], [Value::Int(2), Value::Int(2)]);
    assert!(ops(&check(&program, &[same, graphs::values(&program.inputs[1], &mut rng)])).contains(&"indexed_add"));

    // Of other elements than equal ones as much has to be copied as before.
    let b = Builder::new();
    let (value, place, update) = (b.input(DType::F32, &[4]), b.input(DType::S32, &[1, 1]), b.input(DType::F32, &[1]));
    let put = b.push(
        Op::from(IndexedPut { axes: [0].into_iter().collect() }),
        &[value, place, update],
        &Type::new(DType::F32, &[4]),
    );
    let program = b.finish(&[put]).unwrap();
    assert!(ops(&optimize(program, &gpu()).unwrap()).contains(&"indexed_put"));
}

#[test]
fn elements_are_taken_before_what_is_computed_of_them() {
    let mut rng = Rng(20_261_129);
    for (dtype, axis, shape) in
        [(DType::F32, 1, [12u64, 40]), (DType::Bf16, 1, [3, 64]), (DType::F32, 0, [33, 5]), (DType::F16, 0, [8, 2])]
    {
        for count in [1, 2] {
            let b = Builder::new();
            let x = b.input(dtype, &shape);
            let mut lines = shape;
            lines[axis] = 1;
            let mut taken_shape = shape;
            taken_shape[axis] = count;
            let (line, indices) = (b.input(dtype, &lines), b.input(DType::S64, &taken_shape));
            // As the logarithm of probabilities, of which the sums read what is computed of all.
            let shifted = b.subtract(x, line);
            let sum = b.sum(b.exp(shifted), &[axis]);
            let logs = b.subtract(shifted, b.reshape(b.log(sum), &lines));
            let taken = b.push(Op::from(TakeAlongAxis { axis }), &[logs, indices], &Type::new(dtype, &taken_shape));
            let result = b.multiply(taken, 2.0);
            let program = b.finish(&[result]).unwrap();
            let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            let taken_of_input = optimized.instructions.iter().any(|instruction| {
                matches!(instruction.op, Op::Indexing(Indexing::TakeAlongAxis(_)))
                    && instruction.operands[0] == Operand::Input(0)
            });
            let few = count <= shape[axis] / 4;
            assert_eq!(taken_of_input, few, "{optimized}");
            let expected = run(&program, &inputs);
            for (got, want) in run(&optimized, &inputs).iter().zip(&expected) {
                assert_eq!(difference(got, want), None, "{program}\n{optimized}");
            }
        }
    }
}

#[test]
fn what_lies_in_memory_anyway_is_taken_from() {
    let b = Builder::new();
    let (x, indices) = (b.input(DType::F32, &[6, 32]), b.input(DType::S64, &[6, 1]));
    let sines = b.sin(x);
    let taken = b.push(Op::from(TakeAlongAxis { axis: 1 }), &[sines, indices], &Type::new(DType::F32, &[6, 1]));
    let program = b.finish(&[sines, taken]).unwrap();
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    assert_eq!(ops(&optimized), ["sin", "take_along_axis"], "{optimized}");
    let mut rng = Rng(20_261_130);
    let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
    let tensors = upload(&inputs);
    let results = nx_vulkan_engine::eager::run_program(engine(), &optimized, &tensors).unwrap();
    for (got, want) in download(&results).iter().zip(&run(&program, &inputs)) {
        assert_eq!(difference(got, want), None);
    }
}

/// Places that are counted in a type which has fewer numbers than there are places.
#[test]
fn counts_that_begin_anew_stay_updates() {
    let (rows, columns) = (300, 4);
    let b = Builder::new();
    let (place, update) = (b.input(DType::U8, &[rows, 1]), b.input(DType::F32, &[rows]));
    let ty = Type::new(DType::F32, &[rows, columns]);
    let value = b.push(Op::Constant(Scalar::Float(0.0)), &[], &ty);
    let counted = b.push(Op::Iota { axis: Some(0) }, &[], &Type::new(DType::U8, &[rows, 1]));
    let joined = b.push(Op::Concatenate { axis: 1 }, &[counted, place], &Type::new(DType::U8, &[rows, 2]));
    let put = b.push(Op::from(IndexedAdd { axes: (0..2).collect() }), &[value, joined, update], &ty);
    let program = b.finish(&[put]).unwrap();
    let mut rng = Rng(20_261_133);
    let inputs = [places(&program.inputs[0], columns, &mut rng), graphs::values(&program.inputs[1], &mut rng)];
    assert!(ops(&check(&program, &inputs)).contains(&"indexed_add"));
}

/// A kernel would write one NaN for all.
#[test]
fn narrow_floats_are_put_as_they_are() {
    let b = Builder::new();
    let (place, update) = (b.input(DType::S32, &[1, 1]), b.input(DType::Bf16, &[1]));
    let ty = Type::new(DType::Bf16, &[4]);
    let value = b.push(Op::Constant(Scalar::Float(0.0)), &[], &ty);
    let put = b.push(Op::from(IndexedPut { axes: [0].into_iter().collect() }), &[value, place, update], &ty);
    let program = b.finish(&[put]).unwrap();
    assert!(ops(&optimize(program, &gpu()).unwrap()).contains(&"indexed_put"));
}

/// Each step reads the one before twice: what is taken of it is taken once.
#[test]
fn steps_that_read_one_another_twice_are_taken_once() {
    let b = Builder::new();
    let (mut x, indices) = (b.input(DType::F32, &[8, 64]), b.input(DType::S64, &[8, 1]));
    for _ in 0..60 {
        x = b.add(x, x);
    }
    let taken = b.push(Op::from(TakeAlongAxis { axis: 1 }), &[x, indices], &Type::new(DType::F32, &[8, 1]));
    let program = b.finish(&[taken]).unwrap();
    assert!(optimize(program, &gpu()).unwrap().instructions.len() < 10);
}

#[test]
fn copies_of_many_axes_of_two_stay_copies() {
    for axes in [2usize, 7, 8, 12] {
        let b = Builder::new();
        let shape = vec![2u64; axes];
        let x = b.input(DType::F32, &shape);
        let turned = b.transpose(x, &(0..axes).rev().collect::<Vec<_>>());
        let joined = b.concatenate(&[turned, turned], 0);
        let program = b.finish(&[joined]).unwrap();
        let executable = Executable::compile(engine(), program).unwrap();
        assert!(executable.describe().len() <= 2, "{:?}", executable.describe());
        let values: Vec<f32> = (0..1u32 << axes).map(|i| i as f32).collect();
        let x = Tensor::from_slice(engine(), &shape, &values).unwrap();
        let got = executable.run(&[x], Compile::Allowed).unwrap()[0].to_vec::<f32>(engine()).unwrap();
        let once = (0..1u32 << axes).map(|i| (i.reverse_bits() >> (32 - axes)) as f32);
        assert!(got.into_iter().eq(once.clone().chain(once)), "{axes} axes");
    }
    common::assert_valid(engine());
}

#[test]
fn losses_of_labels_lie_where_their_scores_lay() {
    let (rows, classes) = (4099, 100);
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let b = Builder::new();
        let x = sums(&b, b.input(dtype, &[rows, classes]));
        let labels = b.input(DType::S64, &[rows, 1]);
        let picked = b.push(Op::from(TakeAlongAxis { axis: 1 }), &[x, labels], &Type::new(dtype, &[rows, 1]));
        let wide = b.as_type(x, DType::F32);
        let largest = b.reduce(Reduction::Max, wide, &[1], true);
        let exp = b.exp(b.subtract(wide, largest));
        let total = b.reduce(Reduction::Sum, exp, &[1], true);
        let loss = b.subtract(b.add(b.log(total), largest), b.as_type(picked, DType::F32));
        let places = b.push(Op::Iota { axis: Some(1) }, &[], &Type::new(DType::S64, &[1, classes]));
        let shares = b.subtract(b.divide(exp, total), b.as_type(b.binary(Binary::Equal, places, labels), DType::F32));
        let outputs = [loss, b.add(picked, picked), shares];
        let program = b.finish(&outputs).unwrap();
        let special = [-0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        // Sums of scores are special from some place of a row on, or zeros of either sign.
        let score = |i: u64| match (i / classes % 9, i % classes) {
            (0, _) => -0.0,
            (k @ 1..=4, at) if at == i / classes % 90 => special[k as usize - 1],
            (_, at) => (i * 7919 % 33) as f64 / 64.0 - 0.25 + (at % 2) as f64 / 128.0,
        };
        let label = |row: u64| match row % 13 {
            5 => -3,
            6 => i128::from(classes) + 2,
            _ => i128::from(row * 37 % classes),
        };
        let scores = Type::new(dtype, &[rows, classes]);
        let inputs = [
            Array::new(&scores, (0..scores.elements()).map(|i| Value::Float(score(i)))),
            Array::new(&Type::new(DType::S64, &[rows, 1]), (0..rows).map(|row| Value::Int(label(row)))),
        ];
        let executable = Executable::compile(engine(), program.clone()).unwrap();
        let expected = run(&program, &inputs);
        for _ in 0..2 {
            let got = download(&executable.run(&upload(&inputs), Compile::Allowed).unwrap());
            for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(difference(got, expected), None, "output {k} of {program}");
            }
        }
        let whole = Type::new(DType::F32, &[rows, classes]);
        let taken = executable.summary().arena_bytes as f64 / whole.size_bytes() as f64;
        // The shares have the place of scores of f32.
        assert!(taken < if dtype == DType::F32 { 0.2 } else { 0.7 }, "{taken} times {whole}");
    }
    common::assert_valid(engine());
}

/// Numbers that count through all of an operand of this shape, from a start.
fn counted(b: &Builder, dtype: DType, start: u64, shape: &[u64]) -> Operand {
    let line = b.iota(DType::S32, &[shape.iter().product()], None);
    let line = b.add(b.as_type(line, dtype), b.constant(dtype, Scalar::Int(start.into())));
    b.reshape(line, shape)
}

/// Embeddings of positions are a slice of a table, and their gradients are put among zeros.
#[test]
fn what_indices_that_count_read_and_write_is_a_slice() {
    let mut rng = Rng(20_261_128);
    for (table, update) in [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::F16, DType::F16)] {
        // The last indices are out of bounds, or wrap.
        for (dtype, start, count, is_slice) in [
            (DType::S32, 0, 300, true),
            (DType::S64, 3, 296, true),
            (DType::U8, 0, 200, true),
            (DType::S32, 3, 298, false),
            (DType::U8, 100, 200, false),
        ] {
            let b = Builder::new();
            let (a, updates) = (b.input(table, &[300, 20]), b.input(update, &[count, 20]));
            let taken = b.take(a, counted(&b, dtype, start, &[2, count / 2]), 0);
            let across = b.take(b.transpose(a, &[1, 0]), counted(&b, dtype, start, &[count]), 1);
            let zeros = b.push(Op::Constant(Scalar::Float(0.0)), &[], &Type::new(table, &[300, 20]));
            let out = Type::new(if update == DType::F32 { update } else { table }, &[300, 20]);
            let add = Op::from(IndexedAdd { axes: [0].into_iter().collect() });
            let added = b.push(add, &[zeros, counted(&b, dtype, start, &[count, 1]), updates], &out);
            let results = [b.add(taken, 1.0), b.add(across, 1.0), added];
            let program = b.finish(&results).unwrap();
            let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
            let optimized = check(&program, &inputs);
            let indexes = optimized.instructions.iter().any(|i| matches!(i.op, Op::Indexing(_)));
            assert_eq!(indexes, !is_slice, "{dtype} from {start}: {optimized}");
        }
    }
    common::assert_valid(engine());
}
