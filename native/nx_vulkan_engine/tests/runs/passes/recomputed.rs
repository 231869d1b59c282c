//! Results that are computed again for what reads them late.

use nx_vulkan_engine::program::passes::{Recompute, Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Type, Value};

use super::{difference, engine, gpu, run};
use crate::common::{self, Rng};

/// Rows and units of a layer: its activations have 4 MiB.
const ROWS: u64 = 1 << 14;
const UNITS: u64 = 64;

/// Layers `tanh(x w) + x w`, the sum of the last one's results, and the gradients of the weights. What is drawn for
/// each element, where it is, is compared with a number in both directions.
fn trained(layers: usize, masks: bool) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, &[ROWS, UNITS]);
    let weights: Vec<Operand> = (0..layers).map(|_| b.input(DType::F32, &[UNITS, UNITS])).collect();
    let (mut h, mut kept) = (x, Vec::new());
    for &w in &weights {
        let a = b.dot_axes([h, w], [&[1], &[0]], [&[], &[]]);
        let t = b.tanh(a);
        let mut next = b.add(t, b.multiply(a, 0.5));
        if masks {
            next = b.select(b.binary(Binary::Greater, b.sin(a), b.number(DType::F32, 0.0)), next, 0.0);
        }
        kept.push((h, a, t));
        h = next;
    }
    let loss = b.sum(b.multiply(h, h), &[0, 1]);
    let mut outputs = vec![loss];
    let mut gradient = b.multiply(h, 2.0);
    for (&w, &(before, a, t)) in weights.iter().zip(&kept).rev() {
        if masks {
            gradient = b.select(b.binary(Binary::Greater, b.sin(a), b.number(DType::F32, 0.0)), gradient, 0.0);
        }
        let slope = b.add(b.subtract(b.number(DType::F32, 1.0), b.multiply(t, t)), b.multiply(a, 0.5));
        let inner = b.multiply(gradient, slope);
        outputs.push(b.dot_axes([before, inner], [&[0], &[0]], [&[], &[]]));
        gradient = b.dot_axes([inner, w], [&[1], &[1]], [&[], &[]]);
    }
    b.finish(&outputs).unwrap()
}

fn values(program: &Program, rng: &mut Rng) -> Vec<Array> {
    let number = |rng: &mut Rng| Value::Float(f64::from((rng.below(4001) as f32 - 2000.0) / 8000.0));
    let array = |ty| {
        let mut array = Array::new(ty, (0..ty.elements()).map(|_| number(rng)).collect::<Vec<_>>());
        // Wherever these come from and go to, they are the same.
        array.values[5] = Value::Float(f64::NAN);
        array.values[6] = Value::Float(-0.0);
        array
    };
    program.inputs.iter().map(array).collect()
}

/// As much as can be had.
fn most() -> Recompute {
    Recompute { shares: 1000, most_per_byte: 1000, ..gpu().recompute }
}

/// A GPU's target where all is kept.
fn keeping() -> Target {
    Target { recompute: Recompute { shares: 0, ..gpu().recompute }, ..gpu() }
}

#[test]
fn activations_are_computed_again_in_the_backward_pass() {
    let mut rng = Rng(20_261_132);
    for masks in [false, true] {
        let program = trained(6, masks);
        let kept = optimize(program.clone(), &keeping()).unwrap();
        let again = optimize(program.clone(), &gpu()).unwrap();
        let layer = ROWS * UNITS * 4;
        let [kept, less] = [&kept, &again].map(Program::evaluated_bytes);
        assert!(less + layer <= kept, "{less} {kept} {again}");
        let inputs = values(&program, &mut rng);
        let expected = run(&program, &inputs);
        for (got, want) in run(&again, &inputs).iter().zip(&expected) {
            assert_eq!(difference(got, want), None, "{again}");
        }
    }
    common::assert_valid(engine());
}

