//! Generated kernels assemble and pass spirv-val, for every op and type.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nx_vulkan_check::Reflection;
use nx_vulkan_engine::kernels::KernelSpec;
use nx_vulkan_engine::kernels::attention::{
    AttentionSpec, AttentionTile, GradientSpec, KeptSpec, MergeSpec, QuerySpec, QueryTile, Read, ScoreSpec,
};
use nx_vulkan_engine::kernels::dot::{
    Access, BorderSpec, Bounds, DerivedSpec, DotSpec, EpilogueSpec, Feed, LinearSpec, Load, MatrixTile, Numbers,
    Planes, ResidueSpec, ResidueStage, ResidueTile, Span, SplitSpec, SplitStage, Spread, Store, Tiling, WindowAxis,
};
use nx_vulkan_engine::kernels::map::{Form, Port, Spec};
use nx_vulkan_engine::kernels::reduce::{Direction, Producer, ReduceEpilogue, ReduceSpec, Stage};
use nx_vulkan_engine::kernels::rows::{Along, RowPort, RowsSpec};
use nx_vulkan_engine::tuning::{LOCAL_SIZES, SHARING};
use nx_vulkan_ir::program::attention_gradient::By;
use nx_vulkan_ir::program::fused::{Computed, Made};
use nx_vulkan_ir::program::ops::result_dtype;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Builder, Elementwise, Program, Reduction, Unary};
use nx_vulkan_ir::{CType, DType, Error};
use nx_vulkan_spirv::access::{Element, Layout};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::lower::{Lacks, lower};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::workgroup::{self, Keyed, Mode, WorkgroupSpec};
use rspirv::binary::Assemble;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Capability, Op};
use smallvec::{SmallVec, smallvec};

const CTYPES: [CType; 8] =
    [CType::I32, CType::U32, CType::I64, CType::U64, CType::F32, CType::F64, CType::C64, CType::C128];

const MODES: FloatModes = FloatModes { preserve_f32: true, preserve_f64: true, ..FloatModes::NONE };

/// Runs spirv-val on a module where the tool is installed.
fn spirv_val(words: &[u32]) -> Result<(), String> {
    let child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.2", "--scalar-block-layout", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        crate::tools::skipped_without_spirv_val();
        return Ok(());
    };
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout))
    }
}

fn check(what: &str, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    if let Err(error) = Reflection::of(&bytes, what) {
        panic!("{error}");
    }
    if let Err(message) = spirv_val(words) {
        std::fs::write(
            std::env::temp_dir().join("nx_vulkan_bad_kernel.spv"),
            words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>(),
        )
        .unwrap();
        panic!("{what}: {message}");
    }
}

/// Devices that lack types, each of which some device lacks without the others; as in `cargo xtask validate`.
const LACKING: [Lacks; 4] = [
    Lacks::ALL,
    Lacks { float64: true, int64: false, int8: false, int16: false },
    Lacks { float64: false, int64: true, int8: false, int16: false },
    Lacks { float64: false, int64: false, int8: true, int16: true },
];

/// Checks the forms of a kernel for devices that lack types.
pub fn check_lowered(what: &str, words: &[u32]) {
    for lacks in LACKING {
        match lower(words, lacks) {
            Ok(form) if *form == *words => {}
            Ok(form) => check(&format!("{what} for {lacks:?}"), &as_f16(&form)),
            // Kernels for matrix units have the real f16, which no device with such units lacks.
            Err(Error::Unsupported { op, .. }) if op == "OpTypeFloat" => {}
            Err(error) => panic!("{what} for {lacks:?}: {error}"),
        }
    }
}

/// One op on operands of one layout.
pub fn spec(op: Elementwise, inputs: &[DType], out: DType, layout: Layout, rank: u8) -> Spec {
    Spec {
        inputs: inputs.iter().map(|&t| Port { element: Element::Typed(t), layout }).collect(),
        steps: smallvec![Step { op, args: (0..inputs.len() as u8).map(Ref::Input).collect(), out }],
        outputs: smallvec![(Ref::Result(0), Port { element: Element::Typed(out), layout: Layout::Contiguous })],
        rank,
        width: 1,
        form: Form::Vectors,
        fixed: None,
        numbers: Default::default(),
        shift: None,
        sharing: SHARING,
    }
}

