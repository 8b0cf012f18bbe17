//! The one place where a metadata request is sent, and sent again.
//!
//! A request is known by its session and number, which stay the same in every attempt, so that
//! a node that has executed it gives the first answer again. What an answer's class asks for is
//! done here; callers see results, final errors and symbolic links.

use std::future::{Future, ready};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_runtime::time::{self, Time};
use saker_types::policy::{Durability, PolicyId};
use saker_types::wire::*;
use saker_types::{Class, ClusterMap, Errno, Error, Locator, NodeId, Result, ShardNo};

use crate::Caller;
use crate::net::ReplyFrame;
use crate::net::cluster::{ATTEMPT_MAX, Backoff, Cluster, Fail, decode, judged};
use crate::net::groups::full_cred;
use crate::net::seen::{self, Tells};
use crate::net::session::{Known, Ticket};

/// Answers of the kind "ask somebody else" that are followed at once; after that with pauses.
const HOPS_AT_ONCE: u32 = 8;

/// Whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The shard that owns its (first) place.
    Owner,
    /// The same, and "ask the coordinator" is an answer.
    OwnerOnly,
    /// The coordinator.
    Coordinator,
    /// This shard, whatever the place.
    Shard(ShardNo),
}

/// A request with a context and up to two places.
pub(crate) trait Routed: Message {
    /// Its context.
    fn ctx(&mut self) -> &mut Ctx;
    /// The place that it is routed by. What has none goes to the coordinator.
    fn place(&mut self) -> Option<&mut At>;
    /// The other place, of rename and link.
    fn other_place(&mut self) -> Option<&mut At> {
        None
    }
    /// Does it change metadata?
    fn mutates(&self, op: Op) -> bool {
        op.mutates()
    }
}

macro_rules! routed {
    ($($name:ident),*) => { $(
        impl Routed for $name {
            fn ctx(&mut self) -> &mut Ctx { &mut self.ctx }
            fn place(&mut self) -> Option<&mut At> { Some(&mut self.at) }
        }
    )* };
    (without place: $($name:ident),*) => { $(
        impl Routed for $name {
            fn ctx(&mut self) -> &mut Ctx { &mut self.ctx }
            fn place(&mut self) -> Option<&mut At> { None }
        }
    )* };
    ($($name:ident: $from:ident, $to:ident),*) => { $(
        impl Routed for $name {
            fn ctx(&mut self) -> &mut Ctx { &mut self.ctx }
            fn place(&mut self) -> Option<&mut At> { Some(&mut self.$from) }
            fn other_place(&mut self) -> Option<&mut At> { Some(&mut self.$to) }
        }
    )* };
}

routed!(EntryReq, SetattrReq, CreateReq, RemoveReq, ReaddirReq, CloseReq, AppendReq, XattrReq);
routed!(AccessReq, LockReq, SetPolicyReq, LoadReq);
routed!(without place: HoldReq, ReleaseReq, StageReq, MergeReq);
routed!(RenameReq: from, to, LinkReq: from, to);

impl Routed for OpenReq {
    fn ctx(&mut self) -> &mut Ctx {
        &mut self.ctx
    }
    fn place(&mut self) -> Option<&mut At> {
        Some(&mut self.at)
    }
    fn mutates(&self, _: Op) -> bool {
        self.truncate
    }
}

/// What the loop knows between attempts.
struct Progress {
    to: To,
    ticket: Option<Ticket>,
    /// An earlier attempt may have been executed under the ticket's session.
    maybe_done: bool,
    hops: u32,
    /// A hold that stood in the way was released, as far as that may be.
    released: bool,
    backoff: Backoff,
}

/// What to do after an attempt failed.
enum Next {
    AtOnce,
    /// The same, as another request: what was answered is final for this one.
    Anew,
    AfterPause,
    GiveUp(Error),
}

impl Cluster {
    /// Asks for `op` on behalf of `who` until there is an answer. Places in `request` are
    /// updated where inodes were found to have moved.
    pub(crate) async fn ask<R: Routed, A: Tells>(
        &self,
        who: &Caller,
        op: Op,
        to: To,
        request: &mut R,
    ) -> Result<A> {
        self.ask_until(who, op, to, request, self.deadline()).await
    }

    /// As [`Cluster::ask`], up to a deadline.
    pub(crate) async fn ask_until<R: Routed, A: Tells>(
        &self,
        who: &Caller,
        op: Op,
        to: To,
        request: &mut R,
        deadline: Time,
    ) -> Result<A> {
        self.ask_while(who, op, to, request, deadline, || ready(Ok(Time::MAX))).await
    }

