//! The wire form of ops: a name and named attributes. The NIF and program files both speak it, so that neither
//! knows an op.

use serde::{Deserialize, Serialize};

use super::attribute::Scalar;
use crate::{Error, Result};

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attr {
    /// Nothing: Elixir's nil.
    None,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Integers above `i64::MAX`.
    UInt(u64),
    /// Finite floats. The others travel as the names `nan`, `infinity`, `neg_infinity`.
    Float(f64),
    /// An atom or a string.
    Name(String),
    /// Values in order.
    List(Vec<Attr>),
}

impl Attr {
    /// The attribute for an integer, if 64 bits hold it.
    pub fn int(value: i128) -> Option<Attr> {
        i64::try_from(value).map(Attr::Int).ok().or_else(|| u64::try_from(value).map(Attr::UInt).ok())
    }

    fn as_int(&self) -> Option<i128> {
        match self {
            Attr::Int(i) => Some((*i).into()),
            Attr::UInt(i) => Some((*i).into()),
            _ => None,
        }
    }
}

/// Named attributes of one op, decoded on demand.
#[derive(Debug)]
pub struct Attrs<'a> {
    op: &'a str,
    attrs: &'a [(String, Attr)],
}

impl<'a> Attrs<'a> {
    pub(super) fn new(op: &'a str, attrs: &'a [(String, Attr)]) -> Attrs<'a> {
        Attrs { op, attrs }
    }

    pub(super) fn fail(&self, name: &str, expected: &str) -> Error {
        Error::InvalidProgram {
            op: self.op.to_string(),
            reason: format!("attribute {name}: expected {expected}, got {:?}", self.find(name)),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a Attr> {
        self.attrs.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    pub(super) fn op(&self) -> &'a str {
        self.op
    }

    pub(super) fn list(&self, name: &str, expected: &str) -> Result<&'a [Attr]> {
        match self.find(name) {
            Some(Attr::List(items)) => Ok(items),
            _ => Err(self.fail(name, expected)),
        }
    }

    pub(super) fn ints<T: TryFrom<i128>, C: FromIterator<T>>(&self, name: &str) -> Result<C> {
        let expected = "a list of integers";
        self.list(name, expected)?
            .iter()
            .map(|item| item.as_int().and_then(|i| T::try_from(i).ok()).ok_or_else(|| self.fail(name, expected)))
            .collect()
    }

    pub(super) fn int<T: TryFrom<i128>>(&self, name: &str) -> Result<T> {
        let int = self.find(name).and_then(Attr::as_int).and_then(|i| T::try_from(i).ok());
        int.ok_or_else(|| self.fail(name, "an integer"))
    }

    /// Integers where `None` stands for a value that an operand gives.
    pub(super) fn optional_ints<C: FromIterator<Option<i64>>>(&self, name: &str) -> Result<C> {
        let expected = "a list of integers or nil";
        self.list(name, expected)?
            .iter()
            .map(|item| match item {
                Attr::None => Ok(None),
                Attr::Int(i) => Ok(Some(*i)),
                _ => Err(self.fail(name, expected)),
            })
            .collect()
    }

    pub(super) fn axis(&self, name: &str) -> Result<usize> {
        match self.find(name) {
            Some(Attr::Int(i)) => usize::try_from(*i).map_err(|_| self.fail(name, "an axis")),
            _ => Err(self.fail(name, "an axis")),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        match self.find(name) {
            Some(Attr::Bool(flag)) => Ok(*flag),
            _ => Err(self.fail(name, "true or false")),
        }
    }

    pub(super) fn size(&self, name: &str) -> Result<u64> {
        let size = self.find(name).and_then(Attr::as_int).and_then(|i| u64::try_from(i).ok());
        size.ok_or_else(|| self.fail(name, "a size"))
    }

    pub(super) fn scalar(&self, name: &str) -> Result<Scalar> {
        self.find(name).and_then(number).ok_or_else(|| self.fail(name, "a number"))
    }
}

/// The number that an attribute says.
pub(super) fn number(attr: &Attr) -> Option<Scalar> {
    let part = |attr: &Attr| match attr {
        Attr::Float(x) => Some(*x),
        Attr::Int(i) => Some(*i as f64),
        Attr::UInt(i) => Some(*i as f64),
        Attr::Name(n) => match n.as_str() {
            "nan" => Some(f64::NAN),
            "infinity" => Some(f64::INFINITY),
            "neg_infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    match attr {
        Attr::Int(_) | Attr::UInt(_) => attr.as_int().map(Scalar::Int),
        Attr::List(parts) => match parts.as_slice() {
            [re, im] => part(re).zip(part(im)).map(|(re, im)| Scalar::Complex(re, im)),
            _ => None,
        },
        other => part(other).map(Scalar::Float),
    }
}

impl Scalar {
    /// The attribute that says this number.
    pub fn attr(self) -> Attr {
        let float = |x: f64| {
            if x.is_nan() {
                Attr::Name("nan".to_string())
            } else if x.is_infinite() {
                Attr::Name(if x > 0.0 { "infinity" } else { "neg_infinity" }.to_string())
            } else {
                Attr::Float(x)
            }
        };
        match self {
            Scalar::Int(i) => Attr::int(i).unwrap_or(Attr::Float(i as f64)),
            Scalar::Float(x) => float(x),
            Scalar::Complex(re, im) => Attr::List(vec![float(re), float(im)]),
        }
    }
}
