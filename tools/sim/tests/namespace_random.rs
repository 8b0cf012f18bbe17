//! Random operations on few names, random order of messages, random crashes: at the end every
//! operation is answered and the tree is whole.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use saker_meta::ShardLimits;
use saker_runtime::rand::Rng;
use saker_runtime::time::Time;
use saker_sim::testbed::{Testbed, at};
use saker_types::limits::{NAME_KEEP, NAME_KEEP_MAX};
use saker_types::wire::*;
use saker_types::{Class, Errno, Error, FileKind, InodeId, Locator, NodeId};

const DIRS: [&str; 6] = ["", "a", "b", "a/c", "b/c", "a/c/b"];
const NAMES: [&str; 6] = ["a", "b", "c", "x", "y", "z"];
const AT_ONCE: usize = 6;

/// A request under way.
struct Running {
    call: u64,
    to: NodeId,
    op: Op,
    request: Request,
    path: String,
    begun: Time,
    /// It is to be sent again, after a pause: two that stand in each other's way must not
    /// try again in step (decision 6).
    pauses: bool,
}

#[derive(Clone)]
enum Request {
    Create(CreateReq),
    Entry(EntryReq),
    Remove(RemoveReq),
    Rename(RenameReq),
    Link(LinkReq),
    Setattr(SetattrReq),
}

/// A directory's name that a mount keeps.
struct Kept {
    pid: InodeId,
    name: Bytes,
    id: InodeId,
    from: Time,
    until: Time,
    /// For longer than a lease is after somebody has waited.
    long: bool,
}

/// Which operations there are.
#[derive(Clone, Copy, PartialEq)]
enum Mix {
    All,
    /// Those that keep the number of files countable.
    Counted,
    /// Looks and changes of few directories, in little time: names are kept meanwhile.
    Names,
}

struct Run {
    b: Testbed,
    rng: Rng,
    running: Vec<Running>,
    /// Directories as they were last seen.
    known: BTreeMap<String, Locator>,
    kept: Vec<Kept>,
    /// Replies that could have shown a kept name to be wrong.
    compared: u32,
    compared_long: u32,
    done: BTreeMap<&'static str, (u32, u32)>,
    mix: Mix,
}

impl Run {
    fn new(seed: u64, mix: Mix) -> Run {
        let rng = Rng::seeded(seed);
        let limits = ShardLimits {
            segment_bytes: 64 << 10,
            coalesce_prefixes: !seed.is_multiple_of(3),
            lazy_replication: !seed.is_multiple_of(5),
            overlay_bytes: if seed.is_multiple_of(3) { 2_000 } else { 1 << 20 },
            ..ShardLimits::default()
        };
        let b = Testbed::with_limits(3, limits);
        Run {
            b,
            rng,
            running: Vec::new(),
            known: BTreeMap::new(),
            kept: Vec::new(),
            compared: 0,
            compared_long: 0,
            done: BTreeMap::new(),
            mix,
        }
    }

    fn pick(&mut self, from: &[&str]) -> String {
        from[self.rng.below(from.len() as u64) as usize].to_owned()
    }

    fn path(&mut self) -> String {
        let (dir, name) = (self.pick(&DIRS), self.pick(&NAMES));
        if dir.is_empty() { name } else { format!("{dir}/{name}") }
    }

    /// Files of the root are made, removed, and moved to names that are free.
    fn begin_counted(&mut self) {
        let (path, to) = (self.pick(&NAMES), self.pick(&NAMES));
        let (op, request) = match self.rng.below(3) {
            0 => (Op::Create, Request::Create(self.b.create_req(at(&path), FileKind::Regular))),
            1 => (Op::Unlink, Request::Remove(RemoveReq { ctx: self.b.ctx(), at: at(&path) })),
            _ => {
                let (ctx, from, to) = (self.b.ctx(), at(&path), at(&to));
                (
                    Op::Rename,
                    Request::Rename(RenameReq { ctx, from, to, flags: 1, ..RenameReq::default() }),
                )
            }
        };
        let to = self.b.owner(&path);
        self.send(op, to, request, path);
    }

