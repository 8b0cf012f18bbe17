//! Files' data: `fs/fuse/file.c` and the page cache, without write-back.

use saker_types::Errno;

use super::Kernel;
use super::calls::KernelFile;
use super::wire::{self, WireBody, op};

pub const PAGE: u64 = 4096;
/// Pages of the largest read-ahead.
const AHEAD_PAGES: u64 = 4;

impl Kernel {
    /// lseek(2) to the end.
    pub async fn seek_end(&self, tid: u32, open: &KernelFile) -> Result<u64, Errno> {
        let lock = self.with(|all| all.inode(open.inode.id).lock.clone());
        let _exclusive = lock.exclusive().await;
        self.update_attributes(tid, &open.inode, Some(open.fh)).await?;
        Ok(self.size(open))
    }

    fn size(&self, open: &KernelFile) -> u64 {
        self.with(|all| all.inode(open.inode.id).size)
    }

    /// pread(2).
    pub async fn read(
        &self,
        tid: u32,
        open: &KernelFile,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, Errno> {
        self.update_attributes(tid, &open.inode, Some(open.fh)).await?;
        let (mut data, end) = (Vec::new(), offset + len);
        while offset + (data.len() as u64) < end {
            let at = offset + data.len() as u64;
            if at >= self.size(open) {
                break;
            }
            let page = at / PAGE;
            let cached = self.with(|all| {
                let inode = all.inode(open.inode.id);
                let bytes = inode.pages.get(&page)?;
                // As of now: what was cut while it was read is not shown.
                let stop = end.min((page + 1) * PAGE).min(inode.size);
                if at >= stop {
                    return Some(Vec::new());
                }
                let start = page * PAGE;
                Some(bytes[(at - start) as usize..(stop - start) as usize].to_vec())
            });
            match cached {
                Some(bytes) if bytes.is_empty() => break,
                Some(bytes) => data.extend_from_slice(&bytes),
                None => self.fill(tid, open, page, end).await?,
            }
        }
        Ok(data)
    }

    /// Reads pages from `page` on: as many as are wanted, or a few more; one by one if that fails.
    async fn fill(&self, tid: u32, open: &KernelFile, page: u64, end: u64) -> Result<(), Errno> {
        let filling = self.with(|all| all.inode(open.inode.id).filling.clone());
        let _guard = filling.exclusive().await;
        let (size, is_cached) = self.with(|all| {
            let inode = all.inode(open.inode.id);
            (inode.size, inode.pages.contains_key(&page))
        });
        if is_cached || page * PAGE >= size {
            return Ok(());
        }
        let last = (size - 1) / PAGE;
        let wanted = end.div_ceil(PAGE) - page;
        let ahead = wanted.max(1 + self.below(AHEAD_PAGES)).min(last + 1 - page);
        if self.read_pages(tid, open, page, ahead).await.is_ok() {
            return Ok(());
        }
        self.read_pages(tid, open, page, 1).await
    }

    async fn read_pages(
        &self,
        tid: u32,
        open: &KernelFile,
        page: u64,
        count: u64,
    ) -> Result<(), Errno> {
        let (node, dropped, version) = self.with(|all| {
            let inode = all.inode(open.inode.id);
            (inode.nodeid, inode.dropped, self.version())
        });
        let size = (count * PAGE) as u32;
        let body = WireBody::default().u64(open.fh).u64(page * PAGE).u32(size).zeros(20);
        let data = self.ask(tid, op::READ, node, &body, None).await?;
        let is_short = data.len() < size as usize;
        let next = self.next_version();
        self.with(|all| {
            let inode = all.inode_mut(open.inode.id);
            let end = page * PAGE + data.len() as u64;
            // `fuse_read_update_size`
            let is_newest = version >= inode.version && !inode.size_unstable;
            if is_short && is_newest && end < inode.size {
                (inode.version, inode.size) = (next, end);
            }
            // Pages that were thrown away while they were read are read again.
            if inode.dropped != dropped {
                return;
            }
            for (page, chunk) in (page..page + count).zip(0..) {
                let start = (chunk * PAGE) as usize;
                let mut bytes = data.get(start..).unwrap_or_default().to_vec();
                bytes.resize(PAGE as usize, 0);
                inode.pages.insert(page, bytes);
            }
        });
        Ok(())
    }

    /// pwrite(2), of one piece.
    pub async fn write(
        &self,
        tid: u32,
        open: &KernelFile,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let (lock, filling) = self.with(|all| {
            let inode = all.inode(open.inode.id);
            (inode.lock.clone(), inode.filling.clone())
        });
        let _exclusive = lock.exclusive().await;
        let _pages = filling.exclusive().await;
        let end = offset + data.len() as u64;
        let node = self.with(|all| {
            let inode = all.inode_mut(open.inode.id);
            inode.size_unstable |= end > inode.size;
            // The program's bytes are in the pages before they are sent.
            put(inode, offset, data);
            inode.nodeid
        });
        let body = WireBody::default().u64(open.fh).u64(offset).u32(data.len() as u32).u32(0);
        let body = body.zeros(16).bytes(data);
        let written = self.ask(tid, op::WRITE, node, &body, None).await;
        let written = written.and_then(|reply| wire::u32_of(&reply));
        let next = self.next_version();
        self.with(|all| {
            let inode = all.inode_mut(open.inode.id);
            inode.size_unstable = false;
            (inode.version, inode.invalid) = (next, true);
            match written {
                Ok(_) => {
                    inode.size = inode.size.max(end);
                    put(inode, offset, data);
                    insert_whole(inode, offset, data);
                }
                Err(_) => inode.drop_pages_from(0),
            }
        });
        match written? {
            all if all as usize == data.len() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}

/// Bytes of pages that are cached.
fn put(inode: &mut super::dcache::KernelInode, offset: u64, data: &[u8]) {
    for (page, bytes) in &mut inode.pages {
        let start = page * PAGE;
        for (at, byte) in bytes.iter_mut().enumerate() {
            let at = start + at as u64;
            if at >= offset && at < offset + data.len() as u64 {
                *byte = data[(at - offset) as usize];
            }
        }
    }
}

/// Pages that are written as a whole are cached.
fn insert_whole(inode: &mut super::dcache::KernelInode, offset: u64, data: &[u8]) {
    let end = offset + data.len() as u64;
    for page in offset.div_ceil(PAGE)..end / PAGE {
        let start = (page * PAGE - offset) as usize;
        inode.pages.insert(page, data[start..start + PAGE as usize].to_vec());
    }
}
