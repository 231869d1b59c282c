//! Ops that make one element of many along axes.

use smallvec::smallvec;

use super::joint_shape;
use super::kind::{Arity, Check, Class, Facts, Names, OpKind, named};
use super::rules::{axes_attr, class, combine_work, f32, flag_attr, kept, multiplied, one, require, s32, same_shape};
use crate::program::Op;
use crate::program::attribute::{Axes, Reduction, Scalar};
use crate::program::function::Function;
use crate::program::wire::{Attr, Attrs};
use crate::{CType, DType, Result, Type};

pub(super) fn names() -> Names<Op> {
    let reductions = Reduction::ALL.iter().map(|&reduction| {
        let dtype = match reduction {
            Reduction::Sum | Reduction::Product | Reduction::Max | Reduction::Min => DType::F32,
            Reduction::All | Reduction::Any => DType::U8,
            Reduction::ArgMax | Reduction::ArgMin => DType::S32,
        };
        let op = Op::Reduce { reduction, axes: smallvec![0], tie_high: false };
        named(reduction.name(), read_reduce, move || (op.clone(), [f32(&[2, 3])], [Type::new(dtype, &[3])]))
    });
    let fold = named("reduce", read_fold, || {
        let op = Op::Fold { axes: smallvec![0], function: Box::new(Function::sample()) };
        (op, [f32(&[2, 3]), s32(&[]), s32(&[])], [f32(&[3])])
    });
    let close = named("all_close", read_all_close, || {
        let op = Op::AllClose { equal_nan: true, rtol: Scalar::Float(1e-5), atol: Scalar::Float(1e-8) };
        (op, [f32(&[2, 3]), f32(&[3])], [Type::new(DType::U8, &[])])
    });
    reductions.chain([fold, close]).collect()
}

pub(in crate::program) struct AllClose {
    pub equal_nan: bool,
    pub rtol: Scalar,
    pub atol: Scalar,
}

fn read_all_close(_: &str, a: &Attrs<'_>) -> Result<Op> {
    let equal_nan = !matches!(a.find("equal_nan"), None | Some(Attr::None | Attr::Bool(false)));
    Ok(Op::AllClose { equal_nan, rtol: a.scalar("rtol")?, atol: a.scalar("atol")? })
}

impl OpKind for AllClose {
    fn facts(&self) -> Facts {
        Facts::alone("all_close", Class::Reduction, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        let number = |name: &str, number: Scalar| (name.to_string(), number.attr());
        vec![flag_attr("equal_nan", self.equal_nan), number("rtol", self.rtol), number("atol", self.atol)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        joint_shape(operands)?;
        require(out.dtype == DType::U8, || format!("gives u8, not {}", out.dtype))?;
        same_shape(&[], out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        multiplied(&joint_shape(operands).ok()?)
    }
}

pub(in crate::program) struct Reduce<'a> {
    pub reduction: Reduction,
    pub axes: &'a Axes,
    pub tie_high: bool,
}

fn read_reduce(name: &str, a: &Attrs<'_>) -> Result<Op> {
    let reduction = Reduction::from_name(name).ok_or_else(|| a.fail("name", "a reduction"))?;
    let tie_high = matches!(a.find("tie_break"), Some(Attr::Name(n)) if n == "high");
    Ok(Op::Reduce { reduction, axes: a.ints("axes")?, tie_high })
}

impl OpKind for Reduce<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere(self.reduction.name(), Class::Reduction, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        let tie = if self.tie_high { "high" } else { "low" };
        let tie_break = || ("tie_break".to_string(), Attr::Name(tie.to_string()));
        [axes_attr("axes", self.axes)].into_iter().chain(self.reduction.finds_place().then(tie_break)).collect()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        let ordered = !a.dtype.is_complex();
        let fits = match self.reduction {
            Reduction::Sum | Reduction::Product => class(a.dtype) <= class(out.dtype),
            Reduction::Max | Reduction::Min => ordered && a.dtype == out.dtype,
            Reduction::All | Reduction::Any => out.dtype == DType::U8,
            Reduction::ArgMax | Reduction::ArgMin => ordered && out.dtype.is_integer(),
        };
        require(fits, || format!("{} does not give {}", a.dtype, out.dtype))?;
        kept(self.axes, a, out)
    }

    fn runs_in_workgroup(&self, operands: &[&Type], outs: &[Type]) -> bool {
        let complex = |ty: &Type| ty.dtype.is_complex();
        !self.reduction.is_ordered() || !operands.iter().copied().chain(outs).any(complex)
    }

    fn keeps_digits(&self, _: &[&Type], outs: &[Type]) -> bool {
        outs.iter().all(|out| match self.reduction {
            Reduction::Sum => out.dtype != DType::C128,
            Reduction::Product => out.dtype.is_integer() || out.dtype.ctype() == CType::F32,
            Reduction::Max
            | Reduction::Min
            | Reduction::All
            | Reduction::Any
            | Reduction::ArgMax
            | Reduction::ArgMin => true,
        })
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        operands.first().map_or(1, |a| a.elements()) * outs.first().map_or(0, combine_work)
    }
}

pub(in crate::program) struct Fold<'a> {
    pub axes: &'a Axes,
    pub function: &'a Function,
}

fn read_fold(_: &str, a: &Attrs<'_>) -> Result<Op> {
    Ok(Op::Fold { axes: a.ints("axes")?, function: Box::new(Function::from_wire(a)?) })
}

impl OpKind for Fold<'_> {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::AtLeast(2), ..Facts::alone("reduce", Class::Fold, 2) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes), self.function.attr()]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        self.function.folds(operands, out)?;
        kept(self.axes, operands[0], out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        multiplied(&[operands.first()?.elements(), self.function.steps.len() as u64])
    }
}