    /// The same, as long as `may_send` says until when an attempt may last.
    ///
    /// # Errors
    /// Also its.
    pub(crate) async fn ask_while<R: Routed, A: Tells, F: Future<Output = Result<Time>>>(
        &self,
        who: &Caller,
        op: Op,
        to: To,
        request: &mut R,
        deadline: Time,
        may_send: impl Fn() -> F,
    ) -> Result<A> {
        let trace = self.trace();
        request.ctx().cred = who.cred();
        let ticket = if request.mutates(op) { Some(self.begin(deadline).await?) } else { None };
        let backoff = Backoff::until(deadline);
        let mut state =
            Progress { to, ticket, maybe_done: false, hops: 0, released: false, backoff };
        loop {
            let routes = self.routes();
            let node = node_of(state.to, &routes.map, request.place());
            let allowed = may_send().await?;
            let asked = time::now();
            let until = deadline.min(asked + ATTEMPT_MAX).min(allowed);
            if let Some(ticket) = &state.ticket
                && ticket.session.standing(node, asked).1 == Known::Once
                && !state.maybe_done
            {
                // Were it to end there meanwhile, the outcome would be unknown.
                self.sessions.lost(&ticket.session);
                state.ticket = None;
                state.ticket = Some(self.begin(deadline).await?);
            }
            let ctx = request.ctx();
            ctx.attempt += 1;
            ctx.map_version = routes.map.version;
            ctx.wait_ms = Cluster::wait_ms(until);
            match who.as_holder {
                Some(as_holder) => (ctx.holder, ctx.hold) = as_holder,
                None => ctx.holder = self.holds.holder_if_any(),
            }
            (ctx.now_ns, ctx.seen_ns) = (seen::now(), self.seen.newest_ns());
            if let Some(ticket) = &state.ticket {
                let (ack, known) = ticket.session.standing(node, asked);
                (ctx.session, ctx.seq, ctx.ack) = (ticket.session.id, ticket.seq, ack);
                if known == Known::No {
                    self.open_session(&ticket.session, node, deadline).await?;
                }
            }
            if self.holds.is_any() && state.ticket.is_some() {
                request.place().into_iter().for_each(|at| self.holds.uses(at));
                request.other_place().into_iter().for_each(|at| self.holds.uses(at));
            }
            let body = Bytes::from(request.encode_to_vec());
            let sent = self.send_for_reply(&routes, node, op, trace, body, Bytes::new(), until);
            let replied = sent.await;
            if let Ok(reply) = &replied {
                tell_lessee(who, request, reply);
                self.heard_of_map(reply.map_version.into(), &routes);
            }
            let sent = judged(op, replied);
            if let Some(ticket) = &mut state.ticket
                && !matches!(sent, Err(Fail::Call(_)))
            {
                ticket.session.heard(node, asked);
                ticket.answer_bytes = sent.as_ref().map_or(0, |reply| reply.body.len());
            }
            let fail = match sent {
                Ok(reply) => {
                    let reply: A = decode(op, reply.body)?;
                    self.seen.see(reply.changed_ns());
                    return Ok(reply);
                }
                Err(fail) => fail,
            };
            tracing::debug!(trace, op = op.name(), %node, "{fail}");
            let next = match &fail {
                Fail::Call(error) => {
                    state.maybe_done |= error.outcome_unknown();
                    Next::AfterPause
                }
                Fail::Answer(error) => {
                    if error.is(Class::RefreshMap) {
                        self.refresh_map(&routes).await;
                    }
                    match error.is(Class::NeedsHold) {
                        true => self.take_hold(request, &mut state, error, asked).await,
                        false => self.next(who, op, request, &mut state, error).await,
                    }
                }
            };
            match next {
                Next::AtOnce => {}
                Next::Anew => {
                    if state.ticket.take().is_some() {
                        state.ticket = Some(self.begin(deadline).await?);
                    }
                }
                Next::AfterPause => {
                    self.pause(&mut state.backoff, node, op, &routes, &fail).await?;
                }
                Next::GiveUp(error) => return Err(error),
            }
        }
    }

    /// Numbers a mutation, when there is room for one more.
    async fn begin(&self, deadline: Time) -> Result<Ticket> {
        loop {
            if let Some(ticket) = self.sessions.begin() {
                return Ok(ticket);
            }
            let now = time::now();
            if now >= deadline {
                let text = "too many operations wait for nodes that do not answer";
                return Err(Error::new(Errno::ETIMEDOUT).with_text(text));
            }
            self.net.sleep_until(now + Duration::from_millis(1)).await;
        }
    }

