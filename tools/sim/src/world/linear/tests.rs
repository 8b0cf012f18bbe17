//! The search against all orders, one by one, and histories that only a search that leaves out
//! the right things gets through.

use saker_runtime::rand::Rng;
use saker_types::{Errno, FileKind, InodeId, ROOT};

use super::super::history::{CallSubject, NameNo, Path, WorldSeen};
use super::*;

/// Calls of a random history.
const CALLS: usize = 6;

// ---- making histories -----------------------------------------------------------------------

fn path(name: NameNo) -> Path {
    Path::of(&[name])
}

fn at(name: NameNo) -> CallSubject {
    CallSubject::At(path(name))
}

/// What call number `n` makes has this id.
fn id_of(n: usize) -> InodeId {
    100 + n as InodeId
}

fn file(id: InodeId, size: u64) -> WorldSeen {
    let mode = FileKind::Regular.bits() | 0o755;
    WorldSeen { id, mode, nlink: 1, size, mtime_ns: i64::MAX }
}

/// Calls with the times at which they begin and end.
#[derive(Default)]
struct Made {
    entries: Vec<WorldEntry>,
    now: u64,
}

impl Made {
    /// A call that begins now and takes so long.
    fn add(&mut self, takes: u64, call: WorldCall, answer: WorldAnswer) -> usize {
        let invoked = self.now;
        let returned = if answer == lost() { OPEN } else { invoked + takes };
        self.entries.push(WorldEntry { client: 0, call, invoked, returned, answer });
        self.now += 2;
        self.entries.len() - 1
    }

    /// Files with these names, one after the other.
    fn files(&mut self, names: std::ops::Range<NameNo>) {
        for name in names {
            let seen = file(id_of(self.entries.len()), 0);
            let call = WorldCall::Create { at: path(name), exclusive: true };
            self.add(1, call, WorldAnswer::Opened(seen, true));
        }
    }

    fn truncate(&mut self, takes: u64, name: NameNo, size: u64, is_lost: bool) {
        let seen = file(id_of(usize::from(name)), size);
        let answer = if is_lost { lost() } else { WorldAnswer::Entry(seen) };
        self.add(takes, WorldCall::Truncate { of: at(name), size }, answer);
    }

    fn shows(&mut self, name: NameNo, size: u64) {
        let seen = file(id_of(usize::from(name)), size);
        self.add(1, WorldCall::Getattr { of: at(name) }, WorldAnswer::Entry(seen));
    }
}

fn lost() -> WorldAnswer {
    WorldAnswer::Unknown(String::new())
}

fn is_refuted(made: &Made) -> bool {
    matches!(check(&made.entries), Err(Violation { undecided: false, .. }))
}

// ---- hard histories -------------------------------------------------------------------------

/// Two truncations of each file, one within the other.
fn pairs(files: NameNo) -> Made {
    let mut made = Made::default();
    made.files(0..files);
    for name in 0..files {
        made.truncate(5, name, 1, false);
        made.truncate(1, name, 2, false);
        made.now += 2;
    }
    made
}

#[test]
fn choices_that_show_late_do_not_multiply() {
    // What ended first was first, but not here: each of 40 choices is wrong at first.
    let mut made = pairs(40);
    (0..40).for_each(|name| made.shows(name, 2));
    let steps = check(&made.entries).expect("there is an order");
    assert!(steps < 10_000, "{steps} steps");
    let last = made.entries.len() - 1;
    let WorldAnswer::Entry(seen) = &mut made.entries[last].answer else {
        panic!("it is a getattr")
    };
    seen.size = 3;
    assert!(is_refuted(&made));
}

#[test]
fn lost_calls_that_show_late_do_not_multiply() {
    for (shown, is_right) in [(7, true), (8, false)] {
        let mut made = Made::default();
        made.files(0..24);
        (0..24).for_each(|name| made.truncate(1, name, 7, true));
        (0..24).rev().for_each(|name| made.shows(name, if name % 2 == 0 { 7 } else { 0 }));
        // Files 1, 3, ... may change at last, but to this size only.
        made.shows(23, shown);
        let found = check(&made.entries);
        assert_eq!(found.is_ok(), is_right, "{found:?}");
        assert!(is_right || is_refuted(&made));
    }
}

