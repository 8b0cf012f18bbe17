//! `saker policy get`.

use std::path::PathBuf;

use saker_client::policies::{SubtreePolicy, document};
use saker_types::policy::Policy;
use serde::Serialize;

use super::shown;
use crate::fail::{Context, Outcome};
use crate::session::{self, ClusterArg};

/// Show the policy in force at a path.
///
/// Prints its keys in YAML, as `saker policy set` reads them, and in comments which directory has it and
/// who holds the subtree.
#[derive(clap::Args)]
pub struct Args {
    /// A directory or file.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    path: String,
    policy: shown::ShownKeys,
    /// Cell of Cudele's Table 2.
    cell: String,
    composition: String,
    /// Absent where none is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_on: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<shown::ShownHold>,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, std::slice::from_ref(&args.path))?;
    for path in &paths {
        let (at, _) = session.find(path, true)?;
        let found = session.run(path, session.fs.policy(&session.who, &at))?;
        let set_on = match &found {
            Some(found) => shown::root_path(&session, path, &at, found)?
                .or_else(|| Some(shown::place(&found.root))),
            None => None,
        };
        match args.json {
            true => print_json(path.to_string(), found, set_on)?,
            false => print!("{}", text(found.as_ref(), set_on)),
        }
    }
    Ok(0)
}

fn print_json(path: String, found: Option<SubtreePolicy>, set_on: Option<String>) -> Outcome {
    let policy = found.as_ref().map(|found| found.policy.clone()).unwrap_or_default();
    let shown = Shown {
        path,
        policy: shown::ShownKeys::of(&policy),
        cell: policy.to_string(),
        composition: policy.composition().to_string(),
        id: found.as_ref().map(|found| shown::number(found.id)),
        set_on,
        hold: found.and_then(|found| found.hold).as_ref().map(shown::ShownHold::of),
    };
    println!("{}", serde_json::to_string(&shown).about("stdout")?);
    Ok(())
}

fn text(found: Option<&SubtreePolicy>, set_on: Option<String>) -> String {
    let Some(found) = found else {
        let policy = Policy::default();
        return format!("# {policy}: no policy is set here or above\n{}", document::write(&policy));
    };
    let (policy, on) = (&found.policy, set_on.unwrap_or_default());
    let mut text = format!("# {policy}, set on {on}\n{}", document::write(policy));
    if let Some(hold) = &found.hold {
        text += &format!("# held by {}\n", shown::held_by(hold));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use saker_client::policies::SubtreeHold;
    use saker_types::Locator;

    use super::*;

    #[test]
    fn what_is_printed_can_be_set() {
        let policy = document::read("durability: none\ninterfere_policy: block").unwrap();
        let hold = SubtreeHold {
            who: "process 7 on n1".to_owned(),
            epoch: 2,
            inodes: 0,
            lease: Duration::from_secs(3),
        };
        let root = Locator::root();
        let found = SubtreePolicy { id: 0x1234, policy: policy.clone(), root, hold: Some(hold) };
        let printed = text(Some(&found), Some("/d".to_owned()));
        assert!(printed.starts_with("# strong/none, set on /d\n"), "{printed}");
        assert!(printed.ends_with("# held by process 7 on n1\n"), "{printed}");
        assert_eq!(document::read(&printed).unwrap(), policy);
        assert_eq!(document::read(&text(None, None)).unwrap(), Policy::default());
    }
}
