//! `saker fsck`: reads all rows of all shards and the chunk lists of all stores, and checks that
//! they make one file system (docs/protocol.md, "What the checkers assert").
//!
//! A cluster in use changes while it is read. What looks wrong is therefore looked at again, and
//! only what stays wrong is told.

mod check;
mod chunks;
mod problem;
mod rows;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use saker_runtime::time;
use saker_types::wire::ChunkQuarantineReq;
use saker_types::{ClusterMap, InodeId, ROOT};
use serde::Serialize;

use crate::fail::{Context, Outcome};
use crate::progress::Progress;
use crate::session::{self, ClusterArg, ClusterPath};
use crate::signals;
use crate::wire::Wire;

use check::{Look, totals_text};
use problem::{Problem, ProblemKind, Problems, Subject};
use scan::{INTERRUPTED, Places, Scanner};

/// Check that metadata and data of a cluster are sound.
///
/// The cluster may be in use: what looks wrong is looked at again after a pause. Reads all rows
/// and chunk lists; with --verify all data, too.
///
/// Exit codes are those of fsck(8): 0 sound, 1 errors were repaired, 4 errors are left,
/// 8 the check could not be made, 16 wrong command line, 32 interrupted.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// Set chunks aside that belong to no inode, and delete those that were set aside a day ago or
    /// earlier. Nothing else is ever changed.
    #[arg(long)]
    repair: bool,
    /// Read all data, and check it against its checksums.
    #[arg(long)]
    verify: bool,
    /// Nobody writes: chunks beyond the end of their file are errors, too.
    #[arg(long)]
    strict: bool,
    /// One JSON document.
    #[arg(long)]
    json: bool,
    /// Tell of problems at or below this path only (without symbolic links); all is checked.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

/// Exit codes of fsck(8).
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;
const OPERATIONAL: u8 = 8;
const CANCELLED: u8 = 32;

/// Pauses before the second look and the third one.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];
/// A transaction without an outcome for longer is stuck.
const TRANSACTION_PATIENCE: Duration = Duration::from_secs(20);
/// How long the coordinator may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The whole answer (contract.md).
#[derive(Serialize)]
struct Report {
    inodes: u64,
    chunks: u64,
    under_replicated: u64,
    /// Inodes that nobody knows, whose chunks are set aside.
    quarantined: u64,
    /// Inodes whose chunks had been aside for long enough, and are deleted.
    deleted: u64,
    problems: Vec<Told>,
    /// Problems that did not fit into the list.
    more: u64,
}

/// A problem with the path that it is about.
#[derive(Serialize)]
struct Told {
    kind: &'static str,
    path: String,
    detail: String,
    repaired: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    signals::catch_interrupt();
    let report = check(args).map_err(|failure| {
        let code = if signals::interrupted() { CANCELLED } else { OPERATIONAL };
        failure.with_code(code)
    })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).about("fsck")?);
    } else {
        print(&report);
    }
    let left = report.more > 0 || report.problems.iter().any(|told| !told.repaired);
    Ok(match (left, report.problems.is_empty() && report.deleted == 0) {
        (true, _) => ERRORS_LEFT,
        (false, true) => 0,
        (false, false) => REPAIRED,
    })
}

fn check(args: &Args) -> Outcome<Report> {
    let (name, paths) = session::translate(&args.cluster, args.path.as_slice())?;
    let wire = Wire::new()?;
    let map = map(&wire, &name)?;
    let progress = Progress::counting("rows and chunks");
    let scanner = Scanner { wire: &wire, map: &map, progress: &progress };
    let report = examine(&scanner, args, paths.first());
    progress.done();
    report.about(name)
}

fn map(wire: &Wire, name: &str) -> Outcome<ClusterMap> {
    wire.map(&session::coordinators(&session::resolve(name)?)?, ANSWER_WITHIN)
}

