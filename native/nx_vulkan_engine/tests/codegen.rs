//! Generated kernels assemble and pass spirv-val, for every op and type.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use nx_vulkan_engine::codegen::access::{Element, Layout};
use nx_vulkan_engine::codegen::elementwise::{Port, Ref, Spec, Step};
use nx_vulkan_engine::codegen::library::Library;
use nx_vulkan_engine::codegen::link::FloatModes;
use nx_vulkan_engine::codegen::reduce::{Direction, ReduceSpec, Stage};
use nx_vulkan_engine::program::{Binary, Elementwise, Reduction, Unary};
use nx_vulkan_engine::{DType, Error};
use smallvec::smallvec;

const MODES: FloatModes = FloatModes { preserve_f32: true, preserve_f64: true, fused: false };

/// Runs spirv-val on a module; `None` where the tool is not installed.
fn spirv_val(words: &[u32]) -> Option<Result<(), String>> {
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.2", "--scalar-block-layout", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout))
    })
}

fn check(what: &str, words: &[u32]) {
    if let Some(Err(message)) = spirv_val(words) {
        std::fs::write(
            std::env::temp_dir().join("nx_vulkan_bad_kernel.spv"),
            words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>(),
        )
        .unwrap();
        panic!("{what}: {message}");
    }
}

fn spec(op: Elementwise, inputs: &[DType], out: DType, layout: Layout, rank: u8) -> Spec {
    Spec {
        inputs: inputs.iter().map(|&t| Port { element: Element::Typed(t), layout }).collect(),
        steps: smallvec![Step { op, args: (0..inputs.len() as u8).map(Ref::Input).collect(), out }],
        outputs: smallvec![(Ref::Result(0), Port { element: Element::Typed(out), layout: Layout::Contiguous })],
        rank,
        width: 1,
    }
}

/// The type that Nx gives the result of a unary op.
fn unary_out(op: Unary, a: DType) -> DType {
    match op {
        Unary::IsNan | Unary::IsInfinity => DType::U8,
        Unary::Abs | Unary::Real | Unary::Imag if a.is_complex() => {
            if a == DType::C128 {
                DType::F64
            } else {
                DType::F32
            }
        }
        Unary::Real | Unary::Imag if a.is_integer() => DType::F32,
        Unary::Conjugate if !a.is_complex() => {
            if a == DType::F64 {
                DType::C128
            } else {
                DType::C64
            }
        }
        Unary::Abs
        | Unary::BitwiseNot
        | Unary::Ceil
        | Unary::Floor
        | Unary::Negate
        | Unary::Round
        | Unary::Sign
        | Unary::CountLeadingZeros
        | Unary::PopulationCount
        | Unary::Real
        | Unary::Imag
        | Unary::Conjugate => a,
        _ if a.is_integer() => DType::F32,
        _ => a,
    }
}

fn applies(op: Unary, a: DType) -> bool {
    match op {
        Unary::BitwiseNot | Unary::CountLeadingZeros | Unary::PopulationCount => a.is_integer(),
        Unary::Ceil
        | Unary::Floor
        | Unary::Round
        | Unary::Erf
        | Unary::Erfc
        | Unary::ErfInv
        | Unary::Cbrt
        | Unary::Sign => !a.is_complex(),
        _ => true,
    }
}

