//! Ops evaluated element by element: a row each of name, types and cost.

use super::kind::{Check, Class, Facts, Instance, Named, Names, OpKind, Reader};
use super::rules::{class, one, require, same_shape};
use crate::dtype::merge;
use crate::program::attribute::named_enum;
use crate::shape::Dims;
use crate::{CType, DType, Type};

/// Which types an op takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The type that holds those of its operands.
    Same,
    /// The same, of real numbers.
    Real,
    /// The same, of integers.
    Integer,
    /// Floats or complex numbers: integers become f32.
    Float,
    /// Floats.
    RealFloat,
    /// The type of its operand, and the type of the parts of a complex number.
    Magnitude,
    /// Floats, of complex numbers the type of their parts.
    Part,
    /// Complex numbers.
    Complex,
    /// 0 or 1, of any numbers.
    Predicate,
    /// 0 or 1, of real numbers.
    Comparison,
}

macro_rules! rows {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal, $rule:ident, $instructions:literal;)* }) => {
        named_enum! {
            $(#[$doc])*
            $name { $($variant = $text),* }
        }

        impl $name {
            /// Which types it takes and gives.
            pub fn rule(self) -> Rule {
                match self { $($name::$variant => Rule::$rule),* }
            }

            /// About how many instructions it takes for an element of 32 bits.
            pub fn instructions(self) -> u64 {
                match self { $($name::$variant => $instructions),* }
            }
        }
    };
}

rows! {
    /// Elementwise ops of one operand.
    Unary {
        Exp = "exp", Float, 24;
        Expm1 = "expm1", Float, 24;
        Log = "log", Float, 24;
        Log1p = "log1p", Float, 24;
        Log2 = "log2", RealFloat, 24;
        Sigmoid = "sigmoid", Float, 24;
        Cos = "cos", Float, 24;
        Sin = "sin", Float, 24;
        Tan = "tan", Float, 24;
        Cosh = "cosh", Float, 24;
        Sinh = "sinh", Float, 24;
        Tanh = "tanh", Float, 24;
        Acos = "acos", Float, 24;
        Asin = "asin", Float, 24;
        Atan = "atan", Float, 24;
        Acosh = "acosh", Float, 24;
        Asinh = "asinh", Float, 24;
        Atanh = "atanh", Float, 24;
        Sqrt = "sqrt", Float, 8;
        Rsqrt = "rsqrt", Float, 8;
        Cbrt = "cbrt", Float, 24;
        Erf = "erf", RealFloat, 24;
        Erfc = "erfc", RealFloat, 24;
        ErfInv = "erf_inv", RealFloat, 24;
        Abs = "abs", Magnitude, 1;
        BitwiseNot = "bitwise_not", Integer, 1;
        Ceil = "ceil", Real, 1;
        Conjugate = "conjugate", Complex, 2;
        Floor = "floor", Real, 1;
        Negate = "negate", Same, 1;
        Round = "round", Real, 4;
        Sign = "sign", Same, 1;
        CountLeadingZeros = "count_leading_zeros", Integer, 2;
        PopulationCount = "population_count", Integer, 2;
        Real = "real", Part, 2;
        Imag = "imag", Part, 2;
        Phase = "phase", Part, 40;
        IsNan = "is_nan", Predicate, 1;
        IsInfinity = "is_infinity", Predicate, 1;
    }
}

rows! {
    /// Elementwise ops of two operands, which broadcast to the result's shape.
    Binary {
        Add = "add", Same, 1;
        Subtract = "subtract", Same, 1;
        Multiply = "multiply", Same, 1;
        Pow = "pow", Same, 40;
        Remainder = "remainder", Real, 8;
        Divide = "divide", Float, 8;
        Atan2 = "atan2", Float, 40;
        Min = "min", Real, 1;
        Max = "max", Real, 1;
        Quotient = "quotient", Integer, 8;
        BitwiseAnd = "bitwise_and", Integer, 1;
        BitwiseOr = "bitwise_or", Integer, 1;
        BitwiseXor = "bitwise_xor", Integer, 1;
        LeftShift = "left_shift", Integer, 1;
        RightShift = "right_shift", Integer, 1;
        Equal = "equal", Predicate, 1;
        NotEqual = "not_equal", Predicate, 1;
        Greater = "greater", Comparison, 1;
        Less = "less", Comparison, 1;
        GreaterEqual = "greater_equal", Comparison, 1;
        LessEqual = "less_equal", Comparison, 1;
        LogicalAnd = "logical_and", Predicate, 1;
        LogicalOr = "logical_or", Predicate, 1;
        LogicalXor = "logical_xor", Predicate, 1;
    }
}

