//! `saker policy explain`: what a policy promises.

use std::path::PathBuf;

use saker_types::policy::Policy;
use saker_types::policy::explain::Crash;
use serde::Serialize;

use super::{shown, written};
use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, ClusterArg};

/// Say what a policy promises: when others see an operation, and what each kind of crash loses.
///
/// Of the policy in force at PATH, or of one that is not set anywhere: in FILE, or given by keys.
#[derive(clap::Args)]
pub struct Args {
    /// A directory or file.
    #[arg(value_name = "PATH", conflicts_with = "keys")]
    path: Option<PathBuf>,
    /// The policy in this file, YAML or JSON; - is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "path"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    keys: written::GivenKeys,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Explained {
    policy: shown::ShownKeys,
    cell: String,
    composition: String,
    seen: &'static str,
    interference: &'static str,
    losses: Vec<Lost>,
}

#[derive(Serialize)]
struct Lost {
    crash: String,
    loss: String,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let policy = match (args.keys.policy()?, &args.file, &args.path) {
        (Some(policy), ..) => policy,
        (None, Some(file), _) => written::read(file)?,
        (None, None, Some(path)) => in_force(cluster, path)?,
        (None, None, None) => {
            return Err(Failure::usage("policy", "neither a path, nor a file, nor a key is given"));
        }
    };
    let explained = explained(&policy);
    match args.json {
        true => println!("{}", serde_json::to_string(&explained).about("stdout")?),
        false => print!("{}", text(&explained)),
    }
    Ok(0)
}

fn in_force(cluster: &ClusterArg, path: &PathBuf) -> Outcome<Policy> {
    let (session, paths) = session::open(cluster, std::slice::from_ref(path))?;
    let mut policy = Policy::default();
    for path in &paths {
        let (at, _) = session.find(path, true)?;
        let found = session.run(path, session.fs.policy(&session.who, &at))?;
        policy = found.map(|found| found.policy).unwrap_or_default();
    }
    Ok(policy)
}

fn explained(policy: &Policy) -> Explained {
    let lost =
        |crash: Crash| Lost { crash: crash.to_string(), loss: policy.loses(crash).to_string() };
    Explained {
        policy: shown::ShownKeys::of(policy),
        cell: policy.to_string(),
        composition: policy.composition().to_string(),
        seen: policy.seen(),
        interference: policy.interference(),
        losses: Crash::ALL.into_iter().map(lost).collect(),
    }
}

fn text(explained: &Explained) -> String {
    let Explained { cell, composition, seen, interference, losses, .. } = explained;
    let width = losses.iter().map(|lost| lost.crash.len()).max().unwrap_or(0);
    let losses: String =
        losses.iter().map(|Lost { crash, loss }| format!("  {crash:width$}  {loss}\n")).collect();
    format!(
        "{cell}: {composition}\n\n{seen}\n{interference}\n\n\
         Of what was answered, and not made durable by fsync(2), at most this is lost when\n{losses}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_types::policy::explain::Loss;
    use saker_types::policy::{Consistency, Durability, KEYS};

    use super::*;

    /// The table in docs/policies.md.
    #[test]
    fn the_manual_says_the_same() {
        let manual = include_str!("../../../../../docs/policies.md");
        for consistency in Consistency::ALL {
            for durability in Durability::ALL {
                let policy = Policy::cell(consistency, durability);
                let lost = Crash::ALL.map(|crash| match policy.loses(crash) {
                    Loss::Nothing => "nothing",
                    Loss::KeptOnClient => "kept",
                    Loss::LastMoments => "50 ms",
                    Loss::SinceSync => "since sync",
                    Loss::Unmerged => "unmerged",
                });
                let (composition, lost) = (policy.composition(), lost.join(" | "));
                let row = format!("| {policy} | `{composition}` | {lost} |\n");
                assert!(manual.contains(&row), "{row}");
            }
        }
        for key in KEYS {
            assert!(manual.contains(&format!("| `{key}` | ")), "{key}");
        }
    }

    #[test]
    fn a_policy_in_words() {
        let said = text(&explained(&Policy::default()));
        assert!(said.starts_with("strong/global: rpcs+stream\n"), "{said}");
        assert_eq!(said.matches("nothing is lost\n").count(), Crash::ALL.len());
        let json = serde_json::to_value(explained(&Policy::default())).unwrap();
        assert_eq!(json["losses"][0]["crash"], "the client is killed");
    }
}