    fn begin_names(&mut self) {
        let path = self.pick(&["a", "b", "a/b", "b/a", "a/b/a"]);
        let (op, request) = match self.rng.below(8) {
            0..5 => (Op::Lookup, self.entry(&path)),
            5..7 => (Op::Mkdir, Request::Create(self.b.create_req(at(&path), FileKind::Directory))),
            _ => (Op::Rename, Request::Rename(self.rename(&path))),
        };
        let to = self.b.owner(path.rsplit('/').next().unwrap());
        self.send(op, to, request, path);
    }

    fn send(&mut self, op: Op, to: NodeId, request: Request, path: String) {
        let begun = self.b.now();
        let mut running = Running { call: 0, to, op, request, path, begun, pauses: false };
        running.send(&mut self.b);
        self.running.push(running);
    }

    fn begin(&mut self) {
        match self.mix {
            Mix::All => {}
            Mix::Counted => return self.begin_counted(),
            Mix::Names => return self.begin_names(),
        }
        let path = self.path();
        let (op, request) = match self.rng.below(20) {
            0..5 => (Op::Mkdir, Request::Create(self.b.create_req(at(&path), FileKind::Directory))),
            5..8 => (Op::Create, Request::Create(self.b.create_req(at(&path), FileKind::Regular))),
            8..10 => (Op::Unlink, Request::Remove(RemoveReq { ctx: self.b.ctx(), at: at(&path) })),
            10..12 => (Op::Rmdir, Request::Remove(RemoveReq { ctx: self.b.ctx(), at: at(&path) })),
            12..15 => (Op::Rename, Request::Rename(self.rename(&path))),
            15..17 => {
                let to = at(&self.path());
                (Op::Link, Request::Link(LinkReq { ctx: self.b.ctx(), from: at(&path), to }))
            }
            17 => {
                let op = if self.rng.chance(1, 2) { Op::Getattr } else { Op::Lookup };
                (op, self.entry(&path))
            }
            18 => (Op::Spill, self.entry(&path)),
            _ => {
                let ctx = self.b.ctx();
                let mut request = SetattrReq { ctx, at: at(&path), ..SetattrReq::default() };
                match self.rng.below(3) {
                    0 => request.mode = Some(self.rng.below(0o1000) as u32 | 0o700),
                    1 => request.mtime_ns = Some(self.rng.below(1 << 60)),
                    _ => request.size = Some(self.rng.below(2) * 100),
                }
                (Op::Setattr, Request::Setattr(request))
            }
        };
        let to = match op {
            Op::Rmdir => NodeId::Coordinator,
            _ => self.b.owner(path.rsplit('/').next().unwrap()),
        };
        self.send(op, to, request, path);
    }

    /// By a mount that wants to keep the names on the way.
    fn entry(&mut self, path: &str) -> Request {
        let mut at = at(path);
        let mut keep_ms = NAME_KEEP_MAX.as_millis() as u64;
        for _ in 1..at.path.len() {
            keep_ms = self.rng.below(keep_ms + 1);
            at.keep_ms.push(keep_ms as u32);
        }
        Request::Entry(EntryReq { ctx: self.b.ctx(), at, full: true })
    }

    /// The names on the way that an answer lends, which its mount keeps from now on.
    fn keep(&mut self, r: &Running) {
        let Request::Entry(EntryReq { at, .. }) = &r.request else { return };
        let from = self.b.now();
        let mut pid = at.anchor.id;
        for (name, dir) in at.path.iter().zip(self.b.lent(at)) {
            let until = r.begun + Duration::from_millis(dir.keep_ms.into());
            let long = u128::from(dir.keep_ms) > NAME_KEEP.as_millis();
            self.kept.push(Kept { pid, name: name.clone(), id: dir.id, from, until, long });
            pid = dir.id;
        }
    }

    /// A request that began when a name was kept has found what is at this place: if the name is
    /// kept still, it leads there.
    fn compare(&mut self, r: &Running, loc: &Locator) {
        let now = self.b.now();
        self.kept.retain(|kept| kept.until > now);
        for kept in self.kept.iter().filter(|kept| kept.from <= r.begun) {
            let (same_name, same_id) =
                ((kept.pid, &kept.name) == (loc.pid, &loc.name), kept.id == loc.id);
            let met = u32::from(same_name || same_id);
            self.compared += met;
            self.compared_long += met * u32::from(kept.long);
            assert_eq!(same_name, same_id, "{} {}: {loc:?}", r.op.name(), r.path);
        }
    }

