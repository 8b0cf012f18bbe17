//! Names in the code are the field's terms (ARCHITECTURE.md, "Words"): each of them is used, and none of the
//! words that it replaces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::sources;

/// What comes before a name that is declared.
const DECLARES: [&str; 8] = ["struct", "enum", "trait", "fn", "mod", "type", "const", "static"];

/// Checks all crates and tools.
pub fn check() -> Result<String, Vec<String>> {
    let glossary = glossary(&sources::text(Path::new("ARCHITECTURE.md"))?);
    if glossary.is_empty() {
        return Err(vec!["ARCHITECTURE.md has no table of words".to_owned()]);
    }
    let problems = problems(&glossary, &sources::read(&sources::CRATES_AND_SIM)?);
    if problems.is_empty() {
        Ok(format!("{} words, all used as ARCHITECTURE.md says", glossary.len()))
    } else {
        Err(problems)
    }
}

/// A word, and those that it stands for.
type Word = (String, Vec<String>);

/// The rows `| word | meaning | not |` below the heading "Words".
fn glossary(page: &str) -> Vec<Word> {
    let part = page.split("\n## ").find(|part| part.starts_with("Words\n")).unwrap_or_default();
    let rows = part.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let words = cells.filter(|cells| cells.len() == 3).map(|cells| {
        let not = cells[2].split(',').map(|word| word.trim().to_owned());
        (cells[0].to_owned(), not.filter(|word| !word.is_empty()).collect())
    });
    words.collect()
}

fn problems(glossary: &[Word], sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, source) in sources {
        for name in names(source) {
            let words = words(&name);
            for (instead, not) in glossary {
                if let Some(word) = not.iter().find(|word| words.contains(word)) {
                    found.push(format!("{}: {name}: say {instead}, not {word}", path.display()));
                }
            }
        }
    }
    let said: Vec<String> = sources.values().map(|source| source.to_lowercase()).collect();
    for word in glossary.iter().flat_map(|(words, _)| words.split(", ")) {
        let name = word.replace(' ', "_");
        if !said.iter().any(|source| source.contains(word) || source.contains(&name)) {
            found.push(format!("nothing in the code says {word:?}"));
        }
    }
    found
}

/// Names of items that a source declares.
fn names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in source.lines() {
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        while let Some(word) = words.next() {
            if DECLARES.contains(&word) {
                names.extend(words.next().filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
    }
    names
}

/// The words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_replaced_are_found() {
        let page = "x\n## Words\n\n| word | meaning | not |\n|---|---|---|\n\
                    | epoch | of a cache | era, eras |\n| chunk | data | |\n\n## More\n| a | b | c |";
        let glossary = glossary(page);
        assert_eq!(glossary.len(), 2);
        let said = |source: &str| {
            problems(&glossary, &BTreeMap::from([(PathBuf::from("a.rs"), source.to_owned())])).len()
        };
        assert_eq!(said("struct Epoch; fn chunk() {} // fn era()"), 0);
        assert_eq!(said("struct LastEra; const ERAS_MAX: u8 = 1; // epoch, chunk"), 2);
        assert_eq!(said("fn operation() {} mod epoch;"), 1, "nothing says chunk");
    }
}
