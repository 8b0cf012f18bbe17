//! What has been packed of a partition, in a file beside it, so that a run that was killed goes on.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::FileData;

const MAGIC: [u8; 8] = *b"SAKERPRG";

/// A file that is in the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// Its number among the partition's entries.
    pub(super) n: u32,
    pub(super) data: FileData,
    /// Ends and checksums of its blocks.
    pub(super) blocks: Vec<(u64, u32)>,
    pub(super) digest: Digest,
}

/// What was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// The first of the partition's entries that is not packed: files are packed in order.
    pub(super) next: u32,
    /// Where the last of the files ends.
    pub(super) end: u64,
    /// Digest of the partition, if it is whole.
    pub(super) whole: Option<Digest>,
    /// Bytes of the notes; what comes after is torn.
    bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    fingerprint: [u8; 32],
}

/// What a note begins with; packed files follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct NoteHead {
    /// CRC32C of all that follows.
    crc: u32,
    /// 1: the partition is whole.
    is_whole: u32,
    /// Of the note.
    bytes: u64,
    end: u64,
    files: u64,
    digest: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PackedHead {
    digest: [u8; 32],
    offset: u64,
    stored: u64,
    size: u64,
    n: u32,
    partition: u32,
    codec: u32,
    blocks: u32,
}

/// The notes on a partition.
pub(super) fn path_of(partition: &Path) -> PathBuf {
    partition.with_extension("progress")
}

/// Notes, being written.
pub(super) struct Notes {
    path: PathBuf,
    file: File,
}

impl Notes {
    /// Begins anew, or after `noted`, which has been read.
    pub(super) fn open(path: &Path, fingerprint: Digest, noted: &Noted) -> Result<Notes> {
        let io = |e| Error::io(path, e);
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io)?;
        file.set_len(noted.bytes).map_err(io)?;
        file.seek(SeekFrom::Start(noted.bytes)).map_err(io)?;
        let mut notes = Notes { path: path.to_owned(), file };
        if noted.bytes == 0 {
            notes.put(Head { magic: MAGIC, fingerprint: fingerprint.0 }.as_bytes())?;
        }
        Ok(notes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))
    }

    /// Notes files, whose data is durable up to `end`; and the digest of the partition, if it is whole.
    pub(super) fn add(&mut self, files: &[Packed], end: u64, whole: Option<Digest>) -> Result<()> {
        let head = NoteHead {
            crc: 0,
            is_whole: whole.is_some().into(),
            bytes: 0,
            end,
            files: files.len() as u64,
            digest: whole.map_or([0; 32], |digest| digest.0),
        };
        let mut raw = head.as_bytes().to_vec();
        for file in files {
            let head = PackedHead {
                digest: file.digest.0,
                offset: file.data.offset,
                stored: file.data.stored,
                size: file.data.size,
                n: file.n,
                partition: file.data.partition,
                codec: file.data.codec.to_u8().into(),
                blocks: file.blocks.len() as u32,
            };
            raw.extend_from_slice(head.as_bytes());
            for (end, crc) in &file.blocks {
                raw.extend_from_slice(&end.to_le_bytes());
                raw.extend_from_slice(&crc.to_le_bytes());
            }
        }
        let bytes = raw.len() as u64;
        raw[8..16].copy_from_slice(&bytes.to_le_bytes());
        let crc = crc32c::crc32c(&raw[4..]);
        raw[..4].copy_from_slice(&crc.to_le_bytes());
        self.put(&raw)?;
        self.file.sync_data().map_err(|e| Error::io(&self.path, e))
    }
}

/// What was noted of this very work; `None` if there are no such notes. Calls `each` with the files,
/// in order. A note that is torn is not there.
///
/// # Errors
/// Those of `each`.
pub(super) fn read(
    path: &Path,
    fingerprint: Digest,
    mut each: impl FnMut(Packed) -> Result<()>,
) -> Result<Option<Noted>> {
    let Ok(file) = File::open(path) else { return Ok(None) };
    let left = file.metadata().map_or(0, |meta| meta.len());
    let mut from = BufReader::new(file);
    let Some(raw) = take(&mut from, size_of::<Head>() as u64) else { return Ok(None) };
    let head = Head::read_from_bytes(&raw).expect("as long as that");
    if head.magic != MAGIC || head.fingerprint != fingerprint.0 {
        return Ok(None);
    }
    let mut noted = Noted { bytes: raw.len() as u64, ..Noted::default() };
    while let Some(raw) = next_note(&mut from, left - noted.bytes) {
        let Some((files, head)) = note(&raw) else { break };
        for file in files {
            noted.next = file.n + 1;
            each(file)?;
        }
        noted.end = head.end;
        noted.whole = (head.is_whole != 0).then_some(Digest(head.digest));
        noted.bytes += raw.len() as u64;
    }
    Ok(Some(noted))
}