/// Layers `x erf(x)` of products, as in a gelu, and the gradients of the weights: the backward pass reads the products,
/// and what the error function gave. That is seen in another shape there, if asked.
fn gelus(layers: usize, is_reshaped: bool) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, &[ROWS, UNITS]);
    let weights: Vec<Operand> = (0..layers).map(|_| b.input(DType::F32, &[UNITS, UNITS])).collect();
    let (mut h, mut kept) = (x, Vec::new());
    for &w in &weights {
        let a = b.dot_axes([h, w], [&[1], &[0]], [&[], &[]]);
        let e = b.erf(a);
        kept.push((h, a, e));
        h = b.multiply(a, e);
    }
    let mut outputs = vec![b.sum(b.multiply(h, h), &[0, 1])];
    let mut gradient = b.multiply(h, 2.0);
    for (&w, &(before, a, e)) in weights.iter().zip(&kept).rev() {
        let inner = match is_reshaped {
            true => {
                let whole = [ROWS / 2, 2 * UNITS];
                let [gradient, a, e] = [gradient, a, e].map(|x| b.reshape(x, &whole));
                b.reshape(b.multiply(gradient, b.add(e, b.cos(a))), &[ROWS, UNITS])
            }
            false => b.multiply(gradient, b.add(e, b.cos(a))),
        };
        outputs.push(b.dot_axes([before, inner], [&[0], &[0]], [&[], &[]]));
        gradient = b.dot_axes([inner, w], [&[1], &[1]], [&[], &[]]);
    }
    b.finish(&outputs).unwrap()
}

/// Kernels that store two results.
fn pairs(program: &Program) -> usize {
    program.instructions.iter().filter(|i| matches!(i.op, Op::Fused(_)) && i.outs.len() == 2).count()
}

#[test]
fn kernels_compute_what_they_would_read() {
    let mut rng = Rng(20_261_133);
    for is_reshaped in [false, true] {
        let program = gelus(6, is_reshaped);
        let kept = optimize(program.clone(), &keeping()).unwrap();
        let again = optimize(program.clone(), &gpu()).unwrap();
        // What the error function gives is stored nowhere, but of the layer at the peak perhaps.
        assert!(pairs(&again) <= 1 && pairs(&kept) >= 5, "{again}");
        let [before, after] = [&kept, &again].map(Program::evaluated_bytes);
        assert!(after + 4 * ROWS * UNITS * 4 <= before, "{after} {before} {again}");
        let inputs = values(&program, &mut rng);
        let expected = run(&program, &inputs);
        for (got, want) in run(&again, &inputs).iter().zip(&expected) {
            assert_eq!(difference(got, want), None, "{again}");
        }
    }
    common::assert_valid(engine());
}

/// Attention of some rows to themselves in several layers, and the gradients of what scales its queries. The weights
/// take 4 MiB in each.
fn attending(layers: usize) -> Program {
    let (heads, rows, depth) = (4, 512, 64);
    let b = Builder::new();
    let scales: Vec<Operand> = (0..layers).map(|_| b.input(DType::F32, &[depth])).collect();
    let mut x = b.input(DType::F32, &[heads, rows, depth]);
    let mut kept = Vec::new();
    let spread = |row| b.broadcast(row, &[heads, rows, rows]);
    for &scale in &scales {
        let queries = b.multiply(x, scale);
        let scores = b.dot_axes([queries, x], [&[2], &[2]], [&[0], &[0]]);
        let most = b.reshape(b.reduce_max(scores, &[2]), &[heads, rows, 1]);
        let grown = b.exp(b.subtract(scores, spread(most)));
        let weights = b.divide(grown, spread(b.reshape(b.sum(grown, &[2]), &[heads, rows, 1])));
        kept.push((x, weights, scale));
        x = b.add(b.dot_axes([weights, x], [&[2], &[1]], [&[0], &[0]]), x);
    }
    let mut outputs = vec![b.sum(b.multiply(x, x), &[0, 1, 2])];
    let mut gradient = b.multiply(x, 2.0);
    for &(x, weights, scale) in kept.iter().rev() {
        let of_weights = b.dot_axes([gradient, x], [&[2], &[2]], [&[0], &[0]]);
        let inner = b.reshape(b.sum(b.multiply(of_weights, weights), &[2]), &[heads, rows, 1]);
        let of_scores = b.multiply(weights, b.subtract(of_weights, spread(inner)));
        let of_queries = b.dot_axes([of_scores, x], [&[2], &[1]], [&[0], &[0]]);
        outputs.push(b.sum(b.multiply(of_queries, x), &[0, 1]));
        let of_values = b.dot_axes([weights, gradient], [&[1], &[1]], [&[0], &[0]]);
        gradient = b.add(b.add(of_values, b.multiply(of_queries, scale)), gradient);
    }
    b.finish(&outputs).unwrap()
}

