//! Writing one partition.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use super::progress::{self, Notes, Packed};
use super::readers::{self, Block};
use super::source::Source;
use super::{Options, Plan, Progress};

use crate::codec::Codec;
use crate::dataset::sync_dir;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{
    ALIGNED_FROM_BYTES, FOOTER_BYTES, Footer, HEADER_BYTES, PAGE_BYTES, PARTITION_MAGIC, crc_of,
};
use crate::inode::FileData;
use crate::partition::{Partition, header_of};
use crate::table::{Builder, Finished, Ino};

const BUFFER_BYTES: usize = 1 << 20;
/// Files after which progress is noted, however small they are.
const NOTE_EVERY_FILES: usize = 1 << 16;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A partition as far as it is written.
struct Part<'a> {
    path: PathBuf,
    out: BufWriter<File>,
    number: u32,
    pos: u64,
    options: &'a Options,
    progress: &'a Progress,
    notes: Notes,
    /// Packed since the last note.
    fresh: Vec<Packed>,
    noted_at: u64,
    /// The first entry that is not packed.
    next: u32,
    /// The file whose blocks come.
    open: Option<Open>,
}

struct Open {
    entry: u32,
    offset: u64,
    blocks: Vec<(u64, u32)>,
    is_plain: bool,
    digest: blake3::Hasher,
}

/// Where a partition is written.
pub(super) struct Target<'a> {
    /// Says whether notes are of this work.
    pub(super) fingerprint: Digest,
    /// Number of the partition.
    pub(super) number: u32,
    /// Its file.
    pub(super) path: &'a Path,
}

