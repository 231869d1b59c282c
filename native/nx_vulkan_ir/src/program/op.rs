//! THE list of ops: Nx's names, and attributes with their types.

use smallvec::SmallVec;

use super::Program;
use super::attribute::{Axes, Reduction, Scalar};
use super::control::{Branches, Loop};
use super::conv::Conv;
use super::function::Function;
use super::ops::index::Indexing;
use super::ops::matrix::Matrix;
use super::ops::moved::Moved;
use super::ops::order::Order;
use super::ops::transform::Spectral;
use super::ops::window::Windowed;
use super::ops::{Binary, Elementwise, Member, Unary};
use crate::Type;

/// An op with its attributes, which are Nx's options. Operands are listed beside each variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// a
    Unary(Unary),
    /// a, b
    Binary(Binary),
    /// pred, on_true, on_false; broadcast to the result
    Select,
    /// a, min, max
    Clip,
    /// a
    AsType,
    /// a; same bits, another type of the same width
    Bitcast,
    /// none; fills the result
    Constant(Scalar),
    /// none; counts along `axis`, or through the whole result
    Iota {
        /// Along which.
        axis: Option<usize>,
    },
    /// none; ones where the last two indices agree
    Eye,
    /// a
    Reshape,
    /// a
    Squeeze,
    /// a, then what is waited for: `a`, of which nothing is computed before all of the others are there
    After,
    /// a; axis i of `a` becomes axis `axes[i]` of the result
    Broadcast {
        /// For each axis of `a` that of the result.
        axes: Axes,
    },
    /// a; axis i of the result is axis `axes[i]` of `a`
    Transpose {
        /// For each axis of the result that of `a`.
        axes: Axes,
    },
    /// a, then one scalar per axis that `starts` leaves out; starts are clamped so that the window fits
    Slice {
        /// The first index along each axis; none where an operand gives it.
        starts: SmallVec<[Option<i64>; 6]>,
        /// From one index that is taken to the next.
        strides: SmallVec<[u64; 6]>,
        /// How long the window is, of which every `strides`-th element is taken.
        lengths: SmallVec<[u64; 6]>,
    },
    /// a, slice, then one scalar per axis that `starts` leaves out
    PutSlice {
        /// The first index along each axis; none where an operand gives it.
        starts: SmallVec<[Option<i64>; 6]>,
    },
    /// a_1 .. a_n
    Concatenate {
        /// Along which.
        axis: usize,
    },
    /// a_1 .. a_n
    Stack {
        /// The new axis of the result.
        axis: usize,
    },
    /// a; `tie_high` is for argmax/argmin
    Reduce {
        /// What it makes of elements.
        reduction: Reduction,
        /// Along which.
        axes: Axes,
        /// Whether the last of equal elements counts, not the first.
        tie_high: bool,
    },
    /// a, b, which broadcast; whether no element is farther than `atol + rtol |b|` from that of b
    AllClose {
        /// Whether NaN is close to NaN.
        equal_nan: bool,
        /// How far elements may be apart, as a share of that of `b`.
        rtol: Scalar,
        /// And how far in any case.
        atol: Scalar,
    },
    /// What is known by where its elements come from alone, beside each of which its operands are listed, as in the
    /// families that follow
    Moved(Moved),
    /// Sorts and scans
    Order(Order),
    /// What indices read or write
    Indexing(Indexing),
    /// Windows of elements
    Windowed(Windowed),
    /// Fourier transforms
    Spectral(Spectral),
    /// Factorizations and solvers
    Matrix(Matrix),
    /// a, b
    Dot {
        /// The contracted axes of `a`.
        contract_a: Axes,
        /// The batch axes of `a`.
        batch_a: Axes,
        /// The contracted axes of `b`, in the order of those of `a`.
        contract_b: Axes,
        /// The batch axes of `b`, in the order of those of `a`.
        batch_b: Axes,
    },
    /// input, kernel
    Conv(Box<Conv>),
    /// a, initial value, captured scalars; the function of an element and the accumulator, in row-major order
    Fold {
        /// Along which.
        axes: Axes,
        /// What it makes of an element and the accumulator.
        function: Box<Function>,
    },
    /// state, then captured values; gives the last state
    While(Box<Loop>),
    /// predicate, then captured values; gives what the chosen program gives
    Cond(Box<Branches>),
    /// The inputs of a program whose ops become one kernel; gives its outputs
    Fused(Box<Program>),
    /// the program's inputs; gives its outputs, all in one dispatch of one workgroup
    Workgroup(Box<Program>),
}