impl Binary {
    /// Ops whose operands are compared in their own merged type and whose result is 0 or 1.
    pub fn is_predicate(self) -> bool {
        matches!(self.rule(), Rule::Predicate | Rule::Comparison)
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
    /// The same bits as another type of that width: a step of kernels alone, elsewhere it is a view.
    Bitcast,
}

/// The ops that are neither unary nor binary by name.
const OTHERS: [Elementwise; 3] = [Elementwise::Select, Elementwise::Clip, Elementwise::AsType];

impl Elementwise {
    /// Every one.
    pub fn all() -> impl Iterator<Item = Elementwise> {
        let unary = Unary::ALL.iter().copied().map(Elementwise::Unary);
        unary.chain(Binary::ALL.iter().copied().map(Elementwise::Binary)).chain(OTHERS)
    }

    /// The one that Nx calls so.
    pub fn from_name(name: &str) -> Option<Elementwise> {
        let unary = || Unary::from_name(name).map(Elementwise::Unary);
        let binary = || Binary::from_name(name).map(Elementwise::Binary);
        unary().or_else(binary).or_else(|| OTHERS.into_iter().find(|op| op.name() == name))
    }

    /// The name of the op, as in the scalar library.
    pub fn name(self) -> &'static str {
        match self {
            Elementwise::Unary(op) => op.name(),
            Elementwise::Binary(op) => op.name(),
            Elementwise::Select => "select",
            Elementwise::Clip => "clip",
            Elementwise::AsType => "as_type",
            Elementwise::Bitcast => "bitcast",
        }
    }

    /// How many operands it takes.
    pub fn arity(self) -> usize {
        match self {
            Elementwise::Unary(_) | Elementwise::AsType | Elementwise::Bitcast => 1,
            Elementwise::Binary(_) => 2,
            Elementwise::Select | Elementwise::Clip => 3,
        }
    }

    /// About how many instructions it takes for an element of 32 bits.
    pub fn instructions(self) -> u64 {
        match self {
            Elementwise::Unary(op) => op.instructions(),
            Elementwise::Binary(op) => op.instructions(),
            Elementwise::Select | Elementwise::Clip | Elementwise::AsType | Elementwise::Bitcast => 1,
        }
    }

    /// About how many instructions it takes for an element of a type: types of twice as many words take twice as many.
    pub fn cost(self, out: CType) -> u64 {
        self.instructions() * if matches!(out, CType::F64 | CType::C128) { 2 } else { 1 }
    }

    /// Whether it costs so little that computing it again takes less than storing and reading it: in kernels that have
    /// it anyway, whose number does not depend on the type then.
    pub fn is_cheap(self, operands: &[DType], out: DType) -> bool {
        let whole = |t: &DType| t.bits() >= 8;
        self.instructions() == 1 && operands.iter().all(whole) && whole(&out) && !out.is_complex()
    }

    /// Whether unrolling it over the lanes of a vector pays, too: rounding to 8 bits takes more instructions.
    pub fn is_short(self, operands: &[DType], out: DType) -> bool {
        let quick = |t: &DType| !t.is_float8();
        self.is_cheap(operands, out) && operands.iter().all(quick) && quick(&out)
    }

    /// Operations per element: one whatever it costs, none for a change of type.
    pub fn flops(self) -> u64 {
        u64::from(!matches!(self, Elementwise::AsType | Elementwise::Bitcast))
    }
}

/// Whether registers have the bits that memory has: those of complex numbers are two, and a narrow float that is read
/// from memory has lost which NaN it was.
pub(in crate::program) fn keeps_bits(from: DType, to: DType) -> bool {
    from.bits() == to.bits()
        && from.bits() >= 8
        && !from.is_complex()
        && !to.is_complex()
        && (from.is_integer() || from.bits() >= 32)
}

/// The result type that Nx gives an elementwise op on tensors of these types, or `None` where the op refuses them.
pub fn result_dtype(op: Elementwise, operands: &[DType]) -> Option<DType> {
    let float = |t: DType| if t.is_integer() { DType::F32 } else { t };
    let ruled = |rule: Rule, joint: DType| match (rule, joint) {
        (Rule::Same | Rule::Real | Rule::Integer, _) => joint,
        (Rule::Magnitude | Rule::Part, DType::C128) => DType::F64,
        (Rule::Magnitude | Rule::Part, DType::C64) => DType::F32,
        (Rule::Magnitude, _) => joint,
        (Rule::Part | Rule::Float | Rule::RealFloat, _) => float(joint),
        (Rule::Complex, DType::F64 | DType::C128) => DType::C128,
        (Rule::Complex, _) => DType::C64,
        (Rule::Predicate | Rule::Comparison, _) => DType::U8,
    };
    let out = match (op, operands) {
        (Elementwise::Unary(op), &[a]) => ruled(op.rule(), a),
        (Elementwise::Binary(op), &[a, b]) => ruled(op.rule(), merge(a, b)),
        (Elementwise::Select, &[_, a, b]) => merge(a, b),
        (Elementwise::Clip, &[a, ..]) | (Elementwise::AsType | Elementwise::Bitcast, &[a]) => a,
        _ => return None,
    };
    Some(out).filter(|&out| accepts(op, operands, out))
}

