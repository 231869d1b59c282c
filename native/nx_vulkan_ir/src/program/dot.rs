//! Programs as graphs in the DOT language of Graphviz: kernels are boxes, views dashed boxes, buffers the edges between
//! them.

use std::fmt::{Result, Write};

use super::fused::shares_memory;
use super::wire::Attr;
use super::{Instruction, Op, Operand, Program};
use crate::Type;

/// Ops of a kernel that its box lists; of more, it says how many there are.
const MAX_LINES: usize = 40;

impl Program {
    /// The program as a DOT graph. Kernels list their ops, edges say type and shape; the programs of `while` and `cond`
    /// are clusters.
    ///
    /// What kernels there are is decided by [`super::passes::optimize`]: give it what that gives.
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_ir::DType;
    /// use nx_vulkan_ir::program::Builder;
    ///
    /// # fn main() -> nx_vulkan_ir::Result<()> {
    /// let b = Builder::new();
    /// let x = b.input(DType::F32, &[2, 3]);
    /// let y = b.tanh(x);
    /// let graph = b.finish(&[y])?.to_dot("tanh of x");
    /// assert!(graph.starts_with("digraph \"tanh of x\" {"));
    /// assert!(graph.contains("p0_i0 -> p0_n0 [label=\"f32[2, 3]\"];"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_dot(&self, title: &str) -> String {
        programs_to_dot(title, &[("", self)])
    }
}

/// Several programs as one DOT graph, each a cluster with its title, unless that is empty.
pub fn programs_to_dot(title: &str, programs: &[(&str, &Program)]) -> String {
    let mut dot = Dot { text: String::new(), programs: 0 };
    // Writing to a string can't fail.
    let _ = dot.graph(title, programs);
    dot.text
}

/// A text as a quoted string. Line breaks of labels are written by their makers.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn attribute(value: &Attr) -> String {
    match value {
        Attr::None => "none".to_string(),
        Attr::Bool(x) => x.to_string(),
        Attr::Int(x) => x.to_string(),
        Attr::UInt(x) => x.to_string(),
        Attr::Float(x) => format!("{x:?}"),
        Attr::Name(name) => name.clone(),
        Attr::List(items) => format!("[{}]", items.iter().map(attribute).collect::<Vec<_>>().join(", ")),
    }
}

/// Name and attributes of an op.
fn told(op: &Op) -> String {
    let mut text = op.name().to_string();
    for (name, value) in op.attrs() {
        let value: String = attribute(&value).chars().take(80).collect();
        let _ = write!(text, " {name}={value}");
    }
    text
}

/// The lines of a kernel's box.
fn lines(name: &str, body: &Program) -> String {
    let mut text = format!("{name}\n");
    let mut result = 0;
    for (i, instruction) in body.instructions.iter().enumerate() {
        if i == MAX_LINES {
            let _ = writeln!(text, "and {} more", body.instructions.len() - i);
            break;
        }
        let operands: Vec<String> = instruction.operands.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "%{result} = {}({})", instruction.op.name(), operands.join(", "));
        result += instruction.outs.len();
    }
    text
}

struct Dot {
    text: String,
    /// How many programs have begun.
    programs: usize,
}

impl Dot {
    fn graph(&mut self, title: &str, programs: &[(&str, &Program)]) -> Result {
        writeln!(self.text, "digraph {} {{", quoted(title))?;
        writeln!(self.text, "  label={}; labelloc=t; fontname=\"sans-serif\";", quoted(title))?;
        writeln!(self.text, "  node [shape=box, fontname=\"monospace\", fontsize=10];")?;
        writeln!(self.text, "  edge [fontname=\"monospace\", fontsize=9];")?;
        for (title, program) in programs {
            match title.is_empty() {
                true => self.program(program, 2)?,
                false => self.cluster(title, program, 2)?,
            }
        }
        writeln!(self.text, "}}")
    }

    fn cluster(&mut self, title: &str, program: &Program, indent: usize) -> Result {
        writeln!(self.text, "{:indent$}subgraph cluster_{} {{", "", self.programs)?;
        writeln!(self.text, "{:indent$}  label={};", "", quoted(title))?;
        self.program(program, indent + 2)?;
        writeln!(self.text, "{:indent$}}}", "")
    }

