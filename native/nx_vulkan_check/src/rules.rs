//! What each operation on values takes and gives: one rule for each class of operations, over the types of operands and
//! result.

use rspirv::spirv::Op;

use super::operands::{Checker, require};
use super::parts::Checked;
use super::types::Type;

/// A number type as arithmetic sees it.
#[derive(Debug, PartialEq, Clone, Copy)]
pub struct Shape {
    pub kind: ScalarKind,
    pub bits: u32,
    pub count: u32,
}

#[derive(Debug, PartialEq, Clone, Copy)]
pub enum ScalarKind {
    Bool,
    /// Of any sign.
    Int,
    Unsigned,
    Float,
}

impl Shape {
    pub fn is(&self, kind: ScalarKind) -> bool {
        self.kind == kind || (kind == ScalarKind::Int && self.kind == ScalarKind::Unsigned)
    }

    /// Equal but for the sign of integers.
    pub fn fits(&self, other: &Shape) -> bool {
        let kind = if self.kind == ScalarKind::Unsigned { ScalarKind::Int } else { self.kind };
        other.is(kind) && self.bits == other.bits && self.count == other.count
    }
}

enum Rule {
    /// Operands and result are of one type.
    Same(ScalarKind),
    /// Operands and result are integers that differ in sign at most.
    Integers,
    /// Two operands of one kind, width and count give as many Booleans.
    Compare(ScalarKind),
    /// One number becomes another of as many components.
    Convert { from: ScalarKind, to: ScalarKind, resizes: bool },
}

fn rule(op: Op) -> Option<Rule> {
    let convert = |from, to, resizes| Rule::Convert { from, to, resizes };
    Some(match op {
        Op::FAdd | Op::FSub | Op::FMul | Op::FDiv | Op::FRem | Op::FMod | Op::FNegate => Rule::Same(ScalarKind::Float),
        Op::UDiv | Op::UMod => Rule::Same(ScalarKind::Unsigned),
        Op::LogicalAnd | Op::LogicalOr | Op::LogicalNot | Op::LogicalEqual | Op::LogicalNotEqual => {
            Rule::Same(ScalarKind::Bool)
        }
        Op::IAdd
        | Op::ISub
        | Op::IMul
        | Op::SDiv
        | Op::SRem
        | Op::SMod
        | Op::SNegate
        | Op::BitwiseAnd
        | Op::BitwiseOr
        | Op::BitwiseXor
        | Op::Not => Rule::Integers,
        Op::FOrdEqual
        | Op::FUnordEqual
        | Op::FOrdNotEqual
        | Op::FUnordNotEqual
        | Op::FOrdLessThan
        | Op::FUnordLessThan
        | Op::FOrdGreaterThan
        | Op::FUnordGreaterThan
        | Op::FOrdLessThanEqual
        | Op::FUnordLessThanEqual
        | Op::FOrdGreaterThanEqual
        | Op::FUnordGreaterThanEqual
        | Op::IsNan
        | Op::IsInf => Rule::Compare(ScalarKind::Float),
        Op::IEqual
        | Op::INotEqual
        | Op::ULessThan
        | Op::SLessThan
        | Op::UGreaterThan
        | Op::SGreaterThan
        | Op::ULessThanEqual
        | Op::SLessThanEqual
        | Op::UGreaterThanEqual
        | Op::SGreaterThanEqual => Rule::Compare(ScalarKind::Int),
        Op::ConvertFToU => convert(ScalarKind::Float, ScalarKind::Unsigned, false),
        Op::ConvertFToS => convert(ScalarKind::Float, ScalarKind::Int, false),
        Op::ConvertSToF | Op::ConvertUToF => convert(ScalarKind::Int, ScalarKind::Float, false),
        Op::UConvert => convert(ScalarKind::Int, ScalarKind::Unsigned, true),
        Op::SConvert => convert(ScalarKind::Int, ScalarKind::Int, true),
        Op::FConvert => convert(ScalarKind::Float, ScalarKind::Float, true),
        _ => return None,
    })
}

