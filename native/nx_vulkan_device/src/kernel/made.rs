//! What was made of something once, in files by the hash of all that it was made of. Any number of processes may use one
//! folder: a file is written under another name first, and counts only where it is whole.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sha2::{Digest, Sha256};

use super::disk_cache::write_whole;

/// The format of the files.
const MAGIC: &[u8; 8] = b"NXVKMD01";
const HASH_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + 2 * HASH_BYTES;
/// No longer file is read or written.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// A process writes no more: the folder is brought back to its bound only when a VM stops.
const MAX_WRITTEN_BYTES: u64 = 128 << 20;

/// The hash of all that something was made of.
pub type MadeKey = [u8; HASH_BYTES];

/// Folders of such files.
#[derive(Debug)]
pub struct MadeFiles {
    dir: Option<PathBuf>,
    written_bytes: AtomicU64,
}

impl MadeFiles {
    /// Files in folders of `dir`; `None` for none.
    pub fn new(dir: Option<PathBuf>) -> MadeFiles {
        MadeFiles { dir, written_bytes: AtomicU64::new(0) }
    }

    /// Whether there is a folder for them.
    pub fn are_kept(&self) -> bool {
        self.dir.is_some()
    }

    /// What was made for the key; none where its file is missing, damaged, or was written for another key.
    pub fn get(&self, folder: &str, key: &MadeKey) -> Option<Vec<u8>> {
        opened(read(&self.path(folder, key)?)?, key)
    }

    /// Keeps what was made for the key. A folder that can't be written is ignored: the files only save time.
    pub fn put(&self, folder: &str, key: &MadeKey, data: &[u8]) {
        let Some(path) = self.path(folder, key) else { return };
        let file = sealed(key, data);
        let bytes = file.len() as u64;
        if bytes <= MAX_FILE_BYTES && self.written_bytes.fetch_add(bytes, Relaxed) + bytes <= MAX_WRITTEN_BYTES {
            let _ = write_whole(&path, &file);
        }
    }

    fn path(&self, folder: &str, key: &MadeKey) -> Option<PathBuf> {
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.dir.as_ref()?.join(folder).join(digits + ".bin"))
    }
}

/// The bytes of a file that is no longer than any of these.
fn read(path: &Path) -> Option<Vec<u8>> {
    let size = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= MAX_FILE_BYTES)?.len();
    let mut file = Vec::with_capacity(usize::try_from(size).ok()?);
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut file).ok()?;
    Some(file)
}

/// The file for a key.
fn sealed(key: &MadeKey, data: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + data.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(key);
    file.extend_from_slice(&Sha256::digest(data));
    file.extend_from_slice(data);
    file
}

/// What stands in a whole file for that key.
fn opened(mut file: Vec<u8>, key: &MadeKey) -> Option<Vec<u8>> {
    let (header, data) = file.split_at_checked(HEADER_BYTES)?;
    let hash = header.strip_prefix(MAGIC)?.strip_prefix(key.as_slice())?;
    let is_whole = Sha256::digest(data).as_slice() == hash;
    is_whole.then(|| file.split_off(HEADER_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MadeKey = [7; HASH_BYTES];

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("nx-vulkan-made-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn only_whole_files_of_the_key_count() {
        let dir = folder("whole");
        let files = MadeFiles::new(Some(dir.clone()));
        assert_eq!(files.get("shaders", &KEY), None);
        for data in [&b""[..], b"x", &[3; 5000]] {
            files.put("shaders", &KEY, data);
            assert_eq!(files.get("shaders", &KEY).as_deref(), Some(data));
            assert_eq!(files.get("programs", &KEY), None);
            assert_eq!(files.get("shaders", &[8; HASH_BYTES]), None);
        }
        let path = files.path("shaders", &KEY).unwrap();
        let whole = fs::read(&path).unwrap();
        let other = files.path("shaders", &[8; HASH_BYTES]).unwrap();
        fs::copy(&path, &other).unwrap();
        assert_eq!(files.get("shaders", &[8; HASH_BYTES]), None, "a file that was renamed");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(opened(flipped, &KEY), None, "byte {at} differs");
            assert_eq!(opened(whole[..at].to_vec(), &KEY), None, "{at} bytes are left");
        }
        let longer = [&whole[..], b"x"].concat();
        fs::write(&path, longer).unwrap();
        assert_eq!(files.get("shaders", &KEY), None);
        files.put("shaders", &KEY, b"again");
        assert_eq!(files.get("shaders", &KEY).as_deref(), Some(&b"again"[..]));
        let left = fs::read_dir(dir.join("shaders")).unwrap().count();
        assert_eq!(left, 2, "no temporary files");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_no_file_or_too_long_is_ignored() {
        let dir = folder("long");
        let files = MadeFiles::new(Some(dir.clone()));
        let path = files.path("shaders", &KEY).unwrap();
        fs::create_dir_all(&path).unwrap();
        assert_eq!(files.get("shaders", &KEY), None);
        files.put("shaders", &KEY, b"x");
        assert_eq!(files.get("shaders", &KEY), None, "a folder stands in its place");
        fs::remove_dir(&path).unwrap();
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert_eq!(files.get("shaders", &KEY), None);
        fs::remove_dir_all(&dir).unwrap();
        assert!(!MadeFiles::new(None).are_kept());
        assert_eq!(MadeFiles::new(None).get("shaders", &KEY), None);
    }

    #[test]
    fn a_process_writes_no_more_than_its_share() {
        let dir = folder("share");
        let files = MadeFiles::new(Some(dir.clone()));
        files.written_bytes.store(MAX_WRITTEN_BYTES - HEADER_BYTES as u64 - 1, Relaxed);
        files.put("shaders", &KEY, b"x");
        assert_eq!(files.get("shaders", &KEY).as_deref(), Some(&b"x"[..]));
        files.put("shaders", &[8; HASH_BYTES], b"x");
        assert_eq!(files.get("shaders", &[8; HASH_BYTES]), None);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn threads_that_write_one_file_leave_it_whole() {
        let dir = folder("threads");
        let files = MadeFiles::new(Some(dir.clone()));
        let data = |thread: u8| vec![thread; 200_000];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let files = &files;
                scope.spawn(move || {
                    for _ in 0..20 {
                        files.put("shaders", &KEY, &data(thread));
                        let found = files.get("shaders", &KEY).expect("a whole file at all times");
                        assert!(found == data(found[0]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.join("shaders")).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
