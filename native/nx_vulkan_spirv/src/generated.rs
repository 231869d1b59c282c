//! A generated module and how to launch it.

use nx_vulkan_ir::{Error, Result};
use rspirv::spirv::Word;

use super::params::ParamLayout;

/// A generated module and how to launch it.
#[derive(Debug, Clone)]
pub struct Generated {
    /// SPIR-V.
    pub words: Vec<u32>,
    /// The meaning of its parameter words.
    pub params: ParamLayout,
    /// Parameters go through a table in memory.
    pub table: bool,
    /// Elements that one workgroup covers.
    pub elements_per_group: u32,
}

impl Generated {
    /// With parameters in push constants where they fit, else through a table. `generate` is told which.
    pub fn push_or_table(generate: impl Fn(bool) -> Result<Generated>) -> Result<Generated> {
        Generated::push_or_table_of(ParamLayout::PUSH_WORDS, generate)
    }

    /// With parameters in so many words of push constants where they fit, else through a table.
    pub fn push_or_table_of(push_words: usize, generate: impl Fn(bool) -> Result<Generated>) -> Result<Generated> {
        let generated = generate(false)?;
        if generated.params.words.len() <= push_words { Ok(generated) } else { generate(true) }
    }
}

/// Invocations per workgroup of the elementwise templates.
pub const LOCAL_SIZE: u32 = 256;
/// Elements per invocation of the scalar elementwise template.
pub const ITEMS: u32 = 4;

/// A slot's parameter.
pub fn arg(args: &[Word], index: usize) -> Result<Word> {
    args.get(index).copied().ok_or_else(|| Error::InvalidProgram {
        op: "template".to_string(),
        reason: "slot with too few parameters".to_string(),
    })
}