/// The programs of a loop or of branches, of which there are two or none. Functions of folds and windows, and what
/// became one kernel, are none of these.
macro_rules! inside {
    ($op:expr, $($by:tt)+) => {
        match $op {
            Op::While(op) => [Some($($by)+ op.condition), Some($($by)+ op.body)],
            Op::Cond(op) => [Some($($by)+ op.on_true), Some($($by)+ op.on_false)],
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType | Op::Bitcast => [None, None],
            Op::Constant(_) | Op::Iota { .. } | Op::Eye => [None, None],
            Op::Reshape | Op::Squeeze | Op::After | Op::Broadcast { .. } | Op::Transpose { .. } => [None, None],
            Op::Slice { .. } | Op::PutSlice { .. } | Op::Concatenate { .. } | Op::Stack { .. } => [None, None],
            Op::Reduce { .. } | Op::AllClose { .. } | Op::Fold { .. } | Op::Dot { .. } | Op::Conv(_) => [None, None],
            Op::Moved(_) | Op::Order(_) | Op::Indexing(_) | Op::Windowed(_) => [None, None],
            Op::Spectral(_) | Op::Matrix(_) | Op::Fused(_) | Op::Workgroup(_) => [None, None],
        }
    };
}

impl Op {
    /// The programs of a loop or of branches.
    pub fn inside(&self) -> impl Iterator<Item = &Program> {
        inside!(self, &).into_iter().flatten()
    }

    /// The same, to be changed.
    pub fn inside_mut(&mut self) -> impl Iterator<Item = &mut Program> {
        inside!(self, &mut).into_iter().flatten()
    }

    /// The types of the factors of matrices of type `a`, or `None` where the op is no factorization, or `a` no matrix
    /// that it takes.
    pub fn factors(&self, a: &Type) -> Option<Vec<Type>> {
        match self {
            Op::Matrix(op) => op.factors(a),
            _ => None,
        }
    }

    /// The op as an elementwise one, if it is one.
    pub fn elementwise(&self) -> Option<Elementwise> {
        match self {
            Op::Unary(op) => Some(Elementwise::Unary(*op)),
            Op::Binary(op) => Some(Elementwise::Binary(*op)),
            Op::Select => Some(Elementwise::Select),
            Op::Clip => Some(Elementwise::Clip),
            Op::AsType => Some(Elementwise::AsType),
            _ => None,
        }
    }
}

macro_rules! from_families {
    ($($family:ident),*) => {
        $(impl From<$family> for Op {
            fn from(op: $family) -> Op {
                Op::$family(op)
            }
        })*
    };
}

from_families!(Moved, Order, Indexing, Windowed, Spectral, Matrix);

impl<M: Member> From<M> for Op
where
    Op: From<M::Family>,
{
    fn from(op: M) -> Op {
        op.of_family().into()
    }
}

impl From<Elementwise> for Op {
    fn from(op: Elementwise) -> Op {
        match op {
            Elementwise::Unary(op) => Op::Unary(op),
            Elementwise::Binary(op) => Op::Binary(op),
            Elementwise::Select => Op::Select,
            Elementwise::Clip => Op::Clip,
            Elementwise::AsType => Op::AsType,
            Elementwise::Bitcast => Op::Bitcast,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::program::Builder;

    /// `x + constant` as the body of an op.
    fn adding(constant: f64) -> Op {
        let b = Builder::new();
        let x = b.input(DType::F32, &[2]);
        let sum = b.add(x, b.constant(DType::F32, Scalar::Float(constant)));
        Op::Fused(Box::new(b.finish(&[sum]).unwrap()))
    }

    #[test]
    fn ops_are_equal_by_the_bits_of_their_numbers() {
        assert_ne!(adding(0.0), adding(-0.0));
        assert_eq!(adding(f64::NAN), adding(f64::NAN));
        assert_ne!(Scalar::Int(1), Scalar::Float(1.0));
        assert_ne!(Scalar::Complex(0.0, 0.0), Scalar::Complex(0.0, -0.0));
    }
}
