//! A directory's own policy as extended attributes (Cudele section 4: "policies ... are set as extended
//! attributes"): `user.saker.policy` is the whole, `user.saker.policy.KEY` one of its keys. They are not
//! in lists of attributes, so that no copy of a tree takes policies along.

use bytes::Bytes;
use saker_types::policy::{KEYS, Policy, Refused};
use saker_types::wire::{At, EntryKey, MergeConflict};
use saker_types::{Errno, Error, Result};

use super::document;
use crate::{Caller, Fs, MergeReport};

const WHOLE: &[u8] = b"user.saker.policy";
/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// An attribute that is a policy, or part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyAttribute {
    Whole,
    /// One of [`KEYS`].
    Key(&'static str),
    /// No part of it: reading says what a merge of the subtree would meet, setting merges it. For programs
    /// that reach the client which holds it by its mount only.
    Merge,
    /// The same, of the last merge: what it did.
    Merged,
    /// Named as if it were one.
    Unknown,
}

impl PolicyAttribute {
    /// By the attribute's name; `None`: it is an attribute like others.
    pub(crate) fn of(name: &[u8]) -> Option<PolicyAttribute> {
        match name.strip_prefix(WHOLE)? {
            b"" => Some(PolicyAttribute::Whole),
            b".merge" => Some(PolicyAttribute::Merge),
            b".merged" => Some(PolicyAttribute::Merged),
            [b'.', key @ ..] => {
                let known = KEYS.into_iter().find(|known| known.as_bytes() == key);
                Some(known.map_or(PolicyAttribute::Unknown, PolicyAttribute::Key))
            }
            _ => None,
        }
    }

    fn value(self, policy: &Policy) -> Option<String> {
        match self {
            PolicyAttribute::Whole => Some(document::write(policy)),
            PolicyAttribute::Key(key) => {
                policy.pairs().into_iter().find(|(known, _)| *known == key).map(|(_, value)| value)
            }
            PolicyAttribute::Merge | PolicyAttribute::Merged | PolicyAttribute::Unknown => None,
        }
    }

    /// The policy when this is set to a value.
    fn set(self, own: &Policy, value: &[u8]) -> std::result::Result<Policy, Refused> {
        let text = std::str::from_utf8(value).map_err(|_| Refused("not text".to_owned()))?;
        match self {
            PolicyAttribute::Whole => document::read(text),
            PolicyAttribute::Key(key) => {
                let mut pairs = own.pairs();
                pairs.retain(|(other, _)| *other != key);
                pairs.push((key, text.to_owned()));
                Policy::from_pairs(pairs.iter().map(|(key, value)| (*key, value.as_str())))
            }
            PolicyAttribute::Merge | PolicyAttribute::Merged | PolicyAttribute::Unknown => {
                Err(Refused(format!("the keys of a policy are: {}", KEYS.join(", "))))
            }
        }
    }
}

/// Most names that a report has.
const NAMES_MAX: usize = 100;

/// A report as a JSON document: `names`, how many conflicts there are, and the names of the first.
fn described(report: &MergeReport) -> String {
    let name = |conflict: &MergeConflict| {
        let EntryKey { pid, name } = &conflict.entry;
        serde_json::json!({
            "directory": pid,
            "name": String::from_utf8_lossy(name),
            "there": conflict.there,
        })
    };
    let conflicts: Vec<_> = report.conflicts.iter().take(NAMES_MAX).map(name).collect();
    serde_json::json!({
        "names": report.names,
        "kept_back": report.kept_back,
        "conflict_count": report.conflicts.len(),
        "conflicts": conflicts,
    })
    .to_string()
}

impl Fs {
    /// # Errors
    /// ENODATA: it is no directory with a policy of its own.
    pub(crate) async fn get_policy_attribute(
        &self,
        who: &Caller,
        at: &At,
        attribute: PolicyAttribute,
    ) -> Result<Bytes> {
        if attribute == PolicyAttribute::Merge {
            return Ok(described(&self.merge_subtree(who, at, true).await?).into());
        }
        if attribute == PolicyAttribute::Merged {
            return Ok(described(&self.last_merge(who, at).await?).into());
        }
        let own = self.own_policy(who, at).await?;
        let value = own.and_then(|own| attribute.value(&own));
        value.map(Bytes::from).ok_or_else(|| Errno::ENODATA.into())
    }

