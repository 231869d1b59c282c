//! Loops and branches.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::{Binary, Branches, Builder, Loop, Op, Operand};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Type, Value};

use super::{all_results, download, finish, upload};

/// A builder with these inputs.
fn builder(inputs: &[&Type]) -> Builder {
    let b = Builder::new();
    inputs.iter().for_each(|ty| {
        b.input(ty.dtype, &ty.shape);
    });
    b
}

/// `while i < limit, do: {i + 1, x * factor}` over the state i, x and the captured limit and factor.
fn powers(count: &Type, vector: &Type) -> Op {
    let inputs = [count, vector, count, vector];
    let condition = builder(&inputs);
    let less = Op::Binary(Binary::Less);
    let going_on = condition.push(less, &[Operand::Input(0), Operand::Input(2)], &Type::new(DType::U8, &[]));
    let body = builder(&inputs);
    let one = body.push(Op::Constant(Scalar::Int(1)), &[], count);
    let next = body.push(Op::Binary(Binary::Add), &[Operand::Input(0), one], count);
    let product = body.push(Op::Binary(Binary::Multiply), &[Operand::Input(1), Operand::Input(3)], vector);
    let body = body.finish(&[next, product]).unwrap();
    Op::While(Box::new(Loop::new(condition.finish(&[going_on]).unwrap(), body)))
}

#[test]
fn loops_run_until_the_condition_fails() {
    let (count, vector) = (Type::new(DType::S64, &[]), Type::new(DType::F32, &[3]));
    let op = powers(&count, &vector);
    for (start, limit) in [(0, 5), (3, 4), (7, 7), (9, 2)] {
        let arrays = [
            Array::new(&count, [Value::Int(start)]),
            Array::new(&vector, [1.0, -2.0, 0.5].map(Value::Float)),
            Array::new(&count, [Value::Int(limit)]),
            Array::new(&vector, [3.0, -1.5, 2.0].map(Value::Float)),
        ];
        let outs = [count.clone(), vector.clone()];
        let expected = reference::evaluate_all(&op, &arrays, &outs).unwrap();
        assert_eq!(expected[0].values, [Value::Int(limit.max(start))]);
        let tensors: Vec<_> = arrays.iter().map(upload).collect();
        let results = all_results(&op, &tensors, &outs).unwrap();
        assert_eq!(results.iter().map(download).collect::<Vec<_>>(), expected);
    }
    finish();
}

#[test]
fn branches_run_what_the_predicate_chooses() {
    let vector = Type::new(DType::F32, &[4]);
    let branch = |op| {
        let steps = builder(&[&vector]);
        let result = steps.push(Op::Binary(op), &[Operand::Input(0), Operand::Input(0)], &vector);
        steps.finish(&[result, Operand::Input(0)]).unwrap()
    };
    let op = Op::Cond(Box::new(Branches { on_true: branch(Binary::Add), on_false: branch(Binary::Multiply) }));
    let outs = [vector.clone(), vector.clone()];
    let x = Array::new(&vector, [1.0, -2.0, f64::INFINITY, 0.5].map(Value::Float));
    // Everything but zero is true, NaN and the signs of sub-byte types too.
    for (dtype, value) in [
        (DType::U8, Value::Int(0)),
        (DType::U8, Value::Int(255)),
        (DType::S2, Value::Int(-2)),
        (DType::U4, Value::Int(0)),
        (DType::S64, Value::Int(1 << 40)),
        (DType::F32, Value::Float(-0.0)),
        (DType::F64, Value::Float(f64::NAN)),
        (DType::Bf16, Value::Float(0.25)),
    ] {
        let arrays = [Array::new(&Type::new(dtype, &[]), [value]), x.clone()];
        let expected = reference::evaluate_all(&op, &arrays, &outs).unwrap();
        let tensors: Vec<_> = arrays.iter().map(upload).collect();
        let results = all_results(&op, &tensors, &outs).unwrap();
        assert_eq!(results.iter().map(download).collect::<Vec<_>>(), expected, "{dtype} {value:?}");
    }
    finish();
}

#[test]
fn programs_that_do_not_fit_are_refused() {
    let (count, vector) = (Type::new(DType::S64, &[]), Type::new(DType::F32, &[3]));
    let Op::While(good) = powers(&count, &vector) else { panic!("a loop") };
    let operands = [&count, &vector, &count, &vector];
    let check = |op: &Loop| {
        let outs = [count.clone(), vector.clone()];
        nx_vulkan_engine::program::verify::instruction(&Op::While(Box::new(op.clone())), &operands, &outs)
    };
    check(&good).unwrap();
    let mut swapped = good.clone();
    swapped.body.outputs.reverse();
    let mut short = good.clone();
    short.body.outputs.pop();
    let mut wide = good.clone();
    wide.condition.outputs = vec![Operand::Input(1)];
    let mut other = good.clone();
    other.condition.inputs.pop();
    let mut missing = good.clone();
    missing.body.outputs[0] = Operand::Result(9);
    for broken in [swapped, short, wide, other, missing] {
        let error = check(&broken).unwrap_err().to_string();
        assert!(error.contains("while"), "{error}");
    }
}