/// A module with f16 in the place of bf16, of which spirv-val may not know yet.
fn as_f16(words: &[u32]) -> Vec<u32> {
    let mut module = rspirv::dr::load_words(words).unwrap();
    let is_of_bf16 = |i: &Instruction| {
        let names = ["BFloat16TypeKHR", "BFloat16CooperativeMatrixKHR", "SPV_KHR_bfloat16"];
        i.operands.iter().any(|o| names.contains(&o.to_string().trim_matches('"')))
    };
    let count = module.capabilities.len();
    module.capabilities.retain(|i| !is_of_bf16(i));
    module.extensions.retain(|i| !is_of_bf16(i));
    if module.capabilities.len() < count {
        let half = vec![Operand::Capability(Capability::Float16)];
        module.capabilities.push(Instruction::new(Op::Capability, None, None, half));
    }
    for ty in module.types_global_values.iter_mut().filter(|i| i.class.opcode == Op::TypeFloat) {
        ty.operands.truncate(1);
    }
    module.assemble()
}

#[test]
fn kernels_of_residues_are_valid() {
    let library = Library::builtin().unwrap();
    let far = FloatModes { far: true, ..MODES };
    let sides = || ResidueTile::SIDES.into_iter().chain([ResidueTile::PLAIN]);
    let products = sides().flat_map(|side| [false, true].map(|coarse| ResidueStage::Product { side, coarse }));
    let splits = [(false, 16), (true, 18)].map(|(second, moduli)| ResidueStage::Split { second, moduli });
    let stages = splits.into_iter().chain([ResidueStage::Rows, ResidueStage::Check]).chain(products);
    for (stage, dtype) in stages.flat_map(|stage| [DType::F64, DType::F32, DType::S64].map(|dtype| (stage, dtype))) {
        for (ranks, along_k, modes) in [([0, 1, 1], true, MODES), ([2, 1, 3], false, far)] {
            let spec = ResidueSpec { stage, dtype, ranks, along_k };
            check(&format!("{spec:?}"), &KernelSpec::generate(&spec, library, modes).unwrap().words);
        }
    }
    let load = Load { along_k: true, by_four: true };
    for (moduli, by_four) in [(16, true), (17, false), (18, true)] {
        let spec = DotSpec {
            a: DType::F64,
            b: DType::F64,
            product: DType::F64,
            out: DType::F64,
            sum: CType::F64,
            a_ranks: [0; 3],
            b_ranks: [0; 3],
            a_load: load,
            b_load: load,
            prologues: [None, None],
            derived: None,
            linear: None,
            store: Store { rank: 2, contiguous: by_four, by_four, by_eight: false },
            tiling: Tiling::Residues(ResidueTile { side: 128, moduli }),
            guarded: true,
            low_b_first: false,
            ends_early: false,
            border: None,
            by_eights: false,
            wide: by_four,
            epilogue: None,
        };
        check(&format!("{spec:?}"), &spec.generate(library, MODES).unwrap().words);
    }
}

