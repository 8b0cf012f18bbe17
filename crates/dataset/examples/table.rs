//! Makes the table of a dataset with many files, opens it, and looks 1,000 random paths up.
//!
//! ```text
//! cargo run -p saker-dataset --example table -- 10000000
//! ```

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use rustix::fs::Advice;
use saker_dataset::table::{Builder, ROOT, Resolved};
use saker_dataset::{Error, Meta, Table};

/// Files of a directory, as in ImageNet.
const OF_A_DIR: u64 = 1300;
const LOOKUPS: u64 = 1000;

fn path(n: u64) -> String {
    let class = n / OF_A_DIR;
    format!("train/n{class:08}/n{class:08}_{:05}.JPEG", n % OF_A_DIR)
}

fn make(files: u64, to: &Path) {
    let mut builder = Builder::new();
    let meta = Meta { mode: 0o100_644, uid: 1000, gid: 1000, ..Meta::default() };
    for n in 0..files {
        builder.add(path(n).as_bytes(), &meta).unwrap();
    }
    let mut out = BufWriter::new(File::create(to).unwrap());
    let table = builder.close(true);
    table.write(|bytes| out.write_all(bytes).map_err(|e| Error::io(to, e))).unwrap();
    out.into_inner().unwrap().sync_all().unwrap();
    println!("{files} files: a table of {} MB", table.bytes() / 1_000_000);
}

/// Opens the table and looks paths up.
fn measure(what: &str, files: u64, at: &Path) {
    let begin = Instant::now();
    let table = Table::open(at).unwrap();
    let opened = begin.elapsed();
    let begin = Instant::now();
    let mut state = 1u64;
    for _ in 0..LOOKUPS {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let path = path((state >> 24) % files);
        let found = table.resolve(ROOT, path.as_bytes(), false);
        assert!(matches!(found, Resolved::Found(_)), "{path}: {found:?}");
    }
    let looked = begin.elapsed();
    println!("{what}: opened in {opened:.1?}, {LOOKUPS} random lookups in {looked:.1?}");
}

fn main() {
    let files = std::env::args().nth(1).map_or(10_000_000, |n| n.parse().unwrap());
    let dir = tempfile::tempdir_in(".").unwrap();
    let at = dir.path().join("table.saker");
    make(files, &at);
    let file = File::open(&at).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    measure("from the disk", files, &at);
    measure("from memory", files, &at);
}
