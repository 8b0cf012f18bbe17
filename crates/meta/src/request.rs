//! A request on its way through a shard, and the three ways in which an attempt at it can stop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use bytes::Bytes;
use prost::Message;
use saker_rpc::hello::{PeerHello, RoleKind};
use saker_rpc::hub::Asker;
use saker_rpc::node::ReplyTo;
use saker_runtime::time::Time;
use saker_types::placement::Slot;
use saker_types::wire::*;
use saker_types::{Class, Errno, Error, InodeId, NodeId, TxnId};

/// A decoded request.
pub struct Rq {
    /// Whom to answer (a retry of a running mutation adds others).
    pub from: ReplyTo,
    /// Where it comes from.
    pub ip: Option<IpAddr>,
    /// What it asks.
    pub msg: Msg,
    /// The frame's body as it came, for forwarding.
    pub raw: Bytes,
    /// The slot by which it was routed, if it is about a name or handle; its result goes with that.
    pub slot: Option<Slot>,
    /// How far it has come in.
    pub stage: Cell<Stage>,
    /// When it is answered with "try again" if it still waits.
    pub deadline: Time,
    /// For whom times are told.
    pub asker: Asker,
    /// What fetches sent after this request began to wait have found (entries that are no
    /// directories are not kept in the replica).
    pub found: RefCell<Vec<OwnerAnswer>>,
    /// A directory to list, and the transactions that held entries of it then.
    pub met: RefCell<Option<(InodeId, BTreeSet<TxnId>)>>,
    /// Directories on the way, from the anchor on, on whose names a lease was asked for and given.
    pub kept: RefCell<Vec<KeptDir>>,
    /// Policy in force where the request does something; 0: none, or not known yet.
    pub policy: Cell<u64>,
}

/// How far a request has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Whether it is this shard's was not looked at.
    New,
    /// It is not by the map that there is, and its sender knows a newer one.
    AwaitsMap,
    /// It is; a mutation is noted in its session.
    Admitted,
}

/// Answer of the owner about an entry.
#[derive(Clone)]
pub struct OwnerAnswer {
    /// The entry asked about.
    pub key: EntryKey,
    /// The anchor id asked about, or 0.
    pub anchor_id: InodeId,
    /// What the owner said.
    pub dentry: Dentry,
    /// Invalidations that the replica had served then: after another one it is asked again.
    pub invalidations: u64,
}

/// Why an attempt did not end in an answer.
pub enum Stop {
    /// It failed: this is the answer.
    Fail(Error),
    /// It must run again from the root when this is over. It has changed nothing, but that a lock of
    /// flock(2) was given up.
    Wait(Wait),
    /// It goes on as a task, whose output is the answer.
    Task(Task),
}

/// The rest of an operation that takes more than one step.
pub type Task = Pin<Box<dyn Future<Output = Result<Bytes, Error>>>>;

/// Outcome of an attempt.
pub type Attempt<T> = Result<T, Stop>;

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The owner's answer about an entry (and, with an id, about an anchor that was there).
    Fetch(EntryKey, InodeId),
    /// The outcome of the transaction that locked a row.
    Txn(TxnId),
    /// The end of an operation that keeps the inode busy.
    Busy(InodeId),
    /// The end of a lock on the file.
    Lock(InodeId),
    /// The end of a freeze of a directory's changes (rule 20).
    Frozen(InodeId),
    /// The newest cluster map.
    Map,
    /// A row that the engine loads.
    Row(Bytes),
    /// What the coordinator says of a policy.
    Policy(u64),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Fail(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Fail(errno.into())
    }
}

