//! Every op stands in every table: the rules, the reference, the wire form, the code generator.

use std::collections::BTreeSet;

use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_ir::program::attribute::{Axes, Scalar};
use nx_vulkan_ir::program::function::{Function, ScalarStep, Scalars};
use nx_vulkan_ir::program::ops::{accepts, result_dtype};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{
    Binary, Branches, Conv, Cumulative, Elementwise, Fourier, Instruction, Linalg, Loop, Op, Operand, Program,
    Reduction, Transform, Unary, Windows, verify,
};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

fn conv() -> Conv {
    Conv {
        strides: smallvec![1],
        padding: smallvec![(1, -2)],
        input_dilation: smallvec![2],
        kernel_dilation: smallvec![3],
        feature_groups: 1,
        batch_groups: 1,
        input_axes: axes(&[0, 1, 2]),
        kernel_axes: axes(&[0, 1, 2]),
        output_axes: axes(&[0, 1, 2]),
    }
}

/// acc + 0.5 captured
fn function() -> Box<Function> {
    let step = |op, args: &[u16]| ScalarStep { op, args: args.into(), out: DType::F32 };
    let binary = |op| Scalars::Elementwise(Elementwise::Binary(op));
    let half = Scalars::Constant(0.5f32.to_bits().into());
    let steps = vec![step(half, &[]), step(binary(Binary::Multiply), &[3, 2]), step(binary(Binary::Add), &[1, 4])];
    Box::new(Function { steps, result: 5 })
}

fn pools() -> Windows {
    Windows { dilations: smallvec![1, 1], ..windows() }
}

fn windows() -> Windows {
    Windows {
        sizes: smallvec![2, 1],
        padding: smallvec![(0, 1), (1, -1)],
        strides: smallvec![2, 1],
        dilations: smallvec![2, 1],
    }
}

