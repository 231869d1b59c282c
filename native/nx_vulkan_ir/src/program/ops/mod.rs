//! What each op is: its name, operands, attributes, rules and cost, one small implementation for each in the file of
//! its family. `Op::kind` leads there; whatever else asks about an op asks its [`OpKind`].
//!
//! A new op is a variant of [`Op`], its line in `Op::kind`, and an implementation of [`OpKind`] with its name and
//! reader here. Ops whose kernels nothing is fused into come in families, each a variant of [`Op`]: there a new op is a
//! type of its own with names and [`OpKind`], and a word in the family's list. One that only moves elements says there
//! where they come from, of which eager code and the generators of kernels make theirs.

mod control;
mod elementwise;
pub mod index;
mod kind;
pub mod matrix;
pub mod moved;
pub mod order;
mod placement;
mod product;
mod reduction;
mod rules;
mod source;
pub mod transform;
mod view;
pub mod window;

use std::collections::HashMap;
use std::sync::LazyLock;

use smallvec::SmallVec;

use super::index_map::IndexMap;
use super::wire::{Attr, Attrs};
use super::{Instruction, Op, Operand};
use crate::{Error, Result, Type};

pub use elementwise::{Binary, Elementwise, Rule, Unary, accepts, result_dtype};
pub(super) use elementwise::{joint_shape, keeps_bits};
pub use kind::{Arity, Class, Facts, Instance, Member, OpKind, Visitor};
pub use rules::{PHASE_WORK, multiplied};
pub use transform::flops_of_transform;

use kind::{Check, Named, Names, Reader};
use rules::require;

static FAMILIES: [fn() -> Names<Op>; 13] = [
    elementwise::names,
    source::names,
    view::names,
    placement::names,
    moved::Moved::names,
    reduction::names,
    window::Windowed::names,
    order::Order::names,
    product::names,
    index::Indexing::names,
    transform::Spectral::names,
    matrix::Matrix::names,
    control::names,
];

static READERS: LazyLock<HashMap<&'static str, Reader<Op>>> =
    LazyLock::new(|| all().map(|named| (named.name, named.read)).collect());

fn all() -> impl Iterator<Item = Named<Op>> {
    FAMILIES.iter().flat_map(|names| names())
}

/// An instruction that an op's rules accept.
pub type Sample = Instance<Op>;

/// The names of all ops, family by family, and an instruction of each.
pub fn samples() -> Vec<(&'static str, Sample)> {
    all().map(|named| (named.name, (named.sample)())).collect()
}

impl Op {
    /// Answers what `ask` finds out of the one place where all is said about the op.
    pub(super) fn kind<R>(&self, ask: impl FnOnce(&dyn OpKind) -> R) -> R {
        match self {
            Op::Unary(op) => ask(&Elementwise::Unary(*op)),
            Op::Binary(op) => ask(&Elementwise::Binary(*op)),
            Op::Select => ask(&Elementwise::Select),
            Op::Clip => ask(&Elementwise::Clip),
            Op::AsType => ask(&Elementwise::AsType),
            Op::Bitcast => ask(&view::Bitcast),
            Op::Constant(value) => ask(value),
            Op::Iota { axis } => ask(&source::Iota { axis: *axis }),
            Op::Eye => ask(&source::Eye),
            Op::Reshape => ask(&view::Reshape),
            Op::Squeeze => ask(&view::Squeeze),
            Op::After => ask(&view::After),
            Op::Broadcast { axes } => ask(&view::Broadcast { axes }),
            Op::Transpose { axes } => ask(&view::Transpose { axes }),
            Op::Slice { starts, strides, lengths } => ask(&view::Slice { starts, strides, lengths }),
            Op::PutSlice { starts } => ask(&placement::PutSlice { starts }),
            Op::Concatenate { axis } => ask(&placement::Concatenate { axis: *axis }),
            Op::Stack { axis } => ask(&placement::Stack { axis: *axis }),
            Op::Reduce { reduction, axes, tie_high } => {
                ask(&reduction::Reduce { reduction: *reduction, axes, tie_high: *tie_high })
            }
            Op::AllClose { equal_nan, rtol, atol } => {
                ask(&reduction::AllClose { equal_nan: *equal_nan, rtol: *rtol, atol: *atol })
            }
            Op::Moved(op) => ask(op.kind()),
            Op::Order(op) => ask(op.kind()),
            Op::Indexing(op) => ask(op.kind()),
            Op::Windowed(op) => ask(op.kind()),
            Op::Spectral(op) => ask(op.kind()),
            Op::Matrix(op) => ask(op.kind()),
            Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
                ask(&product::Dot { contract: [contract_a, contract_b], batch: [batch_a, batch_b] })
            }
            Op::Conv(conv) => ask(&**conv),
            Op::Fold { axes, function } => ask(&reduction::Fold { axes, function }),
            Op::While(body) => ask(&**body),
            Op::Cond(branches) => ask(&**branches),
            Op::Fused(body) => ask(&control::Fused { body }),
            Op::Workgroup(program) => ask(&control::Workgroup { program }),
        }
    }

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

impl Instruction {
    /// Where the elements of its result come from, if it only moves them; `ty` says what its operands are.
    pub fn index_map<'a>(&self, ty: impl Fn(Operand) -> Option<&'a Type>) -> Option<IndexMap> {
        let shapes: Option<SmallVec<[&[u64]; 4]>> = self.operands.iter().map(|&o| Some(&ty(o)?.shape[..])).collect();
        self.op.index_map(&shapes?, &self.outs.first()?.shape)
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_those_of_one_op_each() {
        let samples = samples();
        assert_eq!(samples.iter().map(|(name, _)| name).collect::<HashSet<_>>().len(), samples.len());
        for (name, Sample { op, operands, outs }) in samples {
            assert_eq!(op.name(), name);
            assert_eq!(Op::from_wire(name, &op.attrs()).unwrap(), op);
            assert_eq!(check(&op, &operands.iter().collect::<Vec<_>>(), &outs), Ok(()), "{op:?}");
        }
    }

    #[test]
    fn unknown_names_are_told() {
        let message = Op::from_wire("hypot", &[]).unwrap_err().to_string();
        assert!(message.contains("hypot is not supported"), "{message}");
    }
}