/// So many bytes, if they are there.
fn take(from: &mut impl Read, len: u64) -> Option<Vec<u8>> {
    let mut raw = Vec::new();
    from.take(len).read_to_end(&mut raw).ok()?;
    (raw.len() as u64 == len).then_some(raw)
}

/// The bytes of the next note, of `left` that there are.
fn next_note(from: &mut impl Read, left: u64) -> Option<Vec<u8>> {
    let mut raw = take(from, size_of::<NoteHead>() as u64)?;
    let (head, _) = NoteHead::read_from_prefix(&raw).ok()?;
    let rest = head.bytes.checked_sub(raw.len() as u64).filter(|_| head.bytes <= left)?;
    raw.extend(take(from, rest)?);
    Some(raw)
}

/// The files of a note.
fn note(note: &[u8]) -> Option<(Vec<Packed>, NoteHead)> {
    let (head, mut rest) = NoteHead::read_from_prefix(note).ok()?;
    if crc32c::crc32c(&note[4..]) != head.crc {
        return None;
    }
    let mut files = Vec::new();
    for _ in 0..head.files {
        let (head, mut after) = PackedHead::read_from_prefix(rest).ok()?;
        let mut blocks = Vec::new();
        for _ in 0..head.blocks {
            let (block, more) = after.split_first_chunk::<12>()?;
            let (end, crc) = block.split_first_chunk::<8>()?;
            blocks.push((u64::from_le_bytes(*end), u32::from_le_bytes(crc.try_into().ok()?)));
            after = more;
        }
        let data = FileData {
            partition: head.partition,
            offset: head.offset,
            stored: head.stored,
            size: head.size,
            codec: crate::codec::Codec::from_u8(head.codec as u8)?,
            check: 0,
        };
        files.push(Packed { n: head.n, data, blocks, digest: Digest(head.digest) });
        rest = after;
    }
    Some((files, head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;

    #[test]
    fn notes_end_where_they_are_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        let fingerprint = Digest([7; 32]);
        let data = FileData {
            partition: 3,
            offset: 4096,
            stored: 99,
            size: 100,
            codec: Codec::Lz4,
            check: 0,
        };
        let file = Packed { n: 5, data, blocks: vec![(50, 1), (99, 2)], digest: Digest([1; 32]) };
        let mut notes = Notes::open(&path, fingerprint, &Noted::default()).unwrap();
        let empty = std::fs::read(&path).unwrap().len();
        notes.add(&[file.clone(), file.clone()], 5000, None).unwrap();
        let first = std::fs::read(&path).unwrap().len();
        notes.add(std::slice::from_ref(&file), 6000, Some(fingerprint)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let all = |fingerprint| {
            let mut files = Vec::new();
            let noted = read(&path, fingerprint, |file| {
                files.push(file);
                Ok(())
            });
            noted.unwrap().map(|noted| (files, noted))
        };
        let seen = |len: usize| {
            std::fs::write(&path, &whole[..len]).unwrap();
            all(fingerprint).map(|(files, noted)| (files.len(), noted.end, noted.whole.is_some()))
        };
        for len in 0..=whole.len() {
            let wanted = match len {
                len if len < empty => None,
                len if len < first => Some((0, 0, false)),
                len if len < whole.len() => Some((2, 5000, false)),
                _ => Some((3, 6000, true)),
            };
            assert_eq!(seen(len), wanted, "{len}");
        }
        let (files, noted) = all(fingerprint).unwrap();
        assert_eq!((files, noted.next), (vec![file.clone(), file.clone(), file.clone()], 6));
        assert!(all(Digest([8; 32])).is_none(), "of other work");
        // They go on after the last that is not torn.
        assert_eq!(seen(whole.len() - 1), Some((2, 5000, false)));
        let (_, noted) = all(fingerprint).unwrap();
        let mut notes = Notes::open(&path, fingerprint, &noted).unwrap();
        notes.add(std::slice::from_ref(&file), 6000, Some(fingerprint)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}
