//! What each op is: its name, operands, attributes, rules and cost, one small implementation for each in the file of its family.
//! [`Op::kind`] leads there; whatever else asks about an op asks its [`OpKind`].

//!
//! A new op is a variant of [`Op`], its line in [`Op::kind`], and an implementation of [`OpKind`] with its name and
//! reader here. One that only moves elements says there where they come from, of which eager code and the generators of
//! kernels make theirs.

pub(super) mod control;
pub(super) mod elementwise;
pub(super) mod index;
pub(super) mod matrix;
pub(super) mod order;
pub(super) mod placement;
pub(super) mod product;
pub(super) mod reduction;
pub(super) mod source;
pub(super) mod transform;
pub(super) mod view;
pub(super) mod window;

use std::collections::HashMap;
use std::sync::LazyLock;

use smallvec::SmallVec;

use super::index_map::{IndexMap, Place};
use super::op::Axes;
use super::wire::{Attr, Attrs};
use super::{Op, Program};
use crate::shape::Dims;
use crate::{DType, Error, Result, Type};

pub use elementwise::{Binary, Elementwise, Rule, Unary, accepts, result_dtype};
pub(super) use elementwise::{joint_shape, keeps_bits};
pub use transform::flops_of_transform;

/// The result of checking a rule, or why it does not hold.
pub(super) type Check = std::result::Result<(), String>;

/// How many operands an op takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// So many.
    Exactly(usize),
    /// So many, or more.
    AtLeast(usize),
}

/// What an op does, as far as schedulers care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Each element of the result is made of the operands' elements at the same index.
    Elementwise,
    /// Elements are made of nothing.
    Source,
    /// The operand's elements are seen in another way.
    View,
    /// Operands become parts of something larger.
    Placement,
    /// An operand is surrounded by a value.
    Padding,
    /// Elements along axes become one.
    Reduction,
    /// A function of the caller's combines elements.
    Fold,
    /// Windows of elements are reduced, or found.
    Window,
    /// Elements along an axis are ordered, or combined one after the other.
    Order,
    /// Products are added up.
    Product,
    /// Indices say what is read.
    Gather,
    /// Indices say what is written.
    Scatter,
    /// A discrete Fourier transform.
    Transform,
    /// Matrices are factorized, or systems solved.
    Matrix,
    /// A program runs until a condition fails.
    Loop,
    /// One of two programs runs.
    Branch,
    /// A program that became one kernel.
    Kernel,
    /// An operand waits for others.
    Fence,
}

impl Class {
    /// Whether an op takes much longer than to read its result.
    pub fn is_costly(self) -> bool {
        match self {
            Class::Fold
            | Class::Window
            | Class::Order
            | Class::Product
            | Class::Scatter
            | Class::Transform
            | Class::Matrix
            | Class::Loop
            | Class::Branch => true,
            Class::Elementwise
            | Class::Source
            | Class::View
            | Class::Placement
            | Class::Padding
            | Class::Reduction
            | Class::Gather
            | Class::Kernel
            | Class::Fence => false,
        }
    }

    /// Whether an op that runs in one workgroup would take a dispatch alone, and is not fused with its neighbours.
    pub fn takes_a_dispatch(self) -> bool {
        match self {
            Class::Placement
            | Class::Reduction
            | Class::Fold
            | Class::Window
            | Class::Order
            | Class::Product
            | Class::Gather
            | Class::Scatter
            | Class::Transform
            | Class::Matrix
            | Class::Branch => true,
            Class::Elementwise
            | Class::Source
            | Class::View
            | Class::Padding
            | Class::Loop
            | Class::Kernel
            | Class::Fence => false,
        }
    }
}

/// What holds of an op whatever its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Nx's name.
    pub name: &'static str,
    /// What it does.
    pub class: Class,
    /// How many operands it takes.
    pub arity: Arity,
    /// Whether one workgroup has code for it, unless [`OpKind::runs_in_workgroup`] says more.
    pub in_workgroup: bool,
}

impl Facts {
    /// Of an op of so many operands that needs a kernel of its own.
    fn alone(name: &'static str, class: Class, operands: usize) -> Facts {
        Facts { name, class, arity: Arity::Exactly(operands), in_workgroup: false }
    }

    /// Of an op of so many operands that one workgroup has code for, too.
    fn anywhere(name: &'static str, class: Class, operands: usize) -> Facts {
        Facts { name, class, arity: Arity::Exactly(operands), in_workgroup: true }
    }
}

/// What one op is.
pub trait OpKind {
    /// What holds whatever its operands.
    fn facts(&self) -> Facts;

