//! What nodes do between messages: steps, flushes, death and restart; and what strikes them.

use std::time::Duration;

use saker_runtime::sim;
use saker_types::NodeId;

use super::super::faults::WorldFault;
use super::super::net::Who;
use super::{Event, World};
use crate::node::Death;

impl World {
    pub(super) fn step_soon(&mut self, id: NodeId) {
        let slowness = self.nodes[&id].slowness;
        let at = self.after_us(3 * slowness, 20 * slowness);
        let node = self.node_mut(id);
        if !std::mem::replace(&mut node.stepping, true) {
            let life = node.life;
            self.schedule(at, Event::Step(id, life));
        }
    }

    pub(super) fn step(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life {
            return;
        }
        node.stepping = false;
        if let Err(why) = node.step(now) {
            return self.node_dies(id, &why);
        }
        self.note_served(id);
        self.after_step(id);
    }

    /// What the step has executed of what clients ask about names, it has served now, whenever the
    /// answers leave.
    fn note_served(&mut self, id: NodeId) {
        let mut answered = std::mem::take(&mut self.node_mut(id).answered);
        if let NodeId::Shard(shard) = id {
            for (conn, call, status) in &answered {
                let slot = self.routed.remove(&(*conn as usize, *call));
                let Some(slot) = slot.filter(|_| *status == 0) else { continue };
                if let Err(why) = self.ownership.serves(shard, slot, self.now) {
                    self.broken = Some(why);
                }
            }
        }
        answered.clear();
        self.node_mut(id).answered = answered;
    }

    /// Sends what may leave, begins a flush, sees to the next step.
    pub(super) fn after_step(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.node_mut(id);
        let (life, slowness) = (node.life, node.slowness);
        if let Err(why) = node.write(now) {
            return self.node_dies(id, &why);
        }
        let said = node.said(now);
        said.into_iter().for_each(|said| self.say(id, life, said));
        match self.node_mut(id).begin_flush(now) {
            Err(why) => return self.node_dies(id, &why),
            Ok(true) => {
                let at = match self.rng.below(12) {
                    0 => self.after_us(5_000 * slowness, 20_000),
                    _ => self.after_us(80 * slowness, 400),
                };
                self.schedule(at, Event::Flushed(id, life));
            }
            Ok(false) => {}
        }
        self.wake_later(id);
    }

    pub(super) fn flushed(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life {
            return;
        }
        if let Err(why) = node.end_flush(now) {
            return self.node_dies(id, &why);
        }
        self.after_step(id);
    }

    pub(super) fn wake_later(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let Some(at) = node.next_deadline() else { return };
        if node.wake_at.is_none_or(|known| at < known) {
            node.wake_at = Some(at);
            let life = node.life;
            self.schedule(at, Event::Wake(id, life));
        }
    }

    pub(super) fn wake(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life || node.wake_at.is_none_or(|at| at > now) {
            return;
        }
        node.wake_at = None;
        if node.next_deadline().is_some_and(|at| at <= now) {
            return self.step(id, life);
        }
        self.wake_later(id);
    }

    pub(super) fn start(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a node of the world");
        if node.is_up() || node.is_gone {
            return;
        }
        let started = node.start(&self.cluster, now);
        self.log.event(now, "starts", &[], || format!("{id}: {started:?}"));
        match started {
            Ok(()) => self.step_soon(id),
            Err(why) => {
                // What the plan of faults does not explain is a failure of recovery.
                let planned = why.contains("os error") || why.starts_with("at ");
                if !planned {
                    self.broken = Some(format!("{id} does not start: {why}"));
                }
                self.node_dies(id, &why);
            }
        }
    }

    /// A node found that it cannot go on, or passed an armed failpoint.
    pub(super) fn node_dies(&mut self, id: NodeId, why: &str) {
        let death = match self.rng.below(4) {
            0 => Death::Killed,
            _ => Death::Powerless(self.rng.u64()),
        };
        let down = Duration::from_micros(self.rng.below(300_000));
        self.log.event(self.now, "cannot go on", &[], || format!("{id}: {why}"));
        self.crash(id, death, down);
    }

    /// A machine dies, and starts again after a while.
    pub fn crash(&mut self, id: NodeId, death: Death, down: Duration) {
        // A death that the disk decides is a loss of power.
        let dying = self.nodes[&id].disk.plan().dies_at.is_some();
        let death = if dying { Death::Powerless(self.rng.u64()) } else { death };
        let keeps_power = self.config.delays_flush && matches!(id, NodeId::Shard(_));
        let death = if keeps_power { Death::Killed } else { death };
        self.crashes += 1;
        self.log.event(self.now, "dies", &[], || format!("{id}: {death:?}, for {down:?}"));
        if let (NodeId::Store(no), Death::Powerless(_)) = (id, death) {
            self.power_losses.push((no, self.moments.get()));
        }
        if let (NodeId::Shard(_), Death::Powerless(_), true) = (id, death, self.may_lose_answers) {
            self.results.clear();
        }
        self.break_all(id);
        self.pending.retain(|(who, _, _), _| *who != Who::Node(id));
        self.node_mut(id).die(death);
        let at = self.now + down;
        self.schedule(at, Event::Start(id));
    }

    pub(super) fn everybody(&self) -> Vec<Who> {
        let clients = (0..self.config.clients).map(Who::Client);
        clients.chain(self.nodes.keys().map(|id| Who::Node(*id))).collect()
    }

    pub(super) fn strike(&mut self, at: usize) {
        let fault = self.config.faults[at].1.clone();
        self.log.event(self.now, "fault", &[], || format!("{fault:?}"));
        match fault {
            WorldFault::Crash(id, death, down) => self.crash(id, death, down),
            WorldFault::CrashAt(name, nth) => sim::arm(name, nth),
            WorldFault::Cut { node, out, back, lasts } => {
                let until = self.now + lasts;
                for who in self.everybody() {
                    if out {
                        self.net.block(Who::Node(node), who, until);
                    }
                    if back {
                        self.net.block(who, Who::Node(node), until);
                    }
                }
            }
            WorldFault::OneWay { from, to, lasts } => self.net.block(from, to, self.now + lasts),
            WorldFault::Reset(id) => self.break_all(id),
            WorldFault::Slow(id, times, lasts) => {
                self.node_mut(id).slowness = times;
                self.schedule(self.now + lasts, Event::Recover(id));
            }
            WorldFault::Loss(ppm, lasts) => {
                self.net.loss_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            WorldFault::Double(ppm, lasts) => {
                self.net.double_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            WorldFault::Spikes(ppm, lasts) => {
                self.net.spikes_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            WorldFault::Clock(id, by) => self.node_mut(id).skew_ns += by,
            WorldFault::Disk(id, kind, errno, effect) => {
                self.node_mut(id).disk.plan().errors.push((kind, errno, effect));
            }
        }
    }

    /// Ends all faults.
    pub fn repair(&mut self) {
        self.net.heal();
        sim::arm("", u64::MAX);
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            let node = self.node_mut(id);
            node.slowness = 1;
            node.disk.plan().errors.clear();
            self.start(id);
        }
    }
}