/// Numbers as fields of words, as small ones and as floats, with a scale of f16 and an offset.
fn scaled_numbers() -> [LinearSpec; 4] {
    let port = |dtype| Port { element: Element::Typed(dtype), layout: Layout::Each };
    let step = |op, args: &[Ref], out| Step { op, args: args.into(), out };
    let to_f32 = |k| step(Elementwise::AsType, &[Ref::Input(k)], DType::F32);
    let factor = |steps: &[Step]| DerivedSpec {
        inputs: smallvec![port(DType::U32), port(DType::U8), port(DType::F16)],
        steps: steps.into(),
        result: Ref::Result(steps.len() as u16 - 1),
        axis: 3,
        ranks: [1, 2],
        spans: smallvec![],
        alike: smallvec![0, 1, 2],
        lies: smallvec![smallvec![]; 3],
    };
    let twice = step(Elementwise::Binary(Binary::Add), &[Ref::Result(0), Ref::Result(0)], DType::F32);
    let (scale, offset) = (factor(&[to_f32(2)]), factor(&[to_f32(2), twice]));
    let four = Ref::Constant(DType::U32, 4);
    let words = [
        step(Elementwise::Binary(Binary::Multiply), &[Ref::Coordinate(2), four], DType::U32),
        step(Elementwise::Binary(Binary::RightShift), &[Ref::Input(0), Ref::Result(0)], DType::U32),
        step(Elementwise::Binary(Binary::BitwiseAnd), &[Ref::Result(1), Ref::Constant(DType::U32, 15)], DType::U32),
    ];
    let bytes =
        [step(Elementwise::Binary(Binary::RightShift), &[Ref::Input(1), Ref::Constant(DType::U8, 4)], DType::U8)];
    let lies = |word, byte| smallvec![smallvec![word], smallvec![byte], smallvec![Spread::Same]];
    let spans = smallvec![Span { count: 8, is_whole: true }];
    let numbers = |steps: &[Step], lies| DerivedSpec { spans: spans.clone(), lies, ..factor(steps) };
    let of_words = numbers(&words, lies(Spread::Same, Spread::Apart));
    let of_bytes = numbers(&bytes, lies(Spread::Apart, Spread::Near(8)));
    let fields = Numbers::Fields { operand: 0, mask: 15, shifts: [0, 4, 8, 12] };
    let of_bytes_as = |kind| (of_bytes.clone(), kind);
    let [bytes, small, floats] = [Numbers::Bytes, Numbers::Small, Numbers::Floats].map(of_bytes_as);
    [(of_words, fields), bytes, small, floats].map(|(numbers, kind)| LinearSpec {
        numbers,
        kind,
        scale: Some(scale.clone()),
        offset: Some(offset.clone()),
    })
}

#[test]
fn kernels_for_matrix_units_are_valid() {
    let library = Library::builtin().unwrap();
    let step =
        Step { op: Elementwise::Binary(Binary::Add), args: smallvec![Ref::Input(0), Ref::Input(1)], out: DType::F32 };
    let epilogue = EpilogueSpec {
        inputs: smallvec![(DType::F32, Access::Neighbours)],
        steps: smallvec![step],
        result: Ref::Result(0),
    };
    let load = Load { along_k: true, by_four: true };
    let few = |planes| [false, true].into_iter().flat_map(move |first| MatrixTile::of_few(planes, 9, first));
    for tile in Planes::ALL.into_iter().flat_map(|planes| MatrixTile::all(planes).chain(few(planes))) {
        for (out, by_four, epilogue) in [
            (DType::F32, true, None),
            (DType::F16, false, None),
            (DType::Bf16, true, None),
            (DType::F32, true, Some(epilogue.clone())),
        ] {
            let by_axes = tile.planes.is_own() && tile.feed != Feed::Fragments && by_four;
            let spec = DotSpec {
                a: DType::F16,
                b: DType::F16,
                product: out,
                out,
                sum: CType::F32,
                a_ranks: if by_axes { [1, 3, 3] } else { [0; 3] },
                b_ranks: if by_axes { [2, 2, 1] } else { [0; 3] },
                a_load: load,
                b_load: load,
                prologues: [None, None],
                derived: None,
                linear: None,
                store: Store { rank: 2, contiguous: epilogue.is_none(), by_four, by_eight: false },
                tiling: Tiling::Matrix(tile),
                guarded: tile.planes.own_type().is_none() && tile.planes != Planes::OneF16,
                low_b_first: by_four,
                ends_early: by_axes,
                border: None,
                by_eights: false,
                wide: by_four,
                epilogue,
            };
            check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
            if !by_axes || tile.feed != Feed::Planes || tile.planes.own_type().is_none() {
                continue;
            }
            for second in [false, true] {
                let axis = WindowAxis { positions: 3, dilation: 1, stride: 2 };
                let axes = smallvec![axis, WindowAxis { dilation: 2, ..axis }];
                let [a_ranks, b_ranks] = if second { [[0; 3], [1, 3, 3]] } else { [[1, 3, 3], [0; 3]] };
                let border = Some(BorderSpec { second, axes });
                let spec = DotSpec { a_ranks, b_ranks, border, ..spec.clone() };
                check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
            }
        }
    }
    for (planes, first) in [(Planes::OwnF16, false), (Planes::OwnBf16, true)] {
        for tile in MatrixTile::of_linear(planes, 3, first) {
            for linear in scaled_numbers() {
                let of = |operand: bool| if operand { [0, 1, 1] } else { [0; 3] };
                let spec = DotSpec {
                    a: DType::F16,
                    b: DType::F16,
                    product: DType::F16,
                    out: DType::F16,
                    sum: CType::F32,
                    a_ranks: of(first),
                    b_ranks: of(!first),
                    a_load: load,
                    b_load: load,
                    prologues: [None, None],
                    derived: linear.offset.clone().map(Box::new),
                    linear: Some(Box::new(linear)),
                    store: Store { rank: 0, contiguous: true, by_four: false, by_eight: false },
                    tiling: Tiling::Matrix(tile),
                    guarded: false,
                    low_b_first: false,
                    ends_early: false,
                    border: None,
                    by_eights: false,
                    wide: false,
                    epilogue: None,
                };
                check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
            }
        }
    }
    for stage in [SplitStage::Largest, SplitStage::Split, SplitStage::Copy, SplitStage::Restore] {
        for (along_k, by_four, dtype) in
            [(true, true, DType::F32), (false, false, DType::Bf16), (false, true, DType::F16)]
        {
            for planes in Planes::ALL {
                let load = Load { along_k, by_four };
                let (scaled, second) = (!planes.is_in_order(), planes == Planes::ThreeBf16);
                if (stage == SplitStage::Largest && !scaled)
                    || (stage == SplitStage::Copy && planes.own_type().is_none())
                    || (stage == SplitStage::Restore && planes != Planes::OwnThreeBf16)
                {
                    continue;
                }
                let bounds = (planes == Planes::OwnThreeBf16 && (by_four || stage == SplitStage::Restore))
                    .then_some(Bounds { padded: 0b1010, dilated: 0b1000 });
                // Copies are written in the order of either kernel.
                for fragments in [false, true].into_iter().take(1 + usize::from(stage == SplitStage::Copy)) {
                    let ranks = [1, 2, 3];
                    let spec = SplitSpec { stage, dtype, ranks, load, planes, scaled, bounds, second, fragments };
                    check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
                }
            }
        }
    }
}

