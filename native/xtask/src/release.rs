//! `cargo xtask release`: what a release consists of. An archive of the native library for each target, by the name
//! under which rustler_precompiled looks for it, its debug symbols in another, and the two files that make a checkout
//! the package of the release: the checksums, and where the archives lie.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use crate::compile::{self, write};
use crate::error::{Error, Result};

/// `Nx.Vulkan.Library` has the same, but for Windows on Arm.
pub const TARGETS: [&str; 9] = [
    "aarch64-apple-darwin",
    "aarch64-pc-windows-msvc",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "x86_64-unknown-freebsd",
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
];

/// That of OTP 26, whose `enif_set_option` the library calls; VMs of later versions load it.
const NIF_VERSION: &str = "2.17";

/// The most that an archive may take, which users download. That of x86-64 Linux took 5,480,103 bytes on 29 November
/// 2026; docs/design/releases.md says what bounds it.
const ARCHIVE_BYTES: usize = 6_000_000;

/// The newest version of glibc that a library for it may need: that of Debian 11 and Ubuntu 20.04.
const GLIBC: Version = (2, 31);

type Version = (u32, u32);

const CHECKSUMS: &str = "checksum-Elixir.Nx.Vulkan.NativeV.exs";
const RELEASE_URL: &str = "release_url";

/// Strips a library that was built for `target`, and writes its archive, and that of its debug symbols, to `folder`.
pub fn archive(target: &str, library: &Path, folder: &Path) -> Result<String, Vec<Error>> {
    known(target).and_then(|()| write_archives(target, library, folder)).map_err(|error| vec![error])
}

fn known(target: &str) -> Result<()> {
    match TARGETS.contains(&target) {
        true => Ok(()),
        false => Err(Error::Release(format!("{target} is none of the targets, which are {}", TARGETS.join(", ")))),
    }
}

fn write_archives(target: &str, library: &Path, folder: &Path) -> Result<String> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;
    let (symbols_file, symbols) = symbols(target, library, folder)?;
    let file = format!("{}.{}", name(target), extension(target));
    let stripped = stripped(target, library, &folder.join(&file), &folder.join(&symbols_file))?;
    glibc(target, &stripped)?;
    let archive = gzip(&tar(&file, &stripped));
    fits(&file, archive.len())?;
    write(&archive_path(folder, target), &archive)?;
    let symbols_archive = gzip(&tar(&symbols_file, &symbols));
    write(&folder.join(format!("{}.debug.tar.gz", name(target))), &symbols_archive)?;
    Ok(format!(
        "release: {file} has {} bytes, {} as archive; {symbols_file} {}, {} as archive",
        stripped.len(),
        archive.len(),
        symbols.len(),
        symbols_archive.len()
    ))
}

/// As rustler_precompiled names it. It takes Windows for x86-64, of which another processor is a variant.
fn name(target: &str) -> String {
    let named = |target| format!("nx_vulkan_native-v{}-nif-{NIF_VERSION}-{target}", env!("CARGO_PKG_VERSION"));
    match target {
        "aarch64-pc-windows-msvc" => named("x86_64-pc-windows-msvc--aarch64"),
        _ if target.contains("windows") => named(target),
        _ => format!("lib{}", named(target)),
    }
}

fn extension(target: &str) -> &'static str {
    if target.contains("windows") { "dll" } else { "so" }
}

fn archive_path(folder: &Path, target: &str) -> PathBuf {
    folder.join(format!("{}.{}.tar.gz", name(target), extension(target)))
}

/// The debug symbols of a library, and the name of the file in which debuggers look for them.
fn symbols(target: &str, library: &Path, folder: &Path) -> Result<(String, Vec<u8>)> {
    let name = name(target);
    if target.contains("windows") {
        return Ok((file_name(&library.with_extension("pdb")), read(&library.with_extension("pdb"))?));
    }
    if target.contains("apple") {
        // The one file in a bundle of folders, which the build makes beside the library.
        let within = format!("{}.dSYM/Contents/Resources/DWARF", file_name(library));
        return Ok((format!("{name}.dwarf"), read(&library.with_file_name(within).join(file_name(library)))?));
    }
    let file = format!("{name}.debug");
    let path = folder.join(&file);
    objcopy(&["--only-keep-debug".as_ref()], library, &path)?;
    Ok((file, read(&path)?))
}

