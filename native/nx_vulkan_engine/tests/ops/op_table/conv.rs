//! Convolutions with random options.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::{Conv, Op};
use nx_vulkan_engine::shape::Dims;
use nx_vulkan_engine::{DType, DeviceKind, Tensor, Type, reference};
use nx_vulkan_ir::dtype::merge;
use smallvec::{SmallVec, smallvec};

use super::values::{Range, operand};
use super::{download, engine, finish, rng, run, upload, verify, verify_on};
use crate::common::Rng;
use crate::compare::{Bound, epsilon, mismatch};

fn permutation(rank: usize, rng: &mut Rng) -> Axes {
    let mut axes: Axes = (0..rank).collect();
    for i in (1..rank).rev() {
        axes.swap(i, rng.below(i as u64 + 1) as usize);
    }
    axes
}

/// A shape whose axis `axes[i]` has size `own[i]`.
fn permuted(axes: &Axes, own: &[u64]) -> Vec<u64> {
    let mut shape = vec![0; own.len()];
    axes.iter().zip(own).for_each(|(&axis, &size)| shape[axis] = size);
    shape
}

fn result_type(a: DType, b: DType) -> DType {
    let merged = merge(a, b);
    if merged.is_integer() { DType::F32 } else { merged }
}

fn bound(out: DType, terms: u64, largest: f64) -> Bound {
    let narrow = if out.is_canonical() { 0.0 } else { 2f64.powi(-9) };
    Bound::Norm {
        relative: 2.0 * epsilon(out),
        absolute: (terms * terms) as f64 * largest * epsilon(out.ctype().dtype()) + narrow,
    }
}

struct Case {
    conv: Conv,
    input: Vec<u64>,
    kernel: Vec<u64>,
}

/// A random case; `sizes` are images, channels of a group, filters of a group, and space.
fn case(sizes: [u64; 3], space: &[u64], groups: [u64; 2], permute: bool, rng: &mut Rng) -> Case {
    let rank = space.len() + 2;
    loop {
        let mut small = |limit: u64| -> SmallVec<[u64; 6]> { space.iter().map(|_| 1 + rng.below(limit)).collect() };
        let (strides, input_dilation, kernel_dilation, window) = (small(3), small(2), small(2), small(3));
        let padding = space.iter().map(|_| (rng.below(5) as i64 - 1, rng.below(5) as i64 - 1)).collect();
        let mut axes = || if permute { permutation(rank, rng) } else { (0..rank).collect() };
        let conv = Conv {
            strides,
            padding,
            input_dilation,
            kernel_dilation,
            feature_groups: groups[0],
            batch_groups: groups[1],
            input_axes: axes(),
            kernel_axes: axes(),
            output_axes: axes(),
        };
        let [images, channels, filters] = sizes;
        let input = permuted(&conv.input_axes, &[&[images * groups[1], channels * groups[0]], space].concat());
        let kernel = permuted(&conv.kernel_axes, &[&[filters * groups[0] * groups[1], channels], &window[..]].concat());
        if conv.sizes(&input, &kernel).is_ok() {
            return Case { conv, input, kernel };
        }
    }
}

fn check(case: Case, dtypes: [DType; 2], rng: &mut Rng) {
    let Case { conv, input, kernel } = case;
    let sizes = conv.sizes(&input, &kernel).unwrap();
    let out = Type::new(result_type(dtypes[0], dtypes[1]), &conv.output(&sizes));
    let terms = sizes.channels * sizes.windows.sizes.iter().product::<u64>();
    let largest = if dtypes.iter().any(|t| t.is_integer()) { 100.0 } else { 13.0 };
    let a = operand(&Type::new(dtypes[0], &input), Range::Ordinary, 0, rng);
    let b = operand(&Type::new(dtypes[1], &kernel), Range::Ordinary, 1, rng);
    verify(&Op::Conv(Box::new(conv)), &[a, b], &out, bound(out.dtype, terms, largest));
}

