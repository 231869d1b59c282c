//! Rows in registers.

use nx_vulkan_engine::kernels::rows::{Along, RowPort, RowsSpec};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::fused::{Computed, Made};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Reduction, Unary};
use nx_vulkan_spirv::modes::FloatModes;

use super::{Kernels, MODES, ROUNDED, binary, unary};

fn computed(step: Step, row: bool, phase: u32) -> Computed {
    Computed { made: Made::Step(step), row, phase }
}

fn reduced(reduction: Reduction, of: Ref, out: DType, phase: u32) -> Computed {
    Computed { made: Made::Reduction { reduction, tie_high: false, of, out }, row: true, phase }
}

fn softmax(dtype: DType) -> RowsSpec {
    let vectors = RowPort { dtype, along: Along::Vector, bounded: false };
    RowsSpec {
        kept_rank: 1,
        row_rank: 1,
        inputs: vec![vectors],
        values: vec![
            reduced(Reduction::Max, Ref::Input(0), dtype, 1),
            computed(binary(Binary::Subtract, Ref::Input(0), Ref::Result(0), dtype), false, 1),
            computed(unary(Unary::Exp, Ref::Result(1), dtype), false, 1),
            reduced(Reduction::Sum, Ref::Result(2), dtype, 2),
            computed(binary(Binary::Divide, Ref::Result(2), Ref::Result(3), dtype), false, 2),
        ],
        outputs: vec![(Ref::Result(4), vectors)],
        width: 4,
        items: 1,
        team: 128,
        columns: false,
        full: false,
        exact: false,
    }
}

#[test]
fn rows() {
    let mut kernels = Kernels::of("rows");
    let f32s = |along| RowPort { dtype: DType::F32, along, bounded: false };
    // Each row without its mean, and the mean.
    let centred = RowsSpec {
        kept_rank: 1,
        row_rank: 1,
        inputs: vec![f32s(Along::Vector)],
        values: vec![
            reduced(Reduction::Sum, Ref::Input(0), DType::F32, 1),
            computed(
                binary(
                    Binary::Multiply,
                    Ref::Result(0),
                    Ref::Constant(DType::F32, 0.125f32.to_bits().into()),
                    DType::F32,
                ),
                true,
                1,
            ),
            computed(binary(Binary::Subtract, Ref::Input(0), Ref::Result(1), DType::F32), false, 1),
        ],
        outputs: vec![(Ref::Result(2), f32s(Along::Vector)), (Ref::Result(1), f32s(Along::Row))],
        width: 4,
        items: 1,
        team: 32,
        columns: false,
        full: true,
        exact: false,
    };
    kernels.add("centred", |l, m| centred.generate(l, m));
    let columns = RowsSpec {
        inputs: vec![f32s(Along::Strided)],
        outputs: vec![(Ref::Result(2), f32s(Along::Strided))],
        width: 1,
        items: 2,
        team: 8,
        columns: true,
        full: false,
        ..centred
    };
    kernels.add("centred_columns", |l, m| columns.generate(l, m));
    kernels.add_for("softmax", ROUNDED, |l, m| softmax(DType::F32).generate(l, m));
    // By short forms, and again where something is rare.
    let short = FloatModes { nearest: true, fused: true, ..MODES };
    kernels.add_for("softmax_bf16", short, |l, m| softmax(DType::Bf16).generate(l, m));
    kernels.compare();
}
