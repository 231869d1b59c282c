//! `cargo xtask`: builds and checks what is committed although it is made from something else: shader modules, so that
//! users need no shader compiler, and the Elixir side's table of ops.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod compile;
mod list;
mod lock;
mod matrix;
mod metal;
mod ops;
mod shaders;
mod validate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Source { path: PathBuf, reason: String },
    #[error("{tool} can't be run: {source}")]
    Tool { tool: &'static str, source: std::io::Error },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

const USAGE: &str = "\
cargo xtask shaders            build what has changed in priv/shaders
cargo xtask shaders --check    check that sources, modules and lock agree
cargo xtask validate           run spirv-val on every module
cargo xtask metal [folder ...] check that spirv-cross makes Metal's language of them, and of the modules in folders
cargo xtask ops                write the Elixir side's table of ops
cargo xtask ops --check        check that it is the engine's";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let root = workspace.join("priv/shaders");
    let outcome = match arguments.as_slice() {
        ["shaders"] => shaders::build(&root),
        ["shaders", "--check"] => shaders::check(&root),
        ["validate"] => validate::all(&root),
        ["metal", folders @ ..] => metal::all(&root, folders),
        ["ops"] => ops::build(workspace),
        ["ops", "--check"] => ops::check(workspace),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(errors) => {
            for error in &errors {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