/// Writes a partition, or what an earlier run has left of it.
pub(super) fn write(
    source: &dyn Source,
    plan: &Plan,
    entries: &[u32],
    to: &Target<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Partition> {
    let path = to.path;
    let partial = path.with_extension("partial");
    let mut part = Part::open(&partial, to, options, progress)?;
    readers::each(source, plan, options, (entries, part.next), |block| {
        part.progress.check()?;
        part.append(plan, block)
    })?;
    part.note()?;
    let table = part.table(plan, entries, to.fingerprint)?;
    part.finish(&table)?;
    std::fs::rename(&partial, path).map_err(|e| Error::io(&partial, e))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    Partition::open(path)
}

impl<'a> Part<'a> {
    fn open(
        partial: &Path,
        to: &Target<'_>,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Result<Part<'a>> {
        let notes = progress::path_of(to.path);
        let io = |e| Error::io(partial, e);
        let mut open = OpenOptions::new();
        let open = open.create(true).truncate(false).read(true).write(true);
        let mut file = open.open(partial).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let noted = progress::read(&notes, to.fingerprint, |_| Ok(()))?;
        let noted = noted.filter(|noted| noted.end <= len).unwrap_or_default();
        let pos = noted.end.max(HEADER_BYTES);
        file.set_len(noted.end).map_err(io)?;
        if noted.end == 0 {
            let mut header = vec![0; HEADER_BYTES as usize];
            let head = header_of(to.number, options.partitions);
            header[..head.as_bytes().len()].copy_from_slice(head.as_bytes());
            file.write_all(&header).map_err(io)?;
        }
        file.seek(SeekFrom::Start(pos)).map_err(io)?;
        if noted.end > 0 {
            progress::read(&notes, to.fingerprint, |file| {
                progress.add(&file.data, true);
                Ok(())
            })?;
        }
        Ok(Part {
            path: partial.to_owned(),
            out: BufWriter::with_capacity(BUFFER_BYTES, file),
            number: to.number,
            pos,
            options,
            progress,
            notes: Notes::open(&notes, to.fingerprint, &noted)?,
            fresh: Vec::new(),
            noted_at: pos,
            next: noted.next,
            open: None,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|e| Error::io(&self.path, e))?;
        self.pos += bytes.len() as u64;
        Ok(())
    }

    fn pad_to_page(&mut self) -> Result<()> {
        let gap = self.pos.next_multiple_of(PAGE_BYTES) - self.pos;
        self.put(&ZEROS[..gap as usize])
    }

    /// The next block of the file that is being packed, or the first of another one.
    fn append(&mut self, plan: &Plan, block: Block) -> Result<()> {
        let size = plan.size(block.task.entry);
        let is_plain = block.stored.len() as u64 == block.raw_len;
        if block.task.block == 0 {
            if is_plain && size >= ALIGNED_FROM_BYTES {
                self.pad_to_page()?;
            }
            self.open = Some(Open {
                entry: block.task.entry,
                offset: self.pos,
                blocks: Vec::new(),
                is_plain: true,
                digest: blake3::Hasher::new(),
            });
        }
        self.put(&block.stored)?;
        let end = self.pos;
        let open = self.open.as_mut().expect("a file's first block comes first");
        debug_assert_eq!(open.entry, block.task.entry);
        open.is_plain &= is_plain;
        if size > 0 {
            open.blocks.push((end - open.offset, block.crc));
        }
        if block.digest.is_none() {
            open.digest.update(block.raw.as_deref().unwrap_or(&block.stored));
        }
        if (block.task.block + 1) * crate::inode::BLOCK_BYTES < size {
            return Ok(());
        }
        let open = self.open.take().expect("as above");
        let whole = || Digest(*open.digest.finalize().as_bytes());
        let data = FileData {
            partition: self.number,
            offset: open.offset,
            stored: end - open.offset,
            size,
            codec: if open.is_plain { Codec::None } else { self.options.codec },
            check: 0,
        };
        let digest = block.digest.unwrap_or_else(whole);
        self.fresh.push(Packed { n: block.task.n, data, blocks: open.blocks, digest });
        self.progress.add(&data, false);
        let is_due = end - self.noted_at >= self.options.note_every_bytes;
        if is_due || self.fresh.len() >= NOTE_EVERY_FILES {
            self.note()?;
        }
        Ok(())
    }

    /// Makes what is packed durable, and notes it.
    fn note(&mut self) -> Result<()> {
        self.out.flush().map_err(|e| Error::io(&self.path, e))?;
        self.out.get_ref().sync_data().map_err(|e| Error::io(&self.path, e))?;
        self.notes.add(&self.fresh, self.pos, None)?;
        self.noted_at = self.pos;
        self.fresh.clear();
        Ok(())
    }

    /// The table of the partition's entries. Where their data is, is read from the notes.
    fn table(&self, plan: &Plan, entries: &[u32], fingerprint: Digest) -> Result<Finished> {
        let (mut table, mut entries) = (TableOf::new(plan), (0..).zip(entries));
        progress::read(&progress::path_of(&self.path), fingerprint, |file| {
            let before = entries.by_ref().find_map(|(n, &entry)| match n == file.n {
                true => Some(Ok(entry)),
                false => table.add(entry, None).err().map(Err),
            });
            let entry = before.unwrap_or_else(|| {
                Err(Error::invalid(&self.path, "notes on a file that is none of its own"))
            })?;
            table.add(entry, Some(&file))
        })?;
        entries.try_for_each(|(_, &entry)| table.add(entry, None))?;
        Ok(table.builder.close(true))
    }

    fn finish(mut self, table: &Finished) -> Result<()> {
        let end = self.pos;
        self.pad_to_page()?;
        let at = self.pos;
        let header = header_of(self.number, self.options.partitions);
        let mut hasher = blake3::Hasher::new();
        hasher.update(header.as_bytes());
        table.write(|bytes| {
            hasher.update(bytes);
            self.put(bytes)
        })?;
        let mut footer = Footer {
            table: at,
            table_bytes: table.bytes(),
            digest: *hasher.finalize().as_bytes(),
            magic: PARTITION_MAGIC,
            reserved: 0,
            crc: 0,
        };
        footer.crc = crc_of(&footer);
        self.put(footer.as_bytes())?;
        debug_assert_eq!(self.pos, at + footer.table_bytes + FOOTER_BYTES);
        self.out.flush().map_err(|e| Error::io(&self.path, e))?;
        self.out.get_ref().sync_all().map_err(|e| Error::io(&self.path, e))?;
        self.notes.add(&[], end, Some(Digest(footer.digest)))
    }
}

/// The table of a partition, being made.
struct TableOf<'a> {
    plan: &'a Plan,
    builder: Builder,
    /// Inodes of files that may have more names.
    linked: HashMap<u32, Ino>,
}

impl TableOf<'_> {
    fn new(plan: &Plan) -> TableOf<'_> {
        TableOf { plan, builder: Builder::new(), linked: HashMap::new() }
    }

    /// Adds an entry, with its data if it is a file.
    fn add(&mut self, entry: u32, packed: Option<&Packed>) -> Result<()> {
        let (plan, path) = (self.plan, self.plan.path(entry));
        let wrong = |what| Error::invalid(Path::new(&*String::from_utf8_lossy(&path)), what);
        if let Some(first) = plan.links_to(entry) {
            return self.builder.link(&path, self.linked[&first]).map_err(wrong);
        }
        let ino = self.builder.add(&path, &plan.meta(entry)).map_err(wrong)?;
        if plan.is_linked(entry) {
            self.linked.insert(entry, ino);
        }
        if plan.is_file(entry) != packed.is_some() {
            return Err(wrong("the notes on its partition do not have it"));
        }
        let Some(Packed { data, blocks, digest, .. }) = packed else { return Ok(()) };
        self.builder.set_data(ino, *data, blocks, *digest).map_err(wrong)
    }
}
