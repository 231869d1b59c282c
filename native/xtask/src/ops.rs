//! The Elixir side's table of ops and types, written from the engine's own.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use nx_vulkan_ir::program::Op;
use nx_vulkan_ir::program::ops::{Class, Elementwise, Rule, Sample, samples};
use nx_vulkan_ir::program::verify;
use nx_vulkan_ir::{DType, Type};

use crate::error::{Error, Result};

/// Characters of a line, the comma behind a row among them.
const LINE: usize = 120;

const HEAD: &str = r#"defmodule Nx.Vulkan.Ops.Table do
  @moduledoc false

  # Written by `cargo xtask ops` from native/nx_vulkan_ir/src/program/ops/ and dtype.rs: the ops, those that are
  # functions of elements, those that move elements and the others, and the types, by Nx's names. Whatever else speaks
  # of them asks `Nx.Vulkan.Ops`.

  # `{op, operands, kind}`: a `:predicate` gives 0 or 1, of u8; `:integer` takes integers alone; `:complex` is about the
  # parts of complex numbers; `:cast` gives the type that it is asked for; `:number` is all others.
"#;

const TAIL: &str = r#"
  @type kind :: :predicate | :integer | :complex | :cast | :number

  @doc "Ops each of whose results is a function of the operands' elements at its place."
  @spec elementwise :: [{op :: atom, operands :: pos_integer, kind}]
  def elementwise, do: @elementwise

  @doc "The other ops that compute."
  @spec structured :: [{op :: atom, attributes :: [atom], operands :: non_neg_integer, results :: pos_integer, boolean}]
  def structured, do: @structured

  @doc "The ops whose results have elements of their operands, or are made of nothing, each in their place."
  @spec moves :: [{op :: atom, kind :: :source | :view | :placement, attributes :: [atom]}]
  def moves, do: @moves

  @doc "The types."
  @spec types :: [Nx.Type.t()]
  def types, do: @types
end
"#;

fn kind(op: Elementwise) -> &'static str {
    let rule = match op {
        Elementwise::AsType | Elementwise::Bitcast => return "cast",
        Elementwise::Select | Elementwise::Clip => return "number",
        Elementwise::Unary(op) => op.rule(),
        Elementwise::Binary(op) => op.rule(),
    };
    match rule {
        Rule::Predicate | Rule::Comparison => "predicate",
        Rule::Integer => "integer",
        Rule::Part | Rule::Complex => "complex",
        Rule::Same | Rule::Real | Rule::Float | Rule::RealFloat | Rule::Magnitude => "number",
    }
}

/// The row of an op that moves elements, or makes them of nothing.
fn moves(name: &str, Sample { op, .. }: &Sample) -> Option<String> {
    let kind = match op.class() {
        Class::Source => "source",
        Class::View => "view",
        Class::Placement | Class::Padding => "placement",
        Class::Elementwise
        | Class::Reduction
        | Class::Fold
        | Class::Window
        | Class::Order
        | Class::Product
        | Class::Gather
        | Class::Scatter
        | Class::Transform
        | Class::Matrix
        | Class::Loop
        | Class::Branch
        | Class::Kernel
        | Class::Fence => return None,
    };
    Some(format!("    {{:{name}, :{kind}, [{}]}}", attributes(op)))
}

/// The names of an op's attributes.
fn attributes(op: &Op) -> String {
    op.attrs().iter().map(|(attribute, _)| format!(":{attribute}")).collect::<Vec<_>>().join(", ")
}

/// The row of an op that computes, is no function of elements and runs no program.
fn structured(name: &str, Sample { op, operands, outs }: &Sample) -> Option<String> {
    match op.class() {
        Class::Elementwise
        | Class::Source
        | Class::View
        | Class::Placement
        | Class::Padding
        | Class::Loop
        | Class::Branch
        | Class::Kernel
        | Class::Fence => return None,
        Class::Reduction
        | Class::Fold
        | Class::Window
        | Class::Order
        | Class::Product
        | Class::Gather
        | Class::Scatter
        | Class::Transform
        | Class::Matrix => {}
    }
    let complex = |types: &[Type]| -> Vec<Type> {
        let as_complex = |ty: &Type| Type::new(if ty.dtype == DType::F32 { DType::C64 } else { ty.dtype }, &ty.shape);
        types.iter().map(as_complex).collect()
    };
    let takes_complex = verify::instruction(op, &complex(operands).iter().collect::<Vec<_>>(), &complex(outs)).is_ok();
    let attributes = attributes(op);
    let others = format!("{}, {}, {takes_complex}}}", operands.len(), outs.len());
    let row = format!("    {{:{name}, [{attributes}], {others}");
    // As `mix format` has it.
    let lines =
        || format!("    {{:{name},\n     [\n       {}\n     ], {others}", attributes.replace(", ", ",\n       "));
    Some(if row.len() < LINE { row } else { lines() })
}

/// A type as Nx writes it in a keyword list: a class and bits.
fn entry(dtype: DType) -> String {
    let name = dtype.to_string();
    let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    match name[digits..].parse::<u32>() {
        Ok(bits) => format!("{}: {bits}", &name[..digits]),
        // Named in full where there are several of as many bits.
        Err(_) => format!("{name}: {}", 8 * dtype.size_bytes()),
    }
}

fn table() -> String {
    let mut text = HEAD.to_string();
    let rows: Vec<String> =
        Elementwise::all().map(|op| format!("    {{:{}, {}, :{}}}", op.name(), op.arity(), kind(op))).collect();
    // Writing to a string can't fail.
    let _ = write!(text, "  @elementwise [\n{}\n  ]\n\n", rows.join(",\n"));
    let rows: Vec<String> = samples().iter().filter_map(|(name, sample)| structured(name, sample)).collect();
    text += "  # `{op, attributes, operands, results, whether it takes complex numbers}`.\n";
    let _ = write!(text, "  @structured [\n{}\n  ]\n\n", rows.join(",\n"));
    let rows: Vec<String> = samples().iter().filter_map(|(name, sample)| moves(name, sample)).collect();
    let _ = write!(text, "  # `{{op, kind, attributes}}`.\n  @moves [\n{}\n  ]\n\n", rows.join(",\n"));
    let (integers, others): (Vec<DType>, Vec<DType>) = DType::ALL.into_iter().partition(|dtype| dtype.is_integer());
    let list = |types: Vec<DType>| types.into_iter().map(entry).collect::<Vec<String>>().join(", ");
    let _ = write!(text, "  @types [{}] ++\n           [{}]\n", list(integers), list(others));
    text + TAIL
}

fn path(workspace: &Path) -> PathBuf {
    workspace.join("lib/nx/vulkan/ops/table.ex")
}

pub fn build(workspace: &Path) -> Result<String, Vec<Error>> {
    let path = path(workspace);
    std::fs::write(&path, table()).map_err(|source| vec![Error::Io { path, source }])?;
    Ok("the table of ops is written".to_string())
}

pub fn check(workspace: &Path) -> Result<String, Vec<Error>> {
    let path = path(workspace);
    let found = std::fs::read_to_string(&path).map_err(|source| vec![Error::Io { path: path.clone(), source }])?;
    if found == table() {
        return Ok("the table of ops is the engine's".to_string());
    }
    Err(vec![Error::Source { path, reason: "is not what the engine's ops are: run cargo xtask ops".to_string() }])
}