#[test]
fn convolutions_of_all_types() {
    let mut rng = rng(70);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let other = if i % 3 == 0 { DType::ALL[(i * 7 + 3) % 20] } else { dtype };
        let one = case([2, 3, 2], &[5, 6], [1, 1], i % 2 == 0, &mut rng);
        check(one, [dtype, other], &mut rng);
    }
    finish();
}

#[test]
fn convolutions_with_random_options() {
    let mut rng = rng(71);
    for i in 0..24 {
        let space: &[u64] = [&[7][..], &[5, 6], &[3, 4, 3], &[1, 9], &[]][i % 5];
        let groups = [[1, 1], [3, 1], [1, 2], [4, 1]][rng.below(4) as usize];
        let sizes = [1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(3)];
        let one = case(sizes, space, groups, i % 3 != 0, &mut rng);
        check(one, [[DType::F32; 2], [DType::F64; 2]][i % 2], &mut rng);
    }
    finish();
}

/// Large enough for the kernel that loads four elements at a time, in both orders of results.
#[test]
fn large_convolutions() {
    let mut rng = rng(72);
    let plain: Axes = (0..4).collect();
    let last: Axes = Axes::from_slice(&[0, 3, 1, 2]);
    let first_filters = Axes::from_slice(&[3, 2, 0, 1]);
    for (dtype, channels, filters, window, low, input_axes, kernel_axes, output_axes) in [
        (DType::F32, 16, 20, 3, 1, &plain, &plain, &plain),
        (DType::F32, 16, 20, 3, 1, &last, &first_filters, &last),
        (DType::F32, 11, 17, 3, 1, &last, &first_filters, &plain),
        (DType::F32, 64, 32, 1, 0, &plain, &plain, &plain),
        (DType::F32, 64, 32, 1, 0, &last, &first_filters, &last),
        (DType::F32, 18, 36, 2, 0, &plain, &plain, &last),
        (DType::F16, 18, 20, 3, 1, &plain, &plain, &plain),
        (DType::U8, 17, 20, 3, 1, &plain, &plain, &plain),
        (DType::F64, 18, 20, 3, 1, &plain, &plain, &plain),
        (DType::C64, 18, 20, 3, 1, &plain, &plain, &plain),
    ] {
        let conv = Conv {
            strides: smallvec![1, 1],
            padding: smallvec![(low, low), (low, low)],
            input_dilation: smallvec![1, 1],
            kernel_dilation: smallvec![1, 1],
            feature_groups: 1,
            batch_groups: 1,
            input_axes: input_axes.clone(),
            kernel_axes: kernel_axes.clone(),
            output_axes: output_axes.clone(),
        };
        let input = permuted(input_axes, &[1, channels, 8, 12]);
        let kernel = permuted(kernel_axes, &[filters, channels, window, window]);
        check(Case { conv, input, kernel }, [dtype; 2], &mut rng);
    }
    finish();
}

/// Kernels larger than the result, as in gradients by kernels: read where they lie, with images innermost in a copy of
/// the input, or its elements one by one.
#[test]
fn convolutions_by_large_kernels() {
    let mut rng = rng(76);
    let plain: Axes = (0..4).collect();
    let swapped = Axes::from_slice(&[1, 0, 2, 3]);
    for (dtype, sizes, space, low, groups, axes) in [
        (DType::F32, [8, 6, 16], [8, 12], 1, 1, &swapped),
        (DType::F32, [36, 33, 17], [4, 7], 1, 1, &swapped),
        (DType::F32, [4, 8, 16], [8, 12], 2, 2, &plain),
        (DType::F64, [8, 6, 16], [8, 12], 1, 1, &swapped),
        (DType::F32, [1, 16, 16], [8, 12], 1, 1, &swapped),
        (DType::F32, [4, 16, 16], [8, 12], 0, 1, &plain),
        (DType::F32, [3, 16, 16], [8, 12], 1, 1, &swapped),
        (DType::F32, [8, 16, 16], [8, 12], -1, 1, &swapped),
    ] {
        let [images, channels, filters] = sizes;
        let conv = Conv {
            strides: smallvec![1, 1],
            padding: smallvec![(low, low), (low, low)],
            input_dilation: smallvec![1, 1],
            kernel_dilation: smallvec![1, 1],
            feature_groups: groups,
            batch_groups: 1,
            input_axes: axes.clone(),
            kernel_axes: axes.clone(),
            output_axes: axes.clone(),
        };
        let input = permuted(axes, &[images, channels * groups, space[0], space[1]]);
        let window = space.map(|n| {
            if low == 0 {
                n - 1
            } else if low < 0 {
                n - 3
            } else {
                n
            }
        });
        let kernel = permuted(axes, &[filters * groups, channels, window[0], window[1]]);
        check(Case { conv, input, kernel }, [dtype; 2], &mut rng);
    }
    finish();
}

