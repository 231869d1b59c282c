//! Factors of matrices and linear systems.

use smallvec::{SmallVec, smallvec};

use crate::program::linalg::EPSILON;
use crate::program::ops::index::TakeAlongAxis;
use crate::program::ops::moved::{Pad, Reverse};
use crate::program::{Builder, Op, Operand, Reduction};
use crate::{DType, Type};

/// Columns or rows that one iteration eliminates, so that fewer wait for each other.
const PANEL: u64 = 4;

/// What begins at these places, one element along their axes and all along others.
fn window(b: &Builder, a: Operand, places: [Option<Operand>; 3]) -> Operand {
    let ty = b.ty(a);
    let lengths = ty.shape.iter().zip(places).map(|(&n, place)| if place.is_some() { 1 } else { n });
    let lengths: SmallVec<[u64; 6]> = lengths.collect();
    let starts = places.iter().map(|place| if place.is_some() { None } else { Some(0) }).collect();
    let operands: Vec<Operand> = std::iter::once(a).chain(places.into_iter().flatten()).collect();
    let out = Type::new(ty.dtype, &lengths);
    b.push(Op::Slice { starts, strides: smallvec![1; 3], lengths }, &operands, &out)
}

/// Runs `step` on matrices for each panel: the places of its rows or columns.
fn for_panels(
    b: &Builder,
    (n, panel): (u64, u64),
    start: Operand,
    captured: &[Operand],
    step: impl FnOnce(&Builder, &[Operand], Operand, &[Operand]) -> Operand,
) -> Operand {
    let none = b.number(DType::U32, 0.0);
    let body = |b: &Builder, v: &[Operand]| {
        let places: Vec<Operand> = (0..panel).map(|k| if k == 0 { v[0] } else { b.add(v[0], k as f64) }).collect();
        vec![b.add(v[0], panel as f64), step(b, &places, v[1], &v[2..])]
    };
    let last = b.while_loop(&[none, start], captured, |b, v| b.less(v[0], n as f64), body);
    last.get(1).copied().unwrap_or(start)
}

/// Matrices one after the other, with rows and columns of the identity so that panels fit.
fn matrices(b: &Builder, a: Operand, size: u64) -> Operand {
    let ty = b.ty(a);
    let [batch @ .., n, _] = &ty.shape[..] else { return a };
    let (batch, n) = (batch.iter().product(), *n);
    let all = b.reshape(a, &[batch, n, n]);
    if size == n {
        return all;
    }
    let more = (0, (size - n) as i64, 0);
    let config = smallvec![(0, 0, 0), more, more];
    let zero = b.number(ty.dtype, 0.0);
    let padded = b.push(Op::from(Pad { config }), &[all, zero], &Type::new(ty.dtype, &[batch, size, size]));
    let [row, column] = [0, 1].map(|axis| b.iota(DType::U32, &[size, size], Some(axis)));
    let is_added = b.logical_and(b.equal(row, column), b.greater_equal(row, n as f64));
    b.select(is_added, 1.0, padded)
}

/// `a` less a product.
fn less(b: &Builder, a: Operand, x: Operand, y: Operand) -> Operand {
    b.subtract(a, b.multiply(x, y))
}

/// Columns are divided by the roots of their pivots, and their products with each other are taken from what is right of
/// them.
pub fn cholesky(b: &Builder, a: Operand) -> Operand {
    let ty = b.ty(a);
    let n = ty.shape.last().copied().unwrap_or(1);
    let panel = n.min(PANEL);
    let size = n.next_multiple_of(panel);
    let place = |b: &Builder, axis| b.iota(DType::U32, &[size, size], Some(axis));
    let last = for_panels(b, (size, panel), matrices(b, a, size), &[], |b, places, work, _| {
        let batch = b.ty(work).shape[0];
        let (row, column) = (place(b, 0), place(b, 1));
        let row_alone = b.iota(DType::U32, &[size, 1], Some(0));
        // Elements of the factor in the panel's own rows, and all of its columns.
        let mut own: Vec<Vec<Operand>> = places.iter().map(|_| vec![]).collect();
        let mut columns: Vec<Operand> = vec![];
        for (k, &at) in places.iter().enumerate() {
            let pivot =
                (0..k).fold(window(b, work, [None, Some(at), Some(at)]), |a, t| less(b, a, own[k][t], own[k][t]));
            let root = b.sqrt(pivot);
            let divisor = b.select(b.equal(root, 0.0), EPSILON, root);
            for i in k + 1..places.len() {
                let element = window(b, work, [None, Some(places[i]), Some(at)]);
                let rest = (0..k).fold(element, |a, t| less(b, a, own[i][t], own[k][t]));
                own[i].push(b.divide(rest, divisor));
            }
            let column = window(b, work, [None, None, Some(at)]);
            let rest = (0..k).fold(column, |a, t| less(b, a, columns[t], own[k][t]));
            columns.push(b.select(b.equal(row_alone, at), root, b.divide(rest, divisor)));
        }
        let rest = columns.iter().fold(work, |a, &x| less(b, a, x, b.reshape(x, &[batch, 1, size])));
        let last = places.last().copied().unwrap_or(row);
        let others = b.select(b.greater(column, last), rest, work);
        let found = places.iter().zip(columns).fold(others, |a, (&at, x)| b.select(b.equal(column, at), x, a));
        b.select(b.greater_equal(row, column), found, work)
    });
    // NaN is not small.
    let cleaned = b.select(b.less_equal(b.abs(last), EPSILON), 0.0, last);
    let factor = b.select(b.greater_equal(place(b, 0), place(b, 1)), cleaned, 0.0);
    let batch = b.ty(factor).shape[0];
    b.reshape(b.slice(factor, &[0, 0, 0], &[batch, n, n]), &ty.shape)
}