    fn program(&mut self, program: &Program, indent: usize) -> Result {
        let p = self.programs;
        self.programs += 1;
        // The instruction of each result, and which of its results it is.
        let made: Vec<(usize, usize, &Type)> = program
            .instructions
            .iter()
            .enumerate()
            .flat_map(|(n, i)| i.outs.iter().enumerate().map(move |(k, ty)| (n, k, ty)))
            .collect();
        for (i, ty) in program.inputs.iter().enumerate() {
            let label = quoted(&format!("in{i}\n{ty}"));
            writeln!(self.text, "{:indent$}p{p}_i{i} [shape=ellipse, label={label}];", "")?;
        }
        for (n, instruction) in program.instructions.iter().enumerate() {
            self.instruction(&format!("p{p}_n{n}"), instruction, indent)?;
        }
        for n in 0..program.outputs.len() {
            writeln!(self.text, "{:indent$}p{p}_o{n} [shape=ellipse, label=\"out{n}\"];", "")?;
        }
        let uses = program
            .instructions
            .iter()
            .enumerate()
            .flat_map(|(n, i)| i.operands.iter().map(move |&operand| (operand, format!("p{p}_n{n}"))))
            .chain(program.outputs.iter().enumerate().map(|(n, &operand)| (operand, format!("p{p}_o{n}"))));
        for (operand, to) in uses {
            let (from, label) = match operand {
                Operand::Input(i) => {
                    (format!("p{p}_i{i}"), program.inputs.get(i as usize).map_or_else(String::new, |ty| ty.to_string()))
                }
                Operand::Result(r) => match made.get(r as usize) {
                    Some(&(n, k, ty)) if program.instructions[n].outs.len() > 1 => {
                        (format!("p{p}_n{n}"), format!("result {k}: {ty}"))
                    }
                    Some(&(n, _, ty)) => (format!("p{p}_n{n}"), ty.to_string()),
                    None => continue,
                },
            };
            writeln!(self.text, "{:indent$}{from} -> {to} [label={}];", "", quoted(&label))?;
        }
        Ok(())
    }

    fn instruction(&mut self, id: &str, instruction: &Instruction, indent: usize) -> Result {
        let parts: [(&str, &Program); 2] = match &instruction.op {
            Op::While(op) => [("condition", &op.condition), ("body", &op.body)],
            Op::Cond(op) => [("on_true", &op.on_true), ("on_false", &op.on_false)],
            op => {
                let (label, style) = match op {
                    Op::Fused(body) | Op::Workgroup(body) => (lines(op.name(), body), ", style=bold"),
                    Op::Constant(_) => (told(op), ", shape=plaintext"),
                    op if shares_memory(op) => (told(op), ", style=dashed"),
                    op => (told(op), ""),
                };
                // Lines are set flush left.
                let label = quoted(&label).replace("\\n", "\\l");
                return writeln!(self.text, "{:indent$}{id} [label={label}{style}];", "");
            }
        };
        let name = instruction.op.name();
        writeln!(self.text, "{:indent$}subgraph cluster_{id} {{", "")?;
        writeln!(self.text, "{:indent$}  label={}; style=rounded;", "", quoted(name))?;
        writeln!(self.text, "{:indent$}  {id} [label={}, style=bold];", "", quoted(name))?;
        for (title, program) in parts {
            self.cluster(title, program, indent + 2)?;
        }
        writeln!(self.text, "{:indent$}}}", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Builder, Linalg};
    use crate::{DType, Type};

    #[test]
    fn a_small_program_is_this_graph() {
        let b = Builder::new();
        let x = b.input(DType::F32, &[2, 3]);
        let turned = b.transpose(x, &[1, 0]);
        let scaled = b.multiply(turned, 0.5);
        let flag = b.greater(b.at(b.reshape(scaled, &[6]), 0), 0.0);
        let last = b.cond(flag, &[scaled], |b, v| vec![b.exp(v[0])], |_, v| vec![v[0]]);
        let lu = b.push_all(
            Op::from(Linalg::Lu),
            &[b.dot(x, last[0])],
            &[Type::new(DType::F32, &[2, 2]), Type::new(DType::F32, &[2, 2]), Type::new(DType::F32, &[2, 2])],
        );
        let graph = b.finish(&[last[0], lu[2]]).unwrap().to_dot("a \"quoted\" \\ name\nof two lines");
        let expected = include_str!("../../tests/data/small_program.gv");
        assert_eq!(graph, expected, "{graph}");
    }

    #[test]
    fn long_kernels_are_cut_and_every_edge_has_its_nodes() {
        let b = Builder::new();
        let x = b.input(DType::F32, &[5]);
        let y = (0..60).fold(x, |y, _| b.add(y, x));
        let body = b.finish(&[y]).unwrap();
        let b = Builder::new();
        let x = b.input(DType::F32, &[5]);
        let y = b.push(Op::Fused(Box::new(body)), &[x], &Type::new(DType::F32, &[5]));
        let z = b.while_loop(&[y], &[], |b, v| b.less(b.sum(v[0], &[0]), 1.0), |b, v| vec![b.add(v[0], 1.0)]);
        let program = b.finish(&z).unwrap();
        let graph = programs_to_dot("both", &[("first", &program), ("second", &program)]);
        assert!(graph.contains("and 20 more\\l") && graph.contains("%39 = add(%38, in0)\\l"), "{graph}");
        assert_eq!(graph.matches('{').count(), graph.matches('}').count());
        let nodes: Vec<&str> = graph
            .lines()
            .filter_map(|l| l.trim().split_once(" [").map(|(id, _)| id))
            .filter(|id| !id.contains(' '))
            .collect();
        let mut edges = 0;
        for line in graph.lines() {
            if let Some((from, to)) = line.trim().split_once(" [").and_then(|(edge, _)| edge.split_once(" -> ")) {
                assert!(nodes.contains(&from) && nodes.contains(&to), "{line}");
                edges += 1;
            }
        }
        assert_eq!(edges, 2 * (3 + 4 + 3), "{graph}");
    }
}
