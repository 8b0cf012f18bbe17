//! A tree of files, and where its files are in a packed dataset.

use std::fs;
use std::path::{Path, PathBuf};

use saker_dataset::table::ROOT;
use saker_dataset::{FileData, Ino, Table};
use saker_runtime::rand::Rng;

/// Makes `files` files of up to `bytes_max` bytes, and some of several blocks. Half of each can be
/// compressed.
pub fn make(root: &Path, files: usize, bytes_max: u64) {
    let mut rng = Rng::seeded(7);
    for n in 0..files {
        let dir = root.join(format!("{:02}", n % 16));
        fs::create_dir_all(&dir).unwrap();
        let len = match n {
            0 => 0,
            1..=2 => (4 << 20) * n as u64 + 1234,
            _ => 1 + rng.below(bytes_max),
        };
        let mut data = vec![b'x'; len as usize];
        data.chunks_mut(128).for_each(|part| {
            let half = part.len() / 2;
            rng.fill(&mut part[half..]);
        });
        fs::write(dir.join(format!("{n:04}")), data).unwrap();
    }
}

/// A file of a dataset.
pub struct File {
    /// Its path below the root.
    pub path: PathBuf,
    /// Its number in the table.
    pub ino: Ino,
    /// Where it is.
    pub data: FileData,
}

/// All files of a table.
pub fn files(table: &Table) -> Vec<File> {
    let (mut files, mut rest) = (Vec::new(), vec![(PathBuf::new(), ROOT)]);
    while let Some((path, ino)) = rest.pop() {
        if let Some(data) = table.inode(ino).data() {
            files.push(File { path, ino, data });
            continue;
        }
        for (name, child) in table.children(ino) {
            rest.push((path.join(std::str::from_utf8(name).unwrap()), child));
        }
    }
    files
}
