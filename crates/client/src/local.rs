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
use futures_util::future::try_join_all;
use saker_runtime::fs::DirectFile;
use saker_runtime::thread;
use saker_runtime::time::{self, Time};
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::{ChunkPlace, LocalDir};

use self::open_dir::OpenDir;
use crate::net::Net;

mod open_dir;

/// For less, in bytes, it is not worth asking for a place.
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
struct Dirs(Mutex<HashMap<LocalDir, State>>);

enum State {
    Opening,
    Open(Arc<OpenDir>),
    /// With that, and when.
    Failed(io::ErrorKind, Time),
}

impl Local {
    /// The data at all of `places` in `dir`, if it can be had without keeping the thread waiting: `None`
    /// if it cannot now. `net` waits for the disk.
    ///
    /// # Errors
    /// Those of opening and reading the files; `InvalidData` when they hold something else; `TimedOut`
    /// after `until`.
    pub(crate) async fn read(
        &self,
        net: &Net,
        dir: &LocalDir,
        places: &[ChunkPlace],
        until: Time,
    ) -> io::Result<Option<Bytes>> {
        let Some(dir) = self.dir(dir)? else { return Ok(None) };
        if let [place] = places {
            return read(net, &dir, place, until).await;
        }
        let mut all = Vec::with_capacity(places.iter().map(|place| place.len as usize).sum());
        for data in try_join_all(places.iter().map(|place| read(net, &dir, place, until))).await? {
            let Some(data) = data else { return Ok(None) };
            all.extend_from_slice(&data);
        }
        Ok(Some(all.into()))
    }

    fn dir(&self, wanted: &LocalDir) -> io::Result<Option<Arc<OpenDir>>> {
        let now = time::now();
        let mut dirs = self.dirs.lock();
        match dirs.get(wanted) {
            Some(State::Opening) => return Ok(None),
            Some(State::Open(open)) => {
                open.touch(now);
                return Ok(Some(open.clone()));
            }
            Some(State::Failed(kind, at)) if now - *at < IDLE => return Err((*kind).into()),
            None if dirs.len() >= DIRS_MAX => return Err(io::ErrorKind::QuotaExceeded.into()),
            _ => {}
        }
        dirs.insert(wanted.clone(), State::Opening);
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
    fn lock(&self) -> MutexGuard<'_, HashMap<LocalDir, State>> {
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
                    let state = match OpenDir::open(&dir) {
                        Ok(open) => State::Open(Arc::new(open)),
                        Err(error) => {
                            tracing::debug!("{} cannot be read here: {error}", dir.path);
                            State::Failed(error.kind(), time::now())
                        }
                    };
                    self.lock().insert(dir, state);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.close();
        }
    }

    /// Closes what is idle, while others read.
    fn close(&self) {
        let now = time::now();
        let is_idle = |state: &State| match state {
            State::Opening => false,
            State::Open(dir) => now - dir.used() >= IDLE,
            State::Failed(_, at) => now - *at >= IDLE,
        };
        let idle: Vec<_> = self.lock().extract_if(|_, state| is_idle(state)).collect();
        // It may take a while to close them.
        drop(idle);
    }
}

