//! SPIR-V as text whose lines change where the module does: ids have names made of what they stand for, or numbers
//! within their function.

use std::collections::{HashMap, HashSet};

use rspirv::binary::Disassemble;

/// Says what a result is, where a word or two can: `OpTypeFloat 32` is `f32`.
fn name_of(instruction: &str, names: &HashMap<&str, String>) -> Option<String> {
    let mut words = instruction.split(' ');
    let opcode = words.next()?;
    let words: Vec<&str> = words.collect();
    let word = |at: usize| words.get(at).copied();
    let named = |at: usize| names.get(word(at)?.strip_prefix('%')?).map(String::as_str);
    Some(match opcode {
        "OpTypeVoid" => "void".to_owned(),
        "OpTypeBool" => "bool".to_owned(),
        "OpTypeInt" => format!("{}{}", if word(1)? == "0" { "u" } else { "i" }, word(0)?),
        "OpTypeFloat" if words.len() == 1 => format!("f{}", word(0)?),
        "OpTypeVector" => format!("{}x{}", named(0)?, word(1)?),
        "OpTypePointer" => format!("{}_{}", word(0)?, named(1)?),
        "OpConstant" => format!("{}_{}", named(0)?, word(1)?),
        "OpConstantNull" => format!("{}_null", named(0)?),
        "OpConstantTrue" => "true".to_owned(),
        "OpConstantFalse" => "false".to_owned(),
        "OpTypeFunction" | "OpTypeStruct" | "OpTypeArray" | "OpTypeRuntimeArray" => {
            let parts: Option<Vec<&str>> = (0..words.len()).map(named).collect();
            format!("{}_{}", opcode.strip_prefix("OpType")?.to_lowercase(), parts?.join("_"))
        }
        _ => return None,
    })
}

/// The text with the id of each `%` replaced by what `name` says.
fn with_names(line: &str, mut name: impl FnMut(&str) -> Option<String>) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('%') {
        let (before, after) = rest.split_at(at + 1);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (id, others) = after.split_at(digits);
        text.push_str(before);
        text.push_str(&name(id).unwrap_or_else(|| id.to_owned()));
        rest = others;
    }
    text + rest
}

/// A module's listing. What decorates a result within a function stands behind it.
pub fn listing(words: &[u32]) -> String {
    let text = rspirv::dr::load_words(words).unwrap().disassemble().replace("  ", " ");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(';') && !line.is_empty()).collect();
    let mut names: HashMap<&str, String> = HashMap::new();
    // How many share a name so far, and what lies in the function around.
    let (mut alike, mut within): (HashMap<String, u32>, Option<u32>) = (HashMap::new(), None);
    let mut locals = HashSet::new();
    for line in &lines {
        let Some((id, instruction)) = line.strip_prefix('%').and_then(|rest| rest.split_once(" = ")) else {
            if *line == "OpFunctionEnd" {
                within = None;
            }
            continue;
        };
        let begins = instruction.starts_with("OpFunction ");
        if let (Some(count), false) = (&mut within, begins) {
            names.insert(id, count.to_string());
            locals.insert(id);
            *count += 1;
            continue;
        }
        let mut name = name_of(instruction, &names).unwrap_or_else(|| {
            let opcode = instruction.split(' ').next().unwrap_or_default();
            opcode.trim_start_matches("OpType").trim_start_matches("Op").to_lowercase()
        });
        name.retain(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let count = alike.entry(name.clone()).or_default();
        *count += 1;
        names.insert(id, if *count == 1 { name } else { format!("{name}.{count}") });
        if begins {
            within = Some(0);
        }
    }
    let decoration = |line: &str| {
        let (id, what) = line.strip_prefix("OpDecorate %")?.split_once(' ')?;
        locals.contains(id).then(|| (id.to_owned(), what.to_owned()))
    };
    let mut decorated: HashMap<String, String> = HashMap::new();
    for (id, what) in lines.iter().filter_map(|line| decoration(line)) {
        let all = decorated.entry(id).or_default();
        all.push_str(if all.is_empty() { " ; " } else { ", " });
        all.push_str(&what);
    }
    let mut out = String::new();
    for line in lines {
        if decoration(line).is_some() {
            continue;
        }
        if line.contains("= OpFunction ") {
            out.push('\n');
        }
        out.push_str(&with_names(line, |id| names.get(id).cloned()));
        let id = line.strip_prefix('%').and_then(|rest| rest.split(' ').next());
        if let Some(what) = id.and_then(|id| decorated.get(id)) {
            out.push_str(what);
        }
        out.push('\n');
    }
    out
}
