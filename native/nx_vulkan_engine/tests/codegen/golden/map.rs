//! Elementwise ops, casts and copies.

use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_engine::tuning::SHARING;
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::smallvec;

use super::{Kernels, MODES, ROUNDED, binary};
use crate::kernels::spec;

fn port(dtype: DType, layout: Layout) -> Port {
    Port { element: Element::Typed(dtype), layout }
}

#[test]
fn maps() {
    let mut kernels = Kernels::of("map");
    let contiguous = |op, inputs: &[DType], out| spec(op, inputs, out, Layout::Contiguous, 1);
    let add = |t| contiguous(Elementwise::Binary(Binary::Add), &[t, t], t);
    for t in [DType::F32, DType::S64, DType::Bf16, DType::U8, DType::C64, DType::F8E4M3Fn] {
        kernels.add(&format!("add_{}", t.name()), |l, m| add(t).generate(l, m));
    }
    for t in [DType::F32, DType::Bf16] {
        for (name, form) in
            [("vectors", Form::Vectors), ("pairs", Form::Pairs), ("blocks", Form::Blocks { vectors: 8 })]
        {
            let spec = add(t);
            let width = if name == "blocks" { spec.block_width() } else { spec.widest(false) };
            let spec = Spec { form, width, ..spec };
            kernels.add(&format!("add_{}_{name}", t.name()), |l, m| spec.generate(l, m));
        }
    }
    let strided = spec(Elementwise::Binary(Binary::Multiply), &[DType::F32; 2], DType::F32, Layout::Strided, 3);
    kernels.add("multiply_strided", |l, m| strided.generate(l, m));
    // Results that lie as many elements behind their place as a step gives.
    let put = Spec {
        inputs: smallvec![port(DType::F32, Layout::Strided), port(DType::S32, Layout::Uniform)],
        steps: smallvec![
            binary(Binary::Multiply, Ref::Input(0), Ref::Input(0), DType::F32),
            Step { op: Elementwise::AsType, args: smallvec![Ref::Input(1)], out: DType::U32 },
        ],
        outputs: smallvec![(Ref::Result(0), port(DType::F32, Layout::Strided))],
        shift: Some(Ref::Result(1)),
        ..strided.clone()
    };
    kernels.add("put", |l, m| put.generate(l, m));
    let many = spec(Elementwise::Select, &[DType::U8, DType::F32, DType::F32], DType::F32, Layout::Strided, 6);
    kernels.add("select_of_rank_6", |l, m| many.generate(l, m));
    let clip = contiguous(Elementwise::Clip, &[DType::S32; 3], DType::S32);
    kernels.add("clip_s32", |l, m| clip.generate(l, m));
    let equal = contiguous(Elementwise::Binary(Binary::Equal), &[DType::F64; 2], DType::U8);
    kernels.add("equal_f64", |l, m| equal.generate(l, m));
    for (from, to) in
        [(DType::F32, DType::U8), (DType::F16, DType::F32), (DType::S64, DType::F32), (DType::U2, DType::S32)]
    {
        let spec = contiguous(Elementwise::AsType, &[from], to);
        kernels.add(&format!("as_type_{}_{}", from.name(), to.name()), |l, m| spec.generate(l, m));
    }
    let divide = contiguous(Elementwise::Binary(Binary::Divide), &[DType::F32; 2], DType::F32);
    kernels.add("divide_f32", |l, m| divide.generate(l, m));
    kernels.add_for("divide_f32_rounded", ROUNDED, |l, m| divide.generate(l, m));
    let sqrt = contiguous(Elementwise::Unary(Unary::Sqrt), &[DType::F32], DType::F32);
    kernels.add_for("sqrt_f32_rounded", ROUNDED, |l, m| sqrt.generate(l, m));
    // GELU: functions, roundings and a quotient of bf16 of numbers that are known to be normal.
    let number = |x: f32| Ref::Constant(DType::F32, x.to_bits().into());
    let t = DType::Bf16;
    let gelu = Spec {
        steps: smallvec![
            binary(Binary::Divide, Ref::Input(0), number(std::f32::consts::SQRT_2), t),
            Step { op: Elementwise::Unary(Unary::Erf), args: smallvec![Ref::Result(0)], out: t },
            binary(Binary::Add, Ref::Result(1), number(1.0), t),
            binary(Binary::Multiply, Ref::Input(0), Ref::Result(2), t),
            binary(Binary::Multiply, Ref::Result(3), number(0.5), t),
        ],
        outputs: smallvec![(Ref::Result(4), port(t, Layout::Contiguous))],
        ..contiguous(Elementwise::Unary(Unary::Erf), &[t], t)
    };
    kernels.add_for("gelu_bf16", FloatModes { nearest: true, ..ROUNDED }, |l, m| gelu.generate(l, m));
    let floor = contiguous(Elementwise::Unary(Unary::Floor), &[DType::F64], DType::F64);
    kernels.add("floor_f64", |l, m| floor.generate(l, m));
    // Operands of every layout, a constant, and two results.
    let layouts = [Layout::Contiguous, Layout::Uniform, Layout::Inner, Layout::Repeated, Layout::Each, Layout::Bounded];
    let several = Spec {
        inputs: layouts.iter().map(|&layout| port(DType::F32, layout)).collect(),
        steps: (1..6)
            .map(|k| {
                binary(
                    Binary::Add,
                    if k == 1 { Ref::Input(0) } else { Ref::Result(u16::from(k) - 2) },
                    Ref::Input(k),
                    DType::F32,
                )
            })
            .chain([binary(
                Binary::Multiply,
                Ref::Result(4),
                Ref::Constant(DType::F32, 0.5f32.to_bits().into()),
                DType::F32,
            )])
            .collect(),
        outputs: smallvec![
            (Ref::Result(4), port(DType::F32, Layout::Contiguous)),
            (Ref::Result(5), port(DType::F32, Layout::Strided))
        ],
        rank: 2,
        width: 4,
        form: Form::Vectors,
        fixed: None,
        numbers: Default::default(),
        shift: None,
        sharing: SHARING,
    };
    kernels.add("layouts", |l, m| several.generate(l, m));
    let places = Spec {
        inputs: smallvec![],
        steps: smallvec![binary(Binary::Subtract, Ref::Coordinate(0), Ref::Linear, DType::S32)],
        outputs: smallvec![(Ref::Result(0), port(DType::S32, Layout::Contiguous))],
        rank: 2,
        width: 1,
        form: Form::Vectors,
        fixed: None,
        numbers: Default::default(),
        shift: None,
        sharing: SHARING,
    };
    kernels.add("places", |l, m| places.generate(l, m));
    // What is in doubt is listed, and computed exactly.
    let step = |op, arg| Step { op, args: smallvec![arg], out: DType::F32 };
    let listed = Spec {
        steps: smallvec![step(Elementwise::AsType, Ref::Linear), step(Elementwise::Unary(Unary::Log), Ref::Result(0))],
        outputs: smallvec![(Ref::Result(1), port(DType::F32, Layout::Contiguous))],
        rank: 1,
        width: 4,
        ..places.clone()
    };
    let fused = FloatModes { fused: true, ..MODES };
    kernels.add_for("log_of_numbers", fused, |l, m| listed.generate(l, m));
    let few = Spec { width: 1, form: Form::Exact, ..listed.clone() };
    kernels.add_for("log_of_few_numbers", fused, |l, m| few.generate(l, m));
    let by_constant = Spec {
        steps: smallvec![binary(
            Binary::Divide,
            Ref::Input(0),
            Ref::Constant(DType::F32, 0.9f32.to_bits().into()),
            DType::F32
        )],
        ..contiguous(Elementwise::Binary(Binary::Divide), &[DType::F32], DType::F32)
    };
    kernels.add_for("divide_by_constant_f32", fused, |l, m| by_constant.generate(l, m));
    let copy = Spec {
        inputs: smallvec![Port { element: Element::Raw(16), layout: Layout::Strided }],
        steps: smallvec![],
        outputs: smallvec![(Ref::Input(0), Port { element: Element::Raw(16), layout: Layout::Contiguous })],
        ..places
    };
    kernels.add("copy_of_16_bytes", |l, m| copy.generate(l, m));
    kernels.compare();
}