macro_rules! messages {
    ($($variant:ident($message:ty): $($op:ident)|+;)*) => {
        /// Body of a request, by operation.
        pub enum Msg { $(#[allow(missing_docs)] $variant($message),)* }

        impl Msg {
            /// Decodes the body of an operation that a shard serves.
            pub fn decode(op: Op, body: &Bytes) -> Result<Msg, Error> {
                let bad = |e: prost::DecodeError| Error::new(Errno::EPROTO).with_text(e.to_string());
                Ok(match op {
                    $($(Op::$op)|+ => Msg::$variant(<$message>::decode(body.clone()).map_err(bad)?),)*
                    _ => {
                        let text = format!("{} is not for a shard", op.name());
                        return Err(Error::new(Errno::EPROTO).with_text(text));
                    }
                })
            }
        }
    };
}

messages! {
    Entry(EntryReq): Lookup | Getattr | Readlink | Spill;
    Setattr(SetattrReq): Setattr;
    Create(CreateReq): Create | Mkdir | Symlink | Mknod | Tmpfile;
    Open(OpenReq): Open;
    Remove(RemoveReq): Unlink;
    Rename(RenameReq): Rename;
    Link(LinkReq): Link;
    Readdir(ReaddirReq): Readdir;
    Close(CloseReq): Close | Fsync;
    Append(AppendReq): Append;
    Xattr(XattrReq): Getxattr | Setxattr | Listxattr | Removexattr;
    Access(AccessReq): Access;
    Lock(LockReq): Getlk | Setlk;
    RenewLocks(RenewLocksReq): RenewLocks;
    Renew(RenewReq): Renew;
    Session(SessionReq): OpenSession | CloseSession;
    Empty(Empty): Statfs | SyncJournal;
    Fetch(FetchReq): Fetch;
    Collect(CollectReq): Collect;
    Invalidate(InvalidateReq): Invalidate;
    Prepare(Box<PrepareReq>): Prepare;
    Decide(DecideReq): Decide;
    Outcome(OutcomeReq): Outcome;
    Scan(ScanReq): Scan;
    Watch(WatchReq): Watch;
    Stage(StageReq): Stage;
    Load(LoadReq): Load;
    CheckMerge(CheckMergeReq): CheckMerge;
    ApplyMerge(ApplyMergeReq): ApplyMerge;
}

impl Msg {
    /// Context and target of an operation on a name or handle.
    pub fn target(&self) -> Option<(&Ctx, &At)> {
        Some(match self {
            Msg::Entry(m) => (&m.ctx, &m.at),
            Msg::Setattr(m) => (&m.ctx, &m.at),
            Msg::Create(m) => (&m.ctx, &m.at),
            Msg::Open(m) => (&m.ctx, &m.at),
            Msg::Remove(m) => (&m.ctx, &m.at),
            Msg::Rename(m) => (&m.ctx, &m.from),
            Msg::Link(m) => (&m.ctx, &m.from),
            Msg::Close(m) => (&m.ctx, &m.at),
            Msg::Append(m) => (&m.ctx, &m.at),
            Msg::Xattr(m) => (&m.ctx, &m.at),
            Msg::Access(m) => (&m.ctx, &m.at),
            Msg::Lock(m) => (&m.ctx, &m.at),
            // Each shard answers for its share, whoever owns the directory's row.
            Msg::Readdir(_) | Msg::Load(_) => return None,
            Msg::Prepare(m) => (&m.ctx, &m.at),
            Msg::Renew(_)
            | Msg::RenewLocks(_)
            | Msg::Session(_)
            | Msg::Empty(_)
            | Msg::Fetch(_)
            | Msg::Collect(_)
            | Msg::Invalidate(_)
            | Msg::Decide(_)
            | Msg::Outcome(_)
            | Msg::Scan(_)
            | Msg::Watch(_)
            | Msg::Stage(_)
            | Msg::CheckMerge(_)
            | Msg::ApplyMerge(_) => return None,
        })
    }

    /// Context of a request about names.
    pub fn ctx(&self) -> Option<&Ctx> {
        match self {
            Msg::Readdir(m) => Some(&m.ctx),
            Msg::Load(m) => Some(&m.ctx),
            msg => msg.target().map(|(ctx, _)| ctx),
        }
    }

    /// Names that become keys as they are, of which path resolution sees nothing: keys have a
    /// bound, above which a table panics.
    pub fn names(&self) -> impl Iterator<Item = &Bytes> {
        let first = self.target().map(|(_, at)| &at.anchor.name);
        let second = match self {
            Msg::Rename(m) => Some(&m.to.anchor.name),
            Msg::Link(m) => Some(&m.to.anchor.name),
            Msg::Readdir(m) => Some(&m.at.anchor.name),
            Msg::Load(m) => Some(&m.at.anchor.name),
            Msg::Fetch(m) => Some(&m.name),
            Msg::Prepare(m) => m.moves_to.as_ref().map(|to| &to.name),
            _ => None,
        };
        let third = match self {
            Msg::Readdir(m) => Some(&m.after_name),
            Msg::Load(m) => Some(&m.after_name),
            Msg::Prepare(m) => m.setattr.as_ref().map(|m| &m.at.anchor.name),
            _ => None,
        };
        [first, second, third].into_iter().flatten()
    }

    /// Whether this peer may ask this. What locks, decides or hides rows is said by members of
    /// the cluster only, and a transaction is spoken of by its driver only: a row locked for
    /// somebody who knows nothing of it would be locked for ever. Peers are believed about who
    /// they are.
    pub fn is_allowed(&self, peer: &PeerHello) -> bool {
        let member = peer.member();
        let is_driver = |driver: u32| member.is_some_and(|node| node.to_u32() == driver);
        match self {
            Msg::Prepare(m) => is_driver(m.driver),
            Msg::Decide(m) => is_driver(m.driver),
            Msg::CheckMerge(_) | Msg::ApplyMerge(_) => member == Some(NodeId::Coordinator),
            Msg::Fetch(_) | Msg::Invalidate(_) | Msg::Outcome(_) => member.is_some(),
            Msg::Collect(_) | Msg::Scan(_) | Msg::Watch(_) => {
                member.is_some() || peer.role == RoleKind::Tool
            }
            _ => true,
        }
    }

    /// Marks a request that was passed on.
    pub fn encode_forwarded(&self) -> Option<Bytes> {
        fn mark<M: Message + Clone>(m: &M, set: impl FnOnce(&mut M)) -> Option<Bytes> {
            let mut m = m.clone();
            set(&mut m);
            Some(m.encode_to_vec().into())
        }
        match self {
            Msg::Entry(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Setattr(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Create(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Open(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Remove(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Rename(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Link(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Close(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Append(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Xattr(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Access(m) => mark(m, |m| m.ctx.forwarded = true),
            Msg::Lock(m) => mark(m, |m| m.ctx.forwarded = true),
            _ => None,
        }
    }
}

impl Rq {
    /// Context of a request of a client, if it changes metadata.
    pub fn mutation(&self) -> Option<&Ctx> {
        match &self.msg {
            Msg::Open(m) if m.truncate => Some(&m.ctx),
            Msg::Prepare(_) => None,
            msg if self.from.op.mutates() => msg.target().map(|(ctx, _)| ctx),
            _ => None,
        }
    }

    /// Does it change something, or is it the first step to that?
    pub fn changes(&self) -> bool {
        match &self.msg {
            Msg::Prepare(_) => true,
            Msg::Open(m) => m.access & saker_types::Access::W.0 != 0 || m.truncate,
            _ => self.mutation().is_some(),
        }
    }

    /// May it be answered before what it has changed, and seen, is durable, where the policy in force says
    /// so? Only what concerns rows of one shard: what another shard makes durable must not depend on it.
    /// So a new directory is durable, and what is in it may be on any shard. A directory may have
    /// a policy of its own, which a path to it does not say.
    pub fn may_delay(&self) -> bool {
        match &self.msg {
            Msg::Readdir(m) => m.at.path.is_empty(),
            _ => matches!(
                self.from.op,
                Op::Lookup
                    | Op::Getattr
                    | Op::Readlink
                    | Op::Access
                    | Op::Open
                    | Op::Create
                    | Op::Symlink
                    | Op::Mknod
                    | Op::Unlink
                    | Op::Setattr
                    | Op::Close
                    | Op::Append
                    | Op::Getxattr
                    | Op::Listxattr
                    | Op::Setxattr
                    | Op::Removexattr
            ),
        }
    }

    /// The same on a private shard ([`crate::private`]), whose only client has all names here: all that
    /// it asks but for what is to be durable. What the private coordinator is told must be.
    pub fn may_delay_in_private(&self) -> bool {
        let is_of_client = self.msg.ctx().is_some() && !matches!(self.msg, Msg::Prepare(_));
        is_of_client && self.from.op != Op::Fsync
    }

    /// The answer at the deadline.
    pub fn too_late(&self) -> Error {
        match &self.msg {
            // It has waited for a map.
            _ if self.stage.get() != Stage::Admitted => {
                Error::of_class(Class::RefreshMap, Errno::EAGAIN)
            }
            // Whoever wants to wait on asks anew: its session's results are not held up.
            Msg::Lock(_) => Errno::EAGAIN.into(),
            _ => Error::retry("waited too long"),
        }
    }

    /// Which of the transactions that hold entries of a directory a listing waits for: those that did
    /// when it came there first. Later ones end after it began, so that it may miss them; if it waited
    /// for them, too, a directory that files are moved into all the time could not be listed.
    pub fn waits_for(&self, dir: InodeId, holding: impl Iterator<Item = TxnId>) -> Option<TxnId> {
        let mut met = self.met.borrow_mut();
        if met.as_ref().is_none_or(|(of, _)| *of != dir) {
            *met = Some((dir, holding.collect()));
            return met.as_ref()?.1.first().copied();
        }
        let (_, first) = met.as_ref()?;
        holding.into_iter().find(|txn| first.contains(txn))
    }
}