/// Masks by counting and by an operand, and a bias; what is masked in batches of its own is dropped, too.
fn masked_scores(dtype: DType, by_batch: bool) -> ScoreSpec {
    let step = |op, args: &[Ref], out| Step { op, args: args.into(), out };
    let bool_of = |op, a, b| step(Elementwise::Binary(op), &[a, b], DType::U8);
    ScoreSpec {
        reads: smallvec![
            Read { dtype: DType::U8, along: [by_batch, true, true] },
            Read { dtype, along: [false, false, true] },
            Read { dtype: DType::F32, along: [false; 3] },
        ],
        steps: smallvec![
            bool_of(Binary::GreaterEqual, Ref::Coordinate(2), Ref::Coordinate(3)),
            bool_of(Binary::LogicalAnd, Ref::Result(0), Ref::Input(1)),
            step(Elementwise::Binary(Binary::Add), &[Ref::Input(0), Ref::Input(2)], DType::F32),
            step(Elementwise::Select, &[Ref::Result(1), Ref::Result(2), Ref::Input(3)], DType::F32),
        ],
        score: Ref::Result(3),
        dtype,
        coordinates: [2, 3],
        kept: by_batch.then(|| KeptSpec { steps: smallvec![], value: Ref::Input(1), scale: 1.25_f32.to_bits() }),
    }
}

#[test]
fn kernels_of_attention_are_valid() {
    let library = Library::builtin().unwrap();
    for (dtype, causal, [depth, width]) in [DType::F16, DType::Bf16]
        .into_iter()
        .flat_map(|t| [true, false].map(|c| (t, c)))
        .flat_map(|(t, c)| [[64, 64], [96, 128], [128, 128], [40, 24]].map(|sizes| (t, c, sizes)))
    {
        let tile = AttentionTile::of(depth, width).unwrap();
        let spec = AttentionSpec {
            dtype,
            tile,
            batch_rank: u8::from(causal) * 2,
            scores: masked_scores(dtype, causal),
            whole_keys: causal,
            whole_depth: depth == tile.depth(),
            whole_width: width == tile.width(),
            causal,
            factor: None,
            shares_keys: !causal,
            wide: causal,
        };
        check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
    }
    assert_eq!(AttentionTile::of(129, 8), None);
    assert_eq!(AttentionTile::of(8, 129), None);
}

