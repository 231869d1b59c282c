//! Programs for several at once: each gets what the program alone gives it, whichever inputs are its own.

use nx_vulkan_ir::program::attribute::Scalar;
use nx_vulkan_ir::program::ops::{self, Sample};
use nx_vulkan_ir::program::{Binary, Builder, Instruction, Linalg, Op, Operand, Program, batched};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Error, Result, Type, Value};

use crate::recordings::replay;

const COUNT: u64 = 3;

/// Numbers that differ: small ones, so that they may be indices.
fn numbers(ty: &Type, seed: u64) -> Array {
    let value = |i: u64| {
        let hash = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 40;
        match ty.dtype.is_integer() {
            true => Value::Int(i128::from(hash % 4)).cast(ty.dtype),
            false => Value::Float(hash as f64 / 4096.0 - 2000.0 + 0.25).cast(ty.dtype),
        }
    };
    Array::new(ty, (0..ty.elements()).map(value))
}

fn lead(ty: &Type) -> Type {
    Type::new(ty.dtype, &[&[COUNT], &ty.shape[..]].concat())
}

fn row(array: &Array, ty: &Type, i: u64) -> Array {
    let size = ty.elements() as usize;
    Array::new(ty, array.values.iter().copied().skip(i as usize * size).take(size))
}

/// To the bit, NaN too.
fn same(a: &Array, b: &Array) -> bool {
    a.ty == b.ty && a.to_nx_bytes() == b.to_nx_bytes()
}

/// What a program gives for several at once, and what it gives for each.
fn both(program: &Program, own: &[bool], inputs: &[Array]) -> Result<[Vec<Array>; 2]> {
    let all = reference::run(&batched::of(program, own, COUNT)?, inputs)?;
    let mut alone: Vec<Vec<Value>> = vec![vec![]; program.outputs.len()];
    for i in 0..COUNT {
        let of_one = program.inputs.iter().zip(inputs).zip(own);
        let of_one: Vec<Array> =
            of_one.map(|((ty, array), &own)| if own { row(array, ty, i) } else { array.clone() }).collect();
        for (values, array) in alone.iter_mut().zip(reference::run(program, &of_one)?) {
            values.extend(array.values);
        }
    }
    let types = program.output_types().into_iter().map(lead);
    Ok([all, types.zip(alone).map(|(ty, values)| Array::new(&ty, values)).collect()])
}

/// Compares for all choices of inputs that are each one's own. Answers how many could be compared.
fn compare(name: &str, program: &Program) -> usize {
    let count = program.inputs.len();
    let mut compared = 0;
    for own in (0..1 << count).map(|bits| (0..count).map(|i| bits >> i & 1 == 1).collect::<Vec<bool>>()) {
        let types = program.inputs.iter().zip(&own).map(|(ty, &own)| if own { lead(ty) } else { ty.clone() });
        let inputs: Vec<Array> = types.enumerate().map(|(i, ty)| numbers(&ty, i as u64 + 1)).collect();
        match both(program, &own, &inputs) {
            Ok([all, alone]) => {
                assert!(
                    all.iter().zip(&alone).all(|(all, alone)| same(all, alone)),
                    "{name} {own:?}: {all:?}\nalone {alone:?}\n{program}"
                );
                compared += 1;
            }
            Err(Error::Unsupported { .. }) => {}
            Err(error) => panic!("{name} {own:?}: {error}"),
        }
    }
    compared
}

fn alone(Sample { op, operands, outs }: Sample) -> Program {
    let outputs = (0..outs.len() as u32).map(Operand::Result).collect();
    let places = (0..operands.len() as u32).map(Operand::Input).collect();
    let instruction = Instruction { op, operands: places, outs: outs.into() };
    Program { inputs: operands, instructions: vec![instruction], outputs }
}

/// What no sample leaves out: an initial value, a kernel, or a program that a pass made, of its own.
fn all_choices(op: &Op, operands: usize) -> usize {
    match op {
        Op::Conv(_) | Op::Fused(_) | Op::Workgroup(_) => 1,
        Op::Fold { .. } | Op::Windowed(ops::window::Windowed::WindowFold(_)) => 2,
        Op::Windowed(ops::window::Windowed::WindowScatter(_)) => 4,
        _ => 1 << operands,
    }
}

#[test]
fn every_op_gives_each_its_own() {
    for (name, sample) in ops::samples() {
        // One flag tells of all systems; the loop of the sample ends at once.
        let is_system = matches!(sample.op, Op::Matrix(ops::matrix::Matrix::Linalg(Linalg::Solve)));
        let expected = all_choices(&sample.op, sample.operands.len());
        let mut program = alone(sample);
        program.outputs.truncate(if is_system { 1 } else { usize::MAX });
        let op = program.instructions[0].op.clone();
        let compared = compare(name, &program);
        assert_eq!(compared, expected, "{name}: {op:?}");
    }
}

