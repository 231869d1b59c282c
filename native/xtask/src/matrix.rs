//! Variants of a shader as a matrix: each cell is one module, with a name and defines.

use serde::Deserialize;
use std::collections::BTreeMap;

pub type Defines = BTreeMap<String, String>;

/// By the name of a column: the defines that each word stands for.
pub type Choices = BTreeMap<String, BTreeMap<String, Defines>>;

/// By the columns of a key, with blanks between them: the rows, each with as many words.
pub type Matrix = BTreeMap<String, Vec<String>>;

/// A value, or a list of such values.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMore::One(value) => std::slice::from_ref(value),
            OneOrMore::More(values) => values,
        }
    }
}

/// One variant: the word of each column, and the defines of all of them.
#[derive(Debug, Default, Clone)]
struct Cell {
    words: BTreeMap<String, String>,
    defines: Defines,
}

/// The name and the defines of each cell of `matrix`. `choices` are looked up in their order.
pub fn cells(pattern: &str, matrix: &Matrix, choices: &[&Choices]) -> Result<Vec<(String, Defines)>, String> {
    let mut cells = vec![Cell::default()];
    for (key, rows) in matrix {
        let mut grown = Vec::with_capacity(cells.len() * rows.len());
        for cell in &cells {
            for row in rows {
                grown.push(with_row(cell, key, row, choices)?);
            }
        }
        cells = grown;
    }
    cells.into_iter().map(|cell| Ok((fill(pattern, &cell.words)?, cell.defines))).collect()
}

fn with_row(cell: &Cell, key: &str, row: &str, choices: &[&Choices]) -> Result<Cell, String> {
    let columns: Vec<&str> = key.split_whitespace().collect();
    // The one word of a single column may be empty.
    let words: Vec<&str> = if columns.len() == 1 { vec![row] } else { row.split_whitespace().collect() };
    if columns.len() != words.len() {
        return Err(format!("row {row:?} has not one word for each of {key:?}"));
    }
    let mut cell = cell.clone();
    for (column, word) in columns.into_iter().zip(words) {
        if column.chars().any(|c| c.is_ascii_lowercase()) {
            let choice = choices.iter().find_map(|choices| choices.get(column));
            let choice = choice.ok_or_else(|| format!("there are no choices {column:?}"))?;
            let defines = choice.get(word).ok_or_else(|| format!("{word:?} is none of the choices {column:?}"))?;
            cell.defines.extend(defines.clone());
        } else {
            cell.defines.insert(column.to_owned(), word.to_owned());
        }
        if cell.words.insert(column.to_owned(), word.to_owned()).is_some() {
            return Err(format!("column {column:?} stands twice"));
        }
    }
    Ok(cell)
}

/// `pattern` with the word of each `{column}` in its place.
pub fn fill(pattern: &str, words: &BTreeMap<String, String>) -> Result<String, String> {
    let mut parts = pattern.split('{');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (column, rest) = part.split_once('}').ok_or_else(|| format!("{pattern:?} lacks a closing brace"))?;
        let word = words.get(column).ok_or_else(|| format!("{pattern:?}: there is no column {column:?}"))?;
        name.push_str(plain(word));
        name.push_str(rest);
    }
    Ok(name)
}

/// The word as names spell it: of an unsigned number the digits.
fn plain(word: &str) -> &str {
    match word.strip_suffix('u') {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => digits,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
        toml::from_str(text).unwrap()
    }

    fn expand(pattern: &str, matrix: &str) -> Result<Vec<(String, Defines)>, String> {
        let shared: Choices = parse("[type]\nf32 = { F32 = \"1\" }\nf64 = { F64 = \"1\" }");
        let own: Choices = parse("[step]\n\"\" = {}\n_two = { STEP = \"2\" }");
        cells(pattern, &parse(matrix), &[&own, &shared])
    }

    fn names(cells: Vec<(String, Defines)>) -> Vec<String> {
        cells.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn cells_are_the_product_of_the_rows() {
        let cells =
            expand("a_{LOCAL}{step}_{type}", "LOCAL = [\"32u\", \"64u\"]\nstep = [\"\", \"_two\"]\ntype = [\"f32\"]");
        let cells = cells.unwrap();
        assert_eq!(cells[3].1, parse::<Defines>("LOCAL = \"64u\"\nSTEP = \"2\"\nF32 = \"1\""));
        assert_eq!(names(cells), ["a_32_f32", "a_32_two_f32", "a_64_f32", "a_64_two_f32"]);
    }

    #[test]
    fn columns_of_one_key_vary_together() {
        let cells = expand("a_{type}_{ROWS}", "\"type ROWS\" = [\"f32 8u\", \"f64 4u\"]").unwrap();
        assert_eq!(cells[1].1, parse::<Defines>("F64 = \"1\"\nROWS = \"4u\""));
        assert_eq!(names(cells), ["a_f32_8", "a_f64_4"]);
    }

    #[test]
    fn bad_matrices_are_refused() {
        let refused = |pattern, matrix| expand(pattern, matrix).unwrap_err();
        assert!(refused("a", "type = [\"u8\"]").contains("none of the choices"));
        assert!(refused("a", "kind = [\"u8\"]").contains("no choices"));
        assert!(refused("a", "\"type ROWS\" = [\"f32\"]").contains("one word for each"));
        assert!(refused("a", "\"ROWS\" = [\"1\"]\n\"ROWS TILE\" = [\"1 2\"]").contains("twice"));
        assert!(refused("a_{TILE}", "ROWS = [\"1\"]").contains("no column"));
        assert!(refused("a_{ROWS", "ROWS = [\"1\"]").contains("closing brace"));
    }
}