#[test]
fn kernels_of_gradients_of_attention_are_valid() {
    let library = Library::builtin().unwrap();
    for by in [By::Query, By::Key, By::Value] {
        for (dtype, causal) in [DType::F16, DType::Bf16].into_iter().flat_map(|t| [true, false].map(|c| (t, c))) {
            let spec = GradientSpec {
                by,
                dtype,
                tile: AttentionTile::of(if causal { 64 } else { 128 }, 72).unwrap(),
                batch_rank: u8::from(causal) * 2,
                scores: masked_scores(dtype, causal),
                whole_others: causal,
                whole_depth: causal,
                whole_width: !causal,
                causal,
                factor: None,
                scale: 0.125_f32.to_bits(),
                wide: causal,
            };
            check(&format!("{spec:?}"), &as_f16(&spec.generate(library, MODES).unwrap().words));
        }
    }
}

#[test]
fn kernels_of_attention_of_few_queries_are_valid() {
    let library = Library::builtin().unwrap();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (queries, splits) in [(1, false), (2, true), (4, false), (8, true)] {
            let spec = QuerySpec {
                dtype,
                tile: QueryTile::of(queries),
                ranks: [2, 1],
                has_rows: splits,
                scores: masked_scores(dtype, splits),
                units: [8, 9],
                by_units: [true, !splits, splits],
                splits,
                wide: splits,
            };
            assert_eq!(u64::from(spec.tile.count), queries);
            check(&format!("{spec:?}"), &spec.generate(library, MODES).unwrap().words);
        }
        let spec = MergeSpec { dtype, ranks: [2, 1], has_rows: true, team: 64, wide: false };
        check(&format!("{spec:?}"), &spec.generate(library, MODES).unwrap().words);
    }
    // Of more queries than a workgroup has, as many in each.
    let tiles = [3, 7, 9, 10, 16, 17].map(|queries| QueryTile::of(queries).count);
    assert_eq!(tiles, [4, 8, 8, 8, 8, 8]);
}

/// The twin of tanh for devices that fuse fma serves every input: no second path for rare ones.
#[test]
fn twins_without_rare_inputs_are_called_as_they_are() {
    let library = Library::builtin().unwrap();
    let words = |unary: Unary, fused: bool| {
        let spec =
            Spec { width: 4, ..spec(Elementwise::Unary(unary), &[DType::F32], DType::F32, Layout::Contiguous, 0) };
        let kernel = spec.generate(library, FloatModes { fused, ..MODES }).unwrap();
        check(unary.name(), &kernel.words);
        kernel.words.len()
    };
    // Both paths of exp are in its kernel, whichever form it has; of tanh one is where the twin serves.
    assert!(words(Unary::Exp, true) * 10 > words(Unary::Exp, false) * 8);
    assert!(words(Unary::Tanh, true) * 10 < words(Unary::Tanh, false) * 8);
}

