//! One server, and the connection to it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::event::Event;
use mio::{Registry, Token};
use saker_runtime::time::{self, Time};

use super::alarms::Alarm;
use super::promise::CallPromise;
use crate::CallError;
use crate::frame::{Frame, FrameKind};
use crate::hello::{self, Hello, HelloReply};
use crate::link::{Link, LinkError};
use crate::node::ReconnectBackoff;

/// Calls to one server without a reply.
const CALLS_MAX: usize = 64 << 10;
/// Bound of what waits to be written to one server, bytes. Payloads are shared, not copied.
const OUT_BYTES_MAX: usize = 256 << 20;
/// Above this, a call writes at once instead of when its thread waits, bytes.
const EAGER_BYTES: usize = 256 << 10;
/// Frames taken from one connection before the next one's turn.
const TURN_FRAMES: usize = 1024;
/// A connection must be made, and have shaken hands, within this time.
const DIAL_TIME_MAX: Duration = Duration::from_secs(3);

/// What follows from an event, to be done when no connection is locked.
#[derive(Default)]
pub(super) struct Effects {
    pub done: Vec<(CallPromise, Result<Frame, CallError>)>,
    pub alarms: Vec<(Time, Alarm)>,
}

/// A server. It stays when its connection goes.
pub(super) struct Conn {
    addr: SocketAddr,
    token: Token,
    state: Mutex<State>,
}

enum Phase {
    /// No connection.
    Idle,
    /// Being connected.
    Dialing(Link),
    /// Our hello waits for its reply.
    Shaking(Link),
    /// In use.
    Ready(Link),
}

struct State {
    phase: Phase,
    /// Counts attempts to connect.
    attempt: u64,
    /// The hello of the last attempt.
    hello: Hello,
    /// The last answer to it.
    reply: Option<HelloReply>,
    backoff: ReconnectBackoff,
    redial_set: bool,
    /// Requests for when the connection is ready.
    queued: VecDeque<Frame>,
    queued_bytes: usize,
    calls: BTreeMap<u64, CallPromise>,
    last_call: u64,
    /// The connection is in the reactor's list of those to write, or was taken from it by a
    /// thread that will write. Only changed together with the list (see `submit`), so that
    /// whoever finds it set may rely on a write that comes after its request was queued.
    dirty: bool,
}

impl State {
    fn queue(&mut self, frame: Frame) {
        self.queued_bytes += frame.wire_len();
        self.queued.push_back(frame);
    }

    fn take_queued(&mut self) -> VecDeque<Frame> {
        self.queued_bytes = 0;
        std::mem::take(&mut self.queued)
    }
}

