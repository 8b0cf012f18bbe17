//! Walks a tree of the cluster with many requests under way, on one thread, in bounded memory.
//!
//! Listings are taken a page at a time from a stack: what a page finds goes on top of the rest of
//! its own listing, so the stack stays as small as the tree is deep.

use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use saker_client::{Caller, DirItem, DirStream, Fs};
use saker_types::wire::At;
use saker_types::{Errno, Error, Locator};

use crate::signals;

/// Requests under way at once.
const IN_FLIGHT_MAX: usize = 64;
/// Entries taken from a listing at once.
const PAGE: usize = 512;

/// Reads up to a page; true when the listing is at its end.
async fn page(stream: &mut DirStream) -> (Vec<DirItem>, Result<bool, Error>) {
    let mut items = Vec::new();
    while items.len() < PAGE {
        match stream.next().await {
            Ok(Some(item)) => items.push(item),
            Ok(None) => return (items, Ok(true)),
            Err(error) => return (items, Err(error)),
        }
    }
    (items, Ok(false))
}

/// A directory that is being listed.
struct Listing {
    path: Vec<u8>,
    stream: DirStream,
}

/// A part of a directory's listing.
pub struct Page {
    /// The directory's path; it begins with that of the walk's root.
    pub path: Vec<u8>,
    /// Some of its entries.
    pub items: Vec<DirItem>,
    /// It could not be listed any further.
    pub error: Option<Error>,
}

type PageRead = (Listing, Vec<DirItem>, Result<bool, Error>);

/// A walk under way. Between two pages nothing of it runs, so its user may block there; inside
/// of a future nobody may, because that future's thread may be the one that drives the network.
pub struct TreeWalk<'a> {
    fs: &'a Fs,
    who: &'a Caller,
    stack: Vec<Listing>,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = PageRead>>>>,
}

impl<'a> TreeWalk<'a> {
    /// A walk through nothing yet: [`TreeWalk::enter`] says where.
    pub fn new(fs: &'a Fs, who: &'a Caller) -> TreeWalk<'a> {
        TreeWalk { fs, who, stack: Vec::new(), under_way: FuturesUnordered::new() }
    }

    /// Lists this directory, too.
    pub fn enter(&mut self, path: Vec<u8>, dir: &Locator) {
        let stream = self.fs.readdir(self.who, dir, 0);
        self.stack.push(Listing { path, stream });
    }

    /// The next page of any directory. Its user enters those below that it wants. `None` at the
    /// end, and after Ctrl-C.
    pub fn next_page(&mut self) -> Option<Page> {
        while self.under_way.len() < IN_FLIGHT_MAX && !signals::interrupted() {
            let Some(mut listing) = self.stack.pop() else { break };
            self.under_way.push(Box::pin(async move {
                let (items, end) = page(&mut listing.stream).await;
                (listing, items, end)
            }));
        }
        if signals::interrupted() {
            return None;
        }
        let (listing, items, end) = self.fs.block_on(self.under_way.next())?;
        let path = listing.path.clone();
        if let Ok(false) = end {
            self.stack.push(listing);
        }
        Some(Page { path, items, error: end.err() })
    }
}

/// What a walk meets.
pub enum Met<'a> {
    /// An entry; its path begins with that of the walk's root.
    Entry(&'a [u8], &'a DirItem),
    /// A directory could not be listed.
    Failed(&'a [u8], Error),
}

/// Visits everything below `root` (not itself), in no particular order. `visit` says of each
/// directory whether to go into it; it may block. Ends early at Ctrl-C; returns whether it came
/// to the end.
pub fn walk(
    fs: &Fs,
    who: &Caller,
    root: &Locator,
    path: &[u8],
    mut visit: impl FnMut(Met<'_>) -> bool,
) -> bool {
    let mut walk = TreeWalk::new(fs, who);
    walk.enter(path.to_vec(), root);
    while let Some(page) = walk.next_page() {
        for item in &page.items {
            let path = join(&page.path, &item.name);
            if visit(Met::Entry(&path, item)) && item.attr.is_dir() {
                walk.enter(path, &item.loc);
            }
        }
        if let Some(error) = page.error {
            visit(Met::Failed(&page.path, error));
        }
    }
    !signals::interrupted()
}

/// A path and one more name.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = path.to_vec();
    if out.last() != Some(&b'/') {
        out.push(b'/');
    }
    out.extend_from_slice(name);
    out
}