/// What a dilated input gives without its zeros is what it gives with them, for strides, dilations and padding of all
/// kinds, also where results or images meet nothing but zeros.
#[test]
fn convolutions_of_dilated_inputs() {
    let mut rng = rng(77);
    let (plain, last): (Axes, Axes) = ((0..4).collect(), Axes::from_slice(&[0, 3, 1, 2]));
    let (filters_last, swapped) = (Axes::from_slice(&[3, 2, 0, 1]), Axes::from_slice(&[3, 0, 1, 2]));
    for (dtype, [images, channels, filters], window, dilations, kernel_dilations, strides, padding, axes) in [
        // Gradients by the input of strided convolutions, and one that has fewer elements than it strides.
        (DType::F32, [2, 48, 64], [3, 3], [2, 2], [1, 1], [1, 1], [(1, 2), (1, 1)], [&last, &filters_last, &last]),
        (DType::F32, [2, 128, 128], [1, 1], [2, 2], [1, 1], [1, 1], [(0, 1), (0, 0)], [&last, &filters_last, &last]),
        (DType::F32, [3, 33, 48], [5, 4], [3, 2], [1, 1], [1, 1], [(4, 5), (-2, 3)], [&plain, &plain, &plain]),
        (DType::F64, [2, 48, 64], [4, 2], [2, 4], [1, 1], [1, 1], [(3, 3), (0, 0)], [&last, &filters_last, &last]),
        // A transposed convolution without overlaps, and its gradient by the kernel.
        (DType::Bf16, [2, 96, 96], [2, 2], [2, 2], [1, 1], [1, 1], [(1, 1), (1, 1)], [&last, &filters_last, &last]),
        (DType::F32, [64, 16, 96], [16, 14], [2, 2], [1, 1], [1, 1], [(0, 0), (0, 0)], [&swapped, &swapped, &swapped]),
        (DType::F16, [64, 16, 64], [14, 15], [2, 2], [1, 1], [1, 1], [(0, 1), (1, 0)], [&swapped, &swapped, &swapped]),
        // Strides and dilations of the kernel that share a factor with that of the input, or none.
        (DType::F32, [4, 64, 64], [3, 3], [2, 4], [2, 3], [3, 2], [(2, 3), (5, 5)], [&last, &filters_last, &last]),
        (DType::Bf16, [3, 33, 67], [3, 3], [2, 2], [1, 1], [1, 1], [(1, 1), (2, 1)], [&plain, &plain, &last]),
        (DType::F32, [2, 64, 64], [3, 3], [2, 2], [1, 1], [1, 1], [(40, 30), (1, 1)], [&last, &plain, &plain]),
    ] {
        let conv = Conv {
            strides: Dims::from_slice(&strides),
            padding: padding.into_iter().collect(),
            input_dilation: Dims::from_slice(&dilations),
            kernel_dilation: Dims::from_slice(&kernel_dilations),
            feature_groups: 1,
            batch_groups: 1,
            input_axes: axes[0].clone(),
            kernel_axes: axes[1].clone(),
            output_axes: axes[2].clone(),
        };
        let input = Type::new(dtype, &permuted(axes[0], &[images, channels, 9, 8]));
        let kernel = Type::new(dtype, &permuted(axes[1], &[filters, channels, window[0], window[1]]));
        let sizes = conv.sizes(&input.shape, &kernel.shape).unwrap();
        let out = Type::new(dtype, &conv.output(&sizes));
        let [a, b] = [(0, &input), (1, &kernel)].map(|(i, ty)| upload(&operand(ty, Range::Ordinary, i, &mut rng)));
        // With the zeros written among its elements first.
        let mut config = [(0, 0, 0); 4];
        axes[0][2..].iter().zip(dilations).for_each(|(&axis, step)| config[axis].2 = step - 1);
        let dilated = permuted(axes[0], &[&[images, channels], &conv.dilated(&sizes.space).unwrap()[..]].concat());
        let zero =
            Tensor::from_nx_bytes(engine(), &Type::new(dtype, &[]), &vec![0; dtype.size_bytes() as usize]).unwrap();
        let pad = Op::from(Pad { config: config.as_slice().into() });
        let among_zeros = run(&pad, &[a.clone(), zero], &Type::new(dtype, &dilated)).unwrap();
        let dense = Conv { input_dilation: smallvec![1, 1], ..conv.clone() };
        let wanted = download(&run(&Op::Conv(Box::new(dense)), &[among_zeros, b.clone()], &out).unwrap());
        let phases = conv.phases(&sizes).unwrap().len() as u64;
        let before = engine().stats().dispatches;
        let got = download(&run(&Op::Conv(Box::new(conv.clone())), &[a, b], &out).unwrap());
        // GPUs multiply zeros of so few elements.
        let is_cpu = engine().info().kind == DeviceKind::Cpu;
        assert!(!is_cpu || engine().stats().dispatches - before >= phases, "{conv:?} has {phases} phases");
        let within = bound(dtype, sizes.depth(), 13.0);
        assert_eq!(mismatch(&got, &[wanted], within), None, "{conv:?} of {input:?} by {kernel:?}");
    }
    finish();
}

