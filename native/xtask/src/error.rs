//! What goes wrong.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Source { path: PathBuf, reason: String },
    #[error("{0}")]
    Release(String),
    #[error("{tool} can't be run: {source}")]
    Tool { tool: &'static str, source: std::io::Error },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