#[test]
fn many_calls_at_once_on_one_file_are_refuted() {
    let mut made = Made::default();
    made.files(0..1);
    (1..9).for_each(|size| made.truncate(30, 0, size, false));
    made.now += 40;
    made.shows(0, 9);
    assert!(is_refuted(&made));
    let last = made.entries.len() - 1;
    for size in 1..9 {
        made.entries[last].answer = WorldAnswer::Entry(file(id_of(0), size));
        assert!(check(&made.entries).is_ok(), "{size} may be the last");
    }
}

#[test]
fn what_is_too_hard_is_not_called_wrong() {
    let mut made = Made::default();
    made.files(0..1);
    // All sets of these calls may be placed in any order, and each leaves a state of its own.
    for len in 0..20 {
        made.add(200, WorldCall::Append { id: id_of(0), len: 1 << len, tag: 1 }, lost());
    }
    made.shows(0, 1 << 30);
    let Err(violation) = check(&made.entries) else { panic!("nobody wrote so much") };
    assert!(violation.undecided);
}

// ---- against all orders ---------------------------------------------------------------------

/// Is there an order? Tries each, and leaves nothing out.
fn any_order(entries: &[WorldEntry], split: &[bool], state: &State) -> bool {
    let left = |i: &usize| !state.done.has(*i);
    let rest: Vec<usize> = (0..entries.len()).filter(left).collect();
    if rest.iter().all(|i| entries[*i].returned == OPEN) {
        return true;
    }
    rest.iter().any(|&call| {
        let WorldEntry { call: what, answer, invoked, .. } = &entries[call];
        if rest.iter().any(|other| entries[*other].returned < *invoked) {
            return false;
        }
        if let WorldCall::Readdir { dir } = what
            && !state.spec.is_listing(call)
        {
            let mut begun = state.clone();
            begun.spec.begin_listing(call, *dir);
            if begun.spec.is_listing(call) {
                return any_order(entries, split, &begun);
            }
        }
        let nexts = match what {
            WorldCall::Readdir { .. } => {
                state.spec.end_listing(call, answer).into_iter().map(WorldNext::Done).collect()
            }
            _ => {
                let stage = state.stages.get(&call).copied();
                state.spec.step(call, what, answer, stage, split[call])
            }
        };
        nexts.into_iter().any(|next| {
            let mut after = state.clone();
            match next {
                WorldNext::Done(spec) => {
                    after.spec = spec;
                    after.done.insert(call);
                    after.stages.remove(&call);
                }
                WorldNext::Later(spec, stage) => {
                    after.spec = spec;
                    after.stages.insert(call, stage);
                }
            }
            any_order(entries, split, &after)
        })
    })
}

fn draw(rng: &mut Rng) -> WorldCall {
    let name = rng.below(2) as NameNo;
    let (here, there) = (path(name), path(1 - name));
    let of = at(name);
    match rng.below(17) {
        0 => WorldCall::Create { at: here, exclusive: rng.chance(1, 2) },
        1 => WorldCall::Mkdir { at: here },
        2 => WorldCall::Unlink { at: here },
        3 => WorldCall::Rmdir { at: here },
        4 => WorldCall::Rename { from: here, to: there, no_replace: rng.chance(1, 4) },
        5 => WorldCall::Exchange { from: here, to: there },
        6 => WorldCall::Link { from: here, to: there },
        7 => WorldCall::Lookup { at: here },
        8 | 9 => WorldCall::Getattr { of },
        10 => WorldCall::Utimes { of, mtime_ns: 5 },
        11 => WorldCall::Truncate { of, size: rng.below(3) },
        12 | 13 => WorldCall::Append { id: id_of(0), len: 1, tag: 1 },
        14 => WorldCall::Setxattr { of, value: 1, flags: rng.below(3) as u32 },
        15 => WorldCall::Getxattr { of },
        _ => WorldCall::Readdir { dir: ROOT },
    }
}

