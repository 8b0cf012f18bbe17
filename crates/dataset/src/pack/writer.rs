//! Writing one partition.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use super::progress::{self, Noted, Notes, Packed};
use super::readers::{self, Block, Task};
use super::source::Source;
use super::{Options, Plan, Progress};
use saker_types::FileKind;

use crate::codec::Codec;
use crate::dataset::sync_dir;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{
    ALIGNED_FROM_BYTES, FOOTER_BYTES, Footer, HEADER_BYTES, PAGE_BYTES, PARTITION_MAGIC, crc_of,
};
use crate::inode::FileData;
use crate::partition::{Partition, digest_of, header_of};
use crate::table::{Builder, Ino, Table};

const BUFFER_BYTES: usize = 1 << 20;
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
    packed: Vec<Packed>,
    /// The file whose blocks come.
    open: Option<Open>,
}

struct Open {
    entry: usize,
    offset: u64,
    blocks: Vec<(u64, u32)>,
    is_plain: bool,
    digest: blake3::Hasher,
}

/// Writes a partition, or what an earlier run has left of it.
pub(super) fn write(
    source: &dyn Source,
    plan: &Plan,
    fingerprint: Digest,
    number: u32,
    path: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Partition> {
    if let Some(done) = super::finished(fingerprint, number, path, options) {
        for ino in 0..done.table().len() {
            if let Some(data) = done.table().inode(ino).data() {
                progress.add(&data, true);
            }
        }
        return Ok(done);
    }
    let entries = plan.of_partition(number, options.partitions);
    let partial = path.with_extension("partial");
    let mut part = Part::open(&partial, path, fingerprint, number, options, progress)?;
    let numbers: HashMap<usize, u32> =
        entries.iter().enumerate().map(|(n, entry)| (*entry, n as u32)).collect();
    let packed: std::collections::HashSet<u32> = part.packed.iter().map(|file| file.n).collect();
    let mut tasks = Vec::new();
    for (n, &entry) in entries.iter().enumerate() {
        let meta = &plan.entry(entry).meta;
        let is_file = meta.kind() == Some(FileKind::Regular) && plan.links_to(entry).is_none();
        if is_file && !packed.contains(&(n as u32)) {
            let blocks = meta.size.div_ceil(crate::inode::BLOCK_BYTES).max(1);
            tasks.extend((0..blocks).map(|block| Task { entry, block }));
        }
    }
    readers::each(source, plan, options, &tasks, |block| {
        part.progress.check()?;
        let entry = block.task.entry;
        part.append(plan, block, numbers[&entry])
    })?;
    let table = part.table(plan, &entries)?;
    part.finish(&table)?;
    std::fs::rename(&partial, path).map_err(|e| Error::io(&partial, e))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    Partition::open(path)
}

impl<'a> Part<'a> {
    fn open(
        partial: &Path,
        path: &Path,
        fingerprint: Digest,
        number: u32,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Result<Part<'a>> {
        let notes = progress::path_of(path);
        let io = |e| Error::io(partial, e);
        let mut open = OpenOptions::new();
        let open = open.create(true).truncate(false).read(true).write(true);
        let mut file = open.open(partial).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let noted = progress::read(&notes, fingerprint).filter(|noted| noted.end <= len);
        let noted = noted.unwrap_or_default();
        let pos = noted.end.max(HEADER_BYTES);
        file.set_len(noted.end).map_err(io)?;
        if noted.end == 0 {
            let mut header = vec![0; HEADER_BYTES as usize];
            let head = header_of(number, options.partitions);
            header[..head.as_bytes().len()].copy_from_slice(head.as_bytes());
            file.write_all(&header).map_err(io)?;
        }
        file.seek(SeekFrom::Start(pos)).map_err(io)?;
        let notes = Notes::open(&notes, fingerprint, &noted)?;
        for file in &noted.files {
            progress.add(&file.data, true);
        }
        let Noted { files: packed, .. } = noted;
        Ok(Part {
            path: partial.to_owned(),
            out: BufWriter::with_capacity(BUFFER_BYTES, file),
            number,
            pos,
            options,
            progress,
            notes,
            fresh: Vec::new(),
            noted_at: pos,
            packed,
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
    fn append(&mut self, plan: &Plan, block: Block, n: u32) -> Result<()> {
        let size = plan.entry(block.task.entry).meta.size;
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
        self.fresh.push(Packed { n, data, blocks: open.blocks, digest });
        self.progress.add(&data, false);
        if end - self.noted_at >= self.options.note_every_bytes {
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
        self.packed.append(&mut self.fresh);
        Ok(())
    }

    fn table(&mut self, plan: &Plan, entries: &[usize]) -> Result<Table> {
        self.note()?;
        let mut inos: HashMap<usize, Ino> = HashMap::new();
        let mut builder = Builder::new();
        for &entry in entries {
            let of = plan.entry(entry);
            let wrong = |what| Error::invalid(Path::new(&*String::from_utf8_lossy(&of.path)), what);
            match plan.links_to(entry).map(|first| inos[&first]) {
                Some(ino) => builder.link(&of.path, ino).map_err(wrong)?,
                None => {
                    let ino = builder.add(&of.path, &of.meta).map_err(wrong)?;
                    inos.insert(entry, ino);
                }
            }
        }
        self.packed.sort_unstable_by_key(|file| file.n);
        for file in &self.packed {
            let ino = inos[&entries[file.n as usize]];
            let set = builder.set_data(ino, file.data, &file.blocks, file.digest);
            set.map_err(|what| Error::invalid(&self.path, what))?;
        }
        Ok(builder.finish(true))
    }

    fn finish(mut self, table: &Table) -> Result<()> {
        let end = self.pos;
        self.pad_to_page()?;
        let at = self.pos;
        self.put(table.as_bytes())?;
        let mut footer = Footer {
            table: at,
            table_bytes: table.as_bytes().len() as u64,
            digest: digest_of(self.number, self.options.partitions, table).0,
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