/// Whether an elementwise op on these types can give `out`. Other results than those of [`result_dtype`] come from
/// numbers beside tensors, whose type gives way.
pub fn accepts(op: Elementwise, operands: &[DType], out: DType) -> bool {
    let integers = operands.iter().all(|t| t.is_integer());
    let complex = operands.iter().any(|t| t.is_complex());
    let widest = operands.iter().map(|&t| class(t)).max().unwrap_or(0);
    let holds = class(out) >= widest;
    let ruled = |rule: Rule| match rule {
        Rule::Same => holds,
        Rule::Real => !complex && holds && !out.is_complex(),
        Rule::Integer => integers && out.is_integer(),
        Rule::Float => holds && !out.is_integer(),
        Rule::RealFloat => !complex && out.is_float(),
        Rule::Magnitude if complex => out.is_float(),
        Rule::Magnitude => holds && !out.is_complex(),
        Rule::Part => out.is_float(),
        Rule::Complex => out.is_complex(),
        Rule::Predicate => out == DType::U8,
        Rule::Comparison => !complex && out == DType::U8,
    };
    match op {
        Elementwise::Unary(op) => ruled(op.rule()),
        Elementwise::Binary(op) => ruled(op.rule()),
        Elementwise::Select => operands.len() == 3 && operands[1..].iter().all(|&t| class(t) <= class(out)),
        Elementwise::Clip => !complex && !out.is_complex() && operands.first().is_some_and(|&t| class(t) <= class(out)),
        Elementwise::AsType => true,
        Elementwise::Bitcast => operands.iter().all(|t| t.bits() == out.bits()),
    }
}

/// The shape to which all operands broadcast, aligned to the right.
pub(in crate::program) fn joint_shape(operands: &[&Type]) -> std::result::Result<Dims, String> {
    let rank = operands.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let mut joint = Dims::from_elem(1, rank);
    for operand in operands {
        let lead = rank - operand.shape.len();
        for (size, &own) in joint[lead..].iter_mut().zip(&operand.shape) {
            if *size == 1 {
                *size = own;
            } else if own != 1 && own != *size {
                return Err(format!("{:?} do not broadcast", operands.iter().map(|t| &t.shape).collect::<Vec<_>>()));
            }
        }
    }
    Ok(joint)
}

pub(super) fn names<Of: From<Elementwise> + 'static>() -> Names<Of> {
    let read: Reader<Of> = |name, a| {
        let op = Elementwise::from_name(name).ok_or_else(|| a.fail("name", "an elementwise op"))?;
        Ok(op.into())
    };
    Elementwise::all().map(|op| Named { name: op.name(), read, sample: Box::new(move || sample(op)) }).collect()
}

/// On floats, or else on integers.
fn sample<Of: From<Elementwise>>(op: Elementwise) -> Instance<Of> {
    let shapes: [&[u64]; 3] = [&[2, 3], &[3], &[]];
    let of = |dtype| shapes[..op.arity()].iter().map(|shape| Type::new(dtype, shape)).collect();
    let result = |dtype| result_dtype(op, &vec![dtype; op.arity()]);
    let dtype = if result(DType::F32).is_some() { DType::F32 } else { DType::S32 };
    Instance { op: op.into(), operands: of(dtype), outs: vec![Type::new(result(dtype).unwrap_or(dtype), shapes[0])] }
}

impl OpKind for Elementwise {
    fn facts(&self) -> Facts {
        Facts::anywhere(self.name(), Class::Elementwise, self.arity())
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        require(accepts(*self, &dtypes, out.dtype), || format!("{dtypes:?} do not give {}", out.dtype))?;
        same_shape(&joint_shape(operands)?, out)
    }

    fn flops(&self, _: &[&Type], outs: &[Type]) -> Option<u64> {
        super::multiplied(&[Elementwise::flops(*self), outs.first()?.elements()])
    }

    fn workgroup_work(&self, _: &[&Type], outs: &[Type]) -> u64 {
        outs.first().map_or(0, |out| out.elements() * self.cost(out.dtype.ctype()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_types_of_nx() {
        let unary = |op, a| result_dtype(Elementwise::Unary(op), &[a]);
        let binary = |op, a, b| result_dtype(Elementwise::Binary(op), &[a, b]);
        assert_eq!(unary(Unary::Exp, DType::S64), Some(DType::F32));
        assert_eq!(unary(Unary::Exp, DType::Bf16), Some(DType::Bf16));
        assert_eq!(unary(Unary::Abs, DType::C128), Some(DType::F64));
        assert_eq!(unary(Unary::Erf, DType::C64), None);
        assert_eq!(unary(Unary::BitwiseNot, DType::F32), None);
        assert_eq!(binary(Binary::Divide, DType::S8, DType::U8), Some(DType::F32));
        assert_eq!(binary(Binary::Add, DType::S8, DType::U8), Some(DType::S16));
        assert_eq!(binary(Binary::Less, DType::C64, DType::C64), None);
        assert_eq!(binary(Binary::Equal, DType::C64, DType::F32), Some(DType::U8));
    }
}