fn examine(
    scanner: &Scanner<'_>,
    args: &Args,
    below: Option<&ClusterPath>,
) -> Result<Report, String> {
    let mut look = scanner.look(args.verify, args.strict)?;
    for pause in PAUSES {
        if look.problems.list.is_empty() {
            break;
        }
        rest(pause)?;
        let before = std::mem::take(&mut look.problems);
        look = scanner.look(args.verify, args.strict)?;
        look.problems.keep_seen_before(&before);
    }
    settle_totals(scanner, &mut look.problems)?;
    let strays = settle_leaks(scanner, &mut look)?;
    for (shard, n) in scanner.stuck_shards(TRANSACTION_PATIENCE)? {
        let detail = format!("shard {shard} has {n} transactions without an outcome");
        look.problems.add(ProblemKind::StuckTransaction, Subject::Shard(shard), detail);
    }
    let deleted = if args.repair { repair(scanner, &strays)? } else { 0 };
    let names = Names::of(scanner, &look)?;
    let told = |problem: &Problem| Told {
        kind: problem.kind.name(),
        path: names.of_subject(&problem.subject),
        detail: problem.detail.clone(),
        repaired: args.repair && leaked(problem).is_some(),
    };
    let mut problems: Vec<Told> = look.problems.list.iter().map(told).collect();
    if let Some(below) = below {
        let below = String::from_utf8_lossy(&below.path).into_owned();
        problems.retain(|told| told.path.is_empty() || is_below(&told.path, &below));
    }
    let Look { inodes, chunks, under_replicated, .. } = look;
    let set_aside = if args.repair { strays.leaked.len() } else { 0 };
    let quarantined = (strays.aside.len() + set_aside) as u64 - deleted;
    let more = look.problems.more;
    Ok(Report { inodes, chunks, under_replicated, quarantined, deleted, problems, more })
}

/// Waits, unless Ctrl-C is pressed.
fn rest(pause: Duration) -> Result<(), String> {
    let deadline = time::now() + pause;
    while time::now() < deadline {
        if signals::interrupted() {
            return Err(INTERRUPTED.to_owned());
        }
        time::sleep(Duration::from_millis(20).min(deadline - time::now()));
    }
    Ok(())
}

/// Totals of busy directories never look right in a scan: those are read again, each by itself.
fn settle_totals(scanner: &Scanner<'_>, problems: &mut Problems) -> Result<(), String> {
    let mut kept = Vec::new();
    for mut problem in std::mem::take(&mut problems.list) {
        if let (ProblemKind::WrongTotals, Subject::Totals(shard, dir)) =
            (problem.kind, &problem.subject)
        {
            match scanner.totals_now(*shard, *dir)? {
                Some((said, found)) if said != found => problem.detail = totals_text(said, found),
                _ => continue,
            }
        }
        kept.push(problem);
    }
    problems.list = kept;
    Ok(())
}

fn leaked(problem: &Problem) -> Option<InodeId> {
    problem.subject.inode().filter(|_| problem.kind == ProblemKind::LeakedChunks)
}

/// Inodes of chunks, as shards were asked about them.
struct Strays {
    /// Nobody knows them, and their chunks are not set aside yet.
    leaked: Vec<InodeId>,
    /// Nobody knows them, and their chunks are set aside.
    aside: Vec<InodeId>,
    /// Their chunks are set aside, but they are known.
    known: Vec<InodeId>,
}

/// A scan misses what moves meanwhile. So every shard is asked about each inode that a scan did not
/// find; who is known has leaked nothing.
fn settle_leaks(scanner: &Scanner<'_>, look: &mut Look) -> Result<Strays, String> {
    let mut asked: Vec<InodeId> = look.problems.list.iter().filter_map(leaked).collect();
    asked.extend(look.aside.iter().filter(|(_, is_known)| !is_known).map(|(id, _)| *id));
    let unknown: HashSet<InodeId> = match asked.is_empty() {
        true => HashSet::new(),
        false => scanner.unknown(&asked)?.into_iter().collect(),
    };
    look.problems.list.retain(|problem| leaked(problem).is_none_or(|id| unknown.contains(&id)));
    let leaked = look.problems.list.iter().filter_map(leaked).collect();
    let all = look.aside.iter().map(|(id, _)| *id);
    let (aside, known) = all.partition(|id| unknown.contains(id));
    Ok(Strays { leaked, aside, known })
}

/// Sets leaked chunks aside, and deletes those that were for long enough; returns of how many
/// inodes.
fn repair(scanner: &Scanner<'_>, strays: &Strays) -> Result<u64, String> {
    /// Inodes in one request.
    const AT_ONCE: usize = 1000;
    for part in strays.leaked.chunks(AT_ONCE) {
        scanner.quarantine(&ChunkQuarantineReq { aside: part.to_vec(), ..Default::default() })?;
    }
    for part in strays.known.chunks(AT_ONCE) {
        scanner.quarantine(&ChunkQuarantineReq { back: part.to_vec(), ..Default::default() })?;
    }
    let mut deleted = 0;
    for part in strays.aside.chunks(AT_ONCE) {
        let request = ChunkQuarantineReq { delete: part.to_vec(), ..Default::default() };
        deleted += scanner.quarantine(&request)?.len() as u64;
    }
    Ok(deleted)
}

