//! Elixir terms to the engine's types: shapes, dtypes, and ops in their wire form.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use nx_vulkan_engine::program::{Attr, Op};
use nx_vulkan_engine::shape::Dims;
use nx_vulkan_engine::{DType, Error, Result, Type};
use once_cell::sync::OnceCell;
use rustler::types::tuple::get_tuple;
use rustler::{Atom, Encoder, Env, ListIterator, Term, TermType};

/// The path of a file, as Elixir has it.
#[cfg(unix)]
pub fn path(bytes: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
}

/// The path of a file, if it is UTF-8.
#[cfg(not(unix))]
pub fn path(bytes: &[u8]) -> Option<PathBuf> {
    std::str::from_utf8(bytes).ok().map(PathBuf::from)
}

fn bad(what: &'static str, expected: &str, got: Term) -> Error {
    Error::InvalidArgument { what, expected: expected.to_string(), got: format!("{got:?}") }
}

/// The atoms of Nx's short type names, made once.
fn dtype_atoms(env: Env) -> &'static [(Atom, DType)] {
    static ATOMS: OnceCell<Vec<(Atom, DType)>> = OnceCell::new();
    ATOMS.get_or_init(|| {
        let atom = |t: DType| Atom::from_str(env, t.name()).ok().map(|a| (a, t));
        DType::ALL.into_iter().filter_map(atom).collect()
    })
}

pub fn dtype(term: Term) -> Result<DType> {
    let found = Atom::from_term(term)
        .ok()
        .and_then(|atom| dtype_atoms(term.get_env()).iter().find(|(a, _)| *a == atom).map(|(_, t)| *t));
    found.ok_or_else(|| bad("type", "a type of Nx such as :f32", term))
}

pub fn shape(term: Term) -> Result<Dims> {
    let expected = "a tuple of sizes";
    let sizes = get_tuple(term).map_err(|_| bad("shape", expected, term))?;
    sizes.iter().map(|&size| self::size(size).ok_or_else(|| bad("shape", expected, term))).collect()
}

/// A size, or the largest there is for those that 64 bits don't hold: `Type::check` refuses both.
fn size(term: Term) -> Option<u64> {
    let is_larger = || term.get_type() == TermType::Integer && term > u64::MAX.encode(term.get_env());
    term.decode().ok().or_else(|| is_larger().then_some(u64::MAX))
}

pub fn ty(dtype_term: Term, shape_term: Term) -> Result<Type> {
    let ty = Type { dtype: dtype(dtype_term)?, shape: shape(shape_term)? };
    ty.check()?;
    Ok(ty)
}

thread_local! {
    /// Ops without attributes by their atom: a scheduler thread decodes each name once.
    static PLAIN_OPS: RefCell<HashMap<Atom, Op>> = RefCell::new(HashMap::new());
}

/// The op of a name and a keyword list of attributes.
pub fn op(name: Term, attrs: Term) -> Result<Op> {
    if !attrs.is_empty_list() {
        return Op::from_wire(&op_name(name)?, &keyword(attrs)?);
    }
    let key = Atom::from_term(name).map_err(|_| bad("op", "an atom", name))?;
    if let Some(op) = PLAIN_OPS.with(|ops| ops.borrow().get(&key).cloned()) {
        return Ok(op);
    }
    let op = Op::from_wire(&op_name(name)?, &[])?;
    PLAIN_OPS.with(|ops| ops.borrow_mut().insert(key, op.clone()));
    Ok(op)
}

fn op_name(term: Term) -> Result<String> {
    term.atom_to_string().map_err(|_| bad("op", "an atom", term))
}

fn keyword(attrs: Term) -> Result<Vec<(String, Attr)>> {
    let expected = "a keyword list";
    let list: ListIterator = attrs.decode().map_err(|_| bad("attributes", expected, attrs))?;
    list.map(|item| {
        let (name, value) = item.decode::<(Term, Term)>().map_err(|_| bad("attributes", expected, attrs))?;
        let name = name.atom_to_string().map_err(|_| bad("attributes", expected, attrs))?;
        Ok((name, attr(value)?))
    })
    .collect()
}

/// Lists within lists that an attribute may have. Programs nest by six; what holds them is dropped by recursion.
const MAX_DEPTH: usize = 512;

/// The attribute that a term says. A scheduler's stack is too small for recursion.
pub fn attr(term: Term) -> Result<Attr> {
    let mut open: Vec<(ListIterator, Vec<Attr>)> = Vec::new();
    let mut next = Some(term);
    loop {
        let done = match next {
            Some(term) if term.get_type() == TermType::List => {
                if open.len() == MAX_DEPTH {
                    // Without the term: printing it recurses as deeply.
                    let (expected, got) = (format!("lists nested up to {MAX_DEPTH} deep"), "deeper ones".to_string());
                    return Err(Error::InvalidArgument { what: "attribute", expected, got });
                }
                let items = term.decode().map_err(|_| bad("attribute", "a list", term))?;
                open.push((items, Vec::new()));
                None
            }
            Some(term) => Some(plain_attr(term)?),
            None => open.pop().map(|(_, items)| Attr::List(items)),
        };
        match (done, open.last_mut()) {
            (Some(attr), Some((_, items))) => items.push(attr),
            (Some(attr), None) => return Ok(attr),
            (None, _) => {}
        }
        next = open.last_mut().and_then(|(items, _)| items.next());
    }
}

fn plain_attr(term: Term) -> Result<Attr> {
    let expected = "an integer of 64 bits, a float, an atom, nil or a list of these";
    let fail = || bad("attribute", expected, term);
    match term.get_type() {
        TermType::Atom => Ok(match term.atom_to_string().map_err(|_| fail())? {
            name if name == "nil" => Attr::None,
            name if name == "true" => Attr::Bool(true),
            name if name == "false" => Attr::Bool(false),
            name => Attr::Name(name),
        }),
        TermType::Integer => {
            term.decode::<i64>().map(Attr::Int).or_else(|_| term.decode::<u64>().map(Attr::UInt)).map_err(|_| fail())
        }
        TermType::Float => term.decode::<f64>().map(Attr::Float).map_err(|_| fail()),
        _ => Err(fail()),
    }
}
