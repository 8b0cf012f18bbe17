//! The shell's sockets: accepts, reads, decodes, calls, writes.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Interest, Poll, Waker};
use saker_runtime::time::{self, Time};

use super::alarms::{Alarm, Alarms};
use super::bounds::{
    Bounds, CONNECTIONS_PER_MEMBER_MAX, Guest, LARGE_FRAME_BYTES, LOOK_EVERY, Usage,
};
use super::conns::{Conn, Conns, Side, TOKEN_LISTENER, TOKEN_WAKER};
use super::peers::{Peers, Pending};
use super::shell::{BATCH_INPUTS_MAX, ShellConfig};
use super::spread::{Inbox, ShellPoll, Spread};
use super::{CallId, ConnId, Input, Outgoing, StateMachine};
use crate::frame::{FRAME_BYTES_MAX, Frame, FrameBounds, FrameKind};
use crate::hello::{self, HELLO_BYTES_MAX, PeerHello, REFUSED_BUSY, Refusal};
use crate::link::{Link, LinkError};
use crate::{CallError, NodeNumber};

/// Bound of a batch, bytes of its frames (one frame more may be taken).
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Each connection gets at least this many requests into a batch before the next one's turn.
const TURN_REQUESTS_MIN: usize = 16;
/// Requests of one connection without a reply; above, it is not read.
const OPEN_REQUESTS_MAX: usize = 16 << 10;
/// Bytes that wait to be written to a connection from which requests come; above, it is not
/// read, so that a peer that asks faster than it reads waits for itself.
const UNREAD_BYTES_MAX: usize = 8 << 20;
/// Requests that wait for the connection to one peer.
const PEER_QUEUE_MAX: usize = 64 << 10;
/// Bound of what waits to be written to, or for, one peer that is called, bytes.
const PEER_QUEUE_BYTES_MAX: usize = 64 << 20;
/// A connection must have said hello by then.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after the system had no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const EVENTS_MAX: usize = 1024;
/// Connections that waited for memory and go on in one turn.
const FED_AT_ONCE: usize = 16;

fn goodbye() -> Frame {
    let empty = bytes::Bytes::new();
    Frame { kind: FrameKind::Goodbye, ..Frame::request(0, 0, empty.clone(), empty) }
}

fn busy() -> Refusal {
    let text = "there are as many connections as may be, and none of them is idle";
    Refusal { status: REFUSED_BUSY, text: text.to_owned() }
}

impl Conn {
    /// Whether it should not be read. Never one whose peer is called: its replies are what the
    /// peer needs to get rid of before it reads on.
    fn is_overfull(&self) -> bool {
        let full = self.open >= OPEN_REQUESTS_MAX || self.link.out.len() > UNREAD_BYTES_MAX;
        (full || self.paused_by_role) && matches!(self.side, Side::Inbound(_))
    }

    /// Whether one that was not read should be read again.
    fn may_go_on(&self) -> bool {
        self.open <= OPEN_REQUESTS_MAX / 2
            && self.link.out.len() <= UNREAD_BYTES_MAX / 2
            && !self.paused_by_role
    }
}

const _: () = {
    assert!(PEER_QUEUE_BYTES_MAX > FRAME_BYTES_MAX);
    assert!(TURN_REQUESTS_MIN <= BATCH_INPUTS_MAX);
};

pub(super) struct Net {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    /// None: connections come by the inbox only.
    listener: Option<mio::net::TcpListener>,
    /// Where accepted connections go, perhaps to this shell.
    spread: Spread,
    inbox: Arc<Inbox>,
    config: ShellConfig,
    own_peer: Rc<PeerHello>,
    conns: Conns,
    /// Connections that may have input, read or unread.
    ready: VecDeque<ConnId>,
    /// Connections with something to write.
    dirty: Vec<ConnId>,
    peers: Peers,
    alarms: Alarms,
    usage: Usage,
    /// Connections that wait for memory.
    starved: VecDeque<ConnId>,
    /// An alarm to look at connections is set.
    looks: bool,
    /// For the role's next step.
    pub inputs: VecDeque<Input>,
}