/// Kernels of few elements have no short form of a function beside the one that gives all results.
#[test]
fn kernels_of_few_elements_have_less_code() {
    let library = Library::builtin().unwrap();
    let modes = FloatModes { fused: true, ..MODES };
    for unary in [Unary::Log, Unary::ErfInv, Unary::Exp] {
        let words = |form: Form| {
            let of = spec(Elementwise::Unary(unary), &[DType::F32], DType::F32, Layout::Contiguous, 0);
            let kernel = Spec { form, ..of }.generate(library, modes).unwrap();
            check(unary.name(), &kernel.words);
            kernel.words.len()
        };
        assert!(words(Form::Exact) * 10 < words(Form::Single) * 9, "{}", unary.name());
    }
    let port = |along| RowPort { dtype: DType::F32, along, bounded: false };
    let made = |made| Computed { made, row: true, phase: 1 };
    let sum = Made::Reduction { reduction: Reduction::Sum, tie_high: false, of: Ref::Input(0), out: DType::F32 };
    let words = |unary: Unary, exact: bool| {
        let function = Step { op: Elementwise::Unary(unary), args: smallvec![Ref::Result(0)], out: DType::F32 };
        let rows = RowsSpec {
            kept_rank: 1,
            row_rank: 1,
            inputs: vec![port(Along::Vector)],
            values: vec![made(sum.clone()), made(Made::Step(function))],
            outputs: vec![(Ref::Result(1), port(Along::Row))],
            width: 4,
            items: 1,
            team: 32,
            columns: false,
            full: true,
            exact,
        };
        let kernel = rows.generate(library, modes).unwrap();
        check("rows", &kernel.words);
        kernel.words.len()
    };
    for unary in
        Unary::ALL.iter().copied().filter(|&op| result_dtype(Elementwise::Unary(op), &[DType::F32]) == Some(DType::F32))
    {
        let [exact, other] = [true, false].map(|exact| words(unary, exact));
        // The steps of the short form are as many words at least.
        let has_near_form = matches!(unary, Unary::Log | Unary::ErfInv);
        assert!(if has_near_form { exact + 200 < other } else { exact == other }, "{}: {exact} {other}", unary.name());
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
            let op = Elementwise::Unary(op);
            if let Some(out) = result_dtype(op, &[t]) {
                try_one(format!("{} {t}", op.name()), spec(op, &[t], out, Layout::Strided, 3), (i + j) % 5 == 0);
            }
        }
    }
    for (i, &op) in Binary::ALL.iter().enumerate() {
        for (j, t) in DType::ALL.into_iter().enumerate() {
            let op = Elementwise::Binary(op);
            if let Some(out) = result_dtype(op, &[t, t]) {
                try_one(format!("{} {t}", op.name()), spec(op, &[t, t], out, Layout::Contiguous, 1), (i + j) % 5 == 0);
            }
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
    assert!(missing.is_empty(), "the library lacks {missing:?}");
    assert!(generated > 1200, "{generated} kernels");
}

/// `nx_<words>` with the types that the function is of, or `bits` and `word` for those on raw bits of any type.
#[test]
fn library_functions_are_named_by_type() {
    let widths = ["8", "16", "32", "64"];
    let types: BTreeSet<&str> =
        DType::ALL.iter().map(|t| t.name()).chain(CTYPES.iter().map(|t| t.name())).chain(widths).collect();
    let library = Library::builtin().unwrap();
    let mut wrong = BTreeSet::new();
    for name in library.exports() {
        let words: Vec<&str> = name.split('_').collect();
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let typed = words.iter().any(|word| types.contains(word) || matches!(*word, "bits" | "word"));
        if words[0] != "nx" || !plain || !typed {
            wrong.insert(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn vector_kernels_are_valid() {
    let library = Library::builtin().unwrap();
    for t in [DType::U8, DType::S16, DType::Bf16, DType::F32, DType::S64] {
        let mut spec = spec(Elementwise::Binary(Binary::Add), &[t, t], t, Layout::Contiguous, 1);
        spec.width = spec.widest(false);
        assert!(spec.width > 1, "{t}");
        for form in [Form::Vectors, Form::Pairs, Form::Blocks { vectors: 8 }] {
            let width = if matches!(form, Form::Blocks { .. }) { spec.block_width() } else { spec.width };
            let spec = Spec { form, width, ..spec.clone() };
            check(&format!("add {t}"), &spec.generate(library, MODES).unwrap().words);
        }
    }
}

/// Where the device rounds quotients and roots, functions are its instructions, and the kernels short.
#[test]
fn rounded_forms_are_short_and_valid() {
    let library = Library::builtin().unwrap();
    let t = DType::F32;
    for (op, inputs) in [(Elementwise::Binary(Binary::Divide), &[t, t][..]), (Elementwise::Unary(Unary::Sqrt), &[t])] {
        let spec = spec(op, inputs, t, Layout::Contiguous, 1);
        let [own, rounded] = [false, true].map(|rounded| {
            let kernel = spec.generate(library, FloatModes { rounded, ..MODES }).unwrap();
            check(op.name(), &kernel.words);
            kernel.words.len()
        });
        assert!(rounded * 2 < own, "{}: {rounded} words of {own}", op.name());
    }
}

/// Results that are operands, or numbers with another sign, are not rounded again.
#[test]
fn exact_results_of_narrow_floats_are_not_rounded() {
    let library = Library::builtin().unwrap();
    // What rounding adds before it cuts off.
    let rounds = |op: Elementwise, operands: usize| {
        let t = DType::Bf16;
        let mut spec = spec(op, &[t, t][..operands], t, Layout::Contiguous, 1);
        spec.steps.push(Step { op: Elementwise::AsType, args: smallvec![Ref::Result(0)], out: DType::F32 });
        let out = Port { element: Element::Typed(DType::F32), layout: Layout::Contiguous };
        spec.outputs = smallvec![(Ref::Result(1), out)];
        let module = rspirv::dr::load_words(spec.generate(library, MODES).unwrap().words).unwrap();
        let half = vec![Operand::LiteralBit32(0x7fff)];
        module.types_global_values.iter().any(|i| i.class.opcode == Op::Constant && i.operands == half)
    };
    assert!(rounds(Elementwise::Binary(Binary::Add), 2));
    for op in [Binary::Max, Binary::Min] {
        assert!(!rounds(Elementwise::Binary(op), 2), "{}", op.name());
    }
    for op in [Unary::Negate, Unary::Abs] {
        assert!(!rounds(Elementwise::Unary(op), 1), "{}", op.name());
    }
}

/// Where the device converts f16 rightly, kernels with its conversions are shorter, and stay so where other types are
/// lowered.
#[test]
fn kernels_with_the_conversions_of_f16_are_short_and_valid() {
    let library = Library::builtin().unwrap();
    let t = DType::F16;
    let spec = spec(Elementwise::Binary(Binary::Add), &[t, t], t, Layout::Contiguous, 1);
    let [own, halves] = [false, true].map(|halves| {
        let kernel = spec.generate(library, FloatModes { halves, ..MODES }).unwrap();
        check("add f16", &kernel.words);
        kernel.words
    });
    assert!(halves.len() < own.len(), "{} words of {}", halves.len(), own.len());
    for form in [Form::Pairs, Form::Vectors] {
        let spec = Spec { form, width: 4, ..spec.clone() };
        let kernel = spec.generate(library, FloatModes { halves: true, ..MODES }).unwrap();
        check("add f16 of vectors", &kernel.words);
        let lacks = Lacks { int16: false, ..Lacks::ALL };
        check("add f16 without other types", &lower(&kernel.words, lacks).unwrap());
    }
}

/// The largest of the squares of `length` elements, times their sum.
fn two_totals(length: u64) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, &[length]);
    let square = b.multiply(x, x);
    let both = b.multiply(b.reduce(Reduction::Max, square, &[0], false), b.sum(square, &[0]));
    b.finish(&[both]).unwrap()
}

#[test]
fn kernels_of_one_workgroup_have_the_invocations_that_they_count_on() {
    let library = Library::builtin().unwrap();
    for (length, invocations) in [(5, 32), (40, 64), (200, 256), (3000, 512)] {
        let program = two_totals(length);
        let spec = WorkgroupSpec {
            local_size: WorkgroupSpec::local_size(&program, Mode::Once, LOCAL_SIZES, 1024),
            program: Keyed::new(Arc::new(program)),
            ports: vec![workgroup::Port { strides: smallvec![1], bias: 0, per_group: false }],
            mode: Mode::Once,
            shared_bytes: 32 << 10,
            subgroup: LOCAL_SIZES.subgroup,
        };
        assert_eq!(spec.local_size, invocations, "{length}");
        let kernel = spec.generate(library, MODES).unwrap();
        check(&format!("{spec:?}"), &kernel.words);
        let bytes: Vec<u8> = kernel.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(Reflection::of(&bytes, "workgroup").unwrap().local_size, [invocations, 1, 1], "{length}");
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
                let columns = [false, true].map(|in_teams| Direction::Columns { in_teams });
                for direction in columns.into_iter().chain([Direction::Rows { width: 1 }]) {
                    let spec = ReduceSpec {
                        reducers: smallvec![Reducer { reduction, tie_high: false, input, out }],
                        times: (reduction == Reduction::Sum).then_some(input),
                        producer: None,
                        epilogue: None,
                        stage,
                        direction,
                        kept_rank: 2,
                        reduced_rank: 1,
                        paired: false,
                    };
                    let kernel = spec.generate(library, MODES).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
                    check(&format!("{spec:?}"), &kernel.words);
                }
            }
        }
    }
    for (input, paired) in [(DType::F32, false), (DType::F32, true), (DType::Bf16, true), (DType::U8, true)] {
        let out = if input == DType::U8 { DType::U32 } else { input };
        let spec = ReduceSpec {
            reducers: smallvec![Reducer { reduction: Reduction::Sum, tie_high: false, input, out }],
            times: None,
            producer: None,
            epilogue: None,
            stage: Stage::First,
            direction: Direction::Rows { width: 4 },
            kept_rank: 1,
            reduced_rank: 1,
            paired,
        };
        check(&format!("{spec:?}"), &spec.generate(library, MODES).unwrap().words);
    }
}

#[test]
fn reductions_of_the_same_elements_are_one_valid_kernel() {
    let library = Library::builtin().unwrap();
    let of = |reduction, input, out| Reducer { reduction, tie_high: false, input, out };
    // Accumulators of one, two and four words, and several of each.
    let all: [SmallVec<[Reducer; 1]>; 3] = [
        smallvec![of(Reduction::Max, DType::F32, DType::F32), of(Reduction::Sum, DType::F32, DType::F32)],
        smallvec![of(Reduction::Sum, DType::F64, DType::F64), of(Reduction::ArgMax, DType::F64, DType::S32)],
        smallvec![of(Reduction::Sum, DType::U8, DType::U32), of(Reduction::Any, DType::U8, DType::U8)],
    ];
    for reducers in all {
        let dtype = reducers[0].input;
        let directions = [1, 2, 4].map(|width| Direction::Rows { width });
        for direction in directions.into_iter().chain([false, true].map(|in_teams| Direction::Columns { in_teams })) {
            for stage in [Stage::Whole, Stage::First, Stage::Last] {
                let along = if matches!(direction, Direction::Rows { width } if width > 1) {
                    Along::Vector
                } else {
                    Along::Strided
                };
                // Of an operand that all elements of an output share, and of those.
                let add = |a, b| Step { op: Elementwise::Binary(Binary::Add), args: smallvec![a, b], out: dtype };
                let steps = vec![add(Ref::Input(1), Ref::Input(1)), add(Ref::Input(0), Ref::Result(0))];
                let ratio = Step {
                    op: Elementwise::Binary(Binary::Divide),
                    args: smallvec![Ref::Input(0), Ref::Input(2)],
                    out: DType::F32,
                };
                let spec = ReduceSpec {
                    reducers: reducers.clone(),
                    times: None,
                    producer: (stage != Stage::Last).then(|| {
                        Box::new(Producer {
                            inputs: [along, Along::Row].map(|along| RowPort { dtype, along, bounded: false }).to_vec(),
                            steps,
                            values: smallvec![Ref::Input(0), Ref::Result(1)],
                        })
                    }),
                    epilogue: Some(Box::new(ReduceEpilogue {
                        inputs: smallvec![DType::F32],
                        steps: smallvec![ratio],
                        results: smallvec![(Ref::Result(0), DType::F32), (Ref::Input(1), reducers[1].out)],
                        rank: 1,
                    })),
                    stage,
                    direction,
                    kept_rank: 1,
                    reduced_rank: 1,
                    paired: false,
                };
                if matches!((direction, stage), (Direction::Rows { width: 2.. }, Stage::Last)) {
                    continue;
                }
                let kernel = spec.generate(library, MODES).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
                check(&format!("{spec:?}"), &kernel.words);
            }
        }
    }
}

#[test]
fn the_same_kernel_has_the_same_words() {
    let library = Library::builtin().unwrap();
    let spec = spec(Elementwise::Unary(Unary::Tanh), &[DType::F32], DType::F32, Layout::Contiguous, 1);
    let first = spec.generate(library, MODES).unwrap().words;
    for _ in 0..8 {
        assert!(spec.generate(library, MODES).unwrap().words == first);
    }
}
