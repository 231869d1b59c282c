//! Listings of generated kernels, in `tests/golden`: what a change of the generator does to them is seen as a
//! difference of text.
//!
//! `NX_VULKAN_UPDATE_GOLDEN=1` writes them anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nx_vulkan_engine::kernels::attention::{
    AttentionSpec, AttentionTile, GradientSpec, MergeSpec, QuerySpec, QueryTile, Read, ScoreSpec,
};
use nx_vulkan_engine::kernels::dot::{
    Access, DerivedSpec, DotSpec, EpilogueSpec, LaneTile, Load, MatrixTile, Planes, Span, SplitSpec, SplitStage,
    Spread, Store, Tile, Tiling, VectorTile,
};
use nx_vulkan_engine::kernels::fold::FoldSpec;
use nx_vulkan_engine::kernels::index::{
    GatherSpec, ScatterSpec, SegmentAddSpec, SegmentPutSpec, SegmentStepsSpec, ShiftSpec, TakeSpec, TargetOrderSpec,
    TargetSpec,
};
use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_engine::kernels::reduce::{Direction, Producer, ReduceEpilogue, ReduceSpec, Stage};
use nx_vulkan_engine::kernels::rows::{Along, RowPort, RowsSpec};
use nx_vulkan_engine::kernels::scan::{ScanSpec, ScanStage};
use nx_vulkan_engine::kernels::sort::{Payload, SortSpec, Team};
use nx_vulkan_engine::kernels::transpose::{self, TransposeSpec};
use nx_vulkan_engine::kernels::window_scatter::{WindowScatterSpec, WindowStage};
use nx_vulkan_ir::program::attention_gradient::By;
use nx_vulkan_ir::program::function::{Function, ScalarStep, Scalars};
use nx_vulkan_ir::program::fused::{Computed, Made};
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::{Prologue, Ref, Step};
use nx_vulkan_ir::program::{Binary, Builder, Elementwise, Program, Reduction, Unary};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::workgroup::{self, Keyed, Mode, WorkgroupSpec};
use smallvec::{SmallVec, smallvec};

use crate::kernels::check_lowered;
use crate::listing::listing;

const MODES: FloatModes = FloatModes { preserve_f32: true, preserve_f64: true, ..FloatModes::NONE };
/// Those of a GPU whose quotients and roots are rounded.
const ROUNDED: FloatModes = FloatModes { fused: true, rounded: true, ..MODES };

/// Kernels of one family by name.
struct Kernels {
    family: &'static str,
    all: Vec<(String, String)>,
}

impl Kernels {
    fn of(family: &'static str) -> Kernels {
        Kernels { family, all: Vec::new() }
    }

    fn add(&mut self, name: &str, generate: impl Fn(&Library, FloatModes) -> Result<Generated>) {
        self.add_for(name, MODES, generate);
    }

    fn add_for(&mut self, name: &str, modes: FloatModes, generate: impl Fn(&Library, FloatModes) -> Result<Generated>) {
        let kernel = generate(Library::builtin().unwrap(), modes).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_lowered(&format!("{} {name}", self.family), &kernel.words);
        let mut text = String::new();
        let place = if kernel.table { "a table" } else { "push constants" };
        writeln!(text, "; parameters in {place}: {:?}", kernel.params.words).unwrap();
        if self.family != "workgroup" {
            writeln!(text, "; elements of a workgroup: {}", kernel.elements_per_group).unwrap();
        } else {
            writeln!(text, "; bytes of scratch memory: {}", kernel.elements_per_group).unwrap();
        }
        text.push_str(&listing(&kernel.words));
        self.all.push((format!("{}_{name}.spvasm", self.family), text));
    }