/// One instruction of each kind of op: op, operands, result.
fn samples() -> Vec<(Op, Vec<Type>, Type)> {
    let f = |shape: &[u64]| Type::new(DType::F32, shape);
    let i = |shape: &[u64]| Type::new(DType::S32, shape);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0]), tie_high: false };
    let dot = Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[0]), batch_b: axes(&[]) };
    let slice = Op::Slice { starts: smallvec![Some(1), None], strides: smallvec![1, 2], lengths: smallvec![1, 3] };
    vec![
        (Op::Unary(Unary::Exp), vec![f(&[2, 3])], f(&[2, 3])),
        (Op::Binary(Binary::Add), vec![f(&[2, 3]), f(&[3])], f(&[2, 3])),
        (Op::Select, vec![i(&[3]), f(&[2, 3]), f(&[])], f(&[2, 3])),
        (Op::Clip, vec![f(&[2, 3]), f(&[]), f(&[])], f(&[2, 3])),
        (Op::AsType, vec![f(&[2, 3])], i(&[2, 3])),
        (Op::Bitcast, vec![f(&[2, 3])], i(&[2, 3])),
        (Op::Constant(Scalar::Float(0.5)), vec![], f(&[2])),
        (Op::Iota { axis: Some(1) }, vec![], i(&[2, 3])),
        (Op::Eye, vec![], f(&[2, 3])),
        (Op::Reshape, vec![f(&[2, 3])], f(&[3, 2])),
        (Op::Squeeze, vec![f(&[2, 1])], f(&[2])),
        (Op::Broadcast { axes: axes(&[1]) }, vec![f(&[3])], f(&[2, 3])),
        (Op::Transpose { axes: axes(&[1, 0]) }, vec![f(&[2, 3])], f(&[3, 2])),
        (slice, vec![f(&[2, 3]), i(&[])], f(&[1, 2])),
        (Op::PutSlice { starts: smallvec![Some(0), None] }, vec![f(&[2, 3]), f(&[1, 2]), i(&[])], f(&[2, 3])),
        (Op::Pad { config: smallvec![(1, -1, 2)] }, vec![f(&[3]), f(&[])], f(&[7])),
        (Op::Reverse { axes: axes(&[0]) }, vec![f(&[3])], f(&[3])),
        (Op::Concatenate { axis: 0 }, vec![f(&[3]), f(&[2])], f(&[5])),
        (Op::Stack { axis: 1 }, vec![f(&[3]), f(&[3])], f(&[3, 2])),
        (sum, vec![f(&[2, 3])], f(&[3])),
        (dot, vec![f(&[2, 3]), f(&[3, 4])], f(&[2, 4])),
        (Op::Gather { axes: axes(&[0]) }, vec![f(&[2, 3]), i(&[4, 1])], f(&[4, 3])),
        (Op::IndexedAdd { axes: axes(&[0]) }, vec![f(&[2, 3]), i(&[4, 1]), f(&[4, 3])], f(&[2, 3])),
        (Op::IndexedPut { axes: axes(&[0]) }, vec![f(&[2, 3]), i(&[4, 1]), f(&[4, 3])], f(&[2, 3])),
        (Op::Window { reduction: Reduction::Sum, windows: windows() }, vec![f(&[5, 3])], f(&[2, 3])),
        (Op::Scan { scan: Cumulative::Sum, axis: 0, reverse: true }, vec![f(&[2, 3])], f(&[2, 3])),
        (Op::Conv(Box::new(conv())), vec![f(&[2, 4, 5]), f(&[3, 4, 2])], f(&[2, 3, 5])),
        (Op::Linalg(Linalg::Cholesky), vec![f(&[3, 3])], f(&[3, 3])),
        (Op::Sort { axis: 1, descending: true }, vec![f(&[2, 3])], f(&[2, 3])),
        (Op::Argsort { axis: 0, descending: false }, vec![f(&[2, 3])], i(&[2, 3])),
        (Op::Fold { axes: axes(&[0]), function: function() }, vec![f(&[2, 3]), i(&[]), i(&[])], f(&[3])),
        (Op::WindowFold { windows: windows(), function: function() }, vec![f(&[5, 3]), i(&[]), i(&[])], f(&[2, 3])),
        (Op::Take { axis: 1 }, vec![f(&[2, 3]), i(&[4, 5])], f(&[2, 4, 5])),
        (Op::TakeAlongAxis { axis: 1 }, vec![f(&[2, 3]), i(&[2, 5])], f(&[2, 5])),
        (Op::WindowScatter { max: true, windows: pools() }, vec![f(&[5, 3]), f(&[3, 3]), f(&[])], f(&[5, 3])),
        (
            Op::Fft { kind: Fourier::Fft, axis: 1, length: 5, eps: Scalar::Float(1e-10) },
            vec![f(&[2, 3])],
            Type::new(DType::C64, &[2, 5]),
        ),
        (Op::Fused(Box::new(negated_twice())), vec![f(&[2])], f(&[2])),
        (Op::After, vec![f(&[2]), i(&[3])], f(&[2])),
    ]
}

/// A program that gives one of its inputs.
fn gives(inputs: Vec<Type>, output: u32) -> Program {
    Program { inputs, outputs: vec![Operand::Input(output)], ..Program::default() }
}

/// A loop that stops where the captured number is 1.
fn never() -> Loop {
    let (state, number) = (Type::new(DType::F32, &[2]), Type::new(DType::U8, &[]));
    let inputs = vec![state, number.clone()];
    let not = Instruction {
        op: Op::Binary(Binary::Less),
        operands: smallvec![Operand::Input(1), Operand::Input(1)],
        outs: smallvec![number],
    };
    let condition = Program { instructions: vec![not], outputs: vec![Operand::Result(0)], ..gives(inputs.clone(), 0) };
    Loop::new(condition, gives(inputs, 0))
}

fn same() -> Branches {
    let program = gives(vec![Type::new(DType::F32, &[2])], 0);
    Branches { on_true: program.clone(), on_false: program }
}

fn negated_twice() -> Program {
    let ty = Type::new(DType::F32, &[2]);
    let negate = |operand| Instruction {
        op: Op::Unary(Unary::Negate),
        operands: smallvec![operand],
        outs: smallvec![ty.clone()],
    };
    let instructions = vec![negate(Operand::Input(0)), negate(Operand::Result(0))];
    Program { inputs: vec![ty.clone()], instructions, outputs: vec![Operand::Result(1)] }
}