impl Net {
    pub fn new(
        place: ShellPoll,
        listener: Option<std::net::TcpListener>,
        config: ShellConfig,
    ) -> io::Result<Net> {
        let ShellPoll { poll, waker, inbox, spread } = place;
        let mut listener = match listener {
            Some(listener) => {
                listener.set_nonblocking(true)?;
                Some(mio::net::TcpListener::from_std(listener))
            }
            None => None,
        };
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, TOKEN_LISTENER, Interest::READABLE)?;
        }
        let own_peer = Rc::new(config.own_peer()?);
        Ok(Net {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            waker,
            listener,
            spread,
            inbox,
            config,
            own_peer,
            conns: Conns::default(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            peers: Peers::default(),
            alarms: Alarms::default(),
            usage: Usage::default(),
            starved: VecDeque::new(),
            looks: false,
            inputs: VecDeque::new(),
        })
    }

    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    pub fn set_hello(&mut self, hello: hello::Hello) {
        self.config.hello = hello;
    }

    /// The role wants a connection to be read no more, or again.
    pub fn set_paused(&mut self, id: ConnId, paused: bool) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.paused_by_role = paused;
        if conn.paused && conn.may_go_on() {
            conn.paused = false;
            self.mark_ready(id);
        }
    }

    /// Whether a step has something to do without waiting.
    pub fn has_input(&self) -> bool {
        !self.inputs.is_empty() || !self.ready.is_empty()
    }

    pub fn next_alarm(&self) -> Option<Time> {
        self.alarms.next()
    }

    /// Waits for sockets, at most for `timeout`, and notes what they have.
    pub fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in events.iter() {
            match event.token() {
                TOKEN_LISTENER => self.accept(),
                TOKEN_WAKER => self.inbox.take().into_iter().for_each(|s| self.admit(s)),
                token => {
                    let conn = Conns::index_of_token(token).and_then(|s| self.conns.at(s));
                    if let Some(conn) = conn {
                        let id = conn.id;
                        let readable = conn.link.note(event);
                        self.on_event(id, readable);
                    }
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn on_event(&mut self, id: ConnId, readable: bool) {
        let Some(conn) = self.conns.get(id) else { return };
        if let Side::Dialing(node) = conn.side {
            match conn.link.connected() {
                Ok(false) => return,
                Ok(true) => {
                    conn.side = Side::Shaking(node);
                    conn.link.out.push(&self.config.hello.to_frame());
                }
                Err(error) => return self.close(id, &error.into()),
            }
        }
        let (read, write) = (readable && !conn.paused, !conn.link.out.is_empty());
        if read {
            self.mark_ready(id);
        }
        if write {
            self.mark_dirty(id);
        }
    }

    fn mark_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && !std::mem::replace(&mut conn.in_ready, true)
        {
            self.ready.push_back(id);
        }
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && !std::mem::replace(&mut conn.in_dirty, true)
        {
            self.dirty.push(id);
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, _)) => self.spread.place(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // An aborted connection, or no room. The edge is lost: look again later.
                    tracing::warn!("accept: {error}");
                    return self.alarms.set(time::now() + ACCEPT_PAUSE, Alarm::Accept);
                }
            }
        }
    }

    /// Takes over an accepted connection.
    fn admit(&mut self, stream: mio::net::TcpStream) {
        if self.usage.greetings >= self.config.bounds.greetings_max {
            self.end_longest(|conn| conn.guest == Some(Guest::Greeting));
        }
        let registry = self.poll.registry();
        match self.conns.add(Side::Greeting, |token| Link::accepted(stream, registry, token)) {
            Ok(id) => {
                self.enter(id, Guest::Greeting);
                self.alarms.set(time::now() + HELLO_TIME_MAX, Alarm::Hello(id));
                self.look_later();
            }
            Err(error) => self.refused(None, &error.to_string()),
        }
        self.inbox.set_open(self.conns.len());
    }

    /// An accepted connection counts as `guest` from now on.
    fn enter(&mut self, id: ConnId, guest: Guest) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.ip = conn.ip.or_else(|| conn.link.peer_addr().map(|addr| addr.ip().to_canonical()));
        if let Some(before) = conn.guest.replace(guest) {
            self.usage.count(before, conn.ip, -1);
        }
        self.usage.count(guest, conn.ip, 1);
        let bounds = match guest {
            Guest::Greeting => FrameBounds { body_max: HELLO_BYTES_MAX, payload_max: 0 },
            Guest::Client | Guest::Member(_) => {
                let payload_max = self.config.bounds.payload_bytes_max;
                FrameBounds { payload_max, ..FrameBounds::default() }
            }
        };
        conn.link.set_bounds(bounds);
    }

    /// Counts a connection that is not let in, and says so now and then.
    fn refused(&mut self, from: Option<SocketAddr>, why: &str) {
        self.config.metrics.refused.inc();
        if let Some(others) = self.usage.refusals.tell() {
            tracing::warn!("connection {from:?} refused: {why} ({others} others before)");
        }
    }

    /// Ends the connection that has been idle for longest, of these.
    fn end_longest(&mut self, of_these: impl Fn(&Conn) -> bool) -> bool {
        let these = self.conns.all().filter(|conn| of_these(conn));
        let Some(id) = these.min_by_key(|conn| conn.used).map(|conn| conn.id) else { return false };
        self.end(id, "another needs its place");
        true
    }

    /// Ends a connection that is in the way of others. A peer that reads it knows that nothing
    /// which it has not sent yet will be done.
    fn end(&mut self, id: ConnId, why: &str) {
        self.config.metrics.ended.inc();
        let Some(conn) = self.conns.get(id) else { return };
        if let Some(others) = self.usage.ends.tell() {
            let from = conn.link.peer_addr();
            tracing::info!("connection {from:?} ended: {why} ({others} others before)");
        }
        if matches!(conn.side, Side::Inbound(_)) {
            conn.link.out.push(&goodbye());
            // What it does not take at once it need not know.
            let _ = conn.link.flush();
        }
        self.drop_conn(id, CallError::Disconnected);
    }

    /// Makes room for one more client from this address; false: nobody is idle.
    fn make_room(&mut self, ip: Option<IpAddr>, now: Time) -> bool {
        let Bounds { clients_max, clients_per_address_max, idle_min, .. } = self.config.bounds;
        let whose = if self.usage.clients_of(ip) >= clients_per_address_max {
            ip
        } else if self.usage.clients >= clients_max {
            // A flood makes room itself.
            self.usage.largest()
        } else {
            return true;
        };
        self.end_longest(|conn| {
            let idle = conn.is_idle() && now.since(conn.used) >= idle_min;
            conn.guest == Some(Guest::Client) && conn.ip == whose && idle
        })
    }

    /// What the peer counts as, if it may be let in.
    fn guest_of(&mut self, id: ConnId, peer: &PeerHello) -> Option<Guest> {
        let ip = self.conns.get(id)?.ip;
        if let Some(node) =
            peer.member().filter(|_| self.usage.members < self.config.bounds.members_max)
        {
            let member = Guest::Member(node);
            let same = self.conns.all().filter(|conn| conn.guest == Some(member)).count();
            if same < CONNECTIONS_PER_MEMBER_MAX
                || self.end_longest(|conn| conn.guest == Some(member) && conn.is_idle())
            {
                return Some(member);
            }
        }
        self.make_room(ip, time::now()).then_some(Guest::Client)
    }

    /// Takes what has arrived into the batch, within its bounds, in turns over connections.
    pub fn receive(&mut self, now: Time) {
        self.receive_ready(now);
        self.feed(now);
    }

    fn receive_ready(&mut self, now: Time) {
        let mut bytes = 0;
        let inputs_max = self.config.batch_inputs_max.max(1);
        let share = inputs_max / self.ready.len().max(1);
        let share = share.max(TURN_REQUESTS_MIN);
        while self.inputs.len() < inputs_max && bytes < BATCH_BYTES_MAX {
            let Some(id) = self.ready.pop_front() else { return };
            match self.receive_from(id, share.min(inputs_max - self.inputs.len()), &mut bytes, now)
            {
                Ok(true) => self.ready.push_back(id),
                Ok(false) => {
                    if let Some(conn) = self.conns.get(id) {
                        conn.in_ready = false;
                    }
                }
                Err(error) => self.close(id, &error),
            }
        }
    }

    /// Lets connections that wait for memory read on, when there is some.
    fn feed(&mut self, now: Time) {
        for _ in 0..self.starved.len().min(FED_AT_ONCE) {
            let Some(id) = self.starved.pop_front() else { return };
            let Some(conn) = self.conns.get(id) else { continue };
            let bytes = conn.link.frame_bytes();
            if self.usage.grant(&self.config.bounds, conn.ip, bytes) {
                (conn.starved, conn.granted) = (false, bytes);
                // That it had to wait is not its fault.
                conn.frame_since = Some((now, now));
                self.mark_ready(id);
            } else {
                self.starved.push_back(id);
            }
        }
    }

    /// Takes up to `share` frames. Returns whether there may be more.
    fn receive_from(
        &mut self,
        id: ConnId,
        share: usize,
        bytes: &mut usize,
        now: Time,
    ) -> Result<bool, LinkError> {
        for _ in 0..share {
            let Some(conn) = self.conns.get(id) else { return Ok(false) };
            if conn.is_overfull() {
                conn.paused = true;
                return Ok(false);
            }
            let Some(frame) = self.read(id, now)? else { return Ok(false) };
            *bytes += frame.wire_len();
            if *bytes > BATCH_BYTES_MAX {
                self.take(id, frame)?;
                return Ok(true);
            }
            self.take(id, frame)?;
        }
        Ok(true)
    }

    /// The next frame of a connection, if it is there and there is memory for it.
    fn read(&mut self, id: ConnId, now: Time) -> Result<Option<Frame>, LinkError> {
        loop {
            let Some(conn) = self.conns.get(id) else { return Ok(None) };
            if conn.guest.is_none() {
                return conn.link.receive();
            }
            if let Some(frame) = conn.link.buffered()? {
                conn.used = now;
                conn.frame_since = (conn.link.unfinished() > 0).then_some((now, now));
                let granted = std::mem::take(&mut conn.granted);
                if granted > 0 {
                    self.usage.give_back(conn.ip, granted);
                }
                return Ok(Some(frame));
            }
            if conn.granted == 0 && conn.link.unfinished() >= LARGE_FRAME_BYTES {
                let bytes = conn.link.frame_bytes();
                if !self.usage.grant(&self.config.bounds, conn.ip, bytes) {
                    if !std::mem::replace(&mut conn.starved, true) {
                        self.starved.push_back(id);
                    }
                    return Ok(None);
                }
                conn.granted = bytes;
            }
            if !conn.link.read()? {
                return Ok(None);
            }
            let since = conn.frame_since.map_or(now, |(since, _)| since);
            conn.frame_since = Some((since, now));
        }
    }

    fn take(&mut self, id: ConnId, frame: Frame) -> Result<(), LinkError> {
        let Some(conn) = self.conns.get(id) else { return Ok(()) };
        if frame.kind == FrameKind::Goodbye {
            return Err(LinkError::Closed);
        }
        match &conn.side {
            Side::Inbound(peer) if frame.kind == FrameKind::Request => {
                conn.open += 1;
                let peer = peer.clone();
                self.inputs.push_back(Input::Request { conn: id, peer, frame });
            }
            Side::Outbound(node) if frame.kind == FrameKind::Reply => {
                let (node, call) = (*node, CallId(frame.call));
                self.peers.peer(node).backoff.succeed();
                if self.peers.calls.get(&call).is_some_and(|pending| pending.to != node) {
                    return Err(LinkError::Protocol("a reply to another node's request"));
                }
                self.finish_call(call, Ok(frame));
            }
            Side::Greeting => self.greet(id, &frame),
            Side::Shaking(node) => {
                let node = *node;
                self.shake(id, node, &frame);
            }
            Side::Leaving => {}
            Side::Inbound(_) | Side::Outbound(_) | Side::Dialing(_) => {
                return Err(LinkError::Protocol("a frame of the wrong kind"));
            }
        }
        Ok(())
    }

    /// Answers the hello of an accepted connection.
    fn greet(&mut self, id: ConnId, frame: &Frame) {
        let mut outcome = self.config.policy.check(frame);
        if let Ok(peer) = &mut outcome {
            match self.guest_of(id, peer) {
                Some(guest) => self.enter(id, guest),
                None => outcome = Err(busy()),
            }
        }
        let Some(conn) = self.conns.get(id) else { return };
        conn.link.out.push(&hello::reply_frame(&self.config.hello, outcome.as_ref()));
        match outcome {
            Ok(peer) => conn.side = Side::Inbound(Rc::new(PeerHello { ip: conn.ip, ..peer })),
            Err(refusal) => {
                conn.side = Side::Leaving;
                let from = conn.link.peer_addr();
                self.refused(from, &refusal.text);
            }
        }
        self.mark_dirty(id);
    }

    /// Reads the answer to our hello.
    fn shake(&mut self, id: ConnId, node: NodeNumber, frame: &Frame) {
        let (reply, mut outcome) = hello::check_reply(&self.config.hello, frame);
        if let Some(reply) = &reply
            && outcome.is_ok()
            && reply.node != node.0
        {
            tracing::warn!("node {} answers where node {} should be", reply.node, node.0);
            outcome = Err(CallError::Refused);
        }
        if let Err(error) = outcome {
            let text = reply.map_or_else(String::new, |reply| reply.text);
            tracing::warn!("node {}: hello refused: {text}", node.0);
            return self.drop_conn(id, error);
        }
        let peer = self.peers.peer(node);
        peer.ready = true;
        let queue = peer.take_queue();
        let Some(conn) = self.conns.get(id) else { return };
        conn.side = Side::Outbound(node);
        // Calls that have timed out while they waited are not sent.
        for frame in queue.iter().filter(|f| self.peers.calls.contains_key(&CallId(f.call))) {
            conn.link.out.push(frame);
        }
        self.mark_dirty(id);
    }

    fn finish_call(&mut self, call: CallId, result: Result<Frame, CallError>) {
        if self.peers.calls.remove(&call).is_none() {
            return; // It has timed out before.
        }
        let calls = &self.peers.calls;
        self.alarms.settle(|alarm| match alarm {
            Alarm::Call(call) => calls.contains_key(call),
            Alarm::Hello(_) | Alarm::Redial(_) | Alarm::Accept | Alarm::Look => true,
        });
        self.inputs.push_back(Input::Reply { call, result });
    }

    /// Handles deadlines that have passed.
    pub fn ring(&mut self, now: Time) {
        while let Some(alarm) = self.alarms.pop(now) {
            match alarm {
                Alarm::Call(call) => {
                    if self.peers.calls.remove(&call).is_some() {
                        let result = Err(CallError::Timeout);
                        self.inputs.push_back(Input::Reply { call, result });
                    }
                }
                Alarm::Hello(id) => {
                    let late = |conn: &mut Conn| {
                        !matches!(conn.side, Side::Inbound(_) | Side::Outbound(_))
                    };
                    if self.conns.get(id).is_some_and(late) {
                        self.close(id, &LinkError::Protocol("no hello in time"));
                    }
                }
                Alarm::Redial(node) => {
                    let peer = self.peers.peer(node);
                    peer.redial_set = false;
                    if !peer.queue.is_empty() && peer.conn.is_none() {
                        self.dial(node);
                    }
                }
                Alarm::Accept => self.accept(),
                Alarm::Look => self.look(now),
            }
        }
    }

    fn look_later(&mut self) {
        if !std::mem::replace(&mut self.looks, true) {
            self.alarms.set(time::now() + LOOK_EVERY, Alarm::Look);
        }
    }

    /// Ends connections that stand still.
    fn look(&mut self, now: Time) {
        self.looks = false;
        let bounds = &self.config.bounds;
        let frame_time = |conn: &Conn| {
            let is_short = !self.starved.is_empty();
            // What was not read here yet may be the rest.
            let (since, last) =
                conn.frame_since.filter(|_| !conn.in_ready && !conn.starved && !conn.paused)?;
            let late = now.since(since) >= bounds.frame_time_max;
            let stalls = is_short && conn.granted > 0 && now.since(last) >= bounds.stall_max;
            (late || stalls).then_some("it does not finish a frame")
        };
        let why = |conn: &Conn| {
            let deaf = conn.deaf_since.is_some_and(|at| now.since(at) >= bounds.frame_time_max);
            let idle = conn.is_idle() && now.since(conn.used) >= bounds.idle_max;
            match conn.guest? {
                _ if deaf => Some("it does not read"),
                Guest::Client if idle => Some("it is idle"),
                _ => frame_time(conn),
            }
        };
        let over = self.conns.all().filter_map(|conn| Some((conn.id, why(conn)?)));
        let mut over: Vec<_> = over.collect();
        over.extend(self.unread_beyond().map(|id| (id, "what it does not read takes the memory")));
        for (id, why) in over {
            self.end(id, why);
        }
        if self.usage.greetings + self.usage.clients + self.usage.members > 0 {
            self.look_later();
        }
    }

    /// If more waits to be written than may, the connection for which the most does.
    fn unread_beyond(&self) -> Option<ConnId> {
        let guests = || self.conns.all().filter(|conn| conn.guest.is_some());
        let all: usize = guests().map(|conn| conn.link.out.len()).sum();
        let most = || guests().max_by_key(|conn| conn.link.out.len()).map(|conn| conn.id);
        if all > self.config.bounds.unread_bytes_max { most() } else { None }
    }

    /// A call was made; it may have to wait for the journal, but its deadline runs.
    pub fn begin_call(&mut self, call: CallId, to: NodeNumber, deadline: Time) {
        self.peers.calls.insert(call, Pending { to, released: false });
        self.alarms.set(deadline, Alarm::Call(call));
    }

    /// Sends a message that need not wait any longer.
    pub fn send(&mut self, message: Outgoing, role: &impl StateMachine) {
        match message {
            Outgoing::Reply { conn: ConnId::LOOPBACK, frame } => {
                self.finish_call(CallId(frame.call), Ok(frame));
            }
            Outgoing::Reply { conn, frame } => self.send_reply(conn, &frame),
            Outgoing::Call { call, to, frame, .. } => {
                if !self.peers.calls.contains_key(&call) {
                    return; // It has timed out while it waited for the journal.
                }
                let addr = role.address(to);
                self.follow(to, addr);
                if let Some(pending) = self.peers.calls.get_mut(&call) {
                    pending.released = true;
                }
                if let Err(error) = self.send_call(to, frame, addr) {
                    self.finish_call(call, Err(error));
                }
            }
        }
    }

    fn send_reply(&mut self, id: ConnId, frame: &Frame) {
        let Some(conn) = self.conns.get(id) else { return };
        if !frame.fits() {
            tracing::error!("{frame:?} is above the bounds of a frame");
            return self.close(id, &LinkError::Protocol("a reply was too large"));
        }
        conn.link.out.push(frame);
        conn.open = conn.open.saturating_sub(1);
        conn.used = time::now();
        // The write that follows looks whether the connection may be read again.
        self.mark_dirty(id);
    }

    /// The peer listens at `addr` now: a connection to where it was before is closed, and the
    /// calls on it end.
    fn follow(&mut self, to: NodeNumber, addr: Option<SocketAddr>) {
        if to == self.config.node {
            return;
        }
        let (Some(addr), peer) = (addr, self.peers.peer(to)) else { return };
        if peer.addr == Some(addr) {
            return;
        }
        if let (Some(_), Some(conn)) = (peer.addr, peer.conn) {
            self.close(conn, &LinkError::Protocol("the peer has moved"));
        }
        let peer = self.peers.peer(to);
        peer.addr = Some(addr);
        peer.backoff.succeed();
    }

    fn send_call(
        &mut self,
        to: NodeNumber,
        frame: Frame,
        addr: Option<SocketAddr>,
    ) -> Result<(), CallError> {
        if !frame.fits() {
            return Err(CallError::TooLarge);
        }
        if to == self.config.node {
            let (conn, peer) = (ConnId::LOOPBACK, self.own_peer.clone());
            self.inputs.push_back(Input::Request { conn, peer, frame });
            return Ok(());
        }
        if addr.is_none() {
            return Err(CallError::Unreachable);
        }
        let peer = self.peers.peer(to);
        if let (true, Some(id)) = (peer.ready, peer.conn) {
            let conn = self.conns.get(id).ok_or(CallError::Unreachable)?;
            if conn.link.out.len() > PEER_QUEUE_BYTES_MAX {
                return Err(CallError::Overloaded);
            }
            conn.link.out.push(&frame);
            self.mark_dirty(id);
            return Ok(());
        }
        if peer.queue.len() >= PEER_QUEUE_MAX || peer.queue_bytes > PEER_QUEUE_BYTES_MAX {
            return Err(CallError::Overloaded);
        }
        peer.enqueue(frame);
        if peer.conn.is_none() {
            self.dial_when_allowed(to);
        }
        Ok(())
    }

    fn dial_when_allowed(&mut self, node: NodeNumber) {
        let peer = self.peers.peer(node);
        let not_before = peer.backoff.not_before();
        if not_before <= time::now() {
            self.dial(node);
        } else if !std::mem::replace(&mut peer.redial_set, true) {
            self.alarms.set(not_before, Alarm::Redial(node));
        }
    }

    fn dial(&mut self, node: NodeNumber) {
        let peer = self.peers.peer(node);
        let Some(addr) = peer.addr else { return };
        let registry = self.poll.registry();
        let made = self.conns.add(Side::Dialing(node), |token| Link::dial(addr, registry, token));
        match made {
            Ok(id) => {
                peer.conn = Some(id);
                self.alarms.set(time::now() + HELLO_TIME_MAX, Alarm::Hello(id));
            }
            Err(error) => {
                tracing::debug!("node {} at {addr}: {error}", node.0);
                self.lose_peer(node, CallError::Unreachable);
            }
        }
    }

    /// Closes a connection for `why`; whoever is concerned gets an input.
    fn close(&mut self, id: ConnId, why: &LinkError) {
        let Some(conn) = self.conns.get(id) else { return };
        let from = conn.link.peer_addr();
        let (calls, broken) = match conn.side {
            Side::Outbound(_) => (CallError::Disconnected, true),
            Side::Inbound(_) => (CallError::Disconnected, false),
            _ => (CallError::Unreachable, false),
        };
        match why {
            LinkError::Frame(_) | LinkError::Protocol(_) => {
                tracing::warn!("connection {from:?}: {why}");
            }
            _ if broken => tracing::info!("connection {from:?}: {why}"),
            _ => tracing::debug!("connection {from:?}: {why}"),
        }
        self.drop_conn(id, calls);
    }

    fn drop_conn(&mut self, id: ConnId, calls: CallError) {
        let Some(conn) = self.conns.remove(id, self.poll.registry()) else { return };
        self.inbox.set_open(self.conns.len());
        self.usage.give_back(conn.ip, conn.granted);
        if let Some(guest) = conn.guest {
            self.usage.count(guest, conn.ip, -1);
        }
        match conn.side {
            Side::Inbound(_) => self.inputs.push_back(Input::Closed { conn: id }),
            Side::Dialing(node) | Side::Shaking(node) | Side::Outbound(node) => {
                self.lose_peer(node, calls);
            }
            Side::Greeting | Side::Leaving => {}
        }
    }

    /// The connection to `node` is gone, or could not be made: its calls end.
    fn lose_peer(&mut self, node: NodeNumber, error: CallError) {
        let peer = self.peers.peer(node);
        peer.conn = None;
        peer.ready = false;
        peer.take_queue();
        peer.backoff.fail(time::now());
        for call in self.peers.take_calls(node) {
            self.inputs.push_back(Input::Reply { call, result: Err(error) });
        }
    }

    /// Writes what waits: one system call for each connection that has something.
    pub fn write_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.write(id);
        }
        // Closing connections may have marked others.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn write(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.in_dirty = false;
        let leaving = matches!(conn.side, Side::Leaving);
        let before = conn.link.out.len();
        let flushed = conn.link.flush();
        conn.deaf_since = match conn.link.out.len() {
            0 => None,
            left if left < before => Some(time::now()),
            _ => conn.deaf_since.or_else(|| Some(time::now())),
        };
        match flushed {
            Ok(true) if leaving => self.close(id, &LinkError::Closed),
            Ok(_) if conn.link.out.len() > self.config.out_bytes_max => {
                self.close(id, &LinkError::Protocol("the peer does not read"));
            }
            Ok(_) if conn.paused && conn.may_go_on() => {
                conn.paused = false;
                self.mark_ready(id);
            }
            Ok(_) => {}
            Err(error) => self.close(id, &error.into()),
        }
    }

    /// Says goodbye on all connections, as far as they take it without waiting.
    pub fn say_goodbye(&mut self) {
        let frame = goodbye();
        for id in self.conns.ids() {
            if let Some(conn) = self.conns.get(id)
                && matches!(conn.side, Side::Inbound(_) | Side::Outbound(_))
            {
                conn.link.out.push(&frame);
                self.write(id);
            }
        }
    }
}