#[test]
fn weights_of_attention_are_computed_again_from_products() {
    let mut rng = Rng(20_261_134);
    let program = attending(6);
    let products = |program: &Program| program.instructions.iter().filter(|i| matches!(i.op, Op::Dot { .. })).count();
    let kept = optimize(program.clone(), &keeping()).unwrap();
    let again = optimize(program.clone(), &Target { recompute: most(), ..gpu() }).unwrap();
    assert!(products(&again) >= products(&kept) + 4, "{again}");
    let [before, after] = [&kept, &again].map(Program::evaluated_bytes);
    assert!(after + 3 * (4 << 20) <= before, "{after} {before} {again}");
    let inputs = values(&program, &mut rng);
    let expected = run(&program, &inputs);
    for (got, want) in run(&again, &inputs).iter().zip(&expected) {
        assert_eq!(difference(got, want), None, "{again}");
    }
    common::assert_valid(engine());
}

#[test]
fn weights_are_computed_again_in_two_kernels() {
    // A kernel of each layer stores exponentials, their sums in rows, and these numbers times the inverse of the sum,
    // which is computed once for each row.
    let (layers, size) = (4, 1 << 10);
    let types = [size, 1, size].map(|columns| Type::new(DType::F32, &[size, columns]));
    let kernel = {
        let b = Builder::new();
        let grown = b.exp(b.input(DType::F32, &[size, size]));
        let sum = b.reduce(Reduction::Sum, grown, &[1], true);
        let weights = b.multiply(b.divide(b.number(DType::F32, 1.0), sum), grown);
        Op::Fused(Box::new(b.finish(&[grown, sum, weights]).unwrap()))
    };
    let b = Builder::new();
    let [x, w, back] = [[size, UNITS], [UNITS, size], [size, UNITS]].map(|shape| b.input(DType::F32, &shape));
    let (mut h, mut kept) = (x, Vec::new());
    for _ in 0..layers {
        let stored = b.push_all(kernel.clone(), &[b.dot(h, w)], &types);
        h = b.dot(stored[2], back);
        kept.push(stored);
    }
    let mut outputs = vec![h];
    for stored in kept.iter().rev() {
        let of_weights = b.dot_axes([h, back], [&[1], &[1]], [&[], &[]]);
        outputs.push(b.dot_axes([stored[2], h], [&[0], &[0]], [&[], &[]]));
        let of_rows = b.multiply(stored[0], b.add(of_weights, stored[1]));
        h = b.dot_axes([of_rows, w], [&[1], &[1]], [&[], &[]]);
    }
    let program = b.finish(&outputs).unwrap();
    let kept = optimize(program.clone(), &keeping()).unwrap();
    let again = optimize(program.clone(), &Target { recompute: most(), ..gpu() }).unwrap();
    let fused = |program: &Program| program.instructions.iter().filter(|i| matches!(i.op, Op::Fused(_))).count();
    assert!(fused(&again) >= fused(&kept) + 2 && again.evaluated_bytes() < kept.evaluated_bytes(), "{again}");
    let inputs = values(&program, &mut Rng(20_261_135));
    for (got, want) in run(&again, &inputs).iter().zip(&run(&program, &inputs)) {
        assert_eq!(difference(got, want), None, "{again}");
    }
    common::assert_valid(engine());
}