    fn rename(&mut self, from: &str) -> RenameReq {
        let to = self.path();
        let flags = if self.rng.chance(1, 3) { rename_flags::EXCHANGE } else { 0 };
        let (to_chain, from_chain) = (self.chain(&to), self.chain(from));
        let (from, to) = (at(from), at(&to));
        RenameReq { ctx: self.b.ctx(), from, to, flags, to_chain, from_chain }
    }

    fn chain(&self, path: &str) -> Vec<Locator> {
        let names: Vec<&str> = path.split('/').collect();
        let known = |len| self.known.get(&names[..len].join("/")).cloned();
        (1..names.len()).map_while(known).collect()
    }

    /// Looks at the answers that have come.
    fn look(&mut self) {
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|r| match self.answer(r) {
            None => {
                if r.pauses && self.rng.chance(1, 2) {
                    r.send(&mut self.b);
                }
                true
            }
            Some(Ok(entry)) => {
                if let Some(entry) = &entry {
                    self.compare(r, &entry.loc);
                }
                if let Some(entry) = entry.filter(|e| e.attr.is_dir()) {
                    self.known.insert(r.path.clone(), entry.loc);
                }
                self.done.entry(r.op.name()).or_default().0 += 1;
                false
            }
            Some(Err(e)) if e.is(Class::Retry) => {
                r.pauses = true;
                true
            }
            Some(Err(e)) if e.is(Class::UseCoordinator) => {
                r.to = NodeId::Coordinator;
                r.send(&mut self.b);
                true
            }
            Some(Err(e)) if e.is(Class::UseOwner) => {
                r.to = self.b.owner(r.path.rsplit('/').next().unwrap());
                r.send(&mut self.b);
                true
            }
            Some(Err(e)) if e.is(Class::Moved) && r.follow(&e) => {
                r.to = r.request.owner(&self.b);
                r.send(&mut self.b);
                true
            }
            Some(Err(e)) => {
                // A link to a directory that moved, by an old chain: the client walks again.
                let expected = matches!(
                    (r.op, e.errno()),
                    (_, Errno::ENOENT | Errno::ENOTDIR)
                        | (Op::Create | Op::Mkdir | Op::Link | Op::Rename, Errno::EEXIST)
                        | (Op::Unlink | Op::Rename | Op::Spill | Op::Setattr, Errno::EISDIR)
                        | (Op::Rename, Errno::ESTALE | Errno::EINVAL | Errno::ENOTEMPTY)
                        | (Op::Rmdir, Errno::ENOTEMPTY)
                        | (Op::Link, Errno::EPERM)
                );
                assert!(expected, "{} {}: {e:?}", r.op.name(), r.path);
                self.done.entry(r.op.name()).or_default().1 += 1;
                false
            }
        });
        self.running = running;
    }

    /// The answer, if it has come.
    fn answer(&mut self, r: &Running) -> Option<Result<Option<Entry>, Error>> {
        let answer = r.answer(&mut self.b)?;
        self.keep(r);
        Some(answer)
    }

    fn play(&mut self, steps: u32, crashes: u64) {
        let nodes: Vec<NodeId> = self.b.shards().into_iter().chain([NodeId::Coordinator]).collect();
        for _ in 0..steps {
            if self.running.len() < AT_ONCE && self.rng.chance(1, 4) {
                self.begin();
            }
            let nth = self.rng.u64();
            self.b.deliver_any(nth);
            if self.rng.chance(1, 20) {
                let most = if self.mix == Mix::Names { 60 } else { 600 };
                let ms = 1 + self.rng.below(most);
                self.b.advance(Duration::from_millis(ms));
            }
            if crashes > 0 && self.rng.chance(crashes, 1_000) {
                let victim = nodes[self.rng.below(nodes.len() as u64) as usize];
                self.b.restart(victim);
            }
            self.look();
        }
        for round in 0.. {
            self.b.pass(Duration::from_millis(200));
            self.look();
            if self.running.is_empty() {
                break;
            }
            let names: Vec<_> = self.running.iter().map(|r| (r.op.name(), &r.path)).collect();
            assert!(round < 500, "no answer to {names:?}");
        }
        // Outcomes reach everybody.
        self.b.pass(Duration::from_secs(8));
    }
}

