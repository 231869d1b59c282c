//! `cargo xtask`: builds and checks what is committed although it is made from something else: shader modules, so that
//! users need no shader compiler, and the Elixir side's table of ops. Keeps files of a crate from all importing each
//! other. Makes the files of a release, and the list of licences in it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod compile;
mod error;
mod layers;
mod licences;
mod list;
mod lock;
mod matrix;
mod metal;
mod ops;
mod release;
mod shaders;
mod validate;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask shaders            build what has changed in priv/shaders
cargo xtask shaders --check    check that sources, modules and lock agree
cargo xtask validate           run spirv-val on every module
cargo xtask metal [folder ...] check that spirv-cross makes Metal's language of them, and of the modules in folders
cargo xtask ops                write the Elixir side's table of ops
cargo xtask ops --check        check that it is the engine's
cargo xtask layers             check that few files of a crate import each other in a ring
cargo xtask licences           write the licences of what the native library is linked from
cargo xtask licences --check   check that they are those of Cargo.lock
cargo xtask release <target> <library> <folder>   write the archives of a library that was built for the target
cargo xtask package <archives> <url> <folder>     write the checksums of all targets' archives, and their address";

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
        ["release", target, library, folder] => release::archive(target, Path::new(library), Path::new(folder)),
        ["package", archives, url, folder] => release::package(Path::new(archives), url, Path::new(folder)),
        ["layers"] => layers::check(workspace),
        ["licences"] => licences::build(workspace),
        ["licences", "--check"] => licences::check(workspace),
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