    /// # Errors
    /// EINVAL for what is no policy; those of [`Fs::set_policy`] and, by its flags, of setxattr(2).
    pub(crate) async fn set_policy_attribute(
        &self,
        who: &Caller,
        at: &At,
        attribute: PolicyAttribute,
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        if attribute == PolicyAttribute::Merge {
            let report = self.merge_subtree(who, at, false).await?;
            tracing::info!("merged: {}", described(&report));
            return Ok(());
        }
        let own = self.own_policy(who, at).await?;
        match (flags, &own) {
            (CREATE, Some(_)) => return Err(Errno::EEXIST.into()),
            (REPLACE, None) => return Err(Errno::ENODATA.into()),
            (0 | CREATE | REPLACE, _) => {}
            _ => return Err(Errno::EINVAL.into()),
        }
        let policy = attribute.set(&own.unwrap_or_default(), value);
        let refused = |why: Refused| Error::new(Errno::EINVAL).with_text(why.to_string());
        self.set_policy(who, at, &policy.map_err(refused)?).await.map(drop)
    }

    /// # Errors
    /// ENODATA: there is none. EOPNOTSUPP for a key: only the whole policy is removed. Those of
    /// [`Fs::clear_policy`].
    pub(crate) async fn remove_policy_attribute(
        &self,
        who: &Caller,
        at: &At,
        attribute: PolicyAttribute,
    ) -> Result<()> {
        match (attribute, self.own_policy(who, at).await?) {
            (PolicyAttribute::Merge | PolicyAttribute::Merged | PolicyAttribute::Unknown, _)
            | (_, None) => Err(Errno::ENODATA.into()),
            (PolicyAttribute::Whole, Some(_)) => self.clear_policy(who, at).await,
            (PolicyAttribute::Key(_), Some(_)) => {
                let text = "a policy has all its keys; remove user.saker.policy";
                Err(Error::new(Errno::EOPNOTSUPP).with_text(text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_of_policies_and_of_other_attributes() {
        let of = |name: &str| PolicyAttribute::of(name.as_bytes());
        assert_eq!(of("user.saker.policy"), Some(PolicyAttribute::Whole));
        assert_eq!(of("user.saker.policy.durability"), Some(PolicyAttribute::Key("durability")));
        assert_eq!(of("user.saker.policy.colour"), Some(PolicyAttribute::Unknown));
        assert_eq!(of("user.saker.policy."), Some(PolicyAttribute::Unknown));
        for other in ["user.saker.policyholder", "user.saker.polic", "user.x", "user.saker.sum"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn one_key_changes_and_the_others_stay() {
        let key = |name: &str| PolicyAttribute::of(name.as_bytes()).unwrap();
        let whole = key("user.saker.policy");
        let own = whole.set(&Policy::default(), b"consistency: weak\nsync_interval: 5s").unwrap();
        let durability = key("user.saker.policy.durability");
        let set = durability.set(&own, b" local\n").unwrap();
        assert_eq!(
            (set.to_string().as_str(), set.sync_interval),
            ("weak/local", own.sync_interval)
        );
        assert_eq!(durability.value(&set).unwrap(), "local");
        assert_eq!(whole.set(&own, whole.value(&set).unwrap().as_bytes()).unwrap(), set);
        let none = durability.set(&Policy::default(), b"none").unwrap();
        assert_eq!(none.to_string(), "strong/none");
        let consistency = key("user.saker.policy.consistency");
        assert!(consistency.set(&own, b"strong").is_err(), "nothing is merged every 5 s then");
        for (attribute, value) in
            [("", &b"colour: red"[..]), ("", b"\xff"), (".durability", b"x"), (".colour", b"red")]
        {
            let attribute = key(&format!("user.saker.policy{attribute}"));
            assert!(attribute.set(&own, value).is_err(), "{attribute:?} {value:?}");
        }
        assert_eq!(key("user.saker.policy.colour").value(&own), None);
    }
}
