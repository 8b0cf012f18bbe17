//! Data of stores of this machine, read from their files without them: a store tells where it is, and
//! what is read must have the checksums that it has told, so nothing else depends on whether the
//! file is the right one (docs/decisions/0021, 0022, 0024, 0050).
//!
//! Off unless [`ClientOptions::local_reads`](crate::ClientOptions) is set: then there is a [`StoreFiles`].
//! Whoever reads here serves others, too, and must not wait: [`dirs`] opens the stores' directories, and
//! [`disk`] reads what is in no page cache. Until a directory is open, data comes from the store.

use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, select, try_join_all};
use saker_runtime::fs::machine;
use saker_runtime::time::{self, Time};
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::{ChunkPlace, ChunkReadReq, LocalDir};
use saker_types::{Errno, StoreNo};

use self::dirs::{Dirs, OpenDir};
use self::disk::Disk;
use crate::data::failing_stores::FailingStores;
use crate::net::Net;

mod dirs;
mod disk;
mod foreign;
mod ring;

/// For less, in bytes, it is not worth asking for a place.
const BYTES_MIN: u64 = 16 << 10;

/// A way to data beside the stores.
pub(crate) trait LocalReads: Send + Sync {
    /// Says in a request whether its store may tell places instead of sending data.
    fn ask(&self, store: StoreNo, request: &mut ChunkReadReq);

    /// The data at all of `places` in `dir`, which this store has told; `None` if the store must be asked
    /// for it. Waits until `until` at most.
    ///
    /// # Errors
    /// `TimedOut`.
    fn read<'a>(
        &'a self,
        net: &'a Net,
        store: StoreNo,
        dir: &'a LocalDir,
        places: &'a [ChunkPlace],
        until: Time,
    ) -> BoxFuture<'a, io::Result<Option<Bytes>>>;
}

/// The files of stores of this machine.
pub(crate) struct StoreFiles {
    dirs: Dirs,
    /// `None` where the kernel has no io_uring for us.
    disk: Option<Disk>,
    /// Stores whose files could not be read here recently.
    elsewhere: FailingStores,
}

impl StoreFiles {
    /// With no directory open.
    pub(crate) fn new() -> StoreFiles {
        let disk = Disk::start().inspect_err(|error| {
            tracing::info!("what is in no page cache is read by the stores: {error}");
        });
        StoreFiles { dirs: Dirs::default(), disk: disk.ok(), elsewhere: FailingStores::default() }
    }

    async fn read_all(
        &self,
        net: &Net,
        dir: &LocalDir,
        places: &[ChunkPlace],
        until: Time,
    ) -> io::Result<Option<Bytes>> {
        let Some(dir) = self.dirs.get(dir)? else { return Ok(None) };
        if let [place] = places {
            return self.read_one(net, &dir, place, until).await;
        }
        let mut all = Vec::with_capacity(places.iter().map(|place| place.len as usize).sum());
        let read = places.iter().map(|place| self.read_one(net, &dir, place, until));
        for data in try_join_all(read).await? {
            let Some(data) = data else { return Ok(None) };
            all.extend_from_slice(&data);
        }
        Ok(Some(all.into()))
    }

    async fn read_one(
        &self,
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
        match self.data_at(net, dir, place, until).await {
            Ok(Some(data)) if is_right(&data, place) => Ok(Some(data.slice(skip..skip + len))),
            Ok(Some(_)) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "not what the store has"))
            }
            Ok(None) => Ok(None),
            // The data has moved since, and the file is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a place has, from the page cache or from the disk.
    async fn data_at(
        &self,
        net: &Net,
        dir: &OpenDir,
        place: &ChunkPlace,
        until: Time,
    ) -> io::Result<Option<Bytes>> {
        let (pos, bytes) = (place.pos, place.bytes as usize);
        let Some(file) = dir.files.file(&place.file)? else { return Ok(None) };
        if !place.cold {
            return Ok(file.read_cached(pos, bytes)?.map(Bytes::from));
        }
        // Where a file system cannot do without its page cache, the store reads.
        let (Some(disk), Ok(file)) = (&self.disk, file.direct()) else { return Ok(None) };
        if time::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (read, late) = (pin!(disk.read(file, pos, bytes)), pin!(net.sleep_until(until)));
        let result = match select(read, late).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match result {
            Ok(data) => Ok(Some(Bytes::from_owner(data))),
            // Too many; larger blocks than ours.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl LocalReads for StoreFiles {
    fn ask(&self, store: StoreNo, request: &mut ChunkReadReq) {
        if request.len >= BYTES_MIN && !self.elsewhere.has(store, time::now()) {
            request.machine = machine();
            request.fetches = self.disk.is_some();
        }
    }

    fn read<'a>(
        &'a self,
        net: &'a Net,
        store: StoreNo,
        dir: &'a LocalDir,
        places: &'a [ChunkPlace],
        until: Time,
    ) -> BoxFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            let error = match self.read_all(net, dir, places, until).await {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => error,
                read => return read,
            };
            tracing::debug!(store, "reading in its files: {error}");
            // What the disk cannot read is for the store to say.
            if error.raw_os_error() != Some(i32::from(Errno::EIO.0)) {
                self.elsewhere.add(store, time::now());
            }
            Ok(None)
        })
    }
}

fn is_right(data: &[u8], place: &ChunkPlace) -> bool {
    match place.sum {
        Some(sum) => crc32c::crc32c(data) == sum,
        None => data.chunks(BLOCK_BYTES).map(crc32c::crc32c).eq(place.sums.iter().copied()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use saker_runtime::fs::{Dir as _, RealDir};

    use super::*;

    /// Waits until it is known whether a directory can be read.
    pub(super) fn settle(dirs: &Dirs, dir: &LocalDir) -> io::Result<()> {
        while dirs.get(dir)?.is_none() {
            time::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn read(
        local: &StoreFiles,
        dir: &LocalDir,
        places: &[ChunkPlace],
    ) -> io::Result<Option<Bytes>> {
        let net = Net::new().unwrap();
        let read = || net.block_on(local.read_all(&net, dir, places, Time::MAX));
        // The kernel may say of any read that it would wait, but not each time.
        (0..100).map(|_| read()).find(|read| !matches!(read, Ok(None))).unwrap_or(Ok(None))
    }

    #[test]
    fn only_what_has_the_sums_is_returned() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7 / 3) as u8).collect();
        dir.create("segment").unwrap().write_at(100, &data).unwrap();
        let (local, at) = (StoreFiles::new(), dir.whereabouts().unwrap());
        assert!(local.dirs.get(&at).unwrap().is_none(), "it is not open yet");
        settle(&local.dirs, &at).unwrap();
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
        let (local, at) = (StoreFiles::new(), dir.whereabouts().unwrap());
        settle(&local.dirs, &at).unwrap();
        let (bytes, sum) = (1 << 20, Some(crc32c::crc32c(&[7; 1 << 20])));
        let file = "segment".into();
        let place =
            ChunkPlace { file, bytes, len: bytes, sum, cold: true, ..ChunkPlace::default() };
        let net = Net::new().unwrap();
        // Too late before it begins.
        let read = net.block_on(local.read_all(&net, &at, &[place], time::now()));
        // Where nothing goes past the page cache there is nothing to wait for.
        let late = io::ErrorKind::TimedOut;
        assert!(matches!(&read, Ok(None)) || read.unwrap_err().kind() == late);
    }
}