impl Running {
    fn send(&mut self, b: &mut Testbed) {
        self.pauses = false;
        self.call = match &self.request {
            Request::Create(m) => b.ask(self.op, self.to, m),
            Request::Entry(m) => b.ask(self.op, self.to, m),
            Request::Remove(m) => b.ask(self.op, self.to, m),
            Request::Rename(m) => b.ask(self.op, self.to, m),
            Request::Link(m) => b.ask(self.op, self.to, m),
            Request::Setattr(m) => b.ask(self.op, self.to, m),
        };
    }

    fn answer(&self, b: &mut Testbed) -> Option<Result<Option<Entry>, Error>> {
        match self.op {
            Op::Unlink | Op::Rmdir => Some(b.answer::<Empty>(self.call)?.map(|_| None)),
            Op::Rename => {
                let moved = |reply: RenameReply| Entry { loc: reply.loc, ..Entry::default() };
                Some(b.answer::<RenameReply>(self.call)?.map(|reply| Some(moved(reply))))
            }
            _ => Some(b.answer::<Entry>(self.call)?.map(Some)),
        }
    }

    /// Goes to the home of a hard link; false if it is there.
    fn follow(&mut self, e: &Error) -> bool {
        let Some(moved) = e.moved.as_deref() else { return false };
        let place = match &mut self.request {
            Request::Entry(m) => &mut m.at,
            Request::Setattr(m) => &mut m.at,
            Request::Create(m) => &mut m.at,
            _ => return false,
        };
        let next = At::handle(moved.clone());
        std::mem::replace(place, next.clone()) != next
    }
}

impl Request {
    fn owner(&self, b: &Testbed) -> NodeId {
        match self {
            Request::Create(m) => b.owner_of(&m.at),
            Request::Entry(m) => b.owner_of(&m.at),
            Request::Remove(m) => b.owner_of(&m.at),
            Request::Rename(m) => b.owner_of(&m.from),
            Request::Link(m) => b.owner_of(&m.from),
            Request::Setattr(m) => b.owner_of(&m.at),
        }
    }
}

fn play(seeds: std::ops::Range<u64>, crashes: u64) {
    let mut done: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for seed in seeds {
        println!("seed {seed}");
        let mut run = Run::new(seed, Mix::All);
        run.play(1_500, crashes);
        run.b.check();
        for (op, (good, bad)) in run.done {
            let sum = done.entry(op).or_default();
            *sum = (sum.0 + good, sum.1 + bad);
        }
    }
    println!("{done:?}");
    let rare = done.iter().filter(|(_, (good, _))| *good < 5).collect::<Vec<_>>();
    assert!(rare.is_empty(), "hardly any of these succeed: {rare:?}");
}

#[test]
fn each_operation_takes_effect_as_often_as_it_is_answered() {
    for seed in 2_000..2_000 + seeds() {
        let mut run = Run::new(seed, Mix::Counted);
        run.play(1_500, 6);
        let good = |op| run.done.get(op).map_or(0, |(good, _)| *good);
        let expected = good("create") - good("unlink");
        let tree = run.b.check();
        assert_eq!(tree.entries.len() as u32 - 1, expected, "seed {seed}");
    }
}

fn seeds() -> u64 {
    std::env::var("SAKER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

#[test]
fn the_tree_stays_whole_in_any_order_of_messages() {
    play(0..seeds(), 0);
}

#[test]
fn the_tree_stays_whole_whoever_crashes() {
    play(1_000..1_000 + seeds(), 4);
}

/// Decision 20: what a mount keeps is so, whoever changes names and whoever crashes.
#[test]
fn a_kept_name_leads_where_it_led() {
    let (mut compared, mut long) = (0, 0);
    for seed in 3_000..3_000 + seeds() {
        println!("seed {seed}");
        let mut run = Run::new(seed, Mix::Names);
        run.play(1_500, seed % 3);
        run.b.check();
        compared += run.compared;
        long += run.compared_long;
    }
    println!("{compared} answers about kept names, {long} of them kept for long");
    assert!(compared as u64 > seeds(), "hardly any name was kept: {compared}");
    assert!(long as u64 > seeds(), "hardly any for long: {long}");
}