    /// Compares them with the folder, or writes them there.
    fn compare(self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        if std::env::var("NX_VULKAN_UPDATE_GOLDEN").is_ok_and(|value| value == "1") {
            std::fs::create_dir_all(&folder).unwrap();
            for old in listed(&folder, self.family) {
                std::fs::remove_file(folder.join(old)).unwrap();
            }
            for (name, text) in &self.all {
                std::fs::write(folder.join(name), text).unwrap();
            }
            return;
        }
        let differences: Vec<String> = self
            .all
            .iter()
            .filter_map(|(name, text)| {
                let kept = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
                (kept != *text).then(|| format!("{name}: {}", difference(&kept, text)))
            })
            .collect();
        assert!(
            differences.is_empty(),
            "kernels are not those of tests/golden; NX_VULKAN_UPDATE_GOLDEN=1 writes them anew, for `git diff`:\n{}",
            differences.join("\n")
        );
        let names: BTreeSet<String> = self.all.into_iter().map(|(name, _)| name).collect();
        assert_eq!(listed(&folder, self.family), names, "files of kernels that no test makes, or of two that are one");
    }
}

/// The files of a family.
fn listed(folder: &PathBuf, family: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.split('_').next() == Some(family))
        .collect()
}

/// The first lines that differ, and how many lines there are.
fn difference(kept: &str, made: &str) -> String {
    let at = kept.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
    let [was, is] = [kept, made].map(|text| text.lines().nth(at).unwrap_or("the end").to_owned());
    format!(
        "line {} is\n    {is}\n  not\n    {was}\n  ({} lines, not {})",
        at + 1,
        made.lines().count(),
        kept.lines().count()
    )
}

fn step(op: Elementwise, args: &[Ref], out: DType) -> Step {
    Step { op, args: args.into(), out }
}

fn unary(op: Unary, of: Ref, out: DType) -> Step {
    step(Elementwise::Unary(op), &[of], out)
}

fn binary(op: Binary, a: Ref, b: Ref, out: DType) -> Step {
    step(Elementwise::Binary(op), &[a, b], out)
}

fn port(dtype: DType, layout: Layout) -> Port {
    Port { element: Element::Typed(dtype), layout }
}

/// One op on operands of one layout.
fn map(op: Elementwise, inputs: &[DType], out: DType, layout: Layout, rank: u8) -> Spec {
    Spec {
        inputs: inputs.iter().map(|&t| port(t, layout)).collect(),
        steps: smallvec![Step { op, args: (0..inputs.len() as u8).map(Ref::Input).collect(), out }],
        outputs: smallvec![(Ref::Result(0), port(out, Layout::Contiguous))],
        rank,
        width: 1,
        form: Form::Vectors,
        fixed: None,
        numbers: Default::default(),
        shift: None,
    }
}

#[test]
fn maps() {
    let mut kernels = Kernels::of("map");
    let contiguous = |op, inputs: &[DType], out| map(op, inputs, out, Layout::Contiguous, 1);
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
    let strided = map(Elementwise::Binary(Binary::Multiply), &[DType::F32; 2], DType::F32, Layout::Strided, 3);
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
    let many = map(Elementwise::Select, &[DType::U8, DType::F32, DType::F32], DType::F32, Layout::Strided, 6);
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
    // GELU: functions, roundings and a quotient of bf16 where arithmetic keeps denormals.
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
    kernels.add_for("gelu_bf16", FloatModes { kept: true, ..ROUNDED }, |l, m| gelu.generate(l, m));
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
        rank: 2,
        width: 1,
        form: Form::Vectors,
        fixed: None,
        numbers: Default::default(),
        shift: None,
    };
    kernels.add("copy_of_16_bytes", |l, m| copy.generate(l, m));
    kernels.compare();
}

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

fn product(dtype: DType, sum: CType, tiling: Tiling) -> DotSpec {
    let load = Load { along_k: true, by_four: false };
    DotSpec {
        a: dtype,
        b: dtype,
        product: dtype,
        out: dtype,
        sum,
        a_ranks: [0, 1, 1],
        b_ranks: [0, 1, 1],
        a_load: load,
        b_load: Load { along_k: false, ..load },
        prologues: [None, None],
        derived: None,
        store: Store { rank: 0, contiguous: true, by_four: false, by_eight: false },
        tiling,
        guarded: false,
        low_b_first: false,
        ends_early: false,
        wide: false,
        epilogue: None,
    }
}

