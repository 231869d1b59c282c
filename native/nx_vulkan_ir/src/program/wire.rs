//! The wire form of ops: a name and named attributes. The NIF and program files both speak it, so that neither
//! knows an op.

use serde::{Deserialize, Serialize};

use super::control::{Branches, Loop};
use super::conv::Conv;
use super::fourier::Fourier;
use super::function::Function;
use super::linalg::Linalg;
use super::op::{Axes, Binary, Cumulative, Op, Reduction, Scalar, Unary};
use super::window::Windows;
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
    fn optional_ints<C: FromIterator<Option<i64>>>(&self, name: &str) -> Result<C> {
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

    fn axis(&self, name: &str) -> Result<usize> {
        match self.find(name) {
            Some(Attr::Int(i)) => usize::try_from(*i).map_err(|_| self.fail(name, "an axis")),
            _ => Err(self.fail(name, "an axis")),
        }
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.find(name) {
            Some(Attr::Bool(flag)) => Ok(*flag),
            _ => Err(self.fail(name, "true or false")),
        }
    }

    fn size(&self, name: &str) -> Result<u64> {
        let size = self.find(name).and_then(Attr::as_int).and_then(|i| u64::try_from(i).ok());
        size.ok_or_else(|| self.fail(name, "a size"))
    }

    fn scalar(&self, name: &str) -> Result<Scalar> {
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

impl Op {
    /// Reads an op from its wire form.
    pub fn from_wire(name: &str, attrs: &[(String, Attr)]) -> Result<Op> {
        let a = Attrs { op: name, attrs };
        if let Some(op) = Unary::from_name(name) {
            return Ok(Op::Unary(op));
        }
        if let Some(op) = Binary::from_name(name) {
            return Ok(Op::Binary(op));
        }
        if let Some(reduction) = Reduction::from_name(name) {
            let tie_high = matches!(a.find("tie_break"), Some(Attr::Name(n)) if n == "high");
            return Ok(Op::Reduce { reduction, axes: a.ints("axes")?, tie_high });
        }
        if let Some(&reduction) = Reduction::WINDOWED.iter().find(|r| r.window_name() == name) {
            return Ok(Op::Window { reduction, windows: Windows::from_wire(&a)? });
        }
        if let Some(scan) = Cumulative::from_name(name) {
            return Ok(Op::Scan { scan, axis: a.axis("axis")?, reverse: a.flag("reverse")? });
        }
        if let Some(op) = Linalg::from_wire(name, &a) {
            return op.map(Op::Linalg);
        }
        if let Some(kind) = Fourier::from_name(name) {
            let eps = match a.scalar("eps")? {
                Scalar::Int(i) => i as f64,
                Scalar::Float(x) | Scalar::Complex(x, _) => x,
            };
            return Ok(Op::Fft { kind, axis: a.axis("axis")?, length: a.size("length")?, eps });
        }
        Ok(match name {
            "select" => Op::Select,
            "clip" => Op::Clip,
            "as_type" => Op::AsType,
            "bitcast" => Op::Bitcast,
            "constant" => Op::Constant(a.scalar("value")?),
            "iota" => Op::Iota {
                axis: if a.find("axis").is_some_and(|x| *x != Attr::None) { Some(a.axis("axis")?) } else { None },
            },
            "eye" => Op::Eye,
            "reshape" => Op::Reshape,
            "squeeze" => Op::Squeeze,
            "broadcast" => Op::Broadcast { axes: a.ints("axes")? },
            "transpose" => Op::Transpose { axes: a.ints("axes")? },
            "slice" => Op::Slice {
                starts: a.optional_ints("starts")?,
                strides: a.ints("strides")?,
                lengths: a.ints("lengths")?,
            },
            "put_slice" => Op::PutSlice { starts: a.optional_ints("starts")? },
            "pad" => {
                let (low, high, interior): (Vec<i64>, Vec<i64>, Vec<u64>) =
                    (a.ints("low")?, a.ints("high")?, a.ints("interior")?);
                if low.len() != high.len() || low.len() != interior.len() {
                    return Err(a.fail("interior", "as many values as low and high"));
                }
                Op::Pad { config: low.into_iter().zip(high).zip(interior).map(|((l, h), i)| (l, h, i)).collect() }
            }
            "reverse" => Op::Reverse { axes: a.ints("axes")? },
            "concatenate" => Op::Concatenate { axis: a.axis("axis")? },
            "stack" => Op::Stack { axis: a.axis("axis")? },
            "sort" => Op::Sort { axis: a.axis("axis")?, descending: a.flag("descending")? },
            "argsort" => Op::Argsort { axis: a.axis("axis")?, descending: a.flag("descending")? },
            "top_k" => Op::TopK { k: a.axis("k")? as u64 },
            "dot" => Op::Dot {
                contract_a: a.ints("contract_a")?,
                batch_a: a.ints("batch_a")?,
                contract_b: a.ints("contract_b")?,
                batch_b: a.ints("batch_b")?,
            },
            "conv" => Op::Conv(Box::new(Conv::from_wire(&a)?)),
            "reduce" => Op::Fold { axes: a.ints("axes")?, function: Box::new(Function::from_wire(&a)?) },
            "window_reduce" => {
                Op::WindowFold { windows: Windows::from_wire(&a)?, function: Box::new(Function::from_wire(&a)?) }
            }
            "take" => Op::Take { axis: a.axis("axis")? },
            "take_along_axis" => Op::TakeAlongAxis { axis: a.axis("axis")? },
            "window_scatter_max" => Op::WindowScatter { max: true, windows: Windows::from_wire(&a)? },
            "window_scatter_min" => Op::WindowScatter { max: false, windows: Windows::from_wire(&a)? },
            "gather" => Op::Gather { axes: a.ints("axes")? },
            "indexed_add" => Op::IndexedAdd { axes: a.ints("axes")? },
            "indexed_put" => Op::IndexedPut { axes: a.ints("axes")? },
            "eigh" => Op::Eigh,
            "svd" => Op::Svd { full: a.flag("full")? },
            "fused" => Op::Fused(Box::new(a.program("program")?)),
            "qr" => Op::Qr { complete: a.flag("complete")? },
            "while" => Op::While(Box::new(Loop::from_wire(&a)?)),
            "workgroup" => Op::Workgroup(Box::new(a.program("program")?)),
            "cond" => Op::Cond(Box::new(Branches::from_wire(&a)?)),
            _ => {
                return Err(Error::Unsupported {
                    op: name.to_string(),
                    dtype: None,
                    needs: "an op of this version of the engine".to_string(),
                });
            }
        })
    }

    /// The wire form of the op's attributes.
    pub fn attrs(&self) -> Vec<(String, Attr)> {
        fn axes(name: &str, axes: &Axes) -> (String, Attr) {
            (name.to_string(), Attr::List(axes.iter().map(|&i| Attr::Int(i as i64)).collect()))
        }
        fn ints(name: &str, items: impl IntoIterator<Item = i64>) -> (String, Attr) {
            (name.to_string(), Attr::List(items.into_iter().map(Attr::Int).collect()))
        }
        fn starts(items: &[Option<i64>]) -> (String, Attr) {
            let items = items.iter().map(|s| s.map_or(Attr::None, Attr::Int));
            ("starts".to_string(), Attr::List(items.collect()))
        }
        match self {
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Clip
            | Op::AsType
            | Op::Bitcast
            | Op::Eye
            | Op::Reshape
            | Op::Squeeze
            | Op::Eigh => vec![],
            Op::Constant(value) => vec![("value".to_string(), value.attr())],
            Op::Iota { axis } => vec![("axis".to_string(), axis.map_or(Attr::None, |i| Attr::Int(i as i64)))],
            Op::Broadcast { axes: a } | Op::Transpose { axes: a } | Op::Reverse { axes: a } => vec![axes("axes", a)],
            Op::Gather { axes: a } | Op::IndexedAdd { axes: a } | Op::IndexedPut { axes: a } => vec![axes("axes", a)],
            Op::Slice { starts: s, strides, lengths } => {
                vec![
                    starts(s),
                    ints("strides", strides.iter().map(|&i| i as i64)),
                    ints("lengths", lengths.iter().map(|&i| i as i64)),
                ]
            }
            Op::PutSlice { starts: s } => vec![starts(s)],
            Op::Pad { config } => vec![
                ints("low", config.iter().map(|c| c.0)),
                ints("high", config.iter().map(|c| c.1)),
                ints("interior", config.iter().map(|c| c.2 as i64)),
            ],
            Op::Concatenate { axis } | Op::Stack { axis } | Op::Take { axis } | Op::TakeAlongAxis { axis } => {
                vec![("axis".to_string(), Attr::Int(*axis as i64))]
            }
            Op::Reduce { reduction, axes: a, tie_high } => {
                let mut attrs = vec![axes("axes", a)];
                if matches!(reduction, Reduction::ArgMax | Reduction::ArgMin) {
                    attrs.push((
                        "tie_break".to_string(),
                        Attr::Name(if *tie_high { "high" } else { "low" }.to_string()),
                    ));
                }
                attrs
            }
            Op::Window { windows, .. } | Op::WindowScatter { windows, .. } => windows.attrs(),
            Op::Sort { axis, descending } | Op::Argsort { axis, descending } => {
                vec![("axis".to_string(), Attr::Int(*axis as i64)), ("descending".to_string(), Attr::Bool(*descending))]
            }
            Op::TopK { k } => vec![("k".to_string(), Attr::Int(*k as i64))],
            Op::Scan { axis, reverse, .. } => {
                vec![("axis".to_string(), Attr::Int(*axis as i64)), ("reverse".to_string(), Attr::Bool(*reverse))]
            }
            Op::Conv(conv) => conv.attrs(),
            Op::Svd { full } => vec![("full".to_string(), Attr::Bool(*full))],
            Op::Qr { complete } => vec![("complete".to_string(), Attr::Bool(*complete))],
            Op::Fold { axes: a, function } => vec![axes("axes", a), function.attr()],
            Op::WindowFold { windows, function } => windows.attrs().into_iter().chain([function.attr()]).collect(),
            Op::Fft { axis, length, eps, .. } => vec![
                ("axis".to_string(), Attr::Int(*axis as i64)),
                ("length".to_string(), Attr::Int(*length as i64)),
                ("eps".to_string(), Scalar::Float(*eps).attr()),
            ],
            Op::Dot { contract_a, batch_a, contract_b, batch_b } => vec![
                axes("contract_a", contract_a),
                axes("batch_a", batch_a),
                axes("contract_b", contract_b),
                axes("batch_b", batch_b),
            ],
            Op::Linalg(op) => op.attrs(),
            Op::While(op) => op.attrs(),
            Op::Cond(op) => op.attrs(),
            Op::Fused(body) => vec![("program".to_string(), body.to_attr())],
            Op::Workgroup(program) => vec![("program".to_string(), program.to_attr())],
        }
    }
}
