//! Programs in one workgroup.

use std::sync::Arc;

use nx_vulkan_engine::tuning::LOCAL_SIZES;
use nx_vulkan_ir::DType;
use nx_vulkan_ir::program::{Builder, Program, Reduction};
use nx_vulkan_spirv::workgroup::{self, Keyed, Mode, WorkgroupSpec};

use super::Kernels;

fn in_workgroup(program: Program, mode: Mode) -> WorkgroupSpec {
    let counted = matches!(mode, Mode::Steps { .. });
    let ports = program.inputs.iter().skip(counted.into()).map(|ty| workgroup::Port::contiguous(&ty.shape, counted));
    WorkgroupSpec {
        ports: ports.collect(),
        local_size: WorkgroupSpec::local_size(&program, mode, LOCAL_SIZES, 1024),
        program: Keyed::new(Arc::new(program)),
        mode,
        shared_bytes: 32 << 10,
        subgroup: LOCAL_SIZES.subgroup,
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
