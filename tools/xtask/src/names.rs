//! One type per name: a reader who meets a struct, an enum, a trait or an alias knows which one it is.
//!
//! Only what is visible in a whole crate counts, or beyond it. A private type, or one of a module, is
//! seen beside what it is for.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources;

/// What comes before the name of a type that is declared.
const DECLARES: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Names that several places may have, and why.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("Args", "of one command each, and named with its module"),
    ("Config", "of one role each, and named with its crate"),
    ("File", "a disk's is a trait below the roles, the client's is what programs open"),
    ("Metrics", "of one role each, and named with its crate"),
];

/// Crates that know nothing of the cluster, or little: their names are unique in themselves. Users of
/// the libraries write the crate's name before them.
const LIBRARIES: [&str; 4] = ["agent", "agent-api", "dataset", "preload"];

/// Checks all crates and the simulator.
pub fn check() -> Result<String, Vec<String>> {
    let mut places = Places::new();
    let sources = sources::read(&sources::CRATES_AND_SIM)?;
    let code = sources.iter().filter(|(path, _)| !is_test(path));
    code.for_each(|(path, source)| add(path, source, &mut places));
    let problems = problems(&places);
    if problems.is_empty() {
        let names = places.values().map(BTreeMap::len).sum::<usize>();
        Ok(format!("{names} names of types, each of one"))
    } else {
        Err(problems)
    }
}

/// The places of each name, for each set of crates within which names are unique: a library, or "" for
/// all others.
type Places = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;

/// Is it a test, an example or a benchmark?
fn is_test(path: &Path) -> bool {
    let is_other =
        |part| ["tests", "tests.rs", "examples", "benches"].iter().any(|other| part == *other);
    path.iter().any(is_other)
}

fn add(path: &Path, source: &str, places: &mut Places) {
    let mut parts = path.iter().skip(1);
    let crate_name = parts.next().unwrap_or_default();
    let library = LIBRARIES.iter().find(|library| crate_name == **library);
    let names = places.entry(library.unwrap_or(&"")).or_default();
    for (number, line) in source.lines().enumerate() {
        if line.starts_with("mod tests {") {
            break;
        }
        if let Some(name) = declared(line) {
            names.entry(name.to_owned()).or_default().push(format!(
                "{}:{}",
                path.display(),
                number + 1
            ));
        }
    }
}

/// The type that a line declares for its whole crate or for others.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (word, rest) = rest.split_once(' ')?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    (DECLARES.contains(&word) && end > 0).then_some(&rest[..end])
}

fn problems(places: &Places) -> Vec<String> {
    let all = || places.values().flatten();
    let is_exempt = |name: &str| EXCEPTIONS.iter().any(|(exempt, _)| *exempt == name);
    let shared = all().filter(|(name, places)| places.len() > 1 && !is_exempt(name));
    let mut found: Vec<String> = shared
        .map(|(name, places)| format!("{name} is several types: {}", places.join(", ")))
        .collect();
    let is_shared = |name: &str| all().any(|(other, places)| other == name && places.len() > 1);
    let idle = EXCEPTIONS.iter().filter(|(name, _)| !is_shared(name));
    found.extend(idle.map(|(name, _)| format!("{name} is one type, yet an exception in names.rs")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(sources: &[(&str, &str)]) -> Vec<String> {
        let mut places = Places::new();
        for (name, _) in EXCEPTIONS {
            for path in ["crates/x/src/a.rs", "crates/y/src/a.rs"] {
                add(Path::new(path), &format!("pub struct {name};"), &mut places);
            }
        }
        sources.iter().for_each(|(path, source)| add(Path::new(path), source, &mut places));
        problems(&places)
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let found = problems_of(&[
            ("crates/a/src/lib.rs", "pub struct Step<T>(T);\n"),
            ("tools/sim/src/b.rs", "mod inner {\n    pub(crate) enum Step {\n    }\n}"),
        ]);
        assert_eq!(found, ["Step is several types: crates/a/src/lib.rs:1, tools/sim/src/b.rs:2"]);
    }

    #[test]
    fn what_a_module_has_for_itself_does_not_count() {
        let found = problems_of(&[
            ("crates/a/src/a.rs", "pub struct Step;\npub type Rows = u8;"),
            ("crates/a/src/b.rs", "struct Step;\npub(super) struct Step;\n// pub struct Step;"),
            ("crates/a/src/c.rs", "#[cfg(test)]\nmod tests {\n    pub struct Step;\n}"),
            ("crates/dataset/src/a.rs", "pub struct Step;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
        assert!(!is_test(Path::new("crates/a/src/a.rs")));
        assert!(is_test(Path::new("crates/a/src/b/tests.rs")));
        assert!(is_test(Path::new("tools/sim/tests/a.rs")));
    }

    #[test]
    fn an_exception_is_needed() {
        let found = problems(&Places::new());
        assert_eq!(found.len(), EXCEPTIONS.len());
    }
}
