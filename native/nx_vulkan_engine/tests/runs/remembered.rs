//! Programs and code of kernels that are found on disk are those that would be made again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::program::file::Recording;
use nx_vulkan_engine::{Compile, Engine, Executable, Options, Tensor};

use crate::common;
use crate::workloads::{WORKLOADS, workload};

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("nx-vulkan-remembered-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    /// A fresh engine that keeps what it makes here.
    fn engine(&self) -> Arc<Engine> {
        Engine::open_with(&Options { cache_dir: Some(self.0.clone()), ..common::options() }).unwrap()
    }

    /// The files of programs, and of kernels where the device has binaries of them, with their bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = of_folder(&self.0.join("programs"));
        files.extend(of_folder(&self.0.join("shaders")));
        files
    }

    fn counts(&self) -> [usize; 2] {
        ["programs", "shaders"].map(|name| of_folder(&self.0.join(name)).len())
    }
}

fn of_folder(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether the device's driver is the one known to give out binaries.
fn has_binaries(engine: &Engine) -> bool {
    engine.info().name.starts_with("llvmpipe")
}

/// What a program's launches are, and the bits of its results.
fn outcome(engine: &Arc<Engine>, recording: &Recording) -> (Vec<Described>, Vec<Vec<u8>>) {
    let executable = Executable::compile(engine, recording.program.clone()).unwrap();
    let types = recording.program.inputs.iter().zip(&recording.inputs);
    let inputs: Vec<Tensor> = types.map(|(ty, bytes)| Tensor::from_nx_bytes(engine, ty, bytes).unwrap()).collect();
    let outputs = executable.run(&inputs, Compile::Allowed).unwrap();
    let bits = outputs.iter().map(|output| output.to_nx_bytes(engine, None).unwrap()).collect();
    common::assert_valid(engine);
    (executable.describe(), bits)
}

#[test]
fn what_is_on_disk_gives_the_launches_and_bits_of_what_is_made() {
    let folder = Folder::new("bits");
    let recordings = WORKLOADS.map(workload);
    let fresh = common::engine();
    let wanted: Vec<_> = recordings.iter().map(|recording| outcome(&fresh, recording)).collect();
    let first = folder.engine();
    for (recording, wanted) in recordings.iter().zip(&wanted) {
        assert!(outcome(&first, recording) == *wanted, "{} while it is written", recording.name);
    }
    let written = folder.files();
    let [programs, shaders] = folder.counts();
    assert!(programs >= 5 && (shaders >= 20) == has_binaries(&first), "{programs} programs, {shaders} kernels");
    // Nothing of it is made again: what is not found would be written.
    written.iter().for_each(|(path, _)| mark(path));
    let second = folder.engine();
    for (recording, wanted) in recordings.iter().zip(&wanted) {
        assert!(outcome(&second, recording) == *wanted, "{} from disk", recording.name);
    }
    assert!(folder.files() == written);
    written.iter().for_each(|(path, _)| assert!(is_marked(path), "{} was written again", path.display()));
}

/// Gives a file a time of writing that it would lose.
fn mark(path: &Path) {
    fs::File::options().write(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
}

fn is_marked(path: &Path) -> bool {
    fs::metadata(path).unwrap().modified().unwrap() == std::time::UNIX_EPOCH
}

#[test]
fn damaged_and_foreign_files_are_made_again() {
    let folder = Folder::new("damaged");
    let recording = workload("mlp_small_step");
    let wanted = outcome(&folder.engine(), &recording);
    let written = folder.files();
    let [programs, shaders] = folder.counts();
    assert!(
        programs == 1 && (shaders >= 3) == has_binaries(&common::engine()),
        "{programs} programs, {shaders} kernels"
    );
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 6] = [
        ("empty", |_| vec![]),
        ("cut", |file| file[..file.len() / 2].to_vec()),
        ("longer", |file| [file, b"\n"].concat()),
        ("zeros", |file| vec![0; file.len()]),
        ("a bit of the data", |file| {
            let mut file = file.to_vec();
            *file.last_mut().unwrap() ^= 1;
            file
        }),
        ("a bit of the version", |file| {
            let mut file = file.to_vec();
            file[7] ^= 1;
            file
        }),
    ];
    for (name, damage) in damages {
        written.iter().for_each(|(path, file)| fs::write(path, damage(file)).unwrap());
        assert!(outcome(&folder.engine(), &recording) == wanted, "{name}");
        assert!(folder.files() == written, "{name}: written anew");
    }
    // Each has what belongs to the next one.
    let turned = written.iter().zip(written.iter().cycle().skip(1));
    turned.for_each(|((path, _), (_, other))| fs::write(path, other).unwrap());
    assert!(outcome(&folder.engine(), &recording) == wanted);
    assert!(folder.files() == written);
}

#[test]
fn engines_may_share_a_folder_at_once() {
    let folder = Folder::new("at_once");
    let recording = workload("mlp_small_step");
    let wanted = outcome(&common::engine(), &recording);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(outcome(&folder.engine(), &recording) == wanted));
        }
    });
    let names: Vec<_> = folder.files().into_iter().map(|(path, _)| path).collect();
    assert!(names.iter().all(|path| path.extension().is_some_and(|extension| extension == "bin")), "{names:?}");
    assert!(outcome(&folder.engine(), &recording) == wanted);
}

#[test]
fn an_option_keeps_nothing() {
    let folder = Folder::new("off");
    let options = Options { cache_dir: Some(folder.0.clone()), keeps_compiled: false, ..common::options() };
    outcome(&Engine::open_with(&options).unwrap(), &workload("mlp_small_step"));
    assert!(folder.files().is_empty());
    assert!(folder.0.join("pipelines").exists(), "pipelines are kept where programs are not");
}