    /// Does what the class of an error asks for.
    async fn next<R: Routed>(
        &self,
        who: &Caller,
        op: Op,
        request: &mut R,
        state: &mut Progress,
        error: &Error,
    ) -> Next {
        let hop = Progress::hop;
        match Class::try_from(error.class).unwrap_or(Class::Fatal) {
            Class::Retry | Class::RefreshMap => Next::AfterPause,
            Class::Moved => match error.moved.as_deref() {
                Some(moved) if follow(request, moved) => hop(state),
                _ => Next::AfterPause,
            },
            Class::UseCoordinator if state.to == To::Owner => {
                state.to = To::Coordinator;
                hop(state)
            }
            // It is no directory, and nobody else has policies.
            Class::UseOwner if op == Op::SetPolicy => Next::GiveUp(Error::new(error.errno())),
            Class::UseOwner if state.to == To::Coordinator => {
                state.to = To::Owner;
                hop(state)
            }
            Class::UseCoordinator if state.to == To::OwnerOnly => Next::GiveUp(error.clone()),
            Class::NeedGroups if request.ctx().cred.groups_are_unread() => {
                request.ctx().cred = full_cred(who);
                Next::AtOnce
            }
            Class::SessionLost => {
                let Some(ticket) = state.ticket.take() else { return Next::AfterPause };
                self.sessions.lost(&ticket.session);
                if state.maybe_done {
                    let text = "a node lost this client's session; the outcome is unknown";
                    return Next::GiveUp(Error::new(Errno::EIO).with_text(text));
                }
                match self.begin(state.backoff.deadline).await {
                    Ok(ticket) => state.ticket = Some(ticket),
                    Err(error) => return Next::GiveUp(error),
                }
                hop(state)
            }
            Class::UseCoordinator | Class::UseOwner => Next::AfterPause,
            Class::Final
                if may_take_over(who, error)
                    && !is_about_root(op, request, error)
                    && self.holds.may_ask(error.policy) =>
            {
                // Whoever serves the subtree finds out if its holder is dead.
                Next::GiveUp(Error { class: Class::NeedsHold.into(), ..error.clone() })
            }
            Class::Final if is_held(op, error) && !state.released => {
                state.released = true;
                if changes_root(op) {
                    // It may be this client itself that holds the subtree.
                    self.release_all().await;
                }
                match self.end_lapsed(error).await {
                    Ok(()) => Next::Anew,
                    Err(error) => Next::GiveUp(error),
                }
            }
            Class::Final
            | Class::Symlink
            | Class::NeedGroups
            | Class::Fatal
            | Class::Elsewhere
            | Class::NeedsHold => Next::GiveUp(error.clone()),
        }
    }

    /// The subtree must be held. If its policy is decoupled, that is its namespace's business.
    async fn take_hold<R: Routed>(
        &self,
        request: &mut R,
        state: &mut Progress,
        error: &Error,
        asked: Time,
    ) -> Next {
        let policy = error.policy;
        if PolicyId(policy).is_decoupled() {
            return Next::GiveUp(error.clone());
        }
        match self.hold_for(policy, asked, state.backoff.deadline).await {
            Ok(()) => {
                let second = error.is_about_second().then(|| request.other_place()).flatten();
                if let Some(at) = match second {
                    None => request.place(),
                    second => second,
                } {
                    self.holds.learn_place(policy, at, error.component);
                }
                state.hop()
            }
            // The directory has got another policy meanwhile.
            Err(error) if error.errno() == Errno::ESTALE => Next::AfterPause,
            Err(error) => Next::GiveUp(error),
        }
    }
}

impl Progress {
    /// Again, at once for some times.
    fn hop(&mut self) -> Next {
        self.hops += 1;
        if self.hops <= HOPS_AT_ONCE { Next::AtOnce } else { Next::AfterPause }
    }
}

/// Was it refused because somebody holds a subtree? What was done in a decoupled one is lost with its hold.
fn is_held(op: Op, error: &Error) -> bool {
    let is_about_hold = matches!(op, Op::Hold | Op::Release);
    let policy = PolicyId(error.policy);
    error.errno() == Errno::EBUSY && policy.is_some() && !policy.is_decoupled() && !is_about_hold
}

