//! A policy as commands show it.

use bytes::Bytes;
use saker_client::policies::{SubtreeHold, SubtreePolicy};
use saker_types::policy::Policy;
use saker_types::wire::At;
use saker_types::{Locator, ROOT};
use serde::Serialize;

use crate::fail::Outcome;
use crate::session::{CliSession, ClusterPath};

/// A policy in JSON: as `set` reads it.
#[derive(Serialize)]
pub struct ShownKeys {
    consistency: String,
    durability: String,
    allocated_inodes: u64,
    interfere_policy: &'static str,
    sync_interval: String,
}

impl ShownKeys {
    /// Of a policy.
    pub fn of(policy: &Policy) -> ShownKeys {
        let pairs = policy.pairs();
        let value = |key| {
            let found = pairs.iter().find(|(known, _)| *known == key);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        ShownKeys {
            consistency: value("consistency"),
            durability: value("durability"),
            allocated_inodes: policy.allocated_inodes,
            interfere_policy: policy.interfere.name(),
            sync_interval: value("sync_interval"),
        }
    }
}

/// Who holds a subtree, in JSON.
#[derive(Serialize)]
pub struct ShownHold {
    who: String,
    epoch: u64,
    /// 0: it has ended.
    lease_ms: u64,
    inodes: u64,
}

impl ShownHold {
    /// Of a hold.
    pub fn of(hold: &SubtreeHold) -> ShownHold {
        ShownHold {
            who: hold.who.clone(),
            epoch: hold.epoch,
            lease_ms: hold.lease.as_millis() as u64,
            inodes: hold.inodes,
        }
    }
}

/// A policy's number.
pub fn number(id: u64) -> String {
    format!("{id:#x}")
}

/// Who holds the subtree, in words.
pub fn held_by(hold: &SubtreeHold) -> String {
    match hold.lease.is_zero() {
        true => format!("{} (not heard of any more)", hold.who),
        false => hold.who.clone(),
    }
}

/// The path of the directory that has a policy, which is in force at `at`: looks for it from the root
/// on. `None` if it was moved meanwhile.
pub fn root_path(
    session: &CliSession,
    path: &ClusterPath,
    at: &At,
    found: &SubtreePolicy,
) -> Outcome<Option<String>> {
    for names in (0..=at.path.len()).map(|len| at.path[..len].to_vec()) {
        let above = At::below(at.anchor.clone(), names);
        let entry = session.run(path, session.fs.lookup(&session.who, &above))?;
        if entry.loc.id == found.root.id {
            return Ok(Some(joined(&above.path)));
        }
    }
    Ok(None)
}

/// A directory as far as its locator says where it is.
pub fn place(loc: &Locator) -> String {
    let name = String::from_utf8_lossy(&loc.name);
    match (loc.id, loc.pid) {
        (ROOT, _) => "/".to_owned(),
        (_, ROOT) => format!("/{name}"),
        _ => format!(".../{name}"),
    }
}

fn joined(names: &[Bytes]) -> String {
    let names = names.iter().map(|name| format!("/{}", String::from_utf8_lossy(name)));
    let path: String = names.collect();
    if path.is_empty() { "/".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_client::policies::document;
    use saker_types::policy::{Consistency, Durability};

    use super::*;

    #[test]
    fn what_is_shown_in_json_can_be_set() {
        for text in ["consistency: weak\nsync_interval: 5s", "durability: none"] {
            let policy = document::read(text).unwrap();
            let json = serde_json::to_string(&ShownKeys::of(&policy)).unwrap();
            assert_eq!(document::read(&json).unwrap(), policy);
        }
        let policy = Policy::cell(Consistency::Invisible, Durability::Local);
        let json = serde_json::to_value(ShownKeys::of(&policy)).unwrap();
        assert_eq!(
            (&json["consistency"], &json["allocated_inodes"]),
            (&"invisible".into(), &100.into())
        );
    }

    #[test]
    fn directories_by_what_is_known_of_them() {
        let below = |pid| Locator::entry(pid, Bytes::from_static(b"d"), 9);
        assert_eq!(place(&Locator::root()), "/");
        assert_eq!((place(&below(ROOT)), place(&below(7))), ("/d".to_owned(), ".../d".to_owned()));
        assert_eq!(joined(&[Bytes::from_static(b"a"), Bytes::from_static(b"b")]), "/a/b");
        assert_eq!(joined(&[]), "/");
    }
}
