//! THE list of ops: Nx's names, and attributes with their types.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::Program;
use super::control::{Branches, Loop};
use super::conv::Conv;
use super::fourier::Fourier;
use super::function::Function;
use super::linalg::Linalg;
use super::ops::{
    Binary, Elementwise, OpKind, Unary, control, index, matrix, order, placement, product, reduction, source,
    transform, view, window,
};
use super::window::Windows;

/// Small lists of axes, sizes and positions.
pub type Axes = SmallVec<[usize; 6]>;

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $(#[doc = concat!("Nx's `", $text, "`.")] $variant),* }

        impl $name {
            /// Every one.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Nx's name, which is also the name in the scalar library.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }

            /// The one that Nx calls so.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }
    };
}

pub(crate) use named_enum;

named_enum! {
    /// Reductions over axes.
    Reduction {
        Sum = "sum", Product = "product", Max = "reduce_max", Min = "reduce_min", All = "all", Any = "any",
        ArgMax = "argmax", ArgMin = "argmin",
    }
}

impl Reduction {
    /// Whether it compares elements.
    pub fn is_ordered(self) -> bool {
        match self {
            Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin => true,
            Reduction::Sum | Reduction::Product | Reduction::All | Reduction::Any => false,
        }
    }

    /// Whether it gives the place of an element.
    pub fn finds_place(self) -> bool {
        matches!(self, Reduction::ArgMax | Reduction::ArgMin)
    }

    /// Those that Nx also has over windows.
    pub const WINDOWED: [Reduction; 4] = [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min];

    /// Nx's name of the reduction over windows, if there is one.
    pub fn window_name(self) -> &'static str {
        match self {
            Reduction::Sum => "window_sum",
            Reduction::Product => "window_product",
            Reduction::Max => "window_max",
            Reduction::Min => "window_min",
            Reduction::All | Reduction::Any | Reduction::ArgMax | Reduction::ArgMin => "window",
        }
    }
}
named_enum! {
    /// Running reductions along an axis.
    Cumulative {
        Sum = "cumulative_sum", Product = "cumulative_product", Max = "cumulative_max", Min = "cumulative_min",
    }
}

impl Cumulative {
    /// The reduction that runs along the axis.
    pub fn reduction(self) -> Reduction {
        match self {
            Cumulative::Sum => Reduction::Sum,
            Cumulative::Product => Reduction::Product,
            Cumulative::Max => Reduction::Max,
            Cumulative::Min => Reduction::Min,
        }
    }
}

/// A number in an attribute. Integers keep all 64 bits; complex numbers have two parts. Two are equal if their bits
/// are: 0.0 is not -0.0, and a NaN is itself.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// A whole number.
    Int(i128),
    /// A real number.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
}

impl Scalar {
    /// The number as a real one: of a complex number its real part.
    pub fn real(self) -> f64 {
        match self {
            Scalar::Int(i) => i as f64,
            Scalar::Float(x) | Scalar::Complex(x, _) => x,
        }
    }