impl Conn {
    pub fn new(addr: SocketAddr, token: Token, hello: Hello) -> Conn {
        let state = State {
            phase: Phase::Idle,
            attempt: 0,
            hello,
            reply: None,
            backoff: ReconnectBackoff::default(),
            redial_set: false,
            queued: VecDeque::new(),
            queued_bytes: 0,
            calls: BTreeMap::new(),
            last_call: 0,
            dirty: false,
        };
        Conn { addr, token, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's last answer to a hello.
    pub fn hello_reply(&self) -> Option<HelloReply> {
        self.lock().reply.clone()
    }

    /// Whether this call has no result yet.
    pub fn is_open(&self, call: u64) -> bool {
        self.lock().calls.contains_key(&call)
    }

    /// Takes a call that is to end now.
    pub fn take_call(&self, call: u64) -> Option<CallPromise> {
        self.lock().calls.remove(&call)
    }

    /// Encodes a request; connects if need be.
    pub fn submit(
        self: &Arc<Conn>,
        io: &Io<'_>,
        mut frame: Frame,
        promise: CallPromise,
        deadline: Time,
        effects: &mut Effects,
    ) {
        if !frame.fits() {
            return effects.done.push((promise, Err(CallError::TooLarge)));
        }
        let mut state = self.lock();
        let state = &mut *state;
        let waiting = match &state.phase {
            Phase::Ready(link) => link.out.len(),
            Phase::Idle | Phase::Dialing(_) | Phase::Shaking(_) => state.queued_bytes,
        };
        if state.calls.len() >= CALLS_MAX || waiting > OUT_BYTES_MAX {
            return effects.done.push((promise, Err(CallError::Overloaded)));
        }
        state.last_call += 1;
        frame.call = state.last_call;
        state.calls.insert(frame.call, promise);
        effects.alarms.push((deadline, Alarm::Call(self.clone(), frame.call)));
        match &mut state.phase {
            Phase::Ready(link) => {
                link.out.push(&frame);
                if link.out.len() > EAGER_BYTES {
                    self.write(state, io, effects);
                } else if !std::mem::replace(&mut state.dirty, true) {
                    // With the connection locked: were it noted later, another thread could
                    // find it dirty, flush the list before it is there, and wait in vain.
                    io.note_dirty(self.clone());
                }
            }
            Phase::Idle => {
                state.queue(frame);
                self.dial_when_allowed(state, io, effects);
            }
            Phase::Dialing(_) | Phase::Shaking(_) => state.queue(frame),
        }
    }

    /// Writes what waits.
    pub fn flush(self: &Arc<Conn>, io: &Io<'_>, effects: &mut Effects) {
        let mut state = self.lock();
        state.dirty = false;
        self.write(&mut state, io, effects);
    }

    fn write(self: &Arc<Conn>, state: &mut State, io: &Io<'_>, effects: &mut Effects) {
        let (Phase::Shaking(link) | Phase::Ready(link)) = &mut state.phase else { return };
        if let Err(error) = link.flush() {
            self.lose(state, io, &error.into(), effects);
        }
    }

    /// Handles what the poll says about the socket. Returns whether there is more to read.
    pub fn on_event(self: &Arc<Conn>, io: &Io<'_>, event: &Event, effects: &mut Effects) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        match &mut state.phase {
            Phase::Idle => return false,
            Phase::Dialing(link) | Phase::Shaking(link) | Phase::Ready(link) => {
                link.note(event);
            }
        }
        self.progress(state, io, effects)
    }

    /// Reads on where a turn ended. Returns whether there is still more.
    pub fn read_on(self: &Arc<Conn>, io: &Io<'_>, effects: &mut Effects) -> bool {
        self.progress(&mut self.lock(), io, effects)
    }

    fn progress(self: &Arc<Conn>, state: &mut State, io: &Io<'_>, effects: &mut Effects) -> bool {
        if let Phase::Dialing(link) = &mut state.phase {
            match link.connected() {
                Ok(false) => return false,
                Ok(true) => link.out.push(&state.hello.to_frame()),
                Err(error) => {
                    self.lose(state, io, &error.into(), effects);
                    return false;
                }
            }
            if let Phase::Dialing(link) = std::mem::replace(&mut state.phase, Phase::Idle) {
                state.phase = Phase::Shaking(link);
            }
        }
        let more = match self.receive(state, io, effects) {
            Ok(more) => more,
            Err(error) => {
                self.lose(state, io, &error, effects);
                false
            }
        };
        self.write(state, io, effects);
        more
    }

    fn receive(
        self: &Arc<Conn>,
        state: &mut State,
        io: &Io<'_>,
        effects: &mut Effects,
    ) -> Result<bool, LinkError> {
        for _ in 0..TURN_FRAMES {
            let (link, ready) = match &mut state.phase {
                Phase::Shaking(link) => (link, false),
                Phase::Ready(link) => (link, true),
                Phase::Idle | Phase::Dialing(_) => return Ok(false),
            };
            let Some(frame) = link.receive()? else { return Ok(false) };
            match frame.kind {
                FrameKind::Reply if ready => {
                    state.backoff.succeed();
                    // An unknown call has timed out before.
                    if let Some(promise) = state.calls.remove(&frame.call) {
                        effects.done.push((promise, Ok(frame)));
                    }
                }
                FrameKind::HelloReply if !ready => self.shake(state, io, &frame, effects),
                FrameKind::Goodbye => return Err(LinkError::Closed),
                _ => return Err(LinkError::Protocol("a frame of the wrong kind")),
            }
        }
        Ok(true)
    }

    fn shake(
        self: &Arc<Conn>,
        state: &mut State,
        io: &Io<'_>,
        frame: &Frame,
        effects: &mut Effects,
    ) {
        let (reply, outcome) = hello::check_reply(&state.hello, frame);
        state.reply = reply;
        if let Err(error) = outcome {
            let text = state.reply.as_ref().map_or("", |reply| reply.text.as_str());
            tracing::warn!("{}: hello refused: {text}", self.addr);
            return self.fail(state, io, error, effects);
        }
        let queued = state.take_queued();
        if let Phase::Shaking(mut link) = std::mem::replace(&mut state.phase, Phase::Idle) {
            // Calls that have timed out while they waited are not sent.
            for frame in queued.iter().filter(|frame| state.calls.contains_key(&frame.call)) {
                link.out.push(frame);
            }
            state.phase = Phase::Ready(link);
        }
    }

    fn dial_when_allowed(self: &Arc<Conn>, state: &mut State, io: &Io<'_>, effects: &mut Effects) {
        let not_before = state.backoff.not_before();
        if not_before <= time::now() {
            self.dial(state, io, effects);
        } else if !std::mem::replace(&mut state.redial_set, true) {
            effects.alarms.push((not_before, Alarm::Redial(self.clone())));
        }
    }

    fn dial(self: &Arc<Conn>, state: &mut State, io: &Io<'_>, effects: &mut Effects) {
        state.attempt += 1;
        state.hello = io.hello();
        match Link::dial(self.addr, io.registry, self.token) {
            Ok(link) => {
                state.phase = Phase::Dialing(link);
                let alarm = Alarm::Dial(self.clone(), state.attempt);
                effects.alarms.push((time::now() + DIAL_TIME_MAX, alarm));
            }
            Err(error) => self.lose(state, io, &error.into(), effects),
        }
    }

    /// The time of an attempt to connect is over.
    pub fn on_dial_alarm(self: &Arc<Conn>, io: &Io<'_>, attempt: u64, effects: &mut Effects) {
        let mut state = self.lock();
        let under_way = matches!(state.phase, Phase::Dialing(_) | Phase::Shaking(_));
        if under_way && state.attempt == attempt {
            self.lose(&mut state, io, &LinkError::Protocol("no hello in time"), effects);
        }
    }

    /// The pause after a failed attempt is over.
    pub fn on_redial_alarm(self: &Arc<Conn>, io: &Io<'_>, effects: &mut Effects) {
        let mut state = self.lock();
        state.redial_set = false;
        if !matches!(state.phase, Phase::Idle) {
            return;
        }
        if state.calls.is_empty() {
            // All have timed out.
            state.take_queued();
        } else {
            self.dial(&mut state, io, effects);
        }
    }

    fn lose(
        self: &Arc<Conn>,
        state: &mut State,
        io: &Io<'_>,
        why: &LinkError,
        effects: &mut Effects,
    ) {
        tracing::debug!("{}: {why}", self.addr);
        let error = match state.phase {
            Phase::Ready(_) => CallError::Disconnected,
            Phase::Idle | Phase::Dialing(_) | Phase::Shaking(_) => CallError::Unreachable,
        };
        self.fail(state, io, error, effects);
    }

    /// Drops the connection; all its calls end with `error`.
    fn fail(
        self: &Arc<Conn>,
        state: &mut State,
        io: &Io<'_>,
        error: CallError,
        effects: &mut Effects,
    ) {
        match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Dialing(mut link) | Phase::Shaking(mut link) | Phase::Ready(mut link) => {
                link.deregister(io.registry);
            }
        }
        state.backoff.fail(time::now());
        state.take_queued();
        let calls = std::mem::take(&mut state.calls);
        effects.done.extend(calls.into_values().map(|promise| (promise, Err(error))));
    }
}

/// What a connection needs from its reactor.
pub(super) struct Io<'a> {
    pub registry: &'a Registry,
    pub hello: &'a Mutex<Hello>,
    pub dirty: &'a Mutex<Vec<Arc<Conn>>>,
}

impl Io<'_> {
    /// Somebody who is about to wait must write what `conn` has.
    fn note_dirty(&self, conn: Arc<Conn>) {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }

    fn hello(&self) -> Hello {
        self.hello.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
