//! THE list of ops: Nx's names, and attributes with their types.

use smallvec::SmallVec;

use super::Program;
use super::control::{Branches, Loop};
use super::conv::Conv;
use super::fourier::Fourier;
use super::function::Function;
use super::linalg::Linalg;
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
    /// Elementwise ops of one operand.
    Unary {
        Exp = "exp", Expm1 = "expm1", Log = "log", Log1p = "log1p", Sigmoid = "sigmoid", Cos = "cos", Sin = "sin",
        Tan = "tan", Cosh = "cosh", Sinh = "sinh", Tanh = "tanh", Acos = "acos", Asin = "asin", Atan = "atan",
        Acosh = "acosh", Asinh = "asinh", Atanh = "atanh", Sqrt = "sqrt", Rsqrt = "rsqrt", Cbrt = "cbrt", Erf = "erf",
        Erfc = "erfc", ErfInv = "erf_inv", Abs = "abs", BitwiseNot = "bitwise_not", Ceil = "ceil",
        Conjugate = "conjugate", Floor = "floor", Negate = "negate", Round = "round", Sign = "sign",
        CountLeadingZeros = "count_leading_zeros", PopulationCount = "population_count", Real = "real", Imag = "imag",
        IsNan = "is_nan", IsInfinity = "is_infinity",
    }
}

named_enum! {
    /// Elementwise ops of two operands, which broadcast to the result's shape.
    Binary {
        Add = "add", Subtract = "subtract", Multiply = "multiply", Pow = "pow", Remainder = "remainder",
        Divide = "divide", Atan2 = "atan2", Min = "min", Max = "max", Quotient = "quotient",
        BitwiseAnd = "bitwise_and", BitwiseOr = "bitwise_or", BitwiseXor = "bitwise_xor", LeftShift = "left_shift",
        RightShift = "right_shift", Equal = "equal", NotEqual = "not_equal", Greater = "greater", Less = "less",
        GreaterEqual = "greater_equal", LessEqual = "less_equal", LogicalAnd = "logical_and",
        LogicalOr = "logical_or", LogicalXor = "logical_xor",
    }
}

named_enum! {
    /// Reductions over axes.
    Reduction {
        Sum = "sum", Product = "product", Max = "reduce_max", Min = "reduce_min", All = "all", Any = "any",
        ArgMax = "argmax", ArgMin = "argmin",
    }
}

impl Reduction {
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

impl Binary {
    /// Ops whose operands are compared in their own merged type and whose result is 0 or 1.
    pub fn is_predicate(self) -> bool {
        matches!(
            self,
            Binary::Equal
                | Binary::NotEqual
                | Binary::Greater
                | Binary::Less
                | Binary::GreaterEqual
                | Binary::LessEqual
                | Binary::LogicalAnd
                | Binary::LogicalOr
                | Binary::LogicalXor
        )
    }
}

/// A number in an attribute. Integers keep all 64 bits; complex numbers have two parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A whole number.
    Int(i128),
    /// A real number.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
}

/// An op with its attributes. Operands are listed beside each variant.
#[derive(Debug, Clone, PartialEq)]
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
    Fft { kind: Fourier, axis: usize, length: u64, eps: f64 },
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
    /// Nx's name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Select => "select",
            Op::Clip => "clip",
            Op::AsType => "as_type",
            Op::Bitcast => "bitcast",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Eye => "eye",
            Op::Reshape => "reshape",
            Op::Squeeze => "squeeze",
            Op::Broadcast { .. } => "broadcast",
            Op::Transpose { .. } => "transpose",
            Op::Slice { .. } => "slice",
            Op::PutSlice { .. } => "put_slice",
            Op::Pad { .. } => "pad",
            Op::Reverse { .. } => "reverse",
            Op::Concatenate { .. } => "concatenate",
            Op::Stack { .. } => "stack",
            Op::Reduce { reduction, .. } => reduction.name(),
            Op::Window { reduction, .. } => reduction.window_name(),
            Op::Sort { .. } => "sort",
            Op::Argsort { .. } => "argsort",
            Op::TopK { .. } => "top_k",
            Op::Scan { scan, .. } => scan.name(),
            Op::Dot { .. } => "dot",
            Op::Conv(_) => "conv",
            Op::Fold { .. } => "reduce",
            Op::WindowFold { .. } => "window_reduce",
            Op::Take { .. } => "take",
            Op::TakeAlongAxis { .. } => "take_along_axis",
            Op::WindowScatter { max: true, .. } => "window_scatter_max",
            Op::WindowScatter { max: false, .. } => "window_scatter_min",
            Op::Fft { kind, .. } => kind.name(),
            Op::Gather { .. } => "gather",
            Op::IndexedAdd { .. } => "indexed_add",
            Op::IndexedPut { .. } => "indexed_put",
            Op::Qr { .. } => "qr",
            Op::Linalg(op) => op.name(),
            Op::Eigh => "eigh",
            Op::Svd { .. } => "svd",
            Op::While(_) => "while",
            Op::Cond(_) => "cond",
            Op::Fused(_) => "fused",
            Op::Workgroup(_) => "workgroup",
        }
    }
}

/// Ops evaluated element by element, each from the elements at the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Elementwise {
    /// Of one operand.
    Unary(Unary),
    /// Of two.
    Binary(Binary),
    /// Predicate, and what to choose from.
    Select,
    /// Between two bounds.
    Clip,
    /// Another type.
    AsType,
}

impl Elementwise {
    /// The name of the op, as in the scalar library.
    pub fn name(self) -> &'static str {
        match self {
            Elementwise::Unary(op) => op.name(),
            Elementwise::Binary(op) => op.name(),
            Elementwise::Select => "select",
            Elementwise::Clip => "clip",
            Elementwise::AsType => "as_type",
        }
    }

    /// How many operands it takes.
    pub fn arity(self) -> usize {
        match self {
            Elementwise::Unary(_) | Elementwise::AsType => 1,
            Elementwise::Binary(_) => 2,
            Elementwise::Select | Elementwise::Clip => 3,
        }
    }
}

impl Op {
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
        }
    }
}