    /// Its kind, and the bits of its parts.
    fn bits(&self) -> (u8, i128, u64) {
        match *self {
            Scalar::Int(i) => (0, i, 0),
            Scalar::Float(x) => (1, x.to_bits().into(), 0),
            Scalar::Complex(re, im) => (2, re.to_bits().into(), im.to_bits()),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// An op with its attributes. Operands are listed beside each variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
// Attributes are Nx's options.
#[allow(missing_docs)]
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
    Iota { axis: Option<usize> },
    /// none; ones where the last two indices agree
    Eye,
    /// a
    Reshape,
    /// a
    Squeeze,
    /// a, then what is waited for: `a`, of which nothing is computed before all of the others are there
    After,
    /// a; axis i of `a` becomes axis `axes[i]` of the result
    Broadcast { axes: Axes },
    /// a; axis i of the result is axis `axes[i]` of `a`
    Transpose { axes: Axes },
    /// a, then one scalar per axis that `starts` leaves out; starts are clamped so that the window fits
    Slice { starts: SmallVec<[Option<i64>; 6]>, strides: SmallVec<[u64; 6]>, lengths: SmallVec<[u64; 6]> },
    /// a, slice, then one scalar per axis that `starts` leaves out
    PutSlice { starts: SmallVec<[Option<i64>; 6]> },
    /// a, value; per axis (low, high, interior), low and high may be negative
    Pad { config: SmallVec<[(i64, i64, u64); 6]> },
    /// a
    Reverse { axes: Axes },
    /// a_1 .. a_n
    Concatenate { axis: usize },
    /// a_1 .. a_n
    Stack { axis: usize },
    /// a; `tie_high` is for argmax/argmin
    Reduce { reduction: Reduction, axes: Axes, tie_high: bool },
    /// a; sum, product, max or min of each window
    Window { reduction: Reduction, windows: Windows },
    /// a; equal elements keep their order, NaN is the largest
    Sort { axis: usize, descending: bool },
    /// a; the places of the elements of `Sort`
    Argsort { axis: usize, descending: bool },
    /// a; two results: the `k` first elements along the last axis of a descending sort, and their places
    TopK { k: u64 },
    /// a; `reverse` runs from the last element to the first
    Scan { scan: Cumulative, axis: usize, reverse: bool },
    /// a, b
    Dot { contract_a: Axes, batch_a: Axes, contract_b: Axes, batch_b: Axes },
    /// input, kernel
    Conv(Box<Conv>),
    /// a, initial value, captured scalars; the function of an element and the accumulator, in row-major order
    Fold { axes: Axes, function: Box<Function> },
    /// the same over each window, with the initial value in the padding
    WindowFold { windows: Windows, function: Box<Function> },
    /// a, indices; the axes of the indices in the place of the axis
    Take { axis: usize },
    /// a, indices; shapes differ along the axis only
    TakeAlongAxis { axis: usize },
    /// a, sources, initial value; adds each window's source to its largest (or smallest) element, the last of equal ones
    WindowScatter { max: bool, windows: Windows },
    /// a, which is cut or continued with zeros to `length`; parts of the result up to `eps` become zero
    Fft { kind: Fourier, axis: usize, length: u64, eps: Scalar },
    /// a, indices
    Gather { axes: Axes },
    /// a, indices, updates
    IndexedAdd { axes: Axes },
    /// a, indices, updates
    IndexedPut { axes: Axes },
    /// a; gives q and r, with as many columns of q as `a` has rows if `complete`, else as many as the shorter axis
    Qr { complete: bool },
    /// Matrices; the operands are listed there
    Linalg(Linalg),
    /// a; gives eigenvalues, the largest first, and eigenvectors as columns
    Eigh,
    /// a; gives u, s and v transposed, u and v square if `full`, else with as many vectors as the shorter axis
    Svd { full: bool },
    /// state, then captured values; gives the last state
    While(Box<Loop>),
    /// predicate, then captured values; gives what the chosen program gives
    Cond(Box<Branches>),
    /// The inputs of a program whose ops become one kernel; gives its outputs
    Fused(Box<Program>),
    /// the program's inputs; gives its outputs, all in one dispatch of one workgroup
    Workgroup(Box<Program>),
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
            Op::Pad { config } => ask(&placement::Pad { config }),
            Op::Reverse { axes } => ask(&view::Reverse { axes }),
            Op::Concatenate { axis } => ask(&placement::Concatenate { axis: *axis }),
            Op::Stack { axis } => ask(&placement::Stack { axis: *axis }),
            Op::Reduce { reduction, axes, tie_high } => {
                ask(&reduction::Reduce { reduction: *reduction, axes, tie_high: *tie_high })
            }
            Op::Window { reduction, windows } => ask(&window::Window { reduction: *reduction, windows }),
            Op::Sort { axis, descending } => ask(&order::Sort { axis: *axis, descending: *descending }),
            Op::Argsort { axis, descending } => ask(&order::Argsort { axis: *axis, descending: *descending }),
            Op::TopK { k } => ask(&order::TopK { k: *k }),
            Op::Scan { scan, axis, reverse } => ask(&order::Scan { scan: *scan, axis: *axis, reverse: *reverse }),
            Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
                ask(&product::Dot { contract: [contract_a, contract_b], batch: [batch_a, batch_b] })
            }
            Op::Conv(conv) => ask(&**conv),
            Op::Fold { axes, function } => ask(&reduction::Fold { axes, function }),
            Op::WindowFold { windows, function } => ask(&window::WindowFold { windows, function }),
            Op::Take { axis } => ask(&index::Take { axis: *axis }),
            Op::TakeAlongAxis { axis } => ask(&index::TakeAlongAxis { axis: *axis }),
            Op::WindowScatter { max, windows } => ask(&window::WindowScatter { max: *max, windows }),
            Op::Fft { kind, axis, length, eps } => {
                ask(&transform::Fft { kind: *kind, axis: *axis, length: *length, eps: *eps })
            }
            Op::Gather { axes } => ask(&index::Gather { axes }),
            Op::IndexedAdd { axes } => ask(&index::IndexedAdd { axes }),
            Op::IndexedPut { axes } => ask(&index::IndexedPut { axes }),
            Op::Qr { complete } => ask(&matrix::Qr { complete: *complete }),
            Op::Linalg(op) => ask(op),
            Op::Eigh => ask(&matrix::Eigh),
            Op::Svd { full } => ask(&matrix::Svd { full: *full }),
            Op::While(body) => ask(&**body),
            Op::Cond(branches) => ask(&**branches),
            Op::Fused(body) => ask(&control::Fused { body }),
            Op::Workgroup(program) => ask(&control::Workgroup { program }),
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
