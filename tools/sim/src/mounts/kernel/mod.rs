//! The kernel's half of a FUSE mount: a model of `fs/namei.c`, `fs/dcache.c` and `fs/fuse/` of
//! Linux 6.18, as far as it decides which requests a mount gets, and what programs see.
//!
//! [`dcache`] has the names and inodes that the kernel holds, [`walk`] follows paths, [`calls`] are
//! the syscalls, [`data`] the page cache. A syscall is a future; it can be overtaken by others of
//! the same mount at each request, and each request and reply takes a while of its own, so that
//! replies overtake each other.
//!
//! Not modelled: what cannot be seen from here (RCU walks, memory), negative entries that may be
//! kept, maps, direct I/O, `O_APPEND`, locks of files, permissions (all is root's). `d_splice_alias`
//! gets the locks that it tries.

mod calls;
mod data;
mod dcache;
mod lock;
mod walk;
pub mod wire;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_mount::hint::{Hint, Lookup};
use saker_rpc::Transport as _;
use saker_runtime::rand::Rng;
use saker_runtime::task::Spawner;
use saker_runtime::time;
use saker_types::Errno;

use crate::world::transport::WorldTransport;
pub use calls::{KernelFile, LOST, REFUSED};
use dcache::{Dentries, Ref};
use lock::KernelLock;
pub use walk::PathArg;
use wire::WireBody;

/// Of so many hints one is lost, where some are.
const HINTS_LOST: u64 = 8;

/// An answer: an errno or 0, and what follows the header; `None`: none is expected.
pub type KernelAnswer = Pin<Box<dyn Future<Output = Option<(u16, Bytes)>>>>;

/// What answers the requests of a mount.
pub trait RequestHandler {
    /// Answers one, in the kernel's form.
    fn answer(&self, request: Bytes) -> KernelAnswer;
}

/// What the kernel is doing, by the request that it sends: what BPF shows of a real one.
#[derive(Clone, Default)]
pub struct SimHints(Arc<Mutex<HashMap<u64, Hint>>>);

impl SimHints {
    fn put(&self, unique: u64, hint: Hint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(unique, hint);
    }

    fn end(&self, unique: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&unique);
    }
}

impl saker_mount::hint::Hints for SimHints {
    fn of(&self, lookup: Lookup<'_>) -> Option<Hint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&lookup.unique).copied()
    }
}

/// One machine's kernel, as far as one mount is concerned.
#[derive(Clone)]
pub struct Kernel(Rc<Inner>);

struct Inner {
    served: Box<dyn RequestHandler>,
    hints: SimHints,
    sender: WorldTransport,
    spawner: Spawner,
    rng: RefCell<Rng>,
    unique: Cell<u64>,
    /// FUSE's `fc->attr_version`.
    attr_version: Cell<u64>,
    dentries: RefCell<Dentries>,
    /// `s_vfs_rename_mutex`.
    renames: KernelLock,
    /// Names that are being looked up, by directory's dentry.
    looking: RefCell<BTreeMap<(usize, Vec<u8>), KernelLock>>,
    /// What a thread's open(2) has just made: dentry, handle and flags.
    created: RefCell<BTreeMap<u32, (usize, u64, u32)>>,
    log: Rc<RefCell<Vec<String>>>,
    readable: bool,
    number: usize,
    hints_lost: bool,
}

/// How a kernel is made.
pub struct KernelSetup {
    pub number: usize,
    pub served: Box<dyn RequestHandler>,
    pub hints: SimHints,
    pub sender: WorldTransport,
    pub spawner: Spawner,
    pub seed: u64,
    /// Now and then there is no hint.
    pub hints_lost: bool,
    pub log: Rc<RefCell<Vec<String>>>,
    pub readable: bool,
}