async fn read(
    net: &Net,
    dir: &OpenDir,
    place: &ChunkPlace,
    until: Time,
) -> io::Result<Option<Bytes>> {
    let (bytes, skip, len) = (place.bytes as usize, place.skip as usize, place.len as usize);
    let sums = match place.sum {
        Some(_) => 0,
        None => bytes.div_ceil(BLOCK_BYTES),
    };
    let sound = bytes as u64 <= CHUNK_BYTES
        && place.sums.len() == sums
        && skip.checked_add(len).is_some_and(|end| end <= bytes);
    if !sound {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an impossible place"));
    }
    match data_at(net, dir, place, until).await {
        Ok(Some(data)) if is_right(&data, place) => Ok(Some(data.slice(skip..skip + len))),
        Ok(Some(_)) => Err(wrong()),
        Ok(None) => Ok(None),
        // The data has moved since, and the file is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a place has, from the page cache or from the disk.
async fn data_at(
    net: &Net,
    dir: &OpenDir,
    place: &ChunkPlace,
    until: Time,
) -> io::Result<Option<Bytes>> {
    let (pos, bytes) = (place.pos, place.bytes as usize);
    let Some(file) = dir.files.file(&place.file)? else { return Ok(None) };
    match place.cold {
        true => fetch(net, file.direct().ok(), pos, bytes, until).await,
        false => Ok(file.read_cached(pos, bytes)?.map(Bytes::from)),
    }
}

/// Reads from the disk, if the file's system can do without its page cache.
async fn fetch(
    net: &Net,
    file: Option<DirectFile>,
    pos: u64,
    bytes: usize,
    until: Time,
) -> io::Result<Option<Bytes>> {
    let Some(file) = file else { return Ok(None) };
    match net.read_file(file, pos, bytes, until).await {
        Ok(data) => Ok(Some(Bytes::from_owner(data))),
        Err(error) => match error.kind() {
            // Another thread has come back to it; too many; larger blocks than ours.
            io::ErrorKind::Unsupported
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::InvalidInput => Ok(None),
            _ => Err(error),
        },
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not what the store has")
}

fn is_right(data: &[u8], place: &ChunkPlace) -> bool {
    match place.sum {
        Some(sum) => crc32c::crc32c(data) == sum,
        None => data.chunks(BLOCK_BYTES).map(crc32c::crc32c).eq(place.sums.iter().copied()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir as _, RealDir};

    use super::*;

    /// Waits until it is known whether a directory can be read.
    pub(crate) fn settle(local: &Local, dir: &LocalDir) -> io::Result<()> {
        while local.dir(dir)?.is_none() {
            time::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn read(local: &Local, dir: &LocalDir, places: &[ChunkPlace]) -> io::Result<Option<Bytes>> {
        let net = Net::new().unwrap();
        let thread = net.sibling().unwrap();
        thread.block_on(async { local.read(&net, dir, places, Time::MAX).await })
    }

    #[test]
    fn only_what_has_the_sums_is_returned() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7 / 3) as u8).collect();
        dir.create("segment").unwrap().write_at(100, &data).unwrap();
        let (local, at) = (Local::default(), dir.whereabouts().unwrap());
        assert!(local.dir(&at).unwrap().is_none(), "it is not open yet");
        settle(&local, &at).unwrap();
        let place = ChunkPlace {
            file: "segment".into(),
            pos: 100,
            bytes: 10_000,
            sums: data.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect(),
            skip: 50,
            len: 9_000,
            ..ChunkPlace::default()
        };
        let read = |places: &[ChunkPlace]| read(&local, &at, places);
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
        let gone = ChunkPlace { file: "gone".into(), ..place.clone() };
        assert!(read(&[gone]).unwrap().is_none());
        let sum = Some(crc32c::crc32c(&data));
        for cold in [false, true] {
            let whole = ChunkPlace { sums: vec![], sum, cold, ..place.clone() };
            assert_eq!(read(std::slice::from_ref(&whole)).unwrap().unwrap(), data[50..9_050]);
            assert_eq!(read(&[place.clone(), whole.clone()]).unwrap().unwrap(), twice);
            let fails = |other| read(&[whole.clone(), other]).unwrap_err().kind();
            assert_eq!(fails(ChunkPlace { sum: Some(1), ..whole.clone() }), invalid);
            assert_eq!(fails(ChunkPlace { sums: vec![1], ..whole.clone() }), invalid);
            assert_eq!(
                fails(ChunkPlace { pos: 101, ..whole.clone() }),
                io::ErrorKind::UnexpectedEof
            );
            let gone = ChunkPlace { file: "gone".into(), ..whole.clone() };
            assert!(read(&[whole, gone]).unwrap().is_none());
        }
    }

    #[test]
    fn a_disk_is_waited_for_no_longer_than_a_store() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        dir.create("segment").unwrap().write_at(0, &[7; 1 << 20]).unwrap();
        let (local, at) = (Local::default(), dir.whereabouts().unwrap());
        settle(&local, &at).unwrap();
        let (bytes, sum) = (1 << 20, Some(crc32c::crc32c(&[7; 1 << 20])));
        let file = "segment".into();
        let place =
            ChunkPlace { file, bytes, len: bytes, sum, cold: true, ..ChunkPlace::default() };
        let net = Net::new().unwrap();
        let read = net.sibling().unwrap().block_on(async {
            // Too late before it begins: no disk is as fast.
            local.read(&net, &at, &[place], time::now()).await
        });
        // Where nothing goes past the page cache there is nothing to wait for.
        let late = io::ErrorKind::TimedOut;
        assert!(matches!(&read, Ok(None)) || read.unwrap_err().kind() == late);
    }

    #[test]
    fn a_directory_that_is_not_here_is_not_tried_all_the_time() {
        let path = tempfile::tempdir().unwrap();
        let at = RealDir::open(path.path()).unwrap().whereabouts().unwrap();
        let local = Local::default();
        let other = LocalDir { ino: at.ino + 1, ..at };
        assert_eq!(settle(&local, &other).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(local.dir(&other).is_err());
    }
}