/// The same for ops of several results.
fn samples_of_several() -> Vec<(Op, Vec<Type>, Vec<Type>)> {
    let f = |shape: &[u64]| Type::new(DType::F32, shape);
    let u = Type::new(DType::U8, &[]);
    vec![
        (Op::Qr { complete: false }, vec![f(&[3, 2])], vec![f(&[3, 2]), f(&[2, 2])]),
        (Op::TopK { k: 2 }, vec![f(&[2, 3])], vec![f(&[2, 2]), Type::new(DType::S32, &[2, 2])]),
        (Op::Eigh, vec![f(&[2, 2])], vec![f(&[2]), f(&[2, 2])]),
        (Op::Svd { full: false }, vec![f(&[3, 2])], vec![f(&[3, 2]), f(&[2]), f(&[2, 2])]),
        (Op::While(Box::new(never())), vec![f(&[2]), u.clone()], vec![f(&[2])]),
        (Op::Cond(Box::new(same())), vec![u, f(&[2])], vec![f(&[2])]),
        (Op::Workgroup(Box::new(gives(vec![f(&[2])], 0))), vec![f(&[2])], vec![f(&[2])]),
    ]
}

/// Where `samples_of_several` begin among the kinds.
const SEVERAL: usize = 1000;

/// The place of an op's kind among `samples`. A new op needs an arm here, a sample, and a test in `op_table`.
fn kind(op: &Op) -> (usize, &'static str) {
    match op {
        Op::Unary(_) => (0, "Op::Unary("),
        Op::Binary(_) => (1, "Op::Binary("),
        Op::Select => (2, "Op::Select"),
        Op::Clip => (3, "Op::Clip"),
        Op::AsType => (4, "Op::AsType"),
        Op::Bitcast => (5, "Op::Bitcast"),
        Op::Constant(_) => (6, "Op::Constant("),
        Op::Iota { .. } => (7, "Op::Iota {"),
        Op::Eye => (8, "Op::Eye"),
        Op::Reshape => (9, "Op::Reshape"),
        Op::Squeeze => (10, "Op::Squeeze"),
        Op::Broadcast { .. } => (11, "Op::Broadcast {"),
        Op::Transpose { .. } => (12, "Op::Transpose {"),
        Op::Slice { .. } => (13, "Op::Slice {"),
        Op::PutSlice { .. } => (14, "Op::PutSlice {"),
        Op::Pad { .. } => (15, "Op::Pad {"),
        Op::Reverse { .. } => (16, "Op::Reverse {"),
        Op::Concatenate { .. } => (17, "Op::Concatenate {"),
        Op::Stack { .. } => (18, "Op::Stack {"),
        Op::Reduce { .. } => (19, "Op::Reduce {"),
        Op::Dot { .. } => (20, "Op::Dot {"),
        Op::Gather { .. } => (21, "Op::Gather {"),
        Op::IndexedAdd { .. } => (22, "Op::IndexedAdd {"),
        Op::IndexedPut { .. } => (23, "Op::IndexedPut {"),
        Op::Qr { .. } => (SEVERAL, "Op::Qr {"),
        Op::Eigh => (SEVERAL + 2, "Op::Eigh"),
        Op::Svd { .. } => (SEVERAL + 3, "Op::Svd {"),
        Op::Window { .. } => (24, "Op::Window {"),
        Op::Scan { .. } => (25, "Op::Scan {"),
        Op::Conv(_) => (26, "Op::Conv("),
        Op::Linalg(_) => (27, "Op::Linalg("),
        Op::Sort { .. } => (28, "Op::Sort {"),
        Op::Argsort { .. } => (29, "Op::Argsort {"),
        Op::Take { .. } => (32, "Op::Take {"),
        Op::TakeAlongAxis { .. } => (33, "Op::TakeAlongAxis {"),
        Op::TopK { .. } => (SEVERAL + 1, "Op::TopK {"),
        Op::Fold { .. } => (30, "Op::Fold {"),
        Op::WindowFold { .. } => (31, "Op::WindowFold {"),
        Op::WindowScatter { .. } => (34, "Op::WindowScatter {"),
        Op::Fft { .. } => (35, "Op::Fft {"),
        Op::While(_) => (SEVERAL + 4, "Op::While("),
        Op::Cond(_) => (SEVERAL + 5, "Op::Cond("),
        Op::Fused(_) => (36, "Op::Fused("),
        Op::After => (37, "Op::After"),
        Op::Workgroup(_) => (SEVERAL + 6, "Op::Workgroup("),
    }
}