impl Kernel {
    /// A kernel that holds the root.
    pub fn new(setup: KernelSetup) -> Kernel {
        let KernelSetup { number, served, hints, sender, spawner, seed, hints_lost, log, readable } =
            setup;
        Kernel(Rc::new(Inner {
            served,
            hints,
            sender,
            spawner,
            rng: RefCell::new(Rng::seeded(seed)),
            unique: Cell::new(2),
            attr_version: Cell::new(1),
            dentries: RefCell::new(Dentries::new()),
            renames: KernelLock::default(),
            looking: RefCell::default(),
            created: RefCell::default(),
            log,
            readable,
            number,
            hints_lost,
        }))
    }

    fn below(&self, bound: u64) -> u64 {
        self.0.rng.borrow_mut().below(bound)
    }

    /// Waits for up to so many microseconds.
    async fn pause(&self, up_to_us: u64) {
        let us = self.below(up_to_us);
        self.0.sender.sleep(Duration::from_micros(us)).await;
    }

    /// The time that a message takes between program and mount: mostly short.
    async fn hop(&self) {
        let up_to_us = match self.below(12) {
            0 => 3_000,
            1 | 2 => 400,
            _ => 40,
        };
        self.pause(up_to_us).await;
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.0.readable {
            let line = format!("{:?} m{} {}", time::now(), self.0.number, text());
            self.0.log.borrow_mut().push(line);
        }
    }

    fn unique(&self) -> u64 {
        let unique = self.0.unique.get();
        self.0.unique.set(unique + 2);
        unique
    }

    fn version(&self) -> u64 {
        self.0.attr_version.get()
    }

    fn next_version(&self) -> u64 {
        self.0.attr_version.set(self.version() + 1);
        self.version()
    }

    /// A request and its answer.
    async fn ask(
        &self,
        tid: u32,
        opcode: u32,
        nodeid: u64,
        body: &WireBody,
        hint: Option<Hint>,
    ) -> Result<Bytes, Errno> {
        let unique = self.unique();
        let bytes = wire::request(opcode, unique, nodeid, tid, body);
        let hint = hint.filter(|_| !self.0.hints_lost || self.below(HINTS_LOST) > 0);
        if let Some(hint) = hint {
            self.0.hints.put(unique, hint);
        }
        self.note(|| {
            let text = String::from_utf8_lossy(&body.0);
            let text: String = text.chars().filter(|c| c.is_ascii_graphic()).collect();
            format!("t{tid} #{unique} op {opcode} node {nodeid:#x} {text:?} {hint:?}")
        });
        self.hop().await;
        let answer = self.0.served.answer(bytes.into()).await;
        self.0.hints.end(unique);
        self.hop().await;
        let (errno, body) = answer.unwrap_or_default();
        self.note(|| match (errno, opcode) {
            (0, wire::op::LOOKUP | wire::op::MKDIR | wire::op::CREATE) => {
                let entry = wire::entry(&body).unwrap_or_default();
                format!("t{tid} #{unique} ok {entry:x?}")
            }
            (0, _) => format!("t{tid} #{unique} ok {} bytes", body.len()),
            _ => format!("t{tid} #{unique} {:?}", Errno(errno)),
        });
        if errno == 0 { Ok(body) } else { Err(Errno(errno)) }
    }

    /// A request that nobody waits for.
    fn tell(&self, opcode: u32, nodeid: u64, body: WireBody) {
        let (kernel, unique) = (self.clone(), self.unique());
        let bytes = wire::request(opcode, unique, nodeid, 0, &body);
        self.note(|| format!("#{unique} op {opcode} node {nodeid:#x}"));
        self.0.spawner.spawn(async move {
            kernel.hop().await;
            kernel.0.served.answer(bytes.into()).await;
        });
    }

    /// The mount says that it holds other data, or other attributes, than this kernel has.
    pub fn heed(&self, node: u64, pages: bool) {
        self.note(|| format!("told to drop node {node:#x}, pages: {pages}"));
        self.inval(node, pages);
    }

    /// The root directory.
    pub fn root(&self) -> Ref {
        self.dget(dcache::ROOT)
    }

    /// Memory is short: what nobody uses goes.
    pub fn shrink(&self) {
        self.prune();
    }
}