#[test]
fn recorded_programs_give_each_what_nx_gives() {
    let compared = std::cell::Cell::new(0);
    replay(|recording| {
        let types = recording.program.inputs.iter().zip(&recording.inputs);
        let inputs = types.map(|(ty, bytes)| Array::from_nx_bytes(ty, bytes)).collect::<Result<Vec<_>>>()?;
        let alone = reference::run(&recording.program, &inputs)?;
        let outputs = |arrays: &[Array]| arrays.iter().map(Array::to_nx_bytes).collect();
        for some in [true, false] {
            let own: Vec<bool> = (0..inputs.len()).map(|i| some || i % 2 == 0).collect();
            let program = match batched::of(&recording.program, &own, 2) {
                Ok(program) => program,
                Err(Error::Unsupported { .. }) => continue,
                Err(error) => return Err(error),
            };
            let twice = |(array, (ty, own)): (&Array, (&Type, &bool))| match own {
                true => {
                    let ty = Type::new(ty.dtype, &[&[2], &ty.shape[..]].concat());
                    Array::new(&ty, array.values.iter().chain(&array.values).copied())
                }
                false => array.clone(),
            };
            let inputs: Vec<Array> = inputs.iter().zip(recording.program.inputs.iter().zip(&own)).map(twice).collect();
            for (all, alone) in reference::run(&program, &inputs)?.iter().zip(&alone) {
                if ![0, 1].map(|i| row(all, &alone.ty, i)).iter().all(|row| same(row, alone)) {
                    return Ok(outputs(&[0, 1].map(|i| row(all, &alone.ty, i))));
                }
            }
            compared.set(compared.get() + 1);
        }
        Ok(outputs(&alone))
    });
    assert!(compared.get() > 100, "{}", compared.get());
}

/// Slices and what is put, along all axes, from starts of any type: also before the beginning and behind the end.
#[test]
fn starts_are_clamped_for_each() {
    for dtype in [DType::U8, DType::S8, DType::S32, DType::U64, DType::S64] {
        let b = Builder::new();
        let a = b.input(DType::F32, &[5, 400, 2]);
        let starts = [b.input(dtype, &[]), b.input(dtype, &[]), b.input(dtype, &[])];
        let ends = [starts[0], b.multiply(starts[1], 100.0), b.negate(starts[2])];
        let op = Op::Slice {
            starts: [None, None, None].into_iter().collect(),
            strides: [1, 3, 1].into_iter().collect(),
            lengths: [2, 7, 1].into_iter().collect(),
        };
        let slice = b.push(op, &[&[a], &ends[..]].concat(), &Type::new(DType::F32, &[2, 3, 1]));
        let put = Op::PutSlice { starts: [None, Some(3), None].into_iter().collect() };
        let put = b.push(put, &[a, slice, ends[0], ends[2]], &Type::new(DType::F32, &[5, 400, 2]));
        let program = b.finish(&[slice, put]).unwrap();
        assert_eq!(compare("slices", &program), 16);
    }
}

/// What takes one element of an axis has any stride along it.
#[test]
fn strides_that_are_never_taken_may_be_huge() {
    for stride in [5, 1 << 40, i64::MAX as u64, u64::MAX] {
        let b = Builder::new();
        let (a, start) = (b.input(DType::F32, &[9, 3]), b.input(DType::S32, &[]));
        let op = Op::Slice {
            starts: [None, Some(0)].into_iter().collect(),
            strides: [stride, 1].into_iter().collect(),
            lengths: [4, 3].into_iter().collect(),
        };
        let slice = b.push(op, &[a, start], &Type::new(DType::F32, &[1, 3]));
        let program = b.finish(&[slice]).unwrap();
        assert_eq!(compare("slices of one", &program), 4);
    }
}