#[derive(Debug, Clone, Copy)]
pub struct Triangle {
    pub lower: bool,
    pub left_side: bool,
    pub transposed: bool,
}

/// Rows are divided by their pivots, and their multiples are taken from those that follow.
pub fn triangular(b: &Builder, a: Operand, right: Operand, form: Triangle) -> Operand {
    let (matrix, out) = (b.ty(a), b.ty(right));
    let n = matrix.shape.last().copied().unwrap_or(1);
    let panel = n.min(PANEL);
    let size = n.next_multiple_of(panel);
    let is_vector = out.shape.len() < matrix.shape.len();
    // X A = B is A' X' = B'.
    let is_transposed = form.left_side == form.transposed;
    let is_backward = form.lower == is_transposed;
    let is_turned = !form.left_side && !is_vector;
    let transpose = |a: Operand, turned: bool| if turned { b.transpose(a, &[0, 2, 1]) } else { a };
    let reversed = |a: Operand, axes: &[usize]| match is_backward {
        true => b.push(Op::from(Reverse { axes: axes.into() }), &[a], &b.ty(a)),
        false => a,
    };
    let batch = matrix.elements() / (n * n);
    let columns = out.elements() / (batch * n);
    let right = b.reshape(right, &if is_turned { [batch, columns, n] } else { [batch, n, columns] });
    let right = reversed(transpose(right, is_turned), &[1]);
    let config = smallvec![(0, 0, 0), (0, (size - n) as i64, 0), (0, 0, 0)];
    let zero = b.number(out.dtype, 0.0);
    let start = b.push(Op::from(Pad { config }), &[right, zero], &Type::new(out.dtype, &[batch, size, columns]));
    let a = b.reshape(a, &[batch, n, n]);
    let a = matrices(b, reversed(transpose(a, is_transposed), &[1, 2]), size);
    let last = for_panels(b, (size, panel), start, &[a], |b, places, work, captured| {
        let Some(&a) = captured.first() else { return work };
        let row = b.iota(DType::U32, &[size, 1], Some(0));
        let mut solved: Vec<Operand> = vec![];
        for (k, &at) in places.iter().enumerate() {
            let element = |t: usize| window(b, a, [None, Some(at), Some(places[t])]);
            let rest = window(b, work, [None, Some(at), None]);
            let rest = (0..k).fold(rest, |rest, t| less(b, rest, element(t), solved[t]));
            solved.push(b.divide(rest, element(k)));
        }
        let each = || places.iter().zip(&solved);
        let rest = each().fold(work, |rest, (&at, &x)| less(b, rest, window(b, a, [None, None, Some(at)]), x));
        let last = places.last().copied().unwrap_or(row);
        let others = b.select(b.greater(row, last), rest, work);
        each().fold(others, |others, (&at, &x)| b.select(b.equal(row, at), x, others))
    });
    let all = reversed(b.slice(last, &[0, 0, 0], &[batch, n, columns]), &[1]);
    b.reshape(transpose(all, is_turned), &out.shape)
}

/// What is left of matrices and right sides when each column has been eliminated from all other rows.
#[derive(Debug, Clone, Copy)]
struct Eliminated {
    /// `[batch, n, m]`: X, with its rows in the order of the rows that were pivots.
    right: Operand,
    /// `[batch, n, 1]`: the column whose pivot each row was.
    order: Operand,
    /// `[batch, 1, 1]`: of the pivots.
    product: Operand,
    /// `[batch, 1, 1]`: whether no pivot is zero.
    is_regular: Operand,
}