/// Was it refused because somebody holds a decoupled subtree, whose hold another client may take over when
/// that is dead?
fn may_take_over(who: &Caller, error: &Error) -> bool {
    let policy = PolicyId(error.policy);
    error.errno() == Errno::EBUSY
        && policy.is_decoupled()
        && policy.durability() == Durability::Global
        && who.as_holder.is_none()
}

/// May it be refused because somebody holds the subtree below a directory that it changes?
fn changes_root(op: Op) -> bool {
    matches!(op, Op::Rmdir | Op::Rename | Op::SetPolicy)
}

/// Was it refused for the name of the directory that a policy is of, and not for something below it?
fn is_about_root<R: Routed>(op: Op, request: &mut R, error: &Error) -> bool {
    let is_below = |at: &mut At| at.anchor.policy == error.policy;
    changes_root(op)
        && error.component.is_none()
        && !request.place().is_some_and(is_below)
        && !request.other_place().is_some_and(is_below)
}

/// What a reply lends is told to whoever asked for it.
fn tell_lessee(who: &Caller, request: &mut impl Routed, reply: &ReplyFrame) {
    let Some(lessee) = &who.lessee else { return };
    let asks = |at: &At| !at.keep_ms.is_empty();
    let at = match request.other_place() {
        Some(at) if asks(at) => Some(at),
        _ => request.place(),
    };
    let Some(at) = at else { return };
    match KeptDirs::read(&reply.payload, at) {
        Some(dirs) => lessee.lent(&dirs),
        None => tracing::warn!("op {}: the reply lends what was not asked for", reply.op),
    }
}

/// The node that a request goes to.
fn node_of(to: To, map: &ClusterMap, place: Option<&mut At>) -> NodeId {
    match (to, place) {
        (To::Shard(n), _) => NodeId::Shard(n),
        (To::Owner | To::OwnerOnly, Some(place)) => NodeId::Shard(map.shard_for(place)),
        (To::Coordinator, _) | (_, None) => NodeId::Coordinator,
    }
}

/// Goes where an inode has moved: the anchors that are this inode, or, if it is what the path
/// of a single place leads to (a hard link, whose attributes are at its home), that place as a
/// whole. False: the request went there already.
fn follow(request: &mut impl Routed, moved: &Locator) -> bool {
    let update = |at: &mut At| at.anchor.id == moved.id && at.anchor.follow(moved);
    let first = request.place().is_some_and(update);
    if request.other_place().is_some_and(update) || first {
        return true;
    }
    let single = request.other_place().is_none();
    let Some(place) = request.place() else { return false };
    let leads_to_it = single && !place.path.is_empty() && place.anchor.id != moved.id;
    if leads_to_it {
        *place = At::handle(moved.clone());
    }
    leads_to_it
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loc(pid: u64, name: &'static [u8], id: u64) -> Locator {
        Locator::entry(pid, Bytes::from_static(name), id)
    }

    #[test]
    fn anchors_follow_their_inode() {
        let dir = loc(1, b"d", 5);
        let mut request = RenameReq {
            from: At::child(dir.clone(), b"a"),
            to: At::child(dir, b"b"),
            ..RenameReq::default()
        };
        assert!(!follow(&mut request, &loc(2, b"e", 6)));
        assert!(follow(&mut request, &loc(2, b"e", 5)));
        assert_eq!(request.from, At::child(loc(2, b"e", 5), b"a"));
        assert_eq!(request.to, At::child(loc(2, b"e", 5), b"b"));
        assert!(!follow(&mut request, &loc(2, b"e", 5)), "it was there already");
    }

    #[test]
    fn a_name_of_a_hard_link_leads_to_its_home() {
        let at = At::child(loc(1, b"d", 5), b"link");
        let mut request = OpenReq { at, ..OpenReq::default() };
        let home = Locator { id: 9, home_slot: Some(3), ..Locator::default() };
        assert!(follow(&mut request, &home));
        assert_eq!(request.at, At::handle(home.clone()));
        assert!(!follow(&mut request, &home), "it was there already");
    }

    #[test]
    fn only_a_truncating_open_is_numbered() {
        assert!(!OpenReq::default().mutates(Op::Open));
        assert!(OpenReq { truncate: true, ..OpenReq::default() }.mutates(Op::Open));
        assert!(RemoveReq::default().mutates(Op::Unlink));
        assert!(!EntryReq::default().mutates(Op::Lookup));
        assert!(EntryReq::default().mutates(Op::Spill));
    }
}
