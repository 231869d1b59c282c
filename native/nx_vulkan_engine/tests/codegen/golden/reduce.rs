//! Reductions.

use nx_vulkan_engine::kernels::reduce::{Direction, Producer, ReduceEpilogue, ReduceSpec, Stage};
use nx_vulkan_engine::kernels::rows::{Along, RowPort};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::Ref;
use nx_vulkan_ir::program::{Binary, Reduction};
use smallvec::smallvec;

use super::{Kernels, binary};

fn reducer(reduction: Reduction, input: DType, out: DType) -> Reducer {
    Reducer { reduction, tie_high: false, input, out }
}

fn reduction(reducers: &[Reducer], stage: Stage, direction: Direction) -> ReduceSpec {
    ReduceSpec {
        reducers: reducers.into(),
        times: None,
        producer: None,
        epilogue: None,
        stage,
        direction,
        kept_rank: 1,
        reduced_rank: 1,
        paired: false,
    }
}

#[test]
fn reductions() {
    let mut kernels = Kernels::of("reduce");
    let sum = reducer(Reduction::Sum, DType::F32, DType::F32);
    let rows = |width| Direction::Rows { width };
    for (name, stage) in [("whole", Stage::Whole), ("first", Stage::First), ("last", Stage::Last)] {
        let spec = reduction(&[sum], stage, rows(1));
        kernels.add(&format!("sum_f32_{name}"), |l, m| spec.generate(l, m));
    }
    let wide = reduction(&[sum], Stage::First, rows(4));
    kernels.add("sum_f32_by_four", |l, m| wide.generate(l, m));
    for (name, in_teams) in [("columns", false), ("column_teams", true)] {
        let spec = reduction(&[sum], Stage::Whole, Direction::Columns { in_teams });
        kernels.add(&format!("sum_f32_{name}"), |l, m| spec.generate(l, m));
    }
    for (name, reduction_of, input, out) in [
        ("max_f32", Reduction::Max, DType::F32, DType::F32),
        ("argmin_f32", Reduction::ArgMin, DType::F32, DType::S32),
        ("all_u8", Reduction::All, DType::U8, DType::U8),
        ("sum_f64", Reduction::Sum, DType::F64, DType::F64),
        ("sum_s64", Reduction::Sum, DType::S64, DType::S64),
        ("product_c64", Reduction::Product, DType::C64, DType::C64),
    ] {
        let spec =
            reduction(&[reducer(reduction_of, input, out)], Stage::Whole, Direction::Columns { in_teams: false });
        kernels.add(name, |l, m| spec.generate(l, m));
    }
    let paired = ReduceSpec {
        paired: true,
        ..reduction(&[reducer(Reduction::Sum, DType::U8, DType::U32)], Stage::Whole, rows(4))
    };
    kernels.add("sum_u8_paired", |l, m| paired.generate(l, m));
    let times = ReduceSpec { times: Some(DType::F32), ..reduction(&[sum], Stage::Whole, rows(1)) };
    kernels.add("sum_of_products", |l, m| times.generate(l, m));
    // The largest element and the sum of the doubled ones, and of these the ratio to another operand.
    let several = ReduceSpec {
        producer: Some(Box::new(Producer {
            inputs: vec![RowPort { dtype: DType::F32, along: Along::Vector, bounded: false }],
            steps: vec![binary(Binary::Add, Ref::Input(0), Ref::Input(0), DType::F32)],
            values: smallvec![Ref::Input(0), Ref::Result(0)],
        })),
        epilogue: Some(Box::new(ReduceEpilogue {
            inputs: smallvec![DType::F32],
            steps: smallvec![binary(Binary::Multiply, Ref::Input(0), Ref::Input(2), DType::F32)],
            results: smallvec![(Ref::Result(0), DType::F32), (Ref::Input(1), DType::F32)],
            rank: 1,
        })),
        ..reduction(&[reducer(Reduction::Max, DType::F32, DType::F32), sum], Stage::Whole, rows(4))
    };
    kernels.add("several_with_steps", |l, m| several.generate(l, m));
    // Elements less the reciprocal of a number of their column.
    let port = |along| RowPort { dtype: DType::F32, along, bounded: false };
    let centred = ReduceSpec {
        producer: Some(Box::new(Producer {
            inputs: vec![port(Along::Row), port(Along::Strided)],
            steps: vec![
                binary(Binary::Divide, Ref::Constant(DType::F32, 0x3f80_0000), Ref::Input(0), DType::F32),
                binary(Binary::Subtract, Ref::Input(1), Ref::Result(0), DType::F32),
            ],
            values: smallvec![Ref::Result(1)],
        })),
        ..reduction(&[sum], Stage::First, Direction::Columns { in_teams: true })
    };
    kernels.add("steps_in_common", |l, m| centred.generate(l, m));
    kernels.compare();
}
