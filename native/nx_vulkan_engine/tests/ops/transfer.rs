//! Tensors that go from one engine to another. Two engines of one device have a queue and memory of their own each.

use std::sync::Arc;

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::{Compile, DType, Engine, Error, HostAccess, Options, Tensor, Type, eager};

use smallvec::smallvec;

use crate::common::{self, Rng};

/// Whose memory the host can't reach, so that copies are submitted on CPU devices, too.
fn engines() -> [Arc<Engine>; 2] {
    let options = Options { host_access: HostAccess::Never, ..common::options() };
    [(); 2].map(|()| Engine::open_with(&options).unwrap())
}

fn random(engine: &Engine, dtype: DType, shape: &[u64]) -> Tensor {
    let ty = Type::new(dtype, shape);
    let size = (ty.elements() * u64::from(dtype.bits())).div_ceil(8);
    let mut bytes = Rng(size).bytes(size as usize);
    // Of types below a byte the last one may be filled up.
    let used = (ty.elements() * u64::from(dtype.bits())) % 8;
    if used > 0 {
        *bytes.last_mut().unwrap() &= 0xffu8 << (8 - used);
    }
    Tensor::from_nx_bytes(engine, &ty, &bytes).unwrap()
}

#[test]
fn every_type_arrives_with_its_bits() {
    let [from, to] = engines();
    // Memory that the host reaches, and memory that it does not.
    for to in common::every_host_access().into_iter().chain([to]) {
        for dtype in DType::ALL {
            for shape in [&[][..], &[1], &[3, 5], &[2, 1, 1025]] {
                let tensor = random(&from, dtype, shape);
                let moved = tensor.transferred(&from, &to).unwrap();
                assert_eq!(moved.view().ty(), tensor.view().ty());
                let (here, there) = (tensor.to_nx_bytes(&from, None), moved.to_nx_bytes(&to, None));
                assert_eq!(there.unwrap(), here.unwrap(), "{dtype} {shape:?}");
            }
        }
        common::assert_valid(&to);
    }
    common::assert_valid(&from);
}

#[test]
fn views_arrive_in_row_major_order_and_repeated_elements_as_one() {
    let [from, to] = engines();
    let tensor = random(&from, DType::F32, &[7, 11]);
    let transpose = Op::Transpose { axes: Axes::from_slice(&[1, 0]) };
    let turned = eager::run(&from, &transpose, &[tensor], &Type::new(DType::F32, &[11, 7]), Compile::Allowed).unwrap();
    let moved = turned.transferred(&from, &to).unwrap();
    assert!(moved.view().is_contiguous() && !turned.view().is_contiguous());
    assert_eq!(moved.to_nx_bytes(&to, None).unwrap(), turned.to_nx_bytes(&from, None).unwrap());

    let number = Tensor::from_slice(&from, &[3], &[1f32, 2.5, 4.0]).unwrap();
    let slice = Op::Slice { starts: smallvec![Some(1)], strides: smallvec![1], lengths: smallvec![1] };
    let one = eager::run(&from, &slice, &[number], &Type::new(DType::F32, &[1]), Compile::Allowed).unwrap();
    let broadcast = Op::Broadcast { axes: Axes::from_slice(&[0]) };
    let repeated = eager::run(&from, &broadcast, &[one], &Type::new(DType::F32, &[1000]), Compile::Allowed).unwrap();
    assert!(repeated.view().is_uniform() && repeated.view().offset == 1);
    let moved = repeated.transferred(&from, &to).unwrap();
    assert_eq!((moved.view().is_uniform(), moved.buffer().size_bytes()), (true, 4));
    assert_eq!(moved.to_vec::<f32>(&to).unwrap(), [2.5; 1000]);
}

#[test]
fn large_tensors_go_in_parts_and_what_is_recorded_comes_after() {
    let [from, to] = engines();
    // Three parts of 32 MiB, the last of which is shorter.
    let tensor = random(&from, DType::U8, &[(70 << 20) + 3]);
    let moved = tensor.transferred(&from, &to).unwrap();
    // Its memory may go back while the copies are under way.
    let copy = eager::copied(&to, &moved, Compile::Allowed).unwrap();
    drop(moved);
    let is_same = copy.to_nx_bytes(&to, None).unwrap() == tensor.to_nx_bytes(&from, None).unwrap();
    assert!(is_same);
}

#[test]
fn an_error_of_either_engine_is_told() {
    for (failing, size) in [(0, 64), (1, 64), (0, 70 << 20), (1, 70 << 20)] {
        let both = engines();
        let [from, to] = &both;
        let tensor = random(from, DType::U8, &[size]);
        from.wait().unwrap();
        both[failing].fail_next_submission();
        let moved = tensor.transferred(from, to).and_then(|moved| {
            let copy = eager::copied(to, &moved, Compile::Allowed)?;
            copy.to_nx_bytes(to, None)
        });
        let error = moved.unwrap_err();
        assert!(matches!(error, Error::Vulkan { .. } | Error::DeviceLost), "{failing} {size}: {error}");
    }
}

#[test]
fn an_error_of_one_engine_leaves_the_other_alone() {
    let [failing, other] = engines();
    let tensor = random(&failing, DType::F32, &[64]);
    failing.wait().unwrap();
    failing.fail_next_submission();
    assert!(eager::copied(&failing, &tensor, Compile::Allowed).and_then(|t| t.to_nx_bytes(&failing, None)).is_err());
    // It sticks there.
    assert!(failing.wait().is_err());
    let ones = Tensor::from_slice(&other, &[3], &[1f32; 3]).unwrap();
    let copy = eager::copied(&other, &ones, Compile::Allowed).unwrap();
    assert_eq!(copy.to_vec::<f32>(&other).unwrap(), [1.0; 3]);
    other.wait().unwrap();
}

#[test]
fn an_operand_of_another_engine_is_refused() {
    let [from, to] = engines();
    let tensor = random(&from, DType::F32, &[4]);
    let error = eager::copied(&to, &tensor, Compile::Allowed).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