/// A library without its debug symbols, which it names.
fn stripped(target: &str, library: &Path, to: &Path, symbols: &Path) -> Result<Vec<u8>> {
    if target.contains("windows") {
        return read(library);
    }
    if target.contains("apple") {
        // What is exported stands in the only table of symbols.
        objcopy(&["--strip-debug".as_ref(), "--discard-all".as_ref()], library, to)?;
    } else {
        let mut link = OsString::from("--add-gnu-debuglink=");
        link.push(symbols);
        objcopy(&["--strip-all".as_ref(), &link], library, to)?;
        remove(symbols)?;
    }
    let bytes = read(to)?;
    remove(to)?;
    Ok(bytes)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// LLVM's objcopy, which the Rust toolchain has for all systems' files.
fn objcopy(arguments: &[&OsStr], from: &Path, to: &Path) -> Result<()> {
    let mut rustc = Command::new("rustc");
    let libraries = compile::run("rustc", rustc.args(["--print", "target-libdir"]))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&libraries.stdout).trim());
    let tool = libraries.with_file_name("bin").join(format!("rust-objcopy{}", std::env::consts::EXE_SUFFIX));
    let output = compile::run("rust-objcopy", Command::new(tool).args(arguments).arg(from).arg(to))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Source {
            path: from.to_owned(),
            reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}

/// That a library needs no newer glibc, and on other systems none.
fn glibc(target: &str, library: &[u8]) -> Result<()> {
    let allowed = if target.ends_with("-gnu") { GLIBC } else { (0, 0) };
    match newest_glibc(library) {
        Some(needed) if needed > allowed => Err(Error::Release(format!(
            "the library for {target} needs GLIBC_{}.{}, and at most {}.{} is allowed: build it with bin/library",
            needed.0, needed.1, allowed.0, allowed.1
        ))),
        _ => Ok(()),
    }
}

/// The newest version of glibc that a library names. The versions that it needs stand as text among its dynamic
/// strings.
fn newest_glibc(library: &[u8]) -> Option<Version> {
    const WORD: &[u8] = b"GLIBC_";
    let places = library.windows(WORD.len()).enumerate().filter(|(_, window)| *window == WORD);
    places.filter_map(|(at, _)| version(&library[at + WORD.len()..])).max()
}