/// All answers that any call may have in these histories.
fn answers() -> Vec<WorldAnswer> {
    let failures = [
        Errno::ENOENT,
        Errno::EEXIST,
        Errno::EISDIR,
        Errno::ENOTDIR,
        Errno::EPERM,
        Errno::ENODATA,
        Errno::ESTALE,
    ];
    let mut answers: Vec<WorldAnswer> = failures.map(WorldAnswer::Failed).to_vec();
    answers.extend([WorldAnswer::Done, WorldAnswer::Value(1)]);
    answers.extend((0..5).map(WorldAnswer::Offset));
    let ids: Vec<InodeId> = (0..=CALLS).map(id_of).collect();
    for &id in &ids {
        answers.extend([true, false].map(|made| WorldAnswer::Opened(file(id, 0), made)));
        let other = ids.iter().flat_map(|b| [vec![(0, id), (1, *b)], vec![(1, id), (0, *b)]]);
        answers.extend(other.map(WorldAnswer::Names));
        answers.extend([0, 1].map(|name| WorldAnswer::Names(vec![(name, id)])));
        for (nlink, mtime_ns) in [(1, 5), (1, i64::MAX), (2, 5), (2, i64::MAX)] {
            let seen = WorldSeen { nlink, mtime_ns, ..file(id, 0) };
            answers.extend((0..4).map(|size| WorldAnswer::Entry(WorldSeen { size, ..seen })));
            let mode = FileKind::Directory.bits() | 0o755;
            answers.push(WorldAnswer::Entry(WorldSeen { mode, ..seen }));
        }
    }
    answers.push(WorldAnswer::Names(Vec::new()));
    answers
}

/// A history in which most answers are right in one order.
fn history(rng: &mut Rng, answers: &[WorldAnswer]) -> Vec<WorldEntry> {
    let mut made = Made::default();
    made.files(0..1);
    for _ in 0..CALLS {
        let call = draw(rng);
        made.add(1 + 2 * rng.below(8), call, lost());
    }
    let mut order: Vec<usize> = (0..=CALLS).collect();
    let point = |rng: &mut Rng, entry: &WorldEntry| entry.invoked + rng.below(16);
    order[1..].sort_by_cached_key(|i| point(rng, &made.entries[*i]));
    let mut spec = WorldSpec::new();
    for call in order {
        let WorldEntry { call: what, invoked, answer, .. } = made.entries[call].clone();
        let right = |answer: &&WorldAnswer| done(&spec, call, &what, answer).is_some();
        let fits: Vec<&WorldAnswer> = match call {
            0 => vec![&answer],
            _ => answers.iter().filter(right).collect(),
        };
        if fits.is_empty() {
            continue;
        }
        let told = fits[rng.below(fits.len() as u64) as usize].clone();
        spec = done(&spec, call, &what, &told).expect("it was tried");
        if call > 0 && rng.chance(1, 6) {
            continue;
        }
        let wrong = answers[rng.below(answers.len() as u64) as usize].clone();
        let entry = &mut made.entries[call];
        entry.answer = if call > 0 && rng.chance(1, 15) { wrong } else { told };
        entry.returned = invoked + 1 + 2 * rng.below(8);
    }
    relevant(&made.entries)
}

/// The state after a call in one step.
fn done(
    spec: &WorldSpec,
    number: usize,
    call: &WorldCall,
    answer: &WorldAnswer,
) -> Option<WorldSpec> {
    if let WorldCall::Readdir { dir } = call {
        let mut spec = spec.clone();
        spec.begin_listing(number, *dir);
        return spec.end_listing(number, answer).pop();
    }
    spec.step(number, call, answer, None, false).into_iter().rev().find_map(|next| match next {
        WorldNext::Done(spec) => Some(spec),
        WorldNext::Later(..) => None,
    })
}

#[test]
fn agrees_with_trying_every_order() {
    let mut rng = Rng::seeded(1);
    let answers = answers();
    let mut seen = [0; 2];
    for _ in 0..1_500 {
        let entries = history(&mut rng, &answers);
        let expected = any_order(&entries, &splits(&entries), &State::of(entries.len()));
        match check(&entries) {
            Ok(_) => assert!(expected, "there is no order: {entries:#?}"),
            Err(found) => assert!(!expected && !found.undecided, "{found:?}: {entries:#?}"),
        }
        seen[usize::from(expected)] += 1;
    }
    assert!(seen.iter().all(|n| *n > 300), "{seen:?}");
}