impl Checker<'_> {
    pub fn shape(&self, type_id: u32) -> Checked<Shape> {
        let (scalar, count) = match self.types.get(type_id) {
            Some(Type::Vector { component, count }) => (*component, *count),
            _ => (type_id, 1),
        };
        let (kind, bits) = match self.types.get(scalar) {
            Some(Type::Bool) => (ScalarKind::Bool, 1),
            Some(Type::Int { bits, signed: true }) => (ScalarKind::Int, *bits),
            Some(Type::Int { bits, signed: false }) => (ScalarKind::Unsigned, *bits),
            Some(Type::Float { bits }) => (ScalarKind::Float, *bits),
            _ => return Err(format!("type {type_id} is no number")),
        };
        Ok(Shape { kind, bits, count })
    }

    pub fn shape_of(&self, id: u32) -> Checked<Shape> {
        self.shape(self.type_of(id)?)
    }

    /// The shape of a type that must be of a kind.
    pub fn number(&self, type_id: u32, kind: ScalarKind) -> Checked<Shape> {
        let shape = self.shape(type_id)?;
        require(shape.is(kind), || format!("type {type_id} where {kind:?} is needed"))?;
        Ok(shape)
    }

    /// A scalar operand of a kind.
    pub fn scalar(&self, id: u32, kind: ScalarKind) -> Checked<Shape> {
        let shape = self.number(self.type_of(id)?, kind)?;
        require(shape.count == 1, || format!("operand {id} is no scalar"))?;
        Ok(shape)
    }

    /// All operands have this type.
    pub fn all_of(&self, type_id: u32, operands: &[u32]) -> Checked {
        operands.iter().try_for_each(|&id| {
            let found = self.type_of(id)?;
            require(found == type_id, || format!("operand {id} is of type {found} where type {type_id} is needed"))
        })
    }

    /// Operations on values; those of memory, of control flow and of other invocations are [`Checker::instruction`]'s.
    pub fn value(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let operand = |index: usize| operands.get(index).copied().unwrap_or(0);
        match rule(op) {
            Some(Rule::Same(kind)) => {
                self.number(self.elements(result), kind)?;
                return self.all_of(result, operands);
            }
            Some(Rule::Integers) => return self.integers(result, operands),
            Some(Rule::Compare(kind)) => return self.comparison(result, operands, kind),
            Some(Rule::Convert { from, to, resizes }) => return self.convert(result, operand(0), from, to, resizes),
            None => {}
        }
        match op {
            Op::ShiftRightLogical | Op::ShiftRightArithmetic | Op::ShiftLeftLogical => {
                self.integers(result, &operands[..1])?;
                let (value, by) = (self.shape(result)?, self.number(self.type_of(operand(1))?, ScalarKind::Int)?);
                require(value.count == by.count, || format!("operand {} has not as many components", operand(1)))
            }
            Op::BitFieldInsert => {
                self.bits(result)?;
                self.all_of(result, &operands[..2])?;
                self.scalar(operand(2), ScalarKind::Int)?;
                self.scalar(operand(3), ScalarKind::Int).map(|_| ())
            }
            Op::BitFieldSExtract | Op::BitFieldUExtract => {
                self.bits(result)?;
                self.all_of(result, &operands[..1])?;
                self.scalar(operand(1), ScalarKind::Int)?;
                self.scalar(operand(2), ScalarKind::Int).map(|_| ())
            }
            Op::BitReverse => {
                self.bits(result)?;
                self.all_of(result, operands)
            }
            Op::BitCount => {
                let (counts, value) = (self.number(result, ScalarKind::Int)?, self.bits(self.type_of(operand(0))?)?);
                require(counts.count == value.count, || "the result has not as many components".into())
            }
            Op::IAddCarry | Op::ISubBorrow | Op::UMulExtended | Op::SMulExtended => {
                self.extended_sum(op, result, operands)
            }
            Op::QuantizeToF16 => {
                require(self.number(result, ScalarKind::Float)?.bits == 32, || "the result is no 32-bit float".into())?;
                self.all_of(result, operands)
            }
            Op::Bitcast => self.bitcast(result, operand(0)),
            Op::Any | Op::All => {
                require(self.shape(result)? == BOOL, || "the result is no Boolean".into())?;
                let vector = self.shape_of(operand(0))?;
                require(vector.kind == ScalarKind::Bool && vector.count > 1, || {
                    "the operand is no vector of Booleans".into()
                })
            }
            Op::Select => self.select(result, operands),
            Op::Dot => {
                self.number(result, ScalarKind::Float)?;
                let vector = self.type_of(operand(0))?;
                require(self.component(vector) == Some(result), || {
                    "the result is not the component of a vector".into()
                })?;
                self.all_of(vector, operands)
            }
            Op::VectorTimesScalar => {
                self.number(result, ScalarKind::Float)?;
                self.all_of(result, &operands[..1])?;
                require(self.component(result) == Some(self.type_of(operand(1))?), || {
                    "not a vector and its component".into()
                })
            }
            Op::MatrixTimesScalar => {
                self.all_of(result, &operands[..1])?;
                let element = match self.types.get(result) {
                    Some(Type::Matrix { column, .. }) => self.component(*column),
                    Some(Type::CooperativeMatrix { component, .. }) => Some(*component),
                    _ => None,
                };
                require(element == Some(self.type_of(operand(1))?), || "not a matrix and its element".into())
            }
            Op::VectorTimesMatrix
            | Op::MatrixTimesVector
            | Op::MatrixTimesMatrix
            | Op::OuterProduct
            | Op::Transpose => self.product(op, result, operands),
            Op::VectorExtractDynamic => {
                self.scalar(operand(1), ScalarKind::Int)?;
                let component = self.component(self.type_of(operand(0))?);
                require(component == Some(result), || "the result is not the vector's component".into())
            }
            Op::VectorInsertDynamic => {
                self.all_of(result, &operands[..1])?;
                self.scalar(operand(2), ScalarKind::Int)?;
                let component = self.component(result);
                require(component == Some(self.type_of(operand(1))?), || "not a vector and its component".into())
            }
            Op::VectorShuffle => self.shuffle(result, operands),
            Op::CompositeConstruct => self.construct(result, operands),
            Op::CompositeExtract => {
                let found = self.inside(self.type_of(operand(0))?, operands.get(1..).unwrap_or(&[]))?;
                require(found == result, || format!("the part has type {found}, the result {result}"))
            }
            Op::CompositeInsert => {
                self.all_of(result, &operands[1..2])?;
                let part = self.inside(result, operands.get(2..).unwrap_or(&[]))?;
                self.all_of(part, &operands[..1])
            }
            Op::CopyObject => self.all_of(result, operands),
            Op::CopyLogical => {
                let from = self.type_of(operand(0))?;
                require(from != result && self.match_logically(from, result), || "the types do not match".into())
            }
            _ => Err("is no operation that a compute shader may have here".into()),
        }
    }

    /// The type of what arithmetic on a type works on: itself, or the component of a cooperative matrix.
    fn elements(&self, type_id: u32) -> u32 {
        match self.types.get(type_id) {
            Some(Type::CooperativeMatrix { component, .. }) => *component,
            _ => type_id,
        }
    }

    fn component(&self, vector: u32) -> Option<u32> {
        match self.types.get(vector) {
            Some(Type::Vector { component, .. }) => Some(*component),
            _ => None,
        }
    }

    fn integers(&self, result: u32, operands: &[u32]) -> Checked {
        let wanted = self.number(self.elements(result), ScalarKind::Int)?;
        if self.elements(result) != result {
            return self.all_of(result, operands);
        }
        operands.iter().try_for_each(|&id| {
            require(self.shape_of(id)?.fits(&wanted), || format!("operand {id} does not fit the result's type"))
        })
    }

    /// Integers of 32 bits, which bit operations are defined for.
    fn bits(&self, type_id: u32) -> Checked<Shape> {
        let shape = self.number(type_id, ScalarKind::Int)?;
        require(shape.bits == 32, || format!("integers of {} bits where 32 are needed", shape.bits))?;
        Ok(shape)
    }

    fn comparison(&self, result: u32, operands: &[u32], kind: ScalarKind) -> Checked {
        let result = self.number(result, ScalarKind::Bool)?;
        let first = self.shape_of(operands.first().copied().unwrap_or(0))?;
        for &id in operands {
            let shape = self.shape_of(id)?;
            let fits = shape.is(kind) && shape.count == result.count && shape.fits(&first);
            require(fits, || format!("operand {id} does not fit the other or the result"))?;
        }
        Ok(())
    }

    fn convert(&self, result: u32, operand: u32, from: ScalarKind, to: ScalarKind, resizes: bool) -> Checked {
        let found = self.type_of(operand)?;
        let (source, target) = (self.number(self.elements(found), from)?, self.number(self.elements(result), to)?);
        let alike = source.count == target.count && self.same_matrix(found, result);
        require(alike, || format!("operand {operand} has not as many components"))?;
        require(!resizes || source.bits != target.bits, || "a conversion to the same width".into())
    }

    /// Both no cooperative matrices, or of one scope, size and use.
    fn same_matrix(&self, a: u32, b: u32) -> bool {
        match (self.types.get(a), self.types.get(b)) {
            (
                Some(Type::CooperativeMatrix { parameters: a, .. }),
                Some(Type::CooperativeMatrix { parameters: b, .. }),
            ) => a == b,
            (Some(Type::CooperativeMatrix { .. }), _) | (_, Some(Type::CooperativeMatrix { .. })) => false,
            _ => true,
        }
    }

    fn extended_sum(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let Some(Type::Struct { members }) = self.types.get(result) else {
            return Err("the result is no struct".into());
        };
        let &[low, high] = members.as_slice() else {
            return Err("the result is no struct of two members".into());
        };
        let kind = if op == Op::SMulExtended { ScalarKind::Int } else { ScalarKind::Unsigned };
        self.number(low, kind)?;
        require(low == high, || "the result's members differ".into())?;
        self.all_of(low, operands)
    }

    fn bitcast(&self, result: u32, operand: u32) -> Checked {
        let bits = |type_id: u32| match self.types.get(type_id) {
            Some(Type::Pointer { .. }) if self.is_address(type_id) => Ok::<u32, String>(64),
            _ => {
                let shape = self.shape(type_id)?;
                require(shape.kind != ScalarKind::Bool, || format!("type {type_id} has no bits"))?;
                Ok(shape.bits * shape.count)
            }
        };
        let found = self.type_of(operand)?;
        require(bits(found)? == bits(result)?, || "the result has not as many bits".into())
    }

    fn select(&self, result: u32, operands: &[u32]) -> Checked {
        let &[condition, a, b] = operands else {
            return Err("operands are missing".into());
        };
        self.all_of(result, &[a, b])?;
        let condition = self.number(self.type_of(condition)?, ScalarKind::Bool)?;
        let is_logical = matches!(self.types.get(result), Some(Type::Pointer { .. })) && !self.is_address(result);
        require(!is_logical, || "the result is a pointer".into())?;
        // Since SPIR-V 1.4 one Boolean may choose between composites.
        let components = self.shape(result).map_or(1, |shape| shape.count);
        let is_whole = condition.count == 1 && (components == 1 || self.module.version >= 0x0001_0400);
        let is_old_composite =
            self.shape(result).is_err() && !self.is_address(result) && self.module.version < 0x0001_0400;
        require(!is_old_composite, || "the result is no scalar or vector".into())?;
        let fits = is_whole || (self.shape(result).is_ok() && condition.count == components);
        require(fits, || "the condition has not as many components as the result".into())
    }

    fn product(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        // (columns, rows, component); a vector is one column.
        let size = |type_id: u32| match self.types.get(type_id) {
            Some(Type::Matrix { column, count }) => Ok((*count, self.shape(*column)?.count, self.component(*column))),
            Some(Type::Vector { component, count }) => Ok((1, *count, Some(*component))),
            _ => Err(format!("type {type_id} is no vector or matrix")),
        };
        let is_matrix = |type_id: u32| matches!(self.types.get(type_id), Some(Type::Matrix { .. }));
        let a = self.type_of(operands.first().copied().unwrap_or(0))?;
        let b = self.type_of(operands.last().copied().unwrap_or(0))?;
        let (of_a, of_b, wanted) = (size(a)?, size(b)?, size(result)?);
        self.number(wanted.2.unwrap_or(0), ScalarKind::Float)?;
        let fits = match op {
            Op::Transpose => is_matrix(a) && is_matrix(result) && wanted == (of_a.1, of_a.0, of_a.2),
            Op::OuterProduct => {
                !is_matrix(a) && !is_matrix(b) && is_matrix(result) && wanted == (of_b.1, of_a.1, of_a.2)
            }
            Op::VectorTimesMatrix => {
                !is_matrix(a) && is_matrix(b) && !is_matrix(result) && of_a.1 == of_b.1 && wanted == (1, of_b.0, of_a.2)
            }
            Op::MatrixTimesVector => {
                is_matrix(a) && !is_matrix(b) && !is_matrix(result) && of_a.0 == of_b.1 && wanted == (1, of_a.1, of_a.2)
            }
            _ => {
                is_matrix(a)
                    && is_matrix(b)
                    && is_matrix(result)
                    && of_a.0 == of_b.1
                    && wanted == (of_b.0, of_a.1, of_a.2)
            }
        };
        require(fits && of_a.2 == of_b.2, || "sizes or components do not fit".into())
    }

    fn shuffle(&self, result: u32, operands: &[u32]) -> Checked {
        let (Some(&[a, b]), Some(components)) = (operands.get(..2), operands.get(2..)) else {
            return Err("operands are missing".into());
        };
        let (a, b) = (self.type_of(a)?, self.type_of(b)?);
        let component = self.component(result);
        let same = component.is_some() && self.component(a) == component && self.component(b) == component;
        let (a, b, result) = (self.shape(a)?, self.shape(b)?, self.shape(result)?);
        // 0xffffffff stands for a component that nobody reads.
        let inside = |&component: &u32| component < a.count + b.count || component == u32::MAX;
        let fits = same && result.count as usize == components.len() && components.iter().all(inside);
        require(fits, || "vectors and components do not fit".into())
    }

    fn construct(&self, result: u32, operands: &[u32]) -> Checked {
        let each = |part: u32, count: u64| {
            require(operands.len() as u64 == count, || format!("{} parts where {count} are needed", operands.len()))?;
            self.all_of(part, operands)
        };
        match self.types.get(result) {
            Some(Type::Vector { component, count }) => {
                let mut given = 0;
                for &id in operands {
                    let found = self.type_of(id)?;
                    let fits = found == *component || self.component(found) == Some(*component);
                    require(fits, || format!("operand {id} has not the vector's component"))?;
                    given += self.shape(found)?.count;
                }
                require(given == *count && operands.len() > 1, || {
                    format!("{given} components where {count} are needed")
                })
            }
            Some(Type::Matrix { column, count }) => each(*column, u64::from(*count)),
            Some(Type::Array { element, length: Some(length) }) => each(*element, *length),
            Some(Type::CooperativeMatrix { component, .. }) => each(*component, 1),
            Some(Type::Struct { members }) => {
                require(members.len() == operands.len(), || {
                    format!("{} parts for {} members", operands.len(), members.len())
                })?;
                members.iter().zip(operands).try_for_each(|(&member, &id)| self.all_of(member, &[id]))
            }
            _ => Err(format!("type {result} is not put together from parts")),
        }
    }

    /// Arrays of equal lengths and structs of as many members, whose parts are equal or match in turn.
    fn match_logically(&self, a: u32, b: u32) -> bool {
        let mut seen = std::collections::HashSet::new();
        let mut pending = vec![(a, b)];
        while let Some((a, b)) = pending.pop() {
            if a == b || !seen.insert((a, b)) {
                continue;
            }
            match (self.types.get(a), self.types.get(b)) {
                (
                    Some(Type::Array { element: a, length: Some(of_a) }),
                    Some(Type::Array { element: b, length: Some(of_b) }),
                ) if of_a == of_b => pending.push((*a, *b)),
                (Some(Type::Struct { members: a }), Some(Type::Struct { members: b })) if a.len() == b.len() => {
                    pending.extend(a.iter().copied().zip(b.iter().copied()));
                }
                _ => return false,
            }
        }
        true
    }
}

pub const BOOL: Shape = Shape { kind: ScalarKind::Bool, bits: 1, count: 1 };
