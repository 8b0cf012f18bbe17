//! The table of connections.

use std::net::IpAddr;
use std::rc::Rc;

use mio::{Registry, Token};
use saker_runtime::time::{self, Time};

use super::ConnId;
use super::bounds::Guest;
use crate::NodeNumber;
use crate::hello::PeerHello;
use crate::link::Link;

/// Tokens below are not connections.
pub(super) const TOKEN_LISTENER: Token = Token(0);
pub(super) const TOKEN_WAKER: Token = Token(1);
const TOKEN_FIRST_CONN: usize = 2;

/// Which end this is, and how far it has come.
#[derive(Clone)]
pub(super) enum Side {
    /// Accepted; the hello has not come yet.
    Greeting,
    /// Accepted; requests come from this peer.
    Inbound(Rc<PeerHello>),
    /// Being connected to a peer.
    Dialing(NodeNumber),
    /// Connected; our hello waits for its reply.
    Shaking(NodeNumber),
    /// Replies come from this peer.
    Outbound(NodeNumber),
    /// Refused: closed as soon as the refusal is written.
    Leaving,
}

pub(super) struct Conn {
    pub id: ConnId,
    pub side: Side,
    pub link: Link,
    /// In the list of connections to read from.
    pub in_ready: bool,
    /// In the list of connections to write to.
    pub in_dirty: bool,
    /// Requests without a reply.
    pub open: usize,
    /// Not read, because `open`, or what waits to be written, is at its bound, or the role says so.
    pub paused: bool,
    /// The role says so.
    pub paused_by_role: bool,
    /// Not read, because frames of others take the memory.
    pub starved: bool,
    /// What it counts as; `None`: it was dialed.
    pub guest: Option<Guest>,
    /// Where it comes from.
    pub ip: Option<IpAddr>,
    /// When it was accepted, a frame came last, or the last reply went.
    pub used: Time,
    /// When the frame began that is being read, and when bytes of it came last.
    pub frame_since: Option<(Time, Time)>,
    /// Memory that it was given for that.
    pub granted: usize,
    /// Since when its peer has read nothing of what waits for it.
    pub deaf_since: Option<Time>,
}

impl Conn {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.open == 0 && self.link.out.is_empty() && self.frame_since.is_none()
    }
}

/// Connections in entries. A [`ConnId`] is a index (low 32 bits) and how often it was used before.
#[derive(Default)]
pub(super) struct Conns {
    entries: Vec<Option<Conn>>,
    used: Vec<u32>,
    free: Vec<usize>,
}

pub(super) fn index_of(id: ConnId) -> usize {
    (id.0 & u64::from(u32::MAX)) as usize
}

impl Conns {
    /// The index that an event's token means.
    pub fn index_of_token(token: Token) -> Option<usize> {
        token.0.checked_sub(TOKEN_FIRST_CONN)
    }

    /// All connections.
    pub fn all(&self) -> impl Iterator<Item = &Conn> {
        self.entries.iter().flatten()
    }

    /// Connections in the table.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds the connection that `make` opens under the token that it is given.
    pub fn add<E>(
        &mut self,
        side: Side,
        make: impl FnOnce(Token) -> Result<Link, E>,
    ) -> Result<ConnId, E> {
        let index = self.free.last().copied().unwrap_or(self.entries.len());
        let link = make(Token(index + TOKEN_FIRST_CONN))?;
        if self.free.pop().is_none() {
            self.entries.push(None);
            self.used.push(0);
        }
        let id = ConnId(u64::from(self.used[index]) << 32 | index as u64);
        self.entries[index] = Some(Conn {
            id,
            side,
            link,
            in_ready: false,
            in_dirty: false,
            open: 0,
            paused: false,
            paused_by_role: false,
            starved: false,
            guest: None,
            ip: None,
            used: time::now(),
            frame_since: None,
            granted: 0,
            deaf_since: None,
        });
        Ok(id)
    }

    pub fn at(&mut self, index: usize) -> Option<&mut Conn> {
        self.entries.get_mut(index)?.as_mut()
    }

    pub fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.at(index_of(id)).filter(|conn| conn.id == id)
    }

    /// Takes a connection out of the table and out of the poll.
    pub fn remove(&mut self, id: ConnId, registry: &Registry) -> Option<Conn> {
        self.get(id)?;
        let index = index_of(id);
        let mut conn = self.entries[index].take()?;
        conn.link.deregister(registry);
        // A index that was used 2^32 times is retired: its ids would come again.
        self.used[index] = self.used[index].wrapping_add(1);
        if self.used[index] != 0 {
            self.free.push(index);
        }
        Some(conn)
    }

    pub fn ids(&self) -> Vec<ConnId> {
        self.entries.iter().flatten().map(|conn| conn.id).collect()
    }
}