    /// Its attributes in wire form, as its reader takes them.
    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![]
    }

    /// Whether it gives `outs` for `operands`, which are as many as it takes.
    ///
    /// # Errors
    /// The rule that does not hold, in words.
    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check;

    /// Where its elements come from, for operands and a result of these shapes that [`OpKind::check`] accepts. `None`
    /// for what computes, for what values say, and for reshapes.
    fn index_map(&self, _shapes: &[&[u64]], _out: &[u64]) -> Option<IndexMap> {
        None
    }

    /// The operations: one per element of elementwise ops and per element reduced, two per product that is added up, 5 n log2 n for a
    /// transform, none for what moves data. `None` where their number depends on values, and for factorizations and solvers.
    fn flops(&self, operands: &[&Type], outs: &[Type]) -> Option<u64> {
        match self.facts().class {
            Class::Source
            | Class::View
            | Class::Placement
            | Class::Padding
            | Class::Gather
            | Class::Order
            | Class::Fence => Some(0),
            Class::Elementwise => Some(outs.first()?.elements()),
            Class::Reduction => Some(operands.first()?.elements()),
            Class::Fold
            | Class::Window
            | Class::Product
            | Class::Scatter
            | Class::Transform
            | Class::Matrix
            | Class::Loop
            | Class::Branch
            | Class::Kernel => None,
        }
    }

    /// Whether one workgroup can run it, for operands and results that are not too large.
    fn runs_in_workgroup(&self, _operands: &[&Type], _outs: &[Type]) -> bool {
        self.facts().in_workgroup
    }

    /// About how many instructions all invocations of that workgroup together take; of what is written as other ops there, what those take.
    fn workgroup_work(&self, _operands: &[&Type], outs: &[Type]) -> u64 {
        outs.first().map_or(0, Type::elements)
    }
}

/// Reads an op of a name from its attributes.
type Reader = fn(&str, &Attrs<'_>) -> Result<Op>;

/// The names of a family, and what reads each.
type Names = Vec<(&'static str, Reader)>;

static FAMILIES: [fn() -> Names; 12] = [
    elementwise::names,
    source::names,
    view::names,
    placement::names,
    reduction::names,
    window::names,
    order::names,
    product::names,
    index::names,
    transform::names,
    matrix::names,
    control::names,
];

static READERS: LazyLock<HashMap<&'static str, Reader>> =
    LazyLock::new(|| FAMILIES.iter().flat_map(|names| names()).collect());

/// The names of all ops, family by family.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|names| names()).map(|(name, _)| name).collect()
}

impl Op {
    /// Reads an op from its wire form.
    pub fn from_wire(name: &str, attrs: &[(String, Attr)]) -> Result<Op> {
        let Some(read) = READERS.get(name) else {
            let needs = "an op of this version of the engine".to_string();
            return Err(Error::Unsupported { op: name.to_string(), dtype: None, needs });
        };
        read(name, &Attrs::new(name, attrs))
    }

    /// Nx's name of the op.
    pub fn name(&self) -> &'static str {
        self.kind(|kind| kind.facts().name)
    }

    /// What the op does.
    pub fn class(&self) -> Class {
        self.kind(|kind| kind.facts().class)
    }

    /// The wire form of the op's attributes.
    pub fn attrs(&self) -> Vec<(String, Attr)> {
        self.kind(|kind| kind.attrs())
    }

    /// Where its elements come from, see [`OpKind::index_map`].
    pub fn index_map(&self, shapes: &[&[u64]], out: &[u64]) -> Option<IndexMap> {
        self.kind(|kind| kind.index_map(shapes, out))
    }

    /// The operations of the op, see [`OpKind::flops`].
    pub fn flops(&self, operands: &[&Type], outs: &[Type]) -> Option<u64> {
        self.kind(|kind| kind.flops(operands, outs))
    }
}

/// Checks operands and results of an op.
pub(super) fn check(op: &Op, operands: &[&Type], outs: &[Type]) -> Check {
    op.kind(|kind| {
        let n = operands.len();
        match kind.facts().arity {
            Arity::Exactly(expected) => require(n == expected, || format!("needs {expected} operands, got {n}"))?,
            Arity::AtLeast(least) => require(n >= least, || format!("needs {least} operands, got {n}"))?,
        }
        kind.check(operands, outs)
    })
}

/// The product of counts, if it is one.
pub fn multiplied(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |all, &factor| all.checked_mul(factor))
}

fn require(condition: bool, reason: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(reason()) }
}

/// The one result of an op that has one.
fn one(outs: &[Type]) -> std::result::Result<&Type, String> {
    match outs {
        [out] => Ok(out),
        _ => Err(format!("has one result, got {}", outs.len())),
    }
}

/// Integers, floats, complex numbers: each holds what comes before it, roughly.
fn class(dtype: DType) -> u8 {
    if dtype.is_complex() { 2 } else { u8::from(dtype.is_float()) }
}

fn same_shape(expected: &[u64], out: &Type) -> Check {
    require(expected == &out.shape[..], || format!("the result has shape {expected:?}, not {:?}", out.shape))
}

fn same_dtype(a: &Type, out: &Type) -> Check {
    require(a.dtype == out.dtype, || format!("the result has type {}, not {}", a.dtype, out.dtype))
}

/// Whether a result can hold elements of all operands.
fn holds(operands: &[&Type], out: &Type) -> Check {
    require(operands.iter().all(|t| class(t.dtype) <= class(out.dtype)), || {
        format!("{} holds not all operands", out.dtype)
    })
}

