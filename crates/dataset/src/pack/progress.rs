//! What has been packed of a partition, in a file beside it, so that a run that was killed goes on.

use std::fs::File;
use std::io::Write;
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
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) files: Vec<Packed>,
    /// Where the last of them ends.
    pub(super) end: u64,
    /// Digest of the partition, if it is whole.
    pub(super) whole: Option<Digest>,
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
    /// Begins anew, or after `noted`.
    pub(super) fn open(path: &Path, fingerprint: Digest, noted: &Noted) -> Result<Notes> {
        let file = File::create(path).map_err(|e| Error::io(path, e))?;
        let mut notes = Notes { path: path.to_owned(), file };
        notes.put(Head { magic: MAGIC, fingerprint: fingerprint.0 }.as_bytes())?;
        if noted.end > 0 {
            notes.add(&noted.files, noted.end, None)?;
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

/// What was noted of this very work; `None` if there are no such notes. A note that is torn is not
/// there.
pub(super) fn read(path: &Path, fingerprint: Digest) -> Option<Noted> {
    let raw = std::fs::read(path).ok()?;
    let (head, mut rest) = Head::read_from_prefix(&raw).ok()?;
    if head.magic != MAGIC || head.fingerprint != fingerprint.0 {
        return None;
    }
    let mut noted = Noted::default();
    while let Some((next, after)) = note(rest) {
        noted.files.extend(next.files);
        (noted.end, noted.whole) = (next.end, next.whole);
        rest = after;
    }
    Some(noted)
}

fn note(raw: &[u8]) -> Option<(Noted, &[u8])> {
    let (head, _) = NoteHead::read_from_prefix(raw).ok()?;
    let (note, after) = raw.split_at_checked(usize::try_from(head.bytes).ok()?)?;
    let mut rest = note.get(size_of::<NoteHead>()..)?;
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
    let whole = (head.is_whole != 0).then_some(Digest(head.digest));
    Some((Noted { files, end: head.end, whole }, after))
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
        let seen = |len: usize| {
            std::fs::write(&path, &whole[..len]).unwrap();
            read(&path, fingerprint)
                .map(|noted| (noted.files.len(), noted.end, noted.whole.is_some()))
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
        assert_eq!(read(&path, fingerprint).unwrap().files, [file.clone(), file.clone(), file]);
        assert_eq!(read(&path, Digest([8; 32])), None, "of other work");
    }
}
