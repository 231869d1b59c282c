//! Names of generated kernels, for people: `family.variant.type`, such as `map.multiply_add_tanh.f32`. Different kernels may share one.

use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::Step;
use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::dot::Tiling;
use nx_vulkan_spirv::matrix::SplitStage;
use nx_vulkan_spirv::reduce::Stage;
use nx_vulkan_spirv::scan::ScanStage;
use nx_vulkan_spirv::sort::SortSpec;
use nx_vulkan_spirv::window_scatter::WindowStage;

use super::KernelSpec;
use crate::DType;
use crate::program::Op;
use crate::program::fused::Made;

/// Ops that a name tells; of more, it tells how many there are.
const MAX_OPS: usize = 4;

/// `a_b_c`, or `a_b_c_d_and_5_more`; `none` where there is no op.
fn ops<'a>(ops: impl Iterator<Item = &'a str>, none: &str) -> String {
    let all: Vec<&str> = ops.collect();
    let told = all.iter().take(MAX_OPS).copied().collect::<Vec<_>>().join("_");
    match all.len() {
        0 => none.to_string(),
        n if n > MAX_OPS => format!("{told}_and_{}_more", n - MAX_OPS),
        _ => told,
    }
}

fn step_names(steps: &[Step]) -> impl Iterator<Item = &'static str> + '_ {
    steps.iter().map(|step| step.op.name())
}

fn element(element: Element) -> String {
    match element {
        Element::Typed(dtype) => dtype.name().to_string(),
        Element::Raw(bytes) => format!("{bytes}_bytes"),
    }
}

impl KernelSpec {
    /// The name, of lower-case letters, digits, `_` and `.`.
    pub fn name(&self) -> String {
        match self {
            KernelSpec::Map(spec) => {
                let out = spec.outputs.first().map_or_else(String::new, |(_, port)| element(port.element));
                format!("map.{}.{out}", ops(step_names(&spec.steps), "copy"))
            }
            KernelSpec::Reduce { spec, .. } => {
                let producer = spec.producer.iter().flat_map(|producer| step_names(&producer.steps));
                let name = |reducer: &Reducer| if spec.times.is_some() { "dot" } else { reducer.reduction.name() };
                let reductions = spec.reducers.iter().map(name);
                let (first, input) = spec.reducers.first().map_or(("", DType::U32), |r| (name(r), r.input));
                let stage = match spec.stage {
                    Stage::Whole => "",
                    Stage::First => ".first",
                    Stage::Last => ".last",
                };
                let epilogue = spec.epilogue.iter().flat_map(|epilogue| step_names(&epilogue.steps));
                format!("reduce.{}{stage}.{}", ops(producer.chain(reductions).chain(epilogue), first), input)
            }
            KernelSpec::Rows(spec) => {
                let names = spec.values.iter().map(|value| match &value.made {
                    Made::Step(step) => step.op.name(),
                    Made::Reduction { reduction, .. } => reduction.name(),
                });
                let out = spec.outputs.first().map_or_else(String::new, |(_, port)| port.dtype.to_string());
                format!("rows.{}.{out}", ops(names, "copy"))
            }
            KernelSpec::Fold(spec) => format!("fold.{}", spec.out),
            KernelSpec::Gather(spec) => format!("gather.{}", element(spec.element)),
            KernelSpec::Take(spec) => format!("take.{}", element(spec.element)),
            KernelSpec::Shift(spec) => {
                format!("{}.{}", if spec.puts { "put_slice" } else { "slice" }, element(spec.element))
            }
            KernelSpec::Targets(spec) => format!("targets.{}", spec.index),
            KernelSpec::SegmentPut(spec) => format!("segment_put.{}", element(spec.element)),
            KernelSpec::SegmentAdd(spec) => format!("segment_add.{}", spec.out),
            KernelSpec::Dot(spec) => {
                let prologues = spec.prologues.iter().flatten().flat_map(|prologue| step_names(&prologue.steps));
                let epilogue = spec.epilogue.iter().flat_map(|epilogue| step_names(&epilogue.steps));
                let tiling = match spec.tiling {
                    Tiling::Square => "square".to_string(),
                    Tiling::Narrow => "narrow".to_string(),
                    Tiling::Tiled(tile) => format!("{}x{}", tile.rows, tile.columns),
                    Tiling::Lanes(tile) => format!("lanes_{}x{}", tile.rows, tile.columns()),
                    Tiling::Matrix(tile) => format!("matrix_{0}x{0}", tile.side),
                };
                format!("{}.{tiling}.{}", ops(prologues.chain(["dot"]).chain(epilogue), "dot"), spec.out)
            }
            KernelSpec::Split(spec) => match spec.stage {
                SplitStage::Largest => format!("split.largest.{}", spec.dtype),
                SplitStage::Split => format!("split.{}.{}", spec.planes.count(), spec.dtype),
            },
            KernelSpec::Scan { spec, .. } => {
                let stage = match spec.stage {
                    ScanStage::Whole => "whole",
                    ScanStage::Totals => "totals",
                    ScanStage::Prefixes => "prefixes",
                    ScanStage::Apply => "apply",
                };
                format!("scan.{}.{stage}.{}", spec.reduction.name(), spec.dtype)
            }
            KernelSpec::Sort(spec) => match spec {
                SortSpec::Rows { bytes, .. } => format!("sort.rows.{bytes}_bytes"),
                SortSpec::Select { bytes, .. } => format!("sort.select.{bytes}_bytes"),
                SortSpec::Count { bytes } => format!("sort.count.{bytes}_bytes"),
                SortSpec::Offsets { last: false } => "sort.offsets".to_string(),
                SortSpec::Offsets { last: true } => "sort.bases".to_string(),
                SortSpec::Scatter { bytes, .. } => format!("sort.scatter.{bytes}_bytes"),
            },
            KernelSpec::Scatter(spec) => {
                let op = if spec.add.is_some() { "indexed_add" } else { "indexed_put" };
                format!("{op}.{}", element(spec.element))
            }
            KernelSpec::Transpose(spec) => format!("transpose.{}", element(spec.element)),
            KernelSpec::WindowScatter(spec) => match spec.stage {
                WindowStage::Choose { max: true, input } => format!("window_scatter_max.choose.{input}"),
                WindowStage::Choose { max: false, input } => format!("window_scatter_min.choose.{input}"),
                WindowStage::Gather { out, .. } => format!("window_scatter.gather.{out}"),
            },
            KernelSpec::Workgroup(spec) => {
                let program = &spec.program.program;
                let named = program.instructions.iter().filter(|i| !matches!(i.op, Op::Constant(_)));
                let out = program.output_types().first().map_or_else(String::new, |ty| ty.dtype.to_string());
                format!("workgroup.{}.{out}", ops(named.map(|i| i.op.name()), "copy"))
            }
            KernelSpec::Linalg(spec) => format!("{}.{}", spec.template, spec.compute.name()),
            KernelSpec::Fft { spec, .. } => format!("fft.{}", spec.compute.name()),
        }
    }
}
