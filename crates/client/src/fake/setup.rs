//! A client of a cluster in memory, and what most tests do with it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use saker_types::Locator;
use saker_types::wire::At;

use crate::fake::{Fake, start};
use crate::{Caller, ClientOptions, File, Fs, OpenFlags};

pub(crate) const RW: OpenFlags = OpenFlags::READ_WRITE;
pub(crate) const APPEND: OpenFlags = OpenFlags { append: true, ..RW };
pub(crate) const TRUNC: OpenFlags = OpenFlags { truncate: true, ..RW };

pub(crate) struct Setup {
    pub(crate) fake: Arc<Fake>,
    pub(crate) fs: Fs,
    pub(crate) root: Caller,
}

pub(crate) fn setup() -> Setup {
    setup_with(ClientOptions::default())
}

pub(crate) fn setup_with(options: ClientOptions) -> Setup {
    let (fake, fs) = start(options);
    fake.log();
    Setup { fake, fs, root: Caller::root() }
}

pub(crate) fn at(name: &'static str) -> At {
    At::child(Locator::root(), name.as_bytes())
}

impl Setup {
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.fs.block_on(future)
    }

    pub(crate) fn create(&self, name: &'static str) -> File {
        self.run(self.fs.create(&self.root, &at(name), 0o644, RW)).unwrap().0
    }

    pub(crate) fn open(&self, name: &'static str, flags: OpenFlags) -> File {
        self.run(self.fs.open(&self.root, &at(name), flags)).unwrap().0
    }

    pub(crate) fn write(&self, file: &File, offset: u64, data: &[u8]) {
        assert_eq!(self.run(file.write(offset, data)).unwrap(), offset);
    }

    pub(crate) fn read(&self, file: &File, offset: u64, len: usize) -> Bytes {
        self.run(file.read(offset, len)).unwrap()
    }

    pub(crate) fn gauge(&self, name: &'static str) -> i64 {
        self.fs.metrics().gauge(name, "").get()
    }

    pub(crate) fn flush(&self, file: &File) {
        self.run(file.flush()).unwrap();
    }

    /// What both stores hold must be the same.
    pub(crate) fn content(&self, name: &'static str) -> Vec<u8> {
        let model = self.fake.model();
        let content = model.content(name, 0);
        assert!(content == model.content(name, 1), "replicas differ");
        content
    }
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}
