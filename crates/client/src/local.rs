//! Data that a store of this machine has told the place of, read without the store: one copy
//! instead of four. What is read must have the checksums that the store has told, so nothing else
//! depends on whether the file is the right one.
//!
//! Whoever reads here serves others, too, and must not wait: a thread opens the stores' directories,
//! and closes those that are not used, so that their disks can be unmounted. Until a directory is
//! open, data comes from the store.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::fs::ForeignDir;
use saker_runtime::thread;
use saker_runtime::time::{self, Time};
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::{ChunkPlace, LocalDir};

/// For less, in bytes, it is not worth opening a file.
pub(crate) const BYTES_MIN: usize = 16 << 10;
/// Directories known at a time; data of others comes from their stores.
const DIRS_MAX: usize = 256;
/// A directory that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(5);

/// The stores' directories.
#[derive(Default)]
pub(crate) struct Local {
    dirs: Arc<Dirs>,
    /// To the thread that opens them; there is none before it is needed.
    wanted: Mutex<Option<Sender<LocalDir>>>,
}

#[derive(Default)]
struct Dirs(Mutex<HashMap<LocalDir, Dir>>);

struct Dir {
    state: State,
    used: Time,
}

enum State {
    Opening,
    Open(Arc<ForeignDir>),
    Failed(io::ErrorKind),
}

impl Local {
    /// The data at all of `places` in `dir`, if it can be had without waiting for anything: `None`
    /// if it cannot now.
    ///
    /// # Errors
    /// Those of opening and reading the files; `InvalidData` when they hold something else.
    pub(crate) fn read(&self, dir: &LocalDir, places: &[ChunkPlace]) -> io::Result<Option<Bytes>> {
        let Some(dir) = self.dir(dir)? else { return Ok(None) };
        if let [place] = places {
            return read(&dir, place);
        }
        let mut all = Vec::with_capacity(places.iter().map(|place| place.len as usize).sum());
        for place in places {
            let Some(data) = read(&dir, place)? else { return Ok(None) };
            all.extend_from_slice(&data);
        }
        Ok(Some(all.into()))
    }

    fn dir(&self, wanted: &LocalDir) -> io::Result<Option<Arc<ForeignDir>>> {
        let now = time::now();
        let mut dirs = self.dirs.lock();
        if let Some(dir) = dirs.get_mut(wanted) {
            match &dir.state {
                State::Opening => return Ok(None),
                State::Open(open) => {
                    dir.used = now;
                    return Ok(Some(open.clone()));
                }
                State::Failed(kind) if now - dir.used < IDLE => return Err((*kind).into()),
                State::Failed(_) => {}
            }
        } else if dirs.len() >= DIRS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        dirs.insert(wanted.clone(), Dir { state: State::Opening, used: now });
        drop(dirs);
        self.open(wanted)?;
        Ok(None)
    }

    /// Lets the thread open it.
    fn open(&self, wanted: &LocalDir) -> io::Result<()> {
        let mut sender = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *sender {
            Some(sender) => sender,
            none => {
                let (sender, wanted) = channel();
                let dirs = self.dirs.clone();
                thread::spawn("saker-local", move || dirs.serve(&wanted))?;
                none.insert(sender)
            }
        };
        // It ends after the last sender only.
        let _ = sender.send(wanted.clone());
        Ok(())
    }
}