/// Adds a bias of each column, and takes nothing below zero.
fn dense() -> EpilogueSpec {
    EpilogueSpec {
        inputs: smallvec![(DType::F32, Access::Strided)],
        steps: smallvec![
            binary(Binary::Add, Ref::Input(0), Ref::Input(1), DType::F32),
            binary(Binary::Max, Ref::Result(0), Ref::Constant(DType::F32, 0), DType::F32),
        ],
        result: Ref::Result(1),
    }
}

#[test]
fn products() {
    let mut kernels = Kernels::of("dot");
    for (t, sum) in
        [(DType::F32, CType::F32), (DType::S32, CType::I32), (DType::C64, CType::C64), (DType::Bf16, CType::F32)]
    {
        let spec = product(t, sum, Tiling::Square);
        kernels.add(&format!("square_{}", t.name()), |l, m| spec.generate(l, m));
    }
    let narrow = product(DType::F64, CType::F64, Tiling::Narrow);
    kernels.add("narrow_f64", |l, m| narrow.generate(l, m));
    let lanes = product(DType::F32, CType::F32, Tiling::Lanes(LaneTile { rows: 8, vectors: 1 }));
    kernels.add("lanes_f32", |l, m| lanes.generate(l, m));
    let tile = VectorTile::all(2, true).next().unwrap();
    let vectors = product(DType::Bf16, CType::F32, Tiling::Vectors(tile));
    kernels.add("vectors_bf16", |l, m| vectors.generate(l, m));
    let gate = EpilogueSpec {
        inputs: smallvec![],
        steps: smallvec![binary(Binary::Multiply, Ref::Input(0), Ref::Input(1), DType::Bf16)],
        result: Ref::Result(0),
    };
    // Bytes with a scale for neighbours.
    let port = |dtype, layout| Port { element: Element::Typed(dtype), layout };
    let derived = DerivedSpec {
        inputs: smallvec![port(DType::S8, Layout::Each), port(DType::F16, Layout::Each)],
        steps: smallvec![
            Step { op: Elementwise::AsType, args: smallvec![Ref::Input(0)], out: DType::F32 },
            Step { op: Elementwise::AsType, args: smallvec![Ref::Input(1)], out: DType::F32 },
            binary(Binary::Multiply, Ref::Result(0), Ref::Result(1), DType::F32),
            Step { op: Elementwise::AsType, args: smallvec![Ref::Result(2)], out: DType::Bf16 },
        ],
        result: Ref::Result(3),
        axis: 4,
        ranks: [1, 1],
        spans: smallvec![Span { count: 16, is_whole: false }],
        lies: smallvec![smallvec![Spread::Near(16)], smallvec![Spread::Same]],
    };
    let by_four = Load { along_k: true, by_four: true };
    let scaled = DotSpec { b_load: by_four, derived: Some(Box::new(derived)), ..vectors.clone() };
    kernels.add("vectors_bf16_of_scaled_bytes", |l, m| scaled.generate(l, m));
    let tiling = Tiling::Vectors(tile.of_pair().unwrap());
    let pair = DotSpec { epilogue: Some(gate), ..product(DType::Bf16, CType::F32, tiling) };
    kernels.add("vectors_pair_bf16", |l, m| pair.generate(l, m));
    let epilogue = DotSpec {
        store: Store { rank: 2, contiguous: false, by_four: false, by_eight: false },
        epilogue: Some(dense()),
        ..product(DType::F32, CType::F32, Tiling::Square)
    };
    kernels.add("square_f32_dense", |l, m| epilogue.generate(l, m));
    let tile = *Tile::all(CType::F32).iter().min_by_key(|tile| tile.rows * tile.columns).unwrap();
    let tiled = product(DType::F32, CType::F32, Tiling::Tiled(tile));
    kernels.add("tiled_f32", |l, m| tiled.generate(l, m));
    let double = Prologue {
        steps: [binary(Binary::Add, Ref::Input(0), Ref::Input(0), DType::F32)].into(),
        result: Ref::Result(0),
    };
    let with_steps = DotSpec { prologues: [Some(double), None], ..tiled.clone() };
    kernels.add("tiled_f32_of_doubles", |l, m| with_steps.generate(l, m));
    let tile = MatrixTile { rows: 64, columns: 64, planes: Planes::OneF16 };
    let on_units = DotSpec {
        out: DType::F32,
        product: DType::F32,
        a_ranks: [0; 3],
        b_ranks: [0; 3],
        a_load: Load { along_k: true, by_four: true },
        b_load: Load { along_k: true, by_four: true },
        store: Store { rank: 2, contiguous: true, by_four: true, by_eight: false },
        wide: true,
        ..product(DType::F16, CType::F32, Tiling::Matrix(tile))
    };
    kernels.add("matrix_units", |l, m| on_units.generate(l, m));
    let own = DotSpec {
        out: DType::F16,
        product: DType::F16,
        store: Store { rank: 0, contiguous: true, by_four: true, by_eight: true },
        tiling: Tiling::Matrix(MatrixTile { rows: 64, columns: 64, planes: Planes::OwnF16 }),
        ..on_units.clone()
    };
    kernels.add("own_numbers", |l, m| own.generate(l, m));
    for (name, stage) in [("largest", SplitStage::Largest), ("split", SplitStage::Split)] {
        let spec = SplitSpec {
            stage,
            dtype: DType::F32,
            ranks: [0, 1, 1],
            load: Load { along_k: true, by_four: false },
            planes: Planes::TwoF16,
            scaled: true,
            bounds: None,
            second: false,
        };
        kernels.add(name, |l, m| spec.generate(l, m));
    }
    kernels.compare();
}