#[test]
fn every_op_and_type_generates_a_valid_kernel() {
    let library = Library::builtin().unwrap();
    let mut missing = BTreeSet::new();
    let mut generated = 0;
    let mut try_one = |what: String, spec: Spec, validate: bool| match spec.generate(library, MODES) {
        Ok(kernel) => {
            generated += 1;
            if validate {
                check(&what, &kernel.words);
            }
        }
        Err(Error::Unsupported { op, .. }) if op.starts_with("nx_") => {
            missing.insert(op);
        }
        Err(e) => panic!("{what}: {e}"),
    };
    for (i, &op) in Unary::ALL.iter().enumerate() {
        for (j, t) in DType::ALL.into_iter().enumerate() {
            if applies(op, t) {
                let out = unary_out(op, t);
                try_one(
                    format!("{} {t}", op.name()),
                    spec(Elementwise::Unary(op), &[t], out, Layout::Strided, 3),
                    (i + j) % 5 == 0,
                );
            }
        }
    }
    for (i, &op) in Binary::ALL.iter().enumerate() {
        for (j, t) in DType::ALL.into_iter().enumerate() {
            let integer_only = matches!(
                op,
                Binary::Quotient
                    | Binary::BitwiseAnd
                    | Binary::BitwiseOr
                    | Binary::BitwiseXor
                    | Binary::LeftShift
                    | Binary::RightShift
            );
            let ordered = matches!(
                op,
                Binary::Min
                    | Binary::Max
                    | Binary::Remainder
                    | Binary::Greater
                    | Binary::Less
                    | Binary::GreaterEqual
                    | Binary::LessEqual
                    | Binary::Atan2
            );
            if (integer_only && !t.is_integer()) || (ordered && t.is_complex()) {
                continue;
            }
            let out = if op.is_predicate() {
                DType::U8
            } else if matches!(op, Binary::Divide | Binary::Atan2) && t.is_integer() {
                DType::F32
            } else {
                t
            };
            try_one(
                format!("{} {t}", op.name()),
                spec(Elementwise::Binary(op), &[t, t], out, Layout::Contiguous, 1),
                (i + j) % 5 == 0,
            );
        }
    }
    for a in DType::ALL {
        for b in DType::ALL {
            try_one(
                format!("as_type {a} {b}"),
                spec(Elementwise::AsType, &[a], b, Layout::Contiguous, 1),
                (a as usize + b as usize).is_multiple_of(7),
            );
        }
    }
    println!("{generated} kernels");
    println!("missing: {missing:?}");
}

#[test]
fn vector_kernels_are_valid() {
    let library = Library::builtin().unwrap();
    for t in [DType::U8, DType::S16, DType::Bf16, DType::F32, DType::S64] {
        let mut spec = spec(Elementwise::Binary(Binary::Add), &[t, t], t, Layout::Contiguous, 1);
        spec.width = spec.widest();
        assert!(spec.width > 1, "{t}");
        check(&format!("add {t}"), &spec.generate(library, MODES).unwrap().words);
    }
}

#[test]
fn many_parameters_go_through_a_table() {
    let library = Library::builtin().unwrap();
    let spec = spec(Elementwise::Select, &[DType::U8, DType::F32, DType::F32], DType::F32, Layout::Strided, 6);
    let kernel = spec.generate(library, MODES).unwrap();
    assert!(kernel.table);
    check("select of rank 6", &kernel.words);
}

#[test]
fn reductions_are_valid() {
    let library = Library::builtin().unwrap();
    for &reduction in Reduction::ALL {
        for (input, out) in
            [(DType::F32, DType::F32), (DType::U8, DType::U32), (DType::S64, DType::S64), (DType::Bf16, DType::Bf16)]
        {
            let out = match reduction {
                Reduction::All | Reduction::Any => DType::U8,
                Reduction::ArgMax | Reduction::ArgMin => DType::S32,
                _ => out,
            };
            for stage in [Stage::Whole, Stage::First, Stage::Last] {
                for direction in [Direction::Rows { width: 1 }, Direction::Columns] {
                    let spec = ReduceSpec {
                        reduction,
                        tie_high: false,
                        input,
                        out,
                        stage,
                        direction,
                        kept_rank: 2,
                        reduced_rank: 1,
                    };
                    let kernel = spec.generate(library, MODES).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
                    check(&format!("{spec:?}"), &kernel.words);
                }
            }
        }
    }
    let spec = ReduceSpec {
        reduction: Reduction::Sum,
        tie_high: false,
        input: DType::F32,
        out: DType::F32,
        stage: Stage::First,
        direction: Direction::Rows { width: 4 },
        kept_rank: 1,
        reduced_rank: 1,
    };
    check("sum f32 v4", &spec.generate(library, MODES).unwrap().words);
}