impl Dirs {
    fn lock(&self) -> MutexGuard<'_, HashMap<LocalDir, Dir>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what is wanted and closes what is idle.
    fn serve(&self, wanted: &Receiver<LocalDir>) {
        loop {
            let none = self.lock().is_empty();
            let next = match none {
                true => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => wanted.recv_timeout(IDLE),
            };
            match next {
                Ok(dir) => {
                    let state = match ForeignDir::open(&dir) {
                        Ok(open) => State::Open(Arc::new(open)),
                        Err(error) => {
                            tracing::debug!("{} cannot be read here: {error}", dir.path);
                            State::Failed(error.kind())
                        }
                    };
                    self.lock().insert(dir, Dir { state, used: time::now() });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = time::now();
            let opening = |dir: &Dir| matches!(dir.state, State::Opening);
            self.lock().retain(|_, dir| opening(dir) || now - dir.used < IDLE);
        }
    }
}

fn read(dir: &ForeignDir, place: &ChunkPlace) -> io::Result<Option<Bytes>> {
    let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let (bytes, skip, len) = (place.bytes as usize, place.skip as usize, place.len as usize);
    let sound = bytes as u64 <= CHUNK_BYTES
        && place.sums.len() == bytes.div_ceil(BLOCK_BYTES)
        && skip.checked_add(len).is_some_and(|end| end <= bytes);
    if !sound {
        return invalid("an impossible place");
    }
    let data = match dir.read_cached(&place.file, place.pos, bytes) {
        Ok(Some(data)) => data,
        Ok(None) => return Ok(None),
        // The data has moved since, and the file is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !data.chunks(BLOCK_BYTES).map(crc32c::crc32c).eq(place.sums.iter().copied()) {
        return invalid("not what the store has");
    }
    Ok(Some(Bytes::from(data).slice(skip..skip + len)))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir as _, RealDir};

    use super::*;

    /// Waits until it is known whether a directory can be read.
    pub(crate) fn settle(local: &Local, dir: &LocalDir) -> io::Result<()> {
        while local.read(dir, &[])?.is_none() {
            time::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    #[test]
    fn only_what_has_the_sums_is_returned() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7 / 3) as u8).collect();
        dir.create("segment").unwrap().write_at(100, &data).unwrap();
        let (local, at) = (Local::default(), dir.whereabouts().unwrap());
        assert!(local.read(&at, &[]).unwrap().is_none(), "it is not open yet");
        settle(&local, &at).unwrap();
        let place = ChunkPlace {
            file: "segment".into(),
            pos: 100,
            bytes: 10_000,
            sums: data.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect(),
            skip: 50,
            len: 9_000,
        };
        let read = |places: &[ChunkPlace]| local.read(&at, places);
        assert_eq!(read(std::slice::from_ref(&place)).unwrap().unwrap(), data[50..9_050]);
        let twice = [&data[50..9_050], &data[50..9_050]].concat();
        assert_eq!(read(&[place.clone(), place.clone()]).unwrap().unwrap(), twice);
        let fails = |change: fn(&mut ChunkPlace)| {
            let mut other = place.clone();
            change(&mut other);
            read(&[place.clone(), other]).unwrap_err().kind()
        };
        let invalid = io::ErrorKind::InvalidData;
        assert_eq!(fails(|place| place.sums[2] ^= 1), invalid);
        assert_eq!(fails(|place| place.pos += 1), io::ErrorKind::UnexpectedEof);
        assert_eq!(fails(|place| place.pos -= 1), invalid);
        assert_eq!(fails(|place| place.len = 9_951), invalid);
        assert_eq!(fails(|place| place.skip = u32::MAX), invalid);
        assert_eq!(fails(|place| place.bytes = u32::MAX), invalid);
        assert_eq!(fails(|place| place.sums.truncate(2)), invalid);
        assert_eq!(fails(|place| place.file.insert(0, '/')), io::ErrorKind::InvalidInput);
        let gone = ChunkPlace { file: "gone".into(), ..place };
        assert!(read(&[gone]).unwrap().is_none());
    }

    #[test]
    fn a_directory_that_is_not_here_is_not_tried_all_the_time() {
        let path = tempfile::tempdir().unwrap();
        let at = RealDir::open(path.path()).unwrap().whereabouts().unwrap();
        let local = Local::default();
        let other = LocalDir { ino: at.ino + 1, ..at };
        assert_eq!(settle(&local, &other).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(local.read(&other, &[]).is_err());
    }
}
