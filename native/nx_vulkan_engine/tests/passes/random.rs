//! Random programs.

use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Op, Program};
use nx_vulkan_engine::reference::{self, Array};

use crate::common::{self, Rng};
use crate::{difference, engine, gpu, graphs, run};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn cases(default: u64, complex: bool, test: impl Fn(u64, &Program, &[Array])) {
    let seed = number("NX_VULKAN_TEST_SEED", 20_261_121);
    let only = number("NX_VULKAN_PROGRAM", u64::MAX);
    for case in 0..number("NX_VULKAN_PROGRAMS", default) {
        if only != u64::MAX && case != only {
            continue;
        }
        let mut rng = Rng((seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..4).for_each(|_| {
            rng.next();
        });
        let length = 4 + rng.below(14) as usize;
        let program = graphs::program(&mut rng, length, complex);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        test(case, &program, &inputs);
    }
}

fn kernels(program: &Program) -> usize {
    program.instructions.iter().filter(|i| !matches!(i.op, Op::Constant(_))).count()
}

#[test]
fn optimized_programs_mean_the_same() {
    cases(500, true, |case, program, inputs| {
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert!(kernels(&optimized) <= kernels(program), "case {case}: {program}");
        let expected = reference::run(program, inputs).unwrap();
        let got = reference::run(&optimized, inputs).unwrap();
        for (k, (a, b)) in expected.iter().zip(&got).enumerate() {
            let differs = difference(a, b);
            assert!(differs.is_none(), "case {case}, output {k}: {differs:?} of {program}, optimized {optimized}");
        }
    });
}

#[test]
fn fused_kernels_give_the_bits_of_single_ops() {
    bits(60, &Target::of(engine().caps()));
}

/// As on GPUs, where runs of small ops are one kernel.
#[test]
fn workgroups_give_the_bits_of_single_ops() {
    bits(40, &Target { workgroups: true, ..gpu() });
}

fn bits(default: u64, target: &Target) {
    cases(default, false, |case, program, inputs| {
        let optimized = optimize(program.clone(), target).unwrap();
        let expected = run(program, inputs);
        let got = run(&optimized, inputs);
        for (k, (a, b)) in expected.iter().zip(&got).enumerate() {
            let differs = difference(a, b);
            assert!(differs.is_none(), "case {case}, output {k}: {differs:?} of {program}, optimized {optimized}");
        }
    });
    common::assert_valid(engine());
}
