//! Data that a store of this machine has told the place of, read without the store: one copy
//! instead of four. What was not meant, as a file of the same name in another container or on
//! another machine, does not have the blocks' checksums.

use std::io;
use std::path::Path;

use bytes::Bytes;
use saker_runtime::fs;
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::ChunkPlace;

/// For less, in bytes, it is not worth opening a file.
pub(crate) const BYTES_MIN: usize = 16 << 10;

/// The data at all of `places`, if no disk has to be waited for: `None` if one has to.
///
/// # Errors
/// Those of opening and reading the files; `InvalidData` when they hold something else.
pub(crate) fn read(places: &[ChunkPlace]) -> io::Result<Option<Bytes>> {
    if let [place] = places {
        return read_one(place);
    }
    let mut all = Vec::with_capacity(places.iter().map(|place| place.len as usize).sum());
    for place in places {
        let Some(data) = read_one(place)? else { return Ok(None) };
        all.extend_from_slice(&data);
    }
    Ok(Some(all.into()))
}

fn read_one(place: &ChunkPlace) -> io::Result<Option<Bytes>> {
    let (bytes, skip, len) = (place.bytes as usize, place.skip as usize, place.len as usize);
    let sound = bytes as u64 <= CHUNK_BYTES
        && place.sums.len() == bytes.div_ceil(BLOCK_BYTES)
        && skip.checked_add(len).is_some_and(|end| end <= bytes);
    if !sound {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an impossible place"));
    }
    let Some(data) = fs::read_cached(Path::new(&place.path), place.pos, bytes)? else {
        return Ok(None);
    };
    let sums = data.chunks(BLOCK_BYTES).map(crc32c::crc32c);
    if !sums.eq(place.sums.iter().copied()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not what the store has"));
    }
    Ok(Some(Bytes::from(data).slice(skip..skip + len)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir, RealDir};

    use super::*;

    #[test]
    fn only_what_has_the_sums_is_returned() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7 / 3) as u8).collect();
        dir.create("segment").unwrap().write_at(100, &data).unwrap();
        let place = ChunkPlace {
            path: dir.path_of("segment").unwrap().to_str().unwrap().to_owned(),
            pos: 100,
            bytes: 10_000,
            sums: data.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect(),
            skip: 50,
            len: 9_000,
        };
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
        assert_eq!(fails(|place| place.path.push('s')), io::ErrorKind::NotFound);
    }
}