#[test]
fn little_is_kept() {
    // Of a sixteenth of the rows.
    let b = Builder::new();
    let x = b.input(DType::F32, &[ROWS / 16, UNITS]);
    let w = b.input(DType::F32, &[UNITS, UNITS]);
    let a = b.dot_axes([x, w], [&[1], &[0]], [&[], &[]]);
    let t = b.tanh(a);
    let next = b.dot_axes([b.multiply(t, a), w], [&[1], &[0]], [&[], &[]]);
    let inner = b.multiply(next, b.subtract(b.number(DType::F32, 1.0), b.multiply(t, t)));
    let gradient = b.dot_axes([x, inner], [&[0], &[0]], [&[], &[]]);
    let program = b.finish(&[gradient]).unwrap();
    let [kept, again] = [keeping(), gpu()].map(|target| optimize(program.clone(), &target).unwrap());
    assert_eq!(kept, again);
}

#[test]
fn what_is_computed_behind_a_fence_is_not_late() {
    // Blocks of two layers whose activations the backward pass computes again, from what goes into the block: what the
    // first layer gives is read by the second one, and soon after by the gradient of its weights.
    let b = Builder::new();
    let x = b.input(DType::F32, &[ROWS, UNITS]);
    let weights: Vec<[Operand; 2]> = (0..6).map(|_| [(); 2].map(|()| b.input(DType::F32, &[UNITS, UNITS]))).collect();
    let block = |mut h: Operand, weights: &[Operand; 2]| {
        let layers = weights.map(|w| {
            let before = h;
            let a = b.dot_axes([before, w], [&[1], &[0]], [&[], &[]]);
            let t = b.tanh(a);
            h = b.add(t, b.multiply(a, 0.5));
            (before, a, t)
        });
        (layers, h)
    };
    let (mut h, mut before) = (x, Vec::new());
    for weights in &weights {
        before.push(h);
        h = block(h, weights).1;
    }
    let mut gradient = b.multiply(h, 2.0);
    let mut outputs = Vec::new();
    for (weights, &before) in weights.iter().zip(&before).rev() {
        let fenced = b.push(Op::After, &[before, gradient], &b.ty(before));
        let (layers, _) = block(fenced, weights);
        for (&w, (before, a, t)) in weights.iter().zip(layers).rev() {
            let slope = b.add(b.subtract(b.number(DType::F32, 1.0), b.multiply(t, t)), b.multiply(a, 0.5));
            let inner = b.multiply(gradient, slope);
            outputs.push(b.dot_axes([before, inner], [&[0], &[0]], [&[], &[]]));
            gradient = b.dot_axes([inner, w], [&[1], &[1]], [&[], &[]]);
        }
    }
    let program = b.finish(&outputs).unwrap();
    let [kept, again] = [keeping(), gpu()].map(|target| optimize(program.clone(), &target).unwrap());
    let fused = |program: &Program| program.instructions.iter().filter(|i| matches!(i.op, Op::Fused(_))).count();
    // One in the block where most is there.
    assert!(fused(&again) <= fused(&kept) + 1, "{again}");
}

#[test]
fn what_is_seen_behind_a_fence_is_not_kept_for_what_is_computed_of_it() {
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[ROWS, UNITS]), b.input(DType::F32, &[UNITS, UNITS]));
    let dot = |a| b.dot_axes([a, w], [&[1], &[0]], [&[], &[]]);
    let kept = dot(x);
    let fenced = b.push(Op::After, &[kept, dot(kept)], &b.ty(kept));
    let r = b.sin(fenced);
    // Read at once, then what takes most, then read again.
    let mut y = dot(r);
    for k in 1..5 {
        y = b.add(dot(b.sin(b.multiply(y, f64::from(k)))), y);
    }
    for _ in 0..6 {
        y = dot(y);
    }
    let last = dot(b.add(r, y));
    let program = b.finish(&[last]).unwrap();
    let readers = |program: &Program| {
        let at = program.instructions.iter().position(|i| i.op == Op::After).unwrap();
        let fenced = program.instructions[..at].iter().map(|i| i.outs.len() as u32).sum();
        program.instructions.iter().filter(|i| i.operands.contains(&Operand::Result(fenced))).count()
    };
    let [kept, again] = [keeping(), gpu()].map(|target| optimize(program.clone(), &target).unwrap());
    assert_eq!((readers(&kept), readers(&again)), (1, 1), "{again}");
}
