//! Rows in registers.

use nx_vulkan_engine::kernels::rows::{Along, RowPort, RowsSpec};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::fused::{Computed, Made};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Reduction, Unary};

use super::{Kernels, ROUNDED, binary, unary};

fn computed(step: Step, row: bool, phase: u32) -> Computed {
    Computed { made: Made::Step(step), row, phase }
}

fn reduced(reduction: Reduction, of: Ref, phase: u32) -> Computed {
    Computed { made: Made::Reduction { reduction, tie_high: false, of, out: DType::F32 }, row: true, phase }
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
            reduced(Reduction::Sum, Ref::Input(0), 1),
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
    let softmax = RowsSpec {
        kept_rank: 1,
        row_rank: 1,
        inputs: vec![f32s(Along::Vector)],
        values: vec![
            reduced(Reduction::Max, Ref::Input(0), 1),
            computed(binary(Binary::Subtract, Ref::Input(0), Ref::Result(0), DType::F32), false, 1),
            computed(unary(Unary::Exp, Ref::Result(1), DType::F32), false, 1),
            reduced(Reduction::Sum, Ref::Result(2), 2),
            computed(binary(Binary::Divide, Ref::Result(2), Ref::Result(3), DType::F32), false, 2),
        ],
        outputs: vec![(Ref::Result(4), f32s(Along::Vector))],
        width: 4,
        items: 1,
        team: 128,
        columns: false,
        full: false,
        exact: false,
    };
    kernels.add_for("softmax", ROUNDED, |l, m| softmax.generate(l, m));
    kernels.compare();
}
