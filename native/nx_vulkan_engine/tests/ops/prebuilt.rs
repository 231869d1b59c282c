//! The shaders of the NativeV catalogue and generated kernels have their functions from one library: results are the
//! same to the bit, but for f32 `exp`, `tanh` and `erf` on GPUs, whose generated kernels need fewer steps where fma
//! rounds once: neighbours there.

use std::path::Path;

use nx_vulkan_engine::program::{Op, Unary};
use nx_vulkan_engine::{
    Access, Binding, BoundLaunch, Compile, DType, DeviceKind, Interface, PipelineKey, Tensor, Type, eager,
};

use crate::common::{self, Rng, engine, words};

/// Elements compared per function.
const N: usize = 1 << 20;

/// The op codes of `elementwise_unary.spv`.
const OPS: [(u32, Unary); 7] = [
    (0, Unary::Exp),
    (1, Unary::Log),
    (5, Unary::Sigmoid),
    (6, Unary::Tanh),
    (10, Unary::Sign),
    (13, Unary::Erf),
    (14, Unary::Expm1),
];

fn binding(tensor: &Tensor, access: Access) -> Binding<'_> {
    Binding { buffer: tensor.buffer(), offset: 0, size_bytes: tensor.view().ty().size_bytes(), access }
}

/// Whether two f32 have no other one between them.
fn are_neighbours(a: &[u8], b: &[u8]) -> bool {
    let [a, b] = [a, b].map(|bytes| i64::from(u32::from_ne_bytes(bytes.try_into().unwrap())));
    let [a, b] = [a, b].map(|bits| if bits < 1 << 31 { bits } else { (1 << 31) - bits });
    a.abs_diff(b) <= 1
}

fn compare(shader: &str, dtype: DType) {
    let engine = engine();
    if dtype == DType::F64 && !engine.caps().shader_float64 {
        println!("skipped: the device has no f64");
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders").join(shader);
    let spirv = words(&std::fs::read(path).unwrap());
    let ty = Type::new(dtype, &[N as u64]);
    // Any bits, and numbers of ordinary size, on which the functions do their work.
    let mut rng = Rng(0x2026_1120);
    let size = dtype.size_bytes() as usize;
    let bytes: Vec<u8> = (0..N)
        .flat_map(|i| {
            let x = (rng.next() >> 40) as f64 / f64::from(1 << 20) - 8.0;
            let bits = match (i % 2, dtype) {
                (0, _) => rng.next(),
                (_, DType::F64) => x.to_bits(),
                _ => u64::from((x as f32).to_bits()),
            };
            bits.to_le_bytes().into_iter().take(size)
        })
        .collect();
    let input = Tensor::from_nx_bytes(&engine, &ty, &bytes).unwrap();
    for (code, op) in OPS {
        let generated =
            eager::run(&engine, &Op::Unary(op), std::slice::from_ref(&input), &ty, Compile::Allowed).unwrap();
        let prebuilt = Tensor::uninitialized(&engine, &ty).unwrap();
        let interface = Interface::Descriptors { bindings: 2, push_bytes: 4 };
        let spec = [(0, code)];
        // SAFETY: the module is one of the tests, for this interface.
        let pipeline =
            unsafe { engine.pipeline(PipelineKey::new(&spirv, &spec, interface), &spirv, &spec, interface) }.unwrap();
        engine
            .dispatch_bound(&BoundLaunch {
                pipeline: &pipeline,
                push: &(N as u32).to_le_bytes(),
                groups: [(N as u32).div_ceil(256), 1, 1],
                bindings: &[binding(&input, Access::Read), binding(&prebuilt, Access::Write)],
            })
            .unwrap();
        let [generated, prebuilt] = [&generated, &prebuilt].map(|t| t.to_nx_bytes(&engine, None).unwrap());
        let is_shorter = dtype == DType::F32 && matches!(op, Unary::Exp | Unary::Tanh | Unary::Erf);
        let has_neighbours = is_shorter && engine.caps().kind != DeviceKind::Cpu;
        let is_same = |a: &[u8], b: &[u8]| a == b || has_neighbours && are_neighbours(a, b);
        let differ = generated.chunks(size).zip(prebuilt.chunks(size)).position(|(a, b)| !is_same(a, b));
        if let Some(i) = differ {
            let at = |bytes: &[u8]| bytes[i * size..(i + 1) * size].to_vec();
            panic!("{} {dtype} of {:x?}: {:x?} and {:x?}", op.name(), at(&bytes), at(&generated), at(&prebuilt));
        }
    }
    common::assert_valid(&engine);
}

#[test]
fn f32_results_are_the_same() {
    compare("elementwise_unary.spv", DType::F32);
}

#[test]
fn f64_results_are_the_same() {
    compare("elementwise_unary_f64.spv", DType::F64);
}