/// Loops of which each runs as often as its own numbers say, within each other, and branches.
#[test]
fn loops_end_for_each_alone() {
    let b = Builder::new();
    let (x, limit, step) = (b.input(DType::S32, &[]), b.input(DType::S32, &[2]), b.input(DType::S32, &[]));
    let outer = b.while_loop(
        &[x, limit, b.constant(DType::S32, Scalar::Int(0))],
        &[step],
        |b, v| b.less(v[2], b.add(v[0], 3.0)),
        |b, v| {
            let inner = b.while_loop(
                &[v[2], v[1]],
                &[v[3]],
                |b, w| b.less(w[0], b.reduce_max(w[1], &[0])),
                |b, w| vec![b.add(b.add(w[0], w[2]), 1.0), w[1]],
            );
            let even = b.equal(b.binary(Binary::BitwiseAnd, inner[0], 1.0), 0.0);
            let chosen = b.cond(
                even,
                &[inner[0], v[1]],
                |b, c| vec![c[0], b.add(c[1], c[0])],
                |b, c| vec![b.add(c[0], 1.0), c[1]],
            );
            vec![v[0], chosen[1], b.add(v[2], 1.0)]
        },
    );
    let program = b.finish(&outer).unwrap();
    assert_eq!(compare("loops", &program), 8);
    let b = Builder::new();
    let (x, limit, step) = (b.input(DType::S32, &[]), b.input(DType::S32, &[2]), b.input(DType::S32, &[2]));
    let last = b.while_loop(
        &[x, step],
        &[limit],
        |b, v| b.less(v[0], b.reduce_max(b.add(v[2], 9.0), &[0])),
        |b, v| {
            let even = b.equal(b.binary(Binary::BitwiseAnd, v[0], 1.0), 0.0);
            let next = b.cond(even, &[v[0], v[1]], |b, c| vec![b.add(c[1], c[0])], |_, c| vec![c[1]]);
            vec![b.add(b.add(v[0], b.reduce_max(v[1], &[0])), 1.0), next[0]]
        },
    );
    let program = b.finish(&last).unwrap();
    assert_eq!(compare("loops that end apart", &program), 8);
}

/// What is each one's own in one branch alone, and a loop whose count all share.
#[test]
fn what_all_share_stays_one() {
    let b = Builder::new();
    let (which, x, y) = (b.input(DType::U8, &[]), b.input(DType::F32, &[4]), b.input(DType::F32, &[4]));
    let chosen = b.cond(which, &[x, y], |_, c| vec![c[0]], |_, c| vec![c[1]]);
    let counted = b.while_loop(
        &[b.constant(DType::S32, Scalar::Int(0)), chosen[0], y],
        &[],
        |b, v| b.less(v[0], 3.0),
        |b, v| vec![b.add(v[0], 1.0), b.add(v[1], v[2]), v[2]],
    );
    let program = b.finish(&counted).unwrap();
    assert_eq!(compare("shared", &program), 8);
    let several = batched::of(&program, &[false, true, false], COUNT).unwrap();
    let cells = several.instructions.iter().find(|i| matches!(i.op, Op::While(_))).unwrap();
    let ranks: Vec<usize> = cells.outs.iter().map(|ty| ty.shape.len()).collect();
    assert_eq!(ranks, [0, 2, 1]);
}

/// Indices and starts that no signed number holds lie behind the end, as the largest do.
#[test]
fn the_largest_indices_are_behind_the_end() {
    let b = Builder::new();
    let (a, indices) = (b.input(DType::F32, &[4]), b.input(DType::U64, &[3]));
    let taken = b.take(a, indices, 0);
    let program = b.finish(&[taken]).unwrap();
    let own = [true, true];
    let values = [1, u64::MAX, 1 << 63, 0, 2, 3, u64::MAX - 1, 1, 9].map(|i| Value::Int(i.into()));
    let inputs = [numbers(&Type::new(DType::F32, &[3, 4]), 1), Array::new(&Type::new(DType::U64, &[3, 3]), values)];
    let [all, alone] = both(&program, &own, &inputs).unwrap();
    assert!(same(&all[0], &alone[0]), "{all:?} {alone:?}");
}

