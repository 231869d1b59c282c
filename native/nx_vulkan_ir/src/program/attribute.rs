//! What attributes of ops are made of: axes, numbers, and names of Nx's choices.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

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
    pub(crate) fn window_name(self) -> &'static str {
        match self {
            Reduction::Sum => "window_sum",
            Reduction::Product => "window_product",
            Reduction::Max => "window_max",
            Reduction::Min => "window_min",
            Reduction::All | Reduction::Any | Reduction::ArgMax | Reduction::ArgMin => "window",
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
