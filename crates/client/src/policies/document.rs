//! Policies as users write them (Cudele section 3.3): keys and values in YAML, or in JSON.

use std::fmt;

use saker_types::policy::{KEYS, Policy, Refused};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

/// Longest document that is read.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// Reads a policy: JSON if the text begins with a brace, else YAML. Keys that are left out have their
/// defaults.
///
/// # Errors
/// One line with the position, for what is neither, unknown and repeated keys, values of the wrong
/// type, compositions that make no sense, and a text without any key.
pub fn read(text: &str) -> Result<Policy, Refused> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(Refused(format!("longer than {DOCUMENT_BYTES_MAX} bytes")));
    }
    let pairs = Reader::default().read(text)?;
    judge(&pairs).map_err(|why| {
        // The first key that is wrong beside those before it, in the order in which they depend on
        // each other.
        let is_wrong = |key: &&str| {
            let order = |key: &str| KEYS.iter().position(|known| *known == key);
            let upto = pairs.iter().filter(|(other, _)| order(other) <= order(key));
            judge(upto).is_err()
        };
        let wrong = KEYS.into_iter().find(is_wrong);
        let again = Reader { refuses: wrong.map(|key| (key, why.0.clone())), ..Reader::default() };
        again.read(text).err().unwrap_or(why)
    })
}

fn judge<'a>(pairs: impl IntoIterator<Item = &'a (String, String)>) -> Result<Policy, Refused> {
    Policy::from_pairs(pairs.into_iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

/// The policy as [`read`] reads it: a line for each key.
pub fn write(policy: &Policy) -> String {
    policy.pairs().into_iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
}

/// Takes keys and values out of a document. What is wrong is refused where it is met, so that the
/// parser says at which position that is.
#[derive(Default)]
struct Reader {
    pairs: Vec<(String, String)>,
    /// The value of this key is wrong.
    refuses: Option<(&'static str, String)>,
    /// Why it stopped, if that is not the parser's.
    why: Option<String>,
}

impl Reader {
    fn read(mut self, text: &str) -> Result<Vec<(String, String)>, Refused> {
        let position = match text.trim_start().starts_with('{') {
            true => self.read_json(text).map_err(|error| {
                let at = Some((error.line(), error.column()));
                (at.filter(|_| self.why.is_some()), error.to_string())
            }),
            false => self.read_yaml(text).map_err(|error| {
                let at = error.location().map(|at| (at.line(), at.column()));
                (at.filter(|_| self.why.is_some()), error.to_string())
            }),
        };
        match position {
            Ok(()) => Ok(self.pairs),
            Err((at, parser)) => {
                let why = self.why.take().unwrap_or(parser);
                let at = at.map(|(line, column)| format!("line {line}, column {column}: "));
                Err(Refused(format!("{}{why}", at.unwrap_or_default()).replace('\n', " ")))
            }
        }
    }

    fn read_json(&mut self, text: &str) -> serde_json::Result<()> {
        let mut document = serde_json::Deserializer::from_str(text);
        self.deserialize(&mut document)?;
        document.end()
    }

    fn read_yaml(&mut self, text: &str) -> Result<(), yaml_serde::Error> {
        self.deserialize(yaml_serde::Deserializer::from_str(text))
    }

    fn refuse<E: Error>(&mut self, why: String) -> E {
        self.why = Some(why);
        E::custom("refused")
    }
}

impl<'de> DeserializeSeed<'de> for &mut Reader {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<(), D::Error> {
        document.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Reader {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("keys of a policy and their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(KeyOf(self))? {
            let value = map.next_value_seed(ValueOf(self, key))?;
            self.pairs.push((key.to_owned(), value));
        }
        Ok(())
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.refuse(format!("there is no key; these are known: {}", KEYS.join(", "))))
    }
}

/// A key.
struct KeyOf<'a>(&'a mut Reader);

impl<'de> DeserializeSeed<'de> for KeyOf<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<&'static str, D::Error> {
        key.deserialize_any(self)
    }
}

impl Visitor<'_> for KeyOf<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key of a policy: {}", KEYS.join(", "))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<&'static str, E> {
        let Some(key) = KEYS.into_iter().find(|known| *known == text) else {
            let known = KEYS.join(", ");
            return Err(self
                .0
                .refuse(format!("{text:?} is no key of a policy; these are: {known}")));
        };
        match self.0.pairs.iter().any(|(other, _)| other == key) {
            true => Err(self.0.refuse(format!("{key} is there twice"))),
            false => Ok(key),
        }
    }
}

/// The value of a key.
struct ValueOf<'a>(&'a mut Reader, &'static str);

impl<'de> DeserializeSeed<'de> for ValueOf<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<String, D::Error> {
        value.deserialize_any(self)
    }
}

