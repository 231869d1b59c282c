//! Kernels of which there are few: views, indices, scans, sorts, windows.

use nx_vulkan_engine::kernels::fold::FoldSpec;
use nx_vulkan_engine::kernels::index::{
    GatherSpec, ScatterSpec, SegmentAddSpec, SegmentPutSpec, SegmentStepsSpec, ShiftSpec, TakeSpec, TargetOrderSpec,
    TargetSpec,
};
use nx_vulkan_engine::kernels::scan::{ScanSpec, ScanStage};
use nx_vulkan_engine::kernels::sort::{Payload, SortSpec, Team};
use nx_vulkan_engine::kernels::transpose::{self, TransposeSpec};
use nx_vulkan_engine::kernels::window_scatter::{WindowScatterSpec, WindowStage};
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::function::{Function, ScalarStep, Scalars};
use nx_vulkan_ir::program::{Binary, Elementwise, Reduction};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::Kernels;

#[test]
fn others() {
    let mut kernels = Kernels::of("other");
    let word = Element::Raw(4);
    let tiles = TransposeSpec { element: word, batch_rank: 1, row_rank: 1, padded: 0, form: transpose::Route::Tiles };
    kernels.add("transpose", |l, m| tiles.generate(l, m));
    let padded = TransposeSpec { padded: 0b10, ..tiles };
    kernels.add("transpose_padded", |l, m| padded.generate(l, m));
    let blocks = TransposeSpec { element: Element::Raw(2), form: transpose::Route::Blocks { beside: 2 }, ..padded };
    kernels.add("transpose_blocks", |l, m| blocks.generate(l, m));
    let lines = TransposeSpec { element: Element::Raw(16), batch_rank: 3, row_rank: 0, ..padded };
    let lines = TransposeSpec { form: transpose::Route::Lines, ..lines };
    kernels.add("transpose_lines", |l, m| lines.generate(l, m));
    let gather = GatherSpec { element: word, index: DType::S32, components: 2, rest_rank: 1 };
    kernels.add("gather", |l, m| gather.generate(l, m));
    let take = TakeSpec { element: word, index: DType::U8, rank: 2 };
    kernels.add("take", |l, m| take.generate(l, m));
    for (name, puts) in [("slice", false), ("put_slice", true)] {
        let starts: SmallVec<[DType; 4]> = smallvec![DType::S64, DType::U16];
        let spec = ShiftSpec { element: word, starts, rank: 2, puts };
        kernels.add(name, |l, m| spec.generate(l, m));
    }
    for (name, add) in [("put", None), ("add", Some(DType::F32))] {
        let spec = ScatterSpec {
            add,
            element: if add.is_some() { Element::Typed(DType::F32) } else { word },
            update: if add.is_some() { Element::Typed(DType::F32) } else { word },
            index: DType::S32,
            components: 1,
            rest_rank: 1,
        };
        kernels.add(&format!("indexed_{name}"), |l, m| spec.generate(l, m));
    }
    let targets = TargetSpec { index: DType::S32, components: 2 };
    kernels.add("targets", |l, m| targets.generate(l, m));
    let order = TargetOrderSpec { index: DType::S32, components: 1 };
    kernels.add("target_order", |l, m| order.generate(l, m));
    let put = SegmentPutSpec { element: word, update: word, carried: false, rest_rank: 1 };
    kernels.add("segment_put", |l, m| put.generate(l, m));
    let sums =
        SegmentAddSpec { out: DType::F32, update: DType::F32, sums: false, carried: true, last: true, rest_rank: 1 };
    kernels.add("segment_add", |l, m| sums.generate(l, m));
    let steps = SegmentStepsSpec { out: DType::F32, update: DType::F32, rest_rank: 1 };
    kernels.add("segment_steps", |l, m| steps.generate(l, m));
    for (name, stage) in [("whole", ScanStage::Whole), ("totals", ScanStage::Totals), ("apply", ScanStage::Apply)] {
        let spec = ScanSpec { reduction: Reduction::Sum, dtype: DType::F32, stage, shuffled: false, fours: false };
        kernels.add(&format!("scan_{name}"), |l, m| spec.generate(l, m));
    }
    let spec =
        ScanSpec { reduction: Reduction::Sum, dtype: DType::F32, stage: ScanStage::Apply, shuffled: true, fours: true };
    kernels.add("scan_shuffled", |l, m| spec.generate(l, m));
    let payload = Payload { places: false, values: true, ranks: true };
    let team = Team::largest(32, 1024);
    for (name, spec) in [
        ("sort_rows", SortSpec::Rows { bytes: 4, payload }),
        ("sort_count", SortSpec::Count { bytes: 4 }),
        ("sort_scatter_ranked", SortSpec::ScatterRanked { bytes: 8, payload, team }),
        ("sort_rows_ranked", SortSpec::RowsRanked { bytes: 4, payload, team }),
    ] {
        kernels.add(name, |l, m| spec.generate(l, m));
    }
    let extremes = WindowScatterSpec { stage: WindowStage::Choose { max: true, input: DType::F32 }, rank: 1 };
    kernels.add("window_choose", |l, m| extremes.generate(l, m));
    let gathered = WindowStage::Gather { source: DType::F32, initial: DType::F32, out: DType::F32 };
    kernels.add("window_gather", |l, m| WindowScatterSpec { stage: gathered, rank: 1 }.generate(l, m));
    // acc + x * x
    let scalar = |op, args: &[u16]| ScalarStep {
        op: Scalars::Elementwise(Elementwise::Binary(op)),
        args: args.into(),
        out: DType::F32,
    };
    let fold = FoldSpec {
        input: DType::F32,
        initial: DType::F32,
        captured: smallvec![],
        out: DType::F32,
        function: Box::new(Function {
            steps: vec![scalar(Binary::Multiply, &[0, 0]), scalar(Binary::Add, &[1, 2])],
            result: 3,
        }),
        kept_rank: 1,
        folded_rank: 1,
    };
    kernels.add("fold", |l, m| fold.generate(l, m));
    kernels.compare();
}
