//! `saker journal apply`

use std::path::PathBuf;

use saker_client::{ClientOptions, JournalOf, MergeReport, journals_in};
use serde::Serialize;

use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, ClusterArg};

/// Merge the journals of a client that is gone.
///
/// DIR is the journal_dir of a mount, or of a program that uses the library, or a copy of one: with it
/// a subtree under a policy that is weak or invisible with durability local can be merged on any
/// machine. For each subtree in it the hold is taken up again under the number that DIR has, what was
/// not merged becomes part of the namespace, all at once, the hold ends, and the journal is removed.
/// Where others have changed the same names meanwhile, what is in the journal counts.
///
/// A mount that is started with the same journal_dir does the same, and goes on with the subtrees.
///
/// Refused, and not changed, are: what is no client's journal_dir, journals of another cluster, of a hold
/// that has ended (it was merged, or reclaimed), and damaged ones (see `saker journal inspect`). The
/// hold of a client that lives is not taken: the command waits until 10 seconds after it was heard of.
/// The other subtrees of DIR are merged all the same.
///
/// Exit code: 0, or 1 if a journal was not applied.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// The client's journal_dir.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only say how many names would be merged, and how many of them others have changed. The
    /// journals are opened, as by a mount, and stay.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Applied {
    policy: String,
    journal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflicts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub fn run(args: &Args) -> Outcome<u8> {
    // Before anything is made there.
    let journals = journals_in(&args.dir).about(args.dir.display())?;
    let options = ClientOptions { journal_dir: Some(args.dir.clone()), ..ClientOptions::default() };
    let session = session::connect(&args.cluster.name(), options)?;
    if session.who.uid != 0 {
        return Err(Failure::new(args.dir.display(), "only the superuser applies journals"));
    }
    let mut all = Vec::new();
    for (n, of) in journals.iter().enumerate() {
        if !args.json {
            eprintln!("{} of {}: {}", n + 1, journals.len(), of.path.display());
        }
        let applied = session.fs.block_on(session.fs.apply_journal(of, args.dry_run));
        let applied = Applied::of(of, applied);
        if !args.json {
            applied.print(args.dry_run);
        }
        all.push(applied);
    }
    // Nothing is held any more but what could not be merged, which stays.
    session.fs.abandon();
    if args.json {
        println!("{}", serde_json::to_string(&all).about("stdout")?);
    } else if journals.is_empty() {
        println!("there is no journal in {}", args.dir.display());
    }
    Ok(u8::from(all.iter().any(|applied| applied.error.is_some())))
}

impl Applied {
    fn of(of: &JournalOf, outcome: saker_client::saker_types::Result<MergeReport>) -> Applied {
        let (names, conflicts, error) = match outcome {
            Ok(report) => (Some(report.names), Some(report.conflicts.len()), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let journal = of.path.display().to_string();
        Applied { policy: format!("{:#x}", of.policy), journal, names, conflicts, error }
    }

    fn print(&self, dry_run: bool) {
        let verb = if dry_run { "would be merged" } else { "merged" };
        match (&self.error, self.names, self.conflicts) {
            (Some(error), ..) => eprintln!("saker: {}: {error}", self.journal),
            (None, names, conflicts) => {
                println!("{} names {verb}", names.unwrap_or_default());
                if let Some(conflicts @ 1..) = conflicts {
                    println!("{conflicts} were changed by others, too");
                }
            }
        }
    }
}