#[test]
fn attention() {
    let mut kernels = Kernels::of("attention");
    // Scaled, and masked by numbers of each batch's keys.
    let scores = ScoreSpec {
        reads: smallvec![Read { dtype: DType::F16, along: [true, false, true] }],
        steps: smallvec![
            binary(Binary::Multiply, Ref::Input(0), Ref::Constant(DType::F32, 0x3e00_0000), DType::F32),
            binary(Binary::Add, Ref::Result(0), Ref::Input(1), DType::F32),
        ],
        score: Ref::Result(1),
        dtype: DType::F16,
        coordinates: [2, 3],
        kept: None,
    };
    let spec = AttentionSpec {
        dtype: DType::F16,
        tile: AttentionTile::of(64, 64).unwrap(),
        batch_rank: 2,
        scores: scores.clone(),
        whole_keys: true,
        whole_depth: true,
        whole_width: true,
        causal: false,
        factor: None,
        shares_keys: false,
        wide: true,
    };
    kernels.add("masked_f16", |l, m| spec.generate(l, m));
    let gradient = GradientSpec {
        by: By::Key,
        dtype: DType::F16,
        tile: AttentionTile::of(64, 64).unwrap(),
        batch_rank: 2,
        scores: scores.clone(),
        whole_others: true,
        whole_depth: true,
        whole_width: true,
        causal: false,
        factor: None,
        scale: 0x3e00_0000,
        wide: true,
    };
    kernels.add("masked_gradient_f16", |l, m| gradient.generate(l, m));
    // One query of each head, in groups of four, and a share of the keys.
    let few = QuerySpec {
        dtype: DType::F16,
        tile: QueryTile::of(4),
        ranks: [1, 1],
        has_rows: false,
        scores,
        units: [8, 8],
        by_units: [true; 3],
        splits: true,
        wide: true,
    };
    kernels.add("few_queries_f16", |l, m| few.generate(l, m));
    let merge = MergeSpec { dtype: DType::F16, ranks: [1, 1], has_rows: false, team: 64, wide: true };
    kernels.add("merge_f16", |l, m| merge.generate(l, m));
    kernels.compare();
}