/// Whoever takes the other branch, or has ended the loop around it, would run such loops for ever.
#[test]
fn loops_end_that_only_some_may_run() {
    let counts_down = |b: &Builder, state: &[Operand]| {
        b.while_loop(state, &[], |b, v| b.not_equal(v[0], 0.0), |b, v| vec![b.subtract(v[0], 1.0), b.add(v[1], 2.0)])
    };
    // By the numbers of each, of all, and within a loop of a known count.
    let b = Builder::new();
    let (n, which, x) = (b.input(DType::S32, &[]), b.input(DType::S32, &[]), b.input(DType::F32, &[2]));
    let positive = b.greater(which, 1.0);
    let chosen = b.cond(
        positive,
        &[b.add(b.multiply(n, which), 0.0), x],
        |b, c| {
            let zero = b.constant(DType::S32, Scalar::Int(0));
            let state = [zero, b.abs(c[0]), c[1]];
            b.while_loop(
                &state,
                &[],
                |b, v| b.less(v[0], 3.0),
                |b, v| {
                    let last = counts_down(b, &[v[1], v[2]]);
                    vec![b.add(v[0], 1.0), b.add(last[0], v[0]), last[1]]
                },
            )[1..]
                .to_vec()
        },
        |_, c| c.to_vec(),
    );
    let branch = b.finish(&chosen).unwrap();
    assert_eq!(compare("loops in branches", &branch), 8);
    // Of those that take the branch none has such a number.
    let b = Builder::new();
    let (n, which) = (b.input(DType::S32, &[]), b.input(DType::S32, &[]));
    let never = b.subtract(b.multiply(n, 0.0), 1.0);
    let chosen = b.cond(
        b.greater(which, 9.0),
        &[never, which],
        |b, c| {
            let last = b.while_loop(
                &[b.multiply(c[0], 2.0), c[0]],
                &[],
                |b, v| b.less(v[0], 0.0),
                |b, v| vec![b.subtract(b.multiply(v[0], 0.0), 1.0), v[1]],
            );
            vec![last[0]]
        },
        |_, c| vec![c[1]],
    );
    let program = b.finish(&chosen).unwrap();
    assert_eq!(compare("loops that nobody runs", &program), 4);
    let b = Builder::new();
    let n = b.input(DType::S32, &[]);
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let nested = b.while_loop(
        &[zero],
        &[n],
        |b, v| b.less(v[0], v[1]),
        |b, v| {
            let inner = b.while_loop(&[v[0]], &[v[1]], |b, w| b.not_equal(w[0], w[1]), |b, w| vec![b.add(w[0], 1.0)]);
            vec![b.add(b.multiply(inner[0], 0.0), b.add(v[0], 1.0))]
        },
    );
    let nested = b.finish(&nested).unwrap();
    assert_eq!(compare("loops in loops that have ended", &nested), 2);
}

/// A short slice of a long row is put where it lies; a long one is chosen from.
#[test]
fn short_slices_are_put() {
    for (rows, puts) in [(1000, true), (8, false)] {
        let b = Builder::new();
        let (a, part, start) =
            (b.input(DType::F32, &[rows, 3]), b.input(DType::F32, &[2, 3]), b.input(DType::S32, &[]));
        let put = Op::PutSlice { starts: [None, Some(0)].into_iter().collect() };
        let start = b.subtract(b.multiply(start, 500.0), 2.0);
        let put = b.push(put, &[a, part, start], &Type::new(DType::F32, &[rows, 3]));
        let program = b.finish(&[put]).unwrap();
        assert_eq!(compare("short slices", &program), 8);
        let several = batched::of(&program, &[true; 3], COUNT).unwrap();
        assert_eq!(several.instructions.iter().any(|i| i.op.name() == "indexed_put"), puts, "{several}");
    }
}

/// Each branch is built once, however many lie within each other.
#[test]
fn branches_within_each_other_take_no_longer() {
    fn ways(b: &Builder, which: Operand, x: Operand, left: u32) -> Operand {
        if left == 0 {
            return x;
        }
        let is_it = b.equal(which, f64::from(left));
        b.cond(
            is_it,
            &[which, x],
            |b, c| vec![b.multiply(c[1], f64::from(left))],
            |b, c| vec![ways(b, c[0], c[1], left - 1)],
        )[0]
    }
    let b = Builder::new();
    let (which, x) = (b.input(DType::S32, &[]), b.input(DType::F32, &[2]));
    let out = ways(&b, which, x, 14);
    let program = b.finish(&[out]).unwrap();
    let several = batched::of(&program, &[false, true], COUNT).unwrap();
    assert!(several.size() < 4 * program.size(), "{} of {}", several.size(), program.size());
}

#[test]
fn what_no_tensor_holds_is_refused() {
    let b = Builder::new();
    let (a, i) = (b.input(DType::F32, &[1 << 40]), b.input(DType::S32, &[]));
    let op = Op::Slice {
        starts: [None].into_iter().collect(),
        strides: [1].into_iter().collect(),
        lengths: [4].into_iter().collect(),
    };
    let slice = b.push(op, &[a, i], &Type::new(DType::F32, &[4]));
    let program = b.finish(&[slice]).unwrap();
    for count in [1 << 30, 9_000_000_000_000_000_000, u64::MAX] {
        assert!(batched::of(&program, &[true, true], count).is_err());
    }
}

#[test]
fn other_inputs_and_no_count_are_refused() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[2]);
    let program = b.finish(&[x]).unwrap();
    for (own, count) in [(&[][..], 2), (&[true, true], 2), (&[true], 0)] {
        assert!(matches!(batched::of(&program, own, count), Err(Error::InvalidProgram { .. })));
    }
}