/// Paths of the inodes that problems are about.
struct Names(Places);

impl Names {
    fn of(scanner: &Scanner<'_>, look: &Look) -> Result<Names, String> {
        let wanted: HashSet<InodeId> =
            look.problems.list.iter().filter_map(|problem| problem.subject.inode()).collect();
        if wanted.is_empty() {
            return Ok(Names(Places::new()));
        }
        let mut places = scanner.places(&wanted)?;
        // Then the directories above them, whose parents the look has noted.
        let parent = |id: InodeId| {
            let index = look.parents.binary_search_by_key(&id, |(dir, _)| *dir).ok()?;
            Some(look.parents[index].1)
        };
        let mut above: HashSet<InodeId> = HashSet::new();
        for (pid, _) in places.values() {
            let mut at = Some(*pid);
            while let Some(id) = at.filter(|id| *id != ROOT && above.insert(*id)) {
                at = parent(id);
            }
        }
        places.extend(scanner.places(&above)?);
        Ok(Names(places))
    }

    /// A path from the root, as far as it is known.
    fn of_subject(&self, subject: &Subject) -> String {
        match (subject, subject.inode()) {
            (_, None) => String::new(),
            (Subject::Entry(_, name), Some(dir)) => {
                let dir = self.path(dir);
                let slash = if dir.ends_with('/') { "" } else { "/" };
                format!("{dir}{slash}{}", String::from_utf8_lossy(name))
            }
            (_, Some(id)) => self.path(id),
        }
    }

    fn path(&self, id: InodeId) -> String {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            match self.0.get(&at) {
                // A cycle must not keep us for ever.
                Some((pid, name)) if names.len() < saker_types::limits::COMPONENTS_MAX => {
                    names.push(String::from_utf8_lossy(name).into_owned());
                    at = *pid;
                }
                _ => {
                    names.push(format!("<inode {at}>"));
                    names.reverse();
                    return names.join("/");
                }
            }
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}

fn is_below(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn print(report: &Report) {
    for told in &report.problems {
        let state = if told.repaired { "set aside for a day" } else { "not repaired" };
        println!("{}: {}: {} ({state})", told.kind, told.path, told.detail);
    }
    if report.more > 0 {
        println!("and {} more", report.more);
    }
    let Report { inodes, chunks, under_replicated, quarantined, deleted, .. } = report;
    let problems = report.problems.len() as u64 + report.more;
    let copies = match under_replicated {
        0 => String::new(),
        n => format!(", {n} chunks with too few copies"),
    };
    let aside = match quarantined {
        0 => String::new(),
        n => format!(", chunks of {n} inodes set aside"),
    };
    let deleted = match deleted {
        0 => String::new(),
        n => format!(", chunks of {n} inodes deleted"),
    };
    println!("{inodes} inodes, {chunks} chunks{copies}{aside}{deleted}, {problems} problems");
}

#[cfg(test)]
mod path_tests {
    use super::*;

    #[test]
    fn paths_are_made_of_what_is_known() {
        let place = |pid, name: &[u8]| (pid, name.to_vec());
        let names = Names(Places::from([
            (10, place(ROOT, b"a")),
            (11, place(10, b"f")),
            (20, place(99, b"lost")),
            (30, place(31, b"p")),
            (31, place(30, b"q")),
        ]));
        assert_eq!(names.path(ROOT), "/");
        assert_eq!(names.path(11), "/a/f");
        assert_eq!(names.path(20), "<inode 99>/lost");
        assert!(names.path(30).starts_with("<inode "));
        assert_eq!(names.of_subject(&Subject::Entry(10, b"x".to_vec())), "/a/x");
        assert_eq!(names.of_subject(&Subject::Entry(ROOT, b"x".to_vec())), "/x");
        assert_eq!(names.of_subject(&Subject::Shard(1)), "");
    }

    #[test]
    fn below_is_by_components() {
        assert!(is_below("/a/b", "/a") && is_below("/a", "/a/") && is_below("/x", "/"));
        assert!(!is_below("/ab", "/a") && !is_below("<inode 9>/a", "/a"));
    }
}
