//! Segments do what every backend must.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use saker_runtime::fs::{Dir, read_all};
use saker_types::InodeId;

use super::disk::{Machine, options, space};
use crate::backend::ChunkBackend;
use crate::backend::conformance::{self, BackendUnderTest};
use crate::backend::segments::Options;

struct Disk {
    machine: Machine,
    is_full: Arc<AtomicBool>,
}

impl BackendUnderTest for Disk {
    fn open(&self) -> Arc<dyn ChunkBackend> {
        let is_full = self.is_full.clone();
        let free = move || if is_full.load(Ordering::Relaxed) { 0 } else { 1 << 39 };
        let options = Options { space: Arc::new(move || Ok(space(1 << 40, free()))), ..options() };
        self.machine.open_with(options).unwrap()
    }

    fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn damage(&self, _: InodeId, data: &[u8]) {
        let segments = self.machine.dir.sub_dir("segments").unwrap();
        let mut found = 0;
        for name in segments.list().unwrap() {
            let file = segments.open(&name).unwrap();
            let content = read_all(&*file).unwrap();
            let places = content.windows(data.len()).enumerate();
            for (at, _) in places.filter(|(_, bytes)| *bytes == data) {
                file.write_at(at as u64 + 5_000, &[data[5_000] ^ 4]).unwrap();
                found += 1;
            }
        }
        assert_eq!(found, 1);
    }
}

#[test]
fn segments_conform() {
    conformance::check(|| Disk { machine: Machine::new(), is_full: Arc::default() });
}