/// The first two numbers of a version at the head of `text`.
fn version(text: &[u8]) -> Option<Version> {
    let end = text.iter().position(|&byte| !byte.is_ascii_digit() && byte != b'.')?;
    let mut numbers = std::str::from_utf8(&text[..end]).ok()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn fits(file: &str, archive_bytes: usize) -> Result<()> {
    match archive_bytes <= ARCHIVE_BYTES {
        true => Ok(()),
        false => Err(Error::Release(format!("the archive of {file} has {archive_bytes} bytes, above {ARCHIVE_BYTES}"))),
    }
}

/// A file as a tar archive (POSIX ustar). The same bytes wherever it is made: no time, no user.
fn tar(name: &str, contents: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut header = [0; BLOCK];
    let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    // Place by place: name, mode, user, group, size, time, kind of file, format.
    field(0, name);
    field(100, "0000755\0");
    field(108, "0000000\0");
    field(116, "0000000\0");
    field(124, &format!("{:011o}\0", contents.len()));
    field(136, "00000000000\0");
    field(156, "0");
    field(257, "ustar\0");
    field(263, "00");
    // The sum over the header in which it is itself blank.
    field(148, "        ");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(contents);
    // Whole blocks, and two empty ones at the end.
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().read(bytes, Compression::best());
    let mut archive = vec![];
    // Reading from memory does not fail.
    let _ = encoder.read_to_end(&mut archive);
    archive
}

/// Writes to `root` what makes a checkout there the package of a release: the checksums of the archives of all targets,
/// which lie in `folder`, and `url`, where users find them.
pub fn package(folder: &Path, url: &str, root: &Path) -> Result<String, Vec<Error>> {
    let mut text = String::from("%{\n");
    let mut errors = vec![];
    let mut archives: Vec<PathBuf> = TARGETS.iter().map(|target| archive_path(folder, target)).collect();
    archives.sort();
    for path in &archives {
        match read(path) {
            Ok(bytes) => {
                let sum = Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                let _ = writeln!(text, "  \"{}\" => \"sha256:{sum}\",", file_name(path));
            }
            Err(error) => errors.push(error),
        }
    }
    text.push_str("}\n");
    if !errors.is_empty() {
        return Err(errors);
    }
    write(&root.join(CHECKSUMS), text.as_bytes())
        .and_then(|()| write(&root.join(RELEASE_URL), format!("{url}\n").as_bytes()))
        .map_err(|error| vec![error])?;
    Ok(format!("release: wrote {CHECKSUMS} of {} archives and {RELEASE_URL}", archives.len()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_rustler_precompiled() {
        let version = env!("CARGO_PKG_VERSION");
        let file = |target| file_name(&archive_path(Path::new("dist"), target));
        assert_eq!(
            file("x86_64-unknown-linux-gnu"),
            format!("libnx_vulkan_native-v{version}-nif-2.17-x86_64-unknown-linux-gnu.so.tar.gz")
        );
        assert_eq!(
            file("aarch64-apple-darwin"),
            format!("libnx_vulkan_native-v{version}-nif-2.17-aarch64-apple-darwin.so.tar.gz")
        );
        assert_eq!(
            file("aarch64-pc-windows-msvc"),
            format!("nx_vulkan_native-v{version}-nif-2.17-x86_64-pc-windows-msvc--aarch64.dll.tar.gz")
        );
        assert!(known("x86_64-unknown-linux-gnux32").is_err());
    }

    #[test]
    fn a_newer_glibc_is_refused() {
        let library = b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.31\0GLIBC_2.4\0GLIBC_PRIVATE\0";
        assert_eq!(newest_glibc(library), Some((2, 31)));
        assert!(glibc("x86_64-unknown-linux-gnu", library).is_ok());
        assert!(glibc("x86_64-unknown-linux-musl", library).is_err());
        let newer = glibc("aarch64-unknown-linux-gnu", b"\0GLIBC_2.17\0GLIBC_2.34\0").unwrap_err();
        assert!(newer.to_string().contains("GLIBC_2.34, and at most 2.31"), "{newer}");
        assert!(glibc("x86_64-unknown-linux-musl", b"\0GLIBCXX_3.4\0libc.so\0").is_ok());
    }

    #[test]
    fn a_large_archive_is_refused() {
        assert!(fits("library.so", ARCHIVE_BYTES).is_ok());
        assert!(fits("library.so", ARCHIVE_BYTES + 1).is_err());
    }

    #[test]
    fn archives_are_tar_and_the_same_each_time() {
        let archive = tar("library.so", &[7; 600]);
        assert_eq!(archive.len(), 512 + 1024 + 1024);
        assert_eq!(&archive[..10], b"library.so");
        // 600 bytes, in octal digits.
        assert_eq!(&archive[124..136], b"00000001130\0");
        assert_eq!(&archive[257..265], b"ustar\x0000");
        assert_eq!(archive[512 + 599..512 + 601], [7, 0]);
        assert_eq!(gzip(&archive), gzip(&archive));
    }

    #[test]
    fn a_package_has_the_sums_of_all_targets() {
        let scratch = crate::shaders::Scratch::new().unwrap();
        let folder = scratch.folder(0).unwrap();
        for target in &TARGETS[1..] {
            write(&archive_path(&folder, target), b"abc").unwrap();
        }
        let errors = package(&folder, "https://example.com/v1", &folder).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("aarch64-apple-darwin.so.tar.gz"), "{}", errors[0]);
        write(&archive_path(&folder, TARGETS[0]), b"abc").unwrap();
        package(&folder, "https://example.com/v1", &folder).unwrap();
        let sums = std::fs::read_to_string(folder.join(CHECKSUMS)).unwrap();
        assert_eq!(sums.matches("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").count(), 9);
        assert_eq!(std::fs::read_to_string(folder.join(RELEASE_URL)).unwrap(), "https://example.com/v1\n");
    }
}