/// What a removal has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalCounts {
    /// Directories removed.
    pub dirs: u64,
    /// Other entries removed.
    pub others: u64,
    /// What could not be removed; each was told to the caller.
    pub failures: u64,
}

/// A directory on its way out.
struct Doomed {
    loc: Locator,
    /// Its name in the directory above: what rmdir(2) is about is a name.
    at: At,
    path: Vec<u8>,
    /// Index of the directory that it is in; none for the root of the removal.
    parent: Option<usize>,
    /// Entries found that are still there.
    waiting: usize,
    listed: bool,
    /// Something in it stays, so it stays.
    failed: bool,
}

enum Job {
    List(usize, Box<DirStream>),
    Unlink(usize, Vec<u8>),
    Rmdir(usize),
}

enum Done {
    Listed(usize, Box<DirStream>, Vec<DirItem>, Result<bool, Error>),
    /// An entry that is no directory, in this one.
    Unlinked(usize, Vec<u8>, Result<(), Error>),
    Rmdired(usize, Result<(), Error>),
}

/// Removes a directory and all below it.
pub struct Removal<'a, F> {
    fs: &'a Fs,
    who: &'a Caller,
    /// Told of each step, and of each failure with its path.
    tell: F,
    /// Ctrl-C does not end it.
    to_the_end: bool,
    /// Slots are used again, so that memory follows what is under way, not what was.
    dirs: Vec<Doomed>,
    free: Vec<usize>,
    stack: Vec<Job>,
    removed: RemovalCounts,
}

impl<'a, F: FnMut(RemovalCounts, Option<(&[u8], &Error)>)> Removal<'a, F> {
    /// A removal in the name of `who`.
    pub fn new(fs: &'a Fs, who: &'a Caller, tell: F) -> Self {
        let (dirs, free, stack) = (Vec::new(), Vec::new(), Vec::new());
        let (to_the_end, removed) = (false, RemovalCounts::default());
        Removal { fs, who, tell, to_the_end, dirs, free, stack, removed }
    }

    /// The same, and Ctrl-C does not end it: for clean-up after a command that was interrupted.
    pub fn to_the_end(fs: &'a Fs, who: &'a Caller, tell: F) -> Self {
        Removal { to_the_end: true, ..Removal::new(fs, who, tell) }
    }

    /// Removes the directory `root`, whose name is at `at`, shown as `path`. Ends early at Ctrl-C.
    pub async fn run(mut self, root: Locator, at: At, path: Vec<u8>) -> RemovalCounts {
        self.enter(root, at, path, None);
        let mut under_way = FuturesUnordered::new();
        while self.to_the_end || !signals::interrupted() {
            while under_way.len() < IN_FLIGHT_MAX {
                let Some(job) = self.stack.pop() else { break };
                under_way.push(perform(self.fs, self.who, self.at(&job), job));
            }
            let Some(done) = under_way.next().await else { break };
            self.note(done);
        }
        // What has been sent is waited for, so that the figures are true.
        while let Some(done) = under_way.next().await {
            self.note(done);
        }
        self.removed
    }

    fn enter(&mut self, loc: Locator, at: At, path: Vec<u8>, parent: Option<usize>) {
        let stream = Box::new(self.fs.readdir(self.who, &loc, 0));
        let doomed = Doomed { loc, at, path, parent, waiting: 0, listed: false, failed: false };
        let dir = match self.free.pop() {
            Some(dir) => {
                self.dirs[dir] = doomed;
                dir
            }
            None => {
                self.dirs.push(doomed);
                self.dirs.len() - 1
            }
        };
        self.stack.push(Job::List(dir, stream));
    }