impl ValueOf<'_> {
    fn judge<E: Error>(self, value: String) -> Result<String, E> {
        match self.0.refuses.take() {
            Some((key, why)) if key == self.1 => Err(self.0.refuse(why)),
            other => {
                self.0.refuses = other;
                Ok(value)
            }
        }
    }
}

impl Visitor<'_> for ValueOf<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "allocated_inodes" => write!(f, "a number for {}", self.1),
            "sync_interval" => write!(f, "a time for {}, as 500ms, 5s, or none", self.1),
            key => write!(f, "text for {key}"),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        match self.1 {
            "allocated_inodes" => Err(E::invalid_type(serde::de::Unexpected::Str(text), &self)),
            _ => self.judge(text.to_owned()),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        match self.1 {
            "allocated_inodes" | "sync_interval" => self.judge(number.to_string()),
            _ => Err(E::invalid_type(serde::de::Unexpected::Unsigned(number), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_types::policy::{Consistency, Durability, Interfere};

    use super::*;

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "# of the paper\nconsistency: append_client_journal\ndurability: local_persist\n\
                    allocated_inodes: 100000\ninterfere_policy: block\n";
        let json = r#" { "consistency": "append_client_journal", "durability": "local_persist",
            "allocated_inodes": 100000, "interfere_policy": "block" } "#;
        let policy = read(yaml).unwrap();
        assert_eq!(policy, read(json).unwrap());
        assert_eq!(policy.to_string(), "invisible/local");
        assert_eq!((policy.allocated_inodes, policy.interfere), (100_000, Interfere::Block));
        assert_eq!(read("{}").unwrap(), Policy::default());
        assert_eq!(read("sync_interval: 5\nconsistency: weak").unwrap(), {
            read("{\"consistency\": 'weak', sync_interval: 5s}").unwrap_err();
            read("{\"consistency\": \"weak\", \"sync_interval\": \"5s\"}").unwrap()
        });
    }

    #[test]
    fn what_is_written_is_read() {
        for consistency in Consistency::ALL {
            for durability in Durability::ALL {
                let policy = Policy::cell(consistency, durability);
                assert_eq!(read(&write(&policy)).unwrap(), policy);
            }
        }
        let text = "append_client_journal+global_persist||volatile_apply";
        let policy = read(&format!("consistency: {text}\nsync_interval: 250ms")).unwrap();
        let written = write(&policy);
        assert!(written.starts_with(&format!("consistency: {text}\n")), "{written}");
        assert_eq!(read(&written).unwrap(), policy);
    }

    #[test]
    fn what_is_refused_is_told_with_its_position() {
        for (text, wanted) in [
            ("consistency: weak\ncolour: red\n", "line 2, column 1: \"colour\" is no key"),
            (
                "durability: none\n\ndurability: local",
                "line 3, column 1: durability is there twice",
            ),
            ("{\n \"durability\": \"none\",\n \"durability\": \"none\"}", "line 3, column"),
            ("{\"colour\": 1}", "line 1, column 9: \"colour\" is no key"),
            ("allocated_inodes: many", "invalid type: string \"many\", expected a number"),
            ("allocated_inodes: -1", "expected a number"),
            ("allocated_inodes: 1.5", "expected a number"),
            ("{\"allocated_inodes\": \"5\"}", "expected a number for allocated_inodes at line 1"),
            (
                "allocated_inodes: 0",
                "line 1, column 19: allocated_inodes: \"0\" is no number from 1",
            ),
            ("consistency: [weak]", "expected text for consistency at line 1 column 14"),
            ("consistency: 5", "expected text"),
            ("consistency: true", "expected text"),
            ("durability: ~", "expected text"),
            ("durability:\n", "expected text"),
            ("consistency: weka", "line 1, column 14: \"weka\" is no mechanism"),
            (
                "durability: flush\nconsistency: weak",
                "line 1, column 13: \"flush\" is no mechanism",
            ),
            (
                "sync_interval: 5s\nconsistency: strong",
                "line 1, column 16: sync_interval: nothing is merged",
            ),
            ("consistency: rpcs+volatile_apply", "line 1, column 14: "),
            ("interfere_policy: maybe", "line 1, column 19: interfere_policy: \"maybe\""),
            ("- consistency", "expected keys of a policy"),
            ("weak", "expected keys of a policy"),
            ("", "there is no key"),
            ("# nothing\n", "there is no key"),
            ("consistency: weak\n---\nconsistency: weak", "more than one document"),
            ("{\"consistency\": \"weak\"} x", "trailing characters at line 1"),
            ("{\"consistency\": \"weak\"", "line 1 column"),
            ("consistency: weak\n  durability: none", "line 2"),
            ("5: weak", "a key of a policy"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(wanted), "{text:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        assert!(read(&" ".repeat(DOCUMENT_BYTES_MAX + 1)).is_err());
        assert!(read(&format!("{}x", "[".repeat(20_000))).is_err());
        assert!(read(&format!("{{\"consistency\": {}", "[".repeat(20_000))).is_err());
    }
}
