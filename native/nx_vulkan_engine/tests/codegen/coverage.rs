//! Every op stands in every table: the rules, the reference, the wire form, the code generator.

use std::collections::BTreeSet;
use std::sync::Arc;

use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_engine::tuning::{LOCAL_SIZES, SHARING};
use nx_vulkan_ir::program::ops::{Sample, accepts, result_dtype, samples};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::workgroup::supports_op;
use nx_vulkan_ir::program::{Binary, Elementwise, Instruction, Linalg, Op, Operand, Program, Transform, Unary, passes};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::workgroup::{self, Keyed, Mode, WorkgroupSpec};
use smallvec::smallvec;

#[test]
fn every_op_has_a_reference() {
    for (name, Sample { op, operands, outs }) in samples() {
        let ones: Vec<Array> = operands
            .iter()
            .map(|ty| Array::new(ty, std::iter::repeat_n(Value::Int(1), ty.elements() as usize)))
            .collect();
        let results = reference::evaluate_all(&op, &ones, &outs).unwrap();
        assert!(results.iter().map(|a| a.values.len() as u64).eq(outs.iter().map(Type::elements)), "{name}");
    }
}

#[test]
fn what_one_workgroup_runs_has_code_there() {
    let library = Library::builtin().unwrap();
    let mut ops = 0;
    for (name, Sample { op, operands, outs }) in samples() {
        if !supports_op(&op, &operands.iter().collect::<Vec<_>>(), &outs) {
            continue;
        }
        let inputs: Vec<Type> = operands.clone();
        let operands = (0..operands.len() as u32).map(Operand::Input).collect();
        let outputs = (0..outs.len() as u32).map(Operand::Result).collect();
        let instructions = vec![Instruction { op, operands, outs: outs.into() }];
        let program = passes::for_workgroup(Program { inputs, instructions, outputs }).unwrap();
        let ports = program.inputs.iter().map(|ty| workgroup::Port::contiguous(&ty.shape, false)).collect();
        let spec = WorkgroupSpec {
            ports,
            local_size: WorkgroupSpec::local_size(&program, Mode::Once, LOCAL_SIZES, 1024),
            program: Keyed::new(Arc::new(program)),
            mode: Mode::Once,
            shared_bytes: 32 << 10,
            subgroup: LOCAL_SIZES.subgroup,
        };
        spec.generate(library, FloatModes::NONE).unwrap_or_else(|e| panic!("{name}: {e}"));
        ops += 1;
    }
    assert!(ops > 80, "{ops}");
}

#[test]
fn matrix_ops_have_a_wire_form() {
    for transform in [Transform::None, Transform::Transpose, Transform::Conjugate] {
        for (lower, left_side) in [(true, false), (false, true)] {
            let op = Op::from(Linalg::TriangularSolve { lower, left_side, transform });
            assert_eq!(Op::from_wire(op.name(), &op.attrs()).unwrap(), op);
        }
    }
    for op in [Linalg::Cholesky, Linalg::Lu, Linalg::Solve, Linalg::Determinant].map(Op::from) {
        assert_eq!(Op::from_wire(op.name(), &op.attrs()).unwrap(), op);
    }
    assert!(Op::from_wire("triangular_solve", &[]).is_err());
}

#[test]
fn every_op_is_in_the_op_table() {
    let folders = ["ops/op_table", "runs/passes"].map(|name| format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR")));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let text: String = files.map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap()).collect();
    for (name, Sample { op, .. }) in samples() {
        // As the source makes it: `Op::Kind`, or of those of a family `Op::from(Kind`.
        let shown = format!("{op:?}");
        let kind = match shown.split(['(', ')', ' ']).collect::<Vec<_>>()[..] {
            [_, kind, own, ..] if kind == own => format!("Op::from({kind}"),
            [_, "Linalg", ..] => "Linalg::".to_string(),
            [kind, ..] => format!("Op::{kind}"),
            [] => String::new(),
        };
        assert!(text.contains(&kind), "{name}: {kind}");
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
            shift: None,
            sharing: SHARING,
        };
        spec.generate(library, modes).unwrap_or_else(|e| panic!("{} {dtypes:?}: {e}", op.name()));
    }
    println!("{taken} ops and types; refused: {refused:?}");
}
