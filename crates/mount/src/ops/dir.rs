//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR, FSYNCDIR.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_lock::Mutex;
use saker_client::{Caller, DirItem, DirStream, OpenFlags};
use saker_fuse::abi::{Dirent, EntryOut, FsyncIn, OpenOut, ReadIn, ReleaseIn};
use saker_fuse::{MAX_WRITE_BYTES, Reply, Request};
use saker_types::wire::{At, Entry};
use saker_types::{Errno, FileKind, InodeId, Locator, ROOT, Result};
use zerocopy::IntoBytes;

use crate::caller::WithCaller as _;
use crate::names::nodes::FuseNodeId;
use crate::service::MountService;

/// Cookie after `.`.
const AFTER_DOT: u64 = 1;
/// Cookie after `..`. Those of entries are larger (`DirItem::cookie`).
const AFTER_DOTS: u64 = 2;
/// Everybody may search.
const SEARCHABLE: u32 = 0o111;
/// The sticky bit.
const STICKY: u32 = 0o1000;

/// A directory that is open through the mount.
pub(crate) struct OpenDir {
    node: FuseNodeId,
    loc: Locator,
    /// Whoever opened it may read it.
    is_checked: AtomicBool,
    listing: Mutex<Listing>,
}

/// How far a listing has come, so that the next request goes on without asking the servers again.
#[derive(Default)]
struct Listing {
    /// Cookie of the last entry returned.
    at: u64,
    /// The entries after it, or after `ahead`.
    stream: Option<DirStream>,
    /// Taken from the stream, but the reply was full.
    ahead: Option<DirItem>,
}

impl MountService {
    pub(crate) async fn opendir(&self, request: &Request) -> Result<Reply> {
        let node = request.header.nodeid;
        let loc = self.locate(node).await?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let mut is_checked = true;
        if self.threads.take(&request.header, loc.id, flags).is_none() {
            match node {
                ROOT if self.root.is_some() => {
                    let answer = self.may_list_root(&request.caller()).await;
                    is_checked = answer.transpose()?.is_some();
                }
                _ => self.fs.access(&request.caller(), &At::handle(loc.clone()), 4).await?,
            }
        }
        let (is_checked, listing) = (AtomicBool::new(is_checked), Mutex::default());
        let fh = self.dirs.insert(Arc::new(OpenDir { node, loc, is_checked, listing }));
        Ok(Reply::of(&OpenOut { fh, ..OpenOut::default() }))
    }

    pub(crate) async fn readdir(&self, request: &Request, plus: bool) -> Result<Reply> {
        let input: ReadIn = request.body().fixed()?;
        let dir = self.dirs.get(input.fh)?;
        let mut listing = dir.listing.lock().await;
        if !dir.is_checked.load(Ordering::Relaxed) {
            self.fs.access(&request.caller(), &At::handle(dir.loc.clone()), 4).await?;
            dir.is_checked.store(true, Ordering::Relaxed);
        }
        // Offset 0 is a fresh start, also where the listing stands at its start already.
        if input.offset == 0 || input.offset != listing.at {
            *listing = Listing { at: input.offset, ..Listing::default() };
        }
        let bytes_max = (input.size as usize).min(MAX_WRITE_BYTES);
        let mut page = Page { bytes: Vec::with_capacity(bytes_max), bytes_max, plus };
        if !page.dots(&dir.loc, &mut listing.at) {
            return Ok(Reply::head(page.bytes));
        }
        match self.fill(&dir, &mut listing, &mut page).await {
            // What is in the page was counted as held, so it must go out; the next request meets
            // the error again.
            Err(_) if !page.bytes.is_empty() => listing.stream = None,
            result => result?,
        }
        Ok(Reply::head(page.bytes))
    }

    async fn fill(&self, dir: &OpenDir, listing: &mut Listing, page: &mut Page) -> Result<()> {
        let keep = self.keep_listed(dir.node);
        loop {
            let item = match listing.ahead.take() {
                Some(item) => item,
                None => {
                    let from = if listing.at <= AFTER_DOTS { 0 } else { listing.at };
                    // Who may read it was decided when it was opened.
                    let open = || self.fs.readdir(&Caller::root(), &dir.loc, from);
                    let stream = listing.stream.get_or_insert_with(open);
                    match stream.next().await? {
                        Some(item) => item,
                        None => return Ok(()),
                    }
                }
            };
            if !page.has_room(&item.name) {
                let nothing = page.bytes.is_empty();
                listing.ahead = Some(item);
                return if nothing { Err(Errno::EINVAL.into()) } else { Ok(()) };
            }
            listing.at = item.cookie;
            let (id, kind) = (item.attr.id, item.attr.kind());
            let entry = page.plus.then(|| {
                let entry = Entry { attr: item.attr, loc: item.loc, ..Entry::default() };
                let node = self.nodes.count_lookup(dir.node, &item.name, &entry);
                self.entry_out(node, &entry.attr, keep)
            });
            page.push(&item.name, id, kind, item.cookie, entry);
        }
    }