    fn at(&self, job: &Job) -> At {
        match job {
            Job::Unlink(dir, name) => At::child(self.dirs[*dir].loc.clone(), name),
            Job::List(dir, _) | Job::Rmdir(dir) => self.dirs[*dir].at.clone(),
        }
    }

    fn note(&mut self, done: Done) {
        match done {
            Done::Listed(dir, stream, items, end) => self.listed(dir, stream, items, end),
            Done::Unlinked(dir, name, result) => {
                self.removed.others += u64::from(result.is_ok());
                let path = join(&self.dirs[dir].path, &name);
                self.left(dir, &path, result);
            }
            Done::Rmdired(dir, result) => {
                self.removed.dirs += u64::from(result.is_ok());
                let path = std::mem::take(&mut self.dirs[dir].path);
                self.leave(dir, &path, result);
            }
        }
    }

    fn listed(
        &mut self,
        dir: usize,
        stream: Box<DirStream>,
        items: Vec<DirItem>,
        end: Result<bool, Error>,
    ) {
        self.dirs[dir].waiting += items.len();
        match end {
            Ok(false) => self.stack.push(Job::List(dir, stream)),
            Ok(true) => self.dirs[dir].listed = true,
            Err(error) => {
                self.dirs[dir].listed = true;
                let path = self.dirs[dir].path.clone();
                self.failed(dir, &path, &error);
            }
        }
        for item in items {
            if item.attr.is_dir() {
                let path = join(&self.dirs[dir].path, &item.name);
                let at = At::child(self.dirs[dir].loc.clone(), &item.name);
                self.enter(item.loc, at, path, Some(dir));
            } else {
                self.stack.push(Job::Unlink(dir, item.name.to_vec()));
            }
        }
        self.when_empty(dir);
    }

    fn failed(&mut self, dir: usize, path: &[u8], error: &Error) {
        self.dirs[dir].failed = true;
        self.removed.failures += 1;
        (self.tell)(self.removed, Some((path, error)));
    }

    /// An entry of `dir` has been dealt with.
    fn left(&mut self, dir: usize, path: &[u8], result: Result<(), Error>) {
        match result {
            // Somebody else was faster.
            Err(error) if error.errno() != Errno::ENOENT => self.failed(dir, path, &error),
            _ => (self.tell)(self.removed, None),
        }
        self.dirs[dir].waiting -= 1;
        self.when_empty(dir);
    }

    fn when_empty(&mut self, dir: usize) {
        let Doomed { waiting, listed, failed, .. } = self.dirs[dir];
        if !listed || waiting > 0 {
            return;
        }
        if failed {
            self.stay(dir);
        } else {
            self.stack.push(Job::Rmdir(dir));
        }
    }

    /// A directory whose content stays: so do those that it is in, without a message of their own.
    fn stay(&mut self, dir: usize) {
        self.free.push(dir);
        if let Some(parent) = self.dirs[dir].parent {
            self.dirs[parent].failed = true;
            self.dirs[parent].waiting -= 1;
            self.when_empty(parent);
        }
    }

    fn leave(&mut self, dir: usize, path: &[u8], result: Result<(), Error>) {
        self.free.push(dir);
        match (self.dirs[dir].parent, result) {
            (Some(parent), result) => self.left(parent, path, result),
            (None, Err(error)) if error.errno() != Errno::ENOENT => {
                self.removed.failures += 1;
                (self.tell)(self.removed, Some((path, &error)));
            }
            (None, _) => (self.tell)(self.removed, None),
        }
    }
}

async fn perform(fs: &Fs, who: &Caller, at: At, job: Job) -> Done {
    match job {
        Job::List(dir, mut stream) => {
            let (items, end) = page(&mut stream).await;
            Done::Listed(dir, stream, items, end)
        }
        Job::Unlink(dir, name) => Done::Unlinked(dir, name, fs.unlink(who, &at).await.map(drop)),
        Job::Rmdir(dir) => Done::Rmdired(dir, fs.rmdir(who, &at).await.map(drop)),
    }
}