fn ordered(a: &Type) -> Check {
    require(!a.dtype.is_complex(), || format!("{} has no order", a.dtype))
}

/// Whether an axis is one of a tensor's.
fn along(axis: usize, rank: usize) -> Check {
    require(axis < rank, || format!("axis {axis} of rank {rank}"))
}

fn distinct(axes: &[usize], rank: usize) -> Check {
    let ok = axes.iter().enumerate().all(|(i, &axis)| axis < rank && !axes[..i].contains(&axis));
    require(ok, || format!("axes {axes:?} of rank {rank}"))
}

/// Whether the result has the axes that a reduction keeps. Reduced axes are gone, or stay with size 1.
fn kept(axes: &[usize], a: &Type, out: &Type) -> Check {
    distinct(axes, a.shape.len())?;
    let kept: Dims = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]).collect();
    let ones: Dims = (0..a.shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { a.shape[axis] }).collect();
    if ones == out.shape { Ok(()) } else { same_shape(&kept, out) }
}

/// A window of `lengths` in `a`; `rest` are start indices.
fn window_fits(a: &Type, starts: &[Option<i64>], lengths: &[u64], rest: &[&Type]) -> Check {
    let fits = lengths.len() == a.shape.len() && lengths.iter().zip(&a.shape).all(|(length, size)| length <= size);
    require(fits, || format!("a window of {lengths:?} in {:?}", a.shape))?;
    require(starts.len() == a.shape.len(), || format!("{} starts for rank {}", starts.len(), a.shape.len()))?;
    require(rest.iter().all(|t| t.dtype.is_integer() && t.elements() == 1), || {
        "start indices must be integer scalars".to_string()
    })
}

/// Where a window of `lengths` begins along axes of `sizes`, moved so that it fits; operands from `first` on give what
/// is missing.
fn places(starts: &[Option<i64>], sizes: &[u64], lengths: &[u64], first: u32) -> SmallVec<[Place; 6]> {
    let mut next = first;
    let place = |((start, &size), &length): ((&Option<i64>, &u64), &u64)| {
        let room = size.saturating_sub(length);
        start.map_or_else(
            || {
                next += 1;
                Place::Read { operand: next - 1, room }
            },
            |start| Place::Number(start.clamp(0, room as i64)),
        )
    };
    starts.iter().zip(sizes).zip(lengths).map(place).collect()
}

/// Starts of a window that operands give.
fn missing(starts: &[Option<i64>]) -> usize {
    starts.iter().filter(|start| start.is_none()).count()
}

/// A program that takes the operands and gives the results.
fn runs(body: &Program, operands: &[&Type], outs: &[Type]) -> Check {
    super::verify::program(body).map_err(|e| e.to_string())?;
    require(body.inputs.iter().eq(operands.iter().copied()), || {
        format!("operands {operands:?} for {:?}", body.inputs)
    })?;
    let types: Vec<Option<&Type>> = body.outputs.iter().map(|&o| body.type_of(o)).collect();
    require(types.iter().copied().eq(outs.iter().map(Some)), || format!("gives {types:?}, not {outs:?}"))
}

/// Instructions that combine two elements of a result's type in one workgroup.
fn combine_work(out: &Type) -> u64 {
    if out.dtype.is_float() || out.dtype.is_complex() { 8 } else { 2 }
}

fn axes_attr(name: &str, axes: &Axes) -> (String, Attr) {
    (name.to_string(), Attr::List(axes.iter().map(|&i| Attr::Int(i as i64)).collect()))
}

fn ints_attr(name: &str, items: impl IntoIterator<Item = i64>) -> (String, Attr) {
    (name.to_string(), Attr::List(items.into_iter().map(Attr::Int).collect()))
}

fn axis_attr(axis: usize) -> (String, Attr) {
    ("axis".to_string(), Attr::Int(axis as i64))
}

fn flag_attr(name: &str, flag: bool) -> (String, Attr) {
    (name.to_string(), Attr::Bool(flag))
}

fn starts_attr(starts: &[Option<i64>]) -> (String, Attr) {
    let items = starts.iter().map(|s| s.map_or(Attr::None, Attr::Int));
    ("starts".to_string(), Attr::List(items.collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_those_of_one_op_each() {
        let names = names();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        // Those that need no attributes.
        let read: Vec<(&str, Op)> =
            names.iter().filter_map(|&name| Op::from_wire(name, &[]).ok().map(|op| (name, op))).collect();
        assert!(read.len() > 60, "{read:?}");
        for (name, op) in read {
            assert_eq!(op.name(), name);
            assert_eq!(Op::from_wire(name, &op.attrs()).unwrap(), op);
        }
    }

    #[test]
    fn unknown_names_are_told() {
        let message = Op::from_wire("hypot", &[]).unwrap_err().to_string();
        assert!(message.contains("hypot is not supported"), "{message}");
    }
}