/// Gauss and Jordan's elimination: the pivot of a column is its largest element in a row that was none yet. Rows stay
/// where they are.
fn eliminated(b: &Builder, a: Operand, right: Operand) -> Eliminated {
    let ty = b.ty(a);
    let (dtype, batch, n) = (ty.dtype, ty.shape[0], ty.shape[1]);
    let of_all =
        |x: Operand, shape: &[u64]| b.push(Op::Broadcast { axes: smallvec![] }, &[x], &Type::new(b.ty(x).dtype, shape));
    let none = b.number(DType::U32, 0.0);
    let order = of_all(b.number(DType::U32, n as f64), &[batch, n, 1]);
    let product = of_all(b.number(dtype, 1.0), &[batch, 1, 1]);
    let is_regular = of_all(b.number(DType::U8, 1.0), &[batch, 1, 1]);
    let body = |b: &Builder, v: &[Operand]| {
        let [at, work, right, order, product, is_regular] = [0, 1, 2, 3, 4, 5].map(|k| v[k]);
        let column = window(b, work, [None, None, Some(at)]);
        let sizes = b.select(b.equal(order, n as f64), b.abs(column), -1.0);
        let pivot = b.reshape(b.reduce(Reduction::ArgMax, sizes, &[1], false), &[batch, 1, 1]);
        let is_pivot = b.equal(b.iota(DType::S32, &[n, 1], Some(0)), pivot);
        let row = |a: Operand| {
            let shape = [batch, 1, b.ty(a).shape[2]];
            let places = b.push(Op::Broadcast { axes: smallvec![0, 1, 2] }, &[pivot], &Type::new(DType::S32, &shape));
            b.push(Op::from(TakeAlongAxis { axis: 1 }), &[a, places], &Type::new(dtype, &shape))
        };
        let element = row(column);
        let without = |a: Operand| {
            let scaled = b.divide(row(a), element);
            b.select(is_pivot, scaled, less(b, a, column, scaled))
        };
        let is_regular = b.logical_and(is_regular, b.not_equal(element, 0.0));
        let order = b.select(is_pivot, at, order);
        vec![b.add(at, 1.0), without(work), without(right), order, b.multiply(product, element), is_regular]
    };
    let last = b.while_loop(&[none, a, right, order, product, is_regular], &[], |b, v| b.less(v[0], n as f64), body);
    let at = |k: usize| last.get(k).copied().unwrap_or(a);
    Eliminated { right: at(2), order: at(3), product: at(4), is_regular: at(5) }
}

/// X of `A X = B`, and whether no pivot of any matrix is zero.
pub fn solve(b: &Builder, a: Operand, right: Operand) -> [Operand; 2] {
    let (matrix, out) = (b.ty(a), b.ty(right));
    let n = matrix.shape.last().copied().unwrap_or(1);
    let batch = matrix.elements() / (n * n);
    let columns = out.elements() / (batch * n);
    let found = eliminated(b, b.reshape(a, &[batch, n, n]), b.reshape(right, &[batch, n, columns]));
    // Row i of X is where the pivot of column i was.
    let order = b.reshape(found.order, &[batch, 1, n]);
    let [row, column] = [0, 1].map(|axis| b.iota(DType::U32, &[n, n], Some(axis)));
    let places = b.reduce(Reduction::Sum, b.select(b.equal(order, row), column, 0.0), &[2], true);
    let ty = Type::new(DType::U32, &[batch, n, columns]);
    let places = b.push(Op::Broadcast { axes: smallvec![0, 1, 2] }, &[places], &ty);
    let x = b.push(Op::from(TakeAlongAxis { axis: 1 }), &[found.right, places], &Type::new(out.dtype, &ty.shape));
    let is_regular = b.reduce(Reduction::All, found.is_regular, &[0, 1, 2], false);
    [b.reshape(x, &out.shape), is_regular]
}

/// The product of the pivots, negative where the exchanges of rows are odd; up to 3 x 3 the sum of products that Nx
/// has.
pub fn determinant(b: &Builder, a: Operand) -> Operand {
    let ty = b.ty(a);
    let n = ty.shape.last().copied().unwrap_or(1);
    let batch = ty.elements() / (n * n);
    let shape = &ty.shape[..ty.shape.len() - 2];
    let a = b.reshape(a, &[batch, n, n]);
    let along = |columns: &[u64]| {
        let element = |row: usize| b.slice(a, &[0, row as u64, columns[row]], &[batch, 1, 1]);
        (1..columns.len()).fold(element(0), |product, row| b.multiply(product, element(row)))
    };
    let sum = |terms: [&[&[u64]]; 2]| {
        let [added, taken] = terms.map(|terms| terms.iter().map(|columns| along(columns)).collect::<Vec<_>>());
        let sum = added.into_iter().reduce(|sum, term| b.add(sum, term)).unwrap_or(a);
        taken.into_iter().fold(sum, |sum, term| b.subtract(sum, term))
    };
    let result = match n {
        2 => sum([&[&[0, 1]], &[&[1, 0]]]),
        3 => sum([&[&[0, 1, 2], &[1, 2, 0], &[2, 0, 1]], &[&[2, 1, 0], &[1, 0, 2], &[0, 2, 1]]]),
        _ => {
            let found = eliminated(b, a, b.slice(a, &[0, 0, 0], &[batch, n, 1]));
            let [row, column] = [0, 1].map(|axis| b.iota(DType::U32, &[n, n], Some(axis)));
            let later = b.reshape(found.order, &[batch, 1, n]);
            let is_exchanged = b.logical_and(b.greater(found.order, later), b.less(row, column));
            let exchanged = b.reduce(Reduction::Sum, b.as_type(is_exchanged, DType::U32), &[1, 2], false);
            let is_odd = b.reshape(b.remainder(exchanged, 2.0), &[batch, 1, 1]);
            let product = b.select(is_odd, b.negate(found.product), found.product);
            b.select(found.is_regular, product, 0.0)
        }
    };
    b.reshape(result, shape)
}