#[test]
fn convolutions_of_views() {
    let mut rng = rng(73);
    let ty = Type::new(DType::F32, &[2, 4, 6, 5]);
    let (a, kernel) = (
        operand(&ty, Range::Ordinary, 0, &mut rng),
        operand(&Type::new(DType::F32, &[3, 4, 2, 3]), Range::Ordinary, 1, &mut rng),
    );
    let flip = |axes: &[usize]| Op::from(Reverse { axes: Axes::from_slice(axes) });
    let (flip_a, flip_kernel) = (flip(&[0, 3]), flip(&[2, 3]));
    let tensors =
        [run(&flip_a, &[upload(&a)], &a.ty).unwrap(), run(&flip_kernel, &[upload(&kernel)], &kernel.ty).unwrap()];
    let arrays = [
        reference::evaluate(&flip_a, std::slice::from_ref(&a), &a.ty).unwrap(),
        reference::evaluate(&flip_kernel, std::slice::from_ref(&kernel), &kernel.ty).unwrap(),
    ];
    let axes: Axes = (0..4).collect();
    let conv = Conv {
        strides: smallvec![1, 2],
        padding: smallvec![(0, 0), (0, -1)],
        input_dilation: smallvec![1, 1],
        kernel_dilation: smallvec![2, 1],
        feature_groups: 1,
        batch_groups: 1,
        input_axes: axes.clone(),
        kernel_axes: axes.clone(),
        output_axes: axes,
    };
    let out = Type::new(DType::F32, &conv.output(&conv.sizes(&a.ty.shape, &kernel.ty.shape).unwrap()));
    verify_on(&Op::Conv(Box::new(conv)), &tensors, &arrays, &out, bound(DType::F32, 24, 13.0));
    finish();
}
