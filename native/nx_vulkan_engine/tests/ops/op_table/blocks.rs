//! Maps of as many elements as CPU devices take by blocks: sizes around them, rare values and results in an operand's
//! place.

use nx_vulkan_engine::kernels::map::{Operand, Shapes, map};
use nx_vulkan_engine::program::{Binary, Elementwise, Op, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Type, Value};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use super::values::{Range, operand};
use super::{download, engine, finish, rng, run, upload, verify};
use crate::compare::{Bound, bound, mismatch};

/// Elements from which blocks are taken, of those of a block, and from which larger ones are.
const LEAST: u64 = 1 << 16;
const BLOCK: u64 = 128;
const MANY: u64 = 1 << 20;

/// The result is that of its parts, each of which is too small for blocks.
fn check_parts(op: Elementwise, operands: &[Array], out: DType) {
    const PART: usize = 10_007;
    let n = operands[0].values.len();
    let tensors: Vec<_> = operands.iter().map(upload).collect();
    let whole = download(&run(&Op::from(op), &tensors, &Type::new(out, &[n as u64])).unwrap());
    for at in (0..n).step_by(PART) {
        let end = (at + PART).min(n);
        let cut =
            |values: &[Value], dtype| Array::new(&Type::new(dtype, &[(end - at) as u64]), values[at..end].to_vec());
        let parts: Vec<_> = operands.iter().map(|a| upload(&cut(&a.values, a.ty.dtype))).collect();
        let part = download(&run(&Op::from(op), &parts, &Type::new(out, &[(end - at) as u64])).unwrap());
        let wrong = mismatch(&cut(&whole.values, out), std::slice::from_ref(&part), Bound::Exact);
        assert_eq!(wrong, None, "{} of {n} {}, from {at}", op.name(), operands[0].ty.dtype);
    }
}

fn arrays(dtypes: &[DType], n: u64, range: Range, rng: &mut crate::common::Rng) -> Vec<Array> {
    let seats = dtypes.iter().enumerate();
    seats.map(|(seat, &dtype)| operand(&Type::new(dtype, &[n]), range, seat, rng)).collect()
}

#[test]
fn sizes_around_blocks() {
    let mut rng = rng(26);
    let (exp, add) = (Elementwise::Unary(Unary::Exp), Elementwise::Binary(Binary::Add));
    for behind in [0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
        for (op, dtypes, out) in [(exp, &[DType::F32][..], DType::F32), (add, &[DType::U8; 2], DType::U8)] {
            let operands = arrays(dtypes, LEAST - BLOCK + behind, Range::All, &mut rng);
            check_parts(op, &operands, out);
        }
    }
    let operands = arrays(&[DType::F32], MANY + 2 * BLOCK - 1, Range::All, &mut rng);
    check_parts(exp, &operands, DType::F32);
    finish();
}

#[test]
fn elements_of_all_sizes() {
    use DType::{Bf16, F8E5M2, F16, F32, F64, S8, S16, S64, U4, U8, U32};
    let mut rng = rng(27);
    let binary = Elementwise::Binary;
    for (op, dtypes, out) in [
        (binary(Binary::Subtract), &[U8, U8][..], U8),
        (binary(Binary::Subtract), &[S16, S16], S16),
        (binary(Binary::Subtract), &[Bf16, Bf16], Bf16),
        (binary(Binary::Divide), &[F32, F32], F32),
        (binary(Binary::Add), &[S64, S64], S64),
        (binary(Binary::Multiply), &[F64, F64], F64),
        (binary(Binary::BitwiseXor), &[U4, U4], U4),
        (binary(Binary::Multiply), &[F32, Bf16], F32),
        (binary(Binary::Add), &[F32, U8], F32),
        (binary(Binary::Less), &[F16, F32], U8),
        (binary(Binary::Less), &[F64, F64], U8),
        (binary(Binary::Add), &[S64, S16], S64),
        (binary(Binary::Max), &[U8, S8], S16),
        (binary(Binary::Subtract), &[F8E5M2, F8E5M2], F8E5M2),
        (Elementwise::Select, &[U8, F32, F32], F32),
        (Elementwise::Select, &[U8, F64, F64], F64),
        (Elementwise::Unary(Unary::Tanh), &[Bf16], Bf16),
        (Elementwise::AsType, &[F32], U32),
        (Elementwise::AsType, &[S16], F64),
        (Elementwise::AsType, &[F64], U8),
    ] {
        let n = LEAST + BLOCK + 5;
        verify(&Op::from(op), &arrays(dtypes, n, Range::All, &mut rng), &Type::new(out, &[n]), bound(op, dtypes, out));
    }
    finish();
}

/// Functions take the long way for these alone, in whichever lane they are.
#[test]
fn rare_values_in_one_lane() {
    let mut rng = rng(28);
    let mut operands = arrays(&[DType::F32], LEAST + 40 * BLOCK + 3, Range::Ordinary, &mut rng);
    let rare = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30, -1e30, 88.8, -103.5, 1e-42];
    for (k, x) in rare.into_iter().cycle().take(40).enumerate() {
        let n = operands[0].values.len();
        let at = (k * BLOCK as usize + k * 7 % BLOCK as usize).min(n - 1);
        operands[0].values[at] = Value::Float(x).cast(DType::F32);
    }
    for op in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sin, Unary::Sqrt, Unary::Sigmoid] {
        check_parts(Elementwise::Unary(op), &operands, DType::F32);
    }
    finish();
}

#[test]
fn results_in_the_place_of_an_operand() {
    let mut rng = rng(29);
    let step = |op, args: &[Ref]| Step { op, args: args.iter().copied().collect(), out: DType::F32 };
    let (exp, subtract) = (Elementwise::Unary(Unary::Exp), Elementwise::Binary(Binary::Subtract));
    for n in [LEAST + 77, MANY + 300] {
        let operands = arrays(&[DType::F32; 2], n, Range::All, &mut rng);
        let tensors: Vec<_> = operands.iter().map(upload).collect();
        let ty = Type::new(DType::F32, &[n]);
        let difference = run(&Op::from(subtract), &tensors, &ty).unwrap();
        let expected = download(&run(&Op::from(exp), &[difference], &ty).unwrap());
        let seen = |k: usize| Operand::new(tensors[k].buffer(), tensors[k].view(), Element::Typed(DType::F32));
        let steps = smallvec![step(subtract, &[Ref::Input(0), Ref::Input(1)]), step(exp, &[Ref::Result(0)])];
        let (result, inputs) = ((Ref::Result(1), seen(1)), [seen(0), seen(1)]);
        map(engine(), &[n], &inputs, steps, &[result], Shapes::Any, Compile::Allowed).unwrap();
        assert_eq!(mismatch(&download(&tensors[1]), &[expected], Bound::Exact), None, "{n}");
    }
    finish();
}
