//! Settings: a TOML file read into a struct.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// What a file held.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The settings.
    pub value: T,
    /// Keys that no field took, as dotted paths, in the file's order.
    pub unknown: Vec<String>,
}

/// Why a file could not be used. Prints as one line, `FILE: WHY` or `FILE:LINE: WHY`.
#[derive(Debug)]
pub struct ConfigError {
    path: PathBuf,
    line: Option<usize>,
    why: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for ConfigError {}

/// Reads the file at `path`, and logs a warning for each key that `T` does not know.
///
/// # Errors
/// When the file cannot be read, is not TOML, or a key's value does not fit `T`.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Loaded<T>, ConfigError> {
    let fail = |line, why| ConfigError { path: path.to_owned(), line, why };
    let text = std::fs::read_to_string(path).map_err(|e| fail(None, e.to_string()))?;
    let loaded = parse(&text).map_err(|(line, why)| fail(line, why))?;
    for key in &loaded.unknown {
        tracing::warn!("{}: unknown key {key} is ignored", path.display());
    }
    Ok(loaded)
}

/// As [`load`], of a text; errors carry the line and the reason.
fn parse<T: DeserializeOwned>(text: &str) -> Result<Loaded<T>, (Option<usize>, String)> {
    let place = |e: toml::de::Error| {
        let line = e.span().map(|span| 1 + text[..span.start].matches('\n').count());
        (line, e.message().split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let source = toml::de::Deserializer::parse(text).map_err(place)?;
    let mut unknown = Vec::new();
    let value = serde_ignored::deserialize(source, |key| unknown.push(key.to_string()));
    Ok(Loaded { value: value.map_err(place)?, unknown })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Settings {
        workers: u32,
        log: Log,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Log {
        filter: String,
    }

    impl Default for Settings {
        fn default() -> Settings {
            Settings { workers: 4, log: Log::default() }
        }
    }

    #[test]
    fn defaults_values_and_unknown_keys() {
        let empty: Loaded<Settings> = parse("").unwrap();
        assert_eq!((empty.value, empty.unknown.len()), (Settings::default(), 0));
        let text = "workers = 2\nwrkers = 3\n[log]\nfilter = \"debug\"\ncolour = true\n";
        let loaded: Loaded<Settings> = parse(text).unwrap();
        assert_eq!(loaded.value.workers, 2);
        assert_eq!(loaded.value.log.filter, "debug");
        let mut unknown = loaded.unknown;
        unknown.sort();
        assert_eq!(unknown, ["log.colour", "wrkers"]);
    }

    #[test]
    fn errors_are_one_line_with_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mnode.toml");
        let missing = load::<Settings>(&path).unwrap_err().to_string();
        assert!(missing.starts_with(&format!("{}: ", path.display())), "{missing}");
        for (text, line) in [("workers = 2\n[log\n", 2), ("\n\nworkers = \"two\"\n", 3)] {
            std::fs::write(&path, text).unwrap();
            let error = load::<Settings>(&path).unwrap_err().to_string();
            let start = format!("{}:{line}: ", path.display());
            assert!(error.starts_with(&start) && !error.contains('\n'), "{error}");
        }
    }
}