fn in_workgroup(program: Program, mode: Mode) -> WorkgroupSpec {
    let counted = matches!(mode, Mode::Steps { .. });
    let ports = program.inputs.iter().skip(counted.into()).map(|ty| workgroup::Port::contiguous(&ty.shape, counted));
    WorkgroupSpec {
        ports: ports.collect(),
        local_size: WorkgroupSpec::local_size(&program, mode, 1024),
        program: Keyed::new(Arc::new(program)),
        mode,
        shared_bytes: 32 << 10,
    }
}

#[test]
fn programs_in_one_workgroup() {
    let mut kernels = Kernels::of("workgroup");
    let b = Builder::new();
    let x = b.input(DType::F32, &[40]);
    let square = b.multiply(x, x);
    let both = b.multiply(b.reduce(Reduction::Max, square, &[0], false), b.sum(square, &[0]));
    let totals = in_workgroup(b.finish(&[both]).unwrap(), Mode::Once);
    kernels.add("totals", |l, m| totals.generate(l, m));

    let b = Builder::new();
    let (x, limit) = (b.input(DType::F32, &[3]), b.input(DType::F32, &[]));
    let last =
        b.while_loop(&[x], &[limit], |b, v| b.less(b.reduce_max(v[0], &[0]), v[1]), |b, v| vec![b.add(v[0], v[0])]);
    let doubles = in_workgroup(b.finish(&last).unwrap(), Mode::Once);
    kernels.add("loop", |l, m| doubles.generate(l, m));

    let b = Builder::new();
    let (x, which) = (b.input(DType::F32, &[4]), b.input(DType::U8, &[]));
    let chosen = b.cond(which, &[x], |b, v| vec![b.negate(v[0])], |b, v| vec![b.multiply(v[0], v[0])]);
    let choice = in_workgroup(b.finish(&chosen).unwrap(), Mode::Once);
    kernels.add("cond", |l, m| choice.generate(l, m));

    let b = Builder::new();
    let (x, w, i) = (b.input(DType::F32, &[4, 6]), b.input(DType::F32, &[6, 5]), b.input(DType::S32, &[3]));
    let y = b.take(b.dot(x, w), i, 0);
    let parts = b.concatenate(&[b.slice(y, &[0, 1], &[3, 2]), b.slice(y, &[0, 3], &[3, 2])], 0);
    let turned = b.transpose(parts, &[1, 0]);
    let views = in_workgroup(b.finish(&[turned]).unwrap(), Mode::Once);
    kernels.add("product_and_views", |l, m| views.generate(l, m));

    for (name, pauses) in [("steps", false), ("steps_that_pause", true)] {
        let b = Builder::new();
        let (counter, x) = (b.input(DType::U32, &[]), b.input(DType::F32, &[3]));
        let next = b.add(b.multiply(x, 0.5), b.as_type(counter, DType::F32));
        let mode = Mode::Steps { states: 1, begins: false, pauses };
        let steps = in_workgroup(b.finish(&[next]).unwrap(), mode);
        kernels.add(name, |l, m| steps.generate(l, m));
    }
    kernels.compare();
}

#[test]
fn others() {
    let mut kernels = Kernels::of("other");
    let word = Element::Raw(4);
    let tiles = TransposeSpec { element: word, batch_rank: 1, row_rank: 1, padded: 0, form: transpose::Form::Tiles };
    kernels.add("transpose", |l, m| tiles.generate(l, m));
    let padded = TransposeSpec { padded: 0b10, ..tiles };
    kernels.add("transpose_padded", |l, m| padded.generate(l, m));
    let blocks = TransposeSpec { element: Element::Raw(2), form: transpose::Form::Blocks { beside: 2 }, ..padded };
    kernels.add("transpose_blocks", |l, m| blocks.generate(l, m));
    let lines = TransposeSpec { element: Element::Raw(16), batch_rank: 3, row_rank: 0, ..padded };
    let lines = TransposeSpec { form: transpose::Form::Lines, ..lines };
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
