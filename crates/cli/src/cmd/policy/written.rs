//! A policy as it is given to a command: in a file, or key by key.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;

use saker_client::policies::document;
use saker_types::policy::{KEYS, Policy};

use crate::fail::{Context, Failure, Outcome};

/// Keys on the command line, in place of a file.
#[derive(clap::Args)]
#[group(id = "keys", multiple = true)]
pub struct GivenKeys {
    /// When others see an operation: strong, weak, invisible, or a composition.
    #[arg(long, value_name = "X", help_heading = "Keys")]
    consistency: Option<String>,
    /// What outlives which crash: global, local, none, or a composition.
    #[arg(long, value_name = "Y", help_heading = "Keys")]
    durability: Option<String>,
    /// Inode numbers that a client is given at a time.
    #[arg(long, alias = "allocated_inodes", value_name = "N", help_heading = "Keys")]
    allocated_inodes: Option<String>,
    /// While a client works there, others may too (allow), or get EBUSY (block).
    #[arg(long, alias = "interfere_policy", value_name = "WHICH", help_heading = "Keys")]
    interfere_policy: Option<String>,
    /// How often a client merges by itself: none, or 500ms, 5s, 2m, 1h.
    #[arg(long, alias = "sync_interval", value_name = "TIME", help_heading = "Keys")]
    sync_interval: Option<String>,
}

impl GivenKeys {
    /// The policy that they say; `None` if none is given.
    pub fn policy(&self) -> Outcome<Option<Policy>> {
        let values = [
            &self.consistency,
            &self.durability,
            &self.allocated_inodes,
            &self.interfere_policy,
            &self.sync_interval,
        ];
        let given = KEYS.into_iter().zip(values);
        let pairs: Vec<(&str, &str)> =
            given.filter_map(|(key, value)| Some((key, value.as_deref()?))).collect();
        if pairs.is_empty() {
            return Ok(None);
        }
        let policy = Policy::from_pairs(pairs);
        policy.map(Some).map_err(|why| Failure::usage("policy", why))
    }
}

/// Reads a policy from a file; `-` is the standard input.
pub fn read(file: &Path) -> Outcome<Policy> {
    let text = match file.as_os_str() == OsStr::new("-") {
        true => read_some(std::io::stdin().lock()).about("stdin")?,
        false => std::fs::File::open(file).and_then(read_some).about(file.display())?,
    };
    document::read(&text).about(file.display())
}

/// The text, or as much of it as is too long.
fn read_some(from: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    from.take(document::DOCUMENT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        keys: GivenKeys,
    }

    fn policy(line: &str) -> Outcome<Option<Policy>> {
        Line::try_parse_from(format!("x {line}").split_whitespace()).unwrap().keys.policy()
    }

    #[test]
    fn keys_on_the_command_line() {
        assert!(policy("").unwrap().is_none());
        let weak = policy("--consistency weak --sync-interval 5s").unwrap().unwrap();
        assert_eq!(weak.to_string(), "weak/global");
        // Keys as they are written in a file.
        let line =
            "--interfere_policy block --allocated_inodes 7 --consistency weak --sync_interval 5s";
        assert!(policy(line).unwrap().is_some());
        let refused = policy("--consistency strong --sync-interval 5s").unwrap_err();
        assert_eq!(refused.code, 2);
        assert!(refused.to_string().contains("nothing is merged"), "{refused}");
    }

    #[test]
    fn files_are_named_in_what_is_said_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.yaml");
        std::fs::write(&file, "durability: local\n").unwrap();
        assert_eq!(read(&file).unwrap().to_string(), "strong/local");
        for wrong in ["durability: flush".to_owned(), " ".repeat(document::DOCUMENT_BYTES_MAX + 9)]
        {
            std::fs::write(&file, wrong).unwrap();
            let said = read(&file).unwrap_err().to_string();
            assert!(said.starts_with(file.to_str().unwrap()), "{said}");
        }
        assert!(read(&dir.path().join("missing")).is_err());
    }
}
