//! What is said about each op, in the words that all families of ops share.

use crate::program::index_map::IndexMap;
use crate::program::wire::{Attr, Attrs};
use crate::{Result, Type};

/// The result of checking a rule, or why it does not hold.
pub(in crate::program) type Check = std::result::Result<(), String>;

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
    pub(super) fn alone(name: &'static str, class: Class, operands: usize) -> Facts {
        Facts { name, class, arity: Arity::Exactly(operands), in_workgroup: false }
    }

    /// Of an op of so many operands that one workgroup has code for, too.
    pub(super) fn anywhere(name: &'static str, class: Class, operands: usize) -> Facts {
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

    /// The operations: one per element of elementwise ops and per element reduced, two per product that is added up, 5
    /// n log2 n for a transform, none for what moves data. `None` where their number depends on values, and for
    /// factorizations and solvers.
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

    /// Whether that workgroup gives the digits of the op run alone. Who adds numbers up, and may do so in another order
    /// there, says when those don't depend on it: compensated sums don't, but for what is beyond twice the precision.
    fn keeps_digits(&self, _operands: &[&Type], outs: &[Type]) -> bool {
        match self.facts().class {
            Class::Reduction
            | Class::Fold
            | Class::Window
            | Class::Order
            | Class::Product
            | Class::Scatter
            | Class::Transform
            | Class::Matrix => outs.iter().all(|out| out.dtype.is_integer()),
            Class::Elementwise
            | Class::Source
            | Class::View
            | Class::Placement
            | Class::Padding
            | Class::Gather
            | Class::Loop
            | Class::Branch
            | Class::Kernel
            | Class::Fence => true,
        }
    }

    /// Elements that the longest of its loops there goes through, if more than those of its results.
    fn longest_loop(&self, operands: &[&Type], _outs: &[Type]) -> u64 {
        match self.facts().class {
            Class::Reduction => operands.iter().map(|ty| ty.elements()).max().unwrap_or(1),
            Class::Elementwise
            | Class::Source
            | Class::View
            | Class::Placement
            | Class::Padding
            | Class::Fold
            | Class::Window
            | Class::Order
            | Class::Product
            | Class::Gather
            | Class::Scatter
            | Class::Transform
            | Class::Matrix
            | Class::Loop
            | Class::Branch
            | Class::Kernel
            | Class::Fence => 1,
        }
    }

    /// About how many instructions all invocations of that workgroup together take; of what is written as other ops
    /// there, what those take.
    fn workgroup_work(&self, _operands: &[&Type], outs: &[Type]) -> u64 {
        outs.first().map_or(0, Type::elements)
    }
}

/// An op of a family.
pub trait Member {
    /// The family, which is a variant of [`Op`](crate::program::Op).
    type Family;

    /// The op as one of its family.
    fn of_family(self) -> Self::Family;
}

/// Who has something to do for the op `T` of a family, which gives an `R`: its call, its value, its other words. Where
/// an op of the family has none, rustc says so.
pub trait Visitor<T, R> {
    /// Does it.
    fn visit(self, op: &T) -> R;
}

/// A family of ops: an enum of them, each of its own type, and all of their names. That type has its [`OpKind`] and
/// `names`, of whatever holds such ops: families don't know [`Op`](crate::program::Op), which holds them.
macro_rules! family {
    ($(#[$doc:meta])* $family:ident { $($op:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $family { $(#[doc = concat!("A [`", stringify!($op), "`].")] $op($op)),* }

        impl $family {
            pub(super) fn kind(&self) -> &dyn OpKind {
                match self { $($family::$op(op) => op),* }
            }

            /// What the visitor does for the op that it is.
            pub fn accept<R>(&self, visitor: impl $($crate::program::ops::Visitor<$op, R> +)*) -> R {
                match self { $($family::$op(op) => $crate::program::ops::Visitor::<$op, R>::visit(visitor, op)),* }
            }

            pub(super) fn names<Of: $(From<$op> +)* 'static>() -> Names<Of> {
                [$($op::names()),*].into_iter().flatten().collect()
            }
        }

        $(impl $crate::program::ops::Member for $op {
            type Family = $family;

            fn of_family(self) -> $family {
                $family::$op(self)
            }
        })*
    };
}

pub(super) use family;

/// Reads an op of a name from its attributes.
pub(super) type Reader<Of> = fn(&str, &Attrs<'_>) -> Result<Of>;

/// The names of a family.
pub(super) type Names<Of> = Vec<Named<Of>>;

/// An op by its name: all of its attributes differ.
pub(super) struct Named<Of> {
    pub name: &'static str,
    pub read: Reader<Of>,
    pub sample: Box<dyn Fn() -> Instance<Of>>,
}

/// The op of a name, and what makes an instruction of it: the op, its operands and its results.
pub(super) fn named<Of, const OPERANDS: usize, const OUTS: usize>(
    name: &'static str,
    read: Reader<Of>,
    sample: impl Fn() -> (Of, [Type; OPERANDS], [Type; OUTS]) + 'static,
) -> Named<Of> {
    let sample = move || {
        let (op, operands, outs) = sample();
        Instance { op, operands: operands.into(), outs: outs.into() }
    };
    Named { name, read, sample: Box::new(sample) }
}

/// An instruction that an op's rules accept: for what is made of all ops, tests and tables.
#[derive(Debug, Clone)]
pub struct Instance<Of> {
    /// The op.
    pub op: Of,
    /// The types of its operands.
    pub operands: Vec<Type>,
    /// Those of its results.
    pub outs: Vec<Type>,
}