#[test]
fn every_op_has_rules_a_reference_and_a_wire_form() {
    let single = samples().into_iter().map(|(op, operands, out)| (op, operands, vec![out])).enumerate();
    for (n, (op, operands, outs)) in single.chain((SEVERAL..).zip(samples_of_several())) {
        assert_eq!(kind(&op).0, n, "{op:?}");
        verify::instruction(&op, &operands.iter().collect::<Vec<_>>(), &outs).unwrap();
        let ones: Vec<Array> = operands
            .iter()
            .map(|ty| Array::new(ty, std::iter::repeat_n(Value::Int(1), ty.elements() as usize)))
            .collect();
        let results = reference::evaluate_all(&op, &ones, &outs).unwrap();
        assert!(results.iter().map(|a| a.values.len() as u64).eq(outs.iter().map(Type::elements)), "{op:?}");
        assert_eq!(Op::from_wire(op.name(), &op.attrs()).unwrap(), op);
    }
}

#[test]
fn matrix_ops_have_a_wire_form() {
    for transform in [Transform::None, Transform::Transpose, Transform::Conjugate] {
        for (lower, left_side) in [(true, false), (false, true)] {
            let op = Op::Linalg(Linalg::TriangularSolve { lower, left_side, transform });
            assert_eq!(Op::from_wire(op.name(), &op.attrs()).unwrap(), op);
        }
    }
    for op in [Linalg::Cholesky, Linalg::Lu, Linalg::Solve, Linalg::Determinant].map(Op::Linalg) {
        assert_eq!(Op::from_wire(op.name(), &op.attrs()).unwrap(), op);
    }
    assert!(Op::from_wire("triangular_solve", &[]).is_err());
}

#[test]
fn every_op_is_in_the_op_table() {
    let folders = ["ops/op_table", "runs/passes"].map(|name| format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR")));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let text: String = files.map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap()).collect();
    let several = samples_of_several().into_iter().map(|(op, ..)| op);
    for op in samples().into_iter().map(|(op, ..)| op).chain(several) {
        assert!(text.contains(kind(&op).1), "{op:?}");
    }
}

/// The elementwise ops with the types of their operands, all the same.
fn elementwise() -> impl Iterator<Item = (Elementwise, Vec<DType>)> {
    let unary = Unary::ALL.iter().map(|&op| Elementwise::Unary(op));
    let binary = Binary::ALL.iter().map(|&op| Elementwise::Binary(op));
    let others = [Elementwise::Select, Elementwise::Clip, Elementwise::AsType];
    let ops: Vec<Elementwise> = unary.chain(binary).chain(others).collect();
    ops.into_iter().flat_map(|op| DType::ALL.map(|dtype| (op, vec![dtype; op.arity()])))
}

/// What the rules accept has a kernel and a reference; what they refuse for every result type has no reference.
#[test]
fn rules_reference_and_generator_take_the_same_types() {
    let library = Library::builtin().unwrap();
    let modes = FloatModes { preserve_f32: true, preserve_f64: true, ..FloatModes::NONE };
    let (mut taken, mut refused) = (0, BTreeSet::new());
    for (op, dtypes) in elementwise() {
        let arrays: Vec<Array> = dtypes.iter().map(|&t| Array::new(&Type::new(t, &[1]), [Value::Int(1)])).collect();
        let Some(out) = result_dtype(op, &dtypes) else {
            for out in DType::ALL.into_iter().filter(|&out| !accepts(op, &dtypes, out)) {
                assert!(reference::evaluate(&Op::from(op), &arrays, &Type::new(out, &[1])).is_err());
            }
            refused.insert(format!("{} {}", op.name(), dtypes[0]));
            continue;
        };
        taken += 1;
        reference::evaluate(&Op::from(op), &arrays, &Type::new(out, &[1]))
            .unwrap_or_else(|e| panic!("{dtypes:?}: {e}"));
        let port = |dtype| Port { element: Element::Typed(dtype), layout: Layout::Contiguous };
        let spec = Spec {
            inputs: dtypes.iter().map(|&t| port(t)).collect(),
            steps: smallvec![Step { op, args: (0..dtypes.len() as u8).map(Ref::Input).collect(), out }],
            outputs: smallvec![(Ref::Result(0), port(out))],
            rank: 1,
            width: 1,
            form: Form::Vectors,
            fixed: None,
            numbers: Default::default(),
        };
        spec.generate(library, modes).unwrap_or_else(|e| panic!("{} {dtypes:?}: {e}", op.name()));
    }
    println!("{taken} ops and types; refused: {refused:?}");
}