    /// How long names of a listing may be kept: only where all may search the directory.
    fn keep_listed(&self, dir: FuseNodeId) -> Duration {
        match self.nodes.mode(dir) & (SEARCHABLE | STICKY) {
            SEARCHABLE => self.entry_timeout,
            _ => Duration::ZERO,
        }
    }

    pub(crate) async fn releasedir(&self, request: &Request) -> Result<Reply> {
        let input: ReleaseIn = request.body().fixed()?;
        self.dirs.remove(input.fh)?;
        Ok(Reply::done())
    }

    /// Changes of names are on disk when they are answered, but under some policies.
    pub(crate) async fn fsyncdir(&self, request: &Request) -> Result<Reply> {
        let input: FsyncIn = request.body().fixed()?;
        let dir = self.dirs.get(input.fh)?;
        let loc = self.locate(dir.node).await.unwrap_or_else(|_| dir.loc.clone());
        self.fs.fsync_dir(&request.caller(), &loc).await?;
        Ok(Reply::done())
    }
}

/// The entries of one reply.
struct Page {
    bytes: Vec<u8>,
    bytes_max: usize,
    plus: bool,
}

impl Page {
    /// `.` and `..`, as far as `at` is not past them; false when there is no room.
    fn dots(&mut self, dir: &Locator, at: &mut u64) -> bool {
        let parent = if dir.id == ROOT { ROOT } else { dir.pid };
        for (name, id, cookie) in [(".", dir.id, AFTER_DOT), ("..", parent, AFTER_DOTS)] {
            if *at >= cookie {
                continue;
            }
            // No node: the kernel knows these two.
            let entry = self.plus.then(EntryOut::default);
            if !self.has_room(name.as_bytes()) {
                return false;
            }
            self.push(name.as_bytes(), id, FileKind::Directory, cookie, entry);
            *at = cookie;
        }
        true
    }

    fn end_after(&self, name: &[u8]) -> usize {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 } + size_of::<Dirent>();
        self.bytes.len() + (head + name.len()).next_multiple_of(8)
    }

    fn has_room(&self, name: &[u8]) -> bool {
        self.end_after(name) <= self.bytes_max
    }

    /// Adds an entry, for which there is room.
    fn push(
        &mut self,
        name: &[u8],
        ino: InodeId,
        kind: FileKind,
        cookie: u64,
        entry: Option<EntryOut>,
    ) {
        let end = self.end_after(name);
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let kind = u32::from(kind.d_type());
        let dirent = Dirent { ino, off: cookie, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use zerocopy::FromBytes;

    fn page(bytes_max: usize, plus: bool) -> Page {
        Page { bytes: Vec::new(), bytes_max, plus }
    }

    fn dir() -> Locator {
        Locator::entry(5, "d".into(), 9)
    }

    #[test]
    fn dots_come_first_and_can_be_gone_past() {
        let mut at = 0;
        let mut full = page(64, false);
        assert!(full.dots(&dir(), &mut at));
        assert_eq!(at, 2);
        assert_eq!(full.bytes.len(), 64);
        let (first, _) = Dirent::read_from_prefix(&full.bytes).unwrap();
        assert_eq!((first.ino, first.off, first.namelen, first.kind), (9, 1, 1, 4));
        let (second, _) = Dirent::read_from_prefix(&full.bytes[32..]).unwrap();
        assert_eq!((second.ino, second.off, second.namelen), (5, 2, 2));
        assert!(page(0, false).dots(&dir(), &mut at), "both are past");
        let (mut at, mut one) = (0, page(63, false));
        assert!(!one.dots(&dir(), &mut at));
        assert_eq!((at, one.bytes.len()), (1, 32));
    }

    #[test]
    fn the_root_is_its_own_parent() {
        let (mut at, mut full) = (1, page(32, false));
        assert!(full.dots(&Locator::root(), &mut at));
        assert_eq!(Dirent::read_from_prefix(&full.bytes).unwrap().0.ino, ROOT);
    }

    #[test]
    fn entries_are_padded_and_never_overrun_the_page() {
        for len in 1..=255 {
            let name = vec![b'n'; len];
            let size = (24 + len).div_ceil(8) * 8;
            let mut exact = page(size, false);
            assert!(exact.has_room(&name) && !page(size - 1, false).has_room(&name));
            exact.push(&name, 3, FileKind::Regular, 77, None);
            assert_eq!(exact.bytes.len(), size);
            assert_eq!(exact.bytes[24..24 + len], name);
            assert!(!exact.has_room(b"x"));
            let mut plus = page(size + 128, true);
            let entry = EntryOut { nodeid: 3, ..EntryOut::default() };
            assert!(plus.has_room(&name));
            plus.push(&name, 3, FileKind::Symlink, 77, Some(entry));
            assert_eq!(plus.bytes.len(), size + 128);
            assert_eq!(Dirent::read_from_prefix(&plus.bytes[128..]).unwrap().0.kind, 10);
        }
    }
}
